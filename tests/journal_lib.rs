//! The journal through the library's door: every tear, every damage, every fault that a disk or another
//! process can bring, and what a start makes of it. The letters are those of the table in
//! `src/session/mod.rs`.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, PoisonError, RwLock};

use mino::limits::{JOURNAL_BYTES, JOURNAL_ROOM_BYTES, RECORD_BYTES};
use mino::session::{
    self, Finding, Home, HomeError, SaveError, Session, SessionError, SessionId, StartNotice, Turn,
};
use mino::step::{Call, NotRun, Ran, Spelling, ToolResult, TurnStatus};
use mino::sys::file::{self, Links};
use serde::Deserialize;
use serde_json::value::RawValue;

// --- what every test stands on ---------------------------------------------------------------

/// A spelling of the tests' own, in which each kind of value is told apart at a glance.
struct Plain;

#[derive(Deserialize)]
struct Item {
    r#type: String,
    #[serde(default)]
    call_id: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    arguments: String,
}

fn put(value: &str, input: &mut Vec<u8>) {
    if !input.is_empty() {
        input.push(b',');
    }
    input.extend_from_slice(value.as_bytes());
}

fn json(text: &str) -> String {
    serde_json::to_string(text).unwrap()
}

impl Spelling for Plain {
    fn question(&self, text: &str, input: &mut Vec<u8>) {
        put(&format!("{{\"q\":{}}}", json(text)), input);
    }
    fn answer(&self, text: &str, input: &mut Vec<u8>) {
        put(&format!("{{\"a\":{}}}", json(text)), input);
    }
    fn output(&self, items: &[&RawValue], input: &mut Vec<u8>) {
        items.iter().for_each(|item| put(item.get(), input));
    }
    fn result(&self, call_id: &str, result: &ToolResult, input: &mut Vec<u8>) {
        let result = serde_json::to_string(result).unwrap();
        put(
            &format!("{{\"r\":{},\"result\":{result}}}", json(call_id)),
            input,
        );
    }
    fn calls(&self, items: &[&RawValue]) -> Result<Vec<Call>, String> {
        let mut calls = Vec::new();
        for item in items {
            // The one item with a lone surrogate is a message, which is not looked into.
            let Ok(item) = serde_json::from_str::<Item>(item.get()) else {
                return Err("an item is no object with a type".to_owned());
            };
            if item.r#type == "function_call" {
                calls.push(Call {
                    call_id: item.call_id,
                    name: item.name,
                    arguments: item.arguments,
                    altered: false,
                });
            }
        }
        Ok(calls)
    }
}

/// Until it has become another program, a child has a copy of every descriptor, locks included. Nobody
/// opens a conversation while another test is there.
static FORK: RwLock<()> = RwLock::new(());

/// Runs a line of shell, in which `$1` is the path. It has become the shell when this returns.
fn forked(line: &str, path: &Path, environment: &[(&str, &OsStr)]) -> Child {
    let _nobody_opens = FORK.write().unwrap_or_else(PoisonError::into_inner);
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", &format!("echo; {line}"), "sh"])
        .arg(path)
        .envs(environment.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    child
}

/// Whether a line of shell succeeded.
fn shell(line: &str, path: &Path) -> bool {
    forked(&format!("{line} 2>/dev/null"), path, &[])
        .wait()
        .unwrap()
        .success()
}

/// A folder of its own in memory, where a sync costs nothing, and gone afterwards.
struct Scratch {
    home: Home,
    dir: tempfile::TempDir,
}

impl Scratch {
    fn new() -> Scratch {
        let memory = Path::new("/dev/shm");
        let dir = if memory.is_dir() {
            tempfile::tempdir_in(memory).unwrap()
        } else {
            tempfile::tempdir().unwrap()
        };
        let home = Home::at(dir.path().join("mino"));
        home.prepare().unwrap();
        Scratch { home, dir }
    }

    fn id(&self) -> SessionId {
        SessionId::parse("0123456789abcdef0123456789abcdef").unwrap()
    }

    fn path(&self) -> PathBuf {
        self.home.journal_path(&self.id())
    }

    fn put(&self, bytes: &[u8]) {
        fs::write(self.path(), bytes).unwrap();
    }

    fn bytes(&self) -> Vec<u8> {
        fs::read(self.path()).unwrap()
    }

    fn open(&self) -> Result<(Session, Vec<StartNotice>), SessionError> {
        let _nobody_forks = FORK.read().unwrap_or_else(PoisonError::into_inner);
        Session::open(&self.home, &self.id(), Box::new(Plain))
    }

    fn opened(&self) -> Session {
        let (session, notices) = self.open().unwrap();
        assert_eq!(notices, []);
        session
    }

    fn check(&self) -> Result<Finding, SessionError> {
        session::read(&self.home, &self.id(), &Plain, &mut |_| {})
    }

    /// The names in the folder of journals, sorted.
    fn names(&self) -> Vec<String> {
        let dir = fs::read_dir(self.path().parent().unwrap()).unwrap();
        let name = |entry: fs::DirEntry| entry.file_name().into_string().unwrap();
        let mut names: Vec<_> = dir.map(|entry| name(entry.unwrap())).collect();
        names.sort();
        names
    }
}

fn fixture(name: &str) -> Vec<u8> {
    fs::read(
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/data/journals")
            .join(name),
    )
    .unwrap()
}

fn raw(text: &str) -> Box<RawValue> {
    RawValue::from_string(text.to_owned()).unwrap()
}

fn message(text: &str) -> Box<RawValue> {
    raw(&format!("{{\"type\":\"message\",\"text\":{}}}", json(text)))
}

fn call(call_id: &str, arguments: &str) -> Call {
    Call {
        call_id: call_id.to_owned(),
        name: "bash".to_owned(),
        arguments: arguments.to_owned(),
        altered: false,
    }
}

fn call_item(call: &Call) -> Box<RawValue> {
    raw(&format!(
        "{{\"type\":\"function_call\",\"call_id\":{},\"name\":{},\"arguments\":{}}}",
        json(&call.call_id),
        json(&call.name),
        json(&call.arguments)
    ))
}

fn done() -> ToolResult {
    ToolResult::ran(Ran::Completed, "ok", Some(0), false)
}

fn skipped() -> ToolResult {
    ToolResult::not_run(NotRun::NotExecuted, "not executed")
}

/// A question and its answer.
fn say(session: &Session, question: &str, answer: &str) {
    let mut turn = session.begin().unwrap();
    turn.question(question).unwrap();
    turn.response(answer, &[message(answer)]).unwrap();
    turn.end(TurnStatus::Completed).unwrap();
}

fn history(session: &Session) -> String {
    let input = session.begin().unwrap().input();
    assert!(input.turn.is_empty());
    String::from_utf8(input.history.to_vec()).unwrap()
}

/// What a request must carry of these whole lines, found the slow and simple way.
fn expected_history(bytes: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Any<'a> {
        kind: String,
        text: Option<String>,
        #[serde(borrow)]
        output: Option<Vec<&'a RawValue>>,
        call_id: Option<String>,
        #[serde(borrow)]
        result: Option<&'a RawValue>,
        status: Option<String>,
    }
    let (mut history, mut turn) = (Vec::new(), Vec::new());
    for line in std::str::from_utf8(bytes).unwrap().split_terminator('\n') {
        let any: Any = serde_json::from_str(line).unwrap();
        let text = any.text.unwrap_or_default();
        match any.kind.as_str() {
            "user_message" => turn.push(format!("{{\"q\":{}}}", json(&text))),
            "assistant_message" => turn.push(format!("{{\"a\":{}}}", json(&text))),
            "model_response" => {
                turn.extend(any.output.unwrap().iter().map(|item| item.get().to_owned()));
            }
            "tool_start" => {}
            "tool_result" => turn.push(format!(
                "{{\"r\":{},\"result\":{}}}",
                json(&any.call_id.unwrap()),
                any.result.unwrap()
            )),
            "turn_end" if any.status.as_deref() == Some("completed") => history.append(&mut turn),
            "turn_end" => turn.clear(),
            kind => panic!("{kind}"),
        }
    }
    history.join(",")
}

/// Runs the test `child` of this file in a process of its own, which plays `role` in that folder.
/// `before` is shell, for what has to be set outside the process.
fn spawn(role: &str, scratch: &Scratch, before: &str) -> Child {
    forked(
        &format!("{before} exec \"$1\" --exact child --nocapture -q"),
        &std::env::current_exe().unwrap(),
        &[
            ("JOURNAL_LIB_ROLE", OsStr::new(role)),
            ("JOURNAL_LIB_DIR", scratch.dir.path().as_os_str()),
        ],
    )
}

/// The next line that the child says on purpose.
fn heard(out: &mut impl BufRead) -> String {
    loop {
        let mut line = String::new();
        assert!(
            out.read_line(&mut line).unwrap() > 0,
            "the child said nothing"
        );
        if let Some((_, said)) = line.trim_end().split_once("said: ") {
            return said.to_owned();
        }
    }
}

fn answer_of(mut child: Child) -> String {
    let said = heard(&mut BufReader::new(child.stdout.take().unwrap()));
    child.kill().unwrap();
    child.wait().unwrap();
    said
}

/// No test by itself: what [`spawn`] runs.
#[test]
fn child() {
    let Ok(role) = std::env::var("JOURNAL_LIB_ROLE") else {
        return;
    };
    let dir = PathBuf::from(std::env::var_os("JOURNAL_LIB_DIR").unwrap());
    let home = Home::at(dir.join("mino"));
    let id = SessionId::parse("0123456789abcdef0123456789abcdef").unwrap();
    let open = || Session::open(&home, &id, Box::new(Plain));
    match role.as_str() {
        "hold" => match open() {
            Ok(session) => {
                println!("said: held");
                std::mem::forget(session);
            }
            Err(error) => println!("said: {error}"),
        },
        "make all" => {
            home.prepare().unwrap();
            let session = Session::create(&home, Box::new(Plain)).unwrap();
            say(&session, "q", "a");
            home.set_active(&session.id()).unwrap();
            file::replace(&home.config_path(), b"{}").unwrap();
            file::create_private(&home.soul_path(), b"soul").unwrap();
            println!("said: {}", session.id());
        }
        "limited" => {
            let (session, _) = open().unwrap();
            let mut turn = session.begin().unwrap();
            let error = turn.question(&"x".repeat(4_000)).unwrap_err();
            assert!(turn.input().turn.is_empty());
            drop(turn);
            let later = session.begin().err().unwrap();
            println!("said: {error} | {later}");
        }
        "load" => {
            let before = peak_memory_bytes();
            let (session, _) = open().unwrap();
            let input = session.begin().unwrap().input();
            println!(
                "said: {} {}",
                input.history.len(),
                peak_memory_bytes() - before
            );
        }
        role => panic!("{role}"),
    }
    // Until it is killed.
    std::io::stdin().read_exact(&mut [0]).unwrap();
}

fn peak_memory_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmHWM"))
        .unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib * 1024
}

// --- the cases of a start ----------------------------------------------------------------------

#[test]
fn case_a_an_empty_file_is_a_new_conversation() {
    let scratch = Scratch::new();
    scratch.put(b"");
    let session = scratch.opened();
    assert_eq!(history(&session), "");
    say(&session, "q", "a");
    assert_eq!(
        history(&session),
        r#"{"q":"q"},{"type":"message","text":"a"}"#
    );
}

#[test]
fn case_b_the_tail_is_cut_and_the_rest_kept() {
    let scratch = Scratch::new();
    let sound = fixture("v2-text.jsonl");
    for (n, tail) in [
        &b"{\"v\":2,\"se"[..],
        b"{}",
        b"\n",
        b"{]\n",
        b"\0\0\0",
        b"\0\n",
        b"\xff\n",
    ]
    .into_iter()
    .enumerate()
    {
        let torn = [&sound, tail].concat();
        scratch.put(&torn);
        let finding = scratch.check().unwrap();
        assert_eq!(scratch.bytes(), torn, "a look changes nothing");
        let seen = finding.torn.unwrap();
        assert_eq!((seen.line, seen.start), (9, sound.len() as u64));
        let (session, notices) = scratch.open().unwrap();
        let id = scratch.id();
        let copy = scratch
            .path()
            .with_file_name(format!("{id}-recovery-{}.jsonl", n + 1));
        assert_eq!(fs::read(&copy).unwrap(), torn);
        assert_eq!(
            fs::metadata(&copy).unwrap().permissions().mode() & 0o7777,
            0o600
        );
        let name = format!("{id}-recovery-{}.jsonl", n + 1);
        assert!(notices[0].to_string().contains(&name), "{}", notices[0]);
        let bytes = tail.len() as u64;
        assert_eq!(notices, [StartNotice::TailCut { copy, bytes }]);
        assert_eq!(scratch.bytes(), sound);
        assert_eq!(history(&session), expected_history(&sound));
    }
}

#[test]
fn case_b_a_copy_that_cannot_be_made_leaves_the_tail() {
    let scratch = Scratch::new();
    let torn = [&fixture("v2-text.jsonl")[..], b"{"].concat();
    scratch.put(&torn);
    // Whatever has the name already is passed over, links and folders too, and nothing goes through them.
    let copy = |n| {
        scratch
            .path()
            .with_file_name(format!("{}-recovery-{n}.jsonl", scratch.id()))
    };
    let outside = scratch.dir.path().join("outside");
    symlink(&outside, copy(1)).unwrap();
    fs::create_dir(copy(2)).unwrap();
    let (_, notices) = scratch.open().unwrap();
    assert_eq!(
        notices,
        [StartNotice::TailCut {
            copy: copy(3),
            bytes: 1
        }]
    );
    assert!(!outside.exists());
    scratch.put(&torn);
    for n in 4..=mino::limits::RECOVERY_COPIES {
        File::create(copy(n)).unwrap();
    }
    let error = scratch.open().err().unwrap();
    assert!(
        error.to_string().starts_with("cannot cut the torn end of "),
        "{error}"
    );
    assert_eq!(scratch.bytes(), torn);
}

#[test]
fn case_c_is_refused_and_untouched() {
    let scratch = Scratch::new();
    let damaged = String::from_utf8(fixture("v2-text.jsonl"))
        .unwrap()
        .replace("\"seq\":3", "\"seq\":4");
    scratch.put(damaged.as_bytes());
    let error = scratch.open().err().unwrap();
    assert_eq!(
        error.to_string(),
        format!(
            "cannot use \"{}\": line 3: `seq` is 4 where 3 must come",
            scratch.path().display()
        )
    );
    assert!(error.hint().unwrap().contains("--new"));
    assert_eq!(scratch.bytes(), damaged.as_bytes());
    assert_eq!(scratch.names().len(), 1);
}

#[test]
fn case_d_is_continued_without_a_word_and_without_a_write() {
    let scratch = Scratch::new();
    for name in [
        "v1-text.jsonl",
        "v2-after-v1.jsonl",
        "v2-text.jsonl",
        "v2-tools.jsonl",
    ] {
        let bytes = fixture(name);
        scratch.put(&bytes);
        let session = scratch.opened();
        assert_eq!(scratch.bytes(), bytes);
        assert_eq!(history(&session), expected_history(&bytes), "{name}");
        let finding = scratch.check().unwrap();
        assert_eq!((finding.torn, finding.open), (None, None));
    }
}

/// Saves a turn up to a point, stops there as a crash would, and starts again; answers what was said and
/// the lines that were added.
fn restarted(save: impl FnOnce(&mut Turn<'_>)) -> (String, Vec<serde_json::Value>, Scratch) {
    let scratch = Scratch::new();
    scratch.put(&fixture("v2-text.jsonl"));
    let session = scratch.opened();
    let before = history(&session);
    let mut turn = session.begin().unwrap();
    save(&mut turn);
    drop(turn);
    drop(session);
    let stopped = scratch.bytes();
    let finding = scratch.check().unwrap();
    let (session, notices) = scratch.open().unwrap();
    let [notice] = notices.as_slice() else {
        panic!("{notices:?}")
    };
    assert_eq!(finding.open.as_ref(), Some(notice));
    assert_eq!(history(&session), before, "the turn is not replayed");
    drop(session);
    let closed = scratch.bytes();
    let added = closed.strip_prefix(&*stopped).unwrap();
    let added = String::from_utf8(added.to_vec()).unwrap();
    let added = added
        .lines()
        .map(|line| serde_json::from_str(line).unwrap());
    let (notice, added) = (notice.to_string(), added.collect());
    // A second start finds nothing to do, and the conversation goes on.
    say(&scratch.opened(), "next", "answer");
    scratch.opened();
    (notice, added, scratch)
}

const PLAIN_NOTICE: &str =
    "An interrupted turn was retained but excluded from context. It was not retried.";
const TOOL_NOTICE: &str = "An interrupted tool turn was retained but excluded from context. \
    Commands it started may already have run; none was retried.";

fn statuses(added: &[serde_json::Value]) -> Vec<&str> {
    let status = |line: &serde_json::Value| match &line["result"]["status"] {
        serde_json::Value::Null => line["status"].clone(),
        status => status.clone(),
    };
    added
        .iter()
        .map(|line| status(line).as_str().unwrap().to_owned().leak() as &str)
        .collect()
}

#[test]
fn case_e_a_question_is_closed_as_interrupted() {
    let (notice, added, _) = restarted(|turn| turn.question("q").unwrap());
    assert_eq!(
        (&*notice, &*statuses(&added)),
        (PLAIN_NOTICE, &["interrupted"][..])
    );
    // An answer without its end is no completed turn.
    let (notice, added, _) = restarted(|turn| {
        turn.question("q").unwrap();
        turn.response("a", &[message("a")]).unwrap();
    });
    assert_eq!(
        (&*notice, &*statuses(&added)),
        (PLAIN_NOTICE, &["interrupted"][..])
    );
}

#[test]
fn case_e_of_version_1_is_closed_in_version_2() {
    let scratch = Scratch::new();
    scratch.put(&fixture("v1-unfinished.jsonl"));
    let (session, notices) = scratch.open().unwrap();
    assert_eq!(notices, [StartNotice::InterruptedTurn]);
    say(&session, "Third", "Three");
    drop(session);
    let session = scratch.opened();
    assert_eq!(
        history(&session),
        r#"{"q":"First"},{"a":"One"},{"q":"Third"},{"type":"message","text":"Three"}"#
    );
    assert_eq!(
        session.questions(),
        ["First", "Second, never answered", "Third"]
    );
}

fn two_calls(turn: &mut Turn<'_>) -> [Call; 2] {
    let calls = [
        call("c1", r#"{"command":"make"}"#),
        call("c2", r#"{"command":"date"}"#),
    ];
    turn.question("q").unwrap();
    turn.response("", &[call_item(&calls[0]), call_item(&calls[1])])
        .unwrap();
    calls
}

#[test]
fn case_f_calls_without_a_start_are_not_executed() {
    let (notice, added, _) = restarted(|turn| {
        two_calls(turn);
    });
    assert_eq!(notice, TOOL_NOTICE);
    assert_eq!(
        statuses(&added),
        ["not_executed", "not_executed", "interrupted"]
    );
    assert_eq!(
        (&added[0]["call_id"], &added[1]["call_id"]),
        (&"c1".into(), &"c2".into())
    );
}

#[test]
fn case_g_a_start_without_a_result_is_unknown_and_remembered() {
    let (notice, added, scratch) = restarted(|turn| {
        let [first, _] = two_calls(turn);
        turn.start(&first, "/").unwrap();
    });
    assert_eq!(notice, TOOL_NOTICE);
    assert_eq!(statuses(&added), ["unknown", "not_executed", "interrupted"]);
    let session = scratch.opened();
    let turn = session.begin().unwrap();
    let again = turn
        .earlier_start(&call("other", r#" {"\u0063ommand" : "make"} "#))
        .unwrap();
    assert_eq!(again.ended, TurnStatus::Interrupted);
    assert!(
        session::record::millis(&again.time).is_some(),
        "{}",
        again.time
    );
    assert_eq!(
        turn.earlier_start(&call("c2", r#"{"command":"date"}"#)),
        None
    );
}

#[test]
fn case_h_every_result_and_no_end() {
    let (notice, added, _) = restarted(|turn| {
        let [first, _] = two_calls(turn);
        turn.start(&first, "/").unwrap();
        turn.result("c1", &done()).unwrap();
        turn.result("c2", &ToolResult::not_run(NotRun::Denied, "no"))
            .unwrap();
    });
    assert_eq!(
        (&*notice, &*statuses(&added)),
        (TOOL_NOTICE, &["interrupted"][..])
    );
}

#[test]
fn a_closing_that_was_itself_interrupted_is_finished() {
    // Each prefix of what case G adds, at a line's end, lands in a case again.
    let bytes = fixture("v2-tools.jsonl");
    let text = String::from_utf8(bytes).unwrap();
    let lines: Vec<_> = text.split_inclusive('\n').collect();
    let crash = lines
        .iter()
        .position(|line| line.contains("Crash"))
        .unwrap();
    for kept in [3, 4, 5] {
        let scratch = Scratch::new();
        scratch.put(lines[..crash + kept].concat().as_bytes());
        let (_, notices) = scratch.open().unwrap();
        assert_eq!(notices, [StartNotice::InterruptedToolTurn]);
        let strip = |text: &str| {
            let lines = text
                .lines()
                .map(|line| line.split_once("\"turn_id\"").unwrap().1.to_owned());
            lines.collect::<Vec<_>>()
        };
        let closed = String::from_utf8(scratch.bytes()).unwrap();
        assert_eq!(strip(&closed), strip(&lines[..crash + 6].concat()));
    }
}

// --- every tear ------------------------------------------------------------------------------

/// Cuts at `cut`, starts, adds a turn, starts again.
fn survives_cut(scratch: &Scratch, whole: &[u8], cut: usize) {
    let torn = &whole[..cut];
    let kept = torn
        .iter()
        .rposition(|byte| *byte == b'\n')
        .map_or(0, |end| end + 1);
    scratch.put(torn);
    let (session, notices) = scratch
        .open()
        .unwrap_or_else(|error| panic!("cut at {cut}: {error}"));
    let copies: Vec<_> = notices
        .iter()
        .filter_map(|notice| match notice {
            StartNotice::TailCut { copy, bytes } => Some((copy, *bytes)),
            _ => None,
        })
        .collect();
    match copies.as_slice() {
        [] => assert_eq!(kept, cut, "cut at {cut}"),
        [(copy, bytes)] => {
            assert_eq!(*bytes as usize, cut - kept);
            assert_eq!(fs::read(copy).unwrap(), torn, "cut at {cut}");
            fs::remove_file(copy).unwrap();
        }
        _ => panic!("{notices:?}"),
    }
    assert!(scratch.bytes().starts_with(&whole[..kept]), "cut at {cut}");
    say(&session, "next", "answer");
    drop(session);
    let session = scratch.opened();
    let bytes = scratch.bytes();
    assert_eq!(history(&session), expected_history(&bytes), "cut at {cut}");
    assert!(history(&session).ends_with(r#"{"q":"next"},{"type":"message","text":"answer"}"#));
}

#[test]
fn cut_at_every_byte_every_whole_record_is_kept() {
    let scratch = Scratch::new();
    for name in [
        "v1-text.jsonl",
        "v1-unfinished.jsonl",
        "v2-after-v1.jsonl",
        "v2-text.jsonl",
        "v2-tools.jsonl",
    ] {
        let whole = fixture(name);
        (0..=whole.len()).for_each(|cut| survives_cut(&scratch, &whole, cut));
    }
}

#[test]
fn cut_around_a_record_of_5_mib() {
    let scratch = Scratch::new();
    scratch.put(b"");
    let big = "five \u{2028}\n".repeat((5 << 20) / 9);
    say(&scratch.opened(), "small", &big);
    let whole = scratch.bytes();
    let ends = whole
        .iter()
        .enumerate()
        .filter(|(_, byte)| **byte == b'\n')
        .map(|(at, _)| at);
    let mut cuts: Vec<_> = ends
        .flat_map(|end| [end - 1, end, end + 1, end + 2])
        .collect();
    // In the middle of characters, of escapes, and around the size of a reader's buffer.
    cuts.extend([
        65_535,
        65_536,
        65_537,
        1 << 20,
        (1 << 20) + 1,
        (1 << 20) + 2,
        (1 << 20) + 3,
    ]);
    for cut in cuts {
        survives_cut(&scratch, &whole, cut.min(whole.len()));
    }
}

#[test]
fn zeros_after_the_last_record_are_torn() {
    let scratch = Scratch::new();
    let whole = fixture("v2-tools.jsonl");
    let ends = whole
        .iter()
        .enumerate()
        .filter(|(_, byte)| **byte == b'\n')
        .map(|(at, _)| at + 1);
    for end in ends.chain([0]) {
        for zeros in [1, 511, 4096, 70_000] {
            let torn = [&whole[..end], &vec![0; zeros]].concat();
            survives_cut(&scratch, &torn, torn.len());
        }
    }
    // More than the longest record, without a line feed and then with one.
    let sound = &fixture("v2-text.jsonl")[..];
    let torn = [sound, &vec![0; RECORD_BYTES + 1]].concat();
    survives_cut(&scratch, &torn, torn.len());
    scratch.put(&[&torn[..], b"\n"].concat());
    let error = scratch.open().err().unwrap();
    assert!(
        matches!(&error, SessionError::Damaged { line: 9, .. }),
        "{error}"
    );
}

#[test]
fn unusual_line_ends_come_back_byte_for_byte() {
    let scratch = Scratch::new();
    scratch.put(b"");
    let odd = "a\u{2028}b\u{2029}c\u{85}d\re\u{c}f\r\ng\u{b}h\u{0}i\u{1f}j\u{7f}k\u{feff}世🙂\\\"/";
    let item = "{\"type\" : \"message\",\"n\":1.50e3, \"n\":2,\"s\":\"\\u0041\u{2028}\u{85}\\ud83d\\ude42\\ud800\r\"}"
        .replace('\r', "");
    let session = scratch.opened();
    let mut turn = session.begin().unwrap();
    turn.question(odd).unwrap();
    turn.response(odd, &[raw(&item), message(odd)]).unwrap();
    let before = turn.input();
    turn.end(TurnStatus::Completed).unwrap();
    drop(session);
    let session = scratch.opened();
    assert_eq!(history(&session).as_bytes(), *before.turn);
    assert!(history(&session).contains(&item));
    assert_eq!(session.questions(), [odd]);
    // A line feed between an item's tokens would end the record early.
    let mut turn = session.begin().unwrap();
    turn.question("q").unwrap();
    let size = scratch.bytes().len();
    let error = turn
        .response("", &[raw("{\"type\":\n\"message\"}")])
        .unwrap_err();
    assert!(matches!(error, SaveError::Order { .. }), "{error}");
    assert_eq!(scratch.bytes().len(), size);
    turn.end(TurnStatus::Failed).unwrap();
}

// --- every damage ------------------------------------------------------------------------------

/// A start refuses, names the line and the reason, and changes nothing; a look says the same.
fn refused(scratch: &Scratch, damaged: &[u8], line: u64, why: &str) {
    scratch.put(damaged);
    let text = String::from_utf8_lossy(damaged);
    let Err(error) = scratch.open() else {
        panic!("accepted, though {why}:\n{text}")
    };
    let SessionError::Damaged {
        line: found,
        reason,
        ..
    } = &error
    else {
        panic!("{error}")
    };
    assert!(
        *found == line && reason.contains(why),
        "{found}: {reason}, not {line}: {why}\n{text}"
    );
    assert!(!error.to_string().contains(char::is_control), "{error}");
    assert_eq!(scratch.check().unwrap_err().to_string(), error.to_string());
    assert_eq!(scratch.bytes(), damaged);
    assert_eq!(scratch.names().len(), 1, "nothing else was made");
}

fn lines_of(name: &str) -> Vec<String> {
    let text = String::from_utf8(fixture(name)).unwrap();
    text.split_inclusive('\n').map(str::to_owned).collect()
}

/// The lines with `seq` counted anew.
fn renumbered(lines: &[String]) -> Vec<u8> {
    let mut text = String::new();
    for (n, line) in lines.iter().enumerate() {
        let (head, tail) = line.split_once("\"seq\":").unwrap();
        let tail = tail.trim_start_matches(|c: char| c.is_ascii_digit());
        text += &format!("{head}\"seq\":{}{tail}", n + 1);
    }
    text.into_bytes()
}

#[test]
fn a_line_dropped_doubled_swapped_or_inserted_is_refused() {
    let scratch = Scratch::new();
    for name in ["v1-text.jsonl", "v2-tools.jsonl"] {
        let lines = lines_of(name);
        for n in 0..lines.len() {
            let at = n as u64 + 1;
            let mut damaged = lines.clone();
            damaged.insert(n, lines[n].clone());
            refused(&scratch, damaged.concat().as_bytes(), at + 1, "`seq` is");
            if n + 1 == lines.len() {
                continue;
            }
            let mut damaged = lines.clone();
            damaged.remove(n);
            refused(&scratch, damaged.concat().as_bytes(), at, "`seq` is");
            let mut damaged = lines.clone();
            damaged.swap(n, n + 1);
            refused(&scratch, damaged.concat().as_bytes(), at, "`seq` is");
        }
        for n in 0..lines.len() {
            let zeros = format!("{}\n", "\0".repeat(500));
            let half: String = lines[n].chars().take(60).chain(['\n']).collect();
            let mut junk = vec!["\n", &zeros, "{\"v\":2,\n", "x\n", &half];
            // Glued to the last line they make it a torn one; that is case B.
            if n + 1 < lines.len() {
                junk.push(zeros.trim_end());
            }
            for junk in junk {
                let mut damaged = lines.clone();
                damaged.insert(n, junk.to_owned());
                let damaged = damaged.concat();
                refused(&scratch, damaged.as_bytes(), n as u64 + 1, "it is not JSON");
            }
            for junk in ["[]\n", "7\n", "null\n", "\"v\"\n", "{}\n", "{\"v\":2}\n"] {
                let mut damaged = lines.clone();
                damaged.insert(n, junk.to_owned());
                refused(&scratch, damaged.concat().as_bytes(), n as u64 + 1, "");
            }
        }
        for junk in ["[]\n", "7\n", "{}\n"] {
            let damaged = lines.concat() + junk;
            refused(&scratch, damaged.as_bytes(), lines.len() as u64 + 1, "");
        }
    }
}

/// In every line, the last one too, one thing that a record may not be.
#[test]
fn a_record_that_is_wrong_by_itself_is_refused() {
    let scratch = Scratch::new();
    let lines = lines_of("v2-tools.jsonl");
    let changes: &[(&str, &str, &str)] = &[
        ("{\"v\":2", "{\"v\":3", "its version is 3"),
        ("{\"v\":2", "{\"v\":3,\"new\":[]", "its version is 3"),
        ("{\"v\":2", "{\"v\":0", "its version is 0"),
        ("{\"v\":2", "{\"v\":2.0", "invalid type"),
        ("{\"v\":2", "{\"v\":\"2\"", "invalid type"),
        ("{\"v\":2", "{\"v\":1", "version 1 has no `time`"),
        ("{\"v\":2", "{\"extra\":0,\"v\":2", "unknown field `extra`"),
        (
            "{\"v\":2",
            "{\"\\u001b[31m\":0,\"v\":2",
            "unknown field `[31m`",
        ),
        ("{\"v\":2", "{\"v\":2,\"v\":2", "duplicate field"),
        ("{\"v\":2", " {\"v\":2", "does not begin"),
        ("\"kind\":\"", "\"kind\":\"x", "kind"),
        ("\"kind\":\"", "\"kind\":null,\"x\":\"", "invalid type"),
        ("\"turn_id\":\"", "\"turn_id\":\"0", "`turn_id`"),
        ("\"turn_id\":\"1", "\"turn_id\":\"A", "`turn_id`"),
        ("\"turn_id\":\"1", "\"turn_id\":\"+", "`turn_id`"),
        ("Z\",", "\",", "`time`"),
        ("Z\",", "+00:00\",", "`time`"),
        ("2026-03-01T", "2026-02-29T", "`time`"),
        ("2026-03-01T09", "2026-03-01T24", "`time`"),
        ("\"time\":", "\"time\":null,\"Time\":", "invalid type"),
        ("}\n", ",\"cwd\":\"/\",\"output\":[]}\n", ""),
        ("}\n", ",\"name\":null}\n", ""),
        ("}\n", ",\"result\":[\"denied\",\"\",null,false]}\n", ""),
    ];
    for (n, line) in lines.iter().enumerate() {
        for (from, to, why) in changes {
            let mut damaged = lines.clone();
            damaged[n] = line.replacen(from, to, 1);
            if damaged[n] == *line {
                continue;
            }
            refused(&scratch, damaged.concat().as_bytes(), n as u64 + 1, why);
        }
        // A field lost, whichever it is.
        for field in [
            "v",
            "seq",
            "time",
            "turn_id",
            "kind",
            "text",
            "output",
            "call_id",
            "name",
            "arguments",
            "cwd",
            "result",
            "status",
        ] {
            let mut object: serde_json::Map<String, serde_json::Value> =
                serde_json::from_str(line).unwrap();
            if object.remove(field).is_some() {
                let mut damaged = lines.clone();
                damaged[n] = serde_json::to_string(&object).unwrap() + "\n";
                refused(&scratch, damaged.concat().as_bytes(), n as u64 + 1, "");
            }
        }
    }
}

#[test]
fn a_result_of_another_shape_is_refused() {
    let scratch = Scratch::new();
    let lines = lines_of("v2-tools.jsonl");
    let denied = lines
        .iter()
        .position(|line| line.contains("denied"))
        .unwrap();
    let result = "{\"status\":\"denied\",\"output\":\"The user denied this command.\"}";
    for other in [
        "[\"denied\",\"\",null,false]",
        "\"denied\"",
        "null",
        "{}",
        "{\"status\":\"denied\"}",
        "{\"status\":\"refused\",\"output\":\"\"}",
        "{\"status\":\"denied\",\"output\":\"\",\"exit_code\":1}",
        "{\"status\":\"denied\",\"output\":\"\",\"truncated\":true}",
        "{\"status\":\"denied\",\"output\":\"\",\"more\":1}",
        "{\"status\":\"denied\",\"output\":[]}",
        "{\"status\":\"denied\",\"output\":\"\\ud800\"}",
    ] {
        let mut damaged = lines.clone();
        damaged[denied] = damaged[denied].replace(result, other);
        refused(&scratch, damaged.concat().as_bytes(), denied as u64 + 1, "");
    }
}

/// Sound records in an order that tells no possible story. A change names a line by what it holds.
#[test]
fn records_that_contradict_each_other_are_refused() {
    let scratch = Scratch::new();
    let lines = lines_of("v2-tools.jsonl");
    let at = |mark: &str| lines.iter().position(|line| line.contains(mark)).unwrap();
    let with = |mark: &str, from: &str, to: &str| {
        let mut lines = lines.clone();
        lines[at(mark)] = lines[at(mark)].replacen(from, to, 1);
        lines
    };
    let without = |n: usize| {
        let mut lines = lines.clone();
        lines.remove(n);
        lines
    };
    let added = |n: usize, line: &str| {
        let mut lines = lines.clone();
        lines.insert(n, line.to_owned());
        lines
    };
    let other_id = |line: &String| line.replace(&"2".repeat(16), &"1".repeat(16));
    let reused = lines.iter().map(other_id).collect();
    let first_end = at("turn_end");
    let (version, denied, go_done) = (at("Let me look"), at("denied this"), at("go1.24.1 linux"));
    let cases: Vec<(Vec<String>, usize, &str)> = vec![
        // Turns.
        (added(0, &lines[first_end]), 0, "turn_end outside a turn"),
        (
            added(first_end, &lines[0]),
            first_end,
            "a question inside a turn",
        ),
        (reused, at("Fill the disk"), "`turn_id` was used before"),
        (
            with("Let me look", "11111", "21111"),
            version,
            "`turn_id` is not that of the open turn",
        ),
        (
            without(at("nothing was removed")),
            first_end - 1,
            "`completed` without an answer",
        ),
        (without(version), version, "a start that is not"),
        (
            added(first_end, &lines[first_end - 1]),
            first_end,
            "a response after the answer",
        ),
        (
            without(denied),
            denied,
            "a response before every call has its result",
        ),
        (
            without(at("not_executed")),
            at("not_executed"),
            "the end of a turn before every call",
        ),
        // Calls.
        (
            with("\"id\":\"fc_3\"", "call_3", "call_2"),
            at("\"id\":\"fc_3\""),
            "used twice",
        ),
        (
            with("Let me look", "call_2", "call_1"),
            version,
            "used twice",
        ),
        (
            with(
                "Let me look",
                "\"type\":\"function_call\"",
                "\"type\":[\"function_call\"]",
            ),
            version,
            "an item is no object",
        ),
        // Starts.
        (
            without(go_done - 1),
            go_done - 1,
            "a result `completed` without a start",
        ),
        (
            added(go_done, &lines[go_done - 1]),
            go_done,
            "a start before the last one has its result",
        ),
        (
            with("\"cwd\"", "call_1", "call_2"),
            version + 1,
            "a start that is not that of the next call",
        ),
        (
            with("\"cwd\"", "go version", "go  version"),
            version + 1,
            "a start that is not that of the next call",
        ),
        (
            with("\"cwd\"", "\"bash\"", "\"zsh\""),
            version + 1,
            "a start that is not that of the next call",
        ),
        // Results.
        (
            added(denied + 1, &lines[denied]),
            denied + 1,
            "a result that is not that of the next call",
        ),
        (
            with("go1.24.1 linux", "call_1", "call_2"),
            go_done,
            "a result that is not that of the next call",
        ),
        (
            with("denied this", "denied\"", "completed\""),
            denied,
            "a result `completed` without a start",
        ),
        (
            with("denied this", "denied\"", "unknown\""),
            denied,
            "a result `unknown` without a start",
        ),
        (
            with("go1.24.1 linux", "completed\"", "unknown\""),
            denied,
            "tool_result after a result `unknown`",
        ),
        (
            with("timed_out", "timed_out", "unknown"),
            at("timed_out") + 1,
            "turn_end after a result `unknown`",
        ),
        (
            with("interrupted", "interrupted", "cancelled"),
            at("interrupted"),
            "turn_end after a result `unknown`",
        ),
        (
            with("cancelled\",\"output", "cancelled", "not_executed"),
            at("cancelled\",\"output"),
            "a result `not_executed` after a start",
        ),
    ];
    for (damaged, n, why) in cases {
        refused(&scratch, &renumbered(&damaged), n as u64 + 1, why);
    }
    // Versions: the old one can't come back.
    let old = lines_of("v1-text.jsonl");
    let mixed = [lines_of("v2-after-v1.jsonl"), old[6..].to_vec()].concat();
    refused(
        &scratch,
        &renumbered(&mixed),
        9,
        "version 1 after a later one",
    );
    let answer = old[1].replace("\"v\":1", "\"v\":2").replace(
        "\"turn_id\"",
        "\"time\":\"2026-03-01T09:00:00.000Z\",\"turn_id\"",
    );
    let mixed = vec![old[0].clone(), answer];
    refused(&scratch, &renumbered(&mixed), 2, "kind");
}

#[test]
fn a_file_beyond_its_limit_is_refused() {
    let scratch = Scratch::new();
    File::create(scratch.path())
        .unwrap()
        .set_len(JOURNAL_BYTES + 1)
        .unwrap();
    let error = scratch.open().err().unwrap();
    assert!(matches!(error, SessionError::Full { .. }), "{error}");
    assert!(error.hint().unwrap().contains("--new"));
    assert_eq!(
        fs::metadata(scratch.path()).unwrap().len(),
        JOURNAL_BYTES + 1
    );
}

// --- a turn, and what may come next --------------------------------------------------------------

#[test]
fn what_cannot_come_next_is_an_error_and_writes_nothing() {
    let scratch = Scratch::new();
    scratch.put(b"");
    let session = scratch.opened();
    let mut turn = session.begin().unwrap();
    let one = call("c1", "{}");
    let order = |saved: Result<(), SaveError>| {
        let error = saved.unwrap_err();
        assert!(matches!(error, SaveError::Order { .. }), "{error}");
    };
    order(turn.response("a", &[message("a")]));
    order(turn.start(&one, "/").map(|_| ()));
    order(turn.result("c1", &skipped()));
    assert_eq!((turn.open_calls(), turn.calls_so_far()), (vec![], 0));
    order(turn.end(TurnStatus::Failed));
    assert_eq!(scratch.bytes(), b"");

    let mut turn = session.begin().unwrap();
    turn.question("q").unwrap();
    let calls = [one, call("c2", "{}")];
    let items = [call_item(&calls[0]), call_item(&calls[1])];
    order(turn.question("again"));
    order(turn.response("", &[call_item(&calls[0]), call_item(&calls[0])]));
    turn.response("", &items).unwrap();
    assert_eq!(turn.open_calls(), ["c1", "c2"]);
    let size = scratch.bytes().len();
    order(turn.response("a", &[message("a")]));
    order(turn.start(&calls[1], "/").map(|_| ()));
    order(turn.start(&call("c1", "{ }"), "/").map(|_| ()));
    order(turn.result("c2", &skipped()));
    order(turn.result("c1", &done()));
    order(turn.result("c1", &ToolResult::ran(Ran::Unknown, "", None, false)));
    assert_eq!(scratch.bytes().len(), size);
    let started = turn.start(&calls[0], "/").unwrap();
    assert_eq!(started.call_id(), "c1");
    order(turn.start(&calls[0], "/").map(|_| ()));
    order(turn.result("c1", &skipped()));
    order(turn.result("c1", &ToolResult::ran(Ran::Unknown, "", None, false)));
    turn.result("c1", &done()).unwrap();
    assert_eq!(turn.open_calls(), ["c2"]);
    turn.result("c2", &skipped()).unwrap();
    order(turn.response("", &items));
    assert!(turn.knows_call("c1") && turn.knows_call("c2") && !turn.knows_call("c3"));
    assert_eq!(turn.calls_so_far(), 2);
    order(turn.end(TurnStatus::Completed));
    // The turn was dropped without its end, so this process can't go on, and a start can.
    let mut turn = session.begin().unwrap();
    assert!(!turn.knows_call("c1"));
    order(turn.question("next"));
    order(turn.end(TurnStatus::Failed));
    drop(session);
    let (_, notices) = scratch.open().unwrap();
    assert_eq!(notices, [StartNotice::InterruptedToolTurn]);
}

#[test]
fn interrupted_is_for_a_start_to_say() {
    let scratch = Scratch::new();
    scratch.put(b"");
    let session = scratch.opened();
    let mut turn = session.begin().unwrap();
    turn.question("q").unwrap();
    let error = turn.end(TurnStatus::Interrupted).unwrap_err();
    assert!(matches!(error, SaveError::Order { .. }), "{error}");
}

#[test]
fn a_second_turn_is_busy_before_anything_is_written() {
    let scratch = Scratch::new();
    scratch.put(b"");
    let session = Arc::new(scratch.opened());
    let mut turn = session.begin().unwrap();
    turn.question("q").unwrap();
    let size = scratch.bytes().len();
    assert!(matches!(session.begin().err().unwrap(), SaveError::Busy));
    let other = Arc::clone(&session);
    let error = std::thread::spawn(move || other.begin().err().unwrap().to_string());
    assert_eq!(
        error.join().unwrap(),
        "a turn of this conversation is in progress"
    );
    assert_eq!(session.questions(), Vec::<String>::new());
    assert_eq!(scratch.bytes().len(), size);
    turn.end(TurnStatus::Failed).unwrap();
    assert_eq!(session.questions(), ["q"]);
    say(&session, "next", "answer");
}

#[test]
fn requests_share_their_prefix_and_saves_copy_no_history() {
    let scratch = Scratch::new();
    scratch.put(&fixture("v2-tools.jsonl"));
    let session = scratch.opened();
    let mut turn = session.begin().unwrap();
    let history = turn.input().history;
    let mut last = Vec::new();
    let mut grew = |turn: &Turn<'_>| {
        let input = turn.input();
        assert!(Arc::ptr_eq(&input.history, &history));
        assert!(input.turn.starts_with(&last) && input.turn.len() > last.len());
        last = input.turn.to_vec();
    };
    turn.question("q").unwrap();
    grew(&turn);
    let one = call("c1", r#"{"command":"true"}"#);
    turn.response("", &[call_item(&one)]).unwrap();
    grew(&turn);
    turn.start(&one, "/").unwrap();
    turn.result("c1", &done()).unwrap();
    grew(&turn);
    turn.response("a", &[message("a")]).unwrap();
    grew(&turn);
    let before = turn.input();
    turn.end(TurnStatus::Completed).unwrap();
    let after = session.begin().unwrap().input();
    assert_eq!(
        *after.history,
        [&before.history[..], b",", &before.turn].concat()
    );
    // And a start spells it the same.
    drop(session);
    assert_eq!(
        scratch.opened().begin().unwrap().input().history,
        after.history
    );
}

#[test]
fn the_repeat_guard_remembers_until_the_command_has_a_known_result() {
    let scratch = Scratch::new();
    scratch.put(b"");
    let session = scratch.opened();
    let run = |status: TurnStatus, result: &ToolResult| {
        let mut turn = session.begin().unwrap();
        let one = call("c1", r#"{"command":"make","x":1}"#);
        turn.question("q").unwrap();
        turn.response("", &[call_item(&one)]).unwrap();
        if result.status().ran() {
            turn.start(&one, "/").unwrap();
        }
        turn.result("c1", result).unwrap();
        if status == TurnStatus::Completed {
            turn.response("a", &[message("a")]).unwrap();
        }
        turn.end(status).unwrap();
    };
    let asked = |session: &Session, arguments: &str| {
        let turn = session.begin().unwrap();
        turn.earlier_start(&call("other", arguments))
            .map(|repeat| repeat.ended)
    };
    let same = r#"{ "x":1, "command":"m\u0061ke" }"#;
    run(TurnStatus::Failed, &skipped());
    assert_eq!(asked(&session, same), None);
    run(TurnStatus::Failed, &done());
    assert_eq!(asked(&session, same), Some(TurnStatus::Failed));
    run(
        TurnStatus::Cancelled,
        &ToolResult::ran(Ran::Cancelled, "", None, false),
    );
    assert_eq!(asked(&session, same), Some(TurnStatus::Cancelled));
    assert_eq!(asked(&session, r#"{"command":"make"}"#), None);
    run(TurnStatus::Completed, &skipped());
    assert_eq!(asked(&session, same), Some(TurnStatus::Cancelled));
    run(
        TurnStatus::Completed,
        &ToolResult::ran(Ran::Failed, "", Some(1), false),
    );
    assert_eq!(asked(&session, same), None);
    drop(session);
    let bytes = scratch.bytes();
    assert_eq!(asked(&scratch.opened(), same), None);
    // Without the turn that ran it again, a start remembers it as well.
    let lines: Vec<_> = bytes.split_inclusive(|byte| *byte == b'\n').collect();
    let last = lines
        .iter()
        .rposition(|line| line.windows(12).any(|w| w == b"user_message"))
        .unwrap();
    scratch.put(&lines[..last].concat());
    assert_eq!(asked(&scratch.opened(), same), Some(TurnStatus::Cancelled));
}

// --- full ----------------------------------------------------------------------------------------

/// A sound journal of about `size` bytes: one failed turn with a long question after another.
fn filled(size: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut seq = 0;
    while (bytes.len() as u64) < size {
        let left = (size - bytes.len() as u64) as usize;
        let text = "x".repeat(left.saturating_sub(300).min(15 << 20));
        let mut put = |kind: &str, rest: &str| {
            seq += 1;
            let turn = (seq + 1) / 2;
            let line = format!(
                "{{\"v\":2,\"seq\":{seq},\"time\":\"2026-03-01T09:00:00.000Z\",\"turn_id\":\"{turn:032x}\",\"kind\":\"{kind}\",{rest}}}\n"
            );
            bytes.extend_from_slice(line.as_bytes());
        };
        put("user_message", &format!("\"text\":\"{text}\""));
        put("turn_end", "\"status\":\"failed\"");
    }
    bytes
}

#[test]
fn a_full_conversation_takes_no_question_and_is_still_read() {
    let scratch = Scratch::new();
    scratch.put(&filled(JOURNAL_BYTES - JOURNAL_ROOM_BYTES));
    let session = scratch.opened();
    let size = scratch.bytes().len();
    let error = session.begin().err().unwrap();
    assert!(matches!(error, SaveError::Full { .. }), "{error}");
    assert!(error.hint().unwrap().contains("--new"));
    assert_eq!(scratch.bytes().len(), size);
    drop(session);
    scratch.check().unwrap();
}

#[test]
fn the_room_is_kept_for_results_and_the_end() {
    let scratch = Scratch::new();
    // Room for one question and its response, and not for the start of the call.
    scratch.put(&filled(JOURNAL_BYTES - JOURNAL_ROOM_BYTES - 40_000));
    let session = scratch.opened();
    let mut turn = session.begin().unwrap();
    let error = turn.question(&"x".repeat(100_000)).unwrap_err();
    assert!(matches!(error, SaveError::Full { .. }), "{error}");
    turn.question("q").unwrap();
    let calls: Vec<_> = (0..16)
        .map(|n| call(&format!("{n:0512}"), "{\"command\":\"x\"}"))
        .collect();
    let items: Vec<_> = calls.iter().map(call_item).collect();
    let error = turn
        .response("", &[message(&"x".repeat(2 << 20))])
        .unwrap_err();
    assert!(matches!(error, SaveError::Full { .. }), "{error}");
    turn.response(&"x".repeat(30_000), &items).unwrap();
    let error = turn.start(&calls[0], "/").unwrap_err();
    assert!(matches!(error, SaveError::Full { .. }), "{error}");
    assert!(
        error.to_string().contains("the conversation is full"),
        "{error}"
    );
    for id in turn.open_calls() {
        turn.result(&id, &skipped()).unwrap();
    }
    turn.end(TurnStatus::Failed).unwrap();
    drop(session);
    scratch.opened();
}

#[test]
fn what_could_not_be_closed_any_more_is_not_saved() {
    let scratch = Scratch::new();
    scratch.put(&filled(JOURNAL_BYTES - JOURNAL_ROOM_BYTES - 10_000));
    let session = scratch.opened();
    let mut turn = session.begin().unwrap();
    turn.question("q").unwrap();
    // Small items, each of which will need a result.
    let items: Vec<_> = (0..1024)
        .map(|n| call_item(&call(&n.to_string(), "{}")))
        .collect();
    let error = turn.response("", &items).unwrap_err();
    assert!(matches!(error, SaveError::Full { .. }), "{error}");
    turn.response("", &items[..16]).unwrap();
    let left = JOURNAL_BYTES as usize - scratch.bytes().len();
    let result = |bytes: usize| ToolResult::not_run(NotRun::Denied, "x".repeat(bytes));
    let error = turn.result("0", &result(left - 10_000)).unwrap_err();
    assert!(matches!(error, SaveError::Full { .. }), "{error}");
    turn.result("0", &result(left - 20_000)).unwrap();
    for id in turn.open_calls() {
        turn.result(&id, &result(500)).unwrap();
    }
    turn.end(TurnStatus::Failed).unwrap();
    assert!(scratch.bytes().len() as u64 <= JOURNAL_BYTES);
}

#[test]
fn an_open_turn_that_no_longer_fits_is_refused_untouched() {
    let scratch = Scratch::new();
    let mut bytes = filled(JOURNAL_BYTES - 500);
    let end = bytes.len()
        - 1
        - bytes
            .iter()
            .rev()
            .skip(1)
            .position(|byte| *byte == b'\n')
            .unwrap();
    bytes.truncate(end);
    let torn = [&bytes[..], b"{"].concat();
    scratch.put(&torn);
    let error = scratch.open().err().unwrap();
    assert!(
        error.to_string().ends_with("it is full (67108864 bytes)"),
        "{error}"
    );
    assert_eq!(scratch.check().unwrap_err().to_string(), error.to_string());
    assert!(scratch.bytes() == torn && scratch.names().len() == 1);
}

#[test]
fn the_largest_result_and_the_closing_records_fit_after_the_last_start() {
    let scratch = Scratch::new();
    scratch.put(&filled(JOURNAL_BYTES - JOURNAL_ROOM_BYTES - 100_000));
    let session = scratch.opened();
    let mut turn = session.begin().unwrap();
    turn.question("q").unwrap();
    let calls: Vec<_> = (0..16)
        .map(|n| call(&format!("{n:\u{1}>512}"), "{}"))
        .collect();
    let items: Vec<_> = calls.iter().map(call_item).collect();
    turn.response("", &items[..1]).unwrap();
    turn.start(&calls[0], "/").unwrap();
    // A crash now can be closed as well.
    let crashed = scratch.bytes();
    let output = "\u{1}".repeat(mino::limits::OUTPUT_BYTES);
    turn.result(
        &calls[0].call_id,
        &ToolResult::ran(Ran::OutputLimit, output, None, true),
    )
    .unwrap();
    turn.response("", &items[1..]).unwrap();
    for id in turn.open_calls() {
        turn.result(&id, &skipped()).unwrap();
    }
    turn.end(TurnStatus::Failed).unwrap();
    assert!(scratch.bytes().len() as u64 <= JOURNAL_BYTES);
    drop(session);
    scratch.opened();
    scratch.put(&crashed);
    scratch.open().unwrap();
}

#[test]
fn a_record_beyond_its_limit_is_refused_and_the_turn_can_be_closed() {
    let scratch = Scratch::new();
    scratch.put(b"");
    let session = scratch.opened();
    let mut turn = session.begin().unwrap();
    let error = turn
        .question(&"\u{1}".repeat(RECORD_BYTES / 6))
        .unwrap_err();
    assert!(matches!(error, SaveError::TooLarge { .. }), "{error}");
    turn.question("q").unwrap();
    let size = scratch.bytes().len();
    let before = turn.input().turn;
    let error = turn
        .response("", &[message(&"x".repeat(RECORD_BYTES))])
        .unwrap_err();
    assert!(matches!(error, SaveError::TooLarge { .. }), "{error}");
    assert_eq!((scratch.bytes().len(), turn.input().turn), (size, before));
    // The largest that fits does, and loads.
    let frame = scratch.bytes().len();
    turn.response("", &[message("")]).unwrap();
    let frame = scratch.bytes().len() - frame;
    turn.end(TurnStatus::Completed).unwrap();
    let mut turn = session.begin().unwrap();
    turn.question("q").unwrap();
    let most = "x".repeat(RECORD_BYTES - frame);
    turn.response("", &[message(&(most.clone() + "x"))])
        .unwrap_err();
    turn.response("", &[message(&most)]).unwrap();
    turn.end(TurnStatus::Completed).unwrap();
    drop(session);
    scratch.opened();
}

// --- a disk that is full or fails ------------------------------------------------------------------

/// A file-size limit: the write is short first, then fails. What was cut short is a torn tail.
#[test]
fn a_write_cut_short_fails_the_conversation_and_the_next_start_mends_it() {
    let scratch = Scratch::new();
    let sound = fixture("v2-text.jsonl");
    scratch.put(&sound);
    let said = answer_of(spawn("limited", &scratch, "trap '' XFSZ; ulimit -f 8;"));
    let (error, later) = said.split_once(" | ").unwrap();
    assert!(error.starts_with("cannot save the question in "), "{error}");
    assert!(error.contains("File too large"), "{error}");
    assert!(later.contains("an earlier save failed"), "{later}");
    let torn = scratch.bytes();
    assert!(
        torn.len() > sound.len() && torn.len().is_multiple_of(512),
        "{}",
        torn.len()
    );
    let (session, notices) = scratch.open().unwrap();
    assert!(
        matches!(notices.as_slice(), [StartNotice::TailCut { .. }]),
        "{notices:?}"
    );
    assert_eq!(scratch.bytes(), sound);
    say(&session, "next", "answer");
}

/// A tiny file system in memory, unmounted afterwards. `None`, said aloud, where that isn't allowed.
struct Tiny(PathBuf);

impl Tiny {
    fn mount(at: PathBuf, options: &str) -> Option<Tiny> {
        fs::create_dir_all(&at).unwrap();
        if shell(&format!("mount -t tmpfs -o {options} none \"$1\""), &at) {
            return Some(Tiny(at));
        }
        eprintln!("SKIPPED: a file system can't be mounted here");
        None
    }
}

impl Drop for Tiny {
    fn drop(&mut self) {
        shell("umount -l \"$1\"", &self.0);
    }
}

/// A whole tool turn with records of more than a page each; the number of saves that succeeded, and
/// the error of the one that did not.
fn long_turn(session: &Session) -> (usize, Option<SaveError>) {
    let long = "x".repeat(5_000);
    let one = call("c1", "{}");
    let mut saves = 0;
    let mut turn = session.begin().unwrap();
    let mut run = || -> Result<(), SaveError> {
        let mut step = |saved: Result<(), SaveError>| saved.map(|()| saves += 1);
        step(turn.question(&long))?;
        step(turn.response(&long, &[call_item(&one)]))?;
        step(turn.start(&one, &long).map(|_| ()))?;
        step(turn.result(
            "c1",
            &ToolResult::ran(Ran::Completed, long.as_str(), Some(0), false),
        ))?;
        step(turn.response(&long, &[message("a")]))
    };
    let Err(error) = run() else {
        turn.end(TurnStatus::Completed).unwrap();
        return (saves, None);
    };
    // Nothing that comes after is written, whatever is tried.
    let input = turn.input();
    for id in turn.open_calls() {
        assert!(matches!(
            turn.result(&id, &skipped()),
            Err(SaveError::Failed { .. })
        ));
    }
    assert_eq!(input.turn, turn.input().turn);
    assert!(matches!(
        turn.end(TurnStatus::Failed),
        Err(SaveError::Failed { .. })
    ));
    (saves, Some(error))
}

#[test]
fn a_full_disk_fails_each_save_point_in_turn_and_loads_once_there_is_room() {
    let scratch = Scratch::new();
    let Some(tiny) = Tiny::mount(
        scratch.dir.path().join("mino/sessions"),
        "size=128k,mode=700",
    ) else {
        return;
    };
    let filler = tiny.0.join("filler");
    let mut failed_at = Vec::new();
    for free_pages in 0..12 {
        scratch.put(&fixture("v2-text.jsonl"));
        let session = scratch.opened();
        // Takes all the room, then gives back some.
        let mut file = File::create(&filler).unwrap();
        while file.write(&[0; 4096]).is_ok_and(|written| written > 0) {}
        let size = file.metadata().unwrap().len();
        file.set_len(size.saturating_sub(free_pages * 4096))
            .unwrap();
        let (saves, error) = long_turn(&session);
        drop(session);
        drop(file);
        if saves == 0 {
            // Nor is there room for the copy: then the tail isn't cut.
            let torn = scratch.bytes();
            let error = scratch.open().err().unwrap();
            assert!(error.to_string().contains("No space left"), "{error}");
            assert_eq!((scratch.bytes(), scratch.names().len()), (torn, 2));
        }
        fs::remove_file(&filler).unwrap();
        let (session, notices) = scratch.open().unwrap();
        assert!(
            notices
                .iter()
                .any(|notice| matches!(notice, StartNotice::TailCut { .. }))
                || error.is_none()
        );
        if let Some(error) = error {
            assert!(error.to_string().contains("No space left"), "{error}");
            assert!(error.hint().is_some());
            failed_at.push(saves);
        }
        say(&session, "next", "answer");
        drop(session);
        scratch.opened();
        for name in scratch
            .names()
            .iter()
            .filter(|name| name.contains("recovery"))
        {
            fs::remove_file(tiny.0.join(name)).unwrap();
        }
    }
    failed_at.dedup();
    assert_eq!(failed_at, [0, 1, 2, 3, 4], "each save point has failed");
}

#[test]
fn a_read_only_folder_can_be_read_and_nothing_else() {
    let scratch = Scratch::new();
    let Some(tiny) = Tiny::mount(scratch.dir.path().join("mino/sessions"), "size=1m,mode=700")
    else {
        return;
    };
    scratch.put(&fixture("v2-tools.jsonl"));
    scratch.home.set_active(&scratch.id()).unwrap();
    assert!(shell("mount -o remount,ro \"$1\"", &tiny.0));
    let error = scratch.open().err().unwrap();
    assert!(
        error.to_string().contains("Read-only file system"),
        "{error}"
    );
    let error = Session::create(&scratch.home, Box::new(Plain))
        .err()
        .unwrap();
    assert!(
        error.to_string().contains("Read-only file system"),
        "{error}"
    );
    let mut seen = 0;
    let finding = session::read(&scratch.home, &scratch.id(), &Plain, &mut |_| seen += 1).unwrap();
    assert_eq!(
        (seen, finding.records, finding.torn, finding.open),
        (36, 36, None, None)
    );
    assert_eq!(scratch.home.sessions().unwrap()[0].turns, 5);
    assert_eq!(scratch.home.active().unwrap(), Some(scratch.id()));
}

// --- two at once -----------------------------------------------------------------------------------

#[test]
fn of_two_processes_one_is_refused_and_a_killed_one_leaves_no_lock() {
    let scratch = Scratch::new();
    let bytes = fixture("v2-tools.jsonl");
    scratch.put(&bytes);
    for _ in 0..10 {
        let mut pair = [spawn("hold", &scratch, ""), spawn("hold", &scratch, "")];
        let mut said = pair
            .each_mut()
            .map(|child| heard(&mut BufReader::new(child.stdout.take().unwrap())));
        said.sort();
        assert_eq!(
            said,
            [
                format!("conversation {} is in use by another Mino", scratch.id()),
                "held".to_owned()
            ]
        );
        assert!(matches!(scratch.open(), Err(SessionError::Locked { .. })));
        // Reading needs no lock.
        scratch.check().unwrap();
        for child in &mut pair {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        scratch.opened();
        assert_eq!(scratch.bytes(), bytes);
    }
}

#[test]
fn a_child_of_the_process_does_not_hold_the_lock() {
    let scratch = Scratch::new();
    scratch.put(&fixture("v2-text.jsonl"));
    let session = scratch.opened();
    let mut child = forked("exec cat", Path::new("-"), &[]);
    drop(session);
    scratch.opened();
    child.kill().unwrap();
    child.wait().unwrap();
}

// --- files -----------------------------------------------------------------------------------------

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn modes_are_private_whatever_the_umask() {
    for umask in ["000", "022", "077"] {
        let scratch = Scratch::new();
        fs::remove_dir_all(scratch.dir.path().join("mino")).unwrap();
        let id = answer_of(spawn("make all", &scratch, &format!("umask {umask};")));
        let root = scratch.dir.path().join("mino");
        for dir in [root.clone(), root.join("sessions")] {
            assert_eq!(mode(&dir), 0o700);
            for entry in fs::read_dir(&dir).unwrap() {
                let path = entry.unwrap().path();
                assert!(path.is_dir() || mode(&path) == 0o600, "{path:?}");
            }
        }
        assert_eq!(
            fs::read_dir(&root).unwrap().count(),
            4,
            "no temporary file is left"
        );
        assert_eq!(scratch.home.active().unwrap(), SessionId::parse(&id));
    }
}

#[test]
fn wider_modes_are_tightened_and_narrower_ones_kept() {
    let scratch = Scratch::new();
    let root = scratch.dir.path().join("mino");
    scratch.put(&fixture("v2-text.jsonl"));
    let copy = scratch
        .path()
        .with_file_name("0123456789abcdef0123456789abcdef-recovery-1.jsonl");
    let files = [
        scratch.path(),
        copy,
        root.join("active-session.json"),
        root.join("config.json"),
        root.join("SOUL.md"),
    ];
    for file in &files {
        File::options()
            .create(true)
            .append(true)
            .open(file)
            .unwrap();
    }
    for (wide, tight) in [
        (0o666, 0o600),
        (0o644, 0o600),
        (0o4755, 0o600),
        (0o640, 0o600),
        (0o444, 0o400),
        (0o600, 0o600),
    ] {
        for file in &files {
            fs::set_permissions(file, fs::Permissions::from_mode(wide)).unwrap();
        }
        fs::set_permissions(&root, fs::Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(root.join("sessions"), fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(scratch.home.prepare().unwrap(), Vec::<PathBuf>::new());
        assert!(files.iter().all(|file| mode(file) == tight), "{wide:o}");
        assert_eq!((mode(&root), mode(&root.join("sessions"))), (0o700, 0o700));
    }
    // Also when only that file is opened.
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o644)).unwrap();
    scratch.opened();
    assert_eq!(mode(&scratch.path()), 0o600);
}

fn mkfifo(path: &Path) {
    assert!(shell("mkfifo \"$1\"", path));
}

#[test]
fn links_fifos_and_folders_in_place_of_a_journal_are_refused() {
    let scratch = Scratch::new();
    let (path, outside) = (scratch.path(), scratch.dir.path().join("outside"));
    let bytes = fixture("v2-text.jsonl");
    fs::write(&outside, &bytes).unwrap();
    fs::set_permissions(&outside, fs::Permissions::from_mode(0o644)).unwrap();
    let refused = |why: &str| {
        for error in [scratch.open().err().unwrap(), scratch.check().unwrap_err()] {
            assert!(error.to_string().starts_with("cannot open "), "{error}");
            assert!(error.to_string().ends_with(why), "{error}");
        }
        scratch.home.prepare().unwrap();
        assert_eq!(scratch.home.sessions().unwrap(), []);
    };
    symlink(&outside, &path).unwrap();
    refused("it is a symbolic link");
    assert_eq!(
        (fs::read(&outside).unwrap(), mode(&outside)),
        (bytes, 0o644)
    );
    fs::remove_file(&path).unwrap();
    symlink(scratch.dir.path().join("nowhere"), &path).unwrap();
    refused("it is a symbolic link");
    assert!(!scratch.dir.path().join("nowhere").exists());
    fs::remove_file(&path).unwrap();
    mkfifo(&path);
    refused("it is not a regular file");
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    refused("it is not a regular file");
    fs::remove_dir(&path).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
    refused("it is not a regular file");
}

#[test]
fn links_are_followed_where_people_make_them_and_nowhere_else() {
    let scratch = Scratch::new();
    let (real, root) = (
        scratch.dir.path().join("real"),
        scratch.dir.path().join("mino"),
    );
    fs::rename(&root, &real).unwrap();
    symlink(&real, &root).unwrap();
    let dotfiles = scratch.dir.path().join("dotfiles");
    fs::create_dir(&dotfiles).unwrap();
    symlink("../dotfiles/config.json", real.join("config.json")).unwrap();
    symlink(dotfiles.join("SOUL.md"), real.join("SOUL.md")).unwrap();
    let home = &scratch.home;
    home.prepare().unwrap();
    // What the links name is made, replaced and tightened; the links stay.
    file::replace(&home.config_path(), b"{}").unwrap();
    file::create_private(&home.soul_path(), b"soul").unwrap();
    let error = file::create_private(&home.soul_path(), b"other").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists);
    fs::set_permissions(
        dotfiles.join("config.json"),
        fs::Permissions::from_mode(0o644),
    )
    .unwrap();
    home.prepare().unwrap();
    assert_eq!(mode(&dotfiles.join("config.json")), 0o600);
    file::replace(&home.config_path(), b"{ }").unwrap();
    assert_eq!(fs::read(dotfiles.join("config.json")).unwrap(), b"{ }");
    assert_eq!(fs::read(dotfiles.join("SOUL.md")).unwrap(), b"soul");
    assert!(real.join("config.json").is_symlink() && real.join("SOUL.md").is_symlink());
    assert_eq!(fs::read_dir(&dotfiles).unwrap().count(), 2);
    assert_eq!(
        file::read_bounded(&home.config_path(), 3, Links::Follow)
            .unwrap()
            .unwrap(),
        b"{ }"
    );
    let error = file::read_bounded(&home.config_path(), 2, Links::Follow).unwrap_err();
    assert_eq!(error.to_string(), "it is larger than 2 bytes");
    let error = file::read_bounded(&home.config_path(), 3, Links::Refuse).unwrap_err();
    assert_eq!(error.to_string(), "it is a symbolic link");
    assert_eq!(
        file::read_bounded(&root.join("none"), 3, Links::Refuse).unwrap(),
        None
    );

    let pointer = real.join("active-session.json");
    symlink(dotfiles.join("pointer"), &pointer).unwrap();
    for error in [
        home.prepare().unwrap_err(),
        home.active().unwrap_err(),
        home.set_active(&scratch.id()).unwrap_err(),
    ] {
        assert!(
            error.to_string().ends_with("it is a symbolic link"),
            "{error}"
        );
    }
    assert!(!dotfiles.join("pointer").exists());
    fs::remove_file(&pointer).unwrap();
    fs::rename(real.join("sessions"), dotfiles.join("sessions")).unwrap();
    symlink(dotfiles.join("sessions"), real.join("sessions")).unwrap();
    for error in [home.prepare().unwrap_err(), home.sessions().unwrap_err()] {
        assert!(
            error.to_string().ends_with("it is a symbolic link"),
            "{error}"
        );
    }
}

#[test]
fn what_is_no_file_is_never_read_replaced_or_waited_for() {
    let scratch = Scratch::new();
    let config = scratch.home.config_path();
    let refused = |error: std::io::Error| assert_eq!(error.to_string(), "it is not a regular file");
    mkfifo(&config);
    refused(file::read_bounded(&config, 10, Links::Follow).unwrap_err());
    refused(file::replace(&config, b"{}").unwrap_err());
    assert!(
        scratch
            .home
            .prepare()
            .unwrap_err()
            .to_string()
            .ends_with("it is not a regular file")
    );
    fs::remove_file(&config).unwrap();
    symlink("config.json", &config).unwrap();
    file::replace(&config, b"{}").unwrap_err();
    fs::remove_file(&config).unwrap();
    fs::create_dir(&config).unwrap();
    refused(file::read_bounded(&config, 10, Links::Follow).unwrap_err());
    refused(file::replace(&config, b"{}").unwrap_err());
    assert_eq!(
        fs::read_dir(scratch.dir.path().join("mino"))
            .unwrap()
            .count(),
        2
    );
    // A folder's place taken by a file.
    let other = Home::at(config.with_file_name("file"));
    fs::write(config.with_file_name("file"), b"").unwrap();
    assert!(
        other
            .prepare()
            .unwrap_err()
            .to_string()
            .starts_with("cannot prepare the folder ")
    );
    // And a folder whose parent is missing isn't made out of thin air.
    Home::at(scratch.dir.path().join("a/b"))
        .prepare()
        .unwrap_err();
    assert!(!scratch.dir.path().join("a").exists());
}

#[test]
fn a_missing_or_damaged_pointer_asks_for_a_choice() {
    let scratch = Scratch::new();
    let pointer = scratch.dir.path().join("mino/active-session.json");
    assert_eq!(scratch.home.active().unwrap(), None);
    fs::write(&pointer, b"{").unwrap();
    assert_eq!(
        scratch.home.active().unwrap(),
        None,
        "there is nothing to start over from"
    );
    fs::remove_file(&pointer).unwrap();
    // A start that ended between making the file and pointing at it has left nothing either.
    let session = Session::create(&scratch.home, Box::new(Plain)).unwrap();
    assert_eq!(scratch.home.active().unwrap(), None);
    let again = Session::open(&scratch.home, &session.id(), Box::new(Plain));
    assert!(
        matches!(again, Err(SessionError::Locked { .. })),
        "a new one is locked too"
    );
    say(&session, "q", "a");
    let asks = |why: &str| {
        let error = scratch.home.active().unwrap_err();
        assert!(matches!(error, HomeError::Pointer { .. }), "{error}");
        assert!(error.to_string().contains(why), "{error}");
        assert!(
            error.hint().unwrap().contains("--session ID")
                && error.hint().unwrap().contains("--new")
        );
    };
    asks("is missing");
    for damaged in [
        &b""[..],
        b"{",
        b"{}",
        b"[]",
        b"{\"session_id\":7}",
        b"{\"session_id\":\"../x\"}",
        b"\0\0",
        b"{\"session_id\":\"0123456789ABCDEF0123456789ABCDEF\"}",
    ] {
        fs::write(&pointer, damaged).unwrap();
        asks("is damaged");
        assert_eq!(fs::read(&pointer).unwrap(), damaged);
    }
    fs::write(&pointer, format!("{{\"session_id\":\"{}\"}}", scratch.id())).unwrap();
    asks("names a conversation that does not exist");
    scratch.home.set_active(&session.id()).unwrap();
    assert_eq!(scratch.home.active().unwrap(), Some(session.id()));
    assert_eq!(
        fs::read_to_string(&pointer).unwrap(),
        format!("{{\"session_id\":\"{}\"}}\n", session.id())
    );
}

#[test]
fn conversations_are_listed_and_found_by_prefix() {
    let scratch = Scratch::new();
    let put = |id: &str, bytes: &[u8]| {
        let path = scratch.home.journal_path(&SessionId::parse(id).unwrap());
        fs::write(&path, bytes).unwrap();
        path
    };
    let (one, two) = (
        "ab000000000000000000000000000001",
        "ab100000000000000000000000000002",
    );
    let old = put(one, &fixture("v2-tools.jsonl"));
    put(two, &[&fixture("v1-text.jsonl")[..], b"{\"torn"].concat());
    fs::write(old.with_file_name(format!("{one}-recovery-1.jsonl")), b"x").unwrap();
    fs::write(old.with_file_name("note.txt"), b"x").unwrap();
    let long_ago = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1);
    File::options()
        .append(true)
        .open(&old)
        .unwrap()
        .set_modified(long_ago)
        .unwrap();
    let listed = scratch.home.sessions().unwrap();
    let seen: Vec<_> = listed
        .iter()
        .map(|info| (info.id.to_string(), info.turns))
        .collect();
    assert_eq!(seen, [(two.to_owned(), 3), (one.to_owned(), 5)]);
    assert_eq!(listed[1].changed, long_ago);
    assert_eq!(scratch.home.find("ab0").unwrap().to_string(), one);
    assert_eq!(scratch.home.find(two).unwrap().to_string(), two);
    assert!(matches!(
        scratch.home.find("ab"),
        Err(HomeError::ManySessions { found: 2, .. })
    ));
    for none in [
        "",
        "c",
        "AB0",
        "ab0000000000000000000000000000010",
        "../ab0",
    ] {
        assert!(
            matches!(scratch.home.find(none), Err(HomeError::NoSession { .. })),
            "{none}"
        );
    }
}

// --- reading and loading -----------------------------------------------------------------------------

#[test]
fn a_reader_gets_every_record_in_order_with_its_calls() {
    let scratch = Scratch::new();
    scratch.put(&[&fixture("v2-tools.jsonl")[..], b"{\"v\":2"].concat());
    let _holder = {
        let other = Scratch::new();
        other.put(b"");
        other.opened()
    };
    let mut seen = Vec::new();
    let mut calls = Vec::new();
    let finding = session::read(&scratch.home, &scratch.id(), &Plain, &mut |entry| {
        assert!(
            entry
                .record
                .time
                .as_deref()
                .is_some_and(|time| session::record::millis(time).is_some())
        );
        seen.push((entry.record.seq, entry.record.body.kind()));
        calls.extend(entry.calls.iter().map(|call| call.arguments.clone()));
    })
    .unwrap();
    assert_eq!(
        seen[..4],
        [
            (1, "user_message"),
            (2, "model_response"),
            (3, "tool_start"),
            (4, "tool_result")
        ]
    );
    assert_eq!(
        calls[..3],
        [
            r#"{"command":"go version"}"#,
            r#"{"command":"rm -rf build"}"#,
            r#"{"command":"false"}"#
        ]
    );
    assert_eq!(
        finding.to_string(),
        "The journal's 36 records are sound.\n\
         Line 37 is torn (6 bytes): a start would copy the file and cut it."
    );
}

/// 64 MiB of completed turns: loading holds what is replayed, and little besides.
#[test]
fn loading_takes_at_most_half_again_of_what_is_replayed() {
    let scratch = Scratch::new();
    let mut bytes = Vec::new();
    let answer = "a line of text with an escape\\n".repeat(20_000);
    for turn in 1.. {
        let seq = 3 * turn - 2;
        let head = |seq: usize| {
            format!(
                "{{\"v\":2,\"seq\":{seq},\"time\":\"2026-03-01T09:00:00.000Z\",\"turn_id\":\"{turn:032x}\",\"kind\":"
            )
        };
        let line = format!(
            "{}\"user_message\",\"text\":\"q\"}}\n{}\"model_response\",\"text\":\"\",\"output\":[{{\"type\":\"message\",\"text\":\"{answer}\"}}]}}\n{}\"turn_end\",\"status\":\"completed\"}}\n",
            head(seq),
            head(seq + 1),
            head(seq + 2)
        );
        if bytes.len() + line.len() > (JOURNAL_BYTES - 2 * JOURNAL_ROOM_BYTES) as usize {
            break;
        }
        bytes.extend_from_slice(line.as_bytes());
    }
    scratch.put(&bytes);
    let said = answer_of(spawn("load", &scratch, ""));
    let (replayed, grown) = said.split_once(' ').unwrap();
    let (replayed, grown): (u64, u64) = (replayed.parse().unwrap(), grown.parse().unwrap());
    assert!(replayed > 60 << 20);
    assert!(grown * 2 <= replayed * 3, "{grown} bytes for {replayed}");
}

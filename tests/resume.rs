//! Mino is killed with SIGKILL, wherever it is, and started again: nothing is lost that was said to be
//! saved, nothing is done twice, nothing is begun by itself. The letters are those of the table in
//! `src/session/mod.rs`.

mod support;

use std::path::Path;

use rustix::process::Signal;
use serde_json::{Value, json};
use support::endpoint::{Answer, Endpoint, Reply, call, command_arguments, hold, text};
use support::home::{Home, KEY, Mino, text_of};
use support::kernel::Strace;
use support::tty::{QUESTION, Size, Tty};
use support::{all_at_once, find, mark, nothing_alive, read, until};

const SIZE: Size = Size { rows: 24, cols: 80 };
const TOOL_NOTICE: &str = "An interrupted tool turn was retained but excluded from context. Commands it started may already have run; none was retried.\n";
const PLAIN_NOTICE: &str =
    "An interrupted turn was retained but excluded from context. It was not retried.\n";
const KILLED: i32 = -9;

// --- killing at a system call ---------------------------------------------------------------------

/// The `number`th call of this name on the main thread is not made: there the process is killed.
#[derive(Clone, Debug)]
struct Kill {
    name: &'static str,
    number: usize,
    strace: Strace,
}

impl Kill {
    /// Only calls on this file count.
    fn on(mut self, path: impl AsRef<Path>) -> Kill {
        self.strace = self.strace.on(path.as_ref().to_owned());
        self
    }

    /// `mino`, to be killed there.
    fn of(&self, mino: Mino) -> Mino {
        let strace = self.strace.clone().calls(self.name);
        let strace = strace.inject(self.name, "signal=KILL", self.number);
        mino.through(&strace.words())
    }
}

/// Moves the kill over all calls of these names: `case` gets each in turn, and answers whether the
/// process was killed. A name is done when it was not. Answers how many kills there were of each.
fn sweep(
    test: &str,
    names: &[&'static str],
    case: impl Fn(Kill) -> bool + Sync,
) -> Option<Vec<usize>> {
    let strace = Strace::new(test, Path::new("/dev/null"))?;
    let kills_of = |name: &'static str| {
        let kill = |number: usize| Kill {
            name,
            number,
            strace: strace.clone(),
        };
        let survived = (1..200).find(|number| !case(kill(*number)));
        survived.expect("an end of the calls") - 1
    };
    let kills_of = &kills_of;
    Some(all_at_once(names.iter().map(|name| move || kills_of(name))))
}

// --- what is on disk --------------------------------------------------------------------------------

/// The kind of each record, with the status where there is one.
fn story(home: &Home) -> Vec<String> {
    let status = |record: &Value| match &record["kind"] {
        kind if kind == "tool_result" => format!("-{}", text_of(&record["result"]["status"])),
        kind if kind == "turn_end" => format!("-{}", text_of(&record["status"])),
        _ => String::new(),
    };
    let records = home.records();
    let told = |record: &Value| {
        let kind = text_of(&record["kind"]);
        let word = kind.rsplit('_').next().unwrap();
        format!("{word}{}", status(record))
    };
    records.iter().map(told).collect()
}

/// Starts a chat without any input, which sees to what the last one left: answers what it said. It
/// must not have changed what was there, nor asked anything.
#[track_caller]
fn restart(home: &Home, endpoint: &Endpoint) -> String {
    let (before, requests) = (read(home.journal_path()), endpoint.requests().len());
    home.mino(&["check"]).run("").expect_code(0);
    assert_eq!(read(home.journal_path()), before);
    let output = home.mino::<&str>(&[]).run("").expect_code(0);
    assert!(read(home.journal_path()).starts_with(&before));
    assert_eq!(endpoint.requests().len(), requests);
    output.stderr
}

/// A turn with two calls, killed at every write and every sync of a record. Each command adds one
/// byte to a file of its own, so that the file's length is the number of times it ran.
#[test]
fn killed_at_every_save_of_a_turn() {
    // The story of the turn, and how it goes on when it stops there.
    const WHOLE: [&str; 8] = [
        "message",
        "response",
        "start",
        "result-completed",
        "start",
        "result-failed",
        "response",
        "end-completed",
    ];
    const CLOSED: [(&str, &[&str]); 9] = [
        ("", &[]),
        (PLAIN_NOTICE, &["end-interrupted"]),
        (
            TOOL_NOTICE,
            &[
                "result-not_executed",
                "result-not_executed",
                "end-interrupted",
            ],
        ),
        (
            TOOL_NOTICE,
            &["result-unknown", "result-not_executed", "end-interrupted"],
        ),
        (TOOL_NOTICE, &["result-not_executed", "end-interrupted"]),
        (TOOL_NOTICE, &["result-unknown", "end-interrupted"]),
        (TOOL_NOTICE, &["end-interrupted"]),
        (TOOL_NOTICE, &["end-interrupted"]),
        ("", &[]),
    ];
    let case = |kill: Kill| {
        let calls = Reply::new()
            .bash("call_1", "printf x >> one")
            .bash("call_2", "printf x >> two; exit 3");
        let turn = [calls.completed(), text("Both.")];
        let endpoint = Endpoint::start([text("First.")].into_iter().chain(turn));
        let home = Home::new(&endpoint);
        home.ask("One").expect_code(0);
        let before = story(&home);

        let kill = kill.on(home.journal_path());
        let mut tty = kill.of(home.mino(&["ask", "Two"])).on_tty(SIZE);
        // The starts are the third and the fifth record.
        for _ in [3, 5].iter().filter(|start| kill.number >= **start) {
            tty.answer("y");
        }
        let code = tty.wait_exit();
        let killed = code == KILLED;
        assert!(killed || code == 0, "{code}\n{}", tty.plain());

        // A record whose write was to be made isn't there; one that was to be synced is.
        let written = match kill.name {
            _ if !killed => WHOLE.len(),
            "write" => kill.number - 1,
            _ => kill.number,
        };
        let (notice, closing) = CLOSED[written];
        let story_then = [before, WHOLE[..written].iter().map(|&s| s.into()).collect()].concat();
        assert_eq!(story(&home), story_then, "{kill:?}");
        // A command runs after its start was synced, and before its result is written.
        let started = |start: usize| usize::from(!killed || kill.number > start);
        let runs = || {
            [
                read(home.in_work("one")).len(),
                read(home.in_work("two")).len(),
            ]
        };
        assert_eq!(runs(), [started(3), started(5)], "{kill:?}");

        assert_eq!(restart(&home, &endpoint), notice, "{kill:?}");
        let closed = [story_then, closing.iter().map(|&s| s.into()).collect()].concat();
        assert_eq!(story(&home), closed, "{kill:?}");
        assert_eq!(restart(&home, &endpoint), "", "it is said once");
        assert_eq!(story(&home), closed, "{kill:?}");

        let later = Endpoint::start([text("Third.")]);
        home.configure("base_url", later.base_url());
        home.ask("Three").expect_code(0);
        let input = later.wait_for_request(1).input_values();
        let questions: Vec<&Value> = input
            .iter()
            .filter(|item| item["role"] == "user")
            .map(|item| &item["content"][0]["text"])
            .collect();
        match killed && written < WHOLE.len() {
            true => assert_eq!(questions, ["One", "Three"], "{kill:?}"),
            false => assert_eq!(questions, ["One", "Two", "Three"], "{kill:?}"),
        }
        assert_eq!(runs(), [started(3), started(5)], "{kill:?}");
        killed
    };
    let test = "killed_at_every_save_of_a_turn";
    if let Some(kills) = sweep(test, &["write", "fsync"], case) {
        assert_eq!(kills, [WHOLE.len(), WHOLE.len()]);
    }
}

/// The closing of a turn is killed at every write and sync, too; the next start finishes it.
#[test]
fn killed_while_an_open_turn_is_closed() {
    let case = |kill: Kill| {
        let (home, endpoint) = killed_while_a_command_runs();
        let before = story(&home);
        let kill = kill.on(home.journal_path());
        let code = kill.of(home.mino::<&str>(&[])).run("").code;
        assert!(code == 0 || code == KILLED, "{code}");
        restart(&home, &endpoint);
        let closing = ["result-unknown", "result-not_executed", "end-interrupted"];
        let closing = closing.map(str::to_owned).into();
        assert_eq!(story(&home), [before, closing].concat(), "{kill:?}");
        assert_eq!(restart(&home, &endpoint), "");
        assert_eq!(read(home.in_work("ran")), b"x");
        code == KILLED
    };
    let test = "killed_while_an_open_turn_is_closed";
    if let Some(kills) = sweep(test, &["write", "fsync"], case) {
        assert_eq!(kills, [3, 3]);
    }
}

/// A turn with two calls, of which the first was running (it has done its work) when Mino was killed.
fn killed_while_a_command_runs() -> (Home, Endpoint) {
    let calls = Reply::new()
        .bash("call_1", "printf x >> ran; sleep 300")
        .bash("call_2", "printf x >> ran");
    let endpoint = Endpoint::start([calls.completed()]);
    let home = Home::new(&endpoint);
    let mut tty = home.mino(&["ask", "Go"]).on_tty(SIZE);
    tty.answer("y");
    until("the command's work", || read(home.in_work("ran")) == b"x");
    tty.signal(Signal::KILL);
    assert_eq!(tty.wait_exit(), KILLED);
    (home, endpoint)
}

/// A torn tail is set aside and cut off; that is killed at every call that changes something. Whole
/// records stay, and a copy of what was there.
#[test]
fn killed_while_a_torn_tail_is_cut() {
    let case = |kill: Kill| {
        let endpoint = Endpoint::start([text("First.")]);
        let home = Home::new(&endpoint);
        home.ask("One").expect_code(0);
        let (path, sound) = (home.journal_path(), read(home.journal_path()));
        let torn = [&sound[..], br#"{"v":2,"seq":4,"time":"2026"#].concat();
        std::fs::write(&path, &torn).unwrap();

        let code = kill.of(home.mino::<&str>(&[])).run("").code;
        assert!(code == 0 || code == KILLED, "{code}");
        let now = read(&path);
        assert!(now == torn || now == sound, "{kill:?}");
        home.mino::<&str>(&[]).run("").expect_code(0);
        assert_eq!(read(&path), sound, "{kill:?}");
        let copies = home
            .session_files()
            .into_iter()
            .filter(|name| name.contains("-recovery-"));
        let whole = copies
            .filter(|name| read(path.with_file_name(name)) == torn)
            .count();
        assert!(whole > 0, "{kill:?}");
        code == KILLED
    };
    let test = "killed_while_a_torn_tail_is_cut";
    let names = ["copy_file_range", "sendfile", "write", "fsync", "ftruncate"];
    if let Some(kills) = sweep(test, &names, case) {
        // The copy and its folder, then the journal.
        assert_eq!(kills[3..], [3, 1], "{kills:?}");
    }
}

// --- killing while a file is replaced ---------------------------------------------------------------

/// What `config.json` holds; `None` where there is none. Half a file fails.
fn config(home: &Home) -> Option<Value> {
    let bytes = read(home.config_path());
    (!bytes.is_empty()).then(|| serde_json::from_slice(&bytes).expect("a whole configuration"))
}

/// The very first start, with the questions of its setup, killed at every call that changes something:
/// the next one either asks again or finds everything.
#[test]
fn killed_at_every_step_of_the_first_start() {
    let endpoint = Endpoint::start([]);
    let whole = json!({"base_url": endpoint.base_url(), "model": "m", "api_key": KEY});
    let case = |kill: Kill| {
        let home = Home::empty();
        let mino = || home.mino::<&str>(&[]).env("TERM", "dumb");
        // All is typed at once; each question takes its line.
        let answers = format!("{}\rm\r{KEY}\r/exit\r", endpoint.base_url());
        let mut tty = kill.of(mino()).on_tty(SIZE);
        tty.send(&answers);
        let code = tty.wait_exit();
        assert!(code == 0 || code == KILLED, "{code}\n{}", tty.plain());

        let then = config(&home);
        assert!(then.as_ref().is_none_or(|then| *then == whole), "{kill:?}");
        let soul = read(home.mino_home.join("SOUL.md"));
        let mut tty = mino().on_tty(SIZE);
        tty.send(if then.is_none() { &answers } else { "/exit\r" });
        assert_eq!(tty.wait_exit(), 0, "{kill:?}\n{}", tty.plain());
        assert_eq!(config(&home).as_ref(), Some(&whole));
        assert!(home.journal_path_of(&home.pointer()).exists());
        let soul_now = read(home.mino_home.join("SOUL.md"));
        assert!(soul.is_empty() || soul == soul_now, "{kill:?}");
        code == KILLED
    };
    let test = "killed_at_every_step_of_the_first_start";
    if let Some(kills) = sweep(test, &["mkdir", "write", "fsync", "rename"], case) {
        // Two folders; settings, instructions and the pointer.
        assert_eq!((kills[0], kills[3]), (2, 3), "{kills:?}");
    }
}

/// A setting is added and another conversation becomes the current one: old or new, never neither.
#[test]
fn killed_while_settings_and_the_pointer_are_replaced() {
    let endpoint = Endpoint::scripted(|_| Some(text("First.")));
    let old = json!({"base_url": endpoint.base_url(), "api_key": KEY});
    let new = json!({"base_url": endpoint.base_url(), "api_key": KEY, "model": "m"});
    let case = |kill: Kill| {
        let home = Home::empty();
        home.write_config(&new);
        home.ask("One").expect_code(0);
        home.write_config(&old);
        let (first, journal) = (home.pointer(), read(home.journal_path()));

        let mino = home.mino(&["--new"]).env("TERM", "dumb");
        let mut tty = kill.of(mino).on_tty(SIZE);
        tty.send("m\r/exit\r");
        let code = tty.wait_exit();
        assert!(code == 0 || code == KILLED, "{code}\n{}", tty.plain());

        let then = config(&home).expect("settings");
        assert!(then == old || then == new, "{kill:?}: {then}");
        let current = home.pointer();
        assert!(home.journal_path_of(&current).exists(), "{kill:?}");
        assert_eq!(read(home.journal_path_of(&first)), journal);
        // What was made for the new one and is nobody's yet is in nobody's way.
        home.mino(&["ask", "--model", "m", "Two"])
            .run("")
            .expect_code(0);
        assert_eq!(home.pointer(), current);
        code == KILLED
    };
    let test = "killed_while_settings_and_the_pointer_are_replaced";
    if let Some(kills) = sweep(test, &["write", "fsync", "rename"], case) {
        assert_eq!(kills[2], 2, "{kills:?}");
    }
}

// --- killing in a state -----------------------------------------------------------------------------

/// What a chat on a terminal shows before its banner.
#[track_caller]
fn shown_before_the_banner(home: &Home) -> String {
    let mut tty = home.chat();
    tty.send("\x04");
    tty.wait_for("Goodbye.");
    assert_eq!(tty.wait_exit(), 0);
    let shown = tty.plain().replace("\r\n", "\n");
    let (before, _) = shown.split_once("Mino ").expect("a banner");
    before.to_owned()
}

/// Where Mino is killed, and what the next start makes of it.
struct State {
    answers: Vec<Answer>,
    /// Waits until it is there.
    come: fn(&Home, &Tty, &Endpoint),
    notice: &'static str,
    /// The records of the turn, those of its closing behind a bar.
    story: &'static str,
    runs: usize,
}

/// Killed where a person kills: nothing is asked or run by the next start, the turn isn't sent again,
/// and the first question is answered as if nothing had been. What the killed Mino had started is
/// gone with it.
#[test]
fn killed_in_a_state_and_started_again() {
    let mark = mark();
    let run = |call_id: &str| call(call_id, "printf x >> ran");
    let (pause, _release) = hold();
    let states = [
        // E
        State {
            answers: vec![Reply::new().delta("Well, ").piece(pause).cut()],
            come: |_, tty, _| tty.wait_for("Well, "),
            notice: PLAIN_NOTICE,
            story: "message | end-interrupted",
            runs: 0,
        },
        // F
        State {
            answers: vec![run("call_1")],
            come: |_, tty, _| tty.wait_for(QUESTION),
            notice: TOOL_NOTICE,
            story: "message response | result-not_executed end-interrupted",
            runs: 0,
        },
        // F, behind a call that is done
        State {
            answers: vec![
                Reply::new()
                    .bash("call_1", "printf x >> ran")
                    .bash("call_2", "printf x >> ran")
                    .completed(),
            ],
            come: |_, tty, _| {
                tty.answer("y");
                tty.wait_for(QUESTION);
            },
            notice: TOOL_NOTICE,
            story: "message response start result-completed | result-not_executed end-interrupted",
            runs: 1,
        },
        // G
        State {
            answers: vec![call(
                "call_1",
                &format!("printf x >> ran; sleep 300 & bash -c \"sleep 300; : {mark}\"; : {mark}"),
            )],
            come: |home, tty, _| {
                tty.answer("y");
                until("the command's work", || read(home.in_work("ran")) == b"x");
            },
            notice: TOOL_NOTICE,
            story: "message response start | result-unknown end-interrupted",
            runs: 1,
        },
        // H
        State {
            answers: vec![run("call_1"), Answer::silence()],
            come: |_, tty, endpoint| {
                tty.answer("y");
                endpoint.wait_for_request(2);
            },
            notice: TOOL_NOTICE,
            story: "message response start result-completed | end-interrupted",
            runs: 1,
        },
    ];
    all_at_once(states.map(|state| move || kill_in(state)));
    until("the end of what was started", || nothing_alive(&mark));
}

fn kill_in(state: State) {
    let endpoint = Endpoint::start(state.answers);
    let home = Home::new(&endpoint);
    let mut tty = home.chat();
    tty.send_line("Go");
    (state.come)(&home, &tty, &endpoint);
    tty.signal(Signal::KILL);
    assert_eq!(tty.wait_exit(), KILLED);

    let (then, closing) = state.story.split_once(" | ").unwrap();
    assert_eq!(story(&home).join(" "), then);
    let requests = endpoint.requests().len();
    assert_eq!(shown_before_the_banner(&home), state.notice);
    assert_eq!(endpoint.requests().len(), requests);
    assert_eq!(story(&home).join(" "), format!("{then} {closing}"));

    let later = Endpoint::start([text("Hello.")]);
    home.configure("base_url", later.base_url());
    let output = home.ask("Hello?").expect_code(0);
    assert_eq!((&*output.stdout, &*output.stderr), ("Hello.\n", ""));
    assert_eq!(later.wait_for_request(1).input().len(), 1);
    assert_eq!(read(home.in_work("ran")).len(), state.runs);
}

// --- a command that may have run already --------------------------------------------------------------

/// The line before the approval question, if it is one of the repeat guard.
fn repeat_line(tty: &Tty) -> Option<String> {
    let rows = tty.all_rows().concat();
    let (_, behind) = rows.rsplit_once("this is not a sandbox.").unwrap();
    let (between, _) = behind.split_once(QUESTION.trim_end()).unwrap();
    (!between.is_empty()).then(|| between.to_owned())
}

/// A command that was started in a turn which the model does not know of is offered again with a
/// warning, until it has run to a known result in a turn that was completed; then no more. The model
/// is told nothing.
#[test]
fn repeated_command_is_pointed_out_until_its_result_is_known() {
    let run = || call("call_1", "printf x >> ran");
    let other = || call("call_1", "printf x >>  ran");
    let failing = Reply::new().failed("server_error", "It broke");
    // Which command, the answer, what the model says then, whether the warning must be there.
    let turns = [
        (other(), "y", text("Good."), None),
        (run(), "n", text("A pity."), Some("interrupted")),
        (run(), "y", failing, Some("interrupted")),
        (run(), "y", text("Good."), Some("failed")),
        (run(), "y", text("Good."), None),
    ];
    let endpoint = Endpoint::start([run()]);
    let home = Home::new(&endpoint);
    let mut tty = home.mino(&["ask", "Go"]).on_tty(SIZE);
    let (pause, _release) = hold();
    endpoint.push(Reply::new().piece(pause).cut());
    tty.answer("y");
    endpoint.wait_for_request(2);
    tty.signal(Signal::KILL);
    assert_eq!(tty.wait_exit(), KILLED);

    for (number, (command, answer, end, warning)) in turns.into_iter().enumerate() {
        let code = i32::from(warning == Some("interrupted") && answer == "y");
        let starts = home.records_of("tool_start");
        let of_command =
            |start: &&Value| start["arguments"] == command_arguments("printf x >> ran");
        let time = starts
            .iter()
            .rfind(of_command)
            .map(|start| text_of(&start["time"]));
        let endpoint = Endpoint::start([command, end]);
        home.configure("base_url", endpoint.base_url());
        let mut tty = home.mino(&["ask", "Go"]).on_tty(SIZE);
        tty.wait_for(QUESTION);
        let expected = warning.map(|ended| {
            format!(
                "Notice: this command was started at {} in a turn that ended {ended}; the model does not know of it, and it may already have run.",
                time.unwrap()
            )
        });
        assert_eq!(repeat_line(&tty), expected, "turn {number}");
        tty.send_line(answer);
        assert_eq!(tty.wait_exit(), code, "{}", tty.plain());
        for request in endpoint.requests() {
            assert_eq!(find(&request.body, b"may already have run"), None);
        }
    }
    assert_eq!(read(home.in_work("ran")), b"xxxxx");
}

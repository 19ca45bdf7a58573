//! Disks that are full, fail or refuse, a second Mino, and files that are not what they should be: all
//! given by the kernel. Nothing runs whose start isn't on disk, nothing is sent whose question isn't,
//! and what is said is no more than what is known.

mod support;

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::json;
use support::endpoint::{Answer, Endpoint, Reply, call, text};
use support::home::{Home, KEY, Output, Running, mode};
use support::kernel::{Strace, has, in_own_mounts, mount};
use support::tty::{Size, Tty};
use support::{all_at_once, mark, nothing_alive, read, until};

const SIZE: Size = Size { rows: 24, cols: 80 };

// --- a save that fails --------------------------------------------------------------------------------

/// The records of [`two_calls`], what their loss is called, and what is known then.
const SAVES: [(&str, &str, &str); 8] = [
    ("user_message", "question", "The question was not sent."),
    (
        "model_response",
        "response",
        "None of its commands was started.",
    ),
    (
        "tool_start",
        "start of the command",
        "The command was not started; a saved start does not prove that it ran.",
    ),
    (
        "tool_result",
        "result",
        "The command was started; a lost result does not prove that it failed.",
    ),
    (
        "tool_start",
        "start of the command",
        "The command was not started; a saved start does not prove that it ran.",
    ),
    (
        "tool_result",
        "result",
        "The command was started; a lost result does not prove that it failed.",
    ),
    (
        "model_response",
        "response",
        "None of its commands was started.",
    ),
    (
        "turn_end",
        "end of the turn",
        "The next start may find the turn interrupted.",
    ),
];

/// What a model answers to a first question, then to a second one.
fn two_calls() -> Vec<Answer> {
    let calls = Reply::new()
        .bash("call_1", "printf x >> one")
        .bash("call_2", "printf x >> two");
    vec![text("First."), calls.completed(), text("Both.")]
}

/// A conversation of one turn, whose question has `length` bytes.
fn conversation(endpoint: &Endpoint, home: &Home, length: usize) {
    let question = "x".repeat(length);
    home.mino(&["ask", "-"]).run(&question).expect_code(0);
    assert_eq!(endpoint.requests().len(), 1);
}

/// The lengths of the eight lines, and of those before. They are the same every time.
fn line_lengths() -> (usize, Vec<usize>) {
    let endpoint = Endpoint::start(two_calls());
    let home = Home::new(&endpoint);
    conversation(&endpoint, &home, 1);
    let before = read(home.journal_path()).len();
    let mut tty = home.chat();
    second_turn(&mut tty, 8);
    tty.wait_for("Both.");
    tty.wait_for("You> ");
    tty.send_line("/exit");
    assert_eq!(tty.wait_exit(), 0);
    let lengths = home
        .lines()
        .iter()
        .map(|line| line.len() + 1)
        .collect::<Vec<_>>();
    (before, lengths[3..].to_vec())
}

/// Asks the second question and approves, up to where the `failing`th save of the turn (from 1) fails.
fn second_turn(tty: &mut Tty, failing: usize) {
    tty.send_line("Two");
    for _ in [3, 5].iter().filter(|start| failing >= **start) {
        tty.answer("y");
    }
}

/// The `number`th save of the second turn (from 1) has failed with `cause`: everything before is done,
/// nothing behind, and what is said is right.
#[track_caller]
fn assert_stopped_at(number: usize, cause: &str, home: &Home, endpoint: &Endpoint, tty: &mut Tty) {
    let shown = |tty: &Tty| tty.plain().replace("\r\n", "\n");
    assert_eq!(tty.wait_exit(), 1, "save {number}\n{}", shown(tty));
    let (_, name, known) = SAVES[number - 1];
    let path = home.journal_path();
    let said = format!(
        "\nmino: cannot save the {name} in \"{}\": {cause}\nhint: {known}\n",
        path.display()
    );
    assert!(
        shown(tty).ends_with(&said),
        "save {number}: {}\n{said}",
        shown(tty)
    );
    // The first request was that of the first turn.
    let requests = 1 + usize::from(number > 1) + usize::from(number > 6);
    assert_eq!(endpoint.requests().len(), requests, "save {number}");
    let runs = [
        read(home.in_work("one")).len(),
        read(home.in_work("two")).len(),
    ];
    assert_eq!(
        runs,
        [usize::from(number > 3), usize::from(number > 5)],
        "save {number}"
    );
}

/// Once the fault is over, the conversation is closed, sound, and goes on.
#[track_caller]
fn assert_goes_on(number: usize, home: &Home) {
    let runs = [
        read(home.in_work("one")).len(),
        read(home.in_work("two")).len(),
    ];
    let endpoint = Endpoint::start([text("Third.")]);
    home.configure("base_url", endpoint.base_url());
    let output = home.ask("Three").expect_code(0);
    assert_eq!(output.stdout, "Third.\n", "save {number}");
    let checked = home.mino(&["check"]).run("").expect_code(0);
    assert!(
        checked.stdout.contains(" records are sound.\n"),
        "{checked}"
    );
    assert!(!checked.stdout.contains("a start would"), "{checked}");
    let runs_now = [
        read(home.in_work("one")).len(),
        read(home.in_work("two")).len(),
    ];
    assert_eq!(runs, runs_now, "save {number}");
}

/// Has the `number`th call of `name` on the journal fail in a second turn, and looks at what follows.
fn fail(strace: &Strace, name: &str, error: &str, number: usize) -> (Home, Endpoint, Tty) {
    let endpoint = Endpoint::start(two_calls());
    let home = Home::new(&endpoint);
    conversation(&endpoint, &home, 1);
    let strace = strace.clone().on(home.journal_path()).calls("write,fsync");
    let strace = strace.inject(name, &format!("error={error}"), number);
    let mut tty = home.mino::<&str>(&[]).through(&strace.words()).on_tty(SIZE);
    tty.wait_for("You> ");
    second_turn(&mut tty, number);
    (home, endpoint, tty)
}

/// A sync that fails says nothing about what is on disk, now or later: the record is there to be read
/// and may be gone after a crash. So nothing may follow, and the sync isn't tried again.
#[test]
fn failed_sync_stops_everything_that_would_have_followed() {
    let name = "failed_sync_stops_everything_that_would_have_followed";
    let one = |number: usize| {
        let log = tempfile::NamedTempFile::new().unwrap();
        let strace = Strace::new(name, log.path())?;
        let (home, endpoint, mut tty) = fail(&strace, "fsync", "EIO", number);
        let cause = "Input/output error (os error 5)";
        assert_stopped_at(number, cause, &home, &endpoint, &mut tty);
        let kinds = SAVES[..number].iter().map(|save| save.0);
        assert!(home.kinds()[3..].iter().eq(kinds), "{:?}", home.kinds());
        let log = fs::read_to_string(log.path()).unwrap();
        let calls = |name: &str| log.lines().filter(|line| line.starts_with(name)).count();
        assert_eq!(
            (calls("write("), calls("fsync(")),
            (number, number),
            "{log}"
        );
        assert_goes_on(number, &home);
        Some(())
    };
    let one = &one;
    all_at_once((1..=SAVES.len()).map(|number| move || one(number)));
}

#[test]
fn failed_write_stops_everything_that_would_have_followed() {
    let name = "failed_write_stops_everything_that_would_have_followed";
    let one = |number: usize| {
        let strace = Strace::new(name, Path::new("/dev/null"))?;
        let (home, endpoint, mut tty) = fail(&strace, "write", "ENOSPC", number);
        let cause = "No space left on device (os error 28)";
        assert_stopped_at(number, cause, &home, &endpoint, &mut tty);
        let kinds = SAVES[..number - 1].iter().map(|save| save.0);
        assert!(home.kinds()[3..].iter().eq(kinds), "{:?}", home.kinds());
        assert_goes_on(number, &home);
        Some(())
    };
    let one = &one;
    all_at_once((1..=SAVES.len()).map(|number| move || one(number)));
}

/// A file-size limit cuts the write short, in the middle of a record.
#[test]
fn write_cut_short_leaves_a_tail_that_the_next_start_cuts_off() {
    if !has(
        "prlimit",
        "write_cut_short_leaves_a_tail_that_the_next_start_cuts_off",
    ) {
        return;
    }
    let (before, lengths) = line_lengths();
    let (before, lengths) = (before, &lengths);
    let one = |number: usize| {
        let endpoint = Endpoint::start(two_calls());
        let home = Home::new(&endpoint);
        conversation(&endpoint, &home, 1);
        let whole = before + lengths[..number - 1].iter().sum::<usize>();
        let limit = whole + lengths[number - 1] / 2;
        let words = ["prlimit", &format!("--fsize={limit}:{limit}")];
        let mut tty = home.mino::<&str>(&[]).through(&words).on_tty(SIZE);
        tty.wait_for("You> ");
        second_turn(&mut tty, number);
        let cause = "File too large (os error 27)";
        assert_stopped_at(number, cause, &home, &endpoint, &mut tty);

        let torn = read(home.journal_path());
        assert_eq!(torn.len(), limit);
        let output = home.mino::<&str>(&[]).run("").expect_code(0);
        let bytes = limit - whole;
        let notice = format!("The last record was torn: {bytes} bytes were cut;");
        assert!(output.stderr.starts_with(&notice), "{output}");
        assert!(read(home.journal_path()).starts_with(&torn[..whole]));
        let copy = format!("{}-recovery-1.jsonl", home.pointer());
        assert_eq!(read(home.mino_home.join("sessions").join(copy)), torn);
        assert_goes_on(number, &home);
    };
    let one = &one;
    all_at_once((1..=SAVES.len()).map(|number| move || one(number)));
}

/// A real file system without room: what is free of the journal's last page takes half a record. With
/// the disk still full the conversation can be read; with room again it goes on.
#[test]
fn full_disk_stops_everything_that_would_have_followed() {
    if !in_own_mounts("full_disk_stops_everything_that_would_have_followed") {
        return;
    }
    const PAGE: usize = 4096;
    let (before, lengths) = line_lengths();
    let (before, lengths) = (before, &lengths);
    let one = |number: usize| {
        let endpoint = Endpoint::start(two_calls());
        let home = Home::empty();
        fs::create_dir(&home.mino_home).unwrap();
        let tmpfs = ["-t", "tmpfs", "-o", "size=256k,mode=700", "none"];
        let _tmpfs = mount(&tmpfs, &home.mino_home);
        home.write_config(&json!({
            "base_url": endpoint.base_url(), "model": "test-model", "api_key": KEY,
        }));
        // So long a first question that half of the record comes to lie behind the end of a page.
        let half =
            before - 1 + lengths[..number - 1].iter().sum::<usize>() + lengths[number - 1] / 2;
        conversation(&endpoint, &home, PAGE - half % PAGE);
        let mut tty = home.chat();
        let filler = home.mino_home.join("filler");
        let mut file = File::create(&filler).unwrap();
        while file.write(&[0; PAGE]).is_ok_and(|written| written > 0) {}
        drop(file);
        second_turn(&mut tty, number);
        let cause = "No space left on device (os error 28)";
        assert_stopped_at(number, cause, &home, &endpoint, &mut tty);

        let torn = read(home.journal_path());
        assert_eq!(torn.len() % PAGE, 0);
        // No room for the copy either: then the tail isn't cut.
        let output = home.mino::<&str>(&[]).run("").expect_code(1);
        assert!(
            output.stderr.contains("cannot cut the torn end of"),
            "{output}"
        );
        let checked = home.mino(&["check"]).run("").expect_code(0);
        assert!(checked.stdout.contains(" is torn ("), "{checked}");
        home.mino(&["log"]).run("").expect_code(0);
        assert_eq!(read(home.journal_path()), torn);

        fs::remove_file(filler).unwrap();
        assert_goes_on(number, &home);
    };
    let one = &one;
    all_at_once((1..=SAVES.len()).map(|number| move || one(number)));
}

/// The result of a running command can't be saved, and Ctrl+C comes as well. Whoever pressed it must
/// still learn what is not known.
#[test]
fn failed_save_is_said_even_when_a_signal_came() {
    let name = "failed_save_is_said_even_when_a_signal_came";
    let Some(strace) = Strace::new(name, Path::new("/dev/null")) else {
        return;
    };
    let endpoint = Endpoint::start([text("First."), call("call_1", "touch begun; sleep 300")]);
    let home = Home::new(&endpoint);
    conversation(&endpoint, &home, 1);
    let strace = strace.on(home.journal_path()).calls("fsync");
    let strace = strace.inject("fsync", "error=EIO", 4);
    let mut tty = home.mino::<&str>(&[]).through(&strace.words()).on_tty(SIZE);
    tty.wait_for("You> ");
    tty.send_line("Two");
    tty.answer("y");
    until("the command's begin", || home.in_work("begun").exists());
    tty.send("\x03");
    assert_eq!(tty.wait_exit(), 130);
    assert!(
        tty.plain().contains("cannot save the result in "),
        "{}",
        tty.plain()
    );
    assert!(tty.plain().contains(SAVES[3].2), "{}", tty.plain());
}

/// A start whose every sync fails in turn: refused before anything is asked, and fine afterwards.
#[test]
fn start_whose_sync_fails_is_refused_before_any_request() {
    let name = "start_whose_sync_fails_is_refused_before_any_request";
    let Some(strace) = Strace::new(name, Path::new("/dev/null")) else {
        return;
    };
    for number in 1..20 {
        let endpoint = Endpoint::start([text("Hello.")]);
        let home = Home::new(&endpoint);
        let strace = strace.clone().calls("fsync");
        let strace = strace.inject("fsync", "error=EIO", number);
        let output = home.mino(&["ask", "Go"]).through(&strace.words()).run("");
        let question = output.stderr.contains("cannot save the question");
        if output.code == 1 && !question {
            assert!(output.stderr.contains("Input/output error"), "{output}");
            assert_eq!(output.stderr.lines().count(), 1, "{output}");
            assert!(endpoint.requests().is_empty());
            home.ask("Go").expect_code(0);
            continue;
        }
        // The folders, the instructions, the journal and the pointer.
        assert!(question && number > 6, "save {number}: {output}");
        return;
    }
    panic!("no end of the syncs of a start");
}

// --- the order of things, as the kernel sees it -------------------------------------------------------

/// What the system calls of a turn come to: `W` a record written, `S` a record synced, `N` something
/// sent to the network (however many calls that takes), `X` a program executed. A write or sync
/// counts when it has returned, the others when they are called.
fn order_of(log: &str, journal: &Path) -> (String, Vec<usize>) {
    let journal = format!("<{}>", journal.display());
    let (mut order, mut written) = (String::new(), Vec::new());
    let mut pending = std::collections::HashMap::new();
    for line in log.lines() {
        let (pid, call) = line.split_once(' ').expect("a process id");
        let call = call.trim_start();
        let (name, rest) = call.split_once('(').unwrap_or((call, ""));
        let is_begun = rest.ends_with("<unfinished ...>");
        let is_sent = rest.contains("TCP") || rest.contains("AF_INET");
        let letter = match name {
            // The end of a call that was begun on an earlier line.
            _ if name.starts_with("<...") => match pending.remove(pid) {
                Some(letter) => letter,
                None => continue,
            },
            "write" if rest.contains(&journal) => 'W',
            "fsync" if rest.contains(&journal) => 'S',
            "connect" | "sendto" | "sendmsg" if is_sent => 'N',
            "execve" => 'X',
            name if name.contains("sync") => panic!("{line}"),
            name if name.contains("write") && rest.contains(&journal) => panic!("{line}"),
            _ => continue,
        };
        if is_begun && "WS".contains(letter) {
            pending.insert(pid.to_owned(), letter);
            continue;
        }
        if letter == 'W' {
            let (_, result) = line.rsplit_once(" = ").expect("a result");
            written.push(result.parse().expect("a number of bytes"));
        }
        if !(letter == 'N' && order.ends_with('N')) {
            order.push(letter);
        }
    }
    (order, written)
}

/// Every record is one write and one sync, both done before what it announces is sent or executed;
/// nothing else is synced in a turn.
#[test]
fn every_record_is_durable_before_what_it_announces() {
    let name = "every_record_is_durable_before_what_it_announces";
    let log = tempfile::NamedTempFile::new().unwrap();
    let Some(strace) = Strace::new(name, log.path()) else {
        return;
    };
    let endpoint = Endpoint::start([text("First."), call("call_1", "echo 7"), text("Seven.")]);
    let home = Home::new(&endpoint);
    conversation(&endpoint, &home, 1);
    let calls = "write,writev,pwrite64,pwritev,fsync,fdatasync,sync,syncfs,sync_file_range,msync,connect,sendto,sendmsg,execve";
    let strace = strace.calls(calls).option("-f").option("-yy");
    let mut tty = home
        .mino(&["ask", "Two"])
        .through(&strace.words())
        .on_tty(SIZE);
    tty.answer("y");
    tty.wait_for("Seven.");
    assert_eq!(tty.wait_exit(), 0);

    let text = fs::read_to_string(log.path()).unwrap();
    let (order, written) = order_of(&text, &home.journal_path());
    // The first is that of Mino itself. Question, response, start, result, response, end.
    assert_eq!(order, "XWSNWSWSXWSNWSWS", "{text}");
    let lines = home.lines();
    let lengths = lines[3..].iter().map(|line| line.len() + 1);
    assert!(lengths.eq(written), "{text}");
}

// --- two at once ---------------------------------------------------------------------------------------

#[track_caller]
fn assert_refused(output: &Output, id: &str) {
    let said = format!(
        "mino: conversation {id} is in use by another Mino\nhint: Leave it there first, or start another conversation with --new.\n"
    );
    assert_eq!((output.code, &*output.stderr), (1, &*said));
}

/// Of two that start at the same moment one gets the conversation and the other is told which one it
/// can't have.
#[test]
fn of_two_starts_one_wins() {
    let endpoint = Endpoint::start([text("First.")]);
    let home = Home::new(&endpoint);
    conversation(&endpoint, &home, 1);
    let before = read(home.journal_path());
    for _ in 0..50 {
        let pair = [(), ()].map(|()| home.mino::<&str>(&[]).start());
        let is_refused = |running: &Running| !running.stderr.bytes().is_empty();
        until("a refusal", || pair.iter().any(is_refused));
        let (mut refused, mut others) = (Vec::new(), Vec::new());
        for running in pair {
            match is_refused(&running) {
                true => refused.push(running),
                false => others.push(running),
            }
        }
        assert_eq!((refused.len(), others.len()), (1, 1));
        assert_refused(&refused.remove(0).wait(), &home.pointer());
        let mut winner = others.remove(0);
        winner.wait_for_stdout("You> ");
        winner.close_stdin();
        winner.wait().expect_code(0);
        assert_eq!(read(home.journal_path()), before);
    }
}

/// A conversation in the middle of a turn is refused to others, and can be read by them. When its
/// Mino is killed it is free at once, whoever the command has left alive.
#[test]
fn killed_holder_leaves_no_lock() {
    let mark = mark();
    let command =
        format!("setsid bash -c 'touch begun; sleep 300; : {mark}' & sleep 300; : {mark}");
    let endpoint = Endpoint::start([call("call_1", &command)]);
    let home = Home::new(&endpoint);
    let mut tty = home.mino(&["ask", "Go"]).on_tty(SIZE);
    tty.answer("y");
    until("the command's begin", || home.in_work("begun").exists());
    let before = read(home.journal_path());
    for words in [&["ask", "Other"][..], &["--session", &home.pointer()]] {
        assert_refused(&home.mino(words).run(""), &home.pointer());
    }
    for words in [["log"], ["check"], ["sessions"]] {
        home.mino(&words).run("").expect_code(0);
    }
    assert_eq!(read(home.journal_path()), before);
    tty.signal(Signal::KILL);
    assert_eq!(tty.wait_exit(), -9);
    let endpoint = Endpoint::start([text("Hello.")]);
    home.configure("base_url", endpoint.base_url());
    home.ask("Hello?").expect_code(0);
    kill_all(&mark);
}

/// Ends what a command has left behind.
fn kill_all(mark: &str) {
    until("the end of what was left", || {
        for line in support::alive(mark) {
            let (path, _) = line.split_once(": ").unwrap();
            let pid: i32 = path.rsplit('/').next().unwrap().parse().unwrap();
            let pid = rustix::process::Pid::from_raw(pid).unwrap();
            // It may have ended by itself.
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
        nothing_alive(mark)
    });
}

/// What a command leaves running may live for days; the conversation is not its.
#[test]
fn process_that_a_command_left_does_not_hold_the_lock() {
    let mark = mark();
    let command = format!(
        "setsid bash -c 'touch begun; sleep 300; : {mark}' > /dev/null 2>&1 & until [ -e begun ]; do sleep 0.01; done"
    );
    let endpoint = Endpoint::start([call("call_1", &command), text("It runs."), text("Hello.")]);
    let home = Home::new(&endpoint);
    let mut tty = home.mino(&["ask", "Go"]).on_tty(SIZE);
    tty.answer("y");
    tty.wait_for("Still running outside the process group: ");
    tty.wait_for("It runs.");
    assert_eq!(tty.wait_exit(), 0);
    assert!(!nothing_alive(&mark));
    home.ask("Hello?").expect_code(0);
    assert!(!nothing_alive(&mark));
    kill_all(&mark);
}

// --- files ----------------------------------------------------------------------------------------------

/// Everything below `folder`, and itself.
fn everything(folder: &Path) -> Vec<PathBuf> {
    let mut found = vec![folder.to_owned()];
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(everything(&path)),
            false => found.push(path),
        }
    }
    found
}

#[track_caller]
fn assert_private(home: &Home) {
    for path in everything(&home.mino_home) {
        let expected = if path.is_dir() { 0o700 } else { 0o600 };
        assert_eq!(mode(&path), expected, "{}", path.display());
    }
}

/// Conversations are nobody else's business, whatever the umask and whoever made the files. A copy of
/// a torn journal is one, too.
#[test]
fn files_are_private_whatever_the_umask() {
    let endpoint = Endpoint::scripted(|_| Some(text("Hello.")));
    let home = Home::empty();
    let mino = |words: &[&str]| home.mino(words).after("umask 000");
    let answers = format!("{}\rm\r{KEY}\r/exit\r", endpoint.base_url());
    let mut tty = mino(&[]).env("TERM", "dumb").on_tty(SIZE);
    tty.send(answers);
    assert_eq!(tty.wait_exit(), 0);
    mino(&["ask", "Go"]).run("").expect_code(0);
    let mut journal = File::options()
        .append(true)
        .open(home.journal_path())
        .unwrap();
    journal.write_all(b"{\"torn").unwrap();
    mino(&["ask", "Go"]).run("").expect_code(0);
    let files = everything(&home.mino_home);
    assert_eq!(files.len(), 7, "{files:?}");
    assert_private(&home);

    for path in files {
        let wide = if path.is_dir() { 0o777 } else { 0o666 };
        fs::set_permissions(path, Permissions::from_mode(wide)).unwrap();
    }
    mino(&["ask", "Go"]).run("").expect_code(0);
    assert_private(&home);
    // Narrower is fine.
    let soul = home.mino_home.join("SOUL.md");
    fs::set_permissions(&soul, Permissions::from_mode(0o400)).unwrap();
    mino(&["ask", "Go"]).run("").expect_code(0);
    assert_eq!(mode(&soul), 0o400);
}

/// What lies in the place of a file of Mino's.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Odd {
    Link,
    Fifo,
    Folder,
}

fn put(odd: Odd, path: &Path, outside: &Path) {
    match odd {
        Odd::Link => symlink(outside, path).unwrap(),
        Odd::Folder => fs::create_dir(path).unwrap(),
        Odd::Fifo => {
            let mode = rustix::fs::Mode::from_raw_mode(0o666);
            rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0)
                .unwrap();
        }
    }
}

/// A link could lead a write to a file of somebody else's choice, a FIFO hold Mino up for ever, and
/// neither is Mino's to replace.
#[test]
fn odd_files_are_refused_without_being_touched() {
    let endpoint = Endpoint::start([]);
    let cases = [
        ("sessions", Odd::Link),
        ("sessions", Odd::Fifo),
        ("sessions/ID.jsonl", Odd::Link),
        ("sessions/ID.jsonl", Odd::Fifo),
        ("sessions/ID.jsonl", Odd::Folder),
        ("active-session.json", Odd::Link),
        ("active-session.json", Odd::Fifo),
        ("active-session.json", Odd::Folder),
        ("config.json", Odd::Fifo),
        ("config.json", Odd::Folder),
        ("SOUL.md", Odd::Fifo),
        ("SOUL.md", Odd::Folder),
        ("", Odd::Fifo),
    ];
    for (name, odd) in cases {
        let home = Home::new(&endpoint);
        home.mino::<&str>(&[]).run("").expect_code(0);
        let id = home.pointer();
        let path = home.mino_home.join(name.replace("ID", &id));
        let path = if name.is_empty() {
            home.mino_home.clone()
        } else {
            path
        };
        // What was there goes elsewhere, open to all, to be what a link names.
        let outside = home.home.join("outside");
        fs::rename(&path, &outside).unwrap();
        let wide = Permissions::from_mode(if outside.is_dir() { 0o777 } else { 0o666 });
        fs::set_permissions(&outside, wide).unwrap();
        put(odd, &path, &outside);
        let look = || {
            let files = everything(&home.home)
                .into_iter()
                .filter(|file| file.is_file());
            let bytes: Vec<_> = files.map(|file| (mode(&file), read(&file), file)).collect();
            (
                bytes,
                mode(&outside),
                mode(&path),
                fs::symlink_metadata(&path).unwrap().file_type(),
            )
        };
        let before = look();
        for words in [
            &["ask", "Go"][..],
            &["log"],
            &["check"],
            &["sessions"],
            &["--new"],
        ] {
            // The list passes over what is no journal and needs no pointer; another conversation
            // has another journal; and reading needs no settings.
            let is_settings = matches!(name, "config.json" | "SOUL.md");
            let works = match words[0] {
                "sessions" => is_settings || name.contains('.'),
                "--new" => name == "sessions/ID.jsonl",
                "ask" => false,
                _ => is_settings,
            };
            let output = home.mino(words).run("");
            assert_eq!(
                output.code,
                i32::from(!works),
                "{words:?} {name} {odd:?}: {output}"
            );
            if !works {
                let shown = path.display().to_string();
                assert!(
                    output.stderr.contains(&shown),
                    "{words:?} {name} {odd:?}: {output}"
                );
                let why = match odd {
                    Odd::Link => "it is a symbolic link",
                    _ if name == "sessions" || name.is_empty() => "Not a directory",
                    _ => "it is not a regular file",
                };
                assert!(
                    output.stderr.contains(why),
                    "{words:?} {name} {odd:?}: {output}"
                );
            }
            assert_eq!(look(), before, "{words:?} {name} {odd:?}");
        }
    }
    assert!(endpoint.requests().is_empty());
}

/// People keep their settings elsewhere. What a link names is used, made private and replaced, and the
/// link stays.
#[test]
fn links_are_followed_where_people_make_them() {
    let endpoint = Endpoint::scripted(|_| Some(text("Hello.")));
    let home = Home::empty();
    let elsewhere = home.home.join("dotfiles");
    fs::create_dir_all(elsewhere.join("mino")).unwrap();
    symlink(elsewhere.join("mino"), &home.mino_home).unwrap();
    for name in ["config.json", "SOUL.md"] {
        symlink(elsewhere.join(name), home.mino_home.join(name)).unwrap();
    }
    let settings = json!({"base_url": endpoint.base_url(), "api_key": KEY});
    fs::write(elsewhere.join("config.json"), settings.to_string()).unwrap();
    fs::write(elsewhere.join("SOUL.md"), "Speak like a pirate.").unwrap();

    let mut tty = home.mino::<&str>(&[]).env("TERM", "dumb").on_tty(SIZE);
    tty.send("m\r/exit\r");
    assert_eq!(tty.wait_exit(), 0);
    home.ask("Go").expect_code(0);
    let request = endpoint.wait_for_request(1).json();
    assert!(
        request["instructions"]
            .as_str()
            .unwrap()
            .starts_with("Speak like a pirate.")
    );
    assert_eq!(request["model"], "m");
    for name in ["config.json", "SOUL.md"] {
        let link = home.mino_home.join(name);
        assert_eq!(fs::read_link(&link).unwrap(), elsewhere.join(name));
        assert_eq!(mode(elsewhere.join(name)), 0o600);
    }
    let saved = String::from_utf8(read(elsewhere.join("config.json"))).unwrap();
    assert!(saved.contains("\"model\": \"m\""), "{saved}");
    assert_eq!(mode(elsewhere.join("mino")), 0o700);
}

/// Starting over in silence would look like a loss of everything that was said.
#[test]
fn missing_or_damaged_pointer_asks_for_a_choice() {
    let endpoint = Endpoint::scripted(|_| Some(text("Hello.")));
    let home = Home::new(&endpoint);
    home.ask("One").expect_code(0);
    let (id, pointer) = (home.pointer(), home.mino_home.join("active-session.json"));
    let other = "0123456789abcdef0123456789abcdef";
    let damaged: [Option<Vec<u8>>; 8] = [
        None,
        Some(b"".into()),
        Some(b"{\"session_id\":".into()),
        Some(b"[]".into()),
        Some(vec![0; 60]),
        Some(format!("{{\"session_id\":\"{}\"}}", &id[..8]).into()),
        Some(format!("{{\"session_id\":\"{other}\"}}").into()),
        Some(format!("{{\"session_id\":\"{id}\",\"x\":1}}").into()),
    ];
    let put = |bytes: &Option<Vec<u8>>| match bytes {
        Some(bytes) => fs::write(&pointer, bytes).unwrap(),
        None => drop(fs::remove_file(&pointer)),
    };
    for bytes in damaged {
        put(&bytes);
        let before = everything(&home.mino_home);
        for words in [&["ask", "Two"][..], &[], &["log"], &["check"]] {
            let output = home.mino(words).run("").expect_code(1);
            assert!(output.stderr.contains("active-session.json"), "{output}");
            assert!(
                output.stderr.contains("--session ID") && output.stderr.contains("--new"),
                "{output}"
            );
            assert_eq!(everything(&home.mino_home), before);
        }
        let listed = home.mino(&["sessions"]).run("").expect_code(0);
        assert!(listed.stdout.starts_with(&format!("  {id}  ")), "{listed}");
        home.mino(&["log", &id[..6]]).run("").expect_code(0);
        let chosen = ["ask", "--session", &id[..6], "Two"];
        home.mino(&chosen).run("").expect_code(0);
        assert_eq!(home.pointer(), id);
        put(&bytes);
        home.mino(&["--new"]).run("").expect_code(0);
        assert_ne!(home.pointer(), id);
        fs::remove_file(home.journal_path_of(&home.pointer())).unwrap();
    }
    assert_eq!(endpoint.requests().len(), 9);
}

/// A home that can't be written to: refused before anything is asked, with the file and the reason;
/// what is there can be read.
#[test]
fn read_only_home_is_refused_and_read() {
    if !in_own_mounts("read_only_home_is_refused_and_read") {
        return;
    }
    let endpoint = Endpoint::start([text("First.")]);
    let home = Home::empty();
    fs::create_dir(&home.mino_home).unwrap();
    let tmpfs = ["-t", "tmpfs", "-o", "size=256k,mode=700", "none"];
    let tmpfs = mount(&tmpfs, &home.mino_home);
    let settings = json!({"base_url": endpoint.base_url(), "model": "m", "api_key": KEY});
    home.write_config(&settings);
    home.ask("One").expect_code(0);
    let before = read(home.journal_path());
    tmpfs.make_read_only();
    for words in [
        &["ask", "Two"][..],
        &[],
        &["ask", "--new", "Two"],
        &["--new"],
    ] {
        let output = home.mino(words).run("").expect_code(1);
        let sessions = home.mino_home.join("sessions");
        let place = format!("\"{}/", sessions.display());
        assert!(output.stderr.contains(&place), "{output}");
        assert!(output.stderr.contains("Read-only file system"), "{output}");
    }
    assert_eq!(endpoint.requests().len(), 1);
    let log = home.mino(&["log"]).run("").expect_code(0);
    assert!(log.stdout.contains("You> One\n") && log.stdout.contains("Assistant> First.\n"));
    home.mino(&["check"]).run("").expect_code(0);
    home.mino(&["sessions"]).run("").expect_code(0);
    assert_eq!(read(home.journal_path()), before);
}

/// Folders and files whose owner may not write or read them. Root may everything, so it runs without
/// that right.
#[test]
fn what_may_not_be_written_or_read_is_named() {
    if !has("setpriv", "what_may_not_be_written_or_read_is_named") {
        return;
    }
    let endpoint = Endpoint::start([]);
    let cases: [(&str, u32, &[&str], i32); 6] = [
        ("", 0o500, &["ask", "Go"], 1),
        ("sessions", 0o500, &["ask", "--new", "Go"], 1),
        ("sessions/ID.jsonl", 0o400, &["ask", "Go"], 1),
        ("config.json", 0o000, &["ask", "Go"], 1),
        ("SOUL.md", 0o000, &["ask", "Go"], 1),
        // Nothing is to be written into the folder itself.
        ("sessions", 0o500, &[], 0),
    ];
    for (name, narrow, words, code) in cases {
        let home = Home::new(&endpoint);
        home.mino::<&str>(&[]).run("").expect_code(0);
        let path = match name {
            "" => home.mino_home.clone(),
            name => home.mino_home.join(name.replace("ID", &home.pointer())),
        };
        if name.is_empty() {
            fs::remove_file(home.mino_home.join("SOUL.md")).unwrap();
        }
        let usual = mode(&path);
        fs::set_permissions(&path, Permissions::from_mode(narrow)).unwrap();
        let mut mino = home.mino(words);
        if rustix::process::geteuid().is_root() {
            let rights = "-dac_override,-dac_read_search";
            let without = ["setpriv", "--bounding-set", rights, "--inh-caps", rights];
            mino = mino.through(&without);
        }
        let output = mino.run("").expect_code(code);
        if code == 1 {
            let place = path.display().to_string();
            assert!(output.stderr.contains(&place), "{output}");
            assert!(output.stderr.contains("Permission denied"), "{output}");
        }
        assert_eq!(home.work_files(), Vec::<String>::new());
        fs::set_permissions(&path, Permissions::from_mode(usual)).unwrap();
    }
    assert!(endpoint.requests().is_empty());
}

/// The largest of a megabyte is kept free for results and for closing, so a conversation is full
/// before its file is. It takes no more questions and says the way on; it can be read as ever.
#[test]
fn full_conversation_takes_no_question_and_names_the_way_on() {
    const FULL: usize = (64 - 1) << 20;
    let endpoint = Endpoint::start([text("Hello.")]);
    let home = Home::new(&endpoint);
    home.mino::<&str>(&[]).run("").expect_code(0);
    let id = home.pointer();
    let mut file = File::options()
        .append(true)
        .open(home.journal_path())
        .unwrap();
    let (mut seq, mut bytes) = (0, 0);
    let mut line = |turn: usize, rest: String| {
        seq += 1;
        let line = format!(
            "{{\"v\":2,\"seq\":{seq},\"time\":\"2026-01-02T03:04:05.006Z\",\"turn_id\":\"{turn:032x}\",{rest}}}\n"
        );
        file.write_all(line.as_bytes()).unwrap();
        line.len()
    };
    for turn in 1..=9 {
        bytes += line(
            turn,
            format!("\"kind\":\"user_message\",\"text\":\"Question {turn}\""),
        );
        let left = FULL - bytes - 1_000;
        let text = "a".repeat(left.min(7 << 20) - 500);
        let item = format!(
            "{{\"type\":\"message\",\"role\":\"assistant\",\"status\":\"completed\",\"content\":[{{\"type\":\"output_text\",\"text\":\"{text}\"}}]}}"
        );
        bytes += line(
            turn,
            format!("\"kind\":\"model_response\",\"text\":\"\",\"output\":[{item}]"),
        );
        bytes += line(
            turn,
            "\"kind\":\"turn_end\",\"status\":\"completed\"".into(),
        );
    }
    drop(file);
    let size = fs::metadata(home.journal_path()).unwrap().len();

    let mut tty = home.chat();
    tty.send_line("One more?");
    tty.wait_for("cannot save the question: the conversation is full (67108864 bytes)");
    tty.wait_for("--new");
    tty.wait_for("You> ");
    let status = fs::read_to_string(format!("/proc/{}/status", tty.pid())).unwrap();
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap();
    let peak: usize = peak.trim().strip_suffix(" kB").unwrap().parse().unwrap();
    assert!(peak < FULL / 1024 * 3 / 2, "{peak} KiB");
    tty.send_line("/new");
    tty.wait_for("Mino ");
    tty.wait_for("You> ");
    tty.send_line("One more?");
    tty.wait_for("Hello.");
    tty.wait_for("You> ");
    tty.send_line("/exit");
    assert_eq!(tty.wait_exit(), 0);
    assert_eq!(fs::metadata(home.journal_path_of(&id)).unwrap().len(), size);
    let log = home.mino(&["log", &id]).run("").expect_code(0);
    assert!(log.stdout.contains("You> Question 9\n"), "{}", log.stdout);
}

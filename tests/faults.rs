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
use support::endpoint::{Answer, Endpoint, Reply, call, hold, text};
use support::home::{Home, KEY, Mino, Output, Running, mode};
use support::kernel::{Strace, in_own_mounts, mount};
use support::tty::{Instead, QUESTION, Size, Tty};
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
    let mut tty = home.mino::<&str>(&[]).under(&strace.words()).on_tty(SIZE);
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
    let (before, lengths) = line_lengths();
    let (before, lengths) = (before, &lengths);
    let one = |number: usize| {
        let endpoint = Endpoint::start(two_calls());
        let home = Home::new(&endpoint);
        conversation(&endpoint, &home, 1);
        let whole = before + lengths[..number - 1].iter().sum::<usize>();
        let limit = whole + lengths[number - 1] / 2;
        let words = ["prlimit", &format!("--fsize={limit}:{limit}")];
        let mut tty = home.mino::<&str>(&[]).under(&words).on_tty(SIZE);
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
    let mut tty = home.mino::<&str>(&[]).under(&strace.words()).on_tty(SIZE);
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
        let output = home.mino(&["ask", "Go"]).under(&strace.words()).run("");
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

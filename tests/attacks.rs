//! What a hostile command, server or file tries against the built program, and what comes of it.

mod support;

use std::fs::{self, File};
use std::io::Write;
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};
use support::endpoint::{Endpoint, call, calls, text};
use support::home::Home;
use support::tty::{QUESTION, Size, Tty};
use support::{alive, mark, mino_path, nothing_alive, read, until};

const SIZE: Size = Size {
    rows: 40,
    cols: 200,
};
const SESSION: &str = "0123456789abcdef0123456789abcdef";

/// A model that asks for `command`, and a person who approves it.
fn approved(command: &str) -> (Endpoint, Home, Tty) {
    let endpoint = Endpoint::start([call("call_1", command), text("Understood.")]);
    let home = Home::new(&endpoint);
    let tty = home.mino(&["ask", "Go"]).on_tty(SIZE);
    tty.answer("y");
    (endpoint, home, tty)
}

/// A command kills the process that watches it, so that whom it sent away can't be found below that.
/// They fall to Mino, and are named.
#[test]
fn killed_guard_hides_nobody() {
    let (_endpoint, home, mut tty) = approved(
        "setsid bash -c 'echo $$ > new; mv new stray; exec sleep 60' & \
         until [ -e stray ]; do :; done; kill -9 $PPID; exec sleep 60",
    );
    tty.wait_for("[Tool result: failed]");
    let stray = String::from_utf8(read(home.in_work("stray"))).unwrap();
    let stray = stray.trim();
    tty.wait_for(&format!(
        "Still running outside the process group: {stray} ("
    ));
    assert_eq!(tty.wait_exit(), 0);
    let stray = Pid::from_raw(stray.parse().unwrap()).unwrap();
    kill_process(stray, Signal::KILL).unwrap();
}

/// A command that left its group stops the process that watches it, again and again, so that the
/// shell's end is never reported. It is ended with the command all the same.
#[test]
fn whoever_keeps_the_guard_stopped_is_ended_too() {
    let mark = mark();
    let (_endpoint, _home, mut tty) = approved(&format!(
        "setsid bash -c 'touch on; while kill -STOP '$PPID'; do :; done; : {mark}' & \
         until [ -e on ]; do :; done; head -c 70000 /dev/zero | tr '\\0' x; exec sleep 60"
    ));
    tty.wait_for("[Tool result: output_limit");
    assert_eq!(alive(&mark), Vec::<String>::new());
    assert_eq!(tty.wait_exit(), 0);
    assert!(
        !tty.plain().contains("ould not be ended"),
        "{}",
        tty.plain()
    );
}

/// A command stops the process that watches it, sends somebody away, and then Mino is killed. Its
/// end sets the guard going again, and that ends both.
#[test]
fn nobody_survives_a_killed_mino_by_stopping_the_guard_or_leaving_the_group() {
    let mark = mark();
    let (_endpoint, home, mut tty) = approved(&format!(
        "kill -STOP $PPID; setsid bash -c 'touch on; exec -a {mark} sleep 60' & \
         exec -a {mark} sleep 60"
    ));
    until("both run", || home.in_work("on").exists());
    tty.signal(Signal::KILL);
    until("both are gone", || nothing_alive(&mark));
}

/// The arguments are one huge string in place of an object, and the parser's error repeats it. The
/// person and the model get a line of it.
#[test]
fn refused_arguments_are_not_repeated_at_length() {
    let arguments = serde_json::to_string(&"\u{200b}".repeat(100_000)).unwrap();
    let endpoint = Endpoint::start([calls(&[("call_1", "bash", &arguments)]), text("Sorry.")]);
    let home = Home::new(&endpoint);
    let output = home.ask("Go").expect_code(0);
    assert!(output.stderr.contains("invalid_arguments"));
    assert!(output.stderr.len() < 1_000, "{}", output.stderr.len());
    let (_, result) = endpoint.wait_for_request(2).results().remove(0);
    assert!(result["output"].as_str().unwrap().len() < 1_000);
}

/// Somebody removes the journal, or writes into it, while a command waits for its approval. What
/// would then be saved no start could read, so the command does not run and nothing more is sent.
#[test]
fn command_does_not_run_without_its_journal() {
    for change in [
        |path: &std::path::Path| fs::remove_file(path).unwrap(),
        |path: &std::path::Path| {
            let mut journal = File::options().append(true).open(path).unwrap();
            journal.write_all(b"{}\n").unwrap();
        },
    ] {
        let endpoint = Endpoint::start([call("call_1", "touch ran")]);
        let home = Home::new(&endpoint);
        let mut tty = home.mino(&["ask", "Go"]).on_tty(SIZE);
        tty.wait_for(QUESTION);
        change(&home.journal_path());
        tty.send_line("y");
        tty.wait_for("cannot save the start of the command");
        tty.wait_for("somebody else removed or changed it");
        assert_eq!(tty.wait_exit(), 1);
        assert_eq!(home.work_files(), Vec::<String>::new());
        assert_eq!(endpoint.requests().len(), 1);
    }
}

/// A home with one conversation, whose journal holds `bytes`.
fn home_with(bytes: &[u8]) -> Home {
    let home = Home::empty();
    fs::create_dir_all(home.mino_home.join("sessions")).unwrap();
    fs::write(home.journal_path_of(SESSION), bytes).unwrap();
    home
}

/// A journal is made to hold a response of more calls than any stream may bring. Each call is
/// compared with all others, so a full record of them would take many minutes: they are counted first.
#[test]
fn journal_with_too_many_calls_is_refused_by_their_number() {
    let record = |seq: u32, rest: &str| {
        format!(
            "{{\"v\":2,\"seq\":{seq},\"time\":\"2026-01-31T23:59:59.999Z\",\
             \"turn_id\":\"{SESSION}\",{rest}}}\n"
        )
    };
    for (count, code) in [(1024, 0), (1025, 1)] {
        let items: Vec<String> = (0..count)
            .map(|id| {
                format!(
                    "{{\"type\":\"function_call\",\"call_id\":\"{id}\",\"name\":\"bash\",\"arguments\":\"\"}}"
                )
            })
            .collect();
        let response = format!(
            "\"kind\":\"model_response\",\"text\":\"\",\"output\":[{}]",
            items.join(",")
        );
        let question = record(1, "\"kind\":\"user_message\",\"text\":\"Go\"");
        let home = home_with(format!("{question}{}", record(2, &response)).as_bytes());
        let output = home.mino(&["check", SESSION]).run("").expect_code(code);
        assert_eq!(
            output
                .stderr
                .contains("line 2: it holds more than 1024 items"),
            code == 1,
            "{}",
            output.stderr
        );
    }
}

/// A journal is a sparse file of a tebibyte. The list of conversations does not read all of it.
#[test]
fn list_of_conversations_reads_no_more_of_a_file_than_a_journal_may_hold() {
    let home = home_with(b"");
    let journal = File::options()
        .write(true)
        .open(home.journal_path_of(SESSION))
        .unwrap();
    journal.set_len(1 << 40).unwrap();
    let output = home.mino(&["sessions"]).run("").expect_code(0);
    assert!(output.stdout.contains(SESSION), "{}", output.stdout);
}

/// There are too few descriptors even for what errors are shown with. The error is shown.
#[test]
fn want_of_descriptors_is_said() {
    let endpoint = Endpoint::start([]);
    let home = Home::new(&endpoint);
    let mut shell = Command::new("/bin/sh");
    shell
        .args(["-c", "ulimit -n 5; exec \"$0\" ask Go"])
        .arg(mino_path())
        .env("MINO_HOME", &home.mino_home)
        .env("HOME", &home.home);
    let output = shell.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.starts_with("mino: cannot set up the process: "),
        "{said}"
    );
    assert_eq!(output.status.code(), Some(1));
}

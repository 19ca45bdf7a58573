//! The line reader on a real pseudo-terminal, and on pipes.
//!
//! Each test starts this very binary again: first as the leader of a session on a new terminal, which
//! outlives what it starts (so that the terminal's settings can be looked at afterwards), then as a
//! program that reads lines in one of the roles of `play`. Nothing sleeps: a test waits for bytes.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use mino::gateway::line::{Answer, Line, Mode, Reader};
use mino::sys::signal::Stop;
use mino::sys::terminal::{self, Guard, Setting};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};

const PATIENCE: Duration = Duration::from_secs(20);

// --- the child ------------------------------------------------------------------------------

/// Not a test of its own: what the tests below start, and nothing at all when run by hand.
#[test]
fn child() {
    match std::env::var("LINE_CHILD").as_deref() {
        Err(_) => {}
        Ok("session") => lead_session(),
        Ok(role) => std::process::exit(play(role)),
    }
}

fn say(text: &str) {
    let mut left = text.as_bytes();
    while !left.is_empty() {
        let written = rustix::io::write(rustix::stdio::stdout(), left).unwrap();
        left = &left[written..];
    }
}

fn lead_session() {
    rustix::process::setsid().unwrap();
    rustix::process::ioctl_tiocsctty(rustix::stdio::stdin()).unwrap();
    let role = std::env::var("LINE_ROLE").unwrap();
    if role == "bash" {
        let error = Command::new("bash")
            .args(["--norc", "--noprofile", "-ib"])
            .env("PS1", "$ ")
            .exec();
        panic!("{error}");
    }
    let status = myself(&role).status().unwrap();
    say(&format!("@@exit {status}@@"));
    loop {
        thread::park();
    }
}

fn myself(role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "child", "--nocapture"])
        .env("LINE_CHILD", role);
    command
}

/// Blocks until the test lets the child go on.
fn await_go() {
    fs::read(std::env::var("LINE_GO").unwrap()).unwrap();
}

fn play(role: &str) -> i32 {
    let stop = Stop::install().unwrap();
    let (mode, draw) = Mode::detect(std::env::var_os("TERM").as_deref());
    // A terminal that was closed is to be noticed by itself, not by the hangup that comes with it.
    let stop = if role == "closed" {
        Stop::new().unwrap()
    } else {
        stop
    };
    let mut reader = Reader::new(stop.clone(), mode, draw);
    say(&format!("@@ready {}@@", std::process::id()));
    match role {
        "read" => read_lines(&mut reader),
        // Nobody is left to hear how it ended.
        "closed" => {
            let end = reader.read("You> ", &[]);
            fs::write(
                std::env::var("LINE_GO").unwrap() + ".end",
                format!("{end:?}"),
            )
            .unwrap();
        }
        "later" => {
            await_go();
            read_lines(&mut reader);
        }
        "answer" => {
            say("Command: x\n");
            await_go();
            let answer = reader.answer("Approve? [y/N] ", &mut |text| say(&format!("({text})\n")));
            say(&match answer.unwrap() {
                Answer::Text(text) => format!("={text:?}\n"),
                other => format!("={other:?}\n"),
            });
        }
        "hidden" => say(&format!("={:?}\n", reader.hidden("Key: ").unwrap())),
        "panic" => {
            terminal::restore_on_panic();
            std::mem::forget(Guard::enter(Setting::Keys, Some(terminal::output())).unwrap());
            say("changed\n");
            panic!("as asked");
        }
        "exit" => {
            std::mem::forget(Guard::enter(Setting::Hidden, None).unwrap());
            say("changed\n");
            let exit = || {
                terminal::restore_now();
                std::process::exit(0);
            };
            thread::spawn(exit).join().unwrap();
        }
        _ => panic!("unknown role {role}"),
    }
    stop.signal().map_or(0, |signal| signal.exit_code().into())
}

fn read_lines(reader: &mut Reader) {
    let mut history = Vec::new();
    loop {
        match reader.read("You> ", &history).unwrap() {
            Line::Text(text) if text.len() > 10_000 => {
                say(&format!(
                    "={} bytes, {} of them x\n",
                    text.len(),
                    text.matches('x').count()
                ));
            }
            Line::Text(text) => {
                say(&format!("={text:?}\n"));
                history.push(text);
            }
            Line::Bad(bad) => say(&format!("={bad}\n{}\n", bad.hint())),
            end => return say(&format!("={end:?}\n")),
        }
    }
}

// --- the terminal ---------------------------------------------------------------------------

struct Tty {
    master: OwnedFd,
    leader: Child,
    /// Everything since the child was ready.
    seen: Vec<u8>,
    /// How much of it [`Tty::expect`] has passed.
    passed: usize,
    screen: vt100::Parser,
    as_found: Termios,
    pid: Option<Pid>,
    folder: tempfile::TempDir,
}

impl Drop for Tty {
    fn drop(&mut self) {
        self.leader.kill().unwrap();
        self.leader.wait().unwrap();
    }
}

fn window(columns: u16) -> Winsize {
    Winsize {
        ws_row: 24,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}

fn emulator(columns: u16) -> vt100::Parser {
    vt100::Parser::new(NonZero::new(24).unwrap(), NonZero::new(columns).unwrap(), 0)
}

impl Tty {
    fn start(role: &str, term: &str, columns: u16) -> Tty {
        let mut tty = Tty::launch(role, term, columns);
        tty.expect("@@ready ");
        tty.expect("@@");
        let head = String::from_utf8(tty.seen[..tty.passed].to_vec()).unwrap();
        let pid = head
            .rsplit(' ')
            .next()
            .unwrap()
            .trim_end_matches('@')
            .parse()
            .unwrap();
        tty.pid = Pid::from_raw(pid);
        tty.seen.drain(..tty.passed);
        tty.passed = 0;
        tty.screen = emulator(columns);
        tty.screen.process(&tty.seen);
        tty
    }

    fn launch(role: &str, term: &str, columns: u16) -> Tty {
        use rustix::fs::OFlags;
        use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
        let master =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        tcsetwinsize(&master, window(columns)).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        let slave = || {
            let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
            Stdio::from(rustix::fs::open(&name, flags, rustix::fs::Mode::empty()).unwrap())
        };
        let folder = tempfile::tempdir().unwrap();
        let go = folder.path().join("go");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &go,
            rustix::fs::FileType::Fifo,
            0o600.into(),
            0,
        )
        .unwrap();
        let mut command = myself("session");
        command
            .env("LINE_ROLE", role)
            .env("TERM", term)
            .env("LINE_GO", &go);
        command.stdin(slave()).stdout(slave()).stderr(slave());
        let as_found = tcgetattr(&master).unwrap();
        Tty {
            leader: spawn(command),
            master,
            seen: Vec::new(),
            passed: 0,
            screen: emulator(columns),
            as_found,
            pid: None,
            folder,
        }
    }

    fn go(&self) {
        fs::write(self.folder.path().join("go"), "").unwrap();
    }

    fn send(&mut self, bytes: impl AsRef<[u8]>) {
        let mut left = bytes.as_ref();
        while !left.is_empty() {
            // The terminal takes only so much before its output is read, too.
            self.pump(PollFlags::OUT);
            let length = left.len().min(1024);
            left = &left[rustix::io::write(&self.master, &left[..length]).unwrap()..];
        }
    }

    /// Reads what has come until the terminal can be read (`IN`, then once) or written (`OUT`).
    fn pump(&mut self, until: PollFlags) {
        loop {
            let mut fds = [PollFd::new(&self.master, PollFlags::IN | until)];
            let wait = Timespec {
                tv_sec: PATIENCE.as_secs() as i64,
                tv_nsec: 0,
            };
            assert_ne!(
                poll(&mut fds, Some(&wait)).unwrap(),
                0,
                "nothing more came:\n{}",
                self.so_far()
            );
            let ready = fds[0].revents();
            if ready.contains(PollFlags::IN) {
                let mut buffer = [0; 64 * 1024];
                let count = rustix::io::read(&self.master, &mut buffer).unwrap();
                self.screen.process(&buffer[..count]);
                self.seen.extend(&buffer[..count]);
            }
            if ready.intersects(until) {
                return;
            }
        }
    }

    fn so_far(&self) -> String {
        String::from_utf8_lossy(&self.seen).into_owned()
    }

    /// Waits for `text` after what was expected before.
    fn expect(&mut self, text: &str) {
        loop {
            let new = &self.seen[self.passed..];
            if let Some(at) = new
                .windows(text.len())
                .position(|part| part == text.as_bytes())
            {
                self.passed += at + text.len();
                return;
            }
            self.pump(PollFlags::IN);
        }
    }

    /// Waits until the screen shows exactly this, with the cursor there.
    fn expect_screen(&mut self, rows: &[&str], cursor: (u16, u16)) {
        let rows: Vec<&str> = rows.iter().map(|row| row.trim_end()).collect();
        let expected = (rows.join("\n"), cursor);
        let deadline = Instant::now() + PATIENCE / 4;
        loop {
            let screen = self.screen.screen();
            let rows: Vec<String> = screen.rows(0, screen.size().1.into()).collect();
            let rows: Vec<&str> = rows.iter().map(|row| row.trim_end()).collect();
            let text = rows.join("\n").trim_end_matches('\n').to_string();
            let shown = (text, screen.cursor_position());
            let mut fds = [PollFd::new(&self.master, PollFlags::IN)];
            let wait = Timespec {
                tv_sec: 1,
                tv_nsec: 0,
            };
            if shown == expected {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "shown {:?}:\n{}\nexpected {:?}:\n{}\n{:?}",
                shown.1,
                shown.0,
                expected.1,
                expected.0,
                self.so_far()
            );
            if poll(&mut fds, Some(&wait)).unwrap() > 0 {
                self.pump(PollFlags::IN);
            }
        }
    }

    fn resize(&mut self, columns: u16) {
        let screen = self.screen.screen_mut();
        screen.set_size(NonZero::new(24).unwrap(), NonZero::new(columns).unwrap());
        tcsetwinsize(&self.master, window(columns)).unwrap();
    }

    fn signal(&self, signal: Signal) {
        rustix::process::kill_process(self.pid.unwrap(), signal).unwrap();
    }

    /// Waits for the child's exit, then looks whether the terminal is as it was found.
    fn expect_exit(&mut self, code: i32) {
        self.expect(&format!("@@exit exit status: {code}@@"));
        self.expect_as_found();
    }

    fn expect_as_found(&self) {
        let now = tcgetattr(&self.master).unwrap();
        assert_eq!(format!("{now:?}"), format!("{:?}", self.as_found));
        assert!(
            !self.screen.screen().bracketed_paste(),
            "bracketed paste was left on"
        );
    }
}

fn expect_gone(pid: Pid) {
    let deadline = Instant::now() + PATIENCE;
    while rustix::process::test_kill_process(pid).is_ok() {
        assert!(Instant::now() < deadline, "still running");
        thread::yield_now();
    }
}

/// Starts a process with the signals blocked in which Mino waits for them with `sigtimedwait`: the
/// test runner in the child has a thread of its own that would otherwise take them and die.
fn spawn(mut command: Command) -> Child {
    let start = move || {
        Stop::install().unwrap();
        command.spawn().unwrap()
    };
    thread::spawn(start).join().unwrap()
}

// --- the editor -----------------------------------------------------------------------------

#[test]
fn edits_are_drawn_where_they_happen() {
    let mut tty = Tty::start("read", "xterm", 80);
    tty.expect_screen(&["You> "], (0, 5));
    tty.send("helo wörld 世界");
    tty.expect_screen(&["You> helo wörld 世界"], (0, 20));
    tty.send("\x1b[D\x1bOD");
    tty.expect_screen(&["You> helo wörld 世界"], (0, 16));
    tty.send("\x01\x06\x06l");
    tty.expect_screen(&["You> hello wörld 世界"], (0, 8));
    tty.send("\x05\x7f🙂!");
    tty.expect_screen(&["You> hello wörld 世🙂!"], (0, 22));
    tty.send("\r");
    tty.expect("=\"hello wörld 世🙂!\"");
    tty.expect("You> ");
    tty.send("\x1b[A\x17again");
    tty.expect_screen(
        &[
            "You> hello wörld 世🙂!",
            "=\"hello wörld 世🙂!\"",
            "You> hello wörld again",
        ],
        (2, 22),
    );
    tty.send("\x0c");
    tty.expect_screen(&["You> hello wörld again"], (0, 22));
    tty.send("\x15\x04");
    tty.expect_screen(&["You> ", "=End", "@@exit exit status: 0@@"], (2, 23));
    tty.expect_exit(0);
}

#[test]
fn a_long_line_folds_at_20_columns_and_can_be_edited_anywhere() {
    let mut tty = Tty::start("read", "xterm", 20);
    tty.expect_screen(&["You> "], (0, 5));
    tty.send("123456789012345");
    tty.expect_screen(&["You> 123456789012345"], (1, 0));
    tty.send("世界世界世界世界世界x");
    tty.expect_screen(
        &["You> 123456789012345", "世界世界世界世界世界", "x"],
        (2, 1),
    );
    tty.send("\x01");
    tty.expect_screen(
        &["You> 123456789012345", "世界世界世界世界世界", "x"],
        (0, 5),
    );
    tty.send("a");
    tty.expect_screen(
        &["You> a12345678901234", "5世界世界世界世界世", "界x"],
        (0, 6),
    );
    tty.send("\x05\x7f\x7f");
    tty.expect_screen(&["You> a12345678901234", "5世界世界世界世界世"], (1, 19));
    tty.send("y");
    tty.expect_screen(&["You> a12345678901234", "5世界世界世界世界世y"], (2, 0));
    tty.send("\r");
    tty.expect_screen(
        &[
            "You> a12345678901234",
            "5世界世界世界世界世y",
            "=\"a123456789012345世",
            "界世界世界世界世y\"",
            "You> ",
        ],
        (4, 5),
    );
}

#[test]
fn a_changed_window_is_drawn_anew() {
    let mut tty = Tty::start("read", "xterm", 80);
    tty.send("one two three four five six");
    tty.expect_screen(&["You> one two three four five six"], (0, 32));
    tty.resize(20);
    tty.expect_screen(&["You> one two three f", "our five six"], (1, 12));
    tty.resize(80);
    tty.expect_screen(&["You> one two three four five six"], (0, 32));
}

#[test]
fn more_text_than_the_screen_holds_is_shown_around_the_cursor() {
    let mut tty = Tty::start("read", "xterm", 20);
    let lines: Vec<String> = (1..=40).map(|n| format!("line {n}")).collect();
    tty.send(format!("\x1b[200~{}\x1b[201~", lines.join("\r")));
    let shown: Vec<String> = (17..=40).map(|n| format!("     line {n}")).collect();
    let shown: Vec<&str> = shown.iter().map(String::as_str).collect();
    tty.expect_screen(&shown, (23, 12));
    tty.send("\x7f\x7f41\r");
    tty.expect("line 39\\nline 41\"");
}

#[test]
fn a_marked_paste_is_one_message() {
    let mut tty = Tty::start("read", "xterm", 80);
    tty.expect("You> ");
    tty.send("\x1b[200~one\r\ntwo\rthree\ty\n\x1b[201~");
    tty.expect_screen(&["You> one", "     two", "     three    y"], (3, 5));
    tty.send("!\r");
    tty.expect("=\"one\\ntwo\\nthree\\ty\\n!\"");
}

/// Old terminals paste without marks: each line used to become a question of its own.
#[test]
fn several_lines_at_once_are_one_message_even_without_marks() {
    let mut tty = Tty::start("read", "xterm", 80);
    tty.expect("You> ");
    let lines = vec!["pasted line"; 20];
    tty.send(lines.join("\r") + "\r");
    tty.expect(&format!("={:?}", lines.join("\n")));
    tty.send("next\r");
    tty.expect("=\"next\"");
}

#[test]
fn a_paste_may_be_a_mebibyte_and_no_more() {
    let mut tty = Tty::start("read", "xterm", 80);
    tty.expect("You> ");
    let lines = "x".repeat(1023) + "\r";
    tty.send(format!("\x1b[200~{}\x1b[201~", lines.repeat(1024)));
    tty.send("\r");
    tty.expect("=1048576 bytes, 1047552 of them x");
    tty.expect("You> ");
    tty.send(format!("\x1b[200~{}y\x1b[201~", lines.repeat(1024)));
    tty.send("\r");
    tty.expect("=cannot use the line: it is longer than 1048576 bytes");
}

#[test]
fn keys_and_characters_may_come_in_pieces() {
    let mut tty = Tty::start("read", "xterm", 80);
    tty.send("ab\x1b[");
    tty.expect_screen(&["You> ab"], (0, 7));
    tty.send("D!");
    tty.expect_screen(&["You> a!b"], (0, 7));
    tty.send(b"x\xe4\xb8");
    tty.expect_screen(&["You> a!xb"], (0, 8));
    tty.send(b"\x96y");
    tty.expect_screen(&["You> a!x世yb"], (0, 11));
    // ESC alone means nothing, and swallows no later key; here the pause is the input.
    tty.send("\x1b");
    thread::sleep(Duration::from_millis(500));
    tty.send("z\x1b[F");
    tty.expect_screen(&["You> a!x世yzb"], (0, 13));
    tty.send("\r");
    tty.expect("=\"a!x世yzb\"");
}

#[test]
fn what_is_not_utf8_is_said_and_not_sent() {
    let mut tty = Tty::start("read", "xterm", 80);
    tty.send(b"caf\xe9\r");
    tty.expect("=cannot use the line: it is not valid UTF-8");
    tty.send("ok\r");
    tty.expect("=\"ok\"");
}

#[test]
fn what_is_typed_ahead_of_a_question_is_kept() {
    for (term, text) in [("xterm", "=\"half\\nlast\""), ("dumb", "=\"half\"")] {
        let mut tty = Tty::start("later", term, 80);
        tty.send("half\rlast");
        tty.expect("last");
        tty.go();
        tty.expect("You> ");
        tty.send("\r");
        tty.expect(text);
    }
}

/// While nobody reads, the driver keeps 4,095 bytes of a line and drops the rest without a word.
#[test]
fn what_the_driver_may_have_cut_is_refused_in_the_editor_too() {
    for (length, text) in [
        (4094, "=\"x"),
        (4095, "may have cut it"),
        (5000, "may have cut it"),
    ] {
        let mut tty = Tty::start("later", "xterm", 80);
        tty.send("x".repeat(length));
        tty.expect(&"x".repeat(length.min(4095)));
        tty.go();
        tty.expect("\x1b[?2004h");
        tty.send("\r");
        tty.expect(text);
    }
}

// --- ways out -------------------------------------------------------------------------------

#[test]
fn the_terminal_is_as_found_after_every_way_out() {
    for term in ["xterm", "dumb"] {
        let mut tty = Tty::start("read", term, 80);
        tty.expect("You> ");
        tty.send("a question\r");
        tty.expect("=\"a question\"");
        tty.expect("You> ");
        tty.send("\x04");
        tty.expect("=End");
        tty.expect_exit(0);

        let mut tty = Tty::start("read", term, 80);
        tty.expect("You> ");
        tty.send("half a line\x03");
        tty.expect("=Stopped");
        tty.expect_exit(130);

        for (signal, code) in [(Signal::TERM, 143), (Signal::HUP, 129), (Signal::INT, 130)] {
            let mut tty = Tty::start("read", term, 80);
            tty.expect("You> ");
            tty.signal(signal);
            tty.expect("=Stopped");
            tty.expect_exit(code);
        }

        let mut tty = Tty::start("answer", term, 80);
        tty.go();
        tty.expect("[y/N] ");
        tty.send("\x04");
        tty.expect("=End");
        tty.expect_exit(0);

        let mut tty = Tty::start("hidden", term, 80);
        tty.expect("Key: ");
        tty.signal(Signal::TERM);
        tty.expect("=Stopped");
        tty.expect_exit(143);
    }
    let mut tty = Tty::start("panic", "xterm", 80);
    tty.expect("changed");
    tty.expect_exit(101);
    let mut tty = Tty::start("exit", "xterm", 80);
    tty.expect("changed");
    tty.expect_exit(0);
}

/// A closed terminal can be "read" for ever. It must be the end, without a hangup signal too.
#[test]
fn a_closed_terminal_is_the_end_of_the_input() {
    for term in ["xterm", "dumb"] {
        let mut tty = Tty::start("closed", term, 80);
        tty.expect("You> ");
        tty.send("half");
        let pid = tty.pid.unwrap();
        // The master goes, the leader stays (so nobody hangs up the session in its place).
        let (other, _) = std::os::unix::net::UnixStream::pair().unwrap();
        drop(std::mem::replace(&mut tty.master, other.into()));
        expect_gone(pid);
        let end = fs::read_to_string(tty.folder.path().join("go.end")).unwrap();
        assert_eq!(end, "Ok(End)");
    }
}

/// Types the call of `role` into an interactive shell and waits until the child is ready.
fn started_by_shell(role: &str, after: &str) -> Tty {
    let mut tty = Tty::launch("bash", "xterm", 200);
    tty.expect("$ ");
    let program = std::env::current_exe().unwrap();
    let program = program.display();
    tty.send(format!(
        "LINE_CHILD={role} {program} --exact child --nocapture{after}\r"
    ));
    tty.expect("@@ready ");
    tty.expect("@@");
    let text = tty.so_far();
    let pid = text
        .rsplit("@@ready ")
        .next()
        .unwrap()
        .split('@')
        .next()
        .unwrap();
    tty.pid = Pid::from_raw(pid.parse().unwrap());
    tty
}

#[test]
fn a_line_survives_being_suspended_by_a_shell() {
    let mut tty = started_by_shell("read", "");
    tty.expect("You> ");
    tty.send("half of it");
    tty.expect("half of it");
    tty.send("\x1a");
    tty.expect("Stopped");
    tty.expect("$ ");
    tty.send("stty -a; fg\r");
    tty.expect(" icanon ");
    tty.expect(" echo ");
    tty.expect("You> half of it");
    tty.send(", all\r");
    tty.expect("=\"half of it, all\"");
    tty.expect("You> ");
    tty.send("\x04");
    tty.expect("=End");
    tty.expect("$ ");
}

/// Restoring from the background would stop the process, so that it never ends, or take the
/// settings from under the shell.
#[test]
fn a_signal_in_the_background_ends_without_touching_the_terminal() {
    let mut tty = started_by_shell("read", "");
    tty.expect("You> ");
    tty.send("\x1a");
    tty.expect("Stopped");
    tty.expect("$ ");
    tty.send("bg\r");
    tty.expect("&");
    tty.expect("Stopped");
    tty.send("kill %1\r");
    tty.expect("=Stopped");
    expect_gone(tty.pid.unwrap());
    tty.expect("Exit 143");
}

/// A shell resets the terminal of a stopped job: the next key at the hidden prompt was echoed.
#[test]
fn the_key_stays_hidden_after_the_process_was_stopped_and_continued() {
    let mut tty = started_by_shell("hidden", "");
    tty.expect("Key: ");
    tty.signal(Signal::TSTP);
    tty.expect("Stopped");
    tty.expect("$ ");
    tty.send("fg\r");
    tty.expect("Key: ");
    tty.send("se\x1acret\r");
    tty.expect("=Text(\"se\\u{1a}cret\")");
    assert_eq!(
        tty.so_far().matches("cret").count(),
        1,
        "echoed:\n{}",
        tty.so_far()
    );
}

/// From the background the settings can't be changed, and after `fg` the echo was still on.
#[test]
fn the_key_stays_hidden_when_it_is_asked_for_from_the_background() {
    let mut tty = started_by_shell("hidden", " &");
    tty.expect("Key: ");
    tty.expect("Stopped");
    tty.send("fg\r");
    tty.expect("Key: ");
    tty.send("secret\r");
    tty.expect("=Text(\"secret\")");
    assert_eq!(
        tty.so_far().matches("secret").count(),
        1,
        "echoed:\n{}",
        tty.so_far()
    );
}

// --- without an editor ----------------------------------------------------------------------

#[test]
fn no_escape_sequence_without_an_editor() {
    for term in ["dumb", ""] {
        let mut tty = Tty::start("read", term, 80);
        tty.expect("You> ");
        tty.send("wörld 世界\x7f🙂\r");
        tty.expect("=\"wörld 世🙂\"");
        tty.send("one\rtwo\r");
        tty.expect("=\"one\"");
        tty.expect("=\"two\"");
        tty.send("\x04");
        tty.expect_exit(0);
        assert!(!tty.seen.contains(&0x1b), "{}", tty.so_far());
        let mut tty = Tty::start("hidden", term, 80);
        tty.expect("Key: ");
        tty.send("one\r");
        tty.expect_exit(0);
        assert!(!tty.seen.contains(&0x1b), "{}", tty.so_far());
        let mut tty = asked(term, "y\r");
        tty.expect("[y/N] ");
        tty.send("y\ry\r");
        tty.expect("[y/N] ");
        tty.send("y\r");
        tty.expect_exit(0);
        assert!(!tty.seen.contains(&0x1b), "{}", tty.so_far());
    }
}

/// The driver drops what passes its buffer without a word.
#[test]
fn a_line_the_driver_may_have_cut_is_refused() {
    let mut tty = Tty::start("read", "dumb", 80);
    tty.expect("You> ");
    let line = "x".repeat(4094);
    tty.send(line.clone() + "\r");
    tty.expect(&format!("={line:?}"));
    for length in [4095, 5000] {
        tty.expect("You> ");
        tty.send("x".repeat(length) + "\r");
        tty.expect("=cannot use the line: the terminal may have cut it at 4095 bytes");
        tty.expect("mino ask -");
    }
    // Ctrl+D in mid-line hands over what there is, and more room.
    tty.expect("You> ");
    tty.send("x".repeat(4000) + "\x04");
    tty.send("y".repeat(4000) + "z\r");
    tty.expect("yz\"");
}

fn piped(input: &[u8]) -> String {
    let mut command = myself("read");
    command
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = spawn(command);
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let writer = thread::spawn(move || stdin.write_all(&input).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let text = text.split_once("@@ready ").unwrap().1;
    text.split_once("@@").unwrap().1.replace("You> ", "")
}

#[test]
fn lines_of_a_pipe_come_one_by_one_and_whole() {
    assert_eq!(piped(b""), "=End\n");
    assert_eq!(
        piped(b"one\r\n\n\ttwo \nlast"),
        "=\"one\"\n=\"\"\n=\"\\ttwo \"\n=\"last\"\n=End\n"
    );
    assert_eq!(
        piped(b"caf\xe9\nok\n"),
        "=cannot use the line: it is not valid UTF-8\n\
         set the terminal to UTF-8, or convert the text, and send the line again\n=\"ok\"\n=End\n"
    );
    let most = vec![b'x'; 1 << 20];
    let text = [&most[..], b"\n", &most, b"x\nok\n", &most, b"x"].concat();
    let too_long = "=cannot use the line: it is longer than 1048576 bytes\n\
                    put the text into a file and ask about the file\n";
    assert_eq!(
        piped(&text),
        format!("=1048576 bytes, 1048576 of them x\n{too_long}=\"ok\"\n{too_long}=End\n")
    );
}

#[test]
fn a_file_is_read_to_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("questions");
    fs::write(&path, "one\ntwo").unwrap();
    let mut command = myself("read");
    command
        .stdin(File::open(&path).unwrap())
        .stdout(Stdio::piped());
    let mut child = spawn(command);
    let mut text = String::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut text)
        .unwrap();
    assert!(child.wait().unwrap().success());
    assert!(
        text.ends_with("You> =\"one\"\nYou> =\"two\"\nYou> =End\n"),
        "{text}"
    );
}

// --- answers --------------------------------------------------------------------------------

/// Sends `ahead` and waits for its echo, so that it is in the driver before the question is.
fn asked(term: &str, ahead: &str) -> Tty {
    let mut tty = Tty::start("answer", term, 80);
    tty.expect("Command: x");
    if !ahead.is_empty() {
        tty.send(ahead);
        tty.expect(&ahead.replace('\r', "\r\n"));
    }
    tty.go();
    tty
}

#[test]
fn only_what_is_typed_after_the_question_answers_it() {
    for term in ["xterm", "dumb"] {
        for ahead in ["y\r", "y", "yes\ryes\r"] {
            let mut tty = asked(term, ahead);
            tty.expect("(Discarded what was typed before the question.)");
            tty.expect("Approve? [y/N] ");
            tty.send("\r");
            tty.expect("=\"\"");
        }
        let mut tty = asked(term, "");
        tty.expect("Approve? [y/N] ");
        tty.send("y\r");
        tty.expect("=\"y\"");
        assert!(!tty.so_far().contains("Discarded"), "{}", tty.so_far());
    }
}

/// One flush used to let the rest of a long paste through: the driver takes 4 KiB at a time.
#[test]
fn twenty_kibibytes_of_yes_pasted_ahead_answer_nothing() {
    for term in ["xterm", "dumb"] {
        let mut tty = Tty::start("answer", term, 80);
        tty.expect("Command: x");
        let master = tty.master.try_clone().unwrap();
        let paste = thread::spawn(move || {
            let mut left = &b"y\r".repeat(10 * 1024)[..];
            while !left.is_empty() {
                left = &left[rustix::io::write(&master, left).unwrap()..];
            }
        });
        tty.expect("y");
        tty.go();
        tty.expect("Discarded what was typed");
        tty.expect("Approve? [y/N] ");
        paste.join().unwrap();
        tty.send("n\r");
        tty.expect("=\"n\"");
    }
}

#[test]
fn a_paste_is_never_an_answer() {
    for (term, paste) in [
        ("xterm", "\x1b[200~y\x1b[201~"),
        ("xterm", "\x1b[200~y\ry\r\x1b[201~"),
        // A marker in the pasted text ends the paste early, and must set nothing free.
        ("xterm", "\x1b[200~x\x1b[201~\ry\r\x1b[201~"),
        ("xterm", "y\x1b[200~\x1b[201~"),
        ("xterm", "y\ry\r"),
        ("xterm", "no\ry\r"),
        ("dumb", "y\ry\r"),
        ("dumb", "no\ry\r"),
    ] {
        let mut tty = asked(term, "");
        tty.expect("Approve? [y/N] ");
        tty.send(paste);
        tty.expect("(Discarded a paste or several lines at once; type the answer.)");
        tty.expect("Approve? [y/N] ");
        tty.send("yes\r");
        tty.expect("=\"yes\"");
        assert_eq!(
            tty.so_far().matches("Discarded").count(),
            1,
            "{}",
            tty.so_far()
        );
    }
}

#[test]
fn a_paste_without_an_end_is_no_answer() {
    let mut tty = asked("xterm", "");
    tty.expect("Approve? [y/N] ");
    tty.send("\x1b[200~y\r");
    tty.expect("=NeverQuiet");
    tty.expect_exit(0);
}

#[test]
fn input_that_never_gets_quiet_is_no_answer() {
    let mut tty = Tty::start("answer", "xterm", 80);
    tty.go();
    tty.expect("Command: x");
    let deadline = Instant::now() + PATIENCE;
    while !tty.so_far().contains("=NeverQuiet") {
        assert!(Instant::now() < deadline, "{}", tty.so_far());
        tty.send("y\r");
    }
}

#[test]
fn the_screen_to_be_approved_cannot_be_cleared() {
    let mut tty = asked("xterm", "");
    tty.expect("Approve? [y/N] ");
    tty.send("\x0cy\x1b[A");
    tty.expect_screen(&["Command: x", "Approve? [y/N] y"], (1, 16));
    tty.send("\x7f\x7fno\r");
    tty.expect("=\"no\"");
}

#[test]
fn the_key_is_not_shown() {
    for term in ["xterm", "dumb"] {
        let mut tty = Tty::start("hidden", term, 80);
        tty.expect("Key: ");
        tty.send("\x1c kéy\r");
        tty.expect("=Text(\"\\u{1c} kéy\")");
        tty.expect_exit(0);
        assert_eq!(tty.so_far().matches("kéy").count(), 1, "{}", tty.so_far());
        assert!(
            tty.so_far().starts_with("Key: \r\n=Text"),
            "{}",
            tty.so_far()
        );
    }
}

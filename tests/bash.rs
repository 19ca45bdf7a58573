//! The bounds of one Bash command, through the library: time, output, environment, descendants.
//!
//! Every case has a mark, a number that appears in the command lines of what it starts, and ends
//! by proving that nothing with that mark is alive. Cases that are about the process around the
//! command (its descriptors, its limits, its sudden end) run in a copy of this program, see
//! [`helper`].

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use mino::step::{Display, NotRun, Ran, Status};
use mino::sys::process;
use mino::sys::signal::{Signal, Stop};
use mino::tools::bash::{Bash, Bounds, Settings};
use mino::tools::{Outcome, Tool};
use tempfile::TempDir;

/// Long enough for a loaded machine; only a hang takes that long.
const PATIENCE: Duration = Duration::from_secs(20);

struct Case {
    folder: TempDir,
    mark: String,
    settings: Settings,
}

impl Case {
    fn new() -> Case {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let folder = tempfile::tempdir().unwrap();
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let settings = Settings {
            cwd: Ok(folder.path().to_owned()),
            path: None,
            home: "/nowhere".into(),
            shell: "/bin/bash".into(),
            stop: Stop::new().unwrap(),
            limits: Bounds::default(),
        };
        Case {
            // As the decimals of a number of seconds it is a valid argument of sleep.
            mark: format!("77{:07}{count:03}", std::process::id()),
            folder,
            settings,
        }
    }

    fn timed(millis: u64) -> Case {
        let mut case = Case::new();
        case.settings.limits.time = Duration::from_millis(millis);
        case
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs `command`, with MARK replaced.
    fn run(&self, command: &str) -> Seen {
        let command = command.replace("MARK", &self.mark);
        let begun = Instant::now();
        let arguments = serde_json::json!({ "command": command }).to_string();
        let action = Bash::new(self.settings.clone())
            .prepare(&arguments)
            .unwrap();
        let (display, outcome) = (action.display(), action.execute());
        let took = begun.elapsed();
        assert!(took < PATIENCE, "{command} took {took:?}");
        Seen {
            display,
            outcome,
            took,
        }
    }

    /// Runs it, and nothing of it may be left.
    fn run_whole(&self, command: &str) -> Seen {
        let seen = self.run(command);
        assert_eq!(living(&self.mark), [0_i32; 0], "{command}");
        assert_eq!(seen.outcome.notice, None, "{command}");
        seen
    }
}

struct Seen {
    display: Display,
    outcome: Outcome,
    took: Duration,
}

impl Seen {
    fn output(&self) -> &str {
        self.outcome.result.output()
    }

    #[track_caller]
    fn is(&self, status: Ran, code: Option<i32>) -> &Seen {
        let result = &self.outcome.result;
        assert_eq!(
            (result.status(), result.exit_code()),
            (Status::Ran(status), code),
            "{:.500}",
            result.output()
        );
        self
    }

    #[track_caller]
    fn says(&self, output: &str) -> &Seen {
        assert_eq!(self.output(), output);
        self
    }
}

/// Who lives with `mark` in the command line. Zombies have none.
fn living(mark: &str) -> Vec<i32> {
    let all = fs::read_dir("/proc").unwrap().flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(mark)
        })
        .collect()
}

#[track_caller]
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "never: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

fn kill(pid: i32) {
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

// --- what a command does and says -------------------------------------------------------------

#[test]
fn both_streams_come_in_their_true_order() {
    let seen = Case::new().run_whole("echo 1; echo 2 >&2; echo 3; echo 4 >&2; printf 5");
    seen.is(Ran::Completed, Some(0)).says("1\n2\n3\n4\n5");
    assert!(!seen.outcome.result.truncated());
}

#[test]
fn every_exit_is_told_as_it_was() {
    let case = Case::new();
    for (command, status, code, output) in [
        ("true", Ran::Completed, 0, ""),
        (":", Ran::Completed, 0, ""),
        ("exit 3", Ran::Failed, 3, ""),
        ("echo x; false", Ran::Failed, 1, "x\n"),
        ("exec sh -c 'echo y; exit 5'", Ran::Failed, 5, "y\n"),
        ("exec >&- 2>&-; exit 4", Ran::Failed, 4, ""),
        ("exec >&- 2>&- <&-; sleep 0.05", Ran::Completed, 0, ""),
        ("echo a; kill -9 $$", Ran::Failed, 137, "a\n"),
        ("kill -TERM $$", Ran::Failed, 143, ""),
        ("kill -9 0", Ran::Failed, 137, ""),
        ("kill -SEGV $$", Ran::Failed, 139, ""),
    ] {
        case.run_whole(command).is(status, Some(code)).says(output);
    }
}

#[test]
fn a_command_that_looks_like_an_option_is_a_command() {
    let case = Case::new();
    for command in ["-x", "--help", "+x", "-c ls", "-"] {
        let seen = case.run_whole(command);
        seen.is(Ran::Failed, Some(127));
        assert!(
            seen.output().contains("command not found"),
            "{}",
            seen.output()
        );
    }
}

#[test]
fn standard_input_is_empty() {
    let case = Case::new();
    case.run_whole("cat; read x; echo got:$x")
        .is(Ran::Completed, Some(0))
        .says("got:\n");
}

#[test]
fn a_long_command_arrives_whole() {
    let text = "é".repeat(8_000);
    let seen = Case::new().run_whole(&format!("printf %s '{text}' | wc -m; echo '\n'\"\\$x\""));
    seen.is(Ran::Completed, Some(0));
    assert!(seen.output().ends_with("\n\n$x\n"), "{}", seen.output());
}

// --- time -------------------------------------------------------------------------------------

/// Comparable programs threw the output of a command that ran out of time away.
#[test]
fn timed_out_command_keeps_its_output() {
    let seen = Case::timed(300).run_whole("echo one; echo two >&2; sleep 60.MARK");
    seen.is(Ran::TimedOut, None)
        .says("one\ntwo\n[ended after 0.3 s]");
    assert!(seen.took >= Duration::from_millis(300), "{:?}", seen.took);
    assert!(!seen.outcome.result.truncated());
    Case::timed(200)
        .run_whole("printf x; sleep 60.MARK")
        .says("x\n[ended after 0.2 s]");
    Case::timed(200)
        .run_whole("exec sleep 60.MARK")
        .says("[ended after 0.2 s]");
}

#[test]
fn nothing_outlives_the_time_limit() {
    for command in [
        "trap '' TERM; sleep 60.MARK; sleep 61.MARK",
        "trap '' TERM HUP INT; (sleep 60.MARK; sleep 61.MARK) & while :; do sleep 62.MARK; done",
        "sleep 60.MARK & sleep 61.MARK | sleep 62.MARK",
        "kill -STOP $$; : MARK",
        "sleep 60.MARK & kill -STOP $! $$",
        "trap '' TERM; sleep 60.MARK & kill -STOP $! $$; sleep 61.MARK",
        "while :; do echo x; sleep 0.01; done; : MARK",
        "exec >&- 2>&-; sleep 60.MARK",
        "set -m; sleep 60.MARK & sleep 61.MARK",
        "coproc sleep 60.MARK; wait",
        // Stopping the guard changes nothing.
        "kill -STOP $PPID; sleep 60.MARK",
    ] {
        let seen = Case::timed(200).run_whole(command);
        assert_eq!(
            seen.outcome.result.status(),
            Status::Ran(Ran::TimedOut),
            "{command}"
        );
        assert!(
            seen.output().ends_with("[ended after 0.2 s]"),
            "{}",
            seen.output()
        );
        assert_eq!(seen.outcome.result.exit_code(), None, "{command}");
    }
}

/// The leader was killed, its children kept the pipe, and the call never returned.
#[test]
fn children_that_hold_the_pipe_do_not_hold_the_call() {
    let command = "mkfifo p; (while :; do echo c; sleep 1.MARK; done) > p & cat p";
    let seen = Case::timed(300).run_whole(command);
    seen.is(Ran::TimedOut, None);
    assert!(seen.took < Duration::from_secs(5), "{:?}", seen.took);
}

#[test]
fn exit_code_of_a_shell_that_used_its_grace_is_kept() {
    let command = "trap 'echo bye; exit 7' TERM; echo hi; while :; do :; done; : MARK";
    let seen = Case::timed(200).run_whole(command);
    seen.is(Ran::TimedOut, Some(7))
        .says("hi\nbye\n[ended after 0.2 s]");
}

// --- output -----------------------------------------------------------------------------------

#[test]
fn full_capture_passes_and_one_byte_more_does_not() {
    let case = Case::new();
    let exact = case.run_whole("head -c 65536 /dev/zero | tr '\\0' x");
    exact.is(Ran::Completed, Some(0)).says(&"x".repeat(65_536));
    assert!(!exact.outcome.result.truncated());

    let over = case.run_whole("head -c 65537 /dev/zero | tr '\\0' x");
    let words = "\n[output limit of 65536 bytes reached; the command was ended]";
    assert_eq!(over.outcome.result.status(), Status::Ran(Ran::OutputLimit));
    assert_eq!(over.output(), "x".repeat(65_536) + words);
    assert!(over.outcome.result.truncated());
}

#[test]
fn a_flood_ends_at_once() {
    for command in [
        "yes MARK",
        "yes MARK > /dev/stdout & sleep 60.MARK; echo fg",
        "yes MARK | head -c 3000000000",
        "(trap '' PIPE; yes MARK) & yes MARK >&2",
        "cat /dev/zero; : MARK",
    ] {
        let seen = Case::new().run_whole(command);
        seen.is(Ran::OutputLimit, None);
        assert!(seen.outcome.result.truncated(), "{command}");
        assert!(
            seen.took < Duration::from_secs(5),
            "{command}: {:?}",
            seen.took
        );
    }
}

/// The shell is done with code 0, but what it left behind answers SIGTERM with a flood.
#[test]
fn a_flood_after_the_shell_ended_is_a_flood() {
    let command = "(trap 'yes MARK' TERM; : > ready; while :; do sleep 0.01; done) &
                   while [ ! -e ready ]; do sleep 0.01; done";
    let seen = Case::new().run_whole(command);
    seen.is(Ran::OutputLimit, Some(0));
    assert!(seen.outcome.result.truncated());
}

#[test]
fn no_character_is_torn_at_the_cap() {
    let case = Case::new();
    for shift in 0..4 {
        let command =
            format!("head -c {shift} /dev/zero | tr '\\0' a; yes 😀 | tr -d '\\n' | head -c 70000");
        let seen = case.run_whole(&command);
        seen.is(Ran::OutputLimit, seen.outcome.result.exit_code());
        assert!(seen.outcome.result.truncated());
        let captured = seen.output().split("\n[output limit").next().unwrap();
        assert!(!captured.contains('\u{fffd}'), "shift {shift}");
        assert!(
            captured.len() <= 65_536 && captured.len() > 65_532,
            "shift {shift}"
        );
    }
}

#[test]
fn what_is_not_text_is_replaced_and_slow_characters_arrive_whole() {
    let case = Case::new();
    case.run_whole(r"printf '\xc4\xe3\xba\xc3\n'")
        .says("\u{fffd}\u{fffd}\u{fffd}\n");
    case.run_whole(r"printf 'a\0b'").says("a\u{fffd}b");
    case.run_whole(r#"for c in e4 b8 ad; do printf "\x$c"; sleep .1; done"#)
        .says("中");
    case.run_whole(r"printf '\xe4\xb8'").says("\u{fffd}");
}

// --- who is left ------------------------------------------------------------------------------

#[test]
fn what_stays_in_the_group_is_ended_with_the_shell() {
    for command in [
        "sleep 60.MARK & echo done",
        "(sleep 60.MARK &) ; echo done",
        "nohup sleep 60.MARK >/dev/null 2>&1 & echo done",
        "sleep 60.MARK >/dev/null 2>&1 & disown; echo done",
        "sleep 60.MARK & kill -STOP $!; echo done",
        "(trap '' TERM; : > ready; sleep 60.MARK) & while [ ! -e ready ]; do sleep 0.01; done; echo done",
    ] {
        let seen = Case::new().run_whole(command);
        seen.is(Ran::Completed, Some(0)).says("done\n");
        assert!(
            seen.took < Duration::from_secs(5),
            "{command}: {:?}",
            seen.took
        );
    }
}

/// In a session of its own by the time the shell goes on, and called `sleep` by then.
const ESCAPE: &str =
    "setsid sleep 60.MARK >/dev/null 2>&1 & until grep -q sleep /proc/$!/comm; do :; done; ";

#[test]
fn who_left_the_group_is_named_and_left_alone() {
    let case = Case::timed(5_000);
    let seen = case.run(&format!("{ESCAPE} echo $!"));
    seen.is(Ran::Completed, Some(0));
    let pid: i32 = seen.output().trim().parse().unwrap();
    let notice = format!("Still running outside the process group: {pid} (sleep)");
    assert_eq!(seen.outcome.notice, Some(notice));

    // Neither a later command's exit nor its time limit is any of its business.
    let later = Case::timed(200);
    later.run_whole("true");
    later.run_whole("sleep 60.MARK").is(Ran::TimedOut, None);
    later
        .run_whole(&format!("{ESCAPE} sleep 61.MARK"))
        .is(Ran::TimedOut, None);
    assert_eq!(living(&case.mark), [pid]);

    kill(pid);
    until("the survivor is reaped", || {
        !Path::new(&format!("/proc/{pid}")).exists()
    });
}

#[test]
fn a_survivor_on_the_pipe_is_waited_for_no_longer_than_the_grace() {
    let case = Case::new();
    let seen =
        case.run("setsid sleep 60.MARK & until grep -q sleep /proc/$!/comm; do :; done; echo $!");
    seen.is(Ran::Completed, Some(0));
    assert!(seen.took >= case.settings.limits.grace, "{:?}", seen.took);
    assert!(seen.took < Duration::from_secs(5), "{:?}", seen.took);
    kill(seen.output().trim().parse().unwrap());
    until("the survivor is gone", || living(&case.mark).is_empty());
}

#[test]
fn many_survivors_are_counted_and_not_all_named() {
    let case = Case::new();
    let seen = case.run(&format!("for i in {{1..10}}; do {ESCAPE} done"));
    let notice = seen.outcome.notice.clone().unwrap();
    assert!(notice.ends_with(" and 2 more"), "{notice}");
    assert_eq!(notice.matches("(sleep)").count(), 8, "{notice}");
    living(&case.mark).into_iter().for_each(kill);
    until("the survivors are gone", || living(&case.mark).is_empty());
}

#[test]
fn who_left_the_group_is_ended_with_a_command_that_is_cut_short() {
    let trap = "setsid bash -c 'trap \"\" TERM; : > ready; while :; do sleep 60.MARK; done' & while [ ! -e ready ]; do sleep 0.01; done; ";
    for start in [ESCAPE, trap] {
        let command = format!("{start} sleep 61.MARK");
        Case::timed(400).run_whole(&command).is(Ran::TimedOut, None);
        Case::new()
            .run_whole(&format!("{start} yes"))
            .is(Ran::OutputLimit, None);
        let case = Case::new();
        cancel_when_ready(&case, &format!("{start} : > go; sleep 61.MARK"))
            .is(Ran::Cancelled, None);
    }
}

/// Each generation starts the next in a new session and exits: whoever looks twice sees others, and
/// whoever looks once may see only the dead.
#[test]
fn runaway_generations_are_caught() {
    let mut case = Case::timed(60);
    case.settings.limits.grace = Duration::from_millis(20);
    fs::write(case.file("run"), "setsid bash run $1 & sleep 0.005\n").unwrap();
    for _ in 0..20 {
        case.run_whole("bash run MARK & sleep 60.MARK")
            .is(Ran::TimedOut, None);
    }
    fs::write(
        case.file("tree"),
        "[ $2 = 0 ] || for i in 1 2; do setsid bash tree $1 $(($2 - 1)) & done; sleep 60.$1\n",
    )
    .unwrap();
    case.run_whole("bash tree MARK 5; sleep 60.MARK")
        .is(Ran::TimedOut, None);
}

/// A program that waits until it has no children left hung on a guard that was one of them.
#[test]
fn the_command_has_no_children_but_its_own() {
    let seen = Case::new().run_whole("exec perl -e '1 while wait() != -1; print qq(none\n)'");
    seen.is(Ran::Completed, Some(0)).says("none\n");
}

#[test]
fn a_command_that_kills_its_guard_ends_and_claims_nothing() {
    let seen = Case::new().run_whole("echo a; kill -9 $PPID; sleep 60.MARK | sleep 61.MARK");
    seen.is(Ran::Failed, None);
    assert!(
        seen.output()
            .starts_with("a\n[its guard process was killed"),
        "{}",
        seen.output()
    );
}

// --- cancelling -------------------------------------------------------------------------------

/// Cancels once the file `go` exists.
fn cancel_when_ready(case: &Case, command: &str) -> Seen {
    thread::scope(|scope| {
        scope.spawn(|| {
            until("the command runs", || case.file("go").exists());
            case.settings.stop.request(Signal::Interrupt);
        });
        case.run_whole(command)
    })
}

#[test]
fn cancelled_command_is_gone_within_a_second_and_keeps_its_output() {
    let case = Case::new();
    let command = "trap '' TERM; echo before; : > go; sleep 60.MARK & sleep 61.MARK";
    let seen = cancel_when_ready(&case, command);
    seen.is(Ran::Cancelled, None)
        .says("before\n[cancelled; the command was ended]");
    assert!(seen.took < Duration::from_secs(3), "{:?}", seen.took);
}

#[test]
fn nothing_is_started_after_the_signal() {
    let case = Case::new();
    case.settings.stop.request(Signal::Hangup);
    let seen = case.run_whole(": > started");
    seen.is(Ran::Cancelled, None)
        .says("[cancelled before the command was started]");
    assert!(!case.file("started").exists());
}

// --- what can't be started --------------------------------------------------------------------

#[test]
fn without_bin_bash_the_first_on_the_path_is_shown_and_runs() {
    let mut case = Case::new();
    case.settings.shell = "/nowhere/bash".into();
    let folder = case.file("bin");
    fs::create_dir(&folder).unwrap();
    symlink(fs::canonicalize("/bin/bash").unwrap(), folder.join("bash")).unwrap();
    symlink("/bin/false", case.file("bash")).unwrap();
    case.settings.path = Some(format!(".::/nowhere:{}", folder.display()).into());
    let seen = case.run_whole("echo $0");
    let shell = folder.join("bash").into_os_string();
    seen.is(Ran::Completed, Some(0))
        .says(&format!("{}\n", shell.display()));
    assert_eq!(seen.display.shell, Some(shell));

    case.settings.path = Some("/nowhere:.".into());
    let seen = case.run_whole("true");
    let words = "bash not found in PATH \"/nowhere:.\", and /bin/bash can't be executed";
    seen.is(Ran::Failed, None).says(words);
    assert_eq!(seen.display.shell, None);
}

#[test]
fn a_start_that_fails_says_what_failed() {
    let mut case = Case::new();
    let gone = case.file("gone");
    case.settings.cwd = Ok(gone.clone());
    let words = format!(
        "cannot enter the working directory \"{}\": No such file or directory (os error 2)",
        gone.display()
    );
    case.run_whole("true").is(Ran::Failed, None).says(&words);

    let file = case.file("junk");
    fs::write(&file, "\x7fjunk").unwrap();
    case.settings.cwd = Ok(file.clone());
    assert!(
        case.run_whole("true")
            .is(Ran::Failed, None)
            .output()
            .contains("Not a directory")
    );

    case.settings.cwd = Err("it was deleted".into());
    let seen = case.run_whole("true");
    assert_eq!(seen.display.cwd, None);
    let words = "cannot run a command: the working directory is not known: it was deleted";
    seen.is(Ran::Failed, None).says(words);

    case.settings.cwd = Ok("/".into());
    fs::set_permissions(&file, fs::Permissions::from_mode(0o700)).unwrap();
    case.settings.shell = file.clone();
    let words = format!(
        "cannot execute \"{}\": Exec format error (os error 8)",
        file.display()
    );
    case.run_whole("true").is(Ran::Failed, None).says(&words);

    case.settings.path = Some("a\0b".into());
    let seen = case.run_whole("true");
    assert!(
        seen.is(Ran::Failed, None)
            .output()
            .starts_with("cannot run a command:")
    );
}

#[test]
fn what_is_shown_is_what_is_used() {
    let mut case = Case::new();
    case.settings.path = Some("/usr/bin:/bin".into());
    let display = case.run_whole("true").display;
    assert_eq!(display.command, "true");
    assert_eq!(display.cwd, Some(case.folder.path().into()));
    assert_eq!(
        display.environment,
        ["PATH=/usr/bin:/bin", "HOME=/nowhere", "LANG=C.UTF-8"]
    );
    assert_eq!(
        display.limits,
        "30 s timeout; 65536 bytes of combined output"
    );
    assert_eq!((display.shell, display.seconds), (None, Some(30)));
    let refused = Bash::new(case.settings.clone())
        .prepare("[\"true\"]")
        .err()
        .unwrap();
    assert!(refused.contains("expected an object"), "{refused}");
    assert_ne!(Status::NotRun(NotRun::Denied), Status::Ran(Ran::Failed));
}

// --- the process around the command -----------------------------------------------------------

/// This program again, with one command to run. What it saw is written to `result`.
struct Helper {
    case: Case,
    command: Command,
}

impl Helper {
    /// `wrapper` is what a shell does before it becomes the helper.
    fn new(case: Case, wrapper: &str, command: &str) -> Helper {
        let program = case.file("helper");
        // By another process: a file that is open for writing here, or in a fork that another test
        // makes meanwhile, can't be executed.
        let copied = Command::new("cp")
            .arg(std::env::current_exe().unwrap())
            .arg(&program)
            .status();
        assert!(copied.unwrap().success());
        fs::set_permissions(case.folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let mut process = Command::new("/bin/bash");
        process
            .arg("-c")
            .arg(format!(
                "{wrapper}\nexec \"$0\" --exact helper --test-threads=1"
            ))
            .arg(program)
            .current_dir(case.folder.path())
            .env("HELPER_COMMAND", command.replace("MARK", &case.mark))
            .env(
                "HELPER_MILLIS",
                case.settings.limits.time.as_millis().to_string(),
            )
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        Helper {
            case,
            command: process,
        }
    }

    fn start(&mut self) -> Child {
        self.command.spawn().unwrap()
    }

    /// Status, exit code, notice, output.
    fn run(&mut self) -> serde_json::Value {
        assert!(self.start().wait().unwrap().success());
        assert_eq!(living(&self.case.mark), [0_i32; 0]);
        self.result()
    }

    fn result(&self) -> serde_json::Value {
        serde_json::from_slice(&fs::read(self.case.file("result")).unwrap()).unwrap()
    }
}

/// Not a test: what runs in the copy.
#[test]
fn helper() {
    let Ok(command) = std::env::var("HELPER_COMMAND") else {
        return;
    };
    if std::env::var_os("HELPER_PREPARE").is_some() {
        process::prepare_process().unwrap();
        process::overwrite_env_value("HELPER_KEY");
        process::configure_name_service();
    }
    let mut case = Case::timed(std::env::var("HELPER_MILLIS").unwrap().parse().unwrap());
    let cwd = std::env::var_os("HELPER_CWD").map(PathBuf::from);
    case.settings.cwd = Ok(cwd.unwrap_or_else(|| std::env::current_dir().unwrap()));
    let times: u32 = std::env::var("HELPER_TIMES").map_or(1, |times| times.parse().unwrap());
    // A stand-in for the journal.
    let _journal = fs::File::create("journal").unwrap();
    let mut seen = case.run(&command);
    for _ in 1..times {
        seen = case.run(&command);
    }
    let children = children_of_this();
    until("the guards of survivors are reaped", || {
        process::reap_strays();
        children_of_this() == 0
    });
    let result = &seen.outcome.result;
    let summary = serde_json::json!({
        "status": result.status().name(),
        "code": result.exit_code(),
        "notice": seen.outcome.notice,
        "output": result.output(),
        "children": children,
    });
    fs::write("result", summary.to_string()).unwrap();
}

/// Ctrl+Z stops Mino, and the command, in a session of its own, runs on: its time must not.
#[test]
fn stopped_mino_does_not_stop_the_clock() {
    let mut helper = Helper::new(Case::timed(300), "", "touch begun; : MARK; sleep 300");
    let mut child = helper.start();
    let begun = helper.case.file("begun");
    until("the command's begin", || begun.exists());
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    until("the end of the command", || {
        living(&helper.case.mark).is_empty()
    });
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    assert!(child.wait().unwrap().success());
    let result = helper.result();
    assert_eq!(result["status"], "timed_out", "{result}");
    assert!(
        result["output"]
            .as_str()
            .unwrap()
            .contains("ended after 0.3 s"),
        "{result}"
    );
}

fn children_of_this() -> usize {
    let parent = format!("PPid:\t{}\n", std::process::id());
    let all = fs::read_dir("/proc").unwrap().flatten();
    all.filter(|entry| {
        fs::read_to_string(entry.path().join("status")).is_ok_and(|s| s.contains(&parent))
    })
    .count()
}

#[test]
fn environment_is_exactly_three_variables() {
    let wrapper = "export BASH_ENV=$PWD/evil LD_PRELOAD=/nowhere.so SHELLOPTS SECRET=s
                   echo 'echo evil' > evil; f() { echo evil; }; export -f f; set -o noglob; unset LD_PRELOAD";
    let command = "tr '\\0' '\\n' < /proc/$$/environ; f; echo $-";
    let result = Helper::new(Case::timed(9_000), wrapper, command).run();
    let output = result["output"].as_str().unwrap();
    let expected = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\nHOME=/nowhere\nLANG=C.UTF-8\n";
    let rest = output
        .strip_prefix(expected)
        .unwrap_or_else(|| panic!("{output}"));
    assert!(
        rest.contains("f: command not found") && !rest.contains("evil"),
        "{rest}"
    );
    assert!(
        !rest.lines().last().unwrap().contains('f'),
        "noglob passed: {rest}"
    );
}

/// Mino was started with more descriptors than it knows of, and has files of its own open. The
/// guard must not keep the journal, whose lock would live on in it.
#[test]
fn command_has_three_descriptors_and_its_guard_one_more() {
    let wrapper = "exec 7</dev/null 9</dev/null 200</dev/null";
    // Without a pipeline, for which bash would open more.
    let command = "ls /proc/$$/fd; ls /proc/$PPID/fd; \
                   readlink /proc/$$/fd/0; readlink /proc/$PPID/fd/{0,1,2}; \
                   [ /proc/$$/fd/1 -ef /proc/$$/fd/2 ] && echo one pipe";
    let result = Helper::new(Case::timed(9_000), wrapper, command).run();
    let null = "/dev/null\n".repeat(4);
    assert_eq!(
        result["output"],
        format!("0\n1\n2\n0\n1\n2\n3\n{null}one pipe\n")
    );
}

#[test]
fn signals_are_as_new_and_the_umask_is_kept() {
    let wrapper = "trap '' INT HUP QUIT PIPE CHLD USR1; umask 027";
    let command = "umask; exec awk '/^Sig(Blk|Ign|Cgt)/' /proc/self/status";
    let result = Helper::new(Case::timed(9_000), wrapper, command).run();
    let none = "0000000000000000";
    assert_eq!(
        result["output"],
        format!("0027\nSigBlk:\t{none}\nSigIgn:\t{none}\nSigCgt:\t{none}\n")
    );
    assert_eq!(result["code"], 0);
}

#[test]
fn a_shell_leads_a_session_without_terminal() {
    let command = "read -r pid name state parent group session tty rest < /proc/$$/stat
                   [ $$ = $pid ] && [ $pid = $group ] && [ $pid = $session ] && echo $tty; : < /dev/tty";
    let seen = Case::new().run_whole(command);
    assert!(seen.output().starts_with("0\n"), "{}", seen.output());
    assert!(
        seen.output()
            .contains("/dev/tty: No such device or address"),
        "{}",
        seen.output()
    );
}

#[test]
fn a_long_chat_leaves_no_zombies() {
    let orphans = "sleep 60.MARK & (sleep 61.MARK &); true | true";
    // Perhaps still alive when the shell ends; the helper waits until all its guards are reaped.
    let escaped = "(setsid true &); (setsid sleep 0.1 &)";
    for command in [orphans, escaped] {
        let mut helper = Helper::new(Case::timed(9_000), "", command);
        helper.command.env("HELPER_TIMES", "40");
        let result = helper.run();
        assert_eq!(result["status"], "completed");
        assert!(command == escaped || result["children"] == 0, "{result}");
    }
}

#[test]
fn guard_of_a_survivor_is_reaped_after_it() {
    let command =
        "setsid sleep 1.MARK >/dev/null 2>&1 & until grep -q sleep /proc/$!/comm; do :; done";
    let case = Case::new();
    let seen = case.run(command);
    assert!(seen.outcome.notice.is_some());
    let guards = || -> Vec<PathBuf> {
        let mine = format!("PPid:\t{}\n", std::process::id());
        living(&case.mark)
            .iter()
            .map(|pid| fs::read_to_string(format!("/proc/{pid}/status")).unwrap())
            .map(|status| {
                status
                    .split("PPid:\t")
                    .nth(1)
                    .unwrap()
                    .lines()
                    .next()
                    .unwrap()
                    .to_owned()
            })
            .map(|guard| PathBuf::from(format!("/proc/{guard}")))
            .filter(|guard| {
                fs::read_to_string(guard.join("status")).is_ok_and(|s| s.contains(&mine))
            })
            .collect()
    };
    let [guard] = guards().try_into().unwrap();
    until("the guard is reaped", || {
        process::reap_strays();
        !guard.exists()
    });
    assert_eq!(living(&case.mark), [0_i32; 0]);
}

/// A parent-death signal reaches the shell alone; pipelines and what follows a `;` lived on.
#[test]
fn group_dies_with_mino_however_it_dies() {
    for whole_group in [false, true] {
        let command = "trap '' HUP TERM; sleep 60.MARK | sleep 61.MARK & sleep 62.MARK; echo";
        let mut helper = Helper::new(Case::timed(60_000), "", command);
        helper.command.process_group(0);
        let mut child = helper.start();
        until("all of it runs", || {
            living(&format!("2.{}", helper.case.mark)).len() == 2
        });
        let pid = i32::try_from(child.id()).unwrap();
        if whole_group {
            let group = rustix::process::Pid::from_raw(pid).unwrap();
            rustix::process::kill_process_group(group, rustix::process::Signal::KILL).unwrap();
        } else {
            kill(pid);
        }
        child.wait().unwrap();
        until("the group is gone", || living(&helper.case.mark).is_empty());
        assert!(!helper.case.file("result").exists());
    }
}

/// Needs another account, so it can only run as root; otherwise it proves nothing.
fn as_ordinary_user(helper: &mut Helper, user: u32) -> bool {
    let root = rustix::process::geteuid().is_root();
    if root {
        helper.command.uid(user).gid(user);
    }
    root
}

#[test]
fn the_key_is_not_in_proc_for_a_command() {
    let command = "cat /proc/$PPID/environ; cat /proc/$PPID/mem; tr '\\0' '\\n' < /proc/$PPID/cmdline; \
                   p=$(awk '/^PPid/ {print $2}' /proc/$PPID/status); cat /proc/$p/environ; ls /proc/$p/fd";
    // Root reads everything, and yet finds the value overwritten in the environment.
    let mut helper = Helper::new(Case::timed(9_000), "", command);
    helper
        .command
        .env("HELPER_PREPARE", "1")
        .env("HELPER_KEY", "sk-s3cret");
    let result = helper.run();
    let output = result["output"].as_str().unwrap();
    assert!(
        !output.contains("s3cret") && output.contains("exact"),
        "{output}"
    );

    let mut helper = Helper::new(Case::timed(9_000), "", command);
    helper
        .command
        .env("HELPER_PREPARE", "1")
        .env("HELPER_KEY", "sk-s3cret");
    if as_ordinary_user(&mut helper, 54_321) {
        let result = helper.run();
        let output = result["output"].as_str().unwrap();
        assert!(output.matches("Permission denied").count() >= 4, "{output}");
        assert!(
            !output.contains("s3cret") && !output.contains("HELPER"),
            "{output}"
        );
    }
}

#[test]
fn no_process_to_be_had_is_a_result() {
    // One or two threads of the helper, then the guard, then the shell.
    for limit in 1..=4 {
        let wrapper = format!("ulimit -u {limit}");
        let mut helper = Helper::new(Case::timed(1_000), &wrapper, ": MARK");
        if !as_ordinary_user(&mut helper, 100_000 + std::process::id()) {
            return;
        }
        let result = helper.run();
        let words = "cannot start a process: Resource temporarily unavailable (os error 11)";
        if limit < 4 {
            assert_eq!(
                (&result["status"], &result["output"]),
                (&"failed".into(), &words.into())
            );
        } else {
            assert_eq!(result["status"], "completed");
        }
        assert_eq!(result["children"], 0);
    }
}

#[test]
fn unreadable_folder_is_a_result() {
    let case = Case::timed(9_000);
    let closed = case.file("closed");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o000)).unwrap();
    let mut helper = Helper::new(case, "", "true");
    helper.command.env("HELPER_CWD", &closed);
    if as_ordinary_user(&mut helper, 54_323) {
        let result = helper.run();
        let words = format!(
            "cannot enter the working directory \"{}\": Permission denied (os error 13)",
            closed.display()
        );
        assert_eq!(
            (&result["status"], &result["output"]),
            (&"failed".into(), &words.into())
        );
    }
}

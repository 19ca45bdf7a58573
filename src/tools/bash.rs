//! The `bash` tool: one command, bounded in time, output, environment and descendants.
//!
//! Owns: what a valid call is, the exact environment, and the loop that watches a command. How a
//! command ends:
//!
//! | cause | its group | who left the group | status |
//! | --- | --- | --- | --- |
//! | the shell exits | SIGTERM, SIGKILL after the grace | left alone and named | `completed`, `failed` |
//! | time is up | the same | killed | `timed_out` |
//! | one byte too many | the same | killed | `output_limit` |
//! | a signal to Mino | the same | killed | `cancelled` |
//!
//! Promises: `execute` returns within the time limit, the grace and the reaping time, whatever the
//! command does; nobody of the group is left by then but for what the kernel itself can't end, and
//! that is said; the result claims nothing that was not seen. Leans on [`crate::sys::process`] for
//! everything that is a system call. Gives up: this is no sandbox; an approved command can do what
//! the account can.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};

use super::{Action, Outcome, Tool};
use crate::limits;
use crate::step::{Definition, Display, Ran, ToolResult};
use crate::sys::process::{Exit, Process, Program, Running, StartError, Step};
use crate::sys::signal::Stop;
use crate::text;

/// The shell that a person expects, and that is named only where it is another.
pub const SHELL: &str = "/bin/bash";
/// The PATH of a command where the configuration names none.
pub const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const LANG: &str = "C.UTF-8";

/// What the model is told of the tool and its limits.
const DESCRIPTION: &str = "Runs one Bash command in the user's working directory, after the user has approved it. \
    Every call is a fresh non-interactive shell: no terminal, empty standard input, and a short environment. \
    Standard output and error come back together. The command is ended after 30 seconds or 65536 bytes of \
    output, and what it leaves running in the background is ended with it.";
const PARAMETERS: &str = r#"{"type":"object","properties":{"command":{"type":"string","description":"The command line for bash -c"}},"required":["command"],"additionalProperties":false}"#;

/// How far a command may go. The default is the program's; shorter ones are for tests.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// From the fork to the end of the command.
    pub time: Duration,
    /// Captured output.
    pub output_bytes: usize,
    /// Between SIGTERM and SIGKILL.
    pub grace: Duration,
    /// After SIGKILL, for everything to be gone.
    pub reap: Duration,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds {
            time: Duration::from_secs(limits::COMMAND_SECONDS),
            output_bytes: limits::OUTPUT_BYTES,
            grace: Duration::from_millis(limits::GRACE_MILLIS),
            reap: Duration::from_millis(limits::REAP_MILLIS),
        }
    }
}

/// Everything that is the same for all commands of a run.
#[derive(Clone)]
pub struct Settings {
    /// Where Mino was started, resolved once; or why that is not known, which each call will say.
    pub cwd: Result<PathBuf, String>,
    /// Replaces [`DEFAULT_PATH`].
    pub path: Option<OsString>,
    pub home: OsString,
    /// [`SHELL`], except in tests. Where it can't be executed, the first `bash` on the PATH is used.
    pub shell: PathBuf,
    /// Ends a running command.
    pub stop: Stop,
    pub limits: Bounds,
}

impl Settings {
    fn path(&self) -> &OsStr {
        self.path.as_deref().unwrap_or(OsStr::new(DEFAULT_PATH))
    }

    /// The whole environment of a command, as it is shown and as it is used.
    fn environment(&self) -> Vec<OsString> {
        [("PATH=", self.path()), ("HOME=", &self.home), ("LANG=", OsStr::new(LANG))]
            .into_iter()
            .map(|(name, value)| {
                let mut pair = OsString::from(name);
                pair.push(value);
                pair
            })
            .collect()
    }

    /// Relative entries of the PATH are passed over: they would name a shell that the working
    /// directory's owner chose.
    fn find_shell(&self) -> Option<PathBuf> {
        let on_path = std::env::split_paths(self.path())
            .filter(|folder| folder.is_absolute())
            .map(|folder| folder.join("bash"));
        [self.shell.clone()].into_iter().chain(on_path).find(|shell| is_executable(shell))
    }
}

fn is_executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

/// The tool.
pub struct Bash {
    settings: Arc<Settings>,
}

impl Bash {
    pub fn new(settings: Settings) -> Bash {
        Bash { settings: Arc::new(settings) }
    }
}

impl Tool for Bash {
    fn definition(&self) -> Definition {
        Definition { name: "bash", description: DESCRIPTION, parameters: PARAMETERS }
    }

    fn prepare(&self, arguments: &str) -> Result<Box<dyn Action>, String> {
        Ok(Box::new(Command {
            command: parse_arguments(arguments)?,
            shell: self.settings.find_shell(),
            settings: Arc::clone(&self.settings),
        }))
    }
}

// --- the arguments ----------------------------------------------------------------------------

/// A derived struct would take an array for an object; hence the visitor by hand.
struct Arguments {
    command: String,
}

impl<'de> Deserialize<'de> for Arguments {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Arguments;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Arguments, A::Error> {
                let mut command = None;
                while let Some(name) = map.next_key::<String>()? {
                    if name != "command" {
                        return Err(A::Error::custom("unknown field"));
                    }
                    if command.replace(map.next_value()?).is_some() {
                        return Err(A::Error::duplicate_field("command"));
                    }
                }
                let command = command.ok_or_else(|| A::Error::missing_field("command"))?;
                Ok(Arguments { command })
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

fn parse_arguments(arguments: &str) -> Result<String, String> {
    let Arguments { command } = serde_json::from_str(arguments).map_err(|error| {
        // The parser repeats what it found in place of an object, however long that is.
        let error = text::one_line(&error.to_string(), limits::ERROR_TEXT_CHARS);
        format!("the arguments are not {{\"command\": string}}: {error}")
    })?;
    if command.trim().is_empty() {
        return Err("the command is empty".into());
    }
    if command.contains('\0') {
        return Err("the command holds a NUL character".into());
    }
    if command.len() > limits::COMMAND_BYTES {
        let most = limits::COMMAND_BYTES;
        return Err(format!("the command is longer than {most} bytes"));
    }
    Ok(command)
}

// --- one command ------------------------------------------------------------------------------

struct Command {
    command: String,
    shell: Option<PathBuf>,
    settings: Arc<Settings>,
}

impl Action for Command {
    fn display(&self) -> Display {
        let Bounds { time, output_bytes, .. } = self.settings.limits;
        let unusual = self.shell.as_ref().filter(|shell| shell.as_os_str() != SHELL);
        Display {
            tool: "bash".into(),
            command: self.command.clone(),
            shell: unusual.map(|shell| shell.clone().into()),
            cwd: self.settings.cwd.clone().ok().map(Into::into),
            environment: self.settings.environment(),
            limits: format!("{} s timeout; {output_bytes} bytes of combined output", time.as_secs_f64()),
            seconds: Some(time.as_secs()),
        }
    }

    fn execute(self: Box<Self>) -> Outcome {
        match self.run() {
            Ok(outcome) => outcome,
            Err(why) => ToolResult::ran(Ran::Failed, why, None, false).into(),
        }
    }
}

impl Command {
    /// The error says why nothing was run.
    fn run(&self) -> Result<Outcome, String> {
        let Settings { stop, limits, .. } = &*self.settings;
        if stop.stopped() {
            let why = "[cancelled before the command was started]";
            return Ok(ToolResult::ran(Ran::Cancelled, why, None, false).into());
        }
        let program = self.program()?;
        let deadline = Instant::now() + limits.time;
        let backstop = limits.time + Duration::from_millis(limits::OVERDUE_MILLIS);
        let job = Running::start(&program, backstop).map_err(|error| self.explain(&error))?;
        let mut watch = Watch { job, capture: Capture::new(limits.output_bytes), stop, limits };
        let ending = watch.follow(deadline);
        let reaped = watch.end_group(&ending);
        if let Some(error) = watch.job.failure() {
            let why = self.explain(error);
            watch.job.release(reaped);
            return Err(why);
        }
        Ok(watch.conclude(ending, reaped))
    }

    fn program(&self) -> Result<Program, String> {
        let cwd =
            self.settings.cwd.as_ref().map_err(|error| {
                format!("cannot run a command: the working directory is not known: {error}")
            })?;
        let shell = self.shell.as_ref().ok_or_else(|| {
            let path = text::quote_os(self.settings.path());
            format!("bash not found in PATH {path}, and {SHELL} can't be executed")
        })?;
        let line = ["--noprofile", "--norc", "-c", "--", &self.command].map(OsStr::new);
        let arguments = [&[shell.as_os_str()], line.as_slice()].concat();
        Program::new(shell, &arguments, &self.settings.environment(), cwd)
            .map_err(|error| format!("cannot run a command: {error}"))
    }

    fn explain(&self, StartError { step, error }: &StartError) -> String {
        let quoted = |path: Option<&PathBuf>| path.map(|p| text::quote_os(p.as_os_str())).unwrap_or_default();
        match step {
            Step::Process => format!("cannot start a process: {error}"),
            Step::Directory => {
                let cwd = quoted(self.settings.cwd.as_ref().ok());
                format!("cannot enter the working directory {cwd}: {error}")
            }
            Step::Execute => format!("cannot execute {}: {error}", quoted(self.shell.as_ref())),
        }
    }
}

/// What made us stop following a command.
enum Ending {
    /// The shell has ended.
    Itself,
    TimedOut,
    OutputLimit,
    Cancelled,
    /// Watching it failed, so that it had to be ended.
    Unwatched(std::io::Error),
}

/// A command while it runs.
struct Watch<'a> {
    job: Running,
    capture: Capture,
    stop: &'a Stop,
    limits: &'a Bounds,
}

impl Watch<'_> {
    /// Waits for output, a report or (with `stop`) a signal, at most to `until`, and takes it in.
    fn pump(&mut self, stop: bool, until: Instant) -> std::io::Result<()> {
        let stop = stop.then(|| self.stop.stop_fd());
        let ready = self.job.wait(self.capture.is_open(), stop, until)?;
        if ready.output {
            self.capture.fill(&mut self.job);
        }
        if ready.report {
            self.job.take_report();
        }
        Ok(())
    }

    /// The command's normal life. Once one of the endings is seen, the first in this order counts.
    fn follow(&mut self, deadline: Instant) -> Ending {
        loop {
            if let Err(error) = self.pump(true, deadline) {
                return Ending::Unwatched(error);
            }
            if self.capture.is_full {
                return Ending::OutputLimit;
            }
            match self.job.exit() {
                Some(Exit::Overdue) => return Ending::TimedOut,
                Some(_) => return Ending::Itself,
                None => {}
            }
            if self.stop.stopped() {
                return Ending::Cancelled;
            }
            if Instant::now() >= deadline {
                return Ending::TimedOut;
            }
        }
    }

    /// Ends the group, politely first, reading on so that last words are kept and nobody blocks on
    /// a full pipe. Answers until when the rest may take.
    fn end_group(&mut self, ending: &Ending) -> Instant {
        let tick = Duration::from_millis(limits::GROUP_TICK_MILLIS);
        let grace = Instant::now() + self.limits.grace;
        self.job.terminate_group();
        while !self.is_over(ending) && Instant::now() < grace {
            if self.pump(false, grace.min(Instant::now() + tick)).is_err() {
                break;
            }
        }
        self.job.kill_group();
        let reaped = Instant::now() + self.limits.reap;
        // Who left the group gets the other half, even where the shell's end is never reported: they
        // may be what keeps the guard from it.
        let group_reaped = reaped - self.limits.reap / 2;
        while !self.is_dead() && Instant::now() < group_reaped {
            if self.pump(false, group_reaped.min(Instant::now() + tick)).is_err() {
                break;
            }
        }
        // What the dead have left in the pipe is there already.
        while self.capture.is_open()
            && matches!(self.job.wait(true, None, Instant::now()), Ok(ready) if ready.output)
        {
            self.capture.fill(&mut self.job);
        }
        reaped
    }

    /// Whether nothing is left to wait for: the shell and its group are gone, and, if the command
    /// was not cut short anyway, all that was written has been read.
    fn is_over(&self, ending: &Ending) -> bool {
        let all_read = !self.capture.is_open() || !matches!(ending, Ending::Itself);
        all_read && self.is_dead()
    }

    fn is_dead(&self) -> bool {
        self.job.exit().is_some() && !self.job.group_is_alive()
    }

    /// Settles what became of the command and of those who left its group.
    fn conclude(self, ending: Ending, reaped: Instant) -> Outcome {
        let Watch { job, capture, limits, .. } = self;
        let ending = match ending {
            // The flood came between the shell's end and that of its group.
            Ending::Itself if capture.is_full => Ending::OutputLimit,
            ending => ending,
        };
        let forced = !matches!(ending, Ending::Itself);
        if forced {
            job.kill_descendants(reaped);
        }
        let (exit, group) = (job.exit(), job.group());
        let (stuck, free): (Vec<_>, Vec<_>) =
            job.release(reaped).into_iter().partition(|process| forced || process.group == group);
        let (status, words) = describe(&ending, exit, limits);
        let words = words.map(|words| match stuck.as_slice() {
            [] => format!("[{words}]"),
            _ => format!("[{words}; some of its processes could not be ended]"),
        });
        let truncated = capture.is_full;
        let text = capture.into_text(words);
        let notices = [
            name_all("Could not be ended", &stuck),
            name_all("Still running outside the process group", &free),
        ];
        Outcome {
            result: ToolResult::ran(status, text, exit_code(exit, forced), truncated),
            notice: notices.into_iter().flatten().reduce(|a, b| a + ". " + &b),
        }
    }
}

/// The status, and what the model is told of the ending after the captured output.
fn describe(ending: &Ending, exit: Option<Exit>, limits: &Bounds) -> (Ran, Option<String>) {
    match ending {
        Ending::Itself => match exit {
            Some(Exit::Code(0)) => (Ran::Completed, None),
            Some(Exit::Code(_) | Exit::Signal(_)) => (Ran::Failed, None),
            Some(Exit::Overdue | Exit::Unknown) | None => {
                let words = "its guard process was killed; how the command ended is not known";
                (Ran::Failed, Some(words.into()))
            }
        },
        Ending::TimedOut => {
            let words = format!("ended after {} s", limits.time.as_secs_f64());
            (Ran::TimedOut, Some(words))
        }
        Ending::OutputLimit => {
            let most = limits.output_bytes;
            let words = format!("output limit of {most} bytes reached; the command was ended");
            (Ran::OutputLimit, Some(words))
        }
        Ending::Cancelled => (Ran::Cancelled, Some("cancelled; the command was ended".into())),
        Ending::Unwatched(error) => {
            let words = format!("the command could not be watched and was ended: {error}");
            (Ran::Failed, Some(words))
        }
    }
}

/// A code that the shell itself gave is always told. A death by signal is, where the signal was not ours.
fn exit_code(exit: Option<Exit>, forced: bool) -> Option<i32> {
    match exit? {
        Exit::Code(code) => Some(code),
        Exit::Signal(number) => (!forced).then_some(128 + number),
        Exit::Overdue | Exit::Unknown => None,
    }
}

/// `what: 4242 (sleep), 4243 (sh)`, or nothing for nobody.
fn name_all(what: &str, processes: &[Process]) -> Option<String> {
    let named: Vec<String> = processes
        .iter()
        .take(limits::NAMED_PROCESSES)
        .map(|process| format!("{} ({})", process.pid, text::one_line(&process.name, 32)))
        .collect();
    let more = match processes.len() - named.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    (!named.is_empty()).then(|| format!("{what}: {}{more}", named.join(", ")))
}

/// The output so far, and one byte of curiosity more, which tells a full capture from an exact fit.
struct Capture {
    bytes: Vec<u8>,
    most: usize,
    at_end: bool,
    is_full: bool,
}

impl Capture {
    fn new(most: usize) -> Capture {
        Capture { bytes: Vec::new(), most, at_end: false, is_full: false }
    }

    /// Whether there is any use in reading on.
    fn is_open(&self) -> bool {
        !self.at_end && !self.is_full
    }

    /// One read; to be called when it doesn't block.
    fn fill(&mut self, job: &mut Running) {
        let mut chunk = [0; limits::CHUNK_BYTES];
        let room = (self.most - self.bytes.len()).saturating_add(1).min(chunk.len());
        let Some(chunk) = chunk.get_mut(..room) else {
            return;
        };
        match job.read(chunk) {
            Ok(0) => self.at_end = true,
            Ok(length) => {
                self.bytes.extend(chunk.iter().take(length));
                self.is_full = self.bytes.len() > self.most;
                self.bytes.truncate(self.most);
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => self.at_end = true,
        }
    }

    /// The captured text, then `words` on a line of their own.
    fn into_text(self, words: Option<String>) -> String {
        let mut output = text::decode_output(&self.bytes, self.is_full);
        if let Some(words) = words {
            if !output.is_empty() && !output.ends_with('\n') {
                output.push('\n');
            }
            output.push_str(&words);
        }
        output
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_is_told_the_true_limits() {
        for limit in [limits::COMMAND_SECONDS.to_string(), limits::OUTPUT_BYTES.to_string()] {
            assert!(DESCRIPTION.contains(&format!(" {limit} ")), "{limit}");
        }
        let schema: serde_json::Value = serde_json::from_str(PARAMETERS).unwrap();
        assert_eq!(schema["required"], serde_json::json!(["command"]));
        assert_eq!(schema["additionalProperties"], false);
    }

    #[test]
    fn arguments_are_exactly_one_command() {
        assert_eq!(parse_arguments(r#" {"command":"ls -l"} "#).unwrap(), "ls -l");
        assert_eq!(parse_arguments(r#"{"\u0063ommand":"\ud83d\ude42\n"}"#).unwrap(), "🙂\n");
        let longest = format!(r#"{{"command":"{}"}}"#, "x".repeat(limits::COMMAND_BYTES));
        assert_eq!(parse_arguments(&longest).unwrap().len(), limits::COMMAND_BYTES);
        for (refused, why) in [
            ("", "EOF"),
            ("null", "expected an object"),
            (r#""ls""#, "expected an object"),
            (r#"["ls"]"#, "expected an object"),
            ("{}", "missing field `command`"),
            (r#"{"command":null}"#, "expected a string"),
            (r#"{"command":["ls"]}"#, "expected a string"),
            (r#"{"command":1}"#, "expected a string"),
            (r#"{"command":""}"#, "empty"),
            (r#"{"command":" \t\r\n\u3000"}"#, "empty"),
            (r#"{"command":"a","command":"b"}"#, "duplicate field"),
            (r#"{"command":"a","\u0063ommand":"b"}"#, "duplicate field"),
            (r#"{"command":"a","timeout":1}"#, "unknown field"),
            (r#"{"Command":"a"}"#, "unknown field"),
            (r#"{"command":"a"} x"#, "trailing"),
            (r#"{"command":"a"}{"command":"b"}"#, "trailing"),
            (r#"{"command":"a",}"#, "trailing comma"),
            (r#"{"command":"a""#, "EOF"),
            ("\u{feff}{\"command\":\"a\"}", "expected value"),
            ("{\"command\":\"a\nb\"}", "control character"),
            (r#"{"command":"\ud800"}"#, "hex escape"),
            (r#"{"command":"\udc00x"}"#, "surrogate"),
            (r#"{"command":"a\u0000b"}"#, "NUL"),
        ] {
            let error = parse_arguments(refused).unwrap_err();
            assert!(error.contains(why), "{refused}: {error}");
        }
        let longer = longest.replace("\"x", "\"é");
        assert!(parse_arguments(&longer).unwrap_err().contains("16384"));
    }
}

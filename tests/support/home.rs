//! A temporary home and working directory, and `mino` started in them.
//!
//! Owns: the files that a test may look at, and the command line. Promises: nothing of the real
//! environment reaches `mino` but the PATH; the home, the working directory and `HOME` are three
//! different folders, so that a file in the wrong one is seen; a run that doesn't end is killed and
//! shown with all that it said.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::endpoint::Endpoint;
use super::tty::{Size, Tty};
use super::{Gathered, PATIENCE, Process, first_words, mino_path, read, until};

/// The key in every configuration written here: easily searched for where it must not be.
pub const KEY: &str = "sk-test-0123456789abcdef";

/// Everything that one test has on disk; gone when the value goes.
pub struct Home {
    folder: TempDir,
    /// `MINO_HOME`.
    pub mino_home: PathBuf,
    /// The working directory of `mino`.
    pub work: PathBuf,
    /// `HOME`.
    pub home: PathBuf,
}

impl Home {
    /// With a `config.json` that names `endpoint`.
    pub fn new(endpoint: &Endpoint) -> Home {
        let home = Home::empty();
        home.write_config(&json!({
            "base_url": endpoint.base_url(), "model": "test-model", "api_key": KEY,
        }));
        home
    }

    /// Without a configuration; `MINO_HOME` doesn't exist yet.
    pub fn empty() -> Home {
        let folder = TempDir::new().expect("a temporary folder");
        // Its real name, as `mino` will show it.
        let root = folder.path().canonicalize().expect("a real name");
        let make = |name: &str| {
            let path = root.join(name);
            std::fs::create_dir(&path).expect("a folder");
            path
        };
        Home {
            mino_home: root.join("mino-home"),
            work: make("work"),
            home: make("home"),
            folder,
        }
    }

    pub fn write_config(&self, config: &Value) {
        std::fs::create_dir_all(&self.mino_home).expect("the home");
        std::fs::write(self.config_path(), config.to_string()).expect("the configuration");
    }

    /// Adds one field to the configuration, or changes it.
    pub fn configure(&self, field: &str, value: impl Into<Value>) {
        let mut config: Value =
            serde_json::from_slice(&read(self.config_path())).expect("a configuration");
        config[field] = value.into();
        self.write_config(&config);
    }

    /// The folder that holds all three.
    pub fn root(&self) -> &Path {
        self.mino_home.parent().expect("a folder above")
    }

    /// Everything below [`Home::root`], a line each: name, kind, mode, time of the last change and
    /// content. Two equal looks mean that nothing was changed in between.
    pub fn tree(&self) -> Vec<String> {
        let mut found = Vec::new();
        look_at(self.root(), &mut found);
        found.sort();
        found
    }

    /// `text` with `<root>`, `<id>`, `<time>` and `<s>` in the place of what differs from run to run:
    /// the folder, identifiers of 32 digits, times, and durations in tenths of a second.
    pub fn tidied(&self, text: &str) -> String {
        tidied(&text.replace(&*self.root().to_string_lossy(), "<root>"))
    }

    pub fn config_path(&self) -> PathBuf {
        self.mino_home.join("config.json")
    }

    /// A file in the working directory.
    pub fn in_work(&self, name: &str) -> PathBuf {
        self.work.join(name)
    }

    /// The names in the working directory, sorted.
    pub fn work_files(&self) -> Vec<String> {
        names(&self.work)
    }

    /// The names in `sessions`, sorted.
    pub fn session_files(&self) -> Vec<String> {
        names(&self.mino_home.join("sessions"))
    }

    /// The ID in `active-session.json`.
    pub fn pointer(&self) -> String {
        let bytes = read(self.mino_home.join("active-session.json"));
        let value: Value = serde_json::from_slice(&bytes).expect("a pointer");
        value["session_id"].as_str().expect("an ID").to_owned()
    }

    pub fn journal_path_of(&self, session: &str) -> PathBuf {
        self.mino_home
            .join("sessions")
            .join(format!("{session}.jsonl"))
    }

    /// The ID of the one conversation there is.
    pub fn only_session(&self) -> String {
        let files = self.session_files();
        let ids: Vec<&str> = files
            .iter()
            .filter_map(|name| name.strip_suffix(".jsonl"))
            .filter(|id| !id.contains("-recovery-"))
            .collect();
        assert_eq!(ids.len(), 1, "one conversation in {files:?}");
        ids[0].to_owned()
    }

    /// The journal of the one conversation there is.
    pub fn journal_path(&self) -> PathBuf {
        self.journal_path_of(&self.only_session())
    }

    /// Its lines, as they are on disk.
    pub fn lines(&self) -> Vec<String> {
        let text = String::from_utf8(read(self.journal_path())).expect("a journal in UTF-8");
        assert!(
            text.is_empty() || text.ends_with('\n'),
            "a torn line: {text}"
        );
        text.split_terminator('\n').map(str::to_owned).collect()
    }

    /// Its records.
    pub fn records(&self) -> Vec<Value> {
        self.lines()
            .iter()
            .map(|line| serde_json::from_str(line).expect("a record"))
            .collect()
    }

    /// The kinds of its records, in order.
    pub fn kinds(&self) -> Vec<String> {
        self.records()
            .iter()
            .map(|record| text_of(&record["kind"]))
            .collect()
    }

    /// Its records of one kind.
    pub fn records_of(&self, kind: &str) -> Vec<Value> {
        let mut records = self.records();
        records.retain(|record| record["kind"] == kind);
        records
    }

    /// The statuses of its results, in order.
    pub fn result_statuses(&self) -> Vec<String> {
        self.records_of("tool_result")
            .iter()
            .map(|record| text_of(&record["result"]["status"]))
            .collect()
    }

    /// How its turns ended, in order.
    pub fn turn_ends(&self) -> Vec<String> {
        self.records_of("turn_end")
            .iter()
            .map(|record| text_of(&record["status"]))
            .collect()
    }

    /// Waits until the journal holds `count` whole records of `kind`.
    pub fn wait_for_records(&self, kind: &str, count: usize) {
        let needle = format!("\"kind\":\"{kind}\"");
        until(&format!("{count} records of {kind}"), || {
            let bytes = match self.session_files().is_empty() {
                true => Vec::new(),
                false => read(self.journal_path()),
            };
            let text = String::from_utf8_lossy(&bytes).into_owned();
            text.split_inclusive('\n')
                .filter(|line| line.ends_with('\n') && line.contains(&needle))
                .count()
                >= count
        });
    }

    /// `mino` with these arguments, not started yet.
    pub fn mino<S: Into<OsString> + Clone>(&self, arguments: &[S]) -> Mino {
        let mut command = Command::new(mino_path());
        command
            .args(arguments.iter().cloned().map(Into::into))
            .current_dir(&self.work)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", &self.home)
            .env("MINO_HOME", &self.mino_home)
            .env("TERM", "xterm-256color")
            .env("LANG", "C.UTF-8");
        Mino { command }
    }

    /// `mino ask QUESTION`, run to its end without any input.
    pub fn ask(&self, question: &str) -> Output {
        self.mino(&["ask", question]).run("")
    }

    /// A chat on a terminal of 24 rows and 80 columns, waited for until it asks.
    pub fn chat(&self) -> Tty {
        self.chat_of(Size { rows: 24, cols: 80 })
    }

    pub fn chat_of(&self, size: Size) -> Tty {
        let tty = self.mino::<&str>(&[]).on_tty(size);
        tty.wait_for("You> ");
        tty
    }
}

/// The permission bits of `path` itself.
pub fn mode(path: impl AsRef<Path>) -> u32 {
    let path = path.as_ref();
    let metadata = std::fs::symlink_metadata(path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    metadata.permissions().mode() & 0o7777
}

/// The text of a JSON string.
pub fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => panic!("a string, not {other}"),
    }
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = match std::fs::read_dir(folder) {
        Ok(entries) => entries
            .map(|entry| entry.expect("an entry").file_name().into_string())
            .collect::<Result<_, _>>()
            .expect("names in UTF-8"),
        Err(_) => Vec::new(),
    };
    names.sort();
    names
}

fn look_at(path: &Path, found: &mut Vec<String>) {
    let about = std::fs::symlink_metadata(path).expect("a file that is there");
    let content = if about.is_symlink() {
        format!("{:?}", std::fs::read_link(path).expect("a link"))
    } else if about.is_file() {
        String::from_utf8_lossy(&read(path)).into_owned()
    } else {
        String::new()
    };
    found.push(format!(
        "{} {:?} {:o} {:?} {content:?}",
        path.display(),
        about.file_type(),
        about.permissions().mode(),
        about.modified().expect("a time"),
    ));
    if about.is_dir() {
        for entry in std::fs::read_dir(path).expect("a folder") {
            look_at(&entry.expect("an entry").path(), found);
        }
    }
}

/// What replaces a text of this shape, where `0` is any decimal and `f` any hexadecimal digit.
const SHAPES: [(&str, &str); 3] = [
    ("ffffffffffffffffffffffffffffffff", "<id>"),
    ("0000-00-00T00:00:00.000Z", "<time>"),
    ("after 0.0 s", "after <s>"),
];

fn tidied(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let shape = SHAPES.iter().find(|(shape, _)| has_shape(rest, shape));
        let length = shape.map_or(first.len_utf8(), |(shape, _)| shape.len());
        out.push_str(shape.map_or(&rest[..length], |(_, name)| name));
        rest = &rest[length..];
    }
    out
}

fn has_shape(text: &str, shape: &str) -> bool {
    text.len() >= shape.len()
        && text.bytes().zip(shape.bytes()).all(|pair| match pair {
            (byte, b'0') => byte.is_ascii_digit(),
            (byte, b'f') if shape.starts_with("ff") => byte.is_ascii_hexdigit(),
            (byte, other) => byte == other,
        })
}

/// `mino`, about to be started.
pub struct Mino {
    command: Command,
}

impl Mino {
    pub fn env(mut self, name: &str, value: impl Into<OsString>) -> Mino {
        self.command.env(name, value.into());
        self
    }

    pub fn without_env(mut self, name: &str) -> Mino {
        self.command.env_remove(name);
        self
    }

    pub fn in_folder(mut self, folder: &Path) -> Mino {
        self.command.current_dir(folder);
        self
    }

    /// The same, started by another program: `wrapper` is that program and its first arguments, and
    /// all of the call follows them. Without any it is the same.
    pub fn through(self, wrapper: &[&str]) -> Mino {
        let Some((program, arguments)) = wrapper.split_first() else {
            return self;
        };
        let mut command = Command::new(program);
        command
            .args(arguments)
            .arg(self.command.get_program())
            .args(self.command.get_args())
            .env_clear()
            .envs(self.command.get_envs().filter_map(|(k, v)| Some((k, v?))));
        if let Some(folder) = self.command.get_current_dir() {
            command.current_dir(folder);
        }
        Mino { command }
    }

    /// The same, started by Bash after `before`, such as `umask 000`.
    pub fn after(self, before: &str) -> Mino {
        self.through(&["bash", "-c", &format!("{before}; exec \"$@\""), "bash"])
    }

    /// For what isn't offered here.
    pub fn command(self) -> Command {
        self.command
    }

    /// Runs it to its end with `input` as its standard input.
    pub fn run(self, input: impl AsRef<[u8]>) -> Output {
        let mut running = self.start();
        running.write(input.as_ref());
        running.close_stdin();
        running.wait()
    }

    /// Starts it with three pipes.
    pub fn start(self) -> Running {
        let mut command = self.through(first_words()).command;
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("start the program");
        Running {
            stdin: child.stdin.take(),
            stdout: Gathered::from(child.stdout.take().expect("a pipe")),
            stderr: Gathered::from(child.stderr.take().expect("a pipe")),
            process: Process::new(child),
        }
    }

    /// Starts it on a terminal of its own.
    pub fn on_tty(self, size: Size) -> Tty {
        Tty::start(size, &self.command)
    }
}

/// `mino`, running with three pipes.
pub struct Running {
    stdin: Option<ChildStdin>,
    pub stdout: Gathered,
    pub stderr: Gathered,
    pub process: Process,
}

impl Running {
    /// Writes to its standard input. That it doesn't read all of it is no failure here.
    pub fn write(&mut self, bytes: &[u8]) {
        if let Some(stdin) = &mut self.stdin {
            let _ = stdin.write_all(bytes).and_then(|()| stdin.flush());
        }
    }

    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }

    pub fn signal(&mut self, signal: Signal) {
        self.process.signal(signal);
    }

    pub fn wait_for_stdout(&self, text: &str) {
        self.wait_for(&self.stdout, text);
    }

    pub fn wait_for_stderr(&self, text: &str) {
        self.wait_for(&self.stderr, text);
    }

    fn wait_for(&self, stream: &Gathered, text: &str) {
        if let Err(why) = stream.wait_for(text, 0, PATIENCE) {
            panic!("{why}\n{}", self.output(None));
        }
    }

    /// Waits for its end, and for that of both streams.
    pub fn wait(mut self) -> Output {
        let start = Instant::now();
        let code = self.process.wait(PATIENCE);
        let left = |start: Instant| PATIENCE.saturating_sub(start.elapsed());
        let ended = self.stdout.wait_for_end(left(start)) && self.stderr.wait_for_end(left(start));
        let output = self.output(code);
        assert!(code.is_some(), "it did not end\n{output}");
        assert!(
            ended,
            "something that it started still holds its output\n{output}"
        );
        Output {
            elapsed: start.elapsed(),
            ..output
        }
    }

    fn output(&self, code: Option<i32>) -> Output {
        Output {
            code: code.unwrap_or(i32::MIN),
            stdout: self.stdout.text(),
            stderr: self.stderr.text(),
            elapsed: Duration::ZERO,
        }
    }
}

/// What a run came to.
#[derive(Debug)]
pub struct Output {
    /// The exit code; minus the number of a signal that ended it.
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
    /// From the start of the waiting.
    pub elapsed: Duration,
}

impl Output {
    /// Fails with everything that was said where the code is another.
    #[track_caller]
    pub fn expect_code(self, code: i32) -> Output {
        assert!(self.code == code, "exit code {code} was expected\n{self}");
        self
    }
}

impl std::fmt::Display for Output {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Output {
            code,
            stdout,
            stderr,
            ..
        } = self;
        match code {
            &i32::MIN => writeln!(f, "exit code: none")?,
            code => writeln!(f, "exit code: {code}")?,
        }
        write!(f, "--- stdout\n{stdout}\n--- stderr\n{stderr}\n---")
    }
}

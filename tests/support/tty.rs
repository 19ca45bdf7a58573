//! A pseudo-terminal with a program on it.
//!
//! Owns: the master's side. Promises: what the program writes is read at once, so that it never
//! waits for the test; closing the master hangs the terminal up, since nothing else here holds it.
//! Leans on `tty-shim` for the controlling terminal and on vt100 for what a person would see.
//! Gives up: the screen is computed anew from all bytes at each look, which is slow for megabytes.

use std::fs::File;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::num::NonZeroU16;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags};
use rustix::process::Signal;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcgetattr, tcsetwinsize};

use super::{Gathered, PATIENCE, Process, beside, first_words};

/// The last line of the approval screen.
pub const QUESTION: &str = "Approve this operation? [y/N] ";

/// Rows that the view of everything may have.
const ALL_ROWS: u16 = 5_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    pub rows: u16,
    pub cols: u16,
}

/// Which standard descriptors the terminal is; those given are something else.
#[derive(Default)]
pub struct Instead {
    pub stdin: Option<Stdio>,
    pub stdout: Option<Stdio>,
    pub stderr: Option<Stdio>,
}

pub struct Tty {
    master: Option<File>,
    process: Process,
    raw: Gathered,
    plain: Gathered,
    reader: Option<(PipeWriter, JoinHandle<()>)>,
    /// Each size, and how many bytes had been written when it began.
    sizes: Mutex<Vec<(usize, Size)>>,
    /// In `plain`: behind what was waited for last.
    position: AtomicUsize,
}

impl Tty {
    /// Starts `command` (program, arguments, set variables and folder) with the terminal as all of
    /// its standard descriptors. Its environment is what `command` sets and nothing else.
    pub fn start(size: Size, command: &Command) -> Tty {
        Tty::start_with(size, command, Instead::default())
    }

    pub fn start_with(size: Size, command: &Command, instead: Instead) -> Tty {
        let master =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a pty");
        grantpt(&master).expect("grantpt");
        unlockpt(&master).expect("unlockpt");
        let name = ptsname(&master, Vec::new()).expect("a name");
        let name = name.to_str().expect("a name in UTF-8");
        tcsetwinsize(&master, winsize(size)).expect("a size");
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let slave = rustix::fs::open(name, flags, Mode::empty()).expect("the slave");

        let child = shim(name, command, instead).spawn().expect("start");
        let master = File::from(master);
        let (raw, plain) = (Gathered::default(), Gathered::default());
        let reader = start_reader(&master, raw.clone(), plain.clone());
        Tty {
            master: Some(master),
            // Held so that the terminal exists before the program opens it. Once nobody has it open,
            // the master ends behind the last byte.
            process: Process::holding(child, slave),
            raw,
            plain,
            reader: Some(reader),
            sizes: Mutex::new(vec![(0, size)]),
            position: AtomicUsize::new(0),
        }
    }

    /// Waits until the program shows `text`, behind everything that was waited for before.
    /// Escape sequences don't count, and a line that the terminal folds is one line (one that the
    /// program folds by itself is not).
    #[track_caller]
    pub fn wait_for(&self, text: &str) {
        self.wait_for_after(self.position(), text);
    }

    /// As [`Tty::wait_for`], from a position on.
    #[track_caller]
    pub fn wait_for_after(&self, position: usize, text: &str) {
        match self.plain.wait_for(text, position, PATIENCE) {
            Ok(end) => self.position.store(end, Ordering::SeqCst),
            Err(why) => panic!("{why}\n{}", self.everything_known()),
        }
    }

    /// Behind what was waited for last.
    pub fn position(&self) -> usize {
        self.position.load(Ordering::SeqCst)
    }

    /// Behind everything that was shown so far.
    pub fn end(&self) -> usize {
        self.plain.len()
    }

    /// What was shown so far, without escape sequences.
    pub fn plain(&self) -> String {
        self.plain.text()
    }

    /// The same from a position on.
    pub fn plain_after(&self, position: usize) -> String {
        let bytes = self.plain.bytes();
        String::from_utf8_lossy(bytes.get(position..).unwrap_or_default()).into_owned()
    }

    /// The bytes that came out so far.
    pub fn raw(&self) -> Vec<u8> {
        self.raw.bytes()
    }

    /// Types `bytes`. Blocks while the terminal's input is full and nobody reads: use
    /// [`Tty::keyboard`] on a thread for more than a line.
    pub fn send(&self, bytes: impl AsRef<[u8]>) {
        let mut master = self.master.as_ref().expect("an open terminal");
        master.write_all(bytes.as_ref()).expect("type");
    }

    /// Types `text` and the Enter key.
    pub fn send_line(&self, text: &str) {
        self.send(format!("{text}\r"));
    }

    /// Waits for the approval question, then types `answer` and Enter.
    #[track_caller]
    pub fn answer(&self, answer: &str) {
        self.wait_for(QUESTION);
        self.send_line(answer);
    }

    /// A second keyboard for another thread. The terminal doesn't hang up while it exists.
    pub fn keyboard(&self) -> File {
        let master = self.master.as_ref().expect("an open terminal");
        master.try_clone().expect("a copy of the master")
    }

    /// The rows of the screen, without blanks at their ends.
    pub fn screen(&self) -> Vec<String> {
        let mut rows = self.rows(None);
        rows.resize(usize::from(self.size().rows), String::new());
        rows
    }

    /// All rows since the start, as if the screen had been endless.
    pub fn all_rows(&self) -> Vec<String> {
        let mut rows = self.rows(Some(ALL_ROWS));
        while rows.last().is_some_and(String::is_empty) {
            rows.pop();
        }
        rows
    }

    fn rows(&self, height: Option<u16>) -> Vec<String> {
        let bytes = self.raw();
        let sizes = self.sizes.lock().unwrap().clone();
        let rows = |size: Size| nonzero(height.unwrap_or(size.rows));
        let mut parser = vt100::Parser::new(rows(sizes[0].1), nonzero(sizes[0].1.cols), 0);
        for (index, (begin, size)) in sizes.iter().enumerate() {
            let end = sizes.get(index + 1).map_or(bytes.len(), |next| next.0);
            parser.set_size(rows(*size), nonzero(size.cols));
            parser.process(&bytes[*begin..end]);
        }
        parser
            .screen()
            .rows(0, self.size().cols)
            .map(|row| row.trim_end().to_owned())
            .collect()
    }

    fn size(&self) -> Size {
        self.sizes.lock().unwrap().last().expect("a size").1
    }

    /// Changes the window's size; the program gets SIGWINCH.
    pub fn resize(&self, size: Size) {
        self.sizes.lock().unwrap().push((self.raw.len(), size));
        let master = self.master.as_ref().expect("an open terminal");
        tcsetwinsize(master, winsize(size)).expect("a size");
    }

    /// All settings of the terminal, to be compared with an earlier look.
    pub fn termios(&self) -> String {
        let master = self.master.as_ref().expect("an open terminal");
        format!("{:?}", tcgetattr(master).expect("tcgetattr"))
    }

    /// Sends a signal to the program alone. For what Ctrl+C does, send the byte 3.
    pub fn signal(&mut self, signal: Signal) {
        self.process.signal(signal);
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Closes the terminal's window: the program gets SIGHUP, reads end and writes fail.
    pub fn close_master(&mut self) {
        self.stop_reader();
        self.master = None;
    }

    /// Waits for the program's end and for the last of what it wrote; answers its exit code, or
    /// minus the number of the signal that ended it.
    #[track_caller]
    pub fn wait_exit(&mut self) -> i32 {
        self.wait_exit_within(PATIENCE)
    }

    /// The same with another limit.
    #[track_caller]
    pub fn wait_exit_within(&mut self, limit: Duration) -> i32 {
        let Some(code) = self.process.wait(limit) else {
            panic!("it did not end\n{}", self.everything_known());
        };
        if self.reader.is_some() && !self.plain.wait_for_end(PATIENCE) {
            panic!(
                "something that it started still has the terminal open\n{}",
                self.everything_known()
            );
        }
        code
    }

    fn stop_reader(&mut self) {
        if let Some((stop, thread)) = self.reader.take() {
            drop(stop);
            thread.join().expect("the reading thread");
        }
    }

    fn everything_known(&self) -> String {
        format!(
            "--- screen\n{}\n--- raw bytes\n{}\n---",
            self.all_rows().join("\n"),
            self.raw().escape_ascii()
        )
    }
}

impl Drop for Tty {
    fn drop(&mut self) {
        self.stop_reader();
    }
}

fn shim(slave: &str, command: &Command, instead: Instead) -> Command {
    let mut shim = Command::new(beside("examples/tty-shim"));
    let mut descriptors = String::new();
    let mut choose = |digit: char, instead: Option<Stdio>| match instead {
        Some(other) => other,
        None => {
            descriptors.push(digit);
            Stdio::null()
        }
    };
    let (stdin, stdout) = (choose('0', instead.stdin), choose('1', instead.stdout));
    match instead.stderr {
        Some(other) => shim.stderr(other),
        // Inherited until the terminal takes its place, for what the shim may have to say.
        None => {
            descriptors.push('2');
            &mut shim
        }
    };
    shim.stdin(stdin)
        .stdout(stdout)
        .arg(slave)
        .arg(&descriptors)
        .args(first_words())
        .arg(command.get_program())
        .args(command.get_args())
        .env_clear()
        .envs(command.get_envs().filter_map(|(k, v)| Some((k, v?))));
    if let Some(folder) = command.get_current_dir() {
        shim.current_dir(folder);
    }
    shim
}

fn winsize(size: Size) -> Winsize {
    Winsize {
        ws_row: size.rows,
        ws_col: size.cols,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}

fn nonzero(count: u16) -> NonZeroU16 {
    NonZeroU16::new(count).expect("a size that isn't zero")
}

fn start_reader(master: &File, raw: Gathered, plain: Gathered) -> (PipeWriter, JoinHandle<()>) {
    let (stopped, stop) = std::io::pipe().expect("a pipe");
    let master = master.try_clone().expect("a copy of the master");
    let thread = thread::spawn(move || {
        read_until_stopped(master, &stopped, &raw, &plain);
        raw.end();
        plain.end();
    });
    (stop, thread)
}

/// Reads until the slave is closed by all (an I/O error) or the other end of `stopped` is.
fn read_until_stopped(mut master: File, stopped: &PipeReader, raw: &Gathered, plain: &Gathered) {
    let mut stripper = Stripper::default();
    let mut buffer = [0; 64 * 1024];
    loop {
        let mut polled = [
            PollFd::new(&master, PollFlags::IN),
            PollFd::new(stopped, PollFlags::IN),
        ];
        if poll(&mut polled, None).is_err() || !polled[1].revents().is_empty() {
            return;
        }
        let Ok(count @ 1..) = master.read(&mut buffer) else {
            return;
        };
        raw.add(&buffer[..count]);
        plain.add(&stripper.strip(&buffer[..count]));
    }
}

/// Takes escape sequences out of what a program writes to its terminal.
#[derive(Default)]
struct Stripper(State);

#[derive(Clone, Copy, Default, PartialEq)]
enum State {
    #[default]
    Text,
    Escape,
    /// ESC and an intermediate byte, such as in `ESC ( B`.
    Designation,
    Control,
    /// A string of any kind (OSC, DCS, APC): up to BEL or `ESC \`.
    String,
    StringEscape,
}

impl Stripper {
    fn strip(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut text = Vec::with_capacity(bytes.len());
        for &byte in bytes {
            let was_text = self.0 == State::Text;
            self.0 = match (self.0, byte) {
                (State::String, 0x1b) => State::StringEscape,
                (State::String, 7) => State::Text,
                (State::String, _) => State::String,
                (State::StringEscape, b'\\') => State::Text,
                (_, 0x1b) => State::Escape,
                (State::Escape | State::StringEscape, b'[') => State::Control,
                (State::Escape | State::StringEscape, b']' | b'P' | b'_' | b'^' | b'X') => {
                    State::String
                }
                (State::Escape | State::Designation, b' '..=b'/') => State::Designation,
                (State::Control, 0x20..=0x3f) => State::Control,
                _ => State::Text,
            };
            if was_text && self.0 == State::Text {
                text.push(byte);
            }
        }
        text
    }
}

//! What the tests stand on: a home of their own, a scripted model, a terminal, and bounded waits.
//!
//! Owns: starting `mino` with an environment that holds nothing of the person who runs the tests,
//! and every wait. Promises: a wait ends when what it waits for happens, or fails loudly with
//! everything that was seen by then; nothing that was started outlives the value that stands for
//! it. Leans on the programs that Cargo built beside the test: `mino` and the example `tty-shim`.
//! Gives up: Linux only (`/proc`).

// Each test file is a crate of its own and uses its own part of this.
#![allow(dead_code)]

pub mod endpoint;
pub mod home;
pub mod kernel;
pub mod tls;
pub mod tty;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::process::{Pid, Signal, kill_process};

/// How long anything may take that is expected to happen. Generous: a loaded machine is no bug.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The program under test.
pub fn mino_path() -> PathBuf {
    match option_env!("CARGO_BIN_EXE_mino") {
        Some(path) => PathBuf::from(path),
        None => beside("mino"),
    }
}

/// A program in the folder of this build, such as `target/debug`.
pub fn beside(name: &str) -> PathBuf {
    let me = std::env::current_exe().expect("where this program is");
    // Tests are in `deps` and examples in `examples`, one folder below the programs.
    let folder = me.ancestors().nth(2).expect("a build folder");
    let path = folder.join(name);
    assert!(
        path.exists(),
        "{} is missing: run `cargo build --bins --examples` first",
        path.display()
    );
    path
}

/// The exit code of a program that only says whether something is possible here, such as a mount of
/// one's own. What it has to say is not wanted.
pub fn probe(words: &[&str]) -> Option<i32> {
    let (program, arguments) = words.split_first().expect("a program");
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command.status().ok()?.code()
}

/// A text that nothing else contains, to be found in files, in output and in command lines.
pub fn mark() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let nanos = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("a clock after 1970")
        .subsec_nanos();
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("mark{}x{nanos}x{count}", std::process::id())
}

/// The command lines of all running processes that contain `mark`.
pub fn alive(mark: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("/proc") {
        let path = entry.expect("an entry of /proc").path();
        // A process may end between the listing and the reading; a zombie has no command line.
        let Ok(line) = std::fs::read(path.join("cmdline")) else {
            continue;
        };
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.contains(mark) {
            found.push(format!("{}: {line}", path.display()));
        }
    }
    found
}

/// Whether no running process has `mark` in its command line.
pub fn nothing_alive(mark: &str) -> bool {
    alive(mark).is_empty()
}

/// Looks again and again until `is_true`. For what can't be waited for otherwise: files of another
/// process, `/proc`.
pub fn until(what: &str, mut is_true: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_true() {
        assert!(start.elapsed() < PATIENCE, "in vain waited for: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Does all of these, which mostly wait, at the same time.
pub fn all_at_once<T: Send>(tasks: impl IntoIterator<Item = impl FnOnce() -> T + Send>) -> Vec<T> {
    thread::scope(|scope| {
        let tasks: Vec<_> = tasks.into_iter().map(|task| scope.spawn(task)).collect();
        let results = tasks.into_iter().map(|task| task.join());
        let failed = |panic| std::panic::resume_unwind(panic);
        results
            .map(|result| result.unwrap_or_else(failed))
            .collect()
    })
}

/// The bytes of a file; empty where there is none.
pub fn read(path: impl AsRef<Path>) -> Vec<u8> {
    std::fs::read(path).unwrap_or_default()
}

/// Bytes that one thread gathers while others look at them and wait for more.
#[derive(Clone, Default)]
pub struct Gathered(Arc<(Mutex<Gathering>, Condvar)>);

#[derive(Default)]
struct Gathering {
    bytes: Vec<u8>,
    ended: bool,
}

impl Gathered {
    /// Gathers from `source` on a thread of its own until it ends.
    pub fn from(mut source: impl Read + Send + 'static) -> Gathered {
        let gathered = Gathered::default();
        let mine = gathered.clone();
        thread::spawn(move || {
            let mut buffer = [0; 64 * 1024];
            while let Ok(count @ 1..) = source.read(&mut buffer) {
                mine.add(&buffer[..count]);
            }
            mine.end();
        });
        gathered
    }

    pub fn add(&self, bytes: &[u8]) {
        self.0.0.lock().unwrap().bytes.extend_from_slice(bytes);
        self.0.1.notify_all();
    }

    pub fn end(&self) {
        self.0.0.lock().unwrap().ended = true;
        self.0.1.notify_all();
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.0.0.lock().unwrap().bytes.clone()
    }

    /// All bytes as text, with U+FFFD where they aren't.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes()).into_owned()
    }

    pub fn len(&self) -> usize {
        self.0.0.lock().unwrap().bytes.len()
    }

    /// Waits for `text` at or after `from` and answers the offset behind it. `Err` says why not:
    /// the source has ended, or time is up.
    pub fn wait_for(&self, text: &str, from: usize, limit: Duration) -> Result<usize, String> {
        let (lock, change) = &*self.0;
        let (start, mut looked_at) = (Instant::now(), from);
        let mut now = lock.lock().unwrap();
        loop {
            let rest = now.bytes.get(looked_at..).unwrap_or_default();
            if let Some(at) = find(rest, text.as_bytes()) {
                return Ok(looked_at + at + text.len());
            }
            if now.ended {
                return Err(format!("the output ended without {text:?}"));
            }
            // What may be the beginning of the text is looked at again.
            looked_at = from.max(now.bytes.len().saturating_sub(text.len()));
            match limit.checked_sub(start.elapsed()) {
                Some(left) => now = change.wait_timeout(now, left).unwrap().0,
                None => return Err(format!("no {text:?} within {limit:?}")),
            }
        }
    }

    /// Waits for the end of the source.
    pub fn wait_for_end(&self, limit: Duration) -> bool {
        let (lock, change) = &*self.0;
        let gathering = lock.lock().unwrap();
        let (gathering, _) = change
            .wait_timeout_while(gathering, limit, |gathering| !gathering.ended)
            .unwrap();
        gathering.ended
    }
}

/// Where `needle` begins in `bytes`.
pub fn find(bytes: &[u8], needle: &[u8]) -> Option<usize> {
    bytes
        .windows(needle.len())
        .position(|window| window == needle)
}

/// What a program is started through. A script that puts the tests into the background has them
/// ignore Ctrl+C, `nohup` has them ignore the hangup, and so would all that they start.
pub fn first_words() -> &'static [&'static str] {
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc/self/status");
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = u64::from_str_radix(ignored.expect("the ignored signals").trim(), 16);
    let bit = |signal: Signal| 1_u64 << (signal.as_raw() - 1);
    let ending = bit(Signal::INT) | bit(Signal::HUP) | bit(Signal::TERM);
    match ignored.expect("a number") & ending {
        0 => &[],
        _ => &["env", "--default-signal=HUP,INT,QUIT,TERM"],
    }
}

/// A started process: its end, and its certain end when the value goes.
pub struct Process {
    pid: Pid,
    exit: Receiver<i32>,
    code: Option<i32>,
}

impl Process {
    /// Takes over the waiting for `child`.
    pub fn new(child: Child) -> Process {
        Process::holding(child, ())
    }

    /// The same, and drops `held` as soon as `child` has ended.
    pub fn holding(mut child: Child, held: impl Send + 'static) -> Process {
        let pid = Pid::from_child(&child);
        let (sender, exit) = mpsc::channel();
        thread::spawn(move || {
            use std::os::unix::process::ExitStatusExt;
            let status = child.wait().expect("wait for a child");
            let code = status
                .code()
                .unwrap_or_else(|| -status.signal().unwrap_or_default());
            drop(held);
            // Nobody may be interested any more.
            let _ = sender.send(code);
        });
        let code = None;
        Process { pid, exit, code }
    }

    pub fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// The exit code, or minus the number of the signal that ended it; `None` after `limit`.
    pub fn wait(&mut self, limit: Duration) -> Option<i32> {
        if self.code.is_none() {
            self.code = match self.exit.recv_timeout(limit) {
                Ok(code) => Some(code),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => panic!("the waiting thread is gone"),
            };
        }
        self.code
    }

    /// Sends `signal`, unless the process has ended already.
    pub fn signal(&mut self, signal: Signal) {
        if self.wait(Duration::ZERO).is_none() {
            kill_process(self.pid, signal).expect("send a signal");
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.wait(Duration::ZERO).is_none() {
            // It may end just now; then there is nothing left to kill.
            let _ = kill_process(self.pid, Signal::KILL);
            self.wait(PATIENCE);
        }
    }
}

//! Programs that are measured: started, driven through pipes, looked at while they live.
//!
//! What a living process used is read from `/proc`: the memory's high-water mark of a process that
//! has ended may be its parent's, and its processor time is known in hundredths of a second only.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

/// From the start of a program to its end, in seconds.
pub fn run_time(mut command: Command) -> f64 {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let start = Instant::now();
    let status = command.status().expect("run the program");
    let elapsed = start.elapsed().as_secs_f64();
    assert!(status.success(), "{command:?}: {status}");
    elapsed
}

/// A program with a prompt, and pipes for its input and output.
pub struct Piped {
    child: Child,
    stdin: ChildStdin,
    stdout: ChildStdout,
    buffer: Vec<u8>,
}

impl Piped {
    /// Starts it and waits for its prompt.
    pub fn start(mut command: Command) -> Piped {
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command.spawn().expect("start the program");
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let mut program = Piped {
            child,
            stdin: stdin.expect("a pipe"),
            stdout: stdout.expect("a pipe"),
            buffer: vec![0; 64 * 1024],
        };
        program.wait_for_prompt();
        program
    }

    /// Types a line and waits for the next prompt.
    pub fn ask(&mut self, question: &str) {
        let line = format!("{question}\n");
        self.stdin.write_all(line.as_bytes()).expect("ask");
        self.wait_for_prompt();
    }

    fn wait_for_prompt(&mut self) {
        const PROMPT: &[u8] = b"You> ";
        let mut last = Vec::new();
        while last != PROMPT {
            let count = self.stdout.read(&mut self.buffer).expect("read the output");
            assert!(count > 0, "it ended without a prompt");
            let from = count.saturating_sub(PROMPT.len());
            last.extend_from_slice(&self.buffer[from..count]);
            last.drain(..last.len().saturating_sub(PROMPT.len()));
        }
    }

    pub fn look(&self) -> Look {
        Look::at(self.child.id())
    }

    /// Ends its input and waits for its end.
    pub fn end(self) {
        let Piped {
            mut child,
            stdin,
            mut stdout,
            ..
        } = self;
        drop(stdin);
        stdout.read_to_end(&mut Vec::new()).expect("read the rest");
        let status = child.wait().expect("wait for the program");
        assert!(status.success(), "{status}");
    }
}

/// What a living process has used so far.
pub struct Look {
    /// Processor time in seconds, of the threads that still live.
    pub cpu: f64,
    /// The most memory it had at once, shared pages of its own file included.
    pub peak_bytes: f64,
    /// Calls of write(2); known to root only, since Mino can't be looked into by others.
    pub writes: Option<f64>,
}

impl Look {
    pub fn at(pid: u32) -> Look {
        let folder = format!("/proc/{pid}");
        let read = |name: &str| fs::read_to_string(format!("{folder}/{name}"));
        let status = read("status").expect("a living process");
        let peak = number_after(&status, "VmHWM:").expect("VmHWM");
        let io = read("io").unwrap_or_default();
        let threads = fs::read_dir(format!("{folder}/task")).expect("its threads");
        let nanos: f64 = threads
            .filter_map(|thread| {
                // A thread may end meanwhile.
                let path = thread.ok()?.path().join("schedstat");
                let text = fs::read_to_string(path).ok()?;
                text.split_whitespace().next()?.parse::<f64>().ok()
            })
            .sum();
        Look {
            cpu: nanos / 1e9,
            peak_bytes: peak * 1024.0,
            writes: number_after(&io, "syscw:"),
        }
    }
}

fn number_after(text: &str, label: &str) -> Option<f64> {
    let (_, rest) = text.split_once(label)?;
    rest.split_whitespace().next()?.parse().ok()
}

pub fn has_strace() -> bool {
    let version = Command::new("strace").arg("-V").output();
    version.is_ok_and(|output| output.status.success())
}

/// The same program, its syncs written down in `trace`.
pub fn traced(command: Command, trace: &Path) -> Command {
    let mut traced = Command::new("strace");
    traced
        .args(["-f", "-qq", "-e", "trace=fsync,fdatasync", "-o"])
        .arg(trace)
        .arg(command.get_program())
        .args(command.get_args())
        .env_clear()
        .envs(command.get_envs().filter_map(|(k, v)| Some((k, v?))));
    if let Some(folder) = command.get_current_dir() {
        traced.current_dir(folder);
    }
    traced
}

/// How many syncs a trace holds. One that was interrupted by another thread has two lines.
pub fn count_syncs(trace: &Path) -> f64 {
    let text = fs::read_to_string(trace).expect("a trace");
    let is_sync = |line: &&str| line.contains("sync(");
    text.lines().filter(is_sync).count() as f64
}

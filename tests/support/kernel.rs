//! What the kernel is asked for on a test's behalf: mounts that nobody else sees, and system calls that
//! are watched, failed or met with SIGKILL.
//!
//! Owns: when a test is skipped, and says so. Promises: a mount is gone with the process that made
//! it, however that ends. Leans on `unshare` and `strace`.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};

/// Names the test that runs in a mount namespace of its own.
const INSIDE: &str = "MINO_TEST_INSIDE";

/// Runs the test called `name` of this file again, in a mount namespace of its own. True inside of
/// it, where the test's body belongs.
#[track_caller]
pub fn in_own_mounts(name: &str) -> bool {
    if std::env::var(INSIDE).is_ok_and(|inside| inside == name) {
        return true;
    }
    let rights: &[&str] = match rustix::process::geteuid().is_root() {
        true => &["--mount"],
        false => &["--map-root-user", "--mount"],
    };
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(rights);
        command
    };
    if !succeeds(unshare().arg("true")) {
        eprintln!("SKIPPED {name}: no mount namespace of its own is to be had here");
        return false;
    }
    let output = unshare()
        .arg(std::env::current_exe().expect("where this program is"))
        .args(["--exact", name, "--nocapture"])
        .env(INSIDE, name)
        .output()
        .expect("start the test again");
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success() && said(&output.stdout).contains("1 passed"),
        "inside: {}\n{}\n{}",
        output.status,
        said(&output.stdout),
        said(&output.stderr)
    );
    eprint!("{}", said(&output.stderr));
    false
}

/// A file system that is mounted as long as this lives.
pub struct Mounted(PathBuf);

/// Runs `mount` with these words, and `at` behind them.
#[track_caller]
pub fn mount(words: &[&str], at: &Path) -> Mounted {
    let mut mount = Command::new("mount");
    assert!(succeeds(mount.args(words).arg(at)), "mount {words:?}");
    Mounted(at.to_owned())
}

impl Mounted {
    /// Nothing can be written there any more.
    pub fn make_read_only(&self) {
        let mut mount = Command::new("mount");
        let remount = mount.args(["-o", "remount,bind,ro"]).arg(&self.0);
        assert!(succeeds(remount), "remount {}", self.0.display());
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Where it fails, the end of the namespace does it.
        let _ = succeeds(Command::new("umount").arg("--lazy").arg(&self.0));
    }
}

/// Whether `program` is here, for the test called `test`; said aloud where it isn't.
pub fn has(program: &str, test: &str) -> bool {
    let found = succeeds(Command::new(program).arg("--version"));
    if !found {
        eprintln!("SKIPPED {test}: {program} is missing");
    }
    found
}

fn succeeds(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

/// `strace` on the main thread of a program.
#[derive(Clone, Debug)]
pub struct Strace(Vec<String>);

impl Strace {
    /// `None`, said aloud, where nothing can be traced.
    pub fn new(test: &str, log: &Path) -> Option<Strace> {
        if !succeeds(Command::new("strace").args(["-o", "/dev/null", "true"])) {
            eprintln!("SKIPPED {test}: strace is missing, or may not trace");
            return None;
        }
        // Mino hides its memory and its files from others of its account, and so from their tracers.
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED {test}: only root may trace Mino");
            return None;
        }
        let log = log.to_str().expect("a name in UTF-8");
        Some(Strace(["-q", "-o", log].map(str::to_owned).into()))
    }

    fn add(mut self, option: &str, value: impl Into<String>) -> Strace {
        self.0.extend([option.to_owned(), value.into()]);
        self
    }

    /// Only these calls.
    pub fn calls(self, names: &str) -> Strace {
        self.add("-e", format!("trace={names}"))
    }

    /// Only calls on this file.
    pub fn on(self, path: PathBuf) -> Strace {
        self.add("-P", path.to_str().expect("a name in UTF-8"))
    }

    /// What happens at the `number`th (from 1) of these calls, such as `signal=KILL`.
    pub fn inject(self, names: &str, what: &str, number: usize) -> Strace {
        self.add("-e", format!("inject={names}:{what}:when={number}"))
    }

    /// Anything else.
    pub fn option(mut self, option: &str) -> Strace {
        self.0.push(option.to_owned());
        self
    }

    /// What a program is started by, see [`super::home::Mino::under`]. The tracer is out of the way:
    /// the process that was started is the program itself, and no signal of the terminal reaches
    /// the tracer.
    pub fn words(&self) -> Vec<&str> {
        let options = self.0.iter().map(String::as_str);
        ["strace", "-DDD"].into_iter().chain(options).collect()
    }

    /// Traces a thread that runs already.
    pub fn attach(&self, pid: u32) -> Child {
        let mut strace = Command::new("strace");
        let strace = strace.args(&self.0).arg("-p").arg(pid.to_string());
        strace.spawn().expect("start the tracer")
    }
}

//! One command as a tree of processes: start it, watch it, end it, and lose nobody.
//!
//! Between Mino and the shell stands a *guard*, a fork of Mino that never executes anything:
//!
//! ```text
//! mino ── wire (socket) ── guard ── shell (own session and group) ── whatever it starts
//!                            └───── whatever lost its parent (the guard is its subreaper)
//! ```
//!
//! Owns: everything between the fork and the reaping. Promises: when Mino dies, however it dies,
//! the wire is cut and the guard, even a stopped one, kills the shell's group and everyone else below it;
//! every descendant stays below the guard,
//! also one that left the session, so a command's processes can't be mistaken for another's or for
//! those of a program that embeds this one; every signal is sent to a number that can't have been
//! recycled, since the guard leaves the shell, and everyone it adopted, unreaped until
//! [`Running::release`]; the command gets descriptors 0, 1 and 2 and nothing of Mino's.
//! Leans on: Linux (`PR_SET_CHILD_SUBREAPER`, 3.4); `/proc` for finding who left the group, where
//! without it only the group is known. Gives up: a command that kills its guard loses the exit
//! code; whoever left its group then falls to this process, if that is a subreaper (see
//! [`prepare_process`]), and is found there.
//!
//! After a fork in a process with threads, memory may not be allocated and no lock taken. So all
//! that [`guard`] and [`shell`] need is made before, in a [`Plan`], and they make system calls only.

use std::ffi::{CStr, CString, OsStr, OsString, c_char, c_int};
use std::fs::{self, File};
use std::io::{self, PipeReader, Read, Write};
use std::mem;
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use libc::pid_t;

use crate::limits;

/// What to run, in the form that the kernel takes.
pub struct Program {
    path: CString,
    arguments: Vec<CString>,
    environment: Vec<CString>,
    directory: CString,
}

impl Program {
    /// `arguments` begin with the name that the program sees as its own. Fails on a NUL byte.
    pub fn new(
        path: &Path,
        arguments: &[&OsStr],
        environment: &[OsString],
        directory: &Path,
    ) -> io::Result<Program> {
        let text = |text: &OsStr| CString::new(text.as_bytes());
        Ok(Program {
            path: text(path.as_os_str())?,
            arguments: arguments.iter().map(|&a| text(a)).collect::<Result<_, _>>()?,
            environment: environment.iter().map(|e| text(e)).collect::<Result<_, _>>()?,
            directory: text(directory.as_os_str())?,
        })
    }
}

/// How far a start had come when it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Making a process, and the descriptors and attributes it needs.
    Process,
    /// Entering the working directory.
    Directory,
    /// Executing the program.
    Execute,
}

/// Why the program does not run.
#[derive(Debug)]
pub struct StartError {
    pub step: Step,
    pub error: io::Error,
}

impl From<io::Error> for StartError {
    fn from(error: io::Error) -> StartError {
        let step = Step::Process;
        StartError { step, error }
    }
}

/// How the shell itself ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Code(i32),
    Signal(i32),
    /// Overdue, and ended by its guard since Mino, stopped itself, did not.
    Overdue,
    /// Its guard was killed, and the knowledge is gone with it.
    Unknown,
}

/// A process that is neither dead nor a zombie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    pub pid: i32,
    /// The kernel's short name of it, as it chose to be called: not to be trusted.
    pub name: String,
    /// Its process group; see [`Running::group`].
    pub group: i32,
    parent: pid_t,
    alive: bool,
}

/// What [`Running::wait`] found.
#[derive(Clone, Copy, Debug)]
pub struct Ready {
    /// [`Running::read`] will not block.
    pub output: bool,
    /// [`Running::take_report`] will not block.
    pub report: bool,
}

struct Guard {
    pid: pid_t,
    wire: UnixStream,
}

/// Guards that wait for processes which were left alone. Each is our unreaped child, so its number
/// is its own; while it lives it reaps what it guards.
static RELEASED: Mutex<Vec<Guard>> = Mutex::new(Vec::new());

/// The guard of the command that runs now, or 0; see [`orphans`], which may be asked on another thread.
static CURRENT: AtomicI32 = AtomicI32::new(0);

/// A started command. To be given back by [`Running::release`]; merely dropping it cuts the wire,
/// and the guard kills the group.
pub struct Running {
    guard: Guard,
    shell: pid_t,
    output: PipeReader,
    exit: Option<Exit>,
    failure: Option<StartError>,
}

// What travels over the wire: two numbers, what and its value. Steps that failed carry `errno`.
const STARTED: i32 = 0;
const EXITED: i32 = 1;
const KILLED: i32 = 2;
const OVERDUE: i32 = 3;
const NO_PROCESS: i32 = 4;
const NO_DIRECTORY: i32 = 5;
const NO_EXECUTE: i32 = 6;

impl Running {
    /// Starts `program` with standard input from `/dev/null` and both outputs on one pipe. Returns
    /// when its process group exists; what fails later comes as a report. The group is ended after
    /// `limit` even if this process can't do so.
    pub fn start(program: &Program, limit: Duration) -> Result<Running, StartError> {
        reap_strays();
        let null = nothing()?;
        let (output, output_end) = io::pipe()?;
        let (wire, wire_end) = UnixStream::pair()?;
        let pointers = |texts: &[CString]| -> Vec<*const c_char> {
            let ends = [ptr::null()];
            texts.iter().map(|t| t.as_ptr()).chain(ends).collect()
        };
        let (arguments, environment) = (pointers(&program.arguments), pointers(&program.environment));
        let pid = fork_guard(&Plan {
            path: program.path.as_ptr(),
            arguments: arguments.as_ptr(),
            environment: environment.as_ptr(),
            directory: program.directory.as_ptr(),
            null: null.as_raw_fd(),
            output: output_end.as_raw_fd(),
            wire: wire_end.as_raw_fd(),
            descriptors: descriptor_limit(),
            millis: i64::try_from(limit.as_millis()).unwrap_or(i64::MAX / 2),
        })?;
        // Ours must go at once: the pipe and the wire end when their last other holder does.
        drop((output_end, wire_end));
        CURRENT.store(pid, Ordering::SeqCst);
        let guard = Guard { pid, wire };
        match guard.first_report() {
            Ok(shell) => Ok(Running { guard, shell, output, exit: None, failure: None }),
            Err(error) => {
                // An error means that the wire is cut already.
                let _ = guard.wire.shutdown(Shutdown::Write);
                guard.retire(Instant::now() + Duration::from_millis(limits::REAP_MILLIS));
                Err(error)
            }
        }
    }

    /// Waits until there is output (if `output` is asked for), a report, or something to read on
    /// `also`, but not longer than to `until`.
    pub fn wait(&self, output: bool, also: Option<BorrowedFd<'_>>, until: Instant) -> io::Result<Ready> {
        let wire = (self.exit != Some(Exit::Unknown)).then(|| self.guard.wire.as_fd());
        let pipe = output.then(|| self.output.as_fd());
        let [output, report, _] = poll([pipe, wire, also], until)?;
        Ok(Ready { output, report })
    }

    /// As `read(2)` on the pipe: 0 at its end.
    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.output.read(buffer)
    }

    /// Takes in what the guard reports. Its silence for good (it was killed) is an [`Exit`] too.
    pub fn take_report(&mut self) {
        match self.guard.read() {
            Ok((EXITED, code)) => self.exit = Some(Exit::Code(code)),
            Ok((KILLED, signal)) => self.exit = Some(Exit::Signal(signal)),
            Ok((OVERDUE, _)) => self.exit = Some(Exit::Overdue),
            Ok((what, number)) => self.failure = Some(failure(what, number)),
            Err(_) => {
                // The shell has died with its guard, and nobody holds its number any more: this is
                // the last moment at which its group may be addressed.
                self.kill_group();
                self.exit = Some(Exit::Unknown);
            }
        }
    }

    /// How the shell ended, once that was reported.
    pub fn exit(&self) -> Option<Exit> {
        self.exit
    }

    /// Why the program never ran, once that was reported.
    pub fn failure(&self) -> Option<&StartError> {
        self.failure.as_ref()
    }

    /// The number of the process group.
    pub fn group(&self) -> i32 {
        self.shell
    }

    /// Asks the group to end. Who is stopped must be continued to hear of it, and so must the guard,
    /// if the command stopped that.
    pub fn terminate_group(&self) {
        self.signal_group(libc::SIGTERM);
        self.signal_group(libc::SIGCONT);
        self.continue_guard();
    }

    fn continue_guard(&self) {
        // SAFETY: takes numbers only; the guard is our own unreaped child.
        unsafe { libc::kill(self.guard.pid, libc::SIGCONT) };
    }

    pub fn kill_group(&self) {
        self.signal_group(libc::SIGKILL);
    }

    fn signal_group(&self, signal: c_int) {
        if self.exit != Some(Exit::Unknown) {
            // SAFETY: takes numbers only. The group's is held by the unreaped shell. A failure means
            // that nobody is left in it.
            unsafe { libc::killpg(self.shell, signal) };
        }
    }

    /// Whether anybody of the group still lives; zombies do not count.
    pub fn group_is_alive(&self) -> bool {
        self.below().iter().any(|p| p.group == self.shell)
    }

    /// Kills everybody below the guard, in whatever session, until nobody is left or to `until`.
    ///
    /// Only the guard's own children are killed, whose numbers it holds once the shell's end was
    /// reported; their orphans become its children in turn and are met in the next round. One list
    /// of dead children proves nothing: the last of them may have died after the list was made, and
    /// its own child joined since. The same list again does, as whoever lives is below a child that
    /// lives, and the dead have no more children. Who keeps stopping the guard is among the killed.
    pub fn kill_descendants(&self, until: Instant) {
        let mut dead = vec![];
        while Instant::now() < until {
            self.continue_guard();
            let listed = self.roots();
            let is_living = |pid: &pid_t| status(*pid).is_some_and(|process| process.alive);
            let living: Vec<pid_t> = listed.iter().copied().filter(is_living).collect();
            for &pid in &living {
                // SAFETY: takes numbers only.
                unsafe { libc::kill(pid, libc::SIGKILL) };
            }
            if !living.is_empty() {
                thread::sleep(Duration::from_millis(limits::SWEEP_TICK_MILLIS));
            } else if listed == dead {
                return;
            } else {
                dead = listed;
            }
        }
    }

    /// Lets the guard reap what it holds, and answers who still lives. With nobody left the guard
    /// exits and is waited for, to `until`; otherwise it stays with them, see [`reap_strays`].
    pub fn release(self, until: Instant) -> Vec<Process> {
        let living = self.below();
        // A guard that was killed can't be told anything.
        let _ = (&self.guard.wire).write(&[0]);
        if living.is_empty() {
            self.guard.retire(until);
        } else {
            lock_released().push(self.guard);
        }
        CURRENT.store(0, Ordering::SeqCst);
        reap_strays();
        living
    }

    /// Everyone alive below the guard, as of one moment: an orphan moves to the guard, and is not
    /// to be missed because it moved behind our back.
    fn below(&self) -> Vec<Process> {
        let mut found = vec![];
        for _ in 0..limits::TREE_LOOKS {
            let own = self.roots();
            found = with_descendants(own.clone());
            if self.roots() == own {
                break;
            }
        }
        found
    }

    /// The children of the guard; once that was killed, those that it left to this process.
    fn roots(&self) -> Vec<pid_t> {
        match self.exit {
            Some(Exit::Unknown) => orphans(),
            _ => children(self.guard.pid),
        }
    }
}

impl Guard {
    /// The group's number; or why there is none.
    fn first_report(&self) -> Result<pid_t, StartError> {
        let patience = Duration::from_secs(limits::START_SECONDS);
        self.wire.set_read_timeout(Some(patience))?;
        match self.read()? {
            (STARTED, shell) => Ok(shell),
            (EXITED | KILLED | OVERDUE, _) => Err(io::Error::other("it was killed as it began").into()),
            (what, number) => Err(failure(what, number)),
        }
    }

    fn read(&self) -> io::Result<(i32, i32)> {
        let mut message = [0; 8];
        (&self.wire).read_exact(&mut message)?;
        let [a, b, c, d, e, f, g, h] = message;
        Ok((i32::from_ne_bytes([a, b, c, d]), i32::from_ne_bytes([e, f, g, h])))
    }

    /// Whether the guard ends before `until`. What it still has to report interests nobody.
    fn hangs_up(&self, until: Instant) -> bool {
        while matches!(poll([Some(self.wire.as_fd())], until), Ok([true])) {
            if self.read().is_err() {
                return true;
            }
        }
        false
    }

    /// Reaps a guard that has ended; answers whether it still lives (only with `WNOHANG`).
    fn reap(&self, options: c_int) -> bool {
        // SAFETY: takes numbers only, no status is asked for. An error: somebody else has reaped it
        // (this process ignores SIGCHLD), and it is gone as well.
        unsafe { libc::waitpid(self.pid, ptr::null_mut(), options) == 0 }
    }

    /// Waits until the guard, which has no reason to stay, ends, and reaps it.
    fn retire(self, until: Instant) {
        if self.hangs_up(until) {
            self.reap(0);
        } else {
            lock_released().push(self);
        }
    }
}

/// What a command reads. In a root directory without `/dev/null`, a pipe that nobody writes to is
/// just as empty.
fn nothing() -> io::Result<OwnedFd> {
    match File::options().read(true).write(true).open("/dev/null") {
        Ok(null) => Ok(null.into()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(io::pipe()?.0.into()),
        Err(error) => {
            let why = format!("/dev/null: {error}");
            Err(io::Error::new(error.kind(), why))
        }
    }
}

fn failure(what: i32, number: i32) -> StartError {
    let step = match what {
        NO_DIRECTORY => Step::Directory,
        NO_EXECUTE => Step::Execute,
        _ => Step::Process,
    };
    let error = io::Error::from_raw_os_error(number);
    StartError { step, error }
}

fn lock_released() -> std::sync::MutexGuard<'static, Vec<Guard>> {
    RELEASED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reaps the guards whose last process has ended since, and who was left by guards that were killed.
/// Never blocks; to be called now and then.
pub fn reap_strays() {
    lock_released().retain(|guard| guard.reap(libc::WNOHANG));
    for pid in orphans() {
        // SAFETY: takes numbers only, no status is asked for.
        unsafe { libc::waitpid(pid, ptr::null_mut(), libc::WNOHANG) };
    }
}

/// What guards that were killed have left to this process; nobody unless it is a subreaper, which
/// has no other children than guards. The running command's guard is nobody's to reap but the
/// command's: until then its number must stay its own, even if it was killed.
fn orphans() -> Vec<pid_t> {
    let mut is_subreaper: c_int = 0;
    // SAFETY: the call writes one int, which `is_subreaper` is.
    unsafe { libc::prctl(libc::PR_GET_CHILD_SUBREAPER, &raw mut is_subreaper) };
    if is_subreaper == 0 {
        return vec![];
    }
    let released = lock_released();
    let current = CURRENT.load(Ordering::SeqCst);
    let is_guard = |pid: &pid_t| *pid == current || released.iter().any(|guard| guard.pid == *pid);
    // SAFETY: takes nothing and returns a number.
    let mut found = children(unsafe { libc::getpid() });
    found.retain(|pid| !is_guard(pid));
    found
}

/// For each descriptor, whether reading it will not block, within the time to `until`. A signal
/// ends the wait early.
fn poll<const N: usize>(descriptors: [Option<BorrowedFd<'_>>; N], until: Instant) -> io::Result<[bool; N]> {
    let mut entries = descriptors.map(|fd| libc::pollfd {
        fd: fd.map_or(-1, |fd| fd.as_raw_fd()),
        events: libc::POLLIN,
        revents: 0,
    });
    // Rounded up, since a wait of 0 ms just before the end would be a busy loop.
    let left = until.saturating_duration_since(Instant::now());
    let millis = c_int::try_from(left.as_micros().div_ceil(1000)).unwrap_or(c_int::MAX);
    // SAFETY: `entries` has N initialised entries, and poll ignores those with descriptor -1.
    let found = unsafe { libc::poll(entries.as_mut_ptr(), N as libc::nfds_t, millis) };
    let error = io::Error::last_os_error();
    if found < 0 && error.kind() != io::ErrorKind::Interrupted {
        return Err(error);
    }
    Ok(entries.map(|entry| found > 0 && entry.revents != 0))
}

// --- who is who, from /proc -------------------------------------------------------------------

/// The children of a process, zombies included, in no order.
fn children(parent: pid_t) -> Vec<pid_t> {
    listed_children(parent).unwrap_or_else(|| scanned_children(parent))
}

/// Those of `processes` that live, and everyone alive below them.
fn with_descendants(mut processes: Vec<pid_t>) -> Vec<Process> {
    let mut found = vec![];
    while let Some(pid) = processes.pop()
        && found.len() < limits::TREE_PROCESSES
    {
        // The children of the dead are somebody else's by now.
        if let Some(process) = status(pid).filter(|process| process.alive) {
            processes.extend(children(pid));
            found.push(process);
        }
    }
    found
}

/// From the kernel's own list, which not every kernel has and not every process may read.
fn listed_children(parent: pid_t) -> Option<Vec<pid_t>> {
    let mut found = Vec::new();
    for thread in fs::read_dir(format!("/proc/{parent}/task")).ok()? {
        let list = fs::read_to_string(thread.ok()?.path().join("children")).ok()?;
        found.extend(list.split(' ').filter_map(|pid| pid.parse::<pid_t>().ok()));
    }
    Some(found)
}

fn scanned_children(parent: pid_t) -> Vec<pid_t> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter_map(|entry| status(entry.file_name().to_str()?.parse().ok()?))
        .filter(|process| process.parent == parent)
        .map(|process| process.pid)
        .collect()
}

/// `/proc/PID/stat`: `4242 (name) S parent group ...`, the number of threads being the 20th field
/// (proc_pid_stat(5)). The name may hold blanks and parentheses, hence the last one.
fn status(pid: pid_t) -> Option<Process> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    let (_, rest) = stat.split_once('(')?;
    let (name, rest) = rest.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    // A process whose first thread has ended is shown as a zombie while the others run.
    let threads = fields.nth(14)?.parse::<u32>().ok()?;
    Some(Process {
        pid,
        name: name.to_owned(),
        parent,
        group,
        alive: !matches!(state, "Z" | "X") || threads > 1,
    })
}

// --- after the fork: no allocation, no locks, no panics ---------------------------------------

struct Plan {
    path: *const c_char,
    arguments: *const *const c_char,
    environment: *const *const c_char,
    directory: *const c_char,
    null: RawFd,
    output: RawFd,
    wire: RawFd,
    descriptors: c_int,
    /// From the fork to where the guard ends what still runs.
    millis: i64,
}

/// Where the guard keeps its end of the wire.
const WIRE: RawFd = 3;

fn fork_guard(plan: &Plan) -> io::Result<pid_t> {
    // SAFETY: both sets are valid, if unfinished, memory of their type until the calls fill them.
    // The child runs `guard` alone, which keeps to async-signal-safe calls and never returns; all
    // signals are blocked, so no handler of this process can run in it.
    unsafe {
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = (mem::zeroed(), mem::zeroed());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        let pid = libc::fork();
        let error = io::Error::last_os_error();
        if pid == 0 {
            guard(plan);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, ptr::null_mut());
        if pid < 0 { Err(error) } else { Ok(pid) }
    }
}

fn guard(plan: &Plan) -> ! {
    // SAFETY: system calls on numbers, on `plan`, whose memory is a copy of the parent's, and on
    // locals. The descriptors in `plan` are above 2, since the runtime keeps 0 to 2 open; 3 may be
    // one of them, but by then it has been copied.
    unsafe {
        // Away from Mino's group: a signal sent to all of that must not silence its guard.
        libc::setsid();
        // A command can stop its guard. The end of Mino sets it going again, to see the wire cut.
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGCONT);
        let placed = libc::dup2(plan.null, 0) == 0
            && libc::dup2(plan.output, 1) == 1
            && libc::dup2(plan.output, 2) == 2
            && libc::dup2(plan.wire, WIRE) == WIRE
            && libc::fcntl(WIRE, libc::F_SETFD, libc::FD_CLOEXEC) == 0
            && libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) == 0
            // So that SIGCHLD interrupts a wait, which a signal that is ignored does not.
            && libc::signal(libc::SIGCHLD, on_child as *const () as libc::sighandler_t) != libc::SIG_ERR;
        if !placed {
            fail(plan.wire, NO_PROCESS);
        }
        // Above all the journal: its lock would live on in the copy.
        close_from(WIRE + 1, plan.descriptors);
        libc::prctl(libc::PR_SET_NAME, c"mino-guard".as_ptr());
        let own = libc::getpid();
        match libc::fork() {
            -1 => fail(WIRE, NO_PROCESS),
            0 => shell(plan, own),
            child => {
                // The output belongs to the command alone, or its end would never come.
                libc::dup2(0, 1);
                libc::dup2(0, 2);
                keep_watch(child, now_millis() + plan.millis)
            }
        }
    }
}

fn shell(plan: &Plan, guard: pid_t) -> ! {
    // SAFETY: as for `guard`; the pointers lead to texts and arrays that end in NUL and null.
    unsafe {
        libc::setsid();
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if libc::getppid() != guard {
            libc::_exit(127);
        }
        report(WIRE, STARTED, libc::getpid());
        // By the system call itself: the C library hides its own two signals, yet leaves one of them
        // ignored in what it starts (glibc, posix_spawn). All zero is the default on every machine.
        let default = [0_u64; 8];
        for number in 1..=64 {
            libc::syscall(libc::SYS_rt_sigaction, number, &default, ptr::null_mut::<u64>(), 8_usize);
        }
        if libc::chdir(plan.directory) != 0 {
            fail(WIRE, NO_DIRECTORY);
        }
        let mut none: libc::sigset_t = mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, ptr::null_mut());
        libc::execve(plan.path, plan.arguments, plan.environment);
        fail(WIRE, NO_EXECUTE)
    }
}

extern "C" fn on_child(_: c_int) {}

/// The guard's life: reap orphans; report the shell's end and from then on hold everything until
/// the wire brings a byte, or, when the wire is cut, kill the group and everyone who left it.
///
/// Whoever stops Mino (Ctrl+Z, or the command itself) doesn't stop the clock: from `overdue` on, the
/// guard ends the group by itself.
fn keep_watch(shell: pid_t, overdue: i64) -> ! {
    let (mut held, mut reported, mut ended) = (true, false, false);
    // SAFETY: system calls on numbers and locals.
    unsafe {
        let mut but_children: libc::sigset_t = mem::zeroed();
        libc::sigfillset(&mut but_children);
        libc::sigdelset(&mut but_children, libc::SIGCHLD);
        loop {
            let mut wire = libc::pollfd { fd: WIRE, events: libc::POLLIN, revents: 0 };
            let left = (overdue - now_millis()).max(0);
            let left = libc::timespec { tv_sec: left / 1_000, tv_nsec: left % 1_000 * 1_000_000 };
            let is_waiting = held && !reported && !ended;
            let patience = if is_waiting { &raw const left } else { ptr::null() };
            libc::ppoll(&mut wire, 1, patience, &but_children);
            if is_waiting && now_millis() >= overdue {
                libc::kill(-shell, libc::SIGKILL);
                ended = true;
            }
            let mut byte = 0_u8;
            match libc::recv(WIRE, (&raw mut byte).cast(), 1, libc::MSG_DONTWAIT) {
                0 => {
                    if held {
                        libc::kill(-shell, libc::SIGKILL);
                        end_children();
                    }
                    libc::_exit(0);
                }
                1 => held = false,
                // Nothing yet; or, once, that our last report was never read.
                _ => {}
            }
            while !(held && reported) {
                let mut info: libc::siginfo_t = mem::zeroed();
                let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
                if libc::waitid(libc::P_ALL, 0, &mut info, options) != 0 {
                    // No children: everyone is dead and reaped.
                    libc::_exit(0);
                }
                match info.si_pid() {
                    0 => break,
                    pid if pid == shell && held => {
                        let own_will = info.si_code == libc::CLD_EXITED;
                        let what = match (own_will, ended) {
                            (true, _) => EXITED,
                            (false, true) => OVERDUE,
                            (false, false) => KILLED,
                        };
                        report(WIRE, what, info.si_status());
                        reported = true;
                    }
                    pid => {
                        libc::waitpid(pid, ptr::null_mut(), libc::WNOHANG);
                    }
                }
            }
        }
    }
}

/// The monotonic clock, which no one can set.
fn now_millis() -> i64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one timespec, which `now` is.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec * 1_000 + now.tv_nsec / 1_000_000
}

/// Kills the guard's children, who are or become all that is left of the command, until there are
/// none. Each round ends one at least.
fn end_children() {
    let mut list = [0_u8; 4096];
    for _ in 0..limits::TREE_PROCESSES {
        // SAFETY: system calls on numbers, on a constant text and on `list`, whose size is told.
        unsafe {
            let file = libc::open(c"/proc/thread-self/children".as_ptr(), libc::O_RDONLY);
            let length = libc::read(file, list.as_mut_ptr().cast(), list.len());
            libc::close(file);
            let mut pid: pid_t = 0;
            for byte in list.iter().take(usize::try_from(length).unwrap_or(0)) {
                match byte {
                    b'0'..=b'9' => pid = pid.wrapping_mul(10) + pid_t::from(byte - b'0'),
                    // Never 0 or less, which would be whole groups.
                    _ if pid > 1 => {
                        libc::kill(pid, libc::SIGKILL);
                        pid = 0;
                    }
                    _ => {}
                }
            }
            if length <= 0 || libc::waitpid(-1, ptr::null_mut(), 0) < 0 {
                return;
            }
            while libc::waitpid(-1, ptr::null_mut(), libc::WNOHANG) > 0 {}
        }
    }
}

fn report(wire: RawFd, what: i32, value: i32) {
    let message = [what, value];
    // SAFETY: `message` has that many bytes. A failure means that Mino is gone, which the guard will see.
    unsafe { libc::write(wire, message.as_ptr().cast(), mem::size_of_val(&message)) };
}

fn fail(wire: RawFd, what: i32) -> ! {
    let number = io::Error::last_os_error().raw_os_error().unwrap_or(0);
    report(wire, what, number);
    // SAFETY: ends this process without running anything of the parent's.
    unsafe { libc::_exit(127) }
}

/// Closes all descriptors from `first` on; where the kernel has no call for that, those below `limit`.
fn close_from(first: RawFd, limit: c_int) {
    // SAFETY: this is a forked child; nothing in it uses any of them again.
    unsafe {
        if libc::syscall(libc::SYS_close_range, first, c_int::MAX, 0) != 0 {
            for descriptor in first..limit {
                libc::close(descriptor);
            }
        }
    }
}

fn descriptor_limit() -> c_int {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is memory of the type that is filled in.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    c_int::try_from(limit.rlim_cur).map_or(limits::DESCRIPTORS, |n| n.min(limits::DESCRIPTORS))
}

// --- this process itself ----------------------------------------------------------------------

/// Makes this process fit to run commands: another process of the account can't read its memory
/// or environment (root can), no descriptor it was started with reaches a command, and what a killed
/// guard leaves falls to it. To be called once, before threads exist, by a program that starts no
/// other processes and one command at a time.
pub fn prepare_process() -> io::Result<()> {
    // SAFETY: takes numbers only.
    if unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: takes numbers only. Without it, a killed guard's processes are merely not found.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) };
    let (first, all) = (3, libc::c_uint::MAX);
    // SAFETY: takes numbers only.
    if unsafe { libc::syscall(libc::SYS_close_range, first, all, libc::CLOSE_RANGE_CLOEXEC) } == 0 {
        return Ok(());
    }
    // An older kernel. Without /proc there is still the closing after the fork.
    let inherited = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    for descriptor in inherited.filter_map(|entry| entry.file_name().to_str()?.parse().ok()) {
        if descriptor > 2 {
            // SAFETY: takes numbers only; the one that is not open any more is the list's own.
            unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
    }
    Ok(())
}

/// Has glibc's allocator keep one heap for all threads, of which only one is ever busy, and keep
/// large blocks out of it, so that they grow without being copied and go back to the system. To be
/// called before threads exist. Other C libraries have no such settings.
pub fn configure_allocator() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes numbers only. A failure leaves things as they were (mallopt(3)).
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_MMAP_THRESHOLD, limits::BLOCK_BYTES);
    }
}

/// Overwrites the value of an environment variable, wherever it stands in the environment, with
/// NUL bytes, so that `/proc` does not show it even to root. To be called before threads exist:
/// nobody else may be looking at the environment.
pub fn overwrite_env_value(name: &str) {
    // SAFETY: the name and type of POSIX (environ(7)).
    unsafe extern "C" {
        static environ: *const *mut c_char;
    }
    // SAFETY: the C library keeps `environ` as an array of texts that ends in a null pointer, or as
    // null. What is overwritten lies inside a text, before its NUL, and the stack block that the
    // texts are in is writable. Nobody else is looking, as the caller promises.
    unsafe {
        let mut entry = environ;
        while !entry.is_null() && !(*entry).is_null() {
            let text = CStr::from_ptr(*entry).to_bytes();
            let rest = text.strip_prefix(name.as_bytes());
            if let Some(value) = rest.and_then(|rest| rest.strip_prefix(b"=")) {
                let length = value.len();
                (*entry).add(text.len() - length).write_bytes(0, length);
            }
            entry = entry.add(1);
        }
    }
}

/// Restricts name lookup to the hosts file and DNS, which a statically linked glibc can do itself.
/// Other services named in `nsswitch.conf` would load a library of the system's own glibc, and
/// that of a newer one crashes the process. To be called before a lookup, and not earlier, since
/// it reads that file; it works once. Does nothing in other builds.
pub fn configure_name_service() {
    #[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
    {
        // SAFETY: the signature of glibc's nss.h.
        unsafe extern "C" {
            fn __nss_configure_lookup(database: *const c_char, services: *const c_char) -> c_int;
        }
        static ONCE: std::sync::Once = std::sync::Once::new();
        // SAFETY: two constant texts, which the function copies (glibc, nss/nsswitch.c). Its failure
        // leaves the lookup as it was.
        ONCE.call_once(|| unsafe {
            __nss_configure_lookup(c"hosts".as_ptr(), c"files dns".as_ptr());
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_to_find_children_agree() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = pid_t::try_from(child.id()).unwrap();
        let own = pid_t::try_from(std::process::id()).unwrap();
        assert!(scanned_children(own).contains(&pid));
        // Not every kernel has the list.
        assert!(listed_children(own).is_none_or(|list| list.contains(&pid)));
        let living = status(pid).unwrap();
        assert_eq!((living.parent, living.alive), (own, true));

        child.kill().unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        while status(pid).unwrap().alive {
            assert!(Instant::now() < until);
        }
        assert!(children(own).contains(&pid), "a zombie is still a child");
        child.wait().unwrap();
        assert_eq!(status(pid), None);
    }
}

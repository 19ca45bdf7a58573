//! Signals as values: one thread waits for them, everyone else looks at a flag or polls a pipe.
//!
//! Owns: the signal mask of the process, the thread that waits, and the once-a-second tick that a
//! blocked main thread can't give. Promises: the flag is set before anything is woken, so whoever
//! wakes sees it; a call that the main thread is blocked in all the same, such as the read of a line
//! that Ctrl+C has just thrown away, ends with EINTR; a signal that was ignored at start stays
//! ignored; the one signal handler does nothing. Leans on: a blocked signal stays pending until
//! `sigtimedwait` takes it (signal(7)), also SIGCONT and SIGWINCH, whose default is to be ignored.
//! Gives up: SIGKILL and SIGSTOP, as everyone must.

use std::fs::File;
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::limits::TICK_MILLIS;

/// The signals that end Mino.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    Hangup,
    Interrupt,
    Terminate,
}

impl Signal {
    const ALL: [Signal; 3] = [Signal::Hangup, Signal::Interrupt, Signal::Terminate];

    fn number(self) -> i32 {
        match self {
            Signal::Hangup => libc::SIGHUP,
            Signal::Interrupt => libc::SIGINT,
            Signal::Terminate => libc::SIGTERM,
        }
    }

    fn from_number(number: i32) -> Option<Signal> {
        Signal::ALL.into_iter().find(|signal| signal.number() == number)
    }

    /// The exit code that a shell reports for it: 128 and its number.
    pub fn exit_code(self) -> u8 {
        match self {
            Signal::Hangup => 129,
            Signal::Interrupt => 130,
            Signal::Terminate => 143,
        }
    }
}

type Hook = Box<dyn FnMut() + Send>;

struct Inner {
    signal: AtomicI32,
    /// Readable for good once a signal has come: nobody drains it.
    stop: (File, File),
    /// Readable after SIGCONT or SIGWINCH until somebody drains it.
    change: (File, File),
    on_stop: Mutex<Vec<Hook>>,
    on_tick: Mutex<Vec<Hook>>,
}

/// The handle that everyone who may have to stop holds. Clones are the same thing.
#[derive(Clone)]
pub struct Stop(Arc<Inner>);

impl Stop {
    /// A handle without a signal thread, for programs that bring their own; see [`Stop::request`].
    pub fn new() -> io::Result<Stop> {
        Ok(Stop(Arc::new(Inner {
            signal: AtomicI32::new(0),
            stop: pipe()?,
            change: pipe()?,
            on_stop: Mutex::default(),
            on_tick: Mutex::default(),
        })))
    }

    /// Blocks the signals and starts the thread that waits for them. To be called once, before any
    /// other thread exists (a mask is a thread's own, and inherited).
    pub fn install() -> io::Result<Stop> {
        let stop = Stop::new()?;
        let waited = block_signals()?;
        let handle = stop.clone();
        // A number here and a pointer in musl, which no thread could be handed.
        // SAFETY: takes nothing and can't fail.
        let main_thread = unsafe { libc::pthread_self() } as usize;
        thread::Builder::new()
            .name("signals".into())
            .stack_size(64 * 1024)
            .spawn(move || handle.wait_forever(&waited, main_thread))?;
        Ok(stop)
    }

    /// The signal that asked Mino to stop: the first that came.
    pub fn signal(&self) -> Option<Signal> {
        Signal::from_number(self.0.signal.load(Ordering::SeqCst))
    }

    pub fn stopped(&self) -> bool {
        self.signal().is_some()
    }

    /// As if `signal` had come: the line editor's Ctrl+C, and programs without a signal thread.
    pub fn request(&self, signal: Signal) {
        let first = self.0.signal.compare_exchange(0, signal.number(), Ordering::SeqCst, Ordering::SeqCst);
        if first.is_ok() {
            wake(&self.0.stop.1);
        }
        // Again for a second signal: a hook that was registered in between still gets its call.
        run(&self.0.on_stop);
    }

    /// Readable, and so for good, once Mino is to stop. For `poll`; never read from it.
    pub fn stop_fd(&self) -> BorrowedFd<'_> {
        self.0.stop.0.as_fd()
    }

    /// Readable after the window changed or the process was continued; see [`Stop::take_change`].
    pub fn change_fd(&self) -> BorrowedFd<'_> {
        self.0.change.0.as_fd()
    }

    /// Forgets the changes so far.
    pub fn take_change(&self) {
        let mut buffer = [0; 64];
        while matches!((&self.0.change.0).read(&mut buffer), Ok(n) if n > 0) {}
    }

    /// Calls `hook` on the signal thread when a signal comes; at once if one has come already.
    pub fn on_stop(&self, mut hook: impl FnMut() + Send + 'static) {
        if self.stopped() {
            hook();
        }
        lock(&self.0.on_stop).push(Box::new(hook));
    }

    /// Calls `hook` about once a second on the signal thread. It must not block.
    pub fn on_tick(&self, hook: impl FnMut() + Send + 'static) {
        lock(&self.0.on_tick).push(Box::new(hook));
    }

    fn wait_forever(&self, waited: &libc::sigset_t, main_thread: usize) {
        let mut patience = libc::timespec { tv_sec: 1, tv_nsec: 0 };
        loop {
            if self.stopped() {
                patience = libc::timespec { tv_sec: 0, tv_nsec: TICK_MILLIS as libc::c_long * 1_000_000 };
                // Again and again: it may come just before a call blocks.
                // SAFETY: the main thread ends with the process, and so is there.
                unsafe { libc::pthread_kill(main_thread as libc::pthread_t, NUDGE) };
            }
            // SAFETY: `waited` and `patience` are initialised and outlive the call; no siginfo is asked for.
            let number = unsafe { libc::sigtimedwait(waited, std::ptr::null_mut(), &patience) };
            match Signal::from_number(number) {
                Some(signal) => self.request(signal),
                None if number == libc::SIGCONT || number == libc::SIGWINCH => wake(&self.0.change.1),
                // EAGAIN: a second has passed. EINTR: the process was stopped and continued.
                None => run(&self.0.on_tick),
            }
        }
    }
}

/// What ends a blocked call of the main thread. By default the kernel ignores it, so nobody is hurt who
/// gets it without a handler.
const NUDGE: libc::c_int = libc::SIGURG;

/// A handler is what makes a call end with EINTR; there is nothing to do in it.
extern "C" fn on_nudge(_: libc::c_int) {}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run(hooks: &Mutex<Vec<Hook>>) {
    lock(hooks).iter_mut().for_each(|hook| hook());
}

fn wake(mut pipe: &File) {
    // A full pipe is as readable as can be, and there is nobody to tell of another failure.
    let _ = pipe.write(&[0]);
}

/// A pipe that neither blocks nor is inherited by a command.
fn pipe() -> io::Result<(File, File)> {
    use std::os::fd::FromRawFd;
    let mut ends = [0; 2];
    // SAFETY: `ends` has room for the two descriptors that pipe2 writes.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: pipe2 succeeded, so both are open and belong to nobody else.
    Ok(unsafe { (File::from_raw_fd(ends[0]), File::from_raw_fd(ends[1])) })
}

/// Blocks what the thread waits for and answers that set. Ignored signals are left out, since
/// `sigtimedwait` would take even those; SIGXFSZ becomes an error of `write`, SIGCHLD gets its
/// default back, without which an exit code is lost when the parent had ignored it, and [`NUDGE`] its
/// handler, without SA_RESTART.
fn block_signals() -> io::Result<libc::sigset_t> {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initialises the set it is given.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    for number in [libc::SIGHUP, libc::SIGINT, libc::SIGTERM, libc::SIGCONT, libc::SIGWINCH] {
        if !is_fatal(number) || !is_ignored(number)? {
            // SAFETY: the set was initialised above and the number is a signal's.
            unsafe { libc::sigaddset(set.as_mut_ptr(), number) };
        }
    }
    // SAFETY: sigemptyset initialised it.
    let set = unsafe { set.assume_init() };
    // SAFETY: both sets and the action (all zero but for its handler: no flags, nothing masked) are
    // initialised; IGN and DFL install no handler, and the one that is installed does nothing.
    let failed = unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        let mut nudge: libc::sigaction = std::mem::zeroed();
        nudge.sa_sigaction = on_nudge as *const () as libc::sighandler_t;
        libc::sigaction(NUDGE, &nudge, std::ptr::null_mut());
        libc::pthread_sigmask(libc::SIG_SETMASK, &set, std::ptr::null_mut())
    };
    if failed == 0 { Ok(set) } else { Err(io::Error::from_raw_os_error(failed)) }
}

fn is_fatal(number: i32) -> bool {
    Signal::from_number(number).is_some()
}

fn is_ignored(number: i32) -> io::Result<bool> {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: no new action is given, and the old one is written to memory of its type.
    if unsafe { libc::sigaction(number, std::ptr::null(), action.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: sigaction succeeded and has filled it in.
    Ok(unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN)
}

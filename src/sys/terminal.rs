//! The terminal on standard input: its settings, its size, waiting for it and giving it back.
//!
//! Owns: what was changed on the terminal, in one place of the process, so that every way out can
//! undo it: the guard's end, [`restore_now`] before an exit on any thread, and the panic hook.
//! Promises: settings are changed and restored only while Mino is in the foreground (from the
//! background the kernel would stop it, or the shell would find its own settings overwritten), and
//! bracketed paste is on only as long as they are changed. Nothing here blocks on a terminal that
//! takes no output once Mino is to stop. Leans on termios(3), `poll`, and the rule of every
//! job-control shell that it saves and resets the terminal around a stopped job. Gives up: a killed
//! process restores nothing, and a shell without job control leaves a stopped Mino's settings on.

use std::io::{self, IsTerminal};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::signal::Stop;
use crate::limits;

const PASTE_ON: &[u8] = b"\x1b[?2004h";
const PASTE_OFF: &[u8] = b"\x1b[?2004l";
const STOP_PAUSE: Duration = Duration::from_millis(limits::STOP_MILLIS);

/// Standard input.
pub fn input() -> BorrowedFd<'static> {
    // SAFETY: the Rust runtime opens descriptors 0 to 2 where they are closed, and nothing closes them.
    unsafe { BorrowedFd::borrow_raw(libc::STDIN_FILENO) }
}

/// Standard output.
pub fn output() -> BorrowedFd<'static> {
    // SAFETY: as for `input`.
    unsafe { BorrowedFd::borrow_raw(libc::STDOUT_FILENO) }
}

/// Standard error.
pub fn errors() -> BorrowedFd<'static> {
    // SAFETY: as for `input`.
    unsafe { BorrowedFd::borrow_raw(libc::STDERR_FILENO) }
}

/// Columns and rows of the terminal, at least 1 each; 80 and 24 where it does not say (ioctl_tty(2)).
pub fn size(fd: BorrowedFd) -> (usize, usize) {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: TIOCGWINSZ writes one winsize, which `size` is. On failure it stays zero.
    unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCGWINSZ, &mut size) };
    let or = |given: u16, usual| if given == 0 { usual } else { given.into() };
    (or(size.ws_col, 80), or(size.ws_row, 24))
}

/// Whether the error is what a terminal answers after it was closed.
pub fn is_hangup(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EIO)
}

/// For when a terminal turned out to be closed: reads and writes fail a moment before its SIGHUP comes,
/// and later still where a shell has to pass it on. Waits for it, so that this end is a hangup and not
/// an end of input; in vain where it is ignored, and so only for a while.
fn await_hangup(stop: &Stop) {
    let patience = Duration::from_millis(limits::HANGUP_MILLIS);
    // A wait that fails is as good as one that was in vain.
    let _ = poll(&mut [readable(stop.stop_fd())], Some(patience));
}

// --- waiting, reading, writing --------------------------------------------------------------

/// What ended a [`wait`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Something can be read, be it the end of the input or an error.
    Input,
    /// Mino is to stop.
    Stopped,
    /// The window changed or the process was continued; see [`Stop::take_change`].
    Changed,
    Timeout,
}

/// Waits until `fd` can be read. A wish to stop comes before a change, and a change before input.
pub fn wait(fd: BorrowedFd, stop: &Stop, timeout: Option<Duration>) -> io::Result<Wait> {
    let mut polled = [readable(stop.stop_fd()), readable(stop.change_fd()), readable(fd)];
    poll(&mut polled, timeout)?;
    // Both at once is what a closed terminal shows, and the end of a file or pipe never.
    let closed = libc::POLLHUP | libc::POLLERR;
    if polled[2].revents & closed == closed {
        await_hangup(stop);
    }
    Ok(match polled.map(|one| one.revents != 0) {
        _ if stop.stopped() => Wait::Stopped,
        [_, true, _] => Wait::Changed,
        [.., true] => Wait::Input,
        _ => Wait::Timeout,
    })
}

/// Lets the background wait for its turn. Answers whether it had to.
///
/// A read of the terminal would be stopped by the kernel at once, and the shell say so; a `poll`
/// would go on beside the shell, which then sends no SIGCONT with `fg`. So Mino is stopped here, and
/// again after `bg`. Returns at once when Mino is to stop, and after some attempts anyway: where
/// nobody could continue it, a process isn't stopped, and its read fails.
pub fn await_foreground(stop: &Stop) -> io::Result<bool> {
    if in_foreground() {
        return Ok(false);
    }
    for _ in 0..limits::STOP_ROUNDS {
        // A signal that came along with SIGCONT gets its time to arrive.
        let mut polled = [readable(stop.stop_fd())];
        poll(&mut polled, Some(STOP_PAUSE))?;
        if polled[0].revents != 0 || in_foreground() {
            break;
        }
        stop_group(libc::SIGTTIN);
        if in_foreground() {
            break;
        }
    }
    Ok(true)
}

fn readable(fd: BorrowedFd) -> libc::pollfd {
    libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 }
}

/// `poll` until something is ready or the time is up, however often it is interrupted.
fn poll(fds: &mut [libc::pollfd], timeout: Option<Duration>) -> io::Result<()> {
    let deadline = timeout.map(|timeout| Instant::now() + timeout);
    loop {
        let millis = deadline.map_or(-1, |end| {
            // Rounded up, so that the last part of a millisecond is not spent spinning.
            let left = end.saturating_duration_since(Instant::now()).as_micros();
            i32::try_from(left.div_ceil(1000)).unwrap_or(i32::MAX)
        });
        // SAFETY: the pointer and the length are those of the slice.
        let ready = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, millis) };
        if ready >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// One `read`, without any buffer behind it; 0 is the end of the input.
pub fn read(fd: BorrowedFd, buffer: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the pointer and the length are those of the buffer.
    let got = unsafe { libc::read(fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len()) };
    usize::try_from(got).map_err(|_| io::Error::last_os_error())
}

/// Writes all of `bytes`. A reader that takes nothing is waited for until Mino is to stop; then the
/// error is `Interrupted`.
pub fn write_all(fd: BorrowedFd, mut bytes: &[u8], stop: &Stop) -> io::Result<()> {
    while !bytes.is_empty() {
        let mut polled = [writable(fd), readable(stop.stop_fd())];
        poll(&mut polled, None)?;
        if polled[0].revents == 0 {
            return Err(io::ErrorKind::Interrupted.into());
        }
        bytes = match write_piece(fd, bytes, room_bytes(fd, bytes)) {
            Ok(written) => bytes.get(written..).unwrap_or_default(),
            Err(error) if is_for_later(&error) => continue,
            Err(error) => {
                if is_hangup(&error) {
                    await_hangup(stop);
                }
                return Err(error);
            }
        };
    }
    Ok(())
}

fn writable(fd: BorrowedFd) -> libc::pollfd {
    libc::pollfd { events: libc::POLLOUT, ..readable(fd) }
}

/// What a descriptor that can be written takes without blocking. A terminal may have little room.
fn room_bytes(fd: BorrowedFd, bytes: &[u8]) -> usize {
    if bytes.len() > limits::WRITE_BYTES && !fd.is_terminal() {
        limits::PIPE_BYTES
    } else {
        limits::WRITE_BYTES
    }
}

fn write_piece(fd: BorrowedFd, bytes: &[u8], room_bytes: usize) -> io::Result<usize> {
    let length = bytes.len().min(room_bytes);
    // SAFETY: `length` is at most the length of `bytes`.
    let written = unsafe { libc::write(fd.as_raw_fd(), bytes.as_ptr().cast(), length) };
    usize::try_from(written).map_err(|_| io::Error::last_os_error())
}

/// Whether the same call may succeed if repeated.
pub fn is_for_later(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock)
}

/// Writes a short text if that takes no waiting.
pub fn write_now(fd: BorrowedFd, bytes: &[u8]) {
    let mut polled = [writable(fd)];
    if poll(&mut polled, Some(Duration::ZERO)).is_ok() && polled[0].revents != 0 {
        // A terminal that fails here shows nothing at all, so what is written so is the least worry.
        let _ = write_piece(fd, bytes, limits::WRITE_BYTES);
    }
}

/// Drops what the driver holds, an unfinished line included; more may be on its way.
pub fn flush_input() {
    // SAFETY: takes a descriptor and a constant. It fails where there is no terminal to flush.
    unsafe { libc::tcflush(libc::STDIN_FILENO, libc::TCIFLUSH) };
}

// --- settings -------------------------------------------------------------------------------

/// How the terminal is to be while a [`Guard`] lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// Every byte as it comes: no echo, no lines, no signals from keys, no flow control.
    Keys,
    /// Lines edited by the driver and echoed by it, whole UTF-8 characters at a time.
    Lines,
    /// As `Lines` but without echo, and without the keys that suspend or dump core: a shell resets
    /// the terminal of a stopped job, and what is typed next would be echoed.
    Hidden,
}

impl Setting {
    fn of(self, mut settings: libc::termios) -> libc::termios {
        match self {
            Setting::Keys => {
                settings.c_iflag &= !(libc::BRKINT | libc::PARMRK | libc::ISTRIP | libc::INPCK);
                settings.c_iflag &= !(libc::INLCR | libc::IGNCR | libc::ICRNL | libc::IXON);
                settings.c_lflag &= !(libc::ECHO | libc::ICANON | libc::ISIG | libc::IEXTEN);
                settings.c_cc[libc::VMIN] = 1;
                settings.c_cc[libc::VTIME] = 0;
            }
            Setting::Lines => settings.c_iflag |= libc::IUTF8,
            Setting::Hidden => {
                settings.c_iflag |= libc::IUTF8;
                settings.c_lflag &= !(libc::ECHO | libc::ECHONL);
                settings.c_cc[libc::VSUSP] = libc::_POSIX_VDISABLE;
                settings.c_cc[libc::VQUIT] = libc::_POSIX_VDISABLE;
            }
        }
        settings
    }
}

struct Changed {
    setting: Setting,
    /// Where bracketed paste was asked for.
    paste: Option<BorrowedFd<'static>>,
    /// As found; none until the settings could be changed.
    original: Option<libc::termios>,
}

static CHANGED: Mutex<Option<Changed>> = Mutex::new(None);

fn changed() -> MutexGuard<'static, Option<Changed>> {
    CHANGED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The settings last until this is dropped. There is one at a time.
#[derive(Debug)]
#[must_use = "the settings are restored when the guard is dropped"]
pub struct Guard(());

impl Guard {
    /// Changes the terminal on standard input, and asks the one at `paste` to mark pastes.
    ///
    /// Where there is no terminal (any more), or Mino is in the background, nothing is changed now;
    /// see [`again`]. An error means that the terminal refused.
    pub fn enter(setting: Setting, paste: Option<BorrowedFd<'static>>) -> io::Result<Guard> {
        restore_now();
        let guard = Guard(());
        let mut state = changed();
        let new = state.insert(Changed { setting, paste, original: None });
        new.apply()?;
        Ok(guard)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        restore_now();
    }
}

impl Changed {
    /// Whether the settings had to be set: they are new, or somebody else has reset them.
    fn apply(&mut self) -> io::Result<bool> {
        if !in_foreground() {
            return Ok(false);
        }
        let Some(found) = settings() else {
            return Ok(false);
        };
        if self.original.is_some_and(|as_found| are_same(&self.setting.of(as_found), &found)) {
            return Ok(false);
        }
        set(&self.setting.of(found))?;
        self.original = Some(found);
        if let Some(screen) = self.paste {
            write_now(screen, PASTE_ON);
        }
        Ok(true)
    }

    fn undo(&self) {
        let Some(original) = self.original.filter(|_| in_foreground()) else {
            return;
        };
        if let Some(screen) = self.paste {
            write_now(screen, PASTE_OFF);
        }
        // A terminal that refuses what it had before is gone; nobody is left to tell.
        let _ = set(&original);
    }
}

/// Changes the terminal anew if the living guard's settings are not (or no longer) in force, as
/// after `fg`. Answers whether that was so: then the screen, too, is no longer as it was left.
pub fn again() -> bool {
    match changed().as_mut() {
        Some(changed) => changed.apply().unwrap_or(false),
        None => false,
    }
}

/// Gives the terminal back as it was found, from any thread. Does nothing the second time.
pub fn restore_now() {
    if let Some(changed) = changed().take() {
        changed.undo();
    }
}

/// Has a panic restore the terminal before it is reported. To be called once.
pub fn restore_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        restore_now();
        report(panic);
    }));
}

/// What Ctrl+Z does to the foreground: the terminal is given back and the process group stopped;
/// returns once it is continued, with the settings back in force if that is in the foreground.
pub fn suspend(stop: &Stop) -> io::Result<()> {
    if let Some(changed) = changed().as_ref() {
        changed.undo();
    }
    stop_group(libc::SIGTSTP);
    // Another thread may have been given the signal, and then this one runs on for a moment.
    poll(&mut [readable(stop.change_fd())], Some(STOP_PAUSE))?;
    again();
    Ok(())
}

/// Stops everyone in Mino's process group, as the driver does; ignored by the kernel where nobody
/// could continue them.
fn stop_group(signal: libc::c_int) {
    // SAFETY: takes numbers; 0 is the caller's own process group, to which the right always exists.
    unsafe { libc::kill(0, signal) };
}

/// Whether the terminal on standard input is Mino's to use, as one that controls no job always is.
pub fn in_foreground() -> bool {
    // SAFETY: both take and return numbers.
    let (foreground, own) = unsafe { (libc::tcgetpgrp(libc::STDIN_FILENO), libc::getpgrp()) };
    foreground < 0 || foreground == own
}

fn settings() -> Option<libc::termios> {
    let mut settings = MaybeUninit::uninit();
    // SAFETY: tcgetattr writes one termios, for which there is room.
    let done = unsafe { libc::tcgetattr(libc::STDIN_FILENO, settings.as_mut_ptr()) } == 0;
    // SAFETY: it succeeded, and so has filled it in.
    done.then(|| unsafe { settings.assume_init() })
}

/// At once, without waiting for output that a stopped terminal may never take.
fn set(settings: &libc::termios) -> io::Result<()> {
    // SAFETY: `settings` is a whole termios, as tcgetattr gave it but for some flags.
    if unsafe { libc::tcsetattr(libc::STDIN_FILENO, libc::TCSANOW, settings) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// By what `Setting` touches; the rest the driver may change by itself.
fn are_same(a: &libc::termios, b: &libc::termios) -> bool {
    (a.c_iflag, a.c_lflag, a.c_cc) == (b.c_iflag, b.c_lflag, b.c_cc)
}

//! Every word a person reads, and the one way it takes to the terminal.
//!
//! Owns: the two output streams, the waiting line, and the wording of banner, approval, results and
//! transcript. Promises: whatever came from outside passes `text::quote` or a `text::Cleaner` here;
//! a closed or full output is an error value, never a panic; the waiting line is gone before
//! anything else is written. In a chat, answers and tool blocks go to standard output and notices
//! to standard error; with `ask`, only the answer's text goes to standard output. Leans on:
//! unbuffered writes, so the two streams keep their order on a terminal. Gives up: no layout; a
//! terminal wraps long lines as it likes.

use std::io::{self, IsTerminal};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::limits::{BIG_COMMAND_BYTES, BIG_COMMAND_LINES, INTERRUPT_COLUMNS, PATIENCE_SECONDS};
use crate::step::{Display, Repeat, ToolResult, Usage};
use crate::sys::signal::Stop;
use crate::sys::terminal;
use crate::text::{self, Cleaner, quote, quote_os};

/// The question at the end of the approval screen.
pub const APPROVE: &str = "Approve this operation? [y/N] ";

/// Which of the two streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Out,
    Err,
}

impl Stream {
    pub fn fd(self) -> BorrowedFd<'static> {
        match self {
            Stream::Out => terminal::output(),
            Stream::Err => terminal::errors(),
        }
    }

    pub fn is_terminal(self) -> bool {
        self.fd().is_terminal()
    }
}

/// The line that says what is waited for and how long; drawn by the signal thread's tick.
#[derive(Default)]
struct WaitLine {
    waiting: Option<(&'static str, Option<u64>, Instant)>,
    /// Columns on the screen now.
    drawn: usize,
}

impl WaitLine {
    fn draw(&mut self, stream: Stream) {
        let Some((what, limit, since)) = &self.waiting else {
            return;
        };
        let seconds = since.elapsed().as_secs();
        if seconds < PATIENCE_SECONDS || !terminal::in_foreground() {
            return;
        }
        let line = match limit {
            Some(limit) => format!("{what} {seconds} s of {limit} s"),
            None => format!("{what} {seconds} s"),
        };
        let room = terminal::size(stream.fd()).0.saturating_sub(1);
        let line: String = line.chars().take(room).collect();
        let columns = line.chars().count();
        let padding = " ".repeat(self.drawn.saturating_sub(columns));
        // Never waits: this is the signal thread, which a stopped terminal must not hold up.
        terminal::write_now(stream.fd(), format!("\r{line}{padding}").as_bytes());
        self.drawn = columns.max(self.drawn);
    }

    fn erase(&mut self, stream: Stream, stop: &Stop) -> io::Result<()> {
        self.waiting = None;
        match std::mem::take(&mut self.drawn) {
            0 => Ok(()),
            columns => {
                let blank = format!("\r{}\r", " ".repeat(columns));
                terminal::write_all(stream.fd(), blank.as_bytes(), stop)
            }
        }
    }
}

fn lock(wait: &Mutex<WaitLine>) -> MutexGuard<'_, WaitLine> {
    wait.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The person's view of the program.
pub struct Screen {
    stop: Stop,
    /// Where labels, tool blocks and approval go besides the answer's text.
    talk: Stream,
    /// Where the approval may be shown: the first of the two streams that is a terminal.
    tty: Option<Stream>,
    wait: Arc<Mutex<WaitLine>>,
    waits: bool,
    colour: bool,
    cleaner: Cleaner,
    /// Whether the streams, taken as one screen, are at the start of a line.
    fresh: [bool; 2],
    one_screen: bool,
    in_answer: bool,
    /// The first failed write, kept for the exit code.
    failure: Option<io::Error>,
}

impl Screen {
    /// `ask`: only the answer goes to standard output. `escapes`: the terminal knows them.
    pub fn new(ask: bool, escapes: bool, colour: bool, stop: &Stop) -> Screen {
        let tty = [Stream::Out, Stream::Err].into_iter().find(|stream| stream.is_terminal());
        let wait = Arc::new(Mutex::new(WaitLine::default()));
        if let (Some(stream), true) = (tty, escapes) {
            let wait = Arc::clone(&wait);
            // The main thread holds the lock only while it writes; then there is nothing to draw.
            stop.on_tick(move || {
                if let Ok(mut wait) = wait.try_lock() {
                    wait.draw(stream);
                }
            });
        }
        Screen {
            stop: stop.clone(),
            talk: if ask { Stream::Err } else { Stream::Out },
            tty,
            wait,
            waits: tty.is_some() && escapes,
            colour: colour && tty.is_some(),
            cleaner: Cleaner::new(),
            fresh: [true; 2],
            one_screen: Stream::Out.is_terminal() && Stream::Err.is_terminal(),
            in_answer: false,
            failure: None,
        }
    }

    /// Where the approval question can be asked, if anywhere.
    pub fn tty(&self) -> Option<Stream> {
        self.tty
    }

    /// The first write that failed.
    pub fn take_failure(&mut self) -> Option<io::Error> {
        self.failure.take()
    }

    /// The only door to the streams. `text` is clean already.
    fn put(&mut self, stream: Stream, text: &str) -> io::Result<()> {
        let mut wait = lock(&self.wait);
        let done = match self.tty {
            Some(tty) => wait.erase(tty, &self.stop),
            None => Ok(()),
        };
        drop(wait);
        let done = done.and_then(|()| terminal::write_all(stream.fd(), text.as_bytes(), &self.stop));
        if let (Some(last), Ok(())) = (text.as_bytes().last(), &done) {
            self.set_fresh(stream, *last == b'\n');
        }
        done.map_err(|error| self.fail(error))
    }

    /// Remembers the first failure; the caller gets one like it.
    pub fn fail(&mut self, error: io::Error) -> io::Error {
        let copy = io::Error::from(error.kind());
        self.failure.get_or_insert(error);
        copy
    }

    fn set_fresh(&mut self, stream: Stream, fresh: bool) {
        match (self.one_screen, stream) {
            (true, _) => self.fresh = [fresh; 2],
            (false, Stream::Out) => self.fresh[0] = fresh,
            (false, Stream::Err) => self.fresh[1] = fresh,
        }
    }

    fn is_fresh(&self, stream: Stream) -> bool {
        match stream {
            Stream::Out => self.fresh[0],
            Stream::Err => self.fresh[1],
        }
    }

    /// Whole lines; whatever line was begun is ended first.
    fn lines(&mut self, stream: Stream, text: &str) -> io::Result<()> {
        let lead = if self.is_fresh(stream) { "" } else { "\n" };
        let end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
        self.put(stream, &format!("{lead}{text}{end}"))
    }

    /// A prompt or other unfinished line was written by someone else (the line editor).
    pub fn line_ended(&mut self) {
        self.fresh = [true; 2];
    }

    /// A prompt was written to standard output, and its line is not ended.
    pub fn line_begun(&mut self) {
        self.set_fresh(Stream::Out, false);
    }

    /// One line to standard error: a notice.
    pub fn notice(&mut self, text: &str) -> io::Result<()> {
        self.lines(Stream::Err, &text::clean(text))
    }

    /// One line of error and, where there is one, a line of hint.
    pub fn error(&mut self, text: &str, hint: Option<&str>) -> io::Result<()> {
        let hint = hint.map(|hint| format!("\nhint: {}", text::clean(hint))).unwrap_or_default();
        self.lines(Stream::Err, &format!("mino: {}{hint}", text::clean(text)))
    }

    /// Lines of the conversation's frame: banner, help, Goodbye.
    pub fn say(&mut self, text: &str) -> io::Result<()> {
        self.lines(self.talk, &text::clean(text))
    }

    /// What was read from a pipe, behind its prompt.
    pub fn echo(&mut self, text: &str) -> io::Result<()> {
        self.put(Stream::Out, &format!("{}\n", text::clean(text)))
    }

    /// The waiting line may appear until something else is written; `since` is when the wait began.
    pub fn wait_for(&mut self, what: &'static str, limit_seconds: Option<u64>, since: Instant) {
        let at_start = self.tty.is_some_and(|tty| self.is_fresh(tty));
        if self.waits && at_start {
            lock(&self.wait).waiting = Some((what, limit_seconds, since));
        }
    }

    /// A signal came while something was waited for; if it was typed, the terminal has shown it.
    pub fn interrupted(&mut self) {
        let mut wait = lock(&self.wait);
        if wait.drawn > 0 {
            wait.drawn += INTERRUPT_COLUMNS;
            drop(wait);
            // A screen that fails here fails again at the next line, where it counts.
            let _ = self.stop_waiting();
        } else if let Some(tty) = self.tty {
            drop(wait);
            self.set_fresh(tty, false);
        }
    }

    /// Nothing is waited for any more.
    pub fn stop_waiting(&mut self) -> io::Result<()> {
        let Some(tty) = self.tty else { return Ok(()) };
        let erased = lock(&self.wait).erase(tty, &self.stop);
        erased.map_err(|error| self.fail(error))
    }

    /// A piece of the answer. All of one piece goes out in one write.
    pub fn answer(&mut self, piece: &str) -> io::Result<()> {
        let mut out = self.begin_answer();
        self.cleaner.push(piece, &mut out);
        match out.is_empty() {
            true => Ok(()),
            false => self.put(Stream::Out, &out),
        }
    }

    /// The label of a response, once.
    fn begin_answer(&mut self) -> String {
        match std::mem::replace(&mut self.in_answer, true) || self.talk == Stream::Err {
            true => String::new(),
            false => format!("{}Assistant> ", if self.is_fresh(Stream::Out) { "" } else { "\n" }),
        }
    }

    /// The response is over: its line is ended, and what it cost is said where that is known.
    pub fn end_answer(&mut self, cost: Option<(Usage, u64)>) -> io::Result<()> {
        let mut out = self.begin_answer();
        let is_open = !out.is_empty() || !self.is_fresh(Stream::Out);
        out.push_str(if is_open { "\n" } else { "" });
        self.reset_answer();
        if !out.is_empty() {
            self.put(Stream::Out, &out)?;
        }
        match cost {
            Some((usage, seconds)) if self.waits && self.tty == Some(Stream::Out) => {
                self.usage(usage, seconds)
            }
            _ => Ok(()),
        }
    }

    /// The next piece begins a new response.
    pub fn reset_answer(&mut self) {
        self.in_answer = false;
        self.cleaner = Cleaner::new();
    }

    fn usage(&mut self, usage: Usage, seconds: u64) -> io::Result<()> {
        let parts = [("in", usage.input), ("cached", usage.cached), ("out", usage.output)];
        let tokens: Vec<_> =
            parts.iter().filter_map(|(name, count)| count.map(|count| format!("{count} {name}"))).collect();
        if tokens.is_empty() {
            return Ok(());
        }
        let line = format!("[tokens: {}; {seconds} s]", tokens.join(", "));
        let line = if self.colour { format!("\u{1b}[2m{line}\u{1b}[0m") } else { line };
        match self.talk.is_terminal() {
            true => self.lines(self.talk, &line),
            false => Ok(()),
        }
    }

    /// A call's result and its output.
    pub fn result(&mut self, result: &ToolResult) -> io::Result<()> {
        let text = format!("{}\n{}", result_label(result), text::clean(result.output()));
        self.lines(self.talk, text.trim_end_matches('\n'))
    }

    /// What would have been asked where nobody can be asked, and why it is denied.
    pub fn refused(&mut self, display: &Display, why: &str) -> io::Result<()> {
        self.lines(self.talk, &approval(display))?;
        self.notice(why)
    }

    /// Everything of the approval screen but the question.
    pub fn approval(&mut self, display: &Display) -> io::Result<()> {
        let Some(tty) = self.tty else { return Ok(()) };
        self.lines(tty, &approval(display))
    }

    /// A line right before the approval question, on its terminal.
    pub fn before_question(&mut self, text: &str) -> io::Result<()> {
        let Some(tty) = self.tty else { return Ok(()) };
        self.lines(tty, text)
    }
}

/// The two lines a chat starts with.
pub fn banner(conversation: &str, model: &str, server: &str) -> String {
    let version = env!("CARGO_PKG_VERSION");
    format!(
        "Mino {version} · conversation {conversation} · {} at {}\n\
         Bash commands need your approval. /exit or Ctrl+D leaves; /help lists commands.",
        text::one_line(model, usize::MAX),
        text::one_line(server, usize::MAX)
    )
}

/// `[Tool result: completed; exit code 0; output truncated]`, with what of it applies.
pub fn result_label(result: &ToolResult) -> String {
    let code = result.exit_code().map(|code| format!("; exit code {code}")).unwrap_or_default();
    let cut = if result.truncated() { "; output truncated" } else { "" };
    format!("[Tool result: {}{code}{cut}]", result.status().name())
}

/// The notice of the repeat guard.
pub fn repeat_notice(repeat: &Repeat) -> String {
    format!(
        "Notice: this command was started at {} in a turn that ended {}; the model does not know of it, and it may already have run.",
        text::clean(&repeat.time),
        repeat.ended.name()
    )
}

/// The approval screen without its question. Values are whole and quoted.
fn approval(display: &Display) -> String {
    let mut out = format!("[Tool: {}]\nCommand:", text::clean(&display.tool));
    let lines: Vec<&str> = display.command.split('\n').collect();
    match lines.as_slice() {
        [line] => out.push_str(&format!(" {}", quote(line))),
        lines => lines.iter().for_each(|line| out.push_str(&format!("\n  {}", quote(line)))),
    }
    out.push('\n');
    if let Some(shell) = &display.shell {
        out.push_str(&format!("Shell: {}\n", quote_os(shell)));
    }
    if lines.len() > BIG_COMMAND_LINES || display.command.len() > BIG_COMMAND_BYTES {
        out.push_str(&format!("Size: {} lines, {} bytes\n", lines.len(), display.command.len()));
    }
    if text::has_hidden(&display.command) {
        out.push_str("Warning: hidden or unusual characters are escaped above.\n");
    }
    if let Some(cwd) = &display.cwd {
        out.push_str(&format!("Working directory: {}\n", quote_os(cwd)));
    }
    if !display.environment.is_empty() {
        let pairs: Vec<_> = display.environment.iter().map(|pair| quote_os(pair)).collect();
        out.push_str(&format!("Environment: {}\n", pairs.join(" ")));
    }
    out.push_str(&format!(
        "Limits: {}\nRuns with your account permissions; this is not a sandbox.\n",
        display.limits
    ));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::{NotRun, Ran, TurnStatus};

    fn display(command: &str) -> Display {
        Display {
            tool: "bash".into(),
            command: command.into(),
            shell: None,
            cwd: Some("/home/user/project".into()),
            environment: ["PATH=/usr/bin:/bin", "HOME=/home/user", "LANG=C.UTF-8"].map(Into::into).to_vec(),
            limits: "30 s timeout; 65536 bytes of combined output".into(),
            seconds: Some(30),
        }
    }

    #[test]
    fn the_approval_screen_is_whole_and_quoted() {
        assert_eq!(
            approval(&display("go version")),
            "[Tool: bash]\nCommand: \"go version\"\nWorking directory: \"/home/user/project\"\n\
             Environment: \"PATH=/usr/bin:/bin\" \"HOME=/home/user\" \"LANG=C.UTF-8\"\n\
             Limits: 30 s timeout; 65536 bytes of combined output\n\
             Runs with your account permissions; this is not a sandbox.\n"
        );
    }

    #[test]
    fn lines_shell_size_and_warning_stand_in_that_order() {
        let command = format!("cat <<E\n{}\u{202e}\nE", "x".repeat(1000));
        let shown = approval(&Display { shell: Some("/opt/b/bash".into()), ..display(&command) });
        let expected = format!(
            "Command:\n  \"cat <<E\"\n  \"{}\\u{{202e}}\"\n  \"E\"\nShell: \"/opt/b/bash\"\nSize: 3 lines, {} bytes\n\
             Warning: hidden or unusual characters are escaped above.\nWorking directory:",
            "x".repeat(1000),
            command.len()
        );
        assert!(shown.contains(&expected), "{shown}");
    }

    #[test]
    fn size_is_shown_beyond_a_screen_only() {
        assert!(!approval(&display(&vec!["x"; 20].join("\n"))).contains("Size:"));
        assert!(approval(&display(&vec!["x"; 21].join("\n"))).contains("Size: 21 lines, 41 bytes"));
        assert!(!approval(&display(&"x".repeat(1000))).contains("Size:"));
        assert!(approval(&display(&"x".repeat(1001))).contains("Size: 1 lines, 1001 bytes"));
    }

    #[test]
    fn labels_name_what_exists() {
        for (result, label) in [
            (ToolResult::ran(Ran::Completed, "", Some(0), false), "[Tool result: completed; exit code 0]"),
            (
                ToolResult::ran(Ran::OutputLimit, "", None, true),
                "[Tool result: output_limit; output truncated]",
            ),
            (ToolResult::not_run(NotRun::Denied, "no"), "[Tool result: denied]"),
        ] {
            assert_eq!(result_label(&result), label);
        }
        let repeat = Repeat { time: "2026-01-02T03:04:05.006Z".into(), ended: TurnStatus::Failed };
        assert_eq!(
            repeat_notice(&repeat),
            "Notice: this command was started at 2026-01-02T03:04:05.006Z in a turn that ended failed; \
             the model does not know of it, and it may already have run."
        );
    }
}

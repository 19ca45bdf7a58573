//! One line from the person: a question, an answer to an approval, or a key nobody may see.
//!
//! Owns: standard input, with the bytes that were read and belong to nothing yet. Promises: every
//! wait ends with a signal, a closed terminal or the end of the input; nothing is sent short (see
//! [`Bad`]); only what is typed after an approval question answers it; without an editor no escape
//! sequence is written. The terminal is otherwise set only while a line is read, so Ctrl+C, Ctrl+Z
//! and the driver's echo work as ever in between, and what is typed ahead of a question is kept.
//! Leans on `edit` for everything but input and output, and on `sys::terminal`.
//!
//! In the editor, a paste is one message however many lines it has: marked by the terminal
//! (bracketed paste), or not, by the rule that an Enter with more input right behind it is a line
//! break, and only an Enter followed by silence sends. The same makes one message of several lines
//! typed ahead. ESC Enter breaks the line, too. In an answer, a marked paste or several lines at once
//! are dropped and the question is asked again; so are those that a paste's own end marker in
//! mid-text would set free, since after a paste everything is dropped until the input is quiet.
//!
//! Gives up: in the plain modes each line is a question of its own, pasted or not; one line that is
//! pasted into an answer without markers can't be told from a typed one; and when a window gets
//! narrower, terminals that fold what they show leave a copy of the line above it (to go up by more
//! rows would erase something else on those that don't).

use std::ffi::OsStr;
use std::fmt;
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

pub use super::edit::Bad;
use super::edit::{self, Edit, Key};
use super::screen::Stream;
use crate::limits;
use crate::sys::signal::{Signal, Stop};
use crate::sys::terminal::{self, Guard, Setting, Wait};

const PASTE_END: &[u8] = b"\x1b[201~";
const TYPED_AHEAD: &str = "Discarded what was typed before the question.";
const SEVERAL: &str = "Discarded a paste or several lines at once; type the answer.";

/// How lines are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A terminal that can be drawn on.
    Editor,
    /// A terminal whose driver does the editing.
    PlainTerminal,
    /// Anything else: a file, a pipe.
    Piped,
}

impl Mode {
    /// What standard input and the value of `TERM` allow, and the first of standard output and
    /// standard error that is a terminal (standard output if none is).
    pub fn detect(term: Option<&OsStr>) -> (Mode, Stream) {
        let to_stderr = !terminal::output().is_terminal() && terminal::errors().is_terminal();
        let draw = if to_stderr { Stream::Err } else { Stream::Out };
        let can_draw = draw.fd().is_terminal() && term.is_some_and(|name| !name.is_empty() && name != "dumb");
        match (terminal::input().is_terminal(), can_draw) {
            (false, _) => (Mode::Piped, draw),
            (true, false) => (Mode::PlainTerminal, draw),
            (true, true) => (Mode::Editor, draw),
        }
    }
}

/// What came instead of, or as, a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// Without its line end; empty for a bare Enter.
    Text(String),
    /// Ctrl+D on an empty line, the end of a file, a closed terminal.
    End,
    /// A signal, or Ctrl+C in the editor; [`Stop::signal`] says which.
    Stopped,
    /// A line came and can't be used.
    Bad(Bad),
}

/// What came as the answer to an approval question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Typed after the question. Whether it approves is for the caller to decide.
    Text(String),
    End,
    Stopped,
    /// Mino was stopped and continued, and what is to be decided may be off the screen: show it again.
    Resumed,
    /// The input never paused, so nothing in it can be an answer.
    NeverQuiet,
    /// Standard input is no terminal: nobody can answer.
    NoTerminal,
}

/// What [`Reader::discard_type_ahead`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discarded {
    Nothing,
    Some,
    NeverQuiet,
    Stopped,
}

/// Reading or showing a line failed.
#[derive(Debug)]
pub enum LineError {
    Read(io::Error),
    Write(io::Error),
    /// The terminal's settings can't be changed; above all, its echo not turned off.
    Settings(io::Error),
}

impl fmt::Display for LineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LineError::Read(error) => write!(f, "cannot read standard input: {error}"),
            LineError::Write(error) => write!(f, "cannot write the prompt: {error}"),
            LineError::Settings(error) => write!(f, "cannot set up the terminal: {error}"),
        }
    }
}

impl std::error::Error for LineError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            LineError::Read(error) | LineError::Write(error) | LineError::Settings(error) => Some(error),
        }
    }
}

type Result<T> = std::result::Result<T, LineError>;

/// The only reader of standard input while it lives. Prompts are plain text on one line, shown
/// where the cursor is at the start of one.
pub struct Reader {
    stop: Stop,
    mode: Mode,
    draw: Stream,
    /// Read, and not used yet.
    pending: Vec<u8>,
    /// The start of a marked paste was read, its end not yet.
    in_paste: bool,
}

struct Typed {
    line: Line,
    /// More came with it, so it can be no answer.
    several: bool,
    /// Nothing came but the end of a suspension.
    resumed: bool,
}

impl From<Line> for Typed {
    fn from(line: Line) -> Typed {
        Typed { line, several: false, resumed: false }
    }
}

impl Typed {
    fn resumed() -> Typed {
        Typed { resumed: true, ..Line::Text(String::new()).into() }
    }
}

/// What came of waiting for input.
enum More {
    /// So many bytes were added to `pending`; 0 if it was a false alarm.
    Bytes(usize),
    Ended,
    Stopped,
    /// The window changed.
    Changed,
    /// The process was stopped and continued, and the screen is not as it was left.
    Resumed,
    Timeout,
}

impl Reader {
    pub fn new(stop: Stop, mode: Mode, draw: Stream) -> Reader {
        Reader { stop, mode, draw, pending: Vec::new(), in_paste: false }
    }

    /// Asks for a line of at most [`limits::LINE_BYTES`]. `history` is what the editor's arrow keys
    /// bring back, oldest first.
    pub fn read(&mut self, prompt: &str, history: &[String]) -> Result<Line> {
        Ok(self.typed(prompt, Some(history))?.line)
    }

    /// Asks for the answer to an approval question, of which `prompt` is the last line. `notice` is
    /// given what is to be said about discarded input, with the cursor at the start of a line.
    pub fn answer(&mut self, prompt: &str, notice: &mut dyn FnMut(&str)) -> Result<Answer> {
        if self.mode == Mode::Piped {
            return Ok(Answer::NoTerminal);
        }
        let mut several = false;
        for _ in 0..limits::QUIET_ROUNDS {
            match self.discard_type_ahead()? {
                Discarded::Stopped => return Ok(Answer::Stopped),
                Discarded::NeverQuiet => return Ok(Answer::NeverQuiet),
                Discarded::Nothing | Discarded::Some if several => notice(SEVERAL),
                Discarded::Some => notice(TYPED_AHEAD),
                Discarded::Nothing => {}
            }
            let typed = self.typed(prompt, None)?;
            if typed.resumed {
                return Ok(Answer::Resumed);
            }
            several = typed.several;
            match typed.line {
                _ if several => {}
                Line::Text(text) => return Ok(Answer::Text(text)),
                Line::End => return Ok(Answer::End),
                Line::Stopped => return Ok(Answer::Stopped),
                Line::Bad(bad) => {
                    notice(&bad.to_string());
                    return Ok(Answer::Text(String::new()));
                }
            }
        }
        Ok(Answer::NeverQuiet)
    }

    /// Drops what has been typed until the input is quiet. One flush would not do: a terminal that
    /// was held up by a full driver goes on with its paste right after it.
    pub fn discard_type_ahead(&mut self) -> Result<Discarded> {
        if self.mode == Mode::Piped {
            return Ok(Discarded::Nothing);
        }
        // As keys, or an unfinished line would stay unseen in the driver.
        let _guard = Guard::enter(Setting::Keys, None).map_err(LineError::Settings)?;
        if self.in_paste && !self.paste(&mut Vec::new())? {
            let stopped = self.stop.stopped();
            return Ok(if stopped { Discarded::Stopped } else { Discarded::NeverQuiet });
        }
        let mut found = !self.pending.is_empty();
        let patience = Duration::from_millis(limits::QUIET_MILLIS) * limits::QUIET_ROUNDS;
        let deadline = Instant::now() + patience;
        while Instant::now() < deadline {
            if self.pending.contains(&0x03) {
                self.stop.request(Signal::Interrupt);
            }
            self.pending.clear();
            match self.more(Some(limits::QUIET_MILLIS))? {
                More::Stopped => return Ok(Discarded::Stopped),
                More::Timeout | More::Ended if found => return Ok(Discarded::Some),
                More::Timeout | More::Ended => return Ok(Discarded::Nothing),
                More::Bytes(count) => found |= count > 0,
                More::Changed | More::Resumed => {}
            }
        }
        Ok(Discarded::NeverQuiet)
    }

    /// Asks for a line that is not echoed, and can't be suspended in the middle.
    pub fn hidden(&mut self, prompt: &str) -> Result<Line> {
        let guard = Guard::enter(Setting::Hidden, None).map_err(LineError::Settings)?;
        let line = self.driver_line(prompt);
        if self.mode != Mode::Piped && matches!(line, Ok(Line::Text(_) | Line::Bad(_))) {
            self.write("\n")?;
        }
        drop(guard);
        Ok(self.settle(line.map(Typed::from))?.line)
    }

    /// A question, or without a history an answer.
    fn typed(&mut self, prompt: &str, history: Option<&[String]>) -> Result<Typed> {
        let guard = match self.mode {
            Mode::Editor => Guard::enter(Setting::Keys, Some(self.draw.fd())),
            Mode::PlainTerminal | Mode::Piped => Guard::enter(Setting::Lines, None),
        }
        .map_err(LineError::Settings)?;
        if history.is_none() {
            terminal::flush_input();
        }
        let typed = match self.mode {
            Mode::Editor => self.edit(prompt, history),
            Mode::PlainTerminal | Mode::Piped => self.plain(prompt, history.is_none()),
        };
        drop(guard);
        self.settle(typed)
    }

    /// A signal outranks what came with it, and a closed terminal is the end, not a failure.
    fn settle(&self, typed: Result<Typed>) -> Result<Typed> {
        match typed {
            _ if self.stop.stopped() => Ok(Line::Stopped.into()),
            Err(LineError::Write(error)) if self.mode != Mode::Piped && terminal::is_hangup(&error) => {
                Ok(Line::End.into())
            }
            other => other,
        }
    }

    // --- input and output -------------------------------------------------------------------

    fn more(&mut self, millis: Option<u64>) -> Result<More> {
        let is_terminal = self.mode != Mode::Piped;
        if is_terminal
            && terminal::await_foreground(&self.stop).map_err(LineError::Read)?
            && terminal::again()
        {
            return Ok(More::Resumed);
        }
        let timeout = millis.map(Duration::from_millis);
        match terminal::wait(terminal::input(), &self.stop, timeout).map_err(LineError::Read)? {
            Wait::Timeout => Ok(More::Timeout),
            Wait::Stopped => Ok(More::Stopped),
            Wait::Changed => {
                self.stop.take_change();
                Ok(if terminal::again() { More::Resumed } else { More::Changed })
            }
            Wait::Input => self.fill(),
        }
    }

    fn fill(&mut self) -> Result<More> {
        let mut buffer = [0; limits::TYPED_BYTES];
        match terminal::read(terminal::input(), &mut buffer) {
            Ok(0) => Ok(More::Ended),
            Ok(count) => {
                self.pending.extend(buffer.iter().take(count));
                Ok(More::Bytes(count))
            }
            Err(error) if terminal::is_for_later(&error) => Ok(More::Bytes(0)),
            Err(error) if self.mode != Mode::Piped && terminal::is_hangup(&error) => Ok(More::Ended),
            Err(error) => Err(LineError::Read(error)),
        }
    }

    /// Whether more input is there already, or comes sooner than a person types.
    fn burst(&mut self) -> Result<bool> {
        while self.pending.is_empty() {
            match self.more(Some(limits::BURST_MILLIS))? {
                More::Bytes(_) | More::Changed | More::Resumed => {}
                More::Timeout | More::Stopped | More::Ended => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Reads on to the end of a marked paste; `kept` gets as much of it as matters. False if the end
    /// did not come.
    fn paste(&mut self, kept: &mut Vec<u8>) -> Result<bool> {
        self.in_paste = false;
        let mut seen = 0;
        while seen < limits::PASTE_BYTES {
            let end = self.pending.windows(PASTE_END.len()).position(|part| part == PASTE_END);
            let sure = end.unwrap_or((self.pending.len() + 1).saturating_sub(PASTE_END.len()));
            seen += sure;
            let room = (limits::LINE_BYTES + 1).saturating_sub(kept.len());
            kept.extend(self.pending.drain(..sure).take(room));
            if end.is_some() {
                self.pending.drain(..PASTE_END.len());
                return Ok(true);
            }
            match self.more(Some(limits::PASTE_MILLIS))? {
                More::Bytes(_) | More::Changed | More::Resumed => {}
                More::Timeout | More::Stopped | More::Ended => break,
            }
        }
        Ok(false)
    }

    fn write(&self, text: &str) -> Result<()> {
        terminal::write_all(self.draw.fd(), text.as_bytes(), &self.stop).map_err(LineError::Write)
    }

    // --- lines from the driver, a file or a pipe --------------------------------------------

    fn plain(&mut self, prompt: &str, is_answer: bool) -> Result<Typed> {
        let line = self.driver_line(prompt)?;
        let is_line = matches!(line, Line::Text(_) | Line::Bad(_));
        let several = is_answer && is_line && self.burst()?;
        Ok(Typed { several, ..line.into() })
    }

    fn driver_line(&mut self, prompt: &str) -> Result<Line> {
        self.write(prompt)?;
        let is_terminal = self.mode != Mode::Piped;
        let (mut searched, mut bad) = (0, None);
        loop {
            let end = self.pending.iter().skip(searched).position(|byte| *byte == b'\n');
            let length = end.map_or(self.pending.len(), |at| searched + at);
            if length > limits::LINE_BYTES {
                bad = Some(Bad::TooLong);
            }
            if end.is_some() {
                let line = self.pending.drain(..=length).take(length).collect();
                return Ok(as_line(line, bad, !is_terminal));
            }
            if bad.is_some() {
                self.pending.clear();
            }
            searched = self.pending.len();
            match self.more(None)? {
                // One read gives one line of a terminal, or the part of it before a Ctrl+D.
                More::Bytes(count) if is_terminal && self.may_be_cut(count) => {
                    bad = bad.or(Some(Bad::MaybeCut));
                }
                More::Bytes(_) | More::Changed | More::Timeout => {}
                More::Resumed => self.write(prompt)?,
                More::Stopped | More::Ended if is_terminal => {
                    let stopped = self.stop.stopped();
                    // The screen may be what has gone away.
                    let _ = self.write("\n");
                    self.pending.clear();
                    return Ok(if stopped { Line::Stopped } else { Line::End });
                }
                More::Stopped => return Ok(Line::Stopped),
                More::Ended if self.pending.is_empty() && bad.is_none() => return Ok(Line::End),
                // The last line of a file needs no line end.
                More::Ended => {
                    let line = std::mem::take(&mut self.pending);
                    return Ok(as_line(line, bad, true));
                }
            }
        }
    }

    /// Whether the `count` bytes read last hold as much as the driver does of one line.
    fn may_be_cut(&self, count: usize) -> bool {
        let new = self.pending.len().saturating_sub(count);
        let new = self.pending.get(new..).unwrap_or_default();
        // As keys, Enter is a carriage return.
        let mut lines = new.split(|byte| matches!(byte, b'\n' | b'\r'));
        lines.any(|line| line.len() >= limits::DRIVER_LINE_BYTES)
    }

    // --- the editor -------------------------------------------------------------------------

    fn edit(&mut self, prompt: &str, history: Option<&[String]>) -> Result<Typed> {
        let mut line = Edit::default();
        let mut screen = Screen { prompt, draw: self.draw, above: 0, drawn: None };
        // What is there already was typed ahead, while lines were the driver's.
        if history.is_some()
            && let More::Bytes(count) = self.more(Some(0))?
            && self.may_be_cut(count)
        {
            line.refuse(Bad::MaybeCut);
        }
        loop {
            let Some((key, length)) = edit::first_key(&self.pending) else {
                screen.show(&self.stop, &line, false)?;
                match self.more(self.key_patience())? {
                    More::Bytes(_) => {}
                    // Another width folds it elsewhere.
                    More::Changed => screen.drawn = None,
                    More::Timeout => self.pending.clear(),
                    More::Resumed if history.is_none() => return Ok(Typed::resumed()),
                    More::Resumed => screen.forget(),
                    More::Stopped => return screen.leave(&self.stop, &line, Line::Stopped),
                    More::Ended => return screen.leave(&self.stop, &line, Line::End),
                }
                continue;
            };
            self.pending.drain(..length);
            match (key, history) {
                (Key::Enter, _) if !self.burst()? => {
                    screen.show(&self.stop, &line, true)?;
                    return Ok(line.finish().map_or_else(Line::Bad, Line::Text).into());
                }
                (Key::Enter, Some(_)) => line.insert("\n"),
                (Key::PasteStart, Some(_)) => {
                    let mut pasted = Vec::new();
                    self.paste(&mut pasted)?;
                    line.paste(&pasted);
                }
                (Key::Enter | Key::PasteStart, None) => {
                    self.in_paste = key == Key::PasteStart;
                    screen.show(&self.stop, &line, true)?;
                    return Ok(Typed { line: Line::Text(String::new()), several: true, resumed: false });
                }
                (Key::Interrupt, _) => self.stop.request(Signal::Interrupt),
                (Key::EndOfInput, _) if line.is_empty() => {
                    return screen.leave(&self.stop, &line, Line::End);
                }
                (Key::Suspend, _) => {
                    screen.show(&self.stop, &line, true)?;
                    terminal::suspend(&self.stop).map_err(LineError::Read)?;
                    if history.is_none() {
                        return Ok(Typed::resumed());
                    }
                    screen.forget();
                }
                // What is to be approved stays on the screen.
                (Key::ClearScreen, Some(_)) => screen.clear(&self.stop)?,
                (key, history) => line.press(key, history.unwrap_or_default()),
            }
        }
    }

    /// How long to wait for the rest of a key: a person's ESC is alone, and others have lost their end.
    fn key_patience(&self) -> Option<u64> {
        match self.pending.as_slice() {
            [0x1b] => Some(limits::BURST_MILLIS),
            [0x1b, ..] => Some(limits::PASTE_MILLIS),
            _ => None,
        }
    }
}

fn as_line(mut line: Vec<u8>, bad: Option<Bad>, from_file: bool) -> Line {
    if from_file && line.ends_with(b"\r") {
        line.pop();
    }
    match (bad, String::from_utf8(line)) {
        (Some(bad), _) => Line::Bad(bad),
        (None, Ok(text)) => Line::Text(text),
        (None, Err(_)) => Line::Bad(Bad::NotUtf8),
    }
}

/// What the editor has drawn.
struct Screen<'a> {
    prompt: &'a str,
    draw: Stream,
    /// Rows between the top of what is drawn and the cursor.
    above: usize,
    /// What is drawn, as it was written, while the cursor is at its end.
    drawn: Option<String>,
}

impl Screen<'_> {
    /// Draws the line as it is now: what was added at its end where that is all that changed, else
    /// all of it anew, at most a screenful. `done`: leaves the cursor at the start of the row below.
    fn show(&mut self, stop: &Stop, line: &Edit, done: bool) -> Result<()> {
        if !terminal::in_foreground() {
            return Ok(());
        }
        let (columns, rows) = terminal::size(self.draw.fd());
        let view = if done {
            let mut line = line.clone();
            line.go_to_end();
            line.view(self.prompt, columns, rows, true)
        } else {
            line.view(self.prompt, columns, rows, false)
        };
        let text = view.text(columns);
        let added = self.drawn.as_deref().and_then(|drawn| text.strip_prefix(drawn));
        let mut out = match added {
            Some(added) if view.at_end() => added.to_owned(),
            _ => format!("{}\x1b[J{text}", up(self.above)),
        };
        if done {
            out.push_str("\r\n");
        } else if !view.at_end() {
            // Written again rather than counted: the terminal knows best how wide its characters are.
            out.push_str(&up(view.rows.len().saturating_sub(view.cursor + 1)));
            out.push_str(&view.lead);
        }
        self.above = if done { 0 } else { view.cursor };
        self.drawn = (view.at_end() && !done).then_some(text);
        terminal::write_all(self.draw.fd(), out.as_bytes(), stop).map_err(LineError::Write)
    }

    /// The screen is no longer as it was left: what comes next is drawn whole.
    fn forget(&mut self) {
        self.above = 0;
        self.drawn = None;
    }

    fn clear(&mut self, stop: &Stop) -> Result<()> {
        self.forget();
        terminal::write_all(self.draw.fd(), b"\x1b[H\x1b[2J", stop).map_err(LineError::Write)
    }

    /// Ends without a line; what was typed so far stays visible.
    fn leave(&mut self, stop: &Stop, line: &Edit, end: Line) -> Result<Typed> {
        // The terminal may be what has gone away.
        let _ = self.show(stop, line, true);
        Ok(end.into())
    }
}

fn up(rows: usize) -> String {
    if rows == 0 { "\r".into() } else { format!("\r\x1b[{rows}A") }
}

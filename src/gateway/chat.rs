//! The chat and `ask`: questions in, decisions in between, answers out.
//!
//! Owns: the prompt loop, the slash commands, and the person's side of a turn ([`Operator`]).
//! Promises: a decision is one line typed after its question was shown, on a terminal; anything but
//! `y` or `yes` denies; what is typed as a decision never becomes a question. Leans on the line
//! reader, which tells a typed line from a paste. Gives up: no "always", and no editing of a
//! command before it is approved.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use crate::agent::{Agent, Event, Operator, OutputClosed, TurnError};
use crate::limits::{ECHO_CHARS, HISTORY_LINES, PATIENCE_SECONDS, QUIET_ROUNDS, READ_BYTES, STDIN_BYTES};
use crate::step::{Display, Repeat, Verdict};
use crate::sys::signal::Stop;
use crate::sys::terminal::{self, Wait};
use crate::text::{one_line, quote};

use super::args::{CHAT_COMMANDS, table};
use super::config::Asker;
use super::line::{Answer, Line, LineError, Mode, Reader};
use super::screen::{APPROVE, Screen, repeat_notice};
use super::{Complaint, Exit};

/// The person at the terminal: what they see, and what they type.
pub struct Terminal {
    pub screen: Screen,
    pub reader: Reader,
    mode: Mode,
    /// Whether a person can be asked for a decision: input and a screen are terminals.
    interactive: bool,
    stop: Stop,
    unapproved: bool,
    asked: Option<Instant>,
    is_stopping: bool,
}

impl Terminal {
    pub fn new(screen: Screen, reader: Reader, mode: Mode, interactive: bool, stop: Stop) -> Terminal {
        Terminal {
            screen,
            reader,
            mode,
            interactive,
            stop,
            unapproved: false,
            asked: None,
            is_stopping: false,
        }
    }

    /// Whether standard input is a terminal, so that a person can be asked.
    pub fn is_typing(&self) -> bool {
        self.mode != Mode::Piped
    }

    /// Shows an error. A screen that can't show it is remembered by the screen itself.
    pub fn complain(&mut self, complaint: &Complaint) {
        let _ = self.screen.error(&complaint.message, complaint.hint.as_deref());
    }

    /// The exit that a signal or a failed screen asks for, which outranks every other.
    pub fn forced_exit(&mut self) -> Option<Exit> {
        if let Some(signal) = self.stop.signal() {
            return Some(signal.into());
        }
        let error = self.screen.take_failure()?;
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Some(Exit::ClosedOutput);
        }
        self.complain(&Complaint::new(format!("cannot write the output: {error}"), None));
        Some(Exit::Failure)
    }

    /// The person's decision. After a suspension the whole screen is shown again.
    fn decide(&mut self, display: &Display, repeat: Option<&Repeat>) -> Result<Verdict, LineError> {
        for _ in 0..QUIET_ROUNDS {
            if let Some(verdict) = self.decide_once(display, repeat)? {
                return Ok(verdict);
            }
        }
        Ok(Verdict::Denied)
    }

    /// The approval screen, then the question; input that came before is gone.
    fn decide_once(
        &mut self,
        display: &Display,
        repeat: Option<&Repeat>,
    ) -> Result<Option<Verdict>, LineError> {
        self.screen.approval(display).map_err(LineError::Write)?;
        let repeat = repeat.map(repeat_notice);
        let screen = &mut self.screen;
        let mut before_question = |text: Option<&str>| {
            for text in text.into_iter().chain(repeat.as_deref()) {
                screen.before_question(text).map_err(LineError::Write)?;
            }
            Ok(())
        };
        before_question(None)?;
        // A screen that fails in between fails again at the question, where it counts.
        let answer = self.reader.answer(APPROVE, &mut |notice| drop(before_question(Some(notice))))?;
        self.screen.line_ended();
        Ok(Some(match answer {
            Answer::Resumed => return Ok(None),
            Answer::Text(text) if text.trim() == "/exit" => Verdict::Leave,
            Answer::Text(text) if is_yes(&text) => Verdict::Approved,
            Answer::Text(_) => Verdict::Denied,
            Answer::End => Verdict::Leave,
            Answer::NeverQuiet => {
                self.screen
                    .notice("Denied: input kept arriving, so none of it could be an answer.")
                    .map_err(LineError::Write)?;
                Verdict::Denied
            }
            Answer::NoTerminal => Verdict::NoTerminal,
            Answer::Stopped => {
                // The reader has ended its line itself.
                self.is_stopping = true;
                Verdict::Cancelled
            }
        }))
    }
}

fn is_yes(answer: &str) -> bool {
    let answer = answer.trim();
    answer.eq_ignore_ascii_case("y") || answer.eq_ignore_ascii_case("yes")
}

impl Operator for Terminal {
    fn show(&mut self, event: Event<'_>) -> Result<(), OutputClosed> {
        self.heed_stop();
        let shown = match event {
            Event::Waiting => {
                let asked = *self.asked.get_or_insert_with(Instant::now);
                self.screen.wait_for("Waiting for the model…", None, asked);
                Ok(())
            }
            Event::Text(piece) => self.screen.answer(piece),
            Event::Answered(usage) => {
                let seconds = self.asked.take().map_or(0, |asked| asked.elapsed().as_secs());
                self.screen.end_answer(usage.map(|usage| (usage, seconds)))
            }
            Event::Running(display) => {
                self.screen.wait_for("Running…", display.seconds, Instant::now());
                Ok(())
            }
            Event::Result(result) => self.screen.result(result),
            Event::Notice(text) => self.screen.notice(text),
        };
        shown.map_err(|_| OutputClosed)
    }

    fn approve(&mut self, display: &Display, repeat: Option<&Repeat>) -> Verdict {
        if !self.interactive {
            self.unapproved = true;
            let shown = self.screen.refused(display, "Denied: approval needs an interactive terminal.");
            return if shown.is_ok() { Verdict::NoTerminal } else { Verdict::ScreenFailed };
        }
        self.decide(display, repeat).unwrap_or_else(|error| {
            self.fail(error);
            Verdict::ScreenFailed
        })
    }
}

impl Asker for Terminal {
    fn ask(&mut self, prompt: &str) -> Option<String> {
        let line = self.reader.read(prompt, &[]);
        self.typed(line)
    }

    fn ask_hidden(&mut self, prompt: &str) -> Option<String> {
        let line = self.reader.hidden(prompt);
        self.typed(line)
    }

    fn tell(&mut self, what: &str) {
        self.complain(&Complaint::new(what, None));
    }
}

impl Terminal {
    fn fail(&mut self, error: LineError) {
        match error {
            LineError::Write(error) => drop(self.screen.fail(error)),
            error => {
                self.complain(&Complaint::new(&error, None));
                self.screen.fail(io::ErrorKind::Other.into());
            }
        }
    }

    fn typed(&mut self, line: Result<Line, LineError>) -> Option<String> {
        self.screen.line_ended();
        match line {
            Ok(Line::Text(text)) => Some(text),
            Ok(Line::Bad(why)) => {
                self.complain(&Complaint::new(why, Some(why.hint())));
                Some(String::new())
            }
            Ok(Line::End | Line::Stopped) => None,
            Err(error) => {
                self.fail(error);
                None
            }
        }
    }

    /// The terminal shows a typed Ctrl+C where the cursor was.
    fn heed_stop(&mut self) {
        let is_new = self.stop.stopped() && !std::mem::replace(&mut self.is_stopping, true);
        if is_new && self.is_typing() {
            self.screen.interrupted();
        }
    }

    /// One turn and what it means for the exit: `None` where the chat goes on.
    fn turn(&mut self, agent: &Agent, question: &str) -> (Exit, Option<Exit>) {
        let outcome = agent.submit(question, self);
        self.heed_stop();
        self.asked = None;
        let _ = self.screen.stop_waiting();
        self.screen.reset_answer();
        // Ends the line of an answer that broke off.
        let _ = self.screen.say("");
        // What is known after a failed save is said, whatever else ends the turn.
        if let Err(error) = outcome.as_ref()
            && error.is_fatal()
        {
            self.complain(&Complaint::new(error, error.hint()));
        }
        if let Some(exit) = self.forced_exit() {
            return (exit, Some(exit));
        }
        let error = match outcome {
            Ok(()) if std::mem::take(&mut self.unapproved) => return (Exit::Unapproved, None),
            Ok(()) => return (Exit::Done, None),
            Err(TurnError::Left) => return (Exit::Failure, Some(Exit::Done)),
            Err(error) if error.is_fatal() => return (Exit::Failure, Some(Exit::Failure)),
            Err(error) => error,
        };
        self.complain(&Complaint::new(&error, error.hint()));
        (Exit::Failure, None)
    }

    /// One question, then the exit code.
    pub fn ask_once(&mut self, agent: &Agent, question: &str) -> Exit {
        let (outcome, end) = self.turn(agent, question);
        if end == Some(Exit::Done) {
            self.complain(&Complaint::new(TurnError::Left, None));
        }
        outcome
    }

    /// The chat, until the person leaves. `renew` starts a new conversation for `/new`.
    pub fn chat(
        &mut self,
        mut agent: Agent,
        banner: &dyn Fn(&Agent) -> String,
        renew: &mut dyn FnMut(&mut Agent) -> Result<(), Complaint>,
    ) -> Exit {
        let mut worst = Exit::Done;
        if self.screen.say(&banner(&agent)).is_err() {
            return self.forced_exit().unwrap_or(Exit::Failure);
        }
        let mut history = agent.questions();
        loop {
            let line = self.reader.read("You> ", &history);
            self.prompted(&line);
            let text = match line {
                Ok(Line::Text(text)) => text,
                Ok(Line::Bad(why)) => {
                    self.complain(&Complaint::new(why, Some(why.hint())));
                    worst = worst.max(self.piped(Exit::Failure));
                    continue;
                }
                Ok(Line::End) => return self.goodbye(worst),
                Ok(Line::Stopped) => return self.forced_exit().unwrap_or(worst),
                Err(error) => {
                    self.fail(error);
                    return self.forced_exit().unwrap_or(Exit::Failure);
                }
            };
            match text.trim() {
                "" => continue,
                "/exit" => return self.goodbye(worst),
                "/help" => drop(self.screen.say(&table(CHAT_COMMANDS))),
                "/new" => match renew(&mut agent) {
                    Ok(()) => {
                        history.clear();
                        drop(self.screen.say(&banner(&agent)));
                    }
                    Err(complaint) => {
                        self.complain(&complaint);
                        worst = worst.max(self.piped(Exit::Failure));
                    }
                },
                _ if text.starts_with('/') => {
                    let typed = quote(&one_line(&text, ECHO_CHARS));
                    self.complain(&Complaint::new(
                        format!("unknown command {typed}; /help lists the commands"),
                        Some("a blank before it makes it a question"),
                    ));
                    worst = worst.max(self.piped(Exit::Failure));
                }
                _ => {
                    history.push(text.clone());
                    history.drain(..history.len().saturating_sub(HISTORY_LINES));
                    let (outcome, end) = self.turn(&agent, &text);
                    worst = worst.max(self.piped(outcome));
                    match end {
                        Some(Exit::Done) => return self.goodbye(worst),
                        Some(exit) => return exit,
                        None => {}
                    }
                }
            }
            if let Some(exit) = self.forced_exit() {
                return exit;
            }
        }
    }

    /// Where the cursor is after a prompt. A piped question isn't echoed by anyone else.
    fn prompted(&mut self, line: &Result<Line, LineError>) {
        match line {
            _ if self.is_typing() => self.screen.line_ended(),
            Ok(Line::Text(text)) => drop(self.screen.echo(text)),
            Ok(Line::Bad(_)) => drop(self.screen.echo("")),
            _ => self.screen.line_begun(),
        }
    }

    /// Where questions are piped in, the exit code tells how they went; a person has seen it.
    fn piped(&self, outcome: Exit) -> Exit {
        if self.is_typing() { Exit::Done } else { outcome }
    }

    fn goodbye(&mut self, worst: Exit) -> Exit {
        let _ = self.screen.say("Goodbye.");
        self.forced_exit().unwrap_or(worst)
    }

    /// All text on standard input, for `ask`; or the complaint. A signal ends the wait: the exit
    /// code is then [`Terminal::forced_exit`]'s.
    pub fn read_input(&mut self) -> Result<String, Complaint> {
        let fail = |why: String| {
            Complaint::new(format!("cannot read the question from standard input: {why}"), None)
        };
        let mut input =
            File::from(io::stdin().as_fd().try_clone_to_owned().map_err(|error| fail(error.to_string()))?);
        let (mut bytes, mut buffer) = (Vec::new(), vec![0; READ_BYTES]);
        let mut patience = Some(Duration::from_secs(PATIENCE_SECONDS));
        loop {
            match terminal::wait(input.as_fd(), &self.stop, patience)
                .map_err(|error| fail(error.to_string()))?
            {
                Wait::Stopped => return Err(fail("a signal came".into())),
                Wait::Changed => self.stop.take_change(),
                Wait::Timeout => {
                    patience = None;
                    drop(self.screen.notice("Waiting for text on standard input; end it with Ctrl+D, or use < /dev/null for none."));
                }
                Wait::Input => match input.read(&mut buffer) {
                    // A terminal that was closed reads like one where Ctrl+D was typed; its signal tells.
                    Ok(0) => match terminal::wait(input.as_fd(), &self.stop, Some(Duration::ZERO)) {
                        Ok(Wait::Stopped) => {}
                        _ => break,
                    },
                    Ok(n) if bytes.len() + n > STDIN_BYTES => {
                        return Err(fail(format!("it is longer than {STDIN_BYTES} bytes")));
                    }
                    Ok(n) => bytes.extend_from_slice(buffer.get(..n).unwrap_or_default()),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(fail(error.to_string())),
                },
            }
        }
        String::from_utf8(bytes).map_err(|_| fail("it is not UTF-8".into()))
    }
}

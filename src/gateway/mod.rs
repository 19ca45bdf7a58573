//! The gateway: one terminal, one person. It turns what is typed into questions and decisions, and
//! what happens into words and an exit code.
//!
//! Owns: [`Exit`], and how every error of the layers below reads. Promises: it opens no session
//! file and runs no Bash; agents are handed to it. Leans on the shell's convention that a program
//! ended by signal N exits with 128+N. Gives up: one conversation at a time.

pub mod args;
pub mod chat;
pub mod config;
mod edit;
pub mod line;
pub mod screen;
pub mod transcript;

use std::process::ExitCode;

use crate::sys::signal::Signal;

/// How the process ends. The order is that of severity, so the worst of several is their `max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Exit {
    Done,
    /// `ask` was answered, but a command could not be approved for want of a terminal.
    Unapproved,
    /// Storage, configuration, or a failed turn of `ask`.
    Failure,
    Usage,
    /// Standard output is closed.
    ClosedOutput,
    Signal(SignalCode),
}

/// The exit code of a signal, 128 and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SignalCode(u8);

impl From<Signal> for Exit {
    fn from(signal: Signal) -> Exit {
        Exit::Signal(SignalCode(signal.exit_code()))
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(match exit {
            Exit::Done => 0,
            Exit::Failure => 1,
            Exit::Usage => 2,
            Exit::Unapproved => 3,
            Exit::ClosedOutput => 141,
            Exit::Signal(SignalCode(code)) => code,
        })
    }
}

/// An error as a person reads it: one line, and a hint on a line of its own.
#[derive(Debug)]
pub struct Complaint {
    pub message: String,
    pub hint: Option<String>,
}

impl Complaint {
    /// `message` is one line; `hint` says what to do where the message doesn't.
    pub fn new(message: impl std::fmt::Display, hint: Option<&str>) -> Complaint {
        Complaint { message: message.to_string(), hint: hint.map(str::to_owned) }
    }
}

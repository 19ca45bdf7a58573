//! Why a conversation can't be opened, read or saved to, in words for the person.
//!
//! Owns: the errors of the session and the hints that go with them. Promises: each message is one line
//! and says what is known, no more: a failed save may have reached the file or not. Leans on
//! `text::quote_os` for names. Gives up: the kernel's words for a cause stay as they are.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use super::home::SessionId;
use super::record::Body;
use crate::limits::{JOURNAL_BYTES, RECORD_BYTES};
use crate::text::quote_os;

/// Why a conversation can't be opened or read. Its file is as it was.
#[derive(Debug)]
pub enum SessionError {
    /// Another process continues it right now.
    Locked { id: SessionId },
    /// A line is wrong, and it is not the torn end of the file.
    Damaged { path: PathBuf, line: u64, reason: String },
    /// It is larger than a journal may be, or would be when its open turn is closed.
    Full { path: PathBuf },
    /// Something that was to be done to the file failed.
    Io { deed: &'static str, path: PathBuf, source: io::Error },
    /// Its open turn could not be closed.
    Close(SaveError),
}

impl SessionError {
    pub(super) fn io<'p>(deed: &'static str, path: &'p Path) -> impl FnOnce(io::Error) -> SessionError + 'p {
        move |source| SessionError::Io { deed, path: path.to_path_buf(), source }
    }

    /// What to do about it, where there is more to say than the message.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            SessionError::Locked { .. } => {
                Some("Leave it there first, or start another conversation with --new.")
            }
            SessionError::Damaged { .. } => Some(
                "The file was left as it is. Continue another conversation with --session ID, or start one with --new.",
            ),
            SessionError::Full { .. } => Some("Start a new conversation with --new."),
            SessionError::Io { .. } => None,
            SessionError::Close(error) => error.hint(),
        }
    }
}

impl fmt::Display for SessionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SessionError::Locked { id } => {
                write!(f, "conversation {id} is in use by another Mino")
            }
            SessionError::Damaged { path, line, reason } => {
                let path = quote_os(path.as_os_str());
                write!(f, "cannot use {path}: line {line}: {reason}")
            }
            SessionError::Full { path } => {
                let path = quote_os(path.as_os_str());
                write!(f, "cannot use {path}: it is full ({JOURNAL_BYTES} bytes)")
            }
            SessionError::Io { deed, path, source } => {
                write!(f, "cannot {deed} {}: {source}", quote_os(path.as_os_str()))
            }
            SessionError::Close(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for SessionError {}

/// What was to be saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saved {
    Question,
    Response,
    Start,
    /// The result of a call that was started.
    Result,
    /// The result of a call that was not.
    Refusal,
    End,
}

impl Saved {
    pub(super) fn of(body: &Body<'_>) -> Saved {
        match body {
            Body::UserMessage { .. } => Saved::Question,
            Body::ModelResponse { .. } | Body::AssistantMessage { .. } => Saved::Response,
            Body::ToolStart { .. } => Saved::Start,
            Body::ToolResult { result, .. } if result.status().ran() => Saved::Result,
            Body::ToolResult { .. } => Saved::Refusal,
            Body::TurnEnd { .. } => Saved::End,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Saved::Question => "question",
            Saved::Response => "response",
            Saved::Start => "start of the command",
            Saved::Result | Saved::Refusal => "result",
            Saved::End => "end of the turn",
        }
    }
}

/// Why something was not saved. Memory is as it was before.
#[derive(Debug)]
pub enum SaveError {
    /// A turn of this conversation is in progress. Nothing was written.
    Busy,
    /// The system gives no random number for the turn's ID. Nothing was written.
    NoRandom(io::Error),
    /// The conversation has no room for it. Nothing was written, and the turn can be closed.
    Full { what: Saved },
    /// It is larger than a record may be. Nothing was written, and the turn can be closed.
    TooLarge { what: Saved, bytes: usize },
    /// It can't come next: a mistake of the caller. Nothing was written.
    Order { what: Saved, reason: String },
    /// The write or its sync failed, now or earlier, and nothing will be written any more. Whether the
    /// record is in the file is not known.
    Failed { what: Saved, path: PathBuf, source: io::Error },
}

impl SaveError {
    /// What is known, and what to do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            SaveError::Busy => Some("Wait for its end; nothing was written."),
            SaveError::NoRandom(_) | SaveError::Order { .. } => None,
            SaveError::Full { .. } => Some("Start a new conversation with --new (in the chat: /new)."),
            SaveError::TooLarge { .. } => Some("Nothing of it was saved or run."),
            SaveError::Failed { what, .. } => Some(match what {
                Saved::Question => "The question was not sent.",
                Saved::Response => "None of its commands was started.",
                Saved::Start => "The command was not started; a saved start does not prove that it ran.",
                Saved::Result => "The command was started; a lost result does not prove that it failed.",
                Saved::Refusal => "The command was not started.",
                Saved::End => "The next start may find the turn interrupted.",
            }),
        }
    }
}

impl fmt::Display for SaveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SaveError::Busy => f.write_str("a turn of this conversation is in progress"),
            SaveError::NoRandom(error) => write!(f, "cannot begin a turn: {error}"),
            SaveError::Full { what } => {
                write!(f, "cannot save the {}: the conversation is full ({JOURNAL_BYTES} bytes)", what.name())
            }
            SaveError::TooLarge { what, bytes } => write!(
                f,
                "cannot save the {}: it takes {bytes} bytes, and {RECORD_BYTES} are allowed",
                what.name()
            ),
            SaveError::Order { what, reason } => {
                write!(f, "cannot save the {}: {reason}", what.name())
            }
            SaveError::Failed { what, path, source } => {
                let path = quote_os(path.as_os_str());
                write!(f, "cannot save the {} in {path}: {source}", what.name())
            }
        }
    }
}

impl std::error::Error for SaveError {}

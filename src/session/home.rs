//! Mino's folder: where everything is, who may see it, and which conversation is the current one.
//!
//! Owns: the paths under `~/.mino`, their modes, the pointer `active-session.json` and the list of
//! conversations. Promises: nothing is made or changed but by [`Home::prepare`] and
//! [`Home::set_active`]; a pointer that is missing or damaged while there are conversations is an
//! error and never a fresh start. Leans on `sys::file` for links, modes and replacement. Gives up:
//! `~/.mino` itself, `config.json` and `SOUL.md` may be links (people keep them elsewhere), so what
//! they name is as private as its own folder.

use std::fmt;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::Deserialize;

use super::journal::Lines;
use super::record::{self, Id};
use crate::limits::{CONFIG_BYTES, JOURNAL_BYTES};
use crate::sys::file::{self, Links};
use crate::text::{quote, quote_os};

/// The name of one conversation: 32 lowercase hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(Id);

impl SessionId {
    /// A fresh one. An error where the system has no random source.
    pub fn new() -> io::Result<SessionId> {
        Id::new().map(SessionId)
    }

    /// `None` for anything but a whole ID; see [`Home::find`] for prefixes.
    pub fn parse(text: &str) -> Option<SessionId> {
        Id::parse(text).map(SessionId)
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One line of the list of conversations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionInfo {
    pub id: SessionId,
    pub changed: SystemTime,
    /// Questions asked, however their turns ended.
    pub turns: usize,
}

/// What can be wrong with Mino's folder.
#[derive(Debug)]
pub enum HomeError {
    /// Something that was to be done to a file or folder failed.
    Io { deed: &'static str, path: PathBuf, source: io::Error },
    /// There are conversations, and the pointer doesn't say which is the current one.
    Pointer { path: PathBuf, reason: &'static str },
    /// No conversation's ID begins so.
    NoSession { prefix: String },
    /// The IDs of several conversations begin so.
    ManySessions { prefix: String, found: usize },
}

impl HomeError {
    fn io<'p>(deed: &'static str, path: &'p Path) -> impl FnOnce(io::Error) -> HomeError + 'p {
        move |source| HomeError::Io { deed, path: path.to_path_buf(), source }
    }

    /// What to do about it, where there is more to say than the message.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            HomeError::Io { .. } => None,
            HomeError::Pointer { .. } => Some(
                "Choose a conversation with --session ID (`mino sessions` lists them) or start one with --new.",
            ),
            HomeError::NoSession { .. } => Some("`mino sessions` lists the conversations."),
            HomeError::ManySessions { .. } => Some("Give more of the ID; `mino sessions` lists them."),
        }
    }
}

impl fmt::Display for HomeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HomeError::Io { deed, path, source } => {
                write!(f, "cannot {deed} {}: {source}", quote_os(path.as_os_str()))
            }
            HomeError::Pointer { path, reason } => {
                write!(f, "cannot tell the current conversation: {} {reason}", quote_os(path.as_os_str()))
            }
            HomeError::NoSession { prefix } => {
                write!(f, "no conversation's ID begins with {}", quote(prefix))
            }
            HomeError::ManySessions { prefix, found } => {
                write!(f, "the IDs of {found} conversations begin with {}", quote(prefix))
            }
        }
    }
}

impl std::error::Error for HomeError {}

/// Mino's folder, usually `~/.mino`.
#[derive(Clone, Debug)]
pub struct Home {
    root: PathBuf,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Pointer {
    session_id: String,
}

impl Home {
    /// Names the folder, without a look at it.
    pub fn at(root: PathBuf) -> Home {
        Home { root }
    }

    pub fn config_path(&self) -> PathBuf {
        self.root.join("config.json")
    }

    pub fn soul_path(&self) -> PathBuf {
        self.root.join("SOUL.md")
    }

    pub fn journal_path(&self, id: &SessionId) -> PathBuf {
        self.sessions_dir().join(format!("{id}.jsonl"))
    }

    fn pointer_path(&self) -> PathBuf {
        self.root.join("active-session.json")
    }

    fn sessions_dir(&self) -> PathBuf {
        self.root.join("sessions")
    }

    /// Makes the folders that are missing and closes all of it to others. Answers the files that
    /// others may use and that can't be closed to them, since they belong to somebody else.
    pub fn prepare(&self) -> Result<Vec<PathBuf>, HomeError> {
        for (path, links) in [(self.root.clone(), Links::Follow), (self.sessions_dir(), Links::Refuse)] {
            file::private_dir(&path, links).map_err(HomeError::io("prepare the folder", &path))?;
        }
        let mut open = Vec::new();
        for (path, links) in [
            (self.config_path(), Links::Follow),
            (self.soul_path(), Links::Follow),
            (self.pointer_path(), Links::Refuse),
        ] {
            tighten(path, links, &mut open)?;
        }
        for entry in self.entries()? {
            // Whatever else lies there is refused by whoever opens it.
            let wide = |found: &fs::Metadata| found.is_file() && found.permissions().mode() & 0o7177 != 0;
            if entry.metadata().is_ok_and(|found| wide(&found)) {
                tighten(entry.path(), Links::Refuse, &mut open)?;
            }
        }
        Ok(open)
    }

    /// The current conversation; `None` in a folder without any.
    pub fn active(&self) -> Result<Option<SessionId>, HomeError> {
        let path = self.pointer_path();
        let bytes =
            file::read_bounded(&path, CONFIG_BYTES, Links::Refuse).map_err(HomeError::io("read", &path))?;
        let reason = match bytes.as_deref().map(parse_pointer) {
            Some(Some(id)) if self.journal_path(&id).symlink_metadata().is_ok() => {
                let path = self.sessions_dir();
                file::open_dir(&path, Links::Refuse).map_err(HomeError::io("open", &path))?;
                return Ok(Some(id));
            }
            Some(Some(_)) => "names a conversation that does not exist",
            Some(None) => "is damaged",
            None => "is missing",
        };
        // A journal without a record is what a start leaves that ended before it set the pointer.
        let is_used = |entry: &fs::DirEntry| {
            session_id(entry).is_some() && entry.metadata().map_or(true, |found| found.len() > 0)
        };
        if self.entries()?.iter().any(is_used) {
            return Err(HomeError::Pointer { path, reason });
        }
        Ok(None)
    }

    /// An error unless the conversation's file can be opened and is a regular one.
    pub fn check_file(&self, id: &SessionId) -> Result<(), HomeError> {
        let path = self.journal_path(id);
        let opened = file::open_regular(&path, Links::Refuse);
        opened.map(drop).map_err(HomeError::io("open", &path))
    }

    /// Makes it the current conversation, durably.
    pub fn set_active(&self, id: &SessionId) -> Result<(), HomeError> {
        let path = self.pointer_path();
        let pointer = format!("{{\"session_id\":\"{id}\"}}\n");
        // Looks first, since replacing would follow a link.
        file::tighten(&path, Links::Refuse)
            .and_then(|()| file::replace(&path, pointer.as_bytes()))
            .map_err(HomeError::io("write", &path))
    }

    /// All conversations, the one that changed last first. What isn't a regular file is none.
    pub fn sessions(&self) -> Result<Vec<SessionInfo>, HomeError> {
        let mut sessions = Vec::new();
        for entry in self.entries()? {
            let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
            if let Some(id) = session_id(&entry).filter(|_| is_file) {
                let path = entry.path();
                sessions.push(look_at(id, &path).map_err(HomeError::io("read", &path))?);
            }
        }
        sessions.sort_by_key(|info| (std::cmp::Reverse(info.changed), info.id));
        Ok(sessions)
    }

    /// The one conversation whose ID begins with `prefix`.
    pub fn find(&self, prefix: &str) -> Result<SessionId, HomeError> {
        let entries = self.entries()?;
        let ids = entries.iter().filter_map(session_id);
        let begins = |id: &SessionId| !prefix.is_empty() && id.to_string().starts_with(prefix);
        let found: Vec<SessionId> = ids.filter(begins).collect();
        let prefix = prefix.to_owned();
        match *found.as_slice() {
            [id] => Ok(id),
            [] => Err(HomeError::NoSession { prefix }),
            [..] => Err(HomeError::ManySessions { prefix, found: found.len() }),
        }
    }

    /// What lies in the folder of journals, which may be missing.
    fn entries(&self) -> Result<Vec<fs::DirEntry>, HomeError> {
        let path = self.sessions_dir();
        // Only the handle says whether it is a link.
        let listed = file::open_dir(&path, Links::Refuse)
            .and_then(|_| fs::read_dir(&path)?.collect::<io::Result<Vec<_>>>());
        match listed {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
            listed => listed.map_err(HomeError::io("list", &path)),
        }
    }
}

/// Closes one file to others, or notes that it isn't ours to close.
fn tighten(path: PathBuf, links: Links, open: &mut Vec<PathBuf>) -> Result<(), HomeError> {
    match file::tighten(&path, links) {
        Err(error) if matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem) => {
            open.push(path);
            Ok(())
        }
        tightened => tightened.map_err(HomeError::io("make private", &path)),
    }
}

fn parse_pointer(bytes: &[u8]) -> Option<SessionId> {
    let pointer: Pointer = serde_json::from_slice(bytes).ok()?;
    SessionId::parse(&pointer.session_id)
}

/// The conversation that a file belongs to; `None` for copies and everything else.
fn session_id(entry: &fs::DirEntry) -> Option<SessionId> {
    let name = entry.file_name();
    SessionId::parse(name.to_str()?.strip_suffix(".jsonl")?)
}

fn look_at(id: SessionId, path: &Path) -> io::Result<SessionInfo> {
    let file = file::open_regular(path, Links::Refuse)?;
    let found = file.metadata()?;
    // What is beyond that size is no journal, and is not read to its end to tell how many turns.
    let mut lines = Lines::new(file, found.len().min(JOURNAL_BYTES));
    let mut turns = 0;
    while lines.advance()? {
        turns += usize::from(lines.line().is_some_and(record::is_question));
    }
    Ok(SessionInfo { id, changed: found.modified()?, turns })
}

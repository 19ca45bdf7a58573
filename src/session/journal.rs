//! One journal file: its lock, its lines, its appends, and the cutting of a torn tail.
//!
//! Owns: the handle of an open journal. Promises: one append is one write of one buffer and one sync,
//! and succeeds only when both did; after one failure nothing is ever written through this handle
//! again, since a sync that failed once says nothing when it is repeated; a tail is cut only after a
//! synced private copy of the whole file exists. Leans on O_APPEND, and on the lock of flock(2), which
//! the kernel drops with the last handle, however the process ends. Gives up: what a failed append
//! left in the file stays there; the next start judges it. A file that is removed or changed by
//! somebody else between the look at it and the write is not noticed before the next append.

use std::fs::{self, File, TryLockError};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Seek, Take, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::limits::{READ_BYTES, RECORD_BYTES, RECOVERY_COPIES};
use crate::sys::file::{self, Create};

/// A journal that nobody else has open for writing.
#[derive(Debug)]
pub struct Journal {
    file: File,
    path: PathBuf,
    bytes: u64,
    failed: bool,
}

impl Journal {
    /// Makes an empty one, and its name durable. Nothing stays behind where that fails.
    pub fn create(path: PathBuf) -> io::Result<Journal> {
        let file = file::open_journal(&path, Create::New)?;
        let ready = file.try_lock().map_err(io::Error::from);
        if let Err(error) = ready.and_then(|()| file::sync_dir(file::parent(&path))) {
            // It is empty and nobody knows of it; the first error is the one to tell.
            let _ = fs::remove_file(&path);
            return Err(error);
        }
        Ok(Journal { file, path, bytes: 0, failed: false })
    }

    /// Opens and locks; `WouldBlock` where another process has the lock.
    pub fn open(path: PathBuf) -> Result<Journal, TryLockError> {
        let file = file::open_journal(&path, Create::Existing).map_err(TryLockError::Error)?;
        file.try_lock()?;
        let bytes = file.metadata().map_err(TryLockError::Error)?.len();
        Ok(Journal { file, path, bytes, failed: false })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The size of the file.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// Appends one line durably, or fails for good.
    pub fn append(&mut self, line: &[u8]) -> io::Result<()> {
        if self.failed {
            return Err(io::Error::other("an earlier save has failed"));
        }
        self.failed = true;
        // What is written to a file without a name, or behind somebody else's bytes, no start will read.
        let found = self.file.metadata()?;
        if found.nlink() == 0 || found.len() != self.bytes {
            return Err(io::Error::other("somebody else removed or changed it"));
        }
        self.file.write_all(line)?;
        self.file.sync_all()?;
        self.failed = false;
        self.bytes += line.len() as u64;
        Ok(())
    }

    /// The lines from the first on.
    pub fn lines(&self) -> io::Result<Lines<&File>> {
        (&self.file).rewind()?;
        Ok(Lines::new(&self.file, self.bytes))
    }

    /// Sets the whole file aside, then cuts it to its first `bytes`; answers the copy's path.
    pub fn cut(&mut self, bytes: u64) -> io::Result<PathBuf> {
        let (path, copy) = self.new_copy()?;
        if let Err(error) = self.copy_to(&copy) {
            // Half a copy helps nobody; the first error is the one to tell.
            let _ = fs::remove_file(&path);
            return Err(error);
        }
        self.file.set_len(bytes)?;
        self.file.sync_all()?;
        self.bytes = bytes;
        Ok(path)
    }

    fn new_copy(&self) -> io::Result<(PathBuf, File)> {
        let stem = self.path.file_stem().unwrap_or_default().to_string_lossy();
        for n in 1..=RECOVERY_COPIES {
            let path = self.path.with_file_name(format!("{stem}-recovery-{n}.jsonl"));
            match file::open_journal(&path, Create::New) {
                Ok(copy) => return Ok((path, copy)),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::other(format!("there are {RECOVERY_COPIES} copies of it already")))
    }

    fn copy_to(&self, mut copy: &File) -> io::Result<()> {
        (&self.file).rewind()?;
        let copied = io::copy(&mut (&self.file).take(self.bytes), &mut copy)?;
        if copied != self.bytes {
            return Err(io::Error::other("it shrank while it was copied"));
        }
        copy.sync_all()?;
        file::sync_dir(file::parent(&self.path))
    }
}

/// A journal's lines, one at a time and never more than [`RECORD_BYTES`] of one.
#[derive(Debug)]
pub struct Lines<R> {
    reader: BufReader<Take<R>>,
    line: Vec<u8>,
    number: u64,
    start: u64,
    bytes: u64,
}

impl<R: Read> Lines<R> {
    /// Reads `bytes` of `source` and not what is appended meanwhile.
    pub fn new(source: R, bytes: u64) -> Lines<R> {
        Lines {
            reader: BufReader::with_capacity(READ_BYTES, source.take(bytes)),
            line: Vec::new(),
            number: 0,
            start: 0,
            bytes: 0,
        }
    }

    /// Goes to the next line; false where there is none.
    pub fn advance(&mut self) -> io::Result<bool> {
        self.number += 1;
        self.start += self.bytes;
        self.bytes = 0;
        // A line that is too long is read to its end, but only its last piece is kept.
        loop {
            self.line.clear();
            let mut piece = (&mut self.reader).take(RECORD_BYTES as u64);
            let read = piece.read_until(b'\n', &mut self.line)?;
            self.bytes += read as u64;
            if read < RECORD_BYTES || self.is_whole() {
                return Ok(self.bytes > 0);
            }
        }
    }

    /// Whether the line ends with its line feed.
    pub fn is_whole(&self) -> bool {
        self.line.ends_with(b"\n")
    }

    /// The line without its line feed; `None` where it is too long.
    pub fn line(&self) -> Option<&[u8]> {
        let line = self.line.strip_suffix(b"\n").unwrap_or(&self.line);
        (self.bytes <= RECORD_BYTES as u64).then_some(line)
    }

    /// Whether nothing follows.
    pub fn is_last(&mut self) -> io::Result<bool> {
        Ok(self.reader.fill_buf()?.is_empty())
    }

    /// The line's number, from 1 on.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Where the line begins in the file.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// The line's length with its line feed.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
impl Journal {
    /// Writes to it succeed and its sync fails: /dev/null takes everything and has nothing to sync.
    pub fn unsyncable() -> Journal {
        Journal {
            file: File::options().append(true).open("/dev/null").unwrap(),
            path: PathBuf::from("/dev/null"),
            bytes: 0,
            failed: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_sync_fails_the_journal_for_good() {
        let mut journal = Journal::unsyncable();
        let error = journal.append(b"{}\n").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        let scratch = tempfile::tempdir().unwrap();
        journal.file = File::create(scratch.path().join("sound")).unwrap();
        assert!(journal.append(b"{}\n").is_err());
        assert_eq!((journal.bytes(), journal.file.metadata().unwrap().len()), (0, 0));
    }

    fn split(text: &[u8]) -> Vec<(u64, u64, bool, bool)> {
        let mut lines = Lines::new(text, text.len() as u64);
        let mut found = Vec::new();
        while lines.advance().unwrap() {
            let last = lines.is_last().unwrap();
            found.push((lines.start(), lines.bytes(), lines.is_whole(), last));
        }
        found
    }

    #[test]
    fn only_a_line_feed_ends_a_line() {
        assert_eq!(split(b""), []);
        assert_eq!(split("a\u{2028}\r\u{85}\u{c}b\n".as_bytes()), [(0, 10, true, true)]);
        assert_eq!(split(b"a\n\nbc"), [(0, 2, true, false), (2, 1, true, false), (3, 2, false, true)]);
    }

    #[test]
    fn a_line_that_is_too_long_is_passed_over_without_being_held() {
        let mut text = vec![b'x'; RECORD_BYTES - 1];
        text.push(b'\n');
        let mut lines = Lines::new(&*text, text.len() as u64);
        assert!(lines.advance().unwrap());
        assert_eq!(lines.line().map(<[u8]>::len), Some(RECORD_BYTES - 1));
        let text = [vec![b'x'; 2 * RECORD_BYTES], b"\nnext\n".to_vec()].concat();
        let mut lines = Lines::new(&*text, text.len() as u64);
        assert!(lines.advance().unwrap());
        assert_eq!((lines.line(), lines.is_whole()), (None, true));
        assert!(lines.line.capacity() <= 2 * RECORD_BYTES);
        assert!(lines.advance().unwrap());
        assert_eq!(lines.line(), Some(&b"next"[..]));
    }
}

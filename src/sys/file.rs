//! Files and folders as Mino needs them: private, never through an unexpected link, never stuck.
//!
//! Owns: how anything under Mino's folder is opened, created, replaced and restricted. Promises:
//! what is opened is a regular file, judged by its handle and not by its name; opening never blocks,
//! truncates or follows a link that isn't allowed; every handle is closed in a child (the standard
//! library sets close-on-exec); a replaced file is the old one or the new one, whole, whenever the
//! machine stops. Leans on: rename(2) being atomic, and O_NOFOLLOW and O_NONBLOCK of open(2); the
//! latter keeps the opening of a FIFO from waiting and does nothing to a regular file. Gives up: a
//! process of the same account that swaps files while we look, which could as well edit them; and a
//! temporary file stays behind when the machine stops in the middle of a replacement.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::limits::LINK_HOPS;

const FILE_MODE: u32 = 0o600;
const DIR_MODE: u32 = 0o700;
/// What a file's mode may not hold, and a folder's (which may pass its group on to its files).
const FILE_FOREIGN_BITS: u32 = 0o7177;
const DIR_FOREIGN_BITS: u32 = 0o077;

/// Whether the last component of a path may be a symbolic link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    Refuse,
    Follow,
}

/// Whether a journal is to be made or found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Create {
    /// It must not exist yet.
    New,
    Existing,
}

/// Opens for reading only. An error for whatever isn't a regular file.
pub fn open_regular(path: &Path, links: Links) -> io::Result<File> {
    open(path, OpenOptions::new().read(true), links)
}

/// Opens for reading and appending, with nothing for others to read. Links are refused.
pub fn open_journal(path: &Path, create: Create) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).append(true).mode(FILE_MODE);
    options.create_new(create == Create::New);
    let file = open(path, &mut options, Links::Refuse)?;
    tighten_handle(&file, FILE_FOREIGN_BITS)?;
    Ok(file)
}

/// The whole file, or `None` where there is none. An error where it is larger than `max_bytes`.
pub fn read_bounded(path: &Path, max_bytes: u64, links: Links) -> io::Result<Option<Vec<u8>>> {
    let file = match open_regular(path, links) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    file.take(max_bytes.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max_bytes {
        return Err(refused(format!("it is larger than {max_bytes} bytes")));
    }
    Ok(Some(bytes))
}

/// Puts `bytes` in the place of the file, private and synced, or leaves it as it was. Where `path`
/// is a link, the file that it names is replaced (or made), and the link stays.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let target = link_target(path)?;
    if matches!(fs::symlink_metadata(&target), Ok(found) if !found.is_file()) {
        return Err(refused("it is not a regular file"));
    }
    let temporary = target.with_file_name(format!(".mino-{:032x}.tmp", random()?));
    let replaced = write_new(&temporary, bytes).and_then(|()| fs::rename(&temporary, &target));
    if replaced.is_err() {
        // The first error is the one to tell; a file that can't be removed is no second failure.
        let _ = fs::remove_file(&temporary);
    }
    replaced?;
    sync_dir(parent(&target))
}

/// As [`replace`], for a file that isn't there yet; an error of kind `AlreadyExists` where it is.
/// Never leaves half a file. Two processes that do this at once both succeed, one after the other.
pub fn create_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if fs::exists(path)? {
        return Err(ErrorKind::AlreadyExists.into());
    }
    replace(path, bytes)
}

/// Makes the folder if it is missing (its parent must exist) and closes it to others.
pub fn private_dir(path: &Path, links: Links) -> io::Result<()> {
    match DirBuilder::new().mode(DIR_MODE).create(path) {
        Ok(()) => sync_dir(parent(path))?,
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    tighten_handle(&open_dir(path, links)?, DIR_FOREIGN_BITS)
}

/// Takes away what others may do with a file, where there is one. Rights are only ever removed: a
/// file that its owner made read-only stays so.
pub fn tighten(path: &Path, links: Links) -> io::Result<()> {
    match open_regular(path, links) {
        Ok(file) => tighten_handle(&file, FILE_FOREIGN_BITS),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Makes the names in a folder durable: those of files created, renamed or removed there.
pub fn sync_dir(path: &Path) -> io::Result<()> {
    open_dir(path, Links::Follow)?.sync_all()
}

/// A folder's handle; an error for whatever isn't a folder, or is a link where that is refused.
pub fn open_dir(path: &Path, links: Links) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY | no_follow(links)).open(path).map_err(
        |error| match fs::symlink_metadata(path) {
            Ok(found) if found.is_symlink() && links == Links::Refuse => refused("it is a symbolic link"),
            _ => error,
        },
    )
}

/// The folder that holds `path`.
pub fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

/// 128 bits from the system's random source, for names that nobody else has.
pub fn random() -> io::Result<u128> {
    let mut bytes = [0; 16];
    getrandom::getrandom(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(u128::from_ne_bytes(bytes))
}

fn open(path: &Path, options: &mut OpenOptions, links: Links) -> io::Result<File> {
    let file = options
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY | no_follow(links))
        .open(path)
        .map_err(|error| explain(path, links, error))?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(refused("it is not a regular file")) }
}

fn no_follow(links: Links) -> i32 {
    match links {
        Links::Refuse => libc::O_NOFOLLOW,
        Links::Follow => 0,
    }
}

/// What the kernel says of a link or a FIFO in the way ("too many levels", "no such device") means
/// nothing to a person. Callers tell these two kinds apart, so they stay as they are.
fn explain(path: &Path, links: Links, error: io::Error) -> io::Error {
    if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::AlreadyExists) {
        return error;
    }
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_symlink() && links == Links::Refuse => refused("it is a symbolic link"),
        Ok(found) if !found.is_symlink() && !found.is_file() => refused("it is not a regular file"),
        _ => error,
    }
}

fn refused(why: impl Into<String>) -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, why.into())
}

fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = open_journal(path, Create::New)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn tighten_handle(file: &File, foreign_bits: u32) -> io::Result<()> {
    let mode = file.metadata()?.permissions().mode();
    if mode & foreign_bits == 0 {
        return Ok(());
    }
    file.set_permissions(Permissions::from_mode(mode & !foreign_bits))
}

/// Where a chain of links ends, whether or not anything is there.
fn link_target(path: &Path) -> io::Result<PathBuf> {
    let mut target = path.to_path_buf();
    for _ in 0..=LINK_HOPS {
        match fs::read_link(&target) {
            Ok(next) => target = parent(&target).join(next),
            // EINVAL: it is there and no link.
            Err(error) if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::NotFound) => {
                return Ok(target);
            }
            Err(error) => return Err(error),
        }
    }
    Err(refused("it is a link to a link without end"))
}

//! Everything that needs `unsafe` or names a system call. Each function here is safe to call,
//! answers `io::Result`, and decides which error number means success.

#![allow(unsafe_code, reason = "this folder is where it lives; each block says why it is sound")]

pub mod file;
pub mod process;
pub mod signal;
pub mod terminal;

//! The binary: arguments in, exit code out. Everything else is in the library.

#![deny(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    mino::app::run(std::env::args_os().skip(1)).into()
}

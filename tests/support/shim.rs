//! Gives a program a controlling terminal: `tty-shim SLAVE DESCRIPTORS PROGRAM [ARGUMENT...]`.
//!
//! Starts a session of its own, opens the pseudo-terminal's slave, puts it on the descriptors named
//! by the digits of DESCRIPTORS (the others stay what the parent made them), and becomes PROGRAM.
//! It exists because the code that runs between fork and exec can't be written in safe Rust, and a
//! small program that does the same before its own exec can.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{ioctl_tiocsctty, setsid};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};

fn main() {
    let mut arguments = std::env::args_os().skip(1);
    let mut next = |what: &str| -> OsString {
        arguments
            .next()
            .unwrap_or_else(|| panic!("tty-shim: no {what}"))
    };
    let (slave, descriptors, program) = (next("slave"), next("descriptors"), next("program"));
    setsid().expect("tty-shim: setsid");
    let terminal = OpenOptions::new()
        .read(true)
        .write(true)
        .open(slave)
        .expect("tty-shim: open the slave");
    ioctl_tiocsctty(&terminal).expect("tty-shim: TIOCSCTTY");
    let wanted = descriptors.to_string_lossy();
    if wanted.contains('0') {
        dup2_stdin(&terminal).expect("tty-shim: standard input");
    }
    if wanted.contains('1') {
        dup2_stdout(&terminal).expect("tty-shim: standard output");
    }
    if wanted.contains('2') {
        dup2_stderr(&terminal).expect("tty-shim: standard error");
    }
    // `terminal` itself is close-on-exec, as every file that std opens.
    let error = Command::new(&program).args(arguments).exec();
    panic!("tty-shim: {}: {error}", program.to_string_lossy());
}

//! Mino: a person asks, a model answers, and one approved Bash command at a time gets a fact.
//!
//! The map, in the order to read it:
//! - [`limits`]: every number that bounds anything
//! - [`step`]: the shared nouns: a call, its display, a verdict, a result
//! - [`text`]: quoting, cleaning and cutting of text
//! - [`sys`]: system calls, and all of the `unsafe`: files, processes, signals, the terminal

#![deny(unsafe_code)]
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::string_slice
)]
#![deny(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::todo,
    clippy::unimplemented,
    clippy::dbg_macro
)]
#![cfg_attr(
    test,
    allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::string_slice
    )
)]

pub mod gateway;
pub mod limits;
pub mod model;
pub mod session;
pub mod step;
pub mod sys;
pub mod text;
pub mod tools;

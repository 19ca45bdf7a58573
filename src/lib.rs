//! Mino: a person asks, a model answers, and one approved Bash command at a time gets a fact.
//!
//! The map, in the order to read it:
//! - [`limits`]: every number that bounds anything
//! - [`step`]: the shared nouns: a call, its display, a verdict, a result
//! - [`agent`]: the turn, and the trait through which it speaks to a person
//! - [`session`]: one conversation on disk: `record` (the format), `journal` (one file), `home` (the folder)
//! - [`tools`]: define, prepare, execute; `bash` is the one tool
//! - [`model`]: one request and its validated reply: `sse` (framing), `wire` (the service's names), `http`
//! - [`gateway`]: arguments, settings, the terminal: what is typed, what is shown, how it exits
//! - [`app`]: builds the parts and hands them to each other
//! - [`text`]: quoting, cleaning and cutting of text
//! - [`sys`]: system calls, and all of the `unsafe`: files, processes, signals, the terminal
//!
//! Data flows one way: gateway, agent, then model, session and tools, which don't know each other.

#![deny(unsafe_code)]
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::string_slice
)]
#![deny(clippy::print_stdout, clippy::print_stderr, clippy::todo, clippy::unimplemented, clippy::dbg_macro)]
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

#[cfg(not(target_os = "linux"))]
compile_error!("Mino is built and tested on Linux only");

pub mod agent;
pub mod app;
pub mod gateway;
pub mod limits;
pub mod model;
pub mod session;
pub mod step;
pub mod sys;
pub mod text;
pub mod tools;

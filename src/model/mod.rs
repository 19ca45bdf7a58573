//! (being written)

pub mod sse;
pub mod wire;

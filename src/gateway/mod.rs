//! (being written)

pub mod line;

//! (being written)

pub mod bash;

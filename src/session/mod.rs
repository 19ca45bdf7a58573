//! (being written)

pub mod home;
mod journal;
pub mod record;

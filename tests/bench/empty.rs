//! What it costs to start and end a program that does nothing.

fn main() {}

//! Coral's commands: one binary, many names.
fn main() {}

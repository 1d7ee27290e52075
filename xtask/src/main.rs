//! What developers run: `cargo xtask test|bench|setup|ci`.
fn main() {}

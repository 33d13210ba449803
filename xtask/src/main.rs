//! Chores of the project: `cargo xtask ci`, `cargo xtask size`.
fn main() {}

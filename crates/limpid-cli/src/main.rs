//! The binary `limpid`.
fn main() {}

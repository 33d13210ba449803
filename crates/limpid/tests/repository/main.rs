//! Tests of the repository: its crates side by side, its documents, its installer, a program outside it. Published
//! crates go without them.

mod circles;
mod install;
mod outside;
#[path = "../../../../xtask/src/source.rs"]
mod source;
mod tidy;

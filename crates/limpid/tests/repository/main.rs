//! Tests of the repository: its crates side by side, its documents, a program outside it. Published crates go without them.

mod outside;
mod tidy;

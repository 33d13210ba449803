//! The binary as people use it, in one program: `cargo test --workspace --test command tune::` runs the tests of
//! tune.rs.
//!
//! Apart are `hostile`, which is its own harness and counts what each of its threads holds; and `gpu` and `ranks`,
//! which want a feature, and are built again for another MPI.

mod bounds;
mod cli;
mod clients;
#[path = "../common/mod.rs"]
mod common;
mod damaged;
mod data;
mod direction;
mod documents;
mod hangup;
mod intervene;
mod leaves;
mod lesson;
mod llmc;
mod look;
mod models;
mod outputs;
mod printed;
mod race;
mod resume;
mod serve;
mod small;
mod survives;
mod sweep;
mod taken;
mod timelapse;
mod tune;
mod tutorial;
mod typed;
mod unit;
mod walks;
mod why;

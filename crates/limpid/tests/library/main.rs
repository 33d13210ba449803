//! The library's tests, in one program, so that it is linked once: `cargo test --workspace --test library decode::`
//! runs those of decode.rs.
//!
//! What is about the repository rather than the library is `tests/repository`. A test that needs a process of its own
//! starts this program anew (`common::alone`).

mod adapters;
mod by_layers;
mod changed;
mod common;
mod containers;
mod decode;
mod directions;
mod documents;
mod dropout;
mod exact;
mod face;
mod fitted;
#[cfg(feature = "gpu")]
mod gpu;
mod gradients;
mod inspect;
mod interop;
mod interventions;
mod letters;
mod levels;
mod memory;
mod names;
mod parity;
mod path;
mod pictures;
mod presets;
mod pytorch;
mod random_config;
mod reason;
mod receipt;
mod seam;
mod shared;
mod sweeps;
mod threads;
mod timelapse;
mod training;
mod unit_places;
mod why;

/// Counts what threads hold, for the tests that ask how much a call takes, and allocations, for those that ask for
/// none.
#[global_allocator]
static COUNTING: common::counting::Counting = common::counting::Counting;

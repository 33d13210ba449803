//! Many requests on one model: which rows run next, and where their keys and values are.
//!
//! [`turn()`] decides what one run of the model computes: a function of its arguments, without clock, threads or
//! numbers of the model. [`BlockPool`] keeps account of the KV cache, in blocks that sequences with the same
//! beginning share. Neither changes a bit of any answer: a row depends on its own sequence alone. Read `blocks` first.

mod blocks;
mod turn;

pub use blocks::{BlockPool, BlockTable};
pub use turn::{SequenceProgress, Turn, TurnLimits, TurnRows, WaitingRequest, turn};

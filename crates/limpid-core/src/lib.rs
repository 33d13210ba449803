//! A transformer is a list of ops. An op runs forward and backward. A backend runs ops.
//!
//! In the order to read them: [`config`] says which transformer; [`ops`] is what happens; [`model`] builds the list;
//! [`backend`] runs it; [`decode`] keeps sequences and turns logits into tokens; [`finite`] finds the first tensor that is
//! not a number. Nothing here knows of files, the clock, the environment or a terminal.

pub mod backend;
pub mod config;
pub mod decode;
pub mod finite;
pub mod model;
pub mod ops;

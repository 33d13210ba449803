//! A transformer is a list of ops. An op runs forward and backward. A backend runs ops.
//!
//! In the order to read them: [`config`] says which transformer; [`ops`] is the list, plain data; [`model`] builds it.
//! [`kernels`] compute what an op says, with the products of [`matrix`] and the numbers of [`numeric`]; [`optimizer`]
//! has the update rules. [`backend`] runs the list; [`decode`] keeps sequences and turns logits into tokens; [`finite`]
//! finds the first tensor that is not a number. Nothing here knows of files, the clock, the environment or a terminal.

pub mod backend;
pub mod config;
pub mod decode;
pub mod finite;
pub mod kernels;
pub mod matrix;
pub mod model;
pub mod numeric;
pub mod ops;
pub mod optimizer;

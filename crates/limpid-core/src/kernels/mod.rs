//! The kernels: what each [`Op`](crate::ops::Op) computes, forward and backward, as single-threaded functions on
//! slices; a backend splits the work among threads.
//!
//! One op per file, and in each file: the formula, `reference` (f64, plain loops; the fast kernels are judged by it),
//! the fast forward and backward, tests. `ops` has the letters of the shapes. Read `norm` for a typical op, `linear`
//! for the one that takes most of the time.

pub mod activate;
pub mod add;
pub mod attend;
pub mod classify;
pub mod dropout;
pub mod embed;
pub mod gather;
pub mod linear;
pub mod multiply;
pub mod norm;
pub mod rotate;
pub mod scale;

//! The matrix library: memory ([`arena`]), matrices as kernels see them ([`view`]) and their products, which take most
//! of the time of a run.
//!
//! All products are one function, [`gemm::gemm`], on transposed views. Its order of summation is guaranteed ([`Sums`]):
//! every element of the result is a sum over k, ascending, in chains of 64 multiply-adds, or in one, whatever the shape
//! of the product, the tiles and the threads. So a row's result does not depend on the other rows of the batch. Read
//! `gemm` for the blocking, `tile` for the inner loop, `codes` and `dot` for quantised weights.

pub mod arena;
pub mod codes;
pub mod dot;
pub mod gemm;
mod sums;
mod tile;
mod vector;
pub mod view;

pub use sums::{Start, Sums};

use crate::config::axis;

axis! {
    /// What products multiply. Sums, statistics, softmax, losses and the optimizer are f32 whatever it is, and so
    /// are the weights that are trained.
    Precision, "precision" {
        /// Single precision.
        F32 = "f32",
        /// Operands rounded to bfloat16, products summed in f32.
        Bf16 = "bf16",
        /// Operands rounded to IEEE's half precision by a GPU's cooperative matrices, products summed in f32.
        F16 = "f16",
        /// Activations rounded to eight bits where they meet quantised weights, and products of these summed as
        /// integers; all else as in `f32`. For generating.
        Int8 = "int8",
    }
}

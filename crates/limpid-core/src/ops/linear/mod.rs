//! The matrix product, which takes most of the time: y = x w' + b, with w stored (out, in) as in PyTorch and llm.c.
//!
//!   dx = dy w,   dw += dy' x,   db += column sums of dy
//!
//! All products are one function, [`gemm::gemm`], on transposed views. Its order of summation is guaranteed: every
//! element of the result is a sum over k, ascending, in chains of 64 multiply-adds, or in one ([`gemm::Sums`]), whatever the shape of the
//! product, the tiles and the threads. So a row's result does not depend on the other rows of the batch. Read `gemm` for the
//! blocking, `tile` for the inner loop, `codes` and `dot` for quantised weights.

pub mod codes;
pub mod dot;
pub mod gemm;
mod tile;

use super::simd::{Kernel, MulAdd};
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
        /// Activations rounded to eight bits where they meet quantised weights, and products of these summed as integers; all else
        /// as in `f32`. For generating.
        Int8 = "int8",
    }
}

/// Plain f64 loops.
pub mod reference {
    /// y: (N,O) <- x: (N,I) w: (O,I)' + b: (O)
    pub fn forward(y: &mut [f64], x: &[f64], w: &[f64], b: Option<&[f64]>, inner: usize) {
        let outer = w.len() / inner;
        for (y, x) in y.chunks_exact_mut(outer).zip(x.chunks_exact(inner)) {
            for (o, y) in y.iter_mut().enumerate() {
                let row = &w[o * inner..][..inner];
                *y = b.map_or(0.0, |b| b[o]) + x.iter().zip(row).map(|(x, w)| x * w).sum::<f64>();
            }
        }
    }
    /// dx: (N,I), cleared first unless `add`, += dy: (N,O) w: (O,I)
    pub fn backward_x(dx: &mut [f64], add: bool, dy: &[f64], w: &[f64], inner: usize) {
        let outer = w.len() / inner;
        if !add {
            dx.fill(0.0);
        }
        for (dx, dy) in dx.chunks_exact_mut(inner).zip(dy.chunks_exact(outer)) {
            for (d, w) in dy.iter().zip(w.chunks_exact(inner)) {
                dx.iter_mut().zip(w).for_each(|(dx, w)| *dx += d * w);
            }
        }
    }
    /// dw: (O,I) += dy' x
    pub fn backward_w(dw: &mut [f64], dy: &[f64], x: &[f64], inner: usize) {
        let outer = dw.len() / inner;
        for (dy, x) in dy.chunks_exact(outer).zip(x.chunks_exact(inner)) {
            for (d, dw) in dy.iter().zip(dw.chunks_exact_mut(inner)) {
                dw.iter_mut().zip(x).for_each(|(dw, x)| *dw += d * x);
            }
        }
    }
    /// db: (O) += column sums of dy
    pub fn backward_b(db: &mut [f64], dy: &[f64]) {
        for dy in dy.chunks_exact(db.len()) {
            db.iter_mut().zip(dy).for_each(|(db, d)| *db += d);
        }
    }
}

/// db += column sums of dy, with rows in ascending order, for some of the columns.
pub struct ColumnSums<'a> {
    /// (columns), added to
    pub db: &'a mut [f32],
    /// first column
    pub from: usize,
    /// (N,O)
    pub dy: &'a [f32],
    /// O
    pub cols: usize,
}

impl Kernel for ColumnSums<'_> {
    type Output = ();
    #[inline(always)]
    fn run<M: MulAdd>(self) {
        for dy in self.dy.chunks_exact(self.cols) {
            self.db.iter_mut().zip(&dy[self.from..]).for_each(|(db, d)| *db += d);
        }
    }
}

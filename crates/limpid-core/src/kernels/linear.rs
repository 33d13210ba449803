//! The matrix product, which takes most of the time: y = x w' + b, with w stored (out, in) as in PyTorch and llm.c.
//!
//!   dx = dy w,   dw += dy' x,   db += column sums of dy
//!
//! The products themselves are `matrix::gemm`; here are the reference and the gradient of the bias.

use crate::numeric::simd::{Kernel, MulAdd};

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
    #[inline(always)]
    fn run<M: MulAdd>(self) {
        for dy in self.dy.chunks_exact(self.cols) {
            self.db.iter_mut().zip(&dy[self.from..]).for_each(|(db, d)| *db += d);
        }
    }
}

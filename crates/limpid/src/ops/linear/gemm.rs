//! c (+)= a b for any strides, on one thread.
//!
//! Blocking: b is cut into panels of [`width`] columns and blocks of [`K_BLOCK`] rows; each block is packed
//! once, so that the inner loop reads it in one stream from the L2 cache, and serves all rows of a. The
//! accumulators of a tile start from c (or zero) and go back there, so cutting k changes no bit: an element
//! is always one chain c + a0 b0 + a1 b1 + ... in ascending k. a is read in place, a few broadcasts a step.
//!
//! Weights that are used again and again for few rows (decoding) are packed whole, once: [`Packed`].

use super::super::simd::Level;
use super::super::view::{Mat, MatMut};
use super::tile;

/// Rows of b packed at once: a block of 256 x 64 floats is 64 KiB.
pub const K_BLOCK: usize = 256;

/// Columns of a panel at this level.
pub fn width(level: Level) -> usize {
    tile::shape(level).1
}

/// Floats of scratch that [`gemm`] needs.
pub const SCRATCH: usize = K_BLOCK * 64;

/// A right-hand side packed whole: panel after panel, each k x width, the last padded with zeros.
#[derive(Debug, Clone, Default)]
pub struct Packed {
    data: Vec<f32>,
    rows: usize,
    cols: usize,
    width: usize,
}

impl Packed {
    /// Packs b.
    pub fn new(level: Level, b: Mat) -> Packed {
        let width = width(level);
        let mut data = vec![0.0; b.cols.div_ceil(width) * width * b.rows];
        for (panel, to) in data.chunks_exact_mut(width * b.rows.max(1)).enumerate() {
            pack(to, b.cols(panel * width..((panel + 1) * width).min(b.cols)), width);
        }
        Packed { data, rows: b.rows, cols: b.cols, width }
    }
    /// Rows: k.
    pub fn rows(&self) -> usize {
        self.rows
    }
    /// Columns of the product.
    pub fn cols(&self) -> usize {
        self.cols
    }
}

/// Lays b's columns out as rows of `width`, short ones padded with zeros.
fn pack(to: &mut [f32], b: Mat, width: usize) {
    let rows = to.chunks_exact_mut(width).enumerate();
    if b.col_stride == 1 {
        for (p, row) in rows.take(b.rows) {
            row[..b.cols].copy_from_slice(b.row(p));
            row[b.cols..].fill(0.0);
        }
    } else if b.row_stride == 1 && b.cols == width {
        // b's columns lie side by side in memory: sixteen are read at once
        for j in (0..width).step_by(16) {
            let columns: [&[f32]; 16] = std::array::from_fn(|i| &b.data[(j + i) * b.col_stride..][..b.rows]);
            for (p, row) in to.chunks_exact_mut(width).enumerate().take(b.rows) {
                for (i, to) in row[j..j + 16].iter_mut().enumerate() {
                    *to = columns[i][p];
                }
            }
        }
    } else {
        for j in 0..width {
            if j >= b.cols {
                to.iter_mut().skip(j).step_by(width).take(b.rows).for_each(|t| *t = 0.0);
            } else if b.row_stride == 1 {
                let column = &b.data[j * b.col_stride..][..b.rows];
                to[j..].iter_mut().step_by(width).zip(column).for_each(|(t, v)| *t = *v);
            } else {
                (0..b.rows).for_each(|p| to[p * width + j] = b.at(p, j));
            }
        }
    }
}

/// c = a b, or c += a b. `scratch` holds [`SCRATCH`] floats.
#[track_caller]
pub fn gemm(level: Level, mut c: MatMut, a: Mat, b: Mat, add: bool, scratch: &mut [f32]) {
    assert_eq!((c.rows(), c.cols(), a.cols), (a.rows, b.cols, b.rows), "shapes of a product");
    let width = width(level);
    if a.cols == 0 && !add {
        c.fill(0.0);
    }
    for from in (0..b.cols).step_by(width) {
        let cols = from..(from + width).min(b.cols);
        for k in (0..a.cols).step_by(K_BLOCK) {
            let ks = k..(k + K_BLOCK).min(a.cols);
            let panel = &mut scratch[..ks.len() * width];
            pack(panel, b.rows(ks.clone()).cols(cols.clone()), width);
            let (rows, add) = (0..c.rows(), add || k > 0);
            tile::panel(level, c.part(rows, cols.clone()), a.cols(ks), panel, add);
        }
    }
}

/// c = a b for columns `from..` of a packed b, as many as c has; `from` is a multiple of [`width`].
#[track_caller]
pub fn gemm_packed(level: Level, mut c: MatMut, a: Mat, b: &Packed, from: usize, add: bool) {
    assert_eq!((a.cols, b.width), (b.rows, width(level)), "shapes of a packed product");
    assert!(from.is_multiple_of(b.width) && from + c.cols() <= b.cols);
    for (i, panel) in b.data.chunks_exact(b.rows * b.width).skip(from / b.width).enumerate() {
        let cols = i * b.width..((i + 1) * b.width).min(c.cols());
        if cols.is_empty() || cols.start > cols.end {
            break;
        }
        let rows = 0..c.rows();
        tile::panel(level, c.part(rows, cols), a, panel, add);
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::simd::fma;
    use super::*;

    fn values(n: usize, seed: u64) -> Vec<f32> {
        (0..n as u64).map(|i| crate::ops::random::uniform(seed, 0, i) as f32 - 0.5).collect()
    }

    /// Every shape, orientation and level: not only close, but the very chain that is promised.
    #[test]
    fn an_element_is_one_chain_over_k() {
        let sizes = [1, 2, 5, 6, 7, 13, 16, 17, 33, 64, 65, 130];
        let mut scratch = vec![0.0; SCRATCH];
        for level in Level::available() {
            for (i, &m) in sizes.iter().enumerate() {
                for &n in &sizes {
                    let k = [1, 3, 16, 40, 257, 600][(i + n) % 6];
                    let (a, b, start) = (values(m * k, 1), values(k * n, 2), values(m * n, 3));
                    let (at, bt) = (transposed(&a, k), transposed(&b, n));
                    for (a, b) in [(Mat::new(&a, k), Mat::new(&b, n)), (Mat::new(&at, m).t(), Mat::new(&bt, k).t())] {
                        for add in [false, true] {
                            let mut c = start.clone();
                            gemm(level, MatMut::new(&mut c, n), a, b, add, &mut scratch);
                            for (at, c) in c.iter().enumerate() {
                                let (i, j) = (at / n, at % n);
                                let chain = |acc, p| match level {
                                    Level::PORTABLE => fma::<false>(a.at(i, p), b.at(p, j), acc),
                                    _ => fma::<true>(a.at(i, p), b.at(p, j), acc),
                                };
                                let want = (0..k).fold(if add { start[at] } else { 0.0 }, chain);
                                assert_eq!(want.to_bits(), c.to_bits(), "{level} {m}x{n}x{k} ({i},{j})");
                            }
                            if !add {
                                let (packed, mut d) = (Packed::new(level, b), vec![0.0; m * n]);
                                gemm_packed(level, MatMut::new(&mut d, n), a, &packed, 0, false);
                                assert!(c == d, "packed: {level} {m}x{n}x{k}");
                            }
                        }
                    }
                }
            }
        }
    }

    fn transposed(x: &[f32], cols: usize) -> Vec<f32> {
        (0..x.len()).map(|i| x[i % (x.len() / cols) * cols + i / (x.len() / cols)]).collect()
    }

    #[test]
    fn it_is_right_in_f64_too() {
        let (m, n, k) = (9, 70, 300);
        let (a, b) = (values(m * k, 4), values(n * k, 5));
        let (wa, wb): (Vec<f64>, Vec<f64>) =
            (a.iter().map(|v| f64::from(*v)).collect(), b.iter().map(|v| f64::from(*v)).collect());
        let mut want = vec![0.0; m * n];
        super::super::reference::forward(&mut want, &wa, &wb, None, k);
        for level in Level::available() {
            let mut c = vec![0.0; m * n];
            gemm(level, MatMut::new(&mut c, n), Mat::new(&a, k), Mat::new(&b, k).t(), false, &mut vec![0.0; SCRATCH]);
            let far = c.iter().zip(&want).map(|(c, w)| (f64::from(*c) - w).abs()).fold(0.0, f64::max);
            assert!(far < 8.0 * f64::from(f32::EPSILON) * (k as f64).sqrt() * 0.25, "{level}: {far:e}");
        }
    }
}

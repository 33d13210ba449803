//! The inner loop: a few rows of a against one packed panel of b, the tile of c in registers.
//!
//! AVX-512 keeps 6 x 64 floats (24 of 32 registers), AVX2 6 x 16 (12 of 16), plain Rust 4 x 16. Each step
//! of k loads the panel's row once and multiplies it by one broadcast per row of a.
#![allow(unsafe_code)] // unchecked loads and stores, inside bounds asserted by `panel`

use super::super::simd::Level;
use super::super::view::{Mat, MatMut};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// Rows and columns of a tile.
pub fn shape(level: Level) -> (usize, usize) {
    if level.is_avx512() {
        (6, 64)
    } else if level.is_avx2() {
        (6, 16)
    } else {
        (4, 16)
    }
}

/// c (+)= a panel, for as many columns as c has; `panel` is a.cols x width.
#[track_caller]
pub fn panel(level: Level, mut c: MatMut, a: Mat, panel: &[f32], add: bool) {
    let (height, width) = shape(level);
    let cols = c.cols();
    a.check();
    assert!(a.rows == c.rows() && cols <= width && panel.len() >= a.cols * width);
    let vectors = if level.is_avx512() { cols.div_ceil(16) } else { cols.div_ceil(8) };
    let whole = cols == vectors * if level.is_avx512() { 16 } else { 8 };
    for i in (0..a.rows).step_by(height) {
        let rows = i..(i + height).min(a.rows);
        let (n, a) = (rows.len(), a.rows(rows.clone()));
        let mut to = c.part(rows, 0..cols);
        if whole {
            let stride = to.stride();
            // SAFETY: `a` and the panel hold what the tile reads (asserted above), `to` has n rows and
            // whole vectors of columns, and the level's instructions are there.
            unsafe { tile(level, n, vectors, a, panel, to.as_mut_ptr(), stride, add) };
        } else {
            let mut edge = [0f32; 6 * 64];
            if add {
                (0..n).for_each(|i| edge[i * width..][..cols].copy_from_slice(to.row(i)));
            }
            // SAFETY: as above, with `edge` (6 rows of 64 at most) in c's place.
            unsafe { tile(level, n, vectors, a, panel, edge.as_mut_ptr(), width, add) };
            (0..n).for_each(|i| to.row(i).copy_from_slice(&edge[i * width..][..cols]));
        }
    }
}

/// # Safety
/// c has n rows of `vectors` whole vectors; a is inside its data; panel has a.cols rows of the level's width.
#[allow(clippy::too_many_arguments)]
unsafe fn tile(level: Level, n: usize, vectors: usize, a: Mat, panel: &[f32], c: *mut f32, stride: usize, add: bool) {
    // SAFETY: passed on from the caller; `level` proves its instructions.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if level.is_avx512() {
            macro_rules! rows {
                ($v:literal) => {
                    match n {
                        1 => avx512::<1, $v>(a, panel, c, stride, add),
                        2 => avx512::<2, $v>(a, panel, c, stride, add),
                        3 => avx512::<3, $v>(a, panel, c, stride, add),
                        4 => avx512::<4, $v>(a, panel, c, stride, add),
                        5 => avx512::<5, $v>(a, panel, c, stride, add),
                        _ => avx512::<6, $v>(a, panel, c, stride, add),
                    }
                };
            }
            return match vectors {
                1 => rows!(1),
                2 => rows!(2),
                3 => rows!(3),
                _ => rows!(4),
            };
        }
        #[cfg(target_arch = "x86_64")]
        if level.is_avx2() {
            macro_rules! rows {
                ($v:literal) => {
                    match n {
                        1 => avx2::<1, $v>(a, panel, c, stride, add),
                        2 => avx2::<2, $v>(a, panel, c, stride, add),
                        3 => avx2::<3, $v>(a, panel, c, stride, add),
                        4 => avx2::<4, $v>(a, panel, c, stride, add),
                        5 => avx2::<5, $v>(a, panel, c, stride, add),
                        _ => avx2::<6, $v>(a, panel, c, stride, add),
                    }
                };
            }
            return if vectors == 1 { rows!(1) } else { rows!(2) };
        }
        let _ = level;
        match n {
            1 => portable::<1>(vectors, a, panel, c, stride, add),
            2 => portable::<2>(vectors, a, panel, c, stride, add),
            3 => portable::<3>(vectors, a, panel, c, stride, add),
            _ => portable::<4>(vectors, a, panel, c, stride, add),
        }
    }
}

/// # Safety
/// As [`tile`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn avx512<const N: usize, const V: usize>(a: Mat, panel: &[f32], c: *mut f32, stride: usize, add: bool) {
    // SAFETY: every address is inside a, panel or c by the caller's promise.
    unsafe {
        let mut acc = [[_mm512_setzero_ps(); V]; N];
        if add {
            for i in 0..N {
                for v in 0..V {
                    acc[i][v] = _mm512_loadu_ps(c.add(i * stride + 16 * v));
                }
            }
        }
        let (mut at, mut b) = (a.data.as_ptr(), panel.as_ptr());
        for _ in 0..a.cols {
            let mut row = [_mm512_setzero_ps(); V];
            for v in 0..V {
                row[v] = _mm512_loadu_ps(b.add(16 * v));
            }
            for i in 0..N {
                let x = _mm512_set1_ps(*at.add(i * a.row_stride));
                for v in 0..V {
                    acc[i][v] = _mm512_fmadd_ps(x, row[v], acc[i][v]);
                }
            }
            at = at.wrapping_add(a.col_stride);
            b = b.add(64);
        }
        for i in 0..N {
            for v in 0..V {
                _mm512_storeu_ps(c.add(i * stride + 16 * v), acc[i][v]);
            }
        }
    }
}

/// # Safety
/// As [`tile`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn avx2<const N: usize, const V: usize>(a: Mat, panel: &[f32], c: *mut f32, stride: usize, add: bool) {
    // SAFETY: every address is inside a, panel or c by the caller's promise.
    unsafe {
        let mut acc = [[_mm256_setzero_ps(); V]; N];
        if add {
            for i in 0..N {
                for v in 0..V {
                    acc[i][v] = _mm256_loadu_ps(c.add(i * stride + 8 * v));
                }
            }
        }
        let (mut at, mut b) = (a.data.as_ptr(), panel.as_ptr());
        for _ in 0..a.cols {
            let mut row = [_mm256_setzero_ps(); V];
            for v in 0..V {
                row[v] = _mm256_loadu_ps(b.add(8 * v));
            }
            for i in 0..N {
                let x = _mm256_set1_ps(*at.add(i * a.row_stride));
                for v in 0..V {
                    acc[i][v] = _mm256_fmadd_ps(x, row[v], acc[i][v]);
                }
            }
            at = at.wrapping_add(a.col_stride);
            b = b.add(16);
        }
        for i in 0..N {
            for v in 0..V {
                _mm256_storeu_ps(c.add(i * stride + 8 * v), acc[i][v]);
            }
        }
    }
}

/// # Safety
/// As [`tile`].
unsafe fn portable<const N: usize>(vectors: usize, a: Mat, panel: &[f32], c: *mut f32, stride: usize, add: bool) {
    let cols = 8 * vectors;
    let mut acc = [[0f32; 16]; N];
    for (i, acc) in acc.iter_mut().enumerate() {
        if add {
            // SAFETY: row i of c, whole vectors of it.
            acc[..cols].copy_from_slice(unsafe { std::slice::from_raw_parts(c.add(i * stride), cols) });
        }
    }
    for (p, row) in panel.as_chunks::<16>().0.iter().enumerate().take(a.cols) {
        for (i, acc) in acc.iter_mut().enumerate() {
            let x = a.data[i * a.row_stride + p * a.col_stride];
            for v in 0..16 {
                acc[v] += x * row[v];
            }
        }
    }
    for (i, acc) in acc.iter().enumerate() {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(c.add(i * stride), cols) }.copy_from_slice(&acc[..cols]);
    }
}

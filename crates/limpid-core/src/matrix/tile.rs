//! The inner loop: a few rows of a by one packed panel of b, with the tile of c in registers; then the next rows.
//!
//! A tile is 6 x 64 floats with AVX-512 (24 of 32 registers), 6 x 16 with AVX2 (12 of 16), 6 x 16 with NEON (24 of 32),
//! 4 x 16 in plain Rust. Each step of k loads the panel's row once and multiplies it by one broadcast per row of
//! a. Where an element is a pair of bf16 (`pairs`), the broadcast is a pair too and VDPBF16PS does two steps of k.
//! It adds the high halves first, so the even k is in the high half and the sum is the same chain over ascending k
//! as in f32. Measured on one AVX-512 core by Intel: 171 GFLOP/s with all operands in the caches, of 175 for
//! multiply-adds on registers alone.
#![allow(unsafe_code)] // unchecked loads and stores, inside bounds asserted by `panel`

use super::sums::Start;
use super::vector::{Body, Vector, avx2, avx512, avx512_bf16, neon, plain};
use super::view::{Mat, MatMut};
use crate::numeric::simd::{Level, Vectors};
#[cfg(target_arch = "aarch64")]
use std::arch::aarch64::*;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;
use std::ops::Range;

/// Rows of a tile on vectors.
pub const TALL: usize = 6;

/// Rows and columns of a tile.
pub fn shape(level: Level) -> (usize, usize) {
    match level.vectors() {
        Vectors::Plain => (4, 16),
        // engines have as few registers as the processor: sixteen, often
        Vectors::Neon if cfg!(target_arch = "wasm32") => (2, 16),
        Vectors::Avx2 | Vectors::Neon => (TALL, 16),
        Vectors::Avx512 => (TALL, 64),
    }
}

/// Up to this many rows, the panel comes from memory slower than it is used.
pub const FEW_ROWS: usize = 24;

/// The most rows of a tile that prefetches: higher ones are for panels in the caches, and have no time for it.
pub const AHEAD_ROWS: usize = 4;

/// How many rows the tiles of a product of so many rows have. Few rows take tiles that prefetch, and of equal heights:
/// 6 are 3 and 3 rather than 4 and 2.
pub fn height(level: Level, rows: usize) -> usize {
    let most = if rows <= FEW_ROWS { shape(level).0.min(AHEAD_ROWS) } else { shape(level).0 };
    equal_heights(rows, most)
}

/// How many rows each of the fewest tiles has that have at most so many: 7 rows are 4 and 3.
pub fn equal_heights(rows: usize, most: usize) -> usize {
    rows.div_ceil(rows.div_ceil(most).max(1)).max(1)
}

/// The left operand of a product: a matrix, or one that is packed tile by tile.
#[derive(Clone, Copy)]
pub struct Tiles<'a> {
    /// All of it; the strides hold inside a tile.
    mat: Mat<'a>,
    /// The tile that begins at row i begins at element `i * down`.
    down: usize,
    /// Rows of a tile, where it is packed.
    height: Option<usize>,
}

impl<'a> From<Mat<'a>> for Tiles<'a> {
    fn from(mat: Mat<'a>) -> Self {
        Tiles { mat, down: mat.row_stride, height: None }
    }
}

impl<'a> Tiles<'a> {
    /// Tiles of `height` rows, one after the other; in each, the rows of a step of k are neighbours.
    pub fn packed(data: &'a [f32], rows: usize, cols: usize, height: usize) -> Self {
        Tiles { mat: Mat { data, rows, cols, row_stride: 1, col_stride: height }, down: cols, height: Some(height) }
    }
    /// Some steps of k.
    pub fn steps(self, range: Range<usize>) -> Self {
        Tiles { mat: self.mat.cols(range), ..self }
    }
    /// The first `n` rows.
    pub fn top(self, n: usize) -> Self {
        assert!(n <= self.mat.rows);
        Tiles { mat: Mat { rows: n, ..self.mat }, ..self }
    }
    /// Its rows, whose elements are neighbours.
    pub fn rows(self) -> impl Iterator<Item = &'a [f32]> {
        (0..self.mat.rows).map(move |i| self.mat.row(i))
    }
    /// The first of the tiles of these rows, which have `n` rows each.
    fn first(self, rows: Range<usize>, n: usize) -> Mat<'a> {
        let from = |row: usize| &self.mat.data[(row * self.down).min(self.mat.data.len())..];
        Mat { data: from(rows.end - n), rows: n, ..self.mat }.check(); // no tile ends after the last
        Mat { data: from(rows.start), rows: n, ..self.mat }
    }
}

/// c = start + a panel, for as many columns as c has; `panel` is a.cols x width. `pairs`: elements of both are pairs
/// of bf16, for a level that has their dot product. `block`: after how many rows of the panel a chain ends, is added to
/// what there is, and the next one begins at zero; `usize::MAX`: one chain, which begins at `start`.
#[track_caller]
pub fn panel(level: Level, pairs: bool, mut c: MatMut, a: Tiles, panel: &[f32], (start, block): (Start, usize)) {
    let width = shape(level).1;
    let cols = c.cols();
    assert!(
        a.mat.rows == c.rows() && cols <= width && panel.len() / width >= a.mat.cols && (!pairs || level.has_dot())
    );
    assert!(!matches!(start, Start::Row(row) if row.len() != cols));
    let lanes = match level.vectors() {
        Vectors::Avx2 => 8,
        Vectors::Plain | Vectors::Neon | Vectors::Avx512 => 16,
    };
    let (vectors, whole) = (cols.div_ceil(lanes), cols.is_multiple_of(lanes));
    let past =
        start == Start::Past && whole && c.as_mut_ptr().addr().is_multiple_of(64) && c.stride().is_multiple_of(16);
    let rows = c.rows();
    let height = a.height.unwrap_or_else(|| height(level, rows));
    let whole_tiles = rows - rows % height;
    for tiles in [0..whole_tiles, whole_tiles..rows] {
        // those whose columns are not whole vectors are computed elsewhere, one by one
        let n = tiles.len().min(height);
        let each = if whole { tiles.len() } else { n };
        for i in tiles.step_by(each.max(1)) {
            let rows = i..i + each;
            let (count, down, a) = (each / n, n * a.down, a.first(rows.clone(), n));
            let mut to = c.part(rows, 0..cols);
            if whole {
                let (c, stride) = (to.as_mut_ptr(), to.stride());
                let from = match start {
                    Start::Zero | Start::Past => None,
                    Start::Own => Some((c.cast_const(), stride)),
                    Start::Row(row) => Some((row.as_ptr(), 0)),
                };
                // SAFETY: `a`, the panel and a row to start from hold what the tiles read (asserted above), `to` has
                // their rows and whole vectors of columns, and the level's instructions are there.
                unsafe { tile(level, pairs, n, vectors, a, panel, To { c, stride, from, past, block, count, down }) };
            } else {
                let mut edge = [0f32; 6 * 64];
                for (i, edge) in edge.chunks_exact_mut(width).enumerate().take(n) {
                    match start {
                        Start::Zero | Start::Past => {}
                        Start::Own => edge[..cols].copy_from_slice(to.row(i)),
                        Start::Row(row) => edge[..cols].copy_from_slice(row),
                    }
                }
                let c = edge.as_mut_ptr();
                let edges = To { c, stride: width, from: Some((c, width)), past, block, count, down };
                // SAFETY: as above, with `edge` (6 rows of 64 at most) in c's place.
                unsafe { tile(level, pairs, n, vectors, a, panel, edges) };
                (0..n).for_each(|i| to.row(i).copy_from_slice(&edge[i * width..][..cols]));
            }
        }
    }
    #[cfg(target_arch = "x86_64")]
    if past {
        // SAFETY: every x86-64 has it. Stores past the caches are in order with all others again.
        unsafe { _mm_sfence() };
    }
}

/// Where tiles are stored.
#[derive(Clone, Copy)]
struct To {
    /// The first element of the first; `stride` is the distance between rows.
    c: *mut f32,
    stride: usize,
    /// What its sums start from, as pointer and distance between rows; zero if `None`.
    from: Option<(*const f32, usize)>,
    /// Whether stores bypass the caches, where the level can: c and its rows are then aligned to 64 bytes.
    past: bool,
    /// How many steps of the panel a chain has.
    block: usize,
    /// How many tiles there are, one below the other, and elements of a from one to the next.
    count: usize,
    down: usize,
}

impl To {
    /// Whether all is one chain.
    fn is_chain(&self) -> bool {
        self.block == usize::MAX
    }
}

/// # Safety
/// `to` has n rows of `vectors` whole vectors; a is inside its data; panel has a.cols rows of the level's width.
unsafe fn tile(level: Level, pairs: bool, n: usize, vectors: usize, a: Mat, panel: &[f32], to: To) {
    macro_rules! rows {
        ($compiled:ident, $vectors:literal, $pairs:literal) => {
            match n {
                1 => $compiled(level, Tile::<1, $vectors, $pairs> { a, panel, to }),
                2 => $compiled(level, Tile::<2, $vectors, $pairs> { a, panel, to }),
                3 => $compiled(level, Tile::<3, $vectors, $pairs> { a, panel, to }),
                4 => $compiled(level, Tile::<4, $vectors, $pairs> { a, panel, to }),
                5 => $compiled(level, Tile::<5, $vectors, $pairs> { a, panel, to }),
                _ => $compiled(level, Tile::<6, $vectors, $pairs> { a, panel, to }),
            }
        };
    }
    // SAFETY: passed on from the caller; `level` proves its instructions.
    unsafe {
        match (level.vectors(), vectors, pairs) {
            (Vectors::Avx512, 1, false) => rows!(avx512, 1, false),
            (Vectors::Avx512, 2, false) => rows!(avx512, 2, false),
            (Vectors::Avx512, 3, false) => rows!(avx512, 3, false),
            (Vectors::Avx512, _, false) => rows!(avx512, 4, false),
            // pairs are for levels with their dot product alone (asserted by `panel`)
            (Vectors::Avx512, 1, true) => rows!(avx512_bf16, 1, true),
            (Vectors::Avx512, 2, true) => rows!(avx512_bf16, 2, true),
            (Vectors::Avx512, 3, true) => rows!(avx512_bf16, 3, true),
            (Vectors::Avx512, _, true) => rows!(avx512_bf16, 4, true),
            (Vectors::Avx2, 1, _) => rows!(avx2, 1, false),
            (Vectors::Avx2, _, _) => rows!(avx2, 2, false),
            (Vectors::Neon, _, _) => rows!(neon, 4, false),
            (Vectors::Plain, _, _) => rows!(plain, 1, false),
        }
    }
}

/// Tiles of N rows of C vectors, under the conditions of [`tile`]; their elements are `PAIRS` of bf16, or f32s.
struct Tile<'a, const N: usize, const C: usize, const PAIRS: bool> {
    a: Mat<'a>,
    panel: &'a [f32],
    to: To,
}

impl<const N: usize, const C: usize, const PAIRS: bool> Body for Tile<'_, N, C, PAIRS> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let Tile { a, panel, mut to } = self;
        // one or two rows by vectors of 256 bits take panels in as fast as the CPU's own prefetch brings them
        let ahead = N <= AHEAD_ROWS && (V::LANES == 16 || N > 2);
        // if the compiler saw that the rows are equally far apart, it would add to one address row after row, and each
        // sum waits for the one before; between multiply-adds of 512 bits there is time for that
        let mut rows = [0; N];
        for i in 0..N {
            rows[i] = if V::LANES == 16 { i * a.row_stride } else { std::hint::black_box(i * a.row_stride) };
        }
        for t in 0..to.count {
            // SAFETY: every address is inside a, panel or `to` by the caller's promise.
            unsafe {
                let mut acc = [[V::all(0.0); C]; N];
                let mut total = acc;
                if let Some((from, stride)) = to.from {
                    for i in 0..N {
                        for v in 0..C {
                            total[i][v] = V::load(from.add(i * stride + V::LANES * v));
                        }
                    }
                    to.from = Some((from.wrapping_add(N * stride), stride));
                }
                if to.is_chain() {
                    acc = total;
                }
                let (mut at, mut b) = (a.data.as_ptr().wrapping_add(t * to.down), panel.as_ptr());
                let mut left = a.cols;
                loop {
                    let steps = left.min(to.block);
                    for _ in 0..steps {
                        let mut row = [V::all(0.0); C];
                        for v in 0..C {
                            if ahead && (V::LANES * v).is_multiple_of(16) {
                                V::prefetch(b.wrapping_add(V::LANES * v + AHEAD).cast());
                            }
                            row[v] = V::load(b.add(V::LANES * v));
                        }
                        for i in 0..N {
                            let x = V::load_all(at.add(rows[i]));
                            for v in 0..C {
                                acc[i][v] = if PAIRS {
                                    V::fmadd_pairs(x, row[v], acc[i][v])
                                } else {
                                    V::fmadd(x, row[v], acc[i][v])
                                };
                            }
                        }
                        at = at.wrapping_add(a.col_stride);
                        b = b.add(V::PANEL * V::LANES);
                    }
                    if to.is_chain() {
                        total = acc;
                        break;
                    }
                    if V::LANES == 4 {
                        // with so many vectors the compiler would keep these in registers and `acc` in memory, where
                        // each step waits for it
                        std::hint::black_box(&mut total);
                    }
                    for i in 0..N {
                        for v in 0..C {
                            total[i][v] = V::add(total[i][v], acc[i][v]);
                            acc[i][v] = V::all(0.0);
                        }
                    }
                    left -= steps;
                    if left == 0 {
                        break;
                    }
                }
                for i in 0..N {
                    for v in 0..C {
                        let c = to.c.add(i * to.stride + V::LANES * v);
                        if to.past { V::stream(c, total[i][v]) } else { V::store(c, total[i][v]) }
                    }
                }
                to.c = to.c.wrapping_add(N * to.stride);
            }
        }
    }
}

/// c = start + a times panels of bf16 pairs, `apart` elements from one to the next, for one row of c, at most 64 long,
/// and a, at a level without their dot product: pairs are widened to two f32 while they are loaded. `block`: as for
/// [`panel`], in steps of k, an even number.
pub fn widen(level: Level, c: &mut [f32], a: &[f32], (pairs, apart): (&[f32], usize), (start, block): (Start, usize)) {
    let width = shape(level).1;
    let panels = c.len().div_ceil(width);
    assert!(c.len() <= 64 && panels > 0 && pairs.len() >= (panels - 1) * apart + a.len().div_ceil(2) * width);
    let mut sums = [0f32; 64];
    match start {
        Start::Zero | Start::Past => {}
        Start::Own => sums[..c.len()].copy_from_slice(c),
        Start::Row(row) => sums[..c.len()].copy_from_slice(row),
    }
    for (i, a) in a.chunks(block).enumerate() {
        let mut sums_of_block = [0f32; 64];
        let body = (&mut sums_of_block, a, (&pairs[i * (block / 2) * width..], apart));
        // SAFETY: the level has the instructions, and every panel has a row for each two elements of a (asserted
        // above).
        unsafe {
            match (level.vectors(), panels) {
                (Vectors::Avx512, _) => avx512(level, WidenPairs::<4>(body)),
                (Vectors::Avx2, 1) => avx2(level, WidenPairs::<2>(body)),
                (Vectors::Avx2, 2) => avx2(level, WidenPairs::<4>(body)),
                (Vectors::Avx2, 3) => avx2(level, WidenPairs::<6>(body)),
                (Vectors::Avx2, _) => avx2(level, WidenPairs::<8>(body)),
                (Vectors::Neon, 1) => neon(level, WidenPairs::<4>(body)),
                (Vectors::Neon, 2) => neon(level, WidenPairs::<8>(body)),
                (Vectors::Neon, 3) => neon(level, WidenPairs::<12>(body)),
                (Vectors::Neon, _) => neon(level, WidenPairs::<16>(body)),
                (Vectors::Plain, 1) => plain(level, WidenPairs::<1>(body)),
                (Vectors::Plain, 2) => plain(level, WidenPairs::<2>(body)),
                (Vectors::Plain, 3) => plain(level, WidenPairs::<3>(body)),
                (Vectors::Plain, _) => plain(level, WidenPairs::<4>(body)),
            }
        }
        sums.iter_mut().zip(sums_of_block).for_each(|(sum, chain)| *sum += chain);
    }
    c.copy_from_slice(&sums[..c.len()]);
}

/// The sums of a row of c, the row of a, and panels of pairs with their distance.
type Widened<'a> = (&'a mut [f32; 64], &'a [f32], (&'a [f32], usize));

/// How many elements ahead to prefetch: a product of few rows waits for memory, and the CPU's own prefetch stops at the
/// end of a page.
const AHEAD: usize = 4096;

/// [`widen`] on C vectors: with panels of few, on several panels at once, because a chain of multiply-adds waits for
/// itself.
struct WidenPairs<'a, const C: usize>(Widened<'a>);

impl<const C: usize> Body for WidenPairs<'_, C> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let WidenPairs((sums, a, (pairs, apart))) = self;
        // SAFETY: there are as many sums as C vectors have lanes, and as many panels, with a row for each two elements
        // of a.
        unsafe {
            let mut acc = [V::all(0.0); C];
            let high = V::all_ints(0xffff_0000_u32 as i32);
            for (p, a) in a.chunks(2).enumerate() {
                let (even, odd) = (V::all(a[0]), V::all(if a.len() > 1 { a[1] } else { 0.0 }));
                let row = pairs.as_ptr().add(p * V::PANEL * V::LANES);
                for v in 0..C {
                    let at = row.add(v / V::PANEL * apart + v % V::PANEL * V::LANES);
                    if (V::LANES * v).is_multiple_of(16) {
                        V::prefetch(at.wrapping_add(AHEAD).cast());
                    }
                    let pair = V::load_ints(at.cast());
                    acc[v] = V::fmadd(even, V::from_bits(V::and(pair, high)), acc[v]);
                    acc[v] = V::fmadd(odd, V::from_bits(V::up(pair, 16)), acc[v]);
                }
            }
            for v in 0..C {
                V::store(sums.as_mut_ptr().add(V::LANES * v), acc[v]);
            }
        }
    }
}

/// `to[p * stride + i] = from[i * from_stride + p]` for p and i below sixteen: columns of b become columns of a panel.
#[inline(always)]
pub fn transpose(level: Level, from: &[f32], from_stride: usize, to: &mut [f32], stride: usize) {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    if level.vectors() != Vectors::Plain {
        // the strides are the caller's, so the place of the last element may overflow a usize
        let fits = |n: usize, stride: usize| {
            stride.checked_mul(15).and_then(|last| last.checked_add(16)).is_some_and(|end| end <= n)
        };
        assert!(
            fits(from.len(), from_stride) && fits(to.len(), stride),
            "16 rows, {from_stride} and {stride} apart, in {} and {} elements",
            from.len(),
            to.len()
        );
        for i in (0..16).step_by(SIDE) {
            for p in (0..16).step_by(SIDE) {
                // SAFETY: the level has the instructions; a square of rows, the last within `from` and `to` by the
                // assert.
                unsafe {
                    let (from, to) = (from.as_ptr().add(i * from_stride + p), to.as_mut_ptr().add(p * stride + i));
                    transpose_square(from, from_stride, to, stride);
                }
            }
        }
        return;
    }
    let _ = level;
    for (p, to) in to.chunks_mut(stride).enumerate().take(16) {
        for (i, to) in to.iter_mut().enumerate().take(16) {
            *to = from[i * from_stride + p];
        }
    }
}

/// Rows and columns that are transposed in registers.
#[cfg(target_arch = "x86_64")]
const SIDE: usize = 8;
#[cfg(target_arch = "aarch64")]
const SIDE: usize = 4;

/// Four rows of four: neighbours are exchanged, then pairs.
///
/// # Safety
/// `from` and `to` have four rows of four elements, so far apart.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
unsafe fn transpose_square(from: *const f32, from_stride: usize, to: *mut f32, stride: usize) {
    // SAFETY: as the caller says; every aarch64 has the instructions.
    unsafe {
        let row = |i: usize| vld1q_f32(from.add(i * from_stride));
        let pairs = |a, b| [vtrn1q_f32(a, b), vtrn2q_f32(a, b)].map(|v| vreinterpretq_f64_f32(v));
        let (top, bottom) = (pairs(row(0), row(1)), pairs(row(2), row(3)));
        for j in 0..2 {
            let at = to.add(j * stride);
            vst1q_f32(at, vreinterpretq_f32_f64(vtrn1q_f64(top[j], bottom[j])));
            vst1q_f32(at.add(2 * stride), vreinterpretq_f32_f64(vtrn2q_f64(top[j], bottom[j])));
        }
    }
}

/// Eight rows of eight: halves are exchanged as they are loaded, then neighbours, then pairs.
///
/// # Safety
/// `from` and `to` have eight rows of eight elements, so far apart.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
#[inline]
unsafe fn transpose_square(from: *const f32, from_stride: usize, to: *mut f32, stride: usize) {
    // SAFETY: as the caller says.
    unsafe {
        for half in 0..2 {
            let mut r = [_mm256_setzero_ps(); 4];
            for i in 0..4 {
                let at = from.add(i * from_stride + 4 * half);
                let low = _mm256_castps128_ps256(_mm_loadu_ps(at));
                r[i] = _mm256_insertf128_ps::<1>(low, _mm_loadu_ps(at.add(4 * from_stride)));
            }
            let low = [_mm256_unpacklo_ps(r[0], r[1]), _mm256_unpackhi_ps(r[0], r[1])];
            let high = [_mm256_unpacklo_ps(r[2], r[3]), _mm256_unpackhi_ps(r[2], r[3])];
            for j in 0..2 {
                let at = to.add((4 * half + 2 * j) * stride);
                _mm256_storeu_ps(at, _mm256_shuffle_ps::<0x44>(low[j], high[j]));
                _mm256_storeu_ps(at.add(stride), _mm256_shuffle_ps::<0xee>(low[j], high[j]));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As many columns as a view without a stride may have, times the width, wrap to nothing: no panel is that long.
    #[test]
    #[should_panic(expected = "assertion failed")]
    fn a_panel_that_is_too_short_is_refused() {
        let (level, mut c) = (Level::best(), [0.0; 64]);
        let width = shape(level).1;
        let a = Mat::strided(&[1.0], usize::MAX / width + 1, 1, 0).t();
        panel(level, false, MatMut::new(&mut c[..width], width), a.into(), &[], (Start::Zero, usize::MAX));
    }

    /// The place of the last of sixteen rows, as a usize wraps: 1, 16, 31 and beyond the end. At no level is anything
    /// written outside.
    #[test]
    fn rows_that_are_far_apart_are_not_written_elsewhere() {
        let block = [[1.0; 16]; 16];
        for level in Level::available() {
            for stride in [usize::MAX / 15, usize::MAX / 15 + 1, 0xEEEE_EEEE_EEEE_EEEF, usize::MAX, 1 << 60, 64] {
                let mut all = [0.0; 4096];
                let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    transpose(level, block.as_flattened(), 16, &mut all[2000..2017], stride);
                }));
                assert!(refused.is_err() || level.vectors() != Vectors::Avx512, "{level} {stride}",);
                assert!([&all[..2000], &all[2017..]].concat().iter().all(|x| *x == 0.0), "{level} {stride}",);
            }
            let mut fits = [0.0; 15 * 17 + 16];
            transpose(level, block.as_flattened(), 16, &mut fits, 17);
            assert_eq!(fits.iter().filter(|x| **x == 1.0).count(), 256);
        }
    }
}

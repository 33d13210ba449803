//! Products with weights of codes that never become a panel of f32s: one tile at a time, with its sums in registers.
//!
//! [`Left::Exact`]: each weight becomes an f32 in a register, `scale * code - min`, and the sums are of blocks as in all products of
//! packed weights: the bits of the same weights as f32. For few rows, where weights come from memory.
//!
//! [`Left::Rounded`]: the other operand is rounded to eight bits too, 32 neighbours with one scale, so that products are integers. Of each
//! group of steps that shares a scale, in ascending order,
//!
//!   c = fma(Σ x w, d s, c),   c = fma(-m, d Σ x, c)
//!
//! where x and w are codes, d is the scale of x, s and m are the scale and the minimum of the weights. Sums of integers are exact in any
//! order, so this too has the same bits at every level, and a row's result does not depend on other rows.
#![allow(unsafe_code)] // unchecked loads and stores, inside bounds asserted by `panel`

use super::super::blocks::GROUP;
use super::super::simd::{Kernel, Level, MulAdd, fma};
use super::super::view::{Mat, MatMut};
use super::codes::Codes;
use super::gemm::{CHAIN, Start};
use super::tile;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// Neighbours with one scale, in a row that is rounded.
const SHARED: usize = 32;

/// Rows of a tile, at most.
const ROWS: usize = 6;

/// Columns of a panel, at most.
const WIDTH: usize = 64;

/// Up to how many rows exact products run here.
pub const FEW_ROWS: usize = 4;

/// Elements of a row of `k` when it is rounded: its codes, four in an element; a scale for every 32; a sum of codes for every 16.
pub const fn rounded(k: usize) -> usize {
    k / 4 + k / SHARED + k / GROUP
}

/// Rounds rows of k to eight bits: [`rounded`] elements each.
pub struct Round<'a> {
    /// (N, rounded(k))
    pub to: &'a mut [f32],
    /// (N, k)
    pub x: &'a [f32],
    /// a multiple of 32
    pub k: usize,
}

impl Kernel for Round<'_> {
    type Output = ();
    #[inline(always)]
    fn run<M: MulAdd>(self) {
        // 1.5 * 2^23: what is added to it is rounded to an integer, ties to even, in the low bits
        const INTEGERS: f32 = 12_582_912.0;
        for (to, x) in self.to.chunks_exact_mut(rounded(self.k)).zip(self.x.chunks_exact(self.k)) {
            let (codes, rest) = to.split_at_mut(self.k / 4);
            let (scales, sums) = rest.split_at_mut(self.k / SHARED);
            let codes: &mut [i8] = bytemuck::cast_slice_mut(codes);
            let sums: &mut [i32] = bytemuck::cast_slice_mut(sums);
            let parts = x.as_chunks::<SHARED>().0.iter().zip(codes.as_chunks_mut::<SHARED>().0);
            for (((x, codes), scale), sums) in parts.zip(scales).zip(sums.as_chunks_mut::<2>().0) {
                let mut most = [0f32; GROUP];
                for half in x.as_chunks::<GROUP>().0 {
                    for i in 0..GROUP {
                        // NaN propagates to the scale, and from there to the product
                        let size = half[i].abs();
                        most[i] = if size > most[i] || size.is_nan() { size } else { most[i] };
                    }
                }
                let most = most.into_iter().fold(0f32, |a, b| if b > a || b.is_nan() { b } else { a });
                let inverse = if most > 0.0 { 127.0 / most } else { 0.0 };
                *scale = most / 127.0;
                let mut ints = [0i32; SHARED];
                for i in 0..SHARED {
                    let code = (x[i] * inverse + INTEGERS).to_bits() as i32;
                    // a scale that overflows leaves any bits: they are kept in range
                    ints[i] = code.wrapping_sub(INTEGERS.to_bits() as i32).clamp(-127, 127);
                    codes[i] = ints[i] as i8;
                }
                for (sum, ints) in sums.iter_mut().zip(ints.as_chunks::<GROUP>().0) {
                    *sum = ints.iter().sum();
                }
            }
        }
    }
}

/// The left operand.
#[derive(Clone, Copy)]
pub enum Left<'a> {
    /// Rows whose elements are neighbours.
    Exact(Mat<'a>),
    /// Rows of so many elements, each [`rounded`].
    Rounded(&'a [f32], usize),
}

impl Left<'_> {
    fn rows(&self) -> usize {
        match self {
            Left::Exact(x) => x.rows,
            Left::Rounded(x, k) => x.len() / rounded(*k),
        }
    }
    /// Its columns.
    pub fn k(&self) -> usize {
        match self {
            Left::Exact(x) => x.cols,
            Left::Rounded(_, k) => *k,
        }
    }
}

/// c = start + x panel, for as many columns as c has.
#[track_caller]
pub fn panel(level: Level, mut c: MatMut, x: Left, codes: Codes, panel: &[u8], start: Start) {
    let (width, cols, k) = (tile::shape(level).1, c.cols(), x.k());
    assert!(x.rows() == c.rows() && cols <= width && width <= WIDTH && k.is_multiple_of(codes.strip));
    assert!(panel.len() >= k / codes.strip * codes.bytes(width));
    if let Left::Exact(x) = x {
        x.check();
        assert!(x.col_stride == 1);
    }
    // tiles of equal heights: 7 rows are 4 and 3
    let most = if matches!(x, Left::Exact(_)) { FEW_ROWS } else { ROWS };
    let height = c.rows().div_ceil(c.rows().div_ceil(most).max(1)).max(1);
    for i in (0..c.rows()).step_by(height) {
        let rows = i..(i + height).min(c.rows());
        let mut sums = [0f32; ROWS * WIDTH];
        for (i, sums) in rows.clone().zip(sums.chunks_exact_mut(width)) {
            match start {
                Start::Zero | Start::Past => {}
                Start::Own => sums[..cols].copy_from_slice(c.row(i)),
                Start::Row(row) => sums[..cols].copy_from_slice(row),
            }
        }
        let part = match x {
            Left::Exact(x) => Left::Exact(x.rows(rows.clone())),
            Left::Rounded(x, k) => Left::Rounded(&x[rows.start * rounded(k)..rows.end * rounded(k)], k),
        };
        tile(level, Tile { x: part, codes, panel, width, sums: &mut sums });
        for (i, sums) in rows.zip(sums.chunks_exact(width)) {
            c.row(i).copy_from_slice(&sums[..cols]);
        }
    }
}

/// Up to [`ROWS`] rows by all columns of a panel.
struct Tile<'a> {
    x: Left<'a>,
    codes: Codes,
    /// As many strips as k has.
    panel: &'a [u8],
    width: usize,
    /// Rows of `width`, added to.
    sums: &'a mut [f32; ROWS * WIDTH],
}

fn tile(level: Level, tile: Tile) {
    #[cfg(target_arch = "x86_64")]
    if level.is_avx512() || level.name() == "avx2" {
        let exact = matches!(tile.x, Left::Exact(_));
        let wide = level.is_avx512() && (exact || is_x86_feature_detected!("avx512vnni"));
        // SAFETY: the level has the instructions, dot products of integers were asked for, and `panel` asserted what the bodies read.
        return unsafe { by_vectors(wide, tile) };
    }
    level.run(tile);
}

/// # Safety
/// As [`panel`] asserts; with AVX2, FMA and F16C, `wide` with AVX-512 and, for rounded rows, VNNI.
#[cfg(target_arch = "x86_64")]
unsafe fn by_vectors(wide: bool, tile: Tile) {
    macro_rules! rows {
        ($exact:ident, $rounded:ident, $few:literal, $many:literal) => {
            match (tile.x, tile.codes.bits, tile.x.rows()) {
                (Left::Exact(_), 4, 1) => $exact::<1, 4>(tile),
                (Left::Exact(_), 4, 2) => $exact::<2, 4>(tile),
                (Left::Exact(_), 4, 3) => $exact::<3, 4>(tile),
                (Left::Exact(_), 4, _) => $exact::<4, 4>(tile),
                (Left::Exact(_), _, 1) => $exact::<1, 8>(tile),
                (Left::Exact(_), _, 2) => $exact::<2, 8>(tile),
                (Left::Exact(_), _, 3) => $exact::<3, 8>(tile),
                (Left::Exact(_), _, _) => $exact::<4, 8>(tile),
                (Left::Rounded(..), 4, 1) => $rounded::<1, $few, 4>(tile),
                (Left::Rounded(..), 4, 2) => $rounded::<2, $few, 4>(tile),
                (Left::Rounded(..), 4, 3) => $rounded::<3, $many, 4>(tile),
                (Left::Rounded(..), 4, 4) => $rounded::<4, $many, 4>(tile),
                (Left::Rounded(..), 4, 5) => $rounded::<5, $many, 4>(tile),
                (Left::Rounded(..), 4, _) => $rounded::<6, $many, 4>(tile),
                (Left::Rounded(..), _, 1) => $rounded::<1, $few, 8>(tile),
                (Left::Rounded(..), _, 2) => $rounded::<2, $few, 8>(tile),
                (Left::Rounded(..), _, 3) => $rounded::<3, $many, 8>(tile),
                (Left::Rounded(..), _, 4) => $rounded::<4, $many, 8>(tile),
                (Left::Rounded(..), _, 5) => $rounded::<5, $many, 8>(tile),
                (Left::Rounded(..), _, _) => $rounded::<6, $many, 8>(tile),
            }
        };
    }
    // SAFETY: as the caller says.
    unsafe { if wide { rows!(exact512, rounded512, 4, 2) } else { rows!(exact256, rounded256, 2, 1) } }
}

/// A tile in plain Rust.
impl Kernel for Tile<'_> {
    type Output = ();
    #[inline(always)]
    fn run<M: MulAdd>(self) {
        let Tile { x, codes, panel, width, sums } = self;
        for column in (0..width).step_by(16) {
            for (i, sums) in sums.chunks_exact_mut(width).enumerate().take(x.rows()) {
                let sums = sums[column..].first_chunk_mut::<16>().expect("panels are multiples of sixteen wide");
                let mut chain = [0f32; 16];
                for (s, strip) in panel.chunks_exact(codes.bytes(width)).enumerate().take(x.k() / codes.strip) {
                    for p in (0..codes.strip).step_by(codes.group) {
                        let k = s * codes.strip + p;
                        let [scale, min] = codes.scales::<16>(strip, width, p, column);
                        match x {
                            Left::Exact(x) => {
                                for (q, x) in x.row(i)[k..][..codes.group].iter().enumerate() {
                                    let code = codes.row::<16>(strip, width, p + q, column);
                                    for v in 0..16 {
                                        chain[v] = fma::<M>(*x, scale[v] * code[v] as f32 - min[v], chain[v]);
                                    }
                                }
                                let k = k + codes.group;
                                if k.is_multiple_of(CHAIN) || k == x.cols {
                                    sums.iter_mut().zip(chain).for_each(|(sum, chain)| *sum += chain);
                                    chain = [0.0; 16];
                                }
                            }
                            Left::Rounded(x, all) => {
                                let (x, d, sum) = taken(&x[i * rounded(all)..], all, k, codes.group);
                                let mut dot = [0i32; 16];
                                for (q, x) in x.iter().enumerate() {
                                    let code = codes.row::<16>(strip, width, p + q, column);
                                    for v in 0..16 {
                                        dot[v] += i32::from(*x) * code[v];
                                    }
                                }
                                for v in 0..16 {
                                    sums[v] = fma::<M>(dot[v] as f32, d * scale[v], sums[v]);
                                    if codes.minima {
                                        sums[v] = fma::<M>(-min[v], d * sum as f32, sums[v]);
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Of a row that is rounded, a group of steps from `k` on: codes, their scale, their sum.
#[inline(always)]
fn taken(row: &[f32], all: usize, k: usize, group: usize) -> (&[i8], f32, i32) {
    let (codes, rest) = row.split_at(all / 4);
    let (scales, sums) = rest.split_at(all / SHARED);
    let sum = sums[k / GROUP..][..group / GROUP].iter().map(|sum| sum.to_bits() as i32).sum();
    (&bytemuck::cast_slice(codes)[k..k + group], scales[k / SHARED], sum)
}

/// How many bytes ahead of the codes in use to prefetch.
#[cfg(target_arch = "x86_64")]
const AHEAD: usize = 8192;

/// Operations on vectors, inlined into what has the same instructions.
#[cfg(target_arch = "x86_64")]
macro_rules! ops {
    ($features:literal: $(fn $name:ident($($arg:ident: $t:ty),*) -> $r:ty $body:block)*) => {
        $(
            /// # Safety
            /// Pointers are to whole vectors.
            #[inline]
            #[target_feature(enable = $features)]
            #[allow(unused_unsafe)] // most need none
            pub unsafe fn $name($($arg: $t),*) -> $r {
                // SAFETY: as the caller says.
                unsafe { $body }
            }
        )*
    };
}

/// What a body needs of vectors of 512 bits.
#[cfg(target_arch = "x86_64")]
mod by512 {
    use super::*;
    pub(super) type F = __m512;
    pub(super) type I = __m512i;
    pub const LANES: usize = 16;

    ops! { "avx512f,avx512vnni":
        fn dot(acc: I, w: I, x: I) -> I { _mm512_dpbusd_epi32(acc, w, x) }
    }
    ops! { "avx512f":
        fn load(at: *const f32) -> F { _mm512_loadu_ps(at) }
        fn store(at: *mut f32, v: F) -> () { _mm512_storeu_ps(at, v) }
        fn load_i(at: *const u8) -> I { _mm512_loadu_si512(at.cast()) }
        fn halves(at: *const u8) -> F { _mm512_cvtph_ps(_mm256_loadu_si256(at.cast())) }
        fn signed(at: *const u8) -> F { widen(_mm512_cvtepi8_epi32(_mm_loadu_si128(at.cast()))) }
        fn unsigned(at: *const u8) -> F { widen(_mm512_cvtepu8_epi32(_mm_loadu_si128(at.cast()))) }
        fn all(x: f32) -> F { _mm512_set1_ps(x) }
        fn all_i(x: i32) -> I { _mm512_set1_epi32(x) }
        fn widen(x: I) -> F { _mm512_cvtepi32_ps(x) }
        fn mul(a: F, b: F) -> F { _mm512_mul_ps(a, b) }
        fn add(a: F, b: F) -> F { _mm512_add_ps(a, b) }
        fn fmadd(a: F, b: F, c: F) -> F { _mm512_fmadd_ps(a, b, c) }
        fn fmsub(a: F, b: F, c: F) -> F { _mm512_fmsub_ps(a, b, c) }
        fn fnmadd(a: F, b: F, c: F) -> F { _mm512_fnmadd_ps(a, b, c) }
        fn and(a: I, b: I) -> I { _mm512_and_si512(a, b) }
        fn xor(a: I, b: I) -> I { _mm512_xor_si512(a, b) }
        fn down(a: I, by: usize) -> I { _mm512_srlv_epi32(a, all_i(by as i32)) }
        fn up(a: I, by: usize) -> I { _mm512_sllv_epi32(a, all_i(by as i32)) }
        fn last(a: I) -> I { _mm512_srai_epi32::<24>(a) }
        fn meaning(code: I, table: &[f32; 16]) -> F { _mm512_permutexvar_ps(code, load(table.as_ptr())) }
    }
}

/// What a body needs of vectors of 256 bits.
#[cfg(target_arch = "x86_64")]
mod by256 {
    use super::*;
    pub(super) type F = __m256;
    pub(super) type I = __m256i;
    pub const LANES: usize = 8;

    ops! { "avx2,fma,f16c":
        // in pairs of 16 bits: the instruction for bytes bounds its sums
        fn dot(acc: I, w: I, x: I) -> I {
            let (w_even, x_even) = (and(w, _mm256_set1_epi16(255)), _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(x)));
            let (w_odd, x_odd) = (_mm256_srli_epi16::<8>(w), _mm256_srai_epi16::<8>(x));
            let both = _mm256_add_epi32(_mm256_madd_epi16(w_even, x_even), _mm256_madd_epi16(w_odd, x_odd));
            _mm256_add_epi32(acc, both)
        }
        fn load(at: *const f32) -> F { _mm256_loadu_ps(at) }
        fn store(at: *mut f32, v: F) -> () { _mm256_storeu_ps(at, v) }
        fn load_i(at: *const u8) -> I { _mm256_loadu_si256(at.cast()) }
        fn halves(at: *const u8) -> F { _mm256_cvtph_ps(_mm_loadu_si128(at.cast())) }
        fn signed(at: *const u8) -> F { widen(_mm256_cvtepi8_epi32(_mm_loadl_epi64(at.cast()))) }
        fn unsigned(at: *const u8) -> F { widen(_mm256_cvtepu8_epi32(_mm_loadl_epi64(at.cast()))) }
        fn all(x: f32) -> F { _mm256_set1_ps(x) }
        fn all_i(x: i32) -> I { _mm256_set1_epi32(x) }
        fn widen(x: I) -> F { _mm256_cvtepi32_ps(x) }
        fn mul(a: F, b: F) -> F { _mm256_mul_ps(a, b) }
        fn add(a: F, b: F) -> F { _mm256_add_ps(a, b) }
        fn fmadd(a: F, b: F, c: F) -> F { _mm256_fmadd_ps(a, b, c) }
        fn fmsub(a: F, b: F, c: F) -> F { _mm256_fmsub_ps(a, b, c) }
        fn fnmadd(a: F, b: F, c: F) -> F { _mm256_fnmadd_ps(a, b, c) }
        fn and(a: I, b: I) -> I { _mm256_and_si256(a, b) }
        fn xor(a: I, b: I) -> I { _mm256_xor_si256(a, b) }
        fn down(a: I, by: usize) -> I { _mm256_srlv_epi32(a, all_i(by as i32)) }
        fn up(a: I, by: usize) -> I { _mm256_sllv_epi32(a, all_i(by as i32)) }
        fn last(a: I) -> I { _mm256_srai_epi32::<24>(a) }
        // a table of sixteen needs two permutations: adding is as fast
        fn meaning(code: I, table: &[f32; 16]) -> F {
            _mm256_add_ps(widen(and(code, all_i(15))), all(table[0]))
        }
    }
}

/// The bodies of a tile for vectors of one size: the exact one and the rounded one.
#[cfg(target_arch = "x86_64")]
macro_rules! bodies {
    ($by:ident: $scale:ident, $exact:ident, $features:literal, $rounded:ident, $integers:literal) => {
        /// What is to be multiplied with codes, or subtracted, from step `p` on.
        ///
        /// # Safety
        /// Vectors of columns from `column` on are inside the strip.
        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn $scale(codes: Codes, strip: &[u8], width: usize, p: usize, column: usize, min: bool) -> $by::F {
            use $by::*;
            // SAFETY: as the caller says.
            unsafe {
                let d = halves(strip.as_ptr().add(2 * (usize::from(min) * width + column)));
                let Some(row) = codes.factors(width, p, min) else { return d };
                let at = strip.as_ptr().add(row + column);
                mul(d, if min { unsigned(at) } else { signed(at) })
            }
        }

        /// # Safety
        /// As [`panel`] asserts; N rows.
        #[target_feature(enable = $features)]
        unsafe fn $exact<const N: usize, const BITS: usize>(tile: Tile) {
            use $by::*;
            const V: usize = LANES / 4; // all columns of a panel
            let Tile { x: Left::Exact(x), codes, panel, width, sums } = tile else { unreachable!("rows as they are") };
            let table: [f32; 16] = std::array::from_fn(|i| i as f32 - codes.offset as f32);
            // SAFETY: addresses are inside x, the panel and the sums.
            unsafe {
                for column in (0..width).step_by(V * LANES) {
                    let (mut total, mut acc) = ([[all(0.0); V]; N], [[all(0.0); V]; N]);
                    for i in 0..N {
                        for v in 0..V {
                            total[i][v] = load(sums.as_ptr().add(i * width + column + v * LANES));
                        }
                    }
                    let mut at = x.data.as_ptr();
                    let mut done = 0;
                    for strip in panel.chunks_exact(codes.bytes(width)).take(x.cols / codes.strip) {
                        let mut words = strip.as_ptr().add(codes.head(width) + 4 * column);
                        for p in (0..codes.strip).step_by(codes.group) {
                            let (mut scale, mut min) = ([all(0.0); V], [all(0.0); V]);
                            for v in 0..V {
                                let column = column + v * LANES;
                                scale[v] = $scale(codes, strip, width, p, column, false);
                                if codes.minima {
                                    min[v] = $scale(codes, strip, width, p, column, true);
                                }
                            }
                            for _ in 0..codes.group * BITS / 32 {
                                let mut w = [all_i(0); V];
                                for v in 0..V {
                                    let at = words.add(4 * v * LANES);
                                    _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(AHEAD).cast());
                                    w[v] = load_i(at);
                                }
                                for s in 0..32 / BITS {
                                    let mut value = [all(0.0); V];
                                    for v in 0..V {
                                        let code = match BITS {
                                            4 => meaning(down(w[v], s % 4 * 8 + s / 4 * 4), &table),
                                            _ => widen(last(xor(up(w[v], 24 - 8 * s), all_i(i32::MIN)))),
                                        };
                                        // the product is exact, so that only the difference is rounded
                                        value[v] = fmsub(code, scale[v], min[v]);
                                    }
                                    for i in 0..N {
                                        let x = all(*at.add(i * x.row_stride + s));
                                        for v in 0..V {
                                            acc[i][v] = fmadd(x, value[v], acc[i][v]);
                                        }
                                    }
                                }
                                at = at.wrapping_add(32 / BITS);
                                words = words.wrapping_add(4 * width);
                            }
                            done += codes.group;
                            if done.is_multiple_of(CHAIN) || done == x.cols {
                                for i in 0..N {
                                    for v in 0..V {
                                        total[i][v] = add(total[i][v], acc[i][v]);
                                        acc[i][v] = all(0.0);
                                    }
                                }
                            }
                        }
                    }
                    for i in 0..N {
                        for v in 0..V {
                            store(sums.as_mut_ptr().add(i * width + column + v * LANES), total[i][v]);
                        }
                    }
                }
            }
        }

        /// # Safety
        /// As [`panel`] asserts; N rows.
        #[target_feature(enable = $integers)]
        unsafe fn $rounded<const N: usize, const V: usize, const BITS: usize>(tile: Tile) {
            use $by::*;
            let Tile { x: Left::Rounded(x, k), codes, panel, width, sums } = tile else { unreachable!("rounded rows") };
            // SAFETY: addresses are inside x, the panel and the sums.
            unsafe {
                for column in (0..width).step_by(V * LANES) {
                    let mut acc = [[all(0.0); V]; N];
                    for i in 0..N {
                        for v in 0..V {
                            acc[i][v] = load(sums.as_ptr().add(i * width + column + v * LANES));
                        }
                    }
                    let mut at = x.as_ptr().cast::<i32>();
                    let mut first = 0;
                    for strip in panel.chunks_exact(codes.bytes(width)).take(k / codes.strip) {
                        let mut words = strip.as_ptr().add(codes.head(width) + 4 * column);
                        for p in (0..codes.strip).step_by(codes.group) {
                            let (mut d, mut sum) = ([0.0; N], [0; N]);
                            let mut dots = [[all_i(0); V]; N];
                            for i in 0..N {
                                let row = x.as_ptr().add(i * rounded(k) + k / 4);
                                d[i] = *row.add((first + p) / SHARED);
                                let sums = row.add(k / SHARED + (first + p) / GROUP).cast::<i32>();
                                sum[i] = (0..codes.group / GROUP).map(|g| *sums.add(g)).sum();
                                dots[i] = [all_i(-codes.offset * sum[i]); V];
                            }
                            for _ in 0..codes.group * BITS / 32 {
                                let mut w = [all_i(0); V];
                                for v in 0..V {
                                    let at = words.add(4 * v * LANES);
                                    if N == 1 {
                                        _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(AHEAD).cast());
                                    }
                                    w[v] = load_i(at);
                                }
                                for s in 0..8 / BITS {
                                    let mut u = w;
                                    if BITS == 4 {
                                        for v in 0..V {
                                            u[v] = and(if s == 0 { w[v] } else { down(w[v], 4) }, all_i(0x0f0f_0f0f));
                                        }
                                    }
                                    for i in 0..N {
                                        let x = all_i(*at.add(i * rounded(k) + s));
                                        for v in 0..V {
                                            dots[i][v] = dot(dots[i][v], u[v], x);
                                        }
                                    }
                                }
                                at = at.wrapping_add(8 / BITS);
                                words = words.wrapping_add(4 * width);
                            }
                            for v in 0..V {
                                let column = column + v * LANES;
                                let scale = $scale(codes, strip, width, p, column, false);
                                for i in 0..N {
                                    acc[i][v] = fmadd(widen(dots[i][v]), mul(all(d[i]), scale), acc[i][v]);
                                }
                                if codes.minima {
                                    let min = $scale(codes, strip, width, p, column, true);
                                    for i in 0..N {
                                        acc[i][v] = fnmadd(min, all(d[i] * sum[i] as f32), acc[i][v]);
                                    }
                                }
                            }
                        }
                        first += codes.strip;
                    }
                    for i in 0..N {
                        for v in 0..V {
                            store(sums.as_mut_ptr().add(i * width + column + v * LANES), acc[i][v]);
                        }
                    }
                }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
bodies!(by512: scale512, exact512, "avx512f", rounded512, "avx512f,avx512vnni");
#[cfg(target_arch = "x86_64")]
bodies!(by256: scale256, exact256, "avx2,fma,f16c", rounded256, "avx2,fma,f16c");

#[cfg(test)]
mod tests {
    use super::super::super::blocks::Quant;
    use super::super::super::random::{bits, uniform};
    use super::*;

    /// However wide the vectors are: a processor with AVX-512 and without VNNI has wide panels and sums integers by narrow ones, which
    /// no other runs.
    #[test]
    fn narrow_vectors_serve_wide_panels() {
        let (k, width) = (512, WIDTH);
        for quant in [Quant::Q8_0, Quant::Q4_0, Quant::Q4_K, Quant::Q6_K, Quant::Q2_K] {
            let codes = Codes::one(quant);
            let mut panel = vec![0; k / codes.strip * codes.bytes(width)];
            let byte = |i: usize| match i % quant.sizes().1 {
                // where scales are, numbers that are small
                at if at % 16 < 4 || at > 200 => 0x11,
                _ => bits(7, 0, i as u64) as u8,
            };
            let blocks: Vec<u8> = (0..width * quant.bytes(k)).map(byte).collect();
            let columns: Vec<_> = blocks.chunks(quant.bytes(k)).map(|blocks| (quant, blocks)).collect();
            codes.lay(&mut panel, width, &columns);
            for rows in 1..=ROWS {
                let x: Vec<f32> = (0..rows * k).map(|i| uniform(3, 0, i as u64) as f32 - 0.5).collect();
                let mut room = vec![0.0; rows * rounded(k)];
                Level::PORTABLE.run(Round { to: &mut room, x: &x, k });
                for x in [Left::Exact(Mat::new(&x, k)), Left::Rounded(&room, k)] {
                    if matches!(x, Left::Exact(_)) && rows > FEW_ROWS {
                        continue;
                    }
                    let of = |level| {
                        let mut sums = [0.5f32; ROWS * WIDTH];
                        tile(level, Tile { x, codes, panel: &panel, width, sums: &mut sums });
                        sums
                    };
                    let plain = of(Level::PORTABLE);
                    let numbers = plain.iter().filter(|v| v.is_finite() && **v != 0.5).count();
                    assert!(numbers >= rows * width / 2, "{quant:?}: {numbers}");
                    for level in Level::available() {
                        let other = of(level);
                        let same = plain.iter().zip(&other).position(|(a, b)| a.to_bits() != b.to_bits());
                        assert_eq!(same, None, "{quant:?}, {rows} rows, {}", level.name());
                    }
                }
            }
        }
    }
}

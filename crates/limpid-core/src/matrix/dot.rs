//! Products with quantised weights that are never widened to a panel of f32s: one tile at a time, with its sums in registers.
//!
//! [`Left::Exact`]: each weight becomes an f32 in a register, `scale * code - min`, and the order of the sums is that of all products of
//! packed weights. So the result has the same bits as the product with the same weights in f32. It is for few rows, where reading weights
//! from memory takes the time.
//!
//! [`Left::Rounded`]: the left operand is rounded to eight bits too, 32 neighbours with one scale, so that products are integers. For each
//! group of steps that shares a scale, in ascending order,
//!
//!   c = fma(Σ x w, d s, c),   c = fma(-m, d Σ x, c)
//!
//! where x and w are codes, d is the scale of x, s and m are the scale and the minimum of the weights. Sums of integers are exact in any
//! order, so this too has the same bits at every level, and a row's result does not depend on other rows.
#![allow(unsafe_code)] // unchecked loads and stores, inside bounds asserted by `panel`

use super::codes::Codes;
use super::sums::{CHAIN, Start};
use super::tile;
#[cfg(target_arch = "x86_64")]
use super::vector::{Body, Vector, avx2, avx512, avx512_vnni};
use super::view::{Mat, MatMut};
use crate::numeric::blocks::GROUP;
use crate::numeric::simd::{Kernel, Level, MulAdd, fma};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

/// How many neighbours of a rounded row share a scale.
const SHARED: usize = 32;

/// Rows of a tile, at most.
const ROWS: usize = 6;

/// Columns of a panel, at most.
const WIDTH: usize = 64;

/// Up to how many rows exact products run here.
pub const FEW_ROWS: usize = 4;

/// Elements of a rounded row of `k`: its codes, four to an element; a scale for every 32; a sum of codes for every 16.
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
                        // NaN propagates to the scale, and so to the product
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
                    // if the scale overflows, the bits are arbitrary: clamp them
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
    let Tile { x, codes, panel, width, sums } = tile;
    macro_rules! exact {
        ($compiled:ident, $vectors:literal, $bits:literal, $x:ident) => {
            match $x.rows {
                1 => $compiled(Exact::<1, $vectors, $bits> { x: $x, codes, panel, width, sums }),
                2 => $compiled(Exact::<2, $vectors, $bits> { x: $x, codes, panel, width, sums }),
                3 => $compiled(Exact::<3, $vectors, $bits> { x: $x, codes, panel, width, sums }),
                _ => $compiled(Exact::<4, $vectors, $bits> { x: $x, codes, panel, width, sums }),
            }
        };
    }
    // one or two rows leave registers for twice as many columns
    macro_rules! rounded {
        ($compiled:ident, $few:literal, $many:literal, $bits:literal, $x:ident, $k:ident) => {
            match $x.len() / rounded($k) {
                1 => $compiled(Rounded::<1, $few, $bits> { x: $x, k: $k, codes, panel, width, sums }),
                2 => $compiled(Rounded::<2, $few, $bits> { x: $x, k: $k, codes, panel, width, sums }),
                3 => $compiled(Rounded::<3, $many, $bits> { x: $x, k: $k, codes, panel, width, sums }),
                4 => $compiled(Rounded::<4, $many, $bits> { x: $x, k: $k, codes, panel, width, sums }),
                5 => $compiled(Rounded::<5, $many, $bits> { x: $x, k: $k, codes, panel, width, sums }),
                _ => $compiled(Rounded::<6, $many, $bits> { x: $x, k: $k, codes, panel, width, sums }),
            }
        };
    }
    // SAFETY: as the caller says.
    unsafe {
        match (x, wide, codes.bits) {
            (Left::Exact(x), true, 4) => exact!(avx512, 4, 4, x),
            (Left::Exact(x), true, _) => exact!(avx512, 4, 8, x),
            (Left::Exact(x), false, 4) => exact!(avx2, 2, 4, x),
            (Left::Exact(x), false, _) => exact!(avx2, 2, 8, x),
            (Left::Rounded(x, k), true, 4) => rounded!(avx512_vnni, 4, 2, 4, x, k),
            (Left::Rounded(x, k), true, _) => rounded!(avx512_vnni, 4, 2, 8, x, k),
            (Left::Rounded(x, k), false, 4) => rounded!(avx2, 2, 1, 4, x, k),
            (Left::Rounded(x, k), false, _) => rounded!(avx2, 2, 1, 8, x, k),
        }
    }
}

/// A tile in plain Rust.
impl Kernel for Tile<'_> {
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

/// A group of steps of a rounded row, from `k` on: codes, their scale, their sum.
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

/// What is to be multiplied with codes, or subtracted, from step `p` on.
///
/// # Safety
/// A vector of columns from `column` on is inside the strip; the rest as [`Vector`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn factors<V: Vector>(codes: Codes, strip: &[u8], width: usize, p: usize, column: usize, min: bool) -> V {
    // SAFETY: as the caller says.
    unsafe {
        let d = V::load_halves(strip.as_ptr().add(2 * (usize::from(min) * width + column)));
        let Some(row) = codes.factors(width, p, min) else { return d };
        let at = strip.as_ptr().add(row + column);
        V::mul(d, if min { V::load_unsigned(at) } else { V::load_signed(at) })
    }
}

/// A tile of N exact rows, C vectors of columns at a time, with codes of so many bits; under the conditions that [`panel`] asserts.
#[cfg(target_arch = "x86_64")]
struct Exact<'a, const N: usize, const C: usize, const BITS: usize> {
    x: Mat<'a>,
    codes: Codes,
    panel: &'a [u8],
    width: usize,
    sums: &'a mut [f32; ROWS * WIDTH],
}

#[cfg(target_arch = "x86_64")]
impl<const N: usize, const C: usize, const BITS: usize> Body for Exact<'_, N, C, BITS> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let Exact { x, codes, panel, width, sums } = self;
        let table: [f32; 16] = std::array::from_fn(|i| i as f32 - codes.offset as f32);
        // SAFETY: addresses are inside x, the panel and the sums.
        unsafe {
            for column in (0..width).step_by(C * V::LANES) {
                let (mut total, mut acc) = ([[V::all(0.0); C]; N], [[V::all(0.0); C]; N]);
                for i in 0..N {
                    for v in 0..C {
                        total[i][v] = V::load(sums.as_ptr().add(i * width + column + v * V::LANES));
                    }
                }
                let mut at = x.data.as_ptr();
                let mut done = 0;
                for strip in panel.chunks_exact(codes.bytes(width)).take(x.cols / codes.strip) {
                    let mut words = strip.as_ptr().add(codes.head(width) + 4 * column);
                    for p in (0..codes.strip).step_by(codes.group) {
                        let (mut scale, mut min) = ([V::all(0.0); C], [V::all(0.0); C]);
                        for v in 0..C {
                            let column = column + v * V::LANES;
                            scale[v] = factors(codes, strip, width, p, column, false);
                            if codes.minima {
                                min[v] = factors(codes, strip, width, p, column, true);
                            }
                        }
                        for _ in 0..codes.group * BITS / 32 {
                            let mut w = [V::all_ints(0); C];
                            for v in 0..C {
                                let at = words.add(4 * v * V::LANES);
                                _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(AHEAD).cast());
                                w[v] = V::load_ints(at);
                            }
                            for s in 0..32 / BITS {
                                let mut value = [V::all(0.0); C];
                                for v in 0..C {
                                    let code = if BITS == 4 {
                                        V::look_up(V::down(w[v], s % 4 * 8 + s / 4 * 4), &table)
                                    } else {
                                        let signed = V::xor(V::up(w[v], 24 - 8 * s), V::all_ints(i32::MIN));
                                        V::from_ints(V::highest_byte(signed))
                                    };
                                    // the product is exact, so that only the difference is rounded
                                    value[v] = V::fmsub(code, scale[v], min[v]);
                                }
                                for i in 0..N {
                                    let x = V::all(*at.add(i * x.row_stride + s));
                                    for v in 0..C {
                                        acc[i][v] = V::fmadd(x, value[v], acc[i][v]);
                                    }
                                }
                            }
                            at = at.wrapping_add(32 / BITS);
                            words = words.wrapping_add(4 * width);
                        }
                        done += codes.group;
                        if done.is_multiple_of(CHAIN) || done == x.cols {
                            for i in 0..N {
                                for v in 0..C {
                                    total[i][v] = V::add(total[i][v], acc[i][v]);
                                    acc[i][v] = V::all(0.0);
                                }
                            }
                        }
                    }
                }
                for i in 0..N {
                    for v in 0..C {
                        V::store(sums.as_mut_ptr().add(i * width + column + v * V::LANES), total[i][v]);
                    }
                }
            }
        }
    }
}

/// A tile of N rounded rows of `k`, else as [`Exact`].
#[cfg(target_arch = "x86_64")]
struct Rounded<'a, const N: usize, const C: usize, const BITS: usize> {
    x: &'a [f32],
    k: usize,
    codes: Codes,
    panel: &'a [u8],
    width: usize,
    sums: &'a mut [f32; ROWS * WIDTH],
}

#[cfg(target_arch = "x86_64")]
impl<const N: usize, const C: usize, const BITS: usize> Body for Rounded<'_, N, C, BITS> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let Rounded { x, k, codes, panel, width, sums } = self;
        // SAFETY: addresses are inside x, the panel and the sums.
        unsafe {
            for column in (0..width).step_by(C * V::LANES) {
                let mut acc = [[V::all(0.0); C]; N];
                for i in 0..N {
                    for v in 0..C {
                        acc[i][v] = V::load(sums.as_ptr().add(i * width + column + v * V::LANES));
                    }
                }
                let mut at = x.as_ptr().cast::<i32>();
                let mut first = 0;
                for strip in panel.chunks_exact(codes.bytes(width)).take(k / codes.strip) {
                    let mut words = strip.as_ptr().add(codes.head(width) + 4 * column);
                    for p in (0..codes.strip).step_by(codes.group) {
                        let (mut d, mut sum) = ([0.0; N], [0; N]);
                        let mut dots = [[V::all_ints(0); C]; N];
                        for i in 0..N {
                            let row = x.as_ptr().add(i * rounded(k) + k / 4);
                            d[i] = *row.add((first + p) / SHARED);
                            let sums = row.add(k / SHARED + (first + p) / GROUP).cast::<i32>();
                            sum[i] = (0..codes.group / GROUP).map(|g| *sums.add(g)).sum();
                            dots[i] = [V::all_ints(-codes.offset * sum[i]); C];
                        }
                        for _ in 0..codes.group * BITS / 32 {
                            let mut w = [V::all_ints(0); C];
                            for v in 0..C {
                                let at = words.add(4 * v * V::LANES);
                                if N == 1 {
                                    _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(AHEAD).cast());
                                }
                                w[v] = V::load_ints(at);
                            }
                            for s in 0..8 / BITS {
                                let mut u = w;
                                if BITS == 4 {
                                    for v in 0..C {
                                        let half = if s == 0 { w[v] } else { V::down(w[v], 4) };
                                        u[v] = V::and(half, V::all_ints(0x0f0f_0f0f));
                                    }
                                }
                                for i in 0..N {
                                    let x = V::all_ints(*at.add(i * rounded(k) + s));
                                    for v in 0..C {
                                        dots[i][v] = V::dot(dots[i][v], u[v], x);
                                    }
                                }
                            }
                            at = at.wrapping_add(8 / BITS);
                            words = words.wrapping_add(4 * width);
                        }
                        for v in 0..C {
                            let column = column + v * V::LANES;
                            let scale: V = factors(codes, strip, width, p, column, false);
                            for i in 0..N {
                                acc[i][v] = V::fmadd(V::from_ints(dots[i][v]), V::mul(V::all(d[i]), scale), acc[i][v]);
                            }
                            if codes.minima {
                                let min = factors(codes, strip, width, p, column, true);
                                for i in 0..N {
                                    acc[i][v] = V::fnmadd(min, V::all(d[i] * sum[i] as f32), acc[i][v]);
                                }
                            }
                        }
                    }
                    first += codes.strip;
                }
                for i in 0..N {
                    for v in 0..C {
                        V::store(sums.as_mut_ptr().add(i * width + column + v * V::LANES), acc[i][v]);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numeric::blocks::Quant;
    use crate::numeric::random::{bits, uniform};

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

//! Products with quantised weights that are never widened to a panel of f32s: one tile at a time, with its sums in
//! registers.
//!
//! [`Left::Exact`]: each weight becomes an f32 in a register, `scale * code - min`, and the order of the sums is that
//! of all products of packed weights. So the result has the same bits as the product with the same weights in f32. It
//! is for few rows, where reading weights from memory takes the time.
//!
//! [`Left::Rounded`]: the left operand is rounded to eight bits too, 32 neighbours with one scale, so that products are
//! integers. For each group of steps that shares a scale, in ascending order,
//!
//!   c = fma(Σ x w, d s, c),   c = fma(-m, d Σ x, c)
//!
//! where x and w are codes, d is the scale of x, s and m are the scale and the minimum of the weights. Sums of integers
//! are exact in any order, so this too has the same bits at every level, and a row's result does not depend on other
//! rows.
#![allow(unsafe_code)] // unchecked loads and stores, inside bounds asserted by `panel`

use super::codes::Codes;
use super::sums::{CHAIN, Start};
use super::tile;
use super::vector::{Body, Vector, avx2, avx2_vnni, avx512, avx512_vnni, neon, neon_dot, plain};
use super::view::{Mat, MatMut};
use crate::numeric::blocks::GROUP;
use crate::numeric::simd::{Kernel, Level, MulAdd, Vectors};
use std::ops::Range;

/// How many neighbours of a rounded row share a scale.
const SHARED: usize = 32;

/// Rows of a tile, at most.
const ROWS: usize = 6;

/// Columns of a panel, at most.
const WIDTH: usize = 64;

/// Columns that are computed at once for many rows, so that what they have of the panel stays in the nearest cache.
const COLUMNS: usize = 32;

/// Up to how many rows exact products run here.
pub const FEW_ROWS: usize = 4;

/// How rows are rounded to eight bits: tile after tile, as the inner loops read them. In a tile lie, for each group of
/// steps, its words, each of four codes of a row, those of all rows beside each other; then of each row the scale d;
/// then -offset Σ x; then d Σ x.
#[derive(Clone, Copy)]
pub struct RoundedLayout {
    /// Rows.
    pub rows: usize,
    /// Columns: a multiple of 32.
    pub k: usize,
    /// What they are to be multiplied with.
    pub codes: Codes,
}

impl RoundedLayout {
    /// How many rows a tile has; the last one may have fewer.
    pub fn height(self) -> usize {
        tile::equal_heights(self.rows, ROWS)
    }
    /// The rows of a tile.
    pub fn rows_of(self, tile: usize) -> Range<usize> {
        tile * self.height()..((tile + 1) * self.height()).min(self.rows)
    }
    /// Elements of a group of a row.
    fn group(self) -> usize {
        self.codes.group / 4 + 3
    }
    /// Elements of a tile.
    pub fn tile(self) -> usize {
        self.k / self.codes.group * self.group() * self.height()
    }
    /// Elements of all tiles: at most [`rounded_room`].
    pub fn elements(self) -> usize {
        self.rows.div_ceil(self.height()) * self.tile()
    }
}

/// Elements of 4 bytes for so many rows of `k`, whatever they are rounded for: the last tile may have room for more
/// rows, and a group has at least sixteen steps.
pub const fn rounded_room(rows: usize, k: usize) -> usize {
    (rows + ROWS) * (k / 4 + 3 * k / GROUP)
}

/// Rounds the rows of a tile.
pub struct Round<'a> {
    /// A tile.
    pub to: &'a mut [f32],
    /// Its rows, whose elements are neighbours.
    pub x: Mat<'a>,
    /// How all rows are rounded.
    pub how: RoundedLayout,
}

impl Kernel for Round<'_> {
    #[inline(always)]
    fn run<M: MulAdd>(self) {
        // 1.5 * 2^23: what is added to it is rounded to an integer, ties to even, in the low bits
        const INTEGERS: f32 = 12_582_912.0;
        let Round { to, x, how } = self;
        let (height, group) = (how.height(), how.group() * how.height());
        // where the second sixteen steps of a scale begin, and where the numbers that follow the words do
        let (second, after) = if how.codes.group == GROUP { (group, 4 * height) } else { (4 * height, 8 * height) };
        for i in 0..x.rows {
            let shared = to.chunks_exact_mut(SHARED / how.codes.group * group);
            for (to, x) in shared.zip(x.row(i).as_chunks::<SHARED>().0) {
                // of numbers that are not negative, the bits have the same order; NaN is the greatest, and gets to the
                // scale, and so to the product
                let most = x.iter().fold(0, |most, x| x.abs().to_bits().max(most));
                let most = f32::from_bits(most);
                let inverse = if most > 0.0 { 127.0 / most } else { 0.0 };
                let scale = most / 127.0;
                let mut sums = [0; 2];
                for (half, x) in x.as_chunks::<GROUP>().0.iter().enumerate() {
                    // if the scale overflows, the bits are arbitrary: clamp them
                    let ints = x.map(|x| {
                        let code = (x * inverse + INTEGERS).to_bits() as i32;
                        code.wrapping_sub(INTEGERS.to_bits() as i32).clamp(-127, 127)
                    });
                    let codes = ints.map(|int| int as u8);
                    for (q, codes) in codes.as_chunks::<4>().0.iter().enumerate() {
                        to[half * second + q * height + i] = f32::from_bits(u32::from_le_bytes(*codes));
                    }
                    sums[half] = ints.iter().sum::<i32>();
                }
                if to.len() == group {
                    sums = [sums[0] + sums[1], 0];
                }
                for (to, sum) in to.chunks_exact_mut(group).zip(sums) {
                    let start = f32::from_bits((-how.codes.offset * sum) as u32);
                    for (n, value) in [scale, start, scale * sum as f32].into_iter().enumerate() {
                        to[after + n * height + i] = value;
                    }
                }
            }
        }
    }
}

/// Rows that are rounded.
#[derive(Clone, Copy)]
pub struct RoundedRows<'a> {
    tiles: &'a [f32],
    how: RoundedLayout,
}

impl<'a> RoundedRows<'a> {
    /// Of tiles that [`Round`] wrote.
    #[track_caller]
    pub fn new(tiles: &'a [f32], how: RoundedLayout) -> Self {
        assert!(tiles.len() == how.elements() && how.k.is_multiple_of(SHARED));
        RoundedRows { tiles, how }
    }
    /// One of the tiles.
    fn tile(self, tile: usize) -> RoundedTile<'a> {
        let (height, elements) = (self.how.height(), self.how.tile());
        let all = &self.tiles[tile * elements..][..elements];
        RoundedTile { all, rows: self.how.rows_of(tile).len(), height, group: self.how.group() * height }
    }
}

/// Rounded rows that are multiplied at once.
#[derive(Clone, Copy)]
struct RoundedTile<'a> {
    all: &'a [f32],
    rows: usize,
    /// The distance between words of a row.
    height: usize,
    /// Elements of a group.
    group: usize,
}

/// The left operand.
#[derive(Clone, Copy)]
pub enum Left<'a> {
    /// Rows whose elements are neighbours.
    Exact(Mat<'a>),
    /// Rows that are rounded for these codes.
    Rounded(RoundedRows<'a>),
}

impl Left<'_> {
    fn rows(&self) -> usize {
        match self {
            Left::Exact(x) => x.rows,
            Left::Rounded(x) => x.how.rows,
        }
    }
    /// Its columns.
    pub fn k(&self) -> usize {
        match self {
            Left::Exact(x) => x.cols,
            Left::Rounded(x) => x.how.k,
        }
    }
}

/// c = start + x panel, for as many columns as c has.
#[track_caller]
pub fn panel(level: Level, mut c: MatMut, x: Left, codes: Codes, panel: &[u8], start: Start) {
    let (width, cols, k) = (tile::shape(level).1, c.cols(), x.k());
    assert!(x.rows() == c.rows() && cols <= width && width <= WIDTH && k.is_multiple_of(codes.strip));
    assert!(panel.len() >= k / codes.strip * codes.bytes(width));
    let height = match x {
        Left::Exact(x) => {
            x.check();
            assert!(x.col_stride == 1);
            tile::equal_heights(x.rows, FEW_ROWS)
        }
        Left::Rounded(x) => {
            assert!(x.how.codes == codes);
            x.how.height()
        }
    };
    let few = c.rows() <= FEW_ROWS || matches!(x, Left::Exact(_));
    let at_once = if few { width } else { COLUMNS.min(width) };
    for from in (0..cols).step_by(at_once) {
        let part = from..(from + at_once).min(cols);
        for i in (0..c.rows()).step_by(height) {
            let rows = i..(i + height).min(c.rows());
            let mut sums = [0f32; ROWS * WIDTH];
            for (i, sums) in rows.clone().zip(sums.chunks_exact_mut(at_once)) {
                match start {
                    Start::Zero | Start::Past => {}
                    Start::Own => sums[..part.len()].copy_from_slice(&c.row(i)[part.clone()]),
                    Start::Row(row) => sums[..part.len()].copy_from_slice(&row[part.clone()]),
                }
            }
            let x = match x {
                Left::Exact(x) => TileRows::Exact(x.rows(rows.clone())),
                Left::Rounded(x) => TileRows::Rounded(x.tile(i / height)),
            };
            tile(level, Tile { x, codes, panel, width, columns: from..from + at_once, sums: &mut sums });
            for (i, sums) in rows.zip(sums.chunks_exact(at_once)) {
                c.row(i)[part.clone()].copy_from_slice(&sums[..part.len()]);
            }
        }
    }
}

/// The left operand of a tile.
#[derive(Clone, Copy)]
enum TileRows<'a> {
    Exact(Mat<'a>),
    Rounded(RoundedTile<'a>),
}

/// Up to [`ROWS`] rows by some columns of a panel.
struct Tile<'a, X> {
    x: X,
    codes: Codes,
    /// As many strips as k has.
    panel: &'a [u8],
    width: usize,
    /// Whole vectors, at every level.
    columns: Range<usize>,
    /// A row of sums for each row, as long as there are columns: added to.
    sums: &'a mut [f32; ROWS * WIDTH],
}

fn tile(level: Level, tile: Tile<TileRows>) {
    let Tile { x, codes, panel, width, columns, sums } = tile;
    let all = columns.len() == WIDTH;
    let vnni = level.has_byte_dot();
    // one or two rows leave registers for twice as many columns, where there are few
    macro_rules! exact {
        ($compiled:ident, $few:literal, $many:literal, $bits:literal, $x:ident) => {
            match $x.rows {
                1 => $compiled(level, Exact::<1, $few, $bits>(Tile { x: $x, codes, panel, width, columns, sums })),
                2 => $compiled(level, Exact::<2, $few, $bits>(Tile { x: $x, codes, panel, width, columns, sums })),
                3 => $compiled(level, Exact::<3, $many, $bits>(Tile { x: $x, codes, panel, width, columns, sums })),
                _ => $compiled(level, Exact::<4, $many, $bits>(Tile { x: $x, codes, panel, width, columns, sums })),
            }
        };
    }
    macro_rules! rounded {
        ($compiled:ident, $few:literal, $many:literal, $bits:literal, $x:ident) => {
            match $x.rows {
                1 => $compiled(level, Rounded::<1, $few, $bits>(Tile { x: $x, codes, panel, width, columns, sums })),
                2 => $compiled(level, Rounded::<2, $few, $bits>(Tile { x: $x, codes, panel, width, columns, sums })),
                3 => $compiled(level, Rounded::<3, $many, $bits>(Tile { x: $x, codes, panel, width, columns, sums })),
                4 => $compiled(level, Rounded::<4, $many, $bits>(Tile { x: $x, codes, panel, width, columns, sums })),
                5 => $compiled(level, Rounded::<5, $many, $bits>(Tile { x: $x, codes, panel, width, columns, sums })),
                _ => $compiled(level, Rounded::<6, $many, $bits>(Tile { x: $x, codes, panel, width, columns, sums })),
            }
        };
    }
    // SAFETY: the level has the instructions, or the CPU was asked for them; `panel` asserted what the bodies read.
    unsafe {
        match (level.vectors(), x, codes.bits) {
            (Vectors::Avx512, TileRows::Exact(x), 4) => exact!(avx512, 4, 4, 4, x),
            (Vectors::Avx512, TileRows::Exact(x), _) => exact!(avx512, 4, 4, 8, x),
            (Vectors::Avx2, TileRows::Exact(x), 4) => exact!(avx2, 2, 2, 4, x),
            (Vectors::Avx2, TileRows::Exact(x), _) => exact!(avx2, 2, 2, 8, x),
            (Vectors::Neon, TileRows::Exact(x), 4) => exact!(neon, 4, 2, 4, x),
            (Vectors::Neon, TileRows::Exact(x), _) => exact!(neon, 4, 2, 8, x),
            (Vectors::Plain, TileRows::Exact(x), 4) => exact!(plain, 1, 1, 4, x),
            (Vectors::Plain, TileRows::Exact(x), _) => exact!(plain, 1, 1, 8, x),
            (Vectors::Avx512, TileRows::Rounded(x), 4) if vnni && all => rounded!(avx512_vnni, 4, 2, 4, x),
            (Vectors::Avx512, TileRows::Rounded(x), _) if vnni && all => rounded!(avx512_vnni, 4, 2, 8, x),
            (Vectors::Avx512, TileRows::Rounded(x), 4) if vnni => rounded!(avx512_vnni, 2, 2, 4, x),
            (Vectors::Avx512, TileRows::Rounded(x), _) if vnni => rounded!(avx512_vnni, 2, 2, 8, x),
            (Vectors::Avx2, TileRows::Rounded(x), 4) if vnni => rounded!(avx2_vnni, 2, 1, 4, x),
            (Vectors::Avx2, TileRows::Rounded(x), _) if vnni => rounded!(avx2_vnni, 2, 1, 8, x),
            // without that instruction, vectors of 256 bits are as good
            (Vectors::Avx2 | Vectors::Avx512, TileRows::Rounded(x), 4) => rounded!(avx2, 2, 1, 4, x),
            (Vectors::Avx2 | Vectors::Avx512, TileRows::Rounded(x), _) => rounded!(avx2, 2, 1, 8, x),
            (Vectors::Neon, TileRows::Rounded(x), 4) if vnni => rounded!(neon_dot, 4, 2, 4, x),
            (Vectors::Neon, TileRows::Rounded(x), _) if vnni => rounded!(neon_dot, 4, 2, 8, x),
            (Vectors::Neon, TileRows::Rounded(x), 4) => rounded!(neon, 2, 1, 4, x),
            (Vectors::Neon, TileRows::Rounded(x), _) => rounded!(neon, 4, 2, 8, x),
            (Vectors::Plain, TileRows::Rounded(x), 4) => rounded!(plain, 1, 1, 4, x),
            (Vectors::Plain, TileRows::Rounded(x), _) => rounded!(plain, 1, 1, 8, x),
        }
    }
}

/// How many bytes ahead of those in use to prefetch, where each is read once.
const AHEAD: usize = 8192;

/// Prefetches the factors of a group; in a block of 256 steps, they are an eighth of all that is read.
#[inline(always)]
fn prefetch_factors<V: Vector>(codes: Codes, strip: &[u8], width: usize, group: usize) {
    let (Some(from), Some(to)) = (codes.factors(width, group, false), codes.factors(width, group + 1, false)) else {
        return;
    };
    for at in (if group == 0 { 0 } else { from }..to).step_by(64) {
        // SAFETY: any address can be prefetched.
        unsafe { V::prefetch(strip.as_ptr().wrapping_add(at + AHEAD)) };
    }
}

/// What is to be multiplied with the codes of a group of steps, or subtracted.
///
/// # Safety
/// A vector of columns from `column` on is inside the strip; the rest as [`Vector`].
#[inline(always)]
unsafe fn factors<V: Vector>(codes: Codes, strip: &[u8], width: usize, group: usize, column: usize, min: bool) -> V {
    // SAFETY: as the caller says.
    unsafe {
        let d = V::load_halves(strip.as_ptr().add(2 * (usize::from(min) * width + column)));
        let Some(row) = codes.factors(width, group, min) else { return d };
        let at = strip.as_ptr().add(row + column);
        V::mul(d, if min { V::load_unsigned(at) } else { V::load_signed(at) })
    }
}

/// A tile of N exact rows, C vectors of columns at a time, with codes of so many bits; under the conditions that
/// [`panel`] asserts.
struct Exact<'a, const N: usize, const C: usize, const BITS: usize>(Tile<'a, Mat<'a>>);

impl<const N: usize, const C: usize, const BITS: usize> Body for Exact<'_, N, C, BITS> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let Exact(Tile { x, codes, panel, width, columns, sums }) = self;
        let (first, cols) = (columns.start, columns.len());
        let table: [f32; 16] = std::array::from_fn(|i| i as f32 - codes.offset as f32);
        // SAFETY: addresses are inside x, the panel and the sums.
        unsafe {
            for column in columns.step_by(C * V::LANES) {
                let (mut total, mut acc) = ([[V::all(0.0); C]; N], [[V::all(0.0); C]; N]);
                for i in 0..N {
                    for v in 0..C {
                        total[i][v] = V::load(sums.as_ptr().add(i * cols + column - first + v * V::LANES));
                    }
                }
                let mut at = x.data.as_ptr();
                let mut done = 0;
                for strip in panel.chunks_exact(codes.bytes(width)).take(x.cols / codes.strip) {
                    let mut words = strip.as_ptr().add(codes.head(width) + 4 * column);
                    for group in 0..codes.strip / codes.group {
                        prefetch_factors::<V>(codes, strip, width, group);
                        let (mut scale, mut min) = ([V::all(0.0); C], [V::all(0.0); C]);
                        for v in 0..C {
                            let column = column + v * V::LANES;
                            scale[v] = factors(codes, strip, width, group, column, false);
                            if codes.minima {
                                min[v] = factors(codes, strip, width, group, column, true);
                            }
                        }
                        for _ in 0..codes.group * BITS / 32 {
                            let mut w = [V::all_ints(0); C];
                            for v in 0..C {
                                let at = words.add(4 * v * V::LANES);
                                V::prefetch(at.wrapping_add(AHEAD));
                                w[v] = V::load_ints(at);
                                if BITS == 8 {
                                    // each byte with its sign: minus the offset, 128
                                    w[v] = V::xor(w[v], V::all_ints(i32::from_ne_bytes([0x80; 4])));
                                }
                            }
                            for s in 0..32 / BITS {
                                let mut value = [V::all(0.0); C];
                                for v in 0..C {
                                    let code = if BITS == 4 {
                                        V::look_up(V::down(w[v], s % 4 * 8 + s / 4 * 4), &table)
                                    } else {
                                        V::from_ints(V::highest_byte(V::up(w[v], 24 - 8 * s)))
                                    };
                                    // the product is exact, so that only the difference is rounded
                                    value[v] = V::fmsub(code, scale[v], min[v]);
                                }
                                for i in 0..N {
                                    let x = V::load_all(at.add(i * x.row_stride + s));
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
                        V::store(sums.as_mut_ptr().add(i * cols + column - first + v * V::LANES), total[i][v]);
                    }
                }
            }
        }
    }
}

/// A tile of N rounded rows, else as [`Exact`].
struct Rounded<'a, const N: usize, const C: usize, const BITS: usize>(Tile<'a, RoundedTile<'a>>);

impl<const N: usize, const C: usize, const BITS: usize> Body for Rounded<'_, N, C, BITS> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let Rounded(Tile { x: RoundedTile { all, height, group: elements, .. }, codes, panel, width, columns, sums }) =
            self;
        let (first, cols) = (columns.start, columns.len());
        // SAFETY: addresses are inside the tile of x, the panel and the sums.
        unsafe {
            for column in columns.step_by(C * V::LANES) {
                let mut acc = [[V::all(0.0); C]; N];
                for i in 0..N {
                    for v in 0..C {
                        acc[i][v] = V::load(sums.as_ptr().add(i * cols + column - first + v * V::LANES));
                    }
                }
                let mut at = all.as_ptr();
                for strip in
                    panel.chunks_exact(codes.bytes(width)).take(all.len() / elements * codes.group / codes.strip)
                {
                    let mut words = strip.as_ptr().add(codes.head(width) + 4 * column);
                    for group in 0..codes.strip / codes.group {
                        if N == 1 {
                            prefetch_factors::<V>(codes, strip, width, group);
                        }
                        let d = at.wrapping_add(elements - 3 * height);
                        let (start, d_sum) = (d.wrapping_add(height).cast::<i32>(), d.wrapping_add(2 * height));
                        let mut dots = [[V::first::<BITS>(0); C]; N];
                        for i in 0..N {
                            dots[i] = [V::first::<BITS>(*start.add(i)); C];
                        }
                        for _ in 0..codes.group * BITS / 32 {
                            let mut w = [V::all_ints(0); C];
                            for v in 0..C {
                                let at = words.add(4 * v * V::LANES);
                                if N == 1 {
                                    V::prefetch(at.wrapping_add(AHEAD));
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
                                    let x = V::load_four(at.add(i).cast());
                                    for v in 0..C {
                                        dots[i][v] = V::dot::<BITS>(dots[i][v], u[v], x);
                                    }
                                }
                                at = at.wrapping_add(height);
                            }
                            words = words.wrapping_add(4 * width);
                        }
                        for v in 0..C {
                            let column = column + v * V::LANES;
                            let scale: V = factors(codes, strip, width, group, column, false);
                            for i in 0..N {
                                let dot = V::from_ints(V::last::<BITS>(dots[i][v], *start.add(i)));
                                acc[i][v] = V::fmadd(dot, V::mul(V::all(*d.add(i)), scale), acc[i][v]);
                            }
                            if codes.minima {
                                let min = factors(codes, strip, width, group, column, true);
                                for i in 0..N {
                                    acc[i][v] = V::fnmadd(min, V::all(*d_sum.add(i)), acc[i][v]);
                                }
                            }
                        }
                        at = d.wrapping_add(3 * height);
                    }
                }
                for i in 0..N {
                    for v in 0..C {
                        V::store(sums.as_mut_ptr().add(i * cols + column - first + v * V::LANES), acc[i][v]);
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

    /// However wide the vectors are: a processor with AVX-512 and without VNNI has wide panels and sums integers by
    /// narrow ones, which no other runs.
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
                let (x, how) = (Mat::new(&x, k), RoundedLayout { rows, k, codes });
                let mut room = vec![0.0; how.elements()];
                Level::PORTABLE.run(Round { to: &mut room, x, how });
                for x in [TileRows::Exact(x), TileRows::Rounded(RoundedRows::new(&room, how).tile(0))] {
                    if matches!(x, TileRows::Exact(_)) && rows > FEW_ROWS {
                        continue;
                    }
                    let of = |level| {
                        let mut sums = [0.5f32; ROWS * WIDTH];
                        tile(level, Tile { x, codes, panel: &panel, width, columns: 0..width, sums: &mut sums });
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

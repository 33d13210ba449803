//! c = a b or c += a b or c = bias + a b for any strides, on one thread, in f32 or from operands rounded to bf16.
//!
//! Blocking: b is cut into blocks of [`K_BLOCK`] rows and panels of [`width`] columns. Each is packed once, so that
//! the inner loop reads it as one stream from the L2 cache, and is used for many rows of a. The accumulators of a
//! tile start from c, a bias or zero and are stored to c, so cutting k changes no bit: the order of summation is fixed
//! ([`Sums`]). In f32, a is read in place where that is as fast as packing it (`reads_in_place`).
//!
//! bf16 rounds the operands and nothing else: products and sums are f32, and a product of two bf16 is exact in f32.
//! A level with the dot product stores both operands as pairs of neighbours in k; the others store rounded f32s and
//! run the f32 loop. So bf16 is the same chain everywhere (except for numbers below 1e-38, which the dot product
//! flushes to zero).
//!
//! Weights that are used again and again for few rows (decoding) are packed whole, once: [`Packed`]. Quantised weights
//! stay quantised (`codes`): for many rows, a few strips at a time are widened to f32; for few rows, each is widened in
//! a register (`dot`).
//!
//! Measured on one AVX-512 core with a roof of 171 GFLOP/s: nano's shapes (384 x 512 x 128) 148 to 171, GPT-2's (256
//! x 768 x 768) 130 to 140, with weights read from memory 120 to 130; one row with packed weights 18 to 28 GB/s, as
//! fast as a copy.

use super::Precision;
use super::arena::{Arena, Refused};
use super::codes::{Codes, Widen, WidenTurned};
use super::dot::{self, Left};
use super::sums::{Start, Sums};
use super::tile::{self, Tiles};
use super::view::{Mat, MatMut};
use crate::numeric::blocks::Quant;
use crate::numeric::half::nearest_bf16;
use crate::numeric::simd::{Kernel, Level, MulAdd};
use std::ops::Range;

/// How many rows of b a packed panel has: 256 x 64 floats are 64 KiB. With 128 a panel would fit the nearest cache,
/// which is a tenth faster on data in the caches, but slower in a step, where weights come from memory in runs half
/// as long (docs/decisions.md#blocks-of-k-hold-256-rows).
pub const K_BLOCK: usize = 256;

/// The same for a product of few rows, where each block comes from memory, and is used by two tiles or more before it
/// leaves the nearest cache: 16 KiB.
const FEW_K_BLOCK: usize = 64;

/// The greatest distance in elements between rows, and between steps of k, with which a is always read in place:
/// greater ones map to the same few lines of the nearest cache.
const NEAR: usize = 512;

/// How many rows of a are packed at once, where it is not read in place: 384 KiB, so that b's panel fits the cache
/// beside them.
const A_ROWS: usize = 384;

/// How many columns of b are packed at once: the cache lines that lie beside each other in memory.
pub const STRIP: usize = 64;

/// Columns of a panel at this level.
pub fn width(level: Level) -> usize {
    tile::shape(level).1
}

/// Floats of scratch that [`gemm`] needs.
pub const SCRATCH: usize = K_BLOCK * STRIP + K_BLOCK * A_ROWS;

/// How operands are stored for the inner loop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    /// As they are.
    Exact,
    /// Rounded to bf16, as f32.
    Rounded,
    /// Two neighbours in k, rounded to bf16, in the bits of one f32: the even one in the high half.
    Pairs,
}

impl Form {
    fn new(level: Level, precision: Precision) -> Form {
        match precision {
            Precision::F32 | Precision::Int8 | Precision::F16 => Form::Exact,
            Precision::Bf16 if level.has_dot() => Form::Pairs,
            Precision::Bf16 => Form::Rounded,
        }
    }
    /// Steps of k in one element.
    fn step(self) -> usize {
        if self == Form::Pairs { 2 } else { 1 }
    }
}

/// The bits of the nearest bf16, in the high half.
#[inline(always)]
fn round(x: f32) -> u32 {
    u32::from(nearest_bf16(x)) << 16
}

/// The stored form of two neighbours in k; of the even one alone, unless `form` is pairs.
#[inline(always)]
fn hold(form: Form, even: f32, odd: f32) -> f32 {
    match form {
        Form::Exact => even,
        Form::Rounded => f32::from_bits(round(even)),
        Form::Pairs => f32::from_bits(round(even) | (round(odd) >> 16)),
    }
}

/// Packs sixteen elements each of two rows that are neighbours in k.
#[inline(always)]
fn hold_beside(form: Form, even: &[f32; 16], odd: &[f32; 16]) -> [f32; 16] {
    let (even, odd) = (*even, *odd); // copies, so that the compiler sees that nothing overlaps them
    let mut held = even;
    match form {
        Form::Exact => {}
        Form::Rounded => {
            for i in 0..16 {
                held[i] = hold(Form::Rounded, even[i], 0.0);
            }
        }
        Form::Pairs => {
            for i in 0..16 {
                held[i] = hold(Form::Pairs, even[i], odd[i]);
            }
        }
    }
    held
}

/// Packs the elements of two rows that are neighbours in k.
#[inline(always)]
fn hold_rows(form: Form, to: &mut [f32], even: &[f32], odd: &[f32]) {
    let ((to, to_rest), (even, even_rest), (odd, odd_rest)) = (to.as_chunks_mut(), even.as_chunks(), odd.as_chunks());
    for ((to, even), odd) in to.iter_mut().zip(even).zip(odd) {
        *to = hold_beside(form, even, odd);
    }
    for ((to, even), odd) in to_rest.iter_mut().zip(even_rest).zip(odd_rest) {
        *to = hold(form, *even, *odd);
    }
}

/// Packs sixteen elements that are neighbours in k.
#[inline(always)]
fn hold_sixteen(form: Form, from: &[f32]) -> [f32; 16] {
    let mut to = [0.0; 16];
    match form {
        Form::Exact => to.copy_from_slice(&from[..16]),
        Form::Rounded => {
            for (to, even) in to.iter_mut().zip(&from[..16]) {
                *to = hold(Form::Rounded, *even, 0.0);
            }
        }
        Form::Pairs => {
            for (to, [even, odd]) in to.iter_mut().zip(from[..32].as_chunks::<2>().0) {
                *to = hold(Form::Pairs, *even, *odd);
            }
        }
    }
    to
}

/// Packs any number of elements that are neighbours in k.
#[inline(always)]
fn hold_along(form: Form, to: &mut [f32], from: &[f32]) {
    let step = form.step();
    let (whole, rest) = to.as_chunks_mut::<16>();
    let done = whole.len().min(from.len() / (16 * step));
    for (to, from) in whole[..done].iter_mut().zip(from.chunks_exact(16 * step)) {
        *to = hold_sixteen(form, from);
    }
    let at = |p: usize| from.get(p).copied().unwrap_or(0.0);
    for (p, to) in (done * 16..).zip(whole[done..].as_flattened_mut().iter_mut().chain(rest)) {
        *to = hold(form, at(p * step), at(p * step + 1));
    }
}

const ZEROS: [f32; A_ROWS] = [0.0; A_ROWS];

/// Rows p and p + 1 of m; zeros after its end.
#[inline(always)]
fn two_rows(m: Mat<'_>, p: usize) -> (&[f32], &[f32]) {
    (m.row(p), if p + 1 < m.rows { m.row(p + 1) } else { &ZEROS[..m.cols] })
}

/// Packs b's columns as panels, one after the other, with rows of `width`; short ones are padded with zeros.
struct Pack<'a> {
    level: Level,
    form: Form,
    to: &'a mut [f32],
    b: Mat<'a>,
    width: usize,
}

impl Kernel for Pack<'_> {
    #[inline(always)]
    fn run<M: MulAdd>(self) {
        let Pack { level, form, to, b, width } = self;
        let steps = b.rows.div_ceil(form.step());
        if b.col_stride == 1 {
            // row by row, so that memory is read as it lies
            for i in 0..steps {
                let (even, odd) = two_rows(b, i * form.step());
                let ((even, even_rest), (odd, odd_rest)) = (even.as_chunks::<16>(), odd.as_chunks::<16>());
                let panels = even.chunks(width / 16).zip(odd.chunks(width / 16));
                for (q, (even, odd)) in panels.enumerate() {
                    let row = to[(q * steps + i) * width..][..width].as_chunks_mut().0;
                    for ((to, even), odd) in row.iter_mut().zip(even).zip(odd) {
                        *to = hold_beside(form, even, odd);
                    }
                }
                if !b.cols.is_multiple_of(width) {
                    let row = &mut to[(b.cols / width * steps + i) * width..][..width];
                    let (_, rest) = row.split_at_mut(b.cols % width / 16 * 16);
                    rest.fill(0.0);
                    hold_rows(form, &mut rest[..even_rest.len()], even_rest, odd_rest);
                }
            }
            return;
        }
        for (q, to) in to.chunks_exact_mut(steps * width).enumerate().take(b.cols.div_ceil(width)) {
            let b = b.cols(q * width..((q + 1) * width).min(b.cols));
            if b.row_stride == 1 && b.cols == width {
                pack_along(level, form, to, b, width);
                continue;
            }
            for (i, row) in to.chunks_exact_mut(width).enumerate() {
                row.fill(0.0);
                for (j, to) in row.iter_mut().enumerate().take(b.cols) {
                    let odd = if i * form.step() + 1 < b.rows { b.at(i * form.step() + 1, j) } else { 0.0 };
                    *to = hold(form, b.at(i * form.step(), j), odd);
                }
            }
        }
    }
}

/// Packs a panel of columns whose elements are neighbours in memory: sixteen of them at once.
#[inline(always)]
fn pack_along(level: Level, form: Form, to: &mut [f32], b: Mat, width: usize) {
    let step = form.step();
    for j in (0..width).step_by(16) {
        for p in (0..b.rows).step_by(16 * step) {
            let n = (b.rows - p).min(16 * step);
            let to = &mut to[p / step * width + j..];
            if form == Form::Exact && n == 16 {
                tile::transpose(level, &b.data[j * b.col_stride + p..], b.col_stride, to, width);
                continue;
            }
            let mut block = [[0f32; 16]; 16];
            for (i, block) in block.iter_mut().enumerate() {
                let column = &b.data[(j + i) * b.col_stride + p..][..n];
                if n == 16 * step {
                    *block = hold_sixteen(form, column);
                } else {
                    hold_along(form, &mut block[..n.div_ceil(step)], column);
                }
            }
            if n == 16 * step {
                tile::transpose(level, block.as_flattened(), 16, to, width);
            } else {
                for (q, to) in to.chunks_mut(width).enumerate().take(n.div_ceil(step)) {
                    (0..16).for_each(|i| to[i] = block[i][q]);
                }
            }
        }
    }
}

/// Packs some rows of a, in the order of its memory; or, for narrow tiles, as they read it.
struct Take<'a, 'b> {
    level: Level,
    form: Form,
    to: &'b mut [f32],
    a: Mat<'a>,
}

impl<'b> Kernel<Tiles<'b>> for Take<'_, 'b> {
    #[inline(always)]
    fn run<M: MulAdd>(self) -> Tiles<'b> {
        let Take { level, form, to, a } = self;
        let (rows, cols) = (a.rows, a.cols.div_ceil(form.step()));
        let by_steps = a.row_stride == 1 && a.col_stride != 1;
        if by_steps && width(level) == 16 && tile::height(level, rows) == tile::TALL {
            let to = &mut to[..rows.next_multiple_of(tile::TALL) * cols];
            take_tiles(form, to, a.t(), cols);
            return Tiles::packed(to, rows, cols, tile::TALL);
        }
        let to = &mut to[..rows * cols];
        if by_steps {
            for (i, to) in to.chunks_exact_mut(rows).enumerate() {
                let (even, odd) = two_rows(a.t(), i * form.step());
                hold_rows(form, to, even, odd);
            }
            return Mat::new(to, rows).t().into();
        }
        for (i, to) in to.chunks_exact_mut(cols).enumerate() {
            if a.col_stride == 1 {
                hold_along(form, to, a.row(i));
                continue;
            }
            for (p, to) in to.iter_mut().enumerate() {
                let at = |p: usize| if p < a.cols { a.at(i, p) } else { 0.0 };
                *to = hold(form, at(p * form.step()), at(p * form.step() + 1));
            }
        }
        Mat::new(to, cols).into()
    }
}

/// Packs steps of k, whose rows are neighbours, into tiles: eight steps at a time, so that what is written lies
/// together.
#[inline(always)]
fn take_tiles(form: Form, to: &mut [f32], k: Mat, cols: usize) {
    const TALL: usize = tile::TALL;
    let mut held = [[0.0; A_ROWS]; 8];
    for from in (0..cols).step_by(8) {
        let steps = from..(from + 8).min(cols);
        for (p, held) in steps.clone().zip(&mut held) {
            let (even, odd) = two_rows(k, p * form.step());
            hold_rows(form, &mut held[..k.cols], even, odd);
        }
        for (i, tile) in to.chunks_mut(TALL * cols).enumerate() {
            for (p, held) in steps.clone().zip(&held) {
                tile[p * TALL..][..TALL].copy_from_slice(&held[i * TALL..][..TALL]);
            }
        }
    }
}

/// Widens bf16 pairs to f32, for a level without their dot product: rows `2 i` and `2 i + 1` from row `i`.
struct Unpack<'a> {
    to: &'a mut [f32],
    pairs: &'a [f32],
    width: usize,
}

impl Kernel for Unpack<'_> {
    #[inline(always)]
    fn run<M: MulAdd>(self) {
        for (to, pairs) in self.to.chunks_exact_mut(2 * self.width).zip(self.pairs.chunks_exact(self.width)) {
            let (even, odd) = to.split_at_mut(self.width);
            let sixteen = even.as_chunks_mut::<16>().0.iter_mut().zip(odd.as_chunks_mut::<16>().0);
            for ((even, odd), pairs) in sixteen.zip(pairs.as_chunks::<16>().0) {
                let (bits, mut high, mut low) = (pairs.map(f32::to_bits), [0f32; 16], [0f32; 16]);
                for i in 0..16 {
                    high[i] = f32::from_bits(bits[i] & 0xffff_0000);
                    low[i] = f32::from_bits(bits[i] << 16);
                }
                (*even, *odd) = (high, low);
            }
        }
    }
}

/// Up to this many rows, widening a panel of pairs for each row is less work than unpacking it once for all.
const WIDENED_ROWS: usize = 4;

/// A right operand, all of it packed: panel after panel, each k x width, the last padded with zeros. In bf16 it
/// takes half the memory, at every level.
pub struct Packed {
    /// The panels.
    pub(crate) data: Arena,
    /// Elements of a panel.
    pub(crate) panel: usize,
    rows: usize,
    cols: usize,
    width: usize,
    pairs: bool,
    /// The layout of its codes, if it is quantised.
    codes: Option<Codes>,
}

/// Packs panel number `i` of b.
pub fn pack_panel(level: Level, precision: Precision, to: &mut [f32], b: Mat, i: usize) {
    let (width, form) = (width(level), if precision == Precision::Bf16 { Form::Pairs } else { Form::Exact });
    let b = b.cols(i * width..((i + 1) * width).min(b.cols));
    level.run(Pack { level, form, to, b, width });
}

impl Packed {
    /// Memory for a (rows, cols) matrix, all zero.
    ///
    /// # Errors
    /// If the system refuses the memory.
    pub fn room(level: Level, precision: Precision, (rows, cols): (usize, usize)) -> Result<Packed, Refused> {
        let (width, pairs) = (width(level), precision == Precision::Bf16);
        let panel = width * rows.div_ceil(1 + usize::from(pairs)).max(1);
        let data = Arena::reserve(cols.div_ceil(width) * panel)?;
        Ok(Packed { data, panel, rows, cols, width, pairs, codes: None })
    }
    /// Memory for a (rows, cols) matrix of blocks, all zero; blocks lie along its columns.
    ///
    /// # Errors
    /// If the system refuses the memory.
    pub fn room_of_codes(level: Level, codes: Codes, (rows, cols): (usize, usize)) -> Result<Packed, Refused> {
        let width = width(level);
        let panel = codes.panel(rows, width);
        let data = Arena::reserve(cols.div_ceil(width) * panel)?;
        Ok(Packed { data, panel, rows, cols, width, pairs: false, codes: Some(codes) })
    }
    /// Packs b.
    ///
    /// # Errors
    /// If the system refuses the memory.
    pub fn new(level: Level, precision: Precision, b: Mat) -> Result<Packed, Refused> {
        let mut packed = Packed::room(level, precision, (b.rows, b.cols))?;
        for (i, to) in packed.data.chunks_exact_mut(packed.panel).enumerate() {
            pack_panel(level, precision, to, b, i);
        }
        Ok(packed)
    }
    /// Lays blocks: of each column its type and the bytes of `rows` values.
    ///
    /// # Errors
    /// If the system refuses the memory.
    pub fn of_codes(level: Level, codes: Codes, rows: usize, columns: &[(Quant, &[u8])]) -> Result<Packed, Refused> {
        let mut packed = Packed::room_of_codes(level, codes, (rows, columns.len()))?;
        let (width, panel) = (packed.width, packed.panel);
        for (to, columns) in packed.data.chunks_exact_mut(panel).zip(columns.chunks(width)) {
            codes.lay(bytemuck::cast_slice_mut(to), width, columns);
        }
        Ok(packed)
    }
    /// Rows: k.
    pub fn rows(&self) -> usize {
        self.rows
    }
    /// Columns of the product.
    pub fn cols(&self) -> usize {
        self.cols
    }
    /// How many bytes it takes.
    pub fn bytes(&self) -> usize {
        4 * self.data.len()
    }
    /// The layout of its codes, if it is quantised.
    pub fn codes(&self) -> Option<Codes> {
        self.codes
    }
    /// The element at (p, j), as products use it: rounded, in bf16.
    pub fn at(&self, p: usize, j: usize) -> f32 {
        if let Some(codes) = self.codes {
            return codes.at(self.blocks(j), self.width, p, j % self.width);
        }
        let step = 1 + usize::from(self.pairs);
        let panel = &self.data[j / self.width * self.width * self.rows.div_ceil(step)..];
        let bits = panel[p / step * self.width + j % self.width].to_bits();
        f32::from_bits(match (self.pairs, p % 2) {
            (false, _) => bits,
            (true, 0) => bits & 0xffff_0000,
            (true, _) => bits << 16,
        })
    }
    /// Widens rows of all columns of blocks, transposed: element (j, p) is at (p, j) here. `to` has rows of `width` and
    /// room for sixteen more.
    fn turn<'a>(&self, level: Level, to: &'a mut [f32], (js, ps): (Range<usize>, Range<usize>)) -> &'a [f32] {
        let (codes, stride) = (self.codes.expect("codes"), self.width);
        let (panels, panel) = (bytemuck::cast_slice(&self.data), (4 * self.panel, self.width));
        let to = &mut to[..js.len().next_multiple_of(16) * stride];
        level.run(WidenTurned { level, to: &mut *to, stride, panels, codes, ks: ps, panel, columns: js });
        to
    }
    /// The panel of blocks that has column `j`.
    fn blocks(&self, j: usize) -> &[u8] {
        bytemuck::cast_slice(&self.data[j / self.width * self.panel..][..self.panel])
    }
    /// Rows `ks` of the panel that begins at column `from`; `ks` begins at an even row.
    fn panel(&self, from: usize, ks: Range<usize>) -> &[f32] {
        let step = 1 + usize::from(self.pairs);
        let panel = &self.data[from * self.rows.div_ceil(step)..];
        &panel[ks.start / step * self.width..ks.end.div_ceil(step) * self.width]
    }
}

/// The right operand of a product.
#[derive(Clone, Copy)]
enum Side<'a> {
    Plain(Mat<'a>),
    /// From this column on.
    Packed(&'a Packed, usize),
    /// From this column on: pairs for a few rows, at a level without their dot product. They are widened while they are
    /// loaded.
    Pairs(&'a Packed, usize),
    /// Quantised weights, transposed: their rows are the columns of the product, from this row on.
    Turned(&'a Packed, usize),
}

/// A product: its right operand, and how it is computed.
struct Product<'a> {
    level: Level,
    /// How the operands of the inner loop are stored.
    form: Form,
    b: Side<'a>,
    start: Start<'a>,
    sums: Sums,
    /// Steps of k of a block of b.
    k_block: usize,
    /// How many columns are computed from a block of b before the next block.
    strip: usize,
    /// The steps of k, and the columns of c.
    shape: (usize, usize),
    /// Where only panels' rows up to the diagonal are computed: which column of the whole matrix is the first of c.
    diagonal: Option<usize>,
}

impl Product<'_> {
    /// The steps of block `k`.
    fn steps(&self, k: usize) -> Range<usize> {
        k * self.k_block..((k + 1) * self.k_block).min(self.shape.0)
    }

    /// Adds block `k` of b's rows to strip `j` of c, for the rows `block` of c, of which `a` has the steps of this
    /// block of k. `room` is for packed panels.
    fn add(&self, c: &mut MatMut, block: &Range<usize>, a: Tiles, (k, j): (usize, usize), room: &mut [f32]) {
        let (level, form, width) = (self.level, self.form, width(self.level));
        let ks = self.steps(k);
        let steps = ks.len().div_ceil(form.step());
        let strip = j * self.strip..((j + 1) * self.strip).min(self.shape.1);
        if let Side::Plain(b) = self.b {
            level.run(Pack { level, form, to: &mut *room, b: b.rows(ks.clone()).cols(strip.clone()), width });
        }
        if let Side::Pairs(b, first) = self.b {
            let pairs = (&b.data[(first + strip.start) / width * b.panel + ks.start / 2 * width..], b.panel);
            let start = if k > 0 { Start::Own } else { self.start.cols(strip.clone()) };
            for (row, a) in block.clone().zip(a.rows()) {
                let c = c.part(row..row + 1, strip.clone());
                tile::widen(level, c.into_whole(), a, pairs, (start, self.sums.block(1)));
            }
            return;
        }
        for from in strip.clone().step_by(width) {
            let part = from..(from + width).min(strip.end);
            let start = if k > 0 { Start::Own } else { self.start.cols(part.clone()) };
            let end = self.diagonal.map_or(block.end, |first| block.end.min(first + part.end));
            if end <= block.start {
                continue;
            }
            let (block, a) = (block.start..end, a.top(end - block.start));
            let panel = match self.b {
                Side::Plain(_) => &room[(from - strip.start) * steps..][..width * steps],
                Side::Packed(b, first) | Side::Pairs(b, first) => self.panel(b, first, ks.clone(), part.clone(), room),
                Side::Turned(b, first) => b.turn(level, room, (ks.clone(), first + part.start..first + part.end)),
            };
            let how = (start, self.sums.block(form.step()));
            tile::panel(level, form == Form::Pairs, c.part(block, part), a, panel, how);
        }
    }

    /// The steps `ks` of the columns `part` of b, as a packed panel: where it lies, or made in `room`.
    fn panel<'r>(
        &self,
        b: &'r Packed,
        first: usize,
        ks: Range<usize>,
        part: Range<usize>,
        room: &'r mut [f32],
    ) -> &'r [f32] {
        let (level, form, width) = (self.level, self.form, width(self.level));
        let column = first + part.start;
        if let Some(codes) = b.codes {
            let to = &mut room[..ks.len() * width];
            level.run(Widen { to: &mut *to, panel: b.blocks(column), codes, ks, width });
            to
        } else if b.pairs && form != Form::Pairs {
            let to = &mut room[..ks.len().next_multiple_of(2) * width];
            level.run(Unpack { to: &mut *to, pairs: b.panel(column, ks), width });
            to
        } else {
            b.panel(column, ks)
        }
    }
}

/// Whether tiles read f32s of a where they lie. Narrow tiles read all of a once for every sixteen columns, so that rows
/// far apart cost more than packing them (docs/decisions.md#avx2-packs-what-avx-512-reads-in-place).
fn reads_in_place(level: Level, a: Mat) -> bool {
    let any_length = width(level) > 16 || a.rows <= tile::FEW_ROWS;
    a.row_stride.max(a.col_stride) <= NEAR || a.col_stride == 1 && any_length
}

fn multiply(
    level: Level,
    form: Form,
    mut c: MatMut,
    a: Mat,
    b: Side,
    (start, sums, diagonal): (Start, Sums, Option<usize>),
    scratch: &mut [f32],
) {
    if let Side::Packed(b, from) = b
        && b.codes.is_some()
        && c.rows() <= dot::FEW_ROWS
        && a.col_stride == 1
    {
        return multiply_codes(level, c, Left::Exact(a), b, from, start);
    }
    let (panel, held) = scratch.split_at_mut(K_BLOCK * STRIP);
    let (rows, cols) = (c.rows(), c.cols());
    if a.cols == 0 {
        for i in 0..rows {
            match start {
                Start::Zero | Start::Past => c.row(i).fill(0.0),
                Start::Own => {}
                Start::Row(row) => c.row(i).copy_from_slice(row),
            }
        }
    }
    if rows == 0 || cols == 0 || a.cols == 0 {
        return;
    }
    let in_place = form == Form::Exact && reads_in_place(level, a);
    let few = rows <= tile::FEW_ROWS
        && (in_place || rows.next_multiple_of(tile::TALL) * a.cols.div_ceil(form.step()) <= held.len());
    // f32s that are made of codes are read at once: they stay in the nearest cache
    let made = matches!(b, Side::Packed(b, _) | Side::Turned(b, _) if b.codes.is_some());
    let k_block = if few && (made || rows > tile::AHEAD_ROWS) { FEW_K_BLOCK } else { K_BLOCK } * form.step();
    let b = match b {
        Side::Packed(b, from) if b.pairs && form == Form::Rounded && rows <= WIDENED_ROWS && a.col_stride == 1 => {
            Side::Pairs(b, from)
        }
        other => other,
    };
    let strip = match b {
        Side::Plain(_) | Side::Pairs(..) => STRIP,
        // they lie in memory, and are read one by one, from end to end
        Side::Packed(..) | Side::Turned(..) => width(level),
    };
    let (blocks, strips) = (a.cols.div_ceil(k_block), cols.div_ceil(strip));
    let start = if start == Start::Past && blocks > 1 { Start::Zero } else { start };
    let product = Product { level, form, b, start, sums, k_block, strip, shape: (a.cols, cols), diagonal };
    if in_place || few {
        // all of a is as the tiles read it: finish a strip of c before the next
        let ready = if in_place { a.into() } else { level.run(Take { level, form, to: held, a }) };
        for j in 0..strips {
            for k in 0..blocks {
                let ks = product.steps(k);
                let own = ready.steps(ks.start / form.step()..ks.end.div_ceil(form.step()));
                product.add(&mut c, &(0..rows), own, (k, j), panel);
            }
        }
    } else {
        // a is packed in pieces: use each for all strips before the next
        for i in (0..rows).step_by(A_ROWS) {
            let block = i..(i + A_ROWS).min(rows);
            for k in 0..blocks {
                let own =
                    level.run(Take { level, form, to: &mut *held, a: a.rows(block.clone()).cols(product.steps(k)) });
                for j in 0..strips {
                    product.add(&mut c, &block, own, (k, j), panel);
                }
            }
        }
    }
}

/// c = start + x b, for the columns of codes from `from` on, as many as c has; `from` is a multiple of [`width`].
///
/// # Panics
/// If b is not quantised.
#[track_caller]
pub fn multiply_codes(level: Level, mut c: MatMut, x: Left, b: &Packed, from: usize, start: Start) {
    let (rows, cols, codes) = (c.rows(), c.cols(), b.codes.expect("codes"));
    assert!(from.is_multiple_of(b.width) && from + cols <= b.cols && b.width == width(level) && x.k() == b.rows);
    for at in (0..cols).step_by(b.width) {
        let part = at..(at + b.width).min(cols);
        dot::panel(level, c.part(0..rows, part.clone()), x, codes, b.blocks(from + at), start.cols(part));
    }
}

/// c = a b, or c += a b, in f32, each element one chain. `scratch` holds [`SCRATCH`] floats.
#[track_caller]
pub fn gemm(level: Level, c: MatMut, a: Mat, b: Mat, add: bool, scratch: &mut [f32]) {
    product(level, Precision::F32, c, a, b, (add.into(), Sums::Chain), scratch);
}

/// c = start + a b, with operands of this precision.
#[track_caller]
pub fn product(
    level: Level,
    precision: Precision,
    c: MatMut,
    a: Mat,
    b: Mat,
    (start, sums): (Start, Sums),
    scratch: &mut [f32],
) {
    assert_eq!((c.rows(), c.cols(), a.cols), (a.rows, b.cols, b.rows), "shapes of a product");
    multiply(level, Form::new(level, precision), c, a, Side::Plain(b), (start, sums, None), scratch);
}

/// c = a b, for some columns, from `from` on, of a product that is symmetric: the rows below the diagonal may be left
/// out ([`mirror`]).
#[track_caller]
pub fn product_above(level: Level, precision: Precision, c: MatMut, a: Mat, b: Mat, from: usize, scratch: &mut [f32]) {
    assert_eq!((c.rows(), c.cols(), a.cols), (a.rows, b.cols, b.rows), "shapes of a product");
    let how = (Start::Zero, Sums::Blocks, Some(from));
    multiply(level, Form::new(level, precision), c, a, Side::Plain(b), how, scratch);
}

/// Copies what is above the diagonal of a square matrix below it.
pub fn mirror(level: Level, c: &mut [f32], side: usize) {
    for i in (0..side).step_by(16) {
        let (above, below) = c.split_at_mut(i * side);
        for j in (0..i).step_by(16) {
            let (from, to) = (&above[j * side + i..], &mut below[j..]);
            if i + 16 <= side {
                tile::transpose(level, from, side, to, side);
            } else {
                for (p, to) in to.chunks_mut(side).enumerate() {
                    (0..16).for_each(|q| to[q] = from[q * side + p]);
                }
            }
        }
    }
}

/// c = start + a b, for the columns of a packed b from `from` on, as many as c has; `from` is a multiple of [`width`].
#[track_caller]
pub fn gemm_packed<'a>(
    level: Level,
    c: MatMut,
    a: Mat,
    b: &Packed,
    from: usize,
    start: impl Into<Start<'a>>,
    scratch: &mut [f32],
) {
    assert_eq!((a.cols, b.width), (b.rows, width(level)), "shapes of a packed product");
    assert!(from.is_multiple_of(b.width) && from + c.cols() <= b.cols);
    let precision = if b.pairs { Precision::Bf16 } else { Precision::F32 };
    let how = (start.into(), Sums::Blocks, None);
    multiply(level, Form::new(level, precision), c, a, Side::Packed(b, from), how, scratch);
}

/// c = start + a b', for the rows of b, which are blocks, from `from` on, as many as c has columns; both are multiples
/// of sixteen.
///
/// # Panics
/// If b is not quantised.
#[track_caller]
pub fn gemm_turned(level: Level, c: MatMut, a: Mat, b: &Packed, from: usize, start: Start, scratch: &mut [f32]) {
    assert_eq!((a.cols, b.width), (b.cols, width(level)), "shapes of a turned product");
    assert!(b.codes.is_some() && from.is_multiple_of(16) && c.cols().is_multiple_of(16) && from + c.cols() <= b.rows);
    multiply(level, Form::Exact, c, a, Side::Turned(b, from), (start, Sums::Blocks, None), scratch);
}

#[cfg(test)]
mod tests {
    use super::super::dot::{RoundedLayout, RoundedRows};
    use super::super::sums::CHAIN;
    use super::*;

    fn values(n: usize, seed: u64) -> Vec<f32> {
        (0..n as u64).map(|i| crate::numeric::random::uniform(seed, 0, i) as f32 - 0.5).collect()
    }

    /// Half of a symmetric product, mirrored, has the bits of the whole, whatever the sides and however its columns are
    /// shared out.
    #[test]
    fn a_symmetric_product_is_computed_by_halves() {
        for level in Level::available() {
            for precision in [Precision::F32, Precision::Bf16] {
                for (side, k) in [(1, 3), (5, 64), (16, 1), (33, 70), (64, 128), (100, 65), (130, 300), (401, 40)] {
                    let mut scratch = vec![0.0; SCRATCH];
                    let x = values(side * k, 3);
                    for (a, b) in [(Mat::new(&x, k), Mat::new(&x, k).t()), (Mat::new(&x, side).t(), Mat::new(&x, side))]
                    {
                        let (mut whole, mut half) = (vec![0.0; side * side], vec![f32::NAN; side * side]);
                        let how = (Start::Zero, Sums::Blocks);
                        product(level, precision, MatMut::new(&mut whole, side), a, b, how, &mut scratch);
                        for from in (0..side).step_by(2 * STRIP) {
                            let part = from..(from + 2 * STRIP).min(side);
                            let mut c = MatMut::new(&mut half, side);
                            let c = c.part(0..side, part.clone());
                            product_above(level, precision, c, a, b.cols(part), from, &mut scratch);
                        }
                        mirror(level, &mut half, side);
                        assert!(half == whole, "{level} {precision} {side} {k}");
                    }
                }
            }
        }
    }

    /// Every shape, orientation and level: not only close, but exactly the chains that [`Sums`] promises.
    #[test]
    #[ignore = "gate"]
    fn an_element_is_its_chains_over_k() {
        let sizes = [1, 2, 5, 6, 7, 13, 16, 17, 33, 64, 65, 130];
        let mut scratch = vec![0.0; SCRATCH];
        let mut memory = [0; 2].map(|_| Arena::reserve(130 * 130).unwrap()); // aligned, as `Past` wants it
        for (i, m, n) in sizes.iter().enumerate().flat_map(|(i, &m)| sizes.map(|n| (i, m, n))) {
            let k = [1, 3, 16, 40, 257, 600][(i + n) % 6];
            let (a, b, start) = (values(m * k, 1), values(k * n, 2), values(m * n, 3));
            let (at, bt) = (transposed(&a, k), transposed(&b, n));
            let sides = [(Mat::new(&a, k), Mat::new(&b, n)), (Mat::new(&at, m).t(), Mat::new(&bt, k).t())];
            let starts = [Start::Zero, Start::Past, Start::Own, Start::Row(&start[..n])];
            for (from, precision) in starts.iter().flat_map(|&from| [(from, Precision::F32), (from, Precision::Bf16)]) {
                let near = |x: f32| if precision == Precision::F32 { x } else { nearest_bf16(x) };
                let want = |at: usize, sums: Sums| {
                    let (i, j) = (at / n, at % n);
                    let first = match from {
                        Start::Zero | Start::Past => 0.0,
                        Start::Own => start[at],
                        Start::Row(row) => row[j],
                    };
                    let chain = |acc, p| near(a[i * k + p]).mul_add(near(b[p * n + j]), acc);
                    let block = |at: usize| (at..(at + CHAIN).min(k)).fold(0.0, chain);
                    match sums {
                        Sums::Chain => (0..k).fold(first, chain),
                        Sums::Blocks => (0..k).step_by(CHAIN).map(block).fold(first, |c, sum| c + sum),
                    }
                };
                let wanted = [Sums::Chain, Sums::Blocks]
                    .map(|sums| (sums, (0..m * n).map(|at| want(at, sums)).collect::<Vec<_>>()));
                for (level, (a, b)) in
                    Level::available().into_iter().flat_map(|level| sides.map(|sides| (level, sides)))
                {
                    let what = format!("{level} {precision} {m}x{n}x{k}");
                    let [c, d] = memory.each_mut().map(|memory| &mut memory[..m * n]);
                    for (sums, want) in &wanted {
                        c.copy_from_slice(&start);
                        product(level, precision, MatMut::new(c, n), a, b, (from, *sums), &mut scratch);
                        let other = c.iter().zip(want).position(|(c, want)| c.to_bits() != want.to_bits());
                        assert_eq!(other, None, "{sums:?} {what}");
                    }
                    let packed = Packed::new(level, precision, b).unwrap();
                    d.copy_from_slice(&start);
                    gemm_packed(level, MatMut::new(d, n), a, &packed, 0, from, &mut scratch);
                    assert!(c == d, "packed: {what}");
                    assert_eq!(packed.at(k - 1, n - 1), near(b.at(k - 1, n - 1)));
                }
            }
        }
    }

    /// Blocks of every type, and of two that lie alike: the bits of a product with their values, at every level.
    #[test]
    fn blocks_are_multiplied_as_their_values() {
        let all = Quant::ALL.iter().copied();
        let pairs = all.clone().flat_map(|a| all.clone().map(move |b| [a, b]));
        let mut scratch = vec![0.0; SCRATCH];
        for (case, quants) in pairs.enumerate() {
            let Some(codes) = Codes::of(quants) else {
                assert!(quants[0].sizes().0 != quants[1].sizes().0, "{quants:?}");
                continue;
            };
            let (m, n) = ([1, 2, 5, 6, 25][case % 5], [1, 15, 16, 65, 130][case % 4]);
            let k = quants[0].sizes().0 * [1, 2, 3, 9][case % 4];
            // blocks of random bytes whose values are numbers
            let mut drawn = 0;
            let mut block = |quant: Quant| loop {
                drawn += 1;
                let byte = |i: u64| crate::numeric::random::bits(3, drawn, i) as u8;
                let bytes: Vec<u8> = (0..quant.sizes().1 as u64).map(byte).collect();
                if quant.widen(&bytes).iter().all(|v| v.abs() < 1e9) {
                    break bytes;
                }
            };
            let mut rows = |quant: Quant, n: usize| -> Vec<u8> {
                (0..n * k / quant.sizes().0).flat_map(|_| block(quant)).collect()
            };
            let parts = [(quants[0], rows(quants[0], n / 2)), (quants[1], rows(quants[1], n - n / 2))];
            let wide: Vec<f32> = parts.iter().flat_map(|(quant, bytes)| quant.widen(bytes)).collect();
            let (a, b) = (values(m * k, 1), Mat::new(&wide, k).t());
            let mut rounded: Option<Vec<f32>> = None;
            for level in Level::available() {
                let columns = parts.iter().flat_map(|(q, bytes)| bytes.chunks(q.bytes(k)).map(move |row| (*q, row)));
                let packed = Packed::of_codes(level, codes, k, &columns.collect::<Vec<_>>()).unwrap();
                let [mut c, mut d] = [(); 2].map(|()| vec![0.0; m * n]);
                let how = (Start::Zero, Sums::Blocks);
                product(level, Precision::F32, MatMut::new(&mut c, n), Mat::new(&a, k), b, how, &mut scratch);
                gemm_packed(level, MatMut::new(&mut d, n), Mat::new(&a, k), &packed, 0, false, &mut scratch);
                let same = c.iter().zip(&d).position(|(c, d)| c.to_bits() != d.to_bits());
                assert_eq!(same, None, "{quants:?} at {level}: {m}x{n}x{k}");
                // the other way: products with its columns as rows
                let [mut e, mut f] = [(); 2].map(|()| values(m * k, 5));
                let (g, how) = (values(m * n, 4), (Start::Own, Sums::Blocks));
                let (g, b) = (Mat::new(&g, n), Mat::new(&wide, k));
                product(level, Precision::F32, MatMut::new(&mut e, k), g, b, how, &mut scratch);
                for from in (0..k).step_by(96) {
                    let mut f = MatMut::new(&mut f, k);
                    let c = f.part(0..m, from..(from + 96).min(k));
                    gemm_turned(level, c, g, &packed, from, Start::Own, &mut scratch);
                }
                let same = e.iter().zip(&f).position(|(e, f)| e.to_bits() != f.to_bits());
                assert_eq!(same, None, "{quants:?} turned at {level}: {m}x{k}x{n}");
                let at = |i: usize| packed.at(i % k, i / k).to_bits();
                assert_eq!((0..n * k).find(|i| at(*i) != wide[*i].to_bits()), None, "{quants:?} at {level}");

                // with rows that are rounded: each the same alone and among others, and at every level
                let bias = values(n, 7);
                let round = |rows: Range<usize>| {
                    let (a, how) = (Mat::new(&a, k).rows(rows.clone()), RoundedLayout { rows: rows.len(), k, codes });
                    let mut room = vec![0.0; how.elements()];
                    for (tile, to) in room.chunks_exact_mut(how.tile()).enumerate() {
                        level.run(dot::Round { to, x: a.rows(how.rows_of(tile)), how });
                    }
                    (room, how)
                };
                let (room, how) = round(0..m);
                let x = Left::Rounded(RoundedRows::new(&room, how));
                multiply_codes(level, MatMut::new(&mut c, n), x, &packed, 0, Start::Row(&bias));
                let first = rounded.get_or_insert_with(|| c.clone());
                let same = c.iter().zip(first).position(|(c, d)| c.to_bits() != d.to_bits());
                assert_eq!(same, None, "{quants:?} rounded at {level}: {m}x{n}x{k}");
                let (room, how) = round(m - 1..m);
                let last = Left::Rounded(RoundedRows::new(&room, how));
                multiply_codes(level, MatMut::new(&mut d[..n], n), last, &packed, 0, Start::Row(&bias));
                assert_eq!(c[(m - 1) * n..], d[..n], "{quants:?} at {level}: a row alone");
                // the same sum in f64 over what the rows are rounded to, by this test's own rounding
                for (at, c) in c.iter().enumerate() {
                    let (i, j) = (at / n, at % n);
                    let (mut want, mut size) = (f64::from(bias[j]), 0.0);
                    for (x, w) in a[i * k..][..k].chunks(32).zip(wide[j * k..][..k].chunks(32)) {
                        let most = f64::from(x.iter().fold(0f32, |m, x| m.max(x.abs())));
                        for (x, w) in x.iter().zip(w) {
                            let near = (f64::from(*x) * 127.0 / most).round_ties_even() * most / 127.0;
                            let far = (near - f64::from(*x)).abs();
                            assert!(far <= most / 253.9, "{near} of {x}");
                            (want, size) = (want + near * f64::from(*w), size + (near * f64::from(*w)).abs());
                        }
                    }
                    let far = (want - f64::from(*c)).abs();
                    assert!(
                        far <= 1e-5 * size + 1e-6,
                        "{quants:?} at {level}, ({i},{j}): {c} for {want}, terms {size}"
                    );
                }
            }
        }
    }

    /// What a weight takes beside the f32 of it: eighths of a byte.
    #[test]
    fn blocks_take_little_more_than_in_their_files() {
        for (quants, bits) in [
            (vec![Quant::Q4_0], 4.5),
            (vec![Quant::Q4_1], 5.0),
            (vec![Quant::Q8_0, Quant::Q8_0], 8.5),
            (vec![Quant::Q4_K], 4.625),
            (vec![Quant::Q6_K], 8.5625),
            (vec![Quant::Q4_K, Quant::Q6_K], 9.125),
        ] {
            let packed = Packed::room_of_codes(Level::best(), Codes::of(quants.clone()).unwrap(), (512, 128)).unwrap();
            assert_eq!(packed.bytes() as f64 * 8.0 / (512.0 * 128.0), bits, "{quants:?}");
        }
    }

    /// By comparing the two bf16 around x, not by bits.
    fn nearest_bf16(x: f32) -> f32 {
        let below = f32::from_bits(x.to_bits() & 0xffff_0000);
        let above = f32::from_bits((x.to_bits() & 0xffff_0000).wrapping_add(0x1_0000));
        let (down, up) = ((x - below).abs(), (above - x).abs());
        let even = (below.to_bits() >> 16).is_multiple_of(2);
        if down < up || (down == up && even) { below } else { above }
    }

    #[test]
    fn rounding_keeps_what_is_no_number() {
        for x in [f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, 1.0, -3.5] {
            assert_eq!(f32::from_bits(round(x)).to_bits(), x.to_bits());
        }
        for bits in [0x7fff_ffff, 0xffff_ffff, 0x7f80_0001] {
            assert!(f32::from_bits(round(f32::from_bits(bits))).is_nan());
        }
        assert_eq!(f32::from_bits(round(f32::MAX)), f32::INFINITY);
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
        crate::kernels::linear::reference::forward(&mut want, &wa, &wb, None, k);
        for level in Level::available() {
            let mut c = vec![0.0; m * n];
            gemm(level, MatMut::new(&mut c, n), Mat::new(&a, k), Mat::new(&b, k).t(), false, &mut vec![0.0; SCRATCH]);
            let far = c.iter().zip(&want).map(|(c, w)| (f64::from(*c) - w).abs()).fold(0.0, f64::max);
            assert!(far < 8.0 * f64::from(f32::EPSILON) * (k as f64).sqrt() * 0.25, "{level}: {far:e}");
        }
    }
}

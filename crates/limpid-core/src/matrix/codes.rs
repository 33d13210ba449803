//! The layout of ggml's blocks for products: the same numbers in another order.
//!
//! A panel of `width` columns is a sequence of strips along k, each as long as a block. Within a strip, values of
//! neighbouring columns are neighbours: first all scales, then all minima, then the codes, one 32-bit word of each
//! column after the other. A word holds four steps of k, or eight if codes have four bits: the first four in the lower
//! halves of its bytes, the next four in the upper halves. So a vector of words times one word of the other operand is
//! one integer dot product for each column (`dot`). For a tile of many rows, a few strips at a time are widened to f32.
//!
//! Types of two, three and four bits have four-bit codes, the others eight-bit codes. Blocks of different types share
//! one layout, exactly, if they are equally long.

use super::tile;
use crate::numeric::blocks::{BlockParts, GROUP, LARGEST, Quant};
use crate::numeric::half::widen_f16;
use crate::numeric::simd::{Kernel, Level, MulAdd};
use std::ops::Range;

/// The longest block with a scale of its own and nothing else; longer ones have groups.
const SHORT: usize = 32;

/// The layout of a matrix of codes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Codes {
    /// Bits of a code: 4 or 8.
    pub(super) bits: usize,
    /// What is subtracted from a stored code, which is never negative.
    pub(super) offset: i32,
    /// Steps of k with one scale.
    pub(super) group: usize,
    /// Steps of k of a block.
    pub(super) strip: usize,
    /// Whether there are minima.
    pub(super) minima: bool,
}

impl Codes {
    /// A layout for all of these types; `None` if their blocks have different lengths.
    pub fn of(quants: impl IntoIterator<Item = Quant>) -> Option<Codes> {
        quants.into_iter().map(Codes::one).map(Some).reduce(|a, b| a?.with(b?))?
    }

    /// The layout for one type alone.
    pub fn one(quant: Quant) -> Codes {
        use Quant::*;
        let (bits, offset) = match quant {
            Q4_0 => (4, 8),
            Q4_1 | Q4_K | Q2_K => (4, 0),
            Q3_K => (4, 4),
            Q5_0 | Q5_1 | Q5_K | Q6_K | Q8_0 | IQ4_NL | IQ4_XS => (8, 128),
        };
        let group = if matches!(quant, Q2_K | Q3_K | Q6_K) { GROUP } else { SHORT };
        let minima = matches!(quant, Q4_1 | Q5_1 | Q2_K | Q4_K | Q5_K);
        Codes { bits, offset, group, strip: quant.sizes().0, minima }
    }

    fn with(self, other: Codes) -> Option<Codes> {
        let (bits, offset) =
            if (self.bits, self.offset) == (other.bits, other.offset) { (self.bits, self.offset) } else { (8, 128) };
        let (group, minima) = (self.group.min(other.group), self.minima || other.minima);
        (self.strip == other.strip).then_some(Codes { bits, offset, group, minima, ..self })
    }

    /// Rows of scales, or of scales and minima.
    fn kinds(self) -> usize {
        1 + usize::from(self.minima)
    }

    /// Bytes of a strip before its codes: two for each d, one for each scale of a group.
    pub(super) fn head(self, width: usize) -> usize {
        let scales = if self.strip > SHORT { self.strip / self.group } else { 0 };
        self.kinds() * width * (2 + scales)
    }

    /// Bytes of a strip.
    pub(super) fn bytes(self, width: usize) -> usize {
        self.head(width) + self.strip * width * self.bits / 8
    }

    /// Bytes of so many values, if all columns of all panels are used.
    pub fn bytes_of(self, values: usize) -> usize {
        values / self.strip * self.bytes(1)
    }

    /// Elements of 4 bytes of a panel.
    pub fn panel(self, rows: usize, width: usize) -> usize {
        rows / self.strip * self.bytes(width) / 4
    }

    /// Writes the blocks of some columns as the first columns of a panel, strip by strip, so that the strip stays in
    /// the cache.
    pub fn lay(self, panel: &mut [u8], width: usize, columns: &[(Quant, &[u8])]) {
        let mut said = [0; LARGEST];
        for (s, strip) in panel.chunks_exact_mut(self.bytes(width)).enumerate() {
            let (head, codes) = strip.split_at_mut(self.head(width));
            let (ds, scales) = head.split_at_mut(2 * self.kinds() * width);
            for (column, (quant, blocks)) in columns.iter().enumerate() {
                let mut block = BlockParts::default();
                quant.take(&blocks[s * quant.sizes().1..], &mut block);
                for (ds, d) in ds.chunks_exact_mut(2 * width).zip([block.d, block.dmin]) {
                    ds[2 * column..][..2].copy_from_slice(&d.to_le_bytes());
                }
                for (g, rows) in scales.chunks_exact_mut(self.kinds() * width).enumerate() {
                    let at = g * self.group / GROUP;
                    for (row, scale) in rows.chunks_exact_mut(width).zip([block.scales[at] as u8, block.mins[at]]) {
                        row[column] = scale;
                    }
                }
                said.iter_mut()
                    .zip(block.codes)
                    .for_each(|(to, code)| *to = (code as u8).wrapping_add(self.offset as u8));
                let (words, four) = (codes.as_chunks_mut::<4>().0, said.as_chunks::<4>().0);
                let words = words.chunks_exact_mut(width).map(|row| &mut row[column]);
                match self.bits {
                    8 => words.zip(four).for_each(|(word, codes)| *word = *codes),
                    _ => words.zip(four.as_chunks::<2>().0).for_each(|(word, [low, high])| {
                        *word = (u32::from_le_bytes(*low) | u32::from_le_bytes(*high) << 4).to_le_bytes();
                    }),
                }
            }
        }
    }

    /// Where in a strip the factors of a group of steps begin, one for each column: the scales' or the minima's. Short
    /// strips have no factors.
    #[inline(always)]
    pub(super) fn factors(self, width: usize, group: usize, min: bool) -> Option<usize> {
        let row = (2 + group) * self.kinds() + usize::from(min);
        (self.strip > SHORT).then_some(row * width)
    }

    /// The scale and the minimum of step `p` of k, for N columns from `column` on.
    #[inline(always)]
    pub(super) fn scales<const N: usize>(self, strip: &[u8], width: usize, p: usize, column: usize) -> [[f32; N]; 2] {
        let mut all = [[0.0; N]; 2];
        for (kind, to) in all.iter_mut().enumerate().take(self.kinds()) {
            let ds = &strip[2 * (kind * width + column)..][..2 * N];
            for (to, d) in to.iter_mut().zip(ds.as_chunks::<2>().0) {
                *to = widen_f16(u16::from_le_bytes(*d));
            }
            if let Some(row) = self.factors(width, p / self.group, kind == 1) {
                let scales = &strip[row + column..][..N];
                // minima are never negative, and scales are signed
                for (to, scale) in to.iter_mut().zip(scales) {
                    *to *= if kind == 0 { f32::from(*scale as i8) } else { f32::from(*scale) };
                }
            }
        }
        all
    }

    /// The integers that the codes of step `p` stand for, for N columns from `column` on.
    #[inline(always)]
    pub(super) fn row<const N: usize>(self, strip: &[u8], width: usize, p: usize, column: usize) -> [i32; N] {
        let each = 32 / self.bits;
        let (row, step) = (p / each, p % each);
        let words = &strip[self.head(width) + 4 * (row * width + column)..][..4 * N];
        let (shift, mask) = (step % 4 * 8 + step / 4 * 4, (1 << self.bits) - 1);
        let mut codes = [0; N];
        for (code, word) in codes.iter_mut().zip(words.as_chunks::<4>().0) {
            *code = (u32::from_le_bytes(*word) >> shift & mask) as i32 - self.offset;
        }
        codes
    }

    /// The element at (p, column) of a panel.
    pub fn at(self, panel: &[u8], width: usize, p: usize, column: usize) -> f32 {
        let strip = &panel[p / self.strip * self.bytes(width)..];
        let p = p % self.strip;
        let [[scale], [min]] = self.scales(strip, width, p, column);
        let [code] = self.row(strip, width, p, column);
        scale * code as f32 - min
    }
}

/// Makes f32s of the steps `ks` of a panel, which are whole groups.
pub(super) struct Widen<'a> {
    /// (`ks`, width)
    pub(super) to: &'a mut [f32],
    /// A whole panel.
    pub(super) panel: &'a [u8],
    /// How it lies.
    pub(super) codes: Codes,
    /// Which steps of k.
    pub(super) ks: Range<usize>,
    /// Columns of the panel, a multiple of sixteen.
    pub(super) width: usize,
}

impl Kernel for Widen<'_> {
    #[inline(always)]
    fn run<M: MulAdd>(self) {
        let Widen { to, panel, codes, ks, width } = self;
        for (p, to) in ks.step_by(codes.group).zip(to.chunks_exact_mut(codes.group * width)) {
            let strip = &panel[p / codes.strip * codes.bytes(width)..][..codes.bytes(width)];
            let p = p % codes.strip;
            for column in (0..width).step_by(16) {
                let [scale, min] = codes.scales::<16>(strip, width, p, column);
                for (q, to) in to.chunks_exact_mut(width).enumerate() {
                    let (code, mut values) = (codes.row::<16>(strip, width, p + q, column), [0.0; 16]);
                    for i in 0..16 {
                        values[i] = scale[i] * code[i] as f32 - min[i];
                    }
                    to[column..][..16].copy_from_slice(&values);
                }
            }
        }
    }
}

/// Makes f32s of some columns of some panels, turned: rows of f32s are columns of the codes.
pub(super) struct WidenTurned<'a> {
    /// The instruction set.
    pub(super) level: Level,
    /// (columns, `stride`)
    pub(super) to: &'a mut [f32],
    /// The distance between rows of `to`.
    pub(super) stride: usize,
    /// Whole panels, one after the other.
    pub(super) panels: &'a [u8],
    /// How they lie.
    pub(super) codes: Codes,
    /// Steps of k of each panel; from and to a multiple of sixteen.
    pub(super) ks: Range<usize>,
    /// Bytes of a panel, and its columns: a multiple of sixteen.
    pub(super) panel: (usize, usize),
    /// Which columns; from a multiple of sixteen.
    pub(super) columns: Range<usize>,
}

impl Kernel for WidenTurned<'_> {
    #[inline(always)]
    fn run<M: MulAdd>(self) {
        let WidenTurned { level, to, stride, panels, codes, ks, panel: (bytes, width), columns } = self;
        for (from, to) in columns.step_by(16).zip(to.chunks_mut(16 * stride)) {
            let (panel, column) = (&panels[from / width * bytes..][..bytes], from % width);
            // sixteen steps have one scale
            for (i, p) in ks.clone().step_by(GROUP).enumerate() {
                let strip = &panel[p / codes.strip * codes.bytes(width)..][..codes.bytes(width)];
                let p = p % codes.strip;
                let [scale, min] = codes.scales::<16>(strip, width, p, column);
                let mut block = [[0.0; 16]; 16];
                for (q, values) in block.iter_mut().enumerate() {
                    let code = codes.row::<16>(strip, width, p + q, column);
                    for c in 0..16 {
                        values[c] = scale[c] * code[c] as f32 - min[c];
                    }
                }
                tile::transpose(level, block.as_flattened(), 16, &mut to[16 * i..], stride);
            }
        }
    }
}

//! Weights of ggml's blocks as a product reads them: the same numbers in another order. A panel of `width` columns is a row of strips along k, a
//! strip is as long as a block, and in it columns are neighbours: their scales, their minima, then their codes step by step of k. A tile gets
//! f32s that are made of a few strips at a time, so products have the bits that the same weights as f32 give.
//!
//! Types of two, three and four bits have codes of four, the others of eight. Blocks of different types are laid alike where they
//! are equally long, each exactly.

use super::super::blocks::{BlockParts, GROUP, Quant};
use super::super::element::widen_f16;
use super::super::simd::{Kernel, MulAdd};
use std::ops::Range;

/// The longest block with a scale of its own and nothing else; longer ones have groups.
const SHORT: usize = 32;

/// How the codes of a matrix lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Codes {
    /// Of a code: 4 or 8.
    bits: usize,
    /// What a code of four bits means less than it says.
    offset: i8,
    /// Steps of k with one scale.
    group: usize,
    /// Steps of k of a block.
    strip: usize,
    /// Whether there are minima.
    minima: bool,
}

impl Codes {
    /// A form for all of these types; none where their blocks are of different lengths.
    pub fn of(quants: impl IntoIterator<Item = Quant>) -> Option<Codes> {
        quants.into_iter().map(Codes::one).map(Some).reduce(|a, b| a?.with(b?))?
    }

    fn one(quant: Quant) -> Codes {
        use Quant::*;
        let (bits, offset) = match quant {
            Q4_0 => (4, 8),
            Q4_1 | Q4_K | Q2_K => (4, 0),
            Q3_K => (4, 4),
            Q5_0 | Q5_1 | Q5_K | Q6_K | Q8_0 | IQ4_NL | IQ4_XS => (8, 0),
        };
        let group = if matches!(quant, Q2_K | Q3_K | Q6_K) { GROUP } else { SHORT };
        let minima = matches!(quant, Q4_1 | Q5_1 | Q2_K | Q4_K | Q5_K);
        Codes { bits, offset, group, strip: quant.sizes().0, minima }
    }

    fn with(self, other: Codes) -> Option<Codes> {
        let (bits, offset) =
            if (self.bits, self.offset) == (other.bits, other.offset) { (self.bits, self.offset) } else { (8, 0) };
        let (group, minima) = (self.group.min(other.group), self.minima || other.minima);
        (self.strip == other.strip).then_some(Codes { bits, offset, group, minima, ..self })
    }

    /// Rows of scales, or of scales and minima.
    fn kinds(self) -> usize {
        1 + usize::from(self.minima)
    }

    /// Bytes of a strip before its codes: two for each d, one for each scale of a group.
    fn head(self, width: usize) -> usize {
        let scales = if self.strip > SHORT { self.strip / self.group } else { 0 };
        self.kinds() * width * (2 + scales)
    }

    fn bytes(self, width: usize) -> usize {
        self.head(width) + self.strip * width * self.bits / 8
    }

    /// Elements of 4 bytes of a panel.
    pub fn panel(self, rows: usize, width: usize) -> usize {
        rows / self.strip * self.bytes(width) / 4
    }

    /// Lays the blocks of a column: number `column` of its panel.
    pub fn lay(self, panel: &mut [u8], width: usize, column: usize, quant: Quant, blocks: &[u8]) {
        let mut block = BlockParts::default();
        for (strip, bytes) in panel.chunks_exact_mut(self.bytes(width)).zip(blocks.chunks_exact(quant.sizes().1)) {
            quant.take(bytes, &mut block);
            let (head, codes) = strip.split_at_mut(self.head(width));
            let (ds, scales) = head.split_at_mut(2 * self.kinds() * width);
            for (ds, d) in ds.chunks_exact_mut(2 * width).zip([block.d, block.dmin]) {
                ds[2 * column..][..2].copy_from_slice(&d.to_le_bytes());
            }
            for (g, rows) in scales.chunks_exact_mut(self.kinds() * width).enumerate() {
                let at = g * self.group / GROUP;
                for (row, scale) in rows.chunks_exact_mut(width).zip([block.scales[at] as u8, block.mins[at]]) {
                    row[column] = scale;
                }
            }
            if self.bits == 4 {
                let code = |code: i8| (code + self.offset) as u8;
                for (row, [even, odd]) in codes.chunks_exact_mut(width).zip(block.codes.as_chunks::<2>().0) {
                    row[column] = code(*even) | code(*odd) << 4;
                }
            } else {
                codes.chunks_exact_mut(width).zip(block.codes).for_each(|(row, code)| row[column] = code as u8);
            }
        }
    }

    /// The scale and the minimum of step `p` of k, for `to` as many columns from `column` on.
    #[inline(always)]
    fn scales<const N: usize>(self, strip: &[u8], width: usize, p: usize, column: usize) -> [[f32; N]; 2] {
        let mut all = [[0.0; N]; 2];
        for (kind, to) in all.iter_mut().enumerate().take(self.kinds()) {
            let ds = &strip[2 * (kind * width + column)..][..2 * N];
            for (to, d) in to.iter_mut().zip(ds.as_chunks::<2>().0) {
                *to = widen_f16(u16::from_le_bytes(*d));
            }
            if self.strip > SHORT {
                let row = 2 * self.kinds() + p / self.group * self.kinds() + kind;
                let scales = &strip[row * width + column..][..N];
                // minima are never negative, and scales are signed
                for (to, scale) in to.iter_mut().zip(scales) {
                    *to *= if kind == 0 { f32::from(*scale as i8) } else { f32::from(*scale) };
                }
            }
        }
        all
    }

    /// The element at (p, column) of a panel.
    pub fn at(self, panel: &[u8], width: usize, p: usize, column: usize) -> f32 {
        let strip = &panel[p / self.strip * self.bytes(width)..];
        let p = p % self.strip;
        let [[scale], [min]] = self.scales(strip, width, p, column);
        let code = strip[self.head(width) + p * self.bits / 8 * width + column];
        let code = match (self.bits, p % 2) {
            (4, 0) => (code & 15) as i8 - self.offset,
            (4, _) => (code >> 4) as i8 - self.offset,
            _ => code as i8,
        };
        scale * f32::from(code) - min
    }
}

/// Makes f32s of the steps `ks` of a panel, which are whole groups.
pub struct Widen<'a> {
    /// (`ks`, width)
    pub to: &'a mut [f32],
    /// A whole panel.
    pub panel: &'a [u8],
    /// How it lies.
    pub codes: Codes,
    /// Which steps of k.
    pub ks: Range<usize>,
    /// Columns of the panel, a multiple of sixteen.
    pub width: usize,
}

impl Kernel for Widen<'_> {
    type Output = ();
    #[inline(always)]
    fn run<M: MulAdd>(self) {
        let Widen { to, panel, codes, ks, width } = self;
        let (bytes, head, offset) = (codes.bytes(width), codes.head(width), codes.offset);
        for (p, to) in ks.step_by(codes.group).zip(to.chunks_exact_mut(codes.group * width)) {
            let strip = &panel[p / codes.strip * bytes..][..bytes];
            let p = p % codes.strip;
            let rows = &strip[head + p * codes.bits / 8 * width..][..codes.group * codes.bits / 8 * width];
            for column in (0..width).step_by(16) {
                let [scale, min] = codes.scales::<16>(strip, width, p, column);
                if codes.bits == 4 {
                    for (to, row) in to.chunks_exact_mut(2 * width).zip(rows.chunks_exact(width)) {
                        let row: [u8; 16] = sixteen(&row[column..]);
                        let (mut even, mut odd) = ([0.0; 16], [0.0; 16]);
                        for i in 0..16 {
                            even[i] = scale[i] * f32::from((row[i] & 15) as i8 - offset) - min[i];
                            odd[i] = scale[i] * f32::from((row[i] >> 4) as i8 - offset) - min[i];
                        }
                        to[column..][..16].copy_from_slice(&even);
                        to[width + column..][..16].copy_from_slice(&odd);
                    }
                } else {
                    for (to, row) in to.chunks_exact_mut(width).zip(rows.chunks_exact(width)) {
                        let row: [u8; 16] = sixteen(&row[column..]);
                        let mut values = [0.0; 16];
                        for i in 0..16 {
                            values[i] = scale[i] * f32::from(row[i] as i8) - min[i];
                        }
                        to[column..][..16].copy_from_slice(&values);
                    }
                }
            }
        }
    }
}

/// The first sixteen.
#[inline(always)]
fn sixteen(bytes: &[u8]) -> [u8; 16] {
    *bytes.first_chunk().expect("panels are multiples of sixteen wide")
}

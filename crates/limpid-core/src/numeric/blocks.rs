//! ggml's blocks: weights of two to eight bits that share scales and, in some types, minima. A block of any type can be
//! taken apart into [`BlockParts`], which give its exact values or another layout of the same numbers. A type is its
//! name, its sizes, and one function that takes a block apart. (The values have the same bits as those of ggml's
//! `dequantize_row_*` and of `gguf.quants.dequantize`.)

use super::half::widen_f16;
use std::fmt;

/// How many values share a scale, in every type; in some types, neighbouring groups have the same scale.
pub const GROUP: usize = 16;

/// Values of the largest block.
pub const LARGEST: usize = 256;

/// A block taken apart. Value i is `(d * scales[g]) * codes[i] - dmin * mins[g]`, where g is `i / GROUP`: products of
/// 11 bits by 8 by 8 are exact in f32, so the difference is all that is rounded.
pub struct BlockParts {
    /// The scale of scales, as an f16's bits.
    pub d: u16,
    /// The scale of minima, as an f16's bits; 0 in types without minima.
    pub dmin: u16,
    /// A scale of every group.
    pub scales: [i8; LARGEST / GROUP],
    /// A minimum of every group.
    pub mins: [u8; LARGEST / GROUP],
    /// The values themselves.
    pub codes: [i8; LARGEST],
}

impl Default for BlockParts {
    fn default() -> BlockParts {
        BlockParts { d: 0, dmin: 0, scales: [1; 16], mins: [1; 16], codes: [0; LARGEST] }
    }
}

impl BlockParts {
    /// The first values, as many as `to` has.
    pub fn widen(&self, to: &mut [f32]) {
        let (d, dmin) = (widen_f16(self.d), widen_f16(self.dmin));
        for (g, (to, codes)) in to.chunks_mut(GROUP).zip(self.codes.as_chunks::<GROUP>().0).enumerate() {
            let (scale, min) = (d * f32::from(self.scales[g]), dmin * f32::from(self.mins[g]));
            to.iter_mut().zip(codes).for_each(|(to, code)| *to = scale * f32::from(*code) - min);
        }
    }

    /// Scales and minima of eight groups of 32, of six bits each, in twelve bytes.
    fn six_bits(&mut self, s: &[u8]) {
        for j in 0..8 {
            let (scale, min) = match j {
                0..4 => (s[j] & 63, s[j + 4] & 63),
                _ => (s[j + 4] & 15 | s[j - 4] >> 6 << 4, s[j + 4] >> 4 | s[j] >> 6 << 4),
            };
            self.scales[2 * j..][..2].fill(scale as i8);
            self.mins[2 * j..][..2].fill(min);
        }
    }

    /// Adds bits above those that are there, and `offset`.
    fn above(&mut self, high: &[i8], shift: u32, offset: i8) {
        self.codes.iter_mut().zip(high).for_each(|(code, high)| *code = (*code | *high << shift) + offset);
    }
}

/// Fields of so many bits: of each `CHUNK` bytes the lowest first, then those above.
fn fields<const BITS: usize, const CHUNK: usize>(from: &[u8], to: &mut [i8]) {
    for (from, to) in from.as_chunks::<CHUNK>().0.iter().zip(to.chunks_exact_mut(CHUNK * 8 / BITS)) {
        for (n, to) in to.as_chunks_mut::<CHUNK>().0.iter_mut().enumerate() {
            to.iter_mut().zip(from).for_each(|(to, q)| *to = (q >> (BITS * n) & ((1 << BITS) - 1)) as i8);
        }
    }
}

/// The two bytes at `at`.
fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// The sign bit of an f16: some types store a minimum to add, others one to subtract.
const SIGN: u16 = 1 << 15;

/// 32 values of four bits.
fn four(qs: &[u8], offset: i8, to: &mut BlockParts) {
    fields::<4, 16>(qs, &mut to.codes[..32]);
    to.codes[..32].iter_mut().for_each(|code| *code += offset);
}

/// 32 values of five bits: the fifth is bit i of a word.
fn five(qs: &[u8], word: &[u8], offset: i8, to: &mut BlockParts) {
    fields::<4, 16>(qs, &mut to.codes[..32]);
    let word = u32::from_le_bytes(word.try_into().expect("four bytes"));
    let high: [i8; 32] = std::array::from_fn(|i| (word >> i & 1) as i8);
    to.above(&high, 4, offset);
}

/// What the sixteen codes of `IQ4_NL` and `IQ4_XS` mean.
const UNEVEN: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

macro_rules! quants {
    ($($name:ident ($values:literal, $bytes:literal) |$b:ident, $to:ident| $take:block)*) => {
        /// A type of blocks.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
        #[allow(missing_docs, non_camel_case_types)] // each is ggml's type of that name
        pub enum Quant {
            $($name,)*
        }

        impl Quant {
            /// All of them.
            pub const ALL: &[Quant] = &[$(Quant::$name),*];

            /// Its name in ggml.
            pub fn name(self) -> &'static str {
                match self {
                    $(Quant::$name => stringify!($name),)*
                }
            }

            /// Values of a block, and its bytes.
            pub const fn sizes(self) -> (usize, usize) {
                match self {
                    $(Quant::$name => ($values, $bytes),)*
                }
            }

            /// Takes a block apart.
            ///
            /// # Panics
            /// If it has too few bytes.
            pub fn take(self, block: &[u8], to: &mut BlockParts) {
                match self {
                    $(Quant::$name => {
                        let ($b, $to) = (block, to);
                        $take
                    })*
                }
            }
        }
    };
}

quants! {
    Q4_0 (32, 18) |b, to| {
        to.d = half(b, 0);
        four(&b[2..], -8, to);
    }
    Q4_1 (32, 20) |b, to| {
        (to.d, to.dmin) = (half(b, 0), half(b, 2) ^ SIGN);
        four(&b[4..], 0, to);
    }
    Q5_0 (32, 22) |b, to| {
        to.d = half(b, 0);
        five(&b[6..], &b[2..6], -16, to);
    }
    Q5_1 (32, 24) |b, to| {
        (to.d, to.dmin) = (half(b, 0), half(b, 2) ^ SIGN);
        five(&b[8..], &b[4..8], 0, to);
    }
    Q8_0 (32, 34) |b, to| {
        to.d = half(b, 0);
        to.codes.iter_mut().zip(&b[2..34]).for_each(|(to, q)| *to = *q as i8);
    }
    IQ4_NL (32, 18) |b, to| {
        to.d = half(b, 0);
        four(&b[2..], 0, to);
        to.codes[..32].iter_mut().for_each(|code| *code = UNEVEN[*code as usize]);
    }
    Q2_K (256, 84) |b, to| {
        (to.d, to.dmin) = (half(b, 80), half(b, 82));
        for g in 0..16 {
            (to.scales[g], to.mins[g]) = ((b[g] & 15) as i8, b[g] >> 4);
        }
        fields::<2, 32>(&b[16..80], &mut to.codes);
    }
    Q3_K (256, 110) |b, to| {
        to.d = half(b, 108);
        let (low, high) = b[96..108].split_at(8);
        for g in 0..16 {
            let bits = low[g % 8] >> (4 * (g / 8)) & 15 | (high[g % 4] >> (2 * (g / 4)) & 3) << 4;
            to.scales[g] = bits as i8 - 32;
        }
        let mut third = [0; LARGEST];
        fields::<1, 32>(&b[..32], &mut third);
        fields::<2, 32>(&b[32..96], &mut to.codes);
        to.above(&third, 2, -4);
    }
    Q4_K (256, 144) |b, to| {
        (to.d, to.dmin) = (half(b, 0), half(b, 2));
        to.six_bits(&b[4..16]);
        fields::<4, 32>(&b[16..144], &mut to.codes);
    }
    Q5_K (256, 176) |b, to| {
        (to.d, to.dmin) = (half(b, 0), half(b, 2));
        to.six_bits(&b[4..16]);
        let mut fifth = [0; LARGEST];
        fields::<1, 32>(&b[16..48], &mut fifth);
        fields::<4, 32>(&b[48..176], &mut to.codes);
        to.above(&fifth, 4, 0);
    }
    Q6_K (256, 210) |b, to| {
        to.d = half(b, 208);
        to.scales.iter_mut().zip(&b[192..208]).for_each(|(to, s)| *to = *s as i8);
        let mut high = [0; LARGEST];
        fields::<2, 32>(&b[128..192], &mut high);
        fields::<4, 64>(&b[..128], &mut to.codes);
        to.above(&high, 4, -32);
    }
    IQ4_XS (256, 136) |b, to| {
        to.d = half(b, 0);
        let high = u16::from_le_bytes([b[2], b[3]]);
        for j in 0..8 {
            let bits = b[4 + j / 2] >> (4 * (j % 2)) & 15 | ((high >> (2 * j) & 3) as u8) << 4;
            to.scales[2 * j..][..2].fill(bits as i8 - 32);
        }
        fields::<4, 16>(&b[8..136], &mut to.codes);
        to.codes.iter_mut().for_each(|code| *code = UNEVEN[*code as usize]);
    }
}

impl Quant {
    /// The bytes of `n` values; of the last block, all.
    pub const fn bytes(self, n: usize) -> usize {
        let (values, bytes) = self.sizes();
        n.div_ceil(values) * bytes
    }

    /// The values of whole blocks.
    ///
    /// ```
    /// use limpid_core::numeric::blocks::Quant;
    /// let mut block = [0x99; 18]; // every code is 9, which is 1
    /// block[..2].copy_from_slice(&[0x00, 0x38]); // a half, as f16
    /// assert_eq!(Quant::Q4_0.widen(&block), [0.5; 32]);
    /// ```
    pub fn widen(self, bytes: &[u8]) -> Vec<f32> {
        let (values, size) = self.sizes();
        let mut wide = vec![0.0; bytes.len() / size * values];
        let mut block = BlockParts::default();
        for (to, from) in wide.chunks_exact_mut(values).zip(bytes.chunks_exact(size)) {
            self.take(from, &mut block);
            block.widen(to);
        }
        wide
    }
}

impl fmt::Display for Quant {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.name())
    }
}

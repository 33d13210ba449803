//! Types of elements: how many bytes they take, and their conversion to f32. Everything is computed in f32 (products
//! optionally in bf16), so the other types are for values that a backend is given, or stores.

use super::blocks::Quant;
use super::half::{widen_bf16, widen_f16};
use std::borrow::Cow;
use std::fmt;

/// A type of elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum Element {
    /// 32 bits.
    F32,
    /// The upper 16 bits of an f32.
    Bf16,
    /// IEEE 754 half precision, 16 bits.
    F16,
    /// Blocks of ggml's: for weights that do not change.
    Blocks(Quant),
}

impl Element {
    /// How many bytes `n` elements take.
    pub const fn bytes(self, n: usize) -> usize {
        match self {
            Element::F32 => 4 * n,
            Element::Bf16 | Element::F16 => 2 * n,
            Element::Blocks(quant) => quant.bytes(n),
        }
    }

    /// The elements in `bytes`, in the machine's byte order, as f32. They are borrowed if they are f32 and aligned,
    /// else converted exactly.
    ///
    /// ```
    /// use limpid_core::numeric::element::Element;
    /// assert_eq!(*Element::F16.widen(&0x3800_u16.to_ne_bytes()), [0.5]);
    /// assert_eq!(*Element::Bf16.widen(&0x3fc0_u16.to_ne_bytes()), [1.5]);
    /// ```
    pub fn widen(self, bytes: &[u8]) -> Cow<'_, [f32]> {
        let halves =
            |widen: fn(u16) -> f32| bytes.as_chunks().0.iter().map(|b| widen(u16::from_ne_bytes(*b))).collect();
        match self {
            Element::F32 => match bytemuck::try_cast_slice(bytes) {
                Ok(values) => Cow::Borrowed(values),
                Err(_) => bytes.as_chunks().0.iter().map(|b| f32::from_ne_bytes(*b)).collect(),
            },
            Element::Bf16 => halves(widen_bf16),
            Element::F16 => halves(widen_f16),
            Element::Blocks(quant) => quant.widen(bytes).into(),
        }
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Element::F32 => "f32",
            Element::Bf16 => "bf16",
            Element::F16 => "f16",
            Element::Blocks(quant) => quant.name(),
        })
    }
}

/// The order in which a matrix (rows, cols) is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Major {
    /// Row by row.
    Rows,
    /// Column by column: (cols, rows) row by row.
    Columns,
}

impl Major {
    /// The values of a matrix of this shape, row by row.
    pub fn to_rows(self, values: Cow<'_, [f32]>, (rows, cols): (usize, usize)) -> Cow<'_, [f32]> {
        match self {
            Major::Rows => values,
            Major::Columns => transpose(&values, cols, rows).into(),
        }
    }
}

/// Transposes (rows, cols) to (cols, rows), in blocks that fit the nearest cache.
pub fn transpose(from: &[f32], rows: usize, cols: usize) -> Vec<f32> {
    const SIDE: usize = 16;
    let mut to = vec![0.0; from.len()];
    for i in (0..rows).step_by(SIDE) {
        for j in (0..cols).step_by(SIDE) {
            for j in j..(j + SIDE).min(cols) {
                for i in i..(i + SIDE).min(rows) {
                    to[j * rows + i] = from[i * cols + j];
                }
            }
        }
    }
    to
}

/// Values for a backend, as they are stored in a file or in memory.
#[derive(Clone, Copy, Debug)]
pub struct Values<'a> {
    /// What they are.
    pub element: Element,
    /// They, in the machine's order of bytes.
    pub bytes: &'a [u8],
    /// How they lie.
    pub major: Major,
}

impl<'a> Values<'a> {
    /// f32 values, in memory.
    pub fn f32(values: &'a [f32], major: Major) -> Values<'a> {
        Values { element: Element::F32, bytes: bytemuck::cast_slice(values), major }
    }

    /// The values of several, one after the other, as f32.
    pub fn joined(parts: &[Values]) -> Vec<f32> {
        parts.iter().flat_map(|part| part.element.widen(part.bytes).into_owned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// IEEE 754 binary16 by its definition, in f64.
    fn by_definition(bits: u16) -> f64 {
        let (sign, exponent, fraction) = (bits >> 15, i32::from(bits >> 10 & 31), f64::from(bits & 1023));
        let size = match exponent {
            0 => fraction * 2f64.powi(-24),
            31 if fraction == 0.0 => f64::INFINITY,
            31 => f64::NAN,
            _ => (1.0 + fraction / 1024.0) * 2f64.powi(exponent - 15),
        };
        if sign == 1 { -size } else { size }
    }

    #[test]
    fn every_half_is_what_its_definition_says() {
        for bits in 0..=u16::MAX {
            let got = Element::F16.widen(&bits.to_ne_bytes())[0];
            let want = by_definition(bits);
            let same = f64::from(got).to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
            assert!(same, "{bits:#06x}: {got}, not {want}");
            let got = Element::Bf16.widen(&bits.to_ne_bytes())[0];
            assert_eq!(got.to_bits(), u32::from(bits) << 16);
        }
    }

    #[test]
    fn f32s_stay_where_they_lie_and_need_not_be_aligned() {
        let values = [1.0f32, -2.5, f32::MIN_POSITIVE];
        let bytes = Values::f32(&values, Major::Rows).bytes;
        assert!(matches!(Element::F32.widen(bytes), Cow::Borrowed(got) if got == values));
        let shifted: Vec<u8> = [0].iter().chain(bytes).copied().collect();
        let odd = usize::from((shifted.as_ptr() as usize).is_multiple_of(4));
        let moved: Vec<u8> = std::iter::repeat_n(0, odd).chain(bytes.iter().copied()).collect();
        assert_eq!(*Element::F32.widen(&moved[odd..]), values);
    }

    #[test]
    fn bytes_are_counted_in_whole_blocks() {
        let types = [Element::F32, Element::Bf16, Element::F16, Element::Blocks(Quant::Q8_0)];
        let bytes = types.map(|e| [e.bytes(64), e.bytes(65)]);
        assert_eq!(bytes, [[256, 260], [128, 130], [128, 130], [68, 102]]);
    }
}

//! The 16-bit floating-point types as bits: bf16, which is the upper half of an f32, and IEEE's f16. Their tests are
//! those of `element`, whose types they are.

/// The nearest bf16, as its bits; ties to even, NaN stays NaN.
#[inline(always)]
pub fn nearest_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
    let bits = if x.is_nan() { bits | 0x40_0000 } else { rounded };
    (bits >> 16) as u16
}

/// A bf16 from its bits.
#[inline(always)]
pub fn widen_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// An f16 from its bits.
pub fn widen_f16(bits: u16) -> f32 {
    let (sign, rest) = (u32::from(bits & 0x8000) << 16, u32::from(bits & 0x7fff) << 13);
    // the bias of the exponent is 15 in f16 and 127 in f32: multiply by 2^112, which is exact for subnormals too
    let finite = (f32::from_bits(rest) * f32::from_bits((127 + 112) << 23)).to_bits();
    let infinite = rest | 0x7f80_0000;
    f32::from_bits(sign | if rest < 0x7c00 << 13 { finite } else { infinite })
}

//! Quantises values to ggml's blocks, with the same bits as ggml's own reference functions (`quantize_row_q8_0_ref`,
//! `_q4_0_ref`, `_q4_K_ref`, without fused multiply-adds). How blocks are read is in limpid-core, `numeric/blocks.rs`.

use half::f16;
use limpid_core::numeric::blocks::Quant;

/// The types that can be written.
pub const WRITTEN: [Quant; 3] = [Quant::Q8_0, Quant::Q4_0, Quant::Q4_K];

/// Quantises values. The error is the index of a value that its block cannot hold: NaN, infinite, or too large for the
/// scale, an f16.
///
/// # Panics
/// If the values do not fill whole blocks, or `quant` is not in [`WRITTEN`].
pub fn encode(quant: Quant, values: &[f32]) -> Result<Vec<u8>, usize> {
    let block = match quant {
        Quant::Q8_0 => q8_0,
        Quant::Q4_0 => q4_0,
        Quant::Q4_K => q4_k,
        other => panic!("{other} is not written"),
    };
    let n = quant.sizes().0;
    assert!(values.len().is_multiple_of(n), "{} values in blocks of {n}", values.len());
    let mut out = Vec::with_capacity(quant.bytes(values.len()));
    for (i, x) in values.chunks_exact(n).enumerate() {
        let odd = x.iter().position(|v| !v.is_finite());
        let largest = || (0..n).reduce(|a, b| if x[b].abs() > x[a].abs() { b } else { a }).expect("blocks have values");
        if let Some(odd) = odd.or_else(|| (!block(x, &mut out)).then(largest)) {
            return Err(i * n + odd);
        }
    }
    Ok(out)
}

/// Writes the scale of a block; returns whether it is finite.
fn scale(d: f32, out: &mut Vec<u8>) -> bool {
    let d = f16::from_f32(d);
    out.extend(d.to_le_bytes());
    d.is_finite()
}

/// 1 / d, or 0 of 0: quotients are of d, not of the f16 that it is stored as.
fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

/// Pairs of values of four bits, `half` apart, each in a byte.
fn nibbles(codes: &[u8], half: usize, out: &mut Vec<u8>) {
    for codes in codes.chunks_exact(2 * half) {
        let (low, high) = codes.split_at(half);
        out.extend(low.iter().zip(high).map(|(low, high)| low | high << 4));
    }
}

fn q8_0(x: &[f32], out: &mut Vec<u8>) -> bool {
    let d = x.iter().fold(0f32, |most, v| most.max(v.abs())) / 127.0;
    let fits = scale(d, out);
    out.extend(x.iter().map(|v| (v * inverse(d)).round() as i8 as u8));
    fits
}

/// The value that is farthest from 0, the first of several, becomes -8.
fn q4_0(x: &[f32], out: &mut Vec<u8>) -> bool {
    let d = x.iter().copied().reduce(|most, v| if v.abs() > most.abs() { v } else { most }).unwrap_or(0.0) / -8.0;
    let fits = scale(d, out);
    let codes: Vec<u8> = x.iter().map(|v| ((v * inverse(d) + 8.5) as u8).min(15)).collect();
    nibbles(&codes, 16, out);
    fits
}

/// The nearest of the codes 0 to 15, of two the even one.
fn nearest(x: f32) -> u8 {
    x.round_ties_even().clamp(0.0, 15.0) as u8
}

/// Eight groups of 32 with a scale and a minimum each, which are themselves six bits of the largest of the eight.
fn q4_k(x: &[f32], out: &mut Vec<u8>) -> bool {
    let groups = x.as_chunks::<32>().0;
    let fits: [_; 8] = std::array::from_fn(|j| search(&groups[j]));
    let [scales, mins] = [fits.map(|f| f.0), fits.map(|f| f.1)];
    let most = |of: [f32; 8]| of.into_iter().fold(0f32, |most, v| if v > most { v } else { most });
    let (max_scale, max_min) = (most(scales), most(mins));
    let sixty_third = |of: [f32; 8], most: f32| {
        let inverse = if most > 0.0 { 63.0 / most } else { 0.0 };
        of.map(|v| ((inverse * v).round_ties_even() as u8).min(63))
    };
    let (s, m) = (sixty_third(scales, max_scale), sixty_third(mins, max_min));
    let (d, dmin) = (max_scale / 63.0, max_min / 63.0);
    let finite = scale(d, out) & scale(dmin, out);
    out.extend((0..4).map(|j| s[j] | s[j + 4] >> 4 << 6));
    out.extend((0..4).map(|j| m[j] | m[j + 4] >> 4 << 6));
    out.extend((4..8).map(|j| s[j] & 15 | m[j] << 4));
    let [d, dmin] = [d, dmin].map(|d| f16::from_f32(d).to_f32());
    let mut codes = Vec::with_capacity(256);
    for j in 0..8 {
        let (d, dmin) = (d * f32::from(s[j]), dmin * f32::from(m[j]));
        codes.extend(if d == 0.0 { fits[j].2 } else { groups[j].map(|x| nearest((x + dmin) / d)) });
    }
    nibbles(&codes, 32, out);
    finite
}

/// A scale, a minimum (to be subtracted) and codes, so that `scale * code - min` is near x; values count by their size.
/// Of 22 tries (the range by 15, then a least-squares fit for each of 21 roundings) the best.
fn search(x: &[f32; 32]) -> (f32, f32, [u8; 32]) {
    let sum = |of: &dyn Fn(usize) -> f32| (0..32).fold(0f32, |sum, i| sum + of(i));
    let average = (sum(&|i| x[i] * x[i]) / 32.0).sqrt();
    let weight = x.map(|x| average + x.abs());
    let (mut min, max) = x[1..]
        .iter()
        .fold((x[0], x[0]), |(min, max), v| (if *v < min { *v } else { min }, if *v > max { *v } else { max }));
    min = if min > 0.0 { 0.0 } else { min };
    if max == min {
        return (0.0, -min, [0; 32]);
    }
    let (sum_w, sum_x) = (sum(&|i| weight[i]), sum(&|i| weight[i] * x[i]));
    let rounded = |inverse: f32, min: f32| x.map(|x| nearest(inverse * (x - min)));
    let error = |scale: f32, min: f32, codes: &[u8; 32]| {
        sum(&|i| {
            let apart = scale * f32::from(codes[i]) + min - x[i];
            weight[i] * (apart * apart)
        })
    };
    let mut scale = 1.0 / (15.0 / (max - min));
    let mut codes = rounded(15.0 / (max - min), min);
    let mut best = error(scale, min, &codes);
    for step in 0..=20u8 {
        let tried = rounded((-1.0 + 0.1 * f32::from(step) + 15.0) / (max - min), min);
        let l = tried.map(f32::from);
        let (sum_l, sum_l2) = (sum(&|i| weight[i] * l[i]), sum(&|i| weight[i] * l[i] * l[i]));
        let sum_xl = sum(&|i| weight[i] * l[i] * x[i]);
        let determinant = sum_w * sum_l2 - sum_l * sum_l;
        if determinant.is_nan() || determinant <= 0.0 {
            continue;
        }
        let mut this_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant;
        let mut this_min = (sum_l2 * sum_x - sum_l * sum_xl) / determinant;
        if this_min > 0.0 {
            (this_min, this_scale) = (0.0, sum_xl / sum_l2);
        }
        let apart = error(this_scale, this_min, &tried);
        if apart < best {
            (codes, best, scale, min) = (tried, apart, this_scale, this_min);
        }
    }
    (scale, -min, codes)
}

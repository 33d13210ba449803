//! The fixed tables of positions: sinusoidal embeddings and rotary angles.

use crate::config::{RotaryKind, RotaryScaling};
use crate::numeric::math::{cos, ln_f64, pow, sin};
use std::f64::consts::TAU;

/// Positions and columns from 0: PE(p, 2i) = sin(p / 10000^(2i/C)), PE(p, 2i+1) = cos of the same.
pub fn sinusoidal(position: usize, column: usize, d_model: usize) -> f64 {
    let angle = position as f64 / pow(10_000.0, (column / 2 * 2) as f64 / d_model as f64);
    if column.is_multiple_of(2) { sin(angle) } else { cos(angle) }
}

/// S0 to the letter, positions i and columns j from 1: sin(i / 10000^(j/C)) for even j, cos(i / 10000^((j-1)/C))
/// for odd j. Row `position` and column `column` are still counted from 0 here.
pub fn sinusoidal_one_based(position: usize, column: usize, d_model: usize) -> f64 {
    let (i, j) = (position as f64 + 1.0, column + 1);
    let angle = |j: usize| i / pow(10_000.0, j as f64 / d_model as f64);
    if j.is_multiple_of(2) { sin(angle(j)) } else { cos(angle(j - 1)) }
}

/// The frequency of each pair of D features, in radians a position: base^(-2i/D), scaled (transformers'
/// `modeling_rope_utils`). Yarn's are `factor` times slower from the pair on that rotates `low` times over the original
/// context, unchanged up to the one that rotates `high` times, and in between a mixture by the pair's number.
/// Longrope's are slower by the factors of `short`.
pub fn frequencies(d: usize, base: f64, s: &RotaryScaling) -> Vec<f64> {
    // base^(-2i/D) context / (2 pi) = turns, solved for i
    let pair_of = |turns: f64| d as f64 * ln_f64(s.context as f64 / (turns * TAU)) / (2.0 * ln_f64(base));
    let (from, to) = (pair_of(s.high), pair_of(s.low));
    let (from, to) = if s.truncate { (from.floor(), to.ceil()) } else { (from, to) };
    let (from, to) = (from.max(0.0), to.min(d as f64 - 1.0));
    let to = if from == to { to + 0.001 } else { to };
    let frequency = |i: usize| {
        let plain = pow(base, -((2 * i) as f64) / d as f64);
        match s.kind {
            RotaryKind::Bands => s.apply(plain),
            RotaryKind::Dynamic => plain,
            RotaryKind::Longrope => plain / s.short[i],
            RotaryKind::Yarn => {
                let slower = ((i as f64 - from) / (to - from)).clamp(0.0, 1.0);
                plain * ((1.0 - slower) + slower / s.factor)
            }
        }
    };
    (0..d / 2).map(frequency).collect()
}

/// Rotary angles: column 2i is the cosine of the position times frequency i, column 2i + 1 the sine.
pub fn rotary(position: usize, column: usize, frequencies: &[f64]) -> f64 {
    let angle = position as f64 * frequencies[column / 2];
    if column.is_multiple_of(2) { cos(angle) } else { sin(angle) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Contract G07 (extract) and its other sizes.
    #[test]
    fn the_zero_based_table() {
        let close = |got: f64, want: f64| assert!((got - want).abs() < 1e-7, "{got} {want}");
        for (position, column, want) in [
            (0, 0, 0.0),
            (0, 1, 1.0),
            (1, 0, 0.841_471_0),
            (1, 1, 0.540_302_3),
            (1, 2, 0.681_561_4),
            (2, 5, 0.431_462_8),
            (2, 62, 0.000_266_7),
        ] {
            close(sinusoidal(position, column, 64), want);
        }
        for (column, want) in [0.841_471_0, 0.540_302_3, 0.009_999_8, 0.999_950_0].into_iter().enumerate() {
            close(sinusoidal(1, column, 4), want);
        }
        for (column, want) in
            [0.841_471_0, 0.540_302_3, 0.046_399_2, 0.998_923_0, 0.002_154_4, 0.999_997_7].into_iter().enumerate()
        {
            close(sinusoidal(1, column, 6), want);
        }
    }

    /// Contract G08: S0's literal table, and how it relates to the other.
    #[test]
    fn the_one_based_table() {
        let close = |got: f64, want: f64| assert!((got - want).abs() < 1e-7, "{got} {want}");
        for (column, (first, second)) in
            [(0.540_302_3, -0.416_146_8), (0.009_999_8, 0.019_998_7), (0.999_950_0, 0.999_800_0), (0.000_1, 0.000_2)]
                .into_iter()
                .enumerate()
        {
            close(sinusoidal_one_based(0, column, 4), first);
            close(sinusoidal_one_based(1, column, 4), second);
        }
        for (p, c) in [(0, 0), (3, 10), (7, 62)] {
            close(sinusoidal_one_based(p, c, 64), sinusoidal(p + 1, c + 1, 64));
        }
        close(sinusoidal_one_based(0, 63, 64), 0.0001);
    }
}

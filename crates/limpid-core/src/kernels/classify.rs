//! Head and cross-entropy as one op: `losses[n] = log sum exp(logits[n]) - logits[n, target]` with logits = x w' +
//! b. Rows are taken in chunks, so the logits of all rows are never in memory at once. Softmax and loss are fused,
//! so no probability is rounded to zero before its logarithm.
//!
//!   dlogits = weight (softmax(logits) - target);   dx = dlogits w;   dw += dlogits' x;   db += column sums
//!
//! Training may ask for two more [`Terms`]: with smoothing s the target is (1 - s) target + s / V (Szegedy et al.
//! 2016), and z_loss c adds c (log sum exp(logits))^2, which keeps logits from drifting (Chowdhery et al. 2022,
//! PaLM).
//!
//! Measured: softmax and gradient of a row at 16 GB/s on one AVX-512 core with data in the L2 cache; the three
//! products at 150 to 160 GFLOP/s on two cores with GPT-2's vocabulary. The backward computes the losses too:
//! training does not run the forward of this op.

use crate::numeric::math::{exp, ln};
use crate::numeric::simd::{Kernel, MulAdd, greatest, sum, sum2};
use crate::ops::{Target, Terms};

/// How many rows a chunk has, so that its logits take about 64 MiB whatever V and N. Each chunk packs the head's
/// weights and adds to all of their gradient, so few large chunks are faster than many small ones.
pub fn chunk_rows(rows: usize, vocab: usize) -> usize {
    ((16 << 20) / vocab).max(128).min(rows.max(1))
}

/// Plain f64 loops.
pub mod reference {
    use super::{Target, Terms};

    /// Replaces a row of logits by its softmax, or by its gradient if there is a `weight`, and returns the loss.
    pub fn row(logits: &mut [f64], target: Target, terms: Terms, weight: Option<f64>) -> f64 {
        let top = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let lse = top + logits.iter().map(|v| (v - top).exp()).sum::<f64>().ln();
        let mut wanted = vec![0.0; logits.len()];
        match target {
            Target::None => {}
            Target::Token(t) => wanted[t] = 1.0,
            Target::Soft(y) => wanted.iter_mut().zip(y).for_each(|(to, y)| *to = f64::from(*y)),
        }
        let mass: f64 = wanted.iter().sum();
        let (s, z) = (f64::from(terms.smoothing), if mass == 0.0 { 0.0 } else { f64::from(terms.z_loss) });
        let even = s * mass / logits.len() as f64;
        wanted.iter_mut().for_each(|y| *y = (1.0 - s) * *y + even);
        let cross = wanted.iter().zip(&*logits).map(|(y, v)| if *y == 0.0 { 0.0 } else { y * (lse - v) }).sum::<f64>();
        for (v, y) in logits.iter_mut().zip(&wanted) {
            let p = (*v - lse).exp();
            *v = weight.map_or(p, |weight| weight * (p * (mass + 2.0 * z * lse) - y));
        }
        cross + z * lse * lse
    }
}

/// Replaces one row of logits by its softmax, or by its gradient if there is a `weight`. Returns the loss.
pub struct Row<'a> {
    /// (V)
    pub logits: &'a mut [f32],
    /// the row's target
    pub target: Target<'a>,
    /// the terms added to the cross-entropy
    pub terms: Terms,
    /// the row's weight in the gradient; `None` to stop at the softmax
    pub weight: Option<f32>,
}

impl Kernel<f32> for Row<'_> {
    #[inline(always)]
    fn run<M: MulAdd>(self) -> f32 {
        let Row { logits, target, terms: Terms { smoothing, z_loss }, weight } = self;
        let (top, v) = (greatest(logits), logits.len() as f32);
        // the target's logit (or the soft target's weighted sum of logits, and its mass) before they are overwritten
        let (mass, mut own) = match target {
            Target::None => (0.0, 0.0),
            Target::Token(t) => (1.0, logits[t] - top),
            Target::Soft(y) => (sum(y, |y| y), sum2(y, logits, |y, v| if y == 0.0 { 0.0 } else { y * (v - top) })),
        };
        let (kept, even) = (1.0 - smoothing, smoothing * mass / v);
        if even != 0.0 {
            own = kept * own + even * sum(logits, |v| v - top);
        }
        for v in logits.iter_mut() {
            *v = exp::<M>(*v - top);
        }
        let z = sum(logits, |v| v);
        let share = 1.0 / z;
        let (lse, z_loss) = (top + ln(z), if mass == 0.0 { 0.0 } else { z_loss });
        match (weight, target) {
            (None, _) => logits.iter_mut().for_each(|v| *v *= share),
            (Some(_), Target::None) => logits.fill(0.0),
            (Some(weight), Target::Token(t)) => {
                let scale = weight * share * (1.0 + 2.0 * z_loss * lse);
                match even {
                    0.0 => logits.iter_mut().for_each(|v| *v *= scale),
                    _ => logits.iter_mut().for_each(|v| *v = *v * scale - weight * even),
                }
                logits[t] -= weight * kept;
            }
            (Some(weight), Target::Soft(y)) => {
                let scale = share * (mass + 2.0 * z_loss * lse);
                logits.iter_mut().zip(y).for_each(|(v, y)| *v = weight * (*v * scale - kept * y - even));
            }
        }
        if matches!(target, Target::None) { 0.0 } else { mass * ln(z) - own + z_loss * lse * lse }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numeric::simd::Level;

    /// Contract G14: the readme's logits; the true next word of "dog" is "jumps".
    #[test]
    fn scores_to_distribution_to_loss() {
        let logits = [2.3, 4.1, 1.8, 3.0, 0.5, -1.2, -0.8];
        let probs = [0.100_903, 0.610_430, 0.061_201, 0.203_194, 0.016_679, 0.003_047, 0.004_546];
        let losses = [2.293_592, 0.493_592, 2.793_592, 1.593_592, 4.093_592, 5.793_592, 5.393_592];
        for (t, want) in losses.into_iter().enumerate() {
            let mut row = logits;
            assert!((reference::row(&mut row, Target::Token(t), Terms::default(), None) - want).abs() < 1e-6);
            assert!(row.iter().zip(probs).all(|(r, p)| (r - p).abs() < 1e-6));
            for level in Level::available() {
                let mut row = logits.map(|v| v as f32);
                let loss = level.run(Row {
                    logits: &mut row,
                    target: Target::Token(t),
                    terms: Terms::default(),
                    weight: None,
                });
                assert!((f64::from(loss) - want).abs() < 2e-6, "{level}: {loss} {want}");
                assert!(row.iter().zip(probs).all(|(r, p)| (f64::from(*r) - p).abs() < 1e-6));
            }
        }
    }

    #[test]
    fn a_huge_logit_is_no_trouble_and_nan_shows() {
        let mut row = [1e4, -1e4, 1e4];
        let loss = Level::best().run(Row {
            logits: &mut row,
            target: Target::Token(0),
            terms: Terms::default(),
            weight: None,
        });
        assert!((loss - 2f32.ln()).abs() < 1e-6 && row[1] == 0.0);
        let mut row = [1.0, f32::NAN, 2.0];
        assert!(
            Level::best()
                .run(Row { logits: &mut row, target: Target::Token(0), terms: Terms::default(), weight: None })
                .is_nan()
        );
    }

    /// Smoothing and z-loss against slopes of their own formula, written out; and the f32 row against f64.
    #[test]
    fn smoothing_and_z_loss_are_what_they_say() {
        let logits: Vec<f64> = (0..37).map(|i| 2.0 * f64::from(i).sin()).collect();
        let soft: Vec<f32> = (0..37).map(|i| if i % 9 == 0 { 0.2 } else { 0.0 }).collect();
        for target in [Target::Token(5), Target::Soft(&soft)] {
            for (smoothing, z_loss) in [(0.1, 0.0), (0.0, 0.02), (0.25, 0.01)] {
                let terms = Terms { smoothing, z_loss };
                let (s, c) = (f64::from(smoothing), f64::from(z_loss));
                let loss = |logits: &[f64]| {
                    let lse = logits.iter().map(|v| v.exp()).sum::<f64>().ln();
                    let wanted = |i: usize| match target {
                        Target::Token(t) => f64::from(u8::from(i == t)),
                        _ => f64::from(soft[i]),
                    };
                    let mass: f64 = (0..37).map(wanted).sum();
                    (0..37).map(|i| ((1.0 - s) * wanted(i) + s * mass / 37.0) * (lse - logits[i])).sum::<f64>()
                        + c * lse * lse
                };
                let mut row = logits.clone();
                assert!((reference::row(&mut row, target, terms, Some(0.5)) - loss(&logits)).abs() < 1e-12);
                for i in 0..37 {
                    let at = |h: f64| {
                        loss(
                            &logits
                                .iter()
                                .enumerate()
                                .map(|(j, v)| v + if i == j { h } else { 0.0 })
                                .collect::<Vec<_>>(),
                        )
                    };
                    let slope = 0.5 * (at(1e-5) - at(-1e-5)) / 2e-5;
                    assert!((row[i] - slope).abs() < 1e-9, "{terms:?} {i}: {} {slope}", row[i]);
                }
                for level in Level::available() {
                    let mut fast: Vec<f32> = logits.iter().map(|v| *v as f32).collect();
                    let found = level.run(Row { logits: &mut fast, target, terms, weight: Some(0.5) });
                    assert!((f64::from(found) - loss(&logits)).abs() < 1e-5, "{level}: {found}");
                    assert!(fast.iter().zip(&row).all(|(a, b)| (f64::from(*a) - b).abs() < 1e-6), "{level} {terms:?}");
                }
            }
        }
    }
}

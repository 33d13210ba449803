//! Head and loss as one op: `losses[n] = log sum exp(logits[n]) - logits[n, target]` with logits = x w' + b
//! (contract R182 to R211). Rows are taken in chunks, so the logits of a large vocabulary never exist
//! whole; softmax and loss are fused, so no probability is ever rounded to zero before its logarithm.
//!
//!   dlogits = weight (softmax(logits) - target);   dx = dlogits w;   dw += dlogits' x;   db += column sums
//!
//! A row's softmax and gradient: 16 GB/s on one AVX-512 core, in the L2 cache; the three products are the rest, 150 to 160
//! GFLOP/s on two cores at GPT-2's vocabulary. The backward computes the losses too: in training the forward of this op is not run at all.

use super::math::exp;
use super::simd::{Kernel, greatest, sum, sum2};
use super::{Batch, IGNORE};

/// What should follow a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target<'a> {
    /// Nothing: the row is not counted.
    None,
    /// This token (R204).
    Token(usize),
    /// This distribution over the vocabulary (R202); one-hot rows give what `Token` gives (R203).
    Soft(&'a [f32]),
}

/// The target of row `n`.
pub fn target(batch: &Batch, n: usize, vocab: usize) -> Target<'_> {
    if !batch.soft_targets.is_empty() {
        return Target::Soft(&batch.soft_targets[n * vocab..][..vocab]);
    }
    match batch.targets.get(n) {
        None | Some(&IGNORE) => Target::None,
        Some(token) => Target::Token(*token as usize),
    }
}

/// Rows worked on at once, so that the chunk's logits stay near 64 MiB whatever V and N. Each chunk packs the head's
/// weights and adds to all of their gradient, so few large chunks are quicker than many small ones.
pub fn chunk_rows(rows: usize, vocab: usize) -> usize {
    ((16 << 20) / vocab).max(128).min(rows.max(1))
}

/// Plain f64 loops.
pub mod reference {
    use super::Target;

    /// Turns a row of logits into its softmax and returns the loss.
    pub fn row(logits: &mut [f64], target: Target) -> f64 {
        let top = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let lse = top + logits.iter().map(|v| (v - top).exp()).sum::<f64>().ln();
        let loss = match target {
            Target::None => 0.0,
            Target::Token(t) => lse - logits[t],
            Target::Soft(y) => y.iter().zip(&*logits).map(|(y, v)| f64::from(*y) * (lse - v)).sum(),
        };
        logits.iter_mut().for_each(|v| *v = (*v - lse).exp());
        loss
    }

    /// Turns a row's softmax into the gradient of its logits.
    pub fn row_backward(probs: &mut [f64], target: Target, weight: f64) {
        match target {
            Target::None => probs.fill(0.0),
            Target::Token(t) => {
                probs.iter_mut().for_each(|p| *p *= weight);
                probs[t] -= weight;
            }
            Target::Soft(y) => {
                let mass: f64 = y.iter().map(|y| f64::from(*y)).sum();
                probs.iter_mut().zip(y).for_each(|(p, y)| *p = weight * (*p * mass - f64::from(*y)));
            }
        }
    }
}

/// One row of logits in place: to its softmax, or to its gradient if there is a `weight`. Returns the loss.
pub struct Row<'a> {
    /// (V)
    pub logits: &'a mut [f32],
    /// what should follow
    pub target: Target<'a>,
    /// what the row weighs in the gradient; none to stop at the softmax
    pub weight: Option<f32>,
}

impl Kernel for Row<'_> {
    type Output = f32;
    #[inline(always)]
    fn run<const FMA: bool>(self) -> f32 {
        let Row { logits, target, weight } = self;
        let top = greatest(logits);
        // the target's logit (or the soft target's weighted sum of logits, and its mass) before they are overwritten
        let (mass, own) = match target {
            Target::None => (0.0, 0.0),
            Target::Token(t) => (1.0, logits[t] - top),
            Target::Soft(y) => (sum(y, |y| y), sum2(y, logits, |y, v| if y == 0.0 { 0.0 } else { y * (v - top) })),
        };
        for v in logits.iter_mut() {
            *v = exp::<FMA>(*v - top);
        }
        let z = sum(logits, |v| v);
        let share = 1.0 / z;
        match (weight, target) {
            (None, _) => logits.iter_mut().for_each(|v| *v *= share),
            (Some(_), Target::None) => logits.fill(0.0),
            (Some(weight), Target::Token(t)) => {
                logits.iter_mut().for_each(|v| *v *= weight * share);
                logits[t] -= weight;
            }
            (Some(weight), Target::Soft(y)) => {
                logits.iter_mut().zip(y).for_each(|(v, y)| *v = weight * (*v * share * mass - y));
            }
        }
        if matches!(target, Target::None) { 0.0 } else { mass * z.ln() - own }
    }
}

#[cfg(test)]
mod tests {
    use super::super::simd::Level;
    use super::*;

    /// Contract G14: the readme's logits; the true next word of "dog" is "jumps".
    #[test]
    fn scores_to_distribution_to_loss() {
        let logits = [2.3, 4.1, 1.8, 3.0, 0.5, -1.2, -0.8];
        let probs = [0.100_903, 0.610_430, 0.061_201, 0.203_194, 0.016_679, 0.003_047, 0.004_546];
        let losses = [2.293_592, 0.493_592, 2.793_592, 1.593_592, 4.093_592, 5.793_592, 5.393_592];
        for (t, want) in losses.into_iter().enumerate() {
            let mut row = logits;
            assert!((reference::row(&mut row, Target::Token(t)) - want).abs() < 1e-6);
            assert!(row.iter().zip(probs).all(|(r, p)| (r - p).abs() < 1e-6));
            for level in Level::available() {
                let mut row = logits.map(|v| v as f32);
                let loss = level.run(Row { logits: &mut row, target: Target::Token(t), weight: None });
                assert!((f64::from(loss) - want).abs() < 2e-6, "{level}: {loss} {want}");
                assert!(row.iter().zip(probs).all(|(r, p)| (f64::from(*r) - p).abs() < 1e-6));
            }
        }
    }

    #[test]
    fn a_huge_logit_is_no_trouble_and_nan_shows() {
        let mut row = [1e4, -1e4, 1e4];
        let loss = Level::best().run(Row { logits: &mut row, target: Target::Token(0), weight: None });
        assert!((loss - 2f32.ln()).abs() < 1e-6 && row[1] == 0.0);
        let mut row = [1.0, f32::NAN, 2.0];
        assert!(Level::best().run(Row { logits: &mut row, target: Target::Token(0), weight: None }).is_nan());
    }
}

//! Loss spikes and divergence: when a loss counts as one, and the report about its batch.

use crate::batches::Batches;
use crate::error::{Result, TrainError};
use crate::evaluate::Score;
use crate::trainer::Trainer;
use limpid_core::backend;
use limpid_core::ops::{Batch, MemorySpace, Region};
use limpid_core::optimizer::Change;
use limpid_tokenizer::Tokenizer;
use std::fmt::Write;

/// The least number of losses that a spike is measured against.
const HISTORY: usize = 20;

/// The mean and the standard deviation of recent losses; none if there are too few. A loss is a mean over `targets`
/// tokens, whose own losses differ by about a nat: so the deviation is at least 1/√targets, also where the recent
/// losses are all near 0 because the text is known by heart. It is at least a hundredth of the mean, too, so that a
/// loss that hardly moves may move a little.
fn mean_and_deviation(recent: &[f64], targets: usize) -> Option<(f64, f64)> {
    if recent.len() < HISTORY {
        return None;
    }
    let n = recent.len() as f64;
    let mean = recent.iter().sum::<f64>() / n;
    let deviation = (recent.iter().map(|l| (l - mean).powi(2)).sum::<f64>() / n).sqrt();
    Some((mean, deviation.max(0.01 * mean.abs()).max(1.0 / (targets.max(1) as f64).sqrt())))
}

/// The mean of the recent losses, and how many standard deviations a loss of so many `targets` lies above it; none if
/// there are too few losses.
pub fn jump(recent: &[f64], loss: f64, targets: usize) -> Option<(f64, f64)> {
    mean_and_deviation(recent, targets).map(|(mean, deviation)| (mean, (loss - mean) / deviation))
}

/// The loss of so many `targets` that lies this many standard deviations above the mean of the recent ones; none if
/// there are too few losses.
pub fn limit(recent: &[f64], deviations: f64, targets: usize) -> Option<f64> {
    mean_and_deviation(recent, targets).map(|(mean, deviation)| mean + deviations * deviation)
}

/// The mean of the recent losses, if training diverges: if that mean is above one and a half times the first loss, plus
/// one.
pub fn is_worse(recent: &[f64], first: f64) -> Option<f64> {
    let last = recent.last_chunk::<HISTORY>()?;
    let mean = last.iter().sum::<f64>() / HISTORY as f64;
    (mean > 1.5 * first + 1.0).then_some(mean)
}

/// The layers and the norms of their gradients, greatest first. The gradient must be waiting in the backend. If several
/// processes each have a part of it, they exchange their sums.
///
/// # Errors
/// If the backend fails, or other processes are not reached.
pub fn steepest(trainer: &Trainer) -> Result<Vec<(String, f64)>> {
    let mut sums: Vec<Change> = trainer.trained().map(|param| Change::new(param.region.range())).collect();
    let mut pieces = trainer.team.cut(&sums);
    for (piece, _) in pieces.iter_mut().filter(|(_, owner)| *owner == trainer.team.rank()) {
        let gradient = trainer.backend.read(Region::flat(MemorySpace::Grad, piece.range.clone()))?;
        piece.gradient = gradient.iter().map(|g| f64::from(*g).powi(2)).sum();
    }
    trainer.team.put_together(&pieces, &mut sums)?;
    let layers = trainer.by_layer(&sums).into_iter();
    let mut layers: Vec<_> = layers.map(|(layer, sum)| (layer.name(), sum.gradient.sqrt())).collect();
    layers.retain(|(_, norm)| *norm > 0.0);
    layers.sort_by(|a, b| b.1.total_cmp(&a.1));
    Ok(layers)
}

/// The report of the next step's batch: `head`, then the text of each sequence with its loss (without dropout), the
/// worst first.
///
/// # Errors
/// If the backend fails.
pub fn describe(
    trainer: &mut Trainer,
    batches: &Batches,
    tokenizer: &Tokenizer,
    head: &str,
) -> backend::Result<String> {
    let losses = trainer.model.losses().expect("a model in training has losses");
    let (mut batch, mut found) = (Batch::default(), vec![]);
    for micro in 0..trainer.recipe.accumulate as u64 {
        batches.fill(trainer.steps_done + trainer.skipped, micro, &mut batch);
        trainer.backend.feed(&batch)?;
        trainer.backend.forward(trainer.model.ops())?;
        let losses = trainer.backend.read(losses.for_batch(&batch))?;
        for (n, span) in batch.spans.iter().enumerate() {
            let rows = span.row..span.row + span.rows;
            let mut score = Score::default();
            score.add(&losses[rows.clone()], &batch.targets[rows.clone()]);
            let text = tokenizer.decode(&batch.tokens[rows]).unwrap_or_default();
            found.push((score.loss(), format!("micro-batch {}, sequence {}", micro + 1, n + 1), text));
        }
    }
    // NaN first, then the greatest losses; sequences without a loss last
    let key = |loss: Option<f64>| match loss {
        None => f64::NEG_INFINITY,
        Some(loss) if loss.is_nan() => f64::INFINITY,
        Some(loss) => loss,
    };
    found.sort_by(|a, b| key(b.0).total_cmp(&key(a.0)));
    let mut text = format!("{head}\n");
    for (loss, place, words) in found {
        let loss = loss.map_or("nothing to predict".into(), |loss| format!("mean loss {loss:.4}"));
        let _ = write!(text, "\n--- {place}: {loss}\n{words}\n");
    }
    Ok(text)
}

/// The head of the report: the error, the learning rate, and the layers with the greatest gradients.
pub fn head(error: &TrainError, trainer: &Trainer, steepest: &[(String, f64)]) -> String {
    let mut text = format!("{error}\n\nlearning rate {:e}", trainer.recipe.rate(trainer.steps_done));
    if trainer.skipped > 0 {
        let _ = write!(text, "; data of {} steps skipped so far", trainer.skipped);
    }
    if !steepest.is_empty() {
        let layers: Vec<String> = steepest.iter().take(6).map(|(name, norm)| format!("{name} {norm:.4}")).collect();
        let _ = write!(text, "\ngreatest gradients by layer: {}", layers.join(", "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::RunOptions;

    #[test]
    fn a_jump_is_counted_in_deviations() {
        let recent: Vec<f64> = (0..40).map(|i| 2.0 + if i % 2 == 0 { 0.1 } else { -0.1 }).collect();
        let many = 1 << 20;
        let (mean, deviations) = jump(&recent, 3.0, many).unwrap();
        assert!((mean - 2.0).abs() < 1e-12 && (deviations - 10.0).abs() < 1e-9);
        assert_eq!(jump(&recent[..19], 3.0, many), None, "too early to tell");
        let (_, deviations) = jump(&[2.0; 30], 2.2, many).unwrap();
        assert!((deviations - 10.0).abs() < 1e-9, "a hundredth of the mean at least");
        for sigma in [0.5, 6.0] {
            let (_, deviations) = jump(&recent, limit(&recent, sigma, many).unwrap(), many).unwrap();
            assert!((deviations - sigma).abs() < 1e-9);
        }
        assert_eq!(limit(&recent[..19], 6.0, many), None);
    }

    /// What a batch of few tokens may differ by is no spike, however steady the losses were; what no chance explains is
    /// one.
    #[test]
    fn the_noise_of_a_batch_is_no_spike() {
        let usual = RunOptions::default().spike_sigma;
        let is_spike = |level: f64, jump_to: f64, targets| {
            let recent: Vec<f64> = (0..50).map(|i| level * (1.0 + 0.1 * f64::from(i % 3))).collect();
            jump(&recent, jump_to, targets).unwrap().1 > usual
        };
        for level in [0.0, 1e-7, 1e-5, 1e-4, 1e-3, 5e-3] {
            for (targets, noise, spike) in
                [(1, 7.9, 8.2), (100, 0.7, 0.9), (190, 0.5, 0.7), (512, 0.3, 0.5), (6144, 0.09, 0.2)]
            {
                assert!(!is_spike(level, noise, targets), "{level} {targets}");
                assert!(is_spike(level, spike, targets), "{level} {targets}");
            }
        }
        for (level, spike) in [(0.43, 1.2), (2.0, 4.0), (6.0, 12.0)] {
            assert!(is_spike(level, spike, 512) && !is_spike(level, 1.2 * level, 512), "{level}");
        }
    }

    #[test]
    fn worse_than_at_first() {
        assert_eq!(is_worse(&[6.9; 20], 4.0), None);
        assert_eq!(is_worse(&[7.5; 20], 4.0), Some(7.5));
        assert_eq!(is_worse(&[7.5; 19], 4.0), None);
    }
}

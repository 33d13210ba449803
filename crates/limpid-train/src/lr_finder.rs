//! The learning-rate finder. It runs short trainings from the same weights on the same batches, each with its own
//! warm-up and decay, so that their last losses can be compared. Rates are doubled and halved until the best one lies
//! between two worse ones; a parabola through the three gives the rate with the least loss. (The usual test, a single
//! run with a growing rate, is quicker and says less, because each of its losses also depends on the rates before.)

use crate::batches::Batches;
use crate::error::{Result, TrainError};
use crate::evaluate::mean;
use crate::recipe::Recipe;
use crate::trainer::Trainer;
use limpid_core::numeric::math::pow;
use limpid_core::optimizer::Method;

/// Steps of each short training.
pub const STEPS: u64 = 60;

/// The best rate of a long training divided by that of a short one (measured: docs/training.md). Adam tolerates a lower
/// rate in its first steps, before its second moments have settled; Muon's steps have the same size from the first.
fn long_over_short(optimizer: Method) -> f64 {
    if optimizer == Method::Muon { 0.6 } else { 1.6 }
}

/// The most short trainings.
const TRIES: usize = 16;

/// The result of the search.
#[derive(Clone, Debug, PartialEq)]
pub struct LrSearch {
    /// Each rate, ascending, and its last loss: the mean over the last quarter of the steps; infinite if it diverged.
    pub tried: Vec<(f64, f64)>,
    /// A rate to train with; none if the search was stopped before one was known.
    pub suggested: Option<f64>,
}

/// Tries rates around the recipe's. `start` makes a trainer with the weights from which training begins. After every
/// step, `goes_on` gets the rate, the step's number and its loss (if it has one), and says whether to continue.
///
/// # Errors
/// Those of a trainer, except for a loss that is not finite.
pub fn find<E: From<TrainError>>(
    start: &mut dyn FnMut() -> Result<Trainer, E>,
    batches: &Batches,
    recipe: &Recipe,
    goes_on: &mut dyn FnMut(f64, u64, Option<f64>) -> bool,
) -> Result<LrSearch, E> {
    let mut tried: Vec<(f64, f64)> = vec![];
    let mut next = Some(if recipe.learning_rate > 0.0 { recipe.learning_rate } else { 1e-3 });
    while let Some(rate) = next {
        let Some(loss) = train(start()?, batches, rate, goes_on)? else {
            return Ok(LrSearch { tried, suggested: None });
        };
        tried.push((rate, loss));
        tried.sort_by(|a, b| a.0.total_cmp(&b.0));
        next = if tried.len() < TRIES { next_rate(&tried) } else { None };
    }
    let suggested = Some(long_over_short(recipe.optimizer) * least(&tried));
    Ok(LrSearch { tried, suggested })
}

/// The loss at the end of a short training at this rate: infinite if none of its last steps has one, none if it was
/// stopped.
fn train(
    mut trainer: Trainer,
    batches: &Batches,
    rate: f64,
    goes_on: &mut dyn FnMut(f64, u64, Option<f64>) -> bool,
) -> Result<Option<f64>> {
    let long = trainer.recipe;
    let steps = STEPS.min(long.steps).max(1);
    let floor = if long.learning_rate > 0.0 { long.min_learning_rate / long.learning_rate } else { 0.1 };
    let warmup_steps = (long.warmup_steps * steps).div_ceil(long.steps.max(1)).min(steps / 2);
    let decay_steps = (long.decay_steps * steps).div_ceil(long.steps.max(1));
    let short = Recipe { steps, warmup_steps, decay_steps, ..long };
    trainer.recipe = Recipe { learning_rate: rate, min_learning_rate: floor * rate, ..short };
    let (mut ends, last) = (vec![], steps.div_ceil(4));
    for step in 1..=steps {
        let loss = match trainer.step(batches) {
            Ok(step) => step.loss,
            // a rate at which numbers overflow is too large; the first loss does not depend on the rate
            Err(TrainError::NotFinite { .. }) if step > 1 => return Ok(Some(f64::INFINITY)),
            Err(error) => return Err(error),
        };
        ends.extend(loss.filter(|_| step > steps - last));
        if !goes_on(rate, step, loss) {
            return Ok(None);
        }
    }
    Ok(Some(mean(&ends).unwrap_or(f64::INFINITY)))
}

/// The place of the best of `tried`.
fn best(tried: &[(f64, f64)]) -> usize {
    (0..tried.len()).min_by(|a, b| tried[*a].1.total_cmp(&tried[*b].1)).expect("a rate was tried")
}

/// The rate to try next: a neighbour of the best one. None if both its neighbours were tried.
fn next_rate(tried: &[(f64, f64)]) -> Option<f64> {
    let at = best(tried);
    if at + 1 == tried.len() && tried[at].1.is_finite() {
        Some(2.0 * tried[at].0)
    } else {
        (at == 0).then(|| 0.5 * tried[0].0)
    }
}

/// The rate at which the parabola through the best and its neighbours, over the logarithm of the rate, is least.
fn least(tried: &[(f64, f64)]) -> f64 {
    let at = best(tried);
    if at == 0 || at + 1 == tried.len() {
        return tried[at].0;
    }
    let [below, here, above] = [tried[at - 1].1, tried[at].1, tried[at + 1].1];
    let bend = below - 2.0 * here + above;
    // if a neighbour diverged, nothing is known beyond the best itself
    let shift = if bend > 0.0 && bend.is_finite() { 0.5 * (below - above) / bend } else { 0.0 };
    tried[at].0 * pow(2.0, shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Walks as [`find`] does, over losses that are known.
    fn walk(first: f64, loss: impl Fn(f64) -> f64) -> Vec<(f64, f64)> {
        let mut tried = vec![(first, loss(first))];
        while let Some(rate) = next_rate(&tried).filter(|_| tried.len() < TRIES) {
            tried.push((rate, loss(rate)));
            tried.sort_by(|a, b| a.0.total_cmp(&b.0));
        }
        tried
    }

    #[test]
    fn the_bottom_of_a_valley_is_found_from_either_side() {
        for bottom in [1e-4, 3e-3, 0.07] {
            for first in [bottom / 20.0, bottom, bottom * 20.0] {
                let tried = walk(first, |rate| (rate / bottom).ln().powi(2));
                assert!((least(&tried) / bottom - 1.0).abs() < 1e-9, "{first:e} to {bottom:e}: {tried:?}");
                let cliff = walk(first, |rate| if rate > bottom { f64::INFINITY } else { -rate });
                assert!((0.4..=1.0).contains(&(least(&cliff) / bottom)), "{first:e} to {bottom:e}: {cliff:?}");
            }
        }
        // nothing learns: it ends all the same
        assert!(walk(1e-3, |_| f64::INFINITY).len() <= TRIES && walk(1e-3, |_| 1.0).len() <= TRIES);
    }
}

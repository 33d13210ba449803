//! A learning rate by trying: some steps with a rate that grows from one to the next, and the losses they meet (Smith 2015,
//! "Cyclical learning rates for training neural networks"). Too small a rate changes nothing, too large a one diverges; in
//! between the loss falls.

use super::{TrainError, Trainer};
use crate::data::Batches;

/// What was tried and what it showed.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// Each rate, and the smoothed loss after steps up to it.
    pub curve: Vec<(f64, f64)>,
    /// The rate at which the loss was least.
    pub lowest: f64,
    /// A rate to begin with: a tenth of that, because a long run does not bear what a few steps do.
    pub suggested: f64,
}

/// How much a loss counts in the smoothed one.
const SHARE: f64 = 0.1;

/// Takes up to `steps` steps whose rates grow from `least` to `greatest`, each by the same factor, and stops where the loss
/// climbs. The trainer is used up. `goes_on` is asked after every step.
///
/// # Errors
/// If the very first loss is not finite.
pub fn find(
    trainer: &mut Trainer,
    batches: &Batches,
    (least, greatest, steps): (f64, f64, u64),
    goes_on: &mut dyn FnMut(f64, f64) -> bool,
) -> Result<Found, TrainError> {
    let (mut curve, mut smooth, mut weight): (Vec<(f64, f64)>, f64, f64) = (vec![], 0.0, 0.0);
    for i in 0..steps {
        let rate = least * (greatest / least).powf(i as f64 / (steps - 1).max(1) as f64);
        // a rate so large that numbers overflow has shown what it is
        let step = trainer.gradient(batches).and_then(|gradient| trainer.update(batches, gradient, rate, &mut []));
        let loss = match step {
            Ok(step) => step.loss,
            Err(TrainError::NotFinite { .. }) if !curve.is_empty() => break,
            Err(error) => return Err(error),
        };
        smooth = (1.0 - SHARE) * smooth + SHARE * loss;
        weight = (1.0 - SHARE) * weight + SHARE;
        curve.push((rate, smooth / weight));
        let best = lowest(&curve).1;
        let first = curve[0].1;
        if !goes_on(rate, loss) || smooth / weight > best + 0.5 * (first - best).max(0.1 * first) {
            break;
        }
    }
    let (lowest, _) = lowest(&curve);
    Ok(Found { curve, lowest, suggested: lowest / 10.0 })
}

fn lowest(curve: &[(f64, f64)]) -> (f64, f64) {
    curve.iter().copied().min_by(|a, b| a.1.total_cmp(&b.1)).expect("there was a step")
}

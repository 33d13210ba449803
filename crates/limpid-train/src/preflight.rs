//! The check before the first step. On two sequences of the real data, with the real weights and backend, it finds out
//! whether training can work at all. It undoes what it writes.

use crate::batches::{Batches, count_targets};
use crate::error::{PreflightError, TrainError};
use crate::trainer::Trainer;
use limpid_core::backend;
use limpid_core::finite;
use limpid_core::model::Param;
use limpid_core::numeric::math;
use limpid_core::numeric::random;
use limpid_core::ops::{Batch, IGNORE};

/// The result of a check that passed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PreflightReport {
    /// The loss of the weights as they are.
    pub loss: f64,
    /// ln V
    pub uniform: f64,
}

/// The largest standard deviation of a row's logits that is accepted before the first update. If the logits are normal
/// with standard deviation s, the loss is s^2 / 2 above ln V. Training still recovers from a loss that is up to 1 + ln
/// V / 10 above it, which He's weights at nano's width need.
fn largest_spread(uniform: f64) -> f64 {
    (2.0 * (1.0 + 0.1 * uniform)).sqrt()
}

/// The gradient of a parameter, in two numbers.
#[derive(Clone, Copy)]
struct Slope {
    /// Its norm.
    size: f64,
    /// Its component along a direction of random signs.
    along: f64,
}

/// Checks that there is something to predict, that the gradient reaches every trained parameter and is finite, that
/// each of them is updated, that gradient accumulation adds up, and that the initial weights are not too large.
///
/// # Errors
/// The first of these that does not hold, with the parameter's name.
pub fn preflight(trainer: &mut Trainer, batches: &Batches) -> Result<PreflightReport, PreflightError> {
    trainer.losses().ok_or(PreflightError::Purpose)?;
    trainer.settle().map_err(TrainError::into_backend)?;
    let batch = two_sequences(trainer, batches)?;
    let loss = first_loss(trainer, &batch)?;
    let uniform = math::ln_f64(trainer.model.config.vocab_size as f64);
    if trainer.fresh {
        let (spread, most) = (spread(trainer, &batch)?, largest_spread(uniform));
        if spread.is_nan() || spread > most {
            return Err(PreflightError::TooLarge { spread, most });
        }
    }
    fill_zeros(trainer)?;
    let found = check_gradients(trainer, &batch);
    trainer.discard()?;
    trainer.settle().map_err(TrainError::into_backend)?;
    found.map(|()| PreflightReport { loss, uniform })
}

/// The batch that is checked: two sequences of the first batch that has a target, or all of it if those two have none.
fn two_sequences(trainer: &Trainer, batches: &Batches) -> Result<Batch, PreflightError> {
    let (mut whole, mut batch) = (Batch::default(), Batch::default());
    if !batches.fill_counted(trainer.skipped, &mut whole) {
        return Err(PreflightError::NothingToPredict);
    }
    batch.take(&whole, 0..whole.spans.len().min(2));
    if count_targets(&batch) == 0 {
        batch.copy_from(&whole);
    }
    batch.seed = None; // dropout would differ in micro-batches, and could silence a parameter
    batch.terms = Default::default();
    batch.weight = 1.0 / count_targets(&batch) as f32;
    Ok(batch)
}

/// Puts small values in place of parameters that are zero, until the trainer settles. A factor that is zero, such as
/// LoRA's B, stops the gradient of what it multiplies.
fn fill_zeros(trainer: &mut Trainer) -> backend::Result<()> {
    let mut zero = vec![];
    for param in trainer.trained() {
        let values = trainer.backend.read(param.region)?;
        if values.iter().all(|value| *value == 0.0) {
            zero.push((param.region, values, random::site(&param.name)));
        }
    }
    for (region, values, site) in zero {
        trainer.write_later(region, values);
        trainer.backend.fill(region, &|i| 0.02 * random::normal(1, site, i as u64) as f32)?;
    }
    Ok(())
}

/// The loss of the weights as they are.
fn first_loss(trainer: &mut Trainer, batch: &Batch) -> Result<f64, PreflightError> {
    let Trainer { model, backend, .. } = trainer;
    let losses = model.losses().expect("a model in training has losses").for_batch(batch);
    backend.feed(batch)?;
    backend.forward(model.ops())?;
    let loss = backend.sum(losses)? / count_targets(batch) as f64;
    if loss.is_finite() {
        return Ok(loss);
    }
    let found = finite::find_not_finite(model, &mut **backend, batch)?;
    let (tensor, value) = found.map_or(("losses".into(), loss as f32), |bad| (bad.name, bad.value));
    Err(PreflightError::NotFinite { tensor, value })
}

/// Targets that are drawn for each row, to see how its logits vary.
const DRAWS: u64 = 4;

/// The standard deviation of the logits in a row, without the logit of the row's own token. With a tied head that logit
/// is large: the residual stream carries the token's embedding and is multiplied by the same embedding (10 nats and
/// more after a norm at GPT-2's width). It is soon unlearned and is no sign of large weights. The losses of two targets
/// in a row differ by as much as their logits, so a few targets drawn for each row are enough.
fn spread(trainer: &mut Trainer, batch: &Batch) -> backend::Result<f64> {
    let Trainer { model, backend, .. } = trainer;
    let losses = model.losses().expect("a model in training has losses");
    let (head, others) = (model.program.forward(model.body().len()..), model.config.vocab_size as u64 - 1);
    let rows: Vec<usize> = (0..batch.tokens.len()).filter(|row| batch.targets[*row] != IGNORE).collect();
    if others < 2 {
        return Ok(0.0);
    }
    let mut other = batch.clone();
    let mut drawn = |draw: u64| {
        for &row in &rows {
            let target = random::below(3, draw, row as u64, others) as u32;
            other.targets[row] = target + u32::from(target >= batch.tokens[row]);
        }
        backend.feed(&other)?;
        backend.forward(head)?;
        backend.read(losses)
    };
    let drawn: Vec<Vec<f32>> = (0..DRAWS).map(&mut drawn).collect::<backend::Result<_>>()?;
    let variance = |row: &usize| {
        let loss = |losses: &Vec<f32>| f64::from(losses[*row]);
        let mean = drawn.iter().map(loss).sum::<f64>() / DRAWS as f64;
        drawn.iter().map(|losses| (loss(losses) - mean).powi(2)).sum::<f64>() / (DRAWS - 1) as f64
    };
    Ok((rows.iter().map(variance).sum::<f64>() / rows.len() as f64).sqrt())
}

/// Checks the gradients of all trained parameters: from the batch at once, and from its sequences as micro-batches.
fn check_gradients(trainer: &mut Trainer, batch: &Batch) -> Result<(), PreflightError> {
    let trained: Vec<Param> = trainer.model.params.iter().filter(|p| p.region.learns()).cloned().collect();
    if let Some(param) = trained.iter().find(|p| !trainer.trains(p)) {
        return Err(PreflightError::NotUpdated { param: param.name.clone() });
    }
    let together = slopes(trainer, &trained, std::slice::from_ref(batch))?;
    for (param, seen) in trained.iter().zip(&together) {
        if seen.size == 0.0 {
            return Err(PreflightError::Unreached { param: param.name.clone() });
        }
    }
    // its sequences one by one; a single sequence twice, at half its weight
    let n = batch.spans.len();
    let parts: Vec<Batch> = (0..n.max(2))
        .map(|i| {
            let mut part = Batch::default();
            part.take(batch, i % n..i % n + 1);
            part.weight /= if n == 1 { 2.0 } else { 1.0 };
            part
        })
        .collect();
    let apart = slopes(trainer, &trained, &parts)?;
    for ((param, one), two) in trained.iter().zip(&together).zip(&apart) {
        let off = (one.along - two.along).abs().max((one.size - two.size).abs());
        if off > 1e-2 * one.size {
            return Err(PreflightError::Accumulation { param: param.name.clone(), one: one.along, two: two.along });
        }
    }
    Ok(())
}

/// The gradients that some batches add up to.
fn slopes(trainer: &mut Trainer, params: &[Param], batches: &[Batch]) -> Result<Vec<Slope>, PreflightError> {
    trainer.discard()?;
    trainer.mark_gradients();
    for batch in batches {
        trainer.backend.feed(batch)?;
        trainer.backend.forward(trainer.model.body())?;
        trainer.backend.backward(trainer.model.back())?;
    }
    let each = params.iter().map(|param| {
        let mut seen = Slope { size: 0.0, along: 0.0 };
        let site = random::site(&param.name);
        for (i, some) in trainer.backend.read(param.region.grad())?.chunks(64).enumerate() {
            let signs = random::bits(2, site, i as u64); // a bit for each
            for (bit, &g) in some.iter().enumerate() {
                if !g.is_finite() {
                    let tensor = format!("the gradient of {}", param.name);
                    return Err(PreflightError::NotFinite { tensor, value: g });
                }
                let g = f64::from(g);
                seen.size += g * g;
                seen.along += if (signs >> bit) & 1 == 0 { g } else { -g };
            }
        }
        Ok(Slope { size: seen.size.sqrt(), ..seen })
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Recipe;
    use crate::ranks::team::Team;
    use limpid_core::backend::Cpu;
    use limpid_core::config::Config;
    use limpid_core::model::{Mode, Model};

    /// Frozen by mistake: the parameter learns, but no group contains it.
    #[test]
    fn a_parameter_that_no_group_has_is_named() {
        let config = Config { vocab_size: 11, d_model: 8, n_head: 2, d_ff: 16, n_layer: 2, ..Config::default() };
        let model = Model::new(&config, Mode::Train { batch: 1, context: 4 }).unwrap();
        let backend = Box::new(Cpu::new(&model, 1));
        let mut trainer = Trainer::new(model, backend, Recipe::default()).unwrap();
        let at = trainer.model.param("blocks.1.mlp.out.weight").unwrap().region.at;
        let mut groups = trainer.team.groups().to_vec();
        groups.iter_mut().filter(|group| group.range.contains(&at)).for_each(|group| group.range.end = at);
        trainer.team = Team::alone(groups);
        let error = check_gradients(&mut trainer, &Batch::default()).unwrap_err();
        assert_eq!(error, PreflightError::NotUpdated { param: "blocks.1.mlp.out.weight".into() });
    }
}

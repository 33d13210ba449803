//! The look before the first step: on two sequences of the real data, with the real weights and backend, it sees whether
//! training can work at all. What it writes it takes back.

use super::Trainer;
use crate::data::{self, Batches};
use crate::model::Param;
use crate::ops::{Batch, random};
use crate::trace;

/// Why training would not work.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Preflight {
    /// A tensor that is not finite before anything was learned.
    #[error(
        "before the first step, {tensor} is not finite ({value}): look at the initial weights (--init, --init-std)"
    )]
    NotFinite {
        /// The first such tensor, in the order of computation.
        tensor: String,
        /// Its first such value.
        value: f32,
    },
    /// A parameter that no gradient reaches.
    #[error("no gradient reaches {param}: it would never learn, so the backward pass is cut between it and the loss")]
    Unreached {
        /// Its name.
        param: String,
    },
    /// A parameter that has a gradient and no update.
    #[error("{param} is to be trained, but no update would change it")]
    NotUpdated {
        /// Its name.
        param: String,
    },
    /// Accumulation that gives another gradient.
    #[error(
        "the gradient of {param} from two micro-batches is not that of their rows together \
         ({two:e} instead of {one:e} along one direction): accumulation is broken"
    )]
    Accumulation {
        /// The first parameter for which that is so.
        param: String,
        /// Together, along a random direction.
        one: f64,
        /// One after the other.
        two: f64,
    },
    /// Weights that begin far from knowing nothing.
    #[error(
        "the first loss is {loss:.4}, but a model that knows nothing has ln V = {uniform:.4}: the initial weights are too large \
         (--init, --init-std); --preflight false trains all the same"
    )]
    FirstLoss {
        /// What was found.
        loss: f64,
        /// ln V
        uniform: f64,
    },
}

/// What was seen of training that can work.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Seen {
    /// The loss of the weights as they are.
    pub loss: f64,
    /// ln V
    pub uniform: f64,
}

/// How far the first loss may be from ln V.
fn allowed(uniform: f64) -> f64 {
    1.0 + 0.1 * uniform
}

/// A gradient's size, and how far it goes along a direction of random signs.
#[derive(Clone, Copy)]
struct Slope {
    size: f64,
    along: f64,
}

/// Sees that every trained parameter is reached by the backward, finite and updated, that accumulation adds up, and that
/// fresh weights begin near ln V.
///
/// # Errors
/// The first of these that does not hold, with the parameter's name.
pub fn preflight(trainer: &mut Trainer, batches: &Batches) -> Result<Seen, Preflight> {
    let (mut whole, mut batch) = (Batch::default(), Batch::default());
    batches.fill(trainer.skipped, 0, &mut whole);
    let sequences = whole.spans.len();
    batch.take(&whole, 0..sequences.min(2));
    if data::counted(&batch) == 0 {
        batch.copy_from(&whole);
    }
    // dropout would be another one in micro-batches, and could silence a parameter
    (batch.seed, batch.terms, batch.weight) = (None, Default::default(), 1.0 / data::counted(&batch).max(1) as f32);

    let loss = first_loss(trainer, &batch)?;
    let uniform = (trainer.model.config.vocab_size as f64).ln();
    if trainer.fresh && (loss - uniform).abs() > allowed(uniform) {
        return Err(Preflight::FirstLoss { loss, uniform });
    }
    // a factor that begins as zero hides whatever it multiplies
    let zero = |p: &Param, t: &Trainer| t.trains(p) && t.backend.read(p.slot).iter().all(|v| *v == 0.0);
    let hidden: Vec<Param> = trainer.model.params.iter().filter(|p| zero(p, trainer)).cloned().collect();
    for param in &hidden {
        let draw = |i: usize| 0.02 * random::normal(1, random::site(&param.name), i as u64) as f32;
        trainer.backend.write(param.slot, &(0..param.slot.len()).map(draw).collect::<Vec<_>>());
    }
    let found = gradients(trainer, &batch);
    trainer.discard();
    for param in &hidden {
        trainer.backend.write(param.slot, &vec![0.0; param.slot.len()]);
    }
    found.map(|()| Seen { loss, uniform })
}

/// The loss of the weights as they are.
fn first_loss(trainer: &mut Trainer, batch: &Batch) -> Result<f64, Preflight> {
    let Trainer { model, backend, .. } = trainer;
    let losses = model.losses().expect("a model in training has losses").of(batch);
    backend.feed(batch);
    backend.forward(&model.ops);
    let loss = backend.sum(losses) / data::counted(batch).max(1) as f64;
    match loss.is_finite() {
        true => Ok(loss),
        false => Err(trace::find_not_finite(model, &mut **backend, batch)
            .map_or(Preflight::NotFinite { tensor: "losses".into(), value: loss as f32 }, |bad| {
                Preflight::NotFinite { tensor: bad.name, value: bad.value }
            })),
    }
}

fn gradients(trainer: &mut Trainer, batch: &Batch) -> Result<(), Preflight> {
    let trained: Vec<Param> = trainer.model.params.iter().filter(|p| p.slot.learns()).cloned().collect();
    if let Some(param) = trained.iter().find(|p| !trainer.trains(p)) {
        return Err(Preflight::NotUpdated { param: param.name.clone() });
    }
    let together = look(trainer, &trained, std::slice::from_ref(batch))?;
    for (param, seen) in trained.iter().zip(&together) {
        if seen.size == 0.0 {
            return Err(Preflight::Unreached { param: param.name.clone() });
        }
    }
    // its sequences one by one; a single one twice, at half its weight
    let n = batch.spans.len();
    let parts: Vec<Batch> = (0..n.max(2))
        .map(|i| {
            let mut part = Batch::default();
            part.take(batch, i % n..i % n + 1);
            part.weight /= if n == 1 { 2.0 } else { 1.0 };
            part
        })
        .collect();
    let apart = look(trainer, &trained, &parts)?;
    for ((param, one), two) in trained.iter().zip(&together).zip(&apart) {
        let off = (one.along - two.along).abs().max((one.size - two.size).abs());
        if off > 1e-2 * one.size {
            return Err(Preflight::Accumulation { param: param.name.clone(), one: one.along, two: two.along });
        }
    }
    Ok(())
}

/// The gradients that some batches add up to.
fn look(trainer: &mut Trainer, params: &[Param], batches: &[Batch]) -> Result<Vec<Slope>, Preflight> {
    trainer.discard();
    for batch in batches {
        trainer.backend.feed(batch);
        trainer.backend.forward(trainer.model.body());
        trainer.backend.backward(&trainer.model.back);
    }
    let each = params.iter().map(|param| {
        let mut seen = Slope { size: 0.0, along: 0.0 };
        for (i, g) in trainer.backend.read(param.slot.grad()).into_iter().enumerate() {
            if !g.is_finite() {
                let tensor = format!("the gradient of {}", param.name);
                return Err(Preflight::NotFinite { tensor, value: g });
            }
            let g = f64::from(g);
            seen.size += g * g;
            seen.along += if random::bits(2, random::site(&param.name), i as u64) & 1 == 0 { g } else { -g };
        }
        Ok(Slope { size: seen.size.sqrt(), ..seen })
    });
    each.collect()
}

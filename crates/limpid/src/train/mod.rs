//! Training: what to do (`recipe`), one step of it (this file), and a whole run in a folder (`run`).
//!
//! A step is: fill a batch, forward, backward, for every micro-batch; then one update. Gradients add and the loss
//! weighs each row by all rows of the step, so 8 x 1, 2 x 4 and 1 x 8 are the same step. The state is the
//! step's number and the arenas; everything random is a function of (seed, step).

pub mod recipe;
pub mod run;

pub use recipe::{Recipe, Reduction, Schedule};
pub use run::{Control, Event, Run, Summary};

use crate::backend::{Backend, Report};
use crate::checkpoint::store::Store;
use crate::checkpoint::{self, Checkpoint, CheckpointError};
use crate::config::ConfigError;
use crate::data::{self, Batches, DataError};
use crate::model::{Model, init};
use crate::ops::{Batch, Space, random};
use crate::trace;
use std::path::PathBuf;

/// Why training cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// A model that cannot be built, or a number of the recipe outside its range.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Data that cannot be used.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A file.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A number that is no number.
    #[error(
        "step {step}: {tensor} is not finite ({value}); the weights of step {} are untouched. \
         A smaller --learning-rate, a longer --warmup-steps or a smaller --clip usually helps", .step - 1
    )]
    NotFinite {
        /// The step that met it, from 1.
        step: u64,
        /// The first tensor that holds it, in the order of computation.
        tensor: String,
        /// Its first such value.
        value: f32,
    },
    /// A resume with another model or recipe.
    #[error("{} cannot be resumed with other settings: {what}", .path.display())]
    Differs {
        /// The run's folder.
        path: PathBuf,
        /// What differs.
        what: String,
    },
}

/// What one step found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// Its number, from 1.
    pub step: u64,
    /// Mean loss of its batch, before the update.
    pub loss: f64,
    /// Norm of the whole gradient, before clipping.
    pub norm: f64,
    /// Its learning rate.
    pub rate: f64,
    /// Tokens it saw.
    pub tokens: usize,
}

/// A model in training.
pub struct Trainer {
    /// The model, built to train.
    pub model: Model,
    /// Who runs it.
    pub backend: Box<dyn Backend>,
    /// What to do.
    pub recipe: Recipe,
    /// Steps done.
    pub step: u64,
    groups: Vec<(std::ops::Range<usize>, f64)>,
    batch: Batch,
}

impl Trainer {
    /// A trainer with initial weights.
    pub fn new(model: Model, mut backend: Box<dyn Backend>, recipe: Recipe) -> Trainer {
        for param in &model.params {
            backend.write(param.slot, &init::values(&model, param, recipe.init, recipe.init_std, recipe.seed));
        }
        Trainer::with(model, backend, recipe)
    }

    /// A trainer with a checkpoint's weights, and an adapter's initial ones where the model has one.
    ///
    /// # Errors
    /// If the checkpoint is not one of this model's.
    pub fn from(
        base: &Checkpoint,
        model: Model,
        mut backend: Box<dyn Backend>,
        recipe: Recipe,
    ) -> Result<Trainer, CheckpointError> {
        base.load(&model, &mut *backend)?;
        for param in model.params.iter().filter(|p| p.is_adapter()) {
            backend.write(param.slot, &init::values(&model, param, recipe.init, recipe.init_std, recipe.seed));
        }
        Ok(Trainer::with(model, backend, recipe))
    }

    /// A trainer with the weights that the backend has.
    fn with(model: Model, backend: Box<dyn Backend>, recipe: Recipe) -> Trainer {
        let groups = model.decay_groups(recipe.weight_decay);
        Trainer { model, backend, recipe, step: 0, groups, batch: Batch::default() }
    }

    /// Does one step: forward and backward of every micro-batch, then an update.
    ///
    /// # Errors
    /// If a loss or the gradient is not finite; the weights are then what they were, and the tensor is named.
    pub fn step(&mut self, batches: &Batches) -> Result<Step, TrainError> {
        let losses = self.model.losses().expect("a model in training has losses");
        let micros = self.recipe.accumulate as u64;
        let mut counted = 0;
        for micro in 0..micros {
            batches.fill(self.step, micro, &mut self.batch);
            counted += data::counted(&self.batch);
        }
        let (mut total, mut tokens) = (0.0, 0);
        for micro in 0..micros {
            if micros > 1 {
                batches.fill(self.step, micro, &mut self.batch);
            }
            self.feed(micro, counted);
            self.backend.forward(self.model.body());
            self.backend.backward(&self.model.back);
            let live = losses.of(&self.batch);
            total += self.backend.sum(live);
            tokens += self.batch.tokens.len();
        }
        let (loss, rate) = (total / counted.max(1) as f64, self.recipe.rate(self.step));
        let step = self.step + 1;
        let finite = loss.is_finite();
        let Report { norm, finite: updated } = match finite {
            true => self.backend.update(&self.groups, &self.recipe.rule(rate, step)),
            false => Report { norm: f64::NAN, finite: false },
        };
        if !updated {
            let (tensor, value) = self.first_not_finite(batches, counted);
            for param in self.model.learning() {
                self.backend.write(param.slot.grad(), &vec![0.0; param.slot.len()]);
            }
            return Err(TrainError::NotFinite { step, tensor, value });
        }
        self.step = step;
        Ok(Step { step, loss, norm, rate, tokens })
    }

    fn feed(&mut self, micro: u64, counted: usize) {
        self.batch.weight = match self.recipe.reduction {
            Reduction::Mean => 1.0 / counted.max(1) as f32,
            Reduction::Sum => 1.0,
        };
        self.batch.seed = Some(random::bits(self.recipe.seed, self.step, micro));
        self.backend.feed(&self.batch);
    }

    /// Runs the step again, op by op, and names the first tensor that holds what is no number.
    fn first_not_finite(&mut self, batches: &Batches, counted: usize) -> (String, f32) {
        let bad = |values: &[f32]| values.iter().copied().find(|v| !v.is_finite());
        for micro in 0..self.recipe.accumulate as u64 {
            batches.fill(self.step, micro, &mut self.batch);
            self.feed(micro, counted);
            if let Some(found) = trace::find_not_finite(&self.model, &mut *self.backend, &self.batch) {
                return (found.name, found.value);
            }
            for step in &self.model.back {
                self.backend.backward(&[*step]);
                for grad in step.dx.iter().flatten() {
                    if let Some(value) = bad(&self.backend.read(grad.slot.of(&self.batch))) {
                        let i = self.model.ops.iter().position(|op| *op == step.op).expect("an op of the list");
                        return (format!("the gradient that leaves {}", self.model.output_name(i)), value);
                    }
                }
            }
        }
        for param in self.model.learning() {
            if let Some(value) = bad(&self.backend.read(param.slot.grad())) {
                return (format!("the gradient of {}", param.name), value);
            }
        }
        ("the norm of the gradient".into(), f32::INFINITY)
    }

    /// Takes weights, moments and step from a state file.
    ///
    /// # Errors
    /// If a tensor is missing or of another shape; nothing has changed then.
    pub fn restore(&mut self, state: &Store, step: u64) -> Result<(), CheckpointError> {
        for (prefix, space) in [("", Space::Param), ("moment1/", Space::Moment1), ("moment2/", Space::Moment2)] {
            checkpoint::load(state, &self.model, &mut *self.backend, prefix, space)?;
        }
        self.step = step;
        Ok(())
    }
}

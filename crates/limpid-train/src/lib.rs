//! Training: its settings (`recipe`), one step (this file), and a whole run in a folder (`run`; `folder` says whether the folder may be
//! used). A run checks before its first step that training can work (`preflight`), looks for loss spikes (`divergence`), and logs what
//! happens (`log`, `events`). `lr_finder` suggests a learning rate.
//!
//! A step is: fill a batch, forward, backward, for every micro-batch; then one update. The loss weighs each row by all rows of
//! the step, so 8 x 1, 2 x 4 and 1 x 8 are the same step to rounding. A step whose batch has no target (conversations of which no
//! answer is in the windows) has no loss and no gradient: it only counts, and no weight or moment changes. The state is the step's
//! number and the arenas; everything random is a function of (seed, step).
//!
//! Gradients and losses of micro-batches add up in a binary tree: neighbours first, ((0 + 1) + (2 + 3)). Where their number is no
//! power of two, the greatest power of two below it is the left branch, and the rest is a tree likewise: ((0 + 1) + (2 + 3)) +
//! ((4 + 5) + 6). So several processes, each with a branch, come to the same bits (`ranks`).

pub mod batches;
pub mod divergence;
pub mod evaluate;
mod events;
pub mod folder;
pub mod log;
pub mod lr_finder;
pub mod preflight;
pub mod ranks;
pub mod recipe;
pub mod run;
mod shuffle;

pub use batches::{Batches, Documents, Objective, WindowOrder, Windows};
pub use preflight::{PreflightError, preflight};
pub use ranks::{AllReduce, Ranks, RanksError, Solo};
pub use recipe::{Divergence, Recipe, Reduction, RunOptions, RunSettings, Schedule};
pub use run::{Control, LayerUpdate, RECENT, Resumable, Run, Summary, TrainEvent};

use folder::FolderContents;
use limpid_checkpoint::store::Store;
use limpid_checkpoint::{Checkpoint, CheckpointError};
use limpid_core::backend::{self, Backend, BackendError, Ticket, UpdateReport};
use limpid_core::config::ConfigError;
use limpid_core::finite;
use limpid_core::model::{Mode, Model, Param, init};
use limpid_core::ops::adamw::{Change, Rule};
use limpid_core::ops::{Batch, MemorySpace, Pass, Region, random};
use limpid_data::DataError;
use ranks::check_micros;
use ranks::courier::Freight;
use ranks::shards::Uses;
use ranks::team::{Team, TeamOrder};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Why training cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// A model that cannot be built, or a number of the recipe outside its range.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Data that cannot be used.
    #[error(transparent)]
    Data(#[from] DataError),
    /// Files of text that were changed while they were read.
    #[error(transparent)]
    Corpus(#[from] limpid_data::CorpusError),
    /// A file.
    #[error(transparent)]
    Checkpoint(CheckpointError),
    /// The backend: the weights and what is on disk are as before the step.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// Processes that train one model and do not reach each other, or do not fit together.
    #[error(transparent)]
    Ranks(#[from] RanksError),
    /// A model that was built for another mode.
    #[error("the model was built for another mode: it computes no {lacks}. Build it with {mend}")]
    Purpose {
        /// What it does not compute.
        lacks: &'static str,
        /// The uses with which it does.
        mend: &'static str,
    },
    /// A NaN or an infinity in a loss, a gradient or an update.
    #[error(
        "step {step}: {tensor} is not finite ({value}); the weights of step {} are untouched. \
         A smaller learning_rate, more warmup_steps or a smaller clip usually helps", .step - 1
    )]
    NotFinite {
        /// The step that met it, from 1.
        step: u64,
        /// The first tensor that holds it, in the order of computation.
        tensor: String,
        /// Its first such value.
        value: f32,
    },
    /// The check before the first step failed.
    #[error(transparent)]
    Preflight(PreflightError),
    /// A loss spike, where the settings say to stop.
    #[error(
        "step {step}: loss spike: {loss:.4} is {deviations:.0} standard deviations above the recent mean {usual:.4}. \
         Rolling back and skipping the data that led here may help (divergence rollback); a smaller learning_rate helps more"
    )]
    Spike {
        /// The step that was not done.
        step: u64,
        /// Its loss.
        loss: f64,
        /// The recent losses' mean.
        usual: f64,
        /// The distance between the two, in standard deviations of the recent losses.
        deviations: f64,
    },
    /// A loss that rose far above the first one and stays there.
    #[error(
        "step {step}: the loss is {loss:.4} and was {first:.4} at first: training diverges. A learning rate of \
         {} would be the next to try, or run the learning-rate finder", short(.rate / 10.0)
    )]
    Diverged {
        /// The last step done.
        step: u64,
        /// The recent losses' mean.
        loss: f64,
        /// The first loss.
        first: f64,
        /// The recipe's learning rate.
        rate: f64,
    },
    /// More rollbacks than are of use.
    #[error(
        "training broke off {times} times, the last time at step {step}: rolling back does not help; a smaller learning_rate may"
    )]
    TooManyRollbacks {
        /// How often.
        times: u64,
        /// Where it did last.
        step: u64,
    },
    /// Another process trains in the folder.
    #[error("another process is training in {} (its lock is state/lock): wait for it, stop it, or choose another folder", .path.display())]
    Busy {
        /// The run's folder.
        path: PathBuf,
    },
    /// The run's folder was moved away or removed while it trained.
    #[error(
        "{} is no longer the folder of this run: it was moved or removed while the run went on. Put it back in its place before the run \
         ends, and nothing is lost; or go on later from the last state that was saved in it", .path.display()
    )]
    FolderGone {
        /// Where it was.
        path: PathBuf,
    },
    /// A folder that holds something else.
    #[error("{}", .found.says(.path))]
    FolderNotEmpty {
        /// The folder.
        path: PathBuf,
        /// What it holds.
        found: FolderContents,
    },
    /// A resume with another model, recipe or text.
    #[error(
        "{} cannot be resumed with other settings: {what}. What may differ: {}. A new run may begin from this one's model, in another \
         folder", .path.display(), recipe::free()
    )]
    Differs {
        /// The run's folder.
        path: PathBuf,
        /// What differs.
        what: String,
    },
}

impl From<CheckpointError> for TrainError {
    fn from(error: CheckpointError) -> TrainError {
        match error {
            CheckpointError::Backend(error) => TrainError::Backend(error),
            error => TrainError::Checkpoint(error),
        }
    }
}

impl From<PreflightError> for TrainError {
    fn from(error: PreflightError) -> TrainError {
        match error {
            PreflightError::Backend(error) => TrainError::Backend(error),
            error => TrainError::Preflight(error),
        }
    }
}

impl TrainError {
    /// As an error of the backend: other processes are as lost as a device is.
    fn into_backend(self) -> BackendError {
        match self {
            TrainError::Backend(error) => error,
            error => BackendError::Lost { op: "training together", what: error.to_string() },
        }
    }

    /// The settings that may help, each by its name and, where one is known, with a value: `clip`, `divergence rollback`.
    pub fn settings(&self) -> Vec<String> {
        let names: &[&str] = match self {
            TrainError::NotFinite { .. } => &["learning_rate", "warmup_steps", "clip"],
            TrainError::Preflight(error) => error.settings(),
            TrainError::Spike { .. } => &["divergence rollback", "learning_rate"],
            TrainError::Diverged { rate, .. } => {
                return vec![format!("learning_rate {}", short(rate / 10.0)), "lr_find".into()];
            }
            TrainError::TooManyRollbacks { .. } => &["learning_rate"],
            TrainError::Busy { .. } => &["out"],
            TrainError::FolderGone { path } => return vec![format!("resume {}", path.display())],
            TrainError::FolderNotEmpty { path, found } => return found.settings(path),
            TrainError::Differs { path, .. } => return vec!["out".into(), format!("from {}", path.display())],
            TrainError::Data(error) => return error.settings(),
            TrainError::Config(_)
            | TrainError::Checkpoint(_)
            | TrainError::Corpus(_)
            | TrainError::Backend(_)
            | TrainError::Ranks(_)
            | TrainError::Purpose { .. } => &[],
        };
        names.iter().map(ToString::to_string).collect()
    }
}

/// Micro-batches whose losses are waited for at most: more would keep no device busier, and all that they send is in memory.
const IN_FLIGHT: usize = 4;

/// The share by which the limit of a device's losses is lower than what they are judged by.
const HOLD_EARLY: f64 = 1e-5;

/// How many sums that were set aside are added to the micro-batch of this place: a binary counter, whose bits they are.
fn pairs(place: u64, last: bool) -> u32 {
    if last { place.count_ones() } else { place.trailing_ones() }
}

/// A rate in one digit.
fn short(rate: f64) -> String {
    format!("{rate:.0e}").parse::<f64>().unwrap_or(rate).to_string()
}

/// Values of some parameters, and where they lie.
type Weights = Vec<(Region, Vec<f32>)>;

/// What one step found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// Its number, from 1.
    pub step: u64,
    /// Mean loss of its batch, before the update; none if the batch had no target.
    pub loss: Option<f64>,
    /// Norm of the whole gradient, before clipping; none if there was no loss.
    pub norm: Option<f64>,
    /// Its learning rate.
    pub rate: f64,
    /// Tokens it saw.
    pub tokens: usize,
}

/// A model in training.
pub struct Trainer {
    /// The model, built to train.
    pub model: Model,
    /// The backend that runs it.
    pub backend: Box<dyn Backend>,
    /// What to do.
    pub recipe: Recipe,
    /// Steps done.
    pub step: u64,
    /// Steps' worth of data that were skipped: step s trains on the data of step s + skipped.
    pub skipped: u64,
    /// Whether the weights are the initial ones of [`Trainer::new`]; set it to false after writing others.
    pub fresh: bool,
    /// This process among those that train the model: alone, unless [`Trainer::among`] others.
    team: Team,
    batch: Batch,
    /// What was asked for of micro-batches and is yet to be fetched: the losses of each, in their order.
    asked: VecDeque<(Ticket, usize)>,
    /// Losses of a micro-batch; and the sums of those that were fetched and are yet to be added up.
    fetched: Vec<f32>,
    sums: Vec<backend::Result<f64>>,
    /// The gradient of the next step, where it was begun before the last step was known; or why it could not be begun.
    ahead: Option<Result<Computing, TrainError>>,
    /// Whether the backend holds gradients that no update has used.
    waits: bool,
    /// Whether an update was begun whose report is yet to come.
    begun: bool,
    /// How much the average is yet to move for the last update.
    behind: Option<f64>,
    /// Whether other processes are yet to get the parameters that the last update changed here.
    unspread: bool,
    /// Stretches of parameters, from the first, that have changed places with their average.
    swapped: usize,
    /// What is yet to be written, last first: others' values lie in these places.
    lent: Weights,
}

/// The gradient of a step, which waits in the backend for [`Trainer::update`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gradient {
    /// Mean loss of the step's batch; none if it has no target, and then there is no gradient either.
    pub loss: Option<f64>,
    /// Tokens it saw.
    pub tokens: usize,
}

/// A gradient that the device may still compute: its losses are to be fetched.
#[derive(Clone, Copy, Debug)]
struct Computing {
    /// Micro-batches.
    micros: usize,
    /// Tokens with a target, in all micro-batches of the step.
    counted: usize,
    /// Tokens, in all micro-batches of the step.
    tokens: usize,
    /// Bytes to a device and from it.
    moved: [u64; 2],
}

/// What some of a step's micro-batches came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Branch {
    /// The sum of their losses.
    pub loss: f64,
    /// Tokens with a target, in all micro-batches of the step.
    pub counted: usize,
    /// Tokens, in all micro-batches of the step.
    pub tokens: usize,
}

impl Trainer {
    /// A trainer with initial weights.
    ///
    /// # Errors
    /// If the backend cannot write them, or not update them by the recipe.
    pub fn new(model: Model, mut backend: Box<dyn Backend>, recipe: Recipe) -> backend::Result<Trainer> {
        backend.can_update(&model.update_groups(recipe.weight_decay, recipe.optimizer))?;
        for param in &model.params {
            backend.fill(param.region, &init::value(&model, param, recipe.init, recipe.init_std, recipe.seed))?;
        }
        Ok(Trainer { fresh: true, ..Trainer::with(model, backend, recipe) })
    }

    /// A trainer with a checkpoint's weights, and an adapter's initial ones where the model has one.
    ///
    /// # Errors
    /// If the checkpoint is not one of this model's, or the backend cannot update it by the recipe.
    pub fn from(
        base: &Checkpoint,
        model: Model,
        mut backend: Box<dyn Backend>,
        recipe: Recipe,
    ) -> Result<Trainer, CheckpointError> {
        backend.can_update(&model.update_groups(recipe.weight_decay, recipe.optimizer))?;
        base.load(&model, &mut *backend)?;
        for param in model.params.iter().filter(|p| p.is_adapter()) {
            backend.fill(param.region, &init::value(&model, param, recipe.init, recipe.init_std, recipe.seed))?;
        }
        Ok(Trainer::with(model, backend, recipe))
    }

    /// A trainer with the weights that the backend has.
    fn with(model: Model, backend: Box<dyn Backend>, recipe: Recipe) -> Trainer {
        let groups = model.update_groups(recipe.weight_decay, recipe.optimizer);
        Trainer {
            model,
            backend,
            recipe,
            step: 0,
            skipped: 0,
            fresh: false,
            team: Team::alone(groups),
            batch: Batch::default(),
            asked: VecDeque::new(),
            fetched: vec![],
            sums: vec![],
            ahead: None,
            waits: false,
            begun: false,
            behind: None,
            unspread: false,
            swapped: 0,
            lent: vec![],
        }
    }

    /// The same trainer, in one of several processes that train one model together. Every process is given the same model,
    /// recipe and data, and makes the same calls. Each step's micro-batches ([`Recipe::accumulate`]) are shared out, and so is the
    /// optimizer's memory; weights and losses have the bits that one process would give them.
    ///
    /// # Errors
    /// If the numbers of processes and of micro-batches are no powers of two, or there are fewer micro-batches.
    pub fn among(mut self, ranks: Box<dyn Ranks>) -> Result<Trainer, TrainError> {
        let processes = ranks.size();
        check_micros(processes, self.recipe.accumulate as u64, self.recipe.batch_size)?;
        if processes > 1 {
            self.backend.keep_part();
        }
        let team = self.team.among(ranks, &Uses::of(&self.model))?;
        Ok(Trainer { team, ..self })
    }

    /// Which process this is, and how many there are.
    pub fn rank(&self) -> (usize, usize) {
        (self.team.rank(), self.team.size())
    }

    /// Does one step: the gradient of every micro-batch, then an update.
    ///
    /// # Errors
    /// If a loss or the gradient is not finite; the weights are then what they were, and the tensor is named. If the backend
    /// fails; unless the device is lost, training goes on where [`Trainer::step`] says it is.
    pub fn step(&mut self, batches: &Batches) -> Result<Step, TrainError> {
        let gradient = self.gradient(batches)?;
        self.update(batches, gradient, self.recipe.rate(self.step), &mut [])
    }

    /// Forward and backward of every micro-batch of the next step: this process's own, to which the others' are added.
    ///
    /// # Errors
    /// If the loss is not finite; the gradient is forgotten then, and the first tensor that broke is named. If the backend
    /// fails, or other processes are not reached; the next gradient begins anew. If the model was not made to be trained, or a
    /// file of the text was changed.
    pub fn gradient(&mut self, batches: &Batches) -> Result<Gradient, TrainError> {
        let own = self.team.micros(self.recipe.accumulate as u64);
        let Computing { counted, tokens, micros, .. } = self.run(batches, own, true)?;
        if counted == 0 {
            return Ok(Gradient { loss: None, tokens });
        }
        let loss = self.loss(micros)?;
        let loss = self.team.add_losses(loss)? / counted as f64;
        if loss.is_finite() { Ok(Gradient { loss: Some(loss), tokens }) } else { Err(self.broken(batches)) }
    }

    /// Forward and backward of some of the next step's micro-batches: a branch of their tree. Its gradient waits in the backend.
    ///
    /// # Errors
    /// As [`Trainer::gradient`].
    pub fn branch(&mut self, batches: &Batches, micros: Range<u64>) -> Result<Branch, TrainError> {
        let Computing { counted, tokens, micros, .. } = self.run(batches, micros, false)?;
        Ok(Branch { loss: self.loss(micros)?, counted, tokens })
    }

    /// [`Trainer::branch`] without its losses, to which the other processes' branches are added if it is `shared`.
    fn run(&mut self, batches: &Batches, micros: Range<u64>, shared: bool) -> Result<Computing, TrainError> {
        self.settle_own()?;
        if self.waits {
            self.discard()?;
        }
        self.compute(batches, self.step, micros, shared)
    }

    /// Begins forward and backward of micro-batches of the step after `step` steps, unless none of its rows has a target. No gradient
    /// waits.
    fn compute(
        &mut self,
        batches: &Batches,
        step: u64,
        micros: Range<u64>,
        shared: bool,
    ) -> Result<Computing, TrainError> {
        let losses = self.losses().ok_or(TrainError::Purpose { lacks: "gradients", mend: "Mode::Train" })?;
        batches.check_files()?;
        let (there, data) = (self.backend.transferred(), step + self.skipped);
        let (mut counted, mut tokens) = (0, 0);
        for micro in 0..self.recipe.accumulate as u64 {
            batches.fill(data, micro, &mut self.batch);
            counted += batches::counted(&self.batch);
            tokens += self.batch.tokens.len();
        }
        if counted == 0 {
            return Ok(Computing { micros: 0, counted, tokens, moved: [0; 2] });
        }
        self.waits = true;
        for micro in micros.clone() {
            if self.recipe.accumulate > 1 {
                batches.fill(data, micro, &mut self.batch);
            }
            self.feed(data, micro, counted)?;
            self.forward()?;
            let sends = shared && self.team.size() > 1 && micro + 1 == micros.end;
            if sends {
                self.backward_and_send()?
            } else {
                self.backend.backward(self.model.back())?
            }
            let losses = losses.of(&self.batch);
            self.asked.push_back((self.backend.request(losses)?, losses.len()));
            self.add_up(micro, &micros, !sends)?;
            self.fetch(self.sums.len() + self.asked.len().saturating_sub(IN_FLIGHT));
        }
        let (here, micros) = (self.backend.transferred(), micros.end.saturating_sub(micros.start) as usize);
        Ok(Computing { micros, counted, tokens, moved: std::array::from_fn(|way| here[way] - there[way]) })
    }

    /// Fetches the losses of micro-batches, those that were asked for first, until there are the sums of so many.
    fn fetch(&mut self, micros: usize) {
        while self.sums.len() < micros {
            let (ticket, len) = self.asked.pop_front().expect("a micro-batch asks for its losses");
            self.fetched.resize(len, 0.0);
            let fetched = self.backend.fetch(ticket, &mut self.fetched);
            self.sums.push(fetched.map(|()| self.fetched.iter().map(|loss| f64::from(*loss)).sum()));
        }
    }

    /// The sum of the losses of all micro-batches of a gradient, which is added up as the gradient is.
    fn loss(&mut self, micros: usize) -> backend::Result<f64> {
        self.fetch(micros);
        let (mut aside, mut kept) = ([0.0; u64::BITS as usize], 0); // as many as a number of micro-batches has bits
        let mut found = Ok(0.0);
        for (place, sum) in self.sums.drain(..micros).enumerate() {
            let Ok(mut loss) = sum else {
                found = sum;
                break;
            };
            for _ in 0..pairs(place as u64, place + 1 == micros) {
                kept -= 1;
                loss += aside[kept];
            }
            (aside[kept], found) = (loss, Ok(loss));
            kept += 1;
        }
        found
    }

    /// Forward of a micro-batch; takes in the other processes' parameters on the way, each before it is read.
    fn forward(&mut self) -> Result<(), TrainError> {
        let (ops, mut done) = (self.model.body(), 0);
        if self.unspread {
            self.team.begin(Freight::Parameters)?;
            for (place, blocks) in self.team.stops(Freight::Parameters) {
                self.backend.forward(ops.part(done..place))?;
                self.team.carry(&mut *self.backend, self.team.blocks(), blocks)?;
                done = place;
            }
            self.unspread = false;
        }
        Ok(self.backend.forward(ops.part(done..))?)
    }

    /// Backward of this process's last micro-batch, which sends each gradient off as soon as it is final.
    fn backward_and_send(&mut self) -> Result<(), TrainError> {
        let (passes, mut done) = (self.model.back(), 0);
        self.team.begin(Freight::Gradients)?;
        for (place, blocks) in self.team.stops(Freight::Gradients) {
            self.backend.backward(passes.part(done..place))?;
            self.team.carry(&mut *self.backend, blocks, 0)?;
            done = place;
        }
        self.backend.backward(passes.part(done..))?;
        self.team.carry(&mut *self.backend, self.team.blocks(), self.team.blocks())
    }

    /// Adds the gradient of a micro-batch (unless that was done) to those of the ones before it, as far as the tree has both of a
    /// pair, and sets the sum aside where another one follows.
    fn add_up(&mut self, micro: u64, own: &Range<u64>, gradients: bool) -> backend::Result<()> {
        let (place, last) = (micro - own.start, micro + 1 == own.end);
        for _ in 0..if gradients { pairs(place, last) } else { 0 } {
            self.backend.add_pushed()?;
        }
        if last { Ok(()) } else { self.backend.push_gradients() }
    }

    /// The losses of a model that was made to be trained.
    fn losses(&self) -> Option<Region> {
        self.model.losses().filter(|_| matches!(self.model.mode, Mode::Train { .. }))
    }

    /// Updates the weights with the gradient that waits, and their average if there is one; adds to `watch` what that did to
    /// those stretches.
    ///
    /// # Errors
    /// If the gradient is not finite, or the backend cannot update; the weights are then what they were. If it cannot report, or
    /// move the average; the step is then done all the same, and the rest of it before the next one.
    pub fn update(
        &mut self,
        batches: &Batches,
        gradient: Gradient,
        rate: f64,
        watch: &mut [Change],
    ) -> Result<Step, TrainError> {
        let done = self.update_own(batches, gradient, rate, watch)?;
        self.settle()?;
        Ok(done)
    }

    /// [`Trainer::update`] of what this process updates: parameters of the others come with the next step, or when it settles.
    fn update_own(
        &mut self,
        batches: &Batches,
        gradient: Gradient,
        rate: f64,
        watch: &mut [Change],
    ) -> Result<Step, TrainError> {
        let Gradient { loss, tokens } = gradient;
        if loss.is_none() {
            return Ok(self.pass(tokens, rate));
        }
        let pieces = self.team.cut(watch);
        self.begin(rate, None, &pieces)?;
        let norm = self.end(batches, pieces, watch)?.expect("nothing holds it back");
        Ok(Step { step: self.step, loss, norm: Some(norm), rate, tokens })
    }

    /// A step of which no token was to be predicted.
    fn pass(&mut self, tokens: usize, rate: f64) -> Step {
        self.step += 1;
        Step { step: self.step, loss: None, norm: None, rate, tokens }
    }

    /// Whether steps are of use that begin before the last one is known ([`Trainer::step_ahead`]).
    fn runs_ahead(&self) -> bool {
        self.team.size() == 1 && self.backend.runs_ahead()
    }

    /// A step that asks for nothing before the device has the whole of it, and, if `goes_on`, the gradient of the next one: the device
    /// is not idle while somebody looks at what came out. If the loss is above `most`, or is none, nothing was changed, and the answer
    /// is none.
    ///
    /// # Errors
    /// As [`Trainer::gradient`] and [`Trainer::update`].
    fn step_ahead(
        &mut self,
        batches: &Batches,
        most: f64,
        rate: f64,
        watch: &mut [Change],
        goes_on: bool,
    ) -> Result<Option<Step>, TrainError> {
        let all = 0..self.recipe.accumulate as u64;
        let begun = match self.ahead.take() {
            Some(begun) => begun?,
            None => self.run(batches, all.clone(), false)?,
        };
        if begun.counted == 0 {
            return Ok(Some(self.pass(begun.tokens, rate)));
        }
        // while the device has the last micro-batch, those of the others arrive
        self.fetch(begun.micros - 1);
        let losses = self.losses().expect("it has gradients").of(&self.batch);
        let counted = begun.counted as f64;
        let earlier =
            self.sums[..begun.micros - 1].iter().map(|sum| sum.as_ref().copied().unwrap_or(f64::NAN)).sum::<f64>();
        // a device adds up in f32: a loss that is held back needlessly is only looked at more slowly
        let most = most * counted * (1.0 - HOLD_EARLY) - earlier;
        let most = if earlier.is_finite() { most } else { f64::NEG_INFINITY };
        let pieces = self.team.cut(watch);
        self.begin(rate, Some((losses, most)), &pieces)?;
        if goes_on {
            self.ahead = Some(self.compute(batches, self.step + 1, all, false));
        }
        let loss = self.loss(begun.micros);
        let ended = match self.end(batches, pieces, watch) {
            Ok(Some(norm)) if loss.is_ok() => Ok(Some(norm)),
            other => self.ahead.take().transpose().and(other), // a gradient of weights that are no more
        };
        let (loss, tokens) = (loss? / counted, begun.tokens);
        Ok(ended?.map(|norm| Step { step: self.step, loss: Some(loss), norm: Some(norm), rate, tokens }))
    }

    /// Bytes that went to a device and came from it ([`Backend::transferred`]), without those of a step that is only begun.
    fn moved(&self) -> [u64; 2] {
        let (all, begun) = (self.backend.transferred(), self.ahead.as_ref().and_then(|ahead| ahead.as_ref().ok()));
        let begun = begun.map_or([0; 2], |begun| begun.moved);
        std::array::from_fn(|way| all[way] - begun[way])
    }

    /// Begins an update of what this process updates, and to measure its pieces of what is watched.
    fn begin(
        &mut self,
        rate: f64,
        most_loss: Option<(Region, f64)>,
        pieces: &[(Change, usize)],
    ) -> Result<(), TrainError> {
        let norm = self.team.norm(&mut *self.backend)?;
        let rule = Rule { norm, most_loss, ..self.recipe.rule(rate, self.step + 1) };
        self.backend.begin_update(self.team.own(), &rule, &self.own_of(pieces))?;
        (self.begun, self.waits) = (true, false);
        Ok(())
    }

    /// Ends the update that was begun: the norm of the gradient, if nothing held it back.
    fn end(
        &mut self,
        batches: &Batches,
        mut pieces: Vec<(Change, usize)>,
        watch: &mut [Change],
    ) -> Result<Option<f64>, TrainError> {
        let mut own = self.own_of(&pieces);
        let UpdateReport { norm, finite, held } = self.conclude(&mut own)?;
        if held {
            return Ok(None);
        }
        if !finite {
            return Err(self.broken(batches));
        }
        self.settle_own()?;
        let rank = self.team.rank();
        pieces.iter_mut().filter(|(_, owner)| *owner == rank).zip(own).for_each(|((piece, _), own)| *piece = own);
        if !watch.is_empty() {
            self.team.put_together(&pieces, watch)?;
        }
        Ok(Some(norm))
    }

    /// This process's of some pieces.
    fn own_of(&self, pieces: &[(Change, usize)]) -> Vec<Change> {
        let rank = self.team.rank();
        pieces.iter().filter(|(_, owner)| *owner == rank).map(|(piece, _)| piece.clone()).collect()
    }

    /// Takes note of what the update found that was begun.
    fn conclude(&mut self, watch: &mut [Change]) -> backend::Result<UpdateReport> {
        let report = self.backend.report(watch)?;
        self.begun = false;
        if report.finite && !report.held {
            self.behind = (self.recipe.ema > 0.0).then(|| self.recipe.averaging(self.step));
            self.unspread = true;
            self.step += 1;
        }
        Ok(report)
    }

    /// Forgets the gradient that waits.
    ///
    /// # Errors
    /// If the backend fails.
    pub fn discard(&mut self) -> backend::Result<()> {
        self.ahead = None;
        self.sums.clear();
        while let Some((ticket, len)) = self.asked.pop_front() {
            self.fetched.resize(len, 0.0);
            drop(self.backend.fetch(ticket, &mut self.fetched)); // nobody wants them
        }
        self.backend.clear()?;
        self.waits = false;
        Ok(())
    }

    /// Does what is left to do: the backend's memories are then those after step [`Trainer::step`].
    fn settle(&mut self) -> Result<(), TrainError> {
        // anything else that is wrong with the next step is for whoever wants it
        if let Some(Err(error @ TrainError::Backend(BackendError::Lost { .. }))) = self.ahead.take() {
            return Err(error);
        }
        self.settle_own()?;
        if self.unspread {
            self.team.spread(&mut *self.backend)?;
            self.unspread = false;
        }
        Ok(())
    }

    /// Does what an error left undone, in this process alone.
    fn settle_own(&mut self) -> Result<(), TrainError> {
        if self.begun {
            self.conclude(&mut [])?;
        }
        while let Some((region, values)) = self.lent.last() {
            self.backend.write(*region, values)?;
            self.lent.pop();
        }
        if self.swapped > 0 {
            let pieces = self.pieces();
            while self.swapped > 0 {
                self.exchange(&pieces[self.swapped - 1], self.swapped - 1)?;
            }
            self.unspread = true;
        }
        if let Some(decay) = self.behind {
            self.backend.average(self.team.own(), decay)?;
            self.behind = None;
        }
        Ok(())
    }

    /// Whether updates change a parameter.
    pub fn trains(&self, param: &Param) -> bool {
        param.region.learns() && self.team.groups().iter().any(|g| g.range.contains(&param.region.at))
    }

    /// Runs `f` with the weights' average in their place, if there is one: what is evaluated and kept.
    ///
    /// # Errors
    /// If the backend fails; the weights are put back before they are used again.
    pub fn averaged<T>(&mut self, f: impl FnOnce(&mut Trainer) -> T) -> Result<T, TrainError> {
        self.team.order(TeamOrder::Average)?;
        self.put_average()?;
        let done = f(self);
        self.team.order(TeamOrder::Weights)?;
        self.settle()?;
        Ok(done)
    }

    /// Puts the weights' average in their place, if there is one.
    fn put_average(&mut self) -> Result<(), TrainError> {
        self.settle()?;
        if self.recipe.ema > 0.0 && self.step > 0 {
            // the weights are spread again when they are back, also by a process that has nothing to put back
            self.unspread = true;
            self.pieces().iter().enumerate().try_for_each(|(i, piece)| self.exchange(piece, i + 1))?;
            self.team.spread(&mut *self.backend)?;
        }
        Ok(())
    }

    /// What this process updates, in stretches that change places with their average one after the other.
    fn pieces(&self) -> Vec<Range<usize>> {
        let trained = self.model.params.iter().filter(|param| self.trains(param));
        trained.flat_map(|param| self.team.own_of(param.region.range())).collect()
    }

    /// A stretch of weights and their average change places; `swapped` stretches have then.
    fn exchange(&mut self, piece: &Range<usize>, swapped: usize) -> backend::Result<()> {
        let region = Region::flat(MemorySpace::Param, piece.clone());
        let average = region.in_space(MemorySpace::Average);
        self.lent = vec![(average, self.backend.read(region)?), (region, self.backend.read(average)?)];
        self.swapped = swapped;
        while let Some((region, values)) = self.lent.last() {
            self.backend.write(*region, values)?;
            self.lent.pop();
        }
        Ok(())
    }

    /// Runs `f` after `put` has written other weights in the place of those that a run keeps, and puts these back.
    ///
    /// # Errors
    /// Those of `put`, and if the backend fails; the weights are put back before they are used again.
    fn with_others<T, E: Into<TrainError>>(
        &mut self,
        put: impl FnOnce(&mut Trainer) -> Result<(), E>,
        f: impl FnOnce(&mut Trainer) -> T,
    ) -> Result<T, TrainError> {
        self.settle()?;
        self.lent = self.kept()?;
        let done = put(self).map_err(Into::into).map(|()| f(self));
        self.settle()?;
        done
    }

    /// Gives all processes the weights that process 0 has.
    fn share_kept(&mut self) -> Result<(), TrainError> {
        if self.team.size() > 1 {
            for param in self.model.kept() {
                let mut values = self.backend.read(param.region)?;
                self.team.broadcast(&mut values)?;
                self.backend.write(param.region, &values)?;
            }
        }
        Ok(())
    }

    /// The weights that a run keeps, and where they lie.
    fn kept(&self) -> backend::Result<Weights> {
        self.model.kept().map(|p| Ok((p.region, self.backend.read(p.region)?))).collect()
    }

    /// What a step that is not finite says of itself.
    fn broken(&mut self, batches: &Batches) -> TrainError {
        self.waits = true;
        let found = self.first_not_finite(batches).and_then(|found| self.discard().map(|()| found));
        match found.map_err(TrainError::from).and_then(|found| self.first_of_all(found)) {
            Ok(found) => {
                let (tensor, value) = found.unwrap_or_else(|| ("the norm of the gradient".into(), f32::INFINITY));
                TrainError::NotFinite { step: self.step + 1, tensor, value }
            }
            Err(error) => error,
        }
    }

    /// What the first of the processes found that found something.
    fn first_of_all(&mut self, own: Option<(String, f32)>) -> Result<Option<(String, f32)>, TrainError> {
        if self.team.size() == 1 {
            return Ok(own);
        }
        // JSON has no number for what was found
        let own = own.map(|(tensor, value)| (tensor, value.to_bits()));
        let all = self.team.hear_all(&serde_json::to_string(&own).expect("a name and a number are JSON"))?;
        let read = |text: &String| serde_json::from_str::<Option<(String, u32)>>(text).ok().flatten();
        Ok(all.iter().find_map(read).map(|(tensor, bits)| (tensor, f32::from_bits(bits))))
    }

    fn feed(&mut self, data: u64, micro: u64, counted: usize) -> backend::Result<()> {
        self.batch.weight = match self.recipe.reduction {
            Reduction::Mean => 1.0 / counted.max(1) as f32,
            Reduction::Sum => 1.0,
        };
        self.batch.terms = self.recipe.terms();
        self.batch.seed = Some(random::bits(self.recipe.seed, data, micro));
        self.backend.feed(&self.batch)
    }

    /// Runs the step again, op by op, and names the first tensor that holds what is no number.
    fn first_not_finite(&mut self, batches: &Batches) -> backend::Result<Option<(String, f32)>> {
        let bad = |values: &[f32]| values.iter().copied().find(|v| !v.is_finite());
        self.discard()?;
        self.waits = true;
        let own = self.team.micros(self.recipe.accumulate as u64);
        let data = self.step + self.skipped;
        for micro in own.clone() {
            batches.fill(data, micro, &mut self.batch);
            self.feed(data, micro, batches::counted(&self.batch))?;
            if let Some(found) = finite::find_not_finite(&self.model, &mut *self.backend, &self.batch)? {
                return Ok(Some((found.name, found.value)));
            }
            for (pass, alone) in self.model.back().each() {
                self.backend.backward(alone)?;
                let Pass::Back(back) = pass else { continue };
                for grad in back.dx.iter().flatten() {
                    if let Some(value) = bad(&self.backend.read(grad.region.of(&self.batch))?) {
                        let name = self.model.output_name(back.index);
                        return Ok(Some((format!("the gradient that leaves {name}"), value)));
                    }
                }
            }
            self.add_up(micro, &own, true)?;
        }
        for param in self.model.learning() {
            if let Some(value) = bad(&self.backend.read(param.region.grad())?) {
                return Ok(Some((format!("the gradient of {}", param.name), value)));
            }
        }
        Ok(None)
    }

    /// The memories that resuming needs, with the prefix of their tensors' names in a state file.
    fn memories(&self) -> impl Iterator<Item = (&'static str, MemorySpace)> + use<> {
        let average = (self.recipe.ema > 0.0).then_some(("average/", MemorySpace::Average));
        [("", MemorySpace::Param), ("moment1/", MemorySpace::Moment1), ("moment2/", MemorySpace::Moment2)]
            .into_iter()
            .chain(average)
    }

    /// Writes weights, moments, average and `state` (JSON) to a file: all that resuming needs.
    ///
    /// # Errors
    /// Whatever the file system says, or the backend; the old file is then still there.
    pub fn save(&mut self, path: &Path, state: String) -> Result<(), TrainError> {
        self.settle()?;
        let memories: Vec<_> = self.memories().collect();
        let (backend, several, team) = (&*self.backend, self.team.size() > 1, RefCell::new(&mut self.team));
        let read = |region: Region| match several && region.space != MemorySpace::Param {
            false => backend.read(region),
            true => team.borrow_mut().collect(backend, region).map_err(TrainError::into_backend),
        };
        Ok(limpid_checkpoint::save_state(path, &self.model, &read, &memories, state)?)
    }

    /// Waits while process 0 writes files, and gives it what it asks for.
    ///
    /// # Errors
    /// If they do not reach each other, or the backend fails.
    fn serve_files(&mut self) -> Result<(), TrainError> {
        loop {
            match self.team.next_order()? {
                TeamOrder::Done => return Ok(()),
                TeamOrder::Average => self.put_average()?,
                TeamOrder::Weights => self.settle()?,
                TeamOrder::Collect(region) => self.team.give(&*self.backend, region)?,
            }
        }
    }

    /// Takes weights, moments, average and step from a state file; of several processes, process 0 gives it.
    ///
    /// # Errors
    /// If a tensor is missing or of another shape, or the backend fails.
    pub fn restore(&mut self, state: Option<&Store>, step: u64) -> Result<(), TrainError> {
        (self.ahead, self.begun, self.behind, self.swapped, self.unspread) = (None, false, None, 0, false);
        self.lent.clear();
        let memories: Vec<_> = self.memories().collect();
        for (prefix, space) in memories {
            match state.filter(|_| self.team.size() == 1) {
                Some(state) => limpid_checkpoint::load(state, &self.model, &mut *self.backend, prefix, space)?,
                None => self.receive(state, prefix, space)?,
            }
        }
        self.fresh = false;
        self.step = step;
        Ok(())
    }

    /// Takes a memory from process 0's state: parameters whole, of the others what this process updates.
    fn receive(&mut self, state: Option<&Store>, prefix: &str, space: MemorySpace) -> Result<(), TrainError> {
        let saved = state.map(|state| limpid_checkpoint::state_values(state, &self.model, prefix, space));
        for param in limpid_checkpoint::kept(&self.model, space) {
            let region = limpid_checkpoint::place(param, space);
            let mut values = match &saved {
                Some(saved) => saved(param)?.into_owned(),
                None => vec![0.0; region.len()],
            };
            self.team.broadcast(&mut values)?;
            let whole =
                std::iter::once(region.range()).filter(|_| space == MemorySpace::Param || !param.region.learns());
            for range in
                whole.chain(self.team.own_of(region.range()).into_iter().filter(|_| space != MemorySpace::Param))
            {
                let from = range.start - region.at;
                self.backend.write(Region::flat(region.space, range.clone()), &values[from..from + range.len()])?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod run_tests;

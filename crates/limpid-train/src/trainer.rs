//! One step of training: [`Trainer::step`].
//!
//! A step fills a batch and runs it forward and backward, for every micro-batch, and then updates the weights once.
//! Each row's loss is weighted by the number of rows of the whole step, so 8 x 1, 2 x 4 and 1 x 8 sequences are the
//! same step, up to rounding. A step without any target (no answer of its conversations lies in its windows) has no
//! loss and no gradient: it is counted, and changes no weight and no moment. The state of training is the number of
//! steps done and the backend's memories; all randomness is a function of (seed, step).
//!
//! Gradients and losses of micro-batches are added up in a binary tree, neighbours first: ((0 + 1) + (2 + 3)). If their
//! number is not a power of two, the left branch has the greatest power of two below it, and the rest is a tree of the
//! same kind: ((0 + 1) + (2 + 3)) + ((4 + 5) + 6). Several processes, each with one branch of the tree, come to the
//! same bits (`ranks`).
//!
//! `settle` finishes what an error interrupted, `state` saves and restores, `losses` collects the micro-batches'
//! losses.

mod losses;
mod settle;
mod state;

use crate::batches::{Batches, TargetCount, count_targets};
use crate::error::{Result, TrainError};
use crate::ranks::courier::TransferKind;
use crate::ranks::shards::Uses;
use crate::ranks::team::Team;
use crate::ranks::{Ranks, check_micros};
use crate::recipe::{Recipe, Reduction};
use limpid_checkpoint::{Checkpoint, CheckpointError};
use limpid_core::backend::{self, Backend, DeviceBytes, UpdateReport};
use limpid_core::finite;
use limpid_core::model::{Mode, Model, Module, Param, init};
use limpid_core::numeric::random;
use limpid_core::ops::{Batch, Pass, Region};
use limpid_core::optimizer::{Change, Rule};
use losses::{MicroLosses, sums_to_add};
use settle::Unfinished;
use std::ops::Range;

/// The limit that a device applies to the loss is lower by this share than the limit of a spike: a device adds up in
/// f32. A loss that is held back without need is only examined more slowly.
const HOLD_EARLY: f64 = 1e-5;

/// Values of some parameters, and where they lie.
pub(crate) type Weights = Vec<(Region, Vec<f32>)>;

/// What one step found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepReport {
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

/// A gradient that waits in the backend for [`Trainer::update`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gradient {
    /// Mean loss of the step's batch; none if it has no target, and then there is no gradient either.
    pub loss: Option<f64>,
    /// Tokens it saw.
    pub tokens: usize,
    /// Tokens with a target.
    pub targets: usize,
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

/// A model in training.
pub struct Trainer {
    /// The model, built to train.
    pub model: Model,
    /// The backend that runs it.
    pub backend: Box<dyn Backend>,
    /// What to do.
    pub recipe: Recipe,
    pub(crate) steps_done: u64,
    /// Steps' worth of data that were skipped: step s trains on the data of step s + skipped.
    pub(crate) skipped: u64,
    /// Whether the weights are the initial ones of [`Trainer::new`].
    pub(crate) fresh: bool,
    /// The processes that train the model: this one alone, or those of [`Trainer::among`].
    pub(crate) team: Team,
    batch: Batch,
    losses: MicroLosses,
    gradients: Gradients,
    unfinished: Vec<Unfinished>,
    /// Whether other processes still have to receive the parameters that the last update changed here.
    unspread: bool,
}

/// Which gradients the backend holds.
#[derive(Default)]
enum Gradients {
    /// None: the next micro-batch begins them.
    #[default]
    Blank,
    /// Those of a step that is not updated; they are discarded before others begin.
    Waiting,
    /// Those of the next step, begun before the report of the last update was taken.
    Ahead(Computing),
    /// The same, but they could not be begun.
    Failed(TrainError),
}

/// A gradient that the device may still be computing: its losses are not fetched.
#[derive(Clone, Copy, Debug)]
struct Computing {
    /// Micro-batches of this process.
    micros: usize,
    /// Targets and tokens of all micro-batches of the step.
    count: TargetCount,
    /// Bytes moved to a device and from it.
    moved: DeviceBytes,
}

impl Trainer {
    /// A trainer with initial weights.
    ///
    /// # Errors
    /// If the backend cannot write them, or cannot update them by the recipe.
    pub fn new(model: Model, mut backend: Box<dyn Backend>, recipe: Recipe) -> backend::Result<Trainer> {
        backend.can_update(&model.update_groups(recipe.weight_decay, recipe.optimizer))?;
        for param in &model.params {
            backend.fill(param.region, &init::value(&model, param, recipe.init, recipe.init_std, recipe.seed))?;
        }
        Ok(Trainer { fresh: true, ..Trainer::with(model, backend, recipe) })
    }

    /// A trainer with a checkpoint's weights; an adapter, if the model has one, gets its initial weights.
    ///
    /// # Errors
    /// If the checkpoint is not one of this model, or the backend cannot update it by the recipe.
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
            steps_done: 0,
            skipped: 0,
            fresh: false,
            team: Team::alone(groups),
            batch: Batch::default(),
            losses: MicroLosses::default(),
            gradients: Gradients::Blank,
            unfinished: vec![],
            unspread: false,
        }
    }

    /// The same trainer, in one of several processes that train one model together. Every process needs the same model,
    /// recipe and data, and makes the same calls. The processes share out the micro-batches of each step
    /// ([`Recipe::accumulate`]) and the optimizer's memory; weights and losses have the bits that one process would
    /// compute.
    ///
    /// # Errors
    /// If the number of processes or of micro-batches is not a power of two, or there are fewer micro-batches than
    /// processes.
    pub fn among(mut self, ranks: Box<dyn Ranks>) -> Result<Trainer> {
        let processes = ranks.size();
        check_micros(processes, self.recipe.accumulate as u64, self.recipe.batch_size)?;
        if processes > 1 {
            self.backend.restrict_updates();
        }
        let team = self.team.among(ranks, &Uses::new(&self.model))?;
        Ok(Trainer { team, ..self })
    }

    /// The same trainer, after `write` has put other weights in place of the initial ones.
    ///
    /// # Errors
    /// Those of `write`.
    pub fn with_weights<E>(
        mut self,
        write: impl FnOnce(&Model, &mut dyn Backend) -> Result<(), E>,
    ) -> Result<Trainer, E> {
        write(&self.model, &mut *self.backend)?;
        Ok(Trainer { fresh: false, ..self })
    }

    /// Steps done.
    pub fn steps_done(&self) -> u64 {
        self.steps_done
    }

    /// Counts so many steps as done: the next one takes the data and the draws of the step after them.
    pub fn set_steps_done(&mut self, steps: u64) {
        self.steps_done = steps;
    }

    /// Which process this is, and how many there are.
    pub fn rank(&self) -> (usize, usize) {
        (self.team.rank(), self.team.size())
    }

    /// Whether updates change a parameter.
    pub fn trains(&self, param: &Param) -> bool {
        param.region.learns() && self.team.groups().iter().any(|group| group.range.contains(&param.region.at))
    }

    /// The parameters that updates change.
    pub(crate) fn trained(&self) -> impl Iterator<Item = &Param> {
        self.model.params.iter().filter(|param| self.trains(param))
    }

    /// The sums over each layer of what was measured of every parameter that trains; in the order of the parameters.
    pub(crate) fn by_layer(&self, measured: &[Change]) -> Vec<(Module, Change)> {
        let mut layers: Vec<(Module, Change)> = vec![];
        for (param, change) in self.trained().zip(measured) {
            match layers.iter_mut().find(|(own, _)| *own == param.module.layer()) {
                Some((_, all)) => {
                    all.gradient += change.gradient;
                    all.weight += change.weight;
                    all.update += change.update;
                }
                None => layers.push((param.module.layer(), change.clone())),
            }
        }
        layers
    }

    /// The losses of a model that was built to be trained.
    pub(crate) fn losses(&self) -> Option<Region> {
        self.model.losses().filter(|_| matches!(self.model.mode, Mode::Train { .. }))
    }

    /// Does one step: the gradient of every micro-batch, then an update.
    ///
    /// # Errors
    /// If a loss or the gradient is not finite; the weights are then unchanged, and the error names the tensor. If the
    /// backend fails; unless the device is lost, training can continue from the step that [`Trainer::steps_done`] says.
    pub fn step(&mut self, batches: &Batches) -> Result<StepReport> {
        let gradient = self.gradient(batches)?;
        self.update(batches, gradient, self.recipe.rate(self.steps_done), &mut [])
    }

    /// Runs forward and backward of this process's micro-batches of the next step. The other processes' gradients are
    /// added to theirs.
    ///
    /// # Errors
    /// If the loss is not finite; the gradient is then discarded, and the error names the first tensor that is not
    /// finite. If the backend fails, or other processes are not reached; the next gradient then begins anew. If the
    /// model was not built to be trained, or a file of the text has changed.
    pub fn gradient(&mut self, batches: &Batches) -> Result<Gradient> {
        let own = self.team.micros(self.recipe.accumulate as u64);
        let Computing { count, micros, .. } = self.begin_gradient(batches, own, true)?;
        if count.targets == 0 {
            return Ok(Gradient { loss: None, tokens: count.tokens, targets: 0 });
        }
        let sum = self.losses.take_sum(&*self.backend, micros)?;
        let loss = self.team.add_losses(sum)? / count.targets as f64;
        if !loss.is_finite() {
            return Err(self.not_finite(batches));
        }
        Ok(Gradient { loss: Some(loss), tokens: count.tokens, targets: count.targets })
    }

    /// Runs forward and backward of some of the next step's micro-batches, a branch of their tree. The gradient waits
    /// in the backend.
    ///
    /// # Errors
    /// As [`Trainer::gradient`].
    pub fn branch(&mut self, batches: &Batches, micros: Range<u64>) -> Result<Branch> {
        let Computing { count, micros, .. } = self.begin_gradient(batches, micros, false)?;
        let loss = self.losses.take_sum(&*self.backend, micros)?;
        Ok(Branch { loss, counted: count.targets, tokens: count.tokens })
    }

    /// Begins the gradient of the next step, whose losses are to be fetched. The other processes' branches are added if
    /// it is `shared`.
    fn begin_gradient(&mut self, batches: &Batches, micros: Range<u64>, shared: bool) -> Result<Computing> {
        self.settle_own()?;
        if !matches!(self.gradients, Gradients::Blank) {
            self.discard()?;
        }
        self.compute(batches, self.steps_done, micros, shared)
    }

    /// Begins forward and backward of micro-batches of the step after `step` steps, unless none of its rows has a
    /// target. The backend's gradients are blank before.
    fn compute(&mut self, batches: &Batches, step: u64, micros: Range<u64>, shared: bool) -> Result<Computing> {
        let losses = self.losses().ok_or(TrainError::Purpose { lacks: "gradients", remedy: "Mode::Train" })?;
        batches.check_files()?;
        let data = step + self.skipped;
        let count = self.count(batches, step);
        if count.targets == 0 {
            return Ok(Computing { micros: 0, count, moved: DeviceBytes::default() });
        }
        let moved_before = self.backend.transferred();
        self.gradients = Gradients::Waiting;
        for micro in micros.clone() {
            batches.fill(data, micro, &mut self.batch);
            self.feed(data, micro, count.targets)?;
            self.forward()?;
            let sends = shared && self.team.size() > 1 && micro + 1 == micros.end;
            if sends {
                self.backward_and_send()?;
            } else {
                self.backend.backward(self.model.back())?;
            }
            self.losses.request(&*self.backend, losses.for_batch(&self.batch))?;
            self.add_up(micro, &micros, !sends)?;
            self.losses.limit_requests(&*self.backend);
        }
        let micros = micros.end.saturating_sub(micros.start) as usize;
        Ok(Computing { micros, count, moved: self.backend.transferred() - moved_before })
    }

    /// Targets and tokens of all micro-batches of the step after `step` steps.
    fn count(&self, batches: &Batches, step: u64) -> TargetCount {
        (0..self.recipe.accumulate as u64).map(|micro| batches.count(step + self.skipped, micro)).sum()
    }

    /// Tokens with a target in the next step.
    pub(crate) fn targets(&self, batches: &Batches) -> usize {
        self.count(batches, self.steps_done).targets
    }

    /// Feeds the batch, a micro-batch of a step with so many targets.
    fn feed(&mut self, data: u64, micro: u64, targets: usize) -> backend::Result<()> {
        self.batch.weight = match self.recipe.reduction {
            Reduction::Mean => 1.0 / targets.max(1) as f32,
            Reduction::Sum => 1.0,
        };
        self.batch.terms = self.recipe.terms();
        self.batch.seed = Some(random::bits(self.recipe.seed, data, micro));
        self.backend.feed(&self.batch)
    }

    /// Runs the forward pass of a micro-batch. Parameters that other processes updated are received on the way, each
    /// before it is read.
    fn forward(&mut self) -> Result<()> {
        let ops = self.model.body();
        let mut done = 0;
        if self.unspread {
            self.team.begin(TransferKind::Parameters)?;
            for (place, blocks) in self.team.stops(TransferKind::Parameters) {
                self.backend.forward(ops.part(done..place))?;
                self.team.carry(&mut *self.backend, self.team.blocks(), blocks)?;
                done = place;
            }
            self.unspread = false;
        }
        Ok(self.backend.forward(ops.part(done..))?)
    }

    /// Runs the backward pass of this process's last micro-batch, and sends each gradient as soon as it is final.
    fn backward_and_send(&mut self) -> Result<()> {
        let passes = self.model.back();
        let mut done = 0;
        self.team.begin(TransferKind::Gradients)?;
        for (place, blocks) in self.team.stops(TransferKind::Gradients) {
            self.backend.backward(passes.part(done..place))?;
            self.team.carry(&mut *self.backend, blocks, 0)?;
            done = place;
        }
        self.backend.backward(passes.part(done..))?;
        self.team.carry(&mut *self.backend, self.team.blocks(), self.team.blocks())
    }

    /// Adds the gradient of a micro-batch to those before it, as far as the tree has both of a pair (`gradients` is
    /// false if sending did that), and sets the sum aside if another micro-batch follows.
    fn add_up(&mut self, micro: u64, own: &Range<u64>, gradients: bool) -> backend::Result<()> {
        let last = micro + 1 == own.end;
        if gradients {
            for _ in 0..sums_to_add(micro - own.start, last) {
                self.backend.add_pushed()?;
            }
        }
        if last { Ok(()) } else { self.backend.push_gradients() }
    }

    /// Updates the weights, and their average if there is one, with the gradient that waits. Adds to `watch` what the
    /// update did to those stretches of parameters.
    ///
    /// # Errors
    /// If the gradient is not finite, or the backend cannot update; the weights are then unchanged. If the backend
    /// cannot report, or cannot move the average; the step is then done all the same, and the rest of it is done before
    /// the next one.
    pub fn update(
        &mut self,
        batches: &Batches,
        gradient: Gradient,
        rate: f64,
        watch: &mut [Change],
    ) -> Result<StepReport> {
        let done = self.update_own(batches, gradient, rate, watch)?;
        self.settle()?;
        Ok(done)
    }

    /// [`Trainer::update`] of the parameters that this process updates. Those of other processes are received in the
    /// next step, or when the trainer settles.
    pub(crate) fn update_own(
        &mut self,
        batches: &Batches,
        gradient: Gradient,
        rate: f64,
        watch: &mut [Change],
    ) -> Result<StepReport> {
        let Gradient { loss, tokens, .. } = gradient;
        if loss.is_none() {
            return Ok(self.skip_update(tokens, rate));
        }
        let pieces = self.team.cut(watch);
        self.begin_update(rate, None, &pieces)?;
        let norm = self.end_update(batches, pieces, watch)?.expect("an update without a limit is not held back");
        Ok(StepReport { step: self.steps_done, loss, norm: Some(norm), rate, tokens })
    }

    /// Counts a step that has no target.
    fn skip_update(&mut self, tokens: usize, rate: f64) -> StepReport {
        self.steps_done += 1;
        StepReport { step: self.steps_done, loss: None, norm: None, rate, tokens }
    }

    /// Whether steps should begin before the last one's report is taken ([`Trainer::step_ahead`]).
    pub(crate) fn runs_ahead(&self) -> bool {
        self.team.size() == 1 && self.backend.runs_ahead()
    }

    /// A step for a backend that works while its caller continues. It gives the device the whole step and, if
    /// `continues`, the next step's gradient, before it asks for any result; so the device is not idle while somebody
    /// looks at the results. If the loss is above `most` or is NaN, nothing is changed, and the answer is none.
    ///
    /// # Errors
    /// As [`Trainer::gradient`] and [`Trainer::update`].
    pub(crate) fn step_ahead(
        &mut self,
        batches: &Batches,
        most: f64,
        rate: f64,
        watch: &mut [Change],
        continues: bool,
    ) -> Result<Option<StepReport>> {
        let all = 0..self.recipe.accumulate as u64;
        let begun = if let Gradients::Ahead(begun) = self.gradients {
            self.gradients = Gradients::Waiting;
            begun
        } else {
            self.drop_ahead()?;
            self.begin_gradient(batches, all.clone(), false)?
        };
        if begun.count.targets == 0 {
            return Ok(Some(self.skip_update(begun.count.tokens, rate)));
        }
        let limit = self.limit_of_last_micro(begun, most);
        let pieces = self.team.cut(watch);
        self.begin_update(rate, Some(limit), &pieces)?;
        if continues {
            self.gradients = match self.compute(batches, self.steps_done + 1, all, false) {
                Ok(next) => Gradients::Ahead(next),
                Err(error) => Gradients::Failed(error),
            };
        }
        let sum = self.losses.take_sum(&*self.backend, begun.micros);
        let ended = self.end_update(batches, pieces, watch);
        // without this update the next step's gradient is one of weights that never were
        let updated = sum.is_ok() && matches!(ended, Ok(Some(_)));
        let dropped = if updated { Ok(()) } else { self.drop_ahead() };
        let loss = sum? / begun.count.targets as f64;
        dropped?;
        let Some(norm) = ended? else { return Ok(None) };
        Ok(Some(StepReport {
            step: self.steps_done,
            loss: Some(loss),
            norm: Some(norm),
            rate,
            tokens: begun.count.tokens,
        }))
    }

    /// The losses of a step's last micro-batch, and the sum above which the mean loss of the step is more than `most`.
    fn limit_of_last_micro(&mut self, begun: Computing, most: f64) -> (Region, f64) {
        // while the device runs the last micro-batch, the losses of the others arrive
        self.losses.fetch(&*self.backend, begun.micros - 1);
        let earlier = self.losses.sum_of_first(begun.micros - 1);
        let limit = most * begun.count.targets as f64 * (1.0 - HOLD_EARLY) - earlier;
        let losses = self.losses().expect("it has gradients").for_batch(&self.batch);
        (losses, if earlier.is_finite() { limit } else { f64::NEG_INFINITY })
    }

    /// Bytes that went to a device and came from it ([`Backend::transferred`]), without those of a step that is only
    /// begun.
    pub(crate) fn moved(&self) -> DeviceBytes {
        let begun = if let Gradients::Ahead(begun) = &self.gradients { begun.moved } else { DeviceBytes::default() };
        self.backend.transferred() - begun
    }

    /// Begins an update of what this process updates, which measures its pieces of what is watched. `limit` names
    /// losses and the sum above which the update holds itself back.
    fn begin_update(&mut self, rate: f64, limit: Option<(Region, f64)>, pieces: &[(Change, usize)]) -> Result<()> {
        let norm = self.team.norm(&mut *self.backend)?;
        let rule = Rule { norm, most_loss: limit, ..self.recipe.rule(rate, self.steps_done + 1) };
        self.backend.begin_update(self.team.own(), &rule, &self.own_changes(pieces))?;
        self.unfinished.push(Unfinished::Report);
        self.gradients = Gradients::Blank;
        Ok(())
    }

    /// Ends the update that was begun. Returns the norm of the gradient, or none if the update was held back.
    fn end_update(
        &mut self,
        batches: &Batches,
        mut pieces: Vec<(Change, usize)>,
        watch: &mut [Change],
    ) -> Result<Option<f64>> {
        let mut own = self.own_changes(&pieces);
        let UpdateReport { norm, finite, held_back } = self.take_report(&mut own)?;
        if held_back {
            return Ok(None);
        }
        if !finite {
            return Err(self.not_finite(batches));
        }
        self.settle_own()?;
        let rank = self.team.rank();
        let own_pieces = pieces.iter_mut().filter(|(_, owner)| *owner == rank);
        own_pieces.zip(own).for_each(|((piece, _), measured)| *piece = measured);
        if !watch.is_empty() {
            self.team.put_together(&pieces, watch)?;
        }
        Ok(Some(norm))
    }

    /// The pieces that this process measures.
    fn own_changes(&self, pieces: &[(Change, usize)]) -> Vec<Change> {
        let rank = self.team.rank();
        pieces.iter().filter(|(_, owner)| *owner == rank).map(|(piece, _)| piece.clone()).collect()
    }

    /// Discards the gradient that waits.
    ///
    /// # Errors
    /// If the backend fails.
    pub fn discard(&mut self) -> backend::Result<()> {
        _ = self.drop_ahead();
        self.losses.clear(&*self.backend);
        self.backend.clear()?;
        self.gradients = Gradients::Blank;
        Ok(())
    }

    /// Gradients are written to the backend without a step: they are discarded before others begin.
    pub(crate) fn mark_gradients(&mut self) {
        self.gradients = Gradients::Waiting;
    }

    /// Runs the step that failed again and returns the error that names the first tensor that is not finite. Discards
    /// the gradient.
    fn not_finite(&mut self, batches: &Batches) -> TrainError {
        self.mark_gradients();
        let own = self.first_not_finite(batches).and_then(|found| self.discard().map(|()| found));
        match own.map_err(TrainError::from).and_then(|own| self.first_of_all(own)) {
            Ok(found) => {
                let (tensor, value) = found.unwrap_or_else(|| ("the norm of the gradient".into(), f32::INFINITY));
                TrainError::NotFinite { step: self.steps_done + 1, tensor, value }
            }
            Err(error) => error,
        }
    }

    /// What the first process found that found something.
    fn first_of_all(&mut self, own: Option<(String, f32)>) -> Result<Option<(String, f32)>> {
        if self.team.size() == 1 {
            return Ok(own);
        }
        // as bits, because JSON has no NaN and no infinity
        let own = own.map(|(tensor, value)| (tensor, value.to_bits()));
        let all = self.team.hear_all(&serde_json::to_string(&own).expect("a name and a number are JSON"))?;
        let read = |text: &String| serde_json::from_str::<Option<(String, u32)>>(text).ok().flatten();
        Ok(all.iter().find_map(read).map(|(tensor, bits)| (tensor, f32::from_bits(bits))))
    }

    /// Runs the step again, op by op, and names the first tensor that is not finite.
    fn first_not_finite(&mut self, batches: &Batches) -> backend::Result<Option<(String, f32)>> {
        self.discard()?;
        self.mark_gradients();
        let own = self.team.micros(self.recipe.accumulate as u64);
        let data = self.steps_done + self.skipped;
        for micro in own.clone() {
            batches.fill(data, micro, &mut self.batch);
            self.feed(data, micro, count_targets(&self.batch))?;
            if let Some(found) = finite::find_not_finite(&self.model, &mut *self.backend, &self.batch)? {
                return Ok(Some((found.name, found.value)));
            }
            if let Some(found) = self.backward_until_not_finite()? {
                return Ok(Some(found));
            }
            self.add_up(micro, &own, true)?;
        }
        for param in self.model.learning() {
            if let Some(value) = find_not_finite(&self.backend.read(param.region.grad())?) {
                return Ok(Some((format!("the gradient of {}", param.name), value)));
            }
        }
        Ok(None)
    }

    /// Runs the backward pass of the batch, op by op, up to the first gradient that is not finite.
    fn backward_until_not_finite(&mut self) -> backend::Result<Option<(String, f32)>> {
        for (pass, alone) in self.model.back().each() {
            self.backend.backward(alone)?;
            let Pass::Back(back) = pass else { continue };
            for grad in back.dx.iter().flatten() {
                if let Some(value) = find_not_finite(&self.backend.read(grad.region.for_batch(&self.batch))?) {
                    let name = self.model.output_name(back.index);
                    return Ok(Some((format!("the gradient that leaves {name}"), value)));
                }
            }
        }
        Ok(None)
    }
}

/// The first value that is not finite.
fn find_not_finite(values: &[f32]) -> Option<f32> {
    values.iter().copied().find(|value| !value.is_finite())
}

//! A run: training to the last step, in a folder that is a model directory.
//!
//!   config.json, tokenizer.json     what the model is
//!   model.safetensors               the best weights by validation loss so far, or the last ones if there is no
//!   validation text
//!                                   (for an adapter: adapter_model.safetensors)
//!   state/last.safetensors          the last weights, moments and step: all that resuming needs
//!   state/back.safetensors          the state that a rollback returns to, if the last state is of a stop between two
//!   saves state/step-00000250.safetensors earlier states, if any are to be kept state/lock                      locked
//!   by the process that trains here timelapse.lpt                   what an observer saw of the model, if one looks
//!   (`observe`) metrics.jsonl, summary.json     what happened (`log` derives metrics.csv and TensorBoard's events from
//!   it) divergence/step-00000812.txt    batches that made the loss spike, as text
//!
//! Nothing is written before the check of the first step (`preflight`) has passed. Every file is replaced whole. The
//! state holds checksums of the other files and is written after them. So a run that is killed or stopped at any moment
//! resumes from its last state and writes the same bytes again. If a file cannot be written, training continues: the
//! error is reported and the next save tries again; [`Summary::missing`] lists what was never written.
//!
//! This file has the loop over steps. `state` describes what is saved, `files` writes the folder, `resume` goes on from
//! a saved state, `observe` lets somebody look between steps; [`folder`](crate::folder) decides whether a folder may be
//! used.

mod files;
mod observe;
mod resume;
mod state;

pub use observe::Observer;
pub use state::{Resumable, kept_path, kept_steps};

use crate::batches::{Batches, Objective, WindowShape, Windows};
use crate::divergence::{is_worse, jump, limit};
use crate::error::{Result, TrainError};
use crate::evaluate::{self, Score, mean};
use crate::log::writer::Log;
use crate::preflight::preflight;
use crate::ranks::team::AllReduce;
use crate::recipe::{Divergence, Recipe, RunOptions, RunSettings};
use crate::trainer::{Gradient, StepReport, Trainer, Weights};
use limpid_base::files::OutputFile;
use limpid_base::plural::plural;
use limpid_checkpoint::{Carried, CheckpointError, write_text};
use limpid_core::backend::{DeviceBytes, ThreadTimes};
use limpid_core::model::Module;
use limpid_core::optimizer::Change;
use limpid_data::{Tokens, text_bytes};
use limpid_tokenizer::Tokenizer;
use serde::{Deserialize, Serialize};
use state::{FORMAT, Given, State};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Instant;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// An event of a run, passed to the progress callback.
#[derive(Clone, Debug, PartialEq)]
pub enum TrainEvent {
    /// A step was done; with the seconds since the run began or was resumed.
    Step(StepReport, f64),
    /// What adding up gradients and spreading parameters took of a step, if several processes train. It comes before
    /// the event of the step.
    AllReduce(u64, AllReduce),
    /// What a step's update did to each layer, every [`RunOptions::layer_stats_every`] steps. It comes before the event
    /// of the step.
    Layers(u64, Vec<LayerUpdate>),
    /// The number of threads that was found to be the fastest, with the seconds of a step. It comes after the event of
    /// the step, where the number is neither fixed nor what it was before: all threads at first.
    Threads(u64, ThreadTimes),
    /// Progress of an evaluation on validation text: tokens done, and all tokens.
    Evaluating(usize, usize),
    /// The validation loss was measured.
    Validated {
        /// After this step.
        step: u64,
        /// The loss.
        loss: f64,
        /// The number of tokens it was measured on: part of the validation text.
        tokens: usize,
        /// Whether it is the best so far.
        best: bool,
    },
    /// The state after this step is on disk.
    Saved(u64),
    /// A message for the user: a save that failed, a loss spike, early stopping.
    Notice(String),
}

/// What an update did to a layer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LayerUpdate {
    /// The layer: `embed`, `blocks.0`, ..., `ln_final`.
    #[serde(skip)]
    pub layer: String,
    /// Norm of its gradient, before clipping.
    pub grad_norm: f64,
    /// Norm of its weights.
    pub weight_norm: f64,
    /// Norm of the update over that of the weights.
    pub update_ratio: f64,
}

/// The callback, which hears of every event and says whether to go on.
type Tell<'a> = &'a mut dyn FnMut(TrainEvent) -> Control;

/// The callback's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Continue.
    Continue,
    /// Save and stop.
    Stop,
}

/// The results of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Updates done.
    pub steps: u64,
    /// Mean training loss of the last [`RECENT`] steps that have one, or of all if there are fewer; none if none has.
    pub train_loss: Option<f64>,
    /// The number of losses in that mean.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub losses: Option<usize>,
    /// Loss on all validation text, of the weights in model.safetensors.
    pub val_loss: Option<f64>,
    /// The same in bits per byte of the text, if the tokens stand for known bytes. It compares runs with different
    /// tokenizers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub val_bits_per_byte: Option<f64>,
    /// The step of those weights.
    pub best_step: u64,
    /// Tokens trained on.
    pub tokens: u64,
    /// Seconds spent, resumptions included.
    pub seconds: f64,
    /// Tokens per second of training, evaluations and saves included.
    pub tok_s: f64,
    /// The most memory that the process held.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_rss_bytes: Option<u64>,
    /// Bytes per step to a device with its own memory, and from it, on average.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_bytes: Option<[u64; 2]>,
    /// The number of threads in the end, and the seconds of a step with each that was tried, if it was not fixed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<ThreadTimes>,
    /// The least loss that any model can reach on the validation text, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entropy_floor: Option<f64>,
    /// Whether the run was stopped before its last step, or before it was evaluated.
    pub stopped: bool,
    /// Whether early stopping ended it before its last step: the validation loss no longer fell.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ended_early: bool,
    /// What could not be written, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
}

impl Summary {
    /// Writes it as summary.json into a run's folder.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, folder: &Path) -> std::result::Result<(), CheckpointError> {
        let text = serde_json::to_string_pretty(self).expect("a summary is JSON") + "\n";
        write_text(&folder.join("summary.json"), &text)
    }
}

/// Rollbacks after which a run gives up.
const ROLLBACKS: u64 = 10;

/// The summary's training loss is the mean of this many last losses.
pub const RECENT: usize = 50;

/// What a run learns.
#[derive(Clone, Copy)]
pub struct RunData<'a> {
    /// The training text.
    pub train: &'a Tokens,
    /// The validation text; empty for none.
    pub validation: &'a Tokens,
    /// What the model is trained to predict.
    pub objective: Objective,
    /// The tokenizer of both texts.
    pub tokenizer: &'a Tokenizer,
}

/// A training from its first step to its last: a trainer, the data, a folder, and how it is carried out.
pub struct Run<'a> {
    /// The model in training.
    pub trainer: Trainer,
    /// How the run is carried out.
    pub options: RunOptions,
    /// Where files go; none to write nothing.
    pub(crate) folder: Option<PathBuf>,
    data: RunData<'a>,
    /// Names and texts of files to write at the beginning, besides config.json and tokenizer.json.
    pub files: Vec<(String, String)>,
    /// Files of the model that is fine-tuned, which are copied into the folder.
    pub carried: Carried,
    /// Whether to save also before the first step, for whoever opens the model while it trains.
    pub saves_first: bool,
    /// Whether to use a folder that holds something else, and to remove the files that would be read instead of this
    /// run's model.
    pub force: bool,
    /// Who looks at it between its steps.
    pub observer: Option<Box<dyn Observer>>,
    state: State,
    lock: Option<OutputFile>,
    log: Option<Log>,
    /// Whether the state in the folder is one that a rollback may return to.
    due: bool,
    /// The best weights and their step, if they could not be written yet; no state is written before them.
    owed: Option<(u64, Weights)>,
    /// Reports of batches that could not be written yet.
    records: Vec<(PathBuf, String)>,
    /// What could not be written, and why.
    missing: BTreeMap<PathBuf, String>,
    /// Messages for the user from before the run went on.
    untold: Vec<String>,
    /// The number of steps that moved bytes to a device or from it, and the bytes.
    moving_steps: u64,
    moved: DeviceBytes,
    /// One for each parameter that trains, in steps whose layer statistics are logged.
    changes: Vec<Change>,
    /// Whether process 0 of several writes files.
    rank0_writes: bool,
    /// The number of threads that was told last.
    threads_told: Option<usize>,
    /// Tokens of a step of this process.
    step_tokens: usize,
}

/// Why training ends before its last step.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Stopped,
    Early,
}

/// The loss of a step that spiked: the loss, the mean of the recent ones, and the standard deviations between them.
type Spike = (f64, f64, f64);

impl<'a> Run<'a> {
    /// A run that has not begun.
    ///
    /// # Errors
    /// If the backend cannot read the weights that training does not change, or a file of the text has changed.
    pub fn new(trainer: Trainer, folder: Option<PathBuf>, data: RunData<'a>) -> Result<Run<'a>> {
        let RunData { train, validation, objective, tokenizer } = data;
        let mut base = Xxh3::new();
        for param in
            trainer.model.params.iter().filter(|p| trainer.model.saved_params().all(|kept| kept.name != p.name))
        {
            trainer.backend.read(param.region)?.iter().for_each(|v| base.update(&v.to_le_bytes()));
        }
        let state = State {
            format: FORMAT,
            chosen: RunSettings { recipe: trainer.recipe, options: RunOptions::default() },
            due: true,
            given: Given {
                training_text: train.digest()?,
                validation_text: validation.digest()?,
                tokenizer: xxh3_64(tokenizer.to_json().as_bytes()),
                objective: format!("{objective:?}"),
                precision: trainer.backend.precision().to_string(),
                base: base.digest(),
            },
            ..State::default()
        };
        Ok(Run {
            trainer,
            options: RunOptions::default(),
            folder,
            data,
            files: vec![],
            carried: Carried::default(),
            saves_first: false,
            force: false,
            observer: None,
            state,
            lock: None,
            log: None,
            due: false,
            owed: None,
            records: vec![],
            missing: BTreeMap::new(),
            untold: vec![],
            moving_steps: 0,
            moved: DeviceBytes::default(),
            changes: vec![],
            rank0_writes: false,
            threads_told: None,
            step_tokens: 0,
        })
    }

    /// The log, which keeps the folder locked: for lines that are added after the run.
    pub fn into_log(self) -> Option<Log> {
        let Run { log, lock, .. } = self;
        log.map(|log| log.holding(lock))
    }

    /// Trains to the last step, or until `tell` answers [`Control::Stop`].
    ///
    /// # Errors
    /// If the folder cannot be used, the text is too short, a number is not finite, or training diverges.
    pub fn go(&mut self, tell: Tell) -> Result<Summary> {
        let (batches, windows) = self.check_and_cut()?;
        self.check_team()?;
        if self.options.preflight && self.trainer.steps_done == 0 {
            preflight(&mut self.trainer, &batches)?;
        }
        if self.log.is_none() {
            self.begin()?;
        }
        let start = Instant::now();
        let seconds_before = self.state.seconds;
        self.tell_untold(tell);
        self.derive(tell);
        // a rollback before the first regular save needs a state, too
        let regular = self.options.divergence == Divergence::Rollback;
        if (regular || self.saves_first) && self.trainer.steps_done == 0 {
            self.try_save(regular, tell)?;
        }
        let mut end = self.take_up(&windows, tell)?;
        while self.trainer.steps_done < self.trainer.recipe.steps && end.is_none() {
            let moved_before = self.trainer.moved();
            let Some(step) = self.advance(&batches, windows.is_some(), tell)? else { continue };
            let moved = self.trainer.moved() - moved_before;
            self.state.tokens += step.tokens as u64;
            self.state.seconds = seconds_before + start.elapsed().as_secs_f64();
            let mut stop = self.log_step(&step, moved, tell);
            stop |= self.log_layers(&step, tell);
            stop |= tell(TrainEvent::Step(step, start.elapsed().as_secs_f64())) == Control::Stop;
            stop |= self.tell_threads(&step, tell);
            stop = self.trainer.team.agree(stop)?;
            end = self.after_step(&windows, stop, tell)?;
        }
        self.finish(windows, start.elapsed().as_secs_f64() + seconds_before, end, tell)
    }

    /// Tells how many threads are used, if their number has changed and that is worth at least a twentieth of a step.
    fn tell_threads(&mut self, step: &StepReport, tell: Tell) -> bool {
        self.step_tokens = step.tokens / self.trainer.team.size();
        let Some(times) = self.thread_times() else { return false };
        let before = self.threads_told.unwrap_or(times.most);
        let seconds = |threads| times.seconds.iter().find(|(n, _)| *n == threads).map(|(_, seconds)| *seconds);
        let gains = seconds(before).zip(seconds(times.chosen)).is_none_or(|(before, now)| now < 0.95 * before);
        if times.chosen == before || !gains {
            return false;
        }
        self.threads_told = Some(times.chosen);
        tell(TrainEvent::Threads(step.step, times)) == Control::Stop
    }

    /// What steps took with each number of threads that was tried; none before the first search has ended, or if the
    /// number is fixed.
    fn thread_times(&self) -> Option<ThreadTimes> {
        let chooser = self.trainer.backend.thread_choosers().first()?;
        chooser.is_settled().then(|| chooser.times(self.step_tokens as f64))
    }

    /// Tells what came up before the run went on.
    fn tell_untold(&mut self, tell: Tell) {
        for what in std::mem::take(&mut self.untold) {
            tell(TrainEvent::Notice(what));
        }
    }

    /// Checks settings and texts, and cuts the texts into batches to train on and windows to evaluate on.
    fn check_and_cut(&mut self) -> Result<(Batches<'a>, Option<Windows<'a>>)> {
        let recipe = self.trainer.recipe;
        let config = &self.trainer.model.config;
        self.state.chosen = RunSettings { recipe, options: self.options };
        self.state.chosen.check()?;
        for text in [self.data.train, self.data.validation] {
            text.check_ids(config.vocab_size)?;
        }
        let context = if recipe.context == 0 { config.context_length } else { recipe.context };
        let batches = Recipe { context, ..recipe }.batches(self.data.train, self.data.objective)?;
        if self.data.validation.is_empty() {
            return Ok((batches, None));
        }
        let what = "validation text";
        let windows = Windows::new(
            what,
            self.data.validation,
            WindowShape { context, objective: self.data.objective, documents: recipe.documents() },
        )?;
        Ok((batches, Some(windows)))
    }

    /// Does what an earlier process, or an error, left undone after the last step. Says whether training has ended
    /// already.
    fn take_up(&mut self, windows: &Option<Windows>, tell: Tell) -> Result<Option<End>> {
        // a step whose report could not be taken is done; the evaluation and the save after it are not
        let was = self.trainer.steps_done;
        self.trainer.settle_own()?;
        self.state.unfinished |= self.trainer.steps_done > was;
        self.observe(tell)?;
        if self.state.unfinished {
            return self.after_step(windows, false, tell);
        }
        let last = self.trainer.steps_done >= self.trainer.recipe.steps;
        Ok((self.is_stale() && !last).then_some(End::Early))
    }

    /// Whether early stopping ends training: too many evaluations have passed since the best.
    fn is_stale(&self) -> bool {
        self.options.patience > 0 && self.state.stale >= self.options.patience
    }

    /// Logs a step's numbers. Returns whether to stop.
    fn log_step(&mut self, step: &StepReport, moved: DeviceBytes, tell: Tell) -> bool {
        let mut line = serde_json::json!({
            "step": step.step, "learning_rate": step.rate, "tokens": self.state.tokens, "seconds": self.state.seconds,
        });
        if let (Some(loss), Some(norm)) = (step.loss, step.norm) {
            self.state.first.get_or_insert(loss);
            if self.state.recent.len() == RECENT {
                self.state.recent.remove(0);
            }
            self.state.recent.push(loss);
            line["train_loss"] = loss.into();
            line["grad_norm"] = norm.into();
        }
        if moved != DeviceBytes::default() {
            line["to_device_bytes"] = moved.to.into();
            line["from_device_bytes"] = moved.from.into();
            self.moved.to += moved.to;
            self.moved.from += moved.from;
            self.moving_steps += 1;
        }
        let mut stop = false;
        if let Some(all_reduce) = self.trainer.team.take_all_reduce() {
            line["all_reduce_seconds"] = all_reduce.seconds.into();
            line["all_reduce_hidden_seconds"] = all_reduce.hidden.into();
            stop = tell(TrainEvent::AllReduce(step.step, all_reduce)) == Control::Stop;
        }
        self.note(line, tell);
        stop
    }

    /// Logs what a step's update did to each layer, if that was measured. Returns whether to stop.
    fn log_layers(&mut self, step: &StepReport, tell: Tell) -> bool {
        if self.changes.is_empty() || step.loss.is_none() {
            return false;
        }
        let layers = self.layers();
        let numbers: serde_json::Map<String, serde_json::Value> =
            layers.iter().map(|update| (update.layer.clone(), serde_json::json!(update))).collect();
        self.note(serde_json::json!({ "step": step.step, "layers": numbers }), tell);
        tell(TrainEvent::Layers(step.step, layers)) == Control::Stop
    }

    /// The work after a step: evaluate, check for divergence, save. If it is stopped, the state says what is left to
    /// do.
    fn after_step(&mut self, windows: &Option<Windows>, mut stop: bool, tell: Tell) -> Result<Option<End>> {
        let (recipe, options, step) = (self.trainer.recipe, self.options, self.trainer.steps_done);
        self.observe(tell)?;
        self.state.unfinished = stop;
        if let Some(windows) = windows
            && self.is_due(options.eval_every, step)
            && !stop
        {
            let done = self.validate(&windows.clone().about(options.eval_tokens), tell)?;
            self.state.unfinished = done.is_none();
            stop = self.trainer.team.agree(done.unwrap_or(true))?;
        }
        if self.state.unfinished {
            self.try_save(false, tell)?;
            return Ok(Some(End::Stopped));
        }
        let early = self.is_stale() && step != recipe.steps;
        let worse = self.state.first.and_then(|first| Some((first, is_worse(&self.state.recent, first)?)));
        let saves = self.is_due(options.save_every, step) || early || worse.is_some();
        if saves || stop {
            stop |= self.try_save(saves, tell)?;
            stop = self.trainer.team.agree(stop)?;
        }
        if let Some((first, loss)) = worse {
            return Err(TrainError::Diverged { step, loss, first, rate: recipe.learning_rate });
        }
        if early {
            let what =
                format!("early stopping: no better validation loss in {}", plural(self.state.stale, "evaluation"));
            stop |= tell(TrainEvent::Notice(what)) == Control::Stop;
            stop = self.trainer.team.agree(stop)?;
        }
        Ok(if stop { Some(End::Stopped) } else { early.then_some(End::Early) })
    }

    /// Whether something that is done every so many steps is done after this one.
    fn is_due(&self, every: u64, step: u64) -> bool {
        every > 0 && step.is_multiple_of(every) || step == self.trainer.recipe.steps
    }

    /// Does one step; none if training was rolled back instead.
    fn advance(&mut self, batches: &Batches, evaluates: bool, tell: Tell) -> Result<Option<StepReport>> {
        self.changes = self.changes_to_measure();
        let rate = self.trainer.recipe.rate(self.trainer.steps_done);
        if self.trainer.runs_ahead() {
            match self.step_ahead(batches, evaluates, rate) {
                Ok(Some(step)) => return Ok(Some(step)),
                Ok(None) => {} // held back: once more, with a look at the loss before anything is updated
                Err(error) => return self.after_failure(batches, error, tell),
            }
        }
        let mut gradient = self.trainer.gradient(batches);
        if let Some(spike) = gradient.as_ref().ok().and_then(|gradient| self.spike(gradient)) {
            if !self.accept_spike(batches, spike, tell)? {
                return Ok(None);
            }
            // writing the report ran other passes over the same rows
            gradient = self.trainer.gradient(batches);
        }
        let done = gradient.and_then(|gradient| self.trainer.update_own(batches, gradient, rate, &mut self.changes));
        match done {
            Ok(step) => Ok(Some(step)),
            Err(error) => self.after_failure(batches, error, tell),
        }
    }

    /// What the next step is to measure: each parameter that trains, in steps whose layer statistics are logged.
    fn changes_to_measure(&self) -> Vec<Change> {
        let (every, step) = (self.options.layer_stats_every, self.trainer.steps_done + 1);
        if every == 0 || !step.is_multiple_of(every) {
            return vec![];
        }
        self.trainer.trained().map(|param| Change::new(param.region.range())).collect()
    }

    /// [`Trainer::step_ahead`], with the limit of a spike. The next step is not begun if an evaluation, a save or a
    /// look comes first.
    fn step_ahead(&mut self, batches: &Batches, evaluates: bool, rate: f64) -> Result<Option<StepReport>> {
        let sigma = self.options.spike_sigma;
        let spikes = (sigma > 0.0).then(|| limit(&self.state.recent, sigma, self.trainer.targets(batches)));
        let most = spikes.flatten();
        let step = self.trainer.steps_done + 1;
        let pauses = evaluates && self.is_due(self.options.eval_every, step)
            || self.is_due(self.options.save_every, step)
            || self.is_observed(step);
        self.trainer.step_ahead(batches, most.unwrap_or(f64::MAX), rate, &mut self.changes, !pauses)
    }

    /// Whether a step's loss is a spike.
    fn spike(&self, gradient: &Gradient) -> Option<Spike> {
        let loss = gradient.loss?;
        let (usual, deviations) = jump(&self.state.recent, loss, gradient.targets)?;
        (self.options.spike_sigma > 0.0 && deviations > self.options.spike_sigma).then_some((loss, usual, deviations))
    }

    /// Reports a spike and does what the settings say. Returns whether the step is done all the same; if not, training
    /// was rolled back. The gradient is discarded.
    fn accept_spike(&mut self, batches: &Batches, (loss, usual, deviations): Spike, tell: Tell) -> Result<bool> {
        let step = self.trainer.steps_done + 1;
        let error = TrainError::Spike { step, loss, usual, deviations };
        let path = self.record_batch(batches, &error, tell)?;
        self.trainer.discard()?;
        match self.options.divergence {
            Divergence::Note => {
                let what = format!("loss spike: {loss:.4}, the recent mean is {usual:.4}; the batch is in {path}");
                tell(TrainEvent::Notice(format!("step {step}: {what}")));
                Ok(true)
            }
            Divergence::Stop => {
                self.try_save(false, tell)?;
                Err(error)
            }
            Divergence::Rollback => {
                self.go_back(&error, tell)?;
                Ok(false)
            }
        }
    }

    /// Reports the batch of a step that was not finite, and rolls back if the settings say so. Other errors are
    /// returned.
    fn after_failure(&mut self, batches: &Batches, error: TrainError, tell: Tell) -> Result<Option<StepReport>> {
        if !matches!(error, TrainError::NotFinite { .. }) {
            return Err(error);
        }
        self.record_batch(batches, &error, tell)?;
        match self.options.divergence {
            Divergence::Rollback => self.go_back(&error, tell).map(|()| None),
            Divergence::Note | Divergence::Stop => Err(error),
        }
    }

    /// What the last update did to each layer: norms of gradients and weights, and the size of the update relative to
    /// the weights.
    fn layers(&self) -> Vec<LayerUpdate> {
        let mut layers = self.trainer.by_layer(&self.changes);
        let order = self.trainer.model.layers();
        layers.sort_by_key(|(layer, _)| order.iter().position(|own| own == layer));
        let norms = |(layer, change): (Module, Change)| {
            let [grad_norm, weight_norm, update] = [change.gradient, change.weight, change.update].map(f64::sqrt);
            let update_ratio = update / weight_norm.max(f64::MIN_POSITIVE);
            LayerUpdate { layer: layer.name(), grad_norm, weight_norm, update_ratio }
        };
        layers.into_iter().map(norms).collect()
    }

    /// Evaluates on part of the validation text, and keeps the weights if they are the best. If that part has no token
    /// to predict, there is no loss, and the weights are not judged. Returns whether to stop; none if the evaluation
    /// itself was stopped.
    fn validate(&mut self, windows: &Windows, tell: Tell) -> Result<Option<bool>> {
        let score = self.trainer.averaged(|trainer| evaluate(trainer, windows, tell))??;
        let Some(score) = score else { return Ok(None) };
        let step = self.trainer.steps_done;
        let Some(loss) = score.loss() else {
            let what = format!("step {step}: no validation loss, because the validation text has no token to predict");
            return Ok(Some(tell(TrainEvent::Notice(what)) == Control::Stop));
        };
        if !loss.is_finite() && step == self.trainer.recipe.steps && self.state.best.is_none() {
            // no later step would meet it, and there are no better weights to keep
            return Err(TrainError::NotFinite {
                step: step + 1,
                tensor: "the validation loss".into(),
                value: loss as f32,
            });
        }
        let best = loss.is_finite() && self.state.best.is_none_or(|(_, least)| loss < least);
        self.state.stale = if best { 0 } else { self.state.stale + 1 };
        if best {
            self.state.best = Some((step, loss));
            self.save_best(tell)?;
        }
        self.note(serde_json::json!({ "step": step, "val_loss": loss, "val_tokens": score.tokens }), tell);
        Ok(Some(tell(TrainEvent::Validated { step, loss, tokens: score.tokens, best }) == Control::Stop))
    }

    /// Evaluates the kept weights on all of the validation text, and sums up.
    fn finish(&mut self, windows: Option<Windows>, seconds: f64, end: Option<End>, tell: Tell) -> Result<Summary> {
        self.trainer.settle()?;
        let mut stopped = end == Some(End::Stopped);
        let (mut val_loss, mut val_bits_per_byte) = (None, None);
        if let Some(windows) = windows.filter(|_| !stopped) {
            let score = self.evaluate_best(&windows, tell)?;
            stopped = score.is_none();
            val_loss = score.and_then(|score| score.loss());
            let bytes = match self.data.objective {
                Objective::NextToken => text_bytes(self.data.validation, self.data.tokenizer).ok().flatten(),
                Objective::Masked { .. } => None,
            };
            val_bits_per_byte = score.zip(bytes).and_then(|(score, bytes)| score.bits_per_byte(bytes));
        }
        // files that were removed since the last save are put back, or found missing
        let gone = self.folder.clone().is_some_and(|folder| {
            let held = self.hold_folder(&folder, tell).is_ok();
            !held || !Run::can_resume(&folder)
        });
        if self.trainer.team.agree(gone || !self.missing.is_empty())? {
            self.try_save(self.state.due, tell)?;
        } else {
            self.derive(tell);
        }
        let (recent, moved) = (&self.state.recent, self.moved);
        Ok(Summary {
            steps: self.trainer.steps_done,
            train_loss: mean(recent),
            losses: Some(recent.len()),
            val_loss,
            val_bits_per_byte,
            best_step: self.best_step(),
            tokens: self.state.tokens,
            seconds,
            tok_s: self.state.tokens as f64 / seconds.max(1e-9),
            peak_rss_bytes: None,
            device_bytes: (self.moving_steps > 0).then(|| [moved.to, moved.from].map(|all| all / self.moving_steps)),
            threads: self.thread_times().filter(|times| times.seconds.len() > 1),
            entropy_floor: None,
            stopped,
            ended_early: end == Some(End::Early),
            missing: self.missing.values().collect::<BTreeSet<_>>().into_iter().cloned().collect(),
        })
    }

    /// The step of the weights that are kept.
    fn best_step(&self) -> u64 {
        self.state.best.map_or(self.trainer.steps_done, |(step, _)| step)
    }

    /// The score of the kept weights on all windows; none if it was stopped before the end.
    fn evaluate_best(&mut self, windows: &Windows, tell: Tell) -> Result<Option<Score>> {
        if self.best_step() == self.trainer.steps_done {
            self.trainer.averaged(|trainer| evaluate(trainer, windows, tell))?
        } else {
            self.with_best(|trainer| evaluate(trainer, windows, tell))?
        }
    }
}

/// The score of all windows; none if it was stopped before the end.
fn evaluate(trainer: &mut Trainer, windows: &Windows, tell: Tell) -> Result<Option<Score>> {
    let all = windows.tokens();
    let mut stopped = false;
    let Trainer { model, backend, recipe, team, .. } = trainer;
    let score = evaluate::score_among(model, &mut **backend, windows, recipe.batch_size, team, &mut |score| {
        stopped = tell(TrainEvent::Evaluating(score.tokens, all)) == Control::Stop;
        !stopped
    })?;
    Ok((!stopped).then_some(score))
}

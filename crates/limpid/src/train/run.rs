//! A run: training from where it stands to its last step, in a folder that is a model directory all along.
//!
//!   config.json, tokenizer.json     what the model is
//!   model.safetensors               (of an adapter: adapter_model.safetensors) the best weights by validation loss so far (the last ones, if there is no validation)
//!   state/last.safetensors          the last weights, moments and step: what resuming needs, in one file
//!   state/step-00000250.safetensors earlier ones, if any are to be kept
//!   state/lock                      held by the process that trains here
//!   metrics.jsonl, summary.json     what happened (`log` derives metrics.csv and TensorBoard's events from it)
//!   divergence/step-00000812.txt    batches that made the loss jump, as text
//!
//! Every file is replaced whole. The state is written after what it vouches for, so a run that is killed at any
//! moment resumes from its last state and writes the same bytes again. A save that fails is told and tried again at the next;
//! only the last one ends the run with an error.

use super::divergence::{describe, is_worse, jump, says, steepest};
use super::log::Log;
use super::{Divergence, Gradient, Recipe, Schedule, Step, TrainError, Trainer, preflight};
use crate::checkpoint::{self, CheckpointError, at, safetensors_file};
use crate::data::{Batches, Objective, Tokens, Windows};
use crate::evaluate::{self, Score};
use crate::ops::adamw::Change;
use crate::ops::random;
use crate::tokenizer::Tokenizer;
use serde::{Deserialize, Serialize};
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// What a run tells whoever listens.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A step was done; seconds since the run (or its resumption) began.
    Step(Step, f64),
    /// An evaluation on validation text goes on: tokens done, tokens in all.
    Evaluating(usize, usize),
    /// The validation loss after a step, and whether it is the best so far.
    Validated {
        /// the step
        step: u64,
        /// the loss
        loss: f64,
        /// the best so far
        best: bool,
    },
    /// The state after a step is on disk.
    Saved(u64),
    /// Something that the user should know: a save that failed, a loss that jumped, an early end.
    Notice(String),
}

/// What the listener wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Go on.
    Continue,
    /// Save and stop.
    Stop,
}

/// What a run came to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Updates done.
    pub steps: u64,
    /// Mean training loss of the last steps.
    pub train_loss: f64,
    /// Loss on all validation text, of the weights in model.safetensors.
    pub val_loss: Option<f64>,
    /// The step those weights are of.
    pub best_step: u64,
    /// Tokens trained on.
    pub tokens: u64,
    /// Seconds spent, resumptions included.
    pub seconds: f64,
    /// Tokens a second while training, evaluations and saves included.
    pub tok_s: f64,
    /// Most memory the process held.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_rss_bytes: Option<u64>,
    /// The least loss any model can reach on the validation text, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entropy_floor: Option<f64>,
    /// Whether the run was stopped before its last step.
    pub stopped: bool,
    /// Whether it ended before its last step because the validation loss no longer fell.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ended_early: bool,
}

/// What the state file carries beside tensors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct State {
    format: u32,
    step: u64,
    tokens: u64,
    seconds: f64,
    best: Option<(u64, f64)>,
    recent: Vec<f64>,
    recipe: Recipe,
    /// The first step's loss.
    #[serde(default)]
    first: Option<f64>,
    /// Evaluations since the best.
    #[serde(default)]
    stale: u64,
    /// Steps' worth of data passed over, and how often training went back to do so.
    #[serde(default)]
    skipped: u64,
    #[serde(default)]
    rollbacks: u64,
    /// A number for the training text: its length and some of its tokens.
    #[serde(default)]
    text: Option<u64>,
}

/// The state's format; a file of a later one is refused.
const FORMAT: u32 = 1;

/// Times that training may go back before that is seen to be of no use.
const ROLLBACKS: u64 = 10;

/// A folder, the data, and what to do.
pub struct Run<'a> {
    /// The model in training.
    pub trainer: Trainer,
    /// Where files go; none to write nothing.
    pub folder: Option<PathBuf>,
    /// Text to learn from.
    pub train: &'a Tokens,
    /// Text to judge by; empty for none.
    pub validation: &'a Tokens,
    /// What is asked of the model.
    pub objective: Objective,
    /// Whose ids they are.
    pub tokenizer: &'a Tokenizer,
    state: State,
    lock: Option<File>,
    log: Option<Log>,
    log_fails: bool,
    /// One for each parameter that trains, when layers are looked at.
    changes: Vec<Change>,
}

/// Training losses that the progress and the summary average.
const RECENT: usize = 50;

impl<'a> Run<'a> {
    /// A run that has not begun.
    pub fn new(
        trainer: Trainer,
        folder: Option<PathBuf>,
        train: &'a Tokens,
        validation: &'a Tokens,
        objective: Objective,
        tokenizer: &'a Tokenizer,
    ) -> Run<'a> {
        let state = State {
            format: FORMAT,
            step: 0,
            tokens: 0,
            seconds: 0.0,
            best: None,
            recent: vec![],
            recipe: trainer.recipe,
            first: None,
            stale: 0,
            skipped: 0,
            rollbacks: 0,
            text: Some(fingerprint(train)),
        };
        Run {
            trainer,
            folder,
            train,
            validation,
            objective,
            tokenizer,
            state,
            lock: None,
            log: None,
            log_fails: false,
            changes: vec![],
        }
    }

    /// Whether a folder has a state to resume from.
    pub fn can_resume(folder: &Path) -> bool {
        state_path(folder).exists()
    }

    /// Begins a folder: writes what the model is (config.json and tokenizer.json), and forgets the metrics of a run that
    /// was killed there before it saved a state.
    ///
    /// # Errors
    /// If another process trains there; whatever the file system says.
    pub fn describe(&mut self) -> Result<(), TrainError> {
        let Some(folder) = self.folder.clone() else { return Ok(()) };
        self.claim(&folder)?;
        checkpoint::write_text(&folder.join("config.json"), &self.trainer.model.config.to_json())?;
        checkpoint::write_text(&folder.join("tokenizer.json"), &self.tokenizer.to_json())?;
        self.log = Some(Log::open(&folder, 0)?);
        Ok(())
    }

    /// Holds the folder until this run is dropped or its process ends, however it does.
    fn claim(&mut self, folder: &Path) -> Result<(), TrainError> {
        if self.lock.is_some() {
            return Ok(());
        }
        let path = folder.join("state").join("lock");
        at(&folder.join("state"), fs::create_dir_all(folder.join("state")))?;
        let lock = at(&path, File::options().create(true).append(true).open(&path))?;
        match lock.try_lock() {
            Err(TryLockError::WouldBlock) => return Err(TrainError::Busy { path: folder.into() }),
            // a file system without locks keeps nobody out
            Err(TryLockError::Error(_)) | Ok(()) => self.lock = Some(lock),
        }
        Ok(())
    }

    /// Takes up the folder's last state, or the one kept after step `from`. Returns the steps it had done.
    ///
    /// # Errors
    /// If another process trains there, the state is of another model, recipe or text (what may differ is said), or it is
    /// damaged or of a later format.
    pub fn resume(&mut self, from: Option<u64>) -> Result<u64, TrainError> {
        let Some(folder) = self.folder.clone() else { return Ok(0) };
        self.claim(&folder)?;
        let path = from.map_or_else(|| state_path(&folder), |step| kept_path(&folder, step));
        let state = self.read_state(&path)?;
        let (was, is) = (state.recipe, self.trainer.recipe);
        let mut differing = differing(&free(was, &is, state.step), &is);
        let config = folder.join("config.json");
        if let Ok(text) = fs::read_to_string(&config) {
            let is: serde_json::Value = serde_json::from_str(&self.trainer.model.config.to_json()).unwrap_or_default();
            let was = serde_json::from_str(&text).unwrap_or_default();
            differing.extend(differing_keys(&was, &is));
        }
        if state.text.is_some_and(|text| Some(text) != self.state.text) {
            differing.push("the training text is another".into());
        }
        if !differing.is_empty() {
            let what = differing.join(", ");
            return Err(TrainError::Differs { path: folder, what });
        }
        self.take(&path, state)?;
        self.log = Some(Log::open(&folder, self.state.step)?);
        Ok(self.state.step)
    }

    /// What a state file says beside its tensors.
    fn read_state(&self, path: &Path) -> Result<State, TrainError> {
        let bad = |what: String| TrainError::Checkpoint(CheckpointError::Format { path: path.into(), what });
        let tensors = safetensors_file::open(path)?;
        let text = tensors.fact("limpid").ok_or_else(|| bad("it is not a training state".into()))?;
        let value: serde_json::Value = serde_json::from_str(text).unwrap_or_default();
        if let Some(format) = value["format"].as_u64().filter(|format| *format > u64::from(FORMAT)) {
            return Err(bad(format!(
                "it is of format {format} and this limpid knows {FORMAT}: a later limpid wrote it, which can go on with it"
            )));
        }
        serde_json::from_value(value).map_err(|e| bad(format!("its state cannot be read: {e}")))
    }

    /// Takes weights, moments and counts from a state file; the recipe stays.
    fn take(&mut self, path: &Path, state: State) -> Result<(), TrainError> {
        self.trainer.restore(&safetensors_file::open(path)?, state.step)?;
        self.trainer.skipped = state.skipped;
        self.state = State { recipe: self.trainer.recipe, ..state };
        Ok(())
    }

    /// Trains to the last step, or until told to stop.
    ///
    /// # Errors
    /// If the text is too short, a number is not finite, or a file cannot be written.
    pub fn go(&mut self, tell: &mut dyn FnMut(Event) -> Control) -> Result<Summary, TrainError> {
        let recipe = self.trainer.recipe;
        let context = if recipe.context == 0 { self.trainer.model.config.context_length } else { recipe.context };
        let Recipe { batch_size, seed, .. } = recipe;
        let documents = recipe.documents();
        let batches = Batches::of_documents(self.train, batch_size, context, seed, self.objective, documents)?;
        let batches = batches.accumulated(recipe.accumulate);
        let windows = match self.validation.is_empty() {
            true => None,
            false => {
                let what = "validation text";
                Some(Windows::of_documents(what, self.validation, context, self.objective, documents)?)
            }
        };
        if recipe.preflight && self.trainer.step == 0 {
            preflight(&mut self.trainer, &batches)?;
        }
        let (start, before) = (Instant::now(), self.state.seconds);
        let (mut stopped, mut ended_early) = (false, recipe.patience > 0 && self.state.stale >= recipe.patience);
        if recipe.divergence == Divergence::Rollback && self.trainer.step == 0 {
            self.save(false)?; // what to go back to
        }
        while self.trainer.step < recipe.steps && !stopped && !ended_early {
            let Some(step) = self.advance(&batches, tell)? else { continue };
            self.state.tokens += step.tokens as u64;
            self.state.seconds = before + start.elapsed().as_secs_f64();
            self.state.first.get_or_insert(step.loss);
            if self.state.recent.len() == RECENT {
                self.state.recent.remove(0);
            }
            self.state.recent.push(step.loss);
            let line = serde_json::json!({
                "step": step.step, "train_loss": step.loss, "grad_norm": step.norm, "learning_rate": step.rate,
                "tokens": self.state.tokens, "seconds": self.state.seconds,
            });
            self.note(line, tell);
            if !self.changes.is_empty() {
                let layers = self.layers();
                self.note(serde_json::json!({ "step": step.step, "layers": layers }), tell);
            }
            stopped = tell(Event::Step(step, start.elapsed().as_secs_f64())) == Control::Stop;
            let last = step.step == recipe.steps;
            let due = |every: u64| every > 0 && step.step.is_multiple_of(every) || last;
            if due(recipe.eval_every)
                && !stopped
                && let Some(windows) = &windows
            {
                stopped |= self.validate(&windows.clone().about(recipe.eval_tokens), tell)?;
                ended_early = recipe.patience > 0 && self.state.stale >= recipe.patience && !last;
            }
            let worse = self.state.first.and_then(|first| Some((first, is_worse(&self.state.recent, first)?)));
            if due(recipe.save_every) || stopped || ended_early || worse.is_some() {
                match self.save(windows.is_none()) {
                    Ok(()) => drop(tell(Event::Saved(step.step))),
                    Err(error) if last || stopped || ended_early || worse.is_some() => return Err(error),
                    Err(error) => {
                        let what =
                            format!("step {}: {}. Training goes on; the next save is tried", step.step, whole(&error));
                        tell(Event::Notice(what));
                    }
                }
            }
            if let Some((first, loss)) = worse {
                return Err(TrainError::Diverged { step: step.step, loss, first, rate: recipe.learning_rate });
            }
            if ended_early {
                let what = format!("no better validation loss in {} evaluations: training ends", self.state.stale);
                tell(Event::Notice(what));
            }
        }
        self.finish(windows, start.elapsed().as_secs_f64() + before, ended_early, tell)
    }

    /// One step, unless its loss goes astray and the recipe has training go back.
    fn advance(
        &mut self,
        batches: &Batches,
        tell: &mut dyn FnMut(Event) -> Control,
    ) -> Result<Option<Step>, TrainError> {
        let recipe = self.trainer.recipe;
        let step = self.trainer.step + 1;
        let mut found = self.trainer.gradient(batches);
        let jumped = |gradient: &Gradient| {
            let (usual, deviations) = jump(&self.state.recent, gradient.loss)?;
            (recipe.spike > 0.0 && deviations > recipe.spike).then_some((gradient.loss, usual, deviations))
        };
        if let Some((loss, usual, deviations)) = found.as_ref().ok().and_then(jumped) {
            let error = TrainError::Spike { step, loss, usual, deviations };
            let path = self.record(batches, &error)?;
            self.trainer.discard();
            match recipe.divergence {
                Divergence::Note => {
                    let what = format!("the loss jumped to {loss:.4} from about {usual:.4}; the batch is in {path}");
                    tell(Event::Notice(format!("step {step}: {what}")));
                    // the record ran other passes over the same rows
                    found = self.trainer.gradient(batches);
                }
                Divergence::Stop => {
                    self.save(false)?;
                    return Err(error);
                }
                Divergence::Rollback => return self.go_back(&error, tell).map(|()| None),
            }
        }
        let looks = recipe.detail_every > 0 && step.is_multiple_of(recipe.detail_every);
        let trainer = &self.trainer;
        let trained = trainer.model.params.iter().filter(|p| trainer.trains(p));
        self.changes = if looks { trained.map(|p| Change::of(p.slot.range())).collect() } else { vec![] };
        let rate = recipe.rate(self.trainer.step);
        let done = found.and_then(|gradient| self.trainer.update(batches, gradient, rate, &mut self.changes));
        match done {
            Err(error @ TrainError::NotFinite { .. }) => {
                self.record(batches, &error)?;
                match recipe.divergence {
                    Divergence::Rollback => self.go_back(&error, tell).map(|()| None),
                    Divergence::Note | Divergence::Stop => Err(error),
                }
            }
            done => done.map(Some),
        }
    }

    /// Writes the next step's batch as text. Returns the file's name.
    fn record(&mut self, batches: &Batches, error: &TrainError) -> Result<String, TrainError> {
        let Some(folder) = self.folder.clone() else { return Ok(String::new()) };
        let said = says(error, &self.trainer, &steepest(&self.trainer));
        let text = describe(&mut self.trainer, batches, self.tokenizer, &said);
        let path = folder.join("divergence").join(format!("step-{:08}.txt", self.trainer.step + 1));
        at(&folder.join("divergence"), fs::create_dir_all(folder.join("divergence")))?;
        checkpoint::write_text(&path, &text)?;
        Ok(path.display().to_string())
    }

    /// Takes up the last state, and passes over the data from there to the step that went astray.
    fn go_back(&mut self, error: &TrainError, tell: &mut dyn FnMut(Event) -> Control) -> Result<(), TrainError> {
        let step = self.trainer.step + 1;
        let (times, skipped) = (self.state.rollbacks + 1, self.trainer.skipped);
        let folder = self.folder.clone().filter(|folder| Run::can_resume(folder));
        let (Some(folder), true) = (folder, times <= ROLLBACKS) else {
            return Err(TrainError::Astray { times, step });
        };
        let path = state_path(&folder);
        let state = self.read_state(&path)?;
        let back = state.step;
        self.take(&path, state)?;
        self.trainer.skipped = skipped + (step - back);
        (self.state.skipped, self.state.rollbacks) = (self.trainer.skipped, times);
        self.log = Some(Log::open(&folder, self.state.step)?);
        let what = error.to_string();
        let what = what.split("; ").next().unwrap_or_default();
        tell(Event::Notice(format!("{what}. Back to step {back}, without the data of {} steps", step - back)));
        Ok(())
    }

    /// What the last update did, by layer: norms of gradients and weights, and how large the update was beside the weights.
    fn layers(&self) -> serde_json::Value {
        let mut layers: Vec<(&str, Change)> = vec![];
        let trained = self.trainer.model.params.iter().filter(|p| self.trainer.trains(p));
        for (param, change) in trained.zip(&self.changes) {
            match layers.iter_mut().find(|(name, _)| *name == param.layer()) {
                Some((_, all)) => {
                    all.gradient += change.gradient;
                    all.weight += change.weight;
                    all.update += change.update;
                }
                None => layers.push((param.layer(), change.clone())),
            }
        }
        let place = |name: &str| self.trainer.model.layers().iter().position(|layer| *layer == name);
        layers.sort_by_key(|(name, _)| place(name));
        let say = |(name, change): (&str, Change)| {
            let [gradient, weight, update] = [change.gradient, change.weight, change.update].map(f64::sqrt);
            let ratio = update / weight.max(f64::MIN_POSITIVE);
            let value = serde_json::json!({ "grad_norm": gradient, "weight_norm": weight, "update_ratio": ratio });
            (name.to_string(), value)
        };
        layers.into_iter().map(say).collect::<serde_json::Map<_, _>>().into()
    }

    /// Evaluates on part of the validation text and keeps the weights if they are the best. Returns whether to stop.
    fn validate(&mut self, windows: &Windows, tell: &mut dyn FnMut(Event) -> Control) -> Result<bool, TrainError> {
        let (score, stopped) = self.trainer.averaged(|trainer| evaluate(trainer, windows, tell));
        if stopped {
            return Ok(true);
        }
        let step = self.trainer.step;
        let best = self.state.best.is_none_or(|(_, loss)| score.loss() < loss);
        self.state.stale = if best { 0 } else { self.state.stale + 1 };
        if best {
            self.keep()?;
            self.state.best = Some((step, score.loss()));
        }
        self.note(serde_json::json!({ "step": step, "val_loss": score.loss(), "val_tokens": score.tokens }), tell);
        Ok(tell(Event::Validated { step, loss: score.loss(), best }) == Control::Stop)
    }

    fn keep(&mut self) -> Result<(), TrainError> {
        let Some(folder) = &self.folder else { return Ok(()) };
        self.trainer.averaged(|t| checkpoint::save_weights(folder, &t.model, &*t.backend))?;
        Ok(())
    }

    fn save(&mut self, keep: bool) -> Result<(), TrainError> {
        (self.state.step, self.state.skipped) = (self.trainer.step, self.trainer.skipped);
        self.log.as_mut().map_or(Ok(()), Log::flush)?; // a state vouches for the lines of its steps
        if keep || self.state.best.is_none() {
            self.keep()?;
        }
        let Some(folder) = &self.folder else { return Ok(()) };
        let (path, recipe) = (state_path(folder), self.trainer.recipe);
        self.trainer.save(&path, serde_json::to_string(&self.state).expect("a state is JSON"))?;
        if recipe.keep > 0 {
            // the same file under a second name: the next save puts another in the place of the first
            let kept = kept_path(folder, self.state.step);
            let _ = fs::remove_file(&kept);
            at(&kept, fs::hard_link(&path, &kept).or_else(|_| fs::copy(&path, &kept).map(drop)))?;
            let mut steps = kept_steps(folder);
            steps.retain(|step| *step <= self.state.step);
            for step in steps.iter().rev().skip(recipe.keep + 1) {
                let _ = fs::remove_file(kept_path(folder, *step));
            }
        }
        Ok(())
    }

    /// Writes a line into the folder's log; where that fails the line waits, and training goes on.
    fn note(&mut self, line: serde_json::Value, tell: &mut dyn FnMut(Event) -> Control) {
        let Some(log) = &mut self.log else { return };
        let failed = log.add(line).err();
        if let Some(error) = &failed
            && !self.log_fails
        {
            tell(Event::Notice(format!("{}. Training goes on; the lines wait", whole(error))));
        }
        self.log_fails = failed.is_some();
    }

    /// The last evaluation is of the weights that are kept, on all of the validation text.
    fn finish(
        &mut self,
        windows: Option<Windows>,
        seconds: f64,
        ended_early: bool,
        tell: &mut dyn FnMut(Event) -> Control,
    ) -> Result<Summary, TrainError> {
        let stopped = self.trainer.step < self.trainer.recipe.steps && !ended_early;
        let best_step = self.state.best.map_or(self.trainer.step, |(step, _)| step);
        let mut val_loss = None;
        if let (Some(windows), false) = (windows, stopped) {
            let score = match best_step == self.trainer.step {
                true => self.trainer.averaged(|trainer| evaluate(trainer, &windows, tell)),
                false => {
                    let last = self.swap_in_best()?;
                    let score = evaluate(&mut self.trainer, &windows, tell);
                    let Trainer { model, backend, .. } = &mut self.trainer;
                    model.kept().zip(last.into_iter().flatten()).for_each(|(p, v)| backend.write(p.slot, &v));
                    score
                }
            };
            val_loss = Some(score.0.loss());
        }
        let recent = &self.state.recent;
        let summary = Summary {
            steps: self.trainer.step,
            train_loss: recent.iter().sum::<f64>() / recent.len().max(1) as f64,
            val_loss,
            best_step,
            tokens: self.state.tokens,
            seconds,
            tok_s: self.state.tokens as f64 / seconds.max(1e-9),
            peak_rss_bytes: None,
            entropy_floor: None,
            stopped,
            ended_early,
        };
        Ok(summary)
    }

    /// Puts the best weights in the place of the last ones and returns these.
    fn swap_in_best(&mut self) -> Result<Option<Vec<Vec<f32>>>, TrainError> {
        let Some(folder) = &self.folder else { return Ok(None) };
        let Trainer { model, backend, .. } = &mut self.trainer;
        let last = model.kept().map(|p| backend.read(p.slot)).collect();
        checkpoint::load_weights(folder, model, &mut **backend)?;
        Ok(Some(last))
    }
}

fn state_path(folder: &Path) -> PathBuf {
    folder.join("state").join("last.safetensors")
}

/// An error with its causes.
fn whole(error: &dyn std::error::Error) -> String {
    std::iter::successors(Some(error), |error| error.source()).map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// The state kept after a step.
fn kept_path(folder: &Path, step: u64) -> PathBuf {
    folder.join("state").join(format!("step-{step:08}.safetensors"))
}

/// The steps whose states a folder keeps, in order.
pub fn kept_steps(folder: &Path) -> Vec<u64> {
    let files = fs::read_dir(folder.join("state")).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let step = |name: &str| name.strip_prefix("step-")?.strip_suffix(".safetensors")?.parse().ok();
    let mut steps: Vec<u64> = files.filter_map(|name| step(name.to_str()?)).collect();
    steps.sort_unstable();
    steps
}

fn evaluate(trainer: &mut Trainer, windows: &Windows, tell: &mut dyn FnMut(Event) -> Control) -> (Score, bool) {
    let (all, mut stopped) = (windows.tokens(), false);
    let Trainer { model, backend, recipe, .. } = trainer;
    let score = evaluate::score(model, &mut **backend, windows, recipe.batch_size, &mut |score| {
        stopped = tell(Event::Evaluating(score.tokens, all)) == Control::Stop;
        !stopped
    });
    (score, stopped)
}

/// A number for a text: its length and about a thousand of its tokens.
fn fingerprint(text: &Tokens) -> u64 {
    let mut some = vec![];
    for part in 0..16 {
        let from = text.len() / 16 * part;
        text.copy(from..(from + 64).min(text.len()), &mut some);
    }
    some.iter().fold(text.len() as u64, |hash, id| random::bits(hash, 0, u64::from(*id)))
}

/// The recipe of a state after `step`, with what a resumed run may choose anew taken from its own.
fn free(was: Recipe, is: &Recipe, step: u64) -> Recipe {
    let Recipe {
        eval_every, eval_tokens, save_every, keep, patience, detail_every, spike, divergence, preflight, ..
    } = *is;
    // other steps change the rates of the steps already done, unless those are the same
    let steps = Recipe { steps: is.steps, ..was };
    let flat = matches!(was.schedule, Schedule::Constant | Schedule::Wsd);
    let same_rates = flat && (0..step).all(|s| steps.rate(s) == was.rate(s));
    let steps = if same_rates { is.steps } else { was.steps };
    Recipe {
        steps,
        eval_every,
        eval_tokens,
        save_every,
        keep,
        patience,
        detail_every,
        spike,
        divergence,
        preflight,
        ..was
    }
}

/// What differs, with what may.
fn differing(was: &Recipe, is: &Recipe) -> Vec<String> {
    let keys = |r: &Recipe| serde_json::to_value(r).expect("a recipe is JSON");
    let mut found = differing_keys(&keys(was), &keys(is));
    if was.steps != is.steps {
        found.push("steps may differ with --schedule constant, or wsd before it falls".into());
    }
    found
}

fn differing_keys(was: &serde_json::Value, is: &serde_json::Value) -> Vec<String> {
    let keys = was.as_object().into_iter().flatten();
    let differing = keys.filter(|(key, value)| !is[*key].is_null() && is[*key] != **value);
    differing.map(|(key, value)| format!("{key} was {value} and is {}", is[key])).collect()
}

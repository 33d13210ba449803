//! A run: training to the last step, in a folder that is a model directory.
//!
//!   config.json, tokenizer.json     what the model is
//!   model.safetensors               the best weights by validation loss so far, or the last ones if there is no validation text
//!                                   (for an adapter: adapter_model.safetensors)
//!   state/last.safetensors          the last weights, moments and step: all that resuming needs
//!   state/back.safetensors          the state that a rollback returns to, if the last state is of a stop between two saves
//!   state/step-00000250.safetensors earlier ones, if any are to be kept
//!   state/lock                      held by the process that trains here
//!   metrics.jsonl, summary.json     what happened (`log` derives metrics.csv and TensorBoard's events from it)
//!   divergence/step-00000812.txt    batches that made the loss spike, as text
//!
//! Nothing is written before the check of the first step (`preflight`) has passed. Every file is replaced whole. The state holds
//! checksums of the other files and is written after them. So a run that is killed or stopped at any moment resumes from its last
//! state and writes the same bytes again. If a file cannot be written, training goes on: the error is reported and the next save
//! tries again; [`Summary::missing`] lists what was never written. `folder` says whether a folder may be used.

use crate::batches::{Batches, Objective, Windows};
use crate::divergence::{describe, is_worse, jump, limit, says, steepest};
use crate::error::TrainError;
use crate::evaluate::{self, Score, mean};
use crate::folder::{self, FolderContents};
use crate::log::METRICS;
use crate::log::writer::{Log, Mark};
use crate::preflight::preflight;
use crate::ranks::RanksError;
use crate::ranks::team::AllReduce;
use crate::recipe::{Divergence, Recipe, RunOptions, RunSettings, Schedule};
use crate::trainer::{Gradient, Step, Trainer, Weights};
use limpid_base::files::{self, OutputFile};
use limpid_base::plural::plural;
use limpid_checkpoint::store::Store;
use limpid_checkpoint::{Carried, CheckpointError, at, safetensors_file};
use limpid_core::backend;
use limpid_core::ops::adamw::Change;
use limpid_data::{Tokens, text_bytes};
use limpid_tokenizer::Tokenizer;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Instant;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// An event of a run, passed to the progress callback.
#[derive(Clone, Debug, PartialEq)]
pub enum TrainEvent {
    /// A step was done; the seconds count from when the run began or was resumed.
    Step(Step, f64),
    /// What adding up gradients and spreading parameters took of a step where several processes train; before the event of the
    /// step.
    AllReduce(u64, AllReduce),
    /// What a step's update did to each layer, every [`RunOptions::layer_stats_every`] steps, before the event of the step.
    Layers(u64, Vec<LayerUpdate>),
    /// Progress of an evaluation on validation text: tokens done, tokens in all.
    Evaluating(usize, usize),
    /// The validation loss after a step, and whether it is the best so far.
    Validated {
        /// the step
        step: u64,
        /// the loss
        loss: f64,
        /// the tokens it was measured on: part of the validation text
        tokens: usize,
        /// the best so far
        best: bool,
    },
    /// The state after a step is on disk.
    Saved(u64),
    /// A message for the user: a save that failed, a loss spike, early stopping.
    Notice(String),
}

/// What an update did to a layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerUpdate {
    /// The layer: `embed`, `blocks.0`, ..., `ln_final`.
    pub layer: String,
    /// Norm of its gradient, before clipping.
    pub grad_norm: f64,
    /// Norm of its weights.
    pub weight_norm: f64,
    /// Norm of the update over that of the weights.
    pub update_ratio: f64,
}

/// The callback's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Go on.
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
    /// How many losses that is the mean of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub losses: Option<usize>,
    /// Loss on all validation text, of the weights in model.safetensors.
    pub val_loss: Option<f64>,
    /// The same in bits for each byte of the text, where the tokens say every byte: so runs with other tokens can be compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub val_bits_per_byte: Option<f64>,
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
    /// Bytes of a step to a device with memory of its own and from it, on average.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_bytes: Option<[u64; 2]>,
    /// The least loss any model can reach on the validation text, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entropy_floor: Option<f64>,
    /// Whether the run was stopped before its last step, or before it was evaluated.
    pub stopped: bool,
    /// Early stopping: whether it ended before its last step because the validation loss no longer fell.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ended_early: bool,
    /// What could not be written, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
}

/// The metadata of a state file, besides its tensors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct State {
    format: u32,
    step: u64,
    tokens: u64,
    seconds: f64,
    best: Option<(u64, f64)>,
    recent: Vec<f64>,
    /// The settings, under the name that the first version of the format had for them.
    #[serde(rename = "recipe")]
    chosen: RunSettings,
    /// The first step's loss.
    first: Option<f64>,
    /// Evaluations since the best.
    stale: u64,
    /// Steps' worth of data skipped, and the number of rollbacks that did so.
    skipped: u64,
    rollbacks: u64,
    /// Whether the evaluation and the save that are due after the last step are still to be done.
    unfinished: bool,
    /// Whether the save was a regular one, not one at a stop.
    due: bool,
    /// What the results depend on besides model and recipe.
    given: Given,
    /// Checksums of the files that the run began with.
    files: BTreeMap<String, String>,
    /// The checksum of the kept weights.
    weights: Option<String>,
    /// Where the log stood.
    log: Option<Mark>,
}

/// What a run's results depend on besides its model and recipe. A run resumes only if all of it is the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Given {
    /// Every token of the texts, where documents end, and what is to be predicted.
    training_text: u64,
    validation_text: u64,
    tokenizer: u64,
    objective: String,
    precision: String,
    /// A checksum of the parameters that no state holds: those of the model that an adapter is for.
    base: u64,
}

impl State {
    /// Checks that the folder's files are those whose checksums the state holds.
    fn vouch(&self, folder: &Path) -> Result<(), TrainError> {
        for (name, was) in &self.files {
            let path = folder.join(name);
            if sum(&at(&path, files::read_small(&path, LONGEST))?) != *was {
                let what =
                    "it is not what this run wrote when it began: it was changed or damaged. What may differ is \
                            chosen as settings"
                        .into();
                return Err(CheckpointError::Format { path, what }.into());
            }
        }
        Ok(())
    }
}

/// A state that a run can go on from, seen to be whole; its folder is held while this lives.
pub struct Resumable {
    /// Its file.
    path: PathBuf,
    state: State,
    store: Store,
    lock: OutputFile,
}

/// The state's format. Those of format 1 had no checksums; in format 2 gradients of micro-batches added up one after the other; in format 3
/// a window of a masked model could have no masked token.
const FORMAT: u32 = 4;

/// Bytes of a file that a run begins with, at most: a tokenizer's may be some megabytes.
const LONGEST: u64 = 1 << 30;

/// Rollbacks after which a run gives up.
const ROLLBACKS: u64 = 10;

/// A folder, the data, and what to do.
pub struct Run<'a> {
    /// The model in training.
    pub trainer: Trainer,
    /// How the run is carried out.
    pub options: RunOptions,
    /// Where files go; none to write nothing.
    pub folder: Option<PathBuf>,
    /// The training text.
    pub train: &'a Tokens,
    /// The validation text; empty for none.
    pub validation: &'a Tokens,
    /// What is asked of the model.
    pub objective: Objective,
    /// The tokenizer of both texts.
    pub tokenizer: &'a Tokenizer,
    /// Names and texts of files to write at the beginning, besides config.json and tokenizer.json.
    pub files: Vec<(String, String)>,
    /// What goes along from the folder of the model that is fine-tuned.
    pub carried: Carried,
    /// Whether to use a folder that holds something else, and to remove the files that would be read instead of this run's model.
    pub force: bool,
    state: State,
    lock: Option<OutputFile>,
    log: Option<Log>,
    /// Whether the state in the folder is one that a rollback may return to.
    due: bool,
    /// The best weights and their step, if they could not be written yet; no state is written before them.
    owed: Option<(u64, Weights)>,
    /// Reports of batches that could not be written yet.
    texts: Vec<(PathBuf, String)>,
    /// What could not be written, and why.
    missing: BTreeMap<PathBuf, String>,
    /// Steps that moved bytes to a device and from it, and the bytes.
    moved: (u64, [u64; 2]),
    /// One for each parameter that trains, in steps whose layer statistics are logged.
    changes: Vec<Change>,
    /// Whether process 0 of several writes files.
    keeps: bool,
}

/// The summary's training loss is the mean of this many last losses.
pub const RECENT: usize = 50;

/// Why training ends before its last step.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Stopped,
    Early,
}

impl<'a> Run<'a> {
    /// A run that has not begun.
    ///
    /// # Errors
    /// If the backend cannot read the weights that training does not change, or a file of the text was changed.
    pub fn new(
        trainer: Trainer,
        folder: Option<PathBuf>,
        train: &'a Tokens,
        validation: &'a Tokens,
        objective: Objective,
        tokenizer: &'a Tokenizer,
    ) -> Result<Run<'a>, TrainError> {
        let mut base = Xxh3::new();
        for param in trainer.model.params.iter().filter(|p| trainer.model.kept().all(|kept| kept.name != p.name)) {
            trainer.backend.read(param.region)?.iter().for_each(|v| base.update(&v.to_le_bytes()));
        }
        let state = State {
            format: FORMAT,
            step: 0,
            tokens: 0,
            seconds: 0.0,
            best: None,
            recent: vec![],
            chosen: RunSettings { recipe: trainer.recipe, options: RunOptions::default() },
            first: None,
            stale: 0,
            skipped: 0,
            rollbacks: 0,
            unfinished: false,
            due: true,
            given: Given {
                training_text: train.digest()?,
                validation_text: validation.digest()?,
                tokenizer: xxh3_64(tokenizer.to_json().as_bytes()),
                objective: format!("{objective:?}"),
                precision: trainer.backend.precision().to_string(),
                base: base.digest(),
            },
            files: BTreeMap::new(),
            weights: None,
            log: None,
        };
        Ok(Run {
            trainer,
            options: RunOptions::default(),
            folder,
            train,
            validation,
            objective,
            tokenizer,
            files: vec![],
            carried: Carried::default(),
            force: false,
            state,
            lock: None,
            log: None,
            due: false,
            owed: None,
            texts: vec![],
            missing: BTreeMap::new(),
            moved: (0, [0; 2]),
            changes: vec![],
            keeps: false,
        })
    }

    /// Whether a folder has a state to resume from.
    pub fn can_resume(folder: &Path) -> bool {
        state_path(folder).exists()
    }

    /// Begins the folder; where that fails, leaves nothing.
    fn begin(&mut self) -> Result<(), TrainError> {
        let Some(folder) = self.folder.clone() else { return Ok(()) };
        let first = folder.ancestors().take_while(|path| !path.as_os_str().is_empty() && !path.exists()).last();
        let first = first.map(Path::to_path_buf);
        let found = folder::look(&folder);
        match &found {
            FolderContents::Nothing | FolderContents::Begun => {}
            FolderContents::Run | FolderContents::Other(_) if self.force && found.is_replaced() => {}
            _ => return Err(TrainError::FolderNotEmpty { path: folder, found }),
        }
        let begun = self.claim(&folder).and_then(|()| {
            // what was there goes when there is something to put in its place
            self.write_texts(&folder)?;
            let stay = self.state.files.keys().map(String::as_str).chain([METRICS]).chain(self.carried.written());
            let stay: Vec<&str> = stay.collect();
            folder::clear(&folder, &stay, self.force)?;
            self.log = Some(Log::open(&folder, None)?);
            Ok(())
        });
        if let Err(error) = &begun
            && found == FolderContents::Nothing
            && !matches!(error, TrainError::Busy { .. })
        {
            (self.log, self.lock) = (None, None);
            folder::leave(&folder, first.as_deref());
        }
        begun
    }

    /// Writes what the folder begins with.
    fn write_texts(&mut self, folder: &Path) -> Result<(), TrainError> {
        self.carried.put_whole(folder)?;
        let own = [
            ("config.json".to_string(), self.trainer.model.config.to_json()),
            ("tokenizer.json".to_string(), self.tokenizer.to_json()),
        ];
        for (name, text) in self.files.iter().chain(&own) {
            limpid_checkpoint::write_text(&folder.join(name), text)?;
            self.state.files.insert(name.clone(), sum(text.as_bytes()));
        }
        Ok(())
    }

    /// Holds the folder until this run, or the log that it leaves, is dropped or its process ends, however it does.
    fn claim(&mut self, folder: &Path) -> Result<(), TrainError> {
        if !self.lock.as_ref().is_some_and(|lock| lock.is_at(&lock_path(folder))) {
            self.lock = None; // nobody keeps itself out
            self.lock = Some(lock(folder)?);
        }
        Ok(())
    }

    /// The settings of the last state (or of the one kept after step `from`), with the changes made when the run was resumed; none if
    /// there is no readable state.
    pub fn settings(folder: &Path, from: Option<u64>) -> Option<RunSettings> {
        let store = safetensors_file::open(&state_file(folder, from)).ok()?;
        let mut state: serde_json::Value = serde_json::from_str(store.fact("limpid")?).ok()?;
        serde_json::from_value(state["recipe"].take()).ok()
    }

    /// Locks a folder and opens its last state, or the one kept after step `from`, and checks that the files a resumed run begins from are as
    /// the run wrote them, before any of them is used.
    ///
    /// # Errors
    /// If another process trains there; names the state or the first file that is not as it was.
    pub fn check(folder: &Path, from: Option<u64>) -> Result<Resumable, TrainError> {
        let path = state_file(folder, from);
        at(&path, fs::metadata(&path))?; // a folder without a state stays as it is
        let lock = lock(folder)?;
        let (state, store) = read_state(&path)?;
        state.vouch(folder)?;
        Ok(Resumable { path, state, store, lock })
    }

    /// Resumes from the folder's last state, or from the one kept after step `from`. Returns the number of steps done.
    ///
    /// # Errors
    /// If another process trains there; if the state is of another model, recipe, text, tokenizer or precision (the error says what may
    /// differ); if a file whose checksum it holds has changed; or if it is damaged or of another format.
    pub fn resume(&mut self, from: Option<u64>) -> Result<u64, TrainError> {
        match &self.folder {
            Some(folder) => self.resume_from(Run::check(folder, from)?),
            None => Ok(0),
        }
    }

    /// Takes up a state of this run's folder. Returns the steps it had done. An earlier state becomes the last one in one step, before
    /// anything else in the folder changes: what is later in the log and in the kept weights then says so itself.
    ///
    /// # Errors
    /// If it is of another model, recipe, text, tokenizer or precision, or the weights kept beside it are not as they were.
    pub fn resume_from(&mut self, Resumable { path, state, store, lock }: Resumable) -> Result<u64, TrainError> {
        self.check_team()?;
        let Some(folder) = self.folder.clone() else { return Ok(0) };
        let (was, is) = (state.chosen.recipe, self.trainer.recipe);
        let mut differing = differing(&longer(was, &is, state.step), &is);
        let config = folder.join("config.json");
        if let Ok(text) = files::read_text(&config, u64::MAX) {
            let is: serde_json::Value = serde_json::from_str(&self.trainer.model.config.to_json()).unwrap_or_default();
            let was = serde_json::from_str(&text).unwrap_or_default();
            differing.extend(differing_keys(&was, &is));
        }
        differing.extend(state.given.differing(&self.state.given));
        if !differing.is_empty() {
            let what = differing.join(", ");
            return Err(TrainError::Differs { path: folder, what });
        }
        let kept = match state.best {
            Some(_) => Some(limpid_checkpoint::check_weights(&folder, &self.trainer.model)?),
            None => None,
        };
        if let (Some((found, step)), Some(said)) = (&kept, &state.weights)
            && found != said
            && *step <= state.step
        {
            let path = limpid_checkpoint::weights_path(&folder, &self.trainer.model);
            let what = format!("it holds other weights (of step {step}) than this run kept: it was replaced");
            return Err(CheckpointError::Format { path, what }.into());
        }
        let log = Log::open(&folder, state.log.as_ref())?;
        let last = state_path(&folder);
        if path != last {
            at(&last, files::link(&path, &last))?;
        }
        if state.due {
            let back = back_path(&folder);
            at(&back, files::remove(&back))?; // of what comes after the last state now
        }
        (self.log, self.due, self.lock) = (Some(log), state.due, Some(lock));
        self.share(Some((state, store)), kept.map(|(sum, _)| sum))?;
        Ok(self.state.step)
    }

    /// Takes up the state that process 0 has resumed from, in another process. Returns the steps it had done.
    ///
    /// # Errors
    /// If the processes do not reach each other, or train something else.
    pub fn resume_with(&mut self) -> Result<u64, TrainError> {
        self.check_team()?; // before anything is sent that has another size elsewhere
        self.share(None, None)?;
        Ok(self.state.step)
    }

    /// Takes a state; of several processes, process 0 has it and gives it to the others. If the folder's weights (`kept` is their
    /// checksum) were kept after that state, the next evaluation counts as the best: it is the one that kept them, or a better one.
    fn share(&mut self, found: Option<(State, Store)>, kept: Option<String>) -> Result<(), TrainError> {
        let (mut state, store) = found.unzip();
        if let Some(state) = state.as_mut().filter(|state| state.weights != kept) {
            (state.best, state.weights) = (None, None);
        }
        let state = match self.trainer.team.size() {
            1 => state,
            _ => {
                let text = state.map(|state| serde_json::to_string(&state).expect("a state is JSON"));
                serde_json::from_str(&self.trainer.team.tell(text.as_deref())?).ok()
            }
        };
        let Some(state) = state else { return Err(RanksError::Lost("process 0 has no state".into()).into()) };
        self.take(store.as_ref(), state)
    }

    /// Takes weights, moments and counts from a state, but not its recipe.
    fn take(&mut self, store: Option<&Store>, state: State) -> Result<(), TrainError> {
        self.trainer.restore(store, state.step)?;
        self.trainer.skipped = state.skipped;
        self.state = State { chosen: self.state.chosen, ..state };
        Ok(())
    }

    /// The log, which still holds the folder's lock: for lines that are added after the run.
    pub fn into_log(self) -> Option<Log> {
        let Run { log, lock, .. } = self;
        log.map(|log| log.holding(lock))
    }

    /// Trains to the last step, or until told to stop.
    ///
    /// # Errors
    /// If the folder cannot be used, the text is too short, a number is not finite, or training diverges.
    pub fn go(&mut self, tell: &mut dyn FnMut(TrainEvent) -> Control) -> Result<Summary, TrainError> {
        let (recipe, options) = (self.trainer.recipe, self.options);
        self.state.chosen = RunSettings { recipe, options };
        self.state.chosen.check()?;
        for text in [self.train, self.validation] {
            text.check_ids(self.trainer.model.config.vocab_size)?;
        }
        let context = if recipe.context == 0 { self.trainer.model.config.context_length } else { recipe.context };
        let batches = Recipe { context, ..recipe }.batches(self.train, self.objective)?;
        let windows = match self.validation.is_empty() {
            true => None,
            false => {
                let what = "validation text";
                Some(Windows::of_documents(what, self.validation, context, self.objective, recipe.documents())?)
            }
        };
        self.check_team()?;
        if options.preflight && self.trainer.step == 0 {
            preflight(&mut self.trainer, &batches)?;
        }
        if self.log.is_none() {
            self.begin()?;
        }
        let (start, before) = (Instant::now(), self.state.seconds);
        self.derive(tell);
        if options.divergence == Divergence::Rollback && self.trainer.step == 0 {
            self.try_save(true, tell)?; // what to go back to
        }
        // a step whose report failed is done, and what comes after it is left
        let was = self.trainer.step;
        self.trainer.settle_own()?;
        self.state.unfinished |= self.trainer.step > was;
        let stale = options.patience > 0 && self.state.stale >= options.patience;
        let mut end = (stale && self.trainer.step < recipe.steps).then_some(End::Early);
        if self.state.unfinished {
            end = self.rest(&windows, false, tell)?;
        }
        while self.trainer.step < recipe.steps && end.is_none() {
            let there = self.trainer.moved();
            let Some(step) = self.advance(&batches, windows.is_some(), tell)? else { continue };
            let here = self.trainer.moved();
            let moved = std::array::from_fn(|way| here[way] - there[way]);
            self.state.tokens += step.tokens as u64;
            self.state.seconds = before + start.elapsed().as_secs_f64();
            let mut line = serde_json::json!({
                "step": step.step, "learning_rate": step.rate, "tokens": self.state.tokens, "seconds": self.state.seconds,
            });
            if let (Some(loss), Some(norm)) = (step.loss, step.norm) {
                self.state.first.get_or_insert(loss);
                if self.state.recent.len() == RECENT {
                    self.state.recent.remove(0);
                }
                self.state.recent.push(loss);
                (line["train_loss"], line["grad_norm"]) = (loss.into(), norm.into());
            }
            if moved != [0; 2] {
                (line["to_device_bytes"], line["from_device_bytes"]) = (moved[0].into(), moved[1].into());
                self.moved = (self.moved.0 + 1, std::array::from_fn(|way| self.moved.1[way] + moved[way]));
            }
            let mut stop = false;
            if let Some(all_reduce) = self.trainer.team.take_all_reduce() {
                line["all_reduce_seconds"] = all_reduce.seconds.into();
                line["all_reduce_hidden_seconds"] = all_reduce.hidden.into();
                stop = tell(TrainEvent::AllReduce(step.step, all_reduce)) == Control::Stop;
            }
            self.note(line, tell);
            if !self.changes.is_empty() && step.loss.is_some() {
                let layers = self.layers();
                let told = layers.iter().map(|l| {
                    let LayerUpdate { layer, grad_norm, weight_norm, update_ratio } = l;
                    let numbers = serde_json::json!({ "grad_norm": grad_norm, "weight_norm": weight_norm, "update_ratio": update_ratio });
                    (layer.clone(), numbers)
                });
                let told: serde_json::Map<_, _> = told.collect();
                self.note(serde_json::json!({ "step": step.step, "layers": told }), tell);
                stop |= tell(TrainEvent::Layers(step.step, layers)) == Control::Stop;
            }
            stop |= tell(TrainEvent::Step(step, start.elapsed().as_secs_f64())) == Control::Stop;
            stop = self.trainer.team.agree(stop)?;
            end = self.rest(&windows, stop, tell)?;
        }
        self.finish(windows, start.elapsed().as_secs_f64() + before, end, tell)
    }

    /// Checks that the processes that train together train the same.
    fn check_team(&mut self) -> Result<(), TrainError> {
        if self.trainer.team.size() == 1 {
            return Ok(());
        }
        self.keeps = self.trainer.team.agree(self.folder.is_some())?;
        let Given { training_text, validation_text, tokenizer, objective, precision, base } = &self.state.given;
        let config: BTreeMap<String, serde_json::Value> =
            serde_json::from_str(&self.trainer.model.config.to_json()).unwrap_or_default();
        let recipe = serde_json::to_value(self.trainer.recipe).expect("a recipe is JSON");
        let settings = config.into_iter().chain(recipe.as_object().cloned().into_iter().flatten());
        let fixed = [
            ("version of limpid", env!("CARGO_PKG_VERSION").to_string()),
            ("training text", format!("{training_text:016x}")),
            ("validation text", format!("{validation_text:016x}")),
            ("tokenizer", format!("{tokenizer:016x}")),
            ("objective", objective.clone()),
            ("precision", precision.clone()),
            ("model to adapt", format!("{base:016x}")),
            ("number of steps done", self.trainer.step.to_string()),
        ];
        let options = serde_json::to_value(self.options).expect("options are JSON");
        let settings = settings.chain(options.as_object().cloned().into_iter().flatten());
        let fixed = fixed.map(|(name, value)| (name.to_string(), value)).into_iter();
        let facts: Vec<_> = fixed.chain(settings.map(|(name, value)| (name, value.to_string()))).collect();
        Ok(self.trainer.team.check(&facts)?)
    }

    /// The work after a step: evaluate, check for divergence, save. If it is stopped, the state says what is left to do.
    fn rest(
        &mut self,
        windows: &Option<Windows>,
        mut stop: bool,
        tell: &mut dyn FnMut(TrainEvent) -> Control,
    ) -> Result<Option<End>, TrainError> {
        let (recipe, options, step) = (self.trainer.recipe, self.options, self.trainer.step);
        let last = step == recipe.steps;
        self.state.unfinished = stop;
        if let Some(windows) = windows
            && self.due(options.eval_every, step)
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
        let early = options.patience > 0 && self.state.stale >= options.patience && !last;
        let worse = self.state.first.and_then(|first| Some((first, is_worse(&self.state.recent, first)?)));
        let saves = self.due(options.save_every, step) || early || worse.is_some();
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

    /// Whether something is done every so many steps is done after this one.
    fn due(&self, every: u64, step: u64) -> bool {
        every > 0 && step.is_multiple_of(every) || step == self.trainer.recipe.steps
    }

    /// One step; none if its loss spiked and training was rolled back.
    fn advance(
        &mut self,
        batches: &Batches,
        evaluates: bool,
        tell: &mut dyn FnMut(TrainEvent) -> Control,
    ) -> Result<Option<Step>, TrainError> {
        let (recipe, options) = (self.trainer.recipe, self.options);
        let step = self.trainer.step + 1;
        let looks = options.layer_stats_every > 0 && step.is_multiple_of(options.layer_stats_every);
        let trainer = &self.trainer;
        let trained = trainer.model.params.iter().filter(|p| trainer.trains(p));
        self.changes = if looks { trained.map(|p| Change::of(p.region.range())).collect() } else { vec![] };
        let rate = recipe.rate(self.trainer.step);
        if self.trainer.runs_ahead() {
            let sigma = Some(options.spike_sigma).filter(|sigma| *sigma > 0.0);
            let most = sigma.and_then(|sigma| limit(&self.state.recent, sigma)).unwrap_or(f64::MAX);
            let rests = evaluates && self.due(options.eval_every, step) || self.due(options.save_every, step);
            match self.trainer.step_ahead(batches, most, rate, &mut self.changes, !rests) {
                Ok(Some(step)) => return Ok(Some(step)),
                Ok(None) => {} // held back: once more, with a look at the loss before anything is updated
                Err(error) => return self.stepped(batches, Err(error), tell),
            }
        }
        let mut found = self.trainer.gradient(batches);
        let jumped = |gradient: &Gradient| {
            let loss = gradient.loss?;
            let (usual, deviations) = jump(&self.state.recent, loss)?;
            (options.spike_sigma > 0.0 && deviations > options.spike_sigma).then_some((loss, usual, deviations))
        };
        if let Some((loss, usual, deviations)) = found.as_ref().ok().and_then(jumped) {
            let error = TrainError::Spike { step, loss, usual, deviations };
            let path = self.record(batches, &error, tell)?;
            self.trainer.discard()?;
            match options.divergence {
                Divergence::Note => {
                    let what = format!("loss spike: {loss:.4}, the recent mean is {usual:.4}; the batch is in {path}");
                    tell(TrainEvent::Notice(format!("step {step}: {what}")));
                    // writing the report ran other passes over the same rows
                    found = self.trainer.gradient(batches);
                }
                Divergence::Stop => {
                    self.try_save(false, tell)?;
                    return Err(error);
                }
                Divergence::Rollback => return self.go_back(&error, tell).map(|()| None),
            }
        }
        let done = found.and_then(|gradient| self.trainer.update_own(batches, gradient, rate, &mut self.changes));
        self.stepped(batches, done, tell)
    }

    /// A step, if its numbers were finite; none if they were not and training was rolled back.
    fn stepped(
        &mut self,
        batches: &Batches,
        done: Result<Step, TrainError>,
        tell: &mut dyn FnMut(TrainEvent) -> Control,
    ) -> Result<Option<Step>, TrainError> {
        match done {
            Err(error @ TrainError::NotFinite { .. }) => {
                self.record(batches, &error, tell)?;
                match self.options.divergence {
                    Divergence::Rollback => self.go_back(&error, tell).map(|()| None),
                    Divergence::Note | Divergence::Stop => Err(error),
                }
            }
            done => done.map(Some),
        }
    }

    /// Writes a report of the next step's batch, as text. Returns the file's name. Of several processes, process 0 writes it, and
    /// the others wait: what they may do next is to end all.
    fn record(
        &mut self,
        batches: &Batches,
        error: &TrainError,
        tell: &mut dyn FnMut(TrainEvent) -> Control,
    ) -> Result<String, TrainError> {
        let steepest = steepest(&self.trainer)?;
        let name = match self.folder.clone() {
            Some(folder) => self.report(&folder, batches, &says(error, &self.trainer, &steepest), tell)?,
            None => String::new(),
        };
        self.trainer.team.agree(true)?;
        Ok(name)
    }

    fn report(
        &mut self,
        folder: &Path,
        batches: &Batches,
        said: &str,
        tell: &mut dyn FnMut(TrainEvent) -> Control,
    ) -> backend::Result<String> {
        let text = describe(&mut self.trainer, batches, self.tokenizer, said)?;
        let path = folder.join("divergence").join(format!("step-{:08}.txt", self.trainer.step + 1));
        let name = path.display().to_string();
        self.texts.push((path, text));
        if self.texts.len() > ROLLBACKS as usize {
            self.texts.remove(0); // they wait in memory
        }
        self.write_records(tell);
        Ok(name)
    }

    /// Writes the reports that wait.
    fn write_records(&mut self, tell: &mut dyn FnMut(TrainEvent) -> Control) {
        let Some(run) = self.folder.clone() else { return };
        for (path, text) in std::mem::take(&mut self.texts) {
            let held = self.hold_folder(&run, tell);
            let write = || {
                let folder = path.parent().unwrap_or(&path);
                at(folder, files::create_folder(folder))?;
                limpid_checkpoint::write_text(&path, &text)
            };
            let written = held.and_then(|()| Ok(write()?));
            if !self.told(&path, written, tell) {
                self.texts.push((path, text));
            }
        }
    }

    /// Rolls back to the last regular save, and skips the data from there to the step that spiked.
    fn go_back(&mut self, error: &TrainError, tell: &mut dyn FnMut(TrainEvent) -> Control) -> Result<(), TrainError> {
        let step = self.trainer.step + 1;
        let (times, skipped) = (self.state.rollbacks + 1, self.trainer.skipped);
        let folder = self.folder.clone().filter(|folder| Run::can_resume(folder));
        if !self.trainer.team.agree(folder.is_some() && times <= ROLLBACKS)? {
            return Err(TrainError::TooManyRollbacks { times, step });
        }
        let found = folder.map(|folder| {
            let (state, store) = read_state(&state_path(&folder))?;
            let earlier = !state.due && back_path(&folder).exists();
            if earlier { read_state(&back_path(&folder)) } else { Ok((state, store)) }
        });
        let found = found.transpose()?;
        let mut kept = None;
        if let Some((state, _)) = &found {
            if let (Some(log), Some(mark)) = (&mut self.log, &state.log) {
                log.rewind(mark)?;
            }
            self.derive(tell);
            kept = if self.owed.take().is_some() { state.weights.clone() } else { self.state.weights.take() };
        }
        self.share(found, kept)?;
        let back = self.trainer.step;
        self.trainer.skipped = skipped + (step - back);
        (self.state.skipped, self.state.rollbacks) = (self.trainer.skipped, times);
        let what = error.to_string();
        let what = what.split("; ").next().unwrap_or_default();
        tell(TrainEvent::Notice(format!(
            "{what}. Back to step {back}, skipping the data of {}",
            plural(step - back, "step")
        )));
        Ok(())
    }

    /// What the last update did, by layer: norms of gradients and weights, and the size of the update relative to the weights.
    fn layers(&self) -> Vec<LayerUpdate> {
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
            let update_ratio = update / weight.max(f64::MIN_POSITIVE);
            LayerUpdate { layer: name.into(), grad_norm: gradient, weight_norm: weight, update_ratio }
        };
        layers.into_iter().map(say).collect()
    }

    /// Evaluates on part of the validation text and keeps the weights if they are the best. Where that part has no token to predict there
    /// is no loss, and the weights are not judged. Returns whether to stop; none if the evaluation itself was stopped.
    fn validate(
        &mut self,
        windows: &Windows,
        tell: &mut dyn FnMut(TrainEvent) -> Control,
    ) -> Result<Option<bool>, TrainError> {
        let score = self.trainer.averaged(|trainer| evaluate(trainer, windows, tell))??;
        let Some(score) = score else { return Ok(None) };
        let step = self.trainer.step;
        let Some(loss) = score.loss() else {
            let what =
                format!("step {step}: no validation loss, because no token of the validation text is to be predicted");
            return Ok(Some(tell(TrainEvent::Notice(what)) == Control::Stop));
        };
        let best = self.state.best.is_none_or(|(_, least)| loss < least);
        self.state.stale = if best { 0 } else { self.state.stale + 1 };
        if best {
            self.state.best = Some((step, loss));
            if let Some(folder) = self.folder.clone() {
                self.trainer.team.files(true)?;
                let held = self.hold_folder(&folder, tell);
                let kept = on_disk(held.and_then(|()| self.keep()))?;
                if kept.is_err() {
                    self.owed = Some((step, self.trainer.averaged(|trainer| trainer.kept())??));
                }
                self.trainer.team.files(false)?;
                self.told(&limpid_checkpoint::weights_path(&folder, &self.trainer.model), kept, tell);
            } else if self.keeps {
                self.trainer.serve_files()?;
            }
        }
        self.note(serde_json::json!({ "step": step, "val_loss": loss, "val_tokens": score.tokens }), tell);
        Ok(Some(tell(TrainEvent::Validated { step, loss, tokens: score.tokens, best }) == Control::Stop))
    }

    /// Writes the weights as they are.
    fn keep(&mut self) -> Result<(), TrainError> {
        let (Some(folder), step) = (&self.folder, self.trainer.step) else { return Ok(()) };
        let sum = self.trainer.averaged(|t| limpid_checkpoint::save_weights(folder, &t.model, &*t.backend, step))??;
        (self.state.weights, self.owed) = (Some(sum), None);
        Ok(())
    }

    /// Writes the best weights, if they could not be written before.
    fn keep_owed(&mut self) -> Result<(), TrainError> {
        let (Some(folder), Some((step, best))) = (&self.folder, &self.owed) else { return Ok(()) };
        let save = |t: &mut Trainer| limpid_checkpoint::save_weights(folder, &t.model, &*t.backend, *step);
        self.state.weights = Some(with(&mut self.trainer, best, save)??);
        self.owed = None;
        Ok(())
    }

    /// Saves, and reports what cannot be written. Returns whether to stop.
    fn try_save(&mut self, due: bool, tell: &mut dyn FnMut(TrainEvent) -> Control) -> Result<bool, TrainError> {
        self.trainer.settle()?;
        let Some(folder) = self.folder.clone() else {
            if self.keeps {
                self.trainer.serve_files()?;
            }
            return Ok(tell(TrainEvent::Saved(self.trainer.step)) == Control::Stop);
        };
        self.write_records(tell);
        self.trainer.team.files(true)?;
        let held = self.hold_folder(&folder, tell);
        let there = held.is_ok();
        let saved = on_disk(held.and_then(|()| self.save(&folder, due)))?;
        self.trainer.team.files(false)?;
        if saved.is_ok() {
            // the state is written after these
            let weights = limpid_checkpoint::weights_path(&folder, &self.trainer.model);
            for path in [weights, folder.join(METRICS)] {
                self.told(&path, Ok::<(), TrainError>(()), tell);
            }
        }
        if there {
            self.derive(tell);
        }
        Ok(self.told(&state_path(&folder), saved, tell) && tell(TrainEvent::Saved(self.trainer.step)) == Control::Stop)
    }

    /// Rebuilds metrics.csv and the TensorBoard events, if they could not be written.
    fn derive(&mut self, tell: &mut dyn FnMut(TrainEvent) -> Control) {
        let (Some(log), Some(folder)) = (&mut self.log, &self.folder) else { return };
        let (folder, derived) = (folder.clone(), log.derive());
        self.tell_back(vec![], &folder, tell);
        self.told(&folder.join("metrics.csv"), derived, tell);
    }

    /// Writes the state, after the files whose checksums it holds.
    fn save(&mut self, folder: &Path, due: bool) -> Result<(), TrainError> {
        (self.state.step, self.state.skipped, self.state.due) = (self.trainer.step, self.trainer.skipped, due);
        self.keep_owed()?;
        if self.validation.is_empty() || self.state.best.is_none() {
            self.keep()?;
        }
        self.state.log = self.log.as_mut().map(Log::mark).transpose()?;
        let (path, back, options) = (state_path(folder), back_path(folder), self.options);
        if !due && self.due && options.divergence == Divergence::Rollback {
            at(&back, files::link(&path, &back))?;
        }
        self.trainer.save(&path, serde_json::to_string(&self.state).expect("a state is JSON"))?;
        self.due = due;
        if due {
            at(&back, files::remove(&back))?;
        }
        if due && options.keep > 0 {
            // a second name for the same file: the next save replaces the first name
            let kept = kept_path(folder, self.state.step);
            at(&kept, files::link(&path, &kept))?;
            let mut steps = kept_steps(folder);
            steps.retain(|step| *step <= self.state.step);
            for step in steps.iter().rev().skip(options.keep + 1) {
                at(&kept, files::remove(&kept_path(folder, *step)))?;
            }
        }
        Ok(())
    }

    /// Sees that the folder is still the one that this run began in.
    ///
    /// # Errors
    /// [`TrainError::FolderGone`], if it was moved away or removed as a whole, or another one has taken its place.
    pub fn is_there(&self) -> Result<(), TrainError> {
        let (Some(path), Some(log)) = (&self.folder, &self.log) else { return Ok(()) };
        let locked = self.lock.as_ref().is_some_and(|lock| lock.is_at(&lock_path(path)));
        // a copy of it is as good, and looks so where the system does not tell files apart
        match path.is_dir() && (locked || log.is_there() || log.is_copied()) {
            true => Ok(()),
            false => Err(TrainError::FolderGone { path: path.clone() }),
        }
    }

    /// Sees that the folder is still this run's, before anything is written there, and puts back what was removed from it.
    ///
    /// # Errors
    /// [`TrainError::FolderGone`], if it was moved away or removed as a whole.
    fn hold_folder(&mut self, folder: &Path, tell: &mut dyn FnMut(TrainEvent) -> Control) -> Result<(), TrainError> {
        self.is_there()?;
        self.claim(folder)?;
        let logged = self.log.as_ref().is_none_or(Log::is_there);
        let mut back: Vec<PathBuf> = self.state.files.keys().map(|name| folder.join(name)).collect();
        back.retain(|path| !path.exists());
        if !back.is_empty() {
            self.write_texts(folder)?;
        }
        if let Some(log) = self.log.as_mut().filter(|_| !logged) {
            log.put_back()?;
        }
        self.tell_back(back, folder, tell);
        Ok(())
    }

    /// Tells what was removed and is there again: files, and the log if it was put back.
    fn tell_back(&mut self, mut back: Vec<PathBuf>, folder: &Path, tell: &mut dyn FnMut(TrainEvent) -> Control) {
        back.extend(self.log.as_mut().is_some_and(Log::was_put_back).then(|| folder.join(METRICS)));
        for path in back {
            let path = path.display();
            tell(TrainEvent::Notice(format!(
                "{path} was removed during the run: it is there again, with all that it held"
            )));
        }
    }

    /// Reports once what could not be written, and again when it could. Returns whether it was written.
    fn told<E: std::error::Error>(
        &mut self,
        path: &Path,
        written: Result<(), E>,
        tell: &mut dyn FnMut(TrainEvent) -> Control,
    ) -> bool {
        match &written {
            Ok(()) => {
                if self.missing.remove(path).is_some() {
                    tell(TrainEvent::Notice(format!("{} could be written after all", path.display())));
                }
            }
            Err(error) => {
                let (error, step) = (whole(error), self.trainer.step);
                let known = self.missing.values().any(|known| *known == error);
                if self.missing.insert(path.into(), error.clone()).is_none() && !known {
                    let next = "It is tried again at the next save, and at the end";
                    tell(TrainEvent::Notice(format!("step {step}: {error}. {next}")));
                }
            }
        }
        written.is_ok()
    }

    /// Writes a line into the folder's log. If that fails, the line waits and training goes on.
    fn note(&mut self, line: serde_json::Value, tell: &mut dyn FnMut(TrainEvent) -> Control) {
        let (Some(log), Some(folder)) = (&mut self.log, self.folder.clone()) else { return };
        let (added, fault) = (log.add(line), log.take_fault());
        self.told(&folder.join(METRICS), added, tell);
        if let Some(fault) = fault {
            self.told(&folder.join("metrics.csv"), Err(fault), tell);
        }
    }

    /// Evaluates the kept weights on all of the validation text, and sums up.
    fn finish(
        &mut self,
        windows: Option<Windows>,
        seconds: f64,
        end: Option<End>,
        tell: &mut dyn FnMut(TrainEvent) -> Control,
    ) -> Result<Summary, TrainError> {
        self.trainer.settle()?;
        let mut stopped = end == Some(End::Stopped);
        let best_step = self.state.best.map_or(self.trainer.step, |(step, _)| step);
        let (mut val_loss, mut val_bits_per_byte) = (None, None);
        if let (Some(windows), false) = (windows, stopped) {
            let score = match best_step == self.trainer.step {
                true => self.trainer.averaged(|trainer| evaluate(trainer, &windows, tell))??,
                false => self.with_best(|trainer| evaluate(trainer, &windows, tell))??,
            };
            stopped = score.is_none();
            val_loss = score.and_then(|score| score.loss());
            let bytes = match self.objective {
                Objective::NextToken => text_bytes(self.validation, self.tokenizer).ok().flatten(),
                Objective::Masked { .. } => None,
            };
            val_bits_per_byte = score.zip(bytes).and_then(|(score, bytes)| score.bits_per_byte(bytes));
        }
        // what was removed since the last save is missed here
        let gone = self.folder.clone().is_some_and(|folder| {
            let held = self.hold_folder(&folder, tell).is_ok();
            !held || !Run::can_resume(&folder)
        });
        if self.trainer.team.agree(gone || !self.missing.is_empty())? {
            self.try_save(self.state.due, tell)?;
        } else {
            self.derive(tell);
        }
        let recent = &self.state.recent;
        let summary = Summary {
            steps: self.trainer.step,
            train_loss: mean(recent),
            losses: Some(recent.len()),
            val_loss,
            val_bits_per_byte,
            best_step,
            tokens: self.state.tokens,
            seconds,
            tok_s: self.state.tokens as f64 / seconds.max(1e-9),
            peak_rss_bytes: None,
            device_bytes: (self.moved.0 > 0).then(|| self.moved.1.map(|bytes| bytes / self.moved.0)),
            entropy_floor: None,
            stopped,
            ended_early: end == Some(End::Early),
            missing: self.missing.values().collect::<BTreeSet<_>>().into_iter().cloned().collect(),
        };
        Ok(summary)
    }

    /// Runs `f` with the best weights instead of the last ones: those that are kept, in all of several processes.
    ///
    /// # Errors
    /// If what was kept is not there any more, the backend fails, or other processes are not reached.
    pub fn with_best<T>(&mut self, f: impl FnOnce(&mut Trainer) -> T) -> Result<T, TrainError> {
        let f = |trainer: &mut Trainer| trainer.share_kept().map(|()| f(trainer));
        if let Some((_, best)) = &self.owed {
            return with(&mut self.trainer, best, f)?;
        }
        let Some(folder) = &self.folder else {
            return match self.keeps {
                true => with(&mut self.trainer, &vec![], f)?, // process 0 has them
                false => f(&mut self.trainer),
            };
        };
        if Some(limpid_checkpoint::check_weights(folder, &self.trainer.model)?.0) != self.state.weights {
            let path = limpid_checkpoint::weights_path(folder, &self.trainer.model);
            let what = "it holds other weights than this run kept: it was replaced".into();
            return Err(CheckpointError::Format { path, what }.into());
        }
        let load = |t: &mut Trainer| limpid_checkpoint::load_weights(folder, &t.model, &mut *t.backend);
        self.trainer.with_others(load, f)?
    }
}

impl Given {
    /// What differs, in words.
    fn differing(&self, is: &Given) -> Vec<String> {
        let same = [
            (self.training_text == is.training_text, "the training text is a different one"),
            (self.validation_text == is.validation_text, "the validation text is a different one"),
            (self.tokenizer == is.tokenizer, "the tokenizer is a different one"),
            (self.base == is.base, "the model that is adapted has changed"),
        ];
        let texts = same.iter().filter(|(same, _)| !same).map(|(_, what)| what.to_string());
        let [was, now] = [self, is].map(|g| [("precision", g.precision.clone()), ("objective", g.objective.clone())]);
        let named = was.into_iter().zip(now).filter(|(was, is)| was != is);
        texts.chain(named.map(|((key, was), (_, is))| format!("{key} was {was} and is {is}"))).collect()
    }
}

/// Runs `f` with other weights.
fn with<T>(trainer: &mut Trainer, other: &Weights, f: impl FnOnce(&mut Trainer) -> T) -> Result<T, TrainError> {
    trainer.with_others(|t| other.iter().try_for_each(|(region, values)| t.backend.write(*region, values)), f)
}

/// An error of the disk is reported and tried again; one of the backend or of other processes ends the run.
fn on_disk(done: Result<(), TrainError>) -> Result<Result<(), TrainError>, TrainError> {
    match done {
        Err(error @ (TrainError::Backend(_) | TrainError::Ranks(_))) => Err(error),
        done => Ok(done),
    }
}

/// The metadata of a state file, and its tensors.
fn read_state(path: &Path) -> Result<(State, Store), TrainError> {
    let bad = |what: String| TrainError::Checkpoint(CheckpointError::Format { path: path.into(), what });
    let first = safetensors_file::open(path)?;
    let text = first.fact("limpid").ok_or_else(|| bad("it is not a training state".into()))?;
    let value: serde_json::Value = serde_json::from_str(text).unwrap_or_default();
    let many = value["recipe"]["accumulate"].as_u64().is_some_and(|micros| micros > 1);
    let masked = value["given"]["objective"].as_str().is_some_and(|objective| objective.starts_with("Masked"));
    match value["format"].as_u64() {
        Some(format) if format > u64::from(FORMAT) => {
            return Err(bad(format!(
                "it is of format {format} and this limpid knows {FORMAT}: resume the run with the later limpid that wrote it"
            )));
        }
        Some(1) => {
            return Err(bad(
                "it is of format 1, which has no checksum: resume it with the older limpid that wrote it, or start a \
                            new run from its best weights"
                    .into(),
            ));
        }
        Some(2) if many => {
            return Err(bad(
                "it is of format 2, in which the gradients of micro-batches (accumulate) added up in another order: resume it with the \
                            older limpid that wrote it, or start a new run from its best weights"
                    .into(),
            ));
        }
        Some(2 | 3) if masked => {
            return Err(bad(
                "it is of format 3 or older, in which a window could have no masked token: resume it with the older limpid that wrote it, \
                 or start a new run from its best weights"
                    .into(),
            ));
        }
        _ => {}
    }
    let (store, _) = safetensors_file::open_summed(path)?;
    let state: State = serde_json::from_value(value).map_err(|e| bad(format!("its state cannot be read: {e}")))?;
    if state.step > state.chosen.recipe.steps {
        return Err(bad(format!("it is of step {} of {}: it was changed", state.step, state.chosen.recipe.steps)));
    }
    Ok((state, store))
}

fn sum(bytes: &[u8]) -> String {
    format!("{:016x}", xxh3_64(bytes))
}

fn lock_path(folder: &Path) -> PathBuf {
    folder.join("state").join("lock")
}

/// Holds a folder.
fn lock(folder: &Path) -> Result<OutputFile, TrainError> {
    let path = lock_path(folder);
    at(&folder.join("state"), files::create_folder(&folder.join("state")))?;
    let lock = at(&path, OutputFile::open(&path))?;
    match lock.try_lock() {
        Err(TryLockError::WouldBlock) => Err(TrainError::Busy { path: folder.into() }),
        // a file system without locks keeps nobody out
        Err(TryLockError::Error(_)) | Ok(()) => Ok(lock),
    }
}

/// The last state's file, or that of the one kept after a step.
fn state_file(folder: &Path, from: Option<u64>) -> PathBuf {
    from.map_or_else(|| state_path(folder), |step| kept_path(folder, step))
}

fn state_path(folder: &Path) -> PathBuf {
    folder.join("state").join("last.safetensors")
}

/// The last regular save, where the last state is another.
fn back_path(folder: &Path) -> PathBuf {
    folder.join("state").join("back.safetensors")
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

/// The score of all windows; none if it was stopped before the end.
fn evaluate(
    trainer: &mut Trainer,
    windows: &Windows,
    tell: &mut dyn FnMut(TrainEvent) -> Control,
) -> Result<Option<Score>, TrainError> {
    let (all, mut stopped) = (windows.tokens(), false);
    let Trainer { model, backend, recipe, team, .. } = trainer;
    let score = evaluate::score_among(model, &mut **backend, windows, recipe.batch_size, team, &mut |score| {
        stopped = tell(TrainEvent::Evaluating(score.tokens, all)) == Control::Stop;
        !stopped
    })?;
    Ok((!stopped).then_some(score))
}

/// The recipe of a state after `step`, with the number of steps of `is` if the steps done so far are the same with it.
fn longer(was: Recipe, is: &Recipe, step: u64) -> Recipe {
    // other steps change the rates of the steps already done, unless those are the same
    let steps = Recipe { steps: is.steps, ..was };
    let flat = matches!(was.schedule, Schedule::Constant | Schedule::Wsd);
    // both rates are constant and then decay: if the last one is the same, so are those before it
    let same_rates = flat && step <= is.steps && step.checked_sub(1).is_none_or(|s| steps.rate(s) == was.rate(s));
    if same_rates { steps } else { was }
}

/// What differs, and what can be done.
fn differing(was: &Recipe, is: &Recipe) -> Vec<String> {
    let keys = |r: &Recipe| serde_json::to_value(r).expect("a recipe is JSON");
    let mut found = differing_keys(&keys(was), &keys(is));
    if was.steps != is.steps {
        let how = "steps may differ with schedule constant, or wsd before it decays; otherwise start a new run";
        found.push(how.into());
    }
    found
}

fn differing_keys(was: &serde_json::Value, is: &serde_json::Value) -> Vec<String> {
    let keys = was.as_object().into_iter().flatten();
    let differing = keys.filter(|(key, value)| !is[*key].is_null() && is[*key] != **value);
    differing.map(|(key, value)| format!("{key} was {value} and is {}", is[key])).collect()
}

//! A run: training from where it stands to its last step, in a folder that is a model directory all along.
//!
//!   config.json, tokenizer.json     what the model is
//!   model.safetensors               (of an adapter: adapter_model.safetensors) the best weights by validation loss so far (the last ones, if there is no validation)
//!   state/last.safetensors          the last weights, moments and step: what resuming needs, in one file
//!   metrics.jsonl, summary.json     what happened
//!
//! Every file is replaced whole. The state is written after what it vouches for, so a run that is killed at any
//! moment resumes from its last state and writes the same bytes again.

use super::{Recipe, Step, TrainError, Trainer};
use crate::checkpoint::{self, CheckpointError, at, safetensors_file};
use crate::data::{Batches, Objective, Tokens, Windows};
use crate::evaluate::{self, Score};
use crate::tokenizer::Tokenizer;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// What a run tells whoever listens.
#[derive(Clone, Copy, Debug, PartialEq)]
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
}

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
    state: State,
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
    ) -> Run<'a> {
        let recipe = trainer.recipe;
        let state = State { format: 1, step: 0, tokens: 0, seconds: 0.0, best: None, recent: vec![], recipe };
        Run { trainer, folder, train, validation, objective, state }
    }

    /// Whether a folder has a state to resume from.
    pub fn can_resume(folder: &Path) -> bool {
        state_path(folder).exists()
    }

    /// Begins a folder: writes what the model is (config.json and tokenizer.json), and forgets the metrics of a run that
    /// was killed there before it saved a state.
    ///
    /// # Errors
    /// Whatever the file system says.
    pub fn describe(&self, tokenizer: &Tokenizer) -> Result<(), TrainError> {
        let Some(folder) = &self.folder else { return Ok(()) };
        at(&folder.join("state"), fs::create_dir_all(folder.join("state")))?;
        checkpoint::write_text(&folder.join("config.json"), &self.trainer.model.config.to_json())?;
        checkpoint::write_text(&folder.join("tokenizer.json"), &tokenizer.to_json())?;
        self.cut_metrics(folder)
    }

    /// Takes up the folder's last state. Returns the steps it had done.
    ///
    /// # Errors
    /// If the state is of another model or recipe (more or fewer steps, evaluations and saves are fine).
    pub fn resume(&mut self) -> Result<u64, TrainError> {
        let Some(folder) = self.folder.clone() else { return Ok(0) };
        let path = state_path(&folder);
        let tensors = safetensors_file::open(&path)?;
        let bad = |what: String| TrainError::Checkpoint(CheckpointError::Format { path: path.clone(), what });
        let text = tensors.fact("limpid").ok_or_else(|| bad("it is not a training state".into()))?;
        let state: State = serde_json::from_str(text).map_err(|e| bad(format!("its state cannot be read: {e}")))?;
        let (was, is) = (state.recipe, self.trainer.recipe);
        let same = Recipe { eval_every: is.eval_every, eval_tokens: is.eval_tokens, save_every: is.save_every, ..was };
        // more steps change the schedule of steps already done, unless it is flat
        if same != is {
            let keys = |r: &Recipe| serde_json::to_value(r).expect("a recipe is JSON");
            let (was, is) = (keys(&same), keys(&is));
            let differing: Vec<String> = was
                .as_object()
                .expect("an object")
                .iter()
                .filter(|(key, value)| is[*key] != **value)
                .map(|(key, value)| format!("{key} was {value} and is {}", is[key]))
                .collect();
            return Err(TrainError::Differs { path: folder, what: differing.join(", ") });
        }
        self.trainer.restore(&tensors, state.step)?;
        self.state = State { recipe: is, ..state };
        self.cut_metrics(&folder)?;
        Ok(self.state.step)
    }

    /// Forgets metrics of steps that will be done again.
    fn cut_metrics(&self, folder: &Path) -> Result<(), TrainError> {
        let path = folder.join("metrics.jsonl");
        let Ok(text) = fs::read_to_string(&path) else { return Ok(()) };
        let kept = |line: &&str| {
            let value: Option<serde_json::Value> = serde_json::from_str(line).ok();
            value.and_then(|v| v["step"].as_u64()).is_some_and(|step| step <= self.state.step)
        };
        let lines: Vec<&str> = text.lines().filter(kept).collect();
        Ok(checkpoint::write_text(&path, &lines.iter().map(|l| format!("{l}\n")).collect::<String>())?)
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
        let (start, before) = (Instant::now(), self.state.seconds);
        let mut stopped = false;
        while self.trainer.step < recipe.steps && !stopped {
            let step = self.trainer.step(&batches)?;
            self.state.tokens += step.tokens as u64;
            self.state.seconds = before + start.elapsed().as_secs_f64();
            if self.state.recent.len() == RECENT {
                self.state.recent.remove(0);
            }
            self.state.recent.push(step.loss);
            self.log(&serde_json::json!({
                "step": step.step, "train_loss": step.loss, "grad_norm": step.norm, "learning_rate": step.rate,
                "tokens": self.state.tokens, "seconds": self.state.seconds,
            }))?;
            stopped = tell(Event::Step(step, start.elapsed().as_secs_f64())) == Control::Stop;
            let last = step.step == recipe.steps;
            let due = |every: u64| every > 0 && step.step.is_multiple_of(every) || last;
            if due(recipe.eval_every)
                && !stopped
                && let Some(windows) = &windows
            {
                stopped |= self.validate(&windows.clone().about(recipe.eval_tokens), tell)?;
            }
            if due(recipe.save_every) || stopped {
                self.save(windows.is_none())?;
                tell(Event::Saved(step.step));
            }
        }
        self.finish(windows, start.elapsed().as_secs_f64() + before, tell)
    }

    /// Evaluates on part of the validation text and keeps the weights if they are the best. Returns whether to stop.
    fn validate(&mut self, windows: &Windows, tell: &mut dyn FnMut(Event) -> Control) -> Result<bool, TrainError> {
        let (score, stopped) = self.evaluate(windows, tell);
        if stopped {
            return Ok(true);
        }
        let step = self.trainer.step;
        let best = self.state.best.is_none_or(|(_, loss)| score.loss() < loss);
        if best {
            self.state.best = Some((step, score.loss()));
            self.keep()?;
        }
        self.log(&serde_json::json!({ "step": step, "val_loss": score.loss(), "val_tokens": score.tokens }))?;
        Ok(tell(Event::Validated { step, loss: score.loss(), best }) == Control::Stop)
    }

    fn evaluate(&mut self, windows: &Windows, tell: &mut dyn FnMut(Event) -> Control) -> (Score, bool) {
        let (all, mut stopped) = (windows.tokens(), false);
        let Trainer { model, backend, recipe, .. } = &mut self.trainer;
        let score = evaluate::score(model, &mut **backend, windows, recipe.batch_size, &mut |score| {
            stopped = tell(Event::Evaluating(score.tokens, all)) == Control::Stop;
            !stopped
        });
        (score, stopped)
    }

    fn keep(&self) -> Result<(), TrainError> {
        if let Some(folder) = &self.folder {
            checkpoint::save_weights(folder, &self.trainer.model, &*self.trainer.backend)?;
        }
        Ok(())
    }

    fn save(&mut self, keep: bool) -> Result<(), TrainError> {
        self.state.step = self.trainer.step;
        if keep || self.state.best.is_none() {
            self.keep()?;
        }
        if let Some(folder) = &self.folder {
            let state = serde_json::to_string(&self.state).expect("a state is JSON");
            checkpoint::save_state(&state_path(folder), &self.trainer.model, &*self.trainer.backend, state)?;
        }
        Ok(())
    }

    fn log(&self, line: &serde_json::Value) -> Result<(), TrainError> {
        let Some(folder) = &self.folder else { return Ok(()) };
        let path = folder.join("metrics.jsonl");
        let append =
            || fs::OpenOptions::new().create(true).append(true).open(&path)?.write_all(format!("{line}\n").as_bytes());
        Ok(at(&path, append())?)
    }

    /// The last evaluation is of the weights that are kept, on all of the validation text.
    fn finish(
        &mut self,
        windows: Option<Windows>,
        seconds: f64,
        tell: &mut dyn FnMut(Event) -> Control,
    ) -> Result<Summary, TrainError> {
        let stopped = self.trainer.step < self.trainer.recipe.steps;
        let best_step = self.state.best.map_or(self.trainer.step, |(step, _)| step);
        let mut val_loss = None;
        if let (Some(windows), false) = (windows, stopped) {
            let last = (best_step != self.trainer.step).then(|| self.swap_in_best()).transpose()?.flatten();
            val_loss = Some(self.evaluate(&windows, tell).0.loss());
            if let Some(last) = last {
                self.trainer.model.kept().zip(last).for_each(|(p, v)| self.trainer.backend.write(p.slot, &v));
            }
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

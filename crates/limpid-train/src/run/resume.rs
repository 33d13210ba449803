//! Going on from a saved state: when a run is resumed, when other processes join it, and when it rolls back after a
//! loss spike.

use super::state::{
    Given, Resumable, State, back_path, lock, read_facts, read_state, state_file, state_path, unreadable,
};
use super::{ROLLBACKS, Run, Tell, TrainEvent};
use crate::error::{Result, TrainError};
use crate::log::writer::Log;
use crate::ranks::RanksError;
use crate::recipe::{Recipe, RunOptions, RunSettings};
use limpid_base::files;
use limpid_base::plural::plural;
use limpid_checkpoint::store::Store;
use limpid_checkpoint::{CheckpointError, at};
use serde_json::Value;
use std::fs;
use std::path::Path;

impl Run<'_> {
    /// Whether a folder has a state to resume from.
    pub fn can_resume(folder: &Path) -> bool {
        state_path(folder).exists()
    }

    /// The settings of a folder's last state, or of the one kept after step `from`; those that were changed when the
    /// run was resumed, as changed. None if there is no such state.
    ///
    /// # Errors
    /// Names the state, if it is damaged or has another format.
    pub fn settings(folder: &Path, from: Option<u64>) -> Result<Option<(Recipe, RunOptions)>> {
        let path = state_file(folder, from);
        if !path.exists() {
            return Ok(None);
        }
        let mut state = read_facts(&path)?;
        let RunSettings { recipe, options } =
            serde_json::from_value(state["recipe"].take()).map_err(|error| unreadable(&path, &error))?;
        Ok(Some((recipe, options)))
    }

    /// Locks a folder and opens its last state, or the one kept after step `from`. Checks that the files that a resumed
    /// run reads are as the run wrote them, before any of them is used.
    ///
    /// # Errors
    /// If another process trains there. Names the state, or the first file that has changed.
    pub fn check(folder: &Path, from: Option<u64>) -> Result<Resumable> {
        let path = state_file(folder, from);
        at(&path, fs::metadata(&path))?; // a folder without a state is not touched
        let lock = lock(folder)?;
        let (state, store) = read_state(&path)?;
        state.check_files(folder)?;
        Ok(Resumable { path, state, store, lock })
    }

    /// Resumes from the folder's last state, or from the one kept after step `from`. Returns the number of steps done.
    ///
    /// # Errors
    /// If another process trains there; if the state is of another model, recipe, text, tokenizer or precision (the
    /// error says what may differ); if a file whose checksum it holds has changed; or if it is damaged or has another
    /// format.
    pub fn resume(&mut self, from: Option<u64>) -> Result<u64> {
        match &self.folder {
            Some(folder) => self.resume_from(Run::check(folder, from)?),
            None => Ok(0),
        }
    }

    /// Resumes from a state of this run's folder. Returns the number of steps done. An earlier state becomes the last
    /// one in one step, before anything else in the folder changes; the log and the kept weights can then be seen to be
    /// later than the state.
    ///
    /// # Errors
    /// If the state is of another model, recipe, text, tokenizer or precision, or the weights kept beside it have
    /// changed.
    pub fn resume_from(&mut self, Resumable { path, state, store, lock }: Resumable) -> Result<u64> {
        self.check_team()?;
        let Some(folder) = self.folder.clone() else { return Ok(0) };
        let config = self.trainer.model.config.to_json();
        let differing = state.differences(&folder, &self.trainer.recipe, &config, &self.state.given);
        if !differing.is_empty() {
            return Err(TrainError::Differs { path: folder, what: differing.join(", ") });
        }
        let kept = self.check_kept(&folder, &state)?;
        let log = Log::open(&folder, state.log.as_ref())?;
        let last = state_path(&folder);
        if path != last {
            at(&last, files::link(&path, &last))?;
        }
        if state.due {
            let back = back_path(&folder);
            at(&back, files::remove(&back))?; // it is later than what is now the last state
        }
        (self.log, self.due, self.lock) = (Some(log), state.due, Some(lock));
        self.rewind_observed(state.step, state.frames)?;
        self.share(Some((state, store)), kept)?;
        Ok(self.state.step)
    }

    /// The checksum of the weights that a folder keeps, if the state has evaluated any.
    ///
    /// # Errors
    /// If they are not what the run kept: another checksum is accepted only for weights that were kept after the state.
    fn check_kept(&self, folder: &Path, state: &State) -> Result<Option<String>> {
        if state.best.is_none() {
            return Ok(None);
        }
        let (found, step) = limpid_checkpoint::check_weights(folder, &self.trainer.model)?;
        if let Some(expected) = &state.weights
            && found != *expected
            && step <= state.step
        {
            let path = limpid_checkpoint::weights_path(folder, &self.trainer.model);
            let what = format!("it holds other weights (of step {step}) than this run kept: it was replaced");
            return Err(CheckpointError::Format { path, what }.into());
        }
        Ok(Some(found))
    }

    /// Takes, in another process, the state from which process 0 has resumed. Returns the number of steps done.
    ///
    /// # Errors
    /// If the processes do not reach each other, or train something else.
    pub fn resume_with(&mut self) -> Result<u64> {
        self.check_team()?; // before anything is sent whose size may differ
        self.share(None, None)?;
        Ok(self.state.step)
    }

    /// Takes a state. Of several processes, process 0 has it and gives it to the others. If the folder's weights
    /// (`kept` is their checksum) were kept after that state, the next evaluation counts as the best: it is the one
    /// that kept them, or a better one.
    fn share(&mut self, found: Option<(State, Store)>, kept: Option<String>) -> Result<()> {
        let (mut state, store) = found.unzip();
        if let Some(state) = state.as_mut().filter(|state| state.weights != kept) {
            (state.best, state.weights) = (None, None);
        }
        if self.trainer.team.size() > 1 {
            let text = state.map(|state| serde_json::to_string(&state).expect("a state is JSON"));
            state = serde_json::from_str(&self.trainer.team.tell(text.as_deref())?).ok();
        }
        let Some(state) = state else { return Err(RanksError::Lost("process 0 has no state".into()).into()) };
        // weights, moments and counts, but not the settings: those of this run may differ
        self.trainer.restore(store.as_ref(), state.step)?;
        self.trainer.skipped = state.skipped;
        self.state = State { chosen: self.state.chosen, ..state };
        Ok(())
    }

    /// Checks that all processes that train together train the same.
    pub(super) fn check_team(&mut self) -> Result<()> {
        if self.trainer.team.size() == 1 {
            return Ok(());
        }
        self.rank0_writes = self.trainer.team.agree(self.folder.is_some())?;
        let Given { training_text, validation_text, tokenizer, objective, precision, base } = &self.state.given;
        let fixed = [
            ("version of limpid", env!("CARGO_PKG_VERSION").to_string()),
            ("training text", format!("{training_text:016x}")),
            ("validation text", format!("{validation_text:016x}")),
            ("tokenizer", format!("{tokenizer:016x}")),
            ("objective", objective.clone()),
            ("precision", precision.clone()),
            ("model to adapt", format!("{base:016x}")),
            ("number of steps done", self.trainer.steps_done.to_string()),
        ];
        let mut facts: Vec<(String, String)> =
            fixed.into_iter().map(|(name, value)| (name.to_string(), value)).collect();
        let config = serde_json::from_str::<Value>(&self.trainer.model.config.to_json()).unwrap_or_default();
        let recipe = serde_json::to_value(self.trainer.recipe).expect("a recipe is JSON");
        let options = serde_json::to_value(self.options).expect("options are JSON");
        for settings in [config, recipe, options] {
            let settings = settings.as_object().into_iter().flatten();
            facts.extend(settings.map(|(name, value)| (name.clone(), value.to_string())));
        }
        Ok(self.trainer.team.check(&facts)?)
    }

    /// Rolls back to the last regular save, and skips the data from there to the step that failed.
    pub(super) fn go_back(&mut self, error: &TrainError, tell: Tell) -> Result<()> {
        let step = self.trainer.steps_done + 1;
        let times = self.state.rollbacks + 1;
        let skipped = self.trainer.skipped;
        let folder = self.folder.clone().filter(|folder| Run::can_resume(folder));
        if !self.trainer.team.agree(folder.is_some() && times <= ROLLBACKS)? {
            return Err(TrainError::TooManyRollbacks { times, step });
        }
        let found = folder.map(|folder| last_regular_state(&folder)).transpose()?;
        let mut kept = None;
        if let Some((state, _)) = &found {
            if let (Some(log), Some(mark)) = (&mut self.log, &state.log) {
                log.rewind(mark)?;
            }
            self.rewind_observed(state.step, state.frames)?;
            self.tell_untold(tell);
            self.derive(tell);
            kept = if self.owed.take().is_some() { state.weights.clone() } else { self.state.weights.take() };
        }
        self.share(found, kept)?;
        let back = self.trainer.steps_done;
        self.trainer.skipped = skipped + (step - back);
        (self.state.skipped, self.state.rollbacks) = (self.trainer.skipped, times);
        let error = error.to_string();
        let what = error.split("; ").next().unwrap_or_default();
        let skipped = plural(step - back, "step");
        tell(TrainEvent::Notice(format!("{what}. Back to step {back}, skipping the data of {skipped}")));
        Ok(())
    }
}

/// The state of a folder's last regular save.
fn last_regular_state(folder: &Path) -> Result<(State, Store)> {
    let (state, store) = read_state(&state_path(folder))?;
    let back = back_path(folder);
    if !state.due && back.exists() { read_state(&back) } else { Ok((state, store)) }
}

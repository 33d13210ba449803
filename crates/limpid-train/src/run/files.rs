//! What a run writes into its folder, and what it does if a file cannot be written: training continues, the error is
//! reported once, and the next save tries again.

use super::state::{back_path, checksum, kept_path, kept_steps, lock, lock_path, state_path};
use super::{Control, ROLLBACKS, Run, Tell, TrainEvent};
use crate::batches::Batches;
use crate::divergence;
use crate::error::{Result, TrainError};
use crate::folder::{self, FolderContents};
use crate::log::METRICS;
use crate::log::writer::Log;
use crate::recipe::Divergence;
use crate::trainer::{Trainer, Weights};
use limpid_base::files;
use limpid_checkpoint::{CheckpointError, at};
use limpid_core::backend;
use std::path::{Path, PathBuf};

impl Run<'_> {
    /// Begins the folder. If that fails, leaves nothing behind.
    pub(super) fn begin(&mut self) -> Result<()> {
        let Some(folder) = self.folder.clone() else { return Ok(()) };
        let missing = folder.ancestors().take_while(|path| !path.as_os_str().is_empty() && !path.exists());
        let first_missing = missing.last().map(Path::to_path_buf);
        let found = folder::look(&folder);
        match &found {
            FolderContents::Nothing | FolderContents::Begun => {}
            FolderContents::Run | FolderContents::Other(_) if self.force && found.is_replaced() => {}
            _ => return Err(TrainError::FolderNotEmpty { path: folder, found }),
        }
        let begun = self.claim(&folder).and_then(|()| self.begin_files(&folder));
        if let Err(error) = &begun
            && found == FolderContents::Nothing
            && !matches!(error, TrainError::Busy { .. })
        {
            (self.log, self.lock) = (None, None);
            folder::leave(&folder, first_missing.as_deref());
        }
        begun
    }

    /// Writes the first files, removes those of an earlier run, and opens the log.
    fn begin_files(&mut self, folder: &Path) -> Result<()> {
        // old files go only when there is something to take their place
        self.write_texts(folder)?;
        let own = self.state.files.keys().map(String::as_str);
        let stay: Vec<&str> = own.chain([METRICS]).chain(self.carried.written()).collect();
        folder::clear(folder, &stay, self.force)?;
        self.log = Some(Log::open(folder, None)?);
        self.rewind_observed(0, None)
    }

    /// Writes the files that the folder begins with.
    fn write_texts(&mut self, folder: &Path) -> Result<()> {
        self.carried.put_whole(folder)?;
        let own = [
            ("config.json".to_string(), self.trainer.model.config.to_json()),
            ("tokenizer.json".to_string(), self.data.tokenizer.to_json()),
        ];
        for (name, text) in self.files.iter().chain(&own) {
            limpid_checkpoint::write_text(&folder.join(name), text)?;
            self.state.files.insert(name.clone(), checksum(text.as_bytes()));
        }
        Ok(())
    }

    /// Locks the folder until this run, or the log that it leaves, is dropped or its process ends in any way.
    fn claim(&mut self, folder: &Path) -> Result<()> {
        if !self.lock.as_ref().is_some_and(|lock| lock.is_at(&lock_path(folder))) {
            self.lock = None; // this process's own old lock must not keep it out
            self.lock = Some(lock(folder)?);
        }
        Ok(())
    }

    /// Checks that the folder is still the one in which this run began.
    ///
    /// # Errors
    /// [`TrainError::FolderGone`] if it was moved away or removed as a whole, or another one has taken its place.
    pub fn is_there(&self) -> Result<()> {
        let (Some(path), Some(log)) = (&self.folder, &self.log) else { return Ok(()) };
        let locked = self.lock.as_ref().is_some_and(|lock| lock.is_at(&lock_path(path)));
        // a copy of the log is as good; on some systems the log itself cannot be told from a copy
        if path.is_dir() && (locked || log.is_there() || log.is_copied()) {
            Ok(())
        } else {
            Err(TrainError::FolderGone { path: path.clone() })
        }
    }

    /// Checks that the folder is still this run's before anything is written there, and puts back files that were
    /// removed from it.
    ///
    /// # Errors
    /// [`TrainError::FolderGone`] if it was moved away or removed as a whole.
    pub(super) fn hold_folder(&mut self, folder: &Path, tell: Tell) -> Result<()> {
        self.is_there()?;
        self.claim(folder)?;
        let logged = self.log.as_ref().is_none_or(Log::is_there);
        let mut missing: Vec<PathBuf> = self.state.files.keys().map(|name| folder.join(name)).collect();
        missing.retain(|path| !path.exists());
        if !missing.is_empty() {
            self.write_texts(folder)?;
        }
        if let Some(log) = self.log.as_mut().filter(|_| !logged) {
            log.put_back()?;
        }
        self.tell_put_back(missing, folder, tell);
        Ok(())
    }

    /// Reports the files that were removed and have been put back, the log among them.
    fn tell_put_back(&mut self, mut files: Vec<PathBuf>, folder: &Path, tell: Tell) {
        if self.log.as_mut().is_some_and(Log::was_put_back) {
            files.push(folder.join(METRICS));
        }
        for path in files {
            let what = format!("{} was removed during the run; it is written again, complete", path.display());
            tell(TrainEvent::Notice(what));
        }
    }

    /// Reports once that a file could not be written, and once more when it could be. Returns whether it was written.
    pub(super) fn report_written<E: std::error::Error>(
        &mut self,
        path: &Path,
        written: Result<(), E>,
        tell: Tell,
    ) -> bool {
        let Err(error) = &written else {
            if self.missing.remove(path).is_some() {
                tell(TrainEvent::Notice(format!("{} could be written after all", path.display())));
            }
            return true;
        };
        let error = with_causes(error);
        let known = self.missing.values().any(|known| *known == error);
        if self.missing.insert(path.into(), error.clone()).is_none() && !known {
            let step = self.trainer.steps_done;
            let what = format!("step {step}: {error}. It is tried again at the next save, and at the end");
            tell(TrainEvent::Notice(what));
        }
        false
    }

    /// Adds a line to the folder's log. If that fails, the line waits and training continues.
    pub(super) fn note(&mut self, line: serde_json::Value, tell: Tell) {
        let (Some(log), Some(folder)) = (&mut self.log, self.folder.clone()) else { return };
        let added = log.add(line);
        let fault = log.take_fault();
        self.report_written(&folder.join(METRICS), added, tell);
        if let Some(fault) = fault {
            self.report_written(&folder.join("metrics.csv"), Err(fault), tell);
        }
    }

    /// Rebuilds metrics.csv and the TensorBoard events, if they could not be written.
    pub(super) fn derive(&mut self, tell: Tell) {
        let (Some(log), Some(folder)) = (&mut self.log, self.folder.clone()) else { return };
        let derived = log.derive();
        self.tell_put_back(vec![], &folder, tell);
        self.report_written(&folder.join("metrics.csv"), derived, tell);
    }

    /// Writes a report of the next step's batch, as text. Returns the file's name. Of several processes, process 0
    /// writes it and the others wait, because the next thing that they may do is to end.
    pub(super) fn record_batch(&mut self, batches: &Batches, error: &TrainError, tell: Tell) -> Result<String> {
        let steepest = divergence::steepest(&self.trainer)?;
        let name = match self.folder.clone() {
            Some(folder) => {
                let head = divergence::head(error, &self.trainer, &steepest);
                self.write_record(&folder, batches, &head, tell)?
            }
            None => String::new(),
        };
        self.trainer.team.agree(true)?;
        Ok(name)
    }

    fn write_record(&mut self, folder: &Path, batches: &Batches, head: &str, tell: Tell) -> backend::Result<String> {
        let text = divergence::describe(&mut self.trainer, batches, self.data.tokenizer, head)?;
        let path = folder.join("divergence").join(format!("step-{:08}.txt", self.trainer.steps_done + 1));
        let name = path.display().to_string();
        self.records.push((path, text));
        if self.records.len() > ROLLBACKS as usize {
            self.records.remove(0); // they wait in memory
        }
        self.write_records(tell);
        Ok(name)
    }

    /// Writes the reports of batches that wait.
    fn write_records(&mut self, tell: Tell) {
        let Some(run) = self.folder.clone() else { return };
        for (path, text) in std::mem::take(&mut self.records) {
            let held = self.hold_folder(&run, tell);
            let write = || {
                let folder = path.parent().unwrap_or(&path);
                at(folder, files::create_folder(folder))?;
                limpid_checkpoint::write_text(&path, &text)
            };
            let written = held.and_then(|()| Ok(write()?));
            if !self.report_written(&path, written, tell) {
                self.records.push((path, text));
            }
        }
    }

    /// Keeps the weights as they are, which are the best so far. If they cannot be written, they wait in memory.
    pub(super) fn save_best(&mut self, tell: Tell) -> Result<()> {
        let Some(folder) = self.folder.clone() else {
            if self.rank0_writes {
                self.trainer.serve_files()?;
            }
            return Ok(());
        };
        let step = self.trainer.steps_done;
        self.trainer.team.files(true)?;
        let held = self.hold_folder(&folder, tell);
        let kept = errors_of_disk(held.and_then(|()| self.write_weights()))?;
        if kept.is_err() {
            self.owed = Some((step, self.trainer.averaged(|trainer| trainer.weights_to_save())??));
        }
        self.trainer.team.files(false)?;
        self.report_written(&limpid_checkpoint::weights_path(&folder, &self.trainer.model), kept, tell);
        Ok(())
    }

    /// Writes the weights as they are.
    fn write_weights(&mut self) -> Result<()> {
        let (Some(folder), step) = (&self.folder, self.trainer.steps_done) else { return Ok(()) };
        let sum = self.trainer.averaged(|t| limpid_checkpoint::save_weights(folder, &t.model, &*t.backend, step))??;
        (self.state.weights, self.owed) = (Some(sum), None);
        Ok(())
    }

    /// Writes the best weights, if they could not be written before.
    fn write_owed(&mut self) -> Result<()> {
        let (Some(folder), Some((step, best))) = (&self.folder, &self.owed) else { return Ok(()) };
        let save = |t: &mut Trainer| limpid_checkpoint::save_weights(folder, &t.model, &*t.backend, *step);
        self.state.weights = Some(with_weights(&mut self.trainer, best, save)??);
        self.owed = None;
        Ok(())
    }

    /// Saves the state, and reports what cannot be written. `due` says that it is a regular save. Returns whether to
    /// stop.
    pub(super) fn try_save(&mut self, due: bool, tell: Tell) -> Result<bool> {
        self.trainer.settle()?;
        let Some(folder) = self.folder.clone() else {
            if self.rank0_writes {
                self.trainer.serve_files()?;
            }
            return Ok(tell(TrainEvent::Saved(self.trainer.steps_done)) == Control::Stop);
        };
        self.write_records(tell);
        self.trainer.team.files(true)?;
        let held = self.hold_folder(&folder, tell);
        let is_there = held.is_ok();
        if is_there {
            self.write_observed(true, tell); // the state is written after it
        }
        let saved = errors_of_disk(held.and_then(|()| self.save(&folder, due)))?;
        self.trainer.team.files(false)?;
        if saved.is_ok() {
            // the state is written after these
            let weights = limpid_checkpoint::weights_path(&folder, &self.trainer.model);
            for path in [weights, folder.join(METRICS)] {
                self.report_written(&path, Ok::<(), TrainError>(()), tell);
            }
        }
        if is_there {
            self.derive(tell);
        }
        let written = self.report_written(&state_path(&folder), saved, tell);
        Ok(written && tell(TrainEvent::Saved(self.trainer.steps_done)) == Control::Stop)
    }

    /// Writes the state, after the files whose checksums it holds.
    fn save(&mut self, folder: &Path, due: bool) -> Result<()> {
        (self.state.step, self.state.skipped, self.state.due) = (self.trainer.steps_done, self.trainer.skipped, due);
        self.write_owed()?;
        if self.data.validation.is_empty() || self.state.best.is_none() {
            self.write_weights()?;
        }
        self.state.log = self.log.as_mut().map(Log::mark).transpose()?;
        self.state.frames = self.observer.as_ref().map(|observer| observer.looks()).or(self.state.frames);
        let (path, back) = (state_path(folder), back_path(folder));
        if !due && self.due && self.options.divergence == Divergence::Rollback {
            at(&back, files::link(&path, &back))?;
        }
        self.trainer.save(&path, serde_json::to_string(&self.state).expect("a state is JSON"))?;
        self.due = due;
        if due {
            at(&back, files::remove(&back))?;
            self.keep_state(folder, &path)?;
        }
        Ok(())
    }

    /// Keeps the state that was just written at `path` besides the last one, and removes the oldest if too many are
    /// kept.
    fn keep_state(&self, folder: &Path, path: &Path) -> Result<(), CheckpointError> {
        if self.options.keep == 0 {
            return Ok(());
        }
        // a second name for the same file: the next save replaces the first name
        let kept = kept_path(folder, self.state.step);
        at(&kept, files::link(path, &kept))?;
        let mut steps = kept_steps(folder);
        steps.retain(|step| *step <= self.state.step);
        for step in steps.iter().rev().skip(self.options.keep + 1) {
            at(&kept, files::remove(&kept_path(folder, *step)))?;
        }
        Ok(())
    }

    /// Runs `f` with the best weights in place of the last ones: the weights that are kept, in all processes.
    ///
    /// # Errors
    /// If the kept weights are gone or were replaced, the backend fails, or other processes are not reached.
    pub fn with_best<T>(&mut self, f: impl FnOnce(&mut Trainer) -> T) -> Result<T> {
        let f = |trainer: &mut Trainer| trainer.share_kept().map(|()| f(trainer));
        if let Some((_, best)) = &self.owed {
            return with_weights(&mut self.trainer, best, f)?;
        }
        let Some(folder) = &self.folder else {
            // if process 0 keeps them, it sends them
            return if self.rank0_writes { with_weights(&mut self.trainer, &vec![], f)? } else { f(&mut self.trainer) };
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

/// Runs `f` with other weights.
fn with_weights<T>(trainer: &mut Trainer, weights: &Weights, f: impl FnOnce(&mut Trainer) -> T) -> Result<T> {
    trainer.with_others(|t| weights.iter().try_for_each(|(region, values)| t.backend.write(*region, values)), f)
}

/// Separates errors of the disk, which are reported and tried again, from those of the backend or of other processes,
/// which end the run.
fn errors_of_disk(done: Result<()>) -> Result<Result<()>> {
    match done {
        Err(error @ (TrainError::Backend(_) | TrainError::Ranks(_))) => Err(error),
        done => Ok(done),
    }
}

/// An error with its causes.
fn with_causes(error: &dyn std::error::Error) -> String {
    std::iter::successors(Some(error), |error| error.source()).map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

//! Who looks at a run between its steps. An [`Observer`] sees the weights after an update and changes nothing; what it
//! keeps follows the run when it is resumed or rolls back. The run knows when to ask it and where its file is; what it
//! looks at is its own affair.

use super::{Run, Tell, TrainEvent};
use crate::error::{Result, TrainError};
use crate::trainer::Trainer;
use limpid_base::plural::plural;
use std::error::Error;
use std::path::Path;

/// Looks at a run between its steps and keeps what it saw in a file of the run's folder.
pub trait Observer: Send {
    /// Its file.
    fn path(&self) -> &Path;
    /// Whether it looks after this step. A function of the step alone, so that all processes agree and a resumed run
    /// looks where the first one would have.
    fn is_due(&self, step: u64) -> bool;
    /// Looks at the weights after [`Trainer::step`] steps and `tokens` tokens, unless it has done so. It may run other
    /// models on them ([`limpid_core::backend::Backend::share`]) and must leave them as they are.
    ///
    /// # Errors
    /// If it sees nothing. Training continues.
    fn look(&mut self, trainer: &mut Trainer, tokens: u64) -> Result<(), Box<dyn Error + Send + Sync>>;
    /// Writes what it saw, and if `synced` waits until that is on the disk.
    ///
    /// # Errors
    /// If the file cannot be written; what was not written waits for the next call.
    fn write(&mut self, synced: bool) -> Result<(), Box<dyn Error + Send + Sync>>;
    /// How many looks its file holds.
    fn looks(&self) -> u64;
    /// Drops what it saw after `step`, where the run now stands, and begins its file if there is none.
    ///
    /// # Errors
    /// If the file cannot be written.
    fn rewind(&mut self, step: u64) -> Result<(), Box<dyn Error + Send + Sync>>;
}

impl Run<'_> {
    /// Lets the observer look, if it is due. Of several processes process 0 looks, after all have received the weights.
    pub(super) fn observe(&mut self, tell: Tell) -> Result<()> {
        let step = self.trainer.steps_done;
        if !self.is_observed(step) {
            return Ok(());
        }
        self.trainer.settle()?;
        if let Some(observer) = self.observer.as_mut().filter(|_| self.folder.is_some()) {
            if let Err(why) = observer.look(&mut self.trainer, self.state.tokens) {
                tell(TrainEvent::Notice(format!(
                    "step {step}: {} has no frame of it: {why}",
                    observer.path().display()
                )));
            }
            self.write_observed(false, tell);
        }
        Ok(())
    }

    /// Whether the observer looks after this step.
    pub(super) fn is_observed(&self, step: u64) -> bool {
        self.observer.as_ref().is_some_and(|observer| observer.is_due(step))
    }

    /// Writes what the observer saw, and reports it if that fails.
    pub(super) fn write_observed(&mut self, synced: bool, tell: Tell) {
        if let Some(observer) = self.observer.as_mut().filter(|_| self.folder.is_some()) {
            let (path, written) = (observer.path().to_path_buf(), observer.write(synced).map_err(TrainError::Observer));
            self.report_written(&path, written, tell);
        }
    }

    /// Has the observer drop what it saw after `step`. What is then missing of the `expected` looks that its file had
    /// is told when the run goes on.
    pub(super) fn rewind_observed(&mut self, step: u64, expected: Option<u64>) -> Result<()> {
        let Some(observer) = self.observer.as_mut().filter(|_| self.folder.is_some()) else { return Ok(()) };
        observer.rewind(step).map_err(TrainError::Observer)?;
        let (kept, expected) = (observer.looks(), expected.unwrap_or(0));
        if kept < expected {
            self.untold.push(format!(
                "{}: {} of the {} up to step {step} are lost, because the file was cut short, changed or removed",
                observer.path().display(),
                expected - kept,
                plural(expected, "frame")
            ));
        }
        Ok(())
    }
}

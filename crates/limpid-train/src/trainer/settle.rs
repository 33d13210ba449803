//! Work that an error may interrupt, and that is finished before anything else begins: taking the report of an update,
//! moving the average, and putting weights back where others lay in their place.

use super::{Gradients, Trainer, Weights};
use crate::error::{Result, TrainError};
use crate::ranks::team::TeamOrder;
use limpid_core::backend::{self, BackendError, UpdateReport};
use limpid_core::ops::{MemorySpace, Region};
use limpid_core::optimizer::Change;
use std::ops::Range;

/// Work that is not finished. The last one comes first.
pub(super) enum Unfinished {
    /// Take the report of the update that was begun.
    Report,
    /// Move the average towards the weights, with this decay rate.
    Average(f64),
    /// Write these values to their place, where others lie.
    Write(Region, Vec<f32>),
    /// Swap weights and average in this stretch again.
    SwapBack(Range<usize>),
}

impl Trainer {
    /// Finishes what is unfinished. The backend's memories are then those after [`Trainer::steps_done`] steps, in every
    /// process.
    pub(crate) fn settle(&mut self) -> Result<()> {
        // any other error of the next step is reported when that step is done
        if let Err(error @ TrainError::Backend(BackendError::Lost { .. })) = self.drop_ahead() {
            return Err(error);
        }
        self.settle_own()?;
        if self.unspread {
            self.team.spread(&mut *self.backend)?;
            self.unspread = false;
        }
        Ok(())
    }

    /// Finishes what is unfinished in this process; other processes' parameters may still have to be received.
    pub(crate) fn settle_own(&mut self) -> Result<()> {
        while let Some(work) = self.unfinished.last() {
            match work {
                Unfinished::Report => {
                    self.take_report(&mut [])?;
                }
                Unfinished::Average(decay) => {
                    self.backend.average(self.team.own(), *decay)?;
                    self.unfinished.pop();
                }
                Unfinished::Write(region, values) => {
                    self.backend.write(*region, values)?;
                    self.unfinished.pop();
                }
                Unfinished::SwapBack(piece) => {
                    let writes = self.swapping_writes(piece)?;
                    self.unfinished.pop();
                    self.unfinished.extend(writes);
                }
            }
        }
        Ok(())
    }

    /// Takes the report of the update that was begun, and counts the step if it was done.
    pub(super) fn take_report(&mut self, watch: &mut [Change]) -> backend::Result<UpdateReport> {
        let report = self.backend.report(watch)?;
        self.unfinished.pop(); // this report
        if report.finite && !report.held_back {
            if self.recipe.ema > 0.0 {
                self.unfinished.push(Unfinished::Average(self.recipe.averaging(self.steps_done)));
            }
            self.unspread = true;
            self.steps_done += 1;
        }
        Ok(report)
    }

    /// Gives up the next step's gradient, if it was begun ahead; it is discarded before another one begins.
    ///
    /// # Errors
    /// Why that gradient could not be begun.
    pub(super) fn drop_ahead(&mut self) -> Result<()> {
        if matches!(self.gradients, Gradients::Blank) {
            return Ok(());
        }
        match std::mem::replace(&mut self.gradients, Gradients::Waiting) {
            Gradients::Failed(error) => Err(error),
            _ => Ok(()),
        }
    }

    /// Has `values` written to `region` when the trainer settles.
    pub(crate) fn write_later(&mut self, region: Region, values: Vec<f32>) {
        self.unfinished.push(Unfinished::Write(region, values));
    }

    /// Runs `f` with the weights' average in their place, if there is one: the average is what is evaluated and kept.
    ///
    /// # Errors
    /// If the backend fails; the weights are put back before they are used again.
    pub fn averaged<T>(&mut self, f: impl FnOnce(&mut Trainer) -> T) -> Result<T> {
        self.team.order(TeamOrder::Average)?;
        self.put_average()?;
        let done = f(self);
        self.team.order(TeamOrder::Weights)?;
        self.settle()?;
        Ok(done)
    }

    /// Swaps the weights with their average, if there is one, until the trainer settles.
    pub(super) fn put_average(&mut self) -> Result<()> {
        self.settle()?;
        if self.recipe.ema == 0.0 || self.steps_done == 0 {
            return Ok(());
        }
        // the weights are spread again when they are back, also by a process that has nothing to put back
        self.unspread = true;
        for piece in self.own_pieces() {
            let writes = self.swapping_writes(&piece)?;
            self.unfinished.push(Unfinished::SwapBack(piece));
            self.unfinished.extend(writes);
            while let Some(Unfinished::Write(region, values)) = self.unfinished.last() {
                self.backend.write(*region, values)?;
                self.unfinished.pop();
            }
        }
        self.team.spread(&mut *self.backend)
    }

    /// The stretches of parameters that this process updates. Each is swapped with its average on its own, which bounds
    /// the memory that swapping takes.
    fn own_pieces(&self) -> Vec<Range<usize>> {
        self.trained().flat_map(|param| self.team.own_of(param.region.range())).collect()
    }

    /// The two writes that swap a stretch of weights with its average.
    fn swapping_writes(&self, piece: &Range<usize>) -> backend::Result<[Unfinished; 2]> {
        let weights = Region::flat(MemorySpace::Param, piece.clone());
        let average = weights.in_space(MemorySpace::Average);
        let (old, new) = (self.backend.read(weights)?, self.backend.read(average)?);
        Ok([Unfinished::Write(average, old), Unfinished::Write(weights, new)])
    }

    /// Runs `f` after `put` has written other weights in place of those that a run keeps, and then puts these back.
    ///
    /// # Errors
    /// Those of `put`, and if the backend fails; the weights are put back before they are used again.
    pub(crate) fn with_others<T, E: Into<TrainError>>(
        &mut self,
        put: impl FnOnce(&mut Trainer) -> Result<(), E>,
        f: impl FnOnce(&mut Trainer) -> T,
    ) -> Result<T> {
        self.settle()?;
        let kept = self.weights_to_save()?;
        self.unfinished.extend(kept.into_iter().map(|(region, values)| Unfinished::Write(region, values)));
        let done = put(self).map_err(Into::into).map(|()| f(self));
        self.settle()?;
        done
    }

    /// The weights that a run keeps, and where they lie.
    pub(crate) fn weights_to_save(&self) -> backend::Result<Weights> {
        self.model.saved_params().map(|param| Ok((param.region, self.backend.read(param.region)?))).collect()
    }
}

//! What resuming needs, to and from a file: weights, moments, the average and the number of steps done. Of several
//! processes, process 0 alone has files; the others give it their parts of the moments, and receive theirs from it.

use super::{Gradients, Trainer};
use crate::error::{Result, TrainError};
use crate::ranks::team::TeamOrder;
use limpid_checkpoint::store::Store;
use limpid_core::ops::{MemorySpace, Region};
use std::cell::RefCell;
use std::path::Path;

impl Trainer {
    /// The memories that resuming needs, with the prefix of their tensors' names in a state file.
    fn memories(&self) -> Vec<(&'static str, MemorySpace)> {
        let mut memories =
            vec![("", MemorySpace::Param), ("moment1/", MemorySpace::Moment1), ("moment2/", MemorySpace::Moment2)];
        if self.recipe.ema > 0.0 {
            memories.push(("average/", MemorySpace::Average));
        }
        memories
    }

    /// Writes weights, moments, average and `state` (JSON) to a file: all that resuming needs.
    ///
    /// # Errors
    /// If the file cannot be written, or the backend fails; the old file is then still there.
    pub fn save(&mut self, path: &Path, state: String) -> Result<()> {
        self.settle()?;
        let memories = self.memories();
        let backend = &*self.backend;
        let several = self.team.size() > 1;
        let team = RefCell::new(&mut self.team);
        let read = |region: Region| {
            if several && region.space != MemorySpace::Param {
                team.borrow_mut().collect(backend, region).map_err(TrainError::into_backend)
            } else {
                backend.read(region)
            }
        };
        Ok(limpid_checkpoint::save_state(path, &self.model, &read, &memories, state)?)
    }

    /// Waits while process 0 writes files, and gives it what it asks for.
    ///
    /// # Errors
    /// If the processes do not reach each other, or the backend fails.
    pub(crate) fn serve_files(&mut self) -> Result<()> {
        loop {
            match self.team.next_order()? {
                TeamOrder::Done => return Ok(()),
                TeamOrder::Average => self.put_average()?,
                TeamOrder::Weights => self.settle()?,
                TeamOrder::Collect(region) => self.team.give(&*self.backend, region)?,
            }
        }
    }

    /// Takes weights, moments and average from a state file, as they were after `step` steps. Of several processes,
    /// process 0 has the file.
    ///
    /// # Errors
    /// If a tensor is missing or has another shape, or the backend fails.
    pub fn restore(&mut self, state: Option<&Store>, step: u64) -> Result<()> {
        // gradients that wait are discarded before others begin; one that failed to begin is forgotten
        if let Gradients::Ahead(_) | Gradients::Failed(_) = self.gradients {
            self.gradients = Gradients::Waiting;
        }
        self.unfinished.clear();
        self.unspread = false;
        for (prefix, space) in self.memories() {
            match state.filter(|_| self.team.size() == 1) {
                Some(state) => limpid_checkpoint::load(state, &self.model, &mut *self.backend, prefix, space)?,
                None => self.receive(state, prefix, space)?,
            }
        }
        self.fresh = false;
        self.steps_done = step;
        Ok(())
    }

    /// Takes a memory from process 0's state file: parameters whole, and of moments and average what this process
    /// updates.
    fn receive(&mut self, state: Option<&Store>, prefix: &str, space: MemorySpace) -> Result<()> {
        let saved = state.map(|state| limpid_checkpoint::state_values(state, &self.model, prefix, space));
        for param in limpid_checkpoint::saved_params(&self.model, space) {
            let region = limpid_checkpoint::region_in(param, space);
            let mut values = match &saved {
                Some(saved) => saved(param)?.into_owned(),
                None => vec![0.0; region.len()],
            };
            self.team.broadcast(&mut values)?;
            let whole = space == MemorySpace::Param;
            let ranges = if whole { vec![region.range()] } else { self.team.own_of(region.range()) };
            for range in ranges {
                let from = range.start - region.at;
                self.backend.write(Region::flat(region.space, range.clone()), &values[from..from + range.len()])?;
            }
        }
        Ok(())
    }

    /// Gives all processes the weights that process 0 has.
    pub(crate) fn share_kept(&mut self) -> Result<()> {
        if self.team.size() == 1 {
            return Ok(());
        }
        for param in self.model.saved_params() {
            let mut values = self.backend.read(param.region)?;
            self.team.broadcast(&mut values)?;
            self.backend.write(param.region, &values)?;
        }
        Ok(())
    }
}

//! Where several processes that train one model meet: between the gradients of a step and its update, and nowhere else. A
//! process runs some of the step's micro-batches; sums over micro-batches are a binary tree, so where each process has one
//! whole branch of it and they add up as [`AllReduce::all_reduce`] says, the bits are those of one process with all of them.

use crate::TrainError;
use limpid_core::backend::Backend;
use limpid_core::model::Model;
use limpid_core::ops::adamw::ParamGroup;
use std::ops::Range;

/// What the processes that train one model do together. [`Solo`] is one process.
pub trait AllReduce: Send {
    /// The micro-batches of a step of `micros` that this process runs: at least one. Every micro-batch is one process's. For the
    /// bits of one process, `micros` and the number of processes are powers of two, and process r of n has those from r/n to
    /// (r+1)/n of them.
    fn own(&self, micros: u64) -> Range<u64> {
        0..micros
    }

    /// Adds up what the processes' micro-batches came to; called once a step. `backend` holds the sum of the own gradients and
    /// `loss` that of the own losses; afterwards they hold the sums over all processes, the same bits in each: neighbours
    /// first, the earlier one on the left, ((0 + 1) + (2 + 3)) for four. `groups` are the stretches of parameters that the update
    /// walks over, by which it may share the work out.
    ///
    /// # Errors
    /// [`TrainError::AllReduce`] where the processes do not reach each other, [`TrainError::Backend`] where the own backend fails.
    /// The step is then not done, and its gradient is forgotten.
    fn all_reduce(
        &mut self,
        model: &Model,
        groups: &[ParamGroup],
        backend: &mut dyn Backend,
        loss: &mut f64,
    ) -> Result<(), TrainError>;
}

/// One process, which has every micro-batch and nobody to add to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Solo;

impl AllReduce for Solo {
    fn all_reduce(&mut self, _: &Model, _: &[ParamGroup], _: &mut dyn Backend, _: &mut f64) -> Result<(), TrainError> {
        Ok(())
    }
}

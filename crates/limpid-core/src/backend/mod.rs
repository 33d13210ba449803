//! Who runs ops. A backend owns all memory, addressed by [`Slot`]; it has never heard of a model.
//!
//! The verbs take slices of the list: unwatched, a backend gets all of it; whoever wants to look in between
//! hands on one op at a time, and the bits are the same. Observers are backends that wrap a backend.

pub mod cpu;
pub mod reference;

use crate::model::Model;
use crate::ops::adamw::{Change, Group, Rule};
use crate::ops::linear::Precision;
use crate::ops::{Batch, Op, Pass, Slot};

pub use cpu::{Cpu, CpuError};
pub use reference::Reference;

/// What an update found.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Report {
    /// Norm of the whole gradient, before clipping.
    pub norm: f64,
    /// Whether it was finite; if not, nothing was changed.
    pub finite: bool,
}

/// Whoever runs ops: object-safe, so that observers can wrap it.
pub trait Backend {
    /// Takes the rows of the next run.
    fn feed(&mut self, batch: &Batch);
    /// Runs `ops` first to last.
    fn forward(&mut self, ops: &[Op]);
    /// Runs the backward's entries in their order. Gradients of parameters are added to.
    fn backward(&mut self, back: &[Pass]);
    /// Updates the stretches of parameters and clears all gradients; adds to `watch` what it did to those stretches. Nothing
    /// but the gradients is changed if the gradient's norm is not finite.
    fn update(&mut self, groups: &[Group], rule: &Rule, watch: &mut [Change]) -> Report;
    /// Forgets all gradients of parameters.
    fn clear(&mut self);
    /// Moves the average of the stretches towards the parameters: `average = decay average + (1 - decay) parameters`.
    fn average(&mut self, groups: &[Group], decay: f64);
    /// The values of a tensor (of all its rows).
    fn read(&self, slot: Slot) -> Vec<f32>;
    /// The sum of a tensor's values, in their order: what a loss needs, without a copy.
    fn sum(&self, slot: Slot) -> f64 {
        self.read(slot).iter().map(|v| f64::from(*v)).sum()
    }
    /// What products multiply.
    fn precision(&self) -> Precision {
        Precision::F32
    }
    /// Replaces the values of a tensor.
    fn write(&mut self, slot: Slot, values: &[f32]);
    /// The same from values that lie the other way round, (cols, rows).
    fn write_transposed(&mut self, slot: Slot, values: &[f32]) {
        self.write(slot, &transpose(values, slot.cols, slot.rows));
    }
}

/// (rows, cols) to (cols, rows), in blocks that stay near.
pub fn transpose(from: &[f32], rows: usize, cols: usize) -> Vec<f32> {
    const SIDE: usize = 16;
    let mut to = vec![0.0; from.len()];
    for i in (0..rows).step_by(SIDE) {
        for j in (0..cols).step_by(SIDE) {
            for j in j..(j + SIDE).min(cols) {
                for i in i..(i + SIDE).min(rows) {
                    to[j * rows + i] = from[i * cols + j];
                }
            }
        }
    }
    to
}

/// Writes the model's constant tables; done once, before the first run.
pub fn prepare(model: &Model, backend: &mut dyn Backend) {
    model.constants().for_each(|(slot, values)| backend.write(slot, &values));
}

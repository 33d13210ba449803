//! Interventions: a run whose activations are changed on the way (docs/interventions.md).
//!
//! [`Interventions`] are a list of [`Step`]s, built in Rust or read from JSON (`steps.rs`, `json.rs`), without a model.
//! Resolved against a model they are [`ResolvedSteps`], and for a prompt [`PlacedSteps`] (`resolved.rs`); whoever
//! resolves them runs the prompts that values come from. Some steps look at the rows that they change (`measures.rs`).
//! [`InterveningBackend`] wraps another backend and applies them
//! (`backend.rs`). Ops and kernels are unaware of it, and sequences without steps run unchanged beside the others in
//! one batch.

mod backend;
mod json;
mod measures;
mod resolved;
mod rows;
mod steps;

pub use backend::{InterveningBackend, SequenceSteps};
pub(crate) use measures::Measures;
pub use measures::{StepCondition, unit_vector};
pub use resolved::{
    ColumnAction, PlacedSteps, ResolvedStep, ResolvedSteps, StepPositions, StepSite, WeightAction, position_in,
};
pub(crate) use resolved::{IntervenedRow, NumberAction, NumberPlace, PlacedWeights};
pub use rows::Rows;
pub use steps::{
    Action, Condition, Direction, Interventions, LayerVectors, Numbers, Positions, Source, SourceText, Step,
};

use crate::TraceError;
use std::path::PathBuf;

/// Why interventions cannot be used. Steps are counted from 1.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InterventionError {
    /// What is not a list of steps.
    #[error("interventions are a list of steps in JSON: {what}")]
    Form {
        /// What is wrong with it.
        what: String,
    },
    /// A step that is none, or whose head, unit, layer, position or value does not fit.
    #[error("step {step}: {what}")]
    Step {
        /// Which.
        step: usize,
        /// What was expected, and what was found.
        what: String,
    },
    /// A file of a step that cannot be used.
    #[error("step {step}: {what}")]
    File {
        /// Which.
        step: usize,
        /// The file.
        path: PathBuf,
        /// What was expected, and what was found.
        what: String,
    },
    /// A step that names a file, where none is read.
    #[error("step {step} names the file {path:?}, and files are not read here: give its numbers as {instead}")]
    NoFiles {
        /// Which.
        step: usize,
        /// The file.
        path: PathBuf,
        /// How.
        instead: &'static str,
    },
    /// There is no such tensor.
    #[error("step {step}: {error}")]
    Site {
        /// Which step.
        step: usize,
        /// What is said of its name.
        error: Box<TraceError>,
    },
    /// A tensor that no op of a block writes, so changing it would have no effect.
    #[error("step {step}: `{name}` cannot be changed: {why}; change `{instead}`")]
    NotWritten {
        /// Which step.
        step: usize,
        /// The tensor.
        name: String,
        /// Why not.
        why: &'static str,
        /// A tensor near it that can be.
        instead: String,
    },
    /// A step that would change nothing.
    #[error("step {step} changes nothing (no_effect): {what}")]
    NoEffect {
        /// Which step.
        step: usize,
        /// Why.
        what: String,
    },
    /// A changed run that is NaN or infinite, though the model's weights are finite.
    #[error(
        "step {step} is too large: it changes `{name}` by numbers up to {most:e}, and the changed run is NaN or \
         infinite; take smaller numbers"
    )]
    TooLarge {
        /// The step with the largest numbers.
        step: usize,
        /// The tensor.
        name: String,
        /// The largest.
        most: f32,
    },
    /// Two steps that set the same numbers.
    #[error("steps {first} and {second} both set `{name}` at position {position}: leave one out")]
    Contradiction {
        /// The first step.
        first: usize,
        /// The second step.
        second: usize,
        /// The tensor.
        name: String,
        /// A position that both set.
        position: usize,
    },
}

//! Training. [`Recipe`] holds the settings that decide the numbers, [`Trainer`] does one step, and [`Run`] trains to
//! the last step in a folder from which it can be resumed.
//!
//! A run checks before its first step that training can work (`preflight`), watches the loss for spikes (`divergence`)
//! and logs what happens (`log`). `folder` decides whether a folder may be used. `lr_finder` suggests a learning rate,
//! `evaluate` measures the loss of a text, and `ranks` lets several processes train one model.

pub mod batches;
mod divergence;
mod error;
pub mod evaluate;
pub mod folder;
pub mod log;
pub mod lr_finder;
mod preflight;
pub mod ranks;
mod recipe;
pub mod run;
mod shuffle;
mod trainer;

#[cfg(test)]
mod run_tests;

pub use batches::{Batches, Documents, Objective, WindowOrder, WindowShape, Windows, count_targets};
pub use error::{PreflightError, TrainError};
pub use log::writer::{Log, Mark};
pub use preflight::{PreflightReport, preflight};
pub use ranks::team::AllReduce;
pub use ranks::{Ranks, RanksError, Solo};
pub use recipe::{Divergence, Recipe, Reduction, RunOptions, RunSettings, Schedule};
pub use run::{Control, LayerUpdate, Observer, RECENT, Resumable, Run, Summary, TrainEvent};
pub use trainer::{Branch, Gradient, StepReport, Trainer};

//! Training. [`Recipe`] holds the settings that decide the numbers, [`Trainer`] does one step, and [`Run`] trains to
//! the last step in a folder from which it can be resumed.
//!
//! A run checks before its first step that training can work (`preflight`), watches the loss for spikes (`divergence`)
//! and logs what happens (`log`). `folder` decides whether a folder may be used. `lr_finder` suggests a learning rate,
//! `evaluate` measures the loss of a text, and `ranks` lets several processes train one model.
//!
//! ```
//! use limpid_core::backend::Cpu;
//! use limpid_core::{config::Config, model::{Mode, Model}};
//! use limpid_data::Tokens;
//! use limpid_tokenizer::{Order, Tokenizer, TokenizerKind};
//! use limpid_train::{Batches, Recipe, Trainer, WindowShape};
//!
//! let text = "to be or not to be, that is the question. ".repeat(20);
//! let tokenizer = Tokenizer::train(TokenizerKind::Char, &text, Order::Sorted, &[])?;
//! let ids = Tokens::new(tokenizer.encode(&text)?);
//! let config = Config { vocab_size: tokenizer.vocab_size(), d_model: 32, d_ff: 128, ..Config::preset("nano")? };
//! let model = Model::new(&config, Mode::Train { batch: 4, context: 16 })?;
//! let backend = Box::new(Cpu::new(&model, 1));
//! let mut trainer = Trainer::new(model, backend, Recipe::default())?;
//! let batches = Batches::new(&ids, WindowShape::next_token(16), 4, 1)?;
//! let first = trainer.step(&batches)?.loss.expect("every token has one after it");
//! let last = (0..50).map(|_| trainer.step(&batches).map(|s| s.loss)).last().unwrap()?;
//! assert!(last < Some(0.9 * first));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

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
pub use recipe::{Divergence, Recipe, Reduction, RunOptions, Schedule};
pub use run::{Control, LayerUpdate, Observer, RECENT, Resumable, Run, RunData, Summary, TrainEvent};
pub use trainer::{Branch, Gradient, StepReport, Trainer};

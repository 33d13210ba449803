//! limpid: a GPT that you can see through.
//!
//! A transformer is a list of ops, an op runs in two directions, and a backend is whoever runs ops. The modules, in the
//! order to read them: [`config`] says which transformer; [`ops`] is what happens; [`model`] builds the list; [`backend`]
//! runs it; [`tokenizer`] and [`data`] bring text; [`train`], [`generate`], [`evaluate`] and [`trace`] join a model with
//! a backend; [`checkpoint`] keeps weights, [`names`] says what every tensor is called, and [`report`] tells what runs came to.
//!
//! ```
//! use limpid::backend::{Backend, Cpu};
//! use limpid::{config::Config, data::{Batches, Objective, Tokens}, model::{Model, Use}, tokenizer::{Kind, Order, Tokenizer}};
//! use limpid::train::{Recipe, Trainer};
//!
//! let text = "to be or not to be, that is the question. ".repeat(20);
//! let tokenizer = Tokenizer::train(Kind::Char, &text, Order::Sorted, &[])?;
//! let ids = Tokens::of(tokenizer.encode(&text)?);
//! let config = Config { vocab_size: tokenizer.vocab_size(), d_model: 32, d_ff: 128, ..Config::preset("nano")? };
//! let model = Model::new(&config, Use::Train { batch: 4, context: 16 })?;
//! let backend = Box::new(Cpu::new(&model, 1));
//! let mut trainer = Trainer::new(model, backend, Recipe::default())?;
//! let batches = Batches::new(&ids, 4, 16, 1, Objective::NextToken)?;
//! let first = trainer.step(&batches)?.loss;
//! let last = (0..50).map(|_| trainer.step(&batches).map(|s| s.loss)).last().unwrap()?;
//! assert!(last < 0.9 * first);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod generate;

pub use limpid_base::{contain, files, nearest, plural};
pub use limpid_checkpoint as checkpoint;
pub use limpid_core::{backend, config, model, names, ops};
pub use limpid_tokenizer as tokenizer;
pub use limpid_train as train;
pub use limpid_train::{evaluate, report};

/// Text to tokens, and tokens to batches.
pub mod data {
    pub use limpid_data::*;
    pub use limpid_train::batches::*;
}

/// Looking inside: every tensor of one run, by name; printed, and saved.
pub mod trace {
    pub use limpid_checkpoint::trace::{save, tensors};
    pub use limpid_core::trace::*;
}

/// README's example, run by `cargo test`.
#[doc = include_str!("../../../README.md")]
#[cfg(doctest)]
pub struct Readme;

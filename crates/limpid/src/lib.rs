//! limpid: a GPT that you can see through.
//!
//! [`Lm`] is a whole model, from files or from training. It generates and scores text, shows its tensors, and is saved
//! for other programs.
//!
//! ```
//! use limpid::checkpoint::Format;
//! use limpid::generate::Options;
//! use limpid::{Pooling, Training};
//!
//! let text = "to be or not to be, that is the question. ".repeat(99);
//! let lm = Training::preset("nano")?.tokenizer("char").text(text).steps(5).run()?.lm; // or Lm::open("runs/x")?
//!
//! let sample = lm.generate("to be", &Options::default())?;
//! let likelihood = lm.score("to be or", " not to be")?;
//! let vector = lm.embed("that is the question", Pooling::Mean)?;
//! let pattern = lm.trace("to be or not")?.get("blocks.0.attn.hook_pattern")?;
//! # assert!(likelihood.total < 0.0 && vector.len() == lm.config().d_model && pattern.axes[0] == "batch");
//! # assert!(!sample.tokens.is_empty());
//! # use std::env;
//! # let folder = env::temp_dir().join(format!("limpid-face-{}", std::process::id()));
//! # let path = folder.join("model.gguf");
//! # std::fs::create_dir_all(&folder)?;
//! lm.save(&path, Format::Gguf)?;
//! # std::fs::remove_dir_all(&folder)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! `examples/` has five programs of a few lines: generate, train on a text of one's own, look inside, chat, fine-tune;
//! and three for those who go on: convert, observer (a backend that watches another), ranks (several processes).
//!
//! # Features
//!
//! A call that needs a feature that is off returns an error that names it. On by default: `huggingface`, other
//! programs' tokenizers that are not byte-level byte pairs; `tiktoken`, the tables of OpenAI's encodings (gpt2,
//! cl100k_base, o200k_base); `parquet`, parquet files as text; `templates`, other programs' chat templates. Off: `gpu`,
//! a backend on Vulkan, Metal and Direct3D 12; `mpi`, several processes (it needs mpicc and libclang to build).
//!
//! # A training, and for whom each of its types is
//!
//! A program that trains needs [`Training`] and what it gives, [`Trained`]. Whoever decides more sets [`train::Recipe`]
//! (what changes the numbers) or [`train::RunOptions`] (how the run is carried out; [`train::RunSettings`] are both, as
//! a preset has them). Who wants to know what a training will do, and take, before it begins asks for its
//! [`TrainingPlan`]. A front end whose users write settings as text gives [`settings::SettingsLayer`]s to a
//! [`TrainingJob`], which makes the `Training`. Underneath, [`train::Run`] keeps a folder and goes on from it, and
//! [`train::Trainer`] takes single steps.
//!
//! # The parts
//!
//! A transformer is a list of ops, an op runs forward and backward, and a backend executes ops. The modules, in the
//! order to read them: [`config`] says which transformer; [`ops`] is what happens, on the types of [`numeric`];
//! [`model`] builds the list; [`backend`] runs it; [`tokenizer`] and [`data`] bring text; [`train`] (with
//! `train::evaluate`), [`generate`] and [`trace`] join a model with a backend; [`checkpoint`] keeps weights, [`names`]
//! says what every tensor is called. The kernels are in `limpid-core`; reports of runs, walks and lessons are crates of
//! their own.
//!
//! ```
//! use limpid::backend::{Backend, Cpu};
//! use limpid::{config::Config, data::Tokens, model::{Model, Mode}, tokenizer::{TokenizerKind, Order, Tokenizer}};
//! use limpid::train::{Batches, Recipe, Trainer, WindowShape};
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

mod device;
pub mod directions;
pub mod engine;
mod error;
mod fitted;
pub mod generate;
mod hashes;
mod interventions;
mod lm;
mod machine;
pub mod memory;
mod plan;
pub mod receipt;
pub mod settings;
mod snapshot;
mod stream;
pub mod sweep;
pub mod timelapse;
mod token_name;
pub mod trace;
mod training;

pub use device::{Device, DeviceName};
pub use error::Error;
pub use fitted::FittedLength;
pub use limpid_trace::interventions::{InterventionError, Interventions, Source, Step};
pub use lm::{Lm, Pooling, normalized, objective};
pub use machine::Machine;
pub use plan::TrainingPlan;
pub use stream::SampleStream;
pub use token_name::{TokenNameError, token_named};
pub use training::{Trained, Training, TrainingJob};

use limpid_base::{files, units};
pub use limpid_checkpoint as checkpoint;
pub use limpid_core::{backend, config, model, ops};
pub use limpid_data as data;
pub use limpid_draw as draw;
#[cfg(feature = "gpu")]
pub use limpid_gpu as gpu;
pub use limpid_tokenizer as tokenizer;
pub use limpid_trace::names;
pub use limpid_train as train;

/// What matrix products multiply.
pub mod matrix {
    pub use limpid_core::matrix::Precision;
}

/// Types of elements, random draws and instruction sets.
pub mod numeric {
    pub use limpid_core::numeric::{blocks, element, half, random};
    /// Instruction sets.
    pub mod simd {
        pub use limpid_core::numeric::simd::Level;
    }
}

/// What an update of the weights is told.
pub mod optimizer {
    pub use limpid_core::optimizer::{Change, Method, ParamGroup, Rule};
}

/// README's example, run by `cargo test`.
#[doc = include_str!("../README.md")]
#[cfg(doctest)]
pub struct Readme;

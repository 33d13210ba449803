//! limpid: a GPT that you can see through.
//!
//! [`Lm`] is a whole model, from files or from training. It generates and scores text, shows its tensors, and is saved
//! for other programs.
//!
//! ```
//! use limpid::checkpoint::Format;
//! use limpid::generate::Options;
//! use limpid::{Training, embed::Pooling};
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
//! | to | begin with |
//! |---|---|
//! | train, fine-tune | [`Training`], [`Training::fine_tuning`] |
//! | generate, chat, score | [`Lm::generate`], [`Lm::chat`], [`Lm::score`] |
//! | see inside, change a run | [`Lm::trace`], [`Lm::intervene`] |
//! | make vectors of texts | [`embed`] |
//! | serve many requests | [`engine`] |
//! | write a backend | [`backend::Wrapper`] |
//! | read another family of models | [`checkpoint`] |
//! | build a model, take single steps | [`train`] |
//!
//! Each row leads to an example; `examples/` has eight programs.
//!
//! # Features
//!
//! A call that needs a feature that is off returns an error that names it. On by default: `huggingface`, other
//! programs' tokenizers that are not byte-level byte pairs; `tiktoken`, the tables of OpenAI's encodings (gpt2,
//! cl100k_base, o200k_base); `parquet`, parquet files as text; `templates`, other programs' chat templates. Off: `gpu`,
//! a backend on Vulkan, Metal and Direct3D 12; `mpi`, several processes (it needs mpicc and libclang to build).
//!
//! # Which types of a training are for whom
//!
//! Most programs need [`Training`] alone, which gives a [`Trained`] model. To decide more, set its [`train::Recipe`]
//! (what changes the numbers) or its [`train::RunOptions`] (when it evaluates and saves). [`Training::prepare`] returns
//! a [`TrainingPlan`]: what the training will do, and how much memory it takes, before it begins. Underneath,
//! [`train::Run`] keeps a folder and goes on from it, and [`train::Trainer`] takes single steps. A front end whose
//! users write settings as text gives them to a [`TrainingJob`], which makes the `Training`.
//!
//! # The parts
//!
//! A transformer is a list of ops, an op runs forward and backward, and a backend executes ops. The modules, in the
//! order to read them: [`config`] says which transformer; [`ops`] is what happens; [`model`] builds the list;
//! [`backend`] runs it; [`tokenizer`] and [`data`] bring text; [`train`], [`generate`] and [`trace`] join a model with
//! a backend; [`checkpoint`] keeps weights, [`names`] says what every tensor is called.

mod device;
pub mod directions;
pub mod embed;
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
pub mod reason;
pub mod receipt;
pub mod settings;
mod snapshot;
mod stream;
pub mod sweep;
pub mod timelapse;
mod token_name;
pub mod trace;
mod training;
pub mod unit_places;

pub use device::{Device, DeviceName};
pub use error::Error;
pub use fitted::FittedLength;
pub use limpid_trace::interventions::{Interventions, Step};
pub use lm::{Lm, objective};
pub use machine::Machine;
pub use plan::TrainingPlan;
pub use stream::SampleStream;
pub use training::{Trained, Training, TrainingJob};

pub use limpid_base::budget;
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
        #[cfg(target_arch = "wasm32")]
        pub use limpid_core::numeric::simd::computed_lanes;
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

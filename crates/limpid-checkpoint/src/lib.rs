//! Models in files, limpid's own and other programs'. limpid keeps a model as a folder with `config.json`,
//! `model.safetensors` and `tokenizer.json`; a run's `state/last.safetensors` adds the optimizer's moments and the
//! step. [`Checkpoint::open`] recognises these, HuggingFace's folders, GGUF and llm.c's files; [`save`] writes all of
//! them.
//!
//! There are two layers. Containers (`store`, `safetensors_file`, `gguf`, `llmc`) are files of named tensors and know
//! nothing of models; they are checked when opened, and values are decoded on request. `formats` knows what the names
//! mean. A file is written under another name and then renamed, so a failure leaves the old file unchanged.
//!
//! | file | what it has |
//! |---|---|
//! | `open` | [`Checkpoint`]: a model in its files |
//! | `save` | writing a model in any format |
//! | `state` | what a run keeps: its weights, and the state that continues it |
//! | `formats` | one file for each format, and the table of them |
//! | `adapter`, `identity` | LoRA adapters, and which model one was made for |
//! | `carried` | what a folder has beside the model |
//! | `arrays`, `control_vector` | files that are no models |
//! | `error`, `files`, `quantize` | errors, files with errors that name them, values to blocks |
//!
//! # Another family of models
//!
//! A family of HuggingFace's that limpid shall open by itself is an entry of a table, in
//! `formats/huggingface/families.rs`. A program can also bring in a model of its own: a configuration, and the values
//! of each parameter, here from tensors with other names.
//!
//! ```
//! use limpid_checkpoint::store::Dtype;
//! use limpid_checkpoint::{Checkpoint, CheckpointError, Format, ModelData, ModelValues, safetensors_file, save};
//! use limpid_core::{config::Config, model::Param};
//! # use limpid_checkpoint::store::OutputTensor;
//! # use limpid_core::model::{Mode, Model};
//! # let folder = std::env::temp_dir().join(format!("limpid-family-{}", std::process::id()));
//! # std::fs::create_dir_all(&folder)?;
//! # let (theirs, ours) = (folder.join("theirs.safetensors"), folder.join("ours"));
//! # let config = Config { vocab_size: 9, ..Config::preset("nano")? };
//! # let model = Model::new(&config, Mode::Score { batch: 1, context: 1 })?;
//! # let tensors = model.params.iter().map(|param| {
//! #     let values = vec![0.5; param.region.len()];
//! #     let name = param.name.replace("blocks.", "layers.");
//! #     OutputTensor::new(name, Dtype::F32, param.shape(), vec![Box::new(move || Ok(values.clone()))])
//! # });
//! # safetensors_file::write(&theirs, tensors.collect(), Default::default())?;
//!
//! let store = safetensors_file::open(&theirs)?;
//! let values = |param: &Param| {
//!     let tensor = param.name.replace("blocks.", "layers.");
//!     let missing = || CheckpointError::Missing { path: theirs.clone(), tensor: tensor.clone() };
//!     Ok(store.get(&tensor).ok_or_else(missing)?.values()?.into_owned())
//! };
//! save(&ours, Format::Limpid, &Dtype::F32, &ModelData::of(&config, ModelValues::Read(&values)))?;
//! assert_eq!(Checkpoint::open(&ours)?.config, config);
//! # std::fs::remove_dir_all(&folder)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod adapter;
mod arrays;
mod carried;
mod control_vector;
mod error;
mod files;
mod formats;
pub mod gguf;
mod identity;
pub mod llmc;
mod open;
mod quantize;
pub mod safetensors_file;
mod save;
mod state;
pub mod store;

pub use adapter::{Adapter, Base};
pub use arrays::{NamedArray, axes_of, write_arrays};
pub use carried::{CHAT_TEMPLATE, Carried, GENERATION, ORIGIN, SentenceRecipe, is_part};
pub use control_vector::ControlVector;
pub use error::CheckpointError;
pub use files::{at, replace, write_text};
pub use formats::gguf::gguf_tokenizer;
pub use formats::links::{StoredRows, region_in};
pub use formats::writing::{ModelData, ModelValues, SHARD_BYTES, generation_config};
pub use formats::{Format, regained};
pub use gguf::is_gguf;
pub use open::{Checkpoint, PaddedTable};
pub use save::save;
pub use state::{
    check_weights, load, load_weights, save_parameters, save_state, save_weights, saved_params, state_values,
    weights_path,
};

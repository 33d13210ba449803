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

//! Looking inside: every tensor of one run, by name; printed, and saved.

pub use limpid_trace::*;

use crate::checkpoint::{CheckpointError, NamedArray, write_arrays};
use std::path::Path;

/// Writes `tensors` to `path` as safetensors, each with its axes in the metadata, whole or not at all. Of two with one
/// name the first is written.
///
/// # Errors
/// If the file cannot be written.
pub fn save(path: &Path, tensors: &[NamedTensor]) -> Result<(), CheckpointError> {
    let arrays =
        tensors.iter().map(|NamedTensor { name, axes, shape, values }| NamedArray { name, axes, shape, values });
    write_arrays(path, &arrays.collect::<Vec<_>>())
}

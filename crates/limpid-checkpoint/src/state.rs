//! What a run keeps in its folder: the weights (or an adapter's) as the last save left them, and the state that
//! continues the run, which has the optimizer's moments too. Both carry a checksum.

use crate::adapter;
use crate::error::{ADAPTER_WEIGHTS, Result, bad};
use crate::formats::limpid::own_links;
use crate::formats::links::{Linked, canonical_names, region_in};
use crate::safetensors_file;
use crate::store::{Dtype, Facts, MakeValues, OutputTensor, Store};
use limpid_core::backend::{self, Backend};
use limpid_core::model::{Model, Param};
use limpid_core::ops::{MemorySpace, Region};
use std::borrow::Cow;
use std::path::{Path, PathBuf};

/// How many elements are read from a backend at once; at least a row.
const PART: usize = 1 << 20;

/// The parameters that a run keeps in the given memory: moments are of those that learn.
pub fn saved_params(model: &Model, space: MemorySpace) -> impl Iterator<Item = &Param> {
    model.saved_params().filter(move |p| space == MemorySpace::Param || p.region.learns())
}

/// Reads a tensor: from a backend, or from wherever it lies.
type Reader<'a> = &'a dyn Fn(Region) -> backend::Result<Vec<f32>>;

/// The tensors of the given memory, one of each parameter, with a prefix to their names.
fn tensors<'a>(model: &'a Model, read: Reader<'a>, space: MemorySpace, prefix: &str) -> Vec<OutputTensor<'a>> {
    saved_params(model, space).map(|param| tensor(param, read, region_in(param, space), prefix)).collect()
}

/// A parameter's tensor, read in parts.
fn tensor<'a>(param: &'a Param, read: Reader<'a>, whole: Region, prefix: &str) -> OutputTensor<'a> {
    // heads stay together, within which features change their places
    let together = param.order.map_or(1, |order| order.d_head);
    let step = (PART / whole.cols.max(1) / together).max(1) * together;
    let part = move |from: usize| {
        let rows = Region { at: whole.at + from * whole.cols, rows: step.min(whole.rows - from), ..whole };
        let values = read(rows)?;
        Ok(match param.order {
            Some(order) if param.is_matrix() => order.part(from, step).show(&values, whole.cols),
            Some(order) => order.show(&values, 1),
            None => values,
        })
    };
    let parts = (0..whole.rows).step_by(step).map(|from| Box::new(move || part(from)) as MakeValues<'a>).collect();
    OutputTensor::new(format!("{prefix}{}", param.name), Dtype::F32, param.shape(), parts)
}

/// Writes the parameters to `path`, a safetensors file.
///
/// # Errors
/// The file system's error; the old file is then unchanged.
pub fn save_parameters(path: &Path, model: &Model, backend: &dyn Backend) -> Result<()> {
    safetensors_file::write(
        path,
        tensors(model, &|region| backend.read(region), MemorySpace::Param, ""),
        safetensors_file::format_pt(),
    )
}

/// The file in `folder` that holds what a run keeps: `model.safetensors`, or the adapter alone where there is one.
pub fn weights_path(folder: &Path, model: &Model) -> PathBuf {
    folder.join(if model.tuning.lora.is_none() { "model.safetensors" } else { ADAPTER_WEIGHTS })
}

/// Writes what a run keeps to `folder`, with the step it is of and a checksum. Returns the checksum.
///
/// # Errors
/// As [`save_parameters`].
pub fn save_weights(folder: &Path, model: &Model, backend: &dyn Backend, step: u64) -> Result<String> {
    let read = |region| backend.read(region);
    let tensors = match model.tuning.lora {
        None => tensors(model, &read, MemorySpace::Param, ""),
        Some(_) => adapter::tensors(folder, model, backend)?,
    };
    let mut facts = safetensors_file::format_pt();
    facts.insert("step".into(), step.to_string());
    safetensors_file::write_summed(&weights_path(folder, model), tensors, facts)
}

/// The checksum of what [`save_weights`] wrote, and the step it is of.
///
/// # Errors
/// If the file cannot be read, or is not what was written.
pub fn check_weights(folder: &Path, model: &Model) -> Result<(String, u64)> {
    let path = weights_path(folder, model);
    let (store, sum) = safetensors_file::open_summed(&path)?;
    let step = store.fact("step").and_then(|step| step.parse().ok());
    Ok((sum, step.ok_or_else(|| bad(&path, "it does not say of which step it is"))?))
}

/// Reads what [`save_weights`] wrote.
///
/// # Errors
/// As [`load`].
pub fn load_weights(folder: &Path, model: &Model, backend: &mut dyn Backend) -> Result<()> {
    match model.tuning.lora {
        None => load(&safetensors_file::open(&weights_path(folder, model))?, model, backend, "", MemorySpace::Param),
        Some(_) => adapter::load(folder, model, backend),
    }
}

/// Writes `memories`, each with a prefix to its tensors' names, to `path`, with `state` (JSON) and a checksum in the
/// metadata.
///
/// # Errors
/// As [`save_parameters`].
pub fn save_state(
    path: &Path,
    model: &Model,
    read: &dyn Fn(Region) -> backend::Result<Vec<f32>>,
    memories: &[(&str, MemorySpace)],
    state: String,
) -> Result<()> {
    let tensors = memories.iter().flat_map(|(prefix, space)| tensors(model, read, *space, prefix)).collect();
    safetensors_file::write_summed(path, tensors, Facts::from([("limpid".to_string(), state)])).map(drop)
}

/// Reads what [`save_parameters`] or [`save_state`] wrote: the parameters, or another memory with its prefix.
///
/// # Errors
/// If a tensor is missing, unexpected or of another shape; the backend is then unchanged.
pub fn load(store: &Store, model: &Model, backend: &mut dyn Backend, prefix: &str, space: MemorySpace) -> Result<()> {
    let wanted = |name: &str| if prefix.is_empty() { !name.contains('/') } else { name.starts_with(prefix) };
    let names = canonical_names(store, |name| wanted(name).then(|| name.into()))?;
    Linked { links: &own_links(prefix, saved_params(model, space)), model, store, names: &names }.load(backend, space)
}

/// Looks up the values of a parameter, or of another memory of it, in what [`save_state`] wrote. They may be missing or
/// of another shape.
pub fn state_values<'a>(
    store: &'a Store,
    model: &'a Model,
    prefix: &str,
    space: MemorySpace,
) -> impl Fn(&Param) -> Result<Cow<'a, [f32]>> {
    let links = own_links(prefix, saved_params(model, space));
    let names = store.names().map(|name| (name.to_string(), name.to_string())).collect();
    move |param| Linked { links: &links, model, store, names: &names }.values(param)
}

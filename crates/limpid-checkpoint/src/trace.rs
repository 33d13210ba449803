//! Writes tensors of a run as a safetensors file, f32, each with its axes in the metadata:
//! `{"format": "pt", "blocks.0.attn.hook_pattern": "batch head query_pos key_pos", ...}`.
//!
//! The same run gives the same bytes, and a file is there whole or not at all.

use crate::{CheckpointError, replace};
use limpid_base::files::OutputFile;
use limpid_core::names::{Notation, called, derived};
use limpid_core::trace::{Labelled, Trace, TraceError};
use safetensors::tensor::{Dtype, TensorView};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

/// The tensors called `names`; with none, every tensor of the run and, after a backward pass, its gradient.
///
/// # Errors
/// As [`Trace::get`].
pub fn tensors(trace: &Trace, names: &[&str]) -> Result<Vec<Labelled>, TraceError> {
    match names.is_empty() {
        true => with_gradients(trace, trace.names()),
        false => names.iter().map(|name| trace.get(name)).collect(),
    }
}

/// The tensors called `names`, each with its gradient after it, if there is one.
fn with_gradients(trace: &Trace, names: impl Iterator<Item = String>) -> Result<Vec<Labelled>, TraceError> {
    let mut tensors = vec![];
    for name in names {
        tensors.push(trace.get(&name)?);
        match trace.get(&format!("{name}.grad")) {
            Ok(gradient) => tensors.push(gradient),
            Err(error @ TraceError::Backend(_)) => return Err(error),
            Err(_) => {} // token ids have none, nor has anything without a backward pass
        }
    }
    Ok(tensors)
}

/// A run's tensors as llm.c keeps them, under its names: of each kind one array for all blocks, with an axis for the block first
/// (`ln1`: `n_layer batch pos d_model`), statistics without an axis of one, heads side by side in `atty`, and the reciprocals of
/// deviations (`ln1_rstd`). After a backward pass those of `grads_acts` too. What llm.c has no word for is left out.
///
/// # Errors
/// As [`Trace::get`].
pub fn llmc_arrays(trace: &Trace) -> Result<Vec<Labelled>, TraceError> {
    let config = &trace.model().config;
    let names = trace.names().filter(|name| name != "input");
    let mut names: Vec<String> = names.chain(derived(trace.model()).into_iter().map(|(name, _)| name)).collect();
    names.retain(|name| called(name, config, Notation::Llmc).is_some());
    let mut arrays: Vec<Labelled> = vec![];
    for mut tensor in with_gradients(trace, names.iter().cloned())? {
        let Some(called) = called(&tensor.name, config, Notation::Llmc) else { continue };
        let (word, block) = match called.split_once('[') {
            Some((word, block)) => (word, block.trim_end_matches(']').parse::<usize>().ok()),
            None => (called.as_str(), None),
        };
        let (name, reciprocal) = word.strip_prefix("1/").map_or((word, false), |name| (name, true));
        if reciprocal {
            tensor.values.iter_mut().for_each(|value| *value = 1.0 / *value);
        }
        if tensor.name.ends_with(".hook_pattern.grad") {
            // llm.c takes no key after its query, and leaves a zero there
            let keys = tensor.shape[3];
            let later = |at: usize| at % keys > at / keys % tensor.shape[2];
            tensor.values.iter_mut().enumerate().filter(|(at, _)| later(*at)).for_each(|(_, slope)| *slope = 0.0);
        }
        if tensor.axes.last() == Some(&"1") {
            tensor.axes.pop();
            tensor.shape.pop();
        }
        if tensor.axes.ends_with(&["head", "d_head"]) {
            let wide = tensor.shape.split_off(tensor.shape.len() - 2).iter().product();
            tensor.axes.truncate(tensor.axes.len() - 2);
            tensor.axes.push("d_model");
            tensor.shape.push(wide);
        }
        // two names of one tensor: the stream between two blocks
        let at = arrays.iter().position(|array| array.name == name);
        match (at, block) {
            (Some(at), Some(block)) if arrays[at].shape[0] == block => {
                arrays[at].shape[0] += 1;
                arrays[at].values.append(&mut tensor.values);
            }
            (Some(_), _) => {}
            (None, _) => {
                if block.is_some() {
                    tensor.axes.insert(0, "n_layer");
                    tensor.shape.insert(0, 1);
                }
                arrays.push(Labelled { name: name.into(), ..tensor });
            }
        }
    }
    Ok(arrays)
}

/// Writes `tensors` to `path`, whole or not at all ([`replace`]). Of two with one name the first is written.
///
/// # Errors
/// If the file cannot be written.
pub fn save(path: &Path, tensors: &[Labelled]) -> Result<(), CheckpointError> {
    let [head, body] = encode(tensors).map_err(|what| CheckpointError::Format { path: path.into(), what })?;
    replace(path, |beside| {
        let mut file = OutputFile::create(beside)?;
        file.write_all(&head)?;
        file.write_all(&body)
    })
}

/// The file in two pieces: header and data. The crate lays the tensors out; the metadata is added here, because it
/// would write it in an order that differs from run to run.
fn encode(tensors: &[Labelled]) -> Result<[Vec<u8>; 2], String> {
    let mut metadata = BTreeMap::from([("format", "pt".to_string())]);
    let mut data: BTreeMap<&str, (Vec<usize>, Vec<u8>)> = BTreeMap::new();
    for tensor in tensors {
        let bytes = || tensor.values.iter().flat_map(|v| v.to_le_bytes()).collect();
        data.entry(&tensor.name).or_insert_with(|| (tensor.shape.clone(), bytes()));
        metadata.entry(&tensor.name).or_insert_with(|| tensor.axes.join(" "));
    }
    let mut views = vec![];
    for (name, (shape, bytes)) in &data {
        views.push((*name, TensorView::new(Dtype::F32, shape.clone(), bytes).map_err(|e| format!("{name}: {e}"))?));
    }
    let mut file = safetensors::serialize(views, None).map_err(|e| e.to_string())?;
    let body = file.split_off(8 + u64::from_le_bytes(file[..8].try_into().map_err(|_| "no header")?) as usize);
    let mut header: BTreeMap<String, serde_json::Value> =
        serde_json::from_slice(&file[8..]).map_err(|e| e.to_string())?;
    header.insert("__metadata__".into(), serde_json::to_value(metadata).map_err(|e| e.to_string())?);
    let mut text = serde_json::to_vec(&header).map_err(|e| e.to_string())?;
    text.resize(text.len().next_multiple_of(8), b' '); // data starts at a multiple of 8
    let mut head = (text.len() as u64).to_le_bytes().to_vec();
    head.append(&mut text);
    Ok([head, body])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_no_matter_and_a_failure_is_told_once() {
        let tensor = |name: &str, values: [f32; 2]| Labelled {
            name: name.into(),
            axes: vec!["pos"],
            shape: vec![2],
            values: values.into(),
        };
        let (a, b) = (tensor("a", [1.0, 2.0]), tensor("b", [3.0, f32::NEG_INFINITY]));
        assert_eq!(encode(&[a.clone(), b.clone()]), encode(&[b.clone(), a.clone(), tensor("a", [9.0; 2])]));
        let dir = std::env::temp_dir().join(format!("limpid-trace-save-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let (good, nowhere) = (dir.join("run.safetensors"), dir.join("none/run.safetensors"));
        save(&good, &[a, b]).unwrap();
        let error = save(&nowhere, &[]).unwrap_err();
        assert!(error.to_string().starts_with(&format!("{}: ", nowhere.display())), "{error}");
        assert!(std::error::Error::source(&error).is_none(), "its own text names the cause");
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1);
        std::fs::remove_dir_all(dir).unwrap();
    }
}

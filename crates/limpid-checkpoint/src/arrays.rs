//! Named arrays as a safetensors file, f32, each with its axes in the metadata:
//! `{"format": "pt", "blocks.0.attn.hook_pattern": "batch head query_pos key_pos", ...}`.
//!
//! The same arrays give the same bytes, and a file is there whole or not at all.

use crate::error::CheckpointError;
use crate::files::{LARGEST_JSON, replace};
use limpid_base::files::{self, OutputFile};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::Path;

/// An array to be written, row-major.
pub struct NamedArray<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its axes' names.
    pub axes: &'a [&'a str],
    /// Its axes' lengths.
    pub shape: &'a [usize],
    /// Its elements.
    pub values: &'a [f32],
}

/// Writes `arrays` to `path`, whole or not at all ([`replace`]). Of two with one name the first is written.
///
/// # Errors
/// If the file cannot be written.
pub fn write_arrays(path: &Path, arrays: &[NamedArray]) -> Result<(), CheckpointError> {
    let [head, body] = encode(arrays).map_err(|what| CheckpointError::Format { path: path.into(), what })?;
    replace(path, |beside| {
        let mut file = OutputFile::create(beside)?;
        file.write_all(&head)?;
        file.write_all(&body)
    })
}

/// The axes of each array of a file that [`write_arrays`] wrote. None for another program's, whose metadata has no
/// axes.
pub fn axes_of(path: &Path) -> Option<Vec<String>> {
    let mut file = files::open_regular(path).ok()?;
    let mut length = [0; 8];
    file.read_exact(&mut length).ok()?;
    let length = Some(u64::from_le_bytes(length)).filter(|length| *length <= LARGEST_JSON)?;
    let mut head = vec![];
    file.take(length).read_to_end(&mut head).ok()?;
    let head: BTreeMap<String, Value> = serde_json::from_slice(&head).ok()?;
    let described = head.get("__metadata__")?;
    let arrays = head.iter().filter(|(name, _)| *name != "__metadata__");
    let axes = arrays.map(|(name, array)| {
        let axes = described[name].as_str()?;
        (axes.split_whitespace().count() == array["shape"].as_array()?.len()).then(|| axes.to_string())
    });
    axes.collect::<Option<Vec<String>>>().filter(|axes| !axes.is_empty())
}

/// The file in two pieces: header and data. The crate lays the tensors out; the metadata is added here, because it
/// would write it in an order that differs from run to run.
fn encode(arrays: &[NamedArray]) -> Result<[Vec<u8>; 2], String> {
    let mut metadata = BTreeMap::from([("format", "pt".to_string())]);
    let mut data: BTreeMap<&str, (Vec<usize>, Vec<u8>)> = BTreeMap::new();
    for array in arrays {
        let bytes = || array.values.iter().flat_map(|v| v.to_le_bytes()).collect();
        data.entry(array.name).or_insert_with(|| (array.shape.to_vec(), bytes()));
        metadata.entry(array.name).or_insert_with(|| array.axes.join(" "));
    }
    let mut views = vec![];
    for (name, (shape, bytes)) in &data {
        views.push((*name, TensorView::new(Dtype::F32, shape.clone(), bytes).map_err(|e| format!("{name}: {e}"))?));
    }
    let mut file = safetensors::serialize(views, None).map_err(|e| e.to_string())?;
    let body = file.split_off(8 + u64::from_le_bytes(file[..8].try_into().map_err(|_| "no header")?) as usize);
    let mut header: BTreeMap<String, Value> = serde_json::from_slice(&file[8..]).map_err(|e| e.to_string())?;
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
        let array = |name, values| NamedArray { name, axes: &["pos"], shape: &[2], values };
        let a = || array("a", &[1.0, 2.0]);
        let b = || array("b", &[3.0, f32::NEG_INFINITY]);
        assert_eq!(encode(&[a(), b()]), encode(&[b(), a(), array("a", &[9.0, 9.0])]));
        let dir = std::env::temp_dir().join(format!("limpid-arrays-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let (good, nowhere) = (dir.join("run.safetensors"), dir.join("none/run.safetensors"));
        write_arrays(&good, &[a(), b()]).unwrap();
        assert_eq!(axes_of(&good).unwrap(), ["pos", "pos"]);
        assert_eq!([&nowhere, &dir].map(|path| axes_of(path)), [None, None]);
        let error = write_arrays(&nowhere, &[]).unwrap_err();
        assert!(error.to_string().starts_with(&format!("{}: ", nowhere.display())), "{error}");
        assert!(std::error::Error::source(&error).is_none(), "its own text names the cause");
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1);
        std::fs::remove_dir_all(dir).unwrap();
    }
}

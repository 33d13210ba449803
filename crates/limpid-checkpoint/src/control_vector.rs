//! Control vectors in llama.cpp's GGUF files: a vector for each layer, which is added to the residual stream after it.
//!
//! llama.cpp counts layers from 0, as limpid does: it adds `direction.2` to the output of layer 2 (`l_out-2`, limpid's
//! `blocks.2.hook_resid_post`). There is no `direction.0`: `llama_adapter_cvec` has no place for one.

use crate::error::{Result, refuse};
use crate::gguf::{self, Metadata};
use crate::store::{Dtype, OutputTensor};
use std::collections::BTreeMap;
use std::path::Path;

const ARCHITECTURE: &str = "general.architecture";
const KIND: &str = "controlvector";
/// What marks the files that limpid writes: llama.cpp's own have the same keys otherwise.
const AUTHOR: (&str, &str) = ("general.author", "limpid");

/// A vector for each of some layers.
#[derive(Clone, Debug, PartialEq)]
pub struct ControlVector {
    /// The architecture of the model that it was made with, for people: nothing depends on it.
    pub model_hint: String,
    /// By layer; all have the same width.
    pub directions: BTreeMap<usize, Vec<f32>>,
}

impl ControlVector {
    /// Reads one.
    ///
    /// # Errors
    /// If it cannot be read, is another kind of GGUF file, or llama.cpp would refuse it: without directions, with one
    /// of layer 0, of another type than F32, of another width; and if a number is NaN or infinite.
    pub fn read(path: &Path) -> Result<ControlVector> {
        let (metadata, store) = gguf::open(path)?;
        let kind = metadata.str(ARCHITECTURE)?;
        if kind != KIND {
            let what = format!("it is no control vector: `{ARCHITECTURE}` is `{kind}`, and should be `{KIND}`");
            return refuse(path, what);
        }
        let model_hint = metadata.str(&format!("{KIND}.model_hint")).unwrap_or_default().to_string();
        let mut directions = BTreeMap::<usize, Vec<f32>>::new();
        for name in store.names() {
            let Some(layer) = name.strip_prefix("direction.") else { continue };
            let Some(layer) = layer.parse::<usize>().ok().filter(|layer| *layer > 0) else {
                let what = format!("`{name}` is a direction of no layer: they are called `direction.1` and so on");
                return refuse(path, what);
            };
            let Some(tensor) = store.get(name) else { continue };
            if *tensor.dtype != Dtype::F32 || tensor.shape.len() != 1 {
                let (dtype, shape) = (tensor.dtype, tensor.shape);
                return refuse(path, format!("`{name}` is {dtype} {shape:?}, and should be a vector of F32"));
            }
            let values = tensor.values()?.into_owned();
            if let Some(at) = values.iter().position(|v| !v.is_finite()) {
                return refuse(path, format!("`{name}` is {} at {at}: make the control vector anew", values[at]));
            }
            if let Some((other, own)) = directions.iter().next().filter(|(_, own)| own.len() != values.len()) {
                let (found, expected) = (values.len(), own.len());
                let what =
                    format!("`{name}` has {found} numbers and `direction.{other}` has {expected}: it is damaged");
                return refuse(path, what);
            }
            directions.insert(layer, values);
        }
        if directions.is_empty() {
            return refuse(path, "it has no tensor `direction.1` or of another layer, so it is no control vector");
        }
        Ok(ControlVector { model_hint, directions })
    }

    /// Whether a file is a control vector that limpid wrote.
    pub fn is_own(path: &Path) -> bool {
        let is = |(key, value): (&str, &str), metadata: &Metadata| metadata.str(key).is_ok_and(|found| found == value);
        gguf::open(path).is_ok_and(|(metadata, _)| is((ARCHITECTURE, KIND), &metadata) && is(AUTHOR, &metadata))
    }

    /// Writes it, whole or not at all.
    ///
    /// # Errors
    /// If there are no directions or there is one of layer 0, which llama.cpp cannot apply, or the file cannot be
    /// written.
    pub fn write(&self, path: &Path) -> Result<()> {
        if self.directions.is_empty() || self.directions.contains_key(&0) {
            let what = "a control vector has directions of the layers 1, 2, ...: llama.cpp has no place for layer 0";
            return refuse(path, what);
        }
        let mut metadata = Metadata::default();
        metadata.set(ARCHITECTURE, KIND.to_string());
        metadata.set(AUTHOR.0, AUTHOR.1.to_string());
        metadata.set(format!("{KIND}.model_hint"), self.model_hint.clone());
        metadata.set(format!("{KIND}.layer_count"), self.directions.len() as i32);
        let tensors = self.directions.iter().map(|(layer, values)| {
            let name = format!("direction.{layer}");
            OutputTensor::new(name, Dtype::F32, vec![values.len()], vec![Box::new(|| Ok(values.clone()))])
        });
        gguf::write(path, &metadata, tensors.collect())
    }
}

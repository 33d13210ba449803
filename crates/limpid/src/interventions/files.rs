//! Steps that name files: control vectors of llama.cpp, and directions. [`Lm::intervene`] puts their numbers in place of their names, so that a
//! receipt has them, and whoever resolves the steps of others never reads a file for them.

use super::{Direction, How, InterventionError, Interventions, LayerVectors, Step, What};
use crate::Lm;
use crate::checkpoint::{CheckpointError, ControlVector, safetensors_file};
use crate::error::Result;
use crate::model::{Mode, Model};
use crate::names;
use crate::trace::edits::EditSite;
use limpid_base::nearest::nearest;
use limpid_base::plural::plural;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

impl Interventions {
    /// The same with numbers in place of files.
    ///
    /// # Errors
    /// Names the step, the file, and why it cannot be used.
    pub(crate) fn with_files(&self, lm: &Lm) -> Result<Interventions> {
        let mut given = self.given.clone();
        for step in &self.steps {
            let list = if given.is_object() { &mut given["do"] } else { &mut given };
            let own = &mut list[step.number - 1];
            if let Some(steps) = step.source().and_then(|source| source.steps.as_ref()) {
                let from = if own["from"].is_null() { &mut own["with"]["mean_of"] } else { &mut own["from"] };
                from["do"] = steps.with_files(lm)?.given;
            }
            let (path, read) = match &step.what {
                What::ControlVector { directions: LayerVectors::File(path), layers, .. } => {
                    (path, ("control_vector", control_vector(path, layers.as_deref(), lm)))
                }
                What::Change { site, how: How::Steer { add: Direction::File { path, tensor }, .. } } => {
                    let name = EditSite::find(
                        &Model::new(lm.config(), Mode::Inspect { batch: 1, context: 1 })?,
                        site,
                        step.number,
                    )?;
                    (path, ("add", direction(path, (step, &name), tensor.as_deref())))
                }
                _ => continue,
            };
            let (key, value) = read;
            let value =
                value.map_err(|what| InterventionError::File { step: step.number, path: path.clone(), what })?;
            own[key] = value;
        }
        Interventions::new(given)
    }
}

/// Some of a control vector's directions, on a model of so many layers; all if no layers are named.
pub(super) fn chosen<'a>(
    directions: &'a BTreeMap<usize, Vec<f32>>,
    layers: Option<&[usize]>,
    n_layer: usize,
) -> Result<Vec<(usize, &'a Vec<f32>)>, String> {
    let has = || format!("it has {}", directions.keys().map(usize::to_string).collect::<Vec<_>>().join(", "));
    let chosen: Vec<_> = match layers {
        None => directions.iter().map(|(layer, vector)| (*layer, vector)).collect(),
        Some([]) => return Err("the list of `layer` is empty".into()),
        Some(layers) => {
            let one = |layer: &usize| {
                let vector = directions.get(layer).map(|vector| (*layer, vector));
                let lost = match layer {
                    0 => {
                        "; llama.cpp's files have no place for layer 0: `limpid direction` writes it into a .json or .safetensors file"
                    }
                    _ => "",
                };
                vector.ok_or_else(|| format!("the control vector has no direction of layer {layer}: {}{lost}", has()))
            };
            layers.iter().map(one).collect::<Result<_, _>>()?
        }
    };
    match chosen.iter().find(|(layer, _)| *layer >= n_layer) {
        Some((layer, _)) => Err(format!(
            "the control vector has a direction of layer {layer}, and the model's layers are 0 to {}: it was made with another model, or \
             give some of its layers as `layer`",
            n_layer - 1
        )),
        None => Ok(chosen),
    }
}

/// The directions of a control vector, as they stand in a step.
fn control_vector(path: &Path, layers: Option<&[usize]>, lm: &Lm) -> Result<Value, String> {
    let vector = ControlVector::read(path).map_err(said)?;
    let chosen = chosen(&vector.directions, layers, lm.config().n_layer).map_err(|what| named(path, &what))?;
    for (layer, vector) in &chosen {
        fits(path, (&format!("direction.{layer}"), vector), lm.config().d_model)?;
    }
    Ok(chosen
        .into_iter()
        .map(|(layer, vector)| (layer.to_string(), json!(vector)))
        .collect::<serde_json::Map<_, _>>()
        .into())
}

/// The vector that a step adds, as it stands in a step.
fn direction(path: &Path, (step, site): (&Step, &EditSite), tensor: Option<&str>) -> Result<Value, String> {
    let wide = site.shown(step.heads.as_deref(), step.units.as_deref()).map_err(|error| error.to_string())?.len();
    let (name, vector) = match path.extension().and_then(|end| end.to_str()) {
        Some("gguf") => {
            let layer = names::lookup(&site.name).and_then(|(_, block)| block).unwrap_or_default();
            let name = tensor.map_or_else(|| format!("direction.{layer}"), String::from);
            let mut found = ControlVector::read(path).map_err(said)?.directions;
            let layer = name.strip_prefix("direction.").and_then(|layer| layer.parse::<usize>().ok());
            let vector = layer.and_then(|layer| found.remove(&layer));
            let has = found.keys().map(|layer| format!("direction.{layer}"));
            (name.clone(), vector.ok_or_else(|| missing(path, &name, has.collect()))?)
        }
        Some("safetensors") => {
            let name = tensor.unwrap_or(&site.name);
            let store = safetensors_file::open(path).map_err(said)?;
            let vector =
                store.get(name).ok_or_else(|| missing(path, name, store.names().map(String::from).collect()))?;
            (name.into(), vector.values().map_err(said)?.into_owned())
        }
        Some("json") => {
            return Err(named(path, "a .json file of `directions` is a list of steps: intervene with the file itself"));
        }
        _ => return Err(named(path, "a file of a direction ends in .gguf or .safetensors")),
    };
    if let Some(at) = vector.iter().position(|v| !v.is_finite()) {
        return Err(named(path, &format!("`{name}` is {} at {at}: find the direction anew", vector[at])));
    }
    fits(path, (&name, &vector), wide)?;
    Ok(json!({ "vector": vector }))
}

fn fits(path: &Path, (name, vector): (&str, &[f32]), wide: usize) -> Result<(), String> {
    if vector.len() == wide {
        return Ok(());
    }
    let found = plural(vector.len(), "number");
    Err(named(
        path,
        &format!("`{name}` has {found}, and the site has {wide}: it was made with another model or of another site"),
    ))
}

/// What is said of a tensor that is not there: the nearest name, or some that there are.
fn missing(path: &Path, name: &str, has: Vec<String>) -> String {
    let near = nearest(name, has.iter().map(String::as_str)).or(has.first().map(String::as_str)).unwrap_or("none");
    named(path, &format!("it has no tensor `{name}`, but `{near}`: name one of its tensors as `tensor`"))
}

fn named(path: &Path, what: &str) -> String {
    format!("{}: {what}", path.display())
}

/// An error of the file, which names it.
fn said(error: CheckpointError) -> String {
    error.to_string()
}

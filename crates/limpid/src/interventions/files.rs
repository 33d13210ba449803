//! Steps that name files: control vectors of llama.cpp, and directions. [`Lm::intervene`] puts their numbers in place
//! of their names, so that a receipt has them, and whoever resolves the steps of others never reads a file for them.

use crate::Lm;
use crate::checkpoint::{CheckpointError, ControlVector, safetensors_file};
use crate::error::Result;
use crate::model::{Mode, Model};
use crate::names;
use crate::trace::interventions::{
    Action, Direction, InterventionError, Interventions, LayerVectors, Numbers, StepSite,
};
use limpid_base::nearest::nearest;
use limpid_base::plural::plural;
use std::collections::BTreeMap;
use std::path::Path;

/// The same with numbers in place of files.
///
/// # Errors
/// Names the step, the file, and why it cannot be used.
pub(crate) fn read(interventions: &Interventions, lm: &Lm) -> Result<Interventions> {
    let mut read_in = interventions.clone();
    for (step, asked) in (1..).zip(&mut read_in.steps) {
        if let Some(steps) = asked.source_mut().and_then(|source| source.steps.as_mut()) {
            *steps = read(steps, lm)?;
        }
        let of_file = |path: &Path, what| InterventionError::File { step, path: path.into(), what };
        if let Action::ControlVector { control_vector, layer, .. } = &mut asked.action
            && let LayerVectors::File(path) = &*control_vector
        {
            let vectors = layer_vectors(path, layer.as_ref(), lm).map_err(|what| of_file(path, what))?;
            *control_vector = LayerVectors::These(vectors);
        }
        if !asked.directions_mut().any(|direction| matches!(direction, Direction::File { .. })) {
            continue;
        }
        let named = Model::new(lm.config(), Mode::Inspect { batch: 1, context: 1 })?;
        let Some(name) = asked.action.site().map(String::from) else { continue };
        let (site, places) = (StepSite::find(&named, &name, step)?, [asked.head.clone(), asked.unit.clone()]);
        for one in asked.directions_mut() {
            let Direction::File { file, tensor } = &*one else { continue };
            let vector = direction(file, places.each_ref().map(Option::as_ref), &site, tensor.as_deref())
                .map_err(|what| of_file(file, what))?;
            *one = vector.into();
        }
    }
    Ok(read_in)
}

/// Some of a control vector's directions, on a model of so many layers; all if no layers are named.
pub(super) fn chosen<'a>(
    vectors: &'a LayerVectors,
    layers: Option<&Numbers>,
    n_layer: usize,
    step: usize,
) -> Result<Vec<(usize, &'a Vec<f32>)>, InterventionError> {
    match vectors {
        LayerVectors::These(vectors) => {
            chosen_of(vectors, layers, n_layer).map_err(|what| InterventionError::Step { step, what })
        }
        LayerVectors::File(path) => {
            let (path, instead) = (path.clone(), "{\"1\": [numbers], ...}, a vector for each layer");
            Err(InterventionError::NoFiles { step, path, instead })
        }
    }
}

fn chosen_of<'a>(
    vectors: &'a BTreeMap<usize, Vec<f32>>,
    layers: Option<&Numbers>,
    n_layer: usize,
) -> Result<Vec<(usize, &'a Vec<f32>)>, String> {
    let layers = layers.map_or_else(|| vectors.keys().copied().collect(), Numbers::places);
    if layers.is_empty() {
        return Err("the list of `layer` is empty".into());
    }
    let vector = |layer: usize| {
        let lost = match layer {
            0 => {
                "; llama.cpp's files have no place for layer 0: `limpid direction` writes it into a .json or \
                 .safetensors file"
            }
            _ => "",
        };
        let has = || vectors.keys().map(usize::to_string).collect::<Vec<_>>().join(", ");
        let missing = || format!("the control vector has no direction of layer {layer}: it has {}{lost}", has());
        Ok((layer, vectors.get(&layer).ok_or_else(missing)?))
    };
    let chosen = layers.into_iter().map(vector).collect::<Result<Vec<_>, String>>()?;
    match chosen.iter().find(|(layer, _)| *layer >= n_layer) {
        Some((layer, _)) => Err(format!(
            "the control vector has a direction of layer {layer}, and the model's layers are 0 to {}: it was made \
             with another model, or give some of its layers as `layer`",
            n_layer - 1
        )),
        None => Ok(chosen),
    }
}

/// The directions of a control vector in a file.
fn layer_vectors(path: &Path, layers: Option<&Numbers>, lm: &Lm) -> Result<BTreeMap<usize, Vec<f32>>, String> {
    let vector = ControlVector::read(path).map_err(said)?;
    let chosen = chosen_of(&vector.directions, layers, lm.config().n_layer).map_err(|what| named(path, &what))?;
    for (layer, vector) in &chosen {
        fits(path, &format!("direction.{layer}"), vector, lm.config().d_model)?;
    }
    Ok(chosen.into_iter().map(|(layer, vector)| (layer, vector.clone())).collect())
}

/// The vector that a step adds.
fn direction(
    path: &Path,
    [heads, units]: [Option<&Numbers>; 2],
    site: &StepSite,
    tensor: Option<&str>,
) -> Result<Vec<f32>, String> {
    let [heads, units] = [heads, units].map(|some| some.map(Numbers::places));
    let wide = site.shown(heads.as_deref(), units.as_deref()).map_err(|error| error.to_string())?.len();
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
    fits(path, &name, &vector, wide)?;
    Ok(vector)
}

fn fits(path: &Path, name: &str, vector: &[f32], wide: usize) -> Result<(), String> {
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

//! Directions of a model: what tells positive prompts from negative ones at a site, layer by layer, and files of them.
//! Read `trace::directions` for how one is found; docs/interventions.md shows what to do with it.

use crate::Lm;
use crate::checkpoint::{ControlVector, NamedArray, write_arrays, write_text};
pub use crate::error::DirectionError;
use crate::error::{Error, Result};
use crate::generate::{Options, Sampler};
use crate::model::{Mode, Model};
use crate::trace::Keep;
use crate::trace::directions::{DirectionMethod, FoundDirection, Separation};
use crate::trace::interventions::{Direction, InterventionError, Interventions, Numbers, Step, StepSite, position_in};
use limpid_base::budget::Budget;
use limpid_base::plural::plural;
use serde::Serialize;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

/// The position whose activations are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectionPosition {
    /// One: counted from 0, or from the end if negative.
    At(i64),
    /// The mean over all.
    Mean,
}

impl FromStr for DirectionPosition {
    type Err = String;
    fn from_str(text: &str) -> Result<DirectionPosition, String> {
        match text {
            "mean" => Ok(DirectionPosition::Mean),
            number => number.parse().map(DirectionPosition::At).map_err(|_| "it is a whole number or mean".into()),
        }
    }
}

/// Which direction is looked for.
#[derive(Clone, Debug, PartialEq)]
pub struct DirectionQuestion {
    /// Pairs of prompts: the tokens of a positive and a negative one.
    pub pairs: Vec<[Vec<u32>; 2]>,
    /// The site: `resid_post`, `attn_out`, `z`, `mlp.hook_post`, ... in some layers, or the whole name of one tensor.
    pub site: String,
    /// The layers; all if none are given.
    pub layers: Option<Vec<usize>>,
    /// Only these heads, where the site has heads.
    pub heads: Option<Vec<usize>>,
    /// Only these columns, where it has none.
    pub units: Option<Vec<usize>>,
    /// The position of a prompt that counts.
    pub position: DirectionPosition,
    /// How a direction is found.
    pub method: DirectionMethod,
    /// The fraction of the pairs, the last ones, that it is tested on and not made from.
    pub held_out: f64,
    /// More pairs that it is tested on.
    pub test_pairs: Vec<[Vec<u32>; 2]>,
}

impl DirectionQuestion {
    /// The difference of means after each layer, at the last token, of all pairs.
    pub fn new(pairs: Vec<[Vec<u32>; 2]>) -> DirectionQuestion {
        DirectionQuestion {
            pairs,
            site: "resid_post".into(),
            layers: None,
            heads: None,
            units: None,
            position: DirectionPosition::At(-1),
            method: DirectionMethod::Mean,
            held_out: 0.0,
            test_pairs: vec![],
        }
    }

    /// How many pairs are held out: at least one if any are, and never all.
    fn held_out_pairs(&self) -> Result<usize, DirectionError> {
        let wrong = |what: String| Err(DirectionError::Question { what });
        if !(0.0..1.0).contains(&self.held_out) {
            return wrong(format!("the held-out fraction is at least 0 and less than 1, found {}", self.held_out));
        }
        let pairs = self.pairs.len();
        let held_out = (self.held_out * pairs as f64).ceil() as usize;
        if pairs == 0 || held_out >= pairs {
            let needs =
                if held_out > 0 { "two pairs of prompts, one of them to hold out" } else { "one pair of prompts" };
            return wrong(format!("a direction needs at least {needs}, and {pairs} were given"));
        }
        Ok(held_out)
    }
}

/// The direction of a layer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LayerDirection {
    /// The layer.
    pub layer: usize,
    /// The tensor's name.
    pub site: String,
    /// The vector: of the heads or units that were asked for.
    pub vector: Vec<f32>,
    /// Its length.
    pub norm: f64,
    /// Which part of the pairs' differences, squared, lies along it.
    pub share: f64,
    /// Where the prompts are told apart: their numbers, times the vector divided by its length, are greater in positive
    /// prompts. A step's `when` can have it as `above`.
    pub threshold: f64,
    /// How well it tells pairs of prompts apart that it was not made from, if there are any.
    #[serde(flatten)]
    pub separation: Option<Separation>,
}

/// The strengths at which [`Lm::direction_effects`] adds a direction.
pub const STRENGTHS: [f32; 3] = [0.5, 1.0, 2.0];

/// What a model writes with a direction added, or projected out.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DirectionEffect {
    /// What was done: `as it is`, `by 0.5`, `projected out`.
    pub name: String,
    /// The steps that do it; none for the model as it is.
    pub steps: Option<Interventions>,
    /// The text after the prompt.
    pub text: String,
}

/// The directions of some layers.
#[derive(Clone, Debug, PartialEq)]
pub struct Directions {
    /// By layer. One whose prompts do not differ there has only zeros.
    pub layers: Vec<LayerDirection>,
    /// From how many pairs they were made.
    pub pairs: usize,
    /// On how many others they were tested.
    pub held_out: usize,
    /// Which heads and units steps at these sites name.
    pub heads: Option<Vec<usize>>,
    /// Which units.
    pub units: Option<Vec<usize>>,
    /// The architecture that files name.
    pub model_hint: String,
}

impl Lm {
    /// Finds, in each of some layers, the direction that tells positive prompts from negative ones.
    ///
    /// ```no_run
    /// # use limpid::directions::DirectionQuestion;
    /// # let lm = limpid::Lm::open("runs/1")?;
    /// let pair = [lm.encode("I love this. I feel")?, lm.encode("I hate this. I feel")?];
    /// let found = lm.directions(&DirectionQuestion::new(vec![pair]))?;
    /// found.save("happy.gguf".as_ref())?; // for llama.cpp, and as a step: {"control_vector": "happy.gguf", "layer": 2}
    /// # Ok::<(), limpid::Error>(())
    /// ```
    ///
    /// # Errors
    /// If a site, layer, head, unit or position does not exist, a prompt cannot be run, there are too few pairs, the
    /// prompts do not differ, or an activation is NaN or infinite.
    pub fn directions(&self, question: &DirectionQuestion) -> Result<Directions> {
        self.directions_within(question, &Arc::default())
    }

    /// [`Lm::directions`] with a budget for the runs of the prompts.
    ///
    /// # Errors
    /// As there, and if the budget is spent.
    pub fn directions_within(&self, question: &DirectionQuestion, budget: &Arc<Budget>) -> Result<Directions> {
        let held_out = question.held_out_pairs()?;
        let named = Model::new(self.config(), Mode::Inspect { batch: 1, context: 1 })?;
        let sites = sites(&named, question)?;
        let mut rows: Vec<[Vec<Vec<f64>>; 2]> = vec![Default::default(); sites.len()];
        for pair in question.pairs.iter().chain(&question.test_pairs) {
            for (side, ids) in pair.iter().enumerate() {
                let mut run = self.trace_ids(ids, Keep::default())?;
                run.spend(budget);
                for ((_, site, shown), rows) in sites.iter().zip(&mut rows) {
                    let tensor = run.shared(&site.name)?;
                    let row = row(&tensor.values, tensor.shape[1], (question.position, shown))?;
                    if row.iter().any(|v| !v.is_finite()) {
                        return Err(Error::NotFinite { weight: self.damaged(&named)? });
                    }
                    rows[side].push(row);
                }
            }
        }
        let made = question.pairs.len() - held_out;
        let found = sites.into_iter().zip(rows).map(|((layer, site, _), [positive, negative])| {
            let found = FoundDirection::new(question.method, &positive[..made], &negative[..made]);
            let vector = found.vector.iter().map(|v| *v as f32).collect();
            let tested = positive.len() > made;
            let separation = tested.then(|| found.separation(&positive[made..], &negative[made..]));
            let (norm, share, threshold) = (found.norm(), found.share, found.threshold);
            LayerDirection { layer, site: site.name, vector, norm, share, threshold, separation }
        });
        let layers: Vec<LayerDirection> = found.collect();
        if layers.iter().all(|layer| layer.norm == 0.0) {
            return Err(DirectionError::Same { site: layers[0].site.clone() }.into());
        }
        let hint = self.checkpoint().and_then(|files| files.metadata.str("general.architecture").ok());
        let model_hint = hint.unwrap_or("limpid").to_string();
        let (heads, units) = (question.heads.clone(), question.units.clone());
        let held_out = held_out + question.test_pairs.len();
        Ok(Directions { layers, pairs: made, held_out, heads, units, model_hint })
    }

    /// What the model writes after a prompt: as it is, with a layer's direction added at [`STRENGTHS`], and with the
    /// direction projected out; each time the likeliest token, as many as the context has room for after the prompt.
    /// None where there is no room.
    ///
    /// # Errors
    /// If the prompt is empty or too long, or the model generates no text.
    pub fn direction_effects(
        &self,
        found: &Directions,
        layer: &LayerDirection,
        prompt: &[u32],
        max_tokens: usize,
    ) -> Result<Vec<DirectionEffect>> {
        let max_tokens = max_tokens.min(self.config().context_length.saturating_sub(prompt.len()));
        if max_tokens == 0 {
            return Ok(vec![]);
        }
        let options = Options { max_tokens, sampler: Sampler::GREEDY, ..Options::default() };
        let vector = || layer.vector.clone();
        let added = STRENGTHS.map(|by| (format!("by {by}"), Some(found.step(layer, vector()).by(by))));
        let (head, unit) = (found.heads.clone().map(Numbers::from), found.units.clone().map(Numbers::from));
        let out = Step { head, unit, ..Step::project_out(&layer.site, vector()) };
        let all = [("as it is".to_string(), None)].into_iter().chain(added);
        let all = all.chain([("projected out".to_string(), Some(out))]);
        let effect = |(name, step): (String, Option<Step>)| {
            let steps = step.map(|step| Interventions::new([step]));
            let changed = steps.as_ref().map(|steps| self.intervene(steps)).transpose()?;
            let text = changed.as_ref().unwrap_or(self).generate_events(prompt, &options, &mut |_| true)?.text;
            Ok(DirectionEffect { name, steps, text })
        };
        all.map(effect).collect()
    }
}

impl From<InterventionError> for DirectionError {
    /// The same words without the number of a step.
    fn from(error: InterventionError) -> DirectionError {
        let what = match error {
            InterventionError::Site { error, .. } => error.to_string(),
            InterventionError::Step { what, .. } | InterventionError::NoEffect { what, .. } => what,
            InterventionError::NotWritten { name, why, .. } => format!("`{name}` is no site of steps: {why}"),
            other => other.to_string(),
        };
        DirectionError::Question { what }
    }
}

/// The sites that are asked for: layer, tensor and columns.
fn sites(named: &Model, question: &DirectionQuestion) -> Result<Vec<(usize, StepSite, Vec<usize>)>, DirectionError> {
    let wrong = |what: String| Err(DirectionError::Question { what });
    let n_layer = named.config.n_layer;
    let name = |layer: usize| {
        let site = question.site.strip_prefix("hook_").unwrap_or(&question.site);
        let tries = [
            format!("blocks.{layer}.hook_{site}"),
            format!("blocks.{layer}.attn.hook_{site}"),
            format!("blocks.{layer}.mlp.hook_{site}"),
            format!("blocks.{layer}.{site}"),
        ];
        let known = tries.iter().find(|name| named.tensor(name).is_some());
        known.unwrap_or(&tries[if site.contains('.') { 3 } else { 0 }]).clone()
    };
    let whole = question.site.strip_prefix("blocks.").and_then(|rest| rest.split('.').next()?.parse::<usize>().ok());
    let layers = match (whole, &question.layers) {
        (Some(_), Some(_)) => return wrong(format!("`{}` names its layer: leave the layers out", question.site)),
        (Some(layer), None) => vec![(layer, question.site.clone())],
        (None, None) => (0..n_layer).map(|layer| (layer, name(layer))).collect(),
        (None, Some(layers)) => match layers.iter().find(|layer| **layer >= n_layer) {
            Some(layer) => {
                return wrong(format!("there is no layer {layer}: the model has {n_layer}, counted from 0"));
            }
            None => layers.iter().map(|layer| (*layer, name(*layer))).collect(),
        },
    };
    if layers.is_empty() {
        return wrong("the list of layers is empty".into());
    }
    let mut sites = vec![];
    for (layer, name) in layers {
        let site = StepSite::find(named, &name, 1)?;
        if site.is_pattern() {
            return wrong(format!("`{name}` has other sizes in each prompt: take `blocks.{layer}.attn.hook_z`"));
        }
        let shown = site.shown(question.heads.as_deref(), question.units.as_deref())?;
        sites.push((layer, site, shown));
    }
    Ok(sites)
}

/// What counts of a prompt's activations.
fn row(
    values: &[f32],
    tokens: usize,
    (position, shown): (DirectionPosition, &[usize]),
) -> Result<Vec<f64>, DirectionError> {
    let wide = values.len() / tokens;
    let at = |token: usize| shown.iter().map(move |i| f64::from(values[token * wide + i]));
    match position {
        DirectionPosition::Mean => {
            let mut sum = vec![0.0; shown.len()];
            (0..tokens).for_each(|token| sum.iter_mut().zip(at(token)).for_each(|(sum, v)| *sum += v));
            Ok(sum.into_iter().map(|sum| sum / tokens as f64).collect())
        }
        DirectionPosition::At(number) => match position_in(number, tokens).filter(|token| *token < tokens) {
            Some(token) => Ok(at(token).collect()),
            None => {
                let what = format!("there is no position {number}: a prompt has {}", plural(tokens, "token"));
                Err(DirectionError::Question { what })
            }
        },
    }
}

impl Directions {
    /// Those that are not zero.
    fn given(&self) -> impl Iterator<Item = &LayerDirection> {
        self.layers.iter().filter(|layer| layer.norm > 0.0)
    }

    /// The layer to steer in first: of those that have a direction the one that tells pairs apart best, the one nearest
    /// to the middle among equals.
    pub fn best(&self) -> Option<&LayerDirection> {
        let given: Vec<&LayerDirection> = self.given().collect();
        let accuracy = |one: &LayerDirection| one.separation.map_or(0.5, |found| found.accuracy);
        let from_middle = |n: usize| std::cmp::Reverse((2 * n).abs_diff(given.len() & !1));
        let order = |n: &usize| (accuracy(given[*n]), from_middle(*n));
        let best = (0..given.len()).max_by(|a, b| {
            let ((a, near), (b, nearer)) = (order(a), order(b));
            a.total_cmp(&b).then(near.cmp(&nearer))
        });
        best.map(|n| given[n])
    }

    /// A step that adds a layer's direction, which it takes from `add`.
    pub fn step(&self, layer: &LayerDirection, add: impl Into<Direction>) -> Step {
        let [head, unit] = [&self.heads, &self.units].map(|numbers| numbers.clone().map(Numbers::from));
        Step { head, unit, ..Step::steer(&layer.site, add) }
    }

    /// Steps that add each of them, with their numbers.
    pub fn steps(&self) -> Interventions {
        Interventions::new(self.given().map(|layer| self.step(layer, layer.vector.clone())))
    }

    /// As llama.cpp's control vector. It has no place for layer 0, whose direction is left out.
    ///
    /// # Errors
    /// If they are not of the whole residual stream after some layer that is not the first.
    pub fn control_vector(&self) -> Result<ControlVector, DirectionError> {
        let what = |what: String| DirectionError::File { what };
        if let Some(other) = self.layers.iter().find(|layer| !layer.site.ends_with(".hook_resid_post")) {
            let why = format!("a control vector is added to resid_post, and this is `{}`", other.site);
            return Err(what(format!("{why}: write a .safetensors or .json file")));
        }
        if self.heads.is_some() || self.units.is_some() {
            return Err(what("a control vector has all units: leave the units out, or write a .json file".into()));
        }
        let directions = self.given().filter(|layer| layer.layer > 0).map(|one| (one.layer, one.vector.clone()));
        let (directions, model_hint): (_, _) = (directions.collect(), self.model_hint.clone());
        let vector = ControlVector { model_hint, directions };
        if vector.directions.is_empty() {
            let why = "llama.cpp's control vectors have no place for layer 0";
            return Err(what(format!("{why}: give another layer, or write a .safetensors or .json file")));
        }
        Ok(vector)
    }

    /// Writes them by the end of the name: `.gguf` a control vector, `.safetensors` a tensor for each site, `.json` a
    /// list of steps.
    ///
    /// # Errors
    /// If the name ends otherwise, they do not fit into such a file, or it cannot be written.
    pub fn save(&self, path: &Path) -> Result<()> {
        match path.extension().and_then(|end| end.to_str()) {
            Some("gguf") => Ok(self.control_vector()?.write(path)?),
            Some("safetensors") => {
                let shapes: Vec<[usize; 1]> = self.given().map(|layer| [layer.vector.len()]).collect();
                let arrays = self.given().zip(&shapes).map(|(layer, shape)| NamedArray {
                    name: &layer.site,
                    axes: &["unit"],
                    shape,
                    values: &layer.vector,
                });
                Ok(write_arrays(path, &arrays.collect::<Vec<_>>())?)
            }
            Some("json") => Ok(write_text(path, &format!("{}\n", self.steps()))?),
            _ => {
                let what = format!("{} should end in .gguf, .safetensors or .json", path.display());
                Err(DirectionError::File { what }.into())
            }
        }
    }
}

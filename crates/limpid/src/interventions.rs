//! Interventions: changes of a run as data, a list of steps in JSON (docs/interventions.md).
//!
//! [`Interventions`] are parsed without a model. [`Lm::intervene`] checks them against one, runs the prompts that values come from, and returns a
//! model that applies them in every run. `trace::edits` explains how a run is changed.

use crate::Lm;
use crate::error::{Error, Result};
use crate::generate::{DecodeError, GenerateError};
use crate::model::{Mode, Model};
use crate::trace::edits::{ColumnChange, Edit, EditError, EditPositions, EditSite, Edits, WeightChange, position_in};
use crate::trace::layers::LayerTrace;
use crate::trace::{Labelled, TraceError};
use limpid_base::budget::Budget;
use limpid_base::nearest::nearest;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

mod files;

/// Bytes that tensors of a source run may take while they are read.
const SEEN: usize = 64 << 20;

/// The most heads, units, positions and keys that all steps of a list name: each is checked for every prompt.
const NUMBERS: usize = 1 << 17;

/// How deep sources with steps of their own may lie in each other.
const DEPTH: usize = 4;

/// Why a list of interventions cannot be used. Steps are counted from 1.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InterventionError {
    /// Text that is not a list of steps.
    #[error("interventions are a list of steps in JSON: {what}")]
    Form {
        /// What is wrong with it.
        what: String,
    },
    /// A step that is none.
    #[error("step {step}: {what}")]
    Step {
        /// Which.
        step: usize,
        /// What was expected, and what was found.
        what: String,
    },
    /// A file of a step that cannot be used.
    #[error("step {step}: {what}")]
    File {
        /// Which.
        step: usize,
        /// The file.
        path: PathBuf,
        /// What was expected, and what was found.
        what: String,
    },
    /// A step that names a file, where none is read.
    #[error("step {step} names the file {path:?}, and files are not read here: give its numbers as {instead}")]
    NoFiles {
        /// Which.
        step: usize,
        /// The file.
        path: PathBuf,
        /// How.
        instead: &'static str,
    },
    /// A step that does not fit the model or the prompt.
    #[error(transparent)]
    Edit(#[from] EditError),
}

/// What a step does, and what may stand beside that.
const KINDS: [(&str, &[&str]); 7] = [
    ("ablate", &["head", "unit", "pos", "with"]),
    ("patch", &["head", "unit", "pos", "from", "from_pos"]),
    ("scale", &["head", "unit", "pos", "key", "by"]),
    ("steer", &["head", "unit", "pos", "by", "add"]),
    ("set", &["head", "unit", "pos", "value", "row"]),
    ("freeze_attention", &["head", "from"]),
    ("control_vector", &["pos", "by", "layer"]),
];

/// A list of changes of a run.
///
/// ```
/// # use limpid::Interventions;
/// let silenced: Interventions = r#"[{"ablate": "blocks.0.attn.hook_z", "head": 1}]"#.parse()?;
/// let wrong = r#"[{"ablte": "blocks.0.attn.hook_z"}]"#.parse::<Interventions>().unwrap_err();
/// assert!(wrong.to_string().contains("did you mean `ablate`?"));
/// # Ok::<(), limpid::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Value", into = "Value")]
pub struct Interventions {
    given: Value,
    steps: Vec<Step>,
}

/// One step as it was written, each part of it read.
#[derive(Clone, Debug, PartialEq)]
struct Step {
    number: usize,
    what: What,
    heads: Option<Vec<usize>>,
    units: Option<Vec<usize>>,
    positions: Option<Positions>,
}

impl Step {
    /// How many steps it is with those of its source, and how many heads, units, positions and keys they name.
    fn size(&self) -> (usize, usize) {
        let count = |numbers: &Option<Vec<usize>>| numbers.as_ref().map_or(0, Vec::len);
        let positions = match &self.positions {
            Some(Positions::Named(EditPositions::These(listed))) => listed.len(),
            _ => 0,
        };
        let own = match &self.what {
            What::Change { how: How::Scale { keys, .. }, .. } => count(keys),
            What::Freeze { layers, .. } | What::ControlVector { layers, .. } => count(layers),
            What::Change { how: How::SetRow { row }, .. } => row.len(),
            What::Change { how: How::Patch { from_positions, .. }, .. } => from_positions.as_ref().map_or(0, Vec::len),
            _ => 0,
        };
        let own = count(&self.heads) + count(&self.units) + positions + own;
        let steps = self.source().and_then(|source| source.steps.as_ref());
        let (steps, numbers) = steps.map_or((0, 0), Interventions::size);
        (1 + steps, own + numbers)
    }

    /// The run that its values come from.
    fn source(&self) -> Option<&Source> {
        match &self.what {
            What::Freeze { from, .. } => Some(from),
            What::Change { how: How::Mean { of: from } | How::Patch { from, .. }, .. } => Some(from),
            What::Change { .. } | What::ControlVector { .. } => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
enum What {
    Change { site: String, how: How },
    Freeze { layers: Option<Vec<usize>>, from: Source },
    ControlVector { directions: LayerVectors, by: f32, layers: Option<Vec<usize>> },
}

/// A vector for each of some layers.
#[derive(Clone, Debug, PartialEq)]
enum LayerVectors {
    File(PathBuf),
    These(BTreeMap<usize, Vec<f32>>),
}

/// How a tensor changes.
#[derive(Clone, Debug, PartialEq)]
enum How {
    Zero,
    Mean { of: Source },
    Patch { from: Source, from_positions: Option<Vec<i64>> },
    Scale { by: f32, keys: Option<Vec<usize>> },
    Steer { by: f32, add: Direction },
    Set { value: Vec<f32> },
    SetRow { row: Vec<(usize, f32)> },
}

#[derive(Clone, Debug, PartialEq)]
enum Positions {
    Named(EditPositions),
    Token(String),
}

/// The run that activations are taken from, itself changed by steps if it likes.
#[derive(Clone, Debug, PartialEq)]
struct Source {
    text: SourceText,
    steps: Option<Interventions>,
}

#[derive(Clone, Debug, PartialEq)]
enum SourceText {
    Prompt(String),
    Tokens(Vec<u32>),
}

#[derive(Clone, Debug, PartialEq)]
enum Direction {
    Vector(Vec<f32>),
    File { path: PathBuf, tensor: Option<String> },
    Difference { of: [Source; 2], position: i64 },
}

impl FromStr for Interventions {
    type Err = Error;
    fn from_str(text: &str) -> Result<Interventions> {
        let form = |error: serde_json::Error| InterventionError::Form { what: error.to_string() };
        Interventions::new(serde_json::from_str(text).map_err(form)?)
    }
}

impl TryFrom<Value> for Interventions {
    type Error = Error;
    fn try_from(given: Value) -> Result<Interventions> {
        Interventions::new(given)
    }
}

impl From<Interventions> for Value {
    fn from(interventions: Interventions) -> Value {
        interventions.given
    }
}

impl fmt::Display for Interventions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.given.fmt(f)
    }
}

impl Interventions {
    /// A list of steps, or an object that has one as `do`, and a `name` if it likes.
    ///
    /// # Errors
    /// Names the step that is none, and what was expected.
    pub fn new(given: Value) -> Result<Interventions> {
        Interventions::nested(given, 0)
    }

    /// The steps of a source that lies so deep in others.
    fn nested(given: Value, depth: usize) -> Result<Interventions> {
        let form = |what: &str| Error::from(InterventionError::Form { what: what.into() });
        let list = match &given {
            Value::Object(object) => {
                if let Some(key) =
                    object.keys().find(|key| !["do", "name", "limpid_interventions"].contains(&key.as_str()))
                {
                    return Err(form(&format!("`{key}` is not `name` or `do`")));
                }
                if object.get("limpid_interventions").is_some_and(|version| *version != 1) {
                    return Err(form("`limpid_interventions` is 1, the only version there is"));
                }
                if object.get("name").is_some_and(|name| !name.is_string()) {
                    return Err(form("`name` is a text"));
                }
                object.get("do").ok_or_else(|| form("the object has no `do`"))?
            }
            list => list,
        };
        let list = list.as_array().ok_or_else(|| form("found no list"))?;
        if list.is_empty() {
            return Err(form("the list is empty"));
        }
        let too_many = |found| form(&format!("a list has at most {}, found {found}", Interventions::MOST_STEPS));
        if list.len() > Interventions::MOST_STEPS {
            return Err(too_many(list.len()));
        }
        let (mut steps, mut size) = (vec![], (0, 0));
        for (n, step) in list.iter().enumerate() {
            let step = Fields::new((n + 1, depth), step)?.step()?;
            let (more, numbers) = step.size();
            size = (size.0 + more, size.1 + numbers);
            if size.0 > Interventions::MOST_STEPS {
                return Err(too_many(size.0));
            }
            if size.1 > NUMBERS {
                let most = format!("all steps together name at most {NUMBERS} heads, units, positions and keys");
                return Err(form(&format!("{most}: give \"all\", \"prompt\" or \"generated\", or fewer")));
            }
            steps.push(step);
        }
        Ok(Interventions { steps, given })
    }

    fn size(&self) -> (usize, usize) {
        self.steps.iter().map(Step::size).fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1))
    }

    /// The most steps that a list has, with those of its sources.
    pub const MOST_STEPS: usize = 256;

    /// How many steps it has.
    pub fn steps(&self) -> usize {
        self.steps.len()
    }

    /// As it was given.
    pub fn json(&self) -> &Value {
        &self.given
    }
}

/// The fields of a step.
struct Fields<'a> {
    number: usize,
    /// How many sources it lies in.
    depth: usize,
    kind: &'static str,
    given: &'a Map<String, Value>,
}

type Read<T> = Result<T, InterventionError>;

impl<'a> Fields<'a> {
    fn new((number, depth): (usize, usize), step: &'a Value) -> Read<Fields<'a>> {
        let wrong = |what| Err(InterventionError::Step { step: number, what });
        let Some(given) = step.as_object() else { return wrong(format!("expected an object, found {step}")) };
        let kinds: Vec<&(&str, &[&str])> = KINDS.iter().filter(|(kind, _)| given.contains_key(*kind)).collect();
        let all = KINDS.map(|(kind, _)| kind);
        let [(kind, beside)] = kinds[..] else {
            let found: Vec<&str> = kinds.iter().map(|kind| kind.0).collect();
            let near = given.keys().find_map(|key| nearest(key, all));
            let hint =
                near.filter(|_| found.is_empty()).map_or(String::new(), |near| format!("; did you mean `{near}`?"));
            return wrong(format!(
                "a step is one of {}, found {}{hint}",
                all.join(", "),
                match found.len() {
                    0 => "none of them".to_string(),
                    _ => found.join(" and "),
                }
            ));
        };
        if let Some(key) = given.keys().find(|key| *key != kind && !beside.contains(&key.as_str())) {
            let near =
                nearest(key, beside.iter().copied()).map_or(String::new(), |near| format!(": did you mean `{near}`?"));
            return wrong(format!("`{key}` does not belong to `{kind}`, which takes {}{near}", beside.join(", ")));
        }
        Ok(Fields { number, depth, kind, given })
    }

    fn wrong<T>(&self, key: &str, expected: &str) -> Read<T> {
        let found = self.given.get(key).map_or("nothing".to_string(), Value::to_string);
        Err(InterventionError::Step { step: self.number, what: format!("`{key}` is {expected}; found {found}") })
    }

    /// What `read` makes of the value of a key, if it is given.
    fn optional<T>(&self, key: &str, expected: &str, read: impl FnOnce(&Value) -> Option<T>) -> Read<Option<T>> {
        self.given.get(key).map(|value| read(value).map_or_else(|| self.wrong(key, expected), Ok)).transpose()
    }

    /// The same of a key that must be given.
    fn needed<T>(&self, key: &str, expected: &str, read: impl FnOnce(&Value) -> Option<T>) -> Read<T> {
        self.given.get(key).and_then(read).map_or_else(|| self.wrong(key, expected), Ok)
    }

    fn step(&self) -> Read<Step> {
        let heads = self.numbers("head")?;
        let (units, positions) = (self.numbers("unit")?, self.positions()?);
        Ok(Step { number: self.number, what: self.what()?, heads, units, positions })
    }

    fn what(&self) -> Read<What> {
        if self.kind == "freeze_attention" {
            let layers = |value: &Value| match value {
                Value::String(all) if all == "all" => Some(None),
                Value::Object(object) if object.len() == 1 => Some(Some(whole_numbers(object.get("layer")?)?)),
                _ => None,
            };
            let layers = self.needed(self.kind, "\"all\" or {\"layer\": [numbers]}", layers)?;
            let layers = layers.map(|layers| self.once("layer", layers)).transpose()?;
            return Ok(What::Freeze { layers, from: self.source("from")? });
        }
        if self.kind == "control_vector" {
            let directions = self.layer_vectors()?;
            return Ok(What::ControlVector {
                directions,
                by: self.number("by", Some(1.0))?,
                layers: self.numbers("layer")?,
            });
        }
        let Some(site) = self.given.get(self.kind).and_then(Value::as_str).map(String::from) else {
            return self.wrong(self.kind, "the name of a tensor, such as \"blocks.0.attn.hook_z\"");
        };
        let how = match self.kind {
            "ablate" => match self.given.get("with") {
                None => How::Zero,
                Some(Value::String(zero)) if zero == "zero" => How::Zero,
                Some(Value::Object(with)) if with.len() == 1 && with.contains_key("mean_of") => {
                    How::Mean { of: self.source_of("with", &with["mean_of"])? }
                }
                Some(_) => self.wrong("with", "\"zero\" or {\"mean_of\": {\"prompt\": \"...\"}}")?,
            },
            "patch" => {
                let expected = "a number, a list of them, or a range such as \"2..5\"";
                let from_positions = self.optional("from_pos", expected, integers)?;
                How::Patch { from: self.source("from")?, from_positions }
            }
            "scale" => How::Scale { by: self.number("by", None)?, keys: self.numbers("key")? },
            "steer" => How::Steer { by: self.number("by", Some(1.0))?, add: self.direction()? },
            _ => match (self.given.get("value"), self.given.get("row")) {
                (Some(_), None) => {
                    How::Set { value: self.needed("value", "a finite number or a list of them", floats)? }
                }
                (None, Some(_)) => How::SetRow { row: self.row()? },
                _ => self.wrong("value", "given, or `row` for attention weights, not both")?,
            },
        };
        Ok(What::Change { site, how })
    }

    fn number(&self, key: &str, default: Option<f32>) -> Read<f32> {
        let expected = "a finite number";
        let given = self.optional(key, expected, finite)?;
        given.or(default).map_or_else(|| self.wrong(key, expected), Ok)
    }

    fn numbers(&self, key: &str) -> Read<Option<Vec<usize>>> {
        let found = self.optional(key, "a whole number, a list of them, or a range such as \"2..5\"", whole_numbers)?;
        found.map(|numbers| self.once(key, numbers)).transpose()
    }

    /// A list that names each number once.
    fn once<T: Ord + Copy + fmt::Display>(&self, key: &str, numbers: Vec<T>) -> Read<Vec<T>> {
        let mut known = BTreeSet::new();
        match numbers.iter().find(|n| !known.insert(**n)) {
            Some(n) => Err(InterventionError::Step { step: self.number, what: format!("`{key}` names {n} twice") }),
            None => Ok(numbers),
        }
    }

    fn positions(&self) -> Read<Option<Positions>> {
        let expected = "a number, a list of them, a range such as \"2..5\", \"all\", \"prompt\", \"generated\" or {\"token\": \" word\"}";
        self.optional("pos", expected, |value| match value {
            Value::String(name) if name == "all" => Some(Positions::Named(EditPositions::All)),
            Value::String(name) if name == "prompt" => Some(Positions::Named(EditPositions::Prompt)),
            Value::String(name) if name == "generated" => Some(Positions::Named(EditPositions::Generated)),
            Value::Object(object) if object.len() == 1 => {
                let token = object.get("token")?.as_str().filter(|token| !token.is_empty())?;
                Some(Positions::Token(token.into()))
            }
            value => integers(value).map(|listed| Positions::Named(EditPositions::These(listed))),
        })
    }

    fn source(&self, key: &str) -> Read<Source> {
        self.given.get(key).map_or_else(|| self.wrong(key, SOURCE), |value| self.source_of(key, value))
    }

    fn source_of(&self, key: &str, value: &Value) -> Read<Source> {
        let object = value.as_object().filter(|object| object.len() == 1 + usize::from(object.contains_key("do")));
        let Some(object) = object else { return self.wrong(key, SOURCE) };
        let ids = |value: &Value| value.as_array()?.iter().map(|id| u32::try_from(id.as_u64()?).ok()).collect();
        let text = match (object.get("prompt").and_then(Value::as_str), object.get("tokens").and_then(ids)) {
            (Some(prompt), _) => SourceText::Prompt(prompt.into()),
            (_, Some(tokens)) => SourceText::Tokens(tokens),
            _ => return self.wrong(key, SOURCE),
        };
        let step = |what: String| InterventionError::Step { step: self.number, what };
        let steps = match object.get("do") {
            None => None,
            Some(_) if self.depth == DEPTH => {
                return Err(step(format!("sources with steps lie at most {DEPTH} deep in each other")));
            }
            Some(list) => Some(Interventions::nested(list.clone(), self.depth + 1).map_err(|e| step(of_source(&e)))?),
        };
        Ok(Source { text, steps })
    }

    fn direction(&self) -> Read<Direction> {
        let expected = "{\"vector\": [numbers]}, {\"file\": \"NAME.gguf\"} or {\"difference\": [\"one prompt\", \"another\"], \"pos\": -1}";
        let prompt = |value: &Value| Some(Source { text: SourceText::Prompt(value.as_str()?.into()), steps: None });
        self.needed("add", expected, |add| {
            let object = add.as_object()?;
            let is_known = |keys: &[&str]| object.keys().all(|key| keys.contains(&key.as_str()));
            if let Some(file) = object.get("file") {
                let path = file.as_str().filter(|_| is_known(&["file", "tensor"]))?.into();
                let tensor = match object.get("tensor") {
                    Some(tensor) => Some(tensor.as_str()?.into()),
                    None => None,
                };
                return Some(Direction::File { path, tensor });
            }
            match (object.get("vector").and_then(floats), object.get("difference").and_then(Value::as_array)) {
                (Some(vector), None) if is_known(&["vector"]) => Some(Direction::Vector(vector)),
                (None, Some(pair)) if is_known(&["difference", "pos"]) && pair.len() == 2 => {
                    let position = object.get("pos").map_or(Some(-1), Value::as_i64)?;
                    Some(Direction::Difference { of: [prompt(&pair[0])?, prompt(&pair[1])?], position })
                }
                _ => None,
            }
        })
    }

    /// The file of a control vector, or the numbers in it.
    fn layer_vectors(&self) -> Read<LayerVectors> {
        let expected = "the name of a GGUF file, or {\"1\": [numbers], ...}, a vector for each layer";
        let vector = |(layer, values): (&String, &Value)| Some((layer.parse().ok()?, floats(values)?));
        self.needed(self.kind, expected, |value| match value {
            Value::String(file) if !file.is_empty() => Some(LayerVectors::File(file.into())),
            Value::Object(layers) if !layers.is_empty() => {
                let read: BTreeMap<usize, Vec<f32>> = layers.iter().map(vector).collect::<Option<_>>()?;
                (read.len() == layers.len()).then_some(LayerVectors::These(read)) // "1" and "01"
            }
            _ => None,
        })
    }

    fn row(&self) -> Read<Vec<(usize, f32)>> {
        let weight = |(key, value): (&String, &Value)| Some((key.parse().ok()?, finite(value)?));
        let expected = "a weight for each key, such as {\"0\": 0.5, \"2\": 0.5}";
        let read = |row: &Value| row.as_object().filter(|row| !row.is_empty())?.iter().map(weight).collect();
        let row: Vec<(usize, f32)> = self.needed("row", expected, read)?;
        self.once("row", row.iter().map(|(key, _)| *key).collect()).map(|_| row) // "0" and "00"
    }
}

/// What a source looks like.
const SOURCE: &str =
    "{\"prompt\": \"...\"} or {\"tokens\": [ids]}, with steps of its own as \"do\" if it is changed too";

/// What is wrong with the source of a step.
fn of_source(error: &Error) -> String {
    format!("its source: {error}")
}

fn finite(value: &Value) -> Option<f32> {
    value.as_f64().map(|v| v as f32).filter(|v| v.is_finite())
}

fn floats(value: &Value) -> Option<Vec<f32>> {
    match value {
        Value::Array(list) if !list.is_empty() => list.iter().map(finite).collect(),
        one => Some(vec![finite(one)?]),
    }
}

/// A number, a list of numbers, or a range `2..5`, which ends before 5 and has no more numbers than a list may name.
fn integers(value: &Value) -> Option<Vec<i64>> {
    match value {
        Value::Array(list) => list.iter().map(Value::as_i64).collect(),
        Value::String(range) => {
            let (from, to) = range.split_once("..")?;
            let (from, to): (i64, i64) = (from.trim().parse().ok()?, to.trim().parse().ok()?);
            (from < to && to.saturating_sub(from) <= NUMBERS as i64).then(|| (from..to).collect())
        }
        one => Some(vec![one.as_i64()?]),
    }
}

fn whole_numbers(value: &Value) -> Option<Vec<usize>> {
    integers(value)?.into_iter().map(|n| usize::try_from(n).ok()).collect()
}

/// The steps of a list held against a model, one after another.
pub(crate) struct Resolver {
    /// Without interventions.
    lm: Lm,
    named: Model,
    /// Runs of sources, by their tokens and steps.
    runs: HashMap<(Vec<u32>, String), LayerTrace>,
    budget: Arc<Budget>,
}

impl Resolver {
    pub(crate) fn new(lm: &Lm, budget: &Arc<Budget>) -> Result<Resolver> {
        let named = Model::new(lm.config(), Mode::Inspect { batch: 1, context: 1 })?;
        Ok(Resolver { lm: lm.without_interventions(), named, runs: HashMap::new(), budget: budget.clone() })
    }

    /// The changes that the steps are on this model. Prompts are run that they take activations from.
    pub(crate) fn edits(&mut self, interventions: &Interventions) -> Result<Edits> {
        let mut all: Vec<Edit> = vec![];
        for step in &interventions.steps {
            let edits = self.step(step).map_err(|error| match error {
                // what is wrong with a prompt is wrong with the step that names it
                Error::TooLong { .. } | Error::Empty | Error::Generate(_) | Error::NoTokenizer => {
                    InterventionError::Step { step: step.number, what: of_source(&error) }.into()
                }
                other => other,
            })?;
            let edits: Edits = edits.into_iter().collect();
            self.take(edits.bytes())?;
            all.extend(edits.iter().cloned());
        }
        Ok(all.into_iter().collect())
    }

    /// Takes memory from the budget, and asks whether there is time.
    fn take(&self, bytes: usize) -> Result<()> {
        let taken = self.budget.take_bytes(bytes as u64).and_then(|()| self.budget.take_steps(1));
        taken.map_err(|why| TraceError::Spent { what: "the interventions".into(), why }.into())
    }

    fn step(&mut self, step: &Step) -> Result<Vec<Edit>> {
        let number = step.number;
        let positions = match &step.positions {
            None => EditPositions::All,
            Some(Positions::Named(positions)) => positions.clone(),
            Some(Positions::Token(text)) => EditPositions::Token(self.lm.tokenizer()?.encode(text)?),
        };
        let wrong = |what: String| Error::from(InterventionError::Step { step: number, what });
        let (name, how) = match &step.what {
            What::Freeze { layers, from } => return self.freeze(step, layers.as_deref(), from),
            What::ControlVector { directions, by, layers } => {
                return self.control_vector((number, directions), *by, (layers.as_deref(), positions));
            }
            What::Change { site, how } => (site, how),
        };
        let site = EditSite::find(&self.named, name, number)?;
        if site.is_pattern() {
            return self.weights((step, how), &site, positions);
        }
        let shown = site.shown(step.heads.as_deref(), step.units.as_deref())?;
        let change = match how {
            How::Zero => ColumnChange::Set(vec![0.0; shown.len()].into()),
            How::Scale { keys: Some(_), .. } => return Err(wrong(format!("`{name}` has no keys: leave `key` out"))),
            How::Scale { by, .. } => ColumnChange::Scale(*by),
            How::Set { value, .. } if value.len() == 1 => {
                ColumnChange::Set(site.unstretched(vec![value[0]; shown.len()]).into())
            }
            How::Set { value, .. } => ColumnChange::Set(site.unstretched(value.iter().copied()).into()),
            How::Mean { of, .. } => {
                let rows = self.rows((number, of), (site.tensor(), &shown))?;
                let mean = |i: usize| rows.iter().map(|row| f64::from(row[i])).sum::<f64>() / rows.len() as f64;
                ColumnChange::Set((0..shown.len()).map(|i| mean(i) as f32).collect())
            }
            How::Steer { by, add, .. } => {
                let vector = self.direction((number, add), (&site, &shown))?;
                ColumnChange::Add(vector.into_iter().map(|v| v * by).collect())
            }
            How::Patch { from, from_positions: None, .. } => {
                ColumnChange::SetFrom(self.rows((number, from), (site.tensor(), &shown))?.into())
            }
            How::Patch { from, from_positions: Some(sources), .. } => {
                let rows = self.rows((number, from), (site.tensor(), &shown))?;
                let EditPositions::These(targets) = &positions else {
                    return Err(wrong("`from_pos` needs `pos` to be a number or a list of as many".into()));
                };
                if sources.len() != targets.len() && sources.len() != 1 {
                    let counts = format!("{} and {}", sources.len(), targets.len());
                    return Err(wrong(format!("`from_pos` and `pos` have {counts} positions: give as many of both")));
                }
                let each = targets.iter().zip(sources.iter().cycle());
                let each = each.map(|(_, source)| row_at(&rows, *source, number).cloned());
                ColumnChange::SetEach(each.collect::<Result<_>>()?)
            }
            How::SetRow { .. } => return Err(wrong(format!("`{name}` has no keys: give `value` in place of `row`"))),
        };
        Ok(vec![site.edit(&shown, positions, change)?])
    }

    /// A step that changes weights of attention.
    fn weights(&mut self, (step, how): (&Step, &How), site: &EditSite, positions: EditPositions) -> Result<Vec<Edit>> {
        let wrong = |what: String| Error::from(InterventionError::Step { step: step.number, what });
        if step.units.is_some() {
            return Err(wrong(format!("`{}` has heads and no units: leave `unit` out", site.name)));
        }
        let change = match how {
            How::Zero => WeightChange::Scale(0.0, None),
            How::Scale { by, keys, .. } => WeightChange::Scale(*by, keys.as_deref().map(Arc::from)),
            How::SetRow { row, .. } => WeightChange::Set(row.as_slice().into()),
            How::Patch { from, from_positions: None, .. } => {
                WeightChange::From(self.tensor((step.number, from), &site.name)?)
            }
            _ => {
                let allowed = "`ablate`, `scale`, `set` with `row`, or `patch` without `from_pos`";
                return Err(wrong(format!("weights of attention change by {allowed}")));
            }
        };
        Ok(vec![site.edit_weights(step.heads.as_deref(), positions, change)?])
    }

    /// The weights of attention of another run in some layers.
    fn freeze(&mut self, step: &Step, layers: Option<&[usize]>, from: &Source) -> Result<Vec<Edit>> {
        let n_layer = self.lm.config().n_layer;
        let all: Vec<usize> = layers.map_or_else(|| (0..n_layer).collect(), <[usize]>::to_vec);
        let mut edits = vec![];
        for layer in all {
            if layer >= n_layer {
                let what = format!("there is no layer {layer}: the model has {n_layer}, counted from 0");
                return Err(InterventionError::Step { step: step.number, what }.into());
            }
            let name = format!("blocks.{layer}.attn.hook_pattern");
            let site = EditSite::find(&self.named, &name, step.number)?;
            let change = WeightChange::From(self.tensor((step.number, from), &name)?);
            edits.push(site.edit_weights(step.heads.as_deref(), EditPositions::Prompt, change)?);
        }
        Ok(edits)
    }

    /// Vectors that are added to the stream after some layers.
    fn control_vector(
        &self,
        (step, directions): (usize, &LayerVectors),
        by: f32,
        (layers, positions): (Option<&[usize]>, EditPositions),
    ) -> Result<Vec<Edit>> {
        let directions = match directions {
            LayerVectors::These(directions) => directions,
            LayerVectors::File(path) => {
                let (path, instead) = (path.clone(), "{\"1\": [numbers], ...}, a vector for each layer");
                return Err(InterventionError::NoFiles { step, path, instead }.into());
            }
        };
        let wrong = |what| InterventionError::Step { step, what };
        let chosen = files::chosen(directions, layers, self.lm.config().n_layer).map_err(wrong)?;
        let edits = chosen.into_iter().map(|(layer, vector)| {
            let site = EditSite::find(&self.named, &format!("blocks.{layer}.hook_resid_post"), step)?;
            let change = ColumnChange::Add(vector.iter().map(|v| v * by).collect());
            Ok(site.edit(&site.shown(None, None)?, positions.clone(), change)?)
        });
        edits.collect()
    }

    /// A tensor of the run of a source.
    fn tensor(&mut self, (step, source): (usize, &Source), name: &str) -> Result<Arc<Labelled>> {
        let ids = match &source.text {
            SourceText::Prompt(text) => self.lm.encode(text)?,
            SourceText::Tokens(ids) => ids.clone(),
        };
        let vocab_size = self.lm.config().vocab_size;
        if let Some((index, id)) = ids.iter().enumerate().find(|(_, id)| **id as usize >= vocab_size) {
            return Err(GenerateError::from(DecodeError::Token { id: *id, index, vocab_size }).into());
        }
        let key = (ids, source.steps.as_ref().map(Interventions::to_string).unwrap_or_default());
        let run = match self.runs.remove(&key) {
            Some(run) => run,
            None => self.begin(&key.0, source.steps.as_ref()).map_err(|error| match error {
                Error::Intervention(_) => InterventionError::Step { step, what: of_source(&error) }.into(),
                other => other,
            })?,
        };
        Ok(self.runs.entry(key).or_insert(run).get(name)?)
    }

    fn begin(&mut self, ids: &[u32], steps: Option<&Interventions>) -> Result<LayerTrace> {
        let edits = steps.map(|steps| self.edits(steps)).transpose()?;
        if (1..=self.lm.config().context_length).contains(&ids.len()) {
            self.take(self.lm.layer_bytes(ids.len())? + self.lm.shown_bytes(ids.len())?.min(SEEN))?;
        }
        let mut run = self.lm.trace_layers_with(ids, edits.map(Arc::new), SEEN)?;
        run.spend(&self.budget);
        Ok(run)
    }

    /// Some columns of it, position by position.
    fn rows(&mut self, source: (usize, &Source), (name, shown): (&str, &[usize])) -> Result<Vec<Arc<[f32]>>> {
        let tensor = self.tensor(source, name)?;
        let (tokens, wide) = (tensor.shape[1], tensor.values.len() / tensor.shape[1].max(1));
        let row = |at: usize| shown.iter().map(|i| tensor.values[at * wide + i]).collect();
        Ok((0..tokens).map(row).collect())
    }

    /// What is added to some columns of a site.
    fn direction(
        &mut self,
        (step, add): (usize, &Direction),
        (site, shown): (&EditSite, &[usize]),
    ) -> Result<Vec<f32>> {
        let of = (site.tensor(), shown);
        match add {
            Direction::Vector(vector) => Ok(site.unstretched(vector.iter().copied())),
            Direction::File { path, .. } => {
                let (path, instead) = (path.clone(), "{\"vector\": [numbers]}");
                Err(InterventionError::NoFiles { step, path, instead }.into())
            }
            Direction::Difference { of: [a, b], position } => {
                let [a, b] = [self.rows((step, a), of)?, self.rows((step, b), of)?];
                let [a, b] = [row_at(&a, *position, step)?, row_at(&b, *position, step)?];
                Ok(a.iter().zip(b.iter()).map(|(a, b)| a - b).collect())
            }
        }
    }
}

/// The row of a position; negative ones are counted from the end.
fn row_at(rows: &[Arc<[f32]>], at: i64, step: usize) -> Result<&Arc<[f32]>> {
    position_in(at, rows.len()).and_then(|place| rows.get(place)).ok_or_else(|| {
        let what = format!("the source has {} tokens and no position {at}", rows.len());
        InterventionError::Step { step, what }.into()
    })
}

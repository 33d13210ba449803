//! Interventions as they are asked for: steps with names, numbers and prompts, not yet resolved against a model. JSON
//! is their serde form.

use super::InterventionError;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use std::path::PathBuf;

/// The most heads, units, positions and keys that all steps of a list name: each is checked for every prompt.
pub(super) const MOST_NUMBERS: usize = 1 << 17;

/// How deep sources with steps of their own may lie in each other.
const DEPTH: usize = 4;

/// What a step does, and which fields may stand beside that.
pub(super) const KINDS: [(&str, &[&str]); 8] = [
    ("ablate", &["head", "unit", "pos", "when", "with"]),
    ("patch", &["head", "unit", "pos", "when", "from", "from_pos"]),
    ("scale", &["head", "unit", "pos", "when", "key", "by"]),
    ("steer", &["head", "unit", "pos", "when", "by", "add"]),
    ("project_out", &["head", "unit", "pos", "when", "direction", "keep_norm"]),
    ("set", &["head", "unit", "pos", "when", "value", "row"]),
    ("freeze_attention", &["head", "from"]),
    ("control_vector", &["pos", "when", "by", "layer"]),
];

/// A list of steps that change a run.
///
/// ```
/// # use limpid_trace::interventions::{Interventions, Step};
/// let steps = Interventions::new([
///     Step::ablate("blocks.0.attn.hook_z").head(1),
///     Step::steer("blocks.1.hook_resid_post", vec![0.5; 768]).by(4.0).pos(-1),
/// ]);
/// let read: Interventions = r#"[{"ablate": "blocks.0.attn.hook_z", "head": 1}]"#.parse()?;
/// assert_eq!(read.steps[0], steps.steps[0]);
/// let wrong = r#"[{"ablte": "blocks.0.attn.hook_z"}]"#.parse::<Interventions>().unwrap_err();
/// assert!(wrong.to_string().contains("did you mean `ablate`?"));
/// # Ok::<(), limpid_trace::interventions::InterventionError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "Value")]
pub struct Interventions {
    /// What the list is called.
    pub name: Option<String>,
    /// The steps, in their order.
    pub steps: Vec<Step>,
}

/// One step: what it does to a tensor, and to which of its numbers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Step {
    /// What it does.
    #[serde(flatten)]
    pub action: Action,
    /// Only these heads, where the tensor has heads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head: Option<Numbers>,
    /// Only these columns, where it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unit: Option<Numbers>,
    /// Only these positions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pos: Option<Positions>,
    /// Only where this holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub when: Option<Condition>,
}

/// Where a step applies, besides its positions: it is asked at each of them, as the step finds the run there.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
#[allow(missing_docs)] // as in JSON
pub enum Condition {
    /// Where the token at the position is one of these, in the prompt or generated.
    Token {
        #[serde(serialize_with = "one_or_more")]
        token: Vec<String>,
    },
    /// Where what the step is about to change, times the direction of length 1, is above the number.
    Above {
        probe: Direction,
        #[serde(serialize_with = "number")]
        above: f32,
    },
    /// Where it is below the number.
    Below {
        probe: Direction,
        #[serde(serialize_with = "number")]
        below: f32,
    },
}

/// What a step does. `site` is the name of a tensor, such as `blocks.0.attn.hook_z`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
#[allow(missing_docs)] // fields of one meaning: docs/interventions.md
pub enum Action {
    /// Sets it to zero.
    Zero {
        #[serde(rename = "ablate")]
        site: String,
    },
    /// Sets it to its mean over the positions of another run.
    Mean {
        #[serde(rename = "ablate")]
        site: String,
        #[serde(rename = "with", serialize_with = "mean_of")]
        of: Source,
    },
    /// Takes the values of another run: at the same positions, or from these.
    Patch {
        #[serde(rename = "patch")]
        site: String,
        from: Source,
        #[serde(skip_serializing_if = "Option::is_none")]
        from_pos: Option<Numbers>,
    },
    /// Multiplies it; of attention weights, those of these keys.
    Scale {
        #[serde(rename = "scale")]
        site: String,
        #[serde(serialize_with = "number")]
        by: f32,
        #[serde(skip_serializing_if = "Option::is_none")]
        key: Option<Numbers>,
    },
    /// Adds a direction, times a factor.
    Steer {
        #[serde(rename = "steer")]
        site: String,
        #[serde(serialize_with = "number")]
        by: f32,
        add: Direction,
    },
    /// Takes out what lies along a direction; with `keep_norm` what is left is then as long as it was before.
    ProjectOut {
        #[serde(rename = "project_out")]
        site: String,
        direction: Direction,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        keep_norm: bool,
    },
    /// Sets numbers: one for all, or one for each.
    Set {
        #[serde(rename = "set")]
        site: String,
        #[serde(serialize_with = "numbers")]
        value: Vec<f32>,
    },
    /// Sets the attention weights of a query; keys that are not listed get 0.
    SetRow {
        #[serde(rename = "set")]
        site: String,
        #[serde(serialize_with = "weights")]
        row: BTreeMap<usize, f32>,
    },
    /// Takes the attention weights of another run, in some layers or all.
    FreezeAttention {
        #[serde(rename = "freeze_attention", serialize_with = "layers")]
        layer: Option<Numbers>,
        from: Source,
    },
    /// Adds a vector to the residual stream after some layers or all that have one, times a factor.
    ControlVector {
        control_vector: LayerVectors,
        #[serde(serialize_with = "number")]
        by: f32,
        #[serde(skip_serializing_if = "Option::is_none")]
        layer: Option<Numbers>,
    },
}

/// Whole numbers: one, a list, or a range. What is counted from an end can be negative.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Numbers {
    /// One.
    One(i64),
    /// Each of a list.
    List(Vec<i64>),
    /// From the first to the one before the last.
    #[serde(serialize_with = "range")]
    Range(Range<i64>),
}

/// Positions of a sequence.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Positions {
    /// All.
    All,
    /// Those of the prompt.
    Prompt,
    /// Those that are generated after it.
    Generated,
    /// Wherever the prompt has this token.
    Token(String),
    /// These, counted from 0 or, if negative, from the end of the prompt.
    #[serde(untagged)]
    These(Numbers),
}

/// The run that activations are taken from, which can itself be changed by steps.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Source {
    /// Its prompt.
    #[serde(flatten)]
    pub text: SourceText,
    /// What changes it.
    #[serde(rename = "do", skip_serializing_if = "Option::is_none")]
    pub steps: Option<Interventions>,
}

/// A prompt.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SourceText {
    /// As text.
    Prompt(String),
    /// As tokens.
    Tokens(Vec<u32>),
}

/// A vector that is added to a tensor, taken out of it or compared with it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
#[allow(missing_docs)] // as in JSON
pub enum Direction {
    /// These numbers.
    Vector {
        #[serde(serialize_with = "numbers")]
        vector: Vec<f32>,
    },
    /// Those of a file: of the tensor that is named, or that has the site's name.
    File {
        file: PathBuf,
        #[serde(skip_serializing_if = "Option::is_none")]
        tensor: Option<String>,
    },
    /// The first prompt's values less the second's, at a position, the last one without it.
    Difference {
        difference: [String; 2],
        #[serde(skip_serializing_if = "Option::is_none")]
        pos: Option<i64>,
    },
}

/// A vector for each of some layers.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum LayerVectors {
    /// In a GGUF file.
    File(PathBuf),
    /// These.
    #[serde(serialize_with = "vectors")]
    These(BTreeMap<usize, Vec<f32>>),
}

// ---- building

impl Interventions {
    /// The most steps that a list has, with those of its sources.
    pub const MOST_STEPS: usize = 256;

    /// These steps.
    pub fn new(steps: impl IntoIterator<Item = Step>) -> Interventions {
        Interventions { name: None, steps: steps.into_iter().collect() }
    }
}

impl From<Action> for Step {
    fn from(action: Action) -> Step {
        Step { action, head: None, unit: None, pos: None, when: None }
    }
}

impl Step {
    /// Sets a tensor to zero.
    pub fn ablate(site: impl Into<String>) -> Step {
        Action::Zero { site: site.into() }.into()
    }

    /// Sets a tensor to its mean over the positions of another run.
    pub fn mean(site: impl Into<String>, of: Source) -> Step {
        Action::Mean { site: site.into(), of }.into()
    }

    /// Takes the values of another run, at the same positions or at [`Step::from_pos`].
    pub fn patch(site: impl Into<String>, from: Source) -> Step {
        Action::Patch { site: site.into(), from, from_pos: None }.into()
    }

    /// Multiplies a tensor, or the attention weights of some keys ([`Step::key`]).
    pub fn scale(site: impl Into<String>, by: f32) -> Step {
        Action::Scale { site: site.into(), by, key: None }.into()
    }

    /// Adds a direction, times [`Step::by`].
    pub fn steer(site: impl Into<String>, add: impl Into<Direction>) -> Step {
        Action::Steer { site: site.into(), by: 1.0, add: add.into() }.into()
    }

    /// Takes out what lies along a direction.
    pub fn project_out(site: impl Into<String>, direction: impl Into<Direction>) -> Step {
        Action::ProjectOut { site: site.into(), direction: direction.into(), keep_norm: false }.into()
    }

    /// Sets numbers: one for all, or one for each.
    pub fn set(site: impl Into<String>, value: impl Into<Vec<f32>>) -> Step {
        Action::Set { site: site.into(), value: value.into() }.into()
    }

    /// Sets the attention weights of a query, key by key; the other keys get 0.
    pub fn set_row(site: impl Into<String>, row: impl IntoIterator<Item = (usize, f32)>) -> Step {
        Action::SetRow { site: site.into(), row: row.into_iter().collect() }.into()
    }

    /// Takes the attention weights of another run, in every layer or in some ([`Step::layer`]).
    pub fn freeze_attention(from: Source) -> Step {
        Action::FreezeAttention { layer: None, from }.into()
    }

    /// Adds vectors to the residual stream, times [`Step::by`], after all layers that have one or some
    /// ([`Step::layer`]).
    pub fn control_vector(control_vector: impl Into<LayerVectors>) -> Step {
        Action::ControlVector { control_vector: control_vector.into(), by: 1.0, layer: None }.into()
    }

    /// Only these heads.
    #[must_use]
    pub fn head(self, head: impl Into<Numbers>) -> Step {
        Step { head: Some(head.into()), ..self }
    }

    /// Only these columns, where the tensor has no heads.
    #[must_use]
    pub fn unit(self, unit: impl Into<Numbers>) -> Step {
        Step { unit: Some(unit.into()), ..self }
    }

    /// Only these positions.
    #[must_use]
    pub fn pos(self, pos: impl Into<Positions>) -> Step {
        Step { pos: Some(pos.into()), ..self }
    }

    /// Only where this holds.
    #[must_use]
    pub fn when(self, when: Condition) -> Step {
        Step { when: Some(when), ..self }
    }

    /// Leaves what `project_out` changes as long as it was.
    ///
    /// # Panics
    /// On other steps.
    #[must_use]
    #[track_caller]
    pub fn keep_norm(mut self) -> Step {
        match &mut self.action {
            Action::ProjectOut { keep_norm, .. } => *keep_norm = true,
            action => panic!("{}", foreign("keep_norm", action.kind())),
        }
        self
    }

    /// How many times what `scale`, `steer` and `control_vector` take.
    ///
    /// # Panics
    /// On other steps.
    #[must_use]
    #[track_caller]
    pub fn by(mut self, factor: f32) -> Step {
        match &mut self.action {
            Action::Scale { by, .. } | Action::Steer { by, .. } | Action::ControlVector { by, .. } => *by = factor,
            action => panic!("{}", foreign("by", action.kind())),
        }
        self
    }

    /// Only the attention weights of these keys, of `scale`.
    ///
    /// # Panics
    /// On other steps.
    #[must_use]
    #[track_caller]
    pub fn key(mut self, keys: impl Into<Numbers>) -> Step {
        match &mut self.action {
            Action::Scale { key, .. } => *key = Some(keys.into()),
            action => panic!("{}", foreign("key", action.kind())),
        }
        self
    }

    /// The positions that `patch` takes values from, in the order of those that they go to.
    ///
    /// # Panics
    /// On other steps.
    #[must_use]
    #[track_caller]
    pub fn from_pos(mut self, positions: impl Into<Numbers>) -> Step {
        match &mut self.action {
            Action::Patch { from_pos, .. } => *from_pos = Some(positions.into()),
            action => panic!("{}", foreign("from_pos", action.kind())),
        }
        self
    }

    /// Only these layers, of `freeze_attention` and `control_vector`.
    ///
    /// # Panics
    /// On other steps.
    #[must_use]
    #[track_caller]
    pub fn layer(mut self, layers: impl Into<Numbers>) -> Step {
        match &mut self.action {
            Action::FreezeAttention { layer, .. } | Action::ControlVector { layer, .. } => *layer = Some(layers.into()),
            action => panic!("{}", foreign("layer", action.kind())),
        }
        self
    }

    /// The run that its values come from.
    pub fn source_mut(&mut self) -> Option<&mut Source> {
        match &mut self.action {
            Action::Mean { of, .. } => Some(of),
            Action::Patch { from, .. } | Action::FreezeAttention { from, .. } => Some(from),
            _ => None,
        }
    }

    /// The directions that it names: what it adds or takes out, and the probe of its condition.
    pub fn directions_mut(&mut self) -> impl Iterator<Item = &mut Direction> {
        let own = match &mut self.action {
            Action::Steer { add: direction, .. } | Action::ProjectOut { direction, .. } => Some(direction),
            _ => None,
        };
        let probe = match &mut self.when {
            Some(Condition::Above { probe, .. } | Condition::Below { probe, .. }) => Some(probe),
            _ => None,
        };
        own.into_iter().chain(probe)
    }

    fn source(&self) -> Option<&Source> {
        match &self.action {
            Action::Mean { of, .. } => Some(of),
            Action::Patch { from, .. } | Action::FreezeAttention { from, .. } => Some(from),
            _ => None,
        }
    }
}

impl Source {
    /// The run of a prompt.
    pub fn prompt(text: impl Into<String>) -> Source {
        Source { text: SourceText::Prompt(text.into()), steps: None }
    }

    /// The run of these tokens.
    pub fn tokens(ids: impl Into<Vec<u32>>) -> Source {
        Source { text: SourceText::Tokens(ids.into()), steps: None }
    }

    /// The same run, itself changed.
    #[must_use]
    pub fn with(self, steps: Interventions) -> Source {
        Source { steps: Some(steps), ..self }
    }
}

impl Condition {
    /// Where the token is this one.
    pub fn token(token: impl Into<String>) -> Condition {
        Condition::Token { token: vec![token.into()] }
    }
}

impl From<Vec<f32>> for Direction {
    fn from(vector: Vec<f32>) -> Direction {
        Direction::Vector { vector }
    }
}

impl From<PathBuf> for LayerVectors {
    fn from(file: PathBuf) -> LayerVectors {
        LayerVectors::File(file)
    }
}

impl From<BTreeMap<usize, Vec<f32>>> for LayerVectors {
    fn from(vectors: BTreeMap<usize, Vec<f32>>) -> LayerVectors {
        LayerVectors::These(vectors)
    }
}

macro_rules! from_integers {
    ($($integer:ty),*) => { $(
        impl From<$integer> for Numbers {
            fn from(number: $integer) -> Numbers {
                Numbers::One(number as i64)
            }
        }
        impl From<Vec<$integer>> for Numbers {
            fn from(numbers: Vec<$integer>) -> Numbers {
                Numbers::List(numbers.into_iter().map(|number| number as i64).collect())
            }
        }
        impl<const N: usize> From<[$integer; N]> for Numbers {
            fn from(numbers: [$integer; N]) -> Numbers {
                numbers.to_vec().into()
            }
        }
        impl From<Range<$integer>> for Numbers {
            fn from(range: Range<$integer>) -> Numbers {
                Numbers::Range(range.start as i64..range.end as i64)
            }
        }
    )* };
}
from_integers!(i32, i64, usize);

impl<T: Into<Numbers>> From<T> for Positions {
    fn from(numbers: T) -> Positions {
        Positions::These(numbers.into())
    }
}

impl Numbers {
    /// How many.
    fn count(&self) -> usize {
        match self {
            Numbers::One(_) => 1,
            Numbers::List(list) => list.len(),
            Numbers::Range(range) => usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(0),
        }
    }

    /// Each of them.
    pub fn list(&self) -> Vec<i64> {
        match self {
            Numbers::One(number) => vec![*number],
            Numbers::List(list) => list.clone(),
            Numbers::Range(range) => range.clone().collect(),
        }
    }

    /// Each of them, counted from 0; negative ones are left out.
    pub fn places(&self) -> Vec<usize> {
        self.list().into_iter().filter_map(|number| number.try_into().ok()).collect()
    }
}

// ---- checking

/// That a field does not belong to a kind of step.
pub(super) fn foreign(key: &str, kind: &str) -> String {
    format!("`{key}` does not belong to `{kind}`, which takes {}", beside(kind).join(", "))
}

/// The fields beside a kind of step.
fn beside(kind: &str) -> &'static [&'static str] {
    KINDS.iter().find(|(name, _)| *name == kind).map_or(&[], |(_, beside)| beside)
}

impl Interventions {
    /// That each step has what belongs to it, and all together are no more than a run takes.
    ///
    /// # Errors
    /// Names the step that is none, and what was expected.
    pub fn check(&self) -> Result<(), InterventionError> {
        let form = |what: String| Err(InterventionError::Form { what });
        let (steps, numbers) = self.size();
        if self.steps.is_empty() {
            return form("the list is empty".into());
        }
        if steps > Interventions::MOST_STEPS {
            return form(format!("a list has at most {}, found {steps}", Interventions::MOST_STEPS));
        }
        if numbers > MOST_NUMBERS {
            let most = format!("all steps together name at most {MOST_NUMBERS} heads, units, positions and keys");
            return form(format!("{most}: give \"all\", \"prompt\" or \"generated\", or fewer"));
        }
        self.check_steps(0)
    }

    /// How many steps there are with those of their sources, and how many heads, units, positions and keys they name.
    fn size(&self) -> (usize, usize) {
        let sizes = self.steps.iter().map(|step| {
            let source = step.source().and_then(|source| source.steps.as_ref());
            let (steps, numbers) = source.map_or((0, 0), Interventions::size);
            (1 + steps, numbers + step.numbers())
        });
        sizes.fold((0, 0), |all, size| (all.0 + size.0, all.1.saturating_add(size.1)))
    }

    /// The same of each step of a list that lies so deep in sources.
    fn check_steps(&self, depth: usize) -> Result<(), InterventionError> {
        for (step, given) in (1..).zip(&self.steps) {
            given.check(step)?;
            let Some(steps) = given.source().and_then(|source| source.steps.as_ref()) else { continue };
            let inner = match depth {
                DEPTH => Err(format!("sources with steps lie at most {DEPTH} deep in each other")),
                _ if steps.steps.is_empty() => Err("its source: the list of its steps is empty".into()),
                _ => steps.check_steps(depth + 1).map_err(|error| format!("its source: {error}")),
            };
            inner.map_err(|what| InterventionError::Step { step, what })?;
        }
        Ok(())
    }
}

impl Step {
    /// Lists that name places, each once.
    fn places(&self) -> [(&'static str, Option<&Numbers>); 4] {
        let (key, layer) = match &self.action {
            Action::Scale { key, .. } => (key.as_ref(), None),
            Action::FreezeAttention { layer, .. } | Action::ControlVector { layer, .. } => (None, layer.as_ref()),
            _ => (None, None),
        };
        [("head", self.head.as_ref()), ("unit", self.unit.as_ref()), ("key", key), ("layer", layer)]
    }

    /// How many heads, units, positions and keys it names.
    fn numbers(&self) -> usize {
        let positions = match &self.pos {
            Some(Positions::These(numbers)) => numbers.count(),
            _ => 0,
        };
        let more = match &self.action {
            Action::SetRow { row, .. } => row.len(),
            Action::Patch { from_pos, .. } => from_pos.as_ref().map_or(0, Numbers::count),
            _ => 0,
        };
        let places = self.places().into_iter().filter_map(|(_, numbers)| numbers).map(Numbers::count);
        places.fold(positions + more, usize::saturating_add)
    }

    /// Its numbers that are no places.
    fn values(&self) -> [(&'static str, Vec<f32>); 2] {
        let vector = |direction: &Direction| match direction {
            Direction::Vector { vector } => vector.clone(),
            _ => vec![],
        };
        let when = match &self.when {
            Some(Condition::Above { probe, above: than } | Condition::Below { probe, below: than }) => {
                [vector(probe), vec![*than]].concat()
            }
            _ => vec![],
        };
        let own = match &self.action {
            Action::Scale { by, .. } => ("by", vec![*by]),
            Action::Steer { by, add: Direction::Vector { vector }, .. } => ("add", [&[*by], &vector[..]].concat()),
            Action::ProjectOut { direction, .. } => ("direction", vector(direction)),
            Action::Steer { by, .. } => ("by", vec![*by]),
            Action::Set { value, .. } => ("value", value.clone()),
            Action::SetRow { row, .. } => ("row", row.values().copied().collect()),
            Action::ControlVector { control_vector: LayerVectors::These(vectors), by, .. } => {
                ("control_vector", vectors.values().flatten().chain([by]).copied().collect())
            }
            _ => ("by", vec![]),
        };
        [own, ("when", when)]
    }

    fn check(&self, step: usize) -> Result<(), InterventionError> {
        let wrong = |what: String| Err(InterventionError::Step { step, what });
        let kind = self.action.kind();
        let [head, unit] = [self.head.is_some(), self.unit.is_some()];
        let given = [("head", head), ("unit", unit), ("pos", self.pos.is_some()), ("when", self.when.is_some())];
        if let Some((key, _)) = given.iter().find(|(key, is_given)| *is_given && !beside(kind).contains(key)) {
            return wrong(foreign(key, kind));
        }
        for (key, numbers) in self.places().into_iter().filter_map(|(key, numbers)| Some((key, numbers?.list()))) {
            if let Some(number) = numbers.iter().find(|number| **number < 0) {
                return wrong(format!("`{key}` counts from 0; found {number}"));
            }
            let mut known = BTreeSet::new();
            if let Some(number) = numbers.iter().find(|number| !known.insert(**number)) {
                return wrong(format!("`{key}` names {number} twice"));
            }
        }
        let wild = |(key, values): (_, Vec<f32>)| Some((key, values.into_iter().find(|value| !value.is_finite())?));
        match self.values().into_iter().find_map(wild) {
            Some((key, value)) => wrong(format!("`{key}` has finite numbers; found {value}")),
            None => Ok(()),
        }
    }
}

impl Action {
    /// The tensor that it names; none of those that name layers.
    pub fn site(&self) -> Option<&str> {
        match self {
            Action::Zero { site } | Action::Mean { site, .. } | Action::Patch { site, .. } => Some(site),
            Action::Scale { site, .. } | Action::Steer { site, .. } | Action::ProjectOut { site, .. } => Some(site),
            Action::Set { site, .. } | Action::SetRow { site, .. } => Some(site),
            Action::FreezeAttention { .. } | Action::ControlVector { .. } => None,
        }
    }

    /// What it is called.
    pub fn kind(&self) -> &'static str {
        match self {
            Action::Zero { .. } | Action::Mean { .. } => "ablate",
            Action::Patch { .. } => "patch",
            Action::Scale { .. } => "scale",
            Action::Steer { .. } => "steer",
            Action::ProjectOut { .. } => "project_out",
            Action::Set { .. } | Action::SetRow { .. } => "set",
            Action::FreezeAttention { .. } => "freeze_attention",
            Action::ControlVector { .. } => "control_vector",
        }
    }
}

// ---- writing

impl Serialize for Interventions {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Named<'a> {
            name: &'a str,
            r#do: &'a [Step],
        }
        match &self.name {
            None => self.steps.serialize(serializer),
            Some(name) => Named { name, r#do: &self.steps }.serialize(serializer),
        }
    }
}

impl fmt::Display for Interventions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        serde_json::to_value(self).map_err(|_| fmt::Error)?.fmt(f)
    }
}

/// A number in the fewest digits that are read as the same f32.
struct Shortest(f32);

impl Serialize for Shortest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let exact = f64::from(self.0);
        if exact.fract() == 0.0 && exact.abs() < 1e9 && (exact != 0.0 || exact.is_sign_positive()) {
            return serializer.serialize_i64(exact as i64);
        }
        let shortest = self.0.to_string().parse().ok().filter(|shortest: &f64| *shortest as f32 == self.0);
        serializer.serialize_f64(shortest.unwrap_or(exact))
    }
}

fn number<S: Serializer>(number: &f32, serializer: S) -> Result<S::Ok, S::Error> {
    Shortest(*number).serialize(serializer)
}

fn numbers<S: Serializer>(numbers: &[f32], serializer: S) -> Result<S::Ok, S::Error> {
    match numbers {
        [only] => number(only, serializer),
        all => serializer.collect_seq(all.iter().copied().map(Shortest)),
    }
}

fn one_or_more<S: Serializer>(texts: &[String], serializer: S) -> Result<S::Ok, S::Error> {
    match texts {
        [only] => serializer.serialize_str(only),
        all => all.serialize(serializer),
    }
}

fn weights<S: Serializer>(row: &BTreeMap<usize, f32>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(row.iter().map(|(key, weight)| (key, Shortest(*weight))))
}

fn vectors<S: Serializer>(vectors: &BTreeMap<usize, Vec<f32>>, serializer: S) -> Result<S::Ok, S::Error> {
    let shortest = |vector: &Vec<f32>| vector.iter().copied().map(Shortest).collect::<Vec<_>>();
    serializer.collect_map(vectors.iter().map(|(layer, vector)| (layer, shortest(vector))))
}

fn mean_of<S: Serializer>(of: &Source, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map([("mean_of", of)])
}

fn layers<S: Serializer>(layers: &Option<Numbers>, serializer: S) -> Result<S::Ok, S::Error> {
    match layers {
        None => serializer.serialize_str("all"),
        Some(layers) => serializer.collect_map([("layer", layers)]),
    }
}

fn range<S: Serializer>(range: &Range<i64>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{}..{}", range.start, range.end))
}

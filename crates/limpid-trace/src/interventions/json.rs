//! Steps read from JSON. What is wrong is said of the step and the field, with what was expected and what was found.

use super::steps::{KINDS, MOST_NUMBERS, foreign};
use super::{
    Action, Condition, Direction, InterventionError, Interventions, LayerVectors, Numbers, Positions, Source,
    SourceText, Step,
};
use limpid_base::nearest::nearest;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::str::FromStr;

type Read<T> = Result<T, InterventionError>;

impl FromStr for Interventions {
    type Err = InterventionError;
    fn from_str(text: &str) -> Read<Interventions> {
        let form = |error: serde_json::Error| InterventionError::Form { what: error.to_string() };
        serde_json::from_str::<Value>(text).map_err(form)?.try_into()
    }
}

/// A list of steps, or an object that has one as `do`, and a `name` if it likes.
impl TryFrom<Value> for Interventions {
    type Error = InterventionError;
    fn try_from(given: Value) -> Read<Interventions> {
        let interventions = list(&given)?;
        interventions.check()?;
        Ok(interventions)
    }
}

fn list(given: &Value) -> Read<Interventions> {
    let form = |what: &str| InterventionError::Form { what: what.into() };
    let mut name = None;
    let list = match given {
        Value::Object(object) => {
            if let Some(key) = object.keys().find(|key| !["do", "name", "limpid_interventions"].contains(&key.as_str()))
            {
                return Err(form(&format!("`{key}` is not `name` or `do`")));
            }
            if object.get("limpid_interventions").is_some_and(|version| *version != 1) {
                return Err(form("`limpid_interventions` is 1, the only version there is"));
            }
            if let Some(given) = object.get("name") {
                name = Some(given.as_str().ok_or_else(|| form("`name` is a text"))?.to_string());
            }
            object.get("do").ok_or_else(|| form("the object has no `do`"))?
        }
        list => list,
    };
    let list = list.as_array().ok_or_else(|| form("found no list"))?;
    if list.len() > Interventions::MOST_STEPS {
        return Err(form(&format!("a list has at most {}, found {}", Interventions::MOST_STEPS, list.len())));
    }
    let steps = (1..).zip(list).map(|(number, step)| Fields::new(number, step)?.step());
    Ok(Interventions { name, steps: steps.collect::<Read<_>>()? })
}

/// The fields of a step.
struct Fields<'a> {
    number: usize,
    kind: &'static str,
    given: &'a Map<String, Value>,
}

const NUMBERS: &str = "a whole number, a list of them, or a range such as \"2..5\"";
const SOURCE: &str =
    "{\"prompt\": \"...\"} or {\"tokens\": [ids]}, with steps of its own as \"do\" if it is changed too";

impl<'a> Fields<'a> {
    fn new(number: usize, step: &'a Value) -> Read<Fields<'a>> {
        let wrong = |what| Err(InterventionError::Step { step: number, what });
        let Some(given) = step.as_object() else { return wrong(format!("expected an object, found {step}")) };
        let all = KINDS.map(|(kind, _)| kind);
        let kinds: Vec<&(&str, &[&str])> = KINDS.iter().filter(|(kind, _)| given.contains_key(*kind)).collect();
        let [(kind, beside)] = kinds[..] else {
            let found: Vec<&str> = kinds.iter().map(|(kind, _)| *kind).collect();
            let near = given.keys().find_map(|key| nearest(key, all)).filter(|_| found.is_empty());
            let near = near.map_or(String::new(), |near| format!("; did you mean `{near}`?"));
            let found = if found.is_empty() { "none of them".into() } else { found.join(" and ") };
            return wrong(format!("a step is one of {}, found {found}{near}", all.join(", ")));
        };
        if let Some(key) = given.keys().find(|key| *key != kind && !beside.contains(&key.as_str())) {
            let near = nearest(key, beside.iter().copied());
            let near = near.map_or(String::new(), |near| format!(": did you mean `{near}`?"));
            return wrong(foreign(key, kind) + &near);
        }
        Ok(Fields { number, kind, given })
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
        self.optional(key, expected, read)?.map_or_else(|| self.wrong(key, expected), Ok)
    }

    fn step(&self) -> Read<Step> {
        let (head, unit, pos) = (self.places("head")?, self.places("unit")?, self.positions()?);
        Ok(Step { action: self.action()?, head, unit, pos, when: self.condition()? })
    }

    fn action(&self) -> Read<Action> {
        let site = || {
            let name = |name: &Value| name.as_str().map(String::from);
            self.needed(self.kind, "the name of a tensor, such as \"blocks.0.attn.hook_z\"", name)
        };
        Ok(match self.kind {
            "ablate" => match self.given.get("with") {
                None => Action::Zero { site: site()? },
                Some(Value::String(zero)) if zero == "zero" => Action::Zero { site: site()? },
                Some(Value::Object(with)) if with.len() == 1 && with.contains_key("mean_of") => {
                    Action::Mean { site: site()?, of: self.source("with", &with["mean_of"])? }
                }
                Some(_) => self.wrong("with", "\"zero\" or {\"mean_of\": {\"prompt\": \"...\"}}")?,
            },
            "patch" => {
                let expected = "a number, a list of them, or a range such as \"2..5\"";
                let from_pos = self.optional("from_pos", expected, integers)?;
                Action::Patch { site: site()?, from: self.from()?, from_pos }
            }
            "scale" => {
                Action::Scale { site: site()?, by: self.needed("by", FINITE, finite)?, key: self.places("key")? }
            }
            "steer" => Action::Steer { site: site()?, by: self.by()?, add: self.needed("add", DIRECTION, direction)? },
            "project_out" => {
                let keep_norm = self.optional("keep_norm", "true or false", Value::as_bool)?.unwrap_or(false);
                Action::ProjectOut {
                    site: site()?,
                    direction: self.needed("direction", DIRECTION, direction)?,
                    keep_norm,
                }
            }
            "set" => match (self.given.get("value"), self.given.get("row")) {
                (Some(_), None) => {
                    let value = self.needed("value", "a finite number or a list of them", floats)?;
                    Action::Set { site: site()?, value }
                }
                (None, Some(_)) => Action::SetRow { site: site()?, row: self.row()? },
                _ => self.wrong("value", "given, or `row` for attention weights, not both")?,
            },
            "freeze_attention" => {
                let layers = |value: &Value| match value {
                    Value::String(all) if all == "all" => Some(None),
                    Value::Object(object) if object.len() == 1 => Some(Some(places(object.get("layer")?)?)),
                    _ => None,
                };
                let layer = self.needed(self.kind, "\"all\" or {\"layer\": [numbers]}", layers)?;
                Action::FreezeAttention { layer, from: self.from()? }
            }
            _ => Action::ControlVector {
                control_vector: self.layer_vectors()?,
                by: self.by()?,
                layer: self.places("layer")?,
            },
        })
    }

    fn by(&self) -> Read<f32> {
        Ok(self.optional("by", FINITE, finite)?.unwrap_or(1.0))
    }

    fn places(&self, key: &str) -> Read<Option<Numbers>> {
        self.optional(key, NUMBERS, places)
    }

    fn positions(&self) -> Read<Option<Positions>> {
        let expected = "a number, a list of them, a range such as \"2..5\", \"all\", \"prompt\", \"generated\" or \
                        {\"token\": \" word\"}";
        self.optional("pos", expected, |value| match value {
            Value::String(name) if name == "all" => Some(Positions::All),
            Value::String(name) if name == "prompt" => Some(Positions::Prompt),
            Value::String(name) if name == "generated" => Some(Positions::Generated),
            Value::Object(object) if object.len() == 1 => {
                let token = object.get("token")?.as_str().filter(|token| !token.is_empty())?;
                Some(Positions::Token(token.into()))
            }
            value => integers(value).map(Positions::These),
        })
    }

    fn from(&self) -> Read<Source> {
        self.given.get("from").map_or_else(|| self.wrong("from", SOURCE), |value| self.source("from", value))
    }

    fn source(&self, key: &str, value: &Value) -> Read<Source> {
        let object = value.as_object().filter(|object| object.len() == 1 + usize::from(object.contains_key("do")));
        let Some(object) = object else { return self.wrong(key, SOURCE) };
        let ids = |value: &Value| value.as_array()?.iter().map(|id| u32::try_from(id.as_u64()?).ok()).collect();
        let text = match (object.get("prompt").and_then(Value::as_str), object.get("tokens").and_then(ids)) {
            (Some(prompt), _) => SourceText::Prompt(prompt.into()),
            (_, Some(tokens)) => SourceText::Tokens(tokens),
            _ => return self.wrong(key, SOURCE),
        };
        let of_step = |error| InterventionError::Step { step: self.number, what: format!("its source: {error}") };
        let steps = object.get("do").map(list).transpose().map_err(of_step)?;
        Ok(Source { text, steps })
    }

    fn condition(&self) -> Read<Option<Condition>> {
        let expected = "{\"token\": \" word\"} or a list of words, or {\"probe\": {\"vector\": [numbers]}, \
                        \"above\": 0.5}, or \"below\"";
        let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(String::from);
        self.optional("when", expected, |value| {
            let object = value.as_object()?;
            if let Some(token) = object.get("token").filter(|_| object.len() == 1) {
                let token = match token.as_array() {
                    Some(list) if !list.is_empty() => list.iter().map(text).collect::<Option<_>>()?,
                    _ => vec![text(token)?],
                };
                return Some(Condition::Token { token });
            }
            let probe = direction(object.get("probe").filter(|_| object.len() == 2)?)?;
            match (object.get("above"), object.get("below")) {
                (Some(above), _) => Some(Condition::Above { probe, above: finite(above)? }),
                (_, below) => Some(Condition::Below { probe, below: finite(below?)? }),
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

    fn row(&self) -> Read<BTreeMap<usize, f32>> {
        let weight = |(key, value): (&String, &Value)| Some((key.parse().ok()?, finite(value)?));
        let expected = "a weight for each key, such as {\"0\": 0.5, \"2\": 0.5}";
        let read = |row: &Value| row.as_object().filter(|row| !row.is_empty())?.iter().map(weight).collect();
        let pairs: Vec<(usize, f32)> = self.needed("row", expected, read)?;
        let mut row = BTreeMap::new();
        for (key, weight) in pairs {
            if row.insert(key, weight).is_some() {
                let what = format!("`row` names {key} twice"); // "0" and "00"
                return Err(InterventionError::Step { step: self.number, what });
            }
        }
        Ok(row)
    }
}

const FINITE: &str = "a finite number";
const DIRECTION: &str = "{\"vector\": [numbers]}, {\"file\": \"NAME.gguf\"} or {\"difference\": [\"one prompt\", \
                         \"another\"], \"pos\": -1}";

fn direction(given: &Value) -> Option<Direction> {
    let text = |value: &Value| value.as_str().map(String::from);
    let object = given.as_object()?;
    let has_only = |keys: &[&str]| object.keys().all(|key| keys.contains(&key.as_str()));
    if let Some(file) = object.get("file").filter(|_| has_only(&["file", "tensor"])) {
        let tensor = object.get("tensor").map(|tensor| text(tensor).ok_or(())).transpose().ok()?;
        return Some(Direction::File { file: file.as_str()?.into(), tensor });
    }
    if let Some(vector) = object.get("vector").filter(|_| has_only(&["vector"])) {
        return Some(Direction::Vector { vector: floats(vector)? });
    }
    let pair = object.get("difference").filter(|_| has_only(&["difference", "pos"]))?.as_array()?;
    let [first, second] = &pair[..] else { return None };
    let pos = object.get("pos").map(|pos| pos.as_i64().ok_or(())).transpose().ok()?;
    Some(Direction::Difference { difference: [text(first)?, text(second)?], pos })
}

fn finite(value: &Value) -> Option<f32> {
    value.as_f64().map(|v| v as f32).filter(|v| v.is_finite())
}

fn floats(value: &Value) -> Option<Vec<f32>> {
    match value {
        Value::Array(list) if !list.is_empty() => list.iter().map(finite).collect(),
        number => Some(vec![finite(number)?]),
    }
}

/// A number, a list of numbers, or a range `2..5`, which ends before 5 and has no more numbers than a list may name.
fn integers(value: &Value) -> Option<Numbers> {
    match value {
        Value::Array(list) => list.iter().map(Value::as_i64).collect::<Option<_>>().map(Numbers::List),
        Value::String(range) => {
            let (from, to) = range.split_once("..")?;
            let (from, to): (i64, i64) = (from.trim().parse().ok()?, to.trim().parse().ok()?);
            (from < to && to.saturating_sub(from) <= MOST_NUMBERS as i64).then_some(Numbers::Range(from..to))
        }
        number => number.as_i64().map(Numbers::One),
    }
}

/// The same of numbers that are counted from 0.
fn places(value: &Value) -> Option<Numbers> {
    integers(value).filter(|numbers| match numbers {
        Numbers::One(first) | Numbers::Range(std::ops::Range { start: first, .. }) => *first >= 0,
        Numbers::List(list) => list.iter().all(|number| *number >= 0),
    })
}

//! The numbers that the documents print (`printed.json`), and whether the live ones equal them.
//!
//! A step's [`Printed`] names a place in `printed.json`. [`Live::checks`](super::live::Live::checks) computes the
//! numbers that belong there again (`computed`): by the walk's models and scenes, by its tokenizers and presets, by
//! limpid's own operations; none is read out of the file that it is compared with. Under `rows` and `columns` the file
//! has which of a table are printed, under `shapes` the tensors whose shapes are.

use limpid_base::units::commas;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// A number, or a table of them, that a document prints.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Printed {
    /// Where it is in `printed.json`: `s1.positions`.
    pub golden: String,
    /// How the live number stands to it.
    #[serde(rename = "as")]
    pub stands: As,
    /// What it is.
    pub what: String,
}

/// How a live number stands to a printed one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum As {
    /// The document prints it, and it is met.
    Equal,
    /// The document prints another, and this is right.
    Corrected,
    /// The document prints it, and it is wrong: computed as the document has it, it comes out so.
    Wrong,
    /// The document has symbols alone; these are numbers for them.
    Constructed,
}

/// A printed number or word.
#[derive(Clone, Debug, PartialEq)]
pub enum Leaf {
    /// A number; the file has `"-inf"` for −∞.
    Number(f64),
    /// A word.
    Word(String),
}

impl From<f64> for Leaf {
    fn from(number: f64) -> Leaf {
        Leaf::Number(number)
    }
}
impl From<&str> for Leaf {
    fn from(word: &str) -> Leaf {
        if word == "-inf" { Leaf::Number(f64::NEG_INFINITY) } else { Leaf::Word(word.into()) }
    }
}

impl std::fmt::Display for Leaf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Leaf::Number(number) if *number >= 0.0 && number.fract() == 0.0 && *number < 1e15 => {
                f.write_str(&commas(*number as u64))
            }
            Leaf::Number(number) => write!(f, "{}", (number * 1e6).round() / 1e6),
            Leaf::Word(word) => write!(f, "{word:?}"),
        }
    }
}

/// Printed numbers, compared.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Check {
    /// What was compared.
    pub printed: Printed,
    /// How many numbers and words it is.
    pub count: usize,
    /// What came of it, in a sentence.
    pub text: String,
    /// Whether it holds.
    pub holds: bool,
    /// The live numbers, in the order of the printed ones.
    #[serde(skip)]
    pub live: Vec<Leaf>,
}

/// The places where two lists differ by more than `within`.
pub fn differences(printed: &[Leaf], live: &[Leaf], within: f64) -> Vec<usize> {
    let same = |at: usize| match (printed.get(at), live.get(at)) {
        (Some(Leaf::Number(a)), Some(Leaf::Number(b))) => a == b || (a - b).abs() <= within,
        (a, b) => a == b,
    };
    (0..printed.len().max(live.len())).filter(|at| !same(*at)).collect()
}

impl Check {
    pub(super) fn new(printed: &Printed, live: Vec<Leaf>) -> Check {
        let wanted = leaves(&printed.golden);
        let off = differences(&wanted, &live, within(&printed.golden));
        let count = wanted.len();
        let what = &printed.what;
        let met = match printed.stands {
            As::Equal => "as printed",
            As::Corrected => "computed here; the document prints others",
            As::Wrong => "computed as the document does it, which is wrong",
            As::Constructed => "as worked out by hand",
        };
        let many = commas(count as u64);
        let text = match off.first() {
            None => match (&live[..], printed.stands) {
                ([one], As::Equal) => format!("{what}: {one}, as printed"),
                ([one], As::Corrected) => format!("{what}: {one}; the document prints another"),
                ([one], As::Wrong) => format!("{what}: {one}, {met}"),
                ([one], As::Constructed) => format!("{what}: {one}"),
                (_, As::Equal | As::Constructed) => format!("{what}: {many} of {many} {met}"),
                _ => format!("{what}: {many}, {met}"),
            },
            Some(at) => {
                let of = |all: &[Leaf]| all.get(*at).map_or("nothing".into(), Leaf::to_string);
                let (wanted, live) = (of(&wanted), of(&live));
                format!("{what}: {} of {count} differ; number {} is {live}, printed {wanted}", off.len(), at + 1)
            }
        };
        Check { printed: printed.clone(), count, text, holds: off.is_empty(), live }
    }
}

// ---- what is printed

fn all() -> &'static Value {
    static ALL: OnceLock<Value> = OnceLock::new();
    ALL.get_or_init(|| {
        serde_json::from_str(include_str!("printed.json")).expect("printed.json is JSON: a test reads it")
    })
}

/// What `printed.json` has under a key: `s1.rows.0.ids`.
pub(super) fn golden(key: &str) -> Option<&'static Value> {
    key.split('.').try_fold(all(), |value, part| match value {
        Value::Array(list) => list.get(part.parse::<usize>().ok()?),
        _ => value.get(part),
    })
}

/// All numbers and words under a key, in their order, fields by their names; none if there is no such key.
pub fn leaves(key: &str) -> Vec<Leaf> {
    fn each(value: &Value, to: &mut Vec<Leaf>) {
        match value {
            Value::Number(n) => to.extend(n.as_f64().map(Leaf::Number)),
            Value::String(word) => to.push(word.as_str().into()),
            Value::Array(list) => list.iter().for_each(|value| each(value, to)),
            Value::Object(fields) => {
                let fields: BTreeMap<&String, &Value> = fields.iter().collect();
                fields.into_values().for_each(|value| each(value, to));
            }
            _ => {}
        }
    }
    let mut all = vec![];
    golden(key).into_iter().for_each(|value| each(value, &mut all));
    all
}

/// All numbers under a key, in their order.
pub fn numbers(key: &str) -> Vec<f64> {
    leaves(key)
        .into_iter()
        .filter_map(|leaf| if let Leaf::Number(number) = leaf { Some(number) } else { None })
        .collect()
}

/// A table; its rows may differ in length.
pub fn rows(key: &str) -> Vec<Vec<f64>> {
    golden(key).and_then(|value| serde_json::from_value(value.clone()).ok()).unwrap_or_default()
}

/// Which rows and columns of its tensor a printed table has.
pub fn place(key: &str) -> [Vec<usize>; 2] {
    let table = rows(key);
    let wide = table.first().map_or(0, Vec::len);
    let list = |name: &str, or: &dyn Fn() -> Vec<usize>| {
        let own = written(name, key).and_then(|value| serde_json::from_value(value.clone()).ok());
        own.unwrap_or_else(or)
    };
    let columns = || Some(columns()).filter(|own| own.len() == wide).unwrap_or_else(|| (0..wide).collect());
    [list("rows", &|| (0..table.len()).collect()), list("columns", &columns)]
}

/// The tensors whose shapes are printed under a key, if it is one of shapes.
pub(super) fn shapes_of(key: &str) -> Option<&'static Value> {
    all()["shapes"].get(key)
}

/// How far a live number may be from a printed one: half of its last digit, or the rounding of the document's own
/// arithmetic. Numbers for which nothing is written are exact.
pub fn within(key: &str) -> f64 {
    written("within", key).and_then(Value::as_f64).unwrap_or(0.0)
}

/// What a part of `printed.json` has for a key, or for the longest that it begins with.
fn written(part: &str, key: &str) -> Option<&'static Value> {
    let ends = key.match_indices('.').map(|(at, _)| at).chain([key.len()]);
    ends.filter_map(|end| all()[part].get(&key[..end])).next_back()
}

/// Every key under which there are numbers or words: `s1.positions.3.7`.
pub fn places() -> Vec<String> {
    fn each(value: &Value, key: String, to: &mut Vec<String>) {
        match value {
            Value::Array(list) => list.iter().enumerate().for_each(|(i, value)| each(value, format!("{key}.{i}"), to)),
            Value::Object(fields) => fields.iter().for_each(|(name, value)| each(value, format!("{key}.{name}"), to)),
            _ => to.push(key),
        }
    }
    let mut to = vec![];
    super::Walk::ALL.iter().for_each(|name| each(&all()[*name], name.to_string(), &mut to));
    to
}

/// The columns of 64 that "Zero-to-Hero" prints.
pub(super) fn columns() -> Vec<usize> {
    numbers("s1.columns").iter().map(|column| *column as usize).collect()
}

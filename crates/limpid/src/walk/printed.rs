//! The numbers that the documents print (`printed.json`), and whether the live ones equal them.

use super::{Live, Step, WalkError};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::OnceLock;

/// A number, or a table of them, that a document prints.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Printed {
    /// Where it is in `printed.json`: `pe_d64.columns`; or a worked example of docs/contract.md: `G12`.
    pub golden: String,
    /// How the live number stands to it.
    #[serde(rename = "as")]
    pub stands: As,
    /// How many numbers it is.
    pub count: Option<usize>,
    /// The greatest difference that rounding of what is printed allows.
    pub within: Option<f64>,
    /// The model or scene that it is shown on.
    pub on: Option<String>,
    /// What it is.
    pub what: Option<String>,
}

/// How a live number stands to a printed one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum As {
    /// The document prints it, and it is met.
    Equal,
    /// The document prints another, and this is right.
    Corrected,
    /// The document prints it, and it is wrong.
    Wrong,
    /// The document has symbols alone; these are numbers for them.
    Constructed,
}

/// A printed number, compared.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Check {
    /// What was compared.
    pub printed: Printed,
    /// What came of it, in a sentence.
    pub text: String,
    /// Whether it holds.
    pub holds: bool,
}

/// The step's printed numbers, compared with the live ones.
pub(super) fn checks(_live: &mut Live, _step: &Step) -> Result<Vec<Check>, WalkError> {
    Ok(vec![])
}

/// What `printed.json` has under a key: `cl100k.rows.0.ids`.
pub(super) fn golden(key: &str) -> Option<&'static Value> {
    static ALL: OnceLock<Value> = OnceLock::new();
    let all = ALL.get_or_init(|| serde_json::from_str(include_str!("printed.json")).expect("printed.json is JSON"));
    key.split('.').try_fold(all, |value, part| match value {
        Value::Array(list) => list.get(part.parse::<usize>().ok()?),
        _ => value.get(part),
    })
}

/// The columns of 64 that "Zero-to-Hero" prints.
pub(super) fn columns() -> Vec<usize> {
    numbers("pe_d64.columns").into_iter().map(|c| c as usize).collect()
}

/// A printed table; rows may differ in length.
pub(super) fn rows(key: &str) -> Vec<Vec<f64>> {
    golden(key).and_then(|table| serde_json::from_value(table.clone()).ok()).unwrap_or_default()
}

/// All numbers under a key, in their order.
pub(super) fn numbers(key: &str) -> Vec<f64> {
    fn each(value: &Value, to: &mut Vec<f64>) {
        match value {
            Value::Number(n) => to.extend(n.as_f64()),
            Value::Array(list) => list.iter().for_each(|value| each(value, to)),
            Value::Object(fields) => fields.values().for_each(|value| each(value, to)),
            _ => {}
        }
    }
    let mut all = vec![];
    golden(key).into_iter().for_each(|value| each(value, &mut all));
    all
}

//! The log of a run, in its folder. `metrics.jsonl` is the source: one JSON object a line, each with its `step`. This
//! file reads it; `writer` writes it. Two files are derived from it: `metrics.csv` (`table`), with a row for each step,
//! and the events that TensorBoard reads (`events`). The first line carries `time`, the clock when it was written, so
//! that the derived files are a function of `metrics.jsonl` alone.

mod events;
mod table;
pub(crate) mod writer;

use limpid_base::files;
use limpid_checkpoint::{CheckpointError, at};
use serde_json::Value;
use std::path::Path;

/// The name of the log in a run's folder.
pub const METRICS: &str = "metrics.jsonl";

/// The most bytes of a log that are read: about ten million steps.
const LONGEST: u64 = 2 << 30;

/// Reads the log of a run's folder. A last line without a newline is left out: it is still being written, or was cut
/// off.
///
/// # Errors
/// If the file cannot be read. Names a line that is not a JSON object with a `step`.
pub fn read(folder: &Path) -> Result<Vec<Value>, CheckpointError> {
    let path = folder.join(METRICS);
    let text = at(&path, files::read_text(&path, LONGEST))?;
    let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    let parse = |(n, line): (usize, &str)| {
        let bad =
            |what: String| CheckpointError::Format { path: path.clone(), what: format!("line {}: {what}", n + 1) };
        let value: Value = serde_json::from_str(line).map_err(|e| bad(format!("it is not JSON ({e})")))?;
        let has_step = value["step"].is_u64();
        if has_step { Ok(value) } else { Err(bad("it has no `step`, which every line has".into())) }
    };
    whole.enumerate().map(parse).collect()
}

/// Every number of a line with its name, except `step` and `time`. A number inside an object is named `key/sub`.
pub fn numbers(line: &Value) -> Vec<(String, f64)> {
    let mut found = vec![];
    for (key, value) in line.as_object().into_iter().flatten() {
        if key != "step" && key != "time" {
            collect(&mut found, key, value);
        }
    }
    found
}

/// Appends the numbers of a value with this name.
fn collect(found: &mut Vec<(String, f64)>, name: &str, value: &Value) {
    if let Some(number) = value.as_f64() {
        found.push((name.to_string(), number));
    }
    for (key, value) in value.as_object().into_iter().flatten() {
        collect(found, &format!("{name}/{key}"), value);
    }
}

/// Computes tokens per second from the lines that have both `tokens` and `seconds`.
#[derive(Default)]
pub struct Speed {
    tokens: f64,
    seconds: f64,
}

impl Speed {
    /// The speed since the last such line; none if this line is not one.
    pub fn at(&mut self, line: &Value) -> Option<f64> {
        let (tokens, seconds) = (line["tokens"].as_f64()?, line["seconds"].as_f64()?);
        let before = std::mem::replace(self, Speed { tokens, seconds });
        Some((tokens - before.tokens) / (seconds - before.seconds)).filter(|speed| speed.is_finite())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn speed_is_of_what_was_done_since() {
        let mut speed = Speed::default();
        let step = |n: u64| json!({ "step": n, "tokens": 10 * n, "seconds": 0.5 * n as f64 });
        let found = [step(1), json!({ "step": 1, "val_loss": 1.0 }), step(3)].map(|line| speed.at(&line));
        assert_eq!(found, [Some(20.0), None, Some(20.0)]);
    }

    #[test]
    fn numbers_of_objects_have_the_names_of_both() {
        let line =
            json!({ "step": 1, "time": 2.0, "loss": 3, "layers": { "step": { "grad_norm": 0.5 } }, "sample": "x" });
        let mut found = numbers(&line);
        found.sort_by(|a, b| a.0.cmp(&b.0));
        assert_eq!(found, [("layers/step/grad_norm".to_string(), 0.5), ("loss".to_string(), 3.0)]);
    }
}

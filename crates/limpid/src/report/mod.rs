//! Runs as they are told: [`RunRecord::read`] takes what a run's folder holds, [`html`] makes one page of one run or
//! several, complete in itself: no network, no script needed, light or dark as the reader has it.
//!
//! `plot.rs` draws curves as SVG, `page.rs` puts the page together, `units.rs` says numbers as people read them.

mod page;
mod plot;
pub mod units;

pub use page::html;

use crate::checkpoint::{CheckpointError, at};
use crate::train::log::{self, METRICS, Speed};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Why a run cannot be told.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// A folder of something else.
    #[error("{} is not a run's folder: it has no {METRICS} (`limpid train` writes one)", .0.display())]
    NotARun(PathBuf),
    /// A run before its first step.
    #[error("{}: {METRICS} holds no step yet: report again when the run has done one", .0.display())]
    Empty(PathBuf),
    /// A file that cannot be read, or what is wrong in it.
    #[error(transparent)]
    File(#[from] CheckpointError),
}

/// A text that the model wrote.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The step it was written after.
    pub step: u64,
    /// What it was to go on from.
    pub prompt: String,
    /// What it wrote.
    pub text: String,
}

/// How far a run has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// To its last step.
    Finished,
    /// Until somebody stopped it.
    Stopped,
    /// It has written no summary of its last step: it goes on, or was killed.
    Unfinished,
}

/// What a run has come to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Results {
    /// How far it has come.
    pub state: State,
    /// Steps done.
    pub steps: u64,
    /// Training loss of the first step, nats a token.
    pub first_loss: f64,
    /// Mean training loss of the last steps.
    pub train_loss: f64,
    /// Validation loss: of the kept weights on all of the text, or the least on the way while that is not known.
    pub val_loss: Option<f64>,
    /// The step of the least validation loss on the way, or the last one.
    pub best_step: u64,
    /// Tokens trained on.
    pub tokens: u64,
    /// Seconds spent.
    pub seconds: f64,
    /// Tokens a second, evaluations and saves included.
    pub tok_s: f64,
    /// Most memory the process held.
    pub peak_rss_bytes: Option<u64>,
    /// The least loss any model can reach, where that is known.
    pub entropy_floor: Option<f64>,
}

/// What a run's folder tells.
#[derive(Clone, Debug, PartialEq)]
pub struct RunRecord {
    /// The folder's name.
    pub name: String,
    /// What it was set to: config.json's keys here, to which whoever started it may add.
    pub settings: BTreeMap<String, String>,
    /// Every number of the log by name: (step, value), steps ascending; and `tokens_per_second`, made of two.
    pub series: BTreeMap<String, Vec<(f64, f64)>>,
    /// Texts it wrote.
    pub samples: Vec<Sample>,
    /// What it has come to.
    pub results: Results,
}

impl RunRecord {
    /// Reads a folder, while the run goes on or after.
    ///
    /// # Errors
    /// If it is no run's, has no step yet, or holds a line or file that cannot be read, which is named.
    pub fn read(folder: &Path) -> Result<RunRecord, ReportError> {
        if !folder.join(METRICS).exists() {
            return Err(ReportError::NotARun(folder.into()));
        }
        let (mut series, mut samples) = (BTreeMap::<_, Vec<_>>::new(), vec![]);
        let mut speed = Speed::default();
        for line in log::read(folder)? {
            let step = line["step"].as_u64().unwrap_or_default();
            let of = speed.of(&line).map(|speed| ("tokens_per_second".to_string(), speed));
            for (name, value) in log::numbers(&line).into_iter().chain(of) {
                series.entry(name).or_default().push((step as f64, value));
            }
            if let Some(text) = line["sample"].as_str() {
                let prompt = line["prompt"].as_str().unwrap_or_default().to_string();
                samples.push(Sample { step, prompt, text: text.into() });
            }
        }
        let summary = json(&folder.join("summary.json"))?.unwrap_or_default();
        let results = results(&series, &summary).ok_or_else(|| ReportError::Empty(folder.into()))?;
        let config = json(&folder.join("config.json"))?.unwrap_or_default();
        let whole = std::path::absolute(folder).unwrap_or_else(|_| folder.into());
        let name = whole.file_name().map_or_else(|| folder.display().to_string(), |n| n.to_string_lossy().into());
        let mut run = RunRecord { name, settings: BTreeMap::new(), series, samples, results };
        config.as_object().into_iter().flatten().for_each(|(key, value)| run.set(key, value));
        Ok(run)
    }

    /// Adds a setting; parts of an object are `key_part`, as in a configuration file.
    pub fn set(&mut self, key: &str, value: &Value) {
        let text = match value {
            Value::Null => return,
            Value::Object(parts) => return parts.iter().for_each(|(part, v)| self.set(&format!("{key}_{part}"), v)),
            Value::String(text) => text.clone(),
            // as it was meant: 0.1 times 0.003 is not 0.00030000000000000003
            Value::Number(n) if n.is_f64() => format!("{:.12e}", n.as_f64().unwrap_or_default())
                .parse::<f64>()
                .map_or_else(|_| n.to_string(), |v| v.to_string()),
            other => other.to_string(),
        };
        self.settings.insert(key.into(), text);
    }
}

/// The settings in which runs differ: each run's value in the order of the runs, empty where it has none.
pub fn differences(runs: &[RunRecord]) -> BTreeMap<&str, Vec<&str>> {
    let keys = runs.iter().flat_map(|run| run.settings.keys());
    let row = |key: &String| runs.iter().map(|run| run.settings.get(key).map_or("", String::as_str)).collect();
    let all: BTreeMap<&str, Vec<&str>> = keys.map(|key| (key.as_str(), row(key))).collect();
    all.into_iter().filter(|(_, values)| values.iter().any(|v| *v != values[0])).collect()
}

fn json(path: &Path) -> Result<Option<Value>, ReportError> {
    if !path.exists() {
        return Ok(None);
    }
    let text = at(path, fs::read_to_string(path))?;
    let bad = |e| CheckpointError::Format { path: path.into(), what: format!("it is no JSON ({e})") };
    Ok(Some(serde_json::from_str(&text).map_err(bad)?))
}

/// What came of it, by its summary if that is of the last step, else by the log.
fn results(series: &BTreeMap<String, Vec<(f64, f64)>>, summary: &Value) -> Option<Results> {
    let values = |name: &str| series.get(name).map_or(&[][..], Vec::as_slice);
    let last = |name: &str| values(name).last().map_or(0.0, |(_, value)| *value);
    let train = values("train_loss");
    let (first, (steps, _)) = (train.first()?, train.last()?);
    let done = summary["steps"].as_f64() == Some(*steps);
    let recent = &train[train.len().saturating_sub(50)..];
    let best = values("val_loss").iter().min_by(|a, b| a.1.total_cmp(&b.1));
    let (tokens, seconds) = (last("tokens"), last("seconds"));
    let told = |key: &str| summary[key].as_f64().filter(|_| done);
    let seconds = told("seconds").unwrap_or(seconds);
    Some(Results {
        state: match (done, summary["stopped"] == true) {
            (false, _) => State::Unfinished,
            (true, true) => State::Stopped,
            (true, false) => State::Finished,
        },
        steps: *steps as u64,
        first_loss: first.1,
        train_loss: told("train_loss").unwrap_or(recent.iter().map(|p| p.1).sum::<f64>() / recent.len() as f64),
        val_loss: told("val_loss").or(best.map(|p| p.1)),
        best_step: told("best_step").or(best.map(|p| p.0)).unwrap_or(*steps) as u64,
        tokens: tokens as u64,
        seconds,
        tok_s: if seconds > 0.0 { tokens / seconds } else { 0.0 },
        peak_rss_bytes: summary["peak_rss_bytes"].as_u64(),
        entropy_floor: summary["entropy_floor"].as_f64(),
    })
}

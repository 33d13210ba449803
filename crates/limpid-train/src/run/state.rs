//! The state that a run saves, and the files below `state/` that hold it.

use crate::error::{Result, TrainError};
use crate::folder;
use crate::log::writer::Mark;
use crate::recipe::{Recipe, RunSettings, Schedule};
use limpid_base::files::{self, OutputFile};
use limpid_checkpoint::store::Store;
use limpid_checkpoint::{CheckpointError, at, safetensors_file};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, TryLockError};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_64;

/// The state's format. Format 1 had no checksums; in format 2 gradients of micro-batches were added one after the
/// other; in format 3 a window of a masked model could have no masked token.
pub(super) const FORMAT: u32 = 4;

/// The most bytes of a file that a run begins with: a tokenizer's may be some megabytes.
const LONGEST: u64 = 1 << 30;

/// The metadata of a state file, besides its tensors.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct State {
    pub format: u32,
    pub step: u64,
    pub tokens: u64,
    pub seconds: f64,
    /// The step and the loss of the best evaluation.
    pub best: Option<(u64, f64)>,
    /// The last losses.
    pub recent: Vec<f64>,
    /// The settings, under the name that the first version of the format had for them.
    #[serde(rename = "recipe")]
    pub chosen: RunSettings,
    /// The first step's loss.
    pub first: Option<f64>,
    /// Evaluations since the best one.
    pub stale: u64,
    /// Steps' worth of data that were skipped.
    pub skipped: u64,
    /// The number of rollbacks, which skipped them.
    pub rollbacks: u64,
    /// Whether the evaluation and the save that are due after the last step are still to be done.
    pub unfinished: bool,
    /// Whether the save was a regular one, not one at a stop.
    pub due: bool,
    /// What the results depend on, besides model and recipe.
    pub given: Given,
    /// Checksums of the files that the run began with.
    pub files: BTreeMap<String, String>,
    /// The checksum of the kept weights.
    pub weights: Option<String>,
    /// The position in the log.
    pub log: Option<Mark>,
    /// How many looks the observer's file holds, if there was an observer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frames: Option<u64>,
}

/// What a run's results depend on, besides its model and recipe. A run resumes only if all of it is the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Given {
    /// A checksum of the training text: every token, where documents end, and what is to be predicted.
    pub training_text: u64,
    /// The same of the validation text.
    pub validation_text: u64,
    /// A checksum of the tokenizer.
    pub tokenizer: u64,
    pub objective: String,
    pub precision: String,
    /// A checksum of the parameters that no state holds: those of the model that an adapter is for.
    pub base: u64,
}

/// A state from which a run can resume. It has been checked, and its folder is locked while this value lives.
pub struct Resumable {
    /// Its file.
    pub(super) path: PathBuf,
    pub(super) state: State,
    pub(super) store: Store,
    pub(super) lock: OutputFile,
}

impl State {
    /// Checks that the folder's files are those whose checksums the state holds.
    pub fn check_files(&self, folder: &Path) -> Result<()> {
        for (name, was) in &self.files {
            let path = folder.join(name);
            if checksum(&at(&path, files::read_small(&path, LONGEST))?) != *was {
                let what = "it is not what this run wrote when it began: it was changed or damaged. To change a \
                            setting that may differ, give it when you resume";
                return Err(CheckpointError::Format { path, what: what.into() }.into());
            }
        }
        Ok(())
    }

    /// What differs between this state and a run that is to resume from it: its recipe, its model's configuration as
    /// the folder has it, and its data.
    pub fn differences(&self, folder: &Path, recipe: &Recipe, config: &str, given: &Given) -> Vec<String> {
        let was = longer(self.chosen.recipe, recipe, self.step);
        let mut differing = differing_settings(&was, recipe);
        if let Ok(text) = files::read_text(&folder.join("config.json"), u64::MAX) {
            let was = serde_json::from_str(&text).unwrap_or_default();
            let is = serde_json::from_str(config).unwrap_or_default();
            differing.extend(differing_keys(&was, &is));
        }
        differing.extend(self.given.differences(given));
        differing
    }
}

impl Given {
    /// What differs, in words.
    fn differences(&self, is: &Given) -> Vec<String> {
        let sums = [
            (self.training_text, is.training_text, "the training text is a different one"),
            (self.validation_text, is.validation_text, "the validation text is a different one"),
            (self.tokenizer, is.tokenizer, "the tokenizer is a different one"),
            (self.base, is.base, "the model that is adapted has changed"),
        ];
        let names = [("precision", &self.precision, &is.precision), ("objective", &self.objective, &is.objective)];
        let sums = sums.into_iter().filter(|(was, is, _)| was != is).map(|(_, _, what)| what.to_string());
        let names = names.into_iter().filter(|(_, was, is)| was != is);
        sums.chain(names.map(|(name, was, is)| format!("{name} was {was} and is {is}"))).collect()
    }
}

/// The recipe of a state after `step` steps. If the steps done are the same with the number of steps of `is`, it gets
/// that number.
fn longer(was: Recipe, is: &Recipe, step: u64) -> Recipe {
    // another number of steps changes the rates of the steps already done, unless those are constant
    let steps = Recipe { steps: is.steps, ..was };
    let flat = matches!(was.schedule, Schedule::Constant | Schedule::Wsd);
    // both rates are constant and then decay: if the last one is the same, so are those before it
    let same_rates = flat && step <= is.steps && step.checked_sub(1).is_none_or(|s| steps.rate(s) == was.rate(s));
    if same_rates { steps } else { was }
}

/// The settings that differ, and what can be done about the number of steps.
fn differing_settings(was: &Recipe, is: &Recipe) -> Vec<String> {
    let keys = |recipe: &Recipe| serde_json::to_value(recipe).expect("a recipe is JSON");
    let mut found = differing_keys(&keys(was), &keys(is));
    if was.steps != is.steps {
        let how = "steps may differ with schedule constant, or wsd before it decays; otherwise start a new run";
        found.push(how.into());
    }
    found
}

/// The keys whose values differ, of those that both have.
fn differing_keys(was: &Value, is: &Value) -> Vec<String> {
    let keys = was.as_object().into_iter().flatten();
    let differing = keys.filter(|(key, value)| !is[*key].is_null() && is[*key] != **value);
    differing.map(|(key, value)| format!("{key} was {value} and is {}", is[key])).collect()
}

/// Reads a state file: its metadata, and its tensors.
pub(super) fn read_state(path: &Path) -> Result<(State, Store)> {
    let facts = read_facts(path)?;
    let (store, _) = safetensors_file::open_summed(path)?;
    let state: State = serde_json::from_value(facts).map_err(|error| unreadable(path, &error))?;
    if state.step > state.chosen.recipe.steps {
        return Err(bad(
            path,
            format!("it is of step {} of {}: it was changed", state.step, state.chosen.recipe.steps),
        ));
    }
    Ok((state, store))
}

/// The metadata of a state file of this format.
pub(super) fn read_facts(path: &Path) -> Result<Value> {
    let store = safetensors_file::open(path)?;
    let text = store.fact("limpid").ok_or_else(|| bad(path, "it is not a training state".into()))?;
    let facts = serde_json::from_str(text).unwrap_or_default();
    wrong_format(&facts).map_or(Ok(facts), |what| Err(bad(path, what)))
}

pub(super) fn unreadable(path: &Path, error: &serde_json::Error) -> TrainError {
    bad(path, format!("its state cannot be read: {error}"))
}

fn bad(path: &Path, what: String) -> TrainError {
    TrainError::Checkpoint(CheckpointError::Format { path: path.into(), what })
}

/// Why a state's format is not read, if it is not: results would differ from those of the limpid that wrote it.
fn wrong_format(state: &Value) -> Option<String> {
    let several_micros = state["recipe"]["accumulate"].as_u64().is_some_and(|micros| micros > 1);
    let masked = state["given"]["objective"].as_str().is_some_and(|objective| objective.starts_with("Masked"));
    let why = match state["format"].as_u64()? {
        format if format > u64::from(FORMAT) => {
            return Some(format!(
                "it is of format {format} and this limpid knows {FORMAT}: resume the run with the later limpid that \
                 wrote it"
            ));
        }
        1 => "it is of format 1, which has no checksum",
        2 if several_micros => {
            "it is of format 2, in which the gradients of micro-batches (accumulate) added up in another order"
        }
        2 | 3 if masked => "it is of format 3 or older, in which a window could have no masked token",
        _ => return None,
    };
    Some(format!("{why}: resume it with the older limpid that wrote it, or start a new run from its best weights"))
}

/// A checksum in hex.
pub(super) fn checksum(bytes: &[u8]) -> String {
    format!("{:016x}", xxh3_64(bytes))
}

/// Locks a folder for this process.
pub(super) fn lock(folder: &Path) -> Result<OutputFile> {
    let path = lock_path(folder);
    at(&folder.join("state"), files::create_folder(&folder.join("state")))?;
    let lock = at(&path, OutputFile::open(&path))?;
    match lock.try_lock() {
        Err(TryLockError::WouldBlock) => Err(TrainError::Busy { path: folder.into() }),
        // a file system without locks keeps nobody out
        Err(TryLockError::Error(_)) => Ok(lock),
        Ok(()) => {
            folder::sweep(folder); // nobody else writes there now
            Ok(lock)
        }
    }
}

/// The file that the process that trains in a folder locks.
pub(super) fn lock_path(folder: &Path) -> PathBuf {
    folder.join("state").join("lock")
}

/// The file of the last state, or of the one kept after step `from`.
pub(super) fn state_file(folder: &Path, from: Option<u64>) -> PathBuf {
    from.map_or_else(|| state_path(folder), |step| kept_path(folder, step))
}

/// The file of the last state.
pub(super) fn state_path(folder: &Path) -> PathBuf {
    folder.join("state").join("last.safetensors")
}

/// The file of the last regular save, if the last state is not one.
pub(super) fn back_path(folder: &Path) -> PathBuf {
    folder.join("state").join("back.safetensors")
}

/// The file of the state kept after a step, whose weights open as a model of their own.
pub fn kept_path(folder: &Path, step: u64) -> PathBuf {
    folder.join("state").join(format!("step-{step:08}.safetensors"))
}

/// The steps whose states a folder keeps, in order.
pub fn kept_steps(folder: &Path) -> Vec<u64> {
    let files = fs::read_dir(folder.join("state")).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let step = |name: &str| name.strip_prefix("step-")?.strip_suffix(".safetensors")?.parse().ok();
    let mut steps: Vec<u64> = files.filter_map(|name| step(name.to_str()?)).collect();
    steps.sort_unstable();
    steps
}

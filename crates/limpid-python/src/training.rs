//! `train` and the windows that it reads. Their keywords are the library's settings, which it resolves as it does the
//! command's.

use crate::local::Local;
use crate::tensor::Tensor;
use crate::{Watch, model, raised};
use anyhow::{Error, Result, anyhow};
use limpid::checkpoint::Checkpoint;
use limpid::memory;
use limpid::ops::Batch;
use limpid::settings::{SettingsLayer, training_settings};
use limpid::train::{Control, Summary, TrainEvent};
use limpid::{Training, TrainingJob, TrainingPlan, data::Tokens};
use limpid_report::records;
use pyo3::prelude::*;
use pythonize::pythonize;
use serde_json::{Value, json};
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// What the command alone can do.
const TERMINAL: [&str; 6] = ["ui", "lr_find", "recipe", "serve", "json", "timeout"];

/// The keywords of `train`, and whether each takes a value.
#[pyfunction]
pub fn settings() -> Vec<(&'static str, bool)> {
    let all = training_settings().into_iter().map(|setting| (setting.name, !setting.value.is_empty()));
    let alone = TERMINAL.into_iter().filter(|name| *name != "recipe"); // a setting, too
    all.chain(alone.map(|name| (name, true))).chain([("config", true)]).collect()
}

fn for_a_terminal(name: &str) -> Error {
    anyhow!("{name} is for a terminal: run the command `limpid train`")
}

/// What keywords, the environment and a file ask for.
fn asked(settings: Vec<(String, OsString)>) -> Result<TrainingJob> {
    if let Some((name, _)) = settings.iter().find(|(name, _)| TERMINAL.contains(&name.as_str())) {
        return Err(for_a_terminal(name));
    }
    let (config, settings): (Vec<_>, Vec<_>) = settings.into_iter().partition(|(name, _)| name == "config");
    let config = config.into_iter().next().map(|(_, path)| path).or_else(|| env::var_os("LIMPID_CONFIG"));
    let known = training_settings();
    let environment = SettingsLayer::environment(&known, |name| env::var_os(name));
    let named = settings.iter().map(|(name, text)| (name.as_str(), text.clone()));
    let arguments = SettingsLayer::arguments(named)?;
    Ok(TrainingJob::new(vec![environment, arguments], config.as_deref().map(Path::new), &known)?)
}

/// The training, its model opened.
fn training(job: &TrainingJob) -> Result<Training> {
    let base = job.base().map(|from| Checkpoint::open_as(from, !job.machine.no_verify)).transpose()?;
    Ok(job.training(base)?)
}

/// Trains, and tells every event. Returns the run's folder.
fn run(job: &TrainingJob, tell: &mut dyn FnMut(&TrainingPlan, TrainEvent) -> Control) -> Result<(PathBuf, Summary)> {
    if job.job.recipe.is_some() {
        return Err(for_a_terminal("recipe"));
    }
    if let Some(folder) = job.named_folder().filter(|_| job.resumed().is_none()) {
        job.check_folder(&folder, env::home_dir())?;
    }
    let folder = job.folder(SystemTime::now())?;
    let plan = training(job)?.folder(&folder).check_folder()?.prepare()?;
    memory::fits(&plan.model, Some(&plan.recipe), &plan.placement)?;
    let device = plan.measured.as_ref().map(|why| format!("device: {} ({why})", plan.machine.device));
    for note in job.note.clone().into_iter().chain(device) {
        tell(&plan, TrainEvent::Notice(note));
    }
    let mut run = plan.start()?;
    let summary = run.go(&mut |event| tell(&plan, event))?;
    run.is_there()?;
    drop(run.into_log());
    let peak_rss_bytes = memory::peak_rss();
    let mut summary = Summary { entropy_floor: plan.entropy_floor(), peak_rss_bytes, ..summary };
    if let Err(error) = summary.write(&folder) {
        summary.missing.push(error.to_string());
    }
    records::write(&folder)?;
    Ok((folder, summary))
}

/// What a callback gets; of an update's layers nothing.
fn event(plan: &TrainingPlan, event: &TrainEvent) -> Option<Value> {
    Some(match event {
        TrainEvent::Step(step, seconds) => json!({
            "event": "step", "step": step.step, "steps": plan.recipe.steps, "loss": step.loss, "grad_norm": step.norm,
            "learning_rate": step.rate,
            "tokens": step.tokens, "seconds": seconds,
        }),
        TrainEvent::Validated { step, loss, tokens, best } => {
            let steps = plan.recipe.steps;
            json!({ "event": "validated", "step": step, "steps": steps, "loss": loss, "tokens": tokens, "best": best })
        }
        TrainEvent::Threads(step, times) => json!({ "event": "threads", "step": step, "threads": times.chosen }),
        TrainEvent::Saved(step) => json!({ "event": "saved", "step": step }),
        TrainEvent::Notice(text) => json!({ "event": "notice", "text": text }),
        _ => return None,
    })
}

/// Trains by these settings, and calls `tell` with every event, a dictionary. Returns the run's folder and its summary.
/// What `tell` raises, or Ctrl-C, saves the run, ends it and comes through.
#[pyfunction]
pub fn train(py: Python, settings: Vec<(String, OsString)>, tell: Py<PyAny>) -> PyResult<(PathBuf, Py<PyAny>)> {
    let (folder, summary) = py.detach(|| {
        let mut watch = Watch::new();
        let done = asked(settings).and_then(|job| {
            run(&job, &mut |plan, told| {
                if let Some(event) = event(plan, &told).filter(|_| watch.raised.is_none()) {
                    watch.ask(|py| tell.call1(py, (pythonize(py, &event)?,)).map(drop));
                }
                if watch.goes_on() { Control::Continue } else { Control::Stop }
            })
        });
        watch.end(done)
    })?;
    Ok((folder, pythonize(py, &summary)?.unbind()))
}

/// The text, its tokenizer and the windows of a training.
#[pyfunction]
pub fn open_dataset(py: Python, settings: Vec<(String, OsString)>) -> PyResult<Dataset> {
    let plan = |job: &TrainingJob| Ok::<_, anyhow::Error>(training(job)?.prepare()?);
    let plan = py.detach(|| asked(settings).and_then(|job| plan(&job))).map_err(raised)?;
    Ok(Dataset { steps: plan.recipe.steps, plan: Local::new(plan) })
}

/// A text as `train` reads it: the same split, the same windows in the same order.
#[pyclass(frozen, module = "limpid")]
pub struct Dataset {
    /// Steps of the training.
    #[pyo3(get)]
    steps: u64,
    plan: Local<TrainingPlan>,
}

impl Dataset {
    fn with<T>(&self, read: impl FnOnce(&TrainingPlan) -> T) -> PyResult<T> {
        self.plan.with(|plan| read(plan))
    }
}

fn ids(name: &str, tokens: &Tokens) -> Tensor {
    let mut ids = vec![];
    tokens.copy(0..tokens.len(), &mut ids);
    Tensor::whole(name, &["pos"], &[ids.len()], ids.into_iter().map(i64::from))
}

#[pymethods]
impl Dataset {
    /// The tokenizer of the text.
    #[getter]
    fn tokenizer(&self) -> PyResult<model::Tokenizer> {
        self.with(|plan| model::Tokenizer::new(plan.corpus.tokenizer.clone()))
    }

    /// The ids to train on, an int64 tensor `[pos]`.
    #[getter]
    fn train(&self) -> PyResult<Tensor> {
        self.with(|plan| ids("train", &plan.corpus.train))
    }

    /// The ids to validate on, an int64 tensor `[pos]`.
    #[getter]
    fn validation(&self) -> PyResult<Tensor> {
        self.with(|plan| ids("validation", &plan.corpus.validation))
    }

    /// The settings of the model: what `config.json` of the run would hold.
    #[getter]
    fn config(&self, py: Python) -> PyResult<Py<PyAny>> {
        let config = self.with(|plan| plan.config.clone())?;
        Ok(pythonize(py, &config)?.unbind())
    }

    /// The settings of the training.
    #[getter]
    fn recipe(&self, py: Python) -> PyResult<Py<PyAny>> {
        let recipe = self.with(|plan| plan.recipe)?;
        Ok(pythonize(py, &recipe)?.unbind())
    }

    /// The windows of step `step`, counted from 0, as two int64 tensors `[batch, pos]`: the tokens, and the token to
    /// predict at each; -100, which PyTorch's cross_entropy ignores, where there is none.
    fn batch(&self, step: u64) -> PyResult<(Tensor, Tensor)> {
        let (batch, width) = self.with(|plan| {
            let batches = plan.recipe.batches(&plan.corpus.train, plan.objective).map_err(raised)?;
            let (mut all, mut one) = (Batch::default(), Batch::default());
            for micro in 0..plan.recipe.accumulate as u64 {
                batches.fill(step, micro, &mut one);
                all.tokens.extend(&one.tokens);
                all.targets.extend(&one.targets);
            }
            Ok::<_, PyErr>((all, plan.recipe.context))
        })??;
        let shape = [batch.tokens.len() / width, width];
        let target = |id: u32| if id == limpid::ops::IGNORE { -100 } else { id.into() };
        let tokens = Tensor::whole("tokens", &["batch", "pos"], &shape, batch.tokens.into_iter().map(i64::from));
        Ok((tokens, Tensor::whole("targets", &["batch", "pos"], &shape, batch.targets.into_iter().map(target))))
    }
}

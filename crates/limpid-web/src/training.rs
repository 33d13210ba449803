//! A training in a page: settings as `limpid train` has them, in one thread, in a folder of the page's memory.
//!
//! It goes on for a moment at a time and saves its state, so that between two moments the page can stop it and take
//! what the folder holds. A run that ends so and goes on has the bits of one that never did.

use crate::{Result, answer};
use limpid::checkpoint::{Checkpoint, Format};
use limpid::settings::{SettingsLayer, training_settings};
use limpid::train::{Control, Run, Summary, TrainEvent};
use limpid::{Lm, TrainingJob, TrainingPlan, memory};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

/// Bytes that a training may take: a module addresses 4 GiB, and its own part and the text lie there too.
const MOST: u64 = 3 << 30;

/// Steps that are timed before a training begins; the first one, which touches its memory, is not counted.
const TIMED: usize = 4;

/// A training that has begun.
pub struct PageTraining {
    plan: &'static TrainingPlan,
    run: Run<'static>,
    folder: PathBuf,
}

/// The training that these settings ask for: a JSON object of texts, by the names that they have in limpid.toml.
fn plan(settings: &[u8]) -> Result<(TrainingPlan, PathBuf)> {
    let given: BTreeMap<String, String> = serde_json::from_slice(settings)?;
    let given = given.iter().map(|(name, text)| (name.as_str(), OsString::from(text)));
    let job = TrainingJob::new(vec![SettingsLayer::arguments(given)?], None, &training_settings())?;
    let folder = job.folder(SystemTime::now())?;
    let plan = job.training(None)?.folder(&folder).check_folder()?.prepare()?;
    let bytes = needed(&plan);
    if bytes > MOST {
        let [bytes, most] = [bytes, MOST].map(|bytes| bytes >> 20);
        return Err(format!(
            "this training takes {bytes} MiB, and a page has {most} MiB for one: choose a smaller preset or batch size"
        )
        .into());
    }
    Ok((plan, folder))
}

fn needed(plan: &TrainingPlan) -> u64 {
    memory::needed(&plan.model, Some(&plan.recipe), &plan.placement)
}

/// What a training of these settings would be, with the seconds that it would take here: a few steps are timed.
pub fn estimate(settings: &[u8]) -> Result<Value> {
    let (plan, _) = plan(settings)?;
    let mut trainer = plan.trainer()?;
    let batches = plan.recipe.batches(&plan.corpus.train, plan.objective)?;
    let (mut fastest, mut tokens) = (f64::MAX, 1);
    for n in 0..TIMED {
        let start = Instant::now();
        tokens = trainer.step(&batches)?.tokens;
        if n > 0 {
            fastest = fastest.min(start.elapsed().as_secs_f64());
        }
    }
    let (steps, options) = (plan.recipe.steps, &plan.options);
    // a validation goes forward alone, which is a third of a step
    let validated = match plan.corpus.validation.len() {
        0 => 0,
        all => steps.checked_div(options.eval_every).unwrap_or(0) * options.eval_tokens as u64 + all as u64,
    };
    let seconds = fastest * (steps as f64 + validated as f64 / tokens as f64 / 3.0);
    Ok(json!({
        "model": plan.config.to_string(), "parameters": plan.model.parameter_count(), "steps": steps,
        "tokens": plan.corpus.train.len(), "floor": plan.entropy_floor(), "bytes": needed(&plan), "seconds": seconds,
    }))
}

impl PageTraining {
    /// Begins, or goes on with what the folder holds if the settings say so (`resume`).
    pub fn begin(settings: &[u8]) -> Result<PageTraining> {
        let (plan, folder) = plan(settings)?;
        // the run reads its texts; a worker has one training, and ends with it
        let plan: &'static TrainingPlan = Box::leak(Box::new(plan));
        let mut run = plan.start()?;
        run.saves_first = true;
        Ok(PageTraining { plan, run, folder })
    }

    /// How far it is.
    pub fn place(&self) -> Value {
        json!({
            "step": self.run.trainer.steps_done(), "steps": self.plan.recipe.steps, "floor": self.plan.entropy_floor(),
        })
    }

    /// Trains for so long, and saves. What the run has to say goes to `note`.
    pub fn go_on(&mut self, time: Duration, note: &mut dyn FnMut(&str)) -> Result<Value> {
        let start = Instant::now();
        let summary = self.run.go(&mut |event| match event {
            TrainEvent::Step(..) if start.elapsed() >= time => Control::Stop,
            TrainEvent::Notice(what) => {
                note(&what);
                Control::Continue
            }
            _ => Control::Continue,
        })?;
        let summary = Summary { entropy_floor: self.plan.entropy_floor(), ..summary };
        summary.write(&self.folder)?;
        let mut place = self.place();
        if !summary.stopped {
            place["summary"] = serde_json::to_value(&summary)?;
        }
        Ok(place)
    }
}

thread_local! {
    static TRAINING: RefCell<Option<PageTraining>> = const { RefCell::new(None) };
}

/// Writes a model as GGUF: the input is its name and the file's, as a list.
// SAFETY: no other function of the module has this name.
#[unsafe(no_mangle)]
pub extern "C" fn limpid_convert() {
    answer(|input| {
        let (name, file): (PathBuf, PathBuf) = serde_json::from_slice(input)?;
        Lm::from(Checkpoint::open_copied(&name)?).save(&file, Format::Gguf)?;
        Ok(Value::Null)
    });
}

/// Says what a training of these settings would take.
// SAFETY: no other function of the module has this name.
#[unsafe(no_mangle)]
pub extern "C" fn limpid_plan() {
    answer(estimate);
}

/// Begins a training, and says how far it is.
// SAFETY: no other function of the module has this name.
#[unsafe(no_mangle)]
pub extern "C" fn limpid_train() {
    answer(|settings| {
        let training = PageTraining::begin(settings)?;
        let place = training.place();
        TRAINING.set(Some(training));
        Ok(place)
    });
}

/// Goes on with the training: the input is for how many milliseconds. Says how far it is then, and its summary if it
/// has ended.
// SAFETY: no other function of the module has this name.
#[unsafe(no_mangle)]
pub extern "C" fn limpid_continue() {
    answer(|input| {
        let time = Duration::from_millis(serde_json::from_slice(input)?);
        TRAINING.with_borrow_mut(|training| {
            let training = training.as_mut().ok_or("no training has begun")?;
            let mut notes = vec![];
            let mut place = training.go_on(time, &mut |what| notes.push(what.to_string()))?;
            place["notes"] = notes.into();
            Ok(place)
        })
    });
}

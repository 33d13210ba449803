//! `check`: three short tests that a configuration can learn.

use crate::llmc;
use crate::options::{Asked, Flags, Usage};
use crate::show;
use crate::training::TrainingArgs;
use anyhow::{Result, bail};
use limpid::backend::{Backend, Reference};
use limpid::config::{Config, Setting, Settings, settings};
use limpid::data::Tokens;
use limpid::memory;
use limpid::model::{Component, Mode, Model, ParamRole};
use limpid::numeric::random;
use limpid::ops::Batch;
use limpid::train::{Batches, Objective, PreflightReport, WindowShape};
use limpid::train::{PreflightError, Recipe, Schedule, Trainer};
use limpid::{Machine, TrainingPlan};
use std::path::{Path, PathBuf};

/// Check gradients numerically and overfit one batch.
///
/// Compares gradients with finite differences, runs the check that comes before the first step of a training
/// (preflight), and overfits one batch. Takes the flags of `train`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    train: TrainingArgs,
    #[command(flatten)]
    check: Asked<CheckSettings>,
}

settings! {
    /// What `check` has beside the settings of a training.
    #[derive(Clone, PartialEq, Debug)]
    pub struct CheckSettings {
        /// Instead, compare a .bin of llm.c (--from) with the debug state that lies beside it, as llm.c's test_gpt2
        /// does: logits, loss, every gradient, and the losses of ten steps
        against: Option<PathBuf> = None, Setting::of("STATE");
    }
}
impl Settings for CheckSettings {}
impl Flags for CheckSettings {
    const HEADING: Option<&'static str> = None;
}

#[derive(serde::Serialize)]
struct Verdict {
    name: &'static str,
    passed: bool,
    found: String,
}

pub fn run(Args { train, check }: Args) -> Result<()> {
    let (asked, CheckSettings { against }) = train.resolved(&check)?;
    if let Some(state) = &against {
        let Some(model) = &asked.tuning.from else {
            bail!(Usage(
                "--against compares a model of llm.c with its debug state: name the model with --from MODEL.bin".into()
            ));
        };
        let passed = llmc::test(Path::new(model), state, &asked.machine, asked.json)?;
        return if passed { Ok(()) } else { bail!("{model} is not the model of {}: see above", state.display()) };
    }
    let plan = asked.prepare()?;
    let context = plan.recipe.context.min(32);
    let model = Model::new(&plan.config, Mode::Train { batch: 2, context })?;
    memory::fits(&model, Some(&plan.recipe), &plan.machine)?;
    let verdicts = [gradients(&plan)?, preflight(&plan, &model, context)?, overfit(&plan, &model, context)?];
    let passed = verdicts.iter().all(|v| v.passed);
    if asked.json {
        show::json(&serde_json::json!({ "passed": passed, "checks": verdicts }))?;
    } else {
        let row = |v: &Verdict| (v.name, format!("{}  {}", if v.passed { "ok    " } else { "FAILED" }, v.found));
        let rows = verdicts.each_ref().map(row);
        show::out(&format!("{}: {}\n\n{}", asked.name(), plan.config, show::pairs(&rows)))?;
    }
    if passed { Ok(()) } else { bail!("this configuration failed a check: see above") }
}

/// The same choices at sizes where f64 and finite differences are quick.
fn tiny(config: &Config) -> Config {
    Config {
        vocab_size: 11,
        context_length: 6,
        d_model: 12,
        d_embed: config.d_embed.map(|_| 7),
        n_head: 3.min(config.n_head),
        n_kv_head: config.n_kv_head.map(|_| 1),
        d_head: None,
        n_layer: config.n_layer.min(2),
        d_ff: 10,
        ..config.clone()
    }
}

fn gradients(plan: &TrainingPlan) -> Result<Verdict> {
    let mut config = tiny(&plan.config);
    if !config.d_model.is_multiple_of(config.n_head) || !(config.d_model / config.n_head).is_multiple_of(2) {
        config.n_head = 2;
    }
    let model = Model::new(&config, Mode::Train { batch: 2, context: 5 })?;
    let mut reference = Reference::new(&model);
    for param in &model.params {
        let value = |i| {
            (if (param.module.part, param.role) == (Component::FirstNorm, ParamRole::Gain) { 1.0 } else { 0.0 }
                + 0.4 * random::normal(3, random::site(&param.name), i)) as f32
        };
        reference.write(param.region, &(0..param.region.len() as u64).map(value).collect::<Vec<_>>())?;
    }
    let ids = |site| (0..10).map(|i| random::below(5, site, i, 11) as u32).collect::<Vec<_>>();
    let batch = Batch { seed: Some(7), ..Batch::of_sequences(ids(1), ids(2), 5) };
    reference.feed(&batch)?;
    reference.forward(model.body())?;
    reference.backward(model.back())?;
    let losses = model.losses().expect("a model to train has losses");
    let mut worst = 0.0;
    let mut of = String::new();
    let mut tried = 0;
    for param in &model.params {
        let grads = reference.exact(param.region.grad()).to_vec();
        for i in (0..grads.len()).step_by(1 + grads.len() / 6) {
            let keep = reference.exact(param.region)[i];
            let h = 1e-5;
            let mut at = |value: f64| -> Result<f64> {
                reference.exact_mut(param.region)[i] = value;
                reference.forward(model.ops())?;
                Ok(reference.exact(losses).iter().sum::<f64>() * f64::from(batch.weight))
            };
            let slope = (at(keep + h)? - at(keep - h)?) / (2.0 * h);
            at(keep)?;
            let size = slope.abs().max(grads[i].abs());
            let error = if size > 1e-5 { (slope - grads[i]).abs() / size } else { 0.0 };
            tried += 1;
            if error > worst {
                (worst, of) = (error, format!("{}[{i}]", param.name));
            }
        }
    }
    let found = format!(
        "{tried} gradients of a small model with these choices, worst relative error {worst:.1e}{}",
        if of.is_empty() { of } else { format!(" ({of})") }
    );
    Ok(Verdict { name: "gradients against finite differences", passed: worst < 1e-4, found })
}

/// A trainer on small batches, with the weights that `train` would begin with.
fn trainer(model: &Model, machine: &Machine, recipe: Recipe) -> Result<Trainer> {
    Ok(Trainer::new(model.clone(), machine.start(model)?, recipe)?)
}

fn preflight(plan: &TrainingPlan, model: &Model, context: usize) -> Result<Verdict> {
    let recipe = Recipe { batch_size: 2, accumulate: 1, context, ..plan.recipe };
    let batches = recipe.batches(&plan.corpus.train, plan.objective)?;
    let seen = limpid::train::preflight(&mut trainer(model, &plan.machine, plan.recipe)?, &batches);
    if let Err(PreflightError::Backend(error)) = seen {
        return Err(error.into());
    }
    let found = match &seen {
        Ok(PreflightReport { loss, uniform }) => format!(
            "gradients reach all {} tensors and are finite; all are updated; micro-batches add up; first loss \
             {loss:.4}, ln V is {uniform:.4}",
            model.params.len()
        ),
        Err(error) => error.to_string(),
    };
    Ok(Verdict { name: "preflight", passed: seen.is_ok(), found })
}

fn overfit(plan: &TrainingPlan, model: &Model, context: usize) -> Result<Verdict> {
    let recipe = Recipe {
        learning_rate: 3e-3,
        schedule: Schedule::Constant,
        warmup_steps: 0,
        weight_decay: 0.0,
        accumulate: 1,
        ..plan.recipe
    };
    let mut config = model.config.clone();
    config.dropout = limpid::config::Dropout::NONE;
    let model = Model::new(&config, model.mode)?;
    let mut trainer = trainer(&model, &plan.machine, recipe)?;
    // one window, twice: the same batch at every step
    let mut text = vec![];
    plan.corpus.train.copy(0..plan.corpus.train.len().min(context + 1), &mut text);
    let context = context.min(text.len() - 1);
    let text = Tokens::new(text);
    let batches = Batches::new(&text, WindowShape::new(context, plan.objective), 2, plan.recipe.seed)?;
    let mut first = None;
    let mut last = f64::INFINITY;
    let mut steps = 0;
    while steps < 300 && last > 0.1 * first.unwrap_or(f64::INFINITY).min(1e9) {
        let Some(loss) = trainer.step(&batches)?.loss else { bail!("the training text has no token to predict") };
        last = loss;
        first.get_or_insert(last);
        if plan.objective != Objective::NextToken {
            trainer.set_steps_done(0); // the same masks again
        }
        steps += 1;
    }
    let first = first.unwrap_or(last);
    let found = format!("loss {first:.3} to {last:.3} in {steps} steps on one batch");
    Ok(Verdict { name: "overfit one batch", passed: last < 0.1 * first, found })
}

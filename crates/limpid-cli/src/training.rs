//! The common part of `train`, `plan` and `check`: the flags that say what to train; what a training costs, and what
//! would fit if it is too large.

use crate::machine::fits_text;
use crate::options::{self, Asked, Flags, MachineOptions, Usage};
use crate::{devices, models, show, source};
use anyhow::{Context, Result, bail};
use limpid::config::{Config, Mask, Setting, Settings, settings};
use limpid::matrix::Precision;
use limpid::memory::{Limit, lacking, needed};
use limpid::model::recompute::KeepLevel;
use limpid::model::{Mode, Model, Tuning};
use limpid::settings::{
    JobSettings, MachineSettings, Origin, SettingsLayer, TextSettings, TuningSettings, training_settings,
};
use limpid::train::ranks::check_micros;
use limpid::train::{Recipe, RunOptions};
use limpid::{Training, TrainingJob, TrainingPlan};
use std::ffi::OsString;
use std::ops::Deref;
use std::path::PathBuf;

settings! {
    /// What only the command does for a training.
    #[derive(Clone, PartialEq, Debug)]
    pub struct ScreenSettings {
        /// Run the learning-rate finder: short trainings at several rates, with the final loss of each. Nothing is
        /// written
        lr_find: bool = false, Setting::of("").also(&["find-rate", "find-lr"]).excludes(&["resume"]);
        /// Show live curves and numbers in the terminal; q saves and stops
        ui: bool = false, Setting::of("BOOL").common();
    }
}
impl Settings for ScreenSettings {}
impl Flags for ScreenSettings {
    const HEADING: Option<&'static str> = None;
}

settings! {
    /// The processes around a training.
    #[derive(Clone, PartialEq, Debug)]
    pub struct ProcessSettings {
        /// With several processes (mpirun; docs/scale.md): stop all of them when one has not answered for this many
        /// seconds; 0 waits forever
        timeout: u64 = 600, Setting::of("SECONDS").default_text("600");
        /// Serve the page of the run while it trains, as `serve --follow` does: its time-lapse (--probe), its newest
        /// checkpoint [default of HOST:PORT: 127.0.0.1:8080; port 0 picks a free one]
        serve: Option<String> = None,
            Setting::of("HOST:PORT").common().alone("127.0.0.1:8080").excludes(&["lr_find", "recipe"]);
    }
}
impl Settings for ProcessSettings {}
impl Flags for ProcessSettings {
    const HEADING: Option<&'static str> = None;
}

/// What is to be trained, and how: the flags.
#[derive(clap::Args, Clone, Debug)]
pub struct TrainingArgs {
    /// The text to train on: the same as --data
    #[arg(id = options::TEXT, value_name = "TEXT", conflicts_with = "data")]
    text: Option<OsString>,
    /// Read settings from a TOML or JSON file
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print only the summary, as JSON on stdout
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    job: Asked<JobSettings>,
    #[command(flatten)]
    screen: Asked<ScreenSettings>,
    #[command(flatten)]
    tuning: Asked<TuningSettings>,
    #[command(flatten)]
    reading: Asked<TextSettings>,
    #[command(flatten)]
    model: Asked<Config>,
    #[command(flatten)]
    recipe: Asked<Recipe>,
    #[command(flatten)]
    run: Asked<RunOptions>,
    #[command(flatten)]
    machine: Asked<MachineSettings>,
}

impl TrainingArgs {
    /// What is asked for, by these flags, those that the verb has besides, and in other places.
    pub fn resolved<M: Flags>(self, more: &Asked<M>) -> Result<(AskedTraining, M)> {
        let tables = [
            &self.job.settings,
            &self.screen.settings,
            &self.tuning.settings,
            &self.reading.settings,
            &self.model.settings,
            &self.recipe.settings,
            &self.run.settings,
            &self.machine.settings,
            &more.settings,
        ];
        let mut layers = [Origin::Environment, Origin::Flags].map(SettingsLayer::new);
        for given in tables.iter().flat_map(|table| &table.layers) {
            let layer = layers.iter_mut().find(|layer| layer.origin == given.origin);
            layer.into_iter().for_each(|layer| layer.values.extend(given.values.iter().cloned()));
        }
        let mut known = training_settings();
        let screen = ScreenSettings::default();
        let usual = M::default();
        known.extend(screen.choices().into_iter().chain(usual.choices()).map(|(setting, _)| setting));
        if let Some(text) = self.text {
            let data = known.iter().find(|setting| setting.name == "data").expect("it is a setting");
            layers[1].values.push((data, text));
        }
        let asked = TrainingJob::new(layers.into(), self.config.as_deref(), &known)?;
        asked.note.iter().for_each(|note| show::say(format_args!("note: {note}")));
        // a wrong value is told before a model is opened
        asked.settings.over(&Config::default())?;
        asked.settings.over(&Recipe::default())?;
        asked.settings.over(&RunOptions::default())?;
        let (screen, more) = (asked.settings.checked(&screen)?, asked.settings.checked(&usual)?);
        let machine = asked.machine.clone().into();
        Ok((AskedTraining { asked, screen, machine, json: self.json }, more))
    }
}

/// What is asked for, with what the command does of it.
pub struct AskedTraining {
    asked: TrainingJob,
    pub screen: ScreenSettings,
    pub machine: MachineOptions,
    pub json: bool,
}

impl Deref for AskedTraining {
    type Target = TrainingJob;
    fn deref(&self) -> &TrainingJob {
        &self.asked
    }
}

impl AskedTraining {
    /// All that `plan` and `check` decide before memory is reserved.
    pub fn prepare(&self) -> Result<TrainingPlan> {
        planned(self.training()?)
    }

    /// The training, its model opened.
    pub fn training(&self) -> Result<Training> {
        fits_text(self.machine.threads())?;
        let base = match self.base() {
            Some(from) => {
                let base = models::checkpoint(from, !self.machine.no_verify).context("--from")?;
                if !base.adapters.is_empty() && self.tuning.lora.is_some() {
                    let from = show::quoted(from);
                    bail!(
                        "{from} is an adapter itself: merge it first, with `limpid convert {from} MERGED --to limpid`"
                    );
                }
                Some(base)
            }
            None => None,
        };
        Ok(self.asked.training(base)?)
    }

    /// The model and the recipe of a race, whose track decides the text, its tokenizer and when to evaluate.
    pub fn raced(&self) -> Result<(Config, Recipe, Precision)> {
        let others = ["from", "lora", "freeze", "train_only", "resume", "recipe", "epochs", "add_special_tokens"];
        if let Some(name) = others.into_iter().find(|name| self.settings.has(name)) {
            bail!(Usage(format!("{name}: a race trains a new model for a number of steps; remove it from the recipe")));
        }
        if let Some(name) = ["data", "tokenizer", "val_fraction"].into_iter().find(|name| self.settings.has(name)) {
            bail!(Usage(format!("{name}: the track decides it; remove it from the recipe")));
        }
        let (config, recipe, _) = self.chosen(None)?;
        Ok((config, recipe, self.machine.precision))
    }
}

/// The plan of a training, with a word about its device.
pub fn planned(training: Training) -> Result<TrainingPlan> {
    let plan = training.prepare().map_err(source::of_library)?;
    devices::tell(&plan.machine, plan.measured.as_deref());
    Ok(plan)
}

/// More passes over a text than this are told.
const MANY_PASSES: f64 = 10.5;

/// How long the run is, where that follows from the text or is long for it.
pub fn length(plan: &TrainingPlan) -> Vec<String> {
    let (name, steps) = (&plan.corpus.about.name, show::plural(plan.recipe.steps, "step"));
    let passes = plan.passes().unwrap_or_default();
    let mut said = vec![];
    if let Some(fitted) = plan.fitted.filter(|fitted| !fitted.judged) {
        let few = match (fitted.validated, plan.corpus.validation.is_empty()) {
            (0, true) => "nothing is kept for validation".into(),
            (n, true) => format!(
                "{} to validate on would be too few to judge by, so all of the text is trained on (--val-fraction \
                 keeps some)",
                show::plural(n, "token")
            ),
            (n, false) => format!("{} to validate on are too few to judge by", show::plural(n, "token")),
        };
        said.push(format!("{name}: {few}; the last weights are kept"));
    }
    let times = if passes < 10.0 { format!("{passes:.1}") } else { show::commas(passes.round() as u64) };
    match plan.fitted.filter(|fitted| fitted.shorter) {
        Some(fitted) if fitted.judged && plan.options.patience > 0 => said.push(format!(
            "a small text: at most {steps}, which pass over it {times} times (--steps for another number); training \
             ends when {} find no lower loss",
            show::plural(plan.options.patience, "validation")
        )),
        Some(_) => {
            said.push(format!("a small text: {steps}, which pass over it {times} times (--steps for another number)"))
        }
        None if passes > MANY_PASSES => said.push(format!("{steps} pass over the text {times} times")),
        None => {}
    }
    said
}

/// FLOPs of a step, forward and backward; the recipe's context is the one trained on.
pub fn step_flops(model: &Model, recipe: &Recipe) -> f64 {
    recipe.accumulate as f64 * model.training_flops(recipe.batch_size * recipe.context, keys(model, recipe))
}

/// FLOPs of what a step recomputes, as a share of [`step_flops`].
pub fn extra_work(model: &Model, recipe: &Recipe) -> f64 {
    let again = model.recompute_flops(recipe.batch_size * recipe.context, keys(model, recipe));
    recipe.accumulate as f64 * again / step_flops(model, recipe)
}

/// Keys that a row sees on average.
pub fn keys(model: &Model, recipe: &Recipe) -> usize {
    if model.config.mask == Mask::Causal { recipe.context.div_ceil(2) } else { recipe.context }
}

/// What the backward pass recomputes, block by block, and the work that costs.
pub fn recomputes(model: &Model, recipe: &Recipe) -> String {
    let stretch = |(blocks, keep): (std::ops::Range<usize>, KeepLevel)| match blocks.len() {
        n if n == model.config.n_layer => keep.recomputes().to_string(),
        1 => format!("{} in block {}", keep.recomputes(), blocks.start),
        _ => format!("{} in blocks {} to {}", keep.recomputes(), blocks.start, blocks.end - 1),
    };
    let stretches: Vec<String> = model.keep_levels().into_iter().map(stretch).collect();
    format!("{} (+{:.1} % FLOPs)", stretches.join(", "), 100.0 * extra_work(model, recipe))
}

/// A training that does not fit into this machine's memory.
pub struct TooLarge {
    needed: u64,
    limit: Limit,
    /// Flags with which it would, and what it takes then.
    pub fitting: Vec<(String, u64)>,
}

impl TooLarge {
    /// What `plan` says and `train` refuses with.
    pub fn text(&self) -> String {
        let (needed, available) = (show::bytes(self.needed), show::bytes(self.limit.left));
        let fitting: Vec<_> = self.fitting.iter().map(|(flags, bytes)| (flags, show::bytes(*bytes))).collect();
        let would = match &fitting[..] {
            [] => "a smaller model would fit (--n-layer, --d-model, --preset)".into(),
            _ => format!("with one of these it would fit:\n{}", show::pairs(&fitting).trim_end()),
        };
        format!("training this model needs {needed} of memory and {available} are {}; {would}", self.limit.said)
    }
}

/// Whether a training is too large for the memory that is available, and what of it would fit: with more recomputed,
/// fewer sequences at once, shorter ones, fewer blocks, or an adapter for a model that has learned already.
pub fn too_large(plan: &TrainingPlan) -> Result<Option<TooLarge>> {
    let TrainingPlan { config, recipe, placement, .. } = plan;
    let takes = |model: &Model, recipe: &Recipe| needed(model, Some(recipe), placement) + plan.program;
    let Some((needed, limit)) = lacking(&plan.model, Some(recipe), placement) else { return Ok(None) };
    // a little is left to the system, and what is only reserved is no part of what a model takes
    let budget = (limit.left - limit.left / 16 + plan.program)
        .saturating_sub((needed + plan.program).saturating_sub(takes(&plan.model, recipe)));
    let mut fitting = vec![];
    let recompute_levels = |n_layer: usize| (0..KeepLevel::ALL.len()).map(move |level| level * n_layer);
    let mut offer = |flags: &str, config: &Config, recipe: &Recipe, tuning: &Tuning| {
        let shared = check_micros(placement.processes[0], recipe.accumulate as u64, recipe.batch_size);
        if recipe.check().is_err() || shared.is_err() {
            return false;
        }
        let mode = Mode::Train { batch: recipe.batch_size, context: recipe.context };
        let takes = |model: &Model| takes(model, recipe);
        // a model for every recompute level would be too many; the levels between these need no less memory
        let may = |recompute_level| {
            Model::at_recompute_level(config, mode, tuning, recompute_level).is_ok_and(|model| takes(&model) <= budget)
        };
        if !recompute_levels(config.n_layer).any(may) {
            return false;
        }
        let Ok(model) = Model::within(config, mode, tuning, budget, takes) else { return false };
        let again =
            if model.recompute_level > 0 { format!(" --memory {}M", budget / 1_000_000) } else { String::new() };
        fitting.push((format!("{flags}{again}").trim().to_string(), takes(&model)));
        true
    };
    let tuning = &plan.model.tuning;
    let one = Recipe { batch_size: 1, accumulate: recipe.batch_size * recipe.accumulate, ..*recipe };
    let same_step = format!("--batch-size 1 --accumulate {}", one.accumulate);
    let shorter = |context: usize| {
        (format!("--batch-size 1 --context {context}"), Recipe { context, accumulate: recipe.accumulate, ..one })
    };
    let halves = || std::iter::successors(Some(recipe.context / 2), |t| Some(t / 2)).take_while(|t| *t >= 64);
    offer("", config, recipe, tuning);
    let whole = recipe.batch_size > 1 && offer(&same_step, config, &one, tuning);
    let short = whole
        || halves().any(|context| {
            let (flags, recipe) = shorter(context);
            offer(&flags, config, &recipe, tuning)
        });
    if !short {
        // not for want of room for a batch: the weights with their gradients and moments are too many
        let (flags, short) = shorter(recipe.context.min(256));
        // the most blocks of which the smallest plan fits
        let fewer = |n_layer| Config { n_layer, ..config.clone() };
        let mode = Mode::Train { batch: 1, context: short.context };
        let least = |n| Model::at_recompute_level(&fewer(n), mode, tuning, Model::recompute_levels(&fewer(n)));
        let fits = |n: &usize| least(*n).is_ok_and(|model| takes(&model, &short) <= budget);
        let counts: Vec<usize> = (1..config.n_layer).collect();
        let n_layer = counts.partition_point(fits);
        if n_layer > 0 {
            offer(&format!("--n-layer {n_layer} {flags}"), &fewer(n_layer), &short, tuning);
        }
        if plan.base().is_none() {
            let adapter = TuningSettings { lora: Some(16), ..TuningSettings::default() }.tuning();
            offer(&format!("--from MODEL --lora 16 {flags}"), config, &short, &adapter);
        }
    }
    Ok(Some(TooLarge { needed, limit, fitting }))
}

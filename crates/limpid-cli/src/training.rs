//! The common part of `train`, `plan` and `check`: the flags that say what to train; what a training costs, and what would fit if it is
//! too large.

use crate::machine::fits_text;
use crate::options::{self, Asked, MachineOptions, ModelOptions, TextOptions, TuningOptions, Usage};
use crate::{models, show, source};
use anyhow::{Context, Result, bail};
use limpid::checkpoint::Checkpoint;
use limpid::config::{Config, Mask, Preset, axis, parse_axis};
use limpid::matrix::Precision;
use limpid::memory::{Limit, lacking, needed};
use limpid::model::recompute::KeepLevel;
use limpid::model::{Mode, Model, Tuning};
use limpid::train::ranks::check_micros;
use limpid::train::{Recipe, Run, RunOptions, RunSettings};
use limpid::{Training, TrainingPlan};
use std::path::{Path, PathBuf};

/// Tokens of the sample at the end, where nothing else is said.
pub const SAMPLE: usize = 120;

axis! {
    /// A program whose training is repeated, with what it prints.
    Workflow, "recipe" {
        /// llm.c's train_gpt2.
        Llmc = "llmc",
    }
}

/// The text that is trained on unless another is named.
const BUILT_IN: &str = "builtin:stories";

/// What is to be trained, and how.
#[derive(clap::Args, Clone, Debug)]
pub struct TrainingArgs {
    /// The text to train on: the same as --data
    #[arg(id = options::TEXT, value_name = "TEXT", conflicts_with = "data")]
    text: Option<String>,
    /// A file, folder or pattern of text, JSON lines and parquet (also .gz, .zst), a folder of `data prepare`, llm.c's .bin,
    /// conversations (JSON, parquet), - for standard input, builtin:stories (builtin:stories:20M for more), or a document's example:
    /// builtin:s0, s0-three, s1, s3 (docs/data.md)
    #[arg(long, value_name = "FILE|DIR", default_value = BUILT_IN, alias = "dataset")]
    data: String,
    /// bpe (byte pairs learned from the text; bpe:SIZE sets the vocabulary size), char, word, gpt2, cl100k_base, o200k_base, a
    /// tokenizer.json, or the words of a document's example: s0, s0-three, s3; NAME:dense keeps only the ids that the text uses
    /// (cl100k_base:dense) [default: the example's own, else bpe or what suits the preset]
    #[arg(long, value_name = "NAME")]
    pub tokenizer: Option<String>,
    /// Train on conversations with this Jinja chat template [default: the model's own, else limpid's; docs/chat.md]
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub chat_template: Option<PathBuf>,
    /// Add these special tokens to the tokenizer; when fine-tuning (--from), each gets a new row, the mean of the model's other rows
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', conflicts_with = "lora", hide_short_help = true)]
    pub add_special_tokens: Vec<String>,
    /// Folder for the model and the log [default: runs/PRESET-TIME]
    #[arg(long, value_name = "DIR", aliases = ["out-dir", "output-dir"])]
    pub out: Option<PathBuf>,
    /// Train into --out even if it holds something else; a model there is replaced
    #[arg(long, requires = "out", conflicts_with = "resume", hide_short_help = true)]
    pub force: bool,
    /// Passes over the training text, instead of --steps (3, or 0.5 for half of it)
    #[arg(long, value_name = "N", conflicts_with = "steps", value_parser = options::epochs, aliases = ["num-epochs", "num-train-epochs"])]
    epochs: Option<f64>,
    /// Resume a run: its folder, or `auto` for the newest run (or for --out, if that run has begun)
    #[arg(long, value_name = "auto|DIR", aliases = ["resume-from-checkpoint"])]
    pub resume: Option<String>,
    /// Resume from the state kept after step N (--keep) instead of the last
    #[arg(long, value_name = "N", requires = "resume", hide_short_help = true)]
    pub resume_step: Option<u64>,
    /// Train as another program does and print what it prints: llmc (llm.c's train_gpt2: --preset llmc-gpt2, its settings, and its
    /// batches; docs/training.md). Nothing is saved unless --out is given
    #[arg(long = "recipe", value_name = "NAME", value_parser = parse_axis::<Workflow>, hide_short_help = true,
          conflicts_with_all = ["resume", "lr_find", "lora", "freeze", "train_only"])]
    pub workflow: Option<Workflow>,
    /// Run the learning-rate finder: short trainings at several rates, with the final loss of each. Nothing is written
    #[arg(long, aliases = ["find-rate", "find-lr"], conflicts_with = "resume", hide_short_help = true)]
    pub lr_find: bool,
    /// Read settings from a TOML or JSON file
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Train within this much memory (2G, 800M, 1.5GiB): activations that do not fit are recomputed; results stay the same
    #[arg(long, value_name = "SIZE", value_parser = options::bytes)]
    pub memory: Option<u64>,
    /// Length of the sample printed at the end, in tokens; 0 for none
    #[arg(long, value_name = "N", default_value_t = SAMPLE, hide_short_help = true)]
    pub sample: usize,
    /// Show live curves and numbers in the terminal; q saves and stops
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", hide_default_value = true, hide_possible_values = true)]
    pub ui: bool,
    /// The text that --probe looks at [default: the first 64 tokens of the validation text]
    #[arg(long, value_name = "TEXT", hide_short_help = true)]
    probe_text: Option<String>,
    /// Print only the summary, as JSON on stdout
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub tuning: TuningOptions,
    #[command(flatten)]
    pub reading: TextOptions,
    #[command(flatten)]
    pub model: ModelOptions,
    #[command(flatten)]
    pub recipe: Asked<Recipe>,
    #[command(flatten)]
    pub run: Asked<RunOptions>,
    #[command(flatten)]
    pub machine: MachineOptions,
}

impl TrainingArgs {
    /// What the model is called: its preset, or the name of the one that is fine-tuned.
    pub fn name(&self) -> String {
        match (&self.tuning.from, self.workflow) {
            (Some(from), _) => {
                Path::new(from).file_stem().map_or(from.clone(), |name| name.to_string_lossy().into_owned())
            }
            (None, Some(Workflow::Llmc)) => self.model.clone().or("llmc-gpt2").name().into(),
            (None, None) => self.model.name().into(),
        }
    }

    /// All that `train`, `plan` and `check` decide before memory is reserved.
    pub fn prepare(&self) -> Result<TrainingPlan> {
        self.training()?.prepare().map_err(source::of_library)
    }

    /// What the flags ask for.
    pub fn training(&self) -> Result<Training> {
        if self.machine.precision == Precision::Int8 {
            bail!(Usage("--precision int8: products of integers have no gradient; training takes f32 or bf16".into()));
        }
        fits_text(self.machine.threads())?;
        let (base, given) = self.base()?;
        let (config, usual) = self.settings(given.as_ref())?;
        let (recipe, options) = (self.recipe.over(&usual.recipe)?, self.run.over(&usual.options)?);
        RunSettings { recipe, options }.check()?;
        let resumed = self.resumed();
        if resumed.as_ref().is_none_or(|folder| !folder.join("tokenizer.json").exists()) {
            self.check_tokenizer(base.as_ref())?;
        }
        let data = self.text.as_ref().unwrap_or(&self.data);
        let mut text = source::source(data, &self.reading, &self.machine);
        text.tokenizer.clone_from(&self.tokenizer);
        text.default_tokenizer = default_tokenizer(data, &self.name()).into();
        let chosen = ["whole_documents", "cross_documents", "warmup_steps", "val_fraction", "eval_every", "patience"];
        let chosen = chosen.into_iter().filter(|name| self.recipe.has(name) || self.run.has(name));
        let keeps_vocabulary = given.is_some() || self.model.has("vocab_size");
        let machine = self.machine.clone();
        let mut training = match base {
            Some(base) => Training::fine_tuning(base.into()),
            // a model that is trained on is no preset
            None if given.is_some() => Training::new(config.clone(), recipe),
            None => Training::new(config.clone(), recipe).noting("preset", self.name()),
        };
        training = training
            .config(config)
            .tuning(self.tuning.tuning())
            .recipe(recipe)
            .options(options)
            .source(text)
            .keeping(chosen.chain(keeps_vocabulary.then_some("vocab_size")))
            .special_tokens(self.add_special_tokens.clone())
            .machine(self.machine.machine())
            .choose_machine(move |config, mode| {
                machine.measure(config, mode);
                machine.machine()
            });
        if let Some(epochs) = self.epochs {
            training = training.epochs(epochs);
        } else if !self.recipe.has("steps") && self.workflow.is_none() && resumed.is_none() {
            training = training.fitting_text();
        }
        if let Some(bytes) = self.memory {
            training = training.memory(bytes);
        }
        if let Some(text) = &self.probe_text {
            if !options.probe {
                bail!(Usage("--probe-text is what --probe looks at: give --probe too".into()));
            }
            training = training.noting("probe_text", text).probe_text(text);
        }
        if self.sample != SAMPLE {
            training = training.noting("sample", self.sample.to_string());
        }
        if let Some(file) = &self.chat_template {
            training = training.noting("chat_template", std::path::absolute(file)?.display().to_string());
            // a run has its template in its folder
            if resumed.is_none() {
                training = training.chat_template(source::read_file(file).context("--chat-template")?);
            }
        }
        Ok(match resumed {
            Some(folder) => training.folder(folder).resume(),
            None => training,
        })
    }

    /// The model and the recipe of a race, whose track decides the text, its tokenizer and when to evaluate.
    pub fn raced(&self) -> Result<(Config, Recipe, Precision)> {
        let others = [
            ("from", self.tuning.from.is_some()),
            ("lora", self.tuning.lora.is_some()),
            ("freeze", !self.tuning.freeze.is_empty()),
            ("train_only", !self.tuning.train_only.is_empty()),
            ("resume", self.resume.is_some()),
            ("recipe", self.workflow.is_some()),
            ("epochs", self.epochs.is_some()),
            ("add_special_tokens", !self.add_special_tokens.is_empty()),
        ];
        if let Some((name, _)) = others.iter().find(|(_, given)| *given) {
            bail!(Usage(format!("{name}: a race trains a new model for a number of steps; remove it from the recipe")));
        }
        let tracks = [
            ("data", self.text.is_some() || self.data != BUILT_IN),
            ("tokenizer", self.tokenizer.is_some()),
            ("val_fraction", self.recipe.has("val_fraction")),
        ];
        if let Some((name, _)) = tracks.iter().find(|(_, given)| *given) {
            bail!(Usage(format!("{name}: the track decides it; remove it from the recipe")));
        }
        let (config, usual) = self.settings(None)?;
        let recipe = self.recipe.over(&usual.recipe)?;
        recipe.check()?;
        Ok((config, recipe, self.machine.precision))
    }

    /// The configuration, and the settings that are usual for it: those of fine-tuning the `given` model, or of a preset.
    fn settings(&self, given: Option<&Config>) -> Result<(Config, RunSettings)> {
        let llmc = (self.workflow == Some(Workflow::Llmc)).then(RunSettings::llmc);
        if let (Some(given), Some(from)) = (given, &self.tuning.from) {
            let config = self.model.config_of(from, given)?;
            let mut usual = llmc.unwrap_or_else(|| RunSettings::fine_tuning(&config, self.tuning.lora.is_some()));
            usual.recipe.context = self.model.over(given)?.context_length.min(usual.recipe.context);
            return Ok((config, usual));
        }
        let model = if llmc.is_some() { self.model.clone().or("llmc-gpt2") } else { self.model.clone() };
        let usual = llmc.map_or_else(|| RunSettings::preset(model.name()), Ok)?;
        Ok((model.config()?, usual))
    }

    /// Refuses another tokenizer for a model that has its own, and none for one that has none.
    fn check_tokenizer(&self, base: Option<&Checkpoint>) -> Result<()> {
        let own = base.and_then(|base| base.tokenizer.as_ref());
        match (base, own, &self.tokenizer) {
            (_, Some(own), Some(_)) => {
                bail!(Usage(format!("--tokenizer cannot be chosen: the model comes with its own, {}", own.name())))
            }
            (Some(base), None, None) => {
                bail!("{} has no tokenizer: name its own with --tokenizer NAME|FILE", base.path.display())
            }
            _ => Ok(()),
        }
    }

    /// The model to go on from, and its configuration. A run that goes on has all of a model in its own folder, unless it
    /// trains an adapter.
    fn base(&self) -> Result<(Option<Checkpoint>, Option<Config>)> {
        let Some(from) = &self.tuning.from else { return Ok((None, None)) };
        if let (Some(folder), None) = (self.resumed(), self.tuning.lora) {
            let path = folder.join("config.json");
            let text = options::read_settings(&path)?;
            return Ok((None, Some(Config::from_json(&text).with_context(|| path.display().to_string())?)));
        }
        let base = models::checkpoint(Path::new(from), !self.machine.no_verify).context("--from")?;
        models::needs_head(&base)?;
        if !base.adapters.is_empty() && self.tuning.lora.is_some() {
            bail!(
                "{from} is an adapter itself: merge it first, with `limpid convert {} MERGED --to limpid`",
                show::quoted(from)
            );
        }
        let config = base.config.clone();
        Ok((Some(base), Some(config)))
    }

    /// The folder that was asked for, if one was.
    pub fn asked(&self) -> Option<PathBuf> {
        match self.resume.as_deref() {
            Some("auto") => self.out.clone().or_else(options::newest_run),
            Some(folder) => Some(folder.into()),
            None => self.out.clone(),
        }
    }

    /// The folder of a run that is to go on: of one that was killed before its first save, all is done again.
    pub fn resumed(&self) -> Option<PathBuf> {
        self.resume.as_ref().and_then(|_| self.asked()).filter(|folder| Run::can_resume(folder))
    }
}

/// The tokenizer that suits the text and the preset: its document's own, or byte pairs, which know every text and which other
/// programs read (docs/presets.md).
fn default_tokenizer(data: &str, preset: &str) -> &'static str {
    match Preset::named(preset).map_or("bpe", |preset| preset.tokenizer) {
        "gpt2" if data.starts_with("builtin:") => "bpe",
        suits => suits,
    }
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
                "{} to validate on would be too few to judge by, so all of the text is trained on (--val-fraction keeps some)",
                show::plural(n, "token")
            ),
            (n, false) => format!("{} to validate on are too few to judge by", show::plural(n, "token")),
        };
        said.push(format!("{name}: {few}; the last weights are kept"));
    }
    let times = if passes < 10.0 { format!("{passes:.1}") } else { show::commas(passes.round() as u64) };
    match plan.fitted.filter(|fitted| fitted.shorter) {
        Some(fitted) if fitted.judged && plan.options.patience > 0 => said.push(format!(
            "a small text: at most {steps}, which pass over it {times} times (--steps for another number); training ends when {} find no lower loss",
            show::plural(plan.options.patience, "validation")
        )),
        Some(_) => said.push(format!("a small text: {steps}, which pass over it {times} times (--steps for another number)")),
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

/// Whether a training is too large for the memory that is available, and what of it would fit: with more recomputed, fewer
/// sequences at once, shorter ones, fewer blocks, or an adapter for a model that has learned already.
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
            let adapter = TuningOptions { lora: Some(16), ..TuningOptions::default() }.tuning();
            offer(&format!("--from MODEL --lora 16 {flags}"), config, &short, &adapter);
        }
    }
    Ok(Some(TooLarge { needed, limit, fitting }))
}

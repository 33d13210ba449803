//! The model that `inspect` looks into, and what it runs on.

use super::{Args, glances};
use crate::machine::fits_text;
use crate::models::{self, prompt_ids};
use crate::options::{MachineOptions, Usage};
use crate::{show, source};
use anyhow::{Context, Result, bail};
use limpid::backend::{Backend, Cpu};
use limpid::checkpoint::Checkpoint;
use limpid::config::{Config, Dropout, Fields, Preset};
use limpid::data::check_ids;
use limpid::memory;
use limpid::model::{Mode, Model, init};
use limpid::numeric::random;
use limpid::ops::Batch;
use limpid::tokenizer::{DenseTokenizer, Tokenizer};
use limpid::trace::Keep;
use limpid::trace::interventions::ResolvedSteps;
use limpid::trace::{self};
use limpid::train::{Recipe, WindowShape, Windows};
use std::path::Path;
use std::sync::Arc;

/// A model with a backend that has its weights, what it is run on, and its tokenizer.
pub struct Ready {
    pub model: Model,
    pub backend: Box<dyn Backend>,
    pub batch: Batch,
    /// What changes the run.
    pub steps: Option<Arc<ResolvedSteps>>,
    pub tokenizer: Option<Tokenizer>,
}

/// The model with its weights (a preset's initial ones, if no checkpoint was given) and the batch to run.
pub fn ready(args: &Args) -> Result<Ready> {
    let machine = &args.machine;
    let Some(dir) = &args.model else {
        if args.preset.preset.is_none() {
            bail!(Usage("give --model DIR, or --preset NAME to look at an untrained one".into()));
        }
        let config = args.preset.config()?;
        let first = || (0..config.context_length.min(4) as u32).map(|i| i % config.vocab_size as u32).collect();
        let tokenizer = preset_tokenizer(args.preset.name(), &config)?;
        let sequences = match (&args.tokens, &tokenizer) {
            (Some(sequences), _) => sequences.clone(),
            (None, _) if args.prompt.is_empty() => vec![first()],
            (None, Some(tokenizer)) => {
                let ids = |text: String| Ok(limpid::generate::prompt_ids(tokenizer, config.mask, &text)?);
                prompts(args)?.into_iter().map(ids).collect::<Result<_>>()?
            }
            (None, None) => bail!(
                "the tokenizer of the preset {} is learned from the text that it is trained on: give ids with \
                 --tokens 1,2,3",
                args.preset.name()
            ),
        };
        let batch = drawn(args, &config, typed(args, &sequences, &config, None)?)?;
        let (model, backend) = untrained(&config, mode(args, &batch), &Recipe::preset(args.preset.name())?, machine)?;
        if !args.prompt.is_empty() {
            show::say(format_args!("note: {} is untrained here: its weights are random", args.preset.name()));
        }
        return Ok(Ready { model, backend, batch, steps: None, tokenizer });
    };
    let mut checkpoint = open(args, dir)?;
    if let Some(preset) = &args.preset.preset {
        bail!(Usage(format!("--model and --preset {preset} are two models: give one of them")));
    }
    let mut own = checkpoint.config.clone();
    if args.training.is_some() {
        own.dropout = args.preset.over(&own)?.dropout; // it changes what is drawn, and no weight is for it
    }
    let config = args.preset.config_seen(&dir.display().to_string(), &own)?;
    let given = sequences(args, &checkpoint)?;
    // targets and windows are those of the model's training, whatever else it is looked at with
    let batch = match (&given, &args.data) {
        (None, Some(data)) => windows(args, data, dir, &checkpoint)?,
        (given, _) => {
            let mask = checkpoint.tokenizer.as_ref().and_then(|tokenizer| tokenizer.special("[MASK]"));
            typed(args, given.as_deref().unwrap_or_default(), &checkpoint.config, mask)?
        }
    };
    let batch = drawn(args, &config, batch)?;
    let (tokenizer, mut steps) = (checkpoint.tokenizer.clone(), None);
    let (model, backend) = if args.initial {
        let unknown =
            || format!("{} has no limpid.toml, so the initial weights of its training are unknown", dir.display());
        untrained(&config, mode(args, &batch), &recipe(dir)?.with_context(unknown)?, machine)?
    } else {
        checkpoint.config = config;
        let lm = args.changes.apply(models::on_machine(checkpoint, machine)?)?;
        steps = lm.resolved_steps().cloned();
        lm.start(mode(args, &batch))?
    };
    Ok(Ready { model, backend, batch, steps, tokenizer })
}

/// The batch with the draws of the first micro-batch of a training, if they are asked for.
fn drawn(args: &Args, config: &Config, batch: Batch) -> Result<Batch> {
    let Some(seed) = args.training else { return Ok(batch) };
    let Dropout { embedding, attention, projection, ffn, .. } = config.dropout;
    if [embedding, attention, projection, ffn].iter().all(|p| *p == 0.0) {
        bail!(Usage("--training: the model has no dropout: give --dropout P".into()));
    }
    Ok(Batch { seed: Some(random::bits(seed, 0, 0)), ..batch })
}

/// The ids that were given, or those of an example; none of --data.
pub fn sequences(args: &Args, checkpoint: &Checkpoint) -> Result<Option<Vec<Vec<u32>>>> {
    Ok(match (&args.tokens, &args.prompt[..]) {
        (Some(sequences), _) => Some(sequences.clone()),
        (None, []) if args.data.is_some() => None,
        (None, []) if args.listing || args.similar.is_some() => Some(vec![vec![0]]),
        (None, []) => Some(vec![prompt_ids(checkpoint, &models::example(checkpoint)?)?]),
        (None, _) => {
            let ids = |text: String| prompt_ids(checkpoint, &text);
            Some(prompts(args)?.into_iter().map(ids).collect::<Result<_>>()?)
        }
    })
}

/// The model in `dir`, with the adapters that are given.
pub fn open(args: &Args, dir: &Path) -> Result<Checkpoint> {
    models::adapted(dir, &args.weights.adapter, !args.machine.no_verify)
}

/// The texts of `--prompt`.
pub fn prompts(args: &Args) -> Result<Vec<String>> {
    if args.prompt.iter().filter(|prompt| *prompt == "-").count() > 1 {
        bail!(Usage("--prompt - can be given once: there is one standard input".into()));
    }
    args.prompt.iter().map(|prompt| source::prompt(prompt)).collect()
}

/// The tokenizer of a preset, where it is known before there is a text: GPT-2's, or the words of a document's example.
fn preset_tokenizer(name: &str, config: &Config) -> Result<Option<Tokenizer>> {
    let preset = Preset::named(name)?;
    let name = match preset.name {
        "notations" => "s0",
        "decoder-readme" => "s3",
        _ => preset.tokenizer,
    };
    let known = Tokenizer::named(name).ok();
    Ok(known.filter(|tokenizer| tokenizer.vocab_size() <= config.vocab_size))
}

/// What a model must be built for to run a batch, whose sequences are equally long.
fn mode(args: &Args, batch: &Batch) -> Mode {
    let (batch, context) = (batch.spans.len(), batch.spans[0].rows);
    let keep = if glances(args) { Keep::default() } else { Keep::All };
    keep.mode(batch, context)
}

/// Ids that were given, as a batch.
fn typed(args: &Args, sequences: &[Vec<u32>], config: &Config, mask: Option<u32>) -> Result<Batch> {
    let kept = |ids: &Vec<u32>| {
        let from = if args.last { ids.len().saturating_sub(config.context_length) } else { 0 };
        ids[from..].to_vec()
    };
    let sequences: Vec<Vec<u32>> = sequences.iter().map(kept).collect();
    for ids in &sequences {
        check(ids, config)?;
    }
    let segments = args.segments.as_ref().map(|segments| match &segments[..] {
        [all] => vec![all.clone(); sequences.len()],
        each => each.to_vec(),
    });
    Ok(trace::batch_of(config, &sequences, segments.as_deref(), mask)?)
}

/// The first windows of a text, as the training of the model in `dir` cuts them.
fn windows(args: &Args, data: &str, dir: &Path, checkpoint: &Checkpoint) -> Result<Batch> {
    let config = &checkpoint.config;
    let threads = args.machine.threads();
    fits_text(threads)?;
    Cpu::can_start(threads)?; // the text is encoded on as many
    let text = source::source(data, &args.reading, &args.machine);
    if source::worded(text.conversations())?.is_some() {
        bail!("{data} has conversations, each of its own length: show one with --prompt");
    }
    let (ids, _) = source::worded(text.whole(models::tokenizer(checkpoint)?))?;
    ids.check_ids(config.vocab_size)?;
    let recipe = recipe(dir)?.unwrap_or_default();
    let context = if recipe.context == 0 { config.context_length } else { recipe.context.min(config.context_length) };
    let objective = limpid::objective(config, checkpoint.tokenizer.as_ref(), config.vocab_size, config.n_segment > 1)?;
    Ok(Windows::new("text", &ids, WindowShape { context, objective, documents: recipe.documents() })?
        .first(args.batch_size.into()))
}

/// A model with the weights that training would begin from.
fn untrained(
    config: &Config,
    mode: Mode,
    recipe: &Recipe,
    machine: &MachineOptions,
) -> Result<(Model, Box<dyn Backend>)> {
    machine.measure(config, Mode::Decode { rows: 1, outputs: 1, blocks: 1 });
    let machine = machine.machine();
    let model = Model::new(config, mode)?;
    // with room for drawing the values
    let (batch, context) = (model.sequences(), model.rows / model.sequences());
    memory::fits(&Model::new(config, Mode::Inspect { batch, context })?, None, &machine)?;
    let mut backend = machine.start(&model)?;
    for param in &model.params {
        backend.fill(param.region, &init::value(&model, param, recipe.init, recipe.init_std, recipe.seed))?;
    }
    Ok((model, backend))
}

/// How a model was trained, as the limpid.toml in its folder says, if there is one.
fn recipe(dir: &Path) -> Result<Option<Recipe>> {
    let path = dir.join("limpid.toml");
    if !path.exists() {
        return Ok(None);
    }
    let mut table: toml::Table = source::read_file(&path)?.parse().with_context(|| path.display().to_string())?;
    let known = Recipe::default();
    table.retain(|key, _| known.fields().iter().any(|(setting, _)| setting.name == key));
    for key in ["init", "init_std", "seed"] {
        table.get(key).with_context(|| format!("{} has no `{key}`", path.display()))?;
    }
    table.try_into().map(Some).with_context(|| path.display().to_string())
}

/// The tokenizer, if it numbers only some of another's ids.
pub fn dense(tokenizer: Option<&Tokenizer>) -> Option<&DenseTokenizer> {
    match tokenizer {
        Some(Tokenizer::Dense(dense)) => Some(dense),
        _ => None,
    }
}

fn check(ids: &[u32], config: &Config) -> Result<()> {
    check_ids(ids, config.vocab_size)?;
    if ids.is_empty() {
        bail!("the prompt is empty: there is nothing to look at");
    }
    let tokens = ids.len();
    let most = config.context_length;
    if tokens > most {
        let over = tokens - most;
        bail!(
            "the prompt has {tokens} tokens, {over} more than the model's context_length of {most}: shorten it, or \
             look at its end with --last"
        );
    }
    Ok(())
}

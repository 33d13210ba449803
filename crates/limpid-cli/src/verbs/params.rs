//! `params`: how large a model is, where its parameters are, and what a choice would change.

use crate::options::{Asked, NotationOptions, Usage};
use crate::{models, show};
use anyhow::{Context, Result, bail};
use limpid::checkpoint::PaddedTable;
use limpid::config::{Config, Mask, PRESETS, Positions, Settings};
use limpid::model::{Mode, Model};
use limpid::names::{self, Notation};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Count parameters, memory and FLOPs of a preset or a model, by group; with other sizes and choices if flags say so.
#[derive(clap::Args, Debug)]
#[command(after_help = format!("Presets: {}", PRESETS.join(", ")))]
pub struct Args {
    /// A preset, or a model: a folder of limpid or HuggingFace, a .gguf, a .bin of llm.c
    #[arg(value_name = "PRESET|DIR", conflicts_with = "model")]
    name: Option<String>,
    /// A model, even if its folder has a preset's name
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// Check every value of the model first: a NaN or an infinity is an error that names its tensor
    #[arg(long)]
    check: bool,
    /// Count the same model with one choice changed, for every choice that changes the count: biases, tied head, norms,
    /// segments, positions, padded vocabulary
    #[arg(long)]
    variants: bool,
    /// List every parameter with its shape, size and offset, in memory order (for GPT-2, llm.c's order); implied by
    /// --notation
    #[arg(long)]
    layout: bool,
    #[command(flatten)]
    words: NotationOptions,
    /// Print the result as JSON on stdout
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    asked: Asked<Config>,
}

pub fn run(mut args: Args) -> Result<()> {
    args.layout |= args.words.notation.is_some();
    let preset = args.name.as_deref().map(Config::preset);
    let named = args.name.as_deref().map(Path::new);
    let model = args.model.as_deref().or(named.filter(|path| matches!(preset, Some(Err(_))) && path.exists()));
    let (what, config, padded) = match (model, &args.name, preset) {
        (Some(dir), ..) => {
            let (config, padded) = opened(dir, args.check)?;
            (dir.display().to_string(), config, padded)
        }
        (None, Some(_), Some(Ok(_))) if args.check => {
            let why = "--check looks at the values of a model, and a preset has none: give a model's folder or file";
            bail!(Usage(why.into()))
        }
        (None, Some(name), Some(preset)) => (
            name.clone(),
            preset.with_context(|| format!("there is no file or folder {name} here, and no preset of that name"))?,
            vec![],
        ),
        _ => bail!(Usage(format!("name a preset or a model's folder or file; presets: {}", PRESETS.join(", ")))),
    };
    let is_preset = model.is_none() && !args.asked.has("vocab_size");
    let config = args.asked.over(&config)?;
    let model = counted(&config)?;
    let total = model.parameter_count();
    let variants = if args.variants { variants(&config, total)? } else { vec![] };
    if args.json {
        let groups: BTreeMap<_, _> = model.groups().into_iter().collect();
        let mut all = json!({
            "total": total, "groups": groups, "bytes_f32": 4 * total, "training_bytes_f32": 16 * total,
            "training_flops_per_token": training_flops(&model), "config": config,
        });
        if args.check {
            all["padded"] = json!(padded);
        }
        if args.variants {
            all["variants"] = json!(variants);
        }
        if args.layout {
            all["layout"] = json!(layout(&args, &model));
        }
        return show::json(&all);
    }
    let mut text = summary(&what, &model, is_preset);
    text.extend(padded.iter().map(|padded| format!("\n{}\n", show::padding(padded))));
    if args.variants {
        let line = |v: &Variant| {
            let sign = if v.total < total { '-' } else { '+' };
            let change = format!("{sign}{}", show::commas(v.total.abs_diff(total)));
            vec![v.flag.clone(), show::commas(v.total), change]
        };
        let lines: Vec<_> = variants.iter().map(line).collect();
        text += &format!("\n{}", show::columns(&["with", "parameters", "change"], &lines));
    }
    if args.layout {
        let line = |row: &Row| {
            let shape: Vec<String> = row.shape.iter().map(usize::to_string).collect();
            let [count, at] = [row.count, row.at].map(show::commas);
            vec![row.name.clone(), row.symbol.clone(), row.axes.clone(), shape.join(" "), count, at]
        };
        let lines: Vec<_> = layout(&args, &model).iter().map(line).collect();
        text += &format!("\n{}", show::columns(&["tensor", "symbol", "axes", "shape", "parameters", "from"], &lines));
    }
    show::out(&text)
}

/// The parameters by group, and what they take.
fn summary(what: &str, model: &Model, is_preset: bool) -> String {
    let (config, total) = (&model.config, model.parameter_count());
    let group = |(name, n)| (name, format!("{:>15}  {:>5.1} %", show::commas(n), 100.0 * n as f64 / total as f64));
    let sum = ("total", format!("{:>15}", show::commas(total)));
    let rows: Vec<_> = model.groups().into_iter().map(group).chain([sum]).collect();
    let training = show::bytes(16 * total as u64);
    let context = show::commas(config.context_length);
    let flops = show::count(training_flops(model));
    let facts = [
        ("weights in f32", show::bytes(4 * total as u64)),
        ("to train, before activations", format!("{training} (weights, gradients, two moments)")),
        ("training FLOPs a token", format!("{flops} (in a context of {context})")),
    ];
    let vocabulary = "the preset's own; `train` takes its tokenizer's, and so has other numbers (--vocab-size)";
    let vocabulary = format!("{}, {vocabulary}", show::commas(config.vocab_size));
    let facts: Vec<_> = facts.into_iter().chain(is_preset.then_some(("vocabulary", vocabulary))).collect();
    format!("{what}: {config}\n\n{}\n{}", show::pairs(&rows), show::pairs(&facts))
}

/// Operations of training on one token of a full context: forward, and twice that backward.
fn training_flops(model: &Model) -> f64 {
    let config = &model.config;
    // the keys that a token sees, on average
    let keys = if config.mask == Mask::Causal { config.context_length.div_ceil(2) } else { config.context_length };
    3.0 * model.flops(1, keys)
}

/// A model's configuration and, if its values are checked, its tables with rows that are not read.
fn opened(dir: &Path, check: bool) -> Result<(Config, Vec<PaddedTable>)> {
    let checkpoint = models::checkpoint(dir, true)?;
    if !check {
        return Ok((checkpoint.config, vec![]));
    }
    if let Some((tensor, at)) = checkpoint.not_finite()? {
        bail!("{}: `{tensor}` is not finite at element {at}: it cannot be computed with", dir.display());
    }
    let padded = checkpoint.padded()?;
    Ok((checkpoint.config, padded))
}

fn counted(config: &Config) -> Result<Model> {
    Ok(Model::new(config, Mode::Inspect { batch: 1, context: 1 })?)
}

/// The same model with one choice changed.
#[derive(serde::Serialize)]
struct Variant {
    /// What asks for it.
    flag: String,
    total: usize,
    groups: BTreeMap<&'static str, usize>,
}

/// Every variant of which the number of parameters is not `total`.
fn variants(config: &Config, total: usize) -> Result<Vec<Variant>> {
    let c = config;
    let other = |is: bool| (!is).to_string();
    let learned = c.positions == Positions::Learned;
    let choices = [
        ("bias", other(c.norm_offset || c.attention_bias || c.ffn_bias)),
        ("attention_bias", other(c.attention_bias)),
        ("ffn_bias", other(c.ffn_bias)),
        ("norm_offset", other(c.norm_offset)),
        ("norm_gain", other(c.norm_gain)),
        ("final_norm", other(c.final_norm)),
        ("embedding_norm", other(c.embedding_norm)),
        ("tied_head", other(c.tied_head)),
        ("head_bias", other(c.head_bias)),
        ("head_transform", other(c.head_transform)),
        ("ffn_gated", other(c.ffn_gated)),
        ("n_segment", if c.n_segment == 0 { "2" } else { "0" }.to_string()),
        ("positions", if learned { Positions::Sinusoidal } else { Positions::Learned }.to_string()),
        ("vocab_size", c.vocab_size.next_multiple_of(128).to_string()), // as llm.c pads it
    ];
    let mut all = vec![];
    for (name, value) in choices {
        let mut changed = config.clone();
        changed.set(name, &value)?;
        let model = counted(&changed)?;
        if model.parameter_count() != total {
            let flag = format!("--{} {value}", name.replace('_', "-"));
            let groups = model.groups().into_iter().collect();
            all.push(Variant { flag, total: model.parameter_count(), groups });
        }
    }
    Ok(all)
}

/// All parameters of one kind.
#[derive(serde::Serialize)]
struct Row {
    name: String,
    symbol: String,
    axes: String,
    shape: Vec<usize>,
    count: usize,
    at: usize,
}

fn layout(args: &Args, model: &Model) -> Vec<Row> {
    let notation = args.words.notation.unwrap_or(Notation::Limpid);
    let row = |stack: limpid::model::ParamStack| {
        let first = stack.name.replace("{i}", "0");
        let own = names::axes(&first, &model.config);
        let axes: Vec<&str> = stack.blocks.map(|_| "n_layer").into_iter().chain(own).collect();
        let home = stack.blocks.map(|_| 0);
        Row {
            symbol: names::called_within(&first, &model.config, notation, home).unwrap_or_default(),
            axes: notation.letters(&first, &axes, &model.config),
            shape: stack.blocks.into_iter().chain(stack.shape).collect(),
            name: stack.name,
            count: stack.count,
            at: stack.at,
        }
    };
    model.layout().into_iter().map(row).collect()
}

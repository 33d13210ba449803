//! `params`: how large a model is, and where its parameters are.

use crate::{models, options, show};
use anyhow::{Result, bail};
use limpid::config::{Config, Mask};
use limpid::model::{Mode, Model};
use std::path::PathBuf;

/// Parameters of a preset or a model by group, its memory and its FLOPs.
#[derive(clap::Args, Debug)]
#[command(after_help = format!("Presets: {}", options::presets()))]
pub struct Args {
    /// A preset
    #[arg(value_name = "PRESET", conflicts_with = "model")]
    name: Option<String>,
    /// A model: a folder of limpid or HuggingFace, a .gguf, a .bin of llm.c
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// Look at every value first: a NaN or an infinity is an error that names its tensor
    #[arg(long, requires = "model")]
    check: bool,
    /// Put the result on stdout as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Result<()> {
    let (what, config) = match (&args.name, &args.model) {
        (Some(name), _) => (name.clone(), Config::preset(name)?),
        (None, Some(dir)) => {
            let checkpoint = models::checkpoint(dir)?;
            if args.check
                && let Some((tensor, at)) = checkpoint.not_finite()?
            {
                bail!("{}: `{tensor}` is not finite at element {at}: it cannot be computed with", dir.display());
            }
            (dir.display().to_string(), checkpoint.config)
        }
        (None, None) => {
            bail!(options::Usage(format!("name a preset or give --model DIR; presets: {}", options::presets())))
        }
    };
    let model = Model::new(&config, Mode::Inspect { batch: 1, context: 1 })?;
    let (total, groups) = (model.parameter_count(), model.groups());
    // the keys that a token of a full context sees, on average
    let keys = if config.mask == Mask::Causal { config.context_length.div_ceil(2) } else { config.context_length };
    let flops = 3.0 * model.flops(1, keys);
    if args.json {
        let groups: serde_json::Map<String, serde_json::Value> =
            groups.iter().map(|(name, n)| (name.to_string(), (*n).into())).collect();
        return show::json(&serde_json::json!({
            "total": total, "groups": groups, "bytes_f32": 4 * total, "training_bytes_f32": 16 * total,
            "training_flops_per_token": flops, "config": config,
        }));
    }
    let mut rows: Vec<(String, String)> = groups
        .iter()
        .map(|(name, n)| {
            (name.to_string(), format!("{:>15}  {:>5.1} %", show::commas(*n as u64), 100.0 * *n as f64 / total as f64))
        })
        .collect();
    rows.push(("total".into(), format!("{:>15}", show::commas(total as u64))));
    let facts = [
        ("weights in f32".to_string(), show::bytes(4 * total as u64)),
        (
            "to train, before activations".to_string(),
            format!("{} (weights, gradients, two moments)", show::bytes(16 * total as u64)),
        ),
        (
            "training FLOPs a token".to_string(),
            format!("{} (in a context of {})", show::count(flops), show::commas(config.context_length as u64)),
        ),
    ];
    show::out(&format!("{what}: {config}\n\n{}\n{}", show::pairs(&rows), show::pairs(&facts)))
}

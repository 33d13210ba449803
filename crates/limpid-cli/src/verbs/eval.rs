//! `eval`: how well a model knows a text.

use super::{open, tokenizer};
use crate::options::MachineOptions;
use crate::{show, source};
use anyhow::{Context, Result, bail};
use limpid::checkpoint::Directory;
use limpid::config::Mask;
use limpid::data::{Objective, Windows, check_ids};
use limpid::evaluate;
use limpid::model::Use;
use std::path::PathBuf;

/// Loss, perplexity and bits per byte of a text: all of it, deterministic, dropout off.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// A model directory
    #[arg(long, value_name = "DIR")]
    model: PathBuf,
    /// A text file, a folder of .txt files, or builtin:stories
    #[arg(long, value_name = "FILE")]
    data: String,
    /// Tokens of a window [default: the model's]
    #[arg(long, value_name = "T", alias = "block-size")]
    context_length: Option<usize>,
    /// Windows at once
    #[arg(long, value_name = "B", default_value_t = 16)]
    batch_size: usize,
    /// Put the result on stdout as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    machine: MachineOptions,
}

#[derive(serde::Serialize)]
struct Found {
    loss: f64,
    perplexity: f64,
    bits_per_byte: f64,
    tokens: usize,
    bytes: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    entropy_floor: Option<f64>,
}

pub fn run(args: Args) -> Result<()> {
    let directory = Directory::open(&args.model)?;
    let tokenizer = tokenizer(&directory)?;
    let (text, log_probability) = source::read_whole(&args.data)?;
    let ids = tokenizer.encode(&text).with_context(|| args.data.clone())?;
    check_ids(&ids, directory.config.vocab_size)?;
    let context = args.context_length.unwrap_or(directory.config.context_length);
    if context == 0 || args.batch_size == 0 {
        bail!("--context-length and --batch-size must be at least 1");
    }
    let objective = match directory.config.mask {
        Mask::Causal => Objective::NextToken,
        _ => {
            let mask = tokenizer
                .special("[MASK]")
                .context("the model predicts masked tokens, but its tokenizer has no [MASK]")?;
            Objective::Masked { mask, vocab_size: directory.config.vocab_size, segments: false }
        }
    };
    let windows = Windows::new("text", &ids, context, objective)?;
    let (model, mut cpu) = open(&directory, Use::Score { batch: args.batch_size, context }, args.machine.threads())?;
    let score = evaluate::score(&model, &mut cpu, &windows, args.batch_size, &mut |_| true);
    let floor = log_probability.filter(|_| objective == Objective::NextToken).map(|p| -p / score.tokens as f64);
    let found = Found {
        loss: score.loss(),
        perplexity: score.perplexity(),
        bits_per_byte: score.bits_per_byte(text.len()),
        tokens: score.tokens,
        bytes: text.len(),
        entropy_floor: floor,
    };
    if args.json {
        return show::json(&found);
    }
    let mut rows = vec![
        ("loss".to_string(), format!("{:.4} nats a token", found.loss)),
        ("perplexity".to_string(), format!("{:.4}", found.perplexity)),
        ("bits per byte".to_string(), format!("{:.4}", found.bits_per_byte)),
        ("tokens predicted".to_string(), show::commas(found.tokens as u64)),
        ("bytes".to_string(), show::commas(found.bytes as u64)),
    ];
    if let Some(floor) = floor {
        rows.push((
            "entropy floor".into(),
            format!("{floor:.4} nats a token: this text cannot be known better ({:.4} above it)", found.loss - floor),
        ));
    }
    show::out(&show::pairs(&rows))
}

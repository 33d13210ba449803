//! `embed`: texts to vectors.

use crate::models::{WeightOptions, whole};
use crate::options::MachineOptions;
use crate::{show, source};
use anyhow::{Context, Result};
use limpid::{Pooling, normalized};
use serde_json::json;

/// Texts to vectors: the hidden states before the model's head, pooled and divided by their length.
///
/// Prints JSON lines, one for each text: {"tokens": N, "embedding": [...]}. For models that generate and for encoders such as BERT.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// A text; @FILE, or - for standard input: each line is a text
    text: String,
    #[command(flatten)]
    weights: WeightOptions,
    /// What of a text's hidden states is taken: their mean, that of the first token (cls: of an encoder's [CLS]), or of the last one,
    /// which of a causal model alone has seen the whole text
    #[arg(long, value_name = "HOW", default_value = "mean", value_parser = str::parse::<Pooling>)]
    pooling: Pooling,
    /// Leave the vectors as long as they are, where else they have length 1
    #[arg(long)]
    raw: bool,
    /// JSON lines on stdout, as without it
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    machine: MachineOptions,
}

pub fn run(args: Args) -> Result<()> {
    let lm = whole(args.weights.open()?, &args.machine)?;
    let text = source::prompt(&args.text)?;
    let lines = args.text == "-" || args.text.starts_with('@');
    let texts: Vec<&str> = if lines { text.lines().collect() } else { vec![&text] };
    for (n, text) in texts.iter().enumerate() {
        let embedded = || -> Result<_, limpid::Error> {
            let ids = lm.encode(text)?;
            Ok((ids.len(), lm.embed_ids(&ids, args.pooling)?))
        };
        let (tokens, vector) = match lines {
            true => embedded().with_context(|| format!("line {}", n + 1))?,
            false => embedded()?,
        };
        let vector = if args.raw { vector } else { normalized(vector) };
        show::json(&json!({ "tokens": tokens, "embedding": vector }))?;
    }
    Ok(())
}

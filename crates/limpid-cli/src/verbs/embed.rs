//! `embed`: texts to vectors.

use crate::models::{InterventionOptions, WeightOptions, sharing};
use crate::options::{MachineOptions, Usage};
use crate::{show, source};
use anyhow::{Context, Result, bail};
use limpid::embed::{Pooling, normalized};
use serde_json::json;
use std::path::Path;

/// Turn texts into embedding vectors: the hidden states before the model's head, pooled and normalised to length 1.
///
/// Prints JSON lines, one for each text: {"tokens": N, "embedding": [...]}. For models that generate and for encoders
/// such as BERT. A folder of sentence-transformers (modules.json) says how: its pooling, whether vectors have length 1,
/// the prompt and the most tokens are then as it says; a text that is cut has "cut": N, the number of tokens left out.
/// For a GGUF file, its pooling_type decides.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    weights: WeightOptions,
    /// A text; @FILE, or - for standard input: each line is a text
    #[arg(value_name = "TEXT")]
    text: Option<String>,
    /// How hidden states are pooled: mean, cls (that of the first token, an encoder's [CLS]), last (in a causal model,
    /// the only one that has seen the whole text), max, mean-sqrt-len, weighted-mean; vectors have length 1 [default:
    /// as the model's modules.json or pooling_type says, or else mean]
    #[arg(long, value_name = "HOW", value_parser = str::parse::<Pooling>)]
    pooling: Option<Pooling>,
    /// Do not normalise the vectors
    #[arg(long)]
    raw: bool,
    /// Print JSON lines on stdout; this is the default
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    changes: InterventionOptions,
    #[command(flatten)]
    machine: MachineOptions,
}

pub fn run(mut args: Args) -> Result<()> {
    let given = args.weights.then(args.text.take(), "embed", "TEXT")?;
    if args.weights.named()?.is_none() && Path::new(&given).join("config.json").exists() {
        bail!(Usage(format!("TEXT is missing: {given} is a model, `limpid embed {given} TEXT`")));
    }
    let lm = args.changes.apply(sharing(args.weights.open(!args.machine.no_verify)?, &args.machine)?)?;
    let stated = if args.pooling.is_none() { lm.sentence_recipe()? } else { None };
    let text = source::prompt(&given)?;
    let lines = given == "-" || given.starts_with('@');
    let texts: Vec<&str> = if lines { text.lines().collect() } else { vec![&text] };
    for (n, text) in texts.iter().enumerate() {
        let embedded = || -> Result<_, limpid::Error> {
            let ((ids, cut), pooling) = match &stated {
                Some((recipe, pooling)) => (lm.sentence_ids(text, recipe)?, *pooling),
                None => ((lm.encode(text)?, 0), args.pooling.unwrap_or_default()),
            };
            Ok((ids.len(), cut, lm.embed_ids(&ids, pooling)?))
        };
        let embedded = embedded();
        let (tokens, cut, vector) =
            if lines { embedded.with_context(|| format!("line {}", n + 1))? } else { embedded? };
        let raw = args.raw || stated.as_ref().is_some_and(|(recipe, _)| !recipe.normalized);
        let vector = if raw { vector } else { normalized(vector) };
        let mut line = json!({ "tokens": tokens, "embedding": vector });
        if cut > 0 {
            line["cut"] = cut.into();
        }
        show::json(&line)?;
    }
    Ok(())
}

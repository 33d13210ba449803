//! `inspect`: a model at work on a prompt.

use super::{open, tokenizer};
use crate::options::{self, MachineOptions, ModelOptions};
use crate::{show, source};
use anyhow::{Result, bail};
use limpid::backend::{Backend, Cpu};
use limpid::checkpoint::Directory;
use limpid::config::Mask;
use limpid::data::check_ids;
use limpid::model::{Model, Use, init};
use limpid::ops::{Batch, IGNORE};
use limpid::tokenizer::Tokenizer;
use limpid::trace::{Labelled, Trace, table};
use limpid::train::Recipe;
use std::path::PathBuf;

/// Show a model at work on a prompt: every tensor with its symbol, shape and statistics; tables; any tensor saved.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// A model directory
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// Text, @FILE, or - for standard input
    #[arg(long, short, value_name = "TEXT", conflicts_with = "tokens")]
    prompt: Option<String>,
    /// Token ids instead of a prompt: 1,2,3
    #[arg(long, value_name = "IDS", value_delimiter = ',', value_parser = super::ids)]
    tokens: Option<Vec<u32>>,
    /// Print this tensor as a table; may be given several times (blocks.0.attn.hook_pattern, embed.weight, logits.grad)
    #[arg(long, value_name = "NAME", action = clap::ArgAction::Append)]
    tensor: Vec<String>,
    /// Save all tensors, or those named, as safetensors
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Print the table of all tensors (the default, if nothing else is asked for)
    #[arg(long)]
    table: bool,
    /// Print the listing of ops
    #[arg(long)]
    listing: bool,
    /// Run the backward too: gradients of the next-token loss under NAME.grad
    #[arg(long)]
    backward: bool,
    /// Put the table on stdout as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    preset: ModelOptions,
    #[command(flatten)]
    machine: MachineOptions,
}

pub fn run(args: Args) -> Result<()> {
    let (model, mut cpu, ids, tokenizer) = ready(&args)?;
    if args.listing {
        show::out(&model.to_string())?;
        if !args.table && args.tensor.is_empty() && args.save.is_none() && !args.json {
            return Ok(());
        }
    }
    let batch = batch(&model, &ids, tokenizer.as_ref())?;
    let backward = args.backward || args.tensor.iter().any(|t| t.ends_with(".grad"));
    let trace = Trace::run(&model, &mut cpu, &batch, backward)?;
    // every name is looked up before anything is printed or written
    let tensors: Vec<Labelled> = args.tensor.iter().map(|name| trace.get(name)).collect::<Result<_, _>>()?;
    if let Some(path) = &args.save {
        let names: Vec<&str> = args.tensor.iter().map(String::as_str).collect();
        trace.save(path, &names)?;
        eprintln!(
            "saved {} to {}",
            if names.is_empty() { "all tensors".into() } else { format!("{} tensors", names.len()) },
            path.display()
        );
    }
    let rows = trace.rows();
    if args.json {
        let rows: Vec<_> = rows
            .iter()
            .map(|r| serde_json::json!({ "name": r.name, "symbol": r.symbol, "formula": r.formula, "axes": r.letters, "shape": r.shape,
                "mean": r.mean, "deviation": r.deviation, "min": r.min, "max": r.max, "masked": r.masked, "nan": r.nan }))
            .collect();
        let tensors: Vec<_> = tensors
            .iter()
            .map(|t| serde_json::json!({ "name": t.name, "axes": t.axes, "shape": t.shape, "values": t.values }))
            .collect();
        return show::json(&serde_json::json!({ "tokens": ids, "rows": rows, "tensors": tensors }));
    }
    let options = table::Options { width: show::width(), ..table::Options::default() };
    for tensor in &tensors {
        show::out(&(table::table(tensor, &options) + "\n"))?;
    }
    if args.table || (args.tensor.is_empty() && args.save.is_none()) {
        if let Some(tokenizer) = &tokenizer {
            let pieces: Vec<String> = tokenizer.pieces(&ids)?.iter().map(|p| format!("{p:?}")).collect();
            show::out(&format!("{} tokens: {}\n\n", ids.len(), pieces.join(" ")))?;
        }
        show::out(&table::summary_table(&rows, show::width()))?;
    }
    Ok(())
}

/// The model with its weights (a preset's initial ones, if no directory was given) and the prompt's ids.
fn ready(args: &Args) -> Result<(Model, Cpu, Vec<u32>, Option<Tokenizer>)> {
    let threads = args.machine.threads();
    let Some(dir) = &args.model else {
        if args.preset.preset.is_none() {
            bail!(options::Usage("give --model DIR, or --preset NAME to look at an untrained one".into()));
        }
        let config = args.preset.config()?;
        let ids = match (&args.tokens, &args.prompt) {
            (Some(ids), _) => ids.clone(),
            (None, Some(_)) => bail!("a preset has no tokenizer: give ids with --tokens 1,2,3"),
            (None, None) => (0..config.context_length.min(4) as u32).map(|i| i % config.vocab_size as u32).collect(),
        };
        check(&ids, &config)?;
        let model = Model::new(&config, Use::Inspect { batch: 1, context: ids.len() })?;
        super::fits(&model, "this model")?;
        let mut cpu = Cpu::new(&model, threads);
        let recipe = Recipe::preset(args.preset.name());
        for param in &model.params {
            cpu.write(param.slot, &init::values(&model, param, recipe.init, recipe.init_std, recipe.seed));
        }
        return Ok((model, cpu, ids, None));
    };
    let directory = Directory::open(dir)?;
    let ids = match (&args.tokens, &args.prompt) {
        (Some(ids), _) => ids.clone(),
        (None, Some(prompt)) => tokenizer(&directory)?.encode(&source::prompt(prompt)?)?,
        (None, None) if args.listing => vec![0],
        (None, None) => {
            bail!(options::Usage("give --prompt TEXT or --tokens 1,2,3: a model is shown at work on something".into()))
        }
    };
    check(&ids, &directory.config)?;
    let (model, cpu) = open(&directory, Use::Inspect { batch: 1, context: ids.len() }, threads)?;
    Ok((model, cpu, ids, directory.tokenizer))
}

fn check(ids: &[u32], config: &limpid::config::Config) -> Result<()> {
    check_ids(ids, config.vocab_size)?;
    if ids.is_empty() {
        bail!("the prompt is empty: there is nothing to look at");
    }
    if ids.len() > config.context_length {
        bail!(
            "the prompt has {} tokens, the model's context_length is {}: shorten it",
            ids.len(),
            config.context_length
        );
    }
    Ok(())
}

/// The ids as one sequence; the target of each is the next, of a mask whatever a masked model finds itself.
fn batch(model: &Model, ids: &[u32], tokenizer: Option<&Tokenizer>) -> Result<Batch> {
    let causal = model.config.mask == Mask::Causal;
    let mask = tokenizer.and_then(|t| t.special("[MASK]"));
    let mut targets: Vec<u32> = if causal {
        ids[1..].to_vec()
    } else {
        ids.iter().map(|id| if Some(*id) == mask { IGNORE } else { *id }).collect()
    };
    targets.resize(ids.len(), IGNORE);
    let mut batch = Batch::of_sequences(ids.to_vec(), targets, ids.len());
    if model.config.n_segment > 0 {
        batch.segments = vec![0; ids.len()];
    }
    Ok(batch)
}

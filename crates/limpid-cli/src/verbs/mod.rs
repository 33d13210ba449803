//! One file a verb, and what several of them need.

pub mod bench;
pub mod check;
pub mod convert;
pub mod data;
pub mod doctor;
pub mod eval;
pub mod find;
pub mod generate;
pub mod inspect;
pub mod learn;
pub mod pages;
pub mod params;
pub mod plan;
pub mod report;
pub mod room;
pub mod settings;
pub mod tokenize;
pub mod train;

use crate::options::MachineOptions;
use crate::show;
use anyhow::{Result, bail};
use limpid::backend::Cpu;
use limpid::checkpoint::Checkpoint;
use limpid::config::{Config, ConfigError};
use limpid::model::{Model, Tuning, Use};
use limpid::tokenizer::Tokenizer;
use limpid::train::Recipe;
use std::path::Path;

/// Bytes that a model and `threads` threads will take, to train by a recipe if there is one.
pub fn needed(model: &Model, recipe: Option<&Recipe>, threads: usize) -> u64 {
    let parts = model.memory().into_iter().chain(recipe.into_iter().flat_map(|recipe| recipe.memory(model)));
    (parts.map(|(_, bytes)| bytes).sum::<usize>() + Cpu::scratch_bytes(model, threads)) as u64
}

/// Bytes that this process holds before a model is made, with what it grows by in training: code that is not touched yet,
/// buffers for evaluating and saving (measured: 4 to 9 MB).
pub fn program() -> u64 {
    rss().unwrap_or(0) + (6 << 20)
}

/// The model to train: the fastest, or the fastest that keeps within `budget` bytes beside the `program`.
pub fn trainable(
    config: &Config,
    recipe: &Recipe,
    tuning: &Tuning,
    threads: usize,
    (program, budget): (u64, Option<u64>),
) -> Result<Model> {
    let purpose = Use::Train { batch: recipe.batch_size, context: recipe.context };
    Ok(match budget {
        None => Model::tuned(config, purpose, tuning)?,
        Some(budget) => {
            Model::within(config, purpose, tuning, budget, |model| needed(model, Some(recipe), threads) + program)?
        }
    })
}

/// Bytes of addresses left for all that is not counted: text, tokens, buffers. Where those are refused a program ends at once.
const SPARE: u64 = 32 << 20;

/// The limit that a model and its training do not fit into, if there is one, with what they need of it.
pub fn lacking(model: &Model, recipe: Option<&Recipe>, threads: usize) -> Option<(u64, room::Limit)> {
    let touched = needed(model, recipe, threads);
    let reserved = recipe.map_or(0, |recipe| recipe.untouched(model));
    let untouched = (Cpu::untouched_bytes(model, threads) + reserved) as u64;
    let needs = |limit: &room::Limit| if limit.of_addresses { touched + untouched + SPARE } else { touched };
    room::limits().into_iter().map(|limit| (needs(&limit), limit)).find(|(needs, limit)| *needs > limit.left)
}

/// Refuses what would not fit, before anything is reserved.
pub fn fits(model: &Model, recipe: Option<&Recipe>, threads: usize, what: &str) -> Result<()> {
    if let Some((needed, limit)) = lacking(model, recipe, threads) {
        bail!(
            "{what} needs {} of memory and {} are {}: a smaller --batch-size, --context-length or model would fit{}",
            show::bytes(needed),
            show::bytes(limit.left),
            limit.said,
            if model.back.is_empty() { "" } else { "; `limpid plan` shows what --memory can save" }
        );
    }
    Ok(())
}

/// What the system says of its memory, in bytes.
pub struct Memory {
    /// In all.
    pub total: u64,
    /// Free for the asking.
    pub available: u64,
}

/// Where the system says it.
pub fn memory() -> Option<Memory> {
    let available = room::limits().iter().map(|limit| limit.left).min()?;
    Some(Memory { total: room::total()?, available })
}

/// The most memory this process has held (Linux).
pub fn peak_rss() -> Option<u64> {
    status("VmHWM:")
}

/// The memory this process holds (Linux).
pub fn rss() -> Option<u64> {
    status("VmRSS:")
}

fn status(key: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find(|l| l.starts_with(key))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kb| kb * 1024)
}

/// A model's weights in a backend made for `purpose`.
pub fn open(checkpoint: &Checkpoint, purpose: Use, machine: &MachineOptions) -> Result<(Model, Cpu)> {
    let model = Model::new(&checkpoint.config, purpose)?;
    fits(&model, None, machine.threads(), "this model")?;
    let mut cpu = machine.cpu(&model)?;
    checkpoint.load(&model, &mut cpu)?;
    Ok((model, cpu))
}

/// Refuses a result that is no number, or infinite, naming what of the model it comes from.
pub fn finite(checkpoint: &Checkpoint, what: &str, result: f64) -> Result<()> {
    if result.is_finite() {
        return Ok(());
    }
    let place = checkpoint.path.display();
    match checkpoint.not_finite()? {
        Some((tensor, at)) => bail!("{what} is {result}: `{tensor}` in {place} is not finite at element {at}"),
        None => bail!("{what} is {result}, though all weights in {place} are finite: they are too large"),
    }
}

/// Opens a model; a name that no file has is most often a preset's, or one of a model elsewhere.
pub fn checkpoint(model: &Path) -> Result<Checkpoint> {
    if model.symlink_metadata().is_ok() {
        return Ok(Checkpoint::open(model)?);
    }
    let (path, name) = (model.display(), model.to_string_lossy());
    let mend = match Config::preset(&name) {
        Ok(_) => format!(
            "it is the name of a preset: `limpid train --preset {name}` makes such a model; trained weights of that \
             name are fetched from where they are published, for example as the folder huggingface.co/{name}"
        ),
        Err(_) => {
            "limpid opens a folder (of `limpid train`, or one of HuggingFace's that you have fetched), a .gguf or \
                   a .bin of llm.c, and downloads none"
                .into()
        }
    };
    bail!("there is no file or folder {path} here: {mend}")
}

/// Opens a model, with an adapter if one is given.
pub fn adapted(model: &Path, adapter: Option<&Path>) -> Result<Checkpoint> {
    let checkpoint = checkpoint(model)?;
    Ok(match adapter {
        Some(adapter) => checkpoint.with_adapter(adapter)?,
        None => checkpoint,
    })
}

/// The directory's tokenizer, or an error that says what to do without one.
pub fn tokenizer(checkpoint: &Checkpoint) -> Result<&Tokenizer> {
    match &checkpoint.tokenizer {
        Some(tokenizer) => Ok(tokenizer),
        None => bail!("{} has no tokenizer: give ids with --tokens 1,2,3", checkpoint.path.display()),
    }
}

/// Refuses an encoder that has no head, before anything else about it is asked for.
pub fn needs_head(checkpoint: &Checkpoint) -> Result<()> {
    match checkpoint.config.lm_head {
        true => Ok(()),
        false => bail!("{}: {}", checkpoint.path.display(), ConfigError::NoHead),
    }
}

/// The ids of a prompt, as the model expects it.
pub fn prompt_ids(checkpoint: &Checkpoint, text: &str) -> Result<Vec<u32>> {
    let tokenizer = tokenizer(checkpoint)?;
    Ok(limpid::generate::prompt_ids(tokenizer, checkpoint.config.mask, text)?)
}

/// Ids as `--tokens` takes them: 1,2,3.
pub fn ids(text: &str) -> Result<u32, String> {
    text.trim()
        .parse()
        .map_err(|_| format!("`{text}` is not a token id: give whole numbers with commas between, like 1,2,3"))
}

//! What verbs ask of the machine and the system: memory and whether a model fits into it, signals, and how often roofs are read.

use crate::room::{self, Limit};
use crate::{dashboard, show};
use anyhow::{Result, bail};
use limpid::backend::Cpu;
use limpid::config::Config;
use limpid::model::{Model, Tuning, Use};
use limpid::train::Recipe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Readings of a roof of multiply-adds, a millisecond each: other programs disturb some of them.
pub const READINGS: usize = 60;

/// Readings of a roof of reads, a pass over half a gigabyte each.
pub const PASSES: usize = 6;

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
pub fn lacking(model: &Model, recipe: Option<&Recipe>, threads: usize) -> Option<(u64, Limit)> {
    let touched = needed(model, recipe, threads);
    let reserved = recipe.map_or(0, |recipe| recipe.untouched(model));
    let untouched = (Cpu::untouched_bytes(model, threads) + reserved) as u64;
    let needs = |limit: &Limit| if limit.of_addresses { touched + untouched + SPARE } else { touched };
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

/// Refuses what the reference, which keeps all memories of a model in f64, has no room for.
pub fn fits_in_f64(model: &Model) -> Result<()> {
    let needed = 8 * model.sizes.iter().map(|n| *n as u64).sum::<u64>();
    if let Some(limit) = room::limits().into_iter().find(|limit| needed > limit.left) {
        let (needed, left) = (show::bytes(needed), show::bytes(limit.left));
        bail!(
            "on --device reference this model needs {needed} of memory and {left} are {}: use --device cpu",
            limit.said
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

/// Set when the user or the system asks to stop (Ctrl-C, SIGTERM, a terminal that is closed); after a second Ctrl-C the
/// process ends at once.
pub fn interrupt() -> Result<Arc<AtomicBool>> {
    let asked = Arc::new(AtomicBool::new(false));
    let flag = asked.clone();
    on_signal(move |urgent| match flag.swap(true, Ordering::Relaxed) {
        // a closed terminal sends SIGHUP two or three times: nobody is in a hurry there
        true if !urgent => {}
        true => {
            dashboard::restore();
            std::process::exit(130);
        }
        false if dashboard::active() => {}
        false => show::say("\nstopping after this step; once more to stop at once"),
    })?;
    Ok(asked)
}

/// Calls `f` at Ctrl-C (`true`: a person waits), when the process is told to end and when its terminal is closed, unless that is
/// to be ignored (nohup).
#[cfg(unix)]
fn on_signal(f: impl Fn(bool) + Send + 'static) -> Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    // Linux says what is ignored: a mask, with the first signal as its lowest bit
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    let ignored = mask.is_some_and(|mask| mask >> (SIGHUP - 1) & 1 == 1);
    let caught = [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| *signal != SIGHUP || !ignored);
    let mut signals = signal_hook::iterator::Signals::new(caught)?;
    std::thread::Builder::new().spawn(move || signals.forever().for_each(|signal| f(signal == SIGINT)))?;
    Ok(())
}

#[cfg(not(unix))]
fn on_signal(f: impl Fn(bool) + Send + 'static) -> Result<()> {
    Ok(ctrlc::set_handler(move || f(true))?)
}

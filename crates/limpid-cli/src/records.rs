//! What runs left in their folders, with the settings that `train` wrote down, and the page made of it.

use crate::options;
use anyhow::{Context, Result};
use limpid::Lm;
use limpid_report::{self as report, ModelLook, RunRecord};
use std::path::Path;

/// Writes the page of one run into its folder.
pub fn write(folder: &Path) -> Result<()> {
    page(&[seen(folder)?], &folder.join("report.html"))
}

/// A run with a look at its model, which reads the last sample.
pub fn seen(folder: &Path) -> Result<RunRecord> {
    let mut run = read(folder)?;
    let text = run.samples.last().map(|sample| format!("{}{}", sample.prompt, sample.text));
    run.look = text.map(|text| look(folder, &text).map_err(|error| format!("{error:#}")));
    Ok(run)
}

fn look(folder: &Path, text: &str) -> Result<ModelLook> {
    let lm = Lm::open(folder)?;
    let mut ids = lm.encode(text)?;
    ids.truncate(ModelLook::tokens(lm.config()));
    let tokenizer = lm.tokenizer()?;
    Ok(lm.trace_ids(&ids, |trace| ModelLook::new(trace, tokenizer))?)
}

/// Writes the page of several.
pub fn page(runs: &[RunRecord], page: &Path) -> Result<()> {
    Ok(limpid::checkpoint::write_text(page, &report::html(runs))?)
}

/// A run, with the settings that `train` wrote down.
pub fn read(folder: &Path) -> Result<RunRecord> {
    let mut run = RunRecord::read(folder)?;
    let path = folder.join("limpid.toml");
    if path.exists() {
        let text = options::read_settings(&path)?;
        let settings: toml::Table = text.parse().with_context(|| path.display().to_string())?;
        for (key, value) in settings {
            run.set(&key, &serde_json::to_value(value)?);
        }
    }
    Ok(run)
}

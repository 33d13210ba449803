//! What runs left in their folders, with the settings that they wrote down, and the page made of it.

use crate::{self as report, ModelLook, ReportError, RunRecord};
use limpid::Lm;
use limpid::settings::read_table;
use limpid::trace::Keep;
use std::path::Path;

/// Writes the page of one run into its folder.
///
/// # Errors
/// As [`seen`] and [`page`].
pub fn write(folder: &Path) -> Result<(), ReportError> {
    page(&[seen(folder)?], &folder.join("report.html"))
}

/// A run with a look at its model, which reads the last sample.
///
/// # Errors
/// As [`read`].
pub fn seen(folder: &Path) -> Result<RunRecord, ReportError> {
    let mut run = read(folder)?;
    let text = run.samples.last().map(|sample| format!("{}{}", sample.prompt, sample.text));
    run.look = text.map(|text| look(folder, &text).map_err(|error| error.to_string()));
    Ok(run)
}

fn look(folder: &Path, text: &str) -> Result<ModelLook, limpid::Error> {
    let lm = Lm::open(folder)?;
    let mut ids = lm.encode(text)?;
    ids.truncate(ModelLook::tokens(lm.config()));
    let tokenizer = lm.tokenizer()?;
    Ok(ModelLook::new(&lm.trace_ids(&ids, Keep::All)?, tokenizer)?)
}

/// Writes the page of several.
///
/// # Errors
/// If it cannot be written.
pub fn page(runs: &[RunRecord], page: &Path) -> Result<(), ReportError> {
    Ok(limpid::checkpoint::write_text(page, &report::html(runs))?)
}

/// A run, with the settings that it wrote down.
///
/// # Errors
/// As [`RunRecord::read`], and if its limpid.toml cannot be read.
pub fn read(folder: &Path) -> Result<RunRecord, ReportError> {
    let mut run = RunRecord::read(folder)?;
    let path = folder.join("limpid.toml");
    if path.exists() {
        read_table(&path)?.iter().for_each(|(key, value)| run.set(key, value));
    }
    Ok(run)
}

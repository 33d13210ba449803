//! `train --find-rate`: steps with a growing learning rate, and what their losses say.

use super::train::{Job, interrupt};
use crate::options::MachineOptions;
use crate::show::{self, Progress};
use anyhow::Result;
use limpid::data::Batches;
use limpid::train::{Recipe, finder};
use std::sync::atomic::Ordering;

/// Steps, and the rates they go from and to.
const RANGE: (f64, f64, u64) = (1e-6, 1.0, 120);

/// Rows of the table.
const ROWS: usize = 16;

pub fn run(job: &Job, machine: &MachineOptions, json: bool) -> Result<()> {
    let Recipe { batch_size, context, seed, accumulate, .. } = job.recipe;
    let documents = job.recipe.documents();
    let batches = Batches::of_documents(&job.train, batch_size, context, seed, job.objective, documents)?;
    let batches = batches.accumulated(accumulate);
    let mut trainer = job.trainer(machine)?;
    let (asked, progress, mut step) = (interrupt()?, Progress::new(RANGE.2, json), 0);
    let found = finder::find(&mut trainer, &batches, RANGE, &mut |rate, loss| {
        step += 1;
        progress.step(step, || format!("learning rate {rate:.1e}  loss {loss:.4}"));
        !asked.load(Ordering::Relaxed)
    });
    progress.done();
    let found = found?;
    if json {
        return show::json(&serde_json::json!({
            "suggested": found.suggested, "lowest": found.lowest,
            "curve": found.curve.iter().map(|(rate, loss)| serde_json::json!({"rate": rate, "loss": loss})).collect::<Vec<_>>(),
        }));
    }
    let losses = found.curve.iter().map(|(_, loss)| *loss);
    let (least, most) = losses.fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), l| (a.min(l), b.max(l)));
    let mut text = String::from("learning rate  smoothed loss\n");
    let every = found.curve.len().div_ceil(ROWS);
    for (rate, loss) in found.curve.iter().rev().step_by(every).collect::<Vec<_>>().into_iter().rev() {
        let bar = "#".repeat(1 + (39.0 * (loss - least) / (most - least).max(1e-9)) as usize);
        text += &format!("{rate:>13.1e}  {loss:>13.4}  {bar}\n");
    }
    show::out(&format!(
        "{text}\nleast at {:.1e}; a tenth of that is a rate to begin with:\n  --learning-rate {:.1e}\n",
        found.lowest, found.suggested
    ))
}

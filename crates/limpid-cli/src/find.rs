//! `train --lr-find`: short trainings at several learning rates, and what they end with.

use crate::options::Interrupted;
use crate::show;
use crate::signals::interrupt;
use crate::source;
use anyhow::{Result, bail};
use limpid::TrainingPlan;
use limpid::train::lr_finder;
use serde_json::json;
use std::sync::atomic::Ordering;

pub fn run(plan: &TrainingPlan, as_json: bool) -> Result<()> {
    let recipe = &plan.recipe;
    let batches = recipe.batches(&plan.corpus.train, plan.objective)?;
    let asked = interrupt()?;
    let steps = lr_finder::STEPS.min(recipe.steps);
    let found = lr_finder::find(
        &mut || plan.trainer().map_err(source::of_library),
        &batches,
        recipe,
        &mut |rate, step, loss| {
            if step == steps && !as_json {
                let loss = loss.map_or("none".into(), |loss| format!("{loss:.4}"));
                show::say(format_args!("learning rate {rate:.1e}: step {step}, loss {loss}"));
            }
            !asked.load(Ordering::Relaxed)
        },
    )?;
    let Some(suggested) = found.suggested else { bail!(Interrupted("stopped before a rate was found")) };
    if as_json {
        let tried: Vec<_> = found.tried.iter().map(|(rate, loss)| json!({ "rate": rate, "loss": loss })).collect();
        return show::json(&json!({ "suggested": suggested, "steps": steps, "tried": tried }));
    }
    let finite = || found.tried.iter().map(|(_, loss)| *loss).filter(|loss| loss.is_finite());
    let (least, most) = finite().fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), l| (a.min(l), b.max(l)));
    let mut text = format!("learning rate    loss  (mean of the last {} of {steps} steps)\n", steps.div_ceil(4));
    for (rate, loss) in &found.tried {
        text += &if loss.is_finite() {
            let bar = "#".repeat(1 + (39.0 * (loss - least) / (most - least).max(1e-9)) as usize);
            format!("{rate:>13.1e}  {loss:>6.4}  {bar}\n")
        } else {
            format!("{rate:>13.1e}  diverged\n")
        };
    }
    show::out(&format!(
        "{text}\na rate to train with, corrected for a longer training:\n  --learning-rate {suggested:.1e}\n"
    ))
}

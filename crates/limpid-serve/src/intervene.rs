//! `limpid.interventions` of a request: whether it may change what the model computes, and what the changes are on this
//! model. All of it is found out before anything of the request runs.
//!
//! Prompts that activations are taken from run where questions about the model's inside are answered: on the same few
//! threads, within the same time and memory. So they hold up no engine. The numbers taken count among those of traces
//! until the answer ends.

use crate::model::ServedLease;
use crate::openai::{Ask, INTERVENTIONS, fault};
use crate::refusal::{Refusal, Result};
use crate::state::ServerState;
use crate::threads::on_thread;
use limpid::Error;
use limpid_glass::{GlassError, Reserved, Subject};
use std::sync::Arc;

/// The same request with what its interventions are on the model, and the memory of that, to be held as long as the
/// answer is made.
pub async fn resolve(shared: &ServerState, model: &ServedLease, mut ask: Ask) -> Result<(Ask, Option<Reserved>)> {
    let Some(given) = ask.answer.interventions.clone() else { return Ok((ask, None)) };
    if !shared.options.allow_interventions {
        return Err(Refusal::interventions_disabled(INTERVENTIONS));
    }
    let glass = shared.glass.clone().ok_or_else(Refusal::inspect_disabled)?;
    let (model, time) = (model.clone(), shared.options.look_time);
    on_thread(shared, &shared.looking, move |gone| {
        let subject = Subject::from(&**model);
        let budget = Arc::new(glass.budget(&[subject]).time(time).unless(gone.clone()));
        let steps = Arc::new(model.lm.resolve(&given, &budget).map_err(refused)?);
        let held = glass.reserve(steps.bytes(), &budget)?;
        // once for all answers to a prompt, and here: it may take long
        for same in
            ask.requests.chunk_by_mut(|a, b| (&a.prompt, a.options.max_tokens) == (&b.prompt, b.options.max_tokens))
        {
            budget.take_steps(1).map_err(|why| GlassError::Spent { what: "the interventions".into(), why })?;
            let placed = same[0].place(&steps, model.lm.config()).map_err(|error| fault(INTERVENTIONS, &error))?;
            same.iter_mut().for_each(|request| request.steps = Some(placed.clone()));
        }
        Ok((ask, Some(held)))
    })
    .await
}

fn refused(error: Error) -> Refusal {
    match error {
        Error::Intervention(error) => fault(INTERVENTIONS, &error),
        other => GlassError::from(other).into(),
    }
}

//! The time-lapse of the run whose model is looked at. A page that follows the run asks for frames from a number on.

use crate::asked::{AskedQuery, refusal};
use crate::{GlassError, Query, Reply, Result, Subject};
use limpid::timelapse::{Timelapse, TimelapseError};

/// Frames of an answer, unless it is said, and at most.
const COUNT: usize = 50;
const MOST: usize = 1000;

/// `timelapse`: frames of the run whose model is looked at, from a number on, or the one of a step with its pictures.
pub fn answer(subjects: &[Subject], query: &Query) -> Result<Reply> {
    let query = AskedQuery::read(query, &["from", "count", "step"])?;
    let none = GlassError::NotThis("this model has no time-lapse: it was not trained with --probe");
    let Some(subject) = subjects.first() else { return Err(none) };
    let Some(files) = subject.lm.checkpoint() else { return Err(none) };
    let mut timelapse = match Timelapse::open(&files.path) {
        Err(TimelapseError::Missing { .. }) => return Err(none),
        opened => opened?,
    };
    let config = subject.lm.config();
    let tokenizer = subject.lm.tokenizer().ok().map(|own| own.to_json());
    timelapse.check_model(tokenizer.as_deref(), Some([config.n_layer, config.n_head]))?;
    let steps = timelapse.steps();
    let (from, pictured) = match query.text("step") {
        Some(_) if query.text("from").or(query.text("count")).is_some() => {
            return Err(refusal("step", "alone, without `from` and `count`", "both"));
        }
        Some(asked) => {
            let at = asked.parse().ok().and_then(|step| steps.binary_search(&step).ok());
            let known = format!("the step of a frame (`steps` lists {} of them)", steps.len());
            (at.ok_or_else(|| refusal("step", &known, asked))?, true)
        }
        None => (query.number("from", 0, usize::MAX)?.min(steps.len()), false),
    };
    let count = if pictured { 1 } else { query.number("count", COUNT, MOST + 1)? };
    let to = from.saturating_add(count).min(steps.len());
    Ok(Reply::Json(timelapse.json(subject.lm.tokenizer().ok(), from..to, pictured)?))
}

impl From<TimelapseError> for GlassError {
    fn from(error: TimelapseError) -> GlassError {
        // who asks has no use for the place of the file
        GlassError::Timelapse(match error {
            TimelapseError::Format { what, .. } => what,
            TimelapseError::Io { fault, .. } => fault.to_string(),
            error => error.to_string(),
        })
    }
}

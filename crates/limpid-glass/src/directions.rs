//! Directions ([`limpid::directions`]): what tells two kinds of prompts apart, how well, and what adding it does.

use crate::asked::{AskedFields, refusal};
use crate::sweep::ids;
use crate::{Glass, GlassError, Result, Subject, stream};
use limpid::directions::{DirectionPosition, DirectionQuestion};
use limpid::trace::directions::DirectionMethod;
use limpid_base::budget::Budget;
use limpid_core::config::Mask;
use serde_json::{Value, json};
use std::sync::Arc;

/// The most pairs of prompts.
const PAIRS: usize = 64;
/// The most tokens that are written to show a direction.
const WRITTEN: usize = 32;
/// From so many pairs on the last quarter is held out.
const TESTED: usize = 4;

const FIELDS: &[&str] =
    &["positive", "negative", "test_positive", "test_negative", "site", "layers", "method", "prompt", "write", "model"];

/// The prompts of a field.
fn prompts(subject: &Subject, body: &AskedFields, name: &'static str) -> Result<Vec<Vec<u32>>> {
    let one = |given: &Value| {
        let body = json!({ "prompt": given });
        let ids = stream::ids(subject, &AskedFields::read(&body, &["prompt"])?)?.0;
        if ids.is_empty() { Err(GlassError::Empty) } else { Ok(ids) }
    };
    body.list(name, PAIRS)?.iter().map(one).collect()
}

/// Pairs of two fields.
fn pairs(subject: &Subject, body: &AskedFields, names: [&'static str; 2]) -> Result<Vec<[Vec<u32>; 2]>> {
    let [positive, negative] = names.map(|name| prompts(subject, body, name));
    let (positive, negative) = (positive?, negative?);
    if positive.len() != negative.len() {
        let expected = format!("as many texts as `{}` has, {}", names[0], positive.len());
        return Err(refusal(names[1], &expected, &negative.len().to_string()));
    }
    Ok(positive.into_iter().zip(negative).map(|(a, b)| [a, b]).collect())
}

impl Glass {
    /// Finds a direction in each layer and tells what it is in one event, `done`, with what the model writes after a
    /// prompt with the best of them: `body` is `{"positive": [TEXT], "negative": [TEXT]}`, with the fields of
    /// docs/inside.md. `work` is spent on the runs.
    ///
    /// # Errors
    /// What [`GlassError`] says.
    pub fn directions(
        &self,
        subjects: &[Subject],
        body: &Value,
        work: &Arc<Budget>,
        tell: &mut dyn FnMut(&str) -> bool,
    ) -> Result<()> {
        let body = AskedFields::read(body, FIELDS)?;
        let subject = body.subject(subjects)?;
        let lm = &subject.lm;
        let given = pairs(subject, &body, ["positive", "negative"])?;
        let test_pairs = pairs(subject, &body, ["test_positive", "test_negative"])?;
        let method = body.text("method")?.unwrap_or("mean");
        let method: DirectionMethod = method.parse().map_err(|_| refusal("method", "mean, pca or probe", method))?;
        let layers = body.numbers("layers", lm.config().n_layer)?;
        let tested = test_pairs.is_empty() && given.len() >= TESTED;
        let shown = match body.text("prompt")? {
            Some(_) => ids(subject, &body, "prompt")?,
            None => given.first().map_or(vec![], |pair| pair[1].clone()),
        };
        let question = DirectionQuestion {
            test_pairs,
            site: body.text("site")?.unwrap_or("resid_post").into(),
            layers: (!layers.is_empty()).then_some(layers),
            position: DirectionPosition::At(-1),
            method,
            held_out: if tested { 0.25 } else { 0.0 },
            ..DirectionQuestion::new(given)
        };
        let start = json!({ "event": "start", "pairs": question.pairs.len(), "method": method.name() });
        if !tell(&start.to_string()) {
            return Ok(());
        }
        let found = lm.directions_within(&question, work)?;
        let mut done = json!({ "event": "done", "pairs": found.pairs, "held_out": found.held_out, "chance": 0.5 });
        done["layers"] = json!(found.layers);
        let write = body.number("write", WRITTEN)?;
        let writes = write > 0 && !shown.is_empty() && lm.config().lm_head && lm.config().mask == Mask::Causal;
        if let Some(best) = found.best().filter(|_| writes) {
            let effects = lm.direction_effects(&found, best, &shown, write)?;
            done["best"] = best.layer.into();
            done["prompt"] = shown.iter().map(|id| stream::piece(subject, *id)).collect();
            done["effects"] = json!(effects);
        }
        tell(&done.to_string());
        Ok(())
    }
}

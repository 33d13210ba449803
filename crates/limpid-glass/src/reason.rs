//! Why a word is predicted, measured ([`limpid::reason`]), told as it is found.

use crate::asked::AskedFields;
use crate::sweep::{ids, one, position};
use crate::why::{number, token};
use crate::{Glass, Result, Subject, stream};
use limpid::Error;
use limpid::reason::{ReasonEvent, ReasonQuestion};
use limpid_base::budget::Budget;
use limpid_trace::Keep;
use serde_json::{Value, json};
use std::sync::Arc;

const FIELDS: &[&str] = &["clean", "corrupt", "model", "answer", "foil", "position"];

impl Glass {
    /// Looks for the reason for a word and tells what is found, an event each, until `tell` says `false`: a first
    /// answer from gradients, words that turn the answer, parts that carry it, and at the end all of it with its
    /// sentence. `body` is `{"clean": TEXT}` with the fields of docs/inside.md. For memory it waits as long as `wait`
    /// says; `work` is spent on the runs.
    ///
    /// # Errors
    /// What [`crate::GlassError`] says. Events that were told stay true.
    pub fn reason(
        &self,
        subjects: &[Subject],
        body: &Value,
        (wait, work): (&Budget, &Arc<Budget>),
        tell: &mut dyn FnMut(&str) -> bool,
    ) -> Result<()> {
        let body = AskedFields::read(body, FIELDS)?;
        let subject = body.subject(subjects)?;
        let lm = &subject.lm;
        let text = ids(subject, &body, "clean")?;
        let corrupt = body.get("corrupt").map(|_| ids(subject, &body, "corrupt")).transpose()?;
        let at = position(subject, &body, &text)?;
        let row = if at < 0 { (text.len() as i64 + at) as usize } else { at as usize };
        let _held = self.reserve(lm.reason_bytes(text.len())?, wait)?;
        let (answer, foil) = (one(subject, &body, "answer")?, one(subject, &body, "foil")?);
        let mut likeliest = vec![];
        if answer.is_none() || foil.is_none() {
            let mut run = lm.trace_ids(&text, Keep::Blocks { seen: 0 })?;
            run.spend(work);
            let best = run.predictions(row..row + 1, 2)?;
            likeliest.extend(best.iter().flat_map(|best| &best.top).map(|best| best.id));
        }
        let answer = answer.or(likeliest.first().copied()).unwrap_or(0);
        let foil = foil.or(likeliest.into_iter().find(|id| *id != answer)).unwrap_or(0);
        let question = ReasonQuestion { ids: text, row, answer, foil, corrupt };
        lm.check_reason(&question)?;
        let word = |id: u32| stream::piece(subject, id);
        let start = json!({ "event": "start", "position": row, "answer": token(subject, answer),
            "foil": token(subject, foil) });
        if !tell(&start.to_string()) {
            return Ok(());
        }
        let found = lm.reason(&question, work, &mut |event| {
            let event = match event {
                ReasonEvent::Guess(change, estimate) => {
                    json!({ "event": "guess", "change": change.json(&word), "estimate": number(*estimate) })
                }
                ReasonEvent::Changed(changes, difference) => {
                    let changes: Vec<Value> = changes.iter().map(|change| change.json(&word)).collect();
                    json!({ "event": "changed", "changes": changes, "difference": number(*difference) })
                }
                ReasonEvent::Part(part) => json!({ "event": "part", "part": part.json(0.0) }),
                _ => return true,
            };
            tell(&event.to_string())
        });
        match found {
            Ok(reason) => {
                let mut done = reason.json(&word);
                done["event"] = "done".into();
                tell(&done.to_string());
                Ok(())
            }
            Err(Error::Stopped) => Ok(()), // whoever asked has gone
            Err(error) => Err(error.into()),
        }
    }
}

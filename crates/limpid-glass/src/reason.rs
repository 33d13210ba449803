//! Why a word is predicted, measured ([`limpid::reason`]), told as it is found.

use crate::asked::AskedFields;
use crate::sweep::{ids, one, position};
use crate::why::{number, token};
use crate::{Glass, Result, Subject, stream};
use limpid::Error;
use limpid::reason::{ReasonEvent, ReasonQuestion};
use limpid_base::budget::Budget;
use limpid_trace::interventions::position_in;
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
        let row = position_in(at, text.len()).unwrap_or(0);
        let _held = self.reserve(lm.reason_bytes(text.len())?, wait)?;
        let both = [one(subject, &body, "answer")?, one(subject, &body, "foil")?];
        let question = ReasonQuestion { corrupt, ..ReasonQuestion::new(lm, (text, row), both, work)? };
        lm.check_reason(&question)?;
        let word = |id: u32| stream::piece(subject, id);
        let [answer, foil] = [question.answer, question.foil].map(|id| token(subject, id));
        let start = json!({ "event": "start", "position": row, "answer": answer, "foil": foil });
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

//! The walks of limpid-study as a stream: each document's steps, live, with the data that a terminal shows of them.

use limpid_glass::asked::{AskedFields, shown};
use limpid_glass::{GlassError, Subject};
use limpid_study::walk::{Made, Walk, WalkError, WalkOptions, WalkStep};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Every walk and its steps by name.
pub fn list() -> Value {
    let step = |step: &WalkStep| json!({ "id": step.id, "section": step.section, "title": step.title });
    let walk = |walk: &Walk| {
        json!({
            "id": walk.name,
            "also": walk.also,
            "title": walk.title,
            "about": walk.about,
            "steps": walk.steps.iter().map(step).collect::<Vec<_>>(),
        })
    };
    json!({ "walks": Walk::all().iter().map(walk).collect::<Vec<_>>() })
}

/// Why a walk is not shown.
#[derive(Debug, thiserror::Error)]
pub enum WalksError {
    /// What was asked for.
    #[error(transparent)]
    Asked(#[from] GlassError),
    /// A walk that cannot go on.
    #[error(transparent)]
    Walk(#[from] WalkError),
}

/// What was told of walks on their own models.
#[derive(Debug, Default)]
pub struct Walks(Mutex<BTreeMap<String, Vec<Arc<str>>>>);

impl Walks {
    /// Walks a document (`{"walk": "s0"}`), and tells each step when it is ready: on the walk's own model, which is
    /// trained in memory, or with `"own": true` and a `"prompt"` on the one that is looked at. `tell` gets JSON, an
    /// event each, until it says `false`. What the walk's own model shows is kept.
    ///
    /// # Errors
    /// What [`WalksError`] says.
    pub fn walk(
        &self,
        subjects: &[Subject],
        body: &Value,
        tell: &mut dyn FnMut(&str) -> bool,
    ) -> Result<(), WalksError> {
        let body = AskedFields::read(body, &["walk", "own", "model", "prompt"])?;
        let (name, own, prompt) = (body.text("walk")?.unwrap_or_default(), body.flag("own")?, body.text("prompt")?);
        let walk = Walk::named(name).map_err(|_| {
            let names: Vec<String> = Walk::all().iter().map(|walk| walk.name.clone()).collect();
            GlassError::Parameter { name: "walk", expected: format!("one of {}", names.join(", ")), found: shown(name) }
        })?;
        let subject = body.subject(subjects)?;
        let kept = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = kept().get(&walk.name).filter(|_| !own).cloned();
        if let Some(lines) = known {
            let _ = lines.iter().all(|line| tell(line));
            return Ok(());
        }
        let model = match (own, subject.lm.checkpoint()) {
            (false, _) => None,
            (true, Some(files)) => Some(files.path.clone()),
            (true, None) => return Err(GlassError::NotThis("this model has no files that a walk could open").into()),
        };
        let prompts = prompt.filter(|_| own).map(String::from).into_iter().collect();
        let commands: Vec<String> = walk.models.iter().map(Made::command).collect();
        let start = json!({
            "event": "start", "walk": walk.name, "title": walk.title, "about": walk.about, "commands": commands,
            "steps": walk.steps.len(),
        });
        let mut lines: Vec<Arc<str>> = vec![start.to_string().into()];
        let steps = walk.steps.clone();
        let mut live = walk.clone().live(WalkOptions {
            model,
            prompts,
            pictures: true,
            threads: subject.lm.machine().threads,
            ..WalkOptions::default()
        });
        if !tell(&lines[0]) {
            return Ok(());
        }
        for step in &steps {
            let shown = live.step(step)?;
            let line: Arc<str> = json!({ "event": "step", "shown": shown }).to_string().into();
            lines.push(line.clone());
            if !tell(&line) {
                return Ok(());
            }
        }
        let differences = if own { live.differences()? } else { vec![] };
        let done: Arc<str> = json!({ "event": "done", "differences": differences }).to_string().into();
        lines.push(done.clone());
        tell(&done);
        if !own {
            kept().insert(walk.name, lines);
        }
        Ok(())
    }
}

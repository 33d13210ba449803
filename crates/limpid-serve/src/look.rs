//! `/inspect/v1/`: questions about the inside of the model, passed on to [`Glass`], wherever they come from.
//!
//! Looking shares the weights and nothing else with the engine, so it changes no answer. All of it runs within a
//! [`Budget`]: it ends when nobody waits for it any more (a run of a prompt after the block that is being computed),
//! and when it takes too long. [`crate::looking`] does it on threads of its own, [`crate::local`] on the only one.

use crate::json;
use crate::model::ServedModel;
use crate::openai::{Ask, INTERVENTIONS, fault};
use crate::options::{ServeOptions, ServedTraining};
use crate::refusal::{Refusal, Result};
#[cfg(feature = "study")]
use crate::walks::{self, Walks, WalksError};
use limpid::Error;
use limpid_base::budget::Budget;
#[cfg(feature = "study")]
use limpid_glass::asked::AskedQuery;
use limpid_glass::{Glass, GlassError, RETRY, Reply, Reserved, Subject, decoded};
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The glass box of a server, and what may be asked of it.
pub struct Look {
    glass: Glass,
    /// What was told of walks.
    #[cfg(feature = "study")]
    walks: Walks,
    against: Vec<Subject>,
    allow_interventions: bool,
    time: Duration,
    training: Option<ServedTraining>,
}

/// Set when nobody waits for an answer any more.
pub type GoneFlag = Arc<AtomicBool>;

impl From<&ServedModel> for Subject {
    fn from(model: &ServedModel) -> Subject {
        let ServedModel { id, fingerprint, step, lm, .. } = model;
        Subject { name: id.clone(), fingerprint: fingerprint.clone(), step: *step, lm: lm.clone() }
    }
}

/// The parameters after `?`.
pub fn query(text: &str) -> Vec<(String, String)> {
    let pair = |pair: &str| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decoded(name), decoded(&value.replace('+', " ")))
    };
    text.split('&').filter(|part| !part.is_empty()).map(pair).collect()
}

/// The trace whose tiles are asked for.
fn tiles_of(path: &str) -> Option<&str> {
    path.strip_prefix("traces/")?.strip_suffix("/tiles")
}

/// The type of what is told at a path by [`Look::tell`].
///
/// # Errors
/// If nothing is.
pub fn told_type(path: &str) -> Result<&'static str> {
    match path {
        _ if tiles_of(path).is_some() => Ok("application/vnd.limpid.tiles"),
        "traces" | "sweeps" | "reasons" | "units" | "directions" => Ok("application/x-ndjson"),
        "walks" if cfg!(feature = "study") => Ok("application/x-ndjson"),
        _ => Err(Refusal::not_found(path)),
    }
}

impl Look {
    /// The glass box that these options ask for, if they do.
    pub fn new(options: &ServeOptions) -> Option<Look> {
        Some(Look {
            glass: Glass::new(options.inspect?),
            #[cfg(feature = "study")]
            walks: Walks::default(),
            against: options.against.clone(),
            allow_interventions: options.allow_interventions,
            time: options.look_time,
            training: options.training.clone(),
        })
    }

    /// Looks from now on at a model that trains in this process, or does so no longer.
    pub fn follow(&mut self, training: Option<ServedTraining>) {
        self.training = training;
    }

    /// The model that is served, and those beside it.
    fn subjects(&self, model: &ServedModel) -> Vec<Subject> {
        std::iter::once(model.into()).chain(self.against.iter().cloned()).collect()
    }

    fn budget(&self, subjects: &[Subject], gone: &GoneFlag) -> Arc<Budget> {
        Arc::new(self.glass.budget(subjects).time(self.time).unless(gone.clone()))
    }

    /// Answers a question: `GET /inspect/v1/` and what follows.
    ///
    /// # Errors
    /// As [`Glass::ask`].
    pub fn ask(&self, model: &ServedModel, path: &str, query: &[(String, String)], gone: &GoneFlag) -> Result<Reply> {
        #[cfg(feature = "study")]
        if path == "walks" {
            AskedQuery::read(query, &[])?;
            return Ok(Reply::from(walks::list()));
        }
        let subjects = self.subjects(model);
        let reply = self.glass.ask(&subjects, path, query, &self.budget(&subjects, gone))?;
        match (reply, &self.training) {
            (Reply::Json(text), Some(training)) if path == "training" => {
                let mut answer: Value = serde_json::from_str(&text).map_err(Refusal::engine_error)?;
                answer["steps"] = training.steps.into();
                if let Some(floor) = training.floor {
                    answer["floor"] = floor.into();
                }
                Ok(Reply::from(answer))
            }
            (Reply::Json(text), _) if path == "model" => {
                let mut answer: Value = serde_json::from_str(&text).map_err(Refusal::engine_error)?;
                answer["interventions"] = self.allow_interventions.into();
                Ok(Reply::from(answer))
            }
            (reply, _) => Ok(reply),
        }
    }

    /// Forgets a trace.
    ///
    /// # Errors
    /// If there is none at that path.
    pub fn forget(&self, path: &str) -> Result<()> {
        Ok(self.glass.forget(path.strip_prefix("traces/").ok_or_else(|| Refusal::not_found(path))?)?)
    }

    /// Stops the training that runs in this process, after its step.
    ///
    /// # Errors
    /// If none does, or the body says something else.
    #[cfg(feature = "http")]
    pub fn stop(&self, body: &[u8]) -> Result<()> {
        let body = json::object(body)?;
        let Some(training) = &self.training else {
            let why = "no training runs in this server's process: stop it where it runs";
            return Err(Refusal::glass("not_for_this_model", why.into()));
        };
        if body.len() != 1 || body.get("stop") != Some(&Value::Bool(true)) {
            return Err(Refusal::glass("invalid_value", "the body must be {\"stop\": true}".into()));
        }
        training.stop.store(true, std::sync::atomic::Ordering::SeqCst);
        Ok(())
    }

    /// Runs a prompt, paints tiles of a trace, sweeps, looks for a reason, reads for units or walks, and tells of it
    /// piece by piece until `tell` says `false`. What fails after something was told is told too, but for tiles, which
    /// have no place for it.
    ///
    /// # Errors
    /// As [`Glass::trace`], [`Glass::tiles`], [`Glass::sweep`] and [`Glass::reason`].
    pub fn tell(
        &self,
        model: &ServedModel,
        (path, body): (&str, &[u8]),
        gone: &GoneFlag,
        tell: &mut dyn FnMut(Vec<u8>) -> bool,
    ) -> Result<()> {
        let mut told = false;
        let done = self.tell_unless_it_fails(model, (path, body), gone, &mut |piece| {
            told = true;
            tell(piece)
        });
        if let Err(refusal) = &done
            && told
            && tiles_of(path).is_none()
        {
            let mut event = refusal.body();
            event["event"] = "error".into();
            tell(format!("{event}\n").into());
        }
        done
    }

    fn tell_unless_it_fails(
        &self,
        model: &ServedModel,
        (path, body): (&str, &[u8]),
        gone: &GoneFlag,
        tell: &mut dyn FnMut(Vec<u8>) -> bool,
    ) -> Result<()> {
        let body = Value::Object(json::object(body)?);
        if path == "traces" && !self.allow_interventions && !body["interventions"].is_null() {
            return Err(Refusal::interventions_disabled("interventions"));
        }
        let subjects = self.subjects(model);
        let budget = || self.budget(&subjects, gone);
        if let Some(id) = tiles_of(path) {
            return Ok(self.glass.tiles(id, &body, &budget, tell)?);
        }
        let mut line = |event: &str| tell(format!("{event}\n").into());
        match path {
            #[cfg(feature = "study")]
            "walks" => self.walks.walk(&subjects, &body, &mut line)?,
            "sweeps" | "reasons" | "units" | "directions" => {
                // it takes as long as it takes, while its lines are read
                let work = Arc::new(Budget::default().unless(gone.clone()));
                let budgets = (&*budget(), &work);
                match path {
                    "sweeps" => self.glass.sweep(&subjects, &body, budgets, &mut line)?,
                    "reasons" => self.glass.reason(&subjects, &body, budgets, &mut line)?,
                    "directions" if !self.allow_interventions => {
                        return Err(Refusal::interventions_disabled("directions"));
                    }
                    "directions" => self.glass.directions(&subjects, &body, &work, &mut line)?,
                    _ => self.glass.units(&subjects, &body, budgets, &mut line)?,
                }
            }
            _ => self.glass.trace(&subjects, &body, &budget(), &mut line)?,
        }
        Ok(())
    }

    /// A request whose interventions are resolved against the model, and the memory of that, to be held as long as the
    /// answer is made. Prompts that activations are taken from run here, and so hold up no engine.
    ///
    /// # Errors
    /// As [`limpid::Lm::resolve`], and if requests may not change what the model computes.
    pub fn resolve(&self, model: &ServedModel, mut ask: Ask, gone: &GoneFlag) -> Result<(Ask, Option<Reserved>)> {
        let Some(given) = ask.answer.interventions.clone() else { return Ok((ask, None)) };
        if !self.allow_interventions {
            return Err(Refusal::interventions_disabled(INTERVENTIONS));
        }
        let budget = self.budget(&[model.into()], gone);
        let steps = Arc::new(model.lm.resolve(&given, &budget).map_err(refused)?);
        let held = self.glass.reserve(steps.bytes(), &budget)?;
        // once for all answers to a prompt, and here: it may take long
        for same in
            ask.requests.chunk_by_mut(|a, b| (&a.prompt, a.options.max_tokens) == (&b.prompt, b.options.max_tokens))
        {
            budget.take_steps(1).map_err(|why| GlassError::Spent { what: "the interventions".into(), why })?;
            let placed = same[0].place(&steps, model.lm.config()).map_err(|error| fault(INTERVENTIONS, &error))?;
            same.iter_mut().for_each(|request| request.steps = Some(placed.clone()));
        }
        Ok((ask, Some(held)))
    }
}

fn refused(error: Error) -> Refusal {
    match error {
        Error::Intervention(error) => fault(INTERVENTIONS, &error),
        other => GlassError::from(other).into(),
    }
}

#[cfg(feature = "study")]
impl From<WalksError> for Refusal {
    fn from(error: WalksError) -> Refusal {
        match error {
            WalksError::Asked(error) => error.into(),
            WalksError::Walk(error) => Refusal::glass("not_for_this_model", error.to_string()),
        }
    }
}

impl From<GlassError> for Refusal {
    fn from(error: GlassError) -> Refusal {
        match error {
            GlassError::Full { .. } => Refusal::inspect_full(error.to_string(), RETRY),
            GlassError::TooLarge { .. } => {
                Refusal::glass(error.code(), format!("{error} (start the server with a larger --inspect-memory)"))
            }
            error => Refusal::glass(error.code(), error.to_string()),
        }
    }
}

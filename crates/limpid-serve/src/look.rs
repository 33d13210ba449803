//! `/inspect/v1/`: questions about the inside of the model, passed on to [`Glass`].
//!
//! Looking shares the weights and nothing else with the engine, so it changes no answer. What takes time runs on a
//! thread of its own, within a [`limpid_base::budget::Budget`]: it ends when the client goes away (a run of a prompt
//! after the block that is being computed), and when it takes too long.

use crate::body::Content;
use crate::json;
use crate::model::ServedModel;
use crate::refusal::{Refusal, Result};
use crate::reply::{HttpReply, JSON, looked, streamed, whole};
use crate::state::{Phase, ServerState};
use crate::threads::{Gone, on_thread};
#[cfg(feature = "study")]
use crate::walks::{self, WalksError};
use hyper::body::Bytes;
use limpid_base::budget::Budget;
#[cfg(feature = "study")]
use limpid_glass::asked::AskedQuery;
use limpid_glass::{Glass, GlassError, RETRY, Reply, Subject, decoded};
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::SendTimeoutError;

/// Pieces of a stream that wait to be sent.
const WAITING: usize = 16;

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

/// The glass box of a server, and the models that are looked into.
fn parts(shared: &ServerState) -> Result<(Arc<Glass>, Vec<Subject>)> {
    let glass = shared.glass.clone().ok_or_else(Refusal::inspect_disabled)?;
    let served = Subject::from(&**shared.model());
    Ok((glass, std::iter::once(served).chain(shared.options.against.iter().cloned()).collect()))
}

/// A question.
pub async fn ask(shared: &ServerState, path: String, query: Vec<(String, String)>) -> Result<HttpReply> {
    let (glass, subjects) = parts(shared)?;
    #[cfg(feature = "study")]
    if path == "walks" {
        AskedQuery::read(&query, &[])?;
        return Ok(whole(JSON, walks::list().to_string()));
    }
    let time = shared.options.look_time;
    let steps = shared.options.training.as_ref().filter(|_| path == "training").map(|training| training.steps);
    let work = move |gone: &Arc<AtomicBool>| {
        let budget = glass.budget(&subjects).time(time).unless(gone.clone());
        Ok(match (glass.ask(&subjects, &path, &query, &Arc::new(budget))?, steps) {
            (Reply::Json(text), Some(steps)) => {
                let mut answer: Value = serde_json::from_str(&text).map_err(Refusal::engine_error)?;
                answer["steps"] = steps.into();
                whole(JSON, answer.to_string())
            }
            (reply, _) => looked(reply),
        })
    };
    on_thread(shared, &shared.looking, work).await
}

/// Forgets a trace.
pub fn forget(shared: &ServerState, path: &str) -> Result<HttpReply> {
    let (glass, _) = parts(shared)?;
    match path.strip_prefix("traces/") {
        Some(id) => glass.forget(id)?,
        None => return Err(Refusal::not_found(path)),
    }
    Ok(whole(JSON, "{}"))
}

/// Stops the training that runs in this process, after its step.
fn stop(shared: &ServerState, body: &Bytes) -> Result<HttpReply> {
    let body = json::object(body)?;
    let Some(training) = &shared.options.training else {
        let why = "no training runs in this server's process: stop it where it runs";
        return Err(Refusal::glass("not_for_this_model", why.into()));
    };
    if body.len() != 1 || body.get("stop") != Some(&Value::Bool(true)) {
        return Err(Refusal::glass("invalid_value", "the body must be {\"stop\": true}".into()));
    }
    training.stop.store(true, Ordering::SeqCst);
    Ok(whole(JSON, "{}"))
}

/// A run, tiles of one, a sweep, or the end of the training.
pub async fn post(shared: &Arc<ServerState>, path: String, body: Bytes) -> Result<HttpReply> {
    let (glass, subjects) = parts(shared)?;
    if path == "training" {
        return stop(shared, &body);
    }
    let id = path.strip_prefix("traces/").and_then(|rest| rest.strip_suffix("/tiles")).map(String::from);
    let kind = match (&id, path.as_str()) {
        (Some(_), _) => "application/vnd.limpid.tiles",
        (None, "traces" | "sweeps") => "application/x-ndjson",
        (None, "walks") if cfg!(feature = "study") => "application/x-ndjson",
        _ => return Err(Refusal::not_found(&path)),
    };
    let (send, mut rest) = mpsc::channel::<Bytes>(WAITING);
    let (failed, mut failure) = mpsc::channel::<Refusal>(1);
    let server = shared.clone();
    let sent = Arc::new(AtomicBool::new(false));
    let gone = Gone::default();
    let ends = gone.flag();
    let runtime = Handle::current();
    let work = move || {
        let (ended, patience) = (server.phase.subscribe(), server.options.look_time);
        let tell = |piece: Bytes| {
            sent.store(true, Ordering::SeqCst);
            let taken = runtime.block_on(send.send_timeout(piece, patience));
            if let Err(SendTimeoutError::Timeout(_)) = taken {
                ends.store(true, Ordering::SeqCst); // its place is for those who read what they ask for
            }
            *ended.borrow() != Phase::Ended && taken.is_ok()
        };
        let mut line = |event: &str| tell(format!("{event}\n").into());
        let budget = || Arc::new(glass.budget(&subjects).time(server.options.look_time).unless(ends.clone()));
        let mut work = |body: Value| -> Result<()> {
            if path == "traces" && !server.options.allow_interventions && !body["interventions"].is_null() {
                return Err(Refusal::interventions_disabled("interventions"));
            }
            match &id {
                Some(id) => glass.tiles(id, &body, &budget, &mut |frame| tell(frame.into()))?,
                #[cfg(feature = "study")]
                None if path == "walks" => server.walks.walk(&subjects, &body, &mut line)?,
                None if path == "sweeps" => {
                    // it takes as long as it takes, while its rows are read
                    let work = Arc::new(Budget::default().unless(ends.clone()));
                    glass.sweep(&subjects, &body, (&budget(), &work), &mut line)?;
                }
                None => glass.trace(&subjects, &body, &budget(), &mut line)?,
            }
            Ok(())
        };
        let done = json::object(&body).and_then(|body| work(Value::Object(body)));
        if let Err(refusal) = done {
            if id.is_none() && sent.load(Ordering::SeqCst) {
                let mut event = refusal.body();
                event["event"] = "error".into();
                tell(format!("{event}\n").into());
            }
            let _ = failed.try_send(refusal); // of a stream that has begun nobody asks
        }
    };
    let place = shared.looking.clone().acquire_owned().await.map_err(Refusal::engine_error)?;
    tokio::task::spawn_blocking(move || {
        let _place = place;
        work();
    });
    let first = match rest.recv().await {
        Some(first) => first,
        // what fails at once is an error and no stream
        None => failure.recv().await.map_or(Ok(Bytes::new()), Err)?,
    };
    Ok(streamed(kind, Content::Pieces(first, rest, gone)))
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

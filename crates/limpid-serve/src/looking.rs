//! `/inspect/v1/` over sockets: what [`Look`] answers, on a few threads of its own, while the client is there.

use crate::body::Content;
use crate::look::{Look, told_type};
use crate::model::ServedLease;
use crate::openai::Ask;
use crate::refusal::{Refusal, Result};
use crate::reply::{HttpReply, JSON, looked, streamed, whole};
use crate::state::{Phase, ServerState};
use crate::threads::{Gone, on_thread};
use hyper::body::Bytes;
use limpid_glass::Reserved;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::SendTimeoutError;

/// Pieces of a stream that wait to be sent.
const WAITING: usize = 16;

fn look(shared: &ServerState) -> Result<Arc<Look>> {
    shared.look.clone().ok_or_else(Refusal::inspect_disabled)
}

/// A question.
pub async fn ask(shared: &ServerState, path: String, query: Vec<(String, String)>) -> Result<HttpReply> {
    let (look, model) = (look(shared)?, shared.model());
    on_thread(shared, &shared.looking, move |gone| look.ask(&model, &path, &query, gone).map(looked)).await
}

/// Forgets a trace.
pub fn forget(shared: &ServerState, path: &str) -> Result<HttpReply> {
    look(shared)?.forget(path)?;
    Ok(whole(JSON, "{}"))
}

/// The request with what its interventions are on the model: see [`Look::resolve`].
pub async fn resolve(shared: &ServerState, model: &ServedLease, ask: Ask) -> Result<(Ask, Option<Reserved>)> {
    if ask.answer.interventions.is_none() {
        return Ok((ask, None));
    }
    if !shared.options.allow_interventions {
        return Err(Refusal::interventions_disabled(crate::openai::INTERVENTIONS));
    }
    let (look, model) = (look(shared)?, model.clone());
    on_thread(shared, &shared.looking, move |gone| look.resolve(&model, ask, gone)).await
}

/// A run, tiles of one, a sweep, or the end of the training.
pub async fn post(shared: &Arc<ServerState>, path: String, body: Bytes) -> Result<HttpReply> {
    let (look, model) = (look(shared)?, shared.model());
    if path == "training" {
        look.stop(&body)?;
        return Ok(whole(JSON, "{}"));
    }
    let kind = told_type(&path)?;
    let (send, mut rest) = mpsc::channel::<Bytes>(WAITING);
    let (failed, mut failure) = mpsc::channel::<Refusal>(1);
    let gone = Gone::default();
    let ends = gone.flag();
    let runtime = Handle::current();
    let (ended, patience) = (shared.phase.subscribe(), shared.options.look_time);
    let work = move || {
        let mut tell = |piece: Vec<u8>| {
            let taken = runtime.block_on(send.send_timeout(piece.into(), patience));
            if let Err(SendTimeoutError::Timeout(_)) = taken {
                ends.store(true, Ordering::SeqCst); // its place is for those who read what they ask for
            }
            *ended.borrow() != Phase::Ended && taken.is_ok()
        };
        if let Err(refusal) = look.tell(&model, (&path, &body), &ends, &mut tell) {
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

//! Work that takes longer than a socket should wait: it runs on threads of its own, of which there are a few for each
//! kind of work.

use crate::model::ServedLease;
use crate::refusal::{Refusal, Result};
use crate::state::{Phase, ServerState};
use crate::tokens::Reader;
use hyper::body::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Semaphore;

/// A body of more bytes is large.
const LARGE: usize = 32 << 10;

/// Does work on a body; if the body is large, on a thread of its own, so that it holds up nobody.
pub async fn read_body<T: Send + 'static>(
    shared: &ServerState,
    model: &ServedLease,
    body: &Bytes,
    work: Reader<T>,
) -> Result<T> {
    if body.len() <= LARGE {
        return work(model, body);
    }
    let (model, body) = (model.clone(), body.clone());
    on_thread(shared, &shared.bodies, move |_| work(&model, &body)).await
}

/// Held by whoever waits for an answer. When it is dropped, the thread that computes the answer sees that nobody waits.
#[derive(Default)]
pub struct Gone(Arc<AtomicBool>);

impl Gone {
    /// Set when nobody waits.
    pub fn flag(&self) -> Arc<AtomicBool> {
        self.0.clone()
    }
}

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Does work on a thread of its own, as soon as there is a place. If the client goes away before that, it leaves the
/// line. If it goes away later, the work sees that and should end; it keeps its place until it does.
pub async fn on_thread<T: Send + 'static>(
    shared: &ServerState,
    places: &Arc<Semaphore>,
    work: impl FnOnce(&Arc<AtomicBool>) -> Result<T> + Send + 'static,
) -> Result<T> {
    let mut phase = shared.phase.subscribe();
    let waits = Gone::default(); // as long as this call
    let gone = waits.flag();
    let done = async {
        let place = places.clone().acquire_owned().await;
        let work = move || {
            let _place = place;
            work(&gone)
        };
        tokio::task::spawn_blocking(work).await
    };
    tokio::select! {
        done = done => done.unwrap_or_else(|panic| Err(Refusal::engine_error(panic))),
        _ = phase.wait_for(|phase| *phase == Phase::Ended) => Err(Refusal::stopping()),
    }
}

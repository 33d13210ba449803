//! What all tasks of a server share.

use crate::access::RequestAccess;
use crate::look::Look;
use crate::metrics::Metrics;
use crate::model::ServedLease;
use crate::options::{Listener, ServeOptions};
use crate::queue::Queue;
use std::sync::{Arc, RwLock};
use tokio::sync::{Semaphore, watch};

/// Large bodies that are read at a time.
pub const BODIES: usize = 3;
/// Questions about the model's inside that are answered at a time.
pub const LOOKS: usize = 4;
/// The phase of a server's life.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Phase {
    /// It takes requests.
    Serving,
    /// It answers those that it has.
    Stopping,
    /// It ends those too.
    Ended,
}

/// What all tasks of a server share.
pub struct ServerState {
    pub options: ServeOptions,
    pub access: RequestAccess,
    pub queue: Arc<Queue>,
    pub metrics: Metrics,
    pub phase: watch::Sender<Phase>,
    /// Requests that are being answered.
    pub busy: watch::Sender<usize>,
    /// Connections.
    pub connections: watch::Sender<usize>,
    /// Embeddings are computed one request at a time, and so many large bodies are read: each has a thread as soon as
    /// it has a place.
    pub embedding: Arc<Semaphore>,
    pub bodies: Arc<Semaphore>,
    /// And so many questions about the model's inside.
    pub looking: Arc<Semaphore>,
    pub look: Option<Arc<Look>>,
    pub tell: Listener,
    model: RwLock<ServedLease>,
}

impl ServerState {
    pub fn new(model: &ServedLease, options: ServeOptions, access: RequestAccess, tell: Listener) -> ServerState {
        ServerState {
            access,
            queue: Queue::new(options.max_queue),
            metrics: Metrics::default(),
            phase: watch::Sender::new(Phase::Serving),
            busy: watch::Sender::new(0),
            connections: watch::Sender::new(0),
            embedding: Arc::new(Semaphore::new(1)),
            bodies: Arc::new(Semaphore::new(BODIES)),
            looking: Arc::new(Semaphore::new(LOOKS)),
            look: Look::new(&options).map(Arc::new),
            tell,
            model: RwLock::new(model.clone()),
            options,
        }
    }
    /// What is served now.
    pub fn model(&self) -> ServedLease {
        self.model.read().unwrap_or_else(|e| e.into_inner()).clone()
    }
    /// From now on another model is served.
    pub fn set_model(&self, model: ServedLease) {
        *self.model.write().unwrap_or_else(|e| e.into_inner()) = model;
    }
    /// Counts a connection until it is dropped.
    pub fn connected(&self) -> Counted {
        Counted::new(&self.connections)
    }
}

/// One of those that are counted.
pub struct Counted(watch::Sender<usize>);

impl Counted {
    pub fn new(count: &watch::Sender<usize>) -> Counted {
        count.send_modify(|count| *count += 1);
        Counted(count.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

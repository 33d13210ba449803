//! A model over HTTP, in OpenAI's protocol.
//!
//! `listen` takes connections and enforces their limits, `access` decides who may ask, `route` follows a request from its head to its
//! answer, `openai` turns its body into requests of a [`limpid::engine::Engine`], `worker` runs that engine on a thread of its own, and
//! `answer` turns the engine's events into the answer. A faulty request is refused before the engine sees it.

mod access;
pub mod answer;
mod body;
pub mod docs;
pub mod embeddings;
mod follow;
mod incoming;
pub mod json;
mod listen;
mod look;
mod metrics;
pub mod model;
pub mod openai;
pub mod openapi;
pub mod parameters;
pub mod refusal;
mod reply;
mod route;
mod routes;
pub mod saved;
mod schema;
mod server;
mod threads;
pub mod tokens;
pub mod ui;
#[cfg(feature = "study")]
mod walks;
mod worker;

pub use follow::Follow;
pub use listen::ConnectionLimits;
pub use model::{ServedAs, ServedModel};
use server::ServerState;
pub use server::{Listener, PageOptions, ServeError, ServeEvent, ServeOptions, Server, Stopper};

//! A model over HTTP, in OpenAI's protocol.
//!
//! `listen` takes connections and enforces their limits, `access` decides who may ask, `route` follows a request from
//! its head to its answer, `openai` turns its body into requests of a [`limpid::engine::Engine`], `worker` runs that
//! engine on a thread of its own, and `answer` turns the engine's events into the answer. A faulty request is refused
//! before the engine sees it.

mod access;
mod body;
mod follow;
mod hosts;
mod incoming;
mod intervene;
mod json;
mod listen;
mod look;
mod metrics;
mod model;
mod options;
mod pulse;
mod queue;
mod reply;
mod route;
mod routes;
pub mod saved;
mod schema;
mod server;
mod state;
mod threads;
mod ui;
#[cfg(feature = "study")]
mod walks;
mod worker;

// public for the tests of this crate alone
#[doc(hidden)]
pub mod answer;
#[doc(hidden)]
pub mod docs;
#[doc(hidden)]
pub mod embeddings;
#[doc(hidden)]
pub mod openai;
#[doc(hidden)]
pub mod openapi;
#[doc(hidden)]
pub mod parameters;
#[doc(hidden)]
pub mod refusal;
#[doc(hidden)]
pub mod tokens;

pub use follow::Follow;
pub use model::{ServedAs, ServedModel};
pub use options::{ConnectionLimits, Listener, PageOptions, ServeError, ServeEvent, ServeOptions, ServedTraining};
pub use server::{OpenPort, Server, Stopper};

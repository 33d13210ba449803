//! A model over HTTP, in OpenAI's protocol.
//!
//! `listen` takes connections and keeps their limits, `route` finds what a request asks for, `openai` turns its body into
//! requests of an [`limpid::engine::Engine`], `worker` runs that engine on a thread of its own, and `answer` turns what happens
//! there into the answer. `load` measures servers. Everything that can be wrong with a request is found before the engine hears of it.

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

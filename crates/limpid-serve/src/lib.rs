//! A model over HTTP, in OpenAI's protocol.
//!
//! `listen` takes connections and enforces their limits, `access` decides who may ask, `route` follows a request from
//! its head to its answer, `openai` turns its body into requests of a [`limpid::engine::Engine`], `worker` runs that
//! engine on a thread of its own, and `answer` turns the engine's events into the answer. A faulty request is refused
//! before the engine sees it.

mod dispatch;
mod hosts;
mod json;
pub mod live;
pub mod local;
mod look;
mod model;
mod options;
mod routes;
pub mod saved;
mod schema;
mod ui;
#[cfg(feature = "study")]
mod walks;

/// Modules that need sockets.
macro_rules! over_sockets {
    ($($name:ident)*) => { $(#[cfg(feature = "http")] mod $name;)* };
}
over_sockets!(access body follow incoming listen looking metrics pulse queue reply route server state threads worker);

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

#[cfg(feature = "http")]
pub use follow::Follow;
pub use model::{ServedAs, ServedModel};
pub use options::{ConnectionLimits, Listener, PageOptions, ServeError, ServeEvent, ServeOptions, ServedTraining};
#[cfg(feature = "http")]
pub use server::{OpenPort, Server, Stopper};

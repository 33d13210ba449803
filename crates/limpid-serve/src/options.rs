//! How a model is served, what may keep it from being served, and what is told of it.

#[cfg(feature = "http")]
use crate::ui::{self, Page, UiError};
use limpid::data::template::TemplateError;
use limpid::engine::EngineLimits;
use limpid::numeric::element::Element;
use limpid_base::words::system;
use limpid_glass::{self as glass, Subject};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// How long one answer about the inside may take, unless it is said.
const LOOK_TIME: Duration = Duration::from_secs(8);

/// How a model is served.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// The name or address to listen at.
    pub host: String,
    /// The port; 0 for one that is free.
    pub port: u16,
    /// API keys; every request must have one of them. If there are none, no request needs a key.
    pub keys: Vec<String>,
    /// Allows other machines to reach the server without a key.
    pub no_auth: bool,
    /// Values of the Host header that are accepted in addition to this machine's names and `host`.
    pub allow_hosts: Vec<String>,
    /// Origins whose pages may send requests: `https://example.org`, or `*` for all.
    pub cors_origins: Vec<String>,
    /// Whether `/metrics` is answered without a key.
    pub metrics_public: bool,
    /// The size of the engine.
    pub engine: EngineLimits,
    /// Sequences that may wait (a request has one for each answer); further requests are refused.
    pub max_queue: usize,
    /// The longest that one run of the model should take: long prompts are processed in parts accordingly.
    pub turn: Duration,
    /// How long answers may continue after the server is told to stop.
    pub drain: Duration,
    /// What one client may take.
    pub limits: ConnectionLimits,
    /// The page at `/`.
    pub page: PageOptions,
    /// Bytes that traces of the model's inside may take; if none, looking inside is off.
    pub inspect: Option<usize>,
    /// How long one answer about the inside may take; for tiles, how long each may take.
    pub look_time: Duration,
    /// Whether requests may change what the model computes; looking inside must be on.
    pub allow_interventions: bool,
    /// More models to look into, beside the one that is served.
    pub against: Vec<Subject>,
    /// The server only shows the inside of the model, which need not be causal, nor have a head or a tokenizer.
    pub look_only: bool,
    /// The training that runs in this process, whose model is served.
    pub training: Option<ServedTraining>,
}

/// A training that runs in the server's process.
#[derive(Clone, Debug)]
pub struct ServedTraining {
    /// How many steps it will take.
    pub steps: u64,
    /// The least validation loss that any model can reach on its text, in nats a token, where that is known.
    pub floor: Option<f64>,
    /// Set when somebody stops it in the page.
    pub stop: Arc<AtomicBool>,
}

impl Default for ServeOptions {
    fn default() -> ServeOptions {
        ServeOptions {
            host: "127.0.0.1".into(),
            port: 8080,
            keys: vec![],
            no_auth: false,
            allow_hosts: vec![],
            cors_origins: vec![],
            metrics_public: false,
            engine: EngineLimits { sequences: 16, prompt_rows: 256, cache_bytes: 256 << 20, cache: Element::F32 },
            max_queue: 256,
            turn: Duration::from_millis(50),
            drain: Duration::from_secs(10),
            limits: ConnectionLimits::default(),
            page: PageOptions::Own,
            inspect: Some(glass::MEMORY),
            look_time: LOOK_TIME,
            allow_interventions: false,
            against: vec![],
            look_only: false,
            training: None,
        }
    }
}

/// Which page is at `/`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PageOptions {
    /// The one that is built in.
    #[default]
    Own,
    /// The files of a folder, read anew for every request, to work on them.
    Folder(PathBuf),
    /// None.
    Off,
}

impl PageOptions {
    /// The page as it is now, if there is one.
    #[cfg(feature = "http")]
    pub(crate) fn make(&self) -> Result<Option<Page>, UiError> {
        match self {
            PageOptions::Own => ui::page(None).map(Some),
            PageOptions::Folder(folder) => ui::page(Some(folder)).map(Some),
            PageOptions::Off => Ok(None),
        }
    }
}

/// Why nothing is served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The model cannot be used.
    #[error(transparent)]
    Model(#[from] limpid::Error),
    /// A model with bidirectional attention.
    #[error(
        "this model predicts masked tokens, and only causal models continue texts: `limpid generate` fills its masks"
    )]
    NotCausal,
    /// A model without a tokenizer.
    #[error("the model has no tokenizer, and requests are texts: put its tokenizer.json beside it")]
    NoTokenizer,
    /// Other machines could use the server without a key.
    #[error("other machines reach the host {0}, so requests need a key: give one, or accept requests from everyone")]
    Exposed(String),
    /// A template that fails.
    #[error("the chat template fails on a message of a user: {0}; give another")]
    Template(TemplateError),
    /// A key that is empty or cannot be sent.
    #[error("an API key must be visible ASCII without spaces: key {0} is not")]
    Key(usize),
    /// A name that no Host header has.
    #[error("the host to allow, `{0}`, is not a name or address that requests can be sent to, such as box.example")]
    AllowHost(String),
    /// An origin that no page has.
    #[error(
        "the origin to allow, `{0}`, is not an origin that a browser sends, such as https://example.org, app://name \
         or null, nor *"
    )]
    Origin(String),
    /// A model that cannot be named.
    #[error("the model's name is empty: give it one")]
    Unnamed,
    /// A clock whose time no answer can carry.
    #[error("the clock of this machine is before 1970 or after 9999, and answers carry the date: set the clock")]
    Clock,
    /// A host without an address.
    #[error("the host {host}: {}", system(.fault))]
    Host {
        /// As it was given.
        host: String,
        /// What the system said.
        fault: io::Error,
    },
    /// The port is taken or forbidden.
    #[error("port {port} of {host} cannot be opened: {}; port 0 takes one that is free", system(.fault))]
    Port {
        /// The host.
        host: String,
        /// The port.
        port: u16,
        /// What the system said.
        fault: io::Error,
    },
    /// Threads that the system refuses.
    #[error("the system refuses threads for the server: {}", system(.0))]
    Threads(io::Error),
    /// The page cannot be made.
    #[error("the page: {0}")]
    Page(String),
    /// The engine's thread is gone.
    #[error("the engine's thread ended by a fault of limpid: please report it")]
    Lost,
}

impl ServeError {
    /// The settings that may help, with a value where one is known: `port 0`.
    pub fn settings(&self) -> &'static [&'static str] {
        match self {
            ServeError::Exposed(_) => &["api_key_file", "no_auth"],
            ServeError::Template(_) => &["chat_template"],
            ServeError::Key(_) => &["api_key", "api_key_file"],
            ServeError::AllowHost(_) => &["allow_host"],
            ServeError::Origin(_) => &["cors_origin"],
            ServeError::Unnamed => &["served_name"],
            ServeError::Host { .. } => &["host"],
            ServeError::Port { .. } => &["port 0"],
            _ => &[],
        }
    }
}

/// What happens while a model is served.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ServeEvent {
    /// A run of the model failed. Its requests end with an error, and the engine starts again.
    EngineFailed {
        /// Why.
        what: String,
        /// How many sequences were lost.
        lost: usize,
    },
    /// The server was told to stop while it answered.
    Stopping {
        /// Requests that are being answered.
        answers: usize,
        /// How long they have to end.
        drain: Duration,
    },
    /// The server stopped before all answers were complete.
    Cut {
        /// How many were not.
        answers: usize,
    },
    /// A request was answered with a status of 500, or its stream with an error of the server.
    Failed {
        /// The id that the client has.
        request: String,
        /// What it asked for.
        path: &'static str,
        /// What happened.
        what: String,
    },
    /// Another checkpoint is served now.
    Reloaded {
        /// Its step of training.
        step: Option<u64>,
        /// Its weights.
        fingerprint: String,
    },
    /// A new checkpoint cannot be served; the server keeps the one before.
    NotReloaded {
        /// Why.
        what: String,
    },
}

/// Hears of events, from any thread.
pub type Listener = Box<dyn Fn(ServeEvent) + Send + Sync>;

/// What one client may take of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// The most connections at a time. When all are taken, a new one replaces the oldest that never sent anything, else
    /// the oldest in the middle of a request head, else the oldest between two requests. If all are being answered or
    /// are new, it waits.
    pub connections: usize,
    /// Bytes of a request's headers.
    pub header_bytes: usize,
    /// How long the headers may take, from their first byte on; the first of a connection from its beginning on.
    pub header_time: Duration,
    /// Bytes of a body.
    pub body_bytes: usize,
    /// How long a body may take.
    pub body_time: Duration,
    /// How long a connection may wait for its next request, and how long a client may leave an answer unread.
    pub idle_time: Duration,
}

impl Default for ConnectionLimits {
    fn default() -> ConnectionLimits {
        ConnectionLimits {
            connections: 512,
            header_bytes: 16 << 10,
            header_time: Duration::from_secs(10),
            body_bytes: 1 << 20,
            body_time: Duration::from_secs(30),
            idle_time: Duration::from_secs(75),
        }
    }
}

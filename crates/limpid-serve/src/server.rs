//! A server from its first check to its end: [`OpenPort::open`] checks everything but the model, [`OpenPort::serve`] serves one, and
//! [`Server::wait`] returns after the last answer.

use crate::access::RequestAccess;
use crate::follow::{self, Follow};
use crate::listen::{self, ConnectionLimits};
use crate::metrics::Metrics;
use crate::model::{ServedLease, ServedModel};
use crate::ui::{self, Page, UiError};
use crate::worker::{self, Queue};
use limpid::config::Mask;
use limpid::data::chat::{Message, Role};
use limpid::data::template::TemplateError;
use limpid::engine::{EngineCounts, EngineLimits};
use limpid::numeric::element::Element;
use limpid_base::contain::contain;
use limpid_base::words::system;
use limpid_glass::{self as glass, Glass, Subject};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};
use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::Runtime;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

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
        "the origin to allow, `{0}`, is not an origin that a browser sends, such as https://example.org, app://name or null, nor *"
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
    connections: watch::Sender<usize>,
    /// Embeddings are computed one request at a time, and so many large bodies are read: each has a thread as soon as it has a place.
    pub embedding: Arc<Semaphore>,
    pub bodies: Arc<Semaphore>,
    /// And so many questions about the model's inside.
    pub looking: Arc<Semaphore>,
    pub glass: Option<Arc<Glass>>,
    /// What was told of walks.
    #[cfg(feature = "study")]
    pub walks: crate::walks::Walks,
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
            glass: options.inspect.map(|limit| Arc::new(Glass::new(limit))),
            #[cfg(feature = "study")]
            walks: crate::walks::Walks::default(),
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

/// A model that is served.
pub struct Server {
    shared: Arc<ServerState>,
    address: SocketAddr,
    runtime: Runtime,
    engine: JoinHandle<()>,
    follower: Option<JoinHandle<()>>,
}

/// Stops a server, from any thread.
#[derive(Clone)]
pub struct Stopper(Arc<ServerState>);

impl Stopper {
    /// The first time: no more requests are taken, and those that are being answered have [`ServeOptions::drain`] to end. The second time:
    /// they end now, each with an error that says so.
    pub fn stop(&self) {
        self.0.phase.send_modify(|phase| {
            *phase = if *phase == Phase::Serving { Phase::Stopping } else { Phase::Ended };
        });
    }
}

/// Large bodies that are read at a time.
const BODIES: usize = 3;
/// Questions about the model's inside that are answered at a time.
pub const LOOKS: usize = 4;
/// How long one of them may take, unless it is said.
const LOOK_TIME: Duration = Duration::from_secs(8);
/// How long clients may take for the last bytes of an answer that was ended.
const LAST: Duration = Duration::from_secs(2);

/// A port that is open before there is a model to serve. Who connects waits until there is one.
pub struct OpenPort {
    options: ServeOptions,
    access: RequestAccess,
    runtime: Runtime,
    listener: TcpListener,
    address: SocketAddr,
}

impl OpenPort {
    /// Checks the options, and opens the port.
    ///
    /// # Errors
    /// If the options forbid it, or the system does.
    pub fn open(options: ServeOptions) -> Result<OpenPort, ServeError> {
        let address = address(&options)?;
        let access = RequestAccess::new(&options, address.ip())?;
        options.page.make().map_err(|error| ServeError::Page(error.to_string()))?;
        if !limpid_base::units::has_date(SystemTime::now()) {
            return Err(ServeError::Clock);
        }
        // those of the runtime, the engine's, one that reads bodies, one that waits for signals
        limpid_base::threads::can_start(5).map_err(ServeError::Threads)?;
        let mut threads = tokio::runtime::Builder::new_multi_thread();
        threads.worker_threads(2).max_blocking_threads(BODIES + 1 + LOOKS).thread_name("limpid-http").enable_all();
        // it panics where the system refuses a thread
        let runtime = contain(|| threads.build()).unwrap_or_else(|why| Err(io::Error::other(why)));
        let runtime = runtime.map_err(ServeError::Threads)?;
        let port = |fault| ServeError::Port { host: options.host.clone(), port: options.port, fault };
        let listener = {
            let _within = runtime.enter();
            listener(address)
        };
        let listener = listener.map_err(port)?;
        let address = listener.local_addr().map_err(port)?;
        Ok(OpenPort { access, runtime, listener, address, options })
    }

    /// What a browser opens.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Serves a model. With `follow` each new checkpoint takes its place. `tell` hears of events.
    ///
    /// # Errors
    /// If the model cannot be served.
    pub fn serve(self, model: ServedModel, follow: Option<Follow>, tell: Listener) -> Result<Server, ServeError> {
        let OpenPort { options, access, runtime, listener, address } = self;
        let engine = if options.look_only {
            None
        } else {
            check(&model)?;
            Some(model.engine(&options.engine)?)
        };
        let model = Arc::new(Arc::new(model));
        let shared = Arc::new(ServerState::new(&model, options, access, tell));
        if let Some(engine) = engine {
            shared.queue.serve(&model, engine);
        }
        let thread = |name: &str, work: fn(&ServerState, Option<Follow>), follow| {
            let shared = shared.clone();
            let thread = std::thread::Builder::new().name(name.into());
            thread.spawn(move || work(&shared, follow)).map_err(ServeError::Threads)
        };
        let engine = thread("limpid-engine", |shared, _| worker::run(shared), None)?;
        let follower = follow.map(|follow| thread("limpid-follow", follow::run, Some(follow))).transpose()?;
        runtime.spawn(listen::accept(listener, shared.clone()));
        Ok(Server { shared, address, runtime, engine, follower })
    }
}

impl Server {
    /// Opens the port and serves a model: [`OpenPort::open`] and [`OpenPort::serve`].
    ///
    /// # Errors
    /// If the port cannot be opened, or the model not be served.
    pub fn start(
        model: ServedModel,
        options: ServeOptions,
        follow: Option<Follow>,
        tell: Listener,
    ) -> Result<Server, ServeError> {
        OpenPort::open(options)?.serve(model, follow, tell)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What a browser opens.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What stops it.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.shared.clone())
    }

    /// What the engine holds now.
    pub fn counts(&self) -> EngineCounts {
        self.shared.queue.counts()
    }

    /// Returns when the server was stopped and all that was asked is answered.
    ///
    /// # Errors
    /// If the engine's thread was lost on the way.
    pub fn wait(self) -> Result<(), ServeError> {
        let Server { shared, runtime, engine, follower, .. } = self;
        runtime.block_on(async {
            let mut phase = shared.phase.subscribe();
            let _ = phase.wait_for(|phase| *phase != Phase::Serving).await; // the sender is in `shared`
            let mut busy = shared.busy.subscribe();
            let answers = *busy.borrow();
            if answers > 0 {
                (shared.tell)(ServeEvent::Stopping { answers, drain: shared.options.drain });
            }
            tokio::select! {
                _ = timeout(shared.options.drain, busy.wait_for(|busy| *busy == 0)) => {}
                _ = phase.wait_for(|phase| *phase == Phase::Ended) => {}
            }
            let answers = *shared.busy.borrow();
            shared.phase.send_replace(Phase::Ended);
            if answers > 0 {
                (shared.tell)(ServeEvent::Cut { answers });
            }
            let mut connections = shared.connections.subscribe();
            let _ = timeout(LAST, connections.wait_for(|connections| *connections == 0)).await;
        });
        runtime.shutdown_timeout(LAST);
        shared.queue.close();
        let engine = engine.join();
        let follower = follower.map_or(Ok(()), JoinHandle::join);
        engine.and(follower).map_err(|_| ServeError::Lost)
    }
}

/// Whether a model can be served.
pub fn check(model: &ServedModel) -> Result<(), ServeError> {
    if model.lm.config().mask != Mask::Causal {
        return Err(ServeError::NotCausal);
    }
    if model.id.is_empty() {
        return Err(ServeError::Unnamed);
    }
    model.lm.tokenizer().map_err(|_| ServeError::NoTokenizer)?;
    if let Some(template) = &model.template {
        let hello = Message { role: Role::User, content: "Hello".into() };
        template.at(model.created.cast_signed()).render(&[hello], true).map_err(ServeError::Template)?;
    }
    Ok(())
}

/// Where to listen; refused where others reach it without a key.
fn address(options: &ServeOptions) -> Result<SocketAddr, ServeError> {
    let host = options.host.trim_start_matches('[').trim_end_matches(']');
    let fault = |fault| ServeError::Host { host: options.host.clone(), fault };
    let all: Vec<SocketAddr> = (host, options.port).to_socket_addrs().map_err(fault)?.collect();
    if !all.iter().all(|address| address.ip().is_loopback()) && options.keys.is_empty() && !options.no_auth {
        return Err(ServeError::Exposed(options.host.clone()));
    }
    all.first().copied().ok_or_else(|| fault(io::Error::other("it has no address")))
}

fn listener(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // a port whose last connections are not forgotten yet is free; elsewhere this would let two programs share it
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(1024)
}

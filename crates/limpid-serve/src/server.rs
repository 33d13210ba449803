//! A server from its first check to its end: [`OpenPort::open`] checks everything but the model, [`OpenPort::serve`]
//! serves one, and [`Server::wait`] returns after the last answer.

use crate::access::RequestAccess;
use crate::follow::{self, Follow};
use crate::model::ServedModel;
use crate::options::{Listener, ServeError, ServeEvent, ServeOptions};
use crate::state::{BODIES, LOOKS, Phase, ServerState};
use crate::{listen, worker};
use limpid::engine::EngineCounts;
use limpid_base::contain::contain;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};
use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::Runtime;
use tokio::time::timeout;

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
    /// The first time: no more requests are taken, and those that are being answered have [`ServeOptions::drain`] to
    /// end. The second time: they end now, each with an error that says so.
    pub fn stop(&self) {
        self.0.phase.send_modify(|phase| {
            *phase = if *phase == Phase::Serving { Phase::Stopping } else { Phase::Ended };
        });
    }
}

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
            model.check()?;
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

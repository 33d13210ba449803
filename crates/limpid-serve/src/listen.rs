//! Connections and their limits.
//!
//! A connection that sends no request, sends one too slowly, or does not read its answer is closed by a clock of our own ([`Pulse`]).
//! Hyper's clock covers the headers only, and cannot tell a connection that waits for its next request from one that sends a byte a second.

use crate::ServerState;
use crate::route;
use crate::server::Phase;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use std::convert::Infallible;
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncWrite, Interest};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// What one client may take of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// The most connections at a time. When all are taken, a new one replaces the oldest that never sent anything, else the oldest in the
    /// middle of a request head, else the oldest between two requests. If all are being answered or are new, it waits.
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

/// Bytes that hyper holds of a request before it reads on: headers beyond our limit come this far, so that they get our answer.
const BUFFER: usize = 64 << 10;
/// Headers of a request.
const HEADERS: usize = 100;

/// How often a connection is looked at for what no event tells.
const LOOK: Duration = Duration::from_millis(250);

/// Takes connections until the server ends.
pub async fn accept(listener: TcpListener, shared: Arc<ServerState>) {
    let places = Arc::new(Semaphore::new(shared.options.limits.connections.min(Semaphore::MAX_PERMITS)));
    let mut all: Vec<Weak<Pulse>> = vec![];
    loop {
        // no file is left, or the client went away: others may have more luck
        let Ok((stream, _)) = listener.accept().await else {
            sleep(LOOK).await;
            continue;
        };
        all.retain(|pulse| pulse.strong_count() > 0);
        let place = loop {
            if let Ok(place) = places.clone().try_acquire_owned() {
                break place;
            }
            let pulses = all.iter().filter_map(Weak::upgrade);
            let (between, unsent): (Vec<_>, Vec<_>) = pulses
                .filter_map(|pulse| Some((pulse.idle()?, pulse)))
                .partition(|((idle, _), _)| *idle == Idle::Between);
            // who has only come may be about to send; if not, it is the next to go
            let waits = if unsent.is_empty() { between } else { unsent };
            let old = waits.iter().filter(|((_, since), _)| since.elapsed() >= LOOK);
            old.min_by_key(|(idle, _)| *idle).inspect(|(_, pulse)| pulse.give_way.notify_one());
            if let Ok(Ok(place)) = timeout(LOOK, places.clone().acquire_owned()).await {
                break place;
            }
        };
        let connected = shared.connected();
        let pulse = Arc::new(Pulse::default());
        let shared = shared.clone();
        all.push(Arc::downgrade(&pulse));
        tokio::spawn(async move {
            serve(stream, pulse, &shared).await;
            drop((place, connected));
        });
    }
}

/// One connection.
async fn serve(stream: TcpStream, pulse: Arc<Pulse>, shared: &Arc<ServerState>) {
    let _ = stream.set_nodelay(true); // slower without, and not wrong
    let (read, write) = stream.into_split();
    let read = Arc::new(read);
    let service = service_fn(|request| {
        let shared = shared.clone();
        let busy = Busy::new(&pulse);
        async move { Ok::<_, Infallible>(route::answer(shared, busy, request).await) }
    });
    let timed = TimedStream { read: read.clone(), write, pulse: pulse.clone() };
    let mut http = http1::Builder::new();
    http.max_buf_size(BUFFER).max_headers(HEADERS);
    let mut connection = pin!(http.serve_connection(timed, service));
    let mut phase = shared.phase.subscribe();
    // one that came during the stop is not idle: its request is answered, with the news
    let mut serving = *phase.borrow_and_update() == Phase::Serving;
    loop {
        tokio::select! {
            biased; // what has come is read before anything else is decided
            _ = connection.as_mut() => return,
            () = pulse.overdue(&shared.options.limits) => return,
            () = pulse.vanished(&read) => return,
            () = pulse.give_way.notified() => if pulse.idle().is_some() { return },
            Ok(_) = phase.wait_for(|phase| *phase != Phase::Serving), if serving => {
                serving = false;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

/// What a connection did last.
#[derive(Default)]
struct Pulse {
    beat: Mutex<Beat>,
    /// Another connection needs its place.
    give_way: Notify,
}

struct Beat {
    /// Requests that are being answered.
    busy: usize,
    /// Whether anything ever came.
    sent: bool,
    /// Since when it waits for a request.
    waits: Instant,
    /// When the first byte of a request came that is not whole yet.
    began: Option<Instant>,
    /// Since when the client takes nothing of an answer.
    stuck: Option<Instant>,
}

impl Default for Beat {
    fn default() -> Beat {
        Beat { busy: 0, sent: false, waits: Instant::now(), began: None, stuck: None }
    }
}

impl Pulse {
    fn beat(&self) -> MutexGuard<'_, Beat> {
        self.beat.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How soon it has to give way, and since when it waits; none while it is answered.
    fn idle(&self) -> Option<(Idle, Instant)> {
        let beat = self.beat();
        let idle = match (beat.sent, beat.began) {
            (false, _) => (Idle::Silent, beat.waits),
            (true, None) => (Idle::Between, beat.waits),
            (true, Some(began)) => (Idle::Within, began),
        };
        (beat.busy == 0 && beat.stuck.is_none()).then_some(idle)
    }

    fn deadline(&self, limits: &ConnectionLimits) -> Option<Instant> {
        let beat = self.beat();
        let (since, time) = match beat.began {
            Some(began) => (began, limits.header_time),
            // the first request is due at once
            None if !beat.sent => (beat.waits, limits.header_time),
            None => (beat.waits, limits.idle_time),
        };
        let reads = (beat.busy == 0).then(|| since.checked_add(time)).flatten();
        reads.into_iter().chain(beat.stuck.and_then(|since| since.checked_add(limits.idle_time))).min()
    }

    /// Returns when the client took too long.
    async fn overdue(&self, limits: &ConnectionLimits) {
        loop {
            let now = Instant::now();
            let deadline = self.deadline(limits);
            if deadline.is_some_and(|deadline| deadline <= now) {
                return;
            }
            // a deadline that is set meanwhile is not sooner than this
            let look = now.checked_add(limits.header_time.min(limits.idle_time));
            match deadline.into_iter().chain(look).min() {
                Some(soonest) => sleep_until(soonest).await,
                None => std::future::pending().await,
            }
        }
    }

    /// Returns when the client of a request that is being answered has closed its side. Hyper sees that too, but not behind bytes that
    /// follow the request, because it reads none of them before the answer is sent.
    async fn vanished(&self, read: &OwnedReadHalf) {
        loop {
            sleep(LOOK).await;
            let busy = self.beat().busy > 0;
            // what the socket is known to be now; nothing is waited for
            let known = timeout(Duration::ZERO, read.ready(Interest::READABLE));
            if busy
                && let Ok(ready) = known.await
                && ready.map_or(true, |ready| ready.is_read_closed())
            {
                return;
            }
        }
    }
}

/// A connection that is not answered, by what gives way first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Idle {
    /// It never sent anything.
    Silent,
    /// Part of a request has come.
    Within,
    /// It waits for its next request.
    Between,
}

/// Held while a request is answered.
pub struct Busy(Arc<Pulse>);

impl Busy {
    fn new(pulse: &Arc<Pulse>) -> Busy {
        let mut beat = pulse.beat();
        beat.busy += 1;
        beat.began = None;
        Busy(pulse.clone())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let mut beat = self.0.beat();
        beat.busy -= 1;
        beat.waits = Instant::now();
    }
}

/// A socket that tells its pulse.
struct TimedStream {
    read: Arc<OwnedReadHalf>,
    write: OwnedWriteHalf,
    pulse: Arc<Pulse>,
}

impl Read for TimedStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context, mut to: ReadBufCursor) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let mut bytes = [0; 8 << 10];
        let room = to.remaining().min(bytes.len());
        let read = loop {
            ready!(AsRef::<TcpStream>::as_ref(&*this.read).poll_read_ready(cx))?;
            match this.read.try_read(&mut bytes[..room]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => break read?,
            }
        };
        to.put_slice(&bytes[..read]);
        let mut beat = this.pulse.beat();
        beat.sent |= read > 0;
        if beat.busy == 0 && read > 0 {
            beat.began.get_or_insert_with(Instant::now);
        }
        Poll::Ready(Ok(()))
    }
}

impl TimedStream {
    /// What a write came to, noted.
    fn written<T>(&self, done: Poll<T>) -> Poll<T> {
        let mut beat = self.pulse.beat();
        match done {
            Poll::Pending => {
                beat.stuck.get_or_insert_with(Instant::now);
            }
            Poll::Ready(_) => beat.stuck = None,
        }
        done
    }
}

impl Write for TimedStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let done = Pin::new(&mut this.write).poll_write(cx, bytes);
        this.written(done)
    }
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().write).poll_flush(cx)
    }
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().write).poll_shutdown(cx)
    }
    fn is_write_vectored(&self) -> bool {
        true
    }
    fn poll_write_vectored(self: Pin<&mut Self>, cx: &mut Context, parts: &[io::IoSlice]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let done = Pin::new(&mut this.write).poll_write_vectored(cx, parts);
        this.written(done)
    }
}

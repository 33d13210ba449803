//! Connections and their limits.
//!
//! A connection that sends no request, sends one too slowly, or does not take its answer is closed by a clock of our own
//! ([`Pulse`]): hyper's runs for the headers alone, and knows no difference between a connection that waits for its next request and one
//! that sends a letter a second.

use crate::ServerState;
use crate::route;
use crate::server::Phase;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use std::convert::Infallible;
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, sleep_until};

/// What one client may take of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Connections at a time; others wait to be accepted.
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

/// Takes connections until the server ends.
pub async fn accept(listener: TcpListener, shared: Arc<ServerState>) {
    let permits = Arc::new(Semaphore::new(shared.options.limits.connections));
    while let Ok(permit) = permits.clone().acquire_owned().await {
        match listener.accept().await {
            Ok((stream, _)) => {
                let connected = shared.connected();
                let shared = shared.clone();
                tokio::spawn(async move {
                    serve(stream, &shared).await;
                    drop((permit, connected));
                });
            }
            // no file is left, or the client went away: others may have more luck
            Err(_) => sleep(Duration::from_millis(50)).await,
        }
    }
}

/// One connection.
async fn serve(stream: TcpStream, shared: &Arc<ServerState>) {
    let _ = stream.set_nodelay(true); // slower without, and not wrong
    let pulse = Arc::new(Pulse::default());
    let service = service_fn(|request| {
        let (shared, busy) = (shared.clone(), Busy::new(&pulse));
        async move { Ok::<_, Infallible>(route::answer(shared, busy, request).await) }
    });
    let timed = TimedStream { stream, pulse: pulse.clone() };
    let mut http = http1::Builder::new();
    http.max_buf_size(BUFFER).max_headers(HEADERS);
    let mut connection = pin!(http.serve_connection(timed, service));
    let mut phase = shared.phase.subscribe();
    // one that came during the stop is not idle: its request is answered, with the news
    let mut serving = *phase.borrow_and_update() == Phase::Serving;
    loop {
        tokio::select! {
            _ = connection.as_mut() => return,
            () = pulse.overdue(&shared.options.limits) => return,
            Ok(_) = phase.wait_for(|phase| *phase != Phase::Serving), if serving => {
                serving = false;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

/// What a connection did last.
#[derive(Default)]
struct Pulse(Mutex<Beat>);

struct Beat {
    /// Requests that are being answered.
    busy: usize,
    /// Since when it waits for a request.
    waits: Instant,
    /// When the first byte of a request came that is not whole yet.
    began: Option<Instant>,
    /// Since when the client takes nothing of an answer.
    stuck: Option<Instant>,
}

impl Default for Beat {
    fn default() -> Beat {
        // the first request is due at once
        let now = Instant::now();
        Beat { busy: 0, waits: now, began: Some(now), stuck: None }
    }
}

impl Pulse {
    fn beat(&self) -> MutexGuard<'_, Beat> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn deadline(&self, limits: &ConnectionLimits) -> Option<Instant> {
        let beat = self.beat();
        let head = beat.began.map_or(beat.waits + limits.idle_time, |began| began + limits.header_time);
        let reads = (beat.busy == 0).then_some(head);
        reads.into_iter().chain(beat.stuck.map(|since| since + limits.idle_time)).min()
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
            let look = now + limits.header_time.min(limits.idle_time);
            sleep_until(deadline.map_or(look, |deadline| deadline.min(look))).await;
        }
    }
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
    stream: TcpStream,
    pulse: Arc<Pulse>,
}

impl Read for TimedStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context, mut to: ReadBufCursor) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let mut bytes = [0; 8 << 10];
        let room = to.remaining().min(bytes.len());
        let mut read = ReadBuf::new(&mut bytes[..room]);
        ready!(Pin::new(&mut this.stream).poll_read(cx, &mut read))?;
        to.put_slice(read.filled());
        let mut beat = this.pulse.beat();
        if beat.busy == 0 && !read.filled().is_empty() {
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
        let done = Pin::new(&mut this.stream).poll_write(cx, bytes);
        this.written(done)
    }
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
    fn is_write_vectored(&self) -> bool {
        true
    }
    fn poll_write_vectored(self: Pin<&mut Self>, cx: &mut Context, parts: &[io::IoSlice]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let done = Pin::new(&mut this.stream).poll_write_vectored(cx, parts);
        this.written(done)
    }
}

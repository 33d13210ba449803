//! Connections and their limits.
//!
//! A connection that sends no request, sends one too slowly, or does not read its answer is closed by a clock of our
//! own ([`Pulse`]). Hyper's clock covers the headers only, and cannot tell a connection that waits for its next request
//! from one that sends a byte a second.

use crate::pulse::{Busy, Idle, LOOK, Pulse};
use crate::route;
use crate::state::{Phase, ServerState};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use std::convert::Infallible;
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};
use tokio::io::AsyncWrite;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};

/// Bytes that hyper holds of a request before it reads on: headers beyond our limit come this far, so that they get our
/// answer.
const BUFFER: usize = 64 << 10;
/// Headers of a request.
const HEADERS: usize = 100;

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

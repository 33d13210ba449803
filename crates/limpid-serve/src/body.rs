//! The body of an answer: bytes, or events as they come.

use crate::answer::Answer;
use crate::pulse::Busy;
use crate::queue::ReplyEvents;
use crate::refusal::Refusal;
use crate::state::{Counted, Phase};
use crate::threads::Gone;
use hyper::body::{Body, Bytes, Frame, SizeHint};
use limpid_glass::Reserved;
use std::io;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

/// After this long without an event a comment is sent, so that no proxy takes the connection for dead.
const PING: Duration = Duration::from_secs(15);

/// What an answer consists of.
pub enum Content {
    Whole(Bytes),
    /// Events as they come.
    Events(Box<Stream>),
    /// Pieces as they are computed, the first of which is there; the last part is dropped when no more are wanted. If
    /// it is set before, the client took no piece for too long: the answer then breaks off, so that what was sent is
    /// not taken for all of it.
    Pieces(Bytes, mpsc::Receiver<Bytes>, Gone),
}

/// The body of an answer. Its request counts as being answered until the body is dropped.
pub struct ReplyBody {
    kind: Kind,
    _held: (Busy, Counted),
}

enum Kind {
    Whole(Bytes),
    Events(Next),
    Pieces(Option<Bytes>, mpsc::Receiver<Bytes>, Gone),
    Sent,
}

type Next = Pin<Box<dyn Future<Output = (Option<Bytes>, Stream)> + Send>>;

impl ReplyBody {
    pub fn new(content: Content, held: (Busy, Counted)) -> ReplyBody {
        let kind = match content {
            Content::Whole(bytes) if bytes.is_empty() => Kind::Sent,
            Content::Whole(bytes) => Kind::Whole(bytes),
            Content::Events(stream) => Kind::Events(Box::pin(stream.next())),
            Content::Pieces(first, rest, gone) => Kind::Pieces(Some(first), rest, gone),
        };
        ReplyBody { kind, _held: held }
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let this = self.get_mut();
        let bytes = match std::mem::replace(&mut this.kind, Kind::Sent) {
            Kind::Sent => None,
            Kind::Whole(bytes) => Some(bytes),
            Kind::Pieces(first, mut rest, gone) => {
                let polled = first.map_or_else(|| rest.poll_recv(cx), |first| Poll::Ready(Some(first)));
                if !matches!(polled, Poll::Ready(None)) {
                    this.kind = Kind::Pieces(None, rest, gone);
                } else if gone.flag().load(Ordering::SeqCst) {
                    return Poll::Ready(Some(Err(io::ErrorKind::TimedOut.into())));
                }
                ready!(polled)
            }
            Kind::Events(mut next) => {
                let polled = next.as_mut().poll(cx);
                if polled.is_pending() {
                    this.kind = Kind::Events(next);
                }
                let (bytes, stream) = ready!(polled);
                if bytes.is_some() {
                    this.kind = Kind::Events(Box::pin(stream.next()));
                }
                bytes
            }
        };
        Poll::Ready(bytes.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.kind, Kind::Sent)
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Sent => SizeHint::with_exact(0),
            Kind::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Kind::Events(_) | Kind::Pieces(..) => SizeHint::default(),
        }
    }
}

/// An answer in the making, with what it is made of.
pub struct Stream {
    pub answer: Answer,
    pub events: ReplyEvents,
    pub phase: watch::Receiver<Phase>,
    /// What is sent first.
    pub ready: Vec<String>,
    /// Memory of what changes its runs.
    pub _held: Option<Reserved>,
    /// Called with the reason if a stream fails; a whole answer reports it itself.
    pub report: Option<Report>,
}

pub type Report = Box<dyn Fn(&Refusal) + Send>;

impl Stream {
    /// The next payloads of the answer; `None` after the last. An answer that cannot continue ends with an error.
    pub async fn told(&mut self) -> Option<Vec<String>> {
        if !self.ready.is_empty() {
            return Some(std::mem::take(&mut self.ready));
        }
        if self.answer.is_done() {
            return None;
        }
        tokio::select! {
            biased;
            event = self.events.recv() => {
                let mut told = match event {
                    Some((choice, event)) => self.answer.take(choice, event),
                    None => return Some(self.answer.fail(&Refusal::engine_error("its run of the model failed"))),
                };
                // what came meanwhile is sent with it
                while !self.answer.is_done() && let Ok((choice, event)) = self.events.try_recv() {
                    told.extend(self.answer.take(choice, event));
                }
                Some(told)
            }
            _ = self.phase.wait_for(|phase| *phase == Phase::Ended) => Some(self.answer.fail(&Refusal::stopping())),
        }
    }

    async fn next(mut self) -> (Option<Bytes>, Stream) {
        let ping = Instant::now() + PING;
        loop {
            let told = tokio::select! {
                told = self.told() => told,
                () = sleep_until(ping) => return (Some(Bytes::from_static(b": ping\n\n")), self),
            };
            match told {
                None => return (None, self),
                // a token may make no text yet
                Some(payloads) if payloads.is_empty() => {}
                Some(payloads) => {
                    if let (Some(refusal), Some(report)) = (self.answer.failure(), &self.report) {
                        report(refusal);
                    }
                    let lines: String = payloads.iter().map(|payload| format!("data: {payload}\n\n")).collect();
                    return (Some(lines.into()), self);
                }
            }
        }
    }
}

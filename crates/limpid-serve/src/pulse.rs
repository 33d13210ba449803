//! What a connection does, and when it has taken too long.

use crate::options::ConnectionLimits;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::tcp::OwnedReadHalf;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// How often a connection is looked at for what no event tells.
pub const LOOK: Duration = Duration::from_millis(250);

/// What a connection did last.
#[derive(Default)]
pub struct Pulse {
    beat: Mutex<Beat>,
    /// Another connection needs its place.
    pub give_way: Notify,
}

pub struct Beat {
    /// Requests that are being answered.
    pub busy: usize,
    /// Whether anything ever came.
    pub sent: bool,
    /// Since when it waits for a request.
    waits: Instant,
    /// When the first byte of a request came that is not whole yet.
    pub began: Option<Instant>,
    /// Since when the client takes nothing of an answer.
    pub stuck: Option<Instant>,
}

impl Default for Beat {
    fn default() -> Beat {
        Beat { busy: 0, sent: false, waits: Instant::now(), began: None, stuck: None }
    }
}

impl Pulse {
    pub fn beat(&self) -> MutexGuard<'_, Beat> {
        self.beat.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How soon it has to give way, and since when it waits; none while it is answered.
    pub fn idle(&self) -> Option<(Idle, Instant)> {
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
    pub async fn overdue(&self, limits: &ConnectionLimits) {
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

    /// Returns when the client of a request that is being answered has closed its side. Hyper sees that too, but not
    /// behind bytes that follow the request, because it reads none of them before the answer is sent.
    pub async fn vanished(&self, read: &OwnedReadHalf) {
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
pub enum Idle {
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
    pub fn new(pulse: &Arc<Pulse>) -> Busy {
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

//! The queue in front of the engine's thread.

use crate::model::{ServedLease, ServedModel};
use crate::refusal::{Refusal, Result};
use limpid::engine::{Engine, EngineCounts, EngineEvent, EngineRequest};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// The events of a request's sequences, each with the number of its sequence. If the channel ends before a sequence's
/// last event, the engine failed.
pub type ReplyEvents = mpsc::Receiver<(usize, EngineEvent)>;

/// After this many failures within a minute, `/health` reports that the server is failing.
pub const FAILURES: usize = 3;
const MINUTE: Duration = Duration::from_secs(60);

/// Events of a sequence that are not tokens: the prompt, the end, and one to spare.
const BESIDE_TOKENS: usize = 3;

/// Requests on their way to the engine, and the engine's state as others may see it.
pub struct Queue {
    most: usize,
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
pub struct State {
    pub jobs: Vec<Job>,
    pub engines: Vec<NewEngine>,
    /// Sequences without an event so far, and the tokens of their prompts.
    pub waiting: usize,
    pub waiting_tokens: usize,
    pub counts: EngineCounts,
    /// Seconds from one answer to the next while others wait, on average.
    pub pace: f64,
    pub failures: VecDeque<Instant>,
    pub closed: bool,
}

/// An engine, and the model that it is for.
pub type NewEngine = (Weak<Arc<ServedModel>>, Engine);

/// A request as the engine gets it.
pub struct Job {
    pub model: ServedLease,
    /// Each with its place in the queue.
    pub requests: Vec<(EngineRequest, Waiting)>,
    pub events: mpsc::Sender<(usize, EngineEvent)>,
    pub came: Instant,
}

/// Counts a sequence as waiting until it is dropped.
pub struct Waiting {
    queue: Arc<Queue>,
    tokens: usize,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut state = self.queue.state();
        state.waiting -= 1;
        state.waiting_tokens -= self.tokens;
    }
}

impl Queue {
    /// An empty queue for at most so many sequences.
    pub fn new(most: usize) -> Arc<Queue> {
        Arc::new(Queue { most, state: Mutex::default(), wake: Condvar::new() })
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Places for sequences of `model` with prompts of so many tokens.
    ///
    /// # Errors
    /// If too many wait: too many sequences, or prompts of more tokens than that many contexts have.
    pub fn places(self: &Arc<Queue>, model: &ServedModel, prompts: &[usize]) -> Result<Vec<Waiting>> {
        let (count, tokens) = (prompts.len(), prompts.iter().sum::<usize>());
        let most_tokens = self.most.saturating_mul(model.lm.config().context_length);
        let mut state = self.state();
        // one request is always taken, however large
        let full = state.waiting + count > self.most || state.waiting_tokens + tokens > most_tokens;
        if state.waiting > 0 && full {
            let seconds = (state.pace * state.waiting as f64).ceil().clamp(1.0, 60.0);
            return Err(Refusal::queue_full(state.waiting, seconds as u32));
        }
        state.waiting += count;
        state.waiting_tokens += tokens;
        Ok(prompts.iter().map(|&tokens| Waiting { queue: self.clone(), tokens }).collect())
    }

    /// Gives the engine a request of `model`, which must be one that is served.
    ///
    /// # Errors
    /// As [`Queue::places`].
    pub fn submit(self: &Arc<Queue>, model: &ServedLease, requests: Vec<EngineRequest>) -> Result<ReplyEvents> {
        let prompts: Vec<usize> = requests.iter().map(|request| request.prompt.len()).collect();
        let room: usize = requests.iter().map(|request| request.options.max_tokens + BESIDE_TOKENS).sum();
        let (events, hears) = mpsc::channel(room.max(1));
        let requests = requests.into_iter().zip(self.places(model, &prompts)?).collect();
        let job = Job { model: model.clone(), requests, events, came: Instant::now() };
        let mut state = self.state();
        if state.closed {
            drop(state); // dropping the job locks it again
            return Ok(hears); // its other end is dropped with the job
        }
        state.jobs.push(job);
        self.wake.notify_one();
        Ok(hears)
    }

    /// Adds an engine for `model`.
    pub fn serve(&self, model: &ServedLease, mut engine: Engine) {
        let mut state = self.state();
        if state.counts.blocks == 0 {
            state.counts = engine.counts(); // the thread has not begun
        }
        state.engines.push((Arc::downgrade(model), engine));
        drop(state);
        self.wake.notify_one();
    }

    /// Ends the engine's thread.
    pub fn close(&self) {
        self.state().closed = true;
        self.wake.notify_one();
    }

    /// What the engines hold; waiting are those here too.
    pub fn counts(&self) -> EngineCounts {
        let state = self.state();
        EngineCounts { waiting: state.waiting, waiting_tokens: state.waiting_tokens, ..state.counts }
    }

    /// Whether the engine keeps failing.
    pub fn fails(&self) -> bool {
        let state = self.state();
        state.closed || state.failures.iter().filter(|failed| failed.elapsed() < MINUTE).count() >= FAILURES
    }

    /// Takes what has come, and waits for it if `idle`. `None` when the thread is to end.
    pub fn take(&self, idle: bool) -> Option<(Vec<Job>, Vec<NewEngine>)> {
        let mut state = self.state();
        while idle && state.jobs.is_empty() && state.engines.is_empty() && !state.closed {
            // it looks up from time to time: a model may be out of use
            let (after, waited) =
                self.wake.wait_timeout(state, Duration::from_secs(1)).unwrap_or_else(PoisonError::into_inner);
            state = after;
            if waited.timed_out() {
                break;
            }
        }
        (!state.closed).then(|| (std::mem::take(&mut state.jobs), std::mem::take(&mut state.engines)))
    }

    /// Notes that an answer ended, so long after the one before.
    pub fn note_end(&self, after: Duration) {
        let mut state = self.state();
        if state.waiting > 0 {
            state.pace += 0.2 * (after.as_secs_f64() - state.pace);
        }
    }
}

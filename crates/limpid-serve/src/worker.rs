//! The engine's thread, and the queue in front of it.
//!
//! The thread runs every engine round by round and passes its events on. A sequence's channel has room for all of its events, so a slow
//! reader never holds up a round. A client that goes away drops its end of the channel, which the thread sees before the next round. Each
//! checkpoint has an engine of its own ([`crate::follow`]), which ends when no request for it can come any more.

use crate::metrics::Metrics;
use crate::model::{ServedLease, ServedModel};
use crate::refusal::{Refusal, Result};
use crate::server::{ServeEvent, ServerState};
use limpid::engine::{Engine, EngineCounts, EngineEvent, EngineRequest, RequestId};
use limpid_base::contain::contain;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// The events of a request's sequences, each with the number of its sequence. If the channel ends before a sequence's last event, the
/// engine failed.
pub type ReplyEvents = mpsc::Receiver<(usize, EngineEvent)>;

/// After this many failures within a minute, `/health` reports that the server is failing.
const FAILURES: usize = 3;
const MINUTE: Duration = Duration::from_secs(60);

/// Events of a sequence that are not tokens: the prompt, the end, and one to spare.
const BESIDE_TOKENS: usize = 3;

/// Rows of prompts that a run has at first, and at least.
const FIRST_ROWS: usize = 64;
const LEAST_ROWS: usize = 16;

/// Requests on their way to the engine, and the engine's state as others may see it.
pub struct Queue {
    most: usize,
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    jobs: Vec<Job>,
    engines: Vec<NewEngine>,
    /// Sequences without an event so far, and the tokens of their prompts.
    waiting: usize,
    waiting_tokens: usize,
    counts: EngineCounts,
    /// Seconds from one answer to the next while others wait, on average.
    pace: f64,
    failures: VecDeque<Instant>,
    closed: bool,
}

/// An engine, and the model that it is for.
type NewEngine = (Weak<Arc<ServedModel>>, Engine);

/// A request as the engine gets it.
struct Job {
    model: ServedLease,
    /// Each with its place in the queue.
    requests: Vec<(EngineRequest, Waiting)>,
    events: mpsc::Sender<(usize, EngineEvent)>,
    came: Instant,
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

    fn state(&self) -> MutexGuard<'_, State> {
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
    fn take(&self, idle: bool) -> Option<(Vec<Job>, Vec<NewEngine>)> {
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
    fn note_end(&self, after: Duration) {
        let mut state = self.state();
        if state.waiting > 0 {
            state.pace += 0.2 * (after.as_secs_f64() - state.pace);
        }
    }
}

/// One of a request's sequences in the engine.
struct Sequence {
    events: mpsc::Sender<(usize, EngineEvent)>,
    came: Instant,
    waits: Option<Waiting>,
    choice: usize,
    prompt: usize,
    last: Option<Instant>,
}

/// An engine with its model and all that it was asked.
struct Served {
    model: Weak<Arc<ServedModel>>,
    /// None after a failure from which it could not be made again.
    engine: Option<Engine>,
    sequences: HashMap<RequestId, Sequence>,
    rows: usize,
}

/// The engine's thread.
pub fn run(shared: &ServerState) {
    let queue = &shared.queue;
    let (mut all, mut ended): (Vec<Served>, _) = (vec![], Instant::now());
    loop {
        let idle = all.iter().all(|served| served.sequences.is_empty());
        let Some((jobs, engines)) = queue.take(idle) else { return };
        ended = if idle { Instant::now() } else { ended };
        for (model, mut engine) in engines {
            let rows = FIRST_ROWS.min(shared.options.engine.prompt_rows);
            engine.set_prompt_rows(rows);
            all.push(Served { model, engine: Some(engine), sequences: HashMap::new(), rows });
        }
        for job in jobs {
            let of = |served: &&mut Served| std::ptr::eq(served.model.as_ptr(), Arc::as_ptr(&job.model));
            if let Some(served) = all.iter_mut().find(of) {
                served.begin(job, shared);
            }
        }
        for served in &mut all {
            let before = served.sequences.len();
            served.round(shared);
            if served.sequences.len() < before {
                queue.note_end(ended.elapsed());
                ended = Instant::now();
            }
        }
        all.retain(|served| served.model.strong_count() > 0 || !served.sequences.is_empty());
        let mut counts = EngineCounts::default();
        for one in all.iter_mut().filter_map(|served| served.engine.as_mut()).map(Engine::counts) {
            counts.running += one.running;
            counts.blocks += one.blocks;
            counts.held += one.held;
            counts.idle += one.idle;
            (counts.rows, counts.work) = (one.rows, one.work);
        }
        queue.state().counts = counts;
    }
}

impl Served {
    /// Takes a request. A sequence that the engine refuses ends at once, with the reason or with its channel.
    fn begin(&mut self, job: Job, shared: &ServerState) {
        if self.engine.is_none() {
            self.remake(shared);
        }
        let Some(engine) = &mut self.engine else { return };
        let Job { requests, events, came, .. } = job;
        for (choice, (request, waits)) in requests.into_iter().enumerate() {
            let prompt = request.prompt.len();
            match contain(|| engine.submit_nth(request, choice)) {
                Ok(Ok(id)) => {
                    let events = events.clone();
                    let waits = Some(waits);
                    self.sequences.insert(id, Sequence { events, came, waits, choice, prompt, last: None });
                }
                Ok(Err(error)) => {
                    let _ = events.try_send((choice, EngineEvent::Failed(error))); // it has room, or is gone
                }
                Err(panic) => return self.fail(&panic, shared),
            }
        }
    }

    /// Ends sequences that nobody waits for, and runs the others once.
    fn round(&mut self, shared: &ServerState) {
        let metrics = &shared.metrics;
        let Some(engine) = &mut self.engine else { return };
        let gone = self.sequences.extract_if(|_, sequence| sequence.events.is_closed());
        let gone: HashSet<RequestId> =
            gone.inspect(|(_, sequence)| sequence.note_cancelled(metrics)).map(|of| of.0).collect();
        if !gone.is_empty() {
            engine.cancel(&gone);
        }
        if self.sequences.is_empty() {
            return;
        }
        let began = Instant::now();
        let sequences = &mut self.sequences;
        let mut tell = |id, event: EngineEvent| {
            let Some(sequence) = sequences.get_mut(&id) else { return false };
            let last = matches!(event, EngineEvent::Done(_) | EngineEvent::Failed(_));
            sequence.note(&event, metrics);
            let heard = sequence.events.try_send((sequence.choice, event)).is_ok();
            if !heard && !last {
                sequence.note_cancelled(metrics);
            }
            if last || !heard {
                sequences.remove(&id);
            }
            heard
        };
        // a failed round changes nothing, so it may be tried once more
        let done = contain(|| engine.round(&mut tell).or_else(|_| engine.round(&mut tell)));
        match done {
            Ok(Ok(_)) => {
                let seconds = began.elapsed();
                let EngineCounts { rows, work, .. } = engine.counts();
                metrics.observe("limpid_turn_seconds", seconds.as_secs_f64());
                metrics.observe("limpid_turn_rows", rows as f64);
                self.rows = prompt_rows(self.rows, work, seconds, shared.options.turn)
                    .clamp(LEAST_ROWS.min(shared.options.engine.prompt_rows), shared.options.engine.prompt_rows);
                engine.set_prompt_rows(self.rows);
            }
            Ok(Err(error)) => self.fail(&error.to_string(), shared),
            Err(panic) => self.fail(&panic, shared),
        }
    }

    /// Ends all sequences, and begins with another engine.
    fn fail(&mut self, what: &str, shared: &ServerState) {
        shared.metrics.add("limpid_engine_failures_total", &[], 1);
        let mut state = shared.queue.state();
        state.failures.push_back(Instant::now());
        if state.failures.len() > FAILURES {
            state.failures.pop_front();
        }
        drop(state);
        (shared.tell)(ServeEvent::EngineFailed { what: what.into(), lost: self.sequences.len() });
        // clients see the failure only after it is counted
        self.sequences.clear();
        self.remake(shared);
    }

    fn remake(&mut self, shared: &ServerState) {
        let old = self.engine.take();
        let _ = contain(|| drop(old)); // after a panic nothing is certain of it
        let Some(model) = self.model.upgrade() else { return };
        match contain(|| model.engine(&shared.options.engine)) {
            Ok(Ok(engine)) => self.engine = Some(engine),
            Ok(Err(error)) => (shared.tell)(ServeEvent::EngineFailed { what: error.to_string(), lost: 0 }),
            Err(what) => (shared.tell)(ServeEvent::EngineFailed { what, lost: 0 }),
        }
    }
}

impl Sequence {
    fn note(&mut self, event: &EngineEvent, metrics: &Metrics) {
        let came = self.came;
        if self.waits.take().is_some() {
            metrics.observe("limpid_queue_seconds", came.elapsed().as_secs_f64());
        }
        match event {
            EngineEvent::Prompt { cached, .. } => {
                metrics.add("limpid_prompt_tokens_total", &[], self.prompt);
                metrics.add("limpid_cached_tokens_total", &[], *cached);
            }
            EngineEvent::Token { .. } => {
                metrics.add("limpid_generated_tokens_total", &[], 1);
                match self.last.replace(Instant::now()) {
                    None => metrics.observe("limpid_time_to_first_token_seconds", came.elapsed().as_secs_f64()),
                    Some(last) => metrics.observe("limpid_inter_token_seconds", last.elapsed().as_secs_f64()),
                }
            }
            _ => {}
        }
    }

    fn note_cancelled(&self, metrics: &Metrics) {
        let phase = if self.last.is_none() { "prompt" } else { "answer" };
        metrics.add("limpid_cancelled_total", &[("phase", phase)], 1);
    }
}

/// How many rows of prompts the next run should have, given how long a run of `rows` rows took: halfway to the number that fits in `turn`.
/// A run of few rows says little about runs of many.
fn prompt_rows(now: usize, rows: usize, took: Duration, turn: Duration) -> usize {
    if rows < LEAST_ROWS {
        return now;
    }
    let fit = rows as f64 * turn.as_secs_f64() / took.as_secs_f64().max(1e-6);
    ((now as f64 + fit) / 2.0) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::RequestAccess;
    use crate::model::ServedAs;
    use crate::server::ServeOptions;
    use limpid::backend::{Backend, BackendError, Cpu, Result, Wrapper};
    use limpid::checkpoint::Checkpoint;
    use limpid::engine::Decoder;
    use limpid::generate::{FinishReason, Options};
    use limpid::ops::Batch;
    use limpid::train::Recipe;
    use limpid::{Machine, Training};

    /// A device on which nothing can be run, as it says itself or as a fault in it does.
    struct Broken {
        own: Cpu,
        panics: bool,
    }

    impl Wrapper for Broken {
        fn inner(&self) -> &dyn Backend {
            &self.own
        }
        fn inner_mut(&mut self) -> &mut dyn Backend {
            &mut self.own
        }
        fn feed(&mut self, _: &Batch) -> Result<()> {
            assert!(!self.panics, "a fault that was planted");
            Err(BackendError::Lost { op: "a run", what: "it was planted".into() })
        }
    }

    #[test]
    fn an_engine_that_fails_begins_anew() {
        let folder = std::env::temp_dir().join(format!("limpid-serve-worker-{}", std::process::id()));
        let recipe = Recipe { steps: 1, batch_size: 2, context: 16, ..Recipe::preset("nano").unwrap() };
        let training = Training::preset("nano").unwrap().recipe(recipe).tokenizer("char");
        training.text("to be or not to be. ".repeat(40)).folder(&folder).run().unwrap();
        let how = ServedAs { id: "m".into(), machine: Machine::cpu(1), template: None };
        let model = || Arc::new(Arc::new(ServedModel::new(Checkpoint::open(&folder).unwrap(), &how).unwrap()));
        let options = ServeOptions::default();
        let limits = options.engine;
        let access = RequestAccess::new(&options, [127, 0, 0, 1].into()).unwrap();
        let told = Arc::new(Mutex::new(vec![]));
        let hears = told.clone();
        let tell = Box::new(move |event| hears.lock().unwrap().push(event));
        let shared = Arc::new(ServerState::new(&model(), options, access, tell));
        let runs = shared.clone();
        let thread = std::thread::spawn(move || run(&runs));
        for (n, panics) in [true, false, true].into_iter().enumerate() {
            let model = model();
            let config = model.lm.config();
            let decoder = Decoder::new(config, limits.decoder(config), |model| {
                Ok(Box::new(Broken { own: Cpu::new(model, 1), panics }))
            })
            .unwrap();
            shared.queue.serve(&model, Engine::new(decoder, None, &limits));
            let options = Options { max_tokens: 3, ..Options::default() };
            let request = EngineRequest { prompt: vec![0, 1], options, log_probs: None, reuse: true, steps: None };
            let ask = || shared.queue.submit(&model, vec![request.clone(); 2]).unwrap();
            assert!(ask().blocking_recv().is_none(), "the end of the channel is all that is heard");
            assert_eq!(told.lock().unwrap().len(), n + 1);
            assert_eq!(shared.queue.fails(), n == 2);
            let (mut hears, mut done) = (ask(), 0);
            while let Some((_, event)) = hears.blocking_recv() {
                done += usize::from(
                    matches!(event, EngineEvent::Done(sample) if sample.finish_reason == FinishReason::Length),
                );
            }
            assert_eq!(done, 2, "by another engine");
        }
        let what = |event: &ServeEvent| match event {
            ServeEvent::EngineFailed { what, lost: 2 } => what.contains("planted"),
            _ => false,
        };
        assert!(told.lock().unwrap().iter().all(what), "{told:?}");
        assert!(shared.metrics.page(&[]).contains("\nlimpid_engine_failures_total 3\n"));
        assert_eq!((shared.queue.counts().waiting, shared.queue.counts().waiting_tokens), (0, 0));
        shared.queue.close();
        thread.join().unwrap();
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn rows_follow_the_measured_time() {
        let turn = Duration::from_millis(50);
        assert_eq!(prompt_rows(64, 8, Duration::from_secs(9), turn), 64, "too few to tell");
        let settled = (0..40).fold(64, |rows, _| prompt_rows(rows, rows, turn * rows as u32 / 100, turn));
        assert!((98..=100).contains(&settled), "{settled}: a row takes a hundredth of a turn");
    }
}

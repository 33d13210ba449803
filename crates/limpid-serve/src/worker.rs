//! The engine's thread.
//!
//! The thread runs every engine round by round and passes its events on. A sequence's channel has room for all of its
//! events, so a slow reader never holds up a round. A client that goes away drops its end of the channel, which the
//! thread sees before the next round. Each checkpoint has an engine of its own ([`crate::follow`]), which ends when no
//! request for it can come any more.

use crate::metrics::Metrics;
use crate::model::ServedModel;
use crate::options::ServeEvent;
use crate::queue::{FAILURES, Job, Waiting};
use crate::state::ServerState;
use limpid::engine::{Engine, EngineCounts, EngineEvent, RequestId};
use limpid_base::contain::contain;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Rows of prompts that a run has at first, and at least.
const FIRST_ROWS: usize = 64;
const LEAST_ROWS: usize = 16;

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

/// How many rows of prompts the next run should have, given how long a run of `rows` rows took: halfway to the number
/// that fits in `turn`. A run of few rows says little about runs of many.
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
    use crate::options::ServeOptions;
    use limpid::backend::{Backend, BackendError, Cpu, Result, Wrapper};
    use limpid::checkpoint::Checkpoint;
    use limpid::engine::{Decoder, EngineRequest};
    use limpid::generate::{FinishReason, Options};
    use limpid::ops::Batch;
    use limpid::train::Recipe;
    use limpid::{Machine, Training};
    use std::sync::Mutex;

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

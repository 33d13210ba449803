//! The seam between those who use a model and whoever runs it: what does not fit reaches no kernel, and where a backend
//! fails, at whatever op, training goes on to the same bytes and a session to the same logits.

use crate::common::folder::Folder;
use crate::common::sequences::{SequenceId, Sequences};
use crate::common::{self, tiny};
use limpid::backend::{Backend, BackendError, Cpu, Reference, Result, SharedWeights, Ticket, UpdateReport, Wrapper};
use limpid::checkpoint::safetensors_file;
use limpid::config::Config;
use limpid::data::Tokens;
use limpid::generate::DecodeError;
use limpid::matrix::Precision;
use limpid::model::{MemoryPart, Mode, Model, init};
use limpid::numeric::blocks::Quant;
use limpid::numeric::element::{Element, Major, Values};
use limpid::numeric::random;
use limpid::ops::program::UncheckedProgram;
use limpid::ops::{ActiveRows, Back, Batch, IGNORE, MemorySpace, Op, Ops, Pass, Passes, Program, Region, Span};
use limpid::optimizer::{Change, Method, ParamGroup, Rule};
use limpid::tokenizer::{Order, Tokenizer, TokenizerKind};
use limpid::trace::{self, Keep, Trace};
use limpid::train::evaluate::score;
use limpid::train::{
    Batches, Control, Divergence, Documents, Objective, Recipe, Run, RunData, RunOptions, Schedule, Summary,
    TrainError, TrainEvent, Trainer, WindowShape, Windows,
};
use std::fs;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const NEVER: usize = usize::MAX;

/// What a test knows of a wrapped backend, and tells it.
#[derive(Default)]
struct Told {
    /// Ops and other verbs that were begun.
    count: AtomicUsize,
    /// The one that fails.
    fails: AtomicUsize,
    /// Every one so many waits a little; none if 0.
    waits: AtomicUsize,
    /// Gradients that are set aside, and the most that ever were.
    aside: AtomicUsize,
    most: AtomicUsize,
    /// Whether the backend says that it runs ahead; whether an update was begun and not reported; rows that were fed
    /// meanwhile.
    ahead: AtomicBool,
    begun: AtomicBool,
    early: AtomicUsize,
    /// What was uploaded.
    uploads: Mutex<Vec<(Region, Element, Major)>>,
}

impl Told {
    fn new() -> Arc<Told> {
        Arc::new(Told { fails: AtomicUsize::new(NEVER), ..Told::default() })
    }

    /// What a backend is told that runs ahead.
    fn ahead() -> Arc<Told> {
        let told = Told::new();
        told.ahead.store(true, Relaxed);
        told
    }

    /// Has the `k`-th from now fail, and none after it.
    fn fail_in(&self, k: usize) {
        self.fails.store(self.count.load(Relaxed) + k, Relaxed);
    }

    fn counted<T>(&self, f: impl FnOnce() -> T) -> (T, usize) {
        let before = self.count.load(Relaxed);
        let done = f();
        (done, self.count.load(Relaxed) - before)
    }
}

/// A backend that hands on one op at a time, counts, waits, and fails where it is told to: not before an op has written
/// what it writes, for that may be there or not.
struct Wrapped {
    own: Box<dyn Backend>,
    told: Arc<Told>,
}

impl Wrapped {
    fn begin(&self, op: &'static str) -> Result<()> {
        let at = self.told.count.fetch_add(1, Relaxed);
        let waits = self.told.waits.load(Relaxed);
        if waits > 0 && at.is_multiple_of(waits) {
            std::thread::sleep(Duration::from_micros(200));
        }
        if at == self.told.fails.load(Relaxed) {
            Err(BackendError::Lost { op, what: format!("call {at} was told to fail") })
        } else {
            Ok(())
        }
    }
}

impl Wrapper for Wrapped {
    fn inner(&self) -> &dyn Backend {
        &*self.own
    }
    fn inner_mut(&mut self) -> &mut dyn Backend {
        &mut *self.own
    }
    fn feed(&mut self, batch: &Batch) -> Result<()> {
        self.begin("feed")?;
        self.told.early.fetch_add(self.told.begun.load(Relaxed).into(), Relaxed);
        self.own.feed(batch)
    }
    fn forward(&mut self, ops: Ops) -> Result<()> {
        for (op, alone) in ops.each() {
            let begun = self.begin(op.name());
            self.own.forward(alone)?;
            begun?;
        }
        Ok(())
    }
    fn backward(&mut self, back: Passes) -> Result<()> {
        for (pass, alone) in back.each() {
            let begun = self.begin(pass.back().map_or("again", |back| back.op.name()));
            self.own.backward(alone)?;
            begun?;
        }
        Ok(())
    }
    fn begin_update(&mut self, groups: &[ParamGroup], rule: &Rule, watch: &[Change]) -> Result<()> {
        self.begin("update")?;
        self.told.begun.store(true, Relaxed);
        self.own.begin_update(groups, rule, watch)
    }
    fn report(&mut self, watch: &mut [Change]) -> Result<UpdateReport> {
        self.begin("report")?;
        self.told.begun.store(false, Relaxed);
        self.own.report(watch)
    }
    fn runs_ahead(&self) -> bool {
        self.told.ahead.load(Relaxed)
    }
    fn push_gradients(&mut self) -> Result<()> {
        self.begin("push_gradients")?;
        self.told.most.fetch_max(1 + self.told.aside.fetch_add(1, Relaxed), Relaxed);
        self.own.push_gradients()
    }
    fn add_pushed(&mut self) -> Result<()> {
        self.begin("add_pushed")?;
        self.told.aside.fetch_sub(1, Relaxed);
        self.own.add_pushed()
    }
    fn add_pushed_to(&mut self, range: Range<usize>) -> Result<()> {
        self.begin("add_pushed_to")?;
        self.own.add_pushed_to(range)
    }
    fn clear(&mut self) -> Result<()> {
        self.begin("clear")?;
        self.own.clear()
    }
    fn average(&mut self, groups: &[ParamGroup], decay: f64) -> Result<()> {
        self.begin("average")?;
        self.own.average(groups, decay)
    }
    fn request(&self, region: Region) -> Result<Ticket> {
        self.begin("request")?;
        self.own.request(region)
    }
    fn fetch(&self, ticket: Ticket, to: &mut [f32]) -> Result<()> {
        let begun = self.begin("fetch");
        self.own.fetch(ticket, to)?;
        if begun.is_err() {
            to.fill(f32::NAN);
        }
        begun
    }
    fn sum(&self, region: Region) -> Result<f64> {
        self.begin("sum")?;
        self.own.sum(region)
    }
    // values come and go in one way, which is counted
    fn read_to(&self, region: Region, to: &mut [f32]) -> Result<()> {
        Wrapper::fetch(self, Wrapper::request(self, region)?, to)
    }
    fn upload_parts(&mut self, region: Region, parts: &[Values]) -> Result<()> {
        Backend::write(self, region, &Values::joined(parts))
    }
    fn fill(&mut self, region: Region, value: &(dyn Fn(usize) -> f32 + Sync)) -> Result<()> {
        Backend::write(self, region, &(0..region.len()).map(value).collect::<Vec<f32>>())
    }
    fn squares(&mut self, groups: &[ParamGroup]) -> Result<Vec<f64>> {
        self.begin("squares")?;
        self.own.squares(groups)
    }
    fn share(&mut self) -> Result<SharedWeights> {
        self.begin("share")?;
        self.own.share()
    }
    fn upload(&mut self, region: Region, values: Values) -> Result<()> {
        let begun = self.begin("upload");
        self.told.uploads.lock().unwrap().push((region, values.element, values.major));
        if begun.is_ok() {
            self.own.upload(region, values)?
        } else {
            self.own.write(region, &vec![f32::NAN; region.len()])?
        }
        begun
    }
}

fn one_block() -> Config {
    Config { n_layer: 1, ..tiny() }
}

fn text() -> Tokens {
    Tokens::new((0..600).map(|i| random::below(1, 0, i / 3, 17) as u32).collect())
}

fn recipe() -> Recipe {
    Recipe {
        steps: 3,
        batch_size: 2,
        accumulate: 2,
        context: 12,
        warmup_steps: 1,
        ema: 0.9,
        optimizer: Method::Muon,
        ..Recipe::default()
    }
}

fn trainer(told: &Arc<Told>) -> Trainer {
    let model = Model::new(&one_block(), Mode::Train { batch: 2, context: 12 }).unwrap();
    let own = Box::new(Cpu::new(&model, 1));
    Trainer::new(model, Box::new(Wrapped { own, told: told.clone() }), recipe()).unwrap()
}

/// All that a state file would hold, bit by bit.
fn state(trainer: &Trainer) -> Vec<u32> {
    let memories = [MemorySpace::Param, MemorySpace::Moment1, MemorySpace::Moment2, MemorySpace::Average];
    let regions = memories.iter().flat_map(|space| trainer.model.params.iter().map(|p| p.region.in_space(*space)));
    regions.flat_map(|region| trainer.backend.read(region).unwrap()).map(f32::to_bits).collect()
}

fn batches(text: &Tokens) -> Batches<'_> {
    Batches::new(text, WindowShape::next_token(12), 2, 7).unwrap().accumulated(2)
}

#[test]
fn a_step_that_fails_at_any_op_is_done_again_to_the_same_bits() {
    let (text, told) = (text(), Told::new());
    let batches = batches(&text);
    let mut whole = trainer(&told);
    whole.step(&batches).unwrap();
    let (_, ops) = told.counted(|| whole.step(&batches).unwrap());
    whole.step(&batches).unwrap();
    let want = state(&whole);
    let model = &whole.model;
    assert!(ops > 2 * (model.body().len() + model.back().len()), "every op of both micro-batches is counted: {ops}");
    let mut named = vec![];
    for k in 0..ops {
        let told = Told::new();
        let mut trainer = trainer(&told);
        trainer.step(&batches).unwrap();
        told.fail_in(k);
        match trainer.step(&batches) {
            Err(TrainError::Backend(BackendError::Lost { op, .. })) => named.push(op),
            other => panic!("op {k} of {ops}: {other:?}"),
        }
        while trainer.steps_done() < 3 {
            trainer.step(&batches).unwrap();
        }
        assert!(state(&trainer) == want, "op {k} of {ops}, {}", named[k]);
    }
    named.sort_unstable();
    named.dedup();
    for op in [
        "add_pushed",
        "push_gradients",
        "attend",
        "average",
        "classify",
        "embed",
        "feed",
        "linear",
        "norm",
        "report",
        "request",
        "update",
    ] {
        assert!(named.contains(&op), "{op} failed once: {named:?}");
    }
}

#[test]
fn an_evaluation_that_fails_at_any_op_leaves_the_weights() {
    let (text, told) = (text(), Told::new());
    let batches = batches(&text);
    let windows = Windows::new("text", &text, WindowShape::next_token(12)).unwrap().about(40);
    let look = |t: &mut Trainer| score(&t.model, &mut *t.backend, &windows, 2, &mut |_| true);
    let mut whole = trainer(&told);
    whole.step(&batches).unwrap();
    let (judged, ops) = told.counted(|| whole.averaged(look).unwrap().unwrap());
    whole.step(&batches).unwrap();
    let want = state(&whole);
    assert!(ops > 4 * whole.model.params.len(), "weights and averages change places: {ops}");
    for k in 0..ops {
        let told = Told::new();
        let mut trainer = trainer(&told);
        trainer.step(&batches).unwrap();
        told.fail_in(k);
        let failed = trainer.averaged(look).and_then(|score| score);
        assert!(matches!(failed, Err(TrainError::Backend(BackendError::Lost { .. }))), "op {k} of {ops}: {failed:?}");
        if k % 2 == 0 {
            assert_eq!(trainer.averaged(look).unwrap().unwrap(), judged, "op {k} of {ops}");
        }
        trainer.step(&batches).unwrap();
        assert!(state(&trainer) == want, "op {k} of {ops}");
    }
}

fn run<'a>(told: &Arc<Told>, folder: &Path, text: &'a Tokens, tokenizer: &'a Tokenizer) -> Run<'a> {
    let mut trainer = trainer(told);
    // one that runs ahead does so where nothing is to be done between two steps
    let every = if trainer.backend.runs_ahead() { 4 } else { 1 };
    trainer.recipe.steps = 3 + every / 2;
    let mut run = Run::new(
        trainer,
        Some(folder.into()),
        RunData { train: text, validation: text, objective: Objective::NextToken, tokenizer },
    )
    .unwrap();
    run.options = RunOptions { eval_every: every, save_every: every, eval_tokens: 40, ..RunOptions::default() };
    run
}

/// What a run leaves: the weights' file, and every tensor of the last state.
fn left(folder: &Path) -> (Vec<u8>, Vec<u32>) {
    let state = safetensors_file::open(&folder.join("state/last.safetensors")).unwrap();
    let mut names: Vec<String> = state.names().map(Into::into).collect();
    names.sort();
    let values = names.iter().flat_map(|name| state.get(name).unwrap().values().unwrap().into_owned());
    (fs::read(folder.join("model.safetensors")).unwrap(), values.map(f32::to_bits).collect())
}

/// Also on a backend that runs ahead, whose next step may fail before the last one is known.
#[test]
#[ignore = "gate"]
fn a_run_that_fails_at_any_op_is_resumed_to_the_same_bytes() {
    let text = text();
    let tokenizer = Tokenizer::train(TokenizerKind::Char, "abcdefghijklmnopq", Order::Sorted, &[]).unwrap();
    for new in [Told::new, Told::ahead] {
        let (told, folder) = (new(), Folder::absent("whole"));
        let mut steps = vec![];
        let mut whole = run(&told, &folder.0, &text, &tokenizer);
        whole
            .go(&mut |event| {
                if let TrainEvent::Saved(_) = event {
                    steps.push(told.count.load(Relaxed));
                }
                Control::Continue
            })
            .unwrap();
        let end = told.count.load(Relaxed);
        drop(whole);
        let want = left(&folder.0);
        // some ops of what is between two saves, of an evaluation and of a save, and fewer of what comes before and
        // after
        let some = |range: std::ops::Range<usize>, every| range.step_by(every);
        let first = new();
        let begun = first.counted(|| run(&first, &folder.0, &text, &tokenizer)).1;
        let [before, between] = if first.ahead.load(Relaxed) { [5, 3] } else { [41, 3] };
        for k in some(begun..steps[0], before).chain(some(steps[0]..steps[1], between)).chain(some(steps[1]..end, 41)) {
            let (told, folder) = (new(), Folder::absent("failing"));
            told.fails.store(k, Relaxed);
            let failed = run(&told, &folder.0, &text, &tokenizer).go(&mut |_| Control::Continue);
            let failed = failed.expect_err("a backend that fails ends the run");
            assert!(matches!(failed, TrainError::Backend(BackendError::Lost { .. })), "call {k}: {failed}");
            let mut again = run(&new(), &folder.0, &text, &tokenizer);
            if Run::can_resume(&folder.0) {
                again.resume(None).unwrap();
            }
            again.go(&mut |_| Control::Continue).unwrap();
            drop(again);
            assert!(left(&folder.0) == want, "call {k} of {end}");
        }
    }
}

/// What a run tells, but for times and for how long things take.
fn told_by(
    told: &Arc<Told>,
    folder: &Path,
    text: &Tokens,
    (recipe, options): (Recipe, RunOptions),
    stop: Option<usize>,
) -> (Vec<TrainEvent>, Result<Summary, String>) {
    let tokenizer = Tokenizer::train(TokenizerKind::Char, "abcdefghijklmnopq", Order::Sorted, &[]).unwrap();
    let mut trainer = trainer(told);
    trainer.recipe = recipe;
    let folder = Some(folder.to_path_buf());
    let resumes = folder.as_deref().is_some_and(Run::can_resume);
    let mut run = Run::new(
        trainer,
        folder,
        RunData { train: text, validation: text, objective: Objective::NextToken, tokenizer: &tokenizer },
    )
    .unwrap();
    run.options = options;
    if resumes {
        run.resume(None).unwrap();
    }
    let mut events = vec![];
    let done = run.go(&mut |event| {
        events.push(match event {
            TrainEvent::Step(step, _) => TrainEvent::Step(step, 0.0),
            other => other,
        });
        if stop.is_some_and(|at| events.len() > at) { Control::Stop } else { Control::Continue }
    });
    (events, done.map(|done| Summary { seconds: 0.0, tok_s: 0.0, ..done }).map_err(|error| error.to_string()))
}

/// A device that runs ahead has the next step's work before it is asked what the last one did. The run is the same:
/// what is told, in its order, losses that are too large, numbers that are none, and what is left; and so it is if it
/// is stopped.
#[test]
#[ignore = "gate"]
fn a_backend_that_runs_ahead_changes_nothing() {
    let text = text();
    let calm =
        RunOptions { eval_every: 10, save_every: 15, eval_tokens: 40, layer_stats_every: 4, ..RunOptions::default() };
    let spikes = |divergence| RunOptions { divergence, spike_sigma: 0.3, ..calm };
    let long = Recipe { steps: 45, ..recipe() };
    let restless = Recipe { learning_rate: 0.3, schedule: Schedule::Constant, ..long };
    for (what, recipe, options, said) in [
        ("calm", long, calm, ""),
        ("one micro-batch", Recipe { accumulate: 1, ..long }, calm, ""),
        ("three", Recipe { accumulate: 3, ema: 0.0, ..long }, calm, ""),
        ("no saves", long, RunOptions { save_every: 0, eval_every: 0, ..calm }, ""),
        ("noted spikes", restless, spikes(Divergence::Note), "loss spike"),
        ("a spike that stops it", Recipe { accumulate: 3, ..restless }, spikes(Divergence::Stop), "loss spike"),
        ("spikes that it goes back from", restless, spikes(Divergence::Rollback), "Back to step"),
        ("no numbers", Recipe { learning_rate: 1e30, clip: 0.0, ..long }, calm, "is not finite"),
    ] {
        let run = |told: &Arc<Told>, name: &str, stop: Option<usize>| {
            let folder = Folder::absent(&format!("ahead-{name}"));
            let first = told_by(told, &folder.0, &text, (recipe, options), stop);
            (first, folder)
        };
        let (prompt, ahead) = (Told::new(), Told::ahead());
        let (want, plain) = run(&prompt, "prompt", None);
        let (found, folder) = run(&ahead, "ahead", None);
        let told = |events: String, folder: &Folder| events.replace(&folder.0.display().to_string(), "FOLDER");
        let heard = told(format!("{want:?}"), &plain);
        assert!(heard.contains(said), "{what}: {:?}", want.1);
        let found = told(format!("{found:?}"), &folder);
        let at = heard.bytes().zip(found.bytes()).take_while(|(a, b)| a == b).count().saturating_sub(200);
        assert!(heard == found, "{what}: {:.400}\n{:.400}", &heard[at..], &found[at..]);
        assert_eq!(prompt.early.load(Relaxed), 0, "{what}");
        if said != "is not finite" {
            assert!(ahead.early.load(Relaxed) > 20, "{what}: {} early", ahead.early.load(Relaxed));
        }
        let same = |folder: &Folder| left(&folder.0) == left(&plain.0);
        assert!(want.1.is_err() && said == "is not finite" || same(&folder), "{what}");
        if want.1.is_ok() {
            for at in (0..want.0.len()).step_by(3) {
                let (stopped, folder) = run(&Told::ahead(), "stopped", Some(at));
                assert!(stopped.1.unwrap().stopped, "{what}, event {at}");
                told_by(&Told::ahead(), &folder.0, &text, (recipe, options), None).1.unwrap();
                assert!(same(&folder), "{what}, stopped at event {at}");
            }
        }
    }
}

#[test]
fn a_backend_that_waits_changes_nothing() {
    let text = text();
    let batches = batches(&text);
    let [prompt, slow] = [0, 3].map(|waits| {
        let told = Told::new();
        told.waits.store(waits, Relaxed);
        let mut trainer = trainer(&told);
        trainer.step(&batches).unwrap();
        trainer.step(&batches).unwrap();
        state(&trainer)
    });
    assert!(prompt == slow);
}

fn session(told: &Arc<Told>) -> Sequences {
    let mut session = Sequences::new(&one_block(), 3, 4, |model| {
        let own = Box::new(Cpu::new(model, 1));
        Ok(Box::new(Wrapped { own, told: told.clone() }))
    })
    .unwrap();
    let (model, backend) = session.parts();
    for param in &model.params {
        backend.write(param.region, &init::values(model, param, init::Init::Gpt2, 0.3, 5)).unwrap();
    }
    session
}

/// Two sequences that hold something, a third that is empty.
fn opened(session: &mut Sequences) -> [SequenceId; 3] {
    let ids = [(); 3].map(|()| session.open());
    session.feed(ids[0], &[1, 2, 3]).unwrap();
    session.feed(ids[1], &[4, 5]).unwrap();
    ids
}

/// Tokens and logits of all, to the bit.
fn seen(session: &Sequences, ids: &[SequenceId]) -> Vec<(Vec<u32>, Vec<u32>)> {
    let bits = |id| session.logits(id).iter().map(|v| v.to_bits()).collect();
    ids.iter().map(|id| (session.tokens(*id).to_vec(), bits(*id))).collect()
}

#[test]
fn a_decode_step_that_fails_at_any_op_changes_nothing_and_may_be_tried_again() {
    type Grow = fn(&mut Sequences, &[SequenceId; 3]) -> Result<(), DecodeError>;
    let ways: [(&str, Grow); 3] = [
        ("one token each", |s, ids| s.step(&[(ids[0], 6), (ids[1], 7)])),
        // more than one run of at most four rows: the first sequence is done when a later run fails
        ("prompts in pieces", |s, ids| {
            s.extend(&[(ids[0], &[8, 9]), (ids[2], &[1, 2, 3, 4, 5, 6, 7]), (ids[1], &[3])])
        }),
        ("a full context", |s, ids| {
            let room = s.room(ids[0]);
            if room > 0 {
                s.feed(ids[0], &vec![11; room])?;
            }
            s.slide(ids[0]).map(|_| ())
        }),
    ];
    for (what, grow) in ways {
        let told = Told::new();
        let mut whole = session(&told);
        let ids = opened(&mut whole);
        let (_, ops) = told.counted(|| grow(&mut whole, &ids).unwrap());
        assert!(ops > whole.model().ops().len(), "{what}: {ops}");
        let want = seen(&whole, &ids);
        for id in ids {
            whole.feed(id, &[2]).unwrap();
        }
        let after = seen(&whole, &ids);
        let told = Told::new();
        let mut session = session(&told);
        for k in 0..ops {
            let ids = opened(&mut session);
            let before = seen(&session, &ids);
            told.fail_in(k);
            let failed = grow(&mut session, &ids);
            assert!(
                matches!(failed, Err(DecodeError::Backend(BackendError::Lost { .. }))),
                "{what}, op {k} of {ops}: {failed:?}"
            );
            if what != "a full context" || session.room(ids[0]) > 0 {
                assert_eq!(seen(&session, &ids), before, "{what}, op {k} of {ops}");
            }
            grow(&mut session, &ids).unwrap();
            assert_eq!(seen(&session, &ids), want, "{what}, op {k} of {ops}");
            for id in ids {
                session.feed(id, &[2]).unwrap();
            }
            assert_eq!(seen(&session, &ids), after, "{what}, op {k} of {ops}");
            for id in ids {
                session.close(id);
            }
        }
    }
}

#[test]
fn a_look_inside_that_fails_says_so() {
    let model = Model::new(&one_block(), Mode::Inspect { batch: 1, context: 6 }).unwrap();
    let batch = Batch::of_sequences(vec![1, 2, 3, 4, 5, 6], vec![2, 3, 4, 5, 6, 7], 6);
    let told = Told::new();
    let look = || {
        let backend = Wrapped { own: Box::new(Cpu::new(&model, 1)), told: told.clone() };
        let trace = Trace::run(&model, Box::new(backend), &batch, Keep::Gradients)?;
        let lens = trace.lens("blocks.0.hook_resid_mid")?;
        Ok::<_, trace::TraceError>((trace.rows()?, trace::tensors(&trace, &[])?, lens))
    };
    let (want, ops) = told.counted(|| look().unwrap());
    assert!(want.1.iter().any(|t| t.name == "logits.grad"));
    for k in 0..ops {
        told.fail_in(k);
        assert!(matches!(look(), Err(trace::TraceError::Backend(BackendError::Lost { .. }))), "op {k} of {ops}");
    }
    told.fails.store(NEVER, Relaxed);
    assert_eq!(look().unwrap().1, want.1);
}

/// What a recipe says that gradients set aside take is what is set aside.
#[test]
fn the_recipe_counts_the_gradients_that_are_set_aside() {
    let text = text();
    for (accumulate, most) in [(1, 0), (2, 1), (3, 1), (4, 2), (5, 2), (7, 2), (8, 3), (9, 3), (16, 4)] {
        let told = Told::new();
        let mut trainer = trainer(&told);
        trainer.recipe.accumulate = accumulate;
        trainer.gradient(&Batches::new(&text, WindowShape::next_token(12), 2, 7).unwrap()).unwrap();
        assert_eq!((told.most.load(Relaxed), told.aside.load(Relaxed)), (most, 0), "{accumulate} micro-batches");
        let memory = trainer.recipe.memory(&trainer.model);
        let (_, bytes) = memory.iter().find(|(part, _)| *part == MemoryPart::GradientsAside).unwrap();
        assert_eq!(*bytes, most * 4 * trainer.model.program.size(MemorySpace::Grad), "{accumulate} micro-batches");
    }
}

#[test]
fn gradients_that_are_set_aside_wait_are_added_to_and_forgotten() {
    let model = Model::new(&one_block(), Mode::Train { batch: 1, context: 12 }).unwrap();
    for (n, mut backend) in backends(&model).into_iter().enumerate() {
        let run = |backend: &mut dyn Backend| {
            backend.feed(&Batch::of_sequences((0..12).collect(), (1..13).collect(), 12)).unwrap();
            backend.forward(model.body()).unwrap();
            backend.backward(model.back()).unwrap();
        };
        let all = |backend: &dyn Backend| -> Vec<f32> {
            model.params.iter().flat_map(|p| backend.read(p.region.grad()).unwrap()).collect()
        };
        let nothing = |backend: &mut dyn Backend| {
            let refused = backend.add_pushed();
            assert!(matches!(refused, Err(BackendError::Invalid { op: "add_pushed", .. })), "backend {n}: {refused:?}");
        };
        run(&mut *backend);
        let one = all(&*backend);
        nothing(&mut *backend);
        assert_eq!(all(&*backend), one, "backend {n}");
        backend.push_gradients().unwrap();
        assert!(
            one.iter().any(|g| *g != 0.0) && all(&*backend).iter().all(|g| *g == 0.0),
            "backend {n}: they begin blank"
        );
        backend.add_pushed().unwrap(); // to nothing
        assert_eq!(all(&*backend), one, "backend {n}");
        backend.push_gradients().unwrap();
        run(&mut *backend);
        backend.add_pushed().unwrap();
        let twice: Vec<f32> = one.iter().map(|g| 2.0 * g).collect();
        assert_eq!(all(&*backend), twice, "backend {n}");
        // of a stretch alone, all that were pushed: 2, then 1, to 1; they stay pushed
        backend.push_gradients().unwrap();
        run(&mut *backend);
        backend.push_gradients().unwrap();
        run(&mut *backend);
        let part = model.params[2].region.range();
        backend.add_pushed_to(part.clone()).unwrap();
        for param in &model.params {
            let times = if param.region.range() == part { 4.0 } else { 1.0 };
            let was = &one[model.params.iter().take_while(|p| p.name != param.name).map(|p| p.region.len()).sum()..];
            let want: Vec<f32> = was[..param.region.len()].iter().map(|g| times * g).collect();
            assert_eq!(backend.read(param.region.grad()).unwrap(), want, "backend {n}: {}", param.name);
        }
        backend.push_gradients().unwrap();
        backend.clear().unwrap();
        nothing(&mut *backend);
        assert!(all(&*backend).iter().all(|g| *g == 0.0), "backend {n}");
    }
}

/// Backends for a model, those whose threads share ops and those whose threads take sequences.
fn backends(model: &Model) -> Vec<Box<dyn Backend>> {
    let mut all: Vec<Box<dyn Backend>> = vec![Box::new(Reference::new(model))];
    all.extend([1, 3].map(|threads| Box::new(Cpu::new(model, threads)) as Box<dyn Backend>));
    for backend in &mut all {
        for param in &model.params {
            backend.write(param.region, &init::values(model, param, init::Init::Gpt2, 0.3, 5)).unwrap();
        }
    }
    all
}

#[test]
fn a_batch_that_does_not_fit_reaches_no_kernel() {
    let model = Model::new(&one_block(), Mode::Train { batch: 3, context: 4 }).unwrap();
    let batch = || Batch::of_sequences((0..12).collect(), (1..13).collect(), 4);
    type Alter = fn(&mut Batch);
    let changes: [(&str, Alter); 8] = [
        ("spans that overlap", |b| b.spans[1] = b.spans[0]),
        ("a span without rows", |b| b.spans[2] = Span { rows: 0, ..b.spans[2] }),
        ("a span that ends outside", |b| b.spans[2].rows = 5),
        ("a position outside the table", |b| b.positions[3] = 12),
        ("a token outside the vocabulary", |b| b.tokens[11] = 17),
        ("a target outside the vocabulary", |b| b.targets[0] = 17),
        ("a longer sequence", |b| *b = Batch::of_sequences((0..12).collect(), vec![IGNORE; 12], 12)),
        ("more rows", |b| *b = Batch::of_sequences(vec![0; 16], vec![0; 16], 4)),
    ];
    for (n, mut backend) in backends(&model).into_iter().enumerate() {
        let run = |backend: &mut dyn Backend| {
            backend.clear().unwrap();
            backend.forward(model.body()).unwrap();
            backend.backward(model.back()).unwrap();
            backend.read(model.losses().unwrap()).unwrap()
        };
        backend.feed(&batch()).unwrap();
        let want = run(&mut *backend);
        for (what, change) in changes {
            let mut wrong = batch();
            change(&mut wrong);
            let refused = backend.feed(&wrong);
            assert!(matches!(refused, Err(BackendError::Batch(_))), "backend {n}, {what}: {refused:?}");
            assert_eq!(run(&mut *backend), want, "backend {n}, {what}: it has the rows it had");
        }
    }
    // what a cache adds
    let model = Model::new(&one_block(), Mode::Decode { rows: 4, outputs: 2, blocks: 2 }).unwrap();
    for mut backend in backends(&model) {
        let batch = || {
            let mut batch = Batch::of_sequences(vec![1, 2], vec![], 1);
            (batch.blocks, batch.outputs) = (vec![1, 0], vec![0, 1]);
            batch.spans[1].table = 1;
            batch
        };
        backend.feed(&batch()).unwrap();
        backend.forward(model.ops()).unwrap();
        let changes: [fn(&mut Batch); 5] = [
            |b| b.spans[1].table = 2,
            |b| b.spans[1].table = 0,
            |b| (b.spans[1].past, b.spans[1].valid) = (12, 13),
            |b| b.blocks[1] = 2,
            |b| b.outputs[1] = 2,
        ];
        for change in changes {
            let mut wrong = batch();
            change(&mut wrong);
            assert!(matches!(backend.feed(&wrong), Err(BackendError::Batch(_))), "{wrong:?}");
        }
    }
}

/// Values come in any type that a backend takes and lie in either order: exactly what they are. The backends: the
/// judge, one whose weights lie plain, one that packs them.
#[test]
fn values_of_every_type_are_taken_exactly() {
    let train = Model::new(&one_block(), Mode::Train { batch: 1, context: 12 }).unwrap();
    let decode = Model::new(&one_block(), Mode::Decode { rows: 2, outputs: 1, blocks: 1 }).unwrap();
    let all: Vec<(Box<dyn Backend>, &Model)> = vec![
        (Box::new(Reference::new(&train)), &train),
        (Box::new(Cpu::new(&train, 2)), &train),
        (Box::new(Cpu::new(&decode, 2)), &decode),
    ];
    for (n, (mut backend, model)) in all.into_iter().enumerate() {
        for name in ["embed.weight", "blocks.0.mlp.in.weight", "ln_final.weight"] {
            let region = model.param(name).unwrap().region;
            // of each type the same numbers, which all of them have
            let numbers: Vec<f32> = (0..region.len()).map(|i| (i % 251) as f32 - 125.0).collect();
            let halves =
                |bits: fn(f32) -> u16| -> Vec<u8> { numbers.iter().flat_map(|v| bits(*v).to_ne_bytes()).collect() };
            let f16 = |v: f32| match v.to_bits() {
                bits if v == 0.0 => (bits >> 16) as u16,
                bits => (bits >> 16 & 0x8000) as u16 | ((bits >> 13 & 0x3_ffff) - (112 << 10)) as u16,
            };
            let stored = [
                (Element::F32, numbers.iter().flat_map(|v| v.to_ne_bytes()).collect()),
                (Element::Bf16, halves(|v| (v.to_bits() >> 16) as u16)),
                (Element::F16, halves(f16)),
            ];
            for (element, bytes) in &stored {
                for major in [Major::Rows, Major::Columns] {
                    backend.write(region, &vec![f32::NAN; region.len()]).unwrap();
                    backend.upload(region, Values { element: *element, bytes, major }).unwrap();
                    let place = |i: usize| match major {
                        Major::Rows => i,
                        Major::Columns => i % region.cols * region.rows + i / region.cols,
                    };
                    let want: Vec<f32> = (0..region.len()).map(|i| numbers[place(i)]).collect();
                    assert!(backend.read(region).unwrap() == want, "backend {n}: {name} of {element}, {major:?}");
                }
                let short = Values { element: *element, bytes: &bytes[..bytes.len() - 4], major: Major::Rows };
                let refused = backend.upload(region, short);
                assert!(matches!(refused, Err(BackendError::Invalid { op: "upload", .. })), "{refused:?}");
            }
            // blocks of whole numbers, which scales of 0.5 and 1 make of halves and of themselves
            let block = |i: usize| {
                [0, if i.is_multiple_of(2) { 0x38 } else { 0x3c }]
                    .into_iter()
                    .chain((0..32).map(move |q| (i + q) as u8))
            };
            let bytes: Vec<u8> = (0..region.len().div_ceil(32)).flat_map(block).collect();
            let given = Values { element: Element::Blocks(Quant::Q8_0), bytes: &bytes, major: Major::Rows };
            let taken = backend.upload(region, given);
            if region.len().is_multiple_of(32) {
                let want =
                    |i: usize| f32::from((i / 32 + i % 32) as i8) * if (i / 32).is_multiple_of(2) { 0.5 } else { 1.0 };
                let want: Vec<f32> = (0..region.len()).map(want).collect();
                assert!(backend.read(region).unwrap() == want, "backend {n}: {name} of blocks");
            } else {
                assert!(matches!(taken, Err(BackendError::Invalid { op: "upload", .. })), "{taken:?}");
            }
        }
    }
}

/// What a file has goes to the backend as it lies, where type and order fit; what does not fit is made of it.
#[test]
fn a_loader_hands_on_what_lies_in_its_file() {
    use limpid::checkpoint::{self, Checkpoint, Format, ModelData, store::Dtype};
    let config = &Config { d_model: 32, n_head: 2, d_ff: 64, ..one_block() };
    let model = Model::new(config, Mode::Inspect { batch: 1, context: 1 }).unwrap();
    let values = |param: &limpid::model::Param| init::values(&model, param, init::Init::Gpt2, 0.3, 5);
    let source = ModelData::new(config, &values);
    let (f32, bf16, f16) = (Element::F32, Element::Bf16, Element::F16);
    let cases = [
        (Format::Limpid, Dtype::F32, f32, Major::Rows),
        (Format::Limpid, Dtype::Bf16, bf16, Major::Rows),
        (Format::HuggingFace, Dtype::F16, f16, Major::Columns),
        (Format::Gguf, Dtype::F16, f16, Major::Rows),
        (Format::Gguf, Dtype::Blocks(Quant::Q8_0), Element::Blocks(Quant::Q8_0), Major::Rows),
    ];
    for (n, (format, dtype, element, major)) in cases.into_iter().enumerate() {
        let (folder, told) = (Folder::absent(&format!("uploads-{n}")), Told::new());
        checkpoint::save(&folder.0, format, &dtype, &source).unwrap();
        let opened = Checkpoint::open(&folder.0).unwrap();
        // a form may have parameters that this model lacks
        let model = Model::new(&opened.config, Mode::Inspect { batch: 1, context: 1 }).unwrap();
        let mut backend = Wrapped { own: Box::new(Cpu::new(&model, 1)), told: told.clone() };
        opened.load(&model, &mut backend).unwrap();
        if !format.is_folder() {
            fs::remove_file(&folder.0).unwrap();
        }
        let inside = model.param("blocks.0.mlp.in.weight").unwrap();
        let uploads = told.uploads.lock().unwrap();
        assert_eq!(uploads.len(), model.params.len(), "{format} {dtype}");
        let found = uploads.iter().find(|(region, ..)| *region == inside.region).unwrap();
        assert_eq!((found.1, found.2), (element, major), "{format} {dtype}");
        for param in &model.params {
            assert!(backend.read(param.region).unwrap() == *opened.values(&model, param).unwrap(), "{}", param.name);
        }
    }
}

/// Memory is counted by what its elements are, and a backend that has none of that type says so.
#[test]
fn a_memory_of_another_type_is_counted_and_refused() {
    let model = Model::new(&one_block(), Mode::Score { batch: 1, context: 12 }).unwrap();
    let before = model.memory();
    let model = model.with_element(MemorySpace::Param, Element::Bf16);
    for ((part, bytes), (_, before)) in model.memory().into_iter().zip(before) {
        assert_eq!(bytes, if part == MemoryPart::Parameters { before / 2 } else { before }, "{part}");
    }
    let refused = Cpu::start(&model, 1, limpid::numeric::simd::Level::best(), Precision::F32).map(drop);
    let said = refused.unwrap_err().to_string();
    assert_eq!(said, "this backend cannot do this model: it has no memory of bf16, only of f32");
}

/// A ticket's values are those of the request, whatever was written since, and are fetched once.
#[test]
fn a_ticket_has_the_values_of_its_request() {
    let model = Model::new(&one_block(), Mode::Train { batch: 1, context: 12 }).unwrap();
    let region = model.param("blocks.0.mlp.in.weight").unwrap().region;
    let other = model.param("ln_final.weight").unwrap().region;
    for mut backend in backends(&model) {
        let fetch = |backend: &dyn Backend, ticket, region: Region| {
            let mut values = vec![f32::NAN; region.len()];
            backend.fetch(ticket, &mut values).map(|()| values)
        };
        let (old, small) = (backend.read(region).unwrap(), backend.read(other).unwrap());
        let [first, second] = [region, other].map(|region| backend.request(region).unwrap());
        backend.write(region, &vec![1.0; region.len()]).unwrap();
        backend.write(other, &vec![2.0; other.len()]).unwrap();
        let third = backend.request(region).unwrap();
        assert!(fetch(&*backend, second, other).unwrap() == small);
        assert!(fetch(&*backend, third, region).unwrap() == vec![1.0; region.len()]);
        let spent = Ticket(first.0);
        assert!(fetch(&*backend, first, region).unwrap() == old);
        let again = [spent, backend.request(region).unwrap()].map(|ticket| fetch(&*backend, ticket, other));
        for refused in again {
            assert!(matches!(refused, Err(BackendError::Invalid { op: "fetch", .. })), "{refused:?}");
        }
    }
}

/// A report that is asked for after the next backward is the one that was asked for at once; so is that of an update
/// that was skipped.
#[test]
fn a_report_may_come_late() {
    let model = Model::new(&one_block(), Mode::Train { batch: 1, context: 12 }).unwrap();
    let (groups, rule) = (model.update_groups(0.1, Method::AdamW), recipe().rule(0.1, 1));
    let watch = || vec![Change::new(model.param("blocks.0.mlp.in.weight").unwrap().region.range())];
    let step = |backend: &mut dyn Backend| {
        backend.feed(&Batch::of_sequences((0..12).collect(), (1..13).collect(), 12)).unwrap();
        backend.forward(model.body()).unwrap();
        backend.backward(model.back()).unwrap();
    };
    let prompt = backends(&model);
    for (mut prompt, mut late) in prompt.into_iter().zip(backends(&model)) {
        assert!(matches!(late.report(&mut []), Err(BackendError::Invalid { op: "report", .. })), "none was begun");
        let (mut seen, mut changes) = (watch(), watch());
        step(&mut *prompt);
        let report = prompt.update(&groups, &rule, &mut seen).unwrap();
        step(&mut *prompt);
        step(&mut *late);
        late.begin_update(&groups, &rule, &changes).unwrap();
        step(&mut *late);
        assert!(late.report(&mut changes).unwrap() == report && changes == seen && seen[0].update > 0.0);
        let weights = |backend: &dyn Backend| common::weights(&model, backend);
        assert!(weights(&*prompt) == weights(&*late));

        let region = model.param("ln_final.weight").unwrap().region;
        let before = late.read(region).unwrap();
        late.write(region.grad(), &vec![f32::INFINITY; region.len()]).unwrap();
        late.begin_update(&groups, &rule, &[]).unwrap();
        step(&mut *late);
        assert!(!late.report(&mut []).unwrap().finite);
        assert!(late.read(region).unwrap() == before);

        // and one whose losses are too large, or not finite
        let losses = model.losses().unwrap();
        for (share, held) in [(0.99, true), (f64::NEG_INFINITY, true), (1.01, false)] {
            step(&mut *late);
            let rule = Rule { most_loss: Some((losses, share * late.sum(losses).unwrap())), ..rule };
            let report = late.update(&groups, &rule, &mut []).unwrap();
            assert!(report.finite && report.held_back == held && (late.read(region).unwrap() == before) == held);
            assert!(late.read(region.grad()).unwrap().iter().all(|g| *g == 0.0), "they are cleared");
        }
        step(&mut *late);
        late.write(losses, &vec![f32::INFINITY; losses.len()]).unwrap();
        let rule = Rule { most_loss: Some((losses, f64::MAX)), ..rule };
        assert!(late.update(&groups, &rule, &mut []).unwrap().held_back);
    }
}

/// Alters the first op of a kind in a list of ops.
macro_rules! first {
    ($ops:expr, $kind:ident { $($field:ident),* } => $alter:expr) => {
        for op in $ops {
            if let Op::$kind { $($field,)* .. } = op {
                $alter;
                break;
            }
        }
    };
}

/// The ops of the forward.
fn ops(draft: &mut UncheckedProgram) -> impl Iterator<Item = &mut Op> {
    draft.ops.iter_mut()
}

/// The backward of the first op of a kind, in the order of the backward.
fn back<'a>(draft: &'a mut UncheckedProgram, kind: &str) -> &'a mut Back {
    let of = |pass: &'a mut Pass| if let Pass::Back(back) = pass { Some(back) } else { None };
    draft.back.iter_mut().filter_map(of).find(|back| back.op.name() == kind).unwrap()
}

/// Moves a tensor in all lists.
fn relocate(draft: &mut UncheckedProgram, from: Region, to: usize) {
    let back = draft.back.iter_mut().map(|pass| match pass {
        Pass::Recompute(op) => op,
        Pass::Back(back) => &mut back.op,
    });
    for op in draft.ops.iter_mut().chain(back) {
        op.operands().filter(|(_, region)| **region == from).for_each(|(_, region)| region.at = to);
    }
}

/// A list with anything wrong in it is no program, so no backend ever sees it. Each change alone is refused, for its
/// own reason.
#[test]
fn what_is_wrong_in_a_list_makes_it_no_program() {
    type Alter = fn(&mut UncheckedProgram);
    let train: &[(&str, Alter)] = &[
        ("shapes disagree", |d| first!(ops(d), Linear { w } => w.rows -= 1)),
        ("shapes disagree", |d| first!(ops(d), Linear { x } => x.cols += 1)),
        ("shapes disagree", |d| first!(ops(d), Linear { b, w } => *b = Some(*w))),
        ("shapes disagree", |d| first!(ops(d), Norm { stats } => stats.cols = 1)),
        ("shapes disagree", |d| first!(ops(d), Attend { heads } => heads.n_head = 0)),
        ("shapes disagree", |d| first!(ops(d), Attend { lse } => lse.cols += 1)),
        ("shapes disagree", |d| first!(ops(d), Classify { w } => w.rows += 1)),
        ("ends outside", |d| first!(ops(d), Activate { y } => y.at = usize::MAX - 3)),
        ("ends outside", |d| d.sizes[MemorySpace::Act as usize] -= 64),
        ("ends outside", |d| d.sizes[MemorySpace::Param as usize] = 64),
        ("ends outside", |d| d.sizes[MemorySpace::Grad as usize] = 64),
        ("ends outside", |d| d.sizes[MemorySpace::ActGrad as usize] = 64),
        ("lies in a memory", |d| first!(ops(d), Norm { stats } => stats.space = MemorySpace::Act)),
        ("lies in a memory", |d| first!(ops(d), Linear { y } => y.space = MemorySpace::Param)),
        ("lies in a memory", |d| first!(ops(d), Linear { w } => w.space = MemorySpace::Act)),
        ("lies in a memory", |d| d.params[0].space = MemorySpace::Const),
        ("overlap", |d| first!(ops(d), Activate { x, y } => y.at = x.at)),
        ("overlap", |d| first!(ops(d), Activate { x, y } => y.at = x.at + 64)),
        ("overlap", |d| first!(ops(d), Linear { x, y } => y.at = x.at)),
        ("overlap", |d| first!(ops(d), Add { a, b } => *a = *b)),
        ("overlap", |d| d.params[1].at = d.params[0].at),
        ("does not have the rows", |d| d.limits.rows += 1),
        ("does not have the rows", |d| d.limits.vocab_size += 1),
        ("does not have the rows", |d| d.limits.context += 1),
        ("does not have the rows", |d| first!(ops(d), Norm { x } => x.active = ActiveRows::All)),
        ("does not have the rows", |d| first!(ops(d), Linear { w } => w.active = ActiveRows::Rows)),
        ("is not a parameter", |d| first!(ops(d), Linear { w } => w.at += 64)),
        ("is not a parameter", |d| d.params.truncate(1)),
        ("is two of its parameters", |d| first!(ops(d), Norm { gain, offset } => *offset = *gain)),
        ("has no KV cache", |d| d.limits.blocks = Some(1)),
        ("before it is written, or after", |d| d.ops.swap(0, 1)),
        ("before it is written, or after", |d| _ = d.ops.remove(3)),
        ("before it is written, or after", |d| _ = d.back.remove(0)),
        ("before it is written, or after", |d| back(d, "classify").dx[0].as_mut().unwrap().add = true),
        ("before it is written, or after", |d| {
            // what the feed-forward makes lies where the stream did, of which the backward of the first norm is made
            let (mut stream, mut made) = (None, None);
            first!(ops(d), Norm { x } => stream = Some(*x));
            first!(ops(d), Activate { y } => made = Some(*y));
            relocate(d, made.unwrap(), stream.unwrap().at);
        }),
        ("is not the backward of op 1000", |d| back(d, "linear").index = 1000),
        ("is not the backward of op", |d| back(d, "linear").index += 1),
        ("is not the backward of op", |d| first!([&mut back(d, "add").op], Add { scale } => *scale = 2.0)),
        ("gradient of its output", |d| back(d, "linear").dy = None),
        ("gradient of its output", |d| back(d, "linear").dy.as_mut().unwrap().rows -= 1),
        ("gradient of its output", |d| back(d, "linear").dy.as_mut().unwrap().space = MemorySpace::Act),
        ("gradient of its output", |d| back(d, "classify").dy = back(d, "linear").dy),
        ("gradient of its input", |d| back(d, "linear").dx[0].as_mut().unwrap().region.cols -= 1),
        ("gradient of its input", |d| back(d, "linear").dx[1] = back(d, "linear").dx[0]),
        ("gradient of its input", |d| back(d, "linear").dx[0].as_mut().unwrap().region.space = MemorySpace::Grad),
        ("gradient of its input", |d| back(d, "linear").dx[0].as_mut().unwrap().region.active = ActiveRows::All),
        ("overlap", |d| {
            let step = back(d, "linear");
            step.dx[0].as_mut().unwrap().region.at = step.dy.unwrap().at;
        }),
        ("ends outside", |d| back(d, "linear").dx[0].as_mut().unwrap().region.at = 1 << 40),
        ("gradient of its watched", |d| back(d, "norm").watched[0] = back(d, "norm").dy),
    ];
    let inspect: &[(&str, Alter)] = &[
        ("gradient of its watched", |d| back(d, "attend").watched[2] = None),
        ("gradient of its input", |d| back(d, "norm").dx[0] = None),
        ("shapes disagree", |d| first!(ops(d), Attend { scores } => *scores = None)),
        ("shapes disagree", |d| first!(ops(d), Attend { pattern } => pattern.as_mut().unwrap().cols -= 4)),
        ("lies in a memory", |d| first!(ops(d), Norm { scale } => scale.as_mut().unwrap().space = MemorySpace::Act)),
        ("overlap", |d| first!(ops(d), Norm { stats, scale } => scale.as_mut().unwrap().at = stats.at)),
    ];
    let decode: &[(&str, Alter)] = &[
        ("has no KV cache", |d| first!(ops(d), Attend { cache } => *cache = None)),
        ("has a KV cache", |d| d.limits.blocks = None),
        ("does not have the rows", |d| first!(ops(d), Attend { cache } => cache.as_mut().unwrap().rows -= 1)),
        ("does not have the rows", |d| d.limits.blocks = Some(3)),
        ("does not have the rows", |d| d.limits.outputs += 1),
        ("does not have the rows", |d| first!(ops(d), Gather { y } => y.active = ActiveRows::Rows)),
        (
            "lies in a memory",
            |d| first!(ops(d), Attend { cache } => cache.as_mut().unwrap().space = MemorySpace::Param),
        ),
    ];
    let (batch, context) = (2, 12);
    for (mode, cases) in [
        (Mode::Train { batch, context }, train),
        (Mode::Inspect { batch, context }, inspect),
        (Mode::Decode { rows: 4, outputs: 2, blocks: 2 }, decode),
    ] {
        let model = Model::new(&one_block(), mode).unwrap();
        assert!(Program::new(model.program.draft()).is_ok(), "{mode:?}: as it is");
        for (i, (what, alter)) in cases.iter().enumerate() {
            let mut draft = model.program.draft();
            alter(&mut draft);
            let refused = Program::new(draft).map_or_else(|error| error.to_string(), |_| "a program".into());
            assert!(refused.contains(what), "{mode:?}, case {i}: `{refused}` does not say `{what}`");
        }
    }
    let mut draft = Model::new(&one_block(), Mode::Score { batch, context }).unwrap().program.draft();
    draft.ops[2] = draft.ops[1];
    draft.ops.swap(0, 2);
    assert!(Program::new(draft).unwrap_err().to_string().starts_with("norm (entry 0 of the forward): it reads Region"));
}

#[test]
fn a_backend_runs_the_model_that_it_was_made_for() {
    let [model, other] = [(); 2].map(|()| Model::new(&one_block(), Mode::Train { batch: 1, context: 12 }).unwrap());
    for mut backend in backends(&model) {
        backend.feed(&Batch::of_sequences((0..12).collect(), (1..13).collect(), 12)).unwrap();
        let refused = [backend.forward(other.body()), backend.backward(other.back().part(..1))];
        for (verb, refused) in ["forward", "backward"].into_iter().zip(refused) {
            assert!(matches!(refused, Err(BackendError::Invalid { op, .. }) if op == verb), "{refused:?}");
        }
        backend.forward(model.clone().body()).unwrap();
        backend.backward(model.back()).unwrap();
    }
}

#[test]
fn a_slice_knows_its_program_and_its_entries() {
    let model = Model::new(&one_block(), Mode::Train { batch: 1, context: 12 }).unwrap();
    let (ops, back) = (model.ops(), model.back());
    assert_eq!(ops.part(1..).part(..2)[..], model.program.forward(1..=2)[..]);
    assert_eq!(ops.part(1..).part(..2)[..], ops[1..3]);
    assert!(ops.each().enumerate().all(|(i, (op, alone))| *op == ops[i] && alone[..] == ops[i..i + 1]));

    assert_eq!(model.clone().ops().program(), ops.program(), "a clone is the same program");
    assert_eq!([ops.part(..2).program(), back.program()], [ops.program(); 2]);
    let again = Program::new(model.program.draft()).unwrap();
    assert_ne!(again.forward(..).program(), ops.program());
}

/// Two entries that add to one gradient add one after the other, whoever shares the work out.
#[test]
fn no_two_tasks_add_to_one_gradient() {
    let config = Config { d_model: 64, n_head: 2, d_ff: 256, ..tiny() };
    let model = Model::new(&config, Mode::Train { batch: 6, context: 12 }).unwrap();
    assert!(model.program.keeps_gradient_inputs(), "threads take sequences");
    let ids = |site| (0..72).map(|i| random::below(3, site, i, 17) as u32).collect();
    let batch = Batch::of_sequences(ids(1), ids(2), 12);
    let weight = model.param("blocks.0.mlp.in.weight").unwrap().region;
    let of = |op: &Op| matches!(op, Op::Linear { w, .. } if *w == weight);
    let at = model.back().iter().position(|pass| pass.back().is_some_and(|back| of(&back.op))).unwrap();
    let mut draft = model.program.draft();
    draft.back.insert(at, draft.back[at]);
    let model = model.with_program(draft).unwrap();
    let both = model.program.backward(at..at + 2);
    assert!(!both.are_apart() && both.part(..1).are_apart() && both.part(1..).are_apart());
    assert!(!model.back().are_apart() && model.program.backward(at + 1..).are_apart());
    let mut found = vec![];
    for (n, mut backend) in backends(&model).into_iter().enumerate() {
        backend.feed(&batch).unwrap();
        backend.forward(model.body()).unwrap();
        backend.backward(model.back()).unwrap();
        let mut twice = |lists: &[Passes]| {
            backend.clear().unwrap();
            lists.iter().for_each(|list| backend.backward(*list).unwrap());
            backend.read(weight.grad()).unwrap()
        };
        let want = twice(&[both.part(..1), both.part(1..)]);
        for _ in 0..20 {
            assert!(twice(&[both]) == want, "backend {n}");
        }
        found.push(want);
    }
    assert!(found[1] == found[2], "and the bits are those of one thread");
    let norm = |v: &[f32]| v.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
    assert!((norm(&found[0]) / norm(&found[1]) - 1.0).abs() < 1e-4 && norm(&found[0]) > 0.0);
}

#[test]
fn an_update_takes_each_parameter_once() {
    let model = Model::new(&one_block(), Mode::Train { batch: 1, context: 12 }).unwrap();
    let groups = model.update_groups(0.1, Method::Muon);
    let matrix = groups.iter().find(|group| group.matrix.is_some()).unwrap();
    let end = model.program.size(MemorySpace::Param);
    let outside = ParamGroup { range: end - 2..end + 2, decay: 0.0, matrix: None };
    let skewed = ParamGroup { matrix: Some((3, 5)), ..matrix.clone() };
    let rule = recipe().rule(0.1, 1);
    for (n, mut backend) in backends(&model).into_iter().enumerate() {
        backend.feed(&Batch::of_sequences((0..12).collect(), (1..13).collect(), 12)).unwrap();
        backend.forward(model.body()).unwrap();
        backend.backward(model.back()).unwrap();
        let all = |backend: &dyn Backend| common::weights(&model, backend);
        let before = all(&*backend);
        for wrong in [vec![matrix.clone(), matrix.clone()], vec![outside.clone()], vec![skewed.clone()]] {
            for refused in [backend.update(&wrong, &rule, &mut []).map(|_| ()), backend.average(&wrong, 0.5)] {
                assert!(matches!(refused, Err(BackendError::Invalid { .. })), "backend {n}: {refused:?}");
            }
        }
        assert!(all(&*backend) == before, "backend {n}: nothing was changed, the gradient waits");
        backend.update(&groups, &rule, &mut []).unwrap();
        assert!(all(&*backend) != before);
    }
    let inspected = Model::new(&one_block(), Mode::Inspect { batch: 1, context: 12 }).unwrap();
    let refused = Cpu::new(&inspected, 1).update(&groups, &rule, &mut []);
    assert!(matches!(refused, Err(BackendError::NotSupported { op: "update", .. })), "{refused:?}");
}

#[test]
fn documents_in_a_window_fit() {
    let model = Model::new(&one_block(), Mode::Train { batch: 2, context: 12 }).unwrap();
    let text = text();
    let documents = Documents { whole: false, cross: false };
    let batches = Batches::new(&text, WindowShape { documents, ..WindowShape::next_token(12) }, 2, 7).unwrap();
    let mut batch = Batch::default();
    batches.fill(0, 0, &mut batch);
    backends(&model).into_iter().for_each(|mut backend| backend.feed(&batch).unwrap());
}

/// Muon's room is asked for before anything is changed, so the same update is done when there is memory. In a process
/// of its own, whose memory is limited once its backend is there.
#[cfg(target_os = "linux")]
#[test]
fn an_update_that_is_refused_memory_changes_nothing() {
    use std::process::Command;
    if !common::alone("seam::an_update_that_is_refused_memory_changes_nothing", "refused, and done") {
        return;
    }
    let limit = |kilobytes: Option<u64>| {
        let soft = kilobytes.map_or("unlimited".into(), |n| (1024 * n).to_string());
        let arguments = [format!("--pid={}", std::process::id()), format!("--as={soft}:unlimited")];
        assert!(Command::new("prlimit").args(arguments).status().unwrap().success());
    };
    let config = Config { d_model: 512, n_head: 4, d_ff: 2048, ..tiny() };
    let model = Model::new(&config, Mode::Train { batch: 1, context: 12 }).unwrap();
    let mut cpu = Cpu::new(&model, 1);
    for param in &model.params {
        cpu.write(param.region, &init::values(&model, param, init::Init::Gpt2, 0.02, 5)).unwrap();
    }
    cpu.feed(&Batch::of_sequences((0..12).collect(), (1..13).collect(), 12)).unwrap();
    cpu.forward(model.body()).unwrap();
    cpu.backward(model.back()).unwrap();
    let all = |cpu: &Cpu| -> Vec<Vec<f32>> {
        model.params.iter().flat_map(|p| [p.region, p.region.grad()]).map(|region| cpu.read(region).unwrap()).collect()
    };
    let (groups, rule, before) = (model.update_groups(0.1, Method::Muon), recipe().rule(0.1, 1), all(&cpu));
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")?.split_whitespace().next()).unwrap();
    limit(Some(size.parse::<u64>().unwrap() + 4096)); // 4 MB, and the room of a matrix takes 10
    let refused = cpu.update(&groups, &rule, &mut []);
    limit(None);
    assert!(matches!(refused, Err(BackendError::Memory { op: "update", .. })), "{refused:?}");
    assert!(all(&cpu) == before, "weights are as they were, and the gradient waits");
    assert!(cpu.update(&groups, &rule, &mut []).unwrap().finite);
    println!("refused, and done");
}

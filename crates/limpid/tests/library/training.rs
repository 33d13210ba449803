//! Training as a whole: accumulation, resuming, what a bad number does, and that a step allocates nothing.

use crate::common::counting::allocations;
use crate::common::folder::Folder;
use crate::common::{alone, assert_close, tiny};
use limpid::backend::{Backend, Clock, Cpu, Reference, Result, Wrapper};
use limpid::config::{Config, Dropout, NormKind, NormPlace};
use limpid::data::Tokens;
use limpid::model::init::Init;
use limpid::model::{Mode, Model};
use limpid::numeric::random;
use limpid::ops::{Batch, Pass, Passes, Region};
use limpid::optimizer::Change;
use limpid::optimizer::Method;
use limpid::tokenizer::{Order, Tokenizer, TokenizerKind};
use limpid::train::ranks::threads::{ThreadRank, threads};
use limpid::train::{
    Batches, Control, Divergence, Documents, Objective, PreflightError, Ranks, RanksError, Recipe, Reduction, Run,
    RunData, RunOptions, Summary, TrainError, TrainEvent, Trainer, WindowShape, Windows, lr_finder, preflight,
};
use std::fs;
use std::ops::Range;
use std::path::Path;

/// Whether `f` comes to allocate nothing. On a busy machine a thread may take its first task late, and makes its own
/// memory then.
fn allocates_nothing(mut f: impl FnMut()) -> bool {
    (0..3).any(|_| allocations(&mut f) == 0)
}

fn ids() -> Vec<u32> {
    (0..600).map(|i| random::below(1, 0, i / 3, 17) as u32).collect()
}

fn text() -> Tokens {
    Tokens::new(ids())
}

fn trainer(config: &Config, recipe: Recipe) -> Trainer {
    let model = Model::new(config, Mode::Train { batch: recipe.batch_size, context: 12 }).unwrap();
    let backend = Box::new(Cpu::new(&model, 2));
    Trainer::new(model, backend, recipe).unwrap()
}

fn recipe() -> Recipe {
    Recipe { steps: 12, batch_size: 4, warmup_steps: 3, ..Recipe::default() }
}

fn options() -> RunOptions {
    RunOptions { eval_every: 4, save_every: 4, eval_tokens: 40, ..RunOptions::default() }
}

fn with(recipe: Recipe) -> (Recipe, RunOptions) {
    (recipe, options())
}

fn weights(trainer: &Trainer) -> Vec<u32> {
    trainer.model.params.iter().flat_map(|p| trainer.backend.read(p.region).unwrap()).map(f32::to_bits).collect()
}

/// 8 x 1, 2 x 4 and 1 x 8 micro-batches of the same rows are the same step: gradients agree to rounding, on both
/// objectives, where the micro-batches count different numbers of tokens.
#[test]
fn accumulation_is_weighed_by_token() {
    let config = Config { dropout: Dropout::NONE, mask: limpid::config::Mask::Bidirectional, ..tiny() };
    let text = text();
    for objective in [Objective::NextToken, Objective::Masked { mask: 16, vocab_size: 17, segments: false }] {
        // the rows of the 8 micro-batches of one sequence, put together otherwise
        let batches = Batches::new(&text, WindowShape::new(12, objective), 1, 9).unwrap();
        let rows: Vec<_> = (0..8)
            .map(|micro| {
                let mut batch = Default::default();
                batches.fill(0, micro, &mut batch);
                batch
            })
            .collect();
        let counted: usize = rows.iter().map(limpid::train::count_targets).sum();
        let gradients = |groups: usize| {
            let size = 8 / groups;
            let model = Model::new(&config, Mode::Train { batch: size, context: 12 }).unwrap();
            let mut reference = Reference::new(&model);
            for param in &model.params {
                let values: Vec<f32> = (0..param.region.len() as u64)
                    .map(|i| 0.3 * random::normal(2, random::site(&param.name), i) as f32)
                    .collect();
                reference.write(param.region, &values).unwrap();
            }
            for group in rows.chunks(size) {
                let tokens = group.iter().flat_map(|b| b.tokens.clone()).collect();
                let targets = group.iter().flat_map(|b| b.targets.clone()).collect();
                let mut batch = limpid::ops::Batch::of_sequences(tokens, targets, 12);
                batch.weight = 1.0 / counted as f32;
                reference.feed(&batch).unwrap();
                reference.forward(model.body()).unwrap();
                reference.backward(model.back()).unwrap();
            }
            model.params.iter().flat_map(|p| reference.exact(p.region.grad()).to_vec()).collect::<Vec<f64>>()
        };
        let (one, two, eight) = (gradients(1), gradients(4), gradients(8));
        for (a, b) in one.iter().zip(&two).chain(one.iter().zip(&eight)) {
            assert!((a - b).abs() < 1e-12, "{a} {b}");
        }
        assert!(one.iter().any(|g| g.abs() > 1e-3));
    }
}

#[test]
fn the_trainer_weighs_micro_batches_by_their_tokens() {
    let text = text();
    let losses = |batch_size: usize, accumulate: usize, reduction| {
        let recipe = Recipe { batch_size, accumulate, reduction, clip: 0.0, init_std: 0.02, ..recipe() };
        let batches = Batches::new(
            &text,
            WindowShape::new(12, Objective::Masked { mask: 16, vocab_size: 17, segments: false }),
            batch_size,
            1,
        )
        .unwrap();
        let config = Config { mask: limpid::config::Mask::Bidirectional, ..tiny() };
        let step = trainer(&config, recipe).step(&batches).unwrap();
        step.loss.zip(step.norm).unwrap()
    };
    // whatever the grouping, the loss is a mean over counted tokens (near ln 17), and a sum's gradient is larger
    for (b, a) in [(8, 1), (2, 4), (1, 8)] {
        assert!((losses(b, a, Reduction::Mean).0 - 17f64.ln()).abs() < 0.1);
        assert!(losses(b, a, Reduction::Sum).1 > 3.0 * losses(b, a, Reduction::Mean).1);
    }
}

/// The gradients of all parameters, and the sum of losses, to the bit.
type Sums = (Vec<u32>, u64);

fn gradients(model: &Model, backend: &dyn Backend) -> Vec<f32> {
    model.params.iter().flat_map(|p| backend.read(p.region.grad()).unwrap()).collect()
}

/// What micro-batches `own` of the first step come to.
fn sums(mut trainer: Trainer, batches: &Batches, own: Range<u64>) -> Sums {
    let loss = trainer.branch(batches, own).unwrap().loss;
    (gradients(&trainer.model, &*trainer.backend).into_iter().map(f32::to_bits).collect(), loss.to_bits())
}

fn add((left, a): Sums, (right, b): Sums) -> Sums {
    let sum = |(a, b): (u32, u32)| (f32::from_bits(a) + f32::from_bits(b)).to_bits();
    (left.into_iter().zip(right).map(sum).collect(), (f64::from_bits(a) + f64::from_bits(b)).to_bits())
}

/// The tree as it is defined: the left branch has the greatest power of two below their number.
fn tree(parts: &[Sums]) -> Sums {
    match parts {
        [one] => one.clone(),
        _ => {
            let (left, right) = parts.split_at(parts.len().next_power_of_two() / 2);
            add(tree(left), tree(right))
        }
    }
}

#[test]
fn micro_batches_add_up_in_a_binary_tree() {
    let (text, config) = (text(), Config { dropout: Dropout::everywhere(0.2), ..tiny() });
    let batches = Batches::new(&text, WindowShape::next_token(12), 4, 1).unwrap();
    for micros in 1..=9 {
        let trainer = |threads| {
            let recipe = Recipe { accumulate: micros as usize, ..recipe() };
            let model = Model::new(&config, Mode::Train { batch: 4, context: 12 }).unwrap();
            let backend = Box::new(Cpu::new(&model, threads));
            Trainer::new(model, backend, recipe).unwrap()
        };
        let each: Vec<Sums> = (0..micros).map(|m| sums(trainer(2), &batches, m..m + 1)).collect();
        for threads in 1..=3 {
            let same = sums(trainer(threads), &batches, 0..micros) == tree(&each);
            assert!(same, "{micros} micro-batches, {threads} threads");
        }
        let chain = each.iter().cloned().reduce(add).unwrap();
        assert_eq!(chain == tree(&each), micros < 4, "a sum one after the other is another one: {micros}");
    }
}

/// The judge adds up likewise: in f64, where the order hardly matters.
#[test]
fn the_reference_adds_micro_batches_up() {
    let text = text();
    let batches = Batches::new(&text, WindowShape::next_token(12), 4, 1).unwrap();
    for micros in [3, 4] {
        let gradients = |own: Range<u64>| {
            let model = Model::new(&tiny(), Mode::Train { batch: 4, context: 12 }).unwrap();
            let reference = Box::new(Reference::new(&model));
            let recipe = Recipe { accumulate: micros as usize, ..recipe() };
            let (bits, loss) = sums(Trainer::new(model, reference, recipe).unwrap(), &batches, own);
            (bits.into_iter().map(|g| f64::from(f32::from_bits(g))).collect::<Vec<f64>>(), f64::from_bits(loss))
        };
        let (all, loss) = gradients(0..micros);
        let each: Vec<_> = (0..micros).map(|m| gradients(m..m + 1)).collect();
        let sums: Vec<f64> = (0..all.len()).map(|i| each.iter().map(|(g, _)| g[i]).sum()).collect();
        assert_close("gradients", &all, &sums, 1e-6);
        assert!((loss - each.iter().map(|(_, loss)| loss).sum::<f64>()).abs() < 1e-9 * loss);
    }
}

/// What each of several processes, played by threads, comes to: `work` is given its trainer.
fn in_processes<T: Send>(size: usize, make: impl Fn() -> Trainer + Sync, work: impl Fn(Trainer) -> T + Sync) -> Vec<T> {
    let (make, work) = (&make, &work);
    std::thread::scope(|scope| {
        let start = |rank| scope.spawn(move || work(make().among(Box::new(rank)).unwrap()));
        let all: Vec<_> = threads(size).into_iter().map(start).collect();
        all.into_iter().map(|process| process.join().unwrap()).collect()
    })
}

#[test]
#[ignore = "gate"]
fn processes_that_share_the_micro_batches_come_to_the_bits_of_one() {
    const MICROS: usize = 8;
    // so large that there is something for each of eight to update
    let config = Config { dropout: Dropout::everywhere(0.2), d_model: 128, d_ff: 512, n_head: 4, ..tiny() };
    let text = text();
    let batches = Batches::new(&text, WindowShape::next_token(12), 2, 1).unwrap();
    for (optimizer, ema) in [(Method::AdamW, 0.0), (Method::Adam, 0.9), (Method::Sgd, 0.0), (Method::Muon, 0.9)] {
        let recipe = Recipe { batch_size: 2, accumulate: MICROS, optimizer, ema, clip: 0.5, ..recipe() };
        let make = || trainer(&config, recipe);
        let go = |mut trainer: Trainer| {
            let mut steps = vec![];
            let mut changes: Vec<Change> = trainer.model.params.iter().map(|p| Change::new(p.region.range())).collect();
            for _ in 0..3 {
                let gradient = trainer.gradient(&batches).unwrap();
                let step = trainer.update(&batches, gradient, 1e-3, &mut changes).unwrap();
                steps.push((step.loss.map(f64::to_bits), step.norm.map(f64::to_bits), step.tokens));
            }
            let average = trainer.averaged(|trainer| weights(trainer)).unwrap();
            (steps, changes, average, weights(&trainer))
        };
        let one = go(make());
        for size in [2, 4, 8] {
            for (rank, process) in in_processes(size, make, go).iter().enumerate() {
                assert!(*process == one, "{optimizer}, process {rank} of {size}");
            }
        }
    }
}

#[test]
fn processes_that_do_not_fit_the_micro_batches_are_refused() {
    for (size, accumulate, remedy) in [(2, 1, (2, 2, 2)), (3, 4, (4, 4, 2)), (4, 6, (4, 6, 4)), (4, 2, (4, 2, 4))] {
        let recipe = Recipe { batch_size: 4, accumulate, ..recipe() };
        for rank in threads(size) {
            match trainer(&tiny(), recipe).among(Box::new(rank)).err() {
                Some(TrainError::Ranks(RanksError::Micros {
                    processes,
                    micros,
                    accumulate: fits,
                    batch_size,
                    fewer,
                })) => {
                    assert_eq!((processes, micros, (fits, batch_size, fewer)), (size, accumulate as u64, remedy));
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

/// Ranks of which a call fails.
struct Flaky {
    inner: ThreadRank,
    /// Calls until it fails.
    left: usize,
}

impl Flaky {
    fn call(&mut self) -> Result<(), RanksError> {
        self.left = self.left.wrapping_sub(1);
        if self.left == 0 { Err(RanksError::Lost("the network is down".into())) } else { Ok(()) }
    }
}

impl Ranks for Flaky {
    fn rank(&self) -> usize {
        self.inner.rank()
    }
    fn size(&self) -> usize {
        self.inner.size()
    }
    fn all_to_all(&mut self, send: &[u8], receive: &mut [u8]) -> Result<(), RanksError> {
        self.call().and_then(|()| self.inner.all_to_all(send, receive))
    }
    fn all_gather(&mut self, own: &[u8], all: &mut [u8]) -> Result<(), RanksError> {
        self.call().and_then(|()| self.inner.all_gather(own, all))
    }
    fn bring(&mut self, from: usize, bytes: &mut [u8]) -> Result<(), RanksError> {
        self.call().and_then(|()| self.inner.bring(from, bytes))
    }
    fn broadcast(&mut self, bytes: &mut [u8]) -> Result<(), RanksError> {
        self.call().and_then(|()| self.inner.broadcast(bytes))
    }
}

/// Other processes that are not reached, at any moment: the step is done again, or what was left of it, to the same
/// bits.
#[test]
fn a_step_whose_processes_do_not_meet_is_done_again_to_the_same_bits() {
    let text = text();
    let batches = Batches::new(&text, WindowShape::next_token(12), 4, 1).unwrap();
    let recipe = Recipe { accumulate: 2, ema: 0.9, ..recipe() };
    let mut whole = trainer(&tiny(), recipe);
    (0..3).for_each(|_| assert!(whole.step(&batches).is_ok()));
    let whole = weights(&whole);
    for left in 1..16 {
        let all: Vec<_> = std::thread::scope(|scope| {
            let start = |inner| {
                let (batches, make) = (&batches, || trainer(&tiny(), recipe));
                scope.spawn(move || {
                    let mut trainer = make().among(Box::new(Flaky { inner, left })).unwrap();
                    let mut failed = 0;
                    while trainer.steps_done() < 3 {
                        if let Err(error) = trainer.step(batches) {
                            assert!(error.to_string().ends_with(": the network is down"), "{error}");
                            failed += 1;
                        }
                    }
                    while trainer.averaged(|_| ()).is_err() {} // what the last failure left undone
                    (failed, weights(&trainer))
                })
            };
            let all: Vec<_> = threads(2).into_iter().map(start).collect();
            all.into_iter().map(|process| process.join().unwrap()).collect()
        });
        assert!(all.iter().all(|(failed, weights)| *failed <= 1 && *weights == whole), "call {left}");
    }
}

#[test]
fn every_optimizer_learns() {
    let text = Tokens::new(ids()[..13].to_vec());
    let batches = Batches::new(&text, WindowShape::next_token(12), 4, 1).unwrap();
    let rules = [(Method::AdamW, 3e-3), (Method::Adam, 3e-3), (Method::Sgd, 0.3), (Method::Muon, 3e-3)];
    for (optimizer, learning_rate) in rules {
        let mut t = trainer(&tiny(), Recipe { optimizer, learning_rate, weight_decay: 0.0, steps: 80, ..recipe() });
        let first = t.step(&batches).unwrap().loss.unwrap();
        let last = (0..79).map(|_| t.step(&batches).unwrap().loss.unwrap()).last().unwrap();
        assert!(last < 0.5 * first, "{optimizer}: {first} to {last}");
    }
}

#[test]
fn a_step_allocates_nothing() {
    if !alone("training::a_step_allocates_nothing", "1 passed") {
        return;
    }
    let text = text();
    let config =
        Config { dropout: Dropout::everywhere(0.1), n_segment: 2, head_bias: true, embedding_norm: true, ..tiny() };
    let batches = Batches::new(&text, WindowShape::next_token(12), 4, 1).unwrap();
    let recipe = Recipe { accumulate: 5, ..recipe() };
    let model = Model::new(&config, Mode::Train { batch: recipe.batch_size, context: 12 }).unwrap();
    let fixed = Cpu::new(&model, 2);
    let changing = Cpu::new(&model, 4).choose_threads(&model, Clock(crate::threads::dice));
    for (threads, backend) in [("two", fixed), ("changing", changing)] {
        let mut t = Trainer::new(model.clone(), Box::new(backend), recipe).unwrap();
        t.step(&batches).unwrap();
        let steps = || (0..20).for_each(|_| assert!(t.step(&batches).is_ok()));
        assert!(allocates_nothing(steps), "every 20 steps allocate, {threads} threads");
    }
}

/// Nor where steps differ in their rows and sequences.
#[test]
fn a_step_of_documents_allocates_nothing() {
    if !alone("training::a_step_of_documents_allocates_nothing", "1 passed") {
        return;
    }
    let ends: Vec<usize> = (0..)
        .map(|i: usize| i * i % 23)
        .scan(0, |at, n| {
            *at += n;
            Some(*at)
        })
        .take_while(|end| *end < 600)
        .collect();
    let text = Tokens::of_documents(ids()[..*ends.last().unwrap()].to_vec(), ends, None);
    for whole in [true, false] {
        let documents = Documents { whole, cross: false };
        let batches = Batches::new(&text, WindowShape { documents, ..WindowShape::next_token(12) }, 4, 1).unwrap();
        let mut t = trainer(&tiny(), recipe());
        t.step(&batches).unwrap();
        let steps = || (0..60).for_each(|_| assert!(t.step(&batches).is_ok()));
        assert!(allocates_nothing(steps), "every 60 steps allocate, whole documents: {whole}");
    }
}

#[test]
fn a_number_that_is_none_is_named_and_the_weights_stay() {
    let text = text();
    let batches = Batches::new(&text, WindowShape::next_token(12), 4, 1).unwrap();
    let mut t = trainer(&tiny(), recipe());
    t.step(&batches).unwrap();
    let region = t.model.param("blocks.1.mlp.in.weight").unwrap().region;
    let mut values = t.backend.read(region).unwrap();
    values[5] = f32::NAN;
    t.backend.write(region, &values).unwrap();
    let before = weights(&t);
    let error = t.step(&batches).unwrap_err();
    assert_eq!(weights(&t), before);
    assert!(
        matches!(&error, TrainError::NotFinite { step: 2, tensor, .. } if tensor == "blocks.1.mlp.in.weight"),
        "{error}"
    );

    // weights that are finite but overflow: the first activation that does is named
    let mut t = trainer(&tiny(), recipe());
    for name in ["blocks.0.mlp.in.weight", "blocks.0.mlp.out.weight"] {
        let region = t.model.param(name).unwrap().region;
        t.backend.write(region, &vec![3e37; region.len()]).unwrap();
    }
    let error = t.step(&batches).unwrap_err().to_string();
    assert!(error.contains("blocks.0.mlp.hook_p") || error.contains("blocks.0.hook_mlp_out"), "{error}");
    assert!(error.starts_with("step 1: "), "{error}");
}

fn letters() -> Tokenizer {
    Tokenizer::train(TokenizerKind::Char, "abcdefghijklmnopq", Order::Sorted, &[]).unwrap()
}

/// Documents of some tokens each.
fn documents(ids: &[u32]) -> Tokens {
    let ends = (1..=ids.len()).filter(|i| *i == ids.len() || random::below(5, 0, *i as u64, 9) == 0).collect();
    Tokens::of_documents(ids.to_vec(), ends, None)
}

fn run_until(
    folder: &std::path::Path,
    (recipe, options): (Recipe, RunOptions),
    config: &Config,
    stop_at: Option<u64>,
    resume: bool,
) -> Vec<u32> {
    let [text, validation] = [&ids()[..500], &ids()[500..]].map(documents);
    let (trainer, folder, tokenizer) = (trainer(config, recipe), Some(folder.to_path_buf()), letters());
    let mut run = Run::new(
        trainer,
        folder,
        RunData { train: &text, validation: &validation, objective: Objective::NextToken, tokenizer: &tokenizer },
    )
    .unwrap();
    run.options = options;
    if resume {
        run.resume(None).unwrap();
    }
    run.go(&mut |event| match event {
        TrainEvent::Step(step, _) if Some(step.step) == stop_at => Control::Stop,
        _ => Control::Continue,
    })
    .unwrap();
    weights(&run.trainer)
}

#[test]
fn a_resumed_run_is_the_run_that_was_not_stopped() {
    let config = Config { dropout: Dropout::everywhere(0.2), ..tiny() };
    let sgd = Recipe { accumulate: 3, optimizer: Method::Sgd, learning_rate: 0.1, ..recipe() };
    let documents = Recipe { accumulate: 2, whole_documents: true, cross_documents: false, ..recipe() };
    let muon = (
        Recipe { optimizer: Method::Muon, ema: 0.9, label_smoothing: 0.1, z_loss: 1e-3, ..recipe() },
        RunOptions { keep: 2, ..options() },
    );
    for (n, recipe) in [with(recipe()), with(sgd), with(documents), muon].into_iter().enumerate() {
        let (whole, parts) = (Folder::absent(&format!("whole{n}")), Folder::absent(&format!("parts{n}")));
        let want = run_until(&whole, recipe, &config, None, false);
        run_until(&parts, recipe, &config, Some(3), false);
        run_until(&parts, recipe, &config, Some(9), true);
        let got = run_until(&parts, recipe, &config, None, true);
        assert_eq!(got, want);
        let read = |dir: &Path| fs::read(dir.join("model.safetensors")).unwrap();
        assert_eq!(read(&whole), read(&parts), "the best weights too");
        let steps = |dir: &Path| {
            let lines = fs::read_to_string(dir.join("metrics.jsonl")).unwrap();
            let value = |line: &str| {
                let v: serde_json::Value = serde_json::from_str(line).unwrap();
                (v["step"].clone(), v["train_loss"].clone(), v["val_loss"].clone())
            };
            lines.lines().map(value).collect::<Vec<_>>()
        };
        assert_eq!(steps(&whole), steps(&parts), "every step is told once");
    }
}

#[test]
fn a_resume_with_other_settings_says_which() {
    let dir = Folder::absent("differs");
    run_until(&dir, with(recipe()), &tiny(), Some(5), false);
    // the text that `run_until` trains on
    let (text, validation, tokenizer) = (documents(&ids()[..500]), documents(&ids()[500..]), letters());
    let refused = |config: &Config, recipe: Recipe, text: &Tokens| {
        let trainer = trainer(config, recipe);
        let mut run = Run::new(
            trainer,
            Some(dir.0.clone()),
            RunData { train: text, validation: &validation, objective: Objective::NextToken, tokenizer: &tokenizer },
        )
        .unwrap();
        run.resume(None).unwrap_err().to_string()
    };
    let error = refused(&tiny(), Recipe { learning_rate: 2e-3, ..recipe() }, &text);
    assert!(
        error.contains("learning_rate was 0.001 and is 0.002") && error.contains("What may differ: eval_every, "),
        "{error}"
    );
    let error = refused(&tiny(), Recipe { cross_documents: false, ..recipe() }, &text);
    assert!(error.contains("cross_documents was true and is false"), "{error}");
    let error = refused(&tiny(), Recipe { steps: 99, ..recipe() }, &text);
    assert!(error.contains("steps was 12 and is 99, steps may differ with schedule constant"), "{error}");
    let error = refused(&Config { d_ff: 44, ..tiny() }, recipe(), &text);
    assert!(error.contains("d_ff was 40 and is 44"), "{error}");
    // shapes alone would not tell this
    let error = refused(&Config { dropout: Dropout::everywhere(0.5), ..tiny() }, recipe(), &text);
    assert!(error.contains("dropout was "), "{error}");
    let error = refused(&tiny(), recipe(), &Tokens::new(ids()[1..501].to_vec()));
    assert!(error.contains("the training text is a different one"), "{error}");
    // what only says when to look and to save is free
    let trainer_of = |recipe| trainer(&tiny(), recipe);
    let mut run = Run::new(
        trainer_of(recipe()),
        Some(dir.0.clone()),
        RunData { train: &text, validation: &validation, objective: Objective::NextToken, tokenizer: &tokenizer },
    )
    .unwrap();
    run.options = RunOptions {
        eval_every: 5,
        save_every: 1,
        keep: 3,
        patience: 9,
        layer_stats_every: 0,
        spike_sigma: 0.0,
        ..options()
    };
    assert_eq!(run.resume(None).unwrap(), 5);
    drop(run);
    fs::write(dir.join("state/last.safetensors"), b"short").unwrap();
    let mut run = Run::new(
        trainer(&tiny(), recipe()),
        Some(dir.0.clone()),
        RunData { train: &text, validation: &validation, objective: Objective::NextToken, tokenizer: &tokenizer },
    )
    .unwrap();
    assert!(run.resume(None).unwrap_err().to_string().contains("cut short"));
}

/// Training keeps neither T x T scores nor (B T) x V logits: memory grows with T, and not with V but for tables.
#[test]
fn memory_is_linear_in_the_context_and_blind_to_the_vocabulary() {
    use limpid::ops::MemorySpace;
    let bytes = |context: usize, vocab_size: usize| {
        let config = Config { context_length: 2048, vocab_size, ..tiny() };
        let model = Model::new(&config, Mode::Train { batch: 1, context }).unwrap();
        [MemorySpace::Act, MemorySpace::ActGrad, MemorySpace::Stat].map(|s| model.program.size(s)).iter().sum::<usize>()
    };
    assert!(bytes(2048, 100) as f64 / bytes(1024, 100) as f64 <= 2.01);
    assert_eq!(bytes(512, 100), bytes(512, 100_000));
}

/// A backend that does what it is told but for one thing.
struct Faulty {
    own: Cpu,
    fault: Fault,
}

#[derive(Clone, Copy, PartialEq)]
enum Fault {
    /// Steps of the backward from this one on are not run.
    Cut(usize),
    /// This gradient is not made.
    Unmade(Region),
    /// A batch's gradients take the place of those before it.
    Forgetful,
}

impl Wrapper for Faulty {
    fn inner(&self) -> &dyn Backend {
        &self.own
    }
    fn inner_mut(&mut self) -> &mut dyn Backend {
        &mut self.own
    }
    fn feed(&mut self, batch: &Batch) -> Result<()> {
        if self.fault == Fault::Forgetful {
            self.own.clear()?;
        }
        self.own.feed(batch)
    }
    fn backward(&mut self, back: Passes) -> Result<()> {
        let end = if let Fault::Cut(at) = self.fault { at.min(back.len()) } else { back.len() };
        self.own.backward(back.part(..end))?;
        if let Fault::Unmade(grad) = self.fault {
            self.own.write(grad, &vec![0.0; grad.len()])?;
        }
        Ok(())
    }
}

/// Fresh weights of every scheme pass at the widths that models have, whatever norms and head: behind a norm a tied
/// head expects the token that it is given, nats above ln V, which is no sign of large weights. Ten times the deviation
/// is seen in all of them.
#[test]
#[ignore = "gate"]
fn preflight_passes_fresh_weights_of_any_width() {
    let text = Tokens::new((0..400).map(|i| random::below(1, 0, i, 700) as u32).collect());
    let batches = Batches::new(&text, WindowShape::next_token(12), 2, 1).unwrap();
    let mut misled = 0;
    for d_model in [24, 768] {
        for (norm_place, final_norm) in [(NormPlace::Pre, true), (NormPlace::Pre, false), (NormPlace::Post, false)] {
            for (norm, tied_head) in [(NormKind::Layer, true), (NormKind::Rms, true), (NormKind::Layer, false)] {
                let config = Config { d_model, n_head: 2, d_ff: 64, n_layer: 1, vocab_size: 700, ..tiny() };
                let config = Config { norm_place, final_norm, norm, tied_head, ..config };
                for (init, init_std) in [(Init::Gpt2, 0.0), (Init::Xavier, 0.0), (Init::Gpt2, 0.5)] {
                    let mut t = trainer(&config, Recipe { batch_size: 2, init, init_std, ..recipe() });
                    let seen = preflight(&mut t, &batches);
                    let what = format!("{d_model} {norm_place} {final_norm} {norm} {tied_head} {init} {init_std}");
                    match seen {
                        Ok(seen) => {
                            misled += usize::from((seen.loss - seen.uniform).abs() > 1.0 + 0.1 * seen.uniform);
                            let large =
                                init_std == 0.5 && d_model > 24 && (final_norm || norm_place == NormPlace::Post);
                            assert!(!large, "{what}: {seen:?}");
                        }
                        Err(error) => assert!(init_std == 0.5, "{what}: {error}"),
                    }
                }
            }
        }
    }
    assert!(misled >= 2, "the loss would have misled in some of these: {misled}");
}

#[test]
fn trainers_and_decoders_may_move_to_another_thread() {
    fn moves<T: Send>() {}
    moves::<Trainer>();
    moves::<limpid::engine::Decoder>();
    moves::<Run>();
}

#[test]
fn preflight_names_what_would_not_work() {
    let text = text();
    let batches = Batches::new(&text, WindowShape::next_token(12), 4, 1).unwrap();
    let refuses = |trainer: &mut Trainer| {
        let before = weights(trainer);
        let error = preflight(trainer, &batches).unwrap_err();
        assert_eq!(weights(trainer), before, "what was written is taken back");
        error
    };
    let faulty = |fault| {
        let mut t = trainer(&tiny(), recipe());
        t.backend = Box::new(Faulty { own: Cpu::new(&t.model, 2), fault });
        let whole = trainer(&tiny(), recipe());
        t.model.params.iter().for_each(|p| t.backend.write(p.region, &whole.backend.read(p.region).unwrap()).unwrap());
        t
    };

    // sound, whatever begins as zero, and the weights are what they were
    for config in [tiny(), Config { head_bias: true, n_segment: 2, tied_head: false, ..tiny() }] {
        let mut t = trainer(&config, recipe());
        let before = weights(&t);
        assert!(preflight(&mut t, &batches).is_ok(), "{config}");
        assert_eq!(weights(&t), before);
        let step = |t: &mut Trainer| (t.step(&batches).unwrap(), weights(t));
        assert_eq!(step(&mut t), step(&mut trainer(&config, recipe())), "training begins as if nobody had looked");
    }

    // the backward is cut below the second block's feed-forward: what lies nearer to the input is not reached
    let mut t = faulty(Fault::Cut(0));
    let mid = t.model.tensor("blocks.1.hook_resid_mid").unwrap().region;
    let makes_mid = |pass: &Pass| matches!(pass, Pass::Back(back) if back.op.output() == mid);
    let at = t.model.back().iter().position(makes_mid);
    t.backend = Box::new(Faulty { own: Cpu::new(&t.model, 2), fault: Fault::Cut(at.unwrap_or(6)) });
    let whole = trainer(&tiny(), recipe());
    t.model.params.iter().for_each(|p| t.backend.write(p.region, &whole.backend.read(p.region).unwrap()).unwrap());
    let error = refuses(&mut t);
    assert!(matches!(&error, PreflightError::Unreached { param } if param == "pos_embed.weight"), "{error}");
    // so is a parameter whose own step is left out of a backward that is otherwise whole
    let gain = trainer(&tiny(), recipe()).model.param("blocks.0.ln2.weight").unwrap().region;
    assert_eq!(
        refuses(&mut faulty(Fault::Unmade(gain.grad()))),
        PreflightError::Unreached { param: "blocks.0.ln2.weight".into() }
    );

    // an accumulation that overwrites
    let error = refuses(&mut faulty(Fault::Forgetful));
    assert!(matches!(&error, PreflightError::Accumulation { param, .. } if param == "embed.weight"), "{error}");

    // weights that know too much, and weights that are none
    let mut t = trainer(&tiny(), Recipe { init_std: 3.0, ..recipe() });
    assert!(matches!(refuses(&mut t), PreflightError::TooLarge { .. }));
    let mut t = t.with_weights(|_, _| Ok::<_, limpid::backend::BackendError>(())).unwrap();
    assert!(preflight(&mut t, &batches).is_ok(), "weights from elsewhere may know what they know");
    let region = t.model.param("blocks.1.attn.out.weight").unwrap().region;
    t.backend.write(region, &vec![f32::INFINITY; region.len()]).unwrap();
    let error = refuses(&mut t).to_string();
    assert!(error.contains("blocks.1.attn.out.weight is not finite (inf)"), "{error}");
}

/// A run of which some events are told.
fn told(
    folder: &std::path::Path,
    (trainer, options): (Trainer, RunOptions),
    train: &Tokens,
    validation: &Tokens,
) -> (Result<Summary, TrainError>, Vec<String>) {
    let tokenizer = letters();
    let mut run = Run::new(
        trainer,
        Some(folder.into()),
        RunData { train, validation, objective: Objective::NextToken, tokenizer: &tokenizer },
    )
    .unwrap();
    run.options = options;
    let resumes = Run::can_resume(folder);
    let began = if resumes { run.resume(None).map(drop) } else { Ok(()) };
    let mut notices = vec![];
    let done = began.and_then(|()| {
        run.go(&mut |event| {
            if let TrainEvent::Notice(what) = event {
                notices.push(what);
            }
            Control::Continue
        })
    });
    (done, notices)
}

#[test]
fn states_are_kept_and_gone_back_to() {
    let dir = Folder::absent("kept");
    let recipe = Recipe { steps: 20, ..recipe() };
    let options = RunOptions { save_every: 3, keep: 2, ..options() };
    let want = run_until(&dir, (recipe, options), &tiny(), None, false);
    assert_eq!(limpid::train::run::kept_steps(&dir), [15, 18, 20], "the last, and two before it");
    let read = |file: &str| fs::read(dir.join("state").join(file)).unwrap();
    assert_eq!(read("last.safetensors"), read("step-00000020.safetensors"));
    // from an earlier one the same end is reached
    let tokenizer = letters();
    let [text, validation] = [&ids()[..500], &ids()[500..]].map(documents);
    let mut run = Run::new(
        trainer(&tiny(), recipe),
        Some(dir.0.clone()),
        RunData { train: &text, validation: &validation, objective: Objective::NextToken, tokenizer: &tokenizer },
    )
    .unwrap();
    run.options = options;
    assert!(run.resume(Some(7)).is_err(), "there is no such state");
    assert_eq!(run.resume(Some(15)).unwrap(), 15);
    run.go(&mut |_| Control::Continue).unwrap();
    assert_eq!(weights(&run.trainer), want);
    // one process at a time
    let mut other = Run::new(
        trainer(&tiny(), recipe),
        Some(dir.0.clone()),
        RunData { train: &text, validation: &validation, objective: Objective::NextToken, tokenizer: &tokenizer },
    )
    .unwrap();
    let error = other.resume(None).unwrap_err();
    assert!(matches!(error, TrainError::Busy { .. }), "{error}");
    drop(run);
    assert_eq!(other.resume(None).unwrap(), 20);
}

#[test]
fn training_ends_early_with_the_best_weights() {
    let dir = Folder::absent("early");
    // 60 tokens are soon known by heart, and say nothing of the others
    let [train, validation] = [&ids()[..60], &ids()[500..]].map(|ids| Tokens::new(ids.to_vec()));
    let config = Config { dropout: Dropout::NONE, ..tiny() };
    let recipe = Recipe { steps: 400, learning_rate: 1e-2, ema: 0.5, ..recipe() };
    let options = RunOptions { eval_every: 5, patience: 3, ..options() };
    let (summary, notices) = told(&dir, (trainer(&config, recipe), options), &train, &validation);
    let summary = summary.unwrap();
    assert!(summary.ended_early && !summary.stopped && summary.steps < 400, "{summary:?}");
    assert_eq!(summary.steps, summary.best_step + 15);
    assert!(notices.iter().any(|n| n.contains("in 3 evaluations")), "{notices:?}");
    // model.safetensors holds the best average, whose loss the summary tells
    let checkpoint = limpid::checkpoint::Checkpoint::open(&dir.0).unwrap();
    let model = Model::new(&config, Mode::Score { batch: 4, context: 12 }).unwrap();
    let mut cpu = Cpu::new(&model, 1);
    checkpoint.load(&model, &mut cpu).unwrap();
    let windows = limpid::train::Windows::new("validation text", &validation, WindowShape::next_token(12)).unwrap();
    let loss = limpid::train::evaluate::score(&model, &mut cpu, &windows, 4, &mut |_| true).unwrap().loss().unwrap();
    assert!((loss - summary.val_loss.unwrap()).abs() < 1e-9, "{loss} {summary:?}");
}

/// Documents that a model soon knows, and one of noise, which makes the loss jump.
fn with_noise() -> Tokens {
    let noise = |i: u64| 5 + random::below(9, 1, i, 12) as u32;
    let ids = (0..150 * 13).map(|i| if i / 13 == 77 { noise(i) } else { (i % 13 % 5) as u32 }).collect();
    Tokens::of_documents(ids, (1..=150).map(|d| 13 * d).collect(), None)
}

#[test]
fn a_jump_is_noted_stops_or_is_passed_over() {
    let config = Config { dropout: Dropout::NONE, ..tiny() };
    let text = with_noise();
    let documents = Documents { whole: true, cross: false };
    // a seed whose order has the noise late
    let late = |seed: &u64| {
        let batches = Batches::new(&text, WindowShape { documents, ..WindowShape::next_token(12) }, 1, *seed).unwrap();
        let mut batch = Batch::default();
        (60..110).any(|step| {
            batches.fill(step, 0, &mut batch);
            batch.tokens[3] > 4
        })
    };
    let base = Recipe {
        steps: 120,
        seed: (0..).find(late).unwrap(),
        batch_size: 1,
        learning_rate: 5e-3,
        whole_documents: true,
        cross_documents: false,
        ..recipe()
    };
    let options = RunOptions { save_every: 10, eval_every: 0, layer_stats_every: 7, ..options() };
    let run = |divergence| {
        let dir = Folder::absent(&format!("jump-{divergence}"));
        let of = (trainer(&config, base), RunOptions { divergence, ..options });
        let (summary, notices) = told(&dir, of, &text, &Tokens::default());
        (dir, summary, notices)
    };

    let (dir, summary, notices) = run(Divergence::Note);
    assert_eq!(summary.unwrap().steps, 120);
    assert!(notices.iter().any(|n| n.contains("loss spike: ")), "{notices:?}");
    let file = fs::read_dir(dir.join("divergence")).unwrap().next().unwrap().unwrap().path();
    let said = fs::read_to_string(&file).unwrap();
    assert!(
        said.contains("standard deviations above the recent mean") && said.contains("greatest gradients by layer: "),
        "{said}"
    );
    let words = said.lines().last().unwrap();
    assert!(words.len() == 12 && words.chars().all(|c| c >= 'f'), "the noise itself stands there: {said}");
    // details: one line in seven steps, whose layers' gradients make up the whole one
    let lines = fs::read_to_string(dir.join("metrics.jsonl")).unwrap();
    let lines: Vec<serde_json::Value> = lines.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let details: Vec<_> = lines.iter().filter(|l| l["layers"].is_object()).collect();
    assert_eq!(details.len(), 120 / 7);
    for line in details {
        let layers = line["layers"].as_object().unwrap();
        assert_eq!(layers.keys().count(), 5, "embed, pos_embed, two blocks, ln_final");
        let square: f64 = layers.values().map(|l| l["grad_norm"].as_f64().unwrap().powi(2)).sum();
        let norm = lines.iter().find(|l| l["step"] == line["step"]).unwrap()["grad_norm"].as_f64().unwrap();
        assert!((square.sqrt() / norm - 1.0).abs() < 1e-4, "{square} {norm}");
        assert!(layers.values().all(|l| l["update_ratio"].as_f64().unwrap() > 0.0));
    }

    let (dir, summary, _) = run(Divergence::Stop);
    let Err(TrainError::Spike { step, .. }) = summary else { panic!("{summary:?}") };
    // what was learned until then is saved
    let mut again = trainer(&config, base);
    let state = limpid::checkpoint::safetensors_file::open(&dir.join("state/last.safetensors")).unwrap();
    again.restore(Some(&state), step - 1).unwrap();

    let (dir, summary, notices) = run(Divergence::Rollback);
    assert_eq!(summary.unwrap().steps, 120, "{notices:?}");
    let said = notices.iter().find(|n| n.contains("Back to step")).expect("it went back");
    assert!(said.contains("skipping the data of"), "{said}");
    // the steps that were undone are told once
    let lines = fs::read_to_string(dir.join("metrics.jsonl")).unwrap();
    let steps: Vec<u64> = lines
        .lines()
        .map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap())
        .filter(|l| l["train_loss"].is_f64())
        .map(|l| l["step"].as_u64().unwrap())
        .collect();
    assert_eq!(steps, (1..=120).collect::<Vec<_>>());
}

#[test]
fn a_rate_that_diverges_at_once_is_told() {
    let dir = Folder::absent("diverges");
    let config = Config { dropout: Dropout::NONE, ..tiny() };
    let recipe = Recipe { learning_rate: 30.0, warmup_steps: 0, steps: 200, clip: 0.0, ..recipe() };
    let (summary, _) = told(&dir, (trainer(&config, recipe), options()), &text(), &Tokens::default());
    let error = summary.unwrap_err();
    let told = error.to_string();
    assert!(matches!(error, TrainError::Diverged { .. } | TrainError::NotFinite { .. }), "{told}");
    assert!(told.contains("learning rate") || told.contains("learning_rate"), "{told}");
}

#[test]
fn a_state_of_another_format_is_refused() {
    let dir = Folder::absent("later");
    run_until(&dir, with(recipe()), &tiny(), Some(4), false);
    let path = dir.join("state/last.safetensors");
    let bytes = fs::read(&path).unwrap();
    let here = br#"\"format\":4,"#;
    let at = bytes.windows(here.len()).position(|w| w == here).unwrap();
    let (text, none, tokenizer) = (text(), Tokens::default(), letters());
    for (format, said) in [(b'7', "the later limpid that wrote it"), (b'1', "the older limpid that wrote it")] {
        let mut other = bytes.clone();
        other[at + here.len() - 2] = format;
        fs::write(&path, other).unwrap();
        let mut run = Run::new(
            trainer(&tiny(), recipe()),
            Some(dir.0.clone()),
            RunData { train: &text, validation: &none, objective: Objective::NextToken, tokenizer: &tokenizer },
        )
        .unwrap();
        let error = run.resume(None).unwrap_err().to_string();
        assert!(error.contains(&format!("format {}", format as char)) && error.contains(said), "{error}");
    }
}

/// What cannot be done is said before a kernel meets it, whoever asks.
#[test]
fn batches_and_recipes_out_of_range_are_refused() {
    let text = text();
    for (batch_size, context) in [(0, 8), (4, 0), (usize::MAX, 8), (2, usize::MAX)] {
        let made = Batches::new(&text, WindowShape::next_token(context), batch_size, 1);
        assert!(made.is_err(), "{batch_size} x {context}");
    }
    assert!(Windows::new("text", &text, WindowShape::next_token(0)).is_err());
    let tokenizer = Tokenizer::named("gpt2").unwrap();
    let go = |recipe: Recipe, train: &Tokens| {
        let none = Tokens::default();
        let mut trainer = self::trainer(&tiny(), self::recipe());
        trainer.recipe = recipe;
        Run::new(
            trainer,
            None,
            RunData { train, validation: &none, objective: Objective::NextToken, tokenizer: &tokenizer },
        )
        .unwrap()
        .go(&mut |_| Control::Continue)
    };
    assert!(go(Recipe { steps: 2, ..recipe() }, &text).is_ok());
    for wrong in [
        Recipe { learning_rate: f64::NAN, ..recipe() },
        Recipe { learning_rate: -1.0, ..recipe() },
        Recipe { accumulate: 0, ..recipe() },
        Recipe { batch_size: 0, ..recipe() },
        Recipe { ema: 2.0, ..recipe() },
    ] {
        assert!(matches!(go(wrong, &text), Err(TrainError::Config(_))), "{wrong:?}");
    }
    let strange = Tokens::new((0..200).map(|i| if i == 150 { 60_000 } else { 1 }).collect());
    let error = go(recipe(), &strange).unwrap_err().to_string();
    assert!(error.contains("token 60000 at position 150"), "{error}");
}

#[test]
fn the_finder_finds_a_rate_that_trains() {
    let text = text();
    let config = Config { dropout: Dropout::NONE, ..tiny() };
    let batches = Batches::new(&text, WindowShape::next_token(12), 4, 1).unwrap();
    let long = Recipe { steps: 300, warmup_steps: 30, ..recipe() };
    let after = |learning_rate: f64| {
        let recipe = Recipe { learning_rate, min_learning_rate: 0.1 * learning_rate, ..long };
        let mut t = trainer(&config, recipe);
        let losses: Vec<f64> = (0..recipe.steps).map(|_| t.step(&batches).unwrap().loss.unwrap()).collect();
        losses[200..].iter().sum::<f64>() / 100.0
    };
    // from below and from above, and with an optimizer of other sizes of steps
    for (optimizer, first) in [(Method::AdamW, 1e-4), (Method::AdamW, 0.3), (Method::Muon, 1e-3)] {
        let start = Recipe { optimizer, learning_rate: first, ..long };
        let mut steps = 0;
        let found =
            lr_finder::find(&mut || Ok::<_, TrainError>(trainer(&config, start)), &batches, &start, &mut |_, _, _| {
                steps += 1;
                true
            });
        let found = found.unwrap();
        assert!(steps <= lr_finder::STEPS * found.tried.len() as u64 && found.tried.is_sorted_by(|a, b| a.0 < b.0));
        if optimizer == Method::AdamW {
            let rate = found.suggested.unwrap();
            let [named, before] = [rate, first].map(after);
            assert!(named < before - 0.3, "{named} {before} {found:?}");
        }
    }
    // stopped, it names none
    let stopped =
        lr_finder::find(&mut || Ok::<_, TrainError>(trainer(&config, long)), &batches, &long, &mut |_, n, _| n < 70);
    assert!(stopped.unwrap().suggested.is_some(), "no training has so many steps");
    let stopped =
        lr_finder::find(&mut || Ok::<_, TrainError>(trainer(&config, long)), &batches, &long, &mut |_, n, _| n < 7);
    assert_eq!(stopped.unwrap(), lr_finder::LrSearch { tried: vec![], suggested: None });
}

/// A shard that another program cuts while a run reads it ends the run with its name, not the process; the weights
/// stay.
#[test]
fn a_text_that_is_cut_while_it_is_read_is_an_error() {
    let path = std::env::temp_dir().join(format!("limpid-training-shard-{}.bin", std::process::id()));
    let header = [20240520u32, 1, 600].into_iter().chain([0; 253]).flat_map(u32::to_le_bytes);
    let text: Vec<u8> = header.chain(ids().into_iter().flat_map(|id| (id as u16).to_le_bytes())).collect();
    fs::write(&path, &text).unwrap();
    let tokens = Tokens::of_shards(vec![limpid::data::Shard::open(&path, None).unwrap()]);
    let batches = Batches::new(&tokens, WindowShape::next_token(12), 4, 1).unwrap();
    let windows = Windows::new("text", &tokens, WindowShape::next_token(12)).unwrap();
    let mut t = trainer(&tiny(), recipe());
    t.step(&batches).unwrap();
    let before = weights(&t);
    fs::File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
    let scored = limpid::train::evaluate::score(&t.model, &mut *t.backend, &windows, 4, &mut |_| true).map(drop);
    for error in [t.step(&batches).map(drop).unwrap_err(), scored.unwrap_err()] {
        let said = error.to_string();
        assert!(
            said.starts_with(&path.display().to_string()) && said.contains("it had 2224 bytes and has 0"),
            "{said}"
        );
    }
    // nor is it read for its checksum, or for ids that the vocabulary lacks
    for error in [tokens.digest().map(drop).unwrap_err(), tokens.check_ids(17).unwrap_err()] {
        assert!(error.to_string().contains("it had 2224 bytes and has 0"), "{error}");
    }
    assert_eq!(weights(&t), before);
    fs::remove_file(path).unwrap();
}

/// A recipe of no steps: a training of one is tried, and what it ends with is a number.
#[test]
fn the_finder_needs_no_steps() {
    let (text, none) = (text(), Recipe { steps: 0, ..recipe() });
    let batches = Batches::new(&text, WindowShape::next_token(12), 4, 1).unwrap();
    let start = &mut || Ok::<_, TrainError>(trainer(&tiny(), none));
    let found = lr_finder::find(start, &batches, &none, &mut |_, step, _| step == 1).unwrap();
    assert!(found.suggested.is_some_and(f64::is_normal), "{found:?}");
    assert!(found.tried.iter().all(|(_, loss)| (0.5..5.0).contains(loss)), "{found:?}");
}

/// A model that was built for another mode is refused wherever losses or gradients are asked of it.
#[test]
fn a_model_without_losses_is_refused() {
    let text = text();
    let batches = Batches::new(&text, WindowShape::next_token(12), 4, 1).unwrap();
    let windows = Windows::new("text", &text, WindowShape::next_token(12)).unwrap();
    let made = |mode: Mode| {
        let model = Model::new(&tiny(), mode).unwrap();
        let cpu = Box::new(Cpu::new(&model, 2));
        Trainer::new(model, cpu, recipe()).unwrap()
    };
    let decode = Mode::Decode { rows: 4, outputs: 1, blocks: 1 };
    let mut t = made(decode);
    let error =
        limpid::train::evaluate::score(&t.model, &mut *t.backend, &windows, 4, &mut |_| true).unwrap_err().to_string();
    assert!(error.contains("computes no losses. Build it with Mode::Score"), "{error}");
    for mode in [decode, Mode::Score { batch: 4, context: 12 }, Mode::Inspect { batch: 4, context: 12 }] {
        let mut t = made(mode);
        let errors = [t.step(&batches).unwrap_err().to_string(), preflight(&mut t, &batches).unwrap_err().to_string()];
        for error in errors {
            assert!(error.contains("computes no gradients. Build it with Mode::Train"), "{mode:?}: {error}");
        }
    }
}

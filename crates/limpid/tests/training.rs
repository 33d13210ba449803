//! Training as a whole: accumulation, resuming, what a bad number does, and that a step allocates nothing.

use limpid::backend::{Backend, Cpu, Reference};
use limpid::config::{Config, Dropout};
use limpid::data::{Batches, Documents, Objective, Tokens};
use limpid::model::{Model, Use};
use limpid::ops::adamw::Method;
use limpid::ops::random;
use limpid::tokenizer::{Kind, Order, Tokenizer};
use limpid::train::{Control, Event, Recipe, Reduction, Run, TrainError, Trainer};
use std::alloc::{GlobalAlloc, Layout, System};
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts allocations, so that a test can ask for none.
struct Counting;
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
// SAFETY: every call is passed on to the system's allocator unchanged.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}
#[global_allocator]
static COUNTING: Counting = Counting;

/// Tests run side by side, and counting allocations wants to be alone.
static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
fn alone() -> std::sync::MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(|e| e.into_inner())
}

fn tiny() -> Config {
    Config {
        vocab_size: 17,
        context_length: 12,
        d_model: 24,
        n_head: 3,
        n_layer: 2,
        d_ff: 40,
        ..Config::preset("nano").unwrap()
    }
}

fn ids() -> Vec<u32> {
    (0..600).map(|i| random::below(1, 0, i / 3, 17) as u32).collect()
}

fn text() -> Tokens {
    Tokens::of(ids())
}

fn trainer(config: &Config, recipe: Recipe) -> Trainer {
    let model = Model::new(config, Use::Train { batch: recipe.batch_size, context: 12 }).unwrap();
    let backend = Box::new(Cpu::new(&model, 2));
    Trainer::new(model, backend, recipe)
}

fn recipe() -> Recipe {
    Recipe {
        steps: 12,
        batch_size: 4,
        warmup_steps: 3,
        eval_every: 4,
        save_every: 4,
        eval_tokens: 40,
        ..Recipe::default()
    }
}

fn weights(trainer: &Trainer) -> Vec<u32> {
    trainer.model.params.iter().flat_map(|p| trainer.backend.read(p.slot)).map(f32::to_bits).collect()
}

/// 8 x 1, 2 x 4 and 1 x 8 micro-batches of the same rows are the same step: gradients agree to rounding, on both
/// objectives, where the micro-batches count different numbers of tokens.
#[test]
fn accumulation_is_weighed_by_token() {
    let _alone = alone();
    let config = Config { dropout: Dropout::NONE, mask: limpid::config::Mask::Bidirectional, ..tiny() };
    let text = text();
    for objective in [Objective::NextToken, Objective::Masked { mask: 16, vocab_size: 17, segments: false }] {
        // the rows of the 8 micro-batches of one sequence, put together otherwise
        let batches = Batches::new(&text, 1, 12, 9, objective).unwrap();
        let rows: Vec<_> = (0..8)
            .map(|micro| {
                let mut batch = Default::default();
                batches.fill(0, micro, &mut batch);
                batch
            })
            .collect();
        let counted: usize = rows.iter().map(limpid::data::counted).sum();
        let gradients = |groups: usize| {
            let size = 8 / groups;
            let model = Model::new(&config, Use::Train { batch: size, context: 12 }).unwrap();
            let mut reference = Reference::new(&model);
            for param in &model.params {
                let values: Vec<f32> = (0..param.slot.len() as u64)
                    .map(|i| 0.3 * random::normal(2, random::site(&param.name), i) as f32)
                    .collect();
                reference.write(param.slot, &values);
            }
            for group in rows.chunks(size) {
                let tokens = group.iter().flat_map(|b| b.tokens.clone()).collect();
                let targets = group.iter().flat_map(|b| b.targets.clone()).collect();
                let mut batch = limpid::ops::Batch::of_sequences(tokens, targets, 12);
                batch.weight = 1.0 / counted as f32;
                reference.feed(&batch);
                reference.forward(model.body());
                reference.backward(&model.back);
            }
            model.params.iter().flat_map(|p| reference.exact(p.slot.grad()).to_vec()).collect::<Vec<f64>>()
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
    let _alone = alone();
    let text = text();
    let losses = |batch_size: usize, accumulate: usize, reduction| {
        let recipe = Recipe { batch_size, accumulate, reduction, clip: 0.0, init_std: 0.02, ..recipe() };
        let batches =
            Batches::new(&text, batch_size, 12, 1, Objective::Masked { mask: 16, vocab_size: 17, segments: false })
                .unwrap();
        let config = Config { mask: limpid::config::Mask::Bidirectional, ..tiny() };
        let step = trainer(&config, recipe).step(&batches).unwrap();
        (step.loss, step.norm)
    };
    // whatever the grouping, the loss is a mean over counted tokens (near ln 17), and a sum's gradient is larger
    for (b, a) in [(8, 1), (2, 4), (1, 8)] {
        assert!((losses(b, a, Reduction::Mean).0 - 17f64.ln()).abs() < 0.1);
        assert!(losses(b, a, Reduction::Sum).1 > 3.0 * losses(b, a, Reduction::Mean).1);
    }
}

#[test]
fn every_optimizer_learns() {
    let _alone = alone();
    let text = Tokens::of(ids()[..13].to_vec());
    let batches = Batches::new(&text, 4, 12, 1, Objective::NextToken).unwrap();
    for (optimizer, learning_rate) in [(Method::AdamW, 3e-3), (Method::Adam, 3e-3), (Method::Sgd, 0.3)] {
        let mut t = trainer(&tiny(), Recipe { optimizer, learning_rate, weight_decay: 0.0, steps: 80, ..recipe() });
        let first = t.step(&batches).unwrap().loss;
        let last = (0..79).map(|_| t.step(&batches).unwrap().loss).last().unwrap();
        assert!(last < 0.5 * first, "{optimizer}: {first} to {last}");
    }
}

#[test]
fn a_step_allocates_nothing() {
    let _alone = alone();
    let text = text();
    let config =
        Config { dropout: Dropout::everywhere(0.1), n_segment: 2, head_bias: true, embedding_norm: true, ..tiny() };
    let batches = Batches::new(&text, 4, 12, 1, Objective::NextToken).unwrap();
    let mut t = trainer(&config, Recipe { accumulate: 2, ..recipe() });
    t.step(&batches).unwrap();
    // other tests wait, but the test harness itself may allocate now and then: the least of several steps counts
    let least = (0..5)
        .map(|_| {
            let before = ALLOCATIONS.load(Ordering::Relaxed);
            t.step(&batches).unwrap();
            ALLOCATIONS.load(Ordering::Relaxed) - before
        })
        .min();
    assert_eq!(least, Some(0), "allocations in a step");
}

/// Nor where steps differ in their rows and sequences.
#[test]
fn a_step_of_documents_allocates_nothing() {
    let _alone = alone();
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
        let batches = Batches::of_documents(&text, 4, 12, 1, Objective::NextToken, documents).unwrap();
        let attempt = || {
            let mut t = trainer(&tiny(), recipe());
            t.step(&batches).unwrap();
            let before = ALLOCATIONS.load(Ordering::Relaxed);
            (0..20).for_each(|_| assert!(t.step(&batches).is_ok()));
            ALLOCATIONS.load(Ordering::Relaxed) - before
        };
        // the test harness may allocate now and then
        assert!((0..4).any(|_| attempt() == 0), "allocations in a step");
    }
}

#[test]
fn a_number_that_is_none_is_named_and_the_weights_stay() {
    let _alone = alone();
    let text = text();
    let batches = Batches::new(&text, 4, 12, 1, Objective::NextToken).unwrap();
    let mut t = trainer(&tiny(), recipe());
    t.step(&batches).unwrap();
    let slot = t.model.param("blocks.1.mlp.in.weight").unwrap().slot;
    let mut values = t.backend.read(slot);
    values[5] = f32::NAN;
    t.backend.write(slot, &values);
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
        let slot = t.model.param(name).unwrap().slot;
        t.backend.write(slot, &vec![3e37; slot.len()]);
    }
    let error = t.step(&batches).unwrap_err().to_string();
    assert!(error.contains("blocks.0.mlp.hook_p") || error.contains("blocks.0.hook_mlp_out"), "{error}");
    assert!(error.starts_with("step 1: "), "{error}");
}

fn folder(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("limpid-training-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&path);
    path
}

fn run_until(
    folder: &std::path::Path,
    recipe: Recipe,
    config: &Config,
    stop_at: Option<u64>,
    resume: bool,
) -> Vec<u32> {
    let documents = |ids: &[u32]| {
        let ends = (1..=ids.len()).filter(|i| *i == ids.len() || random::below(5, 0, *i as u64, 9) == 0).collect();
        Tokens::of_documents(ids.to_vec(), ends, None)
    };
    let [text, validation] = [&ids()[..500], &ids()[500..]].map(documents);
    let mut run =
        Run::new(trainer(config, recipe), Some(folder.to_path_buf()), &text, &validation, Objective::NextToken);
    let tokenizer = Tokenizer::train(Kind::Char, "abcdefghijklmnopq", Order::Sorted, &[]).unwrap();
    if resume {
        run.resume().unwrap();
    } else {
        run.describe(&tokenizer).unwrap();
    }
    run.go(&mut |event| match event {
        Event::Step(step, _) if Some(step.step) == stop_at => Control::Stop,
        _ => Control::Continue,
    })
    .unwrap();
    weights(&run.trainer)
}

#[test]
fn a_resumed_run_is_the_run_that_was_not_stopped() {
    let _alone = alone();
    let config = Config { dropout: Dropout::everywhere(0.2), ..tiny() };
    let sgd = Recipe { accumulate: 3, optimizer: Method::Sgd, learning_rate: 0.1, ..recipe() };
    let documents = Recipe { accumulate: 2, whole_documents: true, cross_documents: false, ..recipe() };
    for (n, recipe) in [recipe(), sgd, documents].into_iter().enumerate() {
        let (whole, parts) = (folder(&format!("whole{n}")), folder(&format!("parts{n}")));
        let want = run_until(&whole, recipe, &config, None, false);
        run_until(&parts, recipe, &config, Some(3), false);
        run_until(&parts, recipe, &config, Some(9), true);
        let got = run_until(&parts, recipe, &config, None, true);
        assert_eq!(got, want);
        let read = |dir: &PathBuf| fs::read(dir.join("model.safetensors")).unwrap();
        assert_eq!(read(&whole), read(&parts), "the best weights too");
        let steps = |dir: &PathBuf| {
            let lines = fs::read_to_string(dir.join("metrics.jsonl")).unwrap();
            let value = |line: &str| {
                let v: serde_json::Value = serde_json::from_str(line).unwrap();
                (v["step"].clone(), v["train_loss"].clone(), v["val_loss"].clone())
            };
            lines.lines().map(value).collect::<Vec<_>>()
        };
        assert_eq!(steps(&whole), steps(&parts), "every step is told once");
        fs::remove_dir_all(whole).unwrap();
        fs::remove_dir_all(parts).unwrap();
    }
}

#[test]
fn a_resume_with_other_settings_says_which() {
    let _alone = alone();
    let dir = folder("differs");
    run_until(&dir, recipe(), &tiny(), Some(5), false);
    let (text, none) = (text(), Tokens::default());
    let other = Recipe { learning_rate: 2e-3, ..recipe() };
    let mut run = Run::new(trainer(&tiny(), other), Some(dir.clone()), &text, &none, Objective::NextToken);
    let error = run.resume().unwrap_err().to_string();
    assert!(error.contains("learning_rate was 0.001 and is 0.002"), "{error}");
    let other = Recipe { cross_documents: false, ..recipe() };
    let mut run = Run::new(trainer(&tiny(), other), Some(dir.clone()), &text, &none, Objective::NextToken);
    assert!(run.resume().unwrap_err().to_string().contains("cross_documents was true and is false"));
    let other = Config { d_ff: 44, ..tiny() };
    let mut run = Run::new(trainer(&other, recipe()), Some(dir.clone()), &text, &none, Objective::NextToken);
    let error = run.resume().unwrap_err().to_string();
    assert!(error.contains("blocks.0.mlp.in.weight") && error.contains("[40, 24]"), "{error}");
    fs::write(dir.join("state/last.safetensors"), b"short").unwrap();
    let mut run = Run::new(trainer(&tiny(), recipe()), Some(dir.clone()), &text, &none, Objective::NextToken);
    assert!(run.resume().unwrap_err().to_string().contains("cut short"));
    fs::remove_dir_all(dir).unwrap();
}

/// Training keeps neither T x T scores nor (B T) x V logits: memory grows with T, and not with V but for tables.
#[test]
fn memory_is_linear_in_the_context_and_blind_to_the_vocabulary() {
    let _alone = alone();
    use limpid::ops::Space;
    let bytes = |context: usize, vocab_size: usize| {
        let config = Config { context_length: 2048, vocab_size, ..tiny() };
        let model = Model::new(&config, Use::Train { batch: 1, context }).unwrap();
        [Space::Act, Space::ActGrad, Space::Stat].map(|s| model.sizes[s as usize]).iter().sum::<usize>()
    };
    assert!(bytes(2048, 100) as f64 / bytes(1024, 100) as f64 <= 2.01);
    assert_eq!(bytes(512, 100), bytes(512, 100_000));
}

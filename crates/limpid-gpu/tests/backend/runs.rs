//! Runs on a GPU: they learn as they do on the processor, to the same bits twice, killed and resumed; a run moves from
//! one device to another; what is decoded is the whole forward's; and what a device cannot hold is refused by name
//! before memory is taken.

use crate::common::folder::Folder;
use crate::common::sequences::Sequences;
use crate::device::device;
use limpid::backend::{Backend, BackendError, Cpu};
use limpid::config::{Config, Dropout};
use limpid::data::source::Corpus;
use limpid::data::source::TextSource;
use limpid::generate::{Sampler, TokensBefore};
use limpid::matrix::Precision;
use limpid::model::init::{self, Init};
use limpid::model::{Mode, Model};
use limpid::ops::Batch;
use limpid::optimizer::Method;
use limpid::train::Objective;
use limpid::train::{Control, Divergence, Recipe, Run, RunData, RunOptions, Schedule, TrainEvent, Trainer};
use limpid::{Training, TrainingPlan};
use limpid_gpu::{Gpu, GpuChoice, GpuDevice};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// nano, and its recipe, for the built-in stories.
fn nano() -> (Config, Recipe) {
    (Config::preset("nano").unwrap(), Recipe { val_fraction: 0.01, ..Recipe::preset("nano").unwrap() })
}

/// A model that a software GPU trains too, with dropout and an average of the weights.
fn small() -> (Config, Recipe) {
    let (config, recipe) = nano();
    let dropout = Dropout::everywhere(0.1);
    let config = Config { context_length: 32, d_model: 48, n_head: 3, n_layer: 2, d_ff: 96, dropout, ..config };
    (config, Recipe { batch_size: 2, warmup_steps: 10, ema: 0.9, val_fraction: 0.002, ..recipe })
}

/// What is trained, on what.
struct Task {
    config: Config,
    recipe: Recipe,
    corpus: Corpus,
    objective: Objective,
}

fn task((config, recipe): (Config, Recipe), tokenizer: &str, steps: u64, seed: u64) -> Task {
    let mut source = TextSource::new("builtin:stories");
    source.tokenizer = Some(tokenizer.into());
    let training = Training::new(config, Recipe { steps, seed, ..recipe }).source(source);
    let TrainingPlan { config, recipe, corpus, objective, .. } = training.prepare().unwrap();
    Task { config, recipe, corpus, objective }
}

/// A processor, or a GPU.
type On<'a> = Option<&'a Arc<GpuDevice>>;

/// Trains, or goes on with what the folder holds, until after a step or to the end: the losses of the steps that were
/// done, and the trainer.
fn train(task: &Task, on: On, folder: Option<&Path>, until: Option<u64>) -> (Vec<f64>, Trainer) {
    train_in(Precision::F32, task, on, folder, until)
}

/// [`train`] with products in a precision, on a GPU.
fn train_in(
    precision: Precision,
    task: &Task,
    on: On,
    folder: Option<&Path>,
    until: Option<u64>,
) -> (Vec<f64>, Trainer) {
    let mut losses = vec![];
    let options = RunOptions { eval_every: 50, save_every: 10, layer_stats_every: 20, ..RunOptions::default() };
    let trainer = go(precision, task, on, folder, options, &mut |event| {
        let TrainEvent::Step(step, _) = event else { return Control::Continue };
        losses.extend(step.loss);
        if Some(step.step) == until { Control::Stop } else { Control::Continue }
    });
    (losses, trainer)
}

fn go(
    precision: Precision,
    task: &Task,
    on: On,
    folder: Option<&Path>,
    options: RunOptions,
    tell: &mut dyn FnMut(TrainEvent) -> Control,
) -> Trainer {
    let Task { config, recipe, corpus, objective, .. } = task;
    let model = Model::new(config, Mode::Train { batch: recipe.batch_size, context: recipe.context }).unwrap();
    let backend: Box<dyn Backend> = match on {
        Some(device) => Box::new(Gpu::start(device, &model).unwrap().rounding(precision).unwrap()),
        None => Box::new(Cpu::new(&model, 2)),
    };
    let trainer = Trainer::new(model, backend, *recipe).unwrap();
    let (folder, tokenizer) = (folder.map(Path::to_path_buf), &corpus.tokenizer);
    let resumes = folder.as_ref().is_some_and(|folder| Run::can_resume(folder));
    let mut run = Run::new(
        trainer,
        folder,
        RunData { train: &corpus.train, validation: &corpus.validation, objective: *objective, tokenizer },
    )
    .unwrap();
    run.options = RunOptions { eval_tokens: 256, ..options };
    if resumes {
        assert!(run.resume(None).unwrap() > 0);
    }
    run.go(tell).unwrap();
    run.trainer
}

fn bits(trainer: &Trainer) -> Vec<u32> {
    let values = trainer.model.params.iter().flat_map(|p| trainer.backend.read(p.region).unwrap());
    values.inspect(|v| assert!(v.is_finite())).map(f32::to_bits).collect()
}

/// How far apart runs of the processor are that differ in their seed alone: the root of the mean variance of the losses
/// of a step.
fn noise(runs: &[Vec<f64>]) -> f64 {
    let n = runs.len() as f64;
    let variance = |step: usize| {
        let mean = runs.iter().map(|run| run[step]).sum::<f64>() / n;
        runs.iter().map(|run| (run[step] - mean).powi(2)).sum::<f64>() / (n - 1.0)
    };
    let steps = runs[0].len();
    ((0..steps).map(variance).sum::<f64>() / steps as f64).sqrt()
}

/// The furthest apart that two runs are.
fn apart(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

/// How much of the noise a device may be from the processor: other roundings, which 200 steps carry on (1e-6 of it was
/// seen).
const SHARE: f64 = 1e-3;

const STEPS: u64 = 200;
const SEEDS: [u64; 4] = [1337, 1, 2, 3];

/// The processor's runs of the small model, one for each seed.
fn judged() -> &'static (Task, Vec<Vec<f64>>) {
    static RUNS: OnceLock<(Task, Vec<Vec<f64>>)> = OnceLock::new();
    let run = |seed| train(&task(small(), "char", STEPS, seed), None, None, None).0;
    RUNS.get_or_init(|| (task(small(), "char", STEPS, SEEDS[0]), SEEDS.map(run).into()))
}

/// Fails if a run is not the processor's of the first seed, by a measure that tells those of other seeds apart.
#[track_caller]
fn check(what: &str, losses: &[f64], runs: &[Vec<f64>]) {
    let (noise, found) = (noise(runs), apart(losses, &runs[0]));
    let (first, last) = (losses[0], losses[losses.len() - 20..].iter().sum::<f64>() / 20.0);
    println!("{what}: loss {first:.3} to {last:.3}; noise {noise:.4}, from the processor's by {found:.1e} at most");
    assert!(last < 0.8 * first, "{what} learns: {first} to {last}");
    assert!(runs[1..].iter().all(|other| apart(other, &runs[0]) > SHARE * noise), "the measure is blind");
    assert!(found <= SHARE * noise, "{what} is off by {found}, and {SHARE} of {noise} is allowed");
}

/// Between two evaluations or saves the device has the next step before it is asked what the last one did: it never
/// idles.
#[test]
fn a_device_has_the_next_step_before_it_is_asked_of_the_last() {
    if device().is_none() {
        return;
    }
    let device = GpuDevice::open(&GpuChoice::Best).unwrap(); // of which nobody else counts
    for accumulate in [1, 3] {
        let (config, recipe) = small();
        let task = task((config, Recipe { accumulate, ..recipe }), "char", 40, 1);
        let options = RunOptions { eval_every: 20, save_every: 0, layer_stats_every: 7, ..RunOptions::default() };
        let mut stalls = vec![];
        go(Precision::F32, &task, Some(&device), None, options, &mut |event| {
            if let TrainEvent::Step(..) = event {
                stalls.push(device.stalls());
            }
            Control::Continue
        });
        let each: Vec<u64> = stalls.windows(2).map(|two| two[1] - two[0]).collect();
        for (step, waits) in (2..).zip(&each) {
            // the last before an evaluation has nothing behind it, and the first after it begins anew
            assert!(*waits == 0 || [20, 21, 40].contains(&step), "step {step}, {accumulate} micro-batches: {each:?}");
        }
        assert_eq!((each.len(), each[18] > 0), (39, true), "the measure is blind: {each:?}");
    }
}

/// Losses that are too large change nothing before somebody has looked at them: the same steps are told as on the
/// processor, and training goes back as it does there.
#[test]
fn a_spike_is_seen_before_the_update() {
    let Some(device) = device() else { return };
    let (config, recipe) = small();
    let recipe = Recipe { schedule: Schedule::Constant, learning_rate: 0.03, batch_size: 1, ..recipe };
    let task = task((config, recipe), "char", 70, 1);
    for divergence in [Divergence::Note, Divergence::Rollback] {
        let options =
            RunOptions { divergence, spike_sigma: 0.9, eval_every: 0, save_every: 30, ..RunOptions::default() };
        let [want, found] = [None, Some(&device)].map(|on| {
            let (mut losses, mut notices) = (vec![], vec![]);
            let folder = Folder::absent("spikes");
            let trainer = go(Precision::F32, &task, on, Some(&folder), options, &mut |event| {
                match event {
                    TrainEvent::Step(step, _) => losses.extend(step.loss),
                    TrainEvent::Notice(what) => notices.push(what.split(": ").next().unwrap().to_string()),
                    _ => {}
                }
                Control::Continue
            });
            assert!(!bits(&trainer).is_empty());
            (losses, notices)
        });
        println!("{divergence:?}: {:?}, {:.1e} apart", found.1, apart(&want.0, &found.0));
        assert!(!want.1.is_empty() && want.1 == found.1, "{:?} and {:?}", want.1, found.1);
        assert!(apart(&want.0, &found.0) < 1e-3);
    }
}

/// Products of f16 learn as those of f32, where there are matrices of it: no gradient is lost below its range. Twice
/// the same bits.
#[test]
fn learning_in_f16_is_learning_in_f32() {
    let Some(device) = device().filter(|device| device.adapter.matrices.is_some()) else { return };
    let (task, runs) = judged();
    let [once, twice] = [(); 2].map(|()| train_in(Precision::F16, task, Some(&device), None, None));
    let (noise, found) = (noise(runs), apart(&once.0, &runs[0]));
    println!("in f16: noise {noise:.4}, from the processor's f32 by {found:.1e} at most");
    assert!(found > 0.0, "f16 rounds; was it asked for?");
    // another seed changes as much as the noise; eleven bits change a few thousandths of it
    assert!(found <= 0.05 * noise, "off by {found}, noise {noise}");
    assert!(once.0 == twice.0 && bits(&once.1) == bits(&twice.1));
}

/// So many steps are done twice.
fn learns_as_on_the_processor(of: (Config, Recipe), twice: u64) {
    let Some(device) = device() else { return };
    let runs = SEEDS.map(|seed| train(&task(of.clone(), "bpe", STEPS, seed), None, None, None).0);
    let task = task(of, "bpe", STEPS, SEEDS[0]);
    let (losses, trainer) = train(&task, Some(&device), None, None);
    check("nano on the gpu", &losses, &runs);
    let again = train(&task, Some(&device), None, Some(twice));
    assert_eq!(again.0, losses[..twice as usize]);
    assert!(twice < STEPS || bits(&trainer) == bits(&again.1));
}

/// The name of the next test, which runs itself in a process that is killed.
const KILLED: &str = "runs::a_killed_run_goes_on_to_the_same_bits";

#[test]
fn a_killed_run_goes_on_to_the_same_bits() {
    const CHILD: &str = "LIMPID_GPU_TEST_FOLDER";
    let Some(device) = device() else { return };
    let task = task(small(), "char", 60, 7);
    if let Some(folder) = std::env::var_os(CHILD) {
        train(&task, Some(&device), Some(Path::new(&folder)), None);
        return;
    }
    let [whole, parts] = ["whole", "parts"].map(Folder::absent);
    let want = train(&task, Some(&device), Some(&whole), None);
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([KILLED, "--exact", "--include-ignored"])
        .env(CHILD, &parts.0)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let start = Instant::now();
    let lines = || std::fs::read_to_string(parts.join("metrics.jsonl")).map_or(0, |text| text.lines().count());
    while !(Run::can_resume(&parts) && lines() > 25) {
        assert!(start.elapsed() < Duration::from_secs(120), "the child does not train");
        assert!(child.try_wait().unwrap().is_none(), "the child ended before it was killed");
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    assert!(!child.wait().unwrap().success());
    let rest = train(&task, Some(&device), Some(&parts), None);
    assert!((1..60).contains(&rest.0.len()), "{} steps were left", rest.0.len());
    assert_eq!(rest.0, want.0[60 - rest.0.len()..]);
    assert!(bits(&rest.1) == bits(&want.1));
    let model = |folder: &Path| std::fs::read(folder.join("model.safetensors")).unwrap();
    assert!(model(&whole) == model(&parts), "the best weights too");
}

/// Begun on the processor, gone on with on the GPU, finished on the processor: the state is the same on both.
#[test]
fn a_run_moves_between_devices() {
    let Some(device) = device() else { return };
    let ((task, runs), path) = (judged(), Folder::absent("moves"));
    let legs: [(On, Option<u64>); 3] = [(None, Some(70)), (Some(&device), Some(140)), (None, None)];
    let losses: Vec<Vec<f64>> = legs.iter().map(|(on, until)| train(task, *on, Some(&path), *until).0).collect();
    assert_eq!([70, 70, 60], [losses[0].len(), losses[1].len(), losses[2].len()]);
    assert_eq!(losses[0], runs[0][..70]);
    assert!(losses[1] != runs[0][70..140], "the GPU rounds otherwise; was it there?");
    check("a run that moves", &losses.concat(), runs);
}

/// Sequences that are decoded side by side, token by token, and sampled: tokens and logits are those of the whole
/// forward of what there is so far.
#[test]
fn decoding_samples_the_tokens_of_the_whole_forward() {
    let Some(device) = device() else { return };
    let task = task(small(), "char", 100, 1);
    let trainer = train(&task, None, None, None).1;
    let (config, start) = (&task.config, |model: &Model| Gpu::start(&device, model));
    let mut session = Sequences::new(config, 3, 16, |model| Ok(Box::new(start(model)?))).unwrap();
    session.take_parameters(&trainer.model, &*trainer.backend).unwrap();
    let whole = Model::new(config, Mode::Inspect { batch: 1, context: 32 }).unwrap();
    let mut forward = start(&whole).unwrap();
    for param in &whole.params {
        let own = trainer.model.param(&param.name).unwrap().region;
        forward.write(param.region, &trainer.backend.read(own).unwrap()).unwrap();
    }
    let sampler = Sampler { temperature: 0.9, top_k: 40, repetition_penalty: 1.1, seed: 5, ..Sampler::default() };
    let prompts = ["Once", "The fox sang all day long", "A"].map(|text| task.corpus.tokenizer.encode(text).unwrap());
    let ids = [(); 3].map(|()| session.open());
    let mut texts = prompts.clone();
    session.extend(&[(ids[0], &prompts[0]), (ids[1], &prompts[1]), (ids[2], &prompts[2])]).unwrap();
    let mut compared = 0;
    for step in 0.. {
        let mut next = vec![];
        for (n, id) in ids.iter().enumerate().filter(|(n, _)| texts[*n].len() < 32) {
            let (prompt, answer) = texts[n].split_at(prompts[n].len());
            let before = TokensBefore { prompt, answer };
            forward.feed(&Batch::of_sequences(texts[n].clone(), vec![], texts[n].len())).unwrap();
            forward.forward(whole.ops()).unwrap();
            let logits = forward.read(whole.logits().unwrap()).unwrap();
            let last = &logits[(texts[n].len() - 1) * config.vocab_size..][..config.vocab_size];
            let decoded = session.logits(*id);
            assert!(decoded.iter().zip(last).all(|(a, b)| a.to_bits() == b.to_bits()), "sequence {n}, step {step}");
            let [token, wanted] = [decoded, last].map(|l| sampler.pick(l, before, n as u64, step).unwrap());
            assert_eq!(token, wanted);
            next.push((n, *id, token));
            compared += 1;
        }
        if next.is_empty() {
            break;
        }
        session.step(&next.iter().map(|(_, id, token)| (*id, *token)).collect::<Vec<_>>()).unwrap();
        next.iter().for_each(|(n, _, token)| texts[*n].push(*token));
    }
    assert_eq!(compared, prompts.iter().map(|prompt| 32 - prompt.len()).sum::<usize>());
    texts.iter().for_each(|text| println!("{:?}", task.corpus.tokenizer.decode(text)));
}

/// Bytes of a tensor that a kernel sees by default, and on lavapipe.
const USUAL: u64 = 128 << 20;

/// Models of their own size on a device with the usual limits: tables of any size are taken in rows, and an activation
/// or a cache that is too large is named, before any memory is taken.
#[test]
fn tensors_larger_than_a_binding_are_refused_by_name() {
    let Some(_) = device() else { return };
    let usual = GpuDevice::open_within(&GpuChoice::Best, [u64::MAX, USUAL]).unwrap();
    // whose memory has no place for GPT-2's table: whoever takes memory first hears of that
    let tight = GpuDevice::open_within(&GpuChoice::Best, [USUAL; 2]).unwrap();
    let train = |batch, context| Mode::Train { batch, context };
    let decode = |blocks| Mode::Decode { rows: 64, outputs: 32, blocks };
    for (preset, mode, refused) in [
        ("gpt2", train(12, 1024), Some(("blocks.0.mlp.hook_pre", "a smaller batch"))),
        ("gpt2-xl", train(8, 1024), Some(("blocks.0.attn.hook_qkv", "a smaller batch"))),
        // 32 sequences of 1,024
        ("gpt2", decode(512), Some(("cache", "fewer sequences"))),
        // its table alone is larger
        ("gpt2", train(1, 64), None),
    ] {
        let layers = if refused.is_none() { 1 } else { Config::preset(preset).unwrap().n_layer };
        let config = Config { n_layer: layers, ..Config::preset(preset).unwrap() };
        let model = Model::new(&config, mode).unwrap();
        let device = if refused.is_some() { &tight } else { &usual };
        match (Gpu::start(device, &model).map(drop), refused) {
            (Ok(()), None) => {
                // a step with its table, which is taken in rows, and its 50,257 logits
                let losses = [None, Some(device)].map(|on| {
                    let mut backend: Box<dyn Backend> = match on {
                        Some(device) => Box::new(Gpu::start(device, &model).unwrap()),
                        None => Box::new(Cpu::new(&model, 2)),
                    };
                    for param in &model.params {
                        backend.write(param.region, &init::values(&model, param, Init::Gpt2, 0.02, 1)).unwrap();
                    }
                    let ids = |first: u32| (0..8).map(|i| (first + 7919 * i) % config.vocab_size as u32).collect();
                    backend.feed(&Batch::of_sequences(ids(50_256), ids(1), 8)).unwrap();
                    backend.forward(model.body()).unwrap();
                    backend.backward(model.back()).unwrap();
                    let table = model.param("embed.weight").unwrap().region.grad();
                    let gradient = backend.read(table).unwrap();
                    (backend.read(model.losses().unwrap()).unwrap()[..8].to_vec(), gradient)
                });
                let off = |a: &[f32], b: &[f32]| {
                    let largest = b.iter().fold(0f32, |most, v| most.max(v.abs()));
                    a.iter().zip(b).map(|(a, b)| (a - b).abs() / largest).fold(0f32, f32::max)
                };
                let [want, found] = &losses;
                let off = [off(&found.0, &want.0), off(&found.1, &want.1)];
                println!(
                    "{preset}'s table at the usual limit: losses and its gradient are off by {:.1e} and {:.1e}",
                    off[0], off[1]
                );
                assert!(off[0] < 1e-5 && off[1] < 1e-4, "{off:?}");
            }
            (Err(BackendError::NotSupported { what, .. }), Some((tensor, mend))) => {
                println!("{preset} {mode:?}: {what}");
                let named = what.starts_with(&format!("`{tensor}")) && what.contains(mend);
                assert!(named && what.contains(&format!("sees {} ", USUAL / 4)), "{what}");
            }
            (found, _) => panic!("{preset} {mode:?}: {found:?}"),
        }
    }
}

/// Longer than the gate may take: `cargo xtask sweep` runs them.
mod slow {
    use super::*;

    /// 200 steps of nano are those of the processor within a small share of the noise, and twice the same bits. A step
    /// has one sequence here, and AdamW: Muon, which other runs have, takes a software GPU three times as long.
    #[test]
    #[ignore = "200 steps, four times on the processor and twice on a GPU, which may be a software one"]
    fn nano_learns_as_on_the_processor_and_twice_the_same() {
        let (config, recipe) = nano();
        learns_as_on_the_processor((config, Recipe { batch_size: 1, optimizer: Method::AdamW, ..recipe }), STEPS);
    }

    /// The same for nano as it is, but ten steps twice.
    #[test]
    #[ignore = "nine minutes on a software GPU"]
    fn nano_as_it_is_learns_as_on_the_processor() {
        learns_as_on_the_processor(nano(), 10);
    }
}

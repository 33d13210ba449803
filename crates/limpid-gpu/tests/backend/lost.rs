//! What a GPU takes and what it may refuse: the bytes that a plan counts are those that are reserved; memory that is
//! refused changes nothing; of a device that is lost every verb says so, and a run goes on from what was saved. Without
//! a GPU, real or in software, the tests say so and pass, or fail where `GPU_REQUIRED` is set.

use crate::common::folder::{Folder, copy_folder};
use limpid_core::backend::{Backend, BackendError, Cpu, Result, TrainingMemory};
use limpid_core::config::Config;
use limpid_core::matrix::Precision;
use limpid_core::model::{MemoryPart, Mode, Model, Tuning, init};
use limpid_core::numeric::random;
use limpid_core::numeric::simd::Level;
use limpid_core::ops::{Batch, MemorySpace, Region};
use limpid_core::optimizer::{Change, Method, ParamGroup, Rule};
use limpid_data::Tokens;
use limpid_gpu::{Gpu, GpuChoice, GpuDevice};
use limpid_tokenizer::{Order, Tokenizer, TokenizerKind};
use limpid_train::{Control, Objective, Recipe, Run, RunData, RunOptions, Summary, TrainError, TrainEvent, Trainer};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

/// A device of this test's own, or `None` and a word where there is none.
fn device() -> Option<Arc<GpuDevice>> {
    match GpuDevice::open(&GpuChoice::Best) {
        Ok(device) => Some(device),
        Err(error) => {
            assert!(std::env::var_os("GPU_REQUIRED").is_none(), "{error}");
            println!("not tested: {error}");
            None
        }
    }
}

/// Fails where `work` takes as long as something that never ends.
fn in_time(work: impl FnOnce() + Send + 'static) {
    let (tell, told) = channel();
    let thread = std::thread::spawn(move || {
        work();
        tell.send(()).unwrap();
    });
    match told.recv_timeout(Duration::from_secs(300)) {
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("it hangs"),
        _ => thread.join().unwrap(),
    }
}

const BATCH: usize = 2;
const CONTEXT: usize = 8;

fn config() -> Config {
    let nano = Config::preset("nano").unwrap();
    Config { vocab_size: 7, context_length: CONTEXT, d_model: 32, n_head: 2, n_layer: 2, d_ff: 64, ..nano }
}

fn trained() -> Model {
    Model::new(&config(), Mode::Train { batch: BATCH, context: CONTEXT }).unwrap()
}

fn batch() -> Batch {
    let ids = |site| (0..(BATCH * CONTEXT) as u64).map(|i| random::below(3, site, i, 7) as u32).collect();
    Batch { seed: Some(1), ..Batch::of_sequences(ids(1), ids(2), CONTEXT) }
}

fn fill(model: &Model, backend: &mut dyn Backend) {
    model.params.iter().for_each(|param| backend.write(param.region, &init::any_values(param)).unwrap());
}

fn gradient(model: &Model, backend: &mut dyn Backend) {
    backend.feed(&batch()).unwrap();
    backend.forward(model.body()).unwrap();
    backend.backward(model.back()).unwrap();
}

fn rule(method: Method) -> Rule {
    Recipe { optimizer: method, ..Recipe::default() }.rule(1e-2, 1)
}

/// A training with all that it ever reserves: for each optimizer, with and without an average, for one micro-batch and
/// for five; at the least level and the most of what is made again; on a device that takes small buffers only, whose
/// spaces are pages. And a model that decodes.
#[test]
fn what_a_plan_counts_is_what_is_reserved() {
    for small in [false, true] {
        let most = if small { [64 << 10; 2] } else { [u64::MAX; 2] };
        let open = || GpuDevice::open_within(&GpuChoice::Best, most);
        if device().is_none() {
            return;
        }
        for (method, average, accumulate, level) in
            [(Method::AdamW, true, 1usize, 0), (Method::Muon, false, 5, 0), (Method::Sgd, true, 2, 4)]
        {
            let mode = Mode::Train { batch: BATCH, context: CONTEXT };
            let model = Model::at_recompute_level(&config(), mode, &Tuning::default(), level).unwrap();
            let groups = model.update_groups(0.1, method);
            let training = TrainingMemory { groups: &groups, average, aside: accumulate.ilog2() as usize };
            let device = open().unwrap();
            let counted = device.adapter.takes(&model, Some(&training)).unwrap();
            assert_eq!(device.reserved(), 0, "counting reserves nothing");
            let mut gpu = Gpu::start(&device, &model).unwrap();
            let at_rest = device.adapter.takes(&model, None).unwrap();
            let sum = |parts: &[(MemoryPart, usize)]| parts.iter().map(|(_, bytes)| *bytes as u64).sum::<u64>();
            let moments = counted.parts.iter().find(|(part, _)| *part == MemoryPart::Moments).unwrap().1;
            assert_eq!(device.reserved(), sum(&at_rest.parts), "{method} {small}, before a step");
            assert!(moments > 0 && sum(&at_rest.parts) > moments as u64);
            fill(&model, &mut gpu);
            // as a trainer does: a binary counter of gradients
            for micro in 0..accumulate {
                gradient(&model, &mut gpu);
                (0..micro.trailing_ones()).for_each(|_| gpu.add_pushed().unwrap());
                if micro + 1 < accumulate {
                    gpu.push_gradients().unwrap();
                }
            }
            let mut watch: Vec<Change> = model.params.iter().map(|param| Change::new(param.region.range())).collect();
            gpu.update(&groups, &rule(method), &mut watch).unwrap();
            if average {
                gpu.average(&groups, 0.9).unwrap();
            }
            assert_eq!(device.reserved(), sum(&counted.parts), "{method} {small}: {counted:?}");
            drop(gpu);
            assert_eq!(device.reserved(), 0, "all is given back");
        }
        let model = Model::new(&config(), Mode::Decode { rows: 6, outputs: 3, blocks: 4 }).unwrap();
        let device = open().unwrap();
        let counted: usize = device.adapter.takes(&model, None).unwrap().parts.iter().map(|(_, bytes)| bytes).sum();
        let gpu = Gpu::start(&device, &model).unwrap();
        assert_eq!(device.reserved(), counted as u64);
        drop(gpu);
    }
}

/// Memory that is refused at the start, and in the middle of an update: the message has the figures and the mend,
/// nothing was changed, and the same update goes on when there is memory.
#[test]
fn refused_memory_changes_nothing() {
    let Some(device) = device() else { return };
    let (model, rule) = (trained(), rule(Method::Muon));
    device.refuse_beyond(1000);
    let said = Gpu::start(&device, &model).map(drop).unwrap_err();
    assert!(matches!(said, BackendError::Memory { .. }), "{said}");
    for word in [&*device.adapter.name, "holds", "recomputing activations"] {
        assert!(said.to_string().contains(word), "{said}");
    }
    assert_eq!(said.settings(), ["batch_size", "memory"]);
    device.refuse_beyond(u64::MAX);
    let groups = model.update_groups(0.1, Method::Muon);
    let all = |gpu: &Gpu| -> Vec<Vec<f32>> {
        let spaces = [MemorySpace::Param, MemorySpace::Grad, MemorySpace::Moment1, MemorySpace::Moment2];
        let regions = |space| model.params.iter().map(move |param| Region { space, ..param.region });
        spaces.into_iter().flat_map(regions).map(|region| gpu.read(region).unwrap()).collect()
    };
    let start = || {
        let mut gpu = Gpu::start(&device, &model).unwrap();
        fill(&model, &mut gpu);
        gradient(&model, &mut gpu);
        gpu
    };
    let mut calm = start();
    calm.update(&groups, &rule, &mut []).unwrap();
    let mut gpu = start();
    let before = all(&gpu);
    device.refuse_beyond(device.reserved());
    let said = gpu.update(&groups, &rule, &mut []).unwrap_err();
    assert!(matches!(said, BackendError::Memory { .. }), "{said}");
    assert!(all(&gpu) == before, "nothing was changed");
    device.refuse_beyond(u64::MAX);
    gpu.update(&groups, &rule, &mut []).unwrap();
    assert!(all(&gpu) == all(&calm), "as if nothing had been refused");
}

/// A verb, of a backend whose gradient is computed.
type Verb = fn(&mut Gpu, &Model, &[ParamGroup]) -> Result<()>;

const VERBS: &[(&str, Verb)] = &[
    ("feed", |gpu, _, _| gpu.feed(&batch())),
    ("forward", |gpu, model, _| gpu.forward(model.body())),
    ("backward", |gpu, model, _| gpu.backward(model.back())),
    ("begin_update", |gpu, _, groups| gpu.begin_update(groups, &rule(Method::AdamW), &[])),
    ("report", |gpu, _, _| gpu.report(&mut []).map(drop)),
    ("squares", |gpu, _, groups| gpu.squares(groups).map(drop)),
    ("push_gradients", |gpu, _, _| gpu.push_gradients()),
    ("add_pushed_to", |gpu, _, _| gpu.add_pushed_to(0..8)),
    ("add_pushed", |gpu, _, _| gpu.add_pushed()),
    ("clear", |gpu, _, _| gpu.clear()),
    ("average", |gpu, _, groups| gpu.average(groups, 0.9)),
    ("request", |gpu, model, _| gpu.request(model.params[0].region).map(drop)),
    ("read", |gpu, model, _| gpu.read(model.params[0].region).map(drop)),
    ("upload", |gpu, model, _| gpu.write(model.params[0].region.grad(), &init::any_values(&model.params[0]))),
    ("start", |gpu, model, _| Gpu::start(gpu.device(), model).map(drop)),
    ("start_with", |gpu, model, _| Gpu::start_with(model, &gpu.share()?).map(drop)),
];

#[test]
fn every_verb_of_a_lost_device_says_so() {
    if device().is_none() {
        return;
    }
    in_time(|| {
        for (verb, call) in VERBS {
            let device = device().unwrap();
            let model = trained();
            let groups = model.update_groups(0.1, Method::AdamW);
            let mut gpu = Gpu::start(&device, &model).unwrap();
            fill(&model, &mut gpu);
            gradient(&model, &mut gpu);
            gpu.begin_update(&groups, &rule(Method::AdamW), &[]).unwrap();
            gradient(&model, &mut gpu);
            gpu.push_gradients().unwrap();
            let ticket = gpu.request(model.params[0].region).unwrap();
            device.lose();
            let found = call(&mut gpu, &model, &groups);
            let again = call(&mut gpu, &model, &groups);
            let mut values = vec![0.0; model.params[0].region.len()];
            for found in [found, again, gpu.fetch(ticket, &mut values), gpu.feed(&batch())] {
                let Err(said @ BackendError::Lost { .. }) = &found else { panic!("{verb}: {found:?}") };
                for word in [&*device.adapter.name, "lost", "resume from the last save", "cpu"] {
                    assert!(said.to_string().contains(word), "{verb}: {said}");
                }
            }
        }
    });
}

/// Nothing is left of what was asked for before: tickets of updates and reads end too.
#[test]
fn what_waits_for_a_lost_device_hears_of_it() {
    let Some(device) = device() else { return };
    in_time(move || {
        let model = trained();
        let mut gpu = Gpu::start(&device, &model).unwrap();
        fill(&model, &mut gpu);
        let loses = device.clone();
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            loses.lose();
        });
        // steps until one fails: each waits for its report
        let groups = model.update_groups(0.1, Method::AdamW);
        let step = |gpu: &mut Gpu| -> Result<()> {
            gpu.feed(&batch())?;
            gpu.forward(model.body())?;
            gpu.backward(model.back())?;
            gpu.update(&groups, &rule(Method::AdamW), &mut []).map(drop)
        };
        let said = (0..100_000).find_map(|_| step(&mut gpu).err()).expect("it was lost");
        assert!(matches!(said, BackendError::Lost { .. }), "{said}");
        thread.join().unwrap();
    });
}

const STEPS: u64 = 6;

/// A run of six steps that saves every two.
struct Case {
    train: Tokens,
    validation: Tokens,
    tokenizer: Tokenizer,
}

impl Case {
    fn new() -> Case {
        let ids: Vec<u32> = (0..400).map(|i| random::below(1, 0, i / 3, 7) as u32).collect();
        let [train, validation] = [&ids[..300], &ids[300..]].map(|ids| Tokens::new(ids.to_vec()));
        let tokenizer = Tokenizer::train(TokenizerKind::Char, "abcdefg", Order::Sorted, &[]).unwrap();
        Case { train, validation, tokenizer }
    }

    /// Takes up what the folder holds, or begins, and goes on until the end, or until the device is lost.
    fn go(&self, folder: &Path, device: Option<&Arc<GpuDevice>>, lose_at: Option<u64>) -> Result<Summary, TrainError> {
        let recipe = Recipe {
            steps: STEPS,
            batch_size: BATCH,
            context: CONTEXT,
            warmup_steps: 1,
            ema: 0.9,
            accumulate: 3,
            ..Recipe::default()
        };
        let model = trained();
        let backend: Box<dyn Backend> = match device {
            Some(device) => Box::new(Gpu::start(device, &model)?),
            None => Box::new(Cpu::start(&model, 1, Level::best(), Precision::F32)?),
        };
        let trainer = Trainer::new(model, backend, recipe)?;
        let folder = folder.to_path_buf();
        let resumes = Run::can_resume(&folder);
        let mut run = Run::new(
            trainer,
            Some(folder),
            RunData {
                train: &self.train,
                validation: &self.validation,
                objective: Objective::NextToken,
                tokenizer: &self.tokenizer,
            },
        )?;
        run.options =
            RunOptions { eval_every: 2, save_every: 2, eval_tokens: 40, preflight: false, ..RunOptions::default() };
        if resumes {
            run.resume(None)?;
        }
        run.go(&mut |event| {
            if let (TrainEvent::Step(step, _), Some(device)) = (&event, device)
                && Some(step.step) == lose_at
            {
                device.lose();
            }
            Control::Continue
        })
    }
}

/// A run whose device is lost ends with an error, its folder as the last save left it. It goes on on another device of
/// the kind with the bits of a run that nothing happened to, and on the processor to rounding.
#[test]
fn a_run_goes_on_after_its_device_was_lost() {
    if device().is_none() {
        return;
    }
    in_time(|| {
        let case = Case::new();
        let [calm, lost, on_cpu] = ["calm", "lost", "cpu"].map(Folder::absent);
        let whole = case.go(&calm, device().as_ref(), None).unwrap();
        assert_eq!(whole.steps, STEPS);
        let said = case.go(&lost, device().as_ref(), Some(3)).unwrap_err();
        assert!(matches!(said, TrainError::Backend(BackendError::Lost { .. })), "{said}");
        Run::check(&lost, None).expect("the last state is whole");
        copy_folder(&lost, &on_cpu);
        let [again, cpu] = [(&lost, device()), (&on_cpu, None)]
            .map(|(folder, device)| case.go(folder, device.as_ref(), None).unwrap());
        assert_eq!((again.steps, again.train_loss, again.val_loss), (whole.steps, whole.train_loss, whole.val_loss));
        let weights = |folder: &Path| fs::read(folder.join("model.safetensors")).unwrap();
        assert!(weights(&lost) == weights(&calm), "a fresh device has other bits");
        let off = (cpu.train_loss.unwrap() - whole.train_loss.unwrap()).abs();
        assert!(cpu.steps == STEPS && off < 1e-4, "{off}: {cpu:?} {whole:?}");
    });
}

//! Every op on a GPU against `reference`, over the sample of configurations that takes all pairs of axes; whole runs; updates; the
//! same bits twice. On a machine without a GPU a software one does (Mesa's lavapipe); without any, the tests say so and pass, or
//! fail where `LIMPID_GPU_REQUIRED` is set. `LIMPID_GPU_ALL` takes all of the sample, not a part.

extern crate limpid_core as limpid;
#[path = "../../limpid/tests/random_config/mod.rs"]
mod random_config;

use limpid::backend::{Backend, Reference};
use limpid::config::Config;
use limpid::model::{Mode, Model, Tuning};
use limpid::ops::classify::Terms;
use limpid::ops::{Back, Batch, IGNORE, MemorySpace, Op, Region, random};
use limpid_gpu::{Gpu, GpuChoice, GpuDevice};
use random_config::{configs, fill};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

/// The device of all tests, or `None` and a word where there is none.
fn device() -> Option<Arc<GpuDevice>> {
    static DEVICE: OnceLock<Option<Arc<GpuDevice>>> = OnceLock::new();
    let open = || match GpuDevice::open(&GpuChoice::Best) {
        Ok(device) => {
            println!("on {}", device.adapter);
            Some(device)
        }
        Err(error) => {
            assert!(std::env::var_os("LIMPID_GPU_REQUIRED").is_none(), "{error}");
            println!("not tested: {error}");
            None
        }
    };
    DEVICE.get_or_init(open).clone()
}

/// A part of the sample, or all of it.
fn some(every: usize) -> impl Iterator<Item = (usize, Config)> {
    let every = if std::env::var_os("LIMPID_GPU_ALL").is_some() { 1 } else { every };
    configs().into_iter().enumerate().filter(move |(i, _)| i % every == 0)
}

const BATCH: usize = 2;
const CONTEXT: usize = 5;

/// Two sequences, one of them padded; some rows without a target; segments where the model has them.
fn batch(config: &Config, seed: u64) -> Batch {
    let rows = (BATCH * CONTEXT) as u64;
    let ids = |site: u64| {
        (0..rows).map(|i| random::below(seed, site, i, config.vocab_size as u64) as u32).collect::<Vec<_>>()
    };
    let mut targets = ids(2);
    [3, 8, 9].into_iter().for_each(|n| targets[n] = IGNORE);
    let mut batch = Batch::of_sequences(ids(1), targets, CONTEXT);
    batch.spans[1].valid = 3;
    if config.n_segment > 0 {
        batch.segments = (0..rows).map(|i| (i % 2) as u32).collect();
    }
    batch.seed = Some(seed);
    if seed % 2 == 1 {
        batch.terms = Terms { smoothing: 0.1, z_loss: 0.02 };
    }
    batch
}

/// Every tensor an op touches, except the constant tables.
fn touched(mut op: Op) -> Vec<Region> {
    op.operands().map(|(_, region)| *region).filter(|s| s.space != MemorySpace::Const).collect()
}

fn touched_back(step: Back) -> Vec<Region> {
    let operands = touched(step.op);
    let grads = operands.iter().filter(|s| s.space == MemorySpace::Param).map(|s| s.grad());
    let given = step.dy.into_iter().chain(step.dx.into_iter().flatten().map(|g| g.region));
    operands.iter().copied().chain(grads).chain(given).chain(step.watched.into_iter().flatten()).collect()
}

fn copy(regions: &[Region], from: &dyn Backend, to: &mut dyn Backend) {
    regions.iter().for_each(|region| to.write(*region, &from.read(*region).unwrap()).unwrap());
}

/// How far values are off, relative to the largest; a value that is off by more than `slack` fails.
#[track_caller]
fn off(what: &str, got: &[f32], want: &[f32], slack: f32) -> f32 {
    // sums of terms near 0.01 may cancel to less: their rounding is relative to the terms
    let size = want.iter().filter(|v| v.is_finite()).fold(1e-2f32, |m, v| m.max(v.abs()));
    let mut worst = 0f32;
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let off = if g == w { 0.0 } else { (g - w).abs() / size }; // equal infinities count
        assert!(off <= slack, "{what}[{i}]: got {g}, want {w}, off by {off:.1e} of {size}, allowed {slack:.1e}");
        worst = worst.max(off);
    }
    worst
}

/// The worst of each op and direction.
type Worst = BTreeMap<(&'static str, &'static str), f32>;

/// Every op, forward and backward, from the same f32 inputs on both sides.
fn by_op(device: &Arc<GpuDevice>, config: &Config, tuning: &Tuning, mode: Mode, seed: u64, worst: &mut Worst) {
    let model = Model::tuned(config, mode, tuning).unwrap();
    let (mut reference, mut gpu) = (Reference::new(&model), Gpu::start(device, &model).unwrap());
    let batch = batch(config, seed);
    fill(&model, &mut reference, seed);
    fill(&model, &mut gpu, seed);
    reference.feed(&batch).unwrap();
    gpu.feed(&batch).unwrap();
    // two numbers less their mean may cancel
    let slack = |op: &Op| if matches!(op, Op::QkNorm { .. }) { 4e-5 } else { 8e-6 };
    let mut note = |op: &Op, way, found: f32| {
        let entry = worst.entry((op.name(), way)).or_default();
        *entry = entry.max(found);
    };
    for (op, alone) in model.ops().each() {
        let regions = touched(*op);
        copy(&regions, &reference, &mut gpu);
        copy(&regions, &gpu, &mut reference); // now rounded to f32
        reference.forward(alone).unwrap();
        gpu.forward(alone).unwrap();
        for region in regions {
            let what = format!("{} {}, {seed}: {config:?}", op.name(), model.name_of(region));
            let found = off(&what, &gpu.read(region).unwrap(), &reference.read(region).unwrap(), slack(op));
            note(op, "forward", found);
        }
    }
    for (step, alone) in model.back().each().filter_map(|(pass, alone)| Some((pass.back()?, alone))) {
        let regions = touched_back(*step);
        copy(&regions, &reference, &mut gpu);
        copy(&regions, &gpu, &mut reference);
        reference.backward(alone).unwrap();
        gpu.backward(alone).unwrap();
        let dx = step.dx.iter().flatten().map(|g| g.region);
        let params = touched(step.op).into_iter().filter(|s| s.space == MemorySpace::Param).map(|s| s.grad());
        for region in dx.chain(params).chain(step.watched.into_iter().flatten()) {
            let what = format!("gradient of {} at {region:?}, {seed}: {config:?}", step.op.name());
            let (got, want) = (gpu.read(region).unwrap(), reference.read(region).unwrap());
            note(&step.op, "backward", off(&what, &got, &want, 4.0 * slack(&step.op)));
        }
    }
}

#[test]
fn every_op_agrees_with_reference() {
    let Some(device) = device() else { return };
    let mut worst = Worst::new();
    for (i, config) in some(3) {
        let (train, look) =
            (Mode::Train { batch: BATCH, context: CONTEXT }, Mode::Inspect { batch: BATCH, context: CONTEXT });
        by_op(&device, &config, &Tuning::default(), train, i as u64, &mut worst);
        by_op(&device, &config, &Tuning::default(), look, i as u64, &mut worst);
    }
    assert_eq!(worst.len(), 12 * 2, "each op in both directions, but for gathering: {worst:?}");
    for ((op, way), found) in worst {
        println!("{op:10} {way:9} {found:.1e}");
    }
}

//! Every op on a GPU against `reference`, over the sample of configurations that takes all pairs of axes; whole runs;
//! updates; the same bits twice. `GPU_ALL` takes all of the sample, not a part.

use crate::device::device;
use crate::random_config::{self, BATCH, CONTEXT, batch, fill};
use limpid::backend::{Backend, BackendError, Cpu, Reference};
use limpid::config::{Activation, Axis, Config, Mask, Positions, RotaryKind, RotaryScaling};
use limpid::matrix::Precision;
use limpid::model::{Lora, Mode, Model, Tuning};
use limpid::numeric::element::Element;
use limpid::numeric::half::{nearest_bf16, widen_bf16};
use limpid::numeric::random;
use limpid::ops::{Batch, MemorySpace, Op, Region, Span, Terms};
use limpid::optimizer::{Change, Method, Rule};
use limpid::train::{Recipe, Trainer};
use limpid_gpu::{Gpu, GpuChoice, GpuDevice};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The sample, with as many features of values as of queries and keys: a GPU takes no others.
fn configs() -> Vec<Config> {
    random_config::configs().into_iter().map(|config| Config { d_v: None, ..config }).collect()
}

/// A part of the sample, or all of it.
fn some(every: usize) -> impl Iterator<Item = (usize, Config)> {
    let every = if std::env::var_os("GPU_ALL").is_some() { 1 } else { every };
    configs().into_iter().enumerate().filter(move |(i, _)| i % every == 0)
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

/// How far a GPU may be off: `slack`, or where f32 itself comes to more, because scores are large or differences
/// cancel, four times as far as the processor's f32 is.
fn fair(slack: f32, processor: &[f32], want: &[f32]) -> f32 {
    slack.max(4.0 * off("the processor", processor, want, f32::MAX))
}

/// The worst of each op and direction.
type Worst = BTreeMap<(&'static str, &'static str), f32>;

/// Every op, forward and backward, from the same f32 inputs on both sides; `fill` writes the parameters.
fn by_op(
    device: &Arc<GpuDevice>,
    model: &Model,
    batch: &Batch,
    fill: impl Fn(&Model, &mut dyn Backend),
    worst: &mut Worst,
) {
    let (mut reference, mut gpu) = (Reference::new(model), Gpu::start(device, model).unwrap());
    let config = &model.config;
    fill(model, &mut reference);
    fill(model, &mut gpu);
    reference.feed(batch).unwrap();
    gpu.feed(batch).unwrap();
    // two numbers less their mean may cancel
    let slack = |op: &Op| if matches!(op, Op::QkNorm { .. }) { 4e-5 } else { 8e-6 };
    let mut note = |op: &Op, way, found: f32| {
        let entry = worst.entry((op.name(), way)).or_default();
        *entry = entry.max(found);
    };
    for (op, alone) in model.ops().each() {
        let regions = op.touched();
        for cache in regions.iter().filter(|region| region.space == MemorySpace::Cache) {
            // what was there before
            let past: Vec<f32> = (0..cache.len() as u64).map(|i| random::normal(4, 0, i) as f32).collect();
            reference.write(*cache, &past).unwrap();
        }
        copy(&regions, &reference, &mut gpu);
        copy(&regions, &gpu, &mut reference); // now rounded to f32
        reference.forward(alone).unwrap();
        gpu.forward(alone).unwrap();
        for region in regions {
            let what = format!("{} {}, {:?}: {config:?}", op.name(), model.name_of(region), model.mode);
            let found = off(&what, &gpu.read(region).unwrap(), &reference.read(region).unwrap(), slack(op));
            note(op, "forward", found);
        }
    }
    for (step, alone) in model.back().each().filter_map(|(pass, alone)| Some((pass.back()?, alone))) {
        let regions = step.touched();
        copy(&regions, &reference, &mut gpu);
        copy(&regions, &gpu, &mut reference);
        reference.backward(alone).unwrap();
        gpu.backward(alone).unwrap();
        let dx = step.dx.iter().flatten().map(|g| g.region);
        let params = step.op.touched().into_iter().filter(|s| s.space == MemorySpace::Param).map(|s| s.grad());
        for region in dx.chain(params).chain(step.watched.into_iter().flatten()) {
            let what = format!("gradient of {} at {region:?}, {:?}: {config:?}", step.op.name(), model.mode);
            let (got, want) = (gpu.read(region).unwrap(), reference.read(region).unwrap());
            note(&step.op, "backward", off(&what, &got, &want, 4.0 * slack(&step.op)));
        }
    }
}

/// All ops. A checked program has no backward of `gather`: the rows whose logits are wanted are those of decoding,
/// which has no gradients. What it would do is tested in the crate (`src/tests.rs`).
const OPS: [&str; 13] = [
    "activate", "add", "attend", "classify", "dropout", "embed", "gather", "linear", "multiply", "norm", "qk-norm",
    "rotate", "scale",
];

/// Fails if an op is missing in a direction, and prints the worst of each.
fn tell(worst: &Worst) {
    let ways = |op: &'static str| [(op, "backward"), (op, "forward")];
    let wanted: Vec<_> = OPS.iter().flat_map(|op| ways(op)).filter(|way| *way != ("gather", "backward")).collect();
    assert_eq!(worst.keys().copied().collect::<Vec<_>>(), wanted, "each op in both directions");
    worst.iter().for_each(|((op, way), found)| println!("{op:10} {way:9} {found:.1e}"));
}

/// A sequence that begins, and one of which a block and more is in the cache.
fn decoded(config: &Config) -> Batch {
    let span = |row, rows, past, table| Span { row, rows, past, table, valid: past + rows };
    Batch {
        tokens: (0..5).map(|i| random::below(3, 0, i, config.vocab_size as u64) as u32).collect(),
        positions: vec![0, 1, 2, 70, 71],
        spans: vec![span(0, 3, 0, 0), span(3, 2, 70, 1)],
        blocks: vec![4, 2, 0],
        outputs: vec![4, 0, 2],
        ..Batch::default()
    }
}

/// What learns beside what is frozen: adapters, frozen blocks, frozen tables; gradients of biases alone, and of
/// nothing.
#[test]
fn ops_of_what_is_frozen_agree_with_reference() {
    let Some(device) = device() else { return };
    let lora = Lora { rank: 3, alpha: 6.0, dropout: 0.2, targets: vec!["attention".into(), "feed-forward".into()] };
    let tunings = [
        Tuning { lora: Some(lora), ..Tuning::default() },
        Tuning { freeze: vec!["embed.weight".into(), "blocks.0.*".into()], ..Tuning::default() },
        Tuning { train_only: vec!["*.bias".into()], ..Tuning::default() },
    ];
    let mut worst = Worst::new();
    let mut tuned = 0;
    for (i, config) in some(16) {
        for tuning in &tunings {
            // not every model has such parameters
            let mode = Mode::Train { batch: BATCH, context: CONTEXT };
            let Ok(model) = Model::tuned(&config, mode, tuning) else { continue };
            by_op(&device, &model, &batch(&config, i as u64), |model, to| fill(model, to, i as u64), &mut worst);
            tuned += 1;
        }
    }
    assert!(tuned > 10, "{tuned} models");
}

/// What is computed again is what was kept: the same gradients, bit for bit, at every level of recomputation.
#[test]
fn recomputation_changes_no_bit() {
    let Some(device) = device() else { return };
    for (i, config) in some(16) {
        let gradients = |level| -> Vec<Vec<u32>> {
            let mode = Mode::Train { batch: BATCH, context: CONTEXT };
            let model = Model::at_recompute_level(&config, mode, &Tuning::default(), level).unwrap();
            let mut gpu = Gpu::start(&device, &model).unwrap();
            fill(&model, &mut gpu, i as u64);
            gpu.feed(&batch(&config, i as u64)).unwrap();
            gpu.forward(model.body()).unwrap();
            gpu.backward(model.back()).unwrap();
            let bits = |region: Region| gpu.read(region).unwrap().iter().map(|v| v.to_bits()).collect();
            model.learning().map(|param| bits(param.region.grad())).collect()
        };
        let kept = gradients(0);
        for level in [1, Model::recompute_levels(&config)] {
            assert!(gradients(level) == kept, "level {level} of {config:?}");
        }
    }
}

#[test]
fn every_op_agrees_with_reference() {
    let Some(device) = device() else { return };
    let mut worst = Worst::new();
    for (i, config) in some(3) {
        let (batch, size) = (batch(&config, i as u64), (BATCH, CONTEXT));
        for mode in [Mode::Train { batch: size.0, context: size.1 }, Mode::Inspect { batch: size.0, context: size.1 }] {
            let model = Model::new(&config, mode).unwrap();
            by_op(&device, &model, &batch, |model, to| fill(model, to, i as u64), &mut worst);
        }
        if config.mask == Mask::Causal && i % 4 == 0 {
            let config = larger(&config);
            let model = Model::new(&config, Mode::Decode { rows: 5, outputs: 3, blocks: 5 }).unwrap();
            by_op(&device, &model, &decoded(&config), spread, &mut worst);
        }
    }
    tell(&worst);
}

/// Values that keep a row's size from layer to layer, whatever its width.
fn spread(model: &Model, to: &mut dyn Backend) {
    for param in &model.params {
        let gain = (param.name.contains("ln") || param.name.contains("_norm")) && param.name.ends_with("weight");
        let (mean, size) = if gain {
            (f64::from(!model.config.norm_gain_less_one), 0.2)
        } else if param.is_matrix() {
            (0.0, (param.region.cols as f64).powf(-0.5))
        } else {
            (0.0, 0.2)
        };
        let value = |i| (mean + size * random::normal(7, random::site(&param.name), i)) as f32;
        to.write(param.region, &(0..param.region.len() as u64).map(value).collect::<Vec<_>>()).unwrap();
    }
}

/// Sequences and their tokens, then d_model, heads, key heads, d_head, d_ff and vocabulary: one of everything, and a
/// tile (64), a part of a sum (64), a workgroup's share (256), less one, exactly, and plus one.
const AWKWARD: &[([usize; 2], [usize; 6])] = &[
    ([1, 1], [2, 1, 1, 2, 1, 2]),
    ([1, 63], [63, 3, 1, 16, 64, 65]),
    ([1, 64], [64, 4, 4, 16, 65, 64]),
    ([1, 65], [65, 1, 1, 64, 63, 255]),
    ([3, 43], [128, 2, 2, 66, 255, 256]),
    ([2, 65], [129, 2, 1, 128, 257, 257]),
    ([1, 257], [255, 1, 1, 256, 256, 1025]),
    ([5, 13], [257, 8, 2, 32, 129, 127]),
    ([4, 64], [256, 4, 2, 64, 511, 513]),
];

/// Every op at awkward sizes, with a token as the target or a distribution, op by op.
#[test]
fn awkward_sizes_agree_with_reference() {
    let Some(device) = device() else { return };
    let (mut worst, sample) = (Worst::new(), configs());
    for (i, ([sequences, tokens], [d_model, n_head, n_kv_head, d_head, d_ff, vocab_size])) in
        AWKWARD.iter().copied().enumerate()
    {
        // each size with other choices
        for base in sample.iter().skip(i).step_by(AWKWARD.len()).take(2) {
            let config = Config {
                n_layer: 1,
                context_length: tokens,
                d_model,
                n_head,
                n_kv_head: Some(n_kv_head),
                d_head: Some(d_head),
                d_ff,
                vocab_size,
                d_embed: None,
                tied_head: base.tied_head,
                rotary_scaling: RotaryScaling::NONE,
                ..base.clone()
            };
            let config = match config.check() {
                Ok(()) => config,
                Err(_) => Config { positions: Positions::Rotary, ..config }, // sines need an even width
            };
            let mut batch = ragged(&config, i as u64, &vec![tokens; sequences]);
            if i % 2 == 1 {
                batch.terms = Terms { smoothing: 0.1, z_loss: 0.02 };
            }
            if i % 3 == 2 {
                let mut share = (0..batch.tokens.len() * vocab_size)
                    .map(|n| random::uniform(5, 0, n as u64) as f32)
                    .collect::<Vec<_>>();
                for row in share.chunks_exact_mut(vocab_size) {
                    let sum: f32 = row.iter().sum();
                    row.iter_mut().for_each(|p| *p /= sum);
                }
                batch.soft_targets = share;
            }
            let model = Model::new(&config, Mode::Train { batch: sequences, context: tokens }).unwrap();
            by_op(&device, &model, &batch, spread, &mut worst);
        }
    }
    worst.iter().for_each(|((op, way), found)| println!("{op:10} {way:9} {found:.1e}"));
    assert!(worst.len() >= 22, "each op of training in both directions: {worst:?}");
}

fn rule(method: Method, step: u64) -> Rule {
    Rule {
        method,
        rate: 1e-2,
        beta1: 0.9,
        beta2: 0.99,
        momentum: 0.95,
        eps: 1e-3, // with a small one, a gradient of nearly zero takes a whole step in the direction of its rounding
        step,
        max_norm: 0.5,
        norm: None,
        most_loss: None,
    }
}

/// A configuration with more than a tile of everything, and sizes that no tile divides.
fn larger(config: &Config) -> Config {
    let more = Config { context_length: 150, d_model: 84, d_ff: 131, vocab_size: 211, ..config.clone() };
    // factors for each pair are for the small heads
    let scaling = Some(more.rotary_scaling).filter(|scaling| scaling.kind != RotaryKind::Longrope);
    Config { d_head: more.d_head.map(|_| 18), rotary_scaling: scaling.unwrap_or(RotaryScaling::NONE), ..more }
}

/// Sequences of different lengths.
fn ragged(config: &Config, seed: u64, lengths: &[usize]) -> Batch {
    let rows = lengths.iter().sum::<usize>();
    let ids = |site| (0..rows as u64).map(|i| random::below(seed, site, i, config.vocab_size as u64) as u32).collect();
    let mut batch = Batch::of_sequences(ids(1), ids(2), rows);
    let mut row = 0;
    batch.spans.clear();
    for (i, rows) in lengths.iter().copied().enumerate() {
        batch.spans.push(Span { row, rows, past: 0, table: 0, valid: rows - i % rows.min(7) });
        row += rows;
    }
    batch.positions = lengths.iter().flat_map(|n| 0..*n as u32).collect();
    if config.n_segment > 0 {
        batch.segments = (0..rows as u32).map(|i| i / 3 % 2).collect();
    }
    batch.seed = Some(seed);
    batch
}

/// Three steps of training, whole lists at a time, with every optimizer: gradients, what is measured, parameters and
/// averages.
#[test]
fn training_agrees_with_reference() {
    let Some(device) = device() else { return };
    let mut worst: BTreeMap<&str, f32> = BTreeMap::new();
    for (i, config) in some(20) {
        let (mut config, method) = (larger(&config), Method::ALL[i / 20 % Method::ALL.len()]);
        // a unit that is nearly zero may be on either side of a kink after many ops, so kinks are compared op by op
        // alone
        if matches!(config.activation, Activation::Relu | Activation::LeakyRelu) {
            config.activation = Activation::GeluErf;
        }
        let model = Model::new(&config, Mode::Train { batch: 3, context: 150 }).unwrap();
        let (mut reference, mut gpu) = (Reference::new(&model), Gpu::start(&device, &model).unwrap());
        let mut cpu = Cpu::new(&model, 2);
        for param in &model.params {
            let value = |i| (0.1 * random::normal(9, random::site(&param.name), i)) as f32;
            let values: Vec<f32> = (0..param.region.len() as u64).map(value).collect();
            reference.write(param.region, &values).unwrap();
            gpu.write(param.region, &values).unwrap();
            cpu.write(param.region, &values).unwrap();
        }
        let groups = model.update_groups(0.1, method);
        let watch = || model.learning().step_by(2).map(|p| Change::new(p.region.range())).collect::<Vec<_>>();
        for step in 1..=3 {
            let mut reports = vec![];
            for backend in [&mut reference as &mut dyn Backend, &mut gpu, &mut cpu] {
                for (half, lengths) in [&[70, 1, 64][..], &[150, 65]].into_iter().enumerate() {
                    backend.feed(&ragged(&config, 2 * step + half as u64, lengths)).unwrap();
                    backend.forward(model.body()).unwrap();
                    backend.backward(model.back()).unwrap();
                    if half == 0 {
                        backend.push_gradients().unwrap();
                    }
                }
                backend.add_pushed().unwrap();
            }
            for param in model.learning() {
                let what = format!("gradient of {} in step {step}, {method}, {config:?}", param.name);
                let grad = param.region.grad();
                let want = reference.read(grad).unwrap();
                let slack = fair(1e-4, &cpu.read(grad).unwrap(), &want);
                let found = off(&what, &gpu.read(grad).unwrap(), &want, slack);
                let entry = worst.entry("gradients").or_default();
                *entry = entry.max(found);
            }
            for backend in [&mut reference as &mut dyn Backend, &mut gpu, &mut cpu] {
                let mut changes = watch();
                let report = backend.update(&groups, &rule(method, step), &mut changes).unwrap();
                assert!(report.finite);
                backend.average(&groups, 0.7).unwrap();
                let sums = changes.iter().flat_map(|c| [c.gradient, c.weight, c.update]);
                reports.push([report.norm].into_iter().chain(sums).map(|v| v as f32).collect::<Vec<f32>>());
            }
            for ((want, got), processor) in reports[0].iter().zip(&reports[1]).zip(&reports[2]) {
                let most = (1e-3 * want.abs() + 1e-9).max(4.0 * (want - processor).abs());
                assert!((want - got).abs() <= most, "{method}, step {step}: {want} and {got}, {config:?}");
            }
            // from the same weights on
            for param in model.learning() {
                for space in [MemorySpace::Param, MemorySpace::Moment1, MemorySpace::Moment2, MemorySpace::Average] {
                    let region = param.region.in_space(space);
                    let what = format!("{space:?} of {} after step {step}, {method}, {config:?}", param.name);
                    // one step may turn where Muon's singular values are small
                    let slack = if method == Method::Muon { 2e-3 } else { 1e-4 };
                    let want = reference.read(region).unwrap();
                    let slack = fair(slack, &cpu.read(region).unwrap(), &want);
                    let found = off(&what, &gpu.read(region).unwrap(), &want, slack);
                    let entry =
                        worst.entry(if space == MemorySpace::Param { method.name() } else { "moments" }).or_default();
                    *entry = entry.max(found);
                    copy(&[region], &reference, &mut gpu);
                    copy(&[region], &gpu, &mut reference);
                    copy(&[region], &gpu, &mut cpu);
                }
            }
        }
    }
    println!("{worst:?}");
}

/// A gradient that is not finite changes nothing, and is forgotten.
#[test]
fn what_is_not_finite_is_skipped() {
    let Some(device) = device() else { return };
    let config = configs()[0].clone();
    let model = Model::new(&config, Mode::Train { batch: BATCH, context: CONTEXT }).unwrap();
    for method in Method::ALL {
        let mut gpu = Gpu::start(&device, &model).unwrap();
        fill(&model, &mut gpu, 1);
        let all = |gpu: &Gpu| -> Vec<Vec<f32>> {
            let spaces = [MemorySpace::Param, MemorySpace::Moment1, MemorySpace::Moment2];
            spaces.iter().flat_map(|s| model.learning().map(|p| gpu.read(p.region.in_space(*s)).unwrap())).collect()
        };
        let first = model.learning().next().unwrap().region;
        let groups = model.update_groups(0.1, *method);
        for (bad, finite) in [(f32::NAN, false), (f32::INFINITY, false), (0.5, true)] {
            let before = all(&gpu);
            gpu.write(first.grad(), &vec![bad; first.len()]).unwrap();
            let report = gpu.update(&groups, &rule(*method, 1), &mut []).unwrap();
            assert_eq!((report.finite, all(&gpu) == before), (finite, !finite), "{method}, {bad}");
            assert!(gpu.read(first.grad()).unwrap().iter().all(|g| *g == 0.0));
        }
    }
}

/// The bits of a run: losses, gradients and weights after an update.
fn bits(device: &Arc<GpuDevice>, model: &Model, batch: &Batch, one_by_one: bool) -> Vec<u32> {
    let mut gpu = Gpu::start(device, model).unwrap();
    fill(model, &mut gpu, 3);
    gpu.feed(batch).unwrap();
    if one_by_one {
        model.body().each().for_each(|(_, op)| gpu.forward(op).unwrap());
        model.back().each().for_each(|(_, step)| gpu.backward(step).unwrap());
    } else {
        gpu.forward(model.body()).unwrap();
        gpu.backward(model.back()).unwrap();
    }
    let mut found = gpu.read(model.losses().unwrap()).unwrap();
    found.extend(model.learning().flat_map(|p| gpu.read(p.region.grad()).unwrap()));
    gpu.update(&model.update_groups(0.1, Method::AdamW), &rule(Method::AdamW, 1), &mut []).unwrap();
    found.extend(model.params.iter().flat_map(|p| gpu.read(p.region).unwrap()));
    assert!(found.iter().all(|v| v.is_finite()), "{:?}", model.config);
    found.into_iter().map(f32::to_bits).collect()
}

/// Twice the same bits, op by op or whole lists at a time; and on a device whose buffers and bindings are small, so
/// that memory has pages and tables are taken in rows, nearly the same numbers.
#[test]
fn bits_are_the_same_twice_and_limits_change_little() {
    let Some(device) = device() else { return };
    let small = GpuDevice::open_within(&GpuChoice::Best, [320 << 10, 200 << 10]).unwrap();
    let (mut paged, mut tried) = (0, 0);
    for (_, config) in some(40) {
        let config = Config { vocab_size: 700, ..larger(&config) };
        let model = Model::new(&config, Mode::Train { batch: 2, context: 150 }).unwrap();
        let batch = ragged(&config, 4, &[150, 70]);
        let once = bits(&device, &model, &batch, false);
        assert!(
            once == bits(&device, &model, &batch, false) && once == bits(&device, &model, &batch, true),
            "{config:?}"
        );
        let batch = ragged(&config, 4, &[10, 3]);
        let model = Model::new(&config, Mode::Train { batch: 2, context: 12 }).unwrap();
        paged += usize::from(model.bytes(MemorySpace::Param) > 320 << 10);
        let [whole, parts] = [&device, &small]
            .map(|device| bits(device, &model, &batch, false).into_iter().map(f32::from_bits).collect::<Vec<_>>());
        off("in parts", &parts, &whole, 1e-5);
        tried += 1;
    }
    assert!(2 * paged > tried, "{paged} of {tried} need pages");
}

/// A token at a time, or some, with a cache: the bits of the whole forward; whatever runs beside it.
#[test]
fn decoding_is_the_whole_forward_to_the_bit() {
    let Some(device) = device() else { return };
    for (i, config) in some(15).filter(|(_, config)| config.mask == Mask::Causal) {
        let config = larger(&config);
        let whole = Model::new(&config, Mode::Inspect { batch: 1, context: 140 }).unwrap();
        let decode = Model::new(&config, Mode::Decode { rows: 100, outputs: 100, blocks: 5 }).unwrap();
        let ids = |site| (0..140).map(|i| random::below(1, site, i, 211) as u32).collect::<Vec<_>>();
        let [own, other] = [ids(1), ids(2)];
        let mut gpu = Gpu::start(&device, &whole).unwrap();
        fill(&whole, &mut gpu, i as u64);
        gpu.feed(&Batch::of_sequences(own.clone(), vec![], 140)).unwrap();
        gpu.forward(whole.ops()).unwrap();
        let want = gpu.read(whole.logits().unwrap()).unwrap();
        let mut gpu = Gpu::start(&device, &decode).unwrap();
        fill(&decode, &mut gpu, i as u64);
        let (mut past, mut beside) = (0, 0);
        for (rows, others) in [(64, 20), (1, 1), (2, 0), (60, 30), (1, 0), (12, 0)] {
            let span = |row, rows, past, table| Span { row, rows, past, table, valid: past + rows };
            let mut batch = Batch {
                tokens: [&other[beside..beside + others], &own[past..past + rows]].concat(),
                positions: (beside..beside + others).chain(past..past + rows).map(|p| p as u32).collect(),
                outputs: (others as u32..(others + rows) as u32).collect(),
                ..Batch::default()
            };
            if others > 0 {
                batch.spans.push(span(0, others, beside, 0));
                batch.blocks.push(4);
            }
            batch.spans.push(span(others, rows, past, batch.blocks.len()));
            let blocks = [2u32, 0, 3];
            batch.blocks.extend(&blocks[..(past + rows).div_ceil(64)]);
            gpu.feed(&batch).unwrap();
            gpu.forward(decode.ops()).unwrap();
            let got = gpu.read(decode.logits().unwrap()).unwrap();
            let (got, want) = (&got[..rows * 211], &want[past * 211..(past + rows) * 211]);
            let differs = got.iter().zip(want).position(|(g, w)| g.to_bits() != w.to_bits());
            assert_eq!(differs.map(|at| (past + at / 211, got[at], want[at])), None, "{config:?}");
            (past, beside) = (past + rows, beside + others);
        }
    }
}

/// Products of bf16, and of f16 where the device has matrices of it: forward and backward of every product against
/// `reference` on operands that are rounded before.
#[test]
fn rounded_products_agree_with_reference_on_rounded_operands() {
    let Some(device) = device() else { return };
    products_agree(&device, Precision::Bf16, |v| widen_bf16(nearest_bf16(v)));
    if device.adapter.matrices.is_some() {
        // gradients are rounded where they are in the middle of the range
        products_agree(&device, Precision::F16, |v| half::f16::from_f32(v * 1024.0).to_f32() / 1024.0);
    }
}

fn products_agree(device: &Arc<GpuDevice>, precision: Precision, near: fn(f32) -> f32) {
    let near = |values: Vec<f32>| -> Vec<f32> { values.into_iter().map(near).collect() };
    let mut seen = 0;
    for (i, config) in some(12) {
        let model = Model::new(&config, Mode::Train { batch: BATCH, context: CONTEXT }).unwrap();
        let mut reference = Reference::new(&model);
        let mut gpu = Gpu::start(device, &model).unwrap().rounding(precision).unwrap();
        assert_eq!(gpu.precision(), precision);
        let batch = batch(&config, i as u64);
        fill(&model, &mut reference, i as u64);
        fill(&model, &mut gpu, i as u64);
        reference.feed(&batch).unwrap();
        gpu.feed(&batch).unwrap();
        let mut rounded = |gpu: &mut Gpu, reference: &mut Reference, regions: &[Region]| {
            regions.iter().for_each(|r| reference.write(*r, &near(gpu.read(*r).unwrap())).unwrap());
            seen += 1;
        };
        for (op, alone) in model.ops().each() {
            gpu.forward(alone).unwrap();
            let (Op::Linear { x, w, b, .. } | Op::Classify { x, w, b, .. }) = *op else { continue };
            rounded(&mut gpu, &mut reference, &[x, w]);
            b.into_iter().for_each(|b| copy(&[b], &gpu, &mut reference));
            reference.forward(alone).unwrap();
            let y = op.output();
            let what = format!("{} in {precision}, {i}: {config:?}", op.name());
            off(&what, &gpu.read(y).unwrap(), &reference.read(y).unwrap(), 8e-6);
        }
        for (step, alone) in model.back().each().filter_map(|(pass, alone)| Some((pass.back()?, alone))) {
            let before: Vec<_> = step.touched().into_iter().map(|r| (r, gpu.read(r).unwrap())).collect();
            gpu.backward(alone).unwrap();
            let (Op::Linear { x, w, .. }, Some(dy)) = (step.op, step.dy) else { continue };
            before.iter().for_each(|(region, values)| reference.write(*region, values).unwrap());
            rounded(&mut gpu, &mut reference, &[x, w, dy]);
            reference.backward(alone).unwrap();
            let grads = [w].into_iter().filter(|w| w.learns()).map(|w| w.grad());
            for region in step.dx.iter().flatten().map(|g| g.region).chain(grads) {
                let what = format!("gradient at {region:?} in {precision}, {i}: {config:?}");
                off(&what, &gpu.read(region).unwrap(), &reference.read(region).unwrap(), 3e-5);
            }
        }
    }
    assert!(seen > 100, "{seen} products");
}

/// Decoding on a cache of bf16: each op agrees with `reference` on the same cache, and pieces have the bits of all at
/// once.
#[test]
fn a_cache_of_bf16_agrees_with_reference() {
    let Some(device) = device() else { return };
    for (i, config) in some(20).filter(|(_, config)| config.mask == limpid::config::Mask::Causal) {
        let config = larger(&config);
        let model = Model::new(&config, Mode::Decode { rows: 140, outputs: 140, blocks: 4 }).unwrap();
        let model = model.with_element(MemorySpace::Cache, Element::Bf16);
        let ids: Vec<u32> = (0..140).map(|n| random::below(1, 1, n, 211) as u32).collect();
        let run = |backend: &mut dyn Backend, pieces: &[usize]| -> Vec<f32> {
            fill(&model, backend, i as u64);
            let (mut past, mut found) = (0, vec![]);
            for rows in pieces {
                let mut batch = Batch {
                    tokens: ids[past..past + rows].into(),
                    positions: (past..past + rows).map(|p| p as u32).collect(),
                    outputs: (0..*rows as u32).collect(),
                    blocks: vec![2, 0, 3],
                    ..Batch::default()
                };
                batch.spans.push(Span { row: 0, rows: *rows, past, table: 0, valid: past + rows });
                backend.feed(&batch).unwrap();
                backend.forward(model.ops()).unwrap();
                found.extend(&backend.read(model.logits().unwrap()).unwrap()[..rows * 211]);
                past += rows;
            }
            found
        };
        let start = || Gpu::start(&device, &model).unwrap();
        let whole = run(&mut start(), &[140]);
        assert!(whole == run(&mut start(), &[70, 1, 1, 3, 65]), "{config:?}");
        let (mut reference, mut gpu) = (Reference::new(&model), start());
        let mut cpu = Cpu::new(&model, 2);
        run(&mut reference, &[140]);
        run(&mut gpu, &[140]);
        run(&mut cpu, &[140]);
        for (op, alone) in model.ops().each().filter(|(op, _)| matches!(op, Op::Attend { .. })) {
            let regions: Vec<Region> = op.touched().into_iter().filter(|r| r.space != MemorySpace::Cache).collect();
            copy(&regions, &reference, &mut gpu);
            copy(&regions, &gpu, &mut reference);
            copy(&regions, &gpu, &mut cpu);
            for backend in [&mut reference as &mut dyn Backend, &mut gpu, &mut cpu] {
                backend.forward(alone).unwrap();
            }
            let [want, got, processor] =
                [&reference as &dyn Backend, &gpu, &cpu].map(|backend| backend.read(op.output()).unwrap());
            // a cache of f32 is off by 1e-3
            let slack = fair(8e-6, &processor, &want).min(1e-4);
            off(&format!("{}, {config:?}", op.name()), &got, &want, slack);
        }
    }
}

/// What is shared cannot be changed, and runs; a model that does not fit is refused with the tensor's name.
#[test]
fn weights_are_shared_and_limits_are_told() {
    let Some(device) = device() else { return };
    let config = larger(&configs()[0]);
    let [train, score] = [Mode::Train { batch: 1, context: 20 }, Mode::Score { batch: 1, context: 20 }]
        .map(|mode| Model::new(&config, mode).unwrap());
    let mut gpu = Gpu::start(&device, &train).unwrap();
    fill(&train, &mut gpu, 1);
    let batch = ragged(&config, 1, &[20]);
    let shared = gpu.share().unwrap();
    let name = &train.params[0].name;
    assert_eq!(shared.values(name).unwrap().unwrap(), gpu.read(train.params[0].region).unwrap());
    let mut other = Gpu::start_with(&score, &shared).unwrap();
    for (gpu, model) in [(&mut gpu, &train), (&mut other, &score)] {
        gpu.feed(&batch).unwrap();
        gpu.forward(model.ops()).unwrap();
    }
    assert_eq!(gpu.read(train.losses().unwrap()).unwrap(), other.read(score.losses().unwrap()).unwrap());
    let groups = train.update_groups(0.1, Method::AdamW);
    let refused = gpu.update(&groups, &rule(Method::AdamW, 1), &mut []).unwrap_err();
    assert!(matches!(refused, BackendError::Shared { others: 2, .. }), "{refused}");
    drop((shared, other));
    gpu.update(&groups, &rule(Method::AdamW, 1), &mut []).unwrap();

    let small = GpuDevice::open_within(&GpuChoice::Best, [1 << 30, 60 << 10]).unwrap();
    let long = Model::new(&config, Mode::Train { batch: 1, context: 150 }).unwrap();
    let refused = Gpu::start(&small, &long).map(drop).unwrap_err().to_string();
    assert!(refused.contains("a kernel of") && refused.contains("a smaller batch"), "{refused}");
    // a matrix that a kernel cannot see at once is updated in parts, but not by Muon, which is told at the start
    let wide = Config { d_model: 128, d_ff: 200, ..config.clone() };
    let model = || Model::new(&wide, Mode::Train { batch: 1, context: 8 }).unwrap();
    let trainer = |optimizer| {
        let backend = Box::new(Gpu::start(&small, &model()).unwrap());
        Trainer::new(model(), backend, Recipe { optimizer, ..Recipe::default() })
    };
    assert!(trainer(Method::AdamW).is_ok());
    let refused = trainer(Method::Muon).map(drop).unwrap_err();
    assert!(refused.to_string().contains("Muon needs a matrix of 25600 whole: adamw"), "{refused}");
    assert_eq!(refused.settings(), ["optimizer adamw"]);
    let heads = Config { d_model: 600, n_head: 2, n_kv_head: None, d_head: None, ..config.clone() };
    let heads = Model::new(&heads, Mode::Score { batch: 1, context: 8 }).unwrap();
    let refused = Gpu::start(&device, &heads).map(drop).unwrap_err().to_string();
    assert!(refused.contains("heads have 300 features") && refused.contains("the cpu"), "{refused}");
    let none = GpuDevice::open(&GpuChoice::Name("no such".into())).map(drop).unwrap_err().to_string();
    assert!(none.contains("there is no such GPU: 0: "), "{none}");
}

/// What measures and prints, for those who ask for it by name.
mod measures {
    use super::*;

    /// How long a step of `nano` takes, op by op, and of GPT-2's shape with its table, which is larger than what a
    /// kernel of lavapipe sees.
    #[test]
    #[ignore = "measures"]
    fn steps_take_so_long() {
        let Some(device) = device() else { return };
        let nano = Config::preset("nano").unwrap();
        let gpt2 = Config { n_layer: 1, ..Config::preset("gpt2").unwrap() };
        for (name, config, batch, context, steps) in [("nano", nano, 12, 64, 2), ("gpt2, one layer", gpt2, 1, 16, 1)] {
            let model = Model::new(&config, Mode::Train { batch, context }).unwrap();
            let lengths = vec![context; batch];
            let groups = model.update_groups(0.1, Method::AdamW);
            let (mut cpu, mut gpu) = (Cpu::new(&model, 2), Gpu::start(&device, &model).unwrap());
            for (whose, backend) in [("cpu", &mut cpu as &mut dyn Backend), ("gpu", &mut gpu)] {
                for param in &model.params {
                    let value = |i| (0.02 * random::normal(9, random::site(&param.name), i)) as f32;
                    backend
                        .write(param.region, &(0..param.region.len() as u64).map(value).collect::<Vec<_>>())
                        .unwrap();
                }
                for step in 1..=steps + 1 {
                    let start = std::time::Instant::now();
                    backend.feed(&ragged(&config, 1, &lengths)).unwrap();
                    backend.forward(model.body()).unwrap();
                    backend.backward(model.back()).unwrap();
                    backend
                        .update(&groups, &Rule { rate: 1e-3, eps: 1e-8, ..rule(Method::AdamW, step) }, &mut [])
                        .unwrap();
                    let loss = backend.sum(model.losses().unwrap()).unwrap() / (batch * context) as f64;
                    let ms = start.elapsed().as_secs_f64() * 1e3;
                    println!("{name} on the {whose}: {ms:.1} ms for step {step}, loss {loss:.6}");
                }
            }
            let mut times: BTreeMap<(&str, &str), f64> = BTreeMap::new();
            let mut time = |what: (&'static str, &'static str), run: &mut dyn FnMut()| {
                let start = std::time::Instant::now();
                run();
                device.finish("test").unwrap();
                *times.entry(what).or_default() += start.elapsed().as_secs_f64() * 1e3;
            };
            for (op, alone) in model.body().each() {
                time((op.name(), "forward"), &mut || gpu.forward(alone).unwrap());
            }
            for (pass, alone) in model.back().each() {
                let name = pass.back().map_or("recomputed", |back| back.op.name());
                time((name, "backward"), &mut || gpu.backward(alone).unwrap());
            }
            for ((op, way), ms) in times {
                println!("{name}: {op:10} {way:9} {ms:8.1} ms");
            }
        }
    }
}

//! Whether a GPU and its driver compute what limpid's formulas say: every kernel beside the backend `reference`, at
//! sizes that no tile divides.

use crate::kernels::{self, Variant};
use crate::lists::{Bindings, List, MOST_WORK, words};
use crate::memory::Window;
use crate::passes::{self, Factor, ProductExtra, Rounding};
use crate::{Gpu, GpuDevice};
use limpid_core::backend::{Backend, BackendError, Reference, Result};
use limpid_core::config::{
    Activation, Axis, Config, Dropout, Mask, NormKind, NormPlace, Parallel, Positions, QkNorm, RotaryScaling,
};
use limpid_core::matrix::Precision;
use limpid_core::model::{Mode, Model, ParamRole};
use limpid_core::numeric::element::Element;
use limpid_core::numeric::half::{nearest_bf16, widen_bf16};
use limpid_core::numeric::random;
use limpid_core::ops::Terms;
use limpid_core::ops::{Back, Batch, IGNORE, MemorySpace, Op, Region, Span};
use limpid_core::optimizer::{Method, Rule};
use std::ops::Range;
use std::sync::Arc;

/// What was found of an op in one direction, or of another promise.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuProof {
    /// The op, as limpid's list names it.
    pub op: &'static str,
    /// `forward`, `backward`, or what else was tried.
    pub way: &'static str,
    /// How far values were off at most, relative to the largest of their tensor.
    pub worst: f32,
    /// The first value that was off by more than rounding explains, or what the driver said.
    pub fault: Option<String>,
}

/// The proofs so far, one for each op and direction.
#[derive(Default)]
pub struct Proofs(Vec<GpuProof>);

impl Proofs {
    fn add(&mut self, op: &'static str, way: &'static str, found: std::result::Result<f32, String>) {
        let place = self.0.iter().position(|proof| (proof.op, proof.way) == (op, way));
        let place = place.unwrap_or_else(|| {
            self.0.push(GpuProof { op, way, worst: 0.0, fault: None });
            self.0.len() - 1
        });
        let proof = &mut self.0[place];
        match found {
            Ok(worst) => proof.worst = proof.worst.max(worst),
            Err(fault) => proof.fault = proof.fault.take().or(Some(fault)),
        }
    }

    /// All of them, in the order of the list of ops.
    pub fn all(self) -> Vec<GpuProof> {
        self.0
    }
}

impl GpuDevice {
    /// Whether the device computes what it should, by its proofs, which are run once.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn proven(self: &Arc<GpuDevice>) -> Result<()> {
        let faulty = |proof: &GpuProof| Some(format!("{} {}: {}", proof.op, proof.way, proof.fault.as_ref()?));
        let prove = || match prove(self)?.iter().find_map(faulty) {
            None => Ok(()),
            Some(fault) => {
                let what = format!(
                    "{} computes wrong results in {fault}; another version of its driver may be correct (`prove`, of \
                     the library and of `limpid doctor`, lists every fault), and the cpu trains",
                    self.adapter
                );
                Err(BackendError::NotSupported { op: "training", what, settings: &["device cpu"] })
            }
        };
        self.proven.get_or_init(prove).clone()
    }
}

/// Every kernel on the device, against `reference`; whether a token at a time gives the bits of all at once; whether a
/// run has the same bits twice.
///
/// # Errors
/// If the device is lost, or has no memory for models of a few kilobytes. What it computes wrongly is in the proofs.
pub fn prove(device: &Arc<GpuDevice>) -> Result<Vec<GpuProof>> {
    let mut proofs = Proofs::default();
    products(device, &mut proofs)?;
    for (i, config) in awkward().iter().enumerate() {
        let (batch, seed) = (sequences(config, i as u64, &[37, 1, 30]), i as u64);
        for mode in [Mode::Train { batch: 2, context: 37 }, Mode::Inspect { batch: 2, context: 37 }] {
            by_op(device, &built(config, mode)?, &batch, seed, &mut proofs)?;
        }
        updates(device, config, &batch, &mut proofs)?;
        bits(device, config, seed, Precision::F32, &mut proofs)?;
        halved(device, config, seed, &mut proofs)?;
        if device.adapter.matrices.is_some() {
            let model = built(config, Mode::Train { batch: 2, context: 37 })?;
            by_op_in(device, &model, Precision::F16, &batch, seed, &mut proofs)?;
            bits(device, config, seed, Precision::F16, &mut proofs)?;
        }
    }
    Ok(proofs.all())
}

/// Configurations that together need every kernel.
pub fn awkward() -> Vec<Config> {
    let plain = Config {
        vocab_size: 211,
        context_length: 70,
        d_model: 84,
        n_head: 6,
        n_layer: 1,
        d_ff: 131,
        n_segment: 2,
        dropout: Dropout::everywhere(0.1),
        ..Config::DEFAULT
    };
    let none = Config { dropout: Dropout::NONE, n_segment: 0, ..plain.clone() };
    vec![
        Config {
            n_kv_head: Some(2),
            d_head: Some(18),
            positions: Positions::Rotary,
            rotary_scaling: RotaryScaling::NONE,
            norm: NormKind::Rms,
            qk_norm: QkNorm::Head,
            window: 20,
            attention_softcap: 5.0,
            attention_bias: false,
            ffn_bias: false,
            ffn_gated: true,
            activation: Activation::Silu,
            tied_head: false,
            ..none.clone()
        },
        Config {
            d_head: Some(64),
            positions: Positions::Alibi,
            parallel: Parallel::OneNorm,
            activation: Activation::Relu2,
            logits_softcap: 3.0,
            embedding_scale: 1.7,
            residual_scale: 0.6,
            logits_scale: 1.3,
            attention_scale_by_layer: true,
            qk_norm: QkNorm::Width,
            head_bias: true,
            ..none.clone()
        },
        Config {
            norm_place: NormPlace::Post,
            final_norm: false,
            embedding_norm: true,
            n_head: 2,
            d_head: Some(128),
            mask: Mask::Bidirectional,
            activation: Activation::GeluErf,
            head_transform: true,
            head_bias: true,
            d_embed: Some(30),
            ..none
        },
        plain,
    ]
}

fn built(config: &Config, mode: Mode) -> Result<Model> {
    Model::new(config, mode).map_err(|error| BackendError::Invalid { op: "prove", what: error.to_string() })
}

/// Sequences of these lengths, with some rows that have no target and some that are padding.
pub fn sequences(config: &Config, seed: u64, lengths: &[usize]) -> Batch {
    let rows = lengths.iter().sum::<usize>();
    let ids = |site| -> Vec<u32> {
        (0..rows as u64).map(|i| random::below(seed, site, i, config.vocab_size as u64) as u32).collect()
    };
    let mut targets = ids(2);
    targets.iter_mut().step_by(5).skip(1).for_each(|target| *target = IGNORE);
    let mut batch = Batch::of_sequences(ids(1), targets, rows);
    batch.positions = lengths.iter().flat_map(|n| 0..*n as u32).collect();
    batch.spans.clear();
    lengths.iter().enumerate().fold(0, |row, (i, &rows)| {
        batch.spans.push(Span { row, rows, past: 0, table: 0, valid: rows - i % rows.min(7) });
        row + rows
    });
    if config.n_segment > 0 {
        batch.segments = (0..rows as u32).map(|i| i / 3 % 2).collect();
    }
    batch.seed = Some(seed);
    if seed % 2 == 1 {
        batch.terms = Terms { smoothing: 0.1, z_loss: 0.02 };
    }
    batch
}

/// Parameters that neither vanish nor grow.
fn fill(model: &Model, backend: &mut dyn Backend, seed: u64) -> Result<()> {
    model.params.iter().try_for_each(|param| {
        let (site, gain) = (random::site(&param.name), param.role == ParamRole::Gain);
        backend.fill(param.region, &|i| f32::from(u8::from(gain)) + 0.3 * random::normal(seed, site, i as u64) as f32)
    })
}

/// How far values are off, relative to the largest of them, or the first that is off by more than `slack`.
pub fn off(got: &[f32], want: &[f32], slack: f32) -> std::result::Result<f32, String> {
    // sums of terms near 0.01 may cancel to less: their rounding is relative to the terms
    let size = want.iter().filter(|v| v.is_finite()).fold(1e-2f32, |m, v| m.max(v.abs()));
    let mut worst = 0f32;
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let off = if g == w { 0.0 } else { (g - w).abs() / size }; // equal infinities count
        if off.is_nan() || off > slack {
            return Err(format!("[{i}]: got {g}, want {w}, off by {off:.1e} of {size}, allowed {slack:.1e}"));
        }
        worst = worst.max(off);
    }
    Ok(worst)
}

/// What the backward of an op touches, and what it writes.
fn backward_tensors(step: &Back) -> [Vec<Region>; 2] {
    let dx = step.dx.iter().flatten().map(|g| g.region);
    let params = step.op.touched().into_iter().filter(|s| s.space == MemorySpace::Param).map(|s| s.grad());
    [step.touched(), dx.chain(params).chain(step.watched.into_iter().flatten()).collect()]
}

/// The same values on both sides, rounded to f32, or to the digits of `precision`.
fn level(regions: &[Region], precision: Precision, reference: &mut dyn Backend, gpu: &mut dyn Backend) -> Result<()> {
    regions.iter().try_for_each(|region| {
        let mut values = reference.read(*region)?;
        if precision == Precision::F16 {
            values.iter_mut().for_each(|value| *value = eleven_bits(*value));
        }
        gpu.write(*region, &values)?;
        reference.write(*region, &gpu.read(*region)?)
    })
}

/// The nearest f32 with the digits of an f16: it has 11 bits, and an f32 has 24 (Veltkamp's splitting).
fn eleven_bits(x: f32) -> f32 {
    let large = x * 8193.0;
    large - (large - x)
}

/// A model on both backends.
struct Pair<'a> {
    model: &'a Model,
    reference: Reference,
    gpu: Gpu,
    precision: Precision,
    seed: u64,
    proofs: &'a mut Proofs,
}

impl<'a> Pair<'a> {
    fn new(
        device: &Arc<GpuDevice>,
        model: &'a Model,
        precision: Precision,
        batch: &Batch,
        seed: u64,
        proofs: &'a mut Proofs,
    ) -> Result<Pair<'a>> {
        let gpu = Gpu::start(device, model)?.rounding(precision)?;
        let mut pair = Pair { model, reference: Reference::start(model)?, gpu, precision, seed, proofs };
        for backend in [&mut pair.reference as &mut dyn Backend, &mut pair.gpu] {
            fill(model, backend, seed)?;
            backend.feed(batch)?;
        }
        Ok(pair)
    }

    /// Runs an op on both, from the same values, and compares what it writes.
    fn run(
        &mut self,
        (op, way): (&Op, &'static str),
        [reads, writes]: [Vec<Region>; 2],
        slack: f32,
        run: impl Fn(&mut dyn Backend) -> Result<()>,
    ) -> Result<()> {
        level(&reads, self.precision, &mut self.reference, &mut self.gpu)?;
        run(&mut self.reference)?;
        match run(&mut self.gpu) {
            Err(error @ BackendError::Lost { .. }) => return Err(error), // any other is a finding
            Err(error) => self.proofs.add(op.name(), way, Err(error.to_string())),
            Ok(()) => {}
        }
        writes.into_iter().try_for_each(|region| {
            let found = off(&self.gpu.read(region)?, &self.reference.read(region)?, slack);
            let place =
                |fault| format!("{}{fault}; seed {}, {:?}", self.model.name_of(region), self.seed, self.model.config);
            self.proofs.add(op.name(), way, found.map_err(place));
            Ok(())
        })
    }
}

/// How far a value may be off, relative to the largest of its tensor, where no difference cancels.
const SLACK: f32 = 8e-6;

/// Every op of a model, forward and backward, from the same f32 inputs on both sides.
///
/// # Errors
/// As [`prove`].
pub fn by_op(device: &Arc<GpuDevice>, model: &Model, batch: &Batch, seed: u64, proofs: &mut Proofs) -> Result<()> {
    by_op_in(device, model, Precision::F32, batch, seed, proofs)
}

/// The same in a precision. In f16 only products, by the device's matrices, of values that f16 has: then only sums
/// round.
fn by_op_in(
    device: &Arc<GpuDevice>,
    model: &Model,
    precision: Precision,
    batch: &Batch,
    seed: u64,
    proofs: &mut Proofs,
) -> Result<()> {
    let mut pair = Pair::new(device, model, precision, batch, seed, proofs)?;
    let f16 = precision == Precision::F16;
    let [forward, backward] = if f16 { ["forward in f16", "backward in f16"] } else { ["forward", "backward"] };
    let proven = |op: &Op| !f16 || matches!(op, Op::Linear { .. });
    // two numbers less their mean may cancel
    let slack = |op: &Op| if matches!(op, Op::QkNorm { .. }) { 4e-5 } else { SLACK };
    for (op, alone) in model.ops().each() {
        let all = op.touched();
        if proven(op) {
            pair.run((op, forward), [all.clone(), all], slack(op), |backend| backend.forward(alone))?;
        } else {
            pair.reference.forward(alone)?;
        }
    }
    for (step, alone) in model.back().each().filter_map(|(pass, alone)| Some((pass.back()?, alone))) {
        if proven(&step.op) {
            let (what, slack) = ((&step.op, backward), 4.0 * slack(&step.op));
            pair.run(what, backward_tensors(step), slack, |backend| backend.backward(alone))?;
        } else {
            pair.reference.backward(alone)?;
        }
    }
    Ok(())
}

/// Products in every form that models need: few rows, small tiles, large ones, several submits, rows that are multiples
/// of four, are not, and are padded to be, sums that are cut in shares; in each precision. A row has the same bits
/// however many are made at once, and is near a sum in f64.
fn products(device: &GpuDevice, proofs: &mut Proofs) -> Result<()> {
    let mut bindings = Bindings::default();
    let f16 = device.adapter.matrices.map(|matrices| (Rounding::F16 { matrices, lift: 64.0 }, "of f16"));
    let forms = || [(Rounding::None, "of f32"), (Rounding::Bf16, "of bf16")].into_iter().chain(f16);
    let put = |values: &[f32]| Window::filled(device, "prove", values);
    // an operand of rows of so many, with `pad` zeros behind each
    let padded = |values: &[f32], row: usize, pad: usize| -> Result<Window> {
        let rows = values.chunks(row).flat_map(|row| row.iter().copied().chain(std::iter::repeat_n(0.0, pad)));
        put(&rows.collect::<Vec<_>>())
    };
    let sizes = [
        (1100, 1028, 36, false),
        (1100, 1021, 19, false),
        (1100, 1027, 35, true),
        (200, 510, 67, false),
        (200, 64, 600, false),
        (9, 1, 1, true),
        (70, 66, 1500, false),
        (70, 66, 1501, true),
    ];
    for (case, (most, n, k, pads)) in sizes.into_iter().enumerate() {
        let in_shares = passes::shares([most, n, k]) > 1 && k > 1000;
        let values = |site, len: usize| -> Vec<f32> {
            (0..len as u64).map(|i| random::normal(case as u64, site, i) as f32).collect()
        };
        let (a, b, beside) = (values(1, most * k), values(2, k * n), values(3, n.max(most)));
        let (on_beside, on_c) = (put(&beside)?, put(&vec![0.0; most * n])?);
        let room = put(&vec![0.0; if in_shares { 16 * most * (n + 1) } else { 1 }])?;
        for across in [[false, true], [false; 2], [true, false]] {
            let row = [if across[0] { most } else { k }, if across[1] { k } else { n }];
            let pad = row.map(|row| if pads { row.next_multiple_of(4) - row } else { 0 });
            let (on_a, on_b) = (padded(&a, row[0], pad[0])?, padded(&b, row[1], pad[1])?);
            for (rounding, way) in forms() {
                let mut made = |m: usize| -> Result<Vec<f32>> {
                    let mut list = List::new(device, &mut bindings);
                    let [on_a, on_b] = [(&on_a, 0), (&on_b, 1)].map(|(on, i)| Factor::whole(on, row[i] + pad[i]));
                    let operands = [on_a, on_b, Factor::whole(&on_c, n)];
                    // a dispatch before it, and so much work that it is submitted alone
                    let nothing = words![1u32, false, 0f32, 0f32];
                    list.run(&kernels::SCALE, Variant::default(), &[Some(&on_c), Some(&on_c)], nothing, 1)?;
                    list.expect(MOST_WORK);
                    let room = Some(&room).filter(|_| in_shares);
                    let beside = if in_shares { ProductExtra::Nothing } else { ProductExtra::Bias(&on_beside) };
                    passes::product(&mut list, across, operands, beside, [m, n, k], false, room, rounding)?;
                    list.submit("prove")?;
                    on_c.first(device, "prove", m * n)
                };
                let all = made(most)?;
                let place = |m: usize, n_: usize| format!("[{m},{n_}] of {n} sums over {k}, {across:?}");
                for m in [1, 2, 3, 8, 9, 64, 65, 200].into_iter().filter(|m| *m < most && !in_shares) {
                    let differs = made(m)?.iter().zip(&all).position(|(one, all)| one.to_bits() != all.to_bits());
                    let found = differs.map_or(Ok(0.0), |at| Err(format!("{} beside {m} rows", place(at / n, at % n))));
                    proofs.add("product", way, found);
                }
                let held = |v: f32| match rounding {
                    Rounding::None => f64::from(v),
                    Rounding::Bf16 => f64::from(widen_bf16(nearest_bf16(v))),
                    Rounding::F16 { .. } => f64::from(eleven_bits(v)),
                };
                for (i, got) in all.iter().enumerate().step_by(13) {
                    let (m, n_) = (i / n, i % n);
                    let term = |j: usize| {
                        let x = a[if across[0] { j * most + m } else { m * k + j }];
                        held(x) * held(b[if across[1] { n_ * k + j } else { j * n + n_ }])
                    };
                    let bias = if in_shares { 0.0 } else { f64::from(beside[n_]) };
                    let want = bias + (0..k).map(term).sum::<f64>();
                    let size = bias.abs() + (0..k).map(|j| term(j).abs()).sum::<f64>();
                    // a chain of 32 and a sum of 47 chains round 79 times, each time by at most 6e-8, and mostly not to
                    // one side
                    let off = ((f64::from(*got) - want) / size.max(1e-9)).abs() as f32;
                    let wrong = off.is_nan() || off > 2e-6;
                    let fault = || format!("{}: got {got}, want {want}", place(m, n_));
                    proofs.add("product", way, if wrong { Err(fault()) } else { Ok(off) });
                }
            }
        }
    }
    Ok(())
}

/// A step of training with every optimizer: the parameters after it.
fn updates(device: &Arc<GpuDevice>, config: &Config, batch: &Batch, proofs: &mut Proofs) -> Result<()> {
    let model = built(config, Mode::Train { batch: 2, context: 37 })?;
    for &method in Method::ALL {
        // one step may turn where Muon's singular values are small
        let slack = if method == Method::Muon { 2e-3 } else { 1e-4 };
        let (mut reference, mut gpu) = (Reference::start(&model)?, Gpu::start(device, &model)?);
        let mut norms = [0.0; 2];
        for (backend, norm) in [&mut reference as &mut dyn Backend, &mut gpu].into_iter().zip(&mut norms) {
            fill(&model, backend, 5)?;
            backend.feed(batch)?;
            backend.forward(model.body())?;
            backend.backward(model.back())?;
            *norm = backend.update(&model.update_groups(0.1, method), &rule(method), &mut [])?.norm;
        }
        proofs.add("update", method.name(), off(&[norms[1] as f32], &[norms[0] as f32], 1e-4));
        for param in model.learning() {
            let found = off(&gpu.read(param.region)?, &reference.read(param.region)?, slack);
            proofs.add("update", method.name(), found.map_err(|fault| format!("{}{fault}", param.name)));
        }
    }
    let mut gpu = Gpu::start(device, &model)?;
    fill(&model, &mut gpu, 5)?;
    let all = |gpu: &Gpu| -> Result<Vec<Vec<f32>>> { model.learning().map(|p| gpu.read(p.region)).collect() };
    let before = all(&gpu)?;
    let one = model.learning().last().expect("it learns").region.grad();
    gpu.write(one, &vec![f32::NAN; one.len()])?;
    let report = gpu.update(&model.update_groups(0.1, Method::AdamW), &rule(Method::AdamW), &mut [])?;
    let skipped = !report.finite && all(&gpu)? == before;
    let fault = || Err("a gradient that is no number changes weights".into());
    proofs.add("update", "what is not finite", if skipped { Ok(0.0) } else { fault() });
    let losses = model.losses().expect("it is trained").for_batch(batch);
    gpu.feed(batch)?;
    for (share, held_back) in [(0.99, true), (1.01, false)] {
        gpu.forward(model.body())?;
        gpu.backward(model.back())?;
        let sum = gpu.sum(losses)?;
        let rule = Rule { most_loss: Some((losses, share * sum)), ..rule(Method::AdamW) };
        let report = gpu.update(&model.update_groups(0.1, Method::AdamW), &rule, &mut [])?;
        let right = report.finite && report.held_back == held_back && (all(&gpu)? == before) == held_back;
        let fault = || Err(format!("losses of {sum}, and at most {share} of that: {report:?}"));
        proofs.add("update", "losses that are too large", if right { Ok(0.0) } else { fault() });
    }
    Ok(())
}

fn rule(method: Method) -> Rule {
    Rule {
        method,
        rate: 1e-2,
        beta1: 0.9,
        beta2: 0.99,
        momentum: 0.95,
        eps: 1e-3, // with a small one, a gradient of nearly zero takes a whole step in the direction of its rounding
        step: 1,
        max_norm: 0.5,
        norm: None,
        most_loss: None,
    }
}

/// The same run twice, and a causal model's logits a token at a time: the same bits.
fn bits(device: &Arc<GpuDevice>, config: &Config, seed: u64, precision: Precision, proofs: &mut Proofs) -> Result<()> {
    let ways = match precision {
        Precision::F16 => ["same bits twice in f16", "bits of the whole forward in f16"],
        _ => ["same bits twice", "bits of the whole forward"],
    };
    let same = |got: &[f32], want: &[f32]| match got.iter().zip(want).position(|(g, w)| g.to_bits() != w.to_bits()) {
        None => Ok(0.0),
        Some(at) => Err(format!("[{at}]: {} and {}, {config:?}", got[at], want[at])),
    };
    let model = built(config, Mode::Train { batch: 2, context: 37 })?;
    let run = || -> Result<Vec<f32>> {
        let mut gpu = Gpu::start(device, &model)?.rounding(precision)?;
        fill(&model, &mut gpu, seed)?;
        gpu.feed(&sequences(config, seed, &[37, 20]))?;
        gpu.forward(model.body())?;
        gpu.backward(model.back())?;
        gpu.update(&model.update_groups(0.1, Method::AdamW), &rule(Method::AdamW), &mut [])?;
        let found: Vec<Vec<f32>> = model.learning().map(|p| gpu.read(p.region)).collect::<Result<_>>()?;
        Ok(found.concat())
    };
    proofs.add("run", ways[0], same(&run()?, &run()?));
    if config.mask != Mask::Causal {
        return Ok(());
    }
    let (tokens, vocab) = (70, config.vocab_size);
    let own = sequences(config, seed, &[tokens]);
    let whole = built(config, Mode::Inspect { batch: 1, context: tokens })?;
    let mut gpu = Gpu::start(device, &whole)?.rounding(precision)?;
    fill(&whole, &mut gpu, seed)?;
    gpu.feed(&Batch { seed: None, ..own.clone() })?;
    gpu.forward(whole.ops())?;
    let want = gpu.read(whole.logits().expect("it has a head"))?;
    let decode = built(config, Mode::Decode { rows: 33, outputs: 33, blocks: 2 })?;
    let mut gpu = Gpu::start(device, &decode)?.rounding(precision)?;
    fill(&decode, &mut gpu, seed)?;
    let mut past = 0;
    for rows in [33, 1, 29, 1, 1, 5] {
        let now = past..past + rows;
        gpu.feed(&next(&own, &now))?;
        gpu.forward(decode.ops())?;
        let got = gpu.read(decode.logits().expect("it has a head"))?;
        let found = same(&got[..rows * vocab], &want[past * vocab..now.end * vocab]);
        proofs.add("decode", ways[1], found);
        past = now.end;
    }
    Ok(())
}

/// Some rows of a sequence, which decoding takes next; its cache has two blocks, the second first.
fn next(own: &Batch, now: &Range<usize>) -> Batch {
    let rows = now.len();
    Batch {
        tokens: own.tokens[now.clone()].to_vec(),
        positions: own.positions[now.clone()].to_vec(),
        segments: own.segments.get(now.clone()).unwrap_or_default().to_vec(),
        outputs: (0..rows as u32).collect(),
        spans: vec![Span { row: 0, rows, past: now.start, table: 0, valid: now.end }],
        blocks: [1, 0][..now.end.div_ceil(64)].to_vec(),
        ..Batch::default()
    }
}

/// Attention on a cache of bf16, against `reference` on one.
fn halved(device: &Arc<GpuDevice>, config: &Config, seed: u64, proofs: &mut Proofs) -> Result<()> {
    if config.mask != Mask::Causal {
        return Ok(());
    }
    let model = built(config, Mode::Decode { rows: 40, outputs: 40, blocks: 2 })?
        .with_element(MemorySpace::Cache, Element::Bf16);
    let (own, mut past) = (sequences(config, seed, &[70]), 0);
    let (mut reference, mut gpu) = (Reference::start(&model)?, Gpu::start(device, &model)?);
    fill(&model, &mut reference, seed)?;
    fill(&model, &mut gpu, seed)?;
    for rows in [40, 1, 29] {
        let now = past..past + rows;
        let batch = next(&own, &now);
        reference.feed(&batch)?;
        gpu.feed(&batch)?;
        for (op, alone) in model.ops().each() {
            let op = op.for_batch(&batch);
            for region in op.touched().into_iter().filter(|region| region.space != MemorySpace::Cache) {
                let values = reference.read(region)?;
                reference.write(region, &values)?; // as f32
                gpu.write(region, &values)?;
            }
            reference.forward(alone)?;
            gpu.forward(alone)?;
            if let Op::Attend { y, .. } = op {
                proofs.add("attend", "on a cache of bf16", off(&gpu.read(y)?, &reference.read(y)?, SLACK));
            }
        }
        past = now.end;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GpuChoice;
    use crate::kernels::ALL;
    use crate::test_device::device;

    #[test]
    fn every_kernel_is_proven() {
        if device().is_none() {
            return;
        }
        let device = GpuDevice::open(&GpuChoice::Best).unwrap(); // that has compiled nothing yet
        let started = std::time::Instant::now();
        let proofs = prove(&device).unwrap();
        println!("{:?}", started.elapsed());
        for proof in &proofs {
            println!("{proof:?}");
        }
        assert!(proofs.iter().all(|proof| proof.fault.is_none()));
        let mut missing: Vec<&str> = ALL.iter().map(|k| k.entry).filter(|entry| !device.has_compiled(entry)).collect();
        let mut unproven = vec!["gather_back", "multiply_adds"];
        if device.adapter.matrices.is_none() {
            unproven.push("product_f16");
        }
        missing.sort_unstable();
        unproven.sort_unstable();
        assert_eq!(missing, unproven, "kernels that no proof ran");
    }

    /// What is wrong is found: another sum in one kernel.
    #[test]
    fn what_is_off_is_told() {
        assert_eq!(off(&[1.0, 2.0], &[1.0, 2.0], 0.0), Ok(0.0));
        let fault = off(&[1.0, 2.1], &[1.0, 2.0], 1e-3).unwrap_err();
        assert!(fault.contains("[1]: got 2.1, want 2"), "{fault}");
        assert!(off(&[f32::NAN], &[1.0], 1.0).is_err() && off(&[1.0], &[f32::NAN], 1.0).is_err());
    }
}

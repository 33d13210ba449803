//! Whether a GPU and its driver compute what limpid's formulas say: every kernel beside the backend `reference`, at sizes that no
//! tile divides.

use crate::{Gpu, GpuDevice};
use limpid_core::backend::{Backend, BackendError, Reference, Result};
use limpid_core::config::{
    Activation, Axis, Config, Dropout, Mask, NormKind, NormPlace, Parallel, Positions, QkNorm, RotaryScaling,
};
use limpid_core::model::{Mode, Model};
use limpid_core::ops::adamw::{Method, Rule};
use limpid_core::ops::classify::Terms;
use limpid_core::ops::{Back, Batch, IGNORE, MemorySpace, Op, Region, Span, random};
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

/// Every kernel on the device, against `reference`; whether a token at a time gives the bits of all at once; whether a run has the
/// same bits twice.
///
/// # Errors
/// If the device is lost, or has no memory for models of a few kilobytes. What it computes wrongly is in the proofs.
pub fn prove(device: &Arc<GpuDevice>) -> Result<Vec<GpuProof>> {
    let mut proofs = Proofs::default();
    for (i, config) in awkward().iter().enumerate() {
        let (batch, seed) = (sequences(config, i as u64, &[37, 1, 30]), i as u64);
        for mode in [Mode::Train { batch: 2, context: 37 }, Mode::Inspect { batch: 2, context: 37 }] {
            by_op(device, &built(config, mode)?, &batch, seed, &mut proofs)?;
        }
        updates(device, config, &batch, &mut proofs)?;
        bits(device, config, seed, &mut proofs)?;
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
        let (site, gain) = (random::site(&param.name), !param.is_matrix() && param.name.ends_with("weight"));
        let value = |i| f32::from(u8::from(gain)) + 0.3 * random::normal(seed, site, i) as f32;
        backend.write(param.region, &(0..param.region.len() as u64).map(value).collect::<Vec<_>>())
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

/// The same values on both sides, rounded to f32.
fn level(regions: &[Region], reference: &mut dyn Backend, gpu: &mut dyn Backend) -> Result<()> {
    regions.iter().try_for_each(|region| {
        gpu.write(*region, &reference.read(*region)?)?;
        reference.write(*region, &gpu.read(*region)?)
    })
}

/// A model on both backends.
struct Pair<'a> {
    model: &'a Model,
    reference: Reference,
    gpu: Gpu,
    seed: u64,
    proofs: &'a mut Proofs,
}

impl Pair<'_> {
    /// Runs an op on both, from the same values, and compares what it writes.
    fn run(
        &mut self,
        (op, way): (&Op, &'static str),
        [reads, writes]: [Vec<Region>; 2],
        slack: f32,
        run: impl Fn(&mut dyn Backend) -> Result<()>,
    ) -> Result<()> {
        level(&reads, &mut self.reference, &mut self.gpu)?;
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

/// Every op of a model, forward and backward, from the same f32 inputs on both sides.
///
/// # Errors
/// As [`prove`].
pub fn by_op(device: &Arc<GpuDevice>, model: &Model, batch: &Batch, seed: u64, proofs: &mut Proofs) -> Result<()> {
    let mut pair = Pair { model, reference: Reference::start(model)?, gpu: Gpu::start(device, model)?, seed, proofs };
    for backend in [&mut pair.reference as &mut dyn Backend, &mut pair.gpu] {
        fill(model, backend, seed)?;
        backend.feed(batch)?;
    }
    // two numbers less their mean may cancel
    let slack = |op: &Op| if matches!(op, Op::QkNorm { .. }) { 4e-5 } else { 8e-6 };
    for (op, alone) in model.ops().each() {
        let all = touched(*op);
        pair.run((op, "forward"), [all.clone(), all], slack(op), |backend| backend.forward(alone))?;
    }
    for (step, alone) in model.back().each().filter_map(|(pass, alone)| Some((pass.back()?, alone))) {
        let dx = step.dx.iter().flatten().map(|g| g.region);
        let params = touched(step.op).into_iter().filter(|s| s.space == MemorySpace::Param).map(|s| s.grad());
        let writes = dx.chain(params).chain(step.watched.into_iter().flatten()).collect();
        let (what, slack) = ((&step.op, "backward"), 4.0 * slack(&step.op));
        pair.run(what, [touched_back(*step), writes], slack, |backend| backend.backward(alone))?;
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
    }
}

/// The same run twice, and a causal model's logits a token at a time: the same bits.
fn bits(device: &Arc<GpuDevice>, config: &Config, seed: u64, proofs: &mut Proofs) -> Result<()> {
    let same = |got: &[f32], want: &[f32]| match got.iter().zip(want).position(|(g, w)| g.to_bits() != w.to_bits()) {
        None => Ok(0.0),
        Some(at) => Err(format!("[{at}]: {} and {}, {config:?}", got[at], want[at])),
    };
    let model = built(config, Mode::Train { batch: 2, context: 37 })?;
    let run = || -> Result<Vec<f32>> {
        let mut gpu = Gpu::start(device, &model)?;
        fill(&model, &mut gpu, seed)?;
        gpu.feed(&sequences(config, seed, &[37, 20]))?;
        gpu.forward(model.body())?;
        gpu.backward(model.back())?;
        gpu.update(&model.update_groups(0.1, Method::AdamW), &rule(Method::AdamW), &mut [])?;
        let found: Vec<Vec<f32>> = model.learning().map(|p| gpu.read(p.region)).collect::<Result<_>>()?;
        Ok(found.concat())
    };
    proofs.add("run", "same bits twice", same(&run()?, &run()?));
    if config.mask != Mask::Causal {
        return Ok(());
    }
    let (tokens, vocab) = (70, config.vocab_size);
    let own = sequences(config, seed, &[tokens]);
    let whole = built(config, Mode::Inspect { batch: 1, context: tokens })?;
    let mut gpu = Gpu::start(device, &whole)?;
    fill(&whole, &mut gpu, seed)?;
    gpu.feed(&Batch { seed: None, ..own.clone() })?;
    gpu.forward(whole.ops())?;
    let want = gpu.read(whole.logits().expect("it has a head"))?;
    let decode = built(config, Mode::Decode { rows: 33, outputs: 33, blocks: 2 })?;
    let mut gpu = Gpu::start(device, &decode)?;
    fill(&decode, &mut gpu, seed)?;
    let mut past = 0;
    for rows in [33, 1, 29, 1, 1, 5] {
        let now = past..past + rows;
        gpu.feed(&Batch {
            tokens: own.tokens[now.clone()].to_vec(),
            positions: own.positions[now.clone()].to_vec(),
            segments: own.segments.get(now.clone()).unwrap_or_default().to_vec(),
            outputs: (0..rows as u32).collect(),
            spans: vec![Span { row: 0, rows, past, table: 0, valid: now.end }],
            blocks: [1, 0][..now.end.div_ceil(64)].to_vec(),
            ..Batch::default()
        })?;
        gpu.forward(decode.ops())?;
        let got = gpu.read(decode.logits().expect("it has a head"))?;
        let found = same(&got[..rows * vocab], &want[past * vocab..now.end * vocab]);
        proofs.add("decode", "bits of the whole forward", found);
        past = now.end;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GpuChoice;
    use crate::kernels::ALL;

    #[test]
    fn every_kernel_is_proven() {
        let Ok(device) = GpuDevice::open(&GpuChoice::Best) else { return };
        let started = std::time::Instant::now();
        let proofs = prove(&device).unwrap();
        println!("{:?}", started.elapsed());
        for proof in &proofs {
            println!("{proof:?}");
        }
        assert!(proofs.iter().all(|proof| proof.fault.is_none()));
        let missing: Vec<&str> = ALL.iter().map(|k| k.entry).filter(|entry| !device.has_compiled(entry)).collect();
        assert_eq!(missing, ["gather_back", "multiply_adds"], "kernels that no proof ran");
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

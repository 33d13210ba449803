//! One feed-forward network at one position: where its units lie on the activation's curve, which of them write most,
//! and which tokens their writes make likelier.

use super::Trace;
use super::TraceError;
use super::attribution::direct_way;
use super::curve::ActivationCurve;
use super::ranking::greatest;
use limpid_core::model::{Component, Module};
use limpid_core::ops::{Op, Region};

/// A unit whose activation is never larger than this is dead.
pub const DEAD: f32 = 1e-4;

/// Bars of the histograms.
pub const BINS: usize = 48;

/// A unit at one position.
#[derive(Clone, Debug, PartialEq)]
pub struct MlpUnit {
    /// Its number.
    pub unit: usize,
    /// Before the activation.
    pub pre: f32,
    /// What its column of the output's matrix is multiplied with: after the activation, and after the gate where there
    /// is one.
    pub post: f32,
    /// The length of what it writes: |post| times the length of that column.
    pub write_norm: f64,
    /// The tokens whose logits its write raises most, by the direct way to the head, and by how much. Empty where there
    /// is no such way.
    pub tokens: Vec<(u32, f32)>,
}

/// A feed-forward network at one position.
#[derive(Clone, Debug, PartialEq)]
pub struct MlpLook {
    /// The activation over the range of all pre-activations.
    pub curve: ActivationCurve,
    /// Where the histograms' bars begin and end: [`BINS`] + 1 numbers.
    pub edges: Vec<f64>,
    /// How many of this position's units have a pre-activation there.
    pub counts: Vec<usize>,
    /// The same of all positions of the batch.
    pub all: Vec<usize>,
    /// The units that write most, the largest write first.
    pub units: Vec<MlpUnit>,
    /// How many units are dead: at no position is their activation above [`DEAD`].
    pub dead: usize,
    /// How many units there are.
    pub d_ff: usize,
}

/// Looks at the feed-forward network of a block at a row of the batch: its `units` largest writes with `tokens` tokens
/// each.
///
/// # Errors
/// As [`Trace::get`], and if the block or the row is outside.
pub fn look_at_mlp(
    trace: &Trace,
    block: usize,
    row: usize,
    (units, tokens): (usize, usize),
) -> Result<MlpLook, TraceError> {
    trace.check_rows(&[row])?;
    let network = Module::block(block).part(Component::FeedForward);
    let [pre, post] = ["hook_pre", "hook_post"].map(|hook| trace.shared(&network.named(hook)));
    let (pre, post) = (pre?, post?);
    let (d_ff, c) = (trace.model().config.d_ff, trace.model().config.d_model);
    let (f, k) = (trace.model().config.activation, trace.model().config.activation_constants());
    let finite = |least: fn(f32, f32) -> f32| pre.values.iter().copied().filter(|v| v.is_finite()).reduce(least);
    let (mut from, mut to) = (f64::from(finite(f32::min).unwrap_or(0.0)), f64::from(finite(f32::max).unwrap_or(0.0)));
    if from == to {
        (from, to) = (from - 1.0, to + 1.0);
    }
    let edges: Vec<f64> = (0..=BINS).map(|i| from + (to - from) * i as f64 / BINS as f64).collect();
    let count = |values: &[f32]| {
        let mut counts = vec![0; BINS];
        for v in values.iter().filter(|v| v.is_finite()) {
            let bin = ((f64::from(*v) - from) / (to - from) * BINS as f64) as usize;
            counts[bin.min(BINS - 1)] += 1;
        }
        counts
    };
    let mine = |all: &[f32]| all[row * d_ff..(row + 1) * d_ff].to_vec();
    let (own_pre, own_post) = (mine(&pre.values), mine(&post.values));
    let mut alive = vec![false; d_ff];
    for row in post.values.chunks_exact(d_ff) {
        // a NaN is no sign of death
        alive.iter_mut().zip(row).for_each(|(alive, v)| *alive |= v.is_nan() || v.abs() >= DEAD);
    }
    let (weight, wrote) = reader(trace, block)?;
    let weights = trace.table_rows(weight, 0..weight.rows)?;
    let mut lengths = vec![0.0; d_ff];
    for row in weights.chunks_exact(d_ff) {
        lengths.iter_mut().zip(row).for_each(|(sum, w)| *sum += f64::from(*w).powi(2));
    }
    let norm = |unit: usize| f64::from(own_post[unit].abs()) * lengths[unit].sqrt();
    let mut order: Vec<usize> = (0..d_ff).collect();
    order.sort_by(|a, b| norm(*b).total_cmp(&norm(*a)).then(a.cmp(b)));
    order.truncate(units);
    let written: Vec<Vec<f64>> = order
        .iter()
        .map(|unit| (0..c).map(|i| f64::from(own_post[*unit]) * f64::from(weights[i * d_ff + unit])).collect())
        .collect();
    let way = if trace.model().config.lm_head { direct_way(trace, wrote, written, row)? } else { None };
    let mut promoted = vec![vec![]; order.len()];
    if let Some(vectors) = way {
        let vectors: Vec<f32> = vectors.into_iter().flatten().map(|v| v as f32).collect();
        trace.read_by_head(&vectors, |n, raised| {
            promoted[n] = greatest(raised, tokens).into_iter().map(|id| (id as u32, raised[id])).collect();
        })?;
    }
    let units = order.into_iter().zip(promoted).map(|(unit, tokens)| {
        let (pre, post) = (own_pre[unit], own_post[unit]);
        MlpUnit { unit, pre, post, write_norm: norm(unit), tokens }
    });
    Ok(MlpLook {
        curve: ActivationCurve::over(f, k, (from, to)),
        edges,
        counts: count(&own_pre),
        all: count(&pre.values),
        units: units.collect(),
        dead: alive.iter().filter(|alive| !**alive).count(),
        d_ff,
    })
}

/// The matrix that reads the units of a block, and what its product writes.
fn reader(trace: &Trace, block: usize) -> Result<(Region, Region), TraceError> {
    let units = Module::block(block).part(Component::FeedForward).named("hook_post");
    let read = trace.model().tensor(&units).ok_or_else(|| super::unknown(trace.model(), &units))?.region;
    let product = |op: &Op| match *op {
        Op::Linear { x, w, y, .. } if x == read => Some((w, y)),
        _ => None,
    };
    Ok(trace.model().ops().iter().find_map(product).expect("a product reads the units"))
}

/// What a unit writes at a row of the batch, as words: the tokens whose logits it raises most, by the direct way to the
/// head, and those that it lowers most, with how much.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UnitWords {
    /// The most raised first.
    pub raised: Vec<(u32, f32)>,
    /// The most lowered first.
    pub lowered: Vec<(u32, f32)>,
}

/// The words of a unit of a block: so many of each kind, none where there is no direct way.
///
/// # Errors
/// As [`look_at_mlp`], and if there is no such unit.
pub fn unit_words(
    trace: &Trace,
    (block, unit): (usize, usize),
    row: usize,
    tokens: usize,
) -> Result<UnitWords, TraceError> {
    trace.check_rows(&[row])?;
    let post = trace.stored_row(&Module::block(block).part(Component::FeedForward).named("hook_post"), row)?;
    let (c, d_ff) = (trace.model().config.d_model, trace.model().config.d_ff);
    if unit >= d_ff {
        return Err(TraceError::Batch { what: format!("there is no unit {unit}: an MLP has {d_ff}, counted from 0") });
    }
    let (weight, wrote) = reader(trace, block)?;
    let weights = trace.table_rows(weight, 0..weight.rows)?;
    let written = (0..c).map(|i| f64::from(post[unit]) * f64::from(weights[i * d_ff + unit])).collect();
    let way = if trace.model().config.lm_head { direct_way(trace, wrote, vec![written], row)? } else { None };
    let mut words = UnitWords::default();
    if let Some(vectors) = way {
        let vector: Vec<f32> = vectors.into_iter().flatten().map(|v| v as f32).collect();
        trace.read_by_head(&vector, |_, raised| {
            let pairs = |values: &[f32]| -> Vec<(u32, f32)> {
                greatest(values, tokens).into_iter().map(|id| (id as u32, raised[id])).collect()
            };
            let lowered: Vec<f32> = raised.iter().map(|v| -v).collect();
            words = UnitWords { raised: pairs(raised), lowered: pairs(&lowered) };
        })?;
    }
    Ok(words)
}

//! What differs between two runs of equal length: of two prompts on one model, or of one prompt on two models.

use super::TraceError;
use super::explain::lse;
use super::{OUTPUTS, Trace};
use limpid_core::numeric::math;

/// Two runs, row by row of their batches.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceComparison {
    /// How far the second run's prediction Q is from the first one's P, in nats: KL(P, Q) = sum P ln(P / Q). None if a
    /// model has no head or the vocabularies differ.
    pub kl: Option<Vec<f64>>,
    /// How much the residual stream changed, |b - a| / |a|, for each stage that both models have (before the first
    /// block, after each block) and each row. None if the streams differ in width.
    pub stream: Option<Vec<Vec<f64>>>,
}

/// Compares a run with a second one.
///
/// # Errors
/// As [`Trace::logits`], and if the runs do not have the same number of sequences and tokens.
pub fn compare(a: &Trace, b: &Trace) -> Result<TraceComparison, TraceError> {
    let size = |trace: &Trace| [trace.batch().spans.len(), trace.batch().spans[0].rows];
    let ([n, t], [other, length]) = (size(a), size(b));
    if [n, t] != [other, length] {
        let what = format!("runs are compared token by token: one has {n} of {t}, the other {other} of {length}");
        return Err(TraceError::Batch { what });
    }
    let (first, second) = (a.model().config.clone(), b.model().config.clone());
    let (c, v, rows) = (first.d_model, first.vocab_size, n * t);
    let mut stream = (c == second.d_model).then(Vec::new);
    if let Some(stages) = &mut stream {
        for stage in 0..=first.n_layer.min(second.n_layer) {
            let (before, after) = (a.get(&a.stream(stage))?, b.get(&b.stream(stage))?);
            let change = |(x, y): (&[f32], &[f32])| {
                let square = |sum: f64, v: f64| sum + v * v;
                let off = x.iter().zip(y).map(|(x, y)| f64::from(*y) - f64::from(*x)).fold(0.0, square);
                let size = x.iter().map(|x| f64::from(*x)).fold(0.0, square);
                if off == 0.0 { 0.0 } else { (off / size).sqrt() }
            };
            let rows = before.values.chunks_exact(c).zip(after.values.chunks_exact(c));
            stages.push(rows.map(change).collect::<Vec<_>>());
        }
    }
    let heads = first.lm_head && second.lm_head && v == second.vocab_size;
    let mut kl = heads.then(Vec::new);
    if let Some(kl) = &mut kl {
        let (before, after) = (a.last()?, b.last()?);
        // as many rows at once as the head takes: logits of all rows are too large to keep
        for from in (0..rows).step_by(OUTPUTS) {
            let part = |values: &[f32], wide: usize| values[from * wide..(from + OUTPUTS).min(rows) * wide].to_vec();
            let mut logs: Vec<Vec<f64>> = vec![];
            a.logits(&part(&before.values, c), |_, logits| logs.push(log_softmax(logits)))?;
            b.logits(&part(&after.values, second.d_model), |n, logits| {
                kl.push(divergence(&logs[n], &log_softmax(logits)));
            })?;
        }
    }
    Ok(TraceComparison { kl, stream })
}

/// KL(P, Q) = sum P ln(P / Q), of logarithms of probabilities.
pub(super) fn divergence(p: &[f64], q: &[f64]) -> f64 {
    let each = p.iter().zip(q).filter(|(p, _)| **p > f64::NEG_INFINITY);
    let sum: f64 = each.map(|(p, q)| math::exp_f64(*p) * (p - q)).sum();
    if sum < 0.0 { 0.0 } else { sum }
}

/// The logarithms of the probabilities.
pub(super) fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let lse = lse(logits);
    logits.iter().map(|v| f64::from(*v) - lse).collect()
}

//! The logit lens: what the head would predict if the residual stream of an earlier stage were the last one
//! (nostalgebraist, 2020).
//!
//! Stage 0 is the stream before the first block, stage l the stream after block l - 1. Each is read with the final
//! norm, if the model has one, and the head. All stages of all rows run through the head together, so a lens costs what
//! as many predictions cost.

use super::Trace;
use super::TraceError;
use super::predict::{Guess, Prediction};
use limpid_core::ops::IGNORE;

/// What a lens says, and does not say.
pub const LENS_NOTE: &str = "Each stage is read as if it were the last: through the final norm, if the model has one, \
                             and the head. Early stages may hold what the head cannot read, and what it reads need \
                             not be used later.";

/// One stage at one position.
#[derive(Clone, Debug, PartialEq)]
pub struct LensCell {
    /// What is predicted, with the token that follows.
    pub prediction: Prediction,
    /// How far the last stage's distribution P is from this one's Q, in nats: KL(P, Q) = sum P ln(P / Q).
    pub kl: f64,
}

/// All stages at one position.
#[derive(Clone, Debug, PartialEq)]
pub struct LensRow {
    /// The row of the batch, sequence by sequence.
    pub row: usize,
    /// Its stages, the first one first.
    pub cells: Vec<LensCell>,
    /// The stage from which the likeliest token stays the same.
    pub settled: usize,
}

/// The names of a model's stages: `embed`, then each block's number.
pub fn stages(blocks: usize) -> Vec<String> {
    std::iter::once("embed".into()).chain((0..blocks).map(|block| block.to_string())).collect()
}

/// The residual stream of some rows of the batch at some stages: of each row all stages, one after the other.
fn streams(trace: &Trace, rows: &[usize], stages: &[usize]) -> Result<Vec<f32>, TraceError> {
    trace.check_rows(rows)?;
    let c = trace.model().config.d_model;
    let mut vectors = vec![0.0; rows.len() * stages.len() * c];
    for (place, stage) in stages.iter().enumerate() {
        let stream = trace.shared(&trace.stream(*stage))?;
        for (n, row) in rows.iter().enumerate() {
            vectors[(n * stages.len() + place) * c..][..c].copy_from_slice(&stream.values[row * c..][..c]);
        }
    }
    Ok(vectors)
}

/// The likeliest token of every stage at some rows of the batch, and what it gives to the token that follows: of each
/// row all stages, the first one first. It costs a fraction of [`lens`].
///
/// # Errors
/// As [`lens`].
pub fn guesses(trace: &Trace, rows: &[usize]) -> Result<Vec<Guess>, TraceError> {
    let order: Vec<usize> = (0..=trace.model().config.n_layer).collect();
    let vectors = streams(trace, rows, &order)?;
    let targets = trace.batch().targets.clone();
    let mut all = vec![];
    trace.logits(&vectors, |at, logits| {
        let target = targets.get(rows[at / order.len()]).copied().filter(|id| *id != IGNORE);
        all.push(Guess::new(logits, target));
    })?;
    Ok(all)
}

/// Reads every stage of some rows of the batch, with the `most` likeliest tokens of each.
///
/// # Errors
/// As [`Trace::logits`], and if a row is outside.
pub fn lens(trace: &Trace, rows: &[usize], most: usize) -> Result<Vec<LensRow>, TraceError> {
    let last = trace.model().config.n_layer;
    // the last stage comes first: the others are compared with it
    let order: Vec<usize> = std::iter::once(last).chain(0..last).collect();
    let vectors = streams(trace, rows, &order)?;
    let targets = trace.batch().targets.clone();
    let mut all: Vec<LensRow> = vec![];
    let mut end: (Vec<f32>, Vec<f64>) = Default::default(); // the last stage's probabilities and their logarithms
    trace.logits(&vectors, |at, logits| {
        let (n, place) = (at / order.len(), at % order.len());
        let target = targets.get(rows[n]).copied().filter(|id| *id != IGNORE);
        let before = logits.to_vec();
        let prediction = Prediction::new(logits, target, most.max(1));
        let ln = |logit: &f32| f64::from(*logit) - prediction.lse;
        if place == 0 {
            end = (logits.to_vec(), before.iter().map(ln).collect());
            let cells = vec![LensCell { prediction, kl: 0.0 }];
            all.push(LensRow { row: rows[n], cells, settled: 0 });
            return;
        }
        let each = end.0.iter().zip(&end.1).zip(&before);
        let kl = each
            .filter(|((p, _), _)| **p > 0.0)
            .map(|((p, own), logit)| f64::from(*p) * (own - ln(logit)))
            .sum::<f64>();
        // a sum of roundings may be a little below 0, a distance may not
        all[n].cells.push(LensCell { prediction, kl: if kl < 0.0 { 0.0 } else { kl } });
    })?;
    for row in &mut all {
        row.cells.rotate_left(1);
        let likeliest = |cell: &LensCell| cell.prediction.top.first().map(|candidate| candidate.id);
        let settled = |cell: &&LensCell| likeliest(cell) == row.cells.last().and_then(likeliest);
        row.settled = row.cells.len() - row.cells.iter().rev().take_while(settled).count();
        row.cells.iter_mut().for_each(|cell| cell.prediction.top.truncate(most));
    }
    Ok(all)
}

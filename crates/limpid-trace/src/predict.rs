//! What a row of logits says: the likeliest tokens, how uncertain it is, and what it gives to the token that follows.

use super::Trace;
use super::{NamedTensor, TraceError};
use limpid_core::kernels::classify::Row;
use limpid_core::numeric::math;
use limpid_core::numeric::simd::Level;
use limpid_core::ops::{IGNORE, Target, Terms};
use std::ops::Range;

/// A token that may come next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NextToken {
    /// Its id.
    pub id: u32,
    /// Its probability.
    pub p: f32,
    /// Its logit.
    pub logit: f32,
}

/// What is said of the token that follows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TargetFacts {
    /// Which token.
    pub candidate: NextToken,
    /// The cross-entropy, in nats: the bits of the tensor `losses`.
    pub loss: f32,
    /// How many tokens are likelier, and one; of equal ones the first id is the likelier.
    pub rank: usize,
}

/// A distribution over the vocabulary, in short.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// The likeliest tokens, of equal ones the first id first; what runs predict has none if a logit is NaN or
    /// infinite.
    pub top: Vec<NextToken>,
    /// -sum p ln p, in nats.
    pub entropy: f64,
    /// The log of the sum of exponentials of the logits.
    pub lse: f64,
    /// Of the token that follows, where it is known.
    pub target: Option<TargetFacts>,
}

/// The likeliest token of a distribution, and what it gives to the token that follows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Guess {
    /// The likeliest token, of equal ones the first id.
    pub id: u32,
    /// The logarithm of its probability.
    pub log_prob: f32,
    /// Of the token that follows its cross-entropy in nats, the bits of the tensor `losses`, and its rank as in
    /// [`TargetFacts`].
    pub target: Option<(f32, usize)>,
}

impl Guess {
    /// Of a row of logits, which becomes that of the probabilities.
    pub fn new(logits: &mut [f32], target: Option<u32>) -> Guess {
        let target = target.map(|id| id as usize).filter(|id| *id < logits.len());
        let best = (0..logits.len()).fold(0, |best, id| if logits[id] > logits[best] { id } else { best });
        let rank = target.map(|own| {
            let ahead = |(id, v): &(usize, &f32)| **v > logits[own] || **v == logits[own] && *id < own;
            1 + logits.iter().enumerate().filter(ahead).count()
        });
        let aim = target.map_or(Target::None, Target::Token);
        let loss = Level::best().run(Row { logits, target: aim, terms: Terms::default(), weight: None });
        Guess {
            id: best as u32,
            log_prob: math::ln_f64(f64::from(logits[best])) as f32,
            target: rank.map(|rank| (loss, rank)),
        }
    }
}

impl Prediction {
    /// Of a row of logits, which becomes that of the probabilities. `most` candidates are listed.
    pub fn new(logits: &mut [f32], target: Option<u32>, most: usize) -> Prediction {
        let before = logits.to_vec();
        let target = target.filter(|id| (*id as usize) < before.len());
        let aim = target.map_or(Target::None, |id| Target::Token(id as usize));
        let loss = Level::best().run(Row { logits, target: aim, terms: Terms::default(), weight: None });
        let candidate = |id: usize| NextToken { id: id as u32, p: logits[id], logit: before[id] };
        let mut top: Vec<usize> = vec![];
        for id in 0..before.len() {
            let last = top.last().map_or(f32::NEG_INFINITY, |last| before[*last]);
            if top.len() < most || before[id] > last {
                let at = top.partition_point(|other| before[*other] >= before[id]);
                top.insert(at, id);
                top.truncate(most);
            }
        }
        // ln p = logit - lse, which the likeliest token tells best
        let greatest = (0..before.len()).fold(0, |best, id| if before[id] > before[best] { id } else { best });
        let lse = f64::from(before[greatest]) - math::ln_f64(f64::from(logits[greatest]));
        let mean: f64 =
            logits.iter().zip(&before).map(|(p, s)| f64::from(*p) * f64::from(*s)).filter(|v| !v.is_nan()).sum();
        let facts = |id: u32| {
            let own = before[id as usize];
            let ahead = |(other, v): (usize, &f32)| *v > own || *v == own && other < id as usize;
            let rank = 1 + before.iter().enumerate().filter(|(i, v)| ahead((*i, *v))).count();
            TargetFacts { candidate: candidate(id as usize), loss, rank }
        };
        Prediction {
            top: top.into_iter().map(candidate).collect(),
            entropy: lse - mean,
            lse,
            target: target.map(facts),
        }
    }
}

impl Trace {
    /// What is predicted after some rows of the batch (sequence by sequence), with `most` candidates each.
    ///
    /// # Errors
    /// As [`Trace::logits`].
    pub fn predictions(&self, rows: Range<usize>, most: usize) -> Result<Vec<Prediction>, TraceError> {
        let c = self.model().config.d_model;
        let last = self.last()?;
        let targets = self.batch().targets.clone();
        let mut all = vec![];
        self.logits(&last.values[rows.start * c..rows.end * c], |row, logits| {
            let target = targets.get(rows.start + row).copied().filter(|id| *id != IGNORE);
            let sound = logits.iter().all(|v| !v.is_nan() && *v < f32::INFINITY);
            let mut one = Prediction::new(logits, target, most);
            if !sound {
                one.top.clear();
            }
            all.push(one);
        })?;
        Ok(all)
    }

    /// The residual stream after the last block.
    ///
    /// # Errors
    /// As [`Trace::get`].
    pub fn last(&self) -> Result<std::sync::Arc<NamedTensor>, TraceError> {
        self.shared(&self.stream(self.model().config.n_layer))
    }
}

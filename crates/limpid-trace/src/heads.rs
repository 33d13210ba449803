//! What a head attends to, in eight numbers and a picture small enough to show all heads at once.
//!
//! Definitions, with p the weights of query t on the keys s that it sees: means are over queries t >= 1, because
//! the first has no choice. A share on the first token is often a resting state, not a finding; what a head attends to
//! is not yet what it does.
//!
//! A head is called after what it attends to ([`HeadScores::kind`]) only where that is far more than even attention
//! would give, and where enough queries say so: over four tokens even attention has a third of its weight on the token
//! before.

use super::sheet::{AttentionHead, Sheet};
use limpid_core::kernels::attend::Stage;
use limpid_core::numeric::math;
use limpid_core::ops::BLOCK;
use serde::Serialize;
use std::ops::Range;

/// How sharply a head attends, and to what. None where there is nothing to average.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct HeadScores {
    /// Entropy of the weights, -sum p ln p, divided by the logarithm of the number of keys: 0 is one key, 1 is all
    /// alike.
    pub entropy: Option<f64>,
    /// Weight on the token before.
    pub previous: Option<f64>,
    /// Weight on the token itself.
    pub current: Option<f64>,
    /// Weight on the first token.
    pub first: Option<f64>,
    /// Weight on earlier tokens that are equal, over queries that have such.
    pub duplicate: Option<f64>,
    /// Weight on tokens that came after an earlier equal one, over queries that have such (prefix matching, Olsson et
    /// al. 2022).
    pub induction: Option<f64>,
    /// Mean distance of query and key, sum p |t - s|.
    pub distance: Option<f64>,
    /// The greatest weight of the whole matrix, the first query's aside.
    pub max: Option<f64>,
    /// What it is called after; none where nothing stands out, or too few queries say so.
    pub kind: Option<HeadKind>,
}

/// What a head is called after: the name of one of its [`HeadScores`], and its value. `entropy` is even attention.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct HeadKind {
    /// Which score.
    pub score: &'static str,
    /// What the head is called, everywhere: previous, self, first, duplicate, induction or even.
    pub name: &'static str,
    /// Its value.
    pub value: f64,
}

impl HeadKind {
    fn new(score: &'static str, value: f64) -> HeadKind {
        let name = match score {
            "current" => "self",
            "entropy" => "even",
            score => score,
        };
        HeadKind { score, name, value }
    }
}

/// How much of the way from even attention to all of the weight a share must be to name a head.
const CLEAR: f64 = 0.3;
/// From here on weights are called even.
const EVEN: f64 = 0.95;
/// Queries that a share must be the mean of to name a head.
const EVIDENCE: usize = 4;
/// Tokens from which on a head can have a name: those queries, and the first token, which has no choice.
pub const NAMED_FROM: usize = EVIDENCE + 1;

/// A head's scores, and its weights reduced to the greatest of each square of cells: `side` squares a row, at most as
/// many as there are tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct HeadLook {
    /// Its scores.
    pub scores: HeadScores,
    /// Squares in a row and in a column.
    pub side: usize,
    /// The greatest weight of each, row by row; minus infinity where the mask hides all.
    pub thumbnail: Vec<f32>,
}

/// A mean.
#[derive(Default)]
struct Mean(f64, usize);

impl Mean {
    fn add(&mut self, value: f64) {
        self.0 += value;
        self.1 += 1;
    }
    fn value(&self) -> Option<f64> {
        (self.1 > 0).then(|| self.0 / self.1 as f64)
    }
}

/// A mean share of the weights, beside that of even attention over the same queries.
#[derive(Default)]
struct MeanShare {
    share: Mean,
    even: Mean,
}

impl MeanShare {
    /// A query with this weight on `of` of the `seen` keys.
    fn add(&mut self, weight: f64, of: usize, seen: usize) {
        self.share.add(weight);
        self.even.add(of as f64 / seen.max(1) as f64);
    }

    /// How much of the way from even attention to all of the weight it is; none where too few queries say so.
    fn stands_out(&self) -> Option<f64> {
        let (share, even) = (self.share.value()?, self.even.value()?);
        (self.share.1 >= EVIDENCE && even < 1.0).then(|| (share - even) / (1.0 - even))
    }
}

/// The shares that can name a head.
const SHARES: [&str; 5] = ["first", "current", "previous", "duplicate", "induction"];

/// What a head is called after: even attention, or the share that stands out most.
fn kind(entropy: &Mean, shares: &[MeanShare; 5]) -> Option<HeadKind> {
    let even = entropy.value().filter(|value| entropy.1 >= EVIDENCE && *value >= EVEN);
    if let Some(value) = even {
        return Some(HeadKind::new("entropy", value));
    }
    let clear = |(score, own): (&'static str, &MeanShare)| {
        let by = own.stands_out().filter(|by| *by >= CLEAR)?;
        Some((by, HeadKind::new(score, own.share.value()?)))
    };
    SHARES.into_iter().zip(shares).filter_map(clear).max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, kind)| kind)
}

/// For each token the earlier places of equal ones.
fn earlier(ids: &[u32]) -> Vec<Vec<usize>> {
    let mut places = std::collections::HashMap::<u32, Vec<usize>>::new();
    let mut all = vec![];
    for (t, id) in ids.iter().enumerate() {
        let own = places.entry(*id).or_default();
        all.push(own.clone());
        own.push(t);
    }
    all
}

/// What a head's weights add up to, query by query.
struct Tally {
    earlier: Vec<Vec<usize>>,
    entropy: Mean,
    distance: Mean,
    shares: [MeanShare; 5],
    max: Option<f64>,
}

impl Tally {
    fn new(ids: &[u32]) -> Tally {
        let (entropy, distance, shares) = (Mean::default(), Mean::default(), [(); 5].map(|()| MeanShare::default()));
        Tally { earlier: earlier(ids), entropy, distance, shares, max: None }
    }

    /// Query `t`, which sees these keys with weights `p`, whose entropy is `spread`. The first query has no choice.
    fn add(&mut self, t: usize, seen: &Range<usize>, p: &[f32], spread: f64) {
        if t == 0 {
            return;
        }
        let at = |j: usize| p.get(j).map_or(0.0, |p| f64::from(*p));
        let one = |j: usize| (at(j), usize::from(seen.contains(&j)));
        if seen.len() > 1 {
            self.entropy.add(spread / math::ln_f64(seen.len() as f64));
        }
        self.distance.add(p.iter().enumerate().map(|(j, p)| f64::from(*p) * t.abs_diff(j) as f64).sum());
        let equal = &self.earlier[t];
        let several = |next: usize| {
            (!equal.is_empty()).then(|| (equal.iter().fold(0.0, |sum, j| sum + at(j + next)), equal.len()))
        };
        let all = [Some(one(0)), Some(one(t)), Some(one(t - 1)), several(0), several(1)];
        for (share, found) in self.shares.iter_mut().zip(all) {
            if let Some((mass, of)) = found {
                share.add(mass, of, seen.len());
            }
        }
        let greatest = p.iter().copied().fold(0.0, f32::max);
        self.max = Some(self.max.unwrap_or(0.0).max(f64::from(greatest)));
    }

    fn scores(self) -> HeadScores {
        let kind = kind(&self.entropy, &self.shares);
        let [first, current, previous, duplicate, induction] = self.shares.map(|share| share.share.value());
        let (entropy, distance, max) = (self.entropy.value(), self.distance.value(), self.max);
        HeadScores { entropy, previous, current, first, duplicate, induction, distance, max, kind }
    }
}

/// The scores of a head whose weights are all there, (T,T): each query with the keys that it sees.
pub fn scores_of_weights(weights: &[f32], ids: &[u32], sees: impl Fn(usize) -> Range<usize>) -> HeadScores {
    let mut tally = Tally::new(ids);
    for (t, row) in weights.chunks_exact(ids.len().max(1)).enumerate() {
        let (seen, part) =
            (sees(t), |p: &f32| if *p > 0.0 { -f64::from(*p) * math::ln_f64(f64::from(*p)) } else { 0.0 });
        let p = &row[..seen.end];
        tally.add(t, &seen, p, p.iter().map(part).sum());
    }
    tally.scores()
}

/// Looks at one head; `ids` are its sequence's tokens, and `side` the most squares in a row of the picture.
pub fn look(head: AttentionHead, ids: &[u32], side: usize) -> HeadLook {
    let (n, mut tally) = (head.span.rows, Tally::new(ids));
    let side = side.min(n);
    let (weights, scores) = (Sheet::scores(head.clone(), Stage::Weights), Sheet::scores(head.clone(), Stage::Raw));
    let lse = |t: usize| f64::from(head.lse.values[(head.span.row + t) * head.heads.n_head + head.head]);
    let mut thumbnail = vec![f32::NEG_INFINITY; side * side];
    for from in (0..n).step_by(BLOCK) {
        let rows = from..(from + BLOCK).min(n);
        let keys = rows.clone().map(|t| head.sees(t).end).max().unwrap_or(0);
        let [p, s] = [&weights, &scores].map(|sheet| sheet.band(rows.clone(), 0..keys));
        for (row, t) in rows.enumerate() {
            let seen = head.sees(t);
            let (p, s) = (&p[row * keys..][..seen.end], &s[row * keys..][..seen.end]);
            let squares = &mut thumbnail[t * side / n * side..][..side];
            for j in seen.clone() {
                let square = &mut squares[j * side / n];
                if !(square.is_nan() || p[j] <= *square) {
                    *square = p[j]; // a NaN stays
                }
            }
            // ln p = s - lse
            let spread: f64 = p.iter().zip(s).map(|(p, s)| f64::from(*p) * (lse(t) - f64::from(*s))).sum();
            tally.add(t, &seen, p, spread);
        }
    }
    HeadLook { scores: tally.scores(), side, thumbnail }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A mean over so many queries.
    fn share(value: f64, even: f64, queries: usize) -> MeanShare {
        MeanShare { share: Mean(value * queries as f64, queries), even: Mean(even * queries as f64, queries) }
    }

    #[test]
    fn a_head_is_named_by_what_stands_out_and_is_seen_often_enough() {
        let named = |entropy: f64, previous: MeanShare, induction: MeanShare| {
            let none = MeanShare::default;
            let shares = [none(), none(), previous, none(), induction];
            kind(&Mean(entropy * 20.0, 20), &shares).map(|kind| kind.score)
        };
        for (entropy, previous, induction, want) in [
            // three queries, of which even attention has 0.36 on the token before
            (0.5, share(0.9, 0.36, 3), share(0.0, 0.1, 0), None),
            (0.5, share(0.9, 0.36, 4), share(0.0, 0.1, 0), Some("previous")),
            // as even attention, and a little more
            (0.5, share(0.36, 0.36, 20), share(0.0, 0.1, 0), None),
            (0.5, share(0.54, 0.36, 20), share(0.0, 0.1, 0), None),
            (0.5, share(0.56, 0.36, 20), share(0.0, 0.1, 0), Some("previous")),
            // what stands out more, not what is more
            (0.5, share(0.6, 0.36, 20), share(0.5, 0.05, 8), Some("induction")),
            (0.5, share(0.6, 0.36, 20), share(1.0, 0.05, 3), Some("previous")),
            (0.96, share(0.9, 0.36, 20), share(0.0, 0.1, 0), Some("entropy")),
        ] {
            assert_eq!(named(entropy, previous, induction), want, "{entropy}");
        }
    }
}

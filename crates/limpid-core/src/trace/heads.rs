//! What a head attends to, in eight numbers and a picture small enough to show all heads at once.
//!
//! Definitions (design of the glass box, 1.3), with p the weights of query t on the keys s that it sees: means are over queries t >= 1, because
//! the first has no choice. A share on the first token is often a resting state, not a finding; what a head attends to is not yet what it does.

use super::sheet::{AttentionHead, Sheet};
use crate::ops::attend::{BLOCK, Stage};

/// How sharply a head attends, and to what. None where there is nothing to average.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HeadScores {
    /// Entropy of the weights, -sum p ln p, divided by the logarithm of the number of keys: 0 is one key, 1 is all alike.
    pub entropy: Option<f64>,
    /// Weight on the token before.
    pub previous: Option<f64>,
    /// Weight on the token itself.
    pub current: Option<f64>,
    /// Weight on the first token.
    pub first: Option<f64>,
    /// Weight on earlier tokens that are equal, over queries that have such.
    pub duplicate: Option<f64>,
    /// Weight on tokens that came after an earlier equal one, over queries that have such (prefix matching, Olsson et al. 2022).
    pub induction: Option<f64>,
    /// Mean distance of query and key, sum p |t - s|.
    pub distance: Option<f64>,
    /// The greatest weight of the whole matrix, the first query's aside.
    pub max: Option<f64>,
}

/// The names of the eight, in the order of the fields.
pub const HEAD_SCORES: [&str; 8] =
    ["entropy", "previous", "current", "first", "duplicate", "induction", "distance", "max"];

impl HeadScores {
    /// The eight, by [`HEAD_SCORES`].
    pub fn values(&self) -> [Option<f64>; 8] {
        let HeadScores { entropy, previous, current, first, duplicate, induction, distance, max } = *self;
        [entropy, previous, current, first, duplicate, induction, distance, max]
    }
}

/// A head's scores, and its weights reduced to the greatest of each square of cells: `side` squares a row, at most as many as there are
/// tokens.
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

/// Looks at one head; `ids` are its sequence's tokens, and `side` the most squares in a row of the picture.
pub fn look(head: AttentionHead, ids: &[u32], side: usize) -> HeadLook {
    let (n, earlier) = (head.span.rows, earlier(ids));
    let side = side.min(n);
    let (weights, scores) = (Sheet::scores(head.clone(), Stage::Weights), Sheet::scores(head.clone(), Stage::Raw));
    let lse = |t: usize| f64::from(head.lse.values[(head.span.row + t) * head.heads.n_head + head.head]);
    let mut thumbnail = vec![f32::NEG_INFINITY; side * side];
    let [mut entropy, mut previous, mut current, mut first, mut duplicate, mut induction, mut distance] =
        [const { Mean(0.0, 0) }; 7];
    let mut max = None::<f64>;
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
            if t == 0 {
                continue;
            }
            let at = |j: usize| p.get(j).map_or(0.0, |p| f64::from(*p));
            let sum = |of: &mut dyn Iterator<Item = usize>| of.fold((0.0, 0), |(sum, n), j| (sum + at(j), n + 1));
            // ln p = s - lse
            let spread: f64 = p.iter().zip(s).map(|(p, s)| f64::from(*p) * (lse(t) - f64::from(*s))).sum();
            if seen.len() > 1 {
                entropy.add(spread / (seen.len() as f64).ln());
            }
            previous.add(at(t - 1));
            current.add(at(t));
            first.add(at(0));
            distance.add(p.iter().enumerate().map(|(j, p)| f64::from(*p) * t.abs_diff(j) as f64).sum());
            let equal = &earlier[t];
            if let (mass, 1..) = sum(&mut equal.iter().copied()) {
                duplicate.add(mass);
            }
            if let (mass, 1..) = sum(&mut equal.iter().map(|j| j + 1)) {
                induction.add(mass);
            }
            let greatest = p.iter().copied().fold(0.0, f32::max);
            max = Some(max.unwrap_or(0.0).max(f64::from(greatest)));
        }
    }
    let scores = HeadScores {
        entropy: entropy.value(),
        previous: previous.value(),
        current: current.value(),
        first: first.value(),
        duplicate: duplicate.value(),
        induction: induction.value(),
        distance: distance.value(),
        max,
    };
    HeadLook { scores, side, thumbnail }
}

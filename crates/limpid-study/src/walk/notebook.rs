//! The random numbers of "Zero-to-Hero": the article's tables are what PyTorch draws on a CPU after
//! `torch.manual_seed(1337)`, in two runs of one notebook, one after the other. They are drawn here again, so that the
//! walk computes every table that the article prints.
//!
//! The first run has the printed ids, the look-up table and the scores; the second drew another table for another
//! batch, and printed the embedding and its sums.

use limpid_core::numeric::math::{cos, ln, sin};
use std::collections::{BTreeMap, BTreeSet};

const SEED: u32 = 1337;
/// Rows of a token table.
const ROWS: usize = 100_069;
const D_MODEL: usize = 64;
const TABLE: usize = ROWS * D_MODEL;
/// A batch is drawn first: where its four windows begin.
const BATCH: usize = 4;
/// The weight and the bias of a linear layer.
const fn linear(inputs: usize, outputs: usize) -> usize {
    inputs * outputs + outputs
}
/// After its table a run draws Wq, Wk, Wv and Wo, the two layers of the feed-forward network, and the head.
const LAYERS: usize =
    4 * linear(D_MODEL, D_MODEL) + linear(D_MODEL, 256) + linear(256, D_MODEL) + linear(D_MODEL, 3771);
/// Between the runs one number more is drawn; the article does not say what for.
const BETWEEN: usize = 1;

/// One of the two runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotebookRun {
    First,
    Second,
}

impl NotebookRun {
    /// The generator where its token table begins.
    fn before_table(self) -> Torch {
        let mut torch = Torch::seeded(SEED);
        torch.skip(BATCH);
        if self == NotebookRun::Second {
            torch.skip(TABLE + LAYERS + BETWEEN + BATCH);
        }
        torch
    }

    /// Rows of its token table, in the order of the ids; zeros for an id that has none.
    pub(super) fn rows(self, ids: &[u32]) -> Vec<Vec<f32>> {
        let mut torch = self.before_table();
        let mut drawn = BTreeMap::new();
        let mut at = 0;
        for id in ids.iter().filter(|id| **id < ROWS as u32).collect::<BTreeSet<_>>() {
            let row = *id as usize;
            torch.skip((row - at) * D_MODEL);
            drawn.insert(id, torch.normals(D_MODEL));
            at = row + 1;
        }
        ids.iter().map(|id| drawn.get(id).cloned().unwrap_or(vec![0.0; D_MODEL])).collect()
    }
}

/// The first run's weights and biases of Wq, Wk and Wv, one after another, (out, in).
pub(super) fn attention() -> (Vec<f32>, Vec<f32>) {
    let mut torch = NotebookRun::First.before_table();
    torch.skip(TABLE);
    let (mut weights, mut biases) = (vec![], vec![]);
    for _ in 0..3 {
        weights.extend(torch.uniform(D_MODEL * D_MODEL, LINEAR));
        biases.extend(torch.uniform(D_MODEL, LINEAR));
    }
    (weights, biases)
}

/// `nn.Linear` begins between minus and plus 1 / √inputs.
const LINEAR: f32 = 0.125;

// ---- PyTorch's generator

const N: usize = 624;
const M: usize = 397;

/// PyTorch's generator on a CPU: the Mersenne Twister of Matsumoto and Nishimura (1998), and what PyTorch makes of its
/// words.
struct Torch {
    state: [u32; N],
    next: usize,
}

impl Torch {
    /// `torch.manual_seed(seed)`
    fn seeded(seed: u32) -> Torch {
        let mut state = [seed; N];
        for i in 1..N {
            let last = state[i - 1];
            state[i] = (last ^ (last >> 30)).wrapping_mul(1_812_433_253).wrapping_add(i as u32);
        }
        Torch { state, next: N }
    }

    fn twist(&mut self) {
        for i in 0..N {
            let joined = (self.state[i] & 0x8000_0000) | (self.state[(i + 1) % N] & 0x7fff_ffff);
            let odd = if joined % 2 == 1 { 0x9908_b0df } else { 0 };
            self.state[i] = self.state[(i + M) % N] ^ (joined >> 1) ^ odd;
        }
        self.next = 0;
    }

    /// Passes over words; `randint` takes one for each number, `uniform_` and `randn` too.
    fn skip(&mut self, mut words: usize) {
        while words > N - self.next {
            words -= N - self.next;
            self.twist();
        }
        self.next += words;
    }

    fn word(&mut self) -> u32 {
        if self.next == N {
            self.twist();
        }
        let mut word = self.state[self.next];
        self.next += 1;
        word ^= word >> 11;
        word ^= (word << 7) & 0x9d2c_5680;
        word ^= (word << 15) & 0xefc6_0000;
        word ^ (word >> 18)
    }

    /// In [0, 1): the low 24 bits.
    fn fraction(&mut self) -> f32 {
        (self.word() & 0x00ff_ffff) as f32 / 16_777_216.0
    }

    /// `torch.empty(n).uniform_(-bound, bound)`
    fn uniform(&mut self, n: usize, bound: f32) -> Vec<f32> {
        (0..n).map(|_| self.fraction() * (bound + bound) - bound).collect()
    }

    /// `torch.randn(n)`, n at least 16: normal numbers from fractions by Box and Muller, in blocks of 16. If a part of
    /// a block is left over, the last 16 are drawn once more.
    fn normals(&mut self, n: usize) -> Vec<f32> {
        assert!(n >= 16, "PyTorch draws fewer than 16 normal numbers in another way");
        let mut values: Vec<f32> = (0..n).map(|_| self.fraction()).collect();
        values.chunks_exact_mut(16).for_each(to_normal);
        if !n.is_multiple_of(16) {
            let last = &mut values[n - 16..];
            last.iter_mut().for_each(|value| *value = self.fraction());
            to_normal(last);
        }
        values
    }
}

/// The first eight of 16 fractions give the radii, the others the angles.
fn to_normal(block: &mut [f32]) {
    let (radii, angles) = block.split_at_mut(8);
    for (first, second) in radii.iter_mut().zip(angles) {
        let radius = (-2.0 * ln(1.0 - *first)).sqrt();
        let angle = f64::from(std::f32::consts::TAU * *second);
        *first = radius * cos(angle) as f32;
        *second = radius * sin(angle) as f32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn fixture() -> Value {
        serde_json::from_str(include_str!("../../fixtures/torch.json")).unwrap()
    }

    fn list(value: &Value) -> Vec<f32> {
        serde_json::from_value(value.clone()).unwrap()
    }

    /// PyTorch's logarithm, sine and cosine of f32 are approximations of their own: they differ in last bits.
    #[track_caller]
    fn near(what: &str, ours: &[f32], theirs: &[f32]) {
        assert_eq!(ours.len(), theirs.len(), "{what}");
        for (at, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
            assert!(
                (ours - theirs).abs() <= 5e-7 * theirs.abs().max(1.0),
                "{what}[{at}]: {ours}, PyTorch has {theirs}"
            );
        }
    }

    #[test]
    fn draws_are_pytorchs() {
        let mut seen = BTreeSet::new();
        for case in fixture()["cases"].as_array().unwrap() {
            let mut torch = Torch::seeded(case["seed"].as_u64().unwrap() as u32);
            for draw in case["draws"].as_array().unwrap() {
                let at = format!("seed {}", case["seed"]);
                if let Some(words) = draw["words"].as_u64() {
                    torch.skip(words as usize);
                } else if draw["normal"].is_array() {
                    let theirs = list(&draw["normal"]);
                    near(&at, &torch.normals(theirs.len()), &theirs);
                    seen.insert(theirs.len() % 16);
                } else {
                    let theirs = list(&draw["uniform"]);
                    assert_eq!(torch.uniform(theirs.len(), 0.125), theirs, "{at}");
                }
            }
        }
        assert!(seen.len() > 3, "whole blocks and parts of one: {seen:?}");
    }

    #[test]
    fn the_tables_and_layers_are_pytorchs() {
        let notebook = &fixture()["notebook"];
        let rows: Vec<u32> = serde_json::from_value(notebook["rows"].clone()).unwrap();
        for (run, name) in [(NotebookRun::First, "first"), (NotebookRun::Second, "second")] {
            let theirs: Vec<Vec<f32>> = serde_json::from_value(notebook[name].clone()).unwrap();
            near(name, &run.rows(&rows).concat(), &theirs.concat());
            let backwards: Vec<u32> = rows.iter().rev().copied().collect();
            assert!(run.rows(&backwards).iter().rev().eq(&run.rows(&rows)));
        }
        assert_eq!(NotebookRun::First.rows(&[100_069, 100_257]), vec![vec![0.0; D_MODEL]; 2]);
        let (weights, biases) = attention();
        for part in 0..3 {
            let own = &weights[part * D_MODEL * D_MODEL..][..D_MODEL * D_MODEL];
            let ends = [&own[..D_MODEL], &own[own.len() - D_MODEL..]].concat();
            assert_eq!(ends, list(&notebook["weights"][part]), "weight {part}");
            assert_eq!(biases[part * D_MODEL..][..D_MODEL], list(&notebook["biases"][part]), "bias {part}");
        }
    }
}

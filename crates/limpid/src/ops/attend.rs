//! Attention: y = softmax(scale q k' + mask) v, head by head (contract R098 to R144).
//!
//! Forward, streaming: keys come in blocks of [`BLOCK`]; a row keeps its greatest score so far m, the sum
//! l of exp(s - m) and the weighted sum of values, and rescales them when m grows. T x T is never kept:
//! the backward rebuilds the weights from lse = m + log l. A row's result is decided by its query and
//! keys alone, block by block, so prefill, decoding and any batch give the same bits.
//!
//! Backward, with P the weights, F dropout's factors, and D = sum of dy y over the row:
//!   dv += (P F)' dy;   dP = (dy v') F;   dS = P (dP - D);   dq += scale dS k;   dk += scale dS' q

use super::Span;
use super::dropout::{Draws, weight_index};
use super::linear::gemm::{self, gemm};
use super::math::exp;
use super::simd::{Kernel, Level, greatest, sum, sum2};
use super::view::{Mat, MatMut};
use crate::config::Mask;

/// Keys (and queries) that are worked on at once.
pub const BLOCK: usize = 64;

/// Floats of scratch that [`forward`], [`backward`] and [`watch`] need.
pub const SCRATCH: usize = 2 * BLOCK * BLOCK + gemm::SCRATCH;

/// One head of one sequence: what decides its weights. Queries are the span's rows, keys the sequence's
/// positions, both with D columns.
#[derive(Clone, Copy)]
pub struct Head<'a> {
    /// (rows,D)
    pub q: Mat<'a>,
    /// (keys,D)
    pub k: Mat<'a>,
    /// (keys,D)
    pub v: Mat<'a>,
    /// the sequence
    pub span: Span,
    /// which keys a query sees
    pub mask: Mask,
    /// what scores are multiplied by
    pub scale: f32,
    /// dropout on the weights
    pub draws: Option<Draws>,
    /// its number
    pub head: usize,
    /// of how many
    pub n_head: usize,
}

impl Head<'_> {
    fn factor(&self, i: usize, j: usize) -> f32 {
        self.draws.map_or(1.0, |d| d.factor(weight_index(self.span.row + i, self.head, self.n_head, j)))
    }
    /// The blocks of queries.
    fn blocks(&self) -> impl Iterator<Item = std::ops::Range<usize>> {
        let rows = self.q.rows;
        (0..rows).step_by(BLOCK).map(move |i| i..(i + BLOCK).min(rows))
    }
    /// The blocks of keys that some query of `queries` sees.
    fn keys(&self, queries: &std::ops::Range<usize>) -> impl Iterator<Item = std::ops::Range<usize>> {
        let last = queries.clone().map(|i| self.span.reach(self.mask, i)).max().unwrap_or(0);
        let keys = self.k.rows;
        (0..last).step_by(BLOCK).map(move |j| j..(j + BLOCK).min(keys))
    }
    /// How many of the keys from `from` on query `i` sees.
    fn live(&self, i: usize, from: usize) -> usize {
        self.span.reach(self.mask, i).saturating_sub(from).min(BLOCK)
    }
}

/// Plain f64 loops.
pub mod reference {
    /// What one query makes of its keys.
    pub struct Row {
        /// Scaled scores before the mask (R342).
        pub raw: Vec<f64>,
        /// After the mask: minus infinity where hidden.
        pub scores: Vec<f64>,
        /// Their softmax.
        pub pattern: Vec<f64>,
        /// Log of the sum of exponentials.
        pub lse: f64,
    }

    /// Scores and weights of a query over `keys`, of which it sees the first `reach`.
    pub fn row<'a>(q: &[f64], keys: impl Iterator<Item = &'a [f64]>, reach: usize, scale: f64) -> Row {
        let raw: Vec<f64> = keys.map(|k| scale * q.iter().zip(k).map(|(q, k)| q * k).sum::<f64>()).collect();
        let scores: Vec<f64> =
            raw.iter().enumerate().map(|(j, s)| if j < reach { *s } else { f64::NEG_INFINITY }).collect();
        let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let lse = top + scores.iter().map(|s| (s - top).exp()).sum::<f64>().ln();
        let pattern = scores.iter().map(|s| (s - lse).exp()).collect();
        Row { raw, scores, pattern, lse }
    }

    /// Gradients of the weights and of the scores, from dy and the values: (dP, dS).
    pub fn row_backward<'a>(
        pattern: &[f64],
        dy: &[f64],
        values: impl Iterator<Item = &'a [f64]>,
        factor: impl Fn(usize) -> f64,
    ) -> (Vec<f64>, Vec<f64>) {
        let dp: Vec<f64> =
            values.enumerate().map(|(j, v)| factor(j) * dy.iter().zip(v).map(|(d, v)| d * v).sum::<f64>()).collect();
        let dot: f64 = pattern.iter().zip(&dp).map(|(p, d)| p * d).sum();
        let ds = pattern.iter().zip(&dp).map(|(p, d)| p * (d - dot)).collect();
        (dp, ds)
    }
}

/// One row's share of a block: scores become weights relative to the new greatest score.
struct Step<'a> {
    scores: &'a mut [f32; BLOCK],
    live: usize,
    scale: f32,
    top: &'a mut f32,
    sum: &'a mut f32,
    y: &'a mut [f32],
}

impl Kernel for Step<'_> {
    type Output = ();
    #[inline(always)]
    fn run<const FMA: bool>(self) {
        for s in &mut self.scores[..self.live] {
            *s *= self.scale;
        }
        self.scores[self.live..].fill(f32::NEG_INFINITY);
        let block = greatest(self.scores);
        let top = if block > *self.top || block.is_nan() { block } else { *self.top };
        let shrink = exp::<FMA>(*self.top - top);
        for s in self.scores.iter_mut() {
            *s = exp::<FMA>(*s - top);
        }
        *self.sum = *self.sum * shrink + sum(self.scores, |p| p);
        *self.top = top;
        for y in self.y {
            *y *= shrink;
        }
    }
}

/// y: (rows,D) and lse: (rows,1) of one head.
pub fn forward(level: Level, head: Head, mut y: MatMut, mut lse: MatMut, scratch: &mut [f32]) {
    let (scores, scratch) = scratch.split_at_mut(BLOCK * BLOCK);
    let d = head.q.cols;
    y.fill(0.0);
    for rows in head.blocks() {
        let (mut top, mut total) = ([f32::NEG_INFINITY; BLOCK], [0f32; BLOCK]);
        for keys in head.keys(&rows) {
            let mut block = MatMut::new(scores, BLOCK);
            let s = block.part(0..rows.len(), 0..keys.len());
            gemm(level, s, head.q.rows(rows.clone()), head.k.rows(keys.clone()).t(), false, scratch);
            for (r, s) in scores.as_chunks_mut::<BLOCK>().0.iter_mut().enumerate().take(rows.len()) {
                let i = rows.start + r;
                let live = head.live(i, keys.start);
                if live == 0 {
                    s.fill(0.0);
                    continue;
                }
                let step =
                    Step { scores: s, live, scale: head.scale, top: &mut top[r], sum: &mut total[r], y: y.row(i) };
                level.run(step);
                if head.draws.is_some() {
                    s.iter_mut().take(live).enumerate().for_each(|(j, p)| *p *= head.factor(i, keys.start + j));
                }
            }
            let p = Mat::strided(scores, rows.len(), keys.len(), BLOCK);
            gemm(level, y.part(rows.clone(), 0..d), p, head.v.rows(keys), true, scratch);
        }
        for (r, i) in rows.enumerate() {
            let share = 1.0 / total[r];
            y.row(i).iter_mut().for_each(|y| *y *= share);
            lse.row(i)[0] = top[r] + total[r].ln();
        }
    }
}

/// The weights again, from lse: hidden ones exactly 0.
struct Weights<'a> {
    scores: &'a mut [f32],
    live: usize,
    scale: f32,
    lse: f32,
}

impl Kernel for Weights<'_> {
    type Output = ();
    #[inline(always)]
    fn run<const FMA: bool>(self) {
        let (live, hidden) = self.scores.split_at_mut(self.live.min(self.scores.len()));
        for s in live {
            *s = exp::<FMA>(*s * self.scale - self.lse);
        }
        hidden.fill(0.0);
    }
}

/// A row's gradient of the scores, scaled, in the place of its gradient of the weights.
struct Slopes<'a> {
    p: &'a [f32],
    dp: &'a mut [f32],
    dot: f32,
    scale: f32,
}

impl Kernel for Slopes<'_> {
    type Output = ();
    #[inline(always)]
    fn run<const FMA: bool>(self) {
        for (dp, p) in self.dp.iter_mut().zip(self.p) {
            *dp = p * (*dp - self.dot) * self.scale;
        }
    }
}

/// sum of dy y over a row
struct Dot<'a>(&'a [f32], &'a [f32]);
impl Kernel for Dot<'_> {
    type Output = f32;
    #[inline(always)]
    fn run<const FMA: bool>(self) -> f32 {
        sum2(self.0, self.1, |a, b| a * b)
    }
}

/// Where the backward of one head writes, each (rows,D).
pub struct Gradients<'a> {
    /// of the queries
    pub dq: MatMut<'a>,
    /// of the keys
    pub dk: MatMut<'a>,
    /// of the values
    pub dv: MatMut<'a>,
    /// watched: of the raw scores, of the scores, and of the weights, (rows,T) each
    pub watched: [Option<MatMut<'a>>; 3],
}

/// Gradients of one head (overwritten unless `add`) from dy, y: (rows,D) and lse: (rows,1).
pub fn backward(level: Level, head: Head, to: Gradients, add: bool, [dy, y, lse]: [Mat; 3], scratch: &mut [f32]) {
    let Gradients { mut dq, mut dk, mut dv, mut watched } = to;
    let (p, scratch) = scratch.split_at_mut(BLOCK * BLOCK);
    let (dp, scratch) = scratch.split_at_mut(BLOCK * BLOCK);
    let d = head.q.cols;
    if !add {
        [&mut dq, &mut dk, &mut dv].into_iter().for_each(|m| m.fill(0.0));
    }
    watched.iter_mut().flatten().for_each(|m| m.fill(0.0));
    let plain = head.draws.is_none() && watched.iter().all(Option::is_none);
    for rows in head.blocks() {
        let (q, dy_rows) = (head.q.rows(rows.clone()), dy.rows(rows.clone()));
        let mut dots = [0f32; BLOCK];
        for (r, i) in rows.clone().enumerate() {
            dots[r] = level.run(Dot(dy.row(i), y.row(i)));
        }
        for keys in head.keys(&rows) {
            let (k, v, n) = (head.k.rows(keys.clone()), head.v.rows(keys.clone()), keys.len());
            gemm(level, MatMut::new(p, BLOCK).part(0..rows.len(), 0..n), q, k.t(), false, scratch);
            gemm(level, MatMut::new(dp, BLOCK).part(0..rows.len(), 0..n), dy_rows, v.t(), false, scratch);
            for (r, i) in rows.clone().enumerate() {
                let (p, dp) = (&mut p[r * BLOCK..][..n], &mut dp[r * BLOCK..][..n]);
                let live = head.live(i, keys.start);
                level.run(Weights { scores: p, live, scale: head.scale, lse: lse.at(i, 0) });
                if plain {
                    level.run(Slopes { p, dp, dot: dots[r], scale: head.scale });
                    continue;
                }
                // what is hidden has the constant weight 0, and no gradient
                for j in 0..n {
                    let factor = if j < live { head.factor(i, keys.start + j) } else { 0.0 };
                    let (weight, dweight) = (p[j], dp[j] * factor);
                    let ds = weight * (dweight - dots[r]);
                    for (to, value) in watched.iter_mut().zip([ds, ds, dweight]) {
                        if let Some(to) = to {
                            to.row(i)[keys.start + j] = value;
                        }
                    }
                    p[j] = weight * factor;
                    dp[j] = ds * head.scale;
                }
            }
            let p = Mat::strided(p, rows.len(), n, BLOCK);
            let ds = Mat::strided(dp, rows.len(), n, BLOCK);
            gemm(level, dv.part(keys.clone(), 0..d), p.t(), dy_rows, true, scratch);
            gemm(level, dq.part(rows.clone(), 0..d), ds, k, true, scratch);
            gemm(level, dk.part(keys.clone(), 0..d), ds.t(), q, true, scratch);
        }
    }
}

/// Fills raw scores, masked scores and weights, (rows,T) each, from lse: a pass of its own, after the output.
pub fn watch(level: Level, head: Head, [raw, scores, pattern]: [Option<MatMut>; 3], lse: Mat, scratch: &mut [f32]) {
    let (s, scratch) = scratch.split_at_mut(BLOCK * BLOCK);
    let mut to = [(raw, 0.0), (scores, f32::NEG_INFINITY), (pattern, 0.0)];
    for (m, hidden) in &mut to {
        if let Some(m) = m {
            m.fill(*hidden);
        }
    }
    for i in 0..head.q.rows {
        for from in (0..head.k.rows).step_by(BLOCK) {
            let keys = from..(from + BLOCK).min(head.k.rows);
            let s = &mut s[..keys.len()];
            gemm(
                level,
                MatMut::new(s, keys.len()),
                head.q.rows(i..i + 1),
                head.k.rows(keys.clone()).t(),
                false,
                scratch,
            );
            let live = head.live(i, from).min(keys.len());
            let scaled = |s: &f32| *s * head.scale;
            if let Some(m) = &mut to[0].0 {
                m.row(i)[keys.clone()].iter_mut().zip(&*s).for_each(|(m, s)| *m = scaled(s));
            }
            if let Some(m) = &mut to[1].0 {
                m.row(i)[keys.clone()].iter_mut().zip(&*s).take(live).for_each(|(m, s)| *m = scaled(s));
            }
            if let Some(m) = &mut to[2].0 {
                level.run(Weights { scores: s, live, scale: head.scale, lse: lse.at(i, 0) });
                m.row(i)[keys].copy_from_slice(s);
            }
        }
    }
}

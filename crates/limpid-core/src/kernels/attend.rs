//! Attention: y = softmax(scale q k' + mask) v, head by head; `scoring` has what else a score may be made of.
//!
//! Forward, streaming (as in FlashAttention): keys come in blocks of [`BLOCK`]. For each row it keeps the greatest
//! score so far m, the sum l of exp(s - m) and the weighted sum of values, and rescales the sums when m grows. The T
//! x T scores are never stored: the backward recomputes the weights from lse = m + log l. A row's result depends
//! only on its query and keys, block by block, so prefill, decoding and any batch give the same bits.
//!
//! Backward, with P the attention weights, F dropout's factors, and D = sum of dy y over the row:
//!   dv += (P F)' dy;   dP = (dy v') F;   dS = P (dP - D);   dq += scale dS k;   dk += scale dS' q
//! With a cap, the scale of each score is the slope of cap tanh(scale q k' / cap).
//!
//! A block of scores is stored transposed, 64 x 64 floats: a row is a key and a vector lane is a query. So the
//! greatest score and the sum are kept lane by lane, without sums across a vector, and keys and values are read in
//! place. The right operand of a product (`matrix::gemm`) is packed row by row or, for queries and dy, 16 x 16 at a
//! time. A quarter of a block on the diagonal is skipped. One query alone, as in decoding, would use one lane of these:
//! it has a loop of its own over the KV cache, whose keys lie as columns, so that a lane is a key.
//!
//! Caps, slopes and windows are passes of their own over a block of scores (`Bend`, `Steepen`), between the product
//! and the softmax, so other models do not pay for them. Blocks of keys that lie before the window of all of a block's
//! queries are skipped. For a query that sees none of the block's keys it changes nothing, to the bit.
//!
//! Measured in a step on two AVX-512 cores, counting only unmasked scores: GPT-2 at T = 1024 with dropout 0.1, 155
//! GFLOP/s forward and 136 backward (of about 340); nano, T = 64 and D = 32, 57 and 47, because its only block is on
//! the diagonal.

use super::dropout::{Draws, weight_index};
use crate::config::Mask;
use crate::matrix::gemm::{self, gemm};
use crate::matrix::view::{Mat, MatMut};
use crate::numeric::half::widen_bf16;
use crate::numeric::math::{exp, ln, tanh};
use crate::numeric::simd::{Kernel, LANES, Level, MulAdd, fma, sum2};
use crate::ops::Scoring;
use crate::ops::{BLOCK, Span};
use std::ops::Range;

/// How many rows of a block on the diagonal are computed together, over the keys that any of them sees.
const STRIP: usize = 32;

/// The lanes' numbers.
const LANE: [u32; LANES] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

/// One row of a block: 64 queries.
type Row = [f32; BLOCK];

/// Floats of scratch that [`forward`], [`backward`] and [`watch`] need for D up to 256.
pub const SCRATCH: usize = scratch(4 * BLOCK);

/// Floats of scratch that they need for any D and D_v, of which this is the greater: a block of scores, and four more
/// or one of keys.
pub const fn scratch(d: usize) -> usize {
    BLOCK * (BLOCK + if d > 4 * BLOCK { d } else { 4 * BLOCK }) + gemm::SCRATCH
}

/// The keys or the values of one head: (keys,D), or (keys,D_v).
#[derive(Clone, Copy)]
pub enum Keys<'a> {
    /// Rows of a matrix.
    Plain(Mat<'a>),
    /// Blocks of a KV cache.
    Cached(CachedKeys<'a>),
}

/// All blocks of a KV cache. A block has the keys of each head for [`BLOCK`] positions as a matrix (D, 64), a column a
/// key, and then the values of each head as (64, D_v): so a query alone reads both straight through, a lane a key.
#[derive(Clone, Copy)]
pub enum CacheBlocks<'a> {
    /// As they are.
    F32(&'a [f32]),
    /// Rounded to bf16.
    Bf16(&'a [u16]),
}

/// One head's keys or values in a sequence's blocks of a KV cache.
#[derive(Clone, Copy)]
pub struct CachedKeys<'a> {
    /// All blocks.
    pub cache: CacheBlocks<'a>,
    /// Elements of a block.
    pub block: usize,
    /// Where in a block its matrix begins.
    pub start: usize,
    /// Whether it has a column for each position, as keys have: values have rows.
    pub columns: bool,
    /// The sequence's blocks, in the order of positions.
    pub table: &'a [u32],
    /// D, or D_v.
    pub d: usize,
}

impl Keys<'_> {
    /// Some keys of one block, (keys,D): `keys` begins at a multiple of [`BLOCK`]. `room` has [`BLOCK`] D elements, for
    /// those that are not f32.
    fn block<'a>(&'a self, level: Level, keys: &Range<usize>, room: &'a mut [f32]) -> Mat<'a> {
        let CachedKeys { cache, block, start, columns, table, d } = match *self {
            Keys::Plain(all) => return all.rows(keys.clone()),
            Keys::Cached(cached) => cached,
        };
        let at = table[keys.start / BLOCK] as usize * block + start;
        let data = match cache {
            CacheBlocks::F32(all) => &all[at..at + BLOCK * d],
            CacheBlocks::Bf16(all) => {
                level.run(Widen(room, &all[at..at + BLOCK * d]));
                &room[..BLOCK * d]
            }
        };
        let all = if columns { Mat::new(data, BLOCK).t() } else { Mat::new(data, d) };
        all.rows(0..keys.len())
    }
}

/// bf16 as f32.
struct Widen<'a>(&'a mut [f32], &'a [u16]);

impl Kernel for Widen<'_> {
    #[inline(always)]
    fn run<M: MulAdd>(self) {
        self.0.iter_mut().zip(self.1).for_each(|(to, from)| *to = widen_bf16(*from));
    }
}

/// One head of one sequence: everything its output depends on. Queries are the span's rows, keys and values the
/// sequence's positions; values, and so the output, have D_v columns, which need not be D.
#[derive(Clone, Copy)]
pub struct Head<'a> {
    /// (rows,D)
    pub q: Mat<'a>,
    /// (keys,D)
    pub k: Keys<'a>,
    /// (keys,D_v)
    pub v: Keys<'a>,
    /// the sequence
    pub span: Span,
    /// which keys a query sees, and what a score is made of
    pub scoring: Scoring,
    /// dropout of the attention weights
    pub draws: Option<Draws>,
    /// the head's number
    pub head: usize,
    /// the number of heads
    pub n_head: usize,
}

impl Head<'_> {
    /// The blocks of queries.
    fn blocks(&self) -> impl Iterator<Item = Range<usize>> {
        (0..self.q.rows).step_by(BLOCK).map(|i| i..(i + BLOCK).min(self.q.rows))
    }
    /// The blocks of keys that some query of `queries` sees.
    fn keys(&self, queries: &Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let last = queries.clone().map(|i| self.span.reach(self.scoring.mask, i)).max().unwrap_or(0);
        let first = self.scoring.sees(&self.span, queries.start).start;
        (first - first % BLOCK..last).step_by(BLOCK).map(move |j| j..(j + BLOCK).min(last))
    }
    /// A block of queries with a block of keys, and which query sees which key.
    fn pair(&self, queries: &Range<usize>, keys: &Range<usize>) -> Pair {
        let Scoring { mask, window, .. } = self.scoring;
        let apart = (self.span.past + queries.start) as isize - keys.start as isize;
        let all = self.span.past + self.span.rows;
        let (shift, cut) = match (mask, window) {
            (Mask::Causal, 0) => (apart, NO_CUT),
            (Mask::Causal, _) => (apart, apart - window.min(all) as isize),
            (Mask::Bidirectional | Mask::None, _) => (BLOCK as isize, NO_CUT),
        };
        Pair { queries: queries.len(), keys: keys.len(), shift, cut, apart }
    }
    /// What the head's scores are besides products times the scale, if they are more.
    fn curve(&self) -> Option<Curve> {
        let Scoring { scale, cap, .. } = self.scoring;
        self.scoring.bends().then(|| Curve { scale, cap, slope: self.scoring.slope(self.head, self.n_head) })
    }
    /// The factor of scores that [`Bend`] has not been over, or has.
    fn scale(&self) -> f32 {
        if self.scoring.bends() { 1.0 } else { self.scoring.scale }
    }
    /// Less than any score: what the greatest is before the first. With a window it is finite, because there may be
    /// blocks before a query's first key, in which all scores are minus infinity.
    fn least(&self) -> f32 {
        if self.scoring.window > 0 { f32::MIN } else { f32::NEG_INFINITY }
    }
    /// Turns products into scores where they are more than products times the scale, and hides those before the window.
    fn bend(&self, level: Level, pair: Pair, s: &mut [Row], steep: Option<&mut [Row]>) {
        let curve = self.curve();
        if curve.is_some() || pair.queries as isize + pair.cut > 0 {
            level.run(Bend { pair, s, curve, steep });
        }
    }
    /// Dropout of the attention weights of `queries`.
    fn dropout(&self, queries: &Range<usize>) -> Option<WeightDropout> {
        let draws = self.draws?;
        let mut keys = [[0; BLOCK]; 2];
        for (lane, i) in queries.clone().enumerate() {
            [keys[0][lane], keys[1][lane]] = draws.key(weight_index(self.span.row + i, self.head, self.n_head, 0));
        }
        Some(WeightDropout { draws, keys })
    }
}

/// One block of queries with one block of keys.
#[derive(Clone, Copy)]
struct Pair {
    queries: usize,
    keys: usize,
    /// Query i sees key j where i + cut < j <= i + shift.
    shift: isize,
    cut: isize,
    /// How many positions the first query comes after the first key.
    apart: isize,
}

/// [`Pair::cut`] where no key is too far.
const NO_CUT: isize = -(BLOCK as isize);

impl Pair {
    /// The first query that sees key `j`.
    #[inline(always)]
    fn first(self, j: usize) -> usize {
        (j as isize - self.shift).max(0) as usize
    }
    /// The vectors of queries that are computed for key `j`: the same for all keys of a strip, and beginning at a
    /// strip of queries. So each product reads exactly what the one before it wrote and masked.
    #[inline(always)]
    fn vectors(self, j: usize) -> Range<usize> {
        let first = self.first(j - j % STRIP);
        (first - first % STRIP) / LANES..self.queries.div_ceil(LANES)
    }
    /// How many of the queries of vector `v` do not see key `j`.
    #[inline(always)]
    fn hidden(self, j: usize, v: usize) -> u32 {
        self.first(j).saturating_sub(v * LANES) as u32
    }
    /// How many of the queries of vector `v` come before the first that does not see key `j` because it is too far.
    #[inline(always)]
    fn near(self, j: usize, v: usize) -> u32 {
        (j as isize - self.cut - (v * LANES) as isize).clamp(0, LANES as isize) as u32
    }
    /// The keys that query `i` sees.
    fn live(self, i: usize) -> Range<usize> {
        let [from, to] = [self.cut, self.shift].map(|n| (i as isize + 1 + n).clamp(0, self.keys as isize) as usize);
        from..to
    }
    /// One of the products. On the diagonal, rows are computed in strips, each over what any of its rows needs.
    fn product(self, level: Level, which: Which, mut c: MatMut, a: Mat, b: Mat, scratch: &mut [f32]) {
        let whole = self.first(self.keys - 1) == 0 || matches!(which, Which::Scores);
        let strip = if whole { BLOCK } else { STRIP };
        for from in (0..a.rows).step_by(strip) {
            let i = from..(from + strip).min(a.rows);
            let seen = self.vectors(from).start * LANES;
            let (k, cols, add) = match which {
                Which::Scores => (0..b.rows, 0..b.cols, false),
                Which::Keys => (seen..b.rows, 0..b.cols, true),
                Which::Queries => (0..self.live(i.end - 1).end, 0..b.cols, true),
            };
            let (a, b) = (a.rows(i.clone()).cols(k.clone()), b.rows(k).cols(cols.clone()));
            gemm(level, c.part(i, cols), a, b, add, scratch);
        }
    }
}

/// Dropout of the attention weights of a block of queries: the random key of each query's draws.
struct WeightDropout {
    draws: Draws,
    keys: [[u32; BLOCK]; 2],
}

impl WeightDropout {
    /// The factors of the weights of key `j` for a vector of queries.
    #[inline(always)]
    fn factors(&self, v: usize, j: usize) -> [f32; LANES] {
        let [low, high] = [&self.keys[0].as_chunks::<LANES>().0[v], &self.keys[1].as_chunks::<LANES>().0[v]];
        let mut factors = [0.0; LANES];
        for l in 0..LANES {
            factors[l] = self.draws.pick([low[l], high[l]], j as u32);
        }
        factors
    }
}

/// Plain f64 loops.
pub mod reference {
    /// The scores and weights of one query.
    pub struct Row {
        /// Query times key.
        pub products: Vec<f64>,
        /// Scores before the mask.
        pub raw: Vec<f64>,
        /// After the mask: minus infinity where hidden.
        pub scores: Vec<f64>,
        /// Their softmax.
        pub pattern: Vec<f64>,
        /// Log of the sum of exponentials.
        pub lse: f64,
    }

    /// Scores and weights of a query over `keys`, of which it sees those that `sees` says; `score` says what a key's
    /// product makes.
    pub fn row<'a>(
        q: &[f64],
        keys: impl Iterator<Item = &'a [f64]>,
        sees: impl Fn(usize) -> bool,
        score: impl Fn(usize, f64) -> f64,
    ) -> Row {
        let products: Vec<f64> = keys.map(|k| q.iter().zip(k).map(|(q, k)| q * k).sum()).collect();
        let raw: Vec<f64> = products.iter().enumerate().map(|(j, product)| score(j, *product)).collect();
        let scores: Vec<f64> =
            raw.iter().enumerate().map(|(j, s)| if sees(j) { *s } else { f64::NEG_INFINITY }).collect();
        let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let lse = top + scores.iter().map(|s| (s - top).exp()).sum::<f64>().ln();
        let pattern = scores.iter().map(|s| (s - lse).exp()).collect();
        Row { products, raw, scores, pattern, lse }
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

/// Which product of a [`Pair`]; this decides which of its elements are zeros and can be skipped.
#[derive(Clone, Copy)]
enum Which {
    /// c: (keys, queries) = a: (keys, D) b: (D, queries)
    Scores,
    /// c: (keys, D) += a: (keys, queries) b: (queries, D)
    Keys,
    /// c: (queries, D) += a: (queries, keys) b: (keys, D)
    Queries,
}

/// A block as the matrix (keys, queries).
fn mat(block: &[Row], pair: Pair) -> Mat<'_> {
    Mat::strided(block.as_flattened(), pair.keys, pair.queries, BLOCK)
}

/// A block to write, (keys, 64).
fn mat_mut(block: &mut [Row], pair: Pair) -> MatMut<'_> {
    MatMut::new(block[..pair.keys].as_flattened_mut(), BLOCK)
}

/// What scores are besides products times the scale.
#[derive(Clone, Copy)]
struct Curve {
    scale: f32,
    /// 0 for none
    cap: f32,
    /// what a position of distance takes off
    slope: f32,
}

impl Curve {
    /// Products become scores; the result is their derivatives. In lane l the query comes `apart` + `step` l positions
    /// after the key.
    #[inline(always)]
    fn over<M: MulAdd>(self, s: &mut [f32; LANES], apart: i32, step: i32) -> [f32; LANES] {
        let Curve { scale, cap, slope } = self;
        let mut steep = [scale; LANES];
        for l in 0..LANES {
            s[l] *= scale;
        }
        if cap > 0.0 {
            for l in 0..LANES {
                let t = tanh::<M>(s[l] / cap);
                (s[l], steep[l]) = (cap * t, scale * fma::<M>(-t, t, 1.0));
            }
        }
        if slope > 0.0 {
            for l in 0..LANES {
                let distance = (apart + step * LANE[l] as i32).abs() as f32;
                s[l] = fma::<M>(-slope, distance, s[l]);
            }
        }
        steep
    }
}

/// Bends a block of products, and hides those before the window.
struct Bend<'a> {
    pair: Pair,
    s: &'a mut [Row],
    curve: Option<Curve>,
    /// the derivatives
    steep: Option<&'a mut [Row]>,
}

impl Kernel for Bend<'_> {
    #[inline(always)]
    fn run<M: MulAdd>(self) {
        let Bend { pair, s, curve, mut steep } = self;
        for (j, row) in s.iter_mut().enumerate().take(pair.keys) {
            let row = row.as_chunks_mut::<LANES>().0;
            for v in pair.vectors(j) {
                let (near, mut s) = (pair.near(j, v), row[v]);
                if let Some(curve) = curve {
                    let slopes = curve.over::<M>(&mut s, (pair.apart + (v * LANES) as isize - j as isize) as i32, 1);
                    if let Some(steep) = &mut steep {
                        steep[j].as_chunks_mut::<LANES>().0[v] = slopes;
                    }
                }
                for l in 0..LANES {
                    s[l] = if LANE[l] < near { s[l] } else { f32::NEG_INFINITY };
                }
                row[v] = s;
            }
        }
    }
}

/// Makes gradients of bent scores those of products.
struct Steepen<'a> {
    pair: Pair,
    ds: &'a mut [Row],
    steep: &'a [Row],
}

impl Kernel for Steepen<'_> {
    #[inline(always)]
    fn run<M: MulAdd>(self) {
        for (j, (ds, steep)) in self.ds.iter_mut().zip(self.steep).enumerate().take(self.pair.keys) {
            let (ds, steep) = (ds.as_chunks_mut::<LANES>().0, steep.as_chunks::<LANES>().0);
            for v in self.pair.vectors(j) {
                for l in 0..LANES {
                    ds[v][l] *= steep[v][l];
                }
            }
        }
    }
}

/// Turns scores into weights relative to the new greatest score, and rescales y to it. Vectors are copied out,
/// computed in short loops and copied back: otherwise LLVM does not see that nothing overlaps.
struct OnlineSoftmax<'a> {
    pair: Pair,
    s: &'a mut [Row],
    scale: f32,
    /// each query's greatest score so far
    top: &'a mut Row,
    /// and sum of exponentials relative to it
    total: &'a mut Row,
    dropout: Option<&'a WeightDropout>,
    from: usize,
    y: MatMut<'a>,
}

impl Kernel for OnlineSoftmax<'_> {
    #[inline(always)]
    fn run<M: MulAdd>(self) {
        let OnlineSoftmax { pair, s, scale, top, total, dropout, from, mut y } = self;
        let before = *top;
        let tops = top.as_chunks_mut::<LANES>().0;
        for (j, row) in s.iter_mut().enumerate().take(pair.keys) {
            let row = row.as_chunks_mut::<LANES>().0;
            for v in pair.vectors(j) {
                let (hidden, mut s, mut top) = (pair.hidden(j, v), row[v], tops[v]);
                for l in 0..LANES {
                    s[l] *= scale;
                }
                if hidden > 0 {
                    for l in 0..LANES {
                        s[l] = if LANE[l] < hidden { f32::NEG_INFINITY } else { s[l] };
                    }
                }
                for l in 0..LANES {
                    // NaN is not greater, but its exponential is NaN and reaches the sum below
                    top[l] = if s[l] > top[l] { s[l] } else { top[l] };
                }
                (row[v], tops[v]) = (s, top);
            }
        }
        let mut shrink = [0.0; BLOCK];
        for l in 0..BLOCK {
            shrink[l] = exp::<M>(before[l] - top[l]);
            total[l] *= shrink[l];
        }
        let (tops, totals) = (top.as_chunks::<LANES>().0, total.as_chunks_mut::<LANES>().0);
        for (j, row) in s.iter_mut().enumerate().take(pair.keys) {
            let row = row.as_chunks_mut::<LANES>().0;
            for v in pair.vectors(j) {
                let (mut p, top, mut total) = (row[v], tops[v], totals[v]);
                for l in 0..LANES {
                    p[l] = exp::<M>(p[l] - top[l]);
                }
                for l in 0..LANES {
                    total[l] += p[l];
                }
                if let Some(dropout) = dropout {
                    let factors = dropout.factors(v, from + j);
                    for l in 0..LANES {
                        p[l] *= factors[l];
                    }
                }
                (row[v], totals[v]) = (p, total);
            }
        }
        for (i, shrink) in shrink.iter().enumerate().take(pair.queries) {
            if *shrink != 1.0 && from > 0 {
                for y in y.row(i) {
                    *y *= shrink;
                }
            }
        }
    }
}

/// One query with a block of cached keys, all but the first of which it sees. Each sum is that of the products and of
/// [`OnlineSoftmax`], but the lanes are keys: scores.
struct OneScores<'a> {
    q: &'a [f32],
    /// (keys,D)
    k: Mat<'a>,
    keys: usize,
    /// how many of them lie before the window
    hidden: usize,
    scale: f32,
    curve: Option<Curve>,
    /// how many positions the query comes after the first key
    apart: i32,
    s: &'a mut Row,
    /// the greatest score so far
    top: &'a mut f32,
    /// and sum of exponentials relative to it
    total: &'a mut f32,
}

impl Kernel<f32> for OneScores<'_> {
    /// The factor for what was summed relative to the greatest score before.
    #[inline(always)]
    fn run<M: MulAdd>(self) -> f32 {
        let OneScores { q, k, keys, hidden, scale, curve, apart, s: to, top, total } = self;
        let mut s = [0.0; BLOCK];
        for (q, row) in q.iter().zip(k.t().data.as_chunks::<BLOCK>().0) {
            for l in 0..BLOCK {
                s[l] = fma::<M>(*q, row[l], s[l]);
            }
        }
        match curve {
            Some(curve) => {
                for (v, s) in s.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
                    curve.over::<M>(s, apart - (v * LANES) as i32, -1);
                }
            }
            None => {
                for s in &mut s[..keys] {
                    *s *= scale;
                }
            }
        }
        s[keys..].fill(f32::NEG_INFINITY);
        s[..hidden].fill(f32::NEG_INFINITY);
        let before = *top;
        let mut tops = [before; LANES];
        for s in s.as_chunks::<LANES>().0 {
            for l in 0..LANES {
                tops[l] = if s[l] > tops[l] { s[l] } else { tops[l] };
            }
        }
        *top = tops.into_iter().fold(before, |top, s| if s > top { s } else { top });
        for s in &mut s {
            *s = exp::<M>(*s - *top);
        }
        let shrink = exp::<M>(before - *top);
        *total = s[..keys].iter().fold(*total * shrink, |total, p| total + p);
        *to = s;
        shrink
    }
}

/// And the weighted sum of values.
struct OneSum<'a> {
    weights: &'a [f32],
    /// (keys,D)
    v: &'a [f32],
    shrink: f32,
    y: &'a mut [f32],
}

impl OneSum<'_> {
    /// Columns `at..at + W`.
    #[inline(always)]
    fn columns<const W: usize, M: MulAdd>(&mut self, at: usize) {
        let d = self.y.len();
        let y: &mut [f32; W] = (&mut self.y[at..at + W]).try_into().expect("W columns");
        let mut sums = *y;
        for sum in &mut sums {
            *sum *= self.shrink;
        }
        for (p, v) in self.weights.iter().zip(self.v.chunks_exact(d)) {
            let v: &[f32; W] = v[at..at + W].try_into().expect("W columns");
            for l in 0..W {
                sums[l] = fma::<M>(*p, v[l], sums[l]);
            }
        }
        *y = sums;
    }
}

impl Kernel for OneSum<'_> {
    #[inline(always)]
    fn run<M: MulAdd>(mut self) {
        let d = self.y.len();
        let (by_64, by_16) = (d - d % 64, d - d % 16);
        (0..by_64).step_by(64).for_each(|at| self.columns::<64, M>(at));
        (by_64..by_16).step_by(16).for_each(|at| self.columns::<16, M>(at));
        (by_16..d).for_each(|at| self.columns::<1, M>(at));
    }
}

/// [`forward`] of one query over cached keys.
fn forward_one(level: Level, head: Head, y: &mut [f32], lse: &mut f32, s: &mut Row, room: &mut [f32]) {
    let (mut top, mut total, curve) = (head.least(), 0.0, head.curve());
    for keys in head.keys(&(0..1)) {
        let whole = keys.start..keys.start + BLOCK;
        let k = head.k.block(level, &whole, room);
        let (q, scale, top, total, s) = (head.q.row(0), head.scoring.scale, &mut top, &mut total, &mut *s);
        let pair = head.pair(&(0..1), &keys);
        let (hidden, apart) = (pair.live(0).start, pair.apart as i32);
        let shrink = level.run(OneScores { q, k, keys: keys.len(), hidden, scale, curve, apart, s, top, total });
        let (weights, v) = (&s[..keys.len()], head.v.block(level, &whole, room).data);
        level.run(OneSum { weights, v, shrink, y: &mut *y });
    }
    let share = 1.0 / total;
    y.iter_mut().for_each(|y| *y *= share);
    *lse = top + ln(total);
}

/// y: (rows,D_v) and lse: (rows,1) of one head.
pub fn forward(level: Level, head: Head, mut y: MatMut, mut lse: MatMut, scratch: &mut [f32]) {
    let (blocks, scratch) = scratch.split_at_mut(scratch.len() - gemm::SCRATCH);
    let (s, room) = blocks.split_at_mut(BLOCK * BLOCK);
    let s = s.as_chunks_mut::<BLOCK>().0;
    let wide = y.cols();
    y.fill(0.0);
    if let (1, None, Keys::Cached(_)) = (head.q.rows, head.draws, head.k) {
        return forward_one(level, head, y.row(0), &mut lse.row(0)[0], &mut s[0], room);
    }
    for rows in head.blocks() {
        let (q, dropout) = (head.q.rows(rows.clone()), head.dropout(&rows));
        let (mut top, mut total) = ([head.least(); BLOCK], [0.0; BLOCK]);
        for keys in head.keys(&rows) {
            let pair = head.pair(&rows, &keys);
            let mut y = y.part(rows.clone(), 0..wide);
            pair.product(level, Which::Scores, mat_mut(s, pair), head.k.block(level, &keys, room), q.t(), scratch);
            head.bend(level, pair, s, None);
            let (dropout, from, top, total) = (dropout.as_ref(), keys.start, &mut top, &mut total);
            let part = y.part(0..rows.len(), 0..wide);
            level.run(OnlineSoftmax { pair, s, scale: head.scale(), top, total, dropout, from, y: part });
            pair.product(level, Which::Queries, y, mat(s, pair).t(), head.v.block(level, &keys, room), scratch);
        }
        for (lane, i) in rows.enumerate() {
            let share = 1.0 / total[lane];
            y.row(i).iter_mut().for_each(|y| *y *= share);
            lse.row(i)[0] = top[lane] + ln(total[lane]);
        }
    }
}

/// Recomputes the weights from lse, with hidden ones exactly 0, and replaces the gradient of the weights by that of
/// the scores.
struct SoftmaxBackward<'a> {
    pair: Pair,
    p: &'a mut [Row],
    dp: &'a mut [Row],
    lse: &'a Row,
    dots: &'a Row,
    scale: f32,
    dropout: Option<&'a WeightDropout>,
    from: usize,
    /// watched: gradients of the scores and of the weights
    seen: Option<[&'a mut [Row]; 2]>,
}

impl Kernel for SoftmaxBackward<'_> {
    #[inline(always)]
    fn run<M: MulAdd>(self) {
        let SoftmaxBackward { pair, p, dp, lse, dots, scale, dropout, from, mut seen } = self;
        let (lse, dots) = (lse.as_chunks::<LANES>().0, dots.as_chunks::<LANES>().0);
        for j in 0..pair.keys {
            let (p, dp) = (p[j].as_chunks_mut::<LANES>().0, dp[j].as_chunks_mut::<LANES>().0);
            for v in pair.vectors(j) {
                let hidden = pair.hidden(j, v);
                let (mut weight, mut dweight, lse, dot) = (p[v], dp[v], lse[v], dots[v]);
                for l in 0..LANES {
                    let seen = exp::<M>(weight[l] * scale - lse[l]);
                    weight[l] = if LANE[l] < hidden { 0.0 } else { seen };
                }
                let mut kept = weight;
                if let Some(dropout) = dropout {
                    let factors = dropout.factors(v, from + j);
                    for l in 0..LANES {
                        kept[l] *= factors[l];
                        dweight[l] *= factors[l];
                    }
                }
                let (mut ds, mut scaled) = (weight, weight);
                for l in 0..LANES {
                    ds[l] = weight[l] * (dweight[l] - dot[l]);
                }
                for l in 0..LANES {
                    scaled[l] = ds[l] * scale;
                }
                (p[v], dp[v]) = (kept, scaled);
                if let Some(seen) = &mut seen {
                    seen[0][j].as_chunks_mut::<LANES>().0[v] = ds;
                    seen[1][j].as_chunks_mut::<LANES>().0[v] = dweight;
                }
            }
        }
    }
}

/// The sum of dy y over a row.
struct Dot<'a>(&'a [f32], &'a [f32]);
impl Kernel<f32> for Dot<'_> {
    #[inline(always)]
    fn run<M: MulAdd>(self) -> f32 {
        sum2(self.0, self.1, |a, b| a * b)
    }
}

/// The outputs of the backward of one head, (rows,D), of the values (rows,D_v).
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

/// The gradients of one head from dy, y: (rows,D_v) and lse: (rows,1). They are overwritten unless `add` says
/// otherwise: first for the queries, second for keys and values (which several heads may share).
pub fn backward(level: Level, head: Head, to: Gradients, add: [bool; 2], [dy, y, lse]: [Mat; 3], scratch: &mut [f32]) {
    let Gradients { mut dq, mut dk, mut dv, mut watched } = to;
    let (blocks, scratch) = scratch.split_at_mut(scratch.len() - gemm::SCRATCH);
    let mut blocks = blocks.as_chunks_mut::<BLOCK>().0.chunks_exact_mut(BLOCK);
    let [p, dp, ds_seen, dp_seen, steep] = [(); 5].map(|()| blocks.next().expect("five blocks"));
    let (d, wide) = (head.q.cols, dv.cols());
    for (m, add) in [(&mut dq, add[0]), (&mut dk, add[1]), (&mut dv, add[1])] {
        if !add {
            m.fill(0.0);
        }
    }
    watched.iter_mut().flatten().for_each(|m| m.fill(0.0));
    for rows in head.blocks() {
        let (q, dy, dropout) = (head.q.rows(rows.clone()), dy.rows(rows.clone()), head.dropout(&rows));
        let (mut lses, mut dots) = ([0.0; BLOCK], [0.0; BLOCK]);
        for (lane, i) in rows.clone().enumerate() {
            (lses[lane], dots[lane]) = (lse.at(i, 0), level.run(Dot(dy.row(lane), y.row(i))));
        }
        for keys in head.keys(&rows) {
            let pair = head.pair(&rows, &keys);
            let (k, v) = (head.k.block(level, &keys, &mut []), head.v.block(level, &keys, &mut []));
            pair.product(level, Which::Scores, mat_mut(p, pair), k, q.t(), scratch);
            pair.product(level, Which::Scores, mat_mut(dp, pair), v, dy.t(), scratch);
            head.bend(level, pair, p, Some(&mut *steep));
            let (scale, dropout, from) = (head.scale(), dropout.as_ref(), keys.start);
            let seen = watched.iter().any(Option::is_some).then_some([&mut *ds_seen, &mut *dp_seen]);
            level.run(SoftmaxBackward { pair, p, dp, lse: &lses, dots: &dots, scale, dropout, from, seen });
            if head.scoring.bends() {
                level.run(Steepen { pair, ds: dp, steep });
            }
            let (weights, ds) = (mat(p, pair), mat(dp, pair));
            pair.product(level, Which::Keys, dv.part(keys.clone(), 0..wide), weights, dy, scratch);
            pair.product(level, Which::Keys, dk.part(keys.clone(), 0..d), ds, q, scratch);
            pair.product(level, Which::Queries, dq.part(rows.clone(), 0..d), ds.t(), k, scratch);
            for (to, of) in watched.iter_mut().zip([&*ds_seen, ds_seen, dp_seen]) {
                let Some(to) = to else { continue };
                for (lane, i) in rows.clone().enumerate() {
                    // what is hidden has the constant weight 0, and no gradient
                    for j in pair.live(lane) {
                        to.row(i)[keys.start + j] = of[j][lane];
                    }
                }
            }
        }
    }
}

/// Which of the three matrices of a head, (queries,T).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// Scores before the mask.
    Raw,
    /// And after it: minus infinity where hidden.
    Masked,
    /// Their softmax: the attention weights.
    Weights,
}

impl Stage {
    /// All, in the order in which they are computed.
    pub const ALL: [Stage; 3] = [Stage::Raw, Stage::Masked, Stage::Weights];
}

/// Scores from products q k', or weights where there is `lse`.
struct Shown<'a> {
    s: &'a mut [f32],
    scale: f32,
    curve: Option<Curve>,
    /// how many positions the query comes after the first key
    apart: i32,
    lse: Option<f32>,
}

impl Kernel for Shown<'_> {
    #[inline(always)]
    fn run<M: MulAdd>(self) {
        let (vectors, rest) = self.s.as_chunks_mut::<LANES>();
        let mut last = [0.0; LANES];
        last[..rest.len()].copy_from_slice(rest);
        for (v, s) in vectors.iter_mut().chain([&mut last]).enumerate() {
            match self.curve {
                Some(curve) => _ = curve.over::<M>(s, self.apart - (v * LANES) as i32, -1),
                None => {
                    for l in 0..LANES {
                        s[l] *= self.scale;
                    }
                }
            }
            if let Some(lse) = self.lse {
                for l in 0..LANES {
                    s[l] = exp::<M>(s[l] - lse);
                }
            }
        }
        rest.copy_from_slice(&last[..rest.len()]);
    }
}

/// One of the three matrices, for a block of queries and the keys from `first` on, at most [`BLOCK`] of each: the bits
/// that the forward computes with. lse is that of all queries. `to`: (queries,keys).
pub fn show(
    level: Level,
    head: &Head,
    (stage, lse): (Stage, Mat),
    queries: Range<usize>,
    first: usize,
    mut to: MatMut,
    scratch: &mut [f32],
) {
    let (room, scratch) = scratch.split_at_mut(scratch.len() - gemm::SCRATCH);
    let keys = first..first + to.cols();
    let (q, k) = (head.q.rows(queries.clone()), head.k.block(level, &keys, room));
    gemm(level, to.part(0..q.rows, 0..keys.len()), q, k.t(), false, scratch);
    for (row, i) in queries.enumerate() {
        let s = to.row(row);
        let (lse, apart) =
            ((stage == Stage::Weights).then(|| lse.at(i, 0)), (head.span.past + i) as i32 - first as i32);
        level.run(Shown { s, scale: head.scoring.scale, curve: head.curve(), apart, lse });
        let seen = head.scoring.sees(&head.span, i);
        let [from, to] = [seen.start, seen.end].map(|j| j.saturating_sub(first).min(s.len()));
        let hidden = match stage {
            Stage::Raw => continue,
            Stage::Masked => f32::NEG_INFINITY,
            Stage::Weights => 0.0,
        };
        s[..from].fill(hidden);
        s[to..].fill(hidden);
    }
}

/// Fills the three matrices of a head, (rows,T) each, from lse: a pass of its own, after the output.
pub fn watch(level: Level, head: Head, stages: [Option<MatMut>; 3], lse: Mat, scratch: &mut [f32]) {
    let all = head.span.past + head.span.rows;
    for (stage, mut to) in Stage::ALL.into_iter().zip(stages).filter_map(|(stage, to)| Some((stage, to?))) {
        to.fill(if stage == Stage::Masked { f32::NEG_INFINITY } else { 0.0 }); // also where there are no keys
        for queries in head.blocks() {
            for from in (0..all).step_by(BLOCK) {
                let to = to.part(queries.clone(), from..(from + BLOCK).min(all));
                show(level, &head, (stage, lse), queries.clone(), from, to, scratch);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::DropoutScale;
    use crate::numeric::half::nearest_bf16;
    use crate::ops::DropoutSpec;

    fn values(n: usize, site: u64) -> Vec<f32> {
        (0..n as u64).map(|i| crate::numeric::random::normal(7, site, i) as f32).collect()
    }

    fn wide(x: &[f32]) -> Vec<f64> {
        x.iter().map(|v| f64::from(*v)).collect()
    }

    #[track_caller]
    fn assert_close(what: &str, got: &[f32], want: &[f64]) {
        // sums of up to 200 weights and 130 products: a few dozen rounding steps of terms near 1
        for (i, (g, w)) in got.iter().zip(want).enumerate() {
            let off = (f64::from(*g) - w).abs();
            assert!(off < 2e-5 * (1.0 + w.abs()), "{what}[{i}]: got {g}, want {w}, off by {off:.1e}");
        }
    }

    /// The blocks of a cache with the first of two heads' keys `k` and values `v`, in a shuffled order among others,
    /// and the sequence's table.
    fn cache_of(k: Mat, v: Mat) -> (Vec<f32>, Vec<u32>) {
        let (d, n) = (k.cols, k.rows / BLOCK + 1);
        let table: Vec<u32> = (0..n as u32).rev().map(|block| 2 * block + 1).collect();
        let mut cache = vec![f32::NAN; 2 * n * 4 * BLOCK * d];
        for j in 0..k.rows {
            let block = &mut cache[table[j / BLOCK] as usize * 4 * BLOCK * d..];
            for e in 0..d {
                block[e * BLOCK + j % BLOCK] = k.at(j, e);
                block[(2 * BLOCK + j % BLOCK) * d + e] = v.at(j, e);
            }
        }
        (cache, table)
    }

    /// How scores of a head may be made: plainly under each mask, with a bound, with slopes, and within windows that
    /// end inside of a block, with it, and before the first key.
    fn scorings(scale: f32) -> Vec<Scoring> {
        let plain = Scoring::plain(Mask::Causal, scale);
        let masks = [Mask::Causal, Mask::Bidirectional, Mask::None].map(|mask| Scoring { mask, ..plain });
        let windows = [1, 5, 64, 70, 1000].map(|window| Scoring { window, ..plain });
        let curves = [(1.5, false), (0.0, true), (0.7, true)].map(|(cap, alibi)| Scoring { cap, alibi, ..plain });
        let both = [1, 64, 70].map(|window| Scoring { window, cap: 1.5, alibi: true, ..plain });
        let sides = Scoring { mask: Mask::Bidirectional, cap: 2.0, alibi: true, ..plain };
        [&masks[..], &windows, &curves, &both, &[sides]].concat()
    }

    /// Forward against the reference, and each row alone gives the same bits, wherever blocks, strips and vectors
    /// begin and end; backward against the reference where there is no past.
    #[test]
    #[ignore = "gate"]
    fn every_shape_is_right_and_a_row_alone_has_the_same_bits() {
        let cases = [
            (1, 0, 16),
            (15, 0, 1),
            (16, 1, 16),
            (17, 63, 33),
            (33, 24, 16),
            (64, 0, 32),
            (65, 40, 24),
            (70, 8, 130),
            (130, 0, 20),
            (97, 101, 64),
            (70, 130, 8),
        ];
        for (case, (rows, past, d)) in cases.into_iter().enumerate() {
            for scoring in scorings(1.0 / (d as f32).sqrt()) {
                let mask = scoring.mask;
                let (keys, c) = (past + rows, 2 * d);
                let [x, k, v, dy] = [rows, keys, keys, rows].map(|n| n * c);
                let [x, k, v, dy] = [values(x, 1), values(k, 2), values(v, 3), values(dy, 4)];
                let of = |data, n| Mat::strided(data, n, d, c);
                let draw = Draws::new(DropoutSpec { p: 0.3, scale: DropoutScale::Inverted, site: 5 }, Some(1));
                let draws = (case % 2 == 1).then_some(draw);
                let span = Span { row: 3, rows, past, table: 0, valid: keys - keys / 3 };
                let (q, k, v) = (of(&x, rows), of(&k, keys), of(&v, keys));
                let kv = cache_of(k, v);
                let head = Head { q, k: Keys::Plain(k), v: Keys::Plain(v), span, scoring, draws, head: 0, n_head: 2 };
                let all = |m: Mat| (0..m.rows).map(|i| wide(m.row(i))).collect::<Vec<_>>();
                let (qs, ks, vs, dys) = (all(q), all(k), all(v), all(of(&dy, rows)));
                let factor = |i, j| draws.map_or(1.0, |f| f64::from(f.factor(weight_index(3 + i, 0, 2, j))));
                let mut want = [vec![0.0; rows * d], vec![0.0; rows * d], vec![0.0; keys * d], vec![0.0; keys * d]];
                for i in 0..rows {
                    let keys = ks.iter().map(Vec::as_slice);
                    let score = |j, product| scoring.score(product, scoring.distance(&span, i, j, [0, 2]));
                    let made = reference::row(&qs[i], keys, |j| scoring.sees(&span, i).contains(&j), score);
                    let p = made.pattern;
                    let values = vs.iter().map(Vec::as_slice);
                    let (_, ds) = reference::row_backward(&p, &dys[i], values, |j| factor(i, j));
                    for (j, e) in (0..ks.len()).flat_map(|j| (0..d).map(move |e| (j, e))) {
                        want[0][i * d + e] += p[j] * factor(i, j) * vs[j][e];
                        let slope = scoring.steepness(made.products[j]) * ds[j];
                        want[1][i * d + e] += slope * ks[j][e];
                        want[2][j * d + e] += slope * qs[i][e];
                        want[3][j * d + e] += p[j] * factor(i, j) * dys[i][e];
                    }
                }
                for level in Level::available() {
                    let what = |tensor| format!("{tensor} of {rows} rows, {past} past, D {d}, {scoring:?}, {level}");
                    let mut scratch = vec![f32::NAN; SCRATCH];
                    let (mut y, mut lse) = (vec![f32::NAN; rows * d], vec![f32::NAN; rows]);
                    forward(level, head, MatMut::new(&mut y, d), MatMut::new(&mut lse, 1), &mut scratch);
                    assert_close(&what("y"), &y, &want[0]);
                    let halves: Vec<u16> = kv.0.iter().map(|v| nearest_bf16(*v)).collect();
                    let [k_near, v_near] = [k, v].map(|m| {
                        (0..keys)
                            .flat_map(|j| m.row(j).iter().map(|v| widen_bf16(nearest_bf16(*v))))
                            .collect::<Vec<_>>()
                    });
                    let near = [&k_near, &v_near].map(|m| Keys::Plain(Mat::new(m, d)));
                    let of_near = Head { k: near[0], v: near[1], ..head };
                    let cached = |cache, tile: usize| {
                        let (block, start, columns) = (4 * BLOCK * d, tile * BLOCK * d, tile < 2);
                        Keys::Cached(CachedKeys { cache, block, start, columns, table: &kv.1, d })
                    };
                    let of_cache = |cache| Head { k: cached(cache, 0), v: cached(cache, 2), ..head };
                    let [of_blocks, of_halves] = [CacheBlocks::F32(&kv.0), CacheBlocks::Bf16(&halves)].map(of_cache);
                    let (mut same, mut sums) = (vec![f32::NAN; rows * d], vec![f32::NAN; rows]);
                    forward(level, of_blocks, MatMut::new(&mut same, d), MatMut::new(&mut sums, 1), &mut scratch);
                    assert!(same == y && sums == lse, "{}", what("keys in blocks of a cache"));
                    let [rounded, widened] = [of_near, of_halves].map(|head| {
                        let (mut y, mut lse) = (vec![f32::NAN; rows * d], vec![f32::NAN; rows]);
                        forward(level, head, MatMut::new(&mut y, d), MatMut::new(&mut lse, 1), &mut scratch);
                        (y, lse)
                    });
                    assert!(rounded == widened && rounded.0 != y, "{}", what("keys in bf16"));
                    // without a causal mask a row alone is elsewhere in its sequence, which slopes tell
                    let alone = if scoring.alibi && mask != Mask::Causal { 0 } else { rows };
                    for i in 0..alone {
                        let (past, valid) =
                            if mask == Mask::Causal { (past + i, span.valid) } else { (keys - 1, span.valid) };
                        let span = Span { row: 3 + i, rows: 1, past, valid, ..span };
                        let halves = (&widened.0, &widened.1, "a row alone, of bf16");
                        let whole = (&y, &lse, "a row alone");
                        for (head, (y, lse, which)) in [(head, whole), (of_blocks, whole), (of_halves, halves)] {
                            let alone = Head { q: q.rows(i..i + 1), span, ..head };
                            let (mut row, mut one) = (vec![f32::NAN; d], [f32::NAN]);
                            forward(level, alone, MatMut::new(&mut row, d), MatMut::new(&mut one, 1), &mut scratch);
                            assert!(row == y[i * d..][..d] && one[0] == lse[i], "{}", what(which));
                        }
                    }
                    if past == 0 {
                        let [mut dq, mut dk, mut dv] = [(); 3].map(|()| vec![f32::NAN; rows * d]);
                        let [dq_to, dk_to, dv_to] = [&mut dq, &mut dk, &mut dv].map(|m| MatMut::new(m, d));
                        let to = Gradients { dq: dq_to, dk: dk_to, dv: dv_to, watched: [None, None, None] };
                        let given = [of(&dy, rows), Mat::new(&y, d), Mat::new(&lse, 1)];
                        backward(level, head, to, [false; 2], given, &mut scratch);
                        for (tensor, got, want) in [("dq", dq, &want[1]), ("dk", dk, &want[2]), ("dv", dv, &want[3])] {
                            assert_close(&what(tensor), &got, want);
                        }
                    }
                }
            }
        }
    }
}

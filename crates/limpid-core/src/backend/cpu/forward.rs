//! The forward of every op: one match that calls the files of `kernels/`. The team of threads shares rows or heads.
#![allow(unsafe_code)] // tasks write disjoint parts of one matrix; each block says why they are disjoint

use super::cache::Cache;
use super::team::ThreadTeam;
use super::weights::Fixed;
use super::{BatchShard, pick, table_from};
use crate::config::Heads;
use crate::kernels::attend::{self, CacheBlocks, CachedKeys, Head, Keys};
use crate::kernels::dropout::{self, Draws};
use crate::kernels::embed::{self, Lookup};
use crate::kernels::{activate, add, classify, gather, multiply, norm, rotate, scale};
use crate::matrix::view::{Mat, MatMut, Shared};
use crate::ops::{BLOCK, Op, Region, Span};
use std::ops::Range;

/// The queries of head `h` and the keys and values that it attends to: `x` is (N, (H + K) D + K D_v), `cached` the
/// KV cache and the sequence's blocks, if there is one.
pub fn query_key_value<'a>(
    x: &'a [f32],
    cached: Option<(CacheBlocks<'a>, &'a [u32])>,
    span: Span,
    heads: Heads,
    h: usize,
) -> (Mat<'a>, [Keys<'a>; 2]) {
    let (rows, cols) = (span.rows, heads.cols());
    let mine = &x[span.row * cols..(span.row + rows) * cols];
    let [query, key, value] = heads.starts(h);
    let part = |start: usize, d: usize| Mat::strided(&mine[start..], rows, d, cols);
    let keys = |at: usize, d: usize, columns: bool| match cached {
        None => Keys::Plain(part(at, d)),
        Some((cache, table)) => {
            let (block, start) = (BLOCK * heads.cache_cols(), BLOCK * (at - heads.query_cols()));
            Keys::Cached(CachedKeys { cache, block, start, columns, table, d })
        }
    };
    (part(query, heads.d_head), [keys(key, heads.d_head, true), keys(value, heads.d_value, false)])
}

/// The range of some rows of a tensor in its memory space.
pub fn at(region: Region, rows: &Range<usize>) -> Range<usize> {
    region.at + rows.start * region.cols..region.at + rows.end * region.cols
}

/// Runs one op on the rows of one shard.
pub fn run(op: Op, weights: Fixed, shard: &mut BatchShard, team: &ThreadTeam, cache_of: Option<&mut Cache>) {
    let BatchShard { first, batch, act, stat, .. } = shard;
    let of = |region: Region| weights.plain(region);
    let (first, batch, level) = (*first, &*batch, team.level);
    match op {
        Op::Embed { table, positions, segments, y, token, position } => {
            let cols = y.cols;
            let table = weights.table(table);
            let token_of = |n: usize, to: &mut [f32]| table.row(batch.tokens[n] as usize, to);
            let position_of = positions.map(|p| Lookup { table: of(p), ids: &batch.positions });
            let segment_of = segments.map(|s| Lookup { table: of(s), ids: &batch.segments });
            team.rows([(&mut act[y.range()], cols)], |rows, [y], _| {
                embed::forward(y, rows.start, cols, token_of, [position_of, segment_of]);
            });
            if let Some(region) = token {
                embed::forward(&mut stat[region.range()], 0, cols, token_of, [None, None]);
            }
            if let (Some(region), Some(of)) = (position, position_of) {
                embed::forward(&mut stat[region.range()], 0, cols, |n, to| of.copy(n, to), [None, None]);
            }
        }
        Op::Norm { kind, eps, x, gain, offset, less_one, y, stats, normalized, scale } => {
            let [gain, offset] = [gain, offset].map(|s| s.map(of));
            let (y, [from]) = table_from(act, y, [x]);
            team.map_rows([y, (&mut stat[stats.range()], 2)], [from], |_, [y, stats], [x], _| {
                level.run(norm::Forward { y, stats, x, gain, offset, less_one, kind, eps });
            });
            if let (Some(normalized), Some(scale)) = (normalized, scale) {
                let [stats, normalized, scale] = pick(stat, [stats, normalized, scale]);
                let (x, y) = (from.0, normalized);
                level.run(norm::Forward { y, stats, x, gain: None, offset: None, less_one, kind, eps });
                scale.iter_mut().zip(stats.as_chunks::<2>().0).for_each(|(to, s)| *to = 1.0 / s[1]);
            }
        }
        Op::Linear { x, w, b, y } => {
            let cols = x.cols;
            let [x, y] = pick(act, [x, y]);
            team.linear(y, Mat::new(x, cols), of(w), b.map(of), weights.packed(w));
        }
        Op::QkNorm { kind, eps, x, q_gain, k_gain, less_one, together, y, stats, heads } => {
            let gains = [q_gain, k_gain].map(|s| s.map(of));
            let (y, x) = table_from(act, y, [x]);
            team.map_rows([y, (&mut stat[stats.range()], stats.cols)], x, |_, [y, stats], [x], _| {
                level.run(norm::QkForward { y, stats, x, gains, less_one, together, heads, kind, eps });
            });
        }
        Op::Rotate { x, y, angles, heads } => {
            let angles = (of(angles), angles.cols);
            let (y, x) = table_from(act, y, [x]);
            team.map_rows([y], x, |rows, [y], [x], _| {
                rotate::turn(y, x, false, angles, &batch.positions[rows], heads, 1.0);
            });
        }
        Op::Attend { .. } => attention(op, shard, team, cache_of),
        Op::Activate { f, k, x, y } => {
            let (y, x) = table_from(act, y, [x]);
            team.map_rows([y], x, |_, [y], [x], _| level.run(activate::Forward { f, k, y, x }));
        }
        Op::Add { a, b, scale, y } => {
            let (y, terms) = table_from(act, y, [a, b]);
            team.map_rows([y], terms, |_, [y], [a, b], _| add::forward(y, a, b, scale));
        }
        Op::Multiply { a, b, y } => {
            let (y, factors) = table_from(act, y, [a, b]);
            team.map_rows([y], factors, |_, [y], [a, b], _| multiply::forward(y, a, b));
        }
        Op::Scale { x, y, factor, cap } => {
            let (y, x) = table_from(act, y, [x]);
            team.map_rows([y], x, |_, [y], [x], _| level.run(scale::Forward { y, x, factor, cap }));
        }
        Op::Dropout { x, y, drop } => {
            let (cols, draws) = (x.cols, Draws::new(drop, batch.seed));
            let (y, x) = table_from(act, y, [x]);
            team.map_rows([y], x, |rows, [to], [from], _| {
                let first = ((first + rows.start) * cols) as u64;
                level.run(dropout::Apply { to, add: false, from, draws, first });
            });
        }
        Op::Gather { x, y } => {
            let cols = x.cols;
            let [x, y] = pick(act, [x, y]);
            gather::forward(y, x, &batch.outputs, cols);
        }
        Op::Classify { .. } => head(op, weights, shard, team),
    }
}

/// Attention: tasks are the heads of each sequence.
fn attention(op: Op, shard: &mut BatchShard, team: &ThreadTeam, cache_of: Option<&mut Cache>) {
    let Op::Attend { qkv, cache, y, lse, heads, scoring, drop, raw, scores, pattern } = op else {
        unreachable!("an op of attention")
    };
    let BatchShard { first, batch, act, stat, .. } = shard;
    let (first, batch, level) = (*first, &*batch, team.level);
    let (n_head, d, c) = (heads.n_head, heads.d_value, y.cols);
    let draws = drop.map(|drop| Draws::new(drop, batch.seed)).filter(|d| !d.is_identity());
    let [x, y] = pick(act, [qkv, y]);
    let x = &*x;
    let kv = cache.zip(cache_of).map(|(region, cache)| {
        cache.store(region, x, batch, heads, team);
        cache.part(region.range())
    });
    let watched = [raw, scores, pattern];
    let head_of = |task: usize| {
        let (span, h) = (batch.spans[task / n_head], task % n_head);
        let (q, [k, v]) = query_key_value(x, kv.map(|kv| (kv, span.blocks(batch))), span, heads, h);
        let place = Span { row: first + span.row, ..span };
        (span, h, Head { q, k, v, span: place, scoring, draws, head: h, n_head })
    };
    let (y, to) = (Shared::new(y, c), Shared::new(&mut stat[lse.range()], n_head));
    team.heads(&batch.spans, (n_head, d), &|task, id| {
        let (span, h, head) = head_of(task);
        let rows = span.row..span.row + span.rows;
        // SAFETY: each task takes one head's columns of one sequence's rows.
        let (y, lse) = unsafe { (y.part(rows.clone(), h * d..(h + 1) * d), to.part(rows, h..h + 1)) };
        team.with_scratch(id, |scratch| attend::forward(level, head, y, lse, scratch));
    });
    if watched.iter().all(Option::is_none) {
        return;
    }
    let lse = stat[lse.range()].to_vec();
    for task in 0..batch.spans.len() * n_head {
        let (span, h, head) = head_of(task);
        let rows = span.row..span.row + span.rows;
        let regions = watched.map(|s| s.expect("all three scores are watched, or none"));
        let wide = regions[0].cols / n_head;
        let mut parts = pick(stat, regions).map(|data| MatMut::new(data, n_head * wide));
        let parts = parts.each_mut().map(|p| Some(p.part(rows.clone(), h * wide..(h + 1) * wide)));
        let lse = Mat::new(&lse, n_head).rows(rows).cols(h..h + 1);
        team.with_scratch(0, |scratch| attend::watch(level, head, parts, lse, scratch));
    }
}

/// The head and its losses, chunk by chunk.
fn head(op: Op, weights: Fixed, shard: &mut BatchShard, team: &ThreadTeam) {
    let Op::Classify { x, w, b, cap, losses, logits, probs } = op else { unreachable!("the loss op") };
    let BatchShard { batch, act, stat, .. } = shard;
    let (batch, level, v) = (&*batch, team.level, w.rows);
    let (packed, w, b) = (weights.packed(w), weights.plain(w), b.map(|b| weights.plain(b)));
    let mut chunk = team.chunk();
    let each = chunk.len() / v;
    for from in (0..losses.rows).step_by(each) {
        let part = from..(from + each).min(losses.rows);
        let chunk = &mut chunk[..part.len() * v];
        team.linear(chunk, Mat::new(&act[at(x, &part)], x.cols), w, b, packed);
        if cap > 0.0 {
            team.rows([(&mut *chunk, v)], |_, [y], _| level.run(scale::Bound { y, cap }));
        }
        if let Some(region) = logits {
            stat[at(region, &part)].copy_from_slice(chunk);
        }
        team.rows([(&mut stat[at(losses, &part)], 1), (&mut *chunk, v)], |rows, [losses, chunk], _| {
            for ((n, loss), row) in rows.zip(losses).zip(chunk.chunks_exact_mut(v)) {
                let target = batch.target(part.start + n, v);
                *loss = level.run(classify::Row { logits: row, target, terms: batch.terms, weight: None });
            }
        });
        if let Some(region) = probs {
            stat[at(region, &part)].copy_from_slice(chunk);
        }
    }
}

//! The backward of every op, in two halves. [`inputs`] computes the gradients of activations row by row, so each
//! shard does it alone. [`parameters`] adds to the gradients of parameters. Each of those is a chain of sums over
//! all rows in ascending order from zero, so shards one after the other give the same bits as one shard with all
//! rows. [`head`] does both for the loss, chunk by chunk.
#![allow(unsafe_code)] // tasks write disjoint parts of one matrix; each block says why they are disjoint

use super::forward::{at, query_key_value};
use super::team::ThreadTeam;
use super::weights::Fixed;
use super::{BatchShard, Sum, pick, table, table_from};
use crate::kernels::attend::{self, Gradients, Head};
use crate::kernels::dropout::{self, Draws};
use crate::kernels::{activate, add, classify, embed, gather, multiply, norm, rotate, scale};
use crate::matrix::view::{Mat, MatMut, Shared};
use crate::matrix::{Start, Sums};
use crate::ops::{Back, Grad, Op, Region, Span};
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

/// Elements of all gradients (64 MiB) from which they are written past the caches: only the update reads them, after
/// all of them are computed.
const FAR: usize = 16 << 20;

/// The gradients of all parameters, for several tasks that each add to their own.
pub struct Parameters<'a> {
    all: Shared<'a>,
    sums: &'a [Sum],
}

impl<'a> Parameters<'a> {
    /// `sums` are each parameter's gradient, in ascending order of its place.
    pub fn new(grad: &'a mut [f32], sums: &'a [Sum]) -> Parameters<'a> {
        Parameters { all: Shared::new(grad, 1), sums }
    }
    /// One parameter's gradient, and what its sums start from: the first op to ask overwrites all of it.
    ///
    /// # Safety
    /// No other task may hold this parameter's gradient.
    #[allow(clippy::mut_from_ref)]
    unsafe fn gradient(&self, region: Region) -> (&mut [f32], Start<'static>) {
        let place = self.sums.binary_search_by_key(&region.at, |sum| sum.region.at).expect("the program lists it");
        let start = if !self.sums[place].blank.swap(false, Relaxed) {
            Start::Own
        } else if self.all.rows() >= FAR {
            Start::Past
        } else {
            Start::Zero
        };
        // SAFETY: passed on from the caller; parameters do not overlap.
        (unsafe { self.all.part(region.range(), 0..1) }.into_whole(), start)
    }
    /// One parameter's gradient to add to; filled with zeros for the first op to ask.
    ///
    /// # Safety
    /// As `gradient`.
    #[allow(clippy::mut_from_ref)]
    unsafe fn sums(&self, region: Region, team: &ThreadTeam) -> &mut [f32] {
        // SAFETY: passed on from the caller.
        let (sums, start) = unsafe { self.gradient(region) };
        if start != Start::Own {
            team.rows([(&mut *sums, 1)], |_, [sums], _| sums.fill(0.0));
        }
        sums
    }
}

/// Computes the gradients of one op's inputs from the gradient of its output.
pub fn inputs(step: Back, weights: Fixed, shard: &mut BatchShard, team: &ThreadTeam) {
    if step.dx == [None; 2] && step.watched == [None; 3] {
        return;
    }
    let BatchShard { first, batch, act, act_grad, stat } = shard;
    let (first, batch, act, stat, level) = (*first, &*batch, &*act, &*stat, team.level);
    let dy_slot = step.dy.expect("all but the loss have an output");
    let input = || step.dx[0].expect("all but the embedding have an input");
    match step.op {
        Op::Classify { .. } => unreachable!("`head` is for the loss"),
        Op::Embed { .. } => {
            for to in step.watched.into_iter().flatten() {
                let [dy, to] = pick(act_grad, [dy_slot, to]);
                to.copy_from_slice(dy);
            }
        }
        Op::Norm { kind, eps, x, gain, less_one, stats, .. } => {
            let gain = gain.map(|g| weights.plain(g));
            let saved = [table(act, x), table(stat, stats)];
            let Grad { region, add } = input();
            let (dx, [dy]) = table_from(act_grad, region, [dy_slot]);
            team.map_rows([dx], [dy, saved[0], saved[1]], |_, [dx], [dy, x, stats], g| {
                level.run(norm::BackwardInput { dx, add, dy, x, stats, gain, less_one, kind, eps, g });
            });
            if let [Some(normalized), Some(scale), _] = step.watched {
                let [(x, cols), (stats, _)] = saved;
                let [dy, normalized, scale] = pick(act_grad, [dy_slot, normalized, scale]);
                for n in 0..scale.len() {
                    let (mean, r) = (stats[2 * n], f64::from(stats[2 * n + 1]));
                    let mut sum = 0f64; // its terms may cancel
                    for i in n * cols..(n + 1) * cols {
                        normalized[i] = dy[i] * gain.map_or(1.0, |g| norm::applied(g[i % cols], less_one));
                        sum += f64::from(normalized[i]) * f64::from(x[i] - mean) * r;
                    }
                    scale[n] = (-sum * r) as f32;
                }
            }
        }
        Op::Linear { w, .. } => {
            let Grad { region, add } = input();
            let [dy, dx] = pick(act_grad, [dy_slot, region]);
            team.linear_back(dx, Mat::new(dy, w.rows), Mat::new(weights.plain(w), w.cols), weights.packed(w), add);
        }
        Op::QkNorm { kind, eps, x, q_gain, k_gain, less_one, together, stats, heads, .. } => {
            let gains = [q_gain, k_gain].map(|s| s.map(|g| weights.plain(g)));
            let Grad { region, add } = input();
            let (dx, [dy]) = table_from(act_grad, region, [dy_slot]);
            team.map_rows([dx], [dy, table(act, x), table(stat, stats)], |_, [dx], [dy, x, stats], g| {
                level.run(norm::QkBackwardInput {
                    dx,
                    add,
                    dy,
                    x,
                    stats,
                    gains,
                    less_one,
                    together,
                    heads,
                    kind,
                    eps,
                    g,
                });
            });
        }
        Op::Rotate { angles, heads, .. } => {
            let angles = (weights.plain(angles), angles.cols);
            let Grad { region, add } = input();
            let (dx, dy) = table_from(act_grad, region, [dy_slot]);
            team.map_rows([dx], dy, |rows, [dx], [dy], _| {
                rotate::turn(dx, dy, add, angles, &batch.positions[rows], heads, -1.0);
            });
        }
        Op::Attend { .. } => attention(step, shard, team),
        Op::Activate { f, k, x, .. } => {
            let Grad { region, add } = input();
            let (dx, [dy]) = table_from(act_grad, region, [dy_slot]);
            team.map_rows([dx], [dy, table(act, x)], |_, [dx], [dy, x], _| {
                level.run(activate::Backward { f, k, dx, add, dy, x });
            });
        }
        Op::Add { scale, .. } => {
            for (to, scale) in step.dx.into_iter().zip([1.0, scale]) {
                let Some(Grad { region, add }) = to else { continue };
                let (dx, dy) = table_from(act_grad, region, [dy_slot]);
                team.map_rows([dx], dy, |_, [dx], [dy], _| add::backward(dx, add, dy, scale));
            }
        }
        Op::Multiply { a, b, .. } => {
            for (to, other) in step.dx.into_iter().zip([b, a]) {
                let Some(Grad { region, add }) = to else { continue };
                let (dx, [dy]) = table_from(act_grad, region, [dy_slot]);
                team.map_rows([dx], [dy, table(act, other)], |_, [dx], [dy, other], _| {
                    multiply::backward(dx, add, dy, other);
                });
            }
        }
        Op::Scale { y, factor, cap, .. } => {
            let Grad { region, add } = input();
            let (dx, [dy]) = table_from(act_grad, region, [dy_slot]);
            team.map_rows([dx], [dy, table(act, y)], |_, [dx], [dy, y], _| {
                level.run(scale::Backward { dx, add, dy, y, factor, cap });
            });
        }
        Op::Dropout { x, drop, .. } => {
            let (cols, draws) = (x.cols, Draws::new(drop, batch.seed));
            let Grad { region, add } = input();
            let (dx, dy) = table_from(act_grad, region, [dy_slot]);
            team.map_rows([dx], dy, |rows, [to], [from], _| {
                let first = ((first + rows.start) * cols) as u64;
                level.run(dropout::Apply { to, add, from, draws, first });
            });
        }
        Op::Gather { x, .. } => {
            let Grad { region, add } = input();
            let [dy, dx] = pick(act_grad, [dy_slot, region]);
            gather::backward(dx, add, dy, &batch.outputs, x.cols);
        }
    }
}

/// The gradients of attention's input: tasks are the key heads of each sequence, each with the query heads that it
/// serves.
fn attention(step: Back, shard: &mut BatchShard, team: &ThreadTeam) {
    let Op::Attend { qkv, cache, y, lse, heads, scoring, drop, .. } = step.op else {
        unreachable!("an op of attention")
    };
    let BatchShard { first, batch, act, act_grad, stat } = shard;
    let (first, batch, act, stat, level) = (*first, &*batch, &*act, &*stat, team.level);
    let dy_slot = step.dy.expect("attention has an output");
    assert!(cache.is_none(), "a cached run has no backward");
    let (c, n_head, n_kv) = (y.cols, heads.n_head, heads.n_kv_head);
    let draws = drop.map(|drop| Draws::new(drop, batch.seed)).filter(|d| !d.is_identity());
    let (x, y, lse) = (&act[qkv.range()], &act[y.range()], &stat[lse.range()]);
    let Grad { region, add } = step.dx[0].expect("attention has an input");
    let wide = step.watched[0].map_or(0, |s| s.cols / n_head);
    let (dy, dx, seen) = match step.watched {
        [Some(a), Some(b), Some(c)] => {
            let [dy, dx, a, b, c] = pick(act_grad, [dy_slot, region, a, b, c]);
            (dy, dx, Some([a, b, c].map(|s| Shared::new(s, n_head * wide))))
        }
        _ => {
            let [dy, dx] = pick(act_grad, [dy_slot, region]);
            (dy, dx, None)
        }
    };
    let (dy, to) = (&*dy, Shared::new(dx, heads.cols()));
    team.heads(&batch.spans, (n_kv, heads.group() * heads.d_head), &|task, id| {
        let span = batch.spans[task / n_kv];
        let rows = span.row..span.row + span.rows;
        let of = |data, cols: usize, range: Range<usize>| Mat::new(data, cols).rows(rows.clone()).cols(range);
        let group = task % n_kv * heads.group()..(task % n_kv + 1) * heads.group();
        for h in group.clone() {
            let (q, [k, v]) = query_key_value(x, None, span, heads, h);
            let place = Span { row: first + span.row, ..span };
            let head = Head { q, k, v, span: place, scoring, draws, head: h, n_head };
            let own = h * heads.d_value..(h + 1) * heads.d_value;
            let given = [of(dy, c, own.clone()), of(y, c, own), of(lse, n_head, h..h + 1)];
            // SAFETY: each task takes one key head's columns of one sequence's rows, and those of the query
            // heads it serves; these parts are gone before the next query head's are made.
            let [dq, dk, dv] = heads.of_head(h).map(|cols| unsafe { to.part(rows.clone(), cols) });
            let watched = match &seen {
                Some(seen) => seen.each_ref().map(|s| {
                    // SAFETY: likewise one head's scores of one sequence's rows.
                    Some(unsafe { s.part(rows.clone(), h * wide..(h + 1) * wide) })
                }),
                None => [None, None, None],
            };
            let to = Gradients { dq, dk, dv, watched };
            let add = [add, add || h > group.start];
            team.with_scratch(id, |scratch| attend::backward(level, head, to, add, given, scratch));
        }
    });
}

/// Adds one shard's part to the gradients of one op's parameters. Two tasks must not work on ops that share a
/// parameter; of all ops, only the embedding and the head do.
pub fn parameters(step: Back, shard: &BatchShard, to: &Parameters, team: &ThreadTeam) {
    let BatchShard { batch, act, act_grad, stat, .. } = shard;
    let Some(dy) = step.dy.map(|dy| &act_grad[dy.range()]) else { return };
    // SAFETY: an op's parameters are its own, and no two tasks have one in common (`Passes::are_apart`).
    let sums = |region: Region| unsafe { to.sums(region, team) };
    match step.op {
        Op::Embed { table, positions, segments, y, .. } => {
            let cols = y.cols;
            let tables = [(Some(table), &batch.tokens), (positions, &batch.positions), (segments, &batch.segments)];
            for (table, ids) in tables {
                let Some(table) = table.filter(|t| t.learns()) else { continue };
                let to = Shared::new(sums(table), cols);
                team.columns(cols, dy.len(), |range| {
                    let add = |row: usize, dy: &[f32]| {
                        // SAFETY: each task takes its own columns.
                        let mut to = unsafe { to.part(row..row + 1, range.clone()) };
                        to.row(0).iter_mut().zip(dy).for_each(|(to, d)| *to += d);
                    };
                    embed::backward(add, dy, cols, (range.start, range.len()), ids);
                });
            }
        }
        Op::Norm { x, gain, offset, stats, .. } => {
            let (cols, x, stats) = (x.cols, &act[x.range()], &stat[stats.range()]);
            let parts = [gain, offset]
                .map(|region| region.filter(|s| s.learns()).map(|region| Shared::new(sums(region), cols)));
            if parts.iter().all(Option::is_none) {
                return;
            }
            team.columns(cols, dy.len(), |range| {
                // SAFETY: each task takes its own columns.
                let own = parts.each_ref().map(|s| s.as_ref().map(|s| unsafe { s.part(0..1, range.clone()) }));
                let [dgain, doffset] = own.map(|part| part.map(MatMut::into_whole));
                team.level.run(norm::BackwardParams { dgain, doffset, from: range.start, dy, x, stats });
            });
        }
        Op::QkNorm { x, q_gain, k_gain, together, stats, heads, .. } => {
            let (x, stats) = (&act[x.range()], &stat[stats.range()]);
            let dgains = [q_gain, k_gain].map(|region| region.filter(|s| s.learns()).map(sums));
            if dgains.iter().any(Option::is_some) {
                team.level.run(norm::QkBackwardParams { dgains, dy, x, stats, together, heads });
            }
        }
        Op::Linear { x, w, b, .. } => {
            if w.learns() {
                // SAFETY: as above.
                let (dw, start) = unsafe { to.gradient(w) };
                team.product(dw, Mat::new(dy, w.rows).t(), Mat::new(&act[x.range()], w.cols), start, Sums::Chain);
            }
            if let Some(b) = b.filter(|b| b.learns()) {
                team.column_sums(sums(b), dy);
            }
        }
        _ => {}
    }
}

/// Computes the losses and every gradient of the head, in chunks of rows.
pub fn head(step: Back, weights: Fixed, shard: &mut BatchShard, to: &Parameters, team: &ThreadTeam) {
    let Op::Classify { x, w, b, cap, losses, .. } = step.op else { unreachable!("only the loss has no output") };
    let BatchShard { batch, act, act_grad, stat, .. } = shard;
    let (v, cols) = (w.rows, x.cols);
    let (w_values, packed, bias) = (weights.plain(w), weights.packed(w), b.map(|b| weights.plain(b)));
    let mut chunk = team.chunk();
    // with a bound, half of the room holds the logits, which give the bound's slope
    let most = if cap > 0.0 { chunk.len() / 2 / v * v } else { chunk.len() };
    let (chunk, logits) = chunk.split_at_mut(most);
    let each = chunk.len() / v;
    for from in (0..losses.rows).step_by(each) {
        let part = from..(from + each).min(losses.rows);
        let chunk = &mut chunk[..part.len() * v];
        let x = Mat::new(&act[at(x, &part)], cols);
        team.linear(chunk, x, w_values, bias, packed);
        if cap > 0.0 {
            team.rows([(&mut *chunk, v), (&mut logits[..part.len() * v], v)], |_, [y, logits], _| {
                team.level.run(scale::Bound { y: &mut *y, cap });
                logits.copy_from_slice(y);
            });
        }
        team.rows([(&mut stat[at(losses, &part)], 1), (&mut *chunk, v)], |rows, [losses, chunk], _| {
            for ((n, loss), row) in rows.zip(losses).zip(chunk.chunks_exact_mut(v)) {
                let target = batch.target(part.start + n, v);
                *loss = team.level.run(classify::Row {
                    logits: row,
                    target,
                    terms: batch.terms,
                    weight: Some(batch.weight),
                });
            }
        });
        if let Some(to) = step.watched[0] {
            act_grad[at(to, &part)].copy_from_slice(chunk);
        }
        if cap > 0.0 {
            let y = &*logits;
            team.rows([(&mut *chunk, v)], |rows, [dy], _| {
                team.level.run(scale::Slope { dy, y: &y[rows.start * v..rows.end * v], cap });
            });
        }
        let dlogits = Mat::new(chunk, v);
        if let Some(Grad { region, add }) = step.dx[0] {
            team.linear_back(&mut act_grad[at(region, &part)], dlogits, Mat::new(w_values, cols), packed, add);
        }
        if w.learns() {
            // SAFETY: no other task runs.
            let (dw, start) = unsafe { to.gradient(w) };
            team.product(dw, dlogits.t(), x, start, Sums::Chain);
        }
        if let Some(b) = b.filter(|b| b.learns()) {
            // SAFETY: as above.
            team.column_sums(unsafe { to.sums(b, team) }, chunk);
        }
    }
}

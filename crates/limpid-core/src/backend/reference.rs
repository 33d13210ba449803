//! The reference backend: plain loops in f64, slow and obvious. Every other backend is judged by it. It is written
//! to be read beside the formulas at the head of each op, and stays unoptimised.

use super::{
    Backend, BackendError, DeviceBytes, Result, SharedWeights, ThreadChooser, Ticket, Tickets, UpdateReport, pick,
};
use crate::kernels::dropout::{Draws, weight_index};
use crate::kernels::embed::Lookup;
use crate::kernels::{activate, add, attend, classify, embed, gather, linear, multiply, norm, rotate, scale};
use crate::matrix::Precision;
use crate::model::Model;
use crate::numeric::element::{Element, Major, Values};
use crate::numeric::half::{nearest_bf16, widen_bf16};
use crate::ops::limits::Limits;
use crate::ops::{BLOCK, Back, Batch, DropoutSpec, Grad, MemorySpace, Op, Ops, Pass, Passes, Region, Span, qk_widths};
use crate::optimizer::{Change, ParamGroup, Rule, adamw, muon};
use std::collections::TryReserveError;
use std::ops::Range;

/// The f64 backend.
pub struct Reference {
    memory: [Vec<f64>; MemorySpace::ALL.len()],
    /// The stack of pushed gradients.
    pushed: Vec<Vec<f64>>,
    program: u64,
    limits: Limits,
    batch: Batch,
    /// The type of the KV cache.
    cache: Element,
    tickets: Tickets,
    reported: Option<(UpdateReport, Vec<Change>)>,
}

/// Zeros; the system provides the memory when it is touched.
fn zeros(op: &'static str, n: usize) -> Result<Vec<f64>> {
    let refused = |error: TryReserveError| {
        let bytes = n.saturating_mul(size_of::<f64>());
        BackendError::Memory { op, bytes, what: error.to_string() }
    };
    Vec::<f64>::new().try_reserve_exact(n).map_err(refused)?;
    Ok(vec![0.0; n])
}

impl Reference {
    /// Memory for `model`, all zero except its constant tables.
    ///
    /// # Panics
    /// If the system refuses memory. [`Reference::start`] returns an error instead.
    pub fn new(model: &Model) -> Reference {
        Reference::start(model).unwrap_or_else(|error| panic!("{error}"))
    }
    /// [`Reference::new`] that returns an error.
    ///
    /// # Errors
    /// If the system refuses memory.
    pub fn start(model: &Model) -> Result<Reference> {
        let mut memory: [Vec<f64>; MemorySpace::ALL.len()] = Default::default();
        for (memory, space) in memory.iter_mut().zip(MemorySpace::ALL) {
            *memory = zeros("the model", model.program.size(space))?;
        }
        let mut reference = Reference {
            memory,
            pushed: vec![],
            program: model.program.id(),
            limits: model.limits(),
            batch: Batch::default(),
            cache: model.element(MemorySpace::Cache),
            tickets: Tickets::default(),
            reported: None,
        };
        reference.write_tables(model)?;
        Ok(reference)
    }
    /// A tensor at full precision.
    pub fn exact(&self, region: Region) -> &[f64] {
        &self.memory[region.space as usize][region.range()]
    }
    /// A tensor at full precision, to change.
    pub fn exact_mut(&mut self, region: Region) -> &mut [f64] {
        &mut self.memory[region.space as usize][region.range()]
    }
    fn copy(&self, region: Region) -> Vec<f64> {
        self.exact(region).to_vec()
    }
    fn copy_of(&self, region: Option<Region>) -> Option<Vec<f64>> {
        region.map(|region| self.copy(region))
    }
    /// Gains as they are applied.
    fn gains(&self, region: Option<Region>, less_one: bool) -> Option<Vec<f64>> {
        region.map(|region| self.exact(region).iter().map(|g| norm::applied(*g, less_one)).collect())
    }
    fn put(&mut self, region: Option<Region>, values: impl FnOnce() -> Vec<f64>) {
        if let Some(region) = region {
            self.exact_mut(region).copy_from_slice(&values());
        }
    }
    fn draws(&self, drop: Option<DropoutSpec>) -> Option<Draws> {
        drop.map(|drop| Draws::new(drop, self.batch.seed))
    }
    /// Adds to a gradient, or replaces it.
    fn give(&mut self, to: Option<Grad>, values: &[f64]) {
        let Some(Grad { region, add }) = to else { return };
        self.exact_mut(region).iter_mut().zip(values).for_each(|(to, v)| *to = if add { *to + v } else { *v });
    }
    /// Adds to the gradients of a product's parameters.
    fn give_weights(&mut self, w: Region, b: Option<Region>, dy: &[f64], x: &[f64]) {
        if w.learns() {
            linear::reference::backward_w(self.exact_mut(w.grad()), dy, x, w.cols);
        }
        if let Some(b) = b.filter(|b| b.learns()) {
            linear::reference::backward_b(self.exact_mut(b.grad()), dy);
        }
    }
    /// Adds to a parameter's gradient, if it learns.
    fn add_to(&mut self, param: Region, values: &[f64]) {
        if !param.learns() {
            return;
        }
        self.exact_mut(param.grad()).iter_mut().zip(values).for_each(|(to, v)| *to += v);
    }
}

impl Backend for Reference {
    fn precision(&self) -> Precision {
        Precision::F32
    }
    fn runs_ahead(&self) -> bool {
        false
    }
    fn thread_choosers(&self) -> &[ThreadChooser] {
        &[]
    }
    fn transferred(&self) -> DeviceBytes {
        DeviceBytes::default()
    }
    fn can_update(&self, _: &[ParamGroup]) -> Result<()> {
        Ok(())
    }
    fn restrict_updates(&mut self) {}
    fn share(&mut self) -> Result<SharedWeights> {
        let what = "this backend keeps its weights to itself".into();
        Err(BackendError::NotSupported { op: "sharing weights", what, settings: &[] })
    }
    fn feed(&mut self, batch: &Batch) -> Result<()> {
        self.limits.check(batch)?;
        self.batch.copy_from(batch);
        Ok(())
    }
    fn forward(&mut self, ops: Ops) -> Result<()> {
        BackendError::check_program("forward", ops, self.program)?;
        ops.iter().for_each(|op| self.forward_op(op.for_batch(&self.batch)));
        Ok(())
    }
    fn backward(&mut self, back: Passes) -> Result<()> {
        BackendError::check_program("backward", back, self.program)?;
        back.iter().for_each(|pass| match pass.for_batch(&self.batch) {
            Pass::Recompute(op) => self.forward_op(op),
            Pass::Back(back) => self.backward_op(back),
        });
        Ok(())
    }
    fn begin_update(&mut self, groups: &[ParamGroup], rule: &Rule, watch: &[Change]) -> Result<()> {
        let held_back = rule.holds_back(|losses| self.sum(losses))?;
        let [_, param, grad, moment1, moment2, ..] = &mut self.memory;
        BackendError::check_groups("update", groups, param.len())?;
        let own = || groups.iter().flat_map(|g| &grad[g.range.clone()]).map(|g| g * g).sum::<f64>().sqrt();
        let norm = rule.norm.unwrap_or_else(own);
        let finite = norm.is_finite();
        let before = if watch.is_empty() { vec![] } else { param.clone() };
        if finite && !held_back {
            for ParamGroup { range, decay, matrix } in groups {
                let [w, g, m, v] = [&mut *param, grad, moment1, moment2].map(|memory| &mut memory[range.clone()]);
                match *matrix {
                    Some((_, cols)) => {
                        muon::reference::update(rule, rule.clip(norm), *decay, cols, w, g, m);
                    }
                    None => adamw::reference::update(rule, rule.clip(norm), *decay, w, g, m, v),
                }
            }
        }
        let mut changes: Vec<Change> = watch.iter().map(|watched| Change::new(watched.range.clone())).collect();
        for change in &mut changes {
            for i in change.range.clone() {
                change.gradient += grad[i] * grad[i];
                change.weight += param[i] * param[i];
                change.update += (param[i] - before[i]) * (param[i] - before[i]);
            }
        }
        self.clear()?;
        self.reported = Some((UpdateReport { norm, finite, held_back }, changes));
        Ok(())
    }
    fn report(&mut self, watch: &mut [Change]) -> Result<UpdateReport> {
        UpdateReport::tell(&self.reported, watch)
    }
    fn push_gradients(&mut self) -> Result<()> {
        let grad = &mut self.memory[MemorySpace::Grad as usize];
        let blank = zeros("push_gradients", grad.len())?;
        self.pushed.push(std::mem::replace(grad, blank));
        Ok(())
    }
    fn add_pushed(&mut self) -> Result<()> {
        let from = self.pushed.pop().ok_or_else(BackendError::nothing_pushed)?;
        self.memory[MemorySpace::Grad as usize].iter_mut().zip(from).for_each(|(to, from)| *to += from);
        Ok(())
    }
    fn add_pushed_to(&mut self, range: Range<usize>) -> Result<()> {
        let grad = &mut self.memory[MemorySpace::Grad as usize][range.clone()];
        for from in self.pushed.iter().rev() {
            grad.iter_mut().zip(&from[range.clone()]).for_each(|(to, from)| *to += from);
        }
        Ok(())
    }
    fn clear(&mut self) -> Result<()> {
        self.pushed.clear();
        self.memory[MemorySpace::Grad as usize].fill(0.0);
        Ok(())
    }
    fn average(&mut self, groups: &[ParamGroup], decay: f64) -> Result<()> {
        let [_, param, _, _, _, average, ..] = &mut self.memory;
        BackendError::check_groups("average", groups, param.len())?;
        for i in groups.iter().flat_map(|g| g.range.clone()) {
            average[i] = decay * average[i] + (1.0 - decay) * param[i];
        }
        Ok(())
    }
    fn request(&self, region: Region) -> Result<Ticket> {
        let values = self.exact(region);
        Ok(self.tickets.give(region.len(), |to| to.iter_mut().zip(values).for_each(|(to, v)| *to = *v as f32)))
    }
    fn fetch(&self, ticket: Ticket, to: &mut [f32]) -> Result<()> {
        self.tickets.take(ticket, to)
    }
    fn upload(&mut self, region: Region, values: Values) -> Result<()> {
        let wide = BackendError::widen(region, values)?;
        for (i, to) in self.exact_mut(region).iter_mut().enumerate() {
            let from = match values.major {
                Major::Rows => i,
                Major::Columns => i % region.cols * region.rows + i / region.cols,
            };
            *to = f64::from(wide[from]);
        }
        Ok(())
    }
}

impl Reference {
    fn forward_op(&mut self, op: Op) {
        match op {
            Op::Embed { table, positions, segments, y, token, position } => {
                let batch = self.batch.clone();
                let cols = y.cols;
                let [table, positions, segments] = [Some(table), positions, segments].map(|s| self.copy_of(s));
                let tables = [(&table, &batch.tokens), (&positions, &batch.positions), (&segments, &batch.segments)];
                let [token_of, position_of, segment_of] =
                    tables.map(|(table, ids)| table.as_ref().map(|table| Lookup { table, ids }));
                let token_of = token_of.expect("there is a token table");
                embed::forward(self.exact_mut(y), 0, cols, |n, to| token_of.copy(n, to), [position_of, segment_of]);
                self.put(token, || (0..y.rows).flat_map(|n| token_of.row(n, cols).to_vec()).collect());
                if let Some(of) = position_of {
                    self.put(position, || (0..y.rows).flat_map(|n| of.row(n, cols).to_vec()).collect());
                }
            }
            Op::Norm { kind, eps, x, gain, offset, less_one, y, stats, normalized, scale } => {
                let (x, gain, offset) = (self.copy(x), self.gains(gain, less_one), self.copy_of(offset));
                let how = (kind, f64::from(eps));
                let (mut s, mut n) = (vec![0.0; stats.len()], vec![0.0; y.len()]);
                norm::reference::forward((&mut n, &mut s), &x, (None, None), how);
                norm::reference::forward((self.exact_mut(y), &mut s), &x, (gain.as_deref(), offset.as_deref()), how);
                self.put(normalized, || n);
                self.put(scale, || s.chunks_exact(2).map(|s| 1.0 / s[1]).collect());
                self.put(Some(stats), || s);
            }
            Op::Linear { x, w, b, y } => {
                let (xs, ws, b) = (self.copy(x), self.copy(w), self.copy_of(b));
                linear::reference::forward(self.exact_mut(y), &xs, &ws, b.as_deref(), x.cols);
            }
            Op::QkNorm { kind, eps, x, q_gain, k_gain, less_one, together, y, stats, heads } => {
                let (xs, how) = (self.copy(x), (kind, f64::from(eps)));
                let gains = [q_gain, k_gain].map(|gain| self.gains(gain, less_one));
                let (mut out, mut s) = (xs.clone(), vec![0.0; stats.len()]);
                for n in 0..x.rows {
                    let (row, own) = (n * x.cols, n * stats.cols);
                    for (i, (part, key)) in norm::qk_parts(heads, together).enumerate() {
                        let (range, gain) = (row + part.start..row + part.end, gains[usize::from(key)].as_deref());
                        let to = (&mut out[range.clone()], &mut s[own + 2 * i..own + 2 * i + 2]);
                        norm::reference::forward(to, &xs[range], (gain, None), how);
                    }
                }
                self.put(Some(y), || out);
                self.put(Some(stats), || s);
            }
            Op::Rotate { x, y, angles, heads } => {
                let (xs, table, positions) = (self.copy(x), self.copy(angles), self.batch.positions.clone());
                rotate::turn(self.exact_mut(y), &xs, false, (&table, angles.cols), &positions, heads, 1.0);
            }
            Op::Attend { .. } => self.attend(op),
            Op::Activate { f, k, x, y } => {
                let [x, y] = pick(&mut self.memory[MemorySpace::Act as usize], [x, y]);
                y.iter_mut().zip(x).for_each(|(y, x)| *y = activate::reference::value(f, k, *x));
            }
            Op::Add { a, b, scale, y } => {
                let (a, b) = (self.copy(a), self.copy(b));
                add::forward(self.exact_mut(y), &a, &b, f64::from(scale));
            }
            Op::Multiply { a, b, y } => {
                let (a, b) = (self.copy(a), self.copy(b));
                multiply::forward(self.exact_mut(y), &a, &b);
            }
            Op::Scale { x, y, factor, cap } => {
                let bounded = |x: &f64| scale::reference::bounded(f64::from(factor) * x, f64::from(cap));
                let values = self.exact(x).iter().map(bounded).collect();
                self.put(Some(y), || values);
            }
            Op::Dropout { x, y, drop } => {
                let (x, draws) = (self.copy(x), Draws::new(drop, self.batch.seed));
                let y = self.exact_mut(y).iter_mut().zip(x).enumerate();
                y.for_each(|(i, (y, x))| *y = x * f64::from(draws.factor(i as u64)));
            }
            Op::Gather { x, y } => {
                let (xs, outputs) = (self.copy(x), self.batch.outputs.clone());
                gather::forward(self.exact_mut(y), &xs, &outputs, x.cols);
            }
            Op::Classify { x, w, b, cap, losses, logits, probs } => {
                let mut rows = vec![0.0; x.rows * w.rows];
                linear::reference::forward(&mut rows, self.exact(x), self.exact(w), self.copy_of(b).as_deref(), x.cols);
                rows.iter_mut().for_each(|v| *v = scale::reference::bounded(*v, f64::from(cap)));
                self.put(logits, || rows.clone());
                let target = |n| self.batch.target(n, w.rows);
                let rows_losses: Vec<f64> = rows
                    .chunks_exact_mut(w.rows)
                    .enumerate()
                    .map(|(n, row)| classify::reference::row(row, target(n), self.batch.terms, None))
                    .collect();
                self.put(Some(losses), || rows_losses);
                self.put(probs, || rows);
            }
        }
    }

    /// The keys, or the values, of the first `n` positions of a sequence.
    fn keys(kv: &[f64], first: usize, stride: usize, d: usize, n: usize) -> impl Iterator<Item = &[f64]> + Clone {
        (0..n).map(move |j| &kv[first + j * stride..][..d])
    }

    /// A value as the KV cache has it.
    fn stored(&self, value: f64) -> f64 {
        match self.cache {
            Element::Bf16 => f64::from(widen_bf16(nearest_bf16(value as f32))),
            _ => value,
        }
    }

    /// A sequence's rows of a KV cache, one after another.
    fn cached_rows(&self, cache: Region, span: Span) -> Vec<f64> {
        let (all, blocks) = (self.exact(cache), span.blocks(&self.batch));
        let of = |block: &u32| &all[*block as usize * BLOCK * cache.cols..][..BLOCK * cache.cols];
        blocks.iter().flat_map(of).copied().collect()
    }

    fn attend(&mut self, op: Op) {
        let Op::Attend { qkv, cache, y, lse, heads, scoring, drop, raw, scores, pattern } = op else { unreachable!() };
        let (n_head, draws, x) = (heads.n_head, self.draws(drop), self.copy(qkv));
        let (d, wide_v) = (heads.d_head, heads.d_value);
        let (first_key, all, cached) = (heads.query_cols(), heads.cols(), heads.cache_cols());
        if let Some(cache) = cache {
            for span in self.batch.spans.clone() {
                for i in 0..span.rows {
                    let from = (span.row + i) * all + first_key;
                    let to = span.cache_row(&self.batch, i) * cached;
                    let stored: Vec<f64> = x[from..from + cached].iter().map(|v| self.stored(*v)).collect();
                    self.exact_mut(cache)[to..to + cached].copy_from_slice(&stored);
                }
            }
        }
        let wide = pattern.or(scores).or(raw).map_or(0, |s| s.cols / n_head);
        let mut seen = [
            vec![0.0; y.rows * n_head * wide],
            vec![f64::NEG_INFINITY; y.rows * n_head * wide],
            vec![0.0; y.rows * n_head * wide],
        ];
        for span in self.batch.spans.clone() {
            let n = span.past + span.rows;
            // the index of the sequence's first key, and the distance between rows
            let (kv, first, stride) = match cache {
                Some(region) => (self.cached_rows(region, span), 0, cached),
                None => (x.clone(), span.row * all + first_key, all),
            };
            for (i, h) in (0..span.rows).flat_map(|i| (0..n_head).map(move |h| (i, h))) {
                let at = span.row + i;
                let [query, key, value] = heads.starts(h);
                let q = &x[at * all + query..][..d];
                let keys = Self::keys(&kv, first + key - first_key, stride, d, n);
                let sees = scoring.sees(&span, i);
                let score = |j, product| scoring.score(product, scoring.distance(&span, i, j, [h, n_head]));
                let row = attend::reference::row(q, keys, |j| sees.contains(&j), score);
                let out = &mut self.exact_mut(y)[at * y.cols + h * wide_v..][..wide_v];
                out.fill(0.0);
                for (j, v) in Self::keys(&kv, first + value - first_key, stride, wide_v, n).enumerate() {
                    let factor = draws.map_or(1.0, |w| f64::from(w.factor(weight_index(at, h, n_head, j))));
                    out.iter_mut().zip(v).for_each(|(y, v)| *y += row.pattern[j] * factor * v);
                }
                self.exact_mut(lse)[at * n_head + h] = row.lse;
                if wide > 0 {
                    let to = (at * n_head + h) * wide;
                    for (seen, values) in seen.iter_mut().zip([&row.raw, &row.scores, &row.pattern]) {
                        seen[to..to + n].copy_from_slice(values);
                    }
                }
            }
        }
        for (region, values) in [raw, scores, pattern].into_iter().zip(seen) {
            self.put(region, || values);
        }
    }

    fn attend_backward(&mut self, step: Back) {
        let Op::Attend { qkv, cache, y, heads, scoring, drop, .. } = step.op else { unreachable!() };
        assert!(cache.is_none(), "a cached run has no backward");
        let (c, n_head, d, wide_v) = (y.cols, heads.n_head, heads.d_head, heads.d_value);
        let draws = self.draws(drop);
        let (x, dy) = (self.copy(qkv), self.copy(step.dy.expect("attention has an output")));
        let wide = step.watched[0].map_or(0, |s| s.cols / n_head);
        let mut seen = [vec![0.0; y.rows * n_head * wide], vec![0.0; y.rows * n_head * wide]];
        let mut dqkv = vec![0.0; x.len()];
        for span in self.batch.spans.clone() {
            let Span { row, rows, .. } = span;
            let at = |i: usize, part: usize, h: usize| (row + i) * heads.cols() + heads.starts(h)[part];
            for (i, h) in (0..rows).flat_map(|i| (0..n_head).map(move |h| (i, h))) {
                let q = &x[at(i, 0, h)..][..d];
                let keys = Self::keys(&x, at(0, 1, h), heads.cols(), d, rows);
                let values = Self::keys(&x, at(0, 2, h), heads.cols(), wide_v, rows);
                let sees = scoring.sees(&span, i);
                let score = |j, product| scoring.score(product, scoring.distance(&span, i, j, [h, n_head]));
                let made = attend::reference::row(q, keys, |j| sees.contains(&j), score);
                let p = made.pattern;
                let dy = &dy[(row + i) * c + h * wide_v..][..wide_v];
                let factor = |j: usize| draws.map_or(1.0, |w| f64::from(w.factor(weight_index(row + i, h, n_head, j))));
                let (dp, ds) = attend::reference::row_backward(&p, dy, values, factor);
                for j in 0..rows {
                    let slope = scoring.steepness(made.products[j]) * ds[j];
                    for e in 0..d {
                        dqkv[at(i, 0, h) + e] += slope * x[at(j, 1, h) + e];
                        dqkv[at(j, 1, h) + e] += slope * x[at(i, 0, h) + e];
                    }
                    for (e, dy) in dy.iter().enumerate() {
                        dqkv[at(j, 2, h) + e] += p[j] * factor(j) * dy;
                    }
                }
                if wide > 0 {
                    let to = ((row + i) * n_head + h) * wide;
                    seen[0][to..to + rows].copy_from_slice(&ds);
                    // hidden scores have no gradient: their weight is the constant 0
                    let dp: Vec<f64> =
                        dp.iter().enumerate().map(|(j, v)| if sees.contains(&j) { *v } else { 0.0 }).collect();
                    seen[1][to..to + rows].copy_from_slice(&dp);
                }
            }
        }
        self.give(step.dx[0], &dqkv);
        let [ds, dp] = seen;
        self.put(step.watched[0], || ds.clone());
        self.put(step.watched[1], || ds);
        self.put(step.watched[2], || dp);
    }

    fn backward_op(&mut self, step: Back) {
        let dy = self.copy_of(step.dy).unwrap_or_default();
        let dx = |region: Region| vec![0.0; region.len()];
        match step.op {
            Op::Embed { table, positions, segments, y, .. } => {
                let batch = self.batch.clone();
                let tables = [(Some(table), &batch.tokens), (positions, &batch.positions), (segments, &batch.segments)];
                for (table, ids) in tables {
                    let Some(table) = table.filter(|t| t.learns()) else { continue };
                    let to = self.exact_mut(table.grad());
                    let add = |row: usize, dy: &[f64]| {
                        to[row * y.cols..][..y.cols].iter_mut().zip(dy).for_each(|(to, d)| *to += d);
                    };
                    embed::backward(add, &dy, y.cols, (0, y.cols), ids);
                }
                step.watched.into_iter().for_each(|region| self.put(region, || dy.clone()));
            }
            Op::Norm { kind, eps, x, gain, offset, less_one, stats, .. } => {
                let (xs, stats, gains) = (self.copy(x), self.copy(stats), self.gains(gain, less_one));
                let (mut values, mut dgain, mut doffset) = (dx(x), vec![0.0; x.cols], vec![0.0; x.cols]);
                norm::reference::backward(
                    (&mut values, false),
                    (Some(&mut dgain), Some(&mut doffset)),
                    &dy,
                    &xs,
                    &stats,
                    gains.as_deref(),
                    (kind, f64::from(eps)),
                );
                self.give(step.dx[0], &values);
                gain.into_iter().for_each(|region| self.add_to(region, &dgain));
                offset.into_iter().for_each(|region| self.add_to(region, &doffset));
                let gained = |i: usize| dy[i] * gains.as_ref().map_or(1.0, |g| g[i % x.cols]);
                self.put(step.watched[0], || (0..dy.len()).map(gained).collect());
                // with y = u / s and u = x - mean, the scale's own slope is -sum(dy gain u) / s^2 = -sum(g n) / s
                let normal = |i: usize| (xs[i] - stats[i / x.cols * 2]) * stats[i / x.cols * 2 + 1];
                let slope = |n: usize| {
                    -(n * x.cols..(n + 1) * x.cols).map(|i| gained(i) * normal(i)).sum::<f64>() * stats[2 * n + 1]
                };
                self.put(step.watched[1], || (0..x.rows).map(slope).collect());
            }
            Op::Linear { x, w, b, .. } => {
                let (xs, ws, mut values) = (self.copy(x), self.copy(w), dx(x));
                linear::reference::backward_x(&mut values, false, &dy, &ws, x.cols);
                self.give(step.dx[0], &values);
                self.give_weights(w, b, &dy, &xs);
            }
            Op::QkNorm { kind, eps, x, q_gain, k_gain, less_one, together, stats, heads, .. } => {
                let (xs, s, wide, how) = (self.copy(x), self.copy(stats), stats.cols, (kind, f64::from(eps)));
                let gains = [q_gain, k_gain].map(|gain| self.gains(gain, less_one));
                let mut values = dy.clone(); // of values it is a copy
                let mut dgains = qk_widths(heads, together).map(|n| vec![0.0; n]);
                for n in 0..x.rows {
                    for (i, (part, key)) in norm::qk_parts(heads, together).enumerate() {
                        let range = n * x.cols + part.start..n * x.cols + part.end;
                        let (at, key) = (n * wide + 2 * i, usize::from(key));
                        norm::reference::backward(
                            (&mut values[range.clone()], false),
                            (Some(&mut dgains[key]), None),
                            &dy[range.clone()],
                            &xs[range],
                            &s[at..at + 2],
                            gains[key].as_deref(),
                            how,
                        );
                    }
                }
                self.give(step.dx[0], &values);
                let of = [q_gain, k_gain].into_iter().zip(dgains);
                of.for_each(|(gain, dgain)| gain.into_iter().for_each(|region| self.add_to(region, &dgain)));
            }
            Op::Rotate { x, angles, heads, .. } => {
                let (table, mut values) = (self.copy(angles), dx(x));
                rotate::turn(&mut values, &dy, false, (&table, angles.cols), &self.batch.positions, heads, -1.0);
                self.give(step.dx[0], &values);
            }
            Op::Attend { .. } => self.attend_backward(step),
            Op::Activate { f, k, x, .. } => {
                let slopes = self.exact(x).iter().map(|x| activate::reference::derivative(f, k, *x));
                let values: Vec<f64> = slopes.zip(&dy).map(|(s, d)| s * d).collect();
                self.give(step.dx[0], &values);
            }
            Op::Multiply { a, b, .. } => {
                for (to, other) in step.dx.into_iter().zip([b, a]) {
                    let mut values = vec![0.0; other.len()];
                    multiply::backward(&mut values, false, &dy, self.exact(other));
                    self.give(to, &values);
                }
            }
            Op::Add { scale, .. } => {
                self.give(step.dx[0], &dy);
                self.give(step.dx[1], &dy.iter().map(|d| f64::from(scale) * d).collect::<Vec<_>>());
            }
            Op::Scale { y, factor, cap, .. } => {
                let slope = |y: &f64| f64::from(factor) * scale::reference::slope(*y, f64::from(cap));
                let values: Vec<f64> = self.exact(y).iter().map(slope).zip(&dy).map(|(s, d)| s * d).collect();
                self.give(step.dx[0], &values);
            }
            Op::Dropout { drop, .. } => {
                let draws = Draws::new(drop, self.batch.seed);
                let values: Vec<f64> =
                    dy.iter().enumerate().map(|(i, d)| d * f64::from(draws.factor(i as u64))).collect();
                self.give(step.dx[0], &values);
            }
            Op::Gather { x, .. } => {
                let mut values = dx(x);
                gather::backward(&mut values, false, &dy, &self.batch.outputs, x.cols);
                self.give(step.dx[0], &values);
            }
            Op::Classify { x, w, b, cap, losses, .. } => {
                let (xs, ws, bias) = (self.copy(x), self.copy(w), self.copy_of(b));
                let (mut rows, mut values) = (vec![0.0; x.rows * w.rows], dx(x));
                linear::reference::forward(&mut rows, &xs, &ws, bias.as_deref(), x.cols);
                rows.iter_mut().for_each(|v| *v = scale::reference::bounded(*v, f64::from(cap)));
                let slopes: Vec<f64> = rows.iter().map(|v| scale::reference::slope(*v, f64::from(cap))).collect();
                let weight = f64::from(self.batch.weight);
                let each = rows.chunks_exact_mut(w.rows).enumerate().map(|(n, row)| {
                    let target = self.batch.target(n, w.rows);
                    classify::reference::row(row, target, self.batch.terms, Some(weight))
                });
                let all: Vec<f64> = each.collect();
                self.put(Some(losses), || all);
                self.put(step.watched[0], || rows.clone());
                rows.iter_mut().zip(slopes).for_each(|(v, slope)| *v *= slope);
                linear::reference::backward_x(&mut values, false, &rows, &ws, x.cols);
                self.give(step.dx[0], &values);
                self.give_weights(w, b, &rows, &xs);
            }
        }
    }
}

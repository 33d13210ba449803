//! f32 on this processor: several threads, the instructions it was seen to have, memory reserved once.
//!
//! Every element has one writer and every sum one order, fixed by the problem: rows are shared out where
//! results are rows, columns where results are column sums, and a head of a sequence is one task. So the
//! bits do not depend on the number of threads. Two matches, one per direction, call the kernels in `ops`.
#![allow(unsafe_code)] // tasks write disjoint parts of one matrix; each block says why they are disjoint

mod arena;
mod pool;
pub mod roof;

use super::{Backend, Report};
use crate::model::{Model, Use};
use crate::ops::adamw::{self, Rule};
use crate::ops::attend::{self, Gradients, Head};
use crate::ops::dropout::{self, Draws};
use crate::ops::embed::{self, Lookup};
use crate::ops::linear::gemm::{self, Packed, gemm, gemm_packed};
use crate::ops::simd::Level;
use crate::ops::view::{Mat, MatMut, Shared};
use crate::ops::{Back, Batch, Grad, Op, Slot, Space, Span};
use crate::ops::{activate, add, classify, gather, linear, norm, rotate};
use arena::Arena;
use pool::Pool;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Mutex;

/// The f32 backend.
pub struct Cpu {
    memory: Memory,
    batch: Batch,
    crew: Crew,
    /// A chunk of logits, rows x V.
    chunk: Arena,
    /// Weights packed for decoding, by where they lie; empty in other uses.
    packed: HashMap<usize, Packed>,
    keeps_packed: bool,
    partial: Vec<f64>,
}

#[derive(Default)]
struct Memory {
    konst: Arena,
    param: Arena,
    grad: Arena,
    moment1: Arena,
    moment2: Arena,
    act: Arena,
    act_grad: Arena,
    stat: Arena,
    cache: Arena,
}

impl Memory {
    fn of(&self, space: Space) -> &[f32] {
        match space {
            Space::Const => &self.konst,
            Space::Param => &self.param,
            Space::Grad => &self.grad,
            Space::Moment1 => &self.moment1,
            Space::Moment2 => &self.moment2,
            Space::Act => &self.act,
            Space::ActGrad => &self.act_grad,
            Space::Stat => &self.stat,
            Space::Cache => &self.cache,
        }
    }
    fn of_mut(&mut self, space: Space) -> &mut Arena {
        match space {
            Space::Const => &mut self.konst,
            Space::Param => &mut self.param,
            Space::Grad => &mut self.grad,
            Space::Moment1 => &mut self.moment1,
            Space::Moment2 => &mut self.moment2,
            Space::Act => &mut self.act,
            Space::ActGrad => &mut self.act_grad,
            Space::Stat => &mut self.stat,
            Space::Cache => &mut self.cache,
        }
    }
    fn table(&self, slot: Slot) -> &[f32] {
        &self.of(slot.space)[slot.range()]
    }
}

/// Disjoint mutable views of one memory. Overlap is a bug in the plan, and says so.
fn pick<const N: usize>(memory: &mut [f32], slots: [Slot; N]) -> [&mut [f32]; N] {
    memory.get_disjoint_mut(slots.map(Slot::range)).unwrap_or_else(|_| panic!("slots of one op overlap: {slots:?}"))
}

/// Threads, their instructions and each one's scratch.
struct Crew {
    pool: Pool,
    level: Level,
    scratch: Vec<Mutex<Arena>>,
}

/// Elements below which waking other threads costs more than it brings.
const SMALL: usize = 16 << 10;

/// Rows a thread must have for packing b by itself to cost less than moving rows between threads.
const OWN_ROWS: usize = 192;

impl Crew {
    fn with_scratch(&self, id: usize, f: impl FnOnce(&mut [f32])) {
        f(&mut self.scratch[id].lock().unwrap_or_else(|e| e.into_inner()));
    }

    /// Shares rows out: `f(rows, [those rows of each output], scratch)`. Outputs are (matrix, columns).
    fn rows<const K: usize>(
        &self,
        outputs: [(&mut [f32], usize); K],
        f: impl Fn(Range<usize>, [&mut [f32]; K], &mut [f32]) + Sync,
    ) {
        let elements = outputs.iter().map(|(data, _)| data.len()).sum::<usize>();
        let outputs = outputs.map(|(data, cols)| Shared::new(data, cols));
        let rows = outputs[0].rows();
        let parts = if elements < SMALL { 1 } else { (3 * self.pool.threads()).min(rows) };
        let each = rows.div_ceil(parts.max(1)).max(1);
        self.pool.run(rows.div_ceil(each), &|task, id| {
            let range = task * each..((task + 1) * each).min(rows);
            // SAFETY: each task takes its own rows of each output.
            let mut parts = outputs.each_ref().map(|m| unsafe { m.part(range.clone(), 0..m.cols()) });
            self.with_scratch(id, |scratch| f(range.clone(), parts.each_mut().map(MatMut::whole), scratch));
        });
    }

    /// Shares columns out, 64 at a time: `f(columns)` for every column of `cols`.
    fn columns(&self, cols: usize, elements: usize, f: impl Fn(Range<usize>) + Sync) {
        let parts = if elements < SMALL { 1 } else { self.pool.threads().min(cols.div_ceil(64)) };
        let each = cols.div_ceil(parts.max(1)).next_multiple_of(64);
        self.pool.run(cols.div_ceil(each), &|task, _| f(task * each..((task + 1) * each).min(cols)));
    }

    /// Every head of every sequence, numbered sequence by sequence. Where there are sequences enough, one thread takes
    /// all heads of a sequence: neighbouring heads write into the same cache lines.
    fn heads(&self, sequences: usize, n_head: usize, f: &(dyn Fn(usize, usize) + Sync)) {
        if sequences >= 4 * self.pool.threads() {
            self.pool.run(sequences, &|s, id| (s * n_head..(s + 1) * n_head).for_each(|task| f(task, id)));
        } else {
            self.pool.run(sequences * n_head, f);
        }
    }

    /// c = a b or c += a b. With many rows each thread takes its own, the same as in every other op, and packs b for
    /// itself; with fewer, columns are shared out panel by panel, so each is packed once; rows again where there are too
    /// few panels to go round.
    fn product(&self, c: &mut [f32], a: Mat, b: Mat, add: bool) {
        let (rows, cols, width, threads) = (a.rows, b.cols, gemm::width(self.level), self.pool.threads());
        let panels = cols.div_ceil(width);
        let to = Shared::new(c, cols);
        let small = threads == 1 || rows * cols * a.cols < 8 * SMALL;
        let own_rows = a.col_stride == 1 && rows >= OWN_ROWS * threads;
        let by_columns = !small && !own_rows && (panels >= 2 * threads || panels.is_multiple_of(threads));
        let (all, each) = match () {
            () if by_columns => (cols, width),
            () if small => (rows, rows.max(1)),
            () => (rows, rows.div_ceil(threads).next_multiple_of(6)),
        };
        self.pool.run(all.div_ceil(each), &|task, id| {
            let part = task * each..((task + 1) * each).min(all);
            self.with_scratch(id, |scratch| {
                if by_columns {
                    // SAFETY: each task takes its own columns.
                    let c = unsafe { to.part(0..rows, part.clone()) };
                    gemm(self.level, c, a, b.cols(part), add, scratch);
                } else {
                    // SAFETY: each task takes its own rows.
                    let c = unsafe { to.part(part.clone(), 0..cols) };
                    gemm(self.level, c, a.rows(part), b, add, scratch);
                }
            });
        });
    }

    /// The same with b packed.
    fn product_packed(&self, c: &mut [f32], a: Mat, b: &Packed, add: bool) {
        let (rows, cols, width) = (a.rows, b.cols(), gemm::width(self.level));
        let panels = cols.div_ceil(width);
        let each = panels.div_ceil(4 * self.pool.threads()).max(1) * width;
        let to = Shared::new(c, cols);
        self.pool.run(cols.div_ceil(each), &|task, _| {
            let part = task * each..((task + 1) * each).min(cols);
            // SAFETY: each task takes its own columns.
            let c = unsafe { to.part(0..rows, part.clone()) };
            gemm_packed(self.level, c, a, b, part.start, add);
        });
    }

    /// y = x w' + b: rows start from the bias and products are added.
    fn linear(&self, y: &mut [f32], x: Mat, w: &[f32], b: Option<&[f32]>, packed: Option<&Packed>) {
        if let Some(b) = b {
            self.rows([(&mut *y, b.len())], |_, [y], _| y.chunks_exact_mut(b.len()).for_each(|y| y.copy_from_slice(b)));
        }
        match packed {
            Some(packed) => self.product_packed(y, x, packed, b.is_some()),
            None => self.product(y, x, Mat::new(w, x.cols).t(), b.is_some()),
        }
    }

    /// db += column sums of dy
    fn column_sums(&self, db: &mut [f32], dy: &[f32]) {
        let cols = db.len();
        let to = Shared::new(db, cols);
        self.columns(cols, dy.len(), |range| {
            // SAFETY: each task takes its own columns.
            let mut db = unsafe { to.part(0..1, range.clone()) };
            self.level.run(linear::ColumnSums { db: db.whole(), from: range.start, dy, cols });
        });
    }
}

impl Cpu {
    /// Memory for `model`, all zero but its constant tables, and `threads` threads with this CPU's best instructions.
    pub fn new(model: &Model, threads: usize) -> Cpu {
        Cpu::with_level(model, threads, Level::best())
    }

    /// The same with chosen instructions.
    pub fn with_level(model: &Model, threads: usize, level: Level) -> Cpu {
        let mut memory = Memory::default();
        for space in Space::ALL {
            let wanted = match space {
                Space::Grad | Space::ActGrad => !model.back.is_empty(),
                Space::Moment1 | Space::Moment2 => matches!(model.purpose, Use::Train { .. }),
                _ => true,
            };
            *memory.of_mut(space) = Arena::new(if wanted { model.sizes[space as usize] } else { 0 });
        }
        let pool = Pool::new(threads);
        let widest = attend::SCRATCH.max(gemm::SCRATCH).max(model.config.d_model);
        let scratch = (0..pool.threads()).map(|_| Mutex::new(Arena::new(widest))).collect();
        let v = model.config.vocab_size;
        let chunk = if model.losses().is_some() { classify::chunk_rows(model.rows, v) * v } else { 0 };
        let mut cpu = Cpu {
            memory,
            batch: Batch::default(),
            crew: Crew { pool, level, scratch },
            chunk: Arena::new(chunk),
            packed: HashMap::new(),
            keeps_packed: matches!(model.purpose, Use::Decode { .. }),
            partial: vec![0.0; model.sizes[Space::Param as usize].div_ceil(NORM_PART) + model.params.len()],
        };
        super::prepare(model, &mut cpu);
        cpu
    }

    /// Threads that work.
    pub fn threads(&self) -> usize {
        self.crew.pool.threads()
    }
    /// Instructions in use.
    pub fn level(&self) -> Level {
        self.crew.level
    }
    /// A tensor in place, for whoever need not change it.
    pub fn view(&self, slot: Slot) -> &[f32] {
        self.memory.table(slot)
    }
    /// Bytes reserved beside the model's own memory.
    pub fn scratch_bytes(&self) -> usize {
        4 * (self.chunk.len() + self.crew.scratch.iter().map(|s| s.lock().map_or(0, |s| s.len())).sum::<usize>())
    }
}

/// Gradients whose squares are summed in one go: fixes the order of the norm's sum.
const NORM_PART: usize = 1 << 16;

impl Backend for Cpu {
    fn feed(&mut self, batch: &Batch) {
        self.batch.copy_from(batch);
    }
    fn forward(&mut self, ops: &[Op]) {
        for op in ops {
            self.forward_op(op.of(&self.batch));
        }
    }
    fn backward(&mut self, back: &[Back]) {
        for step in back {
            self.backward_op(step.of(&self.batch));
        }
    }
    fn update(&mut self, groups: &[(Range<usize>, f64)], rule: &Rule) -> Report {
        let Cpu { memory, crew, partial, .. } = self;
        let parts = |range: &Range<usize>| range.len().div_ceil(NORM_PART);
        let mut from = 0;
        for (range, _) in groups {
            let g = &memory.grad[range.clone()];
            let sums = &mut partial[from..from + parts(range)];
            from += sums.len();
            let to = Mutex::new(sums);
            crew.pool.run(parts(range), &|task, _| {
                let sum = adamw::sum_of_squares(&g[task * NORM_PART..((task + 1) * NORM_PART).min(g.len())]);
                to.lock().unwrap_or_else(|e| e.into_inner())[task] = sum;
            });
        }
        let norm = partial[..from].iter().sum::<f64>().sqrt();
        if !norm.is_finite() {
            memory.grad.fill(0.0);
            return Report { norm, finite: false };
        }
        let clip = rule.clip(norm) as f32;
        for (range, decay) in groups {
            let [w, g, m, v] = [&mut memory.param, &mut memory.grad, &mut memory.moment1, &mut memory.moment2]
                .map(|memory| (&mut memory[range.clone()], 1));
            let decay = *decay as f32;
            crew.rows([w, g, m, v], |_, [w, g, m, v], _| {
                crew.level.run(adamw::Update { rule, clip, decay, w, g, m, v });
            });
        }
        Report { norm, finite: true }
    }
    fn read(&self, slot: Slot) -> Vec<f32> {
        self.view(slot).to_vec()
    }
    fn sum(&self, slot: Slot) -> f64 {
        self.view(slot).iter().map(|v| f64::from(*v)).sum()
    }
    fn write(&mut self, slot: Slot, values: &[f32]) {
        self.memory.of_mut(slot.space)[slot.range()].copy_from_slice(values);
        if slot.space == Space::Param {
            self.packed.clear();
        }
    }
}

/// The queries, keys and values of one head: `x` is (N,3C), `cache` the sequence's own (positions,2C) if there is one.
fn head<'a>(x: &'a [f32], cache: Option<&'a [f32]>, span: Span, (c, h, n_head): (usize, usize, usize)) -> [Mat<'a>; 3] {
    let (d, rows) = (c / n_head, span.rows);
    let mine = &x[span.row * 3 * c..(span.row + rows) * 3 * c];
    let third = |t: usize| Mat::strided(&mine[t * c + h * d..], rows, d, 3 * c);
    match cache {
        None => [third(0), third(1), third(2)],
        Some(kv) => {
            let keys = |t: usize| Mat::strided(&kv[t * c + h * d..], span.past + rows, d, 2 * c);
            [third(0), keys(0), keys(1)]
        }
    }
}

impl Cpu {
    fn forward_op(&mut self, op: Op) {
        let Cpu { memory: m, batch, crew, chunk, packed, keeps_packed, .. } = self;
        let level = crew.level;
        match op {
            Op::Embed { table, positions, segments, y, token, position } => {
                let cols = y.cols;
                let Memory { konst, param, act, stat, .. } = m;
                let table_of =
                    |slot: Slot| if slot.space == Space::Const { &konst[slot.range()] } else { &param[slot.range()] };
                let token_of = Lookup { table: table_of(table), ids: &batch.tokens };
                let position_of = positions.map(|p| Lookup { table: table_of(p), ids: &batch.positions });
                let segment_of = segments.map(|s| Lookup { table: table_of(s), ids: &batch.segments });
                crew.rows([(&mut act[y.range()], cols)], |rows, [y], _| {
                    embed::forward(y, rows.start, cols, token_of, [position_of, segment_of]);
                });
                for (slot, of) in [(token, Some(token_of)), (position, position_of)] {
                    if let (Some(slot), Some(of)) = (slot, of) {
                        embed::forward(&mut stat[slot.range()], 0, cols, of, [None, None]);
                    }
                }
            }
            Op::Norm { kind, eps, x, gain, offset, y, stats, normalized, scale } => {
                let [gain, offset] = [gain, offset].map(|s| s.map(|s| &m.param[s.range()]));
                let cols = x.cols;
                let [x, y] = pick(&mut m.act, [x, y]);
                let x = &*x;
                crew.rows([(y, cols), (&mut m.stat[stats.range()], 2)], |rows, [y, stats], _| {
                    let x = &x[rows.start * cols..rows.end * cols];
                    level.run(norm::Forward { y, stats, x, gain, offset, kind, eps });
                });
                if let (Some(normalized), Some(scale)) = (normalized, scale) {
                    let [stats, normalized, scale] = pick(&mut m.stat, [stats, normalized, scale]);
                    level.run(norm::Forward { y: normalized, stats, x, gain: None, offset: None, kind, eps });
                    scale.iter_mut().zip(stats.as_chunks::<2>().0).for_each(|(to, s)| *to = 1.0 / s[1]);
                }
            }
            Op::Linear { x, w, b, y } => {
                let bias = b.map(|b| &m.param[b.range()]);
                let weights = &m.param[w.range()];
                let cols = x.cols;
                let [x, y] = pick(&mut m.act, [x, y]);
                let packed = keeps_packed
                    .then(|| &*packed.entry(w.at).or_insert_with(|| Packed::new(level, Mat::new(weights, cols).t())));
                crew.linear(y, Mat::new(x, cols), weights, bias, packed);
            }
            Op::Rotate { x, y, angles, n_head } => {
                let angles = &m.konst[angles.range()];
                let cols = x.cols;
                let [x, y] = pick(&mut m.act, [x, y]);
                let x = &*x;
                crew.rows([(y, cols)], |rows, [y], _| {
                    let x = &x[rows.start * cols..rows.end * cols];
                    rotate::turn(y, x, false, angles, &batch.positions[rows], (cols, n_head), 1.0);
                });
            }
            Op::Attend { qkv, cache, y, lse, n_head, mask, scale, drop, raw, scores, pattern } => {
                let c = y.cols;
                let d = c / n_head;
                let draws = drop.map(|drop| Draws::new(drop, batch.seed)).filter(|d| !d.is_identity());
                let [x, y] = pick(&mut m.act, [qkv, y]);
                let x = &*x;
                let cache_rows = batch.context * 2 * c;
                let kv = cache.map(|slot| {
                    let kv = &mut m.cache[slot.range()];
                    for span in &batch.spans {
                        for i in 0..span.rows {
                            let to = span.sequence * cache_rows + (span.past + i) * 2 * c;
                            kv[to..to + 2 * c].copy_from_slice(&x[(span.row + i) * 3 * c + c..][..2 * c]);
                        }
                    }
                    &*kv
                });
                let watched = [raw, scores, pattern];
                let of = |task: usize| {
                    let (span, h) = (batch.spans[task / n_head], task % n_head);
                    let own = kv.map(|kv| &kv[span.sequence * cache_rows..][..cache_rows]);
                    let [q, k, v] = head(x, own, span, (c, h, n_head));
                    (span, h, Head { q, k, v, span, mask, scale, draws, head: h, n_head })
                };
                let (y, to) = (Shared::new(y, c), Shared::new(&mut m.stat[lse.range()], n_head));
                crew.heads(batch.spans.len(), n_head, &|task, id| {
                    let (span, h, head) = of(task);
                    let rows = span.row..span.row + span.rows;
                    // SAFETY: each task takes one head's columns of one sequence's rows.
                    let (y, lse) = unsafe { (y.part(rows.clone(), h * d..(h + 1) * d), to.part(rows, h..h + 1)) };
                    crew.with_scratch(id, |scratch| attend::forward(level, head, y, lse, scratch));
                });
                if watched.iter().any(Option::is_some) {
                    let lse = m.stat[lse.range()].to_vec();
                    for task in 0..batch.spans.len() * n_head {
                        let (span, h, head) = of(task);
                        let rows = span.row..span.row + span.rows;
                        let slots = watched.map(|s| s.expect("all three scores are watched, or none"));
                        let wide = slots[0].cols / n_head;
                        let mut parts = pick(&mut m.stat, slots).map(|data| MatMut::new(data, n_head * wide));
                        let parts = parts.each_mut().map(|p| Some(p.part(rows.clone(), h * wide..(h + 1) * wide)));
                        let lse = Mat::new(&lse, n_head).rows(rows).cols(h..h + 1);
                        crew.with_scratch(0, |scratch| attend::watch(level, head, parts, lse, scratch));
                    }
                }
            }
            Op::Activate { f, slope, x, y } => {
                let cols = x.cols;
                let [x, y] = pick(&mut m.act, [x, y]);
                let x = &*x;
                crew.rows([(y, cols)], |rows, [y], _| {
                    level.run(activate::Forward { f, slope, y, x: &x[rows.start * cols..rows.end * cols] });
                });
            }
            Op::Add { a, b, y } => {
                let cols = y.cols;
                let [a, b, y] = pick(&mut m.act, [a, b, y]);
                let (a, b) = (&*a, &*b);
                crew.rows([(y, cols)], |rows, [y], _| {
                    let range = rows.start * cols..rows.end * cols;
                    add::forward(y, &a[range.clone()], &b[range]);
                });
            }
            Op::Dropout { x, y, drop } => {
                let (cols, draws) = (x.cols, Draws::new(drop, batch.seed));
                let [x, y] = pick(&mut m.act, [x, y]);
                let x = &*x;
                crew.rows([(y, cols)], |rows, [y], _| {
                    let first = rows.start * cols;
                    dropout::forward(y, &x[first..rows.end * cols], draws, first as u64);
                });
            }
            Op::Gather { x, y } => {
                let cols = x.cols;
                let [x, y] = pick(&mut m.act, [x, y]);
                gather::forward(y, x, &batch.outputs, cols);
            }
            Op::Classify { x, w, b, losses, logits, probs } => {
                let (v, cols) = (w.rows, x.cols);
                let [b, w] = [b, Some(w)].map(|s| s.map(|s| &m.param[s.range()]));
                let x = &m.act[x.range()];
                let rows = losses.rows;
                let each = chunk.len() / v;
                for from in (0..rows).step_by(each) {
                    let part = from..(from + each).min(rows);
                    let chunk = &mut chunk[..part.len() * v];
                    let x = Mat::new(&x[part.start * cols..part.end * cols], cols);
                    crew.linear(chunk, x, w.expect("a head has weights"), b, None);
                    let place = |slot: Slot| slot.at + part.start * slot.cols..slot.at + part.end * slot.cols;
                    if let Some(slot) = logits {
                        m.stat[place(slot)].copy_from_slice(chunk);
                    }
                    let to = &mut m.stat[place(losses)];
                    crew.rows([(to, 1), (chunk, v)], |rows, [losses, chunk], _| {
                        for ((n, loss), row) in rows.zip(losses).zip(chunk.chunks_exact_mut(v)) {
                            let target = classify::target(batch, part.start + n, v);
                            *loss = level.run(classify::Row { logits: row, target, weight: None });
                        }
                    });
                    if let Some(slot) = probs {
                        m.stat[place(slot)].copy_from_slice(chunk);
                    }
                }
            }
        }
    }

    fn backward_op(&mut self, step: Back) {
        let Cpu { memory: m, batch, crew, chunk, .. } = self;
        let level = crew.level;
        let Memory { konst, param, grad, act, act_grad, stat, .. } = m;
        match step.op {
            Op::Embed { table, positions, segments, y, .. } => {
                let dy = &act_grad[step.dy.expect("an embedding has an output").range()];
                let cols = y.cols;
                let tables = [(Some(table), &batch.tokens), (positions, &batch.positions), (segments, &batch.segments)];
                for (table, ids) in tables {
                    let Some(table) = table.filter(|t| t.space == Space::Param) else { continue };
                    let to = Shared::new(&mut grad[table.range()], cols);
                    crew.columns(cols, dy.len(), |range| {
                        let add = |row: usize, dy: &[f32]| {
                            // SAFETY: each task takes its own columns.
                            let mut to = unsafe { to.part(row..row + 1, range.clone()) };
                            to.row(0).iter_mut().zip(dy).for_each(|(to, d)| *to += d);
                        };
                        embed::backward(add, dy, cols, (range.start, range.len()), ids);
                    });
                }
                for to in step.watched.into_iter().flatten() {
                    let [dy, to] = pick(act_grad, [step.dy.expect("as above"), to]);
                    to.copy_from_slice(dy);
                }
            }
            Op::Norm { kind, eps, x, gain, offset, stats, .. } => {
                let (cols, gains) = (x.cols, gain.map(|g| &param[g.range()]));
                let (x, stats) = (&act[x.range()], &stat[stats.range()]);
                let Grad { slot, add } = step.dx[0].expect("a norm has an input");
                let [dy, dx] = pick(act_grad, [step.dy.expect("a norm has an output"), slot]);
                let dy = &*dy;
                crew.rows([(dx, cols)], |rows, [dx], g| {
                    let range = rows.start * cols..rows.end * cols;
                    let (dy, x, stats) = (&dy[range.clone()], &x[range], &stats[2 * rows.start..2 * rows.end]);
                    level.run(norm::BackwardInput { dx, add, dy, x, stats, gain: gains, kind, eps, g });
                });
                if gain.is_some() || offset.is_some() {
                    let mut slots = [gain, offset].map(|s| s.map(|s| s.range()));
                    let parts: [Option<Shared>; 2] = match (slots[0].take(), slots[1].take()) {
                        (Some(g), Some(o)) => {
                            let [g, o] = grad.get_disjoint_mut([g, o]).expect("gain and offset are apart");
                            [Some(Shared::new(g, cols)), Some(Shared::new(o, cols))]
                        }
                        (g, o) => {
                            let is_gain = g.is_some();
                            let one = g.or(o).map(|range| Shared::new(&mut grad[range], cols));
                            if is_gain { [one, None] } else { [None, one] }
                        }
                    };
                    crew.columns(cols, dy.len(), |range| {
                        // SAFETY: each task takes its own columns.
                        let own = parts.each_ref().map(|s| s.as_ref().map(|s| unsafe { s.part(0..1, range.clone()) }));
                        let [dgain, doffset] = own.map(|part| part.map(MatMut::into_whole));
                        level.run(norm::BackwardParams { dgain, doffset, from: range.start, dy, x, stats });
                    });
                }
                if let [Some(normalized), Some(scale), _] = step.watched {
                    let [dy, normalized, scale] = pick(act_grad, [step.dy.expect("as above"), normalized, scale]);
                    for n in 0..scale.len() {
                        let row = n * cols..(n + 1) * cols;
                        let mut sum = 0.0;
                        for i in row {
                            normalized[i] = dy[i] * gains.map_or(1.0, |g| g[i % cols]);
                            sum += normalized[i] * (x[i] - stats[2 * n]) * stats[2 * n + 1];
                        }
                        scale[n] = -sum * stats[2 * n + 1];
                    }
                }
            }
            Op::Linear { x, w, b, y } => {
                let (inner, outer) = (x.cols, y.cols);
                let Grad { slot, add } = step.dx[0].expect("a product has an input");
                let [dy, dx] = pick(act_grad, [step.dy.expect("a product has an output"), slot]);
                let (dy, x) = (&*dy, &act[x.range()]);
                crew.product(dx, Mat::new(dy, outer), Mat::new(&param[w.range()], inner), add);
                crew.product(&mut grad[w.range()], Mat::new(dy, outer).t(), Mat::new(x, inner), true);
                if let Some(b) = b {
                    crew.column_sums(&mut grad[b.range()], dy);
                }
            }
            Op::Rotate { x, angles, n_head, .. } => {
                let (cols, angles) = (x.cols, &konst[angles.range()]);
                let Grad { slot, add } = step.dx[0].expect("a rotation has an input");
                let [dy, dx] = pick(act_grad, [step.dy.expect("a rotation has an output"), slot]);
                let dy = &*dy;
                crew.rows([(dx, cols)], |rows, [dx], _| {
                    let dy = &dy[rows.start * cols..rows.end * cols];
                    rotate::turn(dx, dy, add, angles, &batch.positions[rows], (cols, n_head), -1.0);
                });
            }
            Op::Attend { qkv, cache, y, lse, n_head, mask, scale, drop, .. } => {
                assert!(cache.is_none(), "a cached run has no backward");
                let (c, d) = (y.cols, y.cols / n_head);
                let draws = drop.map(|drop| Draws::new(drop, batch.seed)).filter(|d| !d.is_identity());
                let (x, y, lse) = (&act[qkv.range()], &act[y.range()], &stat[lse.range()]);
                let Grad { slot, add } = step.dx[0].expect("attention has an input");
                let dy_slot = step.dy.expect("attention has an output");
                let wide = step.watched[0].map_or(0, |s| s.cols / n_head);
                let (dy, dx, seen) = match step.watched {
                    [Some(a), Some(b), Some(c)] => {
                        let [dy, dx, a, b, c] = pick(act_grad, [dy_slot, slot, a, b, c]);
                        (dy, dx, Some([a, b, c].map(|s| Shared::new(s, n_head * wide))))
                    }
                    _ => {
                        let [dy, dx] = pick(act_grad, [dy_slot, slot]);
                        (dy, dx, None)
                    }
                };
                let (dy, to) = (&*dy, Shared::new(dx, 3 * c));
                crew.heads(batch.spans.len(), n_head, &|task, id| {
                    let (span, h) = (batch.spans[task / n_head], task % n_head);
                    let [q, k, v] = head(x, None, span, (c, h, n_head));
                    let head = Head { q, k, v, span, mask, scale, draws, head: h, n_head };
                    let rows = span.row..span.row + span.rows;
                    let of =
                        |data, cols: usize, range: Range<usize>| Mat::new(data, cols).rows(rows.clone()).cols(range);
                    let own = h * d..(h + 1) * d;
                    let given = [of(dy, c, own.clone()), of(y, c, own), of(lse, n_head, h..h + 1)];
                    // SAFETY: each task takes one head's columns of one sequence's rows, in each third.
                    let third = |t: usize| unsafe { to.part(rows.clone(), t * c + h * d..t * c + (h + 1) * d) };
                    let watched = match &seen {
                        Some(seen) => seen.each_ref().map(|s| {
                            // SAFETY: likewise one head's scores of one sequence's rows.
                            Some(unsafe { s.part(rows.clone(), h * wide..(h + 1) * wide) })
                        }),
                        None => [None, None, None],
                    };
                    let to = Gradients { dq: third(0), dk: third(1), dv: third(2), watched };
                    crew.with_scratch(id, |scratch| attend::backward(level, head, to, add, given, scratch));
                });
            }
            Op::Activate { f, slope, x, .. } => {
                let cols = x.cols;
                let x = &act[x.range()];
                let Grad { slot, add } = step.dx[0].expect("an activation has an input");
                let [dy, dx] = pick(act_grad, [step.dy.expect("an activation has an output"), slot]);
                let dy = &*dy;
                crew.rows([(dx, cols)], |rows, [dx], _| {
                    let range = rows.start * cols..rows.end * cols;
                    level.run(activate::Backward { f, slope, dx, add, dy: &dy[range.clone()], x: &x[range] });
                });
            }
            Op::Add { y, .. } => {
                for Grad { slot, add } in step.dx.into_iter().flatten() {
                    let [dy, dx] = pick(act_grad, [step.dy.expect("a sum has an output"), slot]);
                    let dy = &*dy;
                    crew.rows([(dx, y.cols)], |rows, [dx], _| {
                        add::backward(dx, add, &dy[rows.start * y.cols..rows.end * y.cols]);
                    });
                }
            }
            Op::Dropout { x, drop, .. } => {
                let (cols, draws) = (x.cols, Draws::new(drop, batch.seed));
                let Grad { slot, add } = step.dx[0].expect("dropout has an input");
                let [dy, dx] = pick(act_grad, [step.dy.expect("dropout has an output"), slot]);
                let dy = &*dy;
                crew.rows([(dx, cols)], |rows, [dx], _| {
                    let first = rows.start * cols;
                    dropout::backward(dx, add, &dy[first..rows.end * cols], draws, first as u64);
                });
            }
            Op::Gather { x, .. } => {
                let Grad { slot, add } = step.dx[0].expect("a gather has an input");
                let [dy, dx] = pick(act_grad, [step.dy.expect("a gather has an output"), slot]);
                gather::backward(dx, add, dy, &batch.outputs, x.cols);
            }
            Op::Classify { x, w, b, losses, .. } => {
                let (v, cols, rows) = (w.rows, x.cols, losses.rows);
                let weights = &param[w.range()];
                let bias = b.map(|b| &param[b.range()]);
                let x = &act[x.range()];
                let Grad { slot, add } = step.dx[0].expect("a head has an input");
                let weight = Some(batch.weight);
                let each = chunk.len() / v;
                for from in (0..rows).step_by(each) {
                    let part = from..(from + each).min(rows);
                    let chunk = &mut chunk[..part.len() * v];
                    let x = Mat::new(&x[part.start * cols..part.end * cols], cols);
                    crew.linear(chunk, x, weights, bias, None);
                    let place = |slot: Slot| slot.at + part.start * slot.cols..slot.at + part.end * slot.cols;
                    crew.rows([(&mut stat[place(losses)], 1), (&mut *chunk, v)], |rows, [losses, chunk], _| {
                        for ((n, loss), row) in rows.zip(losses).zip(chunk.chunks_exact_mut(v)) {
                            let target = classify::target(batch, part.start + n, v);
                            *loss = level.run(classify::Row { logits: row, target, weight });
                        }
                    });
                    let dlogits = Mat::new(chunk, v);
                    crew.product(&mut act_grad[place(slot)], dlogits, Mat::new(weights, cols), add);
                    crew.product(&mut grad[w.range()], dlogits.t(), x, true);
                    if let Some(b) = b {
                        crew.column_sums(&mut grad[b.range()], chunk);
                    }
                    if let Some(to) = step.watched[0] {
                        act_grad[place(to)].copy_from_slice(chunk);
                    }
                }
            }
        }
    }
}

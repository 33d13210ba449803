//! How threads share the work of one op: by rows, by columns, by heads, by panels of a product. No two tasks write
//! the same element and every sum has one order, so the split changes no bit.
#![allow(unsafe_code)] // tasks write disjoint parts of one matrix; each block says why they are disjoint

use super::pool::Pool;
use super::{Table, reserve};
use crate::backend::BackendError;
use crate::kernels::{attend, linear};
use crate::matrix::arena::Arena;
use crate::matrix::codes::Codes;
use crate::matrix::dot::{self, Left, Round, RoundedLayout, RoundedRows};
use crate::matrix::gemm::{self, Packed, gemm_packed, gemm_turned, multiply_codes};
use crate::matrix::view::{Mat, MatMut, Shared};
use crate::matrix::{Precision, Start, Sums};
use crate::model::Model;
use crate::numeric::blocks::Quant;
use crate::numeric::simd::Level;
use crate::ops::{Op, Span};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard};

/// Threads, their instruction set and each one's scratch.
pub struct ThreadTeam {
    pub pool: Pool,
    pub level: Level,
    /// The type of the operands of products.
    pub precision: Precision,
    scratch: Vec<Mutex<Arena>>,
    /// Memory for one chunk of logits.
    chunk: Mutex<Arena>,
    /// Memory for the left operand of a product, rounded.
    rounded: Mutex<Arena>,
}

/// Elements below which waking other threads costs more than it gains. A part that a thread takes has at least half as
/// many.
const SMALL: usize = 16 << 10;

/// Multiply-adds below which it does: a thread does them in the time in which another one wakes. All products of small
/// models for one token are below it, so their decoding stays on one thread.
pub const WORTH: usize = 256 << 10;

/// Rows per thread from which it is cheaper that each thread packs all of b than that rows move between threads.
const OWN_ROWS: usize = 192;

/// Elements of each thread's scratch.
pub fn scratch(model: &Model) -> usize {
    let (heads, wide) = (model.config.heads(), model.config.d_model.max(model.config.d_embed()));
    attend::scratch(heads.d_head.max(heads.d_value)).max(gemm::SCRATCH).max(wide).max(heads.output_cols())
}

/// Elements of the largest left operand, rounded, of products with quantised weights.
pub fn rounded_room(model: &Model) -> usize {
    let room = |op: &Op| match op {
        Op::Linear { x, .. } | Op::Classify { x, .. } => dot::rounded_room(x.rows, x.cols),
        _ => 0,
    };
    model.ops().iter().map(room).max().unwrap_or(0)
}

impl ThreadTeam {
    /// A team of `threads` threads, with scratch for the model's ops and `chunk` elements for logits.
    pub fn new(
        model: &Model,
        threads: usize,
        (level, precision): (Level, Precision),
        chunk: usize,
    ) -> Result<ThreadTeam, BackendError> {
        let pool = Pool::start(threads)?;
        let own = |_| reserve(scratch(model)).map(Mutex::new);
        let scratch = (0..pool.threads()).map(own).collect::<Result<_, _>>()?;
        let room = if precision == Precision::Int8 { rounded_room(model) } else { 0 };
        let [chunk, rounded] = [chunk, room].map(|room| reserve(room).map(Mutex::new));
        Ok(ThreadTeam { pool, level, precision, scratch, chunk: chunk?, rounded: rounded? })
    }

    /// The memory for a chunk of logits.
    pub fn chunk(&self) -> MutexGuard<'_, Arena> {
        self.chunk.lock().unwrap_or_else(|e| e.into_inner())
    }

    pub fn with_scratch(&self, id: usize, f: impl FnOnce(&mut [f32])) {
        f(&mut self.scratch[id].lock().unwrap_or_else(|e| e.into_inner()));
    }

    /// Into how many parts an op on so many elements is cut, `most` at most.
    fn parts(&self, elements: usize, most: usize) -> usize {
        if elements < SMALL { 1 } else { most.min(elements / (SMALL / 2)) }
    }

    /// Splits rows among the threads: `f(rows, [those rows of each output], scratch)`. Outputs are (matrix, columns).
    pub fn rows<const K: usize>(
        &self,
        outputs: [(&mut [f32], usize); K],
        f: impl Fn(Range<usize>, [&mut [f32]; K], &mut [f32]) + Sync,
    ) {
        let elements = outputs.iter().map(|(data, _)| data.len()).sum::<usize>();
        let outputs = outputs.map(|(data, cols)| Shared::new(data, cols));
        let rows = outputs[0].rows();
        let parts = self.parts(elements, 3 * self.pool.threads()).min(rows);
        let each = rows.div_ceil(parts.max(1)).max(1);
        self.pool.run(rows.div_ceil(each), &|task, id| {
            let range = task * each..((task + 1) * each).min(rows);
            // SAFETY: each task takes its own rows of each output.
            let mut parts = outputs.each_ref().map(|m| unsafe { m.part(range.clone(), 0..m.cols()) });
            self.with_scratch(id, |scratch| f(range.clone(), parts.each_mut().map(MatMut::whole), scratch));
        });
    }

    /// Computes rows of some tensors from the same rows of others: `f(rows, those of each output, those of each input,
    /// scratch)`.
    pub fn map_rows<const K: usize, const N: usize>(
        &self,
        outputs: [(&mut [f32], usize); K],
        inputs: [Table; N],
        f: impl Fn(Range<usize>, [&mut [f32]; K], [&[f32]; N], &mut [f32]) + Sync,
    ) {
        self.rows(outputs, |rows, outputs, scratch| {
            let inputs = inputs.map(|(data, cols)| &data[rows.start * cols..rows.end * cols]);
            f(rows, outputs, inputs, scratch);
        });
    }

    /// Splits columns among the threads, in multiples of 64: `f(columns)` until all `cols` columns are done.
    pub fn columns(&self, cols: usize, elements: usize, f: impl Fn(Range<usize>) + Sync) {
        let parts = self.parts(elements, self.pool.threads()).min(cols.div_ceil(64));
        let each = cols.div_ceil(parts.max(1)).next_multiple_of(64);
        self.pool.run(cols.div_ceil(each), &|task, _| f(task * each..((task + 1) * each).min(cols)));
    }

    /// Whether so many multiply-adds are left to the thread that asks.
    fn alone(&self, work: usize) -> bool {
        self.threads(work) == 1
    }

    /// How many threads share so many multiply-adds.
    fn threads(&self, work: usize) -> usize {
        if work < WORTH { 1 } else { self.pool.threads().min(work / (WORTH / 2)) }
    }

    /// Runs `f(task, thread)` for every task; on this thread alone where they are `small`.
    fn tasks(&self, tasks: usize, small: bool, f: &(dyn Fn(usize, usize) + Sync)) {
        if small { (0..tasks).for_each(|task| f(task, 0)) } else { self.pool.run(tasks, f) }
    }

    /// Runs `f(part)` for every part of `elements` elements that are copied.
    pub fn copies(&self, parts: usize, elements: usize, f: impl Fn(usize) + Sync) {
        self.tasks(parts, elements < SMALL, &|part, _| f(part));
    }

    /// Runs `f(task, thread)` for each of `n` heads, of so many columns, of every sequence, numbered sequence by
    /// sequence. Where there are enough sequences, one thread takes all heads of a sequence, because neighbouring heads
    /// write to the same cache lines.
    pub fn heads(&self, spans: &[Span], (n, cols): (usize, usize), f: &(dyn Fn(usize, usize) + Sync)) {
        let scores: usize = spans.iter().map(|span| span.rows * (span.past + span.rows)).sum();
        let small = self.alone(2 * scores * n * cols);
        if !small && spans.len() >= 4 * self.pool.threads() {
            self.pool.run(spans.len(), &|s, id| (s * n..(s + 1) * n).for_each(|task| f(task, id)));
        } else {
            self.tasks(spans.len() * n, small, f);
        }
    }

    /// c = a b, with sums that begin at `start`. With many rows each thread takes its own, the same as in every
    /// other op, and packs b for itself. With fewer, threads take panels of columns, so that each panel is packed
    /// once; where there are too few panels, threads take rows again.
    pub fn product<'a>(&self, c: &mut [f32], a: Mat, b: Mat, start: impl Into<Start<'a>>, sums: Sums) {
        let start = start.into();
        let (rows, cols, width) = (a.rows, b.cols, gemm::width(self.level));
        let (panels, threads) = (cols.div_ceil(width), self.threads(rows * cols * a.cols));
        let to = Shared::new(c, cols);
        let small = threads == 1;
        let own_rows = a.col_stride == 1 && rows >= OWN_ROWS * threads;
        let by_columns = !small && !own_rows && (panels >= 2 * threads || panels.is_multiple_of(threads));
        let (all, each) = if by_columns {
            // a task packs a once for all its columns, so few tasks with many columns
            (cols, panels.div_ceil(2 * threads) * width)
        } else if small {
            (rows, rows.max(1))
        } else {
            (rows, rows.div_ceil(threads).next_multiple_of(6))
        };
        self.pool.run(all.div_ceil(each), &|task, id| {
            let part = task * each..((task + 1) * each).min(all);
            self.with_scratch(id, |scratch| {
                if by_columns {
                    // SAFETY: each task takes its own columns.
                    let c = unsafe { to.part(0..rows, part.clone()) };
                    let how = (start.cols(part.clone()), sums);
                    gemm::product(self.level, self.precision, c, a, b.cols(part), how, scratch);
                } else {
                    // SAFETY: each task takes its own rows.
                    let c = unsafe { to.part(part.clone(), 0..cols) };
                    gemm::product(self.level, self.precision, c, a.rows(part), b, (start, sums), scratch);
                }
            });
        });
    }

    /// c = a b where that is symmetric: half of it is computed.
    pub fn product_symmetric(&self, c: &mut [f32], a: Mat, b: Mat) {
        let side = a.rows;
        let parts = if self.alone(side * side * a.cols) { 1 } else { 4 * self.pool.threads() };
        let each = side.div_ceil(parts).next_multiple_of(gemm::STRIP);
        let to = Shared::new(c, side);
        self.pool.run(side.div_ceil(each), &|task, id| {
            let part = task * each..((task + 1) * each).min(side);
            // SAFETY: each task takes its own columns.
            let c = unsafe { to.part(0..side, part.clone()) };
            self.with_scratch(id, |scratch| {
                gemm::product_above(self.level, self.precision, c, a, b.cols(part.clone()), part.start, scratch);
            });
        });
        gemm::mirror(self.level, c, side);
    }

    /// Packs all of b.
    ///
    /// # Errors
    /// If the system refuses the memory.
    pub fn pack(&self, b: Mat) -> Result<Packed, BackendError> {
        let room = Packed::room(self.level, self.precision, (b.rows, b.cols));
        let mut packed = room.map_err(|refused| BackendError::refused("packing a weight", &refused))?;
        let to = Shared::new(&mut packed.data, packed.panel);
        self.pool.run(to.rows(), &|task, _| {
            // SAFETY: each task takes its own panel.
            let to = unsafe { to.part(task..task + 1, 0..to.cols()) };
            gemm::pack_panel(self.level, self.precision, to.into_whole(), b, task);
        });
        Ok(packed)
    }

    /// Lays weights of blocks for products: parts are some rows of a matrix (out, in) each, as bytes of one type.
    ///
    /// # Errors
    /// If the system refuses the memory.
    pub fn lay(
        &self,
        codes: Codes,
        (outs, ins): (usize, usize),
        parts: &[(Quant, &[u8])],
    ) -> Result<Packed, BackendError> {
        let room = Packed::room_of_codes(self.level, codes, (ins, outs));
        let mut packed = room.map_err(|refused| BackendError::refused("laying a quantised weight", &refused))?;
        let (width, to) = (gemm::width(self.level), Shared::new(&mut packed.data, packed.panel));
        let rows: Vec<(Quant, &[u8])> = parts
            .iter()
            .flat_map(|(quant, bytes)| bytes.chunks_exact(quant.bytes(ins)).map(|row| (*quant, row)))
            .collect();
        self.pool.run(to.rows(), &|task, _| {
            // SAFETY: each task takes its own panel.
            let to = unsafe { to.part(task..task + 1, 0..to.cols()) };
            let columns = &rows[task * width..rows.len().min((task + 1) * width)];
            codes.lay(bytemuck::cast_slice_mut(to.into_whole()), width, columns);
        });
        Ok(packed)
    }

    /// c = a b, or c = a b' if it is `turned`, with b packed before.
    fn product_packed(&self, c: &mut [f32], a: Mat, b: &Packed, start: Start, turned: bool) {
        let (rows, cols) = (a.rows, if turned { b.rows() } else { b.cols() });
        let width = gemm::width(self.level);
        let panels = cols.div_ceil(width);
        let threads = self.threads(rows * cols * a.cols);
        let parts = if threads == 1 { 1 } else { 4 * threads };
        let each = panels.div_ceil(parts).max(1) * width;
        let mut room = None;
        let codes = b.codes().filter(|_| self.precision == Precision::Int8 && a.col_stride == 1);
        let x = codes.map(|codes| {
            let room = room.insert(self.rounded.lock().unwrap_or_else(|e| e.into_inner()));
            let how = RoundedLayout { rows, k: a.cols, codes };
            let room = &mut room[..how.elements()];
            self.rows([(&mut *room, how.tile())], |tiles, [to], _| {
                for (tile, to) in tiles.zip(to.chunks_exact_mut(how.tile())) {
                    self.level.run(Round { to, x: a.rows(how.rows_of(tile)), how });
                }
            });
            Left::Rounded(RoundedRows::new(room, how))
        });
        let to = Shared::new(c, cols);
        self.pool.run(cols.div_ceil(each), &|task, id| {
            let part = task * each..((task + 1) * each).min(cols);
            // SAFETY: each task takes its own columns.
            let c = unsafe { to.part(0..rows, part.clone()) };
            let start = start.cols(part.clone());
            match x {
                Some(x) => multiply_codes(self.level, c, x, b, part.start, start),
                None => self.with_scratch(id, |scratch| {
                    if turned {
                        gemm_turned(self.level, c, a, b, part.start, start, scratch);
                    } else {
                        gemm_packed(self.level, c, a, b, part.start, start, scratch);
                    }
                }),
            }
        });
    }

    /// y = x w' + b: sums start from the bias.
    pub fn linear(&self, y: &mut [f32], x: Mat, w: &[f32], b: Option<&[f32]>, packed: Option<&Packed>) {
        let start = b.map_or(Start::Zero, Start::Row);
        match packed {
            Some(packed) => self.product_packed(y, x, packed, start, false),
            None => self.product(y, x, Mat::new(w, x.cols).t(), start, Sums::Blocks),
        }
    }

    /// dx = dy w, or dx += dy w: what is packed are blocks.
    pub fn linear_back(&self, dx: &mut [f32], dy: Mat, w: Mat, packed: Option<&Packed>, add: bool) {
        match packed {
            Some(packed) => self.product_packed(dx, dy, packed, add.into(), true),
            None => self.product(dx, dy, w, add, Sums::Blocks),
        }
    }

    /// db += column sums of dy
    pub fn column_sums(&self, db: &mut [f32], dy: &[f32]) {
        let cols = db.len();
        let to = Shared::new(db, cols);
        self.columns(cols, dy.len(), |range| {
            // SAFETY: each task takes its own columns.
            let mut db = unsafe { to.part(0..1, range.clone()) };
            self.level.run(linear::ColumnSums { db: db.whole(), from: range.start, dy, cols });
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::Cpu;
    use crate::backend::Backend;
    use crate::config::Config;
    use crate::model::{Mode, Model};
    use crate::ops::{Batch, Span};

    /// Whether other threads are woken follows from the ops and the batch: for a token of a small model they never are,
    /// for prompts and larger models they are. The logits are those of one thread.
    #[test]
    fn a_small_models_token_wakes_no_other_thread() {
        let nano = Config::preset("nano").unwrap();
        let wide = Config { d_model: 512, n_head: 8, n_layer: 1, ..nano.clone() };
        let large = Config { vocab_size: 4096, ..nano.clone() };
        for (config, rows, past, wakes) in [
            (&nano, 1, 0, false),
            (&nano, 1, 63, false),
            (&nano, 2, 10, false),
            (&nano, 40, 0, true),
            (&large, 1, 0, true),
            (&wide, 1, 0, true),
        ] {
            let model = Model::new(config, Mode::Decode { rows: 64, outputs: 64, blocks: 1 }).unwrap();
            let span = Span { row: 0, rows, past, table: 0, valid: past + rows };
            let batch = Batch {
                tokens: (0..rows as u32).collect(),
                positions: (0..rows as u32).map(|i| past as u32 + i).collect(),
                segments: vec![0; rows],
                outputs: (0..rows as u32).collect(),
                spans: vec![span],
                blocks: vec![0],
                ..Batch::default()
            };
            let run = |threads: usize| {
                let mut cpu = Cpu::new(&model, threads);
                for (i, param) in model.params.iter().enumerate() {
                    cpu.fill(param.region, &|at| ((at * 7 + i) % 13) as f32 / 50.0 - 0.1).unwrap();
                }
                cpu.feed(&batch).unwrap();
                cpu.forward(model.ops().part(..0)).unwrap(); // packs the weights
                let before = cpu.team.pool.jobs();
                cpu.forward(model.ops()).unwrap();
                (cpu.team.pool.jobs() - before, cpu.read(model.logits().unwrap()).unwrap())
            };
            let [(_, one), (jobs, three)] = [1, 3].map(run);
            assert_eq!((jobs > 0, one), (wakes, three), "{rows} rows after {past}: {jobs} jobs");
        }
    }
}

//! f32 on this processor: several threads, the best instruction set that was detected, memory reserved once.
//!
//! Every element has one writer and every sum one order, fixed by the problem, so the bits do not depend on the
//! number of threads. There are two ways to divide the work. Where ops are large, all threads share each op
//! (`team`): its rows, its columns, its heads. Where ops are small (`shards`), waiting for each other after every op
//! would cost more than some of the ops. So each thread runs the whole list on a shard of the batch (`BatchShard`,
//! the rows of some of the sequences), and threads meet only at the loss and for the gradients of the parameters,
//! one task per op. `forward` and `backward` are the two matches that call the kernels; both ways use them. Between
//! `turns`, a [`ThreadChooser`] may have fewer threads work than there are.

mod backward;
mod cache;
mod chooser;
mod forward;
mod pool;
pub mod roof;
mod team;
mod turns;
mod update;
mod weights;

use super::{Backend, BackendError, DeviceBytes, Held, Result, SharedWeights, Ticket, Tickets, UpdateReport, pick};
use crate::kernels::classify;
use crate::matrix::Precision;
use crate::matrix::arena::Arena;
use crate::matrix::view::Mat;
use crate::model::{Mode, Model, activations};
use crate::numeric::blocks::Quant;
use crate::numeric::element::{Element, Major, Values};
use crate::numeric::simd::Level;
use crate::ops::limits::Limits;
use crate::ops::{Back, Batch, MemorySpace, Op, Ops, Pass, Passes, Region};
use crate::optimizer::{Change, NORM_PART, ParamGroup, Rule};
use backward::Parameters;
use cache::Cache;
pub use chooser::{ThreadChooser, ThreadTimes};
use pool::Pool;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use team::ThreadTeam;
pub use turns::Clock;
use turns::Turns;
use weights::{Fixed, Weights};

/// Reserves memory for a new [`Cpu`].
fn reserve(len: usize) -> Result<Arena> {
    Arena::reserve(len).map_err(|refused| BackendError::refused("the model and its scratch", &refused))
}

/// The f32 backend.
pub struct Cpu {
    weights: Arc<Weights>,
    /// The tables of positions.
    tables: Arena,
    grad: Arena,
    /// The stack of pushed gradients: the first `pushed` are in use, the others are kept to be used again.
    aside: Vec<Arena>,
    pushed: usize,
    /// Each parameter's gradient, in ascending order of its place.
    sums: Vec<Sum>,
    moment1: Arena,
    moment2: Arena,
    average: Arena,
    /// Scratch in which Muon orthogonalises matrices; reserved at the first such update.
    room: Arena,
    /// One shard with all rows, or one per thread.
    shards: Vec<RwLock<BatchShard>>,
    /// The KV cache: keys and values of open sequences.
    cache: Option<Cache>,
    /// The program that it runs.
    program: u64,
    limits: Limits,
    team: ThreadTeam,
    /// Teams of one thread, for threads that work alone: on shards, and on Muon's matrices.
    solo: Vec<ThreadTeam>,
    partial: Vec<f64>,
    tickets: Tickets,
    /// The report of the last update.
    reported: Option<(UpdateReport, Vec<Change>)>,
    /// Where the number of threads is chosen: the turn that has begun.
    turns: Option<Turns>,
}

/// A parameter's gradient. Several ops may add to it, one after the other.
struct Sum {
    region: Region,
    /// Whether nothing was added to it yet: the first op to add overwrites its memory.
    blank: AtomicBool,
}

/// Some sequences of the batch with their activations. Every shard reserves the regions of the whole batch and
/// touches the first rows of each; untouched memory is only address space.
struct BatchShard {
    /// How many rows of the batch come before this shard's.
    first: usize,
    batch: Batch,
    act: Arena,
    act_grad: Arena,
    stat: Arena,
}

/// The rows of some matrix, and its columns.
type Table<'a> = (&'a [f32], usize);

/// The tensor at `region` of `memory`.
fn table(memory: &[f32], region: Region) -> Table<'_> {
    (&memory[region.range()], region.cols)
}

/// One tensor of a memory to write, and others of it to read. Overlap with the first is a bug in the plan, and panics.
fn table_from<const N: usize>(
    memory: &mut [f32],
    to: Region,
    from: [Region; N],
) -> ((&mut [f32], usize), [Table<'_>; N]) {
    let Range { start, end } = to.range();
    let (before, rest) = memory.split_at_mut(start);
    let (written, after) = rest.split_at_mut(end - start);
    let (before, after) = (&*before, &*after);
    let from = from.map(|region| {
        let range = region.range();
        if range.end <= start {
            (&before[range], region.cols)
        } else if range.start >= end {
            (&after[range.start - end..range.end - end], region.cols)
        } else {
            panic!("regions of one op overlap: {to:?} and {region:?}")
        }
    });
    ((written, to.cols), from)
}

/// Elements of one chunk of logits: of the rows of one shard at most.
fn chunk(model: &Model, threads: usize) -> usize {
    // of the op: a changed program (`Model::with_program`) may have another head
    let head = model.ops().iter().find_map(|op| match *op {
        Op::Classify { w, cap, .. } => Some((w.rows, cap)),
        _ => None,
    });
    head.map_or(0, |(v, cap)| {
        // bounded logits are kept beside their gradient
        let each = if cap > 0.0 { 2 * v } else { v };
        classify::chunk_rows(share(model, shards(model, threads), model.rows), v) * each
    })
}

/// Into how many shards `threads` threads split the sequences: those of a small model (`GRADIENT_INPUTS_LIMIT`), where
/// what a thread works on stays in its caches (docs/decisions.md#small-models-train-with-whole-sequences-per-thread).
fn shards(model: &Model, threads: usize) -> usize {
    let apart = match model.mode {
        Mode::Train { .. } => model.recompute_level == 0 && model.program.keeps_gradient_inputs(),
        Mode::Score { .. } => true,
        Mode::Inspect { .. } | Mode::Layers { .. } | Mode::Decode { .. } => false,
    };
    if apart && activations(&model.ops()) <= model.gradient_inputs_limit { threads.min(model.sequences()) } else { 1 }
}

/// How many of `rows` rows of the batch the largest of some shards has, where sequences are equally long.
fn share(model: &Model, shards: usize, rows: usize) -> usize {
    (rows.div_ceil(model.sequences().max(1)) * model.sequences().div_ceil(shards)).min(rows)
}

/// Elements that all shards touch of their memories: the first rows of each tensor. As tensors take turns in a place,
/// more than one shard alone touches.
fn touched(model: &Model, shards: usize) -> usize {
    let back = model.back().iter().filter_map(Pass::back);
    let regions = model.ops().iter().flat_map(|op| op.touched()).chain(back.flat_map(Back::touched));
    let own = regions.filter(|r| [MemorySpace::Act, MemorySpace::ActGrad, MemorySpace::Stat].contains(&r.space));
    let mut all: Vec<_> = own.map(|r| (r.space as usize, r.at, r.at + share(model, shards, r.rows) * r.cols)).collect();
    all.sort_unstable();
    let (mut sum, mut last) = (0, (0, 0));
    for (space, from, to) in all {
        let from = if space == last.0 { from.max(last.1) } else { from };
        sum += to.saturating_sub(from);
        last = (space, to.max(from));
    }
    shards * sum
}

/// Whether threads sometimes work alone: on shards, and in training on Muon's matrices.
fn alone(model: &Model, threads: usize) -> bool {
    threads > 1 && (shards(model, threads) > 1 || matches!(model.mode, Mode::Train { .. }))
}

impl BatchShard {
    /// Whether it has rows: a batch may have fewer sequences than there are shards.
    fn has_rows(&self) -> bool {
        !self.batch.tokens.is_empty()
    }
    fn memory(&mut self, space: MemorySpace) -> &mut [f32] {
        match space {
            MemorySpace::Act => &mut self.act,
            MemorySpace::ActGrad => &mut self.act_grad,
            _ => &mut self.stat,
        }
    }
    fn read(shard: &RwLock<BatchShard>) -> RwLockReadGuard<'_, BatchShard> {
        shard.read().unwrap_or_else(|e| e.into_inner())
    }
    fn write(shard: &RwLock<BatchShard>) -> RwLockWriteGuard<'_, BatchShard> {
        shard.write().unwrap_or_else(|e| e.into_inner())
    }
}

impl Cpu {
    /// Memory for `model`, all zero except its constant tables, and `threads` threads with the best instruction set
    /// of this CPU.
    pub fn new(model: &Model, threads: usize) -> Cpu {
        Cpu::with(model, threads, Level::best(), Precision::F32)
    }

    /// [`Cpu::new`] with a chosen instruction set and precision of products.
    ///
    /// # Panics
    /// If the system refuses memory or threads, as does `new`. [`Cpu::start`] returns an error instead.
    pub fn with(model: &Model, threads: usize, level: Level, precision: Precision) -> Cpu {
        Cpu::start(model, threads, level, precision).unwrap_or_else(|error| panic!("{error}"))
    }

    /// [`Cpu::with`] that returns an error.
    ///
    /// # Errors
    /// If the system refuses memory or threads.
    pub fn start(model: &Model, threads: usize, level: Level, precision: Precision) -> Result<Cpu> {
        let weights = Arc::new(Weights::new(model, (level, precision))?);
        Cpu::build(model, threads, (level, precision), weights)
    }

    /// [`Cpu::start`] on weights that another backend shares.
    ///
    /// # Errors
    /// As [`Cpu::start`]; if the weights are another model's or another device's, or if their form does not suit the
    /// model, the precision or the instruction set: weights packed for decoding serve neither training nor another
    /// precision or instruction set.
    pub fn start_with(
        model: &Model,
        threads: usize,
        level: Level,
        precision: Precision,
        weights: &SharedWeights,
    ) -> Result<Cpu> {
        let other = || BackendError::OtherWeights { what: "they are in the memory of another device".into() };
        let weights = weights.held::<Weights>().ok_or_else(other)?;
        weights.fit(model, (level, precision))?;
        Cpu::build(model, threads, (level, precision), weights)
    }

    fn build(
        model: &Model,
        threads: usize,
        (level, precision): (Level, Precision),
        weights: Arc<Weights>,
    ) -> Result<Cpu> {
        let is_cache = |place: usize| place == MemorySpace::Cache as usize;
        let fits = |(place, element): &(usize, &Element)| match element {
            Element::F32 => true,
            Element::Bf16 => is_cache(*place),
            _ => false,
        };
        if let Some((_, element)) = model.elements.iter().enumerate().find(|one| !fits(one)) {
            let what = format!("it has no memory of {element}, only of f32");
            return Err(BackendError::NotSupported { op: "this model", what, settings: &[] });
        }
        if precision == Precision::F16 {
            let what = "they are for GPUs that have matrices of f16: here bf16 takes as many bytes".into();
            return Err(BackendError::NotSupported {
                op: "products of f16",
                what,
                settings: &["device gpu", "precision bf16"],
            });
        }
        if precision == Precision::Int8 && matches!(model.mode, Mode::Train { .. }) {
            let what = "they have no gradient: training takes f32 or bf16".into();
            return Err(BackendError::NotSupported { op: "products of int8", what, settings: &["precision bf16"] });
        }
        let arena = |space: MemorySpace, wanted: bool| reserve(if wanted { model.program.size(space) } else { 0 });
        let (differentiates, trains) = (!model.back().is_empty(), matches!(model.mode, Mode::Train { .. }));
        let decodes = matches!(model.mode, Mode::Decode { .. });
        let team = ThreadTeam::new(model, threads, (level, precision), chunk(model, threads))?;
        let shards = shards(model, team.pool.threads());
        let shard = |_| -> Result<RwLock<BatchShard>> {
            let (act, act_grad) = (arena(MemorySpace::Act, true)?, arena(MemorySpace::ActGrad, differentiates)?);
            let stat = arena(MemorySpace::Stat, true)?;
            let shard = BatchShard { first: 0, batch: Batch::default(), act, act_grad, stat };
            if shards > 1 {
                // huge pages would also back the untouched rows, which other shards hold
                [&shard.act, &shard.act_grad, &shard.stat].into_iter().for_each(Arena::small_pages);
            }
            Ok(RwLock::new(shard))
        };
        let sum = |region: &Region| Sum { region: region.grad(), blank: AtomicBool::new(true) };
        let average = arena(MemorySpace::Average, trains)?;
        average.small_pages(); // few runs average, and a huge page would back it with its neighbour
        let mut cpu = Cpu {
            weights,
            tables: arena(MemorySpace::Table, true)?,
            grad: arena(MemorySpace::Grad, differentiates)?,
            aside: vec![],
            pushed: 0,
            sums: model.program.parameters().iter().map(sum).collect(),
            moment1: arena(MemorySpace::Moment1, trains)?,
            moment2: arena(MemorySpace::Moment2, trains)?,
            average,
            room: Arena::default(),
            shards: (0..shards).map(shard).collect::<Result<_>>()?,
            cache: decodes
                .then(|| Cache::new(model.program.size(MemorySpace::Cache), model.element(MemorySpace::Cache)))
                .transpose()?,
            solo: (0..if alone(model, threads) { team.pool.threads() } else { 0 })
                .map(|_| ThreadTeam::new(model, 1, (level, precision), 0))
                .collect::<Result<_>>()?,
            team,
            program: model.program.id(),
            limits: model.limits(),
            partial: vec![0.0; model.program.size(MemorySpace::Param).div_ceil(NORM_PART) + 3 * model.params.len()],
            tickets: Tickets::default(),
            reported: None,
            turns: None,
        };
        cpu.write_tables(model)?;
        Ok(cpu)
    }

    /// The number of threads that work at present.
    pub fn threads(&self) -> usize {
        self.team.pool.threads()
    }

    /// Bytes that `threads` threads need beside the model's own memory: their scratch, what shards touch twice, a chunk
    /// of logits.
    pub fn scratch_bytes(model: &Model, threads: usize) -> usize {
        let crews = if alone(model, threads) { 2 } else { 1 };
        let rounded = if matches!(model.mode, Mode::Decode { .. }) { team::rounded_room(model) } else { 0 };
        let twice = touched(model, shards(model, threads)).saturating_sub(touched(model, 1));
        let beside = chunk(model, threads) + twice + rounded;
        4 * (beside + crews * threads * team::scratch(model))
    }

    /// Bytes of address space that are reserved beside those and never touched: rows that other shards hold, the
    /// plain place of packed weights, most of the threads' stacks. They matter under a limit on address space
    /// (`ulimit -v`).
    pub fn untouched_bytes(model: &Model, threads: usize) -> usize {
        let shards = shards(model, threads);
        let others = (shards * touched(model, 1)).saturating_sub(touched(model, shards));
        let packed = if weights::packs(model, Precision::F32) { model.bytes(MemorySpace::Param) } else { 0 };
        4 * others + packed + threads * pool::STACK
    }

    /// The weights of `model` that may stay quantised where blocks are uploaded.
    pub fn quantised(model: &Model, precision: Precision) -> Vec<Region> {
        weights::quantised(model, precision)
    }

    /// Tests whether the system starts `threads` threads, and ends them again.
    ///
    /// # Errors
    /// If a thread does not start.
    pub fn can_start(threads: usize) -> Result<()> {
        Pool::start(threads).map(drop)
    }

    /// Runs `f` on every shard that has rows, each on one thread; a single shard gets all threads.
    fn on_shards(&mut self, f: impl Fn(&mut BatchShard, Fixed, &ThreadTeam, Option<&mut Cache>) + Sync) {
        let Cpu { weights, tables, shards, cache, team, solo, .. } = self;
        let weights = Fixed { weights, tables };
        if let [shard] = &shards[..] {
            return f(&mut BatchShard::write(shard), weights, team, cache.as_mut());
        }
        team.pool.run(shards.len(), &|task, id| {
            let mut shard = BatchShard::write(&shards[task]);
            if shard.has_rows() {
                f(&mut shard, weights, &solo[id], None);
            }
        });
    }

    /// The f32s of a space that all shards share; `None` for weights and cache, which may be kept otherwise, and for a
    /// space that each shard has.
    fn shared(&self, space: MemorySpace) -> Option<&Arena> {
        match space {
            MemorySpace::Table => Some(&self.tables),
            MemorySpace::Grad => Some(&self.grad),
            MemorySpace::Moment1 => Some(&self.moment1),
            MemorySpace::Moment2 => Some(&self.moment2),
            MemorySpace::Average => Some(&self.average),
            _ => None,
        }
    }

    /// The weights, to change the one at `at`; an error if others hold them too.
    fn own_weights(&mut self, op: &'static str, space: MemorySpace, at: usize) -> Result<&mut Weights> {
        let others = Arc::strong_count(&self.weights) - 1;
        if others > 0 {
            let tensor = self.weights.weight_map().name_at(space, at).unwrap_or("a table").into();
            return Err(BackendError::Shared { op, tensor, others });
        }
        Ok(Arc::get_mut(&mut self.weights).expect("nobody else holds them"))
    }

    /// Stores a weight, given as (in, out), packed if only products read it. Returns whether it did.
    fn pack(&mut self, region: Region, values: Mat) -> Result<bool> {
        if !matches!(region.space, MemorySpace::Const | MemorySpace::Param) {
            return Ok(false);
        }
        self.own_weights("write", region.space, region.at)?;
        Arc::get_mut(&mut self.weights).map_or(Ok(false), |weights| weights.pack(region, values, &self.team))
    }

    /// Keeps a weight as the blocks that it is given in, row after row, if it can. Returns whether it did.
    fn keep_quantised(&mut self, region: Region, parts: &[Values]) -> Result<bool> {
        let blocks = |part: &Values<'_>| match part.element {
            Element::Blocks(quant) if part.major == Major::Rows => Some(quant),
            _ => None,
        };
        let Some(quants) = parts.iter().map(blocks).collect::<Option<Vec<Quant>>>() else { return Ok(false) };
        let parts: Vec<(Quant, &[u8])> = quants.into_iter().zip(parts.iter().map(|part| part.bytes)).collect();
        let whole = |(quant, bytes): &(Quant, &[u8])| {
            region.cols.is_multiple_of(quant.sizes().0) && bytes.len().is_multiple_of(quant.bytes(region.cols))
        };
        let rows = |(quant, bytes): &(Quant, &[u8])| bytes.len() / quant.bytes(region.cols);
        if !matches!(region.space, MemorySpace::Const | MemorySpace::Param)
            || !parts.iter().all(whole)
            || parts.iter().map(rows).sum::<usize>() != region.rows
        {
            return Ok(false);
        }
        self.own_weights("write", region.space, region.at)?;
        Arc::get_mut(&mut self.weights).map_or(Ok(false), |weights| weights.keep_quantised(region, &parts, &self.team))
    }

    /// Packs the weights of products that are not packed yet. Shared weights already are.
    fn pack_all(&mut self) -> Result<()> {
        match Arc::get_mut(&mut self.weights) {
            Some(weights) if !weights.are_packed() => weights.pack_all(&self.team),
            _ => Ok(()),
        }
    }

    /// Writes zeros to the blank gradients that overlap `range`.
    fn fill_blanks(&mut self, range: Range<usize>) {
        let meets = |region: Region| region.at < range.end && range.start < region.range().end;
        for sum in self.sums.iter_mut().filter(|sum| meets(sum.region)) {
            if std::mem::take(sum.blank.get_mut()) {
                self.grad[sum.region.range()].fill(0.0);
            }
        }
    }

    /// Adds gradients that were set aside.
    fn add_aside(&mut self, place: usize, range: Range<usize>) {
        self.fill_blanks(range.clone());
        let from = &self.aside[place][range.clone()];
        self.team.rows([(&mut self.grad[range], 1)], |rows, [to], _| {
            to.iter_mut().zip(&from[rows]).for_each(|(to, from)| *to += from);
        });
    }

    /// Marks all gradients as blank: the next op to add to one overwrites it.
    fn forget(&mut self) {
        self.pushed = 0;
        self.sums.iter_mut().for_each(|sum| *sum.blank.get_mut() = true);
    }

    /// Copies the values of a tensor to `to`.
    fn copy(&self, region: Region, to: &mut [f32]) {
        if matches!(region.space, MemorySpace::Const | MemorySpace::Param) {
            self.weights.copy(region, to);
        } else if region.space == MemorySpace::Grad {
            to.copy_from_slice(&self.grad[region.range()]);
            let range = region.range();
            for blank in self.sums.iter().filter(|sum| sum.blank.load(Relaxed)).map(|sum| sum.region.range()) {
                let (from, end) = (blank.start.max(range.start), blank.end.min(range.end));
                if from < end {
                    to[from - range.start..end - range.start].fill(0.0);
                }
            }
        } else if let (MemorySpace::Cache, Some(cache)) = (region.space, &self.cache) {
            cache.copy(region.range(), to);
        } else if let Some(memory) = self.shared(region.space) {
            to.copy_from_slice(&memory[region.range()]);
        } else {
            if self.shards.len() > 1 {
                to.fill(0.0); // shards hold only the rows of the batch
            }
            self.parts(region, |from, part| to[from..from + part.len()].copy_from_slice(part));
        }
    }

    /// Calls `f` for each shard's part of a tensor, in order, with the index of the part's first element in the tensor.
    fn parts(&self, region: Region, mut f: impl FnMut(usize, &mut [f32])) {
        for shard in &self.shards {
            let mut shard = BatchShard::write(shard);
            let from = shard.first * region.cols;
            let own = if self.shards.len() > 1 { region.for_batch(&shard.batch) } else { region };
            let own = Region { rows: own.rows.min(region.rows.saturating_sub(shard.first)), ..own };
            f(from, &mut shard.memory(region.space)[own.range()]);
        }
    }

    /// [`Backend::forward`].
    fn run_forward(&mut self, ops: Ops) -> Result<()> {
        BackendError::check_program("forward", ops, self.program)?;
        self.pack_all()?;
        // the head computes logits chunk by chunk: all threads share each shard's
        let body = ops.iter().position(|op| matches!(op, Op::Classify { .. })).unwrap_or(ops.len());
        let (body, head) = (ops.part(..body), ops.part(body..));
        self.on_shards(|shard, weights, team, mut cache| {
            for op in body {
                forward::run(op.for_batch(&shard.batch), weights, shard, team, cache.as_deref_mut());
            }
        });
        let weights = Fixed { weights: &self.weights, tables: &self.tables };
        for op in head {
            for mut shard in self.shards.iter().map(BatchShard::write).filter(|shard| shard.has_rows()) {
                let shard = &mut *shard;
                forward::run(op.for_batch(&shard.batch), weights, shard, &self.team, None);
            }
        }
        Ok(())
    }

    /// [`Backend::backward`].
    fn run_backward(&mut self, back: Passes) -> Result<()> {
        BackendError::check_program("backward", back, self.program)?;
        let is_head = |pass: &Pass| pass.back().is_some_and(|back| back.dy.is_none());
        let head = back.iter().rposition(is_head).map_or(0, |head| head + 1);
        let (head, body) = (back.part(..head), back.part(head..));
        if !self.weights.have_backward() {
            let what = "its weights are packed for running: gradients need a model with its own".into();
            return Err(BackendError::NotSupported { op: "backward", what, settings: &[] });
        }
        let weights = Fixed { weights: &self.weights, tables: &self.tables };
        for pass in head {
            let to = Parameters::new(&mut self.grad, &self.sums);
            for mut shard in self.shards.iter().map(BatchShard::write).filter(|shard| shard.has_rows()) {
                let shard = &mut *shard;
                match pass.for_batch(&shard.batch) {
                    Pass::Recompute(op) => forward::run(op, weights, shard, &self.team, None),
                    Pass::Back(head) => backward::head(head, weights, shard, &to, &self.team),
                }
            }
        }
        if let [shard] = &self.shards[..] {
            let shard = &mut *BatchShard::write(shard);
            let to = Parameters::new(&mut self.grad, &self.sums);
            for pass in body {
                match pass.for_batch(&shard.batch) {
                    Pass::Recompute(op) => forward::run(op, weights, shard, &self.team, None),
                    Pass::Back(back) => {
                        backward::inputs(back, weights, shard, &self.team);
                        backward::parameters(back, shard, &to, &self.team);
                    }
                }
            }
            return Ok(());
        }
        self.on_shards(|shard, weights, team, _| {
            for pass in body {
                match pass.for_batch(&shard.batch) {
                    Pass::Recompute(op) => forward::run(op, weights, shard, team, None),
                    Pass::Back(back) => backward::inputs(back, weights, shard, team),
                }
            }
        });
        let Cpu { shards, team, solo, grad, sums, .. } = self;
        let to = Parameters::new(grad, sums);
        let one = |task: usize, team: &ThreadTeam| {
            let Pass::Back(back) = body[task] else { return };
            for shard in shards.iter().map(BatchShard::read).filter(|shard| shard.has_rows()) {
                backward::parameters(back.for_batch(&shard.batch), &shard, &to, team);
            }
        };
        if body.are_apart() {
            team.pool.run(body.len(), &|task, id| one(task, &solo[id]))
        } else {
            (0..body.len()).for_each(|task| one(task, team))
        }
        Ok(())
    }
}

impl Backend for Cpu {
    fn precision(&self) -> Precision {
        self.team.precision
    }
    fn runs_ahead(&self) -> bool {
        false
    }
    fn thread_choosers(&self) -> &[ThreadChooser] {
        self.choosers()
    }
    fn transferred(&self) -> DeviceBytes {
        DeviceBytes::default()
    }
    fn can_update(&self, _: &[ParamGroup]) -> Result<()> {
        Ok(())
    }
    fn feed(&mut self, batch: &Batch) -> Result<()> {
        self.limits.check(batch)?;
        self.turn_takes(batch.tokens.len());
        let n = self.shards.len();
        if n == 1 {
            BatchShard::write(&self.shards[0]).batch.copy_from(batch);
            return Ok(());
        }
        // sequences may differ in length: a shard takes those whose middle lies in its share of the rows
        let rows = batch.tokens.len();
        let first = |i: usize| batch.spans.partition_point(|s| (2 * s.row + s.rows) * n < 2 * rows * i);
        for (i, shard) in self.shards.iter().enumerate() {
            let shard = &mut *BatchShard::write(shard);
            shard.first = shard.batch.take(batch, first(i)..first(i + 1));
        }
        Ok(())
    }
    fn forward(&mut self, ops: Ops) -> Result<()> {
        self.timed(|cpu| cpu.run_forward(ops))
    }
    fn backward(&mut self, back: Passes) -> Result<()> {
        self.turn_has_gradient();
        self.timed(|cpu| cpu.run_backward(back))
    }
    fn begin_update(&mut self, groups: &[ParamGroup], rule: &Rule, watch: &[Change]) -> Result<()> {
        self.timed(|cpu| cpu.update_parameters(groups, rule, watch))?;
        self.end_turn();
        Ok(())
    }
    fn squares(&mut self, groups: &[ParamGroup]) -> Result<Vec<f64>> {
        self.timed(|cpu| Ok(cpu.sums_of_squares(groups).to_vec()))
    }
    fn restrict_updates(&mut self) {
        [&self.moment1, &self.moment2].into_iter().for_each(Arena::small_pages);
    }
    fn report(&mut self, watch: &mut [Change]) -> Result<UpdateReport> {
        UpdateReport::tell(&self.reported, watch)
    }
    fn push_gradients(&mut self) -> Result<()> {
        if self.aside.len() == self.pushed {
            let own = Arena::reserve(self.grad.len());
            self.aside.push(own.map_err(|refused| BackendError::refused("push_gradients", &refused))?);
        }
        self.fill_blanks(0..self.grad.len());
        std::mem::swap(&mut self.grad, &mut self.aside[self.pushed]);
        let pushed = self.pushed + 1;
        self.forget();
        self.pushed = pushed;
        Ok(())
    }
    fn add_pushed(&mut self) -> Result<()> {
        self.pushed = self.pushed.checked_sub(1).ok_or_else(BackendError::nothing_pushed)?;
        self.timed(|cpu| {
            cpu.add_aside(cpu.pushed, 0..cpu.grad.len());
            Ok(())
        })
    }
    fn add_pushed_to(&mut self, range: Range<usize>) -> Result<()> {
        (0..self.pushed).rev().for_each(|place| self.add_aside(place, range.clone()));
        Ok(())
    }
    fn clear(&mut self) -> Result<()> {
        self.turn_is_void();
        self.forget();
        Ok(())
    }
    fn average(&mut self, groups: &[ParamGroup], decay: f64) -> Result<()> {
        self.average_parameters(groups, decay)
    }
    fn request(&self, region: Region) -> Result<Ticket> {
        Ok(self.tickets.give(region.len(), |to| self.copy(region, to)))
    }
    fn fetch(&self, ticket: Ticket, to: &mut [f32]) -> Result<()> {
        self.tickets.take(ticket, to)
    }
    fn read_to(&self, region: Region, to: &mut [f32]) -> Result<()> {
        self.copy(region, to);
        Ok(())
    }
    fn sum(&self, region: Region) -> Result<f64> {
        let mut sum = 0.0;
        let mut add = |values: &[f32]| values.iter().for_each(|v| sum += f64::from(*v));
        match self.shared(region.space) {
            Some(memory) => add(&memory[region.range()]),
            None if matches!(region.space, MemorySpace::Act | MemorySpace::ActGrad | MemorySpace::Stat) => {
                self.parts(region, |_, part| add(part));
            }
            None => add(&self.read(region)?),
        }
        Ok(sum)
    }
    fn share(&mut self) -> Result<SharedWeights> {
        self.pack_all()?;
        Ok(SharedWeights::new(self.weights.clone()))
    }
    fn fill(&mut self, region: Region, value: &(dyn Fn(usize) -> f32 + Sync)) -> Result<()> {
        let mut values = vec![0.0; region.len()];
        self.team.rows([(&mut values, region.cols)], |rows, [part], _| {
            part.iter_mut().zip(rows.start * region.cols..).for_each(|(x, i)| *x = value(i));
        });
        self.write(region, &values)
    }
    fn upload_parts(&mut self, region: Region, parts: &[Values]) -> Result<()> {
        if self.keep_quantised(region, parts)? { Ok(()) } else { self.write(region, &Values::joined(parts)) }
    }
    fn upload(&mut self, region: Region, values: Values) -> Result<()> {
        if self.keep_quantised(region, &[values])? {
            return Ok(());
        }
        let given = BackendError::widen(region, values)?;
        let inputs_first = match values.major {
            Major::Rows => Mat::new(&given, region.cols).t(),
            Major::Columns => Mat::new(&given, region.rows),
        };
        if self.pack(region, inputs_first)? {
            return Ok(());
        }
        let values = values.major.to_rows(given, region.shape());
        if region.space == MemorySpace::Grad {
            self.fill_blanks(region.range());
        }
        let memory = match region.space {
            MemorySpace::Act | MemorySpace::ActGrad | MemorySpace::Stat => {
                self.parts(region, |from, part| part.copy_from_slice(&values[from..from + part.len()]));
                return Ok(());
            }
            MemorySpace::Table => &mut self.tables,
            MemorySpace::Const => &mut self.own_weights("write", region.space, region.at)?.konst,
            MemorySpace::Param => &mut self.own_weights("write", region.space, region.at)?.param,
            MemorySpace::Grad => &mut self.grad,
            MemorySpace::Moment1 => &mut self.moment1,
            MemorySpace::Moment2 => &mut self.moment2,
            MemorySpace::Average => &mut self.average,
            MemorySpace::Cache => {
                self.cache.as_mut().expect("only decoding has a cache").put(region.at, &values);
                return Ok(());
            }
        };
        memory[region.range()].copy_from_slice(&values);
        Ok(())
    }
}

//! The ops. A transformer is a list of [`Op`]s; each op has a forward and a backward, and a backend runs them.
//! Everything here is plain data: the ops and their operands, [`program`] (a model's lists, checked once), [`Batch`]
//! (the rows that they run on) and [`limits`] (what a batch may hold). What an op computes is in `kernels`.
//!
//! The letters: B batch, T sequence, N = rows (B x T in training), C = d_model, H heads of queries and K of keys and
//! values, D features of each, F = d_ff, V vocabulary. Read `plan` in `model` for the layout of memory.

mod batch;
pub mod limits;
pub mod program;
mod scoring;

pub use batch::{BLOCK, Batch, IGNORE, Span, Target, Terms, cache_blocks};
pub use program::{Ops, Passes, Program};
pub use scoring::Scoring;

use crate::config::{Activation, Constants, DropoutScale, Heads, NormKind};
use std::ops::Range;

/// One of the memory spaces of a backend.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub enum MemorySpace {
    /// In training the frozen parameters.
    Const,
    /// Parameters; in training, those that learn.
    Param,
    /// Gradients of the parameters: the same layout as `Param`.
    Grad,
    /// The optimizer's first moment: the same layout as `Param`.
    Moment1,
    /// The optimizer's second moment: the same layout as `Param`.
    Moment2,
    /// The moving average of the parameters: the same layout as `Param`. It takes no physical memory until it is
    /// first written.
    Average,
    /// Activations.
    Act,
    /// Gradients of the activations, with a layout of their own.
    ActGrad,
    /// Tensors that are f32 whatever the type of the activations: statistics, log-sum-exp, losses, watched tensors.
    Stat,
    /// The KV cache: keys and values of open sequences.
    Cache,
    /// Tables of positions, computed once; as long as the model's sequences may be, and each backend's own.
    Table,
}

impl MemorySpace {
    /// All spaces, in the order of their numbers.
    pub const ALL: [MemorySpace; 11] = {
        use MemorySpace::{Act, ActGrad, Average, Cache, Const, Grad, Moment1, Moment2, Param, Stat, Table};
        [Const, Param, Grad, Moment1, Moment2, Average, Act, ActGrad, Stat, Cache, Table]
    };
}

/// How many of a tensor's rows a batch uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum ActiveRows {
    /// All of them, always: parameters, tables, caches.
    All,
    /// As many as the batch has rows.
    Rows,
    /// As many as the batch has outputs (rows whose logits are wanted).
    Outputs,
}

/// A region of memory: a row-major `rows` x `cols` matrix that begins at element `at` of a memory space.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Region {
    /// The memory space.
    pub space: MemorySpace,
    /// The index of its first element there.
    pub at: usize,
    /// How many rows it has room for.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// How many of the rows a batch uses.
    pub active: ActiveRows,
}

impl Region {
    /// Some elements of a memory space, as one row.
    pub const fn flat(space: MemorySpace, range: Range<usize>) -> Region {
        Region { space, at: range.start, rows: 1, cols: range.end - range.start, active: ActiveRows::All }
    }
    /// The number of elements.
    pub const fn len(self) -> usize {
        self.rows * self.cols
    }
    /// Whether it has no elements.
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }
    /// The indices of its elements in its memory space.
    pub const fn range(self) -> Range<usize> {
        self.at..self.at + self.len()
    }
    /// (rows, cols)
    pub const fn shape(self) -> (usize, usize) {
        (self.rows, self.cols)
    }
    /// The same place in another memory space of the same layout.
    pub const fn in_space(self, space: MemorySpace) -> Region {
        Region { space, ..self }
    }
    /// Whether it is a parameter that learns: frozen ones are among the constants.
    pub fn learns(self) -> bool {
        self.space == MemorySpace::Param
    }
    /// The gradient of this parameter.
    pub const fn grad(self) -> Region {
        self.in_space(MemorySpace::Grad)
    }
    /// The region without the rows that `batch` does not use.
    pub fn for_batch(self, batch: &Batch) -> Region {
        let rows = match self.active {
            ActiveRows::All => self.rows,
            ActiveRows::Rows => batch.tokens.len(),
            ActiveRows::Outputs => batch.outputs.len(),
        };
        debug_assert!(rows <= self.rows, "{rows} rows in a tensor of {}", self.rows);
        Region { rows, ..self }
    }
}

/// A dropout: its probability, its scaling, and its stream of random draws.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct DropoutSpec {
    /// Probability of dropping an element.
    pub p: f32,
    /// How the kept elements are scaled.
    pub scale: DropoutScale,
    /// The number of this dropout in the model, which separates its draws from those of the others.
    pub site: u64,
}

/// The instruction set of a transformer. `forward` computes `y` from the other operands; `backward` computes their
/// gradients from that of `y`. Optional operands marked *watched* add a pass that fills them, and never change how
/// `y` is computed.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Op {
    /// `y[n] = table[token n] + positions[position n] + segments[segment n]`
    Embed {
        /// (V,C)
        table: Region,
        /// (T,C), trained or constant
        positions: Option<Region>,
        /// (S,C)
        segments: Option<Region>,
        /// (N,C)
        y: Region,
        /// watched: the token's row alone, (N,C)
        token: Option<Region>,
        /// watched: the position's row alone, (N,C)
        position: Option<Region>,
    },
    /// y = (x - mean) / deviation * gain + offset, row by row
    Norm {
        /// how the deviation is defined
        kind: NormKind,
        /// added to variance or deviation
        eps: f32,
        /// (N,C)
        x: Region,
        /// (1,C)
        gain: Option<Region>,
        /// (1,C)
        offset: Option<Region>,
        /// whether the gain is stored less one
        less_one: bool,
        /// (N,C)
        y: Region,
        /// saved for the backward: mean and 1 / deviation, (N,2)
        stats: Region,
        /// watched: x normalised, before gain and offset, (N,C)
        normalized: Option<Region>,
        /// watched: the deviation, (N,1)
        scale: Option<Region>,
    },
    /// y = x w' + b, with w stored (out, in)
    Linear {
        /// (N,I)
        x: Region,
        /// (O,I)
        w: Region,
        /// (1,O)
        b: Option<Region>,
        /// (N,O)
        y: Region,
    },
    /// y = x with queries and keys normalised, each head by itself or all heads together (Henry et al. 2020)
    QkNorm {
        /// how the deviation is defined
        kind: NormKind,
        /// added to variance or deviation
        eps: f32,
        /// (N, (H + 2K) D)
        x: Region,
        /// (1,D), or (1, H D) where all heads are normalised together
        q_gain: Option<Region>,
        /// (1,D), or (1, K D)
        k_gain: Option<Region>,
        /// whether the gains are stored less one
        less_one: bool,
        /// whether all heads are normalised together
        together: bool,
        /// (N, (H + 2K) D)
        y: Region,
        /// saved for the backward: mean and 1 / deviation of each norm, (N, 2 (H + K)), or (N,4)
        stats: Region,
        /// which columns are which
        heads: Heads,
    },
    /// y = x with queries and keys rotated by their position (RoPE)
    Rotate {
        /// (N, (H + 2K) D)
        x: Region,
        /// (N, (H + 2K) D)
        y: Region,
        /// cosine and sine of every position's angles, (T,R) (Su et al. 2021): the first R features of each head turn
        angles: Region,
        /// which columns are which
        heads: Heads,
    },
    /// y = softmax(scores of q k' + mask) v, head by head. With a KV cache, keys and values are stored there first, and
    /// queries attend to the whole sequence so far.
    Attend {
        /// (N, (H + 2K) D): queries, keys, values
        qkv: Region,
        /// (blocks x 64, K (D + D_v)): keys and values, block by block (`attend::CacheBlocks`)
        cache: Option<Region>,
        /// (N, H D)
        y: Region,
        /// saved for the backward: log of the sum of exponentials, (N,H)
        lse: Region,
        /// which columns are which
        heads: Heads,
        /// which keys a query sees, and what a score is made of
        scoring: Scoring,
        /// dropout of the attention weights
        drop: Option<DropoutSpec>,
        /// watched: scores before the mask, (N,H T)
        raw: Option<Region>,
        /// watched: scores after the mask, (N,H T)
        scores: Option<Region>,
        /// watched: attention weights, (N,H T)
        pattern: Option<Region>,
    },
    /// y = f(x)
    Activate {
        /// f
        f: Activation,
        /// its constants
        k: Constants,
        /// (N,F)
        x: Region,
        /// (N,F)
        y: Region,
    },
    /// y = a + scale b
    Add {
        /// (N,C)
        a: Region,
        /// (N,C)
        b: Region,
        /// (N,C)
        y: Region,
        /// 1, except for an adapter, or where the model scales what its sub-layers add
        scale: f32,
    },
    /// y = factor x, or cap tanh(factor x / cap)
    Scale {
        /// (N,C)
        x: Region,
        /// (N,C)
        y: Region,
        /// the factor
        factor: f32,
        /// bound of the result; 0 for none
        cap: f32,
    },
    /// y = a b, element by element
    Multiply {
        /// (N,F)
        a: Region,
        /// (N,F)
        b: Region,
        /// (N,F)
        y: Region,
    },
    /// y = x with some elements dropped; in evaluation, y = x (times 1 - p if training does not rescale)
    Dropout {
        /// (N,C)
        x: Region,
        /// (N,C)
        y: Region,
        /// how
        drop: DropoutSpec,
    },
    /// `y[i] = x[outputs[i]]`: the rows whose logits are wanted
    Gather {
        /// (N,C)
        x: Region,
        /// (outputs,C)
        y: Region,
    },
    /// `losses[n] = -log softmax(bounded(x w' + b))[target n]`: head and cross-entropy as one op, in chunks of rows, so
    /// that the logits of all rows are never in memory at once
    Classify {
        /// (N,C)
        x: Region,
        /// (V,C), the token table itself where the head is tied
        w: Region,
        /// (1,V)
        b: Option<Region>,
        /// bound of the logits, cap tanh(logit / cap); 0 for none
        cap: f32,
        /// (N,1); 0 where the row has no target
        losses: Region,
        /// watched: (N,V)
        logits: Option<Region>,
        /// watched: softmax of the logits, (N,V)
        probs: Option<Region>,
    },
}

/// How many elements the norms of queries and of keys take each.
pub const fn qk_widths(heads: Heads, together: bool) -> [usize; 2] {
    if together { [heads.query_cols(), heads.key_cols()] } else { [heads.d_head, heads.d_head] }
}

/// How many norms of queries and keys a row has.
pub const fn qk_norms(heads: Heads, together: bool) -> usize {
    if together { 2 } else { heads.n_head + heads.n_kv_head }
}

/// What an op does with an operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// A parameter, a table or a KV cache: its memory is never shared with another tensor.
    Own,
    /// Reads it; `saved` if its backward reads it again.
    Read {
        /// needed by the backward
        saved: bool,
    },
    /// Writes it; `saved` if its backward reads it again.
    Write {
        /// needed by the backward
        saved: bool,
    },
    /// Fills it in [`Mode::Inspect`](crate::model::Mode::Inspect) only.
    Watched,
}

impl Op {
    /// The op's name in listings.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Embed { .. } => "embed",
            Op::Norm { .. } => "norm",
            Op::Linear { .. } => "linear",
            Op::QkNorm { .. } => "qk-norm",
            Op::Rotate { .. } => "rotate",
            Op::Attend { .. } => "attend",
            Op::Activate { .. } => "activate",
            Op::Add { .. } => "add",
            Op::Multiply { .. } => "multiply",
            Op::Scale { .. } => "scale",
            Op::Dropout { .. } => "dropout",
            Op::Gather { .. } => "gather",
            Op::Classify { .. } => "classify",
        }
    }

    /// Every operand with its access, for planners, printers, checkers and backends; allocates nothing. Watched
    /// operands come in the order of [`Back::watched`].
    pub fn operands(&mut self) -> impl Iterator<Item = (Access, &mut Region)> {
        const READ: Access = Access::Read { saved: false };
        const SAVED: Access = Access::Read { saved: true };
        const WRITE: Access = Access::Write { saved: false };
        const KEPT: Access = Access::Write { saved: true };
        use Access::{Own, Watched};
        type Each<T, const N: usize> = [Option<(Access, T)>; N];
        let (fixed, optional): (Each<&mut Region, 3>, Each<&mut Option<Region>, 4>) = match self {
            Op::Embed { table, positions, segments, y, token, position } => (
                [Some((Own, table)), Some((WRITE, y)), None],
                [Some((Own, positions)), Some((Own, segments)), Some((Watched, token)), Some((Watched, position))],
            ),
            Op::Norm { x, gain, offset, y, stats, normalized, scale, .. } => (
                [Some((SAVED, x)), Some((WRITE, y)), Some((KEPT, stats))],
                [Some((Own, gain)), Some((Own, offset)), Some((Watched, normalized)), Some((Watched, scale))],
            ),
            Op::Linear { x, w, b, y } => {
                // the input of a frozen matrix is needed for no gradient
                let read = Access::Read { saved: w.learns() };
                ([Some((read, x)), Some((Own, w)), Some((WRITE, y))], [Some((Own, b)), None, None, None])
            }
            Op::QkNorm { x, q_gain, k_gain, y, stats, .. } => (
                [Some((SAVED, x)), Some((WRITE, y)), Some((KEPT, stats))],
                [Some((Own, q_gain)), Some((Own, k_gain)), None, None],
            ),
            Op::Rotate { x, y, angles, .. } => {
                ([Some((READ, x)), Some((WRITE, y)), Some((Own, angles))], [const { None }; 4])
            }
            Op::Dropout { x, y, .. } | Op::Gather { x, y } => {
                ([Some((READ, x)), Some((WRITE, y)), None], [const { None }; 4])
            }
            Op::Attend { qkv, cache, y, lse, raw, scores, pattern, .. } => (
                [Some((SAVED, qkv)), Some((KEPT, y)), Some((KEPT, lse))],
                [Some((Own, cache)), Some((Watched, raw)), Some((Watched, scores)), Some((Watched, pattern))],
            ),
            Op::Activate { x, y, .. } => ([Some((SAVED, x)), Some((WRITE, y)), None], [const { None }; 4]),
            Op::Add { a, b, y, .. } => ([Some((READ, a)), Some((READ, b)), Some((WRITE, y))], [const { None }; 4]),
            Op::Multiply { a, b, y } => ([Some((SAVED, a)), Some((SAVED, b)), Some((WRITE, y))], [const { None }; 4]),
            Op::Scale { x, y, cap, .. } => {
                // the slope of the bound is computed from the result
                let write = Access::Write { saved: *cap > 0.0 };
                ([Some((READ, x)), Some((write, y)), None], [const { None }; 4])
            }
            Op::Classify { x, w, b, losses, logits, probs, .. } => (
                [Some((SAVED, x)), Some((Own, w)), Some((WRITE, losses))],
                [Some((Own, b)), Some((Watched, logits)), Some((Watched, probs)), None],
            ),
        };
        let optional = optional.into_iter().flatten().filter_map(|(access, region)| Some((access, region.as_mut()?)));
        fixed.into_iter().flatten().chain(optional)
    }

    /// Its parameters that learn.
    pub fn parameters(mut self) -> Vec<Region> {
        let own = |(access, region): (_, &mut Region)| (access == Access::Own && region.learns()).then_some(*region);
        self.operands().filter_map(own).collect()
    }

    /// Whether it has parameters that learn.
    pub fn learns(mut self) -> bool {
        self.operands().any(|(access, region)| access == Access::Own && region.learns())
    }

    /// The op with only the rows that `batch` uses.
    pub fn for_batch(mut self, batch: &Batch) -> Op {
        self.operands().for_each(|(_, region)| *region = region.for_batch(batch));
        self
    }

    /// Every tensor that it reads or writes, but tables and frozen parameters.
    pub fn touched(mut self) -> Vec<Region> {
        let fixed = [MemorySpace::Table, MemorySpace::Const];
        self.operands().map(|(_, region)| *region).filter(|region| !fixed.contains(&region.space)).collect()
    }

    /// The tensor that the op computes.
    pub fn output(&self) -> Region {
        let mut op = *self;
        let written =
            |(access, region): (Access, &mut Region)| matches!(access, Access::Write { .. }).then_some(*region);
        op.operands().find_map(written).expect("every op writes a tensor")
    }

    /// The activations the op's output is differentiable in, in the order of [`Back::dx`].
    pub fn inputs(&self) -> [Option<Region>; 2] {
        let mut op = *self;
        let read = |(access, region): (Access, &mut Region)| matches!(access, Access::Read { .. }).then_some(*region);
        let mut all = op.operands().filter_map(read);
        [all.next(), all.next()]
    }

    /// Floating-point operations of the forward for `rows` rows that each attend to `keys` keys: two per
    /// multiply-add, matrix products only. The backward does twice as many.
    pub fn flops(&self, rows: usize, keys: usize) -> f64 {
        let product = |a: usize, b: usize| 2.0 * rows as f64 * a as f64 * b as f64;
        match *self {
            Op::Linear { w, .. } | Op::Classify { w, .. } => product(w.rows, w.cols),
            Op::Attend { heads, scoring, .. } => product(heads.query_cols() + heads.output_cols(), scoring.keys(keys)),
            _ => 0.0,
        }
    }
}

/// The gradient of an operand: its region, and whether this op is the first to write it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Grad {
    /// Its region.
    pub region: Region,
    /// Whether another op wrote it before: then add, otherwise overwrite. So nothing needs to be set to zero first.
    pub add: bool,
}

/// The backward of an op: the op with the regions of its gradients, made by `model::plan`. Gradients of parameters
/// are at
/// [`Region::grad`] and are always added to.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Back {
    /// The op's index in the forward list.
    pub index: usize,
    /// The op.
    pub op: Op,
    /// Gradient of its output; `None` for the loss.
    pub dy: Option<Region>,
    /// Gradients of [`Op::inputs`]; `None` where one is not needed, or shares the memory of `dy` (a residual sum).
    pub dx: [Option<Grad>; 2],
    /// Gradients of the watched operands, in [`Mode::Inspect`](crate::model::Mode::Inspect).
    pub watched: [Option<Region>; 3],
}

impl Back {
    /// Every tensor that it reads or writes, but tables and frozen parameters.
    pub fn touched(&self) -> Vec<Region> {
        let operands = self.op.touched();
        let grads = operands.iter().filter(|region| region.space == MemorySpace::Param).map(|region| region.grad());
        let given = self.dy.into_iter().chain(self.dx.into_iter().flatten().map(|dx| dx.region));
        let watched = self.watched.into_iter().flatten();
        operands.iter().copied().chain(grads).chain(given).chain(watched).collect()
    }

    /// The same with only the rows that `batch` uses.
    pub fn for_batch(mut self, batch: &Batch) -> Back {
        self.op = self.op.for_batch(batch);
        let regions = self.dy.iter_mut().chain(self.dx.iter_mut().flatten().map(|g| &mut g.region));
        regions.chain(self.watched.iter_mut().flatten()).for_each(|region| *region = region.for_batch(batch));
        self
    }
}

/// One entry of the backward pass.
#[allow(clippy::large_enum_variant)] // a few hundred of them, copied one at a time
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Pass {
    /// The forward of an op whose output was not kept, run again on the same operands: the same bits.
    Recompute(Op),
    /// The backward of an op.
    Back(Back),
}

impl Pass {
    /// The backward of an op, if it is one.
    pub fn back(&self) -> Option<&Back> {
        if let Pass::Back(back) = self { Some(back) } else { None }
    }

    /// The entry with only the rows that `batch` uses.
    pub fn for_batch(self, batch: &Batch) -> Pass {
        match self {
            Pass::Recompute(op) => Pass::Recompute(op.for_batch(batch)),
            Pass::Back(back) => Pass::Back(back.for_batch(batch)),
        }
    }
}

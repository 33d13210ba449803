//! A run of which little is kept, and every tensor computed again when somebody looks.
//!
//! What is kept is the residual stream before each block, and the tensors of the block that was looked at last. Another block's tensors come
//! from running its slice of the list once more on the stream before it: same ops, same inputs, same bits. Scores of attention, (T,T) in each
//! head, are never kept: a [`Sheet`] computes what is looked at from queries, keys and the log of the sum of exponentials. Nor are logits:
//! the head runs on the rows that are asked for.
//!
//! So a trace of T tokens takes memory for T, not for T squared, and opening a block costs what the block costs.

use super::interventions::{IntervenedRow, InterveningBackend, NumberAction, NumberPlace, PlacedSteps, ResolvedSteps};
use super::sheet::{AttentionHead, Sheet, float_bytes};
use super::{Labelled, SummaryRow, Trace, TraceError, fits, heads_in_rows, labelled, shape, unknown};
use crate::names::{self, Derived};
use limpid_base::budget::Budget;
use limpid_core::backend::Backend;
use limpid_core::kernels::attend::Stage;
use limpid_core::kernels::classify::Row;
use limpid_core::model::{Axes, Component, Mode, Model, Module};
use limpid_core::numeric::simd::Level;
use limpid_core::ops::{ActiveRows, Batch, Op, Region, Span, Terms};
use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

/// Rows that the head runs on at once.
pub const OUTPUTS: usize = 64;

/// The names of the three matrices of a head, by [`Stage::ALL`].
pub const STAGES: [&str; 3] = ["hook_raw_scores", "hook_attn_scores", "hook_pattern"];

/// One run, block by block.
pub struct LayerTrace {
    /// As it runs.
    model: Model,
    /// With a place for every tensor: for names, formulas and shapes.
    named: Model,
    backend: Box<dyn Backend>,
    batch: Batch,
    /// What changes the run, and what that is for each sequence.
    steps: Option<Arc<ResolvedSteps>>,
    placed: Vec<PlacedSteps>,
    length: usize,
    /// How many blocks have run.
    ran: usize,
    /// The block whose tensors the backend's memory holds.
    held: Option<usize>,
    /// Tensors that were looked at, the last one last, and whether their features lie as in memory (`model::FeatureOrder`).
    seen: Vec<(Arc<Labelled>, bool)>,
    /// Bytes that these may take.
    seen_bytes: usize,
    /// What may be spent on the answer that is being computed.
    budget: Arc<Budget>,
}

/// Where a tensor comes from.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Place {
    /// Ids, parameters, the embedding, the stream between blocks: always there.
    Kept,
    /// The stream after a block: there once the block has run.
    After(usize),
    /// A block must have run last.
    Block(usize),
    /// One of a block's matrices of scores.
    Scores(usize, Stage),
    /// The head: computed row by row.
    Head,
}

/// What a model that runs block by block is built for.
pub fn mode(sequences: usize, length: usize) -> Mode {
    Mode::Layers { batch: sequences, context: length, outputs: OUTPUTS }
}

impl LayerTrace {
    /// A run of `batch` that has embedded its tokens. `model` was built for [`mode`] and `backend` for it; tensors that were looked at may
    /// take `seen` bytes beside the backend's memory.
    ///
    /// # Errors
    /// As [`Trace::run`].
    pub fn start(model: Model, backend: Box<dyn Backend>, batch: Batch, seen: usize) -> Result<LayerTrace, TraceError> {
        LayerTrace::start_with(model, backend, (batch, None), seen)
    }

    /// [`LayerTrace::start`] of a run that is changed on its way.
    ///
    /// # Errors
    /// As there, and if the steps do not fit the batch.
    pub fn start_with(
        model: Model,
        backend: Box<dyn Backend>,
        (batch, steps): (Batch, Option<Arc<ResolvedSteps>>),
        seen: usize,
    ) -> Result<LayerTrace, TraceError> {
        if !matches!(model.mode, Mode::Layers { .. }) {
            return Err(TraceError::NotForInspection { needed: "Layers", found: format!("{:?}", model.mode) });
        }
        let length = fits(&model, &batch, false)?;
        let all = Mode::Inspect { batch: batch.spans.len(), context: length };
        let named = Model::tuned(&model.config, all, &model.tuning);
        let named = named.map_err(|error| TraceError::Batch { what: error.to_string() })?;
        let mut backend = InterveningBackend::around(backend, steps.as_ref(), &batch)?;
        backend.feed(&batch)?;
        backend.forward(model.program.forward(..model.blocks[0].start))?;
        let (seen_bytes, budget, seen) = (seen, Arc::default(), vec![]);
        let placed = placed(steps.as_deref(), &batch);
        let (ran, held) = (0, None);
        Ok(LayerTrace { model, named, backend, batch, steps, placed, length, ran, held, seen, seen_bytes, budget })
    }

    /// From now on this is what may be spent: bytes of tensors that are computed again, and a step for every row that a block or the head
    /// runs on. What it refuses is a [`TraceError::Spent`], after which everything can be asked for again. At first there is no bound.
    pub fn spend(&mut self, budget: &Arc<Budget>) {
        self.budget = budget.clone();
    }

    /// The model, with a place for every tensor: for names, formulas and shapes.
    pub fn names(&self) -> &Model {
        &self.named
    }

    /// The batch.
    pub fn batch(&self) -> &Batch {
        &self.batch
    }

    /// Runs the next block; its number, or none after the last.
    ///
    /// # Errors
    /// As [`Backend::forward`]; the block can be run again.
    pub fn step(&mut self) -> Result<Option<usize>, TraceError> {
        if self.ran == self.model.blocks.len() {
            return Ok(None);
        }
        self.run(self.ran)?;
        self.ran += 1;
        Ok(self.held)
    }

    /// Begins again before a block, with a batch and its residual stream there. Its tokens are equally long as before, and no more of them.
    pub(super) fn restart(&mut self, batch: Batch, block: usize, stream: &[f32]) -> Result<(), TraceError> {
        fits(&self.model, &batch, false)?;
        let name = self.stream(block);
        let before = self.model.tensor(&name).ok_or_else(|| unknown(&self.named, &name))?.region;
        (self.placed, self.batch) = (placed(self.steps.as_deref(), &batch), batch);
        self.backend.feed(&self.batch)?;
        self.backend.write(before.for_batch(&self.batch), stream)?;
        (self.ran, self.held) = (block, None);
        self.seen.clear();
        Ok(())
    }

    /// A tensor, a parameter, or what is derived of them. Blocks before it run if they have not; its own runs again if another one has
    /// run since.
    ///
    /// # Errors
    /// As [`Trace::get`]; gradients are not computed.
    pub fn get(&mut self, name: &str) -> Result<Arc<Labelled>, TraceError> {
        self.remembered(name, false)
    }

    /// The line of a tensor, as [`Trace::row`].
    ///
    /// # Errors
    /// As [`LayerTrace::get`].
    pub fn row(&mut self, name: &str) -> Result<SummaryRow, TraceError> {
        let tensor = self.get(name)?;
        Ok(SummaryRow::new(&self.named, &self.batch, &tensor))
    }

    /// The axes of a tensor and their sizes, the rows of each head together ([`Labelled::heads_first`]), without computing it; also of
    /// `cos(NAME)`, the cosines of its rows.
    ///
    /// # Errors
    /// If there is no such tensor, or it has no rows.
    pub fn shape(&self, name: &str) -> Result<(Vec<&'static str>, Vec<usize>), TraceError> {
        if let Some(of) = rows_of(name)? {
            let (mut axes, mut sizes) = self.shape(of)?;
            let [.., rows, cols] = &mut axes[..] else {
                return Err(TraceError::NoRows { name: of.into(), axes: axes.join(" ") });
            };
            *cols = rows;
            if let [.., rows, cols] = &mut sizes[..] {
                *cols = *rows;
            }
            return Ok((axes, sizes));
        }
        let size = (self.batch.spans.len(), self.length);
        let (mut axes, mut sizes) = shape(&self.named, name, size).ok_or_else(|| unknown(&self.named, name))?;
        if let Some(head) = heads_in_rows(&axes) {
            axes.swap(head - 1, head);
            sizes.swap(head - 1, head);
        }
        Ok((axes, sizes))
    }

    /// The matrix of a tensor's last two axes, at an index of the others; of a tensor with the rows of each head together
    /// ([`Labelled::heads_first`]); also of `cos(NAME)`. `rows` are those that will be looked at: logits are computed, and parameters read, for these
    /// alone.
    ///
    /// # Errors
    /// As [`LayerTrace::get`], and if the index is outside.
    pub fn sheet(&mut self, name: &str, index: &[usize], rows: Option<Range<usize>>) -> Result<Sheet, TraceError> {
        let (axes, shape) = self.shape(name)?;
        if let Some(of) = rows_of(name)? {
            return Ok(Sheet::cosines(self.sheet(of, index, None)?));
        }
        let place = self.place(name)?;
        let leading = shape.len().saturating_sub(2);
        if index.len() != leading || index.iter().zip(&shape).any(|(i, n)| i >= n) {
            let (axes, shape) = (&axes[..leading], &shape[..leading]);
            let what =
                format!("`{name}` is a matrix for each of {axes:?}, of which there are {shape:?}; found {index:?}");
            return Err(TraceError::Batch { what });
        }
        match place {
            Place::Scores(block, stage) => {
                let head = self.head(block, index[0], index[1])?;
                // what has no place of its own are the products
                let own = self.named.tensor(name).is_some();
                let scoring = if own { head.scoring } else { head.scoring.products() };
                Ok(Sheet::scores(AttentionHead { scoring, ..head }, stage))
            }
            Place::Head if shape.len() == 3 => {
                let first = index[0] * self.length;
                let rows = rows.unwrap_or(0..self.length);
                let part = rows.start.min(self.length)..rows.end.min(self.length);
                let values = self.head_rows(name, first + part.start..first + part.end)?;
                Ok(Sheet::some_rows(values, part.start, [shape[1], shape[2]]))
            }
            _ => match (self.named.param(name).filter(|param| param.is_matrix() && param.order.is_none()), rows) {
                (Some(param), Some(rows)) if rows.end <= shape[0] => {
                    let region = param.region;
                    self.take(name, [rows.len(), region.cols])?;
                    let values = self.table_rows(region, rows.clone())?;
                    Ok(Sheet::some_rows(values, rows.start, [region.rows, region.cols]))
                }
                _ => Ok(Sheet::of(&self.get(name)?, index)),
            },
        }
    }

    /// Everything that the scores of a head of a block are computed from.
    ///
    /// # Errors
    /// As [`LayerTrace::get`].
    pub fn head(&mut self, block: usize, sequence: usize, head: usize) -> Result<AttentionHead, TraceError> {
        let ops = self.named.ops().iter().enumerate().skip(self.named.blocks[block].start);
        let attention = ops.take(self.named.blocks[block].len()).find_map(|(at, op)| match *op {
            Op::Attend { qkv, heads, scoring, .. } => Some((at, self.named.name_of(qkv), heads, scoring)),
            _ => None,
        });
        let lse = Module::block(block).part(Component::Attention).named("hook_lse");
        let (at, qkv, heads, scoring) = attention.ok_or_else(|| unknown(&self.named, &lse))?;
        let (qkv, lse, span) = (self.stored(&qkv)?, self.get(&lse)?, self.batch.spans[sequence]);
        let changes = self.placed.get(sequence).map_or([].into(), |steps| steps.of_head(at, head));
        Ok(AttentionHead { qkv, lse, heads, head, span, scoring, changes })
    }

    /// The residual stream before block `stage`, or after the last one: its name.
    pub fn stream(&self, stage: usize) -> String {
        match stage.checked_sub(1) {
            None => Module::block(0).named("hook_resid_pre"),
            Some(block) => Module::block(block).named("hook_resid_post"),
        }
    }

    /// What the head makes of any vectors of the residual stream, (n,C): `each` gets the place of a row and its logits.
    ///
    /// # Errors
    /// As [`Backend::forward`], and if the model has no head.
    pub fn logits(&mut self, vectors: &[f32], mut each: impl FnMut(usize, &mut [f32])) -> Result<(), TraceError> {
        let v = self.model.config.vocab_size;
        self.head_on(vectors, "logits", |first, values| {
            for (i, row) in values.chunks_exact_mut(v).enumerate() {
                each(first + i, row);
            }
        })
    }

    /// One row of the batch of a tensor that is not a matrix of scores, as it lies in memory; of the head's tensors no other row is
    /// computed.
    pub(super) fn stored_row(&mut self, name: &str, row: usize) -> Result<Vec<f32>, TraceError> {
        if self.place(name)? == Place::Head {
            return self.head_rows(name, row..row + 1);
        }
        let tensor = self.stored(name)?;
        let wide = tensor.values.len() / self.batch.tokens.len();
        Ok(tensor.values[row * wide..][..wide].to_vec())
    }

    /// Whether something changes the run.
    pub(super) fn has_steps(&self) -> bool {
        self.steps.is_some()
    }

    /// That a number of the run is finite, if the run is changed: an overflow is then a step's.
    ///
    /// # Errors
    /// [`InterventionError::TooLarge`](super::interventions::InterventionError::TooLarge).
    pub fn check_finite(&self, v: f64) -> Result<(), TraceError> {
        match self.steps.as_ref().filter(|_| !v.is_finite()).and_then(|steps| steps.too_large()) {
            Some(error) => Err(error.into()),
            None => Ok(()),
        }
    }

    /// The steps of the sequence that has a row of the batch, and the row's position in it.
    fn steps_at(&self, row: usize) -> Option<(&PlacedSteps, usize)> {
        let mut all = self.batch.spans.iter().zip(&self.placed);
        let (span, steps) = all.find(|(span, _)| (span.row..span.row + span.rows).contains(&row))?;
        Some((steps, row - span.row))
    }

    /// What steps make of a row of the batch of a tensor that an op writes, if anything.
    pub(super) fn intervened_row(&self, tensor: Region, row: usize) -> Option<IntervenedRow> {
        let (steps, position) = self.steps_at(row)?;
        steps.of_row(self.writer(tensor), position, tensor.cols)
    }

    /// What steps do to a number of what the op `at` writes, in their order, each with its step.
    pub(super) fn changes_of(&self, at: usize, row: usize, number: NumberPlace) -> Vec<(usize, NumberAction)> {
        self.steps_at(row).map_or(vec![], |(steps, position)| steps.of_number(at, position, number))
    }

    /// That rows of the batch are there.
    pub(super) fn check_rows(&self, rows: &[usize]) -> Result<(), TraceError> {
        let all = self.batch.tokens.len();
        match rows.iter().find(|row| **row >= all) {
            Some(row) => Err(TraceError::Batch { what: format!("there is no row {row}: the batch has {all}") }),
            None => Ok(()),
        }
    }

    /// Some rows of a parameter or of a constant table.
    pub(super) fn table_rows(&self, whole: Region, rows: Range<usize>) -> Result<Vec<f32>, TraceError> {
        let region = Region { at: whole.at + rows.start * whole.cols, rows: rows.len(), ..whole };
        Ok(self.backend.read(region)?)
    }

    // ---- parts

    /// A tensor as it lies in memory: what is computed from it takes its features in that order.
    fn stored(&mut self, name: &str) -> Result<Arc<Labelled>, TraceError> {
        let apart = self.named.tensor(name).is_some_and(|tensor| tensor.order.is_some());
        self.remembered(name, apart)
    }

    fn remembered(&mut self, name: &str, stored: bool) -> Result<Arc<Labelled>, TraceError> {
        if let Some(at) = self.seen.iter().position(|(tensor, as_stored)| tensor.name == name && *as_stored == stored) {
            let seen = self.seen.remove(at);
            self.seen.push(seen.clone());
            return Ok(seen.0);
        }
        let mut tensor = self.compute(name)?;
        let order = self.named.tensor(name).and_then(|own| Some((own.order?, own.cols.len())));
        if let Some((order, wide)) = order.filter(|_| stored) {
            tensor.values = tensor.values.chunks_exact(wide).flat_map(|row| order.store(row, 1)).collect();
        }
        let tensor = Arc::new(tensor);
        self.seen.push((tensor.clone(), stored));
        let bytes = |(tensor, _): &(Arc<Labelled>, bool)| 4 * tensor.values.len();
        // one that is larger by itself is not kept; what heads and networks wrote, of which a path needs every block's, goes last
        let wrote = |name: &str| ["hook_z", "hook_mlp_out", "mlp.hook_out"].iter().any(|end| name.ends_with(end));
        while self.seen.iter().map(bytes).sum::<usize>() > self.seen_bytes && !self.seen.is_empty() {
            let first = self.seen.iter().position(|(tensor, _)| !wrote(&tensor.name));
            self.seen.remove(first.unwrap_or(0));
        }
        Ok(tensor)
    }

    /// Takes from the budget: bytes for so many numbers, and a step for each of so many rows.
    fn take(&self, what: &str, [rows, cols]: [usize; 2]) -> Result<(), TraceError> {
        let taken = self.budget.take_bytes(float_bytes(rows, cols)).and_then(|()| self.budget.take_steps(rows as u64));
        taken.map_err(|why| TraceError::Spent { what: format!("`{what}`"), why })
    }

    fn run(&mut self, block: usize) -> Result<(), TraceError> {
        let rows = |(span, steps): (&Span, &PlacedSteps)| span.rows * (steps.weight(&self.model) - 1);
        let more: usize = self.batch.spans.iter().zip(&self.placed).map(rows).sum();
        self.take(&Module::block(block).name(), [self.batch.tokens.len() + more, 0])?;
        self.held = None;
        self.backend.forward(self.model.program.forward(self.model.blocks[block].clone()))?;
        self.held = Some(block);
        Ok(())
    }

    /// Runs the blocks up to this one that have not run.
    fn reach(&mut self, block: usize) -> Result<(), TraceError> {
        while self.ran <= block {
            self.step()?;
        }
        Ok(())
    }

    fn hold(&mut self, block: usize) -> Result<(), TraceError> {
        self.reach(block)?;
        if self.held == Some(block) { Ok(()) } else { self.run(block) }
    }

    fn place(&self, name: &str) -> Result<Place, TraceError> {
        if name.ends_with(".grad") {
            return Err(TraceError::NoBackward { name: name.into() });
        }
        if let Some(tensor) = self.named.tensor(name) {
            let (last, blocks) = (name.rsplit('.').next().unwrap_or(name), &self.named.blocks);
            let maker = self.maker(tensor.region);
            let block = blocks.iter().position(|block| block.contains(&maker));
            let leaves =
                |block: usize| maker + 1 == blocks[block].end && tensor.region == self.named.ops()[maker].output();
            return Ok(match (block, STAGES.iter().position(|stage| *stage == last)) {
                (Some(block), Some(stage)) => Place::Scores(block, Stage::ALL[stage]),
                (Some(block), _) if leaves(block) => Place::After(block),
                (Some(block), _) => Place::Block(block),
                (None, _) if blocks.last().is_some_and(|last| maker >= last.end) => Place::Head,
                _ => Place::Kept,
            });
        }
        let block = names::lookup(name).and_then(|(_, block)| block);
        if name == "input" || self.named.param(name).is_some() {
            return Ok(Place::Kept);
        }
        match (names::derivation(&self.named, name).ok_or_else(|| unknown(&self.named, name))?, block) {
            (Derived::Part { .. }, _) => Ok(Place::Kept),
            (Derived::Scaled { of, .. }, _) => self.place(&of),
            (Derived::Unscaled { .. }, Some(block)) => Ok(Place::Scores(block, Stage::Raw)),
            (_, Some(block)) => Ok(Place::Block(block)),
            (Derived::Mean { stats, .. }, None) => {
                let after = self.named.blocks.last().is_some_and(|last| self.maker(stats) >= last.end);
                Ok(if after { Place::Head } else { Place::Kept })
            }
            (_, None) => Ok(Place::Kept),
        }
    }

    /// The op that writes a region of the model with a place for every tensor.
    pub(super) fn maker(&self, region: Region) -> usize {
        let writes = |op: &Op| op.output() == region || { *op }.operands().any(|(_, operand)| *operand == region);
        self.named.ops().iter().position(writes).unwrap_or(0)
    }

    /// The op whose output a region is: the one whose steps change it.
    pub(super) fn writer(&self, region: Region) -> usize {
        self.named.ops().iter().rposition(|op| op.output() == region).unwrap_or(usize::MAX)
    }

    fn compute(&mut self, name: &str) -> Result<Labelled, TraceError> {
        let place = self.place(name)?;
        let (b, t) = (self.batch.spans.len(), self.length);
        if place != Place::Head {
            self.take(name, [1, self.shape(name)?.1.into_iter().fold(1, usize::saturating_mul)])?;
        }
        match place {
            Place::Scores(..) => {
                let shape = vec![b, self.model.config.n_head, t, t];
                let mut values = vec![];
                for (sequence, head) in (0..b).flat_map(|b| (0..shape[1]).map(move |h| (b, h))) {
                    values.extend(self.sheet(name, &[sequence, head], None)?.band(0..t, 0..t));
                }
                return Ok(Labelled { name: name.into(), axes: Axes::Scores.names().to_vec(), shape, values });
            }
            Place::Head => {
                let values = self.head_rows(name, 0..b * t)?;
                let axes = self.named.tensor(name).map_or(Axes::One, |tensor| tensor.axes);
                return Ok(labelled(&self.named.config, (b, t), name, axes, values));
            }
            Place::After(block) => self.reach(block)?,
            Place::Block(block) => self.hold(block)?,
            Place::Kept => {}
        }
        let statistics = self.statistics(name);
        let (model, backend, batch) = (&self.model, &mut *self.backend, Cow::Borrowed(&self.batch));
        let run = Trace { model, backend, batch, backward: false, length: t, mask: None };
        match statistics {
            Some(derived) => run.derived(name, derived),
            None => run.get(name),
        }
    }

    /// The statistics that a name is read out of, as they lie in the model that runs: its list has no name for them.
    fn statistics(&self, name: &str) -> Option<Derived> {
        if self.named.tensor(name).is_some() {
            return None;
        }
        let region = match names::derivation(&self.named, name)? {
            Derived::Mean { stats, .. } => stats,
            Derived::Lse { lse } => lse,
            Derived::Unscaled { .. } | Derived::Scaled { .. } | Derived::Part { .. } => return None,
        };
        let maker = self.maker(region);
        // the model that runs has one op more where the head begins
        let after = usize::from(self.named.blocks.last().is_some_and(|last| maker >= last.end));
        match self.model.ops()[maker + after] {
            Op::Norm { stats, x, .. } => Some(Derived::Mean { stats, x }),
            Op::Attend { lse, .. } => Some(Derived::Lse { lse }),
            _ => None,
        }
    }

    /// Runs the head on vectors of the residual stream, as many at once as it has room for; `each` gets the first one's place and the
    /// values of the tensor `name` for them.
    fn head_on(
        &mut self,
        vectors: &[f32],
        name: &str,
        mut each: impl FnMut(usize, &mut [f32]),
    ) -> Result<(), TraceError> {
        let head = self.model.blocks.last().map_or(0, |last| last.end);
        let Op::Gather { y, .. } = self.model.ops()[head] else { return Err(unknown(&self.named, name)) };
        let (region, is_mean) = match (self.statistics(name), self.model.tensor(name)) {
            (Some(Derived::Mean { stats, .. }), _) => (stats, true),
            (_, Some(tensor)) => (tensor.region, false),
            (_, None) => return Err(unknown(&self.named, name)),
        };
        debug_assert_eq!(region.active, ActiveRows::Outputs);
        self.chunks_on(vectors, (head + 1, y, region), |first, mut values| {
            if is_mean {
                values = values.into_iter().step_by(region.cols).collect();
            }
            each(first, &mut values);
        })
    }

    /// What the head's matrix alone makes of any vectors, (n,C), without its bias: `each` gets the place of a row and the result.
    pub(super) fn read_by_head(
        &mut self,
        vectors: &[f32],
        mut each: impl FnMut(usize, &[f32]),
    ) -> Result<(), TraceError> {
        let ops: Vec<Op> = self.model.ops().iter().copied().collect();
        let product = ops.iter().enumerate().rev().find_map(|(i, op)| match *op {
            Op::Linear { x, b, y, .. } => Some((i, x, b, y)),
            _ => None,
        });
        let (last, x, b, y) = product.ok_or_else(|| unknown(&self.named, "logits"))?;
        let bias = b.map_or(Ok(vec![0.0; y.cols]), |b| self.backend.read(b))?;
        self.chunks_on(vectors, (last, x, y), |first, mut values| {
            for (n, row) in values.chunks_exact_mut(y.cols).enumerate() {
                row.iter_mut().zip(&bias).for_each(|(v, b)| *v -= b);
                each(first + n, row);
            }
        })
    }

    /// Runs the ops from one of the head's on, on vectors in the place of a tensor, as many at once as there is room for, and gives what is
    /// in another.
    fn chunks_on(
        &mut self,
        vectors: &[f32],
        (first, from, to): (usize, Region, Region),
        mut each: impl FnMut(usize, Vec<f32>),
    ) -> Result<(), TraceError> {
        for (chunk, vectors) in vectors.chunks(OUTPUTS * from.cols).enumerate() {
            self.take("logits", [vectors.len() / from.cols, 0])?;
            self.batch.outputs = vec![0; vectors.len() / from.cols];
            self.backend.feed(&self.batch)?;
            self.backend.write(from.for_batch(&self.batch), vectors)?;
            self.backend.forward(self.model.program.forward(first..))?;
            each(chunk * OUTPUTS, self.backend.read(to.for_batch(&self.batch))?);
        }
        Ok(())
    }

    /// Some rows of a tensor of the head.
    fn head_rows(&mut self, name: &str, rows: Range<usize>) -> Result<Vec<f32>, TraceError> {
        let (v, c) = (self.model.config.vocab_size, self.model.config.d_model);
        let wide = self.shape(name)?.1.get(2).copied().unwrap_or(1);
        self.take(name, [rows.len(), wide])?;
        let last = self.last()?;
        let (vectors, mut all) = (&last.values[rows.start * c..rows.end * c], vec![]);
        if !matches!(name, "probs" | "losses") {
            self.head_on(vectors, name, |_, values| all.extend_from_slice(values))?;
            return Ok(all);
        }
        // the head and the loss are one op, whose kernel this is
        let batch = self.batch.clone();
        self.logits(vectors, |row, logits| {
            let target = batch.target(rows.start + row, v);
            let loss = Level::best().run(Row { logits, target, terms: Terms::default(), weight: None });
            if name == "losses" { all.push(loss) } else { all.extend_from_slice(logits) }
        })?;
        Ok(all)
    }
}

/// The steps of each sequence of a batch, if there are any.
fn placed(steps: Option<&ResolvedSteps>, batch: &Batch) -> Vec<PlacedSteps> {
    let own = |span: &Span| Some(steps?.where_they_fit(&batch.tokens[span.row..span.row + span.rows]));
    batch.spans.iter().filter_map(own).collect()
}

/// The tensor of whose rows `cos(NAME)` are the cosines.
fn rows_of(name: &str) -> Result<Option<&str>, TraceError> {
    fn inner(name: &str) -> Option<&str> {
        name.strip_prefix("cos(")?.strip_suffix(')')
    }
    match inner(name) {
        Some(of) if inner(of).is_some() => Err(TraceError::Nested),
        of => Ok(of),
    }
}

//! A run whose tensors can be looked at, whatever it keeps of them ([`Keep`]).
//!
//! A run kept in blocks has the residual stream before each block, and the tensors of the block that was looked at
//! last. Another block's tensors come from running its slice of the list once more on the stream before it: same ops,
//! same inputs, same bits. Scores of attention, (T,T) in each head, are never kept: a [`Sheet`] computes what is looked
//! at from queries, keys and the log of the sum of exponentials. Nor are logits: the head runs on the rows that are
//! asked for. So it takes memory for T tokens, not for T squared, and opening a block costs what the block costs.
//! Gradients and masks of dropout need a run of which all is kept.

use super::interventions::{
    IntervenedRow, InterveningBackend, Measures, NumberAction, NumberPlace, PlacedSteps, ResolvedSteps,
};
use super::labels::{self, Labels};
use super::masked::{self, MaskTable};
use super::reader::Reader;
use super::sheet::{AttentionHead, Sheet, float_bytes};
use super::{NamedTensor, SummaryRow, TraceError, heads_in_rows, named_rows, shape, unknown};
use crate::names::{self, Derived};
use limpid_base::budget::Budget;
use limpid_core::backend::Backend;
use limpid_core::config::Mask;
use limpid_core::kernels::attend::Stage;
use limpid_core::kernels::classify::Row;
use limpid_core::model::{Axes, Component, Mode, Model, Module, Tensor};
use limpid_core::numeric::simd::Level;
use limpid_core::ops::{ActiveRows, Batch, IGNORE, Op, Region, Span, Terms};
use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

/// Rows that the head runs on at once.
pub const OUTPUTS: usize = 64;

/// The names of the three matrices of a head, by [`Stage::ALL`].
pub const STAGES: [&str; 3] = ["hook_raw_scores", "hook_attn_scores", "hook_pattern"];

/// What a [`Trace`] keeps of its run. All else is computed again when it is asked for, the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// The residual stream before each block, the tensors of one block, and of tensors that were looked at as many as
    /// these bytes hold.
    Blocks {
        /// Bytes of tensors that were looked at.
        seen: usize,
    },
    /// Every tensor, each in memory of its own.
    All,
    /// Every tensor, and after a backward pass its gradient.
    Gradients,
}

impl Default for Keep {
    fn default() -> Keep {
        Keep::Blocks { seen: Keep::SEEN }
    }
}

impl Keep {
    /// Bytes of tensors that were looked at, where nothing else is said.
    pub const SEEN: usize = 64 << 20;

    /// What the model of such a run is built for.
    pub fn mode(self, sequences: usize, length: usize) -> Mode {
        match self {
            Keep::Blocks { .. } => Mode::Layers { batch: sequences, context: length, outputs: OUTPUTS },
            Keep::All | Keep::Gradients => Mode::Inspect { batch: sequences, context: length },
        }
    }
}

/// One run of a model, whose tensors can be read.
pub struct Trace {
    /// With a place for every tensor: for names, formulas and shapes.
    model: Arc<Model>,
    /// As it runs.
    runs: Arc<Model>,
    batch: Batch,
    keep: Keep,
    /// What changes the run, and what that is for each sequence.
    steps: Option<Arc<ResolvedSteps>>,
    placed: Vec<PlacedSteps>,
    /// What steps found in rows that they look at.
    measures: Measures,
    /// What stands in place of the model's mask.
    mask: Option<MaskTable>,
    /// Of each sequence.
    length: usize,
    /// What may be spent on the answer that is being computed.
    budget: Arc<Budget>,
    memory: RefCell<Memory>,
}

/// What changes when a tensor is computed again.
struct Memory {
    backend: Box<dyn Backend>,
    /// How many blocks have run.
    ran: usize,
    /// The block whose tensors the backend's memory holds.
    held: Option<usize>,
    /// Tensors that were looked at, the last one last, and whether their features lie as in memory
    /// (`model::FeatureOrder`).
    seen: Vec<(Arc<NamedTensor>, bool)>,
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

impl Trace {
    /// Runs `batch` on a backend made for `model`, which was built for [`Keep::mode`]. With [`Keep::Blocks`] the tokens
    /// are embedded and no block has run yet: one runs when a tensor of it, or of one behind it, is asked for
    /// ([`Trace::step`]). With [`Keep::Gradients`] the backend's gradients of parameters are cleared first, so the
    /// gradients are those of this batch alone.
    ///
    /// # Errors
    /// If the model was built for something else, or the batch does not fit it: sequences must be equally long and
    /// follow one another, tokens inside the vocabulary, and there must be targets for a backward pass.
    pub fn run(model: &Model, backend: Box<dyn Backend>, batch: &Batch, keep: Keep) -> Result<Trace, TraceError> {
        Trace::run_with_steps(model, backend, batch, None, keep)
    }

    /// [`Trace::run`], changed on its way.
    ///
    /// # Errors
    /// As there, and if the steps do not fit the batch.
    pub fn run_with_steps(
        model: &Model,
        backend: Box<dyn Backend>,
        batch: &Batch,
        steps: Option<Arc<ResolvedSteps>>,
        keep: Keep,
    ) -> Result<Trace, TraceError> {
        let length = fits(model, batch, keep)?;
        let measures = Measures::default();
        let noted = Some(measures.clone());
        let mut backend = InterveningBackend::measured(backend, steps.as_ref(), batch, noted)?;
        backend.feed(batch)?;
        match keep {
            Keep::Blocks { .. } => backend.forward(model.program.forward(..model.blocks[0].start))?,
            Keep::All | Keep::Gradients => backend.forward(model.ops())?,
        }
        if keep == Keep::Gradients {
            backend.clear()?;
            backend.backward(model.back())?;
        }
        let placed = placed(steps.as_deref(), batch);
        Ok(Trace { placed, measures, steps, ..Trace::of(model, backend, batch, keep, length)? })
    }

    /// Of what has run.
    pub(crate) fn of(
        model: &Model,
        backend: Box<dyn Backend>,
        batch: &Batch,
        keep: Keep,
        length: usize,
    ) -> Result<Trace, TraceError> {
        let runs = Arc::new(model.clone());
        let named = match keep {
            Keep::Blocks { .. } => {
                let all = Mode::Inspect { batch: batch.spans.len(), context: length };
                let named = Model::tuned(&model.config, all, &model.tuning);
                Arc::new(named.map_err(|error| TraceError::Batch { what: error.to_string() })?)
            }
            Keep::All | Keep::Gradients => runs.clone(),
        };
        Ok(Trace {
            model: named,
            runs,
            batch: batch.clone(),
            keep,
            steps: None,
            placed: vec![],
            measures: Measures::default(),
            mask: None,
            length,
            budget: Arc::default(),
            memory: RefCell::new(Memory { backend, ran: 0, held: None, seen: vec![] }),
        })
    }

    /// From now on this is what may be spent: bytes of tensors that are computed again, and a step for every row that a
    /// block or the head runs on. What it refuses is a [`TraceError::Spent`], after which everything can be asked for
    /// again. At first there is no bound.
    pub fn spend(&mut self, budget: &Arc<Budget>) {
        self.budget = budget.clone();
    }

    /// With what stood in place of the model's mask.
    fn with_mask(self, mask: MaskTable) -> Trace {
        Trace { mask: Some(mask), ..self }
    }

    /// How many sequences ran, and how long each is.
    pub fn size(&self) -> (usize, usize) {
        (self.batch.spans.len(), self.length)
    }

    /// The model, with a place for every tensor: for names, formulas and shapes.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The batch.
    pub fn batch(&self) -> &Batch {
        &self.batch
    }

    /// Names of the tensors of the forward pass, in its order, the token ids first ([`names::activations`]).
    /// In a run with dropout its masks are behind them.
    pub fn names(&self) -> impl Iterator<Item = String> {
        let drawn = if self.batch.seed.is_some() { names::drawn(&self.model) } else { vec![] };
        names::activations(&self.model).into_iter().chain(drawn.into_iter().map(|(name, ..)| name))
    }

    /// Words for the axes of this run's tensors: `piece` says what a token looks like.
    pub fn labels(&self, piece: &dyn Fn(u32) -> String) -> Labels {
        let spans = &self.batch.spans;
        let words = |ids: &[u32]| -> Vec<String> { ids.iter().map(|id| labels::label(&piece(*id))).collect() };
        let vocabulary: Vec<u32> = (0..self.model.config.vocab_size as u32).collect();
        let reach = |i, span: &Span| span.reach(self.model.config.mask, i);
        Labels {
            mask: self.mask.clone(),
            tokens: spans.iter().map(|span| words(&self.batch.tokens[span.row..][..span.rows])).collect(),
            vocabulary: words(&vocabulary),
            windows: (0..self.model.config.n_layer).map(|block| self.model.config.window_of(block)).collect(),
            reach: spans.iter().map(|span| (0..span.rows).map(|i| reach(i, span)).collect()).collect(),
        }
    }

    /// Runs the next block; its number, or none after the last, or where all is kept.
    ///
    /// # Errors
    /// As [`Backend::forward`]; the block can be run again.
    pub fn step(&self) -> Result<Option<usize>, TraceError> {
        let memory = &mut *self.memory.borrow_mut();
        if !self.in_blocks() || memory.ran == self.runs.blocks.len() {
            return Ok(None);
        }
        let block = memory.ran;
        self.run_block(memory, block)?;
        memory.ran += 1;
        Ok(memory.held)
    }

    /// Begins again before a block, with a batch and its residual stream there. Its tokens are equally long as before,
    /// and no more of them.
    pub(super) fn restart(&mut self, batch: Batch, block: usize, stream: &[f32]) -> Result<(), TraceError> {
        fits(&self.runs, &batch, self.keep)?;
        let name = self.stream(block);
        let before = self.runs.tensor(&name).ok_or_else(|| unknown(&self.model, &name))?.region;
        (self.placed, self.batch) = (placed(self.steps.as_deref(), &batch), batch);
        let memory = self.memory.get_mut();
        memory.backend.feed(&self.batch)?;
        memory.backend.write(before.for_batch(&self.batch), stream)?;
        (memory.ran, memory.held) = (block, None);
        memory.seen.clear();
        Ok(())
    }

    /// A tensor, a parameter, what is derived of them ([`names::derived`]), or the gradient of any (`NAME.grad`). Where
    /// blocks are kept, those before it run if they have not, and its own runs again if another one has run since.
    ///
    /// # Errors
    /// If there is no such name (the nearest is in the message), or a gradient was not computed.
    pub fn get(&self, name: &str) -> Result<NamedTensor, TraceError> {
        Ok(Arc::unwrap_or_clone(self.shared(name)?))
    }

    /// [`Trace::get`] without a copy of what is kept of tensors that were looked at.
    ///
    /// # Errors
    /// As there.
    pub fn shared(&self, name: &str) -> Result<Arc<NamedTensor>, TraceError> {
        self.remembered(name, false)
    }

    /// The line of one tensor, parameter or gradient.
    ///
    /// # Errors
    /// As [`Trace::get`].
    pub fn row(&self, name: &str) -> Result<SummaryRow, TraceError> {
        let tensor = self.shared(name)?;
        Ok(SummaryRow::new(&self.model, &self.batch, &tensor))
    }

    /// One line for every tensor of the forward pass, in its order.
    ///
    /// # Errors
    /// If the backend cannot read one.
    pub fn rows(&self) -> Result<Vec<SummaryRow>, TraceError> {
        let first = |own: &Tensor| {
            let mut all = self.model.tensors.iter().take_while(|other| other.name != own.name);
            all.find(|other| (other.region, &other.cols) == (own.region, &own.cols)).map(|other| other.name.clone())
        };
        let row =
            |name: String| Ok(SummaryRow { same_as: self.model.tensor(&name).and_then(first), ..self.row(&name)? });
        self.names().map(row).collect()
    }

    /// The logit lens: what the head would predict if it read `name` (a `[batch pos d_model]` tensor such as
    /// `blocks.0.hook_resid_post`) instead of the output of the last block. Returns the probabilities. The tensors
    /// of the run are unchanged afterwards.
    ///
    /// # Errors
    /// As [`Trace::get`], and if the tensor does not have those axes.
    pub fn lens(&self, name: &str) -> Result<NamedTensor, TraceError> {
        let seen = self.shared(name)?;
        if seen.axes != ["batch", "pos", "d_model"] {
            return Err(TraceError::NotResidual { name: name.into(), axes: seen.axes.join(" ") });
        }
        let called = format!("lens({name})");
        if self.in_blocks() {
            let values = self.read_out("probs", &seen.values, 0)?;
            return Ok(named_rows(&self.model.config, self.size(), &called, Axes::Vocab, values));
        }
        let last = self.stream(self.runs.config.n_layer);
        let region = self.runs.tensor(&last).ok_or_else(|| unknown(&self.runs, &last))?.region.for_batch(&self.batch);
        let maker = self.runs.ops().iter().position(|op| op.output().for_batch(&self.batch) == region);
        let head = self.runs.program.forward(maker.map_or(0, |i| i + 1)..);
        let put = |values: &[f32]| {
            let backend = &mut self.memory.borrow_mut().backend;
            backend.write(region, values)?;
            backend.forward(head)
        };
        let keep = self.read(region)?;
        let seen = put(&seen.values);
        let probs = self.get("probs");
        put(&keep)?;
        seen?;
        Ok(NamedTensor { name: called, ..probs? })
    }

    /// The axes of a tensor and their sizes, the rows of each head together ([`NamedTensor::heads_first`]), without
    /// computing it; also of `cos(NAME)`, the cosines of its rows.
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
        let (mut axes, mut sizes) = shape(&self.model, name, self.size()).ok_or_else(|| unknown(&self.model, name))?;
        if let Some(head) = heads_in_rows(&axes) {
            axes.swap(head - 1, head);
            sizes.swap(head - 1, head);
        }
        Ok((axes, sizes))
    }

    /// The matrix of a tensor's last two axes, at an index of the others; of a tensor with the rows of each head
    /// together ([`NamedTensor::heads_first`]); also of `cos(NAME)`. `rows` are those that will be looked at: logits
    /// are computed, and parameters read, for these alone.
    ///
    /// # Errors
    /// As [`Trace::get`], and if the index is outside.
    pub fn sheet(&self, name: &str, index: &[usize], rows: Option<Range<usize>>) -> Result<Sheet, TraceError> {
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
            Place::Scores(block, stage) if self.in_blocks() => {
                let head = self.head(block, index[0], index[1])?;
                // what has no place of its own are the products
                let own = self.model.tensor(name).is_some();
                let scoring = if own { head.scoring } else { head.scoring.products() };
                Ok(Sheet::scores(AttentionHead { scoring, ..head }, stage))
            }
            Place::Head if shape.len() == 3 && self.in_blocks() => {
                let first = index[0] * self.length;
                let rows = rows.unwrap_or(0..self.length);
                let part = rows.start.min(self.length)..rows.end.min(self.length);
                let values = self.head_rows(name, first + part.start..first + part.end)?;
                Ok(Sheet::some_rows(values, part.start, [shape[1], shape[2]]))
            }
            _ => match (self.model.param(name).filter(|param| param.is_matrix() && param.order.is_none()), rows) {
                (Some(param), Some(rows)) if rows.end <= shape[0] => {
                    let region = param.region;
                    self.take(name, [rows.len(), region.cols])?;
                    let values = self.table_rows(region, rows.clone())?;
                    Ok(Sheet::some_rows(values, rows.start, [region.rows, region.cols]))
                }
                _ => {
                    let tensor = self.shared(name)?;
                    Ok(Sheet::of(&tensor, index))
                }
            },
        }
    }

    /// Everything that the scores of a head of a block are computed from.
    ///
    /// # Errors
    /// As [`Trace::get`].
    pub fn head(&self, block: usize, sequence: usize, head: usize) -> Result<AttentionHead, TraceError> {
        let ops = self.model.ops().iter().enumerate().skip(self.model.blocks[block].start);
        let attention = ops.take(self.model.blocks[block].len()).find_map(|(at, op)| match *op {
            Op::Attend { qkv, heads, scoring, .. } => Some((at, self.model.name_of(qkv), heads, scoring)),
            _ => None,
        });
        let lse = Module::block(block).part(Component::Attention).named("hook_lse");
        let (at, qkv, heads, scoring) = attention.ok_or_else(|| unknown(&self.model, &lse))?;
        let (qkv, lse, span) = (self.stored(&qkv)?, self.shared(&lse)?, self.batch.spans[sequence]);
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
    pub fn logits(&self, vectors: &[f32], mut each: impl FnMut(usize, &mut [f32])) -> Result<(), TraceError> {
        let v = self.runs.config.vocab_size;
        self.head_on(vectors, "logits", |first, values| {
            for (i, row) in values.chunks_exact_mut(v).enumerate() {
                each(first + i, row);
            }
        })
    }

    /// One row of the batch of a tensor that is not a matrix of scores, as it lies in memory; of the head's tensors no
    /// other row is computed.
    pub(super) fn stored_row(&self, name: &str, row: usize) -> Result<Vec<f32>, TraceError> {
        if self.in_blocks() && self.place(name)? == Place::Head {
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
        steps.of_row(self.writer(tensor), (position, (&self.measures, row)), tensor.cols)
    }

    /// What steps do to a number of what the op `at` writes, in their order, each with its step.
    pub(super) fn changes_of(&self, at: usize, row: usize, number: NumberPlace) -> Vec<(usize, NumberAction)> {
        let place = |position| (position, (&self.measures, row));
        self.steps_at(row).map_or(vec![], |(steps, position)| steps.of_number(at, place(position), number))
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
        self.read(region)
    }

    // ---- parts

    fn in_blocks(&self) -> bool {
        matches!(self.keep, Keep::Blocks { .. })
    }

    fn read(&self, region: Region) -> Result<Vec<f32>, TraceError> {
        Ok(self.memory.borrow().backend.read(region)?)
    }

    /// A tensor as it lies in memory: what is computed from it takes its features in that order.
    fn stored(&self, name: &str) -> Result<Arc<NamedTensor>, TraceError> {
        let apart = self.model.tensor(name).is_some_and(|tensor| tensor.order.is_some());
        self.remembered(name, apart)
    }

    fn remembered(&self, name: &str, stored: bool) -> Result<Arc<NamedTensor>, TraceError> {
        let Keep::Blocks { seen: most } = self.keep else { return Ok(Arc::new(self.computed(name, stored)?)) };
        {
            let seen = &mut self.memory.borrow_mut().seen;
            let looked_at =
                |(tensor, as_stored): &(Arc<NamedTensor>, bool)| tensor.name == name && *as_stored == stored;
            if let Some(at) = seen.iter().position(looked_at) {
                seen[at..].rotate_left(1);
                return Ok(seen[seen.len() - 1].0.clone());
            }
        }
        let tensor = Arc::new(self.computed(name, stored)?);
        let seen = &mut self.memory.borrow_mut().seen;
        seen.push((tensor.clone(), stored));
        let bytes = |(tensor, _): &(Arc<NamedTensor>, bool)| 4 * tensor.values.len();
        // one that is larger by itself is not kept; what heads and networks wrote, of which a path needs every block's,
        // goes last
        let wrote = |name: &str| ["hook_z", "hook_mlp_out", "mlp.hook_out"].iter().any(|end| name.ends_with(end));
        while seen.iter().map(bytes).sum::<usize>() > most && !seen.is_empty() {
            let first = seen.iter().position(|(tensor, _)| !wrote(&tensor.name));
            seen.remove(first.unwrap_or(0));
        }
        Ok(tensor)
    }

    fn computed(&self, name: &str, stored: bool) -> Result<NamedTensor, TraceError> {
        let mut tensor = self.compute(name)?;
        let order = self.model.tensor(name).and_then(|own| Some((own.order?, own.cols.len())));
        if let Some((order, wide)) = order.filter(|_| stored) {
            tensor.values = tensor.values.chunks_exact(wide).flat_map(|row| order.store(row, 1)).collect();
        }
        Ok(tensor)
    }

    /// Takes from the budget: bytes for so many numbers, and a step for each of so many rows.
    fn take(&self, what: &str, [rows, cols]: [usize; 2]) -> Result<(), TraceError> {
        let taken = self.budget.take_bytes(float_bytes(rows, cols)).and_then(|()| self.budget.take_steps(rows as u64));
        taken.map_err(|why| TraceError::Spent { what: format!("`{what}`"), why })
    }

    fn run_block(&self, memory: &mut Memory, block: usize) -> Result<(), TraceError> {
        let rows = |(span, steps): (&Span, &PlacedSteps)| span.rows * (steps.weight(&self.runs) - 1);
        let more: usize = self.batch.spans.iter().zip(&self.placed).map(rows).sum();
        self.take(&Module::block(block).name(), [self.batch.tokens.len() + more, 0])?;
        memory.held = None;
        memory.backend.forward(self.runs.program.forward(self.runs.blocks[block].clone()))?;
        memory.held = Some(block);
        Ok(())
    }

    /// Runs the blocks up to this one that have not run.
    fn reach(&self, block: usize) -> Result<(), TraceError> {
        while self.memory.borrow().ran <= block {
            self.step()?;
        }
        Ok(())
    }

    fn hold(&self, block: usize) -> Result<(), TraceError> {
        self.reach(block)?;
        let memory = &mut *self.memory.borrow_mut();
        if memory.held == Some(block) { Ok(()) } else { self.run_block(memory, block) }
    }

    fn place(&self, name: &str) -> Result<Place, TraceError> {
        if name.ends_with(".grad") {
            return Err(TraceError::NoBackward { name: name.into() });
        }
        if let Some(tensor) = self.model.tensor(name) {
            let (last, blocks) = (name.rsplit('.').next().unwrap_or(name), &self.model.blocks);
            let maker = self.maker(tensor.region);
            let block = blocks.iter().position(|block| block.contains(&maker));
            let leaves =
                |block: usize| maker + 1 == blocks[block].end && tensor.region == self.model.ops()[maker].output();
            return Ok(match (block, STAGES.iter().position(|stage| *stage == last)) {
                (Some(block), Some(stage)) => Place::Scores(block, Stage::ALL[stage]),
                (Some(block), _) if leaves(block) => Place::After(block),
                (Some(block), _) => Place::Block(block),
                (None, _) if blocks.last().is_some_and(|last| maker >= last.end) => Place::Head,
                _ => Place::Kept,
            });
        }
        let block = names::lookup(name).and_then(|(_, block)| block);
        if name == "input" || self.model.param(name).is_some() {
            return Ok(Place::Kept);
        }
        match (names::derivation(&self.model, name).ok_or_else(|| unknown(&self.model, name))?, block) {
            (Derived::Part { .. }, _) => Ok(Place::Kept),
            (Derived::Scaled { of, .. }, _) => self.place(&of),
            (Derived::Unscaled { .. }, Some(block)) => Ok(Place::Scores(block, Stage::Raw)),
            (_, Some(block)) => Ok(Place::Block(block)),
            (Derived::Mean { stats, .. }, None) => {
                let after = self.model.blocks.last().is_some_and(|last| self.maker(stats) >= last.end);
                Ok(if after { Place::Head } else { Place::Kept })
            }
            (_, None) => Ok(Place::Kept),
        }
    }

    /// The op that writes a region of the model with a place for every tensor.
    pub(super) fn maker(&self, region: Region) -> usize {
        let writes = |op: &Op| op.output() == region || { *op }.operands().any(|(_, operand)| *operand == region);
        self.model.ops().iter().position(writes).unwrap_or(0)
    }

    /// The op whose output a region is: the one whose steps change it.
    pub(super) fn writer(&self, region: Region) -> usize {
        self.model.ops().iter().rposition(|op| op.output() == region).unwrap_or(usize::MAX)
    }

    fn compute(&self, name: &str) -> Result<NamedTensor, TraceError> {
        if !self.in_blocks() {
            return self.reader(&*self.memory.borrow().backend).get(name);
        }
        let (place, (b, t)) = (self.place(name)?, self.size());
        if place != Place::Head {
            self.take(name, [1, self.shape(name)?.1.into_iter().fold(1, usize::saturating_mul)])?;
        }
        match place {
            Place::Scores(..) => {
                let shape = vec![b, self.runs.config.n_head, t, t];
                let mut values = vec![];
                for (sequence, head) in (0..b).flat_map(|b| (0..shape[1]).map(move |h| (b, h))) {
                    values.extend(self.sheet(name, &[sequence, head], None)?.band(0..t, 0..t));
                }
                return Ok(NamedTensor { name: name.into(), axes: Axes::Scores.names().to_vec(), shape, values });
            }
            Place::Head => {
                let values = self.head_rows(name, 0..b * t)?;
                let axes = self.model.tensor(name).map_or(Axes::One, |tensor| tensor.axes);
                return Ok(named_rows(&self.model.config, (b, t), name, axes, values));
            }
            Place::After(block) => self.reach(block)?,
            Place::Block(block) => self.hold(block)?,
            Place::Kept => {}
        }
        let memory = self.memory.borrow();
        let reader = self.reader(&*memory.backend);
        match self.statistics(name) {
            Some(derived) => reader.derived(name, derived),
            None => reader.get(name),
        }
    }

    fn reader<'b>(&'b self, backend: &'b dyn Backend) -> Reader<'b> {
        let backward = self.keep == Keep::Gradients;
        Reader { model: &self.runs, backend, batch: &self.batch, backward, length: self.length }
    }

    /// The statistics that a name is read out of, as they lie in the model that runs: its list has no name for them.
    fn statistics(&self, name: &str) -> Option<Derived> {
        if self.model.tensor(name).is_some() {
            return None;
        }
        let region = match names::derivation(&self.model, name)? {
            Derived::Mean { stats, .. } => stats,
            Derived::Lse { lse } => lse,
            Derived::Unscaled { .. } | Derived::Scaled { .. } | Derived::Part { .. } => return None,
        };
        let maker = self.maker(region);
        // the model that runs has one op more where the head begins
        let after = usize::from(self.model.blocks.last().is_some_and(|last| maker >= last.end));
        match self.runs.ops()[maker + after] {
            Op::Norm { stats, x, .. } => Some(Derived::Mean { stats, x }),
            Op::Attend { lse, .. } => Some(Derived::Lse { lse }),
            _ => None,
        }
    }

    /// Runs the head on vectors of the residual stream, as many at once as it has room for; `each` gets the first one's
    /// place and the values of the tensor `name` for them.
    fn head_on(&self, vectors: &[f32], name: &str, mut each: impl FnMut(usize, &mut [f32])) -> Result<(), TraceError> {
        let head = self.runs.blocks.last().map_or(0, |last| last.end);
        if !self.in_blocks() {
            return Err(needs("Layers", &self.runs));
        }
        let Op::Gather { y, .. } = self.runs.ops()[head] else { return Err(unknown(&self.model, name)) };
        let (region, is_mean) = match (self.statistics(name), self.runs.tensor(name)) {
            (Some(Derived::Mean { stats, .. }), _) => (stats, true),
            (_, Some(tensor)) => (tensor.region, false),
            (_, None) => return Err(unknown(&self.model, name)),
        };
        debug_assert_eq!(region.active, ActiveRows::Outputs);
        self.chunks_on(vectors, (head + 1, y, region), |first, mut values| {
            if is_mean {
                values = values.into_iter().step_by(region.cols).collect();
            }
            each(first, &mut values);
        })
    }

    /// What the head's matrix alone makes of any vectors, (n,C), without its bias: `each` gets the place of a row and
    /// the result.
    pub(super) fn read_by_head(&self, vectors: &[f32], mut each: impl FnMut(usize, &[f32])) -> Result<(), TraceError> {
        let ops: Vec<Op> = self.runs.ops().iter().copied().collect();
        let product = ops.iter().enumerate().rev().find_map(|(i, op)| match *op {
            Op::Linear { x, b, y, .. } => Some((i, x, b, y)),
            _ => None,
        });
        let (last, x, b, y) = product.ok_or_else(|| unknown(&self.model, "logits"))?;
        let bias = b.map_or(Ok(vec![0.0; y.cols]), |b| self.read(b))?;
        self.chunks_on(vectors, (last, x, y), |first, mut values| {
            for (n, row) in values.chunks_exact_mut(y.cols).enumerate() {
                row.iter_mut().zip(&bias).for_each(|(v, b)| *v -= b);
                each(first + n, row);
            }
        })
    }

    /// Runs the ops from one of the head's on, on vectors in the place of a tensor, as many at once as there is room
    /// for, and gives what is in another.
    fn chunks_on(
        &self,
        vectors: &[f32],
        (first, from, to): (usize, Region, Region),
        mut each: impl FnMut(usize, Vec<f32>),
    ) -> Result<(), TraceError> {
        for (chunk, vectors) in vectors.chunks(OUTPUTS * from.cols).enumerate() {
            self.take("logits", [vectors.len() / from.cols, 0])?;
            let batch = Batch { outputs: vec![0; vectors.len() / from.cols], ..self.batch.clone() };
            let values = {
                let backend = &mut self.memory.borrow_mut().backend;
                backend.feed(&batch)?;
                backend.write(from.for_batch(&batch), vectors)?;
                backend.forward(self.runs.program.forward(first..))?;
                backend.read(to.for_batch(&batch))?
            };
            each(chunk * OUTPUTS, values);
        }
        Ok(())
    }

    /// Some rows of a tensor of the head.
    fn head_rows(&self, name: &str, rows: Range<usize>) -> Result<Vec<f32>, TraceError> {
        let wide = self.shape(name)?.1.get(2).copied().unwrap_or(1);
        self.take(name, [rows.len(), wide])?;
        let (last, c) = (self.last()?, self.runs.config.d_model);
        self.read_out(name, &last.values[rows.start * c..rows.end * c], rows.start)
    }

    /// What a tensor of the head is for vectors of the residual stream, which stand for the rows of the batch from
    /// `first` on.
    fn read_out(&self, name: &str, vectors: &[f32], first: usize) -> Result<Vec<f32>, TraceError> {
        let mut all = vec![];
        if !matches!(name, "probs" | "losses") {
            self.head_on(vectors, name, |_, values| all.extend_from_slice(values))?;
            return Ok(all);
        }
        // the head and the loss are one op, whose kernel this is
        self.logits(vectors, |row, logits| {
            let target = self.batch.target(first + row, self.runs.config.vocab_size);
            let loss = Level::best().run(Row { logits, target, terms: Terms::default(), weight: None });
            if name == "losses" { all.push(loss) } else { all.extend_from_slice(logits) }
        })?;
        Ok(all)
    }
}

/// That a run which keeps something else has not what was asked for.
fn needs(needed: &'static str, model: &Model) -> TraceError {
    TraceError::NotForInspection { needed, found: format!("{:?}", model.mode) }
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

impl Trace {
    /// Runs `batch` forward with `mask` in place of the model's: neither that nor padding hides anything. All else is
    /// as in [`Trace::run`]; there is no backward pass.
    ///
    /// # Errors
    /// As [`Trace::run`], and if the mask is not of the sequences' length.
    pub fn run_masked(
        model: &Model,
        mut backend: Box<dyn Backend>,
        batch: &Batch,
        mask: MaskTable,
    ) -> Result<Trace, TraceError> {
        let length = fits(model, batch, Keep::All)?;
        if mask.size() != length {
            let what = format!(
                "the mask is for {} tokens and there are {length}: it has a row and a column for each",
                mask.size()
            );
            return Err(TraceError::Mask { what });
        }
        backend.feed(batch)?;
        for (op, alone) in model.ops().each() {
            backend.forward(alone)?;
            masked::attend(op, &mut *backend, batch, &mask)?;
        }
        Ok(Trace::of(model, backend, batch, Keep::All, length)?.with_mask(mask))
    }
}

/// The length of the batch's sequences, if it fits.
fn fits(model: &Model, batch: &Batch, keep: Keep) -> Result<usize, TraceError> {
    let backward = keep == Keep::Gradients;
    let (most, context) = match (model.mode, keep) {
        (Mode::Inspect { batch, context }, Keep::All | Keep::Gradients) => (batch, context),
        (Mode::Layers { batch, context, .. }, Keep::Blocks { .. }) => (batch, context),
        (_, Keep::Blocks { .. }) => return Err(needs("Layers", model)),
        (_, Keep::All | Keep::Gradients) => return Err(needs("Inspect", model)),
    };
    let wrong = |what: String| Err(TraceError::Batch { what });
    let (rows, c) = (batch.tokens.len(), &model.config);
    let length = batch.spans.first().map_or(0, |span| span.rows);
    if length == 0 {
        return wrong("the batch has no tokens".into());
    }
    let sequences = batch.spans.len();
    if length > context || sequences > most {
        let given = format!("{sequences} sequences of {length} tokens");
        return wrong(format!("{given} do not fit a model built to inspect {most} of {context}"));
    }
    let regular = |(b, span): (usize, &Span)| (span.row, span.rows, span.past) == (b * length, length, 0);
    if !batch.spans.iter().enumerate().all(regular) || rows != length * sequences || batch.positions.len() != rows {
        return wrong("the sequences of a trace are equally long and follow one another: pad the shorter ones".into());
    }
    let beyond = |what: &str, ids: &[u32], n: usize, size: &str| match ids.iter().find(|id| **id as usize >= n) {
        Some(id) => wrong(format!("{what} {id} is outside the model's {size} of {n}")),
        None => Ok(0),
    };
    beyond("token", &batch.tokens, c.vocab_size, "vocabulary")?;
    beyond("position", &batch.positions, c.context_length, "context")?;
    beyond("segment", &batch.segments, c.n_segment.max(1), "segments")?;
    if backward && model.losses().is_none() {
        return wrong("this model has no head, so there is no loss to go back from".into());
    }
    let targets: Vec<u32> = batch.targets.iter().copied().filter(|t| *t != IGNORE).collect();
    beyond("target", &targets, c.vocab_size, "vocabulary")?;
    let soft = batch.soft_targets.len();
    let counts = [batch.targets.len(), batch.segments.len(), soft / c.vocab_size];
    if counts.iter().any(|n| *n != 0 && *n != rows) || !soft.is_multiple_of(c.vocab_size) {
        return wrong(format!("targets and segments are given for all of the {rows} tokens or none"));
    }
    if backward && targets.is_empty() && soft == 0 {
        let remedy = match c.mask {
            Mask::Causal => "give at least two tokens",
            _ => "a masked token has no target, so leave a token unmasked",
        };
        return wrong(format!("gradients need a loss, and a loss needs targets: the batch has none; {remedy}"));
    }
    Ok(length)
}

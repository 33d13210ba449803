//! The backend that applies steps: it stops after each op that they change, changes rows of what the op wrote, and
//! continues.
//!
//! Attention weights are never in memory while a model runs. So a change of weights adds Σ Δp v to the head's output,
//! where the weights p come from a [`Sheet`]: weights that stay the same change no bit. As weights are computed before
//! what a head reads with them, those of an op change first, whatever the order of the list, all of a query together.

use super::measures::{Measure, Measures, project_out};
use super::{ColumnAction, InterventionError, PlacedSteps, ResolvedSteps, Rows, WeightAction};
use crate::NamedTensor;
use crate::sheet::{AttentionHead, Sheet};
use limpid_core::backend::{Backend, Result as BackendResult, Wrapper};
use limpid_core::kernels::attend::Stage;
use limpid_core::kernels::dropout::{Draws, weight_index};
use limpid_core::ops::{Batch, Op, Ops, Region, Span};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Which sequences of an [`InterveningBackend`] are changed, and how. Clones share one list.
///
/// With a KV cache, a sequence is identified by its first block, which it must not share; without one, by its place in
/// the batch.
#[derive(Clone, Default)]
pub struct SequenceSteps(Arc<Mutex<HashMap<u32, Arc<PlacedSteps>>>>);

impl SequenceSteps {
    fn lock(&self) -> MutexGuard<'_, HashMap<u32, Arc<PlacedSteps>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// From the next run on the sequence is changed so.
    pub fn insert(&self, sequence: u32, steps: Arc<PlacedSteps>) {
        self.lock().insert(sequence, steps);
    }
    /// From the next run on the sequence is as the model makes it.
    pub fn remove(&self, sequence: u32) {
        self.lock().remove(&sequence);
    }
}

/// Which sequences a backend changes.
enum Scope {
    Some(SequenceSteps),
    /// All; and the numbers of steps that have changed one.
    Every(Arc<ResolvedSteps>, BTreeSet<usize>),
}

/// A backend around another one that changes some or all sequences.
pub struct InterveningBackend {
    inner: Box<dyn Backend>,
    scope: Scope,
    /// What steps that look at rows found in them, for whoever explains the run.
    measures: Option<Measures>,
    /// Tokens of the batch, and its seed.
    tokens: Vec<u32>,
    seed: Option<u64>,
    /// The sequences of the batch that are changed.
    active: Vec<(u32, Span, Arc<PlacedSteps>)>,
    /// Queries, keys and values so far of sequences whose weights of attention are changed, by sequence and op.
    held: HashMap<(u32, usize), Vec<f32>>,
}

impl InterveningBackend {
    /// A backend around another one that changes the sequences of a list.
    pub fn new(inner: Box<dyn Backend>, sequences: SequenceSteps) -> InterveningBackend {
        InterveningBackend::scoped(inner, Scope::Some(sequences))
    }

    fn scoped(inner: Box<dyn Backend>, scope: Scope) -> InterveningBackend {
        InterveningBackend {
            inner,
            scope,
            measures: None,
            tokens: vec![],
            seed: None,
            active: vec![],
            held: HashMap::new(),
        }
    }

    /// A backend around another one without a KV cache, for a batch whose sequences are all to be changed; that one
    /// itself if nothing is.
    ///
    /// # Errors
    /// As [`ResolvedSteps::on`], of any sequence.
    pub fn around(
        inner: Box<dyn Backend>,
        steps: Option<&Arc<ResolvedSteps>>,
        batch: &Batch,
    ) -> Result<Box<dyn Backend>, InterventionError> {
        InterveningBackend::measured(inner, steps, batch, None)
    }

    /// The same, with a list for what steps find in the rows of the batch.
    pub(crate) fn measured(
        inner: Box<dyn Backend>,
        steps: Option<&Arc<ResolvedSteps>>,
        batch: &Batch,
        measures: Option<Measures>,
    ) -> Result<Box<dyn Backend>, InterventionError> {
        let Some(steps) = steps else { return Ok(inner) };
        for span in &batch.spans {
            steps.on(&batch.tokens[span.row..span.row + span.rows], span.rows)?;
        }
        let every = InterveningBackend::every(inner, steps.clone());
        Ok(Box::new(InterveningBackend { measures, ..every }))
    }

    /// A backend around another one without a KV cache that changes every sequence, as far as its tokens have what a
    /// step is about.
    pub fn every(inner: Box<dyn Backend>, steps: Arc<ResolvedSteps>) -> InterveningBackend {
        InterveningBackend::scoped(inner, Scope::Every(steps, BTreeSet::new()))
    }

    /// That every step has changed something so far, where every sequence is changed.
    ///
    /// # Errors
    /// Names the first that has not.
    pub fn check_effect(&self) -> Result<(), InterventionError> {
        let Scope::Every(steps, effective) = &self.scope else { return Ok(()) };
        match steps.iter().map(|step| step.number).find(|step| !effective.contains(step)) {
            Some(step) => Err(InterventionError::NoEffect { step, what: "no sequence has such a position".into() }),
            None => Ok(()),
        }
    }

    /// Changes what an op has written.
    fn apply(&mut self, at: usize, op: &Op) -> BackendResult<()> {
        let whole = |region: Region| Region { rows: self.tokens.len(), ..region };
        let weighed = |steps: &PlacedSteps| steps.weights(at).next().is_some();
        let attention = match *op {
            Op::Attend { qkv, lse, .. } if self.active.iter().any(|(_, _, steps)| weighed(steps)) => {
                Some([self.inner.read(whole(qkv))?, self.inner.read(whole(lse))?])
            }
            _ => None,
        };
        if let (Some([rows, _]), Op::Attend { qkv, cache: Some(_), .. }) = (&attention, op) {
            for (key, span, _) in self.active.iter().filter(|(_, _, steps)| weighed(steps)) {
                let held = self.held.entry((*key, at)).or_default();
                held.truncate(span.past * qkv.cols);
                held.extend(&rows[span.row * qkv.cols..(span.row + span.rows) * qkv.cols]);
            }
        }
        let touched = |(_, span, steps): &&(u32, Span, Arc<PlacedSteps>)| {
            let here = span.past..span.past + span.rows;
            steps.of_op(at).iter().any(|placed| placed.rows.within(here.clone()).next().is_some())
        };
        if !self.active.iter().any(|one| touched(&one)) {
            return Ok(());
        }
        let draws = match *op {
            Op::Attend { drop, .. } => drop.map(|drop| Draws::new(drop, self.seed)),
            _ => None,
        };
        let (mut values, mut shown) = (self.inner.read(whole(op.output()))?, BTreeMap::new());
        for (key, span, steps) in self.active.iter().filter(touched) {
            let cols = op.output().cols;
            let row_of = |position: usize| span.row + position - span.past;
            if let Some([rows, sums]) = attention.as_ref().filter(|_| weighed(steps)) {
                let begun = self.held.get(&(*key, at)).map_or(&rows[..], Vec::as_slice);
                let Some(mut own) = attended(op, *span, begun, sums) else { continue };
                for (position, head) in
                    (span.past..span.past + span.rows).flat_map(|at| (0..own.heads.n_head).map(move |head| (at, head)))
                {
                    own.head = head;
                    let row = row_of(position);
                    let dropped =
                        |key| draws.map_or(1.0, |draws| draws.factor(weight_index(row, head, own.heads.n_head, key)));
                    if let Some(weights) =
                        reweighed(&own, position, steps.weights(at), (&dropped, &mut values[row * cols..][..cols]))
                        && matches!(op, Op::Attend { pattern: Some(_), .. })
                    {
                        shown.insert((row, head), weights);
                    }
                }
            }
            for (nth, placed) in steps.of_op(at).iter().enumerate() {
                for position in placed.rows.within(span.past..span.past + span.rows) {
                    let Some((columns, change, place)) = placed.columns(position) else { continue };
                    let n = row_of(position);
                    let row = &mut values[n * cols..][..cols];
                    let holds = placed.holds(self.tokens[n], columns, row);
                    let found = holds.then(|| change.apply(place, columns, row));
                    if let Some(measures) = self.measures.as_ref().filter(|_| placed.looks()) {
                        measures.note((at, n, nth), found);
                    }
                }
            }
        }
        self.inner.write(whole(op.output()), &values)?;
        match *op {
            Op::Attend { pattern: Some(pattern), heads, .. } if !shown.is_empty() => {
                let (room, mut all) = (pattern.cols / heads.n_head, self.inner.read(whole(pattern))?);
                for ((row, head), weights) in shown {
                    all[row * pattern.cols + head * room..][..weights.len()].copy_from_slice(&weights);
                }
                self.inner.write(whole(pattern), &all)
            }
            _ => Ok(()),
        }
    }
}

/// Changes the weights of one query of a head: adds to the row of the op's output what all changes are worth together,
/// and returns the weights; none if nothing changes them.
fn reweighed<'a>(
    of: &AttentionHead,
    position: usize,
    changes: impl Iterator<Item = (&'a Rows, &'a [usize], &'a WeightAction)>,
    (dropped, out): (&dyn Fn(usize) -> f32, &mut [f32]),
) -> Option<Vec<f32>> {
    let mine = |(rows, heads, _): &(&Rows, &[usize], &WeightAction)| {
        heads.binary_search(&of.head).is_ok() && rows.contains(position)
    };
    let mut changes = changes.filter(mine).peekable();
    changes.peek()?;
    let weights = Sheet::scores(of.clone(), Stage::Weights).band(position..position + 1, 0..of.span.rows);
    let mut changed = weights.clone();
    changes.for_each(|(_, _, change)| change.apply((position, of.head), 0, &mut changed));
    weigh(of, [&weights, &changed], (dropped, out));
    Some(changed)
}

/// What attention of a sequence is computed from, from its beginning, as if all of it ran now. `rows` are queries, keys
/// and values of the batch or, with a cache, of the sequence so far; `sums` the batch's logs of sums of exponentials.
fn attended(op: &Op, span: Span, rows: &[f32], sums: &[f32]) -> Option<AttentionHead> {
    let Op::Attend { qkv, cache, lse, heads, scoring, .. } = *op else { return None };
    let (all, own) = (span.past + span.rows, span.row * lse.cols..(span.row + span.rows) * lse.cols);
    let first = if cache.is_some() { 0 } else { span.row };
    let rows = rows[first * qkv.cols..(first + all) * qkv.cols].to_vec();
    let sums = [vec![0.0; span.past * lse.cols], sums[own].to_vec()].concat();
    let tensor = |values| Arc::new(NamedTensor { name: String::new(), axes: vec![], shape: vec![], values });
    let span = Span { row: 0, rows: all, past: 0, table: 0, valid: span.valid };
    Some(AttentionHead { qkv: tensor(rows), lse: tensor(sums), heads, head: 0, span, scoring, changes: [].into() })
}

/// Adds to a row of the op's output what other weights of one query are worth; `dropped` is what dropout multiplies the
/// weight of a key with.
fn weigh(of: &AttentionHead, [weights, changed]: [&[f32]; 2], (dropped, out): (&dyn Fn(usize) -> f32, &mut [f32])) {
    let values = of.heads.of_head(of.head)[2].clone();
    let cols = of.qkv.values.len() / of.span.rows;
    let mut worth = vec![0.0f64; values.len()];
    for (key, (new, old)) in changed.iter().zip(weights).enumerate().filter(|(_, (new, old))| new != old) {
        let change = (f64::from(*new) - f64::from(*old)) * f64::from(dropped(key));
        let row = &of.qkv.values[key * cols..][values.clone()];
        worth.iter_mut().zip(row).for_each(|(worth, v)| *worth += change * f64::from(*v));
    }
    for (z, worth) in out[of.head * values.len()..].iter_mut().zip(worth).filter(|(_, worth)| *worth != 0.0) {
        *z = (f64::from(*z) + worth) as f32;
    }
}

impl ColumnAction {
    /// Changes columns of a row; `place` is that of the row among several.
    fn apply(&self, place: usize, columns: &[usize], row: &mut [f32]) -> Measure {
        if let ColumnAction::ProjectOut { unit, keep_norm } = self {
            return project_out(unit, *keep_norm, columns, row);
        }
        for (n, at) in columns.iter().enumerate() {
            let number = self.number(place, n, Measure::default());
            match self {
                ColumnAction::Scale(_) => row[*at] *= number,
                ColumnAction::Add(_) => row[*at] += number,
                _ => row[*at] = number,
            }
        }
        Measure::default()
    }
}

impl WeightAction {
    /// Changes weights of a query: those of the keys from `first` on.
    pub(crate) fn apply(&self, (query, head): (usize, usize), first: usize, weights: &mut [f32]) {
        let keys = first..first + weights.len();
        match self {
            WeightAction::Scale(factor, None) => weights.iter_mut().for_each(|weight| *weight *= factor),
            WeightAction::Scale(factor, Some(some)) => {
                some.range(keys).for_each(|key| weights[key - first] *= factor);
            }
            WeightAction::Set(row) => {
                weights.fill(0.0);
                row.range(keys).for_each(|(key, weight)| weights[key - first] = *weight);
            }
            WeightAction::From(pattern) => {
                let (n_head, all) = (pattern.shape[1], pattern.shape[3]);
                let row = &pattern.values[((head % n_head) * pattern.shape[2] + query) * all..][..all];
                for (key, weight) in keys.zip(weights) {
                    *weight = row.get(key).copied().unwrap_or(0.0);
                }
            }
        }
    }
}

impl Wrapper for InterveningBackend {
    fn inner(&self) -> &dyn Backend {
        &*self.inner
    }
    fn inner_mut(&mut self) -> &mut dyn Backend {
        &mut *self.inner
    }
    fn feed(&mut self, batch: &Batch) -> BackendResult<()> {
        (self.seed, self.active) = (batch.seed, vec![]);
        self.tokens.clone_from(&batch.tokens);
        let spans = batch.spans.iter().enumerate();
        match &mut self.scope {
            Scope::Every(steps, effective) => {
                for (n, span) in spans {
                    let placed = steps.where_they_fit(&batch.tokens[span.row..span.row + span.rows]);
                    effective.extend(placed.steps());
                    self.active.push((n as u32, *span, Arc::new(placed)));
                }
            }
            Scope::Some(sequences) => {
                let changed = sequences.lock();
                for (n, span) in spans.filter(|_| !changed.is_empty()) {
                    let key = batch.blocks.get(span.table).copied().unwrap_or(n as u32);
                    if let Some(steps) = changed.get(&key) {
                        self.active.push((key, *span, steps.clone()));
                    }
                }
                self.held.retain(|(key, _), _| changed.contains_key(key));
            }
        }
        self.inner.feed(batch)
    }
    fn forward(&mut self, ops: Ops) -> BackendResult<()> {
        let changed: BTreeSet<usize> =
            self.active.iter().flat_map(|(_, _, steps)| steps.by_op.keys().copied()).collect();
        let mut done = 0;
        for at in changed {
            let Some(end) = at.checked_sub(ops.start()).filter(|end| (done..ops.len()).contains(end)) else { continue };
            self.inner.forward(ops.part(done..=end))?;
            self.apply(at, &ops.as_slice()[end])?;
            done = end + 1;
        }
        if done == 0 { self.inner.forward(ops) } else { self.inner.forward(ops.part(done..)) }
    }
}

//! Edits: a run whose activations are changed on the way.
//!
//! An [`Edit`] changes some columns of what one op writes, or attention weights, at some positions of a sequence. [`Edits`] are a list of them,
//! checked against a model. [`Edits::on`] applies them to a prompt: it resolves the positions and checks that each step changes something.
//! [`EditedBackend`] wraps another backend: it stops after each edited op, changes what the op wrote, and continues. Ops and kernels are unaware
//! of edits, and sequences without edits run unchanged beside the others in one batch.
//!
//! Attention weights are never in memory while a model runs. So an edit of weights adds Σ Δp v to the head's output, where the weights p come
//! from a [`Sheet`]: weights that stay the same change no bit.

use crate::names;
use crate::sheet::{AttentionHead, Sheet};
use crate::{Labelled, TraceError, unknown};
use limpid_base::plural::plural;
use limpid_core::backend::{Backend, Result as BackendResult, Wrapper};
use limpid_core::kernels::attend::Stage;
use limpid_core::model::{Axes, Model};
use limpid_core::ops::{Batch, Op, Ops, Region, Scoring, Span};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Why a run cannot be changed so. Steps are counted from 1.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EditError {
    /// There is no such tensor.
    #[error("step {step}: {error}")]
    Site {
        /// Which step.
        step: usize,
        /// What is said of its name.
        error: Box<TraceError>,
    },
    /// A tensor that no op of a block writes, so changing it would have no effect.
    #[error("step {step}: `{name}` cannot be changed: {why}; change `{instead}`")]
    NotWritten {
        /// Which step.
        step: usize,
        /// The tensor.
        name: String,
        /// Why not.
        why: &'static str,
        /// A tensor near it that can be.
        instead: String,
    },
    /// A head, unit, layer, position or value that does not fit.
    #[error("step {step}: {what}")]
    Misfit {
        /// Which step.
        step: usize,
        /// What was expected, and what was found.
        what: String,
    },
    /// A step that would change nothing.
    #[error("step {step} changes nothing (no_effect): {what}")]
    NoEffect {
        /// Which step.
        step: usize,
        /// Why.
        what: String,
    },
    /// Two steps that set the same numbers.
    #[error("steps {first} and {second} both set `{name}` at position {position}: leave one out")]
    Contradiction {
        /// The first step.
        first: usize,
        /// The second step.
        second: usize,
        /// The tensor.
        name: String,
        /// A position that both set.
        position: usize,
    },
}

/// The positions of a sequence that a step changes.
#[derive(Clone, Debug, PartialEq)]
pub enum EditPositions {
    /// All.
    All,
    /// Those of the prompt.
    Prompt,
    /// Those that are generated after it.
    Generated,
    /// These; negative ones are counted from the end of the prompt, -1 is its last.
    These(Vec<i64>),
    /// Where the prompt has these tokens.
    Token(Vec<u32>),
}

/// How columns of a row change. Values are one for each column.
#[derive(Clone, Debug, PartialEq)]
pub enum ColumnChange {
    /// Times a factor.
    Scale(f32),
    /// Values are added.
    Add(Arc<[f32]>),
    /// Values take their place.
    Set(Arc<[f32]>),
    /// Values take their place, others at each position.
    SetAt(Arc<BTreeMap<usize, Vec<f32>>>),
}

/// How weights of attention change in the row of a query. A row need not add up to 1 afterwards.
#[derive(Clone, Debug, PartialEq)]
pub enum WeightChange {
    /// Times a factor, those of all keys or of some.
    Scale(f32, Option<Vec<usize>>),
    /// Keys get these weights, all others none.
    Set(Vec<(usize, f32)>),
    /// The rows of another run, [batch head query_pos key_pos], take their place.
    From(Arc<Labelled>),
}

/// A change of attention weights, and the positions of its queries.
pub type PlacedWeights = (BTreeSet<usize>, WeightChange);

/// What of an op's output changes.
#[derive(Clone, Debug, PartialEq)]
enum Part {
    Columns { columns: Vec<usize>, change: ColumnChange },
    Weights { heads: Vec<usize>, scoring: Scoring, change: WeightChange },
}

/// One change of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Edit {
    step: usize,
    name: String,
    op: usize,
    positions: EditPositions,
    part: Part,
}

/// A tensor that can be changed.
#[derive(Clone, Debug)]
pub struct EditSite {
    step: usize,
    /// Its name.
    pub name: String,
    op: usize,
    /// The columns of the op's output, in the order in which they are shown.
    columns: Vec<usize>,
    /// How many columns a head has, if it is divided into heads.
    d_head: Option<usize>,
    /// Whether it is the weights of attention: of how many heads, and which keys a query sees.
    pattern: Option<(usize, Scoring)>,
}

impl EditSite {
    /// The tensor of that name; `named` has a place for every tensor (`Mode::Inspect`), `step` is for errors.
    ///
    /// # Errors
    /// If there is none, or it is no op's own output, or the head's.
    pub fn find(named: &Model, name: &str, step: usize) -> Result<EditSite, EditError> {
        let site = |error: TraceError| EditError::Site { step, error: error.into() };
        let Some(tensor) = named.tensor(name) else {
            if name != "input" && named.param(name).is_none() && names::derivation(named, name).is_none() {
                return Err(site(unknown(named, name)));
            }
            let why = "it is no activation that an op writes";
            return Err(EditError::NotWritten { step, name: name.into(), why, instead: near(named, name) });
        };
        let ops = named.ops();
        let attends = |op: &Op| match *op {
            Op::Attend { pattern: Some(pattern), scoring, .. } if pattern == tensor.region => Some(scoring),
            _ => None,
        };
        if let Some((op, scoring)) = ops.iter().enumerate().find_map(|(op, one)| Some((op, attends(one)?))) {
            let (columns, pattern) = (vec![], Some((named.config.n_head, scoring)));
            return Ok(EditSite { step, name: name.into(), op, columns, d_head: None, pattern });
        }
        let not_written = |why| EditError::NotWritten { step, name: name.into(), why, instead: near(named, name) };
        let op = ops.iter().rposition(|op| op.output() == tensor.region);
        let op = op.ok_or_else(|| not_written("it is computed beside the run, and nothing reads it"))?;
        if named.blocks.last().is_some_and(|last| op >= last.end) {
            return Err(not_written("it comes after the last block, where logits are computed row by row"));
        }
        let stored = |i: usize| tensor.cols.start + tensor.order.map_or(i, |order| order.stored(i));
        let d_head = match tensor.axes {
            Axes::Heads => Some(named.config.d_head()),
            Axes::Values => Some(named.config.d_value()),
            _ => None,
        };
        let columns = (0..tensor.cols.len()).map(stored).collect();
        Ok(EditSite { step, name: name.into(), op, columns, d_head, pattern: None })
    }

    /// The op that writes it, by its place in the list.
    pub(crate) fn op(&self) -> usize {
        self.op
    }

    /// Whether it is the weights of attention.
    pub fn is_pattern(&self) -> bool {
        self.pattern.is_some()
    }

    /// How many numbers a position has.
    pub fn width(&self) -> usize {
        self.columns.len()
    }

    /// Some of its columns, as they are shown: of heads, or units, or all.
    ///
    /// # Errors
    /// If it has no heads or has fewer, or has fewer units.
    pub fn shown(&self, heads: Option<&[usize]>, units: Option<&[usize]>) -> Result<Vec<usize>, EditError> {
        let (step, name) = (self.step, &self.name);
        let misfit = |what| Err(EditError::Misfit { step, what });
        match (heads, units, self.d_head) {
            (Some(_), Some(_), _) => misfit("give heads or units, not both".into()),
            (Some(_), None, None) => misfit(format!("`{name}` is not divided into heads: leave `head` out")),
            (None, Some(_), Some(_)) => {
                misfit(format!("`{name}` is divided into heads: give `head` in place of `unit`"))
            }
            (Some(heads), None, Some(d)) => {
                inside(step, name, "head", heads, self.columns.len() / d)?;
                Ok(heads.iter().flat_map(|head| head * d..(head + 1) * d).collect())
            }
            (None, Some(units), None) => {
                inside(step, name, "unit", units, self.columns.len())?;
                Ok(units.to_vec())
            }
            (None, None, _) => Ok((0..self.columns.len()).collect()),
        }
    }

    /// A change of some columns, numbered as they are shown.
    ///
    /// # Errors
    /// If there are not as many values as columns.
    pub fn edit(&self, shown: &[usize], positions: EditPositions, change: ColumnChange) -> Result<Edit, EditError> {
        let (step, name) = (self.step, self.name.clone());
        let wide = match &change {
            ColumnChange::Scale(_) => shown.len(),
            ColumnChange::Add(values) | ColumnChange::Set(values) => values.len(),
            ColumnChange::SetAt(rows) => rows.values().next().map_or(shown.len(), Vec::len),
        };
        if wide != shown.len() {
            let what = format!("`{name}` has {} here and {} were given", plural(shown.len(), "number"), wide);
            return Err(EditError::Misfit { step, what });
        }
        let columns = shown.iter().map(|i| self.columns[*i]).collect();
        Ok(Edit { step, name, op: self.op, positions, part: Part::Columns { columns, change } })
    }

    /// A change of weights of attention, of all heads or of some.
    ///
    /// # Errors
    /// If there are fewer heads.
    pub fn edit_weights(
        &self,
        heads: Option<&[usize]>,
        positions: EditPositions,
        change: WeightChange,
    ) -> Result<Edit, EditError> {
        let (step, name) = (self.step, self.name.clone());
        let Some((n_head, scoring)) = self.pattern else {
            return Err(EditError::Misfit { step, what: format!("`{name}` has no weights of keys") });
        };
        let heads = heads.map_or_else(|| (0..n_head).collect(), <[usize]>::to_vec);
        inside(step, &name, "head", &heads, n_head)?;
        Ok(Edit { step, name, op: self.op, positions, part: Part::Weights { heads, scoring, change } })
    }
}

/// That numbers are given, and each is one of so many.
fn inside(step: usize, name: &str, what: &str, numbers: &[usize], count: usize) -> Result<(), EditError> {
    if numbers.is_empty() {
        return Err(EditError::NoEffect { step, what: format!("the list of `{what}` is empty") });
    }
    let misfit = |what| Err(EditError::Misfit { step, what });
    if let Some(n) = numbers.iter().find(|n| **n >= count) {
        return misfit(format!("`{name}` has no {what} {n}: there are {count}, counted from 0"));
    }
    let mut known = BTreeSet::new();
    match numbers.iter().find(|n| !known.insert(**n)) {
        Some(n) => misfit(format!("`{what}` names {n} twice")),
        None => Ok(()),
    }
}

/// The tensor nearest to one that cannot be changed: what the op writes that has it, in its block.
fn near(named: &Model, name: &str) -> String {
    let last_block = named.blocks.len().saturating_sub(1);
    let block = names::lookup(name).and_then(|(_, block)| block);
    let hook = match name.rsplit('.').next().unwrap_or(name) {
        "hook_attn_scores" | "hook_raw_scores" | "hook_unscaled_scores" | "hook_lse" => "attn.hook_pattern",
        "hook_normalized" | "hook_scale" | "hook_mean" if name.contains("ln1") => "ln1.hook_out",
        "hook_normalized" | "hook_scale" | "hook_mean" if name.contains("ln2") => "ln2.hook_out",
        _ if block.is_none() && (name.contains("embed") || name == "input") => return "blocks.0.hook_resid_pre".into(),
        _ => "hook_resid_post",
    };
    format!("blocks.{}.{hook}", block.unwrap_or(last_block))
}

/// Edits of a run. Those at the same site apply in this order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Edits(Vec<Edit>);

impl FromIterator<Edit> for Edits {
    fn from_iter<I: IntoIterator<Item = Edit>>(edits: I) -> Edits {
        Edits(edits.into_iter().collect())
    }
}

impl Edits {
    /// Each.
    pub fn iter(&self) -> std::slice::Iter<'_, Edit> {
        self.0.iter()
    }

    /// What they make of the weights of a head in a sequence: of the op `at`.
    pub(crate) fn of_head(&self, at: usize, head: usize, tokens: &[u32]) -> Arc<[PlacedWeights]> {
        let weights = |edit: &Edit| match &edit.part {
            Part::Weights { heads, change, .. } if edit.op == at && heads.contains(&head) => {
                Some((edit.where_it_fits(tokens)?, change.clone()))
            }
            _ => None,
        };
        self.0.iter().filter_map(weights).collect()
    }

    /// Bytes of the numbers that they put into runs.
    pub fn bytes(&self) -> usize {
        let numbers = |edit: &Edit| match &edit.part {
            Part::Columns { change: ColumnChange::Add(values) | ColumnChange::Set(values), .. } => values.len(),
            Part::Columns { change: ColumnChange::SetAt(rows), .. } => rows.values().map(Vec::len).sum(),
            Part::Weights { change: WeightChange::From(pattern), .. } => pattern.values.len(),
            _ => 0,
        };
        self.0.iter().map(numbers).sum::<usize>() * size_of::<f32>()
    }

    /// Those of them that change something of a sequence.
    fn where_they_fit(&self, tokens: &[u32]) -> PlacedEdits {
        PlacedEdits(self.0.iter().filter_map(|edit| Some((edit.where_it_fits(tokens)?, edit.clone()))).collect())
    }

    /// The edits of a sequence that begins with `prompt` and comes to have `positions` positions.
    ///
    /// # Errors
    /// If a position is not in it, a step changes nothing there, or two set the same.
    pub fn on(&self, prompt: &[u32], positions: usize) -> Result<PlacedEdits, EditError> {
        let mut placed = vec![];
        for edit in &self.0 {
            placed.push((edit.place(prompt, positions)?, edit.clone()));
        }
        let mut setting: Vec<(SetBits, &BTreeSet<usize>, &Edit)> = vec![];
        for (rows, edit) in &placed {
            let Some(bits) = edit.set_bits() else { continue };
            for (_, others, other) in setting.iter().filter(|(of, ..)| of.meet(&bits)) {
                if let Some(position) = rows.intersection(others).next() {
                    let (first, second, name) = (other.step, edit.step, edit.name.clone());
                    return Err(EditError::Contradiction { first, second, name, position: *position });
                }
            }
            setting.push((bits, rows, edit));
        }
        Ok(PlacedEdits(placed))
    }
}

impl EditPositions {
    fn on(&self, edit: &Edit, prompt: &[u32], all: usize) -> Result<BTreeSet<usize>, EditError> {
        let (step, held) = (edit.step, prompt.len());
        let found: BTreeSet<usize> = match self {
            EditPositions::All => (0..all).collect(),
            EditPositions::Prompt => (0..held).collect(),
            EditPositions::Generated => (held..all).collect(),
            EditPositions::Token(ids) => {
                let starts = |at: &usize| prompt[*at..].starts_with(ids);
                (0..held).filter(starts).flat_map(|at| at..at + ids.len()).collect()
            }
            EditPositions::These(listed) => {
                let of = |at: &i64| {
                    position_in(*at, held).filter(|at| *at < all).ok_or_else(|| {
                        let what = format!(
                            "there is no position {at}: the sequence has {all}, of which {held} are the prompt's"
                        );
                        EditError::Misfit { step, what }
                    })
                };
                listed.iter().map(of).collect::<Result<_, _>>()?
            }
        };
        if found.is_empty() {
            let what = match self {
                EditPositions::Generated => "nothing after the prompt is run: generate at least 2 tokens".to_string(),
                EditPositions::Token(_) => format!("the prompt ({}) does not have that token", plural(held, "token")),
                _ => "there are no positions".into(),
            };
            return Err(EditError::NoEffect { step, what });
        }
        Ok(found)
    }
}

/// A position that may be counted from the end of so many tokens: -1 is the last. One that is not negative may lie beyond them.
pub fn position_in(at: i64, tokens: usize) -> Option<usize> {
    usize::try_from(at).ok().or_else(|| tokens.checked_sub(at.unsigned_abs() as usize))
}

impl Edit {
    /// Its positions in a sequence that begins with `prompt` and comes to have so many.
    fn place(&self, prompt: &[u32], positions: usize) -> Result<BTreeSet<usize>, EditError> {
        let rows = self.positions.on(self, prompt, positions)?;
        self.check(&rows, prompt.len())?;
        Ok(rows)
    }

    /// Its positions in a sequence, if it changes something there.
    fn where_it_fits(&self, tokens: &[u32]) -> Option<BTreeSet<usize>> {
        self.place(tokens, tokens.len()).ok()
    }

    /// What it sets of a row; none if it changes what is there.
    fn set_bits(&self) -> Option<SetBits> {
        let (of_weights, numbers) = match &self.part {
            Part::Columns { columns, change: ColumnChange::Set(_) | ColumnChange::SetAt(_) } => (false, columns),
            Part::Weights { heads, change: WeightChange::Set(_) | WeightChange::From(_), .. } => (true, heads),
            _ => return None,
        };
        let mut bits = vec![0; numbers.iter().max().map_or(0, |most| most / 64 + 1)];
        numbers.iter().for_each(|n| bits[n / 64] |= 1 << (n % 64));
        Some(SetBits { op: self.op, of_weights, bits })
    }

    /// That it has values for these positions.
    fn check(&self, rows: &BTreeSet<usize>, prompt: usize) -> Result<(), EditError> {
        let step = self.step;
        let sees = |scoring: &Scoring, row: usize| {
            let all = prompt.max(row + 1);
            scoring.sees(&Span { row: 0, rows: all, past: 0, table: 0, valid: all }, row)
        };
        let missing = |have: usize, at: usize| {
            let what = format!(
                "`{}` is patched at position {at} from a run of {}, and the prompt has {prompt}: {}",
                self.name,
                plural(have, "token"),
                if at < prompt {
                    "give `pos` and `from_pos`, or a source of the same length"
                } else {
                    "what follows the prompt has no counterpart, so give \"pos\": \"prompt\""
                }
            );
            Err(EditError::Misfit { step, what })
        };
        match &self.part {
            Part::Columns { change: ColumnChange::SetAt(values), .. } => {
                match rows.iter().find(|at| !values.contains_key(at)) {
                    Some(at) => missing(values.len(), *at),
                    None => Ok(()),
                }
            }
            Part::Weights { change: WeightChange::From(pattern), .. } => {
                let have = pattern.shape[2];
                match rows.iter().find(|at| **at >= have) {
                    Some(at) => missing(have, *at),
                    None => Ok(()),
                }
            }
            Part::Weights { change: WeightChange::Set(weights), scoring, .. } => {
                let hidden = |row: &usize| weights.iter().find(|(key, _)| !sees(scoring, *row).contains(key));
                match rows.iter().find_map(|row| Some((row, hidden(row)?.0))) {
                    Some((row, key)) => {
                        let what = format!("`{}` at position {row} does not see the key at {key}", self.name);
                        Err(EditError::Misfit { step, what })
                    }
                    None => Ok(()),
                }
            }
            Part::Weights { change: WeightChange::Scale(_, Some(keys)), scoring, .. } => {
                let seen = |row: &usize| keys.iter().any(|key| sees(scoring, *row).contains(key));
                if rows.iter().any(seen) {
                    return Ok(());
                }
                Err(EditError::NoEffect { step, what: format!("no position of `{}` sees these keys", self.name) })
            }
            _ => Ok(()),
        }
    }
}

/// Columns of an op's output, or its heads' weights: a bit each.
struct SetBits {
    op: usize,
    of_weights: bool,
    bits: Vec<u64>,
}

impl SetBits {
    fn meet(&self, other: &SetBits) -> bool {
        let alike = (self.op, self.of_weights) == (other.op, other.of_weights);
        alike && self.bits.iter().zip(&other.bits).any(|(a, b)| a & b != 0)
    }
}

/// Edits of one sequence, in their order.
#[derive(Clone, Debug, PartialEq)]
pub struct PlacedEdits(Vec<(BTreeSet<usize>, Edit)>);

impl PlacedEdits {
    fn at(&self, op: usize) -> impl Iterator<Item = (&BTreeSet<usize>, &Edit)> {
        self.0.iter().filter(move |(_, edit)| edit.op == op).map(|(rows, edit)| (rows, edit))
    }
    /// Whether attention weights change. The backend then keeps keys and values of the whole sequence.
    fn weighs(&self) -> bool {
        self.0.iter().any(|(_, edit)| matches!(edit.part, Part::Weights { .. }))
    }
}

/// Which sequences of an [`EditedBackend`] are edited, and how. Clones share one list.
///
/// With a KV cache, a sequence is identified by its first block, which it must not share; without one, by its place in the batch.
#[derive(Clone, Default)]
pub struct EditedSequences(Arc<Mutex<HashMap<u32, Arc<PlacedEdits>>>>);

impl EditedSequences {
    fn lock(&self) -> MutexGuard<'_, HashMap<u32, Arc<PlacedEdits>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// From the next run on the sequence is edited so.
    pub fn insert(&self, sequence: u32, edits: Arc<PlacedEdits>) {
        self.lock().insert(sequence, edits);
    }
    /// From the next run on the sequence is as the model makes it.
    pub fn remove(&self, sequence: u32) {
        self.lock().remove(&sequence);
    }
}

/// Which sequences a backend changes.
enum Edited {
    Some(EditedSequences),
    /// All; and the steps that have changed one.
    Every {
        edits: Arc<Edits>,
        steps: BTreeSet<usize>,
    },
}

/// A backend around another one that edits some or all sequences.
pub struct EditedBackend {
    inner: Box<dyn Backend>,
    edited: Edited,
    /// Rows of the batch.
    rows: usize,
    /// The edited sequences of the batch.
    active: Vec<(u32, Span, Arc<PlacedEdits>)>,
    /// Queries, keys and values so far of sequences whose weights of attention are edited, by sequence and op.
    held: HashMap<(u32, usize), Vec<f32>>,
}

impl EditedBackend {
    /// A backend around another one that changes the sequences of a list.
    pub fn new(inner: Box<dyn Backend>, edited: EditedSequences) -> EditedBackend {
        EditedBackend { inner, edited: Edited::Some(edited), rows: 0, active: vec![], held: HashMap::new() }
    }

    /// A backend around another one without a KV cache, for a batch whose sequences are all to be changed; that one itself if nothing is.
    ///
    /// # Errors
    /// As [`Edits::on`], of any sequence.
    pub fn around(
        inner: Box<dyn Backend>,
        edits: Option<&Arc<Edits>>,
        batch: &Batch,
    ) -> Result<Box<dyn Backend>, EditError> {
        let Some(edits) = edits else { return Ok(inner) };
        for span in &batch.spans {
            edits.on(&batch.tokens[span.row..span.row + span.rows], span.rows)?;
        }
        Ok(Box::new(EditedBackend::every(inner, edits.clone())))
    }

    /// A backend around another one without a KV cache that changes every sequence, as far as its tokens have what a step is about.
    pub fn every(inner: Box<dyn Backend>, edits: Arc<Edits>) -> EditedBackend {
        let edited = Edited::Every { edits, steps: BTreeSet::new() };
        EditedBackend { inner, edited, rows: 0, active: vec![], held: HashMap::new() }
    }

    /// That every step has changed something so far, where every sequence is changed.
    ///
    /// # Errors
    /// Names the first that has not.
    pub fn check_effect(&self) -> Result<(), EditError> {
        let Edited::Every { edits, steps } = &self.edited else { return Ok(()) };
        match edits.0.iter().find(|edit| !steps.contains(&edit.step)) {
            Some(Edit { step, .. }) => {
                Err(EditError::NoEffect { step: *step, what: "no sequence has such a position".into() })
            }
            None => Ok(()),
        }
    }

    /// Changes what an op has written.
    fn apply(&mut self, at: usize, op: &Op) -> BackendResult<()> {
        let whole = |region: Region| Region { rows: self.rows, ..region };
        let weighed = self.active.iter().any(|(_, _, edits)| edits.weighs());
        let attention = match *op {
            Op::Attend { qkv, lse, .. } if weighed => {
                Some([self.inner.read(whole(qkv))?, self.inner.read(whole(lse))?])
            }
            _ => None,
        };
        if let (Some([rows, _]), Op::Attend { qkv, cache: Some(_), .. }) = (&attention, op) {
            for (key, span, _) in self.active.iter().filter(|(_, _, edits)| edits.weighs()) {
                let held = self.held.entry((*key, at)).or_default();
                held.truncate(span.past * qkv.cols);
                held.extend(&rows[span.row * qkv.cols..(span.row + span.rows) * qkv.cols]);
            }
        }
        let mut out = None;
        for (key, span, edits) in &self.active {
            let own = attention.as_ref().filter(|_| edits.weighs());
            let own = own.and_then(|[rows, sums]| {
                let begun = self.held.get(&(*key, at)).map_or(&rows[..], Vec::as_slice);
                attended(op, *span, begun, sums)
            });
            for (positions, edit) in edits.at(at) {
                for position in positions.range(span.past..span.past + span.rows) {
                    let (values, shown) = match &mut out {
                        Some(read) => read,
                        None => out.insert((self.inner.read(whole(op.output()))?, BTreeMap::new())),
                    };
                    let row = span.row + position - span.past;
                    let values = &mut values[row * op.output().cols..][..op.output().cols];
                    match (&edit.part, &own) {
                        (Part::Columns { columns, change }, _) => change.apply(*position, columns, values),
                        (Part::Weights { heads, change, .. }, Some(own)) => {
                            for head in heads {
                                let query = AttentionHead { head: *head, ..own.clone() };
                                let before = shown.remove(&(row, *head));
                                shown.insert((row, *head), weigh(query, *position, before, change, values));
                            }
                        }
                        (Part::Weights { .. }, None) => {}
                    }
                }
            }
        }
        let Some((values, shown)) = out else { return Ok(()) };
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

/// What attention of a sequence is computed from, from its beginning, as if all of it ran now. `rows` are queries, keys and values of the
/// batch or, with a cache, of the sequence so far; `sums` the batch's logs of sums of exponentials.
fn attended(op: &Op, span: Span, rows: &[f32], sums: &[f32]) -> Option<AttentionHead> {
    let Op::Attend { qkv, cache, lse, heads, scoring, .. } = *op else { return None };
    let (all, own) = (span.past + span.rows, span.row * lse.cols..(span.row + span.rows) * lse.cols);
    let first = if cache.is_some() { 0 } else { span.row };
    let rows = rows[first * qkv.cols..(first + all) * qkv.cols].to_vec();
    let sums = [vec![0.0; span.past * lse.cols], sums[own].to_vec()].concat();
    let tensor = |values| Arc::new(Labelled { name: String::new(), axes: vec![], shape: vec![], values });
    let span = Span { row: 0, rows: all, past: 0, table: 0, valid: span.valid };
    Some(AttentionHead { qkv: tensor(rows), lse: tensor(sums), heads, head: 0, span, scoring, changes: [].into() })
}

/// Changes the weights of one query of a head: adds to the row of the op's output what that is worth, and returns the weights. `before` are
/// the weights if an earlier step changed them.
fn weigh(
    of: AttentionHead,
    position: usize,
    before: Option<Vec<f32>>,
    change: &WeightChange,
    out: &mut [f32],
) -> Vec<f32> {
    let AttentionHead { qkv, heads, head, span, .. } = of.clone();
    let weights =
        before.unwrap_or_else(|| Sheet::scores(of, Stage::Weights).band(position..position + 1, 0..span.rows));
    let mut changed = weights.clone();
    change.apply((position, head), 0, &mut changed);
    let values = heads.of_head(head)[2].clone();
    let cols = qkv.values.len() / span.rows;
    for (i, z) in out[head * values.len()..(head + 1) * values.len()].iter_mut().enumerate() {
        let value = qkv.values.chunks_exact(cols).map(|row| f64::from(row[values.start + i]));
        let each = changed.iter().zip(&weights).zip(value).filter(|((new, old), _)| new != old);
        let worth: f64 = each.map(|((new, old), v)| (f64::from(*new) - f64::from(*old)) * v).sum();
        if worth != 0.0 {
            *z = (f64::from(*z) + worth) as f32;
        }
    }
    changed
}

impl ColumnChange {
    fn apply(&self, position: usize, columns: &[usize], row: &mut [f32]) {
        let each = columns.iter().copied();
        match self {
            ColumnChange::Scale(factor) => each.for_each(|at| row[at] *= factor),
            ColumnChange::Add(values) => each.zip(values.iter()).for_each(|(at, v)| row[at] += v),
            ColumnChange::Set(values) => each.zip(values.iter()).for_each(|(at, v)| row[at] = *v),
            ColumnChange::SetAt(rows) => {
                let values = rows.get(&position).map_or(&[][..], Vec::as_slice);
                each.zip(values).for_each(|(at, v)| row[at] = *v);
            }
        }
    }
}

impl WeightChange {
    /// Changes weights of a query: those of the keys from `first` on.
    pub(crate) fn apply(&self, (query, head): (usize, usize), first: usize, weights: &mut [f32]) {
        for (key, weight) in (first..).zip(weights) {
            match self {
                WeightChange::Scale(factor, keys) => {
                    if keys.as_ref().is_none_or(|keys| keys.contains(&key)) {
                        *weight *= factor;
                    }
                }
                WeightChange::Set(row) => *weight = row.iter().find(|(own, _)| *own == key).map_or(0.0, |own| own.1),
                WeightChange::From(pattern) => {
                    let (n_head, keys) = (pattern.shape[1], pattern.shape[3]);
                    let row = &pattern.values[((head % n_head) * pattern.shape[2] + query) * keys..][..keys];
                    *weight = row.get(key).copied().unwrap_or(0.0);
                }
            }
        }
    }
}

impl Wrapper for EditedBackend {
    fn inner(&self) -> &dyn Backend {
        &*self.inner
    }
    fn inner_mut(&mut self) -> &mut dyn Backend {
        &mut *self.inner
    }
    fn feed(&mut self, batch: &Batch) -> BackendResult<()> {
        (self.rows, self.active) = (batch.tokens.len(), vec![]);
        let spans = batch.spans.iter().enumerate();
        match &mut self.edited {
            Edited::Every { edits, steps } => {
                for (n, span) in spans {
                    let placed = edits.where_they_fit(&batch.tokens[span.row..span.row + span.rows]);
                    steps.extend(placed.0.iter().map(|(_, edit)| edit.step));
                    self.active.push((n as u32, *span, Arc::new(placed)));
                }
            }
            Edited::Some(edited) => {
                let edited = edited.lock();
                for (n, span) in spans.filter(|_| !edited.is_empty()) {
                    let key = batch.blocks.get(span.table).copied().unwrap_or(n as u32);
                    if let Some(edits) = edited.get(&key) {
                        self.active.push((key, *span, edits.clone()));
                    }
                }
                self.held.retain(|(key, _), _| edited.contains_key(key));
            }
        }
        self.inner.feed(batch)
    }
    fn forward(&mut self, ops: Ops) -> BackendResult<()> {
        let mut edited: Vec<usize> = vec![];
        for (_, _, edits) in &self.active {
            let weighs = edits.weighs();
            edited.extend(edits.0.iter().map(|(_, edit)| edit.op));
            let attends = |(i, op): (usize, &Op)| matches!(op, Op::Attend { .. }).then_some(ops.start() + i);
            edited.extend(ops.iter().enumerate().filter_map(attends).filter(|_| weighs));
        }
        edited.sort_unstable();
        edited.dedup();
        let mut done = 0;
        for at in edited {
            let Some(end) = at.checked_sub(ops.start()).filter(|end| (done..ops.len()).contains(end)) else { continue };
            self.inner.forward(ops.part(done..=end))?;
            self.apply(at, &ops.as_slice()[end])?;
            done = end + 1;
        }
        if done == 0 { self.inner.forward(ops) } else { self.inner.forward(ops.part(done..)) }
    }
}

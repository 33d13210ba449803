//! Steps resolved against a model: which op writes what they change, which columns, and what becomes of these; and
//! placed in a prompt.
//!
//! A [`ResolvedStep`] changes some columns of what one op writes, or attention weights, at some positions of a
//! sequence. [`ResolvedSteps::on`] places a list of them in a prompt: it resolves the positions and checks that each
//! step changes something.

use super::measures::{Measure, Measures, StepCondition};
use super::{InterventionError, Rows};
use crate::names::{self, Derived};
use crate::{NamedTensor, TraceError, unknown};
use limpid_base::plural::plural;
use limpid_core::model::{Axes, Model};
use limpid_core::ops::{Op, Scoring, Span};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The positions of a sequence that a step changes.
#[derive(Clone, Debug, PartialEq)]
pub enum StepPositions {
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

/// What becomes of columns of a row. Values are one for each column.
#[derive(Clone, Debug, PartialEq)]
pub enum ColumnAction {
    /// Times a factor.
    Scale(f32),
    /// Values are added.
    Add(Arc<[f32]>),
    /// Values take their place.
    Set(Arc<[f32]>),
    /// Rows of a run of equally many tokens take their place, each at its own position.
    SetFrom(Arc<[Arc<[f32]>]>),
    /// Rows take their place, one at each of the listed positions, in the order of the list.
    SetEach(Arc<[Arc<[f32]>]>),
    /// They lose what lies along a unit vector ([`unit_vector`](super::unit_vector)).
    ProjectOut {
        /// The unit vector.
        unit: Arc<[f64]>,
        /// Whether the columns are then as long as they were.
        keep_norm: bool,
    },
}

/// What becomes of weights of attention in the row of a query. A row need not add up to 1 afterwards.
#[derive(Clone, Debug, PartialEq)]
pub enum WeightAction {
    /// Times a factor, those of all keys or of some.
    Scale(f32, Option<Arc<BTreeSet<usize>>>),
    /// Keys get these weights; all others none.
    Set(Arc<BTreeMap<usize, f32>>),
    /// The rows of another run, [batch head query_pos key_pos], take their place.
    From(Arc<NamedTensor>),
}

/// What becomes of attention weights, and the positions of its queries.
pub type PlacedWeights = (Rows, WeightAction);

/// What of an op's output changes.
#[derive(Clone, Debug, PartialEq)]
enum Part {
    Columns { columns: Arc<[usize]>, action: ColumnAction },
    Weights { heads: Arc<[usize]>, pattern: Pattern, action: WeightAction },
}

/// Weights of attention: of how many heads, which keys a query sees, and how many numbers a query, and what it reads,
/// have together.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Pattern {
    n_head: usize,
    scoring: Scoring,
    wide: usize,
}

/// A step at one site of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct ResolvedStep {
    pub(super) number: usize,
    name: String,
    op: usize,
    positions: StepPositions,
    when: Option<StepCondition>,
    part: Part,
}

/// A tensor that can be changed.
#[derive(Clone, Debug)]
pub struct StepSite {
    step: usize,
    /// Its name.
    pub name: String,
    /// What an op writes, if the tensor is that times a factor: its name, and the factor.
    stretched: Option<(String, f32)>,
    op: usize,
    /// The columns of the op's output, in the order in which they are shown.
    columns: Vec<usize>,
    /// How many columns a head has, if it is divided into heads.
    d_head: Option<usize>,
    /// Whether it is the weights of attention.
    pattern: Option<Pattern>,
}

impl StepSite {
    /// The tensor of that name; `named` has a place for every tensor (`Mode::Inspect`), `step` is for errors.
    ///
    /// # Errors
    /// If there is none, or it is no op's own output, or the head's.
    pub fn find(named: &Model, name: &str, step: usize) -> Result<StepSite, InterventionError> {
        let site = |error: TraceError| InterventionError::Site { step, error: error.into() };
        let Some(tensor) = named.tensor(name) else {
            if let Some(Derived::Scaled { of, factor }) = names::derivation(named, name) {
                let own = StepSite::find(named, &of, step)?;
                return Ok(StepSite { name: name.into(), stretched: Some((of, factor)), ..own });
            }
            if name != "input" && named.param(name).is_none() && names::derivation(named, name).is_none() {
                return Err(site(unknown(named, name)));
            }
            let why = "it is no activation that an op writes";
            return Err(InterventionError::NotWritten { step, name: name.into(), why, instead: near(named, name) });
        };
        let ops = named.ops();
        let attends = |op: &Op| match *op {
            Op::Attend { pattern: Some(pattern), scoring, .. } if pattern == tensor.region => Some(scoring),
            _ => None,
        };
        if let Some((op, scoring)) = ops.iter().enumerate().find_map(|(op, one)| Some((op, attends(one)?))) {
            let (heads, columns) = (named.config.heads(), vec![]);
            let pattern = Pattern { n_head: heads.n_head, scoring, wide: heads.d_head + heads.d_value };
            return Ok(StepSite {
                step,
                name: name.into(),
                stretched: None,
                op,
                columns,
                d_head: None,
                pattern: Some(pattern),
            });
        }
        let not_written =
            |why| InterventionError::NotWritten { step, name: name.into(), why, instead: near(named, name) };
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
        Ok(StepSite { step, name: name.into(), stretched: None, op, columns, d_head, pattern: None })
    }

    /// The op that writes it, by its place in the list.
    pub(crate) fn op(&self) -> usize {
        self.op
    }

    /// The tensor whose values a step puts in: its own, or what a factor stretches to it.
    pub fn tensor(&self) -> &str {
        self.stretched.as_ref().map_or(&self.name, |(of, _)| of)
    }

    /// Numbers of it as a step puts them in: those of [`StepSite::tensor`].
    pub fn unstretched(&self, values: impl IntoIterator<Item = f32>) -> Vec<f32> {
        let factor = self.stretched.as_ref().map_or(1.0, |(_, factor)| *factor);
        values.into_iter().map(|v| v / factor).collect()
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
    pub fn shown(&self, heads: Option<&[usize]>, units: Option<&[usize]>) -> Result<Vec<usize>, InterventionError> {
        let (step, name) = (self.step, &self.name);
        let misfit = |what| Err(InterventionError::Step { step, what });
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

    /// A step on some columns, numbered as they are shown, by numbers of [`StepSite::tensor`].
    ///
    /// # Errors
    /// If there are not as many values as columns.
    pub fn step(
        &self,
        shown: &[usize],
        positions: StepPositions,
        action: ColumnAction,
    ) -> Result<ResolvedStep, InterventionError> {
        let (step, name) = (self.step, self.name.clone());
        let wide = match &action {
            ColumnAction::Scale(_) => shown.len(),
            ColumnAction::ProjectOut { unit, .. } => unit.len(),
            ColumnAction::Add(values) | ColumnAction::Set(values) => values.len(),
            ColumnAction::SetFrom(rows) | ColumnAction::SetEach(rows) => {
                rows.first().map_or(shown.len(), |row| row.len())
            }
        };
        if wide != shown.len() {
            let what = format!("`{name}` has {} here and {} were given", plural(shown.len(), "number"), wide);
            return Err(InterventionError::Step { step, what });
        }
        let columns = shown.iter().map(|i| self.columns[*i]).collect();
        let part = Part::Columns { columns, action };
        Ok(ResolvedStep { number: step, name, op: self.op, positions, when: None, part })
    }

    /// A step on weights of attention, of all heads or of some.
    ///
    /// # Errors
    /// If there are fewer heads.
    pub fn weights_step(
        &self,
        heads: Option<&[usize]>,
        positions: StepPositions,
        action: WeightAction,
    ) -> Result<ResolvedStep, InterventionError> {
        let (step, name) = (self.step, self.name.clone());
        let Some(pattern) = self.pattern else {
            return Err(InterventionError::Step { step, what: format!("`{name}` has no weights of keys") });
        };
        let mut heads = heads.map_or_else(|| (0..pattern.n_head).collect(), <[usize]>::to_vec);
        inside(step, &name, "head", &heads, pattern.n_head)?;
        heads.sort_unstable();
        let part = Part::Weights { heads: heads.into(), pattern, action };
        Ok(ResolvedStep { number: step, name, op: self.op, positions, when: None, part })
    }
}

/// That numbers are given, and each is one of so many.
fn inside(step: usize, name: &str, what: &str, numbers: &[usize], count: usize) -> Result<(), InterventionError> {
    if numbers.is_empty() {
        return Err(InterventionError::NoEffect { step, what: format!("the list of `{what}` is empty") });
    }
    let misfit = |what| Err(InterventionError::Step { step, what });
    if let Some(n) = numbers.iter().find(|n| **n >= count) {
        return misfit(format!("`{name}` has no {what} {n}: there are {count}, counted from 0"));
    }
    once(what, numbers.iter().copied()).or_else(misfit)
}

/// That a list names each number once.
fn once(what: &str, numbers: impl IntoIterator<Item = usize>) -> Result<(), String> {
    let mut known = BTreeSet::new();
    match numbers.into_iter().find(|n| !known.insert(*n)) {
        Some(n) => Err(format!("`{what}` names {n} twice")),
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

/// ResolvedSteps of a run. Those at the same site apply in this order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResolvedSteps(Vec<ResolvedStep>);

impl FromIterator<ResolvedStep> for ResolvedSteps {
    fn from_iter<I: IntoIterator<Item = ResolvedStep>>(steps: I) -> ResolvedSteps {
        ResolvedSteps(steps.into_iter().collect())
    }
}

impl ResolvedSteps {
    /// Each.
    pub fn iter(&self) -> std::slice::Iter<'_, ResolvedStep> {
        self.0.iter()
    }

    /// Bytes of the numbers that they put into runs, and of where these go.
    pub fn bytes(&self) -> usize {
        let rows = |rows: &[Arc<[f32]>]| rows.iter().map(|row| row.len()).sum::<usize>();
        let numbers = |step: &ResolvedStep| match &step.part {
            Part::Columns { columns, action } => match action {
                ColumnAction::Scale(_) => 2 * columns.len(),
                ColumnAction::ProjectOut { unit, .. } => 2 * unit.len() + 2 * columns.len(),
                ColumnAction::Add(values) | ColumnAction::Set(values) => values.len() + 2 * columns.len(),
                ColumnAction::SetFrom(all) | ColumnAction::SetEach(all) => rows(all) + 2 * columns.len(),
            },
            Part::Weights { action, .. } => match action {
                WeightAction::Scale(_, keys) => 2 * keys.as_ref().map_or(0, |keys| keys.len()),
                WeightAction::Set(row) => 4 * row.len(),
                WeightAction::From(pattern) => pattern.values.len(),
            },
        };
        let condition = |step: &ResolvedStep| step.when.as_ref().map_or(0, StepCondition::len);
        self.0.iter().map(|step| numbers(step) + condition(step)).sum::<usize>() * size_of::<f32>()
    }

    /// Which of them makes a run overflow whose model is sound: the one with the largest numbers.
    pub fn too_large(&self) -> Option<InterventionError> {
        too_large(self.0.iter())
    }

    /// Those of them that change something of a sequence.
    pub(crate) fn where_they_fit(&self, tokens: &[u32]) -> PlacedSteps {
        let placed = self.0.iter().filter_map(|step| step.place(tokens, tokens.len()).ok());
        PlacedSteps::new(placed, tokens.len())
    }

    /// The steps of a sequence that begins with `prompt` and comes to have `positions` positions.
    ///
    /// # Errors
    /// If a position is not in it, a step changes nothing there, or two set the same.
    pub fn on(&self, prompt: &[u32], positions: usize) -> Result<PlacedSteps, InterventionError> {
        let placed = self.0.iter().map(|step| step.place(prompt, positions)).collect::<Result<Vec<_>, _>>()?;
        let mut setting: Vec<(SetBits, &PlacedStep)> = vec![];
        for own in &placed {
            let Some(bits) = own.step.set_bits() else { continue };
            for (_, other) in setting.iter().filter(|(of, _)| of.meet(&bits)) {
                if let Some(position) = own.rows.common(&other.rows) {
                    let (first, second, name) = (other.step.number, own.step.number, own.step.name.clone());
                    return Err(InterventionError::Contradiction { first, second, name, position });
                }
            }
            setting.push((bits, own));
        }
        Ok(PlacedSteps::new(placed, positions))
    }
}

impl StepPositions {
    fn on(&self, step: &ResolvedStep, prompt: &[u32], all: usize) -> Result<Rows, InterventionError> {
        let (step, held) = (step.number, prompt.len());
        let found: Rows = match self {
            StepPositions::All => (0..all).into(),
            StepPositions::Prompt => (0..held).into(),
            StepPositions::Generated => (held..all).into(),
            StepPositions::Token(ids) => {
                let starts = |at: &usize| prompt[*at..].starts_with(ids);
                (0..held).filter(starts).flat_map(|at| at..at + ids.len()).collect()
            }
            StepPositions::These(listed) => {
                let of = |at: &i64| {
                    position_in(*at, held).filter(|at| *at < all).ok_or_else(|| {
                        let what = format!(
                            "there is no position {at}: the sequence has {all}, of which {held} are the prompt's"
                        );
                        InterventionError::Step { step, what }
                    })
                };
                let places = listed.iter().map(of).collect::<Result<Vec<_>, _>>()?;
                once("pos", places.iter().copied()).map_err(|what| InterventionError::Step { step, what })?;
                places.into_iter().collect()
            }
        };
        if found.is_empty() {
            let what = match self {
                StepPositions::Generated => {
                    "nothing after the prompt is run: at least 2 tokens must follow it".to_string()
                }
                StepPositions::Token(_) => format!("the prompt ({}) does not have that token", plural(held, "token")),
                _ => "there are no positions".into(),
            };
            return Err(InterventionError::NoEffect { step, what });
        }
        Ok(found)
    }
}

/// A position that may be counted from the end of so many tokens: -1 is the last. One that is not negative may lie
/// beyond them.
pub fn position_in(at: i64, tokens: usize) -> Option<usize> {
    usize::try_from(at).ok().or_else(|| tokens.checked_sub(at.unsigned_abs() as usize))
}

impl ResolvedStep {
    /// The same where a condition holds, at its positions.
    ///
    /// # Errors
    /// If the step changes attention weights, or a probe has another number of columns.
    pub fn when(self, condition: StepCondition) -> Result<ResolvedStep, InterventionError> {
        let (step, name) = (self.number, &self.name);
        let wrong = |what| Err(InterventionError::Step { step, what });
        match (&self.part, &condition) {
            (Part::Weights { .. }, _) => {
                wrong(format!("`when` does not belong to `{name}`: give `pos`, or change `hook_z`"))
            }
            (Part::Columns { columns, .. }, StepCondition::Probe { unit, .. }) if unit.len() != columns.len() => {
                let wide = plural(columns.len(), "number");
                wrong(format!("`{name}` has {wide} here and its probe {}", unit.len()))
            }
            _ => Ok(ResolvedStep { when: Some(condition), ..self }),
        }
    }

    /// Whether what it does to a row depends on the row.
    fn looks(&self) -> bool {
        let projects = matches!(self.part, Part::Columns { action: ColumnAction::ProjectOut { .. }, .. });
        projects || self.when.is_some()
    }

    /// It in a sequence that begins with `prompt` and comes to have so many positions.
    fn place(&self, prompt: &[u32], positions: usize) -> Result<PlacedStep, InterventionError> {
        let rows = self.positions.on(self, prompt, positions)?;
        self.check(&rows, prompt.len())?;
        let mut places = BTreeMap::new();
        if let (Part::Columns { action: ColumnAction::SetEach(_), .. }, StepPositions::These(listed)) =
            (&self.part, &self.positions)
        {
            places = listed.iter().filter_map(|at| position_in(*at, prompt.len())).zip(0..).collect();
        }
        Ok(PlacedStep { rows, places, step: self.clone() })
    }

    /// The largest of its numbers, by magnitude.
    fn most(&self) -> f32 {
        let of = |values: &[f32]| values.iter().fold(0.0f32, |most, v| most.max(v.abs()));
        match &self.part {
            Part::Columns { action, .. } => match action {
                ColumnAction::Scale(factor) => factor.abs(),
                ColumnAction::ProjectOut { .. } => 1.0,
                ColumnAction::Add(values) | ColumnAction::Set(values) => of(values),
                ColumnAction::SetFrom(rows) | ColumnAction::SetEach(rows) => {
                    rows.iter().fold(0.0, |most, row| most.max(of(row)))
                }
            },
            Part::Weights { action, .. } => match action {
                WeightAction::Scale(factor, _) => factor.abs(),
                WeightAction::Set(row) => row.iter().fold(0.0, |most, (_, weight)| most.max(weight.abs())),
                WeightAction::From(pattern) => of(&pattern.values),
            },
        }
    }

    /// What it sets of a row; none if it changes what is there, or only where a condition holds.
    fn set_bits(&self) -> Option<SetBits> {
        if self.when.is_some() {
            return None;
        }
        let (of_weights, numbers) = match &self.part {
            Part::Columns { columns, action } if action.sets() => (false, columns),
            Part::Weights { heads, action: WeightAction::Set(_) | WeightAction::From(_), .. } => (true, heads),
            _ => return None,
        };
        let mut bits = vec![0; numbers.iter().max().map_or(0, |most| most / 64 + 1)];
        numbers.iter().for_each(|n| bits[n / 64] |= 1 << (n % 64));
        Some(SetBits { op: self.op, of_weights, bits })
    }

    /// That it has values for these positions, which sees the keys that it is about.
    fn check(&self, rows: &Rows, prompt: usize) -> Result<(), InterventionError> {
        let (step, name) = (self.number, &self.name);
        let misfit = |what| Err(InterventionError::Step { step, what });
        let sees = |pattern: &Pattern, row: usize| {
            let all = prompt.max(row + 1);
            pattern.scoring.sees(&Span { row: 0, rows: all, past: 0, table: 0, valid: all }, row)
        };
        match &self.part {
            Part::Columns { action: ColumnAction::SetFrom(source), .. } => self.fits_source(source.len(), rows, prompt),
            Part::Columns { action: ColumnAction::SetEach(values), .. } => match &self.positions {
                StepPositions::These(listed) if listed.len() == values.len() => Ok(()),
                _ => misfit(format!("`{name}` is set to {} rows, one for each listed position", values.len())),
            },
            Part::Weights { action: WeightAction::From(pattern), .. } => {
                self.fits_source(pattern.shape[2], rows, prompt)
            }
            Part::Weights { action: WeightAction::Set(weights), pattern, .. } => {
                let hidden = |row: &usize| {
                    let (seen, ends) = (sees(pattern, *row), [weights.first_key_value(), weights.last_key_value()]);
                    ends.into_iter().flatten().map(|(key, _)| *key).find(|key| !seen.contains(key))
                };
                match rows.iter().find_map(|row| Some((row, hidden(&row)?))) {
                    Some((row, key)) => misfit(format!("`{name}` at position {row} does not see the key at {key}")),
                    None => Ok(()),
                }
            }
            Part::Weights { action: WeightAction::Scale(_, Some(keys)), pattern, .. } => {
                if rows.iter().any(|row| keys.range(sees(pattern, row)).next().is_some()) {
                    return Ok(());
                }
                Err(InterventionError::NoEffect { step, what: format!("no position of `{name}` sees these keys") })
            }
            _ => Ok(()),
        }
    }

    /// That a run of so many tokens has what is put into these positions: a patch goes from each position to the same
    /// one.
    fn fits_source(&self, tokens: usize, rows: &Rows, prompt: usize) -> Result<(), InterventionError> {
        let (step, name) = (self.number, &self.name);
        let what = match rows.last() {
            Some(at) if at >= prompt => format!(
                "`{name}` is patched at position {at} from a run of {}, and the prompt has {prompt}: what follows the \
                 prompt has no counterpart, so give \"pos\": \"prompt\"",
                plural(tokens, "token")
            ),
            _ if tokens != prompt => format!(
                "`{name}` is patched from a run of {}, and the prompt has {prompt}: give a source of the same length, \
                 or `pos` and `from_pos`",
                plural(tokens, "token")
            ),
            _ => return Ok(()),
        };
        Err(InterventionError::Step { step, what })
    }
}

impl ColumnAction {
    /// Whether nothing stays of what was there.
    fn sets(&self) -> bool {
        use ColumnAction::{Add, ProjectOut, Scale};
        !matches!(self, Scale(_) | Add(_) | ProjectOut { .. })
    }

    /// The number that a column gets, is multiplied with, or that is added to it; `place` is that of a row among
    /// several, `found` what a projection found there.
    pub(super) fn number(&self, place: usize, column: usize, found: Measure) -> f32 {
        match self {
            ColumnAction::Scale(factor) => *factor,
            ColumnAction::ProjectOut { unit, .. } => (-found.along * unit[column]) as f32,
            ColumnAction::Add(values) | ColumnAction::Set(values) => values[column],
            ColumnAction::SetFrom(rows) | ColumnAction::SetEach(rows) => rows[place][column],
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

/// An step of one sequence.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PlacedStep {
    pub(super) rows: Rows,
    /// The place of each position in the list, of a step that has a row for each.
    places: BTreeMap<usize, usize>,
    step: ResolvedStep,
}

impl PlacedStep {
    /// What becomes of columns of what an op wrote at a position.
    pub(super) fn columns(&self, position: usize) -> Option<(&[usize], &ColumnAction, usize)> {
        let place = self.places.get(&position).copied().unwrap_or(position);
        match &self.step.part {
            Part::Columns { columns, action } if self.rows.contains(position) => Some((columns, action, place)),
            _ => None,
        }
    }

    /// Whether its condition holds for a row of the token, if it has one.
    pub(super) fn holds(&self, token: u32, columns: &[usize], row: &[f32]) -> bool {
        self.step.when.as_ref().is_none_or(|when| when.holds(token, columns, row))
    }

    /// Whether what it does to a row depends on the row.
    pub(super) fn looks(&self) -> bool {
        self.step.looks()
    }

    /// What it, the nth step of its op, found in a row of the batch; none where it did not apply.
    fn found(&self, nth: usize, (measures, row): (&Measures, usize)) -> Option<Measure> {
        if self.looks() { measures.get((self.step.op, row, nth)) } else { Some(Measure::default()) }
    }
}

/// Steps of one sequence, in their order, by the op whose output they change.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlacedSteps {
    pub(super) by_op: BTreeMap<usize, Vec<PlacedStep>>,
    positions: usize,
}

impl PlacedSteps {
    fn new(placed: impl IntoIterator<Item = PlacedStep>, positions: usize) -> PlacedSteps {
        let mut by_op: BTreeMap<usize, Vec<PlacedStep>> = BTreeMap::new();
        placed.into_iter().for_each(|one| by_op.entry(one.step.op).or_default().push(one));
        PlacedSteps { by_op, positions }
    }

    /// How many positions the sequence may come to have.
    pub fn positions(&self) -> usize {
        self.positions
    }

    pub(super) fn of_op(&self, op: usize) -> &[PlacedStep] {
        self.by_op.get(&op).map_or(&[], Vec::as_slice)
    }

    /// As [`ResolvedSteps::too_large`].
    pub fn too_large(&self) -> Option<InterventionError> {
        too_large(self.by_op.values().flatten().map(|placed| &placed.step))
    }

    pub(super) fn steps(&self) -> impl Iterator<Item = usize> + '_ {
        self.by_op.values().flatten().map(|placed| placed.step.number)
    }

    /// Those of an op's attention weights. Whoever applies them needs queries, keys and values of the whole sequence.
    pub(super) fn weights(&self, op: usize) -> impl Iterator<Item = (&Rows, &[usize], &WeightAction)> {
        self.of_op(op).iter().filter_map(|placed| match &placed.step.part {
            Part::Weights { heads, action, .. } => Some((&placed.rows, &heads[..], action)),
            Part::Columns { .. } => None,
        })
    }

    /// What they make of the weights of a head: of the op `at`.
    pub(crate) fn of_head(&self, at: usize, head: usize) -> Arc<[PlacedWeights]> {
        let mine = self.weights(at).filter(|(_, heads, _)| heads.binary_search(&head).is_ok());
        mine.map(|(rows, _, action)| (rows.clone(), action.clone())).collect()
    }

    /// What they make of a row of an op's output, if anything: a linear function of what the op wrote.
    pub(crate) fn of_row(
        &self,
        op: usize,
        (position, row_of): (usize, (&Measures, usize)),
        cols: usize,
    ) -> Option<IntervenedRow> {
        let mut row = IntervenedRow { kept: vec![1.0; cols], given: BTreeMap::new() };
        let mut any = false;
        for (nth, placed) in self.of_op(op).iter().enumerate() {
            let Some((columns, action, place)) = placed.columns(position) else { continue };
            let Some(found) = placed.found(nth, row_of) else { continue };
            any = true;
            let is_scale = matches!(action, ColumnAction::Scale(_));
            let key = GivenBy { step: placed.step.number, sets: action.sets() };
            for (n, at) in columns.iter().enumerate() {
                let number = f64::from(action.number(place, n, found));
                let factor = if is_scale { number } else { found.factor * f64::from(u8::from(!action.sets())) };
                row.kept[*at] *= factor;
                row.given.values_mut().for_each(|given| given[*at] *= factor);
                if !is_scale {
                    row.given.entry(key).or_insert_with(|| vec![0.0; cols])[*at] += number * found.factor;
                }
            }
        }
        any.then_some(row)
    }

    /// What they do to one number of an op's output, or of its attention weights, each with its step.
    pub(crate) fn of_number(
        &self,
        op: usize,
        (position, row_of): (usize, (&Measures, usize)),
        at: NumberPlace,
    ) -> Vec<(usize, NumberAction)> {
        let one = |(nth, placed): (usize, &PlacedStep)| {
            let actions = match (&placed.step.part, at) {
                (Part::Columns { .. }, NumberPlace::Column(col)) => {
                    let (columns, action, place) = placed.columns(position)?;
                    let found = placed.found(nth, row_of)?;
                    let number = action.number(place, columns.iter().position(|own| *own == col)?, found);
                    match action {
                        ColumnAction::Scale(_) => vec![NumberAction::Times(number)],
                        ColumnAction::Add(_) => vec![NumberAction::Plus(number)],
                        ColumnAction::ProjectOut { keep_norm: false, .. } => vec![NumberAction::Plus(number)],
                        ColumnAction::ProjectOut { .. } => {
                            vec![NumberAction::Plus(number), NumberAction::Times(found.factor as f32)]
                        }
                        _ => vec![NumberAction::Set(number)],
                    }
                }
                (Part::Weights { heads, action, .. }, NumberPlace::Weight { head, key }) => {
                    if !placed.rows.contains(position) || heads.binary_search(&head).is_err() {
                        return None;
                    }
                    let mut number = [1.0];
                    action.apply((position, head), key, &mut number);
                    match action {
                        WeightAction::Scale(_, Some(keys)) if !keys.contains(&key) => return None,
                        WeightAction::Scale(..) => vec![NumberAction::Times(number[0])],
                        _ => vec![NumberAction::Set(number[0])],
                    }
                }
                _ => return None,
            };
            let step = placed.step.number;
            Some(actions.into_iter().map(move |action| (step, action)))
        };
        self.of_op(op).iter().enumerate().filter_map(one).flatten().collect()
    }

    /// How many rows of the model a row of this sequence is worth, its changes counted: 1, if these cost little.
    pub fn weight(&self, model: &Model) -> usize {
        let product = |op: &Op| match op {
            Op::Linear { w, .. } => w.rows * w.cols,
            _ => 0,
        };
        let plain = model.ops().iter().map(product).sum::<usize>().max(1);
        let of_op = |placed: &Vec<PlacedStep>| {
            let (mut cost, mut heads, mut wide) = (0, 0, 0);
            for one in placed {
                match &one.step.part {
                    Part::Columns { columns, .. } => cost += columns.len() * if one.step.looks() { 4 } else { 1 },
                    Part::Weights { heads: own, pattern, .. } => {
                        cost += own.len() * self.positions;
                        (heads, wide) = (pattern.n_head.min(heads + own.len()), pattern.wide);
                    }
                }
            }
            cost + heads * wide * self.positions
        };
        1 + self.by_op.values().map(of_op).sum::<usize>().saturating_mul(SLOWER) / plain
    }
}

/// How many times as long an operation of an step takes as one of a product, which has vectors of f32.
const SLOWER: usize = 16;

fn too_large<'a>(steps: impl Iterator<Item = &'a ResolvedStep>) -> Option<InterventionError> {
    let largest = steps.max_by(|a, b| a.most().total_cmp(&b.most()))?;
    Some(InterventionError::TooLarge { step: largest.number, name: largest.name.clone(), most: largest.most() })
}

/// A number that may be changed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NumberPlace {
    /// A column of what the op wrote.
    Column(usize),
    /// A weight of attention, of the query at the position.
    Weight { head: usize, key: usize },
}

/// What a step does to a number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum NumberAction {
    Times(f32),
    Plus(f32),
    Set(f32),
}

/// A step that gave numbers to a row: in place of the op's, or added to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GivenBy {
    pub step: usize,
    pub sets: bool,
}

/// A row of an op's output with steps: `kept` times what the op wrote, and what each step gave.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct IntervenedRow {
    pub kept: Vec<f64>,
    pub given: BTreeMap<GivenBy, Vec<f64>>,
}

impl IntervenedRow {
    /// What is left of the op's own write in a row that the run has.
    pub fn own(&self, row: &[f32]) -> Vec<f64> {
        let given = |i: usize| self.given.values().map(|given| given[i]).sum::<f64>();
        let own = |(i, v): (usize, &f32)| if self.kept[i] == 0.0 { 0.0 } else { f64::from(*v) - given(i) };
        row.iter().enumerate().map(own).collect()
    }
}

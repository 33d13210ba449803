//! Why a number is what it is: the sum behind a cell of any tensor, with the numbers of this run.
//!
//! An op computes a cell as a sum of terms and then a few steps: a product is a sum alone; a score is a sum times the
//! scale; a weight is one term, minus the log of the sum of exponentials, then the exponential. So an [`Explanation`]
//! is a sum in parts and steps after it. It is computed in f64 from the operands as the model has them, each with its
//! place; what f32 made of it is the value, and the difference is called rounding. Read `layers` for where operands
//! come from.

mod attention;

use super::Trace;
use super::curve::ActivationCurve;
use super::interventions::{NumberAction, NumberPlace};
use super::json::number;
use super::{TraceError, unknown};
use crate::names::{self, Derived};
use limpid_base::plural::plural;
use limpid_base::units::short;
use limpid_core::config::{Activation, Axis, Constants, NormKind, Positions};
use limpid_core::kernels::dropout::Draws;
use limpid_core::kernels::{activate, norm};
use limpid_core::model::{Axes, Component, ParamRole};
use limpid_core::numeric::math;
use limpid_core::ops::{Op, Region, Target};
use serde::{Serialize, Serializer};
use std::borrow::Cow;

/// The most terms that an explanation shows, all parts together.
pub const TERMS: usize = 64;

/// One number of a tensor: its index has the order of [`Trace::shape`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cell {
    /// The tensor's name.
    pub name: String,
    /// The index, a number per axis.
    pub at: Vec<usize>,
}

/// A number that another is computed from.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Operand {
    /// It.
    #[serde(serialize_with = "number")]
    pub value: f64,
    /// Where it is found; none for a constant.
    #[serde(rename = "to")]
    pub at: Option<Cell>,
}

/// A term of a sum.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SumTerm {
    /// Which one: `unit 17`.
    pub label: String,
    /// What it is made of.
    pub left: Operand,
    /// The other factor, if it is a product.
    pub right: Option<Operand>,
    /// What it adds. If it is neither `left` nor the product, the sentence says what it is.
    #[serde(serialize_with = "number")]
    pub value: f64,
}

/// Terms that belong together: those of a head.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SumPart {
    /// What it is: `head 5`, `bias`.
    pub label: String,
    /// The sum of all of its terms.
    #[serde(serialize_with = "number")]
    pub value: f64,
    /// How many terms it has.
    pub of: usize,
    /// The largest of them, the largest first.
    pub terms: Vec<SumTerm>,
}

/// What is done with the sum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Operation {
    /// A number is added.
    Plus,
    /// A number is taken away.
    Minus,
    /// It is multiplied.
    Times,
    /// It is divided.
    Over,
    /// The exponential of it.
    Exp,
    /// The natural logarithm of it.
    Ln,
    /// The square root of it.
    Sqrt,
    /// The sine of it.
    Sine,
    /// The cosine of it.
    Cosine,
    /// An activation function, with its constants.
    Activation(Activation, Constants),
}

impl Operation {
    /// The result for a number, with the operand where it has one.
    pub fn apply(self, x: f64, by: f64) -> f64 {
        match self {
            Operation::Plus => x + by,
            Operation::Minus => x - by,
            Operation::Times => x * by,
            Operation::Over => x / by,
            Operation::Exp => math::exp_f64(x),
            Operation::Ln => math::ln_f64(x),
            Operation::Sqrt => x.sqrt(),
            Operation::Sine => math::sin(x),
            Operation::Cosine => math::cos(x),
            Operation::Activation(f, k) => activate::reference::value(f, k, x),
        }
    }

    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Plus => "plus",
            Operation::Minus => "minus",
            Operation::Times => "times",
            Operation::Over => "divided by",
            Operation::Exp => "exponential",
            Operation::Ln => "logarithm",
            Operation::Sqrt => "square root",
            Operation::Sine => "sine",
            Operation::Cosine => "cosine",
            Operation::Activation(f, _) => f.name(),
        }
    }
}

impl Serialize for Operation {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(self.name())
    }
}

/// A step after the sum.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SumStep {
    /// What is done.
    pub operation: Operation,
    /// With what: `the gain`; empty for a function of one number.
    pub label: Cow<'static, str>,
    /// That number.
    pub by: Option<Operand>,
    /// What comes out.
    #[serde(serialize_with = "number")]
    pub result: f64,
    /// Where the model has it, if it does.
    #[serde(rename = "to")]
    pub at: Option<Cell>,
}

/// Why a cell has its value. In JSON the cell's name and place stand among the other fields.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    /// The cell.
    #[serde(flatten)]
    pub cell: Cell,
    /// Its value.
    #[serde(serialize_with = "number")]
    pub value: f32,
    /// The op that made it: `linear`; `parameter` or `input` for what no op makes, `intervention` for what a step set.
    pub op: &'static str,
    /// How the whole tensor is computed, in symbols.
    pub formula: Option<String>,
    /// What is computed, with this cell's numbers.
    pub words: String,
    /// The sum, in parts. All parts are here, of their terms the largest.
    pub parts: Vec<SumPart>,
    /// How many terms are shown.
    pub shown: usize,
    /// How many there are.
    pub of: usize,
    /// The sum of the terms that are not shown.
    #[serde(serialize_with = "number")]
    pub remainder: f64,
    /// What is done with the sum.
    pub steps: Vec<SumStep>,
    /// What comes out, in f64.
    #[serde(serialize_with = "number")]
    pub exact: f64,
    /// The value minus that.
    #[serde(serialize_with = "number")]
    pub rounding: f64,
    /// The curve of an activation function, on which the cell is a point.
    pub curve: Option<ActivationCurve>,
}

/// Explains a cell of a tensor, of a parameter or of what is derived of them.
///
/// # Errors
/// As [`Trace::get`], and if the index is outside.
pub fn explain(trace: &Trace, name: &str, at: &[usize]) -> Result<Explanation, TraceError> {
    if name.ends_with(".grad") {
        return Err(TraceError::NoBackward { name: name.into() });
    }
    let (axes, shape) = trace.shape(name)?;
    if at.len() != shape.len() || at.iter().zip(&shape).any(|(i, n)| i >= n) {
        let what = format!("`{name}` has axes {axes:?} of sizes {shape:?}: there is no cell at {at:?}");
        return Err(TraceError::Batch { what });
    }
    let cell = Cell { name: name.into(), at: at.to_vec() };
    let formula = names::formula(trace.model(), name);
    let batch_axes = axes.first() == Some(&"batch");
    let (b, pos) = match axes[..] {
        _ if !batch_axes => (0, 0),
        ["batch", "head", ..] => (at[0], at[2]),
        _ => (at[0], at[1]),
    };
    let length = trace.batch().spans[0].rows;
    let mut explainer = Explainer { row: b * length + pos, b, pos, trace };
    let (value, op, draft) = explainer.draft(name, at)?;
    Ok(draft.finish(cell, value, op, formula.filter(|_| op != SET)))
}

/// An explanation before it is added up.
#[derive(Default)]
struct Draft {
    what: String,
    parts: Vec<(String, Vec<SumTerm>)>,
    /// Without their results.
    steps: Vec<SumStep>,
    curve: Option<ActivationCurve>,
}

impl Draft {
    fn new(what: impl Into<String>) -> Draft {
        Draft { what: what.into(), ..Draft::default() }
    }

    fn part(mut self, label: impl Into<String>, terms: Vec<SumTerm>) -> Draft {
        self.parts.push((label.into(), terms));
        self
    }

    /// A part of one term.
    fn term(self, label: impl Into<String>, left: Operand, right: Option<Operand>) -> Draft {
        let label = label.into();
        let term = term(label.clone(), left, right);
        self.part(label, vec![term])
    }

    /// A step with a second number; `at` is where the model has its result.
    fn step_to(
        mut self,
        operation: Operation,
        label: impl Into<Cow<'static, str>>,
        by: Option<Operand>,
        at: Option<Cell>,
    ) -> Draft {
        self.steps.push(SumStep { operation, label: label.into(), by, result: 0.0, at });
        self
    }

    /// The same after what steps of the interventions did to the number. What a step set is not computed at all.
    fn changed(mut self, changes: &[(usize, NumberAction)]) -> Draft {
        for (step, change) in changes {
            self = match change {
                NumberAction::Times(by) => {
                    self.step(Operation::Times, format!("the factor of step {step}"), constant(*by))
                }
                NumberAction::Plus(by) => self.step(Operation::Plus, format!("what step {step} adds"), constant(*by)),
                NumberAction::Set(to) => {
                    let what = format!("Step {step} of the interventions set this number, whatever was computed.");
                    Draft::new(what).term(format!("set by step {step}"), constant(*to), None)
                }
            };
        }
        self
    }

    fn step(self, operation: Operation, label: impl Into<Cow<'static, str>>, by: Operand) -> Draft {
        self.step_to(operation, label, Some(by), None)
    }

    /// A function of one number.
    fn apply(self, function: Operation) -> Draft {
        self.step_to(function, "", None, None)
    }

    /// Bounded by cap tanh(x / cap), where there is a bound.
    fn bounded(self, cap: f32) -> Draft {
        if cap == 0.0 {
            return self;
        }
        let tanh = Operation::Activation(Activation::Tanh, Constants::USUAL);
        let draft = self.step(Operation::Over, "the bound", constant(cap)).apply(tanh);
        draft.step(Operation::Times, "the bound", constant(cap))
    }

    fn finish(self, cell: Cell, value: f32, op: &'static str, formula: Option<String>) -> Explanation {
        let mut sizes: Vec<f64> =
            self.parts.iter().flat_map(|(_, terms)| terms.iter().map(|term| term.value.abs())).collect();
        sizes.sort_by(|a, b| b.total_cmp(a));
        let (of, least) = (sizes.len(), sizes.get(TERMS - 1).copied().unwrap_or(0.0));
        let (mut room, mut remainder) = (TERMS, 0.0);
        let mut parts = vec![];
        for (label, mut terms) in self.parts {
            let (sum, count) = (terms.iter().map(|term| term.value).sum(), terms.len());
            terms.sort_by(|a, b| b.value.abs().total_cmp(&a.value.abs()));
            let fits = terms.iter().take_while(|term| term.value.abs().total_cmp(&least).is_ge()).count().min(room);
            remainder += terms.drain(fits..).map(|term| term.value).sum::<f64>();
            room -= fits;
            parts.push(SumPart { label, value: sum, of: count, terms });
        }
        let sum = parts.iter().map(|part| part.value).sum();
        let mut exact = if parts.is_empty() { f64::from(value) } else { sum };
        let mut words = self.what;
        let said = sentence(&parts, exact, of, self.steps.is_empty());
        if !said.is_empty() {
            words += &format!(" {said}");
        }
        let mut steps = self.steps;
        for (i, step) in steps.iter_mut().enumerate() {
            exact = step.operation.apply(exact, step.by.as_ref().map_or(0.0, |by| by.value));
            step.result = exact;
            let begin = if i == 0 { " Then" } else { "," };
            let with = step.by.as_ref().map_or(String::new(), |by| format!(" {} {}", step.label, short(by.value)));
            words += &format!("{begin} {}{with}: {}", step.operation.name(), short(exact));
        }
        if !steps.is_empty() {
            words.push('.');
        }
        let wide = f64::from(value);
        let rounding = if wide == exact || wide.is_nan() && exact.is_nan() { 0.0 } else { wide - exact };
        let shown = TERMS - room;
        let curve = self.curve;
        Explanation { cell, value, op, formula, words, parts, shown, of, remainder, steps, exact, rounding, curve }
    }
}

/// The sum in words: its largest parts, or the largest term of the only one.
fn sentence(parts: &[SumPart], sum: f64, of: usize, ends: bool) -> String {
    let mut largest: Vec<&SumPart> = parts.iter().collect();
    largest.sort_by(|a, b| b.value.abs().total_cmp(&a.value.abs()));
    match largest[..] {
        [] => String::new(),
        [part] if of == 1 => part.terms.first().map_or(String::new(), |term| match &term.right {
            Some(right) => format!("{} × {} = {}.", short(term.left.value), short(right.value), short(sum)),
            None if ends => format!("It is {}.", short(sum)),
            None => format!("It begins with {}.", short(sum)),
        }),
        [part] => part.terms.first().map_or(String::new(), |term| {
            let (n, value) = (plural(of, "term"), short(term.value));
            format!("The largest of {n} is {value} ({}); together they are {}.", term.label, short(sum))
        }),
        _ => {
            let said: Vec<String> =
                largest.iter().take(3).map(|part| format!("{} {}", part.label, short(part.value))).collect();
            let rest: f64 = largest.iter().skip(3).map(|part| part.value).sum();
            let rest = if parts.len() > 3 { format!(", all others {}", short(rest)) } else { String::new() };
            format!("{}{rest}; together {}.", said.join(", "), short(sum))
        }
    }
}

fn term(label: String, left: Operand, right: Option<Operand>) -> SumTerm {
    let value = left.value * right.as_ref().map_or(1.0, |right| right.value);
    SumTerm { label, left, right, value }
}

/// A gain as it is applied, where it is stored less one.
fn one_more(gain: Operand, less_one: bool) -> Operand {
    if less_one { constant(1.0 + gain.value) } else { gain }
}

fn constant(value: impl Into<f64>) -> Operand {
    Operand { value: value.into(), at: None }
}

fn found(value: impl Into<f64>, at: Cell) -> Operand {
    Operand { value: value.into(), at: Some(at) }
}

/// What is said of a number that a factor stretches.
const FACTOR: &str = "A number times a factor of the configuration.";
const LOG_SUM: &str = "the log of the sum of exponentials";

/// The row that a cell is in.
struct Explainer<'a> {
    trace: &'a Trace,
    row: usize,
    b: usize,
    pos: usize,
}

impl Explainer<'_> {
    fn draft(&mut self, name: &str, at: &[usize]) -> Result<(f32, &'static str, Draft), TraceError> {
        let pos = self.pos;
        if name == "input" {
            let id = self.trace.batch().tokens[self.row];
            let what = format!("The id of the token at position {pos}, from the tokenizer; it is not computed.");
            return Ok((id as f32, "input", Draft::new(what)));
        }
        if let Some(param) = self.trace.model().param(name) {
            let (region, matrix) = (param.region, param.is_matrix());
            let feature = param.order.map_or(at[0], |order| order.stored(at[0]));
            let (row, col) = if matrix { (feature, at[1]) } else { (0, feature) };
            let value = self.trace.table_rows(region, row..row + 1)?[col];
            return Ok((value, "parameter", Draft::new("A parameter: it is learned, not computed.")));
        }
        let Some(tensor) = self.trace.model().tensor(name).cloned() else {
            let derived = names::derivation(self.trace.model(), name);
            return self.derived(name, at, derived.ok_or_else(|| unknown(self.trace.model(), name))?);
        };
        let op = self.trace.model().ops()[self.trace.maker(tensor.region)];
        if let (Axes::Scores, Op::Attend { .. }) = (tensor.axes, op) {
            let [head, query, key] = [at[1], at[2], at[3]];
            let value = self.score(name, head, query, key..key + 1)?[0];
            let draft = self.attend(op, tensor.region, (head, query), key)?;
            let changes = match op {
                Op::Attend { pattern, .. } if pattern == Some(tensor.region) => {
                    self.trace.changes_of(self.trace.maker(tensor.region), self.row, NumberPlace::Weight { head, key })
                }
                _ => vec![],
            };
            return Ok((value, changed_op(op, &changes), draft.changed(&changes)));
        }
        let col = match tensor.axes {
            Axes::Heads => at[1] * self.trace.model().config.d_head() + at[3],
            Axes::Values => at[1] * self.trace.model().config.d_value() + at[3],
            Axes::Position => 0,
            _ => at[2],
        };
        let col = tensor.order.map_or(col, |order| order.stored(col));
        let value = self.trace.stored_row(name, self.row)?[col];
        let (region, col) = (tensor.region, tensor.cols.start + col);
        let writer = self.trace.writer(region); // none of what lies beside an op's output
        let changes = self.trace.changes_of(writer, self.row, NumberPlace::Column(col));
        let draft = self.computed(op, region, col)?;
        Ok((value, changed_op(op, &changes), draft.changed(&changes)))
    }

    /// What an op computes in a column of one of the tensors that it writes.
    fn computed(&mut self, op: Op, region: Region, col: usize) -> Result<Draft, TraceError> {
        let (b, pos) = (self.b, self.pos);
        Ok(match op {
            Op::Embed { .. } => self.embed(op, region, col)?,
            Op::Norm { .. } => self.norm(op, Some(region), col)?,
            Op::Linear { x, w, b, .. } => self.linear(x, w, b, col)?,
            Op::QkNorm { .. } => self.qk_norm(op, col)?,
            Op::Rotate { .. } => self.rotate(op, col)?,
            Op::Attend { .. } => self.context(op, col)?,
            Op::Activate { f, k, x, .. } => {
                let x = self.operand(x, col)?;
                let wide = (1.25 * x.value.abs()).max(4.0);
                let curve = Some(ActivationCurve::over(f, k, (-wide, wide)));
                let draft = Draft::new(format!("The activation function {} of one number.", f.name()));
                Draft { curve, ..draft.term("before", x, None).apply(Operation::Activation(f, k)) }
            }
            Op::Add { a, b, scale, .. } => {
                let factor = (scale != 1.0).then(|| constant(scale));
                let (a, b) = (self.operand(a, col)?, self.operand(b, col)?);
                let label = |x: &Operand| x.at.as_ref().map_or(String::new(), |cell| last(&cell.name).to_string());
                let (first, second) = (label(&a), label(&b));
                let times = if factor.is_some() { " times a factor" } else { "" };
                Draft::new(format!("`{first}` plus `{second}`{times}.")).term(first, a, None).term(second, b, factor)
            }
            Op::Multiply { a, b, .. } => {
                let (a, b) = (self.operand(a, col)?, self.operand(b, col)?);
                Draft::new("The gate times what passes it.").term("product", a, Some(b))
            }
            Op::Scale { x, factor, cap, .. } => {
                let x = self.operand(x, col)?;
                Draft::new(FACTOR).term("scaled", x, Some(constant(factor))).bounded(cap)
            }
            Op::Dropout { x, drop, y } => {
                let factor = Draws::new(drop, self.trace.batch().seed).factor((self.row * y.cols + col) as u64);
                let x = self.operand(x, col)?;
                let what = "Dropout: outside training a number is kept, or scaled as its mean was in training.";
                Draft::new(what).term("kept", x, Some(constant(factor)))
            }
            Op::Gather { x, .. } => Draft::new("A copy.").term("copied", self.operand(x, col)?, None),
            Op::Classify { x, w, b: bias, cap, logits, .. } if Some(region) == logits => {
                self.linear(x, w, bias, col)?.bounded(cap)
            }
            Op::Classify { probs, .. } if Some(region) == probs => {
                let logits = self.trace.stored_row("logits", self.row)?;
                let cell = Cell { name: "logits".into(), at: vec![b, pos, col] };
                let what = format!("The probability of token {col}: its share of the exponentials of all logits.");
                let logit = found(logits[col], cell);
                let draft = Draft::new(what).term(format!("logit of token {col}"), logit, None);
                draft.step(Operation::Minus, LOG_SUM, constant(lse(&logits))).apply(Operation::Exp)
            }
            Op::Classify { .. } => self.loss()?,
        })
    }

    fn derived(
        &mut self,
        name: &str,
        at: &[usize],
        derived: Derived,
    ) -> Result<(f32, &'static str, Draft), TraceError> {
        match derived {
            Derived::Part { param, rows } => {
                let named = self.trace.model();
                let own = named.param(&param).ok_or_else(|| unknown(named, name))?;
                let (matrix, d) = (own.is_matrix(), named.config.heads().features(&rows));
                let row = rows.start + at[0] * d + at[at.len() - 1];
                let at = if matrix { vec![row, at[1]] } else { vec![row] };
                let (value, ..) = self.draft(&param, &at)?;
                let draft = Draft::new(format!("A parameter: it is learned, not computed. It is a part of `{param}`."));
                Ok((value, "parameter", draft.term("the same", found(value, Cell { name: param, at }), None)))
            }
            Derived::Scaled { of, factor } => {
                let (value, ..) = self.draft(&of, at)?;
                let operand = found(value, Cell { name: of, at: at.to_vec() });
                let draft = Draft::new(FACTOR).term("scaled", operand, Some(constant(factor)));
                Ok((value * factor, "scale", draft))
            }
            Derived::Mean { stats, .. } => {
                let op = self.trace.model().ops()[self.trace.maker(stats)];
                let value = self.trace.stored_row(name, self.row)?[0];
                Ok((value, op.name(), self.norm(op, None, 0)?))
            }
            Derived::Lse { lse } => {
                let op = self.trace.model().ops()[self.trace.maker(lse)];
                let value = self.trace.stored_row(name, self.row)?[at[2]];
                Ok((value, op.name(), self.attend(op, lse, (at[2], at[1]), 0)?))
            }
            Derived::Unscaled { op } => {
                let [head, query, key] = [at[1], at[2], at[3]];
                let op = self.trace.model().ops()[op];
                let value = self.score(name, head, query, key..key + 1)?[0];
                Ok((value, op.name(), self.products(op, head, query, key)?))
            }
        }
    }

    // ---- operands

    /// The cell of a column of a region, in this row: of a head's tensor where there is one.
    fn cell(&self, region: Region, col: usize) -> Cell {
        self.cell_in(region, self.row, col)
    }

    fn cell_in(&self, region: Region, row: usize, col: usize) -> Cell {
        let (named, length) = (self.trace.model(), self.trace.batch().spans[0].rows);
        let (b, t) = (row / length, row % length);
        let wide = |axes: Axes| match axes {
            Axes::Heads => Some(named.config.d_head()),
            Axes::Values => Some(named.config.d_value()),
            _ => None,
        };
        let held = named.tensors.iter().filter(|tensor| tensor.region == region && tensor.cols.contains(&col));
        if let Some((tensor, d)) = held.filter_map(|tensor| Some((tensor, wide(tensor.axes)?))).next() {
            let col = tensor.order.map_or(col - tensor.cols.start, |order| order.shown(col - tensor.cols.start));
            return Cell { name: tensor.name.clone(), at: vec![b, col / d, t, col % d] };
        }
        let whole = named.tensors.iter().find(|tensor| tensor.region == region && tensor.cols == (0..region.cols));
        let col = whole.and_then(|tensor| tensor.order).map_or(col, |order| order.shown(col));
        Cell { name: named.name_of(region), at: vec![b, t, col] }
    }

    fn values(&mut self, region: Region) -> Result<Vec<f32>, TraceError> {
        self.values_of(region, self.row)
    }

    fn values_of(&mut self, region: Region, row: usize) -> Result<Vec<f32>, TraceError> {
        // of the whole region, where parts of it have names too
        let whole = |tensor: &&limpid_core::model::Tensor| tensor.region == region && tensor.cols == (0..region.cols);
        let name = self.trace.model().tensors.iter().find(whole).map(|tensor| tensor.name.clone());
        let name = name.unwrap_or_else(|| self.trace.model().name_of(region));
        self.trace.stored_row(&name, row)
    }

    fn operand(&mut self, region: Region, col: usize) -> Result<Operand, TraceError> {
        Ok(found(self.values(region)?[col], self.cell(region, col)))
    }

    /// An element of a parameter with one row.
    fn element(&mut self, region: Region, col: usize) -> Result<Operand, TraceError> {
        let value = self.trace.table_rows(region, 0..1)?[col];
        Ok(found(value, Cell { name: self.trace.model().name_of(region), at: vec![self.shown(region, col)] }))
    }

    /// Where a parameter's row, or a vector's element, is shown.
    fn shown(&self, region: Region, row: usize) -> usize {
        let param = self.trace.model().params.iter().find(|param| param.region == region);
        param.and_then(|param| param.order).map_or(row, |order| order.shown(row))
    }

    fn score(
        &mut self,
        name: &str,
        head: usize,
        query: usize,
        keys: std::ops::Range<usize>,
    ) -> Result<Vec<f32>, TraceError> {
        Ok(self.trace.sheet(name, &[self.b, head], None)?.band(query..query + 1, keys))
    }

    // ---- ops

    fn embed(&mut self, op: Op, region: Region, col: usize) -> Result<Draft, TraceError> {
        let Op::Embed { table, positions, segments, token, position, .. } = op else { return Ok(Draft::default()) };
        let batch = self.trace.batch();
        let (id, t) = (batch.tokens[self.row] as usize, batch.positions[self.row] as usize);
        let segment = batch.segments.get(self.row).map_or(0, |id| *id as usize);
        let named = self.trace.model();
        let (places, c) = (named.config.positions, named.config.d_embed());
        let of_table = |explainer: &Self, table: Region, row: usize| -> Result<Operand, TraceError> {
            let value = explainer.trace.table_rows(table, row..row + 1)?[col];
            Ok(found(value, Cell { name: explainer.trace.model().name_of(table), at: vec![row, col] }))
        };
        if token == Some(region) {
            let what = format!("Token {id} has row {id} of the token table; this is its column {col}.");
            return Ok(Draft::new(what).term("the table's", of_table(self, table, id)?, None));
        }
        if position == Some(region) {
            let even = col.is_multiple_of(2);
            let (place, exponent, wave) = match places {
                Positions::Learned => {
                    let what = format!("Position {t} has row {t} of the position table; this is its column {col}.");
                    let row = positions.map(|table| of_table(self, table, t)).transpose()?;
                    return Ok(match row {
                        Some(row) => Draft::new(what).term("the table's", row, None),
                        None => Draft::new(what),
                    });
                }
                Positions::SinusoidalOneBased if even => (t + 1, col, Operation::Cosine),
                Positions::SinusoidalOneBased => (t + 1, col + 1, Operation::Sine),
                _ if even => (t, col, Operation::Sine),
                _ => (t, col - 1, Operation::Cosine),
            };
            let frequency = math::pow(10_000.0, -(exponent as f64) / c as f64);
            let name = wave.name();
            let what = format!("The {name} of {place} / 10000^({exponent}/{c}), for position {t} and column {col}.");
            let draft = Draft::new(what).term("angle", constant(place as f64), Some(constant(frequency)));
            return Ok(draft.apply(wave));
        }
        let what = format!("What token {id}, position {t} and its segment add up to, as far as the model has these.");
        let mut draft = Draft::new(what);
        for (label, region) in [("token", token), ("position", position)] {
            if let Some(region) = region {
                draft = draft.term(label, self.operand(region, col)?, None);
            }
        }
        if let Some(table) = segments {
            draft = draft.term("segment", of_table(self, table, segment)?, None);
        }
        Ok(draft)
    }

    /// The norm's output, its intermediate tensors, and, without a region, its mean.
    fn norm(&mut self, op: Op, region: Option<Region>, col: usize) -> Result<Draft, TraceError> {
        let Op::Norm { kind, eps, x, gain, offset, less_one, normalized, scale, .. } = op else {
            return Ok(Draft::default());
        };
        let (named, b, pos) = (self.trace.model(), self.b, self.pos);
        let base = scale.map_or(String::new(), |scale| named.name_of(scale).replace("hook_scale", ""));
        let near = |hook: &str, col: usize| Cell { name: format!("{base}{hook}"), at: vec![b, pos, col] };
        let of = named.name_of(x);
        let (xs, n) = (self.values(x)?, x.cols as f64);
        let mean = match kind {
            NormKind::Rms => None,
            _ => Some(found(self.trace.stored_row(&format!("{base}hook_mean"), self.row)?[0], near("hook_mean", 0))),
        };
        let each = |left: &dyn Fn(usize) -> SumTerm| (0..xs.len()).map(left).collect::<Vec<_>>();
        let label = |i: usize| format!("dimension {i}");
        let place = |i: usize| found(xs[i], self.cell(x, i));
        let Some(region) = region else {
            let terms = each(&|i| term(label(i), place(i), Some(constant(1.0 / n))));
            let what = format!("The mean of the {n} values of `{of}` at position {pos}.");
            return Ok(Draft::new(what).part("mean", terms));
        };
        if scale == Some(region) {
            let centre = mean.as_ref().map_or(0.0, |mean| mean.value);
            let terms = each(&|i| {
                let left = place(i);
                SumTerm { label: label(i), value: (left.value - centre).powi(2) / n, left, right: None }
            });
            let less = if mean.is_some() { format!(" less their mean {}", short(centre)) } else { String::new() };
            let what = format!("The mean of the squares of the {n} values of `{of}`{less}, and its root.");
            let (draft, eps) = (Draft::new(what).part("mean square", terms), constant(eps));
            return Ok(match kind {
                NormKind::LayerStd => draft.apply(Operation::Sqrt).step(Operation::Plus, "epsilon", eps),
                _ => draft.step(Operation::Plus, "epsilon", eps).apply(Operation::Sqrt),
            });
        }
        let done = if mean.is_some() { "centred and scaled by the mean and deviation" } else { "scaled by the size" };
        let what = format!("A value of `{of}`, {done} of its position's values.");
        let mut draft = Draft::new(what).term("value", place(col), None);
        if let Some(mean) = mean {
            draft = draft.step(Operation::Minus, "the mean", mean);
        }
        let scale = found(self.trace.stored_row(&format!("{base}hook_scale"), self.row)?[0], near("hook_scale", 0));
        if normalized == Some(region) {
            return Ok(draft.step(Operation::Over, "the scale", scale));
        }
        draft = draft.step_to(Operation::Over, "the scale", Some(scale), Some(near("hook_normalized", col)));
        if let Some(gain) = gain {
            draft = draft.step(Operation::Times, "the gain", one_more(self.element(gain, col)?, less_one));
        }
        if let Some(offset) = offset {
            draft = draft.step(Operation::Plus, "the offset", self.element(offset, col)?);
        }
        Ok(draft)
    }

    fn linear(&mut self, x: Region, w: Region, bias: Option<Region>, col: usize) -> Result<Draft, TraceError> {
        let (xs, ws) = (self.values(x)?, self.trace.table_rows(w, col..col + 1)?);
        let (from, weight) = (self.trace.model().name_of(x), self.trace.model().name_of(w));
        let unit = if from.ends_with("mlp.hook_post") {
            "unit"
        } else if from.ends_with("hook_lora_A") {
            "rank"
        } else {
            "dimension"
        };
        // where the parts of a fused weight have names of their own
        let (heads, own) = (self.trace.model().config.heads(), self.shown(w, col));
        let fused = self.trace.model().param(&weight);
        let fused = fused.filter(|p| (p.module.part, p.role) == (Component::Qkv, ParamRole::Weight));
        let part = fused.and_then(|param| {
            let (letter, rows) =
                ["Q", "K", "V"].into_iter().zip(heads.parts()).find(|(_, rows)| rows.contains(&own))?;
            let (at, d) = (own - rows.start, heads.features(&rows));
            Some((param.module.part(Component::Attention), letter, at / d, at % d))
        });
        let weight_cell = |i: usize| match &part {
            Some((attn, letter, head, d)) => Cell { name: attn.named(&format!("W_{letter}")), at: vec![*head, i, *d] },
            None => Cell { name: weight.clone(), at: vec![own, i] },
        };
        let one = |explainer: &Self, i: usize| {
            let left = found(xs[i], explainer.cell(x, i));
            let label = match left.at.as_ref().map(|cell| &cell.at[..]) {
                Some([_, head, _, d]) => format!("head {head}, {d}"),
                _ => format!("{unit} {i}"),
            };
            term(label, left, Some(found(ws[i], weight_cell(i))))
        };
        let by_head = from.ends_with("attn.hook_z");
        let wide = if by_head { heads.d_value } else { xs.len() };
        let (values, plus) = (plural(xs.len(), "value"), if bias.is_some() { ", plus the bias" } else { "" });
        let pos = self.pos;
        let what = format!("The {values} of `{from}` at position {pos}, each times its weight{plus}.");
        let mut draft = Draft::new(what);
        for first in (0..xs.len()).step_by(wide.max(1)) {
            let label = if by_head { format!("head {}", first / wide) } else { format!("{unit}s") };
            let terms = (first..first + wide).map(|i| one(self, i)).collect();
            draft = draft.part(label, terms);
        }
        if let Some(bias) = bias {
            let mut bias = self.element(bias, col)?;
            if let Some((attn, letter, head, d)) = &part {
                bias.at = Some(Cell { name: attn.named(&format!("b_{letter}")), at: vec![*head, *d] });
            }
            draft = draft.term("bias", bias, None);
        }
        Ok(draft)
    }

    /// A query or a key, normalised.
    fn qk_norm(&mut self, op: Op, col: usize) -> Result<Draft, TraceError> {
        let Op::QkNorm { kind, eps, x, q_gain, k_gain, less_one, together, heads, .. } = op else {
            return Ok(Draft::default());
        };
        let values = self.values(x)?;
        let place = found(values[col], self.cell(x, col));
        let Some((part, key)) = norm::qk_parts(heads, together).find(|(part, _)| part.contains(&col)) else {
            return Ok(Draft::new("Values are not normalised: a copy.").term("copied", place, None));
        };
        let own: Vec<f64> = values[part.clone()].iter().map(|v| f64::from(*v)).collect();
        let (mut normal, mut stats) = (vec![0.0; own.len()], [0.0; 2]);
        norm::reference::forward((&mut normal, &mut stats), &own, (None, None), (kind, f64::from(eps)));
        let whose = if together { "those of all heads" } else { "its head's values" };
        let what = format!("A value, scaled by the size of {whose} at this position.");
        let mut draft = Draft::new(what).term("value", place, None);
        if kind != NormKind::Rms {
            draft = draft.step(Operation::Minus, "the mean", constant(stats[0]));
        }
        draft = draft.step(Operation::Over, "the scale", constant(1.0 / stats[1]));
        if let Some(gain) = if key { k_gain } else { q_gain } {
            let gain = one_more(self.element(gain, col - part.start)?, less_one);
            draft = draft.step(Operation::Times, "the gain", gain);
        }
        Ok(draft)
    }

    fn rotate(&mut self, op: Op, col: usize) -> Result<Draft, TraceError> {
        let Op::Rotate { x, angles, heads, .. } = op else { return Ok(Draft::default()) };
        let values = self.values(x)?;
        let place = |explainer: &Self, col: usize| found(values[col], explainer.cell(x, col));
        if col >= heads.parts()[2].start {
            return Ok(Draft::new("Values are not rotated: a copy.").term("copied", place(self, col), None));
        }
        let position = self.trace.batch().positions[self.row] as usize;
        let (d, first) = (heads.d_head, col - col % heads.d_head % 2);
        if first % d >= angles.cols {
            return Ok(Draft::new("This part of a head is not rotated: a copy.").term(
                "copied",
                place(self, col),
                None,
            ));
        }
        let turn = self.trace.table_rows(angles, position..position + 1)?;
        let (cos, sin) = (f64::from(turn[first % d]), f64::from(turn[first % d + 1]));
        let [a, b] = if col == first { [cos, -sin] } else { [sin, cos] };
        let [cos, sin] = [cos, sin].map(short);
        let what = format!(
            "A pair of dimensions, rotated by the angle of position {position}, whose cosine is {cos} and whose sine \
             {sin}."
        );
        let draft = Draft::new(what).term("first of the pair", place(self, first), Some(constant(a)));
        Ok(draft.term("second of the pair", place(self, first + 1), Some(constant(b))))
    }

    fn loss(&mut self) -> Result<Draft, TraceError> {
        let (b, pos, row) = (self.b, self.pos, self.row);
        let logits = self.trace.stored_row("logits", row)?;
        let (vocab, batch) = (logits.len(), self.trace.batch());
        let wanted: Vec<(usize, f64)> = match batch.target(row, vocab) {
            Target::None => return Ok(Draft::new("This position has no target, so no loss.")),
            Target::Token(id) => vec![(id, 1.0)],
            Target::Soft(y) => (0..).zip(y.iter().copied().map(f64::from)).filter(|(_, y)| *y != 0.0).collect(),
        };
        let mass: f64 = wanted.iter().map(|(_, y)| y).sum();
        let what = match wanted[..] {
            [(id, _)] => format!(
                "How surprised the model is by token {id}: the log of the sum of all exponentials less the logit of \
                 that token, which is minus the log of its probability."
            ),
            _ => "The cross-entropy with the wanted distribution: the log of the sum of all exponentials less the \
                  wanted tokens' logits, each by its share."
                .into(),
        };
        let sum = Draft::new(what).term("log of the sum of exponentials", constant(lse(&logits)), Some(constant(mass)));
        let one = |(id, y): (usize, f64)| {
            let left = found(logits[id], Cell { name: "logits".into(), at: vec![b, pos, id] });
            term(format!("logit of token {id}"), left, Some(constant(-y)))
        };
        Ok(sum.part("minus the wanted logits", wanted.into_iter().map(one).collect()))
    }
}

/// What made a number: the op, unless a step set it.
fn changed_op(op: Op, changes: &[(usize, NumberAction)]) -> &'static str {
    let set = changes.iter().any(|(_, change)| matches!(change, NumberAction::Set(_)));
    if set { SET } else { op.name() }
}

/// In the place of an op: a step of the interventions set the number.
const SET: &str = "intervention";

fn last(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

/// The log of the sum of exponentials.
pub(super) fn lse(logits: &[f32]) -> f64 {
    let top = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    top + math::ln_f64(logits.iter().map(|v| math::exp_f64(f64::from(*v) - top)).sum())
}

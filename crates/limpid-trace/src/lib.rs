//! Looking inside: every tensor of one run, by name, with its axes, symbol, formula and statistics.
//!
//! A [`Trace`] is one run, and [`Keep`] says what it keeps. Its tensors are read from the backend on demand, or
//! computed again. There are no hooks, and nothing is computed differently: tensors that fused ops do not need are
//! filled by passes of their own, so a trace changes no bit. Names are those of `names::TABLE`; `NAME.grad` is the
//! gradient of the batch's weighted loss with respect to NAME, a tensor or a parameter.
//!
//! `masked` runs a model with any mask. limpid-draw shows what is read here.

mod arrays;
pub mod attribution;
mod batch;
pub mod compare;
pub mod curve;
pub mod directions;
pub mod explain;
pub mod heads;
pub mod interventions;
pub mod json;
pub mod labels;
pub mod lens;
pub mod masked;
pub mod mlp;
pub mod names;
pub mod parts;
pub mod path;
pub mod predict;
pub mod ranking;
mod reader;
mod run;
pub mod sheet;
pub mod sweep;
pub mod tiles;

pub use arrays::{llmc_arrays, tensors};
pub use batch::{batch, batch_of};
pub use run::{Keep, OUTPUTS, STAGES, Trace};

use crate::names::{Derived, Notation};
use limpid_base::budget::Spent;
use limpid_base::nearest::nearest;
use limpid_core::backend::BackendError;
use limpid_core::config::Config;
use limpid_core::model::{Axes, Model, Param};
use limpid_core::ops::{Batch, Target};
use std::ops::Index;

/// Why something cannot be shown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// No tensor of this model has the name.
    #[error("unknown tensor `{name}`{}", hint(.known, .nearest))]
    Unknown {
        /// The name asked for.
        name: String,
        /// Its meaning, if other models have it.
        known: Option<&'static str>,
        /// The nearest name of this model.
        nearest: Option<String>,
    },
    /// The gradient was not computed.
    #[error("`{name}`: this run had no backward pass; ask for one, with targets in the batch")]
    NoBackward {
        /// The name asked for.
        name: String,
    },
    /// The tensor has no gradient.
    #[error("`{name}`: {why}")]
    NoGradient {
        /// The name asked for.
        name: String,
        /// Why.
        why: &'static str,
    },
    /// The model was built for something else than [`Keep::mode`].
    #[error("a trace needs a model built with Mode::{needed}, this one is for {found}")]
    NotForInspection {
        /// The mode it needs.
        needed: &'static str,
        /// The mode it was built for.
        found: String,
    },
    /// The batch does not fit the model.
    #[error("{what}")]
    Batch {
        /// What is wrong with it.
        what: String,
    },
    /// A mask that says one by one which keys a query sees.
    #[error("{what}")]
    Mask {
        /// What is wrong with it.
        what: String,
    },
    /// What is to be plotted cannot be.
    #[error("{what}")]
    Expression {
        /// What is wrong with it.
        what: String,
    },
    /// The logit lens reads vectors of the residual stream.
    #[error("`{name}` has axes [{axes}]: the head reads [batch pos d_model]")]
    NotResidual {
        /// The name asked for.
        name: String,
        /// Its axes.
        axes: String,
    },
    /// Cosines of what has no rows.
    #[error("`cos({name})`: `{name}` has the axes [{axes}], and only rows of a matrix have cosines: look at `{name}`")]
    NoRows {
        /// Of what.
        name: String,
        /// Its axes.
        axes: String,
    },
    /// Cosines of cosines.
    #[error("`cos(cos(...))` is not computed, only cosines of a tensor's rows: ask for one `cos`")]
    Nested,
    /// Interventions that do not fit the run.
    #[error(transparent)]
    Intervention(#[from] interventions::InterventionError),
    /// More than may be spent on it.
    #[error("{what}: {why}")]
    Spent {
        /// On what.
        what: String,
        /// What ran out.
        why: Spent,
    },
    /// The backend that runs the model.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

fn hint(known: &Option<&'static str>, nearest: &Option<String>) -> String {
    let mut text = known.map_or(String::new(), |about| format!(": this model has none ({about})"));
    if let Some(near) = nearest {
        text += &format!("{} did you mean `{near}`?", if known.is_some() { ";" } else { ":" });
    }
    text
}

/// A tensor with a name and named axes.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedTensor {
    /// Its name.
    pub name: String,
    /// The name of each axis, in the field's order.
    pub axes: Vec<&'static str>,
    /// Sizes.
    pub shape: Vec<usize>,
    /// The values, row-major.
    pub values: Vec<f32>,
}

impl NamedTensor {
    /// The element at an index with one number per axis; `tensor[[0, 3, 2]]` is the same for an index that is known to
    /// be inside.
    pub fn at(&self, index: &[usize]) -> Option<f32> {
        self.place(index).map(|place| self.values[place])
    }
    fn place(&self, index: &[usize]) -> Option<usize> {
        let inside = index.len() == self.shape.len() && index.iter().zip(&self.shape).all(|(i, n)| i < n);
        inside.then(|| index.iter().zip(&self.shape).fold(0, |flat, (i, n)| flat * n + i))
    }
    /// What it has at one place of an axis, which is then left out: `slice("head", 3)`. None where there is no such
    /// axis or place.
    pub fn slice(&self, axis: &str, at: usize) -> Option<NamedTensor> {
        let place = self.axes.iter().position(|name| *name == axis)?;
        let (size, inner) = (self.shape[place], self.shape[place + 1..].iter().product::<usize>());
        let part = |all: &[f32]| all[at * inner..][..inner].to_vec();
        let values = (at < size).then(|| self.values.chunks_exact((size * inner).max(1)).flat_map(part).collect())?;
        let (mut axes, mut shape) = (self.axes.clone(), self.shape.clone());
        axes.remove(place);
        shape.remove(place);
        Some(NamedTensor { name: format!("{}, {axis} {at}", self.name), axes, shape, values })
    }
    /// The same with the rows and columns of every table exchanged; heads stay tables of their own, and a vector
    /// becomes a column.
    pub fn transposed(mut self) -> NamedTensor {
        let n = self.shape.len();
        if n == 1 {
            // a vector is printed as a row
            self.axes.push("1");
            self.shape.push(1);
            return self;
        }
        let mut order: Vec<usize> = (0..n).collect();
        if let Some(head) = heads_in_rows(&self.axes) {
            order.swap(head - 1, head);
        }
        order.swap(n - 2, n - 1);
        self.permuted(&order)
    }
    /// The same with its axes in another order: `order[i]` is the axis that becomes the i-th.
    ///
    /// # Panics
    /// If `order` does not name every axis once.
    pub fn permuted(&self, order: &[usize]) -> NamedTensor {
        let n = self.shape.len();
        assert!(order.len() == n && (0..n).all(|axis| order.contains(&axis)), "{order:?} is no order of {n} axes");
        let shape: Vec<usize> = order.iter().map(|axis| self.shape[*axis]).collect();
        let strides: Vec<usize> = (0..n).map(|i| self.shape[i + 1..].iter().product()).collect();
        let value = |flat: usize| {
            let (mut rest, mut at) = (flat, 0);
            for (axis, size) in order.iter().zip(&shape).rev() {
                at += rest % size * strides[*axis];
                rest /= size;
            }
            self.values[at]
        };
        let values = (0..self.values.len()).map(value).collect();
        let axes = order.iter().filter_map(|axis| self.axes.get(*axis).copied()).collect();
        NamedTensor { name: self.name.clone(), axes, shape, values }
    }
    /// The same with the rows of each head together: [batch pos head d_head] becomes [batch head pos d_head]. What has
    /// no such axes stays as it is.
    pub fn heads_first(self) -> NamedTensor {
        self.by_head().unwrap_or(self)
    }
    /// [`NamedTensor::heads_first`] of what has such axes.
    pub fn by_head(&self) -> Option<NamedTensor> {
        let head = heads_in_rows(&self.axes)?;
        let mut order: Vec<usize> = (0..self.shape.len()).collect();
        order.swap(head - 1, head);
        Some(self.permuted(&order))
    }
}

impl<const N: usize> Index<[usize; N]> for NamedTensor {
    type Output = f32;
    /// # Panics
    /// If there is no such element, as a slice does.
    fn index(&self, index: [usize; N]) -> &f32 {
        let place = self.place(&index);
        &self.values
            [place.unwrap_or_else(|| panic!("no {index:?} in `{}`, whose shape is {:?}", self.name, self.shape))]
    }
}

/// The axis of heads in a tensor whose rows have all heads side by side, as [batch pos head d_head] has; others have
/// none.
fn heads_in_rows(axes: &[&str]) -> Option<usize> {
    let head = axes.len().checked_sub(2)?;
    (head > 0 && axes[head] == "head").then_some(head)
}

/// The index of an element of a tensor with these sizes, by its place row after row.
pub fn index_of(place: usize, sizes: &[usize]) -> Vec<usize> {
    let (mut rest, mut index) = (place, vec![0; sizes.len()]);
    for (at, size) in index.iter_mut().zip(sizes).rev() {
        *at = rest % size;
        rest /= size;
    }
    index
}

/// The summary of one tensor: one line of a table.
#[derive(Clone, Debug, PartialEq)]
pub struct SummaryRow {
    /// Its name.
    pub name: String,
    /// The documents' symbol ([`names::symbol`]).
    pub symbol: String,
    /// How it is computed: `Z₃ = X̃ + Z₂`.
    pub formula: String,
    /// Its axes in letters: `B T C`.
    pub letters: String,
    /// Sizes.
    pub shape: Vec<usize>,
    /// Mean of the finite elements (for `losses`: of those that have a target).
    pub mean: f64,
    /// Their standard deviation.
    pub deviation: f64,
    /// The least of them.
    pub min: f32,
    /// The greatest of them.
    pub max: f32,
    /// How many scores the mask hides (-inf on purpose).
    pub masked: usize,
    /// Elements that are not a number.
    pub nan: usize,
    /// Infinite elements that are not masked scores.
    pub infinite: usize,
    /// Elements of `losses` whose row has no target.
    pub without_target: usize,
    /// The earlier name of the same tensor, if this is its second.
    pub same_as: Option<String>,
}

impl SummaryRow {
    /// The summary of a tensor of a run of `batch`; `model` has a place for every tensor.
    fn new(model: &Model, batch: &Batch, tensor: &NamedTensor) -> SummaryRow {
        let name = tensor.name.as_str();
        let masked_scores = name.ends_with(".hook_attn_scores");
        let vocab_size = model.config.vocab_size;
        let idle = |n| name == "losses" && batch.target(n, vocab_size) == Target::None;
        let [mut masked, mut nan, mut infinite, mut without_target] = [0; 4];
        let mut finite = vec![];
        for (n, v) in tensor.values.iter().copied().enumerate() {
            match v {
                _ if idle(n) => without_target += 1,
                v if v.is_nan() => nan += 1,
                f32::NEG_INFINITY if masked_scores => masked += 1,
                v if v.is_infinite() => infinite += 1,
                v => finite.push(v),
            }
        }
        let n = finite.len().max(1) as f64;
        let mean = finite.iter().map(|v| f64::from(*v)).sum::<f64>() / n;
        SummaryRow {
            name: name.to_string(),
            symbol: names::symbol(name, &model.config).unwrap_or_default(),
            formula: names::formula(model, name).unwrap_or_default(),
            letters: Notation::Limpid.letters(name, &tensor.axes, &model.config),
            shape: tensor.shape.clone(),
            mean,
            deviation: (finite.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / n).sqrt(),
            min: finite.iter().copied().fold(f32::NAN, f32::min),
            max: finite.iter().copied().fold(f32::NAN, f32::max),
            masked,
            nan,
            infinite,
            without_target,
            same_as: None,
        }
    }

    /// As [`NamedTensor::heads_first`]: `B T H D` becomes `B H T D`.
    pub fn heads_first(mut self) -> SummaryRow {
        let mut letters: Vec<&str> = self.letters.split(' ').collect();
        let by_head = names::lookup(&self.name).is_some_and(|(entry, _)| entry.axes == names::HEADS);
        if by_head && matches!(letters[..], [_, "T" | "pos", _, _]) {
            letters.swap(1, 2);
            self.letters = letters.join(" ");
            self.shape.swap(1, 2);
        }
        self
    }

    /// The same line in another notation: its symbol, its formula, its axes' letters and their order. The symbol is
    /// empty where the notation has no word for it.
    pub fn in_notation(mut self, model: &Model, notation: Notation) -> SummaryRow {
        self.symbol = names::called(&self.name, &model.config, notation).unwrap_or_default();
        self.formula = names::formula_in(model, &self.name, notation).unwrap_or_default();
        let axes = names::axes(&self.name, &model.config);
        if axes.len() == self.shape.len() {
            let order = notation.order(&self.name, &axes);
            let axes: Vec<&str> = order.iter().map(|i| axes[*i]).collect();
            self.letters = notation.letters(&self.name, &axes, &model.config);
            self.shape = order.iter().map(|i| self.shape[*i]).collect();
        }
        self
    }
}

/// The axes and sizes of what [`Trace::get`] gives for a name in a run of B sequences of T tokens; `model` has a place
/// for every tensor ([`Keep::All`]).
pub fn shape(model: &Model, name: &str, (b, t): (usize, usize)) -> Option<(Vec<&'static str>, Vec<usize>)> {
    let c = &model.config;
    let of = |axes: Axes, wide: usize| (axis_names(c, axes), sizes(c, axes, wide, (b, t)));
    if name == "input" {
        return Some(of(Axes::Position, 1));
    }
    if let Some(tensor) = model.tensor(name) {
        return Some(of(tensor.axes, tensor.cols.len()));
    }
    if let Some(param) = model.param(name) {
        return Some((names::axes(name, c), param.shape()));
    }
    Some(match names::derivation(model, name)? {
        Derived::Unscaled { .. } => of(Axes::Scores, 0),
        Derived::Scaled { of, .. } => return shape(model, &of, (b, t)),
        Derived::Mean { .. } => of(Axes::One, 1),
        Derived::Lse { lse } => (vec!["batch", "pos", "head"], vec![b, t, lse.cols]),
        Derived::Part { param, rows } => {
            let d = c.heads().features(&rows);
            let wide = model.param(&param).filter(|param| param.is_matrix()).map(|param| param.region.cols);
            (names::axes(name, c), [rows.len() / d].into_iter().chain(wide).chain([d]).collect())
        }
    })
}

/// A tensor's shape: `wide` columns of B sequences of T tokens.
fn sizes(c: &Config, axes: Axes, wide: usize, (b, t): (usize, usize)) -> Vec<usize> {
    match axes {
        Axes::Heads => vec![b, t, wide / c.d_head(), c.d_head()],
        Axes::Values => vec![b, t, wide / c.d_value(), c.d_value()],
        Axes::Scores => vec![b, c.n_head, t, t],
        Axes::Position => vec![b, t],
        Axes::Model | Axes::Embed | Axes::Ffn | Axes::Vocab | Axes::One | Axes::Features => vec![b, t, wide],
    }
}

/// The names of a tensor's axes; values have features of their own where there are not as many as in queries and keys.
fn axis_names(c: &Config, axes: Axes) -> Vec<&'static str> {
    let own = |axis: &&'static str| if axes == Axes::Values && *axis == "d_head" { names::value_axis(c) } else { axis };
    axes.names().iter().map(own).collect()
}

/// Names the axes of stored rows (batch x pos).
fn named_rows(c: &Config, (b, t): (usize, usize), name: &str, axes: Axes, values: Vec<f32>) -> NamedTensor {
    let wide = values.len() / (b * t).max(1);
    let shape = sizes(c, axes, wide, (b, t));
    let axes = axis_names(c, axes);
    let values = if axes[1] == "head" {
        // stored as (query, head, key), with room for as many keys as the model was built for
        let room = wide / c.n_head;
        let row = |b: usize, h: usize, i: usize| &values[(b * t + i) * wide + h * room..][..t];
        let rows = (0..b).flat_map(|b| (0..c.n_head).flat_map(move |h| (0..t).map(move |i| (b, h, i))));
        rows.flat_map(|(b, h, i)| row(b, h, i)).copied().collect()
    } else {
        values
    };
    NamedTensor { name: name.into(), axes, shape, values }
}

/// A parameter, or its gradient, of values as they are stored.
pub fn parameter(config: &Config, name: &str, param: &Param, stored: Vec<f32>) -> NamedTensor {
    let wide = if param.is_matrix() { param.region.cols } else { 1 };
    let values = match param.order {
        Some(order) => order.show(&stored, wide),
        None => stored,
    };
    NamedTensor { name: name.into(), axes: names::axes(name, config), shape: param.shape(), values }
}

/// Rows of a parameter's stored values that make queries, keys or values ([`names::Derived::Part`]): (in, out), head by
/// head.
pub fn parameter_part(
    config: &Config,
    name: &str,
    (param, rows): (&Param, std::ops::Range<usize>),
    stored: Vec<f32>,
) -> NamedTensor {
    let d = config.heads().features(&rows);
    let (wide, heads) = (if param.is_matrix() { param.region.cols } else { 1 }, rows.len() / d);
    let values = parameter(config, name, param, stored).values[rows.start * wide..rows.end * wide].to_vec();
    let of = |axes, shape| NamedTensor { name: name.into(), axes, shape, values };
    let axes = names::axes(name, config);
    match axes[..] {
        [head, model, own] => of(vec![head, own, model], vec![heads, d, wide]).permuted(&[0, 2, 1]),
        _ => of(axes, vec![heads, d]),
    }
}

/// That a model with a place for every tensor has none of that name, and which is nearest.
pub fn unknown(model: &Model, name: &str) -> TraceError {
    let base = name.strip_suffix(".grad").unwrap_or(name);
    let (activations, derived) = (names::activations(model), names::derived(model));
    let mut all: Vec<&str> = activations.iter().map(String::as_str).collect();
    all.extend(model.params.iter().map(|p| p.name.as_str()));
    all.extend(derived.iter().map(|(name, _)| name.as_str()));
    let drawn = names::drawn(model);
    all.extend(drawn.iter().map(|(name, ..)| name.as_str()));
    // the name may be the end of a full name; that is more likely than a typing error
    let ends = |known: &&str| known.strip_suffix(base).is_some_and(|rest| rest.ends_with('.'));
    // a block that was typed stays, if the model has it
    let block =
        base.strip_prefix("blocks.").and_then(|rest| rest.find('.')).map_or("", |n| &base[.."blocks.".len() + n + 1]);
    let beside = || all.iter().copied().filter(|known| known.starts_with(block));
    let near = all.iter().copied().find(ends).or_else(|| nearest(base, beside()));
    let near = near.or_else(|| nearest(base, all.iter().copied()));
    let near = near.map(|near| near.to_string() + &name[base.len()..]);
    TraceError::Unknown { name: name.into(), known: names::describe(base), nearest: near }
}

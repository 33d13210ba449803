//! Looking inside: every tensor of one run, by name, with its axes, symbol, formula and statistics.
//!
//! [`Trace::run`] runs a model that was built for [`Mode::Inspect`], forward and, if asked, backward. Tensors are
//! then read from the backend on demand. There are no hooks, and nothing is computed differently: tensors that fused
//! ops do not need are filled by passes of their own, so a trace changes no bit. Names are those of `names::TABLE`;
//! `NAME.grad` is the gradient of the batch's weighted loss with respect to NAME, a tensor or a parameter.
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
pub mod layers;
pub mod lens;
pub mod masked;
pub mod mlp;
pub mod names;
pub mod path;
pub mod predict;
pub mod ranking;
pub mod sheet;
pub mod sweep;
pub mod tiles;

pub use arrays::{llmc_arrays, tensors};
pub use batch::{batch, batch_of};

use crate::names::{Derived, Notation};
use labels::Labels;
use limpid_base::budget::Spent;
use limpid_base::nearest::nearest;
use limpid_core::backend::{self, Backend, BackendError};
use limpid_core::config::{Config, Mask};
use limpid_core::finite::{NotFinite, bad_output, bad_params};
use limpid_core::kernels::attend::Stage;
use limpid_core::kernels::dropout::{Draws, weight_index};
use limpid_core::model::{Axes, Mode, Model, Module, Param, Tensor};
use limpid_core::ops::{Batch, IGNORE, Op, Region, Scoring, Span, Target};
use masked::MaskTable;
use sheet::{AttentionHead, Sheet};
use std::borrow::Cow;
use std::sync::Arc;

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
    /// The model was not built for [`Mode::Inspect`].
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
pub struct Labelled {
    /// Its name.
    pub name: String,
    /// The name of each axis, in the field's order.
    pub axes: Vec<&'static str>,
    /// Sizes.
    pub shape: Vec<usize>,
    /// The values, row-major.
    pub values: Vec<f32>,
}

impl Labelled {
    /// The element at an index with one number per axis.
    pub fn at(&self, index: &[usize]) -> Option<f32> {
        let inside = index.len() == self.shape.len() && index.iter().zip(&self.shape).all(|(i, n)| i < n);
        let flat = index.iter().zip(&self.shape).fold(0, |flat, (i, n)| flat * n + i);
        inside.then(|| self.values[flat])
    }
    /// What it has at one place of an axis, which is then left out: `slice("head", 3)`. None where there is no such axis or place.
    pub fn slice(&self, axis: &str, at: usize) -> Option<Labelled> {
        let place = self.axes.iter().position(|name| *name == axis)?;
        let (size, inner) = (self.shape[place], self.shape[place + 1..].iter().product::<usize>());
        let part = |all: &[f32]| all[at * inner..][..inner].to_vec();
        let values = (at < size).then(|| self.values.chunks_exact((size * inner).max(1)).flat_map(part).collect())?;
        let (mut axes, mut shape) = (self.axes.clone(), self.shape.clone());
        axes.remove(place);
        shape.remove(place);
        Some(Labelled { name: format!("{}, {axis} {at}", self.name), axes, shape, values })
    }
    /// The same with the rows and columns of every table exchanged; heads stay tables of their own, and a vector becomes a column.
    pub fn transposed(mut self) -> Labelled {
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
    pub fn permuted(&self, order: &[usize]) -> Labelled {
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
        Labelled { name: self.name.clone(), axes, shape, values }
    }
    /// The same with the rows of each head together: [batch pos head d_head] becomes [batch head pos d_head]. What has no such
    /// axes stays as it is.
    pub fn heads_first(self) -> Labelled {
        self.by_head().unwrap_or(self)
    }
    /// [`Labelled::heads_first`] of what has such axes.
    pub fn by_head(&self) -> Option<Labelled> {
        let head = heads_in_rows(&self.axes)?;
        let mut order: Vec<usize> = (0..self.shape.len()).collect();
        order.swap(head - 1, head);
        Some(self.permuted(&order))
    }
}

/// The axis of heads in a tensor whose rows have all heads side by side, as [batch pos head d_head] has; others have none.
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
    /// The summary of a tensor of a run of `batch`; `model` was built for [`Mode::Inspect`].
    fn new(model: &Model, batch: &Batch, tensor: &Labelled) -> SummaryRow {
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

    /// As [`Labelled::heads_first`]: `B T H D` becomes `B H T D`.
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

    /// The same line in another notation: its symbol, its formula, its axes' letters and their order. The symbol is empty where
    /// the notation has no word for it.
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

/// One run of a model, whose tensors can be read.
pub struct Trace<'a> {
    model: &'a Model,
    backend: &'a mut dyn Backend,
    batch: Cow<'a, Batch>,
    backward: bool,
    /// Of each sequence.
    length: usize,
    /// What stood in place of the model's mask.
    mask: Option<MaskTable>,
}

impl<'a> Trace<'a> {
    /// Runs `batch` forward and, if asked, backward. The backend's gradients of parameters are cleared first, so the
    /// gradients are those of this batch alone.
    ///
    /// # Errors
    /// If the model was not built for [`Mode::Inspect`], or the batch does not fit it: sequences must be equally
    /// long and follow one another, tokens inside the vocabulary, and there must be targets for a backward pass.
    pub fn run(
        model: &'a Model,
        backend: &'a mut dyn Backend,
        batch: &Batch,
        backward: bool,
    ) -> Result<Trace<'a>, TraceError> {
        if !matches!(model.mode, Mode::Inspect { .. }) {
            return Err(TraceError::NotForInspection { needed: "Inspect", found: format!("{:?}", model.mode) });
        }
        let length = fits(model, batch, backward)?;
        backend.feed(batch)?;
        backend.forward(model.ops())?;
        if backward {
            backend.clear()?;
            backend.backward(model.back())?;
        }
        Ok(Trace { model, backend, batch: Cow::Owned(batch.clone()), backward, length, mask: None })
    }

    /// How many sequences ran, and how long each is.
    pub fn size(&self) -> (usize, usize) {
        (self.batch.spans.len(), self.length)
    }

    /// The model that ran.
    pub fn model(&self) -> &'a Model {
        self.model
    }

    /// The batch it ran on.
    pub fn batch(&self) -> &Batch {
        &self.batch
    }

    /// Names of the tensors of the forward pass, in its order, the token ids first ([`names::activations`]).
    /// In a run with dropout its masks are behind them.
    pub fn names(&self) -> impl Iterator<Item = String> {
        let drawn = if self.batch.seed.is_some() { names::drawn(self.model) } else { vec![] };
        names::activations(self.model).into_iter().chain(drawn.into_iter().map(|(name, ..)| name))
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

    /// A tensor, a parameter, what is derived of them (`names::derived`), or the gradient of any (`NAME.grad`).
    ///
    /// # Errors
    /// If there is no such name (the nearest is in the message), or a gradient was not computed.
    pub fn get(&self, name: &str) -> Result<Labelled, TraceError> {
        if name == "input" {
            return Ok(self.labelled(name, Axes::Position, self.batch.tokens.iter().map(|id| *id as f32).collect()));
        }
        if let Some(base) = name.strip_suffix(".grad") {
            return self.gradient(name, base);
        }
        if let Some(tensor) = self.model.tensor(name) {
            return self.tensor(name, tensor, tensor.region);
        }
        if let Some(param) = self.model.param(name) {
            return self.param(name, param, param.region);
        }
        if let Some((_, op, is_mask)) = names::drawn(self.model).into_iter().find(|(own, ..)| own == name) {
            return self.dropped(name, &op, is_mask);
        }
        self.derived(name, names::derivation(self.model, name).ok_or_else(|| self.unknown(name))?)
    }

    /// A dropout's mask as the run drew it, or the attention weights that it left.
    fn dropped(&self, name: &str, op: &Op, is_mask: bool) -> Result<Labelled, TraceError> {
        match *op {
            Op::Attend { pattern: Some(pattern), drop: Some(drop), heads, .. } => {
                let mut weights = self.get(&self.model.name_of(pattern))?;
                let (draws, (t, n)) = (Draws::new(drop, self.batch.seed), (self.length, heads.n_head));
                for (at, weight) in weights.values.iter_mut().enumerate() {
                    let (b, head, query, key) = (at / (n * t * t), at / (t * t) % n, at / t % t, at % t);
                    let factor = draws.factor(weight_index(b * t + query, head, n, key));
                    *weight = if is_mask { factor } else { *weight * factor };
                }
                Ok(Labelled { name: name.into(), ..weights })
            }
            Op::Dropout { y, drop, .. } => {
                let (of, draws) = (self.get(&self.model.name_of(y))?, Draws::new(drop, self.batch.seed));
                let values = (0..of.values.len() as u64).map(|at| draws.factor(at)).collect();
                Ok(Labelled { name: name.into(), values, ..of })
            }
            _ => Err(self.unknown(name)),
        }
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

    /// The line of one tensor, parameter or gradient.
    ///
    /// # Errors
    /// As [`Trace::get`].
    pub fn row(&self, name: &str) -> Result<SummaryRow, TraceError> {
        Ok(SummaryRow::new(self.model, &self.batch, &self.get(name)?))
    }

    /// The first tensor of the run that is not finite, in the order of the ops; masked scores do not count.
    ///
    /// # Errors
    /// If the backend cannot read one.
    pub fn first_not_finite(&self) -> backend::Result<Option<NotFinite>> {
        let read = |region: Region| self.backend.read(region.for_batch(&self.batch));
        if let Some(bad) = bad_params(self.model, &read)? {
            return Ok(Some(bad));
        }
        for op in self.model.ops() {
            if let Some((region, bad)) = bad_output(op, &read)? {
                return Ok(Some(NotFinite { name: self.model.name_of(region), ..bad }));
            }
        }
        Ok(None)
    }

    /// The logit lens: what the head would predict if it read `name` (a `[batch pos d_model]` tensor such as
    /// `blocks.0.hook_resid_post`) instead of the output of the last block. Returns the probabilities. The tensors
    /// of the run are unchanged afterwards.
    ///
    /// # Errors
    /// As [`Trace::get`], and if the tensor does not have those axes.
    pub fn lens(&mut self, name: &str) -> Result<Labelled, TraceError> {
        let seen = self.get(name)?;
        if seen.axes != ["batch", "pos", "d_model"] {
            return Err(TraceError::NotResidual { name: name.into(), axes: seen.axes.join(" ") });
        }
        let last = Module::block(self.model.config.n_layer - 1).named("hook_resid_post");
        let region = self.model.tensor(&last).ok_or_else(|| self.unknown(&last))?.region.for_batch(&self.batch);
        let maker = self.model.ops().iter().position(|op| op.output().for_batch(&self.batch) == region);
        let head = self.model.program.forward(maker.map_or(0, |i| i + 1)..);
        let keep = self.backend.read(region)?;
        let put = |backend: &mut dyn Backend, values: &[f32]| {
            backend.write(region, values)?;
            backend.forward(head)
        };
        let seen = put(self.backend, &seen.values);
        let probs = self.get("probs");
        put(self.backend, &keep)?;
        seen?;
        Ok(Labelled { name: format!("lens({name})"), ..probs? })
    }

    // ---- reading

    fn gradient(&self, name: &str, base: &str) -> Result<Labelled, TraceError> {
        if base == "input" {
            return Err(TraceError::NoGradient { name: name.into(), why: "token ids are not differentiable" });
        }
        let (tensor, param) = (self.model.tensor(base), self.model.param(base));
        if names::drawn(self.model).iter().any(|(own, ..)| own == base) {
            return Err(TraceError::NoGradient { name: name.into(), why: "it is drawn, or made of what has one" });
        }
        let derived = match (tensor, param) {
            (None, None) => Some(names::derivation(self.model, base).ok_or_else(|| self.unknown(name))?),
            _ => None,
        };
        if !self.backward {
            return Err(TraceError::NoBackward { name: name.into() });
        }
        if let Some(derived) = derived {
            return self.derived(name, derived);
        }
        if let Some(param) = param {
            return self.param(name, param, param.region.grad());
        }
        match (base, tensor.map(|t| (t, t.grad))) {
            // head and loss are one op, so the gradients of its outputs are written out here
            ("losses", _) => {
                Ok(self.labelled(name, Axes::Position, self.each_target(|to, target| to.push(self.weight(target)))))
            }
            ("probs", _) => {
                let (probs, v) = (self.get("probs")?, self.model.config.vocab_size);
                let mut rows = probs.values.chunks_exact(v);
                let slopes = self.each_target(|to, target| {
                    let p = rows.next().unwrap_or_default().iter().enumerate();
                    to.extend(p.map(|(j, p)| match target {
                        Target::Token(t) if t == j => -self.batch.weight / p,
                        Target::Soft(y) if y[j] != 0.0 => -self.batch.weight * y[j] / p,
                        _ => 0.0,
                    }));
                });
                Ok(self.labelled(name, Axes::Vocab, slopes))
            }
            (_, Some((tensor, Some(grad)))) => {
                let slopes = self.tensor(name, tensor, grad)?;
                if base.ends_with(".hook_pattern") { self.hidden_weights(slopes, base) } else { Ok(slopes) }
            }
            _ => Err(TraceError::NoGradient { name: name.into(), why: "nothing differentiable depends on it" }),
        }
    }

    /// The gradients of attention weights, with those of weights that the mask makes 0. No kernel reads these, but what reads weights
    /// takes all of them: z = P v, so dP = dz v', hidden or not.
    fn hidden_weights(&self, mut slopes: Labelled, base: &str) -> Result<Labelled, TraceError> {
        let beside = |hook: &str| self.get(&base.replace("hook_pattern", hook));
        let (scores, dz, v) = (beside("hook_attn_scores")?, beside("hook_z.grad")?, beside("hook_v")?);
        let weights = self.model.tensor(base).map(|tensor| tensor.region);
        let drop = self.model.ops().iter().find_map(|op| match *op {
            Op::Attend { pattern, drop, .. } if pattern == weights => drop,
            _ => None,
        });
        let draws = drop.map(|drop| Draws::new(drop, self.batch.seed));
        let (t, n_head, n_kv_head, d) = (self.length, dz.shape[2], v.shape[2], dz.shape[3]);
        for (at, slope) in slopes.values.iter_mut().enumerate() {
            if scores.values[at] != f32::NEG_INFINITY {
                continue;
            }
            let (b, head, query, key) = (at / (n_head * t * t), at / (t * t) % n_head, at / t % t, at % t);
            let given = &dz.values[((b * t + query) * n_head + head) * d..][..d];
            let value = &v.values[((b * t + key) * n_kv_head + head * n_kv_head / n_head) * d..][..d];
            let sum: f64 = given.iter().zip(value).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            let kept = draws.map_or(1.0, |draws| draws.factor(weight_index(b * t + query, head, n_head, key)));
            *slope = sum as f32 * kept;
        }
        Ok(slopes)
    }

    /// What is derived, or, where `name` is a gradient's, its gradient: by the chain rule from the gradients of what it is read out
    /// of and of what reads it.
    fn derived(&self, name: &str, derived: Derived) -> Result<Labelled, TraceError> {
        let (base, is_gradient) = name.strip_suffix(".grad").map_or((name, false), |base| (base, true));
        let beside = |hook: &str| {
            let last = base.rfind('.').map_or(0, |dot| dot + 1);
            self.get(&format!("{}{hook}", &base[..last]))
        };
        Ok(match derived {
            Derived::Mean { stats, .. } if !is_gradient => {
                let values = self.backend.read(stats.for_batch(&self.batch))?;
                self.labelled(name, Axes::One, values.into_iter().step_by(stats.cols).collect())
            }
            // n = (x - mean) / s, and s does not change with the mean
            Derived::Mean { .. } => {
                let (slopes, scale) = (beside("hook_normalized.grad")?, beside("hook_scale")?);
                let sum = |row: &[f32]| row.iter().map(|v| f64::from(*v)).sum::<f64>();
                let rows = slopes.values.chunks_exact(slopes.shape[2]).map(sum);
                let values = rows.zip(&scale.values).map(|(sum, s)| (-sum / f64::from(*s)) as f32).collect();
                Labelled { name: name.into(), values, ..scale }
            }
            // p = exp(score - lse)
            Derived::Lse { lse } => {
                let ((b, t), h) = (self.size(), self.model.config.n_head);
                let (axes, shape) = (vec!["batch", "pos", "head"], vec![b, t, h]);
                if !is_gradient {
                    let values = self.backend.read(lse.for_batch(&self.batch))?;
                    return Ok(Labelled { name: name.into(), axes, shape, values });
                }
                let (pattern, slopes) = (beside("hook_pattern")?, beside("hook_pattern.grad")?);
                let product = |(p, dp): (&f32, &f32)| f64::from(*p) * f64::from(*dp);
                let products: Vec<f64> = pattern.values.iter().zip(&slopes.values).map(product).collect();
                let values = products.chunks_exact(t).map(|row| -row.iter().sum::<f64>() as f32).collect();
                let by_head = vec!["batch", "head", "pos"];
                Labelled { name: name.into(), axes: by_head, shape: vec![b, h, t], values }.permuted(&[0, 2, 1])
            }
            Derived::Unscaled { op } => {
                let (products, scoring) = self.products(op)?;
                let mut raw = beside(if is_gradient { "hook_raw_scores.grad" } else { "hook_raw_scores" })?;
                for (v, product) in raw.values.iter_mut().zip(products) {
                    *v = if is_gradient { (f64::from(*v) * scoring.steepness(product.into())) as f32 } else { product };
                }
                Labelled { name: name.into(), ..raw }
            }
            Derived::Scaled { of, factor } => {
                let mut scaled = self.get(&format!("{of}{}", if is_gradient { ".grad" } else { "" }))?;
                scaled.values.iter_mut().for_each(|v| *v = if is_gradient { *v / factor } else { *v * factor });
                Labelled { name: name.into(), ..scaled }
            }
            Derived::Part { param, rows } => {
                let param = self.model.param(&param).ok_or_else(|| self.unknown(name))?;
                let region = if is_gradient { param.region.grad() } else { param.region };
                parameter_part(&self.model.config, name, (param, rows), self.backend.read(region)?)
            }
        })
    }

    /// Queries times keys, (B,H,T,T), and what scores they make.
    fn products(&self, op: usize) -> Result<(Vec<f32>, Scoring), TraceError> {
        let Op::Attend { qkv, lse, heads, scoring, .. } = self.model.ops()[op] else {
            return Ok((vec![], Scoring::plain(self.model.config.mask, 1.0)));
        };
        let read = |region: Region| -> Result<Arc<Labelled>, TraceError> {
            let values = self.backend.read(region.for_batch(&self.batch))?;
            Ok(Arc::new(Labelled { name: String::new(), axes: vec![], shape: vec![], values }))
        };
        let (qkv, lse, t, mut all) = (read(qkv)?, read(lse)?, self.length, vec![]);
        for (span, head) in self.batch.spans.iter().flat_map(|span| (0..heads.n_head).map(move |head| (*span, head))) {
            let (qkv, lse) = (qkv.clone(), lse.clone());
            let (scoring, changes) = (scoring.products(), [].into());
            let head = AttentionHead { qkv, lse, heads, head, span, scoring, changes };
            all.extend(Sheet::scores(head, Stage::Raw).band(0..t, 0..t));
        }
        Ok((all, scoring))
    }

    fn weight(&self, target: Target) -> f32 {
        if target == Target::None { 0.0 } else { self.batch.weight }
    }

    fn each_target(&self, mut f: impl FnMut(&mut Vec<f32>, Target)) -> Vec<f32> {
        let mut to = vec![];
        (0..self.batch.tokens.len()).for_each(|n| f(&mut to, self.batch.target(n, self.model.config.vocab_size)));
        to
    }

    fn param(&self, name: &str, param: &Param, region: Region) -> Result<Labelled, TraceError> {
        Ok(parameter(&self.model.config, name, param, self.backend.read(region)?))
    }

    /// A tensor's columns, read from its own region or from its gradient's.
    fn tensor(&self, name: &str, tensor: &Tensor, region: Region) -> Result<Labelled, TraceError> {
        let all = self.backend.read(region.for_batch(&self.batch))?;
        let values = if tensor.cols == (0..region.cols) {
            all
        } else {
            all.chunks_exact(region.cols).flat_map(|row| &row[tensor.cols.clone()]).copied().collect()
        };
        let values = match tensor.order {
            Some(order) => values.chunks_exact(tensor.cols.len()).flat_map(|row| order.show(row, 1)).collect(),
            None => values,
        };
        Ok(self.labelled(name, tensor.axes, values))
    }

    fn labelled(&self, name: &str, axes: Axes, values: Vec<f32>) -> Labelled {
        labelled(&self.model.config, self.size(), name, axes, values)
    }

    fn unknown(&self, name: &str) -> TraceError {
        unknown(self.model, name)
    }
}

/// The axes and sizes of what [`Trace::get`] gives for a name in a run of B sequences of T tokens; `model` was built for
/// [`Mode::Inspect`].
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
fn labelled(c: &Config, (b, t): (usize, usize), name: &str, axes: Axes, values: Vec<f32>) -> Labelled {
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
    Labelled { name: name.into(), axes, shape, values }
}

/// A parameter, or its gradient, of values as they are stored.
pub fn parameter(config: &Config, name: &str, param: &Param, stored: Vec<f32>) -> Labelled {
    let wide = if param.is_matrix() { param.region.cols } else { 1 };
    let values = match param.order {
        Some(order) => order.show(&stored, wide),
        None => stored,
    };
    Labelled { name: name.into(), axes: names::axes(name, config), shape: param.shape(), values }
}

/// Rows of a parameter's stored values that make queries, keys or values ([`names::Derived::Part`]): (in, out), head by head.
pub fn parameter_part(
    config: &Config,
    name: &str,
    (param, rows): (&Param, std::ops::Range<usize>),
    stored: Vec<f32>,
) -> Labelled {
    let d = config.heads().features(&rows);
    let (wide, heads) = (if param.is_matrix() { param.region.cols } else { 1 }, rows.len() / d);
    let values = parameter(config, name, param, stored).values[rows.start * wide..rows.end * wide].to_vec();
    let of = |axes, shape| Labelled { name: name.into(), axes, shape, values };
    let axes = names::axes(name, config);
    match axes[..] {
        [head, model, own] => of(vec![head, own, model], vec![heads, d, wide]).permuted(&[0, 2, 1]),
        _ => of(axes, vec![heads, d]),
    }
}

/// That a model built for [`Mode::Inspect`] has no tensor of that name, and which is nearest.
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

/// The length of the batch's sequences, if it fits.
fn fits(model: &Model, batch: &Batch, backward: bool) -> Result<usize, TraceError> {
    let (Mode::Inspect { batch: most, context } | Mode::Layers { batch: most, context, .. }) = model.mode else {
        return Err(TraceError::NotForInspection { needed: "Layers", found: format!("{:?}", model.mode) });
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
        let mend = match c.mask {
            Mask::Causal => "give at least two tokens",
            _ => "a masked token has no target, so leave a token unmasked",
        };
        return wrong(format!("gradients need a loss, and a loss needs targets: the batch has none; {mend}"));
    }
    Ok(length)
}

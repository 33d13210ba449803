//! Who wrote a logit: direct logit attribution, the part that each component's write to the residual stream has in a logit, or in the
//! difference of two.
//!
//! The list of ops is read backwards from the head. What the head reads is a direction d: its row for the target, minus that for the foil. A
//! sum passes d on to both of its terms. A norm, with its mean and scale taken as they are in this run, is linear: it passes on
//! d gain / scale, less its mean, and its offset has a part of its own. A product ends the way: what it wrote, times d, is a bar. So the bars
//! add up to the logit, but for rounding. What is not linear ends the way too, and the note says so.

use super::TraceError;
use super::explain::Cell;
use super::layers::LayerTrace;
use super::view::number;
use limpid_core::config::{NormKind, NormPlace};
use limpid_core::kernels::dropout::Draws;
use limpid_core::kernels::norm;
use limpid_core::model::{Component, Module, in_block};
use limpid_core::ops::{Op, Region};
use serde::Serialize;
use std::collections::{HashMap, HashSet};

/// How finely writes are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttributionUnit {
    /// Attention and feed-forward network of each block.
    Component,
    /// Each head of attention; feed-forward networks whole.
    Head,
    /// Each head, and each unit of the feed-forward networks.
    Neuron,
}

/// What one component adds to the logit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AttributionBar {
    /// `L9H6`, `L9 MLP`, `L9 MLP unit 17`, `embed`.
    pub name: String,
    /// Its part.
    #[serde(serialize_with = "number")]
    pub value: f64,
    /// The first cell of what it is made of, or of what it wrote.
    #[serde(rename = "to")]
    pub at: Option<Cell>,
}

/// A logit, or a difference of two, in parts.
#[derive(Clone, Debug, PartialEq)]
pub struct Attribution {
    /// The token asked about.
    pub target: u32,
    /// The token it is compared with.
    pub foil: Option<u32>,
    /// The target's logit, minus the foil's.
    pub value: f64,
    /// The largest parts, the largest first.
    pub bars: Vec<AttributionBar>,
    /// The sum of those that are not among them.
    pub rest: f64,
    /// The value minus all parts: rounding.
    pub remainder: f64,
    /// Whether every write of the run has a bar. The note says why not.
    pub additive: bool,
    /// How it is to be read.
    pub note: String,
}

/// The parts of the logit of `target`, less that of `foil`, at a row of the batch; at most `most` bars.
///
/// # Errors
/// As [`LayerTrace::logits`], and if the row or a token is outside.
pub fn attribute(
    trace: &mut LayerTrace,
    row: usize,
    (target, foil): (u32, Option<u32>),
    unit: AttributionUnit,
    most: usize,
) -> Result<Attribution, TraceError> {
    trace.check_rows(&[row])?;
    let vocab = trace.names().config.vocab_size;
    if let Some(id) = [Some(target), foil].into_iter().flatten().find(|id| *id as usize >= vocab) {
        return Err(TraceError::Batch { what: format!("token {id} is outside the model's vocabulary of {vocab}") });
    }
    let logits = trace.stored_row("logits", row)?;
    let logit = |id: u32| f64::from(logits[id as usize]);
    let value = logit(target) - foil.map_or(0.0, logit);
    let mut way = Way { row, unit, bars: vec![], directions: HashMap::new(), trace };
    let additive = way.walk(target as usize, foil.map(|id| id as usize))?;
    let mut bars = way.bars;
    bars.sort_by(|a, b| b.value.abs().total_cmp(&a.value.abs()));
    let remainder = value - bars.iter().map(|bar| bar.value).sum::<f64>();
    let rest = bars.drain(most.min(bars.len())..).map(|bar| bar.value).sum();
    let config = &trace.names().config;
    let note = if config.head_transform {
        "The head's dense layer and its activation are not linear, so what the blocks wrote cannot be told apart after them."
    } else if config.logits_softcap > 0.0 {
        "Logits are bounded, which is not linear: the bars are parts of the logit before the bound, and the remainder is what the \
             bound takes."
    } else if config.norm_place == NormPlace::PostAttention {
        "What the feed-forward network makes is all that leaves a block, so the last one wrote the whole logit."
    } else if config.norm_place == NormPlace::Post {
        "Every block normalises the whole stream again, so what earlier blocks wrote does not simply add up: the writes of the last \
             block have bars of their own, and one bar stands for the stream before it. Norms count as linear here: their mean and scale \
             stay as they are."
    } else if config.final_norm {
        "The final norm is taken as it is in this run: what each component wrote is centred and scaled as the whole stream was."
    } else {
        "No norm stands before the head: what each component wrote is read as it is."
    };
    Ok(Attribution { target, foil, value, bars, rest, remainder, additive, note: note.into() })
}

/// The way back from the head at one row.
struct Way<'a> {
    trace: &'a mut LayerTrace,
    row: usize,
    unit: AttributionUnit,
    bars: Vec<AttributionBar>,
    /// In which direction the head reads a tensor.
    directions: HashMap<Region, Vec<f64>>,
}

fn dot(a: &[f64], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * f64::from(*b)).sum()
}

impl Way<'_> {
    /// Whether it came to the embedding through sums and norms alone.
    fn walk(&mut self, target: usize, foil: Option<usize>) -> Result<bool, TraceError> {
        let ops: Vec<Op> = self.trace.names().ops().iter().copied().collect();
        let blocks = &self.trace.names().blocks;
        let before = blocks.first().map_or(0, |block| block.start)..blocks.last().map_or(0, |block| block.start);
        let place = self.trace.names().config.norm_place;
        let (post, mut additive) = (place.is_post(), place != NormPlace::PostAttention);
        for (i, op) in ops.into_iter().enumerate().rev() {
            if let Op::Classify { x, w, b, cap, .. } = op {
                additive &= cap == 0.0;
                let row = |table: Region, id: usize| self.trace.table_rows(table, id..id + 1);
                let mut direction: Vec<f64> = row(w, target)?.into_iter().map(f64::from).collect();
                if let Some(foil) = foil {
                    direction.iter_mut().zip(row(w, foil)?).for_each(|(d, w)| *d -= f64::from(w));
                }
                if let Some(b) = b {
                    let bias = self.trace.table_rows(b, 0..1)?;
                    let value = f64::from(bias[target]) - foil.map_or(0.0, |foil| f64::from(bias[foil]));
                    self.bar("head bias", value, Cell { name: self.trace.names().name_of(b), at: vec![target] });
                }
                self.pass(x, direction);
                continue;
            }
            let Some(direction) = self.directions.remove(&op.output()) else { continue };
            match op {
                // what is before the last block of a post-norm model, or not linear
                _ if post && before.contains(&i) => {
                    let last = self.trace.names().blocks.len() - 1;
                    self.whole(op.output(), format!("stream before block {last}"), &direction)?;
                    additive = false;
                }
                Op::Activate { y, .. } => {
                    self.whole(y, "head's dense layer".into(), &direction)?;
                    additive = false;
                }
                Op::Norm { kind, x, gain, offset, less_one, scale, .. } => {
                    let name = scale.map_or(String::new(), |scale| self.trace.names().name_of(scale));
                    let scale = f64::from(self.trace.stored_row(&name, self.row)?[0]);
                    self.bias(offset, &format!("{} offset", norm_name(&name)), &direction)?;
                    let gains = gains(self.trace, gain, less_one)?;
                    self.pass(x, through_norm(direction, gains.as_deref(), scale, kind, true));
                }
                Op::Add { a, b, scale, .. } => {
                    self.pass(b, direction.iter().map(|d| d * f64::from(scale)).collect());
                    self.pass(a, direction);
                }
                Op::Scale { x, factor, cap: 0.0, .. } => {
                    self.pass(x, direction.iter().map(|d| d * f64::from(factor)).collect());
                }
                Op::Dropout { x, y, drop } => {
                    let factors = kept(Draws::new(drop, self.trace.batch().seed), self.row, y.cols);
                    self.pass(x, direction.iter().zip(factors).map(|(d, factor)| d * factor).collect());
                }
                Op::Linear { x, w, b, y } => self.product((x, w, b, y), &direction)?,
                Op::Embed { segments, token, position, .. } => {
                    for (region, name) in [(token, "embed"), (position, "pos_embed")] {
                        if let Some(region) = region {
                            self.whole(region, name.into(), &direction)?;
                        }
                    }
                    if let Some(table) = segments {
                        let segment = self.trace.batch().segments.get(self.row).map_or(0, |id| *id as usize);
                        let values = self.trace.table_rows(table, segment..segment + 1)?;
                        let cell = Cell { name: self.trace.names().name_of(table), at: vec![segment, 0] };
                        self.bar("segment_embed", dot(&direction, &values), cell);
                    }
                }
                // no model has another on the way
                other => {
                    let y = other.output();
                    self.whole(y, self.trace.names().name_of(y), &direction)?;
                    additive = false;
                }
            }
        }
        Ok(additive)
    }

    fn pass(&mut self, to: Region, direction: Vec<f64>) {
        match self.directions.get_mut(&to) {
            Some(own) => own.iter_mut().zip(direction).for_each(|(own, d)| *own += d),
            None => drop(self.directions.insert(to, direction)),
        }
    }

    fn bar(&mut self, name: &str, value: f64, at: Cell) {
        self.bars.push(AttributionBar { name: name.into(), value, at: Some(at) });
    }

    /// The cell of a column of a tensor, at this row.
    fn cell(&self, name: &str, col: usize) -> Cell {
        let length = self.trace.batch().spans[0].rows;
        Cell { name: name.into(), at: vec![self.row / length, self.row % length, col] }
    }

    /// A tensor as one bar.
    fn whole(&mut self, region: Region, label: String, direction: &[f64]) -> Result<(), TraceError> {
        let name = self.trace.names().name_of(region);
        let values = self.trace.stored_row(&name, self.row)?;
        let cell = self.cell(&name, 0);
        self.bar(&label, dot(direction, &values), cell);
        Ok(())
    }

    /// What a product wrote, by heads or units where they are asked for.
    fn product(
        &mut self,
        (x, w, b, y): (Region, Region, Option<Region>, Region),
        direction: &[f64],
    ) -> Result<(), TraceError> {
        let from = self.trace.names().name_of(x);
        let (d, fine) = (self.trace.names().config.d_value(), self.unit);
        let Some(Module { block: Some(block), part }) = self.trace.names().tensor(&from).map(|t| t.module) else {
            return self.project((x, w, b), direction); // the embedding's
        };
        let (what, wide) = match part {
            Component::Attention => ("attention", (fine != AttributionUnit::Component).then_some(d)),
            Component::FeedForward => ("MLP", (fine == AttributionUnit::Neuron).then_some(1)),
            part if part.is_attention() => ("attention's adapter", None),
            _ => ("MLP's adapter", None),
        };
        if what == "attention" {
            // both while the block is there: heads and their sum are often asked for in turn
            self.trace.get(&from)?;
            self.trace.get(&self.trace.names().name_of(y))?;
        }
        let Some(wide) = wide else { return self.whole(y, format!("L{block} {what}"), direction) };
        let (values, read) = (self.trace.stored_row(&from, self.row)?, self.read_through(w, direction)?);
        let parts = read.chunks(wide).zip(values.chunks(wide)).enumerate();
        for (n, (read, values)) in parts {
            let mut at = self.cell(&from, n);
            let name = match what {
                "MLP" => format!("L{block} MLP unit {n}"),
                _ => {
                    at.at = vec![at.at[0], n, at.at[1], 0];
                    format!("L{block}H{n}")
                }
            };
            self.bar(&name, dot(read, values), at);
        }
        self.bias(b, &format!("L{block} {what} bias"), direction)
    }

    /// In which direction a product reads what it multiplies.
    fn read_through(&self, w: Region, direction: &[f64]) -> Result<Vec<f64>, TraceError> {
        let (weights, mut read) = (self.trace.table_rows(w, 0..w.rows)?, vec![0.0; w.cols]);
        for (d, row) in direction.iter().zip(weights.chunks_exact(w.cols)) {
            read.iter_mut().zip(row).for_each(|(to, w)| *to += d * f64::from(*w));
        }
        Ok(read)
    }

    /// A bar for what a bias adds.
    fn bias(&mut self, bias: Option<Region>, label: &str, direction: &[f64]) -> Result<(), TraceError> {
        let Some(bias) = bias else { return Ok(()) };
        let values = self.trace.table_rows(bias, 0..1)?;
        let cell = Cell { name: self.trace.names().name_of(bias), at: vec![0] };
        self.bar(label, dot(direction, &values), cell);
        Ok(())
    }

    /// A product that passes the direction on.
    fn project(&mut self, (x, w, b): (Region, Region, Option<Region>), direction: &[f64]) -> Result<(), TraceError> {
        let read = self.read_through(w, direction)?;
        self.pass(x, read);
        self.bias(b, "embed.project bias", direction)
    }
}

/// `ln_final` of `ln_final.hook_scale`, `L3 ln2` of `blocks.3.ln2.hook_scale`.
fn norm_name(scale: &str) -> String {
    let scale = scale.trim_end_matches(".hook_scale");
    in_block(scale).map_or(scale.into(), |(block, norm)| format!("L{block} {norm}"))
}

/// What dropout does to each element of a row.
fn kept(draws: Draws, row: usize, cols: usize) -> impl Iterator<Item = f64> {
    (0..cols).map(move |col| f64::from(draws.factor((row * cols + col) as u64)))
}

/// A norm's gains as they are applied.
fn gains(trace: &LayerTrace, gain: Option<Region>, less_one: bool) -> Result<Option<Vec<f32>>, TraceError> {
    let applied = |gains: Vec<f32>| gains.into_iter().map(|gain| norm::applied(gain, less_one)).collect();
    Ok(gain.map(|gain| trace.table_rows(gain, 0..1)).transpose()?.map(applied))
}

/// A norm with its mean and scale as they are is linear: y = (x - mean(x)) gain / scale. What it makes of a vector, or, backwards, of a
/// direction.
fn through_norm(mut v: Vec<f64>, gain: Option<&[f32]>, scale: f64, kind: NormKind, backwards: bool) -> Vec<f64> {
    let stretch = |v: &mut Vec<f64>| {
        v.iter_mut().enumerate().for_each(|(i, v)| *v *= gain.map_or(1.0, |gain| f64::from(gain[i])) / scale);
    };
    let centre = |v: &mut Vec<f64>| {
        let mean = if kind == NormKind::Rms { 0.0 } else { v.iter().sum::<f64>() / v.len() as f64 };
        v.iter_mut().for_each(|v| *v -= mean);
    };
    if backwards {
        stretch(&mut v);
        centre(&mut v);
    } else {
        centre(&mut v);
        stretch(&mut v);
    }
    v
}

/// What the head's matrix reads of vectors that are added to the tensor `from` at a row, by the direct way: through sums and norms alone, these
/// as they are in this run. None where there is no such way.
pub(super) fn direct_way(
    trace: &mut LayerTrace,
    from: Region,
    vectors: Vec<Vec<f64>>,
    row: usize,
) -> Result<Option<Vec<Vec<f64>>>, TraceError> {
    let ops: Vec<Op> = trace.names().ops().iter().copied().collect();
    // which tensors lie on a way to the head
    let mut ways = HashSet::new();
    for op in ops.iter().rev() {
        match *op {
            Op::Classify { x, .. } => drop(ways.insert(x)),
            Op::Add { a, b, y, .. } if ways.contains(&y) => ways.extend([a, b]),
            Op::Dropout { x, y, .. } | Op::Norm { x, y, .. } | Op::Scale { x, y, .. } if ways.contains(&y) => {
                ways.insert(x);
            }
            _ => {}
        }
    }
    let mut at = HashMap::from([(from, vectors)]);
    for op in ops.into_iter().filter(|op| matches!(op, Op::Classify { .. }) || ways.contains(&op.output())) {
        let next = match op {
            Op::Add { a, b, scale, .. } => {
                let terms = [(a, 1.0), (b, f64::from(scale))].into_iter();
                let parts = terms.filter_map(|(x, scale)| Some(scaled(at.get(&x)?.clone(), |_| scale)));
                parts.reduce(|mut a, b| {
                    a.iter_mut().flatten().zip(b.into_iter().flatten()).for_each(|(a, b)| *a += b);
                    a
                })
            }
            Op::Dropout { x, y, drop } => at.get(&x).cloned().map(|vectors| {
                let factors: Vec<f64> = kept(Draws::new(drop, trace.batch().seed), row, y.cols).collect();
                scaled(vectors, |i| factors[i])
            }),
            Op::Scale { x, factor, .. } => at.get(&x).cloned().map(|vectors| scaled(vectors, |_| f64::from(factor))),
            Op::Norm { kind, x, gain, less_one, scale: Some(scale), .. } if at.contains_key(&x) => {
                let name = trace.names().name_of(scale);
                let scale = f64::from(trace.stored_row(&name, row)?[0]);
                let gains = gains(trace, gain, less_one)?;
                let vectors = at[&x].clone().into_iter();
                Some(vectors.map(|v| through_norm(v, gains.as_deref(), scale, kind, false)).collect())
            }
            Op::Classify { x, .. } => return Ok(at.remove(&x)),
            _ => None,
        };
        if let Some(vectors) = next {
            at.insert(op.output(), vectors);
        }
    }
    Ok(None)
}

fn scaled(mut vectors: Vec<Vec<f64>>, factor: impl Fn(usize) -> f64) -> Vec<Vec<f64>> {
    vectors.iter_mut().for_each(|vector| vector.iter_mut().enumerate().for_each(|(i, v)| *v *= factor(i)));
    vectors
}

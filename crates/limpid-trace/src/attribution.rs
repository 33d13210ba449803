//! Who wrote a logit: direct logit attribution, the part that each component's write to the residual stream has in a
//! logit, or in the difference of two.
//!
//! The list of ops is read backwards from the head. What the head reads is a direction d: its row for the target, minus
//! that for the foil. A sum passes d on to both of its terms. A norm, with its mean and scale taken as they are in this
//! run, is linear: it passes on d gain / scale, less its mean, and its offset has a part of its own. A product ends the
//! way: what it wrote, times d, is a bar. So the bars add up to the logit, but for rounding. What is not linear ends
//! the way too, and the note says so. Of a changed run the parts are what ran: what a step of the interventions set or
//! added is a part of its own, and what it cut off has none.
//!
//! The way can begin elsewhere: `path` follows a head to the values that it read, and a unit to what made it respond.

use super::Trace;
use super::TraceError;
use super::explain::Cell;
use super::interventions::IntervenedRow;
use super::json::number;
use limpid_core::config::{Config, NormKind, NormPlace, axis};
use limpid_core::kernels::dropout::Draws;
use limpid_core::kernels::norm;
use limpid_core::model::{Component, Module, in_block};
use limpid_core::ops::{Op, Region};
use serde::Serialize;
use std::collections::{HashMap, HashSet};

axis! {
    /// How finely writes are told apart.
    AttributionUnit, "unit" {
        /// Attention and feed-forward network of each block.
        Component = "component",
        /// Each head of attention; feed-forward networks whole.
        Head = "head",
        /// Each head, and each unit of the feed-forward networks.
        Neuron = "neuron",
    }
}

/// Which part of a model wrote something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum ModelPart {
    /// A head of attention.
    Head {
        /// Its block.
        block: usize,
        /// Its number.
        head: usize,
    },
    /// All heads of a block.
    Attention {
        /// The block.
        block: usize,
    },
    /// A feed-forward network.
    Mlp {
        /// Its block.
        block: usize,
    },
    /// A unit of a feed-forward network.
    Unit {
        /// Its block.
        block: usize,
        /// Its number.
        unit: usize,
    },
    /// A token that a head looked at.
    Token {
        /// Its place in the sequence.
        position: usize,
    },
    /// The token's own embedding.
    Embed,
    /// The stream before a block of a post-norm model.
    Stream {
        /// The block.
        block: usize,
    },
    /// A step of the interventions, with what it set or added.
    #[serde(rename = "step")]
    Step {
        /// Its number, from 1.
        step: usize,
    },
    /// A bias, an offset, the position, an adapter.
    Other,
}

/// What one component adds to the logit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AttributionBar {
    /// `L9H6`, `L9 MLP`, `L9 MLP unit 17`, `embed`.
    pub name: String,
    /// Which part of the model that is.
    pub part: ModelPart,
    /// What it adds.
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
    /// The value minus all parts: rounding, if `additive`.
    pub remainder: f64,
    /// Whether the parts add up to the value but for rounding. The note says why not.
    pub additive: bool,
    /// How it is to be read.
    pub note: String,
}

/// The parts of the logit of `target`, less that of `foil`, at a row of the batch; at most `most` bars.
///
/// # Errors
/// As [`Trace::logits`], and if the row or a token is outside.
pub fn attribute(
    trace: &Trace,
    row: usize,
    (target, foil): (u32, Option<u32>),
    unit: AttributionUnit,
    most: usize,
) -> Result<Attribution, TraceError> {
    let value = logit(trace, row, (target, foil))?;
    let mut way = Way::new(trace, row, unit);
    let additive = way.begin_at_head(target as usize, foil.map(|id| id as usize))?;
    let (mut bars, size) = (way.sorted(), way.size);
    let remainder = value - bars.iter().map(|bar| bar.value).sum::<f64>();
    let rest = bars.drain(most.min(bars.len())..).map(|bar| bar.value).sum();
    let rounds = is_rounding(remainder, size);
    let note = note(trace, rounds || !additive);
    Ok(Attribution { target, foil, value, bars, rest, remainder, additive: additive && rounds, note })
}

/// Whether numbers whose products add up to `size` in absolute value may miss their sum by so much in f32.
pub(super) fn is_rounding(remainder: f64, size: f64) -> bool {
    remainder.abs() <= 1e-4 * size
}

/// The logit of a token at a row, less that of another.
pub(super) fn logit(trace: &Trace, row: usize, (target, foil): (u32, Option<u32>)) -> Result<f64, TraceError> {
    trace.check_rows(&[row])?;
    let vocab = trace.model().config.vocab_size;
    if let Some(id) = [Some(target), foil].into_iter().flatten().find(|id| *id as usize >= vocab) {
        return Err(TraceError::Batch { what: format!("token {id} is outside the model's vocabulary of {vocab}") });
    }
    let logits = trace.stored_row("logits", row)?;
    let logit = |id: u32| f64::from(logits[id as usize]);
    let value = logit(target) - foil.map_or(0.0, logit);
    trace.check_finite(value)?;
    Ok(value)
}

/// How the parts of a logit are to be read; and whether they add up.
pub(super) fn note(trace: &Trace, adds_up: bool) -> String {
    let mut note = of_model(&trace.model().config).to_string();
    if trace.has_steps() {
        note += " This is the changed run: what a step set or added is a part of its own, and what a step cut off has \
                 no part.";
    }
    if !adds_up {
        note += " The parts miss the value by more than rounding explains.";
    }
    note
}

fn of_model(config: &Config) -> &'static str {
    if config.head_transform {
        "The head's dense layer and its activation are not linear, so what the blocks wrote cannot be told apart after \
         them."
    } else if config.logits_softcap > 0.0 {
        "Logits are bounded, which is not linear: the bars are parts of the logit before the bound, and the remainder \
         is what the bound takes."
    } else if config.norm_place == NormPlace::PostAttention {
        "What the feed-forward network makes is all that leaves a block, so the last one wrote the whole logit."
    } else if config.norm_place == NormPlace::Post {
        "Every block normalises the whole stream again, so what earlier blocks wrote does not simply add up: the \
         writes of the last block have bars of their own, and one bar stands for the stream before it. Norms count as \
         linear here: their mean and scale stay as they are."
    } else if config.final_norm {
        "The final norm is taken as it is in this run: what each component wrote is centred and scaled as the whole \
         stream was."
    } else {
        "No norm stands before the head: what each component wrote is read as it is."
    }
}

/// Where a bar can be followed further: the tensor that was multiplied with the matrix (of the stream: the tensor
/// itself), the matrix, what they make, and the direction in which that is read.
pub(super) struct Opening {
    pub(super) x: Region,
    pub(super) w: Option<Region>,
    pub(super) y: Region,
    pub(super) direction: Vec<f64>,
}

/// The way back at one row.
pub(super) struct Way<'a> {
    pub(super) trace: &'a Trace,
    row: usize,
    unit: AttributionUnit,
    bars: Vec<AttributionBar>,
    /// The absolute values of all products that were added up.
    pub(super) size: f64,
    /// A tensor whose steps have parts already, where the way begins behind them.
    pub(super) told: Option<Region>,
    /// In which direction a tensor is read.
    directions: HashMap<Region, Vec<f64>>,
    /// Attention (of all heads), feed-forward networks, the stream.
    pub(super) openings: Vec<(ModelPart, Opening)>,
}

pub(super) fn dot(a: &[f64], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * f64::from(*b)).sum()
}

/// One number times another, element by element.
pub(super) fn times(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a * b).collect()
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|v| f64::from(*v)).collect()
}

impl<'a> Way<'a> {
    pub(super) fn new(trace: &'a Trace, row: usize, unit: AttributionUnit) -> Way<'a> {
        let (bars, openings) = (vec![], vec![]);
        Way { row, unit, bars, size: 0.0, told: None, directions: HashMap::new(), openings, trace }
    }

    /// What there is, the largest first.
    pub(super) fn sorted(&mut self) -> Vec<AttributionBar> {
        let mut bars = std::mem::take(&mut self.bars);
        bars.sort_by(|a, b| b.value.abs().total_cmp(&a.value.abs()));
        bars
    }

    /// From the head's row for a token, less that for another. Whether it came to the embedding through sums and norms
    /// alone.
    pub(super) fn begin_at_head(&mut self, target: usize, foil: Option<usize>) -> Result<bool, TraceError> {
        let ops: Vec<Op> = self.trace.model().ops().iter().copied().collect();
        let head = ops.iter().rev().find(|op| matches!(op, Op::Classify { .. }));
        let Some(Op::Classify { x, w, b, cap, .. }) = head.copied() else {
            return Err(super::unknown(self.trace.model(), "logits"));
        };
        let row = |table: Region, id: usize| self.trace.table_rows(table, id..id + 1);
        let mut direction: Vec<f64> = row(w, target)?.into_iter().map(f64::from).collect();
        if let Some(foil) = foil {
            direction.iter_mut().zip(row(w, foil)?).for_each(|(d, w)| *d -= f64::from(w));
        }
        if let Some(b) = b {
            let bias = self.trace.table_rows(b, 0..1)?;
            let value = f64::from(bias[target]) - foil.map_or(0.0, |foil| f64::from(bias[foil]));
            self.size += value.abs();
            let cell = Cell { name: self.trace.model().name_of(b), at: vec![target] };
            self.bar("head bias", ModelPart::Other, value, cell);
        }
        self.pass(x, direction);
        Ok(self.walk(ops.len(), ops.len())? && cap == 0.0)
    }

    /// From a product inside of a block, or from the stream (`inside` is false), read in this direction.
    pub(super) fn begin_at(&mut self, region: Region, direction: Vec<f64>, inside: bool) -> Result<bool, TraceError> {
        let end = self.trace.maker(region) + 1;
        let reads = if inside { self.trace.maker(self.input_of(region)) + 1 } else { end };
        self.pass(region, direction);
        self.walk(end, reads)
    }

    /// What a product inside of a block is made from: it may be rotated, and have an adapter.
    fn input_of(&self, region: Region) -> Region {
        let ops = self.trace.model().ops();
        match ops[self.trace.maker(region)] {
            Op::Add { a: x, .. } | Op::Rotate { x, .. } | Op::QkNorm { x, .. } => self.input_of(x),
            Op::Linear { x, .. } => x,
            _ => region,
        }
    }

    /// Ops before `end`; products from op `reads` on are read through. Whether it came to the embedding through sums
    /// and norms alone.
    fn walk(&mut self, end: usize, reads: usize) -> Result<bool, TraceError> {
        let ops: Vec<Op> = self.trace.model().ops().iter().copied().take(end).collect();
        let blocks = &self.trace.model().blocks;
        // of a post-norm model one block is told apart
        let told = blocks.iter().rposition(|block| block.start < reads);
        let before = blocks.first().map_or(0, |block| block.start)..told.map_or(0, |block| blocks[block].start);
        let place = self.trace.model().config.norm_place;
        let (post, mut additive) = (place.is_post(), place != NormPlace::PostAttention);
        for (i, op) in ops.into_iter().enumerate().rev() {
            let Some(behind) = self.directions.remove(&op.output()) else { continue };
            // as what the op itself wrote is read, behind its steps
            let direction = self.edited(op.output(), &behind);
            match op {
                Op::Linear { x, w, b, .. } if i >= reads => self.project((x, w, b), &direction)?,
                Op::Rotate { x, .. } | Op::QkNorm { x, .. } if i >= reads => self.pass(x, direction),
                // what is before the last block of a post-norm model, or not linear
                _ if post && before.contains(&i) => {
                    let (block, y) = (told.unwrap_or(0), op.output());
                    let part = ModelPart::Stream { block };
                    self.whole(y, (format!("stream before block {block}"), part), &behind)?;
                    self.openings.push((part, Opening { x: y, w: None, y, direction }));
                    additive = false;
                }
                Op::Activate { y, .. } => {
                    self.whole(y, ("head's dense layer".into(), ModelPart::Other), &behind)?;
                    additive = false;
                }
                Op::Norm { kind, x, gain, offset, less_one, scale, .. } => {
                    let name = scale.map_or(String::new(), |scale| self.trace.model().name_of(scale));
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
                    let factors = dropout_factors(Draws::new(drop, self.trace.batch().seed), self.row, y.cols);
                    self.pass(x, direction.iter().zip(factors).map(|(d, factor)| d * factor).collect());
                }
                Op::Linear { x, w, b, y } => self.product((x, w, b, y), (&direction, &behind))?,
                Op::Embed { segments, token, position, .. } => {
                    for (region, name, part) in
                        [(token, "embed", ModelPart::Embed), (position, "pos_embed", ModelPart::Other)]
                    {
                        if let Some(region) = region {
                            self.whole(region, (name.into(), part), &direction)?;
                        }
                    }
                    if let Some(table) = segments {
                        let segment = self.trace.batch().segments.get(self.row).map_or(0, |id| *id as usize);
                        let values = self.trace.table_rows(table, segment..segment + 1)?;
                        let cell = Cell { name: self.trace.model().name_of(table), at: vec![segment, 0] };
                        let value = self.sum(&direction, &wide(&values));
                        self.bar("segment_embed", ModelPart::Other, value, cell);
                    }
                }
                // no model has another on the way
                other => {
                    let y = other.output();
                    self.whole(y, (self.trace.model().name_of(y), ModelPart::Other), &behind)?;
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

    fn bar(&mut self, name: &str, part: ModelPart, value: f64, at: Cell) {
        self.bars.push(AttributionBar { name: name.into(), part, value, at: Some(at) });
    }

    /// What a direction reads of some numbers. What it does not read may be infinite.
    fn sum(&mut self, direction: &[f64], values: &[f64]) -> f64 {
        let products = direction.iter().zip(values).filter(|(d, _)| **d != 0.0).map(|(d, v)| d * v);
        products.fold(0.0, |sum, product| {
            self.size += product.abs();
            sum + product
        })
    }

    /// In which direction that is read which an op wrote, where its output is read in the direction `behind`, with its
    /// steps. What these put in is told in bars, one for each step; their sum is what a reader of the output gets
    /// besides.
    fn edited(&mut self, y: Region, behind: &[f64]) -> Vec<f64> {
        let edited = self.trace.intervened_row(y, self.row).filter(|_| self.told != Some(y));
        let Some(edited) = edited else { return behind.to_vec() };
        self.given(y, &edited, behind);
        times(behind, &edited.kept)
    }

    /// Bars for what steps put into a tensor; their sum.
    fn given(&mut self, y: Region, edited: &IntervenedRow, behind: &[f64]) -> f64 {
        let mut all = 0.0;
        for (by, given) in &edited.given {
            let value = self.sum(behind, given);
            let (part, verb) = (ModelPart::Step { step: by.step }, if by.sets { "set" } else { "added" });
            let name = format!("{verb} by step {}", by.step);
            match self.bars.iter_mut().find(|bar| bar.name == name) {
                Some(bar) => bar.value += value,
                None => {
                    let cell = self.cell(&self.trace.model().name_of(y), 0);
                    self.bar(&name, part, value, cell);
                }
            }
            all += value;
        }
        all
    }

    /// A row of a tensor as far as the op that writes it wrote it.
    pub(super) fn own_row(&mut self, region: Region) -> Result<Vec<f64>, TraceError> {
        let values = self.trace.stored_row(&self.trace.model().name_of(region), self.row)?;
        let edited = self.trace.intervened_row(region, self.row).filter(|_| self.told != Some(region));
        Ok(edited.map_or_else(|| wide(&values), |edited| edited.own(&values)))
    }

    /// The cell of a column of a tensor, at this row.
    fn cell(&self, name: &str, col: usize) -> Cell {
        let length = self.trace.batch().spans[0].rows;
        Cell { name: name.into(), at: vec![self.row / length, self.row % length, col] }
    }

    /// What an op wrote as one bar.
    fn whole(
        &mut self,
        region: Region,
        (label, part): (String, ModelPart),
        direction: &[f64],
    ) -> Result<(), TraceError> {
        let values = self.own_row(region)?;
        let value = self.sum(direction, &values);
        let cell = self.cell(&self.trace.model().name_of(region), 0);
        self.bar(&label, part, value, cell);
        Ok(())
    }

    /// What a product wrote, by heads or units where they are asked for; what steps put into that which it multiplies
    /// has bars of its own.
    fn product(
        &mut self,
        (x, w, b, y): (Region, Region, Option<Region>, Region),
        (direction, behind): (&[f64], &[f64]),
    ) -> Result<(), TraceError> {
        let from = self.trace.model().name_of(x);
        let (d, fine) = (self.trace.model().config.d_value(), self.unit);
        let Some(Module { block: Some(block), part }) = self.trace.model().tensor(&from).map(|t| t.module) else {
            return self.project((x, w, b), direction); // the embedding's
        };
        let (what, whole, wide) = match part {
            Component::Attention => {
                let whole = ModelPart::Attention { block };
                ("attention", whole, (fine != AttributionUnit::Component).then_some(d))
            }
            Component::FeedForward => ("MLP", ModelPart::Mlp { block }, (fine == AttributionUnit::Neuron).then_some(1)),
            part if part.is_attention() => ("attention's adapter", ModelPart::Other, None),
            _ => ("MLP's adapter", ModelPart::Other, None),
        };
        if whole != ModelPart::Other {
            self.openings.push((whole, Opening { x, w: Some(w), y, direction: direction.to_vec() }));
        }
        let edited = self.trace.intervened_row(x, self.row);
        if wide.is_none() && edited.is_none() {
            return self.whole(y, (format!("L{block} {what}"), whole), behind);
        }
        let read = self.read_through(w, direction)?;
        let given = edited.map_or(0.0, |edited| self.given(x, &edited, &read));
        let Some(wide) = wide else {
            self.whole(y, (format!("L{block} {what}"), whole), behind)?;
            self.bars.last_mut().into_iter().for_each(|bar| bar.value -= given);
            return Ok(());
        };
        let values = self.own_row(x)?;
        let parts = read.chunks(wide).zip(values.chunks(wide)).enumerate();
        for (n, (read, values)) in parts {
            let mut at = self.cell(&from, n);
            let (name, part) = match what {
                "MLP" => (format!("L{block} MLP unit {n}"), ModelPart::Unit { block, unit: n }),
                _ => {
                    at.at = vec![at.at[0], n, at.at[1], 0];
                    (format!("L{block}H{n}"), ModelPart::Head { block, head: n })
                }
            };
            let value = self.sum(read, values);
            self.bar(&name, part, value, at);
        }
        self.bias(b, &format!("L{block} {what} bias"), direction)
    }

    /// In which direction a product reads what it multiplies.
    pub(super) fn read_through(&self, w: Region, direction: &[f64]) -> Result<Vec<f64>, TraceError> {
        let (weights, mut read) = (self.trace.table_rows(w, 0..w.rows)?, vec![0.0; w.cols]);
        for (d, row) in direction.iter().zip(weights.chunks_exact(w.cols)).filter(|(d, _)| **d != 0.0) {
            read.iter_mut().zip(row).for_each(|(to, w)| *to += d * f64::from(*w));
        }
        Ok(read)
    }

    /// A bar for what a bias adds.
    fn bias(&mut self, bias: Option<Region>, label: &str, direction: &[f64]) -> Result<(), TraceError> {
        let Some(bias) = bias else { return Ok(()) };
        let values = self.trace.table_rows(bias, 0..1)?;
        let cell = Cell { name: self.trace.model().name_of(bias), at: vec![0] };
        let value = self.sum(direction, &wide(&values));
        self.bar(label, ModelPart::Other, value, cell);
        Ok(())
    }

    /// A product that passes the direction on.
    fn project(&mut self, (x, w, b): (Region, Region, Option<Region>), direction: &[f64]) -> Result<(), TraceError> {
        let read = self.read_through(w, direction)?;
        self.pass(x, read);
        let name = b.map_or(String::new(), |b| self.trace.model().name_of(b));
        let label = match in_block(&name) {
            Some((block, own)) if own.contains("qkv") => format!("L{block} value bias"),
            Some((block, _)) => format!("L{block} MLP's input bias"),
            None => "embed.project bias".into(),
        };
        self.bias(b, &label, direction)
    }
}

/// `ln_final` of `ln_final.hook_scale`, `L3 ln2` of `blocks.3.ln2.hook_scale`.
fn norm_name(scale: &str) -> String {
    let scale = scale.trim_end_matches(".hook_scale");
    in_block(scale).map_or(scale.into(), |(block, norm)| format!("L{block} {norm}"))
}

/// What dropout does to each element of a row.
fn dropout_factors(draws: Draws, row: usize, cols: usize) -> impl Iterator<Item = f64> {
    (0..cols).map(move |col| f64::from(draws.factor((row * cols + col) as u64)))
}

/// A norm's gains as they are applied.
fn gains(trace: &Trace, gain: Option<Region>, less_one: bool) -> Result<Option<Vec<f32>>, TraceError> {
    let applied = |gains: Vec<f32>| gains.into_iter().map(|gain| norm::applied(gain, less_one)).collect();
    Ok(gain.map(|gain| trace.table_rows(gain, 0..1)).transpose()?.map(applied))
}

/// A norm with its mean and scale as they are is linear: y = (x - mean(x)) gain / scale. What it makes of a vector, or,
/// backwards, of a direction.
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

/// What the head's matrix reads of vectors that are added to the tensor `from` at a row, by the direct way: through
/// sums and norms alone, these as they are in this run. None where there is no such way.
pub(super) fn direct_way(
    trace: &Trace,
    from: Region,
    vectors: Vec<Vec<f64>>,
    row: usize,
) -> Result<Option<Vec<Vec<f64>>>, TraceError> {
    let ops: Vec<Op> = trace.model().ops().iter().copied().collect();
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
    let edited = |trace: &Trace, y: Region, vectors: Vec<Vec<f64>>| match trace.intervened_row(y, row) {
        Some(edited) => scaled(vectors, |i| edited.kept[i]),
        None => vectors,
    };
    let mut at = HashMap::from([(from, edited(trace, from, vectors))]);
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
                let factors: Vec<f64> = dropout_factors(Draws::new(drop, trace.batch().seed), row, y.cols).collect();
                scaled(vectors, |i| factors[i])
            }),
            Op::Scale { x, factor, .. } => at.get(&x).cloned().map(|vectors| scaled(vectors, |_| f64::from(factor))),
            Op::Norm { kind, x, gain, less_one, scale: Some(scale), .. } if at.contains_key(&x) => {
                let name = trace.model().name_of(scale);
                let scale = f64::from(trace.stored_row(&name, row)?[0]);
                let gains = gains(trace, gain, less_one)?;
                let vectors = at[&x].clone().into_iter();
                Some(vectors.map(|v| through_norm(v, gains.as_deref(), scale, kind, false)).collect())
            }
            Op::Classify { x, .. } => return Ok(at.remove(&x)),
            _ => None,
        };
        if let Some(vectors) = next {
            at.insert(op.output(), edited(trace, op.output(), vectors));
        }
    }
    Ok(None)
}

fn scaled(mut vectors: Vec<Vec<f64>>, factor: impl Fn(usize) -> f64) -> Vec<Vec<f64>> {
    vectors.iter_mut().for_each(|vector| vector.iter_mut().enumerate().for_each(|(i, v)| *v *= factor(i)));
    vectors
}

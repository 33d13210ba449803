//! From a word to its reason, step by step: which parts wrote its logit, where a head looked, what a token's value
//! carried, which units of a feed-forward network responded, and so back to the words of the input.
//!
//! A step divides one number among parts, which add up to it: a difference of logits among heads and feed-forward
//! networks (`attribution`); a head's part among the tokens that it looked at, each with its weight and value; what a
//! token's value gave among those that wrote it into the stream there; a network's part among its units. A unit's
//! activation is not linear, so the way goes on from what went into it, its pre-activation. Patterns, and means and
//! scales of norms, are taken as they are in this run. The sentences are made from the numbers, in `sentences`.

mod sentences;

use super::Trace;
use super::attribution::{
    AttributionBar, AttributionUnit, ModelPart, Opening, Way, direct_way, dot, is_rounding, logit, note, times,
};
use super::explain::Cell;
use super::ranking::greatest;
use super::sheet::Sheet;
use super::{TraceError, unknown};
use limpid_core::kernels::attend::Stage;
use limpid_core::kernels::dropout::{Draws, weight_index};
use limpid_core::model::{Component, Module};
use limpid_core::ops::{Op, Region, Span};
use std::fmt;
use std::str::FromStr;

/// The word that is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathQuestion {
    /// The row of the batch after which (or, of an encoder, in whose place) it is predicted.
    pub row: usize,
    /// The token.
    pub target: u32,
    /// The token that it is compared with.
    pub foil: Option<u32>,
}

/// Which part is followed. Written `h2.1`, `t5`, `m3`, `u17`, `s2`, `w`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hop {
    /// A head: its block and its number.
    Head(usize, usize),
    /// A token that the head looked at, by its place in the sequence.
    Token(usize),
    /// The feed-forward network of a block.
    Mlp(usize),
    /// One of its units.
    Unit(usize),
    /// The stream before a block of a post-norm model.
    Stream(usize),
    /// The embedding of the token itself, where the way ends.
    Word,
}

impl Hop {
    /// The hop that follows a part; none where the way ends.
    pub fn into(part: ModelPart) -> Option<Hop> {
        Some(match part {
            ModelPart::Head { block, head } => Hop::Head(block, head),
            ModelPart::Token { position } => Hop::Token(position),
            ModelPart::Mlp { block } => Hop::Mlp(block),
            ModelPart::Unit { unit, .. } => Hop::Unit(unit),
            ModelPart::Stream { block } => Hop::Stream(block),
            ModelPart::Embed => Hop::Word,
            ModelPart::Attention { .. } | ModelPart::Step { .. } | ModelPart::Other => return None,
        })
    }
}

impl fmt::Display for Hop {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Hop::Head(block, head) => write!(out, "h{block}.{head}"),
            Hop::Token(position) => write!(out, "t{position}"),
            Hop::Mlp(block) => write!(out, "m{block}"),
            Hop::Unit(unit) => write!(out, "u{unit}"),
            Hop::Stream(block) => write!(out, "s{block}"),
            Hop::Word => out.write_str("w"),
        }
    }
}

impl FromStr for Hop {
    type Err = String;
    fn from_str(text: &str) -> Result<Hop, String> {
        let number = |text: &str| text.parse::<usize>().ok();
        let mut letters = text.chars();
        let kind = letters.next();
        let rest = letters.as_str();
        let hop = match kind {
            Some('h') => rest.split_once('.').and_then(|(l, h)| Some(Hop::Head(number(l)?, number(h)?))),
            Some('t') => number(rest).map(Hop::Token),
            Some('m') => number(rest).map(Hop::Mlp),
            Some('u') => number(rest).map(Hop::Unit),
            Some('s') => number(rest).map(Hop::Stream),
            Some('w') if rest.is_empty() => Some(Hop::Word),
            _ => None,
        };
        hop.ok_or_else(|| {
            let shown: String = text.escape_debug().take(20).collect();
            format!(
                "`{shown}` is no step of a path: expected h2.1 (a head), t5 (a token), m3 (an MLP), u17 (a unit), s2 \
                 or w"
            )
        })
    }
}

/// What a step is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepKind {
    /// The logit.
    Logit,
    /// Where a head looked.
    Head {
        /// Its block.
        block: usize,
        /// Its number.
        head: usize,
    },
    /// What it carried from a token.
    Carried {
        /// The head's block.
        block: usize,
        /// The head.
        head: usize,
    },
    /// Which units of a feed-forward network wrote.
    Mlp {
        /// Its block.
        block: usize,
    },
    /// What made a unit respond.
    Unit {
        /// Its block.
        block: usize,
        /// Its number.
        unit: usize,
    },
    /// What wrote the stream before a block.
    Stream {
        /// The block.
        block: usize,
    },
    /// The token's own embedding.
    Word,
}

/// Tokens with what is added to their logits.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LensWords {
    /// Those that are raised most, the first one most.
    pub raised: Vec<(u32, f32)>,
    /// Those that are lowered most, the first one most.
    pub lowered: Vec<(u32, f32)>,
}

/// One part of the number that a step divides.
#[derive(Clone, Debug, PartialEq)]
pub struct PathBar {
    /// `L2H1`, `L3 MLP`, `unit 17`; of a token its place.
    pub name: String,
    /// Which part it is.
    pub part: ModelPart,
    /// What it adds.
    pub value: f64,
    /// The token that it is, and how much of the head's weight it has.
    pub looked: Option<(u32, f32)>,
    /// What a unit's write does to the logits, read by the head alone.
    pub words: LensWords,
    /// The first cell of what it is made of.
    pub at: Option<Cell>,
}

impl From<AttributionBar> for PathBar {
    fn from(AttributionBar { name, part, value, at }: AttributionBar) -> PathBar {
        PathBar { name, part, value, looked: None, words: LensWords::default(), at }
    }
}

/// What is not among the bars.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PathRest {
    /// How many parts.
    pub count: usize,
    /// What they add.
    pub value: f64,
    /// How much of a head's weight they have.
    pub weight: f64,
}

/// One step of the way.
#[derive(Clone, Debug, PartialEq)]
pub struct PathStep {
    /// The question.
    pub asked: PathQuestion,
    /// What it is about.
    pub kind: StepKind,
    /// The unit whose pre-activation is divided from here on; none while it is the logit.
    pub toward: Option<(usize, usize)>,
    /// The place in the sequence, and its token.
    pub position: usize,
    /// Its token.
    pub token: u32,
    /// The number that is divided.
    pub value: f64,
    /// Its parts, the largest first; tokens by their weight.
    pub bars: Vec<PathBar>,
    /// The others.
    pub rest: PathRest,
    /// The number less all of its parts: rounding, unless `additive` is false.
    pub remainder: f64,
    /// Whether every part has a bar down to the embedding, and they add up. The note says why not.
    pub additive: bool,
    /// Of a head its weights on all tokens of the sequence.
    pub weights: Vec<f32>,
    /// What a carried value, or a unit's write, does to the logits, read by the head alone.
    pub words: LensWords,
    /// Of a feed-forward network how many units it has.
    pub units: usize,
    /// Of a unit what came out of its activation, or of its product if it is gated.
    pub after: Option<f32>,
    /// Whether units are gated: the path goes on through the gate alone.
    pub gated: bool,
    /// The number's own cell, or one that it is made of.
    pub at: Cell,
    /// How the parts are to be read.
    pub note: String,
}

/// Tokens of a list of words.
const WORDS: usize = 5;

/// Goes the way of `hops` from a word, and says what there is to see at its end: at most `most` bars.
///
/// # Errors
/// As [`Trace::logits`]; if the row or a token is outside, or a hop does not lead on.
pub fn follow(trace: &Trace, asked: PathQuestion, hops: &[Hop], most: usize) -> Result<PathStep, TraceError> {
    let (mut way, mut here) = PathWay::begin(trace, asked, most)?;
    for hop in hops {
        here = way.hop(here, *hop)?;
    }
    way.shown(&here)
}

/// Every step of the way of `hops`, from the word on.
///
/// # Errors
/// As [`follow`].
pub fn steps(trace: &Trace, asked: PathQuestion, hops: &[Hop], most: usize) -> Result<Vec<PathStep>, TraceError> {
    let (mut way, mut here) = PathWay::begin(trace, asked, most)?;
    let mut all = vec![way.shown(&here)?];
    for hop in hops {
        here = way.hop(here, *hop)?;
        all.push(way.shown(&here)?);
    }
    Ok(all)
}

/// The way that takes the largest part of each step, until it ends. The word's own embedding is taken where nothing
/// else is left.
///
/// # Errors
/// As [`follow`].
pub fn largest(trace: &Trace, asked: PathQuestion) -> Result<Vec<Hop>, TraceError> {
    let (mut way, mut here) = PathWay::begin(trace, asked, 0)?;
    let mut hops = vec![];
    loop {
        let wrote = here.step.bars.iter().filter(|bar| bar.value != 0.0);
        let ways = wrote.filter_map(|bar| Some((Hop::into(bar.part)?, bar.value.abs())));
        let longest = |hop: &Hop| (!hops.is_empty() || *hop != Hop::Word) && hops.len() < DEEPEST;
        let next = ways.filter(|(hop, _)| longest(hop)).max_by(|a, b| a.1.total_cmp(&b.1));
        let Some((hop, _)) = next else { return Ok(hops) };
        here = way.hop(here, hop)?;
        hops.push(hop);
    }
}

/// Steps of the longest way that is found by itself.
const DEEPEST: usize = 12;

/// A step with what is needed to go on.
struct Standing {
    step: PathStep,
    /// The absolute values of the products that its parts are sums of.
    size: f64,
    row: usize,
    openings: Vec<(ModelPart, Opening)>,
    /// Of a head or a feed-forward network in which direction its input is read, and where its output lies.
    read: Option<(Vec<f64>, Region, Region)>,
    /// What the head reads if the step is shown: vectors in a row of a tensor, of a network those of its first bars.
    wrote: Option<(Region, usize, Vec<Vec<f64>>)>,
}

struct PathWay<'a> {
    trace: &'a Trace,
    asked: PathQuestion,
    span: Span,
    /// How many bars of a step are shown.
    most: usize,
}

impl<'a> PathWay<'a> {
    /// The way, and its first step.
    fn begin(trace: &'a Trace, asked: PathQuestion, most: usize) -> Result<(Self, Standing), TraceError> {
        let PathQuestion { row, target, foil } = asked;
        if foil == Some(target) {
            let what = format!("token {target} is compared with itself: compare it with another token, or with none");
            return Err(TraceError::Batch { what });
        }
        let value = logit(trace, row, (target, foil))?;
        let span = trace.batch().spans.iter().copied().find(|span| (span.row..span.row + span.rows).contains(&row));
        let span = span.unwrap_or(trace.batch().spans[0]);
        let mut way = Way::new(trace, row, AttributionUnit::Head);
        let additive = way.begin_at_head(target as usize, foil.map(|id| id as usize))?;
        let (bars, openings, size) = (way.sorted(), way.openings, way.size);
        let own = PathWay { trace, asked, span, most };
        let at = Cell { name: "logits".into(), at: vec![own.sequence(), row - own.span.row, target as usize] };
        let step = own.step((StepKind::Logit, None), row, (value, bars, additive), at);
        Ok((own, Standing { step, size, row, openings, read: None, wrote: None }))
    }

    fn sequence(&self) -> usize {
        self.span.row / self.span.rows.max(1)
    }

    /// A step whose bars are parts that wrote.
    fn step(
        &self,
        (kind, toward): (StepKind, Option<(usize, usize)>),
        row: usize,
        (value, bars, additive): (f64, Vec<AttributionBar>, bool),
        at: Cell,
    ) -> PathStep {
        PathStep {
            asked: self.asked,
            kind,
            toward,
            position: row - self.span.row,
            token: self.trace.batch().tokens[row],
            value,
            bars: bars.into_iter().map(PathBar::from).collect(),
            rest: PathRest::default(),
            remainder: 0.0,
            additive,
            weights: vec![],
            words: LensWords::default(),
            units: 0,
            after: None,
            gated: self.trace.model().config.ffn_gated,
            at,
            note: String::new(),
        }
    }

    /// The step with the bars that are shown and what the head reads of them, and the sum of the others.
    fn shown(&mut self, here: &Standing) -> Result<PathStep, TraceError> {
        let mut step = here.step.clone();
        if let Some((region, row, vectors)) = &here.wrote {
            let words = words(self.trace, *region, vectors.clone(), *row)?;
            match step.kind {
                StepKind::Mlp { .. } => step.bars.iter_mut().zip(words).for_each(|(bar, words)| bar.words = words),
                _ => step.words = words.into_iter().next().unwrap_or_default(),
            }
        }
        let mut adds_up = true;
        if !step.bars.is_empty() {
            step.remainder = step.value - step.bars.iter().map(|bar| bar.value).sum::<f64>();
            let rounds = is_rounding(step.remainder, here.size);
            (adds_up, step.additive) = (rounds || !step.additive, step.additive && rounds);
        }
        step.note = note(self.trace, adds_up);
        // tokens are sorted by their weight: that with the largest part is shown with them
        let largest =
            (0..step.bars.len()).max_by(|a, b| step.bars[*a].value.abs().total_cmp(&step.bars[*b].value.abs()));
        if let Some(largest) = largest.filter(|at| self.most > 0 && *at >= self.most) {
            let bar = step.bars.remove(largest);
            step.bars.insert(self.most - 1, bar);
        }
        if step.bars.len() > self.most {
            for bar in step.bars.drain(self.most..) {
                step.rest.count += 1;
                step.rest.value += bar.value;
                step.rest.weight += bar.looked.map_or(0.0, |(_, weight)| f64::from(weight));
            }
        }
        Ok(step)
    }

    fn hop(&mut self, here: Standing, hop: Hop) -> Result<Standing, TraceError> {
        let of = here.step.bars.iter().find(|bar| Hop::into(bar.part) == Some(hop));
        let Some(bar) = of.cloned() else {
            let places: Vec<String> = here
                .step
                .bars
                .iter()
                .filter_map(|bar| Hop::into(bar.part))
                .map(|hop| hop.to_string())
                .take(8)
                .collect();
            let what = format!("the path has no `{hop}` there; it goes on to {}", places.join(", "));
            return Err(TraceError::Batch { what });
        };
        match hop {
            Hop::Head(block, head) => self.head(here, (block, head), bar.value),
            Hop::Token(position) => self.carried(here, position, bar.value),
            Hop::Mlp(block) => self.network(here, block, bar.value),
            Hop::Unit(unit) => self.unit(here, unit),
            Hop::Stream(block) => self.stream(here, block, bar.value),
            Hop::Word => {
                let at = bar.at.clone().unwrap_or(here.step.at.clone());
                let kind = (StepKind::Word, here.step.toward);
                let step = self.step(kind, here.row, (bar.value, vec![], here.step.additive), at);
                Ok(Standing { step, size: 0.0, row: here.row, openings: vec![], read: None, wrote: None })
            }
        }
    }

    /// What is read of a part: the direction at its input, the input and the output.
    fn read(&mut self, here: &Standing, part: ModelPart) -> Result<(Vec<f64>, Region, Region), TraceError> {
        let opening = here.openings.iter().find(|(own, _)| *own == part).map(|(_, opening)| opening);
        let Some(Opening { x, w: Some(w), y, direction }) = opening else {
            return Err(TraceError::Batch { what: "the path does not go on from there".into() });
        };
        let read = Way::new(self.trace, here.row, AttributionUnit::Head).read_through(*w, direction)?;
        Ok((read, *x, *y))
    }

    fn head(&mut self, here: Standing, (block, head): (usize, usize), value: f64) -> Result<Standing, TraceError> {
        let (read, x, y) = self.read(&here, ModelPart::Attention { block })?;
        let wide = self.trace.model().config.d_value();
        let kept = self.trace.intervened_row(x, here.row).map(|edited| edited.kept);
        let read = kept.map_or_else(|| read.clone(), |kept| times(&read, &kept))[head * wide..][..wide].to_vec();
        let own = self.trace.head(block, self.sequence(), head)?;
        let (query, keys) = (here.row - self.span.row, self.span.rows);
        let weights = Sheet::scores(own.clone(), Stage::Weights).band(query..query + 1, 0..keys);
        let (cols, values) = (own.heads.cols(), own.heads.of_head(head)[2].clone());
        let drawn = self.drawn(block, (here.row, head, own.heads.n_head));
        let pattern = Module::block(block).part(Component::Attention).named("hook_pattern");
        let sequence = self.sequence();
        let mut bars: Vec<PathBar> = own
            .sees(query)
            .map(|key| {
                let row = self.span.row + key;
                let factor = f64::from(weights[key]) * drawn(key);
                let value = &own.qkv.values[row * cols..][values.clone()];
                let bar = AttributionBar {
                    name: format!("{key}"),
                    part: ModelPart::Token { position: key },
                    value: factor * dot(&read, value),
                    at: Some(Cell { name: pattern.clone(), at: vec![sequence, head, query, key] }),
                };
                PathBar { looked: Some((self.trace.batch().tokens[row], weights[key])), ..bar.into() }
            })
            .collect();
        let weight = |bar: &PathBar| bar.looked.map_or(0.0, |(_, weight)| weight);
        bars.sort_by(|a, b| weight(b).total_cmp(&weight(a)));
        let at = bars.first().and_then(|bar| bar.at.clone()).unwrap_or(here.step.at.clone());
        let kind = (StepKind::Head { block, head }, here.step.toward);
        let mut step = self.step(kind, here.row, (value, vec![], here.step.additive), at);
        (step.bars, step.weights) = (bars, weights);
        let size = sizes(&step);
        Ok(Standing { step, size, row: here.row, openings: vec![], read: Some((read, x, y)), wrote: None })
    }

    /// What dropout multiplies a weight with, by its key.
    fn drawn(&self, block: usize, (row, head, n_head): (usize, usize, usize)) -> impl Fn(usize) -> f64 + use<> {
        let names = self.trace.model();
        let drop = names.ops()[names.blocks[block].clone()].iter().find_map(|op| match op {
            Op::Attend { drop, .. } => *drop,
            _ => None,
        });
        let draws = drop.map(|drop| Draws::new(drop, self.trace.batch().seed));
        move |key| draws.map_or(1.0, |draws| f64::from(draws.factor(weight_index(row, head, n_head, key))))
    }

    fn carried(&mut self, here: Standing, position: usize, bar: f64) -> Result<Standing, TraceError> {
        let (StepKind::Head { block, head }, Some((read, z, y))) = (here.step.kind, here.read) else {
            return Err(TraceError::Batch { what: "only a head looks at tokens".into() });
        };
        let (own, row) = (self.trace.head(block, self.sequence(), head)?, self.span.row + position);
        let (cols, values) = (own.heads.cols(), own.heads.of_head(head)[2].clone());
        let factor =
            f64::from(here.step.weights[position]) * self.drawn(block, (here.row, head, own.heads.n_head))(position);
        // through the output's matrix to the stream
        let (wide, ops) = (read.len(), self.trace.model().ops());
        let product = |op: &Op| match *op {
            Op::Linear { x, w, y: own, .. } if x == z && own == y => Some(w),
            _ => None,
        };
        let w = ops.iter().find_map(product).ok_or_else(|| unknown(self.trace.model(), "hook_z"))?;
        let weights = self.trace.table_rows(w, 0..w.rows)?;
        let kept = self.trace.intervened_row(z, here.row).map(|edited| edited.kept[head * wide..][..wide].to_vec());
        let value: Vec<f64> = own.qkv.values[row * cols..][values.clone()].iter().map(|v| f64::from(*v)).collect();
        let value = kept.map_or_else(|| value.clone(), |kept| times(&value, &kept));
        let vector = weights.chunks_exact(w.cols).map(|weights| factor * dot(&value, &weights[head * wide..]));
        let vector: Vec<f64> = vector.collect();
        // and back through the matrix of values
        let qkv = self.trace.model().ops()[self.trace.model().blocks[block].clone()].iter().find_map(|op| match *op {
            Op::Attend { qkv, .. } => Some(qkv),
            _ => None,
        });
        let qkv = qkv.ok_or_else(|| unknown(self.trace.model(), "hook_qkv"))?;
        let mut direction = vec![0.0; cols];
        direction[values].iter_mut().zip(read).for_each(|(to, read)| *to = factor * read);
        let group = own.heads.group();
        let name = Module::block(block).part(Component::Attention).named("hook_v");
        let at = Cell { name, at: vec![self.sequence(), head / group, position, 0] };
        let mut next =
            self.written((StepKind::Carried { block, head }, here.step.toward), row, (bar, qkv, direction, true), at)?;
        next.wrote = Some((y, here.row, vec![vector]));
        Ok(next)
    }

    /// A step whose number is read in a tensor, in this direction.
    fn written(
        &mut self,
        kind: (StepKind, Option<(usize, usize)>),
        row: usize,
        (value, region, direction, inside): (f64, Region, Vec<f64>, bool),
        at: Cell,
    ) -> Result<Standing, TraceError> {
        let mut way = Way::new(self.trace, row, AttributionUnit::Head);
        if matches!(kind.0, StepKind::Stream { .. }) {
            way.told = Some(region);
        }
        let additive = way.begin_at(region, direction, inside)?;
        let (bars, openings, size) = (way.sorted(), way.openings, way.size);
        let step = self.step(kind, row, (value, bars, additive), at);
        Ok(Standing { step, size, row, openings, read: None, wrote: None })
    }

    fn network(&mut self, here: Standing, block: usize, value: f64) -> Result<Standing, TraceError> {
        let (read, x, y) = self.read(&here, ModelPart::Mlp { block })?;
        let name = self.trace.model().name_of(x);
        let post = Way::new(self.trace, here.row, AttributionUnit::Head).own_row(x)?;
        let place = [self.sequence(), here.row - self.span.row];
        let bar = |(unit, (read, post)): (usize, (&f64, &f64))| AttributionBar {
            name: format!("unit {unit}"),
            part: ModelPart::Unit { block, unit },
            value: if *read == 0.0 { 0.0 } else { read * post },
            at: Some(Cell { name: name.clone(), at: [&place[..], &[unit]].concat() }),
        };
        let mut bars: Vec<PathBar> = read.iter().zip(&post).enumerate().map(bar).map(PathBar::from).collect();
        bars.sort_by(|a, b| b.value.abs().total_cmp(&a.value.abs()));
        let shown: Vec<usize> = bars.iter().take(self.most).filter_map(|bar| unit_of(bar.part)).collect();
        let wrote = Some((y, here.row, self.writes((x, y), &shown, &post)?));
        // a network's number has its bias
        let bias = value - bars.iter().map(|bar| bar.value).sum::<f64>();
        let config = &self.trace.model().config;
        if config.ffn_bias {
            let (name, part) = ("bias".into(), ModelPart::Other);
            bars.push(AttributionBar { name, part, value: bias, at: None }.into());
        }
        let at = bars.first().and_then(|bar| bar.at.clone()).unwrap_or(here.step.at.clone());
        let kind = (StepKind::Mlp { block }, here.step.toward);
        let mut step = self.step(kind, here.row, (value, vec![], here.step.additive), at);
        (step.bars, step.units) = (bars, post.len());
        let size = sizes(&step);
        Ok(Standing { step, size, row: here.row, openings: vec![], read: Some((read, x, y)), wrote })
    }

    /// What some units write.
    fn writes(&self, (x, y): (Region, Region), units: &[usize], post: &[f64]) -> Result<Vec<Vec<f64>>, TraceError> {
        let product = |op: &Op| match *op {
            Op::Linear { x: from, w, y: own, .. } if from == x && own == y => Some(w),
            _ => None,
        };
        let w = self.trace.model().ops().iter().find_map(product);
        let w = w.ok_or_else(|| unknown(self.trace.model(), "hook_post"))?;
        let weights = self.trace.table_rows(w, 0..w.rows)?;
        let write = |unit: &usize| {
            let column = weights.iter().skip(*unit).step_by(w.cols);
            column.map(|w| f64::from(*w) * post[*unit]).collect()
        };
        Ok(units.iter().map(write).collect())
    }

    fn unit(&mut self, here: Standing, unit: usize) -> Result<Standing, TraceError> {
        let (StepKind::Mlp { block }, Some((_, x, y))) = (here.step.kind, here.read) else {
            return Err(TraceError::Batch { what: "only an MLP has units".into() });
        };
        let post = self.trace.stored_row(&self.trace.model().name_of(x), here.row)?;
        let own = Way::new(self.trace, here.row, AttributionUnit::Head).own_row(x)?;
        let wrote = Some((y, here.row, self.writes((x, y), &[unit], &own)?));
        let name = Module::block(block).part(Component::FeedForward).named("hook_pre");
        let pre = self.trace.model().tensor(&name).ok_or_else(|| unknown(self.trace.model(), &name))?.region;
        let value = self.trace.stored_row(&name, here.row)?[unit];
        let mut direction = vec![0.0; pre.cols];
        direction[unit] = 1.0;
        let at = Cell { name, at: vec![self.sequence(), here.row - self.span.row, unit] };
        let kind = (StepKind::Unit { block, unit }, Some((block, unit)));
        let mut next = self.written(kind, here.row, (value.into(), pre, direction, true), at)?;
        (next.wrote, next.step.after) = (wrote, Some(post[unit]));
        Ok(next)
    }

    fn stream(&mut self, here: Standing, block: usize, value: f64) -> Result<Standing, TraceError> {
        let opening = here.openings.into_iter().find(|(part, _)| *part == ModelPart::Stream { block });
        let Some((_, Opening { x, direction, .. })) = opening else {
            return Err(TraceError::Batch { what: "the path does not go on from there".into() });
        };
        let at = Cell { name: self.trace.model().name_of(x), at: vec![self.sequence(), here.row - self.span.row, 0] };
        self.written((StepKind::Stream { block }, here.step.toward), here.row, (value, x, direction, false), at)
    }
}

/// The absolute values of a step's parts.
fn sizes(step: &PathStep) -> f64 {
    step.bars.iter().map(|bar| bar.value.abs()).sum()
}

fn unit_of(part: ModelPart) -> Option<usize> {
    match part {
        ModelPart::Unit { unit, .. } => Some(unit),
        _ => None,
    }
}

/// What vectors that are added to a tensor at a row do to the logits, by the direct way to the head; nothing where
/// there is no such way.
fn words(trace: &Trace, from: Region, vectors: Vec<Vec<f64>>, row: usize) -> Result<Vec<LensWords>, TraceError> {
    let mut all = vec![LensWords::default(); vectors.len()];
    if let Some(vectors) = direct_way(trace, from, vectors, row)? {
        let vectors: Vec<f32> = vectors.into_iter().flatten().map(|v| v as f32).collect();
        trace.read_by_head(&vectors, |n, raised| {
            if raised.iter().all(|v| *v == 0.0) {
                return; // a step cut it off
            }
            let lowered: Vec<f32> = raised.iter().map(|v| -v).collect();
            let of = |order: Vec<usize>| order.into_iter().map(|id| (id as u32, raised[id])).collect();
            all[n] = LensWords { raised: of(greatest(raised, WORDS)), lowered: of(greatest(&lowered, WORDS)) };
        })?;
    }
    Ok(all)
}

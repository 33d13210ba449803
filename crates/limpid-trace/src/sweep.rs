//! Activation patching over a grid: which activations of a clean run, put one at a time into a run of a corrupted
//! prompt, restore what the clean run says.
//!
//! The cells of a layer run as sequences of one batch. It begins before that layer, with the corrupted run's residual
//! stream, which was computed once; [`InterveningBackend`](crate::interventions::InterveningBackend) patches each
//! sequence in its way; and the head runs on the rows that the metric reads. Where both runs have the same numbers a
//! patch changes nothing, so such cells are not run. Every number is that of a single run with the same intervention,
//! bit for bit.
//!
//! With a [`SweepReceiver`] the sweep follows paths (path patching, Wang et al. 2022): a cell's patch reaches the
//! receiver through the residual stream alone, as all attention and feed-forward layers between them write what they
//! write in the corrupted run. A first run finds what the receiver then is, a second one has that and nothing else
//! changed.
//!
//! [`SweepEstimate`] is attribution patching: the same grid to first order, from gradients.

mod shown;

use crate::Trace;
use crate::compare::{divergence, log_softmax};
use crate::interventions::{
    ColumnAction, InterventionError, Interventions, Numbers, Positions, ResolvedStep, ResolvedSteps, SequenceSteps,
    Source, SourceText, Step, StepPositions, StepSite, WeightAction, position_in,
};
use crate::names::{self, Derived};
use crate::{NamedTensor, TraceError};
use limpid_base::plural::plural;
use limpid_base::units::commas;
use limpid_core::config::{Config, ConfigError, axis, unknown};
use limpid_core::kernels::classify::Row;
use limpid_core::model::{Model, Module};
use limpid_core::numeric::simd::Level;
use limpid_core::ops::{Batch, IGNORE, Target, Terms};
use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;

/// Rows of a batch: sequences times their tokens.
const ROWS: usize = 512;

/// Token-layers of a sweep that needs no confirmation.
pub const TOKEN_LAYERS: u64 = 10_000_000;

/// Why there is no sweep.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SweepError {
    /// A question that has no answer.
    #[error("{what}")]
    Question {
        /// What was expected, and what was found.
        what: String,
    },
    /// A large one that was not confirmed.
    #[error(
        "this sweep has {} cells and runs {} token-layers, more than {}: set `confirmed`, or take a coarser grid or \
         shorter prompts",
        commas(.0.cells), commas(.0.token_layers), commas(TOKEN_LAYERS)
    )]
    Large(SweepCost),
    /// The metric of one of the two runs is NaN or infinite.
    #[error("the {run} run's metric is {value}")]
    NotFinite {
        /// Which run: clean or corrupt.
        run: &'static str,
        /// The metric.
        value: f64,
    },
    /// Two runs with nothing between them.
    #[error(
        "both prompts give the same {metric} ({value}), so there is nothing to restore: change the corrupt prompt, or \
         the position"
    )]
    Same {
        /// What was measured.
        metric: &'static str,
        /// Its value.
        value: f64,
    },
    /// Two runs with less between them than rounding may make.
    #[error(
        "the prompts' {metric} is {clean} and {corrupt}: no more apart than f32 rounds, so there is nothing to \
         restore: change the answer, the corrupt prompt, or the position"
    )]
    Noise {
        /// What was measured.
        metric: &'static str,
        /// Of the clean run.
        clean: f64,
        /// Of the corrupt run.
        corrupt: f64,
    },
    /// The caller wanted no more rows.
    #[error("stopped before the end")]
    Stopped,
    /// A site that cannot be changed.
    #[error(transparent)]
    Intervention(#[from] InterventionError),
    /// A run that failed.
    #[error(transparent)]
    Trace(#[from] TraceError),
}

/// What is patched, in each layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SweepSite {
    /// The residual stream before the block.
    ResidPre,
    /// The residual stream between attention and the feed-forward network.
    ResidMid,
    /// What attention adds to the stream.
    AttnOut,
    /// What the feed-forward network adds to the stream.
    MlpOut,
    /// What heads compute: the weighted sums of values.
    Z,
    /// Queries.
    Q,
    /// Keys.
    K,
    /// Values.
    V,
    /// Attention weights.
    Pattern,
}

impl SweepSite {
    /// Every one, its name, and the end of its tensor's name.
    const ALL: [(SweepSite, &str, &str); 9] = [
        (SweepSite::ResidPre, "resid_pre", "hook_resid_pre"),
        (SweepSite::ResidMid, "resid_mid", "hook_resid_mid"),
        (SweepSite::AttnOut, "attn_out", "hook_attn_out"),
        (SweepSite::MlpOut, "mlp_out", "hook_mlp_out"),
        (SweepSite::Z, "z", "attn.hook_z"),
        (SweepSite::Q, "q", "attn.hook_q"),
        (SweepSite::K, "k", "attn.hook_k"),
        (SweepSite::V, "v", "attn.hook_v"),
        (SweepSite::Pattern, "pattern", "attn.hook_pattern"),
    ];

    /// All names.
    pub fn names() -> [&'static str; 9] {
        SweepSite::ALL.map(|(_, name, _)| name)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        SweepSite::ALL[self as usize].1
    }

    /// The tensor of a layer.
    pub fn tensor(self, layer: usize) -> String {
        Module::block(layer).named(SweepSite::ALL[self as usize].2)
    }

    /// The tensor of a layer that takes patches: in place of one that a factor stretches, what it stretches.
    pub(crate) fn patched(self, named: &Model, layer: usize) -> String {
        let name = self.tensor(layer);
        match names::derivation(named, &name) {
            Some(Derived::Scaled { of, .. }) => of,
            _ => name,
        }
    }

    /// Its heads, if it is divided into heads.
    fn heads(self, config: &Config) -> Option<usize> {
        match self {
            SweepSite::Z | SweepSite::Q | SweepSite::Pattern => Some(config.n_head),
            SweepSite::K | SweepSite::V => Some(config.heads().n_kv_head),
            _ => None,
        }
    }
}

/// The row that is measured, of so many.
fn row(at: i64, tokens: usize) -> Result<usize, SweepError> {
    position_in(at, tokens).filter(|at| *at < tokens).ok_or_else(|| SweepError::Question {
        what: format!("there is no position {at}: the prompts have {}", plural(tokens, "token")),
    })
}

/// A tensor that a run may change.
pub(crate) fn find(named: &Model, tensor: &str) -> Result<StepSite, SweepError> {
    match StepSite::find(named, tensor, 1) {
        Err(InterventionError::Site { error, .. }) => Err(SweepError::Trace(*error)),
        found => Ok(found?),
    }
}

impl FromStr for SweepSite {
    type Err = ConfigError;
    fn from_str(name: &str) -> Result<SweepSite, ConfigError> {
        let found = SweepSite::ALL.iter().find(|(_, own, _)| *own == name);
        found.map(|found| found.0).ok_or_else(|| unknown("site", name, &SweepSite::names()))
    }
}

axis! {
    /// How fine the grid is.
    SweepBy, "fineness of a grid" {
        /// [layer, head], each at all positions; of a site without heads [layer, pos].
        Head = "head",
        /// [layer, pos, head], or [layer, pos]; of attention weights [layer, head, query_pos].
        Position = "position",
        /// Of attention weights [layer, head, query_pos, key_pos].
        Pair = "pair",
    }
}

/// What is measured. Logits and probabilities are those at the question's position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SweepMetric {
    /// The logit of `answer` less that of `foil`.
    LogitDifference {
        /// The token that the clean run should prefer.
        answer: u32,
        /// The token that it is held against.
        foil: u32,
    },
    /// The logarithm of a token's probability, in nats.
    LogProbability {
        /// The token.
        answer: u32,
    },
    /// The mean loss, in nats a token, with the clean prompt's tokens as targets.
    Loss,
    /// How far the prediction is from the clean run's: KL(clean, run), in nats.
    Divergence,
}

impl SweepMetric {
    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            SweepMetric::LogitDifference { .. } => "logit difference",
            SweepMetric::LogProbability { .. } => "log-probability",
            SweepMetric::Loss => "loss",
            SweepMetric::Divergence => "KL divergence",
        }
    }

    /// The logit of `answer` less that of `foil`; without a foil the answer's log-probability.
    pub fn of(answer: u32, foil: Option<u32>) -> SweepMetric {
        foil.map_or(SweepMetric::LogProbability { answer }, |foil| SweepMetric::LogitDifference { answer, foil })
    }

    /// Batches whose losses have gradients that make up the metric's at a position of a run, and what each is worth.
    /// `targets` are those of [`SweepMetric::Loss`].
    ///
    /// # Errors
    /// If a token or the position does not exist, or the metric is the KL divergence.
    pub fn losses(
        self,
        config: &Config,
        (run, targets): (&Batch, &[u32]),
        at: i64,
    ) -> Result<Vec<(Batch, f64)>, SweepError> {
        self.check(config)?;
        let row = row(at, run.tokens.len())?;
        let batch = |targets: Vec<u32>, weight: f32| Batch { targets, weight, ..run.clone() };
        let one = |id: u32| batch((0..targets.len()).map(|at| if at == row { id } else { IGNORE }).collect(), 1.0);
        Ok(match self {
            // a logit less another is a loss less another
            SweepMetric::LogitDifference { answer, foil } => vec![(one(answer), -1.0), (one(foil), 1.0)],
            SweepMetric::LogProbability { answer } => vec![(one(answer), -1.0)],
            SweepMetric::Loss => {
                let counted = targets.iter().filter(|target| **target != IGNORE).count();
                vec![(batch(targets.to_vec(), 1.0 / counted as f32), 1.0)]
            }
            SweepMetric::Divergence => {
                let what =
                    "the KL divergence has no gradient here: take a logit difference, a log-probability or the loss";
                return Err(SweepError::Question { what: what.into() });
            }
        })
    }

    /// What it is at a position of a run alone: its own tokens are the loss's targets, and it does not diverge from
    /// itself.
    ///
    /// # Errors
    /// If a token or the position does not exist, or the run fails.
    pub fn measure(self, at: i64, run: &Trace) -> Result<f64, SweepError> {
        self.check(&run.model().config)?;
        let row = row(at, run.batch().tokens.len())?;
        Ok(Gauge::new(self, row, run)?.read(run)?.into_iter().sum())
    }

    /// That its tokens are a model's, and not the same.
    fn check(self, config: &Config) -> Result<(), SweepError> {
        let wrong = |what: String| Err(SweepError::Question { what });
        let tokens = match self {
            SweepMetric::LogitDifference { answer, foil } if answer == foil => {
                return wrong(format!(
                    "the answer and the token it is held against are both {answer}: name another one"
                ));
            }
            SweepMetric::LogitDifference { answer, foil } => vec![answer, foil],
            SweepMetric::LogProbability { answer } => vec![answer],
            SweepMetric::Loss | SweepMetric::Divergence => vec![],
        };
        match tokens.into_iter().find(|id| *id as usize >= config.vocab_size) {
            Some(id) => wrong(format!("token {id} is outside the model's vocabulary of {}", config.vocab_size)),
            None => Ok(()),
        }
    }
}

/// A sweep to be run.
#[derive(Clone, Debug, PartialEq)]
pub struct SweepQuestion {
    /// The tokens that activations are taken from.
    pub clean: Vec<u32>,
    /// As many tokens, in whose run they are put.
    pub corrupt: Vec<u32>,
    /// What is patched.
    pub site: SweepSite,
    /// How fine the grid is.
    pub by: SweepBy,
    /// What is measured.
    pub metric: SweepMetric,
    /// Where, counted from 0; negative ones from the end, -1 is the last.
    pub position: i64,
    /// Where patches are received, if the paths to one place are asked about: they change nothing else.
    pub to: Option<SweepReceiver>,
    /// Whether it may run more than [`TOKEN_LAYERS`].
    pub confirmed: bool,
}

/// The end of the paths that a sweep follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SweepReceiver {
    /// A tensor that a run may change, such as `blocks.1.attn.hook_q`, or the last `hook_resid_post` for what reaches
    /// the logits directly.
    pub tensor: String,
    /// These of its heads; none for all, or if it has no heads.
    pub heads: Option<Vec<usize>>,
}

/// The most cells of a grid.
const CELLS: u64 = 1 << 24;

/// What a sweep takes: its cells, and how many tokens go through how many layers at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SweepCost {
    /// Cells of the grid.
    pub cells: u64,
    /// For each cell, its tokens times the layers from the patched one on.
    pub token_layers: u64,
}

/// One place of a layer's row.
#[derive(Clone, Debug)]
struct Cell {
    head: Option<usize>,
    positions: Range<usize>,
    key: Option<usize>,
}

impl SweepQuestion {
    /// That the question has an answer on a model.
    ///
    /// # Errors
    /// Says what does not fit, and how it would.
    pub fn check(&self, config: &Config) -> Result<(), SweepError> {
        let wrong = |what: String| Err(SweepError::Question { what });
        let (clean, corrupt) = (self.clean.len(), self.corrupt.len());
        if !config.lm_head {
            return wrong(ConfigError::NoHead.to_string());
        }
        if clean != corrupt {
            return wrong(format!(
                "the clean prompt has {} and the corrupt one {corrupt}: a patch keeps its position, so both need the \
                 same number of tokens",
                plural(clean, "token")
            ));
        }
        if clean == 0 {
            return wrong("both prompts are empty: there is nothing to patch".into());
        }
        self.metric.check(config)?;
        if self.by == SweepBy::Pair && self.site != SweepSite::Pattern {
            return wrong(format!("only `pattern` has pairs of positions, and the site is `{}`", self.site.name()));
        }
        let cells = self.cost(config).cells;
        if cells > CELLS {
            let [cells, most] = [cells, CELLS].map(commas);
            return wrong(format!(
                "this sweep has {cells} cells, more than {most}: take a coarser grid or shorter prompts"
            ));
        }
        self.row().map(drop)
    }

    /// Bytes that a layer of the grid takes beside its runs: both runs' values at the site, and its cells.
    pub fn layer_bytes(&self, config: &Config) -> usize {
        let cells = (self.cost(config).cells / config.n_layer.max(1) as u64) as usize;
        let tokens = self.clean.len();
        let row = if self.site == SweepSite::Pattern { config.n_head.saturating_mul(tokens) } else { config.d_model };
        let values = row.saturating_mul(tokens).saturating_mul(2 * size_of::<f32>());
        values.saturating_add(cells.saturating_mul(size_of::<Cell>() + config.n_layer * size_of::<f64>()))
    }

    /// That a model has what is patched, in each layer, and what receives it. `named` has a place for every tensor
    /// (`Mode::Inspect`).
    ///
    /// # Errors
    /// Names the first that it has not.
    pub fn check_sites(&self, named: &Model) -> Result<(), SweepError> {
        (0..named.config.n_layer).try_for_each(|layer| find(named, &self.tensor(named, layer)).map(drop))?;
        self.receiver(named).map(drop)
    }

    /// The tensor of a layer that is patched: in place of one that a factor stretches, what it stretches.
    pub fn tensor(&self, named: &Model, layer: usize) -> String {
        self.site.patched(named, layer)
    }

    /// What receives patches.
    fn receiver(&self, named: &Model) -> Result<Option<StepSite>, SweepError> {
        let Some(to) = &self.to else { return Ok(None) };
        let receiver = find(named, &to.tensor)?;
        match &to.heads {
            heads if receiver.is_pattern() => {
                _ = receiver.weights_step(heads.as_deref(), StepPositions::All, WeightAction::Scale(1.0, None))?
            }
            heads => _ = receiver.shown(heads.as_deref(), None)?,
        }
        if find(named, &self.tensor(named, 0))?.op() >= receiver.op() {
            let what = format!(
                "no path leads from `{}` to `{}`, which is computed before: name a later tensor",
                self.site.name(),
                to.tensor
            );
            return Err(SweepError::Question { what });
        }
        Ok(Some(receiver))
    }

    /// The row of the sequence that is measured.
    ///
    /// # Errors
    /// If there is none at that position.
    pub fn row(&self) -> Result<usize, SweepError> {
        row(self.position, self.clean.len())
    }

    /// The grid's axes and their sizes.
    pub fn grid(&self, config: &Config) -> (Vec<&'static str>, Vec<usize>) {
        let (layer, pos) = (("layer", config.n_layer), ("pos", self.clean.len()));
        let [query, key] = ["query_pos", "key_pos"].map(|axis| (axis, pos.1));
        let axes = match (self.site.heads(config).map(|n| ("head", n)), self.by) {
            (None, _) => vec![layer, pos],
            (Some(head), SweepBy::Head) => vec![layer, head],
            (Some(head), SweepBy::Position) if self.site == SweepSite::Pattern => vec![layer, head, query],
            (Some(head), SweepBy::Position) => vec![layer, pos, head],
            (Some(head), SweepBy::Pair) => vec![layer, head, query, key],
        };
        axes.into_iter().unzip()
    }

    /// What it takes at most.
    pub fn cost(&self, config: &Config) -> SweepCost {
        let of_layer = self.grid(config).1[1..].iter().map(|n| *n as u64).fold(1, u64::saturating_mul);
        let (layers, tokens) = (config.n_layer as u64, self.clean.len() as u64);
        // one that is followed to a receiver runs the receiver's layer twice
        let runs = layers * (layers + 1) / 2 + if self.to.is_some() { layers } else { 0 };
        let token_layers = of_layer.saturating_mul(tokens).saturating_mul(runs);
        SweepCost { cells: of_layer.saturating_mul(layers), token_layers }
    }

    /// That it is no larger than was confirmed.
    ///
    /// # Errors
    /// If it is.
    pub fn check_cost(&self, config: &Config) -> Result<(), SweepError> {
        let cost = self.cost(config);
        if cost.token_layers > TOKEN_LAYERS && !self.confirmed { Err(SweepError::Large(cost)) } else { Ok(()) }
    }

    /// How many cells should run at once.
    pub fn at_once(&self, config: &Config) -> usize {
        let of_layer = self.grid(config).1[1..].iter().copied().fold(1, usize::saturating_mul);
        (ROWS / self.clean.len().max(1)).clamp(1, of_layer.max(1))
    }

    /// The places of a layer, in the order of the grid.
    fn cells(&self, config: &Config) -> Vec<Cell> {
        let (tokens, (axes, sizes)) = (self.clean.len(), self.grid(config));
        let all = sizes[1..].iter().product();
        let cell = |n: usize| {
            let index = crate::index_of(n, &sizes[1..]);
            let at = |axis: &str| axes[1..].iter().position(|own| *own == axis).map(|place| index[place]);
            let positions = at("pos").or(at("query_pos")).map_or(0..tokens, |at| at..at + 1);
            Cell { head: at("head"), positions, key: at("key_pos") }
        };
        (0..all).map(cell).collect()
    }

    /// The intervention of a cell.
    fn intervention(&self, cell: &Cell, run: &SiteValues) -> Interventions {
        let patch = self.patch(cell, run);
        let Some(to) = &self.to else { return Interventions::new([patch]) };
        let held = |name: &String| Step::patch(name, Source::tokens(&self.corrupt[..]));
        let sent = [patch].into_iter().chain(run.frozen.iter().map(|(name, _)| held(name)));
        let received = Step::patch(&to.tensor, Source::tokens(&self.corrupt[..]).with(Interventions::new(sent)));
        Interventions::new([Step { head: to.heads.clone().map(Numbers::from), ..received }])
    }

    /// Steps of a cell with the prompts as text in place of their tokens, clean and corrupt, as far as there are texts.
    #[must_use]
    pub fn in_words(&self, mut interventions: Interventions, texts: [Option<&str>; 2]) -> Interventions {
        for source in interventions.steps.iter_mut().filter_map(Step::source_mut) {
            let prompts = [&self.clean, &self.corrupt].into_iter().zip(texts);
            let text =
                prompts.filter(|(ids, _)| source.text == SourceText::Tokens(ids.to_vec())).find_map(|(_, text)| text);
            if let Some(text) = text {
                source.text = SourceText::Prompt(text.into());
            }
            source.steps = source.steps.take().map(|steps| self.in_words(steps, texts));
        }
        interventions
    }

    /// The step that patches a cell.
    fn patch(&self, cell: &Cell, run: &SiteValues) -> Step {
        let name = &run.site.name;
        let step = match cell.key {
            None => Step::patch(name, Source::tokens(&self.clean[..])),
            Some(_) => {
                let row = run.patched_row(cell).into_iter().enumerate();
                Step::set_row(name, row.filter(|(_, weight)| *weight != 0.0))
            }
        };
        let is_part = cell.positions.len() < self.clean.len() || cell.key.is_some();
        let pos = is_part.then(|| Positions::from(cell.positions.start));
        Step { head: cell.head.map(Numbers::from), pos, ..step }
    }
}

/// A layer's row of the grid, as it is found.
#[derive(Clone, Debug, PartialEq)]
pub struct SweepRow {
    /// The layer.
    pub layer: usize,
    /// The metric of its cells.
    pub metric: Vec<f64>,
    /// What part of the difference each of them restores.
    pub recovered: Vec<f64>,
}

/// The cell that restores the most.
#[derive(Clone, Debug, PartialEq)]
pub struct SweepPeak {
    /// Its place in the grid.
    pub index: Vec<usize>,
    /// What part of the difference it restores.
    pub recovered: f64,
    /// The intervention that a single run does the same with.
    pub intervention: Interventions,
}

/// What a sweep found.
#[derive(Clone, Debug, PartialEq)]
pub struct Sweep {
    /// The metric of the clean run.
    pub clean: f64,
    /// The metric of the corrupt run.
    pub corrupt: f64,
    /// The metric of each patched run.
    pub metric: NamedTensor,
    /// What part of the difference each patch restores: (metric - corrupt) / (clean - corrupt).
    pub recovered: NamedTensor,
    /// The cells that restore the most, the first one first; where none restores anything, those that lead furthest
    /// away.
    pub peaks: Vec<SweepPeak>,
}

/// How many of these are named.
const PEAKS: usize = 3;

/// A part of the difference that is said as 0.00.
const NOTHING: f64 = 0.005;

/// What writes to the residual stream in every layer.
pub(crate) const BRANCHES: [SweepSite; 2] = [SweepSite::AttnOut, SweepSite::MlpOut];

/// A metric of runs, ready to be read.
struct Gauge {
    metric: SweepMetric,
    /// The row of a sequence that is read.
    row: usize,
    /// The clean run's targets.
    targets: Vec<u32>,
    /// The logarithms of the clean run's probabilities in that row.
    clean: Vec<f64>,
}

impl Gauge {
    fn new(metric: SweepMetric, row: usize, clean: &Trace) -> Result<Gauge, SweepError> {
        let mut logs = vec![];
        if metric == SweepMetric::Divergence {
            let last = clean.last()?;
            let c = clean.model().config.d_model;
            clean.logits(&last.values[row * c..(row + 1) * c], |_, logits| logs = log_softmax(logits))?;
        }
        Ok(Gauge { metric, row, targets: clean.batch().targets.clone(), clean: logs })
    }

    /// The rows of a sequence that are read.
    fn rows(&self) -> Vec<usize> {
        match self.metric {
            SweepMetric::Loss => (0..self.targets.len()).filter(|row| self.targets[*row] != IGNORE).collect(),
            _ => vec![self.row],
        }
    }

    fn of_row(&self, row: usize, logits: &mut [f32]) -> f64 {
        let logit = |id: u32| f64::from(logits[id as usize]);
        match self.metric {
            SweepMetric::LogitDifference { answer, foil } => logit(answer) - logit(foil),
            SweepMetric::LogProbability { answer } => log_softmax(logits)[answer as usize],
            SweepMetric::Divergence => divergence(&self.clean, &log_softmax(logits)),
            SweepMetric::Loss => {
                let target = Target::Token(self.targets[row] as usize);
                f64::from(Level::best().run(Row { logits, target, terms: Terms::default(), weight: None }))
            }
        }
    }

    /// The metric of each sequence of a run.
    fn read(&self, run: &Trace) -> Result<Vec<f64>, TraceError> {
        let (last, c, rows) = (run.last()?, run.model().config.d_model, self.rows());
        let mut vectors = vec![];
        for sequence in run.batch().spans.clone() {
            rows.iter().for_each(|row| vectors.extend_from_slice(&last.values[(sequence.row + row) * c..][..c]));
        }
        let mut sums = vec![0.0; run.batch().spans.len()];
        run.logits(&vectors, |n, logits| sums[n / rows.len()] += self.of_row(rows[n % rows.len()], logits))?;
        Ok(sums.into_iter().map(|sum| sum / rows.len() as f64).collect())
    }

    /// The metric of both runs.
    fn ends(&self, [clean, corrupt]: [&Trace; 2]) -> Result<[f64; 2], SweepError> {
        let ends = [self.read(clean)?[0], self.read(corrupt)?[0]];
        for (run, value) in ["clean", "corrupt"].into_iter().zip(ends) {
            if !value.is_finite() {
                return Err(SweepError::NotFinite { run, value });
            }
        }
        let ([a, b], metric) = (ends, self.metric.name());
        if a == b {
            return Err(SweepError::Same { metric, value: a });
        }
        if (a - b).abs() <= self.noise(clean)?.max(self.noise(corrupt)?) {
            return Err(SweepError::Noise { metric, clean: a, corrupt: b });
        }
        Ok(ends)
    }

    /// How far rounding may move the metric of a run: as far as it moves the largest logits, and a divergence by the
    /// square of that.
    fn noise(&self, run: &Trace) -> Result<f64, TraceError> {
        let (last, c) = (run.last()?, run.model().config.d_model);
        let rows: Vec<f32> = self.rows().iter().flat_map(|row| last.values[row * c..(row + 1) * c].to_vec()).collect();
        let mut largest = 0.0f32;
        run.logits(&rows, |_, logits| largest = logits.iter().fold(largest, |most, v| most.max(v.abs())))?;
        let moved = 16.0 * f64::from(f32::EPSILON) * f64::from(largest);
        Ok(if self.metric == SweepMetric::Divergence { moved * moved } else { moved })
    }
}

/// A site of a layer with its values in both runs.
struct SiteValues {
    site: StepSite,
    clean: Arc<NamedTensor>,
    corrupt: Arc<NamedTensor>,
    /// What writes to the stream between the site and the receiver, and so keeps what it writes in the corrupt run.
    frozen: Vec<(String, ResolvedStep)>,
}

impl SiteValues {
    fn new(
        (question, to): (&SweepQuestion, Option<&StepSite>),
        layer: usize,
        [clean, corrupt]: [&Trace; 2],
    ) -> Result<SiteValues, SweepError> {
        let named = clean.model();
        let site = find(named, &question.tensor(named, layer))?;
        let own = question.site.heads(&named.config).map(|_| SweepSite::AttnOut.patched(named, layer));
        let mut between = vec![];
        if let Some(to) = to {
            for (branch, layer) in (layer..named.config.n_layer).flat_map(|n| BRANCHES.map(|branch| (branch, n))) {
                let branch = find(named, &branch.patched(named, layer))?;
                // a head reaches the stream through its own layer's output
                if (site.op() + 1..to.op()).contains(&branch.op()) && own.as_ref() != Some(&branch.name) {
                    between.push(branch);
                }
            }
        }
        let mut frozen = vec![];
        for branch in between {
            let values = corrupt.shared(&branch.name)?;
            frozen.push((branch.name.clone(), patch(&branch, None, 0..question.clean.len(), &values)?));
        }
        let [clean, corrupt] = [clean, corrupt].map(|run| run.shared(&site.name));
        Ok(SiteValues { site, clean: clean?, corrupt: corrupt?, frozen })
    }

    /// Whether it is computed before the receiver.
    fn reaches(&self, to: Option<&StepSite>) -> bool {
        to.is_none_or(|to| self.site.op() < to.op())
    }

    /// Where a cell's numbers are in the tensor.
    fn places(&self, cell: &Cell) -> Result<Vec<usize>, InterventionError> {
        if self.site.is_pattern() {
            let (tokens, head) = (self.clean.shape[2], cell.head.unwrap_or(0));
            let keys = cell.key.map_or(0..tokens, |key| key..key + 1);
            let row = |query: usize| (head * tokens + query) * tokens;
            return Ok(cell
                .positions
                .clone()
                .flat_map(|query| keys.clone().map(move |key| row(query) + key))
                .collect());
        }
        let heads = cell.head.map(|head| vec![head]);
        let (shown, wide) = (self.site.shown(heads.as_deref(), None)?, self.site.width());
        Ok(cell.positions.clone().flat_map(|at| shown.iter().map(move |i| at * wide + i)).collect())
    }

    /// A row of attention weights of the corrupt run with one weight of the clean one.
    fn patched_row(&self, cell: &Cell) -> Vec<f32> {
        let tokens = self.clean.shape[2];
        let first = (cell.head.unwrap_or(0) * tokens + cell.positions.start) * tokens;
        let mut row = self.corrupt.values[first..first + tokens].to_vec();
        if let Some(key) = cell.key {
            row[key] = self.clean.values[first + key];
        }
        row
    }

    /// The patch of a cell.
    fn step(&self, cell: &Cell) -> Result<ResolvedStep, InterventionError> {
        let heads = cell.head.map(|head| vec![head]);
        if cell.key.is_none() {
            return patch(&self.site, heads.as_deref(), cell.positions.clone(), &self.clean);
        }
        let (tokens, at) = (self.clean.shape[2], cell.positions.start);
        let mut values = vec![0.0; tokens * tokens];
        values[at * tokens..(at + 1) * tokens].copy_from_slice(&self.patched_row(cell));
        let NamedTensor { name, axes, .. } = (*self.clean).clone();
        let pattern = NamedTensor { name, axes, shape: vec![1, 1, tokens, tokens], values };
        patch(&self.site, heads.as_deref(), cell.positions.clone(), &Arc::new(pattern))
    }

    /// The patch of a cell, and what keeps its effect on the stream.
    fn steps(&self, cell: &Cell) -> Result<ResolvedSteps, InterventionError> {
        let frozen = self.frozen.iter().map(|(_, step)| Ok(step.clone()));
        // the stream itself is patched where the run begins
        let own = if self.is_stream() { None } else { Some(self.step(cell)) };
        own.into_iter().chain(frozen).collect()
    }

    /// Whether it is the stream before its layer.
    fn is_stream(&self) -> bool {
        self.site.name.ends_with(SweepSite::ALL[SweepSite::ResidPre as usize].2)
    }

    /// Whether a patch changes a bit.
    fn changes(&self, cell: &Cell) -> Result<bool, InterventionError> {
        let differs = |at: &usize| self.clean.values[*at].to_bits() != self.corrupt.values[*at].to_bits();
        Ok(self.places(cell)?.iter().any(differs))
    }
}

/// The step that puts another run's values in the place of a tensor's, at some positions.
pub(crate) fn patch(
    site: &StepSite,
    heads: Option<&[usize]>,
    at: Range<usize>,
    from: &Arc<NamedTensor>,
) -> Result<ResolvedStep, InterventionError> {
    let positions = StepPositions::These(at.clone().map(|at| at as i64).collect());
    if site.is_pattern() {
        return site.weights_step(heads, positions, WeightAction::From(from.clone()));
    }
    let (shown, wide) = (site.shown(heads, None)?, site.width());
    let row = |at: usize| shown.iter().map(|i| from.values[at * wide + i]).collect();
    site.step(&shown, positions, ColumnAction::SetEach(at.map(row).collect()))
}

/// So many copies of a sequence.
pub fn copies(one: &Batch, n: usize) -> Batch {
    let all = Batch::of_sequences(one.tokens.repeat(n), vec![], one.tokens.len());
    Batch { segments: one.segments.repeat(n), ..all }
}

/// What a sweep runs on: both runs, and a batch of copies of the corrupt prompt whose sequences `sequences` changes.
pub struct SweepRuns<'a> {
    /// The clean run.
    pub clean: &'a Trace,
    /// The corrupt run.
    pub corrupt: &'a Trace,
    /// Copies of the corrupt prompt.
    pub copies: &'a mut Trace,
    /// Which of them are changed.
    pub sequences: &'a SequenceSteps,
}

impl SweepRuns<'_> {
    /// Runs a sweep; `tell` gets each layer's row and returns whether to go on.
    ///
    /// # Errors
    /// If the question has no answer on this model, a run fails, or `tell` wants no more.
    pub fn sweep(
        &mut self,
        question: &SweepQuestion,
        tell: &mut dyn FnMut(&SweepRow) -> bool,
    ) -> Result<Sweep, SweepError> {
        let gauge = Gauge::new(question.metric, question.row()?, self.clean)?;
        let ends = gauge.ends([self.clean, self.corrupt])?;
        let config = self.clean.model().config.clone();
        let (cells, to) = (question.cells(&config), question.receiver(self.clean.model())?);
        let mut grid = Findings::new(question, to.as_ref(), ends);
        for layer in 0..config.n_layer {
            let values = SiteValues::new((question, to.as_ref()), layer, [self.clean, self.corrupt])?;
            let mut row = vec![ends[1]; cells.len()];
            let mut changed = vec![];
            for (n, cell) in cells.iter().enumerate() {
                if values.reaches(to.as_ref()) && values.changes(cell)? {
                    changed.push(n);
                }
            }
            for some in changed.chunks(question.at_once(&config)) {
                let batch: Vec<&Cell> = some.iter().map(|n| &cells[*n]).collect();
                self.run((layer, &values), &batch)?;
                if let (Some(to), Some(SweepReceiver { heads, .. })) = (&to, &question.to) {
                    self.receive(to, heads.as_deref())?;
                }
                for (n, metric) in some.iter().zip(gauge.read(self.copies)?) {
                    row[*n] = metric;
                }
            }
            grid.add((layer, row), (&cells, &values), tell)?;
        }
        Ok(grid.sweep(&config))
    }

    /// Begins runs before a layer, each with the patch of a cell.
    fn run(&mut self, (layer, values): (usize, &SiteValues), cells: &[&Cell]) -> Result<(), SweepError> {
        let tokens = self.corrupt.batch().tokens.clone();
        let stream = self.corrupt.shared(&self.corrupt.stream(layer))?;
        let mut begun = vec![];
        for (n, cell) in cells.iter().enumerate() {
            let first = begun.len();
            begun.extend_from_slice(&stream.values);
            if values.is_stream() {
                values.places(cell)?.into_iter().for_each(|at| begun[first + at] = values.clean.values[at]);
            }
            self.sequences.insert(n as u32, Arc::new(values.steps(cell)?.on(&tokens, tokens.len())?));
        }
        Ok(self.copies.restart(copies(self.corrupt.batch(), cells.len()), layer, &begun)?)
    }

    /// Begins the runs again, of which nothing is changed but what the receiver was in them.
    fn receive(&mut self, to: &StepSite, heads: Option<&[usize]>) -> Result<(), SweepError> {
        let tokens = self.corrupt.batch().tokens.clone();
        let received = self.copies.shared(&to.name)?;
        let n = self.copies.batch().spans.len();
        let mut shape = received.shape.clone();
        shape[0] = 1;
        for (n, values) in received.values.chunks_exact(received.values.len() / n).enumerate() {
            let NamedTensor { name, axes, .. } = &*received;
            let one =
                NamedTensor { name: name.clone(), axes: axes.clone(), shape: shape.clone(), values: values.to_vec() };
            let steps: ResolvedSteps = [patch(to, heads, 0..tokens.len(), &Arc::new(one))?].into_iter().collect();
            self.sequences.insert(n as u32, Arc::new(steps.on(&tokens, tokens.len())?));
        }
        let blocks = &self.corrupt.model().blocks;
        let layer = blocks.iter().position(|block| block.contains(&to.op())).unwrap_or(0);
        let stream = self.corrupt.shared(&self.corrupt.stream(layer))?;
        Ok(self.copies.restart(copies(self.corrupt.batch(), n), layer, &stream.values.repeat(n))?)
    }
}

/// Attribution patching: what each patch would change to first order, which is the gradient of the metric in the
/// corrupt run times the difference of the activations. It takes one backward pass, or two, in place of a run for each
/// cell.
pub struct SweepEstimate {
    /// Batches whose loss has gradients that make up the metric's, and what each is worth.
    pub losses: Vec<(Batch, f64)>,
    ends: [f64; 2],
}

impl SweepEstimate {
    /// What has to be run for it.
    ///
    /// # Errors
    /// If the question has no answer on this model, its metric is the KL divergence, or a run fails.
    pub fn new(question: &SweepQuestion, [clean, corrupt]: [&Trace; 2]) -> Result<SweepEstimate, SweepError> {
        if question.to.is_some() {
            let what = "an estimate adds up all paths: run the sweep itself, or leave the receiver out";
            return Err(SweepError::Question { what: what.into() });
        }
        let gauge = Gauge::new(question.metric, question.row()?, clean)?;
        let losses =
            question.metric.losses(&clean.model().config, (corrupt.batch(), &gauge.targets), question.position)?;
        let ends = gauge.ends([clean, corrupt])?;
        Ok(SweepEstimate { losses, ends })
    }

    /// The tensors whose gradients it needs, layer by layer.
    pub fn names(question: &SweepQuestion, named: &Model) -> Vec<String> {
        (0..named.config.n_layer).map(|layer| question.tensor(named, layer) + ".grad").collect()
    }

    /// The grid; `slopes` are the gradients of each loss, layer by layer.
    ///
    /// # Errors
    /// As [`SweepRuns::sweep`].
    pub fn sweep(
        self,
        question: &SweepQuestion,
        [clean, corrupt]: [&Trace; 2],
        slopes: &[Vec<NamedTensor>],
    ) -> Result<Sweep, SweepError> {
        let config = clean.model().config.clone();
        let (cells, worth) = (question.cells(&config), self.losses.iter().map(|(_, worth)| *worth));
        let mut grid = Findings::new(question, None, self.ends);
        for layer in 0..config.n_layer {
            let values = SiteValues::new((question, None), layer, [clean, corrupt])?;
            let slope = |at: usize| -> f64 {
                slopes
                    .iter()
                    .zip(worth.clone())
                    .map(|(slopes, worth)| worth * f64::from(slopes[layer].values[at]))
                    .sum()
            };
            let gain = |at: usize| {
                let change = f64::from(values.clean.values[at]) - f64::from(values.corrupt.values[at]);
                if change == 0.0 { 0.0 } else { slope(at) * change }
            };
            let mut row = vec![];
            for cell in &cells {
                row.push(self.ends[1] + values.places(cell)?.into_iter().map(gain).sum::<f64>());
            }
            grid.add((layer, row), (&cells, &values), &mut |_| true)?;
        }
        Ok(grid.sweep(&config))
    }
}

/// What was found so far.
struct Findings<'a> {
    question: &'a SweepQuestion,
    to: Option<&'a StepSite>,
    ends: [f64; 2],
    metric: Vec<f64>,
    peaks: Vec<SweepPeak>,
    /// Those that lead furthest away from the clean run.
    lowest: Vec<SweepPeak>,
}

impl<'a> Findings<'a> {
    fn new(question: &'a SweepQuestion, to: Option<&'a StepSite>, ends: [f64; 2]) -> Findings<'a> {
        Findings { question, to, ends, metric: vec![], peaks: vec![], lowest: vec![] }
    }

    fn recovered(&self, metric: f64) -> f64 {
        let [clean, corrupt] = self.ends;
        (metric - corrupt) / (clean - corrupt) + 0.0 // no negative zero
    }

    fn add(
        &mut self,
        (layer, metric): (usize, Vec<f64>),
        (cells, values): (&[Cell], &SiteValues),
        tell: &mut dyn FnMut(&SweepRow) -> bool,
    ) -> Result<(), SweepError> {
        let recovered = metric.iter().map(|metric| self.recovered(*metric)).collect();
        let row = SweepRow { layer, metric, recovered };
        // a layer without a path to the receiver restores nothing, and no run could show it
        let found = if values.reaches(self.to) { &row.recovered[..] } else { &[] };
        for (n, recovered) in found.iter().copied().enumerate() {
            for (peaks, sign) in [(&mut self.peaks, 1.0), (&mut self.lowest, -1.0)] {
                let last = peaks.last().map_or(f64::NEG_INFINITY, |peak| sign * peak.recovered);
                if recovered.is_finite() && (peaks.len() < PEAKS || sign * recovered > last) {
                    let at = peaks.partition_point(|peak| sign * peak.recovered >= sign * recovered);
                    let intervention = self.question.intervention(&cells[n], values);
                    // the place in the row, until the grid's shape is known
                    peaks.insert(at, SweepPeak { index: vec![row.layer, n], recovered, intervention });
                    peaks.truncate(PEAKS);
                }
            }
        }
        self.metric.extend_from_slice(&row.metric);
        if tell(&row) { Ok(()) } else { Err(SweepError::Stopped) }
    }

    fn sweep(self, config: &Config) -> Sweep {
        let (axes, shape) = self.question.grid(config);
        let of = |name: &str, values: Vec<f32>| NamedTensor {
            name: format!("{name} by {}", self.question.site.name()),
            axes: axes.clone(),
            shape: shape.clone(),
            values,
        };
        let first = |peaks: &[SweepPeak]| peaks.first().map_or(0.0, |peak| peak.recovered);
        let leads_away = first(&self.peaks) < NOTHING && first(&self.lowest) <= -NOTHING;
        let peaks = if leads_away { &self.lowest } else { &self.peaks };
        let recovered = self.metric.iter().map(|metric| self.recovered(*metric) as f32).collect();
        let metric = self.metric.iter().map(|metric| *metric as f32).collect();
        let place = |peak: &SweepPeak| {
            let mut index = vec![peak.index[0]];
            index.extend(crate::index_of(peak.index[1], &shape[1..]));
            SweepPeak { index, ..peak.clone() }
        };
        Sweep {
            clean: self.ends[0],
            corrupt: self.ends[1],
            metric: of(self.question.metric.name(), metric),
            recovered: of("recovered fraction", recovered),
            peaks: peaks.iter().map(place).collect(),
        }
    }
}

//! What parts of a model carry: heads and feed-forward networks of one text's run, put one at a time or several
//! together into the run of another text, and how far that moves the prediction of a token ahead of another.
//!
//! Many such runs are sequences of one batch, which begins before the first block that is changed. Every number is that
//! of a single run with the intervention that [`PartPatch::interventions`] names, bit for bit.

use crate::Trace;
use crate::attribution::ModelPart;
use crate::compare::log_softmax;
use crate::interventions::{Interventions, Numbers, Positions, ResolvedStep, ResolvedSteps};
use crate::interventions::{SequenceSteps, Source, Step, StepSite};
use crate::sweep::{BRANCHES, SweepError, SweepSite, copies, find, patch};
use limpid_core::config::Config;
use limpid_core::model::Model;
use limpid_core::numeric::math;
use std::ops::Range;
use std::sync::Arc;

/// Rows of a batch: sequences times their tokens.
const ROWS: usize = 512;

/// How many texts of so many tokens run at once.
pub fn at_once(tokens: usize) -> usize {
    (ROWS / tokens.max(1)).max(1)
}

/// Two tokens at a row of a text: how far one is ahead of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contest {
    /// The row of each sequence.
    pub row: usize,
    /// The token.
    pub answer: u32,
    /// The token that it is held against.
    pub foil: u32,
}

/// What a run says of a [`Contest`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ContestReading {
    /// The logit of the answer less that of the foil.
    pub difference: f64,
    /// The probability that it is one of the two.
    pub together: f64,
    /// How far rounding may move the difference.
    pub noise: f64,
}

impl Contest {
    /// What each sequence of a run says.
    ///
    /// # Errors
    /// If the run fails, or a logit of the two is NaN or infinite.
    pub fn read(&self, run: &Trace) -> Result<Vec<ContestReading>, SweepError> {
        let (last, c) = (run.last()?, run.model().config.d_model);
        let spans = run.batch().spans.iter();
        let rows: Vec<f32> =
            spans.flat_map(|span| last.values[(span.row + self.row) * c..][..c].iter().copied()).collect();
        let mut readings = vec![];
        run.logits(&rows, |_, logits| {
            let logs = log_softmax(logits);
            let [answer, foil] = [self.answer, self.foil].map(|id| id as usize);
            let largest = logits.iter().fold(0.0f32, |most, v| most.max(v.abs()));
            readings.push(ContestReading {
                difference: f64::from(logits[answer]) - f64::from(logits[foil]),
                together: math::exp_f64(logs[answer]) + math::exp_f64(logs[foil]),
                noise: 16.0 * f64::from(f32::EPSILON) * f64::from(largest),
            });
        })?;
        match readings.iter().find(|reading| !reading.difference.is_finite()) {
            Some(reading) => Err(SweepError::NotFinite { run: "text", value: reading.difference }),
            None => Ok(readings),
        }
    }
}

/// Parts of one run that are put into another.
#[derive(Clone, Debug, PartialEq)]
pub struct PartPatch {
    /// Heads and feed-forward networks.
    pub parts: Vec<ModelPart>,
    /// At these positions.
    pub positions: Range<usize>,
    /// Whether they reach the logits through the residual stream alone: all attention and feed-forward layers behind
    /// the first part write what they write in the run that is changed.
    pub direct: bool,
}

/// All heads and feed-forward networks, block by block.
pub fn parts(config: &Config) -> Vec<ModelPart> {
    let heads = |block| (0..config.n_head).map(move |head| ModelPart::Head { block, head });
    (0..config.n_layer).flat_map(|block| heads(block).chain([ModelPart::Mlp { block }])).collect()
}

/// The block of a part.
fn block_of(part: ModelPart) -> usize {
    match part {
        ModelPart::Head { block, .. } | ModelPart::Mlp { block } => block,
        _ => 0,
    }
}

/// The tensor that a part is, and which of its heads; none if it is no part that runs are changed by.
fn place(named: &Model, part: ModelPart) -> Result<(StepSite, Option<Vec<usize>>), SweepError> {
    match part {
        ModelPart::Head { block, head } => Ok((find(named, &SweepSite::Z.patched(named, block))?, Some(vec![head]))),
        ModelPart::Mlp { block } => Ok((find(named, &SweepSite::MlpOut.patched(named, block))?, None)),
        other => Err(SweepError::Question { what: format!("only heads and MLPs are put into a run, not {other:?}") }),
    }
}

/// What stays as it is where a patch reaches the logits directly: the layers behind its first part, but the attention
/// that its head writes through.
fn held(named: &Model, patch: &PartPatch) -> Result<Vec<StepSite>, SweepError> {
    let Some(first) = patch.parts.first().filter(|_| patch.direct) else { return Ok(vec![]) };
    let (from, block) = (place(named, *first)?.0.op(), block_of(*first));
    let own = matches!(first, ModelPart::Head { .. }).then(|| SweepSite::AttnOut.patched(named, block));
    let branches = (block..named.config.n_layer).flat_map(|block| BRANCHES.map(|branch| branch.patched(named, block)));
    let branches = branches.filter(|name| Some(name) != own.as_ref()).map(|name| find(named, &name));
    let all = branches.collect::<Result<Vec<_>, _>>()?;
    Ok(all.into_iter().filter(|branch| branch.op() > from).collect())
}

impl PartPatch {
    /// The interventions that a single run of the base's text does the same with.
    ///
    /// # Errors
    /// If a part is neither a head nor a feed-forward network.
    pub fn interventions(&self, [from, base]: [&Trace; 2]) -> Result<Interventions, SweepError> {
        let named = base.model();
        let sources = [from, base].map(|run| Source::tokens(&run.batch().tokens[..]));
        let all = self.positions == (0..base.batch().tokens.len());
        let mut steps = vec![];
        for part in &self.parts {
            let (site, heads) = place(named, *part)?;
            let pos = (!all).then(|| Positions::from(self.positions.start));
            steps.push(Step { head: heads.map(Numbers::from), pos, ..Step::patch(&site.name, sources[0].clone()) });
        }
        for branch in held(named, self)? {
            steps.push(Step::patch(&branch.name, sources[1].clone()));
        }
        Ok(Interventions::new(steps))
    }
}

/// Runs of one text with parts of another's.
pub struct PartRuns<'a> {
    /// The run that parts are taken from.
    pub from: &'a Trace,
    /// The run that they are put into, equally long.
    pub base: &'a Trace,
    /// Copies of the latter's text.
    pub copies: &'a mut Trace,
    /// Which of them are changed.
    pub sequences: &'a SequenceSteps,
    /// What is read.
    pub contest: Contest,
}

impl PartRuns<'_> {
    /// The difference of logits with each patch.
    ///
    /// # Errors
    /// If a run fails, or a part is neither a head nor a feed-forward network.
    pub fn differences(&mut self, patches: &[PartPatch]) -> Result<Vec<f64>, SweepError> {
        let tokens = self.base.batch().tokens.clone();
        let mut all = vec![];
        for some in patches.chunks(at_once(tokens.len())) {
            let blocks = some.iter().flat_map(|patch| &patch.parts).map(|part| block_of(*part));
            let first = blocks.min().unwrap_or(0);
            for (n, patch) in some.iter().enumerate() {
                let steps: ResolvedSteps = self.steps(patch)?.into_iter().collect();
                self.sequences.insert(n as u32, Arc::new(steps.on(&tokens, tokens.len())?));
            }
            let stream = self.base.shared(&self.base.stream(first))?.values.repeat(some.len());
            self.copies.restart(copies(self.base.batch(), some.len()), first, &stream)?;
            all.extend(self.contest.read(self.copies)?.into_iter().map(|reading| reading.difference));
        }
        Ok(all)
    }

    fn steps(&self, patched: &PartPatch) -> Result<Vec<ResolvedStep>, SweepError> {
        let (named, tokens) = (self.base.model(), self.base.batch().tokens.len());
        let mut steps = vec![];
        for part in &patched.parts {
            let (site, heads) = place(named, *part)?;
            let values = self.from.shared(&site.name)?;
            steps.push(patch(&site, heads.as_deref(), patched.positions.clone(), &values)?);
        }
        for branch in held(named, patched)? {
            steps.push(patch(&branch, None, 0..tokens, &self.base.shared(&branch.name)?)?);
        }
        Ok(steps)
    }
}

//! The heads and feed-forward networks that carry the difference between a text and a changed one: each is put alone
//! from one run into the other, both ways, and where none carries most of it, several together.

use super::{CARRIES, MeasuredPart, Reason, ReasonEvent, ReasonPart, go_on};
use crate::Lm;
use crate::error::Result;
use crate::trace::attribution::{AttributionUnit, ModelPart, attribute};
use crate::trace::interventions::SequenceSteps;
use crate::trace::parts::{Contest, PartPatch, PartRuns, at_once, parts};
use crate::trace::sweep::{SweepBy, SweepMetric, SweepQuestion, SweepSite, copies};
use crate::trace::{Keep, Trace};
use limpid_base::budget::Budget;
use std::sync::Arc;

/// Tokens times layers that measuring every part may run; of a larger model those are measured that gradients put
/// first.
const TOKEN_LAYERS: usize = 70_000;
/// Parts that are measured in every way.
const STRONGEST: usize = 6;
/// The part of the difference that several carry where no more are added.
const TOGETHER: f64 = 0.9;
/// A part of the difference that is said as 0.00.
const NOTHING: f64 = 0.005;

/// Both texts' runs.
pub(super) struct Carriers<'a> {
    lm: &'a Lm,
    budget: &'a Arc<Budget>,
    contest: Contest,
    text: Trace,
    changed: Trace,
    /// The difference of logits in both.
    ends: [f64; 2],
}

impl<'a> Carriers<'a> {
    pub(super) fn new(lm: &'a Lm, (ids, reason): (&[u32], &Reason), budget: &'a Arc<Budget>) -> Result<Carriers<'a>> {
        let [mut text, mut changed] =
            [lm.trace_ids(ids, Keep::default())?, lm.trace_ids(&reason.changed, Keep::default())?];
        [&mut text, &mut changed].into_iter().for_each(|run| run.spend(budget));
        let ends = [reason.difference, reason.changed_difference];
        Ok(Carriers { lm, budget, contest: reason.contest, text, changed, ends })
    }

    fn tokens(&self) -> usize {
        self.text.batch().tokens.len()
    }

    fn patch(&self, parts: &[ModelPart]) -> PartPatch {
        PartPatch { parts: parts.to_vec(), positions: 0..self.tokens(), direct: false }
    }

    /// The share of the difference that comes back when the changed text's run gets what a patch takes from the text's.
    fn restored(&self, patches: &[PartPatch]) -> Result<Vec<f64>> {
        let [text, changed] = self.ends;
        let all = self.differences([&self.text, &self.changed], patches)?;
        Ok(all.into_iter().map(|difference| (difference - changed) / (text - changed)).collect())
    }

    /// The share that is lost the other way round.
    fn broken(&self, patches: &[PartPatch]) -> Result<Vec<f64>> {
        let [text, changed] = self.ends;
        let all = self.differences([&self.changed, &self.text], patches)?;
        Ok(all.into_iter().map(|difference| (text - difference) / (text - changed)).collect())
    }

    fn differences(&self, [from, base]: [&Trace; 2], patches: &[PartPatch]) -> Result<Vec<f64>> {
        if patches.is_empty() {
            return Ok(vec![]);
        }
        let sequences = SequenceSteps::default();
        let batch = copies(base.batch(), at_once(self.tokens()).min(patches.len()));
        let mut copies = self.lm.trace_sequences(&batch, sequences.clone())?;
        copies.spend(self.budget);
        let (copies, sequences) = (&mut copies, &sequences);
        Ok(PartRuns { from, base, copies, sequences, contest: self.contest }.differences(patches)?)
    }

    /// Fills in the parts of a reason.
    pub(super) fn measure(self, reason: &mut Reason, tell: &mut dyn FnMut(&ReasonEvent) -> bool) -> Result<()> {
        let Contest { row, answer, foil } = self.contest;
        let wrote = attribute(&self.text, row, (answer, Some(foil)), AttributionUnit::Head, usize::MAX)?.bars;
        let mut all: Vec<ReasonPart> = vec![];
        for some in self.chosen()?.chunks(at_once(self.tokens())) {
            let patches: Vec<PartPatch> = some.iter().map(|part| self.patch(&[*part])).collect();
            for (part, restored) in some.iter().zip(self.restored(&patches)?) {
                let wrote = wrote.iter().find(|bar| bar.part == *part).map(|bar| bar.value);
                let part = ReasonPart { part: *part, restored, measured: None, wrote };
                go_on(tell(&ReasonEvent::Part(&part)))?;
                all.push(part);
            }
        }
        reason.runs += all.len();
        all.sort_by(|a, b| b.restored.total_cmp(&a.restored));
        let strong = all.iter().take(STRONGEST).filter(|part| part.restored >= NOTHING).count();
        let strongest: Vec<ModelPart> = all[..strong].iter().map(|one| one.part).collect();
        if strong > 1 && all[0].restored < CARRIES {
            let sets: Vec<PartPatch> = (2..=strong).map(|n| self.patch(&strongest[..n])).collect();
            let shares = self.restored(&sets)?;
            let n = shares.iter().position(|share| *share >= TOGETHER).unwrap_or(sets.len() - 1);
            reason.together = Some((sets[n].parts.clone(), shares[n]));
            reason.runs += sets.len();
        }
        for (one, measured) in all.iter_mut().zip(self.closely(&strongest, reason)?) {
            one.measured = Some(measured);
        }
        reason.runs += 3 * strong;
        reason.parts = all;
        Ok(())
    }

    /// What else is measured of the strongest parts.
    fn closely(&self, strongest: &[ModelPart], reason: &Reason) -> Result<Vec<MeasuredPart>> {
        let row = self.contest.row;
        let patches: Vec<PartPatch> = strongest.iter().map(|part| self.patch(&[*part])).collect();
        let at_end =
            patches.iter().map(|patch| PartPatch { positions: row..row + 1, ..patch.clone() }).collect::<Vec<_>>();
        let direct = patches.iter().map(|patch| PartPatch { direct: true, ..patch.clone() }).collect::<Vec<_>>();
        let (broken, at_end, direct) = (self.broken(&patches)?, self.restored(&at_end)?, self.restored(&direct)?);
        let places: Vec<usize> = reason.changes.iter().flat_map(|change| change.places.iter().copied()).collect();
        let measured = (0..strongest.len()).map(|n| {
            let weight = self.weight_on(strongest[n], &places)?;
            Ok(MeasuredPart { broken: broken[n], at_end: at_end[n], direct: direct[n], weight })
        });
        measured.collect()
    }

    /// Of a head its weight on some places, seen from the row that is asked about.
    fn weight_on(&self, part: ModelPart, places: &[usize]) -> Result<Option<f64>> {
        let ModelPart::Head { block, head } = part else { return Ok(None) };
        let row = self.contest.row;
        let pattern = self.text.sheet(&SweepSite::Pattern.tensor(block), &[0, head], None)?;
        let weights = pattern.band(row..row + 1, 0..self.tokens());
        Ok(Some(places.iter().map(|at| f64::from(weights[*at])).sum()))
    }

    /// The parts that are measured, block by block: all, or as many as may be, those first that gradients put first.
    fn chosen(&self) -> Result<Vec<ModelPart>> {
        let (all, layers) = (parts(self.lm.config()), self.lm.config().n_layer);
        let most = TOKEN_LAYERS / (self.tokens() * (layers + 1)).div_ceil(2);
        if all.len() <= most {
            return Ok(all);
        }
        let estimates = estimated(self.lm, &self.text.batch().tokens, &self.changed.batch().tokens, self.contest)?;
        let mut order: Vec<usize> = (0..all.len()).collect();
        order.sort_by(|a, b| estimates[*b].abs().total_cmp(&estimates[*a].abs()).then(a.cmp(b)));
        order.truncate(most.max(STRONGEST));
        order.sort_unstable();
        Ok(order.into_iter().map(|n| all[n]).collect())
    }
}

/// What each part restores to first order (attribution patching), in the order of [`parts`].
fn estimated(lm: &Lm, text: &[u32], changed: &[u32], contest: Contest) -> Result<Vec<f64>> {
    let question = |site| SweepQuestion {
        clean: text.to_vec(),
        corrupt: changed.to_vec(),
        site,
        by: SweepBy::Head,
        metric: SweepMetric::LogitDifference { answer: contest.answer, foil: contest.foil },
        position: contest.row as i64,
        to: None,
        confirmed: true,
    };
    let [heads, mlps] = [lm.sweep_estimate(&question(SweepSite::Z))?, lm.sweep_estimate(&question(SweepSite::MlpOut))?];
    let mut all = vec![];
    let rows = heads.recovered.values.chunks_exact(lm.config().n_head);
    for (heads, mlp) in rows.zip(mlps.recovered.values.chunks_exact(text.len())) {
        all.extend(heads.iter().map(|v| f64::from(*v)));
        all.push(mlp.iter().map(|v| f64::from(*v)).sum());
    }
    Ok(all)
}

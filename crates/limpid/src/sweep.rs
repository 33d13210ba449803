//! Sweeps of a model: activation patching over a grid of layers, positions and heads. Read `trace::sweep` for how one runs.

use crate::Lm;
use crate::error::{Error, Result};
use crate::model::{Mode, Model};
use crate::trace::Labelled;
use crate::trace::edits::EditedSequences;
use crate::trace::layers::LayerTrace;
use crate::trace::sweep::{Sweep, SweepError, SweepEstimate, SweepMetric, SweepQuestion, SweepRow, SweepRuns, copies};
use limpid_base::budget::Budget;
use std::sync::Arc;

/// Bytes that tensors of the clean run, and of the corrupt one, may take while they are read.
const SEEN: usize = 64 << 20;

impl Lm {
    /// Runs a corrupted prompt many times, each time with one activation of the clean prompt in its place, and measures how much of the
    /// clean run's behaviour each restores. `tell` gets each layer's row and returns whether to go on. Every number is that of a single run
    /// through [`Lm::intervene`].
    ///
    /// ```no_run
    /// # use limpid::trace::sweep::{SweepBy, SweepMetric, SweepQuestion, SweepSite};
    /// # let lm = limpid::Lm::open("runs/1")?;
    /// let [mary, john] = [" Mary", " John"].map(|name| lm.tokenizer().unwrap().token(name).unwrap());
    /// let question = SweepQuestion {
    ///     clean: lm.encode("When Mary and John went home, John called to")?,
    ///     corrupt: lm.encode("When Mary and John went home, Mary called to")?,
    ///     site: SweepSite::ResidPre,
    ///     by: SweepBy::Position,
    ///     metric: SweepMetric::LogitDifference { answer: mary, foil: john },
    ///     position: -1,
    ///     confirmed: false,
    /// };
    /// let sweep = lm.sweep(&question, &mut |_| true)?;
    /// assert_eq!(sweep.recovered.axes, ["layer", "pos"]);
    /// # Ok::<(), limpid::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the prompts differ in length or give the same metric, a token, position or site does not exist, the sweep is large and was not
    /// confirmed, the metric is NaN or infinite, or `tell` wants no more ([`Error::Stopped`]).
    pub fn sweep(&self, question: &SweepQuestion, tell: &mut dyn FnMut(&SweepRow) -> bool) -> Result<Sweep> {
        self.sweep_within(question, &Arc::default(), tell)
    }

    /// The same, with what may be spent on its runs.
    ///
    /// # Errors
    /// As [`Lm::sweep`], and [`trace::TraceError::Spent`](crate::trace::TraceError::Spent).
    pub fn sweep_within(
        &self,
        question: &SweepQuestion,
        budget: &Arc<Budget>,
        tell: &mut dyn FnMut(&SweepRow) -> bool,
    ) -> Result<Sweep> {
        let [mut clean, mut corrupt] = self.sweep_ends(question)?;
        question.check_cost(self.config())?;
        let edited = EditedSequences::default();
        let batch = copies(corrupt.batch(), question.at_once(self.config()));
        let mut copies = self.trace_edited(batch, edited.clone())?;
        copies.spend(budget);
        let (clean, corrupt, copies, edited) = (&mut clean, &mut corrupt, &mut copies, &edited);
        SweepRuns { clean, corrupt, copies, edited }.sweep(question, tell).map_err(|error| self.said(error))
    }

    /// The same grid to first order, by attribution patching: the gradient of the metric in the corrupt run times the difference of the
    /// activations. It takes one backward pass, or two for a logit difference, whatever the grid.
    ///
    /// # Errors
    /// As [`Lm::sweep`] and [`Lm::trace_gradients`], and if the metric is the KL divergence.
    pub fn sweep_estimate(&self, question: &SweepQuestion) -> Result<Sweep> {
        let [mut clean, mut corrupt] = self.sweep_ends(question)?;
        let said = |error| self.said(error);
        let estimate = SweepEstimate::new(question, [&mut clean, &mut corrupt]).map_err(said)?;
        let names = SweepEstimate::names(question, clean.names());
        let slopes = estimate.losses.iter().map(|(batch, _)| {
            self.traced_batch(batch, true, |trace| {
                names.iter().map(|name| trace.get(name)).collect::<Result<Vec<_>, _>>()
            })
        });
        let slopes = slopes.collect::<Result<Vec<_>>>()?;
        estimate.sweep(question, [&mut clean, &mut corrupt], &slopes).map_err(said)
    }

    /// Bytes that a sweep takes beside the weights, or its estimate.
    ///
    /// # Errors
    /// If there are more tokens than the context has.
    pub fn sweep_bytes(&self, question: &SweepQuestion, estimate: bool) -> Result<usize> {
        let tokens = question.clean.len();
        let shown = self.shown_bytes(tokens)?;
        let ends = 2 * self.layer_bytes(tokens)?.saturating_add(shown.min(SEEN));
        let runs = if estimate { shown } else { self.layer_bytes_of(question.at_once(self.config()), tokens)? };
        Ok(ends.saturating_add(runs))
    }

    /// Gradients of a metric of one sequence at these tensors: `question` is the metric, and the position that it is read at. The loss is
    /// that of the sequence's own targets.
    ///
    /// # Errors
    /// If the metric has no gradient, a token or position does not exist, or a tensor has none, and as [`Lm::trace_gradients`].
    pub fn metric_gradients(
        &self,
        ids: &[u32],
        (metric, position): (SweepMetric, i64),
        names: &[String],
    ) -> Result<Vec<Labelled>> {
        let batch = self.batch_of(ids)?;
        let losses = metric.losses(self.config(), (&batch, &batch.targets), position)?;
        let mut sums: Vec<Labelled> = vec![];
        for (batch, worth) in &losses {
            let slopes = self.traced_batch(batch, true, |trace| {
                names.iter().map(|name| trace.get(&format!("{name}.grad"))).collect::<Result<Vec<_>, _>>()
            })?;
            if sums.is_empty() {
                sums =
                    slopes.iter().map(|one| Labelled { values: vec![0.0; one.values.len()], ..one.clone() }).collect();
            }
            for (sum, slope) in sums.iter_mut().zip(slopes) {
                sum.values.iter_mut().zip(slope.values).for_each(|(sum, v)| *sum += *worth as f32 * v);
            }
        }
        Ok(sums)
    }

    /// Both prompts, of which nothing has run.
    fn sweep_ends(&self, question: &SweepQuestion) -> Result<[LayerTrace; 2]> {
        if !self.interventions().is_empty() {
            let what = "a sweep patches a model without interventions: take `Lm::without_interventions`".into();
            return Err(SweepError::Question { what }.into());
        }
        question.check(self.config())?;
        let model = Model::new(self.config(), Mode::Inspect { batch: 1, context: 1 })?;
        question.check_sites(&model)?;
        Ok([self.trace_layers(&question.clean, SEEN)?, self.trace_layers(&question.corrupt, SEEN)?])
    }

    /// The error with the weight that causes it, if one does.
    fn said(&self, error: SweepError) -> Error {
        match error {
            SweepError::Stopped => Error::Stopped,
            SweepError::NotFinite { .. } => {
                let model = Model::new(self.config(), Mode::Inspect { batch: 1, context: 1 });
                match model.map_err(Error::from).and_then(|model| self.damaged(&model)) {
                    Ok(weight) => Error::NotFinite { weight },
                    Err(error) => error,
                }
            }
            error => error.into(),
        }
    }
}

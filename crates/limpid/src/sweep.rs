//! Sweeps of a model: activation patching over a grid of layers, positions and heads. Read `trace::sweep` for how one
//! runs.

use crate::Lm;
use crate::error::{Error, Result};
use crate::model::{Mode, Model, Module};
use crate::trace::NamedTensor;
use crate::trace::interventions::SequenceSteps;
use crate::trace::sweep::{
    Sweep, SweepError, SweepEstimate, SweepMetric, SweepQuestion, SweepRow, SweepRuns, SweepSite, copies,
};
use crate::trace::{Keep, Trace};
use limpid_base::budget::Budget;
use std::sync::Arc;

/// How a metric depends on a run, to first order.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricSlopes {
    /// The norm of its gradient in the residual stream: before the first block and after each, token by token.
    pub stream: Vec<Vec<f64>>,
    /// The norm of its gradient in what each head computes (`hook_z`), layer by layer.
    pub heads: Vec<Vec<f64>>,
    /// Gradient times activation of each head: what the metric loses without the head, to first order.
    pub attribution: Vec<Vec<f64>>,
}

impl Lm {
    /// Runs a corrupted prompt many times, each time with one activation of the clean prompt in its place, and measures
    /// how much of the clean run's behaviour each restores. `tell` gets each layer's row and returns whether to go on.
    /// Every number is that of a single run through [`Lm::intervene`].
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
    ///     to: None,
    ///     confirmed: false,
    /// };
    /// let sweep = lm.sweep(&question, &mut |_| true)?;
    /// assert_eq!(sweep.recovered.axes, ["layer", "pos"]);
    /// # Ok::<(), limpid::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the prompts differ in length or give the same metric, a token, position or site does not exist, the sweep is
    /// large and was not confirmed, the metric is NaN or infinite, or `tell` wants no more ([`Error::Stopped`]).
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
        let [clean, corrupt] = self.sweep_ends(question)?;
        question.check_cost(self.config())?;
        let sequences = SequenceSteps::default();
        let batch = copies(corrupt.batch(), question.at_once(self.config()));
        let mut copies = self.trace_sequences(&batch, sequences.clone())?;
        copies.spend(budget);
        let (clean, corrupt, copies, sequences) = (&clean, &corrupt, &mut copies, &sequences);
        SweepRuns { clean, corrupt, copies, sequences }.sweep(question, tell).map_err(|error| self.said(error))
    }

    /// The same grid to first order, by attribution patching: the gradient of the metric in the corrupt run times the
    /// difference of the activations. It takes one backward pass, or two for a logit difference, whatever the grid.
    ///
    /// # Errors
    /// As [`Lm::sweep`] and [`Lm::trace_ids`], and if the metric is the KL divergence.
    pub fn sweep_estimate(&self, question: &SweepQuestion) -> Result<Sweep> {
        let [clean, corrupt] = self.sweep_ends(question)?;
        let said = |error| self.said(error);
        let estimate = SweepEstimate::new(question, [&clean, &corrupt]).map_err(said)?;
        let names = SweepEstimate::names(question, clean.model());
        let slopes = estimate.losses.iter().map(|(batch, _)| {
            let run = self.trace_batch(batch, self.resolved_steps().cloned(), Keep::Gradients)?;
            Ok(names.iter().map(|name| run.get(name)).collect::<Result<Vec<_>, _>>()?)
        });
        let slopes = slopes.collect::<Result<Vec<_>>>()?;
        estimate.sweep(question, [&clean, &corrupt], &slopes).map_err(said)
    }

    /// Bytes that a sweep takes beside the weights, or its estimate.
    ///
    /// # Errors
    /// If there are more tokens than the context has.
    pub fn sweep_bytes(&self, question: &SweepQuestion, estimate: bool) -> Result<usize> {
        let tokens = question.clean.len();
        let ends = 2 * self.trace_bytes(tokens, Keep::default())?;
        let runs = if estimate {
            self.trace_bytes(tokens, Keep::All)?
        } else {
            self.layer_bytes(question.at_once(self.config()), tokens)?
        };
        Ok(ends.saturating_add(runs).saturating_add(question.layer_bytes(self.config())))
    }

    /// Gradients of a metric of one sequence at these tensors; `position` is where it is read. The loss is that of the
    /// sequence's own targets.
    ///
    /// # Errors
    /// If the metric has no gradient, a token or position does not exist, or a tensor has none, and as
    /// [`Lm::trace_ids`].
    pub fn metric_gradients(
        &self,
        ids: &[u32],
        (metric, position): (SweepMetric, i64),
        names: &[String],
    ) -> Result<Vec<NamedTensor>> {
        let batch = self.batch_of(ids)?;
        let losses = metric.losses(self.config(), (&batch, &batch.targets), position)?;
        let mut sums: Vec<NamedTensor> = vec![];
        for (batch, worth) in &losses {
            let run = self.trace_batch(batch, self.resolved_steps().cloned(), Keep::Gradients)?;
            let slopes = names.iter().map(|name| run.get(&format!("{name}.grad"))).collect::<Result<Vec<_>, _>>()?;
            if sums.is_empty() {
                sums = slopes
                    .iter()
                    .map(|one| NamedTensor { values: vec![0.0; one.values.len()], ..one.clone() })
                    .collect();
            }
            for (sum, slope) in sums.iter_mut().zip(slopes) {
                sum.values.iter_mut().zip(slope.values).for_each(|(sum, v)| *sum += *worth as f32 * v);
            }
        }
        Ok(sums)
    }

    /// How a metric depends on the residual stream and on the heads of a run: [`Lm::metric_gradients`] in short.
    ///
    /// # Errors
    /// As there.
    pub fn metric_slopes(&self, ids: &[u32], metric: (SweepMetric, i64)) -> Result<MetricSlopes> {
        let depth = self.config().n_layer;
        let z: Vec<String> = (0..depth).map(|l| SweepSite::Z.tensor(l)).collect();
        let after = (0..depth).map(|l| Module::block(l).named("hook_resid_post"));
        let stream = std::iter::once(SweepSite::ResidPre.tensor(0)).chain(after);
        let slopes = self.metric_gradients(ids, metric, &stream.chain(z.iter().cloned()).collect::<Vec<_>>())?;
        let (stream, of_z) = slopes.split_at(depth + 1);
        let norm = |row: &[f32]| row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
        let rows = |of: &NamedTensor| of.values.chunks_exact(self.config().d_model).map(norm).collect();
        let stream = stream.iter().map(rows).collect();
        let (mut heads, mut attribution) = (vec![], vec![]);
        let run = self.trace_ids(ids, Keep::default())?;
        for (name, slope) in z.iter().zip(of_z) {
            let (values, wide) = (run.get(name)?, slope.shape.last().copied().unwrap_or(1));
            let (mut squares, mut shares) = (vec![0.0; self.config().n_head], vec![0.0; self.config().n_head]);
            for (at, (g, v)) in slope.values.iter().zip(&values.values).enumerate() {
                let head = at / wide % squares.len();
                squares[head] += f64::from(*g).powi(2);
                shares[head] += f64::from(*g) * f64::from(*v);
            }
            heads.push(squares.into_iter().map(f64::sqrt).collect());
            attribution.push(shares);
        }
        Ok(MetricSlopes { stream, heads, attribution })
    }

    /// Both prompts, of which nothing has run.
    fn sweep_ends(&self, question: &SweepQuestion) -> Result<[Trace; 2]> {
        if !self.interventions().is_empty() {
            let what = "a sweep patches a model without interventions: take `Lm::without_interventions`".into();
            return Err(SweepError::Question { what }.into());
        }
        question.check(self.config())?;
        let model = Model::new(self.config(), Mode::Inspect { batch: 1, context: 1 })?;
        question.check_sites(&model)?;
        Ok([self.trace_ids(&question.clean, Keep::default())?, self.trace_ids(&question.corrupt, Keep::default())?])
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

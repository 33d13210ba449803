//! How well a model predicts a text: the mean negative log-likelihood, and what follows from it. The result is
//! deterministic: all windows in order, losses added in f64 in that order, dropout off. A text without a token to
//! predict has no loss.

use crate::batches::Windows;
use crate::error::{Result, TrainError};
use crate::ranks::team::Team;
use limpid_core::backend::Backend;
use limpid_core::model::Model;
use limpid_core::ops::{Batch, IGNORE};

/// Losses of a text, added up.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Score {
    /// Sum of negative log-likelihoods, in nats.
    pub total: f64,
    /// Tokens predicted.
    pub tokens: usize,
}

impl Score {
    /// Mean loss, in nats per token; none if no token was predicted.
    pub fn loss(&self) -> Option<f64> {
        (self.tokens > 0).then(|| self.total / self.tokens as f64)
    }
    /// exp of the mean loss.
    pub fn perplexity(&self) -> Option<f64> {
        self.loss().map(f64::exp)
    }
    /// Bits per byte of a text of `bytes` bytes. This is meaningful if all of the text was predicted and every token
    /// stands for known bytes.
    pub fn bits_per_byte(&self, bytes: usize) -> Option<f64> {
        (self.tokens > 0 && bytes > 0).then(|| self.total / std::f64::consts::LN_2 / bytes as f64)
    }
    /// Adds the losses of a batch that has just run.
    pub fn add(&mut self, losses: &[f32], targets: &[u32]) {
        for (loss, target) in losses.iter().zip(targets) {
            if *target != IGNORE {
                self.total += f64::from(*loss);
                self.tokens += 1;
            }
        }
    }
}

/// The mean of losses; none if there are none.
pub fn mean(losses: &[f64]) -> Option<f64> {
    (!losses.is_empty()).then(|| losses.iter().sum::<f64>() / losses.len() as f64)
}

/// Runs the forward pass over all windows and adds up their losses. The model may be built to train, to score or to
/// inspect. After every batch, `goes_on` says whether to continue.
///
/// # Errors
/// If the model computes no losses, the backend fails, or a file of the text has changed.
pub fn score(
    model: &Model,
    backend: &mut dyn Backend,
    windows: &Windows,
    batch_size: usize,
    goes_on: &mut dyn FnMut(&Score) -> bool,
) -> Result<Score> {
    score_among(model, backend, windows, batch_size, &mut Team::alone(vec![]), goes_on)
}

/// The same by several processes, which take turns with the batches. Each adds up all losses, in the order of the
/// batches. Process 0 says whether to continue.
pub(crate) fn score_among(
    model: &Model,
    backend: &mut dyn Backend,
    windows: &Windows,
    batch_size: usize,
    team: &mut Team,
    goes_on: &mut dyn FnMut(&Score) -> bool,
) -> Result<Score> {
    let lacking = TrainError::Purpose { lacks: "losses", remedy: "Mode::Score or Mode::Train" };
    let losses = model.losses().ok_or(lacking)?;
    windows.check_files()?;
    let mut round = Round { score: Score::default(), losses: losses.len(), own: vec![], targets: vec![] };
    let mut run = |batch: &Batch| {
        if round.targets.len() == team.rank() {
            backend.feed(batch)?;
            backend.forward(model.ops())?;
            round.own = backend.read(losses.for_batch(batch))?;
        }
        windows.check_files()?;
        round.targets.push(batch.targets.clone());
        if round.targets.len() == team.size() { round.end(team, goes_on) } else { Ok(true) }
    };
    let mut running = Ok(true);
    windows.each(batch_size, |batch| {
        if matches!(running, Ok(true)) {
            running = run(batch);
        }
    });
    if matches!(running, Ok(true)) && !round.targets.is_empty() {
        running = round.end(team, goes_on);
    }
    running.map(|_| round.score)
}

/// Batches that run at the same time, one in each process.
struct Round {
    /// The losses of all rounds so far.
    score: Score,
    /// The most losses of a batch.
    losses: usize,
    /// The losses of this process's batch.
    own: Vec<f32>,
    /// The targets of all processes' batches.
    targets: Vec<Vec<u32>>,
}

impl Round {
    /// Adds the losses of a round whose batches have run. Returns whether to continue.
    fn end(&mut self, team: &mut Team, goes_on: &mut dyn FnMut(&Score) -> bool) -> Result<bool> {
        self.own.resize(self.losses, 0.0);
        let all = team.gather_all(&self.own)?;
        for (targets, losses) in self.targets.iter().zip(all.chunks(self.losses)) {
            self.score.add(losses, targets);
        }
        self.own.clear();
        self.targets.clear();
        Ok(team.agree(goes_on(&self.score))?)
    }
}

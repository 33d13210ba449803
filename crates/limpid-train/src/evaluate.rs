//! How good a model is: the mean negative log-likelihood of a text, and what follows from it. Everything is
//! deterministic: all windows in order, losses added in f64 in that order, dropout off. A text of which no token is predicted has no
//! loss.

use crate::batches::Windows;
use crate::error::TrainError;
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
    /// Mean loss, in nats a token.
    pub fn loss(&self) -> Option<f64> {
        (self.tokens > 0).then(|| self.total / self.tokens as f64)
    }
    /// exp of the mean loss.
    pub fn perplexity(&self) -> Option<f64> {
        self.loss().map(f64::exp)
    }
    /// Bits for each of `bytes` bytes of text. It is meaningful if all of the text was predicted and every token stands for known
    /// bytes.
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

/// Runs the forward pass over all windows. The model may be one made to train, to score or to inspect; `goes_on` is
/// asked after every batch.
///
/// # Errors
/// If the model computes no losses, the backend fails, or a file of the text was changed.
pub fn score(
    model: &Model,
    backend: &mut dyn Backend,
    windows: &Windows,
    batch_size: usize,
    goes_on: &mut dyn FnMut(&Score) -> bool,
) -> Result<Score, TrainError> {
    score_among(model, backend, windows, batch_size, &mut Team::alone(vec![]), goes_on)
}

/// The same by several processes, which take turns with the batches; each adds up all losses, in the order of the batches.
/// Process 0 says whether it goes on.
pub(crate) fn score_among(
    model: &Model,
    backend: &mut dyn Backend,
    windows: &Windows,
    batch_size: usize,
    team: &mut Team,
    goes_on: &mut dyn FnMut(&Score) -> bool,
) -> Result<Score, TrainError> {
    let lacking = TrainError::Purpose { lacks: "losses", mend: "Mode::Score or Mode::Train" };
    let losses = model.losses().ok_or(lacking)?;
    windows.check_files()?;
    let (mut score, mut running) = (Score::default(), Ok(true));
    let (mut own, mut round): (Vec<f32>, Vec<Vec<u32>>) = (vec![], vec![]);
    // the batches of a round have run, one in each process
    let mut add = |own: &mut Vec<f32>, round: &mut Vec<Vec<u32>>, team: &mut Team| {
        own.resize(losses.len(), 0.0);
        let all = team.gather_all(own)?;
        for (targets, losses) in round.iter().zip(all.chunks(losses.len())) {
            score.add(losses, targets);
        }
        own.clear();
        round.clear();
        Ok(team.agree(goes_on(&score))?)
    };
    let mut run = |batch: &Batch| {
        if round.len() == team.rank() {
            backend.feed(batch)?;
            backend.forward(model.ops())?;
            own = backend.read(losses.of(batch))?;
        }
        windows.check_files()?;
        round.push(batch.targets.clone());
        if round.len() == team.size() { add(&mut own, &mut round, team) } else { Ok(true) }
    };
    windows.each(batch_size, |batch| {
        if matches!(running, Ok(true)) {
            running = run(batch);
        }
    });
    if matches!(running, Ok(true)) && !round.is_empty() {
        running = add(&mut own, &mut round, team);
    }
    running.map(|_| score)
}

//! Windows of a token stream, as batches: shuffled ones to train on, all of them in order to evaluate on.

use super::{DataError, Tokens};
use crate::ops::{Batch, IGNORE, Span, random};
use std::ops::Range;

/// What is asked of the model at each position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Objective {
    /// The token that follows (contract R034, R236).
    NextToken,
    /// Tokens that were hidden (BERT, R265 to R272): 15 % are chosen; of these 80 % become `mask`, 10 % a random
    /// token, 10 % stay; only they are predicted.
    Masked {
        /// Id of the mask token.
        mask: u32,
        /// Ids to draw random tokens from: 0..vocab_size.
        vocab_size: usize,
        /// Whether half of the windows are made of two segments.
        segments: bool,
    },
}

/// Shuffled windows: an endless stream that can be entered anywhere. An epoch cuts the text into windows from an
/// offset of its own and takes each once, so nothing is left out for long; the order is a permutation that is
/// computed, not stored.
#[derive(Clone, Debug)]
pub struct Batches<'a> {
    tokens: &'a Tokens,
    batch_size: usize,
    context: usize,
    micros: u64,
    seed: u64,
    objective: Objective,
}

impl<'a> Batches<'a> {
    /// Batches of `batch_size` windows of `context` tokens.
    ///
    /// # Errors
    /// If the text is shorter than one window.
    pub fn new(
        tokens: &'a Tokens,
        batch_size: usize,
        context: usize,
        seed: u64,
        objective: Objective,
    ) -> Result<Batches<'a>, DataError> {
        check_length("training text", tokens.len(), context)?;
        Ok(Batches { tokens, batch_size, context, micros: 1, seed, objective })
    }

    /// The same, `micros` batches to a step.
    pub fn accumulated(self, micros: usize) -> Batches<'a> {
        Batches { micros: micros as u64, ..self }
    }

    /// Fills `batch` with micro-batch `micro` of `step`, its weight for the mean of that micro-batch alone.
    /// Allocates nothing once `batch` has been filled before.
    pub fn fill(&self, step: u64, micro: u64, batch: &mut Batch) {
        let at = random::bits(step, 0, micro);
        clear(batch);
        for b in 0..self.batch_size {
            let number = (step * self.micros + micro) * self.batch_size as u64 + b as u64;
            let start = self.start(number);
            push(batch, self.tokens, start..start + self.context, self.objective, (self.seed, at, b));
        }
        finish(batch);
    }

    /// Where window `number` of the stream begins.
    fn start(&self, number: u64) -> usize {
        let last = self.tokens.len() - 1;
        let windows = (last / self.context).saturating_sub(1).max(1) as u64;
        let (epoch, i) = (number / windows, number % windows);
        let slack = (last - windows as usize * self.context).min(self.context - 1) as u64 + 1;
        let offset = random::below(self.seed, random::site("offset"), epoch, slack);
        (offset + random::permuted(self.seed, epoch, i, windows) * self.context as u64) as usize
    }
}

/// All windows of a text in order, none overlapping, the last one short: a deterministic evaluation.
#[derive(Clone, Debug)]
pub struct Windows<'a> {
    tokens: &'a Tokens,
    context: usize,
    objective: Objective,
    every: usize,
}

impl<'a> Windows<'a> {
    /// Windows of `context` tokens.
    ///
    /// # Errors
    /// If there is nothing to predict.
    pub fn new(
        what: &'static str,
        tokens: &'a Tokens,
        context: usize,
        objective: Objective,
    ) -> Result<Windows<'a>, DataError> {
        check_length(what, tokens.len(), 1)?;
        Ok(Windows { tokens, context, objective, every: 1 })
    }

    /// Only so many of the windows that about `tokens` are predicted, evenly spread.
    pub fn about(mut self, tokens: usize) -> Windows<'a> {
        self.every = self.tokens.len().div_ceil(tokens.max(1)).max(1);
        self
    }

    /// Tokens that will be predicted, at most.
    pub fn tokens(&self) -> usize {
        (self.tokens.len() - 1).div_ceil(self.every)
    }

    /// Calls `with` for one batch after another, each of at most `batch_size` windows.
    pub fn each(&self, batch_size: usize, mut with: impl FnMut(&Batch)) {
        let mut batch = Batch::default();
        let last = self.tokens.len() - 1;
        let mut starts = (0..last).step_by(self.context).step_by(self.every).peekable();
        let mut number = 0;
        while starts.peek().is_some() {
            clear(&mut batch);
            for start in starts.by_ref().take(batch_size) {
                let window = start..(start + self.context).min(last);
                push(&mut batch, self.tokens, window, self.objective, (0x5eed, number, 0));
                number += 1;
            }
            finish(&mut batch);
            with(&batch);
        }
    }
}

fn check_length(what: &'static str, found: usize, context: usize) -> Result<(), DataError> {
    if found > context {
        return Ok(());
    }
    Err(DataError::TooShort { what, found, wanted: context + 1, context, mend: found.saturating_sub(1).max(1) })
}

fn clear(batch: &mut Batch) {
    let Batch { tokens, positions, segments, targets, .. } = batch;
    [tokens, positions, segments, targets].into_iter().for_each(Vec::clear);
    batch.spans.clear();
}

/// Appends one window; what it predicts reaches one token further.
fn push(
    batch: &mut Batch,
    tokens: &Tokens,
    window: Range<usize>,
    objective: Objective,
    (seed, at, b): (u64, u64, usize),
) {
    let (row, rows) = (batch.tokens.len(), window.len());
    batch.spans.push(Span { row, rows, past: 0, sequence: batch.spans.len(), valid: rows });
    batch.positions.extend(0..rows as u32);
    match objective {
        Objective::NextToken => {
            tokens.copy(window.clone(), &mut batch.tokens);
            let target = |at: usize| if tokens.counted(at) { tokens.id(at) } else { IGNORE };
            batch.targets.extend(window.map(|i| target(i + 1)));
        }
        Objective::Masked { mask, vocab_size, segments } => {
            let draw = |what: &str, i: usize| {
                random::uniform(seed, random::site(what), at.wrapping_add(((b as u64) << 32) + i as u64))
            };
            for (i, token) in window.map(|i| tokens.id(i)).enumerate() {
                let chosen = draw("choose", i) < 0.15;
                let fate = draw("fate", i);
                batch.targets.push(if chosen { token } else { IGNORE });
                batch.tokens.push(match () {
                    () if !chosen || fate >= 0.9 => token,
                    () if fate < 0.8 => mask,
                    () => (draw("token", i) * vocab_size as f64) as u32,
                });
            }
            if segments {
                let second = if draw("two", 0) < 0.5 { rows } else { (draw("split", 0) * rows as f64) as usize };
                batch.segments.extend((0..rows).map(|i| u32::from(i >= second)));
            }
        }
    }
}

/// The weight of a mean over what is counted.
fn finish(batch: &mut Batch) {
    batch.weight = 1.0 / counted(batch).max(1) as f32;
}

/// Rows that have a target.
pub fn counted(batch: &Batch) -> usize {
    batch.targets.iter().filter(|t| **t != IGNORE).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_the_next_token_and_a_batch_is_its_step() {
        let tokens = Tokens::of((0..50).collect());
        let batches = Batches::new(&tokens, 3, 7, 1, Objective::NextToken).unwrap();
        let (mut a, mut b) = (Batch::default(), Batch::default());
        batches.fill(5, 2, &mut a);
        batches.fill(6, 2, &mut b);
        assert_ne!(a.tokens, b.tokens);
        batches.fill(5, 2, &mut b);
        assert_eq!(a, b);
        assert!(a.tokens.iter().zip(&a.targets).all(|(x, y)| x + 1 == *y) && a.tokens.len() == 21);
        assert_eq!(a.positions[..8], [0, 1, 2, 3, 4, 5, 6, 0]);
    }

    #[test]
    fn an_epoch_takes_every_window_once() {
        let tokens = Tokens::of((0..1003).collect());
        let batches = Batches::new(&tokens, 5, 10, 1, Objective::NextToken).unwrap().accumulated(3);
        let (mut batch, mut starts) = (Batch::default(), vec![]);
        for step in 0..7 {
            for micro in 0..3 {
                batches.fill(step, micro, &mut batch);
                starts.extend(batch.spans.iter().map(|s| batch.tokens[s.row] as usize));
            }
        }
        starts.truncate(99); // one epoch: (1002 / 10) - 1 windows
        let offset = starts[0] % 10;
        starts.sort_unstable();
        assert_eq!(starts, (0..99).map(|i| offset + 10 * i).collect::<Vec<_>>());
    }

    #[test]
    fn evaluation_sees_every_token_but_the_first_once() {
        let tokens = Tokens::of((0..50).collect());
        let mut seen: Vec<u32> = vec![];
        Windows::new("text", &tokens, 8, Objective::NextToken).unwrap().each(3, |batch| seen.extend(&batch.targets));
        assert_eq!(seen, (1..50).collect::<Vec<u32>>());
    }

    #[test]
    fn masked_tokens_are_fifteen_percent_in_shares_of_eighty_ten_ten() {
        let tokens = Tokens::of((0..40_000).map(|i| i % 90).collect());
        let objective = Objective::Masked { mask: 99, vocab_size: 100, segments: true };
        let batches = Batches::new(&tokens, 64, 512, 3, objective).unwrap();
        let mut batch = Batch::default();
        batches.fill(0, 0, &mut batch);
        let rows = batch.tokens.len() as f64;
        let chosen: Vec<(u32, u32)> =
            batch.tokens.iter().zip(&batch.targets).filter(|(_, y)| **y != IGNORE).map(|(x, y)| (*x, *y)).collect();
        let share =
            |f: &dyn Fn(&(u32, u32)) -> bool| chosen.iter().filter(|c| f(c)).count() as f64 / chosen.len() as f64;
        assert!((chosen.len() as f64 / rows - 0.15).abs() < 0.01);
        assert!((share(&|(x, _)| *x == 99) - 0.8).abs() < 0.02, "masked");
        assert!((share(&|(x, y)| x == y) - 0.1).abs() < 0.02, "kept");
        assert!(batch.segments.contains(&1) && batch.segments.len() == batch.tokens.len());
    }

    #[test]
    fn a_text_too_short_says_what_would_do() {
        let error = Batches::new(&Tokens::of(vec![1, 2, 3]), 2, 16, 0, Objective::NextToken).unwrap_err().to_string();
        assert!(
            error.contains("has 3 tokens") && error.contains("needs 17") && error.contains("--context-length 2"),
            "{error}"
        );
    }
}

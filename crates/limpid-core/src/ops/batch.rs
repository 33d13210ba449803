//! What ops run on: the rows of one run, their sequences, their targets. Read `limits` for what a batch may hold.

use crate::config::Mask;
use std::ops::Range;

/// The target of a row without one: the row is not counted in the loss.
pub const IGNORE: u32 = u32::MAX;

/// Positions of a block: attention takes keys in blocks of so many, and a block of the KV cache holds as many.
pub const BLOCK: usize = 64;

/// How many blocks so many positions take.
pub fn cache_blocks(positions: usize) -> usize {
    positions.div_ceil(BLOCK)
}

/// The target of a row: what should follow it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target<'a> {
    /// No target: the row is not counted.
    None,
    /// This token.
    Token(usize),
    /// This distribution over the vocabulary; one-hot rows give what `Token` gives.
    Soft(&'a [f32]),
}

/// The terms that training adds to the cross-entropy of a row; none by default, and none in evaluation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Terms {
    /// Label smoothing: the share of the target that is spread evenly over all tokens.
    pub smoothing: f32,
    /// Weight of the squared log of the sum of exponentials.
    pub z_loss: f32,
}

/// The rows of one sequence in a batch, which are neighbours.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Span {
    /// Its first row.
    pub row: usize,
    /// How many rows.
    pub rows: usize,
    /// How many positions of the sequence are already in the KV cache.
    pub past: usize,
    /// Where the numbers of its cache blocks begin in [`Batch::blocks`].
    pub table: usize,
    /// How many positions, past ones included, are real and not padding. A bidirectional mask hides the others.
    pub valid: usize,
}

impl Span {
    /// How many keys row `i` of the span sees under `mask`, if no window hides the first.
    pub fn reach(&self, mask: Mask, i: usize) -> usize {
        match mask {
            Mask::Causal => self.past + i + 1,
            Mask::Bidirectional => self.valid,
            Mask::None => self.past + self.rows,
        }
    }
    /// How many blocks of the KV cache its positions take.
    pub fn cache_blocks(&self) -> usize {
        cache_blocks(self.past.saturating_add(self.rows))
    }
    /// Those blocks, in the order of positions.
    pub fn blocks<'a>(&self, batch: &'a Batch) -> &'a [u32] {
        &batch.blocks[self.table..][..self.cache_blocks()]
    }
    /// The row of the KV cache that holds row `i` of the span.
    pub fn cache_row(&self, batch: &Batch, i: usize) -> usize {
        let position = self.past + i;
        batch.blocks[self.table + position / BLOCK] as usize * BLOCK + position % BLOCK
    }
}

/// The rows of one run: their tokens, positions and targets. This is plain data and may hold any numbers: a backend
/// checks it against its model's [`Limits`](super::limits::Limits) in `feed`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// Token of each row.
    pub tokens: Vec<u32>,
    /// Position of each row in its sequence.
    pub positions: Vec<u32>,
    /// Segment of each row; empty for all in segment 0.
    pub segments: Vec<u32>,
    /// Target of each row or [`IGNORE`]; empty if no loss is wanted.
    pub targets: Vec<u32>,
    /// A distribution over the vocabulary for each row, (N,V), instead of `targets`.
    pub soft_targets: Vec<f32>,
    /// The sequences.
    pub spans: Vec<Span>,
    /// Rows whose logits are wanted (decoding).
    pub outputs: Vec<u32>,
    /// The blocks of the KV cache that the sequences have, one sequence after another: 64 rows of the cache each
    /// (decoding).
    pub blocks: Vec<u32>,
    /// The weight of each counted row's loss in the gradient. For the mean it is 1 / the rows counted in the whole
    /// step.
    pub weight: f32,
    /// The terms that training adds to each row's loss.
    pub terms: Terms,
    /// The seed of dropout's draws; `None` in evaluation.
    pub seed: Option<u64>,
}

/// Makes `to` a copy of part of `from`, with the capacity of `from`: so batches of different sizes allocate once.
fn again<T: Copy>(to: &mut Vec<T>, from: &Vec<T>, part: impl std::slice::SliceIndex<[T], Output = [T]>) {
    to.clear();
    to.reserve(from.capacity());
    to.extend_from_slice(&from[part]);
}

impl Batch {
    /// Becomes a copy of `other` without a new allocation, if there is enough capacity.
    pub fn copy_from(&mut self, other: &Batch) {
        let Batch { tokens, positions, segments, targets, soft_targets, spans, outputs, blocks, weight, terms, seed } =
            self;
        again(tokens, &other.tokens, ..);
        again(positions, &other.positions, ..);
        again(segments, &other.segments, ..);
        again(targets, &other.targets, ..);
        again(soft_targets, &other.soft_targets, ..);
        again(spans, &other.spans, ..);
        again(outputs, &other.outputs, ..);
        again(blocks, &other.blocks, ..);
        (*weight, *terms, *seed) = (other.weight, other.terms, other.seed);
    }

    /// Becomes the rows of some neighbouring sequences of `other`, without a new allocation if there is enough
    /// capacity. Returns how many rows of `other` come before them.
    pub fn take(&mut self, other: &Batch, sequences: Range<usize>) -> usize {
        let all = other.tokens.len();
        let first = |i: usize| other.spans.get(i).map_or(all, |s| s.row);
        let rows = first(sequences.start)..first(sequences.end);
        fn some<T: Copy>(to: &mut Vec<T>, from: &Vec<T>, rows: &Range<usize>, all: usize) {
            let each = from.len() / all.max(1); // 0 where there are none
            again(to, from, rows.start * each..rows.end * each);
        }
        some(&mut self.tokens, &other.tokens, &rows, all);
        some(&mut self.positions, &other.positions, &rows, all);
        some(&mut self.segments, &other.segments, &rows, all);
        some(&mut self.targets, &other.targets, &rows, all);
        some(&mut self.soft_targets, &other.soft_targets, &rows, all);
        again(&mut self.spans, &other.spans, sequences);
        self.spans.iter_mut().for_each(|s| s.row -= rows.start);
        self.outputs.clear();
        again(&mut self.blocks, &other.blocks, ..);
        (self.weight, self.terms, self.seed) = (other.weight, other.terms, other.seed);
        rows.start
    }

    /// The target of row `n`.
    pub fn target(&self, n: usize, vocab: usize) -> Target<'_> {
        if !self.soft_targets.is_empty() {
            return Target::Soft(&self.soft_targets[n * vocab..][..vocab]);
        }
        match self.targets.get(n) {
            None | Some(&IGNORE) => Target::None,
            Some(token) => Target::Token(*token as usize),
        }
    }

    /// A batch of sequences of `length` tokens each, with positions from 0 and the target of every row.
    pub fn of_sequences(tokens: Vec<u32>, targets: Vec<u32>, length: usize) -> Batch {
        let sequences = tokens.len().checked_div(length).unwrap_or(1); // one without tokens, which no model takes
        let spans =
            (0..sequences).map(|b| Span { row: b * length, rows: length, past: 0, table: 0, valid: length }).collect();
        let counted = targets.iter().filter(|t| **t != IGNORE).count();
        Batch {
            positions: (0..tokens.len()).map(|i| i.checked_rem(length).unwrap_or(0) as u32).collect(),
            weight: 1.0 / counted.max(1) as f32,
            tokens,
            targets,
            spans,
            ..Batch::default()
        }
    }
}

//! What a batch may hold. A backend checks every batch against its model's [`Limits`] in `feed`, in one place, so
//! kernels may rely on it: no two tasks get the same row, and no id, position or key lies outside its table. The
//! check is one pass over the rows and allocates nothing.

use super::{BLOCK, Batch, IGNORE, Span};

/// The most that a batch may hold: the sizes of a model's tables and memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// N: rows of a batch.
    pub rows: usize,
    /// Rows whose logits are wanted.
    pub outputs: usize,
    /// T: positions of a sequence, those in the KV cache included.
    pub context: usize,
    /// Blocks of the KV cache; `None` without a cache.
    pub blocks: Option<usize>,
    /// V: the size of the vocabulary.
    pub vocab_size: usize,
    /// S: segments; 1 without a segment table.
    pub segments: usize,
}

/// Why a batch does not fit a model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BatchError {
    /// The batch has more of something than there is room for.
    #[error(
        "the batch has {found} {what}, and the model has room for {most}: give it fewer at once, or build it for more"
    )]
    Room {
        /// Rows, outputs or positions of the cache.
        what: &'static str,
        /// How many there are.
        found: usize,
        /// How many fit.
        most: usize,
    },
    /// An id is outside of its table.
    #[error("{what} {id} (at {index} of the batch) is not below {size}, the model's number of them")]
    Id {
        /// Token, position, segment, target or output.
        what: &'static str,
        /// The id.
        id: u32,
        /// Its index in its list.
        index: usize,
        /// The size of the table.
        size: usize,
    },
    /// A list has the wrong length.
    #[error("the batch has {found} {what}: {wanted} are wanted, or none where none are needed")]
    Count {
        /// What is listed.
        what: &'static str,
        /// Its length.
        found: usize,
        /// The length it must have.
        wanted: usize,
    },
    /// A sequence's rows are not its own rows of the batch, or its positions do not fit the model.
    #[error("sequence {index} of the batch {why}")]
    Sequence {
        /// Which of the batch's spans.
        index: usize,
        /// What is wrong with it.
        why: &'static str,
    },
}

impl Limits {
    /// Checks that `batch` fits: its spans divide its rows in order, and none is empty; no sequence is longer than
    /// the context; every id is in its table; and lists that go with the rows are as long as these.
    ///
    /// # Errors
    /// The first thing that does not fit.
    pub fn check(&self, batch: &Batch) -> Result<(), BatchError> {
        let Batch { tokens, positions, segments, targets, soft_targets, spans, outputs, blocks, .. } = batch;
        let rows = tokens.len();
        let sizes = [("rows", rows, self.rows), ("outputs", outputs.len(), self.outputs)];
        if let Some((what, found, most)) = sizes.into_iter().find(|(_, found, most)| found > most) {
            return Err(BatchError::Room { what, found, most });
        }
        let counts = [
            ("positions", positions.len(), rows, true),
            ("segments", segments.len(), rows, false),
            ("targets", targets.len(), rows, false),
            ("elements of soft targets", soft_targets.len(), rows * self.vocab_size, false),
        ];
        for (what, found, wanted, always) in counts {
            if found != wanted && (always || found != 0) {
                return Err(BatchError::Count { what, found, wanted });
            }
        }
        let ids = [
            ("token", tokens, self.vocab_size),
            ("position", positions, self.context),
            ("segment", segments, self.segments),
            ("target", targets, self.vocab_size),
            ("output", outputs, rows),
            ("cache block", blocks, self.blocks.unwrap_or(0)),
        ];
        for (what, ids, size) in ids {
            let outside = |id: &u32| *id as usize >= size && (what != "target" || *id != IGNORE);
            if let Some(index) = ids.iter().position(outside) {
                return Err(BatchError::Id { what, id: ids[index], index, size });
            }
        }
        let (mut row, mut table) = (0, 0);
        for (index, span) in spans.iter().enumerate() {
            let held = span.past.saturating_add(span.rows);
            let why = match self.blocks {
                _ if span.rows == 0 => "has no rows",
                _ if span.row != row => "does not begin where the one before it ends",
                _ if span.rows > rows - row => "ends after the batch",
                _ if held > self.context => "is longer than the context",
                _ if span.valid > held => "has more valid positions than positions",
                None if span.past > 0 => "has a past, and the model has no cache",
                Some(_) if span.table != table => "has no table of its own",
                Some(_) if span.cache_blocks() > blocks.len() - table => "lacks blocks of the cache",
                Some(_) if !Limits::writes_alone(span, batch) => "writes to a block of the cache that is there twice",
                _ => {
                    row += span.rows;
                    table += self.blocks.map_or(0, |_| span.cache_blocks());
                    continue;
                }
            };
            return Err(BatchError::Sequence { index, why });
        }
        if row != rows {
            return Err(BatchError::Count { what: "rows that belong to a sequence", found: row, wanted: rows });
        }
        Ok(())
    }

    /// Whether the blocks that `span` writes to are nowhere else in the batch: others may only be read together.
    fn writes_alone(span: &Span, batch: &Batch) -> bool {
        let written = span.past / BLOCK..span.cache_blocks();
        span.blocks(batch)[written].iter().all(|block| batch.blocks.iter().filter(|other| *other == block).count() == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> Limits {
        Limits { rows: 8, outputs: 8, context: 4, blocks: None, vocab_size: 5, segments: 2 }
    }

    fn batch() -> Batch {
        let mut batch = Batch::of_sequences(vec![0, 1, 2, 3, 4, 0, 1, 2], vec![1, IGNORE, 3, 4, 0, 1, 2, 3], 4);
        batch.segments = vec![0, 0, 1, 1, 0, 0, 0, 1];
        batch
    }

    #[test]
    fn what_fits_is_taken() {
        assert_eq!(limits().check(&batch()), Ok(()));
        assert_eq!(limits().check(&Batch::default()), Ok(()), "nothing fits everywhere");
        let short = Batch { segments: vec![], targets: vec![], ..batch() };
        assert_eq!(limits().check(&short), Ok(()));
        let soft = Batch { soft_targets: vec![0.2; 40], ..batch() };
        assert_eq!(limits().check(&soft), Ok(()));
        let cached = Limits { blocks: Some(3), outputs: 2, ..limits() };
        let mut more = Batch { blocks: vec![2, 0], outputs: vec![3, 7], ..batch() };
        more.spans[1].table = 1;
        assert_eq!(cached.check(&more), Ok(()));
    }

    /// Each change alone is refused, and the message names it.
    #[test]
    fn what_does_not_fit_is_named() {
        let refused = |what: &str, limits: Limits, change: &dyn Fn(&mut Batch)| {
            let mut batch = batch();
            change(&mut batch);
            let said = limits.check(&batch).expect_err(what).to_string();
            assert!(said.contains(what), "`{said}` does not say `{what}`");
        };
        let l = limits();
        let cached = Limits { blocks: Some(2), ..l };
        refused("8 rows", Limits { rows: 7, ..l }, &|_| {});
        refused("outputs", Limits { outputs: 1, ..l }, &|b| b.outputs = vec![0, 1]);
        refused("7 positions", l, &|b| b.positions.truncate(7));
        refused("7 segments", l, &|b| b.segments.truncate(7));
        refused("7 targets", l, &|b| b.targets.truncate(7));
        refused("39 elements of soft targets", l, &|b| b.soft_targets = vec![0.0; 39]);
        refused("token 5 (at 2", l, &|b| b.tokens[2] = 5);
        refused("token 4294967295", l, &|b| b.tokens[2] = IGNORE);
        refused("position 4 (at 7", l, &|b| b.positions[7] = 4);
        refused("segment 2 (at 0", l, &|b| b.segments[0] = 2);
        refused("target 5 (at 1", l, &|b| b.targets[1] = 5);
        refused("output 8 (at 0", l, &|b| b.outputs = vec![8]);
        refused("sequence 1 of the batch has no rows", l, &|b| b.spans[1].rows = 0);
        refused("sequence 1 of the batch does not begin", l, &|b| b.spans[1].row = 3);
        refused("sequence 1 of the batch does not begin", l, &|b| b.spans[1] = b.spans[0]);
        refused("sequence 0 of the batch does not begin", l, &|b| b.spans.reverse());
        refused("sequence 1 of the batch ends after", l, &|b| b.spans[1].rows = 5);
        refused("sequence 1 of the batch ends after", l, &|b| b.spans[1].rows = usize::MAX);
        refused("sequence 0 of the batch is longer", Limits { context: 4, ..l }, &|b| b.spans[0].past = usize::MAX);
        refused("sequence 0 of the batch is longer", l, &|b| {
            b.spans = vec![Span { row: 0, rows: 8, past: 0, table: 0, valid: 8 }];
        });
        refused("more valid positions", l, &|b| b.spans[1].valid = 5);
        refused("has a past", l, &|b| (b.spans[1].rows, b.spans[1].past) = (3, 1));
        refused("cache block 2 (at 1", cached, &|b| b.blocks = vec![0, 2]);
        refused("cache block 0 (at 0", l, &|b| b.blocks = vec![0]);
        refused("sequence 0 of the batch lacks blocks", cached, &|_| {});
        refused("sequence 1 of the batch lacks blocks", cached, &|b| (b.blocks, b.spans[1].table) = (vec![0], 1));
        refused("no table of its own", cached, &|b| b.blocks = vec![0, 1]);
        refused("no table of its own", cached, &|b| (b.blocks, b.spans[1].table) = (vec![0, 1], usize::MAX));
        refused("sequence 0 of the batch writes", cached, &|b| (b.blocks, b.spans[1].table) = (vec![0, 0], 1));
        refused("4 rows that belong to a sequence", l, &|b| b.spans.truncate(1));
    }

    #[test]
    fn sequences_without_tokens_are_refused_and_do_not_panic() {
        let said = |tokens: Vec<u32>, length| limits().check(&Batch::of_sequences(tokens, vec![], length)).unwrap_err();
        assert_eq!(said(vec![1, 2], 0), BatchError::Sequence { index: 0, why: "has no rows" });
        assert!(matches!(said(vec![1, 2, 3], 2), BatchError::Count { found: 2, wanted: 3, .. }));
    }
}

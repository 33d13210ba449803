//! A stream of token ids: documents one after the other, with the end of each, and which tokens are to be predicted. It
//! lies in memory or in mapped files (`shards`).

use super::DataError;
use super::corpus_error::CorpusError;
use super::shards::Shard;
use limpid_tokenizer::{Tokenizer, TokenizerError};
use std::ops::Range;
use std::sync::Arc;
use xxhash_rust::xxh3::Xxh3;

/// Bytes of text that the tokens to be predicted stand for, without the tokens that end texts; none if one of them is
/// the unknown token, whose text is lost.
///
/// # Errors
/// If an id is not the tokenizer's.
pub fn text_bytes(tokens: &Tokens, tokenizer: &Tokenizer) -> Result<Option<usize>, TokenizerError> {
    let (end, unknown) = (tokenizer.end_of_text(), tokenizer.unknown());
    let (mut bytes, mut ids) = (0, vec![]);
    for start in (0..tokens.len()).step_by(PIECE) {
        let piece = start..(start + PIECE).min(tokens.len());
        ids.clear();
        tokens.copy(piece.clone(), &mut ids);
        let mut counted = piece.map(|at| tokens.counted(at));
        ids.retain(|id| counted.next().unwrap_or(true) && Some(*id) != end);
        if unknown.is_some_and(|unknown| ids.contains(&unknown)) {
            return Ok(None);
        }
        bytes += tokenizer.decode_bytes(&ids)?.len();
    }
    Ok(Some(bytes))
}

/// The most tokens whose text is held at once.
const PIECE: usize = 1 << 16;

/// Token ids with the ends of their documents.
#[derive(Clone, Debug, PartialEq)]
pub struct Tokens {
    shards: Arc<[Placed]>,
    len: usize,
    documents: usize,
    /// Which are to be predicted; all, if it is not said.
    counted: Option<Arc<[bool]>>,
}

/// A shard, and what comes before it.
#[derive(Debug, PartialEq)]
struct Placed {
    shard: Shard,
    start: usize,
    documents: usize,
}

impl Default for Tokens {
    fn default() -> Tokens {
        Tokens::of_documents(vec![], vec![], None)
    }
}

impl Tokens {
    /// One document.
    pub fn new(ids: Vec<u32>) -> Tokens {
        let ends = vec![ids.len()];
        Tokens::of_documents(ids, ends, None)
    }

    /// Documents one after the other. `ends` ascend to the number of ids. `counted` says for each token whether it is
    /// to be predicted (in conversations: the answers); without it, all are.
    pub fn of_documents(ids: Vec<u32>, ends: Vec<usize>, counted: Option<Vec<bool>>) -> Tokens {
        debug_assert!(ends.is_sorted() && ends.last().is_none_or(|end| *end == ids.len()));
        debug_assert!(counted.as_ref().is_none_or(|c| c.len() == ids.len()));
        Tokens { counted: counted.map(Arc::from), ..Tokens::of_shards(vec![Shard::held(ids, ends)]) }
    }

    /// The tokens of several shards, one after the other.
    pub fn of_shards(shards: Vec<Shard>) -> Tokens {
        let (mut len, mut documents) = (0, 0);
        let mut place = |shard: Shard| {
            let placed = Placed { start: len, documents, shard };
            (len, documents) = (len + placed.shard.len(), documents + placed.shard.documents());
            placed
        };
        let shards = shards.into_iter().filter(|s| s.len() + s.documents() > 0).map(&mut place).collect();
        Tokens { shards, len, documents, counted: None }
    }

    /// Checks that the mapped files have not changed. Call it before reading: a file that another program has truncated
    /// must not be read.
    ///
    /// # Errors
    /// If one was changed.
    pub fn check_files(&self) -> Result<(), CorpusError> {
        self.shards.iter().try_for_each(|placed| placed.shard.check())
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The shard in which the token at a place stands.
    fn shard_at(&self, at: usize) -> &Placed {
        &self.shards[self.shards.partition_point(|placed| placed.start <= at) - 1]
    }

    /// The id at a place.
    pub fn id(&self, at: usize) -> u32 {
        let placed = self.shard_at(at);
        placed.shard.id(at - placed.start)
    }

    /// Appends the ids of `range`.
    pub fn copy(&self, range: Range<usize>, to: &mut Vec<u32>) {
        assert!(range.end <= self.len);
        let first = self.shards.partition_point(|placed| placed.start + placed.shard.len() <= range.start);
        for Placed { shard, start, .. } in self.shards[first..].iter().take_while(|placed| placed.start < range.end) {
            let from = range.start.max(*start) - start;
            shard.copy(from..(range.end - start).min(shard.len()), to);
        }
    }

    /// Whether the token at a place is to be predicted.
    pub fn counted(&self, at: usize) -> bool {
        self.counted.as_ref().is_none_or(|counted| counted[at])
    }

    /// How many tokens of `range` are to be predicted.
    pub fn count_targets(&self, range: Range<usize>) -> usize {
        match &self.counted {
            Some(counted) => counted[range].iter().filter(|counted| **counted).count(),
            None => range.len(),
        }
    }

    /// How many documents there are.
    pub fn documents(&self) -> usize {
        self.documents
    }

    /// Where document `i` lies.
    pub fn document(&self, i: usize) -> Range<usize> {
        let end = |i: usize| {
            let after = |placed: &Placed| placed.documents + placed.shard.documents() <= i;
            let placed = &self.shards[self.shards.partition_point(after)];
            placed.start + placed.shard.end(i - placed.documents)
        };
        i.checked_sub(1).map_or(0, end)..end(i)
    }

    /// The document that the token at a place is of.
    pub fn document_at(&self, at: usize) -> usize {
        let placed = self.shard_at(at);
        placed.documents + placed.shard.ends_until(at - placed.start)
    }

    /// Calls `with` for all ids, piece by piece, with the position of each piece.
    fn pieces(&self, mut with: impl FnMut(usize, &mut [u32]) -> Result<(), DataError>) -> Result<(), CorpusError> {
        const STEP: usize = 1 << 16;
        let mut ids = Vec::with_capacity(STEP.min(self.len()));
        for start in (0..self.len()).step_by(STEP) {
            self.check_files()?;
            ids.clear();
            self.copy(start..(start + STEP).min(self.len()), &mut ids);
            with(start, &mut ids)?;
        }
        self.check_files()
    }

    /// A checksum of everything: ids, ends of documents, and which tokens are to be predicted.
    ///
    /// # Errors
    /// If one of its files has changed.
    pub fn digest(&self) -> Result<u64, CorpusError> {
        let mut sum = Xxh3::new();
        sum.update(&(self.len() as u64).to_le_bytes());
        self.pieces(|_, ids| {
            ids.iter_mut().for_each(|id| *id = id.to_le());
            sum.update(bytemuck::cast_slice(ids));
            Ok(())
        })?;
        (0..self.documents()).for_each(|i| sum.update(&(self.document(i).end as u64).to_le_bytes()));
        if let Some(counted) = &self.counted {
            counted.iter().for_each(|counted| sum.update(&[u8::from(*counted)]));
        }
        Ok(sum.digest())
    }

    /// Checks that every id is below `vocab_size`.
    ///
    /// # Errors
    /// Names the first id that is not, and its position; or one of its files, if that has changed.
    pub fn check_ids(&self, vocab_size: usize) -> Result<(), CorpusError> {
        self.pieces(|start, ids| match ids.iter().position(|id| *id as usize >= vocab_size) {
            Some(at) => Err(DataError::TokenRange { id: ids[at], position: start + at, vocab_size }),
            None => Ok(()),
        })
    }
}

//! A stream of token ids: the documents one after the other, where each ends, and which tokens are to be predicted.

use std::ops::Range;

/// Token ids with the ends of their documents.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tokens {
    ids: Vec<u32>,
    ends: Vec<usize>,
    counted: Option<Vec<bool>>,
}

impl Tokens {
    /// One document.
    pub fn of(ids: Vec<u32>) -> Tokens {
        let ends = vec![ids.len()];
        Tokens { ids, ends, counted: None }
    }

    /// Documents one after the other: `ends` ascend to the number of ids. `counted` says of each token whether it is to be
    /// predicted (chat: the answers); none for all.
    pub fn of_documents(ids: Vec<u32>, ends: Vec<usize>, counted: Option<Vec<bool>>) -> Tokens {
        debug_assert!(ends.is_sorted() && ends.last().is_none_or(|end| *end == ids.len()));
        debug_assert!(counted.as_ref().is_none_or(|c| c.len() == ids.len()));
        Tokens { ids, ends, counted }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The id at a place.
    pub fn id(&self, at: usize) -> u32 {
        self.ids[at]
    }

    /// Appends the ids of `range`.
    pub fn copy(&self, range: Range<usize>, to: &mut Vec<u32>) {
        to.extend_from_slice(&self.ids[range]);
    }

    /// Whether the token at a place is to be predicted.
    pub fn counted(&self, at: usize) -> bool {
        self.counted.as_ref().is_none_or(|counted| counted[at])
    }

    /// How many documents there are.
    pub fn documents(&self) -> usize {
        self.ends.len()
    }

    /// Where document `i` lies.
    pub fn document(&self, i: usize) -> Range<usize> {
        let start = if i == 0 { 0 } else { self.ends[i - 1] };
        start..self.ends[i]
    }

    /// The document that the token at a place is of.
    pub fn document_at(&self, at: usize) -> usize {
        self.ends.partition_point(|end| *end <= at)
    }
}

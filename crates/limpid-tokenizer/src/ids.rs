//! Other numberings of the same ids, and what there is to say about a tokenised text.
//!
//! Ids count from 0 everywhere inside limpid. Papers often count from 1 ([`to_one_based`]); a small corpus under a
//! large vocabulary uses few of its ids ([`Remap`]). Both are translations at the edge.

use serde::{Deserialize, Serialize};

use super::{Tokenizer, TokenizerError};

/// 0..V-1 to 1..V, as papers count.
pub fn to_one_based(ids: &[u32]) -> Result<Vec<u32>, TokenizerError> {
    mapped(ids, "has no successor in 32 bits", |id| id.checked_add(1))
}

/// 1..V to 0..V-1. An id 0 is an error.
pub fn from_one_based(ids: &[u32]) -> Result<Vec<u32>, TokenizerError> {
    mapped(ids, "cannot be in a list that counts from 1", |id| id.checked_sub(1))
}

/// Ids in another numbering, or `why` one has no place in it.
fn mapped(ids: &[u32], why: &'static str, to: impl Fn(u32) -> Option<u32>) -> Result<Vec<u32>, TokenizerError> {
    let one = |(index, &id): (usize, &u32)| to(id).ok_or(TokenizerError::Mapping { id, index, why });
    ids.iter().enumerate().map(one).collect()
}

/// The ids that a text really uses, numbered densely 0..n in their own order, and back.
///
/// A textbook of 460,000 characters under `cl100k_base` reaches id 100,069 with 3,771 distinct ids: remapped, its model
/// needs an embedding of 3,771 rows instead of 100,070.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<u32>", into = "Vec<u32>")]
pub struct Remap {
    /// Ascending, each once.
    used: Vec<u32>,
}

impl Remap {
    /// n: how many distinct ids there are.
    pub fn len(&self) -> usize {
        self.used.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.used.is_empty()
    }

    /// The ids in use, ascending; the dense id is the place in this list.
    pub fn used(&self) -> &[u32] {
        &self.used
    }

    /// The tokenizer's ids to 0..n. An id that was not there when the map was made is an error.
    pub fn dense(&self, ids: &[u32]) -> Result<Vec<u32>, TokenizerError> {
        mapped(ids, "is not among the ids the map was made of", |id| self.place(id))
    }

    /// 0..n back to the tokenizer's ids.
    pub fn sparse(&self, ids: &[u32]) -> Result<Vec<u32>, TokenizerError> {
        mapped(ids, "is beyond the dense ids of this map", |id| self.used.get(id as usize).copied())
    }

    /// The dense id of one, if it has one.
    pub(super) fn place(&self, id: u32) -> Option<u32> {
        self.used.binary_search(&id).ok().map(|place| place as u32)
    }
}

impl From<Vec<u32>> for Remap {
    fn from(mut used: Vec<u32>) -> Remap {
        used.sort_unstable();
        used.dedup();
        Remap { used }
    }
}

impl From<Remap> for Vec<u32> {
    fn from(map: Remap) -> Vec<u32> {
        map.used
    }
}

/// What there is to say about a text and its ids.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Statistics {
    /// Bytes of UTF-8.
    pub bytes: usize,
    /// Unicode scalar values.
    pub chars: usize,
    /// Ids.
    pub tokens: usize,
    /// Different ids.
    pub distinct: usize,
    /// The largest id.
    pub max_id: Option<u32>,
    /// Its text, as [`Tokenizer::piece`] shows it.
    pub max_piece: Option<String>,
}

/// Counts `text` and the `ids` it was encoded to.
pub fn statistics(tokenizer: &Tokenizer, text: &str, ids: &[u32]) -> Result<Statistics, TokenizerError> {
    tokenizer.check(ids)?;
    let map = Remap::from(ids.to_vec());
    let max_id = map.used.last().copied();
    Ok(Statistics {
        bytes: text.len(),
        chars: text.chars().count(),
        tokens: ids.len(),
        distinct: map.len(),
        max_id,
        max_piece: max_id.map(|id| tokenizer.piece(id)).transpose()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counting_from_one_and_back() {
        assert_eq!(to_one_based(&[0, 1, 2]).unwrap(), [1, 2, 3]);
        assert_eq!(from_one_based(&[3, 2, 6]).unwrap(), [2, 1, 5]);
        assert_eq!(
            from_one_based(&[1, 0]).unwrap_err().to_string(),
            "id 0 (at index 1) cannot be in a list that counts from 1"
        );
        assert!(to_one_based(&[u32::MAX]).is_err());
    }

    #[test]
    fn sparse_ids_become_dense_and_return() {
        let ids = [100_069, 5, 220, 5, 100_069];
        let map = Remap::from(ids.to_vec());
        assert_eq!((map.len(), map.used()), (3, &[5, 220, 100_069][..]));
        let dense = map.dense(&ids).unwrap();
        assert_eq!(dense, [2, 0, 1, 0, 2]);
        assert_eq!(map.sparse(&dense).unwrap(), ids);
        assert!(map.dense(&[5, 6]).unwrap_err().to_string().contains("id 6 (at index 1)"));
        assert!(map.sparse(&[3]).unwrap_err().to_string().contains("id 3 (at index 0)"));
        let saved = serde_json::to_string(&map).unwrap();
        assert_eq!(saved, "[5,220,100069]");
        assert_eq!(serde_json::from_str::<Remap>(&saved).unwrap(), map);
    }

    #[test]
    fn a_text_is_counted() {
        let tokenizer = Tokenizer::named("cl100k_base").unwrap();
        let text = "Clarify – clearly, clearly";
        let ids = tokenizer.encode(text).unwrap();
        let found = statistics(&tokenizer, text, &ids).unwrap();
        assert_eq!((found.bytes, found.chars), (28, 26));
        assert_eq!(found.max_id, Some(100_069));
        assert_eq!(found.max_piece.as_deref(), Some("Clar"));
        assert_eq!(found.tokens, ids.len());
        assert!(found.distinct < found.tokens);
        assert_eq!(statistics(&tokenizer, "", &[]).unwrap().max_id, None);
        assert!(statistics(&tokenizer, "x", &[100_277]).is_err());
    }
}

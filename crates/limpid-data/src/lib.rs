//! From text files to tokens. `documents` reads the files, `encode` turns them into ids, `prepare` writes the ids to
//! `shards` and lists the shards in a `manifest`. Batches are made from [`Tokens`], which lie in memory or in shards.
//! [`source`] finds a text by name, in any of these forms, and splits it for training. `stories` is the built-in
//! corpus, `toys` are small examples, `chat` reads conversations, and `template` writes them in the form that other
//! programs' models expect.

mod boundary;
pub mod chat;
mod checksum;
mod corpus_error;
mod documents;
mod encode;
mod inputs;
mod json_array;
mod lines;
mod manifest;
mod message;
#[cfg_attr(not(feature = "parquet"), path = "no_parquet.rs")]
mod parquet;
mod prepare;
mod quote;
mod shards;
pub mod source;
pub mod stories;
pub mod template;
mod tokens;
pub mod toys;
mod unpack;

pub use boundary::boundary;
pub use corpus_error::{CorpusError, LeftOut, Place};
pub use documents::{DocumentReader, UNIT, read_text};
pub use encode::{Encoder, encode};
pub use inputs::{FoundFiles, Input, LONGEST, TextFormat, Unit, find, matching};
pub use lines::read_line;
pub use manifest::{Counts, File, Manifest, PrepareSettings, SplitShards, Written};
pub use prepare::{Plan, Progress, prepare};
pub use shards::Shard;
pub use tokens::{Tokens, text_bytes};

/// Why tokens cannot be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// The text is shorter than one window.
    #[error(
        "the {what} has {found} tokens, but one window needs {wanted} (context_length {context} and the token after \
         it): give more text, or use a context_length of {mend}"
    )]
    TooShort {
        /// Which text.
        what: &'static str,
        /// Tokens it has.
        found: usize,
        /// Tokens needed.
        wanted: usize,
        /// The context asked for.
        context: usize,
        /// A context that would do.
        mend: usize,
    },
    /// The rank does not exist, or would get no window.
    #[error(
        "rank {rank} of {ranks}: ranks are counted from 0, and each of them needs one of the batch's {windows} windows"
    )]
    Rank {
        /// The rank asked for.
        rank: usize,
        /// How many there are.
        ranks: usize,
        /// Windows of a batch.
        windows: usize,
    },
    /// Windows or batches have size 0, or are larger than any memory.
    #[error("{what} is {found}: it must be 1 or more, and a batch has at most 2^40 tokens")]
    Size {
        /// batch_size or context
        what: &'static str,
        /// What was asked for.
        found: usize,
    },
    /// A token is outside the model's vocabulary.
    #[error(
        "token {id} at position {position} is outside the model's vocabulary of {vocab_size} (0 to {})", .vocab_size - 1
    )]
    TokenRange {
        /// The id.
        id: u32,
        /// Where it stands.
        position: usize,
        /// The model's vocabulary.
        vocab_size: usize,
    },
}

impl DataError {
    /// The settings that may help, each with its name and, if one is known, a value.
    pub fn settings(&self) -> Vec<String> {
        match self {
            DataError::TooShort { mend, .. } => vec![format!("context_length {mend}")],
            _ => vec![],
        }
    }
}

/// Checks that every id is below `vocab_size`.
///
/// # Errors
/// Names the first id that is not, and its position.
pub fn check_ids(ids: &[u32], vocab_size: usize) -> Result<(), DataError> {
    match ids.iter().position(|id| *id as usize >= vocab_size) {
        Some(position) => Err(DataError::TokenRange { id: ids[position], position, vocab_size }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod corpus_tests;

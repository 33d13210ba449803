//! From tokens to batches. A batch is a pure function of (seed, step, micro-batch): nothing about the
//! data's order needs saving, and resuming is asking for another step. `stories` is the built-in corpus,
//! `chat` reads conversations.

mod batches;
pub mod chat;
pub mod stories;
mod tokens;

pub use batches::{Batches, Documents, Objective, Windows, counted};
pub use tokens::Tokens;

/// Why data cannot be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum DataError {
    /// Not even one window.
    #[error(
        "the {what} has {found} tokens, but one window needs {wanted} (context_length {context} and the token after it): \
         give more text, or use --context-length {mend}"
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
    /// A part of a batch that there is not.
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
    /// A token that the model has no row for.
    #[error("token {id} at position {position} is outside the model's vocabulary of {vocab_size} (0 to {})", .vocab_size - 1)]
    TokenRange {
        /// The id.
        id: u32,
        /// Where it stands.
        position: usize,
        /// The model's vocabulary.
        vocab_size: usize,
    },
}

/// Every id is below `vocab_size`.
///
/// # Errors
/// Names the first that is not, and where it stands.
pub fn check_ids(ids: &[u32], vocab_size: usize) -> Result<(), DataError> {
    match ids.iter().position(|id| *id as usize >= vocab_size) {
        Some(position) => Err(DataError::TokenRange { id: ids[position], position, vocab_size }),
        None => Ok(()),
    }
}

//! Why nothing can be generated.

use crate::tokenizer;
use crate::trace::interventions::InterventionError;
use limpid_core::decode::DecodeError;

/// Why nothing can be generated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GenerateError {
    /// The model, the sequence or the logits.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// Ids the tokenizer does not have.
    #[error(transparent)]
    Tokenizer(#[from] tokenizer::TokenizerError),
    /// An empty stop text.
    #[error("stop text {index} is empty: it would stop before the first token; leave it out")]
    EmptyStop {
        /// Its place in the list.
        index: usize,
    },
    /// Stop texts without a tokenizer.
    #[error("stop texts need a tokenizer: without one there are only tokens")]
    StopWithoutTokenizer,
    /// The KV cache is smaller than one sequence.
    #[error(
        "the sequence may need {positions} positions, but the KV cache has room for {room}: ask for fewer tokens, or \
         give the cache more memory"
    )]
    NoCache {
        /// What it needs.
        positions: usize,
        /// What there is.
        room: usize,
    },
    /// Interventions that do not fit the prompt.
    #[error(transparent)]
    Intervention(#[from] InterventionError),
    /// Interventions on a sequence whose positions would move.
    #[error(
        "with interventions a sequence stays within the context, because they name its positions: it may need \
         {positions} positions and the context has {context}; ask for fewer tokens"
    )]
    InterventionSlides {
        /// What it needs.
        positions: usize,
        /// T.
        context: usize,
    },
    /// No prompt, and a tokenizer with no token to begin with.
    #[error("without a prompt the model begins after a newline, which its tokenizer lacks: give a prompt")]
    NoStart,
}

/// What is generated, unless that fails.
pub(crate) type Result<T, E = GenerateError> = std::result::Result<T, E>;

//! Sequences that grow token by token, without text: a [`Decoder`] runs rows of many sequences, whose keys and values
//! lie in blocks that a [`BlockPool`] keeps account of. A sequence's logits depend neither on how its tokens were fed
//! nor on which others are there. Read `decoder` first.

mod blocks;
mod decoder;

pub use blocks::{BlockPool, BlockTable};
pub use decoder::{DecodeRows, Decoder, DecoderLimits};

use crate::backend::BackendError;
use crate::config::{ConfigError, Mask};

/// Why decoding failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// A configuration that cannot be built.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The model is not causal: it attends to later tokens.
    #[error("the model's mask is {mask}: it has no order to generate in; generating and scoring need `causal`")]
    Mask {
        /// The model's mask.
        mask: Mask,
    },
    /// A token is not in the model's vocabulary.
    #[error(
        "token {id} (at index {index}) is not below the model's vocab_size {vocab_size}: was it made by another \
         tokenizer?"
    )]
    Token {
        /// The token.
        id: u32,
        /// Its place in the list given.
        index: usize,
        /// V.
        vocab_size: usize,
    },
    /// The sequence would be longer than the context.
    #[error(
        "the context is full: the sequence holds {held} tokens and {more} more would make {}, but the model's \
         context_length is {context}; feed at most {} more, or continue in a new sequence with the latest tokens \
         (generating does so by itself when the overflow is `slide-half`)",
        .held + .more, .context - .held
    )]
    Full {
        /// Tokens in the sequence.
        held: usize,
        /// Tokens to be added.
        more: usize,
        /// T.
        context: usize,
    },
    /// There is no token to continue from.
    #[error(
        "there are no tokens to continue from: begin with at least one (the end-of-text token, if there is no prompt)"
    )]
    Empty,
    /// A setting is outside its range.
    #[error("{what} is {found}: it must be {expected}")]
    Setting {
        /// Its name.
        what: &'static str,
        /// Its value.
        found: f64,
        /// What it may be.
        expected: &'static str,
    },
    /// A logit is NaN or infinite.
    #[error("the logit of token {token} is {value}: the model's parameters are damaged, or its training diverged")]
    Logit {
        /// The token.
        token: u32,
        /// NaN or infinity.
        value: f32,
    },
    /// All logits are minus infinity.
    #[error("no token is possible: every logit is -inf")]
    NoToken,
    /// The parameters belong to a model of another configuration.
    #[error("the parameters belong to another model: {what}")]
    OtherModel {
        /// What differs.
        what: String,
    },
    /// The backend failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

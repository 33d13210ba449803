//! A token named by a text that somebody typed: `--answer king`, `"answer": " king"`, `answer=27`.

use limpid_data::{DataError, check_ids};
use limpid_tokenizer::Tokenizer;

/// Tokens of a text that an error shows, and letters.
const SHOWN: (usize, usize) = (6, 64);

/// Why a text names no token.
#[derive(Debug, thiserror::Error)]
pub enum TokenNameError {
    /// Only numbers are names without one.
    #[error("{0:?} names no token of a model without a tokenizer: give a token's id")]
    NoTokenizer(String),
    /// Nothing was typed.
    #[error("the text is empty: give a token's text or id")]
    Empty,
    /// The token begins with a blank.
    #[error("{text:?} is not one token of this model; {spaced:?} is: write its space too")]
    Spaced {
        /// What was typed.
        text: String,
        /// The token.
        spaced: String,
    },
    /// Several tokens, or one of another text, such as `[UNK]`.
    #[error("{text:?} is not one token of this model{}", would_be(.pieces))]
    Other {
        /// How what was typed begins.
        text: String,
        /// The first tokens of the text, quoted.
        pieces: Vec<String>,
    },
    /// A number that is no id.
    #[error(transparent)]
    Id(#[from] DataError),
}

fn would_be(pieces: &[String]) -> String {
    if pieces.is_empty() {
        return String::new(); // the tokenizer cannot write it at all
    }
    format!("; it would be {}: give one of them, with its space", pieces.join(" + "))
}

/// The token of that text or, if there is none, of that number.
///
/// # Errors
/// If there is neither.
pub fn token_named(text: &str, tokenizer: Option<&Tokenizer>, vocab_size: usize) -> Result<u32, TokenNameError> {
    if let Some(id) = tokenizer.and_then(|tokenizer| tokenizer.token(text)) {
        return Ok(id);
    }
    if let Ok(id) = text.parse() {
        check_ids(&[id], vocab_size)?;
        return Ok(id);
    }
    let tokenizer = tokenizer.ok_or_else(|| TokenNameError::NoTokenizer(text.into()))?;
    if text.is_empty() {
        return Err(TokenNameError::Empty);
    }
    let spaced = format!(" {text}");
    if tokenizer.token(&spaced).is_some() {
        return Err(TokenNameError::Spaced { text: text.into(), spaced });
    }
    let ids = tokenizer.encode(text).unwrap_or_default();
    let piece = |id: &u32| tokenizer.piece(*id).map_or_else(|_| id.to_string(), |piece| format!("{piece:?}"));
    let begins = text.chars().take(SHOWN.1).collect();
    Err(TokenNameError::Other { text: begins, pieces: ids.iter().take(SHOWN.0).map(piece).collect() })
}

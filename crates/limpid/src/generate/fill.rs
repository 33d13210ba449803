//! A bidirectional model's predictions for masked tokens.

use super::{DecodeError, GenerateError};
use crate::backend::Backend;
use crate::model::Model;
use crate::ops::Batch;
use crate::tokenizer::Tokenizer;

/// Tokens that are named for each mask.
const CANDIDATES: usize = 5;

/// A text whose masks are filled.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Filled {
    /// The text with the likeliest token in each mask's place.
    pub text: String,
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// Each mask's position, and the five likeliest tokens with their probabilities, the likeliest first.
    pub masks: Vec<(usize, Vec<(String, f32)>)>,
}

/// Fills every `mask` of `batch`, one sequence, each by itself: what is found for one is not seen by another. The model was built to
/// inspect.
///
/// # Errors
/// If an id has no text.
pub fn fill(
    model: &Model,
    backend: &mut dyn Backend,
    tokenizer: &Tokenizer,
    batch: &Batch,
    mask: u32,
) -> Result<Filled, GenerateError> {
    backend.feed(batch).map_err(DecodeError::from)?;
    backend.forward(model.ops()).map_err(DecodeError::from)?;
    let probs = model.tensor("probs").expect("an inspected model with a head has probabilities").region;
    let all = backend.read(probs.of(batch)).map_err(DecodeError::from)?;
    let v = model.config.vocab_size;
    let (mut tokens, mut masks) = (batch.tokens.clone(), vec![]);
    for (n, _) in batch.tokens.iter().enumerate().filter(|(_, id)| **id == mask) {
        let mut ranked: Vec<(u32, f32)> = (0..).zip(all[n * v..(n + 1) * v].iter().copied()).collect();
        ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
        tokens[n] = ranked[0].0;
        let piece = |(id, p): &(u32, f32)| Ok((tokenizer.piece(*id)?, *p));
        masks.push((n, ranked.iter().take(CANDIDATES).map(piece).collect::<Result<_, GenerateError>>()?));
    }
    Ok(Filled { text: tokenizer.decode(&tokens)?, tokens, masks })
}

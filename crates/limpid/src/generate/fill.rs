//! A bidirectional model's predictions for masked tokens.

use super::Result;
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

/// Fills every `mask` of a sequence by the probabilities (T, V) that a model gives for its places, each by itself: what
/// is found for one is not seen by another.
///
/// # Errors
/// If an id has no text.
pub(crate) fn fill(probs: &[f32], ids: &[u32], tokenizer: &Tokenizer, mask: u32) -> Result<Filled> {
    let (mut tokens, mut masks) = (ids.to_vec(), vec![]);
    for (n, probs) in probs.chunks_exact(probs.len() / ids.len()).enumerate().filter(|(n, _)| ids[*n] == mask) {
        let mut ranked: Vec<(u32, f32)> = (0..).zip(probs.iter().copied()).collect();
        ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
        tokens[n] = ranked[0].0;
        let piece = |(id, p): &(u32, f32)| Ok((tokenizer.piece(*id)?, *p));
        masks.push((n, ranked.iter().take(CANDIDATES).map(piece).collect::<Result<_>>()?));
    }
    Ok(Filled { text: tokenizer.decode(&tokens)?, tokens, masks })
}

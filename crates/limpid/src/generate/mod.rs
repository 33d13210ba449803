//! Text generation: tokens in, the next token out, again and again.
//!
//! [`Session`] holds sequences with their KV cache, and gives logits. [`Sampler`] chooses a token from logits.
//! [`Writer`] turns tokens into text, and knows when to stop. [`generate`] joins the three for one sample; a server
//! joins them for many, one [`Session::step`] for all. [`score`] says how likely a given continuation is.
//!
//! Nothing here is random but by [`Sampler::seed`], and a sequence's logits do not depend on how its tokens were
//! fed or on which others are open. Read `session` first.

mod fill;
mod writer;

pub use fill::{Filled, fill};
pub use limpid_core::decode::{DecodeError, Likelihood, Sampler, SequenceId, Session, score};
pub use writer::{Candidate, Choice, FinishReason, GeneratedToken, Options, Overflow, Sample, Writer};

use crate::config::Mask;
use crate::tokenizer::{self, Tokenizer};

/// Why nothing can be generated.
#[derive(Debug, thiserror::Error)]
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
    /// No prompt, and a tokenizer with no token to begin with.
    #[error("without a prompt the model begins after a newline, which its tokenizer lacks: give a prompt")]
    NoStart,
}

/// The ids of a prompt as a model expects it: after the token that begins every text (BOS), if the tokenizer has one; for a
/// bidirectional model, between the tokens around every text (`[CLS]` and `[SEP]`).
///
/// # Errors
/// If the tokenizer has no ids for it.
pub fn prompt_ids(tokenizer: &Tokenizer, mask: Mask, text: &str) -> Result<Vec<u32>, tokenizer::TokenizerError> {
    match mask {
        Mask::Causal => Ok(tokenizer.bos().into_iter().chain(tokenizer.encode(text)?).collect()),
        _ => tokenizer.encode_for_model(text),
    }
}

/// The ids to generate from without a prompt: the token that begins or ends texts, or a newline; none if the tokenizer has none of these.
pub fn start_ids(tokenizer: &Tokenizer) -> Option<Vec<u32>> {
    match tokenizer.bos().or(tokenizer.end_of_text()) {
        Some(end) => Some(vec![end]), // a text begins where another ends
        None => tokenizer.encode("\n").ok().filter(|ids| !ids.is_empty()),
    }
}

/// What happens in [`generate`], passed to its callback.
#[derive(Clone, Debug, PartialEq)]
pub enum GenerateEvent {
    /// The oldest tokens were dropped, because the context was full.
    Cropped {
        /// Tokens still seen.
        kept: usize,
        /// Tokens no longer seen.
        dropped: usize,
    },
    /// How a token was chosen (with [`Options::trace`]); comes before its text.
    Choice(Choice),
    /// More text: whole characters, never a part of a stop text.
    Piece {
        /// The text.
        text: String,
    },
}

/// Continues `prompt` and passes every event to `tell`; if that returns `false`, generation ends.
///
/// The prompt is not part of the result. Without a tokenizer there are tokens and no text.
///
/// The context is T = `context_length` positions, and [`Options::overflow`] says what happens at its end.
/// `Overflow::Stop`: a prompt of more than T tokens is an error; the sample ends (finish reason `Length`) with the token
/// that was chosen when the sequence held T tokens, so that prompt and sample have at most T + 1. `Overflow::SlideHalf`:
/// of a longer prompt the last T tokens are fed; and when a token must be added to a sequence of T, its oldest
/// T - T / 2 tokens are dropped (T / 2 rounded down) and the other T / 2 fed again, at positions from 0, before it.
/// Each time [`GenerateEvent::Cropped`] is told. The repetition penalty still counts what was dropped.
///
/// # Errors
/// If an option is out of its range, the prompt is empty or has tokens that the model or the tokenizer lacks, no
/// sequence is free, or the logits are not numbers. The sequence it opened is closed in any case.
pub fn generate(
    session: &mut Session,
    tokenizer: Option<&Tokenizer>,
    prompt: &[u32],
    options: &Options,
    tell: &mut dyn FnMut(GenerateEvent) -> bool,
) -> Result<Sample, GenerateError> {
    session.check_tokens(prompt)?;
    let writer = Writer::new(tokenizer, prompt, options)?;
    let id = session.open()?;
    let sample = write(session, id, prompt, writer, tell);
    session.close(id)?;
    sample
}

fn write(
    session: &mut Session,
    id: SequenceId,
    prompt: &[u32],
    mut writer: Writer,
    tell: &mut dyn FnMut(GenerateEvent) -> bool,
) -> Result<Sample, GenerateError> {
    let slides = writer.options().overflow == Overflow::SlideHalf;
    let dropped = if slides { prompt.len().saturating_sub(session.context()) } else { 0 };
    if dropped > 0 && !tell(GenerateEvent::Cropped { kept: prompt.len() - dropped, dropped }) {
        return Ok(writer.into_sample(FinishReason::Cancelled));
    }
    if writer.options().max_tokens == 0 {
        return Ok(writer.into_sample(FinishReason::Length));
    }
    session.feed(id, &prompt[dropped..])?;
    loop {
        let turn = writer.take(session.logits(id)?, session.len(id)?)?;
        let mut goes_on = turn.choice.is_none_or(|choice| tell(GenerateEvent::Choice(choice)));
        goes_on = goes_on && (turn.text.is_empty() || tell(GenerateEvent::Piece { text: turn.text }));
        if !goes_on {
            return Ok(writer.into_sample(FinishReason::Cancelled));
        }
        if let Some(reason) = turn.finish {
            return Ok(writer.into_sample(reason));
        }
        if session.room(id)? == 0 {
            if !slides {
                let text = writer.flush();
                let told = text.is_empty() || tell(GenerateEvent::Piece { text });
                return Ok(writer.into_sample(if told { FinishReason::Length } else { FinishReason::Cancelled }));
            }
            let (kept, dropped) = session.slide(id)?;
            if !tell(GenerateEvent::Cropped { kept, dropped }) {
                return Ok(writer.into_sample(FinishReason::Cancelled));
            }
        }
        session.step(&[(id, turn.token)])?;
    }
}

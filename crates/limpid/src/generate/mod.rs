//! A model that writes: tokens in, one more token out, again and again.
//!
//! [`Session`] keeps sequences and their keys and values, and gives logits. [`Sampler`] makes a token of logits.
//! [`Writer`] makes text of tokens, and knows when to stop. [`generate`] joins the three for one sample; a server
//! joins them for many, one [`Session::step`] for all. [`score`] says how likely a given continuation is.
//!
//! Nothing here is random but by [`Sampler::seed`], and a sequence's logits do not depend on how its tokens were
//! fed or on which others are open. Read `session` first.

mod sample;
mod session;
mod writer;

pub use sample::Sampler;
pub use session::{SequenceId, Session};
pub use writer::{Candidate, FinishReason, Options, Overflow, Sample, Step, Turn, Writer};

use crate::config::{ConfigError, Mask};
use crate::tokenizer::{self, Tokenizer};

/// Why nothing can be generated or scored.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A configuration that cannot be built.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Ids the tokenizer does not have.
    #[error(transparent)]
    Tokenizer(#[from] tokenizer::Error),
    /// The model looks at what comes after.
    #[error("the model's mask is {mask}: it has no order to generate in; generating and scoring need `causal`")]
    Mask {
        /// The model's mask.
        mask: Mask,
    },
    /// A token the model has no row for.
    #[error(
        "token {id} (at index {index}) is not below the model's vocab_size {vocab_size}: was it made by another tokenizer?"
    )]
    Token {
        /// The token.
        id: u32,
        /// Its place in the list given.
        index: usize,
        /// V.
        vocab_size: usize,
    },
    /// More tokens than there are positions.
    #[error(
        "the context is full: the sequence holds {held} tokens and {more} more would make {}, but the model's position \
         table ends at context_length {context}; feed at most {} more, or go on in a new sequence with the latest tokens \
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
    /// A sequence that was closed, or belongs to another session.
    #[error("sequence {id} is not open in this session")]
    Sequence {
        /// Its id.
        id: SequenceId,
    },
    /// One sequence twice in one call.
    #[error("sequence {id} is there twice: a call feeds each sequence once")]
    Twice {
        /// Its id.
        id: SequenceId,
    },
    /// No place for another sequence.
    #[error("all {sequences} sequences of this session are open: close one, or make a session with more")]
    NoRoom {
        /// How many there are.
        sequences: usize,
    },
    /// Nothing to go on from.
    #[error(
        "there are no tokens to go on from: begin with at least one (the end-of-text token, if there is no prompt)"
    )]
    Empty,
    /// A setting outside its range.
    #[error("{what} is {found}: it must be {expected}")]
    Setting {
        /// Its name.
        what: &'static str,
        /// Its value.
        found: f64,
        /// What it may be.
        expected: &'static str,
    },
    /// Logits that are no distribution.
    #[error("the logit of token {token} is {value}: the model's parameters are damaged, or its training diverged")]
    Logit {
        /// The token.
        token: u32,
        /// NaN or infinity.
        value: f32,
    },
    /// Logits that are all minus infinity.
    #[error("no token is possible: every logit is -inf")]
    NoToken,
    /// A stop text that is everywhere.
    #[error("stop text {index} is empty: it would stop before the first token; leave it out")]
    EmptyStop {
        /// Its place in the list.
        index: usize,
    },
    /// Stop texts without text.
    #[error("stop texts need a tokenizer: without one there are only tokens")]
    StopWithoutTokenizer,
    /// Parameters of a differently built model.
    #[error("the parameters belong to another model: {what}")]
    OtherModel {
        /// What differs.
        what: String,
    },
}

/// What [`generate`] tells while it works.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The oldest tokens were dropped, because the context was full.
    Cropped {
        /// Tokens still seen.
        kept: usize,
        /// Tokens no longer seen.
        dropped: usize,
    },
    /// How a token was chosen (with [`Options::trace`]); comes before its text.
    Step(Step),
    /// More text: whole characters, never a part of a stop text.
    Piece {
        /// The text.
        text: String,
    },
}

/// Continues `prompt`, telling every event as it happens; a `false` answer cancels.
///
/// The prompt is not part of the result. Without a tokenizer there are tokens and no text.
///
/// The context is T = `context_length` positions, and [`Options::overflow`] says what happens at its end.
/// `Overflow::Stop`: a prompt of more than T tokens is an error; the sample ends (finish reason `Length`) with the token
/// that was chosen when the sequence held T tokens, so that prompt and sample have at most T + 1. `Overflow::SlideHalf`:
/// of a longer prompt the last T tokens are fed; and when a token must be added to a sequence of T, its oldest
/// T - T / 2 tokens are dropped (T / 2 rounded down) and the other T / 2 fed again, at positions from 0, before it.
/// Each time [`Event::Cropped`] is told. The repetition penalty still counts what was dropped.
///
/// # Errors
/// If an option is out of its range, the prompt is empty or has tokens that the model or the tokenizer lacks, no
/// sequence is free, or the logits are not numbers. The sequence it opened is closed in any case.
pub fn generate(
    session: &mut Session,
    tokenizer: Option<&Tokenizer>,
    prompt: &[u32],
    options: &Options,
    tell: &mut dyn FnMut(Event) -> bool,
) -> Result<Sample, Error> {
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
    tell: &mut dyn FnMut(Event) -> bool,
) -> Result<Sample, Error> {
    let slides = writer.options().overflow == Overflow::SlideHalf;
    let dropped = if slides { prompt.len().saturating_sub(session.context()) } else { 0 };
    if dropped > 0 && !tell(Event::Cropped { kept: prompt.len() - dropped, dropped }) {
        return Ok(writer.into_sample(FinishReason::Cancelled));
    }
    if writer.options().max_tokens == 0 {
        return Ok(writer.into_sample(FinishReason::Length));
    }
    session.feed(id, &prompt[dropped..])?;
    loop {
        let turn = writer.take(session.logits(id)?, session.len(id)?)?;
        let mut goes_on = turn.step.is_none_or(|step| tell(Event::Step(step)));
        goes_on = goes_on && (turn.text.is_empty() || tell(Event::Piece { text: turn.text }));
        if !goes_on {
            return Ok(writer.into_sample(FinishReason::Cancelled));
        }
        if let Some(reason) = turn.finish {
            return Ok(writer.into_sample(reason));
        }
        if session.room(id)? == 0 {
            if !slides {
                let text = writer.flush();
                let told = text.is_empty() || tell(Event::Piece { text });
                return Ok(writer.into_sample(if told { FinishReason::Length } else { FinishReason::Cancelled }));
            }
            let (kept, dropped) = session.slide(id)?;
            if !tell(Event::Cropped { kept, dropped }) {
                return Ok(writer.into_sample(FinishReason::Cancelled));
            }
        }
        session.step(&[(id, turn.token)])?;
    }
}

/// How likely a continuation is: logarithms, because products of probabilities soon underflow (contract R197).
#[derive(Clone, Debug, PartialEq)]
pub struct Likelihood {
    /// Of each token: log P(token | everything before it), in nats.
    pub log_probs: Vec<f64>,
    /// Their sum: log P(continuation | prompt).
    pub total: f64,
}

/// The log-probability of `continuation` after `prompt`: any conditional of the model's factorisation (contract R194,
/// R195). Token by token through the session, so the logits are those that generating would see; softmax over the whole
/// vocabulary, in f64.
///
/// # Errors
/// If the prompt is empty (nothing predicts a first token), a token is not the model's, prompt and continuation but its
/// last token do not fit the context, no sequence is free, or the logits are not numbers.
pub fn score(session: &mut Session, prompt: &[u32], continuation: &[u32]) -> Result<Likelihood, Error> {
    session.check_tokens(&[prompt, continuation].concat())?;
    if prompt.is_empty() {
        return Err(Error::Empty);
    }
    let (held, more, context) = (prompt.len().min(session.context()), continuation.len(), session.context());
    if prompt.len() + more.saturating_sub(1) > context {
        let all = prompt.len() + more - 1;
        return Err(Error::Full { held, more: all - held, context });
    }
    let id = session.open()?;
    let log_probs = conditionals(session, id, prompt, continuation);
    session.close(id)?;
    let log_probs = log_probs?;
    Ok(Likelihood { total: log_probs.iter().sum(), log_probs })
}

fn conditionals(session: &mut Session, id: SequenceId, prompt: &[u32], tokens: &[u32]) -> Result<Vec<f64>, Error> {
    let mut log_probs = Vec::with_capacity(tokens.len());
    for (i, token) in tokens.iter().enumerate() {
        match i {
            0 => session.feed(id, prompt)?,
            _ => session.step(&[(id, tokens[i - 1])])?,
        }
        let logits = session.logits(id)?;
        log_probs.push(f64::from(logits[*token as usize]) - sample::log_sum_exp(logits)?);
    }
    Ok(log_probs)
}

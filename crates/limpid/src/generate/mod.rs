//! Text generation: tokens in, the next token out, again and again.
//!
//! [`Sampler`] chooses a token from logits. [`Writer`] turns tokens into text, and knows when to stop. An
//! [`Engine`] joins them with a model, for many requests; [`generate`] and [`score`] are one
//! request. A [`Decoder`](crate::engine::Decoder) is for those who decide themselves what comes next.
//!
//! Nothing here is random but by [`Sampler::seed`], and a sequence's logits do not depend on how its tokens were
//! fed or on which others there are. Read `writer` first.

mod error;
mod fill;
mod sample;
mod writer;

pub use crate::token_name::{TokenNameError, token_named};
pub use error::GenerateError;
pub(crate) use error::Result;
pub use fill::Filled;
pub(crate) use fill::fill;
pub use limpid_core::decode::DecodeError;
pub use sample::{Sampler, TokensBefore};
pub(crate) use sample::{likeliest, log_sum_exp};
pub use writer::{Candidate, Choice, FinishReason, GeneratedToken, Options, Overflow, Sample, Writer};

use crate::backend::BackendError;
use crate::config::{Config, Mask};
use crate::engine::{Engine, EngineEvent, EngineRequest, LogProbs, RequestId, Tell};
use crate::tokenizer::{self, Tokenizer};

/// The ids of a prompt as a model expects it: after the token that begins every text (BOS), if the tokenizer has one;
/// for a bidirectional model, between the tokens around every text (`[CLS]` and `[SEP]`).
///
/// # Errors
/// If the tokenizer has no ids for it.
pub fn prompt_ids(tokenizer: &Tokenizer, mask: Mask, text: &str) -> Result<Vec<u32>, tokenizer::TokenizerError> {
    match mask {
        Mask::Causal => Ok(tokenizer.bos().into_iter().chain(tokenizer.encode(text)?).collect()),
        _ => tokenizer.encode_for_model(text),
    }
}

/// Texts to begin with, of which a tokenizer may know one.
const EXAMPLES: [&str; 4] =
    ["Once upon a time, there was a little", "Once upon a time", "To be, or not to be", "the cat"];

/// A text that the tokenizer knows and that fits the model, or the one that its first tokens make.
pub fn example(tokenizer: &Tokenizer, config: &Config) -> Option<String> {
    let known = |text: &&str| {
        let ids = tokenizer.encode(text).ok()?;
        let fits = !ids.is_empty() && ids.len() <= config.context_length;
        (fits && tokenizer.unknown_pieces([*text], 1).is_empty()).then_some(())
    };
    let own = || tokenizer.decode(&(0..8.min(tokenizer.vocab_size() as u32)).collect::<Vec<_>>()).ok();
    EXAMPLES.iter().find(|text| known(text).is_some()).map(|text| text.to_string()).or_else(own)
}

/// The ids to generate from without a prompt: the token that begins or ends texts, or a newline; none if the tokenizer
/// has none of these.
pub fn start_ids(tokenizer: &Tokenizer) -> Option<Vec<u32>> {
    match tokenizer.bos().or(tokenizer.end_of_text()) {
        Some(end) => Some(vec![end]), // a text begins where another ends
        None => tokenizer.encode("\n").ok().filter(|ids| !ids.is_empty()),
    }
}

impl From<BackendError> for GenerateError {
    fn from(error: BackendError) -> GenerateError {
        DecodeError::from(error).into()
    }
}

/// How likely a continuation is: logarithms, because products of probabilities soon underflow.
#[derive(Clone, Debug, PartialEq)]
pub struct Likelihood {
    /// One for each token: log P(token | everything before it), in nats.
    pub log_probs: Vec<f64>,
    /// Their sum: log P(continuation | prompt).
    pub total: f64,
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
/// The prompt is not part of the result. Without a tokenizer there are tokens and no text. [`Engine::submit`] says what
/// happens at the end of the context. The engine has no other requests.
///
/// # Errors
/// As [`Engine::submit`], and if the logits are not numbers or the backend fails. The engine is then as before.
pub fn generate(
    engine: &mut Engine,
    prompt: &[u32],
    options: &Options,
    tell: &mut dyn FnMut(GenerateEvent) -> bool,
) -> Result<Sample> {
    let request =
        EngineRequest { prompt: prompt.to_vec(), options: options.clone(), log_probs: None, reuse: true, steps: None };
    alone(engine, request, &mut |event| match event {
        EngineEvent::Cropped { kept, dropped } => tell(GenerateEvent::Cropped { kept, dropped }),
        EngineEvent::Token { token: GeneratedToken { text, choice, .. }, .. } => {
            choice.is_none_or(|choice| tell(GenerateEvent::Choice(choice)))
                && (text.is_empty() || tell(GenerateEvent::Piece { text }))
        }
        _ => true,
    })
}

/// The log-probability of `continuation` after `prompt`: any conditional of the model's factorisation. The
/// softmax is over the whole vocabulary, in f64. The engine has no other requests.
///
/// # Errors
/// If the prompt is empty (nothing predicts a first token), a token is not in the vocabulary, the prompt and the
/// continuation without its last token do not fit the context, or the logits are not finite.
pub fn score(engine: &mut Engine, prompt: &[u32], continuation: &[u32]) -> Result<Likelihood> {
    if prompt.is_empty() {
        return Err(DecodeError::Empty.into());
    }
    let log_probs = Some(LogProbs { top: 0, prompt_from: Some(prompt.len()) });
    let options = Options { max_tokens: 0, overflow: Overflow::Stop, ..Options::default() };
    // to steps the continuation is what is generated, of which the last token is not run
    let steps = engine.place(prompt, (prompt.len() + continuation.len()).saturating_sub(1))?;
    let request = EngineRequest { prompt: [prompt, continuation].concat(), options, log_probs, reuse: true, steps };
    let mut found = vec![];
    alone(engine, request, &mut |event| {
        if let EngineEvent::Prompt { log_probs, .. } = event {
            found = log_probs.iter().map(|one| one.log_prob).collect();
        }
        true
    })?;
    Ok(Likelihood { total: found.iter().sum(), log_probs: found })
}

/// Runs one request to its end.
fn alone(engine: &mut Engine, request: EngineRequest, tell: Tell) -> Result<Sample> {
    let id = engine.submit(request)?;
    loop {
        if let Some(sample) = advance(engine, id, tell)? {
            return Ok(sample);
        }
    }
}

/// Runs the model once for the only request of an engine. Returns its sample when that is complete; after an error it
/// is cancelled.
pub(crate) fn advance(engine: &mut Engine, id: RequestId, tell: Tell) -> Result<Option<Sample>> {
    let mut done = None;
    let ran = engine.round(&mut |_, event| {
        match event {
            EngineEvent::Done(sample) => done = Some(Ok(sample)),
            EngineEvent::Failed(error) => done = Some(Err(error)),
            event => return tell(event),
        }
        true
    });
    if let Err(error) = ran {
        engine.cancel(&[id].into());
        return Err(error.into());
    }
    done.transpose()
}

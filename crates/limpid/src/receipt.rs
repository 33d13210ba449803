//! Receipts: what an answer was made from, and whether it is made again from the same.
//!
//! A [`Receipt`] has all that decides an answer: checksums of the model, the ids of the prompt and every option.
//! Nothing else does: not the machine, its instruction set or threads, nor who else asked. So [`replay`] makes the same
//! bytes, or names the first token that differs and what may have made it differ. The checksums (xxh3, 128 bits) find
//! what changed by accident. They prove nothing: whoever wants to can make other weights with the same checksum.
//!
//! A receipt is JSON: [`Receipt`] for people who write programs, `limpid replay` for the rest.

use crate::config::Axis;
use crate::error::{Error, Result};
use crate::generate::{FinishReason, GenerateEvent, Options, Overflow, Sample, Sampler};
pub use crate::hashes::ReceiptHashes;
use crate::hashes::hashed;
use crate::numeric::simd::Level;
use crate::{Interventions, Lm};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// The version of this library.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What an answer was made from. With the same model, [`replay`] makes it again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Receipt {
    /// The version of limpid.
    pub limpid: String,
    /// The model.
    #[serde(flatten)]
    pub model: ReceiptHashes,
    /// The step of the run that the weights are from, for people: nothing is made from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// What products multiply: `f32` or `bf16`, and ` unfused` where the instruction set has other last digits.
    pub precision: String,
    /// How keys and values are stored in the cache: `f32` or `bf16`.
    pub cache: String,
    /// What was asked.
    pub request: ReceiptRequest,
    /// What was answered.
    pub answer: ReceiptAnswer,
}

/// A prompt and how it is continued: [`Options`], by the same names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)] // as Options and Sampler have them
pub struct ReceiptRequest {
    /// The ids of the prompt, as they were run: a template and a date in it are of no account.
    pub prompt: Vec<u32>,
    pub max_tokens: usize,
    pub temperature: f64,
    pub top_k: usize,
    pub top_p: f64,
    pub min_p: f64,
    pub repetition_penalty: f64,
    pub presence_penalty: f64,
    pub frequency_penalty: f64,
    pub logit_bias: Vec<(u32, f32)>,
    pub seed: u64,
    pub sample: u64,
    pub stop: Vec<String>,
    pub stop_at_end_of_text: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub skip_special_tokens: bool,
    pub overflow: Overflow,
    /// What changed the runs, in the order in which it was given to the model; older receipts have none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub interventions: Vec<Interventions>,
}

impl ReceiptRequest {
    /// Of what was asked of a model without interventions.
    pub fn new(prompt: &[u32], options: &Options) -> ReceiptRequest {
        // whoever adds an option is asked here whether it changes answers
        let Options {
            max_tokens,
            sampler,
            sample,
            stop,
            stop_at_end_of_text,
            skip_special_tokens,
            overflow,
            logit_bias,
            trace: _,
        } = options;
        #[rustfmt::skip]
        let Sampler {
            temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty, seed,
        } = *sampler;
        ReceiptRequest {
            prompt: prompt.to_vec(),
            max_tokens: *max_tokens,
            temperature,
            top_k,
            top_p,
            min_p,
            repetition_penalty,
            presence_penalty,
            frequency_penalty,
            logit_bias: logit_bias.to_vec(),
            seed,
            sample: *sample,
            stop: stop.clone(),
            stop_at_end_of_text: *stop_at_end_of_text,
            skip_special_tokens: *skip_special_tokens,
            overflow: *overflow,
            interventions: vec![],
        }
    }

    /// How its prompt is continued.
    pub fn options(&self) -> Options {
        Options {
            max_tokens: self.max_tokens,
            sampler: Sampler {
                temperature: self.temperature,
                top_k: self.top_k,
                top_p: self.top_p,
                min_p: self.min_p,
                repetition_penalty: self.repetition_penalty,
                presence_penalty: self.presence_penalty,
                frequency_penalty: self.frequency_penalty,
                seed: self.seed,
            },
            sample: self.sample,
            stop: self.stop.clone(),
            stop_at_end_of_text: self.stop_at_end_of_text,
            skip_special_tokens: self.skip_special_tokens,
            overflow: self.overflow,
            logit_bias: self.logit_bias.as_slice().into(),
            trace: false,
        }
    }
}

/// An answer, its text as a checksum.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReceiptAnswer {
    /// Its tokens: [`Sample::tokens`].
    pub tokens: Vec<u32>,
    /// xxh3 of its text in UTF-8, 128 bits.
    pub text: String,
    /// SHA-256 of its text in UTF-8, 64 hexadecimal digits; older receipts have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// Why it ended.
    pub finish_reason: FinishReason,
}

impl ReceiptAnswer {
    fn new(sample: &Sample) -> ReceiptAnswer {
        let (text, sha256) = (hashed(|hash| hash.update(sample.text.as_bytes())), Some(sha256(&sample.text)));
        ReceiptAnswer { tokens: sample.tokens.clone(), text, sha256, finish_reason: sample.finish_reason }
    }

    /// Whether its text is this one.
    pub fn is_text(&self, text: &str) -> bool {
        let xxh3 = hashed(|hash| hash.update(text.as_bytes()));
        self.text == xxh3 && self.sha256.as_ref().is_none_or(|own| *own == sha256(text))
    }

    /// Whether it is the same; what one of them does not say is not compared.
    fn is(&self, other: &ReceiptAnswer) -> bool {
        let (sha256, others) = (self.sha256.as_ref(), other.sha256.as_ref());
        let same = (&self.tokens, &self.text, self.finish_reason) == (&other.tokens, &other.text, other.finish_reason);
        same && sha256.zip(others).is_none_or(|(own, other)| own == other)
    }
}

/// What a replay came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Replay {
    /// The same tokens, the same text, the same end.
    Same,
    /// Something else.
    Differs {
        /// The first token of the answer that differs, from 0. Where all are the same, how many there are: the text or
        /// the end differs.
        at: usize,
        /// The receipt's token there, if its answer had one.
        theirs: Option<u32>,
        /// The one that was made now, if there was one.
        ours: Option<u32>,
        /// What is not as it was, the likeliest cause first. If nothing is, the receipt was changed, or this is a fault
        /// of limpid.
        why: Vec<ReceiptCause>,
    },
}

/// Something that answers depend on, and that is not as it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReceiptCause {
    /// `weights`, `configuration`, `tokenizer`, `version`, `precision` or `cache`.
    pub what: &'static str,
    /// What the receipt has.
    pub theirs: String,
    /// What is there now.
    pub ours: String,
}

impl Receipt {
    /// The receipt of what `lm` answered, with its interventions. The first one of a model reads all of its weights
    /// ([`Lm::receipt_hashes`]).
    ///
    /// # Errors
    /// If a file cannot be read, or the model runs on a device that has other last digits on other machines.
    pub fn new(lm: &Lm, prompt: &[u32], options: &Options, sample: &Sample) -> Result<Receipt> {
        let device = lm.machine().device;
        if !device.is_exact() {
            return Err(Error::NoReceipt(device));
        }
        Ok(Receipt {
            limpid: VERSION.into(),
            model: lm.receipt_hashes()?.clone(),
            step: None,
            precision: precision(lm),
            cache: lm.machine().cache.to_string(),
            request: ReceiptRequest {
                interventions: lm.interventions().to_vec(),
                ..ReceiptRequest::new(prompt, options)
            },
            answer: ReceiptAnswer::new(sample),
        })
    }

    /// What of a model is not as the receipt says, the likeliest cause of another answer first.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn causes(&self, lm: &Lm) -> Result<Vec<ReceiptCause>> {
        let (theirs, ours) = (&self.model, lm.receipt_hashes()?);
        let text = |hash: &Option<String>| hash.clone().unwrap_or_else(|| "none".into());
        let all = [
            ("weights", theirs.weights.clone(), ours.weights.clone()),
            ("configuration", theirs.config.clone(), ours.config.clone()),
            ("tokenizer", text(&theirs.tokenizer), text(&ours.tokenizer)),
            ("version", self.limpid.clone(), VERSION.into()),
            ("precision", self.precision.clone(), precision(lm)),
            ("cache", self.cache.clone(), lm.machine().cache.to_string()),
        ];
        let differ = all.into_iter().filter(|(_, theirs, ours)| theirs != ours);
        Ok(differ.map(|(what, theirs, ours)| ReceiptCause { what, theirs, ours }).collect())
    }
}

/// Makes the answer of a receipt again, with the receipt's interventions in place of the model's. One that was
/// cancelled is made as far as it came.
///
/// ```
/// use limpid::generate::Options;
/// use limpid::receipt::{Receipt, Replay, replay};
/// # use limpid::{Training, train::{Control, Recipe}};
/// # let recipe = Recipe { steps: 2, batch_size: 2, context: 16, ..Recipe::preset("nano")? };
/// # let text = "to be or not to be, that is the question. ".repeat(40);
/// # let lm = Training::preset("nano")?.recipe(recipe).text(text).run()?.lm;
///
/// let (prompt, options) = (lm.encode("to be")?, Options { max_tokens: 8, ..Options::default() });
/// let sample = lm.generate("to be", &options)?;
/// let receipt = serde_json::to_string(&Receipt::new(&lm, &prompt, &options, &sample)?)?;
///
/// assert_eq!(replay(&lm, &serde_json::from_str(&receipt)?)?, Replay::Same); // on any machine
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// If the model cannot continue the prompt ([`crate::generate::generate`]), or an intervention does not fit it: it is
/// another one, see [`Receipt::causes`].
pub fn replay(lm: &Lm, receipt: &Receipt) -> Result<Replay> {
    let (theirs, mut options) = (&receipt.answer, receipt.request.options());
    let given = &receipt.request.interventions;
    let other = (lm.interventions() != given).then(|| lm.without_interventions());
    // receipts have the numbers of the files that steps named, so none is read
    let budget = Arc::default();
    let other =
        other.map(|plain| given.iter().try_fold(plain, |lm, one| lm.intervene_within(one, &budget))).transpose()?;
    let lm = other.as_ref().unwrap_or(lm);
    if given.is_empty() {
        // one token more than the receipt has is another answer, whatever would follow it; interventions may name any
        // position to come
        options.max_tokens = options.max_tokens.min(theirs.tokens.len() + 1);
    }
    let made = |options: &Options, most: usize| -> Result<ReceiptAnswer> {
        let mut chosen = 0;
        let sample = lm.generate_events(&receipt.request.prompt, options, &mut |event| {
            chosen += usize::from(matches!(event, GenerateEvent::Choice(_)));
            chosen < most
        })?;
        Ok(ReceiptAnswer::new(&sample))
    };
    let ours = if theirs.finish_reason == FinishReason::Cancelled {
        // its text has what might have begun a stop text only if the next token would have ended it
        let most = theirs.tokens.len();
        match made(&Options { max_tokens: most, ..options.clone() }, usize::MAX) {
            Ok(flushed) if flushed.text == theirs.text => {
                ReceiptAnswer { finish_reason: theirs.finish_reason, ..flushed }
            }
            _ => made(&Options { trace: true, ..options }, most)?,
        }
    } else {
        made(&options, usize::MAX)?
    };
    if ours.is(theirs) {
        return Ok(Replay::Same);
    }
    let at = ours.tokens.iter().zip(&theirs.tokens).take_while(|(ours, theirs)| ours == theirs).count();
    let (theirs, ours) = (theirs.tokens.get(at).copied(), ours.tokens.get(at).copied());
    Ok(Replay::Differs { at, theirs, ours, why: receipt.causes(lm)? })
}

fn precision(lm: &Lm) -> String {
    let unfused = if lm.machine().level == Level::UNFUSED { " unfused" } else { "" };
    format!("{}{unfused}", lm.machine().precision.name())
}

/// The SHA-256 of a text, in digits.
pub fn sha256(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

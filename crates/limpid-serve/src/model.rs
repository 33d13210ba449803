//! What is served.

use limpid::checkpoint::Checkpoint;
use limpid::config::Mask;
use limpid::data::template::{ChatTemplate, TemplateTokens};
use limpid::engine::{Engine, EngineLimits};
use limpid::{Error, Lm, Machine};
use serde_json::json;
use sha2::{Digest, Sha256};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// A model as requests see it. Another checkpoint is another one.
#[derive(Debug)]
pub struct ServedModel {
    /// Its name in requests and answers.
    pub id: String,
    /// The model.
    pub lm: Arc<Lm>,
    /// When it was opened, in seconds since 1970.
    pub created: u64,
    /// The step of training it was saved at, if it says so.
    pub step: Option<u64>,
    /// Which model: `limpid-<8 digits>-s<step>`, of the hashes that receipts have and the template. Equal ones answer alike.
    pub fingerprint: String,
    /// The template of conversations, if there is one.
    pub template: Option<ChatTemplate>,
}

/// The model that is served, as long as requests of it may come. Its engine ends when nobody holds this and its sequences have ended;
/// an answer that is still being read holds the model alone.
pub type ServedLease = Arc<Arc<ServedModel>>;

/// How a checkpoint is served.
#[derive(Clone, Debug)]
pub struct ServedAs {
    /// Its name in requests and answers.
    pub id: String,
    /// What it runs on.
    pub machine: Machine,
    /// A template of conversations instead of its own, in Jinja.
    pub template: Option<String>,
}

impl ServedModel {
    /// Whether it continues texts: it is causal, with a head and a tokenizer. Other models can be looked into.
    pub fn continues(&self) -> bool {
        let config = self.lm.config();
        config.mask == Mask::Causal && config.lm_head && self.lm.tokenizer().is_ok()
    }

    /// An engine for its requests, with room for at least one whole context.
    ///
    /// # Errors
    /// As [`Lm::engine`].
    pub fn engine(&self, limits: &EngineLimits) -> Result<Engine, Error> {
        self.lm.engine(&limits.with_whole_context(self.lm.config()))
    }

    /// Opens a checkpoint to be served.
    ///
    /// # Errors
    /// If a tensor cannot be read, or its template of conversations is none.
    pub fn new(checkpoint: Checkpoint, how: &ServedAs) -> Result<ServedModel, Error> {
        let step = checkpoint.store().fact("step").and_then(|step| step.parse().ok());
        let lm = Lm::from(checkpoint).with_machine(how.machine.clone());
        let template = match (&how.template, lm.tokenizer()) {
            (Some(source), Ok(tokenizer)) => Some(ChatTemplate::new(source, TemplateTokens::of(tokenizer))?),
            _ => lm.template()?,
        };
        let source = template.as_ref().map(ChatTemplate::source);
        let decides = match how.machine.device.is_exact() {
            true => json!([lm.receipt_hashes()?, source]),
            // with other last digits, other answers
            false => json!([lm.receipt_hashes()?, source, how.machine.device.to_string()]),
        };
        let digits = Sha256::digest(decides.to_string());
        let digits: String = digits[..4].iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(ServedModel {
            id: how.id.clone(),
            created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            step,
            fingerprint: match step {
                Some(step) => format!("limpid-{digits}-s{step}"),
                None => format!("limpid-{digits}"),
            },
            template,
            lm: Arc::new(lm),
        })
    }
}

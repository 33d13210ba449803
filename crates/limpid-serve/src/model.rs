//! What is served.

use crate::options::ServeError;
use limpid::checkpoint::Checkpoint;
use limpid::config::Mask;
use limpid::data::chat::{Message, Role};
use limpid::data::template::{ChatTemplate, TemplateTokens};
use limpid::engine::{Engine, EngineLimits};
use limpid::{Error, Lm, Machine};
use serde_json::json;
use sha2::{Digest, Sha256};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// A model as requests see it. Each checkpoint is a model of its own.
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
    /// `limpid-<8 digits>-s<step>`, made from the hashes that receipts have and from the template. Models with equal
    /// fingerprints give equal answers.
    pub fingerprint: String,
    /// The chat template, if there is one.
    pub template: Option<ChatTemplate>,
}

/// The time, in seconds since 1970.
pub(crate) fn seconds_since_1970() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The model that is served, for as long as requests for it may come. Its engine ends when nobody holds the lease and
/// the engine's sequences have ended. An answer that is still being read holds the model only.
pub type ServedLease = Arc<Arc<ServedModel>>;

/// How a checkpoint is served.
#[derive(Clone, Debug)]
pub struct ServedAs {
    /// Its name in requests and answers.
    pub id: String,
    /// What it runs on.
    pub machine: Machine,
    /// A chat template to use instead of the model's own, in Jinja.
    pub template: Option<String>,
}

impl ServedModel {
    /// Whether it can be served.
    pub(crate) fn check(&self) -> Result<(), ServeError> {
        if self.lm.config().mask != Mask::Causal {
            return Err(ServeError::NotCausal);
        }
        if self.id.is_empty() {
            return Err(ServeError::Unnamed);
        }
        self.lm.tokenizer().map_err(|_| ServeError::NoTokenizer)?;
        if let Some(template) = &self.template {
            let hello = Message { role: Role::User, content: "Hello".into() };
            template.at(self.created.cast_signed()).render(&[hello], true).map_err(ServeError::Template)?;
        }
        Ok(())
    }

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
    /// If a tensor cannot be read, or the chat template is not valid.
    pub fn new(checkpoint: Checkpoint, how: &ServedAs) -> Result<ServedModel, Error> {
        let step = checkpoint.store().fact("step").and_then(|step| step.parse().ok());
        let lm = Lm::from(checkpoint).with_machine(how.machine.clone());
        let template = match (&how.template, lm.tokenizer()) {
            (Some(source), Ok(tokenizer)) => Some(ChatTemplate::new(source, TemplateTokens::new(tokenizer))?),
            _ => lm.template()?,
        };
        let source = template.as_ref().map(ChatTemplate::source);
        let decides = if how.machine.device.is_exact() {
            json!([lm.receipt_hashes()?, source])
        } else {
            // other last digits give other answers
            json!([lm.receipt_hashes()?, source, how.machine.device.to_string()])
        };
        let digits = Sha256::digest(decides.to_string());
        let digits: String = digits[..4].iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(ServedModel {
            id: how.id.clone(),
            created: seconds_since_1970(),
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

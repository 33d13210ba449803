//! What is served.

use limpid::checkpoint::Checkpoint;
use limpid::data::template::{ChatTemplate, TemplateTokens};
use limpid::ops::linear::Precision;
use limpid::{Error, Lm};
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
    /// Which weights: `limpid-<8 digits>-s<step>`, the first digits of the hash that receipts have.
    pub fingerprint: String,
    /// The template of conversations, if there is one.
    pub template: Option<ChatTemplate>,
}

/// How a checkpoint is served.
#[derive(Clone, Debug)]
pub struct ServedAs {
    /// Its name in requests and answers.
    pub id: String,
    /// Threads that it runs on.
    pub threads: usize,
    /// What its products multiply.
    pub precision: Precision,
    /// Type of the KV cache.
    pub cache: Precision,
    /// A template of conversations instead of its own, in Jinja.
    pub template: Option<String>,
}

impl ServedModel {
    /// Opens a checkpoint to be served.
    ///
    /// # Errors
    /// If a tensor cannot be read, or its template of conversations is none.
    pub fn new(checkpoint: Checkpoint, how: &ServedAs) -> Result<ServedModel, Error> {
        let step = checkpoint.store().fact("step").and_then(|step| step.parse().ok());
        let lm = Lm::from(checkpoint).with_threads(how.threads).with_precision(how.precision).with_cache(how.cache);
        let template = match (&how.template, lm.tokenizer()) {
            (Some(source), Ok(tokenizer)) => Some(ChatTemplate::new(source, TemplateTokens::of(tokenizer))?),
            _ => lm.template()?,
        };
        let weights = &lm.receipt_hashes()?.weights[..8];
        Ok(ServedModel {
            id: how.id.clone(),
            created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            step,
            fingerprint: match step {
                Some(step) => format!("limpid-{weights}-s{step}"),
                None => format!("limpid-{weights}"),
            },
            template,
            lm: Arc::new(lm),
        })
    }
}

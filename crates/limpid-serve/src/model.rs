//! What is served.

use limpid::Lm;
use limpid::data::template::ChatTemplate;
use std::sync::Arc;

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
    /// Which weights: `limpid-<8 digits>-s<step>`.
    pub fingerprint: String,
    /// The template of conversations, if there is one.
    pub template: Option<ChatTemplate>,
}

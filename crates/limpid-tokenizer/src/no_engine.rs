//! In place of `engine` without the feature `huggingface`: there is nothing that runs other programs' tokenizers.

use super::{TextPart, TokenizerError, spec::Spec};

/// There is none.
pub(super) enum Engines {}

impl Engines {
    pub(super) fn new(kind: &str, _: Spec, _: &[Option<String>]) -> Result<Engines, TokenizerError> {
        Err(TokenizerError::Feature { what: format!("this {kind} tokenizer"), feature: "huggingface" })
    }

    pub(super) fn encode(&self, _: &str, _: bool) -> Result<Vec<u32>, TokenizerError> {
        match *self {}
    }

    pub(super) fn encode_parts(&self, _: &[TextPart]) -> Result<Vec<u32>, TokenizerError> {
        match *self {}
    }
}

//! Checksums of a model, for receipts.

use crate::config::{Config, Dropout};
use crate::error::Result;
use crate::model::{Mode, Model, Param};
use crate::tokenizer::Tokenizer;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use xxhash_rust::xxh3::Xxh3;

/// Checksums of a model: 32 hexadecimal digits each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceiptHashes {
    /// The configuration, without dropout.
    pub config: String,
    /// Name, shape and f32 values of every parameter, in the model's order.
    pub weights: String,
    /// Each token's text, and which are special; none without a tokenizer.
    pub tokenizer: Option<String>,
}

impl ReceiptHashes {
    /// Those of a model with these values.
    pub(crate) fn new<'a>(
        config: &Config,
        tokenizer: Option<&Tokenizer>,
        values: impl Fn(&Model, &Param) -> Result<Cow<'a, [f32]>>,
    ) -> Result<ReceiptHashes> {
        let model = Model::new(config, Mode::Inspect { batch: 1, context: 1 })?;
        let mut weights = Xxh3::new();
        let mut bytes = vec![];
        for param in &model.params {
            weights.update(param.name.as_bytes());
            param.shape().iter().for_each(|n| weights.update(&(*n as u64).to_le_bytes()));
            for values in values(&model, param)?.chunks(1 << 14) {
                bytes.clear();
                bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
                weights.update(&bytes);
            }
        }
        let tokenizer = match tokenizer {
            None => None,
            Some(tokenizer) => {
                let ids: Vec<u32> = (0..tokenizer.vocab_size() as u32).collect();
                let (pieces, specials) = (tokenizer.pieces(&ids)?, tokenizer.specials());
                let ends = [tokenizer.bos(), tokenizer.end_of_text(), tokenizer.end_of_turn()];
                Some(hashed(|hash| {
                    pieces.iter().for_each(|piece| {
                        hash.update(&(piece.len() as u64).to_le_bytes());
                        hash.update(piece.as_bytes());
                    });
                    specials.iter().for_each(|(_, id)| hash.update(&id.to_le_bytes()));
                    ends.iter().for_each(|id| hash.update(&id.map_or(u64::MAX, u64::from).to_le_bytes()));
                    tokenizer.more_ends().iter().for_each(|id| hash.update(&id.to_le_bytes()));
                }))
            }
        };
        // dropout is a setting of training, which not every format of files keeps
        let config = Config { dropout: Dropout::NONE, ..config.clone() };
        let config = hashed(|hash| hash.update(config.to_json().as_bytes()));
        Ok(ReceiptHashes { config, weights: format!("{:032x}", weights.digest128()), tokenizer })
    }
}

/// The checksum of what is put into it.
pub(crate) fn hashed(of: impl FnOnce(&mut Xxh3)) -> String {
    let mut hash = Xxh3::new();
    of(&mut hash);
    format!("{:032x}", hash.digest128())
}

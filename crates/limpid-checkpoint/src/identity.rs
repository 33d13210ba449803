//! Which model an adapter was made for: what `base.json` says of it, and whether another is the same. Formats and types
//! differ, so a model is identified by what conversion keeps: its sizes, gains and biases, and the signs of its
//! weights.

use crate::adapter::{Base, OWN_NAMES, names_of};
use crate::error::Result;
use crate::formats::links::Dialect;
use crate::formats::{changes_nothing, huggingface};
use crate::open::Checkpoint;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use xxhash_rust::xxh3::Xxh3;

impl Base {
    /// What an adapter says of the model that it is trained on, which is at `path`.
    ///
    /// # Errors
    /// If a tensor has a type that limpid cannot read.
    pub fn new(path: PathBuf, model: &Checkpoint) -> Result<Base> {
        let (fingerprint, weights) = (model.fingerprint()?, Some(model.weights_sum()?));
        let names = model.dialect_of_adapters().model_type().unwrap_or(OWN_NAMES);
        Ok(Base { path, fingerprint, weights, stored: model.stored_types(), names: Some(names.into()) })
    }

    /// Whether `model` is this one, as far as it can be told.
    ///
    /// # Errors
    /// As [`Base::new`].
    pub fn is(&self, model: &Checkpoint) -> Result<bool> {
        if model.fingerprint()? != self.fingerprint {
            return Ok(false);
        }
        let Some([sum, signs]) = &self.weights else { return Ok(true) };
        let [found_sum, found_signs] = model.weights_sum()?;
        let same_types = self.stored == model.stored_types();
        Ok(*sum == found_sum || !same_types && have_like_signs(signs, &found_signs))
    }
}

/// Whether three of four signs are the same: of unrelated matrices half are, of a quantised one and its original nearly
/// all.
fn have_like_signs(a: &str, b: &str) -> bool {
    let others = |(a, b): (char, char)| Some((a.to_digit(16)? ^ b.to_digit(16)?).count_ones() as usize);
    let differ: Option<usize> = a.chars().zip(b.chars()).map(others).sum();
    a.len() == b.len() && differ.is_some_and(|differ| differ < a.len())
}

impl Checkpoint {
    /// Whose names an adapter of this model has: those of the family as which transformers opens it, or ours where
    /// there is none.
    pub(crate) fn dialect_of_adapters(&self) -> Arc<dyn Dialect> {
        if self.dialect.model_type().is_some() {
            return Arc::clone(&self.dialect);
        }
        let origin = self.carried.origin().map(|(text, _)| text);
        names_of(huggingface::express(&self.config, origin).ok().map(|(family, ..)| family))
    }

    /// Identifies this model in every format and type: a checksum of its sizes, and of the gains and biases that are
    /// not all 0 or all 1. (These are few, and every format keeps them exactly.) Some models have none:
    /// [`Checkpoint::weights_sum`] is of the others.
    ///
    /// # Errors
    /// If a tensor has a type that limpid cannot read.
    pub fn fingerprint(&self) -> Result<String> {
        let (model, c) = (self.outline()?, &self.config);
        let mut hash = Xxh3::new();
        let sizes =
            [c.vocab_size, c.context_length, c.d_model, c.n_layer, c.d_ff, c.heads().n_head, c.heads().n_kv_head];
        sizes.iter().for_each(|n| hash.update(&(*n as u64).to_le_bytes()));
        for param in model.params.iter().filter(|p| !p.is_matrix()) {
            let values = self.values_of_base(&model, param)?;
            if !values.iter().all(|v| *v == 0.0) && !values.iter().all(|v| *v == 1.0) {
                values.iter().for_each(|v| hash.update(&v.to_le_bytes()));
            }
        }
        Ok(format!("{:016x}", hash.digest()))
    }

    /// Identifies the matrices, without what adapters add to them: a checksum of all values, and the signs of 64 of
    /// each in hexadecimal digits, which rounding hardly changes. Those that change nothing, which a format may add,
    /// are left out.
    ///
    /// # Errors
    /// If a tensor has a type that limpid cannot read.
    pub fn weights_sum(&self) -> Result<[String; 2]> {
        let model = self.outline()?;
        let (mut hash, mut signs) = (Xxh3::new(), String::new());
        for param in model.params.iter().filter(|p| p.is_matrix()) {
            let values = self.values_of_base(&model, param)?;
            if changes_nothing(param, &values) {
                continue;
            }
            match bytemuck::try_cast_slice(&values) {
                Ok(bytes) if cfg!(target_endian = "little") => hash.update(bytes),
                _ => values.iter().for_each(|v| hash.update(&v.to_le_bytes())),
            }
            let negative = |i: usize| u64::from(values[i * values.len() / 64] < 0.0);
            signs += &format!("{:016x}", (0..64).fold(0, |bits, i| bits << 1 | negative(i)));
        }
        Ok([format!("{:016x}", hash.digest()), signs])
    }

    /// The types in which its matrices are stored, which decide what their values are.
    fn stored_types(&self) -> String {
        let tensors = self.names.values().filter_map(|name| self.store.get(name));
        let types = tensors.filter(|tensor| tensor.shape.len() > 1).map(|tensor| tensor.dtype.to_string());
        types.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(" ")
    }
}

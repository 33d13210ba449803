//! A dense tokenizer: a tokenizer reduced to the ids that a text uses, numbered from 0, so that the model needs no rows
//! for the others.
//!
//! Text is cut as ever, and ids are translated at the edge ([`Remap`]).

use std::{borrow::Cow, collections::BTreeSet};

use super::{Remap, Tokenizer, TokenizerError};

/// The ids of another tokenizer that a text uses, numbered from 0 in their own order.
#[derive(Clone, Debug, PartialEq)]
pub struct DenseTokenizer {
    full: Tokenizer,
    ids: Remap,
}

impl DenseTokenizer {
    /// The ids `ids` of the tokenizer `full`.
    pub(super) fn new(full: Tokenizer, ids: Remap) -> Result<DenseTokenizer, TokenizerError> {
        let part = |expected, found: String| TokenizerError::Part { part: "dense ids".into(), expected, found };
        if let Tokenizer::Dense(_) = full {
            return Err(part("ids of a tokenizer that is not dense itself", "ids of a dense one".into()));
        }
        full.check(ids.used())?;
        if ids.is_empty() {
            return Err(part("at least one id", "none".into()));
        }
        Ok(DenseTokenizer { full, ids })
    }

    /// The ids of `texts`, which are encoded on `threads` threads; if there are several, also the ids that may stand
    /// between them; the ids that a model expects round a text; and the `special` tokens.
    pub(super) fn for_texts(
        full: Tokenizer,
        texts: &[Cow<str>],
        special: &[String],
        threads: usize,
    ) -> Result<DenseTokenizer, TokenizerError> {
        let mut used: BTreeSet<u32> = full.encode_for_model("")?.into_iter().collect();
        used.extend(special.iter().filter_map(|name| full.special(name)));
        let end = full.end_of_text();
        for text in texts {
            used.extend(full.encode_on(threads, text, true)?);
            // a newline that follows a text may be part of its last token; words may have none
            if texts.len() > 1 && end.is_none() {
                used.extend(full.encode_on(threads, &format!("{text}\n"), true).unwrap_or_default());
            }
        }
        used.extend(end.filter(|_| texts.len() > 1));
        DenseTokenizer::new(full, Remap::from(used.into_iter().collect::<Vec<_>>()))
    }

    /// The tokenizer with all of its ids, which cuts the text.
    pub fn full(&self) -> &Tokenizer {
        &self.full
    }

    /// Which of its ids are numbered.
    pub fn ids(&self) -> &Remap {
        &self.ids
    }

    /// Its ids as dense ones.
    pub(super) fn dense(&self, ids: &[u32]) -> Result<Vec<u32>, TokenizerError> {
        let one = |&id: &u32| match self.one(id) {
            Some(id) => Ok(id),
            None => Err(TokenizerError::NotDense {
                piece: self.full.piece(id)?,
                id,
                of: self.full.name(),
                vocab_size: self.ids.len(),
            }),
        };
        ids.iter().map(one).collect()
    }

    /// The same of one, if it has a number.
    pub(super) fn one(&self, id: u32) -> Option<u32> {
        self.ids.place(id)
    }

    /// Dense ids, which have been checked, as its own.
    pub(super) fn sparse(&self, ids: &[u32]) -> Vec<u32> {
        ids.iter().map(|id| self.ids.used()[*id as usize]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dense(texts: &[&str], special: &[&str]) -> Tokenizer {
        let special: Vec<String> = special.iter().map(ToString::to_string).collect();
        let texts = || texts.iter().map(|text| (*text).into()).collect();
        Tokenizer::for_texts("cl100k_base:dense", &texts, &special, 2).unwrap()
    }

    #[test]
    fn a_text_comes_back_from_dense_ids() {
        let text = "Clarify – clearly, clearly 🙂";
        let (whole, dense) = (Tokenizer::named("cl100k_base").unwrap(), dense(&[text], &[]));
        let (sparse, ids) = (whole.encode(text).unwrap(), dense.encode(text).unwrap());
        let mut used = sparse.clone();
        used.sort_unstable();
        used.dedup();
        assert_eq!((dense.name(), dense.vocab_size()), ("dense", used.len()));
        assert_eq!(ids.iter().map(|id| used[*id as usize]).collect::<Vec<_>>(), sparse);
        assert_eq!(dense.encode_on(3, text, true).unwrap(), ids);
        assert_eq!(dense.encode_ordinary(text).unwrap(), ids);
        assert_eq!(dense.decode(&ids).unwrap(), text);
        assert_eq!(dense.pieces(&ids).unwrap(), whole.pieces(&sparse).unwrap());
        let mut stream = crate::TextStream::new(&dense);
        let streamed: String = ids.iter().map(|id| stream.push(*id).unwrap()).collect();
        assert_eq!(streamed + &stream.finish(), text);
        let size = dense.vocab_size() as u32;
        assert!(dense.decode(&[size]).is_err() && crate::TextStream::new(&dense).push(size).is_err());
        // what the text lacks has no number, and is named
        let error = dense.encode(" clearly jumps").unwrap_err().to_string();
        assert!(error.contains("\" jumps\"") && error.contains("cl100k_base"), "{error}");
        let saved = Tokenizer::from_json(&dense.to_json()).unwrap();
        assert!(saved == dense && saved.encode(text).unwrap() == ids);
    }

    #[test]
    fn what_stands_between_texts_has_a_number() {
        assert_eq!(dense(&["a b"], &[]).end_of_text(), None);
        let two = dense(&["a b", "b a"], &[]);
        let end = two.end_of_text().unwrap();
        assert_eq!((two.piece(end).unwrap().as_str(), two.specials()), ("<|endoftext|>", vec![("<|endoftext|>", end)]));
        assert_eq!(two.decode(&[end]).unwrap(), "<|endoftext|>");
        assert!(dense(&["a"], &["<|endofprompt|>"]).special("<|endofprompt|>").is_some());
        // words have no token that ends a text: a newline stands between them
        let texts = || vec!["a b".into(), "\n".into(), "b a".into()];
        let words = Tokenizer::for_texts("word:dense", &texts, &[], 1).unwrap();
        assert!(words.encode("b a\n").is_ok());
    }

    #[test]
    fn what_is_wrong_is_said() {
        let refusal = |text: &str| Tokenizer::from_json(text).unwrap_err().to_string();
        let file = |of: &str, ids: &str| format!(r#"{{"limpid_dense":{{"of":{of},"ids":{ids}}}}}"#);
        let gpt2 = r#"{"limpid_encoding":"gpt2"}"#;
        for (text, says) in [
            (file(gpt2, "[]"), "at least one id"),
            (file(gpt2, "[50257]"), "id 50257"),
            (file(gpt2, "[-1]"), "not a tokenizer.json"),
            (file(r#"{"limpid_encoding":"gpt3"}"#, "[1]"), "did you mean \"gpt2\"?"),
            (file(&file(gpt2, "[1]"), "[0]"), "not dense itself"),
            (r#"{"limpid_dense":{"ids":[1]}}"#.into(), "missing field `of`"),
        ] {
            assert!(refusal(&text).contains(says), "{text}: {}", refusal(&text));
        }
        // other programs' files have no place for it
        let dense = dense(&["a b", "b a"], &[]);
        let said = [dense.to_tiktoken().err(), dense.to_llmc().err(), dense.table().err()];
        assert!(
            said.iter().all(|error| error.as_ref().is_some_and(|error| error.to_string().contains("dense"))),
            "{said:?}"
        );
        let folder = std::env::temp_dir();
        assert!(dense.export(&folder, 8).unwrap_err().to_string().contains("dense"));
        assert!(dense.export_json(&folder.join("limpid-dense.json")).unwrap_err().to_string().contains("dense"));
        // without a text there is nothing to number
        assert!(Tokenizer::known("gpt2:dense").unwrap_err().to_string().contains("gpt2"));
    }
}

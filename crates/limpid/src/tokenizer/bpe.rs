//! OpenAI's byte-pair encodings, by name: the ranks come with the crate `tiktoken-rs`, nothing is downloaded.
//!
//! An [`Encoding`] is only a name; its tables are built at first use (23 to 95 ms) and then shared by the whole process.
//! What it adds to the crate: ids that mean nothing are survived, and failures are errors instead of panics.

use std::collections::HashSet;

use tiktoken_rs::CoreBPE;

use super::Error;

/// One of OpenAI's byte-pair encodings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// `gpt2`, also called `r50k_base`: GPT-2 and GPT-3, 50,257 ids.
    Gpt2,
    /// `cl100k_base`: GPT-3.5 and GPT-4, 100,277 ids, of which 16 are unused.
    Cl100k,
    /// `o200k_base`: GPT-4o and later, 200,019 ids, of which 19 are unused.
    O200k,
}

const END_OF_TEXT: &str = "<|endoftext|>";

impl Encoding {
    /// The encoding of that name.
    pub fn named(name: &str) -> Option<Encoding> {
        match name {
            "gpt2" | "r50k_base" => Some(Encoding::Gpt2),
            "cl100k_base" => Some(Encoding::Cl100k),
            "o200k_base" => Some(Encoding::O200k),
            _ => None,
        }
    }

    /// The name: `gpt2`, `cl100k_base` or `o200k_base`.
    pub fn name(self) -> &'static str {
        match self {
            Encoding::Gpt2 => "gpt2",
            Encoding::Cl100k => "cl100k_base",
            Encoding::O200k => "o200k_base",
        }
    }

    /// V: the largest id and one. Known without building the tables.
    pub fn vocab_size(self) -> usize {
        self.specials().last().map_or(0, |&(_, id)| id as usize + 1)
    }

    /// The special tokens and their ids, ascending. The last one has the encoding's largest id.
    pub fn specials(self) -> &'static [(&'static str, u32)] {
        match self {
            Encoding::Gpt2 => &[(END_OF_TEXT, 50_256)],
            Encoding::Cl100k => &[
                (END_OF_TEXT, 100_257),
                ("<|fim_prefix|>", 100_258),
                ("<|fim_middle|>", 100_259),
                ("<|fim_suffix|>", 100_260),
                ("<|endofprompt|>", 100_276),
            ],
            Encoding::O200k => &[(END_OF_TEXT, 199_999), ("<|endofprompt|>", 200_018)],
        }
    }

    pub(super) fn encode(self, text: &str, specials: bool) -> Result<Vec<u32>, Error> {
        let known = if specials { self.specials() } else { &[] };
        let known: HashSet<&str> = known.iter().map(|&(name, _)| name).collect();
        let (ids, _) = self
            .core()
            .encode(text, &known)
            .map_err(|error| Error::Split { name: self.name(), detail: error.message })?;
        Ok(ids)
    }

    /// The bytes of `ids`, all of which are below V. An unused id gives the bytes of U+FFFD.
    pub(super) fn bytes(self, ids: &[u32]) -> Vec<u8> {
        self.core().decode_bytes(ids).unwrap_or_else(|_| {
            let one = |&id| self.core().decode_bytes(&[id]).unwrap_or_else(|_| "\u{fffd}".into());
            ids.iter().flat_map(one).collect()
        })
    }

    /// Whether no text has this id.
    pub(super) fn unused(self, id: u32) -> bool {
        self.core().decode_bytes(&[id]).is_err()
    }

    fn core(self) -> &'static CoreBPE {
        match self {
            Encoding::Gpt2 => tiktoken_rs::r50k_base_singleton(),
            Encoding::Cl100k => tiktoken_rs::cl100k_base_singleton(),
            Encoding::O200k => tiktoken_rs::o200k_base_singleton(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stated_facts_are_those_of_the_tables() {
        for (encoding, unused) in [(Encoding::Gpt2, 0), (Encoding::Cl100k, 16), (Encoding::O200k, 19)] {
            let ids = 0..encoding.vocab_size() as u32;
            assert_eq!(ids.filter(|&id| encoding.unused(id)).count(), unused, "{}", encoding.name());
            assert!(encoding.unused(encoding.vocab_size() as u32));
            assert_eq!(encoding.core().special_tokens().len(), encoding.specials().len());
            for &(name, id) in encoding.specials() {
                assert_eq!(encoding.encode(name, true).unwrap(), [id]);
                assert_eq!(encoding.bytes(&[id]), name.as_bytes());
                assert!(encoding.encode(name, false).unwrap().len() > 1);
            }
        }
    }

    #[test]
    fn a_text_that_cannot_be_split_is_an_error() {
        let text = " ".repeat(2_000_000) + "a";
        let error = Encoding::Gpt2.encode(&text, true).unwrap_err().to_string();
        assert!(error.starts_with("gpt2 cannot split this text"), "{error}");
    }
}

//! OpenAI's byte-pair encodings, by name: the ranks come with the crate `tiktoken-rs`, nothing is downloaded.
//!
//! An [`Encoding`] is only a name; its tables are built at first use (23 to 95 ms) and then shared by the whole process.
//! Only the tables are the crate's: text is cut and joined by `split` and `ranks`, several times as fast.

use std::sync::OnceLock;

use tiktoken_rs::CoreBPE;

use super::{
    pairs::{Marker, Pairs},
    ranks::Ranks,
    split::Split,
};

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

    /// How it cuts text.
    pub(super) fn split(self) -> Split {
        match self {
            Encoding::Gpt2 => Split::Gpt2,
            Encoding::Cl100k => Split::Gpt4,
            Encoding::O200k => Split::Gpt4o,
        }
    }

    pub(super) fn encode(self, text: &str, specials: bool, threads: usize) -> Vec<u32> {
        self.pairs().encode(text, specials, threads)
    }

    pub(super) fn pairs(self) -> &'static Pairs {
        static PAIRS: [OnceLock<Pairs>; 3] = [const { OnceLock::new() }; 3];
        PAIRS[self as usize].get_or_init(|| {
            let special = |id: u32| self.specials().iter().any(|&(_, special)| special == id);
            let ids = (0..self.vocab_size() as u32).filter(|&id| !special(id));
            let tokens: Vec<_> = ids.filter_map(|id| Some((self.core().decode_bytes(&[id]).ok()?, id))).collect();
            let ranks = Ranks::new(tokens.iter().map(|(token, id)| (token.as_slice(), *id)));
            let marker = |&(text, id): &(&str, u32)| Marker { text: text.into(), id, special: true };
            Pairs::new(self.split(), ranks.expect("all bytes are there"), self.specials().iter().map(marker).collect())
        })
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
                assert_eq!(encoding.encode(name, true, 1), [id]);
                assert_eq!(encoding.bytes(&[id]), name.as_bytes());
                assert!(encoding.encode(name, false, 1).len() > 1);
            }
        }
    }

    /// The crate's own splitting and joining, on texts of every kind of character.
    #[test]
    fn the_ids_are_tiktokens() {
        let mut random = crate::tests::Random(7);
        let kinds = [
            "aZ'sLL \n\r\t",
            "ſéßǅʰªЖ東𝒳",
            "019٣½Ⅷ",
            "\u{301}\u{93e}\u{20dd}",
            "\u{a0}\u{85}\u{2028}\u{3000}",
            "!/-'’🙂\u{200d}\0",
        ];
        let kinds: Vec<Vec<char>> = kinds.iter().map(|kind| kind.chars().collect()).collect();
        for _ in 0..20_000 {
            let (size, few) = (random.below(24), random.below(3) > 0);
            let first = random.below(kinds.len());
            let text: String = (0..size)
                .map(|_| {
                    let kind = if few { [0, first][random.below(2)] } else { random.below(kinds.len()) };
                    kinds[kind][random.below(kinds[kind].len())]
                })
                .collect();
            for encoding in [Encoding::Gpt2, Encoding::Cl100k, Encoding::O200k] {
                let theirs = encoding.core().encode_ordinary(&text);
                assert_eq!(encoding.encode(&text, false, 1), theirs, "{} {text:?}", encoding.name());
            }
        }
    }

    #[test]
    fn long_runs_and_threads_change_nothing() {
        for unit in ["a", " ", "ab", "\n ", "é", "0", "!", "a b"] {
            let text = unit.repeat(3_000) + "x y\n";
            for encoding in [Encoding::Gpt2, Encoding::Cl100k, Encoding::O200k] {
                assert_eq!(encoding.encode(&text, false, 1), encoding.core().encode_ordinary(&text), "{unit:?}");
            }
        }
        let mut random = crate::tests::Random(3);
        let text = random.text(400_000);
        for encoding in [Encoding::Gpt2, Encoding::Cl100k, Encoding::O200k] {
            let ids = encoding.encode(&text, true, 1);
            assert!([2, 5].iter().all(|&threads| encoding.encode(&text, true, threads) == ids));
        }
        assert!(!Encoding::Gpt2.encode(&(" ".repeat(2_000_000) + "a"), true, 1).is_empty());
    }
}

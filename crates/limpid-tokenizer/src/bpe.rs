//! OpenAI's byte-pair encodings, by name: the ranks come with the crate `tiktoken-rs`, nothing is downloaded.
//!
//! An [`Encoding`] is only a name; its tables are built at first use (23 to 95 ms) and then shared by the whole
//! process. Only the tables are the crate's: text is cut and joined by `split` and `ranks`, several times as fast.

use std::{fmt, sync::OnceLock};

use super::{
    markers::{Marker, Markers},
    pairs::Pairs,
    ranks::Ranks,
    split::Split,
};

/// One of OpenAI's byte-pair encodings; [`Encoding::named`] gives it where the feature `tiktoken` is on.
#[derive(Clone, Copy)]
pub struct Encoding(&'static Facts);

/// What is known of an encoding.
struct Facts {
    name: &'static str,
    /// The special tokens and their ids, ascending. The last one has the encoding's largest id.
    specials: &'static [(&'static str, u32)],
    split: Split,
    /// Tokens of its .tiktoken file.
    ranks: usize,
    /// `imported::hash` of its tokens and merges; a test makes it again.
    hash: u64,
    /// The bytes of ids, unless one of them is unused.
    bytes: fn(&[u32]) -> Option<Vec<u8>>,
    pairs: OnceLock<Pairs>,
}

/// The names of the encodings, whether their tables are here or not; `r50k_base` is another name of the first.
pub(super) const ENCODINGS: [&str; 4] = ["gpt2", "cl100k_base", "o200k_base", "r50k_base"];

#[cfg(not(feature = "tiktoken"))]
static ALL: [Facts; 0] = [];

#[cfg(feature = "tiktoken")]
static ALL: [Facts; 3] = [
    // GPT-2 and GPT-3: 50,257 ids
    Facts {
        name: ENCODINGS[0],
        specials: &[(END_OF_TEXT, 50_256)],
        split: Split::Gpt2,
        ranks: 50_256,
        hash: 4_228_805_884_710_071_985,
        bytes: |ids| tiktoken_rs::r50k_base_singleton().decode_bytes(ids).ok(),
        pairs: OnceLock::new(),
    },
    // GPT-3.5 and GPT-4: 100,277 ids, of which 16 are unused
    Facts {
        name: ENCODINGS[1],
        specials: &[
            (END_OF_TEXT, 100_257),
            ("<|fim_prefix|>", 100_258),
            ("<|fim_middle|>", 100_259),
            ("<|fim_suffix|>", 100_260),
            ("<|endofprompt|>", 100_276),
        ],
        split: Split::Gpt4,
        ranks: 100_256,
        hash: 14_993_893_442_745_432_302,
        bytes: |ids| tiktoken_rs::cl100k_base_singleton().decode_bytes(ids).ok(),
        pairs: OnceLock::new(),
    },
    // GPT-4o and later: 200,019 ids, of which 19 are unused
    Facts {
        name: ENCODINGS[2],
        specials: &[(END_OF_TEXT, 199_999), ("<|endofprompt|>", 200_018)],
        split: Split::Gpt4o,
        ranks: 199_998,
        hash: 1_713_173_490_170_547_939,
        bytes: |ids| tiktoken_rs::o200k_base_singleton().decode_bytes(ids).ok(),
        pairs: OnceLock::new(),
    },
];

#[cfg(feature = "tiktoken")]
const END_OF_TEXT: &str = "<|endoftext|>";

impl PartialEq for Encoding {
    fn eq(&self, other: &Encoding) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Encoding {}

impl fmt::Debug for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "Encoding({})", self.name())
    }
}

impl Encoding {
    /// The encoding of that name: `gpt2` (or `r50k_base`), `cl100k_base`, `o200k_base`. `None` without the feature
    /// `tiktoken`.
    ///
    /// ```
    /// # #[cfg(feature = "tiktoken")]
    /// # {
    /// let gpt2 = limpid_tokenizer::Encoding::named("gpt2").expect("its tables are here");
    /// assert_eq!(gpt2.vocab_size(), 50_257);
    /// # }
    /// ```
    pub fn named(name: &str) -> Option<Encoding> {
        let name = if name == ENCODINGS[3] { ENCODINGS[0] } else { name };
        Encoding::all().find(|encoding| encoding.name() == name)
    }

    /// All whose tables are here.
    pub(super) fn all() -> impl Iterator<Item = Encoding> {
        ALL.iter().map(Encoding)
    }

    /// The name: `gpt2`, `cl100k_base` or `o200k_base`.
    pub fn name(self) -> &'static str {
        self.0.name
    }

    /// V: the largest id and one. Known without building the tables.
    pub fn vocab_size(self) -> usize {
        self.specials().last().map_or(0, |&(_, id)| id as usize + 1)
    }

    /// The special tokens and their ids, ascending. The last one has the encoding's largest id.
    pub fn specials(self) -> &'static [(&'static str, u32)] {
        self.0.specials
    }

    /// Whether it is GPT-2's, whose files have a form of their own.
    pub(super) fn is_gpt2(self) -> bool {
        self.name() == ENCODINGS[0]
    }

    /// How it cuts text.
    pub(super) fn split(self) -> Split {
        self.0.split
    }

    /// How many tokens its .tiktoken file has.
    pub(super) fn ranks(self) -> usize {
        self.0.ranks
    }

    /// `imported::hash` of its tokens and merges.
    pub(super) fn hash(self) -> u64 {
        self.0.hash
    }

    pub(super) fn encode(self, text: &str, specials: bool, threads: usize) -> Vec<u32> {
        self.pairs().encode(text, specials, threads)
    }

    pub(super) fn pairs(self) -> &'static Pairs {
        self.0.pairs.get_or_init(|| {
            let special = |id: u32| self.specials().iter().any(|&(_, special)| special == id);
            let ids = (0..self.vocab_size() as u32).filter(|&id| !special(id));
            let tokens: Vec<_> = ids.filter_map(|id| Some(((self.0.bytes)(&[id])?, id))).collect();
            let ranks = Ranks::new(tokens.iter().map(|(token, id)| (token.as_slice(), *id)));
            let marker = |&(text, id): &(&str, u32)| Marker { text: text.into(), id, special: true };
            let markers = Markers::new(self.specials().iter().map(marker));
            Pairs { split: self.split(), ranks: ranks.expect("all bytes are there"), markers }
        })
    }

    /// The bytes of `ids`, all of which are below V. An unused id gives the bytes of U+FFFD.
    pub(super) fn bytes(self, ids: &[u32]) -> Vec<u8> {
        (self.0.bytes)(ids).unwrap_or_else(|| {
            let one = |&id| (self.0.bytes)(&[id]).unwrap_or_else(|| "\u{fffd}".into());
            ids.iter().flat_map(one).collect()
        })
    }

    /// Whether no text has this id.
    pub(super) fn unused(self, id: u32) -> bool {
        (self.0.bytes)(&[id]).is_none()
    }
}

#[cfg(test)]
#[cfg(feature = "tiktoken")]
mod tests {
    use super::*;
    use tiktoken_rs::CoreBPE;

    /// The encodings with the crate's own.
    fn both() -> impl Iterator<Item = (Encoding, &'static CoreBPE)> {
        use tiktoken_rs::{cl100k_base_singleton, o200k_base_singleton, r50k_base_singleton};
        Encoding::all().zip([r50k_base_singleton(), cl100k_base_singleton(), o200k_base_singleton()])
    }

    #[test]
    fn the_stated_facts_are_those_of_the_tables() {
        for ((encoding, core), unused) in both().zip([0, 16, 19]) {
            let ids = 0..encoding.vocab_size() as u32;
            assert_eq!(ids.filter(|&id| encoding.unused(id)).count(), unused, "{}", encoding.name());
            assert!(encoding.unused(encoding.vocab_size() as u32));
            assert_eq!(core.special_tokens().len(), encoding.specials().len());
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
            for (encoding, core) in both() {
                let theirs = core.encode_ordinary(&text);
                assert_eq!(encoding.encode(&text, false, 1), theirs, "{} {text:?}", encoding.name());
            }
        }
    }

    #[test]
    fn long_runs_and_threads_change_nothing() {
        for unit in ["a", " ", "ab", "\n ", "é", "0", "!", "a b"] {
            let text = unit.repeat(3_000) + "x y\n";
            for (encoding, core) in both() {
                assert_eq!(encoding.encode(&text, false, 1), core.encode_ordinary(&text), "{unit:?}");
            }
        }
        let mut random = crate::tests::Random(3);
        let text = random.text(400_000);
        for encoding in Encoding::all() {
            let ids = encoding.encode(&text, true, 1);
            assert!([2, 5].iter().all(|&threads| encoding.encode(&text, true, threads) == ids));
        }
        let gpt2 = Encoding::named("gpt2").unwrap();
        assert!(!gpt2.encode(&(" ".repeat(2_000_000) + "a"), true, 1).is_empty());
    }
}

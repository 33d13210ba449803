//! Text to ids and back. Four kinds: characters, words, OpenAI's byte-pair encodings, and the tokenizers of other
//! programs' models; and of each of them the ids that a text uses, numbered densely.
//!
//! A tokenizer is a value that is cheap to clone and never changes. Ids count from 0 and are below
//! [`vocab_size`](Tokenizer::vocab_size). Character, word and byte-pair
//! tokenizers can be learned here from a text (`learn`); OpenAI's byte-pair encodings are built in and chosen by name.
//!
//! Read `vocabulary` for how a learned tokenizer looks things up, `words` for what a word is, `json` for the file;
//! `split`, `ranks` and `pairs` for byte pairs, `learn` for training; then `imported` for other programs' tokenizers,
//! and `files`, `table` and `export` for where they come from and go to.
//!
//! Features, both on by default: `tiktoken` has the tables of OpenAI's encodings, `huggingface` runs other programs'
//! tokenizers that are not byte-level byte pairs, and learns word pieces. What needs one that is off is an error that
//! names it.

mod beside;
mod bpe;
#[cfg(feature = "huggingface")]
mod build;
mod byte_letters;
mod classes;
mod dense;
#[cfg_attr(not(feature = "huggingface"), path = "no_engine.rs")]
mod engine;
mod error;
mod export;
mod files;
mod ids;
mod imported;
mod json;
mod learn;
mod markers;
mod pairs;
mod ranks;
mod scored;
mod spec;
mod split;
mod steps;
mod stream;
mod table;
mod toys;
mod vocabulary;
mod words;

use std::{collections::HashSet, fmt, sync::Arc};

pub use bpe::Encoding;
pub use dense::DenseTokenizer;
pub use error::TokenizerError;
pub use ids::{Remap, Statistics, from_one_based, statistics, to_one_based};
pub use imported::ImportedTokenizer;
pub use learn::{Learn, Learner, LearnerOptions};
pub use split::Split;
pub use stream::TextStream;
pub use table::{END_ROLES, Table};
pub use vocabulary::{Order, TokenizerKind, Vocabulary};

use limpid_base::nearest::nearest;
use stream::Decoding;

/// Every name a tokenizer goes by. `char` and `word` need a text or a file besides; `s0`, `s0-three` and `s3` have the
/// words of the documents' examples.
pub const NAMES: [&str; 8] = ["char", "word", "gpt2", "cl100k_base", "o200k_base", "s0", "s0-three", "s3"];

/// Text to ids and back.
///
/// | kind | a token is | `decode(encode(text))` |
/// |---|---|---|
/// | `Learned`: characters | one Unicode scalar value | `text` |
/// | `Learned`: words | a word, a single mark, a newline | `text` if it is spaced as English is, see below |
/// | `Bpe` | some bytes | `text` |
/// | `Imported` | what its files say | `text` if it is byte-level, else what its decoder makes of it |
/// | `Dense` | one of another kind, if its text uses it | as that kind |
///
/// **Special tokens** such as `[PAD]`, `[MASK]`, `<|endoftext|>` are found in text by [`encode`](Tokenizer::encode) if
/// the vocabulary has them. In a learned vocabulary every token that is not one character, or one word, is special.
/// Decoding gives their text. `<UNK>` (or `[UNK]`, `<unk>`), if there, stands for what the vocabulary lacks.
///
/// **Words.** A word is a run of letters and digits; an apostrophe, hyphen or underscore between letters belongs to it,
/// and so does a point, comma or colon between digits. Blanks other than newlines are not tokens. Decoding puts one
/// space between tokens, but none before `. , ! ? ; : ) % … ” ’`, none after `( $ “ ‘`, none beside a newline, and
/// reads `"` as opening and closing in turn within a line. Text spaced otherwise (two spaces, tabs, indentation, `--`
/// between words, `e.g.`, 'single straight quotes') comes back with these spaces instead. Its ids are the same when
/// encoded again, as long as no two tokens side by side spell a third with a blank between (`New`, `York`, `New York`).
#[derive(Clone, PartialEq)]
pub enum Tokenizer {
    /// Characters or words.
    Learned(Arc<Vocabulary>),
    /// Byte pairs.
    Bpe(Encoding),
    /// From another program's files.
    Imported(Arc<ImportedTokenizer>),
    /// Only the ids of one of these that a text uses.
    Dense(Arc<DenseTokenizer>),
}

/// A part of a text whose special tokens are given apart: see [`Tokenizer::encode_parts`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TextPart {
    /// Text, in which the text of a special token is text like any other.
    Plain(String),
    /// A special token.
    Special(u32),
}

impl Tokenizer {
    /// The byte-pair encoding of that name: `gpt2` (or `r50k_base`), `cl100k_base`, `o200k_base`; or exactly the words
    /// of a document's example: `s0`, `s0-three`, `s3`.
    pub fn named(name: &str) -> Result<Tokenizer, TokenizerError> {
        if let Some(encoding) = Encoding::named(name) {
            return Ok(Tokenizer::Bpe(encoding));
        }
        if let Some(toy) = toys::named(name, &[]) {
            return toy;
        }
        if bpe::ENCODINGS.contains(&name) {
            return Err(TokenizerError::Feature { what: format!("the tokenizer {name}"), feature: "tiktoken" });
        }
        Err(match [TokenizerKind::Char, TokenizerKind::Word].into_iter().find(|kind| kind.name() == name) {
            Some(kind) => TokenizerError::Untrained { name: kind.name() },
            None => TokenizerError::Name { name: name.into(), nearest: nearest(name, NAMES) },
        })
    }

    /// Learns the vocabulary of `text`. The `special` tokens come first, in their order.
    pub fn train(kind: TokenizerKind, text: &str, order: Order, special: &[&str]) -> Result<Tokenizer, TokenizerError> {
        Vocabulary::train(kind, text, order, special).map(Tokenizer::learned)
    }

    /// Takes a vocabulary as given: the first token has id 0. A token that is there twice is an error.
    pub fn from_vocabulary(kind: TokenizerKind, tokens: Vec<String>) -> Result<Tokenizer, TokenizerError> {
        if tokens.is_empty() {
            return Err(TokenizerError::Empty(kind.name()));
        }
        Vocabulary::new(kind, tokens).map(Tokenizer::learned)
    }

    /// The same with these special tokens: one that is a token already becomes special, and the others get the next
    /// ids, in their order.
    ///
    /// # Errors
    /// If one is empty, or a word or character of a learned vocabulary; or if the tokenizer is dense, whose ids are
    /// another's.
    pub fn with_specials(&self, texts: &[String]) -> Result<Tokenizer, TokenizerError> {
        let new: Vec<&String> = texts.iter().filter(|text| self.special(text).is_none()).collect();
        let refused = |what: String| Err(TokenizerError::Learn(format!("no special tokens can be added: {what}")));
        match self {
            _ if new.is_empty() => Ok(self.clone()),
            _ if new.iter().any(|text| text.is_empty()) => refused("one is empty".into()),
            Tokenizer::Learned(vocabulary) => {
                let all = vocabulary.tokens().iter().chain(new.iter().copied()).cloned().collect();
                let newlines = vocabulary.newlines();
                let made = Vocabulary::with_newlines(vocabulary.kind(), all, newlines).map(Tokenizer::learned)?;
                match new.iter().find(|text| made.special(text).is_none()) {
                    None => Ok(made),
                    Some(text) => refused(format!("{text:?} is a {} like any other", vocabulary.kind().name())),
                }
            }
            Tokenizer::Bpe(encoding) => {
                let known = ImportedTokenizer::made(table::encoding(*encoding))?;
                Ok(Tokenizer::Imported(Arc::new(known.with_specials(&new)?)))
            }
            Tokenizer::Imported(imported) => Ok(Tokenizer::Imported(Arc::new(imported.with_specials(&new)?))),
            Tokenizer::Dense(_) => refused("a dense tokenizer numbers only ids that a text uses".into()),
        }
    }

    /// From what was put together here.
    fn made(spec: spec::Spec) -> Result<Tokenizer, TokenizerError> {
        Ok(Tokenizer::Imported(Arc::new(ImportedTokenizer::made(spec)?)))
    }

    fn learned(vocabulary: Vocabulary) -> Tokenizer {
        Tokenizer::Learned(Arc::new(vocabulary))
    }

    /// `char`, `word`, `gpt2`, `cl100k_base` or `o200k_base`; of another program's, its kind: `bpe`, `scored-bpe`,
    /// `wordpiece`, `wordlevel` or `unigram` (and `gpt2`, if it is that); or `dense`.
    pub fn name(&self) -> &'static str {
        match self {
            Tokenizer::Learned(vocabulary) => vocabulary.kind().name(),
            Tokenizer::Bpe(encoding) => encoding.name(),
            Tokenizer::Imported(imported) => imported.name(),
            Tokenizer::Dense(_) => "dense",
        }
    }

    /// Whether HuggingFace's crate runs it (the feature `huggingface`).
    pub fn needs_huggingface(&self) -> bool {
        matches!(self, Tokenizer::Imported(imported) if imported.engines().is_some())
    }

    /// V: all ids are below it.
    pub fn vocab_size(&self) -> usize {
        match self {
            Tokenizer::Learned(vocabulary) => vocabulary.tokens().len(),
            Tokenizer::Bpe(encoding) => encoding.vocab_size(),
            Tokenizer::Imported(imported) => imported.tokens().len(),
            Tokenizer::Dense(dense) => dense.ids().len(),
        }
    }

    /// The ids of `text`, special tokens recognised.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        self.encode_on(1, text, true)
    }

    /// The same ids from several threads, for a long text, or with `specials` false those of
    /// [`encode_ordinary`](Tokenizer::encode_ordinary). Only byte-level byte pairs make use of several.
    pub fn encode_on(&self, threads: usize, text: &str, specials: bool) -> Result<Vec<u32>, TokenizerError> {
        match self {
            Tokenizer::Learned(vocabulary) => vocabulary.encode(text, specials),
            Tokenizer::Bpe(encoding) => Ok(encoding.encode(text, specials, threads)),
            Tokenizer::Imported(imported) => imported.encode(text, specials, threads),
            Tokenizer::Dense(dense) => dense.dense(&dense.full().encode_on(threads, text, specials)?),
        }
    }

    /// The ids of `text`, where the text of a special token is text like any other.
    pub fn encode_ordinary(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        self.encode_on(1, text, false)
    }

    /// The ids of parts of one text: what [`encode`](Tokenizer::encode) gives for all of it, if no plain part has the
    /// text of a special token. Two plain parts are never neighbours.
    ///
    /// ```
    /// use limpid_tokenizer::{TextPart, Tokenizer};
    ///
    /// let gpt2 = Tokenizer::named("gpt2")?;
    /// let said = gpt2.encode_parts(&[TextPart::Plain("a<|endoftext|>".into()), TextPart::Special(50256)])?;
    /// assert_eq!(gpt2.decode(&said)?, "a<|endoftext|><|endoftext|>");
    /// assert_eq!(said.iter().filter(|id| **id == 50256).count(), 1);
    /// # Ok::<(), limpid_tokenizer::TokenizerError>(())
    /// ```
    pub fn encode_parts(&self, parts: &[TextPart]) -> Result<Vec<u32>, TokenizerError> {
        if let Tokenizer::Dense(dense) = self {
            let sparse = |part: &TextPart| match part {
                TextPart::Special(id) => TextPart::Special(dense.sparse(&[*id])[0]),
                plain => plain.clone(),
            };
            return dense.dense(&dense.full().encode_parts(&parts.iter().map(sparse).collect::<Vec<_>>())?);
        }
        if let Tokenizer::Imported(imported) = self
            && let Some(engines) = imported.engines()
        {
            return engines.encode_parts(parts);
        }
        let mut ids = vec![];
        for part in parts {
            match part {
                TextPart::Plain(text) => ids.extend(self.encode_ordinary(text)?),
                TextPart::Special(id) => ids.push(*id),
            }
        }
        Ok(ids)
    }

    /// [`encode`](Tokenizer::encode) between what the model of this tokenizer expects round every text: BERT's `[CLS]`
    /// and `[SEP]`, Llama's `<s>`. The same as `encode` where its files say nothing, and for limpid's own.
    pub fn encode_for_model(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        if let Tokenizer::Dense(dense) = self {
            return dense.dense(&dense.full().encode_for_model(text)?);
        }
        let ids = self.encode(text)?;
        Ok(match self {
            Tokenizer::Imported(imported) => [imported.frame().0, &ids, imported.frame().1].concat(),
            _ => ids,
        })
    }

    /// What [`encode_for_model`](Tokenizer::encode_for_model) puts after a text.
    pub fn after(&self) -> Vec<u32> {
        match self {
            Tokenizer::Imported(imported) => imported.frame().1.to_vec(),
            Tokenizer::Dense(dense) => dense.full().after().into_iter().filter_map(|id| dense.one(id)).collect(),
            _ => vec![],
        }
    }

    /// The first id of every text its model was trained on, if there is one: a prompt for it begins with this id. What
    /// [`encode_for_model`](Tokenizer::encode_for_model) puts first.
    pub fn bos(&self) -> Option<u32> {
        match self {
            Tokenizer::Imported(imported) => imported.frame().0.first().copied(),
            Tokenizer::Dense(dense) => dense.one(dense.full().bos()?),
            _ => None,
        }
    }

    /// The text of `ids`. Bytes that are no character become U+FFFD, and so does an id below V that no text has.
    pub fn decode(&self, ids: &[u32]) -> Result<String, TokenizerError> {
        let bytes = self.decode_bytes(ids)?;
        Ok(String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
    }

    /// The bytes of `ids`, which for byte pairs need not be whole characters.
    pub fn decode_bytes(&self, ids: &[u32]) -> Result<Vec<u8>, TokenizerError> {
        self.check(ids)?;
        match self {
            // all at once is quicker
            Tokenizer::Bpe(encoding) => Ok(encoding.bytes(ids)),
            Tokenizer::Dense(dense) => dense.full().decode_bytes(&dense.sparse(ids)),
            _ => {
                let (mut state, mut bytes) = (Decoding::default(), Vec::with_capacity(ids.len() * 4));
                ids.iter().for_each(|id| state.push(self, *id, &mut bytes));
                Ok(bytes)
            }
        }
    }

    /// One token to look at: its text as it is, with bytes that are no character written `\xE2`. An id that no text has
    /// is `<unused 100256>`.
    pub fn piece(&self, id: u32) -> Result<String, TokenizerError> {
        Ok(self.pieces(&[id])?.remove(0))
    }

    /// The one token that this text is, and that is shown as this text.
    pub fn token(&self, text: &str) -> Option<u32> {
        let ids = self.encode(text).ok()?;
        let [id] = ids[..] else { return None };
        (self.piece(id).ok()? == text).then_some(id)
    }

    /// [`piece`](Tokenizer::piece) of each id.
    pub fn pieces(&self, ids: &[u32]) -> Result<Vec<String>, TokenizerError> {
        self.check(ids)?;
        let one = |&id: &u32| self.bytes(id).map_or_else(|| format!("<unused {id}>"), |bytes| visible(&bytes));
        Ok(ids.iter().map(one).collect())
    }

    /// The bytes of one token wherever it stands, with a blank of its own; they need not be whole characters. None for
    /// an id that no text has.
    pub fn piece_bytes(&self, id: u32) -> Option<Vec<u8>> {
        self.check(&[id]).ok().and_then(|()| self.bytes(id))
    }

    fn bytes(&self, id: u32) -> Option<Vec<u8>> {
        match self {
            Tokenizer::Learned(vocabulary) => Some(vocabulary.tokens()[id as usize].clone().into()),
            Tokenizer::Bpe(encoding) => (!encoding.unused(id)).then(|| encoding.bytes(&[id])),
            Tokenizer::Imported(imported) => imported.piece(id),
            Tokenizer::Dense(dense) => dense.full().bytes(dense.sparse(&[id])[0]),
        }
    }

    /// The id of a special token, such as `[MASK]`, `[PAD]` or `<|endoftext|>`.
    pub fn special(&self, name: &str) -> Option<u32> {
        self.specials().into_iter().find(|(token, _)| *token == name).map(|(_, id)| id)
    }

    /// All special tokens and their ids, ascending.
    pub fn specials(&self) -> Vec<(&str, u32)> {
        match self {
            Tokenizer::Learned(vocabulary) => {
                vocabulary.specials().iter().map(|&id| (vocabulary.tokens()[id as usize].as_str(), id)).collect()
            }
            Tokenizer::Bpe(encoding) => encoding.specials().to_vec(),
            Tokenizer::Imported(imported) => imported.specials(),
            Tokenizer::Dense(dense) => {
                dense.full().specials().into_iter().filter_map(|(token, id)| Some((token, dense.one(id)?))).collect()
            }
        }
    }

    /// The token that stands for text which the vocabulary lacks, such as `<UNK>`. None where every text can be
    /// written.
    pub fn unknown(&self) -> Option<u32> {
        match self {
            Tokenizer::Learned(vocabulary) => vocabulary.unknown(),
            Tokenizer::Bpe(_) => None,
            Tokenizer::Imported(imported) => imported.unknown,
            Tokenizer::Dense(dense) => dense.one(dense.full().unknown()?),
        }
    }

    /// The first `most` different pieces of `texts` that [`unknown`](Tokenizer::unknown) stands for: characters or
    /// words; of another program's vocabulary, what stands between blanks.
    pub fn unknown_pieces<'a>(&self, texts: impl IntoIterator<Item = &'a str>, most: usize) -> Vec<&'a str> {
        let Some(unknown) = self.unknown() else { return vec![] };
        let pieces = |text: &'a str| -> Box<dyn Iterator<Item = &'a str> + 'a> {
            match self {
                Tokenizer::Learned(v) => Box::new(v.kind().pieces(text).map(|(_, piece)| piece)),
                _ => Box::new(text.split_whitespace()),
            }
        };
        let mut seen = HashSet::new();
        let new = texts.into_iter().flat_map(pieces).filter(|piece| seen.insert(*piece));
        new.filter(|piece| self.encode(piece).is_ok_and(|ids| ids.contains(&unknown))).take(most).collect()
    }

    /// The token that ends a document: the one tokenizer_config.json or config.json named, or else `<|endoftext|>`,
    /// `[EOS]`, `<EOS>`, `</s>`, `<eos>`, `<|end_of_text|>` or `<|eot_id|>`.
    pub fn end_of_text(&self) -> Option<u32> {
        const NAMES: [&str; 7] = ["<|endoftext|>", "[EOS]", "<EOS>", "</s>", "<eos>", "<|end_of_text|>", "<|eot_id|>"];
        let named = match self {
            Tokenizer::Imported(imported) => imported.told.end,
            Tokenizer::Dense(dense) => return dense.one(dense.full().end_of_text()?),
            _ => None,
        };
        named.or_else(|| NAMES.into_iter().find_map(|name| self.special(name)))
    }

    /// The tokens that end a text or a turn by the model's generation_config.json, or else its config.json.
    pub fn more_ends(&self) -> Vec<u32> {
        match self {
            Tokenizer::Imported(imported) => imported.told.ends.clone(),
            Tokenizer::Dense(dense) => dense.full().more_ends().into_iter().filter_map(|id| dense.one(id)).collect(),
            _ => vec![],
        }
    }

    /// The tokens in a role (`bos_token`, `image_token`), as the files of a model's folder name them; nothing if they
    /// name none.
    pub fn named_roles(&self) -> &[(String, String)] {
        match self {
            Tokenizer::Imported(imported) => &imported.told.names,
            Tokenizer::Dense(dense) => dense.full().named_roles(),
            _ => &[],
        }
    }

    /// The special token that ends what one speaker says: `<|end|>` (not where it ends a message within a turn, as
    /// beside `<|return|>` and `<|call|>`), `<|im_end|>`, `<|eot_id|>` or `<end_of_turn>`.
    pub fn end_of_turn(&self) -> Option<u32> {
        const NAMES: [&str; 4] = ["<|end|>", "<|im_end|>", "<|eot_id|>", "<end_of_turn>"];
        let within = table::ends_messages(&|name| self.special(name).is_some());
        NAMES.into_iter().filter(|name| !(within && *name == table::MESSAGE_END)).find_map(|name| self.special(name))
    }

    /// The token that begins one, where files name it: see [`bos`](Tokenizer::bos) for whether it must stand there.
    pub fn begin_of_text(&self) -> Option<u32> {
        let Tokenizer::Imported(imported) = self else { return None };
        imported.told.begin.or(self.bos())
    }

    /// How it cuts text before joining bytes, if that is what it does.
    pub fn split(&self) -> Option<Split> {
        match self {
            Tokenizer::Bpe(encoding) => Some(encoding.split()),
            Tokenizer::Imported(imported) => imported.pairs().map(|pairs| pairs.split),
            _ => None,
        }
    }

    /// Says which id, if any, is not below V.
    fn check(&self, ids: &[u32]) -> Result<(), TokenizerError> {
        ids.iter().enumerate().try_for_each(|(index, id)| self.check_at(index, *id))
    }

    /// The same of the id at place `index`.
    fn check_at(&self, index: usize, id: u32) -> Result<(), TokenizerError> {
        let vocab_size = self.vocab_size();
        if (id as usize) < vocab_size {
            return Ok(());
        }
        Err(TokenizerError::Id { id, index, name: self.name().into(), vocab_size })
    }
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "Tokenizer({}, {} tokens)", self.name(), self.vocab_size())
    }
}

/// Bytes as text, with `\xE2` for what is no character.
fn visible(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        text += chunk.valid();
        chunk.invalid().iter().for_each(|byte| text += &format!("\\x{byte:02X}"));
    }
    text
}

#[cfg(test)]
#[cfg(all(feature = "huggingface", feature = "tiktoken"))]
mod folder_tests;
#[cfg(test)]
#[cfg(all(feature = "huggingface", feature = "tiktoken"))]
mod imported_tests;
#[cfg(test)]
#[cfg(all(feature = "huggingface", feature = "tiktoken"))]
mod tests;

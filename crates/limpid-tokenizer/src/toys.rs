//! Words of the documents' examples, as tokenizers by name: each exactly its document's, in the document's order. There
//! is no `<UNK>`, and the end of a line is a blank. `limpid_data::toys` has the sentences.

use super::{Tokenizer, TokenizerError, TokenizerKind, Vocabulary};

const TOYS: &[(&str, &[&str])] = &[
    ("s0", &["cat", "eat", "mouse", "dog", "chase", "cheese"]),
    ("s0-three", &["cat", "dog", "mouse"]),
    ("s3", &["cat", "dog", "jumps", "around", "man", "is", "helping"]),
];

/// The tokenizer of that name, with the `special` tokens after its words, whose ids so stay the document's.
pub(super) fn named(name: &str, special: &[String]) -> Option<Result<Tokenizer, TokenizerError>> {
    let (_, words) = TOYS.iter().find(|(toy, _)| *toy == name)?;
    let tokens = words.iter().map(ToString::to_string).chain(special.iter().cloned()).collect();
    Some(Vocabulary::with_newlines(TokenizerKind::Word, tokens, false).map(Tokenizer::learned))
}

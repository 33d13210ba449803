//! A list of tokens and the way back: the learned vocabulary of the character and the word tokenizer.
//!
//! It is checked when it is built (no token twice, none empty). A token is *special* if it is more than one piece, so
//! that splitting a text never gives it; special tokens are searched for first.

use std::collections::{HashMap, HashSet};

use super::{
    TokenizerError,
    markers::{Marker, Markers},
    words,
};

/// What a learned tokenizer's tokens are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenizerKind {
    /// Characters (Unicode scalar values).
    Char,
    /// Words, single marks and newlines.
    Word,
}

impl TokenizerKind {
    /// `char` or `word`.
    pub fn name(self) -> &'static str {
        match self {
            TokenizerKind::Char => "char",
            TokenizerKind::Word => "word",
        }
    }

    /// The pieces of `text`, each with the byte where it starts.
    pub(super) fn pieces<'a>(self, text: &'a str) -> Box<dyn Iterator<Item = (usize, &'a str)> + 'a> {
        match self {
            TokenizerKind::Char => Box::new(text.char_indices().map(|(at, c)| (at, &text[at..at + c.len_utf8()]))),
            TokenizerKind::Word => Box::new(words::pieces(text)),
        }
    }

    /// Why `token` cannot be in a vocabulary, if it cannot.
    fn objection(self, token: &str) -> Option<&'static str> {
        match self {
            _ if token.is_empty() => Some("it is empty"),
            TokenizerKind::Word if token != "\n" && token.trim() != token => {
                Some("blanks around a word are not part of it")
            }
            _ => None,
        }
    }

    fn is_special(self, token: &str) -> bool {
        let mut pieces = self.pieces(token);
        pieces.next().is_none_or(|(_, piece)| piece != token)
    }
}

/// The order in which a learned vocabulary numbers its tokens. Special tokens come before all others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// As they first appear in the text.
    FirstAppearance,
    /// By code point, so that two texts with the same tokens give the same vocabulary.
    #[default]
    Sorted,
}

/// Tokens that stand for all that is not in the vocabulary, in order of preference.
const UNKNOWN: [&str; 3] = ["<UNK>", "[UNK]", "<unk>"];

/// Distinct tokens; a token's id is its place.
pub struct Vocabulary {
    kind: TokenizerKind,
    tokens: Vec<String>,
    ids: HashMap<String, u32>,
    /// Ids of the tokens of one ASCII character.
    ascii: [Option<u32>; 128],
    /// Special tokens, ascending.
    specials: Vec<u32>,
    markers: Markers,
    unknown: Option<u32>,
    /// Whether the end of a line is a piece; otherwise it is a blank like any other (words only).
    newlines: bool,
}

impl Vocabulary {
    /// Takes the tokens of `text`, after the `special` ones, which count as tokens where they occur in it.
    pub(super) fn train(
        kind: TokenizerKind,
        text: &str,
        order: Order,
        special: &[&str],
    ) -> Result<Vocabulary, TokenizerError> {
        let first = Vocabulary::new(kind, special.iter().map(|token| token.to_string()).collect())?;
        let mut seen: HashSet<&str> = special.iter().copied().collect();
        let mut tokens: Vec<&str> = Vec::new();
        let mut pieces = 0;
        for (plain, _) in first.markers.cut(text, true) {
            for (_, piece) in kind.pieces(&text[plain]) {
                pieces += 1;
                if seen.insert(piece) {
                    tokens.push(piece);
                }
            }
        }
        if pieces == 0 {
            return Err(TokenizerError::Empty(kind.name()));
        }
        if order == Order::Sorted {
            tokens.sort_unstable();
        }
        Vocabulary::new(kind, special.iter().chain(&tokens).map(|token| token.to_string()).collect())
    }

    /// Takes the tokens as they are: the first has id 0.
    pub(super) fn new(kind: TokenizerKind, tokens: Vec<String>) -> Result<Vocabulary, TokenizerError> {
        Vocabulary::with_newlines(kind, tokens, true)
    }

    /// The same, where the end of a line may be a blank like any other.
    pub(super) fn with_newlines(
        kind: TokenizerKind,
        tokens: Vec<String>,
        newlines: bool,
    ) -> Result<Vocabulary, TokenizerError> {
        let mut new = Vocabulary {
            kind,
            newlines,
            ids: HashMap::with_capacity(tokens.len()),
            ascii: [None; 128],
            specials: Vec::new(),
            markers: Markers::new([]),
            unknown: None,
            tokens,
        };
        for (id, token) in new.tokens.iter().enumerate() {
            if let Some(why) = kind.objection(token) {
                return Err(TokenizerError::Token { token: token.clone(), id, kind: kind.name(), why });
            }
            if let Some(first) = new.ids.insert(token.clone(), id as u32) {
                return Err(TokenizerError::Duplicate { token: token.clone(), first: first.into(), second: id as u64 });
            }
            if kind.is_special(token) {
                new.specials.push(id as u32);
            } else if let [byte @ 0..128] = token.as_bytes() {
                new.ascii[usize::from(*byte)] = Some(id as u32);
            }
        }
        let marker = |&id: &u32| Marker { text: new.tokens[id as usize].clone(), id, special: true };
        new.markers = Markers::new(new.specials.iter().map(marker));
        new.unknown = UNKNOWN.iter().find_map(|&token| new.id(token));
        Ok(new)
    }

    /// What the tokens are.
    pub fn kind(&self) -> TokenizerKind {
        self.kind
    }

    /// Whether the end of a line is a piece of text; where it is not, `\n` is a blank between words.
    pub fn newlines(&self) -> bool {
        self.newlines
    }

    /// The tokens, by id.
    pub fn tokens(&self) -> &[String] {
        &self.tokens
    }

    /// The id of a token.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.ids.get(token).copied()
    }

    /// The ids of the special tokens: those of more than one piece, like `[PAD]`. Ascending.
    pub fn specials(&self) -> &[u32] {
        &self.specials
    }

    /// The id that stands for what is not in the vocabulary: that of `<UNK>`, `[UNK]` or `<unk>`.
    pub fn unknown(&self) -> Option<u32> {
        self.unknown
    }

    pub(super) fn encode(&self, text: &str, specials: bool) -> Result<Vec<u32>, TokenizerError> {
        let guess = match self.kind {
            TokenizerKind::Char => text.len(),
            TokenizerKind::Word => text.len() / 4,
        };
        let mut ids = Vec::with_capacity(guess);
        for (plain, special) in self.markers.cut(text, specials) {
            let start = plain.start;
            match self.kind {
                TokenizerKind::Char => {
                    for (at, c) in text[plain].char_indices() {
                        let at = start + at;
                        let piece = &text[at..at + c.len_utf8()];
                        let id = if c.is_ascii() { self.ascii[c as usize] } else { self.id(piece) };
                        ids.push(id.map_or_else(|| self.lacking(text, at, piece), Ok)?);
                    }
                }
                TokenizerKind::Word => {
                    for (at, piece) in words::pieces(&text[plain]) {
                        if piece != "\n" || self.newlines {
                            ids.push(self.id(piece).map_or_else(|| self.lacking(text, start + at, piece), Ok)?);
                        }
                    }
                }
            }
            ids.extend(special.map(|special| special.id));
        }
        Ok(ids)
    }

    /// The id of `<UNK>` for a `piece` of `text` at byte `at`, or what to say about it.
    fn lacking(&self, text: &str, at: usize, piece: &str) -> Result<u32, TokenizerError> {
        self.unknown.ok_or_else(|| {
            let line = text[..at].rfind('\n').map_or(0, |newline| newline + 1);
            TokenizerError::Unknown {
                piece: piece.into(),
                byte: at,
                line: text[..at].matches('\n').count() + 1,
                column: text[line..at].chars().count() + 1,
                kind: self.kind.name(),
                vocab_size: self.tokens.len(),
            }
        })
    }
}

impl PartialEq for Vocabulary {
    fn eq(&self, other: &Vocabulary) -> bool {
        (self.kind, self.newlines) == (other.kind, other.newlines) && self.tokens == other.tokens
    }
}

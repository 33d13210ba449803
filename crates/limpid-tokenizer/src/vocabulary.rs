//! A list of tokens and the way back: the learned vocabulary of the character and the word tokenizer.
//!
//! It is checked when it is built (no token twice, none empty). A token is *special* if it is more than one piece, so that splitting a
//! text never gives it; special tokens are searched for first.

use std::{
    collections::{HashMap, HashSet},
    ops::Range,
};

use super::{TokenizerError, words};

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

/// No id.
const NONE: u32 = u32::MAX;

/// Distinct tokens; a token's id is its place.
pub struct Vocabulary {
    kind: TokenizerKind,
    tokens: Vec<String>,
    ids: HashMap<String, u32>,
    /// Ids of the one-character tokens: ASCII by table, the others by map.
    ascii: [u32; 128],
    chars: HashMap<char, u32>,
    /// Special tokens by their first byte, the longest first.
    specials: Vec<Vec<u32>>,
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
        first.segments(text, true, |_, plain| {
            for (_, piece) in kind.pieces(&text[plain]) {
                pieces += 1;
                if seen.insert(piece) {
                    tokens.push(piece);
                }
            }
            Ok(())
        })?;
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
            ascii: [NONE; 128],
            chars: HashMap::new(),
            specials: vec![Vec::new(); 256],
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
                new.specials[token.as_bytes()[0] as usize].push(id as u32);
                continue;
            }
            let mut chars = token.chars();
            if let (Some(c), None) = (chars.next(), chars.next()) {
                if c.is_ascii() { new.ascii[c as usize] = id as u32 } else { _ = new.chars.insert(c, id as u32) }
            }
        }
        for group in &mut new.specials {
            group.sort_by_key(|&id| std::cmp::Reverse(new.tokens[id as usize].len()));
        }
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
    pub fn specials(&self) -> Vec<u32> {
        let mut ids: Vec<u32> = self.specials.iter().flatten().copied().collect();
        ids.sort_unstable();
        ids
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
        self.segments(text, specials, |special, plain| {
            ids.extend(special);
            let start = plain.start;
            match self.kind {
                TokenizerKind::Char => {
                    for (at, c) in text[plain].char_indices() {
                        let id = match self.ascii.get(c as usize) {
                            Some(&id) => id,
                            None => self.chars.get(&c).copied().unwrap_or(NONE),
                        };
                        ids.push(if id != NONE { id } else { self.lacking(text, start + at, c.len_utf8())? });
                    }
                }
                TokenizerKind::Word => {
                    for (at, piece) in words::pieces(&text[plain]) {
                        if piece == "\n" && !self.newlines {
                            continue;
                        }
                        let id = self.id(piece);
                        ids.push(if let Some(id) = id { id } else { self.lacking(text, start + at, piece.len())? });
                    }
                }
            }
            Ok(())
        })?;
        Ok(ids)
    }

    /// The id of `<UNK>` for the piece of `text` at byte `at`, or what to say about it.
    fn lacking(&self, text: &str, at: usize, len: usize) -> Result<u32, TokenizerError> {
        self.unknown.ok_or_else(|| {
            let line = text[..at].rfind('\n').map_or(0, |newline| newline + 1);
            TokenizerError::Unknown {
                piece: text[at..at + len].into(),
                byte: at,
                line: text[..at].matches('\n').count() + 1,
                column: text[line..at].chars().count() + 1,
                kind: self.kind.name(),
                vocab_size: self.tokens.len(),
            }
        })
    }

    /// Cuts `text` at its special tokens. `each` gets every special token with the plain text after it; first, without a
    /// special token, what stands before them all. Where two could start, the longer is taken.
    fn segments(
        &self,
        text: &str,
        specials: bool,
        mut each: impl FnMut(Option<u32>, Range<usize>) -> Result<(), TokenizerError>,
    ) -> Result<(), TokenizerError> {
        let (mut special, mut start, mut at) = (None, 0, 0);
        if specials && self.specials.iter().any(|group| !group.is_empty()) {
            let bytes = text.as_bytes();
            while at < bytes.len() {
                let group = &self.specials[bytes[at] as usize];
                match group.iter().find(|&&id| bytes[at..].starts_with(self.tokens[id as usize].as_bytes())) {
                    Some(&id) => {
                        each(special, start..at)?;
                        at += self.tokens[id as usize].len();
                        (special, start) = (Some(id), at);
                    }
                    None => at += 1,
                }
            }
        }
        each(special, start..text.len())
    }
}

impl PartialEq for Vocabulary {
    fn eq(&self, other: &Vocabulary) -> bool {
        (self.kind, self.newlines) == (other.kind, other.newlines) && self.tokens == other.tokens
    }
}

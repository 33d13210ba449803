//! The errors between text and ids: one enum, with the facts as fields and, where one is known, a remedy.

use std::{
    io,
    path::{Path, PathBuf},
};

use super::NAMES;
use limpid_base::words::system;

/// What to do about a tokenizer that a model was trained with and that has no table.
pub(crate) const LEARNED: &str = "a model trained with the tokenizer bpe has one that can";

/// What a tokenizer refuses, and why.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// A name that no tokenizer has.
    #[error(
        "no tokenizer is called {name:?}, and there is no such file; {}known names are {}", meant(.nearest),
        NAMES.join(", ")
    )]
    Name {
        /// The name asked for.
        name: String,
        /// The known name most like it.
        nearest: Option<&'static str>,
    },
    /// `char` and `word` have no vocabulary of their own.
    #[error(
        "a {name} tokenizer has no vocabulary until it is trained on a text; train one, or load its tokenizer.json"
    )]
    Untrained {
        /// `char` or `word`.
        name: &'static str,
    },
    /// Nothing to make a vocabulary from.
    #[error("no {0} to make a vocabulary from: the text is empty")]
    Empty(&'static str),
    /// A token that cannot be in a vocabulary.
    #[error("token {id}, {token:?}, cannot be in a {kind} vocabulary: {why}")]
    Token {
        /// The token's text.
        token: String,
        /// Its place in the vocabulary.
        id: usize,
        /// `char` or `word`.
        kind: &'static str,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A token that is twice in a vocabulary.
    #[error("token {token:?} is in the vocabulary twice, as {first} and as {second}; every token has one id")]
    Duplicate {
        /// The token's text.
        token: String,
        /// The id it has first.
        first: u64,
        /// The id it has again.
        second: u64,
    },
    /// An id that two tokens claim.
    #[error("id {id} is given to both {first:?} and {second:?}; every id has one token")]
    Shared {
        /// The id.
        id: u64,
        /// One token.
        first: String,
        /// The other.
        second: String,
    },
    /// Ids that are not 0 to V-1.
    #[error(
        "id {id} of token {token:?} is out of place: {count} tokens have the ids 0 to {}, without a gap", .count - 1
    )]
    Gap {
        /// The id.
        id: u64,
        /// Its token.
        token: String,
        /// How many tokens there are.
        count: usize,
    },
    /// A piece of text that the vocabulary lacks, when there is no `<UNK>` to stand for it.
    #[error(
        "{} at byte {byte} (line {line}, column {column}) is not in the {kind} vocabulary of {vocab_size} tokens; \
         train the tokenizer on text that has it, or with the special token <UNK>", shown(.piece)
    )]
    Unknown {
        /// The character or word.
        piece: String,
        /// Where it starts, in bytes from the beginning of the text.
        byte: usize,
        /// Its line, from 1.
        line: usize,
        /// Its column in characters, from 1.
        column: usize,
        /// `char` or `word`.
        kind: &'static str,
        /// V.
        vocab_size: usize,
    },
    /// An id that is not in the vocabulary.
    #[error(
        "id {id} (at index {index}) is outside the vocabulary of {name}: its {vocab_size} ids end at {}",
        .vocab_size - 1
    )]
    Id {
        /// The id.
        id: u32,
        /// Its place in the list of ids.
        index: usize,
        /// The tokenizer's name.
        name: String,
        /// V.
        vocab_size: usize,
    },
    /// A token that is not among the numbered ones of a dense tokenizer.
    #[error(
        "{} (id {id} of {of}) is not among the {vocab_size} tokens of the text that this dense tokenizer was made \
         from: leave it out, or make a \
         dense tokenizer from a text that has it", shown(.piece)
    )]
    NotDense {
        /// The token.
        piece: String,
        /// Its id in the full tokenizer.
        id: u32,
        /// That tokenizer.
        of: &'static str,
        /// How many ids are numbered.
        vocab_size: usize,
    },
    /// An id that has no place in a 1-based list or in a [`Remap`](super::Remap).
    #[error("id {id} (at index {index}) {why}")]
    Mapping {
        /// The id.
        id: u32,
        /// Its place in the list of ids.
        index: usize,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Something that is not a tokenizer.json.
    #[error("not a tokenizer.json: {0}")]
    Json(String),
    /// SentencePiece's own file.
    #[error(
        "it is a SentencePiece model, which limpid does not read: transformers can make a tokenizer.json from it, \
         with AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
    )]
    SentencePiece,
    /// A GGUF file in the place of a tokenizer's.
    #[error("it is a GGUF file: export its tokenizer as a tokenizer.json first, and give that")]
    Gguf,
    /// A class of transformers that reads vocab.json and merges.txt in a way of its own.
    #[error(
        "it is the vocabulary of a {0}, which limpid cannot read without a tokenizer.json (it can for GPT-2, CodeGen, \
         RoBERTa, Qwen2, GPT-NeoX, Cohere and OpenAI GPT): transformers can make one, with \
         AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
    )]
    Class(String),
    /// A tokenizer.json without a tokenizer.
    #[error("this tokenizer.json holds {found}; limpid reads HuggingFace's format, or {{\"limpid_encoding\": NAME}}")]
    Unsupported {
        /// What is in the file.
        found: String,
    },
    /// A part of a tokenizer that is not what it must be.
    #[error(
        "{part}: expected {expected}, found {found}; download the file again, or fix it in the program that wrote it"
    )]
    Part {
        /// Which part.
        part: String,
        /// What it must be.
        expected: &'static str,
        /// What it is.
        found: String,
    },
    /// A step or a setting that limpid does not have.
    #[error("{part} has {found}, which limpid does not support; it supports {known}")]
    NotSupported {
        /// Which part.
        part: String,
        /// What it has.
        found: String,
        /// What limpid supports there.
        known: &'static str,
    },
    /// A pre-tokenizer, by llama.cpp's name, that limpid does not know.
    #[error(
        "`tokenizer.ggml.pre` is {found:?}, a pre-tokenizer that limpid does not know, so texts would get other ids \
         than in llama.cpp. limpid knows {known}. Use the model's HuggingFace folder, whose tokenizer.json describes \
         the pre-tokenizer"
    )]
    Pre {
        /// The name in the file.
        found: String,
        /// The names that are known.
        known: String,
    },
    /// A text that a tokenizer from another program has no ids for.
    #[error("the {name} tokenizer has no ids for this text: {detail}")]
    Encode {
        /// The tokenizer's name.
        name: &'static str,
        /// What its engine said.
        detail: String,
    },
    /// A tokenizer that GGUF cannot express.
    #[error("this tokenizer cannot be written as a GGUF table: {0}")]
    Table(String),
    /// A tokenizer that a file's format cannot express.
    #[error("this tokenizer cannot be written in that format: {0}")]
    Format(String),
    /// A feature of the crate that is switched off.
    #[error("{what} needs the feature `{feature}`, which this program was built without: build it with that feature")]
    Feature {
        /// What cannot be done.
        what: String,
        /// The feature of the crate.
        feature: &'static str,
    },
    /// Ranks without a way of cutting text.
    #[error(
        "a .tiktoken file does not say how to split text, and these are not OpenAI's ranks: name the split, one of \
         gpt2, gpt4, gpt4o, llama3 and qwen2; a tokenizer.json made from both keeps it"
    )]
    NoSplit,
    /// What cannot be learned.
    #[error("{0}")]
    Learn(String),
    /// A file that cannot be read or written.
    #[error("{}: {}", .path.display(), system(.fault))]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        fault: io::Error,
    },
    /// A file whose content is wrong.
    #[error("{}: {fault}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong in it.
        fault: Box<TokenizerError>,
    },
}

impl TokenizerError {
    /// The settings that may help, each by its name and, where one is known, a value.
    pub fn settings(&self) -> &'static [&'static str] {
        match self {
            TokenizerError::File { fault, .. } => fault.settings(),
            TokenizerError::NoSplit => &["split"],
            TokenizerError::Table(why) if why.contains(LEARNED) => &["tokenizer bpe"],
            _ => &[],
        }
    }

    /// The same, in this file.
    pub(super) fn at(self, path: &Path) -> TokenizerError {
        TokenizerError::File { path: path.into(), fault: self.into() }
    }
}

fn meant(nearest: &Option<&'static str>) -> String {
    nearest.map(|name| format!("did you mean {name:?}? ")).unwrap_or_default()
}

/// A piece as it is quoted in a message: escaped, and cut where it is long.
pub(super) fn shown(piece: &str) -> String {
    match piece.char_indices().nth(40) {
        Some((end, _)) => format!("{:?}…", &piece[..end]),
        None => format!("{piece:?}"),
    }
}

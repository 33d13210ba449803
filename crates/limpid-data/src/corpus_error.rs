//! Why a corpus cannot be read, prepared or opened. Each error names the place and what may help.

use super::message::has_form as is_chat;
use limpid_base::words::system;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// The place of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its file: `-` for standard input, empty for a text in memory.
    pub path: PathBuf,
    /// The unit that is counted: `line`, `row` or `item`; empty for a whole file.
    pub unit: &'static str,
    /// Its number, from 1.
    pub number: u64,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        if self.path.as_os_str().is_empty() {
            return write!(f, "{} {}", self.unit, self.number);
        }
        let name = if self.path == Path::new("-") { "standard input".into() } else { self.path.display().to_string() };
        if self.unit.is_empty() { write!(f, "{name}") } else { write!(f, "{name}, {} {}", self.unit, self.number) }
    }
}

/// Files and folders that are left out because of their names.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LeftOut(pub(super) Vec<PathBuf>);

impl LeftOut {
    /// Their names.
    pub fn names(&self) -> Vec<String> {
        self.0.iter().map(|path| path.display().to_string()).collect()
    }
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 4;
        let names = self.names();
        let what = match names.len() {
            0 => return Ok(()),
            1 => "1 file or folder".into(),
            count => format!("{count} files and folders"),
        };
        let more = if names.len() > SHOWN { ", ..." } else { "" };
        let shown = names[..names.len().min(SHOWN)].join(", ");
        write!(f, "; {what} left out, hidden or about the dataset: {shown}{more}")
    }
}

/// Why a name stands for no file.
fn no_file(name: &str) -> &'static str {
    if name.starts_with("builtin:") {
        "a built-in text is no file: only training and evaluation read it; `limpid data stories` writes the stories as \
         one"
    } else {
        "there is no such file or folder (or use builtin:stories)"
    }
}

/// Why a corpus cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CorpusError {
    /// The file system failed.
    #[error("{}: {}", .path.display(), system(.fault))]
    Io {
        /// The file.
        path: PathBuf,
        /// What happened.
        fault: io::Error,
    },
    /// Ids are outside the vocabulary.
    #[error(transparent)]
    Data(#[from] super::DataError),
    /// A name stands for no file.
    #[error("{}: {}", .0, no_file(.0))]
    NotFound(String),
    /// A folder has no documents.
    #[error(
        "{}: the folder has no documents (.txt, .md, .jsonl, .ndjson, .json, .parquet, these with .gz or \
         .zst){left_out}", .path.display()
    )]
    EmptyFolder {
        /// The folder.
        path: PathBuf,
        /// What in it is not read.
        left_out: LeftOut,
    },
    /// The files have no text.
    #[error("{0} is empty: there is nothing to learn from")]
    Empty(String),
    /// Bytes are not UTF-8.
    #[error(
        "{place} is not UTF-8 text: byte {byte} (line {line}) is 0x{found:02X}; convert it first, for example with \
         `iconv -f latin1 -t utf-8`, or leave such documents out"
    )]
    NotUtf8 {
        /// The file, or the line of it.
        place: Place,
        /// Offset in the file, or in the line.
        byte: u64,
        /// Line of the file, from 1.
        line: u64,
        /// The byte.
        found: u8,
    },
    /// A file is not text at all.
    #[error("{place} is not text: it is {kind}")]
    Binary {
        /// The file.
        place: Place,
        /// What it seems to be.
        kind: &'static str,
    },
    /// A document contains a byte that no text contains.
    #[error(
        "{place} is not text but binary: byte {byte} is 0; take such bytes out, for example with `tr -d '\\000'`, or \
         leave such documents out"
    )]
    Zero {
        /// The file, or the line of it.
        place: Place,
        /// Offset in the file, or in the text of the line.
        byte: u64,
    },
    /// A line, item or row that would take too much memory.
    #[error(
        "{place} is longer than the {limit} bytes that one document may have here: give it as a text file, which is \
         read in parts, or leave such documents out"
    )]
    TooLong {
        /// Which.
        place: Place,
        /// The most that is read.
        limit: usize,
    },
    /// A line or item that is not JSON.
    #[error("{place} is not JSON: {why}; such lines can be left out and counted")]
    Json {
        /// Which.
        place: Place,
        /// What the parser said.
        why: String,
    },
    /// A document whose text is not a text.
    #[error("{place} {}", not_text(.field, .kind))]
    Kind {
        /// Which.
        place: Place,
        /// The field asked for; empty if the document has no fields.
        field: String,
        /// What is there: `a list`, `a number`.
        kind: &'static str,
    },
    /// A document without the text.
    #[error("{place} has no text in the field `{field}`; {}", names(.has))]
    Field {
        /// Which.
        place: Place,
        /// The field asked for.
        field: String,
        /// The fields it has.
        has: Vec<String>,
    },
    /// A parquet file without the column.
    #[error("{} has no column `{column}` of text; {}", .path.display(), names(.has))]
    Column {
        /// The file.
        path: PathBuf,
        /// The column asked for.
        column: String,
        /// The columns of text it has.
        has: Vec<String>,
    },
    /// A file that is not what its name says, or damaged.
    #[error("{}: {what}", .path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// A prepared file whose bytes are not those that its checksum is of.
    #[error(
        "{}: its checksum is {found}, the manifest says {wanted}: it was changed or damaged after it was prepared; \
         prepare it \
         again or take it from a copy; one that was changed on purpose is read without the check",
        .path.display()
    )]
    Changed {
        /// The file.
        path: PathBuf,
        /// Of what is there.
        found: String,
        /// Of what was prepared.
        wanted: String,
    },
    /// A document that the tokenizer cannot encode.
    #[error("{place}")]
    Encode {
        /// Which.
        place: Place,
        /// Why.
        source: limpid_tokenizer::TokenizerError,
    },
    /// The tokenizer's file.
    #[error(transparent)]
    Tokenizer(#[from] limpid_tokenizer::TokenizerError),
    /// A folder that is being prepared already.
    #[error("{}: it is being prepared already: wait for that, or choose another folder", .0.display())]
    Busy(PathBuf),
    /// Stopped before the end; what is finished is kept.
    #[error("stopped; the same command resumes where it was")]
    Stopped,
}

fn not_text(field: &str, kind: &str) -> String {
    if field.is_empty() {
        return format!("is {kind}: expected a text, or an object with a field of text");
    }
    format!("has {kind} in the field `{field}`, which should be a text: name another field, or write its text as one")
}

/// What a document has, and what to do.
fn names(has: &[String]) -> String {
    let name = "name the field of the text";
    match has {
        [] => "it has none: write it as {\"text\": ...}".into(),
        _ if is_chat(&|key| has.iter().any(|own| own == key)) => {
            "it is a conversation: training and evaluation read such files as they are, without naming a field".into()
        }
        [first @ .., _] if has.len() > 8 => format!("it has {} ...: {name}", first[..8].join(", ")),
        _ => format!("it has {}: {name}", has.join(", ")),
    }
}

impl CorpusError {
    /// The settings that may help, by name.
    pub fn settings(&self) -> &'static [&'static str] {
        use CorpusError::{Busy, Changed, Column, Encode, Field, Json, Kind, NotUtf8, Tokenizer, TooLong, Zero};
        match self {
            NotUtf8 { .. } | Zero { .. } | TooLong { .. } | Json { .. } => &["skip_bad"],
            Field { .. } | Kind { .. } | Column { .. } => &["field"],
            Busy(_) => &["out"],
            Changed { .. } => &["no_verify"],
            Encode { source: error, .. } | Tokenizer(error) => error.settings(),
            _ => &[],
        }
    }

    /// Whether it is of one document or file, which can be left out.
    pub(super) fn skippable(&self) -> bool {
        use CorpusError::{Binary, Column, Encode, Field, Format, Json, Kind, NotUtf8, TooLong, Zero};
        matches!(
            self,
            NotUtf8 { .. }
                | Binary { .. }
                | Zero { .. }
                | TooLong { .. }
                | Json { .. }
                | Field { .. }
                | Kind { .. }
                | Column { .. }
                | Format { .. }
                | Encode { .. }
        )
    }
}

pub(super) fn at<T>(path: &Path, result: io::Result<T>) -> Result<T, CorpusError> {
    result.map_err(|fault| CorpusError::Io { path: path.into(), fault })
}

pub(super) fn bad(path: &Path, what: impl Into<String>) -> CorpusError {
    CorpusError::Format { path: path.into(), what: what.into() }
}

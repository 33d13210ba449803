//! Which files a name stands for, what each holds, and the unit in which `documents` and the readers of each format
//! pass text on.

use super::corpus_error::{CorpusError, LeftOut, Place, at, bad};
use std::ffi::OsStr;
use std::io::{self, BufRead};
use std::path::{Path, PathBuf};

/// Longest JSON line, item or parquet row that is read.
pub const LONGEST: usize = 128 << 20;

/// What a file holds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum TextFormat {
    /// One document.
    Text,
    /// One a line.
    JsonLines,
    /// An array of them, or JSON lines in a .json file.
    Json,
    /// One a row.
    Parquet,
}

impl TextFormat {
    /// The format of a file, from its name without `.gz` and `.zst`.
    fn from_name(path: &Path) -> Option<TextFormat> {
        let name = path.file_name()?.to_str()?.to_lowercase();
        let name = [".gz", ".zst"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(&name);
        match name.rsplit_once('.')?.1 {
            "txt" | "md" => Some(TextFormat::Text),
            "jsonl" | "ndjson" => Some(TextFormat::JsonLines),
            "json" => Some(TextFormat::Json),
            "parquet" => Some(TextFormat::Parquet),
            _ => None,
        }
    }

    /// Its name in messages.
    pub fn name(self) -> &'static str {
        match self {
            TextFormat::Text => "text",
            TextFormat::JsonLines => "JSON lines",
            TextFormat::Json => "JSON",
            TextFormat::Parquet => "parquet",
        }
    }

    /// The word for one of its documents in messages.
    pub(super) fn place(self) -> &'static str {
        match self {
            TextFormat::Text => "",
            TextFormat::JsonLines => "line",
            TextFormat::Json => "item",
            TextFormat::Parquet => "row",
        }
    }
}

/// A file to read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Input {
    /// Where; `-` is standard input.
    pub path: PathBuf,
    /// What it holds.
    pub kind: TextFormat,
    /// Its size; 0 for standard input.
    pub bytes: u64,
}

/// The files that names stand for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FoundFiles {
    /// What is read, in order.
    pub inputs: Vec<Input>,
    /// What is not read.
    pub left_out: LeftOut,
}

impl FoundFiles {
    fn push(&mut self, path: &Path, kind: TextFormat) -> Result<(), CorpusError> {
        let about = at(path, path.metadata())?;
        #[cfg(unix)]
        if std::os::unix::fs::FileTypeExt::is_char_device(&about.file_type()) {
            let device = io::Error::new(io::ErrorKind::InvalidInput, "it is a device, which may have no end");
            return at(path, Err(device)); // a pipe is read, as - is
        }
        self.inputs.push(Input { path: path.into(), kind, bytes: about.len() });
        Ok(())
    }

    fn folder(&mut self, path: &Path) -> Result<(), CorpusError> {
        let entries: io::Result<Vec<_>> = at(path, std::fs::read_dir(path))?.collect();
        let mut paths: Vec<PathBuf> = at(path, entries)?.into_iter().map(|entry| entry.path()).collect();
        paths.sort();
        for path in paths {
            // links to folders are left out: they may lead back to a folder above
            let is_folder = path.is_dir() && !path.is_symlink();
            let kind = TextFormat::from_name(&path).filter(|_| path.is_file());
            let named = path.file_name().is_some_and(|name| is_apart(name, is_folder) || is_about(name));
            if named && (is_folder || kind.is_some()) {
                self.left_out.0.push(path);
            } else if is_folder {
                self.folder(&path)?;
            } else if let Some(kind) = kind {
                self.push(&path, kind)?;
            }
        }
        Ok(())
    }
}

/// The files that names stand for: a file, a folder (all files below it with a known extension, sorted), a pattern like
/// `data/*.jsonl`, or `-`. A file that is named itself is text if its extension is unknown. As the `datasets` library
/// does, folders and patterns leave out hidden files and folders, folders such as `__pycache__`, and the files that
/// describe a dataset.
///
/// # Errors
/// If a name stands for nothing.
pub fn find(names: &[String], stdin: TextFormat) -> Result<FoundFiles, CorpusError> {
    let mut found = FoundFiles::default();
    for name in names {
        let path = Path::new(name);
        if name == "-" {
            found.inputs.push(Input { path: path.into(), kind: stdin, bytes: 0 });
            continue;
        }
        let before = found.inputs.len();
        for path in if path.exists() { vec![path.to_path_buf()] } else { matching(name) } {
            if path != Path::new(name) && !is_asked(&path, Path::new(name)) {
                found.left_out.0.push(path);
            } else if path.is_dir() {
                found.folder(&path)?;
            } else {
                found.push(&path, TextFormat::from_name(&path).unwrap_or(TextFormat::Text))?;
            }
        }
        if found.inputs.len() == before {
            return Err(if path.is_dir() {
                CorpusError::EmptyFolder { path: path.into(), left_out: found.left_out }
            } else {
                CorpusError::NotFound(name.clone())
            });
        }
    }
    Ok(found)
}

/// Whether the name is of a hidden file or folder, or of a folder that programs keep for themselves.
fn is_apart(name: &OsStr, is_folder: bool) -> bool {
    let name = name.to_string_lossy();
    name.starts_with('.') && !name.chars().all(|c| c == '.') || is_folder && name.starts_with("__")
}

/// Whether the name is of a file that describes a dataset.
fn is_about(name: &OsStr) -> bool {
    ["README.md", "config.json", "dataset_info.json", "dataset_infos.json", "dataset_dict.json"]
        .iter()
        .any(|about| name == *about)
}

/// Whether a pattern means a file that it fits: one that is hidden, or in a hidden folder, only where the pattern
/// writes that part out.
fn is_asked(path: &Path, pattern: &Path) -> bool {
    let is_folder = path.is_dir();
    let apart = |path: &Path| {
        let names: Vec<&OsStr> = path.iter().collect();
        let folder = |n: usize| is_folder || n + 1 < names.len();
        names.iter().enumerate().filter(|(n, name)| is_apart(name, folder(*n))).count()
    };
    let last = |path: &Path| path.file_name().is_some_and(|name| is_apart(name, false));
    let hidden = (apart(path), last(path)) == (apart(pattern), last(pattern));
    hidden && path.file_name().is_none_or(|name| !is_about(name) || pattern.ends_with(name))
}

/// The files and folders that a pattern stands for, sorted.
pub fn matching(pattern: &str) -> Vec<PathBuf> {
    glob::glob(pattern).map(|found| found.flatten().collect()).unwrap_or_default()
}

/// A document, or a part of a long text.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Unit {
    /// Which of the inputs it is from.
    pub file: usize,
    /// Its line, row or item, from 1; 0 for text.
    pub place: u64,
    /// The text.
    pub text: String,
    /// Bytes of the text.
    pub bytes: usize,
    /// Whether the document ends with it.
    pub last: bool,
}

pub(super) type TextSource = Box<dyn BufRead + Send>;

/// A failure inside a file that could be opened: the file is damaged.
pub(super) fn damaged<T>(input: &Input, result: io::Result<T>) -> Result<T, CorpusError> {
    result.map_err(|e| bad(&input.path, format!("it cannot be read to its end, it is cut short or damaged: {e}")))
}

impl Input {
    pub(super) fn place(&self, number: u64) -> Place {
        Place { path: self.path.clone(), unit: self.kind.place(), number }
    }
}

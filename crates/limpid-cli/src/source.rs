//! Where text comes from: a file, a folder of text files, or the built-in stories.

use anyhow::{Context, Result, bail};
use limpid::data::stories;
use limpid::tokenizer::{Kind, Order, Tokenizer};
use std::path::{Path, PathBuf};

/// Text, and what is known about it.
pub struct Text {
    /// The text to learn from (or all of it).
    pub train: String,
    /// The text to judge by.
    pub validation: String,
    /// Log-probability of the validation text under its own generator, in nats.
    pub log_probability: Option<f64>,
    /// What to call it.
    pub name: String,
}

/// Bytes of stories that are written when no size is asked for.
const STORIES: usize = 4 << 20;
/// Seeds of the stories to train and to validate on: never the same ones.
const SEEDS: [u64; 2] = [1, 2];

/// `builtin:stories` or `builtin:stories:10M`: the bytes to write.
fn stories_size(name: &str) -> Result<Option<usize>> {
    let Some(rest) = name.strip_prefix("builtin:") else { return Ok(None) };
    let (corpus, size) = rest.split_once(':').map_or((rest, None), |(c, s)| (c, Some(s)));
    if corpus != "stories" {
        bail!(
            "unknown built-in corpus `{corpus}`: there is `builtin:stories` (and `builtin:stories:20M` for 20 MB of it)"
        );
    }
    let Some(size) = size else { return Ok(Some(STORIES)) };
    let (digits, unit) = match size.to_uppercase().trim_end_matches('B') {
        s if s.ends_with('K') => (s.trim_end_matches('K').to_string(), 1 << 10),
        s if s.ends_with('M') => (s.trim_end_matches('M').to_string(), 1 << 20),
        s => (s.to_string(), 1),
    };
    match digits.parse::<usize>().ok().and_then(|n| n.checked_mul(unit)).filter(|n| (1..=1 << 30).contains(n)) {
        Some(bytes) => Ok(Some(bytes)),
        None => bail!("`{name}`: the size is a number of bytes like 500K or 20M, at most 1024M"),
    }
}

/// The text named by `--data`, split for training.
pub fn read(data: &str, val_fraction: f64) -> Result<Text> {
    if let Some(bytes) = stories_size(data)? {
        let (train, _) = stories::corpus(SEEDS[0], bytes);
        let (validation, log_probability) = if val_fraction > 0.0 {
            stories::corpus(SEEDS[1], ((bytes as f64 * val_fraction) as usize).clamp(1, 200 << 10))
        } else {
            (String::new(), 0.0)
        };
        return Ok(Text { train, validation, log_probability: Some(log_probability), name: data.into() });
    }
    let text = read_all(data)?;
    let mut cut = (text.len() as f64 * (1.0 - val_fraction)) as usize;
    while !text.is_char_boundary(cut) {
        cut -= 1;
    }
    let (train, validation) = text.split_at(cut);
    Ok(Text { train: train.into(), validation: validation.into(), log_probability: None, name: data.into() })
}

/// All of a text, for evaluation: stories that no training has seen.
pub fn read_whole(data: &str) -> Result<(String, Option<f64>)> {
    if let Some(bytes) = stories_size(data)? {
        let (text, log_probability) = stories::corpus(SEEDS[1], bytes.min(200 << 10));
        return Ok((text, Some(log_probability)));
    }
    Ok((read_all(data)?, None))
}

fn read_all(data: &str) -> Result<String> {
    let path = Path::new(data);
    let facts =
        path.metadata().with_context(|| format!("{data}: there is no such file or folder (or use builtin:stories)"))?;
    let text = if facts.is_dir() {
        let files = text_files(path)?;
        if files.is_empty() {
            bail!("{data}: the folder has no .txt or .md files");
        }
        let texts: Result<Vec<String>> = files.iter().map(|file| read_file(file)).collect();
        texts?.join("\n")
    } else {
        read_file(path)?
    };
    if text.is_empty() {
        bail!("{data} is empty: there is nothing to learn from");
    }
    Ok(text)
}

/// The .txt and .md files in a folder and those within, in order.
pub fn text_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = vec![];
    let mut entries: Vec<_> =
        std::fs::read_dir(folder).with_context(|| folder.display().to_string())?.flatten().collect();
    entries.sort_by_key(|e| e.path());
    for entry in entries {
        let path = entry.path();
        if path.is_dir() {
            files.extend(text_files(&path)?);
        } else if path.extension().is_some_and(|e| e == "txt" || e == "md") {
            files.push(path);
        }
    }
    Ok(files)
}

/// A text file; one that is not UTF-8 is an error that says where.
pub fn read_file(path: &Path) -> Result<String> {
    let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
    String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        let line = e.as_bytes()[..at].iter().filter(|b| **b == b'\n').count() + 1;
        anyhow::anyhow!(
            "{} is not UTF-8 text: byte {at} (line {line}) is 0x{:02X}; convert it first, for example with `iconv -f latin1 -t utf-8`",
            path.display(),
            e.as_bytes()[at]
        )
    })
}

/// `--prompt`: text, `@FILE`, or `-` for standard input.
pub fn prompt(given: &str) -> Result<String> {
    match given {
        "-" => std::io::read_to_string(std::io::stdin()).context("standard input"),
        _ => match given.strip_prefix('@') {
            Some(file) => read_file(Path::new(file)),
            None => Ok(given.into()),
        },
    }
}

/// The tokenizer named by `--tokenizer`, learned from the text where it is `char`, `word` or `bpe:SIZE`.
pub fn tokenizer(name: &str, text: &Text, specials: &[&str]) -> Result<Tokenizer> {
    let learn = |kind, order, special: &[&str]| {
        let all = [text.train.as_str(), text.validation.as_str()].concat();
        Ok(Tokenizer::train(kind, &all, order, &[special, specials].concat())?)
    };
    match name {
        "char" => learn(Kind::Char, Order::Sorted, &[]),
        "word" => learn(Kind::Word, Order::FirstAppearance, &["<UNK>"]),
        name if Path::new(name).is_file() => Ok(Tokenizer::load(Path::new(name))?),
        name => match name.strip_prefix("bpe:") {
            Some(size) => crate::verbs::learn::byte_pairs(size, &[&text.train, &text.validation], specials),
            None => Ok(Tokenizer::named(name)?),
        },
    }
}

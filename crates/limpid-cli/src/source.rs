//! Where text comes from: files and folders of documents, shards of tokens, or the built-in stories.

use crate::options::DataOptions;
use crate::show;
use crate::verbs::learn;
use anyhow::{Context, Result, bail};
use limpid::data::{
    self, CorpusError, DocumentReader, Kind as Form, Manifest, Shard, Tokens, Unit, boundary, encode, find, stories,
};
use limpid::ops::random;
use limpid::tokenizer::Tokenizer;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// What is known about a text.
#[derive(Clone, Debug, Default)]
pub struct Text {
    /// Log-probability of the validation text under its own generator, in nats.
    pub log_probability: Option<f64>,
    /// What to call it.
    pub name: String,
    /// What was read, if it was more than a text.
    pub read: Option<String>,
    /// Bytes of text, for validation or (of [`whole`]) all.
    pub bytes: u64,
    /// Some of what the tokenizer, which was there before the text, has no token for.
    pub unknown: Vec<String>,
}

/// Text as tokens.
pub struct Corpus {
    /// What is known about it.
    pub text: Text,
    /// Its tokenizer.
    pub tokenizer: Tokenizer,
    /// The name it was asked for by.
    pub tokenizer_name: String,
    /// Ids to learn from (or all).
    pub train: Tokens,
    /// Ids to judge by.
    pub validation: Tokens,
}

/// How to read it.
pub struct Wants<'a> {
    /// `--tokenizer`.
    pub tokenizer: Option<&'a str>,
    /// The tokenizer where none was asked for.
    pub default: &'a str,
    /// The tokenizer, where it is decided already.
    pub decided: Option<Tokenizer>,
    /// Special tokens that a learned one must have.
    pub specials: &'a [&'a str],
    /// Share of the text for validation.
    pub val_fraction: f64,
    /// `--field`, `--skip-bad`.
    pub data: &'a DataOptions,
    /// Threads that encode.
    pub threads: usize,
}

/// Most bytes of text that are held in memory.
const HELD: u64 = 2 << 30;
/// How many of a text's unknown words or characters are shown.
const SHOWN: usize = 5;

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

/// The tokens that `--data` names, split for training.
pub fn corpus(data: &str, wants: Wants) -> Result<Corpus> {
    if Manifest::exists(Path::new(data)) {
        return prepared(data, &wants);
    }
    let shards = shard_files(data);
    if !shards.is_empty() {
        return loose(data, shards, &wants);
    }
    let (train, validation, mut text) = documents(data, &wants)?;
    if let Some(tokenizer) = &wants.decided {
        text.unknown = unknown(tokenizer, train.iter().chain(&validation).map(String::as_str));
    }
    let (name, tokenizer) = match (&wants.decided, wants.tokenizer.unwrap_or(wants.default)) {
        (Some(tokenizer), name) => (name, tokenizer.clone()),
        (None, name) => (name, tokenizer(name, &|| learned(&train, &validation), wants.specials)?),
    };
    let read = |documents| tokens(documents, &tokenizer, wants.threads).with_context(|| data.to_string());
    let (train, validation) = (read(train)?, read(validation)?);
    for tokens in [&train, &validation] {
        tokens.check_ids(tokenizer.vocab_size())?;
    }
    Ok(Corpus { text, tokenizer_name: name.into(), tokenizer, train, validation })
}

/// What a tokenizer learns from: all documents, and the newline that stands between them where there are several.
fn learned<'a>(train: &'a [String], validation: &'a [String]) -> Vec<Cow<'a, str>> {
    let between = (train.len() > 1 || validation.len() > 1).then_some("\n");
    let all = train.iter().chain(validation).map(String::as_str);
    all.flat_map(|text| [Some(text), between]).flatten().map(Cow::from).collect()
}

/// All of a text, for evaluation, as `tokenizer` has it: stories that no training has seen, the validation part of a
/// prepared folder if it has one.
pub fn whole(data: &str, tokenizer: &Tokenizer, options: &DataOptions, threads: usize) -> Result<(Tokens, Text)> {
    if let Some(bytes) = stories_size(data)? {
        let (text, log_probability) = stories::corpus(SEEDS[1], bytes.min(200 << 10));
        let about = Text {
            log_probability: Some(log_probability),
            bytes: text.len() as u64,
            unknown: unknown(tokenizer, [text.as_str()]),
            ..Text::default()
        };
        return Ok((Tokens::of(tokenizer.encode(&text)?), about));
    }
    let decided = Some(tokenizer.clone());
    let (tokenizer, default, specials) = (None, "", &[][..]);
    let found =
        corpus(data, Wants { tokenizer, default, decided, specials, val_fraction: 0.0, data: options, threads })?;
    let tokens = if found.validation.is_empty() { found.train } else { found.validation };
    Ok((tokens, found.text))
}

/// Some of what a tokenizer has no token for.
pub fn unknown<'a>(tokenizer: &Tokenizer, texts: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    tokenizer.unknown_pieces(texts, SHOWN).into_iter().map(String::from).collect()
}

/// A folder that `data prepare` wrote.
fn prepared(data: &str, wants: &Wants) -> Result<Corpus> {
    let folder = Path::new(data);
    let manifest = Manifest::open(folder)?;
    let own = manifest.tokenizer(folder)?;
    let asked = match (&wants.decided, wants.tokenizer) {
        (Some(tokenizer), _) => Some(tokenizer.clone()),
        (None, Some(name)) if Path::new(name).is_file() => Some(Tokenizer::load(Path::new(name))?),
        (None, Some(name)) => Some(Tokenizer::named(name)?),
        (None, None) => None,
    };
    let name = &manifest.settings.tokenizer;
    if let Some(asked) = asked.filter(|asked| !manifest.made_with(asked)) {
        bail!(
            "{data} was prepared with the tokenizer {name} ({} tokens), not with this one ({}, {}): leave --tokenizer out, or prepare it anew",
            show::commas(manifest.settings.vocab_size as u64),
            asked.name(),
            show::commas(asked.vocab_size() as u64)
        );
    }
    let (train, validation) = (manifest.tokens(folder, "train")?, manifest.tokens(folder, "val")?);
    for tokens in [&train, &validation] {
        tokens.check_ids(own.vocab_size()).with_context(|| format!("{data} is damaged"))?;
    }
    let read = format!(
        "{} of {} in {}",
        show::plural(manifest.all().documents, "prepared document"),
        show::bytes(manifest.all().bytes),
        show::plural(manifest.train.shards.len() + manifest.val.shards.len(), "shard")
    );
    let bytes = if validation.is_empty() { manifest.train.all.bytes } else { manifest.val.all.bytes };
    let text = Text { name: data.into(), read: Some(read), bytes, ..Text::default() };
    Ok(Corpus { text, tokenizer: own, tokenizer_name: name.clone(), train, validation })
}

/// llm.c's shards that `data` names: a file, a folder that has nothing else, or a pattern.
pub fn shard_files(data: &str) -> Vec<PathBuf> {
    let path = Path::new(data);
    let is = |path: &Path| path.extension().is_some_and(|e| e == "bin");
    let mut files = match () {
        () if path.is_file() => vec![path.to_path_buf()],
        () if path.is_dir() && find(&[data.into()], Form::Text).is_err() => {
            std::fs::read_dir(path).map(|entries| entries.flatten().map(|e| e.path()).collect()).unwrap_or_default()
        }
        () if data.ends_with(".bin") => limpid::data::matching(data),
        () => vec![],
    };
    files.retain(|path| is(path));
    files.sort();
    files
}

/// Shards of llm.c: those with `val` in their name are for validation, or else the end of all.
fn loose(data: &str, files: Vec<PathBuf>, wants: &Wants) -> Result<Corpus> {
    let name = wants.tokenizer.unwrap_or("gpt2");
    let tokenizer = match &wants.decided {
        Some(tokenizer) => tokenizer.clone(),
        None if Path::new(name).is_file() => Tokenizer::load(Path::new(name))?,
        None => Tokenizer::named(name)?,
    };
    let val = |path: &PathBuf| path.file_name().is_some_and(|n| n.to_string_lossy().contains("val"));
    let count = files.len();
    let (mut validation, mut train): (Vec<_>, Vec<_>) = files.into_iter().partition(val);
    if train.is_empty() {
        std::mem::swap(&mut train, &mut validation);
    }
    let open = |files: Vec<PathBuf>| files.iter().map(|path| Shard::open(path, None)).collect::<Result<Vec<_>, _>>();
    let (mut train, mut validation) = (open(train)?, open(validation)?);
    if validation.is_empty() && wants.val_fraction > 0.0 {
        let all: usize = train.iter().map(Shard::len).sum();
        let whole = Tokens::of_shards(train.clone());
        let mut cut = good_cut(&whole, (all as f64 * (1.0 - wants.val_fraction)) as usize, &tokenizer)?;
        let mut kept = vec![];
        for shard in train {
            let len = shard.len();
            let (left, right) = shard.split(cut);
            cut -= cut.min(len);
            kept.push(left);
            validation.push(right);
        }
        train = kept;
    }
    let end = tokenizer.end_of_text();
    let tokens = |shards: Vec<Shard>| {
        let shards: Vec<Shard> = shards.into_iter().filter(|s| !s.is_empty()).collect();
        let last = shards.len().saturating_sub(1);
        let tokens =
            Tokens::of_shards(shards.into_iter().enumerate().map(|(i, s)| s.ended_by(end, i == last)).collect());
        let hint = || {
            format!("{data}: are these shards of another tokenizer than {}? name it with --tokenizer", tokenizer.name())
        };
        tokens.check_ids(tokenizer.vocab_size()).with_context(hint)?;
        anyhow::Ok(tokens)
    };
    let (train, validation) = (tokens(train)?, tokens(validation)?);
    let judged = if validation.is_empty() { &train } else { &validation };
    let (mut bytes, mut ids) = (0, vec![]);
    for start in (0..judged.len()).step_by(1 << 16) {
        ids.clear();
        judged.copy(start..(start + (1 << 16)).min(judged.len()), &mut ids);
        ids.retain(|id| Some(*id) != end);
        bytes += tokenizer.decode_bytes(&ids)?.len() as u64;
    }
    let read = Some(format!("{} of tokens", show::plural(count, "shard")));
    let text = Text { name: data.into(), read, bytes, ..Text::default() };
    Ok(Corpus { text, tokenizer, tokenizer_name: name.into(), train, validation })
}

/// The place nearest to `at` to cut tokens: the end of a document within a tenth of what is kept for validation, else one
/// before a word.
fn good_cut(tokens: &Tokens, at: usize, tokenizer: &Tokenizer) -> Result<usize> {
    let (end, len) = (tokenizer.end_of_text(), tokens.len());
    let near = |reach: usize| (0..=reach).flat_map(move |d| [at.checked_sub(d), Some(at + d)]).flatten();
    let inside = |i: &usize| 0 < *i && *i < len;
    if let Some(cut) = near((len - at) / 10).filter(inside).find(|i| Some(tokens.id(i - 1)) == end) {
        return Ok(cut);
    }
    for cut in near(1 << 10).filter(inside) {
        let (before, after) =
            (tokenizer.decode_bytes(&[tokens.id(cut - 1)])?, tokenizer.decode_bytes(&[tokens.id(cut)])?);
        if before.last().is_none_or(u8::is_ascii_whitespace) || after.first().is_none_or(u8::is_ascii_whitespace) {
            return Ok(cut);
        }
    }
    Ok(at)
}

/// The texts that `data` names, those to learn from and those to judge by.
fn documents(data: &str, wants: &Wants) -> Result<(Vec<String>, Vec<String>, Text)> {
    let fraction = wants.val_fraction;
    if let Some(bytes) = stories_size(data)? {
        let (train, _) = stories::corpus(SEEDS[0], bytes);
        let (validation, log_probability) = if fraction > 0.0 {
            stories::corpus(SEEDS[1], ((bytes as f64 * fraction) as usize).clamp(1, 200 << 10))
        } else {
            (String::new(), 0.0)
        };
        let bytes = validation.len() as u64;
        let text = Text { log_probability: Some(log_probability), name: data.into(), bytes, ..Text::default() };
        return Ok((vec![train], vec![validation], text));
    }
    let mut read = Read::new(&[data.into()], wants.data)?;
    let mut all: Vec<String> = vec![];
    let (mut within, mut held) = (false, 0);
    for unit in read.documents.by_ref() {
        let unit = unit?;
        held += unit.bytes as u64;
        if held > HELD {
            bail!(
                "{data} has more than {} of text, the most that is held in memory: \
                 `limpid data prepare {data} --out DIR` once, then train on DIR",
                show::bytes(HELD)
            );
        }
        match all.last_mut().filter(|_| within) {
            Some(text) => text.push_str(&unit.text),
            None => all.push(unit.text),
        }
        within = !unit.last;
    }
    let bytes = all.iter().map(String::len).sum::<usize>();
    if bytes == 0 {
        bail!(CorpusError::Empty(data.into()));
    }
    let said = read.said(all.len() as u64, bytes as u64);
    let (train, validation) = split(all, bytes, fraction);
    let text = Text { name: data.into(), read: said, bytes: bytes as u64, ..Text::default() };
    Ok((train, validation, text))
}

/// By documents where there are many, else at the end of the text that they make: after a document if one ends there, or
/// where a text may be cut.
fn split(mut all: Vec<String>, bytes: usize, fraction: f64) -> (Vec<String>, Vec<String>) {
    if fraction == 0.0 {
        return (all, vec![]);
    }
    if all.len() as f64 * fraction >= 10.0 {
        let val = |n: usize| n > 0 && random::uniform(0, random::site("validation"), n as u64) < fraction;
        let (validation, train): (Vec<_>, Vec<_>) = all.into_iter().enumerate().partition(|(n, _)| val(*n));
        return (train.into_iter().map(|d| d.1).collect(), validation.into_iter().map(|d| d.1).collect());
    }
    let mut at = (bytes as f64 * (1.0 - fraction)) as usize;
    let reach = at.min(bytes - at) / 10;
    let mut first = 0; // of those that do not end before the place
    while first + 1 < all.len() && at >= all[first].len() {
        at -= all[first].len();
        first += 1;
    }
    let text = &mut all[first];
    let to_end = text.len().saturating_sub(at);
    let cut = match () {
        () if first > 0 && at <= reach.min(to_end) => 0,
        () if to_end <= reach => text.len(),
        () => boundary(text, at, reach),
    };
    let rest = text.split_off(cut);
    let after = all.split_off(first + 1);
    let validation = std::iter::once(rest).chain(after).filter(|text| !text.is_empty()).collect();
    all.retain(|text| !text.is_empty());
    (all, validation)
}

/// Documents one after the other, the tokenizer's end of text between them, or a newline where it has none.
fn tokens(documents: Vec<String>, tokenizer: &Tokenizer, threads: usize) -> Result<Tokens> {
    let (end, count) = (tokenizer.end_of_text(), documents.len());
    let (mut ids, mut ends) = (vec![], vec![]);
    let unit = |(n, mut text): (usize, String)| {
        if end.is_none() && n + 1 < count {
            text.push('\n');
        }
        Ok((Unit { bytes: text.len(), text, last: true, ..Unit::default() }, ()))
    };
    let mut failed = None;
    let read = encode(
        &mut documents.into_iter().enumerate().map(unit),
        &|()| true,
        tokenizer,
        threads,
        &mut |_, (), found| {
            ids.extend(found.map_err(|e| failed = Some(e)).map_err(|()| CorpusError::Stopped)?);
            ids.extend(end.filter(|_| ends.len() + 1 < count));
            ends.push(ids.len());
            Ok(())
        },
    );
    match (failed, read) {
        (Some(error), _) => Err(error.into()),
        (None, read) => Ok(read.map(|()| Tokens::of_documents(ids, ends, None))?),
    }
}

/// Documents that are being read.
pub struct Read {
    /// They.
    pub documents: DocumentReader,
    files: BTreeMap<Form, usize>,
}

impl Read {
    /// Finds what `names` stand for.
    pub fn new(names: &[String], options: &DataOptions) -> Result<Read> {
        let inputs = find(names, options.stdin())?;
        let mut files = BTreeMap::new();
        inputs.iter().for_each(|input| *files.entry(input.kind).or_default() += 1);
        Ok(Read { documents: DocumentReader::new(inputs, options.field(), options.skip_bad), files })
    }

    /// What was read, where that is more than a text.
    pub fn said(&self, documents: u64, bytes: u64) -> Option<String> {
        let plain = documents == 1 && self.files.keys().eq([&Form::Text]);
        (!plain || self.documents.bad + self.documents.empty > 0).then(|| {
            let kinds: Vec<String> = self.files.iter().map(|(kind, n)| format!("{n} {}", kind.name())).collect();
            let (documents, bytes) = (show::plural(documents, "document"), show::bytes(bytes));
            let files = if self.files.values().sum::<usize>() == 1 { "file" } else { "files" };
            let left = left_out(self.documents.empty, self.documents.bad, &self.documents.complaints);
            format!("read {} {files}: {documents}, {bytes} of text{left}", kinds.join(", "))
        })
    }
}

/// What was left out, and why.
pub fn left_out(empty: u64, bad: u64, complaints: &[String]) -> String {
    let mut said = String::new();
    if empty > 0 {
        said += &format!("; {} empty ones left out", show::commas(empty));
    }
    if bad > 0 {
        said += &format!("; {} bad ones left out:", show::commas(bad));
        complaints.iter().for_each(|c| said += &format!("\n  {c}"));
    }
    said
}

/// One text in memory: a file, or the built-in stories.
pub fn text(data: &str) -> Result<String> {
    match stories_size(data)? {
        Some(bytes) => Ok(stories::corpus(SEEDS[0], bytes).0),
        None => read_file(Path::new(data)),
    }
}

/// A text file; one that is not UTF-8 is an error that says where.
pub fn read_file(path: &Path) -> Result<String> {
    Ok(data::read_text(path, HELD)?)
}

/// `--prompt`: text, or `@FILE` or `-` for standard input, which end with a newline that is not meant: the last one of a
/// file or pipe is no part of the prompt.
pub fn prompt(given: &str) -> Result<String> {
    let mut text = match given {
        "-" => {
            let mut text = String::new();
            let read = std::io::stdin().lock().take(HELD + 1).read_to_string(&mut text).context("standard input")?;
            if read as u64 > HELD {
                bail!("standard input has more than {}, the most that is held in memory", show::bytes(HELD));
            }
            text
        }
        _ => match given.strip_prefix('@') {
            Some(file) => read_file(Path::new(file))?,
            None => return Ok(given.into()),
        },
    };
    if text.ends_with('\n') {
        text.truncate(text.len() - if text.ends_with("\r\n") { 2 } else { 1 });
    }
    Ok(text)
}

/// Byte pairs that suit a text of so many bytes: fewer would use less of a large one, more would be learned by heart from a small
/// one (docs/presets.md has what was measured).
fn suited(bytes: usize) -> usize {
    1 << (bytes / 256).max(1).ilog2().clamp(9, 11)
}

/// The tokenizer of that name or file, learned from the texts where it is `char`, `word`, `bpe` or `bpe:SIZE`: the same as
/// `tokenize train` learns.
pub fn tokenizer<'a>(name: &str, texts: &dyn Fn() -> Vec<Cow<'a, str>>, specials: &[&str]) -> Result<Tokenizer> {
    match (name, name.strip_prefix("bpe:")) {
        ("char" | "word", _) => learn::tokenizer(name, None, &texts(), specials),
        ("bpe", _) => {
            let texts = texts();
            let size = suited(texts.iter().map(|text| text.len()).sum());
            learn::tokenizer("bpe", Some(size), &texts, specials)
        }
        (_, Some(size)) => learn::tokenizer("bpe", Some(learn::size(size)?), &texts(), specials),
        _ if Path::new(name).is_file() => Ok(Tokenizer::load(Path::new(name))?),
        _ => Ok(Tokenizer::named(name)?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(all: &[&str], fraction: f64) -> (Vec<String>, Vec<String>) {
        let all: Vec<String> = all.iter().map(|text| text.to_string()).collect();
        let bytes = all.iter().map(String::len).sum();
        let (train, validation) = split(all.clone(), bytes, fraction);
        assert_eq!([train.concat(), validation.concat()].concat().len(), bytes, "nothing is lost");
        (train, validation)
    }

    #[test]
    fn validation_begins_with_a_word_a_line_or_a_document() {
        let toy = "cat eat mouse\ndog chase cat\nmouse eat cheese";
        let (train, validation) = parts(&[toy], 0.1);
        assert_eq!((train[0].as_str(), validation[0].as_str()), ("cat eat mouse\ndog chase cat\nmouse eat ", "cheese"));
        for n in 1..100 {
            let words: Vec<&str> = toy.split_whitespace().collect();
            let (train, validation) = parts(&[toy], f64::from(n) / 100.0);
            let found: Vec<&str> = train.iter().chain(&validation).flat_map(|t| t.split_whitespace()).collect();
            assert_eq!(found, words, "{n} %");
            assert!(!train.is_empty() && !validation.is_empty(), "{n} %");
        }
        // the line that ends near it, and no line further away
        let lines = "The line has thirty-three bytes.\n".repeat(100);
        let (train, _) = parts(&[&lines], 0.1);
        assert!(train[0].ends_with('\n') && (2900..3100).contains(&train[0].len()), "{}", train[0].len());
        // between documents, where one ends near
        assert_eq!(parts(&["x", &lines, &lines[..350]], 0.1).1, [&lines[..350]]);
        assert_eq!(parts(&["a b", "c d"], 0.5), (vec!["a b".into()], vec!["c d".into()]));
        assert_eq!(parts(&["a b", "c d"], 0.0).1, [""; 0]);
        let many: Vec<String> = (0..200).map(|n| format!("document {n}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let (train, validation) = parts(&many, 0.2);
        assert!(validation.len() > 20 && train.len() + validation.len() == 200);
    }
}

//! Turns a text, given by name, into tokens: files and folders of documents, prepared folders, llm.c's shards,
//! conversations, and the built-in texts.
//!
//! A [`TextSource`] names a text and says how to read it. [`TextSource::read`] returns a [`Corpus`]: ids to train on
//! and ids to validate on. The command line reads and splits texts with it, and so can a program. `documents`,
//! `encode`, `manifest` and `shards` do the work.

use crate::chat::{self, Chat, Conversation};
use crate::corpus_error::bad;
use crate::documents::first_item;
use crate::template::{ChatTemplate, TemplateError, TemplateTokens};
use crate::toys::{TOYS, Toy};
use crate::{
    CorpusError, DataError, DocumentReader, Encoder, FoundFiles, Input, LeftOut, Manifest, Shard, TextFormat, Tokens,
    Unit, boundary, encode, find, matching, read_text, stories, text_bytes,
};
use limpid_base::plural::plural;
use limpid_base::{random, units};
use limpid_tokenizer::{self as tokenizer, Tokenizer};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// The most bytes of text that are held in memory.
pub const HELD: u64 = 2 << 30;
/// The most unknown words or characters of a text that are shown.
const SHOWN: usize = 5;
/// Bytes of the built-in stories, if no size is given.
const STORIES: usize = 4 << 20;
/// Seeds of the stories to train, to validate and to tune on, which differ so that the stories do.
const SEEDS: [u64; 3] = [1, 2, 3];

/// Why a text cannot be turned into tokens.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// Files and documents.
    #[error(transparent)]
    Corpus(#[from] CorpusError),
    /// Tokens.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The tokenizer, or a text that it has no ids for.
    #[error(transparent)]
    Tokenizer(#[from] tokenizer::TokenizerError),
    /// A conversation that cannot be read.
    #[error(transparent)]
    Chat(#[from] chat::ChatError),
    /// A conversation that a model's template does not write.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// Any of these, with the name of the text.
    #[error("{about}")]
    Of {
        /// The text.
        about: String,
        /// What is wrong.
        source: Box<SourceError>,
    },
    /// A corpus that is not built in.
    #[error(
        "unknown built-in corpus `{}`: there is `builtin:stories` (and `builtin:stories:20M` for 20 MiB of it), and of \
         the documents' \
         examples {}", .0, toys()
    )]
    BuiltIn(String),
    /// A size of the stories that cannot be read.
    #[error("`{0}`: the size is a number of bytes like 500K or 20M (M is MiB), at most 1024M")]
    Size(String),
    /// More text than is held.
    #[error(
        "{name} has more than {} of text, the most that is held in memory: prepare it once as shards of tokens, then \
         train on those",
        units::bytes(HELD)
    )]
    Large {
        /// The text.
        name: String,
    },
    /// A prepared folder, used with another tokenizer than it was prepared with.
    #[error(
        "{name} was prepared with the tokenizer {made_with}, not with this one ({asked}): name none, or prepare it \
         anew"
    )]
    OtherTokenizer {
        /// The folder.
        name: String,
        /// Its tokenizer, and how many tokens that has.
        made_with: String,
        /// The tokenizer asked for, and how many tokens it has.
        asked: String,
    },
    /// Shards with ids outside the tokenizer's vocabulary.
    #[error("{name}: are these shards of another tokenizer than {tokenizer}? name theirs")]
    OtherShards {
        /// The shards.
        name: String,
        /// The tokenizer.
        tokenizer: String,
        /// The first id that is not its own.
        source: Box<CorpusError>,
    },
}

impl SourceError {
    /// The settings that may help, each with its name and, if one is known, a value.
    pub fn settings(&self) -> Vec<String> {
        let names = match self {
            SourceError::Corpus(error) => error.settings(),
            SourceError::Tokenizer(error) => error.settings(),
            SourceError::Data(error) => return error.settings(),
            SourceError::Of { source, .. } => return source.settings(),
            SourceError::OtherShards { .. } => &["tokenizer"],
            _ => &[],
        };
        names.iter().map(ToString::to_string).collect()
    }
}

type Result<T, E = SourceError> = std::result::Result<T, E>;

/// Adds the name of the text to an error.
fn with_name<T, E: Into<SourceError>>(name: &str, result: Result<T, E>) -> Result<T> {
    result.map_err(|error| SourceError::Of { about: name.into(), source: Box::new(error.into()) })
}

/// What is known about a text, besides its tokens.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct About {
    /// Log-probability of the validation text under its own generator, in nats.
    pub log_probability: Option<f64>,
    /// Its name.
    pub name: String,
    /// What was read, in words, if it was more than one text file.
    pub read: Option<String>,
    /// Bytes of the validation text, or of all text if it came from [`TextSource::whole`].
    pub bytes: u64,
    /// Some words or characters of the text for which the tokenizer has no token.
    pub unknown: Vec<String>,
}

/// A text as tokens, split for training.
#[derive(Clone)]
#[non_exhaustive]
pub struct Corpus {
    /// What is known about it.
    pub about: About,
    /// Its tokenizer.
    pub tokenizer: Tokenizer,
    /// The name by which that tokenizer was chosen.
    pub tokenizer_name: String,
    /// Ids to train on, or all ids.
    pub train: Tokens,
    /// Ids to validate on.
    pub validation: Tokens,
}

/// A text by name, and how to turn it into tokens.
///
/// ```
/// # use limpid_data::source::TextSource;
/// let mut source = TextSource::of_text("to be or not to be, that is the question. ".repeat(9));
/// source.tokenizer = Some("char".into());
/// let corpus = source.read()?;
/// assert!(corpus.train.len() > 5 * corpus.validation.len());
/// # Ok::<(), limpid_data::source::SourceError>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TextSource {
    /// A file, folder or pattern of text, JSON lines and parquet (also .gz, .zst), a folder of
    /// [`prepare`](crate::prepare), llm.c's .bin, `-` for standard input, `builtin:stories` or `builtin:stories:SIZE`,
    /// `builtin:` and the name of a [`Toy`].
    pub name: String,
    /// The tokenizer's name or file: see [`Tokenizer::for_texts`].
    pub tokenizer: Option<String>,
    /// The tokenizer if no other is named and the text has none of its own.
    pub default_tokenizer: String,
    /// The tokenizer itself, if it is given: that of a model that is fine-tuned, or of a run that is resumed.
    pub decided: Option<Tokenizer>,
    /// Special tokens that a newly learned tokenizer gets before [`TextSource::added`].
    pub specials: Vec<String>,
    /// Special tokens that any tokenizer must have; those that it lacks get the next ids.
    pub added: Vec<String>,
    /// Share of the text for validation: at least 0 and less than 1.
    pub val_fraction: f64,
    /// Whether to validate on a text for tuning, which leaves the validation text unread: other stories, or the same
    /// share of the training text, which is then not trained on. For documents in memory and files of text.
    pub tuning: bool,
    /// The field that holds the text in JSON and parquet, if it is not `text`; standard input is then read as JSON
    /// lines.
    pub field: Option<String>,
    /// Whether documents that cannot be read are skipped.
    pub skip_bad: bool,
    /// Whether the text of a special token in a document becomes that token, or is encoded like other text.
    pub parse_special: bool,
    /// Whether the checksums of prepared shards are verified.
    pub verify: bool,
    /// The number of threads that encode.
    pub threads: usize,
    /// The text itself, if it is in memory.
    text: Option<String>,
    /// Standard input, which is read whole the first time that it is needed.
    stdin: OnceLock<Arc<[u8]>>,
}

impl TextSource {
    /// A text by name. By default, byte pairs are learned from it, a tenth is kept for validation, and one thread
    /// encodes.
    pub fn new(name: impl Into<String>) -> TextSource {
        TextSource {
            name: name.into(),
            tokenizer: None,
            default_tokenizer: "bpe".into(),
            decided: None,
            specials: vec![],
            added: vec![],
            val_fraction: 0.1,
            tuning: false,
            field: None,
            skip_bad: false,
            parse_special: true,
            verify: true,
            threads: 1,
            text: None,
            stdin: OnceLock::new(),
        }
    }

    /// A text in memory, as one document.
    pub fn of_text(text: impl Into<String>) -> TextSource {
        TextSource { text: Some(text.into()), ..TextSource::new("the text") }
    }

    /// The tokens, split for training.
    ///
    /// # Errors
    /// If the text cannot be read, has no token for validation or training, or does not fit the tokenizer.
    pub fn read(&self) -> Result<Corpus> {
        if self.text.is_none() {
            if Manifest::exists(Path::new(&self.name)) {
                return self.prepared();
            }
            let shards = shard_files(&self.name);
            if !shards.is_empty() {
                return self.shards(shards);
            }
        }
        let (train, validation, mut about) = self.documents()?;
        if let Some(tokenizer) = &self.decided {
            about.unknown = unknown(tokenizer, train.iter().chain(&validation).map(String::as_str));
        }
        let name = self.tokenizer_name();
        let tokenizer = self.tokenizer(&|| learned(&train, &validation))?;
        let encoder = Encoder { tokenizer: &tokenizer, parse_special: self.parse_special, threads: self.threads };
        let read = |documents| with_name(&self.name, tokens(documents, encoder));
        let (train, validation) = (read(train)?, read(validation)?);
        for tokens in [&train, &validation] {
            tokens.check_ids(tokenizer.vocab_size())?;
        }
        Ok(Corpus { about, tokenizer_name: name.into(), tokenizer, train, validation })
    }

    /// All of the text, for evaluation, in the tokens of `tokenizer`. For the built-in stories these are stories that
    /// no training has seen; for a prepared folder, its validation part if it has one.
    ///
    /// # Errors
    /// As [`TextSource::read`].
    pub fn whole(&self, tokenizer: &Tokenizer) -> Result<(Tokens, About)> {
        if let Some(BuiltIn::Stories(bytes)) = self.built_in()? {
            let (text, log_probability) = stories::corpus(SEEDS[1], bytes.min(200 << 10));
            let about = About {
                log_probability: Some(log_probability),
                bytes: text.len() as u64,
                unknown: unknown(tokenizer, [text.as_str()]),
                ..About::default()
            };
            return Ok((Tokens::new(tokenizer.encode(&text)?), about));
        }
        let all = TextSource { tokenizer: None, decided: Some(tokenizer.clone()), val_fraction: 0.0, ..self.clone() };
        let found = all.read()?;
        let tokens = if found.validation.is_empty() { found.train } else { found.validation };
        Ok((tokens, found.about))
    }

    /// Its conversations, if files (or standard input) begin with one and no field is named. The last of them are kept
    /// for validation.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn conversations(&self) -> Result<Option<Conversations>> {
        let (mut all, mut held) = (vec![], 0);
        let keep = &mut |conversation, bytes| {
            all.push(conversation);
            held += bytes as u64;
            if held > HELD { Err(SourceError::Large { name: self.name.clone() }) } else { Ok(()) }
        };
        let Some(chat) = self.each_conversation(keep)? else { return Ok(None) };
        let all = with_name(&self.name, Chat { conversations: all, ..chat }.some())?;
        let train = (all.conversations.len() as f64 * (1.0 - self.val_fraction)).ceil() as usize;
        Ok(Some(Conversations { name: self.name.clone(), all, train }))
    }

    /// Gives `each` one conversation after the other, with the bytes of its JSON, if files (or standard input) begin
    /// with one and no field is named. What is returned says what was skipped.
    ///
    /// # Errors
    /// If one cannot be read, or `each` fails.
    pub fn each_conversation(&self, each: &mut dyn FnMut(Conversation, usize) -> Result<()>) -> Result<Option<Chat>> {
        let documents = self.text.is_some() || self.field.is_some() || self.name.starts_with("builtin:");
        if documents || Manifest::exists(Path::new(&self.name)) || !shard_files(&self.name).is_empty() {
            return Ok(None);
        }
        let Some(FoundFiles { inputs, left_out }) = self.chat_files()? else { return Ok(None) };
        let mut chat = Chat { left_out, ..Chat::default() };
        for unit in DocumentReader::items(inputs.clone(), false).with_stdin(self.stdin()?) {
            let mut bytes = 0;
            let read = unit.map_err(chat::ChatError::from).and_then(|unit| {
                bytes = unit.bytes;
                chat.push(DocumentReader::place(&inputs, &unit), &unit.text)
            });
            read.or_else(|error| chat.skip(error, self.skip_bad))?;
            chat.conversations.drain(..).try_for_each(|conversation| each(conversation, bytes))?;
        }
        Ok(Some(chat))
    }

    /// The files, if their first items are conversations. The first file of data decides for all.
    ///
    /// # Errors
    /// If there is plain text among files of conversations, or standard input cannot be read.
    fn chat_files(&self) -> Result<Option<FoundFiles>> {
        let Ok(found) = find(std::slice::from_ref(&self.name), TextFormat::Text) else { return Ok(None) };
        let stdin = self.stdin()?;
        let (mut inputs, mut text, mut is_chat) = (vec![], None, false);
        for input in found.inputs {
            match first_item(&input, stdin.clone()).filter(|(_, first)| chat::is_chat(first)) {
                Some((kind, _)) => {
                    is_chat = true;
                    inputs.push(Input { kind, ..input });
                }
                None if input.kind != TextFormat::Text && !is_chat => return Ok(None),
                None => {
                    if input.kind == TextFormat::Text {
                        text.get_or_insert_with(|| input.path.clone());
                    }
                    inputs.push(input);
                }
            }
        }
        if !is_chat {
            return Ok(None);
        }
        if let Some(path) = text {
            let what = "it is text, and there are conversations beside it: name those alone, with a pattern like \
                        'FOLDER/*.jsonl'";
            return Err(bad(&path, what).into());
        }
        Ok(Some(FoundFiles { inputs, ..found }))
    }

    /// Standard input, if that is the text. It is read once.
    fn stdin(&self) -> Result<Option<Arc<[u8]>>> {
        if self.name != "-" {
            return Ok(None);
        }
        if self.stdin.get().is_none() {
            let mut bytes = vec![];
            let read = io::stdin().lock().take(HELD + 1).read_to_end(&mut bytes);
            read.map_err(|fault| CorpusError::Io { path: "-".into(), fault })?;
            if bytes.len() as u64 > HELD {
                return Err(SourceError::Large { name: "standard input".into() });
            }
            _ = self.stdin.set(bytes.into());
        }
        Ok(self.stdin.get().cloned())
    }

    /// The built-in text that it names.
    fn built_in(&self) -> Result<Option<BuiltIn>> {
        if self.text.is_some() { Ok(None) } else { built_in(&self.name) }
    }

    /// What is known of it: its name, what was read, and how many bytes of it judge a model.
    fn about(&self, read: Option<String>, bytes: u64) -> About {
        About { name: self.name.clone(), read, bytes, ..About::default() }
    }

    /// The name of its tokenizer.
    fn tokenizer_name(&self) -> &str {
        let own = match self.built_in() {
            Ok(Some(BuiltIn::Toy(toy))) if self.decided.is_none() => Some(toy.tokenizer),
            _ => None,
        };
        let decided = self.decided.as_ref().map(Tokenizer::name);
        self.tokenizer.as_deref().or(own).or(decided).unwrap_or(&self.default_tokenizer)
    }

    /// Its tokenizer, which is learned from `texts` if its name says so.
    fn tokenizer<'a>(&self, texts: &dyn Fn() -> Vec<Cow<'a, str>>) -> Result<Tokenizer> {
        let tokenizer = match &self.decided {
            Some(tokenizer) => tokenizer.clone(),
            None => {
                let specials = [self.specials.as_slice(), &self.added].concat();
                Tokenizer::for_texts(self.tokenizer_name(), texts, &specials, self.threads)?
            }
        };
        Ok(tokenizer.with_specials(&self.added)?)
    }

    /// The tokenizer that is given, or named; none is learned.
    fn asked(&self) -> Result<Option<Tokenizer>> {
        match &self.decided {
            Some(tokenizer) => Ok(Some(tokenizer.clone())),
            None => Ok(self.tokenizer.as_ref().map(|name| Tokenizer::known(name)).transpose()?),
        }
    }

    /// A folder that [`prepare`](crate::prepare) wrote.
    fn prepared(&self) -> Result<Corpus> {
        let folder = Path::new(&self.name);
        let manifest = Manifest::open(folder)?;
        let own = manifest.tokenizer(folder)?;
        let name = &manifest.settings.tokenizer;
        if let Some(asked) = self.asked()?.filter(|asked| !manifest.made_with(asked)) {
            return Err(SourceError::OtherTokenizer {
                name: self.name.clone(),
                made_with: format!("{name} ({})", plural(manifest.settings.vocab_size, "token")),
                asked: format!("{}, {}", asked.name(), units::commas(asked.vocab_size() as u64)),
            });
        }
        let (train, validation) =
            (manifest.tokens(folder, "train", self.verify)?, manifest.tokens(folder, "val", self.verify)?);
        for tokens in [&train, &validation] {
            with_name(&format!("{} is damaged", self.name), tokens.check_ids(own.vocab_size()))?;
        }
        let read = format!(
            "{} of {} in {}",
            plural(manifest.all().documents, "prepared document"),
            units::bytes(manifest.all().bytes),
            plural(manifest.train.shards.len() + manifest.val.shards.len(), "shard")
        );
        let bytes = if validation.is_empty() { manifest.train.all.bytes } else { manifest.val.all.bytes };
        let about = self.about(Some(read), bytes);
        Ok(Corpus { about, tokenizer: own, tokenizer_name: name.clone(), train, validation })
    }

    /// Shards of llm.c. Those with `val` in their name are for validation; if there are none, the end of all shards is.
    fn shards(&self, files: Vec<PathBuf>) -> Result<Corpus> {
        let name = self.tokenizer.as_deref().unwrap_or("gpt2");
        let tokenizer = self.asked()?.map_or_else(|| Tokenizer::known(name), Ok)?;
        let val = |path: &PathBuf| path.file_name().is_some_and(|n| n.to_string_lossy().contains("val"));
        let count = files.len();
        let (mut validation, mut train): (Vec<_>, Vec<_>) = files.into_iter().partition(val);
        if train.is_empty() {
            std::mem::swap(&mut train, &mut validation);
        }
        let open =
            |files: Vec<PathBuf>| files.iter().map(|path| Shard::open(path, None)).collect::<Result<Vec<_>, _>>();
        let (mut train, mut validation) = (open(train)?, open(validation)?);
        for shards in [&train, &validation] {
            let other = |source| {
                let (name, tokenizer) = (self.name.clone(), tokenizer.name().into());
                SourceError::OtherShards { name, tokenizer, source: Box::new(source) }
            };
            Tokens::of_shards(shards.clone()).check_ids(tokenizer.vocab_size()).map_err(other)?;
        }
        if validation.is_empty() && self.val_fraction > 0.0 {
            (train, validation) = split_shards(train, self.val_fraction, &tokenizer)?;
        }
        let end = tokenizer.end_of_text();
        let tokens = |shards: Vec<Shard>| {
            let shards: Vec<Shard> = shards.into_iter().filter(|s| !s.is_empty()).collect();
            let last = shards.len().saturating_sub(1);
            Tokens::of_shards(shards.into_iter().enumerate().map(|(i, s)| s.ended_by(end, i == last)).collect())
        };
        let (train, validation) = (tokens(train), tokens(validation));
        let judged = if validation.is_empty() { &train } else { &validation };
        let bytes = text_bytes(judged, &tokenizer)?.unwrap_or(0) as u64;
        let about = self.about(Some(format!("{} of tokens", plural(count, "shard"))), bytes);
        Ok(Corpus { about, tokenizer_name: name.into(), tokenizer, train, validation })
    }

    /// The texts to train on and to validate on.
    fn documents(&self) -> Result<(Vec<String>, Vec<String>, About)> {
        let fraction = self.val_fraction;
        let (all, read) = match (&self.text, self.built_in()?) {
            (Some(text), _) if text.is_empty() => return Err(CorpusError::Empty(self.name.clone()).into()),
            (Some(text), _) => (vec![text.clone()], None),
            (None, Some(BuiltIn::Stories(bytes))) => {
                let (train, _) = stories::corpus(SEEDS[0], bytes);
                let (validation, log_probability) = if fraction > 0.0 {
                    stories::corpus(
                        SEEDS[1 + usize::from(self.tuning)],
                        ((bytes as f64 * fraction) as usize).clamp(1, 200 << 10),
                    )
                } else {
                    (String::new(), 0.0)
                };
                let about = self.about(None, validation.len() as u64);
                let about = About { log_probability: Some(log_probability), ..about };
                return Ok((vec![train], vec![validation], about));
            }
            (None, Some(BuiltIn::Toy(toy))) => {
                (toy.documents.iter().map(ToString::to_string).collect(), Some(toy.about.to_string()))
            }
            (None, None) => self.files()?,
        };
        let bytes = all.iter().map(String::len).sum();
        let (mut train, mut validation) = split(all, bytes, fraction);
        if self.tuning {
            let left = train.iter().map(String::len).sum();
            (train, validation) = split(train, left, fraction);
        }
        Ok((train, validation, self.about(read, bytes as u64)))
    }

    /// The documents of files, and what was read.
    fn files(&self) -> Result<(Vec<String>, Option<String>)> {
        let mut read = Reading::new(std::slice::from_ref(&self.name), self.field.as_deref(), self.skip_bad)?;
        read.documents = read.documents.with_stdin(self.stdin.get().cloned());
        let mut all: Vec<String> = vec![];
        let (mut within, mut held) = (false, 0);
        for unit in read.documents.by_ref() {
            let unit = unit?;
            held += unit.bytes as u64;
            if held > HELD {
                return Err(SourceError::Large { name: self.name.clone() });
            }
            match all.last_mut().filter(|_| within) {
                Some(text) => text.push_str(&unit.text),
                None => all.push(unit.text),
            }
            within = !unit.last;
        }
        let bytes = all.iter().map(String::len).sum::<usize>();
        if bytes == 0 {
            return Err(CorpusError::Empty(self.name.clone()).into());
        }
        let said = read.said(all.len() as u64, bytes as u64);
        Ok((all, said))
    }
}

/// A built-in text.
enum BuiltIn {
    /// Stories of about this many bytes.
    Stories(usize),
    /// A document's example.
    Toy(&'static Toy),
}

/// The built-in text of a name: `builtin:stories`, `builtin:stories:10M` (10 MiB), `builtin:s0`.
fn built_in(name: &str) -> Result<Option<BuiltIn>> {
    let Some(rest) = name.strip_prefix("builtin:") else { return Ok(None) };
    if let Some(toy) = Toy::named(rest) {
        return Ok(Some(BuiltIn::Toy(toy)));
    }
    let (corpus, size) = rest.split_once(':').map_or((rest, None), |(c, s)| (c, Some(s)));
    if corpus != "stories" {
        return Err(SourceError::BuiltIn(rest.into()));
    }
    let Some(size) = size else { return Ok(Some(BuiltIn::Stories(STORIES))) };
    match units::parse_binary_bytes(size).filter(|bytes| *bytes <= 1 << 30) {
        Some(bytes) => Ok(Some(BuiltIn::Stories(bytes as usize))),
        None => Err(SourceError::Size(name.into())),
    }
}

/// The names of the documents' examples.
fn toys() -> String {
    TOYS.iter().map(|toy| format!("`builtin:{}`", toy.name)).collect::<Vec<_>>().join(", ")
}

/// Reads one text by name, a file or a built-in one, into memory.
///
/// # Errors
/// If it cannot be read.
pub fn text(name: &str) -> Result<String> {
    match built_in(name)? {
        Some(BuiltIn::Stories(bytes)) => Ok(stories::corpus(SEEDS[0], bytes).0),
        Some(BuiltIn::Toy(toy)) => Ok(toy.documents.join("\n")),
        None => Ok(read_text(Path::new(name), HELD)?),
    }
}

/// Some words or characters for which a tokenizer has no token.
fn unknown<'a>(tokenizer: &Tokenizer, texts: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    tokenizer.unknown_pieces(texts, SHOWN).into_iter().map(String::from).collect()
}

/// The llm.c shards that `data` names: a file, a folder without other texts, or a pattern.
pub fn shard_files(data: &str) -> Vec<PathBuf> {
    let path = Path::new(data);
    let is = |path: &Path| path.extension().is_some_and(|e| e == "bin");
    let mut files = if path.is_file() {
        vec![path.to_path_buf()]
    } else if path.is_dir() && find(&[data.into()], TextFormat::Text).is_err() {
        std::fs::read_dir(path).map(|entries| entries.flatten().map(|e| e.path()).collect()).unwrap_or_default()
    } else if data.ends_with(".bin") {
        matching(data)
    } else {
        vec![]
    };
    let hidden = |path: &Path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
    files.retain(|file| is(file) && (file == path || !hidden(file)));
    files.sort();
    files
}

/// The texts that a tokenizer is learned from: all documents, and the newline between them if there are several.
fn learned<'a>(train: &'a [String], validation: &'a [String]) -> Vec<Cow<'a, str>> {
    let between = (train.len() > 1 || validation.len() > 1).then_some("\n");
    let all = train.iter().chain(validation).map(String::as_str);
    all.flat_map(|text| [Some(text), between]).flatten().map(Cow::from).collect()
}

/// Keeps the end of training shards for validation.
fn split_shards(shards: Vec<Shard>, fraction: f64, tokenizer: &Tokenizer) -> Result<(Vec<Shard>, Vec<Shard>)> {
    let all: usize = shards.iter().map(Shard::len).sum();
    let whole = Tokens::of_shards(shards.clone());
    let mut cut = good_cut(&whole, (all as f64 * (1.0 - fraction)) as usize, tokenizer)?;
    let (mut train, mut validation) = (vec![], vec![]);
    for shard in shards {
        let len = shard.len();
        let (left, right) = shard.split(cut);
        cut -= cut.min(len);
        train.push(left);
        validation.push(right);
    }
    Ok((train, validation))
}

/// The place nearest to `at` where tokens may be cut: the end of a document within a tenth of the validation part, or
/// else a place between words.
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

/// Splits documents for training and validation. Many documents are dealt out at random. Of a few, the end of the text
/// that they make up is kept: from the end of a document if one is near, or else from a place where a text may be cut.
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
    let mut first = 0; // the document in which the cut lies
    while first + 1 < all.len() && at >= all[first].len() {
        at -= all[first].len();
        first += 1;
    }
    let text = &mut all[first];
    let to_end = text.len().saturating_sub(at);
    let cut = if first > 0 && at <= reach.min(to_end) {
        0
    } else if to_end <= reach {
        text.len()
    } else {
        boundary(text, at, reach)
    };
    let rest = text.split_off(cut);
    let after = all.split_off(first + 1);
    let validation = std::iter::once(rest).chain(after).filter(|text| !text.is_empty()).collect();
    all.retain(|text| !text.is_empty());
    (all, validation)
}

/// Encodes documents, one after the other. The tokenizer's end of text stands between them, or a newline if it has
/// none.
fn tokens(documents: Vec<String>, encoder: Encoder) -> Result<Tokens> {
    let (end, count) = (encoder.tokenizer.end_of_text(), documents.len());
    let (mut ids, mut ends) = (vec![], vec![]);
    let unit = |(n, mut text): (usize, String)| {
        if end.is_none() && n + 1 < count {
            text.push('\n');
        }
        Ok((Unit { bytes: text.len(), text, last: true, ..Unit::default() }, ()))
    };
    let mut failed = None;
    let read = encode(&mut documents.into_iter().enumerate().map(unit), &|()| true, encoder, &mut |_, (), found| {
        ids.extend(found.map_err(|e| failed = Some(e)).map_err(|()| CorpusError::Stopped)?);
        ids.extend(end.filter(|_| ends.len() + 1 < count));
        ends.push(ids.len());
        Ok(())
    });
    match (failed, read) {
        (Some(error), _) => Err(error.into()),
        (None, read) => Ok(read.map(|()| Tokens::of_documents(ids, ends, None))?),
    }
}

/// Documents that are being read.
pub struct Reading {
    /// The reader.
    pub documents: DocumentReader,
    /// The number of files of each format.
    files: BTreeMap<TextFormat, usize>,
    /// What is not read of the folders and patterns.
    pub left_out: LeftOut,
}

impl Reading {
    /// Finds the files that `names` stand for. In JSON and parquet the text is in `field`; if a field is named,
    /// standard input is read as JSON lines.
    ///
    /// # Errors
    /// If a name stands for nothing.
    pub fn new(names: &[String], field: Option<&str>, skip_bad: bool) -> Result<Reading, CorpusError> {
        let stdin = if field.is_some() { TextFormat::JsonLines } else { TextFormat::Text };
        let FoundFiles { inputs, left_out } = find(names, stdin)?;
        let mut files = BTreeMap::new();
        inputs.iter().for_each(|input| *files.entry(input.kind).or_default() += 1);
        Ok(Reading { documents: DocumentReader::new(inputs, field.unwrap_or("text"), skip_bad), files, left_out })
    }

    /// What was read, in words, if it was more than one text file.
    pub fn said(&self, documents: u64, bytes: u64) -> Option<String> {
        let plain = documents == 1 && self.files.keys().eq([&TextFormat::Text]);
        let some = self.documents.bad + self.documents.empty > 0 || self.left_out != LeftOut::default();
        (!plain || some).then(|| {
            let kinds: Vec<String> = self.files.iter().map(|(kind, n)| format!("{n} {}", kind.name())).collect();
            let (documents, bytes) = (plural(documents, "document"), units::bytes(bytes));
            let files = if self.files.values().sum::<usize>() == 1 { "file" } else { "files" };
            let left = left_out(self.documents.empty, self.documents.bad, &self.documents.complaints);
            format!("read {} {files}: {documents}, {bytes} of text{}{left}", kinds.join(", "), self.left_out)
        })
    }
}

/// The documents that were left out, and why, in words.
pub fn left_out(empty: u64, bad: u64, complaints: &[String]) -> String {
    let mut said = String::new();
    if empty > 0 {
        said += &format!("; {} left out", plural(empty as usize, "empty document"));
    }
    if bad > 0 {
        said += &format!("; {} left out:", plural(bad as usize, "bad document"));
        complaints.iter().for_each(|c| said += &format!("\n  {c}"));
    }
    said
}

/// Conversations. The last of them are kept for validation.
pub struct Conversations {
    name: String,
    all: Chat,
    train: usize,
}

impl Conversations {
    /// Some words or characters of the answers for which a tokenizer has no token.
    pub fn unknown(&self, tokenizer: &Tokenizer) -> Vec<String> {
        let answers = |c: &'_ Conversation| -> Vec<String> {
            c.messages.iter().zip(&c.learned).filter(|(_, learned)| **learned).map(|(m, _)| m.content.clone()).collect()
        };
        let answers: Vec<String> = self.all.conversations.iter().flat_map(answers).collect();
        unknown(tokenizer, answers.iter().map(String::as_str))
    }

    /// The markers of another program's template ([`ChatTemplate::markers`]) that no message has in its text.
    pub fn markers(&self, template: &str) -> Vec<String> {
        let template = ChatTemplate::new(template, TemplateTokens::default());
        let mut markers = template.map_or_else(|_| vec![], |template| template.markers());
        let said = |marker: &String| {
            let mut messages = self.all.conversations.iter().flat_map(|conversation| &conversation.messages);
            messages.any(|message| message.content.contains(marker.as_str()))
        };
        markers.retain(|marker| !said(marker));
        markers
    }

    /// The conversations as tokens of the tokenizer that `source` names, written by another program's `template` or by
    /// limpid's own.
    ///
    /// # Errors
    /// If they do not fit the tokenizer or the template.
    pub fn corpus(&self, source: &TextSource, template: Option<&str>) -> Result<Corpus> {
        let all = &self.all.conversations;
        // the text from which a tokenizer is learned needs no ids
        let early = template.map(|source| ChatTemplate::new(source, TemplateTokens::default())).transpose()?;
        let write = |conversation: &Conversation| match &early {
            Some(early) => early.render(&conversation.messages, false).unwrap_or_default(),
            None => conversation.text(),
        };
        let text = || vec![all.iter().map(write).collect::<String>().into()];
        let tokenizer = source.tokenizer(&text)?;
        let (train, validation) = self.tokens(&tokenizer, template)?;
        let about = About { name: self.name.clone(), ..About::default() };
        Ok(Corpus { about, tokenizer, tokenizer_name: source.tokenizer_name().into(), train, validation })
    }

    /// The ids to train on and to validate on, written by another program's `template` or by limpid's own.
    ///
    /// # Errors
    /// If the tokenizer has no ids for a text, or the template does not write it.
    pub fn tokens(&self, tokenizer: &Tokenizer, template: Option<&str>) -> Result<(Tokens, Tokens)> {
        let (train, validation) = self.all.conversations.split_at(self.train);
        let source = template.map_or_else(|| chat::template(tokenizer), String::from);
        let template = ChatTemplate::new(&source, TemplateTokens::new(tokenizer))?;
        Ok((template.tokens(train, tokenizer)?, template.tokens(validation, tokenizer)?))
    }

    /// What was read, in words. `long` conversations are longer than the window of `context` tokens.
    pub fn say(&self, long: usize, context: usize) -> String {
        let mut said = format!(
            "{}: {}{}; the loss is on the answers",
            self.name,
            plural(self.all.conversations.len(), "conversation"),
            self.all.left_out
        );
        if long > 0 {
            said += &format!(
                "; {} longer than {context} tokens and cut: what follows a cut does not see before it",
                if long == 1 { "1 was".into() } else { format!("{long} were") }
            );
        }
        if let Some(error) = &self.all.first_skipped {
            said += &format!("; {} skipped, the first at {error}", plural(self.all.skipped, "bad one"));
        }
        said
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

    #[test]
    fn a_text_for_tuning_is_neither_trained_nor_validated_on() {
        let lines: Vec<String> = (0..1000).map(|n| format!("line {n:04}\n")).collect();
        for mut source in [TextSource::of_text(lines.concat()), TextSource::new("builtin:stories:100K")] {
            let [train, validation] = source.documents().map(|(train, validation, _)| [train, validation]).unwrap();
            source.tuning = true;
            let [left, tuning] = source.documents().map(|(train, validation, _)| [train, validation]).unwrap();
            let (train, validation, left, tuning) =
                (train.concat(), validation.concat(), left.concat(), tuning.concat());
            assert!(train.starts_with(&left) && !tuning.is_empty() && tuning != validation);
            assert!(source.name.starts_with("builtin:") || train == format!("{left}{tuning}"));
            assert!(!left.contains(&tuning) && !validation.contains(&tuning));
        }
    }

    fn ids(tokens: &Tokens) -> Vec<u32> {
        let mut ids = vec![];
        tokens.copy(0..tokens.len(), &mut ids);
        ids
    }

    /// The text of a special token in a document is the token, or text like any other; what stands between documents is
    /// a token.
    #[test]
    fn special_tokens_in_documents_are_tokens_or_text() {
        let path = std::env::temp_dir().join(format!("limpid-specials-{}.jsonl", std::process::id()));
        std::fs::write(&path, "\"a<|endoftext|>b\"\n\"c\"").unwrap();
        for (parse_special, tokens) in [(true, 2), (false, 1)] {
            let mut source = TextSource::new(path.display().to_string());
            (source.tokenizer, source.val_fraction, source.parse_special) = (Some("gpt2".into()), 0.0, parse_special);
            let corpus = source.read().unwrap();
            let ids = ids(&corpus.train);
            assert_eq!(ids.iter().filter(|id| **id == 50_256).count(), tokens);
            assert_eq!(corpus.tokenizer.decode(&ids).unwrap(), "a<|endoftext|>b<|endoftext|>c");
        }
        std::fs::remove_file(path).unwrap();
    }

    /// Conversations are found wherever documents are: lines, arrays, packed, parquet, folders and patterns of these.
    #[test]
    fn conversations_are_read_from_every_kind_of_file() {
        use std::io::Write as _;
        let folder = std::env::temp_dir().join(format!("limpid-conversations-{}", std::process::id()));
        _ = std::fs::remove_dir_all(&folder);
        let write = |name: &str, bytes: &[u8]| {
            let path = folder.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, bytes).unwrap();
            path.display().to_string()
        };
        let gzip = |text: &str| {
            let mut to = flate2::write::GzEncoder::new(vec![], flate2::Compression::fast());
            to.write_all(text.as_bytes()).unwrap();
            [to.finish().unwrap(), vec![0; 100]].concat()
        };
        let talk = |q: &str| {
            format!(
                r#"{{"messages": [{{"role": "user", "content": "{q}"}}, {{"role": "assistant", "content": "A {q}"}}]}}"#
            )
        };
        let alpaca = |q: &str| format!("{{\n \"instruction\": \"{q}\",\n \"input\": null,\n \"output\": \"A {q}\"\n}}");
        let shared = |q: &str| {
            format!(
                r#"{{"conversations": [{{"from": "human", "value": "{q}"}}, {{"from": "gpt", "value": "A {q}"}}]}}"#
            )
        };
        let lines = format!("\u{feff}{}\n\n{}\n", talk("1"), shared("2"));
        let array = format!(" [{},\n{}]\n", alpaca("3"), talk("4"));
        let zst = ruzstd::encoding::compress_to_vec(array.as_bytes(), ruzstd::encoding::CompressionLevel::Fastest);
        let asked = |name: &str| -> Vec<String> {
            let found = TextSource::new(name).conversations().unwrap().unwrap();
            found.all.conversations.iter().map(|talk| talk.messages[0].content.clone()).collect()
        };
        let one = ["1", "2"];
        for name in ["a/a.jsonl", "a/b.ndjson", "a/c.json", "plain.txt", "no-end"] {
            assert_eq!(asked(&write(name, lines.as_bytes())), one, "{name}");
        }
        assert_eq!(asked(&write("b/a.jsonl.gz", &gzip(&lines))), one);
        for (name, bytes) in [
            ("b/b.json", array.clone().into_bytes()),
            ("b/c.json.zst", zst),
            ("b/d.json.gz", gzip(&array)),
            ("array.jsonl", array.into_bytes()),
        ] {
            assert_eq!(asked(&write(name, &bytes)), ["3", "4"], "{name}");
        }
        let at = |name: &str| folder.join(name).display().to_string();
        assert_eq!(asked(&at("a")).len(), 6);
        assert_eq!(asked(&at("b")), ["1", "2", "3", "4", "3", "4", "3", "4"]);
        assert_eq!(asked(&at("b/*.gz")), ["1", "2", "3", "4"]);
        if cfg!(feature = "parquet") {
            let rows = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/parquet/messages.parquet");
            assert_eq!(asked(rows), ["Where is the kite?", "Be brief.", "a", "a\n"]);
            let found = TextSource::new(rows).conversations().unwrap().unwrap();
            assert_eq!(found.all.conversations[2].learned, [false, false, false, true]);
        }
        // documents stay documents, and a field says that these are
        let documents = |source: &TextSource| source.conversations().unwrap().is_none();
        assert!(documents(&TextSource::new(write("t.jsonl", b"{\"text\": \"x\"}\n"))));
        assert!(documents(&TextSource::new(write("u.txt", b"[not] {json}"))));
        assert!(documents(&TextSource::new(at("nowhere"))));
        let mut named = TextSource::new(at("a/a.jsonl"));
        named.field = Some("messages".into());
        assert!(documents(&named));
        // a bad one is named with its file
        let refused = |name: &str| TextSource::new(name).conversations().map(|_| ()).unwrap_err().to_string();
        write("a/d.json", b"[{\"text\": \"x\"}]");
        assert!(
            refused(&at("a")).contains("a/d.json, item 1: expected an object with `messages`"),
            "{}",
            refused(&at("a"))
        );
        let mut lenient = TextSource::new(at("a"));
        lenient.skip_bad = true;
        let found = lenient.conversations().unwrap().unwrap();
        assert_eq!((found.all.conversations.len(), found.all.skipped), (6, 1));
        // the card of a dataset is no text of it; any other text is
        write("b/README.md", b"# Conversations");
        let found = TextSource::new(at("b")).conversations().unwrap().unwrap();
        assert!(found.say(0, 16).contains("1 file or folder left out") && found.say(0, 16).contains("README.md"));
        write("b/notes.md", b"# Conversations");
        assert!(
            refused(&at("b")).contains("b/notes.md")
                && refused(&at("b")).contains("text, and there are conversations beside it")
        );
        std::fs::remove_dir_all(folder).unwrap();
    }

    /// R029 to R031; G01, G11, G16: the documents' examples have their ids and end where they end, with the tokenizer
    /// that is theirs or the one that is asked for.
    #[test]
    fn the_documents_examples_bring_their_tokenizers() {
        let source = |name: &str| {
            let mut source = TextSource::new(format!("builtin:{name}"));
            (source.default_tokenizer, source.val_fraction) = ("char".into(), 0.0);
            source
        };
        let rows: [(&str, &[u32], &[usize]); 3] = [
            ("s0", &[0, 1, 2, 3, 4, 0, 2, 1, 5], &[3, 6, 9]),
            ("s0-three", &[2, 1], &[2]),
            ("s3", &[1, 2, 3, 0, 4, 5, 6, 0], &[8]),
        ];
        for (name, want, ends) in rows {
            let corpus = source(name).read().unwrap();
            assert_eq!((ids(&corpus.train).as_slice(), corpus.tokenizer_name.as_str()), (want, name));
            assert_eq!((0..ends.len()).map(|i| corpus.train.document(i).end).collect::<Vec<_>>(), ends, "{name}");
            assert_eq!((corpus.train.documents(), corpus.validation.len()), (ends.len(), 0));
            let masked = TextSource { specials: vec!["[MASK]".into()], ..source(name) }.read().unwrap();
            assert_eq!(
                (masked.tokenizer.vocab_size(), ids(&masked.train)),
                (corpus.tokenizer.vocab_size() + 1, want.to_vec())
            );
            assert_eq!(ids(&source(name).whole(&corpus.tokenizer).unwrap().0), want);
            let decided = Some(Tokenizer::named("gpt2").unwrap());
            assert_eq!(TextSource { decided, ..source(name) }.read().unwrap().tokenizer.vocab_size(), 50_257);
        }
        let words = TextSource { tokenizer: Some("word".into()), ..source("s0") }.read().unwrap();
        assert_eq!(words.tokenizer.piece(0).unwrap(), "<UNK>");

        let s1 = source("s1").read().unwrap();
        let firsts = [26_072, 627, 15_749, 13_189, 323];
        for (i, first) in firsts.into_iter().enumerate() {
            let document = s1.train.document(i);
            // an end stands between two
            let tokens = document.len() - usize::from(i + 1 < firsts.len());
            assert_eq!((s1.train.id(document.start), tokens), (first, if i == 0 { 10 } else { 16 }));
        }
        assert_eq!(ids(&s1.train).last(), Some(&66_044));

        for wrong in ["s2", "s0:20M"] {
            let error = source(wrong).read().map(|_| ()).unwrap_err().to_string();
            assert!(error.contains(&format!("`{wrong}`")) && error.contains("`builtin:s0-three`"), "{error}");
        }
    }
}

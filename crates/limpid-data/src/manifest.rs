//! `manifest.json` of a folder of shards: what the shards were made from, with which tokenizer, and which files the
//! folder must hold. It is written again after each shard, so it also records how far an interrupted `prepare` has
//! come.

use super::checksum::{file_hash, hex, same};
use super::corpus_error::{CorpusError, at, bad};
use super::shards::Shard;
use super::tokens::Tokens;
use limpid_base::files;
use limpid_tokenizer::Tokenizer;
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::path::Path;
use xxhash_rust::xxh3::xxh3_64;

const FILE: &str = "manifest.json";
const FORMAT: &str = "limpid-data-1";
/// The largest manifest that is read: some hundred thousand shards and files.
const LARGEST: u64 = 256 << 20;
/// The tokenizer's copy.
pub(super) const TOKENIZER: &str = "tokenizer.json";

/// What a folder of shards holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    pub(super) format: String,
    /// Whether everything was prepared.
    pub complete: bool,
    /// How it was asked for.
    pub settings: PrepareSettings,
    /// The files, in order; their checksums once they have been read.
    pub sources: Vec<File>,
    /// Documents left out because they are empty.
    pub empty: u64,
    /// Documents left out because they are bad.
    pub bad: u64,
    /// The training part.
    pub train: SplitShards,
    /// The validation part.
    pub val: SplitShards,
}

/// The settings that decide the shards' bytes, besides the files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PrepareSettings {
    /// The tokenizer's name as asked for.
    pub tokenizer: String,
    /// XXH3 (64 bits) of its copy.
    pub tokenizer_xxh3: String,
    /// Its size.
    pub vocab_size: usize,
    /// What stands after each document.
    pub end_of_text: Option<u32>,
    /// u16 or u32.
    pub ids: String,
    /// Where the text stands in JSON and parquet.
    pub field: String,
    /// Whether bad documents were left out.
    pub skip_bad: bool,
    /// Whether the text of a special token in a document is that token.
    #[serde(default = "parsed")]
    pub parse_special: bool,
    /// Share of the documents kept for validation.
    pub val_fraction: f64,
    /// Tokens after which a shard ends.
    pub shard_tokens: u64,
}

/// The value of `parse_special` in manifests that do not have it.
fn parsed() -> bool {
    true
}

/// A file and its checksum.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct File {
    /// Where it was; `-` is standard input.
    pub path: String,
    /// Its size.
    pub bytes: u64,
    /// XXH3 (64 bits), as `xxhsum -H3` prints it.
    pub xxh3: Option<String>,
}

/// Documents, tokens and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Documents that end here.
    pub documents: u64,
    /// What the index ends: documents, or parts of those that lie in training and validation.
    pub parts: u64,
    /// Ids.
    pub tokens: u64,
    /// Bytes of text.
    pub bytes: u64,
    /// Units left out because the tokenizer cannot encode them.
    pub bad: u64,
}

impl std::ops::Add for Counts {
    type Output = Counts;
    /// Saturates: only a damaged manifest has counts this large, and is refused for them.
    fn add(self, b: Counts) -> Counts {
        Counts {
            documents: self.documents.saturating_add(b.documents),
            parts: self.parts.saturating_add(b.parts),
            tokens: self.tokens.saturating_add(b.tokens),
            bytes: self.bytes.saturating_add(b.bytes),
            bad: self.bad.saturating_add(b.bad),
        }
    }
}

/// One part of the documents.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SplitShards {
    /// In all shards.
    pub all: Counts,
    /// The shards, in order.
    pub shards: Vec<Written>,
}

/// A finished shard.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Written {
    /// `train_000000`: the ids are in `.bin`, the documents' ends in `.idx`.
    pub name: String,
    /// What it holds.
    pub counts: Counts,
    /// XXH3 of the `.bin`.
    pub bin_xxh3: String,
    /// XXH3 of the `.idx`.
    pub idx_xxh3: String,
    /// Units read until its end: where an interrupted `prepare` goes on.
    pub(super) until: u64,
    /// XXH3 of all text until there: whether the files are still the same.
    pub(super) text_xxh3: String,
}

/// What shard `i` of a part is called, without `.bin` and `.idx`.
pub(super) fn shard_name(part: &str, i: usize) -> String {
    format!("{part}_{i:06}")
}

/// The checksum of a tokenizer's copy.
pub(super) fn tokenizer_hash(tokenizer: &Tokenizer) -> String {
    hex(xxh3_64(tokenizer.to_json().as_bytes()))
}

impl Manifest {
    pub(super) fn new(settings: PrepareSettings, sources: Vec<File>) -> Manifest {
        let (train, val) = (SplitShards::default(), SplitShards::default());
        Manifest { format: FORMAT.into(), complete: false, settings, sources, empty: 0, bad: 0, train, val }
    }

    /// Whether `folder` has one.
    pub fn exists(folder: &Path) -> bool {
        folder.join(FILE).is_file()
    }

    /// Reads that of `folder`, whole or not.
    ///
    /// # Errors
    /// If there is none, or it is damaged.
    pub fn read(folder: &Path) -> Result<Manifest, CorpusError> {
        let path = folder.join(FILE);
        let text = at(&path, files::read_text(&path, LARGEST))?;
        let manifest: Manifest = serde_json::from_str(&text).map_err(|e| bad(&path, format!("it is damaged: {e}")))?;
        if manifest.format != FORMAT {
            return Err(bad(&path, format!("its format is `{}`, this limpid reads `{FORMAT}`", manifest.format)));
        }
        for (part, found) in [("train", &manifest.train), ("val", &manifest.val)] {
            if let Some((i, other)) = found.shards.iter().enumerate().find(|(i, s)| s.name != shard_name(part, *i)) {
                let (wanted, other) = (shard_name(part, i), &other.name);
                return Err(bad(&path, format!("it names a shard {other:?} where {wanted} must be: it was changed")));
            }
            if found.all != found.shards.iter().fold(Counts::default(), |sum, shard| sum + shard.counts) {
                return Err(bad(
                    &path,
                    format!("the counts of `{part}` are not the sums of its shards': it was changed"),
                ));
            }
        }
        Ok(manifest)
    }

    /// Reads that of a folder that is ready to be used.
    ///
    /// # Errors
    /// If there is none, it is damaged, or `prepare` has not come to its end.
    pub fn open(folder: &Path) -> Result<Manifest, CorpusError> {
        let manifest = Manifest::read(folder)?;
        if !manifest.complete {
            let what = "preparing it was interrupted: prepare the same again to resume it";
            return Err(bad(folder, what));
        }
        Ok(manifest)
    }

    /// Writes it.
    pub(super) fn write(&self, folder: &Path) -> Result<(), CorpusError> {
        let path = folder.join(FILE);
        let text = serde_json::to_string_pretty(self).expect("a manifest is JSON") + "\n";
        at(&path, files::replace(&path, |path| std::fs::File::create(path)?.write_all(text.as_bytes())))
    }

    /// What both parts hold.
    pub fn all(&self) -> Counts {
        self.train.all + self.val.all
    }

    /// A part by its name.
    pub fn part(&self, name: &str) -> &SplitShards {
        if name == "val" { &self.val } else { &self.train }
    }

    /// The tokenizer whose copy lies in the folder.
    ///
    /// # Errors
    /// If it cannot be read, or is another than the shards were made with.
    pub fn tokenizer(&self, folder: &Path) -> Result<Tokenizer, CorpusError> {
        let path = folder.join(TOKENIZER);
        let tokenizer = Tokenizer::load(&path)?;
        if !self.made_with(&tokenizer) {
            let what = "it is not the tokenizer that the shards beside it were made with: it was changed";
            return Err(bad(&path, what));
        }
        Ok(tokenizer)
    }

    /// Whether this is the tokenizer of the shards.
    pub fn made_with(&self, tokenizer: &Tokenizer) -> bool {
        let known = |name: &str| Tokenizer::named(name).is_ok() && name == self.settings.tokenizer;
        self.settings.tokenizer_xxh3 == tokenizer_hash(tokenizer) || known(tokenizer.name())
    }

    /// The tokens of a part, mapped; their sizes are held against the manifest, and where `verified` is asked for their
    /// checksums.
    ///
    /// # Errors
    /// Names the shard that is missing, was changed or cut short.
    pub fn tokens(&self, folder: &Path, part: &str, verified: bool) -> Result<Tokens, CorpusError> {
        let open = |written: &Written| {
            let path = folder.join(format!("{}.bin", written.name));
            let shard = Shard::open(&path, Some(&path.with_extension("idx")))?;
            if verified {
                shard.verify([&written.bin_xxh3, &written.idx_xxh3])?;
            }
            let found = (shard.documents() as u64, shard.len() as u64);
            let told = (written.counts.parts, written.counts.tokens);
            if found != told {
                let what = format!(
                    "it has {found:?} documents (or parts) and tokens, the manifest says {told:?}: it was changed"
                );
                return Err(bad(&path, what));
            }
            Ok(shard)
        };
        let shards: Result<Vec<Shard>, CorpusError> = self.part(part).shards.iter().map(open).collect();
        Ok(Tokens::of_shards(shards?))
    }

    /// Reads every shard and holds it against its checksum. `tell` hears how many are done, of how many.
    ///
    /// # Errors
    /// Names the first file that is missing or differs.
    pub fn check(&self, folder: &Path, tell: &mut dyn FnMut(usize, usize)) -> Result<(), CorpusError> {
        let shards: Vec<&Written> = self.train.shards.iter().chain(&self.val.shards).collect();
        for (i, written) in shards.iter().enumerate() {
            for (end, wanted) in [("bin", &written.bin_xxh3), ("idx", &written.idx_xxh3)] {
                let path = folder.join(format!("{}.{end}", written.name));
                same(&path, file_hash(&path)?, wanted)?;
            }
            tell(i + 1, shards.len());
        }
        Ok(())
    }
}

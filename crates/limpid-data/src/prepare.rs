//! Turns documents into shards: streamed, on all cores, with the same bytes however often it is interrupted.
//!
//! Every unit that is read has a number. The units' numbers, sizes and texts decide everything: the part that a unit
//! goes to, and where shards end. An interrupted `prepare` reads all documents again, which is many times quicker than
//! encoding them. It encodes only those that are in no finished shard, and checks the text that it passes over against
//! the manifest.

use super::checksum::{file_hash, hex, stream_hash};
use super::corpus_error::{CorpusError, at, bad};
use super::documents::DocumentReader;
use super::encode::{Encoder, encode};
use super::inputs::{Input, Unit};
use super::manifest::{
    Counts, File, Manifest, PrepareSettings, SplitShards, TOKENIZER, Written, shard_name, tokenizer_hash,
};
use super::shards;
use limpid_base::random;
use limpid_tokenizer::Tokenizer;
use std::cell::RefCell;
use std::fs;
use std::io::{BufWriter, Seek, Write};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::Xxh3;

/// What to prepare.
pub struct Plan<'a> {
    /// The files.
    pub inputs: Vec<Input>,
    /// Where the text stands in JSON and parquet.
    pub field: &'a str,
    /// Skip documents that cannot be read, and count them.
    pub skip_bad: bool,
    /// Whether the text of a special token in a document is that token.
    pub parse_special: bool,
    /// The tokenizer.
    pub tokenizer: &'a Tokenizer,
    /// Its name, for the manifest.
    pub tokenizer_name: &'a str,
    /// Share of the documents for validation; parts of a long text count as documents here.
    pub val_fraction: f64,
    /// Tokens after which a shard ends, at the end of a unit.
    pub shard_tokens: u64,
    /// Threads that encode.
    pub threads: usize,
}

/// The progress of `prepare`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the files that have been read.
    pub read: u64,
    /// What has been written, or was there already.
    pub done: Counts,
    /// Tokens encoded now.
    pub encoded: u64,
    /// Bytes of text encoded now.
    pub encoded_bytes: u64,
    /// Units that the tokenizer refused now.
    pub refused: u64,
    /// Shards finished now.
    pub shards: usize,
}

/// What is known about a unit when it is read.
struct About {
    number: u64,
    /// Whether it is for validation.
    val: bool,
    /// Whether it is in no finished shard.
    wanted: bool,
    /// The checksum of all text up to its end.
    text: u64,
}

/// Prepares `plan` in the folder `out`, or continues there. `tell` gets the progress after every unit and says whether
/// to continue. Returns the manifest, and what was wrong with the first few documents that were left out.
///
/// # Errors
/// If a document cannot be read (and `skip_bad` is not set), the folder holds something else, another process prepares
/// it, the files have changed since, or the file system fails. Finished shards are kept.
pub fn prepare(
    plan: &Plan,
    out: &Path,
    tell: &mut dyn FnMut(&Progress) -> bool,
) -> Result<(Manifest, Vec<String>), CorpusError> {
    at(out, fs::create_dir_all(out))?;
    // held until this function returns; a file system without locks keeps nobody out
    let lock = fs::File::open(out).ok();
    if let Some(Err(fs::TryLockError::WouldBlock)) = lock.as_ref().map(fs::File::try_lock) {
        return Err(CorpusError::Busy(out.into()));
    }
    let manifest = begin(plan, out)?;
    if manifest.complete {
        return Ok((manifest, vec![]));
    }
    plan.tokenizer.save(out.join(TOKENIZER))?;
    write_shards(plan, out, manifest, tell)
}

/// The manifest of the folder: that of an earlier `prepare` with the same plan, or a new one.
///
/// # Errors
/// If the folder holds something else or was prepared otherwise, or the files that it was prepared from have changed.
fn begin(plan: &Plan, out: &Path) -> Result<Manifest, CorpusError> {
    let tokenizer = plan.tokenizer;
    let settings = PrepareSettings {
        tokenizer: plan.tokenizer_name.into(),
        tokenizer_xxh3: tokenizer_hash(tokenizer),
        vocab_size: tokenizer.vocab_size(),
        end_of_text: tokenizer.end_of_text(),
        ids: if tokenizer.vocab_size() > 1 << 16 { "u32" } else { "u16" }.into(),
        field: plan.field.into(),
        skip_bad: plan.skip_bad,
        parse_special: plan.parse_special,
        val_fraction: plan.val_fraction,
        shard_tokens: plan.shard_tokens,
    };
    let source = |i: &Input| File { path: i.path.display().to_string(), bytes: i.bytes, xxh3: None };
    let manifest = Manifest::new(settings, plan.inputs.iter().map(source).collect());
    if !Manifest::exists(out) {
        let whole = |e: &fs::DirEntry| e.path().extension().is_none_or(|e| e != "partial");
        if at(out, fs::read_dir(out))?.flatten().any(|e| whole(&e)) {
            return Err(bad(out, "the folder is not empty and holds no manifest.json: choose another"));
        }
        manifest.write(out)?;
        return Ok(manifest);
    }
    let found = Manifest::read(out)?;
    if let Some(differs) = difference(&found, &manifest) {
        let what = format!("it holds shards made with {differs}: choose another folder, or remove it to begin again");
        return Err(bad(out, what));
    }
    found.check(out, &mut |_, _| {})?;
    if found.complete {
        unchanged(&found, plan)?;
    }
    Ok(found)
}

/// Reads and encodes the documents, and writes the shards that the manifest does not have yet.
fn write_shards(
    plan: &Plan,
    out: &Path,
    manifest: Manifest,
    tell: &mut dyn FnMut(&Progress) -> bool,
) -> Result<(Manifest, Vec<String>), CorpusError> {
    let documents = RefCell::new(DocumentReader::new(plan.inputs.clone(), plan.field, plan.skip_bad));
    // files are read, and shards written, on this thread
    let shared = RefCell::new(manifest);
    let mut units = NumberedUnits::new(plan, &documents, &shared);
    let mut progress = Progress::default();
    let mut parts = [Writer::new(out, "train", &shared, plan), Writer::new(out, "val", &shared, plan)];
    progress.done = shared.borrow().all();
    let end = plan.tokenizer.end_of_text();
    let mut sink = |unit: Unit, about: About, ids: Result<Vec<u32>, _>| {
        let ids = match ids {
            Ok(ids) => Some(ids),
            Err(source) => {
                let error = CorpusError::Encode { place: DocumentReader::place(&plan.inputs, &unit), source };
                if !plan.skip_bad {
                    return Err(error);
                }
                documents.borrow_mut().complain(&error);
                None
            }
        };
        let [train, val] = &mut parts;
        let (part, other) = if about.val { (val, train) } else { (train, val) };
        other.end(&about)?; // what was left open in the other is cut here
        let before = part.shards;
        let counts = part.push(&unit, &about, ids, end)?;
        progress.done = progress.done + counts;
        progress.encoded += counts.tokens;
        progress.refused += counts.bad;
        progress.encoded_bytes += counts.bytes;
        progress.read = documents.borrow().read();
        progress.shards += part.shards - before;
        if tell(&progress) { Ok(()) } else { Err(CorpusError::Stopped) }
    };
    let Plan { tokenizer, parse_special, threads, .. } = *plan;
    let encoder = Encoder { tokenizer, parse_special, threads };
    encode(&mut units, &|about: &About| about.wanted, encoder, &mut sink)?;
    if units.reached.iter().any(|(until, _)| *until > units.number) {
        return Err(bad(
            out,
            "the files are shorter than they were: they were changed since; remove the folder to begin again",
        ));
    }
    for part in &mut parts {
        part.finish()?;
    }
    drop(parts);
    let documents = documents.into_inner();
    let mut manifest = shared.into_inner();
    if manifest.train.all.tokens == 0 {
        let files: Vec<String> = plan.inputs.iter().map(|input| input.path.display().to_string()).collect();
        return Err(CorpusError::Empty(files.join(", ")));
    }
    // those that the tokenizer refused before an interruption are in the shards' counts only
    let refused = manifest.train.all.bad + manifest.val.all.bad;
    (manifest.empty, manifest.bad, manifest.complete) =
        (documents.empty, documents.bad - progress.refused + refused, true);
    manifest.write(out)?;
    Ok((manifest, documents.complaints))
}

/// Reads units, numbers them, and decides what becomes of each.
struct NumberedUnits<'a> {
    plan: &'a Plan<'a>,
    documents: &'a RefCell<DocumentReader>,
    manifest: &'a RefCell<Manifest>,
    /// How far training and validation had come before.
    reached: [(u64, String); 2],
    /// Units read so far.
    number: u64,
    /// The checksum of their text.
    hash: Xxh3,
    /// Files whose checksums are in the manifest.
    summed: usize,
}

impl<'a> NumberedUnits<'a> {
    fn new(
        plan: &'a Plan<'a>,
        documents: &'a RefCell<DocumentReader>,
        manifest: &'a RefCell<Manifest>,
    ) -> NumberedUnits<'a> {
        let reached = [last(&manifest.borrow().train), last(&manifest.borrow().val)];
        NumberedUnits { plan, documents, manifest, reached, number: 0, hash: Xxh3::new(), summed: 0 }
    }

    /// Copies the checksums of files that have been read to their end into the manifest.
    fn copy_sums(&mut self) {
        let documents = self.documents.borrow();
        for (sum, source) in documents.sums().iter().zip(&mut self.manifest.borrow_mut().sources).skip(self.summed) {
            source.xxh3 = sum.clone();
        }
        self.summed = documents.sums().len();
    }
}

impl Iterator for NumberedUnits<'_> {
    type Item = Result<(Unit, About), CorpusError>;

    fn next(&mut self) -> Option<Self::Item> {
        let unit = self.documents.borrow_mut().next();
        self.copy_sums();
        let unit = match unit? {
            Ok(unit) => unit,
            Err(error) => return Some(Err(error)),
        };
        self.hash.update(unit.text.as_bytes());
        // the first unit is for training, so that there is something to learn
        let val =
            self.number > 0 && random::uniform(0, random::site("validation"), self.number) < self.plan.val_fraction;
        self.number += 1;
        let text = self.hash.digest();
        if let Some((_, was)) = self.reached.iter().find(|(until, was)| *until == self.number && *was != hex(text)) {
            let what = format!(
                "the text before it gives {}, it was {was}: the file or one before it was changed since; remove the \
                 folder to begin again",
                hex(text)
            );
            return Some(Err(bad(&self.plan.inputs[unit.file].path, what)));
        }
        let wanted = self.number > self.reached[usize::from(val)].0;
        Some(Ok((unit, About { number: self.number, val, wanted, text })))
    }
}

/// How the manifest that was found differs from the one asked for, in words; none if it does not.
fn difference(found: &Manifest, asked: &Manifest) -> Option<String> {
    if found.settings.tokenizer_xxh3 != asked.settings.tokenizer_xxh3 {
        return Some("another tokenizer".into());
    }
    let values = |m: &Manifest| serde_json::to_value(&m.settings).expect("settings are JSON");
    let (was, is) = (values(found), values(asked));
    let setting = was.as_object().into_iter().flatten().find(|(name, value)| is[name.as_str()] != **value);
    if let Some((name, value)) = setting {
        return Some(format!("other settings: {name} was {value}, and is {} now", is[name.as_str()]));
    }
    let (was, is) = (&found.sources, &asked.sources);
    let other = was.iter().zip(is).find(|(a, b)| (&a.path, a.bytes) != (&b.path, b.bytes));
    Some(match other {
        Some((a, b)) if a.path == b.path => {
            format!("other files: {} had {} bytes, and has {} now", a.path, a.bytes, b.bytes)
        }
        Some((a, b)) => format!("other files: {} was where {} is now", a.path, b.path),
        None if was.len() < is.len() => format!("other files: {} is new", is[was.len()].path),
        None if was.len() > is.len() => format!("other files: {} is gone", was[is.len()].path),
        None => return None,
    })
}

/// Checks that the files are still those that the shards were made from.
fn unchanged(manifest: &Manifest, plan: &Plan) -> Result<(), CorpusError> {
    for (input, source) in plan.inputs.iter().zip(&manifest.sources) {
        let Some(was) = &source.xxh3 else { continue }; // of standard input older folders do not know it
        let found = if input.path == Path::new("-") {
            stream_hash(&input.path, &mut std::io::stdin())?
        } else {
            file_hash(&input.path)?
        };
        if found != *was {
            let what = format!(
                "it was changed since it was prepared: its checksum was {was} and is {found}; remove the folder to \
                 begin again, or choose another"
            );
            return Err(bad(&input.path, what));
        }
    }
    Ok(())
}

/// How far a part has come: the number of units, and the checksum of the text up to that point.
fn last(part: &SplitShards) -> (u64, String) {
    part.shards.last().map_or((0, String::new()), |s| (s.until, s.text_xxh3.clone()))
}

/// Writes the shards of one part.
struct Writer<'a> {
    folder: &'a Path,
    name: &'static str,
    manifest: &'a RefCell<Manifest>,
    plan: &'a Plan<'a>,
    /// The last unit that stands in a finished shard.
    reached: u64,
    /// Whether a document has begun and not ended.
    within: bool,
    open: Option<Open>,
    last: (u64, String),
    shards: usize,
}

/// A shard that is being written.
struct Open {
    name: String,
    file: BufWriter<fs::File>,
    ends: Vec<u8>,
    counts: Counts,
}

impl<'a> Writer<'a> {
    fn new(folder: &'a Path, name: &'static str, manifest: &'a RefCell<Manifest>, plan: &'a Plan<'a>) -> Writer<'a> {
        let last = last(manifest.borrow().part(name));
        Writer { folder, name, manifest, plan, reached: last.0, within: false, open: None, last, shards: 0 }
    }

    fn path(&self, name: &str, end: &str) -> PathBuf {
        self.folder.join(format!("{name}.{end}"))
    }

    fn open(&mut self) -> Result<&mut Open, CorpusError> {
        if self.open.is_none() {
            let name = shard_name(self.name, self.manifest.borrow().part(self.name).shards.len());
            let path = self.path(&name, "bin.partial");
            let mut file = BufWriter::with_capacity(1 << 20, at(&path, fs::File::create(&path))?);
            at(&path, file.write_all(&[0; shards::START]))?;
            self.open = Some(Open { name, file, ends: vec![], counts: Counts::default() });
        }
        Ok(self.open.as_mut().expect("it was just opened"))
    }

    /// Ends the document that has begun, if one has.
    fn end(&mut self, about: &About) -> Result<(), CorpusError> {
        if std::mem::take(&mut self.within) && about.number > self.reached {
            self.open()?.end();
        }
        Ok(())
    }

    /// Appends a unit, and closes the shard if that makes it long enough.
    fn push(
        &mut self,
        unit: &Unit,
        about: &About,
        ids: Option<Vec<u32>>,
        end: Option<u32>,
    ) -> Result<Counts, CorpusError> {
        let begun = self.within;
        self.within = !unit.last && (begun || ids.is_some());
        if !about.wanted {
            return Ok(Counts::default());
        }
        self.last = (about.number, hex(about.text));
        let wide = self.manifest.borrow().settings.ids == "u32";
        let path = self.path(self.name, "bin");
        let open = self.open()?;
        let mut counts = Counts::default();
        match &ids {
            Some(_) => counts.bytes = unit.bytes as u64,
            None => counts.bad = 1,
        }
        let ends = unit.last && (begun || ids.is_some());
        for id in ids.into_iter().flatten().chain(end.filter(|_| ends)) {
            let bytes = id.to_le_bytes();
            at(&path, open.file.write_all(if wide { &bytes } else { &bytes[..2] }))?;
            counts.tokens += 1;
        }
        counts.documents = u64::from(ends);
        open.counts = open.counts + counts;
        if ends {
            open.end();
        }
        if open.counts.tokens >= self.plan.shard_tokens {
            self.close()?;
        }
        Ok(Counts { parts: counts.documents, ..counts })
    }

    /// Finishes the shard: ids, then ends, then the manifest that names them.
    fn close(&mut self) -> Result<(), CorpusError> {
        let Some(Open { name, mut file, ends, counts }) = self.open.take() else { return Ok(()) };
        let wide = self.manifest.borrow().settings.ids == "u32";
        let (partial, bin, idx) = (self.path(&name, "bin.partial"), self.path(&name, "bin"), self.path(&name, "idx"));
        let Ok(ids) = u32::try_from(counts.tokens) else {
            return Err(bad(
                &bin,
                format!("{} tokens are too many for one shard: make shards of fewer", counts.tokens),
            ));
        };
        let finished = (|| {
            file.rewind()?;
            file.write_all(&shards::header(wide, ids))?;
            file.into_inner().map_err(|e| e.into_error())?.sync_all()?;
            fs::rename(&partial, &bin)
        })();
        at(&bin, finished)?;
        at(&idx, limpid_base::files::replace(&idx, |path| fs::write(path, &ends)))?;
        let written = Written {
            name,
            counts,
            bin_xxh3: file_hash(&bin)?,
            idx_xxh3: file_hash(&idx)?,
            until: self.last.0,
            text_xxh3: self.last.1.clone(),
        };
        let mut manifest = self.manifest.borrow_mut();
        let part = if self.name == "val" { &mut manifest.val } else { &mut manifest.train };
        part.all = part.all + counts;
        part.shards.push(written);
        self.shards += 1;
        manifest.write(self.folder)
    }

    fn finish(&mut self) -> Result<(), CorpusError> {
        if std::mem::take(&mut self.within) {
            self.open()?.end();
        }
        self.close()
    }
}

impl Open {
    fn end(&mut self) {
        self.ends.extend(self.counts.tokens.to_le_bytes());
        self.counts.parts += 1;
    }
}

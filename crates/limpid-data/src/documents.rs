//! Reads documents from files, one after the other, in bounded memory: text (each file is a document), JSON lines and
//! arrays (each item is one), parquet (each row is one), all of them also in gzip or zstd, and standard input.
//!
//! A text file is read in units of at most [`UNIT`] bytes. It is cut before a line that begins with a letter or digit,
//! where every tokenizer here cuts too; so a file can be larger than memory, and many threads can encode a long one.
//! Every other document is one unit of at most [`LONGEST`] bytes. Reading therefore needs bounded memory, however much
//! a file unpacks to. Read `encode` next.

use super::boundary::boundary;
use super::checksum::{file_hash, hex};
use super::corpus_error::{CorpusError, Place, at, bad};
use super::inputs::{Input, LONGEST, TextFormat, TextSource, Unit, damaged};
use super::json_array::JsonArray;
use super::lines::read_whole_line;
use super::parquet::Rows;
use super::unpack::{Packing, Unpacked};
use limpid_base::files;
use limpid_base::words::not_json;
use serde::Deserializer;
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::str::Utf8Error;
use std::sync::{Arc, Mutex, PoisonError};
use xxhash_rust::xxh3::Xxh3;

/// The most bytes of a text file in one unit.
pub const UNIT: usize = 1 << 20;
/// The first bytes of a file, which are searched for signs of a binary file.
const LOOK: usize = 8 << 10;

/// All documents of some files, in order.
#[derive(Default)]
pub struct DocumentReader {
    inputs: Vec<Input>,
    /// The field that is read from JSON and parquet; none for whole items as JSON.
    field: Option<String>,
    /// Standard input, if it has been read already.
    stdin: Option<Arc<[u8]>>,
    skip_bad: bool,
    file: usize,
    reader: Option<Reader>,
    /// The file that is being read.
    raw: Raw,
    /// Bytes of the files that were read before it.
    read: u64,
    sums: Vec<Option<String>>,
    /// Documents left out because they are empty.
    pub empty: u64,
    /// Documents (or rests of files) left out because they are bad.
    pub bad: u64,
    /// What was wrong with the first few.
    pub complaints: Vec<String>,
}

impl DocumentReader {
    /// The documents of `inputs`; in JSON and parquet, the text is in `field`. With `skip_bad`, documents that cannot
    /// be read are counted and skipped.
    pub fn new(inputs: Vec<Input>, field: &str, skip_bad: bool) -> DocumentReader {
        DocumentReader { field: Some(field.into()), ..DocumentReader::items(inputs, skip_bad) }
    }

    /// The lines, items and rows of `inputs` as they are, in JSON. A file of unknown format has lines, or an array of
    /// items.
    pub(super) fn items(inputs: Vec<Input>, skip_bad: bool) -> DocumentReader {
        DocumentReader { inputs, skip_bad, ..DocumentReader::default() }
    }

    /// The same, if standard input has been read already.
    #[must_use]
    pub(super) fn with_stdin(self, stdin: Option<Arc<[u8]>>) -> DocumentReader {
        DocumentReader { stdin, ..self }
    }

    /// The files.
    pub fn inputs(&self) -> &[Input] {
        &self.inputs
    }

    /// Bytes of all files.
    pub fn size(&self) -> u64 {
        self.inputs.iter().map(|input| input.bytes).sum()
    }

    /// Bytes that have been read, as they are in the files.
    pub fn read(&self) -> u64 {
        self.read + self.raw.lock().bytes
    }

    /// XXH3 of each file that has been read to its end.
    pub(super) fn sums(&self) -> &[Option<String>] {
        &self.sums
    }

    /// Continues with the next file. The rest of this one goes into its checksum too.
    fn end_file(&mut self) {
        let input = &self.inputs[self.file];
        self.file += 1;
        self.reader = None;
        let mut raw = std::mem::take(&mut self.raw);
        let sum = match input.kind {
            // parquet is not read in order
            TextFormat::Parquet => {
                Some(&input.path).filter(|path| path.is_file()).and_then(|path| file_hash(path).ok())
            }
            _ if io::copy(&mut raw, &mut io::sink()).is_ok() => Some(hex(raw.lock().hash.digest())),
            _ => None,
        };
        self.sums.push(sum);
        self.read += if input.kind == TextFormat::Parquet { input.bytes } else { raw.lock().bytes };
    }

    /// Where a unit stands.
    pub fn place(inputs: &[Input], unit: &Unit) -> Place {
        inputs[unit.file].place(unit.place)
    }

    /// Counts a document that is left out.
    pub fn complain(&mut self, error: &CorpusError) {
        self.bad += 1;
        if self.complaints.len() < 5 {
            self.complaints.push(error.to_string());
        }
    }
}

impl Iterator for DocumentReader {
    type Item = Result<Unit, CorpusError>;

    fn next(&mut self) -> Option<Result<Unit, CorpusError>> {
        loop {
            match self.next_of_file()? {
                Ok(None) => {}
                Ok(Some(unit)) if unit.text.is_empty() => self.empty += 1,
                Ok(Some(unit)) => return Some(Ok(unit)),
                Err(error) if self.skip_bad && error.skippable() => self.complain(&error),
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

impl DocumentReader {
    /// The next unit of the current file; `Ok(None)` at its end, after which the next file is current. None after the
    /// last file. After a bad line or row the next one follows; after a bad file, the next file.
    fn next_of_file(&mut self) -> Option<Result<Option<Unit>, CorpusError>> {
        let input = self.inputs.get(self.file)?;
        let opened = match self.reader.take() {
            Some(reader) => Ok(reader),
            None => Reader::open(input, self.field.as_deref(), &self.raw, self.stdin.clone()),
        };
        let mut reader = match opened {
            Ok(reader) => reader,
            Err(error) => {
                self.end_file();
                return Some(Err(error));
            }
        };
        let unit = reader.next(input, self.field.as_deref()).and_then(|unit| check_text(input, unit));
        let continues = match &unit {
            Ok(unit) => unit.is_some(),
            Err(error) => reader.continues_after(error),
        };
        let file = self.file;
        if continues {
            self.reader = Some(reader);
        } else {
            self.end_file();
        }
        Some(unit.map(|unit| unit.map(|unit| Unit { file, bytes: unit.text.len(), ..unit })))
    }
}

/// The format of a file of JSON or parquet, and its first line, item or row. None if the file cannot be read.
pub(super) fn first_item(input: &Input, stdin: Option<Arc<[u8]>>) -> Option<(TextFormat, String)> {
    if !(input.path.is_file() || stdin.is_some()) {
        return None;
    }
    let open = |kind| {
        let input = Input { kind, ..input.clone() };
        Reader::open(&input, None, &Raw::default(), stdin.clone()).ok().map(|reader| (input, reader))
    };
    let (input, mut reader) = match input.kind {
        TextFormat::Parquet => open(TextFormat::Parquet)?,
        _ => {
            let (_, mut reader) = open(TextFormat::JsonLines)?;
            let Reader::Lines { source, .. } = &mut reader else { return None };
            let first = source.fill_buf().ok()?.iter().find(|b| !b.is_ascii_whitespace()).copied()?;
            open(match first {
                b'{' => TextFormat::JsonLines,
                b'[' => TextFormat::Json,
                _ => return None,
            })?
        }
    };
    let unit = reader.next(&input, None).ok()??;
    Some((input.kind, unit.text))
}

/// Checks that a unit is text: no text has a byte that is 0. (Here, `Unit::bytes` counts the bytes before it in its
/// file.)
fn check_text(input: &Input, unit: Option<Unit>) -> Result<Option<Unit>, CorpusError> {
    match unit.as_ref().and_then(|unit| Some((unit, unit.text.bytes().position(|b| b == 0)?))) {
        None => Ok(unit),
        Some((Unit { place, bytes, .. }, zero)) => {
            Err(CorpusError::Zero { place: input.place(*place), byte: (bytes + zero) as u64 })
        }
    }
}

/// A text file whole, of at most `limit` bytes.
///
/// # Errors
/// As [`read_small`](limpid_base::files::read_small). If the file is not text, the error names the place.
pub fn read_text(path: &Path, limit: u64) -> Result<String, CorpusError> {
    let bytes = at(path, limpid_base::files::read_small(path, limit))?;
    let place = Place { path: path.into(), unit: "", number: 0 };
    match bytes.iter().position(|b| *b == 0) {
        Some(byte) => Err(CorpusError::Zero { place, byte: byte as u64 }),
        None => String::from_utf8(bytes).map_err(|e| not_utf8(place, e.as_bytes(), e.utf8_error(), (0, 1))),
    }
}

/// Names the first byte of `bytes` that is not text. They begin at a byte and a line of the place.
fn not_utf8(place: Place, bytes: &[u8], error: Utf8Error, (byte, line): (u64, u64)) -> CorpusError {
    let valid = error.valid_up_to();
    let (byte, line) = (byte + valid as u64, line + lines(&bytes[..valid]));
    CorpusError::NotUtf8 { place, byte, line, found: bytes[valid] }
}

fn lines(bytes: &[u8]) -> u64 {
    bytes.iter().filter(|b| **b == b'\n').count() as u64
}

/// An open file.
enum Reader {
    Text(Text),
    Lines { source: TextSource, line: u64, broken: bool },
    Array(JsonArray),
    Rows(Box<Rows>),
}

impl Reader {
    fn open(input: &Input, field: Option<&str>, raw: &Raw, stdin: Option<Arc<[u8]>>) -> Result<Reader, CorpusError> {
        let path = &input.path;
        if input.kind == TextFormat::Parquet && !path.is_file() {
            return Err(bad(path, "parquet is read from regular files only: its end says where things are"));
        }
        raw.lock().source = Some(match (path == Path::new("-"), stdin) {
            (true, Some(read)) => Box::new(io::Cursor::new(read)),
            (true, None) => Box::new(io::stdin()),
            // a pipe may be read, too
            (false, _) if path.is_file() => Box::new(at(path, files::open_regular(path))?),
            (false, _) => Box::new(at(path, std::fs::File::open(path))?),
        });
        let mut source: TextSource = Box::new(BufReader::with_capacity(1 << 18, raw.clone()));
        if let Some(packing) = packing(input, &mut source)? {
            source = Box::new(BufReader::with_capacity(1 << 17, Unpacked::new(packing, source)));
        }
        if input.kind == TextFormat::Parquet {
            return Ok(Reader::Rows(Box::new(Rows::open(input, field)?)));
        }
        let start = look(input, &mut source)?;
        let mark = if start.starts_with(b"\xEF\xBB\xBF") { 3 } else { 0 }; // of byte order
        let array = start[mark..].iter().find(|b| !b.is_ascii_whitespace()) == Some(&b'[');
        source.consume(mark);
        Ok(match input.kind {
            TextFormat::Text if field.is_some() => {
                Reader::Text(Text { source, rest: vec![], byte: 0, line: 1, ended: false, begun: false })
            }
            TextFormat::Json if array => Reader::Array(JsonArray::new(source)),
            _ => Reader::Lines { source, line: 0, broken: false },
        })
    }

    /// Whether what follows an error can be read.
    fn continues_after(&self, error: &CorpusError) -> bool {
        match self {
            Reader::Lines { broken, .. } => !broken,
            Reader::Array(array) => array.is_within() && !matches!(error, CorpusError::Format { .. }),
            Reader::Text(_) => false,
            Reader::Rows(_) => !matches!(error, CorpusError::Format { .. }),
        }
    }

    fn next(&mut self, input: &Input, field: Option<&str>) -> Result<Option<Unit>, CorpusError> {
        match self {
            Reader::Text(text) => text.next(input),
            Reader::Lines { source, line, broken } => {
                let mut bytes = vec![];
                loop {
                    bytes.clear();
                    *broken = true; // unless this succeeds
                    let n = damaged(input, read_whole_line(source.as_mut(), &mut bytes, LONGEST))?;
                    (*broken, *line) = (false, *line + 1);
                    if n == 0 {
                        return Ok(None);
                    }
                    if n > bytes.len() as u64 {
                        return Err(CorpusError::TooLong { place: input.place(*line), limit: LONGEST });
                    }
                    if !bytes.trim_ascii().is_empty() {
                        return json(input, field, *line, &bytes).map(Some);
                    }
                }
            }
            Reader::Array(array) => match array.next(input)? {
                None => Ok(None),
                Some(bytes) => json(input, field, array.number(), &bytes).map(Some),
            },
            Reader::Rows(rows) => rows.next(input),
        }
    }
}

fn whole(input: &Input) -> Place {
    Place { path: input.path.clone(), unit: "", number: 0 }
}

/// How a file is packed, from its first bytes.
///
/// # Errors
/// If a file that should be packed is empty, or a parquet file is packed as a whole.
fn packing(input: &Input, source: &mut TextSource) -> Result<Option<Packing>, CorpusError> {
    let path = &input.path;
    let magic = at(path, source.fill_buf())?;
    if magic.is_empty() && path.extension().is_some_and(|e| e == "gz" || e == "zst") {
        return Err(bad(path, "it is empty, which no packed file is: it was cut short"));
    }
    let (packing, tool) = if magic.starts_with(&[0x1f, 0x8b]) {
        (Packing::Gzip, "gunzip")
    } else if magic.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        (Packing::Zstd, "unzstd")
    } else {
        return Ok(None);
    };
    if input.kind == TextFormat::Parquet {
        let what = format!(
            "the whole parquet file is compressed: decompress it with {tool}; parquet compresses its pages itself"
        );
        return Err(bad(path, what));
    }
    Ok(Some(packing))
}

/// The first bytes of what should be text.
///
/// # Errors
/// If they show that it is not.
fn look<'a>(input: &Input, source: &'a mut TextSource) -> Result<&'a [u8], CorpusError> {
    const KINDS: [(&[u8], &str); 9] = [
        (b"%PDF", "a PDF file"),
        (b"PK\x03\x04", "a ZIP archive (or a document made of one)"),
        (b"\x89PNG", "a PNG image"),
        (b"\xFF\xD8\xFF", "a JPEG image"),
        (b"\x7fELF", "a program"),
        (b"PAR1", "a parquet file (its name should end in .parquet)"),
        (b"BZh", "a bzip2 file, which limpid does not read"),
        (b"\xFF\xFE", "UTF-16: convert it first, for example with `iconv -f utf-16 -t utf-8`"),
        (b"\xFE\xFF", "UTF-16: convert it first, for example with `iconv -f utf-16 -t utf-8`"),
    ];
    let start = damaged(input, source.fill_buf())?;
    let known = KINDS.iter().find(|(magic, _)| start.starts_with(magic)).map(|k| k.1);
    let zero = start[..start.len().min(LOOK)].contains(&0).then_some("binary (it has bytes that are 0)");
    match known.or(zero) {
        Some(kind) => Err(CorpusError::Binary { place: whole(input), kind }),
        None => Ok(start),
    }
}

/// The document of a line or an item: its field, or the whole of it.
fn json(input: &Input, field: Option<&str>, number: u64, bytes: &[u8]) -> Result<Unit, CorpusError> {
    let place = || input.place(number);
    let text = std::str::from_utf8(bytes).map_err(|e| CorpusError::NotUtf8 {
        place: place(),
        byte: e.valid_up_to() as u64,
        line: number,
        found: bytes[e.valid_up_to()],
    })?;
    let text = text.trim_start_matches('\u{feff}');
    let Some(field) = field else {
        return Ok(Unit { place: number, text: text.into(), last: true, ..Unit::default() });
    };
    let mut value = serde_json::Deserializer::from_str(text);
    let found = Field(Some(field)).deserialize(&mut value).and_then(|found| value.end().map(|()| found));
    let found = found.map_err(|e| {
        let form =
            if input.kind == TextFormat::Json { " (the file is an array, or has one object a line)" } else { "" };
        let said = e.to_string();
        let why = not_json(text, e.line(), e.column(), &said).unwrap_or(said);
        CorpusError::Json { place: place(), why: why.replace("line 1 column", "column") + form }
    })?;
    let lacks = |Other { kind, field: is, has }: Other| match is {
        Some(kind) => CorpusError::Kind { place: place(), field: field.into(), kind },
        None if kind != OBJECT => CorpusError::Kind { place: place(), field: String::new(), kind },
        None => CorpusError::Field { place: place(), field: field.into(), has },
    };
    let text = found.map_err(lacks)?;
    Ok(Unit { place: number, text, last: true, ..Unit::default() })
}

/// Reads the text of a field from a JSON value, or the value itself if it is a text, and holds nothing else of it.
/// Without a field to look for, only a text will do.
struct Field<'a>(Option<&'a str>);

/// A value that has no text.
struct Other {
    /// What it is.
    kind: &'static str,
    /// What its field is that should be the text, if it has it.
    field: Option<&'static str>,
    /// Some of the fields that it has.
    has: Vec<String>,
}

const OBJECT: &str = "an object";

impl Other {
    fn new(kind: &'static str) -> Other {
        Other { kind, field: None, has: vec![] }
    }
}

impl<'de> DeserializeSeed<'de> for Field<'_> {
    type Value = Result<String, Other>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Field<'_> {
    type Value = Result<String, Other>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object or a text")
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Ok(text.into()))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(Err(Other::new("true or false")))
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        Ok(Err(Other::new("a number")))
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
        Ok(Err(Other::new("a number")))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        Ok(Err(Other::new("a number")))
    }

    /// A field that is null is an empty text, as a null in a parquet column is.
    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(if self.0.is_none() { Ok(String::new()) } else { Err(Other::new("null")) })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Err(Other::new("a list")))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Self::Value, A::Error> {
        let (mut found, mut has) = (None, BTreeSet::new());
        while let Some(name) = fields.next_key::<String>()? {
            if self.0 == Some(&name) {
                found = Some(fields.next_value_seed(Field(None))?);
            } else {
                fields.next_value::<IgnoredAny>()?;
                if has.len() < 9 {
                    has.insert(name);
                }
            }
        }
        Ok(match found {
            Some(found) => found.map_err(|other| Other { field: Some(other.kind), ..Other::new(OBJECT) }),
            None => Err(Other { has: has.into_iter().collect(), ..Other::new(OBJECT) }),
        })
    }
}

/// A text file in parts.
struct Text {
    source: TextSource,
    rest: Vec<u8>,
    byte: u64,
    line: u64,
    ended: bool,
    begun: bool,
}

impl Text {
    fn next(&mut self, input: &Input) -> Result<Option<Unit>, CorpusError> {
        while self.rest.len() <= UNIT && !self.ended {
            let want = (UNIT + 1 - self.rest.len()) as u64;
            self.ended = damaged(input, self.source.as_mut().take(want).read_to_end(&mut self.rest))? == 0;
        }
        if self.rest.is_empty() && self.begun {
            return Ok(None);
        }
        self.begun = true;
        let rest = self.rest.split_off(cut(&self.rest));
        let bytes = std::mem::replace(&mut self.rest, rest);
        match String::from_utf8(bytes) {
            Ok(text) => {
                let before = self.byte as usize;
                (self.byte, self.line) = (self.byte + text.len() as u64, self.line + lines(text.as_bytes()));
                let last = self.ended && self.rest.is_empty();
                Ok(Some(Unit { text, last, bytes: before, ..Unit::default() }))
            }
            Err(e) => Err(not_utf8(input.place(0), e.as_bytes(), e.utf8_error(), (self.byte, self.line))),
        }
    }
}

/// Where a text longer than [`UNIT`] is cut: before a line that begins with a letter or digit, else before any line,
/// else before a blank between letters, else at the end of a word or character.
fn cut(bytes: &[u8]) -> usize {
    if bytes.len() <= UNIT {
        return bytes.len();
    }
    let mut places = [None; 3];
    for i in (UNIT / 2..UNIT).rev() {
        let (before, here, next) = (bytes[i - 1], bytes[i], bytes[i + 1]);
        let kind = if before == b'\n' && here.is_ascii_alphanumeric() {
            0
        } else if before == b'\n' && !here.is_ascii_whitespace() {
            1
        } else if before.is_ascii_alphabetic() && here == b' ' && next.is_ascii_alphabetic() {
            2
        } else {
            continue;
        };
        places[kind].get_or_insert(i);
        if kind == 0 {
            break;
        }
    }
    places.into_iter().flatten().next().unwrap_or_else(|| {
        let text = bytes[..UNIT].utf8_chunks().next().map_or("", |chunk| chunk.valid());
        let letters =
            |i: usize| text[..i].ends_with(char::is_alphabetic) && text[i + 1..].starts_with(char::is_alphabetic);
        let blank = text.rmatch_indices(' ').map(|(i, _)| i).take_while(|i| *i > UNIT / 2).find(|i| letters(*i));
        // bytes without any text are refused when they are read
        blank.unwrap_or_else(|| if text.is_empty() { UNIT } else { boundary(text, text.len(), 0) })
    })
}

/// The bytes of a file as it is, counted, with their checksum.
#[derive(Clone, Default)]
struct Raw(Arc<Mutex<RawFile>>);

#[derive(Default)]
struct RawFile {
    source: Option<Box<dyn Read + Send>>,
    hash: Xxh3,
    bytes: u64,
}

impl Raw {
    fn lock(&self) -> std::sync::MutexGuard<'_, RawFile> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Read for Raw {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let mut file = self.lock();
        let n = file.source.as_mut().map_or(Ok(0), |source| source.read(to))?;
        file.hash.update(&to[..n]);
        file.bytes += n as u64;
        Ok(n)
    }
}

//! GGUF, llama.cpp's container: typed keys and values, a table of tensors, then their bytes, each aligned. Versions
//! 2 and 3, little-endian; written as version 3. A file's counts and lengths are checked against what is left of it
//! before anything is made of them. ggml names the fastest axis first: here, as everywhere in limpid, it is the last.

use crate::error::{CheckpointError, Result, bad, refuse};
use crate::files::replace_buffered;
use crate::safetensors_file;
use crate::store::{Access, Dtype, Facts, OutputTensor, Place, Store, StoreFile, blocks, sizes};
use limpid_base::files::{self, Map};
use limpid_core::numeric::blocks::Quant;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 4] = b"GGUF";
const ALIGNMENT: &str = "general.alignment";
/// Arrays in arrays in arrays end here; ggml itself reads none.
const DEEPEST: usize = 4;
/// ggml's limits.
const MOST_AXES: usize = 4;
const LONGEST_NAME: usize = 63;

/// The types that are read, and ggml's numbers of them.
#[rustfmt::skip]
const TYPES: &[(u32, Dtype)] = &[
    (0, Dtype::F32), (1, Dtype::F16), (30, Dtype::Bf16), (2, Dtype::Blocks(Quant::Q4_0)),
    (3, Dtype::Blocks(Quant::Q4_1)),
    (6, Dtype::Blocks(Quant::Q5_0)), (7, Dtype::Blocks(Quant::Q5_1)), (8, Dtype::Blocks(Quant::Q8_0)),
    (10, Dtype::Blocks(Quant::Q2_K)), (11, Dtype::Blocks(Quant::Q3_K)), (12, Dtype::Blocks(Quant::Q4_K)),
    (13, Dtype::Blocks(Quant::Q5_K)), (14, Dtype::Blocks(Quant::Q6_K)), (20, Dtype::Blocks(Quant::IQ4_NL)),
    (23, Dtype::Blocks(Quant::IQ4_XS)),
];

/// Those that are not: number, name, and how many values make a block of how many bytes.
#[rustfmt::skip]
const OTHERS: &[(u32, &str, (usize, usize))] = &[
    (9, "Q8_1", (32, 36)), (15, "Q8_K", (256, 292)), (16, "IQ2_XXS", (256, 66)), (17, "IQ2_XS", (256, 74)),
    (18, "IQ3_XXS", (256, 98)), (19, "IQ1_S", (256, 50)), (21, "IQ3_S", (256, 110)), (22, "IQ2_S", (256, 82)),
    (24, "I8", (1, 1)), (25, "I16", (1, 2)), (26, "I32", (1, 4)), (27, "I64", (1, 8)), (28, "F64", (1, 8)),
    (29, "IQ1_M", (256, 56)), (34, "TQ1_0", (256, 54)), (35, "TQ2_0", (256, 66)), (39, "MXFP4", (32, 17)),
    (40, "NVFP4", (64, 36)), (41, "Q1_0", (128, 18)),
];

/// A type by its number, and the bytes of a shape, if they can be counted; of an unknown type, those of single bytes.
fn kind(number: u32, shape: &[usize]) -> (Dtype, Option<usize>) {
    if let Some((_, dtype)) = TYPES.iter().find(|t| t.0 == number) {
        return (dtype.clone(), dtype.bytes(shape));
    }
    let other = OTHERS.iter().find(|t| t.0 == number);
    let name = other.map_or_else(|| format!("ggml type {number}"), |t| t.1.into());
    (Dtype::Other(name), blocks(shape, other.map_or((1, 1), |t| t.2)))
}

/// A place in the file.
struct Reader<'a> {
    path: &'a Path,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    fn take(&mut self, n: u64, what: &str) -> Result<&'a [u8]> {
        if n > self.left() as u64 {
            let (at, left) = (self.at, self.left());
            let what =
                format!("{what} at byte {at} should take {n} bytes, but {left} are left: it was cut short or damaged");
            return refuse(self.path, what);
        }
        let from = self.at;
        self.at += n as usize;
        Ok(&self.bytes[from..self.at])
    }

    fn get<T: Item>(&mut self, what: &str) -> Result<T> {
        T::read(self, what)
    }

    /// How many of something that takes at least `least` bytes.
    fn count(&mut self, least: usize, what: &str) -> Result<u64> {
        let n: u64 = self.get(what)?;
        if n > (self.left() / least) as u64 {
            let what =
                format!("{what} are said to be {n}, more than the {} bytes left can hold: it is damaged", self.left());
            return refuse(self.path, what);
        }
        Ok(n)
    }
}

/// What a value or an element of an array may be.
trait Item: Sized {
    /// Bytes it takes at least.
    const LEAST: usize;
    fn read(from: &mut Reader, what: &str) -> Result<Self>;
    fn write(&self, to: &mut Vec<u8>);
}

macro_rules! number {
    ($($type:ty),*) => {$(
        impl Item for $type {
            const LEAST: usize = size_of::<$type>();
            fn read(from: &mut Reader, what: &str) -> Result<Self> {
                let bytes = from.take(Self::LEAST as u64, what)?;
                Ok(<$type>::from_le_bytes(bytes.try_into().expect("as many as were taken")))
            }
            fn write(&self, to: &mut Vec<u8>) {
                to.extend(self.to_le_bytes());
            }
        }
    )*};
}
number!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64);

impl Item for bool {
    const LEAST: usize = 1;
    fn read(from: &mut Reader, what: &str) -> Result<Self> {
        match from.get(what)? {
            0u8 => Ok(false),
            1 => Ok(true),
            other => {
                refuse(from.path, format!("{what} should be 0 or 1 (a truth value) and is {other}: it is damaged"))
            }
        }
    }
    fn write(&self, to: &mut Vec<u8>) {
        to.push(u8::from(*self));
    }
}

impl Item for String {
    const LEAST: usize = 8;
    fn read(from: &mut Reader, what: &str) -> Result<Self> {
        let n = from.get(what)?;
        let text = str::from_utf8(from.take(n, what)?);
        text.map(String::from).map_err(|e| bad(from.path, format!("{what} is not UTF-8 text: {e}")))
    }
    fn write(&self, to: &mut Vec<u8>) {
        (self.len() as u64).write(to);
        to.extend(self.as_bytes());
    }
}

macro_rules! values {
    ($($number:literal $name:ident $type:ty),*) => {
        /// A value of a key.
        #[derive(Clone, Debug, PartialEq)]
        #[allow(missing_docs)] // each is the type it is named after
        pub enum GgufValue {
            $($name($type),)*
            Array(Array),
        }

        /// Values of one type, 150,000 tokens as well.
        #[derive(Clone, Debug, PartialEq)]
        #[allow(missing_docs)]
        pub enum Array {
            $($name(Vec<$type>),)*
            Array(Vec<Array>),
        }

        $(
            impl From<$type> for GgufValue {
                fn from(value: $type) -> GgufValue {
                    GgufValue::$name(value)
                }
            }
            impl From<Vec<$type>> for GgufValue {
                fn from(values: Vec<$type>) -> GgufValue {
                    GgufValue::Array(Array::$name(values))
                }
            }
        )*

        impl GgufValue {
            fn read(from: &mut Reader, what: &str) -> Result<GgufValue> {
                match from.get::<u32>(what)? {
                    $($number => from.get(what).map(GgufValue::$name),)*
                    9 => Array::read(from, what, 1).map(GgufValue::Array),
                    other => Err(unknown(from.path, what, other)),
                }
            }

            fn write(&self, to: &mut Vec<u8>) {
                match self {
                    $(GgufValue::$name(value) => {
                        u32::write(&$number, to);
                        value.write(to);
                    })*
                    GgufValue::Array(array) => {
                        9u32.write(to);
                        array.write(to);
                    }
                }
            }
        }

        impl Array {
            fn read(from: &mut Reader, what: &str, depth: usize) -> Result<Array> {
                if depth > DEEPEST {
                    return refuse(from.path, format!("{what} is arrays in arrays, more than {DEEPEST} deep"));
                }
                match from.get::<u32>(what)? {
                    $($number => {
                        let n = from.count(<$type>::LEAST, what)?;
                        (0..n).map(|_| from.get(what)).collect::<Result<_>>().map(Array::$name)
                    })*
                    9 => {
                        let n = from.count(12, what)?;
                        (0..n).map(|_| Array::read(from, what, depth + 1)).collect::<Result<_>>().map(Array::Array)
                    }
                    other => Err(unknown(from.path, what, other)),
                }
            }

            fn write(&self, to: &mut Vec<u8>) {
                match self {
                    $(Array::$name(values) => {
                        u32::write(&$number, to);
                        (values.len() as u64).write(to);
                        values.iter().for_each(|v| v.write(to));
                    })*
                    Array::Array(arrays) => {
                        9u32.write(to);
                        (arrays.len() as u64).write(to);
                        arrays.iter().for_each(|a| a.write(to));
                    }
                }
            }
        }
    };
}
values!(0 U8 u8, 1 I8 i8, 2 U16 u16, 3 I16 i16, 4 U32 u32, 5 I32 i32, 6 F32 f32, 7 Bool bool, 8 String String,
    10 U64 u64, 11 I64 i64, 12 F64 f64);

fn unknown(path: &Path, what: &str, number: u32) -> CheckpointError {
    bad(path, format!("{what} is of type {number}; GGUF has types 0 to 12: it is damaged"))
}

/// What is made of a value, or of each array, of whole numbers; none of others.
macro_rules! whole {
    ($kind:ident, $value:expr, |$number:ident| $made:expr) => {
        whole!($kind, $value, $number, $made, U8 U16 U32 U64 I8 I16 I32 I64)
    };
    ($kind:ident, $value:expr, $number:ident, $made:expr, $($name:ident)*) => {
        match $value {
            $($kind::$name($number) => $made,)*
            _ => None,
        }
    };
}

impl Array {
    /// Its numbers, if they are whole and not negative.
    pub(crate) fn sizes(&self) -> Option<Vec<usize>> {
        whole!(Array, self, |numbers| numbers.iter().map(|n| usize::try_from(i128::from(*n)).ok()).collect())
    }
}

/// The keys and values of a file.
#[derive(Clone, Debug, Default)]
pub struct Metadata {
    path: PathBuf,
    entries: BTreeMap<String, GgufValue>,
}

impl Metadata {
    /// A value, if the key is there.
    pub fn get(&self, key: &str) -> Option<&GgufValue> {
        self.entries.get(key)
    }

    /// Gives `key` a value.
    pub fn set(&mut self, key: impl Into<String>, value: impl Into<GgufValue>) {
        self.entries.insert(key.into(), value.into());
    }

    /// The same but for some keys.
    pub fn without(mut self, goes: impl Fn(&str) -> bool) -> Metadata {
        self.entries.retain(|key, _| !goes(key));
        self
    }

    /// All of them, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &GgufValue)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// What one of the methods below reads, if the key is there.
    ///
    /// # Errors
    /// If it is something else.
    pub fn maybe<'a, T>(&'a self, key: &str, read: fn(&'a Metadata, &str) -> Result<T>) -> Result<Option<T>> {
        self.get(key).map(|_| read(self, key)).transpose()
    }

    fn typed<'a, T>(&'a self, key: &str, kind: &str, want: impl FnOnce(&'a GgufValue) -> Option<T>) -> Result<T> {
        let value = self.get(key).ok_or_else(|| bad(&self.path, format!("it lacks the key `{key}`, {kind}")))?;
        want(value).ok_or_else(|| {
            let mut found = format!("{value:?}");
            if let Some((at, _)) = found.char_indices().nth(60) {
                found.replace_range(at.., "…");
            }
            bad(&self.path, format!("the key `{key}` should be {kind} and is {found}"))
        })
    }

    /// A string.
    ///
    /// # Errors
    /// If the key is not there or is something else; as all that follow.
    pub fn str(&self, key: &str) -> Result<&str> {
        self.typed(key, "a string", |v| if let GgufValue::String(s) = v { Some(s.as_str()) } else { None })
    }

    /// A number that is whole and not negative, of any integer type.
    ///
    /// # Errors
    /// As [`Metadata::str`].
    pub fn u64(&self, key: &str) -> Result<u64> {
        self.typed(key, "a whole number", |value| whole!(GgufValue, value, |n| u64::try_from(i128::from(*n)).ok()))
    }

    /// A number with a fraction.
    ///
    /// # Errors
    /// As [`Metadata::str`].
    pub fn f64(&self, key: &str) -> Result<f64> {
        self.typed(key, "a number with a fraction", |v| match *v {
            GgufValue::F32(x) => Some(x.into()),
            GgufValue::F64(x) => Some(x),
            _ => None,
        })
    }

    /// A truth value.
    ///
    /// # Errors
    /// As [`Metadata::str`].
    pub fn bool(&self, key: &str) -> Result<bool> {
        self.typed(key, "true or false", |v| if let GgufValue::Bool(b) = v { Some(*b) } else { None })
    }

    /// Several strings.
    ///
    /// # Errors
    /// As [`Metadata::str`].
    pub fn strings(&self, key: &str) -> Result<&[String]> {
        self.typed(key, "an array of strings", |v| {
            if let GgufValue::Array(Array::String(strings)) = v { Some(strings.as_slice()) } else { None }
        })
    }

    /// Several whole numbers of 32 bits: the types of tokens.
    ///
    /// # Errors
    /// As [`Metadata::str`].
    pub fn i32s(&self, key: &str) -> Result<&[i32]> {
        self.typed(key, "an array of I32", |v| {
            if let GgufValue::Array(Array::I32(n)) = v { Some(n.as_slice()) } else { None }
        })
    }

    /// Bytes, signed or not.
    ///
    /// # Errors
    /// As [`Metadata::str`].
    pub fn bytes(&self, key: &str) -> Result<Vec<u8>> {
        self.typed(key, "an array of bytes", |v| match v {
            GgufValue::Array(Array::U8(bytes)) => Some(bytes.clone()),
            GgufValue::Array(Array::I8(bytes)) => Some(bytes.iter().map(|byte| *byte as u8).collect()),
            _ => None,
        })
    }

    /// Refuses another file of the same model that says otherwise of what both say.
    fn agrees(&self, other: &Metadata, path: &Path) -> Result<()> {
        let differs = |(key, value): &(&String, &GgufValue)| {
            key.as_str() != SPLIT_NO && self.get(key).is_some_and(|own| own != *value)
        };
        match other.entries.iter().find(differs) {
            Some((key, _)) => {
                let what =
                    format!("its key `{key}` is not that of the model's first file: the files are of different models");
                refuse(path, what)
            }
            None => Ok(()),
        }
    }

    fn alignment(&self, path: &Path) -> Result<usize> {
        match self.get(ALIGNMENT) {
            None => Ok(32),
            Some(GgufValue::U32(n)) if n.is_power_of_two() => Ok(*n as usize),
            Some(other) => {
                refuse(path, format!("the key `{ALIGNMENT}` should be a power of two (U32) and is {other:?}"))
            }
        }
    }
}

/// The keys of a file that is one of several.
const SPLIT_NO: &str = "split.no";
const SPLIT_COUNT: &str = "split.count";
const SPLIT_TENSORS: &str = "split.tensors.count";

/// Whether a file begins as GGUF files do.
pub fn is_gguf(path: &Path) -> bool {
    let mut first = [0; 4];
    files::open_regular(path).is_ok_and(|mut file| file.read_exact(&mut first).is_ok()) && first == *MAGIC
}

/// Opens `path`, and of a model in several files (`NAME-00001-of-00003.gguf`, as llama.cpp's `gguf-split` makes them)
/// all, whichever is given. The metadata are the first file's.
///
/// # Errors
/// If one cannot be read, is of another version or byte order, is cut short or damaged, or is not there.
pub fn open(path: &Path) -> Result<(Metadata, Store)> {
    open_as(path, Access::default())
}

/// [`open`] in one of the ways to read files.
pub(crate) fn open_as(path: &Path, access: Access) -> Result<(Metadata, Store)> {
    let (metadata, map, tensors) = part(path, access)?;
    let count = metadata.maybe(SPLIT_COUNT, Metadata::u64)?.unwrap_or(1);
    if count <= 1 {
        return Ok((metadata, Store::new(path, vec![StoreFile::plain(path, map)], tensors, Facts::new())?));
    }
    let no = metadata.u64(SPLIT_NO)?;
    let called = |no: u64| format!("-{:05}-of-{count:05}.gguf", no.saturating_add(1));
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let Some(stem) = name.strip_suffix(&called(no)) else {
        let what = format!(
            "it is one of {count} files of a model (`{SPLIT_COUNT}`), of which it should be called NAME{}: give all \
             of them the names that they had",
            called(no)
        );
        return refuse(path, what);
    };
    drop((metadata, map, tensors));
    let (mut first, mut files, mut tensors) = (None::<Metadata>, vec![], vec![]);
    for i in 0..count {
        let place = path.with_file_name(format!("{stem}{}", called(i)));
        if !place.exists() {
            let name = place.file_name().unwrap_or_default().display();
            let what =
                format!("it is one of {count} files of a model, and {name} is not there: put it beside this one");
            return refuse(path, what);
        }
        let (metadata, map, places) = part(&place, access)?;
        let found = (metadata.u64(SPLIT_NO)?, metadata.u64(SPLIT_COUNT)?);
        if found != (i, count) {
            let (no, of) = found;
            let what = format!("it should be file {i} of {count}, counted from 0, and says that it is {no} of {of}");
            return refuse(&place, what);
        }
        if let Some(first) = &first {
            first.agrees(&metadata, &place)?;
        }
        let file = files.len();
        tensors.extend(places.into_iter().map(|place| Place { file, ..place }));
        files.push(StoreFile::plain(&place, map));
        first.get_or_insert(metadata);
    }
    let first = first.expect("a count is 2 or more here");
    let (wanted, found) = (first.u64(SPLIT_TENSORS)?, tensors.len());
    if wanted != found as u64 {
        let what =
            format!("the {count} files of the model should have {wanted} tensors (`{SPLIT_TENSORS}`) and have {found}");
        return refuse(path, what);
    }
    Ok((first, Store::new(path, files, tensors, Facts::new())?))
}

/// One file: what it says, and where its tensors are.
fn part(path: &Path, access: Access) -> Result<(Metadata, Map, Vec<Place>)> {
    let map = access.open(path)?;
    let mut from = Reader { path, bytes: &map, at: 0 };
    if !map.starts_with(MAGIC) {
        if safetensors_file::looks_like_pickle(&map) {
            return Err(safetensors_file::pickle(path));
        }
        let found = map[..map.len().min(4)].escape_ascii();
        return refuse(path, format!("it is not a GGUF file: it should begin with `GGUF` and begins with `{found}`"));
    }
    from.at = MAGIC.len();
    match from.get::<u32>("the version")? {
        2 | 3 => {}
        n if n.swap_bytes() <= 3 => {
            let what = "it is big-endian; limpid reads little-endian GGUF: convert it with gguf-convert-endian";
            return refuse(path, what);
        }
        n => {
            let what = format!("it is GGUF version {n}; limpid reads 2 and 3: convert the model again with llama.cpp");
            return refuse(path, what);
        }
    }
    let n_tensors = from.get::<u64>("the number of tensors")?;
    let n_keys = from.count(13, "keys")?;
    let mut metadata = Metadata { path: path.into(), entries: BTreeMap::new() };
    for n in 0..n_keys {
        let key: String = from.get(&format!("key {n}"))?;
        let value = GgufValue::read(&mut from, &format!("the key `{key}`"))?;
        if metadata.entries.contains_key(&key) {
            return refuse(path, format!("it has the key `{key}` twice"));
        }
        metadata.entries.insert(key, value);
    }
    if n_tensors > (from.left() / 24) as u64 {
        let what = format!("{n_tensors} tensors are more than the {} bytes left can hold: it is damaged", from.left());
        return refuse(path, what);
    }
    let alignment = metadata.alignment(path)?;
    let mut tensors = (0..n_tensors).map(|n| tensor(&mut from, n, alignment)).collect::<Result<Vec<_>>>()?;
    let start = from.at.checked_next_multiple_of(alignment).filter(|_| !tensors.is_empty()).unwrap_or(from.at);
    settle(path, &mut tensors, start, &map, alignment)?;
    Ok((metadata, map, tensors))
}

/// A row of the table of tensors: its bytes counted from where the data begins, to `usize::MAX` where the length is
/// unknown.
fn tensor(from: &mut Reader, n: u64, alignment: usize) -> Result<Place> {
    let path = from.path;
    let name: String = from.get(&format!("the name of tensor {n}"))?;
    let what = format!("the table's row of `{name}`");
    let n_axes: u32 = from.get(&what)?;
    if n_axes as usize > MOST_AXES {
        let what = format!("`{name}` is said to have {n_axes} axes; ggml has at most {MOST_AXES}: it is damaged");
        return refuse(path, what);
    }
    let axes = (0..n_axes).map(|_| from.get::<u64>(&what)).collect::<Result<Vec<_>>>()?;
    let number: u32 = from.get(&what)?;
    let offset: u64 = from.get(&what)?;
    let shape = axes.iter().rev().map(|d| usize::try_from(*d).ok()).collect::<Option<Vec<usize>>>();
    let (dtype, len) = shape.as_ref().map_or((Dtype::Other(String::new()), None), |shape| kind(number, shape));
    let (Some(shape), Some(len)) = (shape, len) else {
        let what = format!("`{name}`, {dtype} with axes {axes:?}, is too large to count or no whole number of blocks");
        return refuse(path, what);
    };
    let Some(begin) = usize::try_from(offset).ok().filter(|n| n.is_multiple_of(alignment)) else {
        return refuse(
            path,
            format!("`{name}` begins at {offset}, which is not a multiple of the alignment {alignment}"),
        );
    };
    let Some(end) = begin.checked_add(len) else {
        return refuse(path, format!("`{name}` begins at {offset}, beyond any file: it is damaged"));
    };
    let known = TYPES.iter().any(|t| t.0 == number) || OTHERS.iter().any(|t| t.0 == number);
    let bytes = begin..if known { end } else { usize::MAX };
    Ok(Place { name, dtype, shape, file: 0, bytes })
}

/// Gives every tensor its bytes in the file, and checks that they lie as ggml lays them: in the table's order, one
/// after the other, the first at `start`, nothing but zeros up to the alignment between them and behind the last. So a
/// size that is not what was written fits nowhere. One of an unknown type reaches to the next.
fn settle(path: &Path, tensors: &mut [Place], start: usize, map: &[u8], alignment: usize) -> Result<()> {
    let room = map.len().saturating_sub(start);
    let mut due = 0; // where the next begins, counted from `start`
    for i in 0..tensors.len() {
        let next = tensors.get(i + 1).map_or(room, |next| next.bytes.start);
        let Place { name, bytes, .. } = &mut tensors[i];
        if bytes.start != due {
            let what =
                format!("`{name}` begins at {} of the data, and the tensors before it end at {due}", bytes.start);
            return refuse(path, format!("{what}: it is damaged"));
        }
        let end = if bytes.end == usize::MAX { next.max(bytes.start) } else { bytes.end };
        due = end.checked_next_multiple_of(alignment).unwrap_or(usize::MAX);
        let padding = map.get(start.saturating_add(end)..start.saturating_add(due.min(room)));
        if padding.is_some_and(|bytes| bytes.iter().any(|b| *b != 0)) {
            return refuse(path, format!("what follows `{name}` up to the next tensor is not zeros: it is damaged"));
        }
        *bytes = start.saturating_add(bytes.start)..start.saturating_add(end);
    }
    if let Some(last) = tensors.last().filter(|_| room > due) {
        return refuse(path, format!("{} bytes follow `{}`, its last tensor: it is damaged", room - due, last.name));
    }
    Ok(())
}

/// Writes `tensors` to `path`, aligned as `metadata` says (to 32 bytes, if it does not).
///
/// # Errors
/// If a name, type or value has no place in such a file, or the file system says so; the old file is then still there.
pub fn write(path: &Path, metadata: &Metadata, tensors: Vec<OutputTensor>) -> Result<()> {
    let alignment = metadata.alignment(path)?;
    let mut head = MAGIC.to_vec();
    3u32.write(&mut head);
    (tensors.len() as u64).write(&mut head);
    (metadata.entries.len() as u64).write(&mut head);
    for (key, value) in &metadata.entries {
        key.write(&mut head);
        value.write(&mut head);
    }
    let sizes = sizes(path, &tensors)?;
    let mut offset = 0u64;
    for (tensor, size) in tensors.iter().zip(&sizes) {
        let OutputTensor { name, shape, dtype, .. } = tensor;
        if name.len() > LONGEST_NAME || shape.len() > MOST_AXES {
            let what =
                format!("`{name}` {shape:?}: ggml has names of {LONGEST_NAME} bytes and {MOST_AXES} axes at most");
            return refuse(path, what);
        }
        let kind = TYPES.iter().find(|t| t.1 == *dtype).expect("`sizes` lets these types pass").0;
        name.write(&mut head);
        (shape.len() as u32).write(&mut head);
        shape.iter().rev().for_each(|d| (*d as u64).write(&mut head));
        kind.write(&mut head);
        offset.write(&mut head);
        offset += size.next_multiple_of(alignment) as u64;
    }
    head.resize(head.len().next_multiple_of(alignment), 0);
    replace_buffered(path, |file| {
        file.write_all(&head)?;
        for (tensor, size) in tensors.iter().zip(&sizes) {
            tensor.write(path, file)?;
            file.write_all(&vec![0; size.next_multiple_of(alignment) - size])?;
        }
        Ok(())
    })
}

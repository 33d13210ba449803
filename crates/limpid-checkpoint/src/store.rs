//! The common form of all files of weights: named tensors, each with a type and a shape, somewhere in the bytes of one
//! or several files. A [`Store`] checks its tensors when it is made, so that reads stay inside the files. Values are
//! decoded to f32 on request; f32 values are read in place. `safetensors_file`, `gguf` and `llmc` make stores. What the
//! names mean, `formats` knows (`Dialect` in `formats/links.rs`).

use crate::error::{CheckpointError, Result, bad, refuse};
use crate::files::at;
use crate::quantize::{self, WRITTEN};
use half::vec::HalfFloatVecExt;
use half::{bf16, f16};
use limpid_base::files::Map;
use limpid_core::numeric::blocks::Quant;
use limpid_core::numeric::element::Element;
use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::io::{self, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::OnceLock;
use xxhash_rust::xxh3::Xxh3;

/// How the values of a tensor are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dtype {
    /// 32 bits.
    F32,
    /// IEEE's 16 bits.
    F16,
    /// The upper 16 bits of an f32.
    Bf16,
    /// Blocks of ggml's along the last axis.
    Blocks(Quant),
    /// Anything else, by its name: never decoded.
    Other(String),
}

impl FromStr for Dtype {
    type Err = String;
    /// A type that models are saved in.
    fn from_str(name: &str) -> Result<Dtype, String> {
        match name.to_lowercase().replace('-', "_").as_str() {
            "f32" | "float32" => Ok(Dtype::F32),
            "f16" | "float16" => Ok(Dtype::F16),
            "bf16" | "bfloat16" => Ok(Dtype::Bf16),
            "q8_0" | "q8" => Ok(Dtype::Blocks(Quant::Q8_0)),
            "q4_0" => Ok(Dtype::Blocks(Quant::Q4_0)),
            "q4_k" => Ok(Dtype::Blocks(Quant::Q4_K)),
            _ => Err(format!("`{name}` is not one of f32, f16, bf16, q8_0, q4_0, q4_k")),
        }
    }
}

impl Dtype {
    /// The bytes of a tensor of this shape; `None` if there are too many to count, a row is not whole blocks, or the
    /// type is unknown.
    pub fn bytes(&self, shape: &[usize]) -> Option<usize> {
        let n = count(shape)?;
        match self {
            Dtype::F32 => n.checked_mul(4),
            Dtype::F16 | Dtype::Bf16 => n.checked_mul(2),
            Dtype::Blocks(quant) => blocks(shape, quant.sizes()),
            Dtype::Other(_) => None,
        }
    }

    /// The backends' word for it.
    fn element(&self) -> Option<Element> {
        match self {
            Dtype::F32 => Some(Element::F32),
            Dtype::F16 => Some(Element::F16),
            Dtype::Bf16 => Some(Element::Bf16),
            Dtype::Blocks(quant) => Some(Element::Blocks(*quant)),
            Dtype::Other(_) => None,
        }
    }

    /// The values that are stored so: in place where they are f32 and aligned, else decoded; none of an unknown type.
    fn decode<'a>(&self, bytes: &'a [u8]) -> Option<Cow<'a, [f32]>> {
        match self {
            Dtype::F32 => Some(view(bytes, f32::from_le_bytes)),
            Dtype::F16 | Dtype::Bf16 => {
                let bits = view(bytes, u16::from_le_bytes);
                Some(self.element()?.widen(bytemuck::cast_slice(&bits)).into_owned().into())
            }
            Dtype::Blocks(quant) => Some(quant.widen(bytes).into()),
            Dtype::Other(_) => None,
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Dtype::F32 => "F32",
            Dtype::F16 => "F16",
            Dtype::Bf16 => "BF16",
            Dtype::Blocks(quant) => quant.name(),
            Dtype::Other(name) => name,
        })
    }
}

fn count(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d))
}

/// The bytes of a shape stored in blocks of (values, bytes) along its last axis.
pub(super) fn blocks(shape: &[usize], (values, bytes): (usize, usize)) -> Option<usize> {
    let whole = shape.last().copied().unwrap_or(1).is_multiple_of(values);
    if whole { (count(shape)? / values).checked_mul(bytes) } else { None }
}

/// A tensor as it lies in its file.
#[derive(Clone, Copy)]
pub struct Stored<'a> {
    /// Its name there.
    pub name: &'a str,
    /// How its values are stored.
    pub dtype: &'a Dtype,
    /// Its axes, the slowest first.
    pub shape: &'a [usize],
    /// Its bytes.
    pub bytes: &'a [u8],
    /// What they lie in.
    file: &'a StoreFile,
}

impl<'a> Stored<'a> {
    /// The file it is in: of several, the one that holds it.
    pub fn path(&self) -> &'a Path {
        &self.file.path
    }

    /// The values: the file's own memory where they are f32 and aligned, else decoded.
    ///
    /// # Errors
    /// If the type is [`Dtype::Other`], the file was changed since it was opened, or its checksum is another.
    pub fn values(&self) -> Result<Cow<'a, [f32]>> {
        self.file.check()?;
        let Some(values) = self.dtype.decode(self.bytes) else {
            let what = format!(
                "`{}` is stored as {}, which limpid does not read: convert it to F32, F16 or BF16, or requantise a \
                 GGUF to Q8_0 or Q4_K",
                self.name, self.dtype
            );
            return refuse(self.path(), what);
        };
        Ok(values)
    }

    /// The bytes as they lie, and what they are, where backends take that as it is.
    ///
    /// # Errors
    /// If the file was changed since it was opened, or its checksum is another.
    pub(super) fn raw(&self) -> Result<Option<(Element, &'a [u8])>> {
        self.file.check()?;
        Ok(self.dtype.element().filter(|_| cfg!(target_endian = "little")).map(|element| (element, self.bytes)))
    }

    /// Lets the system drop its bytes from memory, after they were copied elsewhere.
    pub(super) fn release(&self) {
        self.file.map.release(self.bytes);
    }

    /// The index of the first NaN or infinity, if there is one.
    ///
    /// # Errors
    /// As [`Stored::values`].
    pub fn not_finite(&self) -> Result<Option<usize>> {
        Ok(self.values()?.iter().position(|v| !v.is_finite()))
    }
}

/// `bytes` as little-endian numbers: in place where the machine and the address allow it.
pub(super) fn view<T: bytemuck::Pod, const N: usize>(bytes: &[u8], read: fn([u8; N]) -> T) -> Cow<'_, [T]> {
    match bytemuck::try_cast_slice(bytes) {
        Ok(values) if cfg!(target_endian = "little") => Cow::Borrowed(values),
        _ => bytes.as_chunks::<N>().0.iter().map(|b| read(*b)).collect(),
    }
}

/// How files of weights are read, and whether their checksums are verified.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    /// Read in place, through a map; else copied into memory.
    pub(crate) mapped: bool,
    /// Whether checksums are verified.
    pub(crate) verified: bool,
}

impl Default for Access {
    fn default() -> Access {
        // WASI has no maps
        Access { mapped: cfg!(not(target_family = "wasm")), verified: true }
    }
}

impl Access {
    /// The bytes of a file of weights.
    #[allow(unsafe_code)] // what the map asks for, `Checkpoint::open` asks for
    pub(crate) fn open(self, path: &Path) -> Result<Map> {
        // SAFETY: limpid replaces files of weights by renaming and never writes into one. `Checkpoint::open` asks the
        // same of others; reads find with `Map::check` who does.
        at(path, if self.mapped { unsafe { Map::open(path) } } else { Map::copy(path) })
    }
}

/// Lines of text by name: safetensors' `__metadata__`.
pub type Facts = HashMap<String, String>;

/// A tensor's place: which file, which bytes of it.
pub(super) struct Place {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub file: usize,
    pub bytes: Range<usize>,
}

/// A file as it was opened, with its checksum if it has one. The checksum is verified once, before the first value is
/// read, whichever way values are read.
pub(super) struct StoreFile {
    path: PathBuf,
    map: Map,
    /// Where its digits stand.
    digits: Option<Range<usize>>,
    held: OnceLock<std::result::Result<(), String>>,
}

impl StoreFile {
    /// One without a checksum.
    pub(super) fn plain(path: &Path, map: Map) -> StoreFile {
        StoreFile { path: path.into(), map, digits: None, held: OnceLock::new() }
    }

    /// One with the digits of its checksum there: XXH3 of the whole file, where they are zeros.
    pub(super) fn summed(path: &Path, map: Map, digits: Option<Range<usize>>) -> StoreFile {
        StoreFile { digits, ..StoreFile::plain(path, map) }
    }

    /// The checksum that it carries, whether it is right or not.
    pub(super) fn sum(&self) -> Option<String> {
        Some(String::from_utf8_lossy(&self.map[self.digits.clone()?]).into_owned())
    }

    /// Whether it is what was opened, and what was written.
    fn check(&self) -> Result<()> {
        at(&self.path, self.map.check())?;
        let held = self.held.get_or_init(|| {
            let Some(digits) = &self.digits else { return Ok(()) };
            let mut sum = Xxh3::new();
            let parts = [&self.map[..digits.start], &b"0".repeat(digits.len()), &self.map[digits.end..]];
            parts.iter().for_each(|part| sum.update(part));
            let (found, said) = (format!("{:016x}", sum.digest()), self.sum().unwrap_or_default());
            if found == said {
                return Ok(());
            }
            Err(format!(
                "its checksum is {found}, and it says {said:?}: it was changed or damaged after it was written, so \
                 take it from a copy"
            ))
        });
        held.clone().map_err(|what| CheckpointError::Damaged { path: self.path.clone(), what })
    }
}

/// The tensors of one file, or of several that are one model.
pub struct Store {
    path: PathBuf,
    files: Vec<StoreFile>,
    tensors: Vec<Place>,
    by_name: Vec<usize>,
    facts: Facts,
}

impl Store {
    /// Checks that every tensor has a name of its own, lies in its file and has the bytes that its shape takes.
    pub(super) fn new(path: &Path, files: Vec<StoreFile>, tensors: Vec<Place>, facts: Facts) -> Result<Store> {
        for Place { name, dtype, shape, file, bytes } in &tensors {
            let StoreFile { path, map, .. } = &files[*file];
            let wanted = dtype.bytes(shape);
            if !matches!(dtype, Dtype::Other(_)) && wanted != Some(bytes.len()) {
                let wanted = wanted.map_or("no whole number of bytes".into(), |n| format!("{n} bytes"));
                let what = format!("`{name}` is {dtype} {shape:?}, {wanted}, but has {} in the file", bytes.len());
                return refuse(path, what);
            }
            if map.get(bytes.clone()).is_none() {
                let what = format!(
                    "`{name}` should end at byte {}, but the file has {}: it was cut short or damaged",
                    bytes.end,
                    map.len()
                );
                return refuse(path, what);
            }
        }
        let mut by_name: Vec<usize> = (0..tensors.len()).collect();
        by_name.sort_by(|a, b| tensors[*a].name.cmp(&tensors[*b].name));
        if let Some([a, b]) = by_name.windows(2).find(|pair| tensors[pair[0]].name == tensors[pair[1]].name) {
            let (a, b) = (&tensors[*a], &tensors[*b]);
            let file = |place: &Place| files[place.file].path.file_name().unwrap_or_default().display().to_string();
            let places = if a.file == b.file { String::new() } else { format!(", in {} and in {}", file(a), file(b)) };
            return refuse(path, format!("two tensors are called `{}`{places}", a.name));
        }
        Ok(Store { path: path.into(), files, tensors, by_name, facts })
    }

    /// The file, or the index of the files.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The names of the tensors, in the order in which they are stored.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.iter().map(|t| t.name.as_str())
    }

    /// The tensor called `name`.
    pub fn get(&self, name: &str) -> Option<Stored<'_>> {
        let at = self.by_name.binary_search_by(|i| self.tensors[*i].name.as_str().cmp(name)).ok()?;
        let Place { name, dtype, shape, file, bytes } = &self.tensors[self.by_name[at]];
        let file = &self.files[*file];
        Some(Stored { name, dtype, shape, bytes: &file.map[bytes.clone()], file })
    }

    /// The files, as they were opened.
    pub(super) fn files(&self) -> &[StoreFile] {
        &self.files
    }

    /// Checks that the files have not changed since they were opened and that their checksums match. The first call
    /// reads every file that has a checksum, unless a value was read before.
    ///
    /// # Errors
    /// Names the file that has changed.
    pub fn check(&self) -> Result<()> {
        self.files.iter().try_for_each(StoreFile::check)
    }

    /// A line of text that came with the tensors: an entry of safetensors' `__metadata__`.
    pub fn fact(&self, key: &str) -> Option<&str> {
        self.facts.get(key).map(String::as_str)
    }
}

/// A tensor to be written; its values are made when they are written.
pub struct OutputTensor<'a> {
    /// Its name in the file.
    pub name: String,
    /// How it is stored.
    pub dtype: Dtype,
    /// Its axes, the slowest first.
    pub shape: Vec<usize>,
    /// Functions that make its values, part after part, so that a large tensor is never in memory twice.
    pub values: Vec<MakeValues<'a>>,
    /// Its rows as they are stored elsewhere in this type, in place of values.
    pub rows: Option<Vec<&'a [u8]>>,
}

/// Makes some values of a tensor.
pub type MakeValues<'a> = Box<dyn Fn() -> Result<Vec<f32>> + 'a>;

impl<'a> OutputTensor<'a> {
    /// One whose values are made.
    pub fn new(name: String, dtype: Dtype, shape: Vec<usize>, values: Vec<MakeValues<'a>>) -> OutputTensor<'a> {
        OutputTensor { name, dtype, shape, values, rows: None }
    }

    /// Makes and writes the values to `file`, which will be `path`.
    ///
    /// # Panics
    /// If there are not as many values as the shape says.
    pub(super) fn write(&self, path: &Path, file: &mut impl Write) -> io::Result<()> {
        let refused = |what| io::Error::other(bad(path, format!("`{}`: {what}", self.name)));
        if let Some(rows) = &self.rows {
            assert_eq!(
                Some(rows.iter().map(|row| row.len()).sum()),
                self.dtype.bytes(&self.shape),
                "rows of `{}`",
                self.name
            );
            return rows.iter().try_for_each(|row| file.write_all(row));
        }
        let mut written = 0;
        for part in &self.values {
            let values = part().map_err(io::Error::other)?;
            file.write_all(&encode(&values, &self.dtype).map_err(refused)?)?;
            written += values.len();
        }
        assert_eq!(Some(written), count(&self.shape), "values of `{}`", self.name);
        Ok(())
    }
}

/// The bytes of every tensor to be written to `path`.
///
/// # Errors
/// If two have one name, or one cannot be stored so.
pub(super) fn sizes(path: &Path, tensors: &[OutputTensor]) -> Result<Vec<usize>> {
    let mut names: Vec<&str> = tensors.iter().map(|t| t.name.as_str()).collect();
    names.sort_unstable();
    if let Some([name, _]) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return refuse(path, format!("two tensors to be written are called `{name}`"));
    }
    let size = |t: &OutputTensor| {
        t.dtype.bytes(&t.shape).ok_or_else(|| {
            let need = match t.dtype {
                Dtype::Blocks(quant) => format!(": its last axis must be a multiple of {}", quant.sizes().0),
                _ => String::new(),
            };
            bad(path, format!("`{}` {:?} cannot be written as {}{need}", t.name, t.shape, t.dtype))
        })
    };
    tensors.iter().map(size).collect()
}

/// Values as `dtype` stores them, rounded to the nearest, ties to even (blocks: as ggml makes them).
///
/// # Errors
/// Says which value is beyond the range of the type, or that the type cannot be written.
pub fn encode(values: &[f32], dtype: &Dtype) -> std::result::Result<Vec<u8>, String> {
    fn bytes<T: Copy, const N: usize>(values: &[T], write: fn(T) -> [u8; N]) -> Vec<u8> {
        let mut bytes = vec![0; N * values.len()];
        bytes.as_chunks_mut().0.iter_mut().zip(values).for_each(|(to, v)| *to = write(*v));
        bytes
    }
    let beyond = |i: usize| {
        if values[i].is_nan() {
            format!("value {i}, NaN, cannot be stored as {dtype}: choose F32")
        } else {
            format!("value {i}, {:e}, is beyond the range of {dtype}: choose F32", values[i])
        }
    };
    // the first finite value that the type makes infinite or NaN
    let finite = |bits: Vec<u16>, exponent: u16| {
        let lost = |bits: &u16| bits & exponent == exponent;
        if bits.iter().any(lost)
            && let Some(i) = (0..bits.len()).find(|i| values[*i].is_finite() && lost(&bits[*i]))
        {
            return Err(beyond(i));
        }
        Ok(bytes(&bits, u16::to_le_bytes))
    };
    match dtype {
        Dtype::F32 => Ok(bytes(values, f32::to_le_bytes)),
        Dtype::F16 => finite(Vec::<f16>::from_f32_slice(values).reinterpret_into(), 0x7c00),
        Dtype::Bf16 => finite(Vec::<bf16>::from_f32_slice(values).reinterpret_into(), 0x7f80),
        Dtype::Blocks(quant) if WRITTEN.contains(quant) => quantize::encode(*quant, values).map_err(beyond),
        _ => {
            Err(format!("{dtype} cannot be written: choose F32, F16, BF16, {}", WRITTEN.map(Quant::name).join(" or ")))
        }
    }
}

/// Values as they are read again once `dtype` has stored them; those that it cannot store stay.
pub fn rounded(values: &[f32], dtype: &Dtype) -> Vec<f32> {
    let read = |bytes: Vec<u8>| dtype.decode(&bytes).map(Cow::into_owned);
    encode(values, dtype).ok().and_then(read).unwrap_or_else(|| values.to_vec())
}

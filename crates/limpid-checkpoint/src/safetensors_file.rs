//! safetensors, HuggingFace's container: a JSON header of names, types, shapes and offsets, then the bytes; and
//! `model.safetensors.index.json`, which says in which of several such files a tensor is. A Python pickle in its place
//! is recognised and never read, because reading one runs the code in it. Read `gguf` next.

use crate::error::{CheckpointError, Result, bad, refuse};
use crate::files::{read_json, replace_buffered, write_text};
use crate::store::{Access, Dtype, Facts, OutputTensor, Place, Store, StoreFile, sizes};
use safetensors::tensor::{Dtype as Kind, Metadata, TensorInfo};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Component, Path};
use xxhash_rust::xxh3::Xxh3;

/// Longer headers are refused; the other readers of this format do the same.
const LONGEST_HEADER: u64 = 100_000_000;

/// The name of the file if all weights are in one.
const ONE: &str = "model.safetensors";

/// What transformers asks of a file's metadata.
pub(crate) fn format_pt() -> Facts {
    Facts::from([("format".to_string(), "pt".to_string())])
}

/// Opens `path`.
///
/// # Errors
/// If it cannot be read or is not a whole safetensors file.
pub fn open(path: &Path) -> Result<Store> {
    open_as(path, Access::default())
}

/// [`open`] in one of the ways to read files.
pub(crate) fn open_as(path: &Path, access: Access) -> Result<Store> {
    let (file, tensors, facts) = parts(path, 0, access)?;
    Store::new(path, vec![file], tensors, facts)
}

/// The checksum's key in the metadata, how it is written there, and how long it is.
const SUM_KEY: &str = "xxh3";
const SUM: (&str, usize) = ("\"xxh3\":\"", 16);

/// Opens a file that [`write_summed`] wrote, and verifies it. Returns its checksum, too.
///
/// # Errors
/// As [`open`], and if a single bit has changed.
pub fn open_summed(path: &Path) -> Result<(Store, String)> {
    let store = open(path)?;
    let Some(sum) = store.files().iter().find_map(StoreFile::sum) else {
        return refuse(path, "it has no checksum: it was changed, or an older limpid wrote it");
    };
    store.check()?;
    Ok((store, sum))
}

/// Where a header has the digits of its checksum.
fn digits(header: &[u8]) -> Option<Range<usize>> {
    let at = header.windows(SUM.0.len()).position(|w| w == SUM.0.as_bytes())? + SUM.0.len();
    (at + SUM.1 <= header.len()).then_some(at..at + SUM.1)
}

/// What a store of `path` is made of, where it is file number `file`.
fn parts(path: &Path, file: usize, access: Access) -> Result<(StoreFile, Vec<Place>, Facts)> {
    let map = access.open(path)?;
    let (metadata, start) = header(path, &map)?;
    let place = |name: String| {
        let info = metadata.info(&name).expect("its own name");
        let dtype = match info.dtype {
            Kind::F32 => Dtype::F32,
            Kind::F16 => Dtype::F16,
            Kind::BF16 => Dtype::Bf16,
            other => Dtype::Other(other.to_string()),
        };
        let bytes = start + info.data_offsets.0..start + info.data_offsets.1;
        Place { shape: info.shape.clone(), name, dtype, file, bytes }
    };
    let tensors = metadata.offset_keys().into_iter().map(place).collect();
    let facts = metadata.metadata().clone().unwrap_or_default();
    let digits = facts.get(SUM_KEY).filter(|_| access.verified).and_then(|_| digits(&map[..start]));
    Ok((StoreFile::summed(path, map, digits), tensors, facts))
}

/// The header, checked by the crate (no overlaps, no holes, sizes that shapes take), and where the bytes begin.
fn header(path: &Path, map: &[u8]) -> Result<(Metadata, usize)> {
    let len = map.len();
    let damaged = |what: String| {
        if looks_like_pickle(map) { pickle(path) } else { bad(path, format!("it is not a safetensors file: {what}")) }
    };
    let Some((first, rest)) = map.split_first_chunk() else {
        return refuse(path, format!("it has {len} bytes, too few for a safetensors file: it was cut short"));
    };
    let long = u64::from_le_bytes(*first);
    if long > LONGEST_HEADER {
        return Err(damaged(format!("its first 8 bytes ask for a header of {long} bytes")));
    }
    let Some(text) = rest.get(..long as usize) else {
        return Err(damaged(format!("its header should have {long} bytes, but the file has {len}: it was cut short")));
    };
    let metadata: Metadata = serde_json::from_slice(text).map_err(|e| damaged(format!("its header says: {e}")))?;
    let start = 8 + text.len();
    let wanted = start.saturating_add(metadata.data_len());
    if wanted != len {
        return refuse(path, format!("it should be {wanted} bytes and is {len}: it was cut short or damaged"));
    }
    Ok((metadata, start))
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// Opens the files in `folder` that `index`, a `model.safetensors.index.json`, names.
///
/// # Errors
/// If a file is missing, lies outside the folder or lacks a tensor, or if two files have the same tensor.
pub fn open_sharded(folder: &Path, index: &Path) -> Result<Store> {
    open_sharded_as(folder, index, Access::default())
}

/// [`open_sharded`] in one of the ways to read files.
pub(crate) fn open_sharded_as(folder: &Path, index: &Path, access: Access) -> Result<Store> {
    let Index { weight_map } = read_json(index, "it should have a `weight_map` from tensors to files")?;
    let names: BTreeSet<&str> = weight_map.values().map(String::as_str).collect();
    if folder.join(ONE).exists() && !names.contains(ONE) {
        let what = "it names other files of weights, and model.safetensors lies beside it: two models are in one \
                    folder (transformers reads model.safetensors); take the one away that is not meant";
        return refuse(index, what);
    }
    let (mut files, mut tensors, mut facts) = (vec![], vec![], Facts::new());
    for name in names {
        let mut steps = Path::new(name).components();
        let plain = matches!((steps.next(), steps.next()), (Some(Component::Normal(_)), None));
        if !plain || name.contains(['/', '\\', ':', '\0']) {
            return refuse(index, format!("it names the file {name:?}: only files beside it may hold its tensors"));
        }
        let path = folder.join(name);
        if !path.exists() {
            let n = weight_map.values().filter(|v| *v == name).count();
            let what = format!("{n} tensors should be in {name}, which is not there: fetch all of the files");
            return refuse(index, what);
        }
        let (file, places, more) = parts(&path, files.len(), access)?;
        tensors.extend(places);
        files.push(file);
        facts.extend(more);
    }
    let store = Store::new(index, files, tensors, facts)?;
    for (tensor, shard) in &weight_map {
        let Some(found) = store.get(tensor) else {
            let what = format!("`{tensor}` should be in {shard} and is not: the files do not belong together");
            return refuse(index, what);
        };
        if found.path() != folder.join(shard) {
            let place = found.path().file_name().unwrap_or_default().display();
            let what = format!("`{tensor}` should be in {shard} and is in {place}: is the index an old one?");
            return refuse(index, what);
        }
    }
    Ok(store)
}

/// Writes `tensors` to `path`, with `facts` as its `__metadata__` (transformers asks for `format`: `pt`).
///
/// # Errors
/// If the format cannot store a type or value, or writing fails; the old file is then unchanged.
pub fn write(path: &Path, tensors: Vec<OutputTensor>, facts: Facts) -> Result<()> {
    put(path, tensors, facts).map(drop)
}

/// [`write()`], with a checksum in the metadata: XXH3 of the whole file, with the checksum's own digits as zeros.
/// Returns the checksum.
///
/// # Errors
/// As [`write()`].
pub fn write_summed(path: &Path, tensors: Vec<OutputTensor>, mut facts: Facts) -> Result<String> {
    facts.insert(SUM_KEY.into(), "0".repeat(SUM.1));
    put(path, tensors, facts)
}

fn put(path: &Path, mut tensors: Vec<OutputTensor>, facts: Facts) -> Result<String> {
    // wider types first, so that every tensor is aligned; then by name, as the crate does
    tensors.sort_by(|a, b| (a.dtype != Dtype::F32, &a.name).cmp(&(b.dtype != Dtype::F32, &b.name)));
    let (mut infos, mut end) = (vec![], 0);
    for (tensor, size) in tensors.iter().zip(sizes(path, &tensors)?) {
        let dtype = match tensor.dtype {
            Dtype::F32 => Kind::F32,
            Dtype::F16 => Kind::F16,
            Dtype::Bf16 => Kind::BF16,
            _ => return refuse(path, format!("safetensors has no {}: choose F32, F16 or BF16", tensor.dtype)),
        };
        let data_offsets = (end, end + size);
        end += size;
        infos.push((tensor.name.clone(), TensorInfo { dtype, shape: tensor.shape.clone(), data_offsets }));
    }
    let header = Metadata::new(None, infos).map_err(|e| bad(path, e.to_string()))?;
    let mut header = serde_json::to_vec(&header).map_err(|e| bad(path, e.to_string()))?;
    if !facts.is_empty() {
        // in the order of their names: the crate has them in any
        let facts: BTreeMap<_, _> = facts.into_iter().collect();
        let facts = serde_json::to_string(&facts).expect("texts by name are JSON");
        let comma = if tensors.is_empty() { "" } else { "," };
        header.splice(1..1, format!("\"__metadata__\":{facts}{comma}").into_bytes());
    }
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut sum = String::new();
    replace_buffered(path, |file| {
        let mut file = Summed { file, sum: Xxh3::new() };
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(&header)?;
        tensors.iter().try_for_each(|t| t.write(path, &mut file))?;
        sum = format!("{:016x}", file.sum.digest());
        if let Some(digits) = digits(&header) {
            file.file.seek(SeekFrom::Start(8 + digits.start as u64))?;
            file.file.write_all(sum.as_bytes())?;
        }
        Ok(())
    })?;
    Ok(sum)
}

/// A file with the checksum of what was written.
struct Summed<'a, W> {
    file: &'a mut W,
    sum: Xxh3,
}

impl<W: Write> Write for Summed<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.file.write(bytes)?;
        self.sum.update(&bytes[..n]);
        Ok(n)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Writes `tensors` to `folder`: one `model.safetensors`, or where they take more than `most` bytes several files with
/// an index, as transformers does.
///
/// # Errors
/// As [`write()`].
pub fn write_sharded(folder: &Path, tensors: Vec<OutputTensor>, facts: Facts, most: u64) -> Result<()> {
    let bytes = sizes(folder, &tensors)?;
    let bytes: Vec<u64> = bytes.into_iter().map(|bytes| bytes as u64).collect();
    let (total, mut shards, mut filled) = (bytes.iter().sum::<u64>(), vec![vec![]], 0);
    for (tensor, bytes) in tensors.into_iter().zip(bytes) {
        if filled > 0 && filled + bytes > most {
            shards.push(vec![]);
            filled = 0;
        }
        filled += bytes;
        shards.last_mut().expect("there is a first").push(tensor);
    }
    if let [_] = &shards[..] {
        return write(&folder.join(ONE), shards.remove(0), facts);
    }
    let (n, mut map) = (shards.len(), BTreeMap::new());
    for (i, shard) in shards.into_iter().enumerate() {
        let name = format!("model-{:05}-of-{n:05}.safetensors", i + 1);
        map.extend(shard.iter().map(|tensor| (tensor.name.clone(), name.clone())));
        write(&folder.join(&name), shard, facts.clone())?;
    }
    let index = serde_json::json!({ "metadata": { "total_size": total }, "weight_map": map });
    write_text(&folder.join("model.safetensors.index.json"), &format!("{index:#}\n"))
}

/// Whether these are the first bytes of a file that Python pickled: `torch.save`'s zip, or a bare pickle.
pub fn looks_like_pickle(bytes: &[u8]) -> bool {
    // a safetensors header of 640 bytes begins with 0x80 0x02 too, and has a brace after its length
    bytes.starts_with(b"PK\x03\x04") || matches!(bytes, [0x80, 2..=5, ..] if bytes.get(8) != Some(&b'{'))
}

/// The error for a file for which [`looks_like_pickle`] holds.
pub fn pickle(path: &Path) -> CheckpointError {
    let what = "it is a Python pickle (.bin, .pt, .pth), which limpid never reads, because reading one runs the code \
                in it. Where you trust it, convert its folder: python -c \"from transformers import \
                AutoModelForCausalLM as M; M.from_pretrained('FOLDER').save_pretrained('NEW', \
                safe_serialization=True)\"";
    bad(path, what)
}

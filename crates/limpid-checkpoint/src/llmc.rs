//! llm.c's files: a header of 256 whole numbers, then values without names, so that every size follows from the
//! header. Models (weights kind by kind, a kind's layers together), and the state that PyTorch leaves beside a model
//! for llm.c's tests: a batch, its logits and loss, and all gradients. Matrices are stored (out, in), as ours are.
//! Shards of tokens are `data::Shard`'s.

use crate::error::{Result, refuse};
use crate::files::replace_buffered;
use crate::store::{Access, Dtype, Facts, OutputTensor, Place, Store, StoreFile, sizes, view};
use std::io::Write;
use std::path::Path;

const HEADER: usize = 256;
const START: usize = 4 * HEADER;
const MODEL: i32 = 20240326;
const STATE: i32 = 20240327;
/// llm.c's other kinds of files, so that an error can name the kind it found.
const KINDS: &[(i32, &str)] = &[
    (MODEL, "a model"),
    (STATE, "a debug state"),
    (20240328, "a tokenizer"),
    (20240520, "a shard of tokens"),
    (20240522, "a multiple-choice test"),
    (20240527, "an optimizer's state"),
    (20240801, "a shard of Llama 3's tokens"),
];

/// What a model's header says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// llm.c's `max_seq_len`.
    pub context_length: usize,
    /// Tokens in the vocabulary.
    pub vocab_size: usize,
    /// Rows of `wte`, padded for speed; those beyond the vocabulary are never used.
    pub padded_vocab_size: usize,
    /// Blocks.
    pub n_layer: usize,
    /// Heads.
    pub n_head: usize,
    /// llm.c's `channels`.
    pub d_model: usize,
    /// F32 or Bf16.
    pub dtype: Dtype,
}

impl Header {
    /// Every tensor of such a model, in the file's order: `wte`, `ln1w.0`, ... with its shape.
    pub fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let mut all = vec![];
        for (kind, layers, shape) in self.kinds() {
            match layers {
                None => all.push((kind.to_string(), shape)),
                Some(n) => all.extend((0..n).map(|i| (format!("{kind}.{i}"), shape.clone()))),
            }
        }
        all
    }

    #[rustfmt::skip]
    fn kinds(&self) -> [(&'static str, Option<usize>, Vec<usize>); 16] {
        let (l, c, wide) = (Some(self.n_layer), self.d_model, 4 * self.d_model);
        [
            ("wte", None, vec![self.padded_vocab_size, c]), ("wpe", None, vec![self.context_length, c]),
            ("ln1w", l, vec![c]), ("ln1b", l, vec![c]),
            ("qkvw", l, vec![3 * c, c]), ("qkvb", l, vec![3 * c]),
            ("attprojw", l, vec![c, c]), ("attprojb", l, vec![c]),
            ("ln2w", l, vec![c]), ("ln2b", l, vec![c]),
            ("fcw", l, vec![wide, c]), ("fcb", l, vec![wide]),
            ("fcprojw", l, vec![c, wide]), ("fcprojb", l, vec![c]),
            ("lnfw", None, vec![c]), ("lnfb", None, vec![c]),
        ]
    }

    /// Values of all tensors; numbers of 31 bits cannot make it overflow.
    fn count(&self) -> u128 {
        let one = |(_, layers, shape): &(&str, Option<usize>, Vec<usize>)| {
            layers.unwrap_or(1) as u128 * shape.iter().map(|d| *d as u128).product::<u128>()
        };
        self.kinds().iter().map(one).sum()
    }

    fn check(&self, path: &Path) -> Result<()> {
        let Header { context_length, vocab_size, padded_vocab_size, n_layer, n_head, d_model, .. } = *self;
        let numbers = [
            ("max_seq_len", context_length, i32::MAX as usize),
            ("vocab_size", vocab_size, padded_vocab_size),
            ("n_layer", n_layer, 1 << 16), // so that a small file cannot ask for a large table
            ("n_head", n_head, d_model),
            ("channels", d_model, i32::MAX as usize / 4),
            ("padded_vocab_size", padded_vocab_size, i32::MAX as usize),
        ];
        match numbers.into_iter().find(|(_, n, most)| *n == 0 || n > most) {
            None => Ok(()),
            Some((name, n, most)) => {
                refuse(path, format!("{name} in its header should be 1 to {most} and is {n}: it is damaged"))
            }
        }
    }
}

/// Reads a header and checks that the file is of the wanted kind and version.
fn header(path: &Path, map: &[u8], magic: i32, versions: &[i32]) -> Result<[usize; HEADER]> {
    let kind = |magic| KINDS.iter().find(|k| k.0 == magic).map(|k| k.1);
    let wanted = kind(magic).unwrap_or_default();
    let Some(bytes) = map.get(..START) else {
        let what = format!("it should be {wanted} of llm.c, with a header of {START} bytes, and has {}", map.len());
        return refuse(path, what);
    };
    let numbers = view(bytes, i32::from_le_bytes);
    if numbers[0] != magic {
        let found = kind(numbers[0]).map_or("no file of llm.c".into(), |k| format!("{k} of llm.c"));
        return refuse(path, format!("it is {found}: {wanted} begins with {magic}, it begins with {}", numbers[0]));
    }
    if !versions.contains(&numbers[1]) {
        let what = format!("it is {wanted}, version {}; limpid reads {versions:?}: write it anew", numbers[1]);
        return refuse(path, what);
    }
    // a negative number is as wrong as none
    Ok(std::array::from_fn(|i| usize::try_from(numbers[i]).unwrap_or(0)))
}

/// Whether these are the first bytes of one of llm.c's files.
pub fn looks_like_one(bytes: &[u8]) -> bool {
    let magic = bytes.first_chunk().map(|b| i32::from_le_bytes(*b));
    KINDS.iter().any(|kind| Some(kind.0) == magic)
}

/// Refuses a file that is not exactly as long as its header makes it.
fn check_length(path: &Path, map: &[u8], wanted: u128) -> Result<()> {
    if map.len() as u128 != wanted {
        let what = format!("its header makes it {wanted} bytes and it is {}: it was cut short or damaged", map.len());
        return refuse(path, what);
    }
    Ok(())
}

/// Where the tensors of `header` lie, from byte `at` on.
fn places(header: &Header, dtype: &Dtype, mut at: usize) -> Vec<Place> {
    let place = |(name, shape): (String, Vec<usize>)| {
        let end = at + dtype.bytes(&shape).expect("less than the file's length");
        Place { name, dtype: dtype.clone(), shape, file: 0, bytes: std::mem::replace(&mut at, end)..end }
    };
    header.tensors().into_iter().map(place).collect()
}

/// Opens a model: `gpt2_124M.bin` and its like.
///
/// # Errors
/// If the file cannot be read, is not a model, or is longer or shorter than its header says.
pub fn open(path: &Path) -> Result<(Header, Store)> {
    open_as(path, Access::default())
}

/// [`open`] in one of the ways to read files.
pub(crate) fn open_as(path: &Path, access: Access) -> Result<(Header, Store)> {
    let map = access.open(path)?;
    let n = header(path, &map, MODEL, &[3, 5])?;
    let (dtype, width) = if n[1] == 3 { (Dtype::F32, 4) } else { (Dtype::Bf16, 2) };
    let header = Header {
        context_length: n[2],
        vocab_size: n[3],
        n_layer: n[4],
        n_head: n[5],
        d_model: n[6],
        padded_vocab_size: n[7],
        dtype,
    };
    header.check(path)?;
    check_length(path, &map, START as u128 + width * header.count())?;
    let tensors = places(&header, &header.dtype, START);
    let store = Store::new(path, vec![StoreFile::plain(path, map)], tensors, Facts::new())?;
    Ok((header, store))
}

/// Writes a model; the function returns the values of the tensor with a given name.
///
/// # Errors
/// If the format cannot store the type or a value, or writing fails; the old file is then unchanged.
pub fn write(path: &Path, header: &Header, values: &dyn Fn(&str) -> Result<Vec<f32>>) -> Result<()> {
    header.check(path)?;
    let version = match &header.dtype {
        Dtype::F32 => 3,
        Dtype::Bf16 => 5,
        other => return refuse(path, format!("llm.c has no {other}: choose F32 or BF16")),
    };
    let Header { context_length, vocab_size, padded_vocab_size, n_layer, n_head, d_model, .. } = *header;
    let numbers = [context_length, vocab_size, n_layer, n_head, d_model, padded_vocab_size];
    let head = first(MODEL, version, &numbers);
    let out = |(name, shape): (String, Vec<usize>)| {
        let own = name.clone();
        OutputTensor::new(name, header.dtype.clone(), shape, vec![Box::new(move || values(&own))])
    };
    let tensors: Vec<OutputTensor> = header.tensors().into_iter().map(out).collect();
    sizes(path, &tensors)?;
    replace_buffered(path, |file| {
        file.write_all(&head)?;
        tensors.iter().try_for_each(|t| t.write(path, file))
    })
}

/// A header's bytes; the numbers have been checked to have 31 bits.
fn first(magic: i32, version: i32, numbers: &[usize]) -> Vec<u8> {
    let numbers = [magic, version].into_iter().chain(numbers.iter().map(|n| *n as i32));
    let mut bytes: Vec<u8> = numbers.flat_map(i32::to_le_bytes).collect();
    bytes.resize(START, 0);
    bytes
}

/// What one step of PyTorch gave.
pub struct DebugState {
    /// Sequences.
    pub batch_size: usize,
    /// Tokens of each.
    pub context: usize,
    /// Their ids.
    pub inputs: Vec<i32>,
    /// The ids that follow.
    pub targets: Vec<i32>,
    /// Mean loss.
    pub loss: f32,
    /// The gradients, named as the model's tensors are, and `logits` (B, T, V).
    pub store: Store,
}

/// Opens the debug state of a model with this header.
///
/// # Errors
/// If the file cannot be read, is not a debug state, or is longer or shorter than the headers say.
pub fn open_state(path: &Path, model: &Header) -> Result<DebugState> {
    model.check(path)?;
    let map = Access::default().open(path)?;
    let n = header(path, &map, STATE, &[2])?;
    let (batch_size, context, v) = (n[2], n[3], model.vocab_size);
    let rows = batch_size as u128 * context as u128;
    check_length(path, &map, START as u128 + rows * (8 + 4 * v as u128) + 4 + 4 * model.count())?;
    // the file is that long, so none of these overflow
    let rows = batch_size * context;
    let (targets, logits) = (START + 4 * rows, START + 8 * rows);
    let loss = logits + 4 * rows * v;
    let ids = |at: usize| view(&map[at..at + 4 * rows], i32::from_le_bytes).into_owned();
    let mut tensors = places(model, &Dtype::F32, loss + 4);
    tensors.push(Place {
        name: "logits".into(),
        dtype: Dtype::F32,
        shape: vec![batch_size, context, v],
        file: 0,
        bytes: logits..loss,
    });
    Ok(DebugState {
        batch_size,
        context,
        inputs: ids(START),
        targets: ids(targets),
        loss: view(&map[loss..loss + 4], f32::from_le_bytes)[0],
        store: Store::new(path, vec![StoreFile::plain(path, map)], tensors, Facts::new())?,
    })
}

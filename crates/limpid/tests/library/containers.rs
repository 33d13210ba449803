//! Other programs' files: what is written is read back bit for bit, files made by others are read and written as they
//! are, broken ones are refused with a reason, and no mutation of one makes reading panic or take much memory.

use crate::common::counting::most;
use crate::common::folder::Folder;
use crate::common::mutate::{self, Dice};
use crate::random_config::configs;
use limpid::checkpoint::gguf::{self, Array, GgufValue, Metadata};
use limpid::checkpoint::llmc::{self, Header};
use limpid::checkpoint::safetensors_file as st;
use limpid::checkpoint::store::{Dtype, Facts, OutputTensor, Store, encode};
use limpid::checkpoint::{Checkpoint, CheckpointError, Format, ModelData, save};
use limpid::config::{Axis, Config};
use limpid::model::{Mode, Model, Param};
use limpid::numeric::blocks::Quant;
use limpid::numeric::random;
use std::fs;
use std::path::{Path, PathBuf};

impl Folder {
    fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, bytes).unwrap();
        path
    }
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}

fn out<'a>(name: &str, dtype: Dtype, shape: &[usize], values: &'a [f32]) -> OutputTensor<'a> {
    OutputTensor {
        name: name.into(),
        dtype,
        shape: shape.into(),
        values: vec![Box::new(|| Ok(values.to_vec()))],
        rows: None,
    }
}

fn normal(n: usize) -> Vec<f32> {
    (0..n).map(|i| (random::bits(5, 0, i as u64) as i32) as f32 * 1e-9).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

fn values(store: &Store, name: &str) -> Vec<f32> {
    store.get(name).unwrap().values().unwrap().into_owned()
}

/// Models of any number of blocks open again in every format that takes them, also where all blocks share the tensors
/// of one.
#[test]
#[ignore = "gate"]
fn models_of_many_blocks_open_again() {
    let folder = Folder::new("blocks");
    let mut opened = [0; 2];
    for (i, config) in configs().into_iter().enumerate() {
        let config = Config { n_layer: [1, 3, 5, 12, 40][i % 5], ..config };
        let Ok(model) = Model::new(&config, Mode::Inspect { batch: 1, context: 1 }) else { continue };
        let values = |param: &Param| normal(param.region.len());
        for format in [Format::Limpid, Format::HuggingFace, Format::Gguf] {
            let path = folder.0.join(format!("{i}-{format:?}"));
            if save(&path, format, &Dtype::F32, &ModelData::new(&config, &values)).is_err() {
                assert!(format != Format::Limpid, "{config}: limpid's own files take every model");
                continue;
            }
            let found = Checkpoint::open(&path).unwrap_or_else(|e| panic!("{config}: {e}"));
            assert_eq!(found.config.n_layer, config.n_layer);
            assert!(config.n_layer == 1 || found.config.shared_blocks == config.shared_blocks, "{config}");
            for param in &model.params {
                assert_eq!(
                    bits(&found.values(&model, param).unwrap()),
                    bits(&values(param)),
                    "{config}: {}",
                    param.name
                );
            }
            opened[usize::from(config.shared_blocks && config.n_layer > 4)] += 1;
        }
    }
    assert!(opened.iter().all(|n| *n > 20), "{opened:?}");
}

/// Opens each of the files, and finds in the error the file's name and every text that should be in it.
fn refused<T>(open: impl Fn(&Path) -> Result<T, CheckpointError>, cases: &[(&[u8], &str)]) {
    let folder = Folder::new("refused");
    for (n, (bytes, wanted)) in cases.iter().enumerate() {
        let path = folder.file(&format!("broken{n}"), bytes);
        let Err(error) = open(&path) else { panic!("case {n} was read; it should have said: {wanted}") };
        let (error, place) = (error.to_string(), path.display().to_string());
        assert!(error.starts_with(&place) && error.contains(wanted), "case {n}\n  wanted {wanted}\n  found {error}");
    }
}

const TYPES: [Dtype; 4] = [Dtype::F32, Dtype::F16, Dtype::Bf16, Dtype::Blocks(Quant::Q8_0)];

// ------------------------------------------------------------------------------------------------ stored types

/// What 16 bits mean, by the standard's arithmetic: a sign, an exponent of `e` bits, a mantissa.
fn meaning(bits: u16, e: u32) -> f64 {
    let m = 15 - e;
    let (sign, exponent, mantissa) = (bits >> 15, (bits >> m) & ((1 << e) - 1), bits & ((1 << m) - 1));
    let (bias, part) = ((1i32 << (e - 1)) - 1, f64::from(mantissa) / f64::from(1 << m));
    let size = match i32::from(exponent) {
        0 => part * 2f64.powi(1 - bias),
        x if x == (1 << e) - 1 => {
            if mantissa == 0 {
                f64::INFINITY
            } else {
                f64::NAN
            }
        }
        x => (1.0 + part) * 2f64.powi(x - bias),
    };
    if sign == 1 { -size } else { size }
}

#[test]
fn sixteen_bits_mean_what_the_standard_says_and_roundings_are_to_the_nearest() {
    let folder = Folder::new("sixteen");
    for (dtype, e, name) in [(Dtype::F16, 5, "F16"), (Dtype::Bf16, 8, "BF16")] {
        let mut file = format!("{{\"x\":{{\"dtype\":\"{name}\",\"shape\":[65536],\"data_offsets\":[0,131072]}}}}");
        file.extend(vec![' '; (8 - file.len() % 8) % 8]);
        let head = [&(file.len() as u64).to_le_bytes(), file.as_bytes()].concat();
        let path = folder.file(name, &[head, (0..=u16::MAX).flat_map(u16::to_le_bytes).collect()].concat());
        let decoded = values(&st::open(&path).unwrap(), "x");
        let encoded = |x: f64| encode(&[x as f32], &dtype).map(|b| u16::from_le_bytes([b[0], b[1]]));
        for (pattern, value) in (0..=u16::MAX).zip(&decoded) {
            let wanted = meaning(pattern, e);
            assert!(
                f64::from(*value) == wanted || value.is_nan() && wanted.is_nan(),
                "{pattern:#x}: {value}, not {wanted}"
            );
            assert!(wanted.is_nan() || encoded(wanted) == Ok(pattern), "{pattern:#x} does not come back");
            let next = meaning(pattern.wrapping_add(1), e);
            if wanted.is_finite() && next.is_finite() && pattern != 0x7fff && pattern & 0x8000 == 0 {
                let middle = wanted / 2.0 + next / 2.0;
                if f64::from(middle as f32) == middle {
                    assert_eq!(encoded(middle), Ok(pattern + (pattern & 1)), "the middle above {pattern:#x}");
                    let (below, above) = ((middle as f32).next_down(), (middle as f32).next_up());
                    assert_eq!(encoded(below.into()), Ok(pattern));
                    assert_eq!(encoded(above.into()), Ok(pattern + 1));
                }
            }
        }
        let largest = f64::from(decoded[if e == 5 { 0x7bff } else { 0x7f7f }]);
        let half = largest - f64::from(decoded[if e == 5 { 0x7bfe } else { 0x7f7e }]);
        assert!(encoded(largest + half * 0.49).is_ok() && encoded(-largest - half * 0.5).is_err());
        assert!(encoded(f64::INFINITY).is_ok() && encoded(f64::NAN).is_ok());
    }
}

#[test]
fn blocks_of_eight_bits_refuse_what_they_cannot_hold() {
    assert_eq!(encode(&[0.0; 32], &Dtype::Blocks(Quant::Q8_0)), Ok(vec![0; 34]));
    for bad in [f32::NAN, f32::INFINITY, -1e8] {
        let mut x = [1.0; 64];
        x[40] = bad;
        assert!(encode(&x, &Dtype::Blocks(Quant::Q8_0)).unwrap_err().starts_with("value 40, "), "{bad}");
    }
    // half a step from the largest of the block, and f16's own rounding of that step
    let x: Vec<f32> = normal(6400);
    let blocks = encode(&x, &Dtype::Blocks(Quant::Q8_0)).unwrap();
    for (block, x) in blocks.chunks(34).zip(x.chunks(32)) {
        let d = meaning(u16::from_le_bytes([block[0], block[1]]), 5) as f32;
        for (q, x) in block[2..].iter().zip(x) {
            assert!((f32::from(*q as i8) * d - x).abs() <= 0.5 * d + 127.0 * d / 2048.0);
        }
    }
}

/// What `gguf` (Python) makes of the same blocks: every type, scales that are zero, subnormal, the largest, negative,
/// infinite and no numbers.
#[test]
fn blocks_mean_what_ggml_says() {
    let store = gguf::open(&fixture("quants.gguf")).unwrap().1;
    for quant in Quant::ALL {
        let (stored, wanted) = (store.get(quant.name()).unwrap(), values(&store, &format!("{quant}.values")));
        assert_eq!(stored.dtype, &Dtype::Blocks(*quant));
        let found = stored.values().unwrap();
        assert!(found.len() == wanted.len() && found.len() >= 16 * quant.sizes().0, "{quant}");
        for (i, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
            let same = found.to_bits() == wanted.to_bits() || found.is_nan() && wanted.is_nan();
            assert!(same, "{quant}, value {i} of block {}: {found}, not {wanted}", i / quant.sizes().0);
        }
        let odd = wanted.iter().position(|v| !v.is_finite());
        assert!(odd.is_some() && stored.not_finite().unwrap() == odd, "{quant}");
    }
}

/// As ggml quantises the same values: ordinary ones, zeros, one sign, ties, one alone, tiny, large.
#[test]
fn blocks_are_made_as_ggml_makes_them() {
    let store = gguf::open(&fixture("quants.gguf")).unwrap().1;
    let x = values(&store, "x");
    for quant in [Quant::Q8_0, Quant::Q4_0, Quant::Q4_K] {
        let wanted = store.get(&format!("{quant}.of_x")).unwrap();
        let found = encode(&x, wanted.dtype).unwrap();
        let size = quant.sizes().1;
        for (i, (found, wanted)) in found.chunks(size).zip(wanted.bytes.chunks(size)).enumerate() {
            assert!(found == wanted, "{quant}, block {i}: {found:?}, not {wanted:?}");
        }
        assert_eq!(found.len(), wanted.bytes.len());
        for odd in [f32::NAN, f32::INFINITY, -1e8] {
            let mut x = vec![1.0; 512];
            x[300] = odd;
            let refused = encode(&x, wanted.dtype).unwrap_err();
            assert!(refused.starts_with("value 300, ") && refused.contains(quant.name()), "{refused}");
        }
    }
    let refused = encode(&x, &Dtype::Blocks(Quant::Q6_K)).unwrap_err();
    assert_eq!(refused, "Q6_K cannot be written: choose F32, F16, BF16, Q8_0 or Q4_0 or Q4_K");
}

// ------------------------------------------------------------------------------------------------ round trips

#[test]
fn every_container_gives_back_what_was_written() {
    let folder = Folder::new("round");
    let path = folder.0.join("file");
    let x = normal(4 * 64);
    for dtype in TYPES {
        let stored = encode(&x, &dtype).unwrap();
        let scalar = [2.5];
        let tensors = || vec![out("x", dtype.clone(), &[4, 64], &x), out("one", Dtype::F32, &[], &scalar)];
        let check = |store: &Store| {
            let found = store.get("x").unwrap();
            assert_eq!((found.dtype, found.shape, found.bytes), (&dtype, &[4, 64][..], &stored[..]));
            assert_eq!(encode(&found.values().unwrap(), &dtype).unwrap(), stored);
            assert_eq!(values(store, "one"), [2.5]);
            assert!(store.get("y").is_none() && store.names().count() == 2 && found.not_finite().unwrap().is_none());
        };
        gguf::write(&path, &Metadata::default(), tensors()).unwrap();
        check(&gguf::open(&path).unwrap().1);
        let mut wide = Metadata::default();
        wide.set("general.alignment", 256u32);
        gguf::write(&path, &wide, tensors()).unwrap();
        check(&gguf::open(&path).unwrap().1);
        let facts = Facts::from([("format".into(), "pt".into())]);
        let written = st::write(&path, tensors(), facts);
        if dtype == Dtype::Blocks(Quant::Q8_0) {
            assert!(written.unwrap_err().to_string().contains("safetensors has no Q8_0: choose F32"));
        } else {
            written.unwrap();
            let store = st::open(&path).unwrap();
            check(&store);
            assert_eq!((store.fact("format"), store.fact("x")), (Some("pt"), None));
        }
    }
    let borrowed = gguf::open(&fixture("containers.gguf")).unwrap().1;
    let x = borrowed.get("x").unwrap();
    assert_eq!(x.values().unwrap().as_ptr().cast(), x.bytes.as_ptr(), "f32 stays in the file");
    gguf::write(&path, &Metadata::default(), vec![]).unwrap();
    assert_eq!(gguf::open(&path).unwrap().1.names().count(), 0);
    st::write(&path, vec![], Facts::new()).unwrap();
    assert_eq!(st::open(&path).unwrap().names().count(), 0);
}

/// Another program cuts a file that is open, or writes into it: that is an error where values are asked for. (Read all
/// the same, a page that is gone would end the process.) One that it replaces stays open as it was.
#[test]
fn a_file_that_is_changed_while_it_is_open_is_an_error() {
    let folder = Folder::new("changed");
    let out = || OutputTensor {
        name: "x".into(),
        dtype: Dtype::F32,
        shape: vec![1 << 16],
        values: vec![Box::new(|| Ok(vec![1.0; 1 << 16]))],
        rows: None,
    };
    for (name, said) in [("cut", "it was changed while it was read (it had"), ("written", "it was written into")] {
        let path = folder.0.join(name);
        st::write(&path, vec![out()], Facts::new()).unwrap();
        let store = st::open(&path).unwrap();
        let x = store.get("x").unwrap();
        assert!(x.values().unwrap().iter().all(|v| *v == 1.0) && store.check().is_ok());
        let file = fs::File::options().write(true).open(&path).unwrap();
        match name {
            "cut" => file.set_len(4096).unwrap(),
            _ => file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap(),
        }
        for error in [x.values().unwrap_err(), store.check().unwrap_err()] {
            let CheckpointError::Io { path: named, fault } = error else { panic!("{error}") };
            assert!(named == path && fault.to_string().contains(said), "{fault}");
        }
    }
    let path = folder.0.join("replaced");
    st::write(&path, vec![out()], Facts::new()).unwrap();
    let store = st::open(&path).unwrap();
    st::write(&path, vec![], Facts::new()).unwrap();
    assert!(store.get("x").unwrap().values().unwrap().iter().all(|v| *v == 1.0) && store.check().is_ok());
}

/// A model that was copied into memory has the values that were there, whatever becomes of its files.
#[test]
fn a_copied_model_does_not_change_with_its_files() {
    let folder = Folder::new("copied");
    // llm.c's model is a GPT-2, and so is every format's
    let config =
        Config { n_layer: 2, d_model: 16, n_head: 2, d_ff: 64, vocab_size: 40, context_length: 8, ..Config::default() };
    let model = Model::new(&config, Mode::Inspect { batch: 1, context: 1 }).unwrap();
    let written = |param: &Param| normal(param.region.len());
    for format in Format::ALL {
        let path = folder.0.join(format.ending().map_or(format!("{format}"), |ending| format!("model.{ending}")));
        save(&path, *format, &Dtype::F32, &ModelData::new(&config, &written)).unwrap();
        let weights = if format.is_folder() { path.join("model.safetensors") } else { path.clone() };
        let copied = Checkpoint::open_copied(&path).unwrap();
        let mapped = Checkpoint::open(&path).unwrap();
        fs::File::options().write(true).open(&weights).unwrap().set_len(100).unwrap();
        assert!(mapped.values(&model, &model.params[0]).is_err(), "{format}");
        for param in &model.params {
            assert_eq!(bits(&copied.values(&model, param).unwrap()), bits(&written(param)), "{format}: {}", param.name);
        }
        assert!(copied.check_sum().is_ok() && Checkpoint::open_copied(&path).is_err(), "{format}");
    }
}

#[test]
fn what_cannot_be_written_leaves_the_old_file() {
    let folder = Folder::new("unwritten");
    let path = folder.file("file", b"old");
    let (x, big) = ([1.0; 33], [1.0, 1e5]);
    let odd = Dtype::Other("Q4_K".into());
    type Write = fn(&Path, Vec<OutputTensor>) -> Result<(), CheckpointError>;
    let cases: [(Write, Vec<OutputTensor>, &str); 6] = [
        (st_write, vec![out("a", Dtype::F16, &[2], &big)], "`a`: value 1, 1e5, is beyond the range of F16: choose F32"),
        (
            gguf_write,
            vec![out("a", Dtype::F16, &[2], &big)],
            "`a`: value 1, 1e5, is beyond the range of F16: choose F32",
        ),
        (gguf_write, vec![out("a", Dtype::Blocks(Quant::Q8_0), &[33], &x)], "its last axis must be a multiple of 32"),
        (gguf_write, vec![out("a", odd, &[33], &x)], "cannot be written as Q4_K"),
        (st_write, vec![out("a", Dtype::F32, &[33], &x), out("a", Dtype::F32, &[33], &x)], "are called `a`"),
        (gguf_write, vec![out(&"n".repeat(64), Dtype::F32, &[33], &x)], "names of 63 bytes"),
    ];
    fn st_write(path: &Path, tensors: Vec<OutputTensor>) -> Result<(), CheckpointError> {
        st::write(path, tensors, Facts::new())
    }
    fn gguf_write(path: &Path, tensors: Vec<OutputTensor>) -> Result<(), CheckpointError> {
        gguf::write(path, &Metadata::default(), tensors)
    }
    for (write, tensors, wanted) in cases {
        let error = write(&path, tensors).unwrap_err().to_string();
        assert!(error.starts_with(&path.display().to_string()) && error.contains(wanted), "{error}");
        assert_eq!((fs::read(&path).unwrap(), fs::read_dir(&folder.0).unwrap().count()), (b"old".to_vec(), 1));
    }
    let header = Header { dtype: Dtype::F16, ..tiny() };
    assert!(llmc::write(&path, &header, &|_| Ok(vec![])).unwrap_err().to_string().contains("llm.c has no F16"));
    assert_eq!(fs::read(&path).unwrap(), b"old");
}

/// The fixture is ggml's own writer's: we read it, round as it does, and write the same bytes.
#[test]
fn gguf_is_what_ggml_writes() {
    let path = fixture("containers.gguf");
    let (metadata, store) = gguf::open(&path).unwrap();
    assert_eq!(metadata.str("general.architecture").unwrap(), "gpt2");
    let tokens = metadata.strings("tokenizer.ggml.tokens").unwrap();
    assert_eq!(tokens, ["a", "é\u{120}", "", "<|endoftext|>"]);
    assert_eq!(metadata.i32s("tokenizer.ggml.token_type").unwrap(), [1, 3]);
    assert_eq!(metadata.get("tokenizer.ggml.scores"), Some(&GgufValue::Array(Array::F32(vec![0.5, -1.0]))));
    let whole = [("u8", 200), ("u16", 60_000), ("u32", 4_000_000_000), ("u64", 1 << 63)];
    whole.iter().for_each(|(key, n)| assert_eq!(metadata.u64(&format!("test.{key}")).unwrap(), *n));
    assert_eq!(metadata.f64("test.f64").unwrap(), 0.1);
    assert_eq!(metadata.f64("test.f32").unwrap(), f64::from(0.1f32));
    assert!(metadata.bool("test.bool").unwrap());
    for (found, wanted) in [
        (metadata.u64("test.i8").unwrap_err(), "the key `test.i8` should be a whole number and is I8(-100)"),
        (metadata.str("gpt2.x").unwrap_err(), "it lacks the key `gpt2.x`, a string"),
        (metadata.bool("tokenizer.ggml.tokens").unwrap_err(), "should be true or false and is Array(String([\"a\", "),
    ] {
        assert!(found.to_string().contains(wanted), "{found}");
    }

    let (x, bias) = (values(&store, "x"), values(&store, "x.bias"));
    let folder = Folder::new("ggml");
    let again = folder.0.join("again");
    let mut tensors = vec![out("x", Dtype::F32, &[6, 64], &x), out("x.bias", Dtype::F32, &[5], &bias)];
    for (name, dtype) in [("x.f16", Dtype::F16), ("x.bf16", Dtype::Bf16), ("x.q8_0", Dtype::Blocks(Quant::Q8_0))] {
        tensors.push(out(name, dtype, &[6, 64], &x));
    }
    gguf::write(&again, &metadata, tensors).unwrap();
    assert!(fs::read(&again).unwrap() == fs::read(&path).unwrap(), "not the bytes that ggml's writer makes");
}

fn tiny() -> Header {
    let (context_length, vocab_size, padded_vocab_size) = (3, 5, 8);
    Header { context_length, vocab_size, padded_vocab_size, n_layer: 2, n_head: 2, d_model: 4, dtype: Dtype::F32 }
}

/// A file of llm.c, made here number by number.
fn llmc_file(numbers: &[i32], rest: &[u8]) -> Vec<u8> {
    let mut bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
    bytes.resize(1024, 0);
    [&bytes, rest].concat()
}

fn f32s(n: usize) -> Vec<u8> {
    (0..n).flat_map(|i| (i as f32).to_le_bytes()).collect()
}

/// Weights of `tiny`: tables, two blocks, the last norm.
const TINY: usize = 4 * (8 + 3) + 2 * (12 * 16 + 13 * 4) + 2 * 4;
const MODEL: [i32; 8] = [20240326, 3, 3, 5, 2, 2, 4, 8];

#[test]
fn llmc_is_what_its_scripts_write() {
    let folder = Folder::new("llmc");
    let bytes = llmc_file(&MODEL, &f32s(TINY));
    let path = folder.file("model", &bytes);
    let (header, store) = llmc::open(&path).unwrap();
    assert_eq!(header, tiny());
    // kinds one after another, a kind's layers together
    let starts =
        [("wte", 0), ("wpe", 32), ("ln1w.0", 44), ("ln1w.1", 48), ("ln1b.0", 52), ("qkvw.0", 60), ("qkvw.1", 108)];
    for (name, start) in starts {
        assert_eq!(values(&store, name)[0], start as f32, "{name}");
    }
    assert_eq!(store.get("fcw.1").unwrap().shape, [16, 4]);
    assert_eq!(store.get("fcprojw.1").unwrap().shape, [4, 16]);
    assert_eq!(*values(&store, "lnfb").last().unwrap(), (TINY - 1) as f32);
    for dtype in [Dtype::F32, Dtype::Bf16] {
        let again = folder.0.join("again");
        llmc::write(&again, &Header { dtype: dtype.clone(), ..tiny() }, &|name| Ok(values(&store, name))).unwrap();
        assert!(dtype != Dtype::F32 || fs::read(&again).unwrap() == bytes);
        let (header, narrow) = llmc::open(&again).unwrap();
        assert_eq!(header.dtype, dtype);
        for name in store.names() {
            assert_eq!(encode(&values(&store, name), &dtype).unwrap(), narrow.get(name).unwrap().bytes);
        }
    }

    let ids: Vec<u8> = (0..12i32).flat_map(i32::to_le_bytes).collect();
    let state = llmc_file(&[20240327, 2, 2, 3], &[ids, f32s(2 * 3 * 5 + 1 + TINY)].concat());
    let state = llmc::open_state(&folder.file("state", &state), &header).unwrap();
    assert_eq!((state.batch_size, state.context, state.loss), (2, 3, 30.0));
    assert_eq!((state.inputs, state.targets), ((0..6).collect(), (6..12).collect()));
    assert_eq!((state.store.get("logits").unwrap().shape, values(&state.store, "logits")[29]), (&[2, 3, 5][..], 29.0));
    assert_eq!((values(&state.store, "wte")[0], values(&state.store, "lnfb")[3]), (31.0, 30.0 + TINY as f32));
}

/// A model in several files, as `gguf-split` makes them: whichever is opened finds the others.
#[test]
fn split_gguf_is_one_store() {
    let folder = Folder::new("split");
    let x = normal(6);
    let part = |name: &str, no: u16, count: u16, total: i32, tensors: &[&str]| {
        let mut metadata = Metadata::default();
        (0..u16::from(no == 0)).for_each(|_| metadata.set("general.architecture", "llama".to_string()));
        metadata.set("split.no", no);
        metadata.set("split.count", count);
        metadata.set("split.tensors.count", total);
        let tensors = tensors.iter().map(|n| out(n, Dtype::F32, &[2, 3], &x)).collect();
        let path = folder.0.join(name);
        gguf::write(&path, &metadata, tensors).unwrap();
        path
    };
    let refused = |path: &Path, wanted: &str| {
        let error = gguf::open(path).err().expect(wanted).to_string();
        assert!(error.contains(wanted) && error.starts_with(&folder.0.display().to_string()), "{error}");
    };
    let first = part("m-00001-of-00003.gguf", 0, 3, 4, &["a", "b"]);
    let last = part("m-00003-of-00003.gguf", 2, 3, 4, &["d"]);
    refused(&first, "it is one of 3 files of a model, and m-00002-of-00003.gguf is not there: put it beside this one");
    let second = part("m-00002-of-00003.gguf", 1, 3, 4, &["c"]);
    for path in [&first, &second, &last] {
        let (metadata, store) = gguf::open(path).unwrap();
        assert_eq!(store.names().collect::<Vec<_>>(), ["a", "b", "c", "d"]);
        assert_eq!((metadata.str("general.architecture").unwrap(), bits(&values(&store, "d"))), ("llama", bits(&x)));
        assert!(store.get("c").unwrap().path() == second && store.path() == path);
    }
    part("m-00002-of-00003.gguf", 2, 3, 4, &["c"]);
    refused(&first, "it should be file 1 of 3, counted from 0, and says that it is 2 of 3");
    part("m-00002-of-00003.gguf", 1, 3, 4, &["a"]);
    refused(&last, "two tensors are called `a`, in m-00001-of-00003.gguf and in m-00002-of-00003.gguf");
    part("m-00002-of-00003.gguf", 1, 3, 4, &["c", "e"]);
    refused(&last, "the 3 files of the model should have 4 tensors (`split.tensors.count`) and have 5");
    let renamed = folder.0.join("first.gguf");
    fs::copy(&first, &renamed).unwrap();
    refused(&renamed, "of which it should be called NAME-00001-of-00003.gguf: give all of them the names");
    let alone = part("alone.gguf", 0, 1, 1, &["a"]);
    assert_eq!(gguf::open(&alone).unwrap().1.names().count(), 1);
}

#[test]
fn shards_are_one_store() {
    let folder = Folder::new("shards");
    let x = normal(6);
    let shard = |name: &str, tensors: &[&str]| {
        let tensors = tensors.iter().map(|n| out(n, Dtype::F32, &[2, 3], &x)).collect();
        st::write(&folder.0.join(name), tensors, Facts::new()).unwrap();
    };
    shard("1.safetensors", &["a", "b"]);
    shard("2.safetensors", &["c"]);
    shard("3.safetensors", &["c", "a"]);
    folder.file("pickle.bin", b"PK\x03\x04................................");
    let open = |map: &str| {
        let index = folder.file("index.json", format!("{{\"metadata\":{{}},\"weight_map\":{map}}}").as_bytes());
        st::open_sharded(&folder.0, &index)
    };
    let store = open(r#"{"a":"1.safetensors","b":"1.safetensors","c":"2.safetensors"}"#).unwrap();
    assert_eq!(store.names().collect::<Vec<_>>(), ["a", "b", "c"]);
    assert_eq!(bits(&values(&store, "c")), bits(&x));
    assert!(store.get("c").unwrap().path().ends_with("2.safetensors"));
    for (map, wanted) in [
        ("[]", "it should have a `weight_map` from tensors to files"),
        (r#"{"a":7}"#, "it should have a `weight_map` from tensors to files"),
        (r#"{"a":"4.safetensors","b":"4.safetensors"}"#, "2 tensors should be in 4.safetensors, which is not there"),
        (r#"{"a":"../1.safetensors"}"#, "it names the file \"../1.safetensors\": only files beside it"),
        (r#"{"a":"/etc/passwd"}"#, "it names the file \"/etc/passwd\""),
        (r#"{"a":".."}"#, "it names the file \"..\""),
        (r#"{"a":""}"#, "it names the file \"\""),
        (r#"{"a":"./1.safetensors"}"#, "it names the file"),
        (r#"{"a":"C:1.safetensors"}"#, "it names the file"),
        (r#"{"d":"1.safetensors"}"#, "`d` should be in 1.safetensors and is not"),
        (r#"{"a":"2.safetensors","b":"1.safetensors"}"#, "`a` should be in 2.safetensors and is in 1.safetensors"),
        (r#"{"b":"1.safetensors","c":"3.safetensors"}"#, "two tensors are called `a`, in 1.safetensors and in 3.safe"),
        (r#"{"b":"pickle.bin"}"#, "pickle.bin: it is a Python pickle (.bin, .pt, .pth), which limpid never reads"),
        (r#"{"b":"index.json"}"#, "it is not a safetensors file"),
    ] {
        let error = open(map).err().expect(wanted).to_string();
        assert!(error.contains(wanted) && error.starts_with(&folder.0.display().to_string()), "{error}");
    }
}

// ------------------------------------------------------------------------------------------------ broken files

fn safetensors(header: &str, data: usize) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &vec![0; data]].concat()
}

#[test]
fn broken_safetensors_say_what_is_wrong() {
    let one = |dtype: &str, shape: &str, offsets: &str, data: usize| {
        safetensors(&format!(r#"{{"x":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#), data)
    };
    let two = |a: &str, b: &str, data: usize| {
        let row = |at| format!(r#"{{"dtype":"F32","shape":[2],"data_offsets":{at}}}"#);
        safetensors(&format!(r#"{{"x":{},"y":{}}}"#, row(a), row(b)), data)
    };
    let far = |n: u64| {
        let row =
            |i: u64| format!(r#""t{i}":{{"dtype":"U8","shape":[{n}],"data_offsets":[{},{}]}}"#, i * n, (i + 1) * n);
        safetensors(&format!("{{{}}}", (0..8).map(row).collect::<Vec<_>>().join(",")), 8)
    };
    refused(
        st::open,
        &[
            (b"", "it has 0 bytes, too few for a safetensors file: it was cut short"),
            (b"\x08\0\0\0\0\0\0", "it has 7 bytes, too few"),
            (b"version https://git-lfs", "its first 8 bytes ask for a header of"),
            (&100u64.to_le_bytes(), "its header should have 100 bytes, but the file has 8: it was cut short"),
            (&safetensors("{\"x\":", 0), "its header says: EOF"),
            (&safetensors("{\"\u{fffd}\":1}", 0), "its header says: "),
            (&[&2u64.to_le_bytes()[..], &[0xff, 0xff]].concat(), "its header says: "),
            (&one("F33", "[1]", "[0,4]", 4), "unknown variant `F33`"),
            (&one("F32", "[3]", "[0,8]", 8), "invalid shape, data type, or offset"),
            (&one("F32", "[2]", "[8,0]", 8), "invalid offset for tensor `x`"),
            (&one("F32", "[-2]", "[0,8]", 8), "invalid value"),
            (&one("F32", "[4294967296,4294967296]", "[0,8]", 8), "overflow"),
            (&one("F32", "[2]", "[0,8]", 7), "bytes and is 69: it was cut short or damaged"),
            (&one("F32", "[2]", "[0,8]", 9), "it should be 70 bytes and is 71: it was cut short or damaged"),
            (&two("[0,8]", "[4,12]", 12), "invalid offset for tensor `y`"),
            (&two("[0,8]", "[12,20]", 20), "invalid offset for tensor `y`"),
            (&far((1 << 61) - 1), "cut short or damaged"),
            (b"PK\x03\x04\0\0\0\0\0\0", "never reads, because reading one runs the code in it"),
            (b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.", "safe_serialization=True"),
        ],
    );
    let folder = Folder::new("ints");
    for dtype in ["I64", "BOOL", "F8_E4M3", "F64"] {
        let bytes = if dtype.ends_with("64") { 8 } else { 1 };
        let path = folder.file("ints", &one(dtype, "[1]", &format!("[0,{bytes}]"), bytes));
        let error = st::open(&path).unwrap().get("x").unwrap().values().unwrap_err().to_string();
        assert!(
            error.contains(&format!("`x` is stored as {dtype}, which limpid does not read: convert it")),
            "{error}"
        );
    }
    // a good file that begins as a pickle does: its header has 640 bytes
    let header = format!("{{{}}}", " ".repeat(638));
    assert!(st::open(&folder.file("640", &safetensors(&header, 0))).is_ok());
    assert!(!st::looks_like_pickle(&safetensors(&header, 0)) && st::looks_like_pickle(b"\x80\x04\x95\0\0\0\0\0\0\0\0"));
}

fn text(s: &str) -> Vec<u8> {
    [&(s.len() as u64).to_le_bytes(), s.as_bytes()].concat()
}

/// A GGUF file of these keys (each with its type and value), rows of the table, and bytes of data.
fn ggml(version: u32, keys: &[Vec<u8>], rows: &[Vec<u8>], data: usize) -> Vec<u8> {
    let mut file = [&b"GGUF"[..], &version.to_le_bytes()].concat();
    file.extend([rows.len() as u64, keys.len() as u64].iter().flat_map(|n| n.to_le_bytes()));
    keys.iter().chain(rows).for_each(|part| file.extend(part));
    file.resize(file.len().next_multiple_of(32) + data, 0);
    file
}

fn key(name: &str, kind: u32, value: &[u8]) -> Vec<u8> {
    [&text(name), &kind.to_le_bytes()[..], value].concat()
}

fn row(name: &str, axes: &[u64], kind: u32, offset: u64) -> Vec<u8> {
    let axes: Vec<u8> = axes.iter().flat_map(|d| d.to_le_bytes()).collect();
    [&text(name), &(axes.len() as u32 / 8).to_le_bytes()[..], &axes, &kind.to_le_bytes(), &offset.to_le_bytes()]
        .concat()
}

fn array(kind: u32, n: u64, values: &[u8]) -> Vec<u8> {
    [&kind.to_le_bytes(), &n.to_le_bytes()[..], values].concat()
}

#[test]
fn broken_gguf_says_what_is_wrong() {
    let good = ggml(3, &[key("k", 4, &[1, 0, 0, 0])], &[row("x", &[4, 2], 0, 0)], 32);
    let with = |at: usize, n: u64| {
        let mut file = good.clone();
        file[at..at + 8].copy_from_slice(&n.to_le_bytes());
        file
    };
    let keys = |keys: &[Vec<u8>]| ggml(3, keys, &[], 0);
    let rows = |rows: &[Vec<u8>], data: usize| ggml(3, &[], rows, data);
    let deep = (0..9).fold(array(0, 0, &[]), |inner, _| array(9, 1, &inner));
    refused(
        gguf::open,
        &[
            (b"", "it should begin with `GGUF` and begins with ``"),
            (b"ggjt....", "it should begin with `GGUF` and begins with `ggjt`"),
            (b"PK\x03\x04....", "it is a Python pickle"),
            (&good[..6], "the version at byte 4 should take 4 bytes, but 2 are left: it was cut short"),
            (&ggml(1, &[], &[], 0), "it is GGUF version 1; limpid reads 2 and 3: convert the model again"),
            (&ggml(3u32.swap_bytes(), &[], &[], 0), "it is big-endian"),
            (&with(8, u64::MAX), "18446744073709551615 tensors are more than"),
            (&with(16, 1 << 62), "keys are said to be 4611686018427387904, more than"),
            (&with(24, u64::MAX), "key 0 at byte 32 should take 18446744073709551615 bytes"),
            (&good[..39], "the key `k` at byte 37 should take 4 bytes, but 2 are left"),
            (&keys(&[key("k", 13, &[])]), "the key `k` is of type 13; GGUF has types 0 to 12"),
            (&keys(&[key("k", 9, &array(13, 0, &[]))]), "the key `k` is of type 13; GGUF has types 0 to 12"),
            (&keys(&[key("k", 7, &[2])]), "the key `k` should be 0 or 1 (a truth value) and is 2"),
            (&keys(&[key("k", 8, &[1, 0, 0, 0, 0, 0, 0, 0, 0xff])]), "the key `k` is not UTF-8 text"),
            (&keys(&[key("k", 9, &array(5, 1 << 61, &[]))]), "the key `k` are said to be 2305843009213693952, more"),
            (
                &keys(&[key("k", 9, &array(8, 1, &999u64.to_le_bytes()))]),
                "the key `k` at byte 57 should take 999 bytes",
            ),
            (&keys(&[key("k", 9, &deep)]), "the key `k` is arrays in arrays, more than 4 deep"),
            (&keys(&[key("k", 0, &[1]), key("k", 0, &[2])]), "it has the key `k` twice"),
            (&keys(&[key("general.alignment", 4, &[33, 0, 0, 0])]), "should be a power of two (U32) and is U32(33)"),
            (&keys(&[key("general.alignment", 4, &[0; 4])]), "should be a power of two (U32) and is U32(0)"),
            (&keys(&[key("general.alignment", 0, &[32])]), "should be a power of two (U32) and is U8(32)"),
            (&rows(&[row("x", &[1; 5], 0, 0)], 32), "`x` is said to have 5 axes; ggml has at most 4"),
            (&rows(&[row("x", &[1 << 40, 1 << 40], 0, 0)], 32), "too large to count"),
            (&rows(&[row("x", &[1 << 40], 0, 0)], 32), "`x` should end at byte"),
            (&rows(&[row("x", &[33], 8, 0)], 64), "`x`, Q8_0 with axes [33], is too large to count or no whole"),
            (&rows(&[row("x", &[8], 0, 4)], 64), "`x` begins at 4, which is not a multiple of the alignment 32"),
            (&rows(&[row("x", &[8], 0, u64::MAX - 31)], 64), "beyond any file: it is damaged"),
            (
                &rows(&[row("x", &[8], 99, 1 << 63)], 64),
                "`x` begins at 9223372036854775808 of the data, and the tensors",
            ),
            // tensors lie one after the other: a size that is not what was written leaves a hole, overlaps or ends
            // elsewhere
            (
                &rows(&[row("x", &[16], 0, 0), row("y", &[8], 0, 32)], 64),
                "`y` begins at 32 of the data, and the tensors before it end at 64",
            ),
            (
                &rows(&[row("x", &[32], 1, 0), row("y", &[8], 0, 128)], 160), // F32 retyped as F16
                "`y` begins at 128 of the data, and the tensors before it end at 64",
            ),
            (
                &rows(&[row("y", &[8], 0, 128), row("x", &[32], 0, 0)], 160),
                "`y` begins at 128 of the data, and the tensors before it end at 0",
            ),
            (
                &[&rows(&[row("x", &[7], 0, 0)], 0)[..], &[1; 32]].concat(),
                "what follows `x` up to the next tensor is not zeros",
            ),
            (&rows(&[row("x", &[8], 0, 32)], 64), "`x` begins at 32 of the data, and the tensors before it end at 0"),
            (&rows(&[row("x", &[32], 1, 0)], 128), "64 bytes follow `x`, its last tensor"),
            (&rows(&[row("x", &[8], 0, 0)], 33), "1 bytes follow `x`, its last tensor"),
            (&rows(&[row("x", &[16], 0, 0)], 63), "`x` should end at byte 128, but the file has 127: it was cut short"),
            (&rows(&[row("x", &[8], 0, 0), row("x", &[8], 0, 32)], 64), "two tensors are called `x`"),
        ],
    );
    let folder = Folder::new("types");
    for (kind, axes, name, next) in
        [(16, 256, "IQ2_XXS", 96), (39, 256, "MXFP4", 160), (77, 8, "ggml type 77", 160), (26, 8, "I32", 32)]
    {
        let path =
            folder.file("types", &rows(&[row("x", &[axes], kind, 0), row("y", &[8], 0, next)], next as usize + 32));
        let store = gguf::open(&path).unwrap().1;
        let error = store.get("x").unwrap().values().unwrap_err().to_string();
        assert!(error.contains(&format!("`x` is stored as {name}, which limpid does not read")), "{error}");
        assert!(error.contains("requantise a GGUF to Q8_0 or Q4_K") && values(&store, "y") == [0.0; 8]);
    }
    assert!(gguf::open(&folder.file("two", &ggml(2, &[], &[row("x", &[8], 0, 0)], 32))).is_ok());
    let nested = key("k", 9, &array(9, 2, &[array(0, 1, &[7]), array(8, 0, &[])].concat()));
    let (metadata, _) = gguf::open(&folder.file("nested", &keys(&[nested]))).unwrap();
    let again = folder.0.join("again");
    gguf::write(&again, &metadata, vec![]).unwrap();
    assert_eq!(gguf::open(&again).unwrap().0.get("k"), metadata.get("k"));
}

#[test]
fn broken_llmc_files_say_what_is_wrong() {
    let data = f32s(TINY);
    let with = |at: usize, n: i32| {
        let mut numbers = MODEL;
        numbers[at] = n;
        llmc_file(&numbers, &data)
    };
    let most = i32::MAX;
    refused(
        llmc::open,
        &[
            (b"", "it should be a model of llm.c, with a header of 1024 bytes, and has 0"),
            (&llmc_file(&MODEL, &[])[..1023], "with a header of 1024 bytes, and has 1023"),
            (&with(0, 20240520), "it is a shard of tokens of llm.c: a model begins with 20240326"),
            (&with(0, 1), "it is no file of llm.c: a model begins with 20240326, it begins with 1"),
            (&with(1, 1), "it is a model, version 1; limpid reads [3, 5]: write it anew"),
            (&with(2, 0), "max_seq_len in its header should be 1 to 2147483647 and is 0"),
            (&with(3, 9), "vocab_size in its header should be 1 to 8 and is 9"),
            (&with(4, -1), "n_layer in its header should be 1 to 65536 and is 0"),
            (&with(4, 65_537), "n_layer in its header should be 1 to 65536 and is 65537"),
            (&with(5, 5), "n_head in its header should be 1 to 4 and is 5"),
            (&with(6, most), "channels in its header should be 1 to 536870911 and is 2147483647"),
            (&with(1, 5), "its header makes it 2104 bytes and it is 3184: it was cut short or damaged"),
            (&with(4, 65_536), "bytes and it is 3184: it was cut short or damaged"),
            (&llmc_file(&[20240326, 3, most, 5, 65_536, 2, most / 4, most], &data), "it was cut short or damaged"),
            (&llmc_file(&MODEL, &data[1..]), "its header makes it 3184 bytes and it is 3183"),
            (&llmc_file(&MODEL, &[&data[..], &[0]].concat()), "its header makes it 3184 bytes and it is 3185"),
        ],
    );
    let state = |b: i32, t: i32, rest: usize| llmc_file(&[20240327, 2, b, t], &vec![0; rest]);
    let whole = 6 * 8 + 6 * 5 * 4 + 4 + 4 * TINY;
    refused(
        |path| llmc::open_state(path, &tiny()),
        &[
            (&llmc_file(&MODEL, &data), "it is a model of llm.c: a debug state begins with 20240327"),
            (&llmc_file(&[20240327, 1, 2, 3], &[]), "it is a debug state, version 1"),
            (&state(2, 3, whole - 1), "it was cut short or damaged"),
            (&state(2, 3, whole + 1), "it was cut short or damaged"),
            (&state(most, most, whole), "it was cut short or damaged"),
            (&state(-1, 3, whole), "it was cut short or damaged"),
        ],
    );
}

// ------------------------------------------------------------------------------------------------ mutations

/// Reads thousands of mutations: an error or values, no panic, and not much memory.
fn survives(name: &str, original: &[u8], read: impl Fn(&Path) -> Result<(), CheckpointError>) {
    let folder = Folder::new(name);
    let rounds = if cfg!(debug_assertions) { 4000 } else { 8000 };
    let mut good = 0;
    read(&folder.file("whole", original)).unwrap();
    for seed in 0..rounds {
        let bytes = mutate::bytes(original, &mut Dice::new(seed));
        let path = folder.file("mutated", &bytes);
        let (done, most) = most(|| read(&path));
        match done {
            Ok(()) => good += 1,
            Err(error) => assert!(error.to_string().starts_with(&path.display().to_string()), "{error}"),
        }
        // two bits of a file become an f32
        assert!(most <= 13 * bytes.len() + 16_384, "{name} {seed}: {most} bytes for {}", bytes.len());
        // a mapped file may not be shortened, so the next one takes its name anew
        fs::remove_file(&path).unwrap();
    }
    assert!(good > 0 && good < rounds * 9 / 10, "{name}: {good} of {rounds} could be read");
}

fn read_all(store: &Store) {
    for name in store.names() {
        let tensor = store.get(name).unwrap();
        let n: Option<usize> = tensor.shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
        match tensor.values() {
            Ok(values) => assert_eq!(Some(values.len()), n),
            Err(_) => assert!(matches!(tensor.dtype, Dtype::Other(_))),
        }
        let _ = tensor.not_finite();
    }
}

#[test]
fn mutated_safetensors_do_no_harm() {
    let folder = Folder::new("mutate-st");
    let (x, path) = (normal(64), folder.0.join("file"));
    let tensors = vec![
        out("a", Dtype::F32, &[4, 8], &x[..32]),
        out("b", Dtype::F16, &[64], &x),
        out("c", Dtype::Bf16, &[2, 2, 16], &x),
        out("d", Dtype::F32, &[0, 3], &[]),
    ];
    st::write(&path, tensors, Facts::from([("format".into(), "pt".into())])).unwrap();
    survives("st", &fs::read(&path).unwrap(), |path| st::open(path).map(|store| read_all(&store)));
}

#[test]
#[ignore = "gate"]
fn mutated_gguf_does_no_harm() {
    let read = |path: &Path| {
        gguf::open(path).map(|(metadata, store)| {
            metadata.iter().for_each(|(key, _)| drop((metadata.u64(key), metadata.strings(key))));
            read_all(&store);
        })
    };
    survives("gguf", &fs::read(fixture("containers.gguf")).unwrap(), read);
    let keys = [key("k", 9, &array(9, 2, &[array(0, 1, &[7]), array(8, 0, &[])].concat()))];
    let rows = [row("x", &[256], 12, 0), row("y", &[8], 77, 160), row("z", &[32, 2], 8, 192), row("w", &[3], 1, 288)];
    survives("gguf2", &ggml(2, &keys, &rows, 320), read);
    // two blocks of every type
    let quants = gguf::open(&fixture("quants.gguf")).unwrap().1;
    let (mut rows, mut data) = (vec![], vec![]);
    for (quant, number) in Quant::ALL.iter().zip([2, 3, 6, 7, 8, 20, 10, 11, 12, 13, 14, 23]) {
        let (values, size) = quant.sizes();
        rows.push(row(quant.name(), &[values as u64, 2], number, data.len() as u64));
        data.extend(&quants.get(quant.name()).unwrap().bytes[..2 * size]);
        data.resize(data.len().next_multiple_of(32), 0);
    }
    survives("quants", &[ggml(3, &[], &rows, 0), data].concat(), read);
}

/// Every change of a type or an axis in a GGUF file, one at a time: it is refused, or what is read is the same. (F16
/// and BF16 are as long as each other: which of the two it is, nothing else in a file says.)
#[test]
fn a_retyped_or_reshaped_tensor_of_gguf_is_refused() {
    let folder = Folder::new("retyped");
    let x = normal(640);
    let tensors = || {
        let at = |name, dtype, shape: &'static [usize]| out(name, dtype, shape, &x[..shape.iter().product()]);
        let (a, b) = (at("a", Dtype::F32, &[2, 32]), at("b", Dtype::F16, &[64]));
        vec![
            a,
            b,
            at("c", Dtype::Blocks(Quant::Q8_0), &[4, 32]),
            at("d", Dtype::Bf16, &[3, 5]),
            at("e", Dtype::F32, &[7]),
        ]
    };
    let path = folder.0.join("whole");
    gguf::write(&path, &Metadata::default(), tensors()).unwrap();
    let whole = fs::read(&path).unwrap();
    let read = |path: &Path| {
        let store = gguf::open(path)?.1;
        store
            .names()
            .map(|n| Ok((n.to_string(), bits(&store.get(n).unwrap().values()?))))
            .collect::<Result<Vec<_>, CheckpointError>>()
    };
    let good = read(&path).unwrap();
    let mut cases = 0;
    for (name, shape) in [("a", 2), ("b", 1), ("c", 2), ("d", 2), ("e", 1)] {
        let row = text(name);
        let at = whole.windows(row.len()).position(|w| w == row).unwrap() + row.len();
        let (axes, kind) = (at + 4, at + 4 + 8 * shape);
        let numbers = (0..50u64).chain([255, 256, 1 << 31, 1 << 40]);
        for (place, width, number) in (0..shape)
            .map(|i| axes + 8 * i)
            .flat_map(|place| numbers.clone().map(move |n| (place, 8, n)))
            .chain(numbers.clone().map(|n| (kind, 4, n)))
            .chain(numbers.clone().map(|n| (kind + 4, 8, n)))
        // where it begins
        {
            let mut file = whole.clone();
            file[place..place + width].copy_from_slice(&number.to_le_bytes()[..width]);
            let halves = place == kind && [1, 30].contains(&number) && ["b", "d"].contains(&name);
            // an axis whose padded size is the same is another shape: whoever knows the model refuses it
            let same = |found: &Vec<(String, Vec<u32>)>| {
                found.iter().zip(&good).all(|(f, g)| {
                    f == g || place < kind && g.1.starts_with(&f.1) || place < kind && f.1.starts_with(&g.1)
                })
            };
            let path = folder.file(&format!("{cases}"), &file);
            if let Ok(found) = read(&path) {
                assert!(halves || same(&found), "{name}: {number} at {place} gives other values");
            }
            fs::remove_file(&path).unwrap();
            cases += 1;
        }
    }
    assert!(cases > 700, "{cases}");
}

#[test]
#[ignore = "gate"]
fn mutated_llmc_files_do_no_harm() {
    let read = |path: &Path| llmc::open(path).map(|(_, store)| read_all(&store));
    survives("llmc3", &llmc_file(&MODEL, &f32s(TINY)), read);
    survives("llmc5", &llmc_file(&[20240326, 5, 3, 5, 2, 2, 4, 8], &f32s(TINY)[..2 * TINY]), read);
    let state = llmc_file(&[20240327, 2, 2, 3], &f32s(6 * 2 + 30 + 1 + TINY));
    survives("state", &state, |path| llmc::open_state(path, &tiny()).map(|state| read_all(&state.store)));
}

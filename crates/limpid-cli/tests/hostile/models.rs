//! Models in every form that limpid opens, one of their files changed. A model is the same if its configuration, its
//! tokenizer and the logits of a fixed prompt are, bit for bit.
//!
//! No form but a run's state has a checksum, so no reader can tell changed weights from others: the bytes that are
//! weights are computed from the form ([`weights`]) and stay as they are. What is meant to be edited may be edited: a
//! configuration or the keys of a GGUF may say another model, if that is then what limpid says of it ([`faithful`]).

use super::Cases::Share;
use super::mutate::{self, Dice};
use super::{Came, Subject, Trial, Verdict, counting};
use limpid::Lm;
use limpid::backend::{Backend, Cpu};
use limpid::checkpoint::store::{Dtype, OutputTensor, Store};
use limpid::checkpoint::{Checkpoint, Format, ModelData, gguf, save};
use limpid::config::Config;
use limpid::generate::{Options, Sampler};
use limpid::matrix::Precision;
use limpid::model::{Mode, Model};
use limpid::numeric::blocks::Quant;
use limpid::numeric::simd::Level;
use limpid::ops::Batch;
use serde_json::Value;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

pub const SUBJECTS: &[Subject] = &[
    Subject { name: "safetensors", cases: Share(8), new: safetensors },
    Subject { name: "sharded", cases: Share(8), new: sharded },
    Subject { name: "huggingface", cases: Share(12), new: huggingface },
    Subject { name: "limpid-folder", cases: Share(10), new: limpid_folder },
    Subject { name: "gguf", cases: Share(14), new: gguf },
    Subject { name: "blocks", cases: Share(4), new: blocks },
    Subject { name: "llmc", cases: Share(8), new: llmc },
    Subject { name: "adapter", cases: Share(8), new: adapter },
];

/// A file or a folder of the crates' fixtures, copied.
pub fn copied(fixture: &str, to: &Path) -> PathBuf {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let place = |name: &&str| crates.join(name).join("fixtures").join(fixture);
    let from = ["limpid", "limpid-data", "limpid-tokenizer"].iter().map(place).find(|path| path.exists());
    let from = from.unwrap_or_else(|| panic!("no crate has the fixture {fixture}"));
    let to = to.join(from.file_name().unwrap());
    if from.is_file() {
        fs::copy(&from, &to).unwrap();
        return to;
    }
    fs::create_dir_all(&to).unwrap();
    for entry in fs::read_dir(&from).unwrap().map(Result::unwrap).filter(|e| e.path().is_file()) {
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
    to
}

/// A model, and the files of it that are changed.
struct Whole {
    open: PathBuf,
    adapter: Option<PathBuf>,
    files: Vec<PathBuf>,
}

impl Whole {
    fn of(folder: PathBuf, files: &[&str]) -> Whole {
        Whole { files: files.iter().map(|f| folder.join(f)).collect(), open: folder, adapter: None }
    }
}

fn safetensors(at: &Path) -> Trial {
    trial(vec![Whole::of(copied("hf/gpt2-plain", at), &["model.safetensors"])])
}

fn sharded(at: &Path) -> Trial {
    let [one, two] = [2, 3].map(|n| format!("model-0000{n}-of-00003.safetensors"));
    trial(vec![Whole::of(copied("hf/gpt2-bf16-sharded", at), &["model.safetensors.index.json", &one, &two])])
}

fn huggingface(at: &Path) -> Trial {
    let folders = ["gpt2-text", "bert-mlm", "llama-llama3-rope", "llama-gqa", "openai-gpt-plain", "gpt2-inverse-layer"];
    trial(folders.map(|f| Whole::of(copied(&format!("hf/{f}"), at), &["config.json"])).into())
}

fn limpid_folder(at: &Path) -> Trial {
    let made = ["gpt2-text", "llama-llama3-rope"].map(|fixture| {
        let folder = converted(at, fixture, Format::Limpid, &at.join(format!("limpid-{fixture}")));
        let files: &[&str] = if fixture == "gpt2-text" { &["config.json", "tokenizer.json"] } else { &["config.json"] };
        Whole::of(folder, files)
    });
    trial(made.into())
}

fn gguf(at: &Path) -> Trial {
    let made = ["gpt2-text", "llama-llama3-rope"].map(|fixture| {
        let open = converted(at, fixture, Format::Gguf, &at.join(format!("{fixture}.gguf")));
        Whole { files: vec![open.clone()], open, adapter: None }
    });
    trial(made.into())
}

/// Blocks of every type, their codes and scales changed at random, scales to what is no number, too. Nothing in a file
/// says what they were: the model computes with what is there, or says that its weights are no numbers.
fn blocks(at: &Path) -> Trial {
    let sizes = Config { vocab_size: 24, context_length: 8, n_layer: 2, ..Config::preset("nano-llama").unwrap() };
    let config = Config { d_model: 256, n_head: 2, n_kv_head: Some(2), d_ff: 256, ..sizes };
    let (plain, path) = (at.join("plain.gguf"), at.join("blocks.gguf"));
    let values = |param: &limpid::model::Param| vec![0.5; param.region.len()];
    save(&plain, Format::Gguf, &Dtype::Blocks(Quant::Q4_K), &ModelData::new(&config, &values)).unwrap();
    let (metadata, store) = gguf::open(&plain).unwrap();
    let quants = gguf::open(&copied("quants.gguf", at)).unwrap().1;
    let mut kinds = Quant::ALL.iter().cycle();
    let tensors: Vec<(&str, Dtype, Vec<usize>, Vec<u8>)> = store
        .names()
        .map(|name| {
            let stored = store.get(name).unwrap();
            let (mut dtype, mut bytes) = (stored.dtype.clone(), stored.bytes.to_vec());
            if let Dtype::Blocks(_) = dtype {
                let quant = kinds.next().unwrap();
                dtype = Dtype::Blocks(*quant);
                // those of ggml's own blocks that are ordinary numbers
                let found = quants.get(&format!("{quant}.values")).unwrap().values().unwrap().into_owned();
                let (values, wide) = quant.sizes();
                let all = quants.get(quant.name()).unwrap().bytes.chunks_exact(wide).zip(found.chunks_exact(values));
                let small = all.filter(|(_, found)| found.iter().all(|v| v.abs() < 4.0)).map(|(block, _)| block);
                let long = dtype.bytes(stored.shape).unwrap();
                bytes = small.collect::<Vec<_>>().concat().into_iter().cycle().take(long).collect();
                assert_eq!(bytes.len(), long, "{quant} has ordinary blocks");
            }
            (name, dtype, stored.shape.to_vec(), bytes)
        })
        .collect();
    assert!(kinds.next() != Quant::ALL.first(), "all types are there more than once");
    let out = tensors.iter().map(|(name, dtype, shape, bytes)| {
        let (name, dtype, shape) = (name.to_string(), dtype.clone(), shape.clone());
        OutputTensor { name, dtype, shape, values: vec![], rows: Some(vec![bytes]) }
    });
    gguf::write(&path, &metadata, out.collect()).unwrap();
    let original = fs::read(&path).unwrap();
    let weights = weights(&original, &path);
    Box::new(move |_, dice| {
        let mut bytes = original.clone();
        for _ in 0..1 + dice.below(12) {
            let at = weights.start + dice.below(weights.len() - 1);
            let two = dice.of(&[[0x00, 0x7c], [0x00, 0x7e], [0xff, 0xff], [0x01, 0x00], [0x00, 0x00], [0xff, 0x7b]]);
            bytes[at..at + 2].copy_from_slice(two);
        }
        let _restored = Restored(&path, &original);
        fs::remove_file(&path).unwrap(); // it may be mapped still
        fs::write(&path, &bytes).unwrap();
        let lm = Lm::open(&path).map_err(|e| told(&e))?;
        let precision = if dice.below(2) == 0 { Precision::F32 } else { Precision::Int8 };
        let lm = lm.with_machine(limpid::Machine { precision, ..limpid::Machine::cpu(1) });
        let greedy = Options { max_tokens: 3, sampler: Sampler::GREEDY, ..Options::default() };
        match lm.generate_events(&[1, 2, 3], &greedy, &mut |_| true) {
            Ok(found) => {
                if found.tokens.iter().all(|id| (*id as usize) < 24) {
                    Ok(Came::Told)
                } else {
                    Err(format!("tokens that it has not: {:?}", found.tokens))
                }
            }
            Err(error) if told(&error).contains("the model's parameters are damaged") => Ok(Came::Refused),
            Err(error) => Err(told(&error)),
        }
    })
}

fn llmc(at: &Path) -> Trial {
    let made = ["model.bin", "model_bf16.bin"].map(|f| {
        let open = copied(&format!("llmc/{f}"), at);
        Whole { files: vec![open.clone()], open, adapter: None }
    });
    trial(made.into())
}

fn adapter(at: &Path) -> Trial {
    let made = ["gpt2-plain", "llama-gqa"].map(|name| {
        let open = copied(&format!("hf/{name}"), at);
        let below = at.join("peft");
        fs::create_dir_all(&below).unwrap();
        let adapter = copied(&format!("peft/{name}"), &below);
        let files = ["adapter_config.json", "adapter_model.safetensors"].map(|f| adapter.join(f)).into();
        Whole { open, adapter: Some(adapter), files }
    });
    trial(made.into())
}

/// A fixture as another form.
fn converted(at: &Path, fixture: &str, format: Format, to: &Path) -> PathBuf {
    let from = Checkpoint::open(&copied(&format!("hf/{fixture}"), at)).unwrap();
    let model = Model::new(&from.config, Mode::Inspect { batch: 1, context: 1 }).unwrap();
    let values = |param: &limpid::model::Param| from.values(&model, param).unwrap().into_owned();
    let (config, tokenizer) = (&from.config, from.tokenizer.as_ref());
    save(to, format, &Dtype::F32, &ModelData { tokenizer, ..ModelData::new(config, &values) }).unwrap();
    to.into()
}

/// What a model is.
#[derive(PartialEq)]
struct Seen {
    config: Value,
    tokenizer: Value,
    ids: Vec<u32>,
    logits: Vec<u32>,
}

/// An error with its causes.
pub fn told(error: &dyn std::error::Error) -> String {
    std::iter::successors(Some(error), |e| e.source()).map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

fn look(whole: &Whole) -> Result<Seen, String> {
    let opened = Checkpoint::open(&whole.open).map_err(|e| told(&e))?;
    let opened = match &whole.adapter {
        Some(adapter) => opened.with_adapter(adapter).map_err(|e| told(&e))?,
        None => opened,
    };
    let context = opened.config.context_length.min(6);
    // of a model whose configuration was read and cannot be run, the error has no file to name
    let place = |e: &dyn std::error::Error| format!("{}: {}", whole.open.display(), told(e));
    let model = Model::new(&opened.config, Mode::Inspect { batch: 1, context }).map_err(|e| place(&e))?;
    let mut backend = Cpu::start(&model, 1, Level::best(), Precision::F32).map_err(|e| place(&e))?;
    opened.load(&model, &mut backend).map_err(|e| told(&e))?;
    let ids = (0..context).map(|i| (3 * i + 1) as u32 % opened.config.vocab_size.min(40) as u32).collect();
    backend.feed(&Batch::of_sequences(ids, vec![0; context], context)).unwrap();
    backend.forward(model.ops()).unwrap();
    let logits = backend.read(model.logits().expect("every one of these models has a head")).unwrap();
    // what limpid passes over may hold numbers beyond f64, which are JSON and which this test's reader refuses
    let said = |t: &limpid::tokenizer::Tokenizer| {
        let read = serde_json::from_str(&t.to_json()).map_err(|e| format!("{}: {e}", whole.open.display()))?;
        Ok::<_, String>((read, t.encode("a dog, a cat").unwrap_or_default()))
    };
    let (tokenizer, ids) = opened.tokenizer.as_ref().map(said).transpose()?.unwrap_or_default();
    let mut config: Value = serde_json::from_str(&opened.config.to_json()).expect("a configuration is JSON");
    if let Some(adapter) = opened.adapters.first() {
        config["lora"] = format!("{:?}", adapter.lora).into();
    }
    Ok(Seen { config, tokenizer, ids, logits: logits.iter().map(|v| v.to_bits()).collect() })
}

/// Where a file's weights are.
fn weights(bytes: &[u8], path: &Path) -> Range<usize> {
    let end = bytes.len();
    match path.extension().and_then(|e| e.to_str()) {
        Some("safetensors") => 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize..end,
        Some("bin") => 1024..end,
        Some("gguf") => {
            let store: Store = gguf::open(path).unwrap().1;
            let long = |name| store.get(name).unwrap().bytes.len().next_multiple_of(32);
            end - store.names().map(long).sum::<usize>()..end
        }
        _ => end..end,
    }
}

/// Where a file may say something else than it did: settings and vocabularies.
fn settings(bytes: &[u8], path: &Path) -> Range<usize> {
    match path.extension().and_then(|e| e.to_str()) {
        Some("json") => 0..bytes.len(),
        Some("bin") => 8..1024,
        Some("gguf") => {
            let store: Store = gguf::open(path).unwrap().1;
            let row = |name: &str| [&(name.len() as u64).to_le_bytes()[..], name.as_bytes()].concat();
            let first = row(store.names().next().unwrap());
            24..bytes.windows(first.len()).position(|w| w == first).unwrap()
        }
        _ => 0..0,
    }
}

fn trial(wholes: Vec<Whole>) -> Trial {
    let mut known = vec![];
    for whole in wholes {
        let (seen, most) = counting::most(|| look(&whole).unwrap());
        let files: Vec<_> = whole
            .files
            .iter()
            .map(|file| {
                let bytes = fs::read(file).unwrap();
                (file.clone(), weights(&bytes, file), settings(&bytes, file), bytes)
            })
            .collect();
        known.push((whole, seen, most, files));
    }
    Box::new(move |_, dice| {
        let (whole, seen, most, files) = dice.of(&known);
        let (file, weights, settings, original) = dice.of(files);
        let _restored = Restored(file, original);
        let (changed, long) = change(file, original, weights, dice);
        let (found, took) = counting::most(|| look(whole));
        // what is opened takes memory in proportion to what is there
        let stated = most * long.div_ceil(original.len()).max(1) + (64 << 10);
        if took > 2 * stated {
            let mut settings = vec![];
            found.iter().for_each(|found| differing("", &seen.config, &found.config, &mut settings));
            return Err(format!("{took} bytes of memory, where {stated} are stated; its settings: {settings:?}"));
        }
        let found = match found {
            Err(error) => return refused(&error, whole.open.parent().unwrap()),
            Ok(found) => found,
        };
        let first = changed.iter().zip(original).position(|(a, b)| a != b).unwrap_or(changed.len().min(original.len()));
        if found == *seen {
            Ok(Came::Same)
        } else if found.config == seen.config && found.tokenizer == seen.tokenizer {
            Err(format!("other numbers, and nothing says so: byte {first} of {}", name(file)))
        } else if !settings.contains(&first) {
            Err(format!("another model: byte {first} of {}, which is no setting", name(file)))
        } else if name(file) == "config.json" {
            faithful(original, &changed, &found.config).map(|()| Came::Told)
        } else {
            Ok(Came::Told)
        }
    })
}

pub fn name(file: &Path) -> String {
    file.file_name().unwrap().to_string_lossy().into()
}

/// An error should say where.
pub fn refused(error: &str, place: &Path) -> Verdict {
    if error.contains(&*place.to_string_lossy()) {
        Ok(Came::Refused)
    } else {
        Err(format!("the error names no file: {error}"))
    }
}

/// Puts something else in the place of `file`: other bytes, nothing, a folder, a link to itself. Returns them and how
/// long.
pub fn change(file: &Path, original: &[u8], weights: &Range<usize>, dice: &mut Dice) -> (Vec<u8>, usize) {
    fs::remove_file(file).unwrap(); // it may be mapped still: the next one is another
    match dice.below(60) {
        0 => {}
        1 => fs::create_dir(file).unwrap(),
        2 => std::os::unix::fs::symlink(file, file).unwrap(),
        3 => fs::write(file, b"").unwrap(),
        _ => {
            let mut bytes = original.to_vec();
            while bytes == original {
                bytes = mutate::file(original, dice);
                if bytes.len() == original.len() {
                    bytes[weights.clone()].copy_from_slice(&original[weights.clone()]);
                }
            }
            fs::write(file, &bytes).unwrap();
            let long = bytes.len();
            return (bytes, long);
        }
    }
    (vec![], 0)
}

/// Puts a file back as it was, whatever came of the case.
pub struct Restored<'a>(pub &'a Path, pub &'a [u8]);
impl Drop for Restored<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_dir(self.0);
        let _ = fs::remove_file(self.0);
        fs::write(self.0, self.1).unwrap();
    }
}

/// Whether what a JSON file was changed to is what limpid says that it read: under the same names, or (of other
/// programs') as a value anywhere.
fn faithful(original: &[u8], changed: &[u8], said: &Value) -> Result<(), String> {
    let [was, is] = [original, changed].map(|b| serde_json::from_slice::<Value>(b).ok());
    let (Some(was), Some(is)) = (was, is) else {
        return Err("it is no JSON, and was read as another model".into());
    };
    let own = !was["d_model"].is_null();
    let mut leaves = vec![];
    differing("", &was, &is, &mut leaves);
    let number = |v: &Value| v.as_f64();
    let same = |a: &Value, b: &Value| a == b || number(a).is_some() && number(a) == number(b);
    for (place, value) in leaves {
        let Some(value) = value else {
            // transformers has defaults for what is not there; limpid writes all of it
            if own && said.pointer(&place) != was.pointer(&place) {
                return Err(format!("{place} is not there and was taken for {:?}", said.pointer(&place)));
            }
            continue;
        };
        if own && said.pointer(&place).is_some_and(|s| !same(s, &value)) {
            return Err(format!("{place} is {value} and was taken for {:?}", said.pointer(&place)));
        }
    }
    Ok(())
}

/// The places at which two JSON values differ, and what the second has there.
pub fn differing(place: &str, was: &Value, is: &Value, to: &mut Vec<(String, Option<Value>)>) {
    match (was, is) {
        (Value::Object(a), Value::Object(b)) => {
            for key in a.keys().chain(b.keys().filter(|k| !a.contains_key(*k))) {
                let place = format!("{place}/{key}");
                match (a.get(key), b.get(key)) {
                    (Some(a), Some(b)) => differing(&place, a, b, to),
                    (_, b) => to.push((place, b.cloned())),
                }
            }
        }
        _ if was != is => to.push((place.into(), Some(is.clone()))),
        _ => {}
    }
}

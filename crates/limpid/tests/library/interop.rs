//! Models of other programs: every folder of `fixtures/hf` was saved by transformers with the numbers it computes
//! (`reference/families.py`), every file of `fixtures/llmc` proved by llm.c itself (`reference/llmc.py`).

use crate::common::folder::Folder;
use limpid::backend::{Backend, Cpu, Reference, Wrapper};
use limpid::checkpoint::store::Dtype;
use limpid::checkpoint::{Checkpoint, Format, ModelData, safetensors_file, save};
use limpid::config::{Axis, Config, Dropout};
use limpid::data::{Shard, Tokens};
use limpid::matrix::Precision;
use limpid::model::{Mode, Model, ParamRole};
use limpid::numeric::blocks::Quant;
use limpid::numeric::element::{Element, Values};
use limpid::numeric::simd::Level;
use limpid::ops::{Batch, Region};
use limpid::trace::{Keep, Trace};
use limpid::train::{Objective, Recipe, Trainer, WindowOrder};
use std::path::{Path, PathBuf};

/// What a reader may differ by, in logits of order 1: transformers' own f32 is up to 5e-6 from its f64.
const TOLERANCE: f32 = 1e-5;

fn fixtures(folder: &str) -> Vec<PathBuf> {
    let path = format!("{}/fixtures/{folder}", env!("CARGO_MANIFEST_DIR"));
    let entries = std::fs::read_dir(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let mut all: Vec<PathBuf> = entries.map(|e| e.unwrap().path()).filter(|p| p.is_dir()).collect();
    all.sort();
    assert!(all.len() > 15, "{path}: {}", all.len());
    all
}

/// The rows that transformers was given.
struct Truth {
    rows: usize,
    length: usize,
    batch: Batch,
    real: Vec<bool>,
    logits: Option<Vec<f32>>,
    hidden: Vec<f32>,
}

fn truth(case: &Path) -> Truth {
    truth_in(&case.join("truth.safetensors"))
}

fn truth_in(file: &Path) -> Truth {
    let store = safetensors_file::open(file).unwrap();
    let get = |name: &str| store.get(name).map(|t| t.values().unwrap().into_owned());
    let tokens = store.get("tokens").unwrap();
    let [rows, length] = tokens.shape[..] else { panic!("{:?}", tokens.shape) };
    let ids = |values: Vec<f32>| values.iter().map(|v| *v as u32).collect::<Vec<_>>();
    let mut batch = Batch::of_sequences(ids(get("tokens").unwrap()), vec![0; rows * length], length);
    batch.segments = get("segments").map(ids).unwrap_or_default();
    let mask = get("attention_mask").unwrap_or(vec![1.0; rows * length]);
    for (span, mask) in batch.spans.iter_mut().zip(mask.chunks(length)) {
        span.valid = mask.iter().filter(|m| **m == 1.0).count();
    }
    let real = mask.iter().map(|m| *m == 1.0).collect();
    Truth { rows, length, batch, real, logits: get("logits"), hidden: get("hidden").unwrap() }
}

/// Logits and what enters the head, from the model in `path`.
fn run(path: &Path, truth: &Truth, make: impl Fn(&Model) -> Box<dyn Backend>) -> (Option<Vec<f32>>, Vec<f32>) {
    let mut opened = Checkpoint::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    if truth.length > opened.config.context_length {
        // longrope: opened for texts up to the original length, and told here to go on
        assert_eq!(opened.config.rotary_scaling.context, opened.config.context_length, "{}", path.display());
        opened.config.context_length = opened.config.rotary_scaling.reach;
    }
    let model = Model::new(&opened.config, Mode::Inspect { batch: truth.rows, context: truth.length }).unwrap();
    let mut backend = make(&model);
    opened.load(&model, &mut *backend).unwrap();
    backend.feed(&truth.batch).unwrap();
    backend.forward(model.ops()).unwrap();
    let last = format!("blocks.{}.hook_resid_post", opened.config.n_layer - 1);
    let hidden = if opened.config.final_norm { "ln_final.hook_out".to_string() } else { last };
    let read = |name: &str| model.tensor(name).map(|t| backend.read(t.region).unwrap());
    (read("logits"), read(&hidden).unwrap())
}

fn cpu(model: &Model) -> Box<dyn Backend> {
    Box::new(Cpu::new(model, 2))
}

/// The greatest difference in rows that are not padding.
fn apart(truth: &Truth, got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len());
    let cols = want.len() / truth.real.len();
    let real = |i: &usize| truth.real[i / cols];
    let difference = |i: usize| (got[i] - want[i]).abs();
    (0..want.len()).filter(real).map(difference).fold(0.0, |a, b| if b > a || b.is_nan() { b } else { a })
}

/// The greatest difference, of all that was compared.
#[track_caller]
fn assert_true(what: &str, path: &Path, truth: &Truth) -> f32 {
    let mut worst = 0f32;
    for (name, make) in [
        ("cpu", &cpu as &dyn Fn(&Model) -> Box<dyn Backend>),
        ("reference", &|m: &Model| Box::new(Reference::new(m)) as Box<dyn Backend>),
    ] {
        let (logits, hidden) = run(path, truth, make);
        let off = apart(truth, &hidden, &truth.hidden);
        assert!(off < TOLERANCE, "{what} {name}: hidden states are {off:e} from transformers'");
        worst = worst.max(off);
        assert_eq!(logits.is_some(), truth.logits.is_some(), "{what}");
        if let (Some(got), Some(want)) = (&logits, &truth.logits) {
            let off = apart(truth, got, want);
            assert!(off < TOLERANCE, "{what} {name}: logits are {off:e} from transformers'");
            worst = worst.max(off);
        }
    }
    worst
}

/// A tensor of a file: its name, how it is stored, its shape and its values.
type FileTensor = (String, Dtype, Vec<usize>, Vec<f32>);

/// Writes the model of the folder `case` to `to` with other tensors, and another `tie_word_embeddings` if one is given.
fn with_tensors(case: &Path, to: &Path, tensors: &[FileTensor], tie: Option<bool>) {
    let text = std::fs::read_to_string(case.join("config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
    if let Some(tie) = tie {
        config["tie_word_embeddings"] = tie.into();
    }
    std::fs::create_dir_all(to).unwrap();
    std::fs::write(to.join("config.json"), config.to_string()).unwrap();
    let out = |(name, dtype, shape, values): &FileTensor| {
        let values = values.clone();
        let make: limpid::checkpoint::store::MakeValues = Box::new(move || Ok(values.clone()));
        let (name, dtype, shape, values) = (name.clone(), dtype.clone(), shape.clone(), vec![make]);
        limpid::checkpoint::store::OutputTensor { name, dtype, shape, values, rows: None }
    };
    let facts = limpid::checkpoint::store::Facts::from([("format".to_string(), "pt".to_string())]);
    safetensors_file::write(&to.join("model.safetensors"), tensors.iter().map(out).collect(), facts).unwrap();
}

/// What a file has twice, transformers reads so (reference/tied.py): a copy alone stands for both, and one that differs
/// is a head of its own, whatever config.json says of it.
#[test]
#[ignore = "gate"]
fn tied_tables_are_read_however_files_store_them() {
    let text = std::fs::read_to_string(format!("{}/fixtures/tied.json", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let tied: std::collections::BTreeMap<String, Vec<[String; 2]>> = serde_json::from_str(&text).unwrap();
    assert!(tied.len() > 45, "{}", tied.len());
    let folder = Folder::new("tied");
    each(tied.into_iter().collect(), |(name, pairs)| {
        let case = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/hf").join(&name);
        let (truth, first, to) = (truth(&case), Checkpoint::open(&case).unwrap(), folder.0.join(&name));
        // but masks, which have a type that no weights have
        let read = |tensor: &str| {
            let stored = first.store().get(tensor)?;
            let values = stored.values().ok()?.into_owned();
            Some((tensor.to_string(), stored.dtype.clone(), stored.shape.to_vec(), values))
        };
        let all: Vec<FileTensor> = first.store().names().filter_map(read).collect();
        let copy_of = |of: &str, copy: &str| {
            let (_, dtype, shape, values) = all.iter().find(|tensor| tensor.0 == of).unwrap().clone();
            (copy.to_string(), dtype, shape, values)
        };
        let whole: Vec<FileTensor> =
            all.iter().cloned().chain(pairs.iter().map(|[copy, of]| copy_of(of, copy))).collect();
        with_tensors(&case, &to, &whole, None);
        assert_true(&format!("{name}, all twice"), &to, &truth);
        let logits = |tensors: &[FileTensor], tie| {
            with_tensors(&case, &to, tensors, tie);
            run(&to, &truth, cpu).0.unwrap()
        };
        let usual = logits(&all, None);
        for [copy, of] in &pairs {
            let lone: Vec<FileTensor> =
                all.iter().filter(|tensor| tensor.0 != *of).cloned().chain([copy_of(of, copy)]).collect();
            with_tensors(&case, &to, &lone, None);
            assert_true(&format!("{name}, only {copy}"), &to, &truth);
            if copy.ends_with(".weight") {
                with_tensors(&case, &to, &lone, Some(false));
                let error = Checkpoint::open(&to).err().map(|e| e.to_string()).unwrap_or_default();
                assert!(error.contains("has no tensor"), "{name}, not tied, only {copy}: {error}");
            }
            let (mut other, mut untied) = (all.clone(), whole.clone());
            let mut apart = copy_of(of, copy);
            let row = apart.3.len() / apart.2[0];
            apart.3.rotate_right(row);
            untied.retain(|tensor| tensor.0 != *copy);
            untied.push(apart.clone());
            other.push(apart);
            let found = logits(&other, None);
            assert!(found != usual, "{name}: another {copy} changes nothing");
            assert_eq!(found, logits(&untied, Some(false)), "{name}: another {copy} is not the head's own");
        }
    });
}

/// What a folder's config.json says that it is.
fn model_type(folder: &Path) -> String {
    let text = std::fs::read_to_string(folder.join("config.json")).unwrap();
    serde_json::from_str::<serde_json::Value>(&text).unwrap()["model_type"].as_str().unwrap().into()
}

/// What the models of a family showed.
#[derive(Default)]
struct Shown {
    models: usize,
    /// Models that were written in each of the formats.
    written: [usize; Format::ALL.len()],
    worst: f32,
}

impl Shown {
    /// Its line in docs/formats.md; formats of some models with their number.
    fn line(&self, family: &str) -> String {
        let all = Format::ALL.iter().zip(self.written).filter(|(_, n)| *n > 0);
        let of = |(format, n): (&Format, usize)| {
            if n == self.models { format.to_string() } else { format!("{format} ({n})") }
        };
        let to = all.map(of).collect::<Vec<_>>().join(", ");
        format!("| `{family}` | {} | {to} | {:.0e} |\n", self.models, self.worst)
    }
}

/// docs/formats.md has the table that these numbers make: each family with two models or more, which are written as
/// themselves, in which formats, and the worst difference.
#[test]
#[ignore = "gate"]
fn models_of_transformers_give_its_numbers() {
    let folder = Folder::new("table");
    let mut families = std::collections::BTreeMap::<String, Shown>::new();
    for case in fixtures("hf") {
        let of = families.entry(model_type(&case)).or_default();
        of.worst = of.worst.max(assert_true(&case.display().to_string(), &case, &truth(&case)));
        of.models += 1;
        let place = folder.0.join(case.file_name().unwrap());
        std::fs::create_dir(&place).unwrap();
        let opened = Checkpoint::open(&case).unwrap();
        for (format, n) in Format::ALL.iter().zip(&mut of.written) {
            let out = place.join(format.to_string());
            let written = convert(&opened, &out, *format, &opened.dtype()).is_ok();
            *n += usize::from(written);
        }
        assert_eq!(model_type(&place.join("hf")), model_type(&case), "{}", case.display());
    }
    let few: Vec<&String> = families.iter().filter(|(_, shown)| shown.models < 2).map(|(of, _)| of).collect();
    assert!(few.is_empty() && families.len() > 35, "families of one model: {few:?}");
    let table: String = families.iter().map(|(of, shown)| shown.line(of)).collect();
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/formats.md")).unwrap();
    assert!(page.contains(&table), "docs/formats.md lacks these lines\n{table}");
}

/// The models that llama.cpp's own converter made of those of transformers (`reference/gguf_families.py`), each with
/// the folder of these.
fn of_llama_cpp() -> Vec<(String, PathBuf, PathBuf)> {
    let of = |rest: &str| PathBuf::from(format!("{}/fixtures/{rest}", env!("CARGO_MANIFEST_DIR")));
    let files = std::fs::read_dir(of("gguf")).unwrap().map(|entry| entry.unwrap().path());
    let files = files.filter(|path| path.extension().is_some_and(|end| end == "gguf"));
    let case = |file: PathBuf| {
        let name = file.file_stem().unwrap().to_str().unwrap().to_string();
        let folder = of(&format!("hf/{name}"));
        (name, file, folder)
    };
    let mut all: Vec<_> = files.map(case).collect();
    all.sort();
    assert!(all.len() > 25, "{}", all.len());
    all
}

/// Tries all cases, so that one that fails hides no other.
fn each<T>(cases: Vec<T>, mut test: impl FnMut(T)) {
    let mut one = |case| std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| test(case))).is_err();
    let failed = cases.into_iter().filter_map(|case| one(case).then_some(())).count();
    assert_eq!(failed, 0, "cases that failed, above");
}

/// Other names, other rows, other gains, the same numbers.
#[test]
fn models_of_llama_cpp_give_the_same_numbers() {
    each(of_llama_cpp(), |(name, file, folder)| {
        // a converter that leaves out what its program has in one way only has a truth of its own
        let own = file.with_extension("safetensors");
        let mut truth = if own.exists() { truth_in(&own) } else { truth(&folder) };
        if !Checkpoint::open(&file).unwrap().config.lm_head {
            truth.logits = None;
        }
        assert_true(&name, &file, &truth);
    });
}

/// What llama.cpp's converter writes of a model is what limpid writes of it: of transformers' folder, and of the file
/// again, bit for bit, keys too.
#[test]
fn models_are_written_as_llama_cpp_s_converter_does() {
    let folder = Folder::new("as-theirs");
    let mut written = 0;
    each(of_llama_cpp(), |(name, file, hf)| {
        let theirs = Checkpoint::open(&file).unwrap();
        for from in [&file, &hf] {
            let (opened, out) = (Checkpoint::open(from).unwrap(), folder.0.join(format!("{name}.gguf")));
            if !opened.config.lm_head && from == &hf || opened.config.head_transform {
                continue; // the file has no head
            }
            if from == &hf && file.with_extension("safetensors").exists() {
                let error = convert(&opened, &out, Format::Gguf, &Dtype::F32).unwrap_err().to_string();
                assert!(error.contains("cannot express"), "{name}: {error}");
                continue;
            }
            let model = Model::new(&opened.config, Mode::Inspect { batch: 1, context: 1 }).unwrap();
            let values = |param: &limpid::model::Param| opened.values(&model, param).unwrap().into_owned();
            let data = ModelData {
                metadata: Some(&opened.metadata).filter(|_| from == &file),
                ..ModelData::new(&opened.config, &values)
            };
            save(&out, Format::Gguf, &Dtype::F32, &data).unwrap_or_else(|e| panic!("{name}: {e}"));
            let ours = Checkpoint::open(&out).unwrap();
            let bare = |config: &Config| Config { dropout: Dropout::NONE, ..config.clone() };
            // gains are stored anew, and features have the order of each file
            let Config { norm_gain_less_one, rotary_pairs, .. } = ours.config;
            let own = Config { norm_gain_less_one, rotary_pairs, ..bare(&opened.config) };
            assert_eq!(bare(&ours.config), own, "{name}");
            if ours.metadata.get("general.architecture") != theirs.metadata.get("general.architecture") {
                // Phi-3 is Llama with other matrices
                assert!(from == &hf && name.starts_with("phi3"), "{name}");
                continue;
            }
            let names = |of: &Checkpoint| {
                let mut all: Vec<String> = of.store().names().map(String::from).collect();
                all.sort();
                all
            };
            assert_eq!(names(&ours), names(&theirs), "{name}");
            for tensor in names(&ours) {
                let [a, b] = [&ours, &theirs].map(|of| of.store().get(&tensor).unwrap());
                assert_eq!((a.dtype, a.shape), (b.dtype, b.shape), "{name}: {tensor}");
                assert!(a.bytes == b.bytes, "{name}: {tensor}");
            }
            for (key, value) in theirs.metadata.iter() {
                let own = ours.metadata.get(key);
                // Falcon's context is a number of the converter's; what a model's card says, and longrope's context,
                // are not of transformers' model
                let idle = [
                    "falcon.context_length",
                    "bloom.context_length",
                    "general.",
                    "phi3.rope.scaling.orig",
                    "phi3.attention.sliding",
                    "rope.scaling.type",
                ];
                let idle = from == &hf && idle.iter().any(|part| key.contains(part));
                assert!(
                    own == Some(value) || idle || from == &hf && key.contains("add_bos"),
                    "{name}: `{key}` {own:?} {value:?}"
                );
            }
            written += 1;
        }
    });
    assert!(written > 45, "{written}");
}

/// Blocks stay what they are, of whatever types, where nothing else is asked for; where one type is, those that have
/// it.
#[test]
fn blocks_pass_through() {
    use limpid::checkpoint::gguf;
    use limpid::checkpoint::store::OutputTensor;
    let folder = Folder::new("blocks");
    let sizes = Config { vocab_size: 70, context_length: 16, n_layer: 2, ..Config::preset("nano-llama").unwrap() };
    let config = Config { d_model: 256, n_head: 4, n_kv_head: Some(2), d_ff: 512, ..sizes };
    let values = |param: &limpid::model::Param| -> Vec<f32> {
        let site = limpid::numeric::random::site(&param.name);
        (0..param.region.len()).map(|i| limpid::numeric::random::normal(5, site, i as u64) as f32 * 0.2).collect()
    };
    let [plain, mixed, same, small] = ["plain", "mixed", "same", "small"].map(|n| folder.0.join(format!("{n}.gguf")));
    save(&plain, Format::Gguf, &Dtype::Blocks(Quant::Q4_K), &ModelData::new(&config, &values)).unwrap();
    let (metadata, store) = gguf::open(&plain).unwrap();
    // two of its tensors of types that limpid does not make: any bytes, and a scale that is a number
    let odd = [("blk.0.attn_v.weight", Quant::Q6_K), ("blk.1.ffn_down.weight", Quant::Q5_0)];
    let made: Vec<(Dtype, Vec<u8>)> = store
        .names()
        .map(|name| {
            let stored = store.get(name).unwrap();
            let Some((_, quant)) = odd.iter().find(|(odd, _)| *odd == name) else {
                return (stored.dtype.clone(), stored.bytes.to_vec());
            };
            let (values, wide) = quant.sizes();
            let blocks = stored.shape.iter().product::<usize>() / values;
            let mut bytes: Vec<u8> = (0..blocks * wide).map(|i| (i * 7919 % 251) as u8).collect();
            let scale = if *quant == Quant::Q6_K { wide - 2 } else { 0 };
            bytes.chunks_exact_mut(wide).for_each(|block| block[scale..scale + 2].copy_from_slice(&[0x66, 0x1e]));
            (Dtype::Blocks(*quant), bytes)
        })
        .collect();
    let out = store.names().zip(&made).map(|(name, (dtype, bytes))| {
        let shape = store.get(name).unwrap().shape.to_vec();
        OutputTensor { name: name.into(), dtype: dtype.clone(), shape, values: vec![], rows: Some(vec![bytes]) }
    });
    let mut said = metadata.clone();
    said.set("general.license", "apache-2.0".to_string());
    said.set("general.file_type", 15u32);
    said.set("quantize.imatrix.file", "imatrix.dat".to_string());
    said.set("tokenizer.ggml.eot_token_id", 3u32);
    gguf::write(&mixed, &said, out.collect()).unwrap();
    let lm = limpid::Lm::open(&mixed).unwrap();
    lm.save(&same, Format::Gguf).unwrap();
    lm.save_as(&small, Format::Gguf, &Dtype::Blocks(Quant::Q4_K)).unwrap();
    let [(_, was), (kept, is), (new, less)] = [&mixed, &same, &small].map(|path| gguf::open(path).unwrap());
    for name in was.names() {
        let [was, is, less] = [&was, &is, &less].map(|store| store.get(name).unwrap());
        assert_eq!((was.dtype, was.shape), (is.dtype, is.shape), "{name}");
        assert!(was.bytes == is.bytes, "{name}");
        let odd = odd.iter().any(|(odd, _)| *odd == name);
        assert_eq!(was.bytes == less.bytes, !odd, "{name}");
        assert_eq!(*less.dtype, if was.shape.len() > 1 { Dtype::Blocks(Quant::Q4_K) } else { Dtype::F32 }, "{name}");
    }
    // encoded once more they would be others
    let again = |name: &str| {
        let stored = was.get(name).unwrap();
        limpid::checkpoint::store::encode(&stored.values().unwrap(), stored.dtype).unwrap() != stored.bytes
    };
    assert!(was.names().any(|name| !odd.iter().any(|(odd, _)| *odd == name) && again(name)));
    assert!(said.iter().all(|(key, value)| kept.get(key) == Some(value)), "{kept:?}");
    assert_eq!(new.str("general.license").unwrap(), "apache-2.0");
    assert_eq!((new.u64("general.file_type").unwrap(), new.get("quantize.imatrix.file")), (14, None));
}

/// A GGUF file with one key set to another value.
fn with_key(from: &Path, to: &Path, key: &str, value: limpid::checkpoint::gguf::GgufValue) {
    use limpid::checkpoint::gguf;
    use limpid::checkpoint::store::OutputTensor;
    let (mut metadata, store) = gguf::open(from).unwrap();
    metadata.set(key, value);
    let tensors = store.names().map(|name| {
        let stored = store.get(name).unwrap();
        let (dtype, shape) = (stored.dtype.clone(), stored.shape.to_vec());
        OutputTensor { name: name.into(), dtype, shape, values: vec![], rows: Some(vec![stored.bytes]) }
    });
    gguf::write(to, &metadata, tensors.collect()).unwrap();
}

/// A key of the architecture that nobody reads changes no number, and is then told, or is refused with the
/// architectures that have it.
#[test]
fn keys_of_gguf_are_read_told_or_refused() {
    use limpid::checkpoint::gguf::GgufValue::{self, Bool, F32, U32};
    let folder = Folder::new("keys");
    let out = folder.0.join("out.gguf");
    let of = |name: &str| PathBuf::from(format!("{}/fixtures/gguf/{name}.gguf", env!("CARGO_MANIFEST_DIR")));
    let text = |text: &str| GgufValue::String(text.into());
    let plain = Checkpoint::open(&of("llama-gqa")).unwrap().config;
    let with = |key: &str, value: GgufValue| {
        with_key(&of("llama-gqa"), &out, key, value);
        Checkpoint::open(&out)
    };
    for (key, value, told) in [
        ("llama.attention.sliding_window", U32(plain.context_length as u32), true),
        ("llama.attention.causal", Bool(true), true),
        ("llama.attention.scale", F32(plain.score_scale(0) as f32), true),
        ("llama.logit_scale", F32(1.0), true),
        ("llama.final_logit_softcapping", F32(0.0), true),
        ("llama.rope.scaling.finetuned", Bool(false), true),
        ("llama.rope.scaling.original_context_length", U32(4096), true),
        ("llama.pooling_type", U32(1), true),
        ("llama.expert_count", U32(0), false),
        ("llama.vocab_size", U32(33), false),
        ("llama.attention.key_length", U32(plain.d_head() as u32), false),
        ("general.license", text("mit"), true),
        ("general.file_type", U32(0), false),
        ("quantize.imatrix.file", text("imatrix.dat"), true),
        ("tokenizer.ggml.eot_token_id", U32(3), false),
        ("tokenizer.ggml.pre", text("default"), false),
        ("tokenizer.chat_template.tool_use", text("{{ messages }}"), true),
        ("tokenizer.chat_template", text("{{ messages }}"), false),
    ] {
        let opened = with(key, value).unwrap_or_else(|e| panic!("{key}: {e}"));
        assert_eq!(opened.config, plain, "{key}");
        assert_eq!(opened.unused.iter().any(|unused| unused == key), told, "{key}: {:?}", opened.unused);
    }
    // a factor of no type is linear to llama.cpp
    let scaled = with("llama.rope.scaling.factor", F32(2.0)).unwrap().config.rotary_scaling;
    assert_eq!((scaled.factor, scaled.context), (2.0, 0));
    for (key, value, says) in [
        ("llama.attention.scale", F32(0.3), "Architectures in which it does: granite;"),
        ("llama.logit_scale", F32(0.5), "Architectures in which it does: command-r, granite;"),
        ("llama.attention.sliding_window", U32(4), "in which it does: gemma2, gemma3, phi3, olmo2;"),
        ("llama.attention.causal", Bool(false), "Architectures in which it does: bert;"),
        ("llama.rope.scale_linear", F32(2.0), "Architectures in which it does: none;"),
        ("llama.of_tomorrow", F32(0.0), "Architectures in which it does: none;"),
        ("general.architecture", text("mamba2"), "its layers keep a state instead of attention"),
        ("general.architecture", text("qwen3moe"), "a mixture of experts"),
        ("general.architecture", text("gpt-oss"), "a mixture of experts"),
        ("general.architecture", text("t5encoder"), "an encoder and a decoder"),
        ("llama.expert_count", U32(8), "it has experts"),
    ] {
        let error = with(key, value).err().unwrap_or_else(|| panic!("{key} opens")).to_string();
        let named = key.starts_with("general") || error.contains(&format!("`{key}`"));
        assert!(error.starts_with(&out.display().to_string()) && named && error.contains(says), "{error}");
    }
}

/// BERT's tokenizer goes into GGUF as llama.cpp has it and comes back: its ids, what stands round a text, and the words
/// of the list.
#[test]
fn word_pieces_go_through_gguf() {
    use limpid::config::{Activation, Mask, NormPlace};
    use limpid::tokenizer::Tokenizer;
    let folder = Folder::new("pieces");
    let all = concat!(env!("CARGO_MANIFEST_DIR"), "/../limpid-tokenizer/fixtures/tokenizers.json");
    let all: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(all).unwrap()).unwrap();
    for case in ["bert-files", "bert-cased-files"] {
        let (files, out) = (folder.0.join(case), folder.0.join(format!("{case}.gguf")));
        std::fs::create_dir(&files).unwrap();
        let like = all[case]["like"].as_str().map(|like| &all[like]["files"]);
        for (name, text) in like.into_iter().chain([&all[case]["files"]]).flat_map(|files| files.as_object().unwrap()) {
            std::fs::write(files.join(name), text.as_str().unwrap()).unwrap();
        }
        let tokenizer = Tokenizer::open(&files).unwrap().unwrap();
        let sizes = Config { vocab_size: tokenizer.vocab_size(), context_length: 16, d_model: 8, ..Config::default() };
        let config = Config {
            n_head: 2,
            n_layer: 1,
            d_ff: 16,
            n_segment: 2,
            norm_place: NormPlace::Post,
            final_norm: false,
            embedding_norm: true,
            mask: Mask::Bidirectional,
            activation: Activation::GeluErf,
            lm_head: false,
            ..sizes
        };
        let values = |param: &limpid::model::Param| vec![0.5; param.region.len()];
        let data = ModelData { tokenizer: Some(&tokenizer), ..ModelData::new(&config, &values) };
        save(&out, Format::Gguf, &Dtype::F32, &data).unwrap();
        let (metadata, _) = limpid::checkpoint::gguf::open(&out).unwrap();
        assert_eq!(metadata.str("tokenizer.ggml.model").unwrap(), "bert");
        let tokens = metadata.strings("tokenizer.ggml.tokens").unwrap();
        for token in tokens {
            assert!(!token.starts_with("##"), "{token}");
        }
        assert!(tokens.iter().any(|token| token.starts_with('▁')) && tokens.contains(&"[CLS]".to_string()));
        let back = Checkpoint::open(&out).unwrap().tokenizer.unwrap();
        for text in ["the lamp lit the harbour", "Ünder, the GULLS!", "xyzzy 12 [MASK] 漢字", ""] {
            assert_eq!(
                back.encode_for_model(text).unwrap(),
                tokenizer.encode_for_model(text).unwrap(),
                "{case} {text}"
            );
        }
        assert!(back.encode_for_model("the").unwrap().len() > 2);
    }
}

#[test]
fn what_limpid_has_not_is_refused_by_key() {
    let readme = format!("{}/fixtures/hf-refused/README.md", env!("CARGO_MANIFEST_DIR"));
    let readme = std::fs::read_to_string(readme).unwrap();
    for case in fixtures("hf-refused") {
        let name = case.file_name().unwrap().to_str().unwrap();
        let line = readme.lines().find(|l| l.starts_with(&format!("| `{name}` |"))).unwrap();
        let words: Vec<&str> = line.split('|').nth(2).unwrap().split('`').skip(1).step_by(2).collect();
        let error = Checkpoint::open(&case).err().unwrap_or_else(|| panic!("{name} opens"));
        let mut text = error.to_string();
        let mut source = std::error::Error::source(&error);
        while let Some(inner) = source {
            text += &format!(": {inner}");
            source = inner.source();
        }
        for word in words {
            let near =
                [word.to_string(), word.replace("n_embd", "d_model"), word.replace("num_attention_heads", "n_head")];
            let near = near
                .into_iter()
                .chain([word.replace("num_key_value_heads", "n_kv_head"), word.replace("head_dim", "head size")]);
            assert!(near.into_iter().any(|w| text.contains(&w)), "{name}: `{word}` is not in: {text}");
        }
    }
}

/// Everything that a format can hold comes back as the same bytes, and gives transformers' numbers still.
#[test]
#[ignore = "gate"]
fn there_and_back_changes_no_byte() {
    let folder = Folder::new("back");
    let (mut written, mut parted) = ([0; 4], 0);
    for case in fixtures("hf") {
        let (name, truth) = (case.file_name().unwrap().to_str().unwrap().to_string(), truth(&case));
        let first = Checkpoint::open(&case).unwrap();
        let dtype = first.dtype();
        for (i, format) in Format::ALL.iter().enumerate() {
            let place = |tag: &str| {
                let end = match format {
                    Format::Gguf => ".gguf",
                    Format::Llmc => ".bin",
                    _ => "",
                };
                folder.0.join(format!("{name}-{tag}-{format}{end}"))
            };
            let there = place("there");
            if let Err(error) = convert(&first, &there, *format, &dtype) {
                let text = error.to_string();
                assert!(text.contains("cannot express") || text.contains("llm.c has no"), "{name} {format}: {text}");
                continue;
            }
            written[i] += 1;
            assert_true(&format!("{name} as {format}"), &there, &truth);
            let second = Checkpoint::open(&there).unwrap();
            assert_eq!((second.format, second.dtype()), (*format, dtype.clone()), "{name}");
            let template = Some(CHAT).filter(|_| *format != Format::Llmc); // llm.c's file has no place for one
            assert_eq!(second.chat_template.as_deref(), template, "{name} as {format}");
            let back = place("back").with_extension("");
            convert(&second, &back, first.format, &dtype).unwrap();
            parted += usize::from(back.join("model.safetensors.index.json").exists());
            let third = Checkpoint::open(&back).unwrap();
            assert_true(&format!("{name} as {format} and back"), &back, &truth);
            // parameter by parameter, and, where it is of the same family still, tensor by tensor under the names that
            // transformers gives them; but masks, copies and padding are left out
            let outline = |config| Model::new(config, Mode::Inspect { batch: 1, context: 1 }).unwrap();
            let (before, after) = (outline(&first.config), outline(&third.config));
            for param in &before.params {
                let there = after.param(&param.name).unwrap_or_else(|| panic!("{name} as {format}: {}", param.name));
                let [was, is] = [first.values(&before, param), third.values(&after, there)].map(Result::unwrap);
                // Gemma's gains are stored less one there, and whole in GGUF, where a last bit has no place
                let gain =
                    |v: f32| if first.config.norm_gain_less_one && *format == Format::Gguf { v + 1.0 - 1.0 } else { v };
                let gain = |v: f32| if param.is_matrix() { v } else { gain(v) };
                let same = was.iter().zip(is.iter()).all(|(a, b)| gain(*a).to_bits() == b.to_bits());
                assert!(
                    same && was.len() == is.len(),
                    "{name} as {format} and back: {} differs: {was:?} {is:?}",
                    param.name
                );
            }
            // what limpid does not read goes along through folders
            if format.is_folder() {
                for entry in std::fs::read_dir(&case).unwrap() {
                    let path = entry.unwrap().path();
                    let file = path.file_name().unwrap().to_str().unwrap();
                    let as_is = file.ends_with(".json") || file.ends_with(".txt");
                    if !as_is || ["config.json", "text.json", "model.safetensors.index.json"].contains(&file) {
                        continue;
                    }
                    let there = back.join(file);
                    assert!(std::fs::read(&path).unwrap() == std::fs::read(&there).unwrap(), "{name} {file}");
                }
                let keys = |folder: &Path| {
                    let text = std::fs::read_to_string(folder.join("config.json")).unwrap();
                    let mut keys: serde_json::Value = serde_json::from_str(&text).unwrap();
                    keys.as_object_mut().unwrap().remove("architectures"); // a head that limpid has not is left out
                    keys
                };
                assert_eq!(keys(&case), keys(&back), "{name} as {format} and back");
            }
            let one_family = first.format == Format::Limpid || model_type(&case) == model_type(&back);
            let from_2 = ["roberta", "xlm-roberta", "camembert", "opt"].contains(&model_type(&case).as_str());
            for stored in third.store().names().filter(|_| one_family).filter_map(|n| third.store().get(n)) {
                let bare = |n: &str| {
                    let own = n.rsplit_once("transformer.").or(n.rsplit_once("_orig_mod.")).map_or(n, |x| x.1);
                    own.trim_start_matches("electra.").to_string() // which is there if a head is, even one left out
                };
                let own = |n: &&str| bare(n) == bare(stored.name) || old_bert(n) == old_bert(stored.name);
                let Some(was) = first.store().names().find(own).and_then(|n| first.store().get(n)) else {
                    // a bias that GGUF's architecture always has
                    let blank = *format == Format::Gguf && stored.values().unwrap().iter().all(|v| *v == 0.0);
                    if blank && stored.name.ends_with(".bias") {
                        continue;
                    }
                    panic!("{name} as {format} and back: {} is new", stored.name)
                };
                assert_eq!(was.dtype, stored.dtype, "{name} {}", stored.name);
                let values = was.bytes.get(..stored.bytes.len()) == Some(stored.bytes);
                // two rows that no position reads
                let unread = 2 * stored.bytes.len() / stored.shape[0];
                let read = from_2 && stored.name.contains("position") && was.bytes[unread..] == stored.bytes[unread..];
                let same = values
                    || read
                    || first.config.norm_gain_less_one
                        && *format == Format::Gguf
                        && stored.name.ends_with("norm.weight");
                assert!(same, "{name} as {format} and back: {} differs", stored.name);
            }
        }
    }
    let all = fixtures("hf").len();
    assert!(written[0] == all && written[1] == all && written[2] >= 5 && written[3] >= 2, "{written:?}");
    assert!(parted > 10, "{parted} were in several files");
}

/// llama.cpp computes these models without their window (reference/llama_logits.py), so they are not written for it;
/// with one as long as the context they are.
#[test]
fn a_window_that_llama_cpp_leaves_out_is_refused() {
    let folder = Folder::new("idle-window");
    for (name, written) in [("mistral", false), ("phi3", true), ("olmo2", true)] {
        let case = fixtures("hf").into_iter().find(|case| case.ends_with(name)).unwrap();
        let case = Checkpoint::open(&case).unwrap();
        match convert(&case, &folder.0.join(format!("{name}.gguf")), Format::Gguf, &case.dtype()) {
            Ok(_) => assert!(written, "{name}"),
            Err(error) => assert!(!written && error.to_string().contains("it lacks window 4"), "{name}: {error}"),
        }
    }
}

/// What is written in the place of another model leaves nothing of it, whole or parted, and a failure leaves all of it.
/// Weights that an index does not name are another model's.
#[test]
fn a_model_takes_the_place_of_another_whole() {
    let folder = Folder::new("place");
    let (place, names) = (folder.0.join("it"), |path: &Path| {
        let mut all: Vec<String> =
            std::fs::read_dir(path).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        all.sort();
        all
    });
    let case = |name: &str| fixtures("hf").into_iter().find(|p| p.ends_with(name)).unwrap();
    let first = Checkpoint::open(&case("gpt2-text")).unwrap();
    let write = |source: &Checkpoint, shard_bytes: u64, format| {
        let model = Model::new(&source.config, Mode::Inspect { batch: 1, context: 1 }).unwrap();
        let values = |param: &limpid::model::Param| source.values(&model, param).unwrap().into_owned();
        let (config, tokenizer) = (&source.config, source.tokenizer.as_ref());
        save(&place, format, &Dtype::F32, &ModelData { tokenizer, shard_bytes, ..ModelData::new(config, &values) })
    };
    for parts in [4000, u64::MAX, 2000, 4000, u64::MAX] {
        write(&first, parts, Format::HuggingFace).unwrap();
        let (opened, files) = (Checkpoint::open(&place).unwrap(), names(&place));
        assert_eq!(opened.fingerprint().unwrap(), first.fingerprint().unwrap());
        assert_eq!(files.contains(&"model.safetensors".to_string()), parts == u64::MAX, "{files:?}");
        assert_eq!(files.iter().filter(|f| f.starts_with("model")).count() > 2, parts < u64::MAX, "{files:?}");
    }
    let before = names(&place);
    assert!(before.iter().any(|f| f.starts_with("merges") || f.starts_with("tokenizer")), "{before:?}");
    let llama = Checkpoint::open(&case("llama-gqa")).unwrap();
    assert!(llama.tokenizer.is_none());
    write(&llama, u64::MAX, Format::Limpid).unwrap();
    assert_eq!(names(&place), ["config.json", "model.safetensors"], "the other's tokenizer has gone too");
    assert_eq!(names(&folder.0), ["it"]);
    // what is no part of a model is not lost
    for (name, make) in [("notes.txt", true), ("state", false)] {
        let odd = place.join(name);
        if make {
            std::fs::write(&odd, "mine").unwrap()
        } else {
            std::fs::create_dir(&odd).unwrap()
        }
        let error = write(&first, u64::MAX, Format::Limpid).unwrap_err().to_string();
        assert!(error.contains(&format!("{name:?}, no part of a model, which would be lost")), "{error}");
        assert!(odd.exists() && Checkpoint::open(&place).is_ok());
        if make { std::fs::remove_file(&odd).unwrap() } else { std::fs::remove_dir(&odd).unwrap() }
    }
    // a failure, here of the tokenizer's size or the format, leaves the old one
    assert!(write(&Checkpoint::open(&case("bert-mlm")).unwrap(), u64::MAX, Format::Gguf).is_err());
    assert_eq!(Checkpoint::open(&place).unwrap().fingerprint().unwrap(), llama.fingerprint().unwrap());
    // two models in one folder are none
    write(&first, 4000, Format::HuggingFace).unwrap();
    std::fs::copy(case("gpt2-text").join("model.safetensors"), place.join("model.safetensors")).unwrap();
    let error = Checkpoint::open(&place).err().unwrap().to_string();
    assert!(error.contains("two models are in one folder") && error.contains("index.json"), "{error}");
}

fn old_bert(name: &str) -> String {
    name.trim_start_matches("bert.").replace("gamma", "weight").replace("beta", "bias")
}

/// A chat template that is not limpid's.
const CHAT: &str = "{{ bos_token }}{{ messages[0]['content'] }}\n";

fn convert(from: &Checkpoint, to: &Path, format: Format, dtype: &Dtype) -> Result<(), Box<dyn std::error::Error>> {
    let model = Model::new(&from.config, Mode::Inspect { batch: 1, context: 1 })?;
    let values = |param: &limpid::model::Param| from.values(&model, param).unwrap().into_owned();
    // small enough that some models are in several files, where a format has that
    let (config, tokenizer, chat_template) = (&from.config, from.tokenizer.as_ref(), Some(CHAT));
    let carried = Some(&from.carried);
    save(
        to,
        format,
        dtype,
        &ModelData { tokenizer, chat_template, carried, shard_bytes: 6000, ..ModelData::new(config, &values) },
    )?;
    Ok(())
}

/// What a folder has that limpid does not read travels through limpid's folder as it is, or is named; tokens that end a
/// text stop a generation.
#[test]
fn files_that_limpid_does_not_read_travel() {
    let folder = Folder::new("travel");
    let at = folder.0.join("hub");
    std::fs::create_dir_all(at.join("1_Pooling")).unwrap();
    std::fs::create_dir_all(at.join("onnx")).unwrap();
    let case = fixtures("hf").into_iter().find(|p| p.ends_with("gpt2-text")).unwrap();
    for entry in std::fs::read_dir(&case).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), at.join(entry.file_name())).unwrap();
    }
    let text = |path: &Path| std::fs::read_to_string(path).unwrap();
    let mut keys: serde_json::Value = serde_json::from_str(&text(&at.join("config.json"))).unwrap();
    for (key, value) in [
        ("unsloth_version", serde_json::json!("2025.1")),
        ("is_llama_config", true.into()),
        ("_num_labels", 5.into()),
        ("transformers.js_config", serde_json::json!({ "dtype": "q4" })),
        ("auto_map", serde_json::json!({ "AutoModel": "own.py" })),
        ("some_switch", false.into()),
        ("torch_dtype", "float32".into()),
    ] {
        keys[key] = value;
    }
    std::fs::write(at.join("config.json"), keys.to_string()).unwrap();
    let pool = r#"{"word_embedding_dimension": 8, "pooling_mode_lasttoken": true}"#;
    let modules = r#"[{"path": "", "type": "a.Transformer"}, {"path": "1_Pooling", "type": "a.Pooling"}]"#;
    let files = [
        ("generation_config.json", r#"{"eos_token_id": [7, 9], "top_k": 5}"#),
        ("special_tokens_map.json", r#"{"pad_token": "<|endoftext|>"}"#),
        ("added_tokens.json", "{}"),
        ("modules.json", modules),
        ("1_Pooling/config.json", pool),
        ("sentence_bert_config.json", r#"{"max_seq_length": 9}"#),
    ];
    files.iter().for_each(|(name, text)| std::fs::write(at.join(name), text).unwrap());
    std::fs::write(at.join("README.md"), "mine").unwrap();
    let first = Checkpoint::open(&at).unwrap();
    assert_eq!(
        first.carried.ignored,
        [
            "_num_labels",
            "auto_map",
            "is_llama_config",
            "some_switch",
            "summary_first_dropout",
            "summary_proj_to_labels",
            "summary_type",
            "summary_use_proj",
            "transformers.js_config",
            "unsloth_version"
        ]
    );
    let [along, left] = first.carried.parted(Format::Limpid.is_folder());
    assert!(files.iter().all(|(name, _)| along.iter().any(|file| file == name)), "{along:?}");
    assert_eq!(left, ["README.md", "onnx/", "text.json", "truth.safetensors"]);
    let [along, left] = first.carried.parted(Format::Gguf.is_folder());
    assert!(along.is_empty() && left.iter().any(|name| name == "generation_config.json"), "{left:?}");
    let (own, back) = (folder.0.join("own"), folder.0.join("back"));
    convert(&first, &own, Format::Limpid, &Dtype::F32).unwrap();
    let second = Checkpoint::open(&own).unwrap();
    assert_eq!(
        (second.end_tokens(), second.sentence_recipe().unwrap()),
        (vec![7, 9], first.sentence_recipe().unwrap())
    );
    assert!(second.tokenizer == first.tokenizer);
    convert(&second, &own, Format::Limpid, &Dtype::F32).unwrap(); // its own place
    convert(&second, &back, Format::HuggingFace, &Dtype::Bf16).unwrap();
    for (name, before) in files {
        assert_eq!(text(&back.join(name)), before, "{name}");
    }
    let found: serde_json::Value = serde_json::from_str(&text(&back.join("config.json"))).unwrap();
    let map = keys.as_object_mut().unwrap();
    map.remove("auto_map"); // the code is not taken along
    map.insert("torch_dtype".into(), "bfloat16".into());
    map.insert("dtype".into(), "bfloat16".into());
    assert_eq!(found, keys);
    // over what is there, with its own files and no others
    convert(&second, &back, Format::HuggingFace, &Dtype::F32).unwrap();
    std::fs::write(back.join("1_Pooling/notes.md"), "mine").unwrap();
    let error = convert(&second, &back, Format::HuggingFace, &Dtype::F32).unwrap_err().to_string();
    assert!(error.contains("\"1_Pooling\", no part of a model"), "{error}");
    // what belongs to the old tokenizer stays behind with it
    let [along, left] = first.carried.clone().without_tokenizer().parted(Format::Limpid.is_folder());
    assert!(along.contains(&"modules.json".into()) && !along.contains(&"generation_config.json".into()), "{along:?}");
    assert!(left.contains(&"generation_config.json".into()) && left.contains(&"vocab.json".into()), "{left:?}");
    // the second token of what would be written ends it, by the list
    use limpid::generate::{FinishReason, Options, Sampler};
    let greedy = Options { max_tokens: 4, sampler: Sampler::GREEDY, ..Options::default() };
    let ids = [1, 2, 3];
    let whole = limpid::Lm::open(&own).unwrap().generate_events(&ids, &greedy, &mut |_| true).unwrap().tokens;
    let end = *whole.iter().find(|id| **id != whole[0]).unwrap();
    let at_end = whole.iter().position(|id| *id == end).unwrap();
    let list = format!(r#"{{"eos_token_id": [279, {end}]}}"#);
    std::fs::write(own.join("generation_config.json"), list).unwrap();
    let ended = limpid::Lm::open(&own).unwrap().generate_events(&ids, &greedy, &mut |_| true).unwrap();
    assert_eq!((&ended.tokens[..], ended.finish_reason), (&whole[..at_end], FinishReason::EndOfText));
}

/// The vectors that sentence-transformers makes by its own files (`reference/sentence.py`).
#[test]
fn vectors_are_those_of_sentence_transformers() {
    let folder = Folder::new("sentence");
    let fixture = PathBuf::from(format!("{}/fixtures/sentence", env!("CARGO_MANIFEST_DIR")));
    let cases: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(fixture.join("cases.json")).unwrap()).unwrap();
    let (mut cut, mut worst, mut poolings) = (0, 0f32, 0);
    for (n, case) in cases.as_array().unwrap().iter().enumerate() {
        let at = folder.0.join(n.to_string());
        std::fs::create_dir_all(&at).unwrap();
        for name in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
            std::fs::copy(fixture.join(name), at.join(name)).unwrap();
        }
        for (name, text) in case["files"].as_object().unwrap() {
            let path = at.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text.as_str().unwrap()).unwrap();
        }
        // through limpid's own folder
        let own = folder.0.join(format!("{n}-own"));
        convert(&Checkpoint::open(&at).unwrap(), &own, Format::Limpid, &Dtype::F32).unwrap();
        let lm = limpid::Lm::open(&own).unwrap();
        let (recipe, pooling) = lm.sentence_recipe().unwrap().unwrap();
        // a GGUF file says which of three poolings it is, and nothing else
        let file = folder.0.join(format!("{n}.gguf"));
        convert(&Checkpoint::open(&own).unwrap(), &file, Format::Gguf, &Dtype::F32).unwrap();
        let there = limpid::Lm::open(&file).unwrap();
        let stated = there.sentence_recipe().unwrap();
        let known = ["mean", "cls", "lasttoken"].contains(&recipe.pooling.as_str());
        assert_eq!(stated.map(|(_, pooling)| pooling), Some(pooling).filter(|_| known), "case {n}");
        poolings += usize::from(known);
        for (text, wanted) in case["texts"].as_array().unwrap().iter().zip(case["vectors"].as_array().unwrap()) {
            let (ids, over) = lm.sentence_ids(text.as_str().unwrap(), &recipe).unwrap();
            cut += usize::from(over > 0);
            let vector = lm.embed_ids(&ids, pooling).unwrap();
            assert_eq!(there.embed_ids(&ids, pooling).unwrap(), vector, "case {n}");
            let vector = if recipe.normalized { limpid::embed::normalized(vector) } else { vector };
            for (x, wanted) in vector.iter().zip(wanted.as_array().unwrap()) {
                worst = worst.max((x - wanted.as_f64().unwrap() as f32).abs());
            }
            assert_eq!(vector.len(), 8);
            assert!(worst < 5e-6, "case {n}, {text}: {worst:.1e}");
        }
    }
    assert!(cut >= 2 && poolings > 5, "{cut} {poolings}");
    // what limpid has not is refused
    let ranks = folder.0.join("ranks.gguf");
    with_key(&folder.0.join("0.gguf"), &ranks, "bert.pooling_type", 4u32.into());
    let error = limpid::Lm::open(&ranks).unwrap().sentence_recipe().unwrap_err().to_string();
    assert!(error.contains("`bert.pooling_type` is 4: limpid has 1 (mean), 2 (cls) and 3 (last)"), "{error}");
    let at = folder.0.join("0");
    for (file, from, to, says) in [
        ("modules.json", "normalize.Normalize", "dense.Dense", "its modules are Transformer, Pooling, Dense"),
        ("1_Pooling/config.json", "\"cls\"", "[\"cls\", \"max\"]", "it pools in 2 ways (cls, max)"),
        ("1_Pooling/config.json", "\"cls\"", "\"attention\"", "unknown pooling `attention`"),
    ] {
        let whole = std::fs::read_to_string(at.join(file)).unwrap();
        std::fs::write(at.join(file), whole.replace(from, to)).unwrap();
        let error = limpid::Lm::open(&at).unwrap().sentence_recipe().unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
        // a GGUF file leaves out what it cannot say; a file that cannot be read is no reason to
        let out = folder.0.join("out.gguf");
        convert(&Checkpoint::open(&at).unwrap(), &out, Format::Gguf, &Dtype::F32).unwrap();
        assert_eq!(limpid::Lm::open(&out).unwrap().sentence_recipe().unwrap(), None, "{says}");
        std::fs::write(at.join(file), &whole[..whole.len() / 2]).unwrap();
        let error = convert(&Checkpoint::open(&at).unwrap(), &out, Format::Gguf, &Dtype::F32).unwrap_err().to_string();
        assert!(error.contains(file) && error.contains("it is not JSON"), "{error}");
        std::fs::write(at.join(file), whole).unwrap();
    }
}

fn llmc_file(name: &str) -> PathBuf {
    PathBuf::from(format!("{}/fixtures/llmc/{name}", env!("CARGO_MANIFEST_DIR")))
}

/// llm.c's own check of itself, against the state that PyTorch left: logits, loss, and the gradient of every parameter.
#[test]
fn llm_c_s_debug_state_is_reproduced() {
    let (header, _) = limpid::checkpoint::llmc::open(&llmc_file("model.bin")).unwrap();
    let state = limpid::checkpoint::llmc::open_state(&llmc_file("debug_state.bin"), &header).unwrap();
    let opened = Checkpoint::open(&llmc_file("model.bin")).unwrap();
    let mode = Mode::Inspect { batch: state.batch_size, context: state.context };
    let model = Model::new(&opened.config, mode).unwrap();
    let mut cpu = Cpu::new(&model, 2);
    opened.load(&model, &mut cpu).unwrap();
    let ids = |ids: &[i32]| ids.iter().map(|id| *id as u32).collect::<Vec<_>>();
    cpu.feed(&Batch::of_sequences(ids(&state.inputs), ids(&state.targets), state.context)).unwrap();
    cpu.forward(model.ops()).unwrap();
    cpu.backward(model.back()).unwrap();
    let apart = |got: &[f32], want: &[f32]| got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
    let want = state.store.get("logits").unwrap().values().unwrap();
    assert!(apart(&cpu.read(model.logits().unwrap()).unwrap(), &want) < 1e-5);
    let losses = cpu.read(model.losses().unwrap()).unwrap();
    assert!((losses.iter().sum::<f32>() / losses.len() as f32 - state.loss).abs() < 1e-5);
    let mut compared = 0;
    for param in &model.params {
        let (block, rest) = match param.name.strip_prefix("blocks.").and_then(|n| n.split_once('.')) {
            Some((i, rest)) => (format!(".{i}"), rest),
            None => (String::new(), param.name.as_str()),
        };
        let (name, kind) = rest.rsplit_once('.').unwrap();
        let theirs = match name {
            "embed" => "wte".to_string(),
            "pos_embed" => "wpe".to_string(),
            _ => {
                let short = match name {
                    "attn.qkv" => "qkv",
                    "attn.out" => "attproj",
                    "mlp.in" => "fc",
                    "mlp.out" => "fcproj",
                    "ln_final" => "lnf",
                    other => other,
                };
                format!("{short}{}{block}", &kind[..1])
            }
        };
        let want = state.store.get(&theirs).unwrap_or_else(|| panic!("no {theirs}")).values().unwrap();
        let got = cpu.read(param.region.grad()).unwrap();
        let off = apart(&got, &want[..got.len()]);
        assert!(off < 1e-5, "the gradient of {} is {off:e} from PyTorch's", param.name);
        compared += 1;
    }
    assert_eq!(compared, 4 + 12 * opened.config.n_layer);
}

/// Every array that llm.c has in its memory after a step, with all blocks of a kind in one, and its gradient.
#[test]
fn llm_c_s_activations_lie_as_there() {
    let (header, _) = limpid::checkpoint::llmc::open(&llmc_file("model.bin")).unwrap();
    let state = limpid::checkpoint::llmc::open_state(&llmc_file("debug_state.bin"), &header).unwrap();
    let opened = Checkpoint::open(&llmc_file("model.bin")).unwrap();
    let mode = Mode::Inspect { batch: state.batch_size, context: state.context };
    let model = Model::new(&opened.config, mode).unwrap();
    let mut cpu = cpu(&model);
    opened.load(&model, &mut *cpu).unwrap();
    let ids = |ids: &[i32]| ids.iter().map(|id| *id as u32).collect::<Vec<_>>();
    let batch = Batch::of_sequences(ids(&state.inputs), ids(&state.targets), state.context);
    let trace = Trace::run(&model, cpu, &batch, Keep::Gradients).unwrap();
    let own = limpid::trace::llmc_arrays(&trace).unwrap();
    let names = |list: &[&str]| list.iter().map(|name| name.to_string()).collect::<Vec<_>>();
    let forward: Vec<String> =
        own.iter().map(|array| array.name.clone()).filter(|name| !name.starts_with("grads_acts.")).collect();
    // the order of llm.c's memory, but for the final norm, whose statistics come first here
    let order = [
        "encoded",
        "ln1_mean",
        "ln1_rstd",
        "ln1",
        "qkv",
        "preatt",
        "att",
        "atty",
        "attproj",
        "residual2",
        "ln2_mean",
        "ln2_rstd",
        "ln2",
        "fch",
        "fch_gelu",
        "fcproj",
        "residual3",
        "lnf_mean",
        "lnf_rstd",
        "lnf",
        "logits",
        "probs",
        "losses",
    ];
    let (mut sorted, mut wanted) = (forward, names(&order));
    sorted.sort();
    wanted.sort();
    assert_eq!(sorted, wanted);
    let theirs = safetensors_file::open(&llmc_file("acts.safetensors")).unwrap();
    let mut lacking = vec![];
    for want in theirs.names().map(|name| theirs.get(name).unwrap()) {
        let Some(array) = own.iter().find(|array| array.name == want.name) else {
            lacking.push(want.name);
            continue;
        };
        assert_eq!(array.shape, want.shape, "{}", want.name);
        assert_eq!(array.axes.len(), array.shape.len());
        for (at, (own, theirs)) in array.values.iter().zip(want.values().unwrap().iter()).enumerate() {
            // where llm.c's mask hides, it writes no score
            let hidden = want.name == "preatt" && *own == f32::NEG_INFINITY;
            assert!(
                hidden || (own - theirs).abs() < 3e-6 * theirs.abs().max(1.0),
                "{}[{at}]: {own}, {theirs}",
                want.name
            );
        }
    }
    // what llm.c has room for and never writes, and what limpid computes without keeping it
    lacking.retain(|name| !name.contains("_mean") && !name.contains("_rstd"));
    assert_eq!(lacking, names(&["grads_acts.probs"]));
}

/// A training with `windows` sequential is llm.c's own, step by step and into the next epoch.
#[test]
fn llm_c_s_training_is_followed() {
    let run: serde_json::Value = serde_json::from_slice(&std::fs::read(llmc_file("train.json")).unwrap()).unwrap();
    let [batch_size, context] = ["batch_size", "context"].map(|key| run[key].as_u64().unwrap() as usize);
    let windows = WindowOrder::Sequential;
    let recipe = Recipe { batch_size, context, windows, ..Recipe::preset("llmc-gpt2").unwrap() };
    let tokens = Tokens::of_shards(vec![Shard::open(&llmc_file("tokens.bin"), None).unwrap()]);
    let batches = recipe.batches(&tokens, Objective::NextToken).unwrap();
    let opened = Checkpoint::open(&llmc_file("model.bin")).unwrap();
    let model = Model::new(&opened.config, Mode::Train { batch: batch_size, context }).unwrap();
    let backend = cpu(&model);
    let mut trainer = Trainer::from(&opened, model, backend, recipe).unwrap();
    let losses: Vec<f64> = run["losses"].as_array().unwrap().iter().map(|loss| loss.as_f64().unwrap()).collect();
    assert!(losses.len() > (tokens.len() - 1) / (batch_size * context));
    for (n, want) in losses.into_iter().enumerate() {
        let loss = trainer.step(&batches).unwrap().loss.unwrap();
        // both are sums of f32 in another order
        assert!((loss - want).abs() < 2e-6, "step {n}: {loss}, llm.c's {want}");
    }
}

#[test]
fn llm_c_s_other_files_are_read() {
    let store = safetensors_file::open(&llmc_file("truth.safetensors")).unwrap();
    let get = |name: &str| store.get(name).unwrap().values().unwrap().into_owned();
    let [rows, length] = store.get("tokens").unwrap().shape[..] else { panic!() };
    let ids: Vec<u32> = get("tokens").iter().map(|v| *v as u32).collect();
    let batch = Batch::of_sequences(ids.clone(), vec![0; rows * length], length);
    for (file, logits) in [("model.bin", "logits"), ("model_bf16.bin", "logits_bf16")] {
        let opened = Checkpoint::open(&llmc_file(file)).unwrap();
        assert_eq!((opened.format, opened.config.vocab_size), (Format::Llmc, 40));
        let model = Model::new(&opened.config, Mode::Inspect { batch: rows, context: length }).unwrap();
        let mut cpu = Cpu::new(&model, 1);
        opened.load(&model, &mut cpu).unwrap();
        cpu.feed(&batch).unwrap();
        cpu.forward(model.ops()).unwrap();
        let (got, want) = (cpu.read(model.logits().unwrap()).unwrap(), get(logits));
        let off = got.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
        assert!(off < 1e-5, "{file}: {off:e}");
    }
    let shard = Shard::open(&llmc_file("tokens.bin"), None).unwrap();
    assert!(shard.len() > 100 && (0..shard.len()).all(|at| shard.id(at) < 40));
}

/// What a model has that no other program can say is named.
#[test]
fn what_another_program_cannot_say_is_named() {
    use limpid::config::*;
    let nano = Config { activation: Activation::GeluTanh, ..Config::preset("nanogpt-cpu").unwrap() };
    let nano = Config { vocab_size: 11, d_model: 16, d_ff: 64, n_layer: 1, ..nano };
    let llama = Config { n_kv_head: Some(1), d_ff: 24, ..Config::preset("nano-llama").unwrap() };
    let llama = Config { vocab_size: 11, d_model: 16, n_layer: 1, ..llama };
    let folder = Folder::new("refused");
    let refused = |config: &Config, format: Format, dtype: &Dtype| {
        let values = |param: &limpid::model::Param| vec![0.0; param.region.len()];
        let source = ModelData::new(config, &values);
        let path = folder.0.join(format!("out-{format}"));
        let error = save(&path, format, dtype, &source).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(!path.exists() || error.is_empty(), "{error}");
        error
    };
    for (config, format, says) in [
        (Config { norm: NormKind::LayerStd, ..nano.clone() }, Format::HuggingFace, "norm layer-std"),
        (Config { head_bias: true, ..nano.clone() }, Format::HuggingFace, "head_bias true"),
        (
            Config { leaky_slope: 0.2, activation: Activation::LeakyRelu, ..nano.clone() },
            Format::HuggingFace,
            "leaky_slope",
        ),
        (Config { mask: Mask::None, ..nano.clone() }, Format::HuggingFace, "mask none"),
        (
            Config { activation: Activation::GeluErf, ..nano.clone() },
            Format::Gguf,
            "activation gelu-erf; one trained with activation gelu-tanh can be written so",
        ),
        (
            Config { activation: Activation::Relu, ..llama.clone() },
            Format::Gguf,
            "activation relu; one trained with activation silu",
        ),
        (
            Config { attention_scale: false, tied_head: false, ..nano.clone() },
            Format::Llmc,
            "tied_head false, attention_scale false; one trained with tied_head true, attention_scale true can",
        ),
        (llama.clone(), Format::Llmc, "positions rotary, norm rms, ffn_gated true, n_kv_head"),
        (Config { lm_head: false, ..nano }, Format::HuggingFace, "lm_head false"),
    ] {
        let error = refused(&config, format, &Dtype::F32);
        assert!(error.contains("cannot express this model") && error.contains(says), "{says}: {error}");
    }
    for format in [Format::Limpid, Format::HuggingFace, Format::Llmc] {
        assert!(refused(&llama, format, &Dtype::Blocks(Quant::Q8_0)).contains("only GGUF has Q8_0"));
    }
}

/// Notes what arrives as f32s.
struct Widened {
    inner: Cpu,
    regions: Vec<Region>,
}

impl Wrapper for Widened {
    fn inner(&self) -> &dyn Backend {
        &self.inner
    }
    fn inner_mut(&mut self) -> &mut dyn Backend {
        &mut self.inner
    }
    fn upload(&mut self, region: Region, values: Values) -> limpid::backend::Result<()> {
        self.regions.extend((values.element == Element::F32).then_some(region));
        self.inner.upload(region, values)
    }
}

/// Quantised weights run as they are, and answer as f32s of the same values do, bit for bit: sessions, scores, traces.
/// A mixture of types in one parameter too: queries, keys and values have tensors of their own in such files.
#[test]
fn quantised_weights_answer_as_their_values() {
    use crate::common::sequences::Sequences;
    use limpid::engine::DecoderLimits;
    use limpid::{Lm, Machine};
    let folder = Folder::new("quantised");
    let sizes = Config { vocab_size: 70, context_length: 16, n_layer: 2, ..Config::preset("nanogpt-cpu").unwrap() };
    let llama = Config { vocab_size: 70, context_length: 16, n_layer: 2, ..Config::preset("nano-llama").unwrap() };
    let llama = Config { d_model: 256, n_head: 4, n_kv_head: Some(2), d_ff: 512, ..llama };
    for (name, config) in [
        ("llama", llama),
        ("gpt2", Config { d_model: 96, n_head: 3, activation: limpid::config::Activation::GeluTanh, ..sizes }),
    ] {
        let model = Model::new(&config, Mode::Inspect { batch: 1, context: 1 }).unwrap();
        let values = |param: &limpid::model::Param| -> Vec<f32> {
            let site = limpid::numeric::random::site(&param.name);
            (0..param.region.len()).map(|i| limpid::numeric::random::normal(5, site, i as u64) as f32 * 0.2).collect()
        };
        let source = ModelData::new(&config, &values);
        for quant in [Quant::Q8_0, Quant::Q4_0, Quant::Q4_K] {
            let [small, wide] = ["small", "wide"].map(|n| folder.0.join(format!("{name}-{quant}-{n}.gguf")));
            save(&small, Format::Gguf, &Dtype::Blocks(quant), &source).unwrap();
            let opened = Checkpoint::open(&small).unwrap();
            let own = Model::new(&opened.config, Mode::Inspect { batch: 1, context: 1 }).unwrap();
            let mut arrived = Widened { inner: Cpu::new(&own, 1), regions: vec![] };
            opened.load(&own, &mut arrived).unwrap();
            for param in own.params.iter().filter(|p| p.is_matrix() && p.role != ParamRole::Position) {
                let whole = config.d_model.is_multiple_of(quant.sizes().0);
                assert!(!whole || !arrived.regions.contains(&param.region), "{name} {quant}: {} in f32", param.name);
            }
            let quantised = Lm::open(&small).unwrap().with_machine(Machine::cpu(2));
            quantised.save_as(&wide, Format::Gguf, &Dtype::F32).unwrap();
            let plain = Lm::open(&wide).unwrap().with_machine(Machine::cpu(1));
            let ids: Vec<u32> = (0..13).map(|i| i * 29 % 70).collect();
            let logits = |lm: &Lm, parts: &[&[u32]]| -> Vec<Vec<f32>> {
                let decoder = lm.decoder(DecoderLimits::of_sequences(lm.config(), 1, 256)).unwrap();
                let mut session = Sequences::on(decoder);
                let id = session.open();
                let mut after = |part: &&[u32]| {
                    session.feed(id, part).unwrap();
                    session.logits(id).to_vec()
                };
                parts.iter().map(&mut after).collect()
            };
            let bits = |x: &[f32]| x.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            let run = |lm: &Lm| {
                let mut all = logits(lm, &[&ids[..1], &ids[1..9], &ids[9..11], &ids[11..]]);
                all.push(lm.distribution(&ids, &[], 5).unwrap());
                all.iter().map(|x| bits(x)).collect::<Vec<_>>()
            };
            assert!(run(&quantised) == run(&plain), "{name} {quant}");

            // rounded to eight bits: other digits, near these, and the same however they are computed
            let exact = logits(&quantised, &[&ids]);
            let machine = |threads| Machine { precision: Precision::Int8, ..Machine::cpu(threads) };
            let rounded = quantised.with_machine(machine(2));
            let (one, of) = (run(&rounded), logits(&rounded, &[&ids]));
            assert!(bits(&of[0]) == one[3] && of != exact, "{name} {quant}");
            let spread = exact[0].iter().map(|v| v.abs()).fold(0.0, f32::max);
            let far = exact[0].iter().zip(&of[0]).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(far < 0.05 * spread, "{name} {quant}: {far} of {spread}");
            let mut quantised = rounded.with_machine(machine(1));
            for level in Level::available() {
                quantised = quantised.with_machine(Machine { level, ..machine(1) });
                assert!(run(&quantised) == one, "{name} {quant} at {level}");
            }
            let refused = machine(1).start(&Model::new(&config, Mode::Train { batch: 1, context: 4 }).unwrap());
            assert!(refused.err().unwrap().to_string().contains("training takes f32 or bf16"));
            for param in &model.params {
                let [a, b] = [&quantised, &plain].map(|lm| lm.values(&model, param).unwrap().into_owned());
                assert!(a == b, "{name} {quant}: {}", param.name);
            }
            let refused = Machine::cache_element(Precision::Int8).unwrap_err().to_string();
            assert!(
                refused.starts_with("unknown type of a KV cache `int8`") && refused.contains("f32, bf16"),
                "{refused}"
            );
        }
    }
}

/// Damaged configurations beside sound weights: an error or a model, never a panic, nor a table as large as a number
/// says.
#[test]
#[ignore = "gate"]
fn damaged_configurations_do_no_harm() {
    use limpid::numeric::random::below;
    let folder = Folder::new("damaged");
    let mut opened = 0;
    for case in fixtures("hf") {
        let text = std::fs::read_to_string(case.join("config.json")).unwrap();
        for entry in std::fs::read_dir(&case).unwrap().map(|e| e.unwrap().path()) {
            std::fs::copy(&entry, folder.0.join(entry.file_name().unwrap())).unwrap();
        }
        let numbers =
            ["0", "-1", "1e999", "null", "\"x\"", "[]", "18446744073709551615", "4294967296", "1000000007", "2.5"];
        for round in 0..60 {
            let draw = |what: u64, n: usize| below(round, what, text.len() as u64, n as u64) as usize;
            let mut value: serde_json::Value = serde_json::from_str(&text).unwrap();
            let map = value.as_object_mut().unwrap();
            let key = map.keys().nth(draw(1, map.len())).unwrap().clone();
            match draw(2, 3) {
                0 => drop(map.remove(&key)),
                _ => drop(map.insert(key, serde_json::from_str(numbers[draw(3, numbers.len())]).unwrap_or_default())),
            }
            let mut broken = value.to_string();
            if draw(4, 4) == 0 {
                broken.truncate(draw(5, broken.len()));
            }
            std::fs::write(folder.0.join("config.json"), &broken).unwrap();
            if let Ok(model) = Checkpoint::open(&folder.0) {
                opened += 1;
                assert!(model.config.n_layer < 10, "{broken}");
            }
        }
        std::fs::remove_dir_all(&folder.0).unwrap();
        std::fs::create_dir_all(&folder.0).unwrap();
    }
    let all = 60 * fixtures("hf").len();
    assert!((all / 20..all * 7 / 8).contains(&opened), "{opened} of {all} opened");
}

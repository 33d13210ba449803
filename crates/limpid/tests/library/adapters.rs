//! Adapters in files: PEFT's own give PEFT's logits (`reference/peft_lora.py`), merged is unmerged within rounding in
//! every plan, what is saved is read back bit for bit, and an adapter of another model is refused with both named.

use crate::common;
use crate::common::folder::Folder;
use limpid::Machine;
use limpid::backend::{Backend, Cpu};
use limpid::checkpoint::adapter::{self, Base};
use limpid::checkpoint::store::Dtype;
use limpid::checkpoint::{self, Checkpoint, Format, ModelData, safetensors_file, save};
use limpid::config::{Activation, Config, NormKind, NormPlace, Positions, QkNorm};
use limpid::data::Tokens;
use limpid::matrix::Precision;
use limpid::memory::{self, Placement};
use limpid::model::{Lora, Mode, Model, Tuning};
use limpid::numeric::blocks::Quant;
use limpid::numeric::random;
use limpid::numeric::simd::Level;
use limpid::ops::Batch;
use limpid::tokenizer::{Order, Tokenizer, TokenizerKind};
use limpid::train::{Batches, Control, Objective, Recipe, Run, RunData, TrainEvent, Trainer, WindowShape};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

const TOKENS: usize = 8;

fn batch(config: &Config) -> Batch {
    let ids = |site: &str| common::ids(site, 2 * TOKENS, config.vocab_size);
    Batch::of_sequences(ids("tokens"), ids("targets"), TOKENS)
}

/// One config that HuggingFace calls GPT-2, one it calls Llama, one it has no name for.
fn configs() -> [Config; 3] {
    let small = Config {
        vocab_size: 37,
        context_length: 16,
        d_model: 24,
        n_head: 4,
        n_layer: 2,
        d_ff: 40,
        ..Config::default()
    };
    let llama = Config {
        positions: Positions::Rotary,
        norm: NormKind::Rms,
        norm_offset: false,
        attention_bias: false,
        ffn_bias: false,
        ffn_gated: true,
        activation: Activation::Silu,
        n_kv_head: Some(2),
        ..small.clone()
    };
    let odd = Config { norm_place: NormPlace::Post, activation: Activation::Sigmoid, ..small.clone() };
    [small, llama, odd]
}

fn lora(targets: &[&str]) -> Tuning {
    let targets = targets.iter().map(|t| t.to_string()).collect();
    Tuning { lora: Some(Lora { rank: 3, alpha: 5.0, dropout: 0.1, targets }), ..Tuning::default() }
}

/// Values of no special kind.
fn values(name: &str, n: usize, seed: u64) -> Vec<f32> {
    (0..n as u64).map(|i| (0.3 * random::normal(seed, random::site(name), i)) as f32).collect()
}

/// Begins an adapter's folder, as a run does.
fn begin(folder: &Path, model: &Model, base: &Base) {
    fs::create_dir_all(folder).unwrap();
    adapter::describe(model, base).iter().for_each(|(name, text)| fs::write(folder.join(name), text).unwrap());
}

fn made_for(base: &Checkpoint) -> Base {
    Base::new(base.path.clone(), base).unwrap()
}

/// A random model in a folder.
fn base(path: &Path, config: &Config, seed: u64) -> Checkpoint {
    let values = |param: &limpid::model::Param| values(&param.name, param.region.len(), seed);
    let source = ModelData::new(config, &values);
    save(path, Format::Limpid, &Dtype::F32, &source).unwrap();
    Checkpoint::open(path).unwrap()
}

/// A random adapter of `base`, in a model built for `mode`.
fn adapted(base: &Checkpoint, tuning: &Tuning, mode: Mode) -> (Model, Cpu) {
    let model = Model::tuned(&base.config, mode, tuning).unwrap();
    let mut cpu = Cpu::new(&model, 2);
    base.load(&model, &mut cpu).unwrap();
    for param in model.params.iter().filter(|p| p.is_adapter()) {
        cpu.write(param.region, &values(&param.name, param.region.len(), 3)).unwrap();
    }
    (model, cpu)
}

fn losses(model: &Model, cpu: &mut Cpu) -> Vec<f32> {
    cpu.feed(&batch(&model.config)).unwrap();
    cpu.forward(model.ops()).unwrap();
    cpu.read(model.losses().unwrap()).unwrap()
}

/// The logits of the last row of a sequence, with a cache, one token at a time.
fn decoded(model: &Model, cpu: &mut Cpu) -> Vec<f32> {
    for (i, token) in batch(&model.config).tokens[..TOKENS].iter().enumerate() {
        let mut one = Batch::of_sequences(vec![*token], vec![], 1);
        (one.positions[0], one.spans[0].past, one.spans[0].valid) = (i as u32, i, i + 1);
        (one.outputs, one.blocks) = (vec![0], vec![0]);
        cpu.feed(&one).unwrap();
        cpu.forward(model.ops()).unwrap();
    }
    cpu.read(model.logits().unwrap()).unwrap()
}

#[test]
fn merged_is_unmerged_within_rounding_and_comes_back_bit_for_bit() {
    let score = Mode::Score { batch: 2, context: TOKENS };
    let decode = Mode::Decode { rows: 1, outputs: 1, blocks: 1 };
    for (i, config) in configs().iter().enumerate() {
        for (j, targets) in [&["attention", "feed-forward"][..], &["blocks.1.attn.out"]].iter().enumerate() {
            let folder = Folder::new(&format!("merged{i}{j}"));
            let base = base(&folder.0.join("base"), config, 1);
            let run = folder.0.join("run");
            let (model, mut cpu) = adapted(&base, &lora(targets), score);
            begin(&run, &model, &made_for(&base));
            checkpoint::save_weights(&run, &model, &cpu, 1).unwrap();
            let unmerged = losses(&model, &mut cpu);

            let opened = Checkpoint::open(&run).unwrap();
            let load = |mode| {
                let model = Model::new(config, mode).unwrap();
                let mut cpu = Cpu::new(&model, 2);
                opened.load(&model, &mut cpu).unwrap();
                (model, cpu)
            };
            let (plain, mut merged) = load(score);
            let wide = |values: Vec<f32>| common::wide(&values);
            let got = losses(&plain, &mut merged);
            common::assert_close("losses", &wide(got.clone()), &wide(unmerged.clone()), 1e-5);
            let (own, mut beside) = adapted(&base, &lora(targets), decode);
            let (plain, mut merged) = load(decode);
            let (a, b) = (decoded(&own, &mut beside), decoded(&plain, &mut merged));
            common::assert_close("decoded logits", &wide(b), &wide(a), 1e-5);

            // an adapter whose B is zero is not there, to the bit; a random one is
            let mut plain = Cpu::new(&model, 2);
            base.load(&model, &mut plain).unwrap();
            let without = Model::new(config, score).unwrap();
            let mut bare = Cpu::new(&without, 2);
            base.load(&without, &mut bare).unwrap();
            let bare = losses(&without, &mut bare);
            assert_eq!(losses(&model, &mut plain), bare);
            assert!(unmerged.iter().zip(&bare).any(|(a, b)| (a - b).abs() > 1e-2));

            checkpoint::load_weights(&run, &model, &mut plain).unwrap();
            for param in model.params.iter().filter(|p| p.is_adapter()) {
                assert_eq!(plain.read(param.region).unwrap(), cpu.read(param.region).unwrap(), "{}", param.name);
            }
            assert_eq!(losses(&model, &mut plain), unmerged);
        }
    }
}

/// An adapter whose files name no model, or one that is not there, is for the model that is named beside it.
#[test]
fn adapters_that_name_no_model_open_with_one() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let folder = Folder::new("unnamed");
    let mut opened = 0;
    for entry in fs::read_dir(fixtures.join("peft")).unwrap() {
        let entry = entry.unwrap();
        let (from, model) = (entry.path(), fixtures.join("hf").join(entry.file_name()));
        if !model.is_dir() {
            continue;
        }
        fs::copy(from.join("adapter_model.safetensors"), folder.0.join("adapter_model.safetensors")).unwrap();
        let text = fs::read_to_string(from.join("adapter_config.json")).unwrap();
        let usual = Checkpoint::open(&model).unwrap().with_adapter(&from).unwrap();
        let outline = Model::new(&usual.config, Mode::Inspect { batch: 1, context: 1 }).unwrap();
        for base in [None, Some(json!("")), Some(Value::Null), Some(json!("somebody/model"))] {
            let mut config: Value = serde_json::from_str(&text).unwrap();
            config.as_object_mut().unwrap().remove("base_model_name_or_path");
            if let Some(base) = &base {
                config["base_model_name_or_path"] = base.clone();
            }
            fs::write(folder.0.join("adapter_config.json"), config.to_string()).unwrap();
            let own =
                Checkpoint::open(&model).unwrap().with_adapter(&folder.0).unwrap_or_else(|e| panic!("{base:?}: {e}"));
            for param in &outline.params {
                assert_eq!(
                    own.values(&outline, param).unwrap(),
                    usual.values(&outline, param).unwrap(),
                    "{}",
                    param.name
                );
            }
            let error = Checkpoint::open(&folder.0).err().unwrap().to_string();
            let wanted =
                if base == Some(json!("somebody/model")) { "which is not there" } else { "which model it is for" };
            assert!(error.contains(wanted), "{base:?}: {error}");
            opened += 1;
        }
    }
    assert!(opened >= 16, "{opened}");
}

#[test]
fn adapters_of_peft_give_its_logits() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/peft");
    let mut cases: Vec<PathBuf> = fs::read_dir(fixtures).unwrap().map(|e| e.unwrap().path()).collect();
    cases.sort();
    assert!(cases.len() >= 4);
    for case in cases {
        let truth = safetensors_file::open(&case.join("truth.safetensors")).unwrap();
        let get = |name: &str| truth.get(name).unwrap().values().unwrap().into_owned();
        let tokens: Vec<u32> = get("tokens").iter().map(|v| *v as u32).collect();
        let opened = Checkpoint::open(&case).unwrap(); // adapter_config.json says where the model is
        let model = Model::new(&opened.config, Mode::Inspect { batch: 1, context: tokens.len() }).unwrap();
        let mut cpu = Cpu::new(&model, 2);
        opened.load(&model, &mut cpu).unwrap();
        let targets = vec![0; tokens.len()];
        cpu.feed(&Batch::of_sequences(tokens.clone(), targets, tokens.len())).unwrap();
        cpu.forward(model.ops()).unwrap();
        let (got, want) = (cpu.read(model.logits().unwrap()).unwrap(), get("logits"));
        let worst = common::assert_close(&case.display().to_string(), &common::wide(&got), &common::wide(&want), 1e-5);
        println!("{}: {worst:.1e}", case.display());
    }
}

#[test]
fn an_adapter_of_another_model_is_refused_with_both_named() {
    let folder = Folder::new("other");
    let path = |name: &str| folder.0.join(name);
    let [config, llama, _] = configs();
    let score = Mode::Score { batch: 2, context: TOKENS };
    let own = base(&path("own"), &config, 1);
    let (model, cpu) = adapted(&own, &lora(&["attention"]), score);
    begin(&path("run"), &model, &made_for(&own));
    checkpoint::save_weights(&path("run"), &model, &cpu, 1).unwrap();
    let refused = |base: Checkpoint| base.with_adapter(&path("run")).err().expect("refused").to_string();
    let has =
        |message: &str, words: &[&str]| words.iter().for_each(|w| assert!(message.contains(w), "{message} lacks {w}"));

    // the same sizes, other weights
    let message = refused(base(&path("twin"), &config, 2));
    has(&message, &["/run", "was made for the model", "/own", "/twin is another"]);
    // without base.json, names and shapes decide
    fs::remove_file(path("run/base.json")).unwrap();
    assert!(base(&path("twin"), &config, 2).with_adapter(&path("run")).is_ok());
    let message = refused(base(&path("wide"), &Config { d_model: 32, ..config.clone() }, 1));
    has(
        &message,
        &["transformer.h.0.attn.c_attn.lora_A.weight` is [3, 24]", "blocks.0.attn.qkv.weight", "[3, 32]", "/wide"],
    );
    let message = refused(base(&path("shallow"), &Config { n_layer: 1, ..config.clone() }, 1));
    has(&message, &["adapts `transformer.h.1.attn.c_attn`", "made for another model than", "/shallow"]);
    let message = refused(base(&path("llama"), &llama, 1));
    has(&message, &["made for another model than", "/llama"]);
    // its model is gone
    fs::rename(path("own"), path("moved")).unwrap();
    let message = Checkpoint::open(&path("run")).err().expect("refused").to_string();
    has(&message, &["is an adapter of the model", "/own, which is not there: open that model where it is"]);
    assert!(Checkpoint::open(&path("moved")).unwrap().with_adapter(&path("run")).is_ok());

    // what PEFT has and limpid has not
    let file = path("run/adapter_config.json");
    let text = fs::read_to_string(&file).unwrap();
    let options = [
        ("use_rslora", "true"),
        ("use_dora", "true"),
        ("modules_to_save", "[\"lm_head\"]"),
        ("bias", "\"all\""),
        ("init_lora_weights", "\"pissa\""),
        ("peft_type", "\"IA3\""),
        ("something_new", "3"),
    ];
    for (key, value) in options {
        let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
        config[key] = serde_json::from_str(value).unwrap();
        fs::write(&file, config.to_string()).unwrap();
        let message =
            Checkpoint::open(&path("moved")).unwrap().with_adapter(&path("run")).err().expect(key).to_string();
        has(&message, &["adapter_config.json", &format!("`{key}` is "), "plain LoRA only"]);
    }
    // patterns that are no names, that two keys answer, that have no number, or another than the tensors
    for (key, value, says) in [
        ("rank_pattern", r#"{"h.*c_attn": 3}"#, "names of modules and their ends only"),
        ("alpha_pattern", r#"{"c_attn": 3, "0.attn.c_attn": 4}"#, "several keys of `alpha_pattern`"),
        ("alpha_pattern", r#"{"c_attn": "much"}"#, "has no number"),
        ("rank_pattern", r#"{"c_attn": 0}"#, "has no number"),
        ("rank_pattern", r#"{"c_attn": 4}"#, "it must be [4, 24]"),
    ] {
        let mut config: Value = serde_json::from_str(&text).unwrap();
        config[key] = serde_json::from_str(value).unwrap();
        fs::write(&file, config.to_string()).unwrap();
        has(&refused(Checkpoint::open(&path("moved")).unwrap()), &[says]);
    }
}

/// What a model computes for some tokens: logits, or the hidden states of one without a head.
fn outputs(model: &Model, cpu: &mut Cpu) -> Vec<f32> {
    let ids = common::ids("tokens", TOKENS, model.config.vocab_size);
    cpu.feed(&Batch::of_sequences(ids, vec![0; TOKENS], TOKENS)).unwrap();
    cpu.forward(model.ops()).unwrap();
    cpu.read(model.logits().unwrap_or_else(|| model.ops().last().unwrap().output())).unwrap()
}

/// The same of a model in files.
fn outputs_of(files: &Checkpoint) -> Vec<f32> {
    let model = Model::new(&files.config, Mode::Inspect { batch: 1, context: TOKENS }).unwrap();
    let mut cpu = Cpu::new(&model, 2);
    files.load(&model, &mut cpu).unwrap();
    outputs(&model, &mut cpu)
}

/// What PEFT does, which knows nothing but names: adds alpha / r B A to the base's own tensor of every target, and
/// writes the result, with the base's other files, to `to`.
fn add_as_peft_does(base: &Checkpoint, adapter: &Path, to: &Path) {
    let config: Value =
        serde_json::from_str(&fs::read_to_string(adapter.join("adapter_config.json")).unwrap()).unwrap();
    let matrices = safetensors_file::open(&adapter.join("adapter_model.safetensors")).unwrap();
    let get = |name: String| matrices.get(&name).unwrap_or_else(|| panic!("no {name}"));
    let store = base.store();
    let mut all: Vec<(String, Vec<usize>, Vec<f32>)> = store
        .names()
        .map(|name| store.get(name).unwrap())
        .filter(|tensor| !matches!(tensor.dtype, Dtype::Other(_))) // index tables
        .map(|tensor| (tensor.name.into(), tensor.shape.to_vec(), tensor.values().unwrap().into_owned()))
        .collect();
    let targets = config["target_modules"].as_array().unwrap();
    assert_eq!(matrices.names().count(), 2 * targets.len(), "no matrix is left over");
    for target in targets {
        let target = target.as_str().unwrap();
        // files of a model without its head, or compiled, have other prefixes than the model in memory
        let own = format!("{target}.weight");
        let ends = |long: &str, short: &str| long == short || long.ends_with(&format!(".{short}"));
        let mut found = all.iter_mut().filter(|(name, ..)| ends(name, &own) || ends(&own, name));
        let (Some((_, shape, values)), None) = (found.next(), found.next()) else {
            panic!("{}: {target} is not one of its modules", base.path.display())
        };
        let [a, b] = ["A", "B"].map(|part| get(format!("base_model.model.{target}.lora_{part}.weight")));
        let number = |key: &str, pattern: &str| config[pattern].get(target).unwrap_or(&config[key]).as_f64().unwrap();
        let (rank, alpha) = (number("r", "rank_pattern") as usize, number("lora_alpha", "alpha_pattern"));
        let transposed = config["fan_in_fan_out"] == true;
        let [outs, ins] = if transposed { [shape[1], shape[0]] } else { [shape[0], shape[1]] };
        assert_eq!((a.shape, b.shape), (&[rank, ins][..], &[outs, rank][..]), "{}: {target}", base.path.display());
        let (a, b) = (a.values().unwrap(), b.values().unwrap());
        for (i, j) in (0..outs).flat_map(|i| (0..ins).map(move |j| (i, j))) {
            let sum: f64 = (0..rank).map(|k| f64::from(b[i * rank + k]) * f64::from(a[k * ins + j])).sum();
            let at = if transposed { j * outs + i } else { i * ins + j };
            values[at] = (f64::from(values[at]) + alpha / rank as f64 * sum) as f32;
        }
    }
    fs::create_dir_all(to).unwrap();
    fs::copy(base.path.join("config.json"), to.join("config.json")).unwrap();
    let arrays: Vec<checkpoint::NamedArray> =
        all.iter().map(|(name, shape, values)| checkpoint::NamedArray { name, axes: &[], shape, values }).collect();
    checkpoint::write_arrays(&to.join("model.safetensors"), &arrays).unwrap();
}

/// Adapters that limpid trains on a model of any family have the names, shapes and order of rows of the model's own
/// modules, also where one module is several products here.
#[test]
#[ignore = "gate"]
fn adapters_of_every_family_fit_the_modules_of_their_base() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/hf");
    let mut compared = 0;
    for entry in fs::read_dir(fixtures).unwrap() {
        let place = entry.unwrap().path();
        let base = Checkpoint::open(&place).unwrap();
        let plain = outputs_of(&base);
        for targets in [&["attention", "feed-forward"][..], &["*.mlp.in"]] {
            let folder = Folder::new("family");
            let (run, sum) = (folder.0.join("run"), folder.0.join("sum"));
            let (model, mut cpu) = adapted(&base, &lora(targets), Mode::Inspect { batch: 1, context: TOKENS });
            begin(&run, &model, &made_for(&base));
            checkpoint::save_weights(&run, &model, &cpu, 1).unwrap();
            add_as_peft_does(&base, &run, &sum);
            let want = common::wide(&outputs(&model, &mut cpu));
            assert!(plain.iter().zip(&want).any(|(a, b)| (f64::from(*a) - b).abs() > 1e-3), "{}", place.display());
            for files in [&sum, &run] {
                let found = outputs_of(&Checkpoint::open(files).unwrap());
                common::assert_close(&format!("{}: {files:?}", place.display()), &common::wide(&found), &want, 1e-4);
            }
            // and what is read to be trained further is what was written
            let mut other = Cpu::new(&model, 2);
            base.load(&model, &mut other).unwrap();
            checkpoint::load_weights(&run, &model, &mut other).unwrap();
            for param in model.params.iter().filter(|p| p.is_adapter()) {
                assert_eq!(other.read(param.region).unwrap(), cpu.read(param.region).unwrap(), "{}", param.name);
            }
            compared += 1;
        }
    }
    assert!(compared > 200, "{compared}");
}

/// An adapter opens with the model that it was trained on, in any format and type, and with no other: not of another
/// seed, with another single weight, or with the adapter merged already. Models without gains and biases have nothing
/// but matrices.
#[test]
#[ignore = "gate"]
fn an_adapter_is_for_the_values_of_its_base() {
    let [gpt2, llama, odd] = configs();
    let bare = |config: Config| Config {
        norm_gain: false,
        norm_offset: false,
        attention_bias: false,
        attention_out_bias: Some(false),
        ffn_bias: false,
        ..config
    };
    let nanochat = Config { qk_norm: QkNorm::HeadPlain, ffn_gated: false, ..bare(llama.clone()) };
    let olmo = Config { norm: NormKind::Layer, ..bare(llama.clone()) };
    for (i, config) in [bare(gpt2.clone()), nanochat, olmo, gpt2, llama, odd].into_iter().enumerate() {
        let folder = Folder::new(&format!("values{i}"));
        let path = |name: &str| folder.0.join(name);
        let own = base(&path("own"), &config, 1);
        let (model, cpu) = adapted(&own, &lora(&["attention"]), Mode::Score { batch: 2, context: TOKENS });
        begin(&path("run"), &model, &made_for(&own));
        checkpoint::save_weights(&path("run"), &model, &cpu, 1).unwrap();
        let outline = Model::new(&config, Mode::Inspect { batch: 1, context: 1 }).unwrap();
        let with = |name: &str| Checkpoint::open(&path(name)).unwrap().with_adapter(&path("run"));
        let write = |name: &str, format, dtype: Dtype, from: &Checkpoint, changed: Option<&str>| {
            let values = |param: &limpid::model::Param| {
                let mut values = from.values(&outline, param).unwrap().into_owned();
                let at = values.len() / 2;
                values[at] += if changed == Some(&*param.name) { 0.01 } else { 0.0 };
                values
            };
            save(&path(name), format, &dtype, &ModelData::new(&config, &values))
        };
        write("copy", Format::Limpid, Dtype::F32, &own, None).unwrap();
        let merged = with("own").unwrap();
        assert!(with("copy").is_ok(), "{config}");
        let formats = [("hf", Format::HuggingFace, Dtype::F32), ("f32.gguf", Format::Gguf, Dtype::F32)];
        for (name, format, dtype) in formats.into_iter().chain([("f16.gguf", Format::Gguf, Dtype::F16)]) {
            if write(name, format, dtype, &own, None).is_ok() {
                with(name).unwrap_or_else(|e| panic!("{config}: {name}: {e}"));
            }
        }
        // blocks of four bits are a rounded copy; those of another model are not
        let wide = Config { d_model: 64, d_ff: 96, ..config.clone() };
        let rounded = |seed: u64| {
            let (own, file) = (base(&path("wide"), &wide, seed), path("blocks.gguf"));
            let outline = Model::new(&wide, Mode::Inspect { batch: 1, context: 1 }).unwrap();
            let values = |param: &limpid::model::Param| own.values(&outline, param).unwrap().into_owned();
            let written = save(&file, Format::Gguf, &Dtype::Blocks(Quant::Q4_0), &ModelData::new(&wide, &values));
            written.ok().map(|()| Checkpoint::open(&file).unwrap())
        };
        let wide_base = made_for(&base(&path("wide"), &wide, 1));
        for (seed, is) in [(1, true), (2, false)] {
            if let Some(found) = rounded(seed) {
                assert_eq!(wide_base.is(&found).unwrap(), is, "{wide}: seed {seed}");
            }
        }
        let refused = |name: &str| {
            let error = with(name).err().unwrap_or_else(|| panic!("{config}: {name} passes")).to_string();
            assert!(error.contains("was made for the model") && error.contains("is another"), "{error}");
        };
        base(&path("seed"), &config, 2);
        refused("seed");
        write("merged", Format::Limpid, Dtype::F32, &merged, None).unwrap();
        refused("merged");
        for param in &outline.params {
            write("changed", Format::Limpid, Dtype::F32, &own, Some(&param.name)).unwrap();
            refused("changed");
        }
        // older adapters say less, and are held to that
        let mut said: Value = serde_json::from_str(&fs::read_to_string(path("run/base.json")).unwrap()).unwrap();
        said.as_object_mut().unwrap().retain(|key, _| ["path", "fingerprint"].contains(&key.as_str()));
        fs::write(path("run/base.json"), said.to_string()).unwrap();
        with("own").unwrap_or_else(|e| panic!("{config}: {e}"));
        let vectors = outline.params.iter().any(|param| !param.is_matrix());
        assert_eq!(with("seed").is_err(), vectors, "{config}");
    }
}

/// A model that came from a family keeps its names and its order of features in limpid's own format, also where other
/// families have the same names: its adapters fit the model that it came from.
#[test]
fn adapters_of_a_converted_model_fit_its_original() {
    for name in ["ernie4-5", "helium", "nanochat", "phi3", "glm4", "pythia", "roberta", "opt", "llama-gqa"] {
        let folder = Folder::new("original");
        let original = Checkpoint::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/hf").join(name)).unwrap();
        let outline = Model::new(&original.config, Mode::Inspect { batch: 1, context: 1 }).unwrap();
        let values = |param: &limpid::model::Param| original.values(&outline, param).unwrap().into_owned();
        let source = ModelData { carried: Some(&original.carried), ..ModelData::new(&original.config, &values) };
        save(&folder.0.join("own"), Format::Limpid, &Dtype::F32, &source).unwrap();
        let own = Checkpoint::open(&folder.0.join("own")).unwrap();
        let (made_for, run) = (made_for(&own), folder.0.join("run"));
        let config: Value =
            serde_json::from_str(&fs::read_to_string(original.path.join("config.json")).unwrap()).unwrap();
        assert_eq!(made_for.names.as_deref(), config["model_type"].as_str(), "{name}");
        let everywhere = lora(&["attention", "feed-forward"]);
        let (model, mut cpu) = adapted(&own, &everywhere, Mode::Inspect { batch: 1, context: TOKENS });
        begin(&run, &model, &made_for);
        checkpoint::save_weights(&run, &model, &cpu, 1).unwrap();
        add_as_peft_does(&original, &run, &folder.0.join("sum"));
        let want = common::wide(&outputs(&model, &mut cpu));
        for files in [Checkpoint::open(&folder.0.join("sum")).unwrap(), original.with_adapter(&run).unwrap()] {
            common::assert_close(name, &common::wide(&outputs_of(&files)), &want, 1e-4);
        }
    }
}

/// Several adapters of a model add up, as in llama.cpp and PEFT; the same one twice is a mistake.
#[test]
fn adapters_of_one_base_add_up() {
    let [config, ..] = configs();
    let folder = Folder::new("several");
    let path = |name: &str| folder.0.join(name);
    let own = base(&path("own"), &config, 1);
    let mut sum: Vec<(String, Vec<f64>)> = vec![];
    let outline = Model::new(&config, Mode::Inspect { batch: 1, context: 1 }).unwrap();
    for (name, targets) in [("a", &["attention"][..]), ("b", &["attention", "feed-forward"])] {
        let (model, mut cpu) = adapted(&own, &lora(targets), Mode::Inspect { batch: 1, context: TOKENS });
        for param in model.params.iter().filter(|p| p.is_adapter()) {
            cpu.write(param.region, &values(&format!("{name}{}", param.name), param.region.len(), 4)).unwrap();
        }
        begin(&path(name), &model, &made_for(&own));
        checkpoint::save_weights(&path(name), &model, &cpu, 1).unwrap();
        let alone = Checkpoint::open(&path(name)).unwrap();
        for param in &outline.params {
            let (with, without) = (alone.values(&outline, param).unwrap(), own.values(&outline, param).unwrap());
            let added = with.iter().zip(without.iter()).map(|(a, b)| f64::from(*a) - f64::from(*b));
            match sum.iter_mut().find(|(of, _)| *of == param.name) {
                Some((_, sum)) => sum.iter_mut().zip(added).for_each(|(sum, added)| *sum += added),
                None => sum.push((param.name.clone(), added.collect())),
            }
        }
    }
    let both =
        Checkpoint::open(&path("own")).unwrap().with_adapter(&path("a")).unwrap().with_adapter(&path("b")).unwrap();
    for (param, (name, sum)) in outline.params.iter().zip(&sum) {
        let (with, without) = (both.values(&outline, param).unwrap(), own.values(&outline, param).unwrap());
        let want: Vec<f64> = without.iter().zip(sum).map(|(w, added)| f64::from(*w) + added).collect();
        common::assert_close(name, &common::wide(&with), &want, 1e-6);
    }
    let error = both.with_adapter(&path("a/../a")).err().unwrap().to_string();
    assert!(error.contains("merged into the model already"), "{error}");
}

/// An adapter in the folder of a whole model is part of it, as in transformers, whatever base it names.
#[test]
fn an_adapter_beside_a_model_is_merged() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let mut opened = 0;
    for entry in fs::read_dir(fixtures.join("peft")).unwrap() {
        let (case, name) = (entry.as_ref().unwrap().path(), entry.unwrap().file_name());
        let folder = Folder::new("beside");
        let copy = |from: &Path| {
            for file in fs::read_dir(from).unwrap().map(|file| file.unwrap().path()) {
                fs::copy(&file, folder.0.join(file.file_name().unwrap())).unwrap();
            }
        };
        copy(&fixtures.join("hf").join(&name));
        let alone = outputs_of(&Checkpoint::open(&folder.0).unwrap());
        for file in ["adapter_config.json", "adapter_model.safetensors"] {
            fs::copy(case.join(file), folder.0.join(file)).unwrap();
        }
        let beside = outputs_of(&Checkpoint::open(&folder.0).unwrap());
        assert_eq!(beside, outputs_of(&Checkpoint::open(&case).unwrap()), "{name:?}");
        assert_ne!(beside, alone, "{name:?}");
        // an adapter whose weights are not there is not passed over
        fs::remove_file(folder.0.join("adapter_model.safetensors")).unwrap();
        let error = Checkpoint::open(&folder.0).err().unwrap().to_string();
        assert!(error.contains("adapter_model.safetensors"), "{error}");
        opened += 1;
    }
    assert!(opened >= 5, "{opened}");
}

/// Adapters and frozen models that stop and go on end in the bytes of those that did not.
#[test]
fn a_stopped_run_ends_in_the_same_bytes() {
    let [config, ..] = configs();
    let folder = Folder::new("stopped");
    let base = base(&folder.0.join("base"), &config, 1);
    let text = Tokens::new(common::ids("text", 400, config.vocab_size));
    let (train, empty) = (text, Tokens::default());
    let tokenizer = Tokenizer::train(TokenizerKind::Char, "ab", Order::Sorted, &[]).unwrap();
    let recipe = Recipe { steps: 8, batch_size: 2, context: TOKENS, warmup_steps: 2, ..Recipe::default() };
    let frozen = Tuning { freeze: vec!["embed.*".into(), "blocks.0.*".into()], ..Tuning::default() };
    for (name, tuning) in [("lora", lora(&["attention"])), ("frozen", frozen)] {
        let go = |out: &str, stop: u64, resume: bool| {
            let model = Model::tuned(&config, Mode::Train { batch: 2, context: TOKENS }, &tuning).unwrap();
            let cpu = Box::new(Cpu::new(&model, 2));
            let trainer = Trainer::from(&base, model, cpu, recipe).unwrap();
            let path = folder.0.join(format!("{name}-{out}"));
            let mut run = Run::new(
                trainer,
                Some(path.clone()),
                RunData { train: &train, validation: &empty, objective: Objective::NextToken, tokenizer: &tokenizer },
            )
            .unwrap();
            run.options.save_every = 0;
            if resume {
                assert_eq!(run.resume(None).unwrap(), 4);
            } else {
                run.files = adapter::describe(&run.trainer.model, &made_for(&base));
            }
            run.go(&mut |event| match event {
                TrainEvent::Step(step, _) if step.step == stop => Control::Stop,
                _ => Control::Continue,
            })
            .unwrap();
            let bits = |p: &limpid::model::Param| {
                run.trainer.backend.read(p.region).unwrap().iter().map(|v| v.to_bits()).collect::<Vec<_>>()
            };
            let all: Vec<_> = run.trainer.model.params.iter().map(|p| (p.region.learns(), bits(p))).collect();
            (all, path)
        };
        let (once, kept) = go("once", 8, false);
        go("twice", 4, false);
        let (twice, other) = go("twice", 8, true);
        assert!(once == twice, "{name}");
        let file = if name == "lora" { "adapter_model.safetensors" } else { "model.safetensors" };
        assert_eq!(fs::read(kept.join(file)).unwrap(), fs::read(other.join(file)).unwrap(), "{name}");
        // the state has the adapter alone; what is frozen is the base's
        let state = safetensors_file::open(&kept.join("state/last.safetensors")).unwrap();
        assert_eq!(name == "lora", state.get("embed.weight").is_none());
        assert!(
            state.get("moment1/embed.weight").is_none()
                && state.get("moment1/blocks.1.ln1.weight").is_none() == (name == "lora")
        );
        let model = Model::new(&config, Mode::Inspect { batch: 1, context: 1 }).unwrap();
        let first = base.values(&model, &model.params[0]).unwrap();
        assert!(!once[0].0 && once[0].1.iter().zip(first.iter()).all(|(a, b)| *a == b.to_bits()));
    }
}

/// Three steps over frozen blocks: adapter, moments and losses have the bytes that the same weights as f32 give, on
/// every level of instructions, on any threads, whatever is computed again; with bounded logits, tied and untied heads,
/// types that share a parameter.
#[test]
#[ignore = "gate"]
fn blocks_train_adapters_with_the_bits_of_their_values() {
    let [gpt2, llama, _] = configs().map(|c| Config { vocab_size: 83, d_model: 64, d_ff: 96, ..c });
    let wide = Config { d_model: 256, d_ff: 288, tied_head: false, ..llama.clone() };
    let capped = Config {
        norm_place: NormPlace::Both,
        ffn_gated: true,
        logits_softcap: 3.0,
        attention_softcap: 2.0,
        activation: Activation::GeluTanh,
        tied_head: true,
        embedding_scale: 8.0,
        norm_gain_less_one: true,
        ..llama.clone()
    };
    let everywhere = lora(&["attention", "feed-forward"]);
    let top = Tuning { freeze: vec!["embed.*".into(), "blocks.0.*".into(), "*.mlp.*".into()], ..Tuning::default() };
    let cases = [
        (&gpt2, Quant::Q8_0, &everywhere),
        (&llama, Quant::Q4_0, &everywhere),
        (&wide, Quant::Q4_K, &everywhere),
        (&capped, Quant::Q8_0, &everywhere),
        (&gpt2, Quant::Q4_0, &top),
    ];
    for (i, (config, quant, tuning)) in cases.into_iter().enumerate() {
        let folder = Folder::new(&format!("blocks{i}"));
        let (file, twin) = (folder.0.join("small.gguf"), folder.0.join("wide"));
        let drawn = |param: &limpid::model::Param| values(&param.name, param.region.len(), 5);
        save(&file, Format::Gguf, &Dtype::Blocks(quant), &ModelData::new(config, &drawn)).unwrap();
        let small = Checkpoint::open(&file).unwrap();
        let outline = Model::new(&small.config, Mode::Inspect { batch: 1, context: 1 }).unwrap();
        let same = |param: &limpid::model::Param| small.values(&outline, param).unwrap().into_owned();
        save(&twin, Format::Limpid, &Dtype::F32, &ModelData::new(&small.config, &same)).unwrap();
        let twin = Checkpoint::open(&twin).unwrap();

        let text = Tokens::new(common::ids("text", 400, config.vocab_size));
        let train = |base: &Checkpoint, level: Level, threads: usize, recompute: usize, batch: usize| {
            let recipe = Recipe { batch_size: batch, accumulate: 2, context: TOKENS, steps: 3, ..Recipe::default() };
            let batches = Batches::new(&text, WindowShape::next_token(TOKENS), batch, 1).unwrap().accumulated(2);
            let mode = Mode::Train { batch, context: TOKENS };
            let model = Model::at_recompute_level(&base.config, mode, tuning, recompute).unwrap();
            let cpu = Cpu::with(&model, threads, level, Precision::F32);
            let mut trainer = Trainer::from(base, model, Box::new(cpu), recipe).unwrap();
            let losses: Vec<u64> = (0..3).map(|_| trainer.step(&batches).unwrap().loss.unwrap().to_bits()).collect();
            let (out, state) = (folder.0.join("out"), folder.0.join("state"));
            fs::create_dir_all(&out).unwrap();
            checkpoint::save_weights(&out, &trainer.model, &*trainer.backend, 3).unwrap();
            trainer.save(&state, "{}".into()).unwrap();
            let kept = fs::read(checkpoint::weights_path(&out, &trainer.model)).unwrap();
            (losses, kept, fs::read(&state).unwrap())
        };
        // few rows, which threads take apart, and many
        for batch in [2, 40] {
            let want = train(&twin, Level::best(), 2, 0, batch);
            let most = Model::recompute_levels(&small.config);
            let levels = Level::available().into_iter().filter(|level| level.name() != "unfused");
            // plain Rust computes a multiply-add in many steps: it goes the one way that has all, the others every way
            let ways = |level: Level| {
                [(2, most), (1, 0), (3, 2), (2, 0)].into_iter().take(if level == Level::PORTABLE { 1 } else { 4 })
            };
            for (level, (threads, recompute)) in levels.flat_map(|level| ways(level).map(move |how| (level, how))) {
                let same = train(&small, level, threads, recompute, batch) == want;
                assert!(same, "{quant} at {level}, {threads} threads, recompute level {recompute}, {batch} sequences");
            }
        }
        // of what is frozen nothing is a gradient's, and what learns is f32
        let model = Model::tuned(&small.config, Mode::Train { batch: 2, context: TOKENS }, tuning).unwrap();
        assert!(Cpu::quantised(&model, Precision::Bf16).is_empty());
        let stays = Cpu::quantised(&model, Precision::F32);
        let on = Placement::from(&Machine::cpu(1)).with_weights(&small, &model);
        let frozen = |p: &&limpid::model::Param| !p.region.learns() && stays.contains(&p.region);
        let plain: usize = model.params.iter().filter(frozen).map(|p| 4 * p.region.len()).sum();
        let bits = if quant == Quant::Q8_0 { 8.5 } else { 4.5 };
        assert_eq!(on.quantised[0], plain, "{quant}: every frozen matrix stays as it is");
        if quant != Quant::Q4_K {
            assert_eq!(on.quantised[1] as f64, plain as f64 / 32.0 * bits, "{quant}");
        }
        let less = memory::needed(&model, None, &Machine::cpu(1)) - memory::needed(&model, None, &on);
        assert_eq!(less as usize, on.quantised[0] - on.quantised[1]);
    }
}

//! Agreement with PyTorch, through the golden tensors of `fixtures/` (made by `reference/make.py`, read its README):
//! three models of HuggingFace, forward, backward and trained for ten steps, and the ops one by one.
//!
//! The fixtures are true values rounded to f32, so the tolerances are about our own arithmetic:
//!
//! * `EXACT`, for `Reference`. It computes in f64, but epsilons, the score scale and the weight of a row are f32
//!   by type and its results are read as f32: a few roundings of 2^-24 = 6e-8, carried through two blocks.
//! * `SINGLE`, for the f32 kernels and `Cpu`. A result here is behind some 25 ops in a row, each rounding sums
//!   of up to 40 terms: 25 x sqrt(40) x 6e-8 = 1e-5. (PyTorch's own f32 is off by about 1e-6 on these.)
//!
//! Families of models have theirs in `fixtures/training` (`reference/families.py train`), for the models of `fixtures/hf`: gradients and
//! three steps.
//!
//! Both are relative to the greatest element of the tensor (see `common::assert_close`).

mod common;

use common::{assert_close, narrow, transpose, wide};
use limpid::backend::{Backend, Cpu, Reference};
use limpid::checkpoint::Checkpoint;
use limpid::config::{
    Activation, Config, Dropout, Fields, Heads, Mask, NormKind, NormPlace, Parallel, Positions, QkNorm, RotaryKind,
    RotaryScaling,
};
use limpid::model::{Mode, Model};
use limpid::ops::adamw::{Method, ParamGroup, Rule};
use limpid::ops::attend::{self, Gradients, Head, Keys};
use limpid::ops::classify::{self, Target, Terms};
use limpid::ops::simd::Level;
use limpid::ops::view::{Mat, MatMut};
use limpid::ops::{Batch, IGNORE, Scoring, Span, activate, embed, norm, rotate};
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use std::collections::HashMap;
use std::ops::Range;
use std::path::PathBuf;

const EXACT: f64 = 1e-6;
const SINGLE: f64 = 1e-5;

// ---- fixtures

struct Fixture {
    name: &'static str,
    /// A family's model as it is opened, and its parameters, gradients and trained parameters by our names.
    family: Option<(Config, HashMap<String, Vec<f64>>)>,
    config: Value,
    training: Value,
    tensors: HashMap<String, (Vec<usize>, Vec<f64>)>,
}

impl Fixture {
    fn open(name: &'static str) -> Fixture {
        let path = format!("{}/fixtures/{name}.safetensors", env!("CARGO_MANIFEST_DIR"));
        let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
        let json = |key: &str| {
            let text = header.metadata().as_ref().and_then(|m| m.get(key)).map_or("null", String::as_str);
            serde_json::from_str(text).unwrap()
        };
        let values = |view: &safetensors::tensor::TensorView| -> Vec<f64> {
            let words = view.data().as_chunks::<4>().0.iter();
            match view.dtype() {
                Dtype::F32 => words.map(|w| f64::from(f32::from_le_bytes(*w))).collect(),
                Dtype::I32 => words.map(|w| f64::from(i32::from_le_bytes(*w))).collect(),
                other => panic!("{name}: a tensor of {other:?}"),
            }
        };
        let tensors =
            file.iter().map(|(key, view)| (key.to_string(), (view.shape().to_vec(), values(&view)))).collect();
        Fixture { name, family: None, config: json("config"), training: json("training"), tensors }
    }

    /// What training does to the model in `fixtures/hf` of this name. What it has under transformers' names is put into a folder like
    /// the model's, so that the reader of models turns it into ours.
    fn of_family(name: &'static str) -> Fixture {
        let mut fixture = Fixture::open(format!("training/{name}").leak());
        let model = PathBuf::from(format!("{}/fixtures/hf/{name}", env!("CARGO_MANIFEST_DIR")));
        let folder = std::env::temp_dir().join(format!("limpid-parity-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::copy(model.join("config.json"), folder.join("config.json")).unwrap();
        let (mut own, mut config) = (HashMap::new(), None);
        for kind in ["param", "grad", "adamw_param"] {
            let source = if kind == "param" { &model } else { &folder };
            let theirs = |key: &String| Some(key.strip_prefix(kind)?.strip_prefix('/')?.to_string());
            let held =
                fixture.tensors.iter().filter_map(|(key, (shape, values))| Some((theirs(key)?, shape, narrow(values))));
            let held: Vec<_> = held.collect();
            let views = held.iter().map(|(key, shape, values)| {
                let bytes = bytemuck::cast_slice(values);
                (key, safetensors::tensor::TensorView::new(Dtype::F32, (*shape).clone(), bytes).unwrap())
            });
            std::fs::write(folder.join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
            let opened = Checkpoint::open(source).unwrap_or_else(|e| panic!("{name} {kind}: {e}"));
            let outline = Model::new(&opened.config, Mode::Inspect { batch: 1, context: 1 }).unwrap();
            for param in &outline.params {
                let values = opened.values(&outline, param).unwrap_or_else(|e| panic!("{name} {kind}: {e}"));
                own.insert(format!("{kind}/{}", param.name), wide(&values));
            }
            config = Some(Config { dropout: Dropout::NONE, ..opened.config.clone() });
        }
        std::fs::remove_dir_all(&folder).unwrap();
        fixture.family = config.map(|config| (config, own));
        fixture
    }

    fn shape(&self, key: &str) -> &[usize] {
        &self.tensors.get(key).unwrap_or_else(|| panic!("{} has no tensor {key}", self.name)).0
    }
    fn get(&self, key: &str) -> &[f64] {
        self.shape(key);
        &self.tensors[key].1
    }
    fn ids(&self, key: &str) -> Vec<u32> {
        self.get(key).iter().map(|id| if *id < 0.0 { IGNORE } else { *id as u32 }).collect()
    }
    fn size(&self, key: &str) -> usize {
        self.config[key].as_u64().unwrap_or_else(|| panic!("{}: {key}", self.name)) as usize
    }
    fn number(&self, key: &str) -> f64 {
        self.config[key].as_f64().unwrap_or_else(|| panic!("{}: {key}", self.name))
    }

    /// The preset of the model's name in the fixture's sizes.
    fn model_config(&self) -> Config {
        if let Some((config, _)) = &self.family {
            return config.clone();
        }
        let preset = |name| Config { dropout: Dropout::NONE, ..Config::preset(name).unwrap() };
        let gpt = |name, d_ff| Config {
            vocab_size: self.size("vocab_size"),
            context_length: self.size("n_positions"),
            d_model: self.size("n_embd"),
            n_head: self.size("n_head"),
            n_layer: self.size("n_layer"),
            d_ff,
            norm_eps: self.number("layer_norm_epsilon"),
            ..preset(name)
        };
        match self.name {
            "gpt2" => gpt("gpt2", self.size("n_inner")),
            "openai-gpt" => gpt("openai-gpt", 4 * self.size("n_embd")),
            "bert" => Config {
                vocab_size: self.size("vocab_size"),
                context_length: self.size("max_position_embeddings"),
                d_model: self.size("hidden_size"),
                n_head: self.size("num_attention_heads"),
                n_layer: self.size("num_hidden_layers"),
                d_ff: self.size("intermediate_size"),
                n_segment: self.size("type_vocab_size"),
                norm_eps: self.number("layer_norm_eps"),
                ..preset("bert-base-uncased")
            },
            name => panic!("{name} is no model"),
        }
    }

    /// What HuggingFace's `kind` ("param", "grad", "adamw_param") has under our parameter's name, in our layout:
    /// weights (out, in), query, key and value stacked.
    fn parameter(&self, kind: &str, ours: &str) -> Vec<f64> {
        if let Some((_, own)) = &self.family {
            return own[&format!("{kind}/{ours}")].clone();
        }
        let get = |theirs: &str| self.get(&format!("{kind}/{theirs}")).to_vec();
        // GPT's Conv1D weights are (in, out)
        let conv = |theirs: &str| match self.shape(&format!("{kind}/{theirs}")) {
            [_, out] => transpose(&get(theirs), *out),
            _ => get(theirs),
        };
        let parts: Vec<&str> = ours.split('.').collect();
        match (self.name, parts.as_slice()) {
            ("gpt2", ["embed", "weight"]) => get("transformer.wte.weight"),
            ("gpt2", ["pos_embed", "weight"]) => get("transformer.wpe.weight"),
            ("openai-gpt", ["embed", "weight"]) => get("transformer.tokens_embed.weight"),
            ("openai-gpt", ["pos_embed", "weight"]) => get("transformer.positions_embed.weight"),
            ("gpt2", ["ln_final", what]) => get(&format!("transformer.ln_f.{what}")),
            ("gpt2" | "openai-gpt", ["blocks", i, rest @ .., what]) => {
                let part = match rest {
                    ["ln1"] => "ln_1",
                    ["ln2"] => "ln_2",
                    ["attn", "qkv"] => "attn.c_attn",
                    ["attn", "out"] => "attn.c_proj",
                    ["mlp", "in"] => "mlp.c_fc",
                    ["mlp", "out"] => "mlp.c_proj",
                    _ => panic!("{ours} has no counterpart"),
                };
                conv(&format!("transformer.h.{i}.{part}.{what}"))
            }
            ("bert", ["embed", "weight"]) => get("bert.embeddings.word_embeddings.weight"),
            ("bert", ["pos_embed", "weight"]) => get("bert.embeddings.position_embeddings.weight"),
            ("bert", ["segment_embed", "weight"]) => get("bert.embeddings.token_type_embeddings.weight"),
            ("bert", ["embed_norm", what]) => get(&format!("bert.embeddings.LayerNorm.{what}")),
            ("bert", ["head", "dense", what]) => get(&format!("cls.predictions.transform.dense.{what}")),
            ("bert", ["head", "ln", what]) => get(&format!("cls.predictions.transform.LayerNorm.{what}")),
            ("bert", ["unembed", "bias"]) => get("cls.predictions.bias"),
            ("bert", ["blocks", i, rest @ .., what]) => {
                let of = |part: &str| get(&format!("bert.encoder.layer.{i}.{part}.{what}"));
                match rest {
                    ["ln1"] => of("attention.output.LayerNorm"),
                    ["ln2"] => of("output.LayerNorm"),
                    ["attn", "qkv"] => {
                        ["query", "key", "value"].iter().flat_map(|n| of(&format!("attention.self.{n}"))).collect()
                    }
                    ["attn", "out"] => of("attention.output.dense"),
                    ["mlp", "in"] => of("intermediate.dense"),
                    ["mlp", "out"] => of("output.dense"),
                    _ => panic!("{ours} has no counterpart"),
                }
            }
            _ => panic!("{ours} has no counterpart in {}", self.name),
        }
    }

    /// (B, T)
    fn batch_shape(&self) -> (usize, usize) {
        (self.shape("input_ids")[0], self.shape("input_ids")[1])
    }

    fn batch(&self) -> Batch {
        let (sequences, length) = self.batch_shape();
        let mut batch = Batch::of_sequences(self.ids("input_ids"), self.ids("targets"), length);
        if self.tensors.contains_key("token_type_ids") {
            batch.segments = self.ids("token_type_ids");
            let mask = self.get("attention_mask");
            for b in 0..sequences {
                batch.spans[b].valid = mask[b * length..][..length].iter().sum::<f64>() as usize;
            }
        }
        batch
    }

    fn write(&self, model: &Model, backend: &mut dyn Backend) {
        for param in &model.params {
            backend.write(param.region, &narrow(&self.parameter("param", &param.name))).unwrap();
        }
    }
}

// ---- whole models

/// Every backend, with what it is called and how exact it must be.
fn backends(model: &Model) -> Vec<(String, Box<dyn Backend>, f64)> {
    let mut all: Vec<(String, Box<dyn Backend>, f64)> =
        vec![("reference".into(), Box::new(Reference::new(model)), EXACT)];
    for level in Level::available() {
        for threads in 1..=3 {
            let cpu = Cpu::with_level(model, threads, level);
            all.push((format!("cpu {level} x{threads}"), Box::new(cpu), SINGLE));
        }
    }
    all
}

fn counted(batch: &Batch) -> f64 {
    batch.targets.iter().filter(|t| **t != IGNORE).count() as f64
}

/// Losses, their mean, and the gradient of every parameter.
fn check_losses_and_gradients(f: &Fixture, model: &Model, backend: &dyn Backend, who: &str, tolerance: f64) -> f64 {
    let losses = wide(&backend.read(model.losses().unwrap()).unwrap());
    let mean = losses.iter().sum::<f64>() / counted(&f.batch());
    let mut worst = assert_close(&format!("{who} losses"), &losses, f.get("losses"), tolerance);
    worst = worst.max(assert_close(&format!("{who} loss"), &[mean], f.get("loss"), tolerance));
    for param in &model.params {
        let got = wide(&backend.read(param.region.grad()).unwrap());
        let want = f.parameter("grad", &param.name);
        worst = worst.max(assert_close(&format!("{who} gradient of {}", param.name), &got, &want, tolerance));
    }
    worst
}

/// Losses and gradients as in training, on every backend: activations share places, the loss op's backward computes the losses.
fn check_trained(f: &Fixture, model: &Model, name: &str) {
    for (who, mut backend, tolerance) in backends(model) {
        let who = format!("{name} train {who}");
        f.write(model, &mut *backend);
        backend.feed(&f.batch()).unwrap();
        backend.forward(model.body()).unwrap();
        backend.backward(model.back()).unwrap();
        let worst = check_losses_and_gradients(f, model, &*backend, &who, tolerance);
        println!("{who}: worst {worst:.1e}");
    }
}

/// Everything a fixture has about one forward and backward.
fn check_model(name: &'static str) {
    let f = Fixture::open(name);
    let config = f.model_config();
    let (batch, context) = f.batch_shape();

    let model = Model::new(&config, Mode::Train { batch, context }).unwrap();
    let theirs =
        f.tensors.iter().filter(|(key, _)| key.starts_with("param/")).map(|(_, (_, v))| v.len()).sum::<usize>();
    assert_eq!(model.parameter_count(), theirs, "{name}: parameters");
    check_trained(&f, &model, name);

    // as inspected: everything is kept
    let model = Model::new(&config, Mode::Inspect { batch, context }).unwrap();
    for (who, mut backend, tolerance) in backends(&model) {
        let who = format!("{name} inspect {who}");
        f.write(&model, &mut *backend);
        backend.feed(&f.batch()).unwrap();
        backend.forward(model.ops()).unwrap();
        let read = |ours: &str| {
            let tensor = model.tensor(ours).unwrap_or_else(|| panic!("no tensor {ours}"));
            assert_eq!(tensor.cols, 0..tensor.region.cols, "{ours} is all of its region");
            wide(&backend.read(tensor.region).unwrap())
        };
        let mut worst = 0f64;
        let mut check = |theirs: &str, ours: &str, got: Vec<f64>| {
            worst = worst.max(assert_close(&format!("{who} {ours} ({theirs})"), &got, f.get(theirs), tolerance));
        };
        check("losses", "losses", read("losses"));
        check("logits", "logits", read("logits"));
        let last = config.n_layer;
        for i in 0..last {
            let ours = format!("blocks.{i}.hook_resid_pre");
            check(&format!("hidden/{i}"), &ours, read(&ours));
            // ours is (query, head, key), theirs (head, query, key)
            let ours = format!("blocks.{i}.attn.hook_pattern");
            let (pattern, heads) = (read(&ours), config.n_head);
            let place = |b: usize, h: usize, q: usize| ((b * context + q) * heads + h) * context;
            let rows = (0..batch).flat_map(|b| (0..heads).flat_map(move |h| (0..context).map(move |q| place(b, h, q))));
            check(&format!("attentions/{i}"), &ours, rows.flat_map(|at| pattern[at..at + context].to_vec()).collect());
        }
        let ours =
            if config.final_norm { "ln_final.hook_out".into() } else { format!("blocks.{}.hook_resid_post", last - 1) };
        check(&format!("hidden/{last}"), &ours, read(&ours));
        backend.backward(model.back()).unwrap();
        let worst = worst.max(check_losses_and_gradients(&f, &model, &*backend, &who, tolerance));
        println!("{who}: worst {worst:.1e}");
    }
}

/// GPT-2: pre-norm, final norm, tied head, tanh GELU (presets gpt2, llmc-gpt2; R212, R213).
#[test]
fn gpt2_is_huggingfaces() {
    check_model("gpt2");
}

/// OpenAI GPT: post-norm, no final norm, tied head (R167).
#[test]
fn openai_gpt_is_huggingfaces() {
    check_model("openai-gpt");
}

/// BERT: bidirectional, segments, padding, embedding norm, head transform, exact GELU. Padding rows are compared too.
#[test]
fn bert_is_huggingfaces() {
    check_model("bert");
}

// ---- training

/// Without the key biases: their gradient is zero in exact arithmetic (a softmax ignores a shift), and Adam divides
/// what noise there is by its own size.
fn without_key_bias(name: &str, values: Vec<f64>) -> Vec<f64> {
    let third = values.len() / 3;
    if name.ends_with("qkv.bias") { [&values[..third], &values[2 * third..]].concat() } else { values }
}

/// The steps of a fixture: the loss before each and after the last, norms and final parameters where the fixture has them.
fn check_training(f: &Fixture, method: Method) {
    let (batch, context) = f.batch_shape();
    let model = Model::new(&f.model_config(), Mode::Train { batch, context }).unwrap();
    let name = method.to_string();
    let set = &f.training[&name];
    let number = |key: &str| set[key].as_f64();
    let beta = |i: usize| set["betas"][i].as_f64();
    let all: Range<usize> = 0..model.params.last().unwrap().region.range().end;
    let groups = match method {
        Method::AdamW => model.update_groups(number("weight_decay").unwrap(), method),
        _ => vec![ParamGroup { range: all, decay: number("weight_decay").unwrap_or(0.0), matrix: None }],
    };
    for (who, mut backend, tolerance) in backends(&model) {
        let who = format!("{} {name} {who}", f.name);
        f.write(&model, &mut *backend);
        let rows = f.batch();
        let mean = |backend: &dyn Backend| {
            wide(&backend.read(model.losses().unwrap()).unwrap()).iter().sum::<f64>() / counted(&rows)
        };
        let (mut losses, mut norms) = (vec![], vec![]);
        for step in 1..f.get(&format!("{name}_losses")).len() as u64 {
            backend.feed(&rows).unwrap();
            backend.forward(model.body()).unwrap();
            backend.backward(model.back()).unwrap();
            losses.push(mean(&*backend));
            let report = backend
                .update(
                    &groups,
                    &Rule {
                        method,
                        rate: number("lr").unwrap(),
                        beta1: beta(0).or(number("momentum")).unwrap(),
                        beta2: beta(1).unwrap_or(0.0),
                        momentum: 0.0,
                        eps: number("eps").unwrap_or(0.0),
                        step,
                        max_norm: number("clip_grad_norm").unwrap_or(f64::INFINITY),
                        norm: None,
                    },
                    &mut [],
                )
                .unwrap();
            assert!(report.finite, "{who}: step {step}");
            norms.push(report.norm);
        }
        backend.feed(&rows).unwrap();
        backend.forward(model.ops()).unwrap();
        losses.push(mean(&*backend));
        let mut worst = assert_close(&format!("{who} losses"), &losses, f.get(&format!("{name}_losses")), tolerance);
        if method == Method::AdamW {
            worst = worst.max(assert_close(&format!("{who} norms"), &norms, f.get("adamw_grad_norms"), tolerance));
            for param in &model.params {
                let kept = |values| if f.family.is_some() { values } else { without_key_bias(&param.name, values) };
                let got = kept(wide(&backend.read(param.region).unwrap()));
                let want = kept(f.parameter("adamw_param", &param.name));
                worst = worst.max(assert_close(&format!("{who} {} in the end", param.name), &got, &want, tolerance));
            }
        }
        println!("{who}: worst {worst:.1e}");
    }
}

/// AdamW with decay by group and clipping (R217, R220, R221); every parameter is trained (R222).
#[test]
fn ten_steps_of_adamw() {
    for name in ["gpt2", "openai-gpt", "bert"] {
        check_training(&Fixture::open(name), Method::AdamW);
    }
}

/// Adam with decay in the gradient (R216), and SGD with momentum (R215).
#[test]
fn ten_steps_of_adam_and_sgd() {
    check_training(&Fixture::open("gpt2"), Method::Adam);
    check_training(&Fixture::open("gpt2"), Method::Sgd);
}

/// A fixture, what it shows, and whether a configuration has that.
type Shows = (&'static str, &'static str, fn(&Config) -> bool);

/// Which family's training shows which choice of [`Config`], and that the model has it.
#[rustfmt::skip]
const FAMILIES: &[Shows] = &[
    ("qwen3", "a norm of each head's queries and keys, rotary positions, key heads shared",
        |c| c.qk_norm == QkNorm::Head && c.heads().group() == 2 && c.ffn_gated),
    ("olmo2", "a norm of all queries, a norm on what each part adds",
        |c| c.qk_norm == QkNorm::Width && c.norm_place == NormPlace::Branch),
    ("nanochat", "a norm of queries and keys without gain, no gains, squared relu, a norm of the embedding",
        |c| c.qk_norm == QkNorm::HeadPlain && !c.norm_gain && c.activation == Activation::Relu2 && c.embedding_norm),
    ("gemma2", "norms before and after, gains less one, both bounds, a window in every second block, a factor of the scores",
        |c| c.norm_place == NormPlace::Both && c.norm_gain_less_one && c.attention_softcap > 0.0 && c.logits_softcap > 0.0
            && [0, 1].map(|i| c.window_of(i)) == [4, 0] && c.attention_factor.is_some() && c.embedding_scale > 1.0),
    ("gemma3", "angles of their own in blocks with a window, queries and keys normalised with gains less one",
        |c| c.rotary_base_window.is_some() && c.norm_gain_less_one && c.qk_norm == QkNorm::Head),
    ("cohere", "both parts side by side after one norm, a factor of the logits",
        |c| c.parallel == Parallel::OneNorm && c.logits_scale != 1.0),
    ("pythia", "both parts side by side after two norms, a quarter of each head turned",
        |c| c.parallel == Parallel::TwoNorms && c.rotary_dim == Some(4)),
    ("phi", "both parts side by side with biases, one of the head", |c| c.parallel == Parallel::OneNorm && c.head_bias),
    ("gptj", "half of each head turned, no biases of attention, but of the network",
        |c| c.rotary_dim == Some(4) && !c.attention_bias && c.ffn_bias),
    ("glm4", "norms before and after, half of each head turned", |c| c.norm_place == NormPlace::Both && c.rotary_dim == Some(4)),
    ("granite", "factors of embedding, sums, scores and logits",
        |c| c.residual_scale != 1.0 && c.embedding_scale != 1.0 && c.attention_factor.is_some() && c.logits_scale != 1.0),
    ("bloom", "alibi, a norm of the embedding", |c| c.positions == Positions::Alibi && c.embedding_norm),
    ("mpt", "alibi without offsets of the norms", |c| c.positions == Positions::Alibi && !c.norm_offset && c.norm_gain),
    ("gpt-neo", "learned positions with a window in every second block, scores as they are",
        |c| c.positions == Positions::Learned && [0, 1].map(|i| c.window_of(i)) == [0, 4] && !c.attention_scale),
    ("smollm3", "every fourth block without positions", |c| (0..4).map(|i| c.rotary_dim_of(i)).eq([6, 6, 6, 0])),
    ("helium-biased", "biases of queries, keys and values, not of the output", |c| c.attention_bias && !c.attention_out_bias()),
    ("falcon-new", "both parts side by side after two norms, four heads on two keys",
        |c| c.parallel == Parallel::TwoNorms && c.heads().group() == 2),
    ("mistral", "a window in all blocks", |c| (0..c.n_layer).all(|i| c.window_of(i) == 4)),
    ("roberta", "one segment, both ways, padding", |c| c.n_segment == 1 && c.mask == Mask::Bidirectional),
    ("qwen3-yarn", "yarn with a factor of what is turned, beside queries and keys that are normalised",
        |c| c.rotary_scaling.kind == RotaryKind::Yarn && c.rotary_scaling.attention == 1.3 && !c.rotary_scaling.truncate),
    ("phi3-longrope", "longrope, a factor of what is turned", |c| c.rotary_scaling.kind == RotaryKind::Longrope && c.rotary_scaling.reach > 0),
    ("albert", "three blocks that are one, an embedding of its own width", |c| c.shared_blocks && c.n_layer == 3 && c.d_embed == Some(7)),
    ("electra-narrow", "an embedding of its own width, blocks that differ", |c| !c.shared_blocks && c.d_embed == Some(7)),
];

/// Losses, gradients and three steps of AdamW, of every family that shows a choice of its own.
#[test]
fn families_train_as_transformers_does() {
    let folder = format!("{}/fixtures/training", env!("CARGO_MANIFEST_DIR"));
    let files = std::fs::read_dir(&folder).unwrap().count();
    assert_eq!(files, FAMILIES.len(), "files of {folder} and lines of FAMILIES");
    for (name, what, has) in FAMILIES {
        let f = Fixture::of_family(name);
        let (batch, context) = f.batch_shape();
        assert!(has(&f.model_config()), "{name} is here for {what}: {:?}", f.model_config());
        assert!(f.ids("targets").contains(&IGNORE), "{name}: some targets are left out");
        let model = Model::new(&f.model_config(), Mode::Train { batch, context }).unwrap();
        check_trained(&f, &model, name);
        check_training(&f, Method::AdamW);
    }
}

/// What came later than GPT-2's choices is trained by another program too, in each of its values: no setting is forgotten above.
#[test]
fn families_have_every_later_choice() {
    let usual = Config::default();
    let models: Vec<Config> = FAMILIES.iter().map(|(name, ..)| Fixture::of_family(name).model_config()).collect();
    let mut seen = 0;
    for (setting, value) in usual.fields() {
        let is = |c: &Config| c.fields().into_iter().find(|(own, _)| own.name == setting.name).unwrap().1.json();
        let wanted: Vec<serde_json::Value> = match setting.name {
            "positions" => ["learned", "rotary", "alibi"].map(Value::from).to_vec(),
            // within the context dynamic is no scaling
            "rotary_scaling_kind" => ["bands", "yarn", "longrope"].map(Value::from).to_vec(),
            "norm_place" => ["pre", "post", "branch", "both"].map(Value::from).to_vec(),
            _ if setting.later => value.choices().into_iter().map(Value::from).collect(),
            _ => continue,
        };
        seen += 1;
        let other = models.iter().any(|c| is(c) != value.json());
        assert!(other, "no model of FAMILIES has another `{}` than {}", setting.name, value.json());
        for choice in wanted {
            assert!(models.iter().any(|c| is(c) == choice), "no model of FAMILIES has `{}` {choice}", setting.name);
        }
    }
    assert!(seen > 20, "{seen} settings");
}

// ---- ops one by one

/// R146 to R157: value and slope of every activation.
#[test]
fn activations() {
    let f = Fixture::open("ops");
    let slope = f.number("leaky_relu_slope");
    let x = f.get("activation/x");
    for (theirs, ours) in [
        ("gelu_erf", Activation::GeluErf),
        ("gelu_tanh", Activation::GeluTanh),
        ("gelu_quick", Activation::GeluSigmoid),
        ("relu", Activation::Relu),
        ("leaky_relu", Activation::LeakyRelu),
        ("silu", Activation::Silu),
        ("sigmoid", Activation::Sigmoid),
        ("tanh", Activation::Tanh),
    ] {
        let (value, derivative) =
            (f.get(&format!("activation/{theirs}")), f.get(&format!("activation/{theirs}_derivative")));
        let got: Vec<f64> = x.iter().map(|x| activate::reference::value(ours, slope, *x)).collect();
        assert_close(theirs, &got, value, EXACT);
        let got: Vec<f64> = x.iter().map(|x| activate::reference::derivative(ours, slope, *x)).collect();
        assert_close(&format!("{theirs}'"), &got, derivative, EXACT);
        let (x, slope, ones) = (narrow(x), slope as f32, vec![1.0; x.len()]);
        for level in Level::available() {
            let (mut y, mut dx) = (vec![0.0; x.len()], vec![9.0; x.len()]);
            level.run(activate::Forward { f: ours, slope, y: &mut y, x: &x });
            assert_close(&format!("{theirs} {level}"), &wide(&y), value, EXACT); // one op: no need for SINGLE's 25
            // but slopes have a factor 1 - s that cancels where s is nearly 1: up to 2^-24 x 35 for the tanh GELU at 5
            level.run(activate::Backward { f: ours, slope, dx: &mut dx, add: false, dy: &ones, x: &x });
            assert_close(&format!("{theirs}' {level}"), &wide(&dx), derivative, SINGLE);
            level.run(activate::Backward { f: ours, slope, dx: &mut dx, add: true, dy: &ones, x: &x });
            let twice: Vec<f64> = derivative.iter().map(|d| 2.0 * d).collect();
            assert_close(&format!("{theirs}' twice {level}"), &wide(&dx), &twice, SINGLE);
        }
    }
}

/// R084 to R086, and RMS norm: value and gradients. The unbiased deviation is another function, and not ours (R086).
#[test]
fn norms() {
    let f = Fixture::open("ops");
    for (name, kind) in
        [("layer_norm", NormKind::Layer), ("sigma_norm", NormKind::LayerStd), ("rms_norm", NormKind::Rms)]
    {
        let eps = f.number(&format!("{name}_eps"));
        let of = |part: &str| f.get(&format!("{name}/{part}"));
        let (x, dy, gain, cols) = (of("x"), of("dy"), of("gain"), of("gain").len());
        let offset = (kind != NormKind::Rms).then(|| of("bias"));
        let rows = x.len() / cols;

        let (mut y, mut stats, mut dx) = (vec![0.0; x.len()], vec![0.0; 2 * rows], vec![0.0; x.len()]);
        let (mut dgain, mut doffset) = (vec![0.0; cols], vec![0.0; cols]);
        norm::reference::forward((&mut y, &mut stats), x, (Some(gain), offset), (kind, eps));
        assert_close(name, &y, of("y"), EXACT);
        let to = (Some(&mut dgain[..]), offset.is_some().then_some(&mut doffset[..]));
        norm::reference::backward((&mut dx, false), to, dy, x, &stats, Some(gain), (kind, eps));
        assert_close(&format!("{name} dx"), &dx, of("dx"), EXACT);
        assert_close(&format!("{name} dgain"), &dgain, of("dgain"), EXACT);
        if offset.is_some() {
            assert_close(&format!("{name} dbias"), &doffset, of("dbias"), EXACT);
        }

        let (gain, offset, eps) = (narrow(gain), offset.map(narrow), eps as f32);
        let (x, dy) = (narrow(x), narrow(dy));
        for level in Level::available() {
            let (mut y, mut stats) = (vec![0.0; x.len()], vec![0.0; 2 * rows]);
            level.run(norm::Forward {
                y: &mut y,
                stats: &mut stats,
                x: &x,
                gain: Some(&gain),
                offset: offset.as_deref(),
                less_one: false,
                kind,
                eps,
            });
            assert_close(&format!("{name} {level}"), &wide(&y), of("y"), EXACT);
            let mut dx = vec![f32::NAN; x.len()]; // overwritten, then added to
            for (add, times) in [(false, 1.0), (true, 2.0)] {
                let g = &mut vec![0.0; cols];
                level.run(norm::BackwardInput {
                    dx: &mut dx,
                    add,
                    dy: &dy,
                    x: &x,
                    stats: &stats,
                    gain: Some(&gain),
                    less_one: false,
                    kind,
                    eps,
                    g,
                });
                // a difference of nearly equal numbers: g - mean(g) - n mean(g n)
                let want: Vec<f64> = of("dx").iter().map(|d| times * d).collect();
                assert_close(&format!("{name} dx {level}"), &wide(&dx), &want, SINGLE);
            }
            let (mut dgain, mut doffset) = (vec![0.0; cols], vec![0.0; cols]);
            let (one, two) = (Some(&mut dgain[..]), Some(&mut doffset[..]));
            level.run(norm::BackwardParams { dgain: one, doffset: two, from: 0, dy: &dy, x: &x, stats: &stats });
            assert_close(&format!("{name} dgain {level}"), &wide(&dgain), of("dgain"), SINGLE);
            if offset.is_some() {
                assert_close(&format!("{name} dbias {level}"), &wide(&doffset), of("dbias"), SINGLE);
            }
        }
    }
    let (biased, unbiased) = (f.get("sigma_norm/y"), f.get("sigma_norm_unbiased/y"));
    assert!(biased.iter().zip(unbiased).any(|(b, u)| (b - u).abs() > 0.01));
}

/// R098, R099, R114, R118, R122, R125, R126, R128: softmax(q k' / sqrt(d)) v and its gradients, without a mask and
/// with the causal one.
#[test]
fn attention() {
    let f = Fixture::open("ops");
    let scale = f.number("attention_scale");
    for (name, mask) in
        [("attention_full", Mask::None), ("attention_full", Mask::Bidirectional), ("attention_causal", Mask::Causal)]
    {
        let &[batch, heads, t, d] = f.shape(&format!("{name}/q")) else { panic!("four axes") };
        for part in 0..batch * heads {
            let of = |tensor: &str| &f.get(&format!("{name}/{tensor}"))[part * t * d..][..t * d];
            let span = Span { row: 0, rows: t, past: 0, table: 0, valid: t };

            let rows = |tensor| of(tensor).chunks_exact(d);
            let [mut y, mut dq, mut dk, mut dv] = [(); 4].map(|()| vec![0.0; t * d]);
            for (i, (q, dy)) in rows("q").zip(rows("dy")).enumerate() {
                let score = |_, product| scale * product;
                let p = attend::reference::row(q, rows("k"), |j| j < span.reach(mask, i), score).pattern;
                let (_, ds) = attend::reference::row_backward(&p, dy, rows("v"), |_| 1.0);
                for (j, e) in (0..t).flat_map(|j| (0..d).map(move |e| (j, e))) {
                    y[i * d + e] += p[j] * of("v")[j * d + e];
                    dv[j * d + e] += p[j] * dy[e];
                    dq[i * d + e] += scale * ds[j] * of("k")[j * d + e];
                    dk[j * d + e] += scale * ds[j] * q[e];
                }
            }
            for (tensor, got) in [("y", y), ("dq", dq), ("dk", dk), ("dv", dv)] {
                assert_close(&format!("{name} {tensor} of head {part}"), &got, of(tensor), EXACT);
            }

            let [q, k, v, dy] = ["q", "k", "v", "dy"].map(|tensor| narrow(of(tensor)));
            let mat = |data| Mat::new(data, d);
            let head = Head {
                q: mat(&q),
                k: Keys::Plain(mat(&k)),
                v: Keys::Plain(mat(&v)),
                span,
                scoring: Scoring::plain(mask, scale as f32),
                draws: None,
                head: 0,
                n_head: 1,
            };
            for level in Level::available() {
                let mut scratch = vec![0.0; attend::SCRATCH];
                let [mut y, mut dq, mut dk, mut dv] = [(); 4].map(|()| vec![f32::NAN; t * d]); // all overwritten
                let mut lse = vec![0.0; t];
                attend::forward(level, head, MatMut::new(&mut y, d), MatMut::new(&mut lse, 1), &mut scratch);
                assert_close(&format!("{name} y of head {part} {level}"), &wide(&y), of("y"), SINGLE);
                for (add, times) in [(false, 1.0), (true, 2.0)] {
                    let [dq_to, dk_to, dv_to] = [&mut dq, &mut dk, &mut dv].map(|to| MatMut::new(to, d));
                    let to = Gradients { dq: dq_to, dk: dk_to, dv: dv_to, watched: [None, None, None] };
                    let from = [Mat::new(&dy, d), Mat::new(&y, d), Mat::new(&lse, 1)];
                    attend::backward(level, head, to, [add; 2], from, &mut scratch);
                    for (tensor, got) in [("dq", &dq), ("dk", &dk), ("dv", &dv)] {
                        let want: Vec<f64> = of(tensor).iter().map(|d| times * d).collect();
                        assert_close(&format!("{name} {tensor} of head {part} {level}"), &wide(got), &want, SINGLE);
                    }
                }
            }
        }
    }
}

/// Rotary positions: queries and keys turn, values stay; turned by -1, they come back.
#[test]
fn rotary() {
    let f = Fixture::open("ops");
    let &[t, heads, d] = f.shape("rotary/x") else { panic!("three axes") };
    let (base, width) = (f.number("rotary_base"), heads * d);
    let layout = Heads { n_head: heads, n_kv_head: heads, d_head: d };
    let frequencies = embed::tables::frequencies(d, base, &RotaryScaling::NONE);
    let angles: Vec<f64> = (0..t * d).map(|i| embed::tables::rotary(i / d, i % d, &frequencies)).collect();
    let stack = |q: &[f64], v: &[f64]| -> Vec<f64> {
        let rows = q.chunks_exact(width).zip(v.chunks_exact(width));
        rows.flat_map(|(q, v)| [q, q, v].concat()).collect()
    };
    let x = stack(f.get("rotary/x"), f.get("rotary/x"));
    let want = stack(f.get("rotary/y"), f.get("rotary/x"));
    let positions: Vec<u32> = (0..t as u32).collect();
    let (mut y, mut back) = (vec![0.0; x.len()], vec![0.0; x.len()]);
    rotate::turn(&mut y, &x, false, (&angles, d), &positions, layout, 1.0);
    assert_close("rotary", &y, &want, EXACT);
    rotate::turn(&mut back, &y, false, (&angles, d), &positions, layout, -1.0);
    assert_close("rotary and back", &back, &x, EXACT);
    let mut y = vec![0f32; x.len()];
    rotate::turn(&mut y, &narrow(&x), false, (&narrow(&angles), d), &positions, layout, 1.0);
    assert_close("rotary in f32", &wide(&y), &want, EXACT);
}

/// R202: cross-entropy with a distribution as the target.
#[test]
fn soft_cross_entropy() {
    let f = Fixture::open("ops");
    let of = |part: &str| f.get(&format!("cross_entropy_soft/{part}"));
    let &[rows, v] = f.shape("cross_entropy_soft/p") else { panic!("two axes") };
    let p = narrow(of("p"));
    let target = |n: usize| Target::Soft(&p[n * v..][..v]);
    let mut grad = of("logits").to_vec();
    let each = grad.chunks_exact_mut(v).enumerate();
    let losses: Vec<f64> = each
        .map(|(n, row)| classify::reference::row(row, target(n), Terms::default(), Some(1.0 / rows as f64)))
        .collect();
    assert_close("soft losses", &losses, of("losses"), EXACT);
    assert_close("soft loss", &[losses.iter().sum::<f64>() / rows as f64], of("loss"), EXACT);
    assert_close("soft dlogits", &grad, of("dlogits"), EXACT);
    for level in Level::available() {
        let mut grad = narrow(of("logits"));
        let weight = Some(1.0 / rows as f32);
        let each = grad.chunks_exact_mut(v).enumerate();
        let losses: Vec<f32> = each
            .map(|(n, logits)| level.run(classify::Row { logits, target: target(n), terms: Terms::default(), weight }))
            .collect();
        assert_close(&format!("soft losses {level}"), &wide(&losses), of("losses"), EXACT);
        assert_close(&format!("soft dlogits {level}"), &wide(&grad), of("dlogits"), EXACT);
    }
}

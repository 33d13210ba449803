//! Golden tensors of PyTorch and whole models that are held to them: forward, backward and trained. Whoever includes it
//! says on which `backends`, each with what it is called and how exact it must be, and where the `LIBRARY` is.

use crate::common::{assert_close, narrow, transpose, wide};
use crate::parity::{LIBRARY, backends};
use limpid::backend::Backend;
use limpid::checkpoint::Checkpoint;
use limpid::config::{Activation, Config, Dropout, Mask, NormPlace, Parallel, Positions, QkNorm, RotaryKind};
use limpid::model::{Mode, Model};
use limpid::ops::{Batch, IGNORE};
use limpid::optimizer::{Method, ParamGroup, Rule};
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use std::collections::HashMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

// ---- fixtures

pub struct Fixture {
    name: &'static str,
    /// A family's model as it is opened, and its parameters, gradients and trained parameters by our names.
    family: Option<(Config, HashMap<String, Vec<f64>>)>,
    config: Value,
    training: Value,
    tensors: HashMap<String, (Vec<usize>, Vec<f64>)>,
}

impl Fixture {
    pub fn open(name: &'static str) -> Fixture {
        let path = format!("{LIBRARY}/fixtures/{name}.safetensors");
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

    /// What training does to the model in `fixtures/hf` of this name. What it has under transformers' names is put into
    /// a folder like the model's, so that the reader of models turns it into ours.
    pub fn of_family(name: &'static str) -> Fixture {
        let mut fixture = Fixture::open(format!("training/{name}").leak());
        let model = PathBuf::from(format!("{LIBRARY}/fixtures/hf/{name}"));
        // tests run side by side
        static OPENED: AtomicUsize = AtomicUsize::new(0);
        let number = OPENED.fetch_add(1, Relaxed);
        let folder = std::env::temp_dir().join(format!("limpid-parity-{name}-{}-{number}", std::process::id()));
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

    pub fn shape(&self, key: &str) -> &[usize] {
        &self.tensors.get(key).unwrap_or_else(|| panic!("{} has no tensor {key}", self.name)).0
    }
    pub fn get(&self, key: &str) -> &[f64] {
        self.shape(key);
        &self.tensors[key].1
    }
    fn ids(&self, key: &str) -> Vec<u32> {
        self.get(key).iter().map(|id| if *id < 0.0 { IGNORE } else { *id as u32 }).collect()
    }
    fn size(&self, key: &str) -> usize {
        self.config[key].as_u64().unwrap_or_else(|| panic!("{}: {key}", self.name)) as usize
    }
    pub fn number(&self, key: &str) -> f64 {
        self.config[key].as_f64().unwrap_or_else(|| panic!("{}: {key}", self.name))
    }

    /// The preset of the model's name in the fixture's sizes.
    pub fn model_config(&self) -> Config {
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

/// Losses and gradients as in training, on every backend: activations share places, the loss op's backward computes the
/// losses.
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
pub fn check_model(name: &'static str) {
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

// ---- training

/// Without the key biases: their gradient is zero in exact arithmetic (a softmax ignores a shift), and Adam divides
/// what noise there is by its own size.
fn without_key_bias(name: &str, values: Vec<f64>) -> Vec<f64> {
    let third = values.len() / 3;
    if name.ends_with("qkv.bias") { [&values[..third], &values[2 * third..]].concat() } else { values }
}

/// The steps of a fixture: the loss before each and after the last, norms and final parameters where the fixture has
/// them.
pub fn check_training(f: &Fixture, method: Method) {
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
                        most_loss: None,
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

/// A fixture, what it shows, and whether a configuration has that.
pub type Shows = (&'static str, &'static str, fn(&Config) -> bool);

/// Which family's training shows which choice of [`Config`], and that the model has it.
#[rustfmt::skip]
pub const FAMILIES: &[Shows] = &[
    ("qwen3", "a norm of each head's queries and keys, rotary positions, key heads shared",
        |c| c.qk_norm == QkNorm::Head && c.heads().group() == 2 && c.ffn_gated),
    ("olmo2", "a norm of all queries, a norm on what each part adds",
        |c| c.qk_norm == QkNorm::Width && c.norm_place == NormPlace::Branch),
    ("nanochat", "a norm of queries and keys without gain, no gains, squared relu, a norm of the embedding",
        |c| c.qk_norm == QkNorm::HeadPlain && !c.norm_gain && c.activation == Activation::Relu2 && c.embedding_norm),
    ("gemma2",
        "norms before and after, gains less one, both bounds, a window in every second block, a factor of the scores",
        |c| c.norm_place == NormPlace::Both && c.norm_gain_less_one && c.attention_softcap > 0.0
            && c.logits_softcap > 0.0 && [0, 1].map(|i| c.window_of(i)) == [4, 0]
            && c.attention_factor.is_some() && c.embedding_scale > 1.0),
    ("gemma3", "angles of their own in blocks with a window, queries and keys normalised with gains less one",
        |c| c.rotary_base_window.is_some() && c.norm_gain_less_one && c.qk_norm == QkNorm::Head),
    ("cohere", "both parts side by side after one norm, a factor of the logits",
        |c| c.parallel == Parallel::OneNorm && c.logits_scale != 1.0),
    ("pythia", "both parts side by side after two norms, a quarter of each head turned",
        |c| c.parallel == Parallel::TwoNorms && c.rotary_dim == Some(4)),
    ("phi", "both parts side by side with biases, one of the head", |c| c.parallel == Parallel::OneNorm && c.head_bias),
    ("gptj", "half of each head turned, no biases of attention, but of the network",
        |c| c.rotary_dim == Some(4) && !c.attention_bias && c.ffn_bias),
    ("glm4", "norms before and after, half of each head turned",
        |c| c.norm_place == NormPlace::Both && c.rotary_dim == Some(4)),
    ("granite", "factors of embedding, sums, scores and logits",
        |c| c.residual_scale != 1.0 && c.embedding_scale != 1.0 && c.attention_factor.is_some()
            && c.logits_scale != 1.0),
    ("bloom", "alibi, a norm of the embedding", |c| c.positions == Positions::Alibi && c.embedding_norm),
    ("mpt", "alibi without offsets of the norms", |c| c.positions == Positions::Alibi && !c.norm_offset && c.norm_gain),
    ("gpt-neo", "learned positions with a window in every second block, scores as they are",
        |c| c.positions == Positions::Learned && [0, 1].map(|i| c.window_of(i)) == [0, 4] && !c.attention_scale),
    ("smollm3", "every fourth block without positions", |c| (0..4).map(|i| c.rotary_dim_of(i)).eq([6, 6, 6, 0])),
    ("helium-biased", "biases of queries, keys and values, not of the output",
        |c| c.attention_bias && !c.attention_out_bias()),
    ("falcon-new", "both parts side by side after two norms, four heads on two keys",
        |c| c.parallel == Parallel::TwoNorms && c.heads().group() == 2),
    ("mistral", "a window in all blocks", |c| (0..c.n_layer).all(|i| c.window_of(i) == 4)),
    ("roberta", "one segment, both ways, padding", |c| c.n_segment == 1 && c.mask == Mask::Bidirectional),
    ("qwen3-yarn", "yarn with a factor of what is turned, beside queries and keys that are normalised",
        |c| c.rotary_scaling.kind == RotaryKind::Yarn && c.rotary_scaling.attention == 1.3
            && !c.rotary_scaling.truncate),
    ("phi3-longrope", "longrope, a factor of what is turned",
        |c| c.rotary_scaling.kind == RotaryKind::Longrope && c.rotary_scaling.reach > 0),
    ("albert", "three blocks that are one, an embedding of its own width",
        |c| c.shared_blocks && c.n_layer == 3 && c.d_embed == Some(7)),
    ("electra-narrow", "an embedding of its own width, blocks that differ",
        |c| !c.shared_blocks && c.d_embed == Some(7)),
];

/// Losses, gradients and three steps of AdamW, of every family that shows a choice of its own.
pub fn check_families() {
    let folder = format!("{LIBRARY}/fixtures/training");
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

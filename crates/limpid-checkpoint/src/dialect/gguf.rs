//! What a model is to llama.cpp: some architectures of GGUF, of which `gpt2` and `llama` are written, with the tokenizer inside. Rotary
//! positions turn neighbouring rows there, as here, or rows half a head apart. Norms, biases and position tables are F32 always; blocks are for matrices whose rows
//! are whole blocks: others are Q8_0 then, or F16.

use super::huggingface::{GATED_RMS, GPT2, LLAMA, nearest};
use super::{Link, Links, TensorLayout};
use crate::gguf::{Array, GgufValue, Metadata};
use crate::store::{Dtype, Store, bad};
use crate::{CheckpointError, Result};
use limpid_core::config::{Activation, Config, NormKind, Positions, RotaryKind, RotaryScaling, Settings};
use limpid_core::model::Model;
use limpid_core::ops::blocks::Quant;
use limpid_tokenizer::{Table, Tokenizer, TokenizerError};
use std::path::Path;

/// The tensor of factors by which each pair of a head turns slower.
pub(crate) const ROPE_FREQS: &str = "rope_freqs.weight";

/// Our keys for what decides those factors: others skip them.
const LOW: &str = "rope.scaling.low_freq_factor";
const HIGH: &str = "rope.scaling.high_freq_factor";

/// What llama.cpp calls a kind of model.
pub(crate) struct Architecture {
    name: &'static str,
    /// Settings of all its models, where these are not GPT-2's.
    always: &'static [&'static [(&'static str, &'static str)]],
    /// Whether rotary positions turn features half a head apart; else neighbours, as here.
    pub(crate) halves: bool,
    /// Whether token vectors are multiplied by the root of d_model.
    scaled: bool,
    /// Which blocks have the window, if there is one, and the base of their angles.
    window: (&'static str, Option<f64>),
}

/// What most architectures have that is not said of them.
const ARCHITECTURE: Architecture =
    Architecture { name: "", always: &[], halves: true, scaled: false, window: ("1", None) };
const SILU: &[(&str, &str)] = &[("activation", "silu")];

/// The architectures that are read. Gemma's gains are stored whole there.
const ARCHITECTURES: &[Architecture] = &[
    Architecture { name: "gpt2", ..ARCHITECTURE },
    Architecture { name: "llama", always: &[GATED_RMS, SILU], halves: false, ..ARCHITECTURE },
    Architecture { name: "qwen2", always: &[GATED_RMS, SILU], ..ARCHITECTURE },
    Architecture { name: "qwen3", always: &[GATED_RMS, SILU, &[("qk_norm", "head")]], ..ARCHITECTURE },
    Architecture { name: "starcoder2", always: &[&[("positions", "rotary")]], ..ARCHITECTURE },
    Architecture { name: "gemma", always: &[GATED_RMS], scaled: true, ..ARCHITECTURE },
    Architecture {
        name: "gemma3",
        always: &[GATED_RMS, &[("qk_norm", "head"), ("norm_place", "both")]],
        scaled: true,
        window: ("111110", Some(10_000.0)),
        ..ARCHITECTURE
    },
];

/// Reads what the metadata say.
pub(crate) fn read(m: &Metadata, store: &Store) -> Result<(&'static Architecture, Config)> {
    let architecture = m.str("general.architecture")?;
    let Some(kind) = ARCHITECTURES.iter().find(|kind| kind.name == architecture) else {
        let all: Vec<&str> = ARCHITECTURES.iter().map(|kind| kind.name).collect();
        return Err(bad(
            store.path(),
            format!("its architecture is `{architecture}`; limpid opens {}", all.join(", ")),
        ));
    };
    let key = |name: &str| format!("{architecture}.{name}");
    let size = |name: &str| m.u64(&key(name)).map(|n| n as usize);
    let maybe = |name: &str| m.get(&key(name)).map(|_| size(name)).transpose();
    let number = |name: &str| m.get(&key(name)).map(|_| m.f64(&key(name))).transpose();
    for expert in ["expert_count", "expert_used_count"] {
        if maybe(expert)?.is_some_and(|n| n > 0) {
            return Err(bad(store.path(), format!("it has experts (`{}`), which limpid has not", key(expert))));
        }
    }
    let (d_model, n_head) = (size("embedding_length")?, size("attention.head_count")?);
    let rows = |name: &str| store.get(name).and_then(|t| t.shape.first().copied());
    let Some(vocab_size) = rows("token_embd.weight") else {
        return Err(CheckpointError::Missing { path: store.path().into(), tensor: "token_embd.weight".into() });
    };
    let of_file = |source| CheckpointError::Config { path: store.path().into(), source };
    let mut config = Config {
        vocab_size,
        context_length: size("context_length")?,
        d_model,
        n_head,
        n_layer: size("block_count")?,
        d_ff: size("feed_forward_length")?,
        tied_head: store.get("output.weight").is_none(),
        ..Config::default()
    };
    kind.always.iter().copied().flatten().try_for_each(|(name, value)| config.set(name, value)).map_err(of_file)?;
    if config.positions == Positions::Rotary {
        let turned = maybe("rope.dimension_count")?;
        let d_head = maybe("attention.key_length")?.or(turned);
        let bias = |name: &str| store.get(&format!("blk.0.{name}.bias")).is_some();
        config.n_kv_head = maybe("attention.head_count_kv")?.filter(|n| *n != n_head);
        config.d_head = d_head.filter(|d| d.checked_mul(n_head) != Some(d_model));
        config.rotary_base = number("rope.freq_base")?.unwrap_or(10_000.0);
        config.rotary_scaling = scaling(m, store, &key, d_head.unwrap_or(d_model / n_head.max(1)))?;
        (config.attention_bias, config.ffn_bias) = (bias("attn_q"), bias("ffn_up"));
        config.attention_out_bias = Some(bias("attn_output")).filter(|out| *out != config.attention_bias);
        if let Some(window) = maybe("attention.sliding_window")?.filter(|n| *n > 0) {
            config.window = window;
            config.set("window_layers", kind.window.0).map_err(of_file)?;
            config.rotary_base_window = kind.window.1;
        }
    }
    if kind.scaled {
        config.embedding_scale = (d_model as f64).sqrt();
    }
    let eps = if config.norm == NormKind::Rms { "layer_norm_rms_epsilon" } else { "layer_norm_epsilon" };
    (config.norm_eps, config.rotary_base) =
        (shortest(m.f64(&key(&format!("attention.{eps}")))?), shortest(config.rotary_base));
    config.check().map(|()| (kind, config)).map_err(of_file)
}

/// What was written 1e-5 and stored as f32 is 1e-5 again.
fn shortest(x: f64) -> f64 {
    (x as f32).to_string().parse().unwrap_or(x)
}

/// The rotary angles' scaling: a factor for all pairs, or Llama 3.1's factors for each, recognised.
fn scaling(m: &Metadata, store: &Store, key: &dyn Fn(&str) -> String, d_head: usize) -> Result<RotaryScaling> {
    let kind = key("rope.scaling.type");
    let factor = key("rope.scaling.factor");
    match m.get(&kind).map(|_| m.str(&kind)).transpose()? {
        None | Some("none") => {}
        Some("linear") => return Ok(RotaryScaling { factor: m.f64(&factor)?, ..RotaryScaling::NONE }),
        Some(other) => {
            return Err(bad(store.path(), format!("`{kind}` is `{other}`; limpid has none and linear")));
        }
    }
    let Some(stored) = store.get(ROPE_FREQS) else { return Ok(RotaryScaling::NONE) };
    let found = stored.values()?;
    let base = m.get(&key("rope.freq_base")).map_or(Ok(10_000.0), |_| m.f64(&key("rope.freq_base")))?;
    let factor = shortest(found.iter().copied().fold(1.0, f32::max).into());
    let original = key("rope.scaling.original_context_length");
    let given = m.get(&original).map(|_| m.u64(&original)).transpose()?.map(|n| n as usize);
    let tried = given.into_iter().chain((4..24).map(|n| 1 << n));
    if found.len() != d_head / 2 {
        let what = format!("`{ROPE_FREQS}` has {} numbers, and heads of {d_head} features {}", found.len(), d_head / 2);
        return Err(bad(store.path(), what));
    }
    let agree = |s: &RotaryScaling| {
        let want = factors(*s, base, d_head);
        want.iter().zip(&*found).all(|(w, f)| (w - f).abs() <= 1e-4 * w)
    };
    // llama.cpp's converter leaves out what its tensor says already; Llama 3.1's are 1 and 4
    let bound = |name: &str, usual: f64| m.get(&key(name)).map_or(Ok(usual), |_| m.f64(&key(name)));
    let (low, high) = (bound(LOW, 1.0)?, bound(HIGH, 4.0)?);
    let mut all = tried.map(|context| RotaryScaling {
        factor,
        low: shortest(low),
        high: shortest(high),
        context,
        ..RotaryScaling::NONE
    });
    all.find(agree).ok_or_else(|| {
        bad(store.path(), format!("`{ROPE_FREQS}` scales the rotary angles in a way that is not Llama 3.1's"))
    })
}

/// How many times slower each pair of a head turns.
pub(crate) fn factors(scaling: RotaryScaling, base: f64, d_head: usize) -> Vec<f32> {
    let frequency = |i: usize| base.powf(-((2 * i) as f64) / d_head as f64);
    (0..d_head / 2).map(|i| (frequency(i) / scaling.apply(frequency(i))) as f32).collect()
}

/// How conversations are written, in Jinja.
pub(crate) const CHAT_TEMPLATE: &str = "tokenizer.chat_template";

/// The tokenizer inside, if there is one.
pub(crate) fn read_tokenizer(m: &Metadata, path: &Path) -> Result<Option<Tokenizer>> {
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let model = match m.get(&key("model")).map(|_| m.str(&key("model"))).transpose()? {
        None | Some("none" | "no_vocab") => return Ok(None),
        Some("gpt2") => "gpt2",
        Some("llama") => "llama",
        Some(other) => {
            let what = format!(
                "its tokenizer is of the kind `{other}`; limpid reads gpt2 and llama: give it a tokenizer of its own"
            );
            return Err(bad(path, what));
        }
    };
    let maybe_id = |name: &str| m.get(&key(name)).map(|_| m.u64(&key(name))).transpose();
    let flag = |name: &str, otherwise| m.get(&key(name)).map_or(Ok(otherwise), |_| m.bool(&key(name)));
    let spm = model == "llama";
    let tokens = m.strings(&key("tokens"))?.to_vec();
    let table = Table {
        pre: m.get(&key("pre")).map_or(Ok("default"), |_| m.str(&key("pre")))?.to_string(),
        types: m
            .get(&key("token_type"))
            .map_or(Ok(vec![1; tokens.len()]), |_| m.i32s(&key("token_type")).map(<[i32]>::to_vec))?,
        tokens,
        scores: match m.get(&key("scores")) {
            Some(GgufValue::Array(Array::F32(scores))) => Some(scores.clone()),
            _ => None,
        },
        merges: m.get(&key("merges")).map_or(Ok(vec![]), |_| m.strings(&key("merges")).map(<[String]>::to_vec))?,
        bos: maybe_id("bos_token_id")?.map(|id| id as u32),
        eos: maybe_id("eos_token_id")?.map(|id| id as u32),
        add_bos: flag("add_bos_token", spm)?,
        add_space_prefix: flag("add_space_prefix", spm)?,
        model,
    };
    let of_file = |fault: TokenizerError| TokenizerError::File { path: path.into(), fault: fault.into() };
    Ok(Some(Tokenizer::from_table(table).map_err(of_file)?))
}

/// The metadata of a model and its tokenizer, and the configuration with all that the architecture always has.
pub(crate) fn express(c: &Config, tokenizer: Option<&Tokenizer>) -> Result<(Metadata, Config)> {
    let (family, config, mut not) = nearest(c, &[&GPT2, &LLAMA]);
    let llama = family.name == LLAMA.name;
    let (architecture, wanted) = match llama {
        true => ("llama", Activation::Silu),
        false => ("gpt2", Activation::GeluTanh),
    };
    let setting = format!("activation {wanted}");
    not.unless(c.activation == wanted, format!("activation {} (it has {wanted})", c.activation), setting);
    if !llama {
        not.attention_scale(c);
    }
    let kind = config.rotary_scaling.kind;
    not.unless(kind == RotaryKind::Bands, format!("rotary_scaling_kind {kind}"), "rotary_scaling_kind bands");
    not.check(&format!("GGUF's {architecture}"))?;
    let mut m = Metadata::default();
    m.set("general.architecture", architecture.to_string());
    m.set("general.name", "limpid".to_string());
    let mut put = |name: &str, value: GgufValue| m.set(format!("{architecture}.{name}"), value);
    let size = |n: usize| GgufValue::U32(u32::try_from(n).unwrap_or(u32::MAX));
    put("context_length", size(c.context_length));
    put("embedding_length", size(c.d_model));
    put("block_count", size(c.n_layer));
    put("feed_forward_length", size(c.d_ff));
    put("attention.head_count", size(c.n_head));
    put("vocab_size", size(c.vocab_size));
    match llama {
        true => {
            put("attention.head_count_kv", size(c.heads().n_kv_head));
            put("attention.key_length", size(c.d_head()));
            put("attention.value_length", size(c.d_head()));
            put("attention.layer_norm_rms_epsilon", GgufValue::F32(c.norm_eps as f32));
            put("rope.dimension_count", size(c.d_head()));
            put("rope.freq_base", GgufValue::F32(c.rotary_base as f32));
            let s = c.rotary_scaling;
            if s.factor != 1.0 && s.context == 0 {
                put("rope.scaling.type", GgufValue::String("linear".into()));
                put("rope.scaling.factor", GgufValue::F32(s.factor as f32));
            } else if s.factor != 1.0 {
                put("rope.scaling.original_context_length", size(s.context));
                put(LOW, GgufValue::F32(s.low as f32));
                put(HIGH, GgufValue::F32(s.high as f32));
            }
        }
        false => put("attention.layer_norm_epsilon", GgufValue::F32(c.norm_eps as f32)),
    }
    match tokenizer {
        Some(tokenizer) => write_tokenizer(&mut m, tokenizer.table()?, c.vocab_size),
        None => m.set("tokenizer.ggml.model", "none".to_string()),
    }
    Ok((m, config))
}

fn write_tokenizer(m: &mut Metadata, mut t: Table, vocab_size: usize) {
    // rows of the table that no token has
    for i in t.tokens.len()..vocab_size {
        t.tokens.push(format!("[PAD{i}]"));
        t.types.push(5);
        if let Some(scores) = &mut t.scores {
            scores.push(0.0);
        }
    }
    let mut put = |name: &str, value: GgufValue| m.set(format!("tokenizer.ggml.{name}"), value);
    put("model", GgufValue::String(t.model.into()));
    put("pre", GgufValue::String(t.pre));
    put("tokens", t.tokens.into());
    put("token_type", t.types.into());
    match t.scores {
        Some(scores) => put("scores", scores.into()),
        None => put("merges", t.merges.into()),
    }
    for (name, id) in [("bos_token_id", t.bos), ("eos_token_id", t.eos)] {
        if let Some(id) = id {
            put(name, GgufValue::U32(id));
        }
    }
    put("add_bos_token", GgufValue::Bool(t.add_bos));
    put("add_space_prefix", GgufValue::Bool(t.add_space_prefix));
}

/// How a tensor of a model that is written as `dtype` is stored.
pub(crate) fn stored_as(name: &str, shape: &[usize], dtype: &Dtype) -> Dtype {
    let fits = |quant: &Quant| shape.last().is_some_and(|n| n.is_multiple_of(quant.sizes().0));
    match dtype {
        _ if shape.len() < 2 || name == "position_embd.weight" => Dtype::F32,
        Dtype::Blocks(quant) => [*quant, Quant::Q8_0].into_iter().find(fits).map_or(Dtype::F16, Dtype::Blocks),
        dtype => dtype.clone(),
    }
}

/// llama.cpp's number for what most tensors are (`general.file_type`).
pub(crate) fn file_type(dtype: &Dtype) -> u32 {
    match dtype {
        Dtype::F16 => 1,
        Dtype::Blocks(Quant::Q4_0) => 2,
        Dtype::Blocks(Quant::Q8_0) => 7,
        Dtype::Blocks(Quant::Q4_K) => 14, // every matrix alike: "Q4_K - Small"
        Dtype::Bf16 => 32,
        _ => 0,
    }
}

/// Which of its tensors is which of ours.
pub(crate) fn links(model: &Model, halves: bool) -> Vec<Link> {
    let mut l = Links::new(model);
    let rotary = model.config.positions == Positions::Rotary;
    l.whole("token_embd.weight", "embed.weight", TensorLayout::Same);
    l.whole("position_embd.weight", "pos_embed.weight", TensorLayout::Same);
    for i in 0..model.config.n_layer {
        let (h, b) = (format!("blk.{i}"), format!("blocks.{i}"));
        let turn = match model.config.rotary_dim_of(i) {
            turned if halves && turned > 0 => TensorLayout::Halves { d_head: model.config.d_head(), turned },
            _ => TensorLayout::Same,
        };
        let mut pair = |theirs: &str, ours: &str, turn| l.pair(&format!("{h}.{theirs}"), &format!("{b}.{ours}"), turn);
        for (theirs, ours, turn) in [
            ("attn_norm", "ln1", TensorLayout::Same),
            ("attn_q_norm", "attn.q_norm", turn),
            ("attn_k_norm", "attn.k_norm", turn),
            ("attn_output", "attn.out", TensorLayout::Same),
            ("post_attention_norm", "ln1_post", TensorLayout::Same),
            ("ffn_norm", "ln2", TensorLayout::Same),
            ("ffn_gate", "mlp.gate", TensorLayout::Same),
            ("ffn_up", "mlp.in", TensorLayout::Same),
            ("ffn_down", "mlp.out", TensorLayout::Same),
            ("post_ffw_norm", "ln2_post", TensorLayout::Same),
        ] {
            pair(theirs, ours, turn);
        }
        match rotary {
            true => {
                let thirds = ["attn_q", "attn_k", "attn_v"].map(|x| format!("{h}.{x}"));
                l.thirds(thirds, &format!("{b}.attn.qkv"), [turn, turn, TensorLayout::Same]);
            }
            false => pair("attn_qkv", "attn.qkv", TensorLayout::Same),
        }
    }
    l.pair("output_norm", "ln_final", TensorLayout::Same);
    l.whole("output.weight", "unembed.weight", TensorLayout::Same);
    l.done()
}

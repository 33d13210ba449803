//! HuggingFace's folders: `config.json`, safetensors and the tokenizer's files, in four families.
//!
//! | family | model_type | is |
//! |---|---|---|
//! | GPT-2 | `gpt2` | pre-norm, learned positions, matrices (in, out) |
//! | GPT | `openai-gpt` | post-norm, no final norm, F = 4 C, matrices (in, out) |
//! | BERT | `bert` | post-norm, bidirectional, segments, a norm after the embedding, a head with a transform or none |
//! | Llama | `llama`, `mistral` | pre-norm by RMS, rotary, gated, shared key heads, no offsets |
//!
//! Every key of `config.json` either sets something here, or is known to change no number, or is an error.

use super::{Complaints, Link, Links, TensorLayout, common};
use limpid_core::config::{
    Activation, Config, ConfigError, Dropout, Mask, NormKind, NormPlace, Positions, RotaryScaling,
};
use limpid_core::model::Model;
use serde_json::{Map, Value, json};
use std::cell::RefCell;
use std::collections::HashSet;

/// One of HuggingFace's model families.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// GPT-2 (Radford et al. 2019).
    Gpt2,
    /// GPT (Radford et al. 2018).
    Gpt,
    /// BERT (Devlin et al. 2018), with or without its head.
    Bert,
    /// Llama (Touvron et al. 2023).
    Llama,
}

impl Family {
    /// All of them.
    pub const ALL: [Family; 4] = [Family::Gpt2, Family::Gpt, Family::Bert, Family::Llama];

    /// Its name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Family::Gpt2 => "GPT-2",
            Family::Gpt => "GPT",
            Family::Bert => "BERT",
            Family::Llama => "Llama",
        }
    }

    /// What stands before the names of all but the head.
    fn prefix(self) -> &'static str {
        match self {
            Family::Gpt2 | Family::Gpt => "transformer.",
            Family::Bert => "bert.",
            Family::Llama => "model.",
        }
    }

    /// What the weights say of the configuration: BERT's head is in the file or not, whatever config.json says.
    pub fn fit(self, config: Config, has: impl Fn(&str) -> bool) -> Config {
        let headless = self == Family::Bert && !has("cls.predictions.bias");
        match headless {
            true => Config { lm_head: false, tied_head: true, head_bias: false, head_transform: false, ..config },
            false => config,
        }
    }

    /// The name to write.
    pub fn full(self, name: &str, config: &Config) -> String {
        let bare = name.starts_with("lm_head.") || name.starts_with("cls.") || !config.lm_head;
        if bare { name.into() } else { format!("{}{name}", self.prefix()) }
    }

    /// The canonical form of a stored name; none if no number depends on the tensor: masks and index tables that old files
    /// carry, BERT's pooler and next-sentence head, copies of a tied table (compared in [`copies`](Family::copies)).
    pub fn tidy(self, stored: &str, config: &Config) -> Option<String> {
        let mut name = stored.replace("_orig_mod.", "");
        for prefix in ["module.", self.prefix()] {
            name = name.strip_prefix(prefix).map_or(name.clone(), String::from);
        }
        let copy = |of: &str| config.tied_head && name == of;
        let idle = match self {
            Family::Gpt2 | Family::Gpt => {
                name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") || copy("lm_head.weight")
            }
            Family::Bert => {
                name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias");
                name == "embeddings.position_ids"
                    || name.starts_with("pooler.")
                    || name.starts_with("cls.seq_relationship.")
                    || name == "cls.predictions.decoder.bias"
                    || config.tied_head && name == "cls.predictions.decoder.weight"
                    || !config.lm_head && name.starts_with("cls.")
            }
            Family::Llama => name.ends_with(".rotary_emb.inv_freq") || copy("lm_head.weight"),
        };
        (!idle).then_some(name)
    }

    /// Names that, where both are stored, must hold the same: a tied table and its copy.
    pub fn copies(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Family::Gpt2 => &[("lm_head.weight", "wte.weight")],
            Family::Gpt => &[("lm_head.weight", "tokens_embed.weight")],
            Family::Bert => &[
                ("cls.predictions.decoder.weight", "embeddings.word_embeddings.weight"),
                ("cls.predictions.decoder.bias", "cls.predictions.bias"),
            ],
            Family::Llama => &[("lm_head.weight", "embed_tokens.weight")],
        }
    }

    /// Which tensor of theirs is which of ours.
    pub fn links(self, model: &Model) -> Vec<Link> {
        let mut l = Links::new(model);
        let (c, blocks) = (&model.config, 0..model.config.n_layer);
        match self {
            Family::Gpt2 | Family::Gpt => {
                let [tokens, positions] =
                    if self == Family::Gpt2 { ["wte", "wpe"] } else { ["tokens_embed", "positions_embed"] };
                l.vocabulary(format!("{tokens}.weight"), "embed.weight");
                l.whole(format!("{positions}.weight"), "pos_embed.weight", TensorLayout::Same);
                for i in blocks {
                    let (h, b) = (format!("h.{i}"), format!("blocks.{i}"));
                    l.pair(&format!("{h}.ln_1"), &format!("{b}.ln1"), TensorLayout::Same);
                    l.pair(&format!("{h}.attn.c_attn"), &format!("{b}.attn.qkv"), TensorLayout::Transposed);
                    l.pair(&format!("{h}.attn.c_proj"), &format!("{b}.attn.out"), TensorLayout::Transposed);
                    l.pair(&format!("{h}.ln_2"), &format!("{b}.ln2"), TensorLayout::Same);
                    l.pair(&format!("{h}.mlp.c_fc"), &format!("{b}.mlp.in"), TensorLayout::Transposed);
                    l.pair(&format!("{h}.mlp.c_proj"), &format!("{b}.mlp.out"), TensorLayout::Transposed);
                }
                l.pair("ln_f", "ln_final", TensorLayout::Same);
                l.vocabulary("lm_head.weight", "unembed.weight");
            }
            Family::Bert => {
                l.vocabulary("embeddings.word_embeddings.weight", "embed.weight");
                l.whole("embeddings.position_embeddings.weight", "pos_embed.weight", TensorLayout::Same);
                l.whole("embeddings.token_type_embeddings.weight", "segment_embed.weight", TensorLayout::Same);
                l.pair("embeddings.LayerNorm", "embed_norm", TensorLayout::Same);
                for i in blocks {
                    let (h, b) = (format!("encoder.layer.{i}"), format!("blocks.{i}"));
                    let thirds = ["query", "key", "value"].map(|x| format!("{h}.attention.self.{x}"));
                    l.thirds(thirds, &format!("{b}.attn.qkv"), [TensorLayout::Same; 3]);
                    l.pair(&format!("{h}.attention.output.dense"), &format!("{b}.attn.out"), TensorLayout::Same);
                    l.pair(&format!("{h}.attention.output.LayerNorm"), &format!("{b}.ln1"), TensorLayout::Same);
                    l.pair(&format!("{h}.intermediate.dense"), &format!("{b}.mlp.in"), TensorLayout::Same);
                    l.pair(&format!("{h}.output.dense"), &format!("{b}.mlp.out"), TensorLayout::Same);
                    l.pair(&format!("{h}.output.LayerNorm"), &format!("{b}.ln2"), TensorLayout::Same);
                }
                l.pair("cls.predictions.transform.dense", "head.dense", TensorLayout::Same);
                l.pair("cls.predictions.transform.LayerNorm", "head.ln", TensorLayout::Same);
                l.vocabulary("cls.predictions.decoder.weight", "unembed.weight");
                l.vocabulary("cls.predictions.bias", "unembed.bias");
            }
            Family::Llama => {
                l.vocabulary("embed_tokens.weight", "embed.weight");
                let halves = TensorLayout::Halves { d_head: c.d_head() };
                for i in blocks {
                    let (h, b) = (format!("layers.{i}"), format!("blocks.{i}"));
                    l.pair(&format!("{h}.input_layernorm"), &format!("{b}.ln1"), TensorLayout::Same);
                    let thirds = ["q_proj", "k_proj", "v_proj"].map(|x| format!("{h}.self_attn.{x}"));
                    l.thirds(thirds, &format!("{b}.attn.qkv"), [halves, halves, TensorLayout::Same]);
                    l.pair(&format!("{h}.self_attn.o_proj"), &format!("{b}.attn.out"), TensorLayout::Same);
                    l.pair(&format!("{h}.post_attention_layernorm"), &format!("{b}.ln2"), TensorLayout::Same);
                    l.pair(&format!("{h}.mlp.gate_proj"), &format!("{b}.mlp.gate"), TensorLayout::Same);
                    l.pair(&format!("{h}.mlp.up_proj"), &format!("{b}.mlp.in"), TensorLayout::Same);
                    l.pair(&format!("{h}.mlp.down_proj"), &format!("{b}.mlp.out"), TensorLayout::Same);
                }
                l.pair("norm", "ln_final", TensorLayout::Same);
                l.vocabulary("lm_head.weight", "unembed.weight");
            }
        }
        l.done()
    }
}

/// Keys that change no number of a model: what HuggingFace's `PreTrainedConfig` puts into every file, and settings of its
/// training, generation and other heads.
#[rustfmt::skip]
const IDLE: &[&str] = &[
    "model_type", "architectures", "transformers_version", "torch_dtype", "dtype", "_name_or_path", "name_or_path",
    "use_cache", "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "cls_token_id", "unk_token_id",
    "mask_token_id", "decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id", "initializer_range",
    "output_attentions", "output_hidden_states", "output_scores", "return_dict", "return_dict_in_generate", "torchscript",
    "problem_type", "id2label", "label2id", "num_labels", "finetuning_task", "task_specific_params", "tokenizer_class",
    "prefix", "gradient_checkpointing", "chunk_size_feed_forward", "attn_implementation", "_attn_implementation",
    "_attn_implementation_autoset", "attention_implementation", "reorder_and_upcast_attn", "pretraining_tp", "n_ctx",
    "n_special", "predict_special_tokens", "summary_type", "summary_use_proj", "summary_activation",
    "summary_first_dropout", "summary_proj_to_labels", "classifier_dropout", "directionality", "pooler_fc_size",
    "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head", "pooler_type", "max_length",
    "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups", "diversity_penalty", "temperature",
    "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty", "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences", "exponential_decay_length_penalty",
    "suppress_tokens", "begin_suppress_tokens", "remove_invalid_values", "use_bfloat16", "tf_legacy_loss",
    "is_encoder_decoder", "layer_norm_type", "max_sequence_length", "model_max_length",
];

/// A config.json, and which of its keys have been asked for.
struct Keys<'a> {
    map: &'a Map<String, Value>,
    asked: RefCell<HashSet<&'static str>>,
}

type Answer<T> = Result<T, ConfigError>;

fn refuse<T>(what: impl Into<String>) -> Answer<T> {
    Err(ConfigError::File(what.into()))
}

impl Keys<'_> {
    /// The value under the first of several names for one thing; null is nothing.
    fn find(&self, names: &[&'static str]) -> Option<(&'static str, &Value)> {
        self.asked.borrow_mut().extend(names);
        names.iter().find_map(|name| Some((*name, self.map.get(*name)?))).filter(|(_, value)| !value.is_null())
    }
    fn wrong<T>(name: &str, value: &Value, wanted: &str) -> Answer<T> {
        refuse(format!("`{name}` is {value}: it must be {wanted}"))
    }
    fn maybe_size(&self, names: &[&'static str]) -> Answer<Option<usize>> {
        match self.find(names) {
            None => Ok(None),
            Some((name, value)) => match value.as_u64().and_then(|n| usize::try_from(n).ok()) {
                Some(size) => Ok(Some(size)),
                None => Keys::wrong(name, value, "a whole number"),
            },
        }
    }
    fn size(&self, names: &[&'static str]) -> Answer<usize> {
        match self.maybe_size(names)? {
            Some(size) => Ok(size),
            None => refuse(format!("it lacks the key `{}`", names[0])),
        }
    }
    fn number(&self, name: &'static str, otherwise: f64) -> Answer<f64> {
        match self.find(&[name]) {
            None => Ok(otherwise),
            Some((_, value)) => value.as_f64().map_or_else(|| Keys::wrong(name, value, "a number"), Ok),
        }
    }
    fn flag(&self, name: &'static str, otherwise: bool) -> Answer<bool> {
        match self.find(&[name]) {
            None => Ok(otherwise),
            Some((_, value)) => value.as_bool().map_or_else(|| Keys::wrong(name, value, "true or false"), Ok),
        }
    }
    fn text(&self, names: &[&'static str], otherwise: &'static str) -> Answer<&str> {
        match self.find(names) {
            None => Ok(otherwise),
            Some((name, value)) => value.as_str().map_or_else(|| Keys::wrong(name, value, "a name"), Ok),
        }
    }
    /// A setting that limpid has in one way only.
    fn only(&self, name: &'static str, wanted: Value, why: &str) -> Answer<()> {
        match self.find(&[name]) {
            Some((_, value)) if *value != wanted => {
                refuse(format!("`{name}` is {value}: limpid has {wanted} only ({why})"))
            }
            _ => Ok(()),
        }
    }
    /// Refuses keys that nobody asked for, unless they are known, or say no.
    fn rest(&self) -> Answer<()> {
        let says_no = |value: &Value| match value {
            Value::Null | Value::Bool(false) => true,
            Value::Array(list) => list.is_empty(),
            Value::Object(map) => map.is_empty(),
            _ => false,
        };
        let asked = self.asked.borrow();
        let odd = |(key, value): &(&String, &Value)| {
            !asked.contains(key.as_str()) && !IDLE.contains(&key.as_str()) && !says_no(value)
        };
        match self.map.iter().find(odd) {
            None => Ok(()),
            Some((key, value)) => refuse(format!(
                "`{key}` is {value}, which limpid does not know: it may change the model's numbers; \
                 take the key out of the file if it does not"
            )),
        }
    }
}

/// HuggingFace's names for an activation, the one to write first (`transformers.activations`).
fn spellings(f: Activation) -> &'static [&'static str] {
    match f {
        Activation::Relu => &["relu"],
        Activation::LeakyRelu => &["leaky_relu"],
        Activation::GeluErf => &["gelu", "gelu_python"],
        Activation::GeluTanh => &["gelu_new", "gelu_pytorch_tanh", "gelu_python_tanh", "gelu_fast", "gelu_accurate"],
        Activation::GeluSigmoid => &["quick_gelu"],
        Activation::Silu => &["silu", "swish"],
        Activation::Relu2 => &["relu2"],
        Activation::Sigmoid => &["sigmoid"],
        Activation::Tanh => &["tanh"],
    }
}

/// GPT's own, shorter list: its `gelu` is the others' `gelu_new`.
fn gpt_spellings(f: Activation) -> &'static [&'static str] {
    match f {
        Activation::Relu => &["relu"],
        Activation::GeluTanh => &["gelu"],
        Activation::Silu => &["silu", "swish"],
        _ => &[],
    }
}

fn activation(
    k: &Keys,
    key: &'static str,
    usual: &'static str,
    spellings: fn(Activation) -> &'static [&'static str],
) -> Answer<Activation> {
    use limpid_core::config::Axis;
    let name = k.text(&[key], usual)?;
    let all = || Activation::ALL.iter().flat_map(|f| spellings(*f).iter().copied());
    match Activation::ALL.iter().find(|f| spellings(**f).contains(&name)) {
        Some(f) => Ok(*f),
        None => {
            refuse(format!("`{key}`: {}", limpid_core::config::unknown("activation", name, &all().collect::<Vec<_>>())))
        }
    }
}

/// Reads a config.json of one of the families.
///
/// # Errors
/// If the model is of another family, or has something that limpid has not: by key.
pub fn read(text: &str) -> Answer<(Family, Config)> {
    let value: Value = serde_json::from_str(text).map_err(|e| ConfigError::File(format!("it is not JSON: {e}")))?;
    let Some(map) = value.as_object() else { return refuse("it is not a JSON object") };
    let keys = Keys { map, asked: RefCell::default() };
    let family = match map.get("model_type").and_then(Value::as_str) {
        Some("gpt2") => Family::Gpt2,
        Some("openai-gpt") => Family::Gpt,
        Some("bert") => Family::Bert,
        Some("llama" | "mistral") => Family::Llama,
        Some(other) => {
            let all = ["gpt2", "openai-gpt", "bert", "llama", "mistral", "limpid"];
            return Err(limpid_core::config::unknown("model_type", other, &all));
        }
        None => return refuse("it has no model_type, so nothing says what kind of model it is"),
    };
    keys.only("is_encoder_decoder", json!(false), "decoders and encoders by themselves")?;
    keys.only("add_cross_attention", json!(false), "attention is to the sequence itself")?;
    keys.only(
        "quantization_config",
        Value::Null,
        "weights are read as they are stored; convert to a plain model first",
    )?;
    keys.only("pruned_heads", json!({}), "all heads have one size")?;
    let config = match family {
        Family::Gpt2 | Family::Gpt => read_gpt(&keys, family),
        Family::Bert => read_bert(&keys),
        Family::Llama => read_llama(&keys, map["model_type"] == "mistral"),
    }?;
    keys.rest()?;
    config.check()?;
    Ok((family, config))
}

fn read_gpt(k: &Keys, family: Family) -> Answer<Config> {
    let d_model = k.size(&["n_embd", "hidden_size"])?;
    let inner = if family == Family::Gpt2 { k.maybe_size(&["n_inner"])? } else { None };
    let residual = k.number("resid_pdrop", 0.1)?;
    let (embedding, attention) = (k.number("embd_pdrop", 0.1)?, k.number("attn_pdrop", 0.1)?);
    let base = Config {
        vocab_size: k.size(&["vocab_size"])?,
        context_length: k.size(&["n_positions", "max_position_embeddings", "n_ctx"])?,
        d_model,
        n_head: k.size(&["n_head", "num_attention_heads"])?,
        n_layer: k.size(&["n_layer", "num_hidden_layers"])?,
        d_ff: inner.unwrap_or(d_model.saturating_mul(4)),
        norm_eps: k.number("layer_norm_epsilon", 1e-5)?,
        tied_head: k.flag("tie_word_embeddings", true)?,
        dropout: Dropout { embedding, attention, projection: residual, ffn: residual, ..Dropout::NONE },
        ..Config::default()
    };
    Ok(match family {
        Family::Gpt2 => Config {
            activation: activation(k, "activation_function", "gelu_new", spellings)?,
            attention_scale: k.flag("scale_attn_weights", true)?,
            attention_scale_by_layer: k.flag("scale_attn_by_inverse_layer_idx", false)?,
            ..base
        },
        _ => Config {
            activation: activation(k, "afn", "gelu", gpt_spellings)?,
            norm_place: NormPlace::Post,
            final_norm: false,
            ..base
        },
    })
}

fn read_bert(k: &Keys) -> Answer<Config> {
    k.only("position_embedding_type", json!("absolute"), "a trained table")?;
    k.only("is_decoder", json!(false), "BERT sees both ways")?;
    let hidden = k.number("hidden_dropout_prob", 0.1)?;
    Ok(Config {
        vocab_size: k.size(&["vocab_size"])?,
        context_length: k.size(&["max_position_embeddings"])?,
        d_model: k.size(&["hidden_size"])?,
        n_head: k.size(&["num_attention_heads"])?,
        n_layer: k.size(&["num_hidden_layers"])?,
        d_ff: k.size(&["intermediate_size"])?,
        n_segment: k.maybe_size(&["type_vocab_size"])?.unwrap_or(2),
        norm_place: NormPlace::Post,
        final_norm: false,
        embedding_norm: true,
        norm_eps: k.number("layer_norm_eps", 1e-12)?,
        mask: Mask::Bidirectional,
        activation: activation(k, "hidden_act", "gelu", spellings)?,
        tied_head: k.flag("tie_word_embeddings", true)?,
        head_bias: true,
        head_transform: true,
        dropout: Dropout {
            embedding: hidden,
            attention: k.number("attention_probs_dropout_prob", 0.1)?,
            projection: hidden,
            ffn: hidden,
            ..Dropout::NONE
        },
        ..Config::default()
    })
}

fn read_llama(k: &Keys, mistral: bool) -> Answer<Config> {
    let context_length = k.maybe_size(&["max_position_embeddings"])?.unwrap_or(2048);
    let given = k.map.contains_key("sliding_window");
    let window = k.maybe_size(&["sliding_window"])?.or((mistral && !given).then_some(4096)); // Mistral's default
    if let Some(window) = window
        && window < context_length
    {
        return refuse(format!("`sliding_window` is {window}: limpid's attention sees all {context_length} positions"));
    }
    let (d_model, n_head) = (k.size(&["hidden_size"])?, k.size(&["num_attention_heads"])?);
    let d_head = k.maybe_size(&["head_dim"])?.filter(|d| d.checked_mul(n_head) != Some(d_model));
    let (rotary_base, rotary_scaling) = read_rope(k, context_length)?;
    Ok(Config {
        vocab_size: k.size(&["vocab_size"])?,
        context_length,
        d_model,
        n_head,
        n_kv_head: k.maybe_size(&["num_key_value_heads"])?.filter(|n| *n != n_head),
        d_head,
        n_layer: k.size(&["num_hidden_layers"])?,
        d_ff: k.size(&["intermediate_size"])?,
        positions: Positions::Rotary,
        rotary_base,
        rotary_scaling,
        norm: NormKind::Rms,
        norm_eps: k.number("rms_norm_eps", 1e-6)?,
        norm_offset: false,
        attention_bias: k.flag("attention_bias", false)?,
        ffn_bias: k.flag("mlp_bias", false)?,
        activation: activation(k, "hidden_act", "silu", spellings)?,
        ffn_gated: true,
        tied_head: k.flag("tie_word_embeddings", false)?,
        dropout: Dropout { attention: k.number("attention_dropout", 0.0)?, ..Dropout::NONE },
        ..Config::default()
    })
}

/// Base and scaling of the rotary angles: `rope_parameters`, or `rope_theta` and `rope_scaling` as they were before.
fn read_rope(k: &Keys, context_length: usize) -> Answer<(f64, RotaryScaling)> {
    let base = k.number("rope_theta", 10_000.0)?;
    let Some((name, value)) = k.find(&["rope_parameters"]).or(k.find(&["rope_scaling"])) else {
        return Ok((base, RotaryScaling::NONE));
    };
    k.find(&["rope_scaling"]);
    let Some(map) = value.as_object() else { return Keys::wrong(name, value, "an object") };
    let inner = Keys { map, asked: RefCell::default() };
    let base = inner.number("rope_theta", base)?;
    let kind = inner.text(&["rope_type", "type"], "default")?.to_string();
    inner.find(&["type"]);
    let scaling = match kind.as_str() {
        "default" => RotaryScaling::NONE,
        "linear" => RotaryScaling { factor: inner.number("factor", 1.0)?, ..RotaryScaling::NONE },
        "llama3" => RotaryScaling {
            factor: inner.number("factor", 1.0)?,
            low: inner.number("low_freq_factor", 1.0)?,
            high: inner.number("high_freq_factor", 4.0)?,
            context: inner.maybe_size(&["original_max_position_embeddings"])?.unwrap_or(context_length),
        },
        other => return refuse(format!("`{name}` has the type `{other}`: limpid has default, linear and llama3")),
    };
    inner.rest()?;
    Ok((base, scaling))
}

/// The family and the configuration that says of `c` what can be said there: with what changes nothing (biases of zeros,
/// gains of ones, a table of sinusoids) where the family always has it.
///
/// # Errors
/// Says what of `c` the family nearest to it lacks.
pub fn express(c: &Config) -> Result<(Family, Config), super::CheckpointError> {
    let (family, config, not) = nearest(c, &Family::ALL);
    not.check(&format!("HuggingFace's {}, the family nearest to it,", family.name()))?;
    Ok((family, config))
}

/// The family of some that lacks least of a model, the configuration there, and what it lacks.
pub(super) fn nearest(c: &Config, families: &[Family]) -> (Family, Config, Complaints) {
    let all = families.iter().map(|family| {
        let (config, not) = candidate(*family, c);
        (*family, config, not)
    });
    all.min_by_key(|(_, _, not)| not.0.len()).expect("there are families")
}

fn candidate(family: Family, c: &Config) -> (Config, Complaints) {
    let mut not = common(c);
    let llama = family == Family::Llama;
    let pre = matches!(family, Family::Gpt2 | Family::Llama);
    let known = if family == Family::Gpt { gpt_spellings(c.activation) } else { spellings(c.activation) };
    not.unless(!known.is_empty(), format!("activation {}", c.activation), "activation gelu-tanh");
    not.unless(
        (c.norm_place == NormPlace::Pre) == pre,
        format!("norm_place {}", c.norm_place),
        if pre { "norm_place pre" } else { "norm_place post" },
    );
    not.unless(c.final_norm == pre, format!("final_norm {}", c.final_norm), format_args!("final_norm {pre}"));
    let positions = if llama { Positions::Rotary } else { Positions::Learned };
    let setting = format!("positions {positions}");
    not.unless((c.positions == Positions::Rotary) == llama, format!("positions {}", c.positions), setting);
    let norm = if llama { NormKind::Rms } else { NormKind::Layer };
    not.unless(c.norm == norm, format!("norm {}", c.norm), format_args!("norm {norm}"));
    not.unless(c.ffn_gated == llama, format!("ffn_gated {}", c.ffn_gated), format_args!("ffn_gated {llama}"));
    let heads = c.heads();
    not.unless(llama || heads.n_kv_head == heads.n_head, "n_kv_head", format_args!("n_kv_head {}", heads.n_head));
    let d_head = c.d_model / heads.n_head;
    not.unless(llama || heads.query_cols() == c.d_model, "d_head", format_args!("d_head {d_head}"));
    not.unless(family == Family::Gpt2 || c.attention_scale, "attention_scale false", "attention_scale true");
    let by_layer = "attention_scale_by_layer false";
    not.unless(family == Family::Gpt2 || !c.attention_scale_by_layer, "attention_scale_by_layer", by_layer);
    let wide = format!("d_ff {}", 4 * c.d_model);
    not.unless(family != Family::Gpt || c.d_ff == 4 * c.d_model, "d_ff other than 4 d_model", wide);
    not.unless(!llama || !c.norm_offset, "norm_offset true", "norm_offset false");
    if family == Family::Bert {
        not.unless(c.mask == Mask::Bidirectional, format!("mask {}", c.mask), "mask bidirectional");
        not.unless(c.embedding_norm, "embedding_norm false", "embedding_norm true");
        not.unless(!c.lm_head || c.head_transform, "head_transform false", "head_transform true");
    } else {
        not.unless(c.mask == Mask::Causal, format!("mask {}", c.mask), "mask causal");
        not.unless(!c.embedding_norm, "embedding_norm true", "embedding_norm false");
        not.unless(c.n_segment == 0, "n_segment", "n_segment 0");
        not.unless(c.lm_head, "lm_head false", "");
        not.unless(!c.head_bias, "head_bias true", "head_bias false");
        not.unless(!c.head_transform, "head_transform true", "head_transform false");
    }
    let mut config = Config { norm_gain: true, ..c.clone() };
    if !llama {
        (config.positions, config.norm_offset) = (Positions::Learned, true);
        (config.attention_bias, config.ffn_bias) = (true, true);
    }
    if family == Family::Bert {
        config.n_segment = c.n_segment.max(2);
        config.head_bias = c.lm_head;
    }
    (config, not)
}

/// The text of config.json for what [`express`] gave.
pub fn write(family: Family, c: &Config, end_of_text: Option<u32>) -> String {
    let act = || spellings(c.activation)[0];
    let d = c.dropout;
    let mut value = match family {
        Family::Gpt2 | Family::Gpt => json!({
            "n_positions": c.context_length, "n_embd": c.d_model, "n_layer": c.n_layer, "n_head": c.n_head,
            "layer_norm_epsilon": c.norm_eps,
            "embd_pdrop": d.embedding, "attn_pdrop": d.attention, "resid_pdrop": d.projection,
        }),
        Family::Bert => json!({
            "hidden_size": c.d_model, "num_hidden_layers": c.n_layer, "num_attention_heads": c.n_head,
            "intermediate_size": c.d_ff, "max_position_embeddings": c.context_length, "type_vocab_size": c.n_segment,
            "layer_norm_eps": c.norm_eps, "hidden_act": act(),
            "hidden_dropout_prob": d.ffn, "attention_probs_dropout_prob": d.attention,
        }),
        Family::Llama => json!({
            "hidden_size": c.d_model, "num_hidden_layers": c.n_layer, "num_attention_heads": c.n_head,
            "num_key_value_heads": c.heads().n_kv_head, "head_dim": c.d_head(), "intermediate_size": c.d_ff,
            "max_position_embeddings": c.context_length, "rms_norm_eps": c.norm_eps, "hidden_act": act(),
            "attention_bias": c.attention_bias, "mlp_bias": c.ffn_bias, "attention_dropout": d.attention,
            "rope_theta": c.rotary_base,
        }),
    };
    let map = value.as_object_mut().expect("an object");
    let mut put = |key: &str, value: Value| drop(map.insert(key.into(), value));
    let (model_type, architecture) = match family {
        Family::Gpt2 => ("gpt2", "GPT2LMHeadModel"),
        Family::Gpt => ("openai-gpt", "OpenAIGPTLMHeadModel"),
        Family::Bert => ("bert", if c.lm_head { "BertForMaskedLM" } else { "BertModel" }),
        Family::Llama => ("llama", "LlamaForCausalLM"),
    };
    put("model_type", json!(model_type));
    put("architectures", json!([architecture]));
    put("vocab_size", json!(c.vocab_size));
    put("tie_word_embeddings", json!(c.tied_head));
    if family != Family::Bert {
        put("bos_token_id", json!(end_of_text));
        put("eos_token_id", json!(end_of_text));
    }
    match family {
        Family::Gpt2 => {
            put("n_inner", json!(c.d_ff));
            put("activation_function", json!(act()));
            put("scale_attn_weights", json!(c.attention_scale));
            put("scale_attn_by_inverse_layer_idx", json!(c.attention_scale_by_layer));
        }
        Family::Gpt => put("afn", json!(gpt_spellings(c.activation)[0])),
        Family::Bert => {}
        Family::Llama if c.rotary_scaling.factor == 1.0 => put("rope_scaling", Value::Null),
        Family::Llama => {
            let s = c.rotary_scaling;
            put(
                "rope_scaling",
                match s.context {
                    0 => json!({ "rope_type": "linear", "factor": s.factor }),
                    context => json!({
                        "rope_type": "llama3", "factor": s.factor, "low_freq_factor": s.low, "high_freq_factor": s.high,
                        "original_max_position_embeddings": context,
                    }),
                },
            );
        }
    }
    serde_json::to_string_pretty(&value).expect("a value is JSON") + "\n"
}

//! GGUF's architectures, as llama.cpp defines them: one table for reading and writing, and the tokenizer inside the file. An
//! [`Architecture`] is data, like HuggingFace's families: the settings that all its models share, its keys, its tensors, and the settings
//! that follow from which tensors are present. The table follows `src/models/*.cpp` and `conversion/*.py` of llama.cpp.
//!
//! Norms, biases, position and segment tables are F32 always; blocks are for matrices whose rows are whole blocks: others are Q8_0
//! then, or F16. GGUF has no key for an activation function: GPT-NeoX, Falcon, MPT and BERT are read with the exact GELU that their
//! models were trained with, where llama.cpp itself computes the tanh form.

use super::huggingface::{BERTS, COHERES, GATED_RMS, Held, LLAMAS, Row, canonical, links as row_links, why_not};
use super::{Complaints, Link, common, gguf_vocabulary, plain, setting};
use crate::gguf::{Array, GgufValue, Metadata};
use crate::store::{Dtype, Store, refuse};
use crate::{CheckpointError, Result, SentenceRecipe};
use limpid_core::config::{
    Config, ConfigError, LayerPattern, Mask, NormKind, Parallel, Positions, RotaryKind, RotaryPairs, RotaryScaling,
    Settings,
};
use limpid_core::model::Model;
use limpid_core::numeric::blocks::Quant;
use limpid_tokenizer::Tokenizer;
use std::cell::RefCell;
use std::collections::HashSet;
use std::path::Path;

/// The tensor of factors by which each pair of a head turns slower.
pub(crate) const ROPE_FREQS: &str = "rope_freqs.weight";

/// Our keys for what decides those factors: others skip them.
const LOW: &str = "rope.scaling.low_freq_factor";
const HIGH: &str = "rope.scaling.high_freq_factor";

/// What llama.cpp calls a kind of model.
pub(crate) struct Architecture {
    pub(crate) name: &'static str,
    /// Settings of all its models, where these are not GPT-2's.
    always: &'static [&'static str],
    /// Settings that follow from which tensors are present.
    free: &'static [&'static str],
    /// The kinds of parallel parts that follow from which tensors are present.
    parallel: &'static [Parallel],
    /// Its keys beside [`SIZES`], in lists that architectures share.
    keys: &'static [&'static [Key]],
    /// Its norms, and its feed-forward networks; what [`TABLES`], [`THIRDS`] and [`HEAD`] have, all have.
    norms: &'static [Row],
    ffn: &'static [Row],
    /// Which features rotary positions turn together, as it stores them.
    pairs: RotaryPairs,
    /// Whether queries, keys and values are one tensor where it is written.
    fused: bool,
    /// Whether a head is stored even where it is the token table.
    copied: bool,
    /// Whether llama.cpp reads its window and computes without it: a model gets no such window there that had another place.
    idle_window: bool,
}

/// One key of an architecture, below its name, or several that say one thing together.
enum Key {
    /// A setting that is a number, its key, and its value where the key is missing: nothing if it must be there, `-` for the
    /// setting's own default.
    Is(&'static str, &'static str, &'static str),
    /// The same where the key has one over the number.
    Over(&'static str, &'static str),
    /// A setting, its key, a truth value, and its values for no and yes, which is that of a missing key.
    Flag(&'static str, &'static str, [&'static str; 2]),
    /// The only value that limpid supports; the flag says whether a missing key means that value.
    Only(&'static str, fn() -> GgufValue, bool),
    /// Heads that share keys.
    KvHeads,
    /// Rotary angles; whether heads may be of other sizes than d_model / n_head, be turned in part, and by Llama 3.1's factors.
    Rotary { wide: bool, partial: bool, factors: bool },
    /// A window: the blocks that have it, the base of their angles, and its length where the key is missing.
    Window(&'static str, Option<f64>, usize),
    /// Token vectors times the root of d_model.
    Root,
    /// Scores by the root of d_model / n_head, whatever the heads' size is, in models of so many blocks (Gemma's of 27B).
    Broad(usize),
}
use Key::{Broad, Flag, Is, KvHeads, Only, Over, Root, Rotary, Window};

const SIZES: &[Key] = &[
    Is("context_length", "context_length", ""),
    Is("d_model", "embedding_length", ""),
    Is("n_layer", "block_count", ""),
    Is("d_ff", "feed_forward_length", ""),
    Is("n_head", "attention.head_count", ""),
];
/// The keys of sizes that llama.cpp reads block by block, too.
const PER_LAYER: [&str; 3] = ["feed_forward_length", "attention.head_count", "attention.head_count_kv"];
/// Of the norms' two keys.
const EPS: [&str; 2] = ["attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon"];
const HEADS: &[Key] = &[KvHeads, Rotary { wide: false, partial: false, factors: false }];
const WIDE: &[Key] = &[KvHeads, Rotary { wide: true, partial: false, factors: false }];
const PARTIAL: &[Key] = &[KvHeads, Rotary { wide: false, partial: true, factors: false }];
const FACTORS: &[Key] = &[KvHeads, Rotary { wide: true, partial: false, factors: true }];

const TABLES: &[Row] = &[
    Row("token_embd.weight", "embed.weight", Held::Same),
    Row("position_embd.weight", "pos_embed.weight", Held::Same),
    Row("token_types.weight", "segment_embed.weight", Held::Same),
    Row("token_embd_norm", "embed_norm", Held::Same),
];
const THIRDS: &[Row] = &[Row("blk.{}.attn_(q|k|v)", "attn.qkv", Held::Thirds)];
const FUSED: &[Row] = &[Row("blk.{}.attn_qkv", "attn.qkv", Held::Fused)];
const HEAD: &[Row] = &[
    Row("blk.{}.attn_output", "attn.out", Held::Same),
    Row("blk.{}.attn_q_norm", "attn.q_norm", Held::Turned),
    Row("blk.{}.attn_k_norm", "attn.k_norm", Held::Turned),
    Row("output_norm", "ln_final", Held::Same),
    Row("output", "unembed", Held::Same),
];
/// A head that is the token table, stored again.
const COPY: &[Row] = &[Row(HEAD_COPY, "embed.weight", Held::If(|c| c.tied_head))];
const HEAD_COPY: &str = "output.weight";
const NORMS: &[Row] = &[
    Row("blk.{}.attn_norm", "ln1", Held::Same),
    Row("blk.{}.post_attention_norm", "ln1_post", Held::Same),
    Row("blk.{}.ffn_norm", "ln2", Held::Same),
    Row("blk.{}.post_ffw_norm", "ln2_post", Held::Same),
];
const FFN: &[Row] = &[
    Row("blk.{}.ffn_gate", "mlp.gate", Held::Same),
    Row("blk.{}.ffn_up", "mlp.in", Held::Same),
    Row("blk.{}.ffn_down", "mlp.out", Held::Same),
];
/// Gate and input in one matrix.
const FFN_TOGETHER: &[Row] = &[
    Row("blk.{}.ffn_up", "mlp.gate", Held::Half(0)),
    Row("blk.{}.ffn_up", "mlp.in", Held::Half(1)),
    Row("blk.{}.ffn_down", "mlp.out", Held::Same),
];

/// The values that most architectures share.
const ARCHITECTURE: Architecture = Architecture {
    name: "",
    always: &[],
    free: &["tied_head"],
    parallel: &[],
    keys: &[],
    norms: NORMS,
    ffn: FFN,
    pairs: RotaryPairs::Halves,
    fused: false,
    copied: false,
    idle_window: false,
};
const SILU: &str = "activation=silu";
const GELU: &str = "activation=gelu-erf";
const TURNS: &str = "positions=rotary";
const ALIBI: &str = "positions=alibi";
const ROUND: &str = "norm_place=both";
const NO_BIAS: &str = "attention_bias=false ffn_bias=false";
const QKV_BIAS: &str = "attention_out_bias=false";
const QK_NORM: &str = "qk_norm=head";

/// All of them; where several can say a model, the first does. Gemma's gains are stored whole there.
const ARCHITECTURES: &[Architecture] = &[
    Architecture { name: "gpt2", fused: true, ..ARCHITECTURE },
    Architecture { name: "starcoder", keys: &[&[KvHeads]], fused: true, ..ARCHITECTURE },
    Architecture { name: "qwen2", always: &[GATED_RMS, SILU, QKV_BIAS], keys: &[HEADS], ..ARCHITECTURE },
    Architecture { name: "qwen3", always: &[LLAMAS[0], LLAMAS[1], SILU, QK_NORM], keys: &[WIDE], ..ARCHITECTURE },
    Architecture {
        name: "llama",
        always: &[LLAMAS[0], LLAMAS[1], SILU],
        free: &["tied_head", "attention_bias", "attention_out_bias", "ffn_bias"],
        keys: &[FACTORS],
        pairs: RotaryPairs::Neighbours,
        ..ARCHITECTURE
    },
    Architecture { name: "starcoder2", always: &[TURNS], keys: &[HEADS], ..ARCHITECTURE },
    Architecture { name: "gemma", always: &[LLAMAS[0], LLAMAS[1]], free: &[], keys: &[WIDE, &[Root]], ..ARCHITECTURE },
    Architecture {
        name: "gemma2",
        always: &[LLAMAS[0], LLAMAS[1], ROUND],
        free: &[],
        keys: &[
            WIDE,
            &[
                Root,
                Window("10", None, 4096),
                Is("attention_softcap", "attn_logit_softcapping", "50"),
                Is("logits_softcap", "final_logit_softcapping", "30"),
                Broad(46),
            ],
        ],
        ..ARCHITECTURE
    },
    Architecture {
        name: "gemma3",
        always: &[LLAMAS[0], LLAMAS[1], ROUND, QK_NORM],
        keys: &[
            WIDE,
            &[
                Root,
                Window("111110", Some(10_000.0), 0),
                Is("logits_softcap", "final_logit_softcapping", "0"),
                Broad(62),
            ],
        ],
        ..ARCHITECTURE
    },
    Architecture {
        name: "bert",
        always: &[BERTS, GELU, "lm_head=false"],
        free: &["n_segment"],
        keys: &[&[Only("attention.causal", || GgufValue::Bool(false), true)]],
        norms: &[Row("blk.{}.attn_output_norm", "ln1", Held::Same), Row("blk.{}.layer_output_norm", "ln2", Held::Same)],
        ..ARCHITECTURE
    },
    Architecture {
        name: "phi3",
        always: &[LLAMAS[0], LLAMAS[1], SILU],
        keys: &[PARTIAL, &[Window("1", None, 0)]],
        ffn: FFN_TOGETHER,
        fused: true,
        idle_window: true,
        ..ARCHITECTURE
    },
    Architecture {
        name: "phi2",
        always: &[TURNS, "parallel=one-norm head_bias=true"],
        keys: &[PARTIAL],
        copied: true,
        ..ARCHITECTURE
    },
    Architecture {
        name: "gptneox",
        always: &[TURNS, GELU],
        keys: &[PARTIAL, &[Flag("parallel", "use_parallel_residual", ["no", "two-norms"])]],
        fused: true,
        copied: true,
        ..ARCHITECTURE
    },
    Architecture {
        name: "falcon",
        always: &[TURNS, GELU, NO_BIAS],
        parallel: &[Parallel::OneNorm, Parallel::TwoNorms],
        keys: &[HEADS, &[Only("tensor_data_layout", || GgufValue::String("jploski".into()), true)]],
        norms: &[
            Row("blk.{}.attn_norm", "ln1", Held::If(|c| c.parallel != Parallel::TwoNorms)),
            Row("blk.{}.attn_norm", "ln2", Held::If(|c| c.parallel == Parallel::TwoNorms)),
            Row("blk.{}.attn_norm_2", "ln1", Held::If(|c| c.parallel == Parallel::TwoNorms)),
        ],
        fused: true,
        ..ARCHITECTURE
    },
    Architecture {
        name: "stablelm",
        always: &[TURNS, SILU, NO_BIAS, QKV_BIAS, "ffn_gated=true"],
        free: &["tied_head", "attention_bias"],
        parallel: &[Parallel::No, Parallel::OneNorm],
        keys: &[PARTIAL, &[Flag("parallel", "use_parallel_residual", ["no", "one-norm"])]],
        copied: true,
        ..ARCHITECTURE
    },
    Architecture {
        name: "olmo2",
        always: &[LLAMAS[0], LLAMAS[1], SILU, "norm_place=branch qk_norm=width"],
        keys: &[HEADS, &[Window("1110", None, 0)]],
        copied: true,
        ..ARCHITECTURE
    },
    Architecture {
        name: "olmo",
        always: &[TURNS, SILU, NO_BIAS, "norm_gain=false norm_offset=false ffn_gated=true"],
        keys: &[HEADS, &[CLAMP]],
        pairs: RotaryPairs::Neighbours,
        ..ARCHITECTURE
    },
    Architecture {
        name: "bloom",
        always: &[ALIBI, "embedding_norm=true"],
        keys: &[&[KvHeads]],
        fused: true,
        ..ARCHITECTURE
    },
    Architecture {
        name: "mpt",
        always: &[ALIBI, GELU, NO_BIAS, "norm_offset=false"],
        keys: &[&[Only("attention.max_alibi_bias", || GgufValue::F32(8.0), false), CLAMP]],
        fused: true,
        ..ARCHITECTURE
    },
    Architecture {
        name: "command-r",
        always: &[COHERES, SILU, NO_BIAS],
        free: &[],
        keys: &[HEADS, &[Is("logits_scale", "logit_scale", "1")]],
        pairs: RotaryPairs::Neighbours,
        ..ARCHITECTURE
    },
    Architecture {
        name: "granite",
        always: &[LLAMAS[0], LLAMAS[1], SILU],
        free: &["tied_head", "ffn_bias"],
        keys: &[
            HEADS,
            &[
                Is("embedding_scale", "embedding_scale", "1"),
                Is("residual_scale", "residual_scale", "1"),
                Is("attention_factor", "attention.scale", "-"),
                Over("logits_scale", "logit_scale"),
            ],
        ],
        pairs: RotaryPairs::Neighbours,
        ..ARCHITECTURE
    },
];
/// Queries, keys and values are not clipped.
const CLAMP: Key = Only("attention.clamp_kqv", || GgufValue::F32(0.0), true);

/// Keys of an architecture on which no number depends, or which say what tensors and other keys say: of its tokens, of vectors, of another
/// head, of rotary angles that are not scaled so, and of windows, if there are some.
#[rustfmt::skip]
const IDLE: &[&str] = &[
    "vocab_size", POOLING, "classifier.output_labels", "rope.scaling.finetuned", "rope.scaling.factor",
    "rope.scaling.original_context_length", LOW, HIGH, EPS[0], EPS[1], "attention.sliding_window_pattern",
];

/// What of a text's hidden states is its vector.
pub(crate) const POOLING: &str = "pooling_type";

/// Its values, as sentence-transformers calls them.
const POOLINGS: &[(u32, &str)] = &[(1, "mean"), (2, "cls"), (3, "lasttoken")];

/// What GGUF's keys mean that limpid has: an architecture's name, and what it says.
struct Keys<'a> {
    m: &'a Metadata,
    path: &'a Path,
    architecture: &'static str,
    /// Those that have been asked for.
    asked: RefCell<HashSet<String>>,
}

impl<'a> Keys<'a> {
    fn new(m: &'a Metadata, path: &'a Path, architecture: &'static str) -> Keys<'a> {
        Keys { m, path, architecture, asked: RefCell::default() }
    }
    fn full(&self, key: &str) -> String {
        self.asked.borrow_mut().insert(key.into());
        format!("{}.{key}", self.architecture)
    }
    fn has(&self, key: &str) -> bool {
        self.m.get(&self.full(key)).is_some()
    }
    fn size(&self, key: &str) -> Result<usize> {
        let full = self.full(key);
        if let Some(GgufValue::Array(array)) = self.m.get(&full).filter(|_| PER_LAYER.contains(&key)) {
            return self.size_of_all(&full, array);
        }
        self.m.u64(&full).map(|n| usize::try_from(n).unwrap_or(usize::MAX))
    }
    /// A size that stands there once for each block.
    fn size_of_all(&self, full: &str, array: &Array) -> Result<usize> {
        let blocks = self.size("block_count")?;
        let sizes = array.sizes().ok_or(());
        match sizes.as_deref() {
            Ok([first, rest @ ..]) if rest.len() + 1 == blocks && rest.iter().all(|size| size == first) => Ok(*first),
            Ok(sizes) if sizes.len() == blocks => {
                self.bad(format!("`{full}` is {sizes:?}: its blocks have different sizes, and limpid's have one"))
            }
            Ok(sizes) => self.bad(format!("`{full}` is a list of {} numbers for {blocks} blocks", sizes.len())),
            Err(()) => self.bad(format!("`{full}` should be a number, or a list of numbers for {blocks} blocks")),
        }
    }
    fn maybe_size(&self, key: &str) -> Result<Option<usize>> {
        self.has(key).then(|| self.size(key)).transpose()
    }
    fn number(&self, key: &str) -> Result<Option<f64>> {
        self.has(key).then(|| self.m.f64(&self.full(key)).map(shortest)).transpose()
    }
    fn bad<T>(&self, what: String) -> Result<T> {
        refuse(self.path, what)
    }
    fn checked<T>(&self, answer: std::result::Result<T, ConfigError>) -> Result<T> {
        answer.map_err(|source| CheckpointError::Config { path: self.path.into(), source })
    }
    /// The keys that nothing here depends on; refuses one of the architecture that nobody asked for, unless it is known to change no number
    /// of this model.
    fn rest(&self, c: &Config) -> Result<Vec<String>> {
        let mut unused = vec![];
        for (full, value) in self.m.iter() {
            match full.strip_prefix(self.architecture).and_then(|rest| rest.strip_prefix('.')) {
                None if is_used(full) => {}
                Some("vocab_size") => {}
                Some(key) if self.asked.borrow().contains(key) => {}
                Some(key) if !IDLE.contains(&key) && !self.changes_nothing(key, c) => {
                    let asks = |kind: &&Architecture| kind.asks(self.m, key);
                    let others: Vec<&str> = ARCHITECTURES.iter().filter(asks).map(|kind| kind.name).collect();
                    let others = if others.is_empty() { "none".into() } else { others.join(", ") };
                    let mut value = format!("{value:?}");
                    value.truncate(value.char_indices().nth(60).map_or(value.len(), |(at, _)| at));
                    return self.bad(format!(
                        "`{full}` is {value}, which limpid does not read in the architecture {}: it may change the model's numbers. \
                         Architectures in which it does: {others}; a folder of HuggingFace's, from which such a file is made, says more",
                        self.architecture
                    ));
                }
                _ => unused.push(full.to_string()),
            }
        }
        Ok(unused)
    }
    /// Whether a key that an architecture does not have says there what all its models do, or nothing.
    fn changes_nothing(&self, key: &str, c: &Config) -> bool {
        #[rustfmt::skip]
        const OFF: &[&str] = &[
            "attention.clamp_kqv", "attention.max_alibi_bias", "attn_logit_softcapping", "final_logit_softcapping", "nextn_predict_layers",
            "leading_dense_block_count",
        ];
        let full = self.full(key);
        let (said, number) =
            (self.m.bool(&full).ok(), self.size(key).map(|n| n as f64).or_else(|_| self.m.f64(&full)).ok());
        let is = |wanted: f64| number.is_some_and(|n| (n - wanted).abs() <= 1e-6 * wanted);
        match key {
            _ if said == Some(false) && key != "attention.causal" => true,
            _ if key.starts_with("rope.") && c.positions != Positions::Rotary => true,
            "attention.causal" => said == Some(c.mask == Mask::Causal),
            "attention.sliding_window" => number.is_some_and(|n| n == 0.0 || n >= c.context_length as f64),
            "attention.head_count_kv" => is(c.n_head as f64),
            "attention.key_length" | "attention.value_length" => is(c.d_head() as f64),
            "attention.scale" => is(0.0) || is(c.score_scale(0)),
            "embedding_length_out" => is(c.d_model as f64),
            "logit_scale" | "residual_scale" | "embedding_scale" => is(0.0) || is(1.0),
            "rope.scale_linear" | "rope.scaling.attn_factor" => is(0.0) || is(1.0),
            _ if key.ends_with("_swa") => c.window == 0 || is(c.d_head() as f64),
            _ => is(0.0) && (OFF.contains(&key) || key.starts_with("expert_")),
        }
    }
}

/// Whether a key that is no architecture's is read, or says what is said anew.
fn is_used(key: &str) -> bool {
    #[rustfmt::skip]
    const TOKENIZERS: &[&str] = &[
        "model", "pre", "tokens", "scores", "token_type", "merges", "bos_token_id", "eos_token_id", "unknown_token_id", "cls_token_id",
        "seperator_token_id", "add_bos_token", "add_eos_token", "add_sep_token", "add_space_prefix", "normalizer.lowercase",
        "normalizer.strip_accents", "token_type_count", "eot_token_id", "eom_token_id", "fim_pad_token_id", "fim_rep_token_id",
        "fim_sep_token_id",
    ];
    const GENERAL: &[&str] = &["architecture", "file_type", "quantization_version", "alignment"];
    let below = |part: &str, known: &[&str]| key.strip_prefix(part).is_some_and(|key| known.contains(&key));
    below("tokenizer.ggml.", TOKENIZERS)
        || below("general.", GENERAL)
        || key.starts_with("split.")
        || key == CHAT_TEMPLATE
}

/// Says which of sentence-transformers' poolings a model has, if llama.cpp has it.
pub(crate) fn put_pooling(m: &mut Metadata, kind: &Architecture, pooling: &str) {
    if let Some((n, _)) = POOLINGS.iter().find(|(_, name)| *name == pooling) {
        m.set(format!("{}.{POOLING}", kind.name), *n);
    }
}

/// How sentence-transformers makes a vector of a text with a model, as far as the file says it: llama.cpp's vectors have length 1.
pub(crate) fn sentence_recipe(m: &Metadata, path: &Path) -> Result<Option<SentenceRecipe>> {
    let key = format!("{}.{POOLING}", m.str("general.architecture").unwrap_or_default());
    let Some(stated) = m.maybe(&key, Metadata::u64)?.filter(|stated| *stated != 0) else { return Ok(None) };
    let Some((_, name)) = POOLINGS.iter().find(|(n, _)| u64::from(*n) == stated) else {
        let what = format!(
            "`{key}` is {stated}: limpid has 1 (mean), 2 (cls) and 3 (last); ask for one of these by name to pool that way"
        );
        return refuse(path, what);
    };
    let pooling = (*name).into();
    Ok(Some(SentenceRecipe { pooling, normalized: true, max_tokens: None, lowercase: false, prompt: String::new() }))
}

fn size(n: usize) -> GgufValue {
    GgufValue::U32(u32::try_from(n).unwrap_or(u32::MAX))
}

impl Key {
    /// Reads what it says into `c`.
    fn read(&self, keys: &Keys, store: Option<&Store>, c: &mut Config) -> Result<()> {
        match self {
            Is(name, key, otherwise) => {
                let whole = setting(c, name).is_u64();
                let text = match (keys.has(key), *otherwise) {
                    (false, "-") => return Ok(()),
                    (false, otherwise) if !otherwise.is_empty() => otherwise.to_string(),
                    _ if whole => keys.size(key)?.to_string(),
                    _ => shortest(keys.m.f64(&keys.full(key))?).to_string(),
                };
                keys.checked(c.set(name, &text))?;
            }
            Over(name, key) => {
                let over = keys.number(key)?.unwrap_or(1.0);
                keys.checked(c.set(name, &(1.0 / over).to_string()))?;
            }
            Flag(name, key, [no, yes]) => {
                let said = if keys.has(key) { keys.m.bool(&keys.full(key))? } else { true };
                keys.checked(c.set(name, if said { yes } else { no }))?;
            }
            Only(key, value, or_missing) => match keys.m.get(&keys.full(key)) {
                Some(found) if *found != value() => {
                    return keys.bad(format!("`{}` is {found:?}; limpid has only {:?}", keys.full(key), value()));
                }
                None if !or_missing => return keys.bad(format!("it lacks the key `{}`", keys.full(key))),
                _ => {}
            },
            KvHeads => c.n_kv_head = keys.maybe_size("attention.head_count_kv")?.filter(|n| *n != c.n_head),
            Rotary { .. } => {
                let own = keys.maybe_size("attention.key_length")?;
                c.d_head = own.filter(|d| d.checked_mul(c.n_head) != Some(c.d_model));
                if let Some(values) = keys.maybe_size("attention.value_length")?.filter(|v| Some(*v) != own) {
                    let usual = c.d_model / c.n_head.max(1);
                    if values != own.unwrap_or(usual) {
                        return keys.bad(format!("its heads have values of {values} features and keys of {own:?}"));
                    }
                }
                let d_head = own.unwrap_or(c.d_model / c.n_head.max(1));
                let turned = keys.maybe_size("rope.dimension_count")?.unwrap_or(d_head);
                c.rotary_dim = Some(turned).filter(|n| *n != d_head);
                c.rotary_base = keys.number("rope.freq_base")?.unwrap_or(10_000.0);
                c.rotary_scaling = scaling(keys, store, c.rotary_base, turned)?;
            }
            Window(pattern, base, usual) => {
                const PATTERN: &str = "attention.sliding_window_pattern";
                c.window = keys.maybe_size("attention.sliding_window")?.unwrap_or(*usual);
                let full = keys.full(PATTERN);
                c.window_layers = match keys.m.get(&full) {
                    None => keys.checked(pattern.parse())?,
                    Some(GgufValue::Array(Array::Bool(list))) => match LayerPattern::new(list) {
                        Some(pattern) if list.len() == c.n_layer => pattern,
                        _ => {
                            let what = format!("`{full}` must be for {} blocks and repeat within 64", c.n_layer);
                            return keys.bad(what);
                        }
                    },
                    // every n-th has none
                    Some(_) => match keys.size(PATTERN)? {
                        n @ 1..=64 => keys.checked(("1".repeat(n - 1) + "0").parse())?,
                        n => return keys.bad(format!("`{full}` is {n}: limpid's patterns repeat within 64 blocks")),
                    },
                };
                c.rotary_base_window = keys.number("rope.freq_base_swa")?.or(*base);
            }
            Root => c.embedding_scale = (c.d_model as f64).sqrt(),
            Broad(layers) if c.n_layer == *layers => {
                c.attention_factor = Some(1.0 / (c.d_model as f64 / c.n_head.max(1) as f64).sqrt());
            }
            Broad(_) => {}
        }
        Ok(())
    }

    /// Writes what `c` says of it.
    fn write(&self, c: &Config, put: &mut dyn FnMut(&str, GgufValue)) {
        let number = |name: &str| GgufValue::F32(setting(c, name).as_f64().unwrap_or_default() as f32);
        match self {
            Is(name, key, _) => match setting(c, name).as_u64() {
                Some(n) if setting(&Config::default(), name).is_u64() => put(key, size(n as usize)),
                _ if *name == "attention_factor" => put(key, GgufValue::F32(c.score_scale(0) as f32)),
                _ => put(key, number(name)),
            },
            Over(name, key) => put(key, GgufValue::F32((1.0 / setting(c, name).as_f64().unwrap_or(1.0)) as f32)),
            Flag(name, key, [_, yes]) => put(key, GgufValue::Bool(setting(c, name) == **yes)),
            Only(_, value, true) if value() == GgufValue::F32(0.0) => {}
            Only(key, value, _) => put(key, value()),
            KvHeads => put("attention.head_count_kv", size(c.heads().n_kv_head)),
            Rotary { wide, partial, .. } => {
                if *wide {
                    put("attention.key_length", size(c.d_head()));
                    put("attention.value_length", size(c.d_head()));
                }
                let d_head = if *wide { c.d_head() } else { c.d_model / c.n_head };
                let turned = c.rotary_dim.filter(|_| *partial).unwrap_or(d_head);
                put("rope.dimension_count", size(turned));
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
            Window(pattern, base, _) if c.window > 0 => {
                put("attention.sliding_window", size(c.window));
                let blocks: Vec<bool> = (0..c.n_layer).map(|i| c.window_of(i) > 0).collect();
                let usual: Option<LayerPattern> = pattern.parse().ok();
                if usual.is_none_or(|usual| (0..c.n_layer).any(|i| usual.holds(i) != blocks[i])) {
                    put("attention.sliding_window_pattern", blocks.into());
                }
                if c.rotary_base_window != *base {
                    let own = c.rotary_base_window.unwrap_or(c.rotary_base);
                    put("rope.freq_base_swa", GgufValue::F32(own as f32));
                }
            }
            // one as long as the context is none
            Window(.., 1..) => put("attention.sliding_window", size(c.context_length)),
            Window(..) | Root | Broad(_) => {}
        }
    }
}

/// What a file is.
pub(crate) struct GgufModel {
    pub(crate) kind: &'static Architecture,
    pub(crate) config: Config,
    /// Whether queries, keys and values are one tensor.
    pub(crate) fused: bool,
    /// The keys that nothing here depends on.
    pub(crate) unused: Vec<String>,
}

/// Reads the metadata, and the settings that follow from which tensors are present.
pub(crate) fn read(m: &Metadata, store: &Store) -> Result<GgufModel> {
    let architecture = m.str("general.architecture")?;
    let Some(kind) = ARCHITECTURES.iter().find(|kind| kind.name == architecture) else {
        if let Some(why) = why_not(architecture) {
            let what = format!("its architecture is `{architecture}`, which limpid does not support: {why}");
            return refuse(store.path(), what);
        }
        let all: Vec<&str> = ARCHITECTURES.iter().map(|kind| kind.name).collect();
        return refuse(store.path(), format!("its architecture is `{architecture}`; limpid opens {}", all.join(", ")));
    };
    let keys = Keys::new(m, store.path(), kind.name);
    for expert in ["expert_count", "expert_used_count"] {
        if keys.maybe_size(expert)?.is_some_and(|n| n > 0) {
            return keys.bad(format!("it has experts (`{}`), which limpid does not support", keys.full(expert)));
        }
    }
    for factors in ["rope_factors_long.weight", "rope_factors_short.weight"] {
        if store.get(factors).is_some() {
            let what = "it scales the rotary angles by factors for short and for long texts (longrope)";
            return keys.bad(format!("{what}, `{factors}`, which limpid does not support"));
        }
    }
    let Some(table) = store.get("token_embd.weight") else {
        return Err(CheckpointError::Missing { path: store.path().into(), tensor: "token_embd.weight".into() });
    };
    let mut c = kind.read(&keys, Some(store))?;
    c.vocab_size = table.shape.first().copied().unwrap_or(0);
    let has = |name: &str| store.get(name).is_some();
    let any = |names: &[&str]| names.iter().any(|name| has(&format!("blk.0.{name}.bias")));
    c.attention_bias = any(&["attn_q", "attn_qkv"]);
    c.attention_out_bias = Some(any(&["attn_output"])).filter(|out| *out != c.attention_bias);
    c.ffn_bias = any(&["ffn_up", "ffn_down"]);
    if c.lm_head {
        let own = store.get("output.weight");
        c.tied_head = own.is_none_or(|own| kind.copied && (own.dtype, own.bytes) == (table.dtype, table.bytes));
    }
    if let Some(segments) = store.get("token_types.weight") {
        c.n_segment = segments.shape.first().copied().unwrap_or(0);
    }
    if !kind.parallel.is_empty() {
        c.parallel = match (has("blk.0.attn_norm_2.weight"), has("blk.0.ffn_norm.weight")) {
            (true, _) => Parallel::TwoNorms,
            (_, true) => Parallel::No,
            _ => Parallel::OneNorm,
        };
    }
    keys.checked(c.check())?;
    let unused = keys.rest(&c)?;
    Ok(GgufModel { kind, config: canonical(&c), fused: has("blk.0.attn_qkv.weight"), unused })
}

impl Architecture {
    /// What all its models have.
    fn plain(&self) -> Config {
        plain(self.always, self.pairs)
    }

    fn eps(&self) -> &'static str {
        EPS[usize::from(self.plain().norm == NormKind::Rms)]
    }

    /// What its keys say; what tensors say is not known yet.
    fn read(&self, keys: &Keys, store: Option<&Store>) -> Result<Config> {
        let mut c = self.plain();
        SIZES.iter().chain(self.keys.iter().copied().flatten()).try_for_each(|key| key.read(keys, store, &mut c))?;
        c.norm_eps = shortest(keys.m.f64(&keys.full(self.eps()))?);
        Ok(c)
    }

    /// Whether it has a key, which means something in a file of it.
    fn asks(&self, m: &Metadata, key: &str) -> bool {
        let keys = Keys::new(m, Path::new(""), self.name);
        let mut c = self.plain();
        SIZES.iter().chain(self.keys.iter().copied().flatten()).for_each(|own| _ = own.read(&keys, None, &mut c));
        keys.asked.into_inner().contains(key)
    }

    /// The keys of a configuration, as far as it has them.
    fn write(&self, c: &Config) -> Metadata {
        let mut m = Metadata::default();
        let mut put = |key: &str, value: GgufValue| m.set(format!("{}.{key}", self.name), value);
        SIZES.iter().chain(self.keys.iter().copied().flatten()).for_each(|key| key.write(c, &mut put));
        put(self.eps(), GgufValue::F32(c.norm_eps as f32));
        put("vocab_size", size(c.vocab_size));
        m.set("general.architecture", self.name.to_string());
        if self.free.contains(&"n_segment") {
            m.set("tokenizer.ggml.token_type_count", size(c.n_segment.max(1)));
        }
        m
    }

    /// Its keys for `c`, the configuration that they and its tensors say, what that lacks of `c`, and whether it has more. None if `c` has
    /// a value that the keys cannot hold.
    fn candidate(&self, c: &Config) -> Option<(Metadata, Config, Complaints, bool)> {
        let (mut not, mine) = (common(c), canonical(c));
        let m = self.write(&mine);
        let keys = Keys::new(&m, Path::new(""), self.name);
        let mut theirs = self.read(&keys, None).ok()?;
        (theirs.vocab_size, theirs.dropout) = (mine.vocab_size, mine.dropout);
        // Llama 3.1's scaling is a tensor of factors
        let factors = |key: &Key| matches!(key, Rotary { factors: true, .. });
        let bands = mine.rotary_scaling.kind == RotaryKind::Bands;
        if bands && mine.rotary_scaling.context > 0 && self.keys.iter().copied().flatten().any(factors) {
            theirs.rotary_scaling = mine.rotary_scaling;
        }
        for name in self.free {
            let text = match setting(&mine, name) {
                _ if *name == "attention_out_bias" => mine.attention_out_bias().to_string(),
                value => value.to_string(),
            };
            theirs.set(name, &text).ok()?;
        }
        if self.parallel.contains(&mine.parallel) {
            theirs.parallel = mine.parallel;
        } else if let Some(first) = self.parallel.first() {
            theirs.parallel = *first;
        }
        let mut theirs = canonical(&theirs);
        let more = not.differences(&mine, &theirs);
        theirs.check().ok()?;
        theirs.dropout = c.dropout;
        Some((m, theirs, not, more))
    }

    /// Which tensor of theirs is which of ours, with queries, keys and values in one or three.
    pub(crate) fn links(&self, model: &Model, fused: bool) -> Vec<Link> {
        let qkv = if fused { FUSED } else { THIRDS };
        let rows = [TABLES, qkv, self.norms, self.ffn, HEAD];
        row_links(rows.into_iter().flatten(), self.pairs, model)
    }

    /// The links of what is written.
    pub(crate) fn written(&self, model: &Model) -> Vec<Link> {
        let mut links = self.links(model, self.fused);
        if self.copied {
            links.extend(row_links(COPY.iter(), self.pairs, model));
        }
        links
    }
}

/// Whether a tensor holds a parameter: not factors that the configuration says, nor a copy of the token table.
pub(crate) fn holds(name: &str, c: &Config) -> bool {
    name != ROPE_FREQS && !(name == HEAD_COPY && c.tied_head)
}

/// What was written 1e-5 and stored as f32 is 1e-5 again.
fn shortest(x: f64) -> f64 {
    (x as f32).to_string().parse().unwrap_or(x)
}

/// The rotary angles' scaling: a factor for all pairs, or Llama 3.1's factors for each, recognised.
fn scaling(keys: &Keys, store: Option<&Store>, base: f64, turned: usize) -> Result<RotaryScaling> {
    let kind = keys.full("rope.scaling.type");
    const FACTOR: &str = "rope.scaling.factor";
    match keys.m.maybe(&kind, Metadata::str)? {
        Some("none") => {}
        // llama.cpp takes a factor of no type for linear
        None if !keys.has(FACTOR) => {}
        None | Some("linear") => {
            let factor = shortest(keys.m.f64(&keys.full(FACTOR))?);
            if factor != 1.0 && store.is_some_and(|store| store.get(ROPE_FREQS).is_some()) {
                let key = keys.full(FACTOR);
                return keys.bad(format!("`{key}` and `{ROPE_FREQS}` both scale the rotary angles; limpid takes one"));
            }
            return Ok(RotaryScaling { factor, ..RotaryScaling::NONE });
        }
        Some(other) => return keys.bad(format!("`{kind}` is `{other}`; limpid has only none and linear")),
    }
    let Some(stored) = store.and_then(|store| store.get(ROPE_FREQS)) else { return Ok(RotaryScaling::NONE) };
    let found = stored.values()?;
    let factor = shortest(found.iter().copied().fold(1.0, f32::max).into());
    let given = keys.maybe_size("rope.scaling.original_context_length")?;
    let tried = given.into_iter().chain((4..24).map(|n| 1 << n));
    if found.len() != turned / 2 {
        let what = format!("`{ROPE_FREQS}` has {} numbers, and heads of {turned} features {}", found.len(), turned / 2);
        return keys.bad(what);
    }
    let agree = |s: &RotaryScaling| {
        let want = factors(*s, base, turned);
        want.iter().zip(&*found).all(|(w, f)| (w - f).abs() <= 1e-4 * w)
    };
    // llama.cpp's converter leaves out what its tensor says already; Llama 3.1's are 1 and 4
    let (low, high) = (keys.number(LOW)?.unwrap_or(1.0), keys.number(HIGH)?.unwrap_or(4.0));
    let mut all = tried.map(|context| RotaryScaling { factor, low, high, context, ..RotaryScaling::NONE });
    match all.find(agree) {
        Some(scaling) => Ok(scaling),
        None => keys.bad(format!("`{ROPE_FREQS}` scales the rotary angles in a way that is not Llama 3.1's")),
    }
}

/// How many times slower each pair of a head turns.
pub(crate) fn factors(scaling: RotaryScaling, base: f64, d_head: usize) -> Vec<f32> {
    let frequency = |i: usize| base.powf(-((2 * i) as f64) / d_head as f64);
    (0..d_head / 2).map(|i| (frequency(i) / scaling.apply(frequency(i))) as f32).collect()
}

/// How conversations are written, in Jinja.
pub(crate) const CHAT_TEMPLATE: &str = "tokenizer.chat_template";

/// Checks that a file holds a model.
///
/// # Errors
/// What it holds instead.
pub(crate) fn is_model(m: &Metadata, store: &Store) -> Result<()> {
    match m.maybe("general.type", Metadata::str)? {
        None | Some("model") => {}
        Some("adapter") => {
            return refuse(store.path(), format!("it is a LoRA adapter. {}", crate::adapter::PEFT_ALONE));
        }
        Some(other) => {
            return refuse(
                store.path(),
                format!("it holds no model: its `general.type` is `{other}`, where a model's is `model`"),
            );
        }
    }
    if store.names().next().is_none() {
        let holds = if m.get("tokenizer.ggml.tokens").is_some() { "a vocabulary and no weights" } else { "no weights" };
        return refuse(store.path(), format!("it holds {holds}: it can be used as a tokenizer, but not as a model"));
    }
    Ok(())
}

/// The architecture that says a model (of several the one that it came in, else the first), its metadata with the tokenizer's, and
/// the configuration with all that the architecture always has.
///
/// # Errors
/// Says what of `c` the architecture nearest to it lacks, or why it has no place for the tokenizer.
pub(crate) fn express(
    c: &Config,
    tokenizer: Option<&Tokenizer>,
    came_in: Option<&str>,
) -> Result<(&'static Architecture, Metadata, Config)> {
    let serves = |kind: &&Architecture| !kind.idle_window || c.window == 0 || came_in == Some(kind.name);
    let all = ARCHITECTURES.iter().filter(serves).filter_map(|kind| Some((kind, kind.candidate(c)?)));
    let rank = |not: &Complaints, kind: &Architecture, more: bool| {
        let lacks = not.0.len();
        (lacks, Some(kind.name) != came_in, more && lacks == 0)
    };
    let nearest = all.min_by_key(|(kind, (.., not, more))| rank(not, kind, *more));
    let (kind, (mut m, config, not, _)) = nearest.expect("GPT-2's keys hold every number");
    not.check(&format!("GGUF's {}", kind.name))?;
    match tokenizer {
        Some(tokenizer) => gguf_vocabulary::write_tokenizer(&mut m, tokenizer.table()?, c.vocab_size),
        None => m.set("tokenizer.ggml.model", "none".to_string()),
    }
    Ok((kind, m, config))
}

/// What of a file's metadata goes into another of `kind`, beside what is said there anew. `same`: tensors keep their types.
pub(crate) fn taken_over(m: &Metadata, kind: &Architecture, same: bool) -> Metadata {
    let own = m.str("general.architecture").is_ok_and(|name| name == kind.name);
    let mut to = Metadata::default();
    for (key, value) in m.iter() {
        let part = key.split('.').next().unwrap_or(key);
        let goes = match part {
            "split" => false,
            "general" => same || key != "general.file_type",
            "quantize" => same,
            "tokenizer" => true,
            _ => own,
        };
        if goes {
            to.set(key, value.clone());
        }
    }
    to
}

/// Whether a tensor is F32 whatever matrices are.
pub(crate) fn is_f32(name: &str, shape: &[usize]) -> bool {
    shape.len() < 2 || ["position_embd.weight", "token_types.weight"].contains(&name)
}

/// How a tensor of a model that is written as `dtype` is stored.
pub(crate) fn stored_as(name: &str, shape: &[usize], dtype: &Dtype) -> Dtype {
    let fits = |quant: &Quant| shape.last().is_some_and(|n| n.is_multiple_of(quant.sizes().0));
    match dtype {
        _ if is_f32(name, shape) => Dtype::F32,
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// A size that stands there once for each block is that size, where llama.cpp reads it so; sizes that differ are refused by name.
    #[test]
    fn equal_sizes_of_all_blocks_are_one_size() {
        let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../limpid/fixtures/gguf/llama-gqa.gguf"));
        let (m, store) = crate::gguf::open(&path).unwrap();
        let want = read(&m, &store).unwrap().config;
        for key in PER_LAYER {
            let full = format!("llama.{key}");
            let n = m.u64(&full).unwrap();
            let lists = |n: u64| -> [GgufValue; 3] {
                let all = vec![n; want.n_layer];
                let [a, b] = [
                    all.iter().map(|n| *n as i32).collect::<Vec<_>>().into(),
                    all.iter().map(|n| *n as u32).collect::<Vec<_>>().into(),
                ];
                [a, b, all.into()]
            };
            for list in lists(n) {
                let mut changed = m.clone();
                changed.set(full.clone(), list);
                assert_eq!(read(&changed, &store).unwrap().config, want, "{key}");
            }
            let mut other = vec![n as u32; want.n_layer];
            other[want.n_layer - 1] += 1;
            for (list, said) in [
                (GgufValue::from(other), "different sizes"),
                (vec![n as u32; want.n_layer + 1].into(), "numbers for"),
                (vec![1.5f32; want.n_layer].into(), "should be a number"),
                (Vec::<u32>::new().into(), "a list of 0 numbers"),
            ] {
                let mut changed = m.clone();
                changed.set(full.clone(), list);
                let error = read(&changed, &store).map(|_| ()).unwrap_err().to_string();
                assert!(error.contains(&full) && error.contains(said), "{key}: {error}");
            }
        }
        // another key has one value
        let mut changed = m.clone();
        changed.set("llama.context_length", vec![64u32; want.n_layer]);
        assert!(read(&changed, &store).is_err());
    }
}

//! GGUF's architectures, as llama.cpp defines them: one table for reading and writing. An
//! [`Architecture`] is data, like HuggingFace's families: the settings that all its models share, its keys, its
//! tensors, and the settings that follow from which tensors are present. The table follows `src/models/*.cpp` and
//! `conversion/*.py` of llama.cpp.
//!
//! GGUF has no key for an activation function: GPT-NeoX, Falcon, MPT and BERT are read with the exact GELU that their
//! models were trained with, where llama.cpp itself computes the tanh form.

use super::keys::{
    Broad, EPS, Flag, Is, Key, Keys, KvHeads, Only, Over, ROPE_FREQS, Root, Rotary, Window, shortest, size,
};
use super::vocabulary;
use crate::error::{CheckpointError, Result, refuse};
use crate::formats::express::{Complaints, canonical, common, plain, setting};
use crate::formats::huggingface::{BERTS, COHERES, GATED_RMS, why_not};
use crate::formats::links::{Dialect, Link};
use crate::formats::rows;
use crate::gguf::{GgufValue, Metadata};
use crate::store::{Store, Stored};
use limpid_core::config::{Config, NormKind, Parallel, RotaryKind, RotaryPairs, Settings};
use limpid_core::model::Model;
use limpid_tokenizer::Tokenizer;
use std::path::Path;

/// What llama.cpp calls a kind of model.
pub(super) struct Architecture {
    pub(super) name: &'static str,
    /// Settings of all its models, where these are not GPT-2's.
    always: &'static [&'static str],
    /// Settings that follow from which tensors are present.
    free: &'static [&'static str],
    /// The kinds of parallel parts that follow from which tensors are present.
    parallel: &'static [Parallel],
    /// Its keys beside [`SIZES`], in lists that architectures share.
    keys: &'static [&'static [Key]],
    /// Its norms, and its feed-forward networks; what [`TABLES`], [`THIRDS`] and [`HEAD`] have, all have.
    norms: &'static str,
    ffn: &'static str,
    /// Which features rotary positions turn together, as it stores them.
    pairs: RotaryPairs,
    /// Whether queries, keys and values are one tensor where it is written.
    fused: bool,
    /// Whether a head is stored even where it is the token table.
    copied: bool,
    /// Whether llama.cpp reads its window and computes without it: a model gets no such window there that had another
    /// place.
    idle_window: bool,
}

const SIZES: &[Key] = &[
    Is("context_length", "context_length", ""),
    Is("d_model", "embedding_length", ""),
    Is("n_layer", "block_count", ""),
    Is("d_ff", "feed_forward_length", ""),
    Is("n_head", "attention.head_count", ""),
];
const HEADS: &[Key] = &[KvHeads, Rotary { wide: false, partial: false, factors: false }];
const WIDE: &[Key] = &[KvHeads, Rotary { wide: true, partial: false, factors: false }];
const PARTIAL: &[Key] = &[KvHeads, Rotary { wide: false, partial: true, factors: false }];
const FACTORS: &[Key] = &[KvHeads, Rotary { wide: true, partial: false, factors: true }];

const TABLES: &str = "embed.weight=token_embd.weight pos_embed.weight=position_embd.weight \
                      segment_embed.weight=token_types.weight embed_norm=token_embd_norm";
const THIRDS: &str = "attn.qkv=blk.{}.attn_(q|k|v)";
const FUSED: &str = "attn.qkv=blk.{}.attn_qkv:fused";
const HEAD: &str = "attn.out=blk.{}.attn_output attn.q_norm=blk.{}.attn_q_norm:turned \
                    attn.k_norm=blk.{}.attn_k_norm:turned ln_final=output_norm unembed=output";
/// A head that is the token table, stored again.
const COPY: &str = "embed.weight=output.weight:tied-head";
const HEAD_COPY: &str = "output.weight";
const NORMS: &str =
    "ln1=blk.{}.attn_norm ln1_post=blk.{}.post_attention_norm ln2=blk.{}.ffn_norm ln2_post=blk.{}.post_ffw_norm";
const FFN: &str = "mlp.gate=blk.{}.ffn_gate mlp.in=blk.{}.ffn_up mlp.out=blk.{}.ffn_down";
/// Gate and input in one matrix.
const FFN_TOGETHER: &str = "mlp.gate=blk.{}.ffn_up:first-half mlp.in=blk.{}.ffn_up:second-half mlp.out=blk.{}.ffn_down";

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
const NO_QKV_BIAS: &str = "attention_bias=false";
const QK_NORM: &str = "qk_norm=head";

/// All of them; where several can say a model, the first does. Gemma's gains are stored whole there.
const ARCHITECTURES: &[Architecture] = &[
    Architecture { name: "gpt2", fused: true, ..ARCHITECTURE },
    Architecture { name: "starcoder", keys: &[&[KvHeads]], fused: true, ..ARCHITECTURE },
    Architecture { name: "qwen2", always: &[GATED_RMS, SILU, QKV_BIAS], keys: &[HEADS], ..ARCHITECTURE },
    Architecture { name: "qwen3", always: &[GATED_RMS, NO_QKV_BIAS, SILU, QK_NORM], keys: &[WIDE], ..ARCHITECTURE },
    Architecture {
        name: "llama",
        always: &[GATED_RMS, NO_QKV_BIAS, SILU],
        free: &["tied_head", "attention_bias", "attention_out_bias", "ffn_bias"],
        keys: &[FACTORS],
        pairs: RotaryPairs::Neighbours,
        ..ARCHITECTURE
    },
    Architecture { name: "starcoder2", always: &[TURNS], keys: &[HEADS], ..ARCHITECTURE },
    Architecture {
        name: "gemma",
        always: &[GATED_RMS, NO_QKV_BIAS],
        free: &[],
        keys: &[WIDE, &[Root]],
        ..ARCHITECTURE
    },
    Architecture {
        name: "gemma2",
        always: &[GATED_RMS, NO_QKV_BIAS, ROUND],
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
        always: &[GATED_RMS, NO_QKV_BIAS, ROUND, QK_NORM],
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
        norms: "ln1=blk.{}.attn_output_norm ln2=blk.{}.layer_output_norm",
        ..ARCHITECTURE
    },
    Architecture {
        name: "phi3",
        always: &[GATED_RMS, NO_QKV_BIAS, SILU],
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
        norms: "ln1=blk.{}.attn_norm:one-norm ln2=blk.{}.attn_norm:two-norms ln1=blk.{}.attn_norm_2:two-norms",
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
        always: &[GATED_RMS, NO_QKV_BIAS, SILU, "norm_place=branch qk_norm=width"],
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
        always: &[GATED_RMS, NO_QKV_BIAS, SILU],
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

/// What a file is.
pub(super) struct GgufModel {
    pub(super) names: GgufNames,
    pub(super) config: Config,
    /// The keys that nothing here depends on.
    pub(super) unused: Vec<String>,
}

/// Reads the metadata, and the settings that follow from which tensors are present.
pub(super) fn read(m: &Metadata, store: &Store) -> Result<GgufModel> {
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
        let is_copy = |head: Stored| kind.copied && (head.dtype, head.bytes) == (table.dtype, table.bytes);
        c.tied_head = store.get(HEAD_COPY).is_none_or(is_copy);
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
    let unused = keys.rest(&c, |key| {
        let readers = ARCHITECTURES.iter().filter(|kind| kind.asks(m, key));
        readers.map(|kind| kind.name).collect()
    })?;
    let names = GgufNames { kind, fused: has("blk.0.attn_qkv.weight") };
    Ok(GgufModel { names, config: canonical(&c), unused })
}

impl Architecture {
    /// What all its models have.
    fn plain(&self) -> Config {
        plain(self.always, self.pairs)
    }

    /// Its keys, but that of the norms.
    fn keys(&self) -> impl Iterator<Item = &Key> {
        SIZES.iter().chain(self.keys.iter().copied().flatten())
    }

    fn eps(&self) -> &'static str {
        EPS[usize::from(self.plain().norm == NormKind::Rms)]
    }

    /// What its keys say; what tensors say is not known yet.
    fn read(&self, keys: &Keys, store: Option<&Store>) -> Result<Config> {
        let mut c = self.plain();
        self.keys().try_for_each(|key| key.read(keys, store, &mut c))?;
        c.norm_eps = shortest(keys.m.f64(&keys.full(self.eps()))?);
        Ok(c)
    }

    /// Whether it has a key, which means something in a file of it.
    fn asks(&self, m: &Metadata, key: &str) -> bool {
        let keys = Keys::new(m, Path::new(""), self.name);
        let mut c = self.plain();
        self.keys().for_each(|key| _ = key.read(&keys, None, &mut c));
        keys.asked.into_inner().contains(key)
    }

    /// The keys of a configuration, as far as it has them.
    fn write(&self, c: &Config) -> Metadata {
        let mut m = Metadata::default();
        let mut put = |key: &str, value: GgufValue| m.set(format!("{}.{key}", self.name), value);
        self.keys().for_each(|key| key.write(c, &mut put));
        put(self.eps(), GgufValue::F32(c.norm_eps as f32));
        put("vocab_size", size(c.vocab_size));
        m.set("general.architecture", self.name.to_string());
        if self.free.contains(&"n_segment") {
            m.set("tokenizer.ggml.token_type_count", size(c.n_segment.max(1)));
        }
        m
    }

    /// Its keys for `c`, the configuration that they and its tensors say, what that lacks of `c`, and whether it has
    /// more. None if `c` has a value that the keys cannot hold.
    fn candidate(&self, c: &Config) -> Option<(Metadata, Config, Complaints, bool)> {
        let (mut not, mine) = (common(c), canonical(c));
        let m = self.write(&mine);
        let keys = Keys::new(&m, Path::new(""), self.name);
        let mut theirs = self.read(&keys, None).ok()?;
        (theirs.vocab_size, theirs.dropout) = (mine.vocab_size, mine.dropout);
        // Llama 3.1's scaling is a tensor of factors
        let scaling = mine.rotary_scaling;
        let has_factors = self.keys().any(|key| matches!(key, Rotary { factors: true, .. }));
        if has_factors && scaling.kind == RotaryKind::Bands && scaling.context > 0 {
            theirs.rotary_scaling = scaling;
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
}

/// The names that an architecture's files have, with queries, keys and values in one tensor or in three.
pub(super) struct GgufNames {
    pub(super) kind: &'static Architecture,
    pub(super) fused: bool,
}

impl GgufNames {
    /// The links of what is written.
    pub(super) fn written(kind: &'static Architecture, model: &Model) -> Vec<Link> {
        let mut links = GgufNames { kind, fused: kind.fused }.links(model);
        if kind.copied {
            links.extend(rows::links([COPY].iter(), kind.pairs, model));
        }
        links
    }
}

impl Dialect for GgufNames {
    fn links(&self, model: &Model) -> Vec<Link> {
        let qkv = if self.fused { FUSED } else { THIRDS };
        let tables = [TABLES, qkv, self.kind.norms, self.kind.ffn, HEAD];
        rows::links(tables.iter(), self.kind.pairs, model)
    }

    /// Without factors that the configuration says, and a copy of the token table.
    fn canonical(&self, stored: &str, config: &Config) -> Option<String> {
        let is_said = stored == ROPE_FREQS || stored == HEAD_COPY && config.tied_head;
        (!is_said).then(|| stored.into())
    }
}

/// The architecture that says a model (of several the one that it came in, else the first), its metadata with the
/// tokenizer's, and the configuration with all that the architecture always has.
///
/// # Errors
/// Says what of `c` the architecture nearest to it lacks, or why it has no place for the tokenizer.
pub(super) fn express(
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
        Some(tokenizer) => vocabulary::write_tokenizer(&mut m, tokenizer.table()?, c.vocab_size),
        None => m.set("tokenizer.ggml.model", "none".to_string()),
    }
    Ok((kind, m, config))
}

#[cfg(test)]
mod tests {
    use super::super::keys::PER_LAYER;
    use super::*;
    use std::path::PathBuf;

    /// A size that stands there once for each block is that size, where llama.cpp reads it so; sizes that differ are
    /// refused by name.
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

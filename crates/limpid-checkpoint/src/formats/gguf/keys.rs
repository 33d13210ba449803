//! The keys of a GGUF file that describe its model: what each means ([`Key`]), and those of one file ([`Keys`]). The
//! same lines serve reading and writing. A key that is not asked for is an error, unless no number depends on it.

use crate::error::{CheckpointError, Result, refuse};
use crate::formats::express::setting;
use crate::gguf::{Array, GgufValue, Metadata};
use crate::store::Store;
use limpid_core::config::{Config, ConfigError, LayerPattern, Mask, Positions, RotaryScaling, Settings};
use std::cell::RefCell;
use std::collections::HashSet;
use std::path::Path;

/// How conversations are written, in Jinja.
pub(super) const CHAT_TEMPLATE: &str = "tokenizer.chat_template";

/// What of a text's hidden states is its vector.
pub(super) const POOLING: &str = "pooling_type";

/// The tensor of factors by which each pair of a head turns slower.
pub(super) const ROPE_FREQS: &str = "rope_freqs.weight";

/// Our keys for what decides those factors: others skip them.
const LOW: &str = "rope.scaling.low_freq_factor";
const HIGH: &str = "rope.scaling.high_freq_factor";

/// The keys of sizes that llama.cpp reads block by block, too.
pub(super) const PER_LAYER: [&str; 3] = ["feed_forward_length", "attention.head_count", "attention.head_count_kv"];
/// Of the norms' two keys.
pub(super) const EPS: [&str; 2] = ["attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon"];

/// One key of an architecture, below its name, or several that say one thing together.
pub(super) enum Key {
    /// A setting that is a number, its key, and its value where the key is missing: nothing if it must be there, `-`
    /// for the setting's own default.
    Is(&'static str, &'static str, &'static str),
    /// The same where the key has one over the number.
    Over(&'static str, &'static str),
    /// A setting, its key, a truth value, and its values for no and yes, which is that of a missing key.
    Flag(&'static str, &'static str, [&'static str; 2]),
    /// The only value that limpid supports; the flag says whether a missing key means that value.
    Only(&'static str, fn() -> GgufValue, bool),
    /// Heads that share keys.
    KvHeads,
    /// Rotary angles; whether heads may be of other sizes than d_model / n_head, be turned in part, and by Llama 3.1's
    /// factors.
    Rotary { wide: bool, partial: bool, factors: bool },
    /// A window: the blocks that have it, the base of their angles, and its length where the key is missing.
    Window(&'static str, Option<f64>, usize),
    /// Token vectors times the root of d_model.
    Root,
    /// Scores by the root of d_model / n_head, whatever the heads' size is, in models of so many blocks (Gemma's of
    /// 27B).
    Broad(usize),
}
pub(super) use Key::{Broad, Flag, Is, KvHeads, Only, Over, Root, Rotary, Window};

/// Keys of an architecture on which no number depends, or which say what tensors and other keys say: of its tokens, of
/// vectors, of another head, of rotary angles that are not scaled so, and of windows, if there are some.
#[rustfmt::skip]
const IDLE: &[&str] = &[
    "vocab_size", POOLING, "classifier.output_labels", "rope.scaling.finetuned", "rope.scaling.factor",
    "rope.scaling.original_context_length", LOW, HIGH, EPS[0], EPS[1], "attention.sliding_window_pattern",
];

/// What GGUF's keys mean that limpid has: an architecture's name, and what it says.
pub(super) struct Keys<'a> {
    pub(super) m: &'a Metadata,
    path: &'a Path,
    architecture: &'static str,
    /// Those that have been asked for.
    pub(super) asked: RefCell<HashSet<String>>,
}

impl<'a> Keys<'a> {
    pub(super) fn new(m: &'a Metadata, path: &'a Path, architecture: &'static str) -> Keys<'a> {
        Keys { m, path, architecture, asked: RefCell::default() }
    }
    pub(super) fn full(&self, key: &str) -> String {
        self.asked.borrow_mut().insert(key.into());
        format!("{}.{key}", self.architecture)
    }
    pub(super) fn has(&self, key: &str) -> bool {
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
    pub(super) fn maybe_size(&self, key: &str) -> Result<Option<usize>> {
        self.has(key).then(|| self.size(key)).transpose()
    }
    fn number(&self, key: &str) -> Result<Option<f64>> {
        self.has(key).then(|| self.m.f64(&self.full(key)).map(shortest)).transpose()
    }
    pub(super) fn bad<T>(&self, what: String) -> Result<T> {
        refuse(self.path, what)
    }
    pub(super) fn checked<T>(&self, answer: std::result::Result<T, ConfigError>) -> Result<T> {
        answer.map_err(|source| CheckpointError::Config { path: self.path.into(), source })
    }
    /// The keys that nothing here depends on; refuses one of the architecture that nobody asked for, unless it is known
    /// to change no number of this model. `readers` are the architectures that read a key.
    pub(super) fn rest(&self, c: &Config, readers: impl Fn(&str) -> Vec<&'static str>) -> Result<Vec<String>> {
        let mut unused = vec![];
        for (full, value) in self.m.iter() {
            match full.strip_prefix(self.architecture).and_then(|rest| rest.strip_prefix('.')) {
                None if is_used(full) => {}
                Some("vocab_size") => {}
                Some(key) if self.asked.borrow().contains(key) => {}
                Some(key) if !IDLE.contains(&key) && !self.changes_nothing(key, c) => {
                    let others = readers(key);
                    let others = if others.is_empty() { "none".into() } else { others.join(", ") };
                    let value: String = format!("{value:?}").chars().take(60).collect();
                    return self.bad(format!(
                        "`{full}` is {value}, which limpid does not read in the architecture {}: it may change the \
                         model's numbers. Architectures in which it does: {others}; a folder of HuggingFace's, from \
                         which such a file is made, says more",
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
            "attention.clamp_kqv", "attention.max_alibi_bias", "attn_logit_softcapping", "final_logit_softcapping",
            "nextn_predict_layers", "leading_dense_block_count",
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
        "model", "pre", "tokens", "scores", "token_type", "merges", "bos_token_id", "eos_token_id", "unknown_token_id",
        "cls_token_id", "seperator_token_id", "add_bos_token", "add_eos_token", "add_sep_token", "add_space_prefix",
        "normalizer.lowercase", "normalizer.strip_accents", "token_type_count", "eot_token_id", "eom_token_id",
        "fim_pad_token_id", "fim_rep_token_id", "fim_sep_token_id",
    ];
    const GENERAL: &[&str] = &["architecture", "file_type", "quantization_version", "alignment"];
    let below = |part: &str, known: &[&str]| key.strip_prefix(part).is_some_and(|key| known.contains(&key));
    below("tokenizer.ggml.", TOKENIZERS)
        || below("general.", GENERAL)
        || key.starts_with("split.")
        || key == CHAT_TEMPLATE
}

pub(super) fn size(n: usize) -> GgufValue {
    GgufValue::U32(u32::try_from(n).unwrap_or(u32::MAX))
}

impl Key {
    /// Reads what it says into `c`.
    pub(super) fn read(&self, keys: &Keys, store: Option<&Store>, c: &mut Config) -> Result<()> {
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
                keys.checked(c.set(name, (1.0 / over).to_string()))?;
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
    pub(super) fn write(&self, c: &Config, put: &mut dyn FnMut(&str, GgufValue)) {
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

/// What was written 1e-5 and stored as f32 is 1e-5 again.
pub(super) fn shortest(x: f64) -> f64 {
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
pub(super) fn factors(scaling: RotaryScaling, base: f64, d_head: usize) -> Vec<f32> {
    let frequency = |i: usize| base.powf(-((2 * i) as f64) / d_head as f64);
    (0..d_head / 2).map(|i| (frequency(i) / scaling.apply(frequency(i))) as f32).collect()
}

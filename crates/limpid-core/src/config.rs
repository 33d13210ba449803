//! Which transformer: sizes, and one enum per axis on which published models differ.
//!
//! A [`Config`] is plain data and a preset is a value. Nothing here knows how a model is computed: `model::builder`
//! matches each axis once. The settings of the optimizer, the tokenizer and the data are elsewhere, because a model
//! is not its training. Read `ops` next.

mod presets;
mod settings;

pub use presets::{PRESETS, Preset};
pub use settings::{
    Field, FieldMut, Fields, Range, Setting, SettingGroup, Settings, Value, ValueKind, setting_value, settings,
};

use limpid_base::nearest::nearest;
use limpid_base::plural::plural;
use std::{fmt, ops, str::FromStr};

/// Why a configuration cannot be built.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A size is zero.
    #[error("{what} is 0: it must be at least 1")]
    Zero {
        /// The size's name.
        what: &'static str,
    },
    /// The heads do not divide the width.
    #[error("d_model {d_model} is not a multiple of n_head {n_head}: {remedy}")]
    HeadsDontDivide {
        /// Width of the residual stream.
        d_model: usize,
        /// Number of heads asked for.
        n_head: usize,
        /// Values that would be valid.
        remedy: String,
    },
    /// The key heads do not divide the query heads.
    #[error("n_head {n_head} is not a multiple of n_kv_head {n_kv_head}: each key head serves as many query heads")]
    KeyHeadsDontDivide {
        /// Query heads.
        n_head: usize,
        /// Heads of keys and values.
        n_kv_head: usize,
    },
    /// Rotary positions rotate pairs of features.
    #[error("rotary positions rotate pairs of features: the head size (or rotary_dim) is {d_head}, it must be even")]
    OddHead {
        /// Features of one head that are turned.
        d_head: usize,
    },
    /// A narrow table cannot read what is as wide as the stream.
    #[error(
        "a tied head multiplies by the token table, which is d_embed {d_embed} wide, and reads d_model {d_model}: use \
         head_transform true, which ends d_embed wide, or tied_head false"
    )]
    NarrowTiedHead {
        /// Width of the token table.
        d_embed: usize,
        /// Width of the residual stream.
        d_model: usize,
    },
    /// A norm after the sum needs one sum.
    #[error(
        "a parallel block has no sum after attention to normalise: norm_place post and post-attention need parallel no"
    )]
    ParallelPost,
    /// A window says which keys before the query are seen, and this mask shows later ones.
    #[error("window {window} needs a causal mask and mask is {mask}: use window 0, or mask causal")]
    WindowMask {
        /// Keys that a query would see.
        window: usize,
        /// The mask.
        mask: Mask,
    },
    /// A number is outside its range.
    #[error("{what} is {found}: {expected}")]
    Range {
        /// The key.
        what: &'static str,
        /// Its value.
        found: String,
        /// What it may be.
        expected: &'static str,
    },
    /// A text is no valid value of a setting.
    #[error("{what} is `{found}`: {why}")]
    Value {
        /// The setting.
        what: &'static str,
        /// The text.
        found: String,
        /// Why it is not valid.
        why: String,
    },
    /// The model would have more than 2^48 parameters.
    #[error("these sizes make more than 2^48 parameters ({what}): make d_model, d_ff, n_layer or vocab_size smaller")]
    TooLarge {
        /// The sizes.
        what: String,
    },
    /// The activations would not fit any memory.
    #[error(
        "{sequences} sequences of {tokens} tokens at once fit no memory: make batch_size or context_length smaller"
    )]
    TooManyRows {
        /// Sequences at once.
        sequences: usize,
        /// Tokens of each.
        tokens: usize,
    },
    /// A name that is not in the list.
    #[error("unknown {what} `{found}`: {}", known(.nearest, .all))]
    Unknown {
        /// What kind of name.
        what: &'static str,
        /// The name given.
        found: String,
        /// The nearest right one, if any is near.
        nearest: Option<String>,
        /// All right ones.
        all: String,
    },
    /// The multiplicative mask of "The Formulated GPT-2", which hides nothing.
    #[error(
        "the multiplicative mask (scores times 1 or -inf) is refused: a negative score times -inf is +inf and a zero \
         score is NaN, so the softmax is NaN; use `causal`, which adds 0 or -inf"
    )]
    MultiplicativeMask,
    /// The model does not fit the memory budget, even at the highest recompute level.
    #[error(
        "{:.1} MB of memory are too little: even with all possible activations recomputed, this takes {:.1} MB; a \
         smaller \
         batch_size (with a larger accumulate a step stays the same), context or model would fit",
        *.budget as f64 / 1e6, *.least as f64 / 1e6
    )]
    Budget {
        /// The budget in bytes.
        budget: u64,
        /// The least bytes that the model needs.
        least: u64,
    },
    /// The model has no head, and logits are needed.
    #[error(
        "this model has no head over the vocabulary, only hidden states: it can be inspected, not trained or sampled"
    )]
    NoHead,
    /// Every parameter is frozen.
    #[error("every parameter is frozen, so nothing would learn: freeze fewer")]
    NothingLearns,
    /// The configuration file cannot be read.
    #[error("{0}")]
    File(String),
}

fn known(near: &Option<String>, all: &str) -> String {
    match near {
        Some(near) => format!("did you mean `{near}`? (one of: {all})"),
        None => format!("it is one of: {all}"),
    }
}

/// The error for an unknown name, with the nearest known one.
pub fn unknown(what: &'static str, found: &str, all: &[&str]) -> ConfigError {
    ConfigError::Unknown {
        what,
        found: found.to_string(),
        nearest: nearest(found, all.iter().copied()).map(str::to_string),
        all: all.join(", "),
    }
}

/// A choice on one axis: its values have names, the same in files, flags and messages.
pub trait Axis: Sized + Copy + PartialEq + 'static {
    /// The name of the axis in messages.
    const WHAT: &'static str;
    /// Every value, in the order of the documentation.
    const ALL: &'static [Self];
    /// The value's name.
    fn name(self) -> &'static str;
    /// A name that has a meaning elsewhere and is refused here, and why.
    const REFUSED: Option<(&'static str, ConfigError)> = None;
    /// The value of exactly that name.
    fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|value| value.name() == name)
    }
}

/// Declares an enum whose values have names, with one line per value.
#[macro_export]
macro_rules! axis {
    (
        $(#[$doc:meta])* $type:ident, $what:literal { $($(#[$vdoc:meta])* $value:ident = $name:literal),* $(,)? }
        $(refused $refused:literal: $error:expr)?
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
        pub enum $type { $($(#[$vdoc])* $value),* }
        impl $crate::config::Axis for $type {
            const WHAT: &'static str = $what;
            const ALL: &'static [$type] = &[$($type::$value),*];
            $(const REFUSED: Option<(&'static str, $crate::config::ConfigError)> = Some(($refused, $error));)?
            fn name(self) -> &'static str { match self { $($type::$value => $name),* } }
        }
        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str($crate::config::Axis::name(*self))
            }
        }
        impl std::str::FromStr for $type {
            type Err = $crate::config::ConfigError;
            fn from_str(s: &str) -> Result<$type, Self::Err> { $crate::config::parse_axis(s) }
        }
        $crate::serde_as_text!($type);
    };
}
pub use axis;

/// Writes and reads a type as the text that it is shown as and parsed from.
#[macro_export]
#[doc(hidden)]
macro_rules! serde_as_text {
    ($type:ident) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.collect_str(self)
            }
        }
        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<$type, D::Error> {
                let text = <String as serde::Deserialize>::deserialize(d)?;
                str::parse(&text).map_err(serde::de::Error::custom)
            }
        }
    };
}
pub use serde_as_text;

/// The value of an axis by its name; `_` and `-` are the same, case does not matter.
pub fn parse_axis<A: Axis>(s: &str) -> Result<A, ConfigError> {
    // PyTorch's bfloat16 is bf16
    let name = s.to_lowercase().replace('_', "-").replace("float", "f");
    if let Some((refused, error)) = A::REFUSED
        && name == refused
    {
        return Err(error);
    }
    let all: Vec<&str> = A::ALL.iter().map(|a| a.name()).collect();
    A::named(&name).ok_or_else(|| unknown(A::WHAT, s, &all))
}

axis! {
    /// How positions are encoded.
    Positions, "positions" {
        /// A trained table of `context_length` rows, added to the embedding.
        Learned = "learned",
        /// Alternating sines and cosines, with positions and columns from 0.
        Sinusoidal = "sinusoidal",
        /// The same with positions and columns from 1, as "Notations" writes it.
        SinusoidalOneBased = "sinusoidal-one-based",
        /// RoPE: queries and keys rotated by their position (Su et al. 2021).
        Rotary = "rotary",
        /// ALiBi: scores fall with the distance of query and key, in each head at a slope of its own (Press et al.
        /// 2022).
        Alibi = "alibi",
        /// Not at all: only the mask tells a token from those before it.
        None = "none",
    }
}
axis! {
    /// Which features of a head rotary positions turn together, in the order in which a model's files, names and tables
    /// have them. In memory partners are neighbours always.
    RotaryPairs, "pairs of rotary positions" {
        /// Features 2i and 2i + 1: GPT-J, Cohere, GLM.
        Neighbours = "neighbours",
        /// Feature i and the one half of the turned features after it: GPT-NeoX, Llama.
        Halves = "halves",
        /// The same, turned the other way: nanochat.
        HalvesBack = "halves-back",
    }
}
axis! {
    /// Where a block normalises.
    NormPlace, "norm placement" {
        /// x + f(norm(x)): GPT-2.
        Pre = "pre",
        /// norm(x + f(x)): the first Transformer, GPT, BERT.
        Post = "post",
        /// norm(x + attention(x)), then what the feed-forward network makes of it, without sum or norm: the block as
        /// "Zero-to-Hero" writes it.
        PostAttention = "post-attention",
        /// x + norm(f(x)): OLMo 2.
        Branch = "branch",
        /// x + norm(f(norm(x))), with two norms: Gemma 2.
        Both = "both",
    }
}
impl NormPlace {
    /// Whether what leaves attention's sum is normalised, so that the stream is no sum.
    pub fn is_post(self) -> bool {
        matches!(self, NormPlace::Post | NormPlace::PostAttention)
    }
    /// Whether what a sub-layer gives is normalised before it is added to the stream.
    pub fn is_branch(self) -> bool {
        matches!(self, NormPlace::Branch | NormPlace::Both)
    }
}
axis! {
    /// Whether attention and the feed-forward network of a block read the same stream, and both are added to it.
    Parallel, "parallel" {
        /// The feed-forward network reads what attention has added to: GPT-2.
        No = "no",
        /// Both read the output of one norm: GPT-J, Phi-2, Falcon 7B, Cohere.
        OneNorm = "one-norm",
        /// Each has a norm of its own: Pythia.
        TwoNorms = "two-norms",
    }
}
axis! {
    /// A norm of queries and keys before they are turned and multiplied.
    QkNorm, "norm of queries and keys" {
        /// None: GPT-2.
        None = "none",
        /// Each head by itself, with one gain for all heads of queries and one for all of keys: Qwen3, Gemma 3.
        Head = "head",
        /// Each head by itself, without gain: nanochat.
        HeadPlain = "head-plain",
        /// All heads of queries together, and all of keys, with a gain for every feature: OLMo 2.
        Width = "width",
    }
}
axis! {
    /// The kind of norm.
    NormKind, "norm" {
        /// (x - mean) / sqrt(variance + eps).
        Layer = "layer",
        /// (x - mean) / (standard deviation + eps), as in the code of "Notations".
        LayerStd = "layer-std",
        /// x / sqrt(mean(x^2) + eps) (Zhang and Sennrich 2019).
        Rms = "rms",
    }
}
axis! {
    /// Which keys a query may attend to.
    Mask, "mask" {
        /// Itself and the tokens before it.
        Causal = "causal",
        /// Every real token of its sequence; padding is hidden.
        Bidirectional = "bidirectional",
        /// Every position of its sequence, padding too: no mask is applied.
        None = "none",
    }
    refused "multiplicative": ConfigError::MultiplicativeMask
}
axis! {
    /// The activation function of the feed-forward network.
    Activation, "activation" {
        /// max(0, x)
        Relu = "relu",
        /// x where positive, `leaky_slope` x elsewhere
        LeakyRelu = "leaky-relu",
        /// x Phi(x), exactly
        GeluErf = "gelu-erf",
        /// x Phi(x) by tanh
        GeluTanh = "gelu-tanh",
        /// x sigmoid(1.702 x)
        GeluSigmoid = "gelu-sigmoid",
        /// x sigmoid(x)
        Silu = "silu",
        /// max(0, x) squared (So et al. 2021)
        Relu2 = "relu2",
        /// 1 / (1 + exp(-x)): saturates, kept to show vanishing gradients
        Sigmoid = "sigmoid",
        /// tanh(x): saturates likewise
        Tanh = "tanh",
    }
}
/// The constants of the activation functions that have some.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Constants {
    /// The slope of the leaky ReLU below zero.
    pub leak: f64,
    /// α of GELU by tanh: x Φ(α x), with Φ(z) taken for (1 + tanh(β (z + γ z^3))) / 2.
    pub alpha: f64,
    /// β
    pub beta: f64,
    /// γ
    pub gamma: f64,
}

impl Constants {
    /// The usual ones; β is the root of 2 / π.
    pub const USUAL: Constants = Constants { leak: 0.01, alpha: 1.0, beta: 0.797_884_560_802_865_4, gamma: 0.044_715 };
    /// These with another slope of the leaky ReLU.
    pub const fn leaking(leak: f64) -> Constants {
        Constants { leak, ..Constants::USUAL }
    }
}

axis! {
    /// How rotary angles are changed for contexts longer than those that a model was trained on.
    RotaryKind, "rotary scaling" {
        /// By how often a pair of features rotates over the original context (Llama 3.1), or all pairs alike (position
        /// interpolation, Chen et al. 2023).
        Bands = "bands",
        /// By the pair's number, between those that rotate so often over the original context (YaRN, Peng et al. 2023).
        Yarn = "yarn",
        /// Not at all up to `context_length`. Beyond, where limpid does not go, other programs raise the base with the
        /// length of the text.
        Dynamic = "dynamic",
        /// Each pair by a factor of its own, from one list up to the original context and from another beyond
        /// (LongRoPE, Ding et al. 2024).
        Longrope = "longrope",
    }
}
axis! {
    /// How dropout scales the elements that it keeps.
    DropoutScale, "dropout scale" {
        /// Divided by 1 - p while training, untouched in evaluation.
        Inverted = "inverted",
        /// Untouched while training, multiplied by 1 - p in evaluation so that the mean agrees.
        Unscaled = "unscaled",
    }
}

settings! {
    /// Probability of dropping an element, in each of the four places.
    #[derive(Clone, Copy, PartialEq, Debug)]
    pub struct Dropout named "dropout_" {
        /// Dropout after the embedding.
        embedding: f64 = 0.0, Setting::of("P").below_one().also(&["embd-pdrop"]);
        /// Dropout on the attention weights, after the softmax.
        attention: f64 = 0.0, Setting::of("P").below_one().also(&["attn-pdrop"]);
        /// Dropout on the projected attention output.
        projection: f64 = 0.0, Setting::of("P").below_one().also(&["resid-pdrop"]);
        /// Dropout on the feed-forward network's output.
        ffn: f64 = 0.0, Setting::of("P").below_one();
        /// Whether dropout scales the elements that it keeps.
        scale: DropoutScale = DropoutScale::Inverted, Setting::of("KIND");
    }
}

impl Dropout {
    /// No dropout.
    pub const NONE: Dropout = Dropout::everywhere(0.0);
    /// The same probability in all four places.
    pub const fn everywhere(p: f64) -> Dropout {
        Dropout { embedding: p, attention: p, projection: p, ffn: p, scale: DropoutScale::Inverted }
    }
}

/// The layout of queries, keys and values in a row: all queries, then all keys, then all values, each head by head.
/// Key head j serves the H / K query heads from j H / K on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Heads {
    /// H: query heads.
    pub n_head: usize,
    /// K: heads of keys and of values.
    pub n_kv_head: usize,
    /// D: features of each query and key.
    pub d_head: usize,
    /// D_v: features of each value, most often D.
    pub d_value: usize,
}

impl Heads {
    /// Columns of all queries, keys and values.
    pub const fn cols(self) -> usize {
        self.query_cols() + self.cache_cols()
    }
    /// Columns of all queries.
    pub const fn query_cols(self) -> usize {
        self.n_head * self.d_head
    }
    /// Columns of all keys.
    pub const fn key_cols(self) -> usize {
        self.n_kv_head * self.d_head
    }
    /// Columns of all values.
    pub const fn value_cols(self) -> usize {
        self.n_kv_head * self.d_value
    }
    /// Columns of all keys and values: what a KV cache holds of a position.
    pub const fn cache_cols(self) -> usize {
        self.key_cols() + self.value_cols()
    }
    /// Columns of what attention gives: a value's for each query head.
    pub const fn output_cols(self) -> usize {
        self.n_head * self.d_value
    }
    /// Query heads that one key head serves.
    pub const fn group(self) -> usize {
        self.n_head / self.n_kv_head
    }
    /// The columns of the queries, of the keys and of the values.
    pub fn parts(self) -> [ops::Range<usize>; 3] {
        let (q, k) = (self.query_cols(), self.key_cols());
        [0..q, q..q + k, q + k..self.cols()]
    }
    /// Features of a head in one of the [`Heads::parts`].
    pub fn features(self, part: &ops::Range<usize>) -> usize {
        if part.start < self.parts()[2].start { self.d_head } else { self.d_value }
    }
    /// The columns of the query, the key and the value of query head `h`.
    pub fn of_head(self, h: usize) -> [ops::Range<usize>; 3] {
        let [q, k, v] = self.starts(h);
        [q..q + self.d_head, k..k + self.d_head, v..v + self.d_value]
    }
    /// The first columns of the query, the key and the value of query head `h`.
    pub fn starts(self, h: usize) -> [usize; 3] {
        let ([q, k, v], shared) = (self.parts(), h / self.group());
        [q.start + h * self.d_head, k.start + shared * self.d_head, v.start + shared * self.d_value]
    }
}

/// Which blocks have something: a 1 or a 0 for each, repeated (`1`: all; `01`: every second; `111110`: all but every
/// sixth).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct LayerPattern {
    bits: u64,
    len: u32,
}

impl LayerPattern {
    /// All blocks.
    pub const ALL: LayerPattern = LayerPattern { bits: 1, len: 1 };
    /// No block.
    pub const NONE: LayerPattern = LayerPattern { bits: 0, len: 1 };

    /// Whether `block` has it, counted from 0.
    pub fn holds(self, block: usize) -> bool {
        self.bits >> (block as u64 % u64::from(self.len)) & 1 == 1
    }

    /// The shortest pattern whose first blocks are these; none if it is longer than 64.
    pub fn new(blocks: &[bool]) -> Option<LayerPattern> {
        let repeats = |len: &usize| blocks.iter().enumerate().all(|(i, has)| *has == blocks[i % len]);
        let len = (1..=blocks.len()).find(repeats).filter(|len| *len <= 64)?;
        let bits = blocks[..len].iter().rev().fold(0, |bits, has| bits << 1 | u64::from(*has));
        Some(LayerPattern { bits, len: len as u32 })
    }
}

impl fmt::Display for LayerPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (0..self.len as usize).try_for_each(|i| f.write_str(if self.holds(i) { "1" } else { "0" }))
    }
}

impl FromStr for LayerPattern {
    type Err = ConfigError;
    fn from_str(text: &str) -> Result<LayerPattern, ConfigError> {
        let digits = || text.bytes().map(|digit| digit == b'1');
        let twice: Vec<bool> = digits().chain(digits()).collect();
        let ok = (1..=64).contains(&text.len()) && text.bytes().all(|digit| matches!(digit, b'0' | b'1'));
        // twice, so that the shortest pattern is one that repeats to the end
        LayerPattern::new(&twice).filter(|_| ok).ok_or_else(|| ConfigError::Value {
            what: "pattern of blocks",
            found: text.into(),
            why: "it is a 1 or a 0 for each block, at most 64 of them, which are repeated".into(),
        })
    }
}

serde_as_text!(LayerPattern);

/// A factor for each pair of features that rotary positions turn, in their order; at most 128. They are kept in place,
/// so that a configuration stays plain data.
#[derive(Clone, Copy, PartialEq)]
pub struct PairFactors {
    len: usize,
    factors: [f64; 128],
}

impl PairFactors {
    /// No factors.
    pub const NONE: PairFactors = PairFactors { len: 0, factors: [0.0; 128] };

    /// These; none if they are too many, or one is not above 0.
    pub fn new(list: &[f64]) -> Option<PairFactors> {
        let mut own = PairFactors { len: list.len(), ..PairFactors::NONE };
        own.factors.get_mut(..list.len())?.copy_from_slice(list);
        list.iter().all(|x| *x > 0.0 && x.is_finite()).then_some(own)
    }
}

impl ops::Deref for PairFactors {
    type Target = [f64];
    fn deref(&self) -> &[f64] {
        &self.factors[..self.len]
    }
}

impl fmt::Display for PairFactors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.iter().map(f64::to_string).collect::<Vec<_>>().join(","))
    }
}

impl fmt::Debug for PairFactors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{self}]")
    }
}

impl FromStr for PairFactors {
    type Err = ConfigError;
    fn from_str(text: &str) -> Result<PairFactors, ConfigError> {
        let parts = text.split(',').filter(|_| !text.trim().is_empty());
        let list: Option<Vec<f64>> = parts.map(|x| x.trim().parse().ok()).collect();
        list.and_then(|list| PairFactors::new(&list)).ok_or_else(|| ConfigError::Value {
            what: "list of factors",
            found: text.into(),
            why: "it is at most 128 numbers above 0, with commas between them".into(),
        })
    }
}

serde_as_text!(PairFactors);

settings! {
    /// Scaling of the rotary angles, for contexts longer than those a model was trained on. A pair of features
    /// rotates once in some number of positions, its wavelength. As in Llama 3.1, pairs with a wavelength above
    /// `context` / `low` rotate `factor` times slower; pairs below `context` / `high` are unchanged; the frequencies
    /// between are interpolated. With `context` 0 all pairs rotate slower (position interpolation, Chen et al.
    /// 2023). What other kinds make of these numbers is in `model::tables::frequencies`.
    #[derive(Clone, Copy, PartialEq, Debug)]
    pub struct RotaryScaling named "rotary_scaling_" {
        /// Factor by which rotary pairs rotate slower, for contexts longer than those trained on; 1 changes nothing.
        factor: f64 = 1.0, Setting::of("X").number(|x| x > 0.0 && x.is_finite(), "it must be above 0");
        /// Pairs that rotate fewer times than this over the original context are scaled in full (Llama 3.1's
        /// `low_freq_factor`).
        low: f64 = 1.0, Setting::of("N").number(|x| x > 0.0, "it must be above 0");
        /// Pairs that rotate more often than this over the original context are not scaled (Llama 3.1's
        /// `high_freq_factor`).
        high: f64 = 4.0, Setting::of("N").number(|x| x > 0.0 && x.is_finite(), "it must be above rotary_scaling_low");
        /// Context length of the original training; 0 scales all pairs alike.
        context: usize = 0, Setting::of("T").count();
        /// How pairs are scaled.
        kind: RotaryKind = RotaryKind::Bands, Setting::of("KIND").optional_in_files();
        /// Yarn's bounds are whole numbers of pairs.
        truncate: bool = true, Setting::of("BOOL").optional_in_files();
        /// Factor of the rotated features of queries and keys (`attention_factor` of yarn and longrope).
        attention: f64 = 1.0, Setting::of("X").above_zero().optional_in_files();
        /// How many times slower each pair rotates if context_length is at most rotary_scaling_context (longrope).
        short: PairFactors = PairFactors::NONE, Setting::of("X,X,...").optional_in_files();
        /// How many times slower each pair rotates if context_length is longer (longrope).
        long: PairFactors = PairFactors::NONE, Setting::of("X,X,...").optional_in_files();
        /// The model's context length in other programs, which switch to the other list beyond context_length
        /// (longrope); 0 for context_length.
        reach: usize = 0, Setting::of("T").count().optional_in_files();
    }
}

impl RotaryScaling {
    /// No scaling.
    pub const NONE: RotaryScaling = RotaryScaling::DEFAULT;

    /// A frequency, in radians per position, after scaling by bands.
    pub fn apply(self, frequency: f64) -> f64 {
        let turns = self.context as f64 * frequency / std::f64::consts::TAU;
        let kept = ((turns - self.low) / (self.high - self.low)).clamp(0.0, 1.0);
        frequency * (kept + (1.0 - kept) / self.factor)
    }
}

settings! {
    /// Everything that distinguishes one transformer from another. By default GPT-2 small's choices, without its
    /// dropout.
    #[derive(Clone, PartialEq, Debug)]
    pub struct Config {
        /// Rows of the token table. Rows beyond the tokenizer's tokens are padding, which is never sampled.
        vocab_size: usize = 50_257, Setting::of("V").size()
            .default_text("as many as the tokenizer has; without one the preset's")
            .also(&["padded-vocab-size"]);
        /// Positions a sequence may have.
        context_length: usize = 1024, Setting::of("T").size().common().also(&[
            "block-size", "n-positions", "n-ctx", "max-seq-len", "max-seq-length", "max-position-embeddings",
            "sequence-len",
        ]);
        /// Width of the residual stream.
        d_model: usize = 768, Setting::of("C").size().common().also(&["n-embd", "n-embed", "hidden-size", "channels"]);
        /// Width of the token, position and segment tables, which a matrix projects to d_model, even if both are equal
        /// (ALBERT).
        d_embed: Option<usize> = None, Setting::of("E").size().default_text("d_model, and no projection")
            .optional_in_files().also(&["embedding-size"]);
        /// Attention heads; they divide `d_model` unless `d_head` is given.
        n_head: usize = 12, Setting::of("H").size().common().also(&["n-heads", "num-heads", "num-attention-heads"]);
        /// Key and value heads, each shared by several attention heads (grouped-query attention, Ainslie et al. 2023).
        n_kv_head: Option<usize> = None, Setting::of("K").size().default_text("n_head")
            .also(&["n-kv-heads", "num-key-value-heads", "n-query-groups"]);
        /// Features of one head.
        d_head: Option<usize> = None, Setting::of("D").size().default_text("d_model / n_head")
            .also(&["head-dim", "head-size"]);
        /// Features of one head's values, if not equal to d_head.
        d_v: Option<usize> = None, Setting::of("D").size().default_text("d_head").optional_in_files()
            .also(&["value-length", "v-head-dim"]);
        /// Blocks.
        n_layer: usize = 12, Setting::of("L").whole(1, 4096, "at most 4096, which bounds the list of ops").common()
            .also(&["n-layers", "num-layers", "num-hidden-layers", "depth"]);
        /// All blocks share the parameters of one (ALBERT).
        shared_blocks: bool = false, Setting::of("BOOL").optional_in_files();
        /// Width inside the feed-forward network.
        d_ff: usize = 3072, Setting::of("F").size().common()
            .default_text("the same multiple of d_model as before, usually 4").also(&["n-inner", "intermediate-size"]);
        /// How positions are encoded.
        positions: Positions = Positions::Learned, Setting::of("KIND");
        /// Base of the rotary angles.
        rotary_base: f64 = 10_000.0, Setting::of("X").above_zero().also(&["rope-theta"]);
        /// Rotary angles for longer contexts than a model was trained on.
        rotary_scaling: RotaryScaling = RotaryScaling::NONE, Setting::of("");
        /// Leading features of each head that are rotated.
        rotary_dim: Option<usize> = None, Setting::of("N").size().default_text("d_head").optional_in_files();
        /// Blocks that rotate queries and keys: 1 or 0 for each, repeated.
        rotary_layers: LayerPattern = LayerPattern::ALL, Setting::of("PATTERN").optional_in_files();
        /// Which features of queries and keys rotate as pairs, in files and wherever they are shown; results do not
        /// depend on it.
        rotary_pairs: RotaryPairs = RotaryPairs::Neighbours, Setting::of("KIND").optional_in_files();
        /// Base of the rotary angles in blocks with a window, whose angles are then not scaled (Gemma 3).
        rotary_base_window: Option<f64> = None, Setting::of("X").above_zero().default_text("rotary_base")
            .optional_in_files();
        /// Segment vectors (BERT: 2); 0 for none.
        n_segment: usize = 0, Setting::of("N").count().also(&["type-vocab-size"]);
        /// Whether a block normalises before or after its sublayers.
        norm_place: NormPlace = NormPlace::Pre, Setting::of("WHERE");
        /// Attention and feed-forward network side by side.
        parallel: Parallel = Parallel::No, Setting::of("KIND").optional_in_files();
        /// A norm between the last block and the head.
        final_norm: bool = true, Setting::of("BOOL");
        /// A norm right after the embedding (BERT).
        embedding_norm: bool = false, Setting::of("BOOL");
        /// The kind of norm.
        norm: NormKind = NormKind::Layer, Setting::of("KIND");
        /// Added to the norm's variance (or standard deviation), so that a constant row stays finite.
        norm_eps: f64 = 1e-5, Setting::of("X").above_zero()
            .also(&["layer-norm-eps", "layer-norm-epsilon", "rms-norm-eps"]);
        /// The norms' learned gain (gamma).
        norm_gain: bool = true, Setting::of("BOOL");
        /// Gains are stored minus one, so that weight decay pulls them towards 1 (Gemma).
        norm_gain_less_one: bool = false, Setting::of("BOOL").optional_in_files();
        /// The norms' learned offset (beta).
        norm_offset: bool = true, Setting::of("BOOL");
        /// Biases of query, key, value and attention output.
        attention_bias: bool = true, Setting::of("BOOL");
        /// Bias of the attention output, if it differs from that of query, key and value.
        attention_out_bias: Option<bool> = None, Setting::of("BOOL").default_text("attention_bias").optional_in_files();
        /// Biases of the feed-forward network.
        ffn_bias: bool = true, Setting::of("BOOL");
        /// Scores divided by the square root of the head size.
        attention_scale: bool = true, Setting::of("BOOL").also(&["scale-attn-weights"]);
        /// Scores of block i, from 1, also divided by i.
        attention_scale_by_layer: bool = false, Setting::of("BOOL").also(&["scale-attn-by-inverse-layer-idx"]);
        /// Factor of the scores, instead of attention_scale.
        attention_factor: Option<f64> = None, Setting::of("X").above_zero().default_text("1 / sqrt(d_head)")
            .optional_in_files()
            .also(&["attention-multiplier"]);
        /// Scores are bounded by this: cap tanh(score / cap); 0 for no bound (Gemma 2).
        attention_softcap: f64 = 0.0, Setting::of("X").not_below_zero("0 for none, or above 0").optional_in_files()
            .also(&["attn-logit-softcapping"]);
        /// Which keys a query sees.
        mask: Mask = Mask::Causal, Setting::of("KIND");
        /// Sliding window: each query sees at most this many keys, the nearest ones including its own; 0 for no limit.
        window: usize = 0, Setting::of("N").count().optional_in_files().also(&["sliding-window"]);
        /// Blocks whose attention has the window: 1 or 0 for each, repeated.
        window_layers: LayerPattern = LayerPattern::ALL, Setting::of("PATTERN").optional_in_files();
        /// A norm of queries and keys.
        qk_norm: QkNorm = QkNorm::None, Setting::of("KIND").optional_in_files();
        /// The activation function of the feed-forward network.
        activation: Activation = Activation::GeluTanh, Setting::of("KIND").also(&["activation-function", "hidden-act"]);
        /// Gated feed-forward network: the activation is multiplied by a second projection of the input (with silu:
        /// SwiGLU, Shazeer 2020).
        ffn_gated: bool = false, Setting::of("BOOL");
        /// Slope of leaky-relu below zero.
        leaky_slope: f64 = 0.01, Setting::of("X").number(|x| x.abs() <= 1e6, "it must be from -1e6 to 1e6");
        /// α of gelu-tanh, which is x Φ(α x), with Φ(z) approximated by (1 + tanh(β (z + γ z^3))) / 2.
        gelu_alpha: f64 = Constants::USUAL.alpha, Setting::of("X").number(f64::is_finite, "it must be finite")
            .optional_in_files();
        /// β of gelu-tanh, the root of 2 / π by default.
        gelu_beta: f64 = Constants::USUAL.beta, Setting::of("X").above_zero().optional_in_files();
        /// γ of gelu-tanh.
        gelu_gamma: f64 = Constants::USUAL.gamma, Setting::of("X").number(f64::is_finite, "it must be finite")
            .optional_in_files();
        /// Factor of the token vectors (Gemma: the root of d_model).
        embedding_scale: f64 = 1.0, Setting::of("X").above_zero().optional_in_files().also(&["embedding-multiplier"]);
        /// Factor of what each sub-layer adds to the stream (Granite).
        residual_scale: f64 = 1.0, Setting::of("X").above_zero().optional_in_files().also(&["residual-multiplier"]);
        /// Factor of the logits (Cohere).
        logits_scale: f64 = 1.0, Setting::of("X").above_zero().optional_in_files().also(&["logit-scale"]);
        /// Logits are bounded by this: cap tanh(logit / cap); 0 for no bound (Gemma 2).
        logits_softcap: f64 = 0.0, Setting::of("X").not_below_zero("0 for none, or above 0").optional_in_files()
            .also(&["final-logit-softcapping"]);
        /// A head over the vocabulary. An encoder without one gives its hidden states: it can be inspected, not
        /// trained.
        lm_head: bool = true, Setting::of("BOOL").follows();
        /// Tied weights: the head uses the token table instead of weights of its own.
        tied_head: bool = true, Setting::of("BOOL").also(&["tie-word-embeddings"]);
        /// The head adds a bias.
        head_bias: bool = false, Setting::of("BOOL");
        /// BERT's dense layer, activation and norm before the head.
        head_transform: bool = false, Setting::of("BOOL");
        /// Dropout, place by place.
        dropout: Dropout = Dropout::NONE, Setting::of("");
    }
}

impl Settings for Config {
    fn groups() -> &'static [SettingGroup] {
        const DROPOUT: Setting = Setting::of("P").below_one().common();
        const PLACES: &[&str] = &["dropout_embedding", "dropout_attention", "dropout_projection", "dropout_ffn"];
        const BIAS: Setting = Setting::of("BOOL");
        &[
            SettingGroup {
                setting: Setting { name: "dropout", help: "Dropout in all four places", ..DROPOUT },
                sets: PLACES,
            },
            SettingGroup {
                setting: Setting {
                    name: "bias",
                    help: "All biases and norm offsets at once (nanoGPT's `bias`)",
                    ..BIAS
                },
                sets: &["norm_offset", "attention_bias", "ffn_bias"],
            },
        ]
    }

    fn follow(&mut self, was: &Config, given: &dyn Fn(&str) -> bool) {
        if given("d_model") && !given("d_ff") && was.d_model > 0 && was.d_ff.is_multiple_of(was.d_model) {
            self.d_ff = self.d_model.saturating_mul(was.d_ff / was.d_model);
        }
    }
}

impl Config {
    /// The model of a preset by name.
    ///
    /// # Errors
    /// If there is no such preset; the nearest is named.
    pub fn preset(name: &str) -> Result<Config, ConfigError> {
        Ok(Preset::named(name)?.model.clone())
    }

    /// D: features of one head, C / H unless given.
    pub fn d_head(&self) -> usize {
        self.d_head.unwrap_or(self.d_model / self.n_head)
    }

    /// D_v: features of the values of one head, D unless given.
    pub fn d_value(&self) -> usize {
        self.d_v.unwrap_or(self.d_head())
    }

    /// E: the width of the tables, C unless given.
    pub fn d_embed(&self) -> usize {
        self.d_embed.unwrap_or(self.d_model)
    }

    /// The width of what the head's matrix reads: BERT's transform ends in the width of the tables.
    pub fn d_unembed(&self) -> usize {
        if self.head_transform { self.d_embed() } else { self.d_model }
    }

    /// The layout of queries, keys and values in a row.
    pub fn heads(&self) -> Heads {
        let (n_head, n_kv_head) = (self.n_head, self.n_kv_head.unwrap_or(self.n_head));
        Heads { n_head, n_kv_head, d_head: self.d_head(), d_value: self.d_value() }
    }

    /// The factor of the scores of `block`, counted from 0: 1 / sqrt(D) or 1, divided by the block's number from 1
    /// where that is set.
    pub fn score_scale(&self, block: usize) -> f64 {
        let usual = || if self.attention_scale { 1.0 / (self.d_head() as f64).sqrt() } else { 1.0 };
        let scale = self.attention_factor.unwrap_or_else(usual);
        if self.attention_scale_by_layer { scale / (block + 1) as f64 } else { scale }
    }

    /// The constants of the activation function.
    pub fn activation_constants(&self) -> Constants {
        Constants {
            leak: f64::from(self.leaky_slope as f32),
            alpha: self.gelu_alpha,
            beta: self.gelu_beta,
            gamma: self.gelu_gamma,
        }
    }

    /// How many keys a query of `block` sees at most; 0 for no limit.
    pub fn window_of(&self, block: usize) -> usize {
        if self.window_layers.holds(block) { self.window } else { 0 }
    }

    /// Features of each head that are turned in `block`; 0 for none.
    pub fn rotary_dim_of(&self, block: usize) -> usize {
        let rotary = self.positions == Positions::Rotary && self.rotary_layers.holds(block);
        if rotary { self.rotary_dim.unwrap_or(self.d_head()) } else { 0 }
    }

    /// Base and scaling of the rotary angles of `block`, in which `short` is the list in force. One list is for all
    /// texts, because a key is turned when it is stored, before anything says how long its text will be.
    pub fn rotary_angles_of(&self, block: usize) -> (f64, RotaryScaling) {
        let own = self.rotary_base_window.filter(|_| self.window_of(block) > 0);
        let s = self.rotary_scaling;
        let short = if self.context_length > s.context { s.long } else { s.short };
        own.map_or((self.rotary_base, RotaryScaling { short, ..s }), |base| (base, RotaryScaling::NONE))
    }

    /// Whether attention's output has a bias.
    pub fn attention_out_bias(&self) -> bool {
        self.attention_out_bias.unwrap_or(self.attention_bias)
    }

    /// Checks that a model can be built.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.check_ranges()?;
        if self.d_head.is_none() && !self.d_model.is_multiple_of(self.n_head) {
            let even = if self.positions == Positions::Rotary && self.rotary_dim.is_none() { 2 } else { 1 };
            let divides = |n: &usize| self.d_model.is_multiple_of(n.saturating_mul(even));
            const TRIED: usize = 1 << 16; // a limit for absurdly large numbers
            let below = (1..self.n_head.min(self.d_model + 1)).rev().take(TRIED).find(divides);
            let above = (self.n_head..=self.d_model).take(TRIED).find(divides);
            let heads: Vec<String> = [below, above].iter().flatten().map(usize::to_string).collect();
            let heads = if heads.is_empty() { String::new() } else { heads.join(" or ") + " heads, or " };
            let step = self.n_head.saturating_mul(even);
            let remedy = format!("use {heads}d_model {}", self.d_model.div_ceil(step).saturating_mul(step));
            return Err(ConfigError::HeadsDontDivide { d_model: self.d_model, n_head: self.n_head, remedy });
        }
        let Heads { n_head, n_kv_head, d_head, d_value } = self.heads();
        if !n_head.is_multiple_of(n_kv_head) {
            return Err(ConfigError::KeyHeadsDontDivide { n_head, n_kv_head });
        }
        let turned = self.rotary_dim.unwrap_or(d_head);
        if self.positions == Positions::Rotary && !turned.is_multiple_of(2) {
            return Err(ConfigError::OddHead { d_head: turned });
        }
        if turned > d_head {
            return Err(ConfigError::Range {
                what: "rotary_dim",
                found: turned.to_string(),
                expected: "at most d_head",
            });
        }
        if self.lm_head && self.tied_head && self.d_unembed() != self.d_embed() {
            return Err(ConfigError::NarrowTiedHead { d_embed: self.d_embed(), d_model: self.d_model });
        }
        if self.parallel != Parallel::No && self.norm_place.is_post() {
            return Err(ConfigError::ParallelPost);
        }
        if self.window > 0 && self.mask != Mask::Causal {
            return Err(ConfigError::WindowMask { window: self.window, mask: self.mask });
        }
        if self.rotary_scaling.high <= self.rotary_scaling.low {
            let (what, found) = ("rotary_scaling_high", self.rotary_scaling.high.to_string());
            return Err(ConfigError::Range { what, found, expected: "it must be above rotary_scaling_low" });
        }
        if self.positions == Positions::Rotary {
            self.check_scaling(turned / 2)?;
        }
        let (v, t, c, f, l) = (self.vocab_size, self.context_length, self.d_model, self.d_ff, self.n_layer);
        let size = |n: &[usize]| n.iter().fold(1u128, |all, n| all.saturating_mul(*n as u128));
        let e = self.d_embed();
        let wide = c.max(e);
        let total = size(&[2, v.saturating_add(1), wide])
            .saturating_add(size(&[self.n_segment, e]))
            .saturating_add(size(&[t, e.max(d_head)]))
            .saturating_add(size(&[2, c, e]))
            .saturating_add(size(&[l, c, 2, n_head.saturating_add(n_kv_head), d_head.max(d_value)]))
            .saturating_add(size(&[l, c, 3, f]));
        if total > 1 << 48 {
            let segments = if self.n_segment > 0 { format!(", n_segment {}", self.n_segment) } else { String::new() };
            let embed = self.d_embed.map_or(String::new(), |e| format!(", d_embed {e}"));
            let what =
                format!("vocab_size {v}, context_length {t}, d_model {c}, d_ff {f}, n_layer {l}{segments}{embed}");
            return Err(ConfigError::TooLarge { what });
        }
        Ok(())
    }

    /// Checks what only some kinds of scaling need, for so many pairs.
    fn check_scaling(&self, pairs: usize) -> Result<(), ConfigError> {
        let s = &self.rotary_scaling;
        let range = |what, found: f64, expected| Err(ConfigError::Range { what, found: found.to_string(), expected });
        match s.kind {
            RotaryKind::Yarn | RotaryKind::Longrope if s.context == 0 => range(
                "rotary_scaling_context",
                0.0,
                "yarn and longrope need the context length of the original training",
            ),
            RotaryKind::Yarn if self.rotary_base <= 1.0 => {
                range("rotary_base", self.rotary_base, "above 1 where rotary_scaling_kind is yarn")
            }
            RotaryKind::Longrope => match [&s.short, &s.long].into_iter().find(|list| list.len() != pairs) {
                Some(list) => Err(ConfigError::Value {
                    what: "rotary_scaling_short or rotary_scaling_long",
                    found: format!("{list:?}"),
                    why: format!("longrope needs a factor for each of {pairs} pairs, and these are {}", list.len()),
                }),
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// Checks that the number of activations of a batch, each row of which sees `keys` keys, does not overflow:
    /// whether they fit into memory is checked elsewhere, with these numbers. The configuration has been checked
    /// before.
    pub(crate) fn check_rows(&self, [sequences, tokens]: [usize; 2], keys: usize) -> Result<(), ConfigError> {
        let heads = self.heads();
        let block = [12 * self.d_model, 6 * self.d_ff, 3 * heads.cols()].iter().sum::<usize>() as u128
            + 4 * heads.n_head as u128 * keys as u128;
        let row = 4
            * (self.n_layer as u128 * block
                + 4 * self.vocab_size as u128
                + 16 * self.d_model.max(self.d_embed()) as u128);
        let rows = sequences as u128 * tokens as u128;
        if rows.saturating_mul(row) > 1 << 56 {
            return Err(ConfigError::TooManyRows { sequences, tokens });
        }
        Ok(())
    }

    /// Reads `config.json`; an unknown key is an error that names the nearest known one.
    pub fn from_json(text: &str) -> Result<Config, ConfigError> {
        let value: serde_json::Value =
            serde_json::from_str(text).map_err(|e| ConfigError::File(format!("config.json is not JSON: {e}")))?;
        let found = value.as_object().ok_or_else(|| ConfigError::File("config.json is not an object".into()))?;
        let usual = Config::default();
        let known = serde_json::to_value(&usual).expect("a config is JSON");
        let keys: Vec<&str> = known.as_object().expect("an object").keys().map(String::as_str).collect();
        let mut own = serde_json::Map::new();
        for (key, value) in found {
            match key.as_str() {
                "model_type" if value == "limpid" => {}
                "model_type" => {
                    return Err(ConfigError::File(format!(
                        "config.json has model_type {value}: this version opens `limpid` models only"
                    )));
                }
                key if keys.contains(&key) => drop(own.insert(key.into(), value.clone())),
                key => return Err(unknown("key in config.json", key, &keys)),
            }
        }
        if let Some(missing) = Config::OWN.iter().find(|key| !key.optional_in_files && !own.contains_key(key.name)) {
            return Err(ConfigError::File(format!("config.json lacks the key `{}`", missing.name)));
        }
        let parts = |key: &String| known[key].as_object().into_iter().flatten().map(|(part, _)| part);
        for (key, value) in &own {
            let later = |part: &str| {
                let name = format!("{key}_{part}");
                usual.fields().into_iter().any(|(setting, _)| setting.optional_in_files && setting.name == name)
            };
            if let Some(missing) = parts(key).find(|part| value.get(part.as_str()).is_none() && !later(part)) {
                return Err(ConfigError::File(format!("config.json: `{key}` lacks the key `{missing}`")));
            }
        }
        let own = serde_json::Value::from(own);
        let read: Config =
            serde_json::from_value(own.clone()).map_err(|e| ConfigError::File(format!("config.json: {e}")))?;
        match rounded(&own, &serde_json::to_value(&read).expect("a config is JSON")) {
            Some(number) => Err(ConfigError::File(format!("config.json: {number} {ROUNDED}"))),
            None => Ok(read),
        }
    }

    /// The text of `config.json`.
    pub fn to_json(&self) -> String {
        let mut value = serde_json::to_value(self).expect("a config is JSON");
        value.as_object_mut().expect("an object").insert("model_type".into(), "limpid".into());
        serde_json::to_string_pretty(&value).expect("a value is JSON") + "\n"
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, {}, d_model {}, d_ff {}, context {}, vocabulary {}",
            plural(self.n_layer, "layer"),
            plural(self.n_head, "head"),
            self.d_model,
            self.d_ff,
            self.context_length,
            self.vocab_size
        )
    }
}

/// What is wrong with a whole number where 64 bits of floating point are kept.
const ROUNDED: &str =
    "is more than the 53 bits that this number keeps, and would become another: write the number that is meant";

/// The first whole number that is another where it was read.
fn rounded<'a>(given: &'a serde_json::Value, read: &serde_json::Value) -> Option<&'a serde_json::Value> {
    match (given, read) {
        (serde_json::Value::Object(given), read) => given.iter().find_map(|(key, value)| rounded(value, &read[key])),
        (number, read) => {
            (number.is_u64() && read.is_f64() && !holds(number.as_u64()?, read.as_f64()?)).then_some(number)
        }
    }
}

/// Whether a number is exactly that whole one.
fn holds(whole: u64, number: f64) -> bool {
    number as u128 == u128::from(whole)
}

/// A number from a text: a whole one must be one that it can be.
fn exact(text: &str) -> Result<f64, Box<dyn std::error::Error + Send + Sync>> {
    let number: f64 = text.parse()?;
    match text.parse::<u64>() {
        Ok(whole) if !holds(whole, number) => Err(format!("it {ROUNDED}").into()),
        _ => Ok(number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_can_be_built_and_written() {
        for name in PRESETS.iter() {
            let config = Config::preset(name).unwrap();
            config.check().unwrap();
            assert_eq!(Config::from_json(&config.to_json()).unwrap(), config, "{name}");
        }
    }

    #[test]
    fn messages_carry_the_remedy() {
        let error = Config { n_head: 5, ..Config::default() }.check().unwrap_err().to_string();
        assert_eq!(error, "d_model 768 is not a multiple of n_head 5: use 4 or 6 heads, or d_model 770");
        let error = Config::preset("gtp2").unwrap_err().to_string();
        assert!(error.starts_with("unknown preset `gtp2`: did you mean `gpt2`?"), "{error}");
        assert_eq!("multiplicative".parse::<Mask>().unwrap_err(), ConfigError::MultiplicativeMask);
        let error =
            Config { window: 3, mask: Mask::Bidirectional, ..Config::default() }.check().unwrap_err().to_string();
        assert_eq!(error, "window 3 needs a causal mask and mask is bidirectional: use window 0, or mask causal");
        let narrow = Config { d_embed: Some(8), ..Config::default() };
        let error = narrow.check().unwrap_err().to_string();
        assert!(error.contains("d_embed 8 wide, and reads d_model 768: use head_transform true"), "{error}");
        for (tied_head, head_transform, lm_head) in [(true, true, true), (false, false, true), (true, false, false)] {
            Config { tied_head, head_transform, lm_head, ..narrow.clone() }.check().unwrap();
        }
        Config { d_embed: Some(768), ..Config::default() }.check().unwrap();
        let error = "gelu_tan".parse::<Activation>().unwrap_err().to_string();
        assert!(error.contains("did you mean `gelu-tanh`"), "{error}");
        let bad = Config::default().to_json().replace("\"n_head\"", "\"n_heads\"");
        assert!(Config::from_json(&bad).unwrap_err().to_string().contains("did you mean `n_head`"));
        let mut bad: serde_json::Value = serde_json::from_str(&Config::default().to_json()).unwrap();
        bad["rotary_scaling"].as_object_mut().unwrap().remove("high");
        let error = Config::from_json(&bad.to_string()).unwrap_err().to_string();
        assert!(error.contains("`rotary_scaling` lacks the key `high`"), "{error}");
        bad["rotary_scaling"] = serde_json::json!([]);
        assert!(Config::from_json(&bad.to_string()).unwrap_err().to_string().contains("`rotary_scaling` lacks"));
    }

    #[test]
    fn factors_of_pairs_are_plain_lists() {
        let of = |text: &str| text.parse::<PairFactors>();
        assert_eq!(
            (&of("1, 2.5").unwrap()[..], of(" ").unwrap(), of("").unwrap()),
            (&[1.0, 2.5][..], PairFactors::NONE, PairFactors::NONE)
        );
        for wrong in ["1,,2", "1,x", "0", "-1", "inf", "nan", &["1"; 129].join(",")] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
        let scaling =
            RotaryScaling { kind: RotaryKind::Longrope, context: 8, short: of("1,2").unwrap(), ..RotaryScaling::NONE };
        let config = Config {
            d_model: 8,
            n_head: 2,
            positions: Positions::Rotary,
            rotary_scaling: scaling,
            ..Config::default()
        };
        let error = config.check().unwrap_err().to_string();
        assert!(error.contains("a factor for each of 2 pairs, and these are 0"), "{error}");
        let whole = Config { rotary_scaling: RotaryScaling { long: scaling.short, ..scaling }, ..config };
        whole.check().unwrap();
        assert_eq!(Config::from_json(&whole.to_json()).unwrap(), whole);
        // files of earlier versions lack what came later
        let mut old: serde_json::Value = serde_json::from_str(&Config::default().to_json()).unwrap();
        old["rotary_scaling"] = serde_json::json!({ "factor": 1.0, "low": 1.0, "high": 4.0, "context": 0 });
        assert_eq!(Config::from_json(&old.to_string()).unwrap(), Config::default());
        for (kind, context, base) in
            [(RotaryKind::Yarn, 0, 10.0), (RotaryKind::Yarn, 4, 1.0), (RotaryKind::Longrope, 0, 10.0)]
        {
            let scaling = RotaryScaling { kind, context, ..scaling };
            assert!(Config { rotary_scaling: scaling, rotary_base: base, ..whole.clone() }.check().is_err(), "{kind}");
        }
    }

    #[test]
    fn a_pattern_of_blocks_repeats_and_has_one_form() {
        let of = |text: &str| text.parse::<LayerPattern>().unwrap();
        assert_eq!((of("1"), of("0000")), (LayerPattern::ALL, LayerPattern::NONE));
        assert_eq!(
            (0..7).map(|i| of("110").holds(i)).collect::<Vec<_>>(),
            [true, true, false, true, true, false, true]
        );
        assert_eq!([of("0101"), of("010")].map(|p| p.to_string()), ["01", "010"]);
        assert_eq!(LayerPattern::new(&[true, true, false, true]).unwrap(), of("110"));
        for wrong in ["", "12", "on", &"0".repeat(65)] {
            assert!(wrong.parse::<LayerPattern>().is_err(), "{wrong}");
        }
        assert_eq!(LayerPattern::new(&[]), None);
    }

    #[test]
    fn absurd_sizes_are_refused_not_multiplied() {
        let huge = Config { d_model: 1 << 40, n_head: 1, ..Config::default() };
        assert!(matches!(huge.check(), Err(ConfigError::TooLarge { .. })));
        assert_eq!(Config { n_layer: 0, ..Config::default() }.check(), Err(ConfigError::Zero { what: "n_layer" }));
        assert_eq!(Config { n_head: 0, ..Config::default() }.check(), Err(ConfigError::Zero { what: "n_head" }));
        let (n_kv_head, d_head) = (Some(usize::MAX), Some(usize::MAX - 1));
        for config in [
            Config { n_layer: 1 << 40, ..Config::default() },
            Config { n_kv_head, ..Config::default() },
            Config { d_head, ..Config::default() },
            Config { context_length: 1 << 50, ..Config::default() },
            Config { n_head: usize::MAX, d_head: Some(2), n_kv_head: Some(1), ..Config::default() },
            Config { n_segment: 1 << 62, ..Config::default() },
            Config { d_embed: Some(1 << 36), tied_head: false, ..Config::default() },
            Config { n_segment: (1 << 40) - 1, ..Config::default() },
            Config { leaky_slope: f64::NAN, ..Config::default() },
        ] {
            assert!(config.check().is_err(), "{config}");
        }
    }
}

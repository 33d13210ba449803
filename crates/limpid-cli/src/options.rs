//! Flags, environment and configuration files, resolved to a configuration and a recipe.
//!
//! A configuration file's keys are the flags' names, so it is turned into flags and put before those that were
//! typed: file < environment (`LIMPID_LEARNING_RATE`) < flag, and an unknown key gets the same error as an unknown
//! flag. Familiar names of other programs are aliases. A flag that sets several things (`--dropout`), or from which others
//! follow (`--d-model`), goes over all that the layers below it said: each layer is applied whole, the lowest first.

use crate::show;
use anyhow::{Context, Result, anyhow, bail};
use clap::parser::ValueSource;
use clap::{Arg, Args, Command};
use limpid::backend::Cpu;
use limpid::config::{
    Activation, Axis, Config, ConfigError, DropoutScale, Mask, NormKind, NormPlace, PRESETS, Positions, parse_axis,
};
use limpid::data::Kind;
use limpid::generate::Session;
use limpid::model::init::Init;
use limpid::model::{Lora, Model, Tuning, Use};
use limpid::nearest::nearest;
use limpid::ops::adamw::Method;
use limpid::ops::linear::Precision;
use limpid::ops::simd::Level;
use limpid::train::folder::{self, Found};
use limpid::train::{Divergence, Recipe, Reduction, Run, Schedule};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Once;

/// Wrong usage: exit 2.
#[derive(Debug)]
pub struct Usage(pub String);
impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for Usage {}

/// Stopped by the user before the end: exit 130.
#[derive(Debug)]
pub struct Interrupted(pub &'static str);
impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}
impl std::error::Error for Interrupted {}

/// An axis's values as clap wants them: shown in help, checked with the nearest name.
fn axis<A: Axis + Send + Sync>() -> impl Fn(&str) -> Result<A, ConfigError> + Clone {
    parse_axis::<A>
}

fn preset(name: &str) -> Result<String, ConfigError> {
    Config::preset(name).map(|_| name.to_lowercase().replace('_', "-"))
}

/// Which model.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Model")]
pub struct ModelOptions {
    /// Start from a preset: nano, baby, gpt2, ... (all: limpid params --help)
    #[arg(long, value_name = "NAME", value_parser = preset)]
    pub preset: Option<String>,
    /// Positions a sequence may have
    #[arg(long, value_name = "T", aliases = ["block-size", "n-positions", "n-ctx", "max-seq-len", "max-seq-length", "max-position-embeddings", "sequence-len"])]
    pub context_length: Option<usize>,
    /// Width of the residual stream
    #[arg(long, value_name = "C", aliases = ["n-embd", "n-embed", "hidden-size", "channels"])]
    pub d_model: Option<usize>,
    /// Attention heads
    #[arg(long, value_name = "H", aliases = ["n-heads", "num-heads", "num-attention-heads"])]
    pub n_head: Option<usize>,
    /// Heads of keys and values, each serving several attention heads [default: n_head]
    #[arg(long, value_name = "K", aliases = ["n-kv-heads", "num-key-value-heads", "n-query-groups"], hide_short_help = true)]
    pub n_kv_head: Option<usize>,
    /// Features of one head [default: d_model / n_head]
    #[arg(long, value_name = "D", aliases = ["head-dim", "head-size"], hide_short_help = true)]
    pub d_head: Option<usize>,
    /// Blocks
    #[arg(long, value_name = "L", aliases = ["n-layers", "num-layers", "num-hidden-layers", "depth"])]
    pub n_layer: Option<usize>,
    /// Width inside the feed-forward network [default: 4 d_model]
    #[arg(long, value_name = "F", aliases = ["n-inner", "intermediate-size"])]
    pub d_ff: Option<usize>,
    /// Dropout in all four places
    #[arg(long, value_name = "P")]
    pub dropout: Option<f64>,
    /// learned, sinusoidal, sinusoidal-one-based, rotary
    #[arg(long, value_name = "KIND", value_parser = axis::<Positions>(), hide_short_help = true)]
    pub positions: Option<Positions>,
    /// Base of the rotary angles
    #[arg(long, value_name = "X", alias = "rope-theta", hide_short_help = true)]
    pub rotary_base: Option<f64>,
    /// Rotary pairs turn this many times slower (Llama 3.1: those that turn seldom)
    #[arg(long, value_name = "X", hide_short_help = true)]
    pub rotary_scaling_factor: Option<f64>,
    /// Positions trained on before; 0: all pairs turn slower
    #[arg(long, value_name = "T", hide_short_help = true)]
    pub rotary_scaling_context: Option<usize>,
    /// Turns in those positions below which a pair is slowed down whole
    #[arg(long, value_name = "N", hide_short_help = true)]
    pub rotary_scaling_low: Option<f64>,
    /// Turns in those positions above which a pair stays
    #[arg(long, value_name = "N", hide_short_help = true)]
    pub rotary_scaling_high: Option<f64>,
    /// Segment vectors (BERT: 2)
    #[arg(long, value_name = "N", alias = "type-vocab-size", hide_short_help = true)]
    pub n_segment: Option<usize>,
    /// pre or post
    #[arg(long, value_name = "WHERE", value_parser = axis::<NormPlace>(), hide_short_help = true)]
    pub norm_place: Option<NormPlace>,
    /// A norm before the head
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", hide_short_help = true)]
    pub final_norm: Option<bool>,
    /// A norm after the embedding
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", hide_short_help = true)]
    pub embedding_norm: Option<bool>,
    /// layer, layer-std, rms
    #[arg(long, value_name = "KIND", value_parser = axis::<NormKind>(), hide_short_help = true)]
    pub norm: Option<NormKind>,
    /// Added to the norm's variance or deviation
    #[arg(long, value_name = "X", aliases = ["layer-norm-eps", "layer-norm-epsilon", "rms-norm-eps"], hide_short_help = true)]
    pub norm_eps: Option<f64>,
    /// The norms' learned gain
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", hide_short_help = true)]
    pub norm_gain: Option<bool>,
    /// The norms' learned offset
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", hide_short_help = true)]
    pub norm_offset: Option<bool>,
    /// All biases and norm offsets at once (nanoGPT's `bias`)
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", hide_short_help = true)]
    pub bias: Option<bool>,
    /// Biases of query, key, value and attention output
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", hide_short_help = true)]
    pub attention_bias: Option<bool>,
    /// Biases of the feed-forward network
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", hide_short_help = true)]
    pub ffn_bias: Option<bool>,
    /// Scores divided by the root of the head size
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", alias = "scale-attn-weights", hide_short_help = true)]
    pub attention_scale: Option<bool>,
    /// Scores of block i also divided by i
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", alias = "scale-attn-by-inverse-layer-idx", hide_short_help = true)]
    pub attention_scale_by_layer: Option<bool>,
    /// causal, bidirectional, none
    #[arg(long, value_name = "KIND", value_parser = axis::<Mask>(), hide_short_help = true)]
    pub mask: Option<Mask>,
    /// relu, leaky-relu, gelu-erf, gelu-tanh, gelu-sigmoid, silu, sigmoid, tanh
    #[arg(long, value_name = "KIND", value_parser = axis::<Activation>(), aliases = ["activation-function", "hidden-act"], hide_short_help = true)]
    pub activation: Option<Activation>,
    /// The activation is multiplied by a second product (with silu: SwiGLU)
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", hide_short_help = true)]
    pub ffn_gated: Option<bool>,
    /// Slope of leaky-relu below zero
    #[arg(long, value_name = "X", hide_short_help = true)]
    pub leaky_slope: Option<f64>,
    /// The head uses the token table
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", alias = "tie-word-embeddings", hide_short_help = true)]
    pub tied_head: Option<bool>,
    /// The head adds a bias
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", hide_short_help = true)]
    pub head_bias: Option<bool>,
    /// BERT's dense layer, activation and norm before the head
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", hide_short_help = true)]
    pub head_transform: Option<bool>,
    /// Dropout after the embedding
    #[arg(long, value_name = "P", alias = "embd-pdrop", hide_short_help = true)]
    pub dropout_embedding: Option<f64>,
    /// Dropout on the attention weights
    #[arg(long, value_name = "P", alias = "attn-pdrop", hide_short_help = true)]
    pub dropout_attention: Option<f64>,
    /// Dropout on the projected attention output
    #[arg(long, value_name = "P", alias = "resid-pdrop", hide_short_help = true)]
    pub dropout_projection: Option<f64>,
    /// Dropout on the feed-forward output
    #[arg(long, value_name = "P", hide_short_help = true)]
    pub dropout_ffn: Option<f64>,
    /// inverted or unscaled
    #[arg(long, value_name = "KIND", value_parser = axis::<DropoutScale>(), hide_short_help = true)]
    pub dropout_scale: Option<DropoutScale>,
    /// The configuration file's, the environment's and the typed ones, where there is more than one of them
    #[arg(long = "model-layer", hide = true, value_parser = layer::<ModelOptions>)]
    pub model_layers: Vec<ModelOptions>,
}

impl ModelOptions {
    /// The preset's name; `nano` when none was given.
    pub fn name(&self) -> &str {
        self.preset.as_deref().unwrap_or("nano")
    }

    /// The configuration, its vocabulary still the preset's.
    pub fn config(&self) -> Result<Config> {
        self.over(Config::preset(self.name())?)
    }

    /// The configuration of the model `from` that is trained on: dropout may be chosen anew, and fewer positions be used.
    /// What was asked for beside that must be what it is.
    pub fn config_of(&self, from: &str, base: &Config) -> Result<Config> {
        let asked = self.over(base.clone())?;
        let mut wanted = Config { dropout: base.dropout, ..asked.clone() };
        wanted.context_length = wanted.context_length.max(base.context_length);
        let keys = |config: &Config| serde_json::to_value(config).expect("a config is JSON");
        let (is, wanted) = (keys(base), keys(&wanted));
        if let Some((key, value)) =
            wanted.as_object().expect("an object").iter().find(|(key, value)| is[*key] != **value)
        {
            bail!(Usage(format!(
                "--{} is {value}, but the model {from} has {}: what is trained on stays what it is",
                key.replace('_', "-"),
                is[key]
            )));
        }
        Ok(Config { dropout: asked.dropout, ..base.clone() })
    }

    /// `c` with what was asked for.
    fn over(&self, mut c: Config) -> Result<Config> {
        match &self.model_layers[..] {
            [] => self.apply(&mut c),
            layers => layers.iter().for_each(|layer| layer.apply(&mut c)),
        }
        c.check()?;
        Ok(c)
    }

    /// One layer: what sets several things first.
    fn apply(&self, c: &mut Config) {
        fn set<T: Copy>(to: &mut T, from: Option<T>) {
            if let Some(value) = from {
                *to = value;
            }
        }
        if self.d_model.is_some() && c.d_ff == 4 * c.d_model {
            c.d_ff = self.d_model.unwrap_or(c.d_model).saturating_mul(4);
        }
        set(&mut c.context_length, self.context_length);
        set(&mut c.d_model, self.d_model);
        set(&mut c.n_head, self.n_head);
        c.n_kv_head = self.n_kv_head.or(c.n_kv_head);
        c.d_head = self.d_head.or(c.d_head);
        set(&mut c.n_layer, self.n_layer);
        set(&mut c.d_ff, self.d_ff);
        set(&mut c.positions, self.positions);
        set(&mut c.rotary_base, self.rotary_base);
        set(&mut c.rotary_scaling.factor, self.rotary_scaling_factor);
        set(&mut c.rotary_scaling.context, self.rotary_scaling_context);
        set(&mut c.rotary_scaling.low, self.rotary_scaling_low);
        set(&mut c.rotary_scaling.high, self.rotary_scaling_high);
        set(&mut c.n_segment, self.n_segment);
        set(&mut c.norm_place, self.norm_place);
        set(&mut c.final_norm, self.final_norm);
        set(&mut c.embedding_norm, self.embedding_norm);
        set(&mut c.norm, self.norm);
        set(&mut c.norm_eps, self.norm_eps);
        set(&mut c.norm_gain, self.norm_gain);
        for to in [&mut c.norm_offset, &mut c.attention_bias, &mut c.ffn_bias] {
            set(to, self.bias);
        }
        set(&mut c.norm_offset, self.norm_offset);
        set(&mut c.attention_bias, self.attention_bias);
        set(&mut c.ffn_bias, self.ffn_bias);
        set(&mut c.attention_scale, self.attention_scale);
        set(&mut c.attention_scale_by_layer, self.attention_scale_by_layer);
        set(&mut c.mask, self.mask);
        set(&mut c.activation, self.activation);
        set(&mut c.ffn_gated, self.ffn_gated);
        set(&mut c.leaky_slope, self.leaky_slope);
        set(&mut c.tied_head, self.tied_head);
        set(&mut c.head_bias, self.head_bias);
        set(&mut c.head_transform, self.head_transform);
        let d = &mut c.dropout;
        for to in [&mut d.embedding, &mut d.attention, &mut d.projection, &mut d.ffn] {
            set(to, self.dropout);
        }
        set(&mut d.embedding, self.dropout_embedding);
        set(&mut d.attention, self.dropout_attention);
        set(&mut d.projection, self.dropout_projection);
        set(&mut d.ffn, self.dropout_ffn);
        set(&mut d.scale, self.dropout_scale);
    }
}

/// How documents are read.
#[derive(Args, Clone, Debug, Default)]
pub struct DataOptions {
    /// Where the text stands in JSON and parquet [default: text]; standard input is then JSON lines
    #[arg(long, value_name = "NAME", alias = "text-column", hide_short_help = true)]
    pub field: Option<String>,
    /// Leave out documents that cannot be read, and count them
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", hide_short_help = true)]
    pub skip_bad: bool,
}

impl DataOptions {
    /// The field of the text.
    pub fn field(&self) -> &str {
        self.field.as_deref().unwrap_or("text")
    }

    /// What standard input holds.
    pub fn stdin(&self) -> Kind {
        if self.field.is_some() { Kind::JsonLines } else { Kind::Text }
    }
}

/// How to train.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Training")]
pub struct RecipeOptions {
    /// Updates
    #[arg(long, value_name = "N", aliases = ["max-iters", "max-steps", "num-iterations", "num-steps"])]
    pub steps: Option<u64>,
    /// Sequences at once
    #[arg(long, value_name = "B", aliases = ["device-batch-size", "per-device-train-batch-size", "micro-batch-size"])]
    pub batch_size: Option<usize>,
    /// Batches whose gradients make one update
    #[arg(long, value_name = "N", aliases = ["gradient-accumulation-steps", "grad-accum"])]
    pub accumulate: Option<usize>,
    /// Greatest learning rate
    #[arg(long, value_name = "X", alias = "lr")]
    pub learning_rate: Option<f64>,
    /// Learning rate at the end [default: a tenth of the greatest]
    #[arg(long, value_name = "X", alias = "min-lr")]
    pub min_learning_rate: Option<f64>,
    /// Steps over which the rate rises
    #[arg(long, value_name = "N", alias = "warmup-iters")]
    pub warmup_steps: Option<u64>,
    /// Decides weights, batches and dropout
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Steps between evaluations; 0: at the end only
    #[arg(long, value_name = "N", aliases = ["eval-interval", "eval-steps"])]
    pub eval_every: Option<u64>,
    /// Tokens of a sequence in training, if fewer than the model's
    #[arg(long, value_name = "T", hide_short_help = true)]
    pub context: Option<usize>,
    /// cosine, linear, constant, wsd
    #[arg(long, value_name = "KIND", value_parser = axis::<Schedule>(), alias = "lr-scheduler-type", hide_short_help = true)]
    pub schedule: Option<Schedule>,
    /// Share of the steps in which wsd falls
    #[arg(long, value_name = "X", hide_short_help = true)]
    pub decay_fraction: Option<f64>,
    /// adamw, adam, sgd, muon (for the matrices inside the model, adamw for the rest)
    #[arg(long, value_name = "KIND", value_parser = axis::<Method>(), alias = "optim", hide_short_help = true)]
    pub optimizer: Option<Method>,
    /// First moment's memory, or sgd's momentum
    #[arg(long, value_name = "X", aliases = ["adam-beta1", "momentum"], hide_short_help = true)]
    pub beta1: Option<f64>,
    /// Second moment's memory
    #[arg(long, value_name = "X", alias = "adam-beta2", hide_short_help = true)]
    pub beta2: Option<f64>,
    /// Added to the root of the second moment
    #[arg(long, value_name = "X", alias = "adam-epsilon", hide_short_help = true)]
    pub eps: Option<f64>,
    /// Momentum of muon's matrices
    #[arg(long, value_name = "X", hide_short_help = true)]
    pub muon_momentum: Option<f64>,
    /// Decay of matrices
    #[arg(long, value_name = "X", hide_short_help = true)]
    pub weight_decay: Option<f64>,
    /// Greatest norm of the whole gradient; 0: no clipping
    #[arg(long, value_name = "X", aliases = ["grad-clip", "max-grad-norm", "max-norm"], hide_short_help = true)]
    pub clip: Option<f64>,
    /// mean or sum of the losses
    #[arg(long, value_name = "KIND", value_parser = axis::<Reduction>(), hide_short_help = true)]
    pub reduction: Option<Reduction>,
    /// Share of each target that goes to all tokens alike
    #[arg(long, value_name = "X", alias = "label-smoothing-factor", hide_short_help = true)]
    pub label_smoothing: Option<f64>,
    /// Weight of the squared log-sum-exp of the logits, which keeps them from drifting; 0.0001 is usual
    #[arg(long, value_name = "X", hide_short_help = true)]
    pub z_loss: Option<f64>,
    /// Memory of the weights' moving average, which is then what is evaluated and kept: 0.999
    #[arg(long, value_name = "X", alias = "ema-decay", hide_short_help = true)]
    pub ema: Option<f64>,
    /// gpt2, normal, xavier, he
    #[arg(long, value_name = "KIND", value_parser = axis::<Init>(), hide_short_help = true)]
    pub init: Option<Init>,
    /// Deviation of normal initial weights [default: 0.02 sqrt(768 / d_model)]
    #[arg(long, value_name = "X", alias = "initializer-range", hide_short_help = true)]
    pub init_std: Option<f64>,
    /// About how many tokens an evaluation on the way takes
    #[arg(long, value_name = "N", hide_short_help = true)]
    pub eval_tokens: Option<usize>,
    /// Steps between saves of the state; 0: at the end only
    #[arg(long, value_name = "N", alias = "save-steps", hide_short_help = true)]
    pub save_every: Option<u64>,
    /// Earlier saved states to keep beside the last
    #[arg(long, value_name = "N", alias = "save-total-limit", hide_short_help = true)]
    pub keep: Option<usize>,
    /// Evaluations without a better loss after which training ends; 0: never
    #[arg(long, value_name = "N", alias = "early-stopping-patience", hide_short_help = true)]
    pub patience: Option<u64>,
    /// Steps between notes of every layer's gradients and updates; 0: none
    #[arg(long, value_name = "N", hide_short_help = true)]
    pub detail_every: Option<u64>,
    /// Deviations above the recent losses from which a loss is a jump; 0: look for none
    #[arg(long, value_name = "X", hide_short_help = true)]
    pub spike: Option<f64>,
    /// When the loss jumps or is no number: note, stop, rollback (to the last saved state, without the data that led there)
    #[arg(long, value_name = "KIND", value_parser = axis::<Divergence>(), alias = "on-divergence", hide_short_help = true)]
    pub divergence: Option<Divergence>,
    /// Check before the first step that training can work
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", hide_short_help = true)]
    pub preflight: Option<bool>,
    /// Windows of whole documents instead of a stream cut anywhere [default: true for conversations, else false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", hide_short_help = true)]
    pub whole_documents: Option<bool>,
    /// Whether a document sees those before it in its window [default: false for conversations, else true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", hide_short_help = true)]
    pub cross_documents: Option<bool>,
    /// Share of the text kept for validation
    #[arg(long, value_name = "X", hide_short_help = true)]
    pub val_fraction: Option<f64>,
    /// The configuration file's, the environment's and the typed ones, where there is more than one of them
    #[arg(long = "recipe-layer", hide = true, value_parser = layer::<RecipeOptions>)]
    pub recipe_layers: Vec<RecipeOptions>,
}

impl RecipeOptions {
    /// A recipe with what was asked for.
    pub fn over(&self, base: Recipe) -> Result<Recipe> {
        let alone = std::slice::from_ref(self);
        let layers = if self.recipe_layers.is_empty() { alone } else { &self.recipe_layers };
        let mut r = base;
        layers.iter().for_each(|layer| layer.apply(&mut r));
        if layers.iter().all(|layer| layer.warmup_steps.is_none()) && r.steps != base.steps {
            r.warmup_steps = warmup(base.warmup_steps, r.steps);
        }
        r.check()?;
        Ok(r)
    }

    /// One layer: what others follow from first.
    fn apply(&self, r: &mut Recipe) {
        fn set<T: Copy>(to: &mut T, from: Option<T>) {
            if let Some(value) = from {
                *to = value;
            }
        }
        if let Some(rate) = self.learning_rate {
            r.min_learning_rate *= rate / r.learning_rate;
        }
        if let Some(steps) = self.steps.filter(|steps| *steps < r.steps) {
            r.warmup_steps = warmup(r.warmup_steps, steps);
        }
        set(&mut r.steps, self.steps);
        set(&mut r.batch_size, self.batch_size);
        set(&mut r.context, self.context);
        set(&mut r.accumulate, self.accumulate);
        set(&mut r.learning_rate, self.learning_rate);
        set(&mut r.min_learning_rate, self.min_learning_rate);
        set(&mut r.warmup_steps, self.warmup_steps);
        set(&mut r.seed, self.seed);
        set(&mut r.eval_every, self.eval_every);
        set(&mut r.schedule, self.schedule);
        set(&mut r.decay_fraction, self.decay_fraction);
        set(&mut r.optimizer, self.optimizer);
        set(&mut r.beta1, self.beta1);
        set(&mut r.beta2, self.beta2);
        set(&mut r.eps, self.eps);
        set(&mut r.muon_momentum, self.muon_momentum);
        set(&mut r.label_smoothing, self.label_smoothing);
        set(&mut r.z_loss, self.z_loss);
        set(&mut r.ema, self.ema);
        set(&mut r.keep, self.keep);
        set(&mut r.patience, self.patience);
        set(&mut r.detail_every, self.detail_every);
        set(&mut r.spike, self.spike);
        set(&mut r.divergence, self.divergence);
        set(&mut r.preflight, self.preflight);
        set(&mut r.weight_decay, self.weight_decay);
        set(&mut r.clip, self.clip);
        set(&mut r.reduction, self.reduction);
        set(&mut r.init, self.init);
        set(&mut r.init_std, self.init_std);
        set(&mut r.eval_tokens, self.eval_tokens);
        set(&mut r.save_every, self.save_every);
        set(&mut r.val_fraction, self.val_fraction);
        set(&mut r.whole_documents, self.whole_documents);
        set(&mut r.cross_documents, self.cross_documents);
    }
}

/// A short run warms up for at most a tenth of it.
fn warmup(usual: u64, steps: u64) -> u64 {
    usual.min(steps / 10)
}

/// What of a model learns.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Fine-tuning")]
pub struct TuningOptions {
    /// A model to go on from: a folder of limpid or HuggingFace, a .gguf, a .bin of llm.c
    #[arg(long, value_name = "MODEL", conflicts_with = "preset")]
    pub from: Option<String>,
    /// Parameters that stay as they are, by name: embed.*,blocks.[0-5].* (docs/names.md)
    #[arg(long, value_name = "NAMES", value_delimiter = ',', hide_short_help = true)]
    pub freeze: Vec<String>,
    /// The only parameters that learn
    #[arg(long, value_name = "NAMES", value_delimiter = ',', hide_short_help = true)]
    pub train_only: Vec<String>,
    /// Train a LoRA adapter of this rank instead of the model's own weights
    #[arg(long, value_name = "R", requires = "from", conflicts_with_all = ["freeze", "train_only"], alias = "lora-r")]
    pub lora: Option<usize>,
    /// What the adapter adds is multiplied by alpha / rank [default: twice the rank]
    #[arg(long, value_name = "X", requires = "lora", hide_short_help = true)]
    pub lora_alpha: Option<f64>,
    /// The products it is for: attention, feed-forward, or names like blocks.0.attn.* [default: attention,feed-forward]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', requires = "lora", hide_short_help = true)]
    pub lora_targets: Vec<String>,
    /// Dropout on the adapter's input
    #[arg(long, value_name = "P", requires = "lora", hide_short_help = true)]
    pub lora_dropout: Option<f64>,
}

impl TuningOptions {
    /// As the library takes it.
    pub fn tuning(&self) -> Tuning {
        let lora = self.lora.map(|rank| Lora {
            rank,
            alpha: self.lora_alpha.unwrap_or(2.0 * rank as f64),
            dropout: self.lora_dropout.unwrap_or(0.0),
            targets: match &self.lora_targets[..] {
                [] => ["attention", "feed-forward"].map(String::from).to_vec(),
                targets => targets.to_vec(),
            },
        });
        Tuning { freeze: self.freeze.clone(), train_only: self.train_only.clone(), lora }
    }

    /// What was asked for, as a configuration file has it.
    pub fn keys(&self) -> Vec<(&'static str, String)> {
        let number = |n: Option<f64>| n.map_or(String::new(), |n| n.to_string());
        vec![
            ("freeze", self.freeze.join(",")),
            ("train_only", self.train_only.join(",")),
            ("lora", self.lora.map_or(String::new(), |n| n.to_string())),
            ("lora_alpha", number(self.lora_alpha)),
            ("lora_targets", self.lora_targets.join(",")),
            ("lora_dropout", number(self.lora_dropout)),
        ]
    }
}

/// The machine.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Machine")]
pub struct MachineOptions {
    /// Threads [default: all cores]
    #[arg(long, short = 't', value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Instructions to use: portable, avx2, avx512, avx512-bf16, neon, all with the same results [default: the fastest this CPU has];
    /// or unfused: for a CPU that has only portable, quicker, with other last digits
    #[arg(long, value_name = "SET", env = "LIMPID_SIMD", value_parser = Level::named, hide_env_values = true, hide_short_help = true)]
    pub simd: Option<Level>,
    /// What products multiply: f32, or bf16 (operands rounded, sums and weights f32)
    #[arg(long, alias = "dtype", value_name = "P", default_value = "f32", value_parser = precision, hide_short_help = true)]
    pub precision: Precision,
}

/// Bytes as people write them: 2G, 1.5GiB, 800M, 2000000000.
pub fn bytes(text: &str) -> Result<u64, String> {
    let (number, unit) = text.split_at(text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len()));
    let unit = match unit.to_lowercase().trim_end_matches('b') {
        "" => 1.0,
        "k" => 1e3,
        "m" => 1e6,
        "g" => 1e9,
        "t" => 1e12,
        "ki" => 1024.0,
        "mi" => 1_048_576.0,
        "gi" => 1_073_741_824.0,
        _ => f64::NAN,
    };
    match number.trim().parse::<f64>().map(|n| n * unit) {
        Ok(n) if n >= 1.0 => Ok(n as u64),
        _ => Err(format!("`{text}` is no amount of memory: write it as 2G, 1.5GiB, 800M or in bytes")),
    }
}

fn precision(s: &str) -> Result<Precision, ConfigError> {
    match s {
        "float32" => Ok(Precision::F32),
        "bfloat16" => Ok(Precision::Bf16),
        _ => parse_axis(s),
    }
}

impl MachineOptions {
    /// Instructions to use.
    pub fn level(&self) -> Level {
        self.simd.unwrap_or_else(Level::best)
    }

    /// This processor as a backend for `model`.
    pub fn cpu(&self, model: &Model) -> Result<Cpu> {
        Ok(Cpu::start(model, self.threads(), self.level(), self.precision)?)
    }

    /// A session of one sequence on this processor, if it fits into memory.
    pub fn session(&self, config: &Config) -> Result<Session> {
        let rows = 256.min(config.context_length);
        let model = Model::new(config, Use::Decode { rows, sequences: 1 })?;
        crate::verbs::fits(&model, None, self.threads(), "this model")?;
        let cpu = Box::new(self.cpu(&model)?);
        Ok(Session::new(config, 1, rows, |_| Ok(cpu))?)
    }

    /// Threads to use.
    pub fn threads(&self) -> usize {
        threads(self.threads)
    }
}

/// Threads to use where so many were asked for; more than there are cores is told, once.
pub fn threads(asked: Option<impl Into<usize>>) -> usize {
    static TOLD: Once = Once::new();
    let threads = asked.map_or_else(cores, Into::into);
    if threads > cores() {
        let (threads, cores) = (show::plural(threads, "thread"), show::plural(cores(), "core"));
        TOLD.call_once(|| show::say(format_args!("note: {threads} on {cores} wait for each other: fewer are faster")));
    }
    threads
}

/// Cores that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

// ---- from what was typed to what clap reads

/// One flag with its value, as a word: `--steps=100`; a switch is its name alone.
struct Word {
    name: String,
    value: Option<OsString>,
}

impl Word {
    fn text(&self) -> OsString {
        let mut text = OsString::from(format!("--{}", self.name));
        self.value.iter().for_each(|value| text.extend([OsStr::new("="), value]));
        text
    }
}

/// The verb that was typed, where its own words begin: `bench train` is a verb of two.
pub fn verb<'a>(typed: &[String], cli: &'a Command) -> Option<(&'a Command, usize)> {
    let find = |command: &'a Command, at: usize| typed.get(at).and_then(|word| command.find_subcommand(word));
    let verb = find(cli, 1)?;
    Some(find(verb, 2).map_or((verb, 2), |verb| (verb, 3)))
}

/// The names of a verb's flags, those that they go by elsewhere too.
pub fn names(verb: &Command) -> impl Iterator<Item = &str> {
    verb.get_arguments().filter(|arg| !arg.is_hide_set()).flat_map(all_names)
}

fn all_names(arg: &Arg) -> impl Iterator<Item = &str> {
    arg.get_long().into_iter().chain(arg.get_all_aliases().unwrap_or_default())
}

/// The arguments with `_` read as `-` in flags' names, and with those of the configuration file and the environment
/// put before what was typed. Options that are groups of others (`--dropout`) also get each of the three by itself.
pub fn arguments(typed: Vec<OsString>, cli: &Command) -> Result<Vec<OsString>> {
    let mut typed = numbers(typed.into_iter().map(dashes));
    let words: Vec<String> = typed.iter().map(|word| word.to_string_lossy().into()).collect();
    let Some((verb, place)) = verb(&words, cli) else { return Ok(typed) };
    if typed.iter().any(|a| a == "--help" || a == "-h") {
        return Ok(typed);
    }
    name_unknown_variables(cli);
    let flags = given(&typed[place..], verb);
    let variables = from_environment(verb)?;
    let flag = |name: &str| {
        let found = flags.iter().chain(&variables).find(|word| word.name == name);
        found.and_then(|word| word.value.clone())
    };
    let (mut file, mut whence) = (vec![], PathBuf::new());
    if let Some(path) = flag("config") {
        whence = path.into();
        file = from_file(&whence, verb)?;
    } else if let Some(folder) = resumed(flag("resume"), flag("out"))? {
        whence = folder.join("limpid.toml");
        file = from_file(&whence, verb).with_context(|| format!("{} cannot be resumed", folder.display()))?;
        kept(&folder, &file, flags.iter().chain(&variables))?;
        // what was chosen anew when it went on before stays chosen
        let from = flag("resume-step").and_then(|step| step.to_str()?.parse().ok());
        let last = serde_json::to_value(Run::recipe(&folder, from))?;
        for word in file.iter_mut().filter(|word| Run::FREE.contains(&word.name.replace('-', "_").as_str())) {
            word.value = match &last[word.name.replace('-', "_")] {
                serde_json::Value::Null => word.value.take(),
                serde_json::Value::String(text) => Some(text.into()),
                other => Some(other.to_string().into()),
            };
        }
    }
    one_preset(&whence, [&file, &variables, &flags])?;
    let mut before = vec![];
    let whences = [whence.display().to_string(), "the environment".into(), "the command line".into()];
    for (name, group, check) in [kind::<ModelOptions>("model-layer"), kind::<RecipeOptions>("recipe-layer")] {
        if !verb.get_arguments().any(|arg| arg.get_long() == Some(name)) || file.is_empty() && variables.is_empty() {
            continue;
        }
        for (layer, whence) in [&file, &variables, &flags].into_iter().zip(&whences) {
            let own = layer.iter().filter(|word| group.contains(&word.name));
            let own = own.map(|word| word.text().to_string_lossy().into()).collect::<Vec<String>>().join("\n");
            check(&own).map_err(|said| Usage(format!("{whence}: {said}")))?;
            before.push(format!("--{name}={own}").into());
        }
    }
    // what is named again above does not stand, also where several values of it would add up
    let above = |name: &str, layers: &[&Vec<Word>]| layers.iter().any(|l| l.iter().any(|word| word.name == name));
    let stands = file.iter().filter(|word| !above(&word.name, &[&variables, &flags]));
    let stands = stands.chain(variables.iter().filter(|word| !above(&word.name, &[&flags])));
    before.extend(stands.map(Word::text));
    typed.splice(place..place, before);
    Ok(typed)
}

/// What was typed, each flag by its own name; what is wrong in it is left for clap to say.
fn given(words: &[OsString], verb: &Command) -> Vec<Word> {
    let lenient = verb.clone().args_override_self(true).ignore_errors(true).no_binary_name(true);
    let Ok(matches) = lenient.try_get_matches_from(words) else { return vec![] };
    let typed = |arg: &&Arg| matches.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
    let word = |arg: &Arg| {
        let values = matches.get_raw(arg.get_id().as_str()).into_iter().flatten();
        let value = values.collect::<Vec<_>>().join(OsStr::new(","));
        Some(Word { name: arg.get_long()?.into(), value: arg.get_action().takes_values().then_some(value) })
    };
    verb.get_arguments().filter(typed).filter_map(word).collect()
}

/// A flag from a place that has names and values alone; none for a switch that is off.
fn word(arg: &Arg, value: OsString, whence: &str) -> Result<Option<Word>> {
    let name = arg.get_long().unwrap_or_default().to_string();
    if arg.get_action().takes_values() {
        return Ok(Some(Word { name, value: Some(value) }));
    }
    match value.to_str() {
        Some("true" | "1") => Ok(Some(Word { name, value: None })),
        Some("false" | "0" | "") => Ok(None),
        _ => bail!(Usage(format!("{whence} is `{}`: it is true or false", value.display()))),
    }
}

/// The environment variable of a setting.
fn variable(name: &str) -> String {
    format!("LIMPID_{}", name.to_uppercase().replace('-', "_"))
}

fn from_environment(verb: &Command) -> Result<Vec<Word>> {
    let mut words = vec![];
    for arg in verb.get_arguments().filter(|arg| !arg.is_hide_set() && arg.get_long() != Some("help")) {
        let found = all_names(arg).map(variable).find_map(|name| Some((std::env::var_os(&name)?, name)));
        if let Some((value, name)) = found {
            words.extend(word(arg, value, &name)?);
        }
    }
    Ok(words)
}

/// A variable that looks like a setting and is none is told: the setting it was meant for would be missed in silence.
fn name_unknown_variables(cli: &Command) {
    fn all(command: &Command) -> Vec<String> {
        names(command).map(variable).chain(command.get_subcommands().flat_map(all)).collect()
    }
    let known = all(cli);
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("LIMPID_") && !known.iter().any(|known| *known == name) {
            let near = nearest(&name["LIMPID_".len()..], known.iter().map(|name| &name["LIMPID_".len()..]));
            let near = near.map(|near| format!(": did you mean LIMPID_{near}?")).unwrap_or_default();
            show::say(format_args!("note: the environment has {name}, which is no setting of limpid{near}"));
        }
    }
}

/// Settings that a run keeps to its end, beside those that its state holds.
const KEPT: [&str; 7] = ["from", "tokenizer", "field", "freeze", "train-only", "lora", "lora-targets"];

/// Refuses to go on with a run otherwise than it began.
fn kept<'a>(folder: &Path, file: &[Word], asked: impl Iterator<Item = &'a Word>) -> Result<()> {
    for word in asked.filter(|word| KEPT.contains(&word.name.as_str())) {
        let was = file.iter().find(|was| was.name == word.name).and_then(|was| was.value.as_ref());
        let is = word.value.as_ref();
        let path = is.and_then(|is| std::path::absolute(is).ok()).map(OsString::from);
        let file = is.and_then(|is| Path::new(is).file_name()).map(OsString::from);
        if was != is && was != path.as_ref() && was != file.as_ref() {
            let was = was.map_or("none".into(), |was| was.to_string_lossy());
            let is = is.map_or("true".into(), |is| is.to_string_lossy());
            let (name, key, folder) = (&word.name, word.name.replace('-', "_"), folder.display());
            bail!(Usage(format!(
                "--{name} {is}: the run in {folder} began with another one ({key} in its limpid.toml: {was}), and goes on with \
                 it; another --out begins a new run"
            )));
        }
    }
    Ok(())
}

/// Refuses a preset over settings of a model that were made for another: they would leave nothing of it.
fn one_preset(file: &Path, layers: [&Vec<Word>; 3]) -> Result<()> {
    let spelled = |value: &OsString| value.to_string_lossy().to_lowercase().replace('_', "-");
    let preset = |layer: &[Word]| layer.iter().find(|w| w.name == "preset").and_then(|w| w.value.as_ref()).map(spelled);
    let model = group::<ModelOptions>();
    for (n, layer) in layers.iter().enumerate() {
        let below = &layers[..n];
        let (Some(is), Some(was)) = (preset(layer), below.iter().rev().find_map(|layer| preset(layer))) else {
            continue;
        };
        let mut own = below.iter().flat_map(|layer| layer.iter()).map(|word| &word.name);
        if is != was
            && let Some(name) = own.find(|name| *name != "preset" && model.contains(name))
        {
            let whence = if below[0].is_empty() { "the environment".into() } else { file.display().to_string() };
            bail!(Usage(format!(
                "--preset {is}: {whence} has another, {was}, with settings of its own ({}, ...), which would stand: leave one \
                 of the two out",
                name.replace('-', "_")
            )));
        }
    }
    Ok(())
}

/// What holds a kind's layers, its flags, and what says what is wrong with a layer of it.
type Layered = (&'static str, Vec<String>, fn(&str) -> Result<(), String>);

fn kind<T: Args>(name: &'static str) -> Layered {
    let check = |words: &str| {
        let said = |error: clap::Error| error.to_string().lines().next().unwrap_or_default().replacen("error: ", "", 1);
        layer::<T>(words).map(drop).map_err(said)
    };
    (name, group::<T>(), check)
}

/// The names of the flags of one kind.
fn group<T: Args>() -> Vec<String> {
    names(&T::augment_args(Command::new("limpid"))).map(String::from).collect()
}

/// Flags of one kind from the words of one layer.
fn layer<T: Args>(words: &str) -> Result<T, clap::Error> {
    let command = T::augment_args(Command::new("limpid").no_binary_name(true).args_override_self(true));
    T::from_arg_matches(&command.try_get_matches_from(words.lines())?)
}

/// The folder that `--resume` means: the one named, `--out`'s, or the newest under runs/.
fn resumed(resume: Option<OsString>, out: Option<OsString>) -> Result<Option<PathBuf>> {
    let Some(resume) = resume else { return Ok(None) };
    if resume != "auto" {
        let folder = PathBuf::from(&resume);
        if !folder.join("limpid.toml").exists() {
            bail!("{} cannot be resumed: it has no limpid.toml, so no run began there", folder.display());
        }
        return Ok(Some(folder));
    }
    let folder = out.map(PathBuf::from).or_else(newest_run);
    Ok(folder.filter(|folder| folder.join("limpid.toml").exists()))
}

/// The newest run under runs/ that can go on, or that began and was killed before its first save.
pub fn newest_run() -> Option<PathBuf> {
    let runs = std::fs::read_dir("runs").ok()?.flatten().map(|entry| entry.path());
    let begun = |path: &PathBuf| path.join("limpid.toml").exists() && folder::look(path) == Found::Begun;
    let time = |file: PathBuf| file.metadata().and_then(|m| m.modified()).ok();
    runs.filter(|path| limpid::train::Run::can_resume(path) || begun(path))
        .max_by_key(|path| time(path.join("state/last.safetensors")).max(time(path.join("limpid.toml"))))
}

/// Words in which a number below zero belongs to the flag before it, which may refuse it: it is no flag itself.
fn numbers(words: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let below_zero = |word: &str| word.starts_with('-') && word.parse::<f64>().is_ok();
    let flag = |word: &str| word.len() > 1 && word.starts_with('-') && !word.contains('=') && !below_zero(word);
    let mut joined: Vec<OsString> = vec![];
    for word in words {
        match joined.last_mut() {
            Some(last) if word.to_str().is_some_and(below_zero) && last.to_str().is_some_and(flag) => {
                last.extend([OsStr::new("="), &word]);
            }
            _ => joined.push(word),
        }
    }
    joined
}

fn dashes(arg: OsString) -> OsString {
    let Some(text) = arg.to_str().filter(|a| a.starts_with("--") && a.len() > 2) else { return arg };
    let (name, value) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)));
    let name = name.replace('_', "-");
    value.map_or_else(|| name.clone().into(), |value| format!("{name}={value}").into())
}

/// A file of settings as text: a regular one, of at most 16 MiB.
pub fn read_settings(path: &Path) -> Result<String> {
    limpid::files::read_text(path, 16 << 20).with_context(|| path.display().to_string())
}

/// A TOML or JSON file as flags.
fn from_file(path: &Path, verb: &Command) -> Result<Vec<Word>> {
    let text = read_settings(path)?;
    let table: toml::Table = if path.extension().is_some_and(|e| e == "json") {
        serde_json::from_str(&text).map_err(|e| anyhow!("{}: {e}", path.display()))?
    } else {
        text.parse().map_err(|e: toml::de::Error| anyhow!("{}: {e}", path.display()))?
    };
    let mut words: Vec<Word> = vec![];
    for (key, value) in table {
        let name = key.replace('_', "-");
        let found = verb.get_arguments().filter(|arg| !arg.is_hide_set()).find(|arg| all_names(arg).any(|n| n == name));
        let Some(arg) = found.filter(|_| !["help", "config", "json", "resume"].contains(&name.as_str())) else {
            let near = nearest(&name, names(verb)).map(|n| format!(": did you mean `{}`?", n.replace('-', "_")));
            return Err(Usage(format!("{}: unknown key `{key}`{}", path.display(), near.unwrap_or_default())).into());
        };
        let value = match value {
            toml::Value::String(s) => s,
            toml::Value::Integer(_) | toml::Value::Float(_) | toml::Value::Boolean(_) => value.to_string(),
            other => return Err(Usage(format!("{}: `{key}` is {other}: it must be one value", path.display())).into()),
        };
        let Some(word) = word(arg, value.into(), &format!("{}: `{key}`", path.display()))? else { continue };
        if words.iter().any(|other| other.name == word.name) {
            let own = word.name.replace('-', "_");
            return Err(Usage(format!("{}: `{key}` is `{own}`, which stands there too", path.display())).into());
        }
        words.push(word);
    }
    Ok(words)
}

/// The resolved settings as a configuration file: what `--config` and `--resume` read.
pub fn to_toml(config: &Config, recipe: &Recipe, rest: &[(&str, String)]) -> String {
    let mut table = toml::Table::new();
    let own = |value: serde_json::Value| toml::Value::try_from(value).expect("settings are plain values");
    let config_context = config.context_length;
    let mut config = serde_json::to_value(config).expect("a config is JSON");
    let object = config.as_object_mut().expect("an object");
    object.remove("vocab_size"); // the tokenizer's
    object.remove("lm_head"); // what is trained has one
    for (key, value) in object.iter().filter(|(_, value)| !value.is_null()) {
        match value.as_object() {
            Some(parts) => {
                table.extend(parts.iter().map(|(part, value)| (format!("{key}_{part}"), own(value.clone()))));
            }
            None => drop(table.insert(key.clone(), own(value.clone()))),
        }
    }
    // what follows the model's own is written so, for whoever takes another model with these settings
    let context = if recipe.context == config_context { 0 } else { recipe.context };
    let recipe = Recipe { context, ..*recipe };
    for (key, value) in serde_json::to_value(recipe).expect("a recipe is JSON").as_object().expect("an object") {
        table.insert(key.clone(), own(value.clone()));
    }
    for (key, value) in rest {
        table.insert(key.to_string(), value.clone().into());
    }
    format!("# What this run was started with. `limpid train --config FILE` starts another like it.\n{table}")
}

/// The presets, for help.
pub fn presets() -> String {
    PRESETS.join(", ")
}

//! Names: one table of every tensor and every parameter of the model: its symbol in the documents (docs/contract.md),
//! its name in other programs, and what it is. The builder makes the names, files and messages carry them; this table
//! explains them.
//!
//! [`TABLE`] is that table, [`symbol`] and [`describe`] look up one name, and [`formula`] reads the op that computes
//! a tensor, so that it is true of every variant. [`derived`] lists what no op computes by itself: a norm's mean, the
//! matrix of the queries alone. Blocks are numbered from 0 in names and from 1 in symbols, as in
//! the article "Notations" (docs/contract.md). [`called`] and [`formula_in`] say it in another [`Notation`].
//! docs/names.md is the same table as a page; read `trace` next.

mod notation;

pub use notation::{
    DOCUMENTS, LETTERS, Notation, called, called_by_head, called_within, factor, is_stored, sizes, value_axis, within,
};

use limpid_core::config::{Axis, Config, Mask, NormKind, NormPlace, Positions, QkNorm};
use limpid_core::model::{Component, Mode, Model, Module, ParamRole, Tensor, in_block};
use limpid_core::ops::{Access, DropoutSpec, Op, Region, Scoring};
use std::ops::Range;

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Entry {
    /// Our name; `{i}` is a block's number, from 0.
    pub name: &'static str,
    /// The symbol of "Notations", or ours where it has none; `{}` is where the block's number goes, from 1.
    pub symbol: &'static str,
    /// TransformerLens's name where it means the same; empty where the name is ours.
    pub lens: &'static str,
    /// HuggingFace's name in GPT-2; empty where it has none.
    pub hf: &'static str,
    /// llm.c's name; empty where it has none.
    pub llmc: &'static str,
    /// Its axes, in the order of its shape. A matrix is stored (out, in).
    pub axes: &'static str,
    /// What it is, in one line.
    pub about: &'static str,
}

impl Entry {
    /// Whether it is a parameter, not an activation.
    pub fn is_param(&self) -> bool {
        let last = self.name.rsplit('.').next().unwrap_or_default();
        ["weight", "bias", "W_", "b_"].iter().any(|start| last.starts_with(start))
    }
}

#[rustfmt::skip]
const fn entry(row: [&'static str; 7]) -> Entry {
    let [name, symbol, lens, hf, llmc, axes, about] = row;
    Entry { name, symbol, lens, hf, llmc, axes, about }
}

const X: &str = "batch pos d_model"; // d_embed, where `axes` says so
pub(crate) const HEADS: &str = "batch pos head d_head";
const SCORES: &str = "batch head query_pos key_pos";
const FFN: &str = "batch pos d_ff";
const VOCAB: &str = "batch pos d_vocab";
const ONE: &str = "batch pos 1";
const POS: &str = "batch pos";
const FEATURES: &str = "batch pos features";
const WEIGHTS: &str = "head d_model d_head";

/// Every name the builder makes, and every one that is [`derived`]: first the activations in the order of the forward
/// pass, then the parameters.
#[rustfmt::skip]
pub const TABLE: &[Entry] = &[
    // name, symbol, in TransformerLens, in HuggingFace's GPT-2, in llm.c, axes, what it is
    entry(["input",                             "x",             "",                                  "input_ids",                  "inputs",    POS,      "token ids"]),
    entry(["hook_embed",                        "X",             "hook_embed",                        "",                           "",          X,        "the token's row of the token table, times the factor of the embedding if there is one"]),
    entry(["hook_pos_embed",                    "PE",            "hook_pos_embed",                    "",                           "",          X,        "the position's vector, learned or sinusoidal, times the factor of the embedding if there is one"]),
    entry(["hook_embed_unscaled",               "X_u",           "",                                  "",                           "",          X,        "models with a factor of the embedding: the row of the token table as it is stored"]),
    entry(["hook_pos_embed_unscaled",           "PE_u",          "",                                  "",                           "",          X,        "models with a factor of the embedding: the position's vector before it"]),
    entry(["hook_embed_sum_unscaled",           "X_su",          "",                                  "",                           "",          X,        "models with a factor of the embedding: token, position and segment vectors, added before it"]),
    entry(["hook_embed_sum",                    "X_sum",         "",                                  "",                           "encoded",   X,        "token, position and segment vectors, added; times the factor of the embedding if there is one"]),
    entry(["embed_norm.hook_mean",               "μ_e",            "",                                    "",                           "",           ONE,     "the mean that the embedding's norm subtracts"]),
    entry(["embed_norm.hook_scale",             "s_e",           "",                                  "",                           "",          ONE,      "what the embedding's norm divides by"]),
    entry(["embed_norm.hook_normalized",        "N_e",           "",                                  "",                           "",          X,        "the embedding normalised, before gain and offset"]),
    entry(["embed_norm.hook_out",               "X_norm",        "",                                  "",                           "",          X,        "the embedding normalised, with gain and offset"]),
    entry(["hook_embed_dropped",                "X̃",             "",                                  "",                           "",          X,        "the embedding after dropout"]),
    entry(["hook_embed_mask", "M", "", "", "", X, "the embedding's mask with dropout: what each element is multiplied by, 0 where it is dropped"]),
    entry(["hook_embed_projected",              "X̃",             "",                                  "",                           "",          X,        "the embedding projected to the stream's width, if it has its own width"]),
    entry(["blocks.{i}.hook_resid_pre",         "X̃",             "blocks.{i}.hook_resid_pre",         "hidden_states[i]",           "encoded, residual3", X, "the residual stream that enters the block"]),
    entry(["blocks.{i}.ln1.hook_mean",           "μ₁{}",           "",                                    "",                           "ln1_mean",   ONE,     "the mean that the first norm subtracts"]),
    entry(["blocks.{i}.ln1.hook_scale",         "s₁{}",          "blocks.{i}.ln1.hook_scale",         "",                           "1/ln1_rstd",  ONE,    "the deviation that the first norm divides by"]),
    entry(["blocks.{i}.ln1.hook_normalized",    "N₁{}",          "blocks.{i}.ln1.hook_normalized",    "",                           "",          X,        "the first norm, before gain and offset"]),
    entry(["blocks.{i}.ln1.hook_out",           "Z₁{}",          "",                                  "",                           "ln1",       X,        "the first norm's output, with gain and offset"]),
    entry(["blocks.{i}.attn.hook_qkv",          "[Q K V]{}",     "",                                  "",                           "qkv",       FEATURES, "queries, keys and values side by side"]),
    entry(["blocks.{i}.attn.hook_q",            "Q{}",           "blocks.{i}.attn.hook_q",            "",                           "",          HEADS,    "queries, each of the token being processed; before any rotation"]),
    entry(["blocks.{i}.attn.hook_k",            "K{}",           "blocks.{i}.attn.hook_k",            "",                           "",          HEADS,    "keys, each the label of a token for the others; before any rotation"]),
    entry(["blocks.{i}.attn.hook_v",            "V{}",           "blocks.{i}.attn.hook_v",            "",                           "",          HEADS,    "values, the information each token passes on"]),
    entry(["blocks.{i}.attn.hook_qk_normed",    "[NQ NK V]{}",   "",                                  "",                           "",          FEATURES, "the same, queries and keys normalised"]),
    entry(["blocks.{i}.attn.hook_norm_q",       "NQ{}",          "",                                  "",                           "",          HEADS,    "queries normalised, before any rotation"]),
    entry(["blocks.{i}.attn.hook_norm_k",       "NK{}",          "",                                  "",                           "",          HEADS,    "keys normalised, before any rotation"]),
    entry(["blocks.{i}.attn.hook_rotated",      "[RQ RK V]{}",   "",                                  "",                           "",          FEATURES, "the same, queries and keys rotated by their position"]),
    entry(["blocks.{i}.attn.hook_rot_q",        "RQ{}",          "blocks.{i}.attn.hook_rot_q",        "",                           "",          HEADS,    "queries rotated by their position"]),
    entry(["blocks.{i}.attn.hook_rot_k",        "RK{}",          "blocks.{i}.attn.hook_rot_k",        "",                           "",          HEADS,    "keys rotated by their position"]),
    entry(["blocks.{i}.attn.hook_unscaled_scores", "A_u{}",          "",                                    "",                           "",           SCORES,  "queries times keys, before scale, bound and mask"]),
    entry(["blocks.{i}.attn.hook_raw_scores",   "A_s{}",         "",                                  "",                           "",          SCORES,   "scores before the mask"]),
    entry(["blocks.{i}.attn.hook_attn_scores",  "A_s^M{}",       "blocks.{i}.attn.hook_attn_scores",  "",                           "preatt",    SCORES,   "scores after the mask: -inf where hidden"]),
    entry(["blocks.{i}.attn.hook_lse",           "lse{}",          "",                                    "",                           "",           "batch pos head", "log of a row's softmax divisor: the sum of the exponentials of its scores"]),
    entry(["blocks.{i}.attn.hook_pattern",      "A_w{}",         "blocks.{i}.attn.hook_pattern",      "attentions[i]",              "att",       SCORES,   "attention weights, before any dropout: every row sums to 1"]),
    entry(["blocks.{i}.attn.hook_pattern_mask", "M_w{}", "", "", "", SCORES, "the mask of the attention weights with dropout: what each element is multiplied by, 0 where it is dropped"]),
    entry(["blocks.{i}.attn.hook_pattern_dropped", "drop(A_w){}", "", "", "", SCORES, "the attention weights after dropout"]),
    entry(["blocks.{i}.attn.hook_z",            "C_concat{}",    "blocks.{i}.attn.hook_z",            "",                           "atty",      HEADS,    "context: values weighted by the pattern, head by head"]),
    entry(["blocks.{i}.attn.hook_out",          "Z₂ᵒ{}",         "blocks.{i}.attn.hook_out",          "",                           "",          X,        "the output of attention's last product, if a norm or a factor comes before the stream"]),
    entry(["blocks.{i}.attn.hook_out_dropped",  "drop(Z₂ᵒ){}",   "",                                  "",                           "",          X,        "the same after dropout"]),
    entry(["blocks.{i}.attn.hook_out_mask", "M₂ᵒ{}", "", "", "", X, "the mask of that product with dropout: what each element is multiplied by, 0 where it is dropped"]),
    entry(["blocks.{i}.hook_attn_out",          "Z₂{}",          "blocks.{i}.hook_attn_out",          "",                           "attproj",   X,        "what attention adds to the stream: after its own norm or factor, before dropout"]),
    entry(["blocks.{i}.hook_attn_out_dropped",  "drop(Z₂){}",    "",                                  "",                           "",          X,        "the same after dropout"]),
    entry(["blocks.{i}.hook_attn_out_mask", "M₂{}", "", "", "", X, "the mask of attention's output with dropout: what each element is multiplied by, 0 where it is dropped"]),
    entry(["blocks.{i}.ln1_post.hook_mean",      "μ₁ᵖ{}",         "",                                  "",                           "",          ONE,      "the mean that the norm after attention subtracts"]),
    entry(["blocks.{i}.ln1_post.hook_scale",     "s₁ᵖ{}",         "blocks.{i}.ln1_post.hook_scale",    "",                           "",          ONE,      "what that norm divides by"]),
    entry(["blocks.{i}.ln1_post.hook_normalized", "N₁ᵖ{}",        "blocks.{i}.ln1_post.hook_normalized", "",                        "",          X,        "attention's output normalised, before gain and offset"]),
    entry(["blocks.{i}.ln1_post.hook_out",       "Z₂ᵖ{}",          "",                                  "",                           "",          X,        "attention's output normalised, with gain and offset; added to the stream unless a factor comes between"]),
    entry(["blocks.{i}.hook_attn_sum",          "S₁{}",          "HookedEncoder's blocks.{i}.hook_resid_mid", "",                   "",          X,        "stream plus attention, if the sum is not the stream itself: before the norm in post-norm models, and in parallel blocks"]),
    entry(["blocks.{i}.hook_resid_mid",         "Z₃{}",          "blocks.{i}.hook_resid_mid",         "",                           "residual2", X,        "the residual stream between the sub-layers; post-norm: the first norm's output; parallel blocks have none"]),
    entry(["blocks.{i}.ln2.hook_mean",           "μ₂{}",           "",                                    "",                           "ln2_mean",   ONE,     "the mean that the second norm subtracts"]),
    entry(["blocks.{i}.ln2.hook_scale",         "s₂{}",          "blocks.{i}.ln2.hook_scale",         "",                           "1/ln2_rstd",  ONE,    "the deviation that the second norm divides by"]),
    entry(["blocks.{i}.ln2.hook_normalized",    "N₂{}",          "blocks.{i}.ln2.hook_normalized",    "",                           "",          X,        "the second norm, before gain and offset"]),
    entry(["blocks.{i}.ln2.hook_out",           "Z₄{}",          "",                                  "",                           "ln2",       X,        "the second norm's output, with gain and offset"]),
    entry(["blocks.{i}.mlp.hook_pre",           "Z₁^FF{}",       "blocks.{i}.mlp.hook_pre",           "",                           "fch",       FFN,      "inside the feed-forward network, before the activation"]),
    entry(["blocks.{i}.mlp.hook_gate",          "σ(Z₁^FF){}",    "",                                  "",                           "",          FFN,      "gated only: the gate, after its activation"]),
    entry(["blocks.{i}.mlp.hook_pre_linear",    "Z_g^FF{}",      "blocks.{i}.mlp.hook_pre_linear",    "",                           "",          FFN,      "gated only: what the gate is multiplied by"]),
    entry(["blocks.{i}.mlp.hook_post",          "σ(Z₁^FF){}",    "blocks.{i}.mlp.hook_post",          "",                           "fch_gelu",  FFN,      "inside the feed-forward network, after the activation; gated: after the gate"]),
    entry(["blocks.{i}.mlp.hook_out",           "Z₅ᵒ{}",         "blocks.{i}.mlp.hook_out",           "",                           "",          X,        "the output of the feed-forward network's last product, if a norm or a factor comes before the stream"]),
    entry(["blocks.{i}.mlp.hook_out_dropped",   "drop(Z₅ᵒ){}",   "",                                  "",                           "",          X,        "the same after dropout"]),
    entry(["blocks.{i}.mlp.hook_out_mask", "M₅ᵒ{}", "", "", "", X, "the mask of that product with dropout: what each element is multiplied by, 0 where it is dropped"]),
    entry(["blocks.{i}.hook_mlp_out",           "Z₅{}",          "blocks.{i}.hook_mlp_out",           "",                           "fcproj",    X,        "what the feed-forward network adds to the stream: after its own norm or factor, before dropout"]),
    entry(["blocks.{i}.hook_mlp_out_dropped",   "drop(Z₅){}",    "",                                  "",                           "",          X,        "the same after dropout"]),
    entry(["blocks.{i}.hook_mlp_out_mask", "M₅{}", "", "", "", X, "the mask of the feed-forward network's output with dropout: what each element is multiplied by, 0 where it is dropped"]),
    entry(["blocks.{i}.ln2_post.hook_mean",      "μ₂ᵖ{}",         "",                                  "",                           "",          ONE,      "the mean that the norm after the feed-forward network subtracts"]),
    entry(["blocks.{i}.ln2_post.hook_scale",     "s₂ᵖ{}",         "blocks.{i}.ln2_post.hook_scale",    "",                           "",          ONE,      "what that norm divides by"]),
    entry(["blocks.{i}.ln2_post.hook_normalized", "N₂ᵖ{}",        "blocks.{i}.ln2_post.hook_normalized", "",                        "",          X,        "the feed-forward network's output normalised, before gain and offset"]),
    entry(["blocks.{i}.ln2_post.hook_out",       "Z₅ᵖ{}",          "",                                  "",                           "",          X,        "the feed-forward network's output normalised, with gain and offset; added to the stream unless a factor comes between"]),
    entry(["blocks.{i}.hook_mlp_sum",           "S₂{}",          "HookedEncoder's blocks.{i}.hook_resid_post", "",                  "",          X,        "post-norm only: stream plus feed-forward, before the norm"]),
    entry(["blocks.{i}.hook_resid_post",        "Z_out{}",       "blocks.{i}.hook_resid_post",        "hidden_states[i+1]",         "residual3", X,        "the residual stream after the block; post-norm: the second norm's output"]),
    entry(["hook_outputs",                      "Z_last",        "",                                  "",                           "",          "outputs d_model", "decoding only: the rows whose logits are needed"]),
    entry(["ln_final.hook_mean",                 "μ_f",            "",                                    "",                           "lnf_mean",   ONE,     "the mean that the final norm subtracts"]),
    entry(["ln_final.hook_scale",               "s_f",           "ln_final.hook_scale",               "",                           "1/lnf_rstd",  ONE,    "the deviation that the final norm divides by"]),
    entry(["ln_final.hook_normalized",          "N_f",           "ln_final.hook_normalized",          "",                           "",          X,        "the final norm, before gain and offset"]),
    entry(["ln_final.hook_out",                 "Z_pre-head",    "",                                  "hidden_states[-1]",          "lnf",       X,        "the final norm, with gain and offset"]),
    entry(["head.hook_pre",                     "Z_t",           "",                                  "",                           "",          X,        "BERT's dense layer before the head"]),
    entry(["head.hook_post",                    "σ(Z_t)",        "",                                  "",                           "",          X,        "the same after the activation"]),
    entry(["head.ln.hook_mean",                  "μ_h",            "",                                    "",                           "",           ONE,     "the mean that the head's norm subtracts"]),
    entry(["head.ln.hook_scale",                "s_h",           "",                                  "",                           "",          ONE,      "what the head's norm divides by"]),
    entry(["head.ln.hook_normalized",           "N_h",           "",                                  "",                           "",          X,        "the head's norm, before gain and offset"]),
    entry(["head.ln.hook_out",                  "Z_h",           "",                                  "",                           "",          X,        "the head's norm, with gain and offset"]),
    entry(["hook_head_scaled",                  "Z_pre-head^s",  "",                                  "",                           "",          X,        "the head's input, times the factor of the logits"]),
    entry(["hook_unbounded",                    "Z_u",           "",                                  "",                           "",          VOCAB,    "decoding only: logits before their bound"]),
    entry(["logits",                            "Z",             "the model's output",                "logits",                     "logits",    VOCAB,    "a score for every token of the vocabulary"]),
    entry(["probs",                             "P",             "",                                  "",                           "probs",     VOCAB,    "their softmax: the probability of every next token"]),
    entry(["losses",                            "𝓛_t",           "the loss, return_type=\"loss\", loss_per_token=True", "",         "losses",    POS,      "loss of every position; 0 where there is no target"]),
    // parameters
    entry(["embed.weight",                      "W_e",           "embed.W_E",                         "wte.weight",                 "wte",       "d_vocab d_model",    "token table, and the head's matrix if tied"]),
    entry(["pos_embed.weight",                  "W_p",           "pos_embed.W_pos",                   "wpe.weight",                 "wpe",       "pos d_model",        "position table"]),
    entry(["segment_embed.weight",              "W_seg",         "",                                  "",                           "",          "segment d_model",    "segment table (w_A, w_B)"]),
    entry(["embed_norm.weight",                 "γ_e",           "",                                  "",                           "",          "d_model",            "gain of the embedding's norm"]),
    entry(["embed_norm.bias",                   "β_e",           "",                                  "",                           "",          "d_model",            "offset of the embedding's norm"]),
    entry(["embed.project.weight",              "W_ep",          "",                                  "",                           "",          "d_model d_embed",    "from an embedding with its own width to the stream"]),
    entry(["embed.project.bias",                "b_ep",          "",                                  "",                           "",          "d_model",            "its bias"]),
    entry(["blocks.{i}.ln1.weight",             "γ{}",           "blocks.{i}.ln1.w",                  "h.{i}.ln_1.weight",          "ln1w",      "d_model",            "gain of the first norm"]),
    entry(["blocks.{i}.ln1.bias",               "β{}",           "blocks.{i}.ln1.b",                  "h.{i}.ln_1.bias",            "ln1b",      "d_model",            "offset of the first norm"]),
    entry(["blocks.{i}.attn.qkv.weight",        "[W^Q W^K W^V]{}", "blocks.{i}.attn.W_Q, W_K, W_V",   "h.{i}.attn.c_attn.weight",   "qkvw",      "features d_model",   "rows of all queries, then keys, then values"]),
    entry(["blocks.{i}.attn.qkv.bias",          "[b^Q b^K b^V]{}", "blocks.{i}.attn.b_Q, b_K, b_V",   "h.{i}.attn.c_attn.bias",     "qkvb",      "features",           "biases of queries, keys and values"]),
    entry(["blocks.{i}.attn.W_Q",                "W^Q{}",          "blocks.{i}.attn.W_Q",                 "",                           "",           WEIGHTS, "the rows of `attn.qkv.weight` that make queries, head by head, (in, out)"]),
    entry(["blocks.{i}.attn.W_K",                "W^K{}",          "blocks.{i}.attn.W_K",                 "",                           "",           WEIGHTS, "the rows of `attn.qkv.weight` that make keys, head by head, (in, out)"]),
    entry(["blocks.{i}.attn.W_V",                "W^V{}",          "blocks.{i}.attn.W_V",                 "",                           "",           WEIGHTS, "the rows of `attn.qkv.weight` that make values, head by head, (in, out)"]),
    entry(["blocks.{i}.attn.b_Q",                "b^Q{}",          "blocks.{i}.attn.b_Q",                 "",                           "",           "head d_head", "the part of `attn.qkv.bias` that is added to queries"]),
    entry(["blocks.{i}.attn.b_K",                "b^K{}",          "blocks.{i}.attn.b_K",                 "",                           "",           "head d_head", "the part of `attn.qkv.bias` that is added to keys"]),
    entry(["blocks.{i}.attn.b_V",                "b^V{}",          "blocks.{i}.attn.b_V",                 "",                           "",           "head d_head", "the part of `attn.qkv.bias` that is added to values"]),
    entry(["blocks.{i}.attn.q_norm.weight",     "γ^Q{}",         "blocks.{i}.attn.q_norm.w",          "",                           "",          "features",           "gain of the queries' norm"]),
    entry(["blocks.{i}.attn.k_norm.weight",     "γ^K{}",         "blocks.{i}.attn.k_norm.w",          "",                           "",          "features",           "gain of the keys' norm"]),
    entry(["blocks.{i}.attn.out.weight",        "W^O{}",         "blocks.{i}.attn.W_O",               "h.{i}.attn.c_proj.weight",   "attprojw",  "d_model d_model",    "from the heads back to the stream"]),
    entry(["blocks.{i}.attn.out.bias",          "b^O{}",         "blocks.{i}.attn.b_O",               "h.{i}.attn.c_proj.bias",     "attprojb",  "d_model",            "its bias"]),
    entry(["blocks.{i}.ln1_post.weight",        "γᵖ{}",         "blocks.{i}.ln1_post.w",             "",                           "",          "d_model",            "gain of the norm after attention"]),
    entry(["blocks.{i}.ln1_post.bias",          "βᵖ{}",         "blocks.{i}.ln1_post.b",             "",                           "",          "d_model",            "offset of the norm after attention"]),
    entry(["blocks.{i}.ln2.weight",             "γ′{}",          "blocks.{i}.ln2.w",                  "h.{i}.ln_2.weight",          "ln2w",      "d_model",            "gain of the second norm"]),
    entry(["blocks.{i}.ln2.bias",               "β′{}",          "blocks.{i}.ln2.b",                  "h.{i}.ln_2.bias",            "ln2b",      "d_model",            "offset of the second norm"]),
    entry(["blocks.{i}.mlp.gate.weight",        "W_g^FF{}",      "blocks.{i}.mlp.W_gate",             "",                           "",          "d_ff d_model",       "gated only: into the gate"]),
    entry(["blocks.{i}.mlp.gate.bias",          "b_g^FF{}",      "blocks.{i}.mlp.b_gate",             "",                           "",          "d_ff",               "its bias"]),
    entry(["blocks.{i}.mlp.in.weight",          "W₁^FF{}",       "blocks.{i}.mlp.W_in",               "h.{i}.mlp.c_fc.weight",      "fcw",       "d_ff d_model",       "into the feed-forward network"]),
    entry(["blocks.{i}.mlp.in.bias",            "b₁^FF{}",       "blocks.{i}.mlp.b_in",               "h.{i}.mlp.c_fc.bias",        "fcb",       "d_ff",               "its bias"]),
    entry(["blocks.{i}.mlp.out.weight",         "W₂^FF{}",       "blocks.{i}.mlp.W_out",              "h.{i}.mlp.c_proj.weight",    "fcprojw",   "d_model d_ff",       "out of the feed-forward network"]),
    entry(["blocks.{i}.mlp.out.bias",           "b₂^FF{}",       "blocks.{i}.mlp.b_out",              "h.{i}.mlp.c_proj.bias",      "fcprojb",   "d_model",            "its bias"]),
    entry(["blocks.{i}.ln2_post.weight",        "γ′ᵖ{}",         "blocks.{i}.ln2_post.w",             "",                           "",          "d_model",            "gain of the norm after the feed-forward network"]),
    entry(["blocks.{i}.ln2_post.bias",          "β′ᵖ{}",         "blocks.{i}.ln2_post.b",             "",                           "",          "d_model",            "offset of the norm after the feed-forward network"]),
    entry(["ln_final.weight",                   "γ_f",           "ln_final.w",                        "ln_f.weight",                "lnfw",      "d_model",            "gain of the final norm"]),
    entry(["ln_final.bias",                     "β_f",           "ln_final.b",                        "ln_f.bias",                  "lnfb",      "d_model",            "offset of the final norm"]),
    entry(["head.dense.weight",                 "W_t",           "",                                  "",                           "",          "d_model d_model",    "BERT's dense layer before the head"]),
    entry(["head.dense.bias",                   "b_t",           "",                                  "",                           "",          "d_model",            "its bias"]),
    entry(["head.ln.weight",                    "γ_h",           "",                                  "",                           "",          "d_model",            "gain of the head's norm"]),
    entry(["head.ln.bias",                      "β_h",           "",                                  "",                           "",          "d_model",            "offset of the head's norm"]),
    entry(["unembed.weight",                    "W_s",           "unembed.W_U",                       "lm_head.weight",             "wte",       "d_vocab d_model",    "the head's own matrix, if it is not tied"]),
    entry(["unembed.bias",                      "b_s",           "unembed.b_U",                       "",                           "",          "d_vocab",            "the head's bias"]),
];

/// The table's row for a name, and the number of the block in it. The row of a gradient (`NAME.grad`) is its tensor's.
pub fn lookup(name: &str) -> Option<(&'static Entry, Option<usize>)> {
    let name = name.strip_suffix(".grad").unwrap_or(name);
    let block = in_block(name).map(|(block, _)| block);
    let pattern = match in_block(name) {
        Some((_, own)) => format!("blocks.{{i}}.{own}"),
        None => name.into(),
    };
    TABLE.iter().find(|entry| entry.name == pattern).map(|entry| (entry, block))
}

/// The axes of a tensor or parameter of a model: those of its row, but where the embedding, the values or the heads
/// side by side have a width of their own. None for an unknown name.
pub fn axes(name: &str, config: &Config) -> Vec<&'static str> {
    let Some((entry, _)) = lookup(name) else { return vec![] };
    let mut axes: Vec<&str> = entry.axes.split(' ').collect();
    if config.d_embed.is_some() && is_embedding(entry.name, config) {
        // of a matrix, (out, in), the first
        axes.iter_mut().find(|axis| **axis == "d_model").into_iter().for_each(|axis| *axis = "d_embed");
    }
    match entry.name.rsplit_once(".attn.").map_or("", |(_, own)| own) {
        "hook_v" | "hook_z" | "W_V" | "b_V" => {
            axes.iter_mut().filter(|axis| **axis == "d_head").for_each(|axis| *axis = value_axis(config));
        }
        "out.weight" if config.heads().output_cols() != config.d_model => axes[1] = "features",
        _ => {}
    }
    axes
}

/// Whether what goes by a name lies before the product that makes the embedding as wide as the stream, or behind the
/// one that makes what the head reads as wide as the embedding.
fn is_embedding(name: &str, config: &Config) -> bool {
    const BEFORE: &[&str] = &[
        "embed.weight",
        "hook_embed",
        "hook_embed_unscaled",
        "hook_embed_sum",
        "hook_embed_sum_unscaled",
        "hook_embed_dropped",
        "hook_embed_mask",
    ];
    const BEHIND: &[&str] = &["hook_head_scaled", "unembed.weight"];
    let begins = |parts: &[&str]| parts.iter().any(|part| name.starts_with(part));
    BEFORE.contains(&name)
        || begins(&["pos_embed.", "hook_pos_embed", "segment_embed.", "embed_norm."])
        || config.head_transform && (BEHIND.contains(&name) || begins(&["head."]))
}

/// What a name means, in one line; `None` if the builder makes no such name.
pub fn describe(name: &str) -> Option<&'static str> {
    lookup(name).map(|(entry, _)| entry.about)
}

/// The documents' symbol for a name: `Z₁⁽²⁾` for `blocks.1.ln1.hook_out`. Two names of one tensor have one symbol, so
/// the symbol depends on the variant. The tilde of `X̃` is a combining mark: it takes no column.
///
/// ```
/// use limpid_core::config::Config;
/// use limpid_trace::names::symbol;
/// let gpt2 = Config::preset("gpt2").unwrap();
/// assert_eq!(symbol("blocks.1.attn.hook_pattern", &gpt2).unwrap(), "A_w⁽²⁾");
/// assert_eq!(symbol("blocks.0.hook_resid_post", &Config::preset("openai-gpt").unwrap()).unwrap(), "X₁");
/// ```
pub fn symbol(name: &str, config: &Config) -> Option<String> {
    symbol_within(name, config, None)
}

/// The same, without the block's number where it is `home`: in a formula of that block.
fn symbol_within(name: &str, config: &Config, home: Option<usize>) -> Option<String> {
    if let Some(tensor) = name.strip_suffix(".grad") {
        return Some(format!("∂𝓛/∂{}", symbol_within(tensor, config, home)?));
    }
    let (entry, block) = lookup(name)?;
    let (post, i) = (config.norm_place.is_post(), block.unwrap_or(0));
    let replaced = config.norm_place == NormPlace::PostAttention;
    let narrow = config.d_embed.is_some();
    let plain = !config.embedding_norm && config.dropout.embedding == 0.0 && !narrow;
    // X′ and X of a block, as in "The Formulated GPT-2"
    let stream = |letter: &str| format!("{letter}{}", digits(i + 1, SUB));
    Some(match entry.name {
        "hook_embed_sum" if plain => "X̃".into(),
        "embed_norm.hook_out" if config.dropout.embedding == 0.0 && !narrow => "X̃".into(),
        "hook_embed_dropped" if narrow => "drop(X)".into(),
        "blocks.{i}.ln1_post.hook_out" | "blocks.{i}.ln2_post.hook_out" if config.residual_scale == 1.0 => {
            let added = if entry.name.contains("ln1") { "hook_attn_out" } else { "hook_mlp_out" };
            return symbol_within(&Module::block(i).named(added), config, home);
        }
        "blocks.{i}.hook_resid_pre" if i > 0 => {
            return symbol_within(&Module::block(i - 1).named("hook_resid_post"), config, home);
        }
        "blocks.{i}.mlp.hook_post" if config.ffn_gated => {
            return Some(symbol_within(&name.replace("hook_post", "hook_gate"), config, home)?.replace('σ', "⊙σ"));
        }
        "blocks.{i}.hook_resid_mid" | "blocks.{i}.ln1.hook_out" if post => stream("X′"),
        "blocks.{i}.hook_resid_post" | "blocks.{i}.ln2.hook_out" if post => stream("X"),
        // the feed-forward network's output is the stream
        "blocks.{i}.hook_mlp_out" if replaced && config.dropout.ffn == 0.0 => stream("X"),
        "blocks.{i}.hook_mlp_out_dropped" if replaced => stream("X"),
        _ => {
            let number = if block == home { String::new() } else { format!("⁽{}⁾", digits(i + 1, SUPER)) };
            entry.symbol.replace("{}", &number)
        }
    })
}

const SUB: [char; 10] = ['₀', '₁', '₂', '₃', '₄', '₅', '₆', '₇', '₈', '₉'];
const SUPER: [char; 10] = ['⁰', '¹', '²', '³', '⁴', '⁵', '⁶', '⁷', '⁸', '⁹'];

fn digits(n: usize, with: [char; 10]) -> String {
    n.to_string().bytes().map(|digit| with[usize::from(digit - b'0')]).collect()
}

/// A tensor or parameter that no op makes or reads under its name: it is read out of what others hold.
#[derive(Clone, Debug, PartialEq)]
pub enum Derived {
    /// The mean that a norm takes away from what it reads: column 0 of its statistics, (N,2).
    Mean {
        /// Its statistics.
        stats: Region,
        /// What it reads.
        x: Region,
    },
    /// The logarithm of what each row's softmax divides by, (N,H).
    Lse {
        /// Where the attention keeps it.
        lse: Region,
    },
    /// Queries times keys, before scores are made of them.
    Unscaled {
        /// Which op of the list does.
        op: usize,
    },
    /// A tensor times a factor of the configuration, which an op applies while it reads the tensor.
    Scaled {
        /// The tensor's name.
        of: String,
        /// The factor.
        factor: f32,
    },
    /// What makes the queries, the keys or the values: rows of a fused parameter.
    Part {
        /// The parameter's name.
        param: String,
        /// Its rows; of a bias, its elements.
        rows: Range<usize>,
    },
}

/// Everything that is derived in a model, by name. What depends on statistics is there in models built for
/// [`Mode::Inspect`] alone.
pub fn derived(model: &Model) -> Vec<(String, Derived)> {
    let mut all: Vec<(String, Derived)> = scaled(model).collect();
    for (at, op) in model.ops().iter().enumerate() {
        match *op {
            Op::Norm { kind, x, stats, normalized: Some(normalized), .. } if kind != NormKind::Rms => {
                let name = model.name_of(normalized).replace("hook_normalized", "hook_mean");
                all.push((name, Derived::Mean { stats, x }));
            }
            Op::Attend { lse, raw: Some(raw), .. } => {
                let named = |hook: &str| model.name_of(raw).replace("hook_raw_scores", hook);
                all.push((named("hook_unscaled_scores"), Derived::Unscaled { op: at }));
                all.push((named("hook_lse"), Derived::Lse { lse }));
            }
            _ => {}
        }
    }
    for param in &model.params {
        let letter = match (param.module.part, param.role) {
            (Component::Qkv, ParamRole::Weight) => "W",
            (Component::Qkv, ParamRole::Bias) => "b",
            _ => continue,
        };
        let attention = param.module.part(Component::Attention);
        for (part, rows) in ["Q", "K", "V"].into_iter().zip(model.config.heads().parts()) {
            let name = attention.named(&format!("{letter}_{part}"));
            all.push((name, Derived::Part { param: param.name.clone(), rows }));
        }
    }
    all
}

/// What is added to the stream, and what the embedding is made of, where a factor of the configuration stretches it on
/// the way there.
fn scaled(model: &Model) -> impl Iterator<Item = (String, Derived)> {
    let c = &model.config;
    let embedded = ["hook_embed", "hook_pos_embed"];
    let embedded = embedded.map(|name| (name.into(), format!("{name}_unscaled"), c.embedding_scale));
    let added = (0..c.n_layer).flat_map(move |i| {
        let parts = [
            ("hook_attn_out", Component::Attention, Component::FirstPostNorm),
            ("hook_mlp_out", Component::FeedForward, Component::SecondPostNorm),
        ];
        parts.into_iter().flat_map(move |(added, part, norm)| {
            let (block, last) = (Module::block(i), if c.norm_place.is_branch() { norm } else { part });
            let (added, own) = (block.named(added), block.part(last).named("hook_out"));
            let dropped = (format!("{added}_dropped"), format!("{own}_dropped"), c.residual_scale);
            [(added, own, c.residual_scale), dropped]
        })
    });
    let all = embedded.into_iter().chain(added).filter(|(_, of, factor)| *factor != 1.0 && model.tensor(of).is_some());
    all.map(|(name, of, factor)| (name, Derived::Scaled { of, factor: factor as f32 }))
}

/// The names of the tensors of the forward pass in its order, the token ids first. Of those that are derived only what
/// a factor stretches is among them, behind what it stretches.
pub fn activations(model: &Model) -> Vec<String> {
    let mut all = vec!["input".to_string()];
    let scaled: Vec<(String, Derived)> = scaled(model).collect();
    for tensor in &model.tensors {
        all.push(tensor.name.clone());
        let of = |own: &Derived| matches!(own, Derived::Scaled { of, .. } if *of == tensor.name);
        all.extend(scaled.iter().filter(|(_, own)| of(own)).map(|(name, _)| name.clone()));
    }
    all
}

/// The masks of a model's dropouts, and the attention weights that dropout leaves: their names, the op that drops, and
/// whether it is a mask. No backend keeps them: a mask is drawn again from its seed, its site and its place.
pub fn drawn(model: &Model) -> Vec<(String, Op, bool)> {
    let mut all = vec![];
    for op in model.ops() {
        match *op {
            Op::Dropout { y, .. } => {
                // the region may have other names: the residual stream's
                let own = model.tensors.iter().filter(|tensor| tensor.region == y);
                let masks = own.filter_map(|tensor| Some(format!("{}_mask", tensor.name.strip_suffix("_dropped")?)));
                all.extend(masks.map(|name| (name, *op, true)));
            }
            Op::Attend { pattern: Some(pattern), drop: Some(_), .. } => {
                let name = model.name_of(pattern);
                all.extend([(format!("{name}_mask"), *op, true), (format!("{name}_dropped"), *op, false)]);
            }
            _ => {}
        }
    }
    all.retain(|(name, ..)| lookup(name).is_some());
    all
}

/// How the tensor or parameter of that name is derived, if it is.
pub fn derivation(model: &Model, name: &str) -> Option<Derived> {
    derived(model).into_iter().find(|(own, _)| own == name).map(|(_, derived)| derived)
}

/// How a tensor is computed, in symbols: `Z₃ = X̃ + Z₂`. It is read from the op that computes the tensor and its
/// operands. Symbols of the tensor's own block are written without the block's number. `None` for an unknown name,
/// and for a model that was not built with [`Mode::Inspect`]: in other models tensors share memory, so an operand's
/// name is not certain.
pub fn formula(model: &Model, name: &str) -> Option<String> {
    formula_in(model, name, Notation::Limpid)
}

/// The same in another notation: `x + MHA = x + MHA output`. A tensor that it has no word for stands as what computes
/// it, a parameter as limpid's name, without the block's number too.
pub fn formula_in(model: &Model, name: &str, notation: Notation) -> Option<String> {
    let Mode::Inspect { .. } = model.mode else { return None };
    if name == "input" {
        return Some(format!("{} = token ids", Scribe { model, home: None, notation }.label(name)));
    }
    if let Some(tensor) = name.strip_suffix(".grad") {
        if model.tensor(tensor).is_none() {
            derivation(model, tensor)?;
        }
        let left = Scribe { model, home: None, notation }.label(name);
        return Some(format!("{left} = gradient of the weighted sum of losses"));
    }
    let (_, home) = lookup(name)?;
    let scribe = Scribe { model, home, notation };
    Some(format!("{} = {}", scribe.label(name), scribe.computed(name)?))
}

/// Whether an op writes a region.
pub fn makes(op: &Op, region: Region) -> bool {
    let mut copy = *op;
    op.output() == region || copy.operands().into_iter().any(|(access, s)| access == Access::Watched && *s == region)
}

/// Writes the formula of an op, for a reader inside block `home`.
struct Scribe<'a> {
    model: &'a Model,
    home: Option<usize>,
    notation: Notation,
}

impl Scribe<'_> {
    /// The notation's word.
    fn own(&self, name: &str) -> Option<String> {
        called_within(name, &self.model.config, self.notation, self.home)
    }

    /// What it is called: the notation's word, or limpid's name.
    fn label(&self, name: &str) -> String {
        self.own(name).unwrap_or_else(|| within(name, self.home).to_string())
    }

    /// What stands for it in a formula: the notation's word; else what computes it, in words that the notation has.
    fn word(&self, name: &str) -> String {
        self.own(name).or_else(|| self.computed(name)).unwrap_or_else(|| self.label(name))
    }

    /// The right side of a tensor's formula.
    fn computed(&self, name: &str) -> Option<String> {
        match self.model.tensor(name) {
            Some(tensor) => self.right_side(self.model.ops().iter().find(|op| makes(op, tensor.region))?, tensor),
            None => self.derived(name, derivation(self.model, name)?),
        }
    }

    /// Of a tensor of this block.
    fn near(&self, name: &str) -> String {
        factor(&self.word(&Module::block(self.home.unwrap_or(0)).named(name)))
    }

    fn name(&self, region: Region) -> String {
        self.word(&self.model.name_of(region))
    }

    /// As a factor.
    fn times(&self, region: Region) -> String {
        factor(&self.name(region))
    }

    /// A weight matrix as the factor from the right: transposed where its word means it as it is stored, (out, in).
    fn by(&self, weight: Region) -> String {
        let name = self.model.name_of(weight);
        // the token table has a row for each word everywhere
        let turned = name == "embed.weight" || is_stored(&name, &self.model.config, self.notation);
        self.times(weight) + if turned { "ᵀ" } else { "" }
    }

    fn plus(&self, region: Option<Region>) -> String {
        region.map_or(String::new(), |region| format!(" + {}", self.name(region)))
    }

    fn gain(&self, gain: Option<Region>, less_one: bool) -> String {
        gain.map_or(String::new(), |g| {
            if less_one { format!(" (1 + {})", self.name(g)) } else { format!(" {}", self.times(g)) }
        })
    }

    /// Queries times keys.
    fn product(&self) -> String {
        let turned = self.model.config.rotary_dim_of(self.home.unwrap_or(0)) > 0;
        let [q, k] = self.queries_keys(if turned { "rot_" } else { self.normed() });
        format!("{q} {k}ᵀ")
    }

    /// Scores before the mask: the product with its scale and bound.
    fn raw_scores(&self, scoring: &Scoring) -> String {
        let (c, product) = (&self.model.config, self.product());
        let by_layer = c.attention_scale_by_layer.then(|| self.home.unwrap_or(0) + 1);
        let by_layer = by_layer.filter(|i| *i > 1).map_or(String::new(), |i| format!(" / {i}"));
        let scaled = match c.attention_factor {
            Some(factor) => format!("{factor} {product}{by_layer}"),
            None if c.attention_scale => format!("{product} / √{}{by_layer}", c.d_head()),
            None => product + &by_layer,
        };
        let bounded = if scoring.cap > 0.0 { format!("{0} tanh({scaled} / {0})", scoring.cap) } else { scaled };
        if scoring.alibi { format!("{bounded} − slope |t − j|") } else { bounded }
    }

    /// What the names of queries and keys before any rotation begin with.
    fn normed(&self) -> &'static str {
        if self.model.config.qk_norm == QkNorm::None { "" } else { "norm_" }
    }

    fn queries_keys(&self, prefix: &str) -> [String; 2] {
        ["q", "k"].map(|part| self.near(&format!("attn.hook_{prefix}{part}")))
    }

    /// None for parts of parameters, which nothing makes.
    fn derived(&self, name: &str, derived: Derived) -> Option<String> {
        let scores = name.replace("hook_lse", "hook_attn_scores");
        match derived {
            Derived::Mean { x, .. } => Some(format!("mean({})", self.name(x))),
            Derived::Lse { .. } => Some(format!("log Σ exp({})", self.word(&scores))),
            Derived::Unscaled { .. } => Some(self.product()),
            Derived::Scaled { of, factor } => Some(format!("{factor} {}", self::factor(&self.word(&of)))),
            Derived::Part { .. } => None,
        }
    }

    fn right_side(&self, op: &Op, tensor: &Tensor) -> Option<String> {
        let c = &self.model.config;
        let is = |region: Option<Region>| region == Some(tensor.region);
        let part = |tensor: &Tensor| c.heads().parts().iter().position(|cols| *cols == tensor.cols);
        let notations = matches!(self.notation, Notation::Limpid | Notation::S0);
        let wide = self.notation.letter(axes("hook_pos_embed", c).last().unwrap_or(&"d_model"));
        Some(match *op {
            Op::Embed { table, token, .. } if is(token) && notations => format!("X^ohe {}", self.name(table)),
            Op::Embed { table, token, .. } if is(token) => format!("{}[{}]", self.times(table), self.word("input")),
            Op::Embed { position, .. } if is(position) => match c.positions {
                Positions::Learned => format!("{}[t]", factor(&self.word("pos_embed.weight"))),
                Positions::SinusoidalOneBased => format!("sin, cos of t / 10000^(j/{wide}), t and j from 1"),
                _ => format!("sin, cos of t / 10000^(2j/{wide}), t and j from 0"),
            },
            Op::Embed { positions, segments, .. } => {
                let position = positions.map_or(String::new(), |_| format!(" + {}", self.word("hook_pos_embed")));
                let segment = segments.map_or(String::new(), |table| format!(" + {}[s]", self.times(table)));
                format!("{}{position}{segment}", self.word("hook_embed"))
            }
            Op::Norm { kind, x, scale, .. } if is(scale) => match kind {
                NormKind::Layer => format!("√(var({}) + ε)", self.name(x)),
                NormKind::LayerStd => format!("√var({}) + ε", self.name(x)),
                NormKind::Rms => format!("√(mean({}²) + ε)", self.times(x)),
            },
            Op::Norm { kind, x, normalized, scale, .. } if is(normalized) => {
                let s = scale.map_or("s".into(), |s| self.times(s));
                match kind {
                    NormKind::Rms => format!("{} / {s}", self.times(x)),
                    _ => format!("({0} − mean({0})) / {s}", self.name(x)),
                }
            }
            Op::Norm { kind, x, gain, offset, less_one, .. } => {
                let gain = self.gain(gain, less_one);
                format!("{}({}){gain}{}", norm_letters(kind), self.name(x), self.plus(offset))
            }
            Op::Linear { x, w, b, y } if tensor.cols != (0..y.cols) => {
                let (part, fused) = (part(tensor)?, self.model.name_of(w));
                let letter = ["Q", "K", "V"].get(part)?;
                let own = |kind: &str| {
                    let word = self.own(&fused.replace("qkv.weight", &format!("{kind}_{letter}")));
                    word.map(|word| factor(&word))
                };
                match own("W") {
                    Some(w) => {
                        let bias = || own("b").unwrap_or_else(|| format!("b^{letter}"));
                        let bias = if b.is_some() { format!(" + {}", bias()) } else { String::new() };
                        format!("{} {w}{bias}", self.times(x))
                    }
                    // it keeps the three together
                    None => format!("{} of {}", ["queries", "keys", "values"].get(part)?, self.name(y)),
                }
            }
            Op::Linear { x, w, b, .. } => format!("{} {}{}", self.times(x), self.by(w), self.plus(b)),
            Op::QkNorm { kind, x, q_gain, k_gain, less_one, y, .. } => {
                let (f, [q, k]) = (norm_letters(kind), self.queries_keys(""));
                let [q, k] =
                    [(q, q_gain), (k, k_gain)].map(|(x, gain)| format!("{f}({x}){}", self.gain(gain, less_one)));
                if tensor.cols == (0..y.cols) {
                    format!("{q} and {k} in {}", self.name(x))
                } else {
                    [q, k].get(part(tensor)?)?.clone()
                }
            }
            Op::Rotate { x, y, .. } => {
                let [q, k] = self.queries_keys(self.normed());
                if tensor.cols == (0..y.cols) {
                    format!("R(t) on {q} and {k} of {}", self.name(x))
                } else {
                    format!("R(t) {}", [q, k].get(part(tensor)?)?)
                }
            }
            Op::Attend { raw, scoring, .. } if is(raw) => self.raw_scores(&scoring),
            Op::Attend { raw: Some(raw), scores, scoring, .. } if is(scores) => {
                let mask = match self.notation {
                    _ if scoring.mask == Mask::None => "",
                    _ if notations => " + M",
                    _ => " + mask",
                };
                format!("{}{mask}", self.name(raw))
            }
            Op::Attend { scores: Some(raw), pattern, .. } if is(pattern) => format!("softmax({})", self.name(raw)),
            Op::Attend { pattern: Some(pattern), drop, .. } => {
                format!("concat({} {})", factor(&dropped(drop, &self.name(pattern))), self.near("attn.hook_v"))
            }
            Op::Attend { .. } => return None,
            Op::Activate { f, x, .. } => format!("{}({})", f.name(), self.name(x)),
            Op::Add { a, b, scale, .. } => match scale {
                1.0 => format!("{} + {}", self.name(a), self.name(b)),
                scale => format!("{} + {scale} {}", self.name(a), self.times(b)),
            },
            Op::Multiply { a, b, .. } => format!("{} ⊙ {}", self.times(a), self.times(b)),
            Op::Scale { x, factor, cap, .. } => {
                bounded(if factor == 1.0 { self.name(x) } else { format!("{factor} {}", self.times(x)) }, cap)
            }
            Op::Dropout { x, drop, .. } => dropped(Some(drop), &self.name(x)),
            Op::Gather { x, .. } => format!("the wanted rows of {}", self.name(x)),
            Op::Classify { x, w, b, cap, logits, .. } if is(logits) => {
                bounded(format!("{} {}{}", self.times(x), self.by(w), self.plus(b)), cap)
            }
            Op::Classify { probs, .. } if is(probs) => format!("softmax({})", self.word("logits")),
            Op::Classify { .. } => format!("−log {}[target]", factor(&self.word("probs"))),
        })
    }
}

fn bounded(what: String, cap: f32) -> String {
    if cap > 0.0 { format!("{cap} tanh({} / {cap})", factor(&what)) } else { what }
}

fn norm_letters(kind: NormKind) -> &'static str {
    match kind {
        NormKind::Layer => "LN",
        NormKind::LayerStd => "LN_σ+ε",
        NormKind::Rms => "RMS",
    }
}

fn dropped(drop: Option<DropoutSpec>, what: &str) -> String {
    drop.map_or(what.to_string(), |drop| format!("dropout({what}, {})", drop.p))
}

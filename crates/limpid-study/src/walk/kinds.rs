//! How a user's model differs from those of a walk: in kind, setting by setting, with the steps that show it.

use super::{Made, Result, Show, Walk, WalkStep};
use limpid_core::config::{Config, Fields, Setting, Value};

/// A setting of a model, in words: sizes that are as usual are not of another kind, however that is said.
fn kind(config: &Config, setting: &Setting, value: &dyn Value) -> String {
    let heads = config.heads();
    let own = match setting.name {
        "d_head" => (heads.query_cols() != config.d_model).then(|| heads.d_head.to_string()),
        "d_v" => (heads.d_value != heads.d_head).then(|| heads.d_value.to_string()),
        "n_kv_head" => (heads.n_kv_head != heads.n_head).then(|| heads.n_kv_head.to_string()),
        _ => match value.json() {
            serde_json::Value::Null => None,
            value => Some(value.as_str().map_or_else(|| value.to_string(), String::from)),
        },
    };
    own.unwrap_or_else(|| setting.default_text.unwrap_or("none").into())
}

/// Settings that make a model one of another kind, not of another size; and what views of steps that show it name.
pub(super) const KINDS: &[(&str, &[&str])] = &[
    ("positions", &["pos_embed", "position-similarity", "hook_embed_sum"]),
    ("norm_place", &["ln1.hook", "ln2.hook", "hook_attn_sum", "hook_mlp_sum", "hook_resid_mid", "hook_resid_post"]),
    ("parallel", &["hook_resid_mid", "hook_attn_sum", "hook_mlp_sum"]),
    ("final_norm", &["ln_final", "logits"]),
    ("embedding_norm", &["hook_embed_sum", "hook_resid_pre"]),
    ("norm", &["ln1.hook", "ln2.hook", "ln_final"]),
    ("norm_gain", &["ln1.hook_out", "ln2.hook_out", "ln_final"]),
    ("norm_offset", &["ln1.hook_out", "ln2.hook_out", "ln_final"]),
    ("norm_gain_less_one", &["ln1.weight", "ln2.weight", "ln_final.weight"]),
    ("d_embed", &["embed.weight", "hook_embed", "pos_embed", "\"params\""]),
    (
        "d_head",
        &["\"letters\"", "attn.W_Q", "attn.W_K", "attn.hook_q", "attn.hook_k", "fused-is-per-head", "\"split\""],
    ),
    (
        "d_v",
        &[
            "\"letters\"",
            "attn.W_V",
            "attn.hook_v",
            "attn.hook_z",
            "attn.out.weight",
            "fused-is-per-head",
            "value-step",
        ],
    ),
    ("n_kv_head", &["attn.W_K", "attn.W_V", "attn.hook_k", "attn.hook_v", "fused-is-per-head"]),
    ("shared_blocks", &["\"params\""]),
    ("attention_bias", &["attn.hook_q", "attn.hook_k", "attn.hook_v", "fused-is-per-head"]),
    ("ffn_bias", &["mlp.hook_pre"]),
    ("attention_scale", &["hook_raw_scores", "hook_unscaled_scores"]),
    ("attention_factor", &["hook_raw_scores", "hook_attn_scores"]),
    ("attention_scale_by_layer", &["hook_raw_scores", "hook_attn_scores"]),
    ("attention_softcap", &["hook_raw_scores", "hook_attn_scores"]),
    ("qk_norm", &["hook_unscaled_scores", "hook_raw_scores", "fused-is-per-head"]),
    ("window", &["hook_pattern", "hook_attn_scores", "\"masks\"", "\"change\""]),
    ("mask", &["hook_pattern", "hook_attn_scores", "\"masks\"", "\"change\""]),
    ("activation", &["mlp.hook_post"]),
    ("gelu_alpha", &["mlp.hook_post", "\"function\""]),
    ("gelu_beta", &["mlp.hook_post", "\"function\""]),
    ("gelu_gamma", &["mlp.hook_post", "\"function\""]),
    ("leaky_slope", &["mlp.hook_post", "\"function\""]),
    ("ffn_gated", &["mlp.hook_post"]),
    ("n_segment", &["segments", "\"params\""]),
    ("tied_head", &["logits", "unembed", "\"next\"", "\"params\""]),
    ("head_bias", &["logits", "unembed", "\"next\"", "\"params\""]),
    ("head_transform", &["logits", "\"next\"", "\"params\""]),
    ("embedding_scale", &["hook_embed"]),
    ("residual_scale", &["hook_attn_out", "hook_mlp_out", "hook_resid_mid", "hook_resid_post"]),
    ("logits_scale", &["logits"]),
    ("logits_softcap", &["logits"]),
    ("lm_head", &["logits", "probs", "\"next\"", "\"losses\"", "\"generate\"", "grad"]),
];

impl Walk {
    /// How a model differs from the walk's that is most like it, a line each, with the steps that show otherwise for
    /// it.
    pub(super) fn differences(&self, config: &Config) -> Result<Vec<(String, Vec<usize>)>> {
        let made = self.like(config);
        let theirs_config = made.config()?;
        let mut all = vec![];
        for ((setting, own), (_, theirs)) in config.fields().into_iter().zip(theirs_config.fields()) {
            let Some((_, parts)) = KINDS.iter().find(|(name, _)| *name == setting.name) else { continue };
            let [own, theirs] = [(config, own), (&theirs_config, theirs)].map(|(c, value)| kind(c, setting, value));
            if own == theirs {
                continue;
            }
            let line = format!("{}: this model has {own}, \"{}\" {theirs}", setting.name, self.title);
            let about = |step: &WalkStep| {
                let of = |view: &&Show| view.on().is_none_or(|on| on == made.id);
                let views: Vec<&Show> = step.views.iter().filter(of).collect();
                let views = serde_json::to_string(&views).unwrap_or_default();
                parts.iter().any(|part| views.contains(part))
            };
            let steps = self.steps.iter().zip(1..).filter(|(step, _)| about(step)).map(|(_, number)| number);
            all.push((line, steps.collect()));
        }
        Ok(all)
    }

    /// The model of the walk that is most like another: with the fewest choices that differ, sizes aside.
    pub(super) fn like(&self, config: &Config) -> &Made {
        let kinds = |config: &Config| -> Vec<_> {
            let fields = config.fields().into_iter();
            let is_kind = |name: &str| KINDS.iter().any(|(kind, _)| *kind == name);
            fields.filter(|(setting, _)| is_kind(setting.name)).map(|(own, value)| kind(config, own, value)).collect()
        };
        let own = kinds(config);
        let apart = |made: &&Made| match made.config() {
            Ok(theirs) => kinds(&theirs).iter().zip(&own).filter(|(a, b)| a != b).count(),
            Err(_) => usize::MAX,
        };
        // the default model goes first among equals
        std::iter::once(self.default_model()).chain(&self.models).min_by_key(apart).expect("a walk has a model")
    }
}

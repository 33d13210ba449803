//! The transformer itself: embedding, blocks, head. Each choice of the configuration is matched once. What a step is
//! made of is in `parts`.
//!
//! Names are TransformerLens's (docs/names.md), made of a [`Module`] and what the tensor is called there. A tensor may
//! have two: the input of block i + 1 is the output of block i.

mod parts;

use super::{Axes, Component, Mode, Model, Module, ParamRole, Table, Tuning};
use crate::config::{Config, ConfigError, NormPlace, Parallel, Positions, QkNorm};
use crate::ops::{ActiveRows, BLOCK, MemorySpace, Op, Region, Scoring};
use parts::Builder;

pub fn build(
    config: &Config,
    mode: Mode,
    tuning: &Tuning,
    recompute_level: usize,
    gradient_inputs_limit: usize,
) -> Result<Model, ConfigError> {
    let mut m = Builder::new(config, mode, tuning);
    let mut x = m.embed();
    for i in 0..config.n_layer {
        let first = m.ops.len();
        x = m.block(i, x);
        m.blocks.push(first..m.ops.len());
    }
    m.head(x);
    m.finish(recompute_level, gradient_inputs_limit)
}

impl Builder<'_> {
    fn embed(&mut self) -> Region {
        let (c, wide) = (self.c, self.c.d_embed());
        self.axes = if c.d_embed.is_some() { Axes::Embed } else { Axes::Model };
        let axes = self.axes;
        let model = Module::MODEL;
        let table = self.param(model.part(Component::Embed), (c.vocab_size, wide), ParamRole::Embedding);
        let positions = match c.positions {
            Positions::Learned => {
                Some(self.param(model.part(Component::PosEmbed), (c.context_length, wide), ParamRole::Position))
            }
            Positions::Sinusoidal => Some(self.table(wide, Table::Sinusoidal)),
            Positions::SinusoidalOneBased => Some(self.table(wide, Table::SinusoidalOneBased)),
            Positions::Rotary | Positions::Alibi | Positions::None => None,
        };
        let segments = (c.n_segment > 0)
            .then(|| self.param(model.part(Component::SegmentEmbed), (c.n_segment, wide), ParamRole::Embedding));
        // before a factor, behind which they have the plain names (`names::derived`)
        let [token, position, sum] = match c.embedding_scale {
            1.0 => ["hook_embed", "hook_pos_embed", "hook_embed_sum"],
            _ => ["hook_embed_unscaled", "hook_pos_embed_unscaled", "hook_embed_sum_unscaled"],
        };
        let token = self.watched(model, token, wide, axes);
        let position = positions.and_then(|_| self.watched(model, position, wide, axes));
        let mut x = self.act(model, sum, wide, axes);
        self.op(Op::Embed { table, positions, segments, y: x, token, position });
        x = self.scale("hook_embed_sum", x, (c.embedding_scale, 0.0), axes);
        if c.embedding_norm {
            x = self.norm(model.part(Component::EmbedNorm), x);
        }
        x = self.dropout(model, "hook_embed_dropped", x, c.dropout.embedding);
        self.axes = Axes::Model;
        if c.d_embed.is_some() {
            let hook = (model, "hook_embed_projected");
            let project = model.part(Component::EmbedProject);
            x = self.linear(project, hook, x, c.d_model, true, ParamRole::Weight, Axes::Model);
        }
        self.also(Module::block(0), "hook_resid_pre", x);
        x
    }

    fn block(&mut self, i: usize, x: Region) -> Region {
        let block = Module::block(i);
        let place = self.c.norm_place;
        let before = matches!(place, NormPlace::Pre | NormPlace::Both);
        let (branch, sum) = (place.is_branch(), place.is_post());
        // between attention and a feed-forward network beside it there is no stream that anything reads
        let parallel = self.c.parallel != Parallel::No;

        let first = self.norm_where(before, block.part(Component::FirstNorm), x);
        let a = self.attention(i, first);
        let a = self.branch_norm(branch, block.part(Component::FirstPostNorm), "hook_attn_out", a);
        let mid = self.residual(block, if sum || parallel { "hook_attn_sum" } else { "hook_resid_mid" }, x, a);
        let mid = self.norm_where(sum, block.part(Component::FirstNorm), mid);
        if !parallel {
            self.also(block, "hook_resid_mid", mid);
        }

        let second = match self.c.parallel {
            Parallel::No => self.norm_where(before, block.part(Component::SecondNorm), mid),
            Parallel::OneNorm => first,
            Parallel::TwoNorms => self.norm_where(before, block.part(Component::SecondNorm), x),
        };
        let a = self.feed_forward(i, second);
        let a = self.branch_norm(branch, block.part(Component::SecondPostNorm), "hook_mlp_out", a);
        let post = match place {
            NormPlace::PostAttention => a,
            _ => self.residual(block, if sum { "hook_mlp_sum" } else { "hook_resid_post" }, mid, a),
        };
        let post = self.norm_where(place == NormPlace::Post, block.part(Component::SecondNorm), post);
        self.also(block, "hook_resid_post", post);
        if i + 1 < self.c.n_layer {
            self.also(Module::block(i + 1), "hook_resid_pre", post);
        }
        post
    }

    fn attention(&mut self, i: usize, x: Region) -> Region {
        let c = self.c;
        let attention = Module::block(i).part(Component::Attention);
        let heads = c.heads();
        let parts = |m: &mut Builder, prefix: &str, region: Region| {
            let named = ["q", "k", "v"].into_iter().zip(heads.parts());
            for (name, cols) in named.take(if prefix.is_empty() { 3 } else { 2 }) {
                let axes = if name == "v" { Axes::Values } else { Axes::Heads };
                m.name(attention, &format!("hook_{prefix}{name}"), region, cols, axes);
            }
        };
        let wide = heads.cols();
        let (product, hook) = (attention.part(Component::Qkv), (attention, "hook_qkv"));
        let mut qkv = self.linear(product, hook, x, wide, c.attention_bias, ParamRole::Weight, Axes::Features);
        parts(self, "", qkv);
        if c.qk_norm != QkNorm::None {
            qkv = self.qk_norm(i, qkv);
            parts(self, "norm_", qkv);
        }
        if c.rotary_dim_of(i) > 0 {
            let (base, scaling) = c.rotary_angles_of(i);
            let angles = self.table(c.rotary_dim_of(i), Table::Rotary { base, scaling: scaling.into() });
            let y = self.act(attention, "hook_rotated", wide, Axes::Features);
            self.op(Op::Rotate { x: qkv, y, angles, heads });
            parts(self, "rot_", y);
            qkv = y;
        }
        let wide = heads.n_head * self.keys;
        let [raw, scores, pattern] = ["hook_raw_scores", "hook_attn_scores", "hook_pattern"]
            .map(|hook| self.inspected(attention, hook, wide, Axes::Scores));
        let cache = match self.mode {
            Mode::Decode { blocks, .. } => {
                Some(self.place(MemorySpace::Cache, blocks * BLOCK, heads.cache_cols(), ActiveRows::All))
            }
            _ => None,
        };
        let lse = self.place(MemorySpace::Stat, self.rows, heads.n_head, self.active);
        let y = self.act(attention, "hook_z", heads.output_cols(), Axes::Values);
        let scoring = Scoring::new(c, i);
        let drop = self.drop(&attention.named("hook_pattern"), c.dropout.attention);
        self.op(Op::Attend { qkv, cache, y, lse, heads, scoring, drop, raw, scores, pattern });
        self.project(attention.part(Component::AttentionOut), y, c.attention_out_bias(), c.dropout.projection)
    }

    fn feed_forward(&mut self, i: usize, x: Region) -> Region {
        let c = self.c;
        let network = Module::block(i).part(Component::FeedForward);
        let wide = |m: &mut Builder, part: Component, hook: &str| {
            m.linear(network.part(part), (network, hook), x, c.d_ff, c.ffn_bias, ParamRole::Weight, Axes::Ffn)
        };
        let x = if c.ffn_gated {
            let gate = wide(self, Component::FeedForwardGate, "hook_pre");
            let gate = self.activate(network, "hook_gate", gate, Axes::Ffn);
            let b = wide(self, Component::FeedForwardIn, "hook_pre_linear");
            let y = self.act(network, "hook_post", c.d_ff, Axes::Ffn);
            self.op(Op::Multiply { a: gate, b, y });
            y
        } else {
            let pre = wide(self, Component::FeedForwardIn, "hook_pre");
            self.activate(network, "hook_post", pre, Axes::Ffn)
        };
        self.project(network.part(Component::FeedForwardOut), x, c.ffn_bias, c.dropout.ffn)
    }

    fn head(&mut self, mut x: Region) {
        let (c, model) = (self.c, Module::MODEL);
        if let Mode::Decode { outputs, .. } | Mode::Layers { outputs, .. } = self.mode {
            (self.active, self.rows) = (ActiveRows::Outputs, outputs);
            let y = self.act(model, "hook_outputs", c.d_model, Axes::Features);
            self.op(Op::Gather { x, y });
            x = y;
        }
        if c.final_norm {
            x = self.norm(model.part(Component::FinalNorm), x);
        }
        if !c.lm_head {
            return;
        }
        if c.head_transform {
            let (wide, axes) = (c.d_unembed(), if c.d_embed.is_some() { Axes::Embed } else { Axes::Model });
            let head = model.part(Component::Head);
            x = self.linear(
                head.part(Component::HeadDense),
                (head, "hook_pre"),
                x,
                wide,
                true,
                ParamRole::Weight,
                axes,
            );
            x = self.activate(head, "hook_post", x, axes);
            self.axes = axes;
            x = self.norm(head.part(Component::HeadNorm), x);
        }
        x = self.scale("hook_head_scaled", x, (c.logits_scale, 0.0), self.axes);
        // a tied head is the same region
        let unembed = model.part(Component::Unembed);
        let w = if c.tied_head {
            self.params[0].region
        } else {
            self.param(unembed, (c.vocab_size, c.d_unembed()), ParamRole::Weight)
        };
        let b = c.head_bias.then(|| self.param(unembed, (1, c.vocab_size), ParamRole::Bias));
        if let Mode::Decode { .. } | Mode::Layers { .. } = self.mode {
            let bounded = c.logits_softcap > 0.0;
            let y = self.act(model, if bounded { "hook_unbounded" } else { "logits" }, c.vocab_size, Axes::Vocab);
            self.op(Op::Linear { x, w, b, y });
            self.scale("logits", y, (1.0, c.logits_softcap), Axes::Vocab);
        } else {
            let logits = self.inspected(model, "logits", c.vocab_size, Axes::Vocab);
            let probs = self.inspected(model, "probs", c.vocab_size, Axes::Vocab);
            let losses = self.place(MemorySpace::Stat, self.rows, 1, self.active);
            self.name(model, "losses", losses, 0..1, Axes::Position);
            let cap = c.logits_softcap as f32;
            self.op(Op::Classify { x, w, b, cap, losses, logits, probs });
        }
    }
}

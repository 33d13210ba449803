//! The transformer itself: embedding, blocks, head. Each choice of the configuration is matched once.
//!
//! Names are TransformerLens's (docs/names.md). A tensor may have two: the input of block i + 1 is the output of
//! block i.

use super::plan::{Placement, Plan};
use super::{Axes, Mode, Model, Names, Param, ParamRole, Table, Tensor, Tuning, plan, recompute};
use crate::config::{Config, ConfigError, NormPlace, Positions};
use crate::ops::attend::BLOCK;
use crate::ops::element::Element;
use crate::ops::limits::Limits;
use crate::ops::program::Draft;
use crate::ops::{ActiveRows, DropoutSpec, MemorySpace, Op, Program, Region, random};
use std::collections::HashSet;
use std::ops::Range;

pub fn build(
    config: &Config,
    mode: Mode,
    tuning: &Tuning,
    recompute_level: usize,
    placement: Placement,
) -> Result<Model, ConfigError> {
    let mut m = Builder::new(config, mode, tuning);
    let mut x = m.embed();
    for i in 0..config.n_layer {
        let first = m.ops.len();
        x = m.block(i, x);
        m.blocks.push(first..m.ops.len());
    }
    m.head(x);
    m.finish(recompute_level, placement)
}

struct Builder<'a> {
    c: &'a Config,
    mode: Mode,
    tuning: &'a Tuning,
    active: ActiveRows,
    rows: usize,
    /// How many positions a watched row of scores has room for.
    keys: usize,
    ops: Vec<Op>,
    blocks: Vec<Range<usize>>,
    tensors: Vec<Tensor>,
    /// The names that tensors have already.
    named: HashSet<String>,
    params: Vec<Param>,
    tables: Vec<(Region, Table)>,
    used: [usize; MemorySpace::ALL.len()],
}

impl<'a> Builder<'a> {
    fn new(c: &'a Config, mode: Mode, tuning: &'a Tuning) -> Builder<'a> {
        let (rows, keys) = match mode {
            Mode::Train { batch, context }
            | Mode::Score { batch, context }
            | Mode::Inspect { batch, context }
            | Mode::Layers { batch, context, .. } => (batch * context, context),
            Mode::Decode { rows, .. } => (rows, c.context_length),
        };
        let (ops, blocks, tensors, params, tables) = (vec![], vec![], vec![], vec![], vec![]);
        let (active, used, named) = (ActiveRows::Rows, Default::default(), HashSet::new());
        Builder { c, mode, tuning, active, rows, keys, ops, blocks, tensors, named, params, tables, used }
    }

    // ---- the model

    fn embed(&mut self) -> Region {
        let c = self.c;
        let table = self.param("embed.weight", (c.vocab_size, c.d_model), ParamRole::Embedding);
        let positions = match c.positions {
            Positions::Learned => {
                Some(self.param("pos_embed.weight", (c.context_length, c.d_model), ParamRole::Position))
            }
            Positions::Sinusoidal => Some(self.table(c.d_model, Table::Sinusoidal)),
            Positions::SinusoidalOneBased => Some(self.table(c.d_model, Table::SinusoidalOneBased)),
            Positions::Rotary | Positions::None => None,
        };
        let segments = (c.n_segment > 0)
            .then(|| self.param("segment_embed.weight", (c.n_segment, c.d_model), ParamRole::Embedding));
        let token = self.watched("hook_embed", c.d_model, Axes::Model);
        let position = positions.and_then(|_| self.watched("hook_pos_embed", c.d_model, Axes::Model));
        let mut x = self.act("hook_embed_sum", c.d_model, Axes::Model);
        self.op(Op::Embed { table, positions, segments, y: x, token, position });
        if c.embedding_norm {
            x = self.norm("embed_norm", x);
        }
        x = self.dropout("hook_embed_dropped", x, c.dropout.embedding);
        self.also("blocks.0.hook_resid_pre", x);
        x
    }

    fn block(&mut self, i: usize, x: Region) -> Region {
        let n = |part: &str| format!("blocks.{i}.{part}");
        let next = if i + 1 < self.c.n_layer { Some(format!("blocks.{}.hook_resid_pre", i + 1)) } else { None };
        let pre = self.c.norm_place == NormPlace::Pre;

        let a = if pre { self.norm(&n("ln1"), x) } else { x };
        let a = self.attention(i, a);
        let mid = self.residual(&n("hook_resid_mid"), &n("hook_attn_sum"), x, a);
        let mid = if pre { mid } else { self.norm(&n("ln1"), mid) };
        self.also(&n("hook_resid_mid"), mid);

        let a = if pre { self.norm(&n("ln2"), mid) } else { mid };
        let a = self.feed_forward(i, a);
        let post = self.residual(&n("hook_resid_post"), &n("hook_mlp_sum"), mid, a);
        let post = if pre { post } else { self.norm(&n("ln2"), post) };
        self.also(&n("hook_resid_post"), post);
        next.into_iter().for_each(|name| self.also(&name, post));
        post
    }

    fn attention(&mut self, i: usize, x: Region) -> Region {
        let c = self.c;
        let n = |part: &str| format!("blocks.{i}.attn.{part}");
        let heads = c.heads();
        let parts = |m: &mut Builder, prefix: &str, region: Region| {
            let named = ["q", "k", "v"].into_iter().zip(heads.parts());
            for (name, cols) in named.take(if prefix.is_empty() { 3 } else { 2 }) {
                m.name(n(&format!("hook_{prefix}{name}")), region, cols, Axes::Heads);
            }
        };
        let wide = heads.cols();
        let mut qkv =
            self.linear(&n("qkv"), &n("hook_qkv"), x, wide, c.attention_bias, ParamRole::Weight, Axes::Features);
        parts(self, "", qkv);
        if c.positions == Positions::Rotary {
            let angles = match self.tables.first() {
                Some((region, _)) => *region,
                None => self.table(heads.d_head, Table::Rotary { base: c.rotary_base, scaling: c.rotary_scaling }),
            };
            let y = self.act(&n("hook_rotated"), wide, Axes::Features);
            self.op(Op::Rotate { x: qkv, y, angles, heads });
            parts(self, "rot_", y);
            qkv = y;
        }
        let wide = heads.n_head * self.keys;
        let [raw, scores, pattern] =
            ["hook_raw_scores", "hook_attn_scores", "hook_pattern"].map(|name| self.kept(&n(name), wide, Axes::Scores));
        let cache = match self.mode {
            Mode::Decode { blocks, .. } => {
                Some(self.place(MemorySpace::Cache, blocks * BLOCK, 2 * heads.key_cols(), ActiveRows::All))
            }
            _ => None,
        };
        let lse = self.place(MemorySpace::Stat, self.rows, heads.n_head, self.active);
        let y = self.act(&n("hook_z"), heads.query_cols(), Axes::Heads);
        let (mask, scale) = (c.mask, c.score_scale(i) as f32);
        let drop = self.drop(&n("hook_pattern"), c.dropout.attention);
        self.op(Op::Attend { qkv, cache, y, lse, heads, mask, scale, drop, raw, scores, pattern });
        let out = format!("blocks.{i}.hook_attn_out");
        let y = self.linear(&n("out"), &out, y, c.d_model, c.attention_bias, ParamRole::Residual, Axes::Model);
        self.dropout(&format!("{out}_dropped"), y, c.dropout.projection)
    }

    fn feed_forward(&mut self, i: usize, x: Region) -> Region {
        let c = self.c;
        let n = |part: &str| format!("blocks.{i}.mlp.{part}");
        let wide = |m: &mut Builder, name: &str, hook: &str| {
            m.linear(&n(name), &n(hook), x, c.d_ff, c.ffn_bias, ParamRole::Weight, Axes::Ffn)
        };
        let x = if c.ffn_gated {
            let gate = wide(self, "gate", "hook_pre");
            let gate = self.activate(&n("hook_gate"), gate, Axes::Ffn);
            let b = wide(self, "in", "hook_pre_linear");
            let y = self.act(&n("hook_post"), c.d_ff, Axes::Ffn);
            self.op(Op::Multiply { a: gate, b, y });
            y
        } else {
            let pre = wide(self, "in", "hook_pre");
            self.activate(&n("hook_post"), pre, Axes::Ffn)
        };
        let out = format!("blocks.{i}.hook_mlp_out");
        let y = self.linear(&n("out"), &out, x, c.d_model, c.ffn_bias, ParamRole::Residual, Axes::Model);
        self.dropout(&format!("{out}_dropped"), y, c.dropout.ffn)
    }

    fn head(&mut self, mut x: Region) {
        let c = self.c;
        if let Mode::Decode { outputs, .. } | Mode::Layers { outputs, .. } = self.mode {
            (self.active, self.rows) = (ActiveRows::Outputs, outputs);
            let y = self.act("hook_outputs", c.d_model, Axes::Features);
            self.op(Op::Gather { x, y });
            x = y;
        }
        if c.final_norm {
            x = self.norm("ln_final", x);
        }
        if !c.lm_head {
            return;
        }
        if c.head_transform {
            x = self.linear("head.dense", "head.hook_pre", x, c.d_model, true, ParamRole::Weight, Axes::Model);
            x = self.activate("head.hook_post", x, Axes::Model);
            x = self.norm("head.ln", x);
        }
        // a tied head is the same region
        let w = match c.tied_head {
            true => self.params[0].region,
            false => self.param("unembed.weight", (c.vocab_size, c.d_model), ParamRole::Weight),
        };
        let b = c.head_bias.then(|| self.param("unembed.bias", (1, c.vocab_size), ParamRole::Bias));
        if let Mode::Decode { .. } | Mode::Layers { .. } = self.mode {
            let y = self.act("logits", c.vocab_size, Axes::Vocab);
            self.op(Op::Linear { x, w, b, y });
        } else {
            let logits = self.kept("logits", c.vocab_size, Axes::Vocab);
            let probs = self.kept("probs", c.vocab_size, Axes::Vocab);
            let losses = self.place(MemorySpace::Stat, self.rows, 1, self.active);
            self.name("losses".into(), losses, 0..1, Axes::Position);
            self.op(Op::Classify { x, w, b, losses, logits, probs });
        }
    }

    // ---- its parts

    fn norm(&mut self, name: &str, x: Region) -> Region {
        let c = self.c;
        let gain = c.norm_gain.then(|| self.param(&format!("{name}.weight"), (1, x.cols), ParamRole::Gain));
        let offset = c.norm_offset.then(|| self.param(&format!("{name}.bias"), (1, x.cols), ParamRole::Bias));
        let scale = self.watched(&format!("{name}.hook_scale"), 1, Axes::One);
        let normalized = self.watched(&format!("{name}.hook_normalized"), x.cols, Axes::Model);
        let stats = self.place(MemorySpace::Stat, self.rows, 2, self.active);
        let y = self.act(&format!("{name}.hook_out"), x.cols, Axes::Model);
        self.op(Op::Norm { kind: c.norm, eps: c.norm_eps as f32, x, gain, offset, y, stats, normalized, scale });
        y
    }

    #[allow(clippy::too_many_arguments)]
    fn linear(
        &mut self,
        name: &str,
        hook: &str,
        x: Region,
        out: usize,
        bias: bool,
        role: ParamRole,
        axes: Axes,
    ) -> Region {
        let w = self.param(&format!("{name}.weight"), (out, x.cols), role);
        let b = bias.then(|| self.param(&format!("{name}.bias"), (1, out), ParamRole::Bias));
        let Some(lora) = self.tuning.lora.as_ref().filter(|lora| lora.adapts(name)) else {
            let y = self.act(hook, out, axes);
            self.op(Op::Linear { x, w, b, y });
            return y;
        };
        let base = self.act(&format!("{name}.hook_base"), out, axes);
        self.op(Op::Linear { x, w, b, y: base });
        let mut added = self.dropout(&format!("{name}.hook_lora_dropped"), x, lora.dropout);
        for (part, out, role) in [("A", lora.rank, ParamRole::LoraA), ("B", out, ParamRole::LoraB)] {
            let w = self.param(&format!("{name}.lora_{part}.weight"), (out, added.cols), role);
            let y = self.act(&format!("{name}.hook_lora_{part}"), out, Axes::Features);
            self.op(Op::Linear { x: added, w, b: None, y });
            added = y;
        }
        let y = self.act(hook, out, axes);
        self.op(Op::Add { a: base, b: added, scale: lora.scale() as f32, y });
        y
    }

    fn activate(&mut self, name: &str, x: Region, axes: Axes) -> Region {
        let y = self.act(name, x.cols, axes);
        self.op(Op::Activate { f: self.c.activation, slope: self.c.leaky_slope as f32, x, y });
        y
    }

    /// The residual sum. In post-norm models it has a name of its own, because there the stream is the output of the
    /// norm.
    fn residual(&mut self, stream: &str, sum: &str, a: Region, b: Region) -> Region {
        let y = self.act(if self.c.norm_place == NormPlace::Pre { stream } else { sum }, a.cols, Axes::Model);
        self.op(Op::Add { a, b, scale: 1.0, y });
        y
    }

    fn dropout(&mut self, name: &str, x: Region, p: f64) -> Region {
        let Some(drop) = self.drop(name, p) else { return x };
        let y = self.act(name, x.cols, Axes::Model);
        self.op(Op::Dropout { x, y, drop });
        y
    }

    fn drop(&self, name: &str, p: f64) -> Option<DropoutSpec> {
        (p > 0.0).then(|| DropoutSpec { p: p as f32, scale: self.c.dropout.scale, site: random::site(name) })
    }

    // ---- places and names

    fn op(&mut self, op: Op) {
        self.ops.push(op);
    }

    fn place(&mut self, space: MemorySpace, rows: usize, cols: usize, active: ActiveRows) -> Region {
        let used = &mut self.used[space as usize];
        let region = Region { space, at: *used, rows, cols, active };
        *used += region.len().next_multiple_of(plan::ALIGN);
        region
    }

    fn param(&mut self, name: &str, (rows, cols): (usize, usize), role: ParamRole) -> Region {
        let adapter = matches!(role, ParamRole::LoraA | ParamRole::LoraB);
        let frozen = matches!(self.mode, Mode::Train { .. }) && !self.tuning.trains(name, adapter);
        let region =
            self.place(if frozen { MemorySpace::Const } else { MemorySpace::Param }, rows, cols, ActiveRows::All);
        self.params.push(Param { name: name.into(), region, role });
        region
    }

    fn table(&mut self, cols: usize, table: Table) -> Region {
        let region = self.place(MemorySpace::Const, self.c.context_length, cols, ActiveRows::All);
        self.tables.push((region, table));
        region
    }

    fn act(&mut self, name: &str, cols: usize, axes: Axes) -> Region {
        let region = self.place(MemorySpace::Act, self.rows, cols, self.active);
        self.name(name.into(), region, 0..cols, axes);
        region
    }

    /// A tensor that exists only in [`Mode::Inspect`].
    fn kept(&mut self, name: &str, cols: usize, axes: Axes) -> Option<Region> {
        matches!(self.mode, Mode::Inspect { .. }).then(|| self.watched(name, cols, axes))?
    }

    /// A tensor that exists only where somebody looks.
    fn watched(&mut self, name: &str, cols: usize, axes: Axes) -> Option<Region> {
        let (Mode::Inspect { .. } | Mode::Layers { .. }) = self.mode else { return None };
        let region = self.place(MemorySpace::Stat, self.rows, cols, self.active);
        self.name(name.into(), region, 0..cols, axes);
        Some(region)
    }

    fn name(&mut self, name: String, region: Region, cols: Range<usize>, axes: Axes) {
        if self.named.insert(name.clone()) {
            self.tensors.push(Tensor { name, region, cols, axes, grad: None });
        }
    }

    fn also(&mut self, name: &str, region: Region) {
        self.name(name.into(), region, 0..region.cols, Axes::Model);
    }

    fn finish(self, recompute_level: usize, placement: Placement) -> Result<Model, ConfigError> {
        self.tuning.check(&self.params)?;
        let mut plan = Plan {
            mode: self.mode,
            ops: self.ops,
            back: vec![],
            tensors: self.tensors,
            params: self.params,
            tables: self.tables,
            placement,
            keeps: false,
            sizes: self.used,
        };
        let names = Names::new(&plan.params, &plan.tables, &plan.tensors);
        let name = |region: Region| names.of(region);
        let others = |mut op: Op, y: Region| {
            let others: Vec<Region> = op.operands().map(|(_, region)| *region).filter(|region| *region != y).collect();
            others.into_iter().map(name).collect()
        };
        // no two tensors share a region yet, so a region still identifies its tensor
        let labels = plan.ops.iter().map(|op| (name(op.output()), others(*op, op.output()))).collect();
        plan::check(&plan, name)?;
        let several = matches!(plan.mode, Mode::Train { batch, .. } if batch > 1);
        plan.keeps = recompute_level == 0 && several && plan::activations(&plan.ops) <= placement.keep_gradients;
        plan::arrange(&mut plan);
        plan::differentiate(&mut plan);
        if recompute_level > 0 {
            let given = recompute::given_up(&plan.ops, &self.blocks, recompute_level);
            recompute::insert_recompute(&mut plan, given);
        }
        plan::compact(&mut plan, &self.blocks);
        let Plan { mode, ops, back, tensors, params, tables, sizes, .. } = plan;
        let (rows, outputs, context, cache) = match mode {
            Mode::Decode { rows, outputs, blocks } => (rows, outputs, self.c.context_length, Some(blocks)),
            Mode::Layers { batch, context, outputs } => (batch * context, outputs, context, None),
            Mode::Train { context, .. } | Mode::Score { context, .. } | Mode::Inspect { context, .. } => {
                (self.rows, self.rows, context, None)
            }
        };
        let (vocab_size, segments) = (self.c.vocab_size, self.c.n_segment.max(1));
        let limits = Limits { rows, outputs, context, blocks: cache, vocab_size, segments };
        let learning = params.iter().map(|p| p.region).filter(|region| region.learns()).collect();
        let program = Program::new(Draft { ops, back, params: learning, sizes, limits });
        Ok(Model {
            config: self.c.clone(),
            mode,
            tuning: self.tuning.clone(),
            program: program.unwrap_or_else(|error| panic!("the plan of this model is wrong: {error}")),
            tensors,
            params,
            rows,
            placement,
            recompute_level,
            elements: [Element::F32; MemorySpace::ALL.len()],
            blocks: self.blocks,
            labels,
            tables,
        })
    }
}

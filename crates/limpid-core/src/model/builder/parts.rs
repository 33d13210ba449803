//! What the transformer is put together from: norms, products, sums; places in memory, names, and the finished model.

use super::super::order::FeatureOrders;
use super::super::plan::{self, Plan};
use super::super::{
    Axes, Component, Mode, Model, ModelParts, Module, Names, Param, ParamRole, Table, Tensor, Tuning, recompute,
};
use crate::config::{Config, ConfigError, NormPlace, QkNorm};
use crate::numeric::element::Element;
use crate::numeric::random;
use crate::ops;
use crate::ops::limits::Limits;
use crate::ops::program::UncheckedProgram;
use crate::ops::{ActiveRows, DropoutSpec, MemorySpace, Op, Program, Region};
use crate::ops::{BLOCK, qk_widths};
use std::collections::HashSet;
use std::ops::Range;

pub struct Builder<'a> {
    pub c: &'a Config,
    pub mode: Mode,
    tuning: &'a Tuning,
    pub active: ActiveRows,
    pub rows: usize,
    /// How many positions a watched row of scores has room for.
    pub keys: usize,
    /// The axes of what norms and dropout give: those of the stream, or of an embedding with a width of its own.
    pub axes: Axes,
    pub ops: Vec<Op>,
    pub blocks: Vec<Range<usize>>,
    tensors: Vec<Tensor>,
    /// The names that tensors have already.
    named: HashSet<String>,
    pub params: Vec<Param>,
    tables: Vec<(Region, Table)>,
    used: [usize; MemorySpace::ALL.len()],
}

impl<'a> Builder<'a> {
    pub fn new(c: &'a Config, mode: Mode, tuning: &'a Tuning) -> Builder<'a> {
        let [batch, keys] = mode.shape();
        let rows = batch * keys;
        let (ops, blocks, tensors, params, tables) = (vec![], vec![], vec![], vec![], vec![]);
        let (active, used, named) = (ActiveRows::Rows, Default::default(), HashSet::new());
        let axes = Axes::Model;
        Builder { c, mode, tuning, active, rows, keys, axes, ops, blocks, tensors, named, params, tables, used }
    }

    /// A norm, where the configuration puts one.
    pub fn norm_where(&mut self, there: bool, module: Module, x: Region) -> Region {
        if there { self.norm(module, x) } else { x }
    }

    pub fn norm(&mut self, module: Module, x: Region) -> Region {
        let c = self.c;
        let gain = c.norm_gain.then(|| self.param(module, (1, x.cols), ParamRole::Gain));
        let offset = c.norm_offset.then(|| self.param(module, (1, x.cols), ParamRole::Bias));
        let scale = self.watched(module, "hook_scale", 1, Axes::One);
        let normalized = self.watched(module, "hook_normalized", x.cols, self.axes);
        let stats = self.place(MemorySpace::Stat, self.rows, 2, self.active);
        let y = self.act(module, "hook_out", x.cols, self.axes);
        let (kind, eps, less_one) = (c.norm, c.norm_eps as f32, c.norm_gain_less_one);
        self.op(Op::Norm { kind, eps, x, gain, offset, less_one, y, stats, normalized, scale });
        y
    }

    pub fn qk_norm(&mut self, i: usize, x: Region) -> Region {
        let (c, heads) = (self.c, self.c.heads());
        let attention = Module::block(i).part(Component::Attention);
        let together = c.qk_norm == QkNorm::Width;
        let widths = qk_widths(heads, together);
        let gains = c.norm_gain && c.qk_norm != QkNorm::HeadPlain;
        let [q_gain, k_gain] = [(Component::QueryNorm, widths[0]), (Component::KeyNorm, widths[1])]
            .map(|(part, wide)| gains.then(|| self.param(attention.part(part), (1, wide), ParamRole::Gain)));
        let stats = self.place(MemorySpace::Stat, self.rows, 2 * ops::qk_norms(heads, together), self.active);
        let y = self.act(attention, "hook_qk_normed", x.cols, Axes::Features);
        let (kind, eps, less_one) = (c.norm, c.norm_eps as f32, c.norm_gain_less_one);
        self.op(Op::QkNorm { kind, eps, x, q_gain, k_gain, less_one, together, y, stats, heads });
        y
    }

    /// A factor and a bound of the embedding or the logits, where there are such.
    pub fn scale(&mut self, hook: &str, x: Region, (factor, cap): (f64, f64), axes: Axes) -> Region {
        if (factor, cap) == (1.0, 0.0) {
            return x;
        }
        let y = self.act(Module::MODEL, hook, x.cols, axes);
        self.op(Op::Scale { x, y, factor: factor as f32, cap: cap as f32 });
        y
    }

    /// A product, with its adapter if it has one. What it gives is the hook of a module: that of the product's
    /// surroundings.
    #[allow(clippy::too_many_arguments)]
    pub fn linear(
        &mut self,
        module: Module,
        (outer, hook): (Module, &str),
        x: Region,
        out: usize,
        bias: bool,
        role: ParamRole,
        axes: Axes,
    ) -> Region {
        let w = self.param(module, (out, x.cols), role);
        let b = bias.then(|| self.param(module, (1, out), ParamRole::Bias));
        let Some(lora) = self.tuning.lora.as_ref().filter(|lora| lora.adapts(&self.owner(module).name())) else {
            let y = self.act(outer, hook, out, axes);
            self.op(Op::Linear { x, w, b, y });
            return y;
        };
        let base = self.act(module, "hook_base", out, axes);
        self.op(Op::Linear { x, w, b, y: base });
        let mut added = self.dropout(module, "hook_lora_dropped", x, lora.dropout);
        for (hook, out, role) in [("hook_lora_A", lora.rank, ParamRole::LoraA), ("hook_lora_B", out, ParamRole::LoraB)]
        {
            let w = self.param(module, (out, added.cols), role);
            let y = self.act(module, hook, out, Axes::Features);
            self.op(Op::Linear { x: added, w, b: None, y });
            added = y;
        }
        let y = self.act(outer, hook, out, axes);
        self.op(Op::Add { a: base, b: added, scale: lora.scale() as f32, y });
        y
    }

    pub fn activate(&mut self, module: Module, hook: &str, x: Region, axes: Axes) -> Region {
        let y = self.act(module, hook, x.cols, axes);
        self.op(Op::Activate { f: self.c.activation, k: self.c.activation_constants(), x, y });
        y
    }

    /// The product that ends attention or the feed-forward network, and its dropout. What it gives has the name of what
    /// is added to the stream where nothing changes it before.
    pub fn project(&mut self, module: Module, x: Region, bias: bool, dropout: f64) -> Region {
        let (c, block) = (self.c, module.part(Component::Whole));
        let attention = module.part.is_attention();
        let is_added = attention || c.norm_place != NormPlace::PostAttention;
        let changed = c.norm_place.is_branch() || is_added && c.residual_scale != 1.0;
        let (added, dropped) = if attention {
            ("hook_attn_out", "hook_attn_out_dropped")
        } else {
            ("hook_mlp_out", "hook_mlp_out_dropped")
        };
        let inner = module.part(if attention { Component::Attention } else { Component::FeedForward });
        let out = if changed { (inner, "hook_out") } else { (block, added) };
        let y = self.linear(module, out, x, c.d_model, bias, ParamRole::Residual, Axes::Model);
        // draws depend on the site, which has the name of what is added always
        let Some(drop) = self.drop(&block.named(dropped), dropout) else { return y };
        let (module, hook) = if changed { (inner, "hook_out_dropped") } else { (block, dropped) };
        self.drop_out(module, hook, y, drop)
    }

    /// The norm of what a sub-layer gives, where the configuration puts one: what it gives is added to the stream.
    pub fn branch_norm(&mut self, there: bool, module: Module, added: &str, x: Region) -> Region {
        let y = self.norm_where(there, module, x);
        if there && self.c.residual_scale == 1.0 {
            self.also(module.part(Component::Whole), added, y);
        }
        y
    }

    /// The residual sum.
    pub fn residual(&mut self, block: Module, hook: &str, a: Region, b: Region) -> Region {
        let y = self.act(block, hook, a.cols, Axes::Model);
        self.op(Op::Add { a, b, scale: self.c.residual_scale as f32, y });
        y
    }

    pub fn dropout(&mut self, module: Module, hook: &str, x: Region, p: f64) -> Region {
        match self.drop(&module.named(hook), p) {
            Some(drop) => self.drop_out(module, hook, x, drop),
            None => x,
        }
    }

    fn drop_out(&mut self, module: Module, hook: &str, x: Region, drop: DropoutSpec) -> Region {
        let y = self.act(module, hook, x.cols, self.axes);
        self.op(Op::Dropout { x, y, drop });
        y
    }

    pub fn drop(&self, site: &str, p: f64) -> Option<DropoutSpec> {
        (p > 0.0).then(|| DropoutSpec { p: p as f32, scale: self.c.dropout.scale, site: random::site(site) })
    }

    // ---- places and names

    pub fn op(&mut self, op: Op) {
        self.ops.push(op);
    }

    pub fn place(&mut self, space: MemorySpace, rows: usize, cols: usize, active: ActiveRows) -> Region {
        let used = &mut self.used[space as usize];
        let region = Region { space, at: *used, rows, cols, active };
        *used += region.len().next_multiple_of(plan::ALIGN);
        region
    }

    /// The module whose parameters are read in the place of this one's: where blocks share theirs, that of the first
    /// block.
    fn owner(&self, module: Module) -> Module {
        Module { block: module.block.map(|i| if self.c.shared_blocks { 0 } else { i }), ..module }
    }

    /// A new parameter, or the one that another block has made already.
    pub fn param(&mut self, module: Module, (rows, cols): (usize, usize), role: ParamRole) -> Region {
        let module = self.owner(module);
        let made = |own: &&Param| self.c.shared_blocks && (own.module, own.role) == (module, role);
        if let Some(own) = self.params.iter().find(made) {
            return own.region;
        }
        let name = Param::name(module, role);
        let frozen = matches!(self.mode, Mode::Train { .. }) && !self.tuning.trains(&name, role.is_adapter());
        let space = if frozen { MemorySpace::Const } else { MemorySpace::Param };
        let region = self.place(space, rows, cols, ActiveRows::All);
        self.params.push(Param { name, module, role, region, order: None });
        region
    }

    /// A table of positions, as long as a sequence of the model may be; the same one for all that need the same.
    pub fn table(&mut self, cols: usize, table: Table) -> Region {
        if let Some((region, _)) = self.tables.iter().find(|(_, own)| *own == table) {
            return *region;
        }
        let region = self.place(MemorySpace::Table, reach(self.c, self.mode), cols, ActiveRows::All);
        self.tables.push((region, table));
        region
    }

    pub fn act(&mut self, module: Module, hook: &str, cols: usize, axes: Axes) -> Region {
        let region = self.place(MemorySpace::Act, self.rows, cols, self.active);
        self.name(module, hook, region, 0..cols, axes);
        region
    }

    /// A tensor that exists only in [`Mode::Inspect`].
    pub fn inspected(&mut self, module: Module, hook: &str, cols: usize, axes: Axes) -> Option<Region> {
        matches!(self.mode, Mode::Inspect { .. }).then(|| self.watched(module, hook, cols, axes))?
    }

    /// A tensor that exists only where somebody looks.
    pub fn watched(&mut self, module: Module, hook: &str, cols: usize, axes: Axes) -> Option<Region> {
        let (Mode::Inspect { .. } | Mode::Layers { .. }) = self.mode else { return None };
        let region = self.place(MemorySpace::Stat, self.rows, cols, self.active);
        self.name(module, hook, region, 0..cols, axes);
        Some(region)
    }

    pub fn name(&mut self, module: Module, hook: &str, region: Region, cols: Range<usize>, axes: Axes) {
        let name = module.named(hook);
        if self.named.insert(name.clone()) {
            self.tensors.push(Tensor { name, module, region, cols, axes, order: None, grad: None });
        }
    }

    /// Another name of a tensor of the stream.
    pub fn also(&mut self, module: Module, hook: &str, region: Region) {
        self.name(module, hook, region, 0..region.cols, Axes::Model);
    }

    pub fn finish(self, recompute_level: usize, gradient_inputs_limit: usize) -> Result<Model, ConfigError> {
        self.tuning.check(&self.params)?;
        let mut plan = Plan {
            mode: self.mode,
            ops: self.ops,
            back: vec![],
            tensors: self.tensors,
            params: self.params,
            tables: self.tables,
            keeps_gradient_inputs: false,
            sizes: self.used,
        };
        let names = Names::new(&plan.params, &plan.tables, &plan.tensors);
        let name = |region: Region| names.name(region);
        let others = |mut op: Op, y: Region| {
            let others: Vec<Region> = op.operands().map(|(_, region)| *region).filter(|region| *region != y).collect();
            others.into_iter().map(name).collect()
        };
        // no two tensors share a region yet, so a region still identifies its tensor
        let labels = plan.ops.iter().map(|op| (name(op.output()), others(*op, op.output()))).collect();
        let orders = FeatureOrders::new(&plan.ops, self.c.rotary_pairs);
        plan.tensors.iter_mut().for_each(|t| t.order = orders.get(plan::key(t.region), t.cols.start, t.cols.len()));
        plan.params.iter_mut().for_each(|p| p.order = orders.get(plan::key(p.region), 0, p.shape()[0]));
        let several = matches!(plan.mode, Mode::Train { batch, .. } if batch > 1);
        plan.keeps_gradient_inputs =
            recompute_level == 0 && several && plan::activations(&plan.ops) <= gradient_inputs_limit;
        plan::arrange(&mut plan);
        plan::differentiate(&mut plan);
        if recompute_level > 0 {
            let given = recompute::given_up(&plan.ops, &self.blocks, recompute_level);
            recompute::insert_recompute(&mut plan, given);
        }
        plan::compact(&mut plan, &self.blocks);
        let Plan { mode, ops, back, tensors, params, tables, sizes, .. } = plan;
        let (rows, context) = (mode.shape().iter().product(), reach(self.c, mode));
        let (outputs, blocks) = match mode {
            Mode::Decode { outputs, blocks, .. } => (outputs, Some(blocks)),
            Mode::Layers { outputs, .. } => (outputs, None),
            Mode::Train { .. } | Mode::Score { .. } | Mode::Inspect { .. } => (rows, None),
        };
        let (vocab_size, segments) = (self.c.vocab_size, self.c.n_segment.max(1));
        let limits = Limits { rows, outputs, context, blocks, vocab_size, segments };
        let learning = params.iter().map(|p| p.region).filter(|region| region.learns()).collect();
        let program = Program::new(UncheckedProgram { ops, back, params: learning, sizes, limits });
        Ok(Model(ModelParts {
            config: self.c.clone(),
            mode,
            tuning: self.tuning.clone(),
            program: program.unwrap_or_else(|error| panic!("the plan of this model is wrong: {error}")),
            tensors,
            params,
            rows,
            gradient_inputs_limit,
            recompute_level,
            elements: [Element::F32; MemorySpace::ALL.len()],
            blocks: self.blocks,
            labels,
            tables,
        }))
    }
}

/// Positions that a sequence of a model may have.
fn reach(c: &Config, mode: Mode) -> usize {
    match mode {
        Mode::Decode { blocks, .. } => blocks.saturating_mul(BLOCK).min(c.context_length),
        _ => mode.shape()[1],
    }
}

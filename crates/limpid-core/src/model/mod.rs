//! The transformer: which ops, in which order, on which named tensors. It emits ops and runs nothing; a backend runs
//! them and knows no names.
//!
//! `builder` is the hundred lines that *are* the transformer, one `match` per axis of the configuration; `plan`
//! derives the backward pass and lets tensors share memory; `recompute` is activation checkpointing; `init` gives
//! initial values; `tuning` says which parameters learn. Printing a [`Model`] explains it.

mod builder;
pub mod init;
mod memory;
mod module;
mod order;
mod plan;
pub mod recompute;
pub mod tables;
pub mod tuning;

use crate::config::{Config, ConfigError, RotaryScaling};
use crate::numeric::element::Element;
use crate::ops::limits::Limits;
use crate::ops::program::{Flaw, ProgramError, UncheckedProgram};
use crate::ops::{Access, BLOCK, Back, MemorySpace, Op, Ops, Pass, Passes, Program, Region};
use crate::optimizer::{Method, ParamGroup};
pub use memory::MemoryPart;
pub use module::{Component, Module, in_block};
pub use order::FeatureOrder;
pub use plan::{GRADIENT_INPUTS_LIMIT, activations};
use recompute::KeepLevel;
use std::collections::HashMap;
use std::fmt;
use std::ops::{Deref, Range};
pub use tuning::{Lora, Tuning};

/// What a model is built for. The mode decides which tensors are kept, never what is computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Forward and backward of `batch` sequences of at most `context` tokens.
    Train {
        /// sequences
        batch: usize,
        /// tokens of each
        context: usize,
    },
    /// Forward with losses only; activations share memory.
    Score {
        /// sequences
        batch: usize,
        /// tokens of each
        context: usize,
    },
    /// Forward, and backward where there is a loss. Everything is kept, also the intermediate tensors that fused ops
    /// do not need.
    Inspect {
        /// sequences
        batch: usize,
        /// tokens of each
        context: usize,
    },
    /// Forward, of which little is kept: the input of every block, and all tensors of the block that ran last. Scores
    /// of attention and logits of all rows are computed from these where they are wanted, so memory grows with T, not
    /// with T squared.
    Layers {
        /// sequences
        batch: usize,
        /// tokens of each
        context: usize,
        /// rows of logits at once
        outputs: usize,
    },
    /// Forward of rows of several sequences with a KV cache; logits of chosen rows only.
    Decode {
        /// rows at once
        rows: usize,
        /// rows whose logits are wanted
        outputs: usize,
        /// blocks of 64 positions that the KV cache has
        blocks: usize,
    },
}

impl Mode {
    /// The sequences of a batch, and the tokens of each; in decoding every row is one of any sequence.
    fn shape(self) -> [usize; 2] {
        match self {
            Mode::Train { batch, context }
            | Mode::Score { batch, context }
            | Mode::Inspect { batch, context }
            | Mode::Layers { batch, context, .. } => [batch, context],
            Mode::Decode { rows, .. } => [rows, 1],
        }
    }
}

/// The axes of a tensor, with the field's names in the field's order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Axes {
    /// [batch, pos, d_model]
    Model,
    /// [batch, pos, d_embed]: where the embedding has a width of its own
    Embed,
    /// [batch, pos, head, d_head]: of queries and keys
    Heads,
    /// The same of values and of what attention gives, whose heads may have another number of features
    Values,
    /// [batch, head, query_pos, key_pos], stored row by row as (query, head, key)
    Scores,
    /// [batch, pos, d_ff]
    Ffn,
    /// [batch, pos, d_vocab]
    Vocab,
    /// [batch, pos, 1]
    One,
    /// [batch, pos]
    Position,
    /// [batch, pos, features]: where the field has no name for the last axis
    Features,
}

impl Axes {
    /// Their names.
    pub fn names(self) -> &'static [&'static str] {
        match self {
            Axes::Model => &["batch", "pos", "d_model"],
            Axes::Embed => &["batch", "pos", "d_embed"],
            Axes::Heads | Axes::Values => &["batch", "pos", "head", "d_head"],
            Axes::Scores => &["batch", "head", "query_pos", "key_pos"],
            Axes::Ffn => &["batch", "pos", "d_ff"],
            Axes::Vocab => &["batch", "pos", "d_vocab"],
            Axes::One => &["batch", "pos", "1"],
            Axes::Position => &["batch", "pos"],
            Axes::Features => &["batch", "pos", "features"],
        }
    }
}

/// A named activation: some columns of a region.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// TransformerLens's name, or ours where it has none (docs/names.md).
    pub name: String,
    /// Where in the model it is.
    pub module: Module,
    /// Its memory.
    pub region: Region,
    /// Which of the region's columns it is.
    pub cols: Range<usize>,
    /// Its axes.
    pub axes: Axes,
    /// The order in which its features are shown, where that is another.
    pub order: Option<FeatureOrder>,
    /// The region of its gradient, if the plan keeps it.
    pub grad: Option<Region>,
}

/// What a parameter is in its module. It decides the initial value and the weight decay.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ParamRole {
    /// A table of vectors.
    Embedding,
    /// A table of positions.
    Position,
    /// A matrix, (out, in).
    Weight,
    /// A matrix whose product is added to the residual stream.
    Residual,
    /// A norm's gain.
    Gain,
    /// A bias, or a norm's offset.
    Bias,
    /// The first matrix of an adapter, (r, in).
    LoraA,
    /// The second, (out, r).
    LoraB,
}

impl ParamRole {
    /// What the parameter is called in its module.
    fn name(self) -> &'static str {
        match self {
            ParamRole::Bias => "bias",
            ParamRole::LoraA => "lora_A.weight",
            ParamRole::LoraB => "lora_B.weight",
            ParamRole::Embedding | ParamRole::Position | ParamRole::Weight | ParamRole::Residual | ParamRole::Gain => {
                "weight"
            }
        }
    }

    /// Whether it is a part of an adapter, not of the model itself.
    fn is_adapter(self) -> bool {
        matches!(self, ParamRole::LoraA | ParamRole::LoraB)
    }
}

/// A named parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct Param {
    /// Its name in files: `blocks.0.attn.qkv.weight`. It follows from its module and its role.
    pub name: String,
    /// Where in the model it is.
    pub module: Module,
    /// What it is there.
    pub role: ParamRole,
    /// Its memory.
    pub region: Region,
    /// The order in which its rows (of a vector: its elements) are shown and stored in files, where that is another.
    pub order: Option<FeatureOrder>,
}

impl Param {
    /// The name of a parameter.
    fn name(module: Module, role: ParamRole) -> String {
        module.named(role.name())
    }
    /// The shape written to files: vectors have one dimension.
    pub fn shape(&self) -> Vec<usize> {
        if self.is_matrix() { vec![self.region.rows, self.region.cols] } else { vec![self.region.cols] }
    }
    /// Whether it has two dimensions: only these decay (GPT-2's rule).
    pub fn is_matrix(&self) -> bool {
        !matches!(self.role, ParamRole::Gain | ParamRole::Bias)
    }
    /// Whether it is a matrix from features to features, neither a table nor the head: Muon updates these, and LoRA may
    /// adapt them.
    pub fn is_inside(&self) -> bool {
        matches!(self.role, ParamRole::Weight | ParamRole::Residual) && self.module.part != Component::Unembed
    }
    /// Whether it has a row (of a vector: an element) for each token of the vocabulary.
    pub fn is_vocabulary(&self) -> bool {
        matches!(self.module.part, Component::Embed | Component::Unembed)
    }
    /// Whether it is part of an adapter, not of the model itself.
    pub fn is_adapter(&self) -> bool {
        self.role.is_adapter()
    }
    /// The same part of every block: parameters of one kind lie side by side in memory.
    fn kind(&self) -> (Component, ParamRole) {
        (self.module.part, self.role)
    }
    /// Its name with `number` in place of its block's number: `blocks.{i}.ln1.weight`.
    fn pattern(&self, number: &str) -> String {
        module::inside(self.module.pattern(number), self.role.name())
    }
    /// The group under which it is counted in summaries.
    pub fn group(&self) -> &'static str {
        if self.is_adapter() { "adapter" } else { self.module.part.group() }
    }
}

/// All parameters of one kind: the same part of every block, side by side in memory.
#[derive(Clone, Debug, PartialEq)]
pub struct ParamStack {
    /// Its name, with `{i}` for a block's number: `blocks.{i}.ln1.weight`.
    pub name: String,
    /// Blocks, L; none for what is not of a block.
    pub blocks: Option<usize>,
    /// The shape of one, as in files.
    pub shape: Vec<usize>,
    /// Elements of all.
    pub count: usize,
    /// Where the first begins, in elements.
    pub at: usize,
}

/// A constant table, computed once.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Table {
    Sinusoidal,
    SinusoidalOneBased,
    Rotary { base: f64, scaling: Box<RotaryScaling> },
}

/// The regions of a model's parameters, by name, and what its tables of positions say. Models of one configuration have
/// equal maps in every mode, unless some of their parameters are frozen or adapters.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightMap {
    params: Vec<(String, Region)>,
    tables: Vec<(usize, Table)>,
}

impl WeightMap {
    /// The region of the parameter called `name`.
    pub fn region(&self, name: &str) -> Option<Region> {
        self.params.iter().find(|(own, _)| own == name).map(|(_, region)| *region)
    }
    /// The name of the parameter that holds element `at` of a memory space.
    pub fn name_at(&self, space: MemorySpace, at: usize) -> Option<&str> {
        let holds = |region: &Region| region.space == space && region.range().contains(&at);
        self.params.iter().find(|(_, region)| holds(region)).map(|(name, _)| name.as_str())
    }
    /// How `other` differs from this map; the first difference.
    pub fn difference(&self, other: &WeightMap) -> Option<String> {
        if self == other {
            return None; // the rest looks up names one by one
        }
        for (name, region) in &other.params {
            match self.region(name) {
                None => return Some(format!("they have no `{name}`")),
                Some(own) if own.shape() != region.shape() => {
                    return Some(format!("their `{name}` is {:?}, not {:?}", own.shape(), region.shape()));
                }
                Some(_) => {}
            }
        }
        if let Some((name, _)) = self.params.iter().find(|(name, _)| other.region(name).is_none()) {
            return Some(format!("they have a `{name}`, and this model has none"));
        }
        if let Some((name, _)) = other.params.iter().find(|(name, region)| self.region(name) != Some(*region)) {
            return Some(format!("their `{name}` lies elsewhere: one of the models has frozen parameters"));
        }
        (self.tables != other.tables).then(|| "their position tables differ".into())
    }
}

/// The transformer: its list of ops, and the names and regions of its tensors. Its parts belong together, so they can
/// be read and not changed:
///
/// ```
/// # use limpid_core::{config::Config, model::{Mode, Model}};
/// let model = Model::new(&Config::preset("nano")?, Mode::Score { batch: 1, context: 8 })?;
/// assert_eq!(model.param("embed.weight").map(|table| table.region.rows), Some(model.config.vocab_size));
/// # Ok::<(), limpid_core::config::ConfigError>(())
/// ```
///
/// ```compile_fail,E0594
/// # use limpid_core::{config::Config, model::{Mode, Model}};
/// let mut model = Model::new(&Config::preset("nano").unwrap(), Mode::Score { batch: 1, context: 8 }).unwrap();
/// model.config.vocab_size = 0; // another model: build it
/// ```
#[derive(Clone, Debug)]
pub struct Model(ModelParts);

impl Deref for Model {
    type Target = ModelParts;
    fn deref(&self) -> &ModelParts {
        &self.0
    }
}

/// What a [`Model`] is made of.
#[derive(Clone, Debug)]
pub struct ModelParts {
    /// The configuration it was built from.
    pub config: Config,
    /// What it was built for.
    pub mode: Mode,
    /// Which of its parameters learn.
    pub tuning: Tuning,
    /// Its lists of ops, checked ([`Model::ops`], [`Model::back`]).
    pub program: Program,
    /// Named activations, in the order of the forward pass.
    pub tensors: Vec<Tensor>,
    /// Parameters, in the order of their memory: kind by kind, layer within kind.
    pub params: Vec<Param>,
    /// How many rows a batch may have.
    pub rows: usize,
    /// Elements of activations up to which it keeps the inputs of gradients: see [`GRADIENT_INPUTS_LIMIT`].
    pub gradient_inputs_limit: usize,
    /// How much the backward recomputes; 0 is nothing: see [`Model::at_recompute_level`].
    pub recompute_level: usize,
    /// The type of the elements of each memory space, by [`MemorySpace::ALL`].
    pub elements: [Element; MemorySpace::ALL.len()],
    /// The ops of each block, as places in the list.
    pub blocks: Vec<Range<usize>>,
    /// The names of each op's output and other operands, taken before tensors share memory.
    labels: Vec<(String, Vec<String>)>,
    tables: Vec<(Region, Table)>,
}

impl Model {
    /// Builds the list for `config` and `mode`.
    ///
    /// # Errors
    /// If [`Config::check`] fails, or `mode` asks for more positions than the configuration has.
    pub fn new(config: &Config, mode: Mode) -> Result<Model, ConfigError> {
        Model::tuned(config, mode, &Tuning::default())
    }

    /// [`Model::new`] with an adapter, or with frozen parameters. Only [`Mode::Train`] freezes.
    ///
    /// # Errors
    /// As [`Model::new`], or if a name of `tuning` matches nothing, or nothing is left to learn.
    pub fn tuned(config: &Config, mode: Mode, tuning: &Tuning) -> Result<Model, ConfigError> {
        Model::at_recompute_level(config, mode, tuning, 0)
    }

    /// [`Model::tuned`] with activation checkpointing, which trades work for memory. At level 0 the forward keeps
    /// everything for the backward. With each further level, up to [`Model::recompute_levels`], one more block keeps
    /// less and recomputes more ([`KeepLevel`]). Results are the same bits at every level.
    ///
    /// # Errors
    /// As [`Model::tuned`].
    pub fn at_recompute_level(
        config: &Config,
        mode: Mode,
        tuning: &Tuning,
        recompute_level: usize,
    ) -> Result<Model, ConfigError> {
        Model::with_gradient_inputs_limit(config, mode, tuning, recompute_level, GRADIENT_INPUTS_LIMIT)
    }

    /// [`Model::at_recompute_level`] with another limit than [`GRADIENT_INPUTS_LIMIT`]. Results are the same bits.
    ///
    /// # Errors
    /// As [`Model::tuned`].
    pub fn with_gradient_inputs_limit(
        config: &Config,
        mode: Mode,
        tuning: &Tuning,
        recompute_level: usize,
        gradient_inputs_limit: usize,
    ) -> Result<Model, ConfigError> {
        config.check()?;
        if !config.lm_head && !matches!(mode, Mode::Inspect { .. } | Mode::Layers { .. }) {
            return Err(ConfigError::NoHead);
        }
        let [batch, context] = mode.shape();
        if context > config.context_length {
            let found = format!("{context}, and the model's context_length {}", config.context_length);
            return Err(ConfigError::Range { what: "context", found, expected: "it must be no larger" });
        }
        let (sizes, most) = match mode {
            // no row keeps its scores, and the cache has a row a position
            Mode::Decode { rows, outputs, blocks } => {
                let most = rows.max(outputs).max(blocks.saturating_mul(BLOCK));
                (vec![("rows", rows), ("outputs", outputs), ("blocks", blocks)], most)
            }
            _ => (vec![("batch size", batch), ("context", context)], batch),
        };
        if let Some((what, _)) = sizes.iter().find(|(_, size)| *size == 0) {
            return Err(ConfigError::Zero { what });
        }
        config.check_rows([most, context], context)?;
        let recompute_level =
            if matches!(mode, Mode::Train { .. }) { recompute_level.min(Model::recompute_levels(config)) } else { 0 };
        builder::build(config, mode, tuning, recompute_level, gradient_inputs_limit)
    }

    /// The same model, with elements of another type in one memory space. A backend that has no such memory refuses it.
    pub fn with_element(mut self, space: MemorySpace, element: Element) -> Model {
        self.0.elements[space as usize] = element;
        self
    }

    /// The same tensors, with other lists of ops: a changed [`Program::draft`].
    ///
    /// # Errors
    /// If [`Program::new`] refuses it, or it has no room for one of the tensors.
    pub fn with_program(mut self, draft: UncheckedProgram) -> Result<Model, ProgramError> {
        let own = self.params.iter().map(|p| p.region).chain(self.tensors.iter().map(|t| t.region));
        for (index, region) in own.enumerate() {
            let size = draft.sizes[region.space as usize];
            if region.range().end > size {
                let flaw = Flaw::Outside { region, size };
                return Err(ProgramError { op: "tensor", index, list: "model", flaw });
            }
        }
        self.0.program = Program::new(draft)?;
        Ok(self)
    }

    /// The highest level of [`Model::at_recompute_level`]: each block keeps only its output.
    pub fn recompute_levels(config: &Config) -> usize {
        (KeepLevel::ALL.len() - 1) * config.n_layer
    }

    /// The model with the lowest recompute level that fits `budget` bytes. `bytes` says how much memory a model
    /// takes in all.
    ///
    /// # Errors
    /// As [`Model::tuned`], and if no level fits.
    pub fn within(
        config: &Config,
        mode: Mode,
        tuning: &Tuning,
        budget: u64,
        bytes: impl Fn(&Model) -> u64,
    ) -> Result<Model, ConfigError> {
        let mut least = u64::MAX;
        for recompute_level in 0..=Model::recompute_levels(config) {
            let model = Model::at_recompute_level(config, mode, tuning, recompute_level)?;
            let takes = bytes(&model);
            if takes <= budget {
                return Ok(model);
            }
            least = least.min(takes);
        }
        Err(ConfigError::Budget { budget, least })
    }

    /// What each block keeps for the backward, as ranges of neighbouring blocks that keep the same.
    pub fn keep_levels(&self) -> Vec<(Range<usize>, KeepLevel)> {
        let mut keeps: Vec<(Range<usize>, KeepLevel)> = vec![];
        for i in 0..self.config.n_layer {
            let keep = KeepLevel::on(self.recompute_level, i, self.config.n_layer);
            match keeps.last_mut() {
                Some((blocks, last)) if *last == keep => blocks.end += 1,
                _ => keeps.push((i..i + 1, keep)),
            }
        }
        keeps
    }

    /// How many sequences a batch may have.
    pub fn sequences(&self) -> usize {
        if let Mode::Decode { outputs, .. } = self.mode { outputs } else { self.mode.shape()[0] }
    }

    /// What a batch may hold.
    pub fn limits(&self) -> Limits {
        *self.program.limits()
    }

    /// The forward pass, first to last.
    pub fn ops(&self) -> Ops<'_> {
        self.program.forward(..)
    }

    /// The forward pass without the loss op, whose backward computes the losses itself: a training step runs
    /// this and then [`Model::back`].
    pub fn body(&self) -> Ops<'_> {
        let all = self.ops();
        all.part(..all.len() - usize::from(matches!(all.last(), Some(Op::Classify { .. }))))
    }

    /// The backward pass, in the order it runs; empty if the model has none.
    pub fn back(&self) -> Passes<'_> {
        self.program.backward(..)
    }

    /// The regions of its weights, by name.
    pub fn weight_map(&self) -> WeightMap {
        let params = self.params.iter().map(|p| (p.name.clone(), p.region)).collect();
        let tables = self.tables.iter().map(|(region, table)| (region.cols, table.clone())).collect();
        WeightMap { params, tables }
    }

    /// How many parameters it has, padding not counted.
    pub fn parameter_count(&self) -> usize {
        self.params.iter().map(|p| p.region.len()).sum()
    }

    /// Parameters that learn.
    pub fn learning(&self) -> impl Iterator<Item = &Param> {
        self.params.iter().filter(|p| p.region.learns())
    }

    /// The parameters that a run saves to its files: only the adapter's, where there is one.
    pub fn saved_params(&self) -> impl Iterator<Item = &Param> {
        self.params.iter().filter(|p| self.tuning.lora.is_none() || p.is_adapter())
    }

    /// How many parameters each group ([`Param::group`]) has.
    pub fn groups(&self) -> Vec<(&'static str, usize)> {
        let mut groups: Vec<(&'static str, usize)> = vec![];
        for param in &self.params {
            match groups.iter_mut().find(|(name, _)| *name == param.group()) {
                Some((_, n)) => *n += param.region.len(),
                None => groups.push((param.group(), param.region.len())),
            }
        }
        groups
    }

    /// Parameters kind by kind, as they lie in memory: for GPT-2 in llm.c's order. Between two there may be unused
    /// elements.
    pub fn layout(&self) -> Vec<ParamStack> {
        let mut all: Vec<((Component, ParamRole), ParamStack)> = vec![];
        for param in &self.params {
            match all.iter_mut().find(|(kind, _)| *kind == param.kind()) {
                Some((_, stack)) => {
                    stack.count += param.region.len();
                    stack.blocks = stack.blocks.map(|n| n + 1);
                }
                None => {
                    let stack = ParamStack {
                        name: param.pattern("{i}"),
                        blocks: param.module.block.map(|_| 1),
                        shape: param.shape(),
                        count: param.region.len(),
                        at: param.region.at,
                    };
                    all.push((param.kind(), stack));
                }
            }
        }
        all.into_iter().map(|(_, stack)| stack).collect()
    }

    /// The tables of positions and their values, in parts of some rows: a whole one may be as large as all else.
    pub fn tables(&self) -> impl Iterator<Item = (Region, Vec<f32>)> {
        use crate::model::tables;
        const PART: usize = 1 << 16;
        self.tables.iter().flat_map(|(region, table)| {
            let frequencies = match table {
                Table::Rotary { base, scaling } => tables::frequencies(region.cols, *base, scaling),
                _ => vec![],
            };
            let rows = (PART / region.cols).max(1);
            (0..region.rows).step_by(rows).map(move |first| {
                let part =
                    Region { at: region.at + first * region.cols, rows: rows.min(region.rows - first), ..*region };
                let value = |i: usize| {
                    let (t, c) = (first + i / region.cols, i % region.cols);
                    match table {
                        Table::Sinusoidal => tables::sinusoidal(t, c, region.cols),
                        Table::SinusoidalOneBased => tables::sinusoidal_one_based(t, c, region.cols),
                        Table::Rotary { scaling, .. } => scaling.attention * tables::rotary(t, c, &frequencies),
                    }
                };
                (part, (0..part.len()).map(|i| value(i) as f32).collect())
            })
        })
    }

    /// The ranges of learning parameters that an update walks over, each with its weight decay: matrices decay,
    /// vectors (biases, gains, offsets) do not. Neighbours with the same decay are one range. Each matrix that Muon
    /// updates ([`Param::is_inside`]) is a range of its own; queries, keys and values, which are one parameter, are
    /// three.
    pub fn update_groups(&self, decay: f64, method: Method) -> Vec<ParamGroup> {
        let mut groups: Vec<ParamGroup> = vec![];
        for param in self.learning() {
            let (region, decay) = (param.region, if param.is_matrix() { decay } else { 0.0 });
            if method == Method::Muon && param.is_inside() {
                let mut add = |rows: Range<usize>| {
                    let range = region.at + rows.start * region.cols..region.at + rows.end * region.cols;
                    groups.push(ParamGroup { range, decay, matrix: Some((rows.len(), region.cols)) });
                };
                if param.module.part == Component::Qkv {
                    self.config.heads().parts().into_iter().for_each(add);
                } else {
                    add(0..region.rows);
                }
                continue;
            }
            match groups.last_mut() {
                Some(last) if last.decay == decay && last.matrix.is_none() => last.range.end = region.range().end,
                _ => groups.push(ParamGroup { range: region.range(), decay, matrix: None }),
            }
        }
        groups
    }

    /// The layers ([`Module::layer`]) that have parameters, in the order of the forward pass.
    pub fn layers(&self) -> Vec<Module> {
        let mut layers: Vec<Module> = vec![];
        for mut op in self.ops().iter().copied() {
            for (_, region) in op.operands().filter(|(access, _)| *access == Access::Own) {
                let layer = self.params.iter().find(|p| p.region == *region).map(|p| p.module.layer());
                layers.extend(layer.filter(|layer| !layers.contains(layer)));
            }
        }
        layers
    }

    /// The activation called `name`.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.iter().find(|t| t.name == name)
    }

    /// The parameter called `name`.
    pub fn param(&self, name: &str) -> Option<&Param> {
        self.params.iter().find(|p| p.name == name)
    }

    /// The matrices A and B of the adapter beside a weight, if it has one.
    pub fn adapter(&self, weight: &Param) -> Option<[&Param; 2]> {
        let beside = |role| self.params.iter().find(|p| (p.module, p.role) == (weight.module, role));
        if weight.is_inside() { Some([beside(ParamRole::LoraA)?, beside(ParamRole::LoraB)?]) } else { None }
    }

    /// Per-row losses.
    pub fn losses(&self) -> Option<Region> {
        self.ops().iter().find_map(|op| if let Op::Classify { losses, .. } = op { Some(*losses) } else { None })
    }

    /// The logits of the wanted rows (decoding, or block by block) or of all (inspection).
    pub fn logits(&self) -> Option<Region> {
        self.tensor("logits").map(|t| t.region)
    }

    /// Floating-point operations of the forward for `rows` rows that each attend to `keys` keys (matrix products only).
    pub fn flops(&self, rows: usize, keys: usize) -> f64 {
        self.ops().iter().map(|op| op.flops(rows, keys)).sum()
    }

    /// Floating-point operations of what the backward recomputes, counted as [`Model::flops`].
    pub fn recompute_flops(&self, rows: usize, keys: usize) -> f64 {
        let again = |pass: &Pass| if let Pass::Recompute(op) = pass { op.flops(rows, keys) } else { 0.0 };
        self.back().iter().map(again).sum()
    }

    /// Floating-point operations of a training step, without recomputation: the forward, and the products of the
    /// backward for the gradients of activations and of parameters.
    pub fn training_flops(&self, rows: usize, keys: usize) -> f64 {
        let times = |back: &Back| match back.op {
            Op::Attend { .. } => 2.0,
            op => f64::from(u8::from(back.dx[0].is_some()) + u8::from(op.learns())),
        };
        let backs = self.back().iter().filter_map(Pass::back);
        self.flops(rows, keys) + backs.map(|back| times(back) * back.op.flops(rows, keys)).sum::<f64>()
    }

    /// The type of the elements of a memory space.
    pub fn element(&self, space: MemorySpace) -> Element {
        self.elements[space as usize]
    }

    /// The bytes of a memory space.
    pub fn bytes(&self, space: MemorySpace) -> usize {
        self.element(space).bytes(self.program.size(space))
    }

    /// The bytes that a run needs, by kind; gradients only where there is a backward. Training needs more
    /// (`Recipe::memory` of limpid-train).
    pub fn memory(&self) -> Vec<(MemoryPart, usize)> {
        let size = |space: MemorySpace| self.bytes(space);
        let learning = size(MemorySpace::Param);
        vec![
            (MemoryPart::Parameters, learning + size(MemorySpace::Const)),
            (MemoryPart::Gradients, if self.back().is_empty() { 0 } else { learning }),
            (MemoryPart::Activations, size(MemorySpace::Act)),
            (MemoryPart::ActivationGradients, size(MemorySpace::ActGrad)),
            (MemoryPart::Statistics, size(MemorySpace::Stat)),
            (MemoryPart::Cache, size(MemorySpace::Cache)),
            (MemoryPart::Tables, size(MemorySpace::Table)),
        ]
    }

    /// The name of the output of op `i`, in every mode.
    pub fn output_name(&self, i: usize) -> &str {
        &self.labels[i].0
    }

    /// The name of the tensor in `region`, for a model whose tensors share no memory ([`Mode::Inspect`]).
    pub fn name_of(&self, region: Region) -> String {
        Names::new(&self.params, &self.tables, &self.tensors).name(region)
    }
}

/// The names of the tensors at all places, while no two share one.
struct Names<'a>(HashMap<plan::Key, &'a str>);

impl<'a> Names<'a> {
    /// A place with several names has that of a parameter, of a table, of the last tensor that is all of it, of the
    /// first that is a part.
    fn new(params: &'a [Param], tables: &[(Region, Table)], tensors: &'a [Tensor]) -> Names<'a> {
        let is_whole = |t: &&Tensor| t.cols == (0..t.region.cols);
        let named = |t: &'a Tensor| (plan::key(t.region), t.name.as_str());
        let parts = tensors.iter().rev().filter(|t| !is_whole(t)).map(named);
        let wholes = tensors.iter().filter(is_whole).map(named);
        let table = |table: &Table| if matches!(table, Table::Rotary { .. }) { "angles" } else { "sinusoids" };
        let tables = tables.iter().rev().map(|(region, kind)| (plan::key(*region), table(kind)));
        let params = params.iter().rev().map(|p| (plan::key(p.region), p.name.as_str()));
        Names(parts.chain(wholes).chain(tables).chain(params).collect()) // a later one replaces an earlier one
    }

    fn name(&self, region: Region) -> String {
        let unnamed = || format!("{:?}@{}", region.space, region.at).to_lowercase();
        self.0.get(&plan::key(region)).map_or_else(unnamed, |name| name.to_string())
    }
}

/// The model as a listing: one line per op, with its output and its operands by name.
impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (op, (name, operands)) in self.ops().iter().zip(&self.labels) {
            let y = op.output();
            writeln!(f, "{:<9} {:<34} ({}, {})  <- {}", op.name(), name, y.rows, y.cols, operands.join(" "))?;
        }
        Ok(())
    }
}

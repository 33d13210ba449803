//! Activation checkpointing: the forward does not keep all activations, and the backward recomputes those that it
//! needs (Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost").
//!
//! A [`KeepLevel`] says what one block keeps. The recompute level of a model counts how many such levels its blocks
//! have gone down in all: with each further one, one more block, beginning with the first, keeps one level less.
//! (The last block comes first in the backward: what it recomputes is alive beside everything that the others keep,
//! so keeping less there saves next to nothing.) `insert_recompute` is a pure pass over the list like those in
//! `plan`: before the backward of an op it inserts the ops whose outputs it needs, and no others. They are the same
//! ops on the same operands, and dropout is a function of its place, so the bits are the same.

use super::plan::{Plan, key, saved};
use crate::ops::{Access, Op, Pass, Region};
use std::collections::HashSet;
use std::ops::Range;

/// What a block keeps of its forward for its backward, from most to least.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum KeepLevel {
    /// Everything.
    All,
    /// The outputs of products and of attention; norms, activations and gates are recomputed.
    Products,
    /// As `Products`, without the outputs of the feed-forward's products.
    Attention,
    /// The outputs of the attention heads and of the block; all products are recomputed.
    Heads,
    /// The output of the block only: its residual stream.
    Stream,
}

impl KeepLevel {
    /// All levels, from most to least.
    pub const ALL: [KeepLevel; 5] =
        [KeepLevel::All, KeepLevel::Products, KeepLevel::Attention, KeepLevel::Heads, KeepLevel::Stream];

    /// What is recomputed, in words.
    pub fn recomputes(self) -> &'static str {
        match self {
            KeepLevel::All => "nothing",
            KeepLevel::Products => "norms and activations",
            KeepLevel::Attention => "norms and the feed-forward",
            KeepLevel::Heads => "all but attention's heads",
            KeepLevel::Stream => "everything",
        }
    }

    /// What block `i` of `n` keeps at a recompute level.
    pub fn on(recompute_level: usize, i: usize, n: usize) -> KeepLevel {
        KeepLevel::ALL[((recompute_level + n - 1 - i) / n).min(KeepLevel::ALL.len() - 1)]
    }
}

/// The first level at which a block recomputes its op `i`; `None` for what it ends in before any norm, its last sum as
/// a rule, which is always kept.
fn level(block: &[Op], i: usize) -> Option<KeepLevel> {
    let heads = block.iter().position(|op| matches!(op, Op::Attend { .. }));
    let last = block.iter().rposition(|op| !matches!(op, Op::Norm { .. }));
    let inside = |x: Region| block.iter().any(|op| op.output() == x);
    match block[i] {
        _ if Some(i) == last => None,
        Op::Norm { .. } | Op::Activate { .. } | Op::Multiply { .. } => Some(KeepLevel::Products),
        Op::Attend { .. } => Some(KeepLevel::Stream),
        // the stream between attention and feed-forward; other sums belong to adapters
        Op::Add { a, .. } if !inside(a) => Some(KeepLevel::Heads),
        _ if Some(i) > heads => Some(KeepLevel::Attention),
        _ => Some(KeepLevel::Heads),
    }
}

/// Whether the output of each op is given up, and so recomputed, at `recompute_level`.
pub fn given_up(ops: &[Op], blocks: &[Range<usize>], recompute_level: usize) -> Vec<bool> {
    let mut given = vec![false; ops.len()];
    for (b, block) in blocks.iter().enumerate() {
        let keep = KeepLevel::on(recompute_level, b, blocks.len());
        for i in 0..block.len() {
            given[block.start + i] = level(&ops[block.clone()], i).is_some_and(|level| keep >= level);
        }
    }
    given
}

/// Inserts before the backward of each op those of the ops that are `given` up whose outputs it needs. A recomputed
/// tensor has a region of its own, so that the memory of the first one is free in between.
pub(super) fn insert_recompute(plan: &mut Plan, mut given: Vec<bool>) {
    let makers: Vec<Vec<Region>> = plan.ops.iter().map(|op| operands(*op, true)).collect();
    let maker = |region: &Region| makers.iter().position(|made| made.contains(region));
    let room = plan.sizes;
    let again = |region: &mut Region| region.at += room[region.space as usize];
    let (mut made, mut passes) = (HashSet::new(), vec![]);
    for pass in std::mem::take(&mut plan.back) {
        let Pass::Back(mut back) = pass else { unreachable!("nothing was made again yet") };
        // what is needed, and what is needed to recompute it
        let mut regions: Vec<Region> = saved(&mut back).map(|region| *region).collect();
        let mut wanted = vec![];
        while let Some(region) = regions.pop() {
            if let Some(i) = maker(&region).filter(|i| given[*i]) {
                given[i] = false;
                wanted.push(i);
                regions.extend(operands(plan.ops[i], false));
            }
        }
        wanted.sort_unstable();
        for i in wanted {
            made.extend(makers[i].iter().map(|region| key(*region)));
            let mut op = plan.ops[i];
            op.operands().map(|(_, region)| region).filter(|region| made.contains(&key(**region))).for_each(again);
            passes.push(Pass::Recompute(op));
        }
        back.op.operands().map(|(_, region)| region).filter(|region| made.contains(&key(**region))).for_each(again);
        passes.push(Pass::Back(back));
    }
    plan.back = passes;
}

/// The tensors that an op writes, or the tensors of other ops that it reads.
fn operands(mut op: Op, written: bool) -> Vec<Region> {
    let of = |access| match access {
        Access::Write { .. } => written,
        Access::Read { .. } => !written,
        Access::Own | Access::Watched => false,
    };
    op.operands().filter(|(access, _)| of(*access)).map(|(_, region)| *region).collect()
}

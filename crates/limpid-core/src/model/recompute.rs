//! What the backward makes again instead of finding it kept (activation recomputation; Chen et al. 2016, "Training Deep
//! Nets with Sublinear Memory Cost").
//!
//! A [`KeepLevel`] says what a block keeps. A ladder goes from everything kept to the least, recompute_level by recompute_level: on each next one, one
//! block more, from the first, keeps a level less. (The last block is met first in the backward: what it makes again lies
//! beside all that is kept, so giving up there saves next to nothing.) `insert_recompute` is a pure pass over the list like those in `plan`: before the backward
//! of an op it puts the ops whose outputs it needs, and no others. They are the same ops on the same operands, and dropout is
//! a function of its place, so the bits are the same.

use super::plan::{Plan, key, saved};
use crate::ops::{Access, Op, Pass, Region};
use std::collections::HashSet;
use std::ops::Range;

/// What a block keeps of its forward for its backward, from most to least.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum KeepLevel {
    /// Everything.
    All,
    /// What products and attention make; norms, activations and gates are made again.
    Products,
    /// Not what the feed-forward's products make either.
    Attention,
    /// What heads give and the stream that leaves the block; all products are made again.
    Heads,
    /// The stream that leaves the block.
    Stream,
}

impl KeepLevel {
    /// All levels, from most to least.
    pub const ALL: [KeepLevel; 5] =
        [KeepLevel::All, KeepLevel::Products, KeepLevel::Attention, KeepLevel::Heads, KeepLevel::Stream];

    /// What is made again.
    pub fn recomputes(self) -> &'static str {
        match self {
            KeepLevel::All => "nothing",
            KeepLevel::Products => "norms and activations",
            KeepLevel::Attention => "norms and the feed-forward",
            KeepLevel::Heads => "all but attention's heads",
            KeepLevel::Stream => "everything",
        }
    }

    /// What block `i` of `n` keeps on a recompute_level of the ladder.
    pub fn on(recompute_level: usize, i: usize, n: usize) -> KeepLevel {
        KeepLevel::ALL[((recompute_level + n - 1 - i) / n).min(KeepLevel::ALL.len() - 1)]
    }
}

/// The most that a block may keep for its op `i` to be made again; the block's last sum never is.
fn level(block: &[Op], i: usize) -> Option<KeepLevel> {
    let heads = block.iter().position(|op| matches!(op, Op::Attend { .. }));
    let last = block.iter().rposition(|op| matches!(op, Op::Add { .. }));
    let inside = |x: Region| block.iter().any(|op| op.output() == x);
    match block[i] {
        Op::Norm { .. } | Op::Activate { .. } | Op::Multiply { .. } => Some(KeepLevel::Products),
        Op::Attend { .. } => Some(KeepLevel::Stream),
        Op::Add { .. } if Some(i) == last => None,
        // the stream between the halves; other sums are adapters'
        Op::Add { a, .. } if !inside(a) => Some(KeepLevel::Heads),
        _ if Some(i) > heads => Some(KeepLevel::Attention),
        _ => Some(KeepLevel::Heads),
    }
}

/// Which ops are given up on `recompute_level`.
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

/// Puts before the backward of each op those of the `given` up ops whose outputs it needs. What is made again has a place
/// of its own, for a second life.
pub(super) fn insert_recompute(plan: &mut Plan, mut given: Vec<bool>) {
    let makers: Vec<Vec<Region>> = plan.ops.iter().map(|op| operands(*op, true)).collect();
    let maker = |region: &Region| makers.iter().position(|made| made.contains(region));
    let room = plan.sizes;
    let again = |region: &mut Region| region.at += room[region.space as usize];
    let (mut made, mut passes) = (HashSet::new(), vec![]);
    for pass in std::mem::take(&mut plan.back) {
        let Pass::Back(mut back) = pass else { unreachable!("nothing was made again yet") };
        // what is needed, and what that needs
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

/// What an op writes, or what it reads of what other ops write.
fn operands(mut op: Op, written: bool) -> Vec<Region> {
    let of = |access| match access {
        Access::Write { .. } => written,
        Access::Read { .. } => !written,
        Access::Own | Access::Watched => false,
    };
    op.operands().filter(|(access, _)| of(*access)).map(|(_, region)| *region).collect()
}

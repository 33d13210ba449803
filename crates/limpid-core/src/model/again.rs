//! What the backward makes again instead of finding it kept (activation recomputation; Chen et al. 2016, "Training Deep
//! Nets with Sublinear Memory Cost").
//!
//! A [`Keep`] says what a block keeps. A ladder goes from everything kept to the least, rung by rung: on each next one, one
//! block more, from the first, keeps a level less. (The last block is met first in the backward: what it makes again lies
//! beside all that is kept, so giving up there saves next to nothing.) `make_again` is a pure pass over the list like those in `plan`: before the backward
//! of an op it puts the ops whose outputs it needs, and no others. They are the same ops on the same operands, and dropout is
//! a function of its place, so the bits are the same.

use super::plan::{Plan, key, saved};
use crate::ops::{Access, Op, Pass, Slot};
use std::collections::HashSet;
use std::ops::Range;

/// What a block keeps of its forward for its backward, from most to least.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Keep {
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

impl Keep {
    /// All levels, from most to least.
    pub const ALL: [Keep; 5] = [Keep::All, Keep::Products, Keep::Attention, Keep::Heads, Keep::Stream];

    /// What is made again.
    pub fn made_again(self) -> &'static str {
        match self {
            Keep::All => "nothing",
            Keep::Products => "norms and activations",
            Keep::Attention => "norms and the feed-forward",
            Keep::Heads => "all but attention's heads",
            Keep::Stream => "everything",
        }
    }

    /// What block `i` of `n` keeps on a rung of the ladder.
    pub fn on(rung: usize, i: usize, n: usize) -> Keep {
        Keep::ALL[((rung + n - 1 - i) / n).min(Keep::ALL.len() - 1)]
    }
}

/// The most that a block may keep for its op `i` to be made again; the block's last sum never is.
fn level(block: &[Op], i: usize) -> Option<Keep> {
    let heads = block.iter().position(|op| matches!(op, Op::Attend { .. }));
    let last = block.iter().rposition(|op| matches!(op, Op::Add { .. }));
    let inside = |x: Slot| block.iter().any(|op| op.output() == x);
    match block[i] {
        Op::Norm { .. } | Op::Activate { .. } | Op::Multiply { .. } => Some(Keep::Products),
        Op::Attend { .. } => Some(Keep::Stream),
        Op::Add { .. } if Some(i) == last => None,
        // the stream between the halves; other sums are adapters'
        Op::Add { a, .. } if !inside(a) => Some(Keep::Heads),
        _ if Some(i) > heads => Some(Keep::Attention),
        _ => Some(Keep::Heads),
    }
}

/// Which ops are given up on `rung`.
pub fn given_up(ops: &[Op], blocks: &[Range<usize>], rung: usize) -> Vec<bool> {
    let mut given = vec![false; ops.len()];
    for (b, block) in blocks.iter().enumerate() {
        let keep = Keep::on(rung, b, blocks.len());
        for i in 0..block.len() {
            given[block.start + i] = level(&ops[block.clone()], i).is_some_and(|level| keep >= level);
        }
    }
    given
}

/// Puts before the backward of each op those of the `given` up ops whose outputs it needs. What is made again has a place
/// of its own, for a second life.
pub(super) fn make_again(plan: &mut Plan, mut given: Vec<bool>) {
    let makers: Vec<Vec<Slot>> = plan.ops.iter().map(|op| operands(*op, true)).collect();
    let maker = |slot: &Slot| makers.iter().position(|made| made.contains(slot));
    let room = plan.sizes;
    let again = |slot: &mut Slot| slot.at += room[slot.space as usize];
    let (mut made, mut passes) = (HashSet::new(), vec![]);
    for pass in std::mem::take(&mut plan.back) {
        let Pass::Back(mut back) = pass else { unreachable!("nothing was made again yet") };
        // what is needed, and what that needs
        let mut slots: Vec<Slot> = saved(&mut back).map(|slot| *slot).collect();
        let mut wanted = vec![];
        while let Some(slot) = slots.pop() {
            if let Some(i) = maker(&slot).filter(|i| given[*i]) {
                given[i] = false;
                wanted.push(i);
                slots.extend(operands(plan.ops[i], false));
            }
        }
        wanted.sort_unstable();
        for i in wanted {
            made.extend(makers[i].iter().map(|slot| key(*slot)));
            let mut op = plan.ops[i];
            op.operands().map(|(_, slot)| slot).filter(|slot| made.contains(&key(**slot))).for_each(again);
            passes.push(Pass::Again(op));
        }
        back.op.operands().map(|(_, slot)| slot).filter(|slot| made.contains(&key(**slot))).for_each(again);
        passes.push(Pass::Back(back));
    }
    plan.back = passes;
}

/// What an op writes, or what it reads of what other ops write.
fn operands(mut op: Op, written: bool) -> Vec<Slot> {
    let of = |access| match access {
        Access::Write { .. } => written,
        Access::Read { .. } => !written,
        Access::Own | Access::Watched => false,
    };
    op.operands().filter(|(access, _)| of(*access)).map(|(_, slot)| *slot).collect()
}

//! The order in which a product sums over k, and what its sums start from: a promise about bits that all loops of this
//! folder keep.

use std::ops::Range;

/// How many steps of k one chain has where sums are of blocks.
pub const CHAIN: usize = 64;

/// In which order a product sums over k, ascending always.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sums {
    /// c = (c + chain) + chain ..., each chain of multiply-adds over `CHAIN` neighbours of k begun at zero. An error
    /// grows with the square root of 64 and k / 64 rather than of k: as in PyTorch, or better
    /// (docs/decisions.md#every-sum-has-one-order).
    Blocks,
    /// One chain of multiply-adds begun at c, for products whose k is cut at places that must not matter: rows of a
    /// batch, keys.
    Chain,
}

impl Sums {
    /// Elements of a panel in which each chain is, where an element has so many steps of k.
    pub(super) fn block(self, step: usize) -> usize {
        if self == Sums::Blocks { CHAIN / step } else { usize::MAX }
    }
}

/// What the sums of a product start from.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Start<'a> {
    /// Zero: c is overwritten.
    Zero,
    /// Zero, for a c so large that it should not go through the caches: stores bypass them if k is one block.
    Past,
    /// The values of c: c is added to.
    Own,
    /// This row, for every row of c: a bias.
    Row(&'a [f32]),
}

impl From<bool> for Start<'_> {
    /// Whether c is added to.
    fn from(add: bool) -> Self {
        if add { Start::Own } else { Start::Zero }
    }
}

impl Start<'_> {
    /// For some of the columns.
    pub fn cols(self, range: Range<usize>) -> Self {
        if let Start::Row(row) = self { Start::Row(&row[range]) } else { self }
    }
}

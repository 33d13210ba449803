//! The order in which files, names and tables have the features of queries and keys.
//!
//! `ops::rotate` turns neighbours, so in memory the partners of a pair lie side by side, whichever features turn
//! together in the program that a model comes from (`Config::rotary_pairs`). A [`FeatureOrder`] leads from one order to
//! the other. Which tensors and parameters have one is read from the list of ops: what a rotation turns, and what that
//! is made of.

use super::plan::{Key, key};
use crate::config::RotaryPairs;
use crate::ops::Op;
use std::collections::HashMap;

/// Where features of queries and keys are shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FeatureOrder {
    /// Which features turn together where they are shown.
    pub pairs: RotaryPairs,
    /// D
    pub d_head: usize,
    /// How many features of each head turn, the first ones.
    pub turned: usize,
    /// How many features are queries or keys, the first ones; values behind them stay in their places.
    pub features: usize,
}

impl FeatureOrder {
    /// Where feature `i` of memory is shown.
    pub fn shown(&self, i: usize) -> usize {
        let (half, odd) = (self.turned / 2, usize::from(self.pairs == RotaryPairs::HalvesBack));
        self.within_head(i, |feature| feature / 2 + (feature + odd) % 2 * half)
    }

    /// Where the feature that is shown at `i` lies in memory.
    pub fn stored(&self, i: usize) -> usize {
        let (half, odd) = (self.turned / 2, usize::from(self.pairs == RotaryPairs::HalvesBack));
        self.within_head(i, |feature| feature % half * 2 + (feature / half + odd) % 2)
    }

    /// Another place of feature `i` among those of its head that turn.
    fn within_head(&self, i: usize, place: impl Fn(usize) -> usize) -> usize {
        let feature = i % self.d_head;
        let stays = self.pairs == RotaryPairs::Neighbours || i >= self.features || feature >= self.turned;
        if stays { i } else { i - feature + place(feature) }
    }

    /// Features of memory as they are shown, `wide` values each.
    pub fn show<T: Copy>(&self, stored: &[T], wide: usize) -> Vec<T> {
        (0..stored.len() / wide.max(1)).flat_map(|i| &stored[self.stored(i) * wide..][..wide]).copied().collect()
    }

    /// Features as they lie in memory, `wide` values each.
    pub fn store<T: Copy>(&self, shown: &[T], wide: usize) -> Vec<T> {
        (0..shown.len() / wide.max(1)).flat_map(|i| &shown[self.shown(i) * wide..][..wide]).copied().collect()
    }

    /// That of `count` of the features from one on, which is the first of a head.
    pub fn part(self, from: usize, count: usize) -> FeatureOrder {
        FeatureOrder { features: self.features.saturating_sub(from).min(count), ..self }
    }
}

/// The orders of what is not shown as it lies.
pub(super) struct FeatureOrders(HashMap<Key, FeatureOrder>);

impl FeatureOrders {
    /// Those of a list of ops, before tensors share memory.
    pub(super) fn new(ops: &[Op], pairs: RotaryPairs) -> FeatureOrders {
        let mut orders = HashMap::new();
        for op in ops.iter().rev().filter(|_| pairs != RotaryPairs::Neighbours) {
            if let Op::Rotate { y, angles, heads, .. } = *op {
                let features = heads.parts()[2].start;
                orders.insert(key(y), FeatureOrder { pairs, d_head: heads.d_head, turned: angles.cols, features });
            }
            let Some(order) = orders.get(&key(op.output())).copied() else { continue };
            let made_of = match *op {
                Op::Rotate { x, .. } => [Some(x), None, None],
                Op::QkNorm { x, q_gain, k_gain, .. } => [Some(x), q_gain, k_gain],
                Op::Add { a, b, .. } => [Some(a), Some(b), None],
                Op::Linear { w, b, .. } => [Some(w), b, None],
                _ => [None; 3],
            };
            orders.extend(made_of.into_iter().flatten().map(|region| (key(region), order)));
        }
        FeatureOrders(orders)
    }

    /// That of some features of a region, from one on.
    pub(super) fn get(&self, region: Key, from: usize, count: usize) -> Option<FeatureOrder> {
        self.0.get(&region).map(|order| order.part(from, count)).filter(|order| order.features > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_where_other_programs_have_them_and_back() {
        let order = |pairs| FeatureOrder { pairs, d_head: 6, turned: 4, features: 12 };
        let places = |pairs| (0..14).map(|i| order(pairs).shown(i)).collect::<Vec<_>>();
        assert_eq!(places(RotaryPairs::Neighbours), (0..14).collect::<Vec<_>>());
        assert_eq!(places(RotaryPairs::Halves), [0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11, 12, 13]);
        assert_eq!(places(RotaryPairs::HalvesBack), [2, 0, 3, 1, 4, 5, 8, 6, 9, 7, 10, 11, 12, 13]);
        for pairs in [RotaryPairs::Neighbours, RotaryPairs::Halves, RotaryPairs::HalvesBack] {
            assert!((0..14).all(|i| order(pairs).stored(order(pairs).shown(i)) == i), "{pairs}");
            let (stored, mut placed) = ((0..28).collect::<Vec<_>>(), vec![0; 28]);
            (0..28).for_each(|i| placed[2 * order(pairs).shown(i / 2) + i % 2] = i);
            assert_eq!(order(pairs).show(&stored, 2), placed, "{pairs}");
            assert_eq!(order(pairs).store(&placed, 2), stored, "{pairs}");
        }
        assert_eq!([0, 6, 12].map(|from| order(RotaryPairs::Halves).part(from, 6).features), [6, 6, 0]);
    }
}

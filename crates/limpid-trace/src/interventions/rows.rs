//! Positions of a sequence as ranges: a step that changes all of 4,000 positions is one range, whatever is asked of it.

use std::ops::Range;

/// Positions, each once, in ascending order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rows(Vec<Range<usize>>);

impl From<Range<usize>> for Rows {
    fn from(all: Range<usize>) -> Rows {
        Rows(if all.is_empty() { vec![] } else { vec![all] })
    }
}

impl FromIterator<usize> for Rows {
    fn from_iter<I: IntoIterator<Item = usize>>(positions: I) -> Rows {
        let mut all: Vec<usize> = positions.into_iter().collect();
        all.sort_unstable();
        let mut ranges: Vec<Range<usize>> = vec![];
        for at in all {
            match ranges.last_mut() {
                Some(last) if at <= last.end => last.end = last.end.max(at + 1),
                _ => ranges.push(at..at + 1),
            }
        }
        Rows(ranges)
    }
}

impl Rows {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The last one.
    pub fn last(&self) -> Option<usize> {
        self.0.last().map(|range| range.end - 1)
    }

    /// Whether a position is one of them.
    pub fn contains(&self, at: usize) -> bool {
        self.within(at..at + 1).next().is_some()
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().cloned().flatten()
    }

    /// Those that lie in a range.
    pub fn within(&self, part: Range<usize>) -> impl Iterator<Item = usize> + '_ {
        let first = self.0.partition_point(|range| range.end <= part.start);
        let inside = self.0[first..].iter().map(move |range| range.start.max(part.start)..range.end.min(part.end));
        inside.take_while(|range| !range.is_empty()).flatten()
    }

    /// The first that both have.
    pub fn common(&self, other: &Rows) -> Option<usize> {
        let (mut a, mut b) = (self.0.iter().peekable(), other.0.iter().peekable());
        while let (Some(own), Some(theirs)) = (a.peek(), b.peek()) {
            let first = own.start.max(theirs.start);
            if first < own.end.min(theirs.end) {
                return Some(first);
            }
            if own.end <= theirs.end {
                a.next()
            } else {
                b.next()
            };
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use limpid_core::numeric::random::below;
    use std::collections::BTreeSet;

    /// Ranges are what a set of numbers is.
    #[test]
    fn rows_are_sets() {
        let mut draws = 0;
        let mut draw = |n: u64| {
            draws += 1;
            below(3, 9, draws, n) as usize
        };
        for _ in 0..2000 {
            let mut set = |n| -> BTreeSet<usize> { (0..draw(n)).map(|_| draw(24)).collect() };
            let (a, b) = (set(30), set(12));
            let [own, other]: [Rows; 2] = [&a, &b].map(|set| set.iter().rev().copied().collect());
            let part = draw(24)..draw(25);
            let inside: Vec<usize> = a.iter().copied().filter(|at| part.contains(at)).collect();
            assert_eq!(own.within(part.clone()).collect::<Vec<_>>(), inside, "{a:?} {part:?}");
            assert_eq!(own.iter().collect::<BTreeSet<_>>(), a);
            assert_eq!((own.last(), own.is_empty()), (a.last().copied(), a.is_empty()));
            assert_eq!(own.common(&other), a.intersection(&b).next().copied(), "{a:?} {b:?}");
            assert!((0..25).all(|at| own.contains(at) == a.contains(&at)));
            assert_eq!(Rows::from(part.clone()).iter().collect::<Vec<_>>(), part.collect::<Vec<_>>());
        }
    }
}

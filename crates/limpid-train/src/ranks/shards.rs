//! Who updates which parameters. Parameters are dealt out in units: parts of the gradient's norm, or whole matrices where an
//! optimizer needs them whole. So every process keeps moments for its own units alone, and sums that an update adds up in a
//! fixed order (the norm, what it did to a layer) have the same summands for any number of processes.

use limpid_core::ops::adamw::{NORM_PART, ParamGroup};
use std::ops::Range;

/// A stretch of parameters that one process updates.
#[derive(Clone, Debug, PartialEq)]
pub struct ShardUnit {
    /// Its elements in the parameters' memory.
    pub range: Range<usize>,
    /// The process.
    pub owner: usize,
    /// How many parts of the norm it has.
    pub parts: usize,
}

/// How the parameters are dealt out.
#[derive(Clone, Debug, Default)]
pub struct Shards {
    /// All units, in the order of the groups.
    pub units: Vec<ShardUnit>,
    /// The stretches of each process, in order.
    pub of: Vec<Vec<Range<usize>>>,
    /// What this process updates.
    pub own: Vec<ParamGroup>,
}

impl Shards {
    /// Deals `groups` out among `size` processes: each unit goes to the one that has the fewest parameters so far.
    pub fn new(groups: &[ParamGroup], size: usize, rank: usize) -> Shards {
        let mut shards = Shards { of: vec![vec![]; size], ..Shards::default() };
        let mut dealt = vec![0; size];
        for group in groups {
            let whole = group.matrix.is_some();
            let step = if whole { group.range.len().max(1) } else { NORM_PART };
            for at in group.range.clone().step_by(step) {
                let range = at..(at + step).min(group.range.end);
                let owner = (0..size).min_by_key(|rank| dealt[*rank]).unwrap_or(0);
                dealt[owner] += range.len();
                shards.units.push(ShardUnit { range: range.clone(), owner, parts: range.len().div_ceil(NORM_PART) });
                join(&mut shards.of[owner], range.clone());
                if owner == rank {
                    let goes_on = |last: &&mut ParamGroup| !whole && last.range.end == at && at > group.range.start;
                    match shards.own.last_mut().filter(goes_on) {
                        Some(last) => last.range.end = range.end,
                        None => shards.own.push(ParamGroup { range, ..group.clone() }),
                    }
                }
            }
        }
        shards
    }

    /// The elements of the process that has the most.
    pub fn longest(&self) -> usize {
        self.of.iter().map(|of| of.iter().map(Range::len).sum()).max().unwrap_or(0)
    }

    /// The pieces of `range` in its units, with their owners, in order.
    pub fn pieces(&self, range: &Range<usize>) -> impl Iterator<Item = (Range<usize>, usize)> {
        self.units.iter().filter_map(|unit| Some((meet(&unit.range, range)?, unit.owner)))
    }
}

/// What two stretches have in common.
fn meet(a: &Range<usize>, b: &Range<usize>) -> Option<Range<usize>> {
    let both = a.start.max(b.start)..a.end.min(b.end);
    (!both.is_empty()).then_some(both)
}

/// Adds a stretch to a list, or to the last one in it.
fn join(all: &mut Vec<Range<usize>>, range: Range<usize>) {
    match all.last_mut().filter(|last| last.end == range.start) {
        Some(last) => last.end = range.end,
        None => all.push(range),
    }
}

/// Elements `from..to` of stretches that are laid end to end: each stretch's part of them, and where it begins among them.
pub fn window(all: &[Range<usize>], from: usize, to: usize) -> impl Iterator<Item = (Range<usize>, usize)> {
    let mut before = 0;
    all.iter().filter_map(move |range| {
        let start = before;
        before += range.len();
        let both = meet(&(start..before), &(from..to))?;
        Some((range.start + both.start - start..range.start + both.end - start, both.start - from))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(range: Range<usize>, matrix: Option<(usize, usize)>) -> ParamGroup {
        ParamGroup { range, decay: 0.1, matrix }
    }

    #[test]
    fn every_parameter_has_one_owner_and_units_begin_where_parts_of_the_norm_do() {
        let groups =
            [group(0..200_000, None), group(200_000..200_700, None), group(300_000..390_000, Some((300, 300)))];
        for size in 1..=8 {
            let all: Vec<Shards> = (0..size).map(|rank| Shards::new(&groups, size, rank)).collect();
            let mut owned: Vec<Range<usize>> =
                all.iter().flat_map(|shards| shards.own.iter().map(|group| group.range.clone())).collect();
            owned.sort_by_key(|range| range.start);
            let joined = owned.iter().fold(vec![], |mut all, range| {
                join(&mut all, range.clone());
                all
            });
            assert_eq!(joined, [0..200_700, 300_000..390_000], "{size}");
            for shards in &all {
                assert_eq!(shards.units, all[0].units);
                for own in &shards.own {
                    let home = groups.iter().find(|group| group.range.contains(&own.range.start)).unwrap();
                    assert!(
                        (own.range.start - home.range.start).is_multiple_of(NORM_PART)
                            && own.range.end <= home.range.end
                    );
                    assert_eq!(own.matrix, home.matrix);
                }
            }
            let most = all[0].longest();
            assert!(most <= 290_700 / size + 90_000, "{size}: {most}");
        }
    }

    #[test]
    fn a_window_is_cut_out_of_stretches_laid_end_to_end() {
        let all = [10..13, 20..20, 30..35];
        let cut = |from, to| window(&all, from, to).collect::<Vec<_>>();
        assert_eq!(cut(0, 8), [(10..13, 0), (30..35, 3)]);
        assert_eq!(cut(2, 4), [(12..13, 0), (30..31, 1)]);
        assert_eq!(cut(5, 100), [(32..35, 0)]);
        assert!(cut(8, 9).is_empty());
    }
}

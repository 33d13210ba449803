//! Which process updates which parameters, and what is sent together. Parameters are dealt out in units: parts of the
//! gradient's norm, or whole matrices if the optimizer needs them whole. So every process keeps moments for its own
//! units only, and sums that an update adds in a fixed order (the norm, what it did to a layer) have the same summands
//! for any number of processes.
//!
//! Data is sent in blocks ([`Block`]), beginning with the gradients that are final first. So a block is on its way
//! while the rest of the backward pass runs, and its parameters come back while the forward pass of the next step runs.

use limpid_core::model::Model;
use limpid_core::ops::Op;
use limpid_core::optimizer::{NORM_PART, ParamGroup};
use std::ops::Range;

/// The most elements that one process sends to all at once: 4 MB.
pub(super) const BLOCK: usize = 1 << 20;

/// When a training step reads each parameter, and when its gradient is final; in the order of the parameters' memory.
#[derive(Clone, Debug, Default)]
pub struct Uses(Vec<Use>);

#[derive(Clone, Debug)]
struct Use {
    range: Range<usize>,
    first: usize,
    last: usize,
}

impl Uses {
    /// The uses of a model's parameters that learn.
    pub fn new(model: &Model) -> Uses {
        let (body, back) = (model.body(), model.back());
        let unused = |range| Use { range, first: body.len(), last: 0 };
        let mut uses: Vec<Use> = model.learning().map(|param| unused(param.region.range())).collect();
        uses.sort_by_key(|one| one.range.start);
        let mut note = |op: &Op, set: &dyn Fn(&mut Use)| {
            for region in op.parameters() {
                uses.binary_search_by_key(&region.at, |one| one.range.start).iter().for_each(|at| set(&mut uses[*at]));
            }
        };
        for (i, op) in body.iter().enumerate().rev() {
            note(op, &|one| one.first = i);
        }
        for (i, pass) in back.iter().enumerate() {
            pass.back().iter().for_each(|back| note(&back.op, &|one| one.last = i + 1));
        }
        Uses(uses)
    }

    /// How many parameters have gradients that are final only when the backward pass ends.
    pub fn late(&self) -> usize {
        let end = self.0.iter().map(|one| one.last).max().unwrap_or(0);
        self.0.iter().filter(|one| one.last == end).map(|one| one.range.len()).sum()
    }

    fn meeting(&self, range: &Range<usize>) -> impl Iterator<Item = &Use> {
        let from = self.0.partition_point(|one| one.range.end <= range.start);
        self.0[from..].iter().take_while(|one| one.range.start < range.end)
    }

    /// How many ops of the forward pass run before the first one that reads these parameters.
    fn first(&self, range: &Range<usize>) -> usize {
        self.meeting(range).map(|one| one.first).min().unwrap_or(0)
    }

    /// How many entries of the backward pass run until the gradients of these parameters are final.
    fn last(&self, range: &Range<usize>) -> usize {
        self.meeting(range).map(|one| one.last).max().unwrap_or(0)
    }
}

/// A stretch of parameters that one process updates.
#[derive(Clone, Debug, PartialEq)]
pub struct ShardUnit {
    /// Its elements in the parameters' memory.
    pub range: Range<usize>,
    /// The process.
    pub owner: usize,
}

impl ShardUnit {
    /// How many parts of the norm it has.
    pub fn parts(&self) -> usize {
        self.range.len().div_ceil(NORM_PART)
    }
}

/// What the processes send each other at once: from each process, a part of what it updates.
#[derive(Clone, Debug, PartialEq)]
pub struct Block {
    /// The stretches of each process, in the parameters' memory, and where each begins in the block.
    pub of: Vec<Vec<(Range<usize>, usize)>>,
    /// Elements of the process that has the most.
    pub len: usize,
    /// How many ops of the forward pass run before the first one that reads its parameters.
    pub first: usize,
    /// How many entries of the backward pass run until its gradients are final.
    pub last: usize,
}

/// How the parameters are dealt out.
#[derive(Clone, Debug, Default)]
pub struct Shards {
    /// All units, in the order of the groups.
    pub units: Vec<ShardUnit>,
    /// What is sent together, in the order in which gradients become final.
    pub blocks: Vec<Block>,
    /// What this process updates.
    pub own: Vec<ParamGroup>,
}

impl Shards {
    /// Deals `groups` out among `size` processes: each unit goes to the one that has the fewest parameters so far.
    pub fn new(groups: &[ParamGroup], uses: &Uses, size: usize, rank: usize) -> Shards {
        fn cut(group: &ParamGroup) -> impl Iterator<Item = (ShardUnit, &ParamGroup)> {
            let step = if group.matrix.is_some() { group.range.len().max(1) } else { NORM_PART };
            let unit = move |at: usize| ShardUnit { range: at..(at + step).min(group.range.end), owner: 0 };
            group.range.clone().step_by(step).map(move |at| (unit(at), group))
        }
        let (mut units, groups): (Vec<ShardUnit>, Vec<&ParamGroup>) = groups.iter().flat_map(cut).unzip();
        let mut order: Vec<(usize, usize)> =
            units.iter().enumerate().map(|(i, unit)| (uses.last(&unit.range), i)).collect();
        order.sort_unstable();
        let mut dealt = vec![0; size];
        for (_, i) in &order {
            let owner = (0..size).min_by_key(|rank| dealt[*rank]).unwrap_or(0);
            dealt[owner] += units[*i].range.len();
            units[*i].owner = owner;
        }
        let mut own: Vec<ParamGroup> = vec![];
        for (unit, group) in units.iter().zip(groups).filter(|(unit, _)| unit.owner == rank) {
            let goes_on =
                |last: &&mut ParamGroup| last.range.end == unit.range.start && unit.range.start > group.range.start;
            match own.last_mut().filter(goes_on) {
                Some(last) => last.range.end = unit.range.end,
                None => own.push(ParamGroup { range: unit.range.clone(), ..*group }),
            }
        }
        let ordered: Vec<&ShardUnit> = order.iter().map(|(_, i)| &units[*i]).collect();
        let blocks = blocks(&ordered, uses, size);
        Shards { units, blocks, own }
    }

    /// The blocks in the order in which the forward pass reads their parameters.
    pub fn as_read(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.blocks.len()).collect();
        order.sort_by_key(|i| self.blocks[*i].first);
        order
    }

    /// The pieces of `range` in its units, with their owners, in order.
    pub fn pieces(&self, range: &Range<usize>) -> impl Iterator<Item = (Range<usize>, usize)> {
        self.units.iter().filter_map(|unit| Some((meet(&unit.range, range)?, unit.owner)))
    }
}

/// Puts units into blocks, in their order. Each time it takes enough units for one block with about equal shares for
/// all processes, and cuts them up if they are more than one block.
fn blocks(units: &[&ShardUnit], uses: &Uses, size: usize) -> Vec<Block> {
    let (mut blocks, mut from) = (vec![], 0);
    while from < units.len() {
        let (mut of, mut count) = (vec![0; size], 0);
        for unit in &units[from..] {
            of[unit.owner] += unit.range.len();
            count += 1;
            let (all, most) = (of.iter().sum::<usize>(), of.iter().max().copied().unwrap_or(0));
            if all >= BLOCK && 2 * size * most <= 3 * all {
                break;
            }
        }
        let together = &units[from..from + count];
        from += count;
        let first = together.iter().map(|unit| uses.first(&unit.range)).min().unwrap_or(0);
        let last = together.iter().map(|unit| uses.last(&unit.range)).max().unwrap_or(0);
        let mut stretches: Vec<Vec<Range<usize>>> = vec![vec![]; size];
        together.iter().for_each(|unit| join(&mut stretches[unit.owner], unit.range.clone()));
        let longest = of.into_iter().max().unwrap_or(0);
        let step = BLOCK.div_ceil(size);
        for at in (0..longest).step_by(step) {
            let len = step.min(longest - at);
            let of = stretches.iter().map(|all| window(all, at, at + len).collect()).collect();
            blocks.push(Block { of, len, first, last });
        }
    }
    blocks
}

/// The overlap of two stretches, if there is one.
fn meet(a: &Range<usize>, b: &Range<usize>) -> Option<Range<usize>> {
    let both = a.start.max(b.start)..a.end.min(b.end);
    (!both.is_empty()).then_some(both)
}

/// Appends a stretch to a list, or extends the last one if it continues there.
fn join(all: &mut Vec<Range<usize>>, range: Range<usize>) {
    match all.last_mut().filter(|last| last.end == range.start) {
        Some(last) => last.end = range.end,
        None => all.push(range),
    }
}

/// Elements `from..to` of stretches laid end to end: the part of each stretch that lies there, and where it begins.
fn window(all: &[Range<usize>], from: usize, to: usize) -> impl Iterator<Item = (Range<usize>, usize)> {
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
    use limpid_core::config::Config;
    use limpid_core::model::Mode;
    use limpid_core::ops::Pass;

    fn group(range: Range<usize>, matrix: Option<(usize, usize)>) -> ParamGroup {
        ParamGroup { range, decay: 0.1, matrix }
    }

    /// Stretches in ascending order, neighbours as one.
    fn joined(mut all: Vec<Range<usize>>) -> Vec<Range<usize>> {
        all.sort_by_key(|range| range.start);
        all.into_iter().fold(vec![], |mut all, range| {
            join(&mut all, range);
            all
        })
    }

    #[test]
    fn every_parameter_has_one_owner_and_units_begin_where_parts_of_the_norm_do() {
        let groups =
            [group(0..200_000, None), group(200_000..200_700, None), group(300_000..390_000, Some((300, 300)))];
        for size in 1..=8 {
            let all: Vec<Shards> = (0..size).map(|rank| Shards::new(&groups, &Uses::default(), size, rank)).collect();
            let own = |shards: &Shards| shards.own.iter().map(|group| group.range.clone()).collect::<Vec<_>>();
            assert_eq!(joined(all.iter().flat_map(own).collect()), [0..200_700, 300_000..390_000], "{size}");
            for (rank, shards) in all.iter().enumerate() {
                assert_eq!((&shards.units, &shards.blocks), (&all[0].units, &all[0].blocks));
                for own in &shards.own {
                    let home = groups.iter().find(|group| group.range.contains(&own.range.start)).unwrap();
                    assert!(
                        (own.range.start - home.range.start).is_multiple_of(NORM_PART)
                            && own.range.end <= home.range.end
                    );
                    assert_eq!(own.matrix, home.matrix);
                }
                let sent = shards.blocks.iter().flat_map(|block| block.of[rank].iter().map(|(range, _)| range.clone()));
                assert_eq!(joined(sent.collect()), joined(own(shards)), "a process sends what it updates, once");
                let most = shards.own.iter().map(|group| group.range.len()).sum::<usize>();
                assert!(most <= 290_700 / size + 90_000, "{size}: {most}");
            }
        }
    }

    /// A model large enough for several blocks: each goes out when nothing is added to it any more, and comes back
    /// before it is read; neighbours in the order of the backward pass go together.
    #[test]
    fn a_block_goes_out_when_it_is_final_and_comes_back_before_it_is_read() {
        for shared_blocks in [false, true] {
            let config = Config { n_layer: 6, d_model: 384, n_head: 6, d_ff: 1536, shared_blocks, ..Config::default() };
            let model = Model::new(&config, Mode::Train { batch: 1, context: 32 }).unwrap();
            let groups: Vec<_> = model.learning().map(|param| group(param.region.range(), None)).collect();
            let shards = Shards::new(&groups, &Uses::new(&model), 2, 0);
            assert!(shards.blocks.len() > 6, "{}", shards.blocks.len());
            assert!(shards.blocks.is_sorted_by_key(|block| block.last));
            let last = model.back().len();
            // what all blocks share is final when the first has added to it
            assert_eq!(shards.blocks[0].last < last / 3, !shared_blocks, "the first goes out early");
            for block in &shards.blocks {
                let holds = |op: &Op| {
                    let of = op.parameters();
                    block.of.iter().flatten().any(|(range, _)| of.iter().any(|own| meet(&own.range(), range).is_some()))
                };
                let adds = model.back().part(block.last..).iter().filter_map(Pass::back).any(|back| holds(&back.op));
                let reads = model.body().part(..block.first).iter().any(holds);
                assert!(!adds && !reads);
            }
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

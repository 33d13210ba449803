//! A program: the forward and the backward list of a model, in one value that is checked when it is made and never
//! changes. A backend runs slices of it and nothing else, so its kernels may rely on what [`Program::new`] checks.
//! Read `limits` for the checks of a batch.

use super::limits::Limits;
use super::{Access, ActiveRows, BLOCK, Back, MemorySpace, Op, Pass, Region, qk_norms, qk_widths};
use std::collections::{BTreeMap, HashMap};
use std::ops::{Bound, Deref, Range, RangeBounds};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A program that is not checked yet: plain data, which may hold anything.
#[derive(Clone, Debug, PartialEq)]
pub struct UncheckedProgram {
    /// The forward pass, first to last.
    pub ops: Vec<Op>,
    /// The backward pass, in the order it runs; empty if there is none.
    pub back: Vec<Pass>,
    /// The parameters that learn, in ascending order of their place in [`MemorySpace::Param`].
    pub params: Vec<Region>,
    /// Elements of each memory space, by [`MemorySpace::ALL`].
    pub sizes: [usize; MemorySpace::ALL.len()],
    /// What a batch may hold.
    pub limits: Limits,
}

/// The lists of a model, checked. A clone is the same program.
#[derive(Clone, Debug)]
pub struct Program {
    id: u64,
    draft: UncheckedProgram,
    /// For each entry of the backward: one more than the index of the last earlier entry that adds to one of the
    /// same gradients, or 0.
    shares: Vec<usize>,
    keeps_gradient_inputs: bool,
}

/// Why a draft was refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{op} (entry {index} of the {list}): {flaw}")]
pub struct ProgramError {
    /// The op's name.
    pub op: &'static str,
    /// Its place in the list, from 0.
    pub index: usize,
    /// Which list.
    pub list: &'static str,
    /// What is wrong with it.
    pub flaw: Flaw,
}

/// What is wrong with an entry of a list.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Flaw {
    /// The shapes of the operands do not fit each other.
    #[error("the shapes disagree in {0:?}")]
    Shapes(Box<Op>),
    /// A tensor ends outside of its memory space.
    #[error("{region:?} ends outside its memory, which has {size} elements")]
    Outside {
        /// The tensor.
        region: Region,
        /// Elements of its memory space.
        size: usize,
    },
    /// A tensor is in a memory space that the op does not use for this operand.
    #[error("{0:?} lies in a memory space that the op does not use for this operand")]
    Memory(Region),
    /// Two tensors overlap, and one of them is written.
    #[error("{0:?} and {1:?} overlap")]
    Overlap(Region, Region),
    /// A tensor or table has fewer rows than a batch may use.
    #[error("{0:?} does not have the rows that a batch within the model's limits may use")]
    Rows(Region),
    /// A parameter is not listed in [`UncheckedProgram::params`].
    #[error("{0:?} is not a parameter of this model")]
    Parameter(Region),
    /// One parameter is two operands of an op, which would add to its gradient twice at once.
    #[error("{0:?} is two of its parameters, and its gradient would be added to twice at once")]
    Twice(Region),
    /// Attention has a KV cache, and the limits have no blocks for one.
    #[error("it has a KV cache, but the program's limits have no cache blocks")]
    Cached,
    /// The limits have blocks of a KV cache, and attention has no cache.
    #[error("it has no KV cache, but the program's limits have cache blocks")]
    Uncached,
    /// Attention with a KV cache stands in the backward pass.
    #[error("it is in the backward pass and has a KV cache: a training program must not have one")]
    CachedBackward,
    /// A tensor is read before it is written, or after another tensor overwrote it.
    #[error("it reads {0:?} before it is written, or after another tensor overwrote it")]
    Unmade(Region),
    /// The op of a backward entry is not the op at its index of the forward.
    #[error("it is not the backward of op {0} of the forward")]
    Stranger(usize),
    /// A gradient is missing, or does not have the shape of its tensor.
    #[error("the gradient of its {0} is missing, or has another shape")]
    Gradient(&'static str),
}

/// Consecutive entries of a program: ops ([`Ops`]) or entries of the backward ([`Passes`]). Reads as a slice.
#[derive(Clone, Copy, Debug)]
pub struct Slice<'a, T> {
    program: &'a Program,
    /// The entries, and how many of the whole list come before them.
    list: &'a [T],
    start: usize,
}

/// Consecutive ops of a program's forward pass.
pub type Ops<'a> = Slice<'a, Op>;
/// Consecutive entries of a program's backward pass.
pub type Passes<'a> = Slice<'a, Pass>;

impl<'a, T> Slice<'a, T> {
    /// The number of their program ([`Program::id`]).
    pub fn program(&self) -> u64 {
        self.program.id
    }

    /// How many entries of the whole list come before them.
    pub fn start(&self) -> usize {
        self.start
    }

    /// A part of the entries, numbered from the first of these.
    ///
    /// # Panics
    /// If the range is out of bounds, as slices do.
    pub fn part(&self, range: impl RangeBounds<usize>) -> Slice<'a, T> {
        let start = match range.start_bound() {
            Bound::Included(n) => *n,
            Bound::Excluded(n) => n + 1,
            Bound::Unbounded => 0,
        };
        let list = &self.list[(range.start_bound().cloned(), range.end_bound().cloned())];
        Slice { list, start: self.start + start, ..*self }
    }

    /// The entries one at a time, each also as a slice of its own for a backend to run.
    pub fn each(self) -> impl DoubleEndedIterator<Item = (&'a T, Slice<'a, T>)> + ExactSizeIterator {
        (0..self.len()).map(move |i| (&self.list[i], self.part(i..=i)))
    }

    /// The entries as a slice that lives as long as the program, unlike that of [`Deref`].
    pub fn as_slice(&self) -> &'a [T] {
        self.list
    }

    /// The entries.
    pub fn iter(&self) -> std::slice::Iter<'a, T> {
        self.as_slice().iter()
    }
}

impl<T> Deref for Slice<'_, T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        self.as_slice()
    }
}

impl<'a, T> IntoIterator for Slice<'a, T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl Passes<'_> {
    /// Whether no two entries add to the same gradient, so that each may be a task of its own.
    pub fn are_apart(&self) -> bool {
        self.program.shares[self.start..][..self.len()].iter().all(|shares| *shares <= self.start)
    }
}

impl Program {
    /// Checks a draft. Every tensor lies within the memory space that its op uses, and has the rows that a batch
    /// within the limits may use. Shapes fit each other. An op's activations, statistics and gradients do not
    /// overlap. Parameters are those listed, which do not overlap. Every tensor is written before it is read. The
    /// entries of the backward belong to ops of the forward and have all gradients that they need.
    ///
    /// # Errors
    /// The first entry that breaks one of these rules.
    pub fn new(draft: UncheckedProgram) -> Result<Program, ProgramError> {
        static PROGRAMS: AtomicU64 = AtomicU64::new(0);
        let (mut end, mut made) = (0, Made::default());
        for (index, region) in draft.params.iter().enumerate() {
            let fits = if !region.learns() {
                Err(Flaw::Memory(*region))
            } else if region.at < end {
                Err(Flaw::Overlap(draft.params[index - 1], *region))
            } else {
                draft.inside(*region).and_then(|()| draft.inside(region.grad()))
            };
            fits.map_err(|flaw| ProgramError { op: "parameter", index, list: "parameters", flaw })?;
            end = region.range().end;
        }
        for (index, op) in draft.ops.iter().enumerate() {
            let err = |flaw| ProgramError { op: op.name(), index, list: "forward", flaw };
            draft.check(*op).and_then(|()| made.forward(*op)).map_err(err)?;
        }
        let (mut shares, mut last, mut needs) = (vec![], HashMap::new(), vec![]);
        for (index, pass) in draft.back.iter().enumerate() {
            let (op, found) = match pass {
                Pass::Recompute(op) => (op, draft.check(*op).and_then(|()| made.forward(*op))),
                Pass::Back(back) => (&back.op, draft.check_back(*back).and_then(|()| made.backward(*back, &mut needs))),
            };
            found.map_err(|flaw| ProgramError { op: op.name(), index, list: "backward", flaw })?;
            let adds = pass.back().map_or(vec![], |back| back.op.parameters());
            shares.push(adds.iter().filter_map(|region| last.insert(region.at, index + 1)).max().unwrap_or(0));
        }
        let keeps_gradient_inputs = needs.iter().all(|(region, number)| made.number(*region) == Some(*number));
        Ok(Program { id: PROGRAMS.fetch_add(1, Relaxed), draft, shares, keeps_gradient_inputs })
    }

    /// The draft that it was made of, to be changed and checked again.
    pub fn draft(&self) -> UncheckedProgram {
        self.draft.clone()
    }

    /// A number that no other program of this process has.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Some ops of the forward pass.
    ///
    /// # Panics
    /// If the range is out of bounds, as slices do.
    pub fn forward(&self, range: impl RangeBounds<usize>) -> Ops<'_> {
        Slice { program: self, list: &self.draft.ops[..], start: 0 }.part(range)
    }

    /// Some entries of the backward pass.
    ///
    /// # Panics
    /// As [`Program::forward`].
    pub fn backward(&self, range: impl RangeBounds<usize>) -> Passes<'_> {
        Slice { program: self, list: &self.draft.back[..], start: 0 }.part(range)
    }

    /// The parameters that learn, in the order of their memory.
    pub fn parameters(&self) -> &[Region] {
        &self.draft.params
    }

    /// Elements of a memory space.
    pub fn size(&self, space: MemorySpace) -> usize {
        self.draft.sizes[space as usize]
    }

    /// What a batch may hold.
    pub fn limits(&self) -> &Limits {
        &self.draft.limits
    }

    /// Whether the inputs of all gradients of parameters still exist when the backward ends, so that these gradients
    /// may be computed last. Those of the loss op are always computed at once.
    pub fn keeps_gradient_inputs(&self) -> bool {
        self.keeps_gradient_inputs
    }
}

/// An error if any two regions overlap.
fn overlap(regions: &[Region]) -> Result<(), Flaw> {
    let meet = |a: &Region, b: &Region| a.space == b.space && a.at < b.range().end && b.at < a.range().end;
    for (i, a) in regions.iter().enumerate() {
        if let Some(b) = regions[i + 1..].iter().find(|b| meet(a, b)) {
            return Err(Flaw::Overlap(*a, *b));
        }
    }
    Ok(())
}

impl UncheckedProgram {
    /// Checks that all of a tensor lies in its memory space.
    fn inside(&self, region: Region) -> Result<(), Flaw> {
        let size = self.sizes[region.space as usize];
        let end = region.rows.checked_mul(region.cols).and_then(|len| len.checked_add(region.at));
        if end.is_some_and(|end| end <= size) { Ok(()) } else { Err(Flaw::Outside { region, size }) }
    }

    /// Checks one op, of either list, by itself.
    fn check(&self, op: Op) -> Result<(), Flaw> {
        self.shapes(&op)?;
        let mut copy = op;
        for (access, region) in copy.operands().map(|(access, region)| (access, *region)) {
            self.inside(region)?;
            let spaces: &[MemorySpace] = match (access, op) {
                (Access::Own, Op::Attend { .. }) => &[MemorySpace::Cache],
                (Access::Own, Op::Rotate { .. }) => &[MemorySpace::Table],
                (Access::Own, Op::Embed { positions: Some(positions), .. }) if positions == region => {
                    &[MemorySpace::Table, MemorySpace::Const, MemorySpace::Param]
                }
                (Access::Own, _) => &[MemorySpace::Const, MemorySpace::Param],
                (Access::Watched, _) | (Access::Write { .. }, Op::Classify { .. }) => &[MemorySpace::Stat],
                (Access::Write { .. }, _) if region != op.output() => &[MemorySpace::Stat],
                (Access::Write { .. } | Access::Read { .. }, _) => &[MemorySpace::Act],
            };
            if !spaces.contains(&region.space) {
                return Err(Flaw::Memory(region));
            }
            let active = match op {
                _ if access == Access::Own => ActiveRows::All,
                Op::Gather { y, .. } if region == y => ActiveRows::Outputs,
                Op::Norm { .. }
                | Op::Linear { .. }
                | Op::Activate { .. }
                | Op::Add { .. }
                | Op::Multiply { .. }
                | Op::Scale { .. }
                    if op.output().active == ActiveRows::Outputs =>
                {
                    ActiveRows::Outputs
                }
                _ => ActiveRows::Rows,
            };
            let most = match active {
                ActiveRows::All => 0,
                ActiveRows::Rows => self.limits.rows,
                ActiveRows::Outputs => self.limits.outputs,
            };
            if region.active != active || region.rows < most {
                return Err(Flaw::Rows(region));
            }
            let place = self.params.partition_point(|param| param.at < region.at);
            if region.learns() && self.params.get(place) != Some(&region) {
                return Err(Flaw::Parameter(region));
            }
        }
        let learning = op.parameters();
        match (1..learning.len()).find(|i| learning[..*i].contains(&learning[*i])) {
            Some(twice) => Err(Flaw::Twice(learning[twice])),
            None => Ok(()),
        }
    }

    /// Checks that the shapes of operands fit each other, and that tables have the rows that batches look up.
    fn shapes(&self, op: &Op) -> Result<(), Flaw> {
        let Limits { context, blocks, vocab_size, segments: kinds, .. } = self.limits;
        let vector = |v: Option<Region>, cols| v.is_none_or(|v: Region| v.shape() == (1, cols));
        let like = |v: Option<Region>, shape| v.is_none_or(|v: Region| v.shape() == shape);
        let mut tables = vec![];
        let ok = match *op {
            Op::Embed { table, positions, segments, y, token, position } => {
                tables.extend([(table, vocab_size)]);
                tables.extend(positions.map(|p| (p, context)).into_iter().chain(segments.map(|s| (s, kinds))));
                tables.iter().all(|(table, _)| table.cols == y.cols)
                    && like(token, y.shape())
                    && like(position, y.shape())
            }
            Op::Norm { x, gain, offset, y, stats, normalized, scale, .. } => {
                x.shape() == y.shape()
                    && vector(gain, x.cols)
                    && vector(offset, x.cols)
                    && stats.shape() == (x.rows, 2)
                    && like(normalized, x.shape())
                    && like(scale, (x.rows, 1))
            }
            Op::Linear { x, w, b, y } => w.shape() == (y.cols, x.cols) && x.rows == y.rows && vector(b, y.cols),
            Op::QkNorm { x, q_gain, k_gain, together, y, stats, heads, .. } => {
                let [q, k] = qk_widths(heads, together);
                x.shape() == y.shape()
                    && x.cols == heads.cols()
                    && vector(q_gain, q)
                    && vector(k_gain, k)
                    && stats.shape() == (x.rows, 2 * qk_norms(heads, together))
            }
            Op::Rotate { x, y, angles, heads } => {
                tables.push((angles, context));
                x.shape() == y.shape()
                    && x.cols == heads.cols()
                    && angles.cols <= heads.d_head
                    && angles.cols.is_multiple_of(2)
            }
            Op::Attend { qkv, cache, y, lse, heads, raw, scores, pattern, .. } => {
                if cache.is_some() != blocks.is_some() {
                    return Err(if cache.is_some() { Flaw::Cached } else { Flaw::Uncached });
                }
                tables.extend(cache.zip(blocks).map(|(cache, n)| (cache, n.saturating_mul(BLOCK))));
                let watched = [raw, scores, pattern];
                let wide = |w: Region| {
                    w.rows == y.rows && w.cols.is_multiple_of(heads.n_head) && w.cols / heads.n_head >= context
                };
                heads.n_head > 0
                    && qkv.shape() == (y.rows, heads.cols())
                    && y.cols == heads.output_cols()
                    && heads.n_head.is_multiple_of(heads.n_kv_head)
                    && lse.shape() == (y.rows, heads.n_head)
                    && cache.is_none_or(|c| c.cols == heads.cache_cols())
                    && raw.is_none_or(wide)
                    && watched.iter().all(|w| w.map(Region::shape) == raw.map(Region::shape))
            }
            Op::Activate { x, y, .. } | Op::Dropout { x, y, .. } | Op::Scale { x, y, .. } => x.shape() == y.shape(),
            Op::Add { a, b, y, .. } | Op::Multiply { a, b, y } => a.shape() == y.shape() && b.shape() == y.shape(),
            Op::Gather { x, y } => x.cols == y.cols,
            Op::Classify { x, w, b, losses, logits, probs, .. } => {
                w.shape() == (vocab_size, x.cols)
                    && vector(b, w.rows)
                    && losses.shape() == (x.rows, 1)
                    && like(logits, (x.rows, w.rows))
                    && like(probs, (x.rows, w.rows))
            }
        };
        match tables.into_iter().find(|(table, rows)| table.rows < *rows) {
            _ if !ok => Err(Flaw::Shapes(Box::new(*op))),
            Some((table, _)) => Err(Flaw::Rows(table)),
            None => Ok(()),
        }
    }

    /// Checks one entry of the backward by itself.
    fn check_back(&self, back: Back) -> Result<(), Flaw> {
        self.check(back.op)?;
        // recomputed tensors have other regions than the first ones
        let nowhere = |mut op: Op| {
            op.operands().filter(|(access, _)| *access != Access::Own).for_each(|(_, region)| region.at = 0);
            op
        };
        if self.ops.get(back.index).map(|op| nowhere(*op)) != Some(nowhere(back.op)) {
            return Err(Flaw::Stranger(back.index));
        }
        if matches!(back.op, Op::Attend { cache: Some(_), .. }) {
            return Err(Flaw::CachedBackward);
        }
        let like = |grad: Option<Region>, of: Option<Region>| match (grad, of) {
            (Some(grad), Some(of)) => {
                grad.space == MemorySpace::ActGrad && grad.shape() == of.shape() && grad.active == of.active
            }
            (grad, of) => grad.is_none() && of.is_none(),
        };
        let head = matches!(back.op, Op::Classify { .. });
        if !like(back.dy, (!head).then(|| back.op.output())) {
            return Err(Flaw::Gradient("output"));
        }
        let [first, second] = back.dx.map(|dx| dx.map(|dx| dx.region));
        let inputs = back.op.inputs();
        let fits = [first, second].iter().zip(inputs).all(|(dx, x)| dx.is_none() || like(*dx, x));
        let watches = back.watched.iter().any(Option::is_some);
        // gradients of watched operands are computed along with the input's
        let made = first.is_some() || head || inputs[0].is_none() || !watches;
        if !fits || !made {
            return Err(Flaw::Gradient("input"));
        }
        let mut op = back.op;
        let mut watched = op.operands().filter(|(access, _)| *access == Access::Watched).map(|(_, region)| *region);
        if watches && !back.watched.iter().all(|grad| like(*grad, watched.next())) {
            return Err(Flaw::Gradient("watched operands"));
        }
        let all: Vec<Region> = [back.dy, first, second].into_iter().chain(back.watched).flatten().collect();
        all.iter().try_for_each(|region| self.inside(*region))?;
        overlap(&all)
    }
}

/// Which tensor is in which memory while a program runs; every written tensor has a number of its own.
#[derive(Default)]
struct Made {
    count: usize,
    at: BTreeMap<(MemorySpace, usize), (Region, usize)>,
}

impl Made {
    fn number(&self, region: Region) -> Option<usize> {
        self.at.get(&(region.space, region.at)).filter(|(there, _)| *there == region).map(|(_, number)| *number)
    }

    fn read(&self, region: Region) -> Result<usize, Flaw> {
        self.number(region).ok_or(Flaw::Unmade(region))
    }

    /// Records a write: the tensor replaces all that it overlaps.
    fn write(&mut self, region: Region) {
        let Range { start, end } = region.range();
        while let Some((key, (last, _))) = self.at.range((region.space, 0)..(region.space, end)).next_back()
            && last.range().end > start
        {
            let key = *key;
            self.at.remove(&key);
        }
        self.count += 1;
        self.at.insert((region.space, start), (region, self.count));
    }

    fn forward(&mut self, mut op: Op) -> Result<(), Flaw> {
        let own = |(access, _): &(Access, &mut Region)| *access == Access::Own;
        let (mut regions, mut written) = (vec![], vec![]);
        for (access, region) in op.operands().filter(|operand| !own(operand)) {
            regions.push(*region);
            match access {
                Access::Read { .. } => self.read(*region).map(drop)?,
                _ => written.push(*region),
            }
        }
        overlap(&regions)?;
        written.into_iter().for_each(|region| self.write(region));
        Ok(())
    }

    /// Records the backward of an op. Adds to `needs` the tensors that its gradients of parameters read, with their
    /// numbers.
    fn backward(&mut self, back: Back, needs: &mut Vec<(Region, usize)>) -> Result<(), Flaw> {
        let mut op = back.op;
        let head = matches!(op, Op::Classify { .. });
        let saved = op.operands().filter_map(|(access, region)| match access {
            Access::Read { saved: true } => Some(*region),
            Access::Write { saved: true } if !head => Some(*region),
            _ => None,
        });
        for region in saved.chain(back.dy) {
            let number = self.read(region)?;
            if back.op.learns() && !head {
                needs.push((region, number));
            }
        }
        for dx in back.dx.into_iter().flatten() {
            if dx.add {
                self.read(dx.region)?;
            }
            self.write(dx.region);
        }
        let losses = head.then(|| op.output());
        losses.into_iter().chain(back.watched.into_iter().flatten()).for_each(|region| self.write(region));
        Ok(())
    }
}

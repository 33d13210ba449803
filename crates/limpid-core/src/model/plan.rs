//! Three passes over a model while it is built. `arrange` places parameters kind by kind; `differentiate` reads the
//! list in reverse and says where every gradient goes; `compact` lets tensors that are never alive at once share
//! memory. None of them changes a result: a test runs compact and full plans and compares the bits.

use super::{Mode, Param, Table, Tensor};
use crate::ops::{Access, Back, Grad, MemorySpace, Op, Pass, Region};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

/// Where gradients of watched tensors lie until `compact` places them: beyond all activations, whose gradients have
/// places until then.
const UNPLACED: usize = usize::MAX / 2;

/// Every tensor starts at a multiple of this many elements, for wide loads and whole cache lines.
pub const ALIGN: usize = 64;
/// The token table has room for a multiple of this many rows (50,257 in 50,304).
pub const VOCAB_ALIGN: usize = 128;

/// Elements of activations ([`activations`]) up to which the inputs of all gradients of parameters are kept until the
/// backward ends, where a batch has several sequences: 64 MiB, so that it costs little memory. A backend may then run
/// sequences apart and compute gradients of parameters last.
pub const GRADIENT_INPUTS_LIMIT: usize = 16 << 20;

/// Elements of all activations of a forward pass, as if none shared memory.
pub fn activations(ops: &[Op]) -> usize {
    let made = ops.iter().map(Op::output).filter(|region| region.space == MemorySpace::Act);
    made.map(|region| region.len().next_multiple_of(ALIGN)).sum()
}

/// A model while it is built: its lists, and the regions of its tensors.
pub(super) struct Plan {
    pub mode: Mode,
    pub ops: Vec<Op>,
    pub back: Vec<Pass>,
    pub tensors: Vec<Tensor>,
    pub params: Vec<Param>,
    pub tables: Vec<(Region, Table)>,
    /// Whether the inputs of gradients of parameters are kept until the backward ends.
    pub keeps_gradient_inputs: bool,
    pub sizes: [usize; MemorySpace::ALL.len()],
}

impl Plan {
    fn losses(&self) -> Option<Region> {
        self.ops.iter().find(|op| matches!(op, Op::Classify { .. })).map(Op::output)
    }
}

pub(super) type Key = (MemorySpace, usize);
pub(super) fn key(region: Region) -> Key {
    (region.space, region.at)
}

/// Moves regions to new places.
fn relocate(plan: &mut Plan, to: &HashMap<Key, usize>) {
    let shift = |region: &mut Region| {
        if let Some(at) = to.get(&key(*region)) {
            region.at = *at;
        }
    };
    for op in &mut plan.ops {
        op.operands().for_each(|(_, region)| shift(region));
    }
    for pass in &mut plan.back {
        match pass {
            Pass::Recompute(op) => op.operands().for_each(|(_, region)| shift(region)),
            Pass::Back(back) => {
                back.op.operands().for_each(|(_, region)| shift(region));
                gradients(back).into_iter().for_each(shift);
            }
        }
    }
    for tensor in &mut plan.tensors {
        shift(&mut tensor.region);
        tensor.grad.as_mut().map(shift);
    }
    plan.params.iter_mut().for_each(|p| shift(&mut p.region));
    plan.tables.iter_mut().for_each(|(region, _)| shift(region));
}

/// The operands of the forward that the backward of an op reads.
pub(super) fn saved(back: &mut Back) -> impl Iterator<Item = &mut Region> {
    let head = matches!(back.op, Op::Classify { .. });
    back.op.operands().filter_map(move |(access, region)| {
        let saved = matches!(access, Access::Read { saved: true } | Access::Write { saved: true } | Access::Watched);
        (saved || head).then_some(region)
    })
}

fn gradients(back: &mut Back) -> Vec<&mut Region> {
    let dx = back.dx.iter_mut().flatten().map(|g| &mut g.region);
    back.dy.iter_mut().chain(dx).chain(back.watched.iter_mut().flatten()).collect()
}

/// Elements that are reserved for a parameter.
fn room(param: &Param) -> usize {
    let Region { rows, cols, .. } = param.region;
    let is_table = param.is_vocabulary() && param.is_matrix();
    cols * if is_table { rows.next_multiple_of(VOCAB_ALIGN) } else { rows }
}

/// Places parameters kind by kind, layer within kind: all `attn.qkv.weight` side by side, and so on. Each kind is
/// then one (L, ...) tensor, groups of one decay are few and long, and for GPT-2 it is the order of llm.c's file.
/// Frozen parameters are placed in a memory of their own, and so are the tables.
pub(super) fn arrange(plan: &mut Plan) {
    let mut kinds = vec![];
    for param in &plan.params {
        if !kinds.contains(&param.kind()) {
            kinds.push(param.kind());
        }
    }
    // stable: layers keep their order
    plan.params.sort_by_cached_key(|param| kinds.iter().position(|kind| *kind == param.kind()));
    let (mut ends, mut to) = ([0; MemorySpace::ALL.len()], HashMap::new());
    let mut put = |region: Region, room: usize| {
        let end = &mut ends[region.space as usize];
        to.insert(key(region), *end);
        *end = (*end + room).next_multiple_of(ALIGN);
    };
    plan.tables.iter().for_each(|(region, _)| put(*region, region.len()));
    plan.params.iter().for_each(|param| put(param.region, room(param)));
    let cache = |op: &Op| if let Op::Attend { cache, .. } = op { *cache } else { None };
    plan.ops.iter().filter_map(cache).for_each(|region| put(region, region.len()));
    relocate(plan, &to);
    for space in [MemorySpace::Table, MemorySpace::Const, MemorySpace::Cache] {
        plan.sizes[space as usize] = ends[space as usize];
    }
    for space in
        [MemorySpace::Param, MemorySpace::Grad, MemorySpace::Moment1, MemorySpace::Moment2, MemorySpace::Average]
    {
        plan.sizes[space as usize] = ends[MemorySpace::Param as usize];
    }
}

/// Who reads and who makes the activations of a list, as its reverse asks for it.
struct Uses<'a> {
    ops: &'a [Op],
    /// The ops that read an activation, in order.
    readers: HashMap<Key, Vec<usize>>,
    /// The op that makes it.
    producers: HashMap<Key, usize>,
    /// Whether gradients of parameters are computed when the backward ends ([`Plan::keeps_gradient_inputs`]).
    keeps_gradient_inputs: bool,
}

impl<'a> Uses<'a> {
    fn new(ops: &'a [Op], keeps_gradient_inputs: bool) -> Uses<'a> {
        let (mut readers, mut producers): (HashMap<Key, Vec<usize>>, HashMap<Key, usize>) = Default::default();
        for (i, op) in ops.iter().enumerate() {
            op.inputs().into_iter().flatten().for_each(|x| readers.entry(key(x)).or_default().push(i));
            producers.insert(key(op.output()), i);
        }
        Uses { ops, readers, producers, keeps_gradient_inputs }
    }

    /// The last op before `i` that reads `x`: in the backward, the next to write its gradient.
    fn next_writer(&self, x: Region, i: usize) -> Option<usize> {
        let all = self.readers.get(&key(x)).map_or(&[][..], Vec::as_slice);
        all[..all.partition_point(|reader| *reader < i)].last().copied()
    }

    /// Whether the backward of op `writer` comes after all that read the gradient of `x`. The backward runs from the
    /// last op to the first: what made `x` reads its gradient before an earlier op writes, but for gradients of
    /// parameters that wait for the end.
    fn is_read_before(&self, x: Region, writer: usize) -> bool {
        let reader = self.producers.get(&key(x)).copied().unwrap_or(0);
        reader > writer && !(self.keeps_gradient_inputs && self.ops[reader].learns())
    }

    /// Whether the gradient of the `n`-th operand of op `i` may be the region of its output's gradient: only that of a
    /// sum, whose operands have the same gradient as the sum itself. Nobody has written the operand's gradient yet.
    /// `is_held` is whether gradients of parameters read the output's gradient when the backward ends.
    fn may_share(&self, i: usize, n: usize, is_held: bool) -> bool {
        let Op::Add { a, b, scale, .. } = self.ops[i] else { return false };
        let (x, other) = if n == 0 { (a, b) } else { (b, a) };
        let [next_of_x, next_of_other] = [x, other].map(|operand| self.next_writer(operand, i));

        let is_scaled = n == 1 && scale != 1.0;
        let is_both = a == b;
        let changes_held = is_held && next_of_x.is_some();
        let changes_other = next_of_x.is_some_and(|writer| !self.is_read_before(other, writer));
        let is_changed_by_other = next_of_other.is_some_and(|writer| !self.is_read_before(x, writer));
        !(is_scaled || is_both || changes_held || changes_other || is_changed_by_other)
    }
}

/// Derives the backward pass: the list in reverse, each op with the regions of its gradients. The first op to write
/// a gradient overwrites it and later ones add, so no gradient is set to zero first. The gradients of a residual
/// sum's operands share the memory of its output's gradient where no value is lost by that. A tensor that depends on
/// no learning parameter gets no gradient.
pub(super) fn differentiate(plan: &mut Plan) {
    let watched = match plan.mode {
        Mode::Train { .. } => false,
        Mode::Inspect { .. } => true,
        Mode::Score { .. } | Mode::Layers { .. } | Mode::Decode { .. } => return,
    };
    if plan.losses().is_none() {
        return;
    }
    let ops = plan.ops.clone();
    let mut moves: HashSet<Key> = HashSet::new(); // activations that change when parameters learn
    for op in &ops {
        if op.learns() || op.inputs().into_iter().flatten().any(|x| moves.contains(&key(x))) {
            moves.insert(key(op.output()));
        }
    }
    let uses = Uses::new(&ops, plan.keeps_gradient_inputs);
    let mut alias: HashMap<Key, Region> = HashMap::new(); // activation -> the region its gradient shares
    let mut written: HashSet<Key> = HashSet::new();
    let mut held: HashSet<Key> = HashSet::new(); // gradients that gradients of parameters read when the backward ends
    let mut back = vec![];
    for (i, op) in ops.iter().enumerate().rev().filter(|(_, op)| moves.contains(&key(op.output()))) {
        let grad = |alias: &HashMap<Key, Region>, region: Region| {
            *alias.get(&key(region)).unwrap_or(&region.in_space(MemorySpace::ActGrad))
        };
        let dy = (!matches!(op, Op::Classify { .. })).then(|| grad(&alias, op.output()));
        held.extend(dy.filter(|_| plan.keeps_gradient_inputs && op.learns()).map(key));
        let mut dx = [None; 2];
        for (n, x) in op.inputs().into_iter().enumerate() {
            let Some(x) = x.filter(|x| moves.contains(&key(*x))) else { continue };
            let first = !written.contains(&key(x));
            let is_held = dy.is_some_and(|dy| held.contains(&key(dy)));
            let shares = !watched && first && uses.may_share(i, n, is_held);
            if shares {
                alias.insert(key(x), dy.expect("a sum has an output"));
            } else {
                dx[n] = Some(Grad { region: grad(&alias, x), add: !first });
            }
            written.insert(key(x));
        }
        let mut copy = *op;
        let mut seen = [None; 3];
        if watched {
            let regions = copy.operands().filter(|(access, _)| *access == Access::Watched).map(|(_, s)| *s);
            seen.iter_mut().zip(regions).for_each(|(to, region)| {
                *to = Some(Region { at: UNPLACED + region.at, space: MemorySpace::ActGrad, ..region })
            });
        }
        back.push(Back { index: i, op: *op, dy, dx, watched: seen });
    }
    plan.back = back.into_iter().map(Pass::Back).collect();
    if watched {
        name_gradients(plan);
    }
}

/// Records the region of its gradient with every named activation.
fn name_gradients(plan: &mut Plan) {
    let mut of: HashMap<Key, Region> = HashMap::new();
    for back in plan.back.iter().filter_map(Pass::back) {
        if let Some(dy) = back.dy {
            of.insert(key(back.op.output()), dy);
        }
        let mut op = back.op;
        let watched = op.operands().filter(|(access, _)| *access == Access::Watched).map(|(_, s)| *s);
        for (region, grad) in watched.zip(back.watched).filter_map(|(s, g)| Some((s, g?))) {
            of.insert(key(region), grad);
        }
    }
    for tensor in &mut plan.tensors {
        tensor.grad = of.get(&key(tensor.region)).copied();
    }
}

/// Gives activations, statistics and gradients their final regions. Tensors that are never alive at once share
/// memory, except in [`Mode::Inspect`]. In [`Mode::Layers`] what one of the `blocks` alone uses is alive while that
/// block runs, and everything else, such as the input of a block, always: any block may run again.
pub(super) fn compact(plan: &mut Plan, blocks: &[Range<usize>]) {
    let steps = plan.ops.len() + plan.back.len();
    let mode = plan.mode;
    // from when and until when a tensor that is used at a step alone is alive
    let alive = |step: usize| match mode {
        Mode::Inspect { .. } => (0, steps),
        Mode::Layers { .. } => match blocks.iter().find(|block| block.contains(&step)) {
            Some(block) => (block.start, block.end - 1),
            None => (0, steps),
        },
        _ => (step, step),
    };
    let apart = matches!(mode, Mode::Layers { .. });
    let mut lives: Vec<(Region, usize, usize)> = vec![]; // region, first step, last step
    let mut found: HashMap<Key, usize> = HashMap::new();
    let mut touch = |region: Region, step: usize| {
        if !matches!(region.space, MemorySpace::Act | MemorySpace::ActGrad | MemorySpace::Stat) {
            return;
        }
        let (first, last) = alive(step);
        let i = *found.entry(key(region)).or_insert_with(|| {
            lives.push((region, first, last));
            lives.len() - 1
        });
        let (_, from, until) = &mut lives[i];
        if apart && *from != first {
            (*from, *until) = (0, steps); // more than one block uses it: any of them may run again
        } else {
            *until = last.max(*until);
        }
    };
    for (step, op) in plan.ops.iter_mut().enumerate() {
        op.operands().for_each(|(_, region)| touch(*region, step));
    }
    let losses = plan.losses();
    let logits = plan.tensors.iter().find(|t| t.name == "logits").map(|t| t.region);
    for (step, pass) in (plan.ops.len()..).zip(&mut plan.back) {
        let back = match pass {
            Pass::Recompute(op) => {
                op.operands().for_each(|(_, region)| touch(*region, step));
                continue;
            }
            Pass::Back(back) => back,
        };
        gradients(back).into_iter().for_each(|region| touch(*region, step));
        // gradients of parameters are then computed at the end
        let late = plan.keeps_gradient_inputs && back.op.learns();
        let dy = back.dy;
        dy.into_iter().filter(|_| late).for_each(|region| touch(region, steps));
        let step = if late { steps } else { step };
        saved(back).for_each(|region| touch(*region, step));
    }
    // what is read after the run stays
    losses.into_iter().chain(logits).for_each(|region| touch(region, steps));
    lives.sort_by_key(|(_, first, _)| *first);
    let mut to = HashMap::new();
    let mut memories: HashMap<MemorySpace, Free> = HashMap::new();
    for (region, first, last) in lives {
        let len = region.len().next_multiple_of(ALIGN);
        let memory = memories.entry(region.space).or_insert_with(Free::all);
        memory.release(first);
        to.insert(key(region), memory.take(len, last));
    }
    relocate(plan, &to);
    for space in [MemorySpace::Act, MemorySpace::ActGrad, MemorySpace::Stat] {
        plan.sizes[space as usize] = memories.get(&space).map_or(0, |memory| memory.size);
    }
}

/// A memory while tensors get their places in it, in the order in which they come alive: each gets the first gap that
/// it fits.
struct Free {
    /// Gaps, from their beginning to their end; the last has none.
    gaps: BTreeMap<usize, usize>,
    /// What is taken, by the last step that needs it.
    taken: BTreeMap<usize, Vec<Range<usize>>>,
    size: usize,
}

impl Free {
    fn all() -> Free {
        Free { gaps: BTreeMap::from([(0, usize::MAX)]), taken: BTreeMap::new(), size: 0 }
    }

    /// Gives back what no step from `first` on needs.
    fn release(&mut self, first: usize) {
        let needed = self.taken.split_off(&first);
        for Range { mut start, mut end } in std::mem::replace(&mut self.taken, needed).into_values().flatten() {
            if let Some((before, _)) = self.gaps.range(..start).next_back().filter(|(_, end)| **end == start) {
                start = *before;
            }
            if let Some(after) = self.gaps.remove(&end) {
                end = after;
            }
            self.gaps.insert(start, end);
        }
    }

    /// A place for `len` elements that are needed until the step `last`.
    fn take(&mut self, len: usize, last: usize) -> usize {
        let fits = |(start, end): &(usize, usize)| end - start >= len;
        let (at, end) = self.gaps.iter().map(|gap| (*gap.0, *gap.1)).find(fits).expect("the last gap has no end");
        self.gaps.remove(&at);
        self.gaps.extend(Some((at + len, end)).filter(|(start, end)| start < end));
        self.taken.entry(last).or_default().push(at..at + len);
        self.size = self.size.max(at + len);
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numeric::random;

    /// Every tensor gets the lowest place at which it meets no other that is alive at the same time.
    #[test]
    fn tensors_get_the_first_gap_that_fits() {
        for seed in 1..=4 {
            let draw = |site, i, n| random::below(seed, site, i, n) as usize;
            let (mut memory, mut placed): (Free, Vec<(usize, usize, usize)>) = (Free::all(), vec![]);
            let mut first = 0;
            for i in 0..600 {
                first += draw(1, i, 3);
                let (len, last) = (ALIGN * (1 + draw(2, i, 40)), first + draw(3, i, 60) * draw(4, i, 3));
                let mut taken: Vec<(usize, usize)> =
                    placed.iter().filter(|(_, _, last)| first <= *last).map(|(at, end, _)| (*at, *end)).collect();
                taken.sort_unstable();
                let above = |at: usize, (from, end): &(usize, usize)| if at + len <= *from { at } else { at.max(*end) };
                let at = taken.iter().fold(0, above);
                memory.release(first);
                assert_eq!(memory.take(len, last), at, "tensor {i} of {len}, seed {seed}");
                placed.push((at, at + len, last));
            }
            assert_eq!(memory.size, placed.iter().map(|(_, end, _)| *end).max().unwrap());
        }
    }
}

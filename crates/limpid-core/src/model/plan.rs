//! Three pure passes over the list. `arrange` puts parameters kind by kind; `differentiate` reads the list
//! backwards and says where every gradient goes; `compact` gives tensors that are never alive at once one
//! place. They move numbers, not meaning: a test runs compact and full plans and compares bits.

use super::{Param, Table, Tensor, Use};
use crate::config::ConfigError;
use crate::ops::{Access, Back, Grad, Op, Pass, Slot, Space};
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// Every tensor starts at a multiple of this many elements: wide loads, whole cache lines.
pub const ALIGN: usize = 64;
/// Vocabulary rows have room for a multiple of this many (contract R193: 50,257 in 50,304).
pub const VOCAB_ALIGN: usize = 128;

/// Where a backend wants tensors to lie; what they hold is the same everywhere. [`Placement::default`] is what the processor wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placement {
    /// Elements of activations ([`activations`]) up to which all that gradients of parameters are made of is kept until the
    /// backward ends, where a batch has several sequences: these may then be run apart, and gradients of parameters be made last.
    pub keep_gradients: usize,
    /// Elements of a page: no tensor crosses a multiple of it in its memory, and no stretch of parameters that an update walks over
    /// does. A multiple of 64 (others are rounded down to one), and no less than the largest tensor.
    pub page: Option<usize>,
}

impl Placement {
    fn page(&self) -> Option<usize> {
        self.page.map(|page| page / ALIGN * ALIGN)
    }

    /// The first place from `at` on where `len` elements cross no page.
    fn place(&self, at: usize, len: usize) -> usize {
        match self.page() {
            Some(page) if !self.together(&(at..at + len)) => at.next_multiple_of(page),
            _ => at,
        }
    }

    /// Whether a stretch lies in one page.
    pub(super) fn together(&self, stretch: &Range<usize>) -> bool {
        self.page().is_none_or(|page| stretch.is_empty() || stretch.start / page == (stretch.end - 1) / page)
    }
}

/// Elements that a forward makes, before any share a place.
pub fn activations(ops: &[Op]) -> usize {
    let made = ops.iter().map(Op::output).filter(|slot| slot.space == Space::Act);
    made.map(|slot| slot.len().next_multiple_of(ALIGN)).sum()
}

/// A model while it is made: its lists, and what lies where.
pub(super) struct Plan {
    pub purpose: Use,
    pub ops: Vec<Op>,
    pub back: Vec<Pass>,
    pub tensors: Vec<Tensor>,
    pub params: Vec<Param>,
    pub tables: Vec<(Slot, Table)>,
    pub placement: Placement,
    /// Whether what gradients of parameters are made of is kept until the backward ends.
    pub keeps: bool,
    pub sizes: [usize; Space::ALL.len()],
}

impl Plan {
    fn losses(&self) -> Option<Slot> {
        self.ops.iter().find(|op| matches!(op, Op::Classify { .. })).map(Op::output)
    }
}

pub(super) type Key = (Space, usize);
pub(super) fn key(slot: Slot) -> Key {
    (slot.space, slot.at)
}

/// Moves slots to new places.
fn relocate(plan: &mut Plan, to: &HashMap<Key, usize>) {
    let shift = |slot: &mut Slot| {
        if let Some(at) = to.get(&key(*slot)) {
            slot.at = *at;
        }
    };
    for op in &mut plan.ops {
        op.operands().for_each(|(_, slot)| shift(slot));
    }
    for pass in &mut plan.back {
        match pass {
            Pass::Again(op) => op.operands().for_each(|(_, slot)| shift(slot)),
            Pass::Back(back) => {
                back.op.operands().for_each(|(_, slot)| shift(slot));
                gradients(back).into_iter().for_each(shift);
            }
        }
    }
    for tensor in &mut plan.tensors {
        shift(&mut tensor.slot);
        tensor.grad.as_mut().map(shift);
    }
    plan.params.iter_mut().for_each(|p| shift(&mut p.slot));
    plan.tables.iter_mut().for_each(|(slot, _)| shift(slot));
}

/// What the backward of an op takes of its forward's operands.
pub(super) fn saved(back: &mut Back) -> impl Iterator<Item = &mut Slot> {
    let head = matches!(back.op, Op::Classify { .. });
    back.op.operands().filter_map(move |(access, slot)| {
        let saved = matches!(access, Access::Read { saved: true } | Access::Write { saved: true } | Access::Watched);
        (saved || head).then_some(slot)
    })
}

fn gradients(back: &mut Back) -> Vec<&mut Slot> {
    let dx = back.dx.iter_mut().flatten().map(|g| &mut g.slot);
    back.dy.iter_mut().chain(dx).chain(back.watched.iter_mut().flatten()).collect()
}

/// Elements that are set aside for a parameter.
fn room(param: &Param) -> usize {
    let vocab = param.name == "embed.weight" || param.name == "unembed.weight";
    param.slot.cols * if vocab { param.slot.rows.next_multiple_of(VOCAB_ALIGN) } else { param.slot.rows }
}

/// Whether every tensor fits a page.
///
/// # Errors
/// Names the largest, if it does not.
pub(super) fn check(plan: &Plan, name: impl Fn(Slot) -> String) -> Result<(), ConfigError> {
    let Some(page) = plan.placement.page() else { return Ok(()) };
    let params = plan.params.iter().map(|param| (param.slot, room(param)));
    let operands = |op: &Op| {
        let mut op = *op;
        op.operands().map(|(_, slot)| (*slot, slot.len())).collect::<Vec<_>>()
    };
    let all = params.chain(plan.ops.iter().flat_map(operands));
    match all.max_by_key(|(_, len)| *len).filter(|(_, len)| *len > page) {
        Some((slot, elements)) => Err(ConfigError::Page { tensor: name(slot), elements, page }),
        None => Ok(()),
    }
}

/// Places parameters kind by kind, layer within kind: all `attn.qkv.weight` side by side, and so on. The stack
/// of one kind is one (L, ...) tensor, decay groups are few and long, and for GPT-2 it is the order of
/// llm.c's file (contract R292). Those that are frozen lie among the constants, after the tables.
pub(super) fn arrange(plan: &mut Plan) {
    fn kind(name: &str) -> String {
        let parts: Vec<&str> = name.split('.').filter(|part| part.parse::<usize>().is_err()).collect();
        parts.join(".")
    }
    let mut kinds: Vec<String> = vec![];
    for param in &plan.params {
        if !kinds.contains(&kind(&param.name)) {
            kinds.push(kind(&param.name));
        }
    }
    let place = |name: &str| kinds.iter().position(|k| *k == kind(name));
    plan.params.sort_by_key(|p| place(&p.name)); // stable: layers keep their order
    let (mut ends, mut to) = ([0; Space::ALL.len()], HashMap::new());
    let mut put = |slot: Slot, room: usize| {
        let end = &mut ends[slot.space as usize];
        let at = plan.placement.place(*end, room);
        to.insert(key(slot), at);
        *end = (at + room).next_multiple_of(ALIGN);
    };
    plan.tables.iter().for_each(|(slot, _)| put(*slot, slot.len()));
    plan.params.iter().for_each(|param| put(param.slot, room(param)));
    let cache = |op: &Op| if let Op::Attend { cache, .. } = op { *cache } else { None };
    plan.ops.iter().filter_map(cache).for_each(|slot| put(slot, slot.len()));
    relocate(plan, &to);
    for space in [Space::Const, Space::Cache] {
        plan.sizes[space as usize] = ends[space as usize];
    }
    for space in [Space::Param, Space::Grad, Space::Moment1, Space::Moment2, Space::Average] {
        plan.sizes[space as usize] = ends[Space::Param as usize];
    }
}

/// Derives the backward pass: the list in reverse, each op with the places of its gradients. The first
/// to write a gradient overwrites, later ones add, so none needs zeroing; the gradients of a residual sum are
/// its output's own memory where nothing is lost by it. What no parameter that learns has a part in gets none.
pub(super) fn differentiate(plan: &mut Plan) {
    let watched = match plan.purpose {
        Use::Train { .. } => false,
        Use::Inspect { .. } => true,
        Use::Score { .. } | Use::Decode { .. } => return,
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
    // the last op before `i` that reads `slot`: in the backward, the next to write its gradient
    let next_writer = |slot: Slot, i: usize| (0..i).rev().find(|j| ops_read(&ops[*j], slot));
    let producer = |slot: Slot| ops.iter().position(|op| op.output() == slot);
    let mut alias: HashMap<Key, Slot> = HashMap::new(); // activation -> the slot its gradient shares
    let mut written: Vec<Key> = vec![];
    let mut back = vec![];
    for (i, op) in ops.iter().enumerate().rev().filter(|(_, op)| moves.contains(&key(op.output()))) {
        let grad =
            |alias: &HashMap<Key, Slot>, slot: Slot| *alias.get(&key(slot)).unwrap_or(&slot.in_space(Space::ActGrad));
        let dy = (!matches!(op, Op::Classify { .. })).then(|| grad(&alias, op.output()));
        let mut dx = [None; 2];
        for (n, x) in op.inputs().into_iter().enumerate() {
            let Some(x) = x.filter(|x| moves.contains(&key(*x))) else { continue };
            let first = !written.contains(&key(x));
            // May the gradient of a sum's operand be the sum's own? Only if this is its first writer, and no one
            // still reads the shared memory after a later writer changes it.
            let sum = |scale: f32| n == 0 || scale == 1.0;
            let shares = !watched && first && matches!(op, Op::Add { scale, .. } if sum(*scale)) && {
                let [a, b] = op.inputs().map(|s| s.expect("a sum has two operands"));
                let other = if n == 0 { b } else { a };
                let read = |s: Slot| producer(s).unwrap_or(0);
                // backward runs from high to low: a read at r happens before a write at w if r > w
                let late = |reader: Slot| plan.keeps && ops[read(reader)].learns();
                let safe =
                    |reader: Slot, writer: Option<usize>| writer.is_none_or(|w| read(reader) > w && !late(reader));
                a != b && safe(other, next_writer(x, i)) && safe(x, next_writer(other, i))
            };
            if shares {
                alias.insert(key(x), dy.expect("a sum has an output"));
            } else {
                dx[n] = Some(Grad { slot: grad(&alias, x), add: !first });
            }
            written.push(key(x));
        }
        let mut copy = *op;
        let mut seen = [None; 3];
        if watched {
            let slots = copy.operands().filter(|(access, _)| *access == Access::Watched).map(|(_, s)| *s);
            seen.iter_mut().zip(slots).for_each(|(to, slot)| {
                *to = Some(Slot { at: usize::MAX / 2 + slot.at, space: Space::ActGrad, ..slot })
            });
        }
        back.push(Back { index: i, op: *op, dy, dx, watched: seen });
    }
    plan.back = back.into_iter().map(Pass::Back).collect();
    if watched {
        name_gradients(plan);
    }
}

fn ops_read(op: &Op, slot: Slot) -> bool {
    op.inputs().into_iter().flatten().any(|x| x == slot)
}

/// Notes with every named activation where its gradient will be found.
fn name_gradients(plan: &mut Plan) {
    let mut of: HashMap<Key, Slot> = HashMap::new();
    for back in plan.back.iter().filter_map(Pass::back) {
        if let Some(dy) = back.dy {
            of.insert(key(back.op.output()), dy);
        }
        let mut op = back.op;
        let watched = op.operands().filter(|(access, _)| *access == Access::Watched).map(|(_, s)| *s);
        for (slot, grad) in watched.zip(back.watched).filter_map(|(s, g)| Some((s, g?))) {
            of.insert(key(slot), grad);
        }
    }
    for tensor in &mut plan.tensors {
        tensor.grad = of.get(&key(tensor.slot)).copied();
    }
}

/// Gives activations, statistics and gradients their final places; those that are never alive at once share
/// one, unless everything is to be looked at.
pub(super) fn compact(plan: &mut Plan) {
    let keep_all = matches!(plan.purpose, Use::Inspect { .. });
    let steps = plan.ops.len() + plan.back.len();
    let mut lives: Vec<(Slot, usize, usize)> = vec![]; // slot, first step, last step
    let mut found: HashMap<Key, usize> = HashMap::new();
    let mut touch = |slot: Slot, step: usize| {
        if !matches!(slot.space, Space::Act | Space::ActGrad | Space::Stat) {
            return;
        }
        let i = *found.entry(key(slot)).or_insert_with(|| {
            lives.push((slot, if keep_all { 0 } else { step }, step));
            lives.len() - 1
        });
        lives[i].2 = if keep_all { steps } else { step };
    };
    for (step, op) in plan.ops.iter_mut().enumerate() {
        op.operands().for_each(|(_, slot)| touch(*slot, step));
    }
    let losses = plan.losses();
    let logits = plan.tensors.iter().find(|t| t.name == "logits").map(|t| t.slot);
    for (step, pass) in (plan.ops.len()..).zip(&mut plan.back) {
        let back = match pass {
            Pass::Again(op) => {
                op.operands().for_each(|(_, slot)| touch(*slot, step));
                continue;
            }
            Pass::Back(back) => back,
        };
        gradients(back).into_iter().for_each(|slot| touch(*slot, step));
        // parameters' gradients are made at the end
        let late = plan.keeps && back.op.learns();
        let dy = back.dy;
        dy.into_iter().filter(|_| late).for_each(|slot| touch(slot, steps));
        let step = if late { steps } else { step };
        saved(back).for_each(|slot| touch(*slot, step));
    }
    // what is read after the run stays
    losses.into_iter().chain(logits).for_each(|slot| touch(slot, steps));
    let (mut to, mut sizes) = (HashMap::new(), HashMap::new());
    let mut placed: Vec<(Space, usize, usize, usize, usize)> = vec![]; // space, first, last, at, end
    for (slot, first, last) in lives {
        let len = slot.len().next_multiple_of(ALIGN);
        let mut taken: Vec<(usize, usize)> = placed
            .iter()
            .filter(|(space, f, l, _, _)| *space == slot.space && *f <= last && first <= *l)
            .map(|(_, _, _, at, end)| (*at, *end))
            .collect();
        taken.sort_unstable();
        let place = |at| plan.placement.place(at, len);
        let at =
            taken.iter().fold(place(0), |at, (from, end)| if at + len <= *from { at } else { place(at.max(*end)) });
        placed.push((slot.space, first, last, at, at + len));
        let size = sizes.entry(slot.space).or_insert(0);
        *size = (*size).max(at + len);
        to.insert(key(slot), at);
    }
    relocate(plan, &to);
    for space in [Space::Act, Space::ActGrad, Space::Stat] {
        plan.sizes[space as usize] = sizes.get(&space).copied().unwrap_or(0);
    }
}

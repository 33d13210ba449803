//! The optimizer. Norm, clipping and the decision to skip stay on the device, so nothing waits; the report is made of
//! sums over blocks that the host adds up in f64 when it is asked.

use crate::kernels::{self, Variant};
use crate::lists::{List, MOVED, words};
use crate::memory::{STEP, Space, Staged, Window};
use crate::passes::{Factor, ProductExtra, Rounding, SHARE, product};
use crate::{Gpu, Growing};
use limpid_core::backend::{BackendError, Result, UpdateReport};
use limpid_core::ops::MemorySpace;
use limpid_core::optimizer::{Change, Method, ParamGroup, Rule, muon, norm_of};
use std::ops::Range;

/// Elements of which a workgroup makes a sum (`BLOCK` of update.wgsl).
const BLOCK: usize = 4096;
/// Elements at the head of the sums: the factor that clips, whether something changes, whether the losses hold it back;
/// then Muon's 1 / norm.
const HEAD: usize = 2 * STEP;

/// Pieces that a group is cut in, about.
const CUTS: usize = 8;

/// The report of an update that may still run.
pub struct Pending {
    staged: Staged,
    len: usize,
    /// The norm, where the caller gave it.
    given: Option<f64>,
    /// Blocks of the norm.
    parts: Range<usize>,
    watch: Watched,
}

/// Watched ranges of the parameters, each with the places of its measured sums.
type Watched = Vec<(Range<usize>, Vec<Range<usize>>)>;

/// What `update` of update.wgsl is told of a part, beside the rule's constants.
struct Own {
    /// The rule's number in the kernel.
    number: u32,
    /// With Muon: what stays of a weight after decay, and how far it goes along the orthogonalised step.
    remaining: f32,
    along: f32,
    /// Where the part begins in that step.
    at: usize,
}

impl Own {
    fn of_part(rule: &Rule, group: &ParamGroup, start: usize) -> Own {
        if let Some((out, cols)) = group.matrix {
            let remaining = (1.0 - rule.rate * group.decay) as f32;
            let along = (-rule.rate * muon::scale(out, cols)) as f32;
            return Own { number: 3, remaining, along, at: start - group.range.start };
        }
        let number = match rule.method {
            Method::Sgd => 0,
            Method::Adam => 1,
            Method::AdamW | Method::Muon => 2,
        };
        Own { number, remaining: 1.0, along: 0.0, at: 0 }
    }
}

/// A part of a group that one dispatch updates.
struct UpdateRange {
    group: usize,
    range: Range<usize>,
    /// Where its measured sums begin, if it is watched.
    sums: Option<usize>,
}

/// Puts the norm of the gradient on the list, with the factor that clips it and the decision whether anything changes:
/// sums of squares over blocks of the parts `squared`, then all of them together, then the losses that may hold the
/// update back.
fn norm_and_hold(
    list: &mut List,
    rule: &Rule,
    (spaces, squared): (&[Space], &[Range<usize>]),
    (sums, room): (&Growing, usize),
    norm: &Range<usize>,
) -> Result<()> {
    let plain = Variant::default();
    let (all, state) = (sums.window(0..room), sums.window(0..3));
    let mut at = norm.start;
    for part in squared {
        let g = spaces[MemorySpace::Grad as usize].window(part.clone());
        let words = words![g.shift, part.len(), 0u32, at];
        let workgroups = part.len().div_ceil(BLOCK);
        list.expect(MOVED * part.len() as f64);
        list.run(&kernels::SQUARES, plain, &[Some(&all), Some(&g)], words, workgroups)?;
        at += workgroups;
    }
    let most = rule.max_norm.min(3e38) as f32;
    let given = rule.norm.unwrap_or(0.0) as f32;
    let parts = sums.window(norm.clone());
    let words = words![norm.len(), parts.shift, most, given, rule.norm.is_some()];
    // state and sums are one buffer, in places of their own
    list.run(&kernels::NORM_OF, plain, &[Some(&state), Some(&parts)], words, 1)?;
    let Some((losses, most)) = rule.most_loss else { return Ok(()) };
    let losses = spaces[losses.space as usize].window(losses.range());
    let words = words![losses.len as usize / 4 - losses.shift as usize, losses.shift, most.clamp(-3e38, 3e38) as f32];
    list.run(&kernels::HOLD, plain, &[Some(&state), Some(&losses)], words, 1)
}

impl Gpu {
    /// The ranges of a group in parts that a kernel can see.
    fn pieces(&self, range: Range<usize>) -> Vec<Range<usize>> {
        let most = (self.device.adapter.binding_bytes as usize / 4 - STEP) / BLOCK * BLOCK;
        self.weights.param.pieces(range, most.max(BLOCK))
    }

    /// Cuts groups at the ends of the watched ranges, into parts that a kernel can see, and gives the watched ones
    /// places for their sums from `next` on. Also returns the first place after those.
    fn arrange(&self, groups: &[ParamGroup], watch: &[Change], mut next: usize) -> (Vec<UpdateRange>, Watched, usize) {
        let mut parts = vec![];
        let mut watched: Watched = watch.iter().map(|change| (change.range.clone(), vec![])).collect();
        for (group, ParamGroup { range: all, .. }) in groups.iter().enumerate() {
            let mut ends = vec![all.start, all.end];
            ends.extend(watch.iter().flat_map(|w| [w.range.start, w.range.end]));
            ends.retain(|end| all.start <= *end && *end <= all.end);
            ends.sort_unstable();
            ends.dedup();
            for range in ends.windows(2).flat_map(|cut| self.pieces(cut[0]..cut[1])) {
                let inside =
                    |(watched, _): &&mut (Range<usize>, _)| watched.start <= range.start && range.end <= watched.end;
                let mut first = None;
                for (_, sums) in watched.iter_mut().filter(inside) {
                    let end = next + 3 * range.len().div_ceil(BLOCK);
                    let to = *first.get_or_insert(next);
                    sums.push(to..end.max(to));
                    next = end;
                }
                parts.push(UpdateRange { group, range, sums: first });
            }
        }
        (parts, watched, next)
    }

    /// Puts an update on the device's list: the norm of the gradient, whether anything changes, then each part of each
    /// group.
    pub(crate) fn begin(&mut self, groups: &[ParamGroup], rule: &Rule, watch: &[Change]) -> Result<()> {
        self.check_groups("update", groups)?;
        self.sees(groups)?;
        self.alone("update", groups.first().map(|group| (MemorySpace::Param, group.range.start)))?;
        let squared: Vec<Range<usize>> = groups.iter().flat_map(|group| self.pieces(group.range.clone())).collect();
        let blocks: usize = squared.iter().map(|part| part.len().div_ceil(BLOCK)).sum();
        let norm = HEAD..HEAD + blocks;
        let (parts, watch, next) = self.arrange(groups, watch, norm.end);
        let spare = spare(groups);
        let [most, room] = room_of(groups);
        self.sums.ensure(&self.device, "update", most.max(next + spare))?;
        self.room.ensure(&self.device, "update", room)?;
        let read = Staged::room(&self.device, next)?; // nothing is refused once the list is begun

        let Gpu { device, weights, spaces, bindings, sums, room, .. } = self;
        let [grad, m, v] =
            [MemorySpace::Grad, MemorySpace::Moment1, MemorySpace::Moment2].map(|space| &spaces[space as usize]);
        let mut list = List::new(device, bindings);
        let plain = Variant::default();
        let state = sums.window(0..3);
        norm_and_hold(&mut list, rule, (spaces, &squared), (sums, next + spare), &norm)?;
        let [c1, c2] = rule.corrections().map(|c| c as f32);
        let [rest1, rest2] = [1.0 - rule.beta1, 1.0 - rule.beta2].map(|r| r as f32);
        let [rate, beta1, beta2, eps] = [rule.rate, rule.beta1, rule.beta2, rule.eps].map(|x| x as f32);
        let mut made = None;
        for UpdateRange { group: i, range: part, sums: to } in &parts {
            let group = &groups[*i];
            if let (Some((out, cols)), true) = (group.matrix, made != Some(*i)) {
                let (inverse, spare) = (sums.window(STEP..STEP + 1), sums.window(next..next + spare));
                orthogonal(&mut list, (group, out, cols), rule, [grad, m], room, &state, &inverse, &spare)?;
                made = Some(*i);
            }
            let [w, g, m, v] = [&weights.param, grad, m, v].map(|space| space.window(part.clone()));
            let Own { number, remaining, along, at: x_at } = Own::of_part(rule, group, part.start);
            let muon = |(out, cols)| room.window(muon_at(out, cols)..muon_at(out, cols) + out * cols);
            let x = group.matrix.map_or(v, muon);
            let (place, decay) = (to.map_or(u32::MAX, |to| to as u32), group.decay as f32);
            let mut words = [
                words![w.shift, part.len(), number, place, rate, beta1, beta2, rest1, rest2, c1, c2],
                words![eps, decay, remaining, along, x_at],
            ]
            .concat();
            let after = to.map(|_| sums.window(norm.end.max(STEP) / STEP * STEP..next + spare));
            if let Some(after) = &after {
                // the sums' binding begins behind the state's
                words[3].0 -= (after.at / 4) as u32;
            }
            let windows = [Some(&state), Some(&g), Some(&w), Some(&m), Some(&x), after.as_ref()];
            list.expect(MOVED * part.len() as f64);
            list.run(&kernels::UPDATE, plain, &windows, &words, part.len().div_ceil(BLOCK))?;
        }
        grad.buffers().for_each(|buffer| list.clear(buffer));
        list.submit("update")?;
        self.pushed = 0;
        let all = self.sums.window(0..next);
        let staged = Staged::new(&self.device, read, vec![(all.at, 4 * next as u64, all.buffer)])?;
        self.pending = Some(Pending { staged, len: next, given: rule.norm, parts: norm, watch });
        self.reported = None;
        Ok(())
    }

    /// Checks that a kernel sees each matrix that is taken whole.
    pub(crate) fn sees(&self, groups: &[ParamGroup]) -> Result<()> {
        let most = self.device.adapter.binding_bytes as usize / 4;
        let matrices = groups.iter().filter_map(|of| of.matrix).map(|(out, cols)| out * cols);
        let Some(len) = matrices.max().filter(|len| *len > most) else { return Ok(()) };
        let what = format!(
            "{} sees {most} elements at once, and Muon needs a matrix of {len} whole: adamw takes it in parts",
            self.device.adapter
        );
        Err(BackendError::NotSupported { op: "update", what, settings: &["optimizer adamw"] })
    }

    /// Checks that the model was built to train, and the groups.
    pub(crate) fn check_groups(&self, op: &'static str, groups: &[ParamGroup]) -> Result<()> {
        if !self.spaces[MemorySpace::Moment1 as usize].is_some() {
            let what = "its model was not built to train".into();
            return Err(BackendError::NotSupported { op, what, settings: &[] });
        }
        BackendError::check_groups(op, groups, self.elements)
    }

    /// Waits for the last update and reads what it found.
    pub(crate) fn found(&mut self) -> Result<()> {
        let Some(Pending { staged, len, given, parts, watch }) = &self.pending else { return Ok(()) };
        let mut sums = vec![0f32; *len];
        staged.take(&self.device, "report", &mut sums)?;
        let parts: Vec<f64> = sums[parts.clone()].iter().map(|sum| f64::from(*sum)).collect();
        let norm = given.unwrap_or_else(|| norm_of(&parts));
        let (changed, held_back, mut changes) = (sums[1] != 0.0, sums[2] != 0.0, vec![]);
        for (range, places) in watch {
            let mut change = Change::new(range.clone());
            for sums in places.iter().filter(|_| changed).flat_map(|place| sums[place.clone()].chunks_exact(3)) {
                let [gradient, weight, update] = [sums[0], sums[1], sums[2]].map(f64::from);
                change.gradient += gradient;
                change.weight += weight;
                change.update += update;
            }
            changes.push(change);
        }
        self.reported =
            Some((UpdateReport { norm, finite: changed || held_back && norm.is_finite(), held_back }, changes));
        self.pending = None;
        Ok(())
    }

    /// `to = own to + part from` over a range of two spaces of the parameters' layout.
    pub(crate) fn blend(&mut self, to: &Space, from: &Space, range: Range<usize>, factors: [f32; 2]) -> Result<()> {
        let pieces = self.pieces(range);
        let Gpu { device, bindings, .. } = self;
        let mut list = List::new(device, bindings);
        for part in pieces {
            let [to, from] = [to, from].map(|space| space.window(part.clone()));
            blend(&mut list, &to, &from, part.len(), factors)?;
        }
        list.submit("add")
    }
}

/// Muon's sums of squares.
fn spare(groups: &[ParamGroup]) -> usize {
    groups.iter().filter(|g| g.matrix.is_some()).map(|g| g.range.len().div_ceil(BLOCK)).max().unwrap_or(0)
}

/// The sums of an update whose groups are cut in some pieces, of which all are measured; and Muon's scratch.
pub fn room_of(groups: &[ParamGroup]) -> [usize; 2] {
    let blocks: usize = groups.iter().map(|group| group.range.len().div_ceil(BLOCK) + CUTS).sum();
    let room = groups.iter().filter_map(|g| g.matrix).map(|(out, cols)| muon_room(out, cols)[4]).max();
    [HEAD + 4 * blocks + spare(groups), room.unwrap_or(0)]
}

/// to = own to + part from
fn blend(list: &mut List, to: &Window, from: &Window, len: usize, [own, part]: [f32; 2]) -> Result<()> {
    let o = 0f32;
    let words = words![to.shift, len, 0u32, 0u32, o, o, o, o, o, o, o, o, o, own, part, from.shift];
    let windows = [None, Some(to), Some(from)];
    list.run(&kernels::BLEND, Variant::default(), &windows, words, len.div_ceil(SHARE))
}

/// Where Muon's matrix, its next iterate and the two squares begin in the room, and where they end.
fn muon_room(out: usize, cols: usize) -> [usize; 5] {
    let (n, side) = ((out * cols).next_multiple_of(STEP), out.min(cols).pow(2).next_multiple_of(STEP));
    [0, n, 2 * n, 2 * n + side, 2 * (n + side)]
}

/// Where the orthogonal matrix ends up: rounds alternate between two places.
fn muon_at(out: usize, cols: usize) -> usize {
    muon_room(out, cols)[muon::ROUNDS % 2]
}

/// Muon's momentum, and the matrix that is nearly orthogonal, in the room.
#[allow(clippy::too_many_arguments)] // its memory
fn orthogonal(
    list: &mut List,
    (group, out, cols): (&ParamGroup, usize, usize),
    rule: &Rule,
    [grad, moment]: [&Space; 2],
    room: &crate::Growing,
    state: &Window,
    inverse: &Window,
    sums: &Window,
) -> Result<()> {
    let (n, side, plain) = (out * cols, out.min(cols), Variant::default());
    let [x, next, s, mix, _] = muon_room(out, cols);
    let [mut x, mut next] = [x, next].map(|at| room.window(at..at + n));
    let [s, mix] = [s, mix].map(|at| room.window(at..at + side * side));
    let [g, m] = [grad, moment].map(|space| space.window(group.range.clone()));
    let (beta, rest, o) = (rule.momentum as f32, (1.0 - rule.momentum) as f32, 0f32);
    let words = words![g.shift, n, 0u32, 0u32, o, beta, o, rest, o, o, o, o, o, o, o, x.shift];
    let windows = [Some(state), Some(&g), None, Some(&m), Some(&x)];
    list.run(&kernels::MOMENTUM, plain, &windows, words, n.div_ceil(SHARE))?;
    let blocks = n.div_ceil(BLOCK);
    list.run(&kernels::SQUARES, plain, &[Some(sums), Some(&x)], words![0u32, n, 0u32, sums.shift], blocks)?;
    let words = words![blocks, sums.shift, muon::EPS as f32, 0f32, 2u32];
    list.run(&kernels::NORM_OF, plain, &[Some(inverse), Some(sums)], words, 1)?;
    let windows = [Some(inverse), Some(&x), None];
    list.run(&kernels::BLEND, plain, &windows, words![0u32, n, 1u32], n.div_ceil(SHARE))?;
    let [a, b, c] = muon::COEFFICIENTS.map(|c| c as f32);
    let wide = out <= cols;
    for _ in 0..muon::ROUNDS {
        let of = Factor::whole(&x, cols);
        let [squares, mixed] = [&s, &mix].map(|window| Factor::whole(window, side));
        let across = if wide { [false, true] } else { [true, false] };
        let size = [side, side, out.max(cols)];
        product(list, across, [of, of, squares], ProductExtra::Nothing, size, false, None, Rounding::None)?;
        product(
            list,
            [false; 2],
            [squares, squares, mixed],
            ProductExtra::Nothing,
            [side; 3],
            false,
            None,
            Rounding::None,
        )?;
        blend(list, &mix, &s, side * side, [c, b])?;
        let to = Factor::whole(&next, cols);
        let (operands, k) = if wide { ([mixed, of, to], out) } else { ([of, mixed, to], cols) };
        product(list, [false; 2], operands, ProductExtra::Nothing, [out, cols, k], false, None, Rounding::None)?;
        blend(list, &next, &x, n, [1.0, a])?;
        (x, next) = (next, x);
    }
    Ok(())
}

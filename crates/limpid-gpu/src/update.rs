//! The optimizer. Norm, clipping and the decision to skip stay on the device, so nothing waits; the report is made of sums over
//! blocks that the host adds up in f64 when it is asked.

use crate::Gpu;
use crate::kernels::{self, Variant};
use crate::lists::{List, MOVED, words};
use crate::memory::{STEP, Space, Staged, Window};
use crate::passes::{Beside, Factor, Rounding, SHARE, product};
use limpid_core::backend::{BackendError, Result, UpdateReport};
use limpid_core::ops::MemorySpace;
use limpid_core::ops::adamw::{Change, Method, ParamGroup, Rule, norm_of};
use limpid_core::ops::muon;
use std::ops::Range;

/// Elements of which a workgroup makes a sum (`BLOCK` of update.wgsl).
const BLOCK: usize = 4096;
/// Elements at the head of the sums: the factor that clips, whether something changes, whether the losses hold it back; then Muon's
/// 1 / norm.
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
    /// Measured sums of each watched range.
    watch: Vec<(Range<usize>, Vec<Range<usize>>)>,
}

impl Gpu {
    /// The ranges of a group in parts that a kernel can see.
    fn pieces(&self, range: Range<usize>) -> Vec<Range<usize>> {
        let most = (self.device.adapter.binding_bytes as usize / 4 - STEP) / BLOCK * BLOCK;
        self.weights.param.pieces(range, most.max(BLOCK))
    }

    pub(crate) fn begin(&mut self, groups: &[ParamGroup], rule: &Rule, watch: &[Change]) -> Result<()> {
        self.check_groups("update", groups)?;
        self.sees(groups)?;
        self.alone("update", groups.first().map(|group| (MemorySpace::Param, group.range.start)))?;
        let squared: Vec<Range<usize>> = groups.iter().flat_map(|group| self.pieces(group.range.clone())).collect();
        let blocks: usize = squared.iter().map(|part| part.len().div_ceil(BLOCK)).sum();
        let (norm, mut next) = (HEAD..HEAD + blocks, HEAD + blocks);
        // each part of the update: its group, its range, where its measured sums go
        let mut parts: Vec<(usize, Range<usize>, Option<usize>)> = vec![];
        let mut watched: Vec<(Range<usize>, Vec<Range<usize>>)> =
            watch.iter().map(|change| (change.range.clone(), vec![])).collect();
        for (i, group) in groups.iter().enumerate() {
            let mut ends = vec![group.range.start, group.range.end];
            ends.extend(watch.iter().flat_map(|w| [w.range.start, w.range.end]));
            ends.retain(|end| group.range.start <= *end && *end <= group.range.end);
            ends.sort_unstable();
            ends.dedup();
            for part in ends.windows(2).flat_map(|cut| self.pieces(cut[0]..cut[1])) {
                let inside = |(range, _): &&mut (Range<usize>, _)| range.start <= part.start && part.end <= range.end;
                let mut at = None;
                for (_, sums) in watched.iter_mut().filter(inside) {
                    let end = next + 3 * part.len().div_ceil(BLOCK);
                    let to = *at.get_or_insert(next);
                    sums.push(to..end.max(to));
                    next = end;
                }
                parts.push((i, part, at));
            }
        }
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
        let sums_window = sums.window(0..next + spare);
        let state = sums.window(0..3);
        let mut at = norm.start;
        for part in &squared {
            let g = grad.window(part.clone());
            let words = words![g.shift, part.len(), 0u32, at];
            let workgroups = part.len().div_ceil(BLOCK);
            list.expect(MOVED * part.len() as f64);
            list.run(&kernels::SQUARES, plain, &[Some(&sums_window), Some(&g)], words, workgroups)?;
            at += workgroups;
        }
        let most = rule.max_norm.min(3e38) as f32;
        let given = rule.norm.unwrap_or(0.0) as f32;
        let parts_of_norm = sums.window(norm.clone());
        let words = words![norm.len(), parts_of_norm.shift, most, given, rule.norm.is_some()];
        // state and sums are one buffer, in places of their own
        list.run(&kernels::NORM_OF, plain, &[Some(&state), Some(&parts_of_norm)], words, 1)?;
        if let Some((losses, most)) = rule.most_loss {
            let losses = spaces[losses.space as usize].window(losses.range());
            let words =
                words![losses.len as usize / 4 - losses.shift as usize, losses.shift, most.clamp(-3e38, 3e38) as f32];
            list.run(&kernels::HOLD, plain, &[Some(&state), Some(&losses)], words, 1)?;
        }
        let [c1, c2] = rule.corrections().map(|c| c as f32);
        let rest = [1.0 - rule.beta1, 1.0 - rule.beta2].map(|r| r as f32);
        let mut made = None;
        for (i, part, to) in &parts {
            let group = &groups[*i];
            if let (Some((out, cols)), true) = (group.matrix, made != Some(*i)) {
                let spare = sums.window(next..next + spare);
                orthogonal(
                    &mut list,
                    (group, out, cols),
                    rule,
                    [grad, m],
                    room,
                    &state,
                    &sums.window(STEP..STEP + 1),
                    &spare,
                )?;
                made = Some(*i);
            }
            let [w, g, m, v] = [&weights.param, grad, m, v].map(|space| space.window(part.clone()));
            let (number, x, x_at, own, along) = match group.matrix {
                Some((out, cols)) => {
                    let x = room.window(muon_at(out, cols)..muon_at(out, cols) + out * cols);
                    let at = part.start - group.range.start;
                    let own = (1.0 - rule.rate * group.decay) as f32;
                    (3u32, x, at, own, (-rule.rate * muon::scale(out, cols)) as f32)
                }
                None => match rule.method {
                    Method::Sgd => (0, v, 0, 1.0, 0.0),
                    Method::Adam => (1, v, 0, 1.0, 0.0),
                    Method::AdamW | Method::Muon => (2, v, 0, 1.0, 0.0),
                },
            };
            let words = words![
                w.shift,
                part.len(),
                number,
                to.map_or(u32::MAX, |to| to as u32),
                rule.rate as f32,
                rule.beta1 as f32,
                rule.beta2 as f32,
                rest[0],
                rest[1],
                c1,
                c2,
                rule.eps as f32,
                group.decay as f32,
                own,
                along,
                x_at,
            ];
            let after = to.map(|_| sums.window(norm.end.max(STEP) / STEP * STEP..next + spare));
            let words = match &after {
                // the sums' binding begins behind the state's
                Some(after) => {
                    let mut words = words.to_vec();
                    words[3].0 -= (after.at / 4) as u32;
                    words
                }
                None => words.to_vec(),
            };
            let windows = [Some(&state), Some(&g), Some(&w), Some(&m), Some(&x), after.as_ref()];
            list.expect(MOVED * part.len() as f64);
            list.run(&kernels::UPDATE, plain, &windows, &words, part.len().div_ceil(BLOCK))?;
        }
        grad.buffers().for_each(|buffer| list.clear(buffer));
        list.submit("update")?;
        self.pushed = 0;
        let all = self.sums.window(0..next);
        let staged = Staged::new(&self.device, read, vec![(all.at, 4 * next as u64, all.buffer)])?;
        self.pending = Some(Pending { staged, len: next, given: rule.norm, parts: norm, watch: watched });
        self.reported = None;
        Ok(())
    }

    /// Checks that a kernel sees each matrix that is taken whole.
    pub(crate) fn sees(&self, groups: &[ParamGroup]) -> Result<()> {
        let most = self.device.adapter.binding_bytes as usize / 4;
        let matrices = groups.iter().filter_map(|of| of.matrix).map(|(out, cols)| out * cols);
        let Some(len) = matrices.max().filter(|len| *len > most) else { return Ok(()) };
        let what = format!(
            "{} sees {most} elements at once, and Muon needs a matrix of {len} whole: --optimizer adamw takes it in parts",
            self.device.adapter
        );
        Err(BackendError::NotSupported { op: "update", what })
    }

    /// Checks that the model was built to train, and the groups.
    pub(crate) fn check_groups(&self, op: &'static str, groups: &[ParamGroup]) -> Result<()> {
        if !self.spaces[MemorySpace::Moment1 as usize].is_some() {
            return Err(BackendError::NotSupported { op, what: "its model was not built to train".into() });
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
        let (changed, held, mut changes) = (sums[1] != 0.0, sums[2] != 0.0, vec![]);
        for (range, places) in watch {
            let mut change = Change::of(range.clone());
            for sums in places.iter().filter(|_| changed).flat_map(|place| sums[place.clone()].chunks_exact(3)) {
                let [gradient, weight, update] = [sums[0], sums[1], sums[2]].map(f64::from);
                change.gradient += gradient;
                change.weight += weight;
                change.update += update;
            }
            changes.push(change);
        }
        self.reported = Some((UpdateReport { norm, finite: changed || held && norm.is_finite(), held }, changes));
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
        let of = Factor::of(&x, cols);
        let [squares, mixed] = [&s, &mix].map(|window| Factor::of(window, side));
        let across = if wide { [false, true] } else { [true, false] };
        product(
            list,
            across,
            [of, of, squares],
            Beside::Nothing,
            [side, side, out.max(cols)],
            false,
            None,
            Rounding::None,
        )?;
        product(list, [false; 2], [squares, squares, mixed], Beside::Nothing, [side; 3], false, None, Rounding::None)?;
        blend(list, &mix, &s, side * side, [c, b])?;
        let to = Factor::of(&next, cols);
        let (operands, k) = if wide { ([mixed, of, to], out) } else { ([of, mixed, to], cols) };
        product(list, [false; 2], operands, Beside::Nothing, [out, cols, k], false, None, Rounding::None)?;
        blend(list, &next, &x, n, [1.0, a])?;
        (x, next) = (next, x);
    }
    Ok(())
}

//! The optimizer on all threads: the norm of the gradient, then a pass over the groups of parameters, which also
//! measures the ranges that the caller watches.
#![allow(unsafe_code)] // threads take matrices of their own; the block says why they are disjoint

use super::team::ThreadTeam;
use super::{Backend, BackendError, Cpu, Result, UpdateReport};
use crate::matrix::arena::Arena;
use crate::matrix::view::{Mat, Shared};
use crate::matrix::{Start, Sums};
use crate::ops::MemorySpace;
use crate::optimizer::muon::{self, Blend, Momentum};
use crate::optimizer::{Change, Measure, NORM_PART, ParamGroup, Rule, adamw, norm_of, sum_of_squares};
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// How many parameters one partial measurement covers; this fixes the order of its sums.
const BLOCK: usize = 1 << 12;

impl Cpu {
    pub(super) fn update_parameters(&mut self, groups: &[ParamGroup], rule: &Rule, watch: &[Change]) -> Result<()> {
        // all that may fail comes first, so that a failure changes nothing
        self.check_groups("update", groups)?;
        if let Some(first) = groups.first() {
            self.own_weights("update", MemorySpace::Param, first.range.start)?;
        }
        let elements = muon::waves(groups).map(muon::elements).max().unwrap_or(0);
        if self.room.len() < elements {
            self.room = Arena::reserve(elements).map_err(|refused| BackendError::refused("update", &refused))?;
        }
        let held_back = rule.holds_back(|losses| self.sum(losses))?;
        let norm = match rule.norm {
            Some(norm) => {
                self.fill_blanks(0..self.grad.len());
                norm
            }
            None => norm_of(self.sums_of_squares(groups)),
        };
        self.forget(); // the update below is their last use
        let Cpu { weights, grad, moment1, moment2, room, team, solo, .. } = self;
        let param = &mut Arc::get_mut(weights).expect("nobody else holds them").param;
        let mut changes: Vec<Change> = watch.iter().map(|watched| Change::new(watched.range.clone())).collect();
        let finite = norm.is_finite();
        if !finite || held_back {
            self.reported = Some((UpdateReport { norm, finite, held_back }, changes));
            return Ok(());
        }
        let clip = rule.clip(norm) as f32;
        for wave in muon::waves(groups) {
            make_orthogonal(wave, (rule.momentum, clip), [grad, moment1], room, team, solo);
            for (i, group) in wave.iter().enumerate() {
                let g = &grad[group.range.clone()];
                let memories = [&mut *param, &mut *moment1, &mut *moment2];
                let memories = memories.map(|memory| &mut memory[group.range.clone()]);
                let ahead = group.matrix.map(|(out, cols)| (&room[made(wave, i)], muon::scale(out, cols)));
                step(group, (rule, clip), ahead, g, memories, team, &mut changes);
            }
        }
        self.reported = Some((UpdateReport { norm, finite, held_back }, changes));
        Ok(())
    }

    /// Checks that the model was built to train, and that threads may share the groups.
    fn check_groups(&self, op: &'static str, groups: &[ParamGroup]) -> Result<()> {
        let elements = self.weights.param.len();
        if self.moment1.len() < elements {
            let what = "its model was not built to train".into();
            return Err(BackendError::NotSupported { op, what, settings: &[] });
        }
        BackendError::check_groups(op, groups, elements)
    }

    /// The sum of squares of each part of the groups' gradients, in order.
    pub(super) fn sums_of_squares(&mut self, groups: &[ParamGroup]) -> &[f64] {
        self.fill_blanks(0..self.grad.len());
        let Cpu { grad, team, partial, .. } = self;
        partial.resize(groups.iter().map(|g| g.range.len().div_ceil(NORM_PART)).sum(), 0.0);
        let mut from = 0;
        for ParamGroup { range, .. } in groups {
            let g = &grad[range.clone()];
            let sums = &mut partial[from..from + g.len().div_ceil(NORM_PART)];
            let (parts, to) = (sums.len(), Mutex::new(sums));
            from += parts;
            team.pool.run(parts, &|task, _| {
                let sum = sum_of_squares(&g[task * NORM_PART..((task + 1) * NORM_PART).min(g.len())]);
                to.lock().unwrap_or_else(|e| e.into_inner())[task] = sum;
            });
        }
        partial
    }

    pub(super) fn average_parameters(&mut self, groups: &[ParamGroup], decay: f64) -> Result<()> {
        self.check_groups("average", groups)?;
        let Cpu { weights, average, team, .. } = self;
        for ParamGroup { range, .. } in groups {
            let w = &weights.param[range.clone()];
            team.rows([(&mut average[range.clone()], 1)], |rows, [to], _| {
                team.level.run(Blend { to, own: decay as f32, from: &w[rows], part: (1.0 - decay) as f32 });
            });
        }
        Ok(())
    }
}

/// One group's step. Gradients are multiplied by `clip`; `ahead` is Muon's orthogonal matrix and its scale, if the
/// group has one. Watched ranges are measured.
fn step(
    group: &ParamGroup,
    (rule, clip): (&Rule, f32),
    ahead: Option<(&[f32], f64)>,
    g: &[f32],
    [w, m, v]: [&mut [f32]; 3],
    team: &ThreadTeam,
    watch: &mut [Change],
) {
    let (rate, decay) = (rule.rate, group.decay);
    let change = |range: Range<usize>, w: &mut [f32], m: &mut [f32], v: &mut [f32]| match ahead {
        Some((x, scale)) => {
            let (own, part) = ((1.0 - rate * decay) as f32, (-rate * scale) as f32);
            team.level.run(Blend { to: w, own, from: &x[range], part });
        }
        None => {
            let (g, decay) = (&g[range], decay as f32);
            team.level.run(adamw::Update { rule, clip, decay, w, g, m, v });
        }
    };
    let inside = |watched: &Change| {
        let (from, to) = (watched.range.start.max(group.range.start), watched.range.end.min(group.range.end));
        (from < to).then(|| from - group.range.start..to - group.range.start)
    };
    if watch.is_empty() {
        return team.rows([(w, 1), (m, 1), (v, 1)], |rows, [w, m, v], _| change(rows, w, m, v));
    }
    for watched in watch {
        let Some(range) = inside(watched) else { continue };
        let whole = range.len() / BLOCK * BLOCK;
        for (part, block) in
            [(range.start..range.start + whole, BLOCK), (range.start + whole..range.end, range.len() - whole)]
        {
            if part.is_empty() {
                continue;
            }
            let mut sums = vec![0.0; 3 * (part.len() / block)];
            let [w, m, v] = [&mut *w, &mut *m, &mut *v].map(|memory| (&mut memory[part.clone()], block));
            team.rows([w, m, v, (&mut sums, 3)], |rows, [w, m, v, sums], scratch| {
                for (i, sums) in sums.chunks_exact_mut(3).enumerate() {
                    let own = i * block..(i + 1) * block;
                    let at = part.start + (rows.start + i) * block;
                    let before = &mut scratch[..block];
                    before.copy_from_slice(&w[own.clone()]);
                    change(at..at + block, &mut w[own.clone()], &mut m[own.clone()], &mut v[own.clone()]);
                    let g = &g[at..at + block];
                    sums.copy_from_slice(&team.level.run(Measure { before, after: &w[own], g }));
                }
            });
            for sums in sums.chunks_exact(3) {
                let [gradient, weight, update] = [sums[0], sums[1], sums[2]].map(f64::from);
                watched.gradient += gradient;
                watched.weight += weight;
                watched.update += update;
            }
        }
    }
}

/// Where in the wave's scratch the orthogonal matrix of group `i` ends up: rounds alternate between two places.
fn made(wave: &[ParamGroup], i: usize) -> Range<usize> {
    let (at, n) = (muon::place(wave, i).start, wave[i].range.len());
    let at = at + muon::ROUNDS % 2 * n;
    at..at + n
}

/// Computes Muon's momentum and orthogonal direction of every matrix of a wave, into `room`. Threads that meet after
/// each product of a small matrix wait longer than they work, and on a busy machine they also wait for a core. So
/// each thread takes whole matrices where there are enough.
fn make_orthogonal(
    wave: &[ParamGroup],
    (beta, clip): (f64, f32),
    [grad, moment]: [&mut Arena; 2],
    room: &mut Arena,
    team: &ThreadTeam,
    solo: &[ThreadTeam],
) {
    let matrices = wave.iter().filter(|group| group.matrix.is_some()).count();
    let (moment, room) = (Shared::new(moment, 1), Shared::new(room, 1));
    let one = |i: usize, team: &ThreadTeam| {
        let ParamGroup { range, matrix: Some(shape), .. } = &wave[i] else { return };
        // SAFETY: groups share no parameter (`Cpu::check_groups`), nor places in the room; each group is one task.
        let [m, room] = unsafe { [moment.part(range.clone(), 0..1), room.part(muon::place(wave, i), 0..1)] };
        let (g, m, room) = (&grad[range.clone()], m.into_whole(), room.into_whole());
        team.rows([(m, 1), (&mut room[..g.len()], 1)], |rows, [m, to], _| {
            team.level.run(Momentum { beta, clip, g: &g[rows], m, to });
        });
        orthogonal(team, room, *shape);
    };
    if matrices < team.pool.threads() || solo.is_empty() {
        (0..wave.len()).for_each(|i| one(i, team));
    } else {
        team.pool.run(wave.len(), &|i, id| one(i, &solo[id]));
    }
}

/// Makes the (out, cols) matrix at the beginning of `room` nearly orthogonal; [`made`] says where the result is.
fn orthogonal(team: &ThreadTeam, room: &mut [f32], (out, cols): (usize, usize)) {
    let (n, side) = (out * cols, out.min(cols));
    let (mut x, rest) = room.split_at_mut(n);
    let (mut next, rest) = rest.split_at_mut(n);
    let (s, mix) = rest.split_at_mut(side * side);
    let [a, b, c] = muon::COEFFICIENTS.map(|c| c as f32);
    let blend = |to: &mut [f32], own: f32, from: &[f32], part: f32| {
        team.rows([(to, 1)], |rows, [to], _| team.level.run(Blend { to, own, from: &from[rows], part }));
    };
    // in f64, part after part: the same for every number of threads
    let norm = x.chunks(NORM_PART).map(sum_of_squares).sum::<f64>().sqrt() + muon::EPS;
    x.iter_mut().for_each(|x| *x = (f64::from(*x) / norm) as f32);
    for _ in 0..muon::ROUNDS {
        let of = Mat::new(x, cols);
        let (left, right) = if out <= cols { (of, of.t()) } else { (of.t(), of) };
        team.product_symmetric(s, left, right);
        let square = Mat::new(s, side);
        team.product_symmetric(mix, square, square);
        blend(mix, c, s, b);
        let mixed = Mat::new(mix, side);
        let (left, right) = if out <= cols { (mixed, of) } else { (of, mixed) };
        team.product(next, left, right, Start::Zero, Sums::Blocks);
        blend(next, 1.0, x, a);
        (x, next) = (next, x);
    }
}

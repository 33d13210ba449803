//! The optimizer on all threads: the norm of the gradient, then a pass over the parameters, stretch by stretch; with what
//! was asked to be watched measured on the way.

use super::crew::Crew;
use super::{Backend, Cpu, Report};
use crate::ops::adamw::{self, Change, Group, Measure, Method, Rule};
use crate::ops::arena::Arena;
use crate::ops::linear::gemm::Start;
use crate::ops::muon::{self, Blend, Momentum};
use crate::ops::view::Mat;
use std::ops::Range;
use std::sync::Mutex;

/// Gradients whose squares are summed in one go: fixes the order of the norm's sum.
pub const PART: usize = 1 << 16;

/// Parameters that are measured in one go, likewise.
const BLOCK: usize = 1 << 12;

impl Cpu {
    pub(super) fn update_parameters(&mut self, groups: &[Group], rule: &Rule, watch: &mut [Change]) -> Report {
        self.fill_blanks(0..self.grad.len());
        self.clear(); // once they are used below
        let Cpu { weights, grad, moment1, moment2, room, crew, partial, .. } = self;
        let norm = norm(groups, grad, crew, partial);
        if !norm.is_finite() {
            return Report { norm, finite: false };
        }
        let clip = rule.clip(norm) as f32;
        for group in groups {
            let g = &grad[group.range.clone()];
            let [w, m, v] = [&mut weights.param, moment1, moment2].map(|memory| &mut memory[group.range.clone()]);
            let matrix = group.matrix.filter(|_| rule.method == Method::Muon);
            let ahead = matrix.map(|(out, cols)| {
                let beta = rule.momentum;
                let to = reserve(room, out, cols);
                crew.rows([(&mut *m, 1), (&mut *to, 1)], |rows, [m, to], _| {
                    crew.level.run(Momentum { beta, clip, g: &g[rows], m, to });
                });
                (orthogonal(crew, room, (out, cols)), muon::scale(out, cols))
            });
            let (rate, decay) = (rule.rate, group.decay);
            let step = |range: Range<usize>, w: &mut [f32], m: &mut [f32], v: &mut [f32]| match ahead {
                Some((x, scale)) => {
                    let (own, part) = ((1.0 - rate * decay) as f32, (-rate * scale) as f32);
                    crew.level.run(Blend { to: w, own, from: &x[range], part });
                }
                None => {
                    let (g, decay) = (&g[range], decay as f32);
                    crew.level.run(adamw::Update { rule, clip, decay, w, g, m, v });
                }
            };
            let inside = |change: &Change| {
                let (from, to) = (change.range.start.max(group.range.start), change.range.end.min(group.range.end));
                (from < to).then(|| from - group.range.start..to - group.range.start)
            };
            if watch.is_empty() {
                crew.rows([(w, 1), (m, 1), (v, 1)], |rows, [w, m, v], _| step(rows, w, m, v));
                continue;
            }
            for change in &mut *watch {
                let Some(range) = inside(change) else { continue };
                let whole = range.len() / BLOCK * BLOCK;
                for (part, block) in
                    [(range.start..range.start + whole, BLOCK), (range.start + whole..range.end, range.len() - whole)]
                {
                    if part.is_empty() {
                        continue;
                    }
                    let mut sums = vec![0.0; 3 * (part.len() / block)];
                    let [w, m, v] = [&mut *w, &mut *m, &mut *v].map(|memory| (&mut memory[part.clone()], block));
                    crew.rows([w, m, v, (&mut sums, 3)], |rows, [w, m, v, sums], scratch| {
                        for (i, sums) in sums.chunks_exact_mut(3).enumerate() {
                            let own = i * block..(i + 1) * block;
                            let at = part.start + (rows.start + i) * block;
                            let before = &mut scratch[..block];
                            before.copy_from_slice(&w[own.clone()]);
                            step(at..at + block, &mut w[own.clone()], &mut m[own.clone()], &mut v[own.clone()]);
                            let g = &g[at..at + block];
                            sums.copy_from_slice(&crew.level.run(Measure { before, after: &w[own], g }));
                        }
                    });
                    for sums in sums.chunks_exact(3) {
                        let [gradient, weight, update] = [sums[0], sums[1], sums[2]].map(f64::from);
                        change.gradient += gradient;
                        change.weight += weight;
                        change.update += update;
                    }
                }
            }
        }
        Report { norm, finite: true }
    }

    pub(super) fn average_parameters(&mut self, groups: &[Group], decay: f64) {
        let Cpu { weights, average, crew, .. } = self;
        for Group { range, .. } in groups {
            let w = &weights.param[range.clone()];
            crew.rows([(&mut average[range.clone()], 1)], |rows, [to], _| {
                crew.level.run(Blend { to, own: decay as f32, from: &w[rows], part: (1.0 - decay) as f32 });
            });
        }
    }
}

/// The norm of the gradients of all groups, in one order.
fn norm(groups: &[Group], grad: &[f32], crew: &Crew, partial: &mut [f64]) -> f64 {
    let mut from = 0;
    for Group { range, .. } in groups {
        let g = &grad[range.clone()];
        let sums = &mut partial[from..from + g.len().div_ceil(PART)];
        let (parts, to) = (sums.len(), Mutex::new(sums));
        from += parts;
        crew.pool.run(parts, &|task, _| {
            let sum = adamw::sum_of_squares(&g[task * PART..((task + 1) * PART).min(g.len())]);
            to.lock().unwrap_or_else(|e| e.into_inner())[task] = sum;
        });
    }
    partial[..from].iter().sum::<f64>().sqrt()
}

/// Room for a matrix that is to become orthogonal.
fn reserve(room: &mut Arena, out: usize, cols: usize) -> &mut [f32] {
    if room.len() < muon::room(out, cols) {
        *room = Arena::new(muon::room(out, cols));
    }
    &mut room[..out * cols]
}

/// Makes the (out, cols) matrix at the beginning of `room` nearly orthogonal, and says where it is then.
fn orthogonal<'a>(crew: &Crew, room: &'a mut Arena, (out, cols): (usize, usize)) -> &'a [f32] {
    let (n, side) = (out * cols, out.min(cols));
    let (mut x, rest) = room.split_at_mut(n);
    let (mut next, rest) = rest.split_at_mut(n);
    let (s, rest) = rest.split_at_mut(side * side);
    let mix = &mut rest[..side * side];
    let [a, b, c] = muon::COEFFICIENTS.map(|c| c as f32);
    let blend = |to: &mut [f32], own: f32, from: &[f32], part: f32| {
        crew.rows([(to, 1)], |rows, [to], _| crew.level.run(Blend { to, own, from: &from[rows], part }));
    };
    // in f64, part after part: the same however it is shared out
    let norm = x.chunks(PART).map(adamw::sum_of_squares).sum::<f64>().sqrt() + muon::EPS;
    x.iter_mut().for_each(|x| *x = (f64::from(*x) / norm) as f32);
    for _ in 0..muon::ROUNDS {
        let of = Mat::new(x, cols);
        let (left, right) = if out <= cols { (of, of.t()) } else { (of.t(), of) };
        crew.product(s, left, right, Start::Zero);
        let square = Mat::new(s, side);
        crew.product(mix, square, square, Start::Zero);
        blend(mix, c, s, b);
        let mixed = Mat::new(mix, side);
        let (left, right) = if out <= cols { (mixed, of) } else { (of, mixed) };
        crew.product(next, left, right, Start::Zero);
        blend(next, 1.0, x, a);
        (x, next) = (next, x);
    }
    x
}

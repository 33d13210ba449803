//! Muon (Jordan et al. 2024): momentum whose step is orthogonalised, for the matrices inside the model; all other
//! parameters take AdamW's step. With g the gradient after clipping, b the momentum, d the weight decay and (o, i)
//! the shape of the matrix:
//!
//!   m = b m + (1 - b) g;   u = b m + (1 - b) g                                  (Nesterov's look ahead)
//!   x = u / |u|;   five times x = a x + (b s + c s s) x with s = x x'           (Newton and Schulz; s = x' x if o > i)
//!   w -= rate (d w + 0.2 sqrt(max(o, i)) x)
//!
//! The iteration brings every singular value near 1 (0.68 to 1.13). The factor makes a step about as large as
//! AdamW's, so both use the same learning rate (Liu et al. 2025). Queries, keys and values are three separate
//! matrices.
//!
//! Five iterations are 10 products of (m, m) by (m, n) and 5 of (m, m) by (m, m), with m the shorter side: at
//! GPT-2's width about the work of a step of 6 d_model tokens, whatever the batch.

use super::ParamGroup;
use crate::numeric::simd::{Kernel, MulAdd, fma};
use std::ops::Range;

/// a, b and c of the iteration.
pub const COEFFICIENTS: [f64; 3] = [3.4445, -4.7750, 2.0315];
/// Iterations.
pub const ROUNDS: usize = 5;
/// Added to the norm.
pub const EPS: f64 = 1e-7;

/// The factor of the orthogonal step of an (out, in) matrix.
pub fn scale(out: usize, cols: usize) -> f64 {
    0.2 * (out.max(cols) as f64).sqrt()
}

/// Elements of scratch to orthogonalise an (out, in) matrix: the matrix, its next iterate, and two squares of its
/// shorter side.
pub fn room(out: usize, cols: usize) -> usize {
    let side = out.min(cols);
    2 * (out * cols + side * side)
}

/// Elements of scratch that the small matrices of one wave share; a larger matrix is a wave by itself.
const TOGETHER: usize = 4 << 20;

/// The groups in waves: the matrices of one wave are orthogonalised at the same time.
pub fn waves(mut groups: &[ParamGroup]) -> impl Iterator<Item = &[ParamGroup]> {
    std::iter::from_fn(move || {
        let fits = |n: &usize| elements(&groups[..*n]) <= TOGETHER;
        let n = (2..=groups.len()).take_while(fits).last().unwrap_or(groups.len().min(1));
        groups.split_off(..n).filter(|wave| !wave.is_empty())
    })
}

/// Elements of scratch of a wave.
pub fn elements(wave: &[ParamGroup]) -> usize {
    wave.iter().filter_map(|group| group.matrix).map(|(out, cols)| room(out, cols)).sum()
}

/// The scratch of group `i` of a wave; empty if the group is no matrix.
pub fn place(wave: &[ParamGroup], i: usize) -> Range<usize> {
    elements(&wave[..i])..elements(&wave[..=i])
}

/// Plain f64 loops.
pub mod reference {
    use super::super::Rule;
    use super::{COEFFICIENTS, EPS, ROUNDS, scale};

    /// (n,k) by (k,m).
    fn product(a: &[f64], b: &[f64], k: usize) -> Vec<f64> {
        let (n, m) = (a.len() / k, b.len() / k);
        (0..n * m).map(|at| (0..k).map(|j| a[at / m * k + j] * b[j * m + at % m]).sum()).collect()
    }

    /// (n,m) from (m,n).
    fn transpose(x: &[f64], cols: usize) -> Vec<f64> {
        let rows = x.len() / cols;
        (0..x.len()).map(|i| x[i % rows * cols + i / rows]).collect()
    }

    /// The nearly orthogonal matrix that x, (rows, cols), becomes.
    pub fn orthogonal(x: &[f64], cols: usize) -> Vec<f64> {
        let rows = x.len() / cols;
        if rows > cols {
            return transpose(&orthogonal(&transpose(x, cols), rows), rows);
        }
        let norm = x.iter().map(|v| v * v).sum::<f64>().sqrt() + EPS;
        let mut x: Vec<f64> = x.iter().map(|v| v / norm).collect();
        let [a, b, c] = COEFFICIENTS;
        for _ in 0..ROUNDS {
            let s = product(&x, &transpose(&x, cols), cols);
            let ss = product(&s, &s, rows);
            let mix: Vec<f64> = s.iter().zip(&ss).map(|(s, ss)| b * s + c * ss).collect();
            let moved = product(&mix, &x, rows);
            x.iter_mut().zip(moved).for_each(|(x, moved)| *x = a * *x + moved);
        }
        x
    }

    /// Updates one matrix of `cols` columns; `clip` is the factor of the gradients.
    pub fn update(rule: &Rule, clip: f64, decay: f64, cols: usize, w: &mut [f64], g: &[f64], m: &mut [f64]) {
        let (rate, beta, rest) = (rule.rate, rule.momentum, 1.0 - rule.momentum);
        m.iter_mut().zip(g).for_each(|(m, g)| *m = beta * *m + rest * clip * g);
        let ahead: Vec<f64> = m.iter().zip(g).map(|(m, g)| beta * m + rest * clip * g).collect();
        let scale = scale(w.len() / cols, cols);
        for (w, x) in w.iter_mut().zip(orthogonal(&ahead, cols)) {
            *w -= rate * (decay * *w + scale * x);
        }
    }
}

/// The momentum, and Nesterov's look ahead from it.
pub struct Momentum<'a> {
    /// b
    pub beta: f64,
    /// The factor of the gradients.
    pub clip: f32,
    /// Gradients.
    pub g: &'a [f32],
    /// First moments.
    pub m: &'a mut [f32],
    /// u
    pub to: &'a mut [f32],
}

impl Kernel for Momentum<'_> {
    #[inline(always)]
    fn run<M: MulAdd>(self) {
        let (beta, rest) = (self.beta as f32, (1.0 - self.beta) as f32);
        for ((m, g), to) in self.m.iter_mut().zip(self.g).zip(self.to) {
            let g = rest * self.clip * *g;
            *m = fma::<M>(beta, *m, g);
            *to = fma::<M>(beta, *m, g);
        }
    }
}

/// `to = own to + part from`, element by element.
pub struct Blend<'a> {
    /// The tensor that is changed.
    pub to: &'a mut [f32],
    /// Its factor.
    pub own: f32,
    /// The tensor that is added.
    pub from: &'a [f32],
    /// Its factor.
    pub part: f32,
}

impl Kernel for Blend<'_> {
    #[inline(always)]
    fn run<M: MulAdd>(self) {
        for (to, from) in self.to.iter_mut().zip(self.from) {
            *to = fma::<M>(self.own, *to, self.part * *from);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numeric::random;
    use crate::optimizer::{Method, Rule};

    /// The orthogonal factor of the polar decomposition, by another iteration that converges: x = x (3 - x' x) / 2.
    fn polar(x: &[f64], cols: usize) -> Vec<f64> {
        let rows = x.len() / cols;
        let norm = x.iter().map(|v| v * v).sum::<f64>().sqrt();
        let mut x: Vec<f64> = x.iter().map(|v| v / norm).collect();
        for _ in 0..60 {
            let s = |x: &[f64], i: usize, j: usize| (0..rows).map(|k| x[k * cols + i] * x[k * cols + j]).sum::<f64>();
            let gram: Vec<f64> = (0..cols * cols).map(|at| s(&x, at / cols, at % cols)).collect();
            x = (0..x.len())
                .map(|at| {
                    let (i, j) = (at / cols, at % cols);
                    1.5 * x[at] - 0.5 * (0..cols).map(|k| x[i * cols + k] * gram[k * cols + j]).sum::<f64>()
                })
                .collect();
        }
        x
    }

    #[test]
    fn the_step_points_where_the_polar_factor_does() {
        // drawn matrices that are not square have no very small singular values, which five rounds would not bring
        // near 1
        for (rows, cols) in [(24, 12), (20, 8)] {
            let x: Vec<f64> = (0..rows * cols).map(|i| random::normal(3, 1, i as u64)).collect();
            let (near, exact) = (reference::orthogonal(&x, cols), polar(&x, cols));
            let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
            let cosine = dot(&near, &exact) / (dot(&near, &near) * dot(&exact, &exact)).sqrt();
            // singular values between 0.68 and 1.13, instead of 1, are that far off at most
            assert!(cosine > 0.97 && (dot(&exact, &exact) - cols as f64).abs() < 1e-6, "{rows} {cols}: {cosine}");
            let size = (dot(&near, &near) / cols as f64).sqrt();
            assert!((0.68..1.13).contains(&size), "{size}");
            // a matrix and its transpose are the same matrix
            let turned: Vec<f64> = (0..x.len()).map(|i| x[i % rows * cols + i / rows]).collect();
            let back = reference::orthogonal(&turned, rows);
            assert!((0..x.len()).all(|i| (back[i] - near[i % rows * cols + i / rows]).abs() < 1e-12));
        }
    }

    #[test]
    fn waves_hold_what_fits_and_places_do_not_meet() {
        let mut at = 0;
        let mut group = |matrix: Option<(usize, usize)>| {
            let n = matrix.map_or(7, |(out, cols)| out * cols);
            at += n;
            ParamGroup { range: at - n..at, decay: 0.0, matrix }
        };
        let [small, large] = [Some((384, 384)), Some((3072, 768))];
        let shapes = [small, None, small, large, None, large, small, small, None, small, small, small, small, small];
        let groups = shapes.map(&mut group);
        let sizes: Vec<usize> = waves(&groups).map(<[ParamGroup]>::len).collect();
        // a large matrix is alone; of the small ones, 590 k elements each, seven fit
        assert_eq!(sizes, [3, 1, 1, 1, 8]);
        for wave in waves(&groups) {
            let places: Vec<_> = (0..wave.len()).map(|i| place(wave, i)).collect();
            assert!(places[0].start == 0 && places.windows(2).all(|two| two[0].end == two[1].start), "{places:?}");
            assert!(places.iter().zip(wave).all(|(p, g)| p.len() == g.matrix.map_or(0, |(o, c)| room(o, c))));
        }
        assert_eq!(waves(&[]).count(), 0);
    }

    /// A 1 x 1 matrix, by hand: u = 0.19 g is made 1 in size, then five times x = 3.4445 x - 4.775 x^3 + 2.0315 x^5.
    #[test]
    fn one_by_one() {
        let (mut w, mut m) = ([1.0], [0.0]);
        let (method, max_norm) = (Method::Muon, f64::INFINITY);
        let rule = Rule {
            method,
            rate: 0.1,
            beta1: 0.0,
            beta2: 0.0,
            momentum: 0.9,
            eps: 0.0,
            step: 1,
            max_norm,
            norm: None,
            most_loss: None,
        };
        reference::update(&rule, 1.0, 0.5, 1, &mut w, &[-2.0], &mut m);
        let mut x: f64 = 1.0 - 1e-7 / (0.38 + 1e-7);
        (0..5).for_each(|_| x = 3.4445 * x - 4.775 * x.powi(3) + 2.0315 * x.powi(5));
        assert!((m[0] + 0.2).abs() < 1e-12 && (w[0] - (1.0 - 0.1 * (0.5 - 0.2 * x))).abs() < 1e-9, "{w:?} {m:?}");
    }
}

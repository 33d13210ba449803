//! The update rules, each one pass over flat memory. With g the gradient after clipping, t the step from 1, and d
//! the group's weight decay:
//!
//!   sgd     m = momentum m + (g + d w);                    w -= rate m
//!   adam    g += d w, then as adamw without its decay      (decay mixed into the gradient, Kingma and Ba 2015)
//!   adamw   m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;
//!           w -= rate (d w + m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps))       (Loshchilov and Hutter 2019)
//!
//! Four floats are read per parameter and three written, so memory is the limit: together with the norm (a fifth
//! read) an update reads 24 GB/s on two cores, where reading alone reaches 25 to 29.

use super::{Method, Rule};
use crate::numeric::simd::{Kernel, MulAdd, fma};

/// Plain f64 loops.
pub mod reference {
    use super::{Method, Rule};

    /// Updates w from g with moments m and v; g is multiplied by `clip` first.
    pub fn update(rule: &Rule, clip: f64, decay: f64, w: &mut [f64], g: &[f64], m: &mut [f64], v: &mut [f64]) {
        let [c1, c2] = rule.corrections();
        for i in 0..w.len() {
            let g = clip * g[i] + if rule.decouples() { 0.0 } else { decay * w[i] };
            match rule.method {
                Method::Sgd => {
                    m[i] = rule.beta1 * m[i] + g;
                    w[i] -= rule.rate * m[i];
                }
                Method::Adam | Method::AdamW | Method::Muon => {
                    m[i] = rule.beta1 * m[i] + (1.0 - rule.beta1) * g;
                    v[i] = rule.beta2 * v[i] + (1.0 - rule.beta2) * g * g;
                    let shrink = if rule.decouples() { decay * w[i] } else { 0.0 };
                    w[i] -= rule.rate * (shrink + m[i] * c1 / ((v[i] * c2).sqrt() + rule.eps));
                }
            }
        }
    }
}

/// The update in f32, in one pass.
pub struct Update<'a> {
    /// The rule.
    pub rule: &'a Rule,
    /// The factor of the gradients.
    pub clip: f32,
    /// The group's weight decay.
    pub decay: f32,
    /// Parameters.
    pub w: &'a mut [f32],
    /// Gradients.
    pub g: &'a [f32],
    /// First moments.
    pub m: &'a mut [f32],
    /// Second moments.
    pub v: &'a mut [f32],
}

impl Kernel for Update<'_> {
    #[inline(always)]
    fn run<M: MulAdd>(self) {
        let Update { rule, clip, decay, w, g, m, v } = self;
        let [c1, c2] = rule.corrections().map(|c| c as f32);
        let (rate, eps, b1, b2) = (rule.rate as f32, rule.eps as f32, rule.beta1 as f32, rule.beta2 as f32);
        let rest = [1.0 - rule.beta1, 1.0 - rule.beta2].map(|r| r as f32);
        if rule.method == Method::Sgd {
            for ((w, g), m) in w.iter_mut().zip(g).zip(m) {
                *m = fma::<M>(b1, *m, fma::<M>(decay, *w, clip * *g));
                *w = fma::<M>(-rate, *m, *w);
            }
            return;
        }
        let (mixed, apart) = if rule.method == Method::Adam { (decay, 0.0) } else { (0.0, decay) };
        for (((w, g), m), v) in w.iter_mut().zip(g).zip(m).zip(v) {
            let gradient = fma::<M>(mixed, *w, clip * *g);
            *m = fma::<M>(b1, *m, rest[0] * gradient);
            *v = fma::<M>(b2, *v, rest[1] * gradient * gradient);
            let step = *m * c1 / ((*v * c2).sqrt() + eps);
            *w = fma::<M>(-rate, fma::<M>(apart, *w, step), *w);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Contract G29: W = 1, g = 0.5, rate 0.1.
    #[test]
    fn one_step_of_each() {
        let step = |method| {
            let rule = Rule {
                method,
                rate: 0.1,
                beta1: 0.9,
                beta2: 0.999,
                momentum: 0.0,
                eps: 1e-8,
                step: 1,
                max_norm: f64::INFINITY,
                norm: None,
                most_loss: None,
            };
            let (mut w, mut m, mut v) = ([1.0], [0.0], [0.0]);
            reference::update(&rule, 1.0, 0.0, &mut w, &[0.5], &mut m, &mut v);
            w[0]
        };
        assert!((step(Method::Sgd) - 0.95).abs() < 1e-15);
        assert!((step(Method::Adam) - 0.900_000_002).abs() < 1e-15);
        assert_eq!(step(Method::Adam), step(Method::AdamW));
    }
}

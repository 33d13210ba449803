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

use super::Region;
use super::math::pow;
use super::simd::{Kernel, MulAdd, fma, sum, sum2};
use crate::config::axis;
use std::ops::Range;

axis! {
    /// An update rule.
    Method, "optimizer" {
        /// Stochastic gradient descent, with momentum if asked.
        Sgd = "sgd",
        /// Adam with weight decay added to the gradient (L2).
        Adam = "adam",
        /// Adam with decoupled weight decay.
        AdamW = "adamw",
        /// Orthogonal momentum for the matrices inside the model (`ops::muon`), AdamW for the rest.
        Muon = "muon",
    }
}

/// A range of parameters that are updated in the same way.
#[derive(Clone, PartialEq, Debug)]
pub struct ParamGroup {
    /// Its elements in the parameters' memory.
    pub range: Range<usize>,
    /// Its weight decay.
    pub decay: f64,
    /// (out, in) of a matrix that [`Method::Muon`] orthogonalises.
    pub matrix: Option<(usize, usize)>,
}

/// What an update did to a range of parameters: sums of squares over its elements.
#[derive(Clone, PartialEq, Debug)]
pub struct Change {
    /// Its elements in the parameters' memory.
    pub range: Range<usize>,
    /// The sum of squares of the gradient, before clipping.
    pub gradient: f64,
    /// The sum of squares of the parameters, after the update.
    pub weight: f64,
    /// The sum of squares of the change of the parameters.
    pub update: f64,
}

impl Change {
    /// All sums zero, for this range.
    pub fn of(range: Range<usize>) -> Change {
        Change { range, gradient: 0.0, weight: 0.0, update: 0.0 }
    }
}

/// One update, as numbers.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rule {
    /// The update rule.
    pub method: Method,
    /// Learning rate of this step.
    pub rate: f64,
    /// b1, or the momentum of sgd.
    pub beta1: f64,
    /// b2
    pub beta2: f64,
    /// Muon's momentum.
    pub momentum: f64,
    /// Added to the root.
    pub eps: f64,
    /// The step, from 1: corrects the moments' bias.
    pub step: u64,
    /// The greatest norm of the whole gradient: larger ones are clipped. Infinity for no clipping.
    pub max_norm: f64,
    /// The norm of the whole gradient, where the groups are a part of all parameters; else it is computed from them.
    pub norm: Option<f64>,
    /// Losses, and the sum of them above which the update is held back, as it is where the sum is not finite: it changes nothing
    /// then, as where the norm is not finite.
    pub most_loss: Option<(Region, f64)>,
}

impl Rule {
    /// The factor of gradients whose norm is `norm`: as in PyTorch `max / (norm + 1e-6)`, at most 1.
    pub fn clip(&self, norm: f64) -> f64 {
        (self.max_norm / (norm + 1e-6)).min(1.0)
    }
    /// Whether the losses hold the update back, for a backend that can add them up.
    ///
    /// # Errors
    /// As `sum`.
    pub fn holds_back<E>(&self, sum: impl FnOnce(Region) -> Result<f64, E>) -> Result<bool, E> {
        let Some((losses, most)) = self.most_loss else { return Ok(false) };
        sum(losses).map(|sum| !sum.is_finite() || sum > most)
    }
    /// Whether weight decay is decoupled: not added to the gradient.
    pub fn decouples(&self) -> bool {
        matches!(self.method, Method::AdamW | Method::Muon)
    }
    /// 1 / (1 - b^t) for both moments.
    pub fn corrections(&self) -> [f64; 2] {
        [self.beta1, self.beta2].map(|b| 1.0 / (1.0 - pow(b, self.step as f64)))
    }
}

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
    type Output = ();
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

/// The sums of squares of gradients, of parameters, and of their change since `before`.
pub struct Measure<'a> {
    /// Parameters before the update.
    pub before: &'a [f32],
    /// Parameters after the update.
    pub after: &'a [f32],
    /// Gradients.
    pub g: &'a [f32],
}

impl Kernel for Measure<'_> {
    type Output = [f32; 3];
    #[inline(always)]
    fn run<M: MulAdd>(self) -> [f32; 3] {
        let moved = sum2(self.before, self.after, |a, b| (b - a) * (b - a));
        [sum(self.g, |g| g * g), sum(self.after, |w| w * w), moved]
    }
}

/// How many gradients one sum of squares covers, from the beginning of a group: this fixes the order in which the norm of
/// the gradient adds up.
pub const NORM_PART: usize = 1 << 16;

/// The norm of a gradient whose parts have these sums of squares.
pub fn norm_of(parts: &[f64]) -> f64 {
    parts.iter().sum::<f64>().sqrt()
}

/// The sum of squares of some gradients, in f64.
pub fn sum_of_squares(g: &[f32]) -> f64 {
    let mut lanes = [0f64; 8];
    let (chunks, rest) = g.as_chunks::<8>();
    for chunk in chunks {
        for i in 0..8 {
            lanes[i] += f64::from(chunk[i]) * f64::from(chunk[i]);
        }
    }
    lanes.iter().sum::<f64>() + rest.iter().map(|g| f64::from(*g) * f64::from(*g)).sum::<f64>()
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

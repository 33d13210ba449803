//! How parameters learn: the update rules ([`adamw`], which SGD and Adam are forms of, and [`muon`]), what an update is
//! as numbers ([`Rule`]), which parameters are updated alike ([`ParamGroup`]), and what an update changed ([`Change`]).

pub mod adamw;
pub mod muon;

use crate::config::axis;
use crate::numeric::math::pow;
use crate::numeric::simd::{Kernel, MulAdd, sum, sum2};
use crate::ops::Region;
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
        /// Orthogonal momentum for the matrices inside the model ([`muon`]), AdamW for the rest.
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
    pub fn new(range: Range<usize>) -> Change {
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
    /// Losses, and the sum of them above which the update is held back, as it is where the sum is not finite: it
    /// changes nothing then, as where the norm is not finite.
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

/// The sums of squares of gradients, of parameters, and of their change since `before`.
pub struct Measure<'a> {
    /// Parameters before the update.
    pub before: &'a [f32],
    /// Parameters after the update.
    pub after: &'a [f32],
    /// Gradients.
    pub g: &'a [f32],
}

impl Kernel<[f32; 3]> for Measure<'_> {
    #[inline(always)]
    fn run<M: MulAdd>(self) -> [f32; 3] {
        let moved = sum2(self.before, self.after, |a, b| (b - a) * (b - a));
        [sum(self.g, |g| g * g), sum(self.after, |w| w * w), moved]
    }
}

/// How many gradients one sum of squares covers, from the beginning of a group: this fixes the order in which the norm
/// of the gradient adds up.
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

//! A factor, and a bound that is approached smoothly: y = factor x, or y = cap tanh(factor x / cap) (Bello et al. 2016;
//! Gemma 2). Backward: dx = factor (1 - (y / cap)^2) dy.

use crate::numeric::math::tanh;
use crate::numeric::simd::{Kernel, MulAdd};

/// Plain f64 loops.
pub mod reference {
    /// The bounded value.
    pub fn bounded(x: f64, cap: f64) -> f64 {
        if cap > 0.0 { cap * (x / cap).tanh() } else { x }
    }

    /// The slope of the bound, from the bounded value.
    pub fn slope(y: f64, cap: f64) -> f64 {
        if cap > 0.0 { 1.0 - (y / cap) * (y / cap) } else { 1.0 }
    }
}

/// The slope of the bound, from the bounded value.
#[inline(always)]
fn slope(y: f32, cap: f32) -> f32 {
    1.0 - (y / cap) * (y / cap)
}

/// Bounds some numbers where they are.
pub struct Bound<'a> {
    /// the numbers
    pub y: &'a mut [f32],
    /// the bound; 0 for none
    pub cap: f32,
}

impl Kernel for Bound<'_> {
    #[inline(always)]
    fn run<M: MulAdd>(self) {
        if self.cap > 0.0 {
            self.y.iter_mut().for_each(|y| *y = self.cap * tanh::<M>(*y / self.cap));
        }
    }
}

/// Multiplies gradients by the slope of the bound.
pub struct Slope<'a> {
    /// the gradients
    pub dy: &'a mut [f32],
    /// the bounded numbers
    pub y: &'a [f32],
    /// the bound; 0 for none
    pub cap: f32,
}

impl Kernel for Slope<'_> {
    #[inline(always)]
    fn run<M: MulAdd>(self) {
        if self.cap > 0.0 {
            self.dy.iter_mut().zip(self.y).for_each(|(dy, y)| *dy *= slope(*y, self.cap));
        }
    }
}

/// y <- x, for some of the rows.
pub struct Forward<'a> {
    /// (N,C)
    pub y: &'a mut [f32],
    /// (N,C)
    pub x: &'a [f32],
    /// the factor
    pub factor: f32,
    /// the bound; 0 for none
    pub cap: f32,
}

impl Kernel for Forward<'_> {
    #[inline(always)]
    fn run<M: MulAdd>(self) {
        let Forward { y, x, factor, cap } = self;
        y.iter_mut().zip(x).for_each(|(y, x)| *y = factor * x);
        Bound { y, cap }.run::<M>();
    }
}

/// dx <- dy, for some of the rows.
pub struct Backward<'a> {
    /// (N,C)
    pub dx: &'a mut [f32],
    /// whether dx is added to
    pub add: bool,
    /// (N,C)
    pub dy: &'a [f32],
    /// (N,C); anything where there is no bound
    pub y: &'a [f32],
    /// the factor
    pub factor: f32,
    /// the bound; 0 for none
    pub cap: f32,
}

impl Kernel for Backward<'_> {
    #[inline(always)]
    fn run<M: MulAdd>(self) {
        let Backward { dx, add, dy, y, factor, cap } = self;
        for ((dx, dy), y) in dx.iter_mut().zip(dy).zip(y) {
            let value = factor * if cap > 0.0 { slope(*y, cap) } else { 1.0 } * dy;
            *dx = if add { *dx + value } else { value };
        }
    }
}

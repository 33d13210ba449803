//! A sum: y = a + scale b. The scale is 1 in the residual stream (the block's input is added, not its normalised
//! form), and alpha / r in a LoRA adapter. Backward: da = dy, db = scale dy. Where the plan allows, these share the
//! memory of dy and nothing is copied.

use std::ops::{Add, AddAssign, Mul};

/// y = a + scale b
pub fn forward<T: Copy + Add<Output = T> + Mul<Output = T>>(y: &mut [T], a: &[T], b: &[T], scale: T) {
    y.iter_mut().zip(a).zip(b).for_each(|((y, a), b)| *y = *a + scale * *b);
}

/// dx = scale dy, or dx += scale dy
pub fn backward<T: Copy + AddAssign + Mul<Output = T>>(dx: &mut [T], add: bool, dy: &[T], scale: T) {
    if add {
        dx.iter_mut().zip(dy).for_each(|(dx, dy)| *dx += scale * *dy);
    } else {
        dx.iter_mut().zip(dy).for_each(|(dx, dy)| *dx = scale * *dy);
    }
}

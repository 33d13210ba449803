//! A sum: y = a + scale b. Of the residual stream the scale is 1 (: the block's input is added, not its
//! normalised form), of a LoRA adapter alpha / r. Backward: da = dy, db = scale dy. Where the plan can, they *are* dy's
//! memory and nothing is copied.

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

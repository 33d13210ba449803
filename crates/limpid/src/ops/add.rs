//! The residual sum: y = a + b (contract R164, R172: the block's input is added, not its normalised form).
//! Backward: both gradients are dy. Where the plan can, they *are* dy's memory and nothing is copied.

/// y = a + b
pub fn forward(y: &mut [f32], a: &[f32], b: &[f32]) {
    y.iter_mut().zip(a).zip(b).for_each(|((y, a), b)| *y = a + b);
}

/// dx = dy, or dx += dy
pub fn backward(dx: &mut [f32], add: bool, dy: &[f32]) {
    if add {
        dx.iter_mut().zip(dy).for_each(|(dx, dy)| *dx += dy);
    } else {
        dx.copy_from_slice(dy);
    }
}

//! The rows whose logits are wanted: `y[i] = x[outputs[i]]` (only the last position's distribution selects the next
//! token). Backward: each row's gradient goes to the row it was copied from.

/// y: (outputs,C) <- x: (N,C)
pub fn forward<F: Copy>(y: &mut [F], x: &[F], outputs: &[u32], cols: usize) {
    for (y, n) in y.chunks_exact_mut(cols).zip(outputs) {
        y.copy_from_slice(&x[*n as usize * cols..][..cols]);
    }
}

/// dx: (N,C), first cleared unless `add`, receives dy: (outputs,C)
pub fn backward<F: Copy + Default + std::ops::AddAssign>(
    dx: &mut [F],
    add: bool,
    dy: &[F],
    outputs: &[u32],
    cols: usize,
) {
    if !add {
        dx.fill(F::default());
    }
    for (dy, n) in dy.chunks_exact(cols).zip(outputs) {
        dx[*n as usize * cols..][..cols].iter_mut().zip(dy).for_each(|(dx, dy)| *dx += *dy);
    }
}

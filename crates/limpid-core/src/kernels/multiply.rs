//! The product of two tensors, element by element: the gate of a gated feed-forward network (Shazeer 2020).
//! Backward: da = dy b, db = dy a.

/// y = a b
pub fn forward<F: Copy + std::ops::Mul<Output = F>>(y: &mut [F], a: &[F], b: &[F]) {
    y.iter_mut().zip(a).zip(b).for_each(|((y, a), b)| *y = *a * *b);
}

/// The gradient of one operand, from the other: d = dy other, or d += dy other.
pub fn backward<F>(d: &mut [F], add: bool, dy: &[F], other: &[F])
where
    F: Copy + std::ops::Mul<Output = F> + std::ops::Add<Output = F>,
{
    for ((d, dy), other) in d.iter_mut().zip(dy).zip(other) {
        let value = *dy * *other;
        *d = if add { *d + value } else { value };
    }
}

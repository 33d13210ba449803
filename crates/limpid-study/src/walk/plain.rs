//! The documents' operations as they write them: matrices as flat f64, row by row, in plain loops.

/// (m,n) by (n,p): `c_ij = sum over k of a_ik b_kj`, in the order of k.
///
/// # Panics
/// If the inner dimensions differ.
pub fn matmul(a: &[f64], b: &[f64], n: usize) -> Vec<f64> {
    assert!(a.len().is_multiple_of(n) && b.len().is_multiple_of(n), "inner dimensions differ");
    let p = b.len() / n;
    let mut c = vec![0.0; a.len() / n * p];
    for (to, row) in c.chunks_exact_mut(p).zip(a.chunks_exact(n)) {
        for (a, from) in row.iter().zip(b.chunks_exact(p)) {
            to.iter_mut().zip(from).for_each(|(c, b)| *c += a * b);
        }
    }
    c
}

/// (rows,cols) to (cols,rows).
pub fn transpose(a: &[f64], cols: usize) -> Vec<f64> {
    (0..cols).flat_map(|j| a.iter().skip(j).step_by(cols).copied()).collect()
}

/// x W' + b with W stored (out,in); without biases b is empty.
pub fn project(x: &[f64], w: &[f64], b: &[f64], inner: usize) -> Vec<f64> {
    let y = matmul(x, &transpose(w, inner), inner);
    y.iter().enumerate().map(|(i, y)| if b.is_empty() { *y } else { y + b[i % b.len()] }).collect()
}

/// Element by element; both are equally long.
pub fn add(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

/// Every element times a number.
pub fn scaled(a: &[f64], by: f64) -> Vec<f64> {
    a.iter().map(|a| a * by).collect()
}

/// Row by row, e^x / sum of e^x, by the definition.
pub fn softmax(x: &[f64], cols: usize) -> Vec<f64> {
    let rows = x.chunks_exact(cols);
    rows.flat_map(|row| row.iter().map(|v| v.exp() / row.iter().map(|v| v.exp()).sum::<f64>())).collect()
}

/// Some columns of a matrix.
pub fn columns(x: &[f64], cols: usize, range: std::ops::Range<usize>) -> Vec<f64> {
    x.chunks_exact(cols).flat_map(|row| row[range.clone()].to_vec()).collect()
}

/// Concat(X_1..X_A): (n,D) each to (n, A D).
pub fn concat(parts: &[Vec<f64>], d: usize) -> Vec<f64> {
    let n = parts.first().map_or(0, |part| part.len() / d);
    (0..n).flat_map(|i| parts.iter().flat_map(move |part| part[i * d..(i + 1) * d].to_vec())).collect()
}

/// diag(x): (n,n).
pub fn diag(x: &[f64]) -> Vec<f64> {
    let n = x.len();
    (0..n * n).map(|i| if i / n == i % n { x[i / n] } else { 0.0 }).collect()
}

/// Stack_n(x): n times the row x.
pub fn stack(n: usize, x: &[f64]) -> Vec<f64> {
    x.repeat(n)
}

/// OneHot of ids that count from 0.
pub fn one_hot(ids: &[u32], v: usize) -> Vec<f64> {
    ids.iter().flat_map(|id| (0..v).map(move |j| f64::from(j == *id as usize))).collect()
}

/// diag(t) Stack(w_A) + diag(1 - t) Stack(w_B): the vector of each row's segment.
pub fn segments(t: &[f64], w_a: &[f64], w_b: &[f64]) -> Vec<f64> {
    let (n, rest) = (t.len(), t.iter().map(|t| 1.0 - t).collect::<Vec<f64>>());
    add(&matmul(&diag(t), &stack(n, w_a), n), &matmul(&diag(&rest), &stack(n, w_b), n))
}

/// f32 values, exactly.
pub fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().copied().map(f64::from).collect()
}

//! The first few of many: the likeliest tokens, and the rows of a table that are nearest to one of them.

use crate::NamedTensor;

/// The `n` rows of `table` (V,C) with the greatest cosine to row `id`, itself left out, the nearest first.
pub fn nearest_rows(table: &NamedTensor, id: u32, n: usize) -> Vec<(u32, f64)> {
    let width = table.values.len() / table.shape[0];
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let own = &table.values[id as usize * width..][..width];
    let cosine = |row: &[f32]| dot(own, row) / (dot(own, own) * dot(row, row)).sqrt().max(f64::MIN_POSITIVE);
    let rows = (0..).zip(table.values.chunks_exact(width).map(cosine));
    first(rows.filter(|(other, _)| *other != id).collect(), n)
}

/// The `n` tokens of the greatest probabilities, the likeliest first.
pub fn likeliest(probs: &[f32], n: usize) -> Vec<(u32, f64)> {
    first((0..).zip(probs.iter().map(|p| f64::from(*p))).collect(), n)
}

/// The places of the `n` greatest, the greatest first, of equal ones the first.
pub fn greatest(values: &[f32], n: usize) -> Vec<usize> {
    let mut places: Vec<usize> = (0..values.len()).collect();
    let by_size = |a: &usize, b: &usize| values[*b].total_cmp(&values[*a]).then(a.cmp(b));
    if n < places.len() {
        places.select_nth_unstable_by(n, by_size);
        places.truncate(n);
    }
    places.sort_by(by_size);
    places
}

fn first(mut all: Vec<(u32, f64)>, n: usize) -> Vec<(u32, f64)> {
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    all.truncate(n);
    all
}

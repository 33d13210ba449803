//! The embedding: the sum of token, position and segment vectors, which are rows of tables. Backward: each row's
//! gradient is added to the table rows that it read, in ascending order of the batch's rows, so the result does not
//! depend on the number of threads.

/// A table and the row of it that each row of the batch reads; without ids, all read row 0.
#[derive(Clone, Copy)]
pub struct Lookup<'a, F> {
    /// (rows,C)
    pub table: &'a [F],
    /// a row number for each row of the batch
    pub ids: &'a [u32],
}

impl<'a, F> Lookup<'a, F> {
    /// The table's row for batch row `n`.
    #[inline(always)]
    pub fn row(&self, n: usize, cols: usize) -> &'a [F] {
        let id = self.ids.get(n).map_or(0, |id| *id as usize);
        &self.table[id * cols..][..cols]
    }
}

impl<F: Copy> Lookup<'_, F> {
    /// Copies the table's row for batch row `n`.
    pub fn copy(&self, n: usize, to: &mut [F]) {
        to.copy_from_slice(self.row(n, to.len()));
    }
}

/// y: (rows,C) for the batch's rows from `first` on: `token` writes each row, then the other lookups are added in
/// order.
pub fn forward<F: Copy + std::ops::AddAssign>(
    y: &mut [F],
    first: usize,
    cols: usize,
    token: impl Fn(usize, &mut [F]),
    others: [Option<Lookup<F>>; 2],
) {
    for (n, y) in y.chunks_exact_mut(cols).enumerate() {
        token(first + n, y);
        for other in others.iter().flatten() {
            y.iter_mut().zip(other.row(first + n, cols)).for_each(|(y, v)| *y += *v);
        }
    }
}

/// Adds dy: (N,C) to the table rows named by `ids`, columns `from..from + width` only.
///
/// `row` gives the writable part of a table's row.
pub fn backward<F: Copy + std::ops::AddAssign>(
    mut row: impl FnMut(usize, &[F]),
    dy: &[F],
    cols: usize,
    (from, width): (usize, usize),
    ids: &[u32],
) {
    for (n, dy) in dy.chunks_exact(cols).enumerate() {
        row(ids.get(n).map_or(0, |id| *id as usize), &dy[from..from + width]);
    }
}

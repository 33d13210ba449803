//! Matrices as the kernels see them: borrowed, strided, and splittable among threads.
//!
//! [`Mat`] reads, transposed or not; [`MatMut`] writes. Safe Rust cannot express that threads write different
//! columns of one matrix; that is argued once, in [`Shared::part`].
#![allow(unsafe_code)] // disjoint parts of one matrix; see `Shared`

use std::{marker::PhantomData, ops::Range, slice};

/// A matrix to read: element (i, j) is `data[i * row_stride + j * col_stride]`.
#[derive(Clone, Copy)]
pub struct Mat<'a> {
    /// The elements.
    pub(crate) data: &'a [f32],
    /// Rows.
    pub(crate) rows: usize,
    /// Columns.
    pub(crate) cols: usize,
    /// Elements from one row to the next.
    pub(crate) row_stride: usize,
    /// Elements from one column to the next.
    pub(crate) col_stride: usize,
}

impl<'a> Mat<'a> {
    /// Row-major, without gaps between rows.
    #[track_caller]
    pub fn new(data: &'a [f32], cols: usize) -> Mat<'a> {
        Mat::strided(data, data.len() / cols.max(1), cols, cols)
    }
    /// Row-major, `stride` elements from row to row.
    #[track_caller]
    pub fn strided(data: &'a [f32], rows: usize, cols: usize, stride: usize) -> Mat<'a> {
        let mat = Mat { data, rows, cols, row_stride: stride, col_stride: 1 };
        mat.check();
        mat
    }
    /// Asserts that every element is inside `data`: the kernels' unchecked loads rely on it.
    #[track_caller]
    pub(crate) fn check(&self) {
        let (rows, cols) = match (self.rows, self.cols) {
            (0, _) | (_, 0) => return,
            (rows, cols) => (rows - 1, cols - 1),
        };
        // strides are the caller's, so these products may overflow a usize
        let last = rows.checked_mul(self.row_stride).zip(cols.checked_mul(self.col_stride));
        let last = last.and_then(|(down, along)| down.checked_add(along));
        let inside = last.is_some_and(|last| last < self.data.len());
        assert!(inside, "a {}x{} matrix in {} elements", self.rows, self.cols, self.data.len());
    }
    /// Rows and columns exchanged.
    pub fn t(self) -> Mat<'a> {
        Mat { rows: self.cols, cols: self.rows, row_stride: self.col_stride, col_stride: self.row_stride, ..self }
    }
    /// Some of the rows.
    pub fn rows(self, range: Range<usize>) -> Mat<'a> {
        assert!(range.start <= range.end && range.end <= self.rows);
        let from = (range.start * self.row_stride).min(self.data.len());
        Mat { data: &self.data[from..], rows: range.len(), ..self }
    }
    /// Some of the columns.
    pub fn cols(self, range: Range<usize>) -> Mat<'a> {
        self.t().rows(range).t()
    }
    /// One element.
    #[inline(always)]
    pub fn at(&self, i: usize, j: usize) -> f32 {
        self.data[i * self.row_stride + j * self.col_stride]
    }
    /// Row `i` of a matrix whose columns are neighbours in memory.
    #[inline(always)]
    pub fn row(&self, i: usize) -> &'a [f32] {
        debug_assert!(self.col_stride == 1 && i < self.rows);
        &self.data[i * self.row_stride..][..self.cols]
    }
}

/// A row-major matrix to write.
pub struct MatMut<'a> {
    at: *mut f32,
    rows: usize,
    cols: usize,
    stride: usize,
    lifetime: PhantomData<&'a mut [f32]>,
}

impl<'a> MatMut<'a> {
    /// Row-major, without gaps between rows.
    pub fn new(data: &'a mut [f32], cols: usize) -> MatMut<'a> {
        assert!(cols > 0 && data.len().is_multiple_of(cols));
        MatMut { at: data.as_mut_ptr(), rows: data.len() / cols, cols, stride: cols, lifetime: PhantomData }
    }
    /// Rows.
    pub fn rows(&self) -> usize {
        self.rows
    }
    /// Columns.
    pub fn cols(&self) -> usize {
        self.cols
    }
    /// Elements from one row to the next.
    pub fn stride(&self) -> usize {
        self.stride
    }
    /// The first element, for the micro-kernels.
    pub fn as_mut_ptr(&mut self) -> *mut f32 {
        self.at
    }
    /// Row `i`.
    #[inline(always)]
    pub fn row(&mut self, i: usize) -> &mut [f32] {
        assert!(i < self.rows);
        // SAFETY: the row lies inside the borrowed matrix, and `self` is borrowed while it is used.
        unsafe { slice::from_raw_parts_mut(self.at.add(i * self.stride), self.cols) }
    }
    /// All of it as a slice; asserts that there are no gaps between rows.
    pub fn whole(&mut self) -> &mut [f32] {
        assert!(self.stride == self.cols || self.rows <= 1);
        // SAFETY: the matrix is one contiguous range of memory, borrowed for as long as `self` is.
        unsafe { slice::from_raw_parts_mut(self.at, self.rows * self.cols) }
    }
    /// The same for the whole lifetime of the borrow.
    pub fn into_whole(self) -> &'a mut [f32] {
        assert!(self.stride == self.cols || self.rows <= 1);
        // SAFETY: as in `whole`; `self` is gone, so nothing else refers to it.
        unsafe { slice::from_raw_parts_mut(self.at, self.rows * self.cols) }
    }
    /// Some rows and columns of it; it is borrowed meanwhile.
    pub fn part(&mut self, rows: Range<usize>, cols: Range<usize>) -> MatMut<'_> {
        assert!(rows.start <= rows.end && rows.end <= self.rows && cols.start <= cols.end && cols.end <= self.cols);
        // inside the matrix, except for an empty part, which is never dereferenced; exclusive by the borrow
        let at = self.at.wrapping_add(rows.start * self.stride + cols.start);
        MatMut { at, rows: rows.len(), cols: cols.len(), stride: self.stride, lifetime: PhantomData }
    }
    /// Sets every element.
    pub fn fill(&mut self, value: f32) {
        for i in 0..self.rows {
            self.row(i).fill(value);
        }
    }
}

/// A row-major matrix that several threads write at once, each in its own part.
pub struct Shared<'a> {
    at: *mut f32,
    rows: usize,
    cols: usize,
    lifetime: PhantomData<&'a mut [f32]>,
}

// SAFETY: the only access is `part`, whose contract forbids overlap between threads.
unsafe impl Sync for Shared<'_> {}

impl<'a> Shared<'a> {
    /// Borrows the matrix until it is dropped.
    pub fn new(data: &'a mut [f32], cols: usize) -> Shared<'a> {
        assert!(cols > 0 && data.len().is_multiple_of(cols));
        Shared { at: data.as_mut_ptr(), rows: data.len() / cols, cols, lifetime: PhantomData }
    }
    /// Rows.
    pub fn rows(&self) -> usize {
        self.rows
    }
    /// Columns.
    pub fn cols(&self) -> usize {
        self.cols
    }
    /// A part of it.
    ///
    /// # Safety
    /// No other live part may share an element with this one.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn part(&self, rows: Range<usize>, cols: Range<usize>) -> MatMut<'_> {
        assert!(rows.start <= rows.end && rows.end <= self.rows && cols.start <= cols.end && cols.end <= self.cols);
        // inside the matrix, except for an empty part, which is never dereferenced; unaliased by the caller's promise
        let at = self.at.wrapping_add(rows.start * self.cols + cols.start);
        MatMut { at, rows: rows.len(), cols: cols.len(), stride: self.cols, lifetime: PhantomData }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_is_where_the_strides_say() {
        let data: Vec<f32> = (0..12).map(|i| i as f32).collect();
        let m = Mat::new(&data, 4);
        assert_eq!((m.at(2, 1), m.t().at(1, 2), m.rows(1..3).at(1, 1)), (9.0, 9.0, 9.0));
        assert_eq!((m.cols(1..3).at(2, 0), m.t().rows(1..3).at(0, 2)), (9.0, 9.0));
    }

    #[test]
    fn a_view_beyond_its_memory_is_refused() {
        let data = [0.0; 12];
        let fits = |rows: usize, cols: usize, stride: usize| {
            let Err(said) = std::panic::catch_unwind(|| Mat::strided(&data, rows, cols, stride)) else { return true };
            let said = said.downcast::<String>().expect("a message");
            assert_eq!(*said, format!("a {rows}x{cols} matrix in 12 elements"));
            false
        };
        assert!(fits(3, 4, 4) && fits(2, 4, 8) && fits(1, 12, usize::MAX) && fits(5, 3, 0) && fits(0, 99, 99));
        assert!(!fits(3, 4, 5) && !fits(4, 4, 4) && !fits(1, 13, 0));
        // the last element's place, as a usize wraps: 0, 1 and 2
        let half = usize::MAX / 2 + 1;
        assert!(!fits(3, 1, half) && !fits(2, 3, usize::MAX) && !fits(half + 1, 1, 2) && !fits(3, 3, half));
    }

    #[test]
    fn a_part_of_nothing_lies_anywhere() {
        let mut data = [0.0; 12];
        let mut all = MatMut::new(&mut data, 4);
        all.part(3..3, 4..4).fill(1.0);
        all.part(2..3, 4..4).fill(1.0);
        assert_eq!(all.part(3..3, 2..4).rows(), 0);
        all.part(2..3, 3..4).fill(2.0);
        assert_eq!(data.iter().sum::<f32>(), 2.0);
    }

    #[test]
    fn two_threads_two_halves() {
        let mut y = [0.0; 8];
        let shared = Shared::new(&mut y, 4);
        std::thread::scope(|s| {
            for half in 0..2 {
                let shared = &shared;
                s.spawn(move || {
                    // SAFETY: the halves 0..2 and 2..4 do not meet.
                    unsafe { shared.part(0..2, half * 2..half * 2 + 2) }.fill(half as f32 + 1.0);
                });
            }
        });
        assert_eq!(y, [1.0, 1.0, 2.0, 2.0, 1.0, 1.0, 2.0, 2.0]);
    }
}

//! One matrix of a tensor, of which any part can be had: what a picture is made of.
//!
//! A sheet holds what its cells are computed from, not the cells. The scores of a head of 1,024 tokens are a million
//! numbers, of which a picture shows a part, or the largest of every block. Who does not know how many cells are wanted
//! takes them within a [`Budget`], strip by strip.

use super::interventions::PlacedWeights;
use super::{NamedTensor, heads_in_rows};
use limpid_base::budget::{Budget, Spent};
use limpid_core::config::Heads;
use limpid_core::kernels::attend::{self, Head, Keys, Stage};
use limpid_core::matrix::gemm::{self, gemm};
use limpid_core::matrix::view::{Mat, MatMut};
use limpid_core::numeric::simd::Level;
use limpid_core::ops::{BLOCK, Scoring, Span};
use std::ops::Range;
use std::sync::Arc;

/// What the scores of one head of one sequence are computed from.
#[derive(Clone, Debug)]
pub struct AttentionHead {
    /// Queries, keys and values of all heads and sequences, (N, (H + 2K) D).
    pub qkv: Arc<NamedTensor>,
    /// The log of the sum of exponentials, (N,H).
    pub lse: Arc<NamedTensor>,
    /// Their numbers.
    pub heads: Heads,
    /// Which head.
    pub head: usize,
    /// Which sequence.
    pub span: Span,
    /// Which keys a query sees, and what a score is made of.
    pub scoring: Scoring,
    /// What an intervention makes of the weights.
    pub changes: Arc<[PlacedWeights]>,
}

impl AttentionHead {
    /// The keys that query `i` sees.
    pub fn sees(&self, i: usize) -> Range<usize> {
        self.scoring.sees(&self.span, i)
    }

    /// A block of one of its three matrices: queries from a multiple of any number, at most [`BLOCK`] queries and keys.
    fn show(&self, stage: Stage, queries: Range<usize>, first: usize, to: MatMut, scratch: &mut [f32]) {
        let (cols, n_head, rows) = (self.heads.cols(), self.heads.n_head, self.span.rows);
        let mine = &self.qkv.values[self.span.row * cols..(self.span.row + rows) * cols];
        let part = |own: Range<usize>| Mat::strided(&mine[own.start..], rows, own.len(), cols);
        let [q, k, v] = self.heads.of_head(self.head).map(part);
        let head = Head {
            q,
            k: Keys::Plain(k),
            v: Keys::Plain(v),
            span: self.span,
            scoring: self.scoring,
            draws: None,
            head: self.head,
            n_head,
        };
        let lse = Mat::new(&self.lse.values, n_head).rows(self.span.row..self.span.row + rows);
        let lse = lse.cols(self.head..self.head + 1);
        attend::show(Level::best(), &head, (stage, lse), queries, first, to, scratch);
    }
}

/// A matrix.
#[derive(Clone, Debug)]
pub struct Sheet {
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    cells: Cells,
}

#[derive(Clone, Debug)]
enum Cells {
    /// Part of a tensor: where it begins, and the distance of rows.
    Tensor {
        of: Arc<NamedTensor>,
        at: usize,
        stride: usize,
    },
    /// Some rows, from the first one on.
    Rows {
        values: Arc<Vec<f32>>,
        first: usize,
    },
    Scores {
        head: AttentionHead,
        stage: Stage,
    },
    /// Of every pair of rows: the product of the two at length one.
    Cosines(Box<Sheet>),
    Difference(Box<[Sheet; 2]>),
}

impl Sheet {
    /// The matrix of the last two axes at an index of the others, the rows of each head together; a vector is one row.
    ///
    /// # Panics
    /// If the index is outside.
    pub fn of(tensor: &Arc<NamedTensor>, index: &[usize]) -> Sheet {
        let n = tensor.shape.len();
        let cols = tensor.shape.last().copied().unwrap_or(1);
        if let (Some(_), &[_, pos, heads, d]) = (heads_in_rows(&tensor.axes), &tensor.shape[..]) {
            let at = (index[0] * pos * heads + index[1]) * d;
            return Sheet { rows: pos, cols: d, cells: Cells::Tensor { of: tensor.clone(), at, stride: heads * d } };
        }
        let rows = if n < 2 { 1 } else { tensor.shape[n - 2] };
        let at = index.iter().zip(&tensor.shape).fold(0, |at, (i, n)| at * n + i) * rows * cols;
        Sheet { rows, cols, cells: Cells::Tensor { of: tensor.clone(), at, stride: cols } }
    }

    /// One of a head's three matrices.
    pub fn scores(head: AttentionHead, stage: Stage) -> Sheet {
        Sheet { rows: head.span.rows, cols: head.span.past + head.span.rows, cells: Cells::Scores { head, stage } }
    }

    /// A matrix of which some rows are there, from `first` on.
    pub fn some_rows(values: Vec<f32>, first: usize, [rows, cols]: [usize; 2]) -> Sheet {
        Sheet { rows, cols, cells: Cells::Rows { values: Arc::new(values), first } }
    }

    /// The cosine of every pair of rows of a matrix. Rows of zeros have the cosine 0 with all.
    pub fn cosines(of: Sheet) -> Sheet {
        Sheet { rows: of.rows, cols: of.rows, cells: Cells::Cosines(Box::new(of)) }
    }

    /// Some of its rows, each of length one.
    fn unit(&self, rows: Range<usize>) -> Vec<f32> {
        let mut unit = self.band(rows, 0..self.cols);
        for row in unit.chunks_exact_mut(self.cols.max(1)) {
            let norm = row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
            let factor = if norm > 0.0 { 1.0 / norm } else { 0.0 };
            row.iter_mut().for_each(|v| *v = (f64::from(*v) * factor) as f32);
        }
        unit
    }

    /// This matrix minus another of the same size; none if its size is another.
    pub fn minus(self, other: Sheet) -> Option<Sheet> {
        let (rows, cols) = (self.rows, self.cols);
        let same = (rows, cols) == (other.rows, other.cols);
        same.then(|| Sheet { rows, cols, cells: Cells::Difference(Box::new([self, other])) })
    }

    /// Whether the mask hides a cell.
    pub fn hides(&self, i: usize, j: usize) -> bool {
        match &self.cells {
            Cells::Scores { stage: Stage::Raw, .. } => false,
            Cells::Scores { head, .. } => !head.sees(i).contains(&j),
            Cells::Difference(both) => both[0].hides(i, j),
            _ => false,
        }
    }

    /// Some rows and columns, row by row. Rows that are not there are NaN.
    ///
    /// # Panics
    /// If they are outside.
    pub fn band(&self, rows: Range<usize>, cols: Range<usize>) -> Vec<f32> {
        let once = self.once(&cols);
        self.cells(rows, cols, &once)
    }

    /// Some columns, of which bands of rows can be had within a budget.
    ///
    /// # Errors
    /// If it has too few bytes for what all rows need of them.
    pub fn strip<'a>(&'a self, cols: Range<usize>, budget: &'a Budget) -> Result<Strip<'a>, Spent> {
        let bytes = self.once_bytes(cols.len());
        budget.take_bytes(bytes)?;
        Ok(Strip { sheet: self, once: self.once(&cols), cols, budget, bytes })
    }

    /// What all rows need of some columns.
    fn once(&self, cols: &Range<usize>) -> Once {
        match &self.cells {
            Cells::Cosines(of) => Once::Unit(of.unit(cols.clone())),
            Cells::Difference(both) => Once::Both(Box::new([0, 1].map(|i| both[i].once(cols)))),
            _ => Once::Nothing,
        }
    }

    /// Bytes of that.
    fn once_bytes(&self, cols: usize) -> u64 {
        match &self.cells {
            Cells::Cosines(of) => float_bytes(cols, of.cols),
            Cells::Difference(both) => both.iter().map(|one| one.once_bytes(cols)).fold(0, u64::saturating_add),
            _ => 0,
        }
    }

    /// Bytes that a band of so many rows and columns takes while it is computed.
    fn band_bytes(&self, rows: usize, cols: usize) -> u64 {
        let beside = match &self.cells {
            Cells::Cosines(of) => of.band_bytes(rows, of.cols),
            Cells::Difference(both) => both.iter().map(|one| one.band_bytes(rows, cols)).fold(0, u64::saturating_add),
            _ => 0,
        };
        float_bytes(rows, cols).saturating_add(beside)
    }

    fn cells(&self, rows: Range<usize>, cols: Range<usize>, once: &Once) -> Vec<f32> {
        let mut to = vec![0.0; rows.len() * cols.len()];
        if cols.is_empty() {
            return to;
        }
        match (&self.cells, once) {
            (Cells::Tensor { of, at, stride }, _) => {
                for (to, i) in to.chunks_exact_mut(cols.len()).zip(rows) {
                    to.copy_from_slice(&of.values[at + i * stride..][cols.clone()]);
                }
            }
            (Cells::Rows { values, first }, _) => {
                for (to, i) in to.chunks_exact_mut(cols.len()).zip(rows) {
                    let row = i.checked_sub(*first).and_then(|i| values.get(i * self.cols..(i + 1) * self.cols));
                    match row {
                        Some(row) => to.copy_from_slice(&row[cols.clone()]),
                        None => to.fill(f32::NAN),
                    }
                }
            }
            (Cells::Scores { head, stage }, _) => {
                let mut scratch = vec![0.0; attend::scratch(head.heads.d_head.max(head.heads.d_value))];
                let to_rows = &mut to[..];
                let mut to = MatMut::new(to_rows, cols.len());
                for i in rows.clone().step_by(BLOCK) {
                    let queries = i..(i + BLOCK).min(rows.end);
                    for j in cols.clone().step_by(BLOCK) {
                        let keys = j..(j + BLOCK).min(cols.end);
                        let part = to.part(
                            queries.start - rows.start..queries.end - rows.start,
                            keys.start - cols.start..keys.end - cols.start,
                        );
                        head.show(*stage, queries.clone(), j, part, &mut scratch);
                    }
                }
                if *stage == Stage::Weights {
                    for (row, query) in to_rows.chunks_exact_mut(cols.len()).zip(rows) {
                        let mine = head.changes.iter().filter(|(positions, _)| positions.contains(query));
                        mine.for_each(|(_, change)| change.apply((query, head.head), cols.start, row));
                    }
                }
            }
            (Cells::Cosines(of), Once::Unit(others)) => {
                let (unit, mut scratch) = (of.unit(rows), vec![0.0; gemm::SCRATCH]);
                let [unit, others] = [&unit, others].map(|rows| Mat::new(rows, of.cols));
                gemm(Level::best(), MatMut::new(&mut to, cols.len()), unit, others.t(), false, &mut scratch);
            }
            (Cells::Difference(both), Once::Both(once)) => {
                let [a, b] = [0, 1].map(|i| both[i].cells(rows.clone(), cols.clone(), &once[i]));
                for (to, (a, b)) in to.iter_mut().zip(a.iter().zip(b)) {
                    // what neither sees is no difference
                    *to = if a.to_bits() == b.to_bits() { 0.0 } else { a - b };
                }
            }
            (Cells::Cosines(_) | Cells::Difference(_), _) => unreachable!("`once` is of the same cells"),
        }
        to
    }
}

/// Bytes of so many numbers.
pub(super) fn float_bytes(rows: usize, cols: usize) -> u64 {
    4u64.saturating_mul(rows as u64).saturating_mul(cols as u64)
}

/// What is computed once for some columns, whichever rows follow.
enum Once {
    Nothing,
    /// The rows of these numbers, each of length one.
    Unit(Vec<f32>),
    Both(Box<[Once; 2]>),
}

/// Some columns of a [`Sheet`].
pub struct Strip<'a> {
    sheet: &'a Sheet,
    cols: Range<usize>,
    once: Once,
    budget: &'a Budget,
    bytes: u64,
}

impl Strip<'_> {
    /// Some of its rows; each cell is a step.
    ///
    /// # Errors
    /// What ran out.
    ///
    /// # Panics
    /// If they are outside.
    pub fn band(&self, rows: Range<usize>) -> Result<Vec<f32>, Spent> {
        let (height, width) = (rows.len(), self.cols.len());
        self.budget.take_steps((height as u64).saturating_mul(width as u64))?;
        let bytes = self.sheet.band_bytes(height, width);
        self.budget.take_bytes(bytes)?;
        let band = self.sheet.cells(rows, self.cols.clone(), &self.once);
        self.budget.give_bytes(bytes);
        Ok(band)
    }
}

impl Drop for Strip<'_> {
    fn drop(&mut self) {
        self.budget.give_bytes(self.bytes);
    }
}

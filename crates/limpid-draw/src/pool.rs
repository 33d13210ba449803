//! What pictures of a matrix have in common in a terminal, a file and a page: its palette, the values at the palette's
//! ends, and what stands for several cells where there is no room for each.

use super::palette::Palette;
use super::view::{HeatScale, Matrix};

/// A matrix with fewer cells.
pub struct Pooled {
    /// What is left: without words where a cell is of several.
    pub matrix: Matrix,
    /// Rows and columns that became one.
    pub by: [usize; 2],
}

impl Matrix {
    /// The palette that says most of it: the darker the greater for scores and shares, viridis for positions and
    /// whatever has one sign, two colours for two signs.
    pub fn palette(&self) -> Palette {
        match self.scale {
            _ if self.tensor.contains("pos_embed") => Palette::Viridis,
            _ if self.axes.contains(&"key_pos") && !self.tensor.contains(".grad") => Palette::Ink,
            HeatScale::Unit => Palette::Ink,
            HeatScale::Signed => Palette::Diverging,
            HeatScale::Positive => Palette::Viridis,
        }
    }

    /// What the first and the last colour of a palette stand for. Nothing is in the middle where there are two signs;
    /// but a palette that says how great scores are goes from the least to the greatest.
    pub fn range(&self, palette: Palette) -> (f64, f64) {
        let seen = || self.values.iter().enumerate().filter(|(at, v)| v.is_finite() && !self.is_hidden(*at));
        let top = seen().fold(0.0, |top: f64, (_, v)| top.max(f64::from(v.abs())));
        match self.scale {
            HeatScale::Unit => (if palette == Palette::Diverging { -1.0 } else { 0.0 }, 1.0),
            HeatScale::Signed if palette == Palette::Ink => {
                let ends = |(low, high): (f64, f64), v: &f32| (low.min(f64::from(*v)), high.max(f64::from(*v)));
                seen().map(|(_, v)| v).fold((f64::INFINITY, f64::NEG_INFINITY), ends)
            }
            HeatScale::Positive if palette != Palette::Diverging => (0.0, top),
            _ => (-top, top),
        }
    }

    /// Whether the mask hides a cell, counted row by row.
    pub fn is_hidden(&self, at: usize) -> bool {
        self.hidden.get(at).is_some_and(|hidden| *hidden)
    }

    /// It with at most so many rows and columns. A cell is the greatest of those that it stands for, by magnitude where
    /// there are two signs; NaN if one of them is not finite; hidden if all are.
    pub fn pooled(&self, most: [usize; 2]) -> Pooled {
        let [rows, cols] = self.size;
        let by = [0, 1].map(|i| self.size[i].div_ceil(most[i].max(1)).max(1));
        if by == [1, 1] {
            return Pooled { matrix: self.clone(), by };
        }
        let size = [rows.div_ceil(by[0]), cols.div_ceil(by[1])];
        let weight = |v: f32| if self.scale == HeatScale::Signed { v.abs() } else { v };
        let (mut values, mut hidden) = (vec![], vec![]);
        for (i, j) in (0..size[0]).flat_map(|i| (0..size[1]).map(move |j| (i, j))) {
            let mut best: Option<f32> = None;
            for row in i * by[0]..rows.min((i + 1) * by[0]) {
                let cells = row * cols + j * by[1]..row * cols + cols.min((j + 1) * by[1]);
                for v in cells.filter(|at| !self.is_hidden(*at)).map(|at| self.values[at]) {
                    best = Some(match best {
                        Some(best) if best.is_nan() || weight(best) >= weight(v) => best,
                        _ if v.is_finite() => v,
                        _ => f32::NAN,
                    });
                }
            }
            values.push(best.unwrap_or(f32::NEG_INFINITY));
            hidden.push(best.is_none());
        }
        if !hidden.contains(&true) {
            hidden.clear();
        }
        let words = |words: &[String], by: usize| if by > 1 { vec![] } else { words.to_vec() };
        let (rows, columns) = (words(&self.rows, by[0]), words(&self.columns, by[1]));
        Pooled { matrix: Matrix { size, rows, columns, values, hidden, ..self.clone() }, by }
    }
}

impl Pooled {
    /// What a cell stands for, where it is of several.
    pub fn note(&self) -> Option<String> {
        let [rows, cols] = self.by;
        let what =
            if self.matrix.scale == HeatScale::Signed { "the one of greatest magnitude" } else { "the greatest" };
        (self.by != [1, 1]).then(|| format!("each cell is {what} of {rows} x {cols}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix(size: [usize; 2], scale: HeatScale, values: &[f32]) -> Matrix {
        let (rows, columns) = ((0..size[0]).map(|i| format!("r{i}")).collect(), vec![]);
        let hidden = values.iter().map(|v| *v == f32::NEG_INFINITY).collect();
        let (tensor, index, axes) = ("t".into(), vec![], ["pos", "d_model"]);
        Matrix { tensor, index, size, axes, rows, columns, values: values.into(), hidden, scale }
    }

    #[test]
    fn a_cell_stands_for_the_greatest() {
        let (hidden, nan) = (f32::NEG_INFINITY, f32::NAN);
        let values = [1.0, -4.0, 0.5, hidden, 2.0, 3.0, 0.0, hidden, nan, 9.0, hidden, hidden];
        let signed = matrix([3, 4], HeatScale::Signed, &values);
        let pooled = signed.pooled([2, 2]);
        assert_eq!((pooled.by, pooled.matrix.size), ([2, 2], [2, 2]));
        assert_eq!(pooled.matrix.values[..2], [-4.0, 0.5]);
        assert!(pooled.matrix.values[2].is_nan());
        assert_eq!(pooled.matrix.hidden, [false, false, false, true]);
        assert!(pooled.matrix.rows.is_empty() && pooled.note().unwrap().ends_with("magnitude of 2 x 2"));
        // what is not finite wins, wherever it comes
        let late = matrix([1, 3], HeatScale::Positive, &[5.0, f32::INFINITY, 7.0]).pooled([1, 1]);
        assert!(late.matrix.values[0].is_nan() && late.matrix.rows == ["r0"]);
        assert_eq!(matrix([1, 3], HeatScale::Positive, &[5.0, -8.0, 7.0]).pooled([1, 2]).matrix.values, [5.0, 7.0]);
        let whole = signed.pooled([3, 4]);
        assert_eq!((whole.by, whole.note(), whole.matrix.rows.len()), ([1, 1], None, 3));
        assert_eq!(matrix([1, 3], HeatScale::Positive, &[1.0, 2.0, 3.0]).pooled([0, 0]).matrix.values, [3.0]);
    }

    #[test]
    fn ends_are_the_exact_values() {
        let values = [-1.5, 0.25, f32::NEG_INFINITY, 1.0];
        let signed = matrix([2, 2], HeatScale::Signed, &values);
        assert_eq!([Palette::Diverging, Palette::Ink].map(|p| signed.range(p)), [(-1.5, 1.5), (-1.5, 1.0)]);
        let positive = Matrix { scale: HeatScale::Positive, ..signed.clone() };
        assert_eq!([Palette::Viridis, Palette::Diverging].map(|p| positive.range(p)), [(0.0, 1.5), (-1.5, 1.5)]);
        assert_eq!(Matrix { scale: HeatScale::Unit, ..signed.clone() }.range(Palette::Ink), (0.0, 1.0));
        let of = |tensor: &str, axes| Matrix { tensor: tensor.into(), axes, ..signed.clone() }.palette();
        assert_eq!(of("hook_pos_embed", ["pos", "d_model"]), Palette::Viridis);
        assert_eq!(of("blocks.0.attn.hook_raw_scores", ["query_pos", "key_pos"]), Palette::Ink);
        assert_eq!(of("blocks.0.hook_attn_out", ["pos", "d_model"]), Palette::Diverging);
    }
}

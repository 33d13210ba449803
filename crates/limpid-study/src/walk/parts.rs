//! The parts that views are made of.

use super::{Figure, Result, WalkError, printed};
use limpid_base::plural::plural;
use limpid_base::units::commas;
use limpid_draw::view::View;

/// What a view shows.
pub(super) type Views = Result<Vec<Figure>>;

/// A sentence.
pub(super) fn said(text: impl Into<String>) -> Figure {
    View::Sentence { text: text.into(), holds: None }.into()
}

/// A sentence that says whether something holds.
pub(super) fn verdict(text: impl Into<String>, holds: bool) -> Figure {
    View::Sentence { text: text.into(), holds: Some(holds) }.into()
}

/// Lines of texts.
pub(super) fn grid<H: Into<String>>(
    title: impl Into<String>,
    headers: impl IntoIterator<Item = H>,
    rows: impl IntoIterator<Item = Vec<String>>,
) -> Figure {
    crate::grid(title, headers, rows).into()
}

/// Why a view is not there.
pub(super) fn lacks<T>(why: impl Into<String>) -> Result<T> {
    Err(WalkError::Lacks(why.into()))
}

/// How many printed cells are met.
pub(super) struct Met {
    within: f64,
    cells: usize,
    met: usize,
    worst: f64,
}

impl Met {
    pub fn new(golden: &str) -> Met {
        Met { within: printed::within(golden), cells: 0, met: 0, worst: 0.0 }
    }

    /// Compares a printed table with the live cells; `live` gets the number of a printed row, and a column.
    pub fn compare(&mut self, key: &str, live: impl Fn(usize, usize) -> Option<f32>) {
        let [_, columns] = printed::place(key);
        for (i, row) in printed::rows(key).iter().enumerate() {
            for (c, want) in columns.iter().zip(row) {
                let Some(live) = live(i, *c) else { continue };
                let off = (f64::from(live) - want).abs();
                self.cells += 1;
                self.met += usize::from(off <= self.within);
                self.worst = self.worst.max(off);
            }
        }
    }

    pub fn all(&self) -> bool {
        self.met == self.cells && self.cells > 0
    }

    pub fn text(&self) -> String {
        let Met { within, cells, met, worst } = *self;
        let (met, cells) = (commas(met as u64), plural(cells, "printed cell"));
        format!("{met} of {cells} are met; the greatest difference is {worst:.1e}, rounding allows {within:.1e}")
    }
}

/// A table of five columns, without the last one where that is empty.
pub(super) fn without_empty_end(title: String, headers: [&str; 5], mut rows: Vec<Vec<String>>) -> Figure {
    let columns = if rows.iter().all(|row| row[4].is_empty()) { 4 } else { 5 };
    rows.iter_mut().for_each(|row| row.truncate(columns));
    grid(title, headers.into_iter().take(columns), rows)
}

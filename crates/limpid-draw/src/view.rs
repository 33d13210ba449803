//! What there is to look at, as plain data: a [`Matrix`] with words at its rows and columns, a [`Grid`] of texts, a
//! sentence. [`View::text`] prints one for a terminal; a page draws the same from its JSON.
//!
//! [`matrices`] cuts a tensor into matrices. `table` shows one as numbers, `heat` as a heat map.

pub use super::table::wrap;
use super::table::{TableOptions, columns, cut, grid, label_width, pad, some};
use limpid_base::units::commas;
use limpid_core::ops::{IGNORE, Span};
use limpid_trace::json::numbers;
use limpid_trace::labels::Labels;
use limpid_trace::{NamedTensor, Trace, index_of};
use serde::Serialize;
use std::borrow::Cow;

/// Something to look at.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum View {
    /// Numbers: a table or a heat map.
    Matrix(Matrix),
    /// Texts in rows and columns.
    Grid(Grid),
    /// What was found.
    Sentence {
        /// It.
        text: String,
        /// Whether it holds, where it says that something does.
        holds: Option<bool>,
    },
}

/// One matrix of a tensor.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Matrix {
    /// The tensor's name.
    pub tensor: String,
    /// Which part of it: batch 0, head 2.
    pub index: Vec<(&'static str, usize)>,
    /// Rows and columns.
    pub size: [usize; 2],
    /// What the rows are, and what the columns are: `query_pos`, `key_pos`.
    pub axes: [&'static str; 2],
    /// Words for the rows; empty where they are numbered from 0.
    pub rows: Vec<String>,
    /// Words for the columns, likewise.
    pub columns: Vec<String>,
    /// Row by row. In JSON, which has no number for them, "NaN", "inf" and "-inf" are words.
    #[serde(serialize_with = "numbers")]
    pub values: Vec<f32>,
    /// Which of them the mask hides; empty where none is hidden.
    pub hidden: Vec<bool>,
    /// What a heat map of it goes from and to.
    pub scale: HeatScale,
}

/// What the colours or shades of a heat map stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum HeatScale {
    /// Probabilities, from 0 to 1.
    Unit,
    /// From 0 to the greatest.
    Positive,
    /// From minus the greatest magnitude to plus it.
    Signed,
}

/// Texts in rows and columns.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Grid {
    /// The line above it; may be empty.
    pub title: String,
    /// What each column is.
    pub headers: Vec<String>,
    /// Cells, row by row.
    pub rows: Vec<Vec<String>>,
}

/// With what a heat map is painted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paint {
    /// Characters: ` ░▒▓█`.
    Shades,
    /// The 256 colours of a terminal.
    Colour,
    /// Any colour, on terminals that have them all.
    TrueColour,
}

impl Paint {
    /// Whether it is of colours.
    pub fn is_coloured(self) -> bool {
        self != Paint::Shades
    }
}

/// Whether a heat map says more of a tensor than a table: what queries give to keys, and probabilities.
pub fn is_map(tensor: &NamedTensor) -> bool {
    tensor.axes.contains(&"key_pos") || is_share(tensor)
}

/// Whether a tensor's values are shares of one.
fn is_share(tensor: &NamedTensor) -> bool {
    let share = ["hook_pattern", "probs", "lens("].iter().any(|part| tensor.name.contains(part));
    share && !tensor.name.contains(".grad")
}

/// A matrix for each index of all axes of a tensor but the last two, heads one by one as (pos x d_head).
pub fn matrices<'a>(tensor: &'a NamedTensor, labels: &'a Labels) -> impl ExactSizeIterator<Item = Matrix> + use<'a> {
    let tensor = tensor.by_head().map_or(Cow::Borrowed(tensor), Cow::Owned);
    let n = tensor.shape.len();
    // one without a name is an adapter's
    let at = |i: usize| tensor.axes.get(i).copied().unwrap_or("axis");
    let lead: Vec<&'static str> = (0..n.saturating_sub(2)).map(at).collect();
    let sizes = tensor.shape[..lead.len()].to_vec();
    let size = [if n > 1 { tensor.shape[n - 2] } else { 1 }, tensor.shape.last().copied().unwrap_or(1)];
    let axes = [if n > 1 { at(n - 2) } else { "1" }, if n > 0 { at(n - 1) } else { "1" }];
    let scale = if is_share(&tensor) {
        HeatScale::Unit
    } else if tensor.values.iter().any(|v| *v < 0.0 && v.is_finite()) {
        HeatScale::Signed
    } else {
        HeatScale::Positive
    };
    let only = (tensor.axes.contains(&"batch") && labels.tokens.len() == 1).then_some(0);
    (0..sizes.iter().product::<usize>()).map(move |k| {
        let index: Vec<(&'static str, usize)> = lead.iter().copied().zip(index_of(k, &sizes)).collect();
        let sequence = index.iter().find(|(axis, _)| *axis == "batch").map_or(only, |(_, i)| Some(*i));
        let [rows, columns] = [0, 1].map(|i| labels.words(axes[i], sequence, size[i]));
        let values = tensor.values[k * size[0] * size[1]..][..size[0] * size[1]].to_vec();
        // a mask of its own hides the same in all sequences
        let of = sequence.or(labels.mask.is_some().then_some(0));
        let beyond = |query, key| of.is_some_and(|of| labels.hides(&tensor.name, of, query, key));
        // what is before the mask is there whole
        let before = ["hook_unscaled_scores", "hook_raw_scores"].iter().any(|name| tensor.name.ends_with(name));
        let hides = |at: usize| match axes {
            _ if before => false,
            ["query_pos", "key_pos"] => beyond(at / size[1], at % size[1]),
            ["key_pos", "query_pos"] => beyond(at % size[1], at / size[1]),
            _ => false,
        };
        let mut hidden: Vec<bool> =
            values.iter().enumerate().map(|(at, v)| *v == f32::NEG_INFINITY || hides(at)).collect();
        if !hidden.contains(&true) {
            hidden.clear();
        }
        Matrix { tensor: tensor.name.clone(), index, size, axes, rows, columns, values, hidden, scale }
    })
}

/// A tensor as tables: one for each index of all axes but the last two, each under a heading if there are several.
/// Heads come one by one, as (pos x d_head).
pub fn table(tensor: &NamedTensor, options: &TableOptions) -> String {
    text(tensor, &Labels::default(), None, options)
}

/// A tensor to be printed: heat maps where there is `paint`, tables elsewhere; of more than `options.max_tables` the
/// first.
pub fn text(tensor: &NamedTensor, labels: &Labels, paint: Option<Paint>, options: &TableOptions) -> String {
    let decimals = if whole(&tensor.values) { 0 } else { options.decimals };
    let options = TableOptions { decimals, ..*options };
    let (matrices, most) = (matrices(tensor, labels), options.max_tables.max(1));
    let more = matrices.len().saturating_sub(most);
    let mut parts: Vec<String> = vec![];
    let mut legend = String::new();
    for matrix in matrices.take(most) {
        parts.push(match paint {
            Some(paint) => matrix.heat(paint, &options),
            None => matrix.table(&options),
        });
        legend = paint.map_or(String::new(), |paint| matrix.legend(paint, options.width));
    }
    parts.extend(Some(legend).filter(|legend| !legend.is_empty()));
    if more > 0 {
        let what = if paint.is_some() { "maps" } else { "tables" };
        parts.push(format!("... and {} more such {what}\n", commas(more as u64)));
    }
    parts.join("\n")
}

/// What each sequence of a run went in as, token by token: its place, its text, its id, and the token that it predicts
/// where the batch has targets. `piece` says what a token looks like; `other` has the heading and the numbers of
/// further ids that the tokens go by.
pub fn inputs(
    trace: &Trace,
    piece: Option<&dyn Fn(u32) -> String>,
    other: Option<(&str, &dyn Fn(u32) -> u32)>,
) -> Vec<Grid> {
    let (batch, has_targets) = (trace.batch(), trace.batch().targets.iter().any(|target| *target != IGNORE));
    let cells = |id: u32| -> Vec<String> {
        let (text, other) = (piece.map(|piece| piece(id)), other.map(|(_, other)| other(id).to_string()));
        text.into_iter().chain([id.to_string()]).chain(other).collect()
    };
    let names = |what: &str, id: &str| -> Vec<String> {
        let (text, other) = (piece.map(|_| what.to_string()), other.map(|(name, _)| name.to_string()));
        text.into_iter().chain([id.to_string()]).chain(other).collect()
    };
    let target = names("target", if piece.is_some() { "id" } else { "target" });
    let none = vec!["-".to_string(); target.len()];
    let mut headers = [vec!["pos".to_string()], names("token", "id")].concat();
    headers.extend(target.into_iter().filter(|_| has_targets));
    let line = |row: usize, first: usize| -> Vec<String> {
        let predicted = batch.targets.get(row).filter(|id| **id != IGNORE);
        let predicted = predicted.map_or_else(|| none.clone(), |id| cells(*id));
        let mut line = [vec![(row - first).to_string()], cells(batch.tokens[row])].concat();
        line.extend(predicted.into_iter().filter(|_| has_targets));
        line
    };
    let grid = |(b, span): (usize, &Span)| Grid {
        title: if batch.spans.len() > 1 { format!("sequence {b}:") } else { String::new() },
        headers: headers.clone(),
        rows: (span.row..span.row + span.rows).map(|row| line(row, span.row)).collect(),
    };
    batch.spans.iter().enumerate().map(grid).collect()
}

/// Whether a table of these has no digits after the point.
fn whole(values: &[f32]) -> bool {
    values.iter().all(|v| !v.is_finite() || v.fract() == 0.0)
}

impl Matrix {
    /// The tensor and which part of it.
    pub fn title(&self) -> String {
        let index: Vec<String> = self.index.iter().map(|(axis, i)| format!("{axis} {i}")).collect();
        if index.is_empty() { self.tensor.clone() } else { format!("{} [{}]", self.tensor, index.join(", ")) }
    }
}

impl View {
    /// It in lines of at most `options.width` characters: matrices as heat maps where there is `paint`, as tables
    /// elsewhere.
    pub fn text(&self, paint: Option<Paint>, options: &TableOptions) -> String {
        match self {
            View::Matrix(matrix) => match paint {
                Some(paint) => {
                    let legend = matrix.legend(paint, options.width);
                    matrix.heat(paint, options) + if legend.is_empty() { "" } else { "\n" } + &legend
                }
                None => {
                    let decimals = if whole(&matrix.values) { 0 } else { options.decimals };
                    matrix.table(&TableOptions { decimals, ..*options })
                }
            },
            View::Grid(grid) => grid.text(options.width),
            View::Sentence { text, holds } => {
                let begin = holds.map_or("", |holds| if holds { "holds  " } else { "fails  " });
                wrap(&format!("{begin}{text}"), columns(begin), options.width)
            }
        }
    }
}

impl Grid {
    /// Of more rows than `options.max_rows` those at either end, with a line of dots between them.
    pub fn ends(mut self, options: &TableOptions) -> Grid {
        let shown = some(self.rows.len(), options.max_rows, options.edge_rows);
        let dots = || vec!["...".to_string(); self.headers.len()];
        self.rows = shown.into_iter().map(|i| i.map_or_else(dots, |i| self.rows[i].clone())).collect();
        self
    }

    /// The title in lines of `width`, where there is one.
    fn heading(&self, width: usize) -> String {
        if self.title.is_empty() { String::new() } else { wrap(&self.title, 0, width) }
    }

    /// The widest cell of a column, or its header.
    fn widest(&self, j: usize) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.get(j)).chain(self.headers.get(j));
        cells.map(|cell| columns(cell)).max().unwrap_or(0)
    }

    /// Aligned columns, the first to the left. Where a line would be longer than `width` (0 for any), all but two are
    /// left out, the last first, and then the beginnings of what is in the first; where too little would be left of it,
    /// every cell has lines of its own.
    pub fn text(&self, width: usize) -> String {
        // so are all columns of words; numbers stand to the right
        let words = |j: usize| j == 0 || !self.rows.iter().filter_map(|row| row.get(j)).all(|cell| is_number(cell));
        let left: Vec<bool> = (0..self.headers.len()).map(words).collect();
        let mut widths: Vec<usize> = (0..self.headers.len()).map(|j| self.widest(j)).collect();
        let over = |widths: &[usize]| match width {
            0 => 0,
            _ => widths.iter().map(|w| w + 2).sum::<usize>().saturating_sub(width + 2),
        };
        while widths.len() > 2 && over(&widths) > 0 {
            widths.pop();
        }
        let over = over(&widths);
        if let Some(first) = widths.first_mut().filter(|_| over > 0) {
            if *first < over + NARROW {
                return self.cell_by_cell(width);
            }
            *first -= over;
        }
        let mut text = self.heading(width);
        for row in std::iter::once(&self.headers).chain(&self.rows) {
            let cells = widths.iter().zip(row).enumerate();
            let cells: Vec<String> = cells.map(|(j, (width, cell))| pad(&end(cell, *width), *width, left[j])).collect();
            text += cells.join("  ").trim_end();
            text.push('\n');
        }
        text
    }

    /// [`Grid::text`] with nothing left out: cells of columns for which a line has no room stand below their row, each
    /// with its header.
    pub fn whole(&self, width: usize) -> String {
        let mut used = 0;
        let room = |j: &usize| {
            used += self.widest(*j) + 2;
            width == 0 || used <= width + 2
        };
        let fit = (0..self.headers.len()).take_while(room).count();
        if fit == self.headers.len() {
            return self.text(width);
        }
        if fit == 0 {
            return self.cell_by_cell(width);
        }
        let some = |row: &Vec<String>| row.iter().take(fit).cloned().collect();
        let rows = self.rows.iter().map(some).collect();
        let text = Grid { title: self.title.clone(), headers: some(&self.headers), rows }.text(width);
        let lines: Vec<&str> = text.lines().collect();
        let (head, rows) = lines.split_at(lines.len() - self.rows.len());
        let mut text: String = head.iter().map(|line| format!("{line}\n")).collect();
        for (line, row) in rows.iter().zip(&self.rows) {
            text += &format!("{line}\n");
            for (header, cell) in self.headers.iter().zip(row).skip(fit).filter(|(_, cell)| !cell.is_empty()) {
                let colon = if header.is_empty() { "" } else { ": " };
                text += &format!("    {}", wrap(&format!("{header}{colon}{cell}"), 5, width.saturating_sub(4).max(1)));
            }
        }
        text
    }

    /// The first cell of each row, and below it all others by their headers.
    fn cell_by_cell(&self, width: usize) -> String {
        let mut text = self.heading(width);
        for row in &self.rows {
            let cells = self.headers.iter().zip(row).enumerate();
            for (n, (header, cell)) in cells.filter(|(_, (_, cell))| !cell.is_empty()) {
                let (margin, colon) = (if n == 0 { "" } else { "  " }, if header.is_empty() { "" } else { ": " });
                text += margin;
                text += &wrap(&format!("{header}{colon}{cell}"), 4, width.saturating_sub(margin.len()).max(1));
            }
        }
        text
    }
}

impl Matrix {
    /// It as a table with `options.decimals` digits, under a heading if it is one of several.
    pub fn table(&self, options: &TableOptions) -> String {
        let ([rows, cols], decimals, first) = (self.size, options.decimals, options.first);
        let digits = (rows + first).saturating_sub(1).to_string().len();
        let most = label_width(options.width);
        let index = |i: usize| match self.rows.get(i) {
            Some(word) => format!("{:>digits$} {}", i + first, cut(word, most)),
            None => (i + first).to_string(),
        };
        let header = |j: usize| self.columns.get(j).map_or_else(|| (j + first).to_string(), |word| cut(word, most));
        let cell = |i: usize, j: usize| format!("{:.decimals$}", self.values[i * cols + j]);
        let heading = if self.index.is_empty() { String::new() } else { wrap(&self.title(), 2, options.width) };
        heading + &grid(rows, cols, &index, &header, &cell, options)
    }
}

/// Columns that a cell needs at least to be told from others when its beginning is left out.
const NARROW: usize = 12;

/// The last columns of a text, where it has more than `most`.
fn end(text: &str, most: usize) -> Cow<'_, str> {
    match columns(text).checked_sub(most) {
        None | Some(0) => text.into(),
        Some(over) => format!("…{}", text.chars().skip(over + 1).collect::<String>()).into(),
    }
}

/// Whether a cell has a number, several, one with a unit, or nothing.
fn is_number(cell: &str) -> bool {
    let digits = |c: char| c.is_ascii_digit() || " .,:+-−e%x×/".contains(c);
    ["NaN", "inf", "-inf", "∞", "−∞", "…", "none"].contains(&cell)
        || cell.chars().all(digits) && !cell.starts_with(['e', 'x'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_in_json_is_a_word() {
        let values = vec![0.5, -2.0, f32::NEG_INFINITY, f32::INFINITY, f32::NAN];
        let matrix = Matrix {
            tensor: "x".into(),
            index: vec![],
            size: [1, 5],
            axes: ["pos", "d_model"],
            rows: vec![],
            columns: vec![],
            values,
            hidden: vec![],
            scale: HeatScale::Signed,
        };
        let json = serde_json::to_value(matrix).unwrap();
        assert_eq!(json["values"], serde_json::json!([0.5, -2.0, "-inf", "inf", "NaN"]));
    }

    #[test]
    fn a_command_is_wrapped_whole() {
        for (text, lines) in [
            ("use `limpid a b` or `c d`.", "use\n  `limpid a b`\n  or `c d`.\n"),
            ("a bc `limpid of a line` d", "a bc\n  `limpid of a line`\n  d\n"),
            ("a bc `a product of x` d", "a bc `a\n  product of\n  x` d\n"),
            ("a token ` and more", "a token ` and\n  more\n"),
            ("`limpid a` `limpid b` c", "`limpid a`\n  `limpid b` c\n"),
        ] {
            assert_eq!(wrap(text, 2, 14), lines);
        }
    }

    #[test]
    fn a_grid_keeps_what_fits() {
        let rows = [["blocks.0.attn.hook_q", "0.5", "1 4"], ["logits", "12.25", "1 4 28"]];
        let grid = Grid {
            title: "norms:".into(),
            headers: ["gradient of", "norm", "shape"].map(String::from).to_vec(),
            rows: rows.map(|row| row.map(String::from).to_vec()).to_vec(),
        };
        let whole = "norms:\ngradient of            norm   shape\nblocks.0.attn.hook_q    0.5     1 4\n\
             logits                12.25  1 4 28\n";
        assert_eq!([grid.text(0), grid.text(35)], [whole, whole]);
        let two = "norms:\ngradient of            norm\nblocks.0.attn.hook_q    0.5\nlogits                12.25\n";
        assert_eq!(grid.text(34), two);
        let cells = "norms:\ngradient of:\n    blocks.0.attn.hook_q\n  norm: 0.5\n  shape: 1 4\ngradient of:\n    \
                     logits\n  norm: 12.25\n  shape: 1 4 28\n";
        assert_eq!(grid.text(18), cells);
        let below = "norms:\ngradient of\nblocks.0.attn.hook_q\n    norm: 0.5\n    shape: 1 4\nlogits\n    norm: \
                     12.25\n    shape: 1 4 28\n";
        assert_eq!([grid.whole(0), grid.whole(35), grid.whole(20)], [whole, whole, below]);
        assert_eq!(grid.text(20), "norms:\ngradient of     norm\n….attn.hook_q    0.5\nlogits         12.25\n");
        let titled = Grid { title: "norms of all the gradients:".into(), ..grid };
        assert!(titled.text(20).starts_with("norms of all the\ngradients:\ngradient of"), "{}", titled.text(20));
    }

    #[test]
    fn numbers_stand_to_the_right_and_words_to_the_left() {
        let rows = [
            ["0", "dog", "1", "8 x 6", "+0.5"],
            ["10", "around", "-", "120 x 6", "none"],
            ["...", "...", "...", "...", "..."],
        ];
        let headers = ["pos", "token", "id", "rows x columns", "change"].map(String::from).to_vec();
        let grid =
            Grid { title: String::new(), headers, rows: rows.map(|row| row.map(String::from).to_vec()).to_vec() };
        let lines = [
            "pos  token    id  rows x columns  change",
            "0    dog       1           8 x 6    +0.5",
            "10   around    -         120 x 6    none",
            "...  ...     ...             ...     ...",
        ];
        assert_eq!(grid.text(0).lines().collect::<Vec<_>>(), lines);
    }

    #[test]
    fn sentences_are_broken_at_spaces() {
        assert_eq!(wrap("one two three", 0, 7), "one two\nthree\n");
        assert_eq!(wrap("holds  one two three", 7, 13), "holds  one\n       two\n       three\n");
        assert_eq!(wrap("one two", 0, 0), "one two\n");
        assert_eq!(wrap("unbreakable it is", 0, 4), "unbreakable\nit\nis\n");
    }
}

//! Tables of tensors as S1 prints them: an index column, the first and last columns and rows, six decimals, the size
//! at the foot. And the summary of a whole run, one line per tensor.
//!
//! Everything returns text; the caller decides how wide a line may be.

use super::{Labelled, SummaryRow};
use limpid_base::units::commas;

/// How much of a tensor is shown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TableOptions {
    /// Up to this many rows, all are shown; of more, only `edge_rows` at either end.
    pub max_rows: usize,
    /// Rows at either end.
    pub edge_rows: usize,
    /// Up to this many columns, all are shown; of more, only `edge_cols` at either end.
    pub max_cols: usize,
    /// Columns at either end.
    pub edge_cols: usize,
    /// Digits after the point; a table of whole numbers has none.
    pub decimals: usize,
    /// The most characters of a line: fewer columns are shown if need be. 0 for any number.
    pub width: usize,
    /// How many tables are shown of a tensor with more than two axes.
    pub max_tables: usize,
}

impl Default for TableOptions {
    /// Those of S1.
    fn default() -> TableOptions {
        TableOptions { max_rows: 60, edge_rows: 5, max_cols: 20, edge_cols: 10, decimals: 6, width: 0, max_tables: 4 }
    }
}

/// How many columns a text takes: combining marks (the tilde of X̃) take none.
pub fn columns(text: &str) -> usize {
    text.chars().filter(|c| !('\u{300}'..='\u{36f}').contains(c)).count()
}

fn pad(text: &str, width: usize, left: bool) -> String {
    let space = " ".repeat(width.saturating_sub(columns(text)));
    if left { format!("{text}{space}") } else { format!("{space}{text}") }
}

/// A tensor as tables: one for each index of all axes but the last two, each under a heading if there are several.
/// Heads come one by one, as (pos x d_head).
pub fn table(tensor: &Labelled, options: &TableOptions) -> String {
    let (axes, shape) = (&tensor.axes, &tensor.shape);
    let n = shape.len();
    let mut order: Vec<usize> = (0..n).collect();
    if let Some(head) = axes.iter().position(|axis| *axis == "head").filter(|head| head + 2 == n && *head > 0) {
        order.swap(head, head - 1);
    }
    let strides: Vec<usize> = (0..n).map(|i| shape[i + 1..].iter().product()).collect();
    let (lead, last) = order.split_at(n.saturating_sub(2));
    let (rows, cols) = match *last {
        [] => ((1, 0), (1, 0)),
        [c] => ((1, 0), (shape[c], strides[c])),
        [r, c, ..] => ((shape[r], strides[r]), (shape[c], strides[c])),
    };
    let whole = tensor.values.iter().all(|v| !v.is_finite() || v.fract() == 0.0);
    let decimals = if whole { 0 } else { options.decimals };
    let count: usize = lead.iter().map(|axis| shape[*axis]).product();
    let mut text = String::new();
    for k in 0..count.min(options.max_tables.max(1)) {
        let (mut rest, mut from, mut at) = (k, 0, vec![]);
        for axis in lead.iter().rev() {
            let i = rest % shape[*axis];
            rest /= shape[*axis];
            from += i * strides[*axis];
            at.push(format!("{} {i}", axes.get(*axis).unwrap_or(&"axis")));
        }
        at.reverse();
        if k > 0 {
            text.push('\n');
        }
        if !lead.is_empty() {
            text += &format!("{} [{}]\n", tensor.name, at.join(", "));
        }
        let cell = |i: usize, j: usize| {
            tensor.values.get(from + i * rows.1 + j * cols.1).map_or(String::new(), |v| format!("{v:.decimals$}"))
        };
        text += &grid(rows.0, cols.0, &|i| i.to_string(), &|j| j.to_string(), &cell, options);
    }
    if count > options.max_tables.max(1) {
        text += &format!("\n... and {} more such tables\n", commas((count - options.max_tables.max(1)) as u64));
    }
    text
}

/// The indices that are shown: `None` stands for those left out.
fn some(n: usize, max: usize, edge: usize) -> Vec<Option<usize>> {
    if n <= max || n <= 2 * edge {
        return (0..n).map(Some).collect();
    }
    let edge = edge.max(1);
    (0..edge).map(Some).chain([None]).chain((n - edge..n).map(Some)).collect()
}

type Text<'a> = &'a dyn Fn(usize) -> String;

/// The layout of all tables: the index left, cells right, two spaces between.
fn grid(
    rows: usize,
    cols: usize,
    index: Text,
    header: Text,
    cell: &dyn Fn(usize, usize) -> String,
    options: &TableOptions,
) -> String {
    const GAP: &str = "...";
    let shown_rows = some(rows, options.max_rows, options.edge_rows);
    let column = |j: Option<usize>| -> Vec<String> {
        let of = |i: &Option<usize>| match (i, j) {
            (Some(i), Some(j)) => cell(*i, j),
            _ => GAP.to_string(),
        };
        std::iter::once(j.map_or(GAP.into(), header)).chain(shown_rows.iter().map(of)).collect()
    };
    let label = |i: &Option<usize>| i.map_or(GAP.to_string(), index);
    let labels: Vec<String> = std::iter::once(String::new()).chain(shown_rows.iter().map(label)).collect();
    let widest = |cells: &[String]| cells.iter().map(|c| columns(c)).max().unwrap_or(0);
    let mut shown = some(cols, options.max_cols, options.edge_cols);
    let (table, widths) = loop {
        let table: Vec<Vec<String>> = shown.iter().map(|j| column(*j)).collect();
        let widths: Vec<usize> = table.iter().map(|c| widest(c)).collect();
        let total = widest(&labels) + widths.iter().map(|w| w + 2).sum::<usize>();
        if options.width == 0 || total <= options.width || shown.len() <= 3 {
            break (table, widths);
        }
        shown = some(cols, 0, (shown.len() - 1) / 2 - usize::from(shown.contains(&None)));
    };
    let mut text = String::new();
    for (i, label) in labels.iter().enumerate() {
        let mut line = pad(label, widest(&labels), true);
        for (cells, width) in table.iter().zip(&widths) {
            line = line + "  " + &pad(&cells[i], *width, false);
        }
        text += line.trim_end();
        text.push('\n');
    }
    text + &format!("\n[{} rows x {} columns]\n", commas(rows as u64), commas(cols as u64))
}

/// A batch of ids, one sequence per row.
pub fn ids(sequences: &[Vec<u32>], options: &TableOptions) -> String {
    let cols = sequences.iter().map(Vec::len).max().unwrap_or(0);
    let cell = |i: usize, j: usize| sequences[i].get(j).map_or(String::new(), u32::to_string);
    grid(sequences.len(), cols, &|i| i.to_string(), &|j| j.to_string(), &cell, options)
}

/// A vocabulary: ids and their tokens, quoted as far as needed to see them.
pub fn vocabulary(tokens: &[String], options: &TableOptions) -> String {
    let cell = |i: usize, _: usize| format!("{:?}", tokens[i]);
    grid(tokens.len(), 1, &|i| i.to_string(), &|_| "token".to_string(), &cell, options)
}

/// The one-hot matrix X^ohe of some ids. An id outside the vocabulary has a row of zeros.
pub fn one_hot(ids: &[u32], vocab_size: usize) -> Labelled {
    let mut values = vec![0.0; ids.len() * vocab_size];
    for (t, id) in ids.iter().enumerate().filter(|(_, id)| (**id as usize) < vocab_size) {
        values[t * vocab_size + *id as usize] = 1.0;
    }
    Labelled { name: "X^ohe".into(), axes: vec!["pos", "d_vocab"], shape: vec![ids.len(), vocab_size], values }
}

/// The causal mask in the seeds' three forms, which are equivalent. S2's fourth, scores times 1 or -inf, hides
/// nothing and is left out.
#[derive(Clone, Debug, PartialEq)]
pub struct Masks {
    /// 1 where a query sees a key, 0 elsewhere: scores are filled with -inf where it is 0.
    pub binary: Labelled,
    /// 0 where a query sees a key, -inf elsewhere: added to the scores.
    pub additive: Labelled,
    /// The mask as a function of the scores x_ij, printed.
    pub function: String,
}

/// The three forms for `n` positions.
pub fn masks(n: usize) -> Masks {
    let of = |name: &str, seen: f32, hidden: f32| Labelled {
        name: name.into(),
        axes: vec!["query_pos", "key_pos"],
        shape: vec![n, n],
        values: (0..n * n).map(|at| if at % n <= at / n { seen } else { hidden }).collect(),
    };
    let cell = |i: usize, j: usize| if j <= i { format!("x_{i},{j}") } else { "-inf".into() };
    let function = grid(n, n, &|i| i.to_string(), &|j| j.to_string(), &cell, &TableOptions::default());
    Masks { binary: of("M", 1.0, 0.0), additive: of("M^-inf", 0.0, f32::NEG_INFINITY), function }
}

/// A number in at most nine columns, with an exponent where plain digits would lose too much.
pub fn short(v: f64) -> String {
    match v.abs() {
        _ if v.is_nan() => "-".into(),
        0.0 => "0".into(),
        a if (1e-3..1e4).contains(&a) => format!("{v:.4}"),
        _ => format!("{v:.2e}"),
    }
}

/// The summary of a run, one line per tensor, aligned. Where `width` is too small for all columns, the less
/// important ones are left out (0 for any width). Remarks (masked scores, elements that are not finite) come last on
/// a line.
pub fn summary_table(rows: &[SummaryRow], width: usize) -> String {
    let sizes = |row: &SummaryRow| row.shape.iter().map(usize::to_string).collect::<Vec<_>>().join(" ");
    let remarks = |row: &SummaryRow| {
        let counted = [
            (row.nan, "NaN"),
            (row.infinite, "infinite"),
            (row.masked, "masked"),
            (row.without_target, "without target"),
        ];
        counted
            .iter()
            .filter(|(n, _)| *n > 0)
            .map(|(n, what)| format!("{} {what}", commas(*n as u64)))
            .collect::<Vec<_>>()
            .join(", ")
    };
    // header, importance (small ones stay longest), to the left or right, what it shows
    type Of<'a> = &'a dyn Fn(&SummaryRow) -> String;
    let all: [(&str, usize, bool, Of); 10] = [
        ("tensor", 0, true, &|row| row.name.clone()),
        ("symbol", 4, true, &|row| row.symbol.clone()),
        ("axes", 8, true, &|row| row.letters.clone()),
        ("shape", 2, true, &sizes),
        ("mean", 3, false, &|row| short(row.mean)),
        ("deviation", 3, false, &|row| short(row.deviation)),
        ("min", 6, false, &|row| short(f64::from(row.min))),
        ("max", 6, false, &|row| short(f64::from(row.max))),
        ("formula", 7, true, &|row| row.formula.clone()),
        ("remarks", 1, true, &remarks),
    ];
    let mut cells: Vec<(usize, bool, Vec<String>)> = all
        .iter()
        .map(|(header, rank, left, of)| {
            (*rank, *left, std::iter::once(header.to_string()).chain(rows.iter().map(of)).collect())
        })
        .filter(|(rank, _, column): &(usize, bool, Vec<String>)| {
            *rank != 1 || column[1..].iter().any(|c| !c.is_empty())
        })
        .collect();
    let widest = |column: &[String]| column.iter().map(|c| columns(c)).max().unwrap_or(0);
    while width > 0 && cells.len() > 1 {
        let total: usize = cells.iter().map(|(.., column)| widest(column) + 2).sum();
        if total <= width + 2 {
            break;
        }
        let least = cells.iter().map(|(rank, ..)| *rank).max().unwrap_or(0);
        cells.retain(|(rank, ..)| *rank < least);
    }
    let mut text = String::new();
    for i in 0..=rows.len() {
        let line: Vec<String> = cells.iter().map(|(_, left, column)| pad(&column[i], widest(column), *left)).collect();
        text += line.join("  ").trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_counts_have_commas() {
        assert_eq!([0.0, -0.5, 1e-9, 123456.0].map(short), ["0", "-0.5000", "1.00e-9", "1.23e5"]);
        assert_eq!(columns("X̃₁"), 2);
    }

    #[test]
    fn the_middle_is_left_out() {
        assert_eq!(some(3, 20, 10), [Some(0), Some(1), Some(2)]);
        assert_eq!(some(30, 20, 2), [Some(0), Some(1), None, Some(28), Some(29)]);
        assert_eq!(some(5, 0, 0), [Some(0), None, Some(4)]);
    }
}

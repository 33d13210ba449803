//! Tables of tensors as S1 prints them: an index column, the first and last columns and rows, six decimals, the size
//! at the foot. And the summary of a whole run, one line per tensor.
//!
//! Everything returns text; the caller decides how wide a line may be.

use limpid_base::units::{self, commas};
use limpid_core::model::{Module, in_block};
use limpid_trace::{NamedTensor, SummaryRow};

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
    /// The number of the first row and of the first column.
    pub first: usize,
}

impl Default for TableOptions {
    /// Those of S1.
    fn default() -> TableOptions {
        let (max_rows, edge_rows, max_cols, edge_cols) = (60, 5, 20, 10);
        TableOptions { max_rows, edge_rows, max_cols, edge_cols, decimals: 6, width: 0, max_tables: 4, first: 0 }
    }
}

/// How many columns a text takes: combining marks (the tilde of X̃) take none.
pub fn columns(text: &str) -> usize {
    text.chars().filter(|c| !('\u{300}'..='\u{36f}').contains(c)).count()
}

/// `text` filled with spaces up to `width` columns, at its right or at its left.
pub(super) fn pad(text: &str, width: usize, left: bool) -> String {
    let space = " ".repeat(width.saturating_sub(columns(text)));
    if left { format!("{text}{space}") } else { format!("{space}{text}") }
}

/// The first columns of a text, where it has more than `most`; a quoted one keeps its closing quote, if there is room
/// for a letter.
pub(super) fn cut(text: &str, most: usize) -> String {
    if columns(text) <= most {
        return text.into();
    }
    let end = if text.starts_with('"') && most > 4 { "…\"" } else { "…" };
    let mut shown = String::new();
    for letter in text.chars() {
        shown.push(letter);
        if columns(&shown) + columns(end) > most {
            shown.pop();
            break;
        }
    }
    shown + end
}

/// `text` in lines of at most `width` characters (0 for any), broken at spaces; all but the first begin with `indent`
/// spaces.
pub fn wrap(text: &str, indent: usize, width: usize) -> String {
    let (mut lines, mut used) = (String::new(), 0);
    for word in unbroken(text) {
        let wide = columns(&word);
        let breaks = width > 0 && used > indent && used + 1 + wide > width;
        match (breaks, used) {
            (true, _) => lines += &format!("\n{}", " ".repeat(indent)),
            (false, 0) => {}
            (false, _) => lines.push(' '),
        }
        let from = if breaks { indent } else { used + usize::from(used > 0) };
        used = from + wide;
        lines += &word;
    }
    lines + "\n"
}

/// What no line ends in: words, and commands in backquotes, which are pasted whole.
fn unbroken(text: &str) -> Vec<String> {
    let quotes = |text: &str| text.matches('`').count() % 2;
    let mut words: Vec<String> = vec![];
    for word in text.split(' ') {
        match words.last_mut().filter(|last| last.contains("`limpid") && quotes(last) == 1 && quotes(text) == 0) {
            Some(last) => last.extend([" ", word]),
            None => words.push(word.into()),
        }
    }
    words
}

/// Columns that a word at a row or a column may take, in lines of `width`.
pub(super) fn label_width(width: usize) -> usize {
    if width == 0 { 12 } else { (width / 5).clamp(4, 12) }
}

/// The indices that are shown: `None` stands for those left out.
pub(super) fn some(n: usize, max: usize, edge: usize) -> Vec<Option<usize>> {
    if n <= max || n <= 2 * edge {
        return (0..n).map(Some).collect();
    }
    let edge = edge.max(1);
    (0..edge).map(Some).chain([None]).chain((n - edge..n).map(Some)).collect()
}

pub(super) type Text<'a> = &'a dyn Fn(usize) -> String;

/// The layout of all tables: the index left, cells right, two spaces between.
pub(super) fn grid(
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
pub fn one_hot(ids: &[u32], vocab_size: usize) -> NamedTensor {
    let mut values = vec![0.0; ids.len() * vocab_size];
    for (t, id) in ids.iter().enumerate().filter(|(_, id)| (**id as usize) < vocab_size) {
        values[t * vocab_size + *id as usize] = 1.0;
    }
    NamedTensor { name: "X^ohe".into(), axes: vec!["pos", "d_vocab"], shape: vec![ids.len(), vocab_size], values }
}

/// The causal mask in the documents' three forms, which are equivalent. S2's fourth, scores times 1 or -inf, hides
/// nothing and is left out.
#[derive(Clone, Debug, PartialEq)]
pub struct Masks {
    /// 1 where a query sees a key, 0 elsewhere: scores are filled with -inf where it is 0.
    pub binary: NamedTensor,
    /// 0 where a query sees a key, -inf elsewhere: added to the scores.
    pub additive: NamedTensor,
    /// The mask as a function of the scores x_ij, printed.
    pub function: String,
    /// How many keys a query sees at most; 0 for all.
    pub window: usize,
}

/// The three forms for `n` positions, with a window of so many keys, or 0 for none.
pub fn masks(n: usize, window: usize) -> Masks {
    let sees = |i: usize, j: usize| j <= i && (window == 0 || i - j < window);
    let of = |name: &str, seen: f32, hidden: f32| NamedTensor {
        name: name.into(),
        axes: vec!["query_pos", "key_pos"],
        shape: vec![n, n],
        values: (0..n * n).map(|at| if sees(at / n, at % n) { seen } else { hidden }).collect(),
    };
    let cell = |i: usize, j: usize| if sees(i, j) { format!("x_{i},{j}") } else { "-inf".into() };
    let function = grid(n, n, &|i| i.to_string(), &|j| j.to_string(), &cell, &TableOptions::default());
    Masks { binary: of("M", 1.0, 0.0), additive: of("M^-inf", 0.0, f32::NEG_INFINITY), function, window }
}

/// The summary of a run, one line per tensor, aligned. Where `width` is too small for all columns (0 for any width),
/// statistics are left out first; then tensors of a block come under its name, so that symbols and formulas fit.
/// Remarks (masked scores, elements that are not finite) come last on a line, or below it.
pub fn summary_table(rows: &[SummaryRow], width: usize) -> String {
    let layouts = [
        (false, "symbol axes shape mean deviation min max formula"),
        (false, "symbol shape mean deviation min max formula"),
        (false, "symbol shape mean deviation formula"),
        (false, "symbol shape formula"),
        (true, "symbol shape formula"),
        (true, "symbol formula"),
        (true, "symbol shape"),
        (true, "symbol"),
        (true, ""),
    ];
    let fits = |table: &Summary| width == 0 || table.least() <= width;
    let mut tables = layouts.into_iter().map(|(short, shown)| Summary::new(rows, short, shown)).peekable();
    while let Some(table) = tables.next() {
        if fits(&table) || tables.peek().is_none() {
            return table.text(rows, width);
        }
    }
    String::new()
}

/// Characters for formulas where there are no statistics any more; longer ones come below their line.
const FORMULA: usize = 30;

/// The columns of a summary.
struct Summary {
    /// Whether tensors of a block are under its name, without it in theirs.
    short: bool,
    headers: Vec<&'static str>,
    /// Of each row.
    cells: Vec<Vec<String>>,
    widths: Vec<usize>,
}

impl Summary {
    fn new(rows: &[SummaryRow], short: bool, shown: &'static str) -> Summary {
        let headers: Vec<&'static str> = std::iter::once("tensor").chain(shown.split_whitespace()).collect();
        let cells: Vec<Vec<String>> =
            rows.iter().map(|row| headers.iter().map(|header| cell(row, header, short)).collect()).collect();
        let widest = |j: usize| cells.iter().map(|row| columns(&row[j])).chain([headers[j].len()]).max().unwrap_or(0);
        let widths = (0..headers.len()).map(widest).collect();
        Summary { short, headers, cells, widths }
    }

    /// Characters that a line needs.
    fn least(&self) -> usize {
        let formula = |j: usize| self.headers[j] == "formula" && !self.headers.contains(&"mean");
        let needs = |(j, width): (usize, &usize)| 2 + if formula(j) { FORMULA.min(*width) } else { *width };
        self.widths.iter().enumerate().map(needs).sum::<usize>() - 2
    }

    fn line<T: AsRef<str>>(&self, cells: &[T]) -> String {
        let right = ["mean", "deviation", "min", "max"];
        let cell = |(j, text): (usize, &T)| pad(text.as_ref(), self.widths[j], !right.contains(&self.headers[j]));
        cells.iter().enumerate().map(cell).collect::<Vec<_>>().join("  ").trim_end().to_string()
    }

    fn text(&self, rows: &[SummaryRow], width: usize) -> String {
        let mut text = self.line(&self.headers) + "\n";
        let mut above = None;
        for (row, cells) in rows.iter().zip(&self.cells) {
            let block = in_block(&row.name).filter(|_| self.short).map(|(block, _)| block);
            if let Some(block) = block.filter(|_| block != above) {
                text += &format!("{}\n", Module::block(block).name());
            }
            above = block;
            let remarks = remarks(row);
            let mut line = self.line(cells);
            let long = width > 0 && columns(&line) > width && self.headers.last() == Some(&"formula");
            if let (true, [first @ .., last]) = (long, cells.as_slice()) {
                text += &format!("{}\n", self.line(first));
                line = format!("    {last}");
            }
            if !remarks.is_empty() {
                let beside = width == 0 || columns(&line) + 2 + remarks.len() <= width;
                line += &format!("{}{remarks}", if beside { "  " } else { "\n    " });
            }
            text += &format!("{line}\n");
        }
        text
    }
}

/// What a column says of it; `short` under the name of its block, whose number its symbol goes without as in formulas.
fn cell(row: &SummaryRow, header: &str, short: bool) -> String {
    let whole = (row.symbol.as_str(), row.formula.as_str());
    let (symbol, formula) = if short { row.formula.split_once(" = ").unwrap_or(whole) } else { whole };
    match (header, in_block(&row.name).filter(|_| short)) {
        ("tensor", Some((_, name))) => format!("  {name}"),
        ("tensor", None) => row.name.clone(),
        ("symbol", _) => symbol.into(),
        ("formula", _) => formula.into(),
        ("axes", _) => row.letters.clone(),
        ("shape", _) => row.shape.iter().map(usize::to_string).collect::<Vec<_>>().join(" "),
        ("mean", _) => units::short(row.mean),
        ("deviation", _) => units::short(row.deviation),
        ("min", _) => units::short(row.min.into()),
        ("max", _) => units::short(row.max.into()),
        _ => String::new(),
    }
}

fn remarks(row: &SummaryRow) -> String {
    let counted =
        [(row.nan, "NaN"), (row.infinite, "infinite"), (row.masked, "masked"), (row.without_target, "without target")];
    let some = counted.iter().filter(|(n, _)| *n > 0);
    some.map(|(n, what)| format!("{} {what}", commas(*n as u64))).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A label is never wider than its place, and a quotation is closed.
    #[test]
    fn a_cut_word_fits_and_stays_quoted() {
        for word in [
            " upon",
            " around the corner",
            " 世界世界世界世界",
            "\n\n\n\n\n\n",
            " \"quoted\" twice",
            " é🙂é🙂é🙂é🙂",
            "plain words here",
            "世界世界世界世界",
        ] {
            let word = limpid_trace::labels::label(word);
            for most in 5..24 {
                let shown = cut(&word, most);
                assert!(columns(&shown) <= most, "{shown} in {most}");
                assert_eq!(shown.starts_with('"'), word.starts_with('"'));
                assert_eq!(shown.ends_with('"'), word.ends_with('"'), "{shown}");
                assert_eq!(shown == word, columns(&word) <= most, "{shown} of {word}");
            }
        }
    }

    #[test]
    fn a_combining_mark_takes_no_column() {
        assert_eq!(columns("X̃₁"), 2);
    }

    #[test]
    fn the_middle_is_left_out() {
        assert_eq!(some(3, 20, 10), [Some(0), Some(1), Some(2)]);
        assert_eq!(some(30, 20, 2), [Some(0), Some(1), None, Some(28), Some(29)]);
        assert_eq!(some(5, 0, 0), [Some(0), None, Some(4)]);
    }
}

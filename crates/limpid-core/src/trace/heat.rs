//! Heat maps for terminals, in colour or in characters: ` ░▒▓█`. What the mask hides is `·`, so that it cannot be taken for a weight
//! of nothing.
//!
//! Cells are as wide as lines allow: with a number in each, so that a map can be read without colours; two characters; or one.
//! Wide ones have words above them, the others the digits of their number.

use super::table::{TableOptions, columns, cut, label_width, pad, some};
use super::view::{HeatScale, Matrix, Paint, wrap};
use limpid_base::units::commas;

/// Characters of a cell with a number in it, and a space.
const WIDE: usize = 7;
/// From which share of the greatest on each shade is.
const SHADES: [(f64, char); 4] = [(0.75, '█'), (0.5, '▓'), (0.25, '▒'), (0.02, '░')];
const HIDDEN: char = '·';

impl Matrix {
    /// It as a heat map under its title. What of rows or columns does not fit is left out from the middle.
    pub fn heat(&self, paint: Paint, options: &TableOptions) -> String {
        let [rows, cols] = self.size;
        let (most, signed) = (label_width(options.width), self.scale == HeatScale::Signed);
        let shown_rows = some(rows, options.max_rows, options.edge_rows);
        let sides = |numbered: bool| -> Vec<String> {
            let digits = rows.saturating_sub(1).to_string().len();
            let side = |i: &Option<usize>| match i.map(|i| (i, self.rows.get(i))) {
                None => "…".to_string(),
                Some((i, None)) => i.to_string(),
                Some((_, Some(word))) if !numbered => cut(word, most),
                Some((i, Some(word))) => format!("{i:>digits$} {}", cut(word, most)),
            };
            shown_rows.iter().map(side).collect()
        };
        let widest = |sides: &[String]| sides.iter().map(|side| columns(side)).max().unwrap_or(0);
        let room = |sides: &[String]| match options.width {
            0 => usize::MAX,
            width => width.saturating_sub(widest(sides) + 1),
        };
        let (words, numbers) = (sides(false), sides(true));
        let narrow = if signed { 2 } else { 1 };
        let (cell, sides) = match () {
            () if cols * WIDE <= room(&words) => (WIDE, words),
            () if cols * 2 <= room(&numbers) => (2, numbers),
            () => (narrow, numbers),
        };
        let fit = room(&sides) / cell;
        let shown_cols = some(cols, fit, fit.saturating_sub(1) / 2);
        let side = widest(&sides);
        let top = if self.scale == HeatScale::Unit { 1.0 } else { self.top() };
        let mut text = self.title();
        if self.scale != HeatScale::Unit {
            text += &format!(", up to {}", number(top));
        }
        text = wrap(&text, 2, options.width);
        for header in self.headers(cell, &shown_cols) {
            text += format!("{} {header}", pad("", side, true)).trim_end();
            text.push('\n');
        }
        for (i, label) in shown_rows.iter().zip(&sides) {
            let mut line = pad(label, side, true) + " ";
            for j in &shown_cols {
                line += &match i.zip(*j) {
                    Some((i, j)) => self.cell(i * cols + j, cell, (paint, top)),
                    None => pad("…", cell, true),
                };
            }
            text += line.trim_end();
            text.push('\n');
        }
        if shown_rows.len() < rows || shown_cols.len() < cols {
            text += &format!("[{} rows x {} columns]\n", commas(rows as u64), commas(cols as u64));
        }
        text
    }

    /// What the shades or colours mean, in lines of `width`.
    pub fn legend(&self, paint: Paint, width: usize) -> String {
        let shades = || {
            let of = |(from, shade): (f64, char)| format!("{shade} {from}");
            format!("{} and more", SHADES.map(of).join("  "))
        };
        let mut text = match (paint, self.scale) {
            (Paint::Shades, HeatScale::Unit) => shades(),
            (Paint::Shades, HeatScale::Positive) => format!("{} of the greatest", shades()),
            (Paint::Shades, HeatScale::Signed) => format!("{} of the greatest magnitude", shades()),
            (Paint::Colour, HeatScale::Unit) => "black 0, white 1".into(),
            (Paint::Colour, HeatScale::Positive) => "black 0, white the greatest".into(),
            (Paint::Colour, HeatScale::Signed) => "blue below 0, red above".into(),
        };
        if !self.hidden.is_empty() {
            text += &format!("; {HIDDEN} hidden by the mask");
        }
        if self.axes == ["query_pos", "key_pos"] {
            text += "; a row is a query, its columns are the keys";
        }
        wrap(&text, 0, width)
    }

    /// The greatest magnitude of what is seen.
    fn top(&self) -> f64 {
        let seen = |(at, v): (usize, &f32)| (v.is_finite() && !self.is_hidden(at)).then_some(f64::from(v.abs()));
        self.values.iter().enumerate().filter_map(seen).fold(0.0, f64::max)
    }

    fn is_hidden(&self, at: usize) -> bool {
        self.hidden.get(at).is_some_and(|hidden| *hidden)
    }

    /// The lines above the cells: words, or digits where a cell is too narrow for one.
    fn headers(&self, cell: usize, shown: &[Option<usize>]) -> Vec<String> {
        let number = |j: Option<usize>| j.map_or("…".to_string(), |j| j.to_string());
        if cell == WIDE {
            let word = |j: &Option<usize>| j.and_then(|j| self.columns.get(j)).cloned().unwrap_or_else(|| number(*j));
            return vec![shown.iter().map(|j| pad(&cut(&word(j), WIDE - 1), WIDE, true)).collect()];
        }
        let places = number(shown.last().copied().flatten()).len() as u32;
        let line = |place: u32| {
            let unit = 10usize.pow(place);
            let digit = |(k, j): (usize, &Option<usize>)| match j {
                Some(j) if place == 0 => (j % 10).to_string(),
                // once for all that share it
                Some(j) if *j >= unit && (j % unit == 0 || k == 0 || shown[k - 1].is_none()) => {
                    (j / unit % 10).to_string()
                }
                _ => String::new(),
            };
            shown.iter().enumerate().map(|j| pad(&digit(j), cell, true)).collect::<String>()
        };
        (0..places).rev().map(line).collect()
    }

    /// One cell, `width` characters wide, in a map that goes up to `top`.
    fn cell(&self, at: usize, width: usize, (paint, top): (Paint, f64)) -> String {
        let v = f64::from(self.values[at]);
        if self.is_hidden(at) {
            return pad(&HIDDEN.to_string(), width, true);
        }
        if !v.is_finite() {
            return pad("?", width, true);
        }
        let share = if top > 0.0 { v / top } else { 0.0 };
        let shade = SHADES.iter().find(|(from, _)| share.abs() >= *from).map_or(' ', |(_, shade)| *shade);
        let digits = if self.scale == HeatScale::Unit { chance(v) } else { number(v) };
        let (inside, gap) = if width == WIDE { (WIDE - 1, " ") } else { (width, "") };
        let sign = if v < 0.0 { "-" } else { " " };
        let text = match (paint, self.scale, width) {
            (Paint::Colour, _, WIDE) => pad(&digits, inside, false),
            (Paint::Colour, ..) => " ".repeat(inside),
            (Paint::Shades, _, WIDE) => {
                shade.to_string().repeat(inside.saturating_sub(digits.chars().count())) + &digits
            }
            (Paint::Shades, HeatScale::Signed, _) => format!("{sign}{shade}"),
            (Paint::Shades, ..) => shade.to_string().repeat(inside),
        };
        match paint {
            Paint::Shades => text + gap,
            Paint::Colour => format!("\x1b[{}m{text}\x1b[0m{gap}", self.colour(share)),
        }
    }

    /// The codes of a background and of a foreground that can be read on it: greys, or blue and red by the sign.
    fn colour(&self, share: f64) -> String {
        let step = |most: f64| (share.abs().min(1.0) * most).round() as u8;
        let (back, light) = match self.scale {
            HeatScale::Signed => (16 + step(5.0) * if share < 0.0 { 1 } else { 36 }, false),
            _ => (232 + step(23.0), share > 0.5),
        };
        format!("48;5;{back};38;5;{}", if light { 16 } else { 231 })
    }
}

/// A probability in three characters.
fn chance(v: f64) -> String {
    if v >= 0.995 { format!("{v:.1}") } else { format!("{v:.2}").trim_start_matches('0').to_string() }
}

/// A number in at most five characters, or six with its sign.
fn number(v: f64) -> String {
    match v.abs() {
        a if a < 9.995 => format!("{v:.2}"),
        a if a < 99.95 => format!("{v:.1}"),
        a if a < 9999.5 => format!("{v:.0}"),
        _ => format!("{v:.0e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Labelled;
    use super::super::view::{Labels, label};
    use super::*;

    /// Causal weights of three words, and scores with both signs.
    fn maps() -> (Labelled, Labelled, Labels) {
        let of = |name: &str, values: [f32; 9]| Labelled {
            name: name.into(),
            axes: vec!["batch", "head", "query_pos", "key_pos"],
            shape: vec![1, 1, 3, 3],
            values: values.into(),
        };
        let words = ["dog", "jumps", " around the corner"].map(label);
        let labels =
            Labels { tokens: vec![words.to_vec()], vocabulary: vec![], reach: vec![vec![1, 2, 3]], mask: None };
        let inf = f32::NEG_INFINITY;
        (
            of("hook_pattern", [1.0, 0.0, 0.0, 0.25, 0.75, 0.0, 0.01, 0.5, 0.49]),
            of("hook_attn_scores", [-2.0, inf, inf, 4.0, -1.0, inf, 0.0, 120.0, f32::NAN]),
            labels,
        )
    }

    fn heat(tensor: &Labelled, labels: &Labels, paint: Paint, width: usize) -> String {
        tensor.text(labels, Some(paint), &TableOptions { width, ..TableOptions::default() })
    }

    #[test]
    fn wide_cells_have_words_and_numbers() {
        let (pattern, scores, labels) = maps();
        let want = "\
hook_pattern [batch 0, head 0]
             dog    jumps  \" aro…
dog          ███1.0 ·      ·
jumps        ▒▒▒.25 ███.75 ·
\" around th…    .01 ▓▓▓.50 ▒▒▒.49

█ 0.75  ▓ 0.5  ▒ 0.25  ░ 0.02 and more; · hidden by the mask; a row is a query, its columns are the keys
";
        assert_eq!(heat(&pattern, &labels, Paint::Shades, 0), want);
        let want = "\
hook_attn_scores [batch 0, head 0], up
  to 120
         dog    jumps  \" aro…
dog       -2.00 ·      ·
jumps    ░░4.00  -1.00 ·
\" aroun…   0.00 ███120 ?

█ 0.75  ▓ 0.5  ▒ 0.25  ░ 0.02 and more
of the greatest magnitude; · hidden by
the mask; a row is a query, its columns
are the keys
";
        assert_eq!(heat(&scores, &labels, Paint::Shades, 40), want);
    }

    #[test]
    fn narrow_cells_have_the_digits_of_their_number() {
        let (pattern, scores, labels) = maps();
        let map = |tensor, width| heat(tensor, &labels, Paint::Shades, width).split("\n\n").next().unwrap().to_string();
        let want = "\
hook_pattern [batch
  0, head 0]
       0 1 2
0 dog  ██· ·
1 jum… ▒▒██·
2 \" a…   ▓▓▒▒";
        assert_eq!(map(&pattern, 20), want);
        let want = "\
hook_attn_scores
  [batch 0, head 0],
  up to 120
       0 1 2
0 dog  - · ·
1 jum…  ░- ·
2 \" a…    █?";
        assert_eq!(map(&scores, 20), want);
        // fifteen columns, no words: a character each, the digits of numbers above them
        let line = Labelled {
            name: "probs".into(),
            axes: vec!["pos", "d_vocab"],
            shape: vec![1, 15],
            values: (0..15).map(|i| i as f32 / 14.0).collect(),
        };
        let text = |width| heat(&line, &Labels::default(), Paint::Shades, width);
        assert!(text(17).starts_with("probs\n            1\n  012345678901234\n0  ░░░▒▒▒▓▓▓▓████\n\n"), "{}", text(17));
        // and fewer where they do not fit, from both ends
        assert!(
            text(11).starts_with("probs\n       1\n  0123 1234\n0  ░░░…████\n[1 rows x 15 columns]\n"),
            "{}",
            text(11)
        );
    }

    #[test]
    fn colours_go_with_the_value() {
        let (pattern, scores, labels) = maps();
        let text = heat(&pattern, &labels, Paint::Colour, 80);
        let line = text.lines().nth(3).unwrap();
        assert_eq!(
            line,
            "jumps        \u{1b}[48;5;238;38;5;231m   .25\u{1b}[0m \u{1b}[48;5;249;38;5;16m   .75\u{1b}[0m ·"
        );
        let text = heat(&scores, &labels, Paint::Colour, 80);
        assert!(text.contains("\u{1b}[48;5;196;38;5;231m   120\u{1b}[0m"), "{text:?}");
        assert!(text.contains("blue below 0, red above") && !text.contains('█'));
    }

    #[test]
    fn a_number_fits_its_cell() {
        for (v, text) in [
            (0.0, "0.00"),
            (-9.994, "-9.99"),
            (-9.996, "-10.0"),
            (99.96, "100"),
            (-9999.4, "-9999"),
            (9999.6, "1e4"),
            (-3e38, "-3e38"),
        ] {
            assert_eq!(number(v), text);
        }
        assert_eq!([0.0, 0.004, 0.994, 0.995, 1.0].map(chance), [".00", ".00", ".99", "1.0", "1.0"]);
    }
}

//! Heat maps for terminals, in colour or in characters: ` ░▒▓█`. What the mask hides is `·`, so that it cannot be taken
//! for a weight of nothing.
//!
//! Cells are as wide as lines allow: with a number in each, so that a map can be read without colours; two characters;
//! or one. Wide ones have words above them, the others the digits of their number. Where there is no room for all, a
//! cell stands for several.

use super::palette::{Palette, entry, lightness, terminal};
use super::table::{TableOptions, columns, cut, label_width, pad};
use super::view::{HeatScale, Matrix, Paint, wrap};
use limpid_base::units::commas;

/// Characters of a cell with a number in it, and a space.
const WIDE: usize = 7;
/// From which share of the greatest on each shade is.
const SHADES: [(f64, char); 4] = [(0.75, '█'), (0.5, '▓'), (0.25, '▒'), (0.02, '░')];
const HIDDEN: char = '·';

impl Matrix {
    /// It as a heat map under its title. Where not all rows or columns fit, a cell is the greatest of several.
    pub fn heat(&self, paint: Paint, options: &TableOptions) -> String {
        let [rows, cols] = self.size;
        let (most, signed) = (label_width(options.width), self.scale == HeatScale::Signed);
        let tall = self.pooled([options.max_rows, usize::MAX]);
        let sides = |numbered: bool| -> Vec<String> {
            let digits = rows.saturating_sub(1).to_string().len();
            let side = |i: usize| match tall.matrix.rows.get(i) {
                None => (i * tall.by[0]).to_string(),
                Some(word) if !numbered => cut(word, most),
                Some(word) => format!("{i:>digits$} {}", cut(word, most)),
            };
            (0..tall.matrix.size[0]).map(side).collect()
        };
        let widest = |sides: &[String]| sides.iter().map(|side| columns(side)).max().unwrap_or(0);
        let room = |sides: &[String]| match options.width {
            0 => usize::MAX,
            width => width.saturating_sub(widest(sides) + 1),
        };
        let (words, numbers) = (sides(false), sides(true));
        let narrow = if signed && paint == Paint::Shades { 2 } else { 1 };
        let (cell, sides) = if cols * WIDE <= room(&words) {
            (WIDE, words)
        } else if cols * 2 <= room(&numbers) {
            (2, numbers)
        } else {
            (narrow, numbers)
        };
        let map = tall.matrix.pooled([usize::MAX, room(&sides) / cell]);
        let (by, side, range) = ([tall.by[0], map.by[1]], widest(&sides), self.range(self.terminal_palette()));
        let mut text = self.title();
        if paint == Paint::Shades && self.scale != HeatScale::Unit {
            let (low, high) = if signed { self.range(Palette::Ink) } else { range };
            text += &match low.abs().max(high) {
                most if signed && most > high => format!(", from {} to {}", number(low), number(high)),
                most => format!(", up to {}", number(most)),
            };
        }
        text = wrap(&text, 2, options.width);
        if paint != Paint::Shades {
            text += &self.ramp(paint, options.width);
        }
        for header in map.matrix.headers(cell, by[1]) {
            text += format!("{} {header}", pad("", side, true)).trim_end();
            text.push('\n');
        }
        for (i, label) in sides.iter().enumerate() {
            let mut line = pad(label, side, true) + " ";
            for j in 0..map.matrix.size[1] {
                line += &map.matrix.cell(i * map.matrix.size[1] + j, cell, paint, range);
            }
            text += line.trim_end();
            text.push('\n');
        }
        if let Some(note) = (super::pool::Pooled { by, ..map }).note() {
            let all = format!("[{} rows x {} columns, {note}]", commas(rows as u64), commas(cols as u64));
            text += &wrap(&all, 0, options.width);
        }
        text
    }

    /// What the shades mean, and what else there is to know, in lines of `width`; colours are said above each map.
    pub fn legend(&self, paint: Paint, width: usize) -> String {
        let of = match self.scale {
            HeatScale::Unit => "",
            HeatScale::Positive => " of the greatest",
            HeatScale::Signed => " of the greatest magnitude",
        };
        let shades = || SHADES.map(|(from, shade)| format!("{shade} {from}")).join("  ");
        let shades = (paint == Paint::Shades).then(|| format!("{} and more{of}", shades()));
        let hidden = (!self.hidden.is_empty()).then(|| format!("{HIDDEN} hidden by the mask"));
        let axes = self.axes == ["query_pos", "key_pos"];
        let axes = axes.then(|| "a row is a query, its columns are the keys".to_string());
        let all: Vec<String> = [shades, hidden, axes].into_iter().flatten().collect();
        if all.is_empty() { String::new() } else { wrap(&all.join("; "), 0, width) }
    }

    /// Colours of a terminal. Most are dark, so what is dark on paper is bright there; that has no place for the signs
    /// of scores.
    fn terminal_palette(&self) -> Palette {
        match self.palette() {
            Palette::Ink if self.scale == HeatScale::Signed => Palette::Viridis,
            palette => palette,
        }
    }

    /// The codes of a background and of a foreground that can be read on it.
    fn colour(&self, paint: Paint, v: f64, range: (f64, f64)) -> String {
        let entry = entry(v, range);
        let back = match self.terminal_palette() {
            Palette::Ink => Palette::Ink.colour(255 - entry),
            palette => palette.colour(entry),
        };
        let front = if lightness(back) > 55.0 { 16 } else { 231 };
        let back = match paint {
            Paint::TrueColour => format!("2;{};{};{}", back[0], back[1], back[2]),
            _ => format!("5;{}", terminal(back)),
        };
        format!("48;{back};38;5;{front}")
    }

    /// The palette from end to end with the exact values at its ends and in its middle.
    fn ramp(&self, paint: Paint, width: usize) -> String {
        let (low, high) = self.range(self.terminal_palette());
        let half = if width == 0 { 12 } else { (width.saturating_sub(24) / 2).clamp(2, 12) };
        let part = |from: usize| -> String {
            let share = |i: usize| low + (high - low) * (from + i) as f64 / (2 * half) as f64;
            (0..half).map(|i| format!("\x1b[{}m \x1b[0m", self.colour(paint, share(i), (low, high)))).collect()
        };
        format!("{} {} {} {} {}\n", number(low), part(0), number((low + high) / 2.0), part(half + 1), number(high))
    }

    /// The lines above the cells, which are `by` columns each: words, or digits where a cell is too narrow for one.
    fn headers(&self, cell: usize, by: usize) -> Vec<String> {
        let shown = 0..self.size[1];
        if cell == WIDE {
            let word = |j: usize| self.columns.get(j).cloned().unwrap_or_else(|| (j * by).to_string());
            return vec![shown.map(|j| pad(&cut(&word(j), WIDE - 1), WIDE, true)).collect()];
        }
        let places = (self.size[1].saturating_sub(1) * by).to_string().len() as u32;
        let line = |place: u32| {
            let unit = 10usize.pow(place);
            let digit = |j: usize| match j * by {
                n if place == 0 => (n % 10).to_string(),
                // once for all that share it
                n if n >= unit && (j == 0 || (n - by) / unit != n / unit) => (n / unit % 10).to_string(),
                _ => String::new(),
            };
            shown.clone().map(|j| pad(&digit(j), cell, true)).collect::<String>()
        };
        (0..places).rev().map(line).collect()
    }

    /// One cell, `width` characters wide, in a map with that range.
    fn cell(&self, at: usize, width: usize, paint: Paint, range: (f64, f64)) -> String {
        let v = f64::from(self.values[at]);
        if self.is_hidden(at) {
            return pad(&HIDDEN.to_string(), width, true);
        }
        if !v.is_finite() {
            return pad("?", width, true);
        }
        let top = range.0.abs().max(range.1);
        let share = if top > 0.0 { v / top } else { 0.0 };
        let shade = SHADES.iter().find(|(from, _)| share.abs() >= *from).map_or(' ', |(_, shade)| *shade);
        let digits = if self.scale == HeatScale::Unit { chance(v) } else { number(v) };
        let (inside, gap) = if width == WIDE { (WIDE - 1, " ") } else { (width, "") };
        let sign = if v < 0.0 { "-" } else { " " };
        let text = match (paint, self.scale, width) {
            (Paint::Shades, _, WIDE) => {
                shade.to_string().repeat(inside.saturating_sub(digits.chars().count())) + &digits
            }
            (Paint::Shades, HeatScale::Signed, _) => format!("{sign}{shade}"),
            (Paint::Shades, ..) => shade.to_string().repeat(inside),
            (_, _, WIDE) => pad(&digits, inside, false),
            _ => " ".repeat(inside),
        };
        match paint {
            Paint::Shades => text + gap,
            _ => format!("\x1b[{}m{text}\x1b[0m{gap}", self.colour(paint, v, range)),
        }
    }
}

/// A probability in three characters.
pub(super) fn chance(v: f64) -> String {
    if v >= 0.995 { format!("{v:.1}") } else { format!("{v:.2}").trim_start_matches('0').to_string() }
}

/// A number in at most five characters, or six with its sign.
pub(super) fn number(v: f64) -> String {
    match v.abs() {
        a if a < 9.995 => format!("{v:.2}"),
        a if a < 99.95 => format!("{v:.1}"),
        a if a < 9999.5 => format!("{v:.0}"),
        _ => format!("{v:.0e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::text;
    use limpid_trace::NamedTensor;
    use limpid_trace::labels::{Labels, label};

    /// Causal weights of three words, and scores with both signs.
    fn maps() -> (NamedTensor, NamedTensor, Labels) {
        let of = |name: &str, values: [f32; 9]| NamedTensor {
            name: name.into(),
            axes: vec!["batch", "head", "query_pos", "key_pos"],
            shape: vec![1, 1, 3, 3],
            values: values.into(),
        };
        let words = ["dog", "jumps", " around the corner"].map(label);
        let labels = Labels {
            tokens: vec![words.to_vec()],
            vocabulary: vec![],
            reach: vec![vec![1, 2, 3]],
            ..Labels::default()
        };
        let inf = f32::NEG_INFINITY;
        (
            of("hook_pattern", [1.0, 0.0, 0.0, 0.25, 0.75, 0.0, 0.01, 0.5, 0.49]),
            of("hook_attn_scores", [-2.0, inf, inf, 4.0, -1.0, inf, 0.0, 120.0, f32::NAN]),
            labels,
        )
    }

    fn heat(tensor: &NamedTensor, labels: &Labels, paint: Paint, width: usize) -> String {
        text(tensor, labels, Some(paint), &TableOptions { width, ..TableOptions::default() })
    }

    #[test]
    fn wide_cells_have_words_and_numbers() {
        let (pattern, scores, labels) = maps();
        let want = "\
hook_pattern [batch 0, head 0]
             dog    jumps  \" ar…\"
dog          ███1.0 ·      ·
jumps        ▒▒▒.25 ███.75 ·
\" around t…\"    .01 ▓▓▓.50 ▒▒▒.49

█ 0.75  ▓ 0.5  ▒ 0.25  ░ 0.02 and more; · hidden by the mask; a row is a query, its columns are the keys
";
        assert_eq!(heat(&pattern, &labels, Paint::Shades, 0), want);
        let want = "\
hook_attn_scores [batch 0, head 0], up
  to 120
         dog    jumps  \" ar…\"
dog       -2.00 ·      ·
jumps    ░░4.00  -1.00 ·
\" arou…\"   0.00 ███120 ?

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
        let line = NamedTensor {
            name: "probs".into(),
            axes: vec!["pos", "d_vocab"],
            shape: vec![1, 15],
            values: (0..15).map(|i| i as f32 / 14.0).collect(),
        };
        let text = |width| heat(&line, &Labels::default(), Paint::Shades, width);
        assert!(text(17).starts_with("probs\n            1\n  012345678901234\n0  ░░░▒▒▒▓▓▓▓████\n\n"), "{}", text(17));
        // and fewer where they do not fit: each the greatest of two
        assert!(
            text(11).starts_with("probs\n       1\n  02468024\n0 ░░▒▓▓███\n[1 rows x\n15 columns,\n"),
            "{}",
            text(11)
        );
    }

    #[test]
    fn colours_go_with_the_value() {
        let (pattern, scores, labels) = maps();
        let code = |palette: Palette, entry: u8| format!("48;5;{}", terminal(palette.colour(entry)));
        let text = heat(&pattern, &labels, Paint::Colour, 80);
        let line = text.lines().nth(4).unwrap();
        let (light, dark) = (code(Palette::Ink, 255 - 191), code(Palette::Ink, 255 - 64));
        assert_eq!(
            line,
            format!("jumps        \u{1b}[{dark};38;5;231m   .25\u{1b}[0m \u{1b}[{light};38;5;16m   .75\u{1b}[0m ·")
        );
        // scores from the least to the greatest that is seen, with the ends and the middle in numbers
        let text = heat(&scores, &labels, Paint::Colour, 80);
        assert!(text.contains(&format!("{};38;5;16m   120\u{1b}[0m", code(Palette::Viridis, 255))), "{text:?}");
        let ramp: Vec<&str> = text.lines().nth(1).unwrap().split('\u{1b}').collect();
        assert!(ramp[0] == "-120 " && ramp.last() == Some(&"[0m 120") && ramp.contains(&"[0m 0.00 "), "{ramp:?}");
        assert!(!text.contains('█'));
        let exact = heat(&pattern, &labels, Paint::TrueColour, 80);
        let [r, g, b] = Palette::Ink.colour(0);
        assert!(exact.contains(&format!("[48;2;{r};{g};{b};38;5;16m   1.0")), "{exact:?}");
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

//! Pictures of tensors as data, and as files: heat maps, curves and bars. [`TensorPlot::svg`] and [`TensorPlot::png`]
//! are bytes of a file, [`TensorPlot::text`] is for a terminal; all three take colours from `palette` and show the
//! greatest of several cells as `pool` does.
//!
//! `expression` is what a plot is asked for by, `draw` its layout, `scene`, `paint` and `png` how marks become files.
//! `diagram` draws a model without its numbers.

mod draw;
mod expression;
mod paint;
pub mod png;
pub(super) mod scene;
pub mod swept;

pub use expression::{gelu, plot};

use super::palette::Palette;
use super::table::{TableOptions, columns, cut, pad};
use super::view::{Matrix, Paint, View, wrap};
use serde::Serialize;

/// Whether the bytes of a file are a picture that was drawn here.
pub fn is_own(bytes: &[u8]) -> bool {
    let start = &bytes[..bytes.len().min(400)];
    let has = |mark: &[u8]| start.windows(mark.len()).any(|window| window == mark);
    start.starts_with(b"\x89PNG") && has(png::SOFTWARE)
        || start.starts_with(b"<svg ") && has(scene::LABELLED.as_bytes())
}

/// A picture of one thing, in parts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TensorPlot {
    /// What was asked for.
    pub title: String,
    /// What it is.
    pub about: String,
    /// Heat maps beside each other, or charts below each other.
    pub parts: Vec<PlotPart>,
}

/// A heat map, or a chart.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum PlotPart {
    /// A heat map.
    Matrix(Matrix),
    /// Curves or bars.
    Chart(Chart),
}

/// Curves or bars on common axes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Chart {
    /// What it shows.
    pub title: String,
    /// What x and y are.
    pub axes: [String; 2],
    /// Words for the places 0, 1, ... of x; empty where they are numbers.
    pub words: Vec<String>,
    /// Whether the points of the first series are the ends of bars.
    pub bars: bool,
    /// The curves.
    pub series: Vec<Series>,
    /// Values that a line is drawn at, with what they are.
    pub lines: Vec<(String, f64)>,
}

/// Points of one name.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Series {
    /// Its name.
    pub label: String,
    /// x and y.
    pub points: Vec<(f64, f64)>,
}

impl TensorPlot {
    /// A file that any browser shows, light or dark as its reader likes.
    pub fn svg(&self, palette: Option<Palette>) -> String {
        self.scene(palette).svg()
    }

    /// The same as pixels, two of them a unit, on white.
    pub fn png(&self, palette: Option<Palette>) -> Vec<u8> {
        self.scene(palette).png()
    }

    /// It for a terminal: heat maps as [`View::text`] shows them, bars and curves as characters.
    pub fn text(&self, paint: Paint, options: &TableOptions) -> String {
        let width = options.width;
        let part = |part: &PlotPart| match part {
            PlotPart::Matrix(matrix) => View::Matrix(matrix.clone()).text(Some(paint), options),
            PlotPart::Chart(chart) if chart.bars => chart.bar_lines(width),
            PlotPart::Chart(chart) => chart.curve_lines(width),
        };
        let shown = self.parts.iter().take(options.max_tables.max(1)).map(part);
        let mut parts: Vec<String> = shown.collect();
        let more = self.parts.len() - parts.len();
        if more > 0 {
            parts.push(wrap(&format!("... and {more} more; a file (--plot-out) has all"), 0, width));
        }
        parts.join("\n")
    }
}

/// Columns and lines of a chart in a terminal whose width is not known.
const WIDTH: usize = 80;
const LINES: usize = 16;
/// What marks the points of each curve.
const POINTS: [char; 8] = ['●', '○', '◆', '◇', '▲', '△', '■', '□'];

impl Chart {
    /// The least and the greatest x and y, 0 among the y of bars.
    fn ends(&self) -> ([f64; 2], [f64; 2]) {
        let points = || self.series.iter().flat_map(|series| &series.points).filter(|(_, y)| y.is_finite());
        let of = |values: &mut dyn Iterator<Item = f64>| {
            let ends = values.fold([f64::INFINITY, f64::NEG_INFINITY], |[low, high], v| [low.min(v), high.max(v)]);
            if ends[0] > ends[1] { [0.0, 1.0] } else { ends }
        };
        let zero = self.bars.then_some(0.0);
        let lines = self.lines.iter().map(|(_, y)| *y);
        (of(&mut points().map(|p| p.0)), of(&mut points().map(|p| p.1).chain(zero).chain(lines)))
    }

    /// A line for each bar.
    fn bar_lines(&self, width: usize) -> String {
        let width = if width == 0 { WIDTH } else { width };
        let Some(series) = self.series.first() else { return String::new() };
        let word = |(i, (x, _)): (usize, &(f64, f64))| self.words.get(i).cloned().unwrap_or_else(|| format!("{x:.1}"));
        let words: Vec<String> = series.points.iter().enumerate().map(|p| cut(&word(p), 16)).collect();
        let digits: Vec<String> = series.points.iter().map(|(_, y)| super::heat::number(*y)).collect();
        let widest = |all: &[String]| all.iter().map(|text| columns(text)).max().unwrap_or(0);
        let (side, end) = (widest(&words), widest(&digits));
        let room = width.saturating_sub(side + end + 2).max(1);
        let top = self.ends().1.map(f64::abs).into_iter().fold(f64::MIN_POSITIVE, f64::max);
        let mut text = wrap(&self.title, 2, width);
        for ((word, digits), (_, y)) in words.iter().zip(&digits).zip(&series.points) {
            let long = if y.is_finite() { (y.abs() / top * room as f64 * 2.0).round() as usize } else { 0 };
            let bar = "█".repeat(long / 2) + if long % 2 == 1 { "▌" } else { "" };
            text += format!("{} {} {bar}", pad(word, side, true), pad(digits, end, false)).trim_end();
            text.push('\n');
        }
        let line = |(name, y): &(String, f64)| wrap(&format!("{name}: {}", super::heat::number(*y)), 2, width);
        text + &self.lines.iter().map(line).collect::<String>()
    }

    /// Points in a field of characters, with the ends of both axes.
    fn curve_lines(&self, width: usize) -> String {
        let width = if width == 0 { WIDTH } else { width };
        let ([x0, x1], [y0, y1]) = self.ends();
        let labels = [y1, y0].map(super::heat::number);
        let side = labels.iter().map(|label| columns(label)).max().unwrap_or(0);
        let room = width.saturating_sub(side + 2).clamp(1, 200);
        let mut field = vec![vec![' '; room]; LINES];
        let place = |v: f64, low: f64, high: f64, n: usize| {
            let share = if high > low { (v - low) / (high - low) } else { 0.5 };
            (share * (n - 1) as f64).round() as usize
        };
        for (series, point) in self.series.iter().zip(POINTS.iter().cycle()) {
            for (x, y) in series.points.iter().filter(|(_, y)| y.is_finite()) {
                field[LINES - 1 - place(*y, y0, y1, LINES)][place(*x, x0, x1, room)] = *point;
            }
        }
        let mut text = wrap(&self.title, 2, width);
        for (i, line) in field.iter().enumerate() {
            let label = match i {
                0 => &labels[0],
                _ if i + 1 == LINES => &labels[1],
                _ => "",
            };
            text += format!("{} │{}", pad(label, side, false), line.iter().collect::<String>()).trim_end();
            text.push('\n');
        }
        let (low, high) = (super::heat::number(x0), super::heat::number(x1));
        let gap = room.saturating_sub(columns(&low) + columns(&high));
        text += &format!("{}{low}{}{high}\n", " ".repeat(side + 2), " ".repeat(gap));
        let named = |(series, point): (&Series, &char)| format!("{point} {}", series.label);
        let named: Vec<String> = self.series.iter().zip(POINTS.iter().cycle()).map(named).collect();
        text + &wrap(&format!("{}; x: {}, y: {}", named.join("  "), self.axes[0], self.axes[1]), 0, width)
    }
}

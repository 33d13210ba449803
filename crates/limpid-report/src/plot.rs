//! Curves as SVG: axes with round numbers, and points thinned to what a column of pixels can show.
//!
//! Every plot has the same size and the same steps, whatever it shows. Curves differ in colour, in dash and in marker,
//! so that they can be told apart in grey, too. Colours are CSS classes, so that one picture serves light and dark. A
//! curve's `points` are its values (of a logarithmic axis: their logarithms), which a matrix puts in place: `page.js`
//! reads them as they are, and zooms by another matrix.

use crate::escape::escape;
use crate::units::{tick, ticks};
use std::ops::RangeInclusive;

/// How a curve is told from others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Style {
    /// A class with a colour.
    colour: String,
    /// One of [`DASHES`] classes.
    dash: usize,
    /// One of [`MARKS`]; none for a line that is no measurement.
    mark: Option<usize>,
}

/// Classes `c0`, `c1`, ...; classes `s0`, `s1`, .... With seven markers, 280 curves differ.
const COLOURS: usize = 8;
const DASHES: usize = 5;
/// Markers: circle, square, triangle, diamond, cross, triangle upside down, plus.
const MARKS: [&str; 7] = [
    "m-3 0a3 3 0 1 0 6 0a3 3 0 1 0-6 0z",
    "m-2.7-2.7h5.4v5.4h-5.4z",
    "m0-3.6l3.4 6h-6.8z",
    "m0-3.9l3.5 3.9l-3.5 3.9l-3.5-3.9z",
    "m-2.6-2.6l5.2 5.2m0-5.2l-5.2 5.2",
    "m0 3.6l3.4-6h-6.8z",
    "m-3.4 0h6.8m-3.4-3.4v6.8",
];
/// Colours by depth: classes `d0` to `d11`.
const RAMP: usize = 12;

impl Style {
    /// That of the `i`-th run, or of the `i`-th of a few curves.
    pub fn nth(i: usize) -> Style {
        Style { colour: format!("c{}", i % COLOURS), dash: i % DASHES, mark: Some(i % MARKS.len()) }
    }

    /// That of block `i` of blocks up to `deepest`.
    pub fn depth(i: usize, deepest: usize) -> Style {
        Style { colour: format!("d{}", i * (RAMP - 1) / deepest.max(1)), ..Style::nth(i) }
    }

    /// That of the `i`-th layer that is no block.
    pub fn beside(i: usize) -> Style {
        Style { colour: "dim".into(), dash: 2 + i % 3, mark: Some([4, 6, 1][i % 3]) }
    }

    /// A line that curves are compared with.
    pub fn reference() -> Style {
        Style { colour: "dim".into(), dash: 2, mark: None }
    }

    fn class(&self) -> String {
        format!("{} s{}", self.colour, self.dash)
    }

    /// A short piece of the curve, for a legend.
    pub fn key(&self) -> String {
        let mark = self
            .mark
            .map_or(String::new(), |mark| format!("<path class=\"{} mark\" d=\"M15 6{}\"/>", self.colour, MARKS[mark]));
        format!(
            "<svg class=\"key\" viewBox=\"0 0 30 12\" aria-hidden=\"true\"><path class=\"{}\" d=\"M0 \
             6H30\"/>{mark}</svg>",
            self.class()
        )
    }
}

/// Points of one name.
#[derive(Clone)]
pub struct Curve {
    /// Empty for one that the title names.
    pub label: String,
    pub style: Style,
    pub points: Vec<(f64, f64)>,
    /// Drawn faintly behind, where the points are means of these.
    pub raw: Vec<(f64, f64)>,
}

impl Curve {
    /// A curve through these points alone.
    pub fn new(label: &str, style: Style, points: Vec<(f64, f64)>) -> Curve {
        Curve { label: label.into(), style, points, raw: vec![] }
    }
}

/// Curves on common axes.
pub struct CurvePlot {
    pub title: String,
    /// What the title leaves open.
    pub note: String,
    /// What the curves do, in a sentence.
    pub said: String,
    /// The y axis is logarithmic.
    pub log: bool,
    /// The y axis leaves out what came before this step.
    pub from: f64,
    /// Whether the curves are named beneath, rather than once for all plots.
    pub legend: bool,
    /// What goes from left to right: `step`, or `layer`.
    pub across: &'static str,
    pub curves: Vec<Curve>,
}

/// The picture and, inside, where curves are, in units that are pixels at its own size.
const SIZE: (f64, f64) = (480.0, 250.0);
const X: RangeInclusive<f64> = 46.0..=470.0;
const Y: RangeInclusive<f64> = 8.0..=226.0;
/// Points up to which each is marked; of more, as many in a row as this.
const FEW: usize = 40;
const MARKED: usize = 9;

/// Where an axis's values lie.
#[derive(Clone)]
pub struct PlotAxis {
    pub values: (f64, f64),
    pub log: bool,
    pub pixels: (f64, f64),
}

impl PlotAxis {
    fn scaled(&self, v: f64) -> f64 {
        if self.log { v.log10() } else { v }
    }

    /// What a scaled value is multiplied by, and what is added, to be a pixel.
    fn matrix(&self) -> (f64, f64) {
        let ((low, high), (from, to)) = (self.values, self.pixels);
        let (low, high) = (self.scaled(low), self.scaled(high));
        let by = (to - from) / (high - low);
        (by, from - low * by)
    }

    /// The pixel of a value.
    pub fn place(&self, v: f64) -> f64 {
        let (by, add) = self.matrix();
        self.scaled(v) * by + add
    }

    /// Round numbers within the axis.
    fn ticks(&self) -> Vec<f64> {
        let (low, high) = self.values;
        if self.log {
            let within = |v: &f64| *v >= low - 1e-9 * (high - low) && *v <= high + 1e-9 * (high - low);
            let (from, to) = (low.log10().floor() as i32, high.log10().ceil() as i32);
            let every = ((to - from) / 6).max(1) as usize;
            let of = |digits: &[f64]| -> Vec<f64> {
                let decades = (from..=to).step_by(every);
                decades.flat_map(|e| digits.iter().map(move |d| d * 10f64.powi(e))).filter(within).collect()
            };
            let found = [of(&[1.0]), of(&[1.0, 3.0]), of(&[1.0, 2.0, 5.0])];
            if let Some(ticks) = found.into_iter().find(|ticks| ticks.len() >= 3) {
                return ticks;
            }
        }
        ticks(low, high, 5.0)
    }
}

/// The axis that all figures share which go across the same: from 0, or from the first where that is far from it.
pub fn shared(figures: &[&CurvePlot]) -> PlotAxis {
    let all = || figures.iter().flat_map(|figure| &figure.curves).flat_map(|curve| &curve.points).map(|p| p.0);
    let (from, last) = (all().fold(f64::INFINITY, f64::min), all().fold(1.0, f64::max));
    let from = if from < 0.08 * last { 0.0 } else { from.min(last - 1.0) };
    PlotAxis { values: (from, last), log: false, pixels: (*X.start(), *X.end()) }
}

impl CurvePlot {
    /// The points that can be drawn.
    fn seen<'a>(&self, points: &'a [(f64, f64)]) -> impl Iterator<Item = (f64, f64)> + use<'a> {
        let log = self.log;
        points.iter().copied().filter(move |(_, y)| y.is_finite() && !(log && *y <= 0.0))
    }

    /// As far as the values go.
    fn values(&self) -> Option<PlotAxis> {
        let all = self.curves.iter().flat_map(|curve| [&curve.raw, &curve.points]).flat_map(|points| self.seen(points));
        let all: Vec<f64> = all.filter(|p| p.0 >= self.from).map(|p| p.1).collect();
        let (low, high) = (all.iter().copied().reduce(f64::min)?, all.iter().copied().reduce(f64::max)?);
        let (low, high) = if self.log {
            let by = if high < 2.0 * low { 1.5 } else { 1.1 };
            (low / by, high * by)
        } else {
            let by = if high == low { 0.1 * low.abs().max(1e-9) } else { 0.03 * (high - low) };
            (low - by, high + by)
        };
        Some(PlotAxis { values: (low, high), log: self.log, pixels: (*Y.end(), *Y.start()) })
    }

    /// The figure, the page's `number`-th, with at most two points of a curve in each of `columns` columns; empty if
    /// there is nothing to draw.
    pub fn svg(&self, number: usize, x: &PlotAxis, columns: usize) -> String {
        let Some(y) = self.values() else { return String::new() };
        let mut out = String::new();
        let mut put = |text: String| out += &text;
        let (left, right, top, bottom) = (X.start(), X.end(), Y.start(), Y.end());
        put(format!("<figure><figcaption id=\"f{number}\"><b>{}</b>", escape(&self.title)));
        if !self.note.is_empty() {
            put(format!(" <span>{}</span>", escape(&self.note)));
        }
        if !self.said.is_empty() {
            put(format!("<p>{}</p>", escape(&self.said)));
        }
        put(format!(
            "</figcaption>\n<svg class=\"plot\" data-across=\"{}\" viewBox=\"0 0 {} {}\" role=\"img\" \
             aria-labelledby=\"f{number}\"",
            self.across, SIZE.0, SIZE.1
        ));
        let ((x0, x1), (y0, y1)) = (x.values, y.values);
        put(format!(" data-x=\"{x0} {x1}\" data-y=\"{y0} {y1}\" data-log=\"{}\"", self.log));
        put(format!(" data-box=\"{left} {right} {top} {bottom}\">\n<g class=\"ticks\">"));
        let ticks = y.ticks();
        let greatest = ticks.iter().fold(0.0, |a: f64, b| a.max(b.abs()));
        for value in ticks {
            let at = y.place(value);
            let label = tick(value, if self.log { value } else { greatest });
            put(format!("<path class=\"grid\" d=\"M{left} {at:.1}H{right}\"/>"));
            put(format!("<text class=\"y\" x=\"{}\" y=\"{:.1}\">{label}</text>\n", left - 6.0, at + 4.0));
        }
        // there is no half a step, or layer
        for value in x.ticks().into_iter().filter(|v| v.fract() == 0.0) {
            let at = x.place(value);
            let label = tick(value, x1);
            put(format!("<text class=\"x\" x=\"{at:.1}\" y=\"{}\">{label}</text>\n", bottom + 17.0));
        }
        put(format!("</g><path class=\"axis\" d=\"M{left} {bottom}H{right}\"/>"));
        put(format!("<text class=\"y\" x=\"{}\" y=\"{}\">{}</text>\n", left - 6.0, bottom + 17.0, self.across));
        let (width, height) = (right - left, bottom - top);
        put(format!(
            "<svg class=\"inside\" x=\"{left}\" y=\"{top}\" width=\"{width}\" height=\"{height}\" viewBox=\"{left} \
             {top} {width} {height}\"><g class=\"data\" transform=\"matrix({} 0 0 {} {} {})\">\n",
            x.matrix().0,
            y.matrix().0,
            x.matrix().1,
            y.matrix().1
        ));
        let mut marks = String::new();
        for (i, curve) in self.curves.iter().enumerate() {
            let thinned = |points| thin(&self.seen(points).collect::<Vec<_>>(), x, columns);
            let line = |points: &[(f64, f64)]| -> Vec<String> {
                points.iter().map(|(step, v)| format!("{step},{}", digits(y.scaled(*v)))).collect()
            };
            let (raw, points) = (thinned(&curve.raw), thinned(&curve.points));
            if !raw.is_empty() {
                let line = line(&raw).join(" ");
                put(format!("<polyline class=\"{} faint\" points=\"{line}\"/>\n", curve.style.colour));
            }
            let class = curve.style.class();
            let label = escape(&curve.label);
            put(format!(
                "<polyline class=\"{class}\" data-label=\"{label}\" points=\"{}\"/>\n",
                line(&points).join(" ")
            ));
            let shape = curve.style.mark.map_or("", |mark| MARKS[mark]);
            let inside = points.iter().map(|(s, v)| (x.place(*s), y.place(*v)));
            let inside: Vec<(f64, f64)> = inside.filter(|p| Y.contains(&p.1)).collect();
            let places = if shape.is_empty() { vec![] } else { marked(&inside, i) };
            let d: String = places.iter().map(|(x, y)| format!("M{x:.1} {y:.1}{shape}")).collect();
            marks += &format!("<path class=\"{} mark\" data-shape=\"{shape}\" d=\"{d}\"/>\n", curve.style.colour);
        }
        put(format!("</g></svg>\n{marks}</svg>\n<p class=\"legend\">"));
        for curve in &self.curves {
            let named = !curve.label.is_empty();
            let key = if named { curve.style.key() } else { String::new() };
            let label = escape(&curve.label);
            put(format!("<span>{key}{} <b></b></span> ", if self.legend { &label } else { "" }));
        }
        put("</p></figure>\n".into());
        out
    }
}

/// The points that get a marker: all of a few, else those nearest to places in a row, which differ from curve to curve.
fn marked(points: &[(f64, f64)], curve: usize) -> Vec<(f64, f64)> {
    if points.len() <= FEW {
        return points.to_vec();
    }
    let part = (X.end() - X.start()) / MARKED as f64;
    let from = X.start() + part * (0.15 + 0.25 * (curve % 4) as f64);
    let near = |x: f64| points.iter().copied().min_by(|a, b| (a.0 - x).abs().total_cmp(&(b.0 - x).abs()));
    let mut places: Vec<(f64, f64)> = (0..MARKED).filter_map(|k| near(from + part * k as f64)).collect();
    places.dedup();
    places
}

/// Six digits: more than can be seen.
fn digits(v: f64) -> f64 {
    format!("{v:.5e}").parse().unwrap_or(v)
}

/// The least and the greatest point of each of `columns` columns of pixels, in their order: what is left looks the
/// same.
pub fn thin(points: &[(f64, f64)], x: &PlotAxis, columns: usize) -> Vec<(f64, f64)> {
    if points.len() <= 2 * columns {
        return points.to_vec();
    }
    let width = (X.end() - X.start()) / columns as f64;
    let column = |p: &(f64, f64)| ((x.place(p.0) - X.start()) / width) as usize;
    let mut kept = vec![];
    for group in points.chunk_by(|a, b| column(a) == column(b)) {
        let ends = |i: &usize, j: &usize| group[*i].1.total_cmp(&group[*j].1);
        let (a, b) = ((0..group.len()).min_by(ends).unwrap_or(0), (0..group.len()).max_by(ends).unwrap_or(0));
        kept.push(group[a.min(b)]);
        if a != b {
            kept.push(group[a.max(b)]);
        }
    }
    kept
}

/// Each point's value by `of` the points around it: near the first, where curves are steep, as few after as before. Of
/// thousands of points, neighbours become one first.
pub fn around(points: &[(f64, f64)], of: fn(&mut [f64]) -> f64) -> Vec<(f64, f64)> {
    let of = |near: &[(f64, f64)]| of(&mut near.iter().map(|p| p.1).collect::<Vec<_>>());
    let groups = points.chunks(points.len().div_ceil(2000).max(1));
    let points: Vec<(f64, f64)> = groups.map(|group| (group[group.len() / 2].0, of(group))).collect();
    let near = |i: usize| {
        let radius = i.min(points.len() / 60);
        &points[i - radius..(i + radius + 1).min(points.len())]
    };
    (0..points.len()).map(|i| (points[i].0, of(near(i)))).collect()
}

/// The mean.
pub fn mean(values: &mut [f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The middle one: what a few slow steps do not move.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

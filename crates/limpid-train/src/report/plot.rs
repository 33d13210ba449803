//! Curves as SVG: axes with round numbers, and points thinned to what a column of pixels can show.
//!
//! A plot has the same size whatever it shows; colours are CSS variables, so that one picture serves light and dark.

use super::page::escape;
use super::units::tick;
use std::ops::RangeInclusive;

/// How a curve looks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Look {
    Line,
    /// Behind another, of which it is the raw form.
    Faint,
    Dashed,
    /// Each point marked: there are few.
    Marked,
}

/// Points of one name.
pub struct Curve {
    /// Empty for one that the title names.
    pub label: String,
    /// A CSS colour.
    pub colour: String,
    pub look: Look,
    pub points: Vec<(f64, f64)>,
}

/// Curves on common axes.
pub struct Plot {
    pub title: String,
    /// What the title leaves open.
    pub note: String,
    /// The y axis is logarithmic.
    pub log: bool,
    pub curves: Vec<Curve>,
}

/// The picture and, inside, where curves are, in units that are pixels at its own size.
const SIZE: (f64, f64) = (480.0, 250.0);
const X: RangeInclusive<f64> = 46.0..=470.0;
const Y: RangeInclusive<f64> = 8.0..=226.0;

/// Where an axis's values lie.
pub struct PlotAxis {
    pub values: (f64, f64),
    pub log: bool,
    pub pixels: (f64, f64),
}

impl PlotAxis {
    fn scaled(&self, v: f64) -> f64 {
        if self.log { v.log10() } else { v }
    }

    /// The pixel of a value.
    pub fn place(&self, v: f64) -> f64 {
        let ((low, high), (from, to)) = (self.values, self.pixels);
        let (low, high) = (self.scaled(low), self.scaled(high));
        from + (self.scaled(v) - low) / (high - low) * (to - from)
    }

    /// Round numbers within the axis.
    fn ticks(&self) -> Vec<f64> {
        let (low, high) = self.values;
        let within = |v: &f64| *v >= low - 1e-9 * (high - low) && *v <= high + 1e-9 * (high - low);
        if self.log {
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
        let rough = (high - low) / 5.0;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * power).into_iter().find(|s| *s >= rough * 0.999).unwrap_or(power);
        let first = (low / step).ceil() as i64;
        // the nearest double to the decimal that is meant
        let value = |i: i64| format!("{:.12e}", i as f64 * step).parse().unwrap_or_default();
        (first..first + 12).map(value).filter(within).collect()
    }
}

impl Plot {
    /// The points that can be drawn.
    fn seen<'a>(&self, curve: &'a Curve) -> impl Iterator<Item = (f64, f64)> + use<'a> {
        let log = self.log;
        curve.points.iter().copied().filter(move |(_, y)| y.is_finite() && !(log && *y <= 0.0))
    }

    /// The axes: steps from 0 (from the first, where that is far from it), and y as far as the values go.
    fn axes(&self) -> Option<(PlotAxis, PlotAxis)> {
        let all = || self.curves.iter().flat_map(|curve| self.seen(curve));
        let least = |values: &mut dyn Iterator<Item = f64>| values.reduce(f64::min);
        let (low, high) = (least(&mut all().map(|p| p.1))?, -least(&mut all().map(|p| -p.1))?);
        let (from, last) = (least(&mut all().map(|p| p.0))?, -least(&mut all().map(|p| -p.0))?);
        let (low, high) = match self.log {
            true if high < 2.0 * low => (low / 1.5, high * 1.5),
            true => (low / 1.1, high * 1.1),
            false if high == low => (low - 0.1 * low.abs().max(1e-9), high + 0.1 * high.abs().max(1e-9)),
            false => (low - 0.03 * (high - low), high + 0.03 * (high - low)),
        };
        let x = PlotAxis {
            values: (if from < 0.08 * last { 0.0 } else { from.min(last - 1.0) }, last),
            log: false,
            pixels: (*X.start(), *X.end()),
        };
        Some((x, PlotAxis { values: (low, high), log: self.log, pixels: (*Y.end(), *Y.start()) }))
    }

    /// The figure, with at most two points of a curve in each of `columns` columns; empty if there is nothing to draw.
    pub fn svg(&self, columns: usize) -> String {
        let Some((x, y)) = self.axes() else { return String::new() };
        let mut out = String::new();
        let mut put = |text: String| out += &text;
        let title = escape(&self.title);
        put(format!("<figure><figcaption><b>{title}</b>"));
        if !self.note.is_empty() {
            put(format!(" <span>{}</span>", escape(&self.note)));
        }
        put(format!(
            "</figcaption>\n<svg class=\"plot\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{title}\"",
            SIZE.0, SIZE.1
        ));
        let ((x0, x1), (y0, y1)) = (x.values, y.values);
        put(format!(" data-x=\"{x0} {x1}\" data-y=\"{y0} {y1}\" data-log=\"{}\"", self.log));
        put(format!(" data-box=\"{} {} {} {}\">\n", X.start(), X.end(), Y.start(), Y.end()));
        let ticks = y.ticks();
        let greatest = ticks.iter().fold(0.0, |a: f64, b| a.max(b.abs()));
        for value in ticks {
            let (at, label) = (y.place(value), tick(value, if self.log { value } else { greatest }));
            put(format!("<path class=\"grid\" d=\"M{} {at:.1}H{}\"/>", X.start(), X.end()));
            put(format!("<text class=\"y\" x=\"{}\" y=\"{:.1}\">{label}</text>\n", X.start() - 6.0, at + 4.0));
        }
        put(format!("<path class=\"axis\" d=\"M{} {}H{}\"/>\n", X.start(), Y.end(), X.end()));
        for value in x.ticks() {
            let (at, label) = (x.place(value), tick(value, x1));
            put(format!("<text class=\"x\" x=\"{at:.1}\" y=\"{}\">{label}</text>\n", Y.end() + 17.0));
        }
        for curve in &self.curves {
            let places: Vec<(f64, f64)> = self.seen(curve).map(|(s, v)| (x.place(s), y.place(v))).collect();
            let places = thin(&places, columns);
            let points: Vec<String> = places.iter().map(|(x, y)| format!("{},{}", round(*x), round(*y))).collect();
            let (look, label, colour) = (curve.look.name(), escape(&curve.label), &curve.colour);
            put(format!(
                "<polyline class=\"{look}\" data-label=\"{label}\" style=\"stroke:{colour}\" points=\"{}\"/>\n",
                points.join(" ")
            ));
            if curve.look == Look::Marked && places.len() <= 40 || places.len() == 1 {
                for (x, y) in &places {
                    put(format!(
                        "<circle cx=\"{}\" cy=\"{}\" r=\"2.6\" style=\"fill:{colour}\"/>",
                        round(*x),
                        round(*y)
                    ));
                }
            }
        }
        put("</svg>\n<p class=\"legend\">".into());
        for curve in self.curves.iter().filter(|curve| curve.look != Look::Faint && !curve.label.is_empty()) {
            let (look, label, colour) = (curve.look.name(), escape(&curve.label), &curve.colour);
            put(format!("<span><i class=\"{look}\" style=\"border-color:{colour}\"></i>{label}</span> "));
        }
        put("</p></figure>\n".into());
        out
    }
}

impl Look {
    fn name(self) -> &'static str {
        match self {
            Look::Line => "line",
            Look::Faint => "faint",
            Look::Dashed => "dashed",
            Look::Marked => "marked",
        }
    }
}

/// To a hundredth of a pixel, without zeros at the end.
fn round(v: f64) -> f64 {
    (v * 100.0).round() / 100.0
}

/// The least and the greatest point of each of `columns` columns of pixels, in their order: what is left looks the same.
pub fn thin(points: &[(f64, f64)], columns: usize) -> Vec<(f64, f64)> {
    if points.len() <= 2 * columns {
        return points.to_vec();
    }
    let width = (X.end() - X.start()) / columns as f64;
    let column = |p: &(f64, f64)| ((p.0 - X.start()) / width) as usize;
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

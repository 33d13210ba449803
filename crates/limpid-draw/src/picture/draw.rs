//! The layout of a plot: heat maps side by side over one legend, charts below each other.

use super::scene::{Fill, Mark, Scene, Side, Text, moved, text_width};
use super::{Chart, PlotPart, TensorPlot};
use crate::heat::{chance, number};
use crate::palette::{Palette, entry, lightness};
use crate::pool::Pooled;
use crate::table::cut;
use crate::view::{HeatScale, Matrix, wrap};
use limpid_base::units::ticks;
use limpid_core::model::in_block;

/// Free space around everything, and between parts.
const EDGE: f64 = 20.0;
const GAP: f64 = 22.0;
/// Sizes of letters.
const TITLE: f64 = 15.0;
const NOTE: f64 = 12.0;
const LABEL: f64 = 11.0;
/// Up to so many rows or columns each has its label; more have some numbers.
const LABELLED: usize = 64;
/// Up to so many rows and columns each cell has its number in it.
const NUMBERED: [usize; 2] = [24, 16];
/// The most cells of a side; of more, one stands for several.
const CELLS: usize = 768;
/// How long a heat map's sides may be, alone and among several.
const ALONE: f64 = 768.0;
const AMONG: f64 = 1120.0;

impl TensorPlot {
    pub(super) fn scene(&self, palette: Option<Palette>) -> Scene {
        let matrices: Vec<&Matrix> = self.parts.iter().filter_map(PlotPart::matrix).collect();
        let mut page = Page { palette, ..Page::default() };
        let body = if matrices.is_empty() { page.charts(&self.parts) } else { page.maps(&matrices) };
        let title = Text { bold: true, ..Text::new([0.0, 0.0], TITLE, self.title.clone()) };
        let wide = body.size[0].max(text_width(&self.title, TITLE)).max(360.0);
        let about = wrap(&self.about, 0, (wide / text_width("m", NOTE)) as usize);
        let mut marks = vec![Mark::Text(Text { at: [EDGE, EDGE + TITLE], ..title })];
        let mut y = EDGE + TITLE + 4.0;
        for line in about.lines().filter(|line| !line.is_empty()) {
            y += 17.0;
            marks.push(Mark::Text(Text { fill: Fill::Soft, ..Text::new([EDGE, y], NOTE, line) }));
        }
        y += 14.0;
        marks.extend(moved(body.marks, [EDGE, y]));
        let size = [wide + 2.0 * EDGE, y + body.size[1] + EDGE];
        Scene { size, title: self.title.clone(), about: self.about.clone(), marks }
    }
}

impl PlotPart {
    fn matrix(&self) -> Option<&Matrix> {
        match self {
            PlotPart::Matrix(matrix) => Some(matrix),
            PlotPart::Chart(_) => None,
        }
    }
}

/// Marks with the room that they take.
#[derive(Default)]
struct Panel {
    size: [f64; 2],
    marks: Vec<Mark>,
}

/// What all parts of a plot share.
#[derive(Default)]
struct Page {
    palette: Option<Palette>,
    /// Whether something hidden, or something not finite, was drawn.
    hidden: bool,
    not_finite: bool,
}

/// A heat map's place on the page: its cells, and the words around them.
struct Map {
    pooled: Pooled,
    range: (f64, f64),
    palette: Palette,
    cell: [f64; 2],
    /// Where its cells begin.
    from: [f64; 2],
    sides: [Vec<String>; 2],
    /// Whether words above columns are slanted.
    slanted: bool,
}

impl Page {
    /// Heat maps side by side, with one legend: their colours mean the same.
    fn maps(&mut self, all: &[&Matrix]) -> Panel {
        let palette = self.palette.unwrap_or_else(|| all[0].palette());
        let ranges = all.iter().map(|matrix| matrix.range(palette));
        let range = ranges.fold((f64::INFINITY, f64::NEG_INFINITY), |a, b| (a.0.min(b.0), a.1.max(b.1)));
        let range = if range.0 > range.1 { (0.0, 0.0) } else { range };
        let heads = all.iter().filter(|matrix| matrix.tensor == all[0].tensor).count();
        let across = match all.len() {
            few @ ..=4 => few,
            _ if (2..=16).contains(&heads) => heads,
            _ => 4,
        };
        let room = if all.len() == 1 { ALONE } else { (AMONG / across as f64 - GAP).clamp(64.0, 300.0) };
        let mut part = Panel::default();
        let mut notes: Vec<String> = vec![];
        let (mut x, mut y, mut low): (f64, f64, f64) = (0.0, 0.0, 0.0);
        for (i, matrix) in all.iter().enumerate() {
            let map = Map::new(matrix, palette, range, room, all.len() == 1);
            notes.extend(map.pooled.note());
            let mut drawn = map.draw(self);
            if all.len() > 1 {
                let most = (drawn.size[0] / text_width("m", LABEL)) as usize;
                let name = Text::new([map.from[0], -5.0], LABEL, cut(&caption(matrix, all), most.max(4)));
                drawn.marks.push(Mark::Text(Text { fill: Fill::Soft, ..name }));
                drawn.marks = moved(drawn.marks, [0.0, 14.0]);
                drawn.size[1] += 14.0;
            }
            if i > 0 && i % across == 0 {
                (x, y) = (0.0, low + GAP);
            }
            part.marks.extend(moved(drawn.marks, [x, y]));
            part.size[0] = part.size[0].max(x + drawn.size[0]);
            low = low.max(y + drawn.size[1]);
            x += drawn.size[0] + GAP;
        }
        notes.dedup();
        let legend = self.legend(palette, range, &notes);
        part.marks.extend(moved(legend.marks, [0.0, low + GAP]));
        part.size = [part.size[0].max(legend.size[0]), low + GAP + legend.size[1]];
        part
    }

    /// The palette with the exact values of its ends and middle, and what else is not a value.
    fn legend(&self, palette: Palette, (low, high): (f64, f64), notes: &[String]) -> Panel {
        let (wide, mut y) = (320.0, 12.0);
        let cells = (0..=255).map(Some).collect();
        let bar = Mark::Image { at: [0.0, 0.0, wide, 12.0], columns: 256, palette, cells };
        let mut marks = vec![if palette == Palette::Ink { Mark::Ink(vec![bar]) } else { bar }];
        y += 16.0;
        for (x, side, v) in
            [(0.0, Side::Start, low), (wide / 2.0, Side::Middle, (low + high) / 2.0), (wide, Side::End, high)]
        {
            marks.push(Mark::Text(Text { mono: true, side, ..Text::new([x, y], LABEL, exact(v)) }));
        }
        let mut say = |fill: Option<Fill>, text: &str, y: &mut f64| {
            *y += 20.0;
            let x = if fill.is_some() { 20.0 } else { 0.0 };
            let at = [0.0, *y - 10.0, 12.0, 12.0];
            marks.extend(fill.map(|fill| Mark::Rect { at, fill, edge: fill == Fill::Paper, hint: String::new() }));
            marks.push(Mark::Text(Text { fill: Fill::Soft, ..Text::new([x, *y], NOTE, text) }));
        };
        if self.hidden {
            say(Some(Fill::Paper), "hidden by the mask", &mut y);
        }
        if self.not_finite {
            say(Some(Fill::NotFinite), "not finite: NaN or infinite", &mut y);
        }
        notes.iter().for_each(|note| say(None, note, &mut y));
        let widest = notes.iter().map(|note| text_width(note, NOTE)).fold(wide, f64::max);
        Panel { size: [widest, y + 4.0], marks }
    }

    fn charts(&mut self, parts: &[PlotPart]) -> Panel {
        let mut all = Panel::default();
        for part in parts {
            if let PlotPart::Chart(chart) = part {
                let drawn = chart.draw();
                let y = if all.size[1] > 0.0 { all.size[1] + GAP } else { 0.0 };
                all.marks.extend(moved(drawn.marks, [0.0, y]));
                all.size = [all.size[0].max(drawn.size[0]), y + drawn.size[1]];
            }
        }
        all
    }
}

/// What tells a heat map from those beside it: `layer 2, head 0`.
fn caption(matrix: &Matrix, all: &[&Matrix]) -> String {
    let same = |of: &dyn Fn(&Matrix) -> String| all.iter().all(|other| of(other) == of(all[0]));
    let mut parts: Vec<String> = vec![];
    if !same(&|other| other.tensor.clone()) {
        parts.push(in_block(&matrix.tensor).map_or(matrix.tensor.clone(), |(layer, _)| format!("layer {layer}")));
    }
    for (axis, i) in &matrix.index {
        let of = |other: &Matrix| {
            other.index.iter().find(|(own, _)| own == axis).map(|(_, i)| i.to_string()).unwrap_or_default()
        };
        if !same(&of) {
            parts.push(format!("{axis} {i}"));
        }
    }
    parts.join(", ")
}

/// A value with all the digits that it has in 32 bits.
fn exact(v: f64) -> String {
    let v = v as f32;
    if v != 0.0 && !(1e-4..1e6).contains(&v.abs()) { format!("{v:e}") } else { v.to_string() }
}

impl Map {
    fn new(matrix: &Matrix, palette: Palette, range: (f64, f64), room: f64, alone: bool) -> Map {
        let pooled = matrix.pooled([CELLS.min(room as usize); 2]);
        let [rows, cols] = pooled.matrix.size;
        let square = rows == cols || matrix.axes.contains(&"key_pos");
        let numbered = alone && rows <= NUMBERED[0] && cols <= NUMBERED[1];
        let cell = if numbered {
            [46.0, 28.0]
        } else if square {
            [(room / rows.max(cols) as f64).floor().clamp(1.0, 28.0); 2]
        } else {
            let wide = (room / cols as f64).floor().clamp(1.0, 28.0);
            [wide, (room * 0.7 / rows as f64).floor().clamp(1.0, 28.0)]
        };
        let label = |i: usize, words: &[String], by: usize| {
            words.get(i).map_or_else(|| (i * by).to_string(), |word| cut(word, 14))
        };
        let side = |i: usize, words: &[String]| -> Vec<String> {
            (0..[rows, cols][i]).map(|k| label(k, words, pooled.by[i])).collect()
        };
        let sides = [side(0, &pooled.matrix.rows), side(1, &pooled.matrix.columns)];
        let widest = |side: &[String]| side.iter().map(|text| text_width(text, LABEL)).fold(0.0, f64::max);
        let each = [0, 1]
            .map(|i| sides[i].len() <= LABELLED && cell[1 - i].min(if i == 0 { cell[1] } else { cell[0] }) >= 11.0);
        let worded = !pooled.matrix.columns.is_empty();
        let slanted = worded && each[1] && widest(&sides[1]) > cell[0] - 2.0;
        let bare = room < 150.0;
        let left = if bare { 0.0 } else { widest(&sides[0]) + 8.0 };
        let top = if bare {
            0.0
        } else if slanted {
            widest(&sides[1]) * 0.71 + 14.0
        } else {
            16.0
        };
        Map { pooled, range, palette, cell, from: [left, top], sides, slanted }
    }

    fn draw(&self, page: &mut Page) -> Panel {
        let (matrix, [w, h]) = (&self.pooled.matrix, self.cell);
        let [rows, cols] = matrix.size;
        let [left, top] = self.from;
        let colour =
            |(at, v): (usize, &f32)| (!matrix.is_hidden(at) && v.is_finite()).then(|| entry(f64::from(*v), self.range));
        let entries: Vec<Option<u8>> = matrix.values.iter().enumerate().map(colour).collect();
        let place = |at: usize| [left + (at % cols) as f64 * w, top + (at / cols) as f64 * h];
        let numbered = w >= 40.0;
        let (mut cells, mut marks) = (vec![], vec![]);
        let many = rows.max(cols) > LABELLED;
        if many {
            let at = [left, top, cols as f64 * w, rows as f64 * h];
            cells.push(Mark::Image { at, columns: cols, palette: self.palette, cells: entries.clone() });
        }
        for (at, found) in entries.iter().enumerate() {
            let [x, y] = place(at);
            let hint = || {
                let side = |i: usize, n: usize| {
                    let word = [&matrix.rows, &matrix.columns][i].get(n).map(|word| format!(" {word}"));
                    format!("{} {}{}", matrix.axes[i], n * self.pooled.by[i], word.unwrap_or_default())
                };
                format!("{}, {}: {}", side(0, at / cols), side(1, at % cols), matrix.values[at])
            };
            match found {
                None if matrix.is_hidden(at) => page.hidden = true,
                None => {
                    page.not_finite = true;
                    marks.push(Mark::Rect { at: [x, y, w, h], fill: Fill::NotFinite, edge: false, hint: hint() });
                }
                Some(_) if many => {}
                Some(entry) => {
                    let colour = self.palette.colour(*entry);
                    cells.push(Mark::Rect { at: [x, y, w, h], fill: Fill::Rgb(colour), edge: false, hint: hint() });
                    if numbered {
                        let v = f64::from(matrix.values[at]);
                        let digits = if matrix.scale == HeatScale::Unit { chance(v) } else { number(v) };
                        let fill = Fill::Rgb(if lightness(colour) > 55.0 { [20, 24, 30] } else { [255; 3] });
                        let text = Text::new([x + w / 2.0, y + h / 2.0 + 4.0], LABEL, digits);
                        cells.push(Mark::Text(Text { fill, mono: true, side: Side::Middle, ..text }));
                    }
                }
            }
        }
        let mut all = if self.palette == Palette::Ink { vec![Mark::Ink(cells)] } else { cells };
        all.extend(marks);
        let [wide, high] = [cols as f64 * w, rows as f64 * h];
        let frame = [[left, top], [left + wide, top], [left + wide, top + high], [left, top + high], [left, top]];
        all.push(Mark::line(frame.to_vec(), Fill::Line, 1.0));
        if left > 0.0 {
            self.labels(&mut all);
        }
        let last = self.sides[1].last().filter(|_| self.slanted);
        let over = last.map_or(0.0, |word| text_width(word, LABEL) * 0.71);
        Panel { size: [left + wide + (over - w / 2.0).max(0.0), top + high], marks: all }
    }

    /// Words or numbers at rows and columns: at each, or at some.
    fn labels(&self, marks: &mut Vec<Mark>) {
        let [left, top] = self.from;
        for (i, side) in self.sides.iter().enumerate() {
            let cell = self.cell[1 - i];
            let room = match i {
                0 => 12.0,
                _ if self.slanted => 11.0,
                _ => side.iter().map(|word| text_width(word, LABEL)).fold(0.0, f64::max) + 4.0,
            };
            let every = match (room / cell).ceil() as usize {
                0 | 1 => 1,
                least => [2, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100, 128, 256]
                    .into_iter()
                    .find(|n| *n >= least)
                    .unwrap_or(least),
            };
            for (k, word) in side.iter().enumerate().step_by(every) {
                let middle = (k as f64 + 0.5) * cell;
                let (at, side, turn) = match i {
                    0 => ([left - 6.0, top + middle + 4.0], Side::End, 0.0),
                    _ if self.slanted => ([left + middle, top - 5.0], Side::Start, -45.0),
                    _ => ([left + middle, top - 5.0], Side::Middle, 0.0),
                };
                let fill = if every > 1 { Fill::Soft } else { Fill::Text };
                marks.push(Mark::Text(Text { mono: true, fill, side, turn, ..Text::new(at, LABEL, word.clone()) }));
            }
        }
    }
}

/// The field of a chart.
const FIELD: [f64; 2] = [640.0, 240.0];

impl Chart {
    fn draw(&self) -> Panel {
        let ([x0, x1], [mut y0, mut y1]) = self.ends();
        let pad = 0.04 * (y1 - y0).max(1e-9);
        (y0, y1) = (if self.bars && y0 >= 0.0 { y0 } else { y0 - pad }, y1 + pad);
        let places = self.series.first().map_or(0, |series| series.points.len()).max(1) as f64;
        let step = if self.bars { (x1 - x0).max(1e-9) / (places - 1.0).max(1.0) } else { 0.0 };
        let (x0, x1) = if self.bars { (x0 - step / 2.0, x1 + step / 2.0) } else { (x0, x1.max(x0 + 1e-9)) };
        let slot = FIELD[0] / places;
        let worded = self.bars && !self.words.is_empty() && slot >= 11.0;
        let words: Vec<String> = self.words.iter().map(|word| cut(word, 14)).collect();
        let widest = words.iter().map(|word| text_width(word, LABEL)).fold(0.0, f64::max);
        let slanted = worded && widest > slot - 2.0;
        let shown = ticks(y0, y1, 5.0);
        let label =
            |v: &f64| if v.abs() >= 1e5 || *v != 0.0 && v.abs() < 1e-3 { format!("{v:e}") } else { v.to_string() };
        let left = shown.iter().map(|v| text_width(&label(v), LABEL)).fold(0.0, f64::max) + 10.0;
        let first = words.first().filter(|_| slanted);
        let left = first.map_or(left, |word| left.max(text_width(word, LABEL) * 0.71));
        let top = 30.0;
        let x = |v: f64| left + (v - x0) / (x1 - x0) * FIELD[0];
        let y = |v: f64| top + FIELD[1] - (v - y0) / (y1 - y0) * FIELD[1];
        let mut marks = vec![Mark::Text(Text { bold: true, ..Text::new([left, 12.0], NOTE, self.title.clone()) })];
        let small = |at: [f64; 2], side: Side, text: String| Text {
            mono: true,
            fill: Fill::Soft,
            side,
            ..Text::new(at, LABEL, text)
        };
        let across = |v: f64| vec![[left, y(v)], [left + FIELD[0], y(v)]];
        let curve = |points: Vec<[f64; 2]>, i: usize, width: f64| Mark::Line {
            points,
            fill: Fill::Series(i),
            width,
            dashes: i,
            arrow: false,
        };
        let axis_of_y = Text::new([left, 26.0], LABEL, self.axes[1].clone());
        marks.push(Mark::Text(Text { fill: Fill::Soft, ..axis_of_y }));
        for v in &shown {
            let width = if *v == 0.0 { 1.2 } else { 0.5 };
            marks.push(Mark::line(across(*v), Fill::Line, width));
            marks.push(Mark::Text(small([left - 6.0, y(*v) + 4.0], Side::End, label(v))));
        }
        let mut low = top + FIELD[1];
        if worded {
            for (i, word) in words.iter().enumerate() {
                let at = [x(i as f64), low + 15.0];
                let word = Text { mono: true, ..Text::new(at, LABEL, word.clone()) };
                marks.push(Mark::Text(if slanted {
                    Text { side: Side::End, turn: -45.0, ..word }
                } else {
                    Text { side: Side::Middle, ..word }
                }));
            }
            low += if slanted { widest * 0.71 + 16.0 } else { 18.0 };
        } else {
            for v in ticks(x0, x1, 8.0) {
                marks.push(Mark::Text(small([x(v), low + 16.0], Side::Middle, label(&v))));
            }
            low += 18.0;
        }
        low += 16.0;
        let axis_of_x = Text::new([left + FIELD[0] / 2.0, low], LABEL, self.axes[0].clone());
        marks.push(Mark::Text(Text { fill: Fill::Soft, side: Side::Middle, ..axis_of_x }));
        for (i, series) in self.series.iter().enumerate() {
            let points = || series.points.iter().filter(|(_, y)| y.is_finite());
            if self.bars && i == 0 {
                let gap = if slot > 6.0 { 0.15 } else { 0.0 };
                for (n, (px, py)) in series.points.iter().enumerate().filter(|(_, (_, y))| y.is_finite()) {
                    let (a, b) = (x(px - step * (0.5 - gap)), x(px + step * (0.5 - gap)));
                    let (top, bottom) = (y(py.max(0.0)), y(py.min(0.0)));
                    let word = self.words.get(n).cloned().unwrap_or_else(|| label(px));
                    let (at, hint) = ([a, top, b - a, bottom - top], format!("{word}: {py}"));
                    marks.push(Mark::Rect { at, fill: Fill::Series(0), edge: false, hint });
                    if slot >= 34.0 {
                        let digits = small([(a + b) / 2.0, top - 4.0], Side::Middle, number(*py));
                        marks.push(Mark::Text(Text { fill: Fill::Text, ..digits }));
                    }
                }
                continue;
            }
            marks.push(curve(points().map(|(px, py)| [x(*px), y(*py)]).collect(), i, 2.0));
        }
        for (i, (name, v)) in self.lines.iter().enumerate() {
            marks.push(curve(across(*v), 1 + i, 1.5));
            let text = Text::new([left + FIELD[0], y(*v) - 5.0], LABEL, format!("{name}: {}", number(*v)));
            marks.push(Mark::Text(Text { side: Side::End, fill: Fill::Series(1 + i), ..text }));
        }
        if self.series.len() > 1 || !self.bars {
            let (mut at, wide) = (left, left + FIELD[0]);
            low += 22.0;
            for (i, series) in self.series.iter().enumerate() {
                let long = 32.0 + text_width(&series.label, LABEL) + 18.0;
                if at > left && at + long > wide {
                    (at, low) = (left, low + 18.0);
                }
                marks.push(curve(vec![[at, low - 4.0], [at + 26.0, low - 4.0]], i, 2.0));
                marks.push(Mark::Text(Text::new([at + 32.0, low], LABEL, series.label.clone())));
                at += long;
            }
        }
        Panel { size: [left + FIELD[0] + 8.0, low + 6.0], marks }
    }
}

//! A picture before it is a file: marks on a page, in units of a pixel at its own size. [`Scene::svg`] writes them as
//! SVG, whose colours follow the reader's light or dark mode; `paint` paints them in the light ones.

use super::png;
use crate::palette::{Palette, rgb};
use std::fmt::Write;

/// A colour by what it is for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fill {
    Paper,
    Text,
    Soft,
    /// Lines of axes and boxes.
    Line,
    /// What is not finite: hatched magenta.
    NotFinite,
    /// A curve by its number.
    Series(usize),
    /// A kind of box in a diagram.
    Box(usize),
    /// A cell's own colour.
    Rgb([u8; 3]),
}

/// What is drawn.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Mark {
    /// `hint`: shown where a reader points.
    Rect {
        at: [f64; 4],
        fill: Fill,
        edge: bool,
        hint: String,
    },
    Line {
        points: Vec<[f64; 2]>,
        fill: Fill,
        width: f64,
        dashes: usize,
        arrow: bool,
    },
    Text(Text),
    /// Cells of one pixel each, entries of a palette; `None` is paper.
    Image {
        at: [f64; 4],
        columns: usize,
        palette: Palette,
        cells: Vec<Option<u8>>,
    },
    /// Cells that are dark on light paper, and the other way round where the reader's page is dark.
    Ink(Vec<Mark>),
}

impl Mark {
    /// A rectangle without an edge or a hint.
    pub fn rect(at: [f64; 4], fill: Fill) -> Mark {
        Mark::Rect { at, fill, edge: false, hint: String::new() }
    }

    /// A line without dashes.
    pub fn line(points: Vec<[f64; 2]>, fill: Fill, width: f64) -> Mark {
        Mark::Line { points, fill, width, dashes: 0, arrow: false }
    }
}

/// A line of text; `at` is its beginning, middle or end, on the line that letters stand on.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Text {
    pub at: [f64; 2],
    pub text: String,
    pub size: f64,
    pub fill: Fill,
    pub side: Side,
    pub bold: bool,
    pub mono: bool,
    /// Turned by so many degrees, clockwise.
    pub turn: f64,
}

/// Which part of a text is at its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Start,
    Middle,
    End,
}

impl Text {
    pub fn new(at: [f64; 2], size: f64, text: impl Into<String>) -> Text {
        let (fill, side) = (Fill::Text, Side::Start);
        Text { at, text: text.into(), size, fill, side, bold: false, mono: false, turn: 0.0 }
    }
}

/// How wide a text is, about.
pub(crate) fn text_width(text: &str, size: f64) -> f64 {
    crate::table::columns(text) as f64 * size * 0.61
}

/// A picture.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Scene {
    pub size: [f64; 2],
    /// What it is, for readers who cannot see it.
    pub title: String,
    pub about: String,
    pub marks: Vec<Mark>,
}

/// Colours by purpose: class, light, dark. Series are those of Okabe and Ito, which differ for all eyes.
const COLOURS: [(&str, &str, &str); 18] = [
    ("paper", "#ffffff", "#15181d"),
    ("text", "#1b2027", "#e8eaed"),
    ("soft", "#5a6472", "#9aa4b2"),
    ("line", "#b9c0ca", "#4a5361"),
    ("s0", "#0072b2", "#56b4e9"),
    ("s1", "#d55e00", "#ff9046"),
    ("s2", "#009e73", "#2fd1a3"),
    ("s3", "#b5578f", "#e89ac7"),
    ("s4", "#8a6d00", "#e6c229"),
    ("s5", "#56b4e9", "#9bd3f5"),
    ("s6", "#6b4fa0", "#b39ddb"),
    ("s7", "#5a6472", "#9aa4b2"),
    ("b0", "#f3f4f6", "#222831"),
    ("b1", "#dcebf7", "#153247"),
    ("b2", "#fbe6d3", "#45290f"),
    ("b3", "#d9f1e8", "#123a2e"),
    ("b4", "#efe3f5", "#352344"),
    ("b5", "#f7f0cf", "#3a3310"),
];
/// Dashes of curves, so that they differ without colours.
pub(super) const DASHES: [&str; 4] = ["", "7 3", "2 3", "9 3 2 3"];
const MAGENTA: &str = "#d5007f";

impl Fill {
    fn class(self) -> String {
        match self {
            Fill::Paper => "paper".into(),
            Fill::Text => "text".into(),
            Fill::Soft => "soft".into(),
            Fill::Line => "line".into(),
            Fill::Series(i) => format!("s{}", i % 8),
            Fill::Box(i) => format!("b{}", i % 6),
            Fill::NotFinite | Fill::Rgb(_) => String::new(),
        }
    }

    /// Its light colour.
    pub(super) fn light(self) -> [u8; 3] {
        match self {
            Fill::Rgb(rgb) => rgb,
            Fill::NotFinite => rgb(&MAGENTA[1..]),
            _ => {
                let own = COLOURS.iter().find(|(class, ..)| *class == self.class());
                own.map_or([0; 3], |(_, light, _)| rgb(&light[1..]))
            }
        }
    }

    /// As attributes of what is filled, or drawn as a line where `stroke`.
    fn paint(self, stroke: bool) -> String {
        let what = if stroke { "stroke" } else { "fill" };
        match self {
            Fill::Rgb([r, g, b]) => format!("{what}=\"#{r:02x}{g:02x}{b:02x}\""),
            Fill::NotFinite => format!("{what}=\"url(#not-finite)\""),
            _ => format!("class=\"{}{}\"", if stroke { "l " } else { "" }, self.class()),
        }
    }
}

/// Text between tags and in attributes: what XML forbids is `?`.
pub(super) fn escape(text: &str) -> String {
    let of = |c: char| match c {
        '&' => "&amp;".into(),
        '<' => "&lt;".into(),
        '>' => "&gt;".into(),
        '"' => "&quot;".into(),
        c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => "?".into(),
        c => c.to_string(),
    };
    text.chars().map(of).collect()
}

/// To a hundredth of a unit.
fn round(v: f64) -> f64 {
    (v * 100.0).round() / 100.0
}

/// How the title of a picture begins, which marks it as drawn here.
pub(crate) const LABELLED: &str = "aria-labelledby=\"title about\">\n<title id=\"title\">";

impl Scene {
    /// It as SVG: one file that needs no other.
    pub fn svg(&self) -> String {
        let [w, h] = self.size.map(f64::ceil);
        let (title, about) = (escape(&self.title), escape(&self.about));
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {w} {h}\" width=\"{w}\" height=\"{h}\" \
             role=\"img\" {LABELLED}{title}</title>\n<desc id=\"about\">{about}</desc>\n<style>\n"
        );
        out += "svg{max-width:100%;height:auto}text{font-family:system-ui,sans-serif}.m{font-family:ui-monospace,\
                SFMono-Regular,Menlo,Consolas,\"DejaVu Sans \
                Mono\",monospace}.b{font-weight:600}.l{fill:none}image{image-rendering:pixelated}rect:not(.\
                e){shape-rendering:crispEdges}.h{paint-order:stroke;stroke-width:3px;stroke-linejoin:round}\n";
        let theme = |dark: bool| -> String {
            let of = |(class, light, other): &(&str, &str, &str)| {
                let colour = if dark { other } else { light };
                let edge = match *class {
                    "line" => format!(".e{{stroke:{colour}}}"),
                    "paper" => format!(".h{{stroke:{colour}}}"),
                    _ => String::new(),
                };
                format!(".{class}{{fill:{colour}}}.l.{class}{{fill:none;stroke:{colour}}}{edge}")
            };
            COLOURS.iter().map(of).collect()
        };
        let dark = format!("{}.ink{{filter:invert(1) hue-rotate(180deg)}}", theme(true));
        let _ = writeln!(out, "{}\n@media (prefers-color-scheme:dark){{{dark}}}\n</style>", theme(false));
        let _ = writeln!(
            out,
            "<defs><pattern id=\"not-finite\" width=\"4\" height=\"4\" patternUnits=\"userSpaceOnUse\" \
             patternTransform=\"rotate(45)\"><rect width=\"4\" height=\"4\" fill=\"#fff\"/><rect width=\"2.4\" \
             height=\"4\" fill=\"{MAGENTA}\"/></pattern></defs>\n<rect class=\"paper\" width=\"{w}\" height=\"{h}\"/>"
        );
        self.marks.iter().for_each(|mark| mark.svg(&mut out));
        out + "</svg>\n"
    }
}

impl Mark {
    fn svg(&self, out: &mut String) {
        let _ = match self {
            Mark::Rect { at, fill, edge, hint } => {
                let [x, y, w, h] = at.map(round);
                let (round, paint) = (if *edge { " rx=\"4\"" } else { "" }, fill.paint(false));
                let paint = if *edge { paint.replace("class=\"", "class=\"e ") } else { paint };
                let _ = write!(out, "<rect x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"{h}\"{round} {paint}");
                if hint.is_empty() {
                    writeln!(out, "/>")
                } else {
                    writeln!(out, "><title>{}</title></rect>", escape(hint))
                }
            }
            Mark::Line { points, fill, width, dashes, arrow } => {
                let [points, head] = [points.clone(), if *arrow { head(points) } else { vec![] }].map(|points| {
                    points.iter().map(|[x, y]| format!("{},{}", round(*x), round(*y))).collect::<Vec<_>>().join(" ")
                });
                let dashes = match DASHES[dashes % DASHES.len()] {
                    "" => String::new(),
                    dashes => format!(" stroke-dasharray=\"{dashes}\""),
                };
                let _ = writeln!(
                    out,
                    "<polyline points=\"{points}\" {} stroke-width=\"{width}\" stroke-linejoin=\"round\"{dashes}/>",
                    fill.paint(true)
                );
                if head.is_empty() {
                    Ok(())
                } else {
                    writeln!(out, "<polygon points=\"{head}\" {}/>", fill.paint(false))
                }
            }
            Mark::Text(text) => {
                let [x, y] = text.at.map(round);
                let mut class = text.fill.paint(false);
                // names of lines have paper round their letters: bars may be behind them
                let named = matches!(text.fill, Fill::Series(_));
                for (_, name) in [(text.bold, "b"), (text.mono, "m"), (named, "h")].into_iter().filter(|(is, _)| *is) {
                    class = match class.strip_prefix("class=\"") {
                        Some(others) => format!("class=\"{name} {others}"),
                        None => format!("{class} class=\"{name}\""),
                    };
                }
                let side = match text.side {
                    Side::Start => "",
                    Side::Middle => " text-anchor=\"middle\"",
                    Side::End => " text-anchor=\"end\"",
                };
                let turn = match text.turn {
                    0.0 => String::new(),
                    turn => format!(" transform=\"rotate({turn} {x} {y})\""),
                };
                let (size, text) = (text.size, escape(&text.text));
                writeln!(out, "<text x=\"{x}\" y=\"{y}\" font-size=\"{size}\"{side}{turn} {class}>{text}</text>")
            }
            Mark::Image { at, columns, palette, cells } => {
                let [x, y, w, h] = at.map(round);
                let bytes = png::base64(&png::cells(*columns, cells, *palette));
                writeln!(
                    out,
                    "<image x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"{h}\" preserveAspectRatio=\"none\" \
                     href=\"data:image/png;base64,{bytes}\"/>"
                )
            }
            Mark::Ink(marks) => {
                out.push_str("<g class=\"ink\">\n");
                marks.iter().for_each(|mark| mark.svg(out));
                writeln!(out, "</g>")
            }
        };
    }
}

/// Marks elsewhere.
pub(crate) fn moved(mut marks: Vec<Mark>, by: [f64; 2]) -> Vec<Mark> {
    let shift = |[x, y]: [&mut f64; 2]| (*x, *y) = (*x + by[0], *y + by[1]);
    for mark in &mut marks {
        match mark {
            Mark::Rect { at: [x, y, ..], .. } | Mark::Image { at: [x, y, ..], .. } => shift([x, y]),
            Mark::Line { points, .. } => points.iter_mut().for_each(|point| shift(point.each_mut())),
            Mark::Text(text) => shift(text.at.each_mut()),
            Mark::Ink(inside) => *inside = moved(std::mem::take(inside), by),
        }
    }
    marks
}

/// The head of an arrow at the end of a line.
fn head(points: &[[f64; 2]]) -> Vec<[f64; 2]> {
    let [.., from, to] = points else { return vec![] };
    let (dx, dy) = (to[0] - from[0], to[1] - from[1]);
    let long = (dx * dx + dy * dy).sqrt().max(1e-9);
    let (dx, dy) = (dx / long, dy / long);
    let at = |back: f64, side: f64| [to[0] - back * dx - side * dy, to[1] - back * dy + side * dx];
    vec![*to, at(7.0, 3.5), at(7.0, -3.5)]
}

//! Whole pictures as PNG, painted at twice their size, with a font of 5 x 7 dots for ASCII.

use super::png::{SOFTWARE, file};
use super::scene::{DASHES, Fill, Mark, Scene, Side, Text};

/// Pixels of a unit.
const SCALE: f64 = 2.0;
const PAPER: [u8; 3] = [255; 3];

impl Scene {
    /// It as PNG, on white paper; letters that are not ASCII are `?`.
    pub fn png(&self) -> Vec<u8> {
        let [wide, high] = self.size.map(|v| (v.ceil() * SCALE) as usize);
        let mut canvas = Canvas { wide, high, pixels: PAPER.repeat(wide * high) };
        self.marks.iter().for_each(|mark| canvas.draw(mark));
        file([wide, high], 2, &[(*b"tEXt", SOFTWARE)], canvas.pixels.chunks(3 * wide.max(1)))
    }
}

/// Pixels of red, green and blue.
struct Canvas {
    wide: usize,
    high: usize,
    pixels: Vec<u8>,
}

impl Canvas {
    fn draw(&mut self, mark: &Mark) {
        match mark {
            Mark::Rect { at, fill, edge, .. } => {
                self.rect(*at, |x, y| match fill {
                    Fill::NotFinite if (x + y) % 8 < 4 => PAPER,
                    fill => fill.light(),
                });
                let [x, y, w, h] = *at;
                let corners = vec![[x, y], [x + w, y], [x + w, y + h], [x, y + h], [x, y]];
                if *edge {
                    self.line(&corners, Fill::Line.light(), 1.0, 0);
                }
            }
            Mark::Line { points, fill, width, dashes, .. } => self.line(points, fill.light(), *width, *dashes),
            Mark::Text(text) => self.text(text),
            Mark::Image { at, columns, palette, cells } => {
                let rows = cells.len() / columns.max(&1);
                let [x0, y0, w, h] = *at;
                let index = |v: usize, from: f64, long: f64, n: usize| {
                    (((v as f64 + 0.5) / SCALE - from) / long * n as f64).clamp(0.0, n as f64 - 1.0) as usize
                };
                self.rect(*at, |x, y| {
                    let cell = cells[index(y, y0, h, rows) * columns + index(x, x0, w, *columns)];
                    cell.map_or(PAPER, |entry| palette.colour(entry))
                });
            }
            Mark::Ink(marks) => marks.iter().for_each(|mark| self.draw(mark)),
        }
    }

    /// Pixels from `low` to `high` of a line of `n`.
    fn span(low: f64, high: f64, n: usize) -> std::ops::Range<usize> {
        let place = |v: f64| (v * SCALE).round().clamp(0.0, n as f64) as usize;
        place(low)..place(high)
    }

    fn rect(&mut self, [x, y, w, h]: [f64; 4], colour: impl Fn(usize, usize) -> [u8; 3]) {
        for row in Self::span(y, y + h, self.high) {
            for column in Self::span(x, x + w, self.wide) {
                self.blend(column, row, colour(column, row), 1.0);
            }
        }
    }

    fn blend(&mut self, x: usize, y: usize, colour: [u8; 3], share: f64) {
        let at = 3 * (y * self.wide + x);
        for (old, new) in self.pixels[at..at + 3].iter_mut().zip(colour) {
            *old = (f64::from(*old) * (1.0 - share) + f64::from(new) * share).round() as u8;
        }
    }

    /// Segments as wide as their distance says, so that edges are smooth.
    fn line(&mut self, points: &[[f64; 2]], colour: [u8; 3], width: f64, dashes: usize) {
        let dashes: Vec<f64> = DASHES[dashes % DASHES.len()].split(' ').filter_map(|n| n.parse().ok()).collect();
        let period: f64 = dashes.iter().sum();
        let is_gap = |along: f64| {
            let mut rest = if period > 0.0 { along.rem_euclid(period) } else { return false };
            let part = dashes.iter().position(|long| {
                rest -= long;
                rest < 0.0
            });
            part.is_some_and(|part| part % 2 == 1)
        };
        let mut gone = 0.0;
        for pair in points.windows(2) {
            let ([ax, ay], [bx, by]) = (pair[0], pair[1]);
            let (dx, dy) = (bx - ax, by - ay);
            let long = (dx * dx + dy * dy).sqrt();
            for y in Self::span(ay.min(by) - width - 1.0, ay.max(by) + width + 1.0, self.high) {
                for x in Self::span(ax.min(bx) - width - 1.0, ax.max(bx) + width + 1.0, self.wide) {
                    let (px, py) = ((x as f64 + 0.5) / SCALE - ax, (y as f64 + 0.5) / SCALE - ay);
                    let along = if long > 0.0 { ((px * dx + py * dy) / long).clamp(0.0, long) } else { 0.0 };
                    let (ox, oy) = if long > 0.0 { (px - along * dx / long, py - along * dy / long) } else { (px, py) };
                    let far = ((ox * ox + oy * oy).sqrt() - width / 2.0) * SCALE;
                    let share = (0.5 - far).clamp(0.0, 1.0);
                    if share > 0.0 && !is_gap(gone + along) {
                        self.blend(x, y, colour, share);
                    }
                }
            }
            gone += long;
        }
    }

    /// Letters of dots, turned about their place.
    fn text(&mut self, text: &Text) {
        let dot = text.size / 11.0;
        let letters: Vec<[u8; 5]> = text.text.chars().map(letter).collect();
        let long = (letters.len() as f64 * 6.0 - 1.0).max(0.0) * dot;
        let begin = match text.side {
            Side::Start => 0.0,
            Side::Middle => long / 2.0,
            Side::End => long,
        };
        let (sin, cos) = text.turn.to_radians().sin_cos();
        let [x0, y0] = text.at;
        let is_ink = |x: f64, y: f64| {
            let (dx, dy) = (x - x0, y - y0);
            let (u, v) = ((dx * cos + dy * sin + begin) / dot, (dy * cos - dx * sin) / dot + 7.0);
            let (column, row) = (u.floor(), v.floor());
            (column >= 0.0 && (0.0..8.0).contains(&row))
                .then(|| {
                    letters.get(column as usize / 6)?.get(column as usize % 6).map(|dots| dots >> row as u8 & 1 == 1)
                })
                .flatten()
                .unwrap_or(false)
        };
        let reach = long + 10.0 * dot;
        for y in Self::span(y0 - reach, y0 + reach, self.high) {
            for x in Self::span(x0 - reach, x0 + reach, self.wide) {
                let at = |i: usize| {
                    ((x as f64 + 0.25 + 0.5 * (i % 2) as f64) / SCALE, (y as f64 + 0.25 + 0.5 * (i / 2) as f64) / SCALE)
                };
                let ink = (0..4).filter(|i| is_ink(at(*i).0, at(*i).1)).count();
                if ink > 0 {
                    self.blend(x, y, text.fill.light(), ink as f64 / 4.0);
                }
            }
        }
    }
}

/// The five columns of a letter, the lowest bit on top.
fn letter(c: char) -> [u8; 5] {
    let c = match c {
        '·' => '.',
        '…' => '~',
        '−' => '-',
        c => c,
    };
    let at = if c.is_ascii_graphic() || c == ' ' { c as usize - 32 } else { '?' as usize - 32 };
    [0, 1, 2, 3, 4].map(|i| u8::from_str_radix(&FONT[10 * at + 2 * i..][..2], 16).unwrap_or_default())
}

/// The characters from space to `~`: two hexadecimal digits a column.
const FONT: &str = include_str!("font.hex");

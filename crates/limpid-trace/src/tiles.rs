//! Parts of a matrix as small pictures: reduced, and one byte a cell.
//!
//! A tile is [`SIDE`] x [`SIDE`] cells of a matrix, each the greatest (or mean) of a square of 2^level x 2^level of its
//! cells. Weights of attention get a logarithmic code, because a linear one loses up to two fifths of a diffuse head's
//! mass at T = 1,024. The picture is rounded; the number under the cursor never is: it is asked for by itself.
//!
//! A frame is 64 bytes and the cells, padded to 8, little-endian (docs/inside.md has the table).

use super::sheet::Sheet;
use limpid_base::budget::{Budget, Spent};
use limpid_core::config::axis;
use limpid_core::numeric::math;
use std::ops::Range;

/// Cells of a tile in a row and in a column.
pub const SIDE: usize = 256;
/// Bytes of a frame before its cells.
pub const HEADER: usize = 64;
/// The byte of a cell that a mask hides.
pub const MASKED: u8 = 0;
/// The byte of a cell that is not finite.
pub const NOT_FINITE: u8 = 255;
/// The greatest level: a cell stands for 4,096 x 4,096.
pub const DEEPEST: u8 = 12;
/// Steps of a logarithmic code from a number to its double, and of a signed one.
const STEPS: f64 = 16.0;
const SIGNED_STEPS: f64 = 8.0;

axis! {
    /// How a number is written.
    Code, "code" {
        /// As it is.
        F32 = "f32",
        /// v = lo + (q - 1) / 253 (hi - lo), lo and hi of the whole matrix.
        Lin8 = "lin8",
        /// v = hi 2^((q - 254) / 16); 1 is everything smaller.
        Log8 = "log8",
        /// The same with a sign, about 127.5: magnitude hi 2^((|q - 127.5| - 126.5) / 8).
        Slog8 = "slog8",
    }
}

axis! {
    /// What a cell shows of the square that it stands for.
    TilePool, "pool" {
        /// The greatest: a line one cell wide stays visible.
        Max = "max",
        /// What is furthest from zero, with its sign.
        AbsMax = "absmax",
        /// The mean.
        Mean = "mean",
    }
}

impl Code {
    /// A finite number as a byte, 1 to 254; of [`Code::F32`] there is none.
    pub fn byte(self, v: f32, [lo, hi]: [f32; 2]) -> u8 {
        let (v, lo, hi) = (f64::from(v), f64::from(lo), f64::from(hi));
        let clamp = |q: f64, least: f64, most: f64| if q.is_nan() { least } else { q.round().clamp(least, most) };
        match self {
            Code::F32 => NOT_FINITE,
            Code::Lin8 => clamp(1.0 + 253.0 * (v - lo) / (hi - lo), 1.0, 254.0) as u8,
            Code::Log8 => clamp(254.0 + STEPS * math::log2_f64(v / hi), 1.0, 254.0) as u8,
            Code::Slog8 => {
                // halves: 0.5 is next to zero, 126.5 the greatest
                let steps = 126.5 + SIGNED_STEPS * math::log2_f64(v.abs() / hi);
                let steps = clamp(steps - 0.5, 0.0, 126.0) + 0.5;
                (127.5 + if v < 0.0 { -steps } else { steps }) as u8
            }
        }
    }

    /// The number that a byte from 1 to 254 stands for.
    pub fn value(self, q: u8, [lo, hi]: [f32; 2]) -> f32 {
        let (q, lo, hi) = (f64::from(q), f64::from(lo), f64::from(hi));
        let v = match self {
            Code::F32 => f64::NAN,
            Code::Lin8 => lo + (q - 1.0) / 253.0 * (hi - lo),
            Code::Log8 => hi * math::exp2_f64((q - 254.0) / STEPS),
            Code::Slog8 => {
                let steps = q - 127.5;
                (hi * math::exp2_f64((steps.abs() - 126.5) / SIGNED_STEPS)).copysign(steps)
            }
        };
        v as f32
    }

    /// Its number in a frame.
    fn number(self) -> u8 {
        match self {
            Code::F32 => 0,
            Code::Lin8 => 2,
            Code::Log8 => 3,
            Code::Slog8 => 4,
        }
    }
}

/// What is known of the values of a matrix, or of a part of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Extent {
    /// The least and the greatest finite value that no mask hides; none if there is none.
    pub range: Option<[f32; 2]>,
    /// How many are not a number.
    pub nan: u32,
    /// How many are infinite, and not hidden.
    pub infinite: u32,
    /// How many the mask hides.
    pub masked: u32,
}

impl Extent {
    fn add(&mut self, v: f32, hidden: bool) {
        match v {
            _ if hidden => self.masked += 1,
            v if v.is_nan() => self.nan += 1,
            v if v.is_infinite() => self.infinite += 1,
            v => {
                let [lo, hi] = self.range.unwrap_or([v, v]);
                self.range = Some([lo.min(v), hi.max(v)]);
            }
        }
    }

    /// Of a whole matrix.
    ///
    /// # Errors
    /// What of the budget ran out.
    pub fn measure(sheet: &Sheet, budget: &Budget) -> Result<Extent, Spent> {
        let mut extent = Extent::default();
        each(sheet, 0..sheet.rows, 0..sheet.cols, budget, |i, j, v| extent.add(v, sheet.hides(i, j)))?;
        Ok(extent)
    }

    /// The two ends of a code: for logarithmic ones the greatest magnitude is the upper one.
    pub fn ends(&self, code: Code) -> [f32; 2] {
        let [lo, hi] = self.range.unwrap_or([0.0, 1.0]);
        match code {
            Code::Slog8 => [-hi.abs().max(lo.abs()), hi.abs().max(lo.abs())],
            Code::F32 | Code::Lin8 | Code::Log8 => [lo, hi],
        }
    }
}

/// Every cell of a part: strips of columns, and in each bands of rows. A square of a tile is within one strip, row by
/// row.
fn each(
    sheet: &Sheet,
    rows: Range<usize>,
    cols: Range<usize>,
    budget: &Budget,
    mut f: impl FnMut(usize, usize, f32),
) -> Result<(), Spent> {
    const BAND: usize = 64;
    for left in cols.clone().step_by(1 << DEEPEST) {
        let cols = left..cols.end.min(left + (1 << DEEPEST));
        let strip = sheet.strip(cols.clone(), budget)?;
        for from in rows.clone().step_by(BAND) {
            let band = from..(from + BAND).min(rows.end);
            let values = strip.band(band.clone())?;
            for (i, row) in band.zip(values.chunks_exact(cols.len())) {
                for (j, v) in cols.clone().zip(row) {
                    f(i, j, *v);
                }
            }
        }
    }
    Ok(())
}

/// Which part of a matrix, and how it is written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tile {
    /// Which tile of the reduced matrix: row and column.
    pub at: [usize; 2],
    /// A cell stands for 2^level x 2^level.
    pub level: u8,
    /// What it shows of them.
    pub pool: TilePool,
    /// How it is written.
    pub code: Code,
    /// The two ends of the code ([`Extent::ends`] of the whole matrix).
    pub ends: [f32; 2],
}

impl Tile {
    /// The cells of the matrix that it stands for; none if it is outside.
    pub fn part(&self, sheet: &Sheet) -> Option<[Range<usize>; 2]> {
        let step = SIDE.checked_shl(self.level.into())?;
        let range = |at: usize, n: usize| {
            let from = at.checked_mul(step).filter(|from| *from < n)?;
            Some(from..from.saturating_add(step).min(n))
        };
        Some([range(self.at[0], sheet.rows)?, range(self.at[1], sheet.cols)?])
    }

    /// Its frame; `index` is its place in the request, and `last` whether none follows. None if it is outside of the
    /// matrix.
    ///
    /// # Errors
    /// What of the budget ran out.
    pub fn frame(&self, sheet: &Sheet, index: u32, last: bool, budget: &Budget) -> Result<Option<Vec<u8>>, Spent> {
        let Some([rows, cols]) = self.part(sheet) else { return Ok(None) };
        let shift = usize::from(self.level);
        let [height, width] = [&rows, &cols].map(|part| ((part.len() - 1) >> shift) + 1);
        // of each square: what is shown, how many values were taken, whether one is hidden or not finite
        let mut cells = vec![(0.0f64, 0u32, false); height * width];
        let mut extent = Extent::default();
        each(sheet, rows.clone(), cols.clone(), budget, |i, j, v| {
            let hidden = sheet.hides(i, j);
            extent.add(v, hidden);
            let (shown, taken, broken) = &mut cells[((i - rows.start) >> shift) * width + ((j - cols.start) >> shift)];
            if hidden {
                return;
            }
            if !v.is_finite() {
                *broken = true;
                return;
            }
            let v = f64::from(v);
            *shown = match self.pool {
                _ if *taken == 0 => v,
                TilePool::Max => shown.max(v),
                TilePool::AbsMax if v.abs() > shown.abs() => v,
                TilePool::AbsMax => *shown,
                TilePool::Mean => *shown + v,
            };
            *taken += 1;
        })?;
        let value = |(shown, taken, broken): &(f64, u32, bool)| -> Option<f32> {
            let mean = if self.pool == TilePool::Mean { f64::from((*taken).max(1)) } else { 1.0 };
            (!broken && *taken > 0).then(|| (shown / mean) as f32)
        };
        let mut bytes: Vec<u8> = match self.code {
            Code::F32 => cells
                .iter()
                .map(|cell| value(cell).unwrap_or(if cell.2 { f32::NAN } else { f32::NEG_INFINITY }))
                .flat_map(f32::to_le_bytes)
                .collect(),
            code => cells
                .iter()
                .map(|cell| match value(cell) {
                    Some(v) => code.byte(v, self.ends),
                    None if cell.2 => NOT_FINITE,
                    None => MASKED,
                })
                .collect(),
        };
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        let flags = u8::from(last) | u8::from(extent.nan + extent.infinite > 0) << 1 | u8::from(extent.masked > 0) << 2;
        let pool = match self.pool {
            _ if self.level == 0 => 0,
            TilePool::Max => 1,
            TilePool::AbsMax => 2,
            TilePool::Mean => 3,
        };
        let mut frame = Vec::with_capacity(HEADER + bytes.len());
        frame.extend(b"LTL1");
        let whole = |n: usize| u32::try_from(n).unwrap_or(u32::MAX).to_le_bytes();
        frame.extend(whole(HEADER + bytes.len()));
        frame.extend(index.to_le_bytes());
        frame.extend([self.code.number(), pool, flags, self.level]);
        for n in [height, width, rows.start >> shift, cols.start >> shift, sheet.rows, sheet.cols] {
            frame.extend(whole(n));
        }
        let [least, greatest] = extent.range.unwrap_or([f32::NAN; 2]);
        for v in [self.ends[0], self.ends[1], least, greatest] {
            frame.extend(v.to_le_bytes());
        }
        frame.extend(extent.nan.to_le_bytes());
        frame.extend(extent.infinite.to_le_bytes());
        frame.append(&mut bytes);
        Ok(Some(frame))
    }
}

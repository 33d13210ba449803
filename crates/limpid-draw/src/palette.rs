//! Four palettes of 256 colours, one table for the terminal, files and pages. The lightness of a sequential one rises
//! or falls with every entry and that of the diverging one falls from its middle, so that order survives print in grey
//! and colour blindness. Their colours are in `palette/*.hex`.
//!
//! `viridis` and `cividis` are matplotlib's (CC0), entries moved by at most 2 of 255 where rounding to bytes had broken
//! the order.

use limpid_core::config::axis;

axis! {
    /// A palette.
    Palette, "palette" {
        /// Dark violet, green in the middle, bright yellow.
        Viridis = "viridis",
        /// Dark blue to yellow, the same for eyes that tell red from green and for those that do not.
        Cividis = "cividis",
        /// From paper to dark: the darker, the greater.
        Ink = "ink",
        /// Blue below nothing, white, orange above.
        Diverging = "diverging",
    }
}

impl Palette {
    /// All its colours: 256 times six hexadecimal digits, red, green and blue.
    pub fn hex(self) -> &'static str {
        match self {
            Palette::Viridis => include_str!("palette/viridis.hex"),
            Palette::Cividis => include_str!("palette/cividis.hex"),
            Palette::Ink => include_str!("palette/ink.hex"),
            Palette::Diverging => include_str!("palette/diverging.hex"),
        }
    }

    /// Red, green and blue of an entry.
    pub fn colour(self, entry: u8) -> [u8; 3] {
        rgb(&self.hex()[6 * usize::from(entry)..])
    }
}

/// Red, green and blue of six hexadecimal digits.
pub(crate) fn rgb(hex: &str) -> [u8; 3] {
    [0, 2, 4].map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap_or_default())
}

/// The entry for a value between `low` and `high`; values outside have that of the nearer end.
pub fn entry(value: f64, (low, high): (f64, f64)) -> u8 {
    let share = if high > low { (value - low) / (high - low) } else { 0.0 };
    (share.clamp(0.0, 1.0) * 255.0).round() as u8
}

/// How light a colour looks, from 0 to 100 (L* of CIELAB).
pub fn lightness(rgb: [u8; 3]) -> f64 {
    let linear = rgb.map(|v| match f64::from(v) / 255.0 {
        v if v <= 0.04045 => v / 12.92,
        v => libm::pow((v + 0.055) / 1.055, 2.4),
    });
    let y = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
    if y > 216.0 / 24389.0 { 116.0 * libm::cbrt(y) - 16.0 } else { 24389.0 / 27.0 * y }
}

/// The nearest of a terminal's 256 colours: of its cube, or of its greys.
pub fn terminal(rgb: [u8; 3]) -> u8 {
    const CUBE: [u8; 6] = [0, 95, 135, 175, 215, 255];
    let distance =
        |other: [u8; 3]| -> i32 { rgb.iter().zip(other).map(|(a, b)| (i32::from(*a) - i32::from(b)).pow(2)).sum() };
    let cube = |i: u8| [CUBE[usize::from(i / 36)], CUBE[usize::from(i / 6 % 6)], CUBE[usize::from(i % 6)]];
    let all = (0..216).map(|i| (16 + i, cube(i))).chain((0..24).map(|i| (232 + i, [8 + 10 * i; 3])));
    all.min_by_key(|(_, other)| distance(*other)).map_or(16, |(code, _)| code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use limpid_core::config::Axis;

    #[test]
    fn lightness_goes_one_way() {
        for palette in Palette::ALL.iter().copied() {
            assert_eq!((palette.hex().len(), Palette::named(palette.name())), (256 * 6, Some(palette)));
            let light: Vec<f64> = (0..=255).map(|i| lightness(palette.colour(i))).collect();
            let rises = |part: &[f64]| part.windows(2).all(|pair| pair[0] < pair[1]);
            let falls = |part: &[f64]| part.windows(2).all(|pair| pair[0] > pair[1]);
            let holds = match palette {
                Palette::Viridis | Palette::Cividis => rises(&light),
                Palette::Ink => falls(&light),
                Palette::Diverging => rises(&light[..128]) && falls(&light[128..]),
            };
            assert!(holds, "{palette:?}: {light:?}");
            // ends far apart; those of the diverging one equally dark
            let (first, last) = (light[0], light[255]);
            let apart = if palette == Palette::Diverging { light[128] - first } else { (first - last).abs() };
            assert!(apart > 55.0, "{palette:?}: {apart}");
            assert!(palette != Palette::Diverging || (first - last).abs() < 1.0, "{first} {last}");
        }
    }

    /// Entries of matplotlib 3's tables.
    #[test]
    fn viridis_and_cividis_are_matplotlibs() {
        let near = |palette: Palette, entry, [r, g, b]: [i32; 3]| {
            let [x, y, z] = palette.colour(entry).map(i32::from);
            assert!((x - r).abs().max((y - g).abs()).max((z - b).abs()) <= 2, "{palette:?} {entry}");
        };
        for (entry, rgb) in [(0, [68, 1, 84]), (64, [59, 82, 139]), (127, [33, 144, 141]), (255, [253, 231, 37])] {
            near(Palette::Viridis, entry, rgb);
        }
        for (entry, rgb) in [(0, [0, 34, 78]), (64, [67, 78, 108]), (255, [254, 232, 56])] {
            near(Palette::Cividis, entry, rgb);
        }
    }

    #[test]
    fn values_have_entries_and_colours_codes() {
        let seen = [-2.0, -1.0, 0.0, 0.5, 1.0, 7.0].map(|v| entry(v, (-1.0, 1.0)));
        assert_eq!(seen, [0, 0, 128, 191, 255, 255]);
        assert_eq!(entry(3.0, (3.0, 3.0)), 0);
        assert_eq!([[0, 0, 0], [255; 3], [255, 0, 0], [96, 134, 176], [118; 3]].map(terminal), [16, 231, 196, 67, 243]);
        assert_eq!([lightness([0; 3]), lightness([255; 3]).round()], [0.0, 100.0]);
    }
}

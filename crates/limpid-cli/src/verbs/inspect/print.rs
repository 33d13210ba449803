//! What `inspect` prints of a run, part by part.

use super::{Gradient, Seen, grid, short};
use crate::show;
use limpid::config::Config;
use limpid::names::{self, Notation};
use limpid::trace::table::{self, Masks, TableOptions};

/// The mask of the attention in its three forms.
pub fn masks(masks: &Masks, options: &TableOptions) -> [String; 3] {
    let [binary, additive] = [&masks.binary, &masks.additive].map(|mask| table::table(mask, options));
    let window = match masks.window {
        0 => String::new(),
        window => format!(" in blocks with a window of {}", show::plural(window, "key")),
    };
    [
        format!("M, 1 where a query (row) sees a key (column){window}:\n{binary}"),
        format!("M^-inf, added to the scores:\n{additive}"),
        format!("as a function of the scores x:\n{}", masks.function),
    ]
}

/// The gradients that were seen, and their norms by layer, in lines of this width.
pub fn gradients(seen: &Seen, config: &Config, notation: Option<Notation>, width: usize) -> [String; 2] {
    let line = |g: &Gradient| {
        let shape: Vec<String> = g.shape.iter().map(usize::to_string).collect();
        let [norm, mean, min, max] = [g.norm, g.mean, g.min, g.max].map(short);
        let mut cells = vec![g.name.clone(), norm, shape.join(" "), mean, min, max];
        if let Some(notation) = notation {
            cells.insert(1, names::called(&g.name, config, notation).unwrap_or_default());
        }
        cells
    };
    let mut headers = vec!["gradient of", "norm", "shape", "mean", "min", "max"];
    if notation.is_some() {
        headers.insert(1, "symbol");
    }
    let each = grid(String::new(), &headers, seen.gradients.iter().map(line));
    let line = |(name, norm): &(String, f64)| vec![name.clone(), short(*norm)];
    let layers = grid(String::new(), &["gradient of the parameters of", "norm"], seen.layers.iter().map(line));
    [each, layers].map(|grid| grid.text(width))
}

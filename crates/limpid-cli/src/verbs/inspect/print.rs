//! What `inspect` prints of a run, part by part.

use super::{Args, Gradient, Seen, draws, grid, headline, piece, short};
use crate::show;
use anyhow::Result;
use limpid::config::{Config, Mask};
use limpid::draw::table::{self, Masks, TableOptions};
use limpid::draw::view::{self, Paint, wrap};
use limpid::names::{self, Notation};
use limpid::tokenizer::Tokenizer;
use limpid::trace::{NamedTensor, Trace};

/// Prints all that was asked for.
pub fn seen(args: &Args, trace: &Trace, seen: &Seen, tokenizer: Option<&Tokenizer>) -> Result<()> {
    let model = trace.model();
    let others = args.listing || args.next || args.masks || args.similar.is_some() || draws(args);
    let named = !args.tensor.is_empty() || args.save.is_some();
    let table = args.table || args.params || !(others || named);
    let width = args.width.map_or_else(show::table_width, usize::from);
    let mut options = TableOptions { width, decimals: args.decimals.into(), ..TableOptions::default() };
    if args.full {
        let most = usize::MAX;
        options = TableOptions { max_rows: most, max_cols: most, max_tables: most, width: 0, ..options };
    }
    // a heat map has as many columns as a line has room for, so it needs a width
    let maps = TableOptions { width: if width == 0 && !args.full { show::PROSE } else { options.width }, ..options };
    let ink = show::paint();
    let paint = |tensor: &NamedTensor| match args.view.as_str() {
        "auto" => Some(ink).filter(|_| show::terminal() && view::is_map(tensor)),
        view => Some(ink).filter(|_| view == "heat"),
    };
    let mut parts = vec![];
    if args.listing {
        parts.push(model.to_string());
    }
    for (name, tensor) in seen.names.iter().zip(&seen.tensors) {
        let paint = paint(tensor);
        let heading = match args.words.notation {
            Some(notation) => headline(trace.row(name)?.in_notation(model, notation)),
            None => String::new(),
        };
        parts.push(heading + &view::text(tensor, &seen.labels, paint, if paint.is_some() { &maps } else { &options }));
        let inputs = seen.inputs.iter().filter(|_| name == "input");
        parts.extend(inputs.map(|grid| grid.clone().ends(&options).text(options.width)));
    }
    parts.extend(seen.masks.iter().flat_map(|found| masks(found, &options)));
    if let Some((id, near)) = &seen.similar {
        let line = |(id, cosine): &(u32, f64)| vec![piece(tokenizer, *id), id.to_string(), format!("{cosine:.4}")];
        let title = format!("nearest to {} (id {id}):", piece(tokenizer, *id));
        parts.push(grid(title, &["token", "id", "cosine"], near.iter().map(line)).text(options.width));
    }
    if args.next {
        parts.extend(next(trace, seen, tokenizer, options.width));
    }
    if table {
        parts.push(tokens(trace, tokenizer, options.width) + &table::summary_table(&seen.rows, width));
    }
    if args.backward && (table || !named) {
        parts.extend(gradients(seen, &model.config, args.words.notation, options.width));
    }
    let text = parts.join("\n");
    // nothing but what is painted has styles, and it has no names but the model's and labels, which are spelled
    if seen.tensors.iter().any(|tensor| paint(tensor).is_some_and(Paint::is_coloured)) {
        show::painted(&text)
    } else {
        show::out(&text)
    }
}

/// The ids of each sequence.
fn sequences(trace: &Trace) -> Vec<&[u32]> {
    let batch = trace.batch();
    batch.spans.iter().map(|span| &batch.tokens[span.row..][..span.rows]).collect()
}

/// The likeliest tokens after each token, sequence by sequence.
fn next(trace: &Trace, seen: &Seen, tokenizer: Option<&Tokenizer>, width: usize) -> Vec<String> {
    let best = |(id, p): &(u32, f64)| format!("{} {:.1}%", piece(tokenizer, *id), 100.0 * p);
    let headers = ["pos", "token", "likeliest", "second", "third", "fourth", "fifth"];
    let sequences = sequences(trace);
    let each = sequences.iter().zip(seen.next.chunks(sequences[0].len())).enumerate();
    each.map(|(b, (ids, next))| {
        let line = |(t, best_of): (usize, &Vec<(u32, f64)>)| -> Vec<String> {
            [t.to_string(), piece(tokenizer, ids[t])].into_iter().chain(best_of.iter().map(best)).collect()
        };
        let title = if sequences.len() > 1 { format!("sequence {b}:") } else { String::new() };
        grid(title, &headers, next.iter().enumerate().map(line)).text(width)
    })
    .collect()
}

/// The tokens of each sequence, if there is a tokenizer.
fn tokens(trace: &Trace, tokenizer: Option<&Tokenizer>, width: usize) -> String {
    let sequences = sequences(trace);
    let mut text = String::new();
    for (b, ids) in sequences.iter().enumerate().filter(|_| tokenizer.is_some()) {
        let pieces: Vec<String> = ids.iter().map(|id| piece(tokenizer, *id)).collect();
        let of = if sequences.len() > 1 { format!("sequence {b}, ") } else { String::new() };
        let said = format!("{of}{}: {}", show::plural(ids.len(), "token"), pieces.join(" "));
        text += &wrap(&said, 0, width);
        text += if b + 1 == sequences.len() { "\n" } else { "" };
    }
    text
}

/// The mask of the attention in its three forms.
fn masks(masks: &Masks, options: &TableOptions) -> [String; 3] {
    let [binary, additive] = [&masks.binary, &masks.additive].map(|mask| view::table(mask, options));
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
fn gradients(seen: &Seen, config: &Config, notation: Option<Notation>, width: usize) -> [String; 2] {
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
    // whose gradients they are, where it is not the next-token loss
    let title = match config.mask {
        Mask::Causal => "",
        _ => "of the mean loss of each token in its own place; a masked one has none",
    };
    let each = grid(title.into(), &headers, seen.gradients.iter().map(line));
    let line = |(name, norm): &(String, f64)| vec![name.clone(), short(*norm)];
    let layers = grid(String::new(), &["gradient of the parameters of", "norm"], seen.layers.iter().map(line));
    [each, layers].map(|grid| grid.text(width))
}

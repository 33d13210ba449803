//! What verbs that look inside a model share: tokens by their text, positions, and files of pictures.

use crate::options::Usage;
use crate::show;
use anyhow::{Context, Result, anyhow, bail};
use limpid::config::Mask;
use limpid::draw::palette::Palette;
use limpid::draw::picture::TensorPlot;
use limpid::tokenizer::Tokenizer;
use std::path::Path;

/// A token to look at: quoted, or its number where there is no tokenizer.
pub fn piece(tokenizer: Option<&Tokenizer>, id: u32) -> String {
    tokenizer.and_then(|t| t.piece(id).ok()).map_or_else(|| id.to_string(), |piece| format!("{piece:?}"))
}

/// The token of that text or, if there is none, of that number.
pub fn token_id((flag, token): (&str, &str), tokenizer: Option<&Tokenizer>, vocab_size: usize) -> Result<u32> {
    limpid::generate::token_named(token, tokenizer, vocab_size).map_err(|error| anyhow!("{flag}: {error}"))
}

/// The tokens that --answer and --rather-than name.
pub fn answer_ids(
    (answer, foil): (&str, Option<&str>),
    (tokenizer, vocab_size): (Option<&Tokenizer>, usize),
) -> Result<(u32, Option<u32>)> {
    let id = |flag, token: &str| token_id((flag, token), tokenizer, vocab_size);
    Ok((id("--answer", answer)?, foil.map(|foil| id("--rather-than", foil)).transpose()?))
}

/// Which position is asked about.
pub fn position(asked: Option<usize>, ids: &[u32], (mask, tokenizer): (Mask, Option<&Tokenizer>)) -> Result<usize> {
    let count = ids.len();
    match asked {
        Some(row) if row >= count => bail!("--position {row}: the prompt has {count} tokens, 0 to {}", count - 1),
        Some(row) => Ok(row),
        None if mask == Mask::Causal => Ok(count - 1),
        None => {
            let blank =
                ids.iter().position(|id| tokenizer.and_then(|t| t.piece(*id).ok()).as_deref() == Some("[MASK]"));
            Ok(blank.unwrap_or(count - 1))
        }
    }
}

/// Refuses a file that no picture can be written to; a diagram is SVG only.
pub fn check_picture(path: &Path, is_diagram: bool) -> Result<()> {
    let name = path.display();
    match path.extension().map(|end| end.to_string_lossy().to_lowercase()).as_deref() {
        Some("svg") => {}
        Some("png") if !is_diagram => {}
        Some("png") => bail!(Usage(format!("--plot-out {name}: a diagram is SVG, so its file ends in .svg"))),
        _ => {
            let mend = "the ending says what is drawn: give a name that ends in .svg or .png";
            bail!(Usage(format!("--plot-out {name}: {mend}")))
        }
    }
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.is_dir()) {
        bail!("--plot-out {name}: there is no folder {}: make it, or give another name", folder.display());
    }
    Ok(())
}

/// A plot as the bytes of a file of that name.
pub fn drawn(plot: &TensorPlot, path: &Path, palette: Option<Palette>) -> Vec<u8> {
    match path.extension() {
        Some(end) if end.eq_ignore_ascii_case("png") => plot.png(palette),
        _ => plot.svg(palette).into_bytes(),
    }
}

/// Writes a picture.
pub fn write_picture(path: &Path, bytes: &[u8]) -> Result<()> {
    limpid::checkpoint::replace(path, |beside| std::fs::write(beside, bytes))
        .with_context(|| format!("--plot-out {}", path.display()))?;
    show::say(format_args!("drew {}", path.display()));
    Ok(())
}

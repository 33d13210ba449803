//! Tokenizers as verbs name and write them: the ways of cutting text, and the forms of their files.

use anyhow::{Context, Result, bail};
use limpid::checkpoint::is_part;
use limpid::tokenizer::{Split, Tokenizer};
use std::path::{Path, PathBuf};

/// Forms a tokenizer is written in.
pub const FORMATS: [&str; 4] = ["json", "tiktoken", "llmc", "folder"];

/// A way of cutting text, by name.
pub fn split(name: &str) -> Result<Split, String> {
    Split::named(name).ok_or_else(|| "known are gpt2, gpt4, gpt4o, llama3 and qwen2".into())
}

/// The form asked for, or the one that the name says.
pub fn format<'a>(asked: Option<&'a str>, path: &Path) -> Result<&'a str> {
    if let Some(form) = asked {
        return Ok(form);
    }
    if path.is_dir() {
        return Ok("folder");
    }
    Ok(match path.extension().and_then(|end| end.to_str()) {
        Some("json") => "json",
        Some("tiktoken") => "tiktoken",
        Some("bin") => "llmc",
        None => "folder",
        Some(_) => bail!("{}: say the form with --format {}", path.display(), FORMATS.join(", ")),
    })
}

/// Writes a tokenizer in that form; what was written.
pub fn write(tokenizer: &Tokenizer, path: &Path, format: &str) -> Result<Vec<PathBuf>> {
    let bytes = match format {
        "folder" => {
            let place = || path.display().to_string();
            for entry in std::fs::read_dir(path).into_iter().flatten() {
                let name = entry.with_context(place)?.file_name().display().to_string();
                let model = name.starts_with("model") || ["config.json", "generation_config.json"].contains(&&*name);
                if model || !is_part(&name) {
                    bail!("{} has {name:?}, which is not a tokenizer file: give another folder", path.display());
                }
            }
            // the old folder goes whole: files of two tokenizers in one would be read as one
            let path = &path.canonicalize().unwrap_or(path.into());
            if let Some(parent) = path.parent() {
                std::fs::create_dir_all(parent).with_context(place)?;
            }
            let mut written = vec![];
            let done = limpid_base::files::replace_folder(path, |beside| {
                written = tokenizer.export(beside, 1_000_000).map_err(std::io::Error::other)?;
                Ok(())
            });
            done.with_context(place)?;
            return Ok(written.iter().filter_map(|file| Some(path.join(file.file_name()?))).collect());
        }
        "tiktoken" => tokenizer.to_tiktoken()?.into_bytes(),
        "llmc" => tokenizer.to_llmc()?,
        _ => {
            tokenizer.export_json(path)?;
            return Ok(vec![path.into()]);
        }
    };
    limpid::checkpoint::replace(path, |beside| std::fs::write(beside, &bytes))
        .with_context(|| path.display().to_string())?;
    Ok(vec![path.into()])
}

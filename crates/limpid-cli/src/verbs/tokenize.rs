//! `tokenize`: text to ids and back.

use crate::{show, source};
use anyhow::{Result, bail};
use limpid::checkpoint::Directory;
use limpid::tokenizer::{Kind, Order, Tokenizer};
use std::path::{Path, PathBuf};

/// Text to ids and back, pieces beside ids.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Text, @FILE, or - for standard input; with --decode, ids like 1,2,3
    #[arg(value_name = "TEXT")]
    text: String,
    /// gpt2, cl100k_base, o200k_base, a tokenizer.json, or char or word (learned from the text itself)
    #[arg(long, value_name = "NAME|FILE", default_value = "gpt2")]
    tokenizer: String,
    /// Use the tokenizer of a model directory
    #[arg(long, value_name = "DIR", conflicts_with = "tokenizer")]
    model: Option<PathBuf>,
    /// From ids to text
    #[arg(long)]
    decode: bool,
    /// Put the result on stdout as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Result<()> {
    let text = source::prompt(&args.text)?;
    let tokenizer = match (&args.model, args.tokenizer.as_str()) {
        (Some(dir), _) => super::tokenizer(&Directory::open(dir)?)?.clone(),
        (None, kind @ ("char" | "word")) => {
            if args.decode {
                bail!(
                    "a {kind} tokenizer is learned from a text: to decode, give its file with --tokenizer tokenizer.json or --model DIR"
                );
            }
            let (kind, order) =
                if kind == "char" { (Kind::Char, Order::Sorted) } else { (Kind::Word, Order::FirstAppearance) };
            Tokenizer::train(kind, &text, order, &[])?
        }
        (None, file) if Path::new(file).is_file() => Tokenizer::load(Path::new(file))?,
        (None, name) => Tokenizer::named(name)?,
    };
    let ids = match args.decode {
        true => {
            let parts =
                text.split(|c: char| c == ',' || c.is_whitespace() || c == '[' || c == ']').filter(|p| !p.is_empty());
            parts.map(super::ids).collect::<Result<Vec<u32>, String>>().map_err(anyhow::Error::msg)?
        }
        false => tokenizer.encode(&text)?,
    };
    let pieces = tokenizer.pieces(&ids)?;
    if args.json {
        return show::json(&serde_json::json!({ "ids": ids, "pieces": pieces, "text": tokenizer.decode(&ids)? }));
    }
    if args.decode {
        return show::out(&(tokenizer.decode(&ids)? + "\n"));
    }
    let width = ids.iter().max().map_or(1, |id| id.to_string().len());
    let mut lines: String = ids.iter().zip(&pieces).map(|(id, piece)| format!("{id:>width$}  {piece:?}\n")).collect();
    lines += &format!(
        "[{} tokens of {} in {}, {} bytes]\n",
        ids.len(),
        show::commas(tokenizer.vocab_size() as u64),
        tokenizer.name(),
        text.len()
    );
    show::out(&lines)
}

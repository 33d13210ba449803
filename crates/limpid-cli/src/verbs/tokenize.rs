//! `tokenize`: text to ids and back.

use crate::{show, source};
use anyhow::{Result, bail};
use limpid::checkpoint::Checkpoint;
use limpid::tokenizer::{Kind, Order, Tokenizer, from_one_based, statistics, to_one_based};
use limpid::trace::table;
use std::path::{Path, PathBuf};

/// Text to ids and back, pieces beside ids.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Text, @FILE, or - for standard input; with --decode, ids like 1,2,3
    #[arg(value_name = "TEXT", required_unless_present = "vocab")]
    text: Option<String>,
    /// gpt2, cl100k_base, o200k_base, a tokenizer.json, or char or word (learned from the text itself)
    #[arg(long, value_name = "NAME|FILE", default_value = "gpt2")]
    tokenizer: String,
    /// Use the tokenizer of a model directory
    #[arg(long, value_name = "DIR", conflicts_with = "tokenizer")]
    model: Option<PathBuf>,
    /// From ids to text
    #[arg(long)]
    decode: bool,
    /// Count ids from 1
    #[arg(long)]
    one_based: bool,
    /// Print bytes, characters, tokens, distinct ids and the greatest id instead
    #[arg(long, conflicts_with = "decode")]
    stats: bool,
    /// Print the vocabulary, each token beside its id, instead
    #[arg(long, conflicts_with = "decode")]
    vocab: bool,
    /// Print the ids as one-hot rows instead; for small vocabularies
    #[arg(long, conflicts_with_all = ["decode", "one_based"], requires = "text")]
    one_hot: bool,
    /// Put the result on stdout as JSON
    #[arg(long)]
    json: bool,
}

/// Widest one-hot matrix, and longest vocabulary that is printed whole.
const WIDEST: usize = 200;

pub fn run(args: Args) -> Result<()> {
    let text = args.text.as_deref().map(source::prompt).transpose()?;
    let tokenizer = match (&args.model, args.tokenizer.as_str()) {
        (Some(dir), _) => super::tokenizer(&Checkpoint::open(dir)?)?.clone(),
        (None, kind @ ("char" | "word")) => {
            let Some(text) = text.as_deref().filter(|_| !args.decode) else {
                let purpose = if args.decode { "to decode" } else { "without TEXT" };
                bail!(
                    "a {kind} tokenizer is learned from a text: {purpose}, give its file with --tokenizer tokenizer.json or --model DIR"
                );
            };
            let (kind, order) =
                if kind == "char" { (Kind::Char, Order::Sorted) } else { (Kind::Word, Order::FirstAppearance) };
            Tokenizer::train(kind, text, order, &[])?
        }
        (None, file) if Path::new(file).is_file() => Tokenizer::load(Path::new(file))?,
        (None, name) => Tokenizer::named(name)?,
    };
    let given = text.as_deref().unwrap_or("");
    let ids = match args.decode {
        true => {
            let parts =
                given.split(|c: char| c == ',' || c.is_whitespace() || c == '[' || c == ']').filter(|p| !p.is_empty());
            let ids = parts.map(super::ids).collect::<Result<Vec<u32>, String>>().map_err(anyhow::Error::msg)?;
            if args.one_based { from_one_based(&ids)? } else { ids }
        }
        false => tokenizer.encode(given)?,
    };
    let (pieces, size, first) = (tokenizer.pieces(&ids)?, tokenizer.vocab_size(), u32::from(args.one_based));
    let shown = if args.one_based { to_one_based(&ids)? } else { ids.clone() };
    let mut facts = statistics(&tokenizer, given, &ids)?;
    facts.max_id = facts.max_id.map(|id| id + first);
    if args.one_hot && size > WIDEST {
        bail!(
            "one-hot rows of {} have {} columns, more than {WIDEST}: use a small vocabulary, for example --tokenizer word",
            tokenizer.name(),
            show::commas(size as u64)
        );
    }
    let one_hot = args.one_hot.then(|| table::one_hot(&ids, size));
    let vocabulary = if args.vocab { tokenizer.pieces(&(0..size as u32).collect::<Vec<_>>())? } else { vec![] };
    if args.json {
        let mut all = serde_json::json!({ "ids": shown, "pieces": pieces, "text": tokenizer.decode(&ids)? });
        if args.stats {
            all["stats"] = serde_json::to_value(&facts)?;
        }
        if args.vocab {
            all["vocab"] = serde_json::json!({ "first_id": first, "tokens": vocabulary });
        }
        if let Some(matrix) = one_hot {
            all["one_hot"] = matrix.values.chunks_exact(size).map(|row| serde_json::json!(row)).collect();
        }
        return show::json(&all);
    }
    if args.decode {
        return show::out(&(tokenizer.decode(&ids)? + "\n"));
    }
    let mut parts = vec![];
    if args.stats {
        let greatest = facts.max_id.zip(facts.max_piece).map_or("-".into(), |(id, piece)| format!("{id} {piece:?}"));
        parts.push(show::pairs(&[
            ("bytes".into(), show::commas(facts.bytes as u64)),
            ("characters".into(), show::commas(facts.chars as u64)),
            ("tokens".into(), show::commas(facts.tokens as u64)),
            ("distinct ids".into(), show::commas(facts.distinct as u64)),
            ("greatest id".into(), greatest),
        ]));
    }
    if args.vocab {
        parts.push(list(&vocabulary, first) + &format!("[{} tokens]\n", show::commas(size as u64)));
    }
    if let Some(matrix) = &one_hot {
        let options = table::Options { max_cols: WIDEST, ..table::Options::default() };
        parts.push(table::table(matrix, &options));
    }
    if parts.is_empty() {
        let width = shown.iter().max().map_or(1, |id| id.to_string().len());
        let lines: String = shown.iter().zip(&pieces).map(|(id, piece)| format!("{id:>width$}  {piece:?}\n")).collect();
        parts.push(format!(
            "{lines}[{} tokens of {} in {}, {} bytes]\n",
            ids.len(),
            show::commas(size as u64),
            tokenizer.name(),
            given.len()
        ));
    }
    show::out(&parts.join("\n"))
}

/// Ids and tokens, of many the first and the last.
fn list(tokens: &[String], first: u32) -> String {
    let (n, edge) = (tokens.len(), if tokens.len() > WIDEST { 20 } else { tokens.len() });
    let width = (n + first as usize).saturating_sub(1).to_string().len();
    let mut lines = String::new();
    for (i, token) in tokens.iter().enumerate().filter(|(i, _)| *i < edge || *i >= n - edge) {
        lines += &format!("{:>width$}  {token:?}\n", i + first as usize);
        if i + 1 == edge && n > edge {
            lines += &format!("{:>width$}  ({} more; --json has all)\n", "...", show::commas((n - 2 * edge) as u64));
        }
    }
    lines
}

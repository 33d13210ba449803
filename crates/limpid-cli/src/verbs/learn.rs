//! `tokenize train`: a tokenizer learned from files.

use crate::{show, source};
use anyhow::{Context, Result, bail};
use limpid::tokenizer::{Kind, Learn, Learner, Recipe, Split, Tokenizer};
use std::fs::File;
use std::path::PathBuf;
use std::time::Instant;

/// Learn a tokenizer from text files of any size
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Text files, and folders whose .txt and .md files are taken
    #[arg(required = true, value_name = "FILE|DIR")]
    files: Vec<PathBuf>,
    /// What tokens are: byte pairs, BERT's word pieces, characters or words
    #[arg(long, value_name = "KIND", default_value = "bpe", value_parser = ["bpe", "wordpiece", "char", "word"])]
    kind: String,
    /// Tokens at most, special ones counted [char and word: as many as there are]
    #[arg(long, value_name = "N")]
    vocab_size: Option<usize>,
    /// How text is cut before bytes are joined: gpt2, gpt4, gpt4o, llama3 or qwen2
    #[arg(long, value_name = "NAME", default_value = "gpt2", value_parser = super::tokenize::split)]
    split: Split,
    /// A special token; again for more [default: <|endoftext|> for bpe, BERT's five for wordpiece, <UNK> for word]
    #[arg(long, value_name = "TOKEN")]
    special: Vec<String>,
    /// What is seen less often becomes no token [default: 2; 1 for char and word]
    #[arg(long, value_name = "N")]
    min_frequency: Option<u64>,
    /// Small letters without accents (wordpiece)
    #[arg(long)]
    lowercase: bool,
    /// tokenizer.json, NAME.tiktoken, NAME.bin (llm.c) or a folder for all that transformers reads
    #[arg(long, value_name = "FILE|DIR")]
    out: PathBuf,
    /// The form, where the name of --out does not say it
    #[arg(long, value_name = "FORM", value_parser = super::tokenize::FORMATS)]
    format: Option<String>,
    /// Threads to use [default: all]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Say only errors
    #[arg(long)]
    quiet: bool,
    /// Put the result on stdout as JSON
    #[arg(long)]
    json: bool,
}

/// What is learned, from the names people use.
pub fn recipe(
    kind: &str,
    split: Split,
    lowercase: bool,
    vocab_size: Option<usize>,
    special: &[String],
) -> Result<Recipe> {
    let learn = match kind {
        "bpe" => Learn::Bpe(split),
        "wordpiece" => Learn::WordPiece { lowercase },
        "char" => Learn::Plain(Kind::Char),
        _ => Learn::Plain(Kind::Word),
    };
    let usual: &[&str] = match learn {
        _ if !special.is_empty() => &[],
        Learn::Bpe(_) => &["<|endoftext|>"],
        Learn::WordPiece { .. } => &["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
        Learn::Plain(Kind::Word) => &["<UNK>"],
        Learn::Plain(Kind::Char) => &[],
    };
    let plain = matches!(learn, Learn::Plain(_));
    let Some(vocab_size) = vocab_size.or(plain.then_some(1 << 24)) else {
        bail!("--vocab-size N is needed: how many tokens, for example 8192");
    };
    let special = special.iter().cloned().chain(usual.iter().map(|token| token.to_string())).collect();
    Ok(Recipe { learn, vocab_size, special, min_frequency: if plain { 1 } else { 2 } })
}

pub fn run(args: Args) -> Result<()> {
    let start = Instant::now();
    let mut recipe = recipe(&args.kind, args.split, args.lowercase, args.vocab_size, &args.special)?;
    recipe.min_frequency = args.min_frequency.unwrap_or(recipe.min_frequency);
    let format = super::tokenize::format(args.format.as_deref(), &args.out)?;
    let mut files = vec![];
    for path in &args.files {
        let facts = path.metadata().with_context(|| format!("{}: there is no such file or folder", path.display()))?;
        match facts.is_dir() {
            true => files.extend(source::text_files(path)?),
            false => files.push(path.clone()),
        }
    }
    if files.is_empty() {
        bail!("the folder has no .txt or .md files");
    }
    let total: u64 = files.iter().filter_map(|file| file.metadata().ok()).map(|facts| facts.len()).sum();
    let threads = args.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from)).max(1);
    let mut learner = Learner::new(recipe)?;
    let (progress, mut done) = (show::Progress::of("MB", total >> 20, args.quiet), 0);
    for file in &files {
        let mut tell = |bytes: u64| {
            done += bytes;
            progress.step(done >> 20, || format!("read of {}", show::bytes(total)));
            true
        };
        let mut text = File::open(file).with_context(|| file.display().to_string())?;
        learner.read(&mut text, threads, &mut tell).with_context(|| file.display().to_string())?;
    }
    progress.done();
    let progress = show::Progress::of("tokens", args.vocab_size.unwrap_or(0) as u64, args.quiet);
    let mut tell = |tokens: usize, most: usize| {
        progress.step(tokens as u64, || format!("of {most}"));
        true
    };
    let found = learner.finish(&mut tell)?;
    progress.done();
    let Some(tokenizer) = found else { return Ok(()) };
    let written = super::tokenize::write(&tokenizer, &args.out, format)?;
    let (size, seconds) = (tokenizer.vocab_size(), start.elapsed().as_secs_f64());
    if args.json {
        let written: Vec<String> = written.iter().map(|path| path.display().to_string()).collect();
        return show::json(&serde_json::json!({
            "vocab_size": size, "files": files.len(), "bytes": total, "seconds": seconds, "written": written
        }));
    }
    let names: Vec<String> = written.iter().map(|path| path.display().to_string()).collect();
    show::out(&format!(
        "{} tokens from {} in {}: {}\n{}",
        show::commas(size as u64),
        show::bytes(total),
        show::duration(seconds),
        names.join(", "),
        sentence(&tokenizer, args.vocab_size)
    ))
}

/// Why there are fewer tokens than asked for, if there are.
fn sentence(tokenizer: &Tokenizer, asked: Option<usize>) -> String {
    match asked.filter(|asked| tokenizer.vocab_size() < *asked) {
        Some(asked) => {
            format!("(no more pairs are frequent enough for {}: give more text or --min-frequency 1)\n", asked)
        }
        None => String::new(),
    }
}

/// `bpe:SIZE` of a text in memory.
pub fn byte_pairs(size: &str, texts: &[&str], special: &[&str]) -> Result<Tokenizer> {
    let (digits, unit) = match size.to_lowercase().strip_suffix('k') {
        Some(digits) => (digits.to_string(), 1 << 10),
        None => (size.to_string(), 1),
    };
    let Some(size) = digits.parse::<usize>().ok().and_then(|n| n.checked_mul(unit)) else {
        bail!("`bpe:{size}`: the size of the vocabulary is a number like bpe:4096 or bpe:8k");
    };
    let mut recipe = recipe("bpe", Split::Gpt2, false, Some(size), &[])?;
    recipe.special.extend(special.iter().map(|token| token.to_string()));
    let mut learner = Learner::new(recipe)?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    for text in texts {
        learner.read(&mut text.as_bytes(), threads, &mut |_| true)?;
    }
    learner.finish(&mut |_, _| true)?.context("training the tokenizer was stopped")
}

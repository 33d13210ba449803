//! `tokenize train`: a tokenizer learned from documents.

use crate::machine::cores;
use crate::options::{self, DataOptions, Interrupted, Usage};
use crate::outputs::Force;
use crate::show::{self, Progress};
use crate::signals::interrupt;
use crate::{source, tokenizers};
use anyhow::{Result, bail};
use limpid::data::DocumentReader;
use limpid::data::source::left_out;
use limpid::tokenizer::{Learn, Learner, LearnerOptions, Split, TokenizerKind};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Learn a tokenizer from documents of any size
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Files, folders or patterns of text, JSON lines and parquet (also .gz, .zst); - for standard input
    #[arg(required = true, value_name = "INPUT")]
    inputs: Vec<String>,
    /// What tokens are: byte pairs, BERT's word pieces, characters or words
    #[arg(long, value_name = "KIND", default_value = "bpe", value_parser = ["bpe", "wordpiece", "char", "word"])]
    kind: String,
    /// Maximum number of tokens, including special tokens [char and word: as many as the text has]
    #[arg(long = "vocab-size", id = "learned_size", value_name = "N")]
    vocab_size: Option<usize>,
    /// Pre-tokenizer, which splits the text before byte pairs are merged: gpt2, gpt4, gpt4o, llama3 or qwen2
    #[arg(long, value_name = "NAME", default_value = "gpt2", value_parser = tokenizers::split)]
    split: Split,
    /// A special token (repeatable) [default: <|endoftext|> for bpe, BERT's five for wordpiece, <UNK> for word]
    #[arg(long, value_name = "TOKEN")]
    special: Vec<String>,
    /// Minimum frequency: what occurs less often does not become a token [default: 2; 1 for char and word]
    #[arg(long, value_name = "N")]
    min_frequency: Option<u64>,
    /// Add a token <UNK> for words outside the vocabulary (word); without it, such words are errors [default: true]
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set, conflicts_with = "special")]
    unk: Option<bool>,
    /// Make the end of a line a token (word); otherwise it counts as a blank
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set, default_value_t = true)]
    newlines: bool,
    /// Convert to lower case and strip accents (wordpiece)
    #[arg(long)]
    lowercase: bool,
    /// tokenizer.json, NAME.tiktoken, NAME.bin (llm.c), or a folder for all files that transformers reads
    #[arg(long, value_name = "FILE|DIR")]
    out: PathBuf,
    #[command(flatten)]
    _force: Force,
    /// The format, if the name of --out does not show it
    #[arg(long, value_name = "FORM", value_parser = tokenizers::FORMATS)]
    format: Option<String>,
    /// Threads [default: all cores]
    #[arg(long, short = 't', value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Print errors only
    #[arg(long)]
    quiet: bool,
    /// Print the result as JSON on stdout
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    reading: DataOptions,
}

/// What stands for words that are not in the vocabulary.
const UNKNOWN: &str = "<UNK>";
/// Text that is held at once.
const BLOCK: usize = 32 << 20;

pub fn run(args: Args) -> Result<()> {
    let start = Instant::now();
    crate::machine::fits_text(cores())?;
    let learn = match args.kind.as_str() {
        "bpe" => Learn::Bpe(args.split),
        "wordpiece" => Learn::WordPiece { lowercase: args.lowercase },
        "char" => Learn::Plain(TokenizerKind::Char),
        _ => Learn::Plain(TokenizerKind::Word),
    };
    let all = matches!(learn, Learn::Plain(_)).then_some(LearnerOptions::ALL);
    let Some(vocab_size) = args.vocab_size.or(all) else {
        bail!("--vocab-size N is needed: how many tokens, for example 8192");
    };
    let mut recipe = LearnerOptions::usual(learn, vocab_size, &args.special);
    recipe.min_frequency = args.min_frequency.unwrap_or(recipe.min_frequency);
    recipe.newlines = args.newlines;
    if args.kind != "word" && (args.unk.is_some() || !args.newlines) {
        bail!(Usage(format!("--unk and --newlines are choices of --kind word, and this is {}", args.kind)));
    }
    if args.unk == Some(false) {
        recipe.special.retain(|token| token != UNKNOWN);
    }
    let format = tokenizers::format(args.format.as_deref(), &args.out)?;
    let mut read = source::documents(&args.inputs, &args.reading)?;
    let (files, total) = (read.documents.inputs().len(), read.documents.size());
    let threads = options::threads(args.threads);
    let mut learner = Learner::new(recipe)?;
    let asked = interrupt()?;
    let stopped = || bail!(Interrupted("stopped; nothing was written"));
    let progress = Progress::of("%", 100, args.quiet);
    let mut bytes = 0;
    loop {
        let mut units = vec![];
        let mut size = 0;
        while size < BLOCK
            && let Some(unit) = read.documents.next()
        {
            let unit = unit?;
            size += unit.bytes;
            units.push(unit.text);
        }
        if units.is_empty() {
            break;
        }
        learner.add(&units, threads)?;
        bytes += size as u64;
        progress.reach(read.documents.read(), total, || format!("read, {} of text", show::bytes(bytes)));
        if asked.load(Ordering::Relaxed) {
            return stopped();
        }
    }
    progress.done();
    let progress = Progress::of("tokens", args.vocab_size.unwrap_or(0) as u64, args.quiet);
    let found = learner.finish(&mut |tokens, most| {
        progress.step(tokens as u64, || format!("of {most}"));
        !asked.load(Ordering::Relaxed)
    })?;
    progress.done();
    let Some(tokenizer) = found else { return stopped() };
    let written = tokenizers::write(&tokenizer, &args.out, format)?;
    let size = tokenizer.vocab_size();
    let seconds = start.elapsed().as_secs_f64();
    let written: Vec<String> = written.iter().map(|path| path.display().to_string()).collect();
    let DocumentReader { empty, bad, complaints, .. } = &read.documents;
    if args.json {
        return show::json(&serde_json::json!({
            "vocab_size": size, "files": files, "bytes": bytes, "empty": empty, "bad": bad,
            "left_out": read.left_out.names(), "seconds": seconds, "written": written,
        }));
    }
    let left = left_out(*empty, *bad, complaints);
    let tokens = show::plural(size, "token");
    let text = show::bytes(bytes);
    let time = show::duration(seconds);
    show::out(&format!("{tokens} from {text} of text in {time}: {}{}{left}\n", written.join(", "), read.left_out))?;
    // fewer tokens than asked for have a reason
    if let Some(asked) = args.vocab_size.filter(|asked| size < *asked) {
        show::out(&format!("(no more pairs are frequent enough for {asked}: give more text or --min-frequency 1)\n"))?;
    }
    Ok(())
}

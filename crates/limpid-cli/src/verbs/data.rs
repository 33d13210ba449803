//! `data`: shards of tokens from documents, and what lies in files of either.

use crate::options::{self, DataOptions, Interrupted, TextOptions, Usage};
use crate::show::{self, Progress};
use crate::signals::interrupt;
use crate::source;
use anyhow::{Result, bail};
use limpid::data::source::TextSource;
use limpid::data::{self, CorpusError, Counts, DocumentReader, FoundFiles, Manifest, Plan, Shard, Tokens};
use limpid::memory::peak_rss;
use limpid::numeric::random;
use limpid::tokenizer::Tokenizer;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Prepare and describe training data.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand, Debug)]
enum What {
    /// Make shards of tokens from documents: once, for many runs
    Prepare(Prepare),
    /// Describe documents or shards, show some, or verify their checksums
    Info(Info),
    /// Write the built-in stories as text, one a line: training data without a network
    Stories {
        /// How much: 500K, 20M
        #[arg(value_name = "SIZE", default_value = "4M")]
        size: String,
    },
}

/// Make shards of tokens from documents, on all cores and in bounded memory.
///
/// If it is interrupted, the same command resumes where it was. `limpid train --data DIR` trains on the result.
#[derive(clap::Args, Debug)]
struct Prepare {
    /// Files, folders or patterns of text, JSON lines and parquet (also .gz, .zst); - for standard input
    #[arg(value_name = "INPUT", required = true)]
    inputs: Vec<String>,
    /// gpt2, cl100k_base, o200k_base or a tokenizer.json
    #[arg(long, value_name = "NAME|FILE", default_value = "gpt2")]
    tokenizer: String,
    /// The folder to create
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Share of the documents kept for validation
    #[arg(long, value_name = "X", default_value_t = 0.01)]
    val_fraction: f64,
    /// Tokens per shard
    #[arg(long, value_name = "N", default_value_t = 100_000_000)]
    shard_tokens: u64,
    /// Threads [default: all cores]
    #[arg(long, short = 't', value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Print the result as JSON on stdout
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    reading: TextOptions,
}

/// Describe documents or shards.
#[derive(clap::Args, Debug)]
struct Info {
    /// A folder of `data prepare`, llm.c's .bin files, or a file, folder or pattern of documents
    #[arg(value_name = "DIR|FILE")]
    data: String,
    /// Show the beginning of N documents
    #[arg(long, value_name = "N", default_value_t = 0)]
    sample: usize,
    /// Seed of the choice
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Read all shards and verify their checksums
    #[arg(long)]
    check: bool,
    /// The tokenizer of .bin files [default: gpt2]
    #[arg(long, value_name = "NAME|FILE")]
    tokenizer: Option<String>,
    /// Print the result as JSON on stdout
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    reading: DataOptions,
}

pub fn run(args: Args) -> Result<()> {
    match args.what {
        What::Prepare(args) => prepare(args),
        What::Info(args) => info(&args),
        What::Stories { size } => show::out(&data::source::text(&format!("builtin:stories:{size}"))?),
    }
}

fn prepare(args: Prepare) -> Result<()> {
    if !(0.0..1.0).contains(&args.val_fraction) || args.shard_tokens == 0 {
        bail!(Usage("--val-fraction must be at least 0 and less than 1, --shard-tokens at least 1".into()));
    }
    let threads = options::threads(args.threads);
    crate::machine::fits_text(threads)?;
    let tokenizer = Tokenizer::known(&args.tokenizer)?;
    let FoundFiles { inputs, left_out } = data::find(&args.inputs, args.reading.documents.stdin())?;
    let total: u64 = inputs.iter().map(|input| input.bytes).sum();
    if !args.json {
        let (files, threads) = (show::plural(inputs.len(), "file"), show::plural(threads, "thread"));
        show::say(format_args!("{files}, {}; tokenizer {}; {threads}{left_out}", show::bytes(total), args.tokenizer));
    }
    let name = Path::new(&args.tokenizer).file_name().map_or(args.tokenizer.clone(), |n| n.to_string_lossy().into());
    let plan = Plan {
        inputs,
        field: args.reading.documents.field(),
        skip_bad: args.reading.documents.skip_bad,
        parse_special: args.reading.parse_special,
        tokenizer: &tokenizer,
        tokenizer_name: &name,
        val_fraction: args.val_fraction,
        shard_tokens: args.shard_tokens,
        threads,
    };
    let asked = interrupt()?;
    let start = Instant::now();
    let bar = Progress::of("%", 100, args.json);
    let mut last = data::Progress::default();
    let done = data::prepare(&plan, &args.out, &mut |progress| {
        last = *progress;
        let seconds = start.elapsed().as_secs_f64().max(1e-9);
        bar.reach(progress.read, total, || {
            let tokens = show::count(progress.done.tokens as f64);
            let rate = progress.encoded_bytes as f64 / seconds;
            format!("{tokens} tokens, {}/s", show::bytes(rate as u64))
        });
        !asked.load(Ordering::Relaxed)
    });
    bar.done();
    let (manifest, complaints) = done.map_err(|e| match e {
        CorpusError::Stopped => Interrupted("stopped; the same command resumes where it was").into(),
        e => anyhow::Error::from(e),
    })?;
    let seconds = start.elapsed().as_secs_f64();
    let all = manifest.all();
    if args.json {
        return show::json(&json!({
            "documents": all.documents, "tokens": all.tokens, "bytes": all.bytes, "empty": manifest.empty,
            "bad": manifest.bad,
            "left_out": left_out.names(), "train": manifest.train.all, "val": manifest.val.all, "seconds": seconds,
            "encoded_tokens": last.encoded,
            "tok_s": last.encoded as f64 / seconds, "bytes_s": last.encoded_bytes as f64 / seconds,
            "peak_rss_bytes": peak_rss(),
        }));
    }
    let left = data::source::left_out(manifest.empty, manifest.bad, &complaints);
    let (documents, tokens) = (show::plural(all.documents, "document"), show::plural(all.tokens, "token"));
    show::say(format_args!("{documents}, {tokens}, {} of text{left}", show::bytes(all.bytes)));
    if last.encoded > 0 {
        let memory = peak_rss().map(|b| format!("; peak memory {}", show::bytes(b))).unwrap_or_default();
        let (tokens, bytes) = (last.encoded as f64 / seconds, last.encoded_bytes as f64 / seconds);
        let time = show::duration(seconds);
        show::say(format_args!("in {time}: {} tokens/s, {}/s{memory}", show::count(tokens), show::bytes(bytes as u64)));
    }
    let (out, word) = (args.out.display(), show::quoted(&args.out));
    show::say(format_args!("the shards are in {out}; try: limpid train --data {word}"));
    Ok(())
}

fn info(args: &Info) -> Result<()> {
    let folder = Path::new(&args.data);
    let is_prepared = Manifest::exists(folder);
    let files = if is_prepared { vec![] } else { data::source::shard_files(&args.data) };
    if let Some(tokenizer) = args.tokenizer.as_ref().filter(|_| files.is_empty()) {
        bail!(Usage(format!("--tokenizer {tokenizer}: it is for .bin files, and {} has none", args.data)));
    }
    let reading = &args.reading;
    let documents_only = [("--field", reading.field.is_some()), ("--skip-bad", reading.skip_bad)];
    let has_tokens = is_prepared || !files.is_empty();
    if let Some((flag, _)) = documents_only.iter().find(|(_, given)| *given && has_tokens) {
        bail!(Usage(format!("{flag}: it is for documents, and {} has tokens", args.data)));
    }
    if is_prepared {
        return prepared(args, folder);
    }
    if args.check {
        bail!("{} has no manifest.json, so there are no checksums to verify", args.data);
    }
    if !files.is_empty() {
        return shards(args, &files);
    }
    if conversations(args)? { Ok(()) } else { documents(args) }
}

/// Describes files of conversations; says whether they are some. Standard input is described as documents: it can be
/// read once.
fn conversations(args: &Info) -> Result<bool> {
    if args.data == "-" {
        return Ok(false);
    }
    let mut source = TextSource::new(&args.data);
    (source.field, source.skip_bad) = (args.reading.field.clone(), args.reading.skip_bad);
    let (mut n, mut messages, mut answers, mut bytes, mut longest) = (0u64, 0, 0, 0, 0);
    let mut kept = Sample::new(args);
    let chat = source.each_conversation(&mut |conversation, _| {
        let text = conversation.text();
        kept.add(n, || format!("{}: {}", conversation.place, beginning(&text)));
        messages += conversation.messages.len();
        answers += conversation.learned.iter().filter(|learned| **learned).count();
        (n, bytes, longest) = (n + 1, bytes + text.len() as u64, longest.max(text.len() as u64));
        Ok(())
    });
    let Some(chat) = source::worded(chat)? else { return Ok(false) };
    let facts = json!({
        "conversations": n, "messages": messages, "answers": answers, "bytes": bytes, "bad": chat.skipped,
        "longest_conversation_bytes": longest, "left_out": chat.left_out.names(),
    });
    let mut rows = vec![
        ("conversations", format!("{}{}", show::commas(n), chat.left_out)),
        ("messages", format!("{}, of which {} are answers to learn", show::commas(messages), show::commas(answers))),
        ("text", format!("{} with markers", show::bytes(bytes))),
        ("longest conversation", show::bytes(longest)),
    ];
    rows.extend(chat.first_skipped.map(|why| ("left out", format!("{} bad; the first: {why}", chat.skipped))));
    print(args, facts, &rows, &kept.samples())?;
    Ok(true)
}

/// A sample of fixed size from a stream of unknown length: each item has the same chance.
struct Sample<'a> {
    args: &'a Info,
    kept: Vec<(u64, String)>,
}

impl Sample<'_> {
    fn new(args: &Info) -> Sample<'_> {
        Sample { args, kept: vec![] }
    }

    /// Takes item number `n`, perhaps.
    fn add(&mut self, n: u64, shown: impl FnOnce() -> String) {
        let Sample { args, kept } = self;
        if args.sample == 0 {
            return;
        }
        let place = random::below(args.seed, random::site("sample"), n, n + 1) as usize;
        if kept.len() < args.sample {
            kept.push((n, shown()));
        } else if place < args.sample {
            kept[place] = (n, shown());
        }
    }

    /// What was taken, in its order.
    fn samples(mut self) -> Vec<String> {
        self.kept.sort();
        self.kept.into_iter().map(|kept| kept.1).collect()
    }
}

/// The beginning of a text.
fn beginning(text: &str) -> String {
    text.chars().take(SHOWN.1).collect::<String>().trim_end().into()
}

fn prepared(args: &Info, folder: &Path) -> Result<()> {
    let manifest = Manifest::read(folder)?;
    let tokenizer = manifest.tokenizer(folder)?;
    if args.check {
        manifest.check(folder, &mut |_, _| {})?;
    }
    let parts = [("train", manifest.tokens(folder, "train", false)?), ("val", manifest.tokens(folder, "val", false)?)];
    let longest = parts.iter().map(|(_, tokens)| longest(tokens)).max().unwrap_or(0);
    let samples = samples(args, &parts[0].1, &tokenizer)?;
    let shards = manifest.train.shards.len() + manifest.val.shards.len();
    let counts = manifest.all();
    let facts = json!({
        "complete": manifest.complete, "documents": counts.documents, "tokens": counts.tokens, "bytes": counts.bytes,
        "empty": manifest.empty, "bad": manifest.bad, "longest_document": longest, "shards": shards,
        "train": manifest.train.all, "val": manifest.val.all, "settings": manifest.settings,
        "sources": manifest.sources, "checked": args.check,
    });
    let row = |c: &Counts| {
        let parts = if c.parts == c.documents { String::new() } else { format!(" in {} parts", show::commas(c.parts)) };
        let documents = show::commas(c.documents);
        let tokens = show::commas(c.tokens);
        let bytes = show::bytes(c.bytes);
        format!("{documents} documents{parts}, {tokens} tokens, {bytes} of text")
    };
    let settings = &manifest.settings;
    let state = match (manifest.complete, args.check) {
        (false, _) => "interrupted: the same `limpid data prepare` continues",
        (true, true) => "complete; every checksum is right",
        (true, false) => "complete",
    };
    let mut rows = vec![
        ("state", state.to_string()),
        ("all", row(&counts)),
        ("train", row(&manifest.train.all)),
        ("val", row(&manifest.val.all)),
        ("longest document", format!("{} tokens", show::commas(longest))),
        ("bytes a token", format!("{:.2}", counts.bytes as f64 / counts.tokens.max(1) as f64)),
        ("tokenizer", format!("{} with {} tokens", settings.tokenizer, show::commas(settings.vocab_size))),
        ("shards", format!("{shards} of about {} tokens, {}", show::commas(settings.shard_tokens), settings.ids)),
        ("made from", sources(&manifest)),
    ];
    if manifest.empty + manifest.bad > 0 {
        rows.push(("left out", format!("{} empty, {} bad", manifest.empty, manifest.bad)));
    }
    print(args, facts, &rows, &samples)
}

fn sources(manifest: &Manifest) -> String {
    let bytes = manifest.sources.iter().map(|s| s.bytes).sum();
    match manifest.sources.as_slice() {
        [one] => format!("{} ({})", one.path, show::bytes(bytes)),
        many => format!("{} files ({})", show::commas(many.len()), show::bytes(bytes)),
    }
}

/// Prints what was found, with the beginnings of some documents.
fn print(args: &Info, mut facts: Value, rows: &[(&str, String)], samples: &[String]) -> Result<()> {
    if args.json {
        facts["samples"] = json!(samples);
        return show::json(&facts);
    }
    let samples: String = samples.iter().map(|sample| format!("\n{sample}\n")).collect();
    show::out(&format!("{}\n{}{samples}", args.data, show::pairs(rows)))
}

fn longest(tokens: &Tokens) -> usize {
    (0..tokens.documents()).map(|i| tokens.document(i).len()).max().unwrap_or(0)
}

/// Tokens of a beginning that are shown, and characters.
const SHOWN: (usize, usize) = (80, 400);

fn samples(args: &Info, tokens: &Tokens, tokenizer: &Tokenizer) -> Result<Vec<String>> {
    let documents = if tokens.is_empty() { 0 } else { tokens.documents() as u64 };
    let one = |n: usize| {
        let i = random::below(args.seed, random::site("sample"), n as u64, documents) as usize;
        let range = tokens.document(i);
        let mut ids = vec![];
        tokens.copy(range.start..range.end.min(range.start + SHOWN.0), &mut ids);
        let more = if range.len() > SHOWN.0 { " ..." } else { "" };
        Ok(format!("document {} ({} tokens): {}{more}", i + 1, range.len(), tokenizer.decode(&ids)?.trim_end()))
    };
    (0..if documents == 0 { 0 } else { args.sample }).map(one).collect()
}

fn shards(args: &Info, files: &[PathBuf]) -> Result<()> {
    let name = args.tokenizer.as_deref().unwrap_or("gpt2");
    let tokenizer = Tokenizer::known(name)?;
    let opened: Result<Vec<Shard>, _> = files.iter().map(|path| Shard::open(path, None)).collect();
    let opened = opened?;
    let end = tokenizer.end_of_text();
    let last = opened.len().saturating_sub(1);
    let tokens = Tokens::of_shards(opened.into_iter().enumerate().map(|(i, s)| s.ended_by(end, i == last)).collect());
    tokens.check_ids(tokenizer.vocab_size())?;
    let documents = tokens.documents();
    let longest = longest(&tokens);
    let facts = json!({
        "shards": files.len(), "documents": documents, "tokens": tokens.len(), "longest_document": longest,
    });
    let rows = vec![
        ("shards", show::commas(files.len())),
        ("documents", format!("{} (as the end of text of {name} divides them)", show::commas(documents))),
        ("tokens", show::commas(tokens.len())),
        ("longest document", format!("{} tokens", show::commas(longest))),
    ];
    print(args, facts, &rows, &samples(args, &tokens, &tokenizer)?)
}

fn documents(args: &Info) -> Result<()> {
    let mut read = source::documents(std::slice::from_ref(&args.data), &args.reading)?;
    let (mut documents, mut bytes, mut longest, mut here) = (0u64, 0u64, 0u64, 0u64);
    let mut kept = Sample::new(args);
    let mut begins = true;
    while let Some(unit) = read.documents.next() {
        let unit = unit?;
        if begins {
            let place = || DocumentReader::place(read.documents.inputs(), &unit);
            kept.add(documents, || format!("{}: {}", place(), beginning(&unit.text)));
        }
        (bytes, here) = (bytes + unit.bytes as u64, here + unit.bytes as u64);
        begins = unit.last;
        if unit.last {
            (documents, longest, here) = (documents + 1, longest.max(here), 0);
        }
    }
    let DocumentReader { empty, bad, .. } = read.documents;
    let facts = json!({
        "documents": documents, "bytes": bytes, "empty": empty, "bad": bad, "longest_document_bytes": longest,
        "left_out": read.left_out.names(),
    });
    let said = read.said(documents, bytes).unwrap_or_else(|| "read 1 text".into());
    let rows = vec![
        ("documents", show::commas(documents)),
        ("text", show::bytes(bytes)),
        ("longest document", show::bytes(longest)),
        ("files", said),
    ];
    print(args, facts, &rows, &kept.samples())
}

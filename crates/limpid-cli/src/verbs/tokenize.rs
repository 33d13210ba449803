//! `tokenize`: text to ids and back.

use crate::options::Usage;
use crate::outputs::Force;
use crate::tokenizers::{FORMATS, format, split, write};
use crate::{models, show, source};
use anyhow::{Context, Result, bail};
use limpid::checkpoint;
use limpid::data::LONGEST;
use limpid::draw::{table, view};
use limpid::tokenizer::{Order, Split, Statistics, Tokenizer, TokenizerKind, from_one_based, statistics, to_one_based};
use limpid::trace::NamedTensor;
use std::io::BufRead;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// Encode text, decode ids, or train a tokenizer.
///
/// Prints pieces beside their ids; `tokenize train` learns a tokenizer.
#[derive(clap::Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Args {
    #[command(subcommand)]
    verb: Option<Verb>,
    /// A model, whose tokenizer is used instead of --tokenizer
    #[arg(value_name = "MODEL", value_parser = models::any_word())]
    place: Option<PathBuf>,
    /// Text, @FILE, or - for standard input; with --decode, ids like 1,2,3
    #[arg(value_name = "TEXT")]
    text: Option<String>,
    /// gpt2, cl100k_base, o200k_base, a tokenizer.json, a GGUF file, char or word (learned from the text itself), or
    /// the words of a document's example: s0, s0-three, s3 [default: gpt2]
    #[arg(long, value_name = "NAME|FILE")]
    tokenizer: Option<String>,
    /// The same as MODEL
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// Decode ids to text
    #[arg(long)]
    decode: bool,
    /// Count ids from 1, and with --one-hot rows and columns
    #[arg(long)]
    one_based: bool,
    /// Print bytes, characters, tokens, distinct ids and the greatest id instead
    #[arg(long, conflicts_with = "decode")]
    stats: bool,
    /// Print the vocabulary, each token beside its id, instead
    #[arg(long, conflicts_with = "decode")]
    vocab: bool,
    /// Print the ids as one-hot rows instead; for small vocabularies
    #[arg(long, conflicts_with = "decode")]
    one_hot: bool,
    /// Encode each line of a file (- for standard input), a JSON string, to a JSON list of ids; with --decode, back
    #[arg(long, value_name = "FILE", conflicts_with_all = ["stats", "vocab", "one_hot", "one_based", "json"])]
    lines: Option<String>,
    /// Treat the text of special tokens as ordinary text
    #[arg(long, conflicts_with = "decode")]
    ordinary: bool,
    /// Write the tokenizer: tokenizer.json, NAME.tiktoken, NAME.bin (llm.c), or a folder for all files that
    /// transformers reads
    #[arg(long, value_name = "FILE|DIR", conflicts_with_all = ["lines", "json"])]
    export: Option<PathBuf>,
    #[command(flatten)]
    _force: Force,
    /// The form, where the name of --export does not say it
    #[arg(long, value_name = "FORM", requires = "export", value_parser = FORMATS)]
    format: Option<String>,
    /// Pre-tokenizer of a .tiktoken file that is not OpenAI's: gpt2, gpt4, gpt4o, llama3 or qwen2
    #[arg(long, value_name = "NAME", value_parser = split)]
    split: Option<Split>,
    /// A special token of a .tiktoken file, with the next id after its ranks; again for more
    #[arg(long, value_name = "TOKEN")]
    special: Vec<String>,
    /// Print the result as JSON on stdout
    #[arg(long)]
    json: bool,
}

#[derive(clap::Subcommand, Debug)]
enum Verb {
    /// Learn a tokenizer from documents of any size
    Train(super::learn::Args),
}

/// `--lines`: a JSON value a line in, one out.
fn lines(tokenizer: &Tokenizer, file: &str, decode: bool, ordinary: bool) -> Result<()> {
    let mut input: Box<dyn BufRead> = match file {
        "-" => Box::new(std::io::stdin().lock()),
        _ => Box::new(std::io::BufReader::new(std::fs::File::open(file).with_context(|| file.to_string())?)),
    };
    let mut out = String::new();
    let too_long = format!("{LONGEST} bytes, the most that one line may have");
    source::lines(input.as_mut(), file, (LONGEST, &too_long), |line, place| {
        if decode {
            let ids: Vec<u32> = serde_json::from_str(line).with_context(|| format!("{place}: no list of ids"))?;
            out += &serde_json::to_string(&tokenizer.decode(&ids).with_context(|| place.to_string())?)?;
        } else {
            let text: String = serde_json::from_str(line).with_context(|| format!("{place}: no JSON string"))?;
            let ids = if ordinary { tokenizer.encode_ordinary(&text) } else { tokenizer.encode(&text) };
            out += &serde_json::to_string(&ids.with_context(|| place.to_string())?)?;
        }
        out.push('\n');
        if out.len() >= 1 << 16 {
            show::out(&std::mem::take(&mut out))?;
        }
        Ok(ControlFlow::Continue(()))
    })?;
    show::out(&out)
}

/// Widest one-hot matrix, and longest vocabulary that is printed whole.
const WIDEST: usize = 200;

/// Which of the words that were typed is a model, and which the text: a word that is alone is the text, where one is
/// taken.
fn words(args: &mut Args) -> Result<()> {
    let takes_text = args.lines.is_none() && args.export.is_none();
    if takes_text && !(args.vocab && args.text.is_none() && args.place.as_deref().is_some_and(Path::exists)) {
        args.text = models::after_model(&mut args.place, args.text.take(), "tokenize", "TEXT")?;
    }
    if takes_text && args.text.is_none() && (!args.vocab || args.one_hot) {
        bail!(Usage("TEXT is missing: `limpid tokenize [MODEL] TEXT`".into()));
    }
    if !takes_text && args.text.is_some() {
        bail!(Usage("--lines and --export take no TEXT: leave it out".into()));
    }
    args.model = models::one_model(args.place.as_deref(), args.model.as_deref())?.map(Path::to_path_buf);
    if let (Some(model), Some(tokenizer)) = (&args.model, &args.tokenizer) {
        let model = show::quoted(model);
        bail!(Usage(format!("--tokenizer {tokenizer}: the model {model} has its own: leave one of them out")));
    }
    Ok(())
}

pub fn run(mut args: Args) -> Result<()> {
    if let Some(Verb::Train(args)) = args.verb {
        return super::learn::run(args);
    }
    words(&mut args)?;
    let ranks = args.tokenizer.as_deref().is_some_and(|name| name.ends_with(".tiktoken"));
    for (flag, given) in [("--split", args.split.is_some()), ("--special", !args.special.is_empty())] {
        if given && !ranks {
            bail!(Usage(format!("{flag}: it is for a .tiktoken file, given with --tokenizer")));
        }
    }
    if args.ordinary && (args.export.is_some() || args.text.is_none() && args.lines.is_none()) {
        bail!(Usage("--ordinary: there is no text to encode".into()));
    }
    let text = args.text.as_deref().map(source::prompt).transpose()?;
    let tokenizer = tokenizer(&args, text.as_deref())?;
    if let Some(file) = &args.lines {
        return lines(&tokenizer, file, args.decode, args.ordinary);
    }
    if let Some(path) = &args.export {
        let written = write(&tokenizer, path, format(args.format.as_deref(), path)?)?;
        return show::out(&written.iter().map(|path| format!("{}\n", path.display())).collect::<String>());
    }
    let text = text.unwrap_or_default();
    let ids = ids(&args, &tokenizer, &text)?;
    let pieces = tokenizer.pieces(&ids)?;
    let size = tokenizer.vocab_size();
    let first = u32::from(args.one_based);
    if args.one_hot && size > WIDEST {
        let name = tokenizer.name();
        let columns = show::commas(size);
        let mend = "use a small vocabulary, for example --tokenizer word";
        bail!("one-hot rows of {name} have {columns} columns, more than {WIDEST}: {mend}");
    }
    let mut facts = statistics(&tokenizer, &text, &ids)?;
    facts.max_id = facts.max_id.map(|id| id + first);
    let encoded = Encoded {
        shown: if args.one_based { to_one_based(&ids)? } else { ids.clone() },
        pieces,
        facts,
        one_hot: args.one_hot.then(|| table::one_hot(&ids, size)),
        vocabulary: if args.vocab { tokenizer.pieces(&(0..size as u32).collect::<Vec<_>>())? } else { vec![] },
        first,
    };
    match (args.json, args.decode) {
        (true, _) => show::json(&encoded.json(&args, tokenizer.decode(&ids)?)?),
        (false, true) => show::out(&(tokenizer.decode(&ids)? + "\n")),
        (false, false) => show::out(&encoded.text(&args, &tokenizer)),
    }
}

/// The tokenizer that was asked for; one of characters or words is learned from `text`.
fn tokenizer(args: &Args, text: Option<&str>) -> Result<Tokenizer> {
    Ok(match (&args.model, args.tokenizer.as_deref().unwrap_or("gpt2")) {
        (Some(dir), _) => models::tokenizer(&models::checkpoint(dir, true)?)?.clone(),
        (None, kind @ ("char" | "word")) => {
            let Some(text) = text.filter(|_| !args.decode) else {
                let mode = if args.decode { "to decode" } else { "without TEXT" };
                bail!(
                    "a {kind} tokenizer is learned from a text: {mode}, give its file with --tokenizer tokenizer.json \
                     or --model DIR"
                );
            };
            let (kind, order) = match kind {
                "char" => (TokenizerKind::Char, Order::Sorted),
                _ => (TokenizerKind::Word, Order::FirstAppearance),
            };
            Tokenizer::train(kind, text, order, &[])?
        }
        (None, file) if checkpoint::is_gguf(Path::new(file)) => checkpoint::gguf_tokenizer(Path::new(file))?,
        (None, file) if Path::new(file).is_file() || file.ends_with(".tiktoken") => {
            Tokenizer::load_with(Path::new(file), args.split, &args.special)?
        }
        (None, name) => Tokenizer::named(name)?,
    })
}

/// The ids of a text or, with --decode, those that it names.
fn ids(args: &Args, tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>> {
    if args.decode {
        let parts = text.split(|c: char| ",[]".contains(c) || c.is_whitespace()).filter(|part| !part.is_empty());
        let ids = parts.map(models::ids).collect::<Result<Vec<u32>, String>>().map_err(anyhow::Error::msg)?;
        return Ok(if args.one_based { from_one_based(&ids)? } else { ids });
    }
    Ok(if args.ordinary { tokenizer.encode_ordinary(text)? } else { tokenizer.encode(text)? })
}

/// A text and its ids, as they are shown.
struct Encoded {
    /// The ids, counted from `first`.
    shown: Vec<u32>,
    pieces: Vec<String>,
    facts: Statistics,
    one_hot: Option<NamedTensor>,
    vocabulary: Vec<String>,
    /// The least id: 0 or 1.
    first: u32,
}

impl Encoded {
    fn json(&self, args: &Args, text: String) -> Result<serde_json::Value> {
        let mut all = serde_json::json!({ "ids": self.shown, "pieces": self.pieces, "text": text });
        if args.stats {
            all["stats"] = serde_json::to_value(&self.facts)?;
        }
        if args.vocab {
            all["vocab"] = serde_json::json!({ "first_id": self.first, "tokens": self.vocabulary });
        }
        if let Some(NamedTensor { values, shape, .. }) = &self.one_hot {
            all["one_hot"] = values.chunks_exact(shape[1]).map(|row| serde_json::json!(row)).collect();
        }
        Ok(all)
    }

    fn text(&self, args: &Args, tokenizer: &Tokenizer) -> String {
        let Encoded { shown, pieces, facts, first, .. } = self;
        let mut parts = vec![];
        if args.stats {
            let greatest = facts.max_id.zip(facts.max_piece.as_ref());
            let greatest = greatest.map_or("-".into(), |(id, piece)| format!("{id} {piece:?}"));
            parts.push(show::pairs(&[
                ("bytes", show::commas(facts.bytes)),
                ("characters", show::commas(facts.chars)),
                ("tokens", show::commas(facts.tokens)),
                ("distinct ids", show::commas(facts.distinct)),
                ("greatest id", greatest),
            ]));
        }
        if args.vocab {
            let tokens = show::plural(tokenizer.vocab_size(), "token");
            parts.push(list(&self.vocabulary, *first) + &format!("[{tokens}]\n"));
        }
        if let Some(matrix) = &self.one_hot {
            let options =
                table::TableOptions { max_cols: WIDEST, first: *first as usize, ..table::TableOptions::default() };
            parts.push(view::table(matrix, &options));
        }
        if parts.is_empty() {
            let width = shown.iter().max().map_or(1, |id| id.to_string().len());
            let lines: String =
                shown.iter().zip(pieces).map(|(id, piece)| format!("{id:>width$}  {piece:?}\n")).collect();
            let tokens = show::plural(shown.len(), "token");
            let bytes = show::plural(facts.bytes, "byte");
            let size = show::commas(tokenizer.vocab_size());
            let name = tokenizer.name();
            parts.push(format!("{lines}[{tokens} of {size} in {name}, {bytes}]\n"));
        }
        parts.join("\n")
    }
}

/// Ids and tokens, of many the first and the last.
fn list(tokens: &[String], first: u32) -> String {
    let n = tokens.len();
    let edge = if tokens.len() > WIDEST { 20 } else { tokens.len() };
    let width = (n + first as usize).saturating_sub(1).to_string().len();
    let mut lines = String::new();
    for (i, token) in tokens.iter().enumerate().filter(|(i, _)| *i < edge || *i >= n - edge) {
        lines += &format!("{:>width$}  {token:?}\n", i + first as usize);
        if i + 1 == edge && n > edge {
            lines += &format!("{:>width$}  ({} more; --json has all)\n", "...", show::commas(n - 2 * edge));
        }
    }
    lines
}

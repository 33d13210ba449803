//! `eval`: how well a model predicts a text.

use crate::models::{InterventionOptions, WeightOptions, files, finite, needs_head, on_machine, prompt_ids, tokenizer};
use crate::options::{MachineOptions, TextOptions, Usage};
use crate::show;
use crate::source;
use anyhow::{Context, Result, bail};
use limpid::Lm;
use limpid::checkpoint::Checkpoint;
use limpid::config::Mask;
use limpid::data::Tokens;
use limpid::data::chat::is_template;
use limpid::data::source::{About, TextSource};
use limpid::engine::EngineLimits;
use limpid::generate;
use limpid::train::{Documents, Objective, WindowShape, Windows};

/// Measure loss, perplexity and bits per byte of a text: all of it, deterministic, dropout off.
///
/// The text is cut into windows that do not overlap, so the first tokens of each window are predicted from little
/// context. A model of masked tokens predicts 15 in 100 tokens, as in training.
///
/// With --prompt and --continuation instead of --data: the log-probability of the continuation, token by token.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    weights: WeightOptions,
    /// A file, folder or pattern of text, JSON lines and parquet (also .gz, .zst), a folder of `data prepare`, llm.c's
    /// .bin, conversations (their answers are scored), - for standard input, or builtin:stories (and the documents'
    /// examples)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prompt", "continuation"])]
    data: Option<String>,
    /// The text before the continuation: text, @FILE, or - for standard input
    #[arg(long, short, value_name = "TEXT", requires = "continuation")]
    prompt: Option<String>,
    /// Text to score. It is tokenised separately from the prompt: with byte pairs, begin it with the space before its
    /// first word
    #[arg(long, value_name = "TEXT", requires = "prompt")]
    continuation: Option<String>,
    /// Tokens of a window [default: the model's]
    #[arg(long, value_name = "T", alias = "block-size", conflicts_with = "continuation")]
    context_length: Option<usize>,
    /// Windows at once
    #[arg(long, value_name = "B", default_value_t = 16, conflicts_with = "continuation")]
    batch_size: usize,
    /// Print the result as JSON on stdout
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    reading: TextOptions,
    #[command(flatten)]
    changes: InterventionOptions,
    #[command(flatten)]
    machine: MachineOptions,
}

/// How well a text is predicted.
#[derive(serde::Serialize)]
struct TextScore {
    loss: f64,
    perplexity: f64,
    /// None where the predicted tokens do not say every byte of the text.
    bits_per_byte: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    why_no_bits_per_byte: Option<&'static str>,
    /// Tokens predicted.
    tokens: usize,
    bytes: usize,
    /// Tokens of a window.
    context: usize,
    /// Tokens of the text that stand for what the vocabulary lacks, how large a part of all they are, and some of it.
    unknown_tokens: usize,
    unknown_share: f64,
    unknown: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    entropy_floor: Option<f64>,
}

pub fn run(mut args: Args) -> Result<()> {
    args.weights.refuse_text("eval", "--data")?;
    if args.data.is_none() && args.continuation.is_none() {
        bail!(Usage("no text is given: --data FILE, or --prompt TEXT and --continuation TEXT".into()));
    }
    crate::machine::fits_text(args.machine.threads())?;
    limpid::backend::Cpu::can_start(args.machine.threads())?; // the text is encoded on as many
    let checkpoint = args.weights.open(!args.machine.no_verify)?;
    needs_head(&checkpoint)?;
    let lm = args.changes.apply(on_machine(checkpoint, &args.machine)?)?;
    let checkpoint = files(&lm);
    let data = match (&args.data, &args.prompt, &args.continuation) {
        (Some(data), ..) => data,
        (None, Some(prompt), Some(continuation)) => return likelihood(&args, &lm, prompt, continuation),
        _ => unreachable!("a continuation has a prompt"),
    };
    let mut text = source::source(data, &args.reading, &args.machine);
    text.val_fraction = 0.0;
    let (ids, text, documents) = read(&text, checkpoint)?;
    ids.check_ids(checkpoint.config.vocab_size)?;
    if let Some(read) = text.read.as_ref().filter(|_| !args.json) {
        show::say(format_args!("{data}: {read}"));
    }
    let context = args.context_length.unwrap_or(checkpoint.config.context_length);
    if context == 0 || args.batch_size == 0 {
        bail!("--context-length and --batch-size must be at least 1");
    }
    let objective = lm.objective(false)?;
    let windows = Windows::new("text", &ids, WindowShape { context, objective, documents })?;
    let score = lm.evaluate_windows(&windows, context, args.batch_size)?;
    let (Some(loss), Some(perplexity)) = (score.loss(), score.perplexity()) else {
        bail!("{data}: none of its {} can be predicted, so it has no loss", show::plural(ids.len(), "token"))
    };
    if let Some(error) = lm.resolved_steps().and_then(|steps| steps.too_large()).filter(|_| !loss.is_finite()) {
        bail!("the loss is {loss}: {error}");
    }
    finite(checkpoint, "the loss", loss)?;
    let unknown = tokenizer(checkpoint)?.unknown();
    let judged = (0..ids.len()).filter(|at| ids.counted(*at));
    let (all, unknown_tokens) =
        judged.fold((0, 0), |(all, lacking), at| (all + 1, lacking + usize::from(unknown == Some(ids.id(at)))));
    let why_no_bits_per_byte = match objective {
        Objective::Masked { .. } => Some("only the masked tokens are predicted"),
        Objective::NextToken if unknown_tokens > 0 => Some("text after unknown tokens is not predicted"),
        Objective::NextToken => None,
    };
    let found = TextScore {
        loss,
        perplexity,
        bits_per_byte: score.bits_per_byte(text.bytes as usize).filter(|_| why_no_bits_per_byte.is_none()),
        why_no_bits_per_byte,
        tokens: score.tokens,
        bytes: text.bytes as usize,
        context,
        unknown_tokens,
        unknown_share: unknown_tokens as f64 / all.max(1) as f64,
        unknown: text.unknown,
        entropy_floor: text
            .log_probability
            .filter(|_| why_no_bits_per_byte.is_none())
            .map(|p| -p / score.tokens as f64),
    };
    show::found(args.json, &found, &found.rows(objective, all))
}

/// A text's ids, what is known of it, and how its documents are cut into windows; of conversations the answers are
/// predicted alone.
fn read(source: &TextSource, checkpoint: &Checkpoint) -> Result<(Tokens, About, Documents)> {
    let tokenizer = tokenizer(checkpoint)?;
    let Some(chat) = source::worded(source.conversations())? else {
        let (ids, text) = source::worded(source.whole(tokenizer))?;
        return Ok((ids, text, Documents::default()));
    };
    if checkpoint.config.mask != Mask::Causal {
        bail!(limpid::Error::NeedsCausal);
    }
    let foreign = checkpoint.chat_template.as_deref().filter(|template| !is_template(template));
    let (ids, _) = chat.tokens(tokenizer, foreign)?;
    let answers: Vec<u32> = (0..ids.len()).filter(|i| ids.counted(*i)).map(|i| ids.id(i)).collect();
    let bytes = tokenizer.decode_bytes(&answers)?.len() as u64;
    let mut text = About::default();
    (text.bytes, text.unknown) = (bytes, chat.unknown(tokenizer));
    Ok((ids, text, Documents { whole: true, cross: false }))
}

impl TextScore {
    /// The lines to print; `all` tokens were judged.
    fn rows(&self, objective: Objective, all: usize) -> Vec<(&'static str, String)> {
        let [of, among] =
            if objective == Objective::NextToken { ["token", ""] } else { ["masked token", " of masked tokens"] };
        let bits = match (self.bits_per_byte, self.why_no_bits_per_byte) {
            (Some(bits), _) => format!("{bits:.4}"),
            (None, why) => format!("none: {}", why.unwrap_or_default()),
        };
        let mut rows = vec![
            ("loss", format!("{:.4} nats a {of}", self.loss)),
            ("perplexity", format!("{:.4}{among}", self.perplexity)),
            ("bits per byte", bits),
            ("tokens predicted", format!("{} in windows of {}", show::commas(self.tokens), self.context)),
            ("bytes", show::commas(self.bytes)),
        ];
        if self.unknown_tokens > 0 {
            let words: Vec<String> = self.unknown.iter().map(|word| format!("{word:?}")).collect();
            let some = if words.is_empty() { String::new() } else { format!(", such as {}", words.join(", ")) };
            let share = 100.0 * self.unknown_share;
            let what = format!(
                "{} of {} ({share:.1} %){some}: the model's vocabulary lacks them, and predicting `unknown` counts as \
                 right",
                show::commas(self.unknown_tokens),
                show::commas(all)
            );
            rows.push(("unknown tokens", what));
        }
        if let Some(floor) = self.entropy_floor {
            let above = self.loss - floor;
            let what = format!("{floor:.4} nats a token: no model can do better on this text ({above:.4} above it)");
            rows.push(("entropy floor", what));
        }
        rows
    }
}

/// How likely a continuation is: logarithms of each token's probability and their sum.
fn likelihood(args: &Args, lm: &Lm, prompt: &str, continuation: &str) -> Result<()> {
    if prompt == "-" && continuation == "-" {
        bail!(Usage("--prompt and --continuation cannot both be standard input".into()));
    }
    let tokenizer = tokenizer(files(lm))?;
    let prompt = prompt_ids(files(lm), &source::prompt(prompt)?).context("--prompt")?;
    let ids = tokenizer.encode(&source::prompt(continuation)?).context("--continuation")?;
    if ids.is_empty() {
        bail!("the continuation is empty: there is nothing to score");
    }
    let mut engine = lm.engine(&EngineLimits::new(lm.config(), 1, prompt.len() + ids.len()))?;
    let found = generate::score(&mut engine, &prompt, &ids)?;
    let pieces = tokenizer.pieces(&ids)?;
    let row =
        |(piece, log): (&String, &f64)| (format!("{piece:?}"), format!("{log:>10.4}  {:>6.2}%", 100.0 * log.exp()));
    let mut rows: Vec<(String, String)> = pieces.iter().zip(&found.log_probs).map(row).collect();
    rows.push((format!("all {}", ids.len()), format!("{:>10.4}  nats", found.total)));
    let facts = serde_json::json!({
        "log_probs": found.log_probs, "total": found.total, "tokens": ids, "pieces": pieces
    });
    show::found(args.json, &facts, &rows)
}

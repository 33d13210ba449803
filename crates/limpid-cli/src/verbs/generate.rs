//! `generate`: continue a prompt; or, with a bidirectional model, fill its masks.

use crate::machine::interrupt;
use crate::models::{self, WeightOptions, engine, needs_head, open, prompt_ids, template, tokenizer};
use crate::options::{MachineOptions, SamplingOptions, Usage};
use crate::{show, source};
use anyhow::{Context, Result, bail};
use limpid::checkpoint::Checkpoint;
use limpid::config::{Mask, Positions, RotaryKind};
use limpid::data::chat::{self, Message, Role};
use limpid::data::check_ids;
use limpid::engine::{EngineEvent, EngineRequest, RequestId};
use limpid::generate::{
    self, Candidate, Choice, FinishReason, GenerateError, GeneratedToken, Options, Overflow, Sample,
};
use limpid::model::Mode;
use limpid::receipt::Receipt;
use limpid::{Lm, files, trace};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

/// The most samples that are written side by side.
const SIDE_BY_SIDE: u64 = 8;

/// Generate text that continues a prompt, streaming; greedy with --temperature 0, else sampled.
///
/// Prints the prompt and the continuation; with --chat only the answer. A model trained on masked tokens fills every [MASK] of the
/// prompt instead.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    weights: WeightOptions,
    /// Text, @FILE, or - for standard input; a newline at the end of a file or of standard input is dropped
    #[arg(long, short, value_name = "TEXT", alias = "start")]
    prompt: Option<String>,
    /// Ask a model that was trained on conversations: text, @FILE or -, which is put into its chat template. The answer ends where
    /// the model ends it; `limpid chat` asks more than once
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["prompt", "tokens"])]
    chat: Option<String>,
    /// System message before the message of --chat
    #[arg(long, value_name = "TEXT", requires = "chat", conflicts_with_all = ["prompt", "tokens"])]
    system: Option<String>,
    /// Chat template, in Jinja, for --chat [default: the model's own]
    #[arg(long, value_name = "FILE", requires = "chat", conflicts_with_all = ["prompt", "tokens"], alias = "chat-template-file")]
    chat_template: Option<PathBuf>,
    /// Print only the continuation, not the prompt
    #[arg(long, alias = "no-display-prompt")]
    no_echo: bool,
    /// Token ids instead of a prompt: 1,2,3
    #[arg(long, value_name = "IDS", value_delimiter = ',', value_parser = models::ids, conflicts_with = "prompt")]
    tokens: Option<Vec<u32>>,
    /// Maximum number of tokens to generate
    #[arg(long, short = 'n', value_name = "N", default_value_t = 200, aliases = ["max-new-tokens", "n-predict"])]
    max_tokens: usize,
    #[command(flatten)]
    sampling: SamplingOptions,
    /// Samples to generate
    #[arg(long, value_name = "N", default_value_t = 1)]
    num_samples: u64,
    /// Reserve memory for this many positions; for models that learned no table of them [default: all]
    #[arg(long, value_name = "T", aliases = ["n-ctx", "ctx-size"], hide_short_help = true)]
    context_length: Option<usize>,
    /// When the context is full: slide-half drops the oldest half and continues, crop drops the oldest token before every new one and runs
    /// the rest again (slow), stop ends the sample [default: slide-half; with --chat stop, and a question that does not fit is refused]
    #[arg(long, value_name = "HOW", value_parser = overflow)]
    overflow: Option<Overflow>,
    /// Show how every token was chosen: the likeliest tokens with their ids, logits and probabilities, before temperature and
    /// top-k/top-p; with --json as `trace` of each sample
    #[arg(long)]
    trace: bool,
    /// Write a receipt of the samples to a new file: with the same model, `limpid replay` recomputes them on any machine, byte for byte
    #[arg(long, value_name = "FILE")]
    receipt: Option<PathBuf>,
    /// Print the samples as JSON on stdout
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    machine: MachineOptions,
}

fn overflow(s: &str) -> Result<Overflow, String> {
    match s.replace('_', "-").as_str() {
        "slide-half" => Ok(Overflow::SlideHalf),
        "crop" => Ok(Overflow::Crop),
        "stop" => Ok(Overflow::Stop),
        _ => Err("it is slide-half, crop or stop".into()),
    }
}

pub fn run(args: Args) -> Result<()> {
    let mut options = Options {
        max_tokens: args.max_tokens,
        sampler: args.sampling.sampler(),
        sample: 0,
        stop: args.sampling.stop.clone(),
        stop_at_end_of_text: true,
        skip_special_tokens: args.chat.is_some(),
        overflow: args.overflow.unwrap_or(if args.chat.is_some() { Overflow::Stop } else { Overflow::SlideHalf }),
        logit_bias: [].into(),
        trace: args.trace,
    };
    options.check()?;
    if args.num_samples == 0 {
        bail!(Usage("--num-samples is 0: it must be at least 1".into()));
    }
    // told before anything is written
    if let Some(file) = &args.receipt {
        if file.symlink_metadata().is_ok() {
            bail!("--receipt {}: there is such a file: choose another name", file.display());
        }
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
        if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
            bail!("--receipt {}: there is no folder {}", file.display(), folder.display());
        }
    }
    let mut checkpoint = args.weights.open(!args.machine.no_verify)?;
    needs_head(&checkpoint)?;
    if let Some(context) = args.context_length {
        let scaling = checkpoint.config.rotary_scaling;
        let own = &mut checkpoint.config.context_length;
        match checkpoint.config.positions {
            _ if !(1..=*own).contains(&context) => {
                bail!(Usage(format!("--context-length is {context}: this model has 1 to {own}")))
            }
            Positions::Rotary if (context..*own).contains(&scaling.context) && scaling.kind == RotaryKind::Longrope => {
                let original = scaling.context;
                bail!(
                    "this model's angles are those of texts of more than {original} tokens: its context cannot be shorter"
                )
            }
            Positions::Learned if context < *own => {
                bail!("this model's positions are a table of {own} rows: its context cannot be shortened")
            }
            _ => *own = context,
        }
    }
    let answers = checkpoint.chat_template.as_deref().is_some_and(chat::is_template);
    if answers && args.chat.is_none() && checkpoint.tokenizer.is_some() {
        options.stop.push(chat::END.into());
    }
    let mut text = String::new();
    let prompt = match (&args.tokens, &args.chat) {
        (Some(ids), _) => ids.clone(),
        (None, Some(message)) => {
            let template = template(&checkpoint, args.chat_template.as_deref())?;
            let tokenizer = tokenizer(&checkpoint)?;
            options.stop.extend(template.stops(tokenizer, &checkpoint.end_tokens()));
            let ids = template.ids(&asked(message, args.system.as_deref())?, tokenizer).context("--chat")?;
            let context = checkpoint.config.context_length;
            if options.overflow == Overflow::Stop && ids.len() > context {
                let tokens = show::plural(ids.len(), "token");
                bail!(
                    "--chat: the question has {tokens} in its template, and the model's context is {context}: ask less"
                );
            }
            ids
        }
        (None, None) => {
            let tokenizer = tokenizer(&checkpoint)?;
            text = args.prompt.as_deref().map(source::prompt).transpose()?.unwrap_or_default();
            match text.is_empty() {
                false => prompt_ids(&checkpoint, &text)?,
                true => generate::start_ids(tokenizer).ok_or(GenerateError::NoStart).context("--prompt")?,
            }
        }
    };
    if checkpoint.config.mask != Mask::Causal {
        if args.receipt.is_some() {
            bail!("this model fills masks: receipts are for models that continue a prompt");
        }
        return fill(&args, &checkpoint, &prompt);
    }
    if args.receipt.is_some() && !args.machine.device.device().is_exact() {
        bail!(Usage("--receipt needs --device cpu: other devices differ in the last digits".into()));
    }
    let positions = prompt.len().saturating_add(args.max_tokens);
    let sequences = args.num_samples.min(SIDE_BY_SIDE) as usize;
    let mut engine = engine(&checkpoint, &args.machine, (sequences, positions))?;
    let asked = interrupt()?;
    // those that are being written or wait for their turn, in order: the first is number `shown`
    let mut samples: VecDeque<Written> = VecDeque::new();
    let (mut submitted, mut shown) = (0, 0);
    let (mut broken, mut failed, mut cropped, mut cut) = (None, None, false, false);
    let (mut found, mut made) = (vec![], vec![]);
    let begin = |sample: u64| match args.json {
        true => Ok(()),
        false => show::out(if sample > 0 { "\n---------------\n" } else { "" })
            .and_then(|()| show::out(if args.no_echo { "" } else { &text })),
    };
    begin(0)?;
    while shown < args.num_samples
        && broken.is_none()
        && failed.is_none()
        && !(shown > 0 && asked.load(Ordering::Relaxed))
    {
        while submitted < args.num_samples && samples.len() < 4 * sequences {
            let options = Options { sample: submitted, ..options.clone() };
            let request = EngineRequest { prompt: prompt.clone(), options, log_probs: None, reuse: true };
            samples.push_back(Written { id: engine.submit(request)?, parts: vec![], choices: vec![], done: None });
            submitted += 1;
        }
        engine.round(&mut |id, event| {
            let sample = samples.iter_mut().find(|sample| sample.id == id).expect("it was asked for");
            match event {
                EngineEvent::Cropped { .. } => cropped = true,
                EngineEvent::Token { token: GeneratedToken { text, choice, .. }, .. } => {
                    match choice {
                        Some(choice) if args.json => sample.choices.push(choice),
                        Some(choice) => {
                            let others: Vec<String> = choice.candidates.iter().map(candidate).collect();
                            let (len, chosen) = (choice.input_len, candidate(&choice.chosen));
                            let line = format!("\ninput (1, {len}): {chosen}, of {}", others.join(", "));
                            sample.parts.push(Part::Choice(line));
                        }
                        None => {}
                    }
                    sample.parts.push(Part::Text(text));
                }
                EngineEvent::Done(written) => sample.done = Some(Ok(written)),
                EngineEvent::Failed(error) => sample.done = Some(Err(error)),
                EngineEvent::Prompt { .. } => {}
            }
            broken.is_none() && !asked.load(Ordering::Relaxed)
        })?;
        // samples are shown one after another
        while let Some(sample) = samples.front_mut().filter(|_| broken.is_none() && failed.is_none()) {
            for part in sample.parts.drain(..).filter(|_| !args.json) {
                match part {
                    Part::Text(text) => broken = show::out(&text).err().or(broken),
                    Part::Choice(line) => show::say(line),
                }
            }
            if sample.done.is_none() {
                break;
            }
            let Written { choices, done, .. } = samples.pop_front().expect("it is the first");
            shown += 1;
            match done.expect("it is done") {
                Err(error) => failed = Some(error),
                Ok(written) => {
                    cut |= written.finish_reason == FinishReason::Length && written.tokens.len() < args.max_tokens;
                    if checkpoint.tokenizer.is_none() && !args.json {
                        let ids: Vec<String> = written.tokens.iter().map(u32::to_string).collect();
                        show::out(&ids.join(","))?;
                    }
                    if args.json {
                        let mut one = serde_json::json!({ "text": written.text, "tokens": written.tokens, "finish_reason": written.finish_reason.name() });
                        if args.trace {
                            one["trace"] = choices.iter().map(explained).collect();
                        }
                        found.push(one);
                    }
                    // all of them are kept only for what is written at the end
                    made.extend(args.receipt.is_some().then_some(written));
                }
            }
            if asked.load(Ordering::Relaxed) {
                break;
            }
            if shown < args.num_samples && failed.is_none() {
                begin(shown)?;
            }
        }
    }
    if let Some(error) = broken {
        return Err(error);
    }
    if let Some(error) = failed {
        return Err(error.into());
    }
    let context = checkpoint.config.context_length;
    if let Some(file) = &args.receipt {
        let lm = Lm::from(checkpoint).with_precision(args.machine.precision).with_level(args.machine.level());
        let of = |(sample, made)| Receipt::new(&lm, &prompt, &Options { sample, ..options.clone() }, made);
        let receipts: Vec<Receipt> = (0..).zip(&made).map(of).collect::<Result<_, _>>()?;
        let text = match &receipts[..] {
            [one] => serde_json::to_string(one)?,
            all => serde_json::to_string(all)?,
        };
        files::replace(file, |beside| std::fs::write(beside, text + "\n"))
            .with_context(|| format!("the receipt {}", file.display()))?;
    }
    if args.json {
        return show::json(&serde_json::json!({ "prompt_tokens": prompt.len(), "samples": found }));
    }
    show::out("\n")?;
    if cropped {
        let (context, dropped) = (
            show::plural(context, "token"),
            match options.overflow {
                Overflow::Crop => "the oldest token",
                _ => "the older half",
            },
        );
        show::say(format_args!(
            "note: the model sees at most {context}: whenever they were full, {dropped} was dropped (--overflow stop ends there)"
        ));
    }
    if options.overflow == Overflow::Stop && cut {
        show::say(format_args!("note: the context of {} is full: the text ends there", show::plural(context, "token")));
    }
    if answers && args.chat.is_none() && args.tokens.is_none() && !chat::MARKERS.iter().any(|m| text.contains(m)) {
        show::say(
            "note: this model was trained on conversations: ask it with --chat TEXT, which uses its chat template",
        );
    }
    Ok(())
}

/// A sample that is being written.
struct Written {
    id: RequestId,
    /// What is not shown yet.
    parts: Vec<Part>,
    choices: Vec<Choice>,
    done: Option<Result<Sample, GenerateError>>,
}

/// What is shown of a sample: a piece of text, or how a token was chosen.
enum Part {
    Text(String),
    Choice(String),
}

/// A token that could have been chosen, in a line: `"jumps" (id 2, logit 5.812, 99.9%)`.
fn candidate(c: &Candidate) -> String {
    format!("{:?} (id {}, logit {:.3}, {:.1}%)", c.piece, c.token, c.logit, 100.0 * c.probability)
}

/// How a token was chosen, as JSON. `chance` is the sampler's probability.
fn explained(choice: &Choice) -> serde_json::Value {
    let one = |c: &Candidate| serde_json::json!({ "id": c.token, "piece": c.piece, "logit": c.logit, "probability": c.probability, "chance": c.chance });
    let candidates: Vec<_> = choice.candidates.iter().map(one).collect();
    serde_json::json!({ "input_len": choice.input_len, "chosen": one(&choice.chosen), "candidates": candidates })
}

/// A question as a conversation.
fn asked(message: &str, system: Option<&str>) -> Result<Vec<Message>> {
    if message == "-" && system == Some("-") {
        bail!(Usage("--chat and --system cannot both be standard input".into()));
    }
    let system =
        system.map(|text| anyhow::Ok(Message { role: Role::System, content: source::prompt(text)? })).transpose()?;
    let user = Message { role: Role::User, content: source::prompt(message)? };
    Ok(system.into_iter().chain([user]).collect())
}

/// What stands where a mask is: the likeliest tokens, and the prompt with the first of them put in.
fn fill(args: &Args, checkpoint: &Checkpoint, prompt: &[u32]) -> Result<()> {
    let tokenizer = tokenizer(checkpoint)?;
    let mask =
        tokenizer.special("[MASK]").context("the model predicts masked tokens, but its tokenizer has no [MASK]")?;
    let context = checkpoint.config.context_length;
    check_ids(prompt, checkpoint.config.vocab_size)?;
    if !prompt.contains(&mask) {
        bail!("this model fills masks: put [MASK] into the prompt where a token is wanted");
    }
    if prompt.len() > context {
        bail!("the prompt has {} tokens, the model's context_length is {context}: shorten it", prompt.len());
    }
    let (model, mut backend) = open(checkpoint, Mode::Inspect { batch: 1, context: prompt.len() }, &args.machine)?;
    let batch = trace::batch(&checkpoint.config, prompt, None, Some(mask))?;
    let filled = generate::fill(&model, &mut *backend, tokenizer, &batch, mask)?;
    let (text, found) = (filled.text, filled.masks);
    if args.json {
        let masks: Vec<_> =
            found.iter().map(|(n, best)| serde_json::json!({ "position": n, "candidates": best })).collect();
        let sample =
            serde_json::json!({ "text": text, "tokens": filled.tokens, "finish_reason": "filled", "masks": masks });
        return show::json(&serde_json::json!({ "prompt_tokens": prompt.len(), "samples": [sample] }));
    }
    let mut lines = format!("{text}\n");
    for (n, best) in found {
        let best: Vec<String> = best.iter().map(|(piece, p)| format!("{piece:?} {:.1}%", 100.0 * p)).collect();
        lines += &format!("  position {n}: {}\n", best.join(", "));
    }
    show::out(&lines)
}

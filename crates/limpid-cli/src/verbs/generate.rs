//! `generate`: continue a prompt; or, with a bidirectional model, fill its masks.

use crate::models::{
    self, InterventionOptions, WeightOptions, needs_head, on_machine, prompt_ids, template, tokenizer,
};
use crate::options::{MachineOptions, SamplingOptions, Usage};
use crate::signals::interrupt;
use crate::{show, source};
use anyhow::{Context, Result, bail};
use limpid::Lm;
use limpid::checkpoint::Checkpoint;
use limpid::config::{Config, Mask, Positions, RotaryKind};
use limpid::data::chat::{self, Message, Role};
use limpid::data::check_ids;
use limpid::engine::{Engine, EngineEvent, EngineLimits, EngineRequest, RequestId};
use limpid::generate::{
    self, Candidate, Choice, FinishReason, GenerateError, GeneratedToken, Options, Overflow, Sample,
};
use limpid::receipt::Receipt;
use limpid_base::files;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// The most samples that are written side by side.
const SIDE_BY_SIDE: u64 = 8;

/// Generate text that continues a prompt, streaming; greedy with --temperature 0, else sampled.
///
/// Prints the prompt and the continuation; with --chat only the answer. A model trained on masked tokens fills every
/// [MASK] of the prompt instead.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    weights: WeightOptions,
    /// Text, @FILE, or - for standard input; a newline at the end of a file or of standard input is dropped
    #[arg(long, short, value_name = "TEXT", alias = "start")]
    prompt: Option<String>,
    /// Ask a model that was trained on conversations: text, @FILE or -, which is put into its chat template. The answer
    /// ends where the model ends it; `limpid chat` asks more than once
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["prompt", "tokens"])]
    chat: Option<String>,
    /// System message before the message of --chat
    #[arg(long, value_name = "TEXT", requires = "chat", conflicts_with_all = ["prompt", "tokens"])]
    system: Option<String>,
    /// Chat template, in Jinja, for --chat [default: the model's own]
    #[arg(
        long, value_name = "FILE", requires = "chat", conflicts_with_all = ["prompt", "tokens"],
        alias = "chat-template-file"
    )]
    chat_template: Option<PathBuf>,
    /// Print only the continuation, not the prompt
    #[arg(long, alias = "no-display-prompt")]
    no_echo: bool,
    /// Token ids instead of a prompt: 1,2,3
    #[arg(long, value_name = "IDS", value_delimiter = ',', value_parser = models::ids, conflicts_with = "prompt")]
    tokens: Option<Vec<u32>>,
    /// Maximum number of tokens to generate [default: 200; with --intervene, no more than the context has room for]
    #[arg(long, short = 'n', value_name = "N", aliases = ["max-new-tokens", "n-predict"])]
    max_tokens: Option<usize>,
    #[command(flatten)]
    sampling: SamplingOptions,
    /// Samples to generate
    #[arg(long, value_name = "N", default_value_t = 1)]
    num_samples: u64,
    /// Reserve memory for this many positions; for models that learned no table of them [default: all]
    #[arg(long, value_name = "T", aliases = ["n-ctx", "ctx-size"], hide_short_help = true)]
    context_length: Option<usize>,
    /// When the context is full: slide-half drops the oldest half and continues, crop drops the oldest token before
    /// every new one and runs the rest again (slow), stop ends the sample [default: slide-half; with --chat stop, and a
    /// question that does not fit is refused]
    #[arg(long, value_name = "HOW")]
    overflow: Option<Overflow>,
    /// Show how every token was chosen: the likeliest tokens with their ids, logits and probabilities, before
    /// temperature and top-k/top-p; with --json as `trace` of each sample
    #[arg(long)]
    trace: bool,
    /// Write a receipt of the samples to a new file: with the same model, `limpid replay` recomputes them on any
    /// machine, byte for byte
    #[arg(long, value_name = "FILE")]
    receipt: Option<PathBuf>,
    /// Print the samples as JSON on stdout
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    changes: InterventionOptions,
    #[command(flatten)]
    machine: MachineOptions,
}

pub fn run(mut args: Args) -> Result<()> {
    let mut options = options(&args)?;
    // told before anything is written
    if let Some(file) = &args.receipt {
        check_receipt_place(file)?;
    }
    args.weights.refuse_text("generate", "--prompt")?;
    let mut checkpoint = args.weights.open(!args.machine.no_verify)?;
    needs_head(&checkpoint)?;
    if let Some(context) = args.context_length {
        shorten(&mut checkpoint.config, context)?;
    }
    let answers = checkpoint.chat_template.as_deref().is_some_and(chat::is_template);
    if answers && args.chat.is_none() && checkpoint.tokenizer.is_some() {
        options.stop.push(chat::END.into());
    }
    let (text, prompt) = prompt(&args, &checkpoint, &mut options)?;
    if checkpoint.config.mask != Mask::Causal {
        if args.receipt.is_some() {
            bail!("this model fills masks: receipts are for models that continue a prompt");
        }
        return fill(&args, &args.changes.apply(on_machine(checkpoint, &args.machine)?)?, &prompt);
    }
    if args.receipt.is_some() && !args.machine.device().is_exact() {
        bail!(Usage("--receipt needs --device cpu: other devices differ in the last digits".into()));
    }
    let lm = args.changes.apply(on_machine(checkpoint, &args.machine)?)?;
    if !lm.interventions().is_empty() && args.max_tokens.is_none() {
        let room = (lm.config().context_length + 1).saturating_sub(prompt.len());
        options.max_tokens = options.max_tokens.min(room.max(1));
    }
    let positions = prompt.len().saturating_add(options.max_tokens);
    let sequences = args.num_samples.min(SIDE_BY_SIDE) as usize;
    let mut engine = lm.engine(&EngineLimits::new(lm.config(), sequences, positions))?;
    let mut samples = Samples {
        args: &args,
        max_tokens: options.max_tokens,
        text: if args.no_echo { "" } else { &text },
        in_ids: lm.tokenizer().is_err(),
        ahead: 4 * sequences,
        written: VecDeque::new(),
        submitted: 0,
        shown: 0,
        cropped: false,
        cut: false,
        found: vec![],
        made: vec![],
    };
    samples.write(&mut engine, &prompt, &options, &*interrupt()?)?;
    if let Some(file) = &args.receipt {
        write_receipts(file, &lm, &prompt, &options, &samples.made)?;
    }
    if args.json {
        return show::json(&json!({ "prompt_tokens": prompt.len(), "samples": samples.found }));
    }
    show::out("\n")?;
    samples.say_what_was_full(lm.config().context_length, options.overflow);
    if answers && args.chat.is_none() && args.tokens.is_none() && !chat::MARKERS.iter().any(|m| text.contains(m)) {
        let mend = "ask it with --chat TEXT, which uses its chat template";
        show::say(format_args!("note: this model was trained on conversations: {mend}"));
    }
    Ok(())
}

/// How the prompt is to be continued.
fn options(args: &Args) -> Result<Options> {
    let options = Options {
        max_tokens: args.max_tokens.unwrap_or(200),
        sampler: args.sampling.sampler(),
        stop: args.sampling.stop.clone(),
        skip_special_tokens: args.chat.is_some(),
        overflow: args.overflow.unwrap_or(if args.chat.is_some() { Overflow::Stop } else { Overflow::SlideHalf }),
        trace: args.trace,
        ..Options::default()
    };
    options.check()?;
    if args.num_samples == 0 {
        bail!(Usage("--num-samples is 0: it must be at least 1".into()));
    }
    Ok(options)
}

/// Refuses a file whose folder is not there.
fn check_receipt_place(file: &Path) -> Result<()> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
        bail!("--receipt {}: there is no folder {}", file.display(), folder.display());
    }
    Ok(())
}

/// Leaves a model with fewer positions, where it has no table of them.
fn shorten(config: &mut Config, context: usize) -> Result<()> {
    let (own, scaling) = (config.context_length, config.rotary_scaling);
    if !(1..=own).contains(&context) {
        bail!(Usage(format!("--context-length is {context}: this model has 1 to {own}")));
    }
    match config.positions {
        Positions::Rotary if (context..own).contains(&scaling.context) && scaling.kind == RotaryKind::Longrope => {
            let most = scaling.context;
            bail!("this model's angles are those of texts of more than {most} tokens: its context cannot be shorter")
        }
        Positions::Learned if context < own => {
            bail!("this model's positions are a table of {own} rows: its context cannot be shortened")
        }
        _ => config.context_length = context,
    }
    Ok(())
}

/// What is continued: its text, if it is one that is shown, and its ids.
fn prompt(args: &Args, checkpoint: &Checkpoint, options: &mut Options) -> Result<(String, Vec<u32>)> {
    if let Some(ids) = &args.tokens {
        return Ok((String::new(), ids.clone()));
    }
    if let Some(message) = &args.chat {
        let template = template(checkpoint, args.chat_template.as_deref())?;
        let tokenizer = tokenizer(checkpoint)?;
        options.stop.extend(template.stops(tokenizer, &checkpoint.end_tokens()));
        let ids = template.ids(&asked(message, args.system.as_deref())?, tokenizer).context("--chat")?;
        let context = checkpoint.config.context_length;
        if options.overflow == Overflow::Stop && ids.len() > context {
            let tokens = show::plural(ids.len(), "token");
            bail!(
                "--chat: the question has {tokens} in its template, and the model's context is {context}: ask a \
                 shorter question"
            );
        }
        return Ok((String::new(), ids));
    }
    let tokenizer = tokenizer(checkpoint)?;
    let text = args.prompt.as_deref().map(source::prompt).transpose()?.unwrap_or_default();
    let ids = if text.is_empty() {
        generate::start_ids(tokenizer).ok_or(GenerateError::NoStart).context("--prompt")?
    } else {
        prompt_ids(checkpoint, &text)?
    };
    Ok((text, ids))
}

/// A file of the receipts of samples.
fn write_receipts(file: &Path, lm: &Lm, prompt: &[u32], options: &Options, made: &[Sample]) -> Result<()> {
    let of = |(sample, made)| Receipt::new(lm, prompt, &Options { sample, ..options.clone() }, made);
    let receipts: Vec<Receipt> = (0..).zip(made).map(of).collect::<Result<_, _>>()?;
    let text = match &receipts[..] {
        [one] => serde_json::to_string(one)?,
        all => serde_json::to_string(all)?,
    };
    files::replace(file, |beside| std::fs::write(beside, text + "\n"))
        .with_context(|| format!("the receipt {}", file.display()))
}

/// Samples that are written side by side and shown one after another.
struct Samples<'a> {
    args: &'a Args,
    max_tokens: usize,
    /// What is shown before each.
    text: &'a str,
    /// Whether there are ids to show, and no text.
    in_ids: bool,
    /// How many are asked for at once.
    ahead: usize,
    /// Those that are being written or wait for their turn, in order: the first is number `shown`.
    written: VecDeque<Written>,
    submitted: u64,
    shown: u64,
    /// Whether tokens were dropped because the context was full, and whether a sample ended there.
    cropped: bool,
    cut: bool,
    /// All of them as JSON, and as receipts need them, if that is asked for.
    found: Vec<Value>,
    made: Vec<Sample>,
}

impl Samples<'_> {
    fn write(&mut self, engine: &mut Engine, prompt: &[u32], options: &Options, stop: &AtomicBool) -> Result<()> {
        let stopped = || stop.load(Ordering::Relaxed);
        while self.shown < self.args.num_samples && !(self.shown > 0 && stopped()) {
            while self.submitted < self.args.num_samples && self.written.len() < self.ahead {
                let options = Options { sample: self.submitted, ..options.clone() };
                let request =
                    EngineRequest { prompt: prompt.to_vec(), options, log_probs: None, reuse: true, steps: None };
                let id = engine.submit(request)?; // or it is refused, before anything is shown
                if self.submitted == 0 {
                    self.begin()?;
                }
                self.written.push_back(Written { id, parts: vec![], choices: vec![], done: None });
                self.submitted += 1;
            }
            engine.round(&mut |id, event| {
                self.hear(id, event);
                !stopped()
            })?;
            self.show(&stopped)?;
        }
        Ok(())
    }

    /// What stands before the next sample.
    fn begin(&self) -> Result<()> {
        if self.args.json {
            return Ok(());
        }
        show::out(if self.shown > 0 { "\n---------------\n" } else { "" })?;
        show::out(self.text)
    }

    fn hear(&mut self, id: RequestId, event: EngineEvent) {
        let sample = self.written.iter_mut().find(|sample| sample.id == id).expect("it was asked for");
        match event {
            EngineEvent::Cropped { .. } => self.cropped = true,
            EngineEvent::Token { token: GeneratedToken { text, choice, .. }, .. } => {
                match choice {
                    Some(choice) if self.args.json => sample.choices.push(choice),
                    Some(choice) => {
                        let others: Vec<String> = choice.candidates.iter().map(candidate).collect();
                        let len = choice.input_len;
                        let chosen = candidate(&choice.chosen);
                        let line = format!("\ninput (1, {len}): {chosen}, of {}", others.join(", "));
                        sample.parts.push(Shown::Choice(line));
                    }
                    None => {}
                }
                sample.parts.push(Shown::Text(text));
            }
            EngineEvent::Done(written) => sample.done = Some(Ok(written)),
            EngineEvent::Failed(error) => sample.done = Some(Err(error)),
            EngineEvent::Prompt { .. } => {}
        }
    }

    /// Shows what was written of the first sample and, where it is done, of those after it.
    fn show(&mut self, stopped: &dyn Fn() -> bool) -> Result<()> {
        while let Some(sample) = self.written.front_mut() {
            for part in sample.parts.drain(..).filter(|_| !self.args.json) {
                match part {
                    Shown::Text(text) => show::out(&text)?,
                    Shown::Choice(line) => show::say(line),
                }
            }
            if sample.done.is_none() {
                return Ok(());
            }
            let Written { choices, done, .. } = self.written.pop_front().expect("it is the first");
            self.shown += 1;
            self.end(done.expect("it is done")?, &choices)?;
            if stopped() {
                return Ok(());
            }
            if self.shown < self.args.num_samples {
                self.begin()?;
            }
        }
        Ok(())
    }

    fn end(&mut self, sample: Sample, choices: &[Choice]) -> Result<()> {
        let Sample { tokens, text, finish_reason, .. } = &sample;
        self.cut |= *finish_reason == FinishReason::Length && tokens.len() < self.max_tokens;
        if self.in_ids && !self.args.json {
            let ids: Vec<String> = tokens.iter().map(u32::to_string).collect();
            show::out(&ids.join(","))?;
        }
        if self.args.json {
            let mut one = json!({ "text": text, "tokens": tokens, "finish_reason": finish_reason.name() });
            if self.args.trace {
                one["trace"] = json!(choices);
            }
            self.found.push(one);
        }
        // all of them are kept only for what is written at the end
        self.made.extend(self.args.receipt.is_some().then_some(sample));
        Ok(())
    }

    fn say_what_was_full(&self, context: usize, overflow: Overflow) {
        let context = show::plural(context, "token");
        if self.cropped {
            let dropped = if overflow == Overflow::Crop { "the oldest token" } else { "the older half" };
            show::say(format_args!(
                "note: the model sees at most {context}: each time they were full, {dropped} was dropped (--overflow \
                 stop ends there)"
            ));
        }
        if overflow == Overflow::Stop && self.cut {
            show::say(format_args!("note: the context of {context} is full: the text ends there"));
        }
    }
}

/// A sample that is being written.
struct Written {
    id: RequestId,
    /// What is not shown yet.
    parts: Vec<Shown>,
    choices: Vec<Choice>,
    done: Option<Result<Sample, GenerateError>>,
}

/// What is shown of a sample: a piece of text, or how a token was chosen.
enum Shown {
    Text(String),
    Choice(String),
}

/// A token that could have been chosen, in a line: `"jumps" (id 2, logit 5.812, 99.9%)`.
fn candidate(c: &Candidate) -> String {
    format!("{:?} (id {}, logit {:.3}, {:.1}%)", c.piece, c.token, c.logit, 100.0 * c.probability)
}

/// A question as a conversation.
fn asked(message: &str, system: Option<&str>) -> Result<Vec<Message>> {
    if message == "-" && system == Some("-") {
        bail!(Usage("--chat and --system cannot both be standard input".into()));
    }
    let said = system.map(|text| (Role::System, text)).into_iter().chain([(Role::User, message)]);
    said.map(|(role, text)| Ok(Message { role, content: source::prompt(text)? })).collect()
}

/// What stands where a mask is: the likeliest tokens, and the prompt with the first of them put in.
fn fill(args: &Args, lm: &Lm, prompt: &[u32]) -> Result<()> {
    let (mask, context) = (lm.mask_token()?, lm.config().context_length);
    check_ids(prompt, lm.config().vocab_size)?;
    if !prompt.contains(&mask) {
        bail!("this model fills masks: put [MASK] into the prompt where a token is missing");
    }
    if prompt.len() > context {
        bail!("the prompt has {} tokens, the model's context_length is {context}: shorten it", prompt.len());
    }
    let filled = lm.fill_ids(prompt)?;
    let (text, found) = (filled.text, filled.masks);
    if args.json {
        let masks: Vec<_> = found.iter().map(|(n, best)| json!({ "position": n, "candidates": best })).collect();
        let sample = json!({ "text": text, "tokens": filled.tokens, "finish_reason": "filled", "masks": masks });
        return show::json(&json!({ "prompt_tokens": prompt.len(), "samples": [sample] }));
    }
    let mut lines = format!("{text}\n");
    for (n, best) in found {
        let best: Vec<String> = best.iter().map(|(piece, p)| format!("{piece:?} {:.1}%", 100.0 * p)).collect();
        lines += &format!("  position {n}: {}\n", best.join(", "));
    }
    show::out(&lines)
}

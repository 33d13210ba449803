//! `chat`: a conversation in the terminal, or line by line through a pipe.

use crate::models::{InterventionOptions, WeightOptions, needs_head, sharing, template};
use crate::options::{Interrupted, MachineOptions, SamplingOptions};
use crate::outputs::{Output, OutputKind};
use crate::signals::interrupted_answer;
use crate::{show, source};
use anyhow::{Context, Result, bail};
use limpid::Lm;
use limpid::backend::BackendError;
use limpid::config::Mask;
use limpid::data::chat::{Message, Role};
use limpid::data::template::ChatTemplate;
use limpid::engine::{Engine, EngineEvent, EngineLimits, EngineRequest};
use limpid::generate::{FinishReason, Options, Overflow, Sample, Sampler};
use limpid_base::files;
use serde_json::json;
#[cfg(not(feature = "chat"))]
use std::io::BufRead;
use std::io::IsTerminal;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Talk to a model that was trained on conversations.
///
/// In a terminal, lines can be edited, Ctrl-C stops an answer, Ctrl-D or /exit ends, and /help lists commands. Through
/// a pipe each line is a message; the answers are on stdout. The model sees the whole conversation; when its context is
/// full, it says so.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    weights: WeightOptions,
    /// System message before the conversation
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Chat template, in Jinja [default: the model's own]
    #[arg(long, value_name = "FILE", alias = "chat-template-file")]
    chat_template: Option<PathBuf>,
    /// Maximum number of tokens of an answer [default: as many as fit the context]
    #[arg(
        long, short = 'n', value_name = "N", value_parser = clap::value_parser!(u64).range(1..),
        aliases = ["max-new-tokens", "n-predict"]
    )]
    max_tokens: Option<u64>,
    #[command(flatten)]
    sampling: SamplingOptions,
    /// Print each answer as a line of JSON on stdout
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    changes: InterventionOptions,
    #[command(flatten)]
    machine: MachineOptions,
}

const HELP: &str = "\
/reset            begin a new conversation; the system message stays
/system TEXT      the system message; without TEXT there is none
/temperature X    sampling temperature; 0 takes the likeliest token
/save FILE        add the conversation to FILE as a line of JSON, as `limpid train --data` reads it
/exit             end the program (so do Ctrl-D, q, quit and exit)
/help             these lines
Ctrl-C stops an answer. To send a message that begins with /, type a space before it.";

/// Bytes of a message: more than any context has room for.
const LONGEST: usize = 16 << 20;

/// Lines that end a conversation at a terminal: nobody says them to a model.
const LEAVES: [&str; 3] = ["q", "quit", "exit"];

/// A conversation under way.
struct Talk {
    lm: Lm,
    engine: Engine,
    template: ChatTemplate,
    options: Options,
    system: Option<Message>,
    messages: Vec<Message>,
    stop: Arc<AtomicBool>,
    json: bool,
    /// The files that it reads.
    inputs: Vec<PathBuf>,
}

pub fn run(mut args: Args) -> Result<()> {
    args.weights.refuse_text("generate", "--chat")?;
    let checkpoint = args.weights.open(!args.machine.no_verify)?;
    let path = checkpoint.path.display().to_string();
    let mut inputs = args.weights.adapter.clone();
    inputs.extend([Some(checkpoint.path.clone()), args.chat_template.clone()].into_iter().flatten());
    needs_head(&checkpoint)?;
    if checkpoint.config.mask != Mask::Causal {
        bail!("{path} fills masks and does not answer: `limpid generate` shows what it puts in");
    }
    let template = template(&checkpoint, args.chat_template.as_deref())?;
    let lm = args.changes.apply(sharing(checkpoint, &args.machine)?)?;
    let stop = [args.sampling.stop.clone(), lm.chat_stops(&template)?].concat();
    let options = Options {
        max_tokens: args.max_tokens.map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(usize::MAX)),
        sampler: args.sampling.sampler(),
        stop,
        skip_special_tokens: true,
        overflow: Overflow::Stop,
        ..Options::default()
    };
    options.check()?;
    let engine = lm.engine(&EngineLimits::new(lm.config(), 1, lm.config().context_length))?;
    let system = args.system.map(|content| Message { role: Role::System, content });
    let messages = vec![];
    let stop = interrupted_answer()?;
    let mut talk = Talk { lm, engine, template, options, system, messages, stop, json: args.json, inputs };
    if !std::io::stdin().is_terminal() {
        let too_long = format!("{}, the most that a message may have", show::bytes(LONGEST as u64));
        return source::lines(&mut std::io::stdin().lock(), "standard input", (LONGEST, &too_long), |line, _| {
            match talk.takes(line)? {
                Line::Answered => talk.spaced("\n")?,
                Line::Taken => {}
                Line::End => return Ok(ControlFlow::Break(())),
            }
            Ok(ControlFlow::Continue(()))
        });
    }
    show::prose(format_args!("{path}: {}. /help lists the commands, Ctrl-D ends", talk.lm.config()));
    let mut input = Input::new()?;
    loop {
        match input.line() {
            Ok(Some(line)) if LEAVES.contains(&line.trim()) => return Ok(()),
            Ok(Some(line)) => match talk.takes(&line) {
                Ok(Line::Answered) => talk.spaced("\n\n")?,
                Ok(Line::Taken) => {}
                Ok(Line::End) => return Ok(()),
                Err(error) if ends(&error) => return Err(error),
                Err(error) => show::prose(format_args!("{error:#}")),
            },
            ended if std::io::stdin().is_terminal() => return ended.map(drop),
            // a closed terminal gives an end or an error, and is no terminal any more
            Ok(_) | Err(_) => bail!(Interrupted("the terminal was closed")),
        }
    }
}

/// Whether no further line can be answered.
fn ends(error: &anyhow::Error) -> bool {
    error.is::<BackendError>() || error.is::<Interrupted>() || show::is_closed_pipe(error)
}

/// What became of a line.
enum Line {
    /// An answer was shown.
    Answered,
    /// A command was done, or there was nothing to do.
    Taken,
    /// It ends the conversation.
    End,
}

impl Talk {
    /// A line that was typed: a command or a message.
    fn takes(&mut self, line: &str) -> Result<Line> {
        let line = line.trim_end_matches(['\r', '\n']);
        let Some(command) = line.strip_prefix('/') else {
            return if line.trim().is_empty() { Ok(Line::Taken) } else { self.answers(line).map(|()| Line::Answered) };
        };
        let (name, value) = command.split_once(' ').unwrap_or((command, ""));
        let value = value.trim();
        match name {
            "help" => HELP.lines().for_each(show::prose),
            "exit" | "quit" | "bye" => return Ok(Line::End),
            "reset" => {
                self.messages.clear();
                show::say("a new conversation");
            }
            "system" => {
                self.system = (!value.is_empty()).then(|| Message { role: Role::System, content: value.into() });
                show::say(if value.is_empty() { "no system message" } else { "the system message is set" });
            }
            "temperature" => {
                let Ok(temperature) = value.parse() else {
                    bail!("/temperature takes a number, 0 or more, found {value:?}")
                };
                let sampler = Sampler { temperature, ..self.options.sampler };
                sampler.check()?;
                self.options.sampler = sampler;
                show::say(format_args!("the temperature is {temperature}"));
            }
            "save" if !value.is_empty() => self.save(Path::new(value))?,
            "save" => bail!("/save takes the name of a file"),
            _ => bail!(
                "there is no command /{name}: /help lists them; a message that begins with / needs a blank before it"
            ),
        }
        Ok(Line::Taken)
    }

    /// The conversation with its system message.
    fn conversation(&self) -> Vec<Message> {
        self.system.iter().chain(&self.messages).cloned().collect()
    }

    /// Shows the answer to a message. One that cannot be answered is not part of the conversation.
    fn answers(&mut self, text: &str) -> Result<()> {
        let before = self.messages.len();
        self.messages.push(Message { role: Role::User, content: text.into() });
        let written = self.written();
        match &written {
            Ok(Sample { text, finish_reason, .. }) if !text.is_empty() || *finish_reason != FinishReason::Cancelled => {
                self.messages.push(Message { role: Role::Assistant, content: text.clone() });
            }
            _ => self.messages.truncate(before),
        }
        written.map(drop)
    }

    fn written(&mut self) -> Result<Sample> {
        let prompt = self.lm.chat_ids(&self.template, &self.conversation())?;
        let context = self.lm.config().context_length;
        if prompt.len() > context {
            let tokens = show::plural(prompt.len(), "token");
            bail!(
                "the conversation has {tokens} with this message, and the model's context is {context}: /reset begins \
                 a new one, or write less"
            );
        }
        let prompt_tokens = prompt.len();
        let mut cached_tokens = 0;
        self.stop.store(false, Ordering::Relaxed);
        self.engine.submit(EngineRequest {
            prompt,
            options: self.options.clone(),
            log_probs: None,
            reuse: true,
            steps: None,
        })?;
        // asked the same again, the draws are others
        self.options.sample += 1;
        let mut done = None;
        let mut broken = None;
        let mut more = true;
        while more {
            more = self.engine.round(&mut |_, event| {
                match event {
                    EngineEvent::Token { token, .. } if !self.json => broken = show::out(&token.text).err(),
                    EngineEvent::Prompt { cached, .. } => cached_tokens = cached,
                    EngineEvent::Done(sample) => done = Some(Ok(sample)),
                    EngineEvent::Failed(error) => done = Some(Err(error)),
                    EngineEvent::Token { .. } | EngineEvent::Cropped { .. } => {}
                }
                broken.is_none() && !self.stop.load(Ordering::Relaxed)
            })?;
        }
        if let Some(error) = broken {
            return Err(error);
        }
        let sample = done.context("the engine ended without an answer")??;
        let tokens = sample.tokens.len();
        if self.json {
            show::json(
                &json!({ "content": sample.text, "finish_reason": sample.finish_reason.name(), "tokens": tokens,
                "prompt_tokens": prompt_tokens, "cached_tokens": cached_tokens }),
            )?;
        }
        let why = match sample.finish_reason {
            FinishReason::Length if tokens < self.options.max_tokens => {
                format!("the context of {context} tokens is full: /reset begins a new conversation")
            }
            FinishReason::Length => {
                format!("the answer has {} and was stopped (--max-tokens)", show::plural(tokens, "token"))
            }
            FinishReason::Cancelled if !sample.text.is_empty() => {
                "stopped: what was written stays in the conversation".into()
            }
            _ => return Ok(sample),
        };
        show::prose(format_args!("\nnote: {why}"));
        Ok(sample)
    }

    /// Ends an answer that was shown as text.
    fn spaced(&self, end: &str) -> Result<()> {
        if self.json { Ok(()) } else { show::out(end) }
    }

    /// Adds the conversation to a file of conversations.
    fn save(&self, file: &Path) -> Result<()> {
        if self.messages.is_empty() {
            bail!("there is nothing to save yet");
        }
        let (kind, inputs) = (OutputKind::Chat, &self.inputs);
        Output { flag: "/save", path: file, kind, force: None, inputs }.check()?;
        let messages: Vec<_> =
            self.conversation().iter().map(|m| json!({ "role": m.role.name(), "content": m.content })).collect();
        let line = json!({ "messages": messages }).to_string();
        let mut text =
            if file.exists() { limpid::data::read_text(file, limpid::data::source::HELD)? } else { String::new() };
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        files::replace(file, |beside| std::fs::write(beside, text + &line + "\n"))
            .with_context(|| file.display().to_string())?;
        show::say(format_args!("saved as a line of {}", file.display()));
        Ok(())
    }
}

/// Lines that are typed at a terminal.
#[cfg(feature = "chat")]
struct Input(rustyline::DefaultEditor);

#[cfg(feature = "chat")]
impl Input {
    fn new() -> Result<Input> {
        use rustyline::config::Behavior;
        // answers may go elsewhere: what is typed is shown on the terminal
        let terminal = if show::terminal() { Behavior::Stdio } else { Behavior::PreferTerm };
        let config = rustyline::Config::builder().behavior(terminal).auto_add_history(true).build();
        Ok(Input(rustyline::DefaultEditor::with_config(config)?))
    }

    /// The next line; none at the end. Ctrl-C gives an empty one.
    fn line(&mut self) -> Result<Option<String>> {
        use rustyline::error::ReadlineError;
        match self.0.readline("> ") {
            Ok(line) => Ok(Some(line)),
            Err(ReadlineError::Interrupted) => {
                show::say("Ctrl-D ends, /help lists the commands");
                Ok(Some(String::new()))
            }
            Err(ReadlineError::Eof) => Ok(None),
            Err(error) => Err(error).context("the terminal"),
        }
    }
}

/// Without the feature `chat`: as the terminal gives them.
#[cfg(not(feature = "chat"))]
struct Input;

#[cfg(not(feature = "chat"))]
impl Input {
    fn new() -> Result<Input> {
        Ok(Input)
    }

    fn line(&mut self) -> Result<Option<String>> {
        show::say(">");
        let mut line = String::new();
        let read = std::io::stdin().lock().read_line(&mut line).context("standard input")?;
        Ok((read > 0).then_some(line))
    }
}

//! `train`: from text to a model directory.

use super::doctor::READINGS;
use super::{peak_rss, program, trainable};
use crate::dashboard::{self, Dashboard, Now};
use crate::options::{self, Asked, DataOptions, Interrupted, MachineOptions, ModelOptions, TuningOptions, Usage};
use crate::show::{self, Progress};
use crate::source::{self, NEEDS_CAUSAL};
use anyhow::{Context, Result, bail};
use limpid::backend::cpu::roof::Roof;
use limpid::checkpoint::{CHAT_TEMPLATE, Checkpoint, adapter};
use limpid::config::{Config, Mask, Preset};
use limpid::data::chat::{MARKERS, is_template, template};
use limpid::data::source::{About, Corpus};
use limpid::data::{Batches, Objective, Tokens};
use limpid::model::Model;
use limpid::model::again::Keep;
use limpid::ops::linear::Precision;
use limpid::tokenizer::Tokenizer;
use limpid::train::folder::{self, Found};
use limpid::train::{Control, Event, RECENT, Recipe, Run, RunOptions, RunSettings, Summary, TrainError, Trainer};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Train a model, or go on from one (--from).
///
/// With no flags: the built-in stories, preset `nano`, about half a minute on two cores. Every flag is also a key of
/// a --config file and an environment variable (LIMPID_STEPS=100, LIMPID_CONFIG=FILE): file < environment < flag.
#[derive(clap::Args, Clone, Debug)]
#[group(id = "train")]
pub struct Args {
    /// A file, folder or pattern of text, JSON lines and parquet (also .gz, .zst), a folder of `data prepare`, llm.c's .bin,
    /// conversations (JSON lines), - for standard input, or builtin:stories (builtin:stories:20M for more)
    #[arg(long, value_name = "FILE|DIR", default_value = "builtin:stories", alias = "dataset")]
    pub data: String,
    /// bpe (byte pairs learned from the text; bpe:SIZE for so many), char, word, gpt2, cl100k_base, o200k_base or a tokenizer.json [default: bpe, or what suits the preset]
    #[arg(long, value_name = "NAME")]
    pub tokenizer: Option<String>,
    /// Where the model goes [default: runs/PRESET-TIME]
    #[arg(long, value_name = "DIR", aliases = ["out-dir", "output-dir"])]
    pub out: Option<PathBuf>,
    /// Train into --out although it holds something else: its model, if it has one, is replaced
    #[arg(long, requires = "out", conflicts_with = "resume", hide_short_help = true)]
    pub force: bool,
    /// Go on with a run: its folder, or `auto` for the newest (or for --out, if it has begun)
    #[arg(long, value_name = "auto|DIR", aliases = ["resume-from-checkpoint"])]
    pub resume: Option<String>,
    /// Go on from the state kept after step N (--keep) instead of the last
    #[arg(long, value_name = "N", requires = "resume", hide_short_help = true)]
    pub resume_step: Option<u64>,
    /// Look for a learning rate: short trainings at several, and what they end with. Nothing is written
    #[arg(long, alias = "find-lr", conflicts_with = "resume", hide_short_help = true)]
    pub find_rate: bool,
    /// Read settings from a TOML or JSON file
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Train within this much memory (2G, 800M, 1.5GiB): what does not fit is computed again; results stay the same
    #[arg(long, value_name = "SIZE", value_parser = options::bytes)]
    pub memory: Option<u64>,
    /// Tokens of the sample at the end; 0 for none
    #[arg(long, value_name = "N", default_value_t = 120, hide_short_help = true)]
    pub sample: usize,
    /// Watch the run: curves and numbers, drawn anew as they come; q saves and stops
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", hide_default_value = true, hide_possible_values = true)]
    pub ui: bool,
    /// Put the summary on stdout as JSON, and nothing else
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub tuning: TuningOptions,
    #[command(flatten)]
    pub reading: DataOptions,
    #[command(flatten)]
    pub model: ModelOptions,
    #[command(flatten)]
    pub recipe: Asked<Recipe>,
    #[command(flatten)]
    pub run: Asked<RunOptions>,
    #[command(flatten)]
    pub machine: MachineOptions,
}

/// Everything that is decided before memory is reserved.
pub struct Job {
    /// The preset it began from.
    pub name: String,
    /// The model.
    pub config: Config,
    /// The recipe.
    pub recipe: Recipe,
    /// How the run is carried out.
    pub options: RunOptions,
    /// The text.
    pub text: About,
    /// What there is to say of it.
    pub said: Option<String>,
    /// How its conversations are written, if it has or had any.
    pub chat_template: Option<String>,
    /// Its tokenizer.
    pub tokenizer: Tokenizer,
    /// The tokenizer's name as asked for.
    pub tokenizer_name: String,
    /// Ids to train on.
    pub train: Tokens,
    /// Ids to judge by.
    pub validation: Tokens,
    /// What is asked of the model.
    pub objective: Objective,
    /// The built list.
    pub model: Model,
    /// The model that it begins from; none where all weights come from a state.
    pub base: Option<Checkpoint>,
    /// Bytes that the process holds beside it.
    pub program: u64,
}

impl Job {
    /// A trainer with the weights it begins from.
    pub fn trainer(&self, machine: &MachineOptions) -> Result<Trainer> {
        let cpu = Box::new(machine.cpu(&self.model)?);
        Ok(match &self.base {
            Some(base) => Trainer::from(base, self.model.clone(), cpu, self.recipe)?,
            None => Trainer::new(self.model.clone(), cpu, self.recipe)?,
        })
    }
}

impl Args {
    /// Reads the text and fits model and recipe to it; used by `train`, `plan` and `check`.
    pub fn job(&self) -> Result<Job> {
        super::room::for_text(self.machine.threads())?;
        let (base, given) = self.base()?;
        let (name, mut config, usual) = match (&given, &self.tuning.from) {
            (Some(given), Some(from)) => {
                let config = self.model.config_of(from, given)?;
                let mut usual = RunSettings::fine_tuning(&config, self.tuning.lora.is_some());
                usual.recipe.context = self.model.over(given)?.context_length.min(usual.recipe.context);
                let name = Path::new(from).file_stem().map_or(from.clone(), |name| name.to_string_lossy().into());
                (name, config, usual)
            }
            _ => {
                let name = self.model.name().to_string();
                let usual = RunSettings::preset(&name)?;
                (name, self.model.config()?, usual)
            }
        };
        let (mut recipe, options) = (self.recipe.over(&usual.recipe)?, self.run.over(&usual.options)?);
        RunSettings { recipe, options }.check()?;
        let mut text = source::source(&self.data, &self.reading, self.machine.threads());
        text.val_fraction = recipe.val_fraction;
        let chat = source::worded(text.conversations())?;
        let masked = config.mask != Mask::Causal;
        if masked && chat.is_some() {
            bail!("{NEEDS_CAUSAL}");
        }
        let saved = self.resumed().map(|folder| folder.join("tokenizer.json")).filter(|path| path.exists());
        let own = base.as_ref().and_then(|base| base.tokenizer.clone());
        if let (Some(own), Some(_), None) = (&own, &self.tokenizer, &saved) {
            bail!(Usage(format!("--tokenizer cannot be chosen: the model comes with its own, {}", own.name())));
        }
        if let (Some(base), None, None) = (&base, &own, &self.tokenizer) {
            bail!("{} has no tokenizer: name its own with --tokenizer NAME|FILE", base.path.display());
        }
        let decided = saved.map(Tokenizer::load).transpose()?.or(own.clone());
        text.tokenizer.clone_from(&self.tokenizer);
        let default = default_tokenizer(&self.data, &name);
        text.default_tokenizer = decided.as_ref().map_or(default, Tokenizer::name).into();
        text.decided = decided;
        let specials: &[&str] = match &chat {
            _ if masked => &["[MASK]"],
            Some(_) => &MARKERS,
            None => &[],
        };
        text.specials = specials.iter().map(|token| token.to_string()).collect();
        let corpus = match &chat {
            Some(chat) => chat.corpus(&text),
            None => text.read(),
        };
        let Corpus { about: text, tokenizer, tokenizer_name: chosen, train, validation, .. } = source::worded(corpus)?;
        match &given {
            None => config.vocab_size = tokenizer.vocab_size(),
            Some(given) if tokenizer.vocab_size() > given.vocab_size => bail!(
                "the tokenizer {chosen} has {} tokens, the model's vocab_size is {}: they do not belong together",
                tokenizer.vocab_size(),
                given.vocab_size
            ),
            Some(_) => {}
        }
        let objective = if masked {
            let mask = tokenizer.special("[MASK]").with_context(|| {
                format!("the tokenizer {chosen} has no [MASK] token, which training on masked tokens needs: use --tokenizer word or char")
            })?;
            Objective::Masked { mask, vocab_size: tokenizer.vocab_size(), segments: config.n_segment > 0 }
        } else {
            Objective::NextToken
        };
        if chat.is_some() {
            recipe.whole_documents |= !self.recipe.has("whole_documents");
            recipe.cross_documents &= self.recipe.has("cross_documents");
        }
        let context = if recipe.context == 0 { config.context_length } else { recipe.context };
        recipe.context = context;
        let program = program();
        let model = trainable(&config, &recipe, &self.tuning.tuning(), self.machine.threads(), (program, self.memory))?;
        // an impossible text is said before memory is reserved
        let Recipe { batch_size, seed, .. } = recipe;
        let long = Batches::of_documents(&train, batch_size, context, seed, objective, recipe.documents())?.long();
        let chat_template = match (&chat, &base) {
            (Some(_), _) => Some(template(&tokenizer)),
            (None, base) => base.as_ref().and_then(|base| base.chat_template.clone()),
        };
        let said = chat.map(|chat| chat.say(long, context));
        let validation = if validation.len() > 1 { validation } else { Tokens::default() };
        let tokenizer_name = chosen;
        Ok(Job {
            name,
            config,
            recipe,
            options,
            text,
            said,
            chat_template,
            tokenizer,
            tokenizer_name,
            train,
            validation,
            objective,
            model,
            base,
            program,
        })
    }

    /// The model to go on from, and its configuration. A run that goes on has all of a model in its own folder, unless it
    /// trains an adapter.
    fn base(&self) -> Result<(Option<Checkpoint>, Option<Config>)> {
        let Some(from) = &self.tuning.from else { return Ok((None, None)) };
        if let (Some(folder), None) = (self.resumed(), self.tuning.lora) {
            let path = folder.join("config.json");
            let text = options::read_settings(&path)?;
            return Ok((None, Some(Config::from_json(&text).with_context(|| path.display().to_string())?)));
        }
        let base = super::checkpoint(Path::new(from)).context("--from")?;
        super::needs_head(&base)?;
        if base.adapter.is_some() && self.tuning.lora.is_some() {
            bail!(
                "{from} is an adapter itself: merge it first, with limpid convert {} MERGED --to limpid",
                show::quoted(from)
            );
        }
        let config = base.config.clone();
        Ok((Some(base), Some(config)))
    }

    /// The folder that was asked for, if one was.
    fn asked(&self) -> Option<PathBuf> {
        match self.resume.as_deref() {
            Some("auto") => self.out.clone().or_else(options::newest_run),
            Some(folder) => Some(folder.into()),
            None => self.out.clone(),
        }
    }

    /// The folder of a run that is to go on: of one that was killed before its first save, all is done again.
    fn resumed(&self) -> Option<PathBuf> {
        self.resume.as_ref().and_then(|_| self.asked()).filter(|folder| Run::can_resume(folder))
    }

    fn folder(&self, name: &str) -> PathBuf {
        let named = || {
            let first = PathBuf::from("runs").join(format!("{name}-{}", timestamp()));
            let next = (2..).map(|n| first.with_file_name(format!("{name}-{}-{n}", timestamp())));
            std::iter::once(first.clone()).chain(next).find(|path| !path.exists()).unwrap_or(first)
        };
        self.asked().unwrap_or_else(named)
    }

    /// Refuses what could not become of this folder, before the text is read.
    fn fits_folder(&self, folder: &Path) -> Result<()> {
        if self.resumed().is_some() {
            return Ok(Run::check(folder, self.resume_step)?);
        }
        let found = folder::look(folder);
        if self.resume.as_ref().is_some_and(|resume| resume != "auto") && found != Found::Begun {
            bail!("{} cannot be resumed: it has no state/last.safetensors (no step was saved there)", folder.display());
        }
        if !self.force && matches!(found, Found::Run | Found::Other(_)) {
            return Err(TrainError::Taken { path: folder.into(), found }.into());
        }
        let kept = ["model.safetensors", "adapter_model.safetensors"].iter().any(|name| folder.join(name).exists());
        if found == Found::Begun && kept && self.resume.is_none() && !self.force {
            bail!(
                "{0} already holds a run, which was killed before its first save: --resume {0} begins it again, another --out \
                 starts a new one",
                folder.display()
            );
        }
        let same = |from: &String| std::fs::canonicalize(from).ok().zip(std::fs::canonicalize(folder).ok());
        if let Some((from, out)) = self.tuning.from.as_ref().and_then(same)
            && from == out
        {
            bail!(
                "--from and --out are both {}: the model that is trained on stays; choose another --out",
                folder.display()
            );
        }
        Ok(())
    }
}

/// The tokenizer that suits the text and the preset: its document's own, or byte pairs, which know every text and which other
/// programs read (docs/presets.md).
fn default_tokenizer(data: &str, preset: &str) -> &'static str {
    match Preset::named(preset).map_or("bpe", |preset| preset.tokenizer) {
        "gpt2" if data.starts_with("builtin:") => "bpe",
        suits => suits,
    }
}

/// The time in a folder's name: 20261120-130155 (UTC).
fn timestamp() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    // days to a date: Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms"
    let days = seconds / 86_400 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (d, m) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let y = year + era * 400 + u64::from(m <= 2);
    let (h, min, s) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{y:04}{m:02}{d:02}-{h:02}{min:02}{s:02}")
}

/// Set when the user or the system asks to stop (Ctrl-C, SIGTERM, a terminal that is closed); after a second Ctrl-C the
/// process ends at once.
pub fn interrupt() -> Result<Arc<AtomicBool>> {
    let asked = Arc::new(AtomicBool::new(false));
    let flag = asked.clone();
    on_signal(move |urgent| match flag.swap(true, Ordering::Relaxed) {
        // a closed terminal sends SIGHUP two or three times: nobody is in a hurry there
        true if !urgent => {}
        true => {
            dashboard::restore();
            std::process::exit(130);
        }
        false if dashboard::active() => {}
        false => show::say("\nstopping after this step; once more to stop at once"),
    })?;
    Ok(asked)
}

/// Calls `f` at Ctrl-C (`true`: a person waits), when the process is told to end and when its terminal is closed, unless that is
/// to be ignored (nohup).
#[cfg(unix)]
fn on_signal(f: impl Fn(bool) + Send + 'static) -> Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    // Linux says what is ignored: a mask, with the first signal as its lowest bit
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    let ignored = mask.is_some_and(|mask| mask >> (SIGHUP - 1) & 1 == 1);
    let caught = [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| *signal != SIGHUP || !ignored);
    let mut signals = signal_hook::iterator::Signals::new(caught)?;
    std::thread::Builder::new().spawn(move || signals.forever().for_each(|signal| f(signal == SIGINT)))?;
    Ok(())
}

#[cfg(not(unix))]
fn on_signal(f: impl Fn(bool) + Send + 'static) -> Result<()> {
    Ok(ctrlc::set_handler(move || f(true))?)
}

pub fn run(args: Args) -> Result<()> {
    let resumed = args.resumed();
    if let Some(folder) = args.asked().filter(|_| !args.find_rate) {
        args.fits_folder(&folder)?;
    }
    let job = args.job()?;
    let folder = args.folder(&job.name);
    if let Some(fit) = super::plan::too_large(&job, &args.machine)? {
        bail!("{}", fit.text());
    }
    if args.find_rate {
        return super::find::run(&job, &args.machine, args.json);
    }
    let threads = args.machine.threads();
    let (level, recipe) = (args.machine.level(), job.recipe);
    let say = |text: String| {
        if !args.json {
            show::say(text);
        }
    };
    let (all, learning) = (job.model.parameter_count(), job.model.learning().map(|p| p.slot.len()).sum::<usize>());
    let parameters = match learning == all {
        true => show::commas(all as u64),
        false => format!("{} of {}", show::commas(learning as u64), show::commas(all as u64)),
    };
    let learn = if learning == all { "parameters" } else { "parameters learn" };
    say(format!("{}: {}; {parameters} {learn}", job.name, job.config));
    if let Some(read) = &job.text.read {
        say(format!("{}: {read}", job.text.name));
    }
    if !job.text.unknown.is_empty() {
        say(format!(
            "{}: the tokenizer lacks some of it, such as {:?}; what it lacks is learned and judged as unknown",
            job.text.name, job.text.unknown
        ));
    }
    say(format!(
        "{}: {} to train on, {} to validate; tokenizer {}; {}, {level}{}",
        job.text.name,
        show::plural(job.train.len(), "token"),
        show::commas(job.validation.len() as u64),
        job.tokenizer_name,
        show::plural(threads, "thread"),
        if args.machine.precision == Precision::Bf16 { ", bf16" } else { "" },
    ));
    let floor = job
        .text
        .log_probability
        .filter(|_| job.objective == Objective::NextToken)
        .map(|p| -p / (job.validation.len().max(2) - 1) as f64);
    job.said.iter().cloned().for_each(say);
    if let Some(floor) = floor {
        say(format!("entropy floor: {floor:.4} nats a token; no model can do better on this text"));
    }
    if let Some(budget) = args.memory {
        let (again, within) = (made_again(&job.model, &recipe), show::bytes(budget));
        say(format!("within {within} of memory; made again in the backward: {again}"));
    }
    let mut roof = Roof::multiply_adds(threads, level, args.machine.precision)?;
    roof.measure(READINGS);
    let flops = step_flops(&job.model, &recipe);

    let asked = interrupt()?;
    let trainer = job.trainer(&args.machine)?;
    let mut run = Run::new(trainer, Some(folder.clone()), &job.train, &job.validation, job.objective, &job.tokenizer)?;
    run.options = job.options;
    if resumed.is_some() {
        if let (Some(base), Some(_)) = (&job.base, args.tuning.lora)
            && let (path, Some(made_for)) = adapter::base(&folder)?
            && base.fingerprint()? != made_for
        {
            bail!("{} cannot be resumed: the model {}, which it adapts, has changed", folder.display(), path.display());
        }
        let step = run.resume(args.resume_step)?;
        say(format!("going on with {} after step {step}", folder.display()));
    } else {
        if args.resume.is_some() && folder::look(&folder) == Found::Begun {
            say(format!("{} was stopped before its first save: it begins again", folder.display()));
        }
        run.force = args.force;
        let from = args.tuning.from.as_deref().map(absolute);
        if let (Some(from), Some(base)) = (&from, &job.base) {
            let base = adapter::Base { path: from.into(), fingerprint: base.fingerprint()? };
            run.files = adapter::describe(&job.model, &base);
        }
        run.files.extend(job.chat_template.iter().map(|template| (CHAT_TEMPLATE.into(), template.clone())));
        // a model that is trained on brings its tokenizer, and is no preset
        let own = job.base.as_ref().is_some_and(|base| base.tokenizer.is_some());
        let rest = [
            ("preset", if from.is_none() { job.name.clone() } else { String::new() }),
            ("from", from.unwrap_or_default()),
            ("data", absolute(&args.data)),
            ("tokenizer", if own { String::new() } else { absolute(&job.tokenizer_name) }),
            ("field", args.reading.field.clone().unwrap_or_default()),
            ("skip_bad", args.reading.skip_bad.to_string()),
            ("precision", args.machine.precision.to_string()),
            ("memory", args.memory.map(|bytes| bytes.to_string()).unwrap_or_default()),
        ];
        let rest = rest.into_iter().chain(args.tuning.keys());
        let rest: Vec<_> = rest.filter(|(_, value)| !value.is_empty() && value != "false").collect();
        let chosen = RunSettings { recipe, options: job.options };
        // the first to be there: a run that is killed as it begins knows what it was
        run.files.insert(0, ("limpid.toml".into(), options::to_toml(&job.config, &chosen, &rest)));
    }

    let watched = args.ui && !args.json;
    let dashboard = watched.then(|| Dashboard::open(&folder, recipe.steps, floor, asked.clone())).flatten();
    let progress = Progress::new(recipe.steps, args.json || dashboard.is_some());
    let mut shown = Shown { val: None, rate: Rate::new(), roof, flops, steps: recipe.steps };
    let summary = run.go(&mut |event| {
        match event {
            Event::Step(step, _) => {
                shown.rate.add(step.tokens);
                progress.step(step.step, || shown.text(&step, progress.lines()));
                dashboard.iter().for_each(|d| d.step(&step, &shown.now(&step)));
            }
            Event::Evaluating(..) => shown.rate.pause(),
            Event::Validated { step, loss, best } => {
                shown.val = Some(loss);
                shown.roof.measure(READINGS / 10);
                shown.rate.pause();
                let line = format!("step {step}: val loss {loss:.4}{}", if best { " (best so far)" } else { "" });
                progress.line(&line);
                dashboard.iter().for_each(|d| {
                    d.validated(step, loss);
                    d.line(&line);
                });
            }
            Event::Saved(step) => {
                shown.rate.pause();
                dashboard.iter().for_each(|d| d.line(&format!("step {step}: saved")));
            }
            Event::Notice(what) => {
                if args.json {
                    show::say(&what);
                }
                progress.line(&what);
                dashboard.iter().for_each(|d| d.line(&what));
            }
        }
        if asked.load(Ordering::Relaxed) { Control::Stop } else { Control::Continue }
    });
    progress.done();
    drop(dashboard);
    let mut summary = Summary { entropy_floor: floor, peak_rss_bytes: peak_rss(), ..summary? };
    let mut log = run.into_log(); // the model's memory is free for the sample
    let text = serde_json::to_string_pretty(&summary)? + "\n";
    if let Err(error) = limpid::checkpoint::write_text(&folder.join("summary.json"), &text) {
        summary.missing.push(format!("{:#}", anyhow::Error::from(error)));
    }
    if !args.json {
        report(&summary, &folder, job.chat_template.as_deref().is_some_and(is_template));
    }
    let whole = !summary.stopped && summary.missing.is_empty() && !asked.load(Ordering::Relaxed);
    let mut printed = Ok(());
    let sampled = match whole && !args.json && args.sample > 0 {
        true => super::generate::sample(&folder, args.sample, &args.machine, recipe.seed, &mut printed),
        false => Ok(None),
    };
    if let (Ok(Some((prompt, text))), Some(log)) = (&sampled, &mut log) {
        let line = serde_json::json!({ "step": summary.steps, "prompt": prompt, "sample": text });
        if let Err(error) = log.add(line).and_then(|()| log.derive()) {
            summary.missing.push(format!("{:#}", anyhow::Error::from(error)));
        }
    }
    if let Err(error) = super::report::write(&folder) {
        summary.missing.push(format!("{error:#}"));
    }
    if args.json {
        show::json(&summary)?;
    }
    sampled?;
    printed?;
    if !summary.missing.is_empty() {
        bail!("not all that the run should leave could be written: {}", summary.missing.join("; "));
    }
    if summary.stopped || asked.load(Ordering::Relaxed) && !whole {
        bail!(Interrupted("stopped before the end"));
    }
    Ok(())
}

fn report(summary: &Summary, folder: &Path, answers: bool) {
    let (folder, word) = (folder.display(), show::quoted(folder));
    if summary.stopped {
        let steps = summary.steps;
        return show::say(format_args!("stopped after step {steps}; go on with: limpid train --resume {word}"));
    }
    let val = summary.val_loss.map(|v| format!(", validation loss {v:.4}")).unwrap_or_default();
    let of = match summary.steps.min(RECENT as u64) {
        0 | 1 => String::new(),
        n => format!(" (mean of the last {n} steps)"),
    };
    let floor = match (summary.entropy_floor, summary.val_loss) {
        (Some(floor), Some(val)) => format!(" (floor {floor:.4}, {:.4} above it)", val - floor),
        _ => String::new(),
    };
    if summary.ended_early {
        show::say(format_args!(
            "ended early: the validation loss no longer fell; the best weights are of step {}",
            summary.best_step
        ));
    }
    show::say(format_args!(
        "{} in {}: train loss {:.4}{of}{val}{floor}",
        show::plural(summary.steps, "step"),
        show::duration(summary.seconds),
        summary.train_loss
    ));
    let how = if answers { "--chat" } else { "--prompt" };
    show::say(format_args!("the model is in {folder}; try: limpid generate --model {word} {how} TEXT"));
    show::say(format_args!("its curves are in {folder}/report.html"));
}

/// FLOPs of a step, forward and backward; the recipe's context is the one trained on.
pub fn step_flops(model: &Model, recipe: &Recipe) -> f64 {
    recipe.accumulate as f64 * model.training_flops(recipe.batch_size * recipe.context, keys(model, recipe))
}

/// FLOPs of what a step makes again, as a share of [`step_flops`].
pub fn extra_work(model: &Model, recipe: &Recipe) -> f64 {
    let again = model.flops_again(recipe.batch_size * recipe.context, keys(model, recipe));
    recipe.accumulate as f64 * again / step_flops(model, recipe)
}

/// Keys that a row sees on average.
fn keys(model: &Model, recipe: &Recipe) -> usize {
    if model.config.mask == Mask::Causal { recipe.context.div_ceil(2) } else { recipe.context }
}

/// What the backward makes again, block by block, and the work that costs.
pub fn made_again(model: &Model, recipe: &Recipe) -> String {
    let stretch = |(blocks, keep): (std::ops::Range<usize>, Keep)| match blocks.len() {
        n if n == model.config.n_layer => keep.made_again().to_string(),
        1 => format!("{} in block {}", keep.made_again(), blocks.start),
        _ => format!("{} in blocks {} to {}", keep.made_again(), blocks.start, blocks.end - 1),
    };
    let stretches: Vec<String> = model.keeps().into_iter().map(stretch).collect();
    format!("{} (+{:.1} % FLOPs)", stretches.join(", "), 100.0 * extra_work(model, recipe))
}

fn absolute(path: &str) -> String {
    if Path::new(path).exists() {
        std::path::absolute(path).map_or_else(|_| path.into(), |p| p.display().to_string())
    } else {
        path.into()
    }
}

/// Tokens a second, evaluations and saves left out.
struct Rate {
    tokens: usize,
    seconds: f64,
    last: Instant,
}

impl Rate {
    fn new() -> Rate {
        Rate { tokens: 0, seconds: 0.0, last: Instant::now() }
    }
    fn add(&mut self, tokens: usize) {
        self.seconds += self.last.elapsed().as_secs_f64();
        self.tokens += tokens;
        self.last = Instant::now();
        if self.seconds > 10.0 {
            // what is shown is of the last seconds
            (self.tokens, self.seconds) = (self.tokens / 2, self.seconds / 2.0);
        }
    }
    fn pause(&mut self) {
        self.last = Instant::now();
    }
    fn per_second(&self) -> f64 {
        self.tokens as f64 / self.seconds.max(1e-9)
    }
}

/// What a progress line says.
struct Shown {
    val: Option<f64>,
    rate: Rate,
    roof: Roof,
    flops: f64,
    steps: u64,
}

impl Shown {
    fn now(&self, step: &limpid::train::Step) -> Now {
        let per_second = self.rate.per_second();
        let steps_a_second = per_second / step.tokens as f64;
        let left = (self.steps - step.step) as f64 / steps_a_second.max(1e-9);
        Now { val: self.val, per_second, share: self.flops * steps_a_second / self.roof.best(), left }
    }

    /// What the bar says in what room it has, or a line of a log.
    fn text(&self, step: &limpid::train::Step, line: bool) -> String {
        let numbers = self.now(step).numbers(step).into_iter();
        let said = |(name, value): (&str, String)| match name {
            "lr" | "grad norm" if !line => None,
            "val" if !line && self.val.is_none() => None,
            "tok/s" | "of roof" | "left" => Some(format!("{value:>6} {name}")),
            _ => Some(format!("{name} {value:<6}")),
        };
        let said: Vec<String> = numbers.filter_map(said).collect();
        if line { said.join("  ") } else { said.iter().map(|s| s.trim()).collect::<Vec<_>>().join("  ") }
    }
}

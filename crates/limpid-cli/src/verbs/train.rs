//! `train`: from text to a model directory.

use crate::dashboard::{Dashboard, Now};
use crate::live::LivePage;
use crate::machine::{READINGS, share};
use crate::models;
use crate::options::{Asked, Interrupted, Usage};
use crate::show::{self, Progress};
use crate::signals::interrupt;
use crate::training::{
    AskedTraining, ProcessSettings, TrainingArgs, length, planned, recomputes, step_flops, too_large,
};
use crate::{find, llmc, ranks, source};
use anyhow::{Result, bail};
use limpid::backend::cpu::roof::Roof;
use limpid::checkpoint::{Checkpoint, Format};
use limpid::config::Mask;
use limpid::data::chat::END;
use limpid::data::source::Corpus;
use limpid::engine::EngineLimits;
use limpid::generate::{Options, Sampler, generate, prompt_ids};
use limpid::matrix::Precision;
use limpid::memory::peak_rss;
use limpid::settings::Workflow;
use limpid::train::folder::{self, FolderContents};
use limpid::train::{AllReduce, Control, RECENT, Ranks, Recipe, Run, StepReport, Summary, TrainEvent, log};
use limpid::{Lm, Machine, TrainingPlan};
use limpid_report::records;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// Train a model, or fine-tune one (--from).
///
/// With no flags: the built-in stories, preset `nano`, 20 to 45 s on two recent cores. Every flag is also a key of
/// a --config file and an environment variable (LIMPID_STEPS=100, LIMPID_CONFIG=FILE): file < environment < flag.
#[derive(clap::Args, Clone, Debug)]
#[group(id = "train")]
pub struct Args {
    #[command(flatten)]
    pub training: TrainingArgs,
    #[command(flatten)]
    process: Asked<ProcessSettings>,
}

pub fn run(Args { training, process }: Args) -> Result<()> {
    let (training, ProcessSettings { timeout, serve }) = training.resolved(&process)?;
    let ranks = ranks::join(timeout)?;
    let (rank, size) = (ranks.rank(), ranks.size());
    let done = train(&training, serve.as_deref(), ranks).map_err(|error| ranks::end_all(rank, size, error));
    ranks::leave();
    done
}

/// Trains, in each of the processes that train together; process 0 has the folder and speaks.
fn train(args: &AskedTraining, serve: Option<&str>, ranks: Box<dyn Ranks>) -> Result<()> {
    let (main, size) = (ranks.rank() == 0, ranks.size());
    if args.screen.lr_find && size > 1 {
        bail!(Usage("--lr-find runs in one process: start it without mpirun".into()));
    }
    let (folder, plan) = prepare(args, ranks)?;
    if args.job.recipe == Some(Workflow::Llmc) {
        if size > 1 || args.screen.ui || args.json || plan.options.probe {
            bail!(Usage("--recipe llmc prints llm.c's lines: it goes without mpirun, --ui, --json and --probe".into()));
        }
        return llmc::train(&plan, args.job.out.as_deref());
    }
    if let Some(fit) = too_large(&plan)? {
        bail!("{}", fit.text());
    }
    if args.screen.lr_find {
        return find::run(&plan, args.json);
    }
    let stop = interrupt()?;
    let page =
        serve.filter(|_| main).map(|address| LivePage::open(address, &plan, &folder, stop.clone())).transpose()?;
    let speaks = main && !args.json;
    if speaks {
        describe(args, &plan, size);
    }
    let machine = &plan.machine;
    let mut roof = Roof::multiply_adds(machine.threads, machine.level, machine.precision)?;
    if main {
        roof.measure(READINGS / 3); // and more at every validation
    }
    let begins_again = args.job.resume.is_some() && folder::look(&folder) == FolderContents::Begun;
    let mut run = plan.start().map_err(source::of_library)?;
    run.saves_first = serve.is_some();
    if !main {
        run.go(&mut |_| Control::Continue)?;
        return Ok(());
    }
    if speaks && plan.resumes() {
        show::prose(format_args!("resuming {} after step {}", folder.display(), run.trainer.steps_done()));
    } else if speaks {
        if begins_again {
            show::prose(format_args!("{} has no saved state: it begins again", folder.display()));
        }
        if args.tuning.lora.is_none() {
            let rows = plan.base().map_or(vec![], |base| models::along(base, &run.carried, Format::Limpid, true));
            rows.into_iter().for_each(|(what, names)| show::prose(format!("{what}: {names}")));
        }
    }
    let opening = Opening::new(&plan.corpus, &plan.recipe)?;
    let flops = step_flops(&plan.model, &plan.recipe) / size as f64;
    let mut watch = Watch::new(args, &plan, &folder, &opening, (roof, flops), run.trainer.steps_done(), (page, &stop));
    if plan.resumes() {
        watch.begin_page();
    }
    let summary = run.go(&mut |event| watch.hear(event));
    watch.end();
    let summary = Summary { entropy_floor: plan.entropy_floor(), peak_rss_bytes: peak_rss(), ..summary? };
    if let Err(gone) = run.is_there() {
        // nothing more is written into what may be somebody else's
        args.json.then(|| show::json(&summary)).transpose()?;
        return Err(gone.into());
    }
    finish(args, &plan, run, &opening, summary, &folder, &stop)
}

/// What the flags ask for, with everything decided, and the folder it goes to.
fn prepare(args: &AskedTraining, ranks: Box<dyn Ranks>) -> Result<(PathBuf, TrainingPlan)> {
    let finds = args.screen.lr_find;
    if let Some(folder) = args.named_folder().filter(|_| ranks.rank() == 0 && !finds && args.resumed().is_none()) {
        args.check_folder(&folder, std::env::home_dir())?;
    }
    let folder = args.folder(SystemTime::now())?;
    let mut training = args.training()?.ranks(ranks);
    if !finds {
        training = training.folder(&folder);
    }
    let plan = planned(training.check_folder().map_err(source::of_library)?)?;
    Ok((folder, plan))
}

/// What will be trained, on what, and how.
fn describe(args: &AskedTraining, plan: &TrainingPlan, processes: usize) {
    let (corpus, text, machine) = (&plan.corpus, &plan.corpus.about, &plan.machine);
    let (all, learning) = (plan.model.parameter_count(), plan.model.learning().map(|p| p.region.len()).sum::<usize>());
    let [all, learning] = [all, learning].map(show::commas);
    let parameters =
        if learning == all { format!("{all} parameters") } else { format!("{learning} of {all} parameters learn") };
    show::prose(format!("{}: {}; {parameters}", args.name(), plan.config));
    let name = &text.name;
    if let Some(read) = &text.read {
        show::prose(format!("{name}: {read}"));
    }
    if !text.unknown.is_empty() {
        let unknown = format!("the tokenizer has no token for some of it, such as {:?}", text.unknown);
        show::prose(format!("{name}: {unknown}; such text counts as unknown"));
    }
    let most = if machine.clock.is_some() && machine.threads > 1 { "up to " } else { "" };
    let threads = format!("{most}{}", show::plural(machine.threads, "thread"));
    let threads = if processes == 1 { threads } else { format!("{processes} processes of {threads}") };
    let precision = match machine.precision {
        Precision::F32 => String::new(),
        other => format!(", {other}"),
    };
    let train = show::plural(corpus.train.len(), "token");
    let validation = show::commas(corpus.validation.len());
    let texts = format!("{name}: {train} to train on, {validation} to validate; tokenizer {}", corpus.tokenizer_name);
    show::prose(format!("{texts}; {threads}, {}{precision}", machine.level));
    if let Some(chat) = &plan.conversations
        && let Ok(batches) = plan.recipe.batches(&corpus.train, plan.objective)
    {
        show::prose(chat.say(batches.long(), plan.recipe.context));
    }
    length(plan).into_iter().for_each(show::prose);
    if let Some(floor) = plan.entropy_floor() {
        show::prose(format!("entropy floor: {floor:.4} nats a token; no model can do better on this text"));
    }
    if let Some(frames) = plan.frames {
        let most = if plan.options.probe_every > 0 {
            ""
        } else {
            ", as many as take 1 % of the time (--probe-every N for more)"
        };
        show::prose(format!("time-lapse: {}{most}", show::plural(frames, "frame")));
    }
    if let Some(budget) = plan.memory {
        let again = recomputes(&plan.model, &plan.recipe);
        let within = show::bytes(budget);
        show::prose(format!("within {within} of memory; recomputed in the backward pass: {again}"));
    }
}

/// Shows how a run goes: a bar or lines, and the dashboard.
struct Watch<'a> {
    args: &'a AskedTraining,
    plan: &'a TrainingPlan,
    folder: &'a Path,
    opening: &'a Opening,
    stop: &'a AtomicBool,
    progress: Progress,
    dashboard: Option<Dashboard>,
    page: Option<LivePage>,
    shown: Shown,
    /// When the last sample was shown, and how long it took.
    sampled_at: Instant,
    sampling: Duration,
}

impl<'a> Watch<'a> {
    fn new(
        args: &'a AskedTraining,
        plan: &'a TrainingPlan,
        folder: &'a Path,
        opening: &'a Opening,
        (roof, flops): (Roof, f64),
        step: u64,
        (page, stop): (Option<LivePage>, &'a Arc<AtomicBool>),
    ) -> Watch<'a> {
        let steps = plan.recipe.steps;
        let watched = args.screen.ui && !args.json;
        // the address first: a narrow terminal cuts the end of the line
        let served = page.as_ref().map_or(String::new(), |page| format!("{}   ", page.url()));
        let title = format!("{served}{}", folder.display());
        let floor = plan.entropy_floor();
        let dashboard = watched.then(|| Dashboard::open((folder, title), steps, floor, stop.clone())).flatten();
        let progress = Progress::new(steps, args.json || dashboard.is_some());
        let shown = Shown { recent: recent(folder, step), val: None, rate: Rate::new(), roof, flops, steps };
        let sampled_at = Instant::now();
        let sampling = Duration::ZERO;
        Watch { args, plan, folder, opening, stop, progress, dashboard, page, shown, sampled_at, sampling }
    }

    fn hear(&mut self, event: TrainEvent) -> Control {
        let Watch { progress, dashboard, shown, .. } = self;
        match event {
            TrainEvent::Step(step, _) => {
                shown.add(&step);
                progress.step(step.step, || shown.text(&step, progress.lines()));
                dashboard.iter().for_each(|d| d.step(&step, &shown.now(&step)));
            }
            TrainEvent::AllReduce(_, all_reduce) => shown.rate.reduced(all_reduce),
            TrainEvent::Layers(_, layers) => dashboard.iter().for_each(|d| d.layers(layers.clone())),
            TrainEvent::Evaluating(..) => shown.rate.pause(),
            TrainEvent::Validated { step, loss, tokens, best } => {
                shown.val = Some(loss);
                shown.roof.measure(READINGS / 10);
                let best_said = if best { " (best so far)" } else { "" };
                let line = format!("step {step}: val loss {loss:.4} on {}{best_said}", show::plural(tokens, "token"));
                progress.line(&line);
                if let Some(d) = dashboard {
                    d.validated(step, loss);
                    d.line(&line);
                    if best {
                        self.show_sample(step);
                    }
                }
                self.shown.rate.pause();
            }
            TrainEvent::Saved(step) => {
                shown.rate.pause();
                dashboard.iter().for_each(|d| d.line(&format!("step {step}: saved")));
                self.begin_page();
            }
            TrainEvent::Threads(step, times) => self.notice(&format!("step {step}: from now on {times}")),
            TrainEvent::Notice(what) => self.notice(&what),
        }
        if self.stop.load(Ordering::Relaxed) { Control::Stop } else { Control::Continue }
    }

    fn notice(&self, what: &str) {
        if self.args.json {
            show::say(what);
        }
        self.progress.line(what);
        self.dashboard.iter().for_each(|d| d.line(what));
    }

    /// Serves the run's page from now on, if it was asked for: the folder has a model.
    fn begin_page(&mut self) {
        if let Some(what) = self.page.as_mut().and_then(LivePage::begin) {
            self.notice(&what);
        }
    }

    /// A sample of the best weights, which are in the folder, on the dashboard, as long as samples take little of the
    /// time.
    fn show_sample(&mut self, step: u64) {
        if self.args.job.sample == 0 || self.sampling * 50 > self.sampled_at.elapsed() {
            return;
        }
        self.sampled_at = Instant::now();
        let goes_on = &mut |_: &str| !self.stop.load(Ordering::Relaxed);
        let sampled = sample(self.folder, self.args.job.sample, &self.plan.machine, self.opening, goes_on);
        if let (Ok(Some((prompt, text))), Some(dashboard)) = (sampled, &self.dashboard) {
            dashboard.sample(step, &(prompt + &text));
        }
        self.sampling = self.sampled_at.elapsed();
    }

    /// Gives the terminal back, and ends the page.
    fn end(self) {
        self.progress.done();
    }
}

/// Writes and shows what a run came to, with a sample of its model.
fn finish(
    args: &AskedTraining,
    plan: &TrainingPlan,
    run: Run,
    opening: &Opening,
    mut summary: Summary,
    folder: &Path,
    stop: &AtomicBool,
) -> Result<()> {
    let mut log = run.into_log(); // the model's memory is free for the sample
    let stopped = || stop.load(Ordering::Relaxed);
    if let Err(error) = summary.write(folder) {
        summary.missing.push(format!("{:#}", anyhow::Error::from(error)));
    }
    if !args.json {
        report(&summary, folder, plan.chat_template.is_some());
        if plan.options.probe {
            let run = show::quoted(folder);
            show::say(format_args!("what it did inside while it learned: limpid timelapse {run}"));
        }
    }
    let whole = !summary.stopped && summary.missing.is_empty() && !stopped();
    let mut printed = Ok(());
    let mut flow = show::Flow::default();
    let sampled = if whole && !args.json && args.job.sample > 0 {
        let mut begun = false;
        let print = &mut |text: &str| {
            if !std::mem::replace(&mut begun, true) {
                show::say(format_args!("\n{}", opening.heading()));
            }
            if printed.is_ok() {
                printed = flow.out(text);
            }
            true // what cannot be printed is made all the same
        };
        sample(folder, args.job.sample, &plan.machine, opening, print)
    } else {
        Ok(None)
    };
    if let (Ok(Some((prompt, text))), Some(log)) = (&sampled, &mut log) {
        let line = serde_json::json!({ "step": summary.steps, "prompt": prompt, "sample": text });
        if let Err(error) = log.add(line).and_then(|()| log.derive()) {
            summary.missing.push(format!("{:#}", anyhow::Error::from(error)));
        }
    }
    if let Err(error) = records::write(folder) {
        summary.missing.push(format!("{error:#}"));
    }
    if args.json {
        show::json(&summary)?;
    }
    sampled?;
    printed?;
    if !summary.missing.is_empty() {
        bail!("some files of the run could not be written: {}", summary.missing.join("; "));
    }
    if summary.stopped || stopped() && !whole {
        bail!(Interrupted("stopped before the end"));
    }
    Ok(())
}

fn report(summary: &Summary, folder: &Path, answers: bool) {
    let (place, folder, word) = (folder, folder.display(), show::quoted(folder));
    if summary.stopped {
        let steps = summary.steps;
        return show::say(format_args!("stopped after step {steps}; resume with: limpid train --resume {word}"));
    }
    let val = summary.val_loss.map(|v| format!(", validation loss {v:.4} on all of its text")).unwrap_or_default();
    let recent = summary.steps.min(RECENT as u64);
    let of = match (summary.steps, summary.losses) {
        (0 | 1, _) => String::new(),
        (_, Some(1)) => " (of the only step that had one)".into(),
        (_, Some(n)) if (n as u64) < recent => format!(" (mean of the {n} steps that had one)"),
        _ => format!(" (mean of the last {recent} steps)"),
    };
    let floor = match (summary.entropy_floor, summary.val_loss) {
        (Some(floor), Some(val)) => format!(" (floor {floor:.4}, {:.4} above it)", val - floor),
        _ => String::new(),
    };
    if summary.ended_early {
        show::say("early stopping: the validation loss no longer fell");
    }
    let kept = show::commas(summary.best_step);
    let train = match summary.train_loss {
        Some(loss) => format!("train loss {loss:.4}{of}"),
        None => "no train loss, because no step had a token to predict".into(),
    };
    let steps = show::plural(summary.steps, "step");
    let time = show::duration(summary.seconds);
    show::prose(format_args!("{steps} in {time}: {train}{val}{floor}"));
    if summary.best_step < summary.steps {
        show::prose(format_args!(
            "the validation loss was lowest after step {kept} and rose again: the model has the weights of step \
             {kept}, not the last ones"
        ));
    }
    if let Some(times) = &summary.threads {
        show::prose(format_args!("a step took the least time on {times}"));
    }
    if let Some([to, from]) = summary.device_bytes.map(|bytes| bytes.map(show::bytes)) {
        show::say(format_args!("a step sends {to} to the device and takes {from} from it"));
    }
    let how = if answers { "--chat" } else { "--prompt" };
    show::say(format_args!("the model is in {folder}; try: limpid generate --model {word} {how} TEXT"));
    show::say(format_args!("its curves are in {folder}/report.html"));
    if cfg!(feature = "serve") {
        let newest = models::newest_folder(&models::WEIGHTS);
        let named = if newest.as_deref() == Some(place) { String::new() } else { format!(" {word}") };
        show::say(format_args!("why it says what it says, in your browser: {} inspect{named} --open", show::program()));
    }
}

/// Tokens a second, evaluations and saves left out.
struct Rate {
    tokens: usize,
    seconds: f64,
    /// What adding up gradients among processes took of them.
    all_reduce: Option<AllReduce>,
    last: Instant,
}

impl Rate {
    fn new() -> Rate {
        Rate { tokens: 0, seconds: 0.0, all_reduce: None, last: Instant::now() }
    }
    fn add(&mut self, tokens: usize) {
        self.seconds += self.last.elapsed().as_secs_f64();
        self.tokens += tokens;
        self.last = Instant::now();
        if self.seconds > 10.0 {
            // what is shown is of the last seconds
            (self.tokens, self.seconds) = (self.tokens / 2, self.seconds / 2.0);
            let half = |all: AllReduce| AllReduce { seconds: all.seconds / 2.0, hidden: all.hidden / 2.0 };
            self.all_reduce = self.all_reduce.map(half);
        }
    }
    fn reduced(&mut self, more: AllReduce) {
        let AllReduce { seconds, hidden } = self.all_reduce.unwrap_or_default();
        self.all_reduce = Some(AllReduce { seconds: seconds + more.seconds, hidden: hidden + more.hidden });
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
    /// The last losses, whose mean is what the end of the run reports.
    recent: VecDeque<f64>,
    val: Option<f64>,
    rate: Rate,
    roof: Roof,
    /// Of a step, in this process.
    flops: f64,
    steps: u64,
}

/// The last losses up to `step`, after which a run goes on: what the log has beyond it is trained again.
fn recent(folder: &Path, step: u64) -> VecDeque<f64> {
    let lines = log::read(folder).unwrap_or_default();
    let done = lines.iter().rev().filter(|line| line["step"].as_u64().is_some_and(|at| at <= step));
    let losses: Vec<f64> = done.filter_map(|line| line["train_loss"].as_f64()).take(RECENT).collect();
    losses.into_iter().rev().collect()
}

impl Shown {
    fn add(&mut self, step: &StepReport) {
        self.rate.add(step.tokens);
        if let Some(loss) = step.loss {
            self.recent.push_back(loss);
            self.recent.drain(..self.recent.len().saturating_sub(RECENT));
        }
    }

    fn now(&self, step: &StepReport) -> Now {
        let per_second = self.rate.per_second();
        let steps_a_second = per_second / step.tokens as f64;
        let left = (self.steps - step.step) as f64 / steps_a_second.max(1e-9);
        let share = share(self.flops * steps_a_second, self.roof.best());
        let shares = |all: AllReduce| [all.seconds, all.hidden].map(|part| part / self.rate.seconds.max(1e-9));
        let all_reduce = self.rate.all_reduce.map(shares);
        let loss = Some(self.recent.iter().sum::<f64>() / self.recent.len() as f64).filter(|_| !self.recent.is_empty());
        Now { loss, val: self.val, per_second, share, left, all_reduce }
    }

    /// The text of the progress bar, as wide as there is room, or a line of a log.
    fn text(&self, step: &StepReport, line: bool) -> String {
        let numbers = self.now(step).numbers(step).into_iter();
        let said = |(name, value): (&str, String)| match name {
            "lr" | "grad norm" if !line => None,
            "of roof" => None, // the dashboard shows it
            "val loss" if !line && self.val.is_none() => None,
            "tok/s" | "left" | "all-reduce" => Some(format!("{value:>6} {name}")),
            _ => Some(format!("{name} {value:<6}")),
        };
        let said: Vec<String> = numbers.filter_map(said).collect();
        if line { said.join("  ") } else { said.iter().map(|s| s.trim()).collect::<Vec<_>>().join("  ") }
    }
}

/// What a run's samples go on from.
struct Opening {
    seed: u64,
    /// The first question of conversations; or the first words of the validation text, which no training has seen, or
    /// of the training text where there is no other.
    ids: Vec<u32>,
    text: String,
    question: bool,
}

impl Opening {
    fn new(corpus: &Corpus, recipe: &Recipe) -> Result<Opening> {
        let Corpus { train, validation, tokenizer, .. } = corpus;
        let (seed, room) = (recipe.seed, recipe.context.div_ceil(2));
        // of a conversation what is not learned
        let question: Vec<u32> =
            train.document(0).take_while(|at| !train.counted(*at)).map(|at| train.id(at)).collect();
        if !question.is_empty() {
            return Ok(Opening { seed, text: tokenizer.decode(&question)?, ids: question, question: true });
        }
        let of = if validation.is_empty() { train } else { validation };
        let mut ids = vec![];
        of.copy(0..of.len().min(64), &mut ids);
        ids.retain(|id| Some(*id) != tokenizer.end_of_text());
        let text = tokenizer.decode(&ids)?;
        // as many whole words as there is room for
        let fitting = (1..=4).rev().find_map(|n| {
            let words = first_words(&text, n);
            let ids = prompt_ids(tokenizer, Mask::Causal, words).ok()?;
            (!ids.is_empty() && ids.len() <= room).then(|| (ids, words.to_string()))
        });
        let (ids, text) = match fitting {
            Some(fitting) => fitting,
            None => (vec![train.id(0)], tokenizer.decode(&[train.id(0)])?),
        };
        Ok(Opening { seed, ids, text, question: false })
    }

    /// What stands over a sample.
    fn heading(&self) -> String {
        if self.question { "a sample:".into() } else { format!("a sample, continuing {:?}:", self.text) }
    }
}

/// The first words of the first line that has some: at most `most`.
fn first_words(text: &str, most: usize) -> &str {
    let line = text.trim_start().lines().next().unwrap_or_default().trim_end();
    let ends = line
        .match_indices(char::is_whitespace)
        .map(|(at, _)| at)
        .filter(|at| !line[..*at].ends_with(char::is_whitespace));
    &line[..ends.chain([line.len()]).nth(most - 1).unwrap_or(line.len())]
}

/// Writes a short sample of the weights in a run's folder, by a seed. Returns what it goes on from, and the sample,
/// which `tell` hears as it is written.
fn sample(
    folder: &Path,
    max_tokens: usize,
    machine: &Machine,
    opening: &Opening,
    tell: &mut dyn FnMut(&str) -> bool,
) -> Result<Option<(String, String)>> {
    let checkpoint = Checkpoint::open(folder)?;
    if checkpoint.config.mask != Mask::Causal {
        return Ok(None);
    }
    let Opening { seed, ids, text, question } = opening;
    let lm = Lm::from(checkpoint).with_machine(machine.clone());
    let mut engine = lm.engine(&EngineLimits::new(lm.config(), 1, ids.len() + max_tokens))?;
    let sampler = Sampler { temperature: 0.8, seed: *seed, ..Sampler::default() };
    let stop = if *question { vec![END.into()] } else { vec![] };
    let options = Options { max_tokens, sampler, stop, ..Options::default() };
    tell(text);
    let written = generate(&mut engine, ids, &options, &mut |event| match event {
        limpid::generate::GenerateEvent::Piece { text } => tell(&text),
        _ => true,
    })?;
    tell("\n");
    Ok(Some((text.clone(), written.text)))
}

//! `plan`: what `train` with the same flags would do.

use crate::devices::{Traffic, traffic};
use crate::machine::{READINGS, median, share};
use crate::options::{Asked, Flags};
use crate::show::{self, commas};
use crate::training::{TooLarge, TrainingArgs, extra_work, keys, length, recomputes, step_flops, too_large};
use anyhow::Result;
use limpid::backend::cpu::roof::Roof;
use limpid::config::{Axis, Setting, Settings, settings};
use limpid::memory::{self, needed, trainable};
use limpid::model::recompute::KeepLevel;
use limpid::model::{MemoryPart, Model, init};
use limpid::ops::Batch;
use limpid::optimizer::Method;
use limpid::train::Recipe;
use limpid::train::ranks::check_micros;
use limpid::train::ranks::cost::{Network, ProcessCost, SharedStep};
use limpid::train::ranks::shards::Uses;
use limpid::{Machine, TrainingPlan};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Instant;

/// Estimate memory, time and parameter groups of a training run without running it.
///
/// Nothing is written: a few steps are timed and then discarded.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    train: TrainingArgs,
    #[command(flatten)]
    plan: Asked<PlanSettings>,
}

settings! {
    /// What `plan` has beside the settings of a training.
    #[derive(Clone, PartialEq, Debug)]
    pub struct PlanSettings {
        /// Also estimate N processes that train together (mpirun -n N limpid train; docs/scale.md), each on a machine
        /// like this one
        ranks: Option<usize> = None, Setting::of("N").whole(1, 1 << 20, "it must be from 1 to 1048576");
        /// The network between the processes: 1g, 10g or 100g (Gbit/s)
        network: Network = Network::Gigabit10, Setting::of("SPEED").requires("ranks").default_text("10g");
    }
}
impl Settings for PlanSettings {}
impl Flags for PlanSettings {
    const HEADING: Option<&'static str> = None;
}

/// Share of the roof that training reaches, where it is not measured: about that of presets nano to gpt2
/// (docs/performance.md).
const REACHED: f64 = 0.4;

/// Seconds that a step may take to be measured; of a longer one, a smaller one is.
const LONGEST: f64 = 1.5;

/// Steps that were measured.
#[derive(Serialize)]
struct Measured {
    steps: usize,
    batch_size: usize,
    context: usize,
    /// Of a step of the plan's: of all its gradients, and of its update.
    #[serde(skip)]
    seconds: (f64, f64),
}

/// Takes some steps of the job, from weights that are any, in at most some seconds. Where a step would take long, those
/// are of fewer tokens: its gradient takes as much longer as it is more work, its update as long.
fn measure(plan: &TrainingPlan, guess: f64) -> Result<Measured> {
    let mut recipe = Recipe { accumulate: 1, ..plan.recipe };
    let mut expected = guess / plan.recipe.accumulate as f64;
    while expected > LONGEST && recipe.batch_size * recipe.context > 64 {
        let cut = if recipe.batch_size > 1 { &mut recipe.batch_size } else { &mut recipe.context };
        let before = *cut;
        *cut = before.div_ceil(2);
        expected *= *cut as f64 / before as f64;
    }
    let model = trainable(&plan.config, &recipe, &plan.model.tuning, &plan.placement, (plan.program, plan.memory))?;
    memory::fits(&model, Some(&recipe), &plan.placement)?;
    let mut backend = plan.machine.start(&model)?;
    // quantised ones take another time
    let base = plan.base().filter(|base| base.is_quantised());
    base.map_or(Ok(()), |base| base.load(&model, &mut *backend))?;
    for param in model.params.iter().filter(|param| base.is_none() || param.is_adapter()) {
        backend.write(param.region, &init::any_values(param))?;
    }
    let Recipe { batch_size, context, .. } = recipe;
    let batches = recipe.batches(&plan.corpus.train, plan.objective)?;
    let groups = model.update_groups(recipe.weight_decay, recipe.optimizer);
    let mut batch = Batch::default();
    let mut times = vec![];
    let start = Instant::now();
    while times.len() < 3 || (times.len() < 20 && start.elapsed().as_secs_f64() < 1.0) {
        let step = Instant::now();
        batches.fill(times.len() as u64, 0, &mut batch);
        (batch.terms, batch.seed) = (recipe.terms(), Some(times.len() as u64));
        backend.feed(&batch)?;
        backend.forward(model.body())?;
        backend.backward(model.back())?;
        let gradient = step.elapsed().as_secs_f64();
        backend.update(&groups, &recipe.rule(recipe.learning_rate, times.len() as u64 + 1), &mut [])?;
        times.push((gradient, step.elapsed().as_secs_f64() - gradient));
    }
    times.remove(0); // memory is touched for the first time
    let (gradients, updates) = times.iter().copied().unzip();
    let work = |model: &Model, recipe: &Recipe| (1.0 + extra_work(model, recipe)) * step_flops(model, recipe);
    let more = work(&plan.model, &plan.recipe) / work(&model, &recipe);
    let seconds = (more * median(gradients), median(updates));
    Ok(Measured { steps: times.len(), batch_size, context, seconds })
}

/// What a micro-batch costs on a GPU, where one is chosen: counted of one that could be trained on.
fn gpu(plan: &TrainingPlan) -> Result<Option<Traffic>> {
    let recipe = &plan.recipe;
    let batch = || {
        memory::fits(&plan.model, Some(recipe), &plan.placement)?;
        let mut batch = Batch::default();
        recipe.batches(&plan.corpus.train, plan.objective)?.fill(0, 0, &mut batch);
        (batch.terms, batch.seed) = (recipe.terms(), Some(0));
        Ok(batch)
    };
    let groups = plan.model.update_groups(recipe.weight_decay, recipe.optimizer);
    traffic(&plan.machine, &plan.model, &groups, batch, keys(&plan.model, recipe))
}

/// The parts of the memory by name, and apart from them what is no tensor's.
fn named(parts: Vec<(MemoryPart, u64)>) -> (BTreeMap<&'static str, u64>, Option<u64>) {
    let (scratch, parts): (Vec<_>, Vec<_>) = parts.into_iter().partition(|(part, _)| part.is_scratch());
    (parts.into_iter().map(|(part, bytes)| (part.name(), bytes)).collect(), scratch.first().map(|(_, bytes)| *bytes))
}

/// What each of several processes would do that train together.
struct Several {
    processes: usize,
    network: Network,
    cost: ProcessCost,
    /// Bytes of each memory of one process.
    memory: Vec<(MemoryPart, u64)>,
    total: u64,
    /// What a process alone takes.
    alone: Vec<(MemoryPart, u64)>,
    steps: u64,
    /// Tokens a second of all.
    speed: f64,
    efficiency: f64,
    /// From how many processes on twice as many are less than 1.3 times as fast.
    worth: usize,
}

impl Several {
    /// Of a job whose step takes one process so many seconds for its gradients and its update.
    fn new(plan: &TrainingPlan, network: Network, processes: usize, seconds: (f64, f64)) -> Several {
        let model = &plan.model;
        let recipe = &plan.recipe;
        let groups = model.update_groups(recipe.weight_decay, recipe.optimizer);
        let shared = SharedStep::new(&groups, &Uses::new(model), recipe.accumulate, seconds);
        let cost = shared.among(processes, network);
        let placement = &plan.placement;
        let memory = memory::parts_among(model, recipe, placement, processes);
        let alone = memory::parts(model, Some(recipe), placement);
        let total = memory.iter().map(|(_, bytes)| bytes).sum::<u64>() + plan.program;
        let tokens = (recipe.batch_size * recipe.context * recipe.accumulate) as f64;
        let (efficiency, worth) = (shared.efficiency(processes, network), shared.worth(network));
        let speed = tokens / cost.seconds();
        let steps = recipe.steps;
        Several { processes, network, cost, memory, total, alone, steps, speed, efficiency, worth }
    }

    fn json(&self) -> Value {
        let ProcessCost { micros, share, sent, compute, network, hidden, .. } = self.cost;
        let (memory, scratch) = named(self.memory.clone());
        json!({
            "processes": self.processes, "network": self.network, "micro_batches": micros, "updates": share,
            "memory_bytes": memory,
            "scratch_bytes": scratch, "total_memory_bytes": self.total, "sent_bytes_per_step": sent,
            "compute_seconds": compute, "network_seconds": network, "hidden_seconds": hidden,
            "seconds_per_step": self.cost.seconds(),
            "tok_s": self.speed, "efficiency": self.efficiency, "worth_up_to": self.worth,
        })
    }

    fn rows(&self, accumulate: usize) -> Vec<(&'static str, String)> {
        let ProcessCost { micros, share, sent, compute, network, hidden, .. } = self.cost;
        // what depends on their number; the rest stands under Memory
        let parts = self.memory.iter().filter(|part| part.1 > 0 && !self.alone.contains(part));
        let parts: Vec<String> = parts.map(|(part, n)| format!("{part} {}", show::bytes(*n))).collect();
        let parts = if parts.is_empty() { String::new() } else { format!(" ({})", parts.join(", ")) };
        let time = |s: f64| if s < 10.0 { format!("{:.1} ms", 1e3 * s) } else { show::duration(s) };
        let [all, computing, waiting, on_network] = [self.cost.seconds(), compute, network - hidden, network].map(time);
        let step =
            format!("{all}: {computing} of computing, {waiting} of waiting for the network, which takes {on_network}");
        let speed = commas(self.speed as u64);
        let times = self.efficiency * self.processes as f64;
        let percent = 100.0 * self.efficiency;
        let speed = format!("{speed} tokens a second, {times:.2} times one process: {percent:.0} % efficiency");
        let micros_of_step = show::plural(accumulate, "micro-batch");
        let worth = match self.worth {
            n if n == accumulate || !accumulate.is_power_of_two() => {
                format!("up to {n}, the most that a step of {micros_of_step} can use (--accumulate)")
            }
            n => format!("up to {n}: beyond that, doubling the processes gives less than 1.3 times the speed"),
        };
        vec![
            ("each runs", format!("{} of the step's {accumulate}", show::plural(micros, "micro-batch"))),
            ("each updates", format!("at most {} parameters", commas(share))),
            ("each takes", format!("{} of memory{parts}", show::bytes(self.total))),
            ("each sends", format!("{} a step, and receives as much", show::bytes(sent))),
            ("a step", step),
            ("all steps", format!("about {}", show::duration(self.cost.seconds() * self.steps as f64))),
            ("speed", speed),
            ("worth it", worth),
        ]
    }
}

pub fn run(Args { train, plan }: Args) -> Result<()> {
    let (asked, PlanSettings { ranks: processes, network }) = train.resolved(&plan)?;
    let plan = asked.prepare()?;
    let recipe = &plan.recipe;
    check_micros(processes.unwrap_or(1), recipe.accumulate as u64, recipe.batch_size)?;
    let too_large = too_large(&plan)?;
    let flops = step_flops(&plan.model, recipe);
    let Machine { threads, level, precision, .. } = plan.machine;
    let mut roof = Roof::multiply_adds(threads, level, precision)?;
    let guess = (1.0 + extra_work(&plan.model, recipe)) * flops / (roof.measure(READINGS) * REACHED);
    let measured = measure(&plan, guess);
    // of a guess, nobody knows which part the update has
    let (gradients, update) = measured.as_ref().map_or((guess, 0.0), |m| m.seconds);
    let gpu = gpu(&plan);
    let several = processes.map(|n| Several::new(&plan, network, n, (gradients, update)));
    let estimate = Estimate {
        name: asked.name(),
        tokens_per_step: recipe.batch_size * recipe.context * recipe.accumulate,
        flops,
        roof: roof.measure(READINGS),
        step_seconds: gradients + update,
        seconds: (gradients + update) * recipe.steps as f64,
        rates: rates(recipe),
        matrices: learning(&plan.model, true),
        vectors: learning(&plan.model, false),
        // this very process holds the program, the text and the tokenizer
        total: needed(&plan.model, Some(recipe), &plan.placement) + plan.program,
        ladder: ladder(&plan)?,
        plan: &plan,
        too_large,
        measured,
        gpu,
        several,
    };
    if asked.json { show::json(&estimate.json()) } else { show::out(&estimate.text()) }
}

/// The learning rates of some steps, from 1.
fn rates(recipe: &Recipe) -> Vec<(u64, f64)> {
    let mut at =
        vec![0, recipe.warmup_steps, recipe.steps / 4, recipe.steps / 2, 3 * recipe.steps / 4, recipe.steps - 1];
    at.sort_unstable();
    at.dedup();
    at.into_iter().filter(|s| *s < recipe.steps).map(|s| (s + 1, recipe.rate(s))).collect()
}

/// What all blocks making more and more again would bring: of these models those that take less memory than all before
/// them, because no other is worth its work.
fn ladder(plan: &TrainingPlan) -> Result<Vec<Model>> {
    let TrainingPlan { model, config, recipe, placement, .. } = plan;
    let mut ladder = vec![];
    let mut least = u64::MAX;
    for level in 0..KeepLevel::ALL.len() {
        let model = Model::at_recompute_level(config, model.mode, &model.tuning, level * config.n_layer)?;
        let takes = needed(&model, Some(recipe), placement);
        if takes < least {
            least = takes;
            ladder.push(model);
        }
    }
    Ok(ladder)
}

/// The matrices, or the vectors, that learn: how many there are, and how many parameters these have. Only matrices
/// decay.
fn learning(model: &Model, matrices: bool) -> (usize, usize) {
    let own = model.learning().filter(|param| param.is_matrix() == matrices);
    own.fold((0, 0), |(n, size), param| (n + 1, size + param.region.len()))
}

/// What a training would be, and what it would cost.
struct Estimate<'a> {
    plan: &'a TrainingPlan,
    name: String,
    tokens_per_step: usize,
    /// Of a step.
    flops: f64,
    roof: f64,
    step_seconds: f64,
    /// Of all steps.
    seconds: f64,
    rates: Vec<(u64, f64)>,
    /// As [`learning`] has them.
    matrices: (usize, usize),
    vectors: (usize, usize),
    /// Bytes of memory, with the program's.
    total: u64,
    /// The same model with more and more recomputed.
    ladder: Vec<Model>,
    too_large: Option<TooLarge>,
    measured: Result<Measured>,
    gpu: Result<Option<Traffic>>,
    several: Option<Several>,
}

impl Estimate<'_> {
    /// Bytes of the memory of this training with another model.
    fn takes(&self, model: &Model) -> u64 {
        needed(model, Some(&self.plan.recipe), &self.plan.placement) + self.plan.program
    }

    fn share(&self) -> Option<f64> {
        share(self.flops / self.step_seconds, self.roof)
    }

    fn json(&self) -> Value {
        let TrainingPlan { model, config, recipe, corpus, options, .. } = self.plan;
        let ((matrices, decayed), (vectors, kept)) = (self.matrices, self.vectors);
        let (parts, scratch) = named(memory::parts(model, Some(recipe), &self.plan.placement));
        let (measured, gpu) = (self.measured.as_ref(), self.gpu.as_ref());
        let counted = gpu.ok().and_then(Option::as_ref);
        let rate = |(step, rate): &(u64, f64)| json!({ "step": step, "rate": rate });
        let again =
            |(blocks, keep): &(Range<usize>, KeepLevel)| json!({ "blocks": blocks.len(), "what": keep.recomputes() });
        let rung = |model: &Model| {
            let what = model.keep_levels()[0].1.recomputes();
            let work = extra_work(model, recipe);
            json!({ "what": what, "total_memory_bytes": self.takes(model), "extra_work": work })
        };
        let mut settings = json!(recipe);
        if let (Value::Object(all), Value::Object(options)) = (&mut settings, json!(options)) {
            all.extend(options);
        }
        let facts = [
            ("preset", json!(self.name)),
            ("config", json!(config)),
            ("recipe", settings),
            ("parameters", json!(model.parameter_count())),
            ("learning", json!(decayed + kept)),
            (
                "decay",
                json!({
                    "weight_decay": recipe.weight_decay, "matrices": matrices, "decayed": decayed, "vectors": vectors,
                    "not_decayed": kept,
                }),
            ),
            ("clip", json!({ "max_norm": recipe.clip, "scope": "global" })),
            ("tokens_per_step", json!(self.tokens_per_step)),
            ("train_tokens", json!(corpus.train.len())),
            ("validation_tokens", json!(corpus.validation.len())),
            ("learning_rates", self.rates.iter().map(rate).collect()),
            ("timelapse_frames", json!(self.plan.frames)),
            ("flops_per_step", json!(self.flops)),
            ("memory_bytes", json!(parts)),
            ("scratch_bytes", json!(scratch)),
            ("program_bytes", json!(self.plan.program)),
            ("total_memory_bytes", json!(self.total)),
            ("memory_budget", json!(self.plan.memory)),
            ("made_again", model.keep_levels().iter().map(again).collect()),
            ("extra_work", json!(extra_work(model, recipe))),
            ("ladder", self.ladder.iter().map(rung).collect()),
            ("roof_flops", json!(self.roof)),
            ("expected_seconds", json!(self.seconds)),
            ("seconds_per_step", json!(self.step_seconds)),
            ("share_of_roof", json!(self.share())),
            ("measured", json!(measured.ok())),
            ("not_measured", json!(measured.err().map(|error| format!("{error:#}")))),
            ("ranks", json!(self.several.as_ref().map(Several::json))),
            ("gpu", json!(counted.map(|(on, ..)| on))),
            ("gpu_ops", json!(counted.map(|(.., json)| json))),
            ("gpu_refuses", json!(gpu.err().map(|error| format!("{error:#}")))),
            ("fits", json!(self.too_large.is_none() && self.gpu.is_ok())),
            ("would_fit", self.too_large.iter().flat_map(|t| &t.fitting).map(|(flags, _)| flags.as_str()).collect()),
        ];
        facts.into_iter().collect()
    }

    fn text(&self) -> String {
        let threads = show::plural(self.plan.machine.threads, "thread");
        let mut text = show::sentence(&format!("{}: {}", self.name, self.plan.config)) + "\n\n";
        let mut section = |title: &str, rows: Vec<(&str, String)>| {
            text += &format!("{}\n{}\n", show::sentence(title), show::pairs(&rows));
        };
        section("Data", self.data());
        section("Parameters", self.parameters());
        section("Update", self.update());
        section("Memory", self.memory());
        section(
            "Less memory by activation checkpointing (--memory SIZE chooses), if the backward pass recomputes",
            self.less_memory(),
        );
        section("Work", self.work());
        if let Some(several) = &self.several {
            let title = format!(
                "{} over {} Gbit/s, each on a machine like this one with {threads} (docs/scale.md)",
                show::plural(several.processes, "process"),
                several.network.gigabits(),
            );
            section(&title, several.rows(self.plan.recipe.accumulate));
        }
        match &self.gpu {
            Ok(None) => {}
            Ok(Some((on, table, _))) => {
                text += &format!(
                    "A micro-batch, counted for {on}: what kernels read and write, and the least time on others \
                     (docs/gpu.md)\n"
                );
                text += table;
            }
            Err(error) => text += &format!("This model cannot be trained on the GPU: {error:#}\n"),
        }
        if let Some(too_large) = &self.too_large {
            text += &format!("\n{}\n", too_large.text());
        }
        text
    }

    fn data(&self) -> Vec<(&'static str, String)> {
        let TrainingPlan { recipe, corpus, .. } = self.plan;
        let Recipe { batch_size, context, accumulate, .. } = recipe;
        let about = [Some(corpus.about.name.clone()), corpus.about.read.clone()];
        let all = self.tokens_per_step.saturating_mul(recipe.steps as usize);
        let times = self.plan.passes().unwrap_or_default();
        let frames =
            self.plan.frames.map(|frames| ("time-lapse", format!("{} (--probe)", show::plural(frames, "frame"))));
        let rows = vec![
            ("text", about.into_iter().flatten().collect::<Vec<_>>().join(": ")),
            ("tokenizer", format!("{} with {} tokens", corpus.tokenizer_name, commas(corpus.tokenizer.vocab_size()))),
            (
                "tokens",
                format!("{} to train on, {} to validate", commas(corpus.train.len()), commas(corpus.validation.len())),
            ),
            ("a step", format!("{batch_size} x {context} x {accumulate} = {} tokens", commas(self.tokens_per_step))),
            ("all steps", format!("{} tokens, the text {times:.1} times over", commas(all))),
        ];
        let length = length(self.plan).into_iter().map(|said| ("note", said));
        rows.into_iter().chain(length).chain(frames).collect()
    }

    fn parameters(&self) -> Vec<(&'static str, String)> {
        let model = &self.plan.model;
        let groups = model.groups().into_iter().map(|(what, n)| (what, commas(n)));
        let all = [("total", commas(model.parameter_count())), ("trained", commas(self.matrices.1 + self.vectors.1))];
        groups.chain(all).collect()
    }

    fn update(&self) -> Vec<(&'static str, String)> {
        let recipe = &self.plan.recipe;
        let ((matrices, decayed), (vectors, kept)) = (self.matrices, self.vectors);
        let mut loss = format!("{} over counted rows", recipe.reduction);
        for (what, value) in [("label smoothing", recipe.label_smoothing), ("z-loss", recipe.z_loss)] {
            if value > 0.0 {
                loss += &format!(", {what} {value}");
            }
        }
        let mut rule = match recipe.optimizer {
            Method::Muon => {
                format!("muon (momentum {}) for matrices inside the model, adamw for the rest", recipe.muon_momentum)
            }
            method => method.to_string(),
        };
        rule += &format!(" (beta1 {}, beta2 {}, eps {:e})", recipe.beta1, recipe.beta2, recipe.eps);
        if recipe.ema > 0.0 {
            rule += &format!(", weights averaged over about {:.0} steps", 1.0 / (1.0 - recipe.ema));
        }
        let decay = format!(
            "{} on {matrices} matrices ({} parameters); none on {vectors} biases, gains and offsets ({})",
            recipe.weight_decay,
            commas(decayed),
            commas(kept)
        );
        let clip = if recipe.clip > 0.0 { format!("global norm, to {}", recipe.clip) } else { "none".into() };
        let accumulated = match recipe.accumulate {
            1 => "none".into(),
            n => format!("{n} micro-batches, each row weighted by all counted rows of the step"),
        };
        let rates = self.rates.iter().map(|(s, r)| format!("{r:.2e} at step {s}")).collect::<Vec<_>>().join(", ");
        vec![
            ("rule", rule),
            ("weight decay", decay),
            ("clipping", clip),
            ("gradient accumulation", accumulated),
            ("loss", loss),
            ("learning rate", format!("{}: {rates}", recipe.schedule)),
        ]
    }

    fn memory(&self) -> Vec<(&'static str, String)> {
        let TrainingPlan { model, recipe, placement, program, .. } = self.plan;
        let available = if memory::is_systems(&placement.machine, model) {
            let all = crate::machine::memory();
            all.map(|[_, available]| format!(" of {} available", show::bytes(available))).unwrap_or_default()
        } else {
            let unknown = "its driver does not report how much there is, and refuses what does not fit";
            format!(" of the {}'s own memory; {unknown}", placement.machine.device)
        };
        let parts = memory::parts(model, Some(recipe), placement).into_iter();
        let parts = parts.filter(|(_, bytes)| *bytes > 0).map(|(part, bytes)| (part.name(), show::bytes(bytes)));
        let beside = (*program > 0).then(|| ("program and text", show::bytes(*program)));
        let total = ("total", format!("{}{available}", show::bytes(self.total)));
        parts.chain(beside).chain([total, ("recomputed", recomputes(model, recipe))]).collect()
    }

    fn less_memory(&self) -> Vec<(&'static str, String)> {
        let level = |model: &Model| {
            let takes = show::bytes(self.takes(model));
            let more = extra_work(model, &self.plan.recipe);
            (model.keep_levels()[0].1.recomputes(), format!("{takes:>9}  {:+.1} % FLOPs", 100.0 * more))
        };
        self.ladder.iter().map(level).collect()
    }

    fn work(&self) -> Vec<(&'static str, String)> {
        let Machine { threads, level, .. } = self.plan.machine;
        let threads = show::plural(threads, "thread");
        let share = self.share().map(|share| format!(", {:.0} % of the roof", 100.0 * share)).unwrap_or_default();
        let (all, step) = (show::duration(self.seconds), show::duration(self.step_seconds));
        let measured = match &self.measured {
            Ok(m) => format!("now, {} steps of {} x {} tokens", m.steps, m.batch_size, m.context),
            Err(error) => format!("no, a guess, as even a small step was refused: {error:#}"),
        };
        vec![
            ("a step", format!("{}FLOP", show::count(self.flops))),
            ("roof", format!("{}FLOP/s with {threads}, {level} (measured now)", show::count(self.roof))),
            ("expected time", format!("about {all}: {step} a step{share}")),
            ("measured", measured),
        ]
    }
}

//! `plan`: what `train` with the same flags would do.

use crate::devices::{DeviceChoice, Traffic, traffic, traffic_columns};
use crate::job::{Job, JobArgs, extra_work, keys, recomputes, step_flops, too_large};
use crate::machine::{READINGS, fits, share};
use crate::options::MachineOptions;
use crate::show;
use anyhow::Result;
use limpid::backend::cpu::roof::Roof;
use limpid::memory::{self, needed, trainable};
use limpid::model::recompute::KeepLevel;
use limpid::model::{Model, init};
use limpid::ops::Batch;
use limpid::optimizer::Method;
use limpid::train::ranks::check_micros;
use limpid::train::ranks::cost::{Network, ProcessCost, SharedStep};
use limpid::train::ranks::shards::Uses;
use limpid::train::{Recipe, RunSettings};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Instant;

/// Estimate memory, time and parameter groups of a training run without running it. Nothing is written: a few steps are timed and then
/// discarded.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    train: JobArgs,
    /// Also estimate training with N processes (mpirun -n N limpid train; docs/scale.md), each on a machine like this one
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    ranks: Option<u32>,
    /// The network between the processes: 1g, 10g or 100g (Gbit/s)
    #[arg(long, value_name = "SPEED", requires = "ranks", default_value = "10g", value_parser = str::parse::<Network>)]
    network: Network,
}

/// Share of the roof that training reaches, where it is not measured: about that of presets nano to gpt2 (docs/performance.md).
const REACHED: f64 = 0.4;

/// Seconds that a step may take to be measured; of a longer one, a smaller one is.
const LONGEST: f64 = 1.5;

/// Steps that were measured.
struct Measured {
    steps: usize,
    batch_size: usize,
    context: usize,
    /// Of a step of the plan's: of all its gradients, and of its update.
    seconds: (f64, f64),
}

/// Takes some steps of the job, from weights that are any, in at most some seconds. Where a step would take long, those are of
/// fewer tokens: its gradient takes as much longer as it is more work, its update as long.
fn measure(job: &Job, machine: &MachineOptions, budget: Option<u64>, guess: f64) -> Result<Measured> {
    let mut recipe = Recipe { accumulate: 1, ..job.task.recipe };
    let mut expected = guess / job.task.recipe.accumulate as f64;
    while expected > LONGEST && recipe.batch_size * recipe.context > 64 {
        let cut = if recipe.batch_size > 1 { &mut recipe.batch_size } else { &mut recipe.context };
        let before = *cut;
        *cut = before.div_ceil(2);
        expected *= *cut as f64 / before as f64;
    }
    let model = trainable(&job.task.config, &recipe, &job.model.tuning, job.on, (job.program, budget))?;
    fits(&model, Some(&recipe), job.on, "training this model")?;
    let mut backend = machine.backend(&model)?;
    // quantised ones take another time
    let base = job.base.as_ref().filter(|base| base.is_quantised());
    base.map_or(Ok(()), |base| base.load(&model, &mut *backend))?;
    for param in model.params.iter().filter(|param| base.is_none() || param.is_adapter()) {
        backend.write(param.region, &init::any_values(param))?;
    }
    let Recipe { batch_size, context, .. } = recipe;
    let batches = recipe.batches(&job.task.corpus.train, job.task.objective)?;
    let groups = model.update_groups(recipe.weight_decay, recipe.optimizer);
    let (mut batch, mut times, start) = (Batch::default(), vec![], Instant::now());
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
    let middle = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    let (gradients, updates) = times.iter().copied().unzip();
    let work = |model: &Model, recipe: &Recipe| (1.0 + extra_work(model, recipe)) * step_flops(model, recipe);
    let more = work(&job.model, &job.task.recipe) / work(&model, &recipe);
    let seconds = (more * middle(gradients), middle(updates));
    Ok(Measured { steps: times.len(), batch_size, context, seconds })
}

/// Of models that recompute more and more those that take less memory than all before them: no other is worth its work.
fn less_memory(models: Vec<Model>, takes: impl Fn(&Model) -> u64) -> Vec<Model> {
    let mut least = u64::MAX;
    let less = |model: &Model| {
        let (takes, before) = (takes(model), least);
        least = least.min(takes);
        takes < before
    };
    models.into_iter().filter(less).collect()
}

/// What a micro-batch costs on a GPU, where one is chosen: counted of one that could be trained on.
fn gpu(job: &Job, device: &DeviceChoice) -> Result<Option<Traffic>> {
    let recipe = &job.task.recipe;
    let batch = || {
        fits(&job.model, Some(recipe), job.on, "training this model")?;
        let mut batch = Batch::default();
        recipe.batches(&job.task.corpus.train, job.task.objective)?.fill(0, 0, &mut batch);
        (batch.terms, batch.seed) = (recipe.terms(), Some(0));
        Ok(batch)
    };
    let groups = job.model.update_groups(recipe.weight_decay, recipe.optimizer);
    traffic(device, &job.model, &groups, batch, keys(&job.model, recipe))
}

/// What is no tensor's, taken out of the parts of the memory.
fn scratch(parts: &mut BTreeMap<&'static str, u64>) -> Option<u64> {
    ["threads' scratch", "kernels' scratch"].into_iter().find_map(|what| parts.remove(what))
}

/// What each of several processes would do that train together.
struct Several {
    processes: usize,
    network: Network,
    cost: ProcessCost,
    /// Bytes of each memory of one process.
    memory: Vec<(&'static str, u64)>,
    total: u64,
    /// What a process alone takes.
    alone: Vec<(&'static str, u64)>,
    steps: u64,
    /// Tokens a second of all.
    speed: f64,
    efficiency: f64,
    /// From how many processes on twice as many are less than 1.3 times as fast.
    worth: usize,
}

impl Several {
    /// Of a job whose step takes one process so many seconds for its gradients and its update.
    fn new(job: &Job, args: &Args, processes: usize, seconds: (f64, f64)) -> Several {
        let (model, recipe, network) = (&job.model, &job.task.recipe, args.network);
        let groups = model.update_groups(recipe.weight_decay, recipe.optimizer);
        let shared = SharedStep::new(&groups, &Uses::of(model), recipe.accumulate, seconds);
        let cost = shared.among(processes, network);
        let on = job.on;
        let (memory, alone) =
            (memory::parts_among(model, recipe, on, processes), memory::parts(model, Some(recipe), on));
        let total = memory.iter().map(|(_, bytes)| bytes).sum::<u64>() + job.program;
        let tokens = (recipe.batch_size * recipe.context * recipe.accumulate) as f64;
        let (efficiency, worth) = (shared.efficiency(processes, network), shared.worth(network));
        let (speed, steps) = (tokens / cost.seconds(), recipe.steps);
        Several { processes, network, cost, memory, total, alone, steps, speed, efficiency, worth }
    }

    fn json(&self) -> Value {
        let ProcessCost { micros, share, sent, compute, network, hidden, .. } = self.cost;
        let mut memory: BTreeMap<_, _> = self.memory.iter().copied().collect();
        let scratch = scratch(&mut memory);
        json!({
            "processes": self.processes, "network": self.network, "micro_batches": micros, "updates": share, "memory_bytes": memory,
            "scratch_bytes": scratch, "total_memory_bytes": self.total, "sent_bytes_per_step": sent,
            "compute_seconds": compute, "network_seconds": network, "hidden_seconds": hidden, "seconds_per_step": self.cost.seconds(),
            "tok_s": self.speed, "efficiency": self.efficiency, "worth_up_to": self.worth,
        })
    }

    fn rows(&self, accumulate: usize) -> Vec<(&'static str, String)> {
        let ProcessCost { micros, share, sent, compute, network, hidden, .. } = self.cost;
        // what depends on their number; the rest stands under Memory
        let parts = self.memory.iter().filter(|part| part.1 > 0 && !self.alone.contains(part));
        let parts: Vec<String> = parts.map(|(what, n)| format!("{what} {}", show::bytes(*n))).collect();
        let parts = if parts.is_empty() { String::new() } else { format!(" ({})", parts.join(", ")) };
        let time = |s: f64| if s < 10.0 { format!("{:.1} ms", 1e3 * s) } else { show::duration(s) };
        let worth = match self.worth {
            n if n == accumulate || !accumulate.is_power_of_two() => {
                format!(
                    "up to {n}, the most that a step of {} can use (--accumulate)",
                    show::plural(accumulate, "micro-batch")
                )
            }
            n => format!("up to {n}: beyond that, doubling the processes gives less than 1.3 times the speed"),
        };
        vec![
            ("each runs", format!("{} of the step's {accumulate}", show::plural(micros, "micro-batch"))),
            ("each updates", format!("at most {} parameters", show::commas(share as u64))),
            ("each takes", format!("{} of memory{parts}", show::bytes(self.total))),
            ("each sends", format!("{} a step, and receives as much", show::bytes(sent))),
            (
                "a step",
                format!(
                    "{}: {} of computing, {} of waiting for the network, which takes {}",
                    time(self.cost.seconds()),
                    time(compute),
                    time(network - hidden),
                    time(network)
                ),
            ),
            ("all steps", format!("about {}", show::duration(self.cost.seconds() * self.steps as f64))),
            (
                "speed",
                format!(
                    "{} tokens a second, {:.2} times one process: {:.0} % efficiency",
                    show::commas(self.speed as u64),
                    self.efficiency * self.processes as f64,
                    100.0 * self.efficiency
                ),
            ),
            ("worth it", worth),
        ]
    }
}

pub fn run(args: Args) -> Result<()> {
    let job = args.train.job()?;
    let processes = args.ranks.map(|n| n as usize);
    check_micros(processes.unwrap_or(1), job.task.recipe.accumulate as u64, job.task.recipe.batch_size)?;
    let too_large = too_large(&job)?;
    let (model, corpus, recipe, config) = (&job.model, &job.task.corpus, &job.task.recipe, &job.task.config);
    let (threads, on) = (args.train.machine.threads(), job.on);
    let level = args.train.machine.level();
    let tokens_step = recipe.batch_size * recipe.context * recipe.accumulate;
    let flops = step_flops(model, recipe);
    let mut roof = Roof::multiply_adds(threads, level, args.train.machine.precision)?;
    let guess = (1.0 + extra_work(model, recipe)) * flops / (roof.measure(READINGS) * REACHED);
    let measured = measure(&job, &args.train.machine, args.train.memory, guess);
    // of a guess, nobody knows which part the update has
    let (gradients, update) = measured.as_ref().map_or((guess, 0.0), |m| m.seconds);
    let step_seconds = gradients + update;
    let gpu = gpu(&job, &args.train.machine.device);
    let several = processes.map(|n| Several::new(&job, &args, n, (gradients, update)));
    let (roof, seconds) = (roof.measure(READINGS), step_seconds * recipe.steps as f64);
    let share = share(flops / step_seconds, roof);
    let milestones: Vec<(u64, f64)> = {
        let mut at =
            vec![0, recipe.warmup_steps, recipe.steps / 4, recipe.steps / 2, 3 * recipe.steps / 4, recipe.steps - 1];
        at.sort_unstable();
        at.dedup();
        at.into_iter().filter(|s| *s < recipe.steps).map(|s| (s + 1, recipe.rate(s))).collect()
    };
    let group = |matrix: bool| {
        let own = model.learning().filter(|p| p.is_matrix() == matrix);
        own.fold((0, 0), |(n, size), p| (n + 1, size + p.region.len()))
    };
    let ((matrices, decayed), (vectors, kept)) = (group(true), group(false));
    // this very process holds the program, the text and the tokenizer
    let program = job.program;
    let total = needed(model, Some(recipe), on) + program;
    // what all blocks making more and more again would bring
    let ladder = (0..KeepLevel::ALL.len())
        .map(|level| Model::at_recompute_level(config, model.mode, &model.tuning, level * config.n_layer));
    let ladder = less_memory(ladder.collect::<Result<Vec<Model>, _>>()?, |model| needed(model, Some(recipe), on));
    if args.train.json {
        let counted = gpu.as_ref().ok().and_then(Option::as_ref);
        let mut parts: BTreeMap<_, _> = memory::parts(model, Some(recipe), on).into_iter().collect();
        let scratch = scratch(&mut parts);
        return show::json(&json!({
            "preset": job.name, "config": config, "recipe": RunSettings { recipe: *recipe, options: job.options }, "parameters": model.parameter_count(), "learning": decayed + kept,
            "decay": {"weight_decay": recipe.weight_decay, "matrices": matrices, "decayed": decayed, "vectors": vectors, "not_decayed": kept},
            "clip": {"max_norm": recipe.clip, "scope": "global"}, "tokens_per_step": tokens_step,
            "train_tokens": corpus.train.len(), "validation_tokens": corpus.validation.len(),
            "learning_rates": milestones.iter().map(|(s, r)| json!({"step": s, "rate": r})).collect::<Vec<_>>(),
            "flops_per_step": flops, "memory_bytes": parts,
            "scratch_bytes": scratch, "program_bytes": program, "total_memory_bytes": total, "memory_budget": args.train.memory,
            "made_again": model.keeps().iter().map(|(blocks, keep)| json!({"blocks": blocks.len(), "what": keep.recomputes()})).collect::<Vec<_>>(),
            "extra_work": extra_work(model, recipe),
            "ladder": ladder.iter().map(|model| json!({"what": model.keeps()[0].1.recomputes(),
                "total_memory_bytes": needed(model, Some(recipe), on) + program, "extra_work": extra_work(model, recipe)})).collect::<Vec<_>>(), "roof_flops": roof, "expected_seconds": seconds, "seconds_per_step": step_seconds, "share_of_roof": share,
            "measured": measured.as_ref().ok().map(|m| json!({"steps": m.steps, "batch_size": m.batch_size, "context": m.context})),
            "not_measured": measured.as_ref().err().map(|e| format!("{e:#}")),
            "ranks": several.as_ref().map(Several::json), "gpu": counted.map(|(on, ..)| on),
            "gpu_ops": counted.map(|(.., json)| json), "gpu_refuses": gpu.as_ref().err().map(|e| format!("{e:#}")),
            "fits": too_large.is_none() && gpu.is_ok(), "would_fit": too_large.iter().flat_map(|t| &t.fitting).map(|(flags, _)| flags).collect::<Vec<_>>(),
        }));
    }
    let mut text = show::sentence(&format!("{}: {config}", job.name)) + "\n\n";
    let mut section = |title: &str, rows: Vec<(&str, String)>| {
        let rows: Vec<(String, String)> = rows.into_iter().map(|(k, v)| (k.to_string(), v)).collect();
        text += &format!("{}\n{}\n", show::sentence(title), show::pairs(&rows));
    };
    let n = |n: usize| show::commas(n as u64);
    section(
        "Data",
        vec![
            (
                "text",
                [Some(corpus.about.name.clone()), corpus.about.read.clone()]
                    .into_iter()
                    .flatten()
                    .collect::<Vec<_>>()
                    .join(": "),
            ),
            ("tokenizer", format!("{} with {} tokens", corpus.tokenizer_name, n(corpus.tokenizer.vocab_size()))),
            ("tokens", format!("{} to train on, {} to validate", n(corpus.train.len()), n(corpus.validation.len()))),
            (
                "a step",
                format!(
                    "{} x {} x {} = {} tokens",
                    recipe.batch_size,
                    recipe.context,
                    recipe.accumulate,
                    n(tokens_step)
                ),
            ),
            (
                "all steps",
                format!(
                    "{} tokens, the text {:.1} times over",
                    n(tokens_step.saturating_mul(recipe.steps as usize)),
                    tokens_step as f64 * recipe.steps as f64 / corpus.train.len() as f64
                ),
            ),
        ],
    );
    section(
        "Parameters",
        model
            .groups()
            .into_iter()
            .map(|(k, v)| (k, n(v)))
            .chain([("total", n(model.parameter_count())), ("trained", n(decayed + kept))])
            .collect(),
    );
    let clip = if recipe.clip > 0.0 { format!("global norm, to {}", recipe.clip) } else { "none".into() };
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
    let rates = milestones.iter().map(|(s, r)| format!("{r:.2e} at step {s}")).collect::<Vec<_>>().join(", ");
    section(
        "Update",
        vec![
            ("rule", rule),
            (
                "weight decay",
                format!(
                    "{} on {matrices} matrices ({} parameters); none on {vectors} biases, gains and offsets ({})",
                    recipe.weight_decay,
                    n(decayed),
                    n(kept)
                ),
            ),
            ("clipping", clip),
            (
                "gradient accumulation",
                format!("{} micro-batches, each row weighted by all counted rows of the step", recipe.accumulate),
            ),
            ("loss", loss),
            ("learning rate", format!("{}: {rates}", recipe.schedule)),
        ],
    );
    let available = match memory::is_systems(on.device, model) {
        true => {
            crate::machine::memory().map(|m| format!(" of {} available", show::bytes(m.available))).unwrap_or_default()
        }
        false => format!(
            " of the {}'s own memory; its driver does not report how much there is, and refuses what does not fit",
            on.device
        ),
    };
    let parts = memory::parts(model, Some(recipe), on).into_iter();
    let parts = parts.filter(|(_, bytes)| *bytes > 0).map(|(what, bytes)| (what, show::bytes(bytes)));
    let beside = (program > 0).then(|| ("program and text", show::bytes(program)));
    let more = [("total", format!("{}{available}", show::bytes(total))), ("recomputed", recomputes(model, recipe))];
    section("Memory", parts.chain(beside).chain(more).collect());
    let recompute_level = |model: &Model| {
        let takes = show::bytes(needed(model, Some(recipe), on) + program);
        (model.keeps()[0].1.recomputes(), format!("{takes:>9}  {:+.1} % FLOPs", 100.0 * extra_work(model, recipe)))
    };
    section(
        "Less memory by activation checkpointing (--memory SIZE chooses), if the backward pass recomputes",
        ladder.iter().map(recompute_level).collect(),
    );
    section(
        "Work",
        vec![
            ("a step", format!("{}FLOP", show::count(flops))),
            (
                "roof",
                format!("{}FLOP/s with {}, {level} (measured now)", show::count(roof), show::plural(threads, "thread")),
            ),
            (
                "expected time",
                format!(
                    "about {}: {} a step{}",
                    show::duration(seconds),
                    show::duration(step_seconds),
                    share.map(|share| format!(", {:.0} % of the roof", 100.0 * share)).unwrap_or_default()
                ),
            ),
            (
                "measured",
                match &measured {
                    Ok(m) => format!("now, {} steps of {} x {} tokens", m.steps, m.batch_size, m.context),
                    Err(error) => format!("no, a guess: {error:#}"),
                },
            ),
        ],
    );
    if let Some(several) = several {
        let title = format!(
            "{} over {} Gbit/s, each on a machine like this one with {} (docs/scale.md)",
            show::plural(several.processes, "process"),
            several.network.gigabits(),
            show::plural(threads, "thread")
        );
        section(&title, several.rows(recipe.accumulate));
    }
    match gpu {
        Ok(None) => {}
        Ok(Some((on, lines, _))) => {
            text += &format!(
                "A micro-batch, counted for {on}: what kernels read and write, and the least time on others (docs/gpu.md)\n"
            );
            text += &show::columns(&traffic_columns(), &lines);
        }
        Err(error) => text += &format!("This model cannot be trained on the GPU: {error:#}\n"),
    }
    if let Some(too_large) = too_large {
        text += &format!("\n{}\n", too_large.text());
    }
    show::out(&text)
}

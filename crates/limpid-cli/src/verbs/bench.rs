//! `bench`: training, prefill and decoding against the roofs of the machine, measured in the same run.

use crate::machine::{PASSES, READINGS, median, share};
use crate::models;
use crate::options::{self, Asked, MachineOptions, ModelOptions, Usage};
use crate::show;
use crate::training::{extra_work, step_flops};
use anyhow::{Result, bail};
use limpid::Machine;
use limpid::backend::cpu::roof::Roof;
use limpid::backend::{ThreadChooser, ThreadTimes};
use limpid::checkpoint::store::Dtype;
use limpid::config::Config;
use limpid::data::Tokens;
use limpid::engine::{BlockTable, DecodeRows, Decoder, DecoderLimits};
use limpid::matrix::Precision;
use limpid::memory::peak_rss;
use limpid::memory::{self, program_on, trainable};
use limpid::model::{Component, Mode, Model, Param, init};
use limpid::numeric::element::Element;
use limpid::numeric::random;
use limpid::tokenizer::Tokenizer;
use limpid::train::{Batches, Recipe, Trainer, WindowShape};
use serde_json::json;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Instant;

/// Measure training, prefill and decoding.
///
/// Tokens are random, and weights too unless a model is given; every figure is shown with its roof.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand, Debug)]
#[allow(clippy::large_enum_variant)] // made once
enum What {
    /// Steps of training
    Train(TrainArgs),
    /// Prefill: a prompt processed at once
    #[command(mut_arg("tokens", |arg| arg.help("Tokens of the prompt [default: 256, or as many as fit the context]")))]
    Prefill(InferenceArgs),
    /// Decoding: tokens one by one
    Decode(InferenceArgs),
    /// Text to ids, on one thread and on all
    Encode(EncodeArgs),
}

#[derive(clap::Args, Debug)]
struct TrainArgs {
    #[command(flatten)]
    model: ModelOptions,
    #[command(flatten)]
    recipe: Asked<Recipe>,
    #[command(flatten)]
    machine: MachineOptions,
    /// Train within this much memory (2G, 800M, 1.5GiB)
    #[arg(long, value_name = "SIZE", value_parser = options::bytes)]
    memory: Option<u64>,
    /// Print the result as JSON on stdout
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args, Debug)]
struct EncodeArgs {
    /// A text file, or builtin:stories:20M
    #[arg(value_name = "FILE")]
    data: String,
    /// gpt2, cl100k_base, o200k_base or a tokenizer.json
    #[arg(long, value_name = "NAME|FILE", default_value = "gpt2")]
    tokenizer: String,
    /// Threads to use [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Print the result as JSON on stdout
    #[arg(long)]
    json: bool,
}

/// What is measured: the weights of a model, or random ones.
#[derive(clap::Args, Debug)]
struct InferenceArgs {
    /// A model whose weights to use; quantised weights stay quantised [default: random weights of a preset]
    #[arg(long = "model", value_name = "DIR|FILE", conflicts_with = "preset")]
    path: Option<PathBuf>,
    #[command(flatten)]
    model: ModelOptions,
    /// Tokens to generate [default: 64, or as many as fit the context]
    #[arg(long, value_name = "N")]
    tokens: Option<usize>,
    #[command(flatten)]
    machine: MachineOptions,
    /// Print the result as JSON on stdout
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Result<()> {
    match args.what {
        What::Train(args) => train(&args),
        What::Prefill(args) => prefill(&args),
        What::Decode(args) => decode(&args),
        What::Encode(args) => encode(args),
    }
}

fn ids(n: usize, vocab_size: usize) -> Vec<u32> {
    (0..n as u64).map(|i| random::below(1, 0, i, vocab_size as u64) as u32).collect()
}

fn train(args: &TrainArgs) -> Result<()> {
    let config = args.model.config()?;
    let usual = Recipe::preset(args.model.name())?;
    let steps = args.recipe.over(&Recipe { steps: 20, ..usual })?.steps;
    let mut recipe = args.recipe.clone().without("steps").over(&usual)?;
    recipe.check()?;
    recipe.context = if recipe.context == 0 { config.context_length } else { recipe.context };
    args.machine.measure(&config, Mode::Train { batch: recipe.batch_size, context: recipe.context });
    let machine = args.machine.machine();
    let memory = (program_on(machine.device), args.memory);
    let model = trainable(&config, &recipe, &Default::default(), &machine, memory)?;
    memory::fits(&model, Some(&recipe), &machine)?;
    let mut roof = roof(&machine)?;
    let flops = step_flops(&model, &recipe);
    let text = Tokens::new(ids(recipe.batch_size * recipe.context + 10_000, config.vocab_size));
    let batches = Batches::new(&text, WindowShape::next_token(recipe.context), recipe.batch_size, 1)?;
    let mut trainer = Trainer::new(model.clone(), machine.start(&model)?, recipe)?;
    for _ in 0..2 {
        trainer.step(&batches)?;
    }
    settle(|| {
        trainer.step(&batches)?;
        Ok(trainer.backend.thread_choosers().first().is_none_or(ThreadChooser::is_settled))
    })?;
    let mut times = vec![];
    for _ in 0..steps.max(1) {
        let start = Instant::now();
        trainer.step(&batches)?;
        times.push(start.elapsed().as_secs_f64());
    }
    let step_rows = (recipe.batch_size * recipe.context * recipe.accumulate) as f64;
    let threads = trainer.backend.thread_choosers().first().map(|chooser| chooser.times(step_rows));
    let seconds = median(times);
    let top = roof.measure(READINGS);
    let (tok_s, rate) = (step_rows / seconds, flops / seconds);
    let rss = peak_rss();
    let facts = json!({
        "ms_per_step": 1e3 * seconds, "tok_s": tok_s, "gflops": rate / 1e9, "roof_gflops": top / 1e9,
        "share_of_roof": share(rate, top), "peak_rss_bytes": rss, "extra_work": extra_work(&model, &recipe),
        "threads": threads,
    });
    let rows = [
        ("a step", format!("{:.2} ms (median)", 1e3 * seconds)),
        ("threads", threads.map_or_else(|| machine.threads.to_string(), |times| times.to_string())),
        ("tokens a second", show::count(tok_s)),
        ("work", work(rate, top)),
        ("peak memory", rss.map_or("unknown".into(), show::bytes)),
    ];
    show::found(args.json, &facts, &rows)
}

/// Runs until the number of threads is settled, which `run` says, or many runs have not settled it.
fn settle(mut run: impl FnMut() -> Result<bool>) -> Result<()> {
    for _ in 0..2000 {
        if run()? {
            break;
        }
    }
    Ok(())
}

/// Who chooses the threads of a decoder for runs of so many rows; none if their number is fixed.
fn chooser(decoder: &mut Decoder, rows: usize) -> Option<&ThreadChooser> {
    decoder.parts().1.thread_choosers().get(rows.ilog2() as usize)
}

/// What a decoder's runs of so many rows took with each number of threads.
fn thread_times(decoder: &mut Decoder, rows: usize) -> Option<ThreadTimes> {
    Some(chooser(decoder, rows)?.times(rows as f64))
}

/// The roof of multiply-adds of a machine, measured for the first time.
fn roof(machine: &Machine) -> Result<Roof> {
    let mut roof = Roof::multiply_adds(machine.threads, machine.level, machine.precision)?;
    roof.measure(READINGS);
    Ok(roof)
}

/// Rows of one run.
const ROWS: usize = 256;

/// A decoder for one sequence, and the bytes of each parameter of its model.
fn decoder(args: &InferenceArgs) -> Result<(Decoder, Vec<usize>)> {
    let machine = &args.machine;
    let each = if machine.precision == Precision::Bf16 { Element::Bf16 } else { Element::F32 };
    if let Some(path) = &args.path {
        let checkpoint = models::adapted(path, &[], !machine.no_verify)?;
        args.model.config_of(&path.display().to_string(), &checkpoint.config)?;
        let model = Model::new(&checkpoint.config, Mode::Decode { rows: 1, outputs: 1, blocks: 1 })?;
        let bytes = |param: &Param| -> usize {
            let cols = if param.is_matrix() { param.region.cols } else { 1 };
            let of = |(rows, dtype): (Range<usize>, Dtype)| match dtype {
                Dtype::Blocks(quant) if each == Element::F32 => quant.bytes(rows.len() * cols),
                _ => each.bytes(rows.len() * cols),
            };
            checkpoint.stored_as(&model, param).into_iter().map(of).sum()
        };
        let bytes = model.params.iter().map(bytes).collect();
        let limits = DecoderLimits::of_sequences(&checkpoint.config, 1, ROWS);
        let lm = models::sharing(checkpoint, machine)?;
        return Ok((lm.decoder(limits)?, bytes));
    }
    let config = args.model.config()?;
    let limits = DecoderLimits::of_sequences(&config, 1, ROWS);
    machine.measure(&config, Mode::Decode { rows: 1, outputs: 1, blocks: 1 });
    let mut decoder = machine.machine().decoder(&config, limits)?;
    let (model, backend) = decoder.parts();
    for param in &model.params {
        backend.fill(param.region, &init::value(model, param, init::Init::Normal, 0.02, 1))?;
    }
    let bytes = model.params.iter().map(|param| each.bytes(param.region.len())).collect();
    Ok((decoder, bytes))
}

/// An empty sequence with room for a whole context.
fn sequence(decoder: &mut Decoder) -> BlockTable {
    let context = decoder.model().config.context_length;
    decoder.pool().reserve(None, context).expect("there is room for one")
}

/// Refuses more tokens than a model has room for.
fn within(asked: Option<usize>, usual: usize, most: usize) -> Result<usize> {
    let tokens = asked.unwrap_or(usual.min(most));
    if !(1..=most).contains(&tokens) {
        bail!(Usage(format!("--tokens is {tokens}: this model has room for 1 to {most} (--context-length)")));
    }
    Ok(tokens)
}

fn prefill(args: &InferenceArgs) -> Result<()> {
    let (mut decoder, _) = decoder(args)?;
    let Config { context_length, vocab_size, .. } = decoder.model().config;
    let tokens = ids(within(args.tokens, 256, context_length)?, vocab_size);
    let body: f64 = decoder.model().flops(1, tokens.len().div_ceil(2)) * tokens.len() as f64;
    let mut roof = roof(&args.machine.machine())?;
    let mut times = vec![];
    let total = tokens.len();
    let rows = total.min(ROWS);
    let table = sequence(&mut decoder);
    settle(|| {
        decoder.run([DecodeRows { table: &table, past: 0, tokens: &tokens[..rows], outputs: 0 }])?;
        Ok(chooser(&mut decoder, rows).is_none_or(ThreadChooser::is_settled))
    })?;
    decoder.pool().release(table);
    for round in 0..6 {
        let table = sequence(&mut decoder);
        let start = Instant::now();
        for (n, tokens) in tokens.chunks(ROWS).enumerate() {
            let past = n * ROWS;
            let outputs = usize::from(past + tokens.len() == total);
            decoder.run([DecodeRows { table: &table, past, tokens, outputs }])?;
        }
        if round > 0 {
            times.push(start.elapsed().as_secs_f64());
        }
        decoder.pool().release(table);
    }
    let seconds = median(times);
    let top = roof.measure(READINGS);
    // the head works for the last row only
    let head = 2.0 * (vocab_size * decoder.model().config.d_unembed()) as f64;
    let rate = (body - head * (tokens.len() - 1) as f64) / seconds;
    let tok_s = tokens.len() as f64 / seconds;
    let threads = thread_times(&mut decoder, rows);
    let facts = json!({
        "tok_s": tok_s, "gflops": rate / 1e9, "roof_gflops": top / 1e9, "share_of_roof": share(rate, top),
        "threads": threads,
    });
    let threads = threads.map_or_else(|| args.machine.threads().to_string(), |times| times.to_string());
    show::found(
        args.json,
        &facts,
        &[("tokens a second", show::count(tok_s)), ("threads", threads), ("work", work(rate, top))],
    )
}

fn decode(args: &InferenceArgs) -> Result<()> {
    let (mut decoder, stored) = decoder(args)?;
    let Config { context_length, vocab_size, .. } = decoder.model().config;
    // the first position holds what is begun with
    let tokens = within(args.tokens, 64, context_length.saturating_sub(1).max(1))?;
    let mut roof = Roof::reads(args.machine.threads(), args.machine.level())?;
    roof.measure(PASSES);
    let table = sequence(&mut decoder);
    settle(|| {
        decoder.run([DecodeRows { table: &table, past: 0, tokens: &[0], outputs: 1 }])?;
        Ok(chooser(&mut decoder, 1).is_none_or(ThreadChooser::is_settled))
    })?;
    let mut times = vec![];
    for step in 0..tokens {
        let token = [(step % vocab_size) as u32];
        let start = Instant::now();
        decoder.run([DecodeRows { table: &table, past: 1 + step, tokens: &token, outputs: 1 }])?;
        times.push(start.elapsed().as_secs_f64());
    }
    let seconds = median(times);
    let top = roof.measure(PASSES);
    let threads = thread_times(&mut decoder, 1);
    // every weight but the tables' other rows is read once a token
    let model = decoder.model();
    let is_table = |param: &Param| match param.module.part {
        Component::PosEmbed => true,
        Component::Embed => !model.config.tied_head,
        _ => false,
    };
    let read = model.params.iter().zip(stored).filter(|(param, _)| !is_table(param)).map(|(_, bytes)| bytes);
    let bytes = read.sum::<usize>() as f64;
    let rate = bytes / seconds;
    let facts = json!({
        "tok_s": 1.0 / seconds, "gb_s": rate / 1e9, "read_roof_gb_s": top / 1e9, "share_of_roof": share(rate, top),
        "threads": threads,
    });
    let threads = threads.map_or_else(|| args.machine.threads().to_string(), |times| times.to_string());
    let read = format!("{:.1} GB/s of {:.1} measured beside it: {}", rate / 1e9, top / 1e9, percent(rate, top));
    let tok_s = format!("{:.1}", 1.0 / seconds);
    show::found(args.json, &facts, &[("tokens a second", tok_s), ("threads", threads), ("weights read", read)])
}

/// A rate of multiply-adds beside its roof.
fn work(rate: f64, top: f64) -> String {
    format!("{:.1} GFLOP/s of {:.0} measured beside it: {}", rate / 1e9, top / 1e9, percent(rate, top))
}

/// A rate in hundredths of a roof.
fn percent(rate: f64, top: f64) -> String {
    let disturbed = "more than it, so other programs disturbed that measurement".into();
    share(rate, top).map_or(disturbed, |share| format!("{:.0} %", 100.0 * share))
}

/// The best of three, of one text in memory.
fn encode(args: EncodeArgs) -> Result<()> {
    let text = limpid::data::source::text(&args.data)?;
    let threads = options::threads(args.threads);
    let tokenizer = Tokenizer::for_texts(&args.tokenizer, &|| vec![text.as_str().into()], &[], threads)?;
    let megabytes = text.len() as f64 / 1e6;
    tokenizer.encode("the tables are made")?;
    let rate = |threads: usize| -> Result<(f64, usize)> {
        let mut best = f64::MAX;
        let mut tokens = 0;
        for _ in 0..3 {
            let start = Instant::now();
            tokens = tokenizer.encode_on(threads, &text, true)?.len();
            best = best.min(start.elapsed().as_secs_f64());
        }
        Ok((megabytes / best, tokens))
    };
    let ((one, tokens), (all, _)) = (rate(1)?, rate(threads)?);
    if args.json {
        return show::json(&json!({
            "tokenizer": tokenizer.name(), "bytes": text.len(), "tokens": tokens, "threads": threads,
            "one_thread_mb_s": one, "all_threads_mb_s": all
        }));
    }
    let name = tokenizer.name();
    let tokens = show::commas(tokens);
    let threads = show::plural(threads, "thread");
    show::out(&format!(
        "{name}: {megabytes:.1} MB, {tokens} tokens; one thread {one:.1} MB/s, {threads} {all:.1} MB/s\n"
    ))
}

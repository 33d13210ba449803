//! Where the time of a training step goes: `cargo bench --bench step -- nano 1 64 0 avx2 1979` (preset, threads,
//! context, recompute level as in `Model::at_recompute_level`, instruction set, vocabulary). Prints the time of whole
//! steps, as training runs them; then, for each kind of op and direction, milliseconds, GFLOP/s and the share of their
//! sum. These ops run one at a time, so with several threads the gradients of a small model's weights, each a task of
//! one thread, take longer there than side by side in a step.

use limpid::backend::{Backend, Cpu};
use limpid::config::Config;
use limpid::matrix::Precision;
use limpid::model::{Mode, Model};
use limpid::numeric::random;
use limpid::numeric::simd::Level;
use limpid::ops::{Batch, Pass};
use limpid::train::Recipe;
use std::collections::BTreeMap;
use std::time::Instant;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let preset = args.first().map_or("nano", String::as_str);
    let threads = args.get(1).and_then(|t| t.parse().ok()).unwrap_or(2);
    let mut config = Config::preset(preset).expect("a preset");
    let recipe = Recipe::preset(preset).expect("a preset");
    let context = args.get(2).and_then(|t| t.parse().ok()).unwrap_or(if recipe.context == 0 {
        config.context_length
    } else {
        recipe.context
    });
    config.vocab_size = args.get(5).and_then(|t| t.parse().ok()).unwrap_or(config.vocab_size);
    let recompute_level = args.get(3).and_then(|r| r.parse().ok()).unwrap_or(0);
    let mode = Mode::Train { batch: recipe.batch_size, context };
    let model = Model::at_recompute_level(&config, mode, &Default::default(), recompute_level).expect("a model");
    let level = args.get(4).map_or_else(Level::best, |name| Level::named(name).expect("an instruction set"));
    let mut cpu = Cpu::with(&model, threads, level, Precision::F32);
    let rows = recipe.batch_size * context;
    for param in &model.params {
        let values = limpid::model::init::values(&model, param, recipe.init, recipe.init_std, 1);
        cpu.write(param.region, &values).unwrap();
    }
    let ids =
        |site| (0..rows as u64).map(|i| random::below(1, site, i, config.vocab_size as u64) as u32).collect::<Vec<_>>();
    let mut batch = Batch::of_sequences(ids(1), ids(2), context);
    batch.seed = Some(1);
    cpu.feed(&batch).unwrap();
    let steps = if config.d_model > 256 { 4 } else { 20 };
    let mut whole = [0.0; 3];
    for step in 0..steps + 3 {
        let start = Instant::now();
        cpu.forward(model.body()).unwrap();
        let forward = start.elapsed().as_secs_f64();
        cpu.backward(model.back()).unwrap();
        let backward = start.elapsed().as_secs_f64();
        cpu.update(&model.update_groups(0.1, recipe.optimizer), &recipe.rule(1e-3, step + 1), &mut []).unwrap();
        if step >= 3 {
            let ends = [0.0, forward, backward, start.elapsed().as_secs_f64()];
            (0..3).for_each(|phase| whole[phase] += 1e3 * (ends[phase + 1] - ends[phase]) / steps as f64);
        }
    }
    println!(
        "{preset}, {threads} threads, {}: {:.2} ms a step: forward {:.2}, backward {:.2}, update {:.2}",
        level,
        whole.iter().sum::<f64>(),
        whole[0],
        whole[1],
        whole[2]
    );
    let mut times: BTreeMap<(String, &str), (f64, f64)> = BTreeMap::new();
    for step in 0..steps + 3 {
        let mut note = |name: String, way, flops: f64, start: Instant| {
            if step >= 3 {
                let entry = times.entry((name, way)).or_default();
                *entry = (entry.0 + start.elapsed().as_secs_f64(), entry.1 + flops);
            }
        };
        for (op, alone) in model.body().each() {
            let start = Instant::now();
            cpu.forward(alone).unwrap();
            note(op.name().into(), "forward", op.flops(rows, context / 2), start);
        }
        for (pass, alone) in model.back().each() {
            let start = Instant::now();
            cpu.backward(alone).unwrap();
            let (op, way, times) = match pass {
                Pass::Recompute(op) => (op, "again", 1.0),
                Pass::Back(back) => (&back.op, "backward", 2.0),
            };
            note(op.name().into(), way, times * op.flops(rows, context / 2), start);
        }
        let start = Instant::now();
        cpu.update(&model.update_groups(0.1, recipe.optimizer), &recipe.rule(1e-3, step + 1), &mut []).unwrap();
        note("update".into(), "", 0.0, start);
    }
    let all: f64 = times.values().map(|t| t.0).sum();
    println!("op by op: {:.2} ms", 1e3 * all / steps as f64);
    for ((name, way), (seconds, flops)) in times {
        let ms = 1e3 * seconds / steps as f64;
        println!(
            "{name:<10} {way:<9} {ms:>9.3} ms {:>5.1} %  {:>7.1} GFLOP/s",
            100.0 * seconds / all,
            flops / seconds / 1e9
        );
    }
}

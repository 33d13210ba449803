//! The same bits at every instruction level: whole training steps and evaluations of every kind of model, by every
//! optimizer, in both precisions. (That a decoded token is the full forward to the bit, at each level, is a test of
//! decode.rs.)

#[path = "../../examples/same_bits.rs"]
#[allow(dead_code)] // its `main`
mod example;

use crate::common::folder::Folder;
use crate::random_config::{configs, fill};
use limpid::backend::{Backend, Cpu};
use limpid::config::{Axis, Config};
use limpid::matrix::Precision;
use limpid::model::{Mode, Model};
use limpid::numeric::random;
use limpid::numeric::simd::Level;
use limpid::ops::Batch;
use limpid::optimizer::Method;
use limpid::train::Recipe;

const BATCH: usize = 3;

fn batch(config: &Config, context: usize, step: u64) -> Batch {
    let ids = |site| {
        let id = |i| random::below(7, site, i, config.vocab_size as u64) as u32;
        (0..(BATCH * context) as u64).map(id).collect::<Vec<u32>>()
    };
    Batch::of_sequences(ids(2 * step), ids(2 * step + 1), context)
}

/// What three steps of training come to, tensor by tensor, and the losses on the way and of an evaluation after it.
fn train(
    config: &Config,
    (optimizer, precision): (Method, Precision),
    (level, threads): (Level, usize),
) -> Vec<(String, Vec<f32>)> {
    let context = config.context_length.min(70);
    let model = Model::new(config, Mode::Train { batch: BATCH, context }).unwrap();
    let mut cpu = Cpu::with(&model, threads, level, precision);
    fill(&model, &mut cpu, 5);
    let recipe = Recipe {
        optimizer,
        learning_rate: 1e-2,
        label_smoothing: 0.1,
        z_loss: 1e-3,
        ema: 0.9,
        clip: 0.5,
        ..Recipe::default()
    };
    let (groups, mut found) = (model.update_groups(0.1, optimizer), vec![]);
    for step in 1..=3 {
        let mut batch = batch(config, context, step);
        (batch.terms, batch.seed, batch.weight) = (recipe.terms(), Some(step), 1.0 / (BATCH * context) as f32);
        cpu.feed(&batch).unwrap();
        cpu.forward(model.body()).unwrap();
        cpu.backward(model.back()).unwrap();
        found.push((format!("losses of step {step}"), cpu.read(model.losses().unwrap()).unwrap()));
        let report = cpu.update(&groups, &recipe.rule(recipe.rate(step), step), &mut []).unwrap();
        assert!(report.finite);
        found.push((
            format!("the norm of step {step}"),
            vec![report.norm as f32, (report.norm - f64::from(report.norm as f32)) as f32],
        ));
        cpu.average(&groups, recipe.averaging(step)).unwrap();
    }
    let score = Model::new(config, Mode::Score { batch: BATCH, context }).unwrap();
    let mut scorer = Cpu::with(&score, threads, level, precision);
    for (param, to) in model.params.iter().zip(&score.params) {
        let values = cpu.read(param.region).unwrap();
        scorer.write(to.region, &values).unwrap();
        found.push((param.name.clone(), values));
        let average = limpid::ops::Region { space: limpid::ops::MemorySpace::Average, ..param.region };
        found.push((format!("the average of {}", param.name), cpu.read(average).unwrap()));
    }
    scorer.feed(&batch(config, context, 9)).unwrap();
    scorer.forward(score.ops()).unwrap();
    found.push(("losses of the evaluation".into(), scorer.read(score.losses().unwrap()).unwrap()));
    found
}

/// Trains at every level and holds the bits against those of the portable one, which is the first.
fn compare(config: &Config, how: (Method, Precision)) {
    let want = train(config, how, (Level::PORTABLE, 1));
    assert!(want.iter().all(|(_, values)| values.iter().all(|v| v.is_finite())), "{config:?}");
    for (i, level) in Level::available().into_iter().enumerate().skip(1) {
        let threads = 1 + i % 3;
        for ((name, want), (_, got)) in want.iter().zip(train(config, how, (level, threads))) {
            for (at, (want, got)) in want.iter().zip(&got).enumerate() {
                let same = want.to_bits() == got.to_bits();
                assert!(same, "{how:?}: {name}[{at}] is {got:e} at {level}, {want:e} at portable; {config:?}");
            }
        }
    }
}

#[test]
#[ignore = "gate"]
fn training_is_the_same_to_the_bit_at_every_level() {
    let ways: Vec<_> = Method::ALL.iter().flat_map(|m| [(*m, Precision::F32), (*m, Precision::Bf16)]).collect();
    for (i, config) in configs().iter().enumerate() {
        compare(config, ways[i % ways.len()]);
    }
}

/// Sizes that fill tiles, blocks of keys and lanes, and sizes that no vector divides.
#[test]
#[ignore = "gate"]
fn so_are_models_of_some_size() {
    for (preset, d_model) in [("nano", 128), ("nano-llama", 128), ("formulated-gpt", 72)] {
        let preset = Config::preset(preset).unwrap();
        let config = Config {
            d_model,
            n_head: 4,
            n_layer: 2,
            d_ff: 3 * d_model + 1,
            vocab_size: 211,
            context_length: 70,
            ..preset
        };
        for how in [(Method::AdamW, Precision::F32), (Method::Muon, Precision::Bf16)] {
            compare(&config, how);
        }
    }
}

/// What `cargo xtask targets` compares with other processors.
#[test]
fn the_levels_of_this_machine_print_the_same_hashes() {
    let folder = Folder::new("same-bits");
    let hashes = |level| example::same_bits(level, &folder).unwrap();
    let want = hashes(Level::PORTABLE);
    assert!(want.len() > 8 && want.iter().all(|(_, hash)| hash.len() == 64), "{want:?}");
    for level in Level::available() {
        assert_eq!(hashes(level), want, "{level}");
    }
}

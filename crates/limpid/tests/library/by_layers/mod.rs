//! Runs of tiny random models, whole and block by block.
#![allow(dead_code)]

use super::random_config::fill;
use limpid::backend::Cpu;
use limpid::config::{Config, Mask};
use limpid::model::{Mode, Model, Tuning};
use limpid::numeric::random;
use limpid::ops::Batch;
use limpid::trace::{Keep, Trace};

/// Random tokens, targets and segments; some of the last sequence is padding where a mask can hide it.
pub fn batch(config: &Config, sequences: usize, length: usize, seed: u64) -> Batch {
    let n = (sequences * length) as u64;
    let ids = |site| (0..n).map(|i| random::below(seed, site, i, config.vocab_size as u64) as u32).collect::<Vec<_>>();
    let mut batch = Batch::of_sequences(ids(1), ids(2), length);
    if let Some(last) = batch.spans.last_mut().filter(|_| config.mask == Mask::Bidirectional) {
        last.valid = length.div_ceil(2);
    }
    if config.n_segment > 0 {
        batch.segments = (0..n as u32).map(|i| i % 2).collect();
    }
    batch
}

/// The same weights in a model of another mode.
pub fn filled(config: &Config, mode: Mode, threads: usize, seed: u64) -> (Model, Cpu) {
    tuned(config, mode, &Tuning::default(), threads, seed)
}

/// And with an adapter.
pub fn tuned(config: &Config, mode: Mode, tuning: &Tuning, threads: usize, seed: u64) -> (Model, Cpu) {
    let model = Model::tuned(config, mode, tuning).unwrap();
    let mut backend = Cpu::new(&model, threads);
    fill(&model, &mut backend, seed);
    (model, backend)
}

pub fn by_layers(config: &Config, batch: &Batch, threads: usize, seed: u64, budget: usize) -> Trace {
    let (sequences, length) = (batch.spans.len(), batch.spans[0].rows);
    let (model, backend) = filled(config, Keep::default().mode(sequences, length), threads, seed);
    Trace::run(&model, Box::new(backend), batch, Keep::Blocks { seen: budget }).unwrap()
}

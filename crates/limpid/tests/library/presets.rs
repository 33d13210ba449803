//! Every preset at its own size: the look before the first step, and a step. It takes minutes and gigabytes, so it is
//! ignored unless asked for; `cargo xtask sweep` does.

use limpid::backend::Cpu;
use limpid::config::{Config, Mask, PRESETS};
use limpid::data::Tokens;
use limpid::model::{Mode, Model, Tuning};
use limpid::numeric::random;
use limpid::train::{Batches, Objective, Recipe, Trainer, WindowShape, preflight};
use std::ops::Range;

/// Bytes that are free for the asking; where the system does not say, enough for all but the largest.
fn available() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok()).map_or(8 << 30, |kb| kb << 10)
}

/// Starts the presets of so many parameters with a batch of one window of at most 32 tokens; width, depth and
/// vocabulary are the preset's. What does not fit in memory is returned.
fn start(sizes: Range<usize>) -> Vec<&'static str> {
    let mut over = vec![];
    for name in PRESETS.iter().copied() {
        let config = Config::preset(name).unwrap();
        let context = config.context_length.min(32);
        let recipe = Recipe { batch_size: 1, context, warmup_steps: 0, ..Recipe::preset(name).unwrap() };
        let masked = config.mask != Mask::Causal;
        let vocab_size = config.vocab_size;
        let objective = if masked {
            Objective::Masked { mask: 3, vocab_size, segments: config.n_segment > 0 }
        } else {
            Objective::NextToken
        };
        let mode = Mode::Train { batch: 1, context };
        let model = Model::tuned(&config, mode, &Tuning::default()).unwrap();
        let parameters = model.parameter_count();
        if !sizes.contains(&parameters) {
            continue;
        }
        let parts = model.memory().into_iter().chain(recipe.memory(&model)).map(|(_, bytes)| bytes).sum::<usize>();
        // the look before the first step copies the largest parameter
        let largest = model.params.iter().map(|p| 8 * p.region.len()).max().unwrap_or(0);
        let bytes = (parts + largest + Cpu::scratch_bytes(&model, 2)) as u64;
        if bytes > available() {
            println!("{name}: {parameters} parameters need {bytes} bytes, more than there are");
            over.push(name);
            continue;
        }
        let start = std::time::Instant::now();
        let text = Tokens::new((0..2000).map(|i| random::below(1, 0, i, vocab_size as u64) as u32).collect());
        let batches = Batches::new(&text, WindowShape::new(context, objective), 1, 1).unwrap();
        let backend = Box::new(Cpu::new(&model, 2));
        let mut trainer = Trainer::new(model, backend, recipe).unwrap();
        let seen = preflight(&mut trainer, &batches).unwrap_or_else(|error| panic!("{name}: {error}"));
        let step = trainer.step(&batches).unwrap_or_else(|error| panic!("{name}: {error}"));
        let (loss, norm) = step.loss.zip(step.norm).unwrap();
        assert!(loss.is_finite() && norm > 0.0 && norm.is_finite(), "{name}: {step:?}");
        println!("{name}: {parameters} parameters, {seen:?}, {step:?}, {:.1} s", start.elapsed().as_secs_f64());
    }
    over
}

/// Longer than the gate may take: `cargo xtask sweep` runs them.
mod slow {
    use super::*;

    #[test]
    #[ignore = "minutes, and 8 GB of memory"]
    fn every_preset_of_middle_size_starts_at_its_own() {
        let over = start(0..400_000_000);
        assert!(over.is_empty(), "{over:?} do not fit");
    }

    #[test]
    #[ignore = "minutes, and most of 24 GB of memory"]
    fn large_presets_start_at_their_own_size() {
        println!("{:?} do not fit", start(400_000_000..usize::MAX));
    }
}

//! What a training step takes with each number of threads: shown, not chosen by. A run finds its number itself.

use super::Machine;
use crate::backend::ThreadTimes;
use crate::config::Config;
use crate::data::Tokens;
use crate::error::Result;
use crate::model::{Mode, Model};
use crate::train::{Batches, Recipe, Trainer, WindowShape};
use std::time::Instant;

/// Steps with each number of threads, of which the fastest counts.
const STEPS: usize = 5;

impl Machine {
    /// Measures a training step of the preset `nano` with 1, 2, 4, ... and `most` threads of this processor.
    ///
    /// # Errors
    /// If the system refuses memory or threads.
    pub fn nano_step_times(&self, most: usize) -> Result<ThreadTimes> {
        let (config, recipe) = (Config::preset("nano")?, Recipe::preset("nano")?);
        let recipe = Recipe { context: config.context_length, ..recipe };
        let model = Model::new(&config, Mode::Train { batch: recipe.batch_size, context: recipe.context })?;
        let text = Tokens::new((0..10_000).map(|i| i % config.vocab_size as u32).collect());
        let batches = Batches::new(&text, WindowShape::next_token(recipe.context), recipe.batch_size, recipe.seed)?;
        let step = |threads: usize| -> Result<(usize, f64)> {
            let backend = Machine { level: self.level, ..Machine::cpu(threads) }.start(&model)?;
            let mut trainer = Trainer::new(model.clone(), backend, recipe)?;
            let mut least = f64::MAX;
            for _ in 0..STEPS {
                let start = Instant::now();
                trainer.step(&batches)?;
                least = least.min(start.elapsed().as_secs_f64());
            }
            Ok((threads, least))
        };
        let numbers = std::iter::successors(Some(1), |n| Some(2 * n)).take_while(|n| *n < most).chain([most.max(1)]);
        let seconds = numbers.map(step).collect::<Result<Vec<_>>>()?;
        let chosen = seconds.iter().min_by(|a, b| a.1.total_cmp(&b.1)).map_or(1, |(threads, _)| *threads);
        Ok(ThreadTimes { chosen, most, seconds })
    }
}

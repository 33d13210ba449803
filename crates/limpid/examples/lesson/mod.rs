//! What the lessons with training share: a text, a small model, and one run of it.

use limpid::backend::Cpu;
use limpid::config::Config;
use limpid::data::{Batches, Objective, Tokens, Windows, stories};
use limpid::evaluate::score;
use limpid::model::{Mode, Model};
use limpid::tokenizer::{Order, Tokenizer, TokenizerKind};
use limpid::train::{Recipe, TrainError, Trainer};

/// The built-in stories as characters: some to learn from, others to be judged by.
pub struct Text {
    pub train: Tokens,
    pub validation: Tokens,
    pub vocab_size: usize,
}

impl Text {
    /// `bytes` to learn from.
    pub fn new(bytes: usize) -> Text {
        let (all, _) = stories::corpus(7, bytes + 10_000);
        let tokenizer = Tokenizer::train(TokenizerKind::Char, &all, Order::Sorted, &[]).expect("a text");
        let ids = tokenizer.encode(&all).expect("its own characters");
        let (train, validation) = ids.split_at(bytes);
        Text {
            train: Tokens::of(train.to_vec()),
            validation: Tokens::of(validation[..10_000].to_vec()),
            vocab_size: tokenizer.vocab_size(),
        }
    }
}

/// The losses of a run.
#[derive(Clone, Debug)]
pub struct Course {
    /// The loss of each step, up to the first that was not finite.
    pub losses: Vec<f64>,
    /// (step, validation loss), as often as asked.
    pub validation: Vec<(u64, f64)>,
    /// The loss of the whole training text at the end, as validation is measured, if that was asked for.
    pub train: f64,
}

impl Course {
    /// The mean loss of the last 20 steps; infinite where training broke off.
    pub fn last(&self, steps: u64) -> f64 {
        let tail = self.losses.iter().rev().take(20).sum::<f64>() / 20.0;
        if self.losses.len() < steps as usize { f64::INFINITY } else { tail }
    }
}

/// Trains the model of `config`, with the text's vocabulary and the recipe's context, and evaluates it every
/// `eval_every` steps if that is above 0. Training ends at the first loss that is not finite.
pub fn course(text: &Text, config: &Config, recipe: Recipe, eval_every: u64) -> Result<Course, TrainError> {
    let (batch, context) = (recipe.batch_size, recipe.context);
    let config = Config { vocab_size: text.vocab_size, context_length: context, ..config.clone() };
    let model = Model::new(&config, Mode::Train { batch, context })?;
    let backend = Box::new(Cpu::new(&model, 1));
    let mut trainer = Trainer::new(model, backend, recipe)?;
    let batches = Batches::new(&text.train, batch, context, recipe.seed, Objective::NextToken)?;
    let windows = |tokens| Windows::new("text", tokens, context, Objective::NextToken);
    let (seen, unseen) = (windows(&text.train)?, windows(&text.validation)?);
    let judge = |t: &mut Trainer, text: &Windows| {
        score(&t.model, &mut *t.backend, text, batch, &mut |_| true).map(|score| score.loss())
    };
    let mut course = Course { losses: vec![], validation: vec![], train: f64::NAN };
    for step in 1..=recipe.steps {
        match trainer.step(&batches) {
            Ok(done) => course.losses.push(done.loss),
            Err(TrainError::NotFinite { .. }) => break,
            Err(error) => return Err(error),
        }
        if eval_every > 0 && step % eval_every == 0 {
            course.validation.push((step, trainer.averaged(|t| judge(t, &unseen))??));
        }
    }
    if eval_every > 0 {
        course.train = trainer.averaged(|t| judge(t, &seen))??;
    }
    Ok(course)
}

/// Applies `f` to each, in parallel: there are many small runs, so each gets a thread.
pub fn each<T: Sync, R: Send>(of: &[T], f: impl Fn(&T) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let running: Vec<_> = of.iter().map(|one| scope.spawn(|| f(one))).collect();
        running.into_iter().map(|run| run.join().expect("a run returns")).collect()
    })
}

/// A loss as a cell of a table.
pub fn cell(loss: f64) -> String {
    if loss.is_finite() { format!("{loss:>8.3}") } else { format!("{:>8}", "broke") }
}

//! What the lessons that train have in common: a text, a small model, and one run of it.

use limpid::backend::Cpu;
use limpid::config::Config;
use limpid::data::{Batches, Objective, Tokens, Windows, stories};
use limpid::evaluate::score;
use limpid::model::{Model, Use};
use limpid::tokenizer::{Kind, Order, Tokenizer};
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
        let (all, _) = stories::corpus(7, bytes + 20_000);
        let tokenizer = Tokenizer::train(Kind::Char, &all, Order::Sorted, &[]).expect("a text");
        let ids = tokenizer.encode(&all).expect("its own characters");
        let (train, validation) = ids.split_at(bytes);
        Text {
            train: Tokens::of(train.to_vec()),
            validation: Tokens::of(validation[..20_000].to_vec()),
            vocab_size: tokenizer.vocab_size(),
        }
    }
}

/// What a run came to.
#[derive(Clone, Debug)]
pub struct Course {
    /// Each step's loss, up to the one that was no number.
    pub losses: Vec<f64>,
    /// Each step's norm of the gradient, before clipping.
    pub norms: Vec<f64>,
    /// (step, validation loss), as often as asked.
    pub validation: Vec<(u64, f64)>,
}

impl Course {
    /// The mean loss of the last 20 steps; infinite where training broke off.
    pub fn last(&self, steps: u64) -> f64 {
        let tail = self.losses.iter().rev().take(20);
        if self.losses.len() < steps as usize { f64::INFINITY } else { tail.clone().sum::<f64>() / tail.len() as f64 }
    }

    /// The least validation loss.
    pub fn best(&self) -> f64 {
        self.validation.iter().map(|(_, loss)| *loss).fold(f64::INFINITY, f64::min)
    }
}

/// Trains `config`'s model, its sizes filled in, by `recipe`, evaluating every `eval_every` steps if that is above 0.
pub fn course(text: &Text, config: &Config, recipe: Recipe) -> Result<Course, TrainError> {
    let (batch, context) = (recipe.batch_size, recipe.context);
    let config = Config { vocab_size: text.vocab_size, context_length: context, ..config.clone() };
    let model = Model::new(&config, Use::Train { batch, context })?;
    let backend = Box::new(Cpu::new(&model, 2));
    let mut trainer = Trainer::new(model, backend, recipe);
    let batches = Batches::new(&text.train, batch, context, recipe.seed, Objective::NextToken)?;
    let windows = Windows::new("validation", &text.validation, context, Objective::NextToken)?;
    let mut course = Course { losses: vec![], norms: vec![], validation: vec![] };
    for step in 1..=recipe.steps {
        match trainer.step(&batches) {
            Ok(done) => (course.losses.push(done.loss), course.norms.push(done.norm)),
            Err(TrainError::NotFinite { .. }) => break,
            Err(error) => return Err(error),
        };
        if recipe.eval_every > 0 && step % recipe.eval_every == 0 {
            let judge = |t: &mut Trainer| score(&t.model, &mut *t.backend, &windows, batch, &mut |_| true).loss();
            course.validation.push((step, trainer.averaged(judge)));
        }
    }
    Ok(course)
}

/// A loss as a cell of a table.
pub fn cell(loss: f64) -> String {
    if loss.is_finite() { format!("{loss:>8.3}") } else { format!("{:>8}", "broke") }
}

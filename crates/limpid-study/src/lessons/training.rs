//! What the lessons share that train: a text, a small model, and the losses of its runs.

use super::{Class, LessonEvent, Tick};
use limpid::{Error, Lm, Machine, Training};
use limpid_core::config::Config;
use limpid_core::model::tables;
use limpid_core::model::{Mode, Model, Tuning};
use limpid_core::optimizer::Method;
use limpid_data::{Tokens, stories};
use limpid_tokenizer::{Order, Tokenizer, TokenizerKind};
use limpid_train::evaluate::score;
use limpid_train::{Control, Objective, Recipe, Schedule, TrainError, Trainer, WindowShape, Windows};

/// Bytes of a text that runs are judged by.
const JUDGED: usize = 5_000;

/// Some of the built-in stories to learn from, and others to be judged by.
pub(super) struct Text {
    pub train: Tokens,
    /// The beginning of what is learned, as much as is judged.
    pub seen: Tokens,
    pub unseen: Tokens,
    pub tokenizer: Tokenizer,
}

impl Text {
    /// About `bytes` to learn from, as characters or words.
    pub fn new(bytes: usize, kind: TokenizerKind) -> Result<Text, Error> {
        let (all, _) = stories::corpus(7, bytes + JUDGED);
        let tokenizer = Tokenizer::train(kind, &all, Order::Sorted, &[])?;
        let ids = tokenizer.encode(&all)?;
        let judged = ids.len() * JUDGED / all.len();
        let (train, unseen) = ids.split_at(ids.len() - judged);
        let [seen, train, unseen] =
            [&train[..train.len().min(judged)], train, unseen].map(|ids| Tokens::new(ids.to_vec()));
        Ok(Text { train, seen, unseen, tokenizer })
    }
}

/// A model to train, and how.
#[derive(Clone)]
pub(super) struct Study {
    pub config: Config,
    pub recipe: Recipe,
    pub tuning: Tuning,
    /// What stands in the position table before the first step instead of what is drawn: sinusoids of this size; 0 for
    /// none.
    pub sinusoids: f64,
    /// Steps between evaluations; 0 for none at all.
    pub eval_every: u64,
}

/// The losses of a run.
#[derive(Clone, Debug)]
pub(super) struct Course {
    /// The loss of each step, up to the first that was not finite.
    pub losses: Vec<f64>,
    /// (step, validation loss), as often as asked.
    pub validation: Vec<(u64, f64)>,
    /// The loss of the beginning of the training text at the end, as validation is measured, if that was asked for.
    pub train: f64,
    /// The token table (V,C) before the first step and after the last.
    pub tables: [Vec<f32>; 2],
}

impl Course {
    /// The mean loss of the last 20 of `steps`; infinite where training broke off.
    pub fn last(&self, steps: u64) -> f64 {
        let tail = self.losses.iter().rev().take(20).sum::<f64>() / 20.0;
        if self.losses.len() < steps as usize { f64::INFINITY } else { tail }
    }
    /// The last validation loss.
    pub fn end(&self) -> f64 {
        self.validation.last().map_or(f64::INFINITY, |(_, loss)| *loss)
    }
}

impl Study {
    /// A GPT-2 of `n_layer` blocks, d_model 32, and a recipe without warm-up, clipping or decay at a constant rate.
    pub fn small(n_layer: usize) -> Result<Study, Error> {
        let config = Config { d_model: 32, n_head: 4, n_layer, d_ff: 128, ..Config::preset("nanogpt-cpu")? };
        let recipe = Recipe {
            batch_size: 8,
            context: 32,
            learning_rate: 3e-3,
            min_learning_rate: 0.0,
            warmup_steps: 0,
            schedule: Schedule::Constant,
            weight_decay: 0.0,
            clip: 0.0,
            ..Recipe::default()
        };
        Ok(Study { config, recipe, tuning: Tuning::default(), sinusoids: 0.0, eval_every: 0 })
    }

    /// A model of two blocks whose loss is measured after the last of 300 steps.
    pub fn judged() -> Result<Study, Error> {
        let study = Study::small(2)?;
        let recipe = Recipe {
            steps: 300,
            batch_size: 16,
            warmup_steps: 20,
            schedule: Schedule::Cosine,
            clip: 1.0,
            ..study.recipe
        };
        Ok(Study { recipe, eval_every: recipe.steps, ..study })
    }

    /// Trains, with the text's vocabulary and the recipe's context. Training ends at the first loss that is not finite.
    fn run(&self, text: &Text, seed: u64, tick: Tick) -> Result<Course, Error> {
        let recipe = Recipe { seed, ..self.recipe };
        let (batch, context) = (recipe.batch_size, recipe.context);
        let config = Config { vocab_size: text.tokenizer.vocab_size(), context_length: context, ..self.config.clone() };
        let model = Model::tuned(&config, Mode::Train { batch, context }, &self.tuning)?;
        let backend = Machine::cpu(1).start(&model)?;
        let mut trainer = Trainer::new(model, backend, recipe)?;
        if self.sinusoids > 0.0 {
            let region = trainer.model.param("pos_embed.weight").expect("positions are a table").region;
            let width = config.d_model;
            let of = |at: usize| (self.sinusoids * tables::sinusoidal(at / width, at % width, width)) as f32;
            trainer.backend.fill(region, &of)?;
        }
        let batches = recipe.batches(&text.train, Objective::NextToken)?;
        let windows = |tokens| Windows::new("text", tokens, WindowShape::next_token(context));
        let (seen, unseen) = (windows(&text.seen)?, windows(&text.unseen)?);
        let judge = |trainer: &mut Trainer, text: &Windows| -> Result<f64, Error> {
            let score = |t: &mut Trainer| score(&t.model, &mut *t.backend, text, batch, &mut |_| true);
            Ok(trainer.averaged(score)??.loss().expect("every next token is predicted"))
        };
        let table = |trainer: &Trainer| {
            let param = trainer.model.param("embed.weight").expect("every model has a token table");
            trainer.backend.read(param.region)
        };
        let initial = table(&trainer)?;
        let mut course = Course { losses: vec![], validation: vec![], train: f64::NAN, tables: [vec![], vec![]] };
        for step in 1..=recipe.steps {
            match trainer.step(&batches) {
                Ok(done) => course.losses.extend(done.loss),
                Err(TrainError::NotFinite { .. }) => break,
                Err(error) => return Err(error.into()),
            }
            if self.eval_every > 0 && step % self.eval_every == 0 {
                course.validation.push((step, judge(&mut trainer, &unseen)?));
            }
            tick()?;
        }
        if self.eval_every > 0 {
            course.train = judge(&mut trainer, &seen)?;
        }
        course.tables = [initial, table(&trainer)?];
        Ok(course)
    }
}

/// A small model that a lesson trains on a text of its own, and then looks into.
pub(super) struct ToyModel {
    /// What progress calls it.
    pub name: &'static str,
    pub config: Config,
    pub recipe: Recipe,
    pub text: String,
    pub tokenizer: &'static str,
}

impl ToyModel {
    /// A model of `n_layer` blocks that learns much in few steps: Muon, with warm-up and a cosine.
    pub fn new(name: &'static str, n_layer: usize, text: String, tokenizer: &'static str) -> Result<ToyModel, Error> {
        let Study { config, recipe, .. } = Study::small(n_layer)?;
        let recipe = Recipe {
            optimizer: Method::Muon,
            learning_rate: 0.01,
            min_learning_rate: 0.001,
            warmup_steps: 20,
            schedule: Schedule::Cosine,
            clip: 1.0,
            val_fraction: 0.0,
            ..recipe
        };
        Ok(ToyModel { name, config, recipe, text, tokenizer })
    }
}

impl Class<'_> {
    /// Trains a model from the lesson's seed. `look` sees it before the first step and after every `every` of them; 0
    /// for never.
    pub fn train_toy(
        &mut self,
        toy: ToyModel,
        every: u64,
        mut look: impl FnMut(u64, &Lm) -> Result<(), Error>,
    ) -> Result<Lm, Error> {
        let recipe = Recipe { seed: self.seed, ..toy.recipe };
        let config = Config { context_length: recipe.context, ..toy.config };
        let training = Training::new(config, recipe).text(toy.text).tokenizer(toy.tokenizer).machine(Machine::cpu(1));
        let plan = training.prepare()?;
        let (mut trainer, batches) = (plan.trainer()?, plan.recipe.batches(&plan.corpus.train, plan.objective)?);
        for step in 0..recipe.steps {
            if every > 0 && step % every == 0 {
                look(step, &plan.lm(&trainer)?)?;
            }
            trainer.step(&batches)?;
            let event = LessonEvent { done: step + 1, total: recipe.steps, run: toy.name.into() };
            if (self.progress)(event) == Control::Stop {
                return Err(Error::Stopped);
            }
        }
        let lm = plan.lm(&trainer)?;
        if every > 0 {
            look(recipe.steps, &lm)?;
        }
        Ok(lm)
    }

    /// Trains each from the lesson's seed.
    pub fn train(&mut self, text: &Text, of: &[(String, Study)]) -> Result<Vec<Course>, Error> {
        let seed = self.seed;
        let total = of.iter().map(|(_, study)| study.recipe.steps).sum();
        self.each(of, total, |study, tick| study.run(text, seed, tick))
    }
}

/// A loss as a cell of a table.
pub(super) fn cell(loss: f64) -> String {
    if loss.is_finite() { format!("{loss:.3}") } else { "broke".into() }
}

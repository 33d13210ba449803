//! A walk's models, made or opened once, and runs of them.

use super::{At, Figure, Made, Scene, ShapeRow, Shown, Step, Values, Walk, WalkError, printed, views};
use crate::backend::{Backend, Device};
use crate::config::{Config, Fields, Mask, Settings};
use crate::data::toys::Toy;
use crate::lm::processor;
use crate::model::{Mode, Model, Param, init};
use crate::names::{self, Derived};
use crate::ops::linear::Precision;
use crate::ops::{Batch, IGNORE};
use crate::tokenizer::Tokenizer;
use crate::trace::view::Labels;
use crate::trace::{self, Labelled, Trace};
use crate::train::{Control, Recipe, RunSettings, TrainEvent};
use crate::{Lm, Training};
use std::collections::BTreeMap;
use std::num::NonZero;
use std::path::PathBuf;
use std::rc::Rc;

/// How a walk is made live.
#[derive(Clone, Debug, Default)]
pub struct WalkOptions {
    /// A model to walk on, instead of the walk's own.
    pub model: Option<PathBuf>,
    /// The texts to show it on, instead of the walk's own.
    pub prompts: Vec<String>,
    /// Everything on the weights before training.
    pub initial: bool,
    /// Threads; 0 for one each core. Results are the same on any number.
    pub threads: usize,
}

/// A walk on its models. Each is trained, or opened, when the first step asks for it, and kept.
pub struct Live {
    walk: Walk,
    options: WalkOptions,
    ready: BTreeMap<String, Rc<Ready>>,
}

/// A model to be looked at, and on what.
pub(super) struct Ready {
    /// Its name in the walk.
    pub id: String,
    pub config: Config,
    pub tokenizer: Option<Tokenizer>,
    /// The ids of each sequence that it is shown on, equally long.
    pub sequences: Vec<Vec<u32>>,
    pub segments: Vec<Vec<u32>>,
    /// How its weights began, where that is known.
    pub began: Option<Recipe>,
    /// The loss of each step of the training that made it.
    pub losses: Vec<f64>,
    weights: Weights,
    /// Whether each sequence is followed by the next, so that its last token has a target.
    continued: bool,
}

/// Its weights.
enum Weights {
    Trained(Lm),
    Written(BTreeMap<String, Vec<f32>>),
}

/// A run of a model on its sequences, with gradients where there are losses.
pub(super) struct Run<'a> {
    pub trace: Trace<'a>,
    /// Words for the axes of its tensors.
    pub labels: Labels,
    pub ready: &'a Ready,
}

impl Run<'_> {
    /// The configuration it ran with.
    pub fn config(&self) -> &Config {
        &self.trace.model().config
    }

    /// A tensor, a parameter or a gradient; if this model has none of that name, [`WalkError::Lacks`].
    pub fn get(&self, name: &str) -> Result<Labelled, WalkError> {
        Ok(self.trace.get(name)?)
    }

    /// A token's text, or its number where there is no tokenizer.
    pub fn piece(&self, id: u32) -> String {
        self.ready.piece(id)
    }
}

impl Walk {
    /// The walk on its models, or on another.
    pub fn live(self, options: WalkOptions) -> Live {
        Live { walk: self, options, ready: BTreeMap::new() }
    }
}

impl Live {
    /// What is walked.
    pub fn walk(&self) -> &Walk {
        &self.walk
    }

    /// A step, live. The first on a model trains or opens it.
    ///
    /// # Errors
    /// If a model cannot be made, opened or run. What a model of another kind lacks is said in the step.
    pub fn step(&mut self, step: &Step) -> Result<Shown, WalkError> {
        let number = self.walk.steps.iter().position(|own| own.id == step.id).map_or(0, |at| at + 1);
        let mut figures: Vec<Figure> = vec![];
        for show in &step.views {
            figures.extend(views::show(self, step, show)?);
        }
        let checks = printed::checks(self, step)?;
        let shapes = self.shapes(step)?;
        Ok(Shown { number, step: step.clone(), shapes, figures, checks, notes: vec![] })
    }

    /// What of a model of another kind differs from the walk's, a line each; none for the walk's own.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn differences(&mut self) -> Result<Vec<String>, WalkError> {
        Ok(vec![])
    }

    fn shapes(&mut self, _step: &Step) -> Result<Vec<ShapeRow>, WalkError> {
        Ok(vec![])
    }

    /// Runs a model on its sequences, or on the prompt that `at` has, and lets `look` see it.
    pub(super) fn run<T>(
        &mut self,
        at: &At,
        look: impl FnOnce(&mut Run) -> Result<T, WalkError>,
    ) -> Result<T, WalkError> {
        let ready = self.ready(at)?;
        let sequences = match &at.prompt {
            Some(prompt) => vec![ready.ids(prompt)?],
            None => ready.sequences.clone(),
        };
        self.run_on(at, &sequences, look)
    }

    /// The same on other sequences, equally long.
    pub(super) fn run_on<T>(
        &mut self,
        at: &At,
        sequences: &[Vec<u32>],
        look: impl FnOnce(&mut Run) -> Result<T, WalkError>,
    ) -> Result<T, WalkError> {
        let ready = self.ready(at)?;
        let (mut config, mut began) = (ready.config.clone(), ready.began);
        for (name, value) in &at.set.0 {
            match config.fields().iter().any(|(setting, _)| setting.name == name) {
                true => config.set(name, value)?,
                false => began.as_mut().map_or(Ok(()), |recipe| recipe.set(name, value))?,
            }
        }
        let batch = ready.batch(&config, sequences)?;
        let (sequences, context) = (batch.spans.len(), batch.spans.first().map_or(0, |span| span.rows));
        let model = Model::new(&config, Mode::Inspect { batch: sequences.max(1), context: context.max(1) })?;
        let mut backend = processor(&model, (self.threads(), Precision::F32))?;
        let initial = at.initial || self.options.initial;
        for param in &model.params {
            backend.write(param.region, &ready.values(&model, param, initial.then_some(began).flatten())?)?;
        }
        let backward = config.lm_head && batch.targets.iter().any(|target| *target != IGNORE);
        let trace = Trace::run(&model, &mut *backend, &batch, backward)?;
        let labels = trace.labels(&|id| ready.piece(id));
        look(&mut Run { trace, labels, ready: &ready })
    }

    fn threads(&self) -> usize {
        match self.options.threads {
            0 => std::thread::available_parallelism().map_or(1, NonZero::get),
            threads => threads,
        }
    }

    /// The model that `at` names, made or opened if it is not there yet.
    pub(super) fn ready(&mut self, at: &At) -> Result<Rc<Ready>, WalkError> {
        let id = at.on.clone().unwrap_or_else(|| self.walk.default_model().id.clone());
        if let Some(ready) = self.ready.get(&id) {
            return Ok(ready.clone());
        }
        let ready = match self.walk.models.iter().find(|made| made.id == id) {
            Some(made) => Rc::new(made.train(self.threads())?),
            None => return Err(WalkError::NotBuilt(format!("scene {id}"))),
        };
        self.ready.insert(id, ready.clone());
        Ok(ready)
    }
}

impl Ready {
    /// A token's text, or its number where there is no tokenizer.
    pub fn piece(&self, id: u32) -> String {
        self.tokenizer.as_ref().and_then(|tokenizer| tokenizer.piece(id).ok()).unwrap_or_else(|| id.to_string())
    }

    /// The ids of a text.
    pub fn ids(&self, text: &str) -> Result<Vec<u32>, WalkError> {
        let tokenizer = self.tokenizer.as_ref().ok_or(crate::Error::NoTokenizer)?;
        Ok(crate::generate::prompt_ids(tokenizer, self.config.mask, text)?)
    }

    /// The trained model, if it is not a scene.
    pub fn lm(&self) -> Option<&Lm> {
        if let Weights::Trained(lm) = &self.weights { Some(lm) } else { None }
    }

    /// A parameter's values; those before training, if it is said how that began.
    fn values(&self, model: &Model, param: &Param, began: Option<Recipe>) -> Result<Vec<f32>, WalkError> {
        match (&self.weights, began) {
            (_, Some(recipe)) => Ok(init::values(model, param, recipe.init, recipe.init_std, recipe.seed)),
            (Weights::Trained(lm), None) => Ok(lm.values(model, param)?.into_owned()),
            (Weights::Written(values), None) => Ok(values[&param.name].clone()),
        }
    }

    /// Sequences as a batch, with the segments and targets of this model.
    fn batch(&self, config: &Config, sequences: &[Vec<u32>]) -> Result<Batch, WalkError> {
        let mask = self.tokenizer.as_ref().and_then(|tokenizer| tokenizer.special("[MASK]"));
        let length = sequences.first().map_or(0, Vec::len);
        let (mut tokens, mut targets, mut segments) = (vec![], vec![], vec![]);
        for (b, ids) in sequences.iter().enumerate() {
            let own = self.segments.get(b).map(Vec::as_slice).filter(|own| own.len() == ids.len());
            let one = trace::batch(config, ids, own.filter(|_| config.n_segment > 0), mask)?;
            (tokens.extend(one.tokens), targets.extend(one.targets), segments.extend(one.segments));
            if let (true, Mask::Causal, Some(next)) = (self.continued, config.mask, sequences.get(b + 1)) {
                *targets.last_mut().expect("a sequence has tokens") = next[0];
            }
        }
        let mut batch = Batch::of_sequences(tokens, targets, length);
        batch.segments = segments;
        Ok(batch)
    }
}

impl Made {
    /// Trains it, as its command does.
    fn train(&self, threads: usize) -> Result<Ready, WalkError> {
        let config = Config::preset(&self.preset)?;
        let RunSettings { recipe, options } = RunSettings::preset(&self.preset)?;
        let config = config.over(&[self.set.of(&config)])?;
        let recipe = recipe.over(&[self.set.of(&recipe)])?;
        let options = options.over(&[self.set.of(&options)])?;
        let mut training = Training::new(config, recipe).options(options).data(&self.data).threads(threads);
        if let Some(tokenizer) = &self.tokenizer {
            training = training.tokenizer(tokenizer);
        }
        let mut losses = vec![];
        let trained = training.run(|event| {
            if let TrainEvent::Step(step, _) = event {
                losses.push(step.loss);
            }
            Control::Continue
        })?;
        let lm = trained.lm;
        let (config, tokenizer) = (lm.config().clone(), Some(lm.tokenizer()?.clone()));
        let mut ready = Ready {
            id: self.id.clone(),
            config,
            tokenizer,
            sequences: vec![],
            segments: self.segments.clone(),
            began: Some(recipe),
            losses,
            weights: Weights::Trained(lm),
            continued: self.continued,
        };
        let toy = self.data.strip_prefix("builtin:").and_then(Toy::named);
        let documents = toy.map_or(&[][..], |toy| toy.documents);
        let shown = self.documents.iter().filter_map(|at| documents.get(*at)).map(ToString::to_string);
        let texts: Vec<String> = self.prompts.iter().cloned().chain(shown).collect();
        ready.sequences = texts.iter().map(|text| ready.ids(text)).collect::<Result<_, _>>()?;
        Ok(ready)
    }
}

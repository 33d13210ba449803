//! A walk's models, made or opened once, and runs of them.
//!
//! [`Live::run`] is one run of a model on its sequences; everything that `views`, `worked` and `equal` show is read
//! from such runs.

use super::notebook::{self, NotebookRun};
use super::parts::{lacks, said};
use super::{At, Figure, Made, Result, Scene, SceneValues, ShapeRow, Show, Walk, WalkError, WalkStep, Write};
use limpid::generate::GenerateError;
use limpid::{Error, Lm, Machine, Training};
use limpid_base::plural::plural;
use limpid_core::config::{Config, Fields, Mask, Settings};
use limpid_core::model::{Mode, Model, Param, init};
use limpid_core::ops::{Batch, IGNORE};
use limpid_data::toys::Toy;
use limpid_tokenizer::{Tokenizer, TokenizerError};
use limpid_trace::labels::Labels;
use limpid_trace::names::Notation;
use limpid_trace::{self, Keep, NamedTensor, Trace, TraceError};
use limpid_train::{Control, Recipe, RunOptions, TrainEvent, log};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
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
    /// The documents' pictures drawn, too: [`Picture::drawn`](super::Picture::drawn).
    pub pictures: bool,
    /// Whose symbols and letters tensors have, instead of the document's.
    pub notation: Option<Notation>,
    /// Threads; 0 for one each core. Results are the same on any number.
    pub threads: usize,
}

/// A walk on its models. Each is trained, or opened, when the first step asks for it, and kept.
pub struct Live {
    walk: Walk,
    pub(super) options: WalkOptions,
    ready: BTreeMap<String, Rc<Ready>>,
    /// Lines about a model of another kind, and the steps that they are about.
    differences: Option<Vec<(String, Vec<usize>)>>,
    tell: Tell,
}

/// Hears how far the training of a model is: which, how many steps are done, and of how many.
type Tell = Box<dyn FnMut(&Made, u64, u64)>;

/// A model to be looked at, and on what.
pub(super) struct Ready {
    pub config: Config,
    pub tokenizer: Option<Tokenizer>,
    /// The ids of each sequence that it is shown on, equally long.
    pub sequences: Vec<Vec<u32>>,
    /// The segment of each token of each sequence; none for all 0.
    pub segments: Vec<Vec<u32>>,
    /// How its weights began, where that is known.
    pub began: Option<Recipe>,
    /// The loss of each step of the training that made it, where it was made here.
    pub losses: Vec<f64>,
    /// What was made of texts that it has no words for.
    pub notes: Vec<String>,
    weights: Weights,
    /// Whether each sequence is followed by the next, so that its last token has a target.
    continued: bool,
}

/// Its weights.
enum Weights {
    Trained(Box<Lm>),
    Written(BTreeMap<String, Vec<f32>>),
}

/// A run of a model on its sequences, with gradients where there are losses.
pub(super) struct Run<'a> {
    pub trace: Trace,
    /// Words for the axes of its tensors.
    pub labels: Labels,
    pub ready: &'a Ready,
    pub notation: Notation,
    /// What the scene is called in captions; empty for models.
    pub scene: String,
    /// Whether the model or the texts are the user's.
    pub other: bool,
    /// B and T.
    pub sequences: usize,
    pub length: usize,
}

impl Run<'_> {
    /// The configuration it ran with.
    pub fn config(&self) -> &Config {
        &self.trace.model().config
    }

    /// A tensor, a parameter or a gradient of this run.
    pub fn get(&self, name: &str) -> Result<NamedTensor> {
        Ok(self.trace.get(name)?)
    }

    /// The ids of a sequence.
    pub fn ids(&self, sequence: usize) -> &[u32] {
        &self.trace.batch().tokens[sequence * self.length..][..self.length]
    }

    /// The target of each token of a sequence, where it has one.
    pub fn targets(&self, sequence: usize) -> Vec<Option<u32>> {
        let own = &self.trace.batch().targets[sequence * self.length..][..self.length];
        own.iter().map(|target| Some(*target).filter(|target| *target != IGNORE)).collect()
    }

    /// A sequence, checked: `WalkError::Lacks` if there are not so many.
    pub fn sequence(&self, wanted: Option<usize>) -> Result<usize> {
        let at = wanted.unwrap_or(0);
        let count = self.sequences;
        if at < count {
            return Ok(at);
        }
        lacks(format!("there is no sequence {at}: this model is shown on {}", plural(count, "sequence")))
    }
}

impl Walk {
    /// The walk on its models, or on another.
    pub fn live(self, options: WalkOptions) -> Live {
        Live { walk: self, options, ready: BTreeMap::new(), differences: None, tell: Box::new(|_, _, _| {}) }
    }
}

impl Live {
    /// Lets `tell` hear how far the training of a model is: which, how many steps are done, and of how many.
    #[must_use]
    pub fn telling(self, tell: impl FnMut(&Made, u64, u64) + 'static) -> Live {
        Live { tell: Box::new(tell), ..self }
    }

    /// What is walked.
    pub fn walk(&self) -> &Walk {
        &self.walk
    }

    /// What is shown instead of texts that the model has no words for, or that are too long: the first step says it.
    ///
    /// # Errors
    /// If the model cannot be made or opened.
    pub fn other_texts(&mut self) -> Result<Vec<String>> {
        Ok(if self.is_other() { self.ready(&At::default())?.notes.clone() } else { vec![] })
    }

    /// What of a model of another kind differs from the walk's, a line each, with the steps that show otherwise for it;
    /// and what is shown instead of texts that it has no words for. Nothing for the walk's own.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn differences(&mut self) -> Result<Vec<String>> {
        let mut lines = self.other_texts()?;
        for (line, steps) in self.compared()? {
            let steps: Vec<String> = steps.iter().map(usize::to_string).collect();
            lines.push(match &steps[..] {
                [] => line.clone(),
                [one] => format!("{line}: see step {one}"),
                _ => format!("{line}: see steps {}", steps.join(", ")),
            });
        }
        Ok(lines)
    }

    /// A model of the walk, trained; the user's, if there is one.
    ///
    /// # Errors
    /// If there is none of that name, or it cannot be made or opened.
    pub fn model(&mut self, id: &str) -> Result<&Lm> {
        if !self.walk.models.iter().any(|made| made.id == id) {
            return lacks(format!("this walk has no model `{id}`"));
        }
        self.ready(&At { on: Some(id.into()), ..At::default() })?;
        let own = if self.options.model.is_some() { "" } else { id };
        match self.ready.get(own).map(|ready| &ready.weights) {
            Some(Weights::Trained(lm)) => Ok(lm),
            _ => lacks(format!("`{id}` is not trained")),
        }
    }

    /// Whether the user brought a model or texts, which may lack what a step asks for.
    pub(super) fn is_other(&self) -> bool {
        self.options.model.is_some() || !self.options.prompts.is_empty()
    }

    /// What stands in the place of a view that this model cannot have.
    pub(super) fn lacking(&self, error: WalkError) -> Result<Figure> {
        let text = match error {
            WalkError::Lacks(text) => text,
            WalkError::Run(Error::Trace(TraceError::Unknown { name, known, .. })) => {
                format!("this model has no `{name}`{}", known.map_or(String::new(), |known| format!(" ({known})")))
            }
            WalkError::Run(
                error @ (Error::Trace(
                    TraceError::NoGradient { .. } | TraceError::NoBackward { .. } | TraceError::Batch { .. },
                )
                | Error::Config(_)
                | Error::Generate(_)
                | Error::NoTokenizer
                | Error::NoMask
                | Error::Empty
                | Error::TooLong { .. }),
            ) if self.is_other() => error.to_string(),
            error => return Err(error),
        };
        Ok(Figure { lacks: true, ..said(text) })
    }

    /// The shapes that a step speaks of, in numbers, on the model that its first view is of.
    pub(super) fn shapes(&mut self, step: &WalkStep) -> Result<Vec<ShapeRow>> {
        if step.shapes.is_empty() {
            return Ok(vec![]);
        }
        // a model that a view names, or a scene that all are of
        let only = |on: &&str| step.views.iter().all(|view| view.on() == Some(*on));
        let model = |on: &&str| self.walk.models.iter().any(|made| made.id == **on);
        let on = step.views.iter().filter_map(Show::on).find(|on| model(on) || only(on));
        let at = At { on: on.map(String::from), ..At::default() };
        let ready = self.ready(&at)?;
        let mut rows: Vec<(&str, ShapeRow)> = vec![];
        for (symbol, written) in &step.shapes {
            let (letters, sizes): (Vec<_>, Vec<_>) =
                written.split(' ').map(|letter| self.walk.axis(letter, &ready)).unzip();
            let row = ShapeRow { symbol: symbol.clone(), letters: letters.join(" "), sizes };
            match rows.last_mut() {
                // they differ in other models
                Some((other, last))
                    if *other != written && (&last.letters, &last.sizes) == (&row.letters, &row.sizes) =>
                {
                    last.symbol += &format!(", {symbol}");
                }
                _ => rows.push((written, row)),
            }
        }
        Ok(rows.into_iter().map(|(_, row)| row).collect())
    }

    // ---- runs

    /// Runs a model on its sequences, or on the prompt that `at` has, and lets `look` see it.
    pub(super) fn run<T>(&mut self, at: &At, look: impl FnOnce(&mut Run) -> Result<T>) -> Result<T> {
        let ready = self.ready(at)?;
        let sequences = match &at.prompt {
            Some(prompt) => vec![ready.shown(prompt).0],
            None => ready.sequences.clone(),
        };
        self.run_on(at, &sequences, look)
    }

    /// Whether pictures are drawn.
    pub(super) fn draws(&self) -> bool {
        self.options.pictures
    }

    /// The same on other sequences, equally long.
    pub(super) fn run_on<T>(
        &mut self,
        at: &At,
        sequences: &[Vec<u32>],
        look: impl FnOnce(&mut Run) -> Result<T>,
    ) -> Result<T> {
        let ready = self.ready(at)?;
        let (mut config, mut began) = (ready.config.clone(), ready.began);
        for (name, value) in &at.set.0 {
            if config.fields().iter().any(|(setting, _)| setting.name == name) {
                config.set(name, value)?
            } else {
                began.as_mut().map_or(Ok(()), |recipe| recipe.set(name, value))?
            }
        }
        let initial = at.initial || self.options.initial;
        if initial && began.is_none() {
            let why = "this model has no limpid.toml, so with which weights its training began is not known";
            return lacks(why);
        }
        let batch = ready.batch(&config, sequences)?;
        let (b, t) = (batch.spans.len(), batch.spans.first().map_or(0, |span| span.rows));
        let model = Model::new(&config, Mode::Inspect { batch: b, context: t })?;
        limpid::memory::fits(&model, None, &Machine::cpu(self.threads()))?;
        let mut backend = Machine::cpu(self.threads()).start(&model)?;
        for param in &model.params {
            backend.write(param.region, &ready.values(&model, param, began.filter(|_| initial))?)?;
        }
        let backward = config.lm_head && batch.targets.iter().any(|target| *target != IGNORE);
        let keep = if backward { Keep::Gradients } else { Keep::All };
        let trace = Trace::run(&model, backend, &batch, keep)?;
        let labels = trace.labels(&|id| ready.piece(id));
        let notation = self.options.notation.unwrap_or(self.walk.notation);
        let scene = self.walk.scenes.iter().find(|scene| at.on.as_deref() == Some(&scene.id));
        let users = self.ready.get("").is_some_and(|users| Rc::ptr_eq(users, &ready));
        let other = scene.is_none() && (users || !self.options.prompts.is_empty());
        let scene = scene.map_or(String::new(), |scene| scene.called.clone());
        look(&mut Run { trace, labels, ready: &ready, notation, scene, other, sequences: b, length: t })
    }

    /// Whether it is walked on its own models, as trained, and on its own texts.
    pub(super) fn is_own(&self) -> bool {
        !self.is_other() && !self.options.initial
    }

    fn threads(&self) -> usize {
        match self.options.threads {
            0 => Machine::default().threads,
            threads => threads,
        }
    }

    // ---- models

    /// The model that `at` names, made or opened if it is not there yet: a scene; the user's, if there is one, where it
    /// stands for that of the walk; or the walk's.
    pub(super) fn ready(&mut self, at: &At) -> Result<Rc<Ready>> {
        let scene = at.on.as_ref().and_then(|on| self.walk.scenes.iter().find(|scene| scene.id == *on)).cloned();
        if let (None, Some(path)) = (&scene, self.options.model.clone()) {
            let users = self.cached("", |live| live.opened(&path))?; // no model of a walk has this name
            if at.on.as_ref().is_none_or(|on| self.walk.like(&users.config).id == *on) {
                return Ok(users);
            }
        }
        let id = at.on.clone().unwrap_or_else(|| self.walk.default_model().id.clone());
        match scene {
            Some(scene) => self.cached(&id, |live| live.written(&scene)),
            None => self.cached(&id, |live| live.made(&id)),
        }
    }

    /// The model of that name, made if it is not there yet.
    fn cached(&mut self, id: &str, make: impl FnOnce(&mut Live) -> Result<Ready>) -> Result<Rc<Ready>> {
        if let Some(ready) = self.ready.get(id) {
            return Ok(ready.clone());
        }
        let ready = Rc::new(make(self)?);
        self.ready.insert(id.into(), ready.clone());
        Ok(ready)
    }

    /// Shows a model on the user's texts, which are refused if they do not fit, or on the walk's, for which others
    /// stand then.
    fn show(&self, ready: &mut Ready, made: &Made) -> Result<()> {
        if self.options.prompts.is_empty() {
            ready.show(&self.texts(made));
            ready.continued = made.continued && ready.notes.is_empty();
            return Ok(());
        }
        let context = ready.config.context_length;
        for text in &self.options.prompts {
            let ids = ready.ids(text)?;
            match ids.len() {
                0 => return Err(Error::Empty.into()),
                tokens if tokens > context => return Err(Error::TooLong { tokens, context }.into()),
                _ => ready.sequences.push(ids),
            }
        }
        // sequences of several lengths are refused in its words
        limpid_trace::batch_of(&ready.config, &ready.sequences, None::<&[Vec<u32>]>, ready.mask())?;
        Ok(())
    }

    /// The texts that a model of the walk is shown on.
    fn texts(&self, made: &Made) -> Vec<String> {
        let documents = made.toy().map_or(&[][..], |toy| toy.documents);
        let shown = made.documents.iter().filter_map(|at| documents.get(*at)).map(ToString::to_string);
        made.prompts.iter().cloned().chain(shown).collect()
    }

    /// A model of the walk, trained as its command trains it.
    fn made(&mut self, id: &str) -> Result<Ready> {
        let made = self.walk.models.iter().find(|made| made.id == id).cloned();
        let made = &made.ok_or_else(|| WalkError::Lacks(format!("this walk has no model `{id}`")))?;
        let config = made.config()?;
        let (recipe, options) = (Recipe::preset(&made.preset)?, RunOptions::preset(&made.preset)?);
        let recipe = recipe.over(&[made.set.settings_of(&recipe)])?;
        let options = options.over(&[made.set.settings_of(&options)])?;
        let mut training =
            Training::new(config, recipe).options(options).data(&made.data).machine(Machine::cpu(self.threads()));
        if let Some(tokenizer) = &made.tokenizer {
            training = training.tokenizer(tokenizer);
        }
        let mut losses = vec![];
        let trained = training.run_telling(|event| {
            if let TrainEvent::Step(step, _) = event {
                losses.extend(step.loss);
                (self.tell)(made, step.step, recipe.steps);
            }
            Control::Continue
        })?;
        let mut ready = Ready { began: Some(recipe), losses, ..Ready::of(trained.lm) };
        ready.segments.clone_from(&made.segments);
        if self.options.model.is_some() {
            // the user's texts are for the user's model
            ready.show(&self.texts(made));
            ready.continued = made.continued;
        } else {
            self.show(&mut ready, made)?;
        }
        Ok(ready)
    }

    /// The user's model, shown on the walk's texts.
    fn opened(&self, path: &Path) -> Result<Ready> {
        let mut ready = Ready { began: began(path), losses: losses(path), ..Ready::of(Lm::open(path)?) };
        let made = self.walk.like(&ready.config);
        ready.segments.clone_from(&made.segments);
        self.show(&mut ready, made)?;
        Ok(ready)
    }

    /// A model with its initial weights, and those that its scene writes.
    fn written(&mut self, scene: &Scene) -> Result<Ready> {
        let of = self.cached(&scene.of, |live| live.made(&scene.of))?;
        let texts = match self.walk.models.iter().find(|made| made.id == scene.of) {
            Some(made) if scene.prompts.is_empty() => self.texts(made),
            _ => scene.prompts.clone(),
        };
        let mut config = of.config.over(&[scene.set.settings_of(&of.config)])?;
        let mut tokenizer = of.tokenizer.clone();
        if let Some(name) = &scene.tokenizer {
            let own = Tokenizer::for_texts(name, &|| texts.iter().map(Into::into).collect(), &[], 1)?;
            config.vocab_size = own.vocab_size();
            tokenizer = Some(own);
        }
        let recipe = of.began.unwrap_or_default();
        let model = Model::new(&config, Mode::Inspect { batch: 1, context: 1 })?;
        let start = |param: &Param| {
            (param.name.clone(), init::values(&model, param, recipe.init, recipe.init_std, recipe.seed))
        };
        let mut values: BTreeMap<String, Vec<f32>> = model.params.iter().map(start).collect();
        let ids: Vec<u32> = match &tokenizer {
            Some(Tokenizer::Dense(dense)) => dense.ids().used().to_vec(),
            _ => (0..config.vocab_size as u32).collect(),
        };
        for write in &scene.writes {
            if let Some(values) = values.get_mut(&write.parameter) {
                values.copy_from_slice(&write.drawn(&ids));
            }
        }
        let mut ready = Ready { began: of.began, ..Ready::new(config, tokenizer, Weights::Written(values)) };
        ready.show(&texts);
        Ok(ready)
    }

    /// With a model of this configuration, random weights and the first tokens of its vocabulary in the place of the
    /// user's.
    #[cfg(test)]
    pub(super) fn with_users(mut self, config: &Config) -> Live {
        let model = Model::new(config, Mode::Inspect { batch: 1, context: 1 }).expect("a test's model can be built");
        let recipe = Recipe::default();
        let start = |param: &Param| (param.name.clone(), init::values(&model, param, recipe.init, recipe.init_std, 1));
        let weights = Weights::Written(model.params.iter().map(start).collect());
        let sequences = vec![(0..3).collect(), (2..5).collect()];
        let ready = Ready { sequences, began: Some(recipe), ..Ready::new(config.clone(), None, weights) };
        self.ready.insert(String::new(), Rc::new(ready));
        self
    }

    /// How the user's model differs from the walk's.
    pub(super) fn compared(&mut self) -> Result<&[(String, Vec<usize>)]> {
        if self.differences.is_none() {
            let own = if self.options.model.is_some() { Some(self.ready(&At::default())?) } else { None };
            self.differences = Some(own.map_or(Ok(vec![]), |own| self.walk.differences(&own.config))?);
        }
        Ok(self.differences.as_deref().unwrap_or_default())
    }
}

impl Walk {
    /// An axis that a step writes, as it is called of a model, and its size: a letter of the document's or a number;
    /// `d_v|D`, an axis of limpid's where the model has another size there than the document's letter; a product of
    /// two, which is the stream's width in most models and is called so.
    fn axis(&self, written: &str, ready: &Ready) -> (String, usize) {
        let letter = |axis: &str| self.letters.iter().find(|(_, own)| own == axis).map(|(letter, _)| letter.clone());
        if let Some((heads, features)) = written.split_once('·') {
            let ((heads, n), (features, size)) = (self.axis(heads, ready), self.axis(features, ready));
            let product = format!("{heads}·{features}");
            let stream = letter("d_model").filter(|_| n * size == ready.config.d_model);
            return (stream.unwrap_or(product), n * size);
        }
        if let Some((own, usual)) = written.split_once('|') {
            let (usual, size) = self.axis(usual, ready);
            let differs = ready.size(own) != size;
            return if differs { (self.notation.letter(own).into(), ready.size(own)) } else { (usual, size) };
        }
        let axis = self.letters.iter().find(|(own, _)| own == written).map(|(_, axis)| axis);
        (written.into(), axis.map_or_else(|| written.parse().unwrap_or(0), |axis| ready.size(axis)))
    }
}

/// How a run's weights began, as its limpid.toml says.
fn began(folder: &Path) -> Option<Recipe> {
    let all: toml::Table = limpid_base::files::read_text(&folder.join("limpid.toml"), 16 << 20).ok()?.parse().ok()?;
    let mut recipe = Recipe::default();
    for name in ["init", "init_std", "seed"] {
        let value = all.get(name)?;
        recipe.set(name, value.as_str().map_or_else(|| value.to_string(), String::from)).ok()?;
    }
    Some(recipe)
}

/// The loss of each step of a run in that folder; none where there is none.
fn losses(folder: &Path) -> Vec<f64> {
    let lines = log::read(folder).unwrap_or_default();
    lines.iter().filter_map(|line| line["train_loss"].as_f64()).collect()
}

impl Ready {
    fn new(config: Config, tokenizer: Option<Tokenizer>, weights: Weights) -> Ready {
        let (sequences, segments, losses, notes) = (vec![], vec![], vec![], vec![]);
        Ready { config, tokenizer, sequences, segments, began: None, losses, notes, weights, continued: false }
    }

    fn of(lm: Lm) -> Ready {
        Ready::new(lm.config().clone(), lm.tokenizer().ok().cloned(), Weights::Trained(lm.into()))
    }

    /// The texts that it is shown on: cut to the context and to the shortest.
    fn show(&mut self, texts: &[String]) {
        let mut notes = vec![];
        for text in texts {
            let (ids, note) = self.shown(text);
            self.sequences.push(ids);
            notes.extend(note.filter(|note| !notes.contains(note)));
        }
        let length = self.sequences.iter().map(Vec::len).min().unwrap_or(0);
        if self.sequences.iter().any(|ids| ids.len() > length) {
            let tokens = plural(length, "token");
            notes.push(format!("the texts are not equally long in this model's tokens: {tokens} of each are shown"));
        }
        self.sequences.iter_mut().for_each(|ids| ids.truncate(length));
        self.notes = notes;
    }

    /// The ids of a text, at most as many as the context has; the model's own first tokens where it has none for the
    /// text, and why.
    pub fn shown(&self, text: &str) -> (Vec<u32>, Option<String>) {
        let context = self.config.context_length;
        let vocabulary = self.config.vocab_size as u32;
        let instead = |why: String| {
            let words = text.split_whitespace().count().clamp(1, context) as u32;
            let first = self.sequences.len() as u32;
            let ids = (0..words).map(|i| (first + i) % vocabulary).collect();
            (ids, Some(format!("{why}: this model's own first tokens are shown")))
        };
        match self.ids(text) {
            Ok(ids) if ids.is_empty() => instead(format!("{text:?} has no tokens")),
            Ok(ids) if ids.iter().any(|id| *id >= vocabulary) => {
                instead(format!("{text:?} has ids beyond {vocabulary}"))
            }
            Ok(mut ids) => {
                let note = (ids.len() > context)
                    .then(|| format!("{text:?} has {} tokens, of which the context takes {context}", ids.len()));
                ids.truncate(context);
                (ids, note)
            }
            Err(WalkError::Run(Error::Generate(GenerateError::Tokenizer(TokenizerError::Unknown {
                piece, ..
            })))) => instead(format!("{piece:?} is not in this model's vocabulary")),
            Err(error) => instead(error.to_string()),
        }
    }

    /// A token's text, or its number where there is no tokenizer.
    pub fn piece(&self, id: u32) -> String {
        self.tokenizer.as_ref().and_then(|tokenizer| tokenizer.piece(id).ok()).unwrap_or_else(|| id.to_string())
    }

    /// The ids of a text.
    pub fn ids(&self, text: &str) -> Result<Vec<u32>> {
        let tokenizer = self.tokenizer.as_ref().ok_or(Error::NoTokenizer)?;
        Ok(limpid::generate::prompt_ids(tokenizer, self.config.mask, text)?)
    }

    /// How large an axis is: `pos`, `d_model`, `context_length`; 0 for one without a name.
    pub fn size(&self, axis: &str) -> usize {
        let c = &self.config;
        match axis {
            "batch" => self.sequences.len(),
            "pos" => self.sequences.first().map_or(0, Vec::len),
            "d_model" => c.d_model,
            "d_embed" => c.d_embed(),
            "d_vocab" => c.vocab_size,
            "head" => c.n_head,
            "kv_head" => c.heads().n_kv_head,
            "d_head" => c.d_head(),
            "d_v" => c.d_value(),
            "d_ff" => c.d_ff,
            "n_layer" => c.n_layer,
            "context_length" => c.context_length,
            _ => 0,
        }
    }

    /// What stands for a masked token.
    pub fn mask(&self) -> Option<u32> {
        self.tokenizer.as_ref().and_then(|tokenizer| tokenizer.special("[MASK]"))
    }

    /// A parameter's values; those before training, if it is said how that began.
    pub fn values(&self, model: &Model, param: &Param, began: Option<Recipe>) -> Result<Vec<f32>> {
        match (&self.weights, began) {
            (Weights::Trained(_), Some(recipe)) => {
                Ok(init::values(model, param, recipe.init, recipe.init_std, recipe.seed))
            }
            (Weights::Trained(lm), None) => Ok(lm.values(model, param)?.into_owned()),
            (Weights::Written(values), _) => Ok(values[&param.name].clone()),
        }
    }

    /// Sequences as a batch, with the segments and targets of this model.
    fn batch(&self, config: &Config, sequences: &[Vec<u32>]) -> Result<Batch> {
        let length = sequences.first().map_or(0, Vec::len);
        let (mut tokens, mut targets, mut segments) = (vec![], vec![], vec![]);
        for (b, ids) in sequences.iter().enumerate() {
            let own = self.segments.get(b).map(Vec::as_slice).filter(|own| own.len() == ids.len());
            let one = limpid_trace::batch(config, ids, own.filter(|_| config.n_segment > 0), self.mask())?;
            tokens.extend(one.tokens);
            targets.extend(one.targets);
            segments.extend(one.segments);
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
    /// Its text, where that is a document's example.
    pub(super) fn toy(&self) -> Option<&'static Toy> {
        self.data.strip_prefix("builtin:").and_then(Toy::named)
    }
}

impl Write {
    /// The values, for a model whose tokens have these ids in the article's tokenizer.
    fn drawn(&self, ids: &[u32]) -> Vec<f32> {
        match self.values {
            SceneValues::FirstTable => NotebookRun::First.rows(ids).concat(),
            SceneValues::SecondTable => NotebookRun::Second.rows(ids).concat(),
            SceneValues::AttentionWeights => notebook::attention().0,
            SceneValues::AttentionBiases => notebook::attention().1,
        }
    }
}

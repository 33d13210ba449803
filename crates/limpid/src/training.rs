//! A training run in a few lines: a text, a model, a recipe and a progress callback.
//!
//! It joins what the modules have: `data::source` reads and splits the text, `model` is built, `train::Run` trains it. Read `train` next.

use crate::backend::{Backend, Device};
use crate::checkpoint::adapter::merged;
use crate::checkpoint::{Checkpoint, write_text};
use crate::config::Config;
use crate::data::source::{Corpus, TextSource};
use crate::lm::processor;
use crate::matrix::Precision;
use crate::memory::{On, outline, trainable};
use crate::model::{Model, Param, Tuning};
use crate::task::{Begins, Given, Task};
use crate::tokenizer::Tokenizer;
use crate::train::ranks::{check, check_start};
use crate::train::{
    Control, Ranks, Recipe, Run, RunOptions, RunSettings, Solo, Summary, TrainError, TrainEvent, Trainer,
};
use crate::{Error, Lm};
use std::num::NonZero;
use std::path::PathBuf;

/// A training run that has not begun: of a new model, or of one that goes on learning.
///
/// ```
/// use limpid::generate::Options;
/// use limpid::train::{Control, TrainEvent, Recipe};
/// use limpid::Training;
///
/// let text = "to be or not to be, that is the question. ".repeat(40);
/// let recipe = Recipe { steps: 20, batch_size: 4, context: 32, ..Recipe::preset("nano")? };
/// let mut losses = vec![];
/// let trained = Training::preset("nano")?.recipe(recipe).text(text).run(|event| {
///     if let TrainEvent::Step(step, _) = event {
///         losses.push(step.loss);
///     }
///     Control::Continue // or Control::Stop
/// })?;
/// assert!(losses.len() == 20 && losses[19] < losses[0]);
/// let sample = trained.lm.generate("to be", &Options::default())?;
/// # assert!(!sample.tokens.is_empty());
/// # Ok::<(), limpid::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "nothing is trained before `run`"]
pub struct Training {
    config: Config,
    recipe: Recipe,
    options: RunOptions,
    source: TextSource,
    base: Option<Lm>,
    folder: Option<PathBuf>,
    resume: bool,
    tuning: Tuning,
    chat_template: Option<String>,
    special_tokens: Vec<String>,
    memory: Option<u64>,
    preset: String,
    machine: (usize, Precision),
    ranks: Among,
}

/// The processes that train together.
struct Among(Box<dyn Ranks>);

impl std::fmt::Debug for Among {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "process {} of {}", self.0.rank(), self.0.size())
    }
}

/// What a run made.
#[derive(Debug)]
#[non_exhaustive]
pub struct Trained {
    /// The model: of a run in a folder the best by validation loss, else the last. All of several processes have the same.
    pub lm: Lm,
    /// What the run came to.
    pub summary: Summary,
}

impl Training {
    /// A new model of this configuration, whose vocabulary will be its tokenizer's. With no text named it learns the built-in stories.
    pub fn new(config: Config, recipe: Recipe) -> Training {
        let options = RunOptions::default();
        let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
        let source = TextSource::new("builtin:stories");
        Training {
            config,
            recipe,
            options,
            source,
            base: None,
            folder: None,
            resume: false,
            tuning: Tuning::default(),
            chat_template: None,
            special_tokens: vec![],
            memory: None,
            preset: String::new(),
            machine: (threads, Precision::F32),
            ranks: Among(Box::new(Solo)),
        }
    }

    /// A new model of a preset, with its recipe.
    ///
    /// # Errors
    /// If there is none of that name.
    pub fn preset(name: &str) -> Result<Training, Error> {
        let RunSettings { recipe, options } = RunSettings::preset(name)?;
        Ok(Training { options, preset: name.into(), ..Training::new(Config::preset(name)?, recipe) })
    }

    /// A model that goes on learning, all of it, with its own tokenizer and the recipe for fine-tuning.
    pub fn fine_tuning(lm: Lm) -> Training {
        let RunSettings { recipe, options } = RunSettings::fine_tuning(lm.config(), false);
        let (config, machine) = (lm.config().clone(), lm.machine());
        Training { base: Some(lm), machine, options, ..Training::new(config, recipe) }
    }

    /// Learns a part of the model that goes on: all but what is frozen, or a LoRA adapter, which is kept in a folder and has a recipe of
    /// its own where none was chosen.
    ///
    /// ```no_run
    /// use limpid::model::{Lora, Tuning};
    /// # use limpid::{Lm, Training, train::Control};
    /// let targets = vec!["attention".into(), "feed-forward".into()];
    /// let lora = Lora { rank: 16, alpha: 32.0, dropout: 0.0, targets };
    /// let tuning = Tuning { lora: Some(lora), ..Tuning::default() };
    /// let training = Training::fine_tuning(Lm::open("model")?).tuning(tuning).data("chat.jsonl");
    /// let lm = training.folder("runs/adapter").run(|_| Control::Continue)?.lm;
    /// # Ok::<(), limpid::Error>(())
    /// ```
    pub fn tuning(mut self, tuning: Tuning) -> Training {
        let usual = |adapter| RunSettings::fine_tuning(&self.config, adapter).recipe;
        if self.base.is_some() && self.recipe == usual(self.tuning.lora.is_some()) {
            self.recipe = usual(tuning.lora.is_some());
        }
        Training { tuning, ..self }
    }

    /// Trains on conversations in this template, in Jinja, instead of the model's own, or limpid's.
    pub fn chat_template(self, source: impl Into<String>) -> Training {
        Training { chat_template: Some(source.into()), ..self }
    }

    /// Gives the tokenizer these special tokens, and the model a row for each that is new.
    pub fn special_tokens(self, texts: impl IntoIterator<Item = impl Into<String>>) -> Training {
        Training { special_tokens: texts.into_iter().map(Into::into).collect(), ..self }
    }

    /// Keeps the process within so many bytes: what does not fit is computed again, and results stay the same.
    pub fn memory(self, bytes: u64) -> Training {
        Training { memory: Some(bytes), ..self }
    }

    /// Another recipe.
    pub fn recipe(self, recipe: Recipe) -> Training {
        Training { recipe, ..self }
    }

    /// How the run is carried out: when it evaluates and saves, what it does at a loss spike.
    pub fn options(self, options: RunOptions) -> Training {
        Training { options, ..self }
    }

    /// Learns from a text in memory.
    pub fn text(self, text: impl Into<String>) -> Training {
        let TextSource { tokenizer, .. } = self.source;
        let mut source = TextSource::of_text(text);
        source.tokenizer = tokenizer;
        Training { source, ..self }
    }

    /// Learns from a text by name: a file, a folder, a pattern ([`TextSource::name`]).
    pub fn data(mut self, name: impl Into<String>) -> Training {
        let tokenizer = self.source.tokenizer.take();
        self.source = TextSource::new(name);
        self.source.tokenizer = tokenizer;
        self
    }

    /// Learns from a text that is read as the source says: another field, bad documents left out. Threads and the share for validation
    /// are the run's.
    pub fn source(self, source: TextSource) -> Training {
        Training { source, ..self }
    }

    /// The tokenizer of a new model: `bpe` (where none is named), `bpe:SIZE`, `char`, `word`, `gpt2`, ..., or a file
    /// ([`Tokenizer::for_texts`](crate::tokenizer::Tokenizer::for_texts)).
    pub fn tokenizer(mut self, name: impl Into<String>) -> Training {
        self.source.tokenizer = Some(name.into());
        self
    }

    /// Keeps the run in a folder, from which it can go on ([`Training::resume`]) and be opened; without one nothing is written.
    pub fn folder(self, folder: impl Into<PathBuf>) -> Training {
        Training { folder: Some(folder.into()), ..self }
    }

    /// Goes on with what its folder holds, if a state was saved there: with the same bits as if it had never stopped. The run may be one
    /// of the command's, with the same settings; `limpid train --resume FOLDER` goes on with one of these, whose text is a file.
    pub fn resume(self) -> Training {
        Training { resume: true, ..self }
    }

    /// So many threads (at least 1) instead of one for each core. Results are the same on any number.
    pub fn threads(mut self, threads: usize) -> Training {
        self.machine.0 = threads.max(1);
        self
    }

    /// Products of that precision instead of f32.
    pub fn precision(mut self, precision: Precision) -> Training {
        self.machine.1 = precision;
        self
    }

    /// One of several processes that train the model together: each makes the same `Training`, and [`Recipe::accumulate`] is at least
    /// their number. Process 0 alone writes the folder and hears of progress; to resume, all must see it.
    pub fn ranks(self, ranks: Box<dyn Ranks>) -> Training {
        Training { ranks: Among(ranks), ..self }
    }

    /// Reads the text, trains to the last step of the recipe or until `progress` says stop, and gives the model.
    ///
    /// # Errors
    /// If the text cannot be read or is too short, the model cannot be built or does not fit into memory, the folder holds something else,
    /// or training diverges.
    pub fn run(self, mut progress: impl FnMut(TrainEvent) -> Control) -> Result<Trained, Error> {
        let Training {
            config,
            recipe,
            options,
            mut source,
            base,
            folder,
            resume,
            tuning,
            chat_template,
            special_tokens,
            memory,
            preset,
            machine,
            ranks,
        } = self;
        let Among(mut ranks) = ranks;
        let main = ranks.rank() == 0;
        let (threads, precision) = machine;
        let processes = [ranks.size(), ranks.here()];
        let (program, on) = (crate::memory::program(), On { processes, ..On::from((Device::Cpu, threads)) });
        let files = base.as_ref().and_then(Lm::files);
        if tuning.lora.is_some() {
            match files {
                _ if folder.is_none() => return Err(Error::Adapter("name a folder")),
                None => return Err(Error::Adapter("save the model, and open what was saved")),
                Some(files) if files.adapter.is_some() => {
                    return Err(Error::Adapter("the model is an adapter itself: save it whole first"));
                }
                Some(_) => {}
            }
        }
        let saved = folder.as_ref().filter(|folder| resume && Run::can_resume(folder));
        check_start(&mut *ranks, saved.is_some()).map_err(TrainError::from)?;
        source.threads = threads;
        let given = Given {
            model: base.is_some(),
            tokenizer: base.as_ref().map(|base| base.tokenizer().cloned()).transpose()?,
            chat_template: chat_template
                .or_else(|| base.as_ref().and_then(|base| base.chat_template().map(String::from))),
            template_file: None,
            special_tokens,
            resumed: saved.cloned(),
            chosen: vec![],
        };
        let task = Task::read(config, recipe, source, given)?;
        let had = base.as_ref().map(|base| base.tokenizer().map(Tokenizer::vocab_size)).transpose()?;
        let widened = match files {
            _ if had.is_none_or(|had| had >= task.corpus.tokenizer.vocab_size()) => None,
            Some(files) => {
                let again = Checkpoint::open_as(&files.path, files.is_verified())?;
                Some(again.with_more_tokens(task.corpus.tokenizer.clone()))
            }
            None => return Err(Error::NoRows),
        };
        if widened.is_some() && tuning.lora.is_some() {
            return Err(Error::Adapter("the rows of new special tokens are no part of it: train without it"));
        }
        let files = widened.as_ref().or(files);
        let outline = outline(&task.config, &task.recipe, &tuning)?;
        let on = files.map_or(on, |files| on.with_weights(files, &outline, precision));
        let model = trainable(&task.config, &task.recipe, &tuning, on, (program, memory))?;
        crate::memory::fits(&model, Some(&task.recipe), on)?;
        check(&mut *ranks, &[]).map_err(TrainError::from)?; // all look at what is left before one takes of it
        let processor = processor(&model, machine)?;
        let trainer = match (files, &base) {
            // no weight is written twice: those that stay quantised have no other place
            (Some(files), _) => Trainer::from(files, model, processor, task.recipe)?,
            (None, Some(base)) => {
                let mut trainer = Trainer::new(model, processor, task.recipe)?;
                base.load(&trainer.model, &mut *trainer.backend)?;
                trainer.fresh = false;
                trainer
            }
            (None, None) => Trainer::new(model, processor, task.recipe)?,
        };
        let began = match saved {
            Some(_) => Default::default(),
            None => {
                let (model, from) = (&trainer.model, files);
                let begins = Begins { preset: &preset, from, model, options, precision, memory, sample: None };
                (task.files(&begins)?, task.carried(&begins))
            }
        };
        let Task { config, corpus, objective, chat_template, .. } = task;
        let Corpus { tokenizer, train, validation, .. } = corpus;
        let trainer = trainer.among(ranks)?;
        let mut run = Run::new(trainer, folder.clone().filter(|_| main), &train, &validation, objective, &tokenizer)?;
        (run.options, (run.files, run.carried)) = (options, began);
        match saved {
            Some(_) if main => drop(run.resume(None)?),
            Some(_) => drop(run.resume_with()?),
            None => {}
        }
        let summary = run.go(&mut |event| if main { progress(event) } else { Control::Continue })?;
        let held = |trainer: &mut Trainer| {
            let load = |model: &Model, backend: &mut dyn Backend| {
                let own = |param: &Param| trainer.model.param(&param.name).expect("they are one model");
                let values = |param: &Param| merged(&trainer.model, &*trainer.backend, own(param));
                let mut params = model.params.iter();
                params.try_for_each(|p| Ok(backend.write(p.region, &values(p)?)?))
            };
            Lm::held(config, tokenizer.clone(), chat_template, load, (threads, precision))
        };
        let lm = match &folder {
            Some(folder) if main => {
                let text = serde_json::to_string_pretty(&summary).expect("a summary is JSON") + "\n";
                write_text(&folder.join("summary.json"), &text)?;
                if processes[0] > 1 {
                    run.with_best(|_| ())?; // the others take what is kept
                }
                drop(run); // its memory is free for the model
                Lm::open(folder)?.with_threads(threads).with_precision(precision)
            }
            Some(_) => run.with_best(held)??,
            None => run.trainer.averaged(held)??,
        };
        Ok(Trained { lm, summary })
    }
}

//! A training: a text, a model, a recipe; what is decided before memory is reserved; and the run.
//!
//! [`Training`] is what is asked for. [`Training::prepare`] reads the text and decides the rest: a [`TrainingPlan`],
//! from which a run starts. The command line prepares and starts the same way, so either resumes a run of the other.
//! Read `train` next.

use crate::checkpoint::adapter;
use crate::checkpoint::{CHAT_TEMPLATE, Carried, Checkpoint, CheckpointError, GENERATION, generation_config};
use crate::config::{Config, Fields, Mask, Settings};
use crate::data::Tokens;
use crate::data::chat::{MARKERS, is_template, template};
use crate::data::source::{Conversations, Corpus, TextSource};
use crate::error::{Error, Result};
use crate::fitted::{self, FittedLength};
use crate::memory::{self, Placement, outline, trainable};
use crate::model::{Mode, Model, Tuning};
use crate::plan::TrainingPlan;
use crate::snapshot::snapshot;
use crate::timelapse::{self, Probe, TimelapseError};
use crate::tokenizer::Tokenizer;
use crate::train::ranks::{check, check_start};
use crate::train::{
    Control, Objective, Ranks, Recipe, Resumable, Run, RunData, RunOptions, Solo, Summary, TrainError, TrainEvent,
    Trainer,
};
use crate::{Lm, Machine, files, objective, settings};
use serde_json::{Value, json};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

mod resolve;

pub use resolve::TrainingJob;

/// A training that has not begun: of a new model, or of one that goes on learning.
///
/// ```
/// use limpid::Training;
/// use limpid::generate::Options;
/// use limpid::train::{Control, TrainEvent, Recipe};
///
/// let text = "to be or not to be, that is the question. ".repeat(40);
/// let recipe = Recipe { batch_size: 4, context: 32, ..Recipe::preset("nano")? };
/// let mut losses = vec![];
/// let trained = Training::preset("nano")?.recipe(recipe).steps(20).text(text).run_telling(|event| {
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
#[must_use = "nothing is trained before `run`"]
pub struct Training {
    config: Config,
    recipe: Recipe,
    options: RunOptions,
    source: TextSource,
    epochs: Option<f64>,
    fits_text: bool,
    base: Option<Lm>,
    tuning: Tuning,
    chat_template: Option<String>,
    special_tokens: Vec<String>,
    probe_text: Option<String>,
    /// Settings that stay as they are where something else would change them: `vocab_size` (the tokenizer's is
    /// smaller), `warmup_steps` (epochs or the text decide the steps), `val_fraction`, `eval_every` and `patience` (the
    /// text decides the steps), `whole_documents` and `cross_documents` (the text has conversations).
    keeps: Vec<&'static str>,
    /// Settings that the folder's limpid.toml keeps besides, unless they are empty.
    noted: Vec<(&'static str, String)>,
    folder: Option<PathBuf>,
    force: bool,
    resume: bool,
    resume_step: Option<u64>,
    state: Option<Resumable>,
    memory: Option<u64>,
    preset: String,
    machine: Machine,
    /// Whether the faster device is measured.
    device_auto: bool,
    ranks: Box<dyn Ranks>,
}

impl std::fmt::Debug for Training {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let (rank, size) = (self.ranks.rank(), self.ranks.size());
        write!(f, "Training({}, {:?}, process {rank} of {size})", self.config, self.recipe)
    }
}

/// What a run made.
#[derive(Debug)]
#[non_exhaustive]
pub struct Trained {
    /// The model: of a run in a folder the best by validation loss, else the last. All of several processes have the
    /// same.
    pub lm: Lm,
    /// What the run came to.
    pub summary: Summary,
}

/// More than any chat template has.
const LARGEST_TEMPLATE: u64 = 16 << 20;

impl Training {
    /// A new model of this configuration, whose vocabulary will be its tokenizer's. With no text named it learns the
    /// built-in stories.
    pub fn new(config: Config, recipe: Recipe) -> Training {
        Training {
            config,
            recipe,
            options: RunOptions::default(),
            source: TextSource::new(settings::BUILT_IN),
            epochs: None,
            fits_text: false,
            base: None,
            tuning: Tuning::default(),
            chat_template: None,
            special_tokens: vec![],
            probe_text: None,
            keeps: vec![],
            noted: vec![],
            folder: None,
            force: false,
            resume: false,
            resume_step: None,
            state: None,
            memory: None,
            preset: String::new(),
            machine: Machine::default(),
            device_auto: false,
            ranks: Box::new(Solo),
        }
    }

    /// A new model of a preset, with its recipe.
    ///
    /// # Errors
    /// If there is none of that name.
    pub fn preset(name: &str) -> Result<Training> {
        let training = Training::new(Config::preset(name)?, Recipe::preset(name)?);
        Ok(Training { options: RunOptions::preset(name)?, preset: name.into(), ..training })
    }

    /// A model that goes on learning, all of it, with its own tokenizer and the recipe for fine-tuning.
    ///
    /// ```
    /// # use limpid::{Lm, Training};
    /// # let text = "to be or not to be, that is the question. ".repeat(40);
    /// # let lm = Training::preset("nano")?.tokenizer("char").text(text).steps(2).run()?.lm;
    /// let lm = Training::fine_tuning(lm).text("to see or not to see. ".repeat(99)).steps(3).run()?.lm;
    /// # assert_eq!(lm.config().n_layer, limpid::config::Config::preset("nano")?.n_layer);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn fine_tuning(lm: Lm) -> Training {
        let (config, machine) = (lm.config().clone(), lm.machine().clone());
        let recipe = Recipe::fine_tuning(&config, false);
        Training { base: Some(lm), machine, options: RunOptions::fine_tuning(), ..Training::new(config, recipe) }
    }

    /// Learns a part of the model that goes on: all but what is frozen, or a LoRA adapter, which is kept in a folder
    /// and has a recipe of its own where none was chosen.
    ///
    /// ```no_run
    /// use limpid::model::{Lora, Tuning};
    /// # use limpid::{Lm, Training};
    /// let targets = vec!["attention".into(), "feed-forward".into()];
    /// let lora = Lora { rank: 16, alpha: 32.0, dropout: 0.0, targets };
    /// let tuning = Tuning { lora: Some(lora), ..Tuning::default() };
    /// let training = Training::fine_tuning(Lm::open("model")?).tuning(tuning).data("chat.jsonl");
    /// let lm = training.folder("runs/adapter").run()?.lm;
    /// # Ok::<(), limpid::Error>(())
    /// ```
    pub fn tuning(mut self, tuning: Tuning) -> Training {
        let usual = |adapter| Recipe::fine_tuning(&self.config, adapter);
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

    /// The text that a time-lapse looks at ([`RunOptions::probe`]), instead of the first tokens of the validation text.
    pub fn probe_text(self, text: impl Into<String>) -> Training {
        Training { probe_text: Some(text.into()), ..self }
    }

    /// Another configuration, whose vocabulary will be the tokenizer's unless the model has learned.
    pub fn config(self, config: Config) -> Training {
        Training { config, ..self }
    }

    /// Another recipe.
    pub fn recipe(self, recipe: Recipe) -> Training {
        Training { recipe, ..self }
    }

    /// So many steps. The warm-up of a shorter recipe is at most a tenth of its steps.
    pub fn steps(self, steps: u64) -> Training {
        let followed = self.recipe.over(&[vec![("steps", steps.to_string())]]);
        // a number that no recipe may have is refused when it is prepared
        let recipe = followed.unwrap_or(Recipe { steps, ..self.recipe });
        Training { recipe, ..self }
    }

    /// As many steps as take each window of the text so many times, instead of a number of steps.
    pub fn epochs(self, epochs: f64) -> Training {
        Training { epochs: Some(epochs), ..self }
    }

    /// As many steps as the text needs, and at most the recipe's. A small text is passed over at most ten times, and
    /// training ends when the validation loss no longer falls. If validation would predict too few tokens to tell, all
    /// of the text is trained on, at most 40 times, and the last weights are kept. A run has at least 300 steps either
    /// way, if its recipe has.
    pub fn fitting_text(self) -> Training {
        Training { fits_text: true, ..self }
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

    /// Learns from a text that is read as the source says: another field, bad documents left out. Threads and the share
    /// for validation are the run's.
    pub fn source(self, source: TextSource) -> Training {
        Training { source, ..self }
    }

    /// The tokenizer of a new model: `bpe` (where none is named), `bpe:SIZE`, `char`, `word`, `gpt2`, ..., or a file
    /// ([`Tokenizer::for_texts`](crate::tokenizer::Tokenizer::for_texts)).
    pub fn tokenizer(mut self, name: impl Into<String>) -> Training {
        self.source.tokenizer = Some(name.into());
        self
    }

    /// Keeps the run in a folder, from which it can go on ([`Training::resume`]) and be opened; without one nothing is
    /// written.
    pub fn folder(self, folder: impl Into<PathBuf>) -> Training {
        Training { folder: Some(folder.into()), ..self }
    }

    /// Uses a folder that holds something else, and removes the files that would be read instead of this run's model.
    pub fn force(self) -> Training {
        Training { force: true, ..self }
    }

    /// Goes on with what its folder holds, if a state was saved there: with the same bits as if it had never stopped.
    /// The run may be one of the command's, with the same settings; `limpid train --resume FOLDER` goes on with one of
    /// these, whose text is a file.
    pub fn resume(self) -> Training {
        Training { resume: true, ..self }
    }

    /// Goes on from the state that was kept after a step instead of the last one ([`Training::resume`]).
    pub fn resume_step(self, step: u64) -> Training {
        Training { resume_step: Some(step), ..self }
    }

    /// On another machine than this processor with all its cores, in f32.
    pub fn machine(self, machine: Machine) -> Training {
        Training { machine, ..self }
    }

    /// One of several processes that train the model together: each makes the same `Training`, and
    /// [`Recipe::accumulate`] is at least their number. Process 0 alone writes the folder and hears of progress; to
    /// resume, all must see it.
    pub fn ranks(self, ranks: Box<dyn Ranks>) -> Training {
        Training { ranks, ..self }
    }

    /// Trains to the last step of the recipe, and gives the model.
    ///
    /// # Errors
    /// As [`Training::run_telling`].
    pub fn run(self) -> Result<Trained> {
        self.run_telling(|_| Control::Continue)
    }

    /// Trains to the last step of the recipe or until `progress` says stop, and gives the model.
    ///
    /// # Errors
    /// If the text cannot be read or is too short, the model cannot be built or does not fit into memory, the folder
    /// holds something else, or training diverges.
    pub fn run_telling(self, mut progress: impl FnMut(TrainEvent) -> Control) -> Result<Trained> {
        let plan = self.check_folder()?.prepare()?;
        memory::fits(&plan.model, Some(&plan.recipe), &plan.placement)?;
        let mut run = plan.start()?;
        let summary = run.go(&mut |event| if plan.main { progress(event) } else { Control::Continue })?;
        plan.trained(run, summary)
    }

    /// Where its folder has a run that goes on: holds the folder and sees that the state there is whole, before the
    /// text is read.
    ///
    /// # Errors
    /// As [`Run::check`].
    pub fn check_folder(self) -> Result<Training> {
        let state = match self.resumed().filter(|_| self.ranks.rank() == 0) {
            Some(folder) => Some(Run::check(&folder, self.resume_step)?),
            None => None,
        };
        Ok(Training { state, ..self })
    }

    /// The folder of a run that goes on.
    fn resumed(&self) -> Option<PathBuf> {
        self.folder.clone().filter(|folder| self.resume && Run::can_resume(folder))
    }

    /// Reads the text, and decides all that can be decided before memory is reserved.
    ///
    /// # Errors
    /// If the text cannot be read or is too short, does not suit the model or its tokenizer, or the model cannot be
    /// built.
    pub fn prepare(mut self) -> Result<TrainingPlan> {
        self.check_adapter()?;
        let main = self.ranks.rank() == 0;
        let resumed = self.resumed();
        check_start(&mut *self.ranks, resumed.is_some()).map_err(TrainError::from)?;
        let ReadText { corpus, validated, conversations, chat_template, noted } = self.read(resumed.as_deref())?;
        let base = self.base.take().map(|base| with_rows(base, &corpus.tokenizer, &self)).transpose()?;
        let config = self.with_vocabulary(corpus.tokenizer.vocab_size(), base.is_some())?;
        let objective =
            objective(&config, Some(&corpus.tokenizer), corpus.tokenizer.vocab_size(), config.n_segment > 1)?;
        let (recipe, fitted) = self.recipe_for((&config, &corpus), validated, conversations.is_some(), objective)?;
        let mode = Mode::Train { batch: recipe.batch_size, context: recipe.context };
        let (machine, measured) = if self.device_auto {
            let (machine, why) = self.machine.faster(&config, mode);
            (machine, Some(why))
        } else {
            (self.machine, None)
        };
        let processes = [self.ranks.size(), self.ranks.here()];
        let (model, placement, program) =
            placed((&config, &recipe, &self.tuning), base.as_ref(), (&machine, processes), self.memory)?;
        // an impossible text is told before memory is reserved
        recipe.batches(&corpus.train, objective)?;
        let mut plan = TrainingPlan {
            config,
            recipe,
            options: self.options,
            corpus,
            conversations,
            objective,
            chat_template,
            model,
            machine,
            measured,
            placement,
            program,
            memory: self.memory,
            base,
            folder: self.folder,
            force: self.force,
            resumed,
            resume_step: self.resume_step,
            state: Cell::new(self.state),
            fitted,
            probe: None,
            frames: None,
            preset: self.preset,
            noted,
            ranks: Cell::new(Some(self.ranks)),
            main,
        };
        if plan.options.probe {
            timelapse::check(&plan.config)?;
            let probe = Probe::ids(self.probe_text.as_deref(), &plan)?;
            (plan.frames, plan.probe) = (Some(Probe::frames(&plan, &probe)?), Some(probe));
        }
        Ok(plan)
    }

    /// Refuses an adapter that could not be kept, or of a model that could not be named.
    fn check_adapter(&self) -> Result<()> {
        if self.tuning.lora.is_none() {
            return Ok(());
        }
        match self.base.as_ref().and_then(Lm::checkpoint) {
            None => Err(Error::Adapter("save the model, and open the saved one")),
            Some(files) if !files.adapters.is_empty() => {
                Err(Error::Adapter("the model is an adapter itself: save it whole first"))
            }
            Some(_) => Ok(()),
        }
    }

    fn is_kept(&self, setting: &str) -> bool {
        self.keeps.contains(&setting)
    }

    /// The text as tokens. A run that goes on has its tokenizer and its template in its folder.
    fn read(&mut self, resumed: Option<&Path>) -> Result<ReadText> {
        let masked = self.config.mask != Mask::Causal;
        let mut source = std::mem::replace(&mut self.source, TextSource::new(""));
        (source.val_fraction, source.threads) = (self.recipe.val_fraction, self.machine.threads);
        let mut conversations = source.conversations()?;
        if conversations.is_some() && masked {
            return Err(Error::NeedsCausal);
        }
        let in_folder = |name: &str| resumed.map(|folder| folder.join(name)).filter(|path| path.exists());
        let read = |path: PathBuf| {
            let text = files::read_text(&path, LARGEST_TEMPLATE);
            text.map_err(|fault| CheckpointError::Io { path, fault })
        };
        let own = || self.base.as_ref().and_then(|base| base.chat_template().map(String::from));
        let chosen = in_folder(CHAT_TEMPLATE).map(read).transpose()?;
        let chosen = chosen.or_else(|| self.chat_template.clone()).or_else(own);
        let foreign = chosen.as_deref().filter(|text| !is_template(text));
        source.specials = match (&conversations, foreign) {
            (Some(conversations), Some(template)) => conversations.markers(template),
            (Some(_), None) => MARKERS.map(String::from).into(),
            (None, _) if masked => vec!["[MASK]".into()],
            _ => vec![],
        };
        source.specials.retain(|special| !self.special_tokens.contains(special));
        source.added.clone_from(&self.special_tokens);
        let of_model = self.base.as_ref().and_then(|base| base.tokenizer().ok().cloned());
        if self.base.is_some() && of_model.is_none() && source.tokenizer.is_none() {
            return Err(Error::NoTokenizer);
        }
        let comes_with_model = of_model.is_some();
        source.decided = in_folder("tokenizer.json").map(Tokenizer::load).transpose()?.or(of_model);
        let read = |source: &TextSource, conversations: &Option<Conversations>| match conversations {
            Some(conversations) => conversations.corpus(source, foreign),
            None => source.read(),
        };
        let mut corpus = read(&source, &conversations)?;
        let validated = fitted::validated(&corpus.validation);
        if self.fits_text
            && !fitted::judges(validated)
            && self.recipe.val_fraction > 0.0
            && !self.is_kept("val_fraction")
        {
            (source.val_fraction, self.recipe.val_fraction) = (0.0, 0.0);
            conversations = source.conversations()?;
            corpus = read(&source, &conversations)?;
        }
        if corpus.validation.len() < 2 {
            corpus.validation = Tokens::default();
        }
        // only a file has a path: a folder may have the name of a tokenizer
        let tokenizer = &corpus.tokenizer_name;
        let tokenizer = if Path::new(tokenizer).is_file() { absolute(tokenizer) } else { tokenizer.clone() };
        let flag = |stands: bool, value: &str| if stands { value.into() } else { String::new() };
        let mut noted = vec![
            ("data", absolute(&source.name)),
            ("field", source.field.unwrap_or_default()),
            ("skip_bad", flag(source.skip_bad, "true")),
            ("parse_special", flag(!source.parse_special, "false")),
            ("tokenizer", if comes_with_model { String::new() } else { tokenizer }),
            ("add_special_tokens", self.special_tokens.join(",")),
        ];
        noted.append(&mut self.noted);
        let limpids = || conversations.as_ref().map(|_| template(&corpus.tokenizer));
        let chat_template = foreign.map(String::from).or_else(limpids).or(chosen);
        Ok(ReadText { corpus, validated, conversations, chat_template, noted })
    }

    /// The configuration with the size of its vocabulary, which a model that has learned keeps.
    fn with_vocabulary(&self, tokens: usize, has_learned: bool) -> Result<Config> {
        let vocab_size = self.config.vocab_size;
        let vocab_size = if has_learned || self.is_kept("vocab_size") {
            if tokens > vocab_size && self.special_tokens.is_empty() {
                return Err(Error::OtherTokenizer { tokens, vocab_size });
            }
            vocab_size.max(tokens)
        } else {
            tokens
        };
        Ok(Config { vocab_size, ..self.config.clone() })
    }

    /// The recipe with what follows from the text, of which `validated` tokens are predicted in validation.
    fn recipe_for(
        &mut self,
        (config, corpus): (&Config, &Corpus),
        validated: usize,
        converses: bool,
        objective: Objective,
    ) -> Result<(Recipe, Option<FittedLength>)> {
        let mut recipe = self.recipe;
        if converses {
            recipe.whole_documents |= !self.is_kept("whole_documents");
            recipe.cross_documents &= self.is_kept("cross_documents");
        }
        if recipe.context == 0 {
            recipe.context = config.context_length;
        }
        let (steps, fitted) = if let Some(epochs) = self.epochs {
            (fitted::steps(&recipe, &corpus.train, objective, epochs)?, None)
        } else if self.fits_text && recipe.context <= config.context_length {
            // (a longer context is refused with the model)
            let (judged, keeps) = (fitted::judges(validated), self.keeps.clone());
            let kept = |setting: &str| keeps.contains(&setting);
            let steps = fitted::fit((&recipe, &mut self.options), &corpus.train, objective, judged, kept)?;
            (steps, Some(FittedLength { validated, judged, shorter: steps < recipe.steps }))
        } else {
            return Ok((recipe, None));
        };
        let followed = recipe.over(&[vec![("steps", steps.to_string())]])?;
        recipe.steps = followed.steps;
        if !self.is_kept("warmup_steps") {
            recipe.warmup_steps = followed.warmup_steps;
        }
        recipe.check()?;
        Ok((recipe, fitted))
    }
}

/// The model of a training on a machine, where its memory lies, and the bytes that the process holds beside it.
fn placed(
    (config, recipe, tuning): (&Config, &Recipe, &Tuning),
    base: Option<&Lm>,
    (machine, processes): (&Machine, [usize; 2]),
    memory: Option<u64>,
) -> Result<(Model, Placement, u64)> {
    let program = memory::program_on(machine.device);
    let placement = Placement { processes, ..Placement::from(machine) };
    let placement = match base.and_then(Lm::checkpoint) {
        Some(files) => placement.with_weights(files, &outline(config, recipe, tuning)?),
        None => placement,
    };
    let model = trainable(config, recipe, tuning, &placement, (program, memory))?;
    Ok((model, placement, program))
}

/// What a text came to.
struct ReadText {
    corpus: Corpus,
    /// The tokens that its validation text predicts, or would predict if it were large enough to be kept.
    validated: usize,
    conversations: Option<Conversations>,
    chat_template: Option<String>,
    noted: Vec<(&'static str, String)>,
}

/// A model that goes on learning, with rows for new special tokens.
fn with_rows(base: Lm, tokenizer: &Tokenizer, training: &Training) -> Result<Lm> {
    let has = |base: &Lm| base.tokenizer().is_ok_and(|own| own.vocab_size() >= tokenizer.vocab_size());
    if training.special_tokens.is_empty() || has(&base) {
        return Ok(base);
    }
    if training.tuning.lora.is_some() {
        return Err(Error::Adapter("the rows of new special tokens are no part of it: train without it"));
    }
    Ok(base.into_checkpoint().ok_or(Error::NoRows)?.with_more_tokens(tokenizer.clone()).into())
}

/// The special tokens that end what is learned of conversations: the last of an answer, or the last but one before a
/// blank.
fn ends_of_answers(tokens: &Tokens, tokenizer: &Tokenizer) -> BTreeSet<u32> {
    let specials: BTreeSet<u32> = tokenizer.specials().into_iter().map(|(_, id)| id).collect();
    let is_blank = |id: u32| tokenizer.decode(&[id]).is_ok_and(|text| text.trim().is_empty());
    let mut ends = BTreeSet::new();
    for document in (0..tokens.documents()).map(|i| tokens.document(i)) {
        let is_last = |at: &usize| tokens.counted(*at) && (at + 1 == document.end || !tokens.counted(at + 1));
        for at in document.clone().filter(is_last) {
            let before = || (at > document.start && is_blank(tokens.id(at))).then(|| tokens.id(at - 1));
            let last = Some(tokens.id(at)).filter(|id| specials.contains(id)).or_else(before);
            ends.extend(last.filter(|id| specials.contains(id)));
        }
    }
    ends
}

impl TrainingPlan {
    /// The model that it begins from, if there is one.
    pub fn base(&self) -> Option<&Checkpoint> {
        self.base.as_ref().and_then(Lm::checkpoint)
    }

    /// How often the steps pass over the text.
    ///
    /// # Errors
    /// If the text has no window.
    pub fn passes(&self) -> Result<f64> {
        fitted::passes(&self.recipe, &self.corpus.train, self.objective)
    }

    /// The least loss that any model can reach on the validation text, in nats a token, where that is known.
    pub fn entropy_floor(&self) -> Option<f64> {
        let known = self.corpus.about.log_probability.filter(|_| self.objective == Objective::NextToken);
        known.map(|p| -p / (self.corpus.validation.len().max(2) - 1) as f64)
    }

    /// A trainer in this process alone, with the weights that it begins from.
    ///
    /// # Errors
    /// If the system refuses memory or threads, the device cannot train the model, or a file cannot be read.
    pub fn trainer(&self) -> Result<Trainer> {
        let backend = self.machine.start(&self.model)?;
        let (model, recipe) = (self.model.clone(), self.recipe);
        match (&self.base, self.base()) {
            // no weight is written twice: those that stay quantised have no other place
            (_, Some(files)) => Ok(Trainer::from(files, model, backend, recipe)?),
            (Some(base), None) => {
                Trainer::new(model, backend, recipe)?.with_weights(|model, backend| base.load(model, backend))
            }
            (None, None) => Ok(Trainer::new(model, backend, recipe)?),
        }
    }

    /// The run, with what its folder holds if it goes on. Nothing is written before [`Run::go`].
    ///
    /// # Errors
    /// As [`TrainingPlan::trainer`]; if other processes train something else, or the state is another training's.
    pub fn start(&self) -> Result<Run<'_>> {
        if self.model.tuning.lora.is_some() && self.folder.is_none() {
            return Err(Error::Adapter("name a folder"));
        }
        if self.probe.is_some() && self.folder.is_none() {
            return Err(TimelapseError::NotThis("it is kept in the folder of a run: name one").into());
        }
        let mut ranks = self.ranks.take().unwrap_or_else(|| Box::new(Solo));
        // all look at how much memory is left before one takes of it; what they run on may change digits
        let unfused = !self.machine.level.is_exact();
        let facts = [("device", format!("{:?}", self.machine.device)), ("simd unfused", unfused.to_string())];
        check(&mut *ranks, &facts.map(|(name, value)| (name.into(), value))).map_err(TrainError::from)?;
        let trainer = self.trainer()?.among(ranks)?;
        let Corpus { train, validation, tokenizer, .. } = &self.corpus;
        let folder = self.folder.clone().filter(|_| self.main);
        let mut run = Run::new(trainer, folder, RunData { train, validation, objective: self.objective, tokenizer })?;
        (run.options, run.force) = (self.options, self.force);
        if let Some(ids) = &self.probe {
            let kept_in = self.folder.as_deref().filter(|_| self.main);
            run.observer = Some(Box::new(Probe::new(self, ids.clone(), kept_in)?));
        }
        match &self.resumed {
            Some(folder) if self.main => {
                self.check_base(folder)?;
                let state = self.state.take().map_or_else(|| Run::check(folder, self.resume_step), Ok);
                run.resume_from(state?)?;
                if run.observer.is_none() {
                    timelapse::cut(folder, run.trainer.steps_done())?;
                }
            }
            Some(_) => drop(run.resume_with()?),
            None if self.main => (run.files, run.carried) = (self.files()?, self.carried()),
            None => {}
        }
        Ok(run)
    }

    /// Refuses to go on with an adapter whose model is not what it was.
    fn check_base(&self, folder: &Path) -> Result<()> {
        if let (Some(base), Some(_)) = (self.base(), &self.model.tuning.lora)
            && let Some(made_for) = adapter::base(folder)?
            && !made_for.is(base)?
        {
            return Err(Error::OtherBase { folder: folder.into(), model: made_for.path });
        }
        Ok(())
    }

    /// What a run's folder has of that of the model that is fine-tuned, with the same tokenizer or another: all that
    /// goes along when a model is written. An adapter's folder has nothing of it.
    fn carried(&self) -> Carried {
        let whole = self.base().filter(|_| self.model.tuning.lora.is_none());
        let carried = whole.map(|from| from.carried.clone()).unwrap_or_default();
        let own = self.base().is_some_and(|from| from.tokenizer.is_some());
        let carried = if own { carried } else { carried.without_tokenizer() };
        match self.taught_ends() {
            Some(ends) => carried.with_ends(ends),
            None => carried,
        }
    }

    /// The tokens that end a text or a turn, if conversations teach one that neither the base model's files nor the
    /// tokenizer name.
    fn taught_ends(&self) -> Option<Vec<u32>> {
        self.conversations.as_ref()?;
        let tokenizer = &self.corpus.tokenizer;
        let of_base = self.base().filter(|from| from.tokenizer.is_some()).map(Checkpoint::end_tokens);
        let mut ends = of_base.unwrap_or_default();
        if ends.is_empty() {
            ends.extend(tokenizer.end_of_text());
        }
        let known = ends.len();
        for id in ends_of_answers(&self.corpus.train, tokenizer).into_iter().chain(tokenizer.more_ends()) {
            if !ends.contains(&id) {
                ends.push(id);
            }
        }
        (ends.len() > known).then_some(ends)
    }

    /// The files that a run begins its folder with, beside those of every run: limpid.toml, which says what it was
    /// started with, and what an adapter or a model of conversations has.
    fn files(&self) -> Result<Vec<(String, String)>> {
        let path = self.base().map(|files| absolute(&files.path.display().to_string()));
        let mut files = vec![];
        if let (Some(path), Some(from)) = (&path, self.base())
            && self.model.tuning.lora.is_some()
        {
            files = adapter::describe(&self.model, &adapter::Base::new(path.into(), from)?);
        }
        files.extend(self.chat_template.iter().map(|template| (CHAT_TEMPLATE.into(), template.clone())));
        let whole = self.base().is_some() && self.model.tuning.lora.is_none();
        if whole && !self.carried().written().any(|name| name == GENERATION) {
            files.extend(generation_config(&self.corpus.tokenizer, None).map(|text| (GENERATION.into(), text)));
        }
        let rest = [
            ("preset", self.preset.clone()),
            ("from", path.unwrap_or_default()),
            ("precision", self.machine.precision.to_string()),
            ("memory", self.memory.map(|bytes| bytes.to_string()).unwrap_or_default()),
        ];
        let rest = rest.into_iter().chain(self.noted.clone()).chain(keys(&self.model.tuning));
        // written first, so that a run that is killed at its beginning can be resumed
        let padded = self.base().is_none() && self.config.vocab_size > self.corpus.tokenizer.vocab_size();
        files.insert(0, ("limpid.toml".into(), settings_file(self, padded, rest)));
        Ok(files)
    }

    /// The model with the weights that a trainer of this plan has now. They are copied, so training can go on.
    ///
    /// # Errors
    /// If the system refuses memory.
    pub fn lm(&self, trainer: &Trainer) -> Result<Lm> {
        let (tokenizer, template) = (self.corpus.tokenizer.clone(), self.chat_template.clone());
        snapshot(trainer, (&self.config, Some(tokenizer), template), &self.machine)
    }

    /// The model that a run made.
    fn trained(&self, mut run: Run, summary: Summary) -> Result<Trained> {
        let held = |trainer: &mut Trainer| self.lm(trainer);
        let lm = match &self.folder {
            Some(folder) if self.main => {
                summary.write(folder)?;
                if self.placement.processes[0] > 1 {
                    run.with_best(|_| ())?; // the others take what is kept
                }
                drop(run); // its memory is free for the model
                Lm::open(folder)?.with_machine(self.machine.clone())
            }
            Some(_) => run.with_best(held)??,
            None => run.trainer.averaged(held)??,
        };
        Ok(Trained { lm, summary })
    }
}

/// Freezing and LoRA, as settings.
fn keys(tuning: &Tuning) -> Vec<(&'static str, String)> {
    let mut keys = vec![("freeze", tuning.freeze.join(",")), ("train_only", tuning.train_only.join(","))];
    if let Some(lora) = &tuning.lora {
        keys.extend([
            ("lora", lora.rank.to_string()),
            ("lora_alpha", lora.alpha.to_string()),
            ("lora_dropout", lora.dropout.to_string()),
            ("lora_targets", lora.targets.join(",")),
        ]);
    }
    keys
}

/// Settings as a configuration file: what the command's `--config` and `--resume` read.
/// The vocabulary is the tokenizer's, unless it is padded.
fn settings_file(plan: &TrainingPlan, padded: bool, rest: impl Iterator<Item = (&'static str, String)>) -> String {
    // what follows the model's own is written so, for whoever takes another model with these settings
    let TrainingPlan { config, recipe, options, .. } = plan;
    let own = recipe.context == config.context_length;
    let recipe = Recipe { context: if own { 0 } else { recipe.context }, ..*recipe };
    let fields = config.fields().into_iter().chain(recipe.fields()).chain(options.fields());
    let fields = fields.filter(|(setting, _)| setting.chosen && (padded || setting.name != "vocab_size"));
    let values = fields.map(|(setting, value)| (setting.name, value.json()));
    let rest = rest.filter(|(_, value)| !value.is_empty()).map(|(key, value)| (key, json!(value)));
    let lines: BTreeMap<&str, Value> = values.filter(|(_, value)| !value.is_null()).chain(rest).collect();
    // one value a key: TOML has it as JSON has, but for a character that it does not take as it is
    let line = |(key, value): (&&str, &Value)| format!("{key} = {value}\n").replace('\u{7f}', "\\u007f");
    let lines: String = lines.iter().map(line).collect();
    format!("# What this run was started with. `limpid train --config FILE` starts another like it.\n{lines}")
}

/// A path from the root, where there is something; a name as it is.
fn absolute(name: &str) -> String {
    if Path::new(name).exists() {
        std::path::absolute(name).map_or_else(|_| name.into(), |path| path.display().to_string())
    } else {
        name.into()
    }
}

//! A model as a whole, ready for use: its configuration, its tokenizer, its weights.
//!
//! Every method is a few calls of the modules that do the work, in the order that suits most programs; whoever needs
//! another order calls them. Read `generate`, `trace` and `checkpoint` next, and [`Training`](crate::Training), which
//! makes an [`Lm`].

use crate::backend::{Backend, SharedWeights};
use crate::checkpoint::{self, Checkpoint, Format};
use crate::config::{Config, ConfigError, Mask};
use crate::data::chat::Message;
use crate::data::source::{SourceError, TextSource};
use crate::data::template::{ChatTemplate, TemplateTokens};
use crate::engine::{Decoder, DecoderLimits, Engine, EngineLimits};
use crate::error::{Error, Result};
use crate::generate::{self, Filled, GenerateError, GenerateEvent, Likelihood, Options, Sample};
use crate::hashes::ReceiptHashes;
use crate::matrix::Precision;
use crate::memory::{self, Placement};
use crate::model::{MemoryPart, Mode, Model, Param};
use crate::names::{self, Derived};
use crate::ops::Batch;
use crate::tokenizer::Tokenizer;
use crate::trace::interventions::{InterveningBackend, Interventions, ResolvedSteps, SequenceSteps};
use crate::trace::{self, Keep, NamedTensor, Trace};
use crate::train::evaluate::{self, Score};
use crate::train::{Objective, WindowShape, Windows};
use crate::{Machine, checkpoint::store::Dtype};
use limpid_base::budget::Budget;
use std::borrow::Cow;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Windows that are evaluated at once.
const WINDOWS: usize = 16;

/// A language model: a transformer with its weights and, mostly, a tokenizer.
///
/// It is opened from files, or made by [`Training`](crate::Training). It may be shared between threads. Its weights are
/// in memory once, from the first call that needs them on: all engines, traces and scores run on those; gradients alone
/// have their own.
///
/// ```
/// use limpid::generate::Options;
/// use limpid::train::{Control, Recipe};
/// use limpid::{Lm, Training};
/// # use std::env;
/// # let folder = env::temp_dir().join(format!("limpid-lm-doc-{}", std::process::id()));
/// # let recipe = Recipe { steps: 2, batch_size: 2, context: 16, ..Recipe::preset("nano")? };
/// # let text = "to be or not to be, that is the question. ".repeat(40);
/// # Training::preset("nano")?.recipe(recipe).text(text).folder(&folder).run()?;
///
/// let lm = Lm::open(&folder)?; // or a folder of HuggingFace's, a .gguf, a .bin of llm.c
/// let sample = lm.generate("to be", &Options { max_tokens: 8, ..Options::default() })?;
/// assert_eq!(sample.tokens.len(), 8);
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Lm {
    config: Config,
    tokenizer: Option<Tokenizer>,
    chat_template: Option<String>,
    /// Shared with the models that [`Lm::intervene`] makes.
    weights: Arc<Weights>,
    machine: Machine,
    /// What changes every run.
    steps: Option<Arc<ResolvedSteps>>,
    interventions: Vec<Interventions>,
    /// What receipts say of it, once it was asked for.
    hashes: OnceLock<ReceiptHashes>,
    /// In memory, as they are run; all calls share them.
    ready: Arc<Mutex<Option<SharedWeights>>>,
    /// One that waits for the next call.
    engine: Mutex<Option<Engine>>,
}

/// Where the weights are.
enum Weights {
    /// In files that are open.
    Files(Box<Checkpoint>),
    /// In memory, in f32.
    Held(SharedWeights),
}

impl From<Checkpoint> for Lm {
    /// A model whose files are open: with an adapter, or settings of its configuration changed.
    fn from(checkpoint: Checkpoint) -> Lm {
        let (config, tokenizer) = (checkpoint.config.clone(), checkpoint.tokenizer.clone());
        let chat_template = checkpoint.chat_template.clone();
        let lm = Lm::of(config, Arc::new(Weights::Files(Box::new(checkpoint))), Machine::default());
        Lm { tokenizer, chat_template, ..lm }
    }
}

impl fmt::Debug for Lm {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "Lm({}, {:?})", self.config, self.tokenizer)
    }
}

impl Lm {
    /// Opens a model: a folder of limpid's or HuggingFace's, a `.gguf`, a `.bin` of llm.c's, or an adapter whose model
    /// is where it says.
    ///
    /// The files are mapped into memory, not copied, so that large models open at once. No program may write into them
    /// while the model exists: a change of a mapped file is undefined behaviour ([`Checkpoint::open`] says more).
    /// Replace files by renaming new ones; where others may write into them, use [`Lm::open_copied`].
    ///
    /// # Errors
    /// As [`Checkpoint::open`]; [`Checkpoint::open_as`] opens files without holding them against their checksums.
    pub fn open(path: impl AsRef<Path>) -> Result<Lm> {
        Ok(Checkpoint::open(path.as_ref())?.into())
    }

    /// [`Lm::open`] with the files' bytes copied into memory, where changes of the files do not reach.
    ///
    /// # Errors
    /// As [`Checkpoint::open_copied`].
    pub fn open_copied(path: impl AsRef<Path>) -> Result<Lm> {
        Ok(Checkpoint::open_copied(path.as_ref())?.into())
    }

    /// A model of the weights in memory that `load` writes into a backend.
    pub(crate) fn held(
        config: Config,
        tokenizer: Option<Tokenizer>,
        chat_template: Option<String>,
        load: impl FnOnce(&Model, &mut dyn Backend) -> Result<()>,
        machine: Machine,
    ) -> Result<Lm> {
        let plain = Machine { clock: machine.clock, ..Machine::cpu(machine.threads) };
        let held = shared_weights(&config, &plain, None, load)?;
        let ready = Arc::new(Mutex::new(machine.shares_weights_with(&plain).then(|| held.clone())));
        Ok(Lm { tokenizer, chat_template, ready, ..Lm::of(config, Arc::new(Weights::Held(held)), machine) })
    }

    /// A model without a tokenizer, of which nothing has run.
    fn of(config: Config, weights: Arc<Weights>, machine: Machine) -> Lm {
        Lm {
            config,
            tokenizer: None,
            chat_template: None,
            weights,
            machine,
            steps: None,
            interventions: vec![],
            hashes: OnceLock::new(),
            ready: Arc::default(),
            engine: Mutex::new(None),
        }
    }

    /// The same on another machine than this processor with all its cores, in f32.
    ///
    /// ```no_run
    /// # use limpid::{Lm, Machine, matrix::Precision};
    /// let lm = Lm::open("runs/1")?.with_machine(Machine { precision: Precision::Bf16, ..Machine::cpu(4) });
    /// # Ok::<(), limpid::Error>(())
    /// ```
    #[must_use]
    pub fn with_machine(self, machine: Machine) -> Lm {
        let ready = match &*self.weights {
            Weights::Held(held) if machine.shares_weights_with(&Machine::default()) => Some(held.clone()),
            _ => self.ready().clone().filter(|_| machine.shares_weights_with(&self.machine)),
        };
        Lm { machine, ready: Arc::new(Mutex::new(ready)), engine: Mutex::new(None), ..self }
    }

    /// The same with another tokenizer, for files that have none.
    ///
    /// # Errors
    /// If it has more tokens than the model.
    pub fn with_tokenizer(self, tokenizer: Tokenizer) -> Result<Lm> {
        let (tokens, vocab_size) = (tokenizer.vocab_size(), self.config.vocab_size);
        if tokens > vocab_size {
            return Err(Error::OtherTokenizer { tokens, vocab_size });
        }
        let (tokenizer, hashes, engine) = (Some(tokenizer), OnceLock::new(), Mutex::new(None));
        Ok(Lm { tokenizer, hashes, engine, ..self })
    }

    /// [`Lm::intervene`], with what may be spent on runs that values come from, and for steps that others give: no file
    /// is read.
    ///
    /// # Errors
    /// As [`Lm::intervene`], [`TraceError::Spent`](crate::trace::TraceError::Spent), and if a step names a file.
    pub fn intervene_within(&self, interventions: &Interventions, budget: &Arc<Budget>) -> Result<Lm> {
        let more = self.resolve(interventions, budget)?;
        let steps = self.steps.iter().flat_map(|steps| steps.iter()).chain(more.iter()).cloned().collect();
        let interventions = self.interventions.iter().chain([interventions]).cloned().collect();
        Ok(Lm { steps: Some(Arc::new(steps)), interventions, ..self.without_interventions() })
    }

    /// The same model without its interventions, on the same weights.
    #[must_use]
    pub fn without_interventions(&self) -> Lm {
        Lm {
            tokenizer: self.tokenizer.clone(),
            chat_template: self.chat_template.clone(),
            ready: self.ready.clone(),
            ..Lm::of(self.config.clone(), self.weights.clone(), self.machine.clone())
        }
    }

    /// What the interventions of its runs are on this model.
    pub fn resolved_steps(&self) -> Option<&Arc<ResolvedSteps>> {
        self.steps.as_ref()
    }

    /// The interventions of its runs.
    pub fn interventions(&self) -> &[Interventions] {
        &self.interventions
    }

    /// Which transformer it is.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Its tokenizer.
    ///
    /// # Errors
    /// If it has none.
    pub fn tokenizer(&self) -> Result<&Tokenizer> {
        self.tokenizer.as_ref().ok_or(Error::NoTokenizer)
    }

    /// The template of conversations it was trained on, in Jinja, if there is one.
    pub fn chat_template(&self) -> Option<&str> {
        self.chat_template.as_deref()
    }

    /// What it runs on.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// The files that its weights are in, if they are.
    pub fn checkpoint(&self) -> Option<&Checkpoint> {
        if let Weights::Files(files) = &*self.weights { Some(files) } else { None }
    }

    /// The id of `[MASK]`, in whose place [`Lm::fill`] puts another token.
    ///
    /// # Errors
    /// If it has no tokenizer, or that no `[MASK]`.
    pub fn mask_token(&self) -> Result<u32> {
        self.tokenizer()?.special("[MASK]").ok_or(Error::NoMask)
    }

    /// The files alone.
    pub(crate) fn into_checkpoint(self) -> Option<Checkpoint> {
        if let Weights::Files(files) = Arc::into_inner(self.weights)? { Some(*files) } else { None }
    }

    /// What it predicts: the next token, or with a mask that looks both ways the masked ones, of texts with segments or
    /// without.
    ///
    /// # Errors
    /// If it predicts masked tokens and its tokenizer has no `[MASK]`.
    pub fn objective(&self, segments: bool) -> Result<Objective> {
        objective(&self.config, self.tokenizer.as_ref(), self.config.vocab_size, segments)
    }

    /// What receipts say of it: checksums of its configuration, its weights and its tokenizer. The first call reads all
    /// weights.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn receipt_hashes(&self) -> Result<&ReceiptHashes> {
        if let Some(hashes) = self.hashes.get() {
            return Ok(hashes);
        }
        let hashes =
            ReceiptHashes::new(&self.config, self.tokenizer.as_ref(), |model, param| self.values(model, param))?;
        Ok(self.hashes.get_or_init(|| hashes))
    }

    /// The ids of a text as the model expects it: see [`generate::prompt_ids`].
    ///
    /// # Errors
    /// If there is no tokenizer, or it has no ids for the text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        Ok(generate::prompt_ids(self.tokenizer()?, self.config.mask, text)?)
    }

    // ---- writing

    /// Continues `prompt`; from the beginning of a text if it is empty. The prompt is not part of the sample.
    ///
    /// ```no_run
    /// # use limpid::generate::{Options, Sampler};
    /// # let lm = limpid::Lm::open("runs/1")?;
    /// let sampler = Sampler { temperature: 0.8, top_k: 40, seed: 1, ..Sampler::default() };
    /// let sample = lm.generate("Once upon a time", &Options { max_tokens: 50, sampler, ..Options::default() })?;
    /// println!("{}", sample.text);
    /// # Ok::<(), limpid::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`generate::generate`], and if the model has no tokenizer.
    pub fn generate(&self, prompt: &str, options: &Options) -> Result<Sample> {
        self.stream(prompt, options)?.sample()
    }

    /// The ids that [`Lm::generate`] continues: those of the text, or the beginning of a text if it is empty.
    ///
    /// # Errors
    /// As [`Lm::encode`], and if the tokenizer has no token that begins a text.
    pub fn prompt_ids(&self, prompt: &str) -> Result<Vec<u32>> {
        match prompt {
            "" => Ok(generate::start_ids(self.tokenizer()?).ok_or(GenerateError::NoStart)?),
            _ => self.encode(prompt),
        }
    }

    /// Answers the last message of a conversation, where the model was trained on conversations. The answer is text
    /// without special tokens ([`Options::skip_special_tokens`]): it may be a message of the next turn.
    ///
    /// # Errors
    /// If it was not, or as [`Lm::chat_ids`] and [`Lm::generate`].
    pub fn chat(&self, messages: &[Message], options: &Options) -> Result<Sample> {
        self.chat_stream(messages, options)?.sample()
    }

    /// The ids that [`Lm::chat`] continues, and the options with what ends an answer.
    ///
    /// # Errors
    /// As [`Lm::chat`].
    pub fn chat_prompt(&self, messages: &[Message], options: &Options) -> Result<(Vec<u32>, Options)> {
        let template = self.template()?.ok_or(Error::NoChat)?;
        let ids = self.chat_ids(&template, messages)?;
        let mut options = Options { skip_special_tokens: true, ..options.clone() };
        options.stop.extend(self.chat_stops(&template)?);
        Ok((ids, options))
    }

    /// How conversations with it are written, if its files say so. Another template for it is one of
    /// [`ChatTemplate::new`].
    ///
    /// # Errors
    /// As [`ChatTemplate::new`].
    pub fn template(&self) -> Result<Option<ChatTemplate>> {
        let tokens = self.tokenizer.as_ref().map(TemplateTokens::new).unwrap_or_default();
        Ok(self.chat_template().map(|source| ChatTemplate::new(source, tokens)).transpose()?)
    }

    /// The ids that an answer to `messages` comes after.
    ///
    /// # Errors
    /// As [`ChatTemplate::ids`], and if the model has no tokenizer.
    pub fn chat_ids(&self, template: &ChatTemplate, messages: &[Message]) -> Result<Vec<u32>> {
        Ok(template.ids(messages, self.tokenizer()?)?)
    }

    /// Texts for [`Options::stop`] that end an answer, beside the tokens that do so in any case
    /// ([`Options::stop_at_end_of_text`]).
    ///
    /// # Errors
    /// If the model has no tokenizer.
    pub fn chat_stops(&self, template: &ChatTemplate) -> Result<Vec<String>> {
        let ends = self.checkpoint().map(Checkpoint::end_tokens).unwrap_or_default();
        Ok(template.stops(self.tokenizer()?, &ends))
    }

    /// Continues a prompt of ids, and tells every event: how each token was chosen ([`Options::trace`]), and when the
    /// context was full.
    ///
    /// # Errors
    /// As [`generate::generate`].
    pub fn generate_events(
        &self,
        prompt: &[u32],
        options: &Options,
        tell: &mut dyn FnMut(GenerateEvent) -> bool,
    ) -> Result<Sample> {
        self.in_engine(|engine| Ok(generate::generate(engine, prompt, options, tell)?))
    }

    /// Fills every `[MASK]` of a text, with a bidirectional model.
    ///
    /// # Errors
    /// If the tokenizer has no `[MASK]`, or the text is empty or too long.
    pub fn fill(&self, text: &str) -> Result<Filled> {
        self.fill_ids(&self.encode(text)?)
    }

    /// [`Lm::fill`] of ids.
    ///
    /// # Errors
    /// As [`Lm::fill`].
    pub fn fill_ids(&self, ids: &[u32]) -> Result<Filled> {
        self.needs_head()?;
        let (tokenizer, mask) = (self.tokenizer()?, self.mask_token()?);
        let batch = self.batch_of(ids)?;
        let (model, backend) = self.inspected(ids.len(), true)?;
        let mut backend = self.intervened(backend, &batch)?;
        backend.feed(&batch)?;
        backend.forward(model.ops())?;
        let probs = model.tensor("probs").expect("an inspected model with a head has probabilities").region;
        Ok(generate::fill(&backend.read(probs.for_batch(&batch))?, ids, tokenizer, mask)?)
    }

    /// The distribution over the vocabulary (V) that the model gives for place `at`, from 0, of `tokens`: BERT(x, s, i)
    /// of "The Formulated GPT-2", the token that stands there where `tokens` has `[MASK]`; of a causal model the token
    /// after it. `segments` has a number for each token, or is empty.
    ///
    /// ```no_run
    /// # let bert = limpid::Lm::open("bert")?;
    /// let tokens = bert.encode("cat [MASK] around dog")?;
    /// let distribution = bert.distribution(&tokens, &[0, 0, 1, 1], 1)?;
    /// assert_eq!(distribution.len(), bert.config().vocab_size);
    /// # Ok::<(), limpid::Error>(())
    /// ```
    ///
    /// # Errors
    /// If there is no such place, token or segment, or the tokens are more than the context.
    pub fn distribution(&self, tokens: &[u32], segments: &[u32], at: usize) -> Result<Vec<f32>> {
        self.needs_head()?;
        if at >= tokens.len() {
            return Err(Error::NoPlace { at, tokens: tokens.len() });
        }
        let mut batch = self.batch_of(tokens)?;
        if !segments.is_empty() {
            batch.segments = segments.to_vec();
        }
        let (model, backend) = self.inspected(tokens.len(), true)?;
        let run = Trace::run_with_steps(&model, backend, &batch, self.steps.clone(), Keep::All)?;
        let all = run.get("probs")?.values;
        let v = self.config.vocab_size;
        Ok(all[at * v..][..v].to_vec())
    }

    /// An engine for many requests on the model's weights, which all engines share: for a server. Its cache has the
    /// type that [`Machine::cache`] says.
    ///
    /// # Errors
    /// If the model is not causal or has no head, there is no room, or a limit is 0 ([`Error::EngineLimits`]).
    pub fn engine(&self, limits: &EngineLimits) -> Result<Engine> {
        match limits {
            EngineLimits { sequences: 0, .. } => return Err(Error::EngineLimits("sequence")),
            EngineLimits { prompt_rows: 0, .. } => return Err(Error::EngineLimits("row of prompts")),
            _ => {}
        }
        let limits = limits.with_cache(self.machine.cache);
        let decoder = self.decoder(limits.decoder(&self.config))?;
        Ok(Engine::new(decoder, self.tokenizer.clone(), &limits).with_steps(self.steps.clone()))
    }

    /// Rows of sequences, on the model's weights, which all decoders share and none can change: for callers that decide
    /// what comes next without an [`Engine`].
    ///
    /// # Errors
    /// If the model is not causal or has no head, or there is no room.
    pub fn decoder(&self, limits: DecoderLimits) -> Result<Decoder> {
        self.needs_head()?;
        if !self.machine.device.can_share() {
            let mut decoder = self.machine.decoder(&self.config, limits)?;
            let (model, backend) = decoder.parts();
            self.load(model, backend)?;
            return Ok(decoder);
        }
        self.on_weights(|weights| {
            memory::fits_beside(&limits.model(&self.config)?, &self.machine)?;
            let make = |model: &Model| self.machine.start_with(model, weights);
            Ok(Decoder::new(&self.config, limits, make)?)
        })
    }

    // ---- scoring

    /// How likely `continuation` is after `prompt`: the logarithm of each token's probability, in nats, and their sum.
    ///
    /// # Errors
    /// As [`generate::score`], and if the model has no tokenizer.
    pub fn score(&self, prompt: &str, continuation: &str) -> Result<Likelihood> {
        let (prompt, ids) = (self.encode(prompt)?, self.tokenizer()?.encode(continuation)?);
        self.in_engine(|engine| Ok(generate::score(engine, &prompt, &ids)?))
    }

    /// The loss on a text, in windows of the model's context that do not overlap. A bidirectional model predicts masked
    /// tokens, 15 in 100.
    ///
    /// ```no_run
    /// # use limpid::{Lm, data::source::TextSource};
    /// let score = Lm::open("runs/1")?.evaluate(&TextSource::new("held-out.txt"))?;
    /// let (nats_a_token, perplexity) = (score.loss(), score.perplexity()); // none if the text has nothing to predict
    /// # Ok::<(), limpid::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the text cannot be read or is shorter than a window.
    pub fn evaluate(&self, text: &TextSource) -> Result<Score> {
        self.needs_head()?;
        let (ids, _) = text.whole(self.tokenizer()?)?;
        ids.check_ids(self.config.vocab_size).map_err(SourceError::from)?;
        let windows = Windows::new("text", &ids, WindowShape::new(self.config.context_length, self.objective(false)?))?;
        self.evaluate_windows(&windows, self.config.context_length, WINDOWS)
    }

    /// The loss on windows of at most `context` tokens, so many at once.
    ///
    /// # Errors
    /// If there is no room for as many.
    pub fn evaluate_windows(&self, windows: &Windows, context: usize, at_once: usize) -> Result<Score> {
        self.needs_head()?;
        let (model, mut backend) = self.scoring(Mode::Score { batch: at_once, context })?;
        let Some(steps) = &self.steps else {
            return Ok(evaluate::score(&model, &mut *backend, windows, at_once, &mut |_| true)?);
        };
        let mut backend = InterveningBackend::every(backend, steps.clone());
        let score = evaluate::score(&model, &mut backend, windows, at_once, &mut |_| true)?;
        backend.check_effect()?;
        Ok(score)
    }

    // ---- looking inside

    /// The first parameter of `model` that has NaN or infinite values.
    pub(crate) fn damaged(&self, model: &Model) -> Result<Option<String>> {
        for param in &model.params {
            if !self.values(model, param)?.iter().all(|v| v.is_finite()) {
                return Ok(Some(param.name.clone()));
            }
        }
        Ok(None)
    }

    /// Runs a text; every tensor of the run can be had by its name (docs/names.md). It keeps little, and computes again
    /// what is asked for, the same bits ([`Keep::Blocks`]).
    ///
    /// ```no_run
    /// # let lm = limpid::Lm::open("runs/1")?;
    /// let pattern = lm.trace("to be or not")?.get("blocks.0.attn.hook_pattern")?;
    /// assert_eq!(pattern.axes, ["batch", "head", "query_pos", "key_pos"]);
    /// let weight = pattern[[0, 3, 5, 2]]; // of head 3: how much the sixth token looks at the third
    /// # Ok::<(), limpid::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the model has no tokenizer, or the text is empty or longer than the context.
    pub fn trace(&self, text: &str) -> Result<Trace> {
        self.trace_ids(&self.encode(text)?, Keep::default())
    }

    /// [`Lm::trace`] of tokens, which keeps what it is told to. With [`Keep::Gradients`] it goes backward too: from the
    /// mean loss of the next token, of a model that looks both ways from that of every token.
    ///
    /// # Errors
    /// As [`Lm::trace`], and if interventions change a run that is to go backward.
    pub fn trace_ids(&self, ids: &[u32], keep: Keep) -> Result<Trace> {
        self.trace_batch(&self.batch_of(ids)?, self.steps.clone(), keep)
    }

    /// The same of one sequence with its targets, with these steps in place of the model's own.
    pub(crate) fn trace_batch(&self, batch: &Batch, steps: Option<Arc<ResolvedSteps>>, keep: Keep) -> Result<Trace> {
        let context = batch.tokens.len();
        let (model, backend) = match keep {
            Keep::Blocks { .. } => self.scoring(keep.mode(1, context))?,
            // packed in bf16 they are rounded, and cannot be looked at as they are
            Keep::All => self.inspected(context, !packs(&self.config) || self.machine.precision != Precision::Bf16)?,
            Keep::Gradients if steps.is_some() => return Err(Error::InterventionGradients),
            Keep::Gradients => self.inspected(context, !packs(&self.config))?,
        };
        Ok(Trace::run_with_steps(&model, backend, batch, steps, keep)?)
    }

    /// The same of several sequences on a model without interventions, each changed as `sequences` says.
    pub(crate) fn trace_sequences(&self, batch: &Batch, sequences: SequenceSteps) -> Result<Trace> {
        let keep = Keep::Blocks { seen: 0 };
        let (model, backend) = self.scoring(keep.mode(batch.spans.len(), batch.spans[0].rows))?;
        Ok(Trace::run(&model, Box::new(InterveningBackend::new(backend, sequences)), batch, keep)?)
    }

    /// Bytes that a [`Lm::trace_ids`] takes: one in blocks beside the weights, one of which all is kept with them.
    ///
    /// # Errors
    /// If there are more tokens than the context has.
    pub fn trace_bytes(&self, tokens: usize, keep: Keep) -> Result<usize> {
        match keep {
            Keep::Blocks { seen } => {
                let shown = self.trace_bytes(tokens, Keep::All)?;
                Ok(self.layer_bytes(1, tokens)?.saturating_add(shown.min(seen)))
            }
            Keep::All | Keep::Gradients => {
                let model = Model::new(&self.config, keep.mode(1, tokens))?;
                Ok(model.memory().into_iter().map(|(_, bytes)| bytes).sum())
            }
        }
    }

    /// Bytes of `n` sequences in blocks beside the weights, nothing of which was looked at.
    pub(crate) fn layer_bytes(&self, n: usize, tokens: usize) -> Result<usize> {
        let model = Model::new(&self.config, Keep::default().mode(n, tokens))?;
        let beside = model.memory().into_iter().filter(|(part, _)| *part != MemoryPart::Parameters);
        Ok(beside.map(|(_, bytes)| bytes).sum())
    }

    // ---- weights

    /// The values of a parameter of `model`, which was built of this configuration, row by row.
    ///
    /// # Errors
    /// If its file cannot be read, or the device fails that has it.
    pub fn values(&self, model: &Model, param: &Param) -> Result<Cow<'_, [f32]>> {
        match &*self.weights {
            Weights::Files(checkpoint) => Ok(checkpoint.values(model, param)?),
            Weights::Held(held) => {
                Ok(held.values(&param.name)?.expect("a model has all parameters of its configuration").into())
            }
        }
    }

    /// Its parameters: their names and shapes, in the order of memory.
    ///
    /// # Errors
    /// If no model can be built of its configuration.
    pub fn parameters(&self) -> Result<Vec<(String, Vec<usize>)>> {
        let model = Model::new(&self.config, Mode::Inspect { batch: 1, context: 1 })?;
        Ok(model.params.iter().map(|param| (param.name.clone(), param.shape())).collect())
    }

    /// The values of one parameter, with the names of its axes; also of a part of one that has a name of its own,
    /// `blocks.0.attn.W_K`.
    ///
    /// # Errors
    /// If there is no such parameter, or as [`Lm::values`].
    pub fn parameter(&self, name: &str) -> Result<NamedTensor> {
        let model = Model::new(&self.config, Mode::Inspect { batch: 1, context: 1 })?;
        let stored = |param| Ok::<_, Error>(self.values(&model, param)?.into_owned());
        if let Some(param) = model.param(name) {
            return Ok(trace::parameter(&self.config, name, param, stored(param)?));
        }
        let part = match names::derivation(&model, name) {
            Some(Derived::Part { param, rows }) => model.param(&param).map(|param| (param, rows)),
            _ => None,
        };
        let (param, rows) = part.ok_or_else(|| trace::unknown(&model, name))?;
        Ok(trace::parameter_part(&self.config, name, (param, rows), stored(param)?))
    }

    /// Writes the weights into any backend that was made for `model`, which was built of this configuration.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn load(&self, model: &Model, backend: &mut dyn Backend) -> Result<()> {
        match &*self.weights {
            Weights::Files(checkpoint) => Ok(checkpoint.load(model, backend)?),
            Weights::Held(_) => {
                model.params.iter().try_for_each(|param| Ok(backend.write(param.region, &self.values(model, param)?)?))
            }
        }
    }

    /// Writes the model, with its tokenizer: a folder of limpid's or HuggingFace's, a GGUF, a file of llm.c's. Matrices
    /// are stored as they were, or as f32 where the format has nothing like it. What was there is replaced in one step.
    ///
    /// ```no_run
    /// # use limpid::{Lm, checkpoint::Format};
    /// Lm::open("runs/1")?.save("model.gguf", Format::Gguf)?;
    /// # Ok::<(), limpid::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`checkpoint::save`], and if interventions change the model's runs: no file of a model holds them.
    pub fn save(&self, path: impl AsRef<Path>, format: Format) -> Result<()> {
        let own = self.checkpoint().map_or(Dtype::F32, Checkpoint::dtype);
        self.write(path.as_ref(), format, &own.in_format(format), true)
    }

    /// [`Lm::save`] with matrices stored as `dtype`.
    ///
    /// # Errors
    /// As [`Lm::save`].
    pub fn save_as(&self, path: impl AsRef<Path>, format: Format, dtype: &Dtype) -> Result<()> {
        self.write(path.as_ref(), format, dtype, false)
    }

    fn write(&self, path: &Path, format: Format, dtype: &Dtype, keep_types: bool) -> Result<()> {
        if !self.interventions.is_empty() {
            return Err(Error::InterventionModel);
        }
        let model = Model::new(&self.config, Mode::Inspect { batch: 1, context: 1 })?;
        let values = |param: &Param| match &*self.weights {
            Weights::Files(checkpoint) => Ok(checkpoint.values(&model, param)?.into_owned()),
            Weights::Held(held) => Ok(held.values(&param.name)?.expect("a model has all its parameters")),
        };
        let files = self.checkpoint();
        let metadata = files.map(|checkpoint| checkpoint.whole_metadata()).transpose()?.flatten();
        let source = checkpoint::ModelData {
            tokenizer: self.tokenizer.as_ref(),
            chat_template: self.chat_template(),
            carried: files.map(|files| &files.carried),
            rows: &|param, rows| files?.rows(&model, param, rows),
            keep_types: keep_types && files.is_some(),
            metadata: metadata.as_ref(),
            ..checkpoint::ModelData::of(&self.config, checkpoint::ModelValues::Read(&values))
        };
        Ok(checkpoint::save(path, format, dtype, &source)?)
    }

    // ---- parts

    fn ready(&self) -> MutexGuard<'_, Option<SharedWeights>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The weights that all runs share. The first call brings them into memory.
    fn weights(&self) -> Result<SharedWeights> {
        let mut ready = self.ready();
        if let Some(weights) = &*ready {
            return Ok(weights.clone());
        }
        let weights =
            shared_weights(&self.config, &self.machine, self.checkpoint(), |model, backend| self.load(model, backend))?;
        Ok(ready.insert(weights).clone())
    }

    /// A model built for `mode`, on the weights that all share if its device can: for what reads no gradient.
    pub(crate) fn scoring(&self, mode: Mode) -> Result<(Model, Box<dyn Backend>)> {
        if !self.machine.device.can_share() {
            return self.start(mode);
        }
        let model = Model::new(&self.config, mode)?;
        let backend = self.on_weights(|weights| {
            memory::fits_beside(&model, &self.machine)?;
            Ok(self.machine.start_with(&model, weights)?)
        })?;
        Ok((model, backend))
    }

    /// The model built for any use, on a backend with weights of its own.
    ///
    /// # Errors
    /// If there is no room, or a file cannot be read.
    pub fn start(&self, mode: Mode) -> Result<(Model, Box<dyn Backend>)> {
        self.start_as(mode, &self.machine)
    }

    fn start_as(&self, mode: Mode, machine: &Machine) -> Result<(Model, Box<dyn Backend>)> {
        let model = Model::new(&self.config, mode)?;
        memory::fits(&model, None, machine)?;
        let mut backend = machine.start(&model)?;
        self.load(&model, &mut *backend)?;
        Ok((model, backend))
    }

    /// What is made on the weights that all share. Those of a device that was lost are brought into memory once more:
    /// it may be back.
    fn on_weights<T>(&self, make: impl Fn(&SharedWeights) -> Result<T>) -> Result<T> {
        match make(&self.weights()?) {
            Err(error) if error.is_lost() => {
                *self.ready() = None;
                make(&self.weights()?)
            }
            made => made,
        }
    }

    /// A run of one sequence in which everything is kept; on the shared weights, or on its own.
    fn inspected(&self, context: usize, shares: bool) -> Result<(Model, Box<dyn Backend>)> {
        let mode = Mode::Inspect { batch: 1, context };
        if shares {
            return self.scoring(mode);
        }
        // products of integers have no gradient: it is that of the weights as f32
        match self.machine.precision {
            Precision::Int8 => self.start_as(mode, &Machine { precision: Precision::F32, ..self.machine.clone() }),
            _ => self.start(mode),
        }
    }

    /// A backend with what changes this model's runs around it.
    pub(crate) fn intervened(&self, backend: Box<dyn Backend>, batch: &Batch) -> Result<Box<dyn Backend>> {
        Ok(InterveningBackend::around(backend, self.steps.as_ref(), batch)?)
    }

    /// Ids as one sequence.
    pub(crate) fn batch_of(&self, ids: &[u32]) -> Result<Batch> {
        let (tokens, context) = (ids.len(), self.config.context_length);
        let mask = self.tokenizer.as_ref().and_then(|tokenizer| tokenizer.special("[MASK]"));
        match tokens {
            0 => Err(Error::Empty),
            _ if tokens > context => Err(Error::TooLong { tokens, context }),
            _ => Ok(trace::batch(&self.config, ids, None, mask)?),
        }
    }

    fn needs_head(&self) -> Result<()> {
        if self.config.lm_head { Ok(()) } else { Err(ConfigError::NoHead.into()) }
    }

    /// Lends the engine that waits, or makes one for one sequence.
    pub(crate) fn lend_engine(&self) -> Result<Engine> {
        let kept = self.engine.lock().unwrap_or_else(PoisonError::into_inner).take();
        kept.map_or_else(|| self.engine(&EngineLimits::new(&self.config, 1, self.config.context_length)), Ok)
    }

    /// Keeps an engine without requests for the next call.
    pub(crate) fn take_back(&self, engine: Engine) {
        *self.engine.lock().unwrap_or_else(PoisonError::into_inner) = Some(engine);
    }

    fn in_engine<T>(&self, work: impl FnOnce(&mut Engine) -> Result<T>) -> Result<T> {
        let mut engine = self.lend_engine()?;
        let done = work(&mut engine);
        if !done.as_ref().is_err_and(Error::is_lost) {
            self.take_back(engine);
        }
        done
    }
}

/// What a model predicts: the next token, or masked tokens, which may be replaced by any of `vocab_size` others; of
/// texts with segments or without.
///
/// # Errors
/// If it predicts masked tokens, and no tokenizer has a `[MASK]`.
pub fn objective(
    config: &Config,
    tokenizer: Option<&Tokenizer>,
    vocab_size: usize,
    segments: bool,
) -> Result<Objective> {
    if config.mask == Mask::Causal {
        return Ok(Objective::NextToken);
    }
    let mask = tokenizer.ok_or(Error::NoTokenizer)?.special("[MASK]").ok_or(Error::NoMask)?;
    Ok(Objective::Masked { mask, vocab_size, segments })
}

/// Whether a model's weights are kept packed: where it decodes.
fn packs(config: &Config) -> bool {
    config.lm_head && config.mask == Mask::Causal
}

/// Weights that `load` writes, kept as they are run; those of a checkpoint may be quantised.
fn shared_weights(
    config: &Config,
    machine: &Machine,
    files: Option<&Checkpoint>,
    load: impl FnOnce(&Model, &mut dyn Backend) -> Result<()>,
) -> Result<SharedWeights> {
    let mode = if packs(config) {
        Mode::Decode { rows: 1, outputs: 1, blocks: 1 }
    } else {
        Mode::Inspect { batch: 1, context: 1 }
    };
    let model = Model::new(config, mode)?;
    let on = Placement::from(machine);
    memory::fits(&model, None, files.map_or(on.clone(), |files| on.with_weights(files, &model)))?;
    let mut backend = machine.start(&model)?;
    load(&model, &mut *backend)?;
    Ok(backend.share()?)
}

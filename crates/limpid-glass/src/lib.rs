//! The glass box: questions about one run of a model, answered as a page asks them (docs/inside.md).
//!
//! [`Glass`] knows no sockets and no HTML. It keeps traces ([`Trace`]) within a limit of memory; a trace's address is a
//! hash of the weights, the tokens and the interventions, so the same question finds the same trace. A server passes
//! questions on, and a file that is sent to somebody holds the answers to them.

mod about;
pub mod asked;
mod directions;
mod file;
mod mlp_units;
mod read;
mod reason;
mod stream;
mod sweep;
pub mod timelapse;
mod training;
mod why;

use asked::{AskedFields, AskedQuery, shown};
use limpid::directions::DirectionError;
use limpid::generate::TokenNameError;
use limpid::trace::interventions::InterventionError;
use limpid::{Error, Interventions, Lm};
use limpid_base::budget::{Budget, Spent};
use limpid_base::units;
use limpid_trace::TraceError;
use limpid_trace::sweep::{SweepCost, SweepError, TOKEN_LAYERS};
use limpid_trace::{Keep, Trace};
use mlp_units::KnownUnits;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;
use stream::TraceProgress;

/// A model to look into.
#[derive(Clone, Debug)]
pub struct Subject {
    /// Its name.
    pub name: String,
    /// Its weights and settings in one word.
    pub fingerprint: String,
    /// The step of training it was saved at, if it says so.
    pub step: Option<u64>,
    /// The model.
    pub lm: Arc<Lm>,
}

/// Why a question has no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GlassError {
    /// A prompt longer than the context.
    #[error(
        "the prompt has {tokens} tokens, {} more than the context of {context}: shorten it, or look at the last \
         {context} \
         with `\"last\": true`",
        .tokens - .context
    )]
    TooLong {
        /// Its tokens.
        tokens: usize,
        /// What the model takes.
        context: usize,
    },
    /// Nothing to look at.
    #[error("the prompt has no tokens: give it some text")]
    Empty,
    /// A text that the model has no tokens for.
    #[error(transparent)]
    Prompt(Box<Error>),
    /// Ids beyond the vocabulary.
    #[error("token {id} is not in the vocabulary of {vocab_size}")]
    Token {
        /// The id.
        id: u64,
        /// V.
        vocab_size: usize,
    },
    /// More memory than traces may take.
    #[error(
        "a trace of {tokens} tokens takes {} of memory, and traces may take {}: shorten the prompt, or give traces \
         more memory",
        units::bytes(*.needed as u64), units::bytes(*.limit as u64)
    )]
    TooLarge {
        /// Its tokens.
        tokens: usize,
        /// Bytes.
        needed: usize,
        /// Bytes.
        limit: usize,
    },
    /// Traces that others look at take all of the memory.
    #[error(
        "the traces in use take all of the {} that traces may take: try again in {RETRY} s",
        units::bytes(*.limit as u64)
    )]
    Full {
        /// Bytes.
        limit: usize,
    },
    /// More than an answer may take.
    #[error("{what}: {why}: ask for less of it")]
    Spent {
        /// What was asked for.
        what: String,
        /// What ran out.
        why: Spent,
    },
    /// More values than one answer has.
    #[error("`{name}` at that place has {values} values, and an answer has at most {most}: ask for fewer rows")]
    TooMany {
        /// The tensor.
        name: String,
        /// How many.
        values: usize,
        /// How many are allowed.
        most: usize,
    },
    /// A trace that is not there.
    #[error("there is no trace `{0}`: it may have made room for others; ask for it again")]
    Expired(String),
    /// A model that is not there.
    #[error("there is no model `{0}` to look into; there are: {1}")]
    Model(String, String),
    /// A path that means nothing.
    #[error("there is no question `{0}`")]
    Question(String),
    /// A parameter that nobody knows.
    #[error("`{name}` is not a parameter here; there are: {}", .known.join(", "))]
    NoParameter {
        /// Which.
        name: String,
        /// What there are.
        known: &'static [&'static str],
    },
    /// A parameter that is there twice.
    #[error("`{name}` is given twice: send it once")]
    Twice {
        /// Which.
        name: String,
    },
    /// A parameter that is wrong.
    #[error("`{name}` must be {expected}, found {found}")]
    Parameter {
        /// Which.
        name: &'static str,
        /// What it can be.
        expected: String,
        /// What it is.
        found: String,
    },
    /// A text that names no token.
    #[error("`{name}`: {error}")]
    Word {
        /// Which parameter.
        name: &'static str,
        /// Why not.
        error: TokenNameError,
    },
    /// A place outside of a tensor.
    #[error("`{name}` has {size} along {axis}, counted from 0: {found} is outside")]
    Outside {
        /// The tensor.
        name: String,
        /// The axis.
        axis: String,
        /// Its size.
        size: usize,
        /// What was asked for.
        found: String,
    },
    /// Two traces that cannot be compared.
    #[error("`{name}` has the shape {own:?} here and {other:?} there: only equal shapes have a difference")]
    Differ {
        /// The tensor.
        name: String,
        /// Its shape.
        own: Vec<usize>,
        /// And in the other trace.
        other: Vec<usize>,
    },
    /// What this model does not have.
    #[error("{0}")]
    NotThis(&'static str),
    /// Interventions that are none, or do not fit.
    #[error(transparent)]
    Intervention(Box<InterventionError>),
    /// A time-lapse that cannot be read.
    #[error("the time-lapse cannot be read: {0}")]
    Timelapse(String),
    /// A log of a training that cannot be read.
    #[error("the log of the training cannot be read: {0}")]
    Log(String),
    /// A large sweep that was not confirmed.
    #[error(
        "this sweep has {} cells and runs {} token-layers, more than {}: send `\"confirm\": true`, or take a \
         coarser grid or shorter texts",
        units::commas(.0.cells), units::commas(.0.token_layers), units::commas(TOKEN_LAYERS)
    )]
    LargeSweep(SweepCost),
    /// A sweep that has no answer.
    #[error(transparent)]
    Sweep(Box<SweepError>),
    /// Directions that there are not.
    #[error(transparent)]
    Direction(DirectionError),
    /// The trace.
    #[error(transparent)]
    Trace(TraceError),
    /// The model.
    #[error(transparent)]
    Failed(Box<Error>),
}

impl From<TraceError> for GlassError {
    fn from(error: TraceError) -> GlassError {
        match error {
            TraceError::Spent { what, why } => GlassError::Spent { what, why },
            other => GlassError::Trace(other),
        }
    }
}

impl From<Error> for GlassError {
    fn from(error: Error) -> GlassError {
        match error {
            Error::TooLong { tokens, context } => GlassError::TooLong { tokens, context },
            Error::Empty => GlassError::Empty,
            Error::Trace(error) => error.into(),
            Error::Intervention(error) => error.into(),
            Error::Sweep(error) => error.into(),
            Error::Direction(error) => GlassError::Direction(error),
            other => GlassError::Failed(Box::new(other)),
        }
    }
}

impl From<InterventionError> for GlassError {
    fn from(error: InterventionError) -> GlassError {
        GlassError::Intervention(error.into())
    }
}

impl From<SweepError> for GlassError {
    fn from(error: SweepError) -> GlassError {
        match error {
            SweepError::Trace(error) => error.into(),
            SweepError::Large(cost) => GlassError::LargeSweep(cost),
            other => GlassError::Sweep(Box::new(other)),
        }
    }
}

impl GlassError {
    /// What a program goes by.
    pub fn code(&self) -> &'static str {
        match self {
            GlassError::TooLong { .. } => "prompt_too_long",
            GlassError::Empty => "empty_prompt",
            GlassError::Token { .. } => "token_out_of_range",
            GlassError::TooLarge { .. } | GlassError::TooMany { .. } => "too_large",
            GlassError::Spent { why: Spent::Bytes { .. }, .. } => "too_large",
            GlassError::Spent { .. } => "out_of_time",
            GlassError::Full { .. } => "queue_full",
            GlassError::NoParameter { .. } => "unknown_parameter",
            GlassError::Expired(_) => "trace_expired",
            GlassError::Model(..) => "model_not_found",
            GlassError::Question(_) => "not_found",
            GlassError::Prompt(_)
            | GlassError::Intervention(_)
            | GlassError::Twice { .. }
            | GlassError::Parameter { .. }
            | GlassError::Word { .. }
            | GlassError::Direction(_)
            | GlassError::Differ { .. }
            | GlassError::Trace(TraceError::NoRows { .. } | TraceError::Nested) => "invalid_value",
            GlassError::Outside { .. } => "index_out_of_range",
            GlassError::NotThis(_) => "not_for_this_model",
            GlassError::LargeSweep(_) => "sweep_too_large",
            GlassError::Sweep(error) if matches!(**error, SweepError::NotFinite { .. }) => "engine_error",
            GlassError::Sweep(_) => "invalid_value",
            GlassError::Failed(error) if matches!(**error, Error::InterventionGradients) => "not_for_this_model",
            GlassError::Trace(TraceError::Unknown { .. }) => "unknown_tensor",
            GlassError::Trace(TraceError::Batch { .. }) => "index_out_of_range",
            GlassError::Trace(TraceError::NoBackward { .. } | TraceError::NoGradient { .. }) => "not_for_this_model",
            GlassError::Trace(TraceError::Intervention(_)) => "invalid_value",
            GlassError::Trace(_) | GlassError::Failed(_) | GlassError::Timelapse(_) | GlassError::Log(_) => {
                "engine_error"
            }
        }
    }
}

/// The result of a question.
type Result<T, E = GlassError> = std::result::Result<T, E>;

/// An answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// JSON.
    Json(String),
    /// A file to keep: its type, its name, its bytes.
    File(&'static str, String, Vec<u8>),
}

impl From<Value> for Reply {
    fn from(value: Value) -> Reply {
        Reply::Json(value.to_string())
    }
}

/// The parameters of a question, as they stand after `?`.
pub type Query = [(String, String)];

/// Bytes that traces may take, unless it is said.
pub const MEMORY: usize = 512 << 20;
/// The share of these that tensors of a trace take at most which somebody looked at.
const SEEN: usize = 4;
/// Squares in a row of the small picture of a head.
pub const THUMBNAIL: usize = 64;
/// Values of one answer.
pub const MOST_VALUES: usize = 4 << 20;

/// Seconds after which a place among the traces may be free.
pub const RETRY: u32 = 1;
/// How often it is looked for meanwhile.
const LOOK: Duration = Duration::from_millis(10);

/// Memory of a trace, or of what changes a run: taken before it is made, given back when nobody holds it.
pub struct Reserved {
    memory: Arc<Budget>,
    bytes: usize,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.memory.give_bytes(self.bytes as u64);
    }
}

/// One run that is looked at.
struct Opened {
    id: String,
    subject: Subject,
    ids: Vec<u32>,
    /// Tokens that were left out before these.
    dropped: usize,
    reserved: Reserved,
    trace: Mutex<Trace>,
    /// How many wait for the trace.
    waiting: AtomicUsize,
    progress: Mutex<TraceProgress>,
}

impl Opened {
    /// The trace, to spend so much on it; a run in progress lends it between two steps.
    fn trace(&self, budget: &Arc<Budget>) -> MutexGuard<'_, Trace> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let mut trace = self.trace.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        trace.spend(budget);
        trace
    }

    /// That the model predicts tokens.
    fn needs_head(&self) -> Result<()> {
        let headless = GlassError::NotThis("this model has no head, so it predicts no tokens");
        if self.subject.lm.config().lm_head { Ok(()) } else { Err(headless) }
    }
}

/// Traces, and what is asked of them.
pub struct Glass {
    /// Bytes that traces may take.
    limit: usize,
    memory: Arc<Budget>,
    /// The one that was asked for last is the last.
    open: Mutex<Vec<Arc<Opened>>>,
    /// What was found last of units.
    units: Mutex<Option<KnownUnits>>,
}

impl Default for Glass {
    fn default() -> Glass {
        Glass::new(MEMORY)
    }
}

impl Glass {
    /// Of traces that take at most `limit` bytes.
    pub fn new(limit: usize) -> Glass {
        let memory = Arc::new(Budget::default().bytes(limit as u64));
        Glass { limit, memory, open: Mutex::default(), units: Mutex::default() }
    }

    /// Bytes that traces take.
    pub fn bytes(&self) -> usize {
        self.opened().iter().map(|opened| opened.reserved.bytes).sum()
    }

    /// The memory that one answer may take while it is computed: as much as traces, and the largest parameter of a
    /// model twice. Whoever asks adds how long it may take, and whether somebody waits for it.
    pub fn budget(&self, subjects: &[Subject]) -> Budget {
        let parameters = subjects.iter().flat_map(|subject| subject.lm.parameters().unwrap_or_default());
        let largest = parameters.map(|(_, shape)| shape.iter().product::<usize>() as u64).max();
        let twice = largest.unwrap_or(0).saturating_mul(8);
        Budget::default().bytes((self.limit as u64).saturating_add(twice))
    }

    /// Runs a prompt, or tells again what was told of it: `tell` gets JSON, an event each, until it says `false`.
    /// `body` is `{"prompt": TEXT}` or `{"tokens": IDS}`, with `"last"`, `"model"` and `"interventions"`. While other
    /// traces that are looked at take all memory it waits for theirs, as long as the budget says.
    ///
    /// # Errors
    /// What [`GlassError`] says. Events that were told stay true.
    pub fn trace(
        &self,
        subjects: &[Subject],
        body: &Value,
        budget: &Arc<Budget>,
        tell: &mut dyn FnMut(&str) -> bool,
    ) -> Result<()> {
        let opened = self.open(subjects, body, budget)?;
        let mut told = 0;
        loop {
            let mut progress = opened.progress.lock().unwrap_or_else(PoisonError::into_inner);
            while told == progress.events().len() {
                if !progress.advance(&opened)? {
                    return Ok(());
                }
            }
            let event = progress.events()[told].clone();
            drop(progress);
            told += 1;
            if !tell(&event) {
                return Ok(());
            }
            while opened.waiting.load(Ordering::SeqCst) > 0 {
                std::thread::yield_now();
            }
        }
    }

    /// Answers a question: `path` is what stands after `/inspect/v1/`, `budget` what may be spent on the answer
    /// ([`Glass::budget`]).
    ///
    /// # Errors
    /// What [`GlassError`] says.
    pub fn ask(&self, subjects: &[Subject], path: &str, query: &Query, budget: &Arc<Budget>) -> Result<Reply> {
        let parts: Vec<&str> = path.splitn(4, '/').collect();
        let plain = || AskedQuery::read(query, &[]);
        match parts[..] {
            ["model"] => plain().and_then(|_| about::model(subjects, self.limit)),
            ["timelapse"] => timelapse::answer(subjects, query),
            ["training"] => training::answer(subjects, query),
            ["traces"] => plain().map(|_| self.list()),
            ["traces", id, question] => read::answer(self, &*self.find(id)?, (question, ""), query, budget),
            ["traces", id, question, name] => read::answer(self, &*self.find(id)?, (question, name), query, budget),
            _ => Err(GlassError::Question(shown(path))),
        }
    }

    /// Sends tiles: `tell` gets a frame each, until it says `false`. Each is computed within a budget of its own.
    ///
    /// # Errors
    /// What [`GlassError`] says.
    pub fn tiles(
        &self,
        id: &str,
        body: &Value,
        budget: &dyn Fn() -> Arc<Budget>,
        tell: &mut dyn FnMut(Vec<u8>) -> bool,
    ) -> Result<()> {
        read::tiles(self, &*self.find(id)?, body, budget, tell)
    }

    /// Forgets a trace.
    ///
    /// # Errors
    /// If it is not there.
    pub fn forget(&self, id: &str) -> Result<()> {
        self.find(id)?;
        self.opened().retain(|opened| opened.id != id);
        Ok(())
    }

    fn list(&self) -> Reply {
        let of = |opened: &Arc<Opened>| {
            let Opened { id, subject, ids, reserved, .. } = &**opened;
            json!({ "id": id, "model": subject.name, "tokens": ids.len(), "bytes": reserved.bytes })
        };
        json!({ "traces": self.opened().iter().map(of).collect::<Vec<_>>() }).into()
    }

    // ---- parts

    fn opened(&self) -> MutexGuard<'_, Vec<Arc<Opened>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, id: &str) -> Result<Arc<Opened>> {
        let mut all = self.opened();
        let at = all.iter().position(|opened| opened.id == id).ok_or_else(|| GlassError::Expired(shown(id)))?;
        let opened = all.remove(at);
        all.push(opened.clone());
        Ok(opened)
    }

    /// Memory, of that which traces may take. Traces that nobody holds make room, the oldest first; while others take
    /// all of it, this waits as long as the budget says.
    ///
    /// # Errors
    /// If it is more than there is, or it does not become free.
    pub fn reserve(&self, bytes: usize, budget: &Budget) -> Result<Reserved> {
        if bytes > self.limit {
            let why = Spent::Bytes { needed: bytes as u64, allowed: self.limit as u64 };
            return Err(GlassError::Spent { what: "the memory of traces".into(), why });
        }
        while self.memory.take_bytes(bytes as u64).is_err() {
            let mut all = self.opened();
            let idle = all.iter().position(|opened| Arc::strong_count(opened) == 1);
            let gone = idle.map(|idle| all.remove(idle));
            drop(all);
            if gone.is_none() {
                budget.take_steps(0).map_err(|_| GlassError::Full { limit: self.limit })?;
                thread::sleep(LOOK);
            }
        }
        Ok(Reserved { memory: self.memory.clone(), bytes })
    }

    /// The trace of a prompt: the one there is, or a new one, for which the oldest make room.
    fn open(&self, subjects: &[Subject], body: &Value, budget: &Arc<Budget>) -> Result<Arc<Opened>> {
        let body = AskedFields::read(body, &["prompt", "tokens", "last", "model", "interventions"])?;
        let subject = body.subject(subjects)?;
        let (ids, dropped) = stream::ids(subject, &body)?;
        let interventions = body.get("interventions").cloned().map(Interventions::try_from).transpose()?;
        let id = {
            let text = ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<_>>();
            let changes = interventions.iter().map(|given| format!("{given}/")).collect::<String>();
            let about = format!("{}/{}/{changes}", subject.fingerprint, subject.name);
            let all = [about.as_bytes(), &text].concat();
            format!("{:016x}", xxhash_rust::xxh3::xxh3_64(&all))
        };
        if let Ok(opened) = self.find(&id) {
            return Ok(opened);
        }
        let mut subject = subject.clone();
        if let Some(given) = &interventions {
            subject.lm = Arc::new(subject.lm.intervene_within(given, budget)?);
        }
        let changed = subject.lm.resolved_steps().map_or(0, |steps| steps.bytes());
        let keep = Keep::Blocks { seen: subject.lm.trace_bytes(ids.len(), Keep::All)?.min(self.limit / SEEN) };
        let needed = subject.lm.trace_bytes(ids.len(), keep)?.saturating_add(changed);
        if needed > self.limit {
            return Err(GlassError::TooLarge { tokens: ids.len(), needed, limit: self.limit });
        }
        let reserved = self.reserve(needed, budget)?;
        let trace = subject.lm.trace_ids(&ids, keep)?;
        let opened = Arc::new(Opened {
            id,
            subject,
            reserved,
            dropped,
            trace: Mutex::new(trace),
            waiting: AtomicUsize::new(0),
            progress: Mutex::default(),
            ids,
        });
        let mut all = self.opened();
        match all.iter().find(|other| other.id == opened.id) {
            Some(other) => Ok(other.clone()),
            None => {
                all.push(opened.clone());
                Ok(opened)
            }
        }
    }
}

/// The text that `%20` and the like stand for.
pub fn decoded(text: &str) -> String {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let digits = part.get(..2).filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()));
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => bytes.extend([&[byte], &part.as_bytes()[2..]].concat()),
            None => bytes.extend([b"%", part.as_bytes()].concat()),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

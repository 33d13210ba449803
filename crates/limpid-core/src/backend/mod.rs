//! Who runs ops. A backend owns all memory, addressed by [`Region`]; it has never heard of a model.
//!
//! The verbs take slices of the model's program: unwatched, a backend gets all of it; whoever wants to look in between
//! hands on one op at a time, and the bits are the same. Observers are backends that wrap a backend.

pub mod cpu;
pub mod reference;

use crate::config::axis;
use crate::model::{Model, WeightMap};
use crate::ops::adamw::{Change, ParamGroup, Rule};
use crate::ops::arena::Refused;
use crate::ops::element::{Major, Values};
use crate::ops::limits::BatchError;
use crate::ops::linear::Precision;
use crate::ops::program::Identity;
use crate::ops::simd::Level;
use crate::ops::{Batch, Ops, Passes, Region};
use limpid_base::plural::plural;
use std::any::Any;
use std::borrow::Cow;
use std::sync::{Arc, Mutex};

pub use cpu::Cpu;
pub use reference::Reference;

/// Why a backend did not do what it was told. `op` is the op or the verb it was at.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// The device answers no more: what it held is gone.
    #[error("the device was lost during {op}: {what}; go on from what was saved")]
    Lost {
        /// The op or verb.
        op: &'static str,
        /// The device's answer.
        what: String,
    },
    /// Memory that the device or the system does not give.
    #[error("the system refuses {:.1} MB of memory for {op}: {what}", *.bytes as f64 / 1e6)]
    Memory {
        /// The op or verb.
        op: &'static str,
        /// What was asked for.
        bytes: usize,
        /// The system's answer.
        what: String,
    },
    /// Something that other backends can do, or one whose model was built for it.
    #[error("this backend cannot do {op}: {what}")]
    NotSupported {
        /// The op or verb.
        op: &'static str,
        /// What of it.
        what: String,
    },
    /// Rows that the model has no room for, or that are looked up where nothing is.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// An op or a stretch of parameters that is not the model's.
    #[error("{op}: {what}")]
    Invalid {
        /// The op or verb.
        op: &'static str,
        /// What is wrong with it.
        what: String,
    },
    /// Weights that would change under others that run on them. Nothing was changed.
    #[error(
        "{op} cannot change `{tensor}`: {} the same weights; drop what shares them first",
        if *.others == 1 { "another holds".into() } else { plural(*.others, "other") + " hold" }
    )]
    Shared {
        /// The op or verb.
        op: &'static str,
        /// The parameter.
        tensor: String,
        /// Sessions, traces and [`SharedWeights`] beside this backend.
        others: usize,
    },
    /// Shared weights that are not this model's.
    #[error("the shared weights are another model's: {what}")]
    OtherWeights {
        /// In what they differ.
        what: String,
    },
    /// A thread that does not start: the system has a limit on threads, or no room for a stack.
    #[error("cannot start thread {thread} of {threads}: {what}; ask for fewer threads")]
    Thread {
        /// Which, from 1.
        thread: usize,
        /// Of how many.
        threads: usize,
        /// The system's answer.
        what: String,
    },
}

impl BackendError {
    /// Whether the stretches of parameters lie one after the other among `elements` of them, none in two: what an update may
    /// share out among threads.
    fn check_groups(op: &'static str, groups: &[ParamGroup], elements: usize) -> Result<()> {
        let fits =
            |g: &ParamGroup| g.range.start <= g.range.end && g.matrix.is_none_or(|(o, i)| o * i == g.range.len());
        let disjoint = groups.is_sorted_by(|a, b| a.range.end <= b.range.start);
        match disjoint && groups.iter().all(fits) && groups.last().is_none_or(|last| last.range.end <= elements) {
            true => Ok(()),
            false => {
                let what = "its groups of parameters overlap, are out of order or lie outside the parameters".into();
                Err(BackendError::Invalid { op, what })
            }
        }
    }

    /// Adding to gradients that were not set aside.
    pub fn nothing_pushed() -> BackendError {
        BackendError::Invalid { op: "add_pushed", what: "no gradients were set aside".into() }
    }

    /// The values as f32, as many as the tensor has; for a backend that converts them.
    fn widen<'a>(region: Region, values: Values<'a>) -> Result<Cow<'a, [f32]>> {
        let op = "upload";
        let wide = values.element.widen(values.bytes).ok_or_else(|| {
            let what = format!("{} is no type that it takes: convert the values to f32, f16 or bf16", values.element);
            BackendError::NotSupported { op, what }
        })?;
        match wide.len() == region.len() {
            true => Ok(wide),
            false => Err(BackendError::Invalid {
                op,
                what: format!("{} values for a tensor of {}", wide.len(), region.len()),
            }),
        }
    }

    /// Whether a slice is of the program that a backend was made for: the one whose tensors it has.
    ///
    /// # Errors
    /// [`BackendError::Invalid`] if it is another's.
    pub fn check_program(op: &'static str, slice: Identity, program: u64) -> Result<()> {
        match slice.program() == program {
            true => Ok(()),
            false => {
                let what = "its ops are another model's: a backend runs the model that it was made for".into();
                Err(BackendError::Invalid { op, what })
            }
        }
    }

    /// What the system refuses while a backend is at `op`.
    pub fn refused(op: &'static str, refused: &Refused) -> BackendError {
        BackendError::Memory { op, bytes: refused.bytes, what: refused.answer() }
    }
}

axis! {
    /// Where a model runs: the one place that knows every backend by its name.
    Device, "device" {
        /// This processor: f32, all its threads, its fastest instructions.
        Cpu = "cpu",
        /// Plain loops in f64 on one thread: slow, the judge of the others.
        Reference = "reference",
    }
}

/// How a device is to work; what it has no choice in, it ignores.
#[derive(Clone, Copy, Debug)]
pub struct BackendOptions {
    /// Threads of the processor.
    pub threads: usize,
    /// Its instructions.
    pub level: Level,
    /// What products multiply.
    pub precision: Precision,
}

impl Device {
    /// A backend for `model` there.
    ///
    /// # Errors
    /// If the system gives no such memory or threads, or the device does not work so.
    pub fn start(self, model: &Model, how: BackendOptions) -> Result<Box<dyn Backend>> {
        Ok(match self {
            Device::Cpu => Box::new(Cpu::start(model, how.threads, how.level, how.precision)?),
            Device::Reference if how.precision == Precision::Bf16 => {
                let what = "the reference computes in f64".into();
                return Err(BackendError::NotSupported { op: "products of bf16", what });
            }
            Device::Reference => Box::new(Reference::start(model)?),
        })
    }

    /// A backend for `model` there that has no weights of its own, but runs on those that another shares.
    ///
    /// # Errors
    /// As [`Device::start`]; if the weights are another model's or another device's, or are kept in a form that the model or `how`
    /// has no use for: what training and other precisions need differs from what is packed for running.
    pub fn start_with(self, model: &Model, how: BackendOptions, weights: &SharedWeights) -> Result<Box<dyn Backend>> {
        match self {
            Device::Cpu => Ok(Box::new(Cpu::start_with(model, how.threads, how.level, how.precision, weights)?)),
            Device::Reference => {
                let what = "the reference keeps weights of its own".into();
                Err(BackendError::NotSupported { op: "shared weights", what })
            }
        }
    }
}

/// Weights in the memory of a backend ([`Backend::share`]) that others of its device can run on too ([`Device::start_with`]).
///
/// Nobody can change them while a second one holds them; whoever is left last can again.
#[derive(Clone)]
pub struct SharedWeights(Arc<dyn Held>);

/// What a backend keeps weights in. None can be changed while it is shared.
pub trait Held: Any + Send + Sync {
    /// Which weights, and where they lie.
    fn weight_map(&self) -> &WeightMap;
    /// The values of a parameter, row by row.
    fn read(&self, region: Region, to: &mut [f32]);
}

impl SharedWeights {
    /// Of a backend.
    pub fn new(held: Arc<dyn Held>) -> SharedWeights {
        SharedWeights(held)
    }
    /// The backend's own, if they are a `T`.
    pub fn held<T: Held>(&self) -> Option<Arc<T>> {
        let any: Arc<dyn Any + Send + Sync> = self.0.clone();
        any.downcast().ok()
    }
    /// The values of a parameter, row by row; none if there is none of that name.
    pub fn values(&self, name: &str) -> Option<Vec<f32>> {
        let region = self.0.weight_map().region(name)?;
        let mut values = vec![0.0; region.len()];
        self.0.read(region, &mut values);
        Some(values)
    }
}

/// What a backend's verb comes to.
pub type Result<T, E = BackendError> = std::result::Result<T, E>;

/// What an update found.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct UpdateReport {
    /// Norm of the whole gradient, before clipping.
    pub norm: f64,
    /// Whether it was finite; if not, nothing was changed.
    pub finite: bool,
}

impl UpdateReport {
    /// The report of the last update, for a backend that updates at once; `watch` gets its changes added.
    fn tell(last: &Option<(UpdateReport, Vec<Change>)>, watch: &mut [Change]) -> Result<UpdateReport> {
        let none = || BackendError::Invalid { op: "report", what: "there was no update".into() };
        let (report, changes) = last.as_ref().ok_or_else(none)?;
        for (to, change) in watch.iter_mut().zip(changes) {
            to.gradient += change.gradient;
            to.weight += change.weight;
            to.update += change.update;
        }
        Ok(*report)
    }
}

/// Whoever runs ops: object-safe, so that observers can wrap it, and free to move to another thread.
///
/// Every verb may fail. What it was to write is then undefined, and everything else is as it was; [`Backend::update`] and
/// [`Backend::average`] are all or nothing. So whoever uses a backend can try again, unless the device is gone for good.
pub trait Backend: Send {
    /// Takes the rows of the next run, which are held against the model's limits first ([`Model::limits`]).
    ///
    /// # Errors
    /// [`BackendError::Batch`] where they do not fit; whatever else keeps the backend from it, here as in all verbs.
    fn feed(&mut self, batch: &Batch) -> Result<()>;
    /// Runs `ops` first to last. They are checked, so kernels may rely on what [`Program::new`] says, and what a backend makes ready for
    /// them it may keep by their [`Identity`].
    ///
    /// # Errors
    /// [`BackendError::Invalid`] if they are another model's. As [`Backend::feed`]; so too below.
    ///
    /// [`Program::new`]: crate::ops::program::Program::new
    fn forward(&mut self, ops: Ops) -> Result<()>;
    /// Runs the backward's entries in their order. Gradients of parameters are added to.
    ///
    /// # Errors
    /// As above.
    fn backward(&mut self, back: Passes) -> Result<()>;
    /// Begins to update the stretches of parameters and to clear all gradients, as [`Backend::clear`] does. Nothing but the gradients is
    /// changed if the gradient's norm is not finite, which the backend finds out; `watch` are stretches of which the report is to tell.
    ///
    /// # Errors
    /// As above.
    fn begin_update(&mut self, groups: &[ParamGroup], rule: &Rule, watch: &[Change]) -> Result<()>;
    /// What the last update found, waiting for its end if need be; adds to `watch`, the stretches it was given, what it did to them.
    /// Whoever asks after the next forward and backward, and not at once, leaves a device no time to wait in; a gradient
    /// made meanwhile is worth nothing where the update was skipped.
    ///
    /// # Errors
    /// As above, and if there was no update. What an update did is done all the same; the report may be asked for again.
    fn report(&mut self, watch: &mut [Change]) -> Result<UpdateReport>;
    /// An update with its report, at once.
    ///
    /// # Errors
    /// As those two.
    fn update(&mut self, groups: &[ParamGroup], rule: &Rule, watch: &mut [Change]) -> Result<UpdateReport> {
        self.begin_update(groups, rule, watch)?;
        self.report(watch)
    }
    /// Sets the gradients of parameters aside, on top of those that are, and begins new ones.
    ///
    /// # Errors
    /// As above; so too where memory for them is refused.
    fn push_gradients(&mut self) -> Result<()>;
    /// Takes what was set aside last, and adds the gradients of parameters to it, which are then the sum of both.
    ///
    /// # Errors
    /// As above; [`BackendError::Invalid`] where nothing is set aside.
    fn add_pushed(&mut self) -> Result<()>;
    /// Forgets all gradients of parameters, those set aside too.
    ///
    /// # Errors
    /// As above.
    fn clear(&mut self) -> Result<()>;
    /// Moves the average of the stretches towards the parameters: `average = decay average + (1 - decay) parameters`.
    ///
    /// # Errors
    /// As above.
    fn average(&mut self, groups: &[ParamGroup], decay: f64) -> Result<()>;
    /// Asks for the values that a tensor (all its rows) has now. They are fetched once, with the ticket, when they are needed; a
    /// ticket that nobody redeems keeps its values waiting.
    ///
    /// # Errors
    /// As above.
    fn request(&self, region: Region) -> Result<Ticket>;
    /// The values of a request, row by row, whatever was run since; `to` has as many places.
    ///
    /// # Errors
    /// As above. The values are gone then: ask again.
    fn fetch(&self, ticket: Ticket, to: &mut [f32]) -> Result<()>;
    /// The values of a tensor, at once.
    ///
    /// # Errors
    /// As those two.
    fn read(&self, region: Region) -> Result<Vec<f32>> {
        let mut values = vec![0.0; region.len()];
        self.fetch(self.request(region)?, &mut values)?;
        Ok(values)
    }
    /// The sum of a tensor's values, in their order: what a loss needs, without a copy.
    ///
    /// # Errors
    /// As above.
    fn sum(&self, region: Region) -> Result<f64> {
        Ok(self.read(region)?.iter().map(|v| f64::from(*v)).sum())
    }
    /// What products multiply.
    fn precision(&self) -> Precision {
        Precision::F32
    }
    /// Its weights, for others to run on too. Until those and what is given here are dropped, whatever changes weights is refused
    /// ([`BackendError::Shared`]).
    ///
    /// Those of a model that decodes are packed; of others they lie plain, on which a session takes about seven times as long for a
    /// token (prompts a fifth longer): good for samples meanwhile.
    ///
    /// # Errors
    /// If the backend cannot share them.
    fn share(&mut self) -> Result<SharedWeights> {
        let what = "this backend keeps its weights to itself".into();
        Err(BackendError::NotSupported { op: "sharing weights", what })
    }
    /// Replaces the values of a tensor by what a file or somebody else's memory has: as many, of any type that the backend takes,
    /// f32 at least.
    ///
    /// # Errors
    /// As above; [`BackendError::NotSupported`] names a type that is not taken.
    fn upload(&mut self, region: Region, values: Values) -> Result<()>;
    /// Replaces the values of a tensor.
    ///
    /// # Errors
    /// As above.
    fn write(&mut self, region: Region, values: &[f32]) -> Result<()> {
        self.upload(region, Values::of(values, Major::Rows))
    }
    /// The same from values that lie the other way round, (cols, rows).
    ///
    /// # Errors
    /// As above.
    fn write_transposed(&mut self, region: Region, values: &[f32]) -> Result<()> {
        self.upload(region, Values::of(values, Major::Columns))
    }
}

/// Stands for values that were asked for ([`Backend::request`]).
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the values wait until they are fetched"]
pub struct Ticket(pub u64);

/// Values that wait for their tickets, for a backend that copies them at once. Their places are used again.
#[derive(Default)]
pub struct Tickets(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    given: u64,
    taken: Vec<(u64, Vec<f32>)>,
    free: Vec<Vec<f32>>,
}

impl Tickets {
    /// A ticket for `len` values, which `copy` writes.
    pub fn give(&self, len: usize, copy: impl FnOnce(&mut [f32])) -> Ticket {
        let mut waiting = self.0.lock().unwrap_or_else(|e| e.into_inner());
        let mut values = waiting.free.pop().unwrap_or_default();
        values.resize(len, 0.0);
        copy(&mut values);
        waiting.given += 1;
        let number = waiting.given;
        waiting.taken.push((number, values));
        Ticket(number)
    }
    /// Its values.
    ///
    /// # Errors
    /// If there is no such ticket, or `to` has not as many places.
    pub fn take(&self, ticket: Ticket, to: &mut [f32]) -> Result<()> {
        let invalid = |what: String| Err(BackendError::Invalid { op: "fetch", what });
        let mut waiting = self.0.lock().unwrap_or_else(|e| e.into_inner());
        let Some(place) = waiting.taken.iter().position(|(number, _)| *number == ticket.0) else {
            return invalid("the ticket is another backend's".into());
        };
        let (_, values) = waiting.taken.swap_remove(place);
        if values.len() != to.len() {
            return invalid(format!("{} values for {} places", values.len(), to.len()));
        }
        to.copy_from_slice(&values);
        waiting.free.push(values);
        Ok(())
    }
}

/// (rows, cols) to (cols, rows), in blocks that stay near.
pub fn transpose(from: &[f32], rows: usize, cols: usize) -> Vec<f32> {
    const SIDE: usize = 16;
    let mut to = vec![0.0; from.len()];
    for i in (0..rows).step_by(SIDE) {
        for j in (0..cols).step_by(SIDE) {
            for j in j..(j + SIDE).min(cols) {
                for i in i..(i + SIDE).min(rows) {
                    to[j * rows + i] = from[i * cols + j];
                }
            }
        }
    }
    to
}

/// Writes the model's constant tables; done once, before the first run.
///
/// # Errors
/// If the backend cannot write them.
pub fn prepare(model: &Model, backend: &mut dyn Backend) -> Result<()> {
    model.constants().try_for_each(|(region, values)| backend.write(region, &values))
}

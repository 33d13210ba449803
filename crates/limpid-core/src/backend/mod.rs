//! A backend runs ops. It owns all memory, addressed by [`Region`], and knows no names of tensors.
//!
//! Its methods take slices of the model's program. A run without an observer passes the whole list; an observer
//! passes one op at a time and reads tensors in between, and the bits are the same. An observer is itself a backend
//! that wraps another ([`Wrapper`]).

pub mod cpu;
pub mod reference;
mod wrapper;

use crate::matrix::Precision;
use crate::matrix::arena::Refused;
use crate::model::{MemoryPart, Model, WeightMap};
use crate::numeric::element::{Major, Values};
use crate::numeric::simd::Level;
use crate::ops::limits::BatchError;
use crate::ops::program::Slice;
use crate::ops::{Batch, MemorySpace, Ops, Passes, Region};
use crate::optimizer::{Change, NORM_PART, ParamGroup, Rule, sum_of_squares};
use limpid_base::plural::plural;
use std::any::Any;
use std::borrow::Cow;
use std::ops::Range;
use std::sync::{Arc, Mutex};

pub use cpu::{Clock, Cpu, ThreadChooser, ThreadTimes};
pub use reference::Reference;
pub use wrapper::Wrapper;

/// Why a backend failed. `op` is the op, or the method of [`Backend`], that failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// The device no longer answers: its memory is lost.
    #[error(
        "the device was lost during {op}: {what}; resume from the last save, on the device when it is back or on the \
         cpu"
    )]
    Lost {
        /// The op or verb.
        op: &'static str,
        /// The device's answer.
        what: String,
    },
    /// The device or the system refuses memory.
    #[error("the system refuses {:.1} MB of memory for {op}: {what}", *.bytes as f64 / 1e6)]
    Memory {
        /// The op or verb.
        op: &'static str,
        /// How much was asked for.
        bytes: usize,
        /// The system's answer.
        what: String,
    },
    /// This backend, or this backend with this model, cannot do what was asked.
    #[error("this backend cannot do {op}: {what}")]
    NotSupported {
        /// The op or verb.
        op: &'static str,
        /// Which part of it, and why.
        what: String,
        /// The settings that may help, each with a value: `device cpu`.
        settings: &'static [&'static str],
    },
    /// The batch has more rows than the model has room for, or an id outside of a table.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// An op or a range of parameters that does not belong to the model.
    #[error("{op}: {what}")]
    Invalid {
        /// The op or verb.
        op: &'static str,
        /// What is wrong with it.
        what: String,
    },
    /// The weights are shared, so they cannot be changed. Nothing was changed.
    #[error(
        "{op} cannot change `{tensor}`: {} the same weights; drop what shares them first",
        if *.others == 1 { "another holds".into() } else { plural(*.others, "other") + " hold" }
    )]
    Shared {
        /// The op or verb.
        op: &'static str,
        /// The parameter.
        tensor: String,
        /// How many decoders, traces and [`SharedWeights`] hold the weights beside this backend.
        others: usize,
    },
    /// The shared weights do not fit this model.
    #[error("the shared weights are another model's: {what}")]
    OtherWeights {
        /// What differs.
        what: String,
    },
    /// A thread does not start: the system limits threads, or has no memory for a stack.
    #[error("cannot start thread {thread} of {threads}: {what}; ask for fewer threads")]
    Thread {
        /// The number of the thread that did not start, from 1.
        thread: usize,
        /// How many were asked for.
        threads: usize,
        /// The system's answer.
        what: String,
    },
}

impl BackendError {
    /// The settings that may help, with a value where one is known.
    pub fn settings(&self) -> &'static [&'static str] {
        match self {
            BackendError::NotSupported { settings, .. } => settings,
            BackendError::Memory { .. } => &["batch_size", "memory"],
            _ => &[],
        }
    }

    /// Checks that the ranges of parameters are in ascending order, do not overlap and lie within `elements`: only
    /// then may threads share an update.
    ///
    /// # Errors
    /// [`BackendError::Invalid`] if they do not.
    pub fn check_groups(op: &'static str, groups: &[ParamGroup], elements: usize) -> Result<()> {
        let fits =
            |g: &ParamGroup| g.range.start <= g.range.end && g.matrix.is_none_or(|(o, i)| o * i == g.range.len());
        let disjoint = groups.is_sorted_by(|a, b| a.range.end <= b.range.start);
        if disjoint && groups.iter().all(fits) && groups.last().is_none_or(|last| last.range.end <= elements) {
            Ok(())
        } else {
            let what = "its groups of parameters overlap, are out of order or lie outside the parameters".into();
            Err(BackendError::Invalid { op, what })
        }
    }

    /// The error of [`Backend::add_pushed`] without a [`Backend::push_gradients`] before it.
    pub fn nothing_pushed() -> BackendError {
        BackendError::Invalid { op: "add_pushed", what: "no gradients were set aside".into() }
    }

    /// Converts the values to f32 and checks that there are as many as the tensor has; for backends that store f32.
    ///
    /// # Errors
    /// [`BackendError::Invalid`] if there are more or fewer.
    pub fn widen<'a>(region: Region, values: Values<'a>) -> Result<Cow<'a, [f32]>> {
        let (op, wide) = ("upload", values.element.widen(values.bytes));
        if wide.len() == region.len() {
            Ok(wide)
        } else {
            Err(BackendError::Invalid { op, what: format!("{} values for a tensor of {}", wide.len(), region.len()) })
        }
    }

    /// Checks that a slice belongs to `program`, the program that the backend was made for.
    ///
    /// # Errors
    /// [`BackendError::Invalid`] if it is another's.
    pub fn check_program<T>(op: &'static str, slice: Slice<T>, program: u64) -> Result<()> {
        if slice.program() == program {
            return Ok(());
        }
        let what = "its ops are another model's: a backend runs the model that it was made for".into();
        Err(BackendError::Invalid { op, what })
    }

    /// The error of memory that the system refused during `op`.
    pub fn refused(op: &'static str, refused: &Refused) -> BackendError {
        BackendError::Memory { op, bytes: refused.bytes, what: refused.answer() }
    }
}

/// What a training keeps beside its model.
#[derive(Clone, Copy, Debug)]
pub struct TrainingMemory<'a> {
    /// The parameters that learn.
    pub groups: &'a [ParamGroup],
    /// Whether there is an average of the weights.
    pub average: bool,
    /// How many gradients are set aside at once.
    pub aside: usize,
}

/// What is taken of a device that has memory of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Bytes by kind: those of [`Model::memory`], and what else the device reserves.
    pub parts: Vec<(MemoryPart, usize)>,
    /// Bytes of the system's memory by way of which values go to the device and back.
    pub staging: usize,
    /// Whether it is a part of the system's memory after all, as that of a GPU in software or beside a processor is.
    pub of_system: bool,
}

/// Bytes that went to a device with memory of its own, and that came from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceBytes {
    /// To the device.
    pub to: u64,
    /// From it.
    pub from: u64,
}

impl std::ops::Sub for DeviceBytes {
    type Output = DeviceBytes;
    fn sub(self, before: DeviceBytes) -> DeviceBytes {
        DeviceBytes { to: self.to - before.to, from: self.from - before.from }
    }
}

/// How a device is to work. A device ignores the options that it does not have.
#[derive(Clone, Copy, Debug)]
pub struct BackendOptions {
    /// Threads of the processor.
    pub threads: usize,
    /// Its instruction set.
    pub level: Level,
    /// The type of the operands of matrix products.
    pub precision: Precision,
}

/// Weights in the memory of a backend ([`Backend::share`]), on which other backends of its device can run too.
///
/// The weights cannot be changed while more than one holds them; the last holder can change them again.
#[derive(Clone)]
pub struct SharedWeights(Arc<dyn Held>);

/// How a backend stores weights that it shares. They cannot be changed while they are shared.
pub trait Held: Any + Send + Sync {
    /// The names and places of the weights.
    fn weight_map(&self) -> &WeightMap;
    /// The values of a parameter, row by row.
    ///
    /// # Errors
    /// If a device fails.
    fn read(&self, region: Region, to: &mut [f32]) -> Result<()>;
}

impl SharedWeights {
    /// Shares what a backend stores.
    pub fn new(held: Arc<dyn Held>) -> SharedWeights {
        SharedWeights(held)
    }
    /// The backend's own type of storage, if that is `T`.
    pub fn held<T: Held>(&self) -> Option<Arc<T>> {
        let any: Arc<dyn Any + Send + Sync> = self.0.clone();
        any.downcast().ok()
    }
    /// The values of a parameter, row by row; `None` if there is none of that name.
    ///
    /// # Errors
    /// If a device fails.
    pub fn values(&self, name: &str) -> Result<Option<Vec<f32>>> {
        let Some(region) = self.0.weight_map().region(name) else { return Ok(None) };
        let mut values = vec![0.0; region.len()];
        self.0.read(region, &mut values)?;
        Ok(Some(values))
    }
}

/// The result of a backend's method.
pub type Result<T, E = BackendError> = std::result::Result<T, E>;

/// What an update found.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct UpdateReport {
    /// Norm of the whole gradient, before clipping.
    pub norm: f64,
    /// Whether it was finite; if not, nothing was changed.
    pub finite: bool,
    /// Whether the losses were too large ([`Rule::most_loss`]); if so, nothing was changed.
    pub held_back: bool,
}

impl UpdateReport {
    /// The report of the last update, for a backend that updates at once. The changes are added to `watch`.
    ///
    /// # Errors
    /// [`BackendError::Invalid`] if there was none.
    pub fn tell(last: &Option<(UpdateReport, Vec<Change>)>, watch: &mut [Change]) -> Result<UpdateReport> {
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

/// Runs ops. The trait is object-safe, so that observers can wrap a backend ([`Wrapper`]), and a backend may move to
/// another thread.
///
/// What a method does by itself is made of other methods and gives the same bits as any quicker way that a backend has.
///
/// Every method may fail. Its output is then undefined, and everything else is unchanged; [`Backend::update`] and
/// [`Backend::average`] change all or nothing. So the caller can try again, unless the device is lost.
pub trait Backend: Send {
    /// Takes the rows of the next run, after a check against the model's limits ([`Model::limits`]).
    ///
    /// # Errors
    /// [`BackendError::Batch`] if the rows do not fit; any other error of the backend, here as in all methods.
    fn feed(&mut self, batch: &Batch) -> Result<()>;
    /// Runs `ops` in order. They are checked, so kernels may rely on what [`Program::new`] promises.
    ///
    /// # Errors
    /// [`BackendError::Invalid`] if they are another model's. Otherwise as [`Backend::feed`].
    ///
    /// [`Program::new`]: crate::ops::program::Program::new
    fn forward(&mut self, ops: Ops) -> Result<()>;
    /// Runs the passes of the backward list in order. It adds to the gradients of parameters.
    ///
    /// # Errors
    /// As [`Backend::feed`].
    fn backward(&mut self, back: Passes) -> Result<()>;
    /// Whether it can update these ranges, before anything is computed for that.
    ///
    /// # Errors
    /// [`BackendError::NotSupported`] says what it lacks.
    fn can_update(&self, groups: &[ParamGroup]) -> Result<()>;
    /// Begins to update the ranges of parameters and to clear all gradients, as [`Backend::clear`] does. The backend
    /// computes the norm of the gradient; if it is not finite, or the losses are too large ([`Rule::most_loss`]), only
    /// the gradients are changed. `watch` are the ranges that the report is to measure.
    ///
    /// # Errors
    /// As [`Backend::feed`].
    fn begin_update(&mut self, groups: &[ParamGroup], rule: &Rule, watch: &[Change]) -> Result<()>;
    /// The sum of squares of each part ([`NORM_PART`]) of the groups' gradients, in order:
    /// [`norm_of`](crate::optimizer::norm_of) makes the norm of them. Processes that each update a part of the
    /// parameters tell each other these, and give the norm of the whole gradient to the update ([`Rule::norm`]).
    ///
    /// # Errors
    /// As [`Backend::feed`].
    fn squares(&mut self, groups: &[ParamGroup]) -> Result<Vec<f64>> {
        let mut parts = vec![];
        for ParamGroup { range, .. } in groups {
            for at in range.clone().step_by(NORM_PART) {
                let region = Region::flat(MemorySpace::Grad, at..(at + NORM_PART).min(range.end));
                parts.push(sum_of_squares(&self.read(region)?));
            }
        }
        Ok(parts)
    }
    /// Says that updates will be restricted to some ranges of the parameters: moments and averages of all others are
    /// never touched and need no memory.
    fn restrict_updates(&mut self);
    /// Whether it works while its caller goes on, so that a caller who asks late what came out keeps it busy.
    fn runs_ahead(&self) -> bool;
    /// Who chooses how many threads work: one for training steps, or one each for runs of 1, of 2 and 3, of 4 to 7, ...
    /// rows. A unit of their work is a row. Empty where the number is fixed.
    fn thread_choosers(&self) -> &[ThreadChooser];
    /// What was moved to a device with memory of its own, and from it, since the backend was started.
    fn transferred(&self) -> DeviceBytes;
    /// The report of the last update; waits for the update's end. The changes of the ranges that
    /// [`Backend::begin_update`] was told to watch are added to `watch`. A caller that asks after the next forward
    /// and backward, and not at once, keeps a device busy meanwhile; a gradient computed meanwhile is of no
    /// use if the update was skipped.
    ///
    /// # Errors
    /// As [`Backend::feed`], and if there was no update. An error here undoes nothing of the update; the report may be
    /// asked for again.
    fn report(&mut self, watch: &mut [Change]) -> Result<UpdateReport>;
    /// An update with its report, at once.
    ///
    /// # Errors
    /// As [`Backend::begin_update`] and [`Backend::report`].
    fn update(&mut self, groups: &[ParamGroup], rule: &Rule, watch: &mut [Change]) -> Result<UpdateReport> {
        self.begin_update(groups, rule, watch)?;
        self.report(watch)
    }
    /// Pushes the gradients of parameters on a stack and begins new ones from zero.
    ///
    /// # Errors
    /// As [`Backend::feed`], and if memory for them is refused.
    fn push_gradients(&mut self) -> Result<()>;
    /// Pops the gradients that were pushed last and adds them to the gradients of parameters.
    ///
    /// # Errors
    /// As [`Backend::feed`]; [`BackendError::Invalid`] if nothing was pushed.
    fn add_pushed(&mut self) -> Result<()>;
    /// Adds the gradients that were pushed, the last ones first, to those of a stretch of the parameters' memory. They
    /// stay pushed until the update, or until they are cleared.
    ///
    /// # Errors
    /// As [`Backend::feed`].
    fn add_pushed_to(&mut self, range: Range<usize>) -> Result<()>;
    /// Sets all gradients of parameters to zero and empties the stack of pushed ones.
    ///
    /// # Errors
    /// As [`Backend::feed`].
    fn clear(&mut self) -> Result<()>;
    /// Moves the running average of the ranges towards the parameters: `average = decay average + (1 - decay)
    /// parameters`.
    ///
    /// # Errors
    /// As [`Backend::feed`].
    fn average(&mut self, groups: &[ParamGroup], decay: f64) -> Result<()>;
    /// Asks for the values that a tensor (all its rows) has now. The ticket fetches them, once, at any later time;
    /// the values of a ticket that is never fetched stay in memory.
    ///
    /// # Errors
    /// As [`Backend::feed`].
    fn request(&self, region: Region) -> Result<Ticket>;
    /// Copies the values of a request to `to`, row by row, whatever ran since; `to` is as long as the tensor.
    ///
    /// # Errors
    /// As [`Backend::feed`]. The values are then lost: ask again.
    fn fetch(&self, ticket: Ticket, to: &mut [f32]) -> Result<()>;
    /// The values of a tensor, at once, row by row; `to` is as long as the tensor.
    ///
    /// # Errors
    /// As [`Backend::request`] and [`Backend::fetch`].
    fn read_to(&self, region: Region, to: &mut [f32]) -> Result<()> {
        self.fetch(self.request(region)?, to)
    }
    /// The values of a tensor, at once.
    ///
    /// # Errors
    /// As [`Backend::request`] and [`Backend::fetch`].
    fn read(&self, region: Region) -> Result<Vec<f32>> {
        let mut values = vec![0.0; region.len()];
        self.read_to(region, &mut values)?;
        Ok(values)
    }
    /// The sum of a tensor's values in ascending order, without a copy: the sum of the losses.
    ///
    /// # Errors
    /// As [`Backend::feed`].
    fn sum(&self, region: Region) -> Result<f64> {
        Ok(self.read(region)?.iter().map(|v| f64::from(*v)).sum())
    }
    /// The type of the operands of matrix products.
    fn precision(&self) -> Precision;
    /// Shares its weights, for other backends to run on. Until those backends and the value returned here are
    /// dropped, changing a weight is refused ([`BackendError::Shared`]).
    ///
    /// The weights of a model built to decode are packed. Those of other models are not: a decoder on them takes
    /// about seven times as long for a token and a fifth longer for a prompt, which is good enough for samples
    /// during training.
    ///
    /// # Errors
    /// If the backend cannot share them.
    fn share(&mut self) -> Result<SharedWeights>;
    /// Replaces the values of a tensor by bytes from a file or from memory: as many values as the tensor has, of any
    /// type that the backend takes. Every backend takes f32.
    ///
    /// # Errors
    /// As [`Backend::feed`]; [`BackendError::NotSupported`] names a type that is not taken.
    fn upload(&mut self, region: Region, values: Values) -> Result<()>;
    /// [`Backend::upload`] of some rows after the others, each part of its own type and row by row.
    ///
    /// # Errors
    /// As [`Backend::upload`].
    fn upload_parts(&mut self, region: Region, parts: &[Values]) -> Result<()> {
        self.write(region, &Values::joined(parts))
    }
    /// Replaces the values of a tensor.
    ///
    /// # Errors
    /// As [`Backend::feed`].
    fn write(&mut self, region: Region, values: &[f32]) -> Result<()> {
        self.upload(region, Values::f32(values, Major::Rows))
    }
    /// Writes the tables of `model`, the one that the backend was made for: done once, before the first run.
    ///
    /// # Errors
    /// As [`Backend::feed`].
    fn write_tables(&mut self, model: &Model) -> Result<()> {
        model.tables().try_for_each(|(region, values)| self.write(region, &values))
    }
    /// Replaces the values of a tensor by those of a function of their index, row by row: large ones are worth several
    /// threads.
    ///
    /// # Errors
    /// As [`Backend::feed`].
    fn fill(&mut self, region: Region, value: &(dyn Fn(usize) -> f32 + Sync)) -> Result<()> {
        self.write(region, &(0..region.len()).map(value).collect::<Vec<f32>>())
    }
}

/// Stands for values that were asked for ([`Backend::request`]).
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the values wait until they are fetched"]
pub struct Ticket(pub u64);

/// Values that wait to be fetched, for a backend that copies them when they are requested. Its buffers are used again.
#[derive(Default)]
pub struct Tickets(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    given: u64,
    taken: Vec<(u64, Vec<f32>)>,
    free: Vec<Vec<f32>>,
}

impl Tickets {
    /// A ticket for `len` values; `copy` writes them.
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
    /// Copies the values of a ticket to `to`.
    ///
    /// # Errors
    /// If there is no such ticket, or `to` has another length.
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

/// Disjoint mutable views of one memory. Overlap is a bug in the plan, and panics.
fn pick<T, const N: usize>(memory: &mut [T], regions: [Region; N]) -> [&mut [T]; N] {
    memory
        .get_disjoint_mut(regions.map(Region::range))
        .unwrap_or_else(|_| panic!("regions of one op overlap: {regions:?}"))
}

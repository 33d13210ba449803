//! Where and how a model runs: the device, threads, instructions and precision. Read `lm` next.

use crate::backend::TrainingMemory;
use crate::backend::{self, Backend, BackendError, BackendOptions, Clock, Cpu, DeviceMemory, Reference, SharedWeights};
use crate::config::{ConfigError, unknown};
use crate::device::Device;
use crate::matrix::Precision;
use crate::model::Model;
use crate::numeric::element::Element;
use crate::numeric::simd::Level;
use std::num::NonZero;
use std::sync::LazyLock;
use std::time::Instant;

mod faster;
mod step_times;

/// Where and how a model runs.
///
/// ```
/// use limpid::{Device, Machine, matrix::Precision};
/// let machine = Machine { threads: 2, precision: Precision::Bf16, ..Machine::default() };
/// assert_eq!(machine.device, Device::Cpu);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// The device. Results of another than the processor are the processor's to rounding; a device that cannot run a
    /// model says so when it is first used.
    pub device: Device,
    /// Which GPU, where the device is one: its number in the list of adapters or a part of its name; empty for the
    /// best.
    pub gpu: String,
    /// Threads of the processor, at most if there is a clock. Results are the same on any number.
    pub threads: usize,
    /// The clock by which fewer threads work where that is faster ([`Cpu::choose_threads`]); without one, all do.
    pub clock: Option<Clock>,
    /// Its instruction set. Results are the same on any but [`Level::UNFUSED`].
    pub level: Level,
    /// What matrix products multiply.
    pub precision: Precision,
    /// The type of the KV cache's elements: f32, or bf16 for half the memory and other last digits
    /// ([`Machine::cache_element`]).
    pub cache: Element,
}

impl Default for Machine {
    /// This processor with as many threads as are fastest, up to one for each core that the system allows (affinity,
    /// quotas of containers), its fastest instructions, all in f32.
    fn default() -> Machine {
        let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
        Machine { clock: Some(Clock(seconds)), ..Machine::cpu(threads) }
    }
}

/// Seconds since this was first called.
fn seconds() -> f64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed().as_secs_f64()
}

impl Machine {
    /// This processor, with exactly so many threads.
    pub fn cpu(threads: usize) -> Machine {
        Machine {
            device: Device::Cpu,
            gpu: String::new(),
            threads,
            clock: None,
            level: Level::best(),
            precision: Precision::F32,
            cache: Element::F32,
        }
    }

    /// The elements of a KV cache of that precision.
    ///
    /// # Errors
    /// If no cache has that type: int8, f16.
    pub fn cache_element(precision: Precision) -> Result<Element, ConfigError> {
        match precision {
            Precision::F32 => Ok(Element::F32),
            Precision::Bf16 => Ok(Element::Bf16),
            Precision::Int8 | Precision::F16 => {
                Err(unknown("type of a KV cache", &precision.to_string(), &["f32", "bf16"]))
            }
        }
    }

    /// Whether weights that were made ready for one of the two serve the other: threads and cache may differ.
    pub(crate) fn shares_weights_with(&self, other: &Machine) -> bool {
        let how = |machine: &Machine| (machine.device, machine.level, machine.precision);
        how(self) == how(other) && self.gpu == other.gpu
    }

    fn options(&self) -> BackendOptions {
        BackendOptions { threads: self.threads.max(1), level: self.level, precision: self.precision }
    }

    /// The backend, whose threads are chosen if there is a clock.
    fn timed(&self, model: &Model, cpu: Cpu) -> Box<dyn Backend> {
        Box::new(match self.clock {
            Some(clock) => cpu.choose_threads(model, clock),
            None => cpu,
        })
    }

    /// A backend for `model`, all of whose weights are zero until they are written.
    ///
    /// # Errors
    /// If the system refuses memory or threads, or the device does not support the precision or the model.
    pub fn start(&self, model: &Model) -> backend::Result<Box<dyn Backend>> {
        let how = self.options();
        Ok(match self.device {
            Device::Cpu => self.timed(model, Cpu::start(model, how.threads, how.level, how.precision)?),
            Device::Reference if how.precision != Precision::F32 => {
                let op = match how.precision {
                    Precision::Bf16 => "products of bf16",
                    Precision::F16 => "products of f16",
                    _ => "products of int8",
                };
                let what = "the reference computes in f64".into();
                return Err(BackendError::NotSupported { op, what, settings: &["precision f32"] });
            }
            Device::Reference => Box::new(Reference::start(model)?),
            Device::Gpu => gpu::start(&self.gpu, model, how, None)?,
        })
    }

    /// A backend for `model` that has no weights of its own, but runs on those that another backend shares.
    ///
    /// # Errors
    /// As [`Machine::start`]; if the weights are another model's or another device's, or if their form does not suit
    /// the model or this machine: weights packed for decoding serve neither training nor another precision or
    /// instruction set.
    pub fn start_with(&self, model: &Model, weights: &SharedWeights) -> backend::Result<Box<dyn Backend>> {
        let how = self.options();
        match self.device {
            Device::Cpu => {
                Ok(self.timed(model, Cpu::start_with(model, how.threads, how.level, how.precision, weights)?))
            }
            Device::Reference => {
                let what = "the reference keeps weights of its own".into();
                Err(BackendError::NotSupported { op: "shared weights", what, settings: &[] })
            }
            Device::Gpu => gpu::start(&self.gpu, model, how, Some(weights)),
        }
    }

    /// What a model takes of the device's own memory, to train if something is said of that; `None` where it has none.
    ///
    /// # Errors
    /// If there is no such device.
    pub fn takes(&self, model: &Model, training: Option<&TrainingMemory>) -> Option<backend::Result<DeviceMemory>> {
        self.device.has_own_memory().then(|| gpu::takes(&self.gpu, model, training))
    }
}

/// The backend of GPUs.
#[cfg(feature = "gpu")]
mod gpu {
    use super::{Backend, BackendOptions, DeviceMemory, Model, SharedWeights, TrainingMemory, backend};
    use limpid_gpu::GpuChoice;

    fn choice(gpu: &str) -> GpuChoice {
        gpu.parse().expect("every text is a choice")
    }

    pub fn start(
        gpu: &str,
        model: &Model,
        how: BackendOptions,
        weights: Option<&SharedWeights>,
    ) -> backend::Result<Box<dyn Backend>> {
        limpid_gpu::start(&choice(gpu), model, how, weights)
    }

    pub fn takes(gpu: &str, model: &Model, training: Option<&TrainingMemory>) -> backend::Result<DeviceMemory> {
        limpid_gpu::takes(&choice(gpu), model, training)
    }
}

/// A build without one.
#[cfg(not(feature = "gpu"))]
mod gpu {
    use super::{Backend, BackendError, BackendOptions, DeviceMemory, Model, SharedWeights, TrainingMemory, backend};

    fn missing<T>() -> backend::Result<T> {
        let what = "it has no GPU support: build it with the feature `gpu`, or run on the cpu".into();
        Err(BackendError::NotSupported { op: "gpu", what, settings: &["device cpu"] })
    }

    pub fn start(
        _: &str,
        _: &Model,
        _: BackendOptions,
        _: Option<&SharedWeights>,
    ) -> backend::Result<Box<dyn Backend>> {
        missing()
    }

    pub fn takes(_: &str, _: &Model, _: Option<&TrainingMemory>) -> backend::Result<DeviceMemory> {
        missing()
    }
}

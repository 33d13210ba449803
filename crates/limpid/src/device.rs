//! The devices that models run on.

use crate::config::{Axis, ConfigError, axis, parse_axis, unknown};
use std::fmt;
use std::str::FromStr;

axis! {
    /// Where a model runs: the one place that knows every backend by its name.
    Device, "device" {
        /// This processor: f32, several threads, its fastest instructions.
        Cpu = "cpu",
        /// Plain loops in f64 on one thread: slow; the other backends are judged by it.
        Reference = "reference",
        /// A GPU, in f32, in builds with the feature `gpu`.
        Gpu = "gpu",
    }
}

impl Device {
    /// Whether results are, to the bit, those of every other machine.
    pub fn is_exact(self) -> bool {
        self == Device::Cpu
    }

    /// Whether several backends can run on one copy of the weights ([`Backend::share`]).
    ///
    /// [`Backend::share`]: crate::backend::Backend::share
    pub fn can_share(self) -> bool {
        self != Device::Reference
    }

    /// Whether models lie in memory of its own, not in the system's beside the program.
    pub fn has_own_memory(self) -> bool {
        self == Device::Gpu
    }
}

/// Where a model is to run, by name: `cpu`, `reference`, `gpu`, `gpu:1`, `gpu:NAME`, or `auto`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceName {
    /// The device; none for `auto`, the one that is found to be the fastest.
    pub device: Option<Device>,
    /// Which GPU, as [`Machine::gpu`](crate::Machine::gpu) has it.
    pub gpu: String,
}

impl FromStr for DeviceName {
    type Err = ConfigError;
    fn from_str(text: &str) -> Result<DeviceName, ConfigError> {
        const NAMES: &[&str] = &["cpu", "gpu", "gpu:NUMBER", "gpu:NAME", "auto", "reference"];
        let (device, gpu) = match text.split_once(':') {
            Some(("gpu", gpu)) if !gpu.is_empty() => ("gpu", gpu),
            _ => (text, ""),
        };
        let named = || parse_axis(device).map_err(|_| unknown("device", text, NAMES));
        let device = if device == "auto" { None } else { Some(named()?) };
        Ok(DeviceName { device, gpu: gpu.into() })
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let device = self.device.map_or("auto", Axis::name);
        if self.gpu.is_empty() { f.write_str(device) } else { write!(f, "{device}:{}", self.gpu) }
    }
}

limpid_core::serde_as_text!(DeviceName);

//! A GPU's roofs (as in the roofline model), measured: how fast it multiplies and adds, how fast it moves memory, and
//! what it costs to start a kernel.

use crate::GpuDevice;
use crate::kernels::{self, GpuKernel, Variant};
use crate::lists::{Bindings, List, Word, words};
use crate::memory::Window;
use limpid_core::backend::Result;
use std::time::Instant;

/// What a GPU reaches at most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GpuRoofs {
    /// Floating-point operations a second in f32; a multiply-add counts as two.
    pub flops: f64,
    /// Bytes a second that a kernel reads and writes, as many read as written.
    pub copied: f64,
    /// Seconds that one more kernel takes in a list.
    pub launch: f64,
    /// Seconds from giving a list of one kernel to its end.
    pub round_trip: f64,
}

/// Seconds of a reading: longer than a start by far, shorter than what a system takes for a hang.
const READING: f64 = 0.02;

/// Elements that are copied: 64 MiB, more than most caches hold.
const COPIED: usize = 16 << 20;

/// Lanes that multiply and add: more than any GPU has.
const MULTIPLYING: usize = 1 << 18;

/// Floating-point operations of a lane in one turn of `multiply_adds`.
const TURN: f64 = 2.0 * 8.0 * 4.0;

impl GpuRoofs {
    /// The best of some readings of each.
    ///
    /// # Errors
    /// If the device has no 128 MiB of memory, or fails.
    pub fn measure(device: &GpuDevice) -> Result<GpuRoofs> {
        let elements = COPIED.min(device.adapter.binding_bytes as usize / 4);
        let buffers = [elements, elements].map(|elements| device.reserve("roofs", elements));
        let [from, to] = buffers;
        let [from, to] = [from?, to?].map(|buffer| Window::new(&buffer, 0..elements));
        let mut bindings = Bindings::default();
        // seconds of `times` runs of a kernel in one list, begun and waited for
        let mut timed = |kernel: &'static GpuKernel, windows: &[Option<&Window>], words: &[Word], groups, times| {
            let start = Instant::now();
            let mut list = List::new(device, &mut bindings);
            (0..times).try_for_each(|_| list.run(kernel, Variant::default(), windows, words, groups))?;
            list.submit("roofs")?;
            device.finish("roofs")?;
            Ok(start.elapsed().as_secs_f64())
        };
        let lanes = MULTIPLYING.min(elements);
        let mut multiply = |turns: usize| timed(&kernels::MULTIPLY_ADDS, &[Some(&from)], words![turns], lanes / 64, 1);
        // as many turns as a reading has time for
        let mut turns = 1;
        multiply(turns)?; // compiled now
        while multiply(turns)? < READING && turns < 1 << 20 {
            turns *= 2;
        }
        let work = lanes as f64 * turns as f64 * TURN;
        let flops = (0..3).map(|_| Ok(work / multiply(turns)?)).collect::<Result<Vec<f64>>>()?;
        let mut copy = |elements: usize, times| {
            let words = words![elements, false, 1.0f32, 0.0f32];
            timed(&kernels::SCALE, &[Some(&from), Some(&to)], words, elements.div_ceil(256), times)
        };
        copy(elements, 1)?;
        let copied = (0..3).map(|_| Ok(8.0 * elements as f64 / copy(elements, 1)?)).collect::<Result<Vec<f64>>>()?;
        let mut best = |times| (0..5).map(|_| copy(64, times)).collect::<Result<Vec<f64>>>().map(least);
        let (round_trip, many) = (best(1)?, best(LAUNCHES + 1)?);
        let launch = (many - round_trip).max(0.0) / LAUNCHES as f64;
        Ok(GpuRoofs { flops: most(flops), copied: most(copied), launch, round_trip })
    }
}

/// Kernels whose starts are timed together.
const LAUNCHES: usize = 1000;

fn most(readings: Vec<f64>) -> f64 {
    readings.into_iter().fold(0.0, f64::max)
}
fn least(readings: Vec<f64>) -> f64 {
    readings.into_iter().fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roofs_are_measured() {
        let Some(device) = crate::test_device::device() else { return };
        let roofs = GpuRoofs::measure(&device).unwrap();
        println!("{roofs:?}");
        let GpuRoofs { flops, copied, launch, round_trip } = roofs;
        assert!(flops > 1e8 && copied > 1e8 && launch > 0.0 && launch < round_trip + 1e-3, "{roofs:?}");
    }
}

//! Study: [`walk`] reads five documents on the transformer on live models, and [`lessons`] are short experiments that test common claims
//! about transformers.
//!
//! Nothing of what limpid is needs this crate; it looks at models as any other program that uses limpid can.

pub mod lessons;
pub mod walk;

use limpid_core::backend::{self, Backend, BackendOptions, Device};
use limpid_core::matrix::Precision;
use limpid_core::model::Model;
use limpid_core::numeric::simd::Level;

/// This processor for a model, with so many threads and products of that precision.
fn processor(model: &Model, (threads, precision): (usize, Precision)) -> backend::Result<Box<dyn Backend>> {
    Device::Cpu.start(model, BackendOptions { threads, level: Level::best(), precision })
}

//! PyTorch's numbers on a GPU: the models of `limpid`'s own test of that name (`tests/library/pytorch`), held to what
//! its f32 kernels are held to.

use crate::device;
use crate::pytorch::{Fixture, check_families, check_model, check_training};
use limpid::backend::Backend;
use limpid::model::Model;
use limpid::optimizer::Method;
use limpid_gpu::Gpu;

/// The library's folder.
pub const LIBRARY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../limpid");

/// `SINGLE` of `limpid`'s tests/library/parity.rs.
const SINGLE: f64 = 1e-5;

/// The GPU, where there is one.
pub fn backends(model: &Model) -> Vec<(String, Box<dyn Backend>, f64)> {
    let on = |device| ("gpu".into(), Box::new(Gpu::start(&device, model).unwrap()) as Box<dyn Backend>, SINGLE);
    device::device().map(on).into_iter().collect()
}

/// Logits, hidden states, attention, losses and gradients.
#[test]
fn models_are_huggingfaces() {
    ["gpt2", "openai-gpt", "bert"].into_iter().for_each(check_model);
}

/// Ten steps: losses, norms, and for AdamW the parameters after them.
#[test]
fn models_train_as_in_pytorch() {
    let adamw = ["gpt2", "openai-gpt", "bert"].map(|name| (name, Method::AdamW));
    let others = [Method::Adam, Method::Sgd].map(|method| ("gpt2", method));
    adamw.into_iter().chain(others).for_each(|(name, method)| check_training(&Fixture::open(name), method));
}

/// Losses, gradients and three steps of AdamW of every family that shows a choice of its own.
#[test]
fn families_train_as_transformers_does() {
    check_families();
}

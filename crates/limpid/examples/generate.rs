//! Loads a model and continues a prompt: `cargo run --release --example generate -- runs/1 "Once upon a time"`.

use limpid::generate::{Options, Sampler};
use limpid::{Error, Lm};
use std::path::Path;

/// 50 tokens after `prompt`, somewhat sharper than the model's own distribution.
pub fn continued(model: &Path, prompt: &str) -> Result<String, Error> {
    let lm = Lm::open(model)?;
    let sampler = Sampler { temperature: 0.8, seed: 1, ..Sampler::default() };
    Ok(lm.generate(prompt, &Options { max_tokens: 50, sampler, ..Options::default() })?.text)
}

fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1);
    let (model, prompt) = (arguments.next().expect("a model"), arguments.next().unwrap_or_default());
    println!("{prompt}{}", continued(Path::new(&model), &prompt)?);
    Ok(())
}

//! Prints the SHA-256 of what this machine computes with each of its instruction sets: `cargo run --release --example
//! same_bits`. Lines of one name have one hash, on every machine; `cargo xtask targets`
//! compares processors.

use limpid::checkpoint::{Format, store::Dtype};
use limpid::config::Config;
use limpid::generate::{GenerateEvent, Options, Sampler};
use limpid::matrix::Precision;
use limpid::numeric::blocks::Quant;
use limpid::numeric::simd::Level;
use limpid::train::{Recipe, RunOptions};
use limpid::{Error, Lm, Machine, Trained, Training};
use sha2::{Digest, Sha256};
use std::path::Path;

const TEXT: &str = "to be or not to be, that is the question.\n";

/// Trains a small model for 20 steps, looks inside it, and decodes with it and with its copies of other types, which
/// are written into `folder`. Returns names and hashes.
pub fn same_bits(level: Level, folder: &Path) -> Result<Vec<(String, String)>, Error> {
    let machine = |precision| Machine { level, precision, ..Machine::cpu(2) };
    let mut found = vec![];
    for precision in [Precision::Bf16, Precision::F32] {
        let Trained { lm, summary, .. } = training(machine(precision))?.run()?;
        let mut bits = Sha256::new();
        bits.update(summary.train_loss.unwrap_or(f64::NAN).to_bits().to_le_bytes());
        for (name, _) in lm.parameters()? {
            update(&mut bits, &lm.parameter(&name)?.values);
        }
        found.push((format!("training {precision}"), hex(bits)));
        found.push((format!("decoding {precision}"), decoded(&lm)?));
        if precision == Precision::F32 {
            let (trace, mut bits) = (lm.trace("to be or not to be")?, Sha256::new());
            for name in trace.names() {
                update(&mut bits, &trace.get(&name)?.values);
            }
            found.push(("trace".into(), hex(bits)));
            for dtype in [Dtype::F16, Dtype::Blocks(Quant::Q8_0), Dtype::Blocks(Quant::Q4_0)] {
                let path = folder.join(format!("{dtype}-{level}.gguf"));
                lm.save_as(&path, Format::Gguf, &dtype)?;
                for precision in [Precision::F32, Precision::Int8] {
                    let lm = Lm::open(&path)?.with_machine(machine(precision));
                    found.push((format!("decoding {dtype} {precision}"), decoded(&lm)?));
                }
            }
        }
    }
    Ok(found)
}

fn training(machine: Machine) -> Result<Training, Error> {
    // small, because an emulator runs it too
    let config =
        Config { d_model: 32, n_head: 2, n_layer: 2, d_ff: 128, context_length: 24, ..Config::preset("gpt2")? };
    let options = RunOptions { preflight: false, ..RunOptions::preset("gpt2")? };
    let recipe = Recipe { steps: 20, batch_size: 2, ..Recipe::preset("gpt2")? };
    let training = Training::new(config, recipe).options(options).machine(machine);
    Ok(training.text(TEXT.repeat(20)).tokenizer("char"))
}

/// The hash of the likeliest tokens and their logits, for each of sixteen tokens that follow a prompt.
fn decoded(lm: &Lm) -> Result<String, Error> {
    let sampler = Sampler { temperature: 0.0, ..Sampler::default() };
    let options = Options { max_tokens: 16, sampler, trace: true, ..Options::default() };
    let mut bits = Sha256::new();
    lm.generate_events(&lm.prompt_ids("to be or")?, &options, &mut |event| {
        if let GenerateEvent::Choice(choice) = event {
            for candidate in choice.candidates {
                bits.update(candidate.token.to_le_bytes());
                update(&mut bits, &[candidate.logit]);
            }
        }
        true
    })?;
    Ok(hex(bits))
}

fn update(hash: &mut Sha256, values: &[f32]) {
    values.iter().for_each(|value| hash.update(value.to_bits().to_le_bytes()));
}

fn hex(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::temp_dir().join(format!("limpid-same-bits-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    for level in Level::available() {
        for (name, hash) in same_bits(level, &folder)? {
            println!("{name}: {level} {hash}");
        }
    }
    Ok(std::fs::remove_dir_all(&folder)?)
}

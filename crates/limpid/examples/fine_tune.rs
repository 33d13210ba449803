//! Trains a LoRA adapter for a model: `cargo run --release --example fine_tune -- runs/1 chat.jsonl runs/adapter`.
use limpid::model::{Lora, Tuning};
use limpid::{Error, Lm, Training};

/// The model with its adapter, which goes into a folder.
pub fn fine_tune(model: &str, data: &str, folder: &str, steps: u64) -> Result<Lm, Error> {
    let lora = Lora { rank: 8, alpha: 16.0, dropout: 0.0, targets: vec!["attention".into()] };
    let training = Training::fine_tuning(Lm::open(model)?).tuning(Tuning { lora: Some(lora), ..Tuning::default() });
    Ok(training.data(data).steps(steps).folder(folder).run()?.lm)
}

fn main() -> Result<(), Error> {
    let [_, model, data, folder] = &std::env::args().collect::<Vec<_>>()[..] else { panic!("give three names") };
    fine_tune(model, data, folder, 100).map(|lm| println!("{lm:?}"))
}

//! Trains a small model on a text of one's own: `cargo run --release --example own_text -- book.txt runs/book`.

use limpid::train::{Control, Recipe, RunOptions, RunSettings, TrainEvent};
use limpid::{Error, Trained, Training};
use std::path::Path;

/// Trains in a folder, reports every evaluation, and continues a run that was stopped.
pub fn train(text: &str, folder: &Path, steps: u64, mut tell: impl FnMut(u64, f64)) -> Result<Trained, Error> {
    let RunSettings { recipe, options } = RunSettings::preset("nano")?;
    let training = Training::preset("nano")?
        .recipe(Recipe { steps, ..recipe })
        .options(RunOptions { eval_every: steps.div_ceil(10), ..options });
    training.data(text).tokenizer("char").folder(folder).resume().run(|event| {
        if let TrainEvent::Validated { step, loss, .. } = event {
            tell(step, loss);
        }
        Control::Continue
    })
}

fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1);
    let (text, folder) = (arguments.next().expect("a text file"), arguments.next().expect("a folder"));
    let trained = train(&text, Path::new(&folder), 500, |step, loss| println!("step {step}: {loss:.4} nats a token"))?;
    println!("{} tokens in {:.0} seconds", trained.summary.tokens, trained.summary.seconds);
    Ok(())
}

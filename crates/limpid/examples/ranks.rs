//! Several processes train one model: `mpirun -n 2 target/release/examples/ranks`, built with
//! `cargo build --release -p limpid --example ranks --features mpi`. The weights have the same bytes for any number of
//! processes.

use limpid::train::ranks::mpi::{MpiRanks, abort, leave};
use limpid::train::{Control, Recipe, TrainError, TrainEvent};
use limpid::{Machine, Training};
use std::time::Duration;

fn main() {
    match train() {
        Ok(()) => leave(),
        Err(error) => end_all(error),
    }
}

/// The others wait for a process that fails: it ends them too.
fn end_all(error: impl std::fmt::Display) -> ! {
    eprintln!("{error}");
    abort(1)
}

fn train() -> Result<(), limpid::Error> {
    let patience = Duration::from_secs(600);
    let ranks = MpiRanks::join(patience, |error| end_all(error)).map_err(TrainError::from)?;
    let ranks = ranks.expect("this process joins once");
    // a step is four micro-batches, which up to four processes share
    let recipe = Recipe { steps: 20, batch_size: 4, accumulate: 4, ..Recipe::preset("nano")? };
    let trained =
        Training::preset("nano")?.recipe(recipe).machine(Machine::cpu(1)).ranks(Box::new(ranks)).run_telling(
            |event| {
                // process 0 alone hears of progress
                if let TrainEvent::Step(step, seconds) = event {
                    println!("step {}: loss {:.4}, {seconds:.1} s", step.step, step.loss.unwrap_or(f64::NAN));
                }
                Control::Continue
            },
        )?;
    // every process has the model
    println!("validation loss {:.4}", trained.summary.val_loss.unwrap_or(f64::NAN));
    Ok(())
}

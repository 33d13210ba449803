//! Several processes train one model: `mpirun -n 2 target/release/examples/ranks`, built with
//! `cargo build --release -p limpid --example ranks --features mpi`. The weights have the same bytes for any number of processes.

use limpid::Training;
use limpid::train::ranks::mpi::{MpiRanks, abort, leave};
use limpid::train::{Control, Recipe, TrainEvent};

fn main() {
    let ranks = MpiRanks::join().expect("this process joins once");
    match train(ranks) {
        Ok(()) => leave(),
        Err(error) => {
            eprintln!("{error}");
            abort(1) // the others wait for this process: end them too
        }
    }
}

fn train(ranks: MpiRanks) -> Result<(), limpid::Error> {
    // a step is four micro-batches, which up to four processes share
    let recipe = Recipe { steps: 20, batch_size: 4, accumulate: 4, ..Recipe::preset("nano")? };
    let trained = Training::preset("nano")?.recipe(recipe).threads(1).ranks(Box::new(ranks)).run(|event| {
        // process 0 alone hears of progress
        if let TrainEvent::Step(step, seconds) = event {
            println!("step {}: loss {:.4}, {seconds:.1} s", step.step, step.loss);
        }
        Control::Continue
    })?;
    // every process has the model
    println!("validation loss {:.4}", trained.summary.val_loss.unwrap_or(f64::NAN));
    Ok(())
}

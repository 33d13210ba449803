//! Overfitting and its remedies: a model that is large for its text, with dropout, weight decay, label smoothing, an
//! average of the weights, and early stopping. docs/lessons.md shows the output.
//!
//! `cargo run --release -p limpid --example regularisation`

#[path = "lesson/mod.rs"]
#[allow(dead_code)] // each lesson uses a part
mod lesson;

use lesson::{Course, Text, cell, each};
use limpid::config::{Config, Dropout};
use limpid::train::{Recipe, Schedule, TrainError};

/// Bytes to learn from: some eight stories, which the model reads 68 times.
const BYTES: usize = 3_000;

/// A model of 116,640 parameters.
pub fn config() -> Config {
    Config { d_model: 48, n_head: 4, n_layer: 4, d_ff: 192, ..Config::preset("nanogpt-cpu").expect("a preset") }
}

/// No regularisation.
pub fn plain() -> Recipe {
    Recipe {
        steps: 400,
        batch_size: 8,
        context: 64,
        learning_rate: 3e-3,
        warmup_steps: 20,
        schedule: Schedule::Constant,
        weight_decay: 0.0,
        ..Recipe::default()
    }
}

/// The text to learn.
pub fn text() -> Text {
    Text::new(BYTES)
}

/// Trains with regular evaluations, and returns the losses.
pub fn run(text: &Text, dropout: f64, recipe: Recipe, eval_every: u64) -> Result<Course, TrainError> {
    lesson::course(text, &Config { dropout: Dropout::everywhere(dropout), ..config() }, recipe, eval_every)
}

fn main() -> Result<(), TrainError> {
    let text = text();
    let rows = [
        ("nothing", 0.0, plain()),
        ("dropout 0.3", 0.3, plain()),
        ("weight decay 0.1", 0.0, Recipe { weight_decay: 0.1, ..plain() }),
        ("weight decay 1", 0.0, Recipe { weight_decay: 1.0, ..plain() }),
        ("label smoothing 0.1", 0.0, Recipe { label_smoothing: 0.1, ..plain() }),
        ("average of weights, 0.98", 0.0, Recipe { ema: 0.98, ..plain() }),
        ("dropout 0.3, decay 1, average", 0.3, Recipe { weight_decay: 1.0, ema: 0.98, ..plain() }),
    ];
    println!("{:<32}{:>8}{:>8}{:>8}  best validation loss", "", "train", "valid.", "gap");
    let mut found = vec![];
    for ((name, ..), course) in rows.iter().zip(each(&rows, |(_, dropout, recipe)| run(&text, *dropout, *recipe, 25))) {
        let course = course?;
        let (_, end) = course.validation[course.validation.len() - 1];
        let (at, best) = course.validation.into_iter().min_by(|a, b| a.1.total_cmp(&b.1)).expect("evaluations");
        println!(
            "{name:<32}{}{}{}{} at step {at}",
            cell(course.train),
            cell(end),
            cell(end - course.train),
            cell(best)
        );
        found.push((name, end, best));
    }
    let (_, end, best) = found[0];
    let (name, least, _) = found.iter().copied().min_by(|a, b| a.1.total_cmp(&b.1)).expect("rows");
    println!(
        "\nStopping early would have saved {:.2} nats of validation loss; at the end, {name} is {:.2} below nothing.",
        end - best,
        end - least
    );
    Ok(())
}

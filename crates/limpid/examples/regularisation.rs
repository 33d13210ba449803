//! Learning by heart and what helps against it: a model that is large for its text, with dropout, weight decay, label
//! smoothing, an average of the weights, and stopping early. Contract R257, R258, R038, R230 to R233; docs/lessons.md has what
//! it prints.
//!
//! `cargo run --release -p limpid --example regularisation`

#[path = "lesson/mod.rs"]
mod lesson;

use lesson::{Course, Text, cell};
use limpid::config::{Config, Dropout};
use limpid::train::{Recipe, Schedule, TrainError};

/// Bytes to learn from: some twenty stories, which the model reads about forty times.
const BYTES: usize = 8_000;

/// A model of some 110,000 parameters.
pub fn config() -> Config {
    Config { d_model: 48, n_head: 4, n_layer: 4, d_ff: 192, ..Config::preset("nano").expect("a preset") }
}

/// Nothing against learning by heart.
pub fn plain() -> Recipe {
    Recipe {
        steps: 600,
        batch_size: 8,
        context: 64,
        learning_rate: 3e-3,
        warmup_steps: 20,
        schedule: Schedule::Constant,
        weight_decay: 0.0,
        eval_every: 50,
        ..Recipe::default()
    }
}

pub fn text() -> Text {
    Text::new(BYTES)
}

/// Trains and returns what came of it.
pub fn run(text: &Text, dropout: f64, recipe: Recipe) -> Result<Course, TrainError> {
    lesson::course(text, &Config { dropout: Dropout::everywhere(dropout), ..config() }, recipe)
}

fn main() -> Result<(), TrainError> {
    let text = text();
    let smooth = Recipe { label_smoothing: 0.1, ..plain() };
    let rows = [
        ("nothing", 0.0, plain()),
        ("dropout 0.1", 0.1, plain()),
        ("dropout 0.3", 0.3, plain()),
        ("weight decay 0.1", 0.0, Recipe { weight_decay: 0.1, ..plain() }),
        ("weight decay 1", 0.0, Recipe { weight_decay: 1.0, ..plain() }),
        ("label smoothing 0.1", 0.0, smooth),
        ("average of weights, 0.98", 0.0, Recipe { ema: 0.98, ..plain() }),
        ("dropout 0.3, decay 1, average", 0.3, Recipe { weight_decay: 1.0, ema: 0.98, ..plain() }),
    ];
    println!("{:<32}{:>8}{:>8}{:>8}  best validation loss", "", "train", "valid.", "gap");
    let mut found = vec![];
    for (name, dropout, recipe) in rows {
        let course = run(&text, dropout, recipe)?;
        let (train, (_, end)) = (course.last(recipe.steps), course.validation[course.validation.len() - 1]);
        let best = course.best();
        let at = course.validation.iter().find(|(_, loss)| *loss == best).map_or(0, |(step, _)| *step);
        println!("{name:<32}{}{}{}{} at step {at}", cell(train), cell(end), cell(end - train), cell(best));
        found.push((name, end, best));
    }
    let (_, end, best) = found[0];
    let (name, least, _) = found.iter().copied().min_by(|a, b| a.1.total_cmp(&b.1)).expect("rows");
    println!(
        "\nStopping early would have saved {:.2} nats of validation loss; at the end, {name} has {:.2} less than nothing has.\n\
         (Dropout and smoothing are in the training loss and not in the validation loss.)",
        end - best,
        end - least
    );
    Ok(())
}

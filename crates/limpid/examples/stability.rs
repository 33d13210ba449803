//! Stable training: gradient clipping, warm-up and schedule, optimizers, pre-norm against post-norm. One thing is
//! changed at a time; data, seed and number of steps are the same. docs/lessons.md has what it prints. Read
//! `regularisation` next.
//!
//! `cargo run --release -p limpid --example stability`

#[path = "lesson/mod.rs"]
#[allow(dead_code)] // each lesson uses a part
mod lesson;

use lesson::{Text, cell, each};
use limpid::config::{Config, NormPlace};
use limpid::ops::adamw::Method;
use limpid::train::{Recipe, Schedule, TrainError};

/// A small GPT-2 for characters.
pub fn small() -> Config {
    Config { d_model: 32, n_head: 4, n_layer: 3, d_ff: 128, ..Config::preset("nanogpt-cpu").expect("a preset") }
}

/// 150 steps of AdamW at a constant rate, without warm-up, clipping or decay. The remedies are added to this.
pub fn plain() -> Recipe {
    Recipe {
        steps: 150,
        batch_size: 8,
        context: 32,
        learning_rate: 1e-2,
        warmup_steps: 0,
        schedule: Schedule::Constant,
        weight_decay: 0.0,
        clip: 0.0,
        min_learning_rate: 0.0,
        ..Recipe::default()
    }
}

/// [`plain`] with another optimizer and rate; sgd with momentum 0.9.
pub fn by(optimizer: Method, learning_rate: f64) -> Recipe {
    Recipe { optimizer, learning_rate, ..plain() }
}

/// [`small`] with another number of blocks; a post-norm model needs no final norm.
pub fn normed(n_layer: usize, norm_place: NormPlace) -> Config {
    Config { n_layer, norm_place, final_norm: norm_place == NormPlace::Pre, ..small() }
}

/// The text that all runs learn.
pub fn text() -> Text {
    Text::new(200_000)
}

/// The mean loss of the last 20 steps; infinite where training broke off.
pub fn last(text: &Text, config: &Config, recipe: Recipe) -> Result<f64, TrainError> {
    lesson::course(text, config, recipe, 0).map(|course| course.last(recipe.steps))
}

fn main() -> Result<(), TrainError> {
    let text = text();
    // a row of losses, one for each rate
    let row = |name: &str, rates: &[f64], config: &Config, recipe: &(dyn Fn(f64) -> Recipe + Sync)| {
        let losses: Result<Vec<f64>, _> = each(rates, |rate| last(&text, config, recipe(*rate))).into_iter().collect();
        println!("{name:<36}{}", losses?.into_iter().map(cell).collect::<String>());
        Ok::<(), TrainError>(())
    };
    let title = |title: &str, rates: &[f64]| {
        println!("\n{title}\n{:<36}{}", "", rates.iter().map(|r| format!("{r:>8}")).collect::<String>());
    };
    println!("Mean loss of the last 20 of 150 steps, by learning rate");

    let rates = [0.03, 0.1, 0.3, 1.0, 3.0];
    title("Clipping: SGD with momentum", &rates);
    row("not clipped", &rates, &small(), &|rate| by(Method::Sgd, rate))?;
    for clip in [1.0, 0.25] {
        let name = format!("gradient's norm at most {clip}");
        row(&name, &rates, &small(), &|rate| Recipe { clip, ..by(Method::Sgd, rate) })?;
    }

    let rates = [1e-3, 3e-3, 1e-2, 3e-2];
    title("Optimizers", &rates);
    use Method::{Adam, AdamW, Muon, Sgd};
    for (method, weight_decay) in [(Sgd, 0.0), (Adam, 0.0), (Muon, 0.0), (Adam, 0.1), (AdamW, 0.1)] {
        let name = format!("{method}, decay {weight_decay}");
        row(&name, &rates, &small(), &|rate| Recipe { weight_decay, ..by(method, rate) })?;
    }

    title("Warm-up and schedule: AdamW", &rates);
    use Schedule::{Constant, Cosine};
    let choices = [
        ("constant", 0, Constant),
        ("20 steps of warm-up", 20, Constant),
        ("cosine to 0", 0, Cosine),
        ("both", 20, Cosine),
    ];
    for (name, warmup_steps, schedule) in choices {
        row(name, &rates, &small(), &|rate| Recipe { warmup_steps, schedule, ..by(AdamW, rate) })?;
    }

    title("Pre-norm and post-norm: AdamW without warm-up", &rates);
    for (blocks, place) in [3, 12].into_iter().flat_map(|n| [(n, NormPlace::Pre), (n, NormPlace::Post)]) {
        row(&format!("{blocks} blocks, {place}-norm"), &rates, &normed(blocks, place), &|rate| by(AdamW, rate))?;
    }
    Ok(())
}

//! Training that stays on its feet: clipping, warm-up and schedule, optimizers, pre-norm against post-norm. One thing is
//! changed at a time; data, seed and number of steps are the same. Contract R254, R259, R260, R262 (and R215 to R221);
//! docs/lessons.md has what it prints. Read `regularisation` next.
//!
//! `cargo run --release -p limpid --example stability`

#[path = "lesson/mod.rs"]
mod lesson;

use lesson::{Course, Text, cell};
use limpid::config::{Config, NormPlace};
use limpid::ops::adamw::Method;
use limpid::train::{Recipe, Schedule, TrainError};

/// A small GPT-2 for characters.
pub fn small() -> Config {
    Config { d_model: 32, n_head: 4, n_layer: 3, d_ff: 128, ..Config::preset("nano").expect("a preset") }
}

/// 150 steps of AdamW at a constant rate, without warm-up, clipping or decay: what the remedies are added to.
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
        eval_every: 0,
        min_learning_rate: 0.0,
        ..Recipe::default()
    }
}

/// [`plain`] with another optimizer and rate; sgd with momentum 0.9.
pub fn by(optimizer: Method, learning_rate: f64) -> Recipe {
    Recipe { optimizer, learning_rate, ..plain() }
}

pub fn run(text: &Text, config: &Config, recipe: Recipe) -> Result<Course, TrainError> {
    lesson::course(text, config, recipe)
}

fn main() -> Result<(), TrainError> {
    let text = Text::new(200_000);
    let last = |config: &Config, recipe: Recipe| run(&text, config, recipe).map(|c| c.last(recipe.steps));
    let rates = |title: &str, rates: &[f64]| {
        println!("{title}\n{:<36}{}", "", rates.iter().map(|r| format!("{r:>8}")).collect::<String>());
    };
    let row =
        |name: &str, losses: &[f64]| println!("{name:<36}{}", losses.iter().map(|l| cell(*l)).collect::<String>());

    let sgd = [0.03, 0.1, 0.3, 1.0, 3.0];
    rates("Clipping: SGD with momentum, mean loss of the last 20 steps, by learning rate", &sgd);
    for clip in [0.0, 1.0, 0.25] {
        let losses: Result<Vec<f64>, _> =
            sgd.iter().map(|rate| last(&small(), Recipe { clip, ..by(Method::Sgd, *rate) })).collect();
        row(&if clip > 0.0 { format!("gradient's norm at most {clip}") } else { "not clipped".into() }, &losses?);
    }
    println!();

    let adam = [1e-3, 3e-3, 1e-2, 3e-2];
    rates("Optimizers, by learning rate", &adam);
    use Method::{Adam, AdamW, Muon, Sgd};
    for (method, weight_decay) in [(Sgd, 0.0), (Adam, 0.0), (Muon, 0.0), (Adam, 0.1), (AdamW, 0.1)] {
        let recipe = |rate| Recipe { weight_decay, ..by(method, rate) };
        let losses: Result<Vec<f64>, _> = adam.iter().map(|rate| last(&small(), recipe(*rate))).collect();
        row(&format!("{method}, decay {weight_decay}"), &losses?);
    }
    println!();

    rates("Warm-up and schedule: AdamW, by learning rate", &adam);
    let warm = |recipe| Recipe { warmup_steps: 20, ..recipe };
    let falling = |recipe| Recipe { schedule: Schedule::Cosine, ..recipe };
    type Change<'a> = (&'a str, &'a dyn Fn(Recipe) -> Recipe);
    let changes: [Change; 4] = [
        ("constant", &|r| r),
        ("20 steps of warm-up", &warm),
        ("cosine to 0", &falling),
        ("both", &|r| warm(falling(r))),
    ];
    for (name, change) in changes {
        let losses: Result<Vec<f64>, _> =
            adam.iter().map(|rate| last(&small(), change(by(Method::AdamW, *rate)))).collect();
        row(name, &losses?);
    }
    println!();

    rates("Pre-norm and post-norm: AdamW without warm-up, by learning rate", &adam);
    for (layers, place) in [3, 12].into_iter().flat_map(|l| [(l, NormPlace::Pre), (l, NormPlace::Post)]) {
        let config = Config { n_layer: layers, norm_place: place, final_norm: place == NormPlace::Pre, ..small() };
        let losses: Result<Vec<f64>, _> = adam.iter().map(|rate| last(&config, by(Method::AdamW, *rate))).collect();
        row(&format!("{layers} blocks, {place}-norm"), &losses?);
    }
    Ok(())
}

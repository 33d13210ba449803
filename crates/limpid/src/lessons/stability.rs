//! Stable training: gradient clipping, optimizers, warm-up and schedule, pre-norm against post-norm. One thing is
//! changed at a time; data, seed and number of steps are the same. Read `regularisation` next.

use super::training::{Study, Text, cell};
use super::{Topic, at_most, claim, grid};
use crate::config::NormPlace;
use crate::ops::adamw::Method;
use crate::tokenizer::TokenizerKind;
use crate::train::{Recipe, Schedule};

/// Updates of a run.
const STEPS: u64 = 120;

/// What keeps training stable.
pub(super) const TOPIC: Topic = Topic {
    name: "stability",
    title: "What lets a model learn at a large rate?",
    about: "Trains a model of 3 blocks, d_model 32, at several learning rates with and without clipping, with each optimizer, with and \
            without warm-up and schedule, and one of 6 blocks in pre-norm and post-norm. The numbers are mean losses of the last 20 of \
            120 steps; \"broke\" is a loss or gradient that is not finite. A loss of 3.04 is what the frequencies of single characters \
            give: such a model has not learned to look back.",
    teach: |class| {
        let text = Text::new(200_000, TokenizerKind::Char)?;
        use Method::{Adam, AdamW, Muon, Sgd};
        type Change = fn(&mut Recipe);
        let (low, high) = ([0.1, 0.3, 1.0], [3e-3, 1e-2, 3e-2]);
        type Section = (&'static str, [f64; 3], Vec<(&'static str, Method, Change)>);
        let sections: [Section; 3] = [
            (
                "Clipping: SGD with momentum",
                low,
                vec![
                    ("not clipped", Sgd, |_| {}),
                    ("gradient's norm at most 1", Sgd, |recipe| recipe.clip = 1.0),
                    ("gradient's norm at most 0.25", Sgd, |recipe| recipe.clip = 0.25),
                ],
            ),
            (
                "Optimizers",
                high,
                vec![
                    ("sgd", Sgd, |_| {}),
                    ("muon", Muon, |_| {}),
                    ("adam", Adam, |_| {}),
                    ("adam, decay 0.1", Adam, |recipe| recipe.weight_decay = 0.1),
                    ("adamw, decay 0.1", AdamW, |recipe| recipe.weight_decay = 0.1),
                ],
            ),
            (
                "Warm-up and schedule: Adam",
                high,
                vec![
                    ("20 steps of warm-up", Adam, |recipe| recipe.warmup_steps = 20),
                    ("cosine to 0", Adam, |recipe| recipe.schedule = Schedule::Cosine),
                    ("both", Adam, |recipe| (recipe.warmup_steps, recipe.schedule) = (20, Schedule::Cosine)),
                ],
            ),
        ];
        let mut studies: Vec<(String, Study)> = vec![];
        for (_, rates, rows) in &sections {
            for ((name, method, change), rate) in rows.iter().flat_map(|row| rates.map(|rate| (row, rate))) {
                let mut study = Study::small(3)?;
                (study.recipe.steps, study.recipe.optimizer, study.recipe.learning_rate) = (STEPS, *method, rate);
                change(&mut study.recipe);
                studies.push((format!("{name}, {rate}"), study));
            }
        }
        let places = [("6 blocks, pre-norm", NormPlace::Pre), ("6 blocks, post-norm", NormPlace::Post)];
        for ((name, place), rate) in places.iter().flat_map(|place| high[..2].iter().map(move |rate| (place, rate))) {
            let mut study = Study::small(6)?;
            (study.recipe.steps, study.recipe.learning_rate) = (STEPS, *rate);
            // a post-norm model needs no final norm
            (study.config.norm_place, study.config.final_norm) = (*place, *place == NormPlace::Pre);
            studies.push((format!("{name}, {rate}"), study));
        }
        let losses: Vec<f64> = class.train(&text, &studies)?.iter().map(|course| course.last(STEPS)).collect();
        let of = |name: &str, rate: f64| {
            let name = format!("{name}, {rate}");
            losses[studies.iter().position(|(known, _)| *known == name).expect("a run's name")]
        };
        let table = |title: &str, names: &[&str], rates: &[f64]| {
            let headers: Vec<String> = rates.iter().map(f64::to_string).collect();
            let headers: Vec<&str> = std::iter::once("rate").chain(headers.iter().map(String::as_str)).collect();
            let row = |name: &&str| {
                std::iter::once(name.to_string()).chain(rates.iter().map(|rate| cell(of(name, *rate)))).collect()
            };
            grid(title, &headers, names.iter().map(row).collect())
        };
        let mut views = vec![];
        for (title, rates, rows) in &sections {
            let mut names: Vec<&str> = rows.iter().map(|(name, ..)| *name).collect();
            if title.starts_with("Warm-up") {
                names.insert(0, "adam");
            }
            views.push(table(title, &names, rates));
        }
        views.push(table("Where the norm stands: AdamW without warm-up", &places.map(|(name, _)| name), &high[..2]));
        let lower = |what: &str, (low, high): (f64, f64), by: f64| at_most(what, low - high, -by);
        let best = |name: &str| low.map(|rate| of(name, rate)).into_iter().fold(f64::INFINITY, f64::min);
        let clipped = "gradient's norm at most 0.25";
        let claims = vec![
            claim(
                "Clipping lets a large rate work",
                vec![lower("loss at 1 clipped less not clipped", (of(clipped, 1.0), of("not clipped", 1.0)), 0.3)],
            ),
            claim(
                "The best loss of SGD at these rates is a little lower with it",
                vec![lower("least loss clipped less not clipped", (best(clipped), best("not clipped")), 0.005)],
            ),
            claim(
                "A rate that is too large for the first steps is not for later ones: a warm-up lets it work",
                vec![lower(
                    "loss at 0.03 with warm-up less without",
                    (of("20 steps of warm-up", 3e-2), of("adam", 3e-2)),
                    0.02,
                )],
            ),
            claim(
                "At one rate Adam is far ahead of SGD",
                vec![lower("loss at 0.003, adam less sgd", (of("adam", 3e-3), of("sgd", 3e-3)), 0.2)],
            ),
            claim(
                "Decay belongs apart from the gradient: AdamW is ahead of Adam with decay",
                vec![lower(
                    "loss at 0.003, adamw less adam",
                    (of("adamw, decay 0.1", 3e-3), of("adam, decay 0.1", 3e-3)),
                    0.1,
                )],
            ),
            claim(
                "Six blocks in post-norm do not learn at a rate that suits pre-norm",
                vec![lower(
                    "loss at 0.01, pre-norm less post-norm",
                    (of(places[0].0, 1e-2), of(places[1].0, 1e-2)),
                    0.2,
                )],
            ),
        ];
        Ok((views, claims))
    },
};

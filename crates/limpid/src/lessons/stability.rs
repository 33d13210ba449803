//! Stable training: gradient clipping, optimizers, warm-up and schedule, pre-norm against post-norm. One thing is
//! changed at a time; data, seed and number of steps are the same. Read `regularisation` next.

use super::training::{Study, Text, cell};
use super::{Topic, at_most, claim, grid};
use crate::config::NormPlace;
use crate::ops::adamw::Method;
use crate::tokenizer::TokenizerKind;
use crate::train::Schedule;
use std::iter;

/// Updates of a run.
const STEPS: u64 = 120;

/// A row of a table: its name, the number of blocks, the optimizer, and what else is changed.
type Row = (&'static str, usize, Method, fn(&mut Study));

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
        let (low, high) = ([0.1, 0.3, 1.0], [3e-3, 1e-2, 3e-2]);
        let sections: [(&str, &[f64], Vec<Row>); 4] = [
            (
                "Clipping: SGD with momentum",
                &low,
                vec![
                    ("not clipped", 3, Sgd, |_| {}),
                    ("gradient's norm at most 1", 3, Sgd, |study| study.recipe.clip = 1.0),
                    ("gradient's norm at most 0.25", 3, Sgd, |study| study.recipe.clip = 0.25),
                ],
            ),
            (
                "Optimizers",
                &high,
                vec![
                    ("sgd", 3, Sgd, |_| {}),
                    ("muon", 3, Muon, |_| {}),
                    ("adam", 3, Adam, |_| {}),
                    ("adam, decay 0.1", 3, Adam, |study| study.recipe.weight_decay = 0.1),
                    ("adamw, decay 0.1", 3, AdamW, |study| study.recipe.weight_decay = 0.1),
                ],
            ),
            (
                "Warm-up and schedule: Adam",
                &high,
                vec![
                    ("adam", 3, Adam, |_| {}),
                    ("20 steps of warm-up", 3, Adam, |study| study.recipe.warmup_steps = 20),
                    ("cosine to 0", 3, Adam, |study| study.recipe.schedule = Schedule::Cosine),
                    ("both", 3, Adam, |Study { recipe, .. }| {
                        (recipe.warmup_steps, recipe.schedule) = (20, Schedule::Cosine);
                    }),
                ],
            ),
            (
                "Where the norm stands: AdamW without warm-up",
                &high[..2],
                vec![
                    ("6 blocks, pre-norm", 6, AdamW, |_| {}),
                    // it needs no final norm
                    ("6 blocks, post-norm", 6, AdamW, |Study { config, .. }| {
                        (config.norm_place, config.final_norm) = (NormPlace::Post, false);
                    }),
                ],
            ),
        ];
        let run = |name: &str, rate: &f64| format!("{name}, {rate}");
        let mut studies: Vec<(String, Study)> = vec![];
        for (_, rates, rows) in &sections {
            for ((name, blocks, method, change), rate) in
                rows.iter().flat_map(|row| rates.iter().map(move |rate| (row, rate)))
            {
                let mut study = Study::small(*blocks)?;
                (study.recipe.steps, study.recipe.optimizer, study.recipe.learning_rate) = (STEPS, *method, *rate);
                change(&mut study);
                // a row that stands in two tables is one run
                if studies.iter().all(|(known, _)| *known != run(name, rate)) {
                    studies.push((run(name, rate), study));
                }
            }
        }
        let losses: Vec<f64> = class.train(&text, &studies)?.iter().map(|course| course.last(STEPS)).collect();
        let of = |name: &str, rate: f64| {
            losses[studies.iter().position(|(known, _)| *known == run(name, &rate)).expect("a run's name")]
        };
        let table = |(title, rates, rows): &(&str, &[f64], Vec<Row>)| {
            let headers: Vec<String> = rates.iter().map(f64::to_string).collect();
            let headers: Vec<&str> = iter::once("rate").chain(headers.iter().map(String::as_str)).collect();
            let cells = |(name, ..): &Row| {
                iter::once(name.to_string()).chain(rates.iter().map(|rate| cell(of(name, *rate)))).collect()
            };
            grid(title, &headers, rows.iter().map(cells).collect())
        };
        let views = sections.iter().map(table).collect();
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
                    (of("6 blocks, pre-norm", 1e-2), of("6 blocks, post-norm", 1e-2)),
                    0.2,
                )],
            ),
        ];
        Ok((views, claims))
    },
};

//! Stable training: gradient clipping, optimizers, warm-up and schedule, pre-norm against post-norm. One thing is
//! changed at a time; data, seed and number of steps are the same. Read `regularisation` next.

use super::Topic;
use super::training::{Study, Text, cell};
use limpid_core::config::NormPlace;
use limpid_core::optimizer::Method;
use limpid_tokenizer::TokenizerKind;
use limpid_train::Schedule;
use std::iter;

/// Updates of a run.
const STEPS: u64 = 120;

/// A row of a table: its name, the number of blocks, the optimizer, and what else is changed.
type Row = (&'static str, usize, Method, fn(&mut Study));

/// What keeps training stable.
pub(super) const TOPIC: Topic = Topic {
    name: "stability",
    title: "What lets a model learn at a large rate?",
    about: "Trains a model of 3 blocks, d_model 32, at several learning rates with and without clipping, with each \
            optimizer, with and without warm-up and schedule, and one of 6 blocks in pre-norm and post-norm. The \
            numbers are mean losses of the last 20 of 120 steps; \"broke\" is a loss or gradient that is not finite. \
            The frequencies of single characters give a loss of 3.04: such a model has not learned to look back.",
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
        for (title, rates, rows) in &sections {
            let headers = iter::once("rate".to_string()).chain(rates.iter().map(f64::to_string));
            let cells = |(name, ..): &Row| {
                iter::once(name.to_string()).chain(rates.iter().map(|rate| cell(of(name, *rate)))).collect()
            };
            class.table(*title, headers, rows.iter().map(cells));
        }
        let best = |name: &str| high.map(|rate| of(name, rate)).into_iter().fold(f64::INFINITY, f64::min);
        let later = |rate| of("cosine to 0", rate) - of("adam", rate);
        class.claim("Clipping lets a model learn at a rate of 1; without it training breaks, or ends far behind");
        class.at_most("loss at 1, norm at most 0.25", of("gradient's norm at most 0.25", 1.0), 2.7);
        class.at_least("not clipped less that", of("not clipped", 1.0) - of("gradient's norm at most 0.25", 1.0), 0.3);
        class.claim("At a small rate Adam is far ahead of SGD, at ten times that rate SGD is ahead of Adam");
        class.at_most("loss at 0.003, adam less sgd", of("adam", 3e-3) - of("sgd", 3e-3), -0.2);
        class.at_most("loss at 0.03, sgd less adam", of("sgd", 3e-2) - of("adam", 3e-2), -0.01);
        class.claim("Muon is ahead of both, each at the best of these rates");
        class.at_most("least loss, muon less the others", best("muon") - best("sgd").min(best("adam")), -0.03);
        class.claim(
            "In Adam's gradient a decay of 0.1 is far too strong; apart from the gradient, as in AdamW, the same \
             number is much weaker and costs nothing",
        );
        class.at_least("loss at 0.003, adam with decay less adam", of("adam, decay 0.1", 3e-3) - of("adam", 3e-3), 0.1);
        class.at_most("adamw with decay less adam", of("adamw, decay 0.1", 3e-3) - of("adam", 3e-3), 0.02);
        class.claim("A rate that is too large for the first steps is not for later ones: a warm-up helps");
        class.at_most(
            "loss at 0.03 with warm-up less without",
            of("20 steps of warm-up", 3e-2) - of("adam", 3e-2),
            -0.01,
        );
        class.claim("In so few steps a cosine alone gains hardly anything, and costs where the rate is small");
        class.at_least("loss at 0.003, cosine less constant", later(3e-3), 0.02);
        class.at_least("at 0.01", later(1e-2), -0.1);
        class.at_least("at 0.03", later(3e-2), -0.1);
        class.claim("At a rate of 0.01 six blocks in pre-norm still learn, and post-norm is behind");
        class.at_most("loss at 0.01, pre-norm", of("6 blocks, pre-norm", 1e-2), 2.8);
        class.at_most("less post-norm", of("6 blocks, pre-norm", 1e-2) - of("6 blocks, post-norm", 1e-2), -0.01);
        Ok(())
    },
};

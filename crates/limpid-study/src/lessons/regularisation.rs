//! Overfitting and its remedies: a model that is large for its text, with dropout, weight decay, label smoothing, an
//! average of the weights, and early stopping.

use super::Topic;
use super::training::{Course, Study, Text, cell};
use limpid_core::config::{Config, Dropout};
use limpid_tokenizer::TokenizerKind;
use limpid_train::Recipe;

/// Bytes to learn from: some five stories.
const BYTES: usize = 2_000;

/// Remedies against overfitting.
pub(super) const TOPIC: Topic = Topic {
    name: "regularisation",
    title: "What keeps a model from learning its text by heart?",
    about: "Trains a model of 4 blocks, d_model 48, on 2,000 characters, which it reads again and again, with one \
            remedy at a time. Losses are measured with dropout and smoothing off; the gap between the text that it \
            learns and another is overfitting.",
    teach: |class| {
        let text = Text::new(BYTES, TokenizerKind::Char)?;
        let small = Study::small(4)?;
        let config = Config { d_model: 48, d_ff: 192, ..small.config.clone() };
        let recipe = Recipe { steps: 250, context: 64, warmup_steps: 20, clip: 1.0, ..small.recipe };
        let rows = [
            ("nothing", 0.0, recipe),
            ("dropout 0.3", 0.3, recipe),
            ("weight decay 0.1", 0.0, Recipe { weight_decay: 0.1, ..recipe }),
            ("weight decay 1", 0.0, Recipe { weight_decay: 1.0, ..recipe }),
            ("label smoothing 0.1", 0.0, Recipe { label_smoothing: 0.1, ..recipe }),
            ("average of weights, 0.98", 0.0, Recipe { ema: 0.98, ..recipe }),
        ];
        let studies = rows.map(|(name, dropout, recipe)| {
            let config = Config { dropout: Dropout::everywhere(dropout), ..config.clone() };
            (name.to_string(), Study { config, recipe, eval_every: 25, ..small.clone() })
        });
        let courses = class.train(&text, &studies)?;
        let best = |course: &Course| {
            course.validation.iter().copied().min_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((0, f64::INFINITY))
        };
        let cells = |((name, _), course): (&(String, Study), &Course)| {
            let (at, least) = best(course);
            let losses = [course.train, course.end(), course.end() - course.train, least];
            [name.clone()].into_iter().chain(losses.map(cell)).chain([at.to_string()]).collect()
        };
        let headers = ["", "training", "validation", "gap", "best validation", "at step"];
        class.table("Losses after 250 steps", headers, studies.iter().zip(&courses).map(cells));
        let [nothing, dropout, little, decay, smoothing, average] = &courses[..] else {
            unreachable!("a course a row")
        };
        let gap = |course: &Course| course.end() - course.train;
        let mut narrows = |text: &str, course| {
            class.claim(text);
            class.at_most("gap / gap with nothing", gap(course) / gap(nothing), 0.8);
            class.at_most("validation loss less that with nothing", course.end() - nothing.end(), -0.05);
        };
        let lowest = courses.iter().map(|course| best(course).1);
        let (least, most) =
            lowest.fold((f64::INFINITY, 0.0f64), |(least, most), loss| (least.min(loss), most.max(loss)));
        narrows("Dropout narrows the gap", dropout);
        narrows("Weight decay narrows the gap, if it is ten times the usual 0.1", decay);
        class.claim("The usual 0.1 does not in so few steps");
        class.at_least("gap / gap with nothing", gap(little) / gap(nothing), 0.85);
        class.claim("Label smoothing and an average of the weights help");
        class.at_most("validation loss less that with nothing, smoothing", smoothing.end() - nothing.end(), -0.005);
        class.at_most("average", average.end() - nothing.end(), -0.05);
        class.claim("Stopping early helps as much: without a remedy the validation loss rises again");
        class.at_least("last validation loss less the best", nothing.end() - best(nothing).1, 0.1);
        class.claim("At their best steps all are about the same");
        class.at_most("greatest less least of the best losses", most - least, 0.15);
        Ok(())
    },
};

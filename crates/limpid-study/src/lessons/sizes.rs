//! What three sizes of a model are worth: the number of heads, the width of the feed-forward network, the number of
//! blocks.

use super::training::{Course, Study, Text, cell};
use super::{Class, Topic};
use limpid::Error;
use limpid_core::config::Config;
use limpid_tokenizer::TokenizerKind;

/// Are more heads better?
pub(super) const HEADS: Topic = Topic {
    name: "heads",
    title: "Are more heads better?",
    about: "Trains a model of two blocks, d_model 32, with 1 to 16 heads, which have 32 to 2 features each: as many \
            parameters, divided otherwise. Only the number of heads differs.",
    teach: |class| {
        let sizes = [1, 2, 4, 8, 16];
        let losses = losses(class, "heads", &sizes, |config, n| config.n_head = n)?;
        let change = losses.iter().map(|loss| (loss - losses[0]).abs()).fold(0.0, f64::max);
        class.claim(
            "At a fixed width, in a small model and a short training, the number of heads makes no difference above \
             0.05",
        );
        class.at_most("greatest distance from the loss with 1", change, 0.05);
        Ok(())
    },
};

/// What a wider feed-forward network is worth.
pub(super) const WIDTH: Topic = Topic {
    name: "feed-forward-width",
    title: "How wide should the feed-forward network be?",
    about: "Trains a model of two blocks, d_model 32, whose feed-forward networks are 8 to 512 wide (4 d_model is \
            128). Only that width differs.",
    teach: |class| {
        let losses = losses(class, "d_ff", &[8, 32, 128, 512], |config, n| config.d_ff = n)?;
        let gains: Vec<f64> = losses.windows(2).map(|pair| pair[0] - pair[1]).collect();
        class.claim("Wider is better");
        class.at_least("what 8 to 32 gains", gains[0], 0.02);
        class.at_least("32 to 512", losses[1] - losses[3], 0.01);
        class.at_least("8 to 512", losses[0] - losses[3], 0.08);
        class.claim("The last widening gains less than the two before it on average");
        class.at_most(
            "what 128 to 512 gains less half of what 8 to 128 gains",
            gains[2] - (losses[0] - losses[2]) / 2.0,
            -0.015,
        );
        Ok(())
    },
};

/// What more blocks are worth.
pub(super) const DEPTH: Topic = Topic {
    name: "depth-of-a-model",
    title: "How many blocks should a model have?",
    about: "Trains a model with d_model 32 and 1, 2, 4 and 8 blocks. Only the number of blocks differs.",
    teach: |class| {
        let losses = losses(class, "blocks", &[1, 2, 4, 8], |config, n| config.n_layer = n)?;
        class.claim("Four blocks learn more than one");
        class.at_most("loss of 4 blocks less that of 1", losses[2] - losses[0], -0.02);
        class.claim("Four blocks more gain less than the three before them");
        class.at_most(
            "what 4 to 8 gains less what 1 to 4 gains",
            losses[2] - losses[3] - (losses[0] - losses[2]),
            -0.005,
        );
        Ok(())
    },
};

/// The validation losses of models that differ in one size, of which it shows a table.
fn losses(class: &mut Class, what: &str, sizes: &[usize], set: fn(&mut Config, usize)) -> Result<Vec<f64>, Error> {
    let text = Text::new(200_000, TokenizerKind::Char)?;
    let studies: Vec<(String, Study)> = sizes
        .iter()
        .map(|size| {
            let mut study = Study::judged()?;
            set(&mut study.config, *size);
            Ok((format!("{what} {size}"), study))
        })
        .collect::<Result<_, Error>>()?;
    let courses = class.train(&text, &studies)?;
    let row = |(size, course): (&usize, &Course)| {
        row![size, cell(course.last(course.losses.len() as u64)), cell(course.end())]
    };
    let title = format!("Losses after {} steps, stories as characters", studies[0].1.recipe.steps);
    class.table(title, [what, "training loss", "validation loss"], sizes.iter().zip(&courses).map(row));
    Ok(courses.iter().map(Course::end).collect())
}

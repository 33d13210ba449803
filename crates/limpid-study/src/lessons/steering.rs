//! Steering: a direction of the residual stream, the difference of two prompts, decides whether a story is about a girl
//! or a boy.

use super::training::ToyModel;
use super::{Class, Topic};
use limpid::generate::{Options, Sampler};
use limpid::trace::Keep;
use limpid::trace::interventions::Direction;
use limpid::{Error, Interventions, Lm, Step};
use limpid_core::config::{Config, Positions};
use limpid_data::stories;
use limpid_train::Recipe;

const STEPS: u64 = 800;
/// Bytes to learn from.
const BYTES: usize = 1_000_000;
/// Stories for each strength.
const STORIES: u64 = 8;
const PROMPT: &str = "Once there was a clever boy called Tom. One day,";
/// Girls and boys whose stories tell the direction.
const PAIRS: [[&str; 2]; 6] =
    [["Anna", "Tom"], ["Lily", "Ben"], ["Mia", "Max"], ["Lucy", "Sam"], ["Emma", "Jack"], ["Sue", "Leo"]];
const SITE: &str = "blocks.0.hook_resid_post";
const STRENGTHS: [f64; 6] = [-2.0, 0.0, 1.0, 2.0, 4.0, 8.0];

/// Steering.
pub(super) const TOPIC: Topic = Topic {
    name: "steering",
    title: "Can a direction of the residual stream make a story's hero a girl?",
    about: "Trains a model of 2 blocks on stories, as words. The direction is the residual stream after block 0 at \
            the end of \"Once there was a kind girl called Anna.\" less that of \"Once there was a kind boy called \
            Tom.\", on average over six pairs of names. It is added, times a strength, at every position. Measured \
            are the odds of \"she\" and \"her\" against \"he\" and \"his\" as the next word of 24 stories of boys, \
            and the loss, without the direction, of 8 stories that are written with it.",
    teach: |class| steering(class, STEPS),
};

/// The continuations of the prompt.
fn tales(lm: &Lm) -> Result<Vec<String>, Error> {
    let tale = |sample| {
        let sampler = Sampler { temperature: 0.8, ..Sampler::default() };
        let options = Options { max_tokens: 40, sampler, sample, stop: vec!["\n".into()], ..Options::default() };
        Ok(lm.generate(PROMPT, &options)?.text)
    };
    (0..STORIES).map(tale).collect()
}

/// Beginnings of stories of boys.
fn boys() -> impl Iterator<Item = String> {
    let traits = ["little", "kind", "brave", "quiet"];
    let names = ["Tom", "Ben", "Max", "Sam", "Jack", "Leo"];
    traits.into_iter().flat_map(move |kind| {
        names.into_iter().map(move |name| format!("Once there was a {kind} boy called {name}. One day,"))
    })
}

/// How much likelier the next word is of a girl than of a boy: the mean, over the beginnings, of the logarithm of the
/// odds, in nats; with the two probabilities, on average.
fn odds(lm: &Lm) -> Result<(f64, [f64; 2]), Error> {
    let (mut sum, mut shares, mut count) = (0.0, [0.0; 2], 0.0);
    for begun in boys() {
        let tokens = lm.encode(&begun)?;
        let probabilities = lm.trace_ids(&tokens, Keep::All)?.get("probs")?;
        let last = &probabilities.values[(tokens.len() - 1) * lm.config().vocab_size..];
        let tokenizer = lm.tokenizer()?;
        let share = |words: [&str; 3]| -> f64 {
            let ids = words.iter().filter_map(|word| tokenizer.token(word));
            ids.map(|id| f64::from(last[id as usize])).sum::<f64>().max(1e-9)
        };
        let of = [share(["she", "her", "hers"]), share(["he", "him", "his"])];
        sum += (of[0] / of[1]).ln();
        (shares, count) = ([shares[0] + of[0], shares[1] + of[1]], count + 1.0);
    }
    Ok((sum / count, shares.map(|share| share / count)))
}

fn steering(class: &mut Class, training: u64) -> Result<(), Error> {
    let toy = ToyModel::new("stories", 2, stories::corpus(class.seed, BYTES).0, "word")?;
    let config = Config { positions: Positions::Rotary, d_model: 64, d_ff: 256, ..toy.config };
    let recipe = Recipe { steps: training, batch_size: 16, context: 64, ..toy.recipe };
    let lm = class.train_toy(ToyModel { config, recipe, ..toy }, 0, |_, _| Ok(()))?;
    let mut found = vec![];
    for by in STRENGTHS {
        let step = |[girl, boy]: [&str; 2]| {
            let girl = format!("Once there was a kind girl called {girl}.");
            let boy = format!("Once there was a kind boy called {boy}.");
            Step::steer(SITE, Direction::Difference { difference: [girl, boy], pos: None })
                .by((by / PAIRS.len() as f64) as f32)
        };
        let steer = Interventions::new(PAIRS.map(step));
        // a strength of 0 changes nothing, which is an error
        let steered = if by == 0.0 { lm.without_interventions() } else { lm.intervene(&steer)? };
        let (odds, shares) = odds(&steered)?;
        let tales = tales(&steered)?;
        found.push(Told { odds, shares, loss: loss(&lm, &tales)?, first: tales[0].clone() });
    }
    let percent = |share: f64| format!("{:.0} %", 100.0 * share);
    let row = |(by, told): (f64, &Told)| {
        let [she, he] = told.shares.map(percent);
        row![by, she, he, format!("{:.2}", told.odds), format!("{:.2}", told.loss)]
    };
    let headers = ["strength", "she, her", "he, his", "log odds", "loss"];
    class.table(
        "The next word of stories of boys, and the loss of stories",
        headers,
        STRENGTHS.into_iter().zip(&found).map(row),
    );
    let first =
        |(by, told): (f64, &Told)| row![by, told.first.split_whitespace().take(12).collect::<Vec<_>>().join(" ")];
    class.table(
        format!("A story that goes on after \"{PROMPT}\""),
        ["strength", ""],
        STRENGTHS.into_iter().zip(&found).map(first),
    );
    let [less, plain, once, twice, _, most] = &found[..] else { unreachable!("a row for each strength") };
    class.claim("Without the direction the next word is of a boy");
    class.at_most("log odds at 0", plain.odds, -0.5);
    class.claim("The more of the direction, the likelier is a girl");
    for (what, gains) in [
        ("log odds at 0 less at -2", plain.odds - less.odds),
        ("at 1 less at 0", once.odds - plain.odds),
        ("at 2 less at 1", twice.odds - once.odds),
    ] {
        class.at_least(what, gains, 0.2);
    }
    class.claim("Too much of it, and the model no longer writes stories");
    class.at_least("loss at 8 less loss at 0", most.loss - plain.loss, 2.0);
    Ok(())
}

/// What steering by a strength came to.
struct Told {
    odds: f64,
    shares: [f64; 2],
    /// The loss, in nats per token, of the steered stories to the model without the direction.
    loss: f64,
    first: String,
}

fn loss(lm: &Lm, tales: &[String]) -> Result<f64, Error> {
    let mut losses = vec![];
    for tale in tales {
        losses.extend(lm.score(PROMPT, tale)?.log_probs);
    }
    Ok(-losses.iter().sum::<f64>() / losses.len().max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::super::tests::claims;
    use super::*;

    #[test]
    fn without_training_nobody_is_steered() {
        let found = claims(|class| steering(class, 2));
        assert!(found.iter().any(|(text, holds)| text.contains("The more of the direction") && !holds), "{found:?}");
    }
}

//! Steering: a direction of the residual stream, the difference of two prompts, decides whether a story is about a girl or a boy.

use super::training::ToyModel;
use super::{Class, Topic};
use limpid::generate::{Options, Sampler};
use limpid::{Error, Interventions, Lm};
use limpid_core::config::{Config, Positions};
use limpid_data::stories;
use limpid_train::Recipe;
use serde_json::json;

const STEPS: u64 = 600;
/// Bytes to learn from.
const BYTES: usize = 1_000_000;
/// Stories for each strength.
const STORIES: u64 = 20;
const PROMPT: &str = "Once there was a clever boy called Tom. One day,";
const PAIR: [&str; 2] = ["Once there was a kind girl called Anna. She", "Once there was a kind boy called Tom. He"];
const SITE: &str = "blocks.0.hook_resid_post";
const STRENGTHS: [f64; 6] = [-2.0, 0.0, 1.0, 2.0, 4.0, 8.0];

/// Steering.
pub(super) const TOPIC: Topic = Topic {
    name: "steering",
    title: "Can a direction of the residual stream make a story's hero a girl?",
    about: "Trains a model of 2 blocks on stories, as words. The direction is the residual stream after block 0 at the end of \"Once there was a \
            kind girl called Anna. She\" less that of \"Once there was a kind boy called Tom. He\". It is added, times a strength, at every \
            position while the model goes on with a story of a boy, 20 times. A story is of the one whose pronouns it has more of. The \
            loss of the stories is measured without the direction.",
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

/// How many words of a text are among these.
fn count(text: &str, words: [&str; 4]) -> usize {
    text.split(|c: char| !c.is_alphabetic()).filter(|word| words.contains(&word.to_lowercase().as_str())).count()
}

fn steering(class: &mut Class, training: u64) -> Result<(), Error> {
    let toy = ToyModel::new("stories", 2, stories::corpus(class.seed, BYTES).0, "word")?;
    let config = Config { positions: Positions::Rotary, d_model: 64, d_ff: 256, ..toy.config };
    let recipe = Recipe { steps: training, batch_size: 16, context: 64, ..toy.recipe };
    let lm = class.train_toy(ToyModel { config, recipe, ..toy }, 0, |_, _| Ok(()))?;
    let mut found = vec![];
    for by in STRENGTHS {
        let steer = json!([{ "steer": SITE, "by": by, "add": { "difference": PAIR } }]);
        // a strength of 0 changes nothing, which is an error
        let steered = if by == 0.0 { lm.without_interventions() } else { lm.intervene(&Interventions::new(steer)?)? };
        found.push(told(&lm, &tales(&steered)?)?);
    }
    let percent = |n: usize| format!("{:.0} %", 100.0 * n as f64 / STORIES as f64);
    let row = |(by, told): (f64, &Told)| row![by, percent(told.she), percent(told.he), format!("{:.2}", told.loss)];
    let headers = ["strength", "she", "he", "loss"];
    class.table(format!("Stories that go on after \"{PROMPT}\""), headers, STRENGTHS.into_iter().zip(&found).map(row));
    let first =
        |(by, told): (f64, &Told)| row![by, told.first.split_whitespace().take(12).collect::<Vec<_>>().join(" ")];
    class.table("The first of them", ["strength", ""], STRENGTHS.into_iter().zip(&found).map(first));
    let [_, plain, _, steered, _, most] = &found[..] else { unreachable!("a row for each strength") };
    let share = |told: &Told| told.she as f64 / (told.she + told.he).max(1) as f64;
    class.claim("Without the direction the stories are of a boy");
    class.at_most("share of she among those that say", share(plain), 0.4);
    class.claim("With twice the direction most are of a girl");
    class.at_least("share of she", share(steered), 0.65);
    class.at_least("less that without", share(steered) - share(plain), 0.3);
    class.claim("Too much of it, and the model no longer writes stories");
    class.at_least("loss at 8 less loss at 0", most.loss - plain.loss, 3.0);
    Ok(())
}

/// What stories tell.
struct Told {
    she: usize,
    he: usize,
    /// The model's own loss on them, in nats per token.
    loss: f64,
    first: String,
}

fn told(lm: &Lm, tales: &[String]) -> Result<Told, Error> {
    let (mut she, mut he, mut losses) = (0, 0, vec![]);
    for tale in tales {
        let [girl, boy] =
            [["she", "her", "hers", "herself"], ["he", "him", "his", "himself"]].map(|words| count(tale, words));
        she += usize::from(girl > boy);
        he += usize::from(boy > girl);
        losses.extend(lm.score(PROMPT, tale)?.log_probs);
    }
    let loss = -losses.iter().sum::<f64>() / losses.len().max(1) as f64;
    Ok(Told { she, he, loss, first: tales[0].clone() })
}

#[cfg(test)]
mod tests {
    use super::super::tests::claims;
    use super::*;

    #[test]
    fn without_training_nobody_is_steered() {
        let found = claims(|class| steering(class, 2));
        assert!(found.iter().any(|(text, holds)| text.contains("twice the direction") && !holds), "{found:?}");
    }
}

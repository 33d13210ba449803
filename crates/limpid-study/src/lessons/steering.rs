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
const STRENGTHS: [f64; 7] = [0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0];

/// Steering.
pub(super) const TOPIC: Topic = Topic {
    name: "steering",
    title: "Can a direction in the residual stream change what a story is about?",
    about: "",
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
fn count(text: &str, words: [&str; 5]) -> usize {
    text.split(|c: char| !c.is_alphabetic()).filter(|word| words.contains(&word.to_lowercase().as_str())).count()
}

fn steering(class: &mut Class, training: u64) -> Result<(), Error> {
    let toy = ToyModel::new("stories", 2, stories::corpus(class.seed, BYTES).0, "word")?;
    let config = Config { positions: Positions::Rotary, d_model: 64, d_ff: 256, ..toy.config };
    let recipe = Recipe { steps: training, batch_size: 16, context: 64, ..toy.recipe };
    let lm = class.train_toy(ToyModel { config, recipe, ..toy }, 0, |_, _| Ok(()))?;
    let mut rows = vec![];
    for by in STRENGTHS {
        let steer = json!([{ "steer": SITE, "by": by, "add": { "difference": PAIR } }]);
        let steered = if by == 0.0 { lm.without_interventions() } else { lm.intervene(&Interventions::new(steer)?)? };
        let tales = tales(&steered)?;
        let (mut she, mut he, mut loss, mut tokens) = (0, 0, 0.0, 0);
        for tale in &tales {
            let (girl, boy) = (count(tale, ["she", "her", "hers", "herself", "girl"]), count(tale, ["he", "him", "his", "himself", "boy"]));
            she += usize::from(girl > boy);
            he += usize::from(boy > girl);
            let s = lm.score(PROMPT, tale)?;
            loss -= s.total;
            tokens += s.log_probs.len();
        }
        rows.push(row![by, she, he, format!("{:.2}", loss / tokens as f64), tales[0].replace('\n', "/")]);
    }
    class.table("Stories", ["strength", "she", "he", "loss", "first"], rows);
    class.claim("x");
    class.at_least("share", 1.0, 0.9);
    Ok(())
}

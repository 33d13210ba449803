//! Induction heads: found in a model that learned to repeat random letters, silenced, patched back, and watched while they form.
//!
//! After `... a b ... a` an induction head looks at the `b` that followed the earlier `a`, and copies it. It can find that `b` because a
//! previous-token head in the block before has written there which token came before (Olsson et al. 2022).

use super::training::{ToyModel, cell};
use super::{Class, Topic};
use limpid::{Error, Interventions, Lm};
use limpid_base::random::{below, bits, permuted, site};
use limpid_core::config::{Config, Positions};
use limpid_train::{Recipe, WindowOrder};
use limpid_trace::Labelled;
use limpid_trace::heads::{HeadScores, scores_of_weights};
use limpid_trace::sweep::{SweepBy, SweepMetric, SweepQuestion, SweepSite};
use serde_json::{Value, json};

/// Steps of training, sequences of a step, letters of a sequence.
const STEPS: u64 = 500;
const BATCH: usize = 32;
const LENGTH: usize = 40;
/// Letters that there are, and the period of the sequences that are looked at: half of them.
const LETTERS: u64 = 26;
const PERIOD: usize = LETTERS as usize / 2;
/// Sequences that are looked at.
const LOOKS: u64 = 16;
/// Steps between two looks at a model in training.
const EVERY: u64 = 20;

/// Induction heads in a trained model.
pub(super) const TOPIC: Topic = Topic {
    name: "induction",
    title: "Which heads repeat what was said before, and is it they alone?",
    about: "Trains a model of 2 blocks, 4 heads each, on random letters that repeat with a period of 6 to 24. Then it looks at sequences of 24 \
            different letters, twice. The induction score of a head is the weight that a letter of the second half gives to the letter \
            after its first occurrence. The strongest two heads are silenced, put back, and moved into a run without a first half to copy. \
            At last one letter of the first half is replaced, and a sweep asks which heads restore the prediction, and whether gradients \
            (attribution patching) say so too.",
    teach: |class| induction(class, STEPS),
};

/// Induction heads in a model that is trained.
pub(super) const FORMATION: Topic = Topic {
    name: "induction-forms",
    title: "When do induction heads form, and does the loss fall then?",
    about: "Trains the model of the lesson `induction` and looks at it every 20 steps: the loss on both halves of the repeated letters, the \
            greatest share of attention that a head of the first block pays to the previous token, and the greatest induction score in the \
            second block.",
    teach: |class| formation(class, STEPS),
};

fn toy(class: &Class, steps: u64) -> Result<ToyModel, Error> {
    let toy = ToyModel::new("letters that repeat", 2, corpus(class.seed, steps * BATCH as u64), "char")?;
    let config = Config { d_model: 64, d_ff: 64, positions: Positions::Rotary, tied_head: false, ..toy.config };
    let recipe =
        Recipe { steps, batch_size: BATCH, context: LENGTH, windows: WindowOrder::Shuffled, ..toy.recipe };
    Ok(ToyModel { config, recipe, ..toy })
}

fn letter(n: u64) -> char {
    char::from(b'a' + n as u8)
}

/// Sequences of random letters, each repeated with a period of its own.
fn corpus(seed: u64, sequences: u64) -> String {
    let sequence = |n: u64| {
        let period = 6 + below(seed, site("period"), n, 15);
        (0..LENGTH as u64).map(move |i| letter(below(seed, site("letter"), n * LENGTH as u64 + i % period, LETTERS)))
    };
    (0..sequences).flat_map(sequence).collect()
}

/// A sequence to look at.
struct Repeat {
    /// Different letters, twice.
    tokens: Vec<u32>,
    /// The same with other letters in the first half.
    unrelated: Vec<u32>,
}

fn repeats(lm: &Lm, seed: u64, period: usize) -> Result<Vec<Repeat>, Error> {
    let repeat = |n: u64| {
        let draw = bits(seed, site("repeat"), n);
        let letters = |from: usize| -> String {
            (from..from + period).map(|i| letter(permuted(draw, site("letter"), i as u64, LETTERS))).collect()
        };
        let (once, other) = (lm.encode(&letters(0))?, lm.encode(&letters(period))?);
        Ok(Repeat { tokens: once.repeat(2), unrelated: [other, once].concat() })
    };
    (0..LOOKS).map(repeat).collect()
}

/// The mean loss of the letters of either half.
type Halves = [f64; 2];

/// Of a run. The first letter of the second half belongs to neither: nothing says that it comes.
fn halves(lm: &Lm, tokens: &[u32]) -> Result<Halves, Error> {
    let losses = lm.trace_ids(tokens, |trace| trace.get("losses"))?.values;
    let (half, mean) =
        (tokens.len() / 2, |some: &[f32]| some.iter().map(|v| f64::from(*v)).sum::<f64>() / some.len() as f64);
    Ok([mean(&losses[..half - 1]), mean(&losses[half..tokens.len() - 1])])
}

/// The mean over the sequences.
fn mean_halves(repeats: &[Repeat], run: impl Fn(&Repeat) -> Result<Halves, Error>) -> Result<Halves, Error> {
    let mut sum = [0.0; 2];
    for repeat in repeats {
        let halves = run(repeat)?;
        sum = [0, 1].map(|half| sum[half] + halves[half] / repeats.len() as f64);
    }
    Ok(sum)
}

/// A head, and what was measured of it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Head {
    layer: usize,
    head: usize,
    previous: f64,
    induction: f64,
}

impl Head {
    fn name(&self) -> String {
        format!("{}.{}", self.layer, self.head)
    }
}

/// All heads, with the means of their scores.
fn heads(lm: &Lm, repeats: &[Repeat]) -> Result<Vec<Head>, Error> {
    let mut found = vec![];
    for layer in 0..lm.config().n_layer {
        let of_layer = |repeat: &Repeat| {
            let pattern = lm.trace_ids(&repeat.tokens, |trace| trace.get(&format!("blocks.{layer}.attn.hook_pattern")))?;
            let n = repeat.tokens.len();
            let scores = |weights: &[f32]| scores_of_weights(weights, &repeat.tokens, |t| 0..t + 1);
            Ok(pattern.values.chunks_exact(n * n).map(scores).collect::<Vec<_>>())
        };
        let scores = repeats.iter().map(of_layer).collect::<Result<Vec<_>, Error>>()?;
        let mean = |head: usize, score: fn(&HeadScores) -> Option<f64>| {
            scores.iter().map(|of| score(&of[head]).unwrap_or(0.0)).sum::<f64>() / scores.len() as f64
        };
        found.extend((0..lm.config().n_head).map(|head| {
            let [previous, induction] = [mean(head, |s| s.previous), mean(head, |s| s.induction)];
            Head { layer, head, previous, induction }
        }));
    }
    Ok(found)
}

/// A step for each head: `ablate` or `patch` of what it computes, with further fields.
fn steps(kind: &str, heads: &[Head], fields: &Value) -> Result<Interventions, Error> {
    let step = |head: &Head| {
        let mut step = fields.clone();
        step[kind] = format!("blocks.{}.attn.hook_z", head.layer).into();
        step["head"] = head.head.into();
        step
    };
    Interventions::new(heads.iter().map(step).collect())
}

fn induction(class: &mut Class, training: u64) -> Result<(), Error> {
    let lm = class.train_toy(toy(class, training)?, 0, |_, _| Ok(()))?;
    let repeats = repeats(&lm, class.seed, PERIOD)?;
    let mut heads = heads(&lm, &repeats)?;
    let row = |head: &Head| row![head.name(), format!("{:.2}", head.previous), format!("{:.2}", head.induction)];
    class.table("Heads (1.0 is head 0 of block 1)", ["head", "previous token", "induction"], heads.iter().map(row));
    heads.sort_by(|a, b| b.induction.total_cmp(&a.induction));
    let (found, others) = (&heads[..2], &heads[2..4]);
    let names = |heads: &[Head]| format!("{} and {}", heads[0].name(), heads[1].name());

    let patch = |repeat: &Repeat, of: &[Head]| steps("patch", of, &json!({ "from": { "tokens": repeat.tokens } }));
    let [silent, control] =
        [found, others].map(|heads| steps("ablate", heads, &json!({})).and_then(|steps| lm.intervene(&steps)));
    let (silent, control) = (silent?, control?);
    let trained = mean_halves(&repeats, |r| halves(&lm, &r.tokens))?;
    let silenced = mean_halves(&repeats, |r| halves(&silent, &r.tokens))?;
    let controlled = mean_halves(&repeats, |r| halves(&control, &r.tokens))?;
    let unrelated = mean_halves(&repeats, |r| halves(&lm, &r.unrelated))?;
    let moved = mean_halves(&repeats, |r| halves(&lm.intervene(&patch(r, found)?)?, &r.unrelated))?;
    let rows = [
        ("as trained".to_string(), trained),
        (format!("{} silenced", names(found)), silenced),
        (format!("{} silenced instead", names(others)), controlled),
        ("other letters in the first half".into(), unrelated),
        (format!("the same, {} patched from the repeated letters", names(found)), moved),
    ];
    let row = |(what, [first, second]): &(String, Halves)| row![what, cell(*first), cell(*second)];
    class.table("Losses", ["", "first half", "second half"], rows.iter().map(row));
    let (truth, estimate) = sweeps(class, &lm)?;

    class.claim("Training makes induction heads");
    class.at_least("best induction score", found[0].induction, 0.6);
    class.claim("The model repeats what it has seen, and cannot know what it has not");
    class.at_most("loss of the second half", trained[1], 1.0);
    class.at_least("first half", trained[0], 3.5);
    class.claim("Without the two strongest induction heads it cannot repeat");
    class.at_least("loss silenced less loss as trained", silenced[1] - trained[1], 1.5);
    class.claim("Without two other heads it still can");
    class.at_most("loss silenced less loss as trained", controlled[1] - trained[1], 0.5);
    class.claim("What these heads wrote is enough: in a run with nothing to copy, it makes the same predictions");
    class.at_least("part of the loss that it takes away", (unrelated[1] - moved[1]) / (unrelated[1] - trained[1]), 0.6);
    class.claim("The five heads and positions that attribution patching names first contain the true first three");
    class.between("of the three", (0..3).filter(|n| estimate[..5].contains(&truth[*n])).count() as f64, 3.0, 3.0);
    Ok(())
}

/// Sweeps of heads and positions: a repeated sequence with one letter of its first half replaced, patched from the intact one. The
/// places, the one that restores most first: as it is, and as attribution patching says.
fn sweeps(class: &mut Class, lm: &Lm) -> Result<(Vec<usize>, Vec<usize>), Error> {
    const ONCE: usize = 8;
    let repeats = repeats(lm, class.seed, ONCE)?;
    let (mut truth, mut estimate): (Vec<f64>, Vec<f64>) = (vec![], vec![]);
    let add = |sum: &mut Vec<f64>, of: &Labelled| {
        sum.resize(of.values.len(), 0.0);
        sum.iter_mut().zip(&of.values).for_each(|(sum, v)| *sum += f64::from(*v) / LOOKS as f64);
    };
    let last = 2 * ONCE - 3; // the letter whose follower is asked for
    for repeat in &repeats {
        let clean = repeat.tokens[..=last].to_vec();
        let mut corrupt = clean.clone();
        corrupt[last - ONCE] = repeat.unrelated[0];
        let question = SweepQuestion {
            site: SweepSite::Z,
            by: SweepBy::Position,
            metric: SweepMetric::LogProbability { answer: repeat.tokens[last + 1] },
            position: -1,
            confirmed: false,
            clean,
            corrupt,
        };
        add(&mut truth, &lm.sweep(&question, &mut |_| true)?.recovered);
        add(&mut estimate, &lm.sweep_estimate(&question)?.recovered);
    }
    let heads = lm.config().n_head;
    let order = |of: &[f64]| {
        let mut places: Vec<usize> = (0..of.len()).collect();
        places.sort_by(|a, b| of[*b].total_cmp(&of[*a]));
        places
    };
    let (first, guessed) = (order(&truth), order(&estimate));
    let shown = |n: usize| {
        let (layer, at, head) = (n / heads / (last + 1), n / heads % (last + 1), n % heads);
        let place = guessed.iter().position(|other| *other == n).map_or(0, |place| place + 1);
        row![format!("{layer}.{head}"), at, format!("{:.2}", truth[n]), format!("{:.2}", estimate[n]), place]
    };
    class.table(
        format!("One letter of the first half (position {}) replaced; asked for what follows position {last}", last - ONCE),
        ["head", "position", "restores", "estimate", "its place there"],
        first.iter().take(5).map(|n| shown(*n)),
    );
    Ok((first, guessed))
}

fn formation(class: &mut Class, training: u64) -> Result<(), Error> {
    let (toy, seed) = (toy(class, training)?, class.seed);
    let mut looks = vec![];
    class.train_toy(toy, EVERY, |step, lm| {
        let repeats = repeats(lm, seed, PERIOD)?;
        let losses = mean_halves(&repeats, |r| halves(lm, &r.tokens))?;
        let heads = heads(lm, &repeats)?;
        let best = |layer: usize, score: fn(&Head) -> f64| {
            heads.iter().filter(|head| head.layer == layer).map(score).fold(0.0, f64::max)
        };
        looks.push((step, losses, best(0, |head| head.previous), best(1, |head| head.induction)));
        Ok(())
    })?;
    let row = |(step, [first, second], previous, induction): &(u64, Halves, f64, f64)| {
        row![step, cell(*first), cell(*second), format!("{previous:.2}"), format!("{induction:.2}")]
    };
    let headers = ["step", "first half", "second half", "previous token", "induction"];
    class.table("While it learns", headers, looks.iter().map(row));
    Ok(())
}

//! Subject and verb: how a model carries the number of the subject past other nouns to the verb.

use super::training::ToyModel;
use super::{Class, Topic};
use limpid::{Error, Interventions, Lm};
use limpid_base::random::{below, bits, site};
use limpid_core::config::{Config, Positions};
use limpid_trace::Labelled;
use limpid_trace::sweep::{SweepBy, SweepMetric, SweepQuestion, SweepSite};
use limpid_trace::view::{HeatScale, Matrix, View};
use limpid_train::Recipe;
use serde_json::json;

/// Steps of training, and sentences to learn from.
const STEPS: u64 = 400;
const SENTENCES: u64 = 20_000;
/// Sentences that are looked at.
const LOOKS: u64 = 32;

const NOUNS: [&str; 12] =
    ["dog", "cat", "bird", "horse", "boy", "girl", "farmer", "teacher", "doctor", "friend", "king", "cow"];
const VERBS: [&str; 8] = ["run", "sleep", "sing", "jump", "smile", "wait", "swim", "laugh"];
const PREPOSITIONS: [&str; 6] = ["near", "behind", "beside", "above", "under", "before"];
const ADJECTIVES: [&str; 6] = ["old", "young", "big", "small", "red", "quiet"];

/// Subject and verb.
pub(super) const TOPIC: Topic = Topic {
    name: "subject-verb",
    title: "How does a verb know the number of a subject that stands far before it?",
    about: "Trains a model of 3 blocks on sentences such as \"the dog near the old cats runs\", whose verb agrees with the first noun. Then it \
            looks at sentences whose second noun has the other number. A sweep replaces the residual stream, one block and position at a \
            time, by that of the sentence whose subject has the other number: where that turns the verb round, the number is.",
    teach: |class| agreement(class, STEPS),
};

/// One choice after the other, decided by a number.
struct Draws(u64, u64);

impl Draws {
    fn below(&mut self, n: u64) -> u64 {
        self.1 += 1;
        below(self.0, site("sentence"), self.1, n)
    }
    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len() as u64) as usize]
    }
    fn noun(&mut self) -> String {
        let adjective = if self.below(3) == 0 { format!("{} ", self.one(&ADJECTIVES)) } else { String::new() };
        let noun = self.one(&NOUNS);
        format!("the {adjective}{noun}{}", if self.below(2) == 0 { "" } else { "s" })
    }
}

fn corpus(seed: u64) -> String {
    let sentence = |n: u64| {
        let mut draws = Draws(bits(seed, site("corpus"), n), 0);
        let subject = draws.noun();
        let plural = subject.ends_with('s');
        let beside = [0, 1, 1, 2][draws.below(4) as usize];
        let beside: String = (0..beside).map(|_| format!(" {} {}", draws.one(&PREPOSITIONS), draws.noun())).collect();
        format!("{subject}{beside} {}{} .\n", draws.one(&VERBS), if plural { "" } else { "s" })
    };
    (0..SENTENCES).map(sentence).collect()
}

/// A sentence up to its verb, and the same with a subject of the other number.
struct Pair {
    text: String,
    tokens: Vec<u32>,
    other: Vec<u32>,
    plural: bool,
}

fn pairs(lm: &Lm, seed: u64) -> Result<Vec<Pair>, Error> {
    let pair = |n: u64| {
        let mut draws = Draws(bits(seed, site("looked at"), n), 0);
        let (subject, preposition, beside) = (draws.one(&NOUNS), draws.one(&PREPOSITIONS), draws.one(&NOUNS));
        let plural = n % 2 == 1;
        let number = |plural: bool| if plural { "s" } else { "" };
        let [text, other] = [plural, !plural]
            .map(|own| format!("the {subject}{} {preposition} the {beside}{}", number(own), number(!plural)));
        Ok(Pair { tokens: lm.encode(&text)?, other: lm.encode(&other)?, text, plural })
    };
    (0..LOOKS).map(pair).collect()
}

/// The probability of all verbs in the singular and of all in the plural, at the end of a sentence.
fn verbs(lm: &Lm, tokens: &[u32]) -> Result<[f64; 2], Error> {
    let probabilities = lm.trace_ids(tokens, |trace| trace.get("probs"))?;
    let vocabulary = lm.config().vocab_size;
    let last = &probabilities.values[(tokens.len() - 1) * vocabulary..];
    let token = |text: String| lm.tokenizer().map(|tokenizer| tokenizer.token(&text).expect("a word of the corpus"));
    let sum = |ending: &str| -> Result<f64, Error> {
        VERBS.iter().map(|verb| Ok(f64::from(last[token(format!("{verb}{ending}"))? as usize]))).sum()
    };
    Ok([sum("s")?, sum("")?])
}

/// The share of sentences whose verb would have the number of their subject.
fn right(pairs: &[Pair], run: impl Fn(&Pair) -> Result<[f64; 2], Error>) -> Result<f64, Error> {
    let mut right = 0.0;
    for pair in pairs {
        let [singular, plural] = run(pair)?;
        right += f64::from(u8::from((plural > singular) == pair.plural));
    }
    Ok(right / pairs.len() as f64)
}

/// What part of the difference a patch restores, as a mean over the sentences: each is patched into that of the other number.
fn sweep(lm: &Lm, pairs: &[Pair], site: SweepSite) -> Result<Labelled, Error> {
    let [one, many] = ["runs", "run"].map(|verb| lm.tokenizer().map(|t| t.token(verb).expect("a word of the corpus")));
    let (one, many) = (one?, many?);
    let mut mean: Option<Labelled> = None;
    for pair in pairs {
        let (answer, foil) = if pair.plural { (many, one) } else { (one, many) };
        let question = SweepQuestion {
            clean: pair.tokens.clone(),
            corrupt: pair.other.clone(),
            site,
            by: SweepBy::Head,
            metric: SweepMetric::LogitDifference { answer, foil },
            position: -1,
            confirmed: false,
        };
        let found = lm.sweep(&question, &mut |_| true)?.recovered;
        let sum = mean.get_or_insert_with(|| Labelled { values: vec![0.0; found.values.len()], ..found.clone() });
        sum.values.iter_mut().zip(&found.values).for_each(|(sum, v)| *sum += v / LOOKS as f32);
    }
    Ok(mean.expect("there are sentences"))
}

fn agreement(class: &mut Class, training: u64) -> Result<(), Error> {
    let toy = ToyModel::new("sentences", 3, corpus(class.seed), "word")?;
    let config = Config { positions: Positions::Rotary, d_ff: 64, ..toy.config };
    let recipe = Recipe { steps: training, batch_size: 32, context: 32, ..toy.recipe };
    let lm = class.train_toy(ToyModel { config, recipe, ..toy }, 0, |_, _| Ok(()))?;
    let pairs = pairs(&lm, class.seed)?;
    let example = |pair: &Pair| {
        let [singular, plural] = verbs(&lm, &pair.tokens)?;
        Ok(row![pair.text, format!("{:.0} %", 100.0 * singular), format!("{:.0} %", 100.0 * plural)])
    };
    let examples = pairs[..4].iter().map(example).collect::<Result<Vec<_>, Error>>()?;
    class.table("The next word", ["", "runs, sleeps, ...", "run, sleep, ..."], examples);
    let stream = sweep(&lm, &pairs, SweepSite::ResidPre)?;
    let heads = sweep(&lm, &pairs, SweepSite::Z)?;
    for found in [&stream, &heads] {
        let size = [found.shape[0], found.shape[1]];
        let words = ["the", "dog(s)", "near", "the", "cat(s)"].map(String::from).to_vec();
        class.show(View::Matrix(Matrix {
            tensor: found.name.clone(),
            index: vec![],
            size,
            axes: ["layer", found.axes[1]],
            rows: vec![],
            columns: if found.axes[1] == "pos" { words } else { vec![] },
            values: found.values.clone(),
            hidden: vec![],
            scale: HeatScale::Signed,
        }));
    }
    let n = lm.config().n_head;
    let mut order: Vec<usize> = (0..heads.values.len()).collect();
    order.sort_by(|a, b| heads.values[*b].total_cmp(&heads.values[*a]));
    let silence = |heads: &[usize]| {
        let step = |i: &usize| json!({ "ablate": format!("blocks.{}.attn.hook_z", i / n), "head": i % n });
        Interventions::new(heads.iter().map(step).collect()).and_then(|steps| lm.intervene(&steps))
    };
    let plain = right(&pairs, |p| verbs(&lm, &p.tokens))?;
    let mut rows = vec![row!["as trained", plain]];
    for k in 1..4 {
        let s = silence(&order[..k])?;
        rows.push(row![format!("{:?}", &order[..k]), right(&pairs, |p| verbs(&s, &p.tokens))?]);
    }
    for i in &order {
        let s = silence(&[*i])?;
        rows.push(row![format!("only {i}"), right(&pairs, |p| verbs(&s, &p.tokens))?]);
    }
    for layer in 0..3 {
        for pos in [1, 4] {
            let run = |p: &Pair| {
                let step = json!([{ "patch": format!("blocks.{layer}.hook_resid_pre"), "pos": pos, "from": { "tokens": p.other } }]);
                verbs(&lm.intervene(&Interventions::new(step)?)?, &p.tokens)
            };
            if layer > 0 || pos == 1 {
                rows.push(row![format!("patched {layer} {pos}"), right(&pairs, run)?]);
            }
        }
    }
    class.table("Right", ["", "share"], rows);
    class.claim("right");
    class.at_least("share", plain, 0.9);
    Ok(())
}

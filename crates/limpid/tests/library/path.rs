//! The path from a word to its reason: what a step divides adds up, a step's number is that of the bar that was
//! followed, and sentences state the numbers of the run, all beside sums in f64 over the tensors of a run that kept
//! everything.

use crate::by_layers::{batch, by_layers, filled};
use crate::random_config::configs;
use limpid::backend::Backend;
use limpid::config::{Config, NormKind};
use limpid::model::Mode;
use limpid::numeric::random;
use limpid::trace::path::{Hop, PathQuestion, PathStep, StepKind, follow};
use limpid::trace::{Keep, NamedTensor, Trace};
use std::collections::HashMap;

/// Follows the larger bars of each step, as deep as the way goes or `deep` steps.
fn walk(
    trace: &Trace,
    asked: PathQuestion,
    hops: &mut Vec<Hop>,
    (wide, deep): (usize, usize),
    see: &mut dyn FnMut(&PathStep, &[Hop]),
) {
    let step = follow(trace, asked, hops, usize::MAX).unwrap();
    see(&step, hops);
    let mut followed = 0;
    for bar in &step.bars {
        let Some(hop) = Hop::into(bar.part).filter(|_| deep > 0 && followed < wide) else { continue };
        followed += 1;
        hops.push(hop);
        if !matches!(hop, Hop::Unit(_)) {
            let next = follow(trace, asked, hops, usize::MAX).unwrap();
            assert!(
                (next.value - bar.value).abs() <= 1e-9 * (1.0 + bar.value.abs()),
                "{hops:?}: {} is not {}",
                next.value,
                bar.value
            );
        }
        walk(trace, asked, hops, (wide, deep - 1), see);
        hops.pop();
    }
}

fn asked(config: &Config, seed: u64, rows: u64) -> PathQuestion {
    let draw = |site: u64, n: u64| random::below(seed, 90 + site, 0, n) as u32;
    let (target, foil) = (draw(0, config.vocab_size as u64), draw(1, config.vocab_size as u64));
    PathQuestion { row: draw(2, rows) as usize, target, foil: (draw(3, 4) > 0 && foil != target).then_some(foil) }
}

#[test]
fn every_step_adds_up_to_the_number_that_was_followed() {
    let mut steps = 0;
    for (seed, config) in configs().iter().enumerate().step_by(3) {
        let trace = by_layers(config, &batch(config, 2, 5, seed as u64), 1, seed as u64, 1 << 24);
        let question = asked(config, seed as u64, 10);
        walk(&trace, question, &mut vec![], (2, 4), &mut |step, hops| {
            steps += 1;
            let size: f64 = step.bars.iter().map(|bar| bar.value.abs()).sum();
            let sum: f64 = step.bars.iter().map(|bar| bar.value).sum();
            assert!((step.value - sum - step.remainder).abs() <= 1e-9 * (1.0 + size) || step.bars.is_empty());
            let bounded = config.logits_softcap > 0.0 && hops.is_empty();
            // sums in f32 of a few dozen terms that cancel
            let near = step.bars.is_empty() || step.remainder.abs() <= 1e-4 * (size + 1e-3);
            assert!(near || bounded, "{hops:?}: {} of {size} in {config:?}", step.remainder);
            if !step.weights.is_empty() {
                let sum: f64 = step.bars.iter().filter_map(|bar| bar.looked).map(|(_, weight)| f64::from(weight)).sum();
                assert!((sum - 1.0).abs() < 1e-5, "{hops:?}: weights add up to {sum}");
            }
            let text = step.sentence(&|id| format!("<{id}>"));
            assert!(!text.contains("NaN"), "{text}");
        });
        let shown = follow(&trace, question, &[], 2).unwrap();
        let all = follow(&trace, question, &[], usize::MAX).unwrap();
        let n = all.bars.len().min(2);
        assert_eq!(shown.bars[..], all.bars[..n]);
        let left: f64 = all.bars[n..].iter().map(|bar| bar.value).sum();
        assert!(shown.rest.count == all.bars.len() - n && (shown.rest.value - left).abs() < 1e-9);
    }
    assert!(steps > 200, "{steps}");
}

#[test]
fn a_way_that_leads_nowhere_is_refused_with_the_ways_that_there_are() {
    let config = &configs()[0];
    let trace = by_layers(config, &batch(config, 1, 5, 1), 1, 1, 1 << 20);
    let question = PathQuestion { row: 4, target: 3, foil: None };
    for (hops, says) in
        [("h9.9", "no `h9.9` there; it goes on to"), ("t1", "no `t1`"), ("u1", "no `u1`"), ("w,w", "no `w`")]
    {
        let hops: Vec<Hop> = hops.split(',').map(|hop| hop.parse().unwrap()).collect();
        let error = follow(&trace, question, &hops, 9).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    for wrong in ["", "h1", "h1.x", "t", "t-1", "u1.5", "w1", "x", "ü"] {
        assert!(wrong.parse::<Hop>().unwrap_err().contains("no step of a path"), "{wrong}");
    }
    let far = PathQuestion { row: 9, ..question };
    assert!(follow(&trace, far, &[], 9).unwrap_err().to_string().contains("no row 9"));
    let word = PathQuestion { target: 9999, ..question };
    assert!(follow(&trace, word, &[], 9).unwrap_err().to_string().contains("outside the model's vocabulary"));
}

#[test]
fn damaged_weights_are_said_and_nothing_is_added_up() {
    let config = &configs()[0];
    let (model, mut backend) = filled(config, Keep::default().mode(1, 5), 1, 3);
    let damaged = model.params.iter().find(|param| param.name == "blocks.0.mlp.out.weight").unwrap().region;
    backend.write(damaged, &vec![f32::NAN; damaged.len()]).unwrap();
    let trace = Trace::run(&model, Box::new(backend), &batch(config, 1, 5, 3), Keep::default()).unwrap();
    let step = follow(&trace, PathQuestion { row: 4, target: 1, foil: Some(2) }, &[], 9).unwrap();
    let text = step.sentence(&|id| id.to_string());
    assert!(text.contains("NaN or infinite") && !text.contains("ahead"), "{text}");
}

// ---- the sentences, beside sums in f64

/// All tensors of a run, and how the head reads its last stream.
struct Oracle {
    config: Config,
    tensors: HashMap<String, NamedTensor>,
    ids: Vec<u32>,
    row: usize,
    /// The direction in which the stream is read.
    direction: Vec<f64>,
    /// What the offset of the norm before the head adds.
    offset: Option<f64>,
}

/// Three kinds of model whose blocks add to one stream.
fn three() -> [Config; 3] {
    let small = |preset: &str| {
        let config = Config::preset(preset).unwrap();
        Config { n_layer: 3, n_head: 4, d_model: 32, d_ff: 48, vocab_size: 60, context_length: 12, ..config }
    };
    let gpt2 = small("gpt2");
    let plain = Config { norm_gain: false, tied_head: false, ..gpt2.clone() };
    let rms = Config { norm: NormKind::Rms, n_kv_head: Some(2), tied_head: false, ..gpt2.clone() };
    [gpt2, plain, rms]
}

impl Oracle {
    fn new(config: &Config, seed: u64, asked: PathQuestion) -> Oracle {
        let all = batch(config, 1, 12, seed);
        let (model, backend) = filled(config, Mode::Inspect { batch: 1, context: 12 }, 1, seed);
        let trace = Trace::run(&model, Box::new(backend), &all, Keep::All).unwrap();
        let names = model.tensors.iter().map(|tensor| &tensor.name).chain(model.params.iter().map(|param| &param.name));
        let tensors = names.map(|name| (name.clone(), trace.get(name).unwrap())).collect();
        let mut oracle = Oracle {
            config: config.clone(),
            tensors,
            ids: all.tokens.clone(),
            row: asked.row,
            direction: vec![],
            offset: None,
        };
        let head = if config.tied_head { "embed.weight" } else { "unembed.weight" };
        let c = config.d_model;
        let own = |id: u32| oracle.values(head)[id as usize * c..][..c].to_vec();
        let foil = asked.foil.map(own);
        let mut direction: Vec<f64> = own(asked.target).iter().map(|w| f64::from(*w)).collect();
        if let Some(foil) = foil {
            direction.iter_mut().zip(foil).for_each(|(d, w)| *d -= f64::from(w));
        }
        oracle.offset = oracle.offset_of("ln_final", &direction);
        oracle.direction = oracle.before_norm("ln_final", asked.row, direction);
        oracle
    }

    fn values(&self, name: &str) -> &[f32] {
        &self.tensors.get(name).unwrap_or_else(|| panic!("no {name}")).values
    }

    /// What a norm's offset adds in a direction after it.
    fn offset_of(&self, norm: &str, direction: &[f64]) -> Option<f64> {
        let offset = self.tensors.get(&format!("{norm}.bias"))?;
        Some(offset.values.iter().zip(direction).map(|(v, d)| f64::from(*v) * d).sum())
    }

    /// A direction after a norm, as one before it.
    fn before_norm(&self, norm: &str, row: usize, mut direction: Vec<f64>) -> Vec<f64> {
        let scale = f64::from(self.values(&format!("{norm}.hook_scale"))[row]);
        for (i, d) in direction.iter_mut().enumerate() {
            *d *=
                if self.config.norm_gain { f64::from(self.values(&format!("{norm}.weight"))[i]) } else { 1.0 } / scale;
        }
        if self.config.norm != NormKind::Rms {
            let mean = direction.iter().sum::<f64>() / direction.len() as f64;
            direction.iter_mut().for_each(|d| *d -= mean);
        }
        direction
    }

    /// What a head writes for each token that it looks at, in a direction of the stream: (weight, part).
    fn looked(&self, block: usize, head: usize, row: usize, direction: &[f64]) -> Vec<(f64, f64)> {
        let read = self.read(block, head, direction);
        let attn = |hook: &str| self.values(&format!("blocks.{block}.attn.{hook}"));
        let heads = self.config.heads();
        let (t, wide, kv) = (12, heads.d_value, heads.n_kv_head);
        (0..t)
            .map(|key| {
                let weight = f64::from(attn("hook_pattern")[(head * t + row) * t + key]);
                let value = &attn("hook_v")[(key * kv + head / heads.group()) * wide..][..wide];
                (weight, weight * value.iter().zip(&read).map(|(v, r)| f64::from(*v) * r).sum::<f64>())
            })
            .collect()
    }

    /// In which direction a head's context is read.
    fn read(&self, block: usize, head: usize, direction: &[f64]) -> Vec<f64> {
        let (wide, all) = (self.config.d_value(), self.config.heads().output_cols());
        let w = self.values(&format!("blocks.{block}.attn.out.weight"));
        let column =
            |i: usize| direction.iter().enumerate().map(|(o, d)| d * f64::from(w[o * all + head * wide + i])).sum();
        (0..wide).map(column).collect()
    }

    /// Every part that wrote the stream before a block (or the last one), in a direction, by name.
    fn parts(&self, before: usize, row: usize, direction: &[f64]) -> HashMap<String, f64> {
        let c = self.config.d_model;
        let dot = |values: &[f32]| values.iter().zip(direction).map(|(v, d)| f64::from(*v) * d).sum::<f64>();
        let mut all = HashMap::new();
        for (name, hook) in [("embed", "hook_embed"), ("pos_embed", "hook_pos_embed")] {
            if let Some(tensor) = self.tensors.get(hook) {
                all.insert(name.to_string(), dot(&tensor.values[row * c..][..c]));
            }
        }
        for block in 0..before {
            let name = format!("blocks.{block}.hook_mlp_out");
            all.insert(format!("L{block} MLP"), dot(&self.values(&name)[row * c..][..c]));
            for head in 0..self.config.n_head {
                let sum = self.looked(block, head, row, direction).iter().map(|(_, part)| part).sum();
                all.insert(format!("L{block}H{head}"), sum);
            }
            if let Some(bias) = self.tensors.get(&format!("blocks.{block}.attn.out.bias")) {
                all.insert(format!("L{block} attention bias"), dot(&bias.values));
            }
        }
        all
    }

    /// The direction at the stream before a block in which what a head takes from a token is read.
    /// With what the offset before it and the bias of the values add.
    fn through_values(
        &self,
        block: usize,
        head: usize,
        (query, key): (usize, usize),
        direction: &[f64],
    ) -> (Vec<f64>, Option<f64>, Option<f64>) {
        let (heads, c) = (self.config.heads(), self.config.d_model);
        let weight =
            f64::from(self.values(&format!("blocks.{block}.attn.hook_pattern"))[(head * 12 + query) * 12 + key]);
        let read = self.read(block, head, direction);
        let w = self.values(&format!("blocks.{block}.attn.qkv.weight"));
        let mine = heads.of_head(head)[2].clone();
        let bias = self.tensors.get(&format!("blocks.{block}.attn.qkv.bias"));
        let mut to = vec![0.0; c];
        let mut added = bias.map(|_| 0.0);
        for (row, read) in mine.zip(read) {
            to.iter_mut().zip(&w[row * c..][..c]).for_each(|(to, w)| *to += weight * read * f64::from(*w));
            if let (Some(sum), Some(bias)) = (&mut added, bias) {
                *sum += weight * read * f64::from(bias.values[row]);
            }
        }
        let norm = format!("blocks.{block}.ln1");
        let offset = self.offset_of(&norm, &to);
        (self.before_norm(&norm, key, to), offset, added)
    }
}

/// Numbers of a sentence with the words that stand before each, of which the last ones name it.
fn stated(text: &str) -> Vec<(Vec<&str>, f64)> {
    let words: Vec<&str> = text.split(' ').collect();
    let number = |(n, word): (usize, &&str)| {
        let plain = word.trim_end_matches(['.', ',', ';', ':']);
        let is_signed = plain.starts_with(['+', '-']) || n > 0 && words[n - 1].starts_with('<');
        let value = plain.parse::<f64>().ok().filter(|_| is_signed)?;
        Some((words[n.saturating_sub(3)..n].to_vec(), value))
    };
    words.iter().enumerate().filter_map(number).collect()
}

/// Whether a number in a sentence is the exact one, to the digits that it has there.
fn states(stated: f64, exact: f64) -> bool {
    let unit = match stated.abs() {
        v if v >= 0.0995 => 0.005,
        v if v >= 0.00995 => 0.0005,
        v if v >= 0.0005 => 5e-5,
        v => 0.05 * v.max(1e-12),
    };
    (stated - exact).abs() <= 1.02 * unit + 2e-6 * (1.0 + exact.abs())
}

/// The first number of a sentence that is not what the sums say.
fn untrue(oracle: &Oracle, step: &PathStep, hops: &[Hop], text: &str) -> Option<(String, f64, f64)> {
    let (want, total): (HashMap<String, f64>, f64) = match (step.kind, hops) {
        (StepKind::Logit, _) => {
            let mut parts = oracle.parts(oracle.config.n_layer, oracle.row, &oracle.direction);
            parts.extend(oracle.offset.map(|offset| ("ln_final offset".to_string(), offset)));
            (parts, step.value)
        }
        (StepKind::Head { block, head }, _) => {
            let looked = oracle.looked(block, head, oracle.row, &oracle.direction);
            let tokens = oracle.ids.iter().zip(&looked).fold(HashMap::new(), |mut all, (id, (weight, _))| {
                all.entry(format!("<{id}>")).or_insert(*weight);
                all
            });
            (tokens, looked.iter().map(|(_, part)| part).sum())
        }
        (StepKind::Carried { block, head }, [Hop::Head(..), Hop::Token(key)]) => {
            let (to, offset, bias) = oracle.through_values(block, head, (oracle.row, *key), &oracle.direction);
            let part = oracle.looked(block, head, oracle.row, &oracle.direction)[*key].1;
            let mut parts = oracle.parts(block, *key, &to);
            parts.extend(offset.map(|offset| (format!("L{block} ln1 offset"), offset)));
            parts.extend(bias.map(|bias| (format!("L{block} value bias"), bias)));
            (parts, part)
        }
        _ => return None,
    };
    // the part that is called the largest is that
    let first = text.split_once("The largest parts are ").and_then(|(_, rest)| Some(stated(rest).first()?.1));
    let largest = want.values().fold(0f64, |most, value| most.max(value.abs()));
    if let Some(first) = first.filter(|first| step.kind == StepKind::Logit && !states(first.abs(), largest)) {
        return Some(("The largest parts are".into(), first, largest));
    }
    stated(text).into_iter().find_map(|(words, value)| {
        let name = (0..words.len()).map(|n| words[n..].join(" ")).find(|name| want.contains_key(name));
        let exact = match (name, words.last()) {
            (Some(name), _) => want[&name],
            (None, Some(&("its" | "carried"))) => total,
            _ => return None,
        };
        (!states(value, exact)).then_some((words.join(" "), value, exact))
    })
}

#[test]
fn sentences_state_the_numbers_of_the_run() {
    let (mut sentences, mut numbers) = (0, 0);
    let mut perturbed = 0;
    for (n, config) in three().iter().enumerate() {
        for round in 0..4 {
            let seed = 10 * n as u64 + round;
            let mut question = asked(config, seed, 12);
            question.row = question.row.max(3);
            let oracle = Oracle::new(config, seed, question);
            let trace = by_layers(config, &batch(config, 1, 12, seed), 1, seed, 1 << 24);
            // tokens that are alike would have one name: the sentence is of places, the test of names
            walk(&trace, question, &mut vec![], (5, 2), &mut |step, hops| {
                if matches!(
                    step.kind,
                    StepKind::Mlp { .. } | StepKind::Unit { .. } | StepKind::Word | StepKind::Stream { .. }
                ) {
                    return;
                }
                let text = step.sentence(&|id| format!("<{id}>"));
                let twice = |id: u32| oracle.ids.iter().filter(|own| **own == id).count() > 1;
                if step.bars.iter().filter_map(|bar| bar.looked).take(3).any(|(id, _)| twice(id)) {
                    return;
                }
                sentences += 1;
                numbers += stated(&text).len();
                let wrong = untrue(&oracle, step, hops, &text);
                assert!(wrong.is_none(), "{wrong:?}: {text}");
                // one number that is another is found
                let mut other = step.clone();
                if let Some(bar) = other.bars.first_mut().filter(|bar| bar.value.abs() > 0.12 && bar.looked.is_none()) {
                    bar.value *= 1.1;
                    let text = other.sentence(&|id| format!("<{id}>"));
                    assert!(untrue(&oracle, &other, hops, &text).is_some(), "{text}");
                    perturbed += 1;
                }
            });
        }
    }
    assert!(
        sentences >= 200 && numbers >= 800 && perturbed >= 50,
        "{sentences} sentences, {numbers} numbers, {perturbed}"
    );
}

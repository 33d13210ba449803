//! Tiny configurations that between them take every pair of values on every two axes: a fixed, seeded
//! sample of the product, grown until no pair is missing.
#![allow(dead_code)] // not every program needs all of it

use limpid::backend::Backend;
use limpid::config::*;
use limpid::model::Model;
use limpid::numeric::random;
use limpid::ops::Terms;
use limpid::ops::{Batch, IGNORE};
use std::collections::HashSet;

/// One value on each axis, as small numbers.
const AXES: &[(&str, usize)] = &[
    ("positions", 6),
    ("norm place", 5),
    ("parallel", 3),
    ("final norm", 2),
    ("norm", 3),
    ("gain", 2),
    ("offset", 2),
    ("embedding norm", 2),
    ("segments", 2),
    ("attention bias", 2),
    ("ffn bias", 2),
    ("head bias", 2),
    ("scale", 2),
    ("mask and window", 5),
    ("activation", 9),
    ("tied", 2),
    ("transform", 2),
    ("dropout embedding", 2),
    ("dropout attention", 2),
    ("dropout projection", 2),
    ("dropout ffn", 2),
    ("dropout scale", 2),
    ("d_ff", 2),
    ("key heads", 2),
    ("d_head", 2),
    ("gated", 2),
    ("scale by layer", 2),
    ("rotary scaling", 5),
    ("rotary dim", 2),
    ("rotary layers", 2),
    ("rotary base window", 2),
    ("gain less one", 2),
    ("qk norm", 4),
    ("out bias", 2),
    ("attention factor", 2),
    ("embedding scale", 2),
    ("residual scale", 2),
    ("logits scale", 2),
    ("logits softcap", 2),
    ("window layers", 2),
    ("attention softcap", 2),
    ("d_embed", 3),
    ("shared blocks", 2),
    ("rotary pairs", 3),
    ("gelu constants", 2),
    ("d_v", 2),
];

fn config(choice: &[usize]) -> Config {
    let on = |axis: &str| choice[place(axis)];
    let yes = |axis: &str| on(axis) == 1;
    let p = |axis: &str| if yes(axis) { 0.25 } else { 0.0 };
    let norm_place = NormPlace::ALL[on("norm place")];
    // a window needs a causal mask
    let masks = [(Mask::Causal, 0), (Mask::Causal, 1), (Mask::Causal, 3), (Mask::Bidirectional, 0), (Mask::None, 0)];
    let turned = if yes("rotary dim") || !yes("d_head") { 2 } else { 4 };
    let slower = PairFactors::new(&[1.5, 2.5][..turned / 2]).unwrap();
    let (mask, window) = masks[on("mask and window")];
    let d_embed = [None, Some(7), Some(15)][on("d_embed")];
    Config {
        vocab_size: 11,
        context_length: 6,
        d_model: 12,
        d_embed,
        n_head: 6,
        n_kv_head: [None, Some(2)][on("key heads")],
        d_head: [None, Some(4)][on("d_head")],
        d_v: [None, Some(5)][on("d_v")],
        n_layer: 2,
        shared_blocks: yes("shared blocks"),
        d_ff: [7, 17][on("d_ff")],
        positions: Positions::ALL[on("positions")],
        rotary_base: 100.0,
        rotary_scaling: [
            RotaryScaling::NONE,
            RotaryScaling {
                kind: RotaryKind::Yarn,
                factor: 3.0,
                low: 0.1,
                high: 0.6,
                context: 4,
                attention: 1.3,
                ..RotaryScaling::NONE
            },
            RotaryScaling {
                kind: RotaryKind::Longrope,
                context: 4,
                attention: 0.7,
                short: slower,
                long: slower,
                ..RotaryScaling::NONE
            },
            // linear; and Llama 3's, with a pair between the bands and one that is scaled in full
            RotaryScaling { factor: 2.5, ..RotaryScaling::NONE },
            RotaryScaling { factor: 3.0, low: 0.1, high: 0.9, context: 4, ..RotaryScaling::NONE },
        ][on("rotary scaling")],
        rotary_dim: [None, Some(2)][on("rotary dim")],
        rotary_layers: [LayerPattern::ALL, "01".parse().unwrap()][on("rotary layers")],
        rotary_pairs: RotaryPairs::ALL[on("rotary pairs")],
        rotary_base_window: [None, Some(7.0)][on("rotary base window")],
        n_segment: 2 * on("segments"),
        norm_place,
        // a parallel block has no sum after attention to normalise
        parallel: if norm_place.is_post() { Parallel::No } else { Parallel::ALL[on("parallel")] },
        final_norm: yes("final norm"),
        embedding_norm: yes("embedding norm"),
        norm: NormKind::ALL[on("norm")],
        norm_eps: 1e-3,
        norm_gain: yes("gain"),
        norm_gain_less_one: yes("gain less one"),
        norm_offset: yes("offset"),
        attention_bias: yes("attention bias"),
        attention_out_bias: [None, Some(false)][on("out bias")],
        ffn_bias: yes("ffn bias"),
        attention_scale: yes("scale"),
        attention_scale_by_layer: yes("scale by layer"),
        attention_factor: [None, Some(0.7)][on("attention factor")],
        attention_softcap: [0.0, 1.5][on("attention softcap")],
        mask,
        window,
        window_layers: [LayerPattern::ALL, "01".parse().unwrap()][on("window layers")],
        qk_norm: QkNorm::ALL[on("qk norm")],
        activation: Activation::ALL[on("activation")],
        leaky_slope: 0.1,
        gelu_alpha: [1.0, 1.3][on("gelu constants")],
        gelu_beta: [Config::DEFAULT.gelu_beta, 0.9][on("gelu constants")],
        gelu_gamma: [Config::DEFAULT.gelu_gamma, 0.1][on("gelu constants")],
        ffn_gated: yes("gated"),
        embedding_scale: [1.0, 1.7][on("embedding scale")],
        residual_scale: [1.0, 0.6][on("residual scale")],
        logits_scale: [1.0, 1.3][on("logits scale")],
        logits_softcap: [0.0, 0.8][on("logits softcap")],
        lm_head: true,
        // a table of another width than the stream is no head by itself
        tied_head: yes("tied") && (d_embed.is_none() || yes("transform")),
        head_bias: yes("head bias"),
        head_transform: yes("transform"),
        dropout: Dropout {
            embedding: p("dropout embedding"),
            attention: p("dropout attention"),
            projection: p("dropout projection"),
            ffn: p("dropout ffn"),
            scale: DropoutScale::ALL[on("dropout scale")],
        },
    }
}

fn place(axis: &str) -> usize {
    AXES.iter().position(|(name, _)| *name == axis).unwrap()
}

/// The pairs of a choice, but those of `parallel` where a block normalises after its sums: it has no effect there.
fn pairs(choice: &[usize]) -> impl Iterator<Item = (usize, usize, usize, usize)> {
    let (parallel, post) = (place("parallel"), NormPlace::ALL[choice[place("norm place")]].is_post());
    let all = (0..AXES.len()).flat_map(move |a| (0..a).map(move |b| (a, choice[a], b, choice[b])));
    all.filter(move |(a, _, b, _)| !(post && (*a == parallel || *b == parallel)))
}

fn choices() -> Vec<Vec<usize>> {
    let mut covered = HashSet::new();
    let mut chosen: Vec<Vec<usize>> = vec![];
    for round in 0..10_000u64 {
        // of twenty random choices, the one with the most new pairs
        let random = |k: u64| {
            AXES.iter().enumerate().map(|(a, (_, n))| random::below(round, k, a as u64, *n as u64) as usize).collect()
        };
        let best: Vec<usize> =
            (0..20).map(random).max_by_key(|c: &Vec<usize>| pairs(c).filter(|p| !covered.contains(p)).count()).unwrap();
        let new: Vec<_> = pairs(&best).filter(|p| !covered.contains(p)).collect();
        if !new.is_empty() {
            covered.extend(new);
            chosen.push(best);
        }
        if covered.len() == total() {
            break;
        }
    }
    // and as many again without looking at pairs, for what only three values together would show
    let more = chosen.len() as u64;
    chosen.extend((0..more).map(|k| {
        AXES.iter().enumerate().map(|(a, (_, n))| random::below(99, k, a as u64, *n as u64) as usize).collect()
    }));
    chosen
}

fn total() -> usize {
    let all: usize = (0..AXES.len()).flat_map(|a| (0..a).map(move |b| AXES[a].1 * AXES[b].1)).sum();
    let post = NormPlace::ALL.iter().filter(|norm_place| norm_place.is_post()).count();
    all - post * AXES[place("parallel")].1
}

/// The sample.
#[allow(dead_code)]
pub fn configs() -> Vec<Config> {
    choices().iter().map(|c| config(c)).collect()
}

/// The axes' names.
#[allow(dead_code)]
pub fn axes_of(_: &Config) -> Vec<&'static str> {
    AXES.iter().map(|(name, _)| *name).collect()
}

/// Pairs of values that these configurations take, and that there are: a value is taken where another one in its place
/// would be another configuration.
#[allow(dead_code)]
pub fn pairs_covered(configs: &[Config]) -> (usize, usize) {
    let mut covered = HashSet::new();
    for choice in choices() {
        let own = config(&choice);
        assert!(configs.contains(&own), "it is not in the sample: {own:?}");
        let reaches = |a: usize| {
            (0..AXES[a].1).filter(|value| *value != choice[a]).all(|value| {
                let mut other = choice.clone();
                other[a] = value;
                config(&other) != own
            })
        };
        let reaches: Vec<bool> = (0..AXES.len()).map(reaches).collect();
        covered.extend(pairs(&choice).filter(|(a, _, b, _)| reaches[*a] && reaches[*b]));
    }
    (covered.len(), total())
}

/// Gives every parameter values of which none is trivial: gains near 1, all else near 0.
#[allow(dead_code)]
pub fn fill(model: &Model, backend: &mut dyn Backend, seed: u64) {
    for param in &model.params {
        let site = random::site(&param.name);
        let gain = (param.name.contains("ln") || param.name.contains("_norm")) && param.name.ends_with("weight");
        let shift = if gain && !model.config.norm_gain_less_one { 1.0 } else { 0.0 };
        let value = |i| (shift + 0.4 * random::normal(seed, site, i)) as f32;
        backend.write(param.region, &(0..param.region.len() as u64).map(value).collect::<Vec<_>>()).unwrap();
    }
}

/// Sequences of [`batch`].
pub const BATCH: usize = 2;
/// Tokens of each.
pub const CONTEXT: usize = 5;

/// Two sequences, one of them padded; some rows without a target; segments where the model has them.
pub fn batch(config: &Config, seed: u64) -> Batch {
    let rows = (BATCH * CONTEXT) as u64;
    let ids = |site: u64| {
        (0..rows).map(|i| random::below(seed, site, i, config.vocab_size as u64) as u32).collect::<Vec<_>>()
    };
    let mut targets = ids(2);
    [3, 8, 9].into_iter().for_each(|n| targets[n] = IGNORE);
    let mut batch = Batch::of_sequences(ids(1), targets, CONTEXT);
    batch.spans[1].valid = 3;
    if config.n_segment > 0 {
        batch.segments = (0..rows).map(|i| (i % 2) as u32).collect();
    }
    batch.seed = Some(seed);
    if seed % 2 == 1 {
        batch.terms = Terms { smoothing: 0.1, z_loss: 0.02 };
    }
    batch
}

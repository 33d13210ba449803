//! A letter is one size of a model: every shape that is printed beside letters, in any notation, in tables and
//! diagrams, is what its letters come to and what the tensor has.

use crate::random_config::{configs, fill};
use limpid::backend::Reference;
use limpid::config::{Axis, Config};
use limpid::draw::diagram::Diagram;
use limpid::model::{Mode, Model};
use limpid::names::{self, Notation};
use limpid::numeric::random;
use limpid::ops::Batch;
use limpid::trace::{Keep, Trace};

const BATCH: usize = 2;
const CONTEXT: usize = 3;

/// Configurations with queries, values, heads and a stream of sizes that have nothing to do with each other.
fn odd() -> Vec<Config> {
    let below = |i: usize, site: u64, n: u64| random::below(7, site, i as u64, n) as usize;
    let one = |(i, config): (usize, Config)| {
        let n_kv_head = 1 + below(i, 0, 3);
        let n_head = n_kv_head * (1 + below(i, 1, 2));
        let own = |site, n: usize| (below(i, site, 2) == 0).then_some(n);
        let even = 2 * (1 + below(i, 2, 4)); // rotary positions turn pairs
        Config {
            d_model: n_head * 2 * (1 + below(i, 3, 5)),
            n_head,
            n_kv_head: Some(n_kv_head),
            d_head: own(4, even),
            d_v: own(5, 1 + below(i, 6, 11)),
            rotary_dim: None,
            rotary_scaling: limpid::config::RotaryScaling::NONE,
            d_ff: 19 + below(i, 7, 20),
            ..config
        }
    };
    let all = configs().into_iter().step_by(4).enumerate().map(one);
    all.filter(|config| Model::new(config, Mode::Inspect { batch: BATCH, context: CONTEXT }).is_ok()).collect()
}

/// What an axis comes to: `3C`, `H·D+K·D+K·D_v`, `d_model*3`.
fn size(notation: Notation, config: &Config, letters: &str) -> usize {
    let heads = config.heads();
    let sizes = [
        ("batch", BATCH),
        ("pos", CONTEXT),
        ("query_pos", CONTEXT),
        ("key_pos", CONTEXT),
        ("n_ctx", config.context_length),
        ("d_model", config.d_model),
        ("d_embed", config.d_embed()),
        ("head", heads.n_head),
        ("kv_head", heads.n_kv_head),
        ("d_head", heads.d_head),
        ("d_v", heads.d_value),
        ("d_ff", config.d_ff),
        ("d_vocab", config.vocab_size),
        ("n_layer", config.n_layer),
        ("segment", config.n_segment),
        ("1", 1),
    ];
    let one = |letter: &str| {
        let own = sizes.iter().find(|(axis, _)| notation.letter_in(axis, config) == letter);
        let times = || letter.split_at_checked(1).filter(|(n, _)| n.bytes().all(|byte| byte.is_ascii_digit()));
        match own {
            Some((_, n)) => *n,
            // of queries, keys and values; TransformerLens has no word
            None if letter == "features" => 3 * config.d_model,
            None => times().map_or_else(
                || panic!("{notation}: `{letter}` of `{letters}`"),
                |(n, rest)| {
                    n.parse::<usize>().unwrap() * if rest.is_empty() { 1 } else { size(notation, config, rest) }
                },
            ),
        }
    };
    letters.split('+').map(|product| product.split(['·', '*']).map(one).product::<usize>()).sum()
}

#[test]
fn every_shape_is_what_its_letters_say() {
    let (mut seen, mut own) = (0, 0);
    for config in &odd() {
        let model = Model::new(config, Mode::Inspect { batch: BATCH, context: CONTEXT }).unwrap();
        let mut reference = Reference::new(&model);
        fill(&model, &mut reference, 1);
        let tokens: Vec<u32> = (0..(BATCH * CONTEXT) as u32).collect();
        let mut batch = Batch::of_sequences(tokens.clone(), tokens, CONTEXT);
        if config.n_segment > 0 {
            batch.segments = vec![0; BATCH * CONTEXT];
        }
        let trace = Trace::run(&model, Box::new(reference), &batch, Keep::All).unwrap();
        let params = model.params.iter().map(|param| param.name.clone());
        let derived = names::derived(&model).into_iter().map(|(name, _)| name);
        for name in trace.names().chain(params).chain(derived).collect::<Vec<_>>() {
            let (row, tensor) = (trace.row(&name).unwrap(), trace.get(&name).unwrap());
            assert_eq!((&row.shape, tensor.shape.len()), (&tensor.shape, tensor.axes.len()), "{name}");
            for notation in Notation::ALL {
                let said = row.clone().in_notation(&model, *notation);
                let sizes: Vec<usize> =
                    said.letters.split(' ').map(|letters| size(*notation, config, letters)).collect();
                assert_eq!(sizes, said.shape, "{notation}: {name} is {} in {config:?}", said.letters);
                let (mut was, mut is) = (tensor.shape.clone(), said.shape.clone());
                was.sort_unstable();
                is.sort_unstable();
                assert_eq!(was, is, "{notation}: {name}");
                seen += 1;
            }
        }
        own += usize::from(config.d_value() != config.d_head());
    }
    assert!(seen > 5_000 && own > 5, "{seen} shapes, {own} models with values of their own size");
}

/// `(B,T,C) = (2, 3, 12)`, wherever a diagram has it; and the number of columns of all heads.
#[test]
fn every_shape_of_a_diagram_is_what_its_letters_say() {
    let mut seen = 0;
    for config in &odd() {
        let model = Model::new(config, Mode::Inspect { batch: BATCH, context: CONTEXT }).unwrap();
        let heads = config.heads();
        for (diagram, notation) in Diagram::ALL.iter().flat_map(|d| Notation::ALL.iter().map(move |n| (*d, *n))) {
            let Some(svg) = diagram.of_model(&model, notation) else { continue };
            for (letters, sizes) in svg.split(") = (").zip(svg.split(") = (").skip(1)) {
                let letters = letters.rsplit_once('(').unwrap().1;
                let sizes: Vec<usize> =
                    sizes.split(')').next().unwrap().split(", ").map(|n| n.replace(',', "").parse().unwrap()).collect();
                let said: Vec<usize> = letters.split(',').map(|letters| size(notation, config, letters)).collect();
                assert_eq!(said, sizes, "{diagram:?} {notation}: ({letters}) in {config:?}");
                seen += 1;
            }
            if diagram == Diagram::Attention {
                let columns =
                    format!("{} heads x {} = {} columns", heads.n_head, heads.d_value, heads.n_head * heads.d_value);
                assert!(svg.contains(&columns), "{columns}");
            }
        }
    }
    assert!(seen > 1_000, "{seen}");
}

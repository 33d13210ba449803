//! What the lessons of `examples/` say (docs/lessons.md), as inequalities with a margin, over several seeds. The measures are
//! the examples' own; what they are held against is arithmetic (weights of a third shrink a gradient to a third a layer) or
//! the claim itself.

#![allow(clippy::duplicate_mod)] // two lessons have a part in common

#[allow(dead_code)]
#[path = "../examples/depth.rs"]
mod depth;
#[allow(dead_code)]
#[path = "../examples/gradients.rs"]
mod gradients;
#[allow(dead_code)]
#[path = "../examples/regularisation.rs"]
mod regularisation;
#[allow(dead_code)]
#[path = "../examples/stability.rs"]
mod stability;

use depth::GPT2;
use gradients::{Norm, RELU, Stack, a_layer, arrives};
use limpid::backend::{Backend, Reference};
use limpid::config::{Activation, Config, NormPlace};
use limpid::model::init::{self, Init};
use limpid::ops::adamw::Method;
use limpid::ops::{Batch, random};
use limpid::train::Recipe;
use stability::{by, normed, small};

/// R250, R252, R253: with He's weights a ReLU hands the gradient on; a sigmoid, whose slope is at most 1/4, at most a quarter
/// of it even where the weights keep its length.
#[test]
fn a_sigmoid_lets_gradients_vanish_and_a_relu_does_not() {
    let of = |activation, gain| a_layer(&Stack { activation, gain, ..RELU });
    let relu = of(Activation::Relu, RELU.gain);
    assert!((0.9..1.1).contains(&relu), "{relu}");
    assert!((0.9..1.15).contains(&of(Activation::LeakyRelu, RELU.gain)));
    for (activation, most) in [(Activation::Sigmoid, 0.25), (Activation::Tanh, 1.0)] {
        let times = of(activation, 1.0);
        assert!(times < most, "{activation}: {times}");
    }
}

/// R250 to R252: a ReLU's gradient is proportional to the weights, so a third of them is a third a layer, exactly.
#[test]
fn weights_decide_whether_gradients_vanish_or_explode() {
    for times in [1.0 / 3.0, 0.5, 2.0, 3.0] {
        let ratio = a_layer(&Stack { gain: times * RELU.gain, ..RELU }) / a_layer(&RELU);
        assert!((ratio / times - 1.0).abs() < 1e-9, "{ratio}, expected {times}");
    }
}

/// R255, R261: a norm makes the gradient forget the weights' size; with residual sums it arrives through 100 layers.
#[test]
fn norms_and_residual_sums_carry_gradients_through_a_hundred_layers() {
    let with = |norm, gain, residual| Stack { norm, gain: gain * RELU.gain, residual, ..RELU };
    for norm in [Norm::Layer, Norm::Batch] {
        let [small, large] = [1.0 / 3.0, 3.0].map(|gain| a_layer(&with(norm, gain, false)));
        assert!((small / large - 1.0).abs() < 0.01, "{small} {large}");
    }
    let deep = |stack| arrives(&Stack { layers: 100, ..stack });
    let both = deep(with(Norm::Layer, 1.0, true));
    assert!((0.1..100.0).contains(&both), "{both}");
    assert!(deep(with(Norm::Layer, 1.0, false)) > 1e4 * both, "a norm alone makes it grow");
    assert!(deep(Stack { activation: Activation::Sigmoid, gain: 1.0, ..RELU }) < 1e-50);
}

/// R256: batch norm mixes rows, layer norm does not, to the bit.
#[test]
fn batch_norm_lets_rows_see_each_other() {
    for seed in 0..3 {
        let leak = |norm| Stack { norm, ..RELU }.leak(seed);
        assert_eq!(leak(Norm::Layer), 0.0);
        assert!(leak(Norm::Batch) > 0.1, "{}", leak(Norm::Batch));
    }
}

/// R250 to R252, R255, R261: a transformer of 16 blocks without residual sums and norms loses its gradient with Xavier's
/// weights and is drowned in it with He's; either remedy alone, and both, bring it to the first block.
#[test]
fn residual_sums_and_norms_carry_gradients_down_a_transformer() {
    let bare = depth::Setup { norm: None, residual: false, init: (Init::Xavier, 0.0), ..GPT2 };
    let ratio = |setup: depth::Setup| setup.first_over_last();
    assert!(ratio(bare) < 1e-4, "{}", ratio(bare));
    assert!(ratio(depth::Setup { init: (Init::He, 0.0), ..bare }) > 1e4);
    for place in [NormPlace::Pre, NormPlace::Post] {
        let setup = depth::Setup { norm: Some(place), residual: true, ..bare };
        assert!((0.1..10.0).contains(&ratio(setup)), "{place}: {}", ratio(setup));
    }
    for setup in [depth::Setup { norm: Some(NormPlace::Pre), ..bare }, depth::Setup { residual: true, ..bare }] {
        assert!((0.1..10.0).contains(&ratio(setup)), "{}", ratio(setup));
    }
}

/// A model with parts replaced still has the right gradient: along it, the loss changes as a difference quotient says (f64).
#[test]
fn a_list_with_parts_replaced_has_the_right_gradient() {
    let setup = depth::Setup { blocks: 3, residual: false, norm: None, init: (Init::He, 0.0), ..GPT2 };
    for setup in [setup, depth::Setup { residual: true, ..setup }, depth::Setup { norm: Some(NormPlace::Pre), ..setup }]
    {
        let model = setup.model();
        let mut exact = Reference::new(&model);
        model.params.iter().for_each(|p| exact.write(p.region, &init::values(&model, p, Init::He, 0.0, 5)).unwrap());
        let ids = |site| (0..64).map(|i| random::below(5, site, i, 64) as u32).collect();
        exact.feed(&Batch::of_sequences(ids(1), ids(2), 16)).unwrap();
        exact.forward(model.ops()).unwrap();
        exact.backward(model.back()).unwrap();
        let losses = model.losses().expect("it has a head");
        for name in ["blocks.0.attn.qkv.weight", "blocks.2.mlp.in.weight"] {
            let region = model.param(name).expect("a parameter").region;
            let (weights, gradient) = (exact.read(region).unwrap(), exact.read(region.grad()).unwrap());
            let norm = gradient.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
            let mut at = |h: f64| {
                let moved = |(w, g): (&f32, &f32)| (f64::from(*w) + h * f64::from(*g) / norm) as f32;
                exact.write(region, &weights.iter().zip(&gradient).map(moved).collect::<Vec<_>>()).unwrap();
                exact.forward(model.ops()).unwrap();
                exact.sum(losses).unwrap() / 64.0
            };
            let quotient = (at(1e-3) - at(-1e-3)) / 2e-3;
            // weights are stored as f32, so the step is exact to a few in ten thousand
            assert!((quotient / norm - 1.0).abs() < 0.01, "{name}: {quotient}, expected {norm}");
            exact.write(region, &weights).unwrap();
        }
    }
}

/// Runs of `steps` from several seeds, each with two settings; the first's last loss must stay `margin` below the second's.
fn lower(steps: u64, margin: f64, [low, high]: [(Config, Recipe); 2]) {
    let text = stability::text();
    for seed in 1..3 {
        let last = |(config, recipe): &(Config, Recipe)| {
            stability::last(&text, config, Recipe { steps, seed, ..*recipe }).expect("a run")
        };
        let (low, high) = (last(&low), last(&high));
        assert!(low + margin < high, "seed {seed}: {low} and {high}, {margin} apart expected");
    }
}

/// R254
#[test]
fn clipping_keeps_a_large_rate_from_diverging() {
    let unclipped = by(Method::Sgd, 1.0);
    lower(80, 0.3, [(small(), Recipe { clip: 0.25, ..unclipped }), (small(), unclipped)]);
}

/// R259: a rate that is too much for the first steps is not for later ones.
#[test]
fn a_warm_up_lets_a_large_rate_work() {
    let sudden = by(Method::AdamW, 3e-2);
    lower(150, 0.05, [(small(), Recipe { warmup_steps: 20, ..sudden }), (small(), sudden)]);
}

/// R260: at one rate, Adam is far ahead of SGD; with decay, AdamW of Adam.
#[test]
fn adam_is_ahead_of_sgd_and_adamw_of_adam() {
    let decayed = |method| Recipe { weight_decay: 0.1, ..by(method, 3e-3) };
    lower(80, 0.2, [(small(), by(Method::Adam, 3e-3)), (small(), by(Method::Sgd, 3e-3))]);
    lower(80, 0.1, [(small(), decayed(Method::AdamW)), (small(), decayed(Method::Adam))]);
}

/// R262, R264: six blocks learn at this rate in pre-norm only; the post-norm losses are those of single characters' frequencies.
#[test]
fn a_post_norm_stack_does_not_learn_at_a_rate_that_suits_pre_norm() {
    lower(100, 0.2, [NormPlace::Pre, NormPlace::Post].map(|place| (normed(6, place), by(Method::AdamW, 1e-2))));
}

/// R257, R258: what is said of a text that was learned by heart.
#[test]
fn dropout_and_decay_narrow_the_gap() {
    let text = regularisation::text();
    for seed in 1..3 {
        let recipe = Recipe { steps: 250, seed, ..regularisation::plain() };
        let [none, dropout, decay] = [(0.0, 0.0), (0.3, 0.0), (0.0, 1.0)].map(|(dropout, weight_decay)| {
            let course = regularisation::run(&text, dropout, Recipe { weight_decay, ..recipe }, 250).expect("a run");
            (course.validation[0].1, course.validation[0].1 - course.train)
        });
        for (name, (loss, gap)) in [("dropout", dropout), ("decay", decay)] {
            assert!(loss + 0.05 < none.0 && gap < 0.8 * none.1, "seed {seed}: {name} {loss} {gap}, nothing {none:?}");
        }
    }
}

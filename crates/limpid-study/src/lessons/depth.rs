//! The gradient through the blocks of a transformer with 16 blocks, before the first step: how residual sums, norms
//! and their place, initial weights and activations change its size. Read `stability` next.
//!
//! limpid has no transformer without residual sums or norms. But a model is a list of ops, so this lesson replaces
//! some of its ops; the list is then checked again.

use super::{Topic, means};
use limpid::{Error, Machine};
use limpid_core::config::{Activation, Config, Constants, NormPlace};
use limpid_core::model::{Mode, Model, init, init::Init};
use limpid_core::numeric::random;
use limpid_core::ops::{Batch, Op, Pass};
use limpid_trace::{Keep, Trace};

/// Gradients in a deep transformer.
pub(super) const TOPIC: Topic = Topic {
    name: "depth",
    title: "How does the gradient reach the first block of a deep transformer?",
    about: "Runs a transformer of 16 blocks, d_model 64, forward and backward once, before the first step, and \
            measures the norm of the gradient of some blocks' parameters, and that of the first divided by that of \
            the last (geometric means of three draws). The activation is GELU unless another is named. Some rows \
            leave residual sums and norms out of the model.",
    teach: |class| {
        let post = Setup { norm: Some(NormPlace::Post), ..GPT2 };
        let bare = Setup { norm: None, residual: false, init: (Init::Xavier, 0.0), ..GPT2 };
        let pre = Some(NormPlace::Pre);
        let he = (Init::He, 0.0);
        let rows = [
            ("Xavier", bare),
            ("Xavier, sigmoid", Setup { activation: Activation::Sigmoid, ..bare }),
            ("Xavier, relu", Setup { activation: Activation::Relu, ..bare }),
            ("He", Setup { init: he, ..bare }),
            ("Xavier, residual", Setup { residual: true, ..bare }),
            ("Xavier, pre-norm", Setup { norm: pre, ..bare }),
            ("Xavier, residual, pre-norm", Setup { init: bare.init, ..GPT2 }),
            ("Xavier, residual, post-norm", Setup { init: bare.init, ..post }),
            ("He, residual", Setup { norm: None, init: he, ..GPT2 }),
            ("He, residual, pre-norm", Setup { init: he, ..GPT2 }),
            ("He, residual, post-norm", Setup { init: he, ..post }),
            ("He, residual, pre-norm, sigmoid", Setup { init: he, activation: Activation::Sigmoid, ..GPT2 }),
            ("He, residual, post-norm, sigmoid", Setup { init: he, activation: Activation::Sigmoid, ..post }),
            ("GPT-2's weights, residual", Setup { norm: None, ..GPT2 }),
            ("GPT-2's weights, residual, pre-norm", GPT2),
            ("GPT-2's weights, residual, post-norm", post),
        ]
        .map(|(name, setup)| (name.to_string(), setup));
        let seeds = class.draws();
        let found = class.map(&rows, |setup| {
            let [first, second, third] = seeds.map(|seed| setup.gradients(seed));
            let norms = means(&[first?, second?, third?]);
            let ratio = norms[0] / norms[norms.len() - 1];
            Ok((norms, ratio))
        })?;
        let of = |name: &str| found[rows.iter().position(|(known, _)| known == name).expect("a row's name")].1;
        let cells = |((name, _), (g, ratio)): (&(String, Setup), &(Vec<f64>, f64))| {
            let numbers = [g[0], g[7], g[15], *ratio];
            let cell = |v: f64| if ratio.is_finite() { format!("{v:.0e}") } else { "overflows".into() };
            [name.clone()].into_iter().chain(numbers.map(cell)).collect()
        };
        let headers = ["", "block 1", "block 8", "block 16", "first / last"];
        class.table("Norm of the gradient by block", headers, rows.iter().zip(&found).map(cells));
        let both: Vec<f64> = ["Xavier", "He", "GPT-2's weights"]
            .into_iter()
            .flat_map(|init| ["pre", "post"].map(|place| of(&format!("{init}, residual, {place}-norm"))))
            .collect();
        class.claim(
            "Without residual sums and norms Xavier's weights make the gradient vanish, and He's make it explode",
        );
        class.at_most("first / last, Xavier", of("Xavier"), 1e-4);
        class.at_least("He", of("He"), 1e4);
        class.claim("With Xavier's weights either remedy alone brings it to the first block");
        class.between("first / last, Xavier, residual", of("Xavier, residual"), 0.05, 20.0);
        class.between("pre-norm", of("Xavier, pre-norm"), 0.05, 20.0);
        class.claim(
            "So do both with GELU and any of the three initial weights, in pre-norm and in post-norm: before the \
             first step neither is ahead",
        );
        class.at_least("least first / last of these six rows", both.iter().copied().fold(f64::INFINITY, f64::min), 0.1);
        class.at_most("greatest", both.iter().copied().fold(0.0, f64::max), 10.0);
        class.claim("With a sigmoid post-norm loses much of it on the way, pre-norm nothing");
        class.at_most("first / last, post-norm", of("He, residual, post-norm, sigmoid"), 0.4);
        class.at_least("pre-norm", of("He, residual, pre-norm, sigmoid"), 1.0);
        Ok(())
    },
};

/// Tokens of a sequence, sequences, size of the vocabulary.
const SIZES: (usize, usize, usize) = (16, 4, 64);

/// The parts of a model that make gradients vanish, and those that help.
#[derive(Clone, Copy)]
struct Setup {
    /// The number of blocks.
    blocks: usize,
    /// Whether blocks add to the stream.
    residual: bool,
    /// Where a block normalises, if it does.
    norm: Option<NormPlace>,
    /// The feed-forward network's function.
    activation: Activation,
    /// The scheme, and the standard deviation of its normal draws; 0 for the default of the width.
    init: (Init, f64),
}

/// GPT-2's: pre-norm, GELU, its own initial weights.
const GPT2: Setup = Setup {
    blocks: 16,
    residual: true,
    norm: Some(NormPlace::Pre),
    activation: Activation::GeluTanh,
    init: (Init::Gpt2, 0.0),
};

impl Setup {
    /// y = x, the op that replaces a part: a leaky ReLU with slope 1 on both sides.
    fn or_identity(&self, op: Op) -> Op {
        let same = |x, y| Op::Activate { f: Activation::LeakyRelu, k: Constants::leaking(1.0), x, y };
        match op {
            Op::Norm { x, y, .. } if self.norm.is_none() => same(x, y),
            Op::Add { b, y, .. } if !self.residual => same(b, y),
            other => other,
        }
    }

    /// The model with its parts replaced, forward and backward.
    fn model(&self) -> Result<Model, Error> {
        let (context, batch, vocab_size) = SIZES;
        let config = Config {
            vocab_size,
            context_length: context,
            d_model: 64,
            n_head: 4,
            n_layer: self.blocks,
            d_ff: 256,
            activation: self.activation,
            norm_place: self.norm.unwrap_or(NormPlace::Pre),
            final_norm: self.norm == Some(NormPlace::Pre),
            tied_head: false,
            ..Config::default()
        };
        let model = Model::new(&config, Mode::Inspect { batch, context })?;
        let mut draft = model.program.draft();
        draft.ops.iter_mut().for_each(|op| *op = self.or_identity(*op));
        let mut written = vec![];
        for pass in &mut draft.back {
            let Pass::Back(back) = pass else { continue };
            if let (Op::Add { .. }, false) = (back.op, self.residual) {
                back.dx = [back.dx[1], None]; // no gradient goes around the branch
            }
            if self.or_identity(back.op) != back.op {
                (back.op, back.watched) = (self.or_identity(back.op), [None; 3]);
            }
            for dx in back.dx.iter_mut().flatten() {
                dx.add = written.contains(&dx.region); // the first to write a gradient overwrites
                written.push(dx.region);
            }
        }
        Ok(model.with_program(draft).expect("the same tensors, in the same places"))
    }

    /// Norm of the gradient of each block's parameters, first block to last.
    fn gradients(&self, seed: u64) -> Result<Vec<f64>, Error> {
        let model = self.model()?;
        let mut backend = Machine::cpu(1).start(&model)?;
        let (scheme, std) = self.init;
        for param in &model.params {
            backend.fill(param.region, &init::value(&model, param, scheme, std, seed))?;
        }
        let (context, batch, vocab) = SIZES;
        let ids =
            |site| (0..(batch * context) as u64).map(|i| random::below(seed, site, i, vocab as u64) as u32).collect();
        let trace = Trace::run(&model, backend, &Batch::of_sequences(ids(1), ids(2), context), Keep::Gradients)?;
        let block = |i: usize| -> Result<f64, Error> {
            let mut squares = 0.0;
            for param in model.params.iter().filter(|p| p.module.block == Some(i)) {
                let gradient = trace.get(&format!("{}.grad", param.name))?;
                squares += gradient.values.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>();
            }
            Ok(squares.sqrt())
        };
        (0..self.blocks).map(block).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use limpid_core::backend::{Backend, Reference};

    /// A model with parts replaced still has the right gradient: along it, the loss changes as a difference quotient
    /// says (f64).
    #[test]
    fn a_list_with_parts_replaced_has_the_right_gradient() {
        let setup = Setup { blocks: 3, residual: false, norm: None, init: (Init::He, 0.0), ..GPT2 };
        for setup in [setup, Setup { residual: true, ..setup }, Setup { norm: Some(NormPlace::Pre), ..setup }] {
            let model = setup.model().unwrap();
            let mut exact = Reference::new(&model);
            model.params.iter().for_each(|p| exact.fill(p.region, &init::value(&model, p, Init::He, 0.0, 5)).unwrap());
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
}

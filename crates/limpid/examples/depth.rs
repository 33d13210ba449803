//! The gradient through the blocks of a transformer with 16 blocks, before the first step: how residual sums, norms
//! and their place, initial weights and activations change its size. docs/lessons.md shows the output.
//!
//! `cargo run --release -p limpid --example depth`
//!
//! limpid has no transformer without residual sums or norms. But a model is a list of ops, so this lesson replaces
//! some of its ops; the list is then checked again.

use limpid::backend::{Backend, Cpu};
use limpid::config::{Activation, Config, NormPlace};
use limpid::model::{Mode, Model, init, init::Init};
use limpid::ops::{Batch, Op, Pass, Program, random};
use limpid::trace::Trace;

/// Tokens of a sequence, sequences, size of the vocabulary.
const SIZES: (usize, usize, usize) = (16, 4, 64);

/// The parts of a model that make gradients vanish, and those that help.
#[derive(Clone, Copy)]
pub struct Setup {
    /// The number of blocks.
    pub blocks: usize,
    /// Whether blocks add to the stream.
    pub residual: bool,
    /// Where a block normalises, if it does.
    pub norm: Option<NormPlace>,
    /// The feed-forward network's function.
    pub activation: Activation,
    /// The scheme, and the standard deviation of its normal draws; 0 for the default of the width.
    pub init: (Init, f64),
}

/// GPT-2's: pre-norm, GELU, its own initial weights.
pub const GPT2: Setup = Setup {
    blocks: 16,
    residual: true,
    norm: Some(NormPlace::Pre),
    activation: Activation::GeluTanh,
    init: (Init::Gpt2, 0.0),
};

impl Setup {
    /// y = x, the op that replaces a part: a leaky ReLU with slope 1 on both sides.
    fn or_identity(&self, op: Op) -> Op {
        let same = |x, y| Op::Activate { f: Activation::LeakyRelu, slope: 1.0, x, y };
        match op {
            Op::Norm { x, y, .. } if self.norm.is_none() => same(x, y),
            Op::Add { b, y, .. } if !self.residual => same(b, y),
            other => other,
        }
    }

    /// The model with its parts replaced, forward and backward.
    pub fn model(&self) -> Model {
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
        let mut model = Model::new(&config, Mode::Inspect { batch, context }).expect("sizes that fit");
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
        model.program = Program::new(draft).expect("the same tensors, in the same places");
        model
    }

    /// Norm of the gradient of each block's parameters, first block to last.
    pub fn gradients(&self, seed: u64) -> Vec<f64> {
        let model = self.model();
        let mut cpu = Cpu::new(&model, 2);
        let (scheme, std) = self.init;
        model.params.iter().for_each(|p| cpu.write(p.region, &init::values(&model, p, scheme, std, seed)).unwrap());
        let (context, batch, vocab) = SIZES;
        let ids =
            |site| (0..(batch * context) as u64).map(|i| random::below(seed, site, i, vocab as u64) as u32).collect();
        let trace = Trace::run(&model, &mut cpu, &Batch::of_sequences(ids(1), ids(2), context), true);
        let trace = trace.expect("a batch that fits");
        let square = |name: &str| -> f64 {
            trace
                .get(&format!("{name}.grad"))
                .expect("it ran backward")
                .values
                .iter()
                .map(|g| f64::from(*g).powi(2))
                .sum()
        };
        let block = |i: usize| {
            let layer = format!("blocks.{i}");
            model.params.iter().filter(|p| p.layer() == layer).map(|p| square(&p.name)).sum::<f64>().sqrt()
        };
        (0..self.blocks).map(block).collect()
    }

    /// The first block's gradient divided by the last's, as the geometric mean of three seeds.
    pub fn first_over_last(&self) -> f64 {
        let ratio = |g: Vec<f64>| (g[0] / g[g.len() - 1]).ln();
        ((0..3).map(|seed| ratio(self.gradients(seed))).sum::<f64>() / 3.0).exp()
    }
}

fn main() {
    let post = Setup { norm: Some(NormPlace::Post), ..GPT2 };
    let bare = Setup { norm: None, residual: false, init: (Init::Xavier, 0.0), ..GPT2 };
    let rows = [
        ("no residual, no norm, Xavier", bare),
        ("  sigmoid", Setup { activation: Activation::Sigmoid, ..bare }),
        ("  relu", Setup { activation: Activation::Relu, ..bare }),
        ("  He", Setup { init: (Init::He, 0.0), ..bare }),
        ("  residual", Setup { residual: true, ..bare }),
        ("  pre-norm", Setup { norm: Some(NormPlace::Pre), ..bare }),
        ("  residual, pre-norm", Setup { init: bare.init, ..GPT2 }),
        ("  residual, post-norm", Setup { init: bare.init, ..post }),
        ("residual, no norm, He", Setup { norm: None, init: (Init::He, 0.0), ..GPT2 }),
        ("  pre-norm", Setup { init: (Init::He, 0.0), ..GPT2 }),
        ("  post-norm", Setup { init: (Init::He, 0.0), ..post }),
        ("  pre-norm, sigmoid", Setup { init: (Init::He, 0.0), activation: Activation::Sigmoid, ..GPT2 }),
        ("  post-norm, sigmoid", Setup { init: (Init::He, 0.0), activation: Activation::Sigmoid, ..post }),
        ("GPT-2: residual, pre-norm, its weights", GPT2),
        ("  post-norm", post),
        ("  no norm", Setup { norm: None, ..GPT2 }),
    ];
    println!("Norm of the gradient by block\n{:<40}{:>9}{:>9}{:>9}  first/last", "", "block 1", "8", "16");
    let mut ratios = vec![];
    for (name, setup) in rows {
        let (g, ratio) = (setup.gradients(0), setup.first_over_last());
        let columns: String = [0, 7, 15].map(|i| format!("{:>9.0e}", g[i])).concat();
        println!(
            "{name:<40}{}",
            if ratio.is_finite() { format!("{columns}{ratio:>12.0e}") } else { format!("{:>39}", "overflows") }
        );
        ratios.push(ratio);
    }
    println!(
        "\nWithout residual sums and norms the first of 16 blocks gets {:.0e} of the last one's gradient with Xavier's weights and\n\
         {:.0e} times as much with He's; with both, between {:.1} and {:.1} times as much with either, pre-norm or post-norm.",
        ratios[0],
        ratios[3],
        [6, 7, 9, 10].map(|i| ratios[i]).into_iter().fold(f64::INFINITY, f64::min),
        [6, 7, 9, 10].map(|i| ratios[i]).into_iter().fold(0.0, f64::max),
    );
}

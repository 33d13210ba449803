//! Gradients that vanish and gradients that explode, in the plainest deep network: 20 layers of `x' = f(x W')`,
//! forward and backward by hand with limpid's ops in f64. Then the remedies: weights of the right size, another
//! activation, residual sums, norms. Read `depth` next.

use super::{Topic, means};
use limpid_core::config::{Activation, Constants, NormKind};
use limpid_core::kernels::activate::reference as f;
use limpid_core::kernels::linear::reference as linear;
use limpid_core::kernels::norm::reference as norm;
use limpid_core::numeric::random;

/// Gradients in a plain stack of layers.
pub(super) const TOPIC: Topic = Topic {
    name: "gradients",
    title: "Why do gradients vanish and explode in a deep stack of layers, and what helps?",
    about: "Sends a random gradient down through 20 layers x' = f(x W'), width 48, and measures its norm after some \
            of them, the factor by which a layer multiplies it, and its norm at the second layer divided by that at \
            the last (geometric means of three draws). Below 1/100 it vanishes, above 100 it explodes. The second \
            layer stands for the first, whose input does not grow with the weights.",
    teach: |class| {
        let with = |activation, gain| Stack { activation, gain, ..RELU };
        use Activation::{GeluTanh, LeakyRelu, Relu, Sigmoid, Tanh};
        let sections: [(&str, Vec<(&str, Stack)>); 5] = [
            (
                "Activations, each with Xavier's or He's weights",
                vec![
                    ("sigmoid, Xavier", with(Sigmoid, 1.0)),
                    ("tanh, Xavier", with(Tanh, 1.0)),
                    ("relu, He", RELU),
                    ("leaky relu (0.2), He", with(LeakyRelu, RELU.gain)),
                    ("gelu, He", with(GeluTanh, RELU.gain)),
                ],
            ),
            (
                "Weights",
                vec![
                    ("relu, a third of He's", with(Relu, RELU.gain / 3.0)),
                    ("relu, Xavier", with(Relu, 1.0)),
                    ("relu, three times He's", with(Relu, 3.0 * RELU.gain)),
                    ("tanh, a third of Xavier's", with(Tanh, 1.0 / 3.0)),
                    ("tanh, three times Xavier's", with(Tanh, 3.0)),
                ],
            ),
            (
                "Residual sums, x' = x + f(x W')",
                vec![
                    ("residual, sigmoid, Xavier", Stack { residual: true, ..with(Sigmoid, 1.0) }),
                    ("residual, relu, a third of He's", Stack { residual: true, ..with(Relu, RELU.gain / 3.0) }),
                    ("residual, relu, He", Stack { residual: true, ..RELU }),
                ],
            ),
            (
                "Norms, x' = f(norm(x) W'), relu but for the last",
                vec![
                    ("layer norm, a third of He's", Stack { norm: Norm::Layer, ..with(Relu, RELU.gain / 3.0) }),
                    ("layer norm, three times He's", Stack { norm: Norm::Layer, ..with(Relu, 3.0 * RELU.gain) }),
                    ("batch norm, a third of He's", Stack { norm: Norm::Batch, ..with(Relu, RELU.gain / 3.0) }),
                    ("batch norm, three times He's", Stack { norm: Norm::Batch, ..with(Relu, 3.0 * RELU.gain) }),
                    ("layer norm and residual, He", Stack { norm: Norm::Layer, residual: true, ..RELU }),
                    ("layer norm, sigmoid, Xavier", Stack { norm: Norm::Layer, ..with(Sigmoid, 1.0) }),
                ],
            ),
            (
                "100 layers",
                vec![
                    ("100, relu, He", Stack { layers: 100, ..RELU }),
                    ("100, relu, half of He's", Stack { layers: 100, ..with(Relu, 0.5 * RELU.gain) }),
                    ("100, sigmoid, Xavier", Stack { layers: 100, ..with(Sigmoid, 1.0) }),
                    ("100, layer norm, He", Stack { layers: 100, norm: Norm::Layer, ..RELU }),
                    (
                        "100, layer norm and residual, He",
                        Stack { layers: 100, norm: Norm::Layer, residual: true, ..RELU },
                    ),
                ],
            ),
        ];
        let all: Vec<(String, Stack)> =
            sections.iter().flat_map(|(_, rows)| rows).map(|(name, stack)| (name.to_string(), *stack)).collect();
        let seeds = class.draws();
        let found = class.map(&all, |stack| Ok(GradientNorms::measure(stack, seeds)))?;
        let of = |name: &str| &found[all.iter().position(|(known, _)| known == name).expect("a row's name")];
        for (title, rows) in &sections {
            let last = rows[0].1.layers - 1;
            let shown = [1, last * 6 / 19, last * 13 / 19, last];
            let cells = |(name, _): &(&str, Stack)| {
                let found = of(name);
                let says = match found.arrives() {
                    share if share < 0.01 => "vanishes",
                    share if share > 100.0 => "explodes",
                    _ => "arrives",
                };
                let norms = shown.map(|layer| format!("{:.0e}", found.norms[layer]));
                let (times, through) = (format!("{:.2}", found.times()), format!("{:.0e}", found.arrives()));
                [row![name], norms.to_vec(), row![times, through, says]].concat()
            };
            let [a, b, c, d] = shown.map(|layer| layer + 1);
            let headers = row!["", format!("layer {a}"), b, c, d, "times a layer", "second / last", "verdict"];
            class.table(*title, headers, rows.iter().map(cells));
        }
        let leaks = [Norm::Layer, Norm::Batch].map(|norm| Stack { norm, ..RELU }.leak(seeds[0]));
        let rows = ["layer norm", "batch norm"].into_iter().zip(leaks);
        let rows = rows.map(|(name, leak)| row![name, format!("{:.0} %", 100.0 * leak)]);
        let title = "All rows of the batch but one change: how far that one's output moves";
        class.table(title, ["", "of its length"], rows);

        let times = |name: &str| of(name).times();
        let ratio = |a: &str, b: &str| times(a) / times(b);
        let third = ratio("relu, a third of He's", "relu, He");
        let three = ratio("relu, three times He's", "relu, He");
        let forgets = |kind: &str| ratio(&format!("{kind}, a third of He's"), &format!("{kind}, three times He's"));
        let both = of("100, layer norm and residual, He").arrives();
        class.claim("A ReLU with He's weights passes the gradient on, and so does a leaky ReLU");
        class.between("times a layer, relu", times("relu, He"), 0.85, 1.15);
        class.between("leaky relu", times("leaky relu (0.2), He"), 0.85, 1.2);
        class.claim(
            "With Xavier's weights a sigmoid lets it vanish: its slope is at most a quarter, and so is the share that \
             a layer passes on; tanh's is at most 1",
        );
        class.between("times a layer, sigmoid", times("sigmoid, Xavier"), 0.0, 0.26);
        class.between("tanh", times("tanh, Xavier"), 0.8, 1.0);
        class.claim(
            "A ReLU's gradient is proportional to the weights: with a third of them it shrinks to a third per layer, \
             with three times them it triples",
        );
        class.between("3 × a third", 3.0 * third, 1.0 - 1e-9, 1.0 + 1e-9);
        class.between("three times / 3", three / 3.0, 1.0 - 1e-9, 1.0 + 1e-9);
        class.claim("Large weights, which saturate tanh, make its gradient grow from layer to layer");
        class.at_least("times a layer", times("tanh, three times Xavier's"), 1.15);
        class.claim("A norm makes the gradient forget how large the weights are");
        class.between("a third of He's / three times He's, layer norm", forgets("layer norm"), 0.99, 1.01);
        class.between("batch norm", forgets("batch norm"), 0.99, 1.01);
        class.claim("Residual sums and a norm together carry it through 100 layers");
        class.between("second / last", both, 0.1, 100.0);
        class.claim("A norm alone does not, nor does a sigmoid");
        class.at_least("second / last, norm alone / both", of("100, layer norm, He").arrives() / both, 1e4);
        class.at_most("sigmoid", of("100, sigmoid, Xavier").arrives(), 1e-50);
        class.claim(
            "Batch norm lets rows see each other: in a decoder they are other texts and later tokens. Layer norm does \
             not",
        );
        class.at_least("moved, batch norm", leaks[1], 0.1);
        class.between("layer norm", leaks[0], 0.0, 0.0);
        Ok(())
    },
};

/// Rows of the batch, and features of each row.
const WIDTH: usize = 48;
const LEAK: Constants = Constants::leaking(0.2);
const LAYER_NORM: (NormKind, f64) = (NormKind::Layer, 1e-5);

/// What a layer normalises before its product.
#[derive(Clone, Copy, PartialEq)]
enum Norm {
    /// Nothing.
    None,
    /// Each row over its features.
    Layer,
    /// Each feature over the rows of the batch: layer norm of the transposed matrix.
    Batch,
}

/// One network.
#[derive(Clone, Copy)]
struct Stack {
    /// The number of layers.
    layers: usize,
    /// f
    activation: Activation,
    /// Standard deviation of the weights, in units of 1 / sqrt(width): 1 is Xavier's, sqrt(2) He's.
    gain: f64,
    /// x' = x + f(...) instead of x' = f(...).
    residual: bool,
    /// What comes before the product.
    norm: Norm,
}

/// A plain stack of ReLUs with He's weights.
const RELU: Stack = Stack {
    layers: 20,
    activation: Activation::Relu,
    gain: std::f64::consts::SQRT_2,
    residual: false,
    norm: Norm::None,
};

/// What the backward of a layer needs: its input, the norm's statistics, the product.
type Kept = (Vec<f64>, Vec<f64>, Vec<f64>);

impl Stack {
    /// All layers, first to last; the output of the last one comes at the end.
    fn forward(&self, weights: &[Vec<f64>], mut x: Vec<f64>) -> (Vec<Kept>, Vec<f64>) {
        let mut kept = vec![];
        for w in weights {
            let mut stats = vec![0.0; 2 * WIDTH];
            let mut normed = x.clone();
            let mut product = x.clone();
            if self.norm != Norm::None {
                norm::forward((&mut normed, &mut stats), &self.turn(&x), (None, None), LAYER_NORM);
                normed = self.turn(&normed);
            }
            linear::forward(&mut product, &normed, w, None, WIDTH);
            let on = |(x, a): (&f64, &f64)| f::value(self.activation, LEAK, *a) + if self.residual { *x } else { 0.0 };
            let y = x.iter().zip(&product).map(on).collect();
            kept.push((x, stats, product));
            x = y;
        }
        (kept, x)
    }

    /// Norm of the gradient with respect to each layer's input, dL/dx, first layer to last, for a random gradient of
    /// the output.
    fn gradients(&self, seed: u64) -> Vec<f64> {
        let weights = self.weights(seed);
        let kept = self.forward(&weights, random("x", seed)).0;
        let (mut dy, mut norms) = (random("dy", seed), vec![]);
        for (w, (x, stats, product)) in weights.iter().zip(kept).rev() {
            let slope = |(d, a): (&f64, &f64)| d * f::derivative(self.activation, LEAK, *a);
            let d: Vec<f64> = dy.iter().zip(&product).map(slope).collect();
            let mut dx = vec![0.0; x.len()];
            linear::backward_x(&mut dx, false, &d, w, WIDTH);
            if self.norm != Norm::None {
                let (d, x) = (self.turn(&dx), self.turn(&x));
                norm::backward((&mut dx, false), (None, None), &d, &x, &stats, None, LAYER_NORM);
                dx = self.turn(&dx);
            }
            if self.residual {
                dx.iter_mut().zip(&dy).for_each(|(dx, dy)| *dx += dy);
            }
            norms.push(dx.iter().map(|d| d * d).sum::<f64>().sqrt());
            dy = dx;
        }
        norms.reverse();
        norms
    }

    /// How far the first row of the output moves, as a fraction of its length, when all *other* rows of the batch
    /// change.
    fn leak(&self, seed: u64) -> f64 {
        let weights = self.weights(seed);
        let x = random("x", seed);
        let others = [&x[..WIDTH], &random("others", seed)[WIDTH..]].concat();
        let [a, b] = [x, others].map(|x| self.forward(&weights, x).1);
        let length = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
        length(&mut a.iter().zip(&b).take(WIDTH).map(|(a, b)| a - b)) / length(&mut a.iter().take(WIDTH).copied())
    }

    fn weights(&self, seed: u64) -> Vec<Vec<f64>> {
        let scale = self.gain / (WIDTH as f64).sqrt();
        let layer = |l| random(&format!("layer {l}"), seed).iter().map(|w| scale * w).collect();
        (0..self.layers).map(layer).collect()
    }

    /// The matrix in the orientation that the norm needs.
    fn turn(&self, x: &[f64]) -> Vec<f64> {
        let at = |i: usize| if self.norm == Norm::Batch { i % WIDTH * WIDTH + i / WIDTH } else { i };
        (0..x.len()).map(|i| x[at(i)]).collect()
    }
}

fn random(what: &str, seed: u64) -> Vec<f64> {
    (0..(WIDTH * WIDTH) as u64).map(|i| random::normal(seed, random::site(what), i)).collect()
}

/// What became of the gradient in a stack.
struct GradientNorms {
    /// Its length at each layer, first to last: the geometric mean of three draws.
    norms: Vec<f64>,
}

impl GradientNorms {
    fn measure(stack: &Stack, seeds: [u64; 3]) -> GradientNorms {
        GradientNorms { norms: means(&seeds.map(|seed| stack.gradients(seed))) }
    }

    /// What is left at the second layer of the last one's.
    fn arrives(&self) -> f64 {
        self.norms[1] / self.norms[self.norms.len() - 1]
    }

    /// What a layer multiplies it by.
    fn times(&self) -> f64 {
        self.arrives().powf(1.0 / (self.norms.len() - 2) as f64)
    }
}

//! Gradients that vanish and gradients that explode, in the plainest deep network: 20 layers of `x' = f(x W')`,
//! forward and backward by hand with limpid's ops in f64. Then the remedies: weights of the right size, another
//! activation, residual sums, norms. docs/lessons.md shows the output. Read `depth` next.
//!
//! `cargo run --release -p limpid --example gradients`

use limpid::config::{Activation, NormKind};
use limpid::ops::{activate::reference as f, linear::reference as linear, norm::reference as norm, random};

/// Rows of the batch, and features of each row.
const WIDTH: usize = 48;
const LEAK: f64 = 0.2;
const LAYER_NORM: (NormKind, f64) = (NormKind::Layer, 1e-5);

/// What a layer normalises before its product.
#[derive(Clone, Copy, PartialEq)]
pub enum Norm {
    /// Nothing.
    None,
    /// Each row over its features.
    Layer,
    /// Each feature over the rows of the batch: layer norm of the transposed matrix.
    Batch,
}

/// One network.
#[derive(Clone, Copy)]
pub struct Stack {
    /// The number of layers.
    pub layers: usize,
    /// f
    pub activation: Activation,
    /// Standard deviation of the weights, in units of 1 / sqrt(width): 1 is Xavier's, sqrt(2) He's.
    pub gain: f64,
    /// x' = x + f(...) instead of x' = f(...).
    pub residual: bool,
    /// What comes before the product.
    pub norm: Norm,
}

/// A plain stack of ReLUs with He's weights.
pub const RELU: Stack = Stack {
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
            let (mut stats, mut normed, mut product) = (vec![0.0; 2 * WIDTH], x.clone(), x.clone());
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
    pub fn gradients(&self, seed: u64) -> Vec<f64> {
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
    pub fn leak(&self, seed: u64) -> f64 {
        let (weights, x) = (self.weights(seed), random("x", seed));
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

/// The gradient of the second layer divided by that of the last: the geometric mean of three seeds.
pub fn arrives(stack: &Stack) -> f64 {
    let log = |g: Vec<f64>| (g[1] / g[stack.layers - 1]).ln();
    ((0..3).map(|seed| log(stack.gradients(seed))).sum::<f64>() / 3.0).exp()
}

/// The factor by which each layer changes the gradient in the backward pass.
pub fn a_layer(stack: &Stack) -> f64 {
    arrives(stack).powf(1.0 / (stack.layers - 2) as f64)
}

fn main() {
    let with = |activation, gain| Stack { activation, gain, ..RELU };
    use Activation::{GeluTanh, LeakyRelu, Relu, Sigmoid, Tanh};
    let sections: [(&str, Vec<(&str, Stack)>); 4] = [
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
                ("relu, He", RELU),
                ("relu, three times He's", with(Relu, 3.0 * RELU.gain)),
                ("tanh, a third of Xavier's", with(Tanh, 1.0 / 3.0)),
                ("tanh, three times Xavier's", with(Tanh, 3.0)),
            ],
        ),
        (
            "Residual sums, x' = x + f(x W')",
            vec![
                ("sigmoid, Xavier", Stack { residual: true, ..with(Sigmoid, 1.0) }),
                ("relu, a third of He's", Stack { residual: true, ..with(Relu, RELU.gain / 3.0) }),
                ("relu, He", Stack { residual: true, ..RELU }),
            ],
        ),
        (
            "Norms, x' = f(norm(x) W')",
            vec![
                ("layer norm, a third of He's", Stack { norm: Norm::Layer, ..with(Relu, RELU.gain / 3.0) }),
                ("layer norm, three times He's", Stack { norm: Norm::Layer, ..with(Relu, 3.0 * RELU.gain) }),
                ("batch norm, a third of He's", Stack { norm: Norm::Batch, ..with(Relu, RELU.gain / 3.0) }),
                ("batch norm, three times He's", Stack { norm: Norm::Batch, ..with(Relu, 3.0 * RELU.gain) }),
                ("layer norm and residual, He", Stack { norm: Norm::Layer, residual: true, ..RELU }),
                ("layer norm, sigmoid, Xavier", Stack { norm: Norm::Layer, ..with(Sigmoid, 1.0) }),
            ],
        ),
    ];
    for (title, rows) in sections {
        println!("{title}\n{:<32}{:>9}{:>9}{:>9}{:>9}  times a layer", "", "layer 1", "7", "14", "20");
        for (name, stack) in rows {
            let g = stack.gradients(0);
            let columns: String = [0, 6, 13, 19].map(|l| format!("{:>9.0e}", g[l])).concat();
            let times = a_layer(&stack);
            let says = if times < 0.8 {
                "vanishes"
            } else if times > 1.3 {
                "explodes"
            } else {
                "arrives"
            };
            println!("{name:<32}{columns}{times:>9.2}  {says}");
        }
        println!();
    }
    let deep = |stack| arrives(&Stack { layers: 100, ..stack });
    println!(
        "Of 100 layers, the second gets this times the gradient of the last: relu with He's weights {:.0e}, with half of them {:.0e};\n\
         sigmoid {:.0e}; layer norm {:.0e}; layer norm and residual sums {:.0e}.",
        deep(RELU),
        deep(with(Relu, 0.5 * RELU.gain)),
        deep(with(Sigmoid, 1.0)),
        deep(Stack { norm: Norm::Layer, ..RELU }),
        deep(Stack { norm: Norm::Layer, residual: true, ..RELU }),
    );
    let [layer, batch] = [Norm::Layer, Norm::Batch].map(|norm| 100.0 * Stack { norm, ..RELU }.leak(0));
    println!(
        "Change all rows of the batch but one: that one's output moves by {batch:.0} % of its length with batch norm, by {layer:.0} % \
         with\nlayer norm. In a decoder the other rows are other texts and later tokens: batch norm would look ahead."
    );
}

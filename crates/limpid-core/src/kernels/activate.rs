//! The activation functions of the feed-forward network: the value and the slope of each, in f64 by definition, and
//! in f32 without branches, in one pass of sixteen elements at a time. Measured on one AVX-512 core with data in the
//! L2 cache, GB/s read and written, forward and backward: GELU by tanh 17 and 19, by erf 11 and 13, SiLU 20 and 26.

use crate::config::{Activation, Constants};
use crate::numeric::math::{self, exp, normal, normal_density, sigmoid, tanh};
use crate::numeric::simd::{Kernel, MulAdd};

const QUICK: f64 = 1.702;

/// The constants in f32: the leaky ReLU's slope, and [`gelu`]'s.
#[derive(Clone, Copy)]
struct Narrow {
    leak: f32,
    a: f32,
    b: f32,
}

impl From<Constants> for Narrow {
    fn from(k: Constants) -> Narrow {
        let [a, b] = gelu(k);
        Narrow { leak: k.leak as f32, a: a as f32, b: b as f32 }
    }
}

/// a and b of GELU by tanh as x sigmoid(a (x + b x^3)), for (1 + tanh u) / 2 = sigmoid(2 u).
pub fn gelu(k: Constants) -> [f64; 2] {
    [2.0 * k.beta * k.alpha, k.gamma * k.alpha * k.alpha]
}

/// By definition, in f64.
pub mod reference {
    use super::{Activation, Constants, QUICK, math::reference as exact};

    /// f(x)
    pub fn value(f: Activation, k: Constants, x: f64) -> f64 {
        match f {
            Activation::Relu => x.max(0.0),
            Activation::LeakyRelu => {
                if x > 0.0 {
                    x
                } else {
                    k.leak * x
                }
            }
            Activation::GeluErf => x * exact::normal(x),
            Activation::GeluTanh => {
                let z = k.alpha * x;
                0.5 * x * (1.0 + (k.beta * (z + k.gamma * z * z * z)).tanh())
            }
            Activation::GeluSigmoid => x * exact::sigmoid(QUICK * x),
            Activation::Silu => x * exact::sigmoid(x),
            Activation::Relu2 => x.max(0.0) * x.max(0.0),
            Activation::Sigmoid => exact::sigmoid(x),
            Activation::Tanh => x.tanh(),
        }
    }

    /// f'(x)
    pub fn derivative(f: Activation, k: Constants, x: f64) -> f64 {
        let swish = |c: f64| {
            let s = exact::sigmoid(c * x);
            s * (1.0 + c * x * (1.0 - s))
        };
        match f {
            Activation::Relu => f64::from(x > 0.0),
            Activation::LeakyRelu => {
                if x > 0.0 {
                    1.0
                } else {
                    k.leak
                }
            }
            Activation::GeluErf => exact::normal(x) + x * exact::normal_density(x),
            Activation::GeluTanh => {
                let z = k.alpha * x;
                let t = (k.beta * (z + k.gamma * z * z * z)).tanh();
                0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * k.beta * k.alpha * (1.0 + 3.0 * k.gamma * z * z)
            }
            Activation::GeluSigmoid => swish(QUICK),
            Activation::Silu => swish(1.0),
            Activation::Relu2 => 2.0 * x.max(0.0),
            Activation::Sigmoid => exact::sigmoid(x) * (1.0 - exact::sigmoid(x)),
            Activation::Tanh => 1.0 - x.tanh() * x.tanh(),
        }
    }
}

/// One function in f32. It is a type, so that its value and slope are compiled into the loops of every level.
trait Curve {
    fn value<M: MulAdd>(k: Narrow, x: f32) -> f32;
    fn slope<M: MulAdd>(k: Narrow, x: f32) -> f32;
}

/// Runs `$body` with `$C` as the type for `$f`.
macro_rules! with_curve {
    ($f:expr, $C:ident => $body:expr) => {
        with_curve!($f, $C => $body; Relu LeakyRelu GeluErf GeluTanh GeluSigmoid Silu Relu2 Sigmoid Tanh)
    };
    ($f:expr, $C:ident => $body:expr; $($curve:ident)*) => {
        match $f {
            $(Activation::$curve => {
                type $C = $curve;
                $body
            })*
        }
    };
}

struct Relu;
impl Curve for Relu {
    #[inline(always)]
    fn value<M: MulAdd>(_: Narrow, x: f32) -> f32 {
        if x < 0.0 { 0.0 } else { x }
    }
    #[inline(always)]
    fn slope<M: MulAdd>(_: Narrow, x: f32) -> f32 {
        if x > 0.0 { 1.0 } else { 0.0 }
    }
}

struct Relu2;
impl Curve for Relu2 {
    #[inline(always)]
    fn value<M: MulAdd>(_: Narrow, x: f32) -> f32 {
        if x < 0.0 { 0.0 } else { x * x }
    }
    #[inline(always)]
    fn slope<M: MulAdd>(_: Narrow, x: f32) -> f32 {
        if x > 0.0 { 2.0 * x } else { 0.0 }
    }
}

struct LeakyRelu;
impl Curve for LeakyRelu {
    #[inline(always)]
    fn value<M: MulAdd>(k: Narrow, x: f32) -> f32 {
        if x < 0.0 { k.leak * x } else { x }
    }
    #[inline(always)]
    fn slope<M: MulAdd>(k: Narrow, x: f32) -> f32 {
        if x > 0.0 { 1.0 } else { k.leak }
    }
}

struct GeluErf;
impl Curve for GeluErf {
    #[inline(always)]
    fn value<M: MulAdd>(_: Narrow, x: f32) -> f32 {
        x * normal::<M>(x)
    }
    #[inline(always)]
    fn slope<M: MulAdd>(_: Narrow, x: f32) -> f32 {
        normal::<M>(x) + x * normal_density::<M>(x)
    }
}

/// By a sigmoid ([`gelu`]): no cancellation far below zero.
struct GeluTanh;
impl Curve for GeluTanh {
    #[inline(always)]
    fn value<M: MulAdd>(k: Narrow, x: f32) -> f32 {
        x * sigmoid::<M>(k.a * (x + k.b * x * x * x))
    }
    #[inline(always)]
    fn slope<M: MulAdd>(k: Narrow, x: f32) -> f32 {
        let [s, rest] = both_sides::<M>(k.a * (x + k.b * x * x * x));
        let inner = k.a * (1.0 + 3.0 * k.b * x * x);
        s + x * s * rest * inner
    }
}

struct GeluSigmoid;
impl Curve for GeluSigmoid {
    #[inline(always)]
    fn value<M: MulAdd>(_: Narrow, x: f32) -> f32 {
        x * sigmoid::<M>(QUICK as f32 * x)
    }
    #[inline(always)]
    fn slope<M: MulAdd>(_: Narrow, x: f32) -> f32 {
        swish_slope::<M>(QUICK as f32, x)
    }
}

struct Silu;
impl Curve for Silu {
    #[inline(always)]
    fn value<M: MulAdd>(_: Narrow, x: f32) -> f32 {
        x * sigmoid::<M>(x)
    }
    #[inline(always)]
    fn slope<M: MulAdd>(_: Narrow, x: f32) -> f32 {
        swish_slope::<M>(1.0, x)
    }
}

struct Sigmoid;
impl Curve for Sigmoid {
    #[inline(always)]
    fn value<M: MulAdd>(_: Narrow, x: f32) -> f32 {
        sigmoid::<M>(x)
    }
    #[inline(always)]
    fn slope<M: MulAdd>(_: Narrow, x: f32) -> f32 {
        let [s, rest] = both_sides::<M>(x);
        s * rest
    }
}

struct Tanh;
impl Curve for Tanh {
    #[inline(always)]
    fn value<M: MulAdd>(_: Narrow, x: f32) -> f32 {
        tanh::<M>(x)
    }
    #[inline(always)]
    fn slope<M: MulAdd>(_: Narrow, x: f32) -> f32 {
        let [s, rest] = both_sides::<M>(2.0 * x);
        4.0 * s * rest
    }
}

/// sigmoid(x) and 1 - sigmoid(x), neither by subtraction.
#[inline(always)]
fn both_sides<M: MulAdd>(x: f32) -> [f32; 2] {
    let e = exp::<M>(-x.abs());
    let near = 1.0 / (1.0 + e);
    if x < 0.0 { [e * near, near] } else { [near, e * near] }
}

/// The slope of x sigmoid(k x).
#[inline(always)]
fn swish_slope<M: MulAdd>(k: f32, x: f32) -> f32 {
    let [s, rest] = both_sides::<M>(k * x);
    s * (1.0 + k * x * rest)
}

/// y = f(x)
pub struct Forward<'a> {
    /// f
    pub f: Activation,
    /// its constants
    pub k: Constants,
    /// the output
    pub y: &'a mut [f32],
    /// the input
    pub x: &'a [f32],
}

impl Kernel for Forward<'_> {
    #[inline(always)]
    fn run<M: MulAdd>(self) {
        let Forward { f, k, y, x } = self;
        let k = Narrow::from(k);
        // loops, not closures: a closure may stay a function compiled without the level's instructions
        with_curve!(f, C => for (y, x) in y.iter_mut().zip(x) {
            *y = C::value::<M>(k, *x);
        });
    }
}

/// dx = dy f'(x)
pub struct Backward<'a> {
    /// f
    pub f: Activation,
    /// its constants
    pub k: Constants,
    /// gradient of the input
    pub dx: &'a mut [f32],
    /// whether dx is added to
    pub add: bool,
    /// gradient of the output
    pub dy: &'a [f32],
    /// the forward's input
    pub x: &'a [f32],
}

impl Kernel for Backward<'_> {
    #[inline(always)]
    fn run<M: MulAdd>(self) {
        let Backward { f, k, dx, add, dy, x } = self;
        let k = Narrow::from(k);
        with_curve!(f, C => for ((dx, dy), x) in dx.iter_mut().zip(dy).zip(x) {
            let value = dy * C::slope::<M>(k, *x);
            *dx = if add { *dx + value } else { value };
        });
    }
}

#[cfg(test)]
mod tests {
    use super::reference::{derivative, value};
    use super::*;
    use crate::config::Axis;

    /// (α, β, γ, x, value, slope)
    #[rustfmt::skip]
    #[allow(clippy::excessive_precision)]
    const GENERAL_GELU: [(f64, f64, f64, f64, f64, f64); 25] = [
        (1.0, 0.7978845608028654, 0.044715, -2.5, -0.015084266089998577, -0.03795157621266618),
        (1.0, 0.7978845608028654, 0.044715, -0.4, -0.13783883057264382, 0.19734116557943862),
        (1.0, 0.7978845608028654, 0.044715, 0.0, 0.0, 0.5),
        (1.0, 0.7978845608028654, 0.044715, 0.7, 0.5305701347051167, 0.976357218656104),
        (1.0, 0.7978845608028654, 0.044715, 3.0, 2.996362607918227, 1.0115841666309695),
        (1.3, 0.9, 0.1, -2.5, -1.4920450991662282e-05, -0.0001395780853190726),
        (1.3, 0.9, 0.1, -0.4, -0.11064643991383966, 0.07412961420425096),
        (1.3, 0.9, 0.1, 0.0, 0.0, 0.5),
        (1.3, 0.9, 0.1, 0.7, 0.5984370711365936, 1.1085605994222285),
        (1.3, 0.9, 0.1, 3.0, 2.9999999381657076, 1.0000007843115089),
        (0.5, 0.7, -0.05, -2.5, -0.4153338835420066, -0.019479283204864528),
        (0.5, 0.7, -0.05, -0.4, -0.17223642914602424, 0.3623519070649482),
        (0.5, 0.7, -0.05, 0.0, 0.0, 0.5),
        (0.5, 0.7, -0.05, 0.7, 0.4335794120848302, 0.7327910633922768),
        (0.5, 0.7, -0.05, 3.0, 2.597200327867488, 1.0274510194707016),
        (-1.0, 0.8, 0.04, -2.5, -2.483267872689288, 1.0398435457712463),
        (-1.0, 0.8, 0.04, -0.4, -0.26227151167107393, 0.8029420039929485),
        (-1.0, 0.8, 0.04, 0.0, 0.0, 0.5),
        (-1.0, 0.8, 0.04, 0.7, 0.1693735062155045, 0.0244566316358292),
        (-1.0, 0.8, 0.04, 3.0, 0.004379378014328084, -0.013093501509719488),
        (2.0, 1.2, 0.0, -2.5, -1.5360436505518216e-05, -6.758546761370164e-05),
        (2.0, 1.2, 0.0, -0.4, -0.05114462652763255, -0.08624336714174266),
        (2.0, 1.2, 0.0, 0.0, 0.0, 0.5),
        (2.0, 1.2, 0.0, 0.7, 0.6765015437029621, 1.0754370072985127),
        (2.0, 1.2, 0.0, 3.0, 2.9999983278298243, 1.0000074690223115),
    ];

    /// Contract G23, as printed there.
    #[test]
    fn gelu_in_its_three_forms() {
        let rows = [
            (-3.0, -0.004_049_694, -0.003_637_392, -0.018_071_310),
            (-2.0, -0.045_500_264, -0.045_402_306, -0.064_341_377),
            (-1.0, -0.158_655_254, -0.158_808_009, -0.154_204_234),
            (-0.5, -0.154_268_769, -0.154_285_990, -0.149_611_563),
            (-0.1, -0.046_017_216, -0.046_017_249, -0.045_755_242),
            (0.0, 0.0, 0.0, 0.0),
            (0.1, 0.053_982_784, 0.053_982_751, 0.054_244_758),
            (1.0, 0.841_344_746, 0.841_191_991, 0.845_795_766),
            (3.0, 2.995_950_306, 2.996_362_608, 2.981_928_690),
        ];
        for (x, erf, tanh, quick) in rows {
            for (f, want) in
                [(Activation::GeluErf, erf), (Activation::GeluTanh, tanh), (Activation::GeluSigmoid, quick)]
            {
                assert!(
                    (value(f, Constants::USUAL, x) - want).abs() < 1e-9,
                    "{f} at {x}: {}",
                    value(f, Constants::USUAL, x)
                );
            }
        }
        // R154: bounded below, at the places the contract gives
        for (f, at, least) in [
            (Activation::GeluErf, -0.751_792, -0.169_971_207),
            (Activation::GeluTanh, -0.752_461, -0.170_040_751),
            (Activation::GeluSigmoid, -0.751_154, -0.163_610_190),
        ] {
            let k = Constants::USUAL;
            assert!((value(f, k, at) - least).abs() < 1e-8 && derivative(f, k, at).abs() < 1e-5, "{f}");
        }
    }

    /// R153: x Φ(α x), where Φ is approximated with β and γ; values and slopes of PyTorch 2.15 in f64, of
    /// `0.5 * x * (1 + torch.tanh(beta * (alpha * x + gamma * (alpha * x) ** 3)))`. With γ 0, tanh and sigmoid are one:
    /// α = 1 and β = 0.851 is S2's x sigmoid(1.702 x).
    #[test]
    fn gelu_with_constants_of_its_own() {
        let rows = GENERAL_GELU;
        for (alpha, beta, gamma, x, want, slope) in rows {
            let k = Constants { alpha, beta, gamma, ..Constants::USUAL };
            let found = (value(Activation::GeluTanh, k, x), derivative(Activation::GeluTanh, k, x));
            assert!((found.0 - want).abs() < 1e-12 && (found.1 - slope).abs() < 1e-12, "{k:?} at {x}: {found:?}");
            let (mut y, mut dx) = ([0f32], [0f32]);
            for level in crate::numeric::simd::Level::available() {
                level.run(Forward { f: Activation::GeluTanh, k, y: &mut y, x: &[x as f32] });
                let (dx, dy) = (&mut dx, &[1.0]);
                level.run(Backward { f: Activation::GeluTanh, k, dx, add: false, dy, x: &[x as f32] });
                let near = |got: f32, want: f64| (f64::from(got) - want).abs() < 1e-6 * want.abs().max(1.0);
                assert!(near(y[0], want) && near(dx[0], slope), "{level} {k:?} at {x}: {y:?} {dx:?}");
            }
        }
        let quick = Constants { beta: QUICK / 2.0, gamma: 0.0, ..Constants::USUAL };
        for x in [-4.0, -0.3, 0.0, 1.1] {
            let of = |f, k| value(f, k, x);
            assert!((of(Activation::GeluTanh, quick) - of(Activation::GeluSigmoid, Constants::USUAL)).abs() < 1e-15);
        }
    }

    #[test]
    fn a_slope_is_a_slope() {
        for &f in Activation::ALL {
            let other = Constants { leak: 0.3, alpha: 1.4, beta: 0.6, gamma: -0.02 };
            for (k, x) in [-3.0, -0.7, -0.1, 0.2, 0.9, 4.0].iter().flat_map(|x| [(Constants::USUAL, *x), (other, *x)]) {
                let h = 1e-6;
                let slope = (value(f, k, x + h) - value(f, k, x - h)) / (2.0 * h);
                assert!((slope - derivative(f, k, x)).abs() < 1e-8, "{f} at {x}");
            }
        }
    }
}

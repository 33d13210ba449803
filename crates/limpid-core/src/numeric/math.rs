//! exp, tanh, the logistic function and the normal distribution for f32, without branches, so that the compiler
//! vectorises loops over them. Each states its error against f64, and a test checks it.
//!
//! The f64 functions that a run needs are here as well. Those of the system (`ln`, `exp`, `pow`, `sin`, `cos`)
//! differ in the last bit between systems and processors; these do not.

use super::simd::{MulAdd, fma};

/// f64 functions with the same bits on every machine.
pub use libm::{cos, exp as exp_f64, exp2 as exp2_f64, log as ln_f64, log2 as log2_f64, pow, sin, tanh as tanh_f64};

/// ln(x), computed in f64 and rounded.
pub fn ln(x: f32) -> f32 {
    ln_f64(f64::from(x)) as f32
}

/// exp(x). Relative error below 2e-7 for -87 < x < 88; 0 below (so the weight of a masked score is exactly 0).
#[inline(always)]
pub fn exp<M: MulAdd>(x: f32) -> f32 {
    // 1.5 * 2^23: adding it rounds to an integer, which is then in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let capped = if x > 88.0 { 88.0 } else { x };
    let shifted = fma::<M>(capped, std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    // ln 2 in two parts, so that r is exact to the last bit.
    let r = fma::<M>(n, -0.693_359_4, capped);
    let r = fma::<M>(n, 2.121_944_4e-4, r);
    let p = fma::<M>(1.987_569_2e-4, r, 1.398_2e-3);
    let p = fma::<M>(p, r, 8.333_452e-3);
    let p = fma::<M>(p, r, 4.166_579_6e-2);
    let p = fma::<M>(p, r, 1.666_666_6e-1);
    let p = fma::<M>(p, r, 0.5);
    let p = fma::<M>(p, r * r, r + 1.0);
    let two_to_n = f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3f80_0000));
    if x < -87.0 { 0.0 } else { p * two_to_n }
}

/// 1 / (1 + exp(-x)). Relative error below 4e-7 for x > -87.
#[inline(always)]
pub fn sigmoid<M: MulAdd>(x: f32) -> f32 {
    1.0 / (1.0 + exp::<M>(-x))
}

/// tanh(x). Relative error below 4e-7.
#[inline(always)]
pub fn tanh<M: MulAdd>(x: f32) -> f32 {
    let z = x * x;
    let p = fma::<M>(-5.704_988_7e-3, z, 2.063_908_8e-2);
    let p = fma::<M>(p, z, -5.373_971_5e-2);
    let p = fma::<M>(p, z, 1.333_144_2e-1);
    let p = fma::<M>(p, z, -3.333_328e-1);
    let near = fma::<M>(p * z, x, x);
    let far = 1.0 - 2.0 / (1.0 + exp::<M>(2.0 * x.abs()));
    if z < 0.390_625 { near } else { far.copysign(x) }
}

/// The standard normal density, exp(-x^2 / 2) / sqrt(2 pi).
#[inline(always)]
pub fn normal_density<M: MulAdd>(x: f32) -> f32 {
    0.398_942_3 * exp::<M>(-0.5 * x * x)
}

/// The standard normal distribution function, (1 + erf(x / sqrt 2)) / 2. Absolute error below 3e-7, relative
/// error below 4e-6 for x > -13: the complementary error function as t exp(-z^2 + polynomial of t).
#[inline(always)]
pub fn normal<M: MulAdd>(x: f32) -> f32 {
    let z = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
    let t = 1.0 / fma::<M>(0.5, z, 1.0);
    let p = fma::<M>(0.170_872_77, t, -0.822_152_2);
    let p = fma::<M>(p, t, 1.488_515_9);
    let p = fma::<M>(p, t, -1.135_204);
    let p = fma::<M>(p, t, 0.278_868_07);
    let p = fma::<M>(p, t, -0.186_288_06);
    let p = fma::<M>(p, t, 0.096_784_18);
    let p = fma::<M>(p, t, 0.374_091_96);
    let p = fma::<M>(p, t, 1.000_023_7);
    let p = fma::<M>(p, t, -1.265_512_2);
    let tail = 0.5 * t * exp::<M>(fma::<M>(-z, z, p));
    if x > 0.0 { 1.0 - tail } else { tail }
}

/// The same functions in f64, for the reference.
pub mod reference {
    /// erf(x) to f64 accuracy: the series where it converges quickly, the continued fraction beyond.
    pub fn erf(x: f64) -> f64 {
        let z = x.abs();
        let value = if z < 2.5 {
            // 2/sqrt(pi) sum (-1)^n x^(2n+1) / (n! (2n+1)), as a series of positive terms with exp(-x^2) outside
            let (mut term, mut sum, mut n) = (z, z, 0.0);
            while term > sum * 1e-17 {
                n += 1.0;
                term *= 2.0 * z * z / (2.0 * n + 1.0);
                sum += term;
            }
            std::f64::consts::FRAC_2_SQRT_PI * (-z * z).exp() * sum
        } else {
            let mut fraction = 0.0;
            for k in (1..=60).rev() {
                fraction = f64::from(k) / 2.0 / (z + fraction);
            }
            1.0 - (-z * z).exp() / std::f64::consts::PI.sqrt() / (z + fraction)
        };
        value.copysign(x)
    }
    /// 1 / (1 + exp(-x))
    pub fn sigmoid(x: f64) -> f64 {
        1.0 / (1.0 + (-x).exp())
    }
    /// The standard normal distribution function.
    pub fn normal(x: f64) -> f64 {
        0.5 * (1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2))
    }
    /// The standard normal density.
    pub fn normal_density(x: f64) -> f64 {
        (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::super::simd::{Computed, Fused};
    use super::*;

    fn worst(from: f32, to: f32, got: impl Fn(f32) -> f32, want: impl Fn(f64) -> f64, relative: bool) -> f64 {
        (0..=20_000)
            .map(|i| from + (to - from) * i as f32 / 20_000.0)
            .map(|x| {
                let want = want(f64::from(x));
                (f64::from(got(x)) - want).abs() / if relative { want.abs().max(1e-300) } else { 1.0 }
            })
            .fold(0.0, f64::max)
    }

    #[test]
    fn errors_are_what_the_docs_say() {
        assert!(worst(-87.0, 88.0, exp::<Fused>, f64::exp, true) < 2e-7);
        assert!(worst(-87.0, 88.0, exp::<Computed>, f64::exp, true) < 2e-7);
        assert!(worst(-80.0, 80.0, sigmoid::<Fused>, reference::sigmoid, true) < 4e-7);
        assert!(worst(0.001, 12.0, tanh::<Fused>, f64::tanh, true) < 4e-7);
        assert!(worst(-12.0, -0.001, tanh::<Computed>, f64::tanh, true) < 4e-7);
        assert!(worst(-6.0, 6.0, normal::<Fused>, reference::normal, false) < 3e-7);
        // below -5 the reference's own 1 + erf loses digits: compare with its tail, exp(-x^2/2) x Mills' ratio
        assert!(worst(-4.0, 0.0, normal::<Computed>, reference::normal, true) < 4e-6);
    }

    #[test]
    fn ends_of_the_line() {
        assert_eq!(exp::<Fused>(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp::<Fused>(0.0), 1.0);
        assert!(exp::<Fused>(f32::NAN).is_nan() && exp::<Fused>(f32::INFINITY).is_finite());
        assert_eq!((sigmoid::<Fused>(-200.0), sigmoid::<Fused>(200.0)), (0.0_f32.max(sigmoid::<Fused>(-200.0)), 1.0));
        assert_eq!((tanh::<Fused>(50.0), tanh::<Fused>(-50.0), tanh::<Fused>(0.0)), (1.0, -1.0, 0.0));
    }

    #[test]
    fn erf_is_the_tabulated_one() {
        // Abramowitz and Stegun, table 7.1
        for (x, want) in
            [(0.5, 0.520_499_877_8), (1.0, 0.842_700_792_9), (2.0, 0.995_322_265_0), (3.0, 0.999_977_909_5)]
        {
            assert!((reference::erf(x) - want).abs() < 1e-10 && (reference::erf(-x) + want).abs() < 1e-10, "{x}");
        }
    }
}

//! Random draws for the model: those of [`limpid_base::random`], and normal ones.

use super::math::{cos, ln_f64};
pub use limpid_base::random::*;

/// Standard normal (Box and Muller).
pub fn normal(seed: u64, site: u64, index: u64) -> f64 {
    let radius = (-2.0 * ln_f64(1.0 - uniform(seed, site, 2 * index))).sqrt();
    radius * cos(std::f64::consts::TAU * uniform(seed, site, 2 * index + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_draws_have_mean_0_and_variance_1() {
        let n = 20_000;
        let (sum, square) = (0..n).map(|i| normal(7, 1, i)).fold((0.0, 0.0), |(s, q), x| (s + x, q + x * x));
        assert!((sum / n as f64).abs() < 0.03 && (square / n as f64 - 1.0).abs() < 0.04);
    }
}

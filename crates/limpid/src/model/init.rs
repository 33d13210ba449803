//! Initial values, by what a parameter is (contract R224 to R227): gains 1, biases and offsets 0, the rest by
//! the scheme. Every value is a function of (seed, name, index), so it does not depend on the order in
//! which parameters lie or on who asks.

use super::{Model, Param, Role};
use crate::config::axis;
use crate::ops::random;

axis! {
    /// How weights start.
    Init, "initialisation" {
        /// Normal with deviation `std` (0.02); those added to the residual stream divided by sqrt(2 L) (Radford et al. 2019).
        Gpt2 = "gpt2",
        /// Normal with deviation `std`, every matrix alike.
        Normal = "normal",
        /// Uniform within sqrt(6 / (in + out)) (Glorot and Bengio 2010, R225); tables normal with `std`.
        Xavier = "xavier",
        /// Normal with deviation sqrt(2 / in) (He et al. 2015, R226); tables normal with `std`.
        He = "he",
    }
}

/// The initial values of one parameter.
pub fn values(model: &Model, param: &Param, scheme: Init, std: f64, seed: u64) -> Vec<f32> {
    let site = random::site(&param.name);
    let (out, inner) = param.slot.shape();
    let residual = 1.0 / (2.0 * model.config.n_layer as f64).sqrt();
    let normal =
        |deviation: f64| (0..param.slot.len() as u64).map(move |i| (deviation * random::normal(seed, site, i)) as f32);
    match (param.role, scheme) {
        (Role::Gain, _) => vec![1.0; param.slot.len()],
        (Role::Bias, _) => vec![0.0; param.slot.len()],
        (Role::Residual, Init::Gpt2) => normal(std * residual).collect(),
        (Role::Weight | Role::Residual, Init::Xavier) => {
            let bound = (6.0 / (inner + out) as f64).sqrt();
            let draw = |i| bound * (2.0 * random::uniform(seed, site, i) - 1.0);
            (0..param.slot.len() as u64).map(|i| draw(i) as f32).collect()
        }
        (Role::Weight | Role::Residual, Init::He) => normal((2.0 / inner as f64).sqrt()).collect(),
        (Role::Embedding | Role::Position | Role::Weight | Role::Residual, _) => normal(std).collect(),
    }
}

//! An activation function as points, for a plot.

use limpid_core::config::{Activation, Axis, Constants};
use limpid_core::kernels::activate;
use serde::Serialize;

/// An activation function as points of a curve.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ActivationCurve {
    /// Its name.
    pub function: &'static str,
    /// From the least to the greatest.
    pub x: Vec<f64>,
    /// The function there.
    pub y: Vec<f64>,
}

impl ActivationCurve {
    /// 129 points of a function over a range.
    pub fn over(f: Activation, k: Constants, (from, to): (f64, f64)) -> ActivationCurve {
        let x: Vec<f64> = (0..=128).map(|i| from + (to - from) * f64::from(i) / 128.0).collect();
        let y = x.iter().map(|x| activate::reference::value(f, k, *x)).collect();
        ActivationCurve { function: f.name(), x, y }
    }
}

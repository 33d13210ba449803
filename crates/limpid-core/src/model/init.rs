//! Initial values, by the role of a parameter: gains are 1, biases and offsets 0, the rest follow the scheme. Every
//! value is a function of (seed, name, index), so it depends neither on the order of parameters in memory nor on the
//! mode.

use super::{Component, Model, Param, ParamRole};
use crate::config::axis;
use crate::numeric::random;
use std::ops::Range;

axis! {
    /// How weights start.
    Init, "initialisation" {
        /// Normal with standard deviation `std` (0.02); for matrices that write to the residual stream, `std` /
        /// sqrt(2 L) (Radford et al. 2019).
        Gpt2 = "gpt2",
        /// Normal with standard deviation `std` for every matrix.
        Normal = "normal",
        /// Uniform within sqrt(6 / (in + out)) (Glorot and Bengio 2010); tables normal with `std`.
        Xavier = "xavier",
        /// As xavier, with W^Q, W^K and W^V as three matrices, where they are stored as one: each within its own sqrt(6
        /// / (in + out)).
        XavierMatrices = "xavier-matrices",
        /// As xavier, with the W^Q, W^K and W^V of each head as matrices of their own, (d_model, d_head).
        XavierHeads = "xavier-heads",
        /// Normal with standard deviation sqrt(2 / in) (He et al. 2015); tables normal with `std`.
        He = "he",
    }
}

/// Small values that are drawn quickly, for steps that are only timed.
pub fn any_values(param: &Param) -> Vec<f32> {
    let key = [random::site(&param.name) as u32, 1];
    let any = |i| (random::word(key, i) as f32 / u32::MAX as f32 - 0.5) * 0.07;
    (0..param.region.len() as u32).map(any).collect()
}

/// The initial value of a parameter at an index, row by row; `std` 0 means 0.02 sqrt(768 / d_model).
pub fn value(model: &Model, param: &Param, scheme: Init, std: f64, seed: u64) -> impl Fn(usize) -> f32 + Sync + use<> {
    /// A constant, or a draw of some width.
    #[derive(Clone, Copy)]
    enum Start {
        All(f32),
        Normal(f64),
        Uniform(f64),
        /// Of the rows that make queries, keys and values, within a bound of their own each.
        Parts([(usize, f64); 3]),
    }
    let (out, inner) = param.region.shape();
    let std = if std > 0.0 { std } else { 0.02 * (768.0 / model.config.d_model as f64).sqrt() };
    let residual = 1.0 / (2.0 * model.config.n_layer as f64).sqrt();
    let start = match (param.role, scheme) {
        (ParamRole::Gain, _) if model.config.norm_gain_less_one => Start::All(0.0),
        (ParamRole::Gain, _) => Start::All(1.0),
        (ParamRole::Bias | ParamRole::LoraB, _) => Start::All(0.0),
        // as PEFT: He's uniform with a slope of sqrt(5)
        (ParamRole::LoraA, _) => Start::Uniform(1.0 / (inner as f64).sqrt()),
        (ParamRole::Residual, Init::Gpt2) => Start::Normal(std * residual),
        (ParamRole::Weight, Init::XavierMatrices | Init::XavierHeads) if param.module.part == Component::Qkv => {
            let heads = model.config.heads();
            let part = |rows: Range<usize>| match scheme {
                Init::XavierHeads => (rows.end, glorot(inner, heads.features(&rows))),
                _ => (rows.end, glorot(inner, rows.len())),
            };
            Start::Parts(heads.parts().map(part))
        }
        (ParamRole::Weight | ParamRole::Residual, Init::Xavier | Init::XavierMatrices | Init::XavierHeads) => {
            Start::Uniform(glorot(inner, out))
        }
        (ParamRole::Weight | ParamRole::Residual, Init::He) => Start::Normal((2.0 / inner as f64).sqrt()),
        (ParamRole::Embedding | ParamRole::Position | ParamRole::Weight | ParamRole::Residual, _) => Start::Normal(std),
    };
    let site = random::site(&param.name);
    let uniform = move |bound: f64, i: usize| (bound * (2.0 * random::uniform(seed, site, i as u64) - 1.0)) as f32;
    move |i| match start {
        Start::All(value) => value,
        Start::Normal(deviation) => (deviation * random::normal(seed, site, i as u64)) as f32,
        Start::Uniform(bound) => uniform(bound, i),
        Start::Parts(parts) => {
            let (_, bound) = parts.into_iter().find(|(end, _)| i / inner < *end).expect("every row is of a part");
            uniform(bound, i)
        }
    }
}

/// The bound of Glorot and Bengio's uniform values of a matrix.
fn glorot(inner: usize, out: usize) -> f64 {
    (6.0 / (inner + out) as f64).sqrt()
}

/// All of them.
pub fn values(model: &Model, param: &Param, scheme: Init, std: f64, seed: u64) -> Vec<f32> {
    (0..param.region.len()).map(value(model, param, scheme, std, seed)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Axis, Config};
    use crate::model::Mode;

    const STD: f64 = 0.03;

    /// C = 48, F = 80, V = 150, L = 3: enough elements to measure, no two sizes the same.
    fn model(mode: Mode) -> Model {
        let config = Config {
            vocab_size: 150,
            context_length: 40,
            d_model: 48,
            n_head: 4,
            n_layer: 3,
            d_ff: 80,
            n_segment: 2,
            tied_head: false,
            head_bias: true,
            ..Config::default()
        };
        Model::new(&config, mode).unwrap()
    }

    /// R090, R227: gains 1, biases and offsets 0, by their names and whatever the scheme.
    #[test]
    fn gains_are_one_and_biases_zero() {
        let model = model(Mode::Train { batch: 1, context: 4 });
        for (scheme, param) in Init::ALL.iter().flat_map(|s| model.params.iter().map(move |p| (*s, p))) {
            let values = values(&model, param, scheme, STD, 1);
            let gain = param.name.contains("ln") && param.name.ends_with(".weight");
            let (all, bias) = (|v: f32| values.iter().all(|x| *x == v), param.name.ends_with(".bias"));
            assert_eq!((all(1.0), all(0.0)), (gain, bias), "{} {scheme}", param.name);
        }
    }

    /// R224 to R226, R252. Bounds are five standard errors of the mean and of the standard deviation.
    #[test]
    fn every_scheme_has_its_deviation() {
        let model = model(Mode::Train { batch: 1, context: 4 });
        for (scheme, param) in Init::ALL.iter().flat_map(|s| model.params.iter().map(move |p| (*s, p))) {
            if !param.is_matrix() {
                continue;
            }
            let what = format!("{} {scheme}", param.name);
            let values = values(&model, param, scheme, STD, 7);
            let [out, inner] = param.shape()[..] else { panic!("{what}: {:?}", param.shape()) };
            let table = param.name.contains("embed.") && !param.name.starts_with("un");
            // added to the stream: of attention, of the feed-forward
            let residual = param.name.ends_with(".out.weight");
            let bound = (6.0 / (inner + out) as f64).sqrt();
            let apart = matches!(scheme, Init::XavierMatrices | Init::XavierHeads);
            if apart && param.name.contains(".qkv.") {
                continue; // below
            }
            let xavier = apart || scheme == Init::Xavier;
            let want = match scheme {
                Init::Gpt2 if residual => STD / 6f64.sqrt(),  // 1 / sqrt(2 L), L = 3
                _ if xavier && !table => bound / 3f64.sqrt(), // variance 2 / (in + out)
                Init::He if !table => (2.0 / inner as f64).sqrt(),
                _ => STD,
            };
            let n = values.len() as f64;
            let mean = values.iter().map(|v| f64::from(*v)).sum::<f64>() / n;
            let deviation = (values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / n).sqrt();
            assert!(mean.abs() < 5.0 * want / n.sqrt(), "{what}: mean {mean}");
            assert!((deviation / want - 1.0).abs() < 5.0 / (2.0 * n).sqrt(), "{what}: {deviation}, expected {want}");
            let top = values.iter().fold(0f64, |top, v| top.max(f64::from(v.abs())));
            if xavier && !table {
                assert!((0.99 * bound..bound + 1e-7).contains(&top), "{what}: {top}, bound {bound}");
            } else {
                assert!(n < 1000.0 || top > 2.5 * want, "{what}: {top} is no normal's greatest of {n}");
            }
        }
    }

    /// R225: the documents' matrices, W^Q, W^K and W^V, of 4 heads of queries and 2 of keys and values, 12 features
    /// each. As one matrix of 96 rows all would be within sqrt(6 / (48 + 96)).
    #[test]
    fn queries_keys_and_values_have_bounds_of_their_own() {
        let model = model(Mode::Train { batch: 1, context: 4 });
        let config = Config { n_kv_head: Some(2), ..model.config };
        let model = Model::new(&config, Mode::Train { batch: 1, context: 4 }).unwrap();
        let param = model.param("blocks.1.attn.qkv.weight").unwrap();
        let together = values(&model, param, Init::Xavier, STD, 7);
        for (scheme, outs) in [(Init::XavierMatrices, [48.0, 24.0, 24.0]), (Init::XavierHeads, [12.0; 3])] {
            let values = values(&model, param, scheme, STD, 7);
            for (rows, out) in [0..48, 48..72, 72..96].into_iter().zip(outs) {
                let bound = (6f64 / (48.0 + out)).sqrt();
                let part = rows.start * 48..rows.end * 48;
                let top = values[part.clone()].iter().fold(0f64, |top, v| top.max(f64::from(v.abs())));
                assert!((0.99 * bound..bound + 1e-7).contains(&top), "{scheme} {rows:?}: {top}, bound {bound}");
                // the same draws, stretched
                let stretched = bound / (6f64 / 144.0).sqrt();
                let same =
                    part.into_iter().all(|i| (f64::from(together[i]) * stretched - f64::from(values[i])).abs() < 1e-6);
                assert!(same, "{scheme} {rows:?}");
            }
        }
    }

    /// The head of this file: a value is decided by seed, name and index alone.
    #[test]
    fn a_value_is_a_function_of_seed_and_name() {
        let (train, decode) =
            (model(Mode::Train { batch: 2, context: 4 }), model(Mode::Decode { rows: 2, outputs: 1, blocks: 1 }));
        let larger = Config { vocab_size: 160, n_layer: 4, ..train.config.clone() };
        let larger = Model::new(&larger, Mode::Inspect { batch: 1, context: 4 }).unwrap();
        let of = |model: &Model, name: &str, scheme, seed| {
            values(model, model.param(name).unwrap_or_else(|| panic!("no {name}")), scheme, STD, seed)
        };
        let mut seen: Vec<Vec<f32>> = vec![];
        for name in train.params.iter().filter(|p| p.is_matrix()).map(|p| p.name.as_str()) {
            for scheme in Init::ALL {
                assert_eq!(of(&train, name, *scheme, 3), of(&decode, name, *scheme, 3), "{name} {scheme}");
            }
            let mine = of(&train, name, Init::Normal, 3);
            // another model, in which the parameter lies elsewhere and a table has more rows
            assert_eq!(mine, of(&larger, name, Init::Normal, 3)[..mine.len()], "{name}");
            for other in seen.iter().chain([&of(&train, name, Init::Normal, 4)]) {
                assert_ne!(mine[..8], other[..8], "{name}");
            }
            seen.push(mine);
        }
    }
}

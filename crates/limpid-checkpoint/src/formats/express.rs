//! Whether a format can express a model. A format writes its settings of a configuration and reads them back: what
//! comes back different is what it lacks ([`Complaints`]). Configurations are compared in one form ([`canonical`]),
//! because several can mean the same numbers.

use super::links::extent;
use crate::error::{CheckpointError, Result};
use limpid_core::config::{
    Activation, Config, DropoutScale, Fields, LayerPattern, NormPlace, Parallel, Positions, RotaryKind, RotaryPairs,
    RotaryScaling, Settings, Value as SettingValue,
};
use limpid_core::model::{Mode, Model, Param, ParamRole, tables};
use serde_json::Value;
use std::borrow::Cow;
use std::fmt;
use std::path::Path;

/// The values of a parameter of `from` in a model of `to`: gains may be stored less one.
pub fn regained<'a>(param: &Param, values: Cow<'a, [f32]>, from: &Config, to: &Config) -> Cow<'a, [f32]> {
    let more = f32::from(from.norm_gain_less_one) - f32::from(to.norm_gain_less_one);
    match param.role {
        ParamRole::Gain if more != 0.0 => values.iter().map(|v| v + more).collect(),
        _ => values,
    }
}

/// What a format cannot express, each with the setting that avoids it.
#[derive(Default)]
pub(crate) struct Complaints(pub(crate) Vec<(String, String)>);

impl Complaints {
    /// Notes `what` unless `ok`; `setting` is its name and value, or nothing where none helps.
    pub(crate) fn unless(&mut self, ok: bool, what: impl Into<String>, setting: impl fmt::Display) {
        if !ok {
            self.0.push((what.into(), setting.to_string()));
        }
    }

    /// Notes scores that are not divided by the root of the head size alone.
    pub(crate) fn attention_scale(&mut self, c: &Config) {
        self.unless(c.attention_scale, "attention_scale false", "attention_scale true");
        self.unless(!c.attention_scale_by_layer, "attention_scale_by_layer", "attention_scale_by_layer false");
    }

    /// Notes what `theirs` says otherwise than `mine`, both canonical, sizes last; whether it has more, which changes
    /// nothing.
    pub(crate) fn differences(&mut self, mine: &Config, theirs: &Config) -> bool {
        let [mine, theirs] = [mine, theirs].map(with_consequences);
        let (mut choices, mut sizes, mut more) = (vec![], vec![], false);
        for ((setting, ours), (_, there)) in mine.fields().into_iter().zip(theirs.fields()) {
            let name = setting.name;
            let turns = name.starts_with("rotary") && mine.positions != theirs.positions;
            let wider = is_wider(name, &mine, &theirs);
            more |= wider && name != "norm_gain_less_one";
            let order = name == "rotary_pairs"; // features lie otherwise there, and numbers are the same
            if same(ours, there) || wider || turns || order {
                continue;
            }
            // a setting that follows from others is not given
            let given = setting.chosen && !there.json().is_null();
            let remedy = if given { format!("{name} {}", text(there)) } else { String::new() };
            let lacks = if ours.whole().is_some() { &mut sizes } else { &mut choices };
            lacks.push((format!("{name} {}", text(ours)), remedy));
        }
        self.0.extend(choices.into_iter().chain(sizes));
        more
    }

    /// Why a model cannot be written in some form, if there are complaints.
    pub(crate) fn check(self, form: &str) -> Result<()> {
        let (what, mut settings): (Vec<String>, Vec<String>) = self.0.into_iter().unzip();
        settings.retain(|setting| !setting.is_empty());
        if what.is_empty() {
            return Ok(());
        }
        Err(CheckpointError::Inexpressible { form: form.into(), what: what.join(", "), settings })
    }
}

/// The settings in a text of the tables: `name=value name=value`.
pub(crate) fn settings(text: &'static str) -> impl Iterator<Item = (&'static str, &'static str)> {
    text.split_whitespace().map(|setting| setting.split_once('=').expect("tables have names and values"))
}

/// What all models of a family have: the settings of these texts, and GPT-2's.
pub(crate) fn plain(always: &[&'static str], rotary_pairs: RotaryPairs) -> Config {
    let mut c = Config { rotary_pairs, ..Config::default() };
    for (name, value) in always.iter().copied().flat_map(settings) {
        c.set(name, value).expect("tables name settings and their values");
    }
    c
}

/// The value of a setting.
pub(crate) fn setting(c: &Config, name: &str) -> Value {
    let found = c.fields().into_iter().find(|(setting, _)| setting.name == name);
    found.expect("tables name settings").1.json()
}

/// Whether anything is dropped.
fn drops(c: &Config) -> bool {
    [c.dropout.embedding, c.dropout.attention, c.dropout.projection, c.dropout.ffn].iter().any(|p| *p > 0.0)
}

/// What every form that is written lacks: the settings that no other program has.
pub(crate) fn common(c: &Config) -> Complaints {
    let mut not = Complaints::default();
    let rescaled = c.dropout.scale == DropoutScale::Inverted || !drops(c);
    not.unless(rescaled, "dropout that is not rescaled", "dropout_scale inverted");
    let usual_slope = c.activation != Activation::LeakyRelu || c.leaky_slope == 0.01;
    not.unless(usual_slope, "a leaky_slope that is not 0.01", "leaky_slope 0.01");
    not
}

/// Values that change nothing, for a parameter that the format has and the model lacks.
pub(crate) fn neutral(param: &Param, config: &Config) -> Vec<f32> {
    let (rows, cols) = extent(param);
    let table = match (param.role, config.positions) {
        (ParamRole::Gain, _) => return vec![1.0; rows],
        (ParamRole::Position, Positions::Sinusoidal) => tables::sinusoidal,
        (ParamRole::Position, Positions::SinusoidalOneBased) => tables::sinusoidal_one_based,
        _ => return vec![0.0; rows * cols],
    };
    (0..rows * cols).map(|i| table(i / cols, i % cols, cols) as f32).collect()
}

/// Positions for which a table of vectors can stand.
const TABLES: [Positions; 3] = [Positions::Sinusoidal, Positions::SinusoidalOneBased, Positions::None];

/// Whether a matrix has the values of one that a format has and the model lacked ([`neutral`]).
pub(crate) fn changes_nothing(param: &Param, values: &[f32]) -> bool {
    let is_table = |positions| neutral(param, &Config { positions, ..Config::default() }) == values;
    values.iter().all(|v| *v == 0.0) || param.role == ParamRole::Position && TABLES.into_iter().any(is_table)
}

/// A model made to know its parameters, none of which gets memory; `path` is where its configuration is.
pub(crate) fn outline(path: &Path, config: &Config) -> Result<Model> {
    let model = Model::new(config, Mode::Inspect { batch: 1, context: 1 });
    model.map_err(|source| CheckpointError::Config { path: path.into(), source })
}

/// One form for all configurations of the same numbers: what follows from other settings, or changes nothing, is not
/// set.
pub(crate) fn canonical(c: &Config) -> Config {
    let mut c = c.clone();
    let usual = Config::default();
    let over = |pattern: LayerPattern| {
        let blocks: Vec<bool> = (0..c.n_layer).map(|i| pattern.holds(i)).collect();
        LayerPattern::new(&blocks).unwrap_or(pattern)
    };
    let near = |a: f64, b: f64| (a - b).abs() <= 1e-12 * b.abs();
    (c.rotary_layers, c.window_layers) = (over(c.rotary_layers), over(c.window_layers));
    c.n_kv_head = c.n_kv_head.filter(|n| *n != c.n_head);
    c.d_head = c.d_head.filter(|d| d.checked_mul(c.n_head) != Some(c.d_model));
    if c.window >= c.context_length || c.window_layers == LayerPattern::NONE {
        c.window = 0;
    }
    if c.window == 0 {
        (c.window_layers, c.rotary_base_window) = (LayerPattern::ALL, None);
    }
    if c.positions == Positions::Rotary && c.rotary_layers == LayerPattern::NONE {
        c.positions = Positions::None;
    }
    if c.positions != Positions::Rotary {
        (c.rotary_base, c.rotary_scaling, c.rotary_dim) = (usual.rotary_base, RotaryScaling::NONE, None);
        (c.rotary_layers, c.rotary_base_window) = (LayerPattern::ALL, None);
        c.rotary_pairs = usual.rotary_pairs;
    }
    c.rotary_dim = c.rotary_dim.filter(|n| *n != c.d_head());
    c.d_v = c.d_v.filter(|n| *n != c.d_head());
    c.rotary_scaling = canonical_scaling(c.rotary_scaling);
    let scaled = c.rotary_scaling != RotaryScaling::NONE;
    c.rotary_base_window = c.rotary_base_window.filter(|base| scaled || *base != c.rotary_base);
    c.attention_out_bias = c.attention_out_bias.filter(|bias| *bias != c.attention_bias);
    if let Some(factor) = c.attention_factor {
        let plain = [(true, 1.0 / (c.d_head() as f64).sqrt()), (false, 1.0)];
        let plain = plain.into_iter().find(|(_, usual)| near(factor, *usual));
        c.attention_scale = plain.is_none_or(|(scale, _)| scale);
        c.attention_factor = plain.map_or(Some(factor), |_| None);
    }
    if c.activation != Activation::LeakyRelu {
        c.leaky_slope = usual.leaky_slope;
    }
    if c.activation != Activation::GeluTanh {
        (c.gelu_alpha, c.gelu_beta, c.gelu_gamma) = (usual.gelu_alpha, usual.gelu_beta, usual.gelu_gamma);
    }
    c.norm_gain_less_one &= c.norm_gain;
    c.shared_blocks &= c.n_layer > 1;
    if c.parallel == Parallel::OneNorm && c.norm_place == NormPlace::Branch {
        c.parallel = Parallel::TwoNorms; // neither has a norm before it
    }
    if !c.lm_head {
        (c.tied_head, c.head_bias, c.head_transform) = (true, false, false);
        (c.logits_scale, c.logits_softcap) = (1.0, 0.0);
    }
    if !drops(&c) {
        c.dropout.scale = DropoutScale::Inverted;
    }
    c
}

/// Only what its kind reads.
fn canonical_scaling(s: RotaryScaling) -> RotaryScaling {
    let (none, RotaryScaling { kind, factor, attention, .. }) = (RotaryScaling::NONE, s);
    let simple = RotaryScaling { kind, factor, attention, ..none };
    match kind {
        RotaryKind::Bands | RotaryKind::Yarn if factor == 1.0 && attention == 1.0 => none,
        RotaryKind::Dynamic => simple,
        RotaryKind::Bands if s.context == 0 => simple,
        RotaryKind::Bands => RotaryScaling { low: s.low, high: s.high, context: s.context, ..simple },
        RotaryKind::Yarn => RotaryScaling { short: none.short, long: none.long, reach: none.reach, ..s },
        RotaryKind::Longrope => RotaryScaling { low: none.low, high: none.high, truncate: none.truncate, ..s },
    }
}

/// The same with all that follows from other settings, so that two of them are compared.
pub(crate) fn with_consequences(c: &Config) -> Config {
    let heads = c.heads();
    Config {
        n_kv_head: Some(heads.n_kv_head),
        d_head: Some(heads.d_head),
        d_v: Some(heads.d_value),
        attention_out_bias: Some(c.attention_out_bias()),
        ..c.clone()
    }
}

/// Whether two values are one: numbers that differ only in their last digits are.
fn same(a: &dyn SettingValue, b: &dyn SettingValue) -> bool {
    a.json() == b.json() || a.number().zip(b.number()).is_some_and(|(a, b)| (a - b).abs() <= 1e-12 * b.abs())
}

fn text(value: &dyn SettingValue) -> String {
    match value.json() {
        Value::String(text) => text,
        Value::Null => "none".into(),
        other => other.to_string(),
    }
}

/// Whether a family has something always that changes nothing where a model lacks it: biases of zeros, gains of ones, a
/// table of sinusoids, segment vectors of zeros.
fn is_wider(name: &str, ours: &Config, theirs: &Config) -> bool {
    match name {
        "norm_gain" | "norm_offset" | "attention_bias" | "attention_out_bias" | "ffn_bias" | "head_bias" => {
            setting(ours, name) == false && setting(theirs, name) == true
        }
        "positions" => TABLES.contains(&ours.positions) && theirs.positions == Positions::Learned,
        "n_segment" => ours.n_segment == 0 && theirs.n_segment > 0,
        // gains are stored anew (`super::regained`)
        "norm_gain_less_one" => ours.norm_gain_less_one != theirs.norm_gain_less_one,
        _ => false,
    }
}

//! HuggingFace's folders: `config.json`, safetensors and the tokenizer's files. A [`Family`] is data: the settings that all its models
//! share, the meaning of each key of `config.json` (`keys`), and which of their tensors holds which of our parameters. The same lines
//! serve reading and writing; `families` is the table. To find a family that can express a configuration, limpid writes the keys and
//! reads them back: a setting that comes back different is one the family lacks.
//!
//! Every key of `config.json` sets something, or is known to affect no result, or is an error.

mod families;
mod keys;

pub use families::ALL;
pub(super) use families::{BERTS, COHERES, GATED_RMS, LLAMAS};

use super::super::carried::{EOS, ids};
use super::{Complaints, Dtype, Link, TensorLayout, Within, common, extent, plain, setting};
use keys::{Answer, Key, Keys, refuse};
use limpid_core::config::{
    Activation, Config, ConfigError, DropoutScale, Fields, LayerPattern, NormPlace, Parallel, Positions, RotaryKind,
    RotaryPairs, RotaryScaling, Value as SettingValue,
};
use limpid_core::model::{FeatureOrder, Model, Module};
use limpid_tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

/// One of HuggingFace's model families.
pub struct Family {
    /// What messages call it, its `model_type`, and its class with a head over the vocabulary.
    names: [&'static str; 3],
    /// Its class without such a head; nothing where limpid reads none without.
    headless: &'static str,
    /// What stands before the names of all but the head.
    prefix: &'static str,
    /// Settings of all its models, where these are not GPT-2's, in texts that families share.
    always: &'static [&'static str],
    /// The keys of `config.json`.
    keys: &'static [Key],
    /// Settings whose keys are missing, where the keys that families share have another value.
    usual: &'static str,
    /// The tensors below the prefix, in lists that families share.
    tensors: &'static [&'static [Row]],
    /// The tensors of the head.
    head: &'static [Row],
    /// Names of copies, and what they are copies of where the head is tied; biases always.
    copies: &'static [(&'static str, &'static str)],
    /// Tensors that no result depends on; `*` at either end stands for any text.
    idle: &'static [&'static str],
    /// Which features rotary positions turn together, as it stores them.
    pairs: RotaryPairs,
    /// Whether the head's transform has the exact GELU, whatever the blocks have.
    head_gelu: bool,
}

/// A tensor of theirs, what of ours it holds, and how. Names without an ending are pairs of `.weight` and `.bias`. `{}` is the
/// block's number; ours is then below `blocks.{}`.
pub(super) struct Row(pub(super) &'static str, pub(super) &'static str, pub(super) Held);

/// How a tensor of theirs holds a parameter of ours.
#[derive(Clone, Copy)]
pub(super) enum Held {
    /// As ours.
    Same,
    /// (in, out).
    Transposed,
    /// The queries, the keys or the values alone: three tensors, which the name spells `(q|k|v)`.
    Thirds,
    /// Queries, keys and values one after another.
    Fused,
    /// For each key head its queries, its key and its value.
    Grouped,
    /// One half of the rows, the first or the second, beside another parameter's.
    Half(usize),
    /// The gain of a norm of queries and keys, in their order.
    Turned,
    /// After some rows that no position reads.
    From(usize),
    /// As ours, in models of which this is true.
    If(fn(&Config) -> bool),
}

impl Family {
    /// What messages call it.
    pub fn name(&self) -> &'static str {
        self.names[0]
    }

    /// Its `model_type`.
    pub fn kind(&self) -> &'static str {
        self.names[1]
    }

    /// What the weights say of the configuration: an encoder's head is in the file or not, whatever config.json says.
    ///
    /// # Errors
    /// If the head is not what limpid has.
    pub fn fit(&self, config: Config, has: impl Fn(&str) -> bool) -> Answer<Config> {
        let theirs = |Row(theirs, ours, _): &Row| (*ours == "unembed.bias").then_some(*theirs);
        let bias = self.head.iter().find_map(theirs);
        if !self.headless.is_empty() && bias.is_some_and(|bias| !has(bias)) {
            return Ok(canonical(&Config { lm_head: false, ..config }));
        }
        if self.head_gelu && config.lm_head && config.activation != Activation::GeluErf {
            let found = config.activation;
            return refuse(format!(
                "the activation is {found}, but that of {}'s head is always gelu-erf: limpid has one activation for both",
                self.name()
            ));
        }
        Ok(config)
    }

    /// The name to write.
    pub fn full(&self, name: &str, config: &Config) -> String {
        let head = self.head.iter().any(|Row(theirs, ..)| is_below(name, theirs));
        if head || !config.lm_head { name.into() } else { format!("{}{name}", self.prefix) }
    }

    /// A stored name without the prefixes that programs put before it, in today's spelling.
    pub fn bare(&self, stored: &str) -> String {
        let mut name = stored.replace("_orig_mod.", "");
        for prefix in ["module.", self.prefix] {
            name = name.strip_prefix(prefix).map_or(name.clone(), String::from);
        }
        // transformers has one name for all heads, and reads GPT-NeoX's older one
        if name == "lm_head.weight" && self.head.iter().any(|Row(theirs, ..)| *theirs == "embed_out.weight") {
            return "embed_out.weight".into();
        }
        name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
    }

    /// The canonical form of a stored name; none if no number depends on the tensor: masks and index tables that old files
    /// carry, poolers and other heads, copies of a tied table.
    pub fn tidy(&self, stored: &str, config: &Config) -> Option<String> {
        let name = self.bare(stored);
        let copy = |(copy, _): &(&str, &str)| name == *copy && (config.tied_head || copy.ends_with(".bias"));
        let idle = |pattern: &&str| match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
            (Some(end), _) => name.ends_with(end),
            (_, Some(start)) => name.starts_with(start),
            _ => name == **pattern,
        };
        let headless = || !config.lm_head && self.head.iter().any(|Row(theirs, ..)| is_below(&name, theirs));
        let none = self.copies.iter().any(copy) || self.idle.iter().any(idle) || headless();
        (!none && !name.ends_with(".rotary_emb.inv_freq")).then_some(name)
    }

    /// Tensors that may be stored twice, each with the one that it is a copy of: a tied table, and biases always.
    pub fn copies(&self) -> &'static [(&'static str, &'static str)] {
        self.copies
    }

    /// Whether its matrices are (in, out).
    pub fn transposed(&self) -> bool {
        self.tensors.iter().copied().flatten().any(|Row(.., held)| matches!(held, Held::Transposed))
    }

    /// Which tensor of theirs is which of ours.
    pub fn links(&self, model: &Model) -> Vec<Link> {
        links(self.tensors.iter().copied().flatten().chain(self.head), self.pairs, model)
    }

    /// What all its models have.
    fn plain(&self) -> Config {
        plain(self.always, self.pairs)
    }

    /// A config.json, to be read as one of its own.
    fn own<'a>(&self, map: &'a Map<String, Value>) -> Keys<'a> {
        Keys { usual: self.usual, ..Keys::new(map) }
    }

    /// Reads the keys of a configuration; gives those that say nothing to limpid, too.
    fn read(&self, keys: &Keys) -> Answer<(Config, Vec<String>)> {
        let mut c = self.plain();
        self.keys.iter().try_for_each(|key| key.read(keys, &mut c))?;
        let ignored = keys.rest()?;
        c.check()?;
        Ok((canonical(&c), ignored))
    }

    /// The keys of a configuration, as far as it has them.
    fn write(&self, c: &Config) -> Map<String, Value> {
        let heads = c.heads();
        let (n_kv_head, d_head) = (Some(heads.n_kv_head), Some(heads.d_head));
        let attention_out_bias = Some(c.attention_out_bias());
        let rotary_dim = Some(c.rotary_dim.unwrap_or(heads.d_head));
        let whole = Config { n_kv_head, d_head, attention_out_bias, rotary_dim, ..c.clone() };
        let entries = self.keys.iter().flat_map(|key| key.write(&whole));
        entries.map(|(key, value)| (key.to_string(), value)).collect()
    }

    /// The configuration that says of `c` what can be said here, what it lacks (what comes back otherwise when the keys are
    /// written and read), and whether it has more than `c`.
    fn candidate(&self, c: &Config) -> (Config, Complaints, bool) {
        let (mut not, mine) = (common(c), canonical(c));
        let map = self.write(&mine);
        let read = self.read(&self.own(&map));
        let Ok((mut theirs, _)) = read else {
            // a value that the family has no number for
            not.unless(false, "a setting that its configuration has no value for", "");
            return (mine, not, false);
        };
        let headless = !mine.lm_head && !self.headless.is_empty();
        theirs = Config { lm_head: theirs.lm_head && !headless, dropout: mine.dropout, ..theirs };
        let mut theirs = canonical(&theirs);
        let more = not.differences(&mine, &theirs);
        let head = !self.head_gelu || !mine.lm_head || mine.activation == Activation::GeluErf;
        not.unless(head, format!("activation {} in the head", mine.activation), "activation gelu-erf");
        theirs.dropout = c.dropout;
        (theirs, not, more)
    }
}

impl Complaints {
    /// Notes what `theirs` says otherwise than `mine`, both canonical, sizes last; whether it has more, which changes nothing.
    pub(super) fn differences(&mut self, mine: &Config, theirs: &Config) -> bool {
        let (own, read) = (followed(mine), followed(theirs));
        let (mut lacks, mut more): (Vec<(bool, String, String)>, bool) = (vec![], false);
        for ((setting, ours), (_, there)) in own.fields().into_iter().zip(read.fields()) {
            let name = setting.name;
            let turns = name.starts_with("rotary") && mine.positions != theirs.positions;
            let wider = is_wider(name, &own, &read);
            more |= wider && name != "norm_gain_less_one";
            let order = name == "rotary_pairs"; // features lie otherwise there, and numbers are the same
            if same(ours, there) || wider || turns || order {
                continue;
            }
            // a setting that follows from others is not given
            let (size, given) = (ours.whole().is_some(), setting.chosen && !there.json().is_null());
            let [ours, there] = [ours, there].map(text);
            let setting = if given { format!("{name} {there}") } else { String::new() };
            lacks.push((size, format!("{name} {ours}"), setting));
        }
        lacks.sort_by_key(|(size, ..)| *size);
        lacks.into_iter().for_each(|(_, what, setting)| self.unless(false, what, setting));
        more
    }
}

/// Which tensor of theirs is which of ours, by rows.
pub(super) fn links<'a>(rows: impl Iterator<Item = &'a Row>, pairs: RotaryPairs, model: &Model) -> Vec<Link> {
    let mut list = vec![];
    for row in rows {
        let Row(theirs, ours, _) = row;
        for (third, theirs) in spelt(theirs).iter().enumerate() {
            let in_blocks = theirs.contains("{}");
            for i in 0..if in_blocks { model.config.n_layer } else { 1 } {
                let module = if in_blocks { Module::block(i) } else { Module::MODEL };
                let names = [theirs.replace("{}", &i.to_string()), module.named(ours)];
                let kinds: &[&str] = if is_whole(ours) { &[""] } else { &[".weight", ".bias"] };
                for kind in kinds {
                    list.extend(row.link(
                        pairs,
                        model,
                        (i, third),
                        names.each_ref().map(|name| format!("{name}{kind}")),
                    ));
                }
            }
        }
    }
    list
}

/// The names that a name with `(q|k|v)` in it stands for; another stands for itself.
fn spelt(name: &str) -> Vec<String> {
    let parts = name.split_once('(').and_then(|(before, rest)| Some((before, rest.split_once(')')?)));
    let Some((before, (all, after))) = parts else { return vec![name.into()] };
    all.split('|').map(|one| format!("{before}{one}{after}")).collect()
}

impl Row {
    /// Its links in a block, if the model has the parameter; of three tensors those of one.
    fn link(
        &self,
        pairs: RotaryPairs,
        model: &Model,
        (block, third): (usize, usize),
        [name, param]: [String; 2],
    ) -> Vec<Link> {
        let Some(own) = model.param(&param) else { return vec![] };
        let (rows, padded) = (extent(own).0, own.is_vocabulary());
        let heads = model.config.heads();
        let (d_head, turned) = (heads.d_head, model.config.rotary_dim_of(block));
        let turn = match pairs {
            RotaryPairs::Neighbours => TensorLayout::Same,
            _ => TensorLayout::Features(FeatureOrder { pairs, d_head, turned, features: heads.cols() }),
        };
        let link = |rows, turn, within| Link { name: name.clone(), param: param.clone(), rows, turn, within, padded };
        let part = |i: usize, within| link(heads.parts()[i].clone(), [turn, turn, TensorLayout::Same][i], within);
        let within = |from, run, stride, of| Some(Within { from, run, stride, of });
        match self.2 {
            Held::If(holds) if !holds(&model.config) => vec![],
            Held::Same | Held::If(_) => vec![link(0..rows, TensorLayout::Same, None)],
            Held::Transposed => vec![link(0..rows, TensorLayout::Transposed, None)],
            Held::Turned => vec![link(0..rows, turn, None)],
            Held::Thirds => vec![part(third, None)],
            Held::From(from) => vec![link(0..rows, TensorLayout::Same, within(from, rows, rows, from + rows))],
            Held::Half(i) => vec![link(0..rows, TensorLayout::Same, within(i * rows, rows, rows, 2 * rows))],
            Held::Fused => {
                let place = |i: usize| heads.parts()[i].clone();
                (0..3).map(|i| part(i, within(place(i).start, place(i).len(), place(i).len(), heads.cols()))).collect()
            }
            Held::Grouped => {
                let (d, group) = (heads.d_head, heads.group());
                let place = |i: usize| [(0, group * d), (group * d, d), ((group + 1) * d, d)][i];
                let one = |i| part(i, within(place(i).0, place(i).1, (group + 2) * d, heads.cols()));
                (0..3).map(one).collect()
            }
        }
    }
}

/// Whether a name is a tensor's, not that of a weight and a bias.
fn is_whole(name: &str) -> bool {
    name.ends_with(".weight") || name.ends_with(".bias")
}

/// Whether a tensor is that of a row, or one of its two.
fn is_below(name: &str, row: &str) -> bool {
    let pair = |kind: &str| !is_whole(row) && name.strip_suffix(kind) == Some(row);
    name == row || pair(".weight") || pair(".bias")
}

/// One form for all configurations of the same numbers: what follows from other settings, or changes nothing, is not set.
pub(super) fn canonical(c: &Config) -> Config {
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
    let d = c.dropout;
    if [d.embedding, d.attention, d.projection, d.ffn].iter().all(|p| *p == 0.0) {
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
fn followed(c: &Config) -> Config {
    let (heads, bias) = (c.heads(), c.attention_out_bias());
    Config {
        n_kv_head: Some(heads.n_kv_head),
        d_head: Some(heads.d_head),
        d_v: Some(heads.d_value),
        attention_out_bias: Some(bias),
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

/// Whether a family has something always that changes nothing where a model lacks it: biases of zeros, gains of ones, a table
/// of sinusoids, segment vectors of zeros.
fn is_wider(name: &str, ours: &Config, theirs: &Config) -> bool {
    match name {
        "norm_gain" | "norm_offset" | "attention_bias" | "attention_out_bias" | "ffn_bias" | "head_bias" => {
            setting(ours, name) == false && setting(theirs, name) == true
        }
        "positions" => {
            let table = [Positions::Sinusoidal, Positions::SinusoidalOneBased, Positions::None];
            table.contains(&ours.positions) && theirs.positions == Positions::Learned
        }
        "n_segment" => ours.n_segment == 0 && theirs.n_segment > 0,
        // gains are stored anew (`super::regained`)
        "norm_gain_less_one" => ours.norm_gain_less_one != theirs.norm_gain_less_one,
        _ => false,
    }
}

/// The family of a `model_type`.
pub fn named(kind: &str) -> Option<&'static Family> {
    ALL.iter().find(|family| family.kind() == kind)
}

/// Models that limpid cannot open, and why; some of the names are llama.cpp's.
#[rustfmt::skip]
const OTHERS: &[(&[&str], &str)] = &[
    (&[
        "mamba", "mamba2", "falcon_mamba", "falcon_h1", "jamba", "bamba", "rwkv", "rwkv6", "rwkv7", "recurrent_gemma", "zamba", "zamba2",
    ], "its layers keep a state instead of attention"),
    (&[
        "mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "phimoe", "granitemoe", "deepseek2", "deepseek_v2", "deepseek_v3", "dbrx", "gpt_oss",
        "llama4", "ernie4_5_moe", "jetmoe", "arctic",
    ], "its feed-forward network is a mixture of experts"),
    (&[
        "t5", "t5encoder", "mt5", "umt5", "bart", "mbart", "pegasus", "marian", "m2m_100", "blenderbot", "led", "whisper",
    ], "it is an encoder and a decoder that attends to it"),
    (&["gemma3", "llava", "qwen2_vl", "paligemma", "mllama"], "it sees pictures: give its text model alone"),
    (&["deberta", "deberta-v2", "xlnet", "longformer", "big_bird", "reformer"], "its attention is of another kind"),
];

/// The families that ask for a key: it says something in their models.
fn readers(key: &str) -> Vec<&'static str> {
    let nothing = Map::new();
    let asks = |family: &&Family| {
        let (keys, mut c) = (family.own(&nothing), family.plain());
        family.keys.iter().for_each(|own| _ = own.read(&keys, &mut c));
        keys.asked.borrow().contains(key) && !keys.idle.borrow().contains(key)
    };
    ALL.iter().filter(asks).map(Family::kind).collect()
}

/// Why limpid has no model of this kind, by its name in HuggingFace's files or in GGUF's, which puts other marks between words.
pub(super) fn why_not(kind: &str) -> Option<&'static str> {
    let bare = |name: &str| name.replace(['-', '_'], "");
    OTHERS.iter().find(|(types, _)| types.iter().any(|known| bare(known) == bare(kind))).map(|(_, why)| *why)
}

/// Reads a config.json of one of the families. Also returns the keys that limpid ignores because no result depends on them.
///
/// # Errors
/// If the model is of another family, or has something that limpid does not support; the error names the key.
pub fn read(text: &str) -> Answer<(&'static Family, Config, Vec<String>)> {
    let value: Value = serde_json::from_str(text).map_err(|e| {
        let said = e.to_string();
        let why = limpid_base::words::not_json(text, e.line(), e.column(), &said).unwrap_or(said);
        ConfigError::File(format!("it is not JSON: {why}"))
    })?;
    let Some(map) = value.as_object() else { return refuse("it is not a JSON object") };
    let Some(kind) = map.get("model_type").and_then(Value::as_str) else {
        return refuse("it has no model_type, so nothing says what kind of model it is");
    };
    if let Some(why) = why_not(kind) {
        return refuse(format!("limpid does not support model_type `{kind}`: {why}"));
    }
    let Some(family) = named(kind) else {
        // a program wrote it: it is a name that limpid does not know, not one that was mistyped
        let mut all: Vec<&str> = ALL.iter().map(Family::kind).collect();
        all.sort_unstable();
        return refuse(format!("limpid does not support model_type `{kind}`; it supports {}", all.join(", ")));
    };
    let keys = family.own(map);
    keys.only("is_encoder_decoder", &json!(false), "decoders and encoders by themselves")?;
    keys.only("add_cross_attention", &json!(false), "attention is to the sequence itself")?;
    let plain = "weights are read as they are stored; convert to a plain model first";
    keys.only("quantization_config", &Value::Null, plain)?;
    keys.only("pruned_heads", &json!({}), "all heads have one size")?;
    let (config, ignored) = family.read(&keys).map_err(|error| match error {
        ConfigError::File(what) => ConfigError::File(format!("model_type `{kind}`: {what}")),
        other => other,
    })?;
    Ok((family, config, ignored))
}

/// The keys of a config.json that is to be written.
pub struct ConfigKeys {
    map: Map<String, Value>,
    /// Whether they are those that the model came with.
    pub came: bool,
}

/// The family and the configuration that says of `c` what can be said there: with what changes nothing (biases of zeros,
/// gains of ones, a table of sinusoids) where the family always has it; and its keys. The family is that of `origin`, the
/// config.json that the model came with, if it can say `c`; its keys are then the same, or, where `c` is another by now, those
/// of them that change no number, and new ones.
///
/// # Errors
/// Says what of `c` the family nearest to it lacks.
pub fn express(
    c: &Config,
    origin: Option<&str>,
) -> Result<(&'static Family, Config, ConfigKeys), super::CheckpointError> {
    if let Some(text) = origin
        && let Ok((family, said, _)) = read(text)
        && let (config, not, _) = family.candidate(c)
        && not.0.is_empty()
    {
        let mut map: Map<String, Value> = serde_json::from_str(text).expect("it was read");
        if canonical(&Config { lm_head: c.lm_head, ..said }) != canonical(c) {
            map.retain(|key, _| keys::is_idle(key));
            map.extend(family.write(&config));
        }
        map.remove("auto_map"); // code that is not taken along
        return Ok((family, config, ConfigKeys { map, came: true }));
    }
    let (family, config, not) = nearest(c, ALL);
    not.check(&format!("HuggingFace's {}, the family nearest to it,", family.name()))?;
    let map = family.write(&config);
    Ok((family, config, ConfigKeys { map, came: false }))
}

/// The family of some that lacks least of a model, the configuration there, and what it lacks. Of several that lack as little the
/// first that has no more than the model, or else the first.
pub(super) fn nearest(c: &Config, families: &'static [Family]) -> (&'static Family, Config, Complaints) {
    let all = families.iter().map(|family| (family, family.candidate(c)));
    let nearest = all.min_by_key(|(_, (_, not, more))| (not.0.len(), *more)).expect("there are families");
    let (family, (config, not, _)) = nearest;
    (family, config, not)
}

/// The text of config.json for what [`express`] gave, with weights of that type; with the special tokens of a tokenizer, or of
/// none, if `tokenizer` is given, and with all tokens that end a text or a turn.
pub fn write(
    family: &Family,
    c: &Config,
    keys: ConfigKeys,
    tokenizer: Option<Option<&Tokenizer>>,
    ends: &[u32],
    dtype: &Dtype,
) -> String {
    let mut map = keys.map;
    let class = if c.lm_head { family.names[2] } else { family.headless };
    if !keys.came {
        map.insert("model_type".into(), json!(family.kind()));
    }
    if map.get("architectures").is_none_or(|all| all[0] != class) {
        map.insert("architectures".into(), json!([class]));
    }
    let stored = match dtype {
        Dtype::F16 => "float16",
        Dtype::Bf16 => "bfloat16",
        _ => "float32",
    };
    // transformers would convert to what it names
    for key in ["dtype", "torch_dtype"] {
        map.get_mut(key).filter(|value| value.is_string()).into_iter().for_each(|value| *value = json!(stored));
    }
    if let Some(tokenizer) = tokenizer.filter(|_| family.headless.is_empty()) {
        let roles = tokenizer.map(Tokenizer::roles).unwrap_or_default();
        for (key, role) in [("bos_token_id", "bos_token"), ("eos_token_id", "eos_token"), ("pad_token_id", "pad_token")]
        {
            // null, too: else some families have the one of their own vocabulary
            map.insert(key.into(), json!(roles.iter().find(|(name, _)| *name == role).map(|(_, id)| id)));
        }
        if ends.len() > 1 {
            map.insert(EOS.into(), ids(ends));
        }
    }
    serde_json::to_string_pretty(&map).expect("a value is JSON") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::{Linked, names, outline, together};
    use limpid_core::config::Settings;
    use std::path::PathBuf;

    fn fixtures() -> Vec<PathBuf> {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../limpid/fixtures/hf");
        let mut all: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
        all.sort();
        assert!(all.len() > 15);
        all
    }

    fn keys_of(folder: &std::path::Path) -> String {
        std::fs::read_to_string(folder.join("config.json")).unwrap()
    }

    /// Every family writes what it reads: the same configuration, and the same values of every tensor.
    #[test]
    fn every_family_writes_what_it_reads() {
        let mut seen = std::collections::BTreeSet::new();
        for folder in fixtures() {
            let name = folder.display();
            let (family, config, _) = read(&keys_of(&folder)).unwrap_or_else(|e| panic!("{name}: {e}"));
            let store = crate::open_weights(&folder).unwrap();
            let config = family.fit(config, |name| store.names().any(|n| n.ends_with(name))).unwrap();
            let keys = ConfigKeys { map: family.write(&config), came: false };
            let (again, text) = (Family { ..*family }, write(family, &config, keys, Some(None), &[], &Dtype::F32));
            let (_, back, _) = read(&text).unwrap_or_else(|e| panic!("{name}: {e}: {text}"));
            let back = Config { lm_head: config.lm_head, ..back };
            assert_eq!(canonical(&back), config, "{name}: {text}");
            let (there, not, more) = again.candidate(&config);
            assert_eq!((there, not.0.len(), more), (config.clone(), 0, false), "{name}: {:?}", not.0);
            let model = outline(&config).unwrap();
            let (links, names) = (family.links(&model), names(&store, |name| family.tidy(name, &config)).unwrap());
            let linked = Linked { links: &links, model: &model, store: &store, names: &names };
            let own = |param: &limpid_core::model::Param| Ok(linked.values(param)?.into_owned());
            for (theirs, stored) in &names {
                let held = links.iter().filter(|link| link.name == *theirs);
                let held: Vec<_> = held.map(|link| (link.clone(), model.param(&link.param).unwrap().clone())).collect();
                let (made, stored) = (together(&held, &own).unwrap(), store.get(stored).unwrap().values().unwrap());
                let cols = held[0].1.region.cols.max(1);
                let from = held[0].0.within.filter(|_| held.len() == 1 && theirs.contains("position"));
                let from = from.map_or(0, |within| within.from * cols);
                assert!(made[from..] == stored[from..made.len()], "{name}: {theirs}");
                assert!(made[..from].iter().all(|v| *v == 0.0), "{name}: {theirs}");
            }
            seen.insert(family.name());
        }
        let unseen: Vec<&str> = ALL.iter().map(Family::name).filter(|name| !seen.contains(name)).collect();
        assert!(unseen.is_empty(), "families without a fixture: {unseen:?}");
    }

    /// Keys that real configurations have and that change no number are passed over, and said, but for those that say what is so anyway; of
    /// the same keys, values that change numbers are refused with the families that have them.
    #[test]
    fn idle_keys_of_real_configurations_are_known() {
        let text = keys_of(&fixtures().into_iter().find(|folder| folder.ends_with("llama-gqa")).unwrap());
        let plain: Map<String, Value> = serde_json::from_str(&text).unwrap();
        let with = |key: &str, value: &Value| {
            let mut map = plain.clone();
            match key.split_once('.').filter(|(object, _)| plain.contains_key(*object)) {
                Some((object, inner)) => drop(map[object].as_object_mut().unwrap().insert(inner.into(), value.clone())),
                None => drop(map.insert(key.into(), value.clone())),
            }
            read(&Value::from(map).to_string())
        };
        let (_, config, before) = read(&text).unwrap();
        let full = vec!["full_attention"; config.n_layer];
        for (key, value, told) in [
            ("_num_labels", json!(5), true),
            ("is_llama_config", json!(true), true),
            ("unsloth_version", json!("2025.1"), true),
            ("is_decoder", json!(true), true),
            ("auto_map", json!({ "AutoModel": "own.py" }), true),
            ("transformers.js_config", json!({ "dtype": "q4" }), true),
            ("layer_types", json!(full), false),
            ("partial_rotary_factor", json!(1.0), false),
            ("type_vocab_size", json!(1), true),
            ("use_something", json!(false), true),
            ("rope_parameters.finetuned", json!(false), true),
        ] {
            let (_, found, ignored) = with(key, &value).unwrap_or_else(|e| panic!("{key}: {e}"));
            assert!(found == config && !before.iter().any(|own| own == key), "{key}");
            assert_eq!(ignored.iter().any(|own| own == key), told, "{key}: {ignored:?}");
        }
        for (key, value, families) in [
            ("layer_types", json!(["full_attention", "sliding_attention"]), "qwen2, qwen3, gemma2"),
            ("partial_rotary_factor", json!(0.5), "phi"),
            ("rope_parameters.partial_rotary_factor", json!(0.5), "phi"),
            ("type_vocab_size", json!(2), "bert"),
            ("some_scale", json!(0.5), "no family"),
        ] {
            let error = with(key, &value).err().unwrap_or_else(|| panic!("{key} is read")).to_string();
            let name = key.rsplit('.').next().unwrap();
            assert!(
                error.starts_with(&format!("model_type `llama`: `{name}` is ")) && error.contains(families),
                "{error}"
            );
            assert!(!error.contains("take the key out"), "{error}");
        }
    }

    /// A family says which it is where it refuses.
    #[test]
    fn a_refusal_names_the_family() {
        for (name, says) in [
            ("opt-post-norm", "model_type `opt`: `do_layer_norm_before` is false"),
            ("phi-qk-norm", "model_type `phi`: `qk_layernorm` is true"),
            ("cohere-qk-norm", "model_type `cohere`: `use_qk_norm` is true"),
            ("falcon-alibi", "model_type `falcon`: `alibi` is true"),
            ("olmo-clip", "model_type `olmo`: `clip_qkv` is "),
        ] {
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../limpid/fixtures/hf-refused");
            let error = read(&keys_of(&std::path::Path::new(folder).join(name))).err().unwrap().to_string();
            assert!(error.starts_with(says), "{name}: {error}");
        }
    }

    /// MPT's dropout of attention is a part, not whole.
    #[test]
    fn mpt_keeps_its_dropout() {
        let text = keys_of(&fixtures().into_iter().find(|folder| folder.ends_with("mpt")).unwrap());
        let (family, mut config, _) = read(&text).unwrap();
        config.dropout.attention = 0.25;
        let keys = ConfigKeys { map: family.write(&config), came: false };
        let (_, back, _) = read(&write(family, &config, keys, None, &[], &Dtype::F32)).unwrap();
        assert_eq!(back.dropout.attention, 0.25);
    }

    /// Tables name settings, values and JSON that there are.
    #[test]
    fn tables_name_what_there_is() {
        let known = Config::default();
        let names: Vec<&str> = known.fields().iter().map(|(setting, _)| setting.name).collect();
        let mut types = std::collections::BTreeSet::new();
        for family in ALL {
            assert!(family.names.iter().all(|name| !name.is_empty()));
            assert!(types.insert(family.kind()), "{} is two families", family.kind());
            family.plain();
            plain(&[family.usual], family.pairs);
            let mut keys: Vec<&Key> = family.keys.iter().collect();
            while let Some(key) = keys.pop() {
                match key {
                    Key::All(more) => keys.extend(*more),
                    Key::Is(settings, ..) => {
                        settings.split(' ').for_each(|setting| assert!(names.contains(&setting), "{setting}"))
                    }
                    Key::Choice(setting, _, values, otherwise) => {
                        values.iter().for_each(|(_, value)| Config::default().set(setting, value).unwrap());
                        assert!(values.iter().any(|(json, _)| json == otherwise));
                    }
                    Key::Cap(setting, ..) => assert!(names.contains(setting)),
                    Key::Only(_, value, _) => drop(serde_json::from_str::<Value>(value).unwrap()),
                    _ => {}
                }
            }
        }
    }
}

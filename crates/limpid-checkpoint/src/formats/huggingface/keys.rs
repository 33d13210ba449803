//! The meaning of a key in `config.json`. A [`Key`] is one line of a table that serves reading and writing: a key is
//! one of our settings, or has the one value that limpid supports, or needs functions of its own (rotary angles,
//! windows). `families` has the tables. A key that no table mentions is an error, unless no result depends on it.

use crate::formats::express::{setting, settings};
use limpid_core::config::{
    Activation, Axis, Config, ConfigError, Fields, LayerPattern, PairFactors, RotaryKind, RotaryScaling, Settings,
    unknown,
};
use limpid_core::numeric::math::ln_f64;
use serde_json::{Map, Value, json};
use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;

pub(super) type Answer<T> = Result<T, ConfigError>;

/// Keys of a config.json with their values.
pub(super) type Entries = Vec<(&'static str, Value)>;

pub(super) fn refuse<T>(what: impl Into<String>) -> Answer<T> {
    Err(ConfigError::File(what.into()))
}

/// One key, or several that say one thing together.
pub(super) enum Key {
    /// Settings and their keys, as words: `setting=key?value`, or `setting,setting=key|key?value` where a key is
    /// several settings or has several names, of which the first is written. The value is that of a missing key, if the
    /// family's `usual` has none: without one the key is required; `-` is the setting's own default, and `4*d_model` is
    /// that.
    Is(&'static str),
    /// The activation function: the names of its key, its value where that is missing, and how values are spelt.
    Act(&'static [&'static str], &'static str, fn(Activation) -> &'static [&'static str]),
    /// A setting, its key, which value of the key (as JSON) is which of the setting, and the value of a missing key.
    Choice(&'static str, &'static str, &'static [(&'static str, &'static str)], &'static str),
    /// A bound: a setting that is 0 where its key is null, and what it is where the key is missing.
    Cap(&'static str, &'static str, &'static str),
    /// The only value that limpid supports (as JSON), and why.
    Only(&'static str, &'static str, &'static str),
    /// Keys that affect no result, beside [`IDLE`].
    Idle(&'static str),
    /// The rotary angles: which part of a head is turned where no key says it (nothing: always all of it), and the
    /// names of the keys of their base (10,000 where neither a key nor `usual` says it) and of that part.
    Rope(Option<f64>, [&'static str; 2]),
    /// `sliding_window`: its value where the key is missing, and the blocks that have it.
    Window(&'static str, WindowBlocks),
    /// A setting that no key says: it follows from others.
    Follows(fn(&mut Config)),
    /// Read and written by functions of its own.
    By(fn(&Keys, &mut Config) -> Answer<()>, fn(&Config) -> Entries),
    /// Keys that families share.
    All(&'static [Key]),
}

/// The blocks that have a window where no `layer_types` say so.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum WindowBlocks {
    /// All.
    All,
    /// Those from `max_window_layers` on, if `use_sliding_window` is true.
    After,
    /// All but every n-th.
    Every(usize),
}

/// The names of keys of rotary angles in most families.
pub(super) const ROPE: [&str; 2] = ["rope_theta", "partial_rotary_factor"];

/// A config.json, and which of its keys have been asked for.
pub(super) struct Keys<'a> {
    pub(super) map: &'a Map<String, Value>,
    pub(super) asked: RefCell<HashSet<&'static str>>,
    /// Those that a family has no use for.
    pub(super) idle: RefCell<HashSet<&'static str>>,
    /// What [`Keys::rest`] found in objects inside.
    pub(super) inner: RefCell<Vec<String>>,
    /// Those that nobody asked for and that may change numbers, of objects inside too.
    pub(super) unknown: Rc<RefCell<Vec<(String, Value)>>>,
    /// A family's values of missing keys.
    pub(super) usual: &'static str,
}

/// What a setting's value must be, in words.
fn wanted(setting: &str) -> &'static str {
    let known = Config::default();
    let found = known.fields().into_iter().find(|(own, _)| own.name == setting).expect("tables name settings");
    match found.0.value {
        "BOOL" => "true or false",
        "X" | "P" => "a number",
        _ => "a whole number",
    }
}

impl Keys<'_> {
    pub(super) fn new(map: &Map<String, Value>) -> Keys<'_> {
        let (asked, idle, inner, unknown) = Default::default();
        Keys { map, asked, idle, inner, unknown, usual: "" }
    }
    /// Keys of an object inside, or of another form of the same.
    pub(super) fn over<'m>(&self, map: &'m Map<String, Value>) -> Keys<'m> {
        Keys { unknown: Rc::clone(&self.unknown), ..Keys::new(map) }
    }
    /// The value of a setting whose key is missing, if the family has one of its own.
    fn usual(&self, setting: &str) -> Option<&'static str> {
        settings(self.usual).find(|(name, _)| *name == setting).map(|(_, value)| value)
    }
    /// The value under the first of several names for one thing; null is nothing.
    pub(super) fn find(&self, names: &[&'static str]) -> Option<(&'static str, &Value)> {
        self.asked.borrow_mut().extend(names);
        let mut given = names.iter().filter_map(|name| Some((*name, self.map.get(*name)?)));
        given.find(|(_, value)| !value.is_null())
    }
    fn has_null(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.map.get(*name).is_some_and(Value::is_null))
    }
    pub(super) fn wrong<T>(name: &str, value: &Value, wanted: &str) -> Answer<T> {
        refuse(format!("`{name}` is {value}: it must be {wanted}"))
    }
    pub(super) fn maybe_size(&self, names: &[&'static str]) -> Answer<Option<usize>> {
        match self.find(names) {
            None => Ok(None),
            Some((name, value)) => match value.as_u64().and_then(|n| usize::try_from(n).ok()) {
                Some(size) => Ok(Some(size)),
                None => Keys::wrong(name, value, "a whole number"),
            },
        }
    }
    pub(super) fn number(&self, names: &[&'static str], otherwise: f64) -> Answer<f64> {
        match self.find(names) {
            None => Ok(otherwise),
            Some((name, value)) => value.as_f64().map_or_else(|| Keys::wrong(name, value, "a number"), Ok),
        }
    }
    pub(super) fn flag(&self, name: &'static str, otherwise: bool) -> Answer<bool> {
        match self.find(&[name]) {
            None => Ok(otherwise),
            Some((_, value)) => value.as_bool().map_or_else(|| Keys::wrong(name, value, "true or false"), Ok),
        }
    }
    fn text(&self, names: &[&'static str], otherwise: &'static str) -> Answer<&str> {
        match self.find(names) {
            None => Ok(otherwise),
            Some((name, value)) => value.as_str().map_or_else(|| Keys::wrong(name, value, "a name"), Ok),
        }
    }
    /// A list with something for each block.
    pub(super) fn list(&self, name: &'static str, blocks: usize) -> Answer<Option<&Vec<Value>>> {
        match self.find(&[name]) {
            None => Ok(None),
            Some((_, value)) => match value.as_array().filter(|list| list.len() == blocks) {
                Some(list) => Ok(Some(list)),
                None => Keys::wrong(name, value, &format!("a list with an item for each of {blocks} blocks")),
            },
        }
    }
    /// A setting that limpid has in one way only.
    pub(super) fn only(&self, name: &'static str, wanted: &Value, why: &str) -> Answer<()> {
        match self.find(&[name]) {
            Some((_, value)) if value != wanted && value.as_f64().is_none_or(|x| Some(x) != wanted.as_f64()) => {
                refuse(format!("`{name}` is {value}: limpid has only {wanted} ({why})"))
            }
            _ => Ok(()),
        }
    }
    /// The keys that change no number and say nothing to limpid, but those that are in every file; others that nobody
    /// asked for become [`Keys::unknown`].
    pub(super) fn rest(&self) -> Vec<String> {
        let (asked, idle) = (self.asked.borrow(), self.idle.borrow());
        let is_empty = |value: &Value| match value {
            Value::Null => true,
            Value::Array(list) => list.is_empty(),
            Value::Object(map) => map.is_empty(),
            _ => false,
        };
        let says_usual = |key: &str, value: &Value| match key {
            "layer_types" => value.as_array().is_some_and(|list| list.iter().all(|kind| kind == FULL)),
            "partial_rotary_factor" => value.as_f64() == Some(1.0),
            _ => false,
        };
        let mut ignored = self.inner.take();
        for (key, value) in self.map.iter().filter(|(_, value)| !is_empty(value)) {
            let name = key.as_str();
            let known = idle.contains(name) || is_idle(name);
            let said = asked.contains(name) && !idle.contains(name) || USUAL.contains(&name) || says_usual(name, value);
            if said || known && *value == false {
                continue;
            }
            // a switch that is off, dropout that drops nothing, one segment
            let nothing = name.contains("dropout") && value.as_f64() == Some(0.0);
            let off = *value == false || nothing || name == "type_vocab_size" && *value == 1;
            if known || off {
                ignored.push(key.clone());
            } else {
                self.unknown.borrow_mut().push((key.clone(), value.clone()));
            }
        }
        ignored
    }
    /// The same of the object under `name`; what says nothing there is told with what says nothing here.
    pub(super) fn rest_of(&self, name: &str, inner: &Keys) {
        let ignored = inner.rest().into_iter().map(|key| format!("{name}.{key}"));
        self.inner.borrow_mut().extend(ignored);
    }
}

/// Whether a key of this name changes no number in any family.
pub(super) fn is_idle(name: &str) -> bool {
    let ours = [USUAL, IDLE].iter().any(|list| list.contains(&name));
    ours || name.ends_with("_token_id") || ["unsloth_", "transformers.js"].iter().any(|of| name.starts_with(of))
}

/// Keys that change no number of a model and are in every file: what HuggingFace's `PreTrainedConfig` puts there.
#[rustfmt::skip]
const USUAL: &[&str] = &[
    "model_type", "architectures", "transformers_version", "torch_dtype", "dtype", "_name_or_path", "name_or_path",
    "use_cache", "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "cls_token_id", "unk_token_id",
    "mask_token_id", "initializer_range", "is_encoder_decoder", "pretraining_tp",
];

/// More keys that change no number: settings of training, generation and other heads, and what other programs leave
/// there.
#[rustfmt::skip]
const IDLE: &[&str] = &[
    "decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id",
    "output_attentions", "output_hidden_states", "output_scores", "return_dict", "return_dict_in_generate",
    "torchscript", "problem_type", "id2label", "label2id", "num_labels", "_num_labels", "finetuning_task",
    "task_specific_params", "tokenizer_class", "prefix", "gradient_checkpointing", "chunk_size_feed_forward",
    "attn_implementation", "_attn_implementation", "_attn_implementation_autoset", "attention_implementation",
    "_flash_attn_2_enabled", "reorder_and_upcast_attn", "n_ctx", "n_special", "predict_special_tokens", "summary_type",
    "summary_use_proj", "summary_activation", "summary_first_dropout", "summary_last_dropout", "summary_proj_to_labels",
    "classifier_dropout", "classifier_activation", "directionality", "pooler_fc_size", "pooler_num_attention_heads",
    "pooler_num_fc_layers", "pooler_size_per_head", "pooler_type", "max_length", "min_length", "do_sample",
    "early_stopping", "num_beams", "num_beam_groups", "diversity_penalty", "temperature", "top_k", "top_p", "typical_p",
    "repetition_penalty", "length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids",
    "num_return_sequences", "exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens",
    "remove_invalid_values", "use_bfloat16", "tf_legacy_loss", "layer_norm_type", "max_sequence_length",
    "model_max_length", "auto_map", "is_llama_config", "init_std", "cache_implementation", "mlm_probability",
    "gradient_checkpointing_kwargs", "_commit_hash", "is_decoder",
];

/// The kinds of attention in `layer_types`.
const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";

/// HuggingFace's names for an activation, the one to write first (`transformers.activations`).
pub(super) fn spellings(f: Activation) -> &'static [&'static str] {
    match f {
        Activation::Relu => &["relu"],
        Activation::LeakyRelu => &["leaky_relu"],
        Activation::GeluErf => &["gelu", "gelu_python"],
        Activation::GeluTanh => &["gelu_new", "gelu_pytorch_tanh", "gelu_python_tanh", "gelu_fast", "gelu_accurate"],
        Activation::GeluSigmoid => &["quick_gelu"],
        Activation::Silu => &["silu", "swish"],
        Activation::Relu2 => &["relu2"],
        Activation::Sigmoid => &["sigmoid"],
        Activation::Tanh => &["tanh"],
    }
}

/// GPT's own, shorter list: its `gelu` is the others' `gelu_new`.
pub(super) fn gpt_spellings(f: Activation) -> &'static [&'static str] {
    match f {
        Activation::Relu => &["relu"],
        Activation::GeluTanh => &["gelu"],
        Activation::Silu => &["silu", "swish"],
        _ => &[],
    }
}

/// Gemma's: its `gelu` is the others' `gelu_pytorch_tanh`.
pub(super) fn gemma_spellings(f: Activation) -> &'static [&'static str] {
    match f {
        Activation::GeluErf => &["gelu_python"],
        Activation::GeluTanh => &["gelu_pytorch_tanh", "gelu_new", "gelu", "gelu_fast", "gelu_python_tanh"],
        other => spellings(other),
    }
}

/// A word of [`Key::Is`].
pub(super) struct SettingKey {
    pub(super) settings: Vec<&'static str>,
    names: Vec<&'static str>,
    missing: Option<&'static str>,
}

impl SettingKey {
    pub(super) fn new(word: &'static str) -> SettingKey {
        let (settings, key) = word.split_once('=').expect("tables name settings and keys");
        let (names, missing) = key.split_once('?').map_or((key, None), |(names, value)| (names, Some(value)));
        SettingKey { settings: settings.split(',').collect(), names: names.split('|').collect(), missing }
    }

    fn read(&self, keys: &Keys, c: &mut Config) -> Answer<()> {
        let found = keys.find(&self.names);
        let text = match (found, keys.usual(self.settings[0]).or(self.missing)) {
            (Some((_, value)), _) => value.to_string(),
            // null says that it follows from others
            (None, _) if keys.has_null(&self.names) && setting(c, self.settings[0]).is_null() => return Ok(()),
            (None, None) => return refuse(format!("it lacks the key `{}`", self.names[0])),
            (None, Some("-")) => return Ok(()),
            (None, Some("4*d_model")) => c.d_model.saturating_mul(4).to_string(),
            (None, Some(missing)) => missing.into(),
        };
        self.settings.iter().try_for_each(|setting| match (c.set(setting, &text), found) {
            (Err(_), Some((name, value))) => Keys::wrong(name, value, wanted(setting)),
            (result, _) => result,
        })
    }

    fn write(&self, c: &Config) -> (&'static str, Value) {
        let values = c.fields().into_iter().filter(|(setting, _)| self.settings.contains(&setting.name));
        let values: Vec<Value> = values.map(|(_, value)| value.json()).collect();
        // of two switches of one key, one that is off can be on: a bias of zeros
        (self.names[0], values.iter().find(|value| **value == true).unwrap_or(&values[0]).clone())
    }
}

impl Key {
    /// Reads what it says into `c`.
    pub(super) fn read(&self, keys: &Keys, c: &mut Config) -> Answer<()> {
        match self {
            // here and in `All`, what stands after one that is wrong is asked for, too
            Key::Is(words) => {
                words.split_whitespace().map(|word| SettingKey::new(word).read(keys, c)).fold(Ok(()), Result::and)
            }
            Key::Act(names, otherwise, spellings) => {
                let name = keys.text(names, otherwise)?;
                let all = || Activation::ALL.iter().flat_map(|f| spellings(*f).iter().copied());
                let Some(f) = Activation::ALL.iter().find(|f| spellings(**f).contains(&name)) else {
                    let error = unknown("activation", name, &all().collect::<Vec<_>>());
                    return refuse(format!("`{}`: {error}", names[0]));
                };
                c.activation = *f;
                Ok(())
            }
            Key::Cap(setting, name, otherwise) => {
                let otherwise = if keys.map.contains_key(*name) { "0" } else { otherwise };
                let text = keys.find(&[name]).map_or(otherwise.to_string(), |(_, value)| value.to_string());
                c.set(setting, &text).or_else(|_| Keys::wrong(name, &json!(text), "a number"))
            }
            Key::Choice(setting, name, values, otherwise) => {
                let found = keys.find(&[name]).map_or(otherwise.to_string(), |(_, value)| value.to_string());
                match values.iter().find(|(json, _)| *json == found) {
                    Some((_, value)) => c.set(setting, value),
                    None => {
                        let all: Vec<&str> = values.iter().map(|(json, _)| *json).collect();
                        refuse(format!("`{name}` is {found}: it must be {}", all.join(" or ")))
                    }
                }
            }
            Key::Only(name, value, why) => {
                keys.only(name, &serde_json::from_str(value).expect("tables have JSON"), why)
            }
            Key::Idle(names) => {
                keys.asked.borrow_mut().extend(names.split(' '));
                keys.idle.borrow_mut().extend(names.split(' '));
                Ok(())
            }
            Key::Rope(share, names) => {
                let base = keys.usual("rotary_base").map_or(10_000.0, |base| base.parse().expect("a number"));
                read_rope(keys, c, base, *share, *names)
            }
            Key::Window(otherwise, blocks) => read_window(keys, c, otherwise.parse().ok(), *blocks),
            Key::Follows(set) => {
                set(c);
                Ok(())
            }
            Key::By(read, _) => read(keys, c),
            Key::All(all) => all.iter().map(|key| key.read(keys, c)).fold(Ok(()), Result::and),
        }
    }

    /// What `c` says of it, whose settings that follow from others are set.
    pub(super) fn write(&self, c: &Config) -> Entries {
        match self {
            Key::Is(words) => words.split_whitespace().map(|word| SettingKey::new(word).write(c)).collect(),
            Key::Cap(name, key, _) => vec![(key, json!(setting(c, name).as_f64().filter(|cap| *cap > 0.0)))],
            Key::Choice(name, key, values, _) => {
                let own = setting(c, name);
                let said = values.iter().find(|(_, value)| own == *value).unwrap_or(&values[0]);
                vec![(key, serde_json::from_str(said.0).expect("tables have JSON"))]
            }
            Key::Act(names, _, spellings) => vec![(names[0], json!(spellings(c.activation).first()))],
            Key::Rope(share, names) => write_rope(c, *share, *names),
            Key::Window(_, blocks) => {
                let mut entries = vec![("sliding_window", if c.window == 0 { Value::Null } else { json!(c.window) })];
                if *blocks == WindowBlocks::After {
                    entries.push(("use_sliding_window", json!(c.window > 0)));
                    entries.push(("max_window_layers", json!(c.n_layer)));
                }
                if *blocks != WindowBlocks::All {
                    entries.push(("layer_types", layer_types(c, |i| c.window_of(i) > 0)));
                }
                entries
            }
            Key::Only(..) | Key::Idle(_) | Key::Follows(_) => vec![],
            Key::By(_, write) => write(c),
            Key::All(all) => all.iter().flat_map(|key| key.write(c)).collect(),
        }
    }
}

/// `layer_types` of a model.
pub(super) fn layer_types(c: &Config, slides: impl Fn(usize) -> bool) -> Value {
    json!((0..c.n_layer).map(|i| if slides(i) { SLIDING } else { FULL }).collect::<Vec<_>>())
}

/// The pattern of something that blocks have or not.
pub(super) fn pattern(key: &str, blocks: &[bool]) -> Answer<LayerPattern> {
    match LayerPattern::new(blocks) {
        Some(pattern) => Ok(pattern),
        None => refuse(format!("`{key}` does not repeat within 64 blocks: limpid's patterns of blocks do")),
    }
}

/// Blocks that a list is made for; a number of blocks that no model has is refused later.
pub(super) fn blocks(c: &Config) -> std::ops::Range<usize> {
    0..c.n_layer.min(4096)
}

fn read_window(k: &Keys, c: &mut Config, otherwise: Option<usize>, which: WindowBlocks) -> Answer<()> {
    let usual = otherwise.filter(|_| !k.map.contains_key("sliding_window"));
    let mut size = k.maybe_size(&["sliding_window"])?.or(usual).unwrap_or(0);
    let mut period = 0;
    let mut first = 0;
    match which {
        WindowBlocks::All => {}
        WindowBlocks::After => {
            first = k.maybe_size(&["max_window_layers"])?.unwrap_or(28);
            if !k.flag("use_sliding_window", false)? {
                size = 0;
            }
        }
        WindowBlocks::Every(n) => {
            period = k.maybe_size(&["sliding_window_pattern", "_sliding_window_pattern"])?.unwrap_or(n)
        }
    }
    let mut slides: Vec<bool> = blocks(c).map(|i| i >= first && (period == 0 || (i + 1) % period != 0)).collect();
    if which != WindowBlocks::All
        && let Some(types) = k.list("layer_types", c.n_layer)?
    {
        for (own, kind) in slides.iter_mut().zip(types) {
            *own = match kind.as_str() {
                Some(SLIDING) => true,
                Some(FULL) => false,
                _ => return Keys::wrong("layer_types", kind, &format!("{FULL} or {SLIDING}")),
            }
        }
    }
    c.window = size;
    c.window_layers = if c.n_layer == 0 { LayerPattern::ALL } else { pattern("layer_types", &slides)? };
    Ok(())
}

/// Base and scaling of the rotary angles, and how many features of a head they turn: `rope_scaling` where it says
/// something, which then stands for all, or else `rope_parameters` (transformers' `convert_rope_params_to_dict`).
pub(super) fn read_rope(
    k: &Keys,
    c: &mut Config,
    base: f64,
    share: Option<f64>,
    names: [&'static str; 2],
) -> Answer<()> {
    let [base_name, share_name] = names;
    let says = |(_, value): &(&str, &Value)| !value.as_object().is_some_and(Map::is_empty);
    let (old, new) = (k.find(&["rope_scaling"]), k.find(&["rope_parameters"]));
    let (name, nothing) = ("rope_parameters", json!({}));
    let (name, value) = old.filter(says).or(new).unwrap_or((name, &nothing));
    let Some(map) = value.as_object() else { return Keys::wrong(name, value, "an object") };
    let inner = k.over(map);
    c.rotary_base = inner.number(&["rope_theta"], k.number(&[base_name], base)?)?;
    if let Some(share) = share {
        let share = k.number(&[share_name], share)?;
        let share = inner.number(&["partial_rotary_factor"], share)?;
        if !(share > 0.0 && share <= 1.0) {
            return refuse(format!("`{share_name}` is {share}: it must be above 0 and at most 1"));
        }
        let d_head = c.d_head.unwrap_or(c.d_model / c.n_head.max(1));
        c.rotary_dim = Some((d_head as f64 * share) as usize);
    }
    let kind = inner.text(&["rope_type", "type"], "default")?.to_string();
    inner.find(&["type"]);
    // a key beside both counts more than one in them
    let original = k.maybe_size(&["original_max_position_embeddings"])?;
    let original = original.or(inner.maybe_size(&["original_max_position_embeddings"])?).unwrap_or(c.context_length);
    let lacks = |key: &str| format!("`{name}` is of the type `{kind}` and lacks `{key}`");
    let must = |key: &'static str| match inner.find(&[key]) {
        None => refuse(lacks(key)),
        Some(_) => inner.number(&[key], 1.0),
    };
    let none = RotaryScaling::NONE;
    c.rotary_scaling = match kind.as_str() {
        "default" => {
            inner.find(&["factor"]); // nothing is scaled
            none
        }
        "linear" => RotaryScaling { factor: must("factor")?, ..none },
        "dynamic" => RotaryScaling { kind: RotaryKind::Dynamic, factor: must("factor")?, ..none },
        "llama3" => {
            let (low, high) = (must("low_freq_factor")?, must("high_freq_factor")?);
            RotaryScaling { factor: must("factor")?, low, high, context: original, ..none }
        }
        "yarn" => {
            if !map.contains_key("factor") {
                return refuse(lacks("factor"));
            }
            read_yarn(&inner, original, c.context_length)?
        }
        "longrope" => {
            let list = |key: &'static str| {
                let Some((_, value)) = inner.find(&[key]) else { return refuse(lacks(key)) };
                let list = value.as_array().and_then(|list| list.iter().map(Value::as_f64).collect::<Option<Vec<_>>>());
                let factors = list.and_then(|list| PairFactors::new(&list));
                factors.map_or_else(|| Keys::wrong(key, value, "a list of at most 128 numbers above 0"), Ok)
            };
            let factors = [list("short_factor")?, list("long_factor")?];
            let scaling = read_longrope(&inner, factors, original, c.context_length)?;
            // texts of up to `original` tokens have angles of their own: those that are alike for all
            c.context_length = c.context_length.min(original);
            scaling
        }
        other => {
            return refuse(format!(
                "`{name}` has the type `{other}`: limpid has default, linear, dynamic, llama3, yarn and longrope"
            ));
        }
    };
    k.rest_of(name, &inner);
    Ok(())
}

fn write_rope(c: &Config, share: Option<f64>, [base_name, share_name]: [&'static str; 2]) -> Entries {
    let s = c.rotary_scaling;
    let scaling = match s.kind {
        RotaryKind::Bands if s.factor == 1.0 => Value::Null,
        RotaryKind::Bands if s.context == 0 => json!({ "rope_type": "linear", "factor": s.factor }),
        RotaryKind::Bands => json!({
            "rope_type": "llama3", "factor": s.factor, "low_freq_factor": s.low, "high_freq_factor": s.high,
            "original_max_position_embeddings": s.context,
        }),
        RotaryKind::Dynamic => json!({ "rope_type": "dynamic", "factor": s.factor }),
        RotaryKind::Yarn => json!({
            "rope_type": "yarn", "factor": s.factor, "beta_fast": s.high, "beta_slow": s.low,
            "truncate": s.truncate, "attention_factor": s.attention,
            "original_max_position_embeddings": s.context,
        }),
        RotaryKind::Longrope => json!({
            "rope_type": "longrope", "factor": s.factor, "short_factor": s.short[..], "long_factor": s.long[..],
            "attention_factor": s.attention, "original_max_position_embeddings": s.context,
        }),
    };
    let mut entries = vec![(base_name, json!(c.rotary_base)), ("rope_scaling", scaling)];
    if s.reach > 0 {
        entries.push(("max_position_embeddings", json!(s.reach)));
    }
    if share.is_some() {
        let (turned, all) = (c.rotary_dim.unwrap_or(c.d_head()), c.d_head() as f64);
        // a share that gives as many again when it is rounded down
        let share = [turned as f64 / all, (turned as f64 + 0.5) / all];
        let exact = share.iter().find(|share| (all * **share) as usize == turned);
        entries.push((share_name, json!(exact.unwrap_or(&1.0))));
    }
    entries
}

/// Yarn's scaling from `original` tokens to `context`.
fn read_yarn(inner: &Keys, original: usize, context: usize) -> Answer<RotaryScaling> {
    let factor = inner.number(&["factor"], context as f64 / original as f64)?;
    let larger = |scale: f64| if factor <= 1.0 { 1.0 } else { 0.1 * scale * ln_f64(factor) + 1.0 };
    let usual = match [inner.number(&["mscale"], 0.0)?, inner.number(&["mscale_all_dim"], 0.0)?] {
        [some, all] if some != 0.0 && all != 0.0 => larger(some) / larger(all),
        _ => larger(1.0),
    };
    let beta = |key, usual| inner.number(&[key], usual).map(|beta| if beta == 0.0 { usual } else { beta });
    Ok(RotaryScaling {
        kind: RotaryKind::Yarn,
        factor,
        low: beta("beta_slow", 1.0)?,
        high: beta("beta_fast", 32.0)?,
        context: original,
        truncate: inner.flag("truncate", true)?,
        attention: inner.number(&["attention_factor"], usual)?,
        ..RotaryScaling::NONE
    })
}

/// Longrope's scaling from `original` tokens to `reach`, with the factors of short texts and of long ones.
fn read_longrope(
    inner: &Keys,
    [short, long]: [PairFactors; 2],
    original: usize,
    reach: usize,
) -> Answer<RotaryScaling> {
    let factor = inner.number(&["factor"], reach as f64 / original as f64)?;
    let usual = if factor <= 1.0 { 1.0 } else { (1.0 + ln_f64(factor) / ln_f64(original as f64)).sqrt() };
    Ok(RotaryScaling {
        kind: RotaryKind::Longrope,
        factor,
        context: original,
        attention: inner.number(&["attention_factor"], usual)?,
        short,
        long,
        reach: if reach > original { reach } else { 0 },
        ..RotaryScaling::NONE
    })
}

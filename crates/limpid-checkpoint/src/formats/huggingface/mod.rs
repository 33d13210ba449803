//! HuggingFace's folders: `config.json`, safetensors and the tokenizer's files. `families` is the table of [`Family`]s,
//! whose keys `keys` reads and writes. To find a family that can express a configuration, limpid writes the keys and
//! reads them back: a setting that comes back different is one the family lacks.
//!
//! Every key of `config.json` sets something, or is known to affect no result, or is an error.

mod families;
mod family;
mod keys;

pub(crate) use families::ALL;
pub(super) use families::{BERTS, COHERES, GATED_RMS};
pub(crate) use family::Family;

use super::express::{Complaints, canonical, outline};
use super::format::{ModelFormat, Place, ReadModel};
use super::links::{Dialect, Link, canonical_names};
use super::writing::Writing;
use crate::carried::{Carried, EOS, ids};
use crate::error::{CheckpointError, Result};
use crate::files::write_text;
use crate::safetensors_file;
use crate::store::{Dtype, Store};
use family::checked;
use keys::{Answer, refuse};
use limpid_core::config::{Config, ConfigError};
use limpid_tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

/// See [`super::Format::HuggingFace`].
pub(crate) struct HuggingFaceFolder;

impl ModelFormat for HuggingFaceFolder {
    fn detect(&self, place: &Place) -> bool {
        place.config.is_some()
    }

    fn read(&self, place: &Place) -> Result<ReadModel> {
        let text = place.config.as_deref().unwrap_or_default();
        let bad_config = |source| CheckpointError::Config { path: place.path.join("config.json"), source };
        let (family, config, ignored) = read(text).map_err(bad_config)?;
        let store = place.weights()?;
        let has = |name: &str| {
            let there = |name: &str| store.names().any(|stored| stored.ends_with(name));
            there(name) || family.copies.iter().any(|(copy, of)| *of == name && there(copy))
        };
        let config = family.fit(config, has).map_err(bad_config)?;
        let (config, copies_read) = settle_copies(family, config, &store);
        let mut names = canonical_names(&store, |name| family.canonical(name, &config))?;
        let mut left_out: Vec<String> =
            store.names().filter(|name| family.canonical(name, &config).is_none()).map(String::from).collect();
        for (of, copy) in copies_read {
            left_out.retain(|name| *name != copy);
            left_out.extend(names.insert(of.into(), copy));
        }
        let mut model = ReadModel::bare(config, store, names, family).in_folder(place, Some(text))?;
        model.carried.ignored = ignored;
        Ok(ReadModel { left_out, ..model })
    }

    fn write(&self, writing: &Writing) -> Result<()> {
        let (path, source) = (writing.path, writing.source);
        let origin = source.carried.and_then(Carried::origin);
        let (family, config, keys) = express(source.config, origin.map(|(text, _)| text))?;
        let model = outline(path, &config)?;
        let tensors = writing.tensors(&model, family.links(&model), &|link: &Link| family.full(&link.name, &config));
        safetensors_file::write_sharded(path, tensors, safetensors_file::format_pt(), source.shard_bytes)?;
        // what the model came with is right for its own tokenizer
        let says_tokens = keys.came && origin.is_some_and(|(_, same_tokenizer)| same_tokenizer);
        let mut map = config_json(family, &config, keys, writing.dtype);
        if !says_tokens && family.headless.is_empty() {
            put_special_tokens(&mut map, source.tokenizer, &writing.ends());
        }
        write_text(&path.join("config.json"), &text_of(&map))?;
        if let Some(tokenizer) = source.tokenizer {
            tokenizer.export(path, config.context_length)?;
        }
        source.carried.map_or(Ok(()), |carried| carried.put(path))?;
        writing.write_ends()?;
        writing.write_template()
    }
}

/// What is read where a table or a bias may be stored twice, as transformers decides it: a copy that is alone stands
/// for both, and one that differs is a head of its own, whatever config.json says. Gives the configuration, and which
/// tensors are read in place of others.
fn settle_copies(family: &Family, mut config: Config, store: &Store) -> (Config, Vec<(&'static str, String)>) {
    let mut instead = vec![];
    let find = |wanted: &str| store.names().find(|name| family.bare(name) == wanted).and_then(|name| store.get(name));
    for &(copy, of) in family.copies.iter().filter(|_| config.lm_head) {
        let (Some(stored), is_bias) = (find(copy), copy.ends_with(".bias")) else { continue };
        let other = find(of);
        let differs = other.is_some_and(|other| other.bytes != stored.bytes);
        if other.is_none() && (is_bias || config.tied_head) || differs && is_bias {
            instead.push((of, stored.name.to_string()));
        } else if differs {
            config.tied_head = false;
        }
    }
    (config, instead)
}

/// The family of a `model_type`.
pub(crate) fn named(kind: &str) -> Option<&'static Family> {
    ALL.iter().find(|family| family.kind() == kind)
}

/// Models that limpid cannot open, and why; some of the names are llama.cpp's.
#[rustfmt::skip]
const OTHERS: &[(&[&str], &str)] = &[
    (&[
        "mamba", "mamba2", "falcon_mamba", "falcon_h1", "jamba", "bamba", "rwkv", "rwkv6", "rwkv7", "recurrent_gemma",
        "zamba", "zamba2",
    ], "its layers keep a state instead of attention"),
    (&[
        "mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "phimoe", "granitemoe", "deepseek2", "deepseek_v2", "deepseek_v3",
        "dbrx", "gpt_oss", "llama4", "ernie4_5_moe", "jetmoe", "arctic",
    ], "its feed-forward network is a mixture of experts"),
    (&[
        "t5", "t5encoder", "mt5", "umt5", "bart", "mbart", "pegasus", "marian", "m2m_100", "blenderbot", "led",
        "whisper",
    ], "it is an encoder and a decoder that attends to it"),
    (&["gemma3", "llava", "qwen2_vl", "paligemma", "mllama"], "it sees pictures: give its text model alone"),
    (&["deberta", "deberta-v2", "xlnet", "longformer", "big_bird", "reformer"], "its attention is of another kind"),
];

/// Why limpid has no model of this kind, by its name in HuggingFace's files or in GGUF's, which puts other marks
/// between words.
pub(super) fn why_not(kind: &str) -> Option<&'static str> {
    let bare = |name: &str| name.replace(['-', '_'], "");
    OTHERS.iter().find(|(types, _)| types.iter().any(|known| bare(known) == bare(kind))).map(|(_, why)| *why)
}

/// Reads a config.json of one of the families. Also returns the keys that limpid ignores because no result depends on
/// them.
///
/// # Errors
/// If the model is of another family, or has something that limpid does not support; the error names the key.
pub(crate) fn read(text: &str) -> Answer<(&'static Family, Config, Vec<String>)> {
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
    let keys = family.keys_in(map);
    keys.only("is_encoder_decoder", &json!(false), "decoders and encoders by themselves")?;
    keys.only("add_cross_attention", &json!(false), "attention is to the sequence itself")?;
    let plain = "weights are read as they are stored; convert to a plain model first";
    keys.only("quantization_config", &Value::Null, plain)?;
    keys.only("pruned_heads", &json!({}), "all heads have one size")?;
    let config = family.read(&keys).and_then(|(config, ignored)| {
        let unknown = keys.unknown.borrow();
        let Some((key, value)) = unknown.first() else { return Ok((family, checked(&config)?, ignored)) };
        let readers: Vec<&str> = ALL.iter().filter(|family| family.asks(key)).map(Family::kind).collect();
        let readers = match &readers[..] {
            [] => "no family that limpid supports reads it, so its meaning is unknown".into(),
            types => format!("limpid reads it where model_type is {}", types.join(", ")),
        };
        refuse(format!("`{key}` is {value}, which may change the model's numbers: {readers}"))
    });
    config.map_err(|error| match error {
        ConfigError::File(what) => ConfigError::File(format!("model_type `{kind}`: {what}")),
        other => other,
    })
}

/// The keys of a config.json that is to be written.
pub(crate) struct ConfigKeys {
    map: Map<String, Value>,
    /// Whether they are those that the model came with.
    came: bool,
}

/// The family and the configuration that says of `c` what can be said there: with what changes nothing (biases of
/// zeros, gains of ones, a table of sinusoids) where the family always has it; and its keys. The family is that of
/// `origin`, the config.json that the model came with, if it can say `c`; its keys are then the same, or, where `c` is
/// another by now, those of them that change no number, and new ones.
///
/// # Errors
/// Says what of `c` the family nearest to it lacks.
pub(crate) fn express(c: &Config, origin: Option<&str>) -> Result<(&'static Family, Config, ConfigKeys)> {
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

/// The family of some that lacks least of a model, the configuration there, and what it lacks. Of several that lack as
/// little the first that has no more than the model, or else the first.
pub(super) fn nearest(c: &Config, families: &'static [Family]) -> (&'static Family, Config, Complaints) {
    let all = families.iter().map(|family| (family, family.candidate(c)));
    let nearest = all.min_by_key(|(_, (_, not, more))| (not.0.len(), *more)).expect("there are families");
    let (family, (config, not, _)) = nearest;
    (family, config, not)
}

/// The config.json for what [`express`] gave, with weights of that type.
fn config_json(family: &Family, c: &Config, keys: ConfigKeys, dtype: &Dtype) -> Map<String, Value> {
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
    map
}

/// Puts the special tokens of a tokenizer, or of none, and all tokens that end a text or a turn into a config.json.
fn put_special_tokens(map: &mut Map<String, Value>, tokenizer: Option<&Tokenizer>, ends: &[u32]) {
    let roles = tokenizer.map(Tokenizer::roles).unwrap_or_default();
    for role in ["bos_token", "eos_token", "pad_token"] {
        // null, too: else some families have the one of their own vocabulary
        let id = roles.iter().find(|(name, _)| *name == role).map(|(_, id)| id);
        map.insert(format!("{role}_id"), json!(id));
    }
    if ends.len() > 1 {
        map.insert(EOS.into(), ids(ends));
    }
}

fn text_of(map: &Map<String, Value>) -> String {
    serde_json::to_string_pretty(map).expect("a value is JSON") + "\n"
}

#[cfg(test)]
mod tests {
    use super::keys::{Key, SettingKey};
    use super::*;
    use crate::formats::express::plain;
    use crate::formats::links::{Linked, together};
    use crate::store::Access;
    use limpid_core::config::{Fields, Settings};
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
            let store = Place::open(&folder, Access::default()).unwrap().weights().unwrap();
            let config = family.fit(config, |name| store.names().any(|n| n.ends_with(name))).unwrap();
            let keys = ConfigKeys { map: family.write(&config), came: false };
            let mut map = config_json(family, &config, keys, &Dtype::F32);
            put_special_tokens(&mut map, None, &[]);
            let text = text_of(&map);
            let (_, back, _) = read(&text).unwrap_or_else(|e| panic!("{name}: {e}: {text}"));
            let back = Config { lm_head: config.lm_head, ..back };
            assert_eq!(canonical(&back), config, "{name}: {text}");
            let (there, not, more) = family.candidate(&config);
            assert_eq!((there, not.0.len(), more), (config.clone(), 0, false), "{name}: {:?}", not.0);
            let model = outline(&folder, &config).unwrap();
            let links = family.links(&model);
            let names = canonical_names(&store, |name| family.canonical(name, &config)).unwrap();
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

    /// Keys that real configurations have and that change no number are passed over, and said, but for those that say
    /// what is so anyway; of the same keys, values that change numbers are refused with the families that have them.
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
        let (_, back, _) = read(&text_of(&config_json(family, &config, keys, &Dtype::F32))).unwrap();
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
                    Key::Is(words) => {
                        let settings = words.split_whitespace().flat_map(|word| SettingKey::new(word).settings);
                        settings.for_each(|setting| assert!(names.contains(&setting), "{setting}"));
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

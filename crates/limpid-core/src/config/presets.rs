//! Presets: the systems of the documents limpid was made from, published models, and small sizes to train first.
//! `presets.json` has each with its model, the training settings that differ from the defaults, and a tokenizer, by the
//! names that settings have everywhere. docs/presets.md says why.

use super::{Config, ConfigError, unknown};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// A named model, with settings and a tokenizer for it.
#[derive(Debug)]
pub struct Preset {
    /// Its name.
    pub name: &'static str,
    /// The model. Training takes the vocabulary of the tokenizer instead.
    pub model: Config,
    /// Settings of its training that differ from the defaults, by name.
    pub training: BTreeMap<String, String>,
    /// The tokenizer to train with.
    pub tokenizer: &'static str,
}

/// The file.
#[derive(Deserialize)]
struct File<'a> {
    /// Settings of trainings, each as the text that `--NAME` would be given; `fast` is the best that was measured in
    /// about half a minute on two cores.
    trainings: BTreeMap<String, BTreeMap<String, String>>,
    #[serde(borrow)]
    presets: Vec<Entry<'a>>,
}

/// A preset in the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry<'a> {
    name: &'a str,
    tokenizer: &'a str,
    /// One of [`File::trainings`]; none for the defaults.
    training: Option<String>,
    /// An earlier preset, from whose model this one differs; none for the default.
    like: Option<String>,
    model: Map<String, Value>,
}

static FILE: LazyLock<File<'static>> = LazyLock::new(|| {
    let file = serde_json::from_str(include_str!("presets.json"));
    file.expect("the presets are well written: a test reads them")
});

static ALL: LazyLock<Vec<Preset>> = LazyLock::new(|| {
    let mut all: Vec<Preset> = vec![];
    for Entry { name, tokenizer, training, like, model } in &FILE.presets {
        let earlier = |like: &String| all.iter().find(|preset| preset.name == like).expect("an earlier preset");
        let from = like.as_ref().map_or(&Config::DEFAULT, |like| &earlier(like).model);
        let training = training.as_ref().map_or_else(BTreeMap::new, |training| FILE.trainings[training].clone());
        let model = from.with(model.clone());
        all.push(Preset { name, model, training, tokenizer });
    }
    all
});

/// Names of the presets. They are read at every start, so no model is made for them.
pub static PRESETS: LazyLock<Vec<&str>> = LazyLock::new(|| FILE.presets.iter().map(|preset| preset.name).collect());

impl Preset {
    /// All, in the order of docs/presets.md.
    pub fn all() -> &'static [Preset] {
        &ALL
    }

    /// A preset by name; `_` and `-` are the same, case does not matter.
    ///
    /// # Errors
    /// If there is none; the nearest is named.
    pub fn named(name: &str) -> Result<&'static Preset, ConfigError> {
        let own = name.to_lowercase().replace('_', "-");
        ALL.iter().find(|preset| preset.name == own).ok_or_else(|| unknown("preset", name, &PRESETS))
    }
}

impl Config {
    /// The configuration with some settings replaced.
    fn with(&self, settings: Map<String, Value>) -> Config {
        let mut all = serde_json::to_value(self).expect("a config is JSON");
        settings.into_iter().for_each(|(name, value)| all[name] = value);
        serde_json::from_value(all).expect("a preset's settings are a config's")
    }
}

//! All that a training can be asked: the tables of its settings, and the places that give them.
//!
//! [`Config`], [`Recipe`] and [`RunOptions`] are tables of settings, and so are the four here: [`JobSettings`] (the
//! text, the run and its folder), [`TextSettings`] (how it is read), [`TuningSettings`] (what learns) and
//! [`MachineSettings`]. A file, the environment, flags and a call's arguments each name some of them: a
//! [`SettingsLayer`] of texts. [`LayeredSettings`] puts layers on each other: the highest that names a setting decides
//! it, and an error names the place. `resolve` makes a [`Training`](crate::Training) of them; read it next.

use crate::config::{Config, ConfigError, Fields, Setting, Settings, axis, setting_value, settings};
use crate::data::TextFormat;
use crate::data::source::TextSource;
pub use crate::error::SettingError;
use crate::matrix::Precision;
use crate::model::{Lora, Tuning};
use crate::numeric::simd::Level;
use crate::train::{Recipe, RunOptions};
use crate::{Device, DeviceName, Error, Machine, config, files, units};
use limpid_base::nearest::nearest;
use limpid_base::words;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

axis! {
    /// A program whose training is repeated, with what it prints.
    Workflow, "recipe" {
        /// llm.c's train_gpt2.
        Llmc = "llmc",
    }
}

/// An amount of memory, if there is one: 2G, 1.5GiB, 800M, 2000000000.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bytes(pub Option<u64>);

setting_value!(Bytes, |text| Bytes(Some(parse_bytes(text)?)));

/// An amount of memory: 2G, 1.5GiB, 800M, 2000000000.
///
/// # Errors
/// Says how it is written.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    units::parse_bytes(text)
        .ok_or_else(|| format!("`{text}` is not an amount of memory: write 2G, 1.5GiB, 800M or a number of bytes"))
}

/// Passes over a text, if they are given: 3, 0.5.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Epochs(pub Option<f64>);

setting_value!(Epochs, |text| match text.parse::<f64>() {
    Ok(epochs) if epochs > 0.0 && epochs <= 1e6 => Epochs(Some(epochs)),
    _ => return Err("it must be a number above 0, such as 3 or 0.5, and at most a million".into()),
});

setting_value!(DeviceName, |text| text.parse()?);

/// How many threads work: so many, or as many as are fastest.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Threads(pub Option<usize>);

setting_value!(Threads, |text| match (text, text.parse()) {
    ("auto", _) => Threads(None),
    (_, Ok(threads)) => Threads(Some(threads)),
    _ => return Err("it must be a whole number from 1 to 1024, or auto".into()),
}, whole = |threads| threads.0.map(|n| n as u64) => Option<u64>);

settings! {
    /// What is trained on, where it goes, and how long it takes.
    #[derive(Clone, PartialEq, Debug)]
    pub struct JobSettings {
        /// Start from a preset: nano, baby, gpt2, ... (all: limpid params --help)
        preset: Option<String> = None, Setting::of("NAME").common();
        /// A file, folder or pattern of text, JSON lines and parquet (also .gz, .zst), a folder of `data prepare`,
        /// llm.c's .bin, conversations (JSON, parquet), - for standard input, builtin:stories (builtin:stories:20M for
        /// more), or a document's example: builtin:s0, s0-three, s1, s3 (docs/data.md)
        data: Option<String> = None,
            Setting::of("FILE|DIR").common().also(&["dataset"]).default_text(BUILT_IN);
        /// bpe (byte pairs learned from the text; bpe:SIZE sets the vocabulary size), char, word, gpt2, cl100k_base,
        /// o200k_base, a tokenizer.json, or the words of a document's example: s0, s0-three, s3; NAME:dense keeps only
        /// the ids that the text uses (cl100k_base:dense) [default: the example's own, else bpe or what suits the
        /// preset]
        tokenizer: Option<String> = None, Setting::of("NAME").common().fixed();
        /// Train on conversations with this Jinja chat template [default: the model's own, else limpid's; docs/chat.md]
        chat_template: Option<PathBuf> = None, Setting::of("FILE").fixed();
        /// Add these special tokens to the tokenizer; when fine-tuning (--from), each gets a new row, the mean of the
        /// model's other rows
        add_special_tokens: Vec<String> = Vec::new(), Setting::of("TOKENS").fixed().excludes(&["lora"]);
        /// Folder for the model and the log [default: runs/PRESET-TIME]
        out: Option<PathBuf> = None, Setting::of("DIR").common().also(&["out-dir", "output-dir"]);
        /// Train into --out even if it holds something else; a model there is replaced
        force: bool = false, Setting::of("").requires("out").excludes(&["resume"]);
        /// Passes over the training text, instead of --steps (3, or 0.5 for half of it)
        epochs: Epochs = Epochs(None),
            Setting::of("N").common().also(&["num-epochs", "num-train-epochs"]).excludes(&["steps"]);
        /// Resume a run: its folder, or `auto` for the newest run (or for --out, if that run has begun)
        resume: Option<String> = None, Setting::of("auto|DIR").common().also(&["resume-from-checkpoint"]);
        /// Resume from the state kept after step N (--keep) instead of the last
        resume_step: Option<u64> = None, Setting::of("N").requires("resume");
        /// Train as another program does and print what it prints: llmc (llm.c's train_gpt2: --preset llmc-gpt2, its
        /// settings, and its batches; docs/training.md). Nothing is saved unless --out is given
        recipe: Option<Workflow> = None,
            Setting::of("NAME").excludes(&["resume", "lr_find", "lora", "freeze", "train_only"]);
        /// Train within this much memory (2G, 800M, 1.5GiB): activations that do not fit are recomputed; results stay
        /// the same
        memory: Bytes = Bytes(None), Setting::of("SIZE").common();
        /// Length of the sample printed at the end, in tokens; 0 for none
        sample: usize = SAMPLE, Setting::of("N").default_text("120");
        /// The text that --probe looks at [default: the first 64 tokens of the validation text]
        probe_text: Option<String> = None, Setting::of("TEXT");
    }
}
impl Settings for JobSettings {}

/// The text that is trained on unless another is named.
pub(crate) const BUILT_IN: &str = "builtin:stories";

/// Tokens of the sample at the end, where nothing else is said.
pub(crate) const SAMPLE: usize = 120;

settings! {
    /// How documents are read.
    #[derive(Clone, PartialEq, Debug)]
    pub struct DocumentSettings named "" {
        /// JSON field or parquet column that holds the text [default: text]; standard input is then read as JSON lines
        field: Option<String> = None, Setting::of("NAME").also(&["text-column"]).fixed();
        /// Skip documents that cannot be read, and count them
        skip_bad: bool = false, Setting::of("BOOL");
    }
}
impl Settings for DocumentSettings {}

impl DocumentSettings {
    /// The field of the text.
    pub fn field(&self) -> &str {
        self.field.as_deref().unwrap_or("text")
    }

    /// What standard input holds.
    pub fn stdin(&self) -> TextFormat {
        if self.field.is_some() { TextFormat::JsonLines } else { TextFormat::Text }
    }
}

settings! {
    /// How documents are read and become tokens.
    #[derive(Clone, PartialEq, Debug)]
    pub struct TextSettings {
        /// How they are read.
        documents: DocumentSettings = DocumentSettings::DEFAULT, Setting::of("");
        /// Encode the text of a special token in a document (`<|endoftext|>`) as that token; with false, as ordinary
        /// text
        parse_special: bool = true, Setting::of("BOOL").fixed();
    }
}
impl Settings for TextSettings {}

impl TextSettings {
    /// A text by name, read so on this machine.
    pub fn source(&self, name: &str, machine: &MachineSettings) -> TextSource {
        let mut source = TextSource::new(name);
        source.field.clone_from(&self.documents.field);
        (source.skip_bad, source.parse_special) = (self.documents.skip_bad, self.parse_special);
        (source.threads, source.verify) = (machine.threads(), !machine.no_verify);
        source
    }
}

settings! {
    /// Which parameters of a model learn.
    #[derive(Clone, PartialEq, Debug)]
    pub struct TuningSettings {
        /// A model to fine-tune: a folder of limpid or HuggingFace, a .gguf, a .bin of llm.c
        from: Option<String> = None, Setting::of("MODEL").common().fixed().excludes(&["preset"]);
        /// Parameters to freeze, by name: embed.*,blocks.[0-5].* (docs/names.md)
        freeze: Vec<String> = Vec::new(), Setting::of("NAMES").fixed();
        /// The only parameters to train; all others are frozen
        train_only: Vec<String> = Vec::new(), Setting::of("NAMES").fixed();
        /// Train a LoRA adapter of this rank instead of the model's own weights
        lora: Option<usize> = None,
            Setting::of("R").common().also(&["lora-r"]).fixed().requires("from").excludes(&["freeze", "train_only"]);
        /// LoRA's alpha: the adapter's output is multiplied by alpha / rank [default: twice the rank]
        lora_alpha: Option<f64> = None, Setting::of("X").requires("lora");
        /// The weight matrices to adapt: attention, feed-forward, or names like blocks.0.attn.* [default:
        /// attention,feed-forward]
        lora_targets: Vec<String> = Vec::new(), Setting::of("NAMES").fixed().requires("lora");
        /// Dropout on the adapter's input
        lora_dropout: Option<f64> = None, Setting::of("P").requires("lora");
    }
}
impl Settings for TuningSettings {}

impl TuningSettings {
    /// As a model takes it.
    pub fn tuning(&self) -> Tuning {
        let lora = self.lora.map(|rank| Lora {
            rank,
            alpha: self.lora_alpha.unwrap_or(2.0 * rank as f64),
            dropout: self.lora_dropout.unwrap_or(0.0),
            targets: match &self.lora_targets[..] {
                [] => ["attention", "feed-forward"].map(String::from).to_vec(),
                targets => targets.to_vec(),
            },
        });
        Tuning { freeze: self.freeze.clone(), train_only: self.train_only.clone(), lora }
    }
}

settings! {
    /// The machine.
    #[derive(Clone, PartialEq, Debug)]
    pub struct MachineSettings {
        /// Threads: so many, or auto, which tries numbers up to all cores during the run and keeps the fastest; results
        /// are the same
        threads: Threads = Threads(None),
            Setting::of("N").common().number(|n| (1.0..=1024.0).contains(&n), "it must be from 1 to 1024")
                .default_text("auto");
        /// Instruction set: portable, avx2, avx2-vnni, avx512, avx512-bf16 or neon, all with the same results [default:
        /// the fastest this CPU has]; or unfused, which is faster than portable on CPUs without a fused multiply-add,
        /// but differs in the last digits
        simd: Option<Level> = None, Setting::of("SET");
        /// Precision of matrix products: f32; bf16 (mixed precision: bf16 operands, f32 sums and weights); f16 (the
        /// same in f16, on a GPU with f16 matrices: see `limpid doctor`); or int8, for generating and scoring with
        /// quantised weights (activations rounded to eight bits, integer sums)
        precision: Precision = Precision::F32, Setting::of("P").also(&["dtype"]).default_text("f32");
        /// Where the model runs: cpu; gpu, gpu:1 or gpu:NAME (in builds with the feature `gpu`; `limpid doctor` lists
        /// them); auto, whichever of the two is measured to be faster; or reference (plain f64 loops on one thread:
        /// slow, for checking the others)
        device: DeviceName = DeviceName { device: Some(Device::Cpu), gpu: String::new() },
            Setting::of("D").default_text("cpu");
        /// Skip the checksums of limpid's weights and prepared data, for files that were changed on purpose
        no_verify: bool = false, Setting::of("");
    }
}
impl Settings for MachineSettings {}

impl MachineSettings {
    /// Threads to use, at most if the number is `auto`.
    pub fn threads(&self) -> usize {
        self.threads.0.unwrap_or_else(|| Machine::default().threads)
    }

    /// Instructions to use.
    pub fn level(&self) -> Level {
        self.simd.unwrap_or_else(Level::best)
    }

    /// The machine; with the device `auto`, this processor.
    pub fn machine(&self) -> Machine {
        let (device, gpu) = (self.device.device.unwrap_or(Device::Cpu), self.device.gpu.clone());
        let machine = match self.threads.0 {
            Some(threads) => Machine::cpu(threads),
            None => Machine::default(),
        };
        Machine { device, gpu, level: self.level(), precision: self.precision, ..machine }
    }
}

/// Every setting of a training.
pub fn training_settings() -> Vec<&'static Setting> {
    fn of<S: Settings>() -> Vec<&'static Setting> {
        S::default().choices().into_iter().map(|(setting, _)| setting).collect()
    }
    let own = [of::<JobSettings>(), of::<TextSettings>(), of::<TuningSettings>(), of::<MachineSettings>()];
    [of::<Config>(), of::<Recipe>(), of::<RunOptions>()].into_iter().chain(own).flatten().collect()
}

macro_rules! refuse {
    ($($words:tt)*) => { return Err(SettingError(format!($($words)*)).into()) };
}
pub(crate) use refuse;

/// Where settings are given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A configuration file, or the limpid.toml of a run.
    File(PathBuf),
    /// Environment variables.
    Environment,
    /// Flags of the command.
    Flags,
    /// Arguments of a call.
    Arguments,
}

impl Origin {
    /// What a setting is called there.
    pub fn name(&self, setting: &str) -> String {
        match self {
            Origin::File(path) => format!("{setting} in {}", path.display()),
            Origin::Environment => variable(setting),
            Origin::Flags => flag(setting),
            Origin::Arguments => setting.into(),
        }
    }
}

/// The flag of a setting.
pub fn flag(setting: &str) -> String {
    format!("--{}", setting.replace('_', "-"))
}

/// The environment variable of a setting.
pub fn variable(setting: &str) -> String {
    format!("LIMPID_{}", setting.to_uppercase().replace('-', "_"))
}

/// The settings that one place gives, as texts.
#[derive(Clone, Debug)]
pub struct SettingsLayer {
    /// The place.
    pub origin: Origin,
    /// The values, each once.
    pub values: Vec<(&'static Setting, OsString)>,
}

impl SettingsLayer {
    /// No setting, from such a place.
    pub fn new(origin: Origin) -> SettingsLayer {
        SettingsLayer { origin, values: vec![] }
    }

    /// The value of a setting.
    pub fn get(&self, name: &str) -> Option<&OsStr> {
        self.values.iter().find(|(setting, _)| setting.name == name).map(|(_, text)| text.as_os_str())
    }

    /// Those of `known` that variables of the environment give.
    pub fn environment(known: &[&'static Setting], variable_of: impl Fn(&str) -> Option<OsString>) -> SettingsLayer {
        let found = |setting: &'static Setting| {
            let text = setting.names().find_map(|name| variable_of(&variable(name)))?;
            // a flag without a value
            let text = match text.to_str().filter(|_| setting.value.is_empty()) {
                Some("1") => "true".into(),
                Some("0" | "") => "false".into(),
                _ => text,
            };
            Some((setting, text))
        };
        let values = known.iter().filter_map(|setting| found(setting)).collect();
        SettingsLayer { origin: Origin::Environment, values }
    }

    /// Settings of a training that a call gives as arguments.
    ///
    /// # Errors
    /// If one is no setting, or two are names of one.
    pub fn arguments<'a>(given: impl IntoIterator<Item = (&'a str, OsString)>) -> Result<SettingsLayer, SettingError> {
        let (mut layer, known) = (SettingsLayer::new(Origin::Arguments), training_settings());
        given.into_iter().try_for_each(|(name, text)| layer.add(name, text, &known))?;
        Ok(layer)
    }

    /// Those of `known` that a TOML or JSON file gives.
    ///
    /// # Errors
    /// If the file cannot be read, or has a key that is no setting, or one twice, or something else than one value.
    pub fn read(path: &Path, known: &[&'static Setting]) -> Result<SettingsLayer, Error> {
        let file = path.display();
        let mut layer = SettingsLayer::new(Origin::File(path.into()));
        for (key, value) in read_table(path)? {
            let name = key.replace('_', "-");
            if ["config", "json", "resume", "resume-from-checkpoint"].contains(&name.as_str()) {
                refuse!("{file}: `{key}` cannot be set in a file: use the flag --{name}");
            }
            let text = match value {
                Value::String(text) => text,
                Value::Number(_) | Value::Bool(_) => value.to_string(),
                other => refuse!("{file}: `{key}` is {other}: it must be one value"),
            };
            layer.add(&key, text.into(), known)?;
        }
        Ok(layer)
    }

    /// Adds a setting by one of its names.
    fn add(&mut self, name: &str, text: OsString, known: &[&'static Setting]) -> Result<(), SettingError> {
        let (place, what) = match &self.origin {
            Origin::File(path) => (format!("{}: ", path.display()), "key"),
            _ => (String::new(), "setting"),
        };
        let dashed = |name: &str| name.replace('_', "-");
        let found = known.iter().find(|setting| setting.names().any(|known| dashed(known) == dashed(name)));
        let Some(setting) = found else {
            let near = nearest(name, known.iter().flat_map(|setting| setting.names()));
            let near = near.map(|near| format!(": did you mean `{}`?", near.replace('-', "_"))).unwrap_or_default();
            refuse!("{place}unknown {what} `{name}`{near}");
        };
        if self.get(setting.name).is_some() {
            refuse!("{place}`{name}` is another name for `{}`, which is also set", setting.name);
        }
        self.values.push((setting, text));
        Ok(())
    }
}

/// The keys and values of a TOML or JSON file of at most 16 MiB.
///
/// # Errors
/// If it cannot be read, or is no table.
pub fn read_table(path: &Path) -> Result<Map<String, Value>, Error> {
    let text = read_text(path)?;
    if path.extension().is_some_and(|end| end == "json") {
        serde_json::from_str(&text).map_err(|error| wrong(path, &error))
    } else {
        toml::from_str(&text).map_err(|error| wrong(path, &error))
    }
}

/// A file of settings, of at most 16 MiB.
pub(crate) fn read_text(path: &Path) -> Result<String, Error> {
    files::read_text(path, 16 << 20).map_err(|error| wrong(path, &words::system(&error)))
}

/// What is wrong with a file.
pub(crate) fn wrong(path: &Path, what: &dyn std::fmt::Display) -> Error {
    Error::Refused(format!("{}: {what}", path.display()))
}

/// Settings from several places: what a higher one gives goes over what lower ones do.
#[derive(Clone, Debug, Default)]
pub struct LayeredSettings {
    /// The layers, the lowest first.
    pub layers: Vec<SettingsLayer>,
}

impl LayeredSettings {
    /// Layers from the lowest to the highest. What cannot be given beside a setting of a higher one does not stand.
    pub fn new(mut layers: Vec<SettingsLayer>) -> LayeredSettings {
        for height in 1..layers.len() {
            let (below, above) = layers.split_at_mut(height);
            let stands = |setting: &Setting| !above[0].values.iter().any(|(other, _)| excludes(setting, other));
            below.iter_mut().for_each(|layer| layer.values.retain(|(setting, _)| stands(setting)));
        }
        LayeredSettings { layers }
    }

    /// The value of a setting and its place, if it was given.
    pub fn get(&self, name: &str) -> Option<(&Origin, &OsStr)> {
        self.layers.iter().rev().find_map(|layer| Some((&layer.origin, layer.get(name)?)))
    }

    /// Whether a setting was given.
    pub fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// What a setting is called where it was given.
    pub fn place(&self, name: &str) -> String {
        self.get(name).map_or_else(|| name.into(), |(origin, _)| origin.name(name))
    }

    /// A table of settings with what was given.
    ///
    /// # Errors
    /// If a text is no value of its setting.
    pub fn over<S: Settings>(&self, base: &S) -> Result<S, SettingError> {
        let known: Vec<&str> = base.choices().iter().map(|(setting, _)| setting.name).collect();
        let mut layers = vec![];
        for SettingsLayer { origin, values } in &self.layers {
            let own: Vec<_> = values.iter().filter(|(setting, _)| known.contains(&setting.name)).collect();
            for (setting, text) in &own {
                let Err(ConfigError::Value { found, why, .. }) = S::default().set(setting.name, text) else { continue };
                let name = origin.name(setting.name);
                let place = match origin {
                    Origin::File(_) => format!("'{name}' ({})", flag(setting.name)),
                    Origin::Flags => format!("'{name} <{}>'", setting.value),
                    _ => format!("'{name}'"),
                };
                refuse!("invalid value '{found}' for {place}: {why}");
            }
            layers.push(own.into_iter().map(|(setting, text)| (setting.name, text)).collect());
        }
        base.over(&layers).map_err(|error| SettingError(error.to_string()))
    }

    /// The same, with every number in its range.
    ///
    /// # Errors
    /// If a text is no value of its setting, or a number out of its range.
    pub fn checked<S: Settings>(&self, base: &S) -> Result<S, SettingError> {
        let table = self.over(base)?;
        table.check_ranges().map_err(|error| match &error {
            ConfigError::Zero { what } | ConfigError::Range { what, .. } => {
                SettingError(error.to_string().replacen(what, &self.place(what), 1))
            }
            _ => SettingError(error.to_string()),
        })?;
        Ok(table)
    }

    /// A number out of its range, with the place that gave it unless that is the call itself.
    pub fn blame(&self, error: ConfigError) -> Error {
        let (ConfigError::Zero { what } | ConfigError::Range { what, .. }) = &error else { return error.into() };
        match self.get(what) {
            Some((origin @ (Origin::File(_) | Origin::Environment), _)) => Error::Setting(origin.name(what), error),
            _ => error.into(),
        }
    }

    /// Checks that nothing was given that cannot be given together, and nothing without what it is about.
    ///
    /// # Errors
    /// Names both settings, where they stand.
    pub fn check(&self) -> Result<(), SettingError> {
        for layer in &self.layers {
            let pairs = layer.values.iter().flat_map(|(a, _)| layer.values.iter().map(move |(b, _)| (*a, *b)));
            if let Some((a, b)) = pairs.into_iter().find(|(a, b)| a.excludes.contains(&b.name)) {
                let [a, b] = [a, b].map(|setting| layer.origin.name(setting.name));
                refuse!("{a} cannot be used with {b}: leave one of the two out");
            }
            let alone =
                |(setting, _): &&(&'static Setting, OsString)| setting.requires.is_some_and(|other| !self.has(other));
            if let Some((setting, _)) = layer.values.iter().find(alone) {
                let (name, other) = (layer.origin.name(setting.name), setting.requires.unwrap_or_default());
                let other = if layer.origin == Origin::Flags { flag(other) } else { format!("`{other}`") };
                refuse!("{name} means nothing without {other}: give both or none");
            }
        }
        Ok(())
    }
}

/// Whether two settings cannot be given together.
fn excludes(a: &Setting, b: &Setting) -> bool {
    a.excludes.contains(&b.name) || b.excludes.contains(&a.name)
}

impl LayeredSettings {
    /// A model with what was given.
    ///
    /// # Errors
    /// If a value is none, or no such model can be built.
    pub fn config(&self, base: &Config) -> Result<Config, Error> {
        let config = self.over(base)?;
        config.check().map_err(|error| self.blame(error))?;
        Ok(config)
    }

    /// The configuration of the model `from` that is trained on: dropout may be chosen anew, and fewer positions be
    /// used. What was given beside that must be what it is.
    ///
    /// # Errors
    /// Names the setting that differs.
    pub fn config_of(&self, from: &str, base: &Config) -> Result<Config, Error> {
        let asked = self.config(base)?;
        let mut wanted = Config { dropout: base.dropout, ..asked.clone() };
        wanted.context_length = wanted.context_length.max(base.context_length);
        // one setting may change others: blame the one that was given
        let (given, others): (Vec<_>, Vec<_>) = changes(base, &wanted).partition(|change| self.has(&change.name));
        if let Some(ConfigChange { name, value, was }) = given.into_iter().chain(others).next() {
            let place = if self.has(&name) { self.place(&name) } else { flag(&name) };
            refuse!("{place} is {value}, but the model {from} has {was}: fine-tuning cannot change it");
        }
        Ok(Config { dropout: asked.dropout, ..base.clone() })
    }
}

/// A setting of a model that differs from what it was.
pub struct ConfigChange {
    /// The setting.
    pub name: String,
    /// Its value.
    pub value: String,
    /// What it was.
    pub was: String,
}

/// What differs in a configuration from another, by name.
pub fn changes(base: &Config, wanted: &Config) -> impl Iterator<Item = ConfigChange> {
    let (base, wanted) = (base.fields(), wanted.fields());
    let change = |(_, was): (_, &dyn config::Value), (setting, value): (&Setting, &dyn config::Value)| {
        let [was, value] = [was, value].map(|value| plain(&value.json()));
        (was != value).then(|| ConfigChange { name: setting.name.into(), value, was })
    };
    let mut changes: Vec<_> = base.into_iter().zip(wanted).filter_map(|(base, wanted)| change(base, wanted)).collect();
    changes.sort_by(|a, b| a.name.cmp(&b.name));
    changes.into_iter()
}

/// A value as it is written in a text.
pub fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), String::from)
}

//! Flags, environment and configuration files, resolved to a configuration and a recipe.
//!
//! The flags of models and of training are those of the library's tables of settings. A configuration file's keys are the flags'
//! names, so it is turned into flags and put before those that were typed: file < environment (`LIMPID_LEARNING_RATE`) < flag,
//! and an unknown key gets the same error as an unknown flag. A flag that sets several things (`--dropout`), or from which others
//! follow (`--d-model`), goes over all that the layers below it said: each layer is applied whole, the lowest first.

use crate::devices::DeviceChoice;
use crate::machine::cores;
use crate::show;
use anyhow::{Context, Result, anyhow, bail};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use limpid::backend::BackendError;
use limpid::checkpoint::CheckpointError;
use limpid::config::{Axis, Config, ConfigError, Fields, Positions, Setting, Settings, Value, parse_axis};
use limpid::data::source::SourceError;
use limpid::data::{CorpusError, DataError, TextFormat};
use limpid::generate::Sampler;
use limpid::matrix::Precision;
use limpid::model::{Lora, Mode, Tuning};
use limpid::names::Notation;
use limpid::numeric::simd::Level;
use limpid::tokenizer::TokenizerError;
use limpid::train::folder::{self, FolderContents};
use limpid::train::{RanksError, Recipe, Run, RunOptions, RunSettings, TrainError};
use limpid::{Device, Error, Machine};
use limpid_base::nearest::nearest;
use limpid_base::units;
use std::ffi::{OsStr, OsString};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::Once;

/// Wrong usage: exit 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// Stopped by the user before the end: exit 130.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Interrupted(pub &'static str);

/// A struct of settings whose fields are flags.
pub trait Flags: Settings + 'static {
    /// Where help shows them.
    const HEADING: &'static str;
}
impl Flags for Config {
    const HEADING: &'static str = "Model";
}
impl Flags for Recipe {
    const HEADING: &'static str = "Training";
}
impl Flags for RunOptions {
    const HEADING: &'static str = "Run";
}

/// Settings of one kind that were asked for, layer by layer: the configuration file's, the environment's, the typed ones.
#[derive(Clone, Debug, Default)]
pub struct Asked<S> {
    layers: Vec<Vec<(&'static str, String)>>,
    kind: PhantomData<S>,
}

impl<S: Flags> Asked<S> {
    /// A recipe, a model or the like with what was asked for.
    pub fn over(&self, base: &S) -> Result<S> {
        Ok(base.over(&self.layers)?)
    }
    /// Whether one was asked for.
    pub fn has(&self, name: &str) -> bool {
        self.layers.iter().flatten().any(|(asked, _)| *asked == name)
    }
    /// The rest of them.
    pub fn without(mut self, name: &str) -> Asked<S> {
        self.layers.iter_mut().for_each(|layer| layer.retain(|(asked, _)| *asked != name));
        self
    }
}

/// What a user may choose of a kind, with a value that tells of which type it is.
pub fn choices<S: Settings>(of: &S) -> Vec<(&Setting, &dyn Value)> {
    let fields = of.fields();
    let value = |name: &str| fields.iter().find(|(setting, _)| setting.name == name).expect("a group is of settings").1;
    let groups = S::groups().iter().map(|group| (&group.setting, value(group.sets[0])));
    groups.chain(fields.iter().copied().filter(|(setting, _)| setting.chosen)).collect()
}

/// The text to train on where it has no flag: it stands for `--data`.
pub const TEXT: &str = "training_text";

/// The mark between two layers, among the words that clap reads.
const LAYER: &str = "layer";

impl<S: Flags> Args for Asked<S> {
    fn augment_args(command: Command) -> Command {
        let marked = command.get_arguments().any(|arg| arg.get_id() == LAYER);
        let mark = (!marked).then(|| Arg::new(LAYER).long(LAYER).hide(true).action(ArgAction::Append));
        let usual = S::default();
        command.args(mark).args(choices(&usual).into_iter().map(|(setting, value)| flag::<S>(setting, value)))
    }
    fn augment_args_for_update(command: Command) -> Command {
        Asked::<S>::augment_args(command)
    }
}

impl<S: Flags> FromArgMatches for Asked<S> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Asked<S>, clap::Error> {
        let places = |name: &str| matches.indices_of(name).into_iter().flatten();
        let ends: Vec<usize> = places(LAYER).collect();
        let mut layers = vec![vec![]; ends.len() + 1];
        for (&Setting { name, .. }, _) in choices(&S::default()) {
            for (place, text) in places(name).zip(matches.get_raw(name).into_iter().flatten()) {
                let layer = &mut layers[ends.partition_point(|end| *end < place)];
                if layer.iter().any(|(other, _)| *other == name) {
                    return Err(twice(name));
                }
                layer.push((name, text.to_string_lossy().into_owned()));
            }
        }
        Ok(Asked { layers, kind: PhantomData })
    }
    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Asked::from_arg_matches(matches)?;
        Ok(())
    }
}

/// What clap says of a flag that is given twice and has one value.
fn twice(name: &str) -> clap::Error {
    let mut error = clap::Error::new(ErrorKind::ArgumentConflict);
    for kind in [ContextKind::InvalidArg, ContextKind::PriorArg] {
        error.insert(kind, ContextValue::String(format!("--{}", name.replace('_', "-"))));
    }
    error
}

/// What help says of a setting.
pub fn help(setting: &Setting, value: &dyn Value) -> String {
    let choices = value.choices().join(", ");
    let choices = if choices.is_empty() { choices } else { format!(": {choices}") };
    format!("{}{choices}", setting.line())
}

/// The flag of a setting. Layers are told apart by where its values stand, so every one is kept.
fn flag<S: Flags>(setting: &Setting, value: &dyn Value) -> Arg {
    let default = setting.default_text.map(|what| format!(" [default: {what}]")).unwrap_or_default();
    let arg = Arg::new(setting.name)
        .long(setting.name.replace('_', "-"))
        .aliases(setting.aliases)
        .value_name(setting.value)
        .help(help(setting, value) + &default)
        .help_heading(S::HEADING)
        .hide_short_help(!setting.common)
        .action(ArgAction::Append);
    if value.is_switch() {
        return arg.num_args(0..=1).default_missing_value("true").value_parser(clap::value_parser!(bool));
    }
    let name = setting.name;
    arg.value_parser(move |text: &str| match S::default().set(name, text) {
        Err(ConfigError::Value { why, .. }) => Err(why),
        Err(error) => Err(error.to_string()),
        Ok(()) => Ok(text.to_string()),
    })
}

fn preset(name: &str) -> Result<String, ConfigError> {
    Config::preset(name).map(|_| name.to_lowercase().replace('_', "-"))
}

/// Over which help lists the flags of a model's hyperparameters.
pub const MODEL: &str = "Model";

/// Which model.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = MODEL)]
pub struct ModelOptions {
    /// Start from a preset: nano, baby, gpt2, ... (all: limpid params --help)
    #[arg(long, value_name = "NAME", value_parser = preset)]
    pub preset: Option<String>,
    #[command(flatten)]
    asked: Asked<Config>,
}

impl ModelOptions {
    /// The preset's name; `nano` when none was given.
    pub fn name(&self) -> &str {
        self.preset.as_deref().unwrap_or("nano")
    }

    /// The same from this preset, where none was given.
    pub fn or(self, preset: &str) -> ModelOptions {
        ModelOptions { preset: self.preset.or_else(|| Some(preset.into())), ..self }
    }

    /// Whether a setting was asked for.
    pub fn has(&self, name: &str) -> bool {
        self.asked.has(name)
    }

    /// The configuration, its vocabulary the preset's unless another was asked for.
    pub fn config(&self) -> Result<Config> {
        self.over(&Config::preset(self.name())?)
    }

    /// The configuration of the model `from` that is trained on: dropout may be chosen anew, and fewer positions be used.
    /// What was asked for beside that must be what it is.
    pub fn config_of(&self, from: &str, base: &Config) -> Result<Config> {
        let asked = self.over(base)?;
        let mut wanted = Config { dropout: base.dropout, ..asked.clone() };
        wanted.context_length = wanted.context_length.max(base.context_length);
        // one setting may change others: blame the one that was asked for
        let (asked_for, others): (Vec<_>, Vec<_>) =
            changes(base, &wanted).partition(|(name, ..)| self.has(&name.replace('-', "_")));
        if let Some((name, value, was)) = asked_for.into_iter().chain(others).next() {
            bail!(Usage(format!("--{name} is {value}, but the model {from} has {was}: fine-tuning cannot change it")));
        }
        Ok(Config { dropout: asked.dropout, ..base.clone() })
    }

    /// The configuration of the model `from` that is only looked at: what needs no other weights may be otherwise, and is said.
    pub fn config_seen(&self, from: &str, base: &Config) -> Result<Config> {
        const FREE: [&str; 10] = [
            "mask",
            "attention-scale",
            "attention-scale-by-layer",
            "norm",
            "norm-eps",
            "activation",
            "leaky-slope",
            "gelu-alpha",
            "gelu-beta",
            "gelu-gamma",
        ];
        let asked = self.over(base)?;
        // neither changes what is computed of a prompt: whoever asks for it means something else
        if asked.dropout != base.dropout {
            bail!(Usage("--dropout: a model is inspected without dropout, unless --training SEED is given".into()));
        }
        if asked.context_length < base.context_length {
            let (is, was) = (asked.context_length, base.context_length);
            bail!(Usage(format!(
                "--context-length is {is}, and the model {from} has {was}: a shorter context would change nothing here; --last keeps \
                 the end of a prompt that is too long"
            )));
        }
        let tables = [base, &asked].map(|config| config.positions == Positions::Learned) == [false; 2];
        let mut said = vec![];
        for (name, value, was) in changes(base, &asked) {
            let free = FREE.contains(&name.as_str()) || (tables && name == "positions");
            if !free {
                let free = FREE.join(", --");
                bail!(Usage(format!(
                    "--{name} is {value}, but the model {from} has {was}, and its weights are for that: with the same weights you can \
                     change --{free}, or --positions if they are not learned"
                )));
            }
            said.push((format!("{name} {was}"), format!("{name} {value}")));
        }
        if !said.is_empty() {
            let (was, is): (Vec<String>, Vec<String>) = said.into_iter().unzip();
            let (was, is) = (was.join(", "), is.join(", "));
            show::say(format_args!("note: {from} was trained with {was}; here it runs with {is} and the same weights"));
        }
        Ok(asked)
    }

    /// A model with what was asked for.
    pub fn over(&self, base: &Config) -> Result<Config> {
        let config = self.asked.over(base)?;
        config.check()?;
        Ok(config)
    }
}

/// What differs in a configuration: the flag's name, its value, what it was.
fn changes(base: &Config, wanted: &Config) -> impl Iterator<Item = (String, String, String)> {
    let keys = |config: &Config| serde_json::to_value(config).expect("a config is JSON");
    let (is, wanted) = (keys(base), keys(wanted));
    let wanted = wanted.as_object().expect("an object").clone();
    wanted.into_iter().filter_map(move |(key, value)| {
        let changed = is[&key] != value;
        changed.then(|| (key.replace('_', "-"), plain(&value), plain(&is[&key])))
    })
}

/// The values of an axis, of which help and errors list the names.
pub fn named<A: Axis + Send + Sync>() -> impl TypedValueParser<Value = A> {
    PossibleValuesParser::new(A::ALL.iter().map(|value| value.name())).try_map(|name| parse_axis(&name))
}

/// What tensors and axes are called by.
#[derive(Args, Clone, Debug, Default)]
pub struct NotationOptions {
    /// Name tensors and axes as a document does: s0 ("Notations"), s1 (Zero-to-Hero), s2 (The Formulated GPT-2), s3 (decoder-readme),
    /// llmc, transformerlens [default: limpid]
    #[arg(long, value_name = "NAME", value_parser = parse_axis::<Notation>)]
    pub notation: Option<Notation>,
}

/// How documents are read.
#[derive(Args, Clone, Debug, Default)]
pub struct DataOptions {
    /// JSON field or parquet column that holds the text [default: text]; standard input is then read as JSON lines
    #[arg(long, value_name = "NAME", alias = "text-column", hide_short_help = true)]
    pub field: Option<String>,
    /// Skip documents that cannot be read, and count them
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", hide_short_help = true)]
    pub skip_bad: bool,
}

/// How documents are read and become tokens.
#[derive(Args, Clone, Debug, Default)]
pub struct TextOptions {
    #[command(flatten)]
    pub documents: DataOptions,
    /// Encode the text of a special token in a document (`<|endoftext|>`) as that token; with false, as ordinary text
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true", hide_short_help = true)]
    pub parse_special: bool,
}

impl DataOptions {
    /// The field of the text.
    pub fn field(&self) -> &str {
        self.field.as_deref().unwrap_or("text")
    }

    /// What standard input holds.
    pub fn stdin(&self) -> TextFormat {
        if self.field.is_some() { TextFormat::JsonLines } else { TextFormat::Text }
    }
}

/// Which parameters of a model learn.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Fine-tuning")]
pub struct TuningOptions {
    /// A model to fine-tune: a folder of limpid or HuggingFace, a .gguf, a .bin of llm.c
    #[arg(long, value_name = "MODEL", conflicts_with = "preset")]
    pub from: Option<String>,
    /// Parameters to freeze, by name: embed.*,blocks.[0-5].* (docs/names.md)
    #[arg(long, value_name = "NAMES", value_delimiter = ',', hide_short_help = true)]
    pub freeze: Vec<String>,
    /// The only parameters to train; all others are frozen
    #[arg(long, value_name = "NAMES", value_delimiter = ',', hide_short_help = true)]
    pub train_only: Vec<String>,
    /// Train a LoRA adapter of this rank instead of the model's own weights
    #[arg(long, value_name = "R", requires = "from", conflicts_with_all = ["freeze", "train_only"], alias = "lora-r")]
    pub lora: Option<usize>,
    /// LoRA's alpha: the adapter's output is multiplied by alpha / rank [default: twice the rank]
    #[arg(long, value_name = "X", requires = "lora", hide_short_help = true)]
    pub lora_alpha: Option<f64>,
    /// The weight matrices to adapt: attention, feed-forward, or names like blocks.0.attn.* [default: attention,feed-forward]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', requires = "lora", hide_short_help = true)]
    pub lora_targets: Vec<String>,
    /// Dropout on the adapter's input
    #[arg(long, value_name = "P", requires = "lora", hide_short_help = true)]
    pub lora_dropout: Option<f64>,
}

impl TuningOptions {
    /// As the library takes it.
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

/// The machine.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Machine")]
pub struct MachineOptions {
    /// Threads [default: all cores]
    #[arg(long, short = 't', value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Instruction set: portable, avx2, avx2-vnni, avx512, avx512-bf16 or neon, all with the same results [default: the fastest this CPU has]; or
    /// unfused, which is faster than portable on CPUs without a fused multiply-add, but differs in the last digits
    #[arg(long, value_name = "SET", env = "LIMPID_SIMD", value_parser = Level::named, hide_env_values = true, hide_short_help = true)]
    pub simd: Option<Level>,
    /// Precision of matrix products: f32; bf16 (mixed precision: bf16 operands, f32 sums and weights); f16 (the same in f16, on a GPU
    /// with f16 matrices: see `limpid doctor`); or int8, for generating and scoring with quantised weights (activations rounded to eight
    /// bits, integer sums)
    #[arg(long, alias = "dtype", value_name = "P", default_value = "f32", value_parser = precision, hide_short_help = true)]
    pub precision: Precision,
    /// Where the model runs: cpu; gpu, gpu:1 or gpu:NAME (in builds with the feature `gpu`; `limpid doctor` lists them); auto, whichever
    /// of the two is measured to be faster; or reference (plain f64 loops on one thread: slow, for checking the others)
    #[arg(long, value_name = "D", default_value = "cpu", hide_short_help = true)]
    pub device: DeviceChoice,
    /// Skip the checksums of limpid's weights and prepared data, for files that were changed on purpose
    #[arg(long, hide_short_help = true)]
    pub no_verify: bool,
}

/// How tokens are chosen.
#[derive(Args, Clone, Debug)]
pub struct SamplingOptions {
    /// Sampling temperature: 0 takes the likeliest token; below 1 is sharper, above 1 flatter
    #[arg(long, value_name = "X", default_value_t = 0.8, alias = "temp")]
    pub temperature: f64,
    /// Top-k sampling: only the K likeliest tokens; 0 for all
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub top_k: usize,
    /// Nucleus (top-p) sampling: only the likeliest tokens whose probabilities add up to P
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    pub top_p: f64,
    /// Min-p sampling: only tokens at least P times as likely as the likeliest
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    pub min_p: f64,
    /// Repetition penalty: above 1, tokens that already occurred become less likely
    #[arg(long, value_name = "X", default_value_t = 1.0, alias = "repeat-penalty")]
    pub repetition_penalty: f64,
    /// Stop before this text (repeatable)
    #[arg(long, value_name = "TEXT", action = clap::ArgAction::Append)]
    pub stop: Vec<String>,
    /// Seed of the random draws
    #[arg(long, value_name = "N", default_value_t = 1337)]
    pub seed: u64,
}

impl SamplingOptions {
    /// As the library has it.
    pub fn sampler(&self) -> Sampler {
        Sampler {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            seed: self.seed,
            ..Sampler::default()
        }
    }
}

/// Passes over a text: 3, 0.5.
pub fn epochs(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(epochs) if epochs > 0.0 && epochs <= 1e6 => Ok(epochs),
        _ => Err("it must be a number above 0, such as 3 or 0.5, and at most a million".into()),
    }
}

/// An amount of memory: 2G, 1.5GiB, 800M, 2000000000.
pub fn bytes(text: &str) -> Result<u64, String> {
    units::parse_bytes(text)
        .ok_or(format!("`{text}` is not an amount of memory: write 2G, 1.5GiB, 800M or a number of bytes"))
}

/// A type that a KV cache may have.
#[cfg(feature = "serve")]
pub fn stored(s: &str) -> Result<limpid::numeric::element::Element, ConfigError> {
    let unknown = |_| limpid::config::unknown("type of a KV cache", s, &["f32", "bf16"]);
    Machine::cache_element(precision(s)?).map_err(unknown)
}

pub fn precision(s: &str) -> Result<Precision, ConfigError> {
    match s {
        "float32" => Ok(Precision::F32),
        "bfloat16" => Ok(Precision::Bf16),
        "float16" => Ok(Precision::F16),
        _ => parse_axis(s),
    }
}

impl MachineOptions {
    /// Instructions to use.
    pub fn level(&self) -> Level {
        self.simd.unwrap_or_else(Level::best)
    }

    /// As the library has it; `--device auto` is the cpu before it is measured.
    pub fn machine(&self) -> Machine {
        let device = self.device.device();
        let threads = self.threads();
        let level = self.level();
        Machine { device, gpu: self.device.gpu().into(), level, precision: self.precision, ..Machine::cpu(threads) }
    }

    /// Decides `--device auto` for a model that runs so.
    pub fn measure(&self, config: &Config, mode: Mode) {
        self.device.measure(config, mode, &self.machine());
    }

    /// Threads to use.
    pub fn threads(&self) -> usize {
        threads(self.threads)
    }
}

/// Threads to use where so many were asked for; more than there are cores is told, once.
pub fn threads(asked: Option<impl Into<usize>>) -> usize {
    static TOLD: Once = Once::new();
    let threads = asked.map_or_else(cores, Into::into);
    if threads > cores() {
        let (threads, cores) = (show::plural(threads, "thread"), show::plural(cores(), "core"));
        TOLD.call_once(|| show::say(format_args!("note: {threads} on {cores} wait for each other: fewer are faster")));
    }
    threads
}

/// The flags of `verb` that may mend an error of the library, as text to put behind the error. Settings of a model that a format cannot
/// express are flags of `train`.
pub fn mending(error: &anyhow::Error, verb: &Command) -> String {
    let own = |names: &[&str]| names.iter().map(ToString::to_string).collect();
    let has = |flag: &str| names(verb).any(|known| known == flag);
    if let Some(Error::Memory { training, device, .. }) = error.chain().find_map(|cause| cause.downcast_ref()) {
        let smaller = ["batch-size", "context-length", "preset"].into_iter().filter(|flag| has(flag));
        let smaller: Vec<String> = smaller.map(|flag| format!("--{flag}")).collect();
        let saves = training.then_some("`limpid plan` shows what --memory can save");
        let halves = (*device == Device::Reference && has("device")).then_some("--device cpu takes half");
        let smaller = Some(smaller.join(", ")).filter(|flags| !flags.is_empty());
        let advice: Vec<&str> = [smaller.as_deref(), saves, halves].into_iter().flatten().collect();
        return if advice.is_empty() { String::new() } else { format!(" ({})", advice.join("; ")) };
    }
    if let Some(RanksError::Silent { .. }) = error.chain().find_map(of_ranks) {
        return " (--resume auto, --timeout)".into();
    }
    if let Some(RanksError::Micros { accumulate, batch_size, .. }) = error.chain().find_map(of_ranks) {
        return format!(" (--accumulate {accumulate} --batch-size {batch_size})");
    }
    let of = |cause: &(dyn std::error::Error + 'static)| {
        (cause.downcast_ref().map(Error::settings))
            .or_else(|| cause.downcast_ref().map(TrainError::settings))
            .or_else(|| cause.downcast_ref().map(DataError::settings))
            .or_else(|| cause.downcast_ref().map(|error: &CorpusError| own(error.settings())))
            .or_else(|| cause.downcast_ref().map(SourceError::settings))
            .or_else(|| cause.downcast_ref().map(CheckpointError::settings))
            .or_else(|| cause.downcast_ref().map(|error: &TokenizerError| own(error.settings())))
            .or_else(|| cause.downcast_ref().map(|error: &BackendError| own(error.settings())))
            .or_else(|| of_server(cause).map(own))
    };
    let trained =
        error.chain().any(|cause| matches!(cause.downcast_ref(), Some(CheckpointError::Inexpressible { .. })));
    let settings: Option<Vec<String>> = error.chain().filter_map(of).find(|settings| !settings.is_empty());
    let flag = |setting: String| {
        let (name, value) = setting.split_once(' ').unwrap_or((&setting, ""));
        let name = name.replace('_', "-");
        (trained || has(&name)).then(|| format!("--{name} {value}").trim_end().to_string())
    };
    let flags: Vec<String> = settings.into_iter().flatten().filter_map(flag).collect();
    match &flags[..] {
        [] => String::new(),
        flags if trained => format!(" (`limpid train {}`)", flags.join(" ")),
        flags => format!(" ({})", flags.join(", ")),
    }
}

/// The settings that may mend an error of the server.
#[cfg(feature = "serve")]
fn of_server(cause: &(dyn std::error::Error + 'static)) -> Option<&'static [&'static str]> {
    cause.downcast_ref().map(limpid_serve::ServeError::settings)
}
#[cfg(not(feature = "serve"))]
fn of_server(_: &(dyn std::error::Error + 'static)) -> Option<&'static [&'static str]> {
    None
}

/// What other processes did, or did not.
fn of_ranks<'a>(cause: &'a (dyn std::error::Error + 'static)) -> Option<&'a RanksError> {
    cause.downcast_ref().or_else(|| match cause.downcast_ref() {
        Some(TrainError::Ranks(error)) => Some(error),
        _ => None,
    })
}

// ---- from what was typed to what clap reads

/// One flag with its value, as a word: `--steps=100`; a switch is its name alone.
struct Word {
    name: String,
    value: Option<OsString>,
}

impl Word {
    fn text(&self) -> OsString {
        let mut text = OsString::from(format!("--{}", self.name));
        self.value.iter().for_each(|value| text.extend([OsStr::new("="), value]));
        text
    }
}

/// The verb that was typed, where its own words begin: `bench train` is a verb of two.
pub fn verb<'a>(typed: &[String], cli: &'a Command) -> Option<(&'a Command, usize)> {
    let find = |command: &'a Command, at: usize| typed.get(at).and_then(|word| command.find_subcommand(word));
    let verb = find(cli, 1)?;
    Some(find(verb, 2).map_or((verb, 2), |verb| (verb, 3)))
}

/// The names of a verb's flags, those that they go by elsewhere too.
pub fn names(verb: &Command) -> impl Iterator<Item = &str> {
    verb.get_arguments().filter(|arg| !arg.is_hide_set()).flat_map(all_names)
}

fn all_names(arg: &Arg) -> impl Iterator<Item = &str> {
    arg.get_long().into_iter().chain(arg.get_all_aliases().unwrap_or_default())
}

/// The arguments with `_` read as `-` in flags' names, and with those of the configuration file and the environment
/// put before what was typed. Options that are groups of others (`--dropout`) also get each of the three by itself.
pub fn arguments(typed: Vec<OsString>, cli: &Command) -> Result<(Vec<OsString>, Origins)> {
    let mut typed = numbers(typed.into_iter().map(dashes));
    let words: Vec<String> = typed.iter().map(|word| word.to_string_lossy().into()).collect();
    let Some((verb, place)) = verb(&words, cli) else { return Ok((typed, vec![])) };
    if typed.iter().any(|a| a == "--help" || a == "-h") {
        return Ok((typed, vec![]));
    }
    is_unicode(&typed[place..], verb)?;
    name_unknown_variables(cli);
    let flags = given(&typed[place..], verb);
    let variables = from_environment(verb)?;
    let flag = |name: &str| {
        let found = flags.iter().chain(&variables).find(|word| word.name == name);
        found.and_then(|word| word.value.clone())
    };
    let mut file = vec![];
    let mut whence = PathBuf::new();
    let run = resumed(flag("resume"), flag("out"))?;
    if flag("resume").is_some() && run.is_none() {
        begins_anew(flag("out"), flags.iter().chain(&variables))?;
    }
    if let Some(path) = flag("config") {
        whence = path.into();
        file = from_file(&whence, verb)?;
    } else if let Some(folder) = run {
        whence = folder.join("limpid.toml");
        file = from_file(&whence, verb).with_context(|| format!("{} cannot be resumed", folder.display()))?;
        kept(&folder, &file, flags.iter().chain(&variables))?;
        // what was chosen anew when it went on before stays chosen
        let from = flag("resume-step").and_then(|step| step.to_str()?.parse().ok());
        if let Some(RunSettings { recipe, options }) = Run::settings(&folder, from)? {
            let steps = recipe.fields().into_iter().filter(|(setting, _)| setting.name == "steps");
            for (setting, value) in steps.chain(options.fields()) {
                let word = file.iter_mut().find(|word| word.name.replace('-', "_") == setting.name);
                word.into_iter().for_each(|word| word.value = Some(plain(&value.json()).into()));
            }
        }
    }
    one_preset(&whence, [&file, &variables, &flags])?;
    let all = settings_command();
    let known = verb.get_arguments().any(|arg| arg.get_id() == LAYER);
    let is_setting = |word: &Word| known && word.name != "preset" && names(&all).any(|name| name == word.name);
    // what is named again above, or cannot be beside what is, does not stand; but for settings, whose layers are taken one after the
    // other
    let arg = |name: &str| verb.get_arguments().find(|arg| arg.get_long() == Some(name));
    let excludes = |a: &str, b: &str| {
        [(a, b), (b, a)].into_iter().any(|(of, other)| {
            arg(of).is_some_and(|of| verb.get_arg_conflicts_with(of).iter().any(|arg| arg.get_long() == Some(other)))
        })
    };
    let stands = |word: &Word, higher: &[&Vec<Word>]| {
        let again = |other: &Word| other.name == word.name && !is_setting(word);
        !higher.iter().any(|layer| layer.iter().any(|other| again(other) || excludes(&other.name, &word.name)))
    };
    let path = whence.display().to_string();
    let mut before = vec![];
    let mut origins = vec![];
    for (layer, whence, higher) in
        [(&file, path.as_str(), &[&variables, &flags][..]), (&variables, "the environment", &[&flags])]
    {
        let own = layer.iter().filter(|word| known && names(&all).any(|name| name == word.name)).map(Word::text);
        if let Err(error) = all.clone().try_get_matches_from(own) {
            let said = error.to_string().lines().next().unwrap_or_default().replacen("error: ", "", 1);
            bail!(Usage(format!("{whence}: {said}")));
        }
        for word in layer.iter().filter(|word| stands(word, higher)) {
            let key = word.name.replace('-', "_");
            let of = if whence == path { format!("{key} in {path}") } else { variable(&word.name) };
            origins.push((word.text().to_string_lossy().into_owned(), of));
            before.push(word.text());
        }
        if known {
            before.push(format!("--{LAYER}={whence}").into());
        }
    }
    typed.splice(place..place, before);
    Ok((typed, origins))
}

/// Words that were not typed, and where they stand: a key of a file, or a variable of the environment.
pub type Origins = Vec<(String, String)>;

/// Refuses a value that is not UTF-8 where it must be, by the name of its flag.
fn is_unicode(words: &[OsString], verb: &Command) -> Result<()> {
    for (at, word) in words.iter().enumerate().filter(|(_, word)| word.to_str().is_none()) {
        let text = word.to_string_lossy();
        let named = |word: &str| {
            let name = word.strip_prefix("--")?.split('=').next()?.to_string();
            verb.get_arguments().find(|arg| all_names(arg).any(|own| own == name))
        };
        let before = at.checked_sub(1).and_then(|at| words[at].to_str());
        let flag = if text.starts_with("--") {
            named(&text)
        } else {
            before.filter(|word| !word.contains('=')).and_then(named).filter(|arg| arg.get_action().takes_values())
        };
        let what = match flag {
            Some(arg) if takes_any(arg) => continue,
            Some(arg) => format!("--{}", arg.get_long().unwrap_or_default()),
            // one of those that have no flag
            None if verb.get_positionals().any(takes_any) || text.starts_with('-') => continue,
            None => "a word without a flag".into(),
        };
        bail!(Usage(format!("{what}: `{text}` is not UTF-8, and must be here: give the file or folder another name")));
    }
    Ok(())
}

/// Whether an argument takes any bytes: a path.
fn takes_any(arg: &Arg) -> bool {
    arg.get_value_parser().type_id() == std::any::TypeId::of::<PathBuf>()
}

/// All settings of models and of training as a command of their own.
pub fn settings_command() -> Command {
    let command = Command::new("limpid").no_binary_name(true).args_override_self(true);
    let command = Asked::<Recipe>::augment_args(ModelOptions::augment_args(command));
    Asked::<RunOptions>::augment_args(command)
}

/// A value as it is typed.
pub fn plain(value: &serde_json::Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), String::from)
}

/// What was typed, each flag by its own name; what is wrong in it is left for clap to say.
fn given(words: &[OsString], verb: &Command) -> Vec<Word> {
    let lenient = verb.clone().args_override_self(true).ignore_errors(true).no_binary_name(true);
    let Ok(matches) = lenient.try_get_matches_from(words) else { return vec![] };
    let typed = |arg: &&Arg| matches.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
    let word = |arg: &Arg| {
        let values: Vec<_> = matches.get_raw(arg.get_id().as_str()).into_iter().flatten().collect();
        // several are a list, or the last one holds
        let several = arg.get_value_delimiter().map_or(values.len().saturating_sub(1), |_| 0);
        let value = values[several..].join(OsStr::new(","));
        let name = arg.get_long().or((arg.get_id() == TEXT).then_some("data"))?;
        Some(Word { name: name.into(), value: arg.get_action().takes_values().then_some(value) })
    };
    verb.get_arguments().filter(typed).filter_map(word).collect()
}

/// A flag from a place that has names and values alone; none for a switch that is off.
fn word(arg: &Arg, value: OsString, whence: &str) -> Result<Option<Word>> {
    let name = arg.get_long().unwrap_or_default().to_string();
    if arg.get_action().takes_values() {
        return Ok(Some(Word { name, value: Some(value) }));
    }
    match value.to_str() {
        Some("true" | "1") => Ok(Some(Word { name, value: None })),
        Some("false" | "0" | "") => Ok(None),
        _ => bail!(Usage(format!("{whence} is `{}`: it is true or false", value.display()))),
    }
}

/// The environment variable of a setting.
pub fn variable(name: &str) -> String {
    format!("LIMPID_{}", name.to_uppercase().replace('-', "_"))
}

fn from_environment(verb: &Command) -> Result<Vec<Word>> {
    let mut words = vec![];
    for arg in verb.get_arguments().filter(|arg| !arg.is_hide_set() && arg.get_long() != Some("help")) {
        let found = all_names(arg).map(variable).find_map(|name| Some((std::env::var_os(&name)?, name)));
        if let Some((value, name)) = found {
            if value.to_str().is_none() && !takes_any(arg) {
                let value = value.display();
                bail!(Usage(format!("{name} is `{value}` in the environment, which is not UTF-8 and must be")));
            }
            words.extend(word(arg, value, &name)?);
        }
    }
    Ok(words)
}

/// Warns about unknown `LIMPID_*` variables, which are probably misspelt settings.
fn name_unknown_variables(cli: &Command) {
    fn all(command: &Command) -> Vec<String> {
        names(command).map(variable).chain(command.get_subcommands().flat_map(all)).collect()
    }
    let known = all(cli);
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("LIMPID_") && !known.iter().any(|known| *known == name) {
            let near = nearest(&name["LIMPID_".len()..], known.iter().map(|name| &name["LIMPID_".len()..]));
            let near = near.map(|near| format!(": did you mean LIMPID_{near}?")).unwrap_or_default();
            show::say(format_args!("note: the environment variable {name} is not a setting of limpid{near}"));
        }
    }
}

/// Settings that a run keeps to its end, beside those that its state holds.
#[rustfmt::skip]
const KEPT: [&str; 10] = [
    "from", "tokenizer", "field", "parse-special", "chat-template", "add-special-tokens", "freeze", "train-only", "lora", "lora-targets",
];

/// Refuses to go on with a run otherwise than it began.
fn kept<'a>(folder: &Path, file: &[Word], asked: impl Iterator<Item = &'a Word>) -> Result<()> {
    for word in asked.filter(|word| KEPT.contains(&word.name.as_str())) {
        let was = file.iter().find(|was| was.name == word.name).and_then(|was| was.value.as_ref());
        let is = word.value.as_ref();
        let path = is.and_then(|is| std::path::absolute(is).ok()).map(OsString::from);
        let file = is.and_then(|is| Path::new(is).file_name()).map(OsString::from);
        if was != is && was != path.as_ref() && was != file.as_ref() {
            let was = was.map_or("none".into(), |was| was.to_string_lossy());
            let is = is.map_or("true".into(), |is| is.to_string_lossy());
            let (name, key, folder) = (&word.name, word.name.replace('-', "_"), folder.display());
            bail!(Usage(format!(
                "--{name} {is}: the run in {folder} began with another one ({key} in its limpid.toml: {was}) and keeps it; \
                 another --out starts a new run"
            )));
        }
    }
    Ok(())
}

/// Refuses a preset over settings of a model that were made for another: they would leave nothing of it.
fn one_preset(file: &Path, layers: [&Vec<Word>; 3]) -> Result<()> {
    let spelled = |value: &OsString| value.to_string_lossy().to_lowercase().replace('_', "-");
    let preset = |layer: &[Word]| layer.iter().find(|w| w.name == "preset").and_then(|w| w.value.as_ref()).map(spelled);
    let model = ModelOptions::augment_args(Command::new("limpid"));
    let model: Vec<&str> = names(&model).collect();
    for (n, layer) in layers.iter().enumerate() {
        let below = &layers[..n];
        let (Some(is), Some(was)) = (preset(layer), below.iter().rev().find_map(|layer| preset(layer))) else {
            continue;
        };
        let mut own = below.iter().flat_map(|layer| layer.iter()).map(|word| &word.name);
        if is != was
            && let Some(name) = own.find(|name| *name != "preset" && model.contains(&name.as_str()))
        {
            let whence = if below[0].is_empty() { "the environment".into() } else { file.display().to_string() };
            bail!(Usage(format!(
                "--preset {is}: {whence} has another, {was}, with settings of its own ({}, ...), which would remain: leave one \
                 of the two presets out",
                name.replace('-', "_")
            )));
        }
    }
    Ok(())
}

/// The folder that `--resume` means: the one named, `--out`'s, or the newest under runs/.
fn resumed(resume: Option<OsString>, out: Option<OsString>) -> Result<Option<PathBuf>> {
    let Some(resume) = resume else { return Ok(None) };
    if resume != "auto" {
        let folder = PathBuf::from(&resume);
        if resume.is_empty() {
            bail!(Usage("--resume needs a value: auto, or the folder of a run".into()));
        }
        if !folder.exists() {
            bail!("{} cannot be resumed: there is no such folder", folder.display());
        }
        if !folder.join("limpid.toml").exists() {
            bail!("{} cannot be resumed: it has no limpid.toml, so no run began there", folder.display());
        }
        return Ok(Some(folder));
    }
    let folder = out.map(PathBuf::from).or_else(newest_run);
    Ok(folder.filter(|folder| folder.join("limpid.toml").exists()))
}

/// Refuses `--resume auto` where there is no run, unless the words say what a new run is: with its settings it can begin, without them it would
/// be another run than the one that is meant.
fn begins_anew<'a>(out: Option<OsString>, mut words: impl Iterator<Item = &'a Word>) -> Result<()> {
    let place = out.map_or("the folder runs/ here".into(), |out| out.display().to_string());
    // these may be given with a run that goes on
    let goes_on = Asked::<RunOptions>::augment_args(Command::new("limpid"));
    let goes_on: Vec<&str> = names(&goes_on).chain(["steps", "max-steps", "epochs"]).collect();
    let model = settings_command();
    let begins = |word: &&Word| {
        let name = word.name.as_str();
        let setting = names(&model).any(|known| known == name) && !goes_on.contains(&name);
        setting || KEPT.contains(&name) || ["data", "config"].contains(&name)
    };
    if words.find(begins).is_none() {
        bail!(Usage(format!(
            "--resume auto: {place} holds no run to resume: name its folder with --resume DIR, or say what a new run trains on, such as --data FILE"
        )));
    }
    show::say(format_args!("note: {place} holds no run to resume: a new one begins"));
    Ok(())
}

/// The newest run under runs/ that can go on, or that began and was killed before its first save.
pub fn newest_run() -> Option<PathBuf> {
    let runs = std::fs::read_dir("runs").ok()?.flatten().map(|entry| entry.path());
    let begun = |path: &PathBuf| path.join("limpid.toml").exists() && folder::look(path) == FolderContents::Begun;
    let time = |file: PathBuf| file.metadata().and_then(|m| m.modified()).ok();
    runs.filter(|path| limpid::train::Run::can_resume(path) || begun(path))
        .max_by_key(|path| time(path.join("state/last.safetensors")).max(time(path.join("limpid.toml"))))
}

/// Words in which a number below zero belongs to the flag before it, which may refuse it: it is no flag itself.
fn numbers(words: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let below_zero = |word: &str| word.starts_with('-') && word.parse::<f64>().is_ok();
    let flag = |word: &str| word.len() > 1 && word.starts_with('-') && !word.contains('=') && !below_zero(word);
    let mut joined: Vec<OsString> = vec![];
    for word in words {
        match joined.last_mut() {
            Some(last) if word.to_str().is_some_and(below_zero) && last.to_str().is_some_and(flag) => {
                last.extend([OsStr::new("="), &word]);
            }
            _ => joined.push(word),
        }
    }
    joined
}

/// A flag's name with `-` for `_`.
fn dashes(arg: OsString) -> OsString {
    let Some(text) = arg.to_str().filter(|a| a.starts_with("--") && a.len() > 2) else { return arg };
    let (name, value) = text.split_at(text.find('=').unwrap_or(text.len()));
    (name.replace('_', "-") + value).into()
}

/// A file of settings as text: a regular one, of at most 16 MiB.
pub fn read_settings(path: &Path) -> Result<String> {
    limpid_base::files::read_text(path, 16 << 20).with_context(|| path.display().to_string())
}

/// A TOML or JSON file as flags.
fn from_file(path: &Path, verb: &Command) -> Result<Vec<Word>> {
    let text = read_settings(path)?;
    let file = path.display();
    let table: toml::Table = if path.extension().is_some_and(|e| e == "json") {
        serde_json::from_str(&text).map_err(|e| anyhow!("{file}: {e}"))?
    } else {
        text.parse().map_err(|e: toml::de::Error| anyhow!("{file}: {e}"))?
    };
    let mut words: Vec<Word> = vec![];
    for (key, value) in table {
        let name = key.replace('_', "-");
        let found = verb.get_arguments().filter(|arg| !arg.is_hide_set()).find(|arg| all_names(arg).any(|n| n == name));
        let Some(arg) = found else {
            let near = nearest(&name, names(verb)).map(|n| format!(": did you mean `{}`?", n.replace('-', "_")));
            bail!(Usage(format!("{file}: unknown key `{key}`{}", near.unwrap_or_default())));
        };
        if ["help", "config", "json", "resume"].contains(&name.as_str()) {
            let flag = arg.get_long().unwrap_or_default();
            bail!(Usage(format!("{file}: `{key}` cannot be set in a file: use the flag --{flag}")));
        }
        let value = match value {
            toml::Value::String(s) => s,
            toml::Value::Integer(_) | toml::Value::Float(_) | toml::Value::Boolean(_) => value.to_string(),
            other => bail!(Usage(format!("{file}: `{key}` is {other}: it must be one value"))),
        };
        let Some(word) = word(arg, value.into(), &format!("{file}: `{key}`"))? else { continue };
        if words.iter().any(|other| other.name == word.name) {
            let own = word.name.replace('-', "_");
            bail!(Usage(format!("{file}: `{key}` is another name for `{own}`, which the file also sets")));
        }
        words.push(word);
    }
    Ok(words)
}

//! Flags: the library's tables of settings as arguments of clap, and what several verbs share.
//!
//! A table's flags are parsed into a layer of the library's [`LayeredSettings`], with a layer of environment variables
//! (`LIMPID_LEARNING_RATE`) below it, which resolves them. Flags that no table has take the environment's value by clap
//! itself.

use crate::machine::cores;
pub use crate::show::Interrupted;
use crate::{devices, show};
use anyhow::{Context, Result, bail};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, Id};
use limpid::backend::BackendError;
use limpid::checkpoint::CheckpointError;
use limpid::config::{Axis, Config, ConfigError, Positions, Setting, Settings, Value, ValueKind, parse_axis};
use limpid::data::source::SourceError;
use limpid::data::{CorpusError, DataError};
use limpid::generate::Sampler;
use limpid::model::Mode;
use limpid::names::Notation;
pub use limpid::settings::parse_bytes as bytes;
use limpid::settings::{
    ConfigChange, DocumentSettings, JobSettings, LayeredSettings, MachineSettings, Origin, SettingsLayer, TextSettings,
    TuningSettings, changes, variable,
};
use limpid::tokenizer::TokenizerError;
use limpid::train::{RanksError, Recipe, RunOptions, TrainError};
use limpid::{Device, Error, Machine};
use limpid_base::nearest::nearest;
use std::ffi::{OsStr, OsString};
use std::marker::PhantomData;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once, OnceLock};

/// Wrong usage: exit 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// A table of settings whose fields are flags.
pub trait Flags: Settings + 'static {
    /// Where help shows them; none for those of the verb itself.
    const HEADING: Option<&'static str>;
    /// Whether help lists the names of values, and a switch takes the word after it as its value.
    const IS_OF_NUMBERS: bool = false;
}
impl Flags for Config {
    const HEADING: Option<&'static str> = Some(MODEL);
    const IS_OF_NUMBERS: bool = true;
}
impl Flags for Recipe {
    const HEADING: Option<&'static str> = Some("Training");
    const IS_OF_NUMBERS: bool = true;
}
impl Flags for RunOptions {
    const HEADING: Option<&'static str> = Some("Run");
    const IS_OF_NUMBERS: bool = true;
}
impl Flags for JobSettings {
    const HEADING: Option<&'static str> = None;
}
impl Flags for TextSettings {
    const HEADING: Option<&'static str> = None;
}
impl Flags for DocumentSettings {
    const HEADING: Option<&'static str> = None;
}
impl Flags for TuningSettings {
    const HEADING: Option<&'static str> = Some("Fine-tuning");
}
impl Flags for MachineSettings {
    const HEADING: Option<&'static str> = Some("Machine");
}

/// Settings of a table that were asked for: in the environment, and with flags over it.
#[derive(Clone, Debug, Default)]
pub struct Asked<S> {
    /// They.
    pub settings: LayeredSettings,
    table: PhantomData<S>,
}

impl<S: Flags> Asked<S> {
    /// A recipe, a model or the like with what was asked for.
    pub fn over(&self, base: &S) -> Result<S> {
        Ok(self.settings.over(base)?)
    }
    /// Whether one was asked for.
    pub fn has(&self, name: &str) -> bool {
        self.settings.has(name)
    }
    /// The rest of them.
    pub fn without(mut self, name: &str) -> Asked<S> {
        self.settings.layers.iter_mut().for_each(|layer| layer.values.retain(|(setting, _)| setting.name != name));
        self
    }
}

impl<S: Flags> Args for Asked<S> {
    fn augment_args(command: Command) -> Command {
        let usual = S::default();
        command.args(usual.choices().into_iter().map(|(setting, value)| flag::<S>(setting, value)))
    }
    fn augment_args_for_update(command: Command) -> Command {
        Asked::<S>::augment_args(command)
    }
}

impl<S: Flags> FromArgMatches for Asked<S> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Asked<S>, clap::Error> {
        let mut flags = SettingsLayer::new(Origin::Flags);
        let known: Vec<_> = S::default().choices().into_iter().map(|(setting, _)| setting).collect();
        let typed = |name: &str| matches.value_source(name) == Some(ValueSource::CommandLine);
        for setting in known.iter().filter(|setting| typed(setting.name)) {
            let texts: Vec<&OsStr> = matches.get_raw(setting.name).into_iter().flatten().collect();
            flags.values.push((setting, texts.join(OsStr::new(","))));
        }
        let environment = SettingsLayer::environment(&known, |name| std::env::var_os(name));
        Ok(Asked { settings: LayeredSettings::new(vec![environment, flags]), table: PhantomData })
    }
    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Asked::from_arg_matches(matches)?;
        Ok(())
    }
}

/// A table of settings with what was asked for, where nothing else decides them.
#[derive(Clone, Debug, Default)]
pub struct Chosen<S>(pub S);

impl<S> Deref for Chosen<S> {
    type Target = S;
    fn deref(&self) -> &S {
        &self.0
    }
}

impl<S: Flags> Args for Chosen<S> {
    fn augment_args(command: Command) -> Command {
        Asked::<S>::augment_args(command)
    }
    fn augment_args_for_update(command: Command) -> Command {
        Asked::<S>::augment_args(command)
    }
}

impl<S: Flags> FromArgMatches for Chosen<S> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Chosen<S>, clap::Error> {
        let chosen = Asked::<S>::from_arg_matches(matches)?.settings.checked(&S::default());
        Ok(Chosen(chosen.map_err(|error| clap::Error::raw(ErrorKind::ValueValidation, error.to_string()))?))
    }
    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Chosen::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The text to train on where it has no flag: it stands for `--data`.
pub const TEXT: &str = "training_text";

/// The flag of a setting. It reads the environment itself ([`Asked`]), which clap then need not do.
fn flag<S: Flags>(setting: &'static Setting, value: &dyn Value) -> Arg {
    let names = if S::IS_OF_NUMBERS { value.choices().join(", ") } else { String::new() };
    let names = if names.is_empty() { names } else { format!(": {names}") };
    let default = setting.default_text.map(|what| format!(" [default: {what}]")).unwrap_or_default();
    let arg = Arg::new(setting.name)
        .long(setting.name.replace('_', "-"))
        .short((setting.name == "threads").then_some('t'))
        .aliases(setting.aliases)
        .help(format!("{}{names}{default}", setting.line()))
        .help_heading(S::HEADING)
        .hide_short_help(!setting.common)
        .hide_env(true);
    if value.kind() == ValueKind::Switch && setting.value.is_empty() {
        return arg.action(ArgAction::SetTrue);
    }
    let arg = arg.value_name(setting.value);
    match value.kind() {
        ValueKind::Plain if setting.alone.is_some() => arg.num_args(0..=1).default_missing_value(setting.alone),
        ValueKind::Plain => arg,
        ValueKind::List => arg.action(ArgAction::Append),
        ValueKind::Path => arg.value_parser(clap::value_parser!(PathBuf)),
        ValueKind::Switch => arg
            .num_args(0..=1)
            .require_equals(!S::IS_OF_NUMBERS)
            .default_missing_value("true")
            .value_parser(clap::value_parser!(bool)),
    }
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

    /// The configuration, its vocabulary the preset's unless another was asked for.
    pub fn config(&self) -> Result<Config> {
        self.over(&Config::preset(self.name())?)
    }

    /// The configuration of the model `from` with what was asked for, which may not change what has learned.
    pub fn config_of(&self, from: &str, base: &Config) -> Result<Config> {
        Ok(self.asked.settings.config_of(from, base)?)
    }

    /// Refuses what is no value of its setting, before a model is opened.
    pub fn check_values(&self) -> Result<()> {
        self.asked.over(&Config::default()).map(drop)
    }

    /// Without what the environment says of it.
    pub fn forget_environment(&mut self) {
        self.asked.settings.layers.retain(|layer| layer.origin != Origin::Environment);
    }

    /// The configuration of the model `from` that is only looked at: what needs no other weights may be otherwise, and
    /// is said.
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
                "--context-length is {is}, and the model {from} has {was}: a shorter context would change nothing \
                 here; --last keeps the end of a prompt that is too long"
            )));
        }
        let tables = [base, &asked].map(|config| config.positions == Positions::Learned) == [false; 2];
        let mut said = vec![];
        for ConfigChange { name, value, was } in changes(base, &asked) {
            let name = name.replace('_', "-");
            let free = FREE.contains(&name.as_str()) || (tables && name == "positions");
            if !free {
                let free = FREE.join(", --");
                bail!(Usage(format!(
                    "--{name} is {value}, but the model {from} has {was}, and its weights are for that: with the same \
                     weights you can change --{free}, or --positions if they are not learned"
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
        Ok(self.asked.settings.config(base)?)
    }
}

/// The values of an axis, of which help and errors list the names.
pub fn named<A: Axis + Send + Sync>() -> impl TypedValueParser<Value = A> {
    PossibleValuesParser::new(A::ALL.iter().map(|value| value.name())).try_map(|name| parse_axis(&name))
}

/// What tensors and axes are called by.
#[derive(Args, Clone, Debug, Default)]
pub struct NotationOptions {
    /// Name tensors and axes as a document does: s0 ("Notations"), s1 (Zero-to-Hero), s2 (The Formulated GPT-2), s3
    /// (decoder-readme), llmc, transformerlens [default: limpid]
    #[arg(long, value_name = "NAME", value_parser = parse_axis::<Notation>)]
    pub notation: Option<Notation>,
}

/// How documents are read.
pub type DataOptions = Chosen<DocumentSettings>;

/// How documents are read and become tokens.
pub type TextOptions = Chosen<TextSettings>;

/// The machine, and what `--device auto` came to.
#[derive(Args, Clone, Debug)]
pub struct MachineOptions {
    #[command(flatten)]
    settings: Chosen<MachineSettings>,
    /// One copy measures, and all of them go by it.
    #[arg(skip)]
    measured: Arc<OnceLock<Device>>,
}

impl From<MachineSettings> for MachineOptions {
    fn from(settings: MachineSettings) -> MachineOptions {
        MachineOptions { settings: Chosen(settings), measured: Arc::default() }
    }
}

impl Deref for MachineOptions {
    type Target = MachineSettings;
    fn deref(&self) -> &MachineSettings {
        &self.settings
    }
}

impl MachineOptions {
    /// The device; `auto` is the cpu until [`MachineOptions::measure`] has found another.
    pub fn device(&self) -> Device {
        self.device.device.or(self.measured.get().copied()).unwrap_or(Device::Cpu)
    }

    /// As the library has it.
    pub fn machine(&self) -> Machine {
        Machine { device: self.device(), threads: self.threads(), ..self.settings.machine() }
    }

    /// Decides `--device auto` for a model that runs so, and tells it.
    pub fn measure(&self, config: &Config, mode: Mode) {
        if self.device.device.is_some() {
            return devices::tell(&self.machine(), None);
        }
        self.measured.get_or_init(|| {
            let (machine, why) = self.machine().faster(config, mode);
            devices::tell(&machine, Some(&why));
            machine.device
        });
    }

    /// Threads to use.
    pub fn threads(&self) -> usize {
        threads(self.settings.threads.0)
    }
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

/// A type that a KV cache may have.
#[cfg(feature = "serve")]
pub fn stored(s: &str) -> Result<limpid::numeric::element::Element, ConfigError> {
    let unknown = |_| limpid::config::unknown("type of a KV cache", s, &["f32", "bf16"]);
    Machine::cache_element(parse_axis(s)?).map_err(unknown)
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

/// The flags of `verb` that may mend an error of the library, as text to put behind the error. Settings of a model that
/// a format cannot express are flags of `train`.
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

/// The words with `_` read as `-` in flags' names.
///
/// # Errors
/// If one is not UTF-8 that must be.
pub fn spelled(typed: Vec<OsString>, cli: &Command) -> Result<Vec<OsString>> {
    let typed = numbers(typed.into_iter().map(dashes));
    let words: Vec<String> = typed.iter().map(|word| word.to_string_lossy().into()).collect();
    if let Some((verb, place)) = verb(&words, cli).filter(|_| !asks_for_help(&typed)) {
        is_unicode(&typed[place..], verb)?;
    }
    Ok(typed)
}

fn asks_for_help(typed: &[OsString]) -> bool {
    typed.iter().any(|word| word == "--help" || word == "-h")
}

/// A variable of the environment that stands for a flag.
pub struct Variable {
    id: Id,
    /// It.
    pub name: String,
    /// What is called so where clap refuses it: `--steps=many`.
    pub word: String,
}

/// The command with the environment's values for flags of the typed verb that no table of settings has, and these. A
/// variable does not stand beside a flag that was typed, if it is the same one or excludes it.
///
/// # Errors
/// If a value is not UTF-8 that must be, or a switch's is neither true nor false.
pub fn with_environment(cli: Command, typed: &[OsString]) -> Result<(Command, Vec<Variable>)> {
    let words: Vec<String> = typed.iter().map(|word| word.to_string_lossy().into()).collect();
    let Some((verb, place)) = verb(&words, &cli).filter(|_| !asks_for_help(typed)) else { return Ok((cli, vec![])) };
    name_unknown_variables(&cli);
    let lenient = verb.clone().ignore_errors(true).no_binary_name(true).try_get_matches_from(&typed[place..]);
    let is_typed = |arg: &&Arg| {
        let source = |matches: &ArgMatches| matches.value_source(arg.get_id().as_str());
        lenient.as_ref().is_ok_and(|matches| source(matches) == Some(ValueSource::CommandLine))
    };
    let given: Vec<&Arg> = verb.get_arguments().filter(is_typed).collect();
    let excludes = |a: &Arg, b: &Arg| verb.get_arg_conflicts_with(a).iter().any(|arg| arg.get_id() == b.get_id());
    let mut variables = vec![];
    for arg in verb.get_arguments().filter(|arg| !arg.is_hide_env_set() && !arg.is_hide_set()) {
        let found = all_names(arg).map(variable).find_map(|name| Some((std::env::var_os(&name)?, name)));
        let Some((value, name)) = found else { continue };
        if given.iter().any(|other| other.get_id() == arg.get_id() || excludes(arg, other) || excludes(other, arg)) {
            continue;
        }
        let value = match value.to_str() {
            None if takes_any(arg) => String::new(),
            None => {
                let value = value.display();
                bail!(Usage(format!("{name} is `{value}` in the environment, which is not UTF-8 and must be")));
            }
            Some(value) => value.to_string(),
        };
        if !arg.get_action().takes_values() {
            match value.as_str() {
                "true" | "1" => {}
                "false" | "0" | "" => continue,
                _ => bail!(Usage(format!("{name} is `{value}`: it is true or false"))),
            }
        }
        let word = format!("--{}={value}", arg.get_long().unwrap_or_default());
        variables.push(Variable { id: arg.get_id().clone(), name, word });
    }
    let set = |arg: Arg| match variables.iter().find(|variable| variable.id == *arg.get_id()) {
        Some(variable) => arg.env(&variable.name).hide_env(true),
        None => arg,
    };
    let inner = (place == 3).then(|| words[2].clone());
    let cli = cli.mut_subcommand(&words[1], |verb| match inner {
        Some(inner) => verb.mut_subcommand(inner, |verb| verb.mut_args(set)),
        None => verb.mut_args(set),
    });
    Ok((cli, variables))
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_a_machine_share_what_was_measured() {
        let device = "auto".parse().unwrap();
        let machine = MachineOptions::from(MachineSettings { device, ..MachineSettings::DEFAULT });
        assert_eq!(machine.device(), Device::Cpu, "nothing is measured yet");
        machine.clone().measured.set(Device::Reference).unwrap();
        assert_eq!(machine.device(), Device::Reference);
    }
}

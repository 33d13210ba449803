//! The command `limpid`: arguments, terminals and files. Each verb is one file in `verbs`; what they share is in
//! `options` (flags and configuration files), `training` (what is to be trained), `source` (text), `models`,
//! `tokenizers`, `machine` (memory), `signals` (who asks to stop), and `show` (what people see).
//!
//! Data goes to stdout, everything else to stderr. Exit 0: done, also if the reader of stdout closed it early; 1: an
//! error that the user can mend; 2: wrong usage; 130: stopped by Ctrl-C before the end.

mod dashboard;
mod devices;
mod find;
#[cfg(feature = "serve")]
mod glass;
mod live;
mod llmc;
#[cfg(feature = "serve")]
mod look;
mod machine;
mod models;
mod options;
mod outputs;
#[cfg(test)]
mod outputs_tests;
#[cfg(test)]
mod printed_tests;
mod race;
mod ranks;
#[cfg(test)]
mod settings_tests;
mod show;
mod signals;
mod source;
mod tokenizers;
mod training;
mod verbs;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory, FromArgMatches, Parser, Subcommand};
use limpid::settings::SettingError;
use limpid_base::words;
use options::{Usage, Variable};
use std::error::Error;
use std::ffi::OsString;
use std::path::Path;

/// A GPT that you can see through: train, run and inspect transformers.
#[derive(Parser)]
#[command(name = "limpid", version, infer_subcommands = false, propagate_version = true)]
#[command(after_help = "`limpid train` alone trains on a built-in corpus in 20 to 45 s on two cores.\nDetails of a \
                        verb: limpid VERB --help")]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

/// A verb; its line in the list stands here, and what `limpid VERB --help` says first with its arguments.
#[derive(Subcommand)]
#[allow(clippy::large_enum_variant)] // made once
enum Verb {
    #[command(about = "Train a model; with no flags, a small one on a built-in corpus")]
    Train(verbs::train::Args),
    #[command(about = "Generate text that continues a prompt")]
    Generate(verbs::generate::Args),
    #[command(about = "Talk to a model that was trained on conversations")]
    Chat(verbs::chat::Args),
    #[command(about = "Turn texts into embedding vectors")]
    Embed(verbs::embed::Args),
    #[command(about = "Serve a model over HTTP in OpenAI's protocol, with a page")]
    #[cfg(feature = "serve")]
    Serve(verbs::serve::Args),
    #[command(about = "Write a page that trains a GPT in the browser, then shows it")]
    #[cfg(feature = "serve")]
    Site(verbs::site::Args),
    #[command(about = "Recompute an answer from its receipt and compare every byte")]
    Replay(verbs::replay::Args),
    #[command(about = "Measure loss, perplexity and bits per byte of a text")]
    Eval(verbs::eval::Args),
    #[command(about = "Look inside a model as it runs: words, heads, every tensor")]
    Inspect(verbs::inspect::Args),
    #[command(about = "Find the activations that make the difference of two prompts")]
    Sweep(verbs::sweep::Args),
    #[command(about = "Find a steering vector between two kinds of prompts")]
    Direction(verbs::direction::Args),
    #[command(about = "Read a document about the transformer beside a live model")]
    #[cfg(feature = "study")]
    Walk(verbs::walk::Args),
    #[command(about = "Run a short experiment that tests a claim about transformers")]
    #[cfg(feature = "study")]
    Lesson(verbs::lesson::Args),
    #[command(about = "Count parameters, memory and FLOPs of a preset or a model")]
    Params(verbs::params::Args),
    #[command(about = "Write a page that shows runs side by side, with their curves")]
    Report(verbs::report::Args),
    #[command(about = "Show what a model did inside while it learned (train --probe)")]
    Timelapse(verbs::timelapse::Args),
    #[command(about = "Estimate memory, time and parameter groups of a training run")]
    Plan(verbs::plan::Args),
    #[command(about = "Check gradients numerically and overfit one batch")]
    Check(verbs::check::Args),
    #[command(about = "Encode text, decode ids, or train a tokenizer")]
    Tokenize(verbs::tokenize::Args),
    #[command(about = "Prepare and describe training data")]
    Data(verbs::data::Args),
    #[command(about = "Convert a model for another program and verify the result")]
    Convert(verbs::convert::Args),
    #[command(about = "Train to a given loss; verify others' records by training again")]
    Race(verbs::race::Args),
    #[command(about = "Measure training and decoding against the machine's limits")]
    Bench(verbs::bench::Args),
    #[command(about = "Show this machine's instruction sets, threads, memory, limits")]
    Doctor(verbs::doctor::Args),
    /// Print shell completions
    Completions(verbs::pages::Completions),
    /// Print the manual page, or write one for every verb into a folder
    Man(verbs::pages::Man),
}

/// The verbs as `limpid --help` lists them, by what people come for.
const GROUPS: [(&str, &[&str]); 4] = [
    ("First", &["train", "generate", "chat", "serve", "site", "report"]),
    ("Look inside", &["inspect", "sweep", "direction", "timelapse", "walk", "lesson", "params"]),
    ("Data", &["data", "tokenize", "convert"]),
    ("More", &["eval", "embed", "plan", "check", "replay", "race", "bench", "doctor", "completions", "man"]),
];

/// The command with its verbs in groups.
fn grouped(command: Command) -> Command {
    let heading = *command.get_styles().get_header();
    let mut list = String::new();
    for (group, names) in GROUPS {
        list += &format!("{heading}{group}:{heading:#}\n");
        for verb in names.iter().filter_map(|name| command.find_subcommand(name)) {
            let about = verb.get_about().map(ToString::to_string).unwrap_or_default();
            list += &format!("  {:<13}{about}\n", verb.get_name());
        }
        list.push('\n');
    }
    let options = format!("{heading}Options:{heading:#}\n{{options}}");
    command
        .help_template(format!("{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{list}{options}{{after-help}}"))
}

/// What `limpid inspect --help` lists besides its own flags: those of a model's hyperparameters.
const HELP_MODEL: &str = "--help-model";

/// The command as help shows it: without the flags of a model's hyperparameters, unless they are asked for.
fn with_own_flags(command: Command) -> Command {
    command.mut_subcommand("inspect", |verb| {
        verb.mut_args(|arg| {
            let of_model = arg.get_help_heading() == Some(options::MODEL) && arg.get_id() != "preset";
            if of_model { arg.hide(true) } else { arg }
        })
    })
}

/// What a value must be that clap could not take, where its own words are a parser's.
fn expected(error: &clap::Error) -> Option<String> {
    let source = error.source()?;
    if let Some(words) = limpid_base::words::expected(source) {
        return Some(words.into());
    }
    let text = source.to_string();
    let (least, most) = text.split_once(" is not in ")?.1.split_once("..")?;
    Some(match (most.strip_prefix('='), most.parse::<u64>()) {
        (Some(most), _) => format!("it must be from {least} to {most}"),
        (None, Ok(most)) => format!("it must be from {least} to {}", most - 1),
        (None, Err(_)) => format!("it must be at least {least}"),
    })
}

/// Whether what does not go together is the text that stands without a flag.
fn names_text(error: &clap::Error) -> bool {
    [ContextKind::InvalidArg, ContextKind::PriorArg].iter().any(|kind| match error.get(*kind) {
        Some(ContextValue::String(name)) => name == "[TEXT]",
        Some(ContextValue::Strings(names)) => names.iter().any(|name| name == "[TEXT]"),
        _ => false,
    })
}

/// The flag that is given twice, if that is what is wrong: none of two values may be lost.
fn given_twice(error: &clap::Error) -> Option<String> {
    let named = |kind| match error.get(kind) {
        Some(ContextValue::String(name)) => Some(name.as_str()),
        _ => None,
    };
    let flag = named(ContextKind::InvalidArg)?;
    if error.kind() != ErrorKind::ArgumentConflict || named(ContextKind::PriorArg)? != flag {
        return None;
    }
    let name = flag.split([' ', '=', '[']).next()?;
    let tip = match name {
        "--data" => {
            ": `limpid data prepare X Y --out DIR` makes one text of several, and a pattern such as --data \
             'texts/*.txt' names several files"
        }
        _ => ": leave one of the two out",
    };
    Some(format!("{name} is given twice, and is one thing{tip}"))
}

/// What clap refuses, with tips as everywhere in limpid: near names only, and what else may have been meant.
fn refused(mut error: clap::Error, command: &Command, typed: &[String], variables: &[Variable]) -> anyhow::Error {
    // what was not typed has the name of its variable
    if let (Some(ContextValue::String(flag)), Some(ContextValue::String(value))) =
        (error.get(ContextKind::InvalidArg), error.get(ContextKind::InvalidValue))
    {
        let name = flag.split([' ', '=']).next().unwrap_or_default();
        if let Some(variable) = variables.iter().find(|variable| variable.word == format!("{name}={value}")) {
            error.insert(ContextKind::InvalidArg, ContextValue::String(variable.name.clone()));
        }
    }
    if let (Some(ContextValue::String(flag)), Some(ContextValue::String(value)), Some(words)) =
        (error.get(ContextKind::InvalidArg), error.get(ContextKind::InvalidValue), expected(&error))
    {
        return Usage(format!("invalid value '{value}' for '{flag}': {words}")).into();
    }
    if let Some(twice) = given_twice(&error) {
        return Usage(twice).into();
    }
    let verb = options::verb(typed, command).map_or(command, |(verb, _)| verb);
    let one_text = "--data takes one name; quotes keep a pattern from the shell: --data '*.txt'";
    if error.kind() == ErrorKind::ArgumentConflict && names_text(&error) {
        error.remove(ContextKind::Usage);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![one_text.into()]));
        return error.into();
    }
    let (given, suggested, known): (_, _, Vec<String>) = match error.kind() {
        ErrorKind::UnknownArgument => (
            ContextKind::InvalidArg,
            ContextKind::SuggestedArg,
            options::names(verb).map(|name| format!("--{name}")).collect(),
        ),
        ErrorKind::InvalidSubcommand => {
            let verbs = verb.get_subcommands().map(|verb| verb.get_name().to_string());
            (ContextKind::InvalidSubcommand, ContextKind::SuggestedSubcommand, verbs.collect())
        }
        _ => return error.into(),
    };
    let Some(ContextValue::String(word)) = error.get(given).cloned() else { return error.into() };
    error.remove(suggested);
    error.remove(ContextKind::Suggested);
    error.remove(ContextKind::Usage);
    let near = limpid_base::nearest::nearest(&word, known.iter().map(String::as_str));
    let takes = |flag: &str| options::names(verb).any(|name| name == flag);
    let file = !word.starts_with('-') && Path::new(&word).exists();
    let tip: String = if file && takes("data") {
        one_text.into()
    } else if ["--port", "--host"].contains(&word.as_str()) && takes("serve") {
        "--serve takes both: --serve 127.0.0.1:8080".into()
    } else if error.kind() == ErrorKind::UnknownArgument && !word.starts_with('-') && takes("prompt") {
        format!("a text is given with --prompt: {}", words::flag("prompt", &word))
    } else {
        near.into_iter().for_each(|near| drop(error.insert(suggested, ContextValue::String(near.into()))));
        return error.into();
    };
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    error.into()
}

/// Bytes of the stack that a command runs on.
const STACK: usize = 8 << 20;

/// Bytes of addresses that a thread takes for its stack and its heap, which the C library makes of 64 MiB.
const THREAD: u64 = STACK as u64 + (72 << 20);

/// Runs the command: on a thread of its own where the first one's stack may be too small for it (`ulimit -s`), or
/// nothing says how large it is. Elsewhere not, because a thread has a heap of its own, whose addresses `ulimit -v`
/// counts.
///
/// `typed` are its words, the program's name first. Returns the exit code.
pub fn run(typed: Vec<OsString>) -> u8 {
    // a limit on the size of files (ulimit -f) is then an error of a write, as a full disk is
    #[cfg(unix)]
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, std::sync::Arc::default());
    if machine::stack().is_some_and(|stack| stack >= STACK as u64) {
        return command(typed);
    }
    let limits = limpid::memory::limits();
    if let Some(limit) = limits.iter().find(|limit| limit.of_addresses && limit.left < THREAD) {
        let (needed, left) = (show::bytes(THREAD), show::bytes(limit.left));
        show::say(format_args!(
            "error: with so small a stack (ulimit -s) a command takes {needed} of addresses, and {left} are {}: allow \
             more of either",
            limit.said
        ));
        return 1;
    }
    match std::thread::Builder::new().name("main".into()).stack_size(STACK).spawn(|| command(typed)) {
        Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
        Err(error) => {
            let stack = show::bytes(STACK as u64);
            show::say(format_args!("error: the system refuses a thread with {stack} of stack: {error}"));
            1
        }
    }
}

fn command(mut typed: Vec<OsString>) -> u8 {
    // a panic that the library turns into an error is not printed as well
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !limpid_base::contain::is_contained() {
            print(panic);
        }
    }));
    let mut command = grouped(Cli::command());
    match typed.iter_mut().find(|word| *word == HELP_MODEL) {
        Some(word) => *word = "--help".into(),
        None => command = with_own_flags(command),
    }
    let words: Vec<String> = typed.iter().map(|word| word.to_string_lossy().into()).collect();
    let done = options::spelled(typed, &command).and_then(|typed| {
        let (given, variables) = options::with_environment(command.clone(), &typed)?;
        let refused = |error| refused(error, &command, &words, &variables);
        let matches = given.try_get_matches_from(typed).map_err(refused)?;
        let cli = Cli::from_arg_matches(&matches).map_err(refused)?;
        outputs::check(&command, &matches)?;
        let many = matches!(cli.verb, Verb::Train(_) | Verb::Plan(_) | Verb::Doctor(_));
        if !many && !matches!(cli.verb, Verb::Completions(_) | Verb::Man(_)) {
            ranks::alone(matches.subcommand_name().unwrap_or_default())?;
        }
        match cli.verb {
            Verb::Train(args) => verbs::train::run(args),
            Verb::Generate(args) => verbs::generate::run(args),
            Verb::Chat(args) => verbs::chat::run(args),
            Verb::Embed(args) => verbs::embed::run(args),
            #[cfg(feature = "serve")]
            Verb::Serve(args) => verbs::serve::run(args),
            #[cfg(feature = "serve")]
            Verb::Site(args) => verbs::site::run(args),
            Verb::Replay(args) => verbs::replay::run(args),
            Verb::Eval(args) => verbs::eval::run(args),
            Verb::Inspect(args) => verbs::inspect::run(args),
            Verb::Sweep(args) => verbs::sweep::run(args),
            Verb::Direction(args) => verbs::direction::run(args),
            #[cfg(feature = "study")]
            Verb::Walk(args) => verbs::walk::run(args),
            #[cfg(feature = "study")]
            Verb::Lesson(args) => verbs::lesson::run(args),
            Verb::Params(args) => verbs::params::run(args),
            Verb::Report(args) => verbs::report::run(args),
            Verb::Timelapse(args) => verbs::timelapse::run(args),
            Verb::Plan(args) => verbs::plan::run(args),
            Verb::Check(args) => verbs::check::run(args),
            Verb::Tokenize(args) => verbs::tokenize::run(args),
            Verb::Data(args) => verbs::data::run(args),
            Verb::Convert(args) => verbs::convert::run(args),
            Verb::Race(args) => verbs::race::run(args),
            Verb::Bench(args) => verbs::bench::run(args),
            Verb::Doctor(args) => verbs::doctor::run(args),
            Verb::Completions(args) => verbs::pages::completions(args, Cli::command()),
            Verb::Man(args) => verbs::pages::man(args, Cli::command()),
        }
    });
    match done {
        Ok(()) => 0,
        Err(error) if show::is_closed_pipe(&error) => 0,
        Err(error) => {
            let code = match error.downcast_ref::<clap::Error>() {
                Some(usage) if !usage.use_stderr() => return help(usage),
                Some(usage) => {
                    show::say(usage.render().to_string().trim_end());
                    return 2;
                }
                None if is_usage(&error) => 2,
                None if error.is::<options::Interrupted>() => 130,
                None => 1,
            };
            let before = if error.is::<options::Interrupted>() { "" } else { "error: " };
            let verb = options::verb(&words, &command).map_or(&command, |(verb, _)| verb);
            show::prose(format_args!("{before}{}{}", show::causes(&error), options::mending(&error, verb)));
            code
        }
    }
}

/// Whether the words or the settings are wrong, not what they name.
fn is_usage(error: &anyhow::Error) -> bool {
    let of_settings = |error: &limpid::Error| matches!(error, limpid::Error::Settings(_));
    error.is::<Usage>() || error.is::<SettingError>() || error.downcast_ref().is_some_and(of_settings)
}

/// Help and version are data: they go to stdout, coloured where that is a terminal.
fn help(asked: &clap::Error) -> u8 {
    match show::help(&asked.render()) {
        Err(error) if !show::is_closed_pipe(&error) => {
            show::say(format_args!("error: {error:#}"));
            1
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use limpid::checkpoint::CheckpointError;
    use limpid::data::CorpusError;
    use limpid::tokenizer::TokenizerError;
    use limpid::train::{PreflightError, TrainError};
    use limpid::{Device, Error};

    #[test]
    fn the_arguments_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_verb_is_in_one_group() {
        let command = Cli::command();
        let mut all: Vec<&str> = command.get_subcommands().map(Command::get_name).collect();
        let mut listed: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        let help = grouped(command.clone()).render_help().to_string();
        for line in help.lines() {
            assert!(line.len() <= 80, "{line}");
        }
        let of_features = |name: &&str| all.contains(name) || !["serve", "site", "walk", "lesson"].contains(name);
        listed.retain(of_features);
        all.sort_unstable();
        listed.sort_unstable();
        assert_eq!(all, listed);
    }

    fn verbs(command: &Command) -> Vec<&Command> {
        if command.has_subcommands() { command.get_subcommands().flat_map(verbs).collect() } else { vec![command] }
    }

    /// An error of the library that says which settings would mend it is printed with flags of the verb that was typed.
    #[test]
    fn advice_names_flags_that_the_verb_has() {
        let path = || Path::new("m").to_path_buf();
        let settings = || vec!["norm rms".to_string(), "tied_head true".into()];
        let errors: Vec<anyhow::Error> = vec![
            CheckpointError::Damaged { path: path(), what: "its checksum".into() }.into(),
            CheckpointError::Inexpressible { form: "gguf".into(), what: "norm".into(), settings: settings() }.into(),
            CorpusError::Busy(path()).into(),
            TokenizerError::NoSplit.into(),
            Error::Memory { training: false, device: Device::Reference, needed: 2, left: 1, said: "left".into() }
                .into(),
            TrainError::Spike { step: 3, loss: 9.0, usual: 3.0, deviations: 7.0 }.into(),
            TrainError::from(PreflightError::TooLarge { spread: 4.0, most: 1.0 }).into(),
            TrainError::Busy { path: path() }.into(),
        ];
        let command = Cli::command();
        let mut named = 0;
        let flags = |text: &str| -> Vec<String> {
            let words = text.split([' ', ',', ';', '(', ')', '`']).filter_map(|word| word.strip_prefix("--"));
            words.map(String::from).collect()
        };
        for error in &errors {
            for verb in verbs(&command) {
                let said = options::mending(error, verb);
                let train = said.starts_with(" (`limpid train --");
                let of = if train { command.find_subcommand("train").unwrap() } else { verb };
                for flag in flags(&said) {
                    let known = options::names(of).any(|name| name == flag);
                    assert!(known, "{error}: {} takes no --{flag}", verb.get_name());
                    named += 1;
                }
            }
        }
        assert!(named > 20, "{named}");
        let at = |verb: &str| options::mending(&errors[0], command.find_subcommand(verb).unwrap());
        assert_eq!((at("generate"), at("params")), (" (--no-verify)".into(), String::new()));
    }

    /// Of a flag that is given twice both values are kept, in a list, or both are refused: no verb loses one in
    /// silence.
    #[test]
    fn no_flag_loses_a_value() {
        #[rustfmt::skip]
        const LISTS: [&str; 26] = [
            "adapter", "add_special_tokens", "against", "allow_host", "cors_origin", "diagram", "freeze", "head",
            "layers", "lora_targets", "negative", "plot", "plot_out", "positive", "prompt", "segments", "special",
            "stop", "tensor", "test_negative", "test_positive", "to_head", "tokens", "train_only", "unit", "via",
        ];
        #[rustfmt::skip]
        const VALUES: [&str; 21] = [
            "1", "0.5", "64", "2G", "text", "true", "llmc", "f16", "mean", "s0", "nano", "portable", "hf", "gpt2",
            "stop", "crop", "slide", "1,2", "http://127.0.0.1:1", "int8", "L0U0",
        ];
        let twice = |command: &Command, flag: &str| {
            let words = [flag, flag];
            command
                .clone()
                .no_binary_name(true)
                .try_get_matches_from(words)
                .map_err(|error| (given_twice(&error), error.kind()))
        };
        let mut cli = Cli::command();
        cli.build();
        let (mut lists, mut once) = (std::collections::BTreeSet::new(), 0);
        for verb in verbs(&cli) {
            for arg in verb
                .get_arguments()
                .filter(|arg| arg.get_long().is_some_and(|long| !["help", "version"].contains(&long)))
            {
                let (id, long) = (arg.get_id().as_str(), arg.get_long().unwrap());
                if matches!(arg.get_action(), clap::ArgAction::Append) {
                    lists.insert(id.to_string());
                    continue;
                }
                let own = arg.get_possible_values().into_iter().map(|value| value.get_name().to_string());
                let usual = arg.get_default_values().iter().map(|value| value.to_string_lossy().into_owned());
                let values = own.chain(usual).chain(VALUES.map(String::from));
                let mut flags = values.map(|value| format!("--{long}={value}")).chain([format!("--{long}")]);
                let refused = flags.any(|flag| {
                    matches!(twice(verb, &flag),
                    Err((Some(said), _)) if said.starts_with(&format!("--{long} is given twice")))
                });
                assert!(refused, "{} --{long} twice", verb.get_name());
                once += 1;
            }
        }
        assert_eq!(lists, LISTS.map(String::from).into(), "a flag that may be given several times is a list");
        assert!(once > 100, "{once}");
    }

    #[test]
    fn every_verb_takes_json() {
        // but those whose output is a text; `race` writes JSON as it is
        let texts = ["stories", "completions", "man", "table", "verify"];
        for verb in verbs(&Cli::command()).into_iter().filter(|verb| !texts.contains(&verb.get_name())) {
            assert!(options::names(verb).any(|name| name == "json"), "{}", verb.get_name());
        }
    }
}

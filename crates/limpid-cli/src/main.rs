//! The binary `limpid`: arguments, terminals and files. Each verb is one file in `verbs`; what they share is in
//! `options` (flags and configuration files), `source` (text), and `show` (what people see).
//!
//! Data goes to stdout, everything else to stderr. Exit 0: done; 1: something the user can mend; 2: wrong usage; 130: stopped
//! by Ctrl-C before the end.

mod chat;
mod dashboard;
mod options;
mod show;
mod source;
mod verbs;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use std::process::ExitCode;

/// A GPT that you can see through: train, run and inspect transformers.
#[derive(Parser)]
#[command(name = "limpid", version, args_override_self = true, infer_subcommands = false, propagate_version = true)]
#[command(
    after_help = "`limpid train` alone trains on a built-in corpus in about half a minute.\nDetails of a verb: limpid VERB --help"
)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
#[allow(clippy::large_enum_variant)] // made once
enum Verb {
    /// Train a model; with no flags, a small one on a built-in corpus
    Train(verbs::train::Args),
    /// Continue a prompt
    Generate(verbs::generate::Args),
    /// Loss, perplexity and bits per byte of a text
    Eval(verbs::eval::Args),
    /// Show a model at work: every tensor by name
    Inspect(verbs::inspect::Args),
    /// Parameters, memory and FLOPs of a preset or a model
    Params(verbs::params::Args),
    /// Show what runs came to: their curves as a page, side by side
    Report(verbs::report::Args),
    /// Say what `train` with the same flags would do
    Plan(verbs::plan::Args),
    /// Prove that a configuration can learn
    Check(verbs::check::Args),
    /// Text to ids and back
    Tokenize(verbs::tokenize::Args),
    /// Prepare and describe what models learn from
    Data(verbs::data::Args),
    /// Rewrite a model for another program, and prove that it is the same
    Convert(verbs::convert::Args),
    /// Measure training, prefill and decoding against the machine's roofs
    Bench(verbs::bench::Args),
    /// What limpid sees of this machine and will use
    Doctor(verbs::doctor::Args),
}

fn main() -> ExitCode {
    // what the library turns into an error need not be printed besides
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !limpid::contain::is_contained() {
            print(panic);
        }
    }));
    let done = options::arguments(std::env::args_os().collect(), &Cli::command()).and_then(|arguments| {
        let matches = Cli::command().try_get_matches_from(arguments).unwrap_or_else(|e| e.exit());
        let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|e| e.exit());
        match cli.verb {
            Verb::Train(args) => verbs::train::run(args),
            Verb::Generate(args) => verbs::generate::run(args),
            Verb::Eval(args) => verbs::eval::run(args),
            Verb::Inspect(args) => verbs::inspect::run(args),
            Verb::Params(args) => verbs::params::run(args),
            Verb::Report(args) => verbs::report::run(args),
            Verb::Plan(args) => verbs::plan::run(args),
            Verb::Check(args) => verbs::check::run(args),
            Verb::Tokenize(args) => verbs::tokenize::run(args),
            Verb::Data(args) => verbs::data::run(args),
            Verb::Convert(args) => verbs::convert::run(args),
            Verb::Bench(args) => verbs::bench::run(args),
            Verb::Doctor(args) => verbs::doctor::run(args),
        }
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if show::is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}{error:#}", if error.is::<options::Interrupted>() { "" } else { "error: " });
            ExitCode::from(match () {
                () if error.is::<options::Usage>() => 2,
                () if error.is::<options::Interrupted>() => 130,
                () => 1,
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        Cli::command().debug_assert();
    }
}

//! Commands that messages, reports and help print are commands: each is collected from the sources of all crates and
//! read as if it were typed. tests/command/printed.rs runs them, and walks.rs those of walks.

#[path = "../tests/common/printed.rs"]
mod printed;

use clap::CommandFactory;
use clap::error::ErrorKind;

/// A command with a word for each value that a message fills in.
fn filled(command: &str) -> String {
    let (mut filled, mut depth) = (String::new(), 0);
    for c in command.chars() {
        match c {
            '{' => depth += 1,
            '}' => {
                depth -= 1;
                filled.push('x');
            }
            c if depth == 0 => filled.push(c),
            _ => {}
        }
    }
    filled
}

#[test]
fn every_printed_command_is_one() {
    let command = crate::Cli::command();
    let (mut read, mut wrong) = (0, vec![]);
    for (path, printed) in printed::commands() {
        let printed = filled(&printed);
        let words: Vec<&str> =
            printed.split_whitespace().map(|word| word.trim_matches(['"', '\'', ',', '.', ':', '[', ']'])).collect();
        // a sentence that begins with the program, or a verb that is filled in
        if words.get(1).is_none_or(|verb| command.find_subcommand(verb).is_none()) {
            let a_verb = words.get(1).is_some_and(|verb| !verb.starts_with(['x', '-', 'V', 'V']));
            if a_verb && !printed.contains(" is ") && words.len() < 3 {
                wrong.push(format!("{path}: {printed}: no verb"));
            }
            continue;
        }
        read += 1;
        let parsed = command.clone().try_get_matches_from(&words);
        let kind = parsed.err().map(|error| error.kind());
        if let Some(kind @ (ErrorKind::InvalidSubcommand | ErrorKind::ArgumentConflict)) = kind {
            wrong.push(format!("{path}: {printed}: {kind:?}"));
        }
        // what follows a flag that is named alone is not its value
        let verb = command.find_subcommand(words[1]).unwrap();
        let own = words.get(2).and_then(|word| verb.find_subcommand(word)).unwrap_or(verb);
        for flag in words.iter().filter_map(|word| word.strip_prefix("--")) {
            let flag = flag.split('=').next().unwrap();
            let known = |arg: &clap::Arg| {
                let aliases = arg.get_all_aliases().unwrap_or_default();
                arg.get_long() == Some(flag) || aliases.contains(&flag)
            };
            let everywhere = ["help", "version", "help-model", "help-all"].contains(&flag);
            if !flag.is_empty()
                && !flag.contains('x')
                && !everywhere
                && !own.get_arguments().chain(command.get_arguments()).any(known)
            {
                wrong.push(format!("{path}: {printed}: no flag --{flag}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(read > 20, "{read} commands were found");
}

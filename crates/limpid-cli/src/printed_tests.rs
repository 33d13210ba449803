//! Commands that messages, reports and help print are commands: each is collected from the sources of all crates and read as if it were typed.
//! Walks' commands run, in tests/command/walks.rs.

use clap::CommandFactory;
use clap::error::ErrorKind;
use std::fs;
use std::path::{Path, PathBuf};

fn sources(folder: &Path, to: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            sources(&entry, to);
        } else if entry.extension().is_some_and(|end| end == "rs") && !entry.display().to_string().contains("tests") {
            to.push(entry);
        }
    }
}

/// A source without comments and tests, lines of a text that go on in the next joined.
fn text(path: &Path) -> String {
    let all = fs::read_to_string(path).unwrap();
    let code = all.split("#[cfg(test)]\nmod tests").next().unwrap();
    let mut joined = String::new();
    for line in code.lines().filter(|line| !line.trim_start().starts_with("//")) {
        match line.strip_suffix('\\') {
            Some(begun) if joined.ends_with('\n') || joined.is_empty() => joined += begun,
            Some(begun) => joined += begun.trim_start(),
            None if joined.ends_with('\n') || joined.is_empty() => joined += &format!("{line}\n"),
            None => joined += &format!("{}\n", line.trim_start()),
        }
    }
    joined
}

/// The commands in backquotes or in strings of their own, with a word for each value that a message fills in.
fn commands(text: &str) -> Vec<String> {
    let starts = text.match_indices("limpid ").filter(|(at, _)| text[..*at].ends_with(['`', '"']));
    let one = |(at, _): (usize, &str)| {
        let quote = text[..at].chars().next_back().unwrap();
        let line = text[at..].lines().next()?;
        let end = if quote == '`' {
            line.find('`')?
        } else {
            line.match_indices('"').find(|(at, _)| !line[..*at].ends_with('\\'))?.0
        };
        let (mut filled, mut depth) = (String::new(), 0);
        for c in line[..end].chars() {
            match c {
                '{' => depth += 1,
                '}' => {
                    depth -= 1;
                    filled.push('x');
                }
                c if depth == 0 && c != '\\' => filled.push(c),
                _ => {}
            }
        }
        Some(filled)
    };
    starts.filter_map(one).collect()
}

#[test]
fn every_printed_command_is_one() {
    let mut files = vec![];
    for folder in fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).unwrap() {
        let folder = folder.unwrap().path().join("src");
        if folder.is_dir() {
            sources(&folder, &mut files);
        }
    }
    let command = crate::Cli::command();
    let (mut read, mut wrong) = (0, vec![]);
    for (path, printed) in files.iter().flat_map(|path| commands(&text(path)).into_iter().map(move |one| (path, one))) {
        let words: Vec<&str> =
            printed.split_whitespace().map(|word| word.trim_matches(['"', '\'', ',', '.', ':', '[', ']'])).collect();
        // a sentence that begins with the program, or a verb that is filled in
        if words.get(1).is_none_or(|verb| command.find_subcommand(verb).is_none()) {
            let a_verb = words.get(1).is_some_and(|verb| !verb.starts_with(['x', '-', 'V', 'V']));
            if a_verb && !printed.contains(" is ") && words.len() < 3 {
                wrong.push(format!("{}: {printed}: no verb", path.display()));
            }
            continue;
        }
        read += 1;
        let parsed = command.clone().try_get_matches_from(&words);
        let kind = parsed.err().map(|error| error.kind());
        if let Some(kind @ (ErrorKind::InvalidSubcommand | ErrorKind::ArgumentConflict)) = kind {
            wrong.push(format!("{}: {printed}: {kind:?}", path.display()));
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
                wrong.push(format!("{}: {printed}: no flag --{flag}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(read > 20, "{read} commands were found");
}

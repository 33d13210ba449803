//! The commands in the texts of all crates' sources, as they stand there.

use std::fs;
use std::path::{Path, PathBuf};

/// A file, from the folder of the crates, and a command in it, with `{}` where a message fills something in.
pub fn commands() -> Vec<(String, String)> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let (mut files, mut verbs) = (vec![], vec!["completions".into(), "man".into(), "{verb}".into()]);
    for folder in fs::read_dir(&crates).unwrap().map(|folder| folder.unwrap().path().join("src")) {
        sources(&folder, &mut files);
    }
    sources(&crates.join("limpid-cli/src/verbs"), &mut verbs);
    let verbs: Vec<&str> = verbs.iter().filter_map(|file: &PathBuf| file.file_stem()?.to_str()).collect();
    files.sort();
    let name = |file: &Path| file.strip_prefix(&crates).unwrap().display().to_string();
    files.iter().flat_map(|file| found(&text(file), &verbs).into_iter().map(|one| (name(file), one))).collect()
}

fn sources(folder: &Path, to: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            sources(&entry, to);
        } else if entry.extension().is_some_and(|end| end == "rs") && !entry.to_string_lossy().ends_with("tests.rs") {
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
        let begins = joined.is_empty() || joined.ends_with('\n');
        let line = if begins { line } else { line.trim_start() };
        match line.strip_suffix('\\') {
            Some(begun) => joined += begun,
            None => joined.extend([line, "\n"]),
        }
    }
    joined
}

/// What stands in backquotes or is a whole string, and what a verb follows, up to the sentence around it.
fn found(text: &str, verbs: &[&str]) -> Vec<String> {
    let one = |(at, name): (usize, &str)| {
        let rest = &text[at..];
        let ends = |after: &str| !after.starts_with(|c: char| c.is_alphanumeric());
        let verb = verbs.iter().any(|verb| rest[name.len()..].strip_prefix(verb).is_some_and(ends));
        (verb || name == "limpid " && text[..at].ends_with('`')).then_some(())?;
        let end = ["`", ")", ";", "\"", "<", "\\n", "\n", "  "].iter().filter_map(|end| rest.find(end)).min()?;
        Some(rest[..end].to_string())
    };
    let named = ["limpid ", "{program} ", "{} "].iter().flat_map(|name| text.match_indices(name));
    let mut named: Vec<(usize, &str)> = named.collect();
    named.sort_unstable();
    named.into_iter().filter_map(one).collect()
}

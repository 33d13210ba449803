//! Rust as text, counted and cut in one way: `cargo xtask size` and the repository's own tests
//! (tests/repository/tidy.rs of `limpid`, which takes this file by its path).

use std::fs;
use std::path::{Path, PathBuf};

/// Every Rust file below a folder, in the order of their paths.
pub fn files(folder: &Path) -> Vec<PathBuf> {
    let mut all = vec![];
    for path in fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            all.extend(files(&path));
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            all.push(path);
        }
    }
    all.sort();
    all
}

/// Whether a file of this place in the repository holds tests and nothing else: `tests.rs`, `any_tests.rs`, and what is
/// in a folder `tests`.
pub fn is_test(file: &Path) -> bool {
    let in_folder = file.iter().any(|part| part == "tests");
    in_folder
        || file
            .file_stem()
            .and_then(|stem| stem.to_str())
            .is_some_and(|stem| stem == "tests" || stem.ends_with("_tests"))
}

/// A file without its tests, whose lines are left blank: every item under `#[cfg(test)]`, wherever it stands.
pub fn without_tests(text: &str) -> String {
    let (mut kept, mut lines) = (String::new(), text.lines());
    while let Some(line) = lines.next() {
        if line.trim() != "#[cfg(test)]" {
            kept += &format!("{line}\n");
            continue;
        }
        kept.push('\n');
        // the item ends in its first line or with a brace as far in as it began
        let end = line.replace("#[cfg(test)]", "}");
        let begins = lines.by_ref().inspect(|_| kept.push('\n')).find(|line| !line.trim_start().starts_with("#["));
        if begins.is_some_and(|line| line.ends_with('{')) {
            let inside = lines.by_ref().take_while(|line| *line != end).count();
            kept += &"\n".repeat(inside + 1);
        }
    }
    kept
}

/// Lines that are neither blank nor a comment.
pub fn lines_of_code(text: &str) -> usize {
    text.lines().filter(|line| !line.trim().is_empty() && !line.trim_start().starts_with("//")).count()
}

//! Chores of the project: `cargo xtask ci` (what the gate runs), `cargo xtask size` (lines of code by module).

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let done = match std::env::args().nth(1).as_deref() {
        Some("ci") => ci(),
        Some("size") => size(),
        other => {
            eprintln!("usage: cargo xtask ci | size{}", other.map(|o| format!(" (not `{o}`)")).unwrap_or_default());
            false
        }
    };
    if done { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace").to_path_buf()
}

/// Formatting, lints, documentation, tests: stops at the first that fails.
fn ci() -> bool {
    let steps: [(&[&str], &str); 4] = [
        (&["fmt", "--all", "--check"], ""),
        (&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"], ""),
        (&["doc", "--no-deps", "--workspace"], "-D warnings"),
        (&["test"], ""),
    ];
    steps.iter().all(|(arguments, rustdoc)| {
        println!("== cargo {}", arguments.join(" "));
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(*arguments).current_dir(root());
        if !rustdoc.is_empty() {
            cargo.env("RUSTDOCFLAGS", rustdoc);
        }
        cargo.status().is_ok_and(|status| status.success())
    })
}

/// Lines of code of the library, tests, comments and blanks left out.
fn size() -> bool {
    let mut modules: Vec<(String, usize)> = vec![];
    let source = root().join("crates/limpid/src");
    visit(&source, &mut |path, text| {
        let module = path.strip_prefix(&source).expect("below src").components().next().expect("a name");
        let module = module.as_os_str().to_string_lossy().replace(".rs", "");
        let code = text.split("#[cfg(test)]").next().unwrap_or("");
        let lines = code.lines().filter(|l| !l.trim().is_empty() && !l.trim_start().starts_with("//")).count();
        match modules.iter_mut().find(|(name, _)| *name == module) {
            Some((_, n)) => *n += lines,
            None => modules.push((module, lines)),
        }
    });
    modules.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    modules.iter().for_each(|(name, n)| println!("{n:>6}  {name}"));
    println!("{:>6}  in all", modules.iter().map(|(_, n)| n).sum::<usize>());
    true
}

fn visit(folder: &Path, with: &mut dyn FnMut(&Path, &str)) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for path in entries.flatten().map(|e| e.path()) {
        if path.is_dir() {
            visit(&path, with);
        } else if path.extension().is_some_and(|e| e == "rs") && !path.ends_with("tests.rs") {
            with(&path, &std::fs::read_to_string(&path).unwrap_or_default());
        }
    }
}

//! Each file can be read after those that it names: no files of a crate name each other in a circle. A file may name
//! the ones that it is a part of (`a/b.rs` names `a/mod.rs` and `lib.rs`), and a file that has parts names them.

use crate::source::{is_test, without_tests};
use crate::tidy::{libraries, paths, sources_of};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The modules of a crate by their paths (`["kernels", "norm"]`, none for lib.rs), and the text of each.
type Modules = BTreeMap<Vec<String>, String>;

/// What a module re-exports, with the paths in front of its names.
fn exports(text: &str) -> impl Iterator<Item = Vec<String>> {
    let starts = text.match_indices("pub").filter_map(|(at, _)| {
        let after = text[at + 3..].trim_start_matches(|c: char| c.is_alphanumeric() || "()".contains(c));
        after.strip_prefix(" use ")
    });
    starts.flat_map(paths)
}

/// The module that a path from `from` leads to, through re-exports; none if it leads out of the crate.
fn target(modules: &Modules, from: &[String], path: &[String], depth: usize) -> Option<Vec<String>> {
    let (first, mut rest) = path.split_first()?;
    let mut module = match first.as_str() {
        "crate" => vec![],
        "self" => from.to_vec(),
        "super" => from[..from.len().saturating_sub(1)].to_vec(),
        child => [from, &[child.to_string()]].concat(),
    };
    while rest.first().is_some_and(|part| part == "super") {
        module.pop();
        rest = &rest[1..];
    }
    while let Some((part, others)) = rest.split_first() {
        module.push(part.clone());
        if !modules.contains_key(&module) {
            module.pop();
            break;
        }
        rest = others;
    }
    let text = modules.get(&module)?;
    let leads = |export: &Vec<String>| export.last() == rest.first() && depth > 0;
    let shown = rest.first().and_then(|_| exports(text).find(leads));
    shown.and_then(|export| target(modules, &module, &export, depth - 1)).or(Some(module))
}

/// The modules that each module names, but those that it is a part of.
fn arrows(modules: &Modules) -> BTreeMap<Vec<String>, BTreeSet<Vec<String>>> {
    let named = |(module, text): (&Vec<String>, &String)| {
        let code: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
        let code = code.join("\n");
        let starts = code
            .match_indices("crate::")
            .chain(code.match_indices("super::"))
            .filter(|(at, _)| !code[..*at].ends_with(|c: char| c.is_alphanumeric() || matches!(c, '_' | '$' | ':')));
        let named = starts.flat_map(|(at, _)| paths(&code[at..]));
        let mut to: BTreeSet<Vec<String>> = named.filter_map(|path| target(modules, module, &path, 4)).collect();
        to.extend(modules.keys().filter(|part| part.len() == module.len() + 1 && part.starts_with(module)).cloned());
        to.retain(|to| !module.starts_with(to));
        (module.clone(), to)
    };
    modules.iter().map(named).collect()
}

/// The circles, each with the names of its modules.
fn circles(modules: &Modules) -> Vec<String> {
    let arrows = arrows(modules);
    let reached = |from: &Vec<String>| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(module) = next.pop() {
            next.extend(arrows[module].iter().filter(|to| seen.insert((*to).clone())));
        }
        seen
    };
    let all: BTreeMap<&Vec<String>, BTreeSet<Vec<String>>> = arrows.keys().map(|from| (from, reached(from))).collect();
    let circle = |module: &Vec<String>| -> String {
        let others = all[module].iter().filter(|other| all[other].contains(module));
        others.map(|other| other.join("::")).collect::<Vec<_>>().join(", ")
    };
    let found: BTreeSet<String> = all.keys().map(|module| circle(module)).filter(|circle| !circle.is_empty()).collect();
    found.into_iter().collect()
}

#[test]
fn files_are_read_after_those_that_they_name() {
    let mut found = vec![];
    for name in libraries().into_iter().chain(["limpid-cli".into(), "limpid-python".into()]) {
        let code = sources_of(&name).into_iter().filter(|(place, _)| !is_test(Path::new(place)));
        let modules = code.map(|(place, text)| {
            let place = place[name.len() + 1..].trim_end_matches(".rs").trim_end_matches("/mod");
            let path = place.split('/').filter(|part| *part != "lib").map(String::from).collect();
            (path, without_tests(&text))
        });
        found.extend(circles(&modules.collect()).into_iter().map(|circle| format!("{name}: {circle}")));
    }
    assert_eq!(found, [] as [String; 0], "files that name each other");
}

#[test]
fn a_circle_is_found() {
    let found = |last: &str| {
        let texts =
            [("", "pub use a::{A, inner::B};"), ("a", "use crate::c::C;"), ("a/inner", "use super::A;"), ("c", last)];
        let path = |name: &str| name.split('/').filter(|part| !part.is_empty()).map(String::from).collect();
        circles(&texts.into_iter().map(|(name, text)| (path(name), text.to_string())).collect())
    };
    for names in ["use crate::{\n    A,\n};", "use super::a::{self};", "let a = crate::a::A::new();"] {
        assert_eq!(found(names), ["a, c"], "{names}");
    }
    for fine in ["// crate::a::A", "use std::a::A;", "use crate::a::inner::B;", "use crate::B;", "$crate::a"] {
        assert!(found(fine).is_empty(), "{fine}");
    }
}

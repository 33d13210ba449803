//! The house's order, held by a test: which module may use which, who may print, who may be unsafe, that every
//! file opens with what it is, and that no function or file is longer than one can read.

use crate::source::{files, is_test, lines_of_code, without_tests};
use limpid::names;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The modules of limpid-core and what each may use, in the order of reading. The crates' arrows are Cargo's.
const LAYERS: &[(&str, &[&str])] = &[
    ("config", &[]),
    ("numeric", &["config"]),        // how settings are named and refused
    ("ops", &["config", "numeric"]), // the list: plain data
    ("matrix", &["config", "numeric"]),
    ("kernels", &["config", "numeric", "ops", "matrix"]),
    ("optimizer", &["config", "numeric", "ops"]),
    ("model", &["config", "numeric", "ops", "optimizer"]), // which parameters an update groups, never their values
    // a model's sizes and tables, never its names
    ("backend", &["config", "numeric", "ops", "matrix", "kernels", "optimizer", "model"]),
    ("finite", &["model", "ops", "backend"]),
    ("decode", &["config", "numeric", "ops", "matrix", "model", "backend"]),
];

/// The folder of the crates.
fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The library's crates: all but the two ways in.
pub fn libraries() -> Vec<String> {
    let names = fs::read_dir(crates()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> =
        names.filter(|name| !["limpid-cli", "limpid-python"].contains(&name.as_str())).collect();
    names.sort();
    names
}

/// Every source of a crate: its place (`limpid-core/kernels/norm.rs`), and its text.
pub fn sources_of(name: &str) -> Vec<(String, String)> {
    let root = crates().join(name).join("src");
    let place = |path: &Path| format!("{name}/{}", path.strip_prefix(&root).unwrap().display());
    files(&root).into_iter().map(|path| (place(&path), fs::read_to_string(path).unwrap())).collect()
}

/// Every source of the library.
fn library() -> Vec<(String, String)> {
    libraries().iter().flat_map(|name| sources_of(name)).collect()
}

/// Every source of the library and the binary that is not tests alone.
fn all_code() -> Vec<(String, String)> {
    let all = library().into_iter().chain(sources_of("limpid-cli"));
    all.filter(|(place, _)| !is_test(Path::new(place))).collect()
}

/// All paths that a text begins with, parts of a group one by one: `a::b` and `a::c` of `a::{b, c}`.
pub fn paths(text: &str) -> Vec<Vec<String>> {
    let text = text.trim_start();
    if let Some(group) = text.strip_prefix('{') {
        let (mut all, mut depth, mut from) = (vec![], 0, 0);
        for (at, c) in group.char_indices() {
            if depth == 0 && matches!(c, ',' | '}') {
                all.extend(paths(&group[from..at]));
                from = at + 1;
            }
            match c {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                _ => {}
            }
        }
        return all;
    }
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_' && c != '*').unwrap_or(text.len());
    let (name, rest) = (text[..end].to_string(), &text[end..]);
    match rest.strip_prefix("::").map(paths) {
        _ if name.is_empty() => vec![],
        Some(tails) if !tails.is_empty() => tails.into_iter().map(|tail| [vec![name.clone()], tail].concat()).collect(),
        _ => vec![vec![name]],
    }
}

/// Every module of the crate that `source`, the module `place` (`["kernels", "norm"]`), may not use: `crate::x`, and
/// `super::x` where that is the crate's own.
fn offences(place: &[&str], source: &str) -> Vec<String> {
    let module = place[0];
    let allowed = LAYERS.iter().find(|(name, _)| *name == module).map_or(&[][..], |(_, uses)| uses);
    let comment = |line: &str| if line.trim_start().starts_with("//") { String::new() } else { line.to_string() };
    let lines: Vec<String> = source.lines().map(comment).collect();
    let (mut found, mut inner) = (vec![], vec![]); // the ends of the modules around a line that are in this file
    for (n, line) in lines.iter().enumerate() {
        let end = line.find(|c| c != ' ').map_or(String::new(), |indent| " ".repeat(indent) + "}");
        if inner.last() == Some(line) {
            inner.pop();
        }
        let opens = line.trim_start().trim_start_matches("pub ").trim_start_matches("pub(super) ");
        if opens.starts_with("mod ") && line.ends_with('{') {
            inner.push(end);
        }
        let rest = lines[n..].join("\n");
        for (at, _) in line.match_indices("crate::").chain(line.match_indices("super::")) {
            let whole = !line[..at].ends_with(|c: char| c.is_alphanumeric() || matches!(c, '_' | '$' | ':'));
            let path = rest[at..].trim_start_matches("super::");
            let above = (rest.len() - at - path.len()) / "super::".len();
            let path = path.trim_start_matches("crate::");
            if !whole || above > 0 && above < place.len() + inner.len() {
                continue;
            }
            let used: BTreeSet<String> = paths(path).into_iter().map(|mut path| path.swap_remove(0)).collect();
            for used in used.into_iter().filter(|used| used != module && !allowed.contains(&&**used)) {
                found.push(format!("{module}:{} uses {used}", n + 1));
            }
        }
    }
    found
}

#[test]
fn arrows_point_one_way() {
    let (mut found, mut unknown) = (vec![], vec![]);
    for (name, text) in library() {
        let Some(place) = name.strip_prefix("limpid-core/").filter(|place| *place != "lib.rs") else { continue };
        let place: Vec<&str> = place.trim_end_matches(".rs").trim_end_matches("/mod").split('/').collect();
        if !is_test(Path::new(&name)) {
            found.extend(offences(&place, &without_tests(&text)));
        }
        if LAYERS.iter().all(|(layer, _)| *layer != place[0]) {
            unknown.push(name);
        }
    }
    assert!(found.is_empty(), "{found:#?}");
    assert!(unknown.is_empty(), "modules without a place in LAYERS: {unknown:?}");
}

/// ARCHITECTURE.md draws the crates as Cargo has them: `crate -> crates that it uses`.
#[test]
fn the_crates_are_as_they_are_drawn() {
    let page = fs::read_to_string(crates().join("../ARCHITECTURE.md")).unwrap();
    let drawn: Vec<&str> =
        page.split("```text\nlimpid-cli").nth(1).unwrap().split("```").next().unwrap().lines().collect();
    for name in libraries().into_iter().chain(["limpid-cli".into(), "limpid-python".into()]) {
        let manifest = fs::read_to_string(crates().join(&name).join("Cargo.toml")).unwrap();
        let own = manifest.split("[dependencies]").nth(1).unwrap().split("\n[").next().unwrap();
        let uses =
            own.lines().filter_map(|line| line.split([' ', '.']).next()).filter(|used| used.starts_with("limpid"));
        let mut uses: Vec<&str> = uses.map(|used| used.trim_start_matches("limpid-")).collect();
        uses.sort_unstable();
        let uses = uses.join(", ");
        let line = drawn.iter().find_map(|line| {
            let (of, uses) = line.split_once("->").unwrap_or((line, ""));
            (of.trim() == if name == "limpid-cli" { "" } else { &name }).then_some(uses.trim())
        });
        assert_eq!(line, Some(uses.as_str()), "{name} in ARCHITECTURE.md");
    }
}

#[test]
fn a_wrong_arrow_is_found() {
    let of = |place: &[&str], source: &str| offences(place, &without_tests(source));
    for (place, source) in [
        (&["model"][..], "use crate::backend::Cpu;"),
        (&["model"], "use super::backend::Cpu;"),
        (&["model", "plan"], "use super::super::backend::Cpu;"),
        (&["model", "plan"], "use crate::{ops::{Op, Region}, backend::Cpu};"),
        (&["model", "plan"], "use super::super::{backend, ops};"),
        (&["model"], "let cpu = crate::backend::Cpu::new();"),
    ] {
        assert_eq!(of(place, source), ["model:1 uses backend"], "{source}");
    }
    assert_eq!(of(&["model"], "use crate::{\n    ops::Op,\n    backend::Cpu,\n};"), ["model:1 uses backend"]);
    let inner = "pub mod a {\n    mod b {\n        use super::backend;\n    }\n    use super::super::backend;\n}";
    assert_eq!(of(&["model"], inner), ["model:5 uses backend"]);
    assert_eq!(of(&["model", "plan"], &format!("{inner}\nuse super::super::trace::Trace;")), ["model:7 uses trace"]);
    let after = "#[cfg(test)]\nmod tests {\n    use crate::trace::Trace;\n}\nuse crate::backend::Cpu;\n";
    assert_eq!(of(&["model"], after), ["model:5 uses backend"]);
    assert_eq!(of(&["model"], &format!("#[cfg(test)]\nmod more_tests;\n{after}")), ["model:7 uses backend"]);
    for fine in
        ["use crate::ops::Op;\n// crate::train is fine in words", "use super::{Model, plan::key};", "$crate::train"]
    {
        assert!(of(&["model", "recompute"], fine).is_empty(), "{fine}");
    }
}

#[test]
fn the_library_tells_and_never_prints() {
    for (name, text) in library().into_iter().filter(|(name, _)| !is_test(Path::new(name))) {
        // an example in a comment is a program of its own
        let text: String = without_tests(&text).lines().filter(|line| !line.trim_start().starts_with("//")).collect();
        for word in ["println!", "print!(", "eprint", "dbg!", "std::env::", "process::exit"] {
            assert!(!text.contains(word), "{name} has {word}: the library returns events and errors");
        }
    }
}

/// Methods of floats that call the system's library.
const SYSTEM_MATHEMATICS: [&str; 16] = [
    ".ln()",
    ".exp()",
    ".powf(",
    ".sin()",
    ".cos()",
    ".tan()",
    ".tanh()",
    ".sin_cos()",
    ".exp2(",
    ".log2(",
    ".log10(",
    ".ln_1p(",
    ".exp_m1(",
    ".cbrt(",
    ".hypot(",
    ".atan2(",
];

/// Results are the same on every machine, and the system's mathematical functions are not: `numeric/math.rs` has those
/// that are.
#[test]
fn results_do_not_depend_on_the_systems_mathematics() {
    let counts = |name: &str| {
        let core = name.strip_prefix("limpid-core/").unwrap_or("");
        const FOLDERS: [&str; 8] =
            ["numeric/", "ops/", "matrix/", "kernels/", "optimizer/", "model/", "backend/cpu/", "decode/"];
        FOLDERS.iter().any(|folder| core.starts_with(folder))
            || ["limpid-train/", "limpid-trace/", "limpid/generate/"].iter().any(|part| name.starts_with(part))
    };
    for (name, text) in library().into_iter().filter(|(name, _)| counts(name) && !is_test(Path::new(name))) {
        // the references are judges, not results
        let outside = |part: &str| part.split_once("\n}\n").map_or(String::new(), |(_, rest)| rest.to_string());
        let own = without_tests(&text);
        let mut parts = own.split("pub mod reference {");
        let own = parts.next().unwrap().to_string() + &parts.map(outside).collect::<String>();
        for word in SYSTEM_MATHEMATICS {
            assert!(!own.contains(word), "{name} has {word}");
        }
    }
}

/// `println!` and `eprintln!` panic where their stream is closed or full; `show` has what does not.
#[test]
fn the_binary_prints_in_one_file() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../limpid-cli/src");
    for path in files(&root) {
        let text = fs::read_to_string(&path).unwrap();
        for word in ["println!", "print!(", "dbg!", "io::stdout", "io::stderr", "e.exit()"] {
            let drawn = path.ends_with("show.rs") && word.starts_with("io::")
                || path.ends_with("dashboard.rs") && word == "io::stderr";
            assert!(
                drawn || !without_tests(&text).contains(word),
                "{} has {word}: print with show::out or show::say",
                path.display()
            );
        }
    }
}

/// What several verbs need lies beside them; `tokenize train` alone is a verb of a verb.
#[test]
fn verbs_call_no_verbs() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../limpid-cli/src");
    let mut verbs = 0;
    for path in files(&root) {
        let text = without_tests(&fs::read_to_string(&path).unwrap());
        let verb = path.parent().is_some_and(|folder| folder.ends_with("verbs"));
        verbs += usize::from(verb);
        let calls = |line: &&str| {
            line.contains("verbs::") && !path.ends_with("lib.rs")
                || verb && line.contains("super::") && !line.contains("super::learn::")
        };
        let found: Vec<&str> = text.lines().filter(calls).collect();
        assert!(found.is_empty(), "{}: {found:?}", path.display());
    }
    assert!(verbs > 10, "{verbs}");
}

#[test]
fn unsafe_lives_in_two_folders_and_five_files() {
    for (name, text) in library() {
        const MAY: [&str; 4] = [
            "limpid-core/matrix/",
            "limpid-core/backend/cpu/",
            "limpid-core/numeric/simd.rs",
            "limpid-base/files/map.rs",
        ];
        // the two that open maps, and pass on what that asks for
        let opens = ["limpid-checkpoint/store.rs", "limpid-data/shards.rs"].contains(&name.as_str());
        let opens = opens && text.matches("unsafe {").count() == 1 && text.matches("unsafe").count() == 2;
        let allowed = opens || MAY.iter().any(|place| name.starts_with(place));
        // what wgpu calls experimental, kernels without counters in their loops, and nothing else
        let leave = name.starts_with("limpid-gpu/device.rs") && text.matches("unsafe").count() == 4;
        // what a page calls, and what it is called by
        let exports =
            [("limpid-web/lib.rs", 6), ("limpid-web/training.rs", 4)].into_iter().find(|(file, _)| name == *file);
        let page = exports.is_some_and(|(_, count)| text.matches("unsafe").count() == count);
        assert!(page || exports.is_none(), "{name}: unsafe is for what is exported and imported alone");
        assert!(allowed || leave || page || !text.contains("unsafe_code"), "{name} may not be unsafe");
    }
}

/// A named pipe waits for ever and a device has no end: files are read by `limpid_base::files`, which takes regular
/// ones alone.
#[test]
fn files_are_opened_in_one_place() {
    /// Where others are meant: what a system says of itself, texts that may come through a pipe, a folder that is
    /// locked, the page's own files while it is written, a terminal.
    const MAY: [&str; 9] = [
        "limpid-base/files/mod.rs",
        "limpid-data/documents.rs",
        "limpid-data/parquet.rs",
        "limpid-data/prepare.rs",
        "limpid-serve/ui.rs",
        "limpid/memory.rs",
        "limpid-cli/machine.rs",
        "limpid-cli/verbs/doctor.rs",
        "limpid-cli/verbs/tokenize.rs",
    ];
    for (name, text) in all_code() {
        let opens = |line: &&str| {
            let words = ["fs::read(", "fs::read_to_string(", "File::open("];
            words.iter().any(|word| line.contains(word))
                && !line.contains("OutputFile::open(")
                && !line.contains("\"/dev/tty\"")
        };
        let code = without_tests(&text);
        let found: Vec<&str> = code.lines().filter(opens).collect();
        assert!(MAY.contains(&name.as_str()) || found.is_empty(), "{name}: {found:?}");
    }
}

/// Who knows that there are GPUs: the one backend, the list of devices, and who chooses one of them.
#[test]
fn nobody_asks_whether_it_is_a_gpu() {
    const CHOOSE: &[&str] = &["limpid/device.rs", "limpid/machine.rs", "limpid/machine/faster.rs", "limpid/lib.rs"];
    let asks = |text: &str| ["Device::Gpu", "feature = \"gpu\"", "limpid_gpu::"].iter().any(|word| text.contains(word));
    for (name, text) in library() {
        let may = name.starts_with("limpid-gpu/") || CHOOSE.contains(&name.as_str());
        assert!(may || !asks(&text), "{name} asks whether it is a GPU");
    }
    for path in files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../limpid-cli/src")) {
        let may = ["devices.rs", "doctor.rs"].iter().any(|file| path.ends_with(file));
        assert!(may || !asks(&fs::read_to_string(&path).unwrap()), "{} asks whether it is a GPU", path.display());
    }
}

/// The command and the server open a model as an `Lm` and train by a `Training`, on a `Machine`. Kernels and backends
/// are named by what measures, compares or explains them; elsewhere only the values that a user chooses, and errors.
#[test]
fn the_command_and_the_server_come_in_by_the_front_door() {
    const VALUES: &[&str] = &[
        "backend::BackendError",
        "matrix::Precision",
        "numeric::element::Element",
        "numeric::random",
        "numeric::simd::Level",
    ];
    const LOOK_CLOSER: &[&str] = &[
        "devices.rs",
        "llmc.rs",
        "bench.rs",
        "check.rs",
        "convert.rs",
        "doctor.rs",
        "eval.rs",
        "inspect.rs",
        "inspect/ready.rs",
        "plan.rs",
        "train.rs",
    ];
    /// What makes a trainer, a run or a decoder beside `Training` and `Lm`, and the measurements that may.
    const MADE: &[(&str, &[&str])] = &[
        ("Trainer::new(", &["bench.rs", "check.rs"]),
        ("Trainer::from(", &[]),
        ("Run::new(", &[]),
        ("Decoder::new(", &[]),
        ("Engine::new(", &[]),
        ("Cpu::start(", &[]),
    ];
    for root in ["limpid-cli/src", "limpid-serve/src"] {
        for path in files(&crates().join(root)) {
            let (name, code) = (path.display().to_string(), without_tests(&fs::read_to_string(&path).unwrap()));
            let is_one_of = |files: &[&str]| files.iter().any(|file| path.ends_with(file));
            for (made, files) in MADE {
                assert!(is_one_of(files) || !code.contains(made), "{name}: {made}) belongs behind Lm or Training");
            }
            for module in ["backend", "kernels", "matrix", "numeric", "ops", "optimizer"]
                .iter()
                .filter(|_| !is_one_of(LOOK_CLOSER))
            {
                for used in code.split("limpid::").skip(1).filter(|rest| rest.starts_with(&format!("{module}::"))) {
                    let line = used.lines().next().unwrap_or_default();
                    assert!(VALUES.iter().any(|value| used.starts_with(value)), "{name} names {line}");
                }
            }
        }
    }
}

#[test]
fn every_file_says_what_it_is() {
    for (name, text) in library() {
        assert!(text.starts_with("//! "), "{name} does not open with what it is");
    }
    for path in files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../limpid-cli/src")) {
        assert!(
            fs::read_to_string(&path).unwrap().starts_with("//! "),
            "{} does not open with what it is",
            path.display()
        );
    }
}

/// Public types that share a name, and why that misleads nobody.
const SHARED_NAMES: &[(&str, &str)] = &[
    ("Backward", "the operands of an op, always named by the op's module: `scale::Backward`"),
    ("Forward", "the operands of an op, always named by the op's module: `norm::Forward`"),
    ("Row", "the operands of an op, always named by the op's module: `attend::Row`"),
];

/// A public type's name says which one it is, whichever crate it comes from.
#[test]
fn public_types_have_names_of_their_own() {
    let mut places = BTreeMap::<String, Vec<String>>::new();
    for (place, text) in library() {
        for line in without_tests(&text).lines().filter_map(|line| line.trim_start().strip_prefix("pub ")) {
            let kinds = ["struct ", "enum ", "trait ", "type ", "union "];
            let Some(rest) = kinds.iter().find_map(|kind| line.strip_prefix(kind)) else { continue };
            let name = rest.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
            if !name.is_empty() {
                places.entry(name.into()).or_default().push(place.clone());
            }
        }
    }
    assert!(places.len() > 200, "only {} types were seen", places.len());
    places.retain(|_, places| places.len() > 1);
    let shared: Vec<&str> = places.keys().map(String::as_str).collect();
    let known: Vec<&str> = SHARED_NAMES.iter().map(|(name, _)| *name).collect();
    assert_eq!(shared, known, "types that share a name, and those that may: {places:#?}");
}

/// Every function of a file that has a body of its own lines: its name, and its lines of code from `fn` to the brace
/// that closes it.
fn functions(text: &str) -> Vec<(&str, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut all = vec![];
    for (n, line) in lines.iter().enumerate() {
        let Some(name) = function(line) else { continue };
        let indent = line.len() - line.trim_start().len();
        // rustfmt puts what closes a parameter list or a body as far in as the `fn`
        let closes = |line: &&str| {
            line.get(indent..).is_some_and(|rest| rest.starts_with([')', '}'])) && line[..indent].trim().is_empty()
        };
        let mut closing = (n..).zip(&lines[n..]).skip(1).filter(|(_, line)| closes(line));
        let end = closing.find(|(_, line)| line.ends_with([';', '}']));
        let declared = line.ends_with([';', '}']) || end.is_some_and(|(_, line)| line.ends_with(';'));
        if let Some((end, _)) = end.filter(|_| !declared) {
            all.push((name, lines_of_code(&lines[n..=end].join("\n"))));
        }
    }
    all
}

/// The name of the function that a line begins.
fn function(line: &str) -> Option<&str> {
    const BEFORE: [&str; 6] = ["pub ", "pub(crate) ", "pub(super) ", "const ", "async ", "unsafe "];
    let mut rest = line.trim_start();
    while let Some(next) = BEFORE.iter().find_map(|word| rest.strip_prefix(word)) {
        rest = next;
    }
    let rest = rest.strip_prefix("fn ")?;
    rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()
}

/// Most lines of code of a function.
const LONGEST_FUNCTION: usize = 80;

/// Most lines of code of a file.
const LONGEST_FILE: usize = 800;

/// Functions and files that are longer, with the lines that they have: whoever touches one makes it shorter, and none
/// is added.
const LONG: &[(&str, usize)] = &[
    ("limpid-checkpoint/formats/huggingface/families.rs", 1059),
    ("limpid-core/backend/cpu/backward.rs: inputs", 119),
    ("limpid-core/backend/cpu/forward.rs: run", 86),
    ("limpid-core/backend/reference.rs: backward_op", 129),
    ("limpid-core/backend/reference.rs: forward_op", 92),
    ("limpid-draw/diagram.rs", 826),
    ("limpid-trace/names.rs: right_side", 111),
    ("limpid-draw/picture/draw.rs: draw", 103),
];

#[test]
fn functions_and_files_are_as_long_as_one_can_read() {
    let mut long = BTreeMap::new();
    for (place, text) in all_code() {
        let text = without_tests(&text);
        let lines = lines_of_code(&text);
        if lines > LONGEST_FILE {
            long.insert(place.clone(), lines);
        }
        for (name, lines) in functions(&text).into_iter().filter(|(_, lines)| *lines > LONGEST_FUNCTION) {
            let most = long.entry(format!("{place}: {name}")).or_default();
            *most = lines.max(*most);
        }
    }
    let known = |place: &String| LONG.iter().find(|(known, _)| known == place);
    let grown: Vec<_> =
        long.iter().filter(|(place, lines)| known(place).is_none_or(|(_, before)| *lines > before)).collect();
    let most = format!("a function has at most {LONGEST_FUNCTION} lines of code, a file {LONGEST_FILE}");
    assert!(grown.is_empty(), "{most}; divide these, or make them as short as they were: {grown:?}");
    let mended: Vec<_> = LONG.iter().filter(|(place, _)| !long.contains_key(*place)).collect();
    assert!(mended.is_empty(), "they are no longer long, take them off LONG: {mended:?}");
}

#[test]
fn a_function_ends_at_its_brace() {
    let source = "\
fn short() { 1 }
impl X {
    fn declared(&self);
    pub(crate) fn two(
        a: usize,
    ) -> usize {
        // a comment
        a
    }
    fn also_declared(
        a: usize,
    ) -> usize;
}
pub const unsafe fn last<T>() -> T
where
    T: Copy,
{
    if true {
        1
    }
}
";
    assert_eq!(functions(source), [("two", 5), ("last", 8)]);
}

/// The page's scripts and its style, by their names.
fn page_sources() -> Vec<(String, String)> {
    let entries = fs::read_dir(crates().join("limpid-serve/ui")).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|end| end == "js" || end == "css")).collect();
    paths.sort();
    let name = |path: &Path| format!("limpid-serve/ui/{}", path.file_name().unwrap().display());
    paths.into_iter().map(|path| (name(&path), fs::read_to_string(path).unwrap())).collect()
}

/// Every function of a script that has a body of its own lines: the line that begins it, and its lines of code up to
/// the line, no further in, that closes it. What is handed a function across lines counts as a part of it.
fn script_functions(text: &str) -> Vec<(&str, usize)> {
    let is_comment = |line: &str| ["//", "/*", "*"].iter().any(|start| line.trim_start().starts_with(start));
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty() && !is_comment(line)).collect();
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut all = vec![];
    for (n, line) in lines.iter().enumerate().filter(|(_, line)| begins_function(line)) {
        // `) {` ends parameters
        let closes = |other: &&str| {
            indent(other) <= indent(line) && !(other.trim_start().starts_with(')') && other.ends_with('{'))
        };
        let inside = lines[n + 1..].iter().take_while(|other| !closes(other)).count();
        let end = usize::from(!line.ends_with("=>"));
        all.push((line.trim(), 1 + inside + end));
    }
    all
}

/// Whether a line of a script begins a function: `function`, an arrow, or a method.
fn begins_function(line: &str) -> bool {
    let line = line.trim();
    let method = line.split('(').next().is_some_and(|name| {
        let words = ["if", "for", "for await", "while", "switch", "catch", "}", "return"];
        let is_name = |c: char| c.is_alphanumeric() || " _#*".contains(c);
        !name.is_empty() && name.chars().all(is_name) && !words.contains(&name.trim())
    });
    let opens = ["{", "(", "[", "=>"].iter().any(|end| line.ends_with(end));
    opens && (line.contains("=>") || line.contains("function") || method && !line.ends_with("=>"))
}

/// The page keeps the rules of Rust's sources: lengths of functions and files.
#[test]
fn the_page_is_as_long_as_one_can_read() {
    let (sources, mut functions) = (page_sources(), 0);
    for (place, text) in &sources {
        assert!(text.lines().count() <= LONGEST_FILE, "{place} has more than {LONGEST_FILE} lines");
        if place.ends_with(".js") {
            let all = script_functions(text);
            let long = all.iter().find(|(_, lines)| *lines > LONGEST_FUNCTION);
            assert_eq!(long, None, "{place}: a function has at most {LONGEST_FUNCTION} lines of code; divide it");
            functions += all.len();
        }
    }
    assert!(sources.len() > 50 && functions > 800, "only {} files and {functions} functions were seen", sources.len());
}

#[test]
fn a_function_of_a_script_ends_where_it_closes() {
    let source = "\
const short = (x) => x + 1;
export async function two(
  a,
) {
  // a comment

  return a;
}
class X {
  /** What it is. */
  get size() {
    if (this.y) {
      return 1;
    }
    return 2;
  }
  keys = {
    a: () => 1,
  };
}
const table = rows.map((row) =>
  row.length);
on(element, \"click\", (event) => {
  go();
});
";
    let found: Vec<(&str, usize)> = script_functions(source);
    let begins = ["export async function two(", "get size() {"];
    assert_eq!(found[..2], [(begins[0], 5), (begins[1], 6)]);
    assert_eq!(found[2..], [("const table = rows.map((row) =>", 2), ("on(element, \"click\", (event) => {", 3)]);
}

/// The functions of a source under `#[test]`.
fn tests_of(text: &str) -> Vec<&str> {
    let name = |part| -> Option<&str> { str::split_once(part, "fn ")?.1.split('(').next() };
    text.split("#[test]\n").skip(1).filter_map(name).collect()
}

/// The source that a page names: `kernels/norm.rs` of limpid-core; `train/recipe.rs` of limpid-train.
fn source(word: &str) -> Option<PathBuf> {
    let below = |name: String| {
        let (src, short) = (crates().join(&name).join("src"), name.trim_start_matches("limpid-").to_string());
        let own = word.strip_prefix(&format!("{short}/")).map(|rest| if rest == "mod.rs" { "lib.rs" } else { rest });
        [Some(src.join(word)), own.map(|rest| src.join(rest))].into_iter().flatten()
    };
    libraries().into_iter().flat_map(below).find(|path| path.exists())
}

/// docs/references.md names sources that are there.
#[test]
fn the_references_name_what_exists() {
    let page = fs::read_to_string(crates().join("../docs/references.md")).unwrap();
    let places: Vec<&str> = page.split('`').skip(1).step_by(2).filter(|word| word.ends_with(".rs")).collect();
    assert!(places.len() > 40, "{}", places.len());
    assert_eq!(places.into_iter().find(|place| source(place).is_none()), None, "docs/references.md");
}

/// docs/contract.md has every requirement once, and what it names is there: sources, and in the last column of its
/// tables tests (`file::name`, or `::name` of the file before).
#[test]
fn the_contract_names_what_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let cli = root.join("../limpid-cli");
    let page = fs::read_to_string(root.join("../../docs/contract.md")).unwrap();
    let (mut rows, mut missing, mut named) = (vec![], vec![], 0);
    for line in page.lines().filter(|line| line.starts_with('|')) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let ends = cells[0].strip_prefix('R').into_iter().flat_map(|ends| ends.split("-R"));
        let ends: Vec<usize> = ends.filter_map(|n| n.parse().ok()).collect();
        rows.extend(ends.first().zip(ends.last()).into_iter().flat_map(|(first, last)| *first..=*last));
        let (mut file, mut folder) = ("", crates());
        for (n, cell) in cells.iter().enumerate() {
            for word in cell.split('`').skip(1).step_by(2) {
                if word.ends_with(".rs") {
                    let verb = cli.join("src/verbs").join(word.trim_start_matches("cli/"));
                    let places = [crates().join(word), folder.join(word), verb];
                    match source(word).or(places.into_iter().find(|path| path.exists())) {
                        Some(path) => folder = path.parent().unwrap().into(),
                        None => missing.push(word.to_string()),
                    }
                }
                let test = word.split_once("::").filter(|_| n + 1 == cells.len() && !word.contains(char::is_uppercase));
                if let Some((of, test)) = test {
                    file = if of.is_empty() { file } else { of };
                    let unit = [source(&format!("{file}.rs")), source(&format!("{file}/mod.rs"))].into_iter().flatten();
                    let tests = ["tests/library", "tests/repository"].map(|folder| root.join(folder));
                    let tests = tests.into_iter().chain(["tests/command", "tests"].map(|folder| cli.join(folder)));
                    let others = ["limpid-study/tests/study", "limpid-glass/tests"].map(|folder| crates().join(folder));
                    let tests = tests.chain(others);
                    let places = tests.map(|folder| folder.join(format!("{file}.rs"))).chain(unit);
                    let text = places.filter_map(|path| fs::read_to_string(path).ok()).collect::<String>();
                    named += 1;
                    if !tests_of(&text).contains(&test) {
                        missing.push(format!("{file}::{test}"));
                    }
                }
            }
        }
    }
    assert!(missing.is_empty(), "docs/contract.md names what is not there: {missing:#?}");
    assert_eq!(rows, (1..=352).collect::<Vec<_>>(), "every requirement has one row, in order");
    assert!(named > 250, "only {named} tests are named");
}

/// A link to a file or to a heading of a page names one that is there.
#[test]
fn links_lead_somewhere() {
    let slug = |heading: &str| -> String {
        let kept = heading.to_lowercase();
        kept.chars()
            .filter(|c| c.is_alphanumeric() || " -_".contains(*c))
            .map(|c| if c == ' ' { '-' } else { c })
            .collect()
    };
    let root = crates().join("..").canonicalize().unwrap();
    let mut pages = vec![];
    for folder in [root.clone(), root.join("docs"), root.join("reference")] {
        let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        pages.extend(files.filter(|path| path.extension().is_some_and(|end| end == "md")));
    }
    let mut links = vec![];
    for page in &pages {
        let text = fs::read_to_string(page).unwrap();
        let found = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        links.extend(found.map(|link| (page.clone(), page.clone(), link.to_string())));
    }
    // sources name pages from the root
    let manifest = root.join("Cargo.toml");
    for source in files(&crates()).into_iter().chain([manifest.clone()]) {
        let text = fs::read_to_string(&source).unwrap();
        let word =
            |rest: &str| rest.split(|c: char| !c.is_alphanumeric() && !"-_.#".contains(c)).next().map(String::from);
        let found = text.split("docs/").skip(1).filter_map(word).filter(|name| name.contains(".md#"));
        links.extend(found.map(|name| (source.clone(), manifest.clone(), format!("docs/{name}"))));
    }
    let (mut found, mut of_sources) = (0, 0);
    for (written, beside, link) in links {
        let (file, heading) = link.split_once('#').unwrap_or((&link, ""));
        if file.contains(':') || file.contains(' ') {
            continue;
        }
        let to = if file.is_empty() { beside.clone() } else { beside.with_file_name(file) };
        assert!(to.exists(), "{}: {link}", written.display());
        let there = || {
            let page = fs::read_to_string(&to).unwrap();
            page.lines().any(|l| l.starts_with('#') && slug(l.trim_start_matches('#').trim()) == heading)
        };
        assert!(heading.is_empty() || there(), "{}: {link}", written.display());
        found += 1;
        of_sources += usize::from(written != beside);
    }
    assert!(of_sources > 5, "{of_sources}");
    assert!(found > 60, "{found}");
}

/// docs/names.md has the table of names.
#[test]
fn the_page_of_names_is_the_table() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/names.md")).unwrap();
    for entry in names::TABLE {
        let symbol = entry.symbol.replace("{}", "⁽ℓ⁾");
        let cells = [entry.name, &symbol, entry.lens, entry.hf, entry.llmc, entry.axes, entry.about];
        let line = format!(
            "| `{}` | {} | {} | {} | {} | {} | {} |",
            cells[0], cells[1], cells[2], cells[3], cells[4], cells[5], cells[6]
        );
        assert!(page.contains(&line), "docs/names.md lacks the line\n{line}");
    }
    for [name, words @ ..] in names::DOCUMENTS {
        let symbol = names::TABLE.iter().find(|entry| entry.name == *name).unwrap().symbol.replace("{}", "⁽ℓ⁾");
        let words = words.map(|word| word.replace("{l-1}", "ₗ₋₁").replace("{l}", "ₗ").replace("{}", "ₗ"));
        let line = format!("| `{name}` | {symbol} | {} |", words.join(" | "));
        assert!(page.contains(&line), "docs/names.md lacks the line\n{line}");
    }
    for [axis, letters @ ..] in names::LETTERS {
        let line = format!("| `{axis}` | {} |", letters.join(" | "));
        assert!(page.contains(&line), "docs/names.md lacks the line\n{line}");
    }
}

/// Columns of a line of code or prose.
const WIDTH: usize = 120;

/// Whether a line cannot be broken: a row of a table, a literal, an address.
fn is_whole(line: &str) -> bool {
    const ROWS: [&str; 8] = ["| ", "{ ", "\"blocks.", "views = [{ ", "set = { ", "try = [", "entry([", "[\""];
    const LITERALS: [&str; 6] = ["r\"", "r#\"", "b\"\\x", "text_signature", "base64,", "concat!("];
    ROWS.iter().any(|row| line.trim_start().starts_with(row)) || LITERALS.iter().any(|literal| line.contains(literal))
}

/// Files below a folder whose lines are held to the width: what people write, not what programs wrote.
fn written(folder: &Path) -> Vec<PathBuf> {
    const WRITTEN: [&str; 6] = ["rs", "md", "js", "css", "toml", "wgsl"];
    const OTHERS: [&str; 5] = ["target", "fixtures", "node_modules", "test-results", "release"];
    let mut all = vec![];
    for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        let name = path.file_name().unwrap().to_string_lossy();
        if path.is_dir() && !name.starts_with('.') && !OTHERS.contains(&&*name) {
            all.extend(written(&path));
        } else if path.extension().is_some_and(|end| WRITTEN.iter().any(|kind| end == *kind)) {
            all.push(path);
        }
    }
    all
}

/// Code, comments, attributes and prose fit in a window. Commands and output that a page shows are as they are.
#[test]
fn lines_are_as_wide_as_a_window() {
    let root = crates().join("..").canonicalize().unwrap();
    let (mut wide, mut seen) = (vec![], 0);
    for path in written(&root) {
        let (text, page) = (fs::read_to_string(&path).unwrap(), path.extension().is_some_and(|end| end == "md"));
        let mut shown = false;
        for (n, line) in text.lines().enumerate() {
            shown ^= page && line.trim_start().starts_with("```");
            let exempt = shown || page && line.starts_with("    ") || is_whole(line);
            if line.chars().count() > WIDTH && !exempt {
                wide.push(format!("{}:{}", path.strip_prefix(&root).unwrap().display(), n + 1));
            }
        }
        seen += 1;
    }
    assert!(seen > 500, "only {seen} files were seen");
    assert!(wide.is_empty(), "lines of more than {WIDTH} columns: {wide:#?}");
}

//! Chores of the project. `cargo xtask` lists them: what the gate runs, the long tests that a release runs beside it,
//! and what writes or measures something for the documents.

mod dist;
mod source;
mod targets;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// A chore: its name, what it does, and the function that does it.
type Chore = (&'static str, &'static str, fn() -> bool);

/// Every chore.
const CHORES: [Chore; 13] = [
    ("ci", "the gate: formatting, lints, documentation, tests, the page in a browser, the wheel, ARM's bits", || {
        targets::web() && ci() && ui() && python() && targets::gate()
    }),
    ("ui", "the gate's part that needs Node and Chromium", ui),
    ("python", "the gate's part that needs Python and packages of PyPI: the wheel of crates/limpid-python", python),
    (
        "sweep",
        "the tests that take long, for a release: every preset, every recipe of ranks, MPICH, 200 steps on a GPU, a \
         slow page, all of `targets`",
        sweep,
    ),
    (
        "targets",
        "ARM by an emulator, with this processor's bits; the module of live pages; macOS and Windows: types",
        targets::whole,
    ),
    ("web", "the module of WebAssembly that makes `inspect --html` pages live", targets::web),
    ("features", "every crate alone, with and without each of its features", features),
    ("package", "every crate as it would be published, with its tests", package),
    (
        "dist",
        "what a release holds, tried, in target/assets: binaries for Linux, wheels, checksums, an installer; with a \
         target behind it, that target's archive alone",
        dist::dist,
    ),
    ("size", "lines of code by crate", size),
    ("settings", "writes docs/settings.md", settings),
    ("picture", "draws docs/look-inside.png, with Node, a browser and the release binary", picture),
    (
        "bench-record",
        "rows of docs/bench-record.md: what this machine reaches with each of its instruction sets, beside its roofs",
        bench_record,
    ),
];

fn main() -> ExitCode {
    let asked = std::env::args().nth(1).unwrap_or_default();
    let Some((_, _, chore)) = CHORES.iter().find(|(name, ..)| *name == asked) else {
        eprintln!("usage: cargo xtask CHORE");
        CHORES.iter().for_each(|(name, what, _)| eprintln!("  {name:13} {what}"));
        return ExitCode::FAILURE;
    };
    if chore() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The workspace: `cargo` says where at run time, so a moved build folder serves too.
fn root() -> PathBuf {
    let own = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_else(|_| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&own).parent().expect("xtask lies in the workspace").to_path_buf()
}

/// Whether this is CI, where what is not there is a failure.
fn in_ci() -> bool {
    std::env::var_os("CI").is_some_and(|ci| !ci.is_empty())
}

/// A call of cargo: its arguments, and variables for it.
type Step<'a> = (&'a [&'a str], &'a [(&'a str, &'a str)]);

/// Runs them one after another, and stops at the first that fails.
fn steps(all: &[Step]) -> bool {
    all.iter().all(|(arguments, variables)| {
        println!("== cargo {}", arguments.join(" "));
        let mut cargo = Command::new(env!("CARGO"));
        // where there is no GPU, nor one in software, its tests say so and pass, but not in CI
        cargo.args(*arguments).envs(in_ci().then_some(("GPU_REQUIRED", "1"))).envs(variables.iter().copied());
        cargo.current_dir(root()).status().is_ok_and(|status| status.success())
    })
}

/// Formatting, lints, documentation and tests. All of them have the same features, so that every crate is compiled once
/// for the tests and once for what only looks at it; what people get without asking for features is looked at, too.
fn ci() -> bool {
    let Some(features) = heavy() else { return false };
    let with = |arguments: &[&'static str]| [arguments, &["--workspace", "--features", features]].concat();
    let clippy = [&with(&["clippy", "--all-targets"])[..], &["--", "-D", "warnings"]].concat();
    steps(&[
        (&["fmt", "--all", "--check"], &[]),
        (&clippy, &[OPEN_MPI]),
        (&with(&["doc", "--no-deps"]), &[OPEN_MPI, ("RUSTDOCFLAGS", "-D warnings")]),
        (&["check", "--workspace"], &[]),
        (&[&with(&["test"]), &GATE[..]].concat(), &[OPEN_MPI]),
    ])
}

/// What `cargo test` is told to run all that a gate has time for: who builds limpid does not wait for tests over two
/// seconds.
const GATE: [&str; 6] = ["--", "--include-ignored", "--skip", "slow::", "--skip", "measures::"];

/// The bindings of MPI are made of the one that this compiler belongs to.
const OPEN_MPI: (&str, &str) = ("MPICC", "mpicc");

/// What the gate leaves out because it takes long: what is ignored there, files damaged at full size, README's own
/// command, the page where all that is drawn comes late, and the processes of another MPI.
fn sweep() -> bool {
    let Some(features) = heavy() else { return false };
    let test = |rest: &[&'static str]| [&["test", "--workspace", "--features", features][..], rest].concat();
    steps(&[
        // not the processes of MPI, which `mpi` runs, nor the examples of the documentation, none of which is ignored
        (
            &test(&["--lib", "--bins", "--tests", "--", "--ignored", "--nocapture", "slow::", "--skip", "processes"]),
            &[OPEN_MPI],
        ),
        (&test(&["--test", "hostile"]), &[OPEN_MPI, ("LIMPID_CASES", "50000")]),
        // without the heavy features: what says that it was built without them
        (&[&["test", "--workspace"], &GATE[..]].concat(), &[]),
    ]) && page(&[("SLOW", "1")])
        && mpi()
        && targets::whole()
}

/// The page of limpid-serve: its types, and its tests in a browser with the binary that `cargo build` or `cargo test`
/// left. Without Node or a browser they are skipped, but not in CI.
fn ui() -> bool {
    page(&[])
}

/// The same, with variables for the tests.
fn page(variables: &[(&str, &str)]) -> bool {
    let run = |program: &str, arguments: &[&str]| {
        let mut command = Command::new(program);
        command.args(arguments).envs(variables.iter().copied()).current_dir(root().join("crates/limpid-serve/ui"));
        command
    };
    let there = |mut command: Command| {
        command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    };
    let needed = [
        ("Node 20 or later", "process.exit(Number(process.versions.node.split('.')[0] < 20))"),
        ("Chromium", "import('./tests/chromium.js').then((found) => found.chromium())"),
    ];
    if let Some((missing, _)) = needed.iter().find(|(_, test)| !there(run("node", &["--eval", test]))) {
        println!("UI checks {}: no {missing}", if in_ci() { "failed" } else { "skipped" });
        return !in_ci();
    }
    let steps: [(&str, &[&str]); 3] =
        [("npm", &["ci"]), ("npx", &["tsc", "--noEmit"]), ("npx", &["playwright", "test"])];
    steps.iter().all(|(program, arguments)| {
        println!("== {program} {}", arguments.join(" "));
        run(program, arguments).status().is_ok_and(|status| status.success())
    })
}

/// The wheel: built, installed with NumPy alone, used, and tested. Without Python 3.11 or packages of PyPI that is left
/// out.
fn python() -> bool {
    let (home, folder) = (root().join("crates/limpid-python"), root().join("target/python"));
    let (wheels, environments) = (folder.join("wheels"), [folder.join("build"), folder.join("use")]);
    let run = |program: &Path, arguments: &[&str]| {
        println!("== {} {}", program.file_name().unwrap_or_default().display(), arguments.join(" "));
        Command::new(program).args(arguments).current_dir(&home).status().is_ok_and(|status| status.success())
    };
    let text = |path: &Path| path.display().to_string();
    let [build, used] = [0, 1].map(|i| environments[i].join("bin"));
    let begins = "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))";
    let begun = run(Path::new("python3"), &["-c", begins])
        && environments.iter().all(|path| run(Path::new("python3"), &["-m", "venv", "--clear", &text(path)]))
        && run(&build.join("pip"), &["install", "-q", "-r", "tests/build.txt"]);
    if !begun {
        println!("Python checks skipped: no Python 3.11, or no packages of PyPI");
        return true;
    }
    let _ = std::fs::remove_dir_all(&wheels); // of an earlier run
    let wheel = || {
        let found = std::fs::read_dir(&wheels).ok()?.flatten().next()?;
        println!("{}: {} bytes", found.path().display(), found.metadata().ok()?.len());
        Some(text(&found.path()))
    };
    let tool = |name: &str, arguments: &[&str]| run(&used.join(name), arguments);
    run(&build.join("maturin"), &["build", "--profile", "dev", "--out", &text(&wheels)])
        && wheel().is_some_and(|wheel| tool("pip", &["install", "-q", &wheel]))
        && tool("python", &["tests/alone.py"])
        && tool("pip", &["install", "-q", "-r", "tests/requirements.txt"])
        && tool("python", &["-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"])
        && tool("mypy", &["--strict", "-p", "limpid"])
        && tool("mypy", &["--strict", "tests/test_types.py"])
        && tool("stubtest", &["limpid", "--allowlist", "tests/stubs.txt", "--ignore-unused-allowlist"])
}

/// Whether a program is there.
fn has(program: &str) -> bool {
    Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

/// The heavy features that can be built and tested here; in CI all must be.
fn heavy() -> Option<&'static str> {
    let Some(missing) = ["mpicc", "mpirun"].into_iter().find(|program| !has(program)) else { return Some("mpi,gpu") };
    println!("MPI checks {}: no {missing}", if in_ci() { "failed" } else { "skipped" });
    (!in_ci()).then_some("gpu")
}

/// Several processes that train one model, by every recipe with Open MPI (or what `mpicc` is), and by MPICH. What is
/// not there is skipped, but not in CI.
fn mpi() -> bool {
    const FEATURES: [&str; 3] = ["--workspace", "--features", "mpi,gpu"];
    const OTHER: [(&str, &str); 2] = [("MPICC", "mpicc.mpich"), ("MPIRUN", "mpirun.mpich")];
    // the bindings are made of the MPI that they found when they were built
    const CLEAN: Step = (&["clean", "-p", "mpi-sys"], &[]);
    let needed = ["mpicc", "mpirun", "mpicc.mpich", "mpirun.mpich"];
    if let Some(missing) = needed.into_iter().find(|program| !has(program)) {
        println!("MPI checks {}: no {missing}", if in_ci() { "failed" } else { "skipped" });
        return !in_ci();
    }
    // with the test, or what both need would be built twice
    let build = [&["build"], &FEATURES[..], &["--example", "ranks", "--test", "ranks"]].concat();
    let test = |rest: &[&'static str]| [&["test"], &FEATURES[..], &["--test", "ranks", "--"], rest].concat();
    // the recipes take longest, and do not depend on who carries the bytes
    let (every, some) = (test(&["--ignored"]), test(&["--skip", "any_number_of_processes"]));
    steps(&[(&build, &[OPEN_MPI]), (&every, &[OPEN_MPI]), CLEAN, (&build, &OTHER), (&some, &OTHER), CLEAN])
}

/// README's picture, of a model that README's first command trains.
fn picture() -> bool {
    let mut node = Command::new("node");
    node.current_dir(root().join("crates/limpid-serve/ui")).arg("tests/picture.js");
    node.args([root().join("target/release/limpid"), root().join("docs/look-inside.png")]);
    node.status().is_ok_and(|status| status.success())
}

/// Most crates that limpid-core may need, itself among them.
const CORE_NEEDS: usize = 25;

/// Every crate by itself without features, with each of them, and as it comes; how many crates limpid-core needs.
fn features() -> bool {
    let output = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO")).args(arguments).current_dir(root()).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).to_string())
    };
    let Some(metadata) = output(&["metadata", "--no-deps", "--format-version", "1"]) else { return false };
    let Ok(metadata) = serde_json::from_str::<serde_json::Value>(&metadata) else { return false };
    let mut all: Vec<(String, Option<String>)> = vec![];
    for package in metadata["packages"].as_array().into_iter().flatten().filter(|package| package["name"] != "xtask") {
        let name = package["name"].as_str().unwrap_or_default();
        let own = package["features"].as_object().into_iter().flat_map(|features| features.keys());
        let there = has("mpicc");
        let one = own.filter(|feature| *feature != "default" && (there || *feature != "mpi")).map(String::as_str);
        all.extend([""].into_iter().chain(one).map(|feature| (name.into(), Some(feature.into()))));
        all.push((name.into(), None));
    }
    let built = all.iter().all(|(name, feature)| {
        let mut arguments = vec!["clippy", "--quiet", "-p", name];
        if let Some(feature) = feature {
            arguments.extend(["--no-default-features", "--features", feature]);
        }
        println!("== cargo {}", arguments.join(" "));
        let clippy =
            Command::new(env!("CARGO")).args(&arguments).args(["--", "-D", "warnings"]).current_dir(root()).status();
        clippy.is_ok_and(|status| status.success())
    });
    let tree = output(&["tree", "-p", "limpid-core", "-e", "normal", "--prefix", "none", "--no-dedupe"]);
    let needed = tree.map_or(usize::MAX, |tree| tree.lines().collect::<std::collections::BTreeSet<_>>().len());
    println!("limpid-core needs {needed} crates, itself among them; at most {CORE_NEEDS} are allowed");
    built && needed <= CORE_NEEDS
}

/// Cargo in a folder, with one folder for all that is built, so that what several need is built once.
fn cargo_in(folder: &Path, arguments: &[&str]) -> bool {
    println!("== cargo {}", arguments.join(" "));
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(arguments).current_dir(folder).env("CARGO_TARGET_DIR", root().join("target"));
    cargo.status().is_ok_and(|status| status.success())
}

/// Packs and builds every crate as it would be published, in the order of publishing.
fn packed() -> bool {
    // the workspace's own profile, so that what is there already serves
    let profile =
        ["profile.dev.opt-level=1", "profile.dev.package.\"*\".opt-level=2", "profile.dev.package.\"*\".debug=false"];
    let mut arguments = vec!["package", "--workspace", "--exclude", "xtask", "--offline", "--allow-dirty"];
    arguments.extend(profile.into_iter().flat_map(|setting| ["--config", setting]));
    cargo_in(&root(), &arguments)
}

/// The same, then unpacks all and runs their tests.
fn package() -> bool {
    if !packed() {
        return false;
    }
    // one workspace of what was unpacked to be built, in which each finds the others
    let folder = root().join("target/package");
    let (version, mut members, mut patches) = (env!("CARGO_PKG_VERSION"), vec![], String::new());
    for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten().filter(|entry| entry.path().is_dir()) {
        let member = entry.file_name().to_string_lossy().to_string();
        if let Some(name) = member.strip_suffix(&format!("-{version}")) {
            patches += &format!("{name} = {{ path = \"{member}\" }}\n");
            members.push(member);
        }
    }
    let own = std::fs::read_to_string(root().join("Cargo.toml")).unwrap_or_default();
    let profiles = own.find("[profile").map_or("", |at| &own[at..]);
    let manifest =
        format!("[workspace]\nresolver = \"3\"\nmembers = {members:?}\n\n[patch.crates-io]\n{patches}\n{profiles}");
    let written = std::fs::write(folder.join("Cargo.toml"), manifest).is_ok()
        && std::fs::copy(root().join("Cargo.lock"), folder.join("Cargo.lock")).is_ok();
    written && cargo_in(&folder, &[&["test", "--offline", "--workspace"], &GATE[..]].concat())
}

/// Writes docs/settings.md anew.
fn settings() -> bool {
    let test = ["test", "--quiet", "--workspace", "--lib", "the_page_of_settings"];
    Command::new(env!("CARGO"))
        .args(test)
        .current_dir(root())
        .env("WRITE_DOCS", "1")
        .status()
        .is_ok_and(|s| s.success())
}

/// Builds, measures, and appends a row to the table for each instruction set that the machine has; a machine that is
/// busy gives rows that are not worth keeping.
fn bench_record() -> bool {
    let run = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).current_dir(root()).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_string())
    };
    if run(env!("CARGO"), &["build", "--release", "--quiet"]).is_none() {
        eprintln!("cargo build --release failed");
        return false;
    }
    let limpid = root().join("target/release/limpid").display().to_string();
    let json = |arguments: &str| -> Option<serde_json::Value> {
        let arguments: Vec<&str> = arguments.split_whitespace().chain(["--json"]).collect();
        eprintln!("limpid {}", arguments.join(" "));
        serde_json::from_str(&run(&limpid, &arguments)?).ok()
    };
    let figure = |arguments: &str, key: &str| {
        let Some(result) = json(arguments) else { return "-".to_string() };
        let share = result["share_of_roof"].as_f64().map_or(String::new(), |s| format!(" ({:.0} %)", 100.0 * s));
        result[key].as_f64().map_or("-".to_string(), |v| format!("{v:.1}{share}"))
    };
    let Some(machine) = json("doctor") else {
        eprintln!("limpid doctor failed");
        return false;
    };
    let levels = machine["simd_available"].as_array().into_iter().flatten().filter_map(|level| level.as_str());
    let path = root().join("docs/bench-record.md");
    let mut table = std::fs::read_to_string(&path).unwrap_or_else(|_| RECORD.to_string());
    for level in levels.filter(|level| *level != "portable") {
        let Some(machine) = json(&format!("doctor --simd {level}")) else { continue };
        let giga = |key: &str| machine[key].as_f64().map_or("-".to_string(), |v| format!("{:.0}", v / 1e9));
        let mut row = vec![
            run("date", &["-u", "+%F"]).unwrap_or_default(),
            run("git", &["rev-parse", "--short", "HEAD"]).unwrap_or_default(),
            format!("{}, {} threads, {level}", machine["cpu"].as_str().unwrap_or("?"), machine["threads"]),
            format!("{}, {}, {}", giga("roof_flops_f32"), giga("roof_flops_bf16"), giga("read_roof_bytes_s")),
        ];
        for precision in ["f32", "bf16"] {
            let with = |what: &str| format!("bench {what} --precision {precision} --simd {level}");
            row.push(figure(&with("train --preset nanogpt-cpu --steps 40"), "ms_per_step"));
            row.push(figure(&with("train --preset gpt2 --batch-size 4 --context 64 --steps 4"), "ms_per_step"));
            row.push(figure(&with("prefill --preset gpt2"), "tok_s"));
            row.push(figure(&with("decode --preset gpt2"), "tok_s"));
        }
        table += &format!("| {} |\n", row.join(" | "));
        println!("{}", table.lines().last().unwrap_or_default());
    }
    std::fs::write(&path, table).is_ok()
}

/// How the table begins.
const RECORD: &str = "\
# Record

Results of `cargo xtask bench-record`, oldest first. Roofs (the machine's measured limits) are in GFLOP/s for f32 and
bf16, then GB/s read from memory. Training is in milliseconds per step (nano: B 12, T 64; gpt2: B 4, T 64). Prefill of
256 tokens and decoding are in tokens per second. The percentage is the share of the roof measured in the same run.

| date | commit | machine | roofs | nano f32 | gpt2 f32 | prefill f32 | decode f32 | nano bf16 | gpt2 bf16 | prefill bf16 | decode bf16 |
|---|---|---|---|---|---|---|---|---|---|---|---|
";

/// Lines of code of each crate, tests, comments and blanks left out.
fn size() -> bool {
    let crates = root().join("crates");
    let mut sizes = std::collections::BTreeMap::<String, usize>::new();
    for file in source::files(&crates) {
        let place = file.strip_prefix(&crates).expect("below crates");
        let (name, folder) = (place.iter().next().expect("a crate"), place.iter().nth(1));
        if folder.is_some_and(|folder| folder == "src") && !source::is_test(place) {
            let code = source::without_tests(&std::fs::read_to_string(&file).unwrap_or_default());
            *sizes.entry(name.to_string_lossy().into()).or_default() += source::lines_of_code(&code);
        }
    }
    sizes.iter().for_each(|(name, n)| println!("{n:>6}  {name}"));
    println!("{:>6}  in all", sizes.values().sum::<usize>());
    true
}

//! What a release holds, built and tried: `cargo xtask dist` fills `target/assets` with all that Linux can make, and
//! `cargo xtask dist TARGET` with the archive of one target, for the systems that only build their own. Compilers come
//! from rustup, the other tools from PyPI (dist.txt), in an environment of their own. It ends at the first thing that
//! is not as it should be.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::root;

/// What was wrong, or what a step has made.
type Made<T = ()> = Result<T, String>;

/// A system that a release is built and tried for on Linux: a binary without any library, and a wheel.
struct Linux {
    processor: &'static str,
    /// How its programs are started here.
    runner: &'static [&'static str],
    /// The most bytes that its binary may take.
    most: u64,
}

/// The first is the one that this machine is taken for.
const LINUX: [Linux; 2] = [
    Linux { processor: "x86_64", runner: &[], most: 30_000_000 },
    Linux { processor: "aarch64", runner: &["qemu-aarch64"], most: 25_000_000 },
];

/// The most bytes that a wheel may take.
const WHEEL: u64 = 13_000_000;

/// The oldest glibc that a wheel asks for is of 2014.
const GLIBC: &str = "manylinux_2_17";

/// A training that is soon over.
const SMALL: [&str; 12] =
    ["--steps", "20", "--n-layer", "2", "--d-model", "32", "--n-head", "2", "--batch-size", "4", "--context", "32"];

/// The chore.
pub fn dist() -> bool {
    let made = match std::env::args().nth(2) {
        Some(target) => begin().and_then(|()| archive(&target, &[])).map(drop),
        None => all(),
    };
    made.inspect_err(|wrong| eprintln!("dist: {wrong}")).is_ok()
}

fn all() -> Made {
    begin()?;
    let tools = tools()?;
    may_be_given_away(&tools)?;
    let mut tried = vec![];
    for Linux { processor, runner, most } in &LINUX {
        let target = format!("{processor}-unknown-linux-musl");
        stands_alone(&archive(&target, runner)?, *most)?;
        tried.push(target);
    }
    same_bits(&tried)?;
    bill_of_materials(&tools)?;
    for Linux { processor, runner, .. } in &LINUX {
        let wheel = wheel(&tools, processor)?;
        if runner.is_empty() {
            try_wheel(&wheel)?;
        }
    }
    if !crate::packed() {
        return Err("a crate cannot be published as it is".into());
    }
    sums()?;
    installer(&tools)?;
    for file in fs::read_dir(assets()).into_iter().flatten().flatten() {
        println!("{:>12} bytes  {}", file.metadata().map_or(0, |data| data.len()), file.path().display());
    }
    Ok(())
}

/// Where all of it lies in the end.
fn assets() -> PathBuf {
    root().join("target/assets")
}

/// Where it is made and tried.
fn work() -> PathBuf {
    root().join("target/assets-work")
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// A release is of a commit: of its files alone, and of the version that its tag names.
fn begin() -> Made {
    let changed = said(Command::new("git").args(["status", "--porcelain"]).current_dir(root()))?;
    if !changed.is_empty() {
        return Err(format!("a release is made of a commit, and these files are of none (commit them):\n{changed}"));
    }
    let version = env!("CARGO_PKG_VERSION");
    if let Ok(tag) = std::env::var("GITHUB_REF_NAME")
        && tag.starts_with('v')
        && tag != format!("v{version}")
    {
        return Err(format!("the tag is {tag}, but Cargo.toml has version {version}"));
    }
    for place in [assets(), work()] {
        let _ = fs::remove_dir_all(&place); // of an earlier run
        folder(place)?;
    }
    Ok(())
}

fn read(file: &Path) -> Made<String> {
    fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))
}

fn write(file: &Path, text: &str) -> Made {
    fs::write(file, text).map_err(|error| format!("{}: {error}", file.display()))
}

fn copy(from: &Path, to: &Path) -> Made {
    fs::copy(from, to).map(drop).map_err(|error| format!("{} to {}: {error}", from.display(), to.display()))
}

fn folder(path: PathBuf) -> Made<PathBuf> {
    fs::create_dir_all(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path)
}

/// Runs a program, and shows what it says.
fn run(command: &mut Command) -> Made {
    println!("== {}", line(command));
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{}: {status}", line(command))),
        Err(error) => Err(format!("{} cannot be started: {error}; install it", command.get_program().display())),
    }
}

/// What a program says, which must succeed.
fn said(command: &mut Command) -> Made<String> {
    println!("== {}", line(command));
    let output = command.output();
    let output =
        output.map_err(|e| format!("{} cannot be started: {e}; install it", command.get_program().display()))?;
    let [said, wrong] = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    if output.status.success() { Ok(said) } else { Err(format!("{}: {}\n{said}{wrong}", line(command), output.status)) }
}

/// A command as one would type it.
fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// A fresh environment of Python's with the tools in it, as the folder of its programs.
fn tools() -> Made<PathBuf> {
    let place = work().join("tools");
    run(Command::new("python3").args(["-m", "venv", &text(&place)]))?;
    let programs = place.join("bin");
    run(Command::new(programs.join("pip")).args(["install", "-q", "-r", "xtask/dist.txt"]).current_dir(root()))?;
    Ok(programs)
}

/// A program of the tools, which finds the others.
fn tool(tools: &Path, name: &str) -> Command {
    let mut command = Command::new(tools.join(name));
    let others = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths([tools.to_path_buf()].into_iter().chain(std::env::split_paths(&others)));
    command.env("PATH", path.unwrap_or(others)).current_dir(root());
    command
}

/// Licences, sources and known faults of all that limpid is made of (deny.toml).
fn may_be_given_away(tools: &Path) -> Made {
    run(tool(tools, "cargo-deny").args(["check", "licenses", "bans", "sources"]))?;
    if run(tool(tools, "cargo-deny").args(["fetch", "db"])).is_err() && !crate::in_ci() {
        println!("known faults skipped: their list cannot be had");
        return Ok(());
    }
    run(tool(tools, "cargo-deny").args(["check", "advisories"]))
}

/// The command for a target, built, tried and packed with all that goes with it: the binary that was packed.
fn archive(target: &str, runner: &[&str]) -> Made<PathBuf> {
    let (built, name) = (build(target)?, format!("limpid-{}-{target}", env!("CARGO_PKG_VERSION")));
    let (packed, completions) = (work().join(&name), folder(work().join(&name).join("completions"))?);
    let binary = packed.join(built.file_name().unwrap_or_default());
    copy(&built, &binary)?;
    for file in ["README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT"] {
        copy(&root().join(file), &packed.join(file))?;
    }
    let limpid = |arguments: &[&str]| {
        let own = text(&binary);
        let words = [runner, &[&own], arguments].concat();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).current_dir(work());
        command
    };
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        write(&completions.join(format!("limpid.{shell}")), &said(&mut limpid(&["completions", shell]))?)?;
    }
    said(&mut limpid(&["man", &text(&packed.join("man"))]))?;
    // it does what it is for, with a model that an emulated processor trains in a minute
    let trained = text(&trained(target));
    run(limpid(&["train", "--out", &trained]).args(SMALL))?;
    let text = said(&mut limpid(&["generate", &trained, "--prompt", "Once upon a time", "--max-tokens", "20"]))?;
    let next = said(&mut limpid(&["inspect", &trained, "--prompt", "Once upon a time", "--next"]))?;
    write(&Path::new(&trained).join("said.txt"), &format!("{text}\n{next}"))?;
    // by a place without a letter for a drive, which tar would take for a machine
    let archive = format!("../assets/{name}.tar.gz");
    run(Command::new("tar").args(["czf", &archive, &name]).current_dir(work()))?;
    Ok(binary)
}

/// Where the command of a target has trained.
fn trained(target: &str) -> PathBuf {
    work().join(format!("run-{target}"))
}

/// The command for a target.
fn build(target: &str) -> Made<PathBuf> {
    run(Command::new("rustup").args(["target", "add", target]).current_dir(root()))?;
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--profile", "dist", "--locked", "--package", "limpid-cli", "--target", target]);
    if !target.ends_with("-musl") {
        cargo.args(["--features", "gpu"]); // a static binary can load no driver of a GPU
    }
    run(linked(&mut cargo, target).current_dir(root()))?;
    let name = if target.contains("windows") { "limpid.exe" } else { "limpid" };
    Ok(root().join("target").join(target).join("dist").join(name))
}

/// A static binary for another processor is linked by Rust's own linker; the C library comes with Rust either way.
fn linked<'a>(command: &'a mut Command, target: &str) -> &'a mut Command {
    let foreign = target.ends_with("-musl") && !target.starts_with(LINUX[0].processor);
    let linker = format!("CARGO_TARGET_{}_LINKER", target.replace('-', "_").to_uppercase());
    command.envs(foreign.then_some((linker, "rust-lld")))
}

/// A binary needs no library and no loader, and is not larger than it should be.
fn stands_alone(binary: &Path, most: u64) -> Made {
    let parts = said(Command::new("readelf").args(["--wide", "--program-headers", "--dynamic"]).arg(binary))?;
    if let Some(part) = ["INTERP", "NEEDED"].into_iter().find(|part| parts.contains(part)) {
        return Err(format!("{} is not static: it has {part}", binary.display()));
    }
    fits(binary, most)
}

/// A file is not larger than it should be.
fn fits(file: &Path, most: u64) -> Made {
    let size = file.metadata().map_err(|error| format!("{}: {error}", file.display()))?.len();
    println!("{}: {size} bytes, at most {most}", file.display());
    if size <= most { Ok(()) } else { Err(format!("{} has {size} bytes; at most {most}", file.display())) }
}

/// The crates that the command is made of on any system, as CycloneDX: maturin writes it into what it packs, a wheel of
/// the binary that is built already.
fn bill_of_materials(tools: &Path) -> Made {
    let (target, wheels) = (format!("{}-unknown-linux-musl", LINUX[0].processor), work().join("bill"));
    let mut maturin = tool(tools, "maturin");
    maturin.args([
        "build",
        "--bindings",
        "bin",
        "--manifest-path",
        "crates/limpid-cli/Cargo.toml",
        "--profile",
        "dist",
    ]);
    run(maturin.args(["--locked", "--target", &target, "--out", &text(&wheels)]))?;
    let (wheel, version) = (only(&wheels)?, env!("CARGO_PKG_VERSION"));
    run(tool(tools, "python").args(["-m", "zipfile", "-e", &text(&wheel), &text(&wheels)]))?;
    let bill = read(&wheels.join(format!("limpid_cli-{version}.dist-info/sboms/limpid-cli.cyclonedx.json")))?;
    // a crate's place is in the repository, wherever that was
    write(&assets().join(format!("limpid-{version}.cdx.json")), &bill.replace(&text(&root()), ""))
}

/// The only file of a folder.
fn only(place: &Path) -> Made<PathBuf> {
    let files: Vec<PathBuf> = fs::read_dir(place).into_iter().flatten().flatten().map(|file| file.path()).collect();
    match <[PathBuf; 1]>::try_from(files) {
        Ok([file]) => Ok(file),
        Err(files) => Err(format!("{} holds {} files, not one", place.display(), files.len())),
    }
}

/// What the binaries have trained and said is the same, byte for byte.
fn same_bits(targets: &[String]) -> Made {
    for file in ["model.safetensors", "said.txt"] {
        let read = |target: &String| fs::read(trained(target).join(file)).map_err(|error| format!("{file}: {error}"));
        let all: Vec<Vec<u8>> = targets.iter().map(read).collect::<Made<_>>()?;
        if all.windows(2).any(|two| two[0] != two[1]) {
            return Err(format!("{file} of {} differ", targets.join(" and ")));
        }
        println!("{file} of {} is the same, byte for byte", targets.join(" and "));
    }
    Ok(())
}

/// The wheel for a processor, with the tag that it deserves.
fn wheel(tools: &Path, processor: &str) -> Made<PathBuf> {
    let target = format!("{processor}-unknown-linux-gnu");
    run(Command::new("rustup").args(["target", "add", &target]).current_dir(root()))?;
    let wheels = work().join(format!("wheel-{processor}"));
    let mut maturin = tool(tools, "maturin");
    maturin.args(["build", "--locked", "--manifest-path", "crates/limpid-python/Cargo.toml", "--target", &target]);
    run(maturin.args(["--zig", "--compatibility", GLIBC, "--out", &text(&wheels)]))?;
    let wheel = only(&wheels)?;
    let shown = said(tool(tools, "auditwheel").arg("show").arg(&wheel))?;
    println!("{shown}");
    let tag = format!("{GLIBC}_{processor}");
    if !shown.split_whitespace().any(|word| word.trim_matches(|c: char| "\".,".contains(c)) == tag) {
        return Err(format!("{} is not what {tag} says", wheel.display()));
    }
    fits(&wheel, WHEEL)?;
    let given = assets().join(wheel.file_name().unwrap_or_default());
    copy(&wheel, &given)?;
    Ok(given)
}

/// Installs a wheel for this machine with nothing but what it asks for, and uses it.
fn try_wheel(wheel: &Path) -> Made {
    let place = work().join("use");
    run(Command::new("python3").args(["-m", "venv", &text(&place)]))?;
    run(Command::new(place.join("bin/pip")).args(["install", "-q", &text(wheel)]))?;
    run(Command::new(place.join("bin/python")).arg("crates/limpid-python/tests/alone.py").current_dir(root()))
}

/// The checksums of all that is given away.
fn sums() -> Made {
    let sums = said(Command::new("sh").args(["-c", "sha256sum limpid*"]).current_dir(assets()))?;
    write(&assets().join("SHA256SUMS"), &sums)
}

/// The installer of this version, which installs what lies here.
fn installer(tools: &Path) -> Made {
    let script = read(&root().join(".github/install.sh"))?.replace("@VERSION@", env!("CARGO_PKG_VERSION"));
    let script = match std::env::var("GITHUB_REPOSITORY") {
        Ok(repository) => script.replace("@REPOSITORY@", &repository),
        Err(_) => script, // it then needs to be told where the files are
    };
    let (given, to) = (assets().join("install.sh"), work().join("installed"));
    write(&given, &script)?;
    run(tool(tools, "shellcheck").arg(&given))?;
    run(Command::new("sh").arg(&given).arg(&to).env("LIMPID_FROM", format!("file://{}", assets().display())))?;
    run(Command::new(to.join("limpid")).arg("--version"))
}

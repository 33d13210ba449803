//! Other processors and systems, on an x86 machine. limpid is built for ARM and runs there by an emulator, and the
//! hashes of what it computes must be those of this processor; for macOS and Windows it must compile; and for browsers
//! the module of live pages is made. `targets.sh` makes the compiler.

use crate::{OPEN_MPI, heavy, root, steps};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::SystemTime;

const ARM: &str = "aarch64-unknown-linux-gnu";
const BROWSER: &str = "wasm32-wasip1";
const SYSTEMS: [&str; 2] = ["aarch64-apple-darwin", "x86_64-pc-windows-msvc"];

/// Processors to emulate: one with every instruction that there is, and an old one.
const PROCESSORS: [&str; 2] = ["max", "cortex-a72"];

/// Tests that run on ARM: the crate, and the arguments of `cargo test`. An emulator is slow, so of core there are the
/// tests of what differs by processor; `same_bits` stands for the facade.
const TESTS: [&[&str]; 3] =
    [&["limpid-core", "--lib", "--", "matrix::"], &["limpid-tokenizer", "--lib"], &["limpid-checkpoint", "--lib"]];

/// The module that a live page carries, in target/web: the command that is built next puts it into pages. Where no
/// compiler for it can be had, there is none, and nothing is missing but live pages.
pub fn web() -> bool {
    let Some(compiler) = Compiler::new(&[BROWSER]) else { return true };
    compiler.modules()
}

/// What fits into the gate: ARM's bits.
pub fn gate() -> bool {
    let Some(compiler) = Compiler::new(&[ARM]) else { return true };
    compiler.arm_has_the_same_bits()
}

/// Everything.
pub fn whole() -> bool {
    let Some(compiler) = Compiler::new(&[&[ARM, BROWSER], &SYSTEMS[..]].concat()) else { return true };
    let checks = || SYSTEMS.iter().all(|system| compiler.cargo(&["check", "--target", system], "-D warnings"));
    let tests = || TESTS.iter().all(|test| compiler.cargo(&[&["test", "--target", ARM, "-p"], *test].concat(), ""));
    compiler.arm_has_the_same_bits() && compiler.modules() && checks() && tests()
}

/// A compiler for other targets.
struct Compiler {
    folder: PathBuf,
}

impl Compiler {
    /// Makes what is missing below target/; says why there is none where packages cannot be had.
    fn new(targets: &[&str]) -> Option<Compiler> {
        let folder = root().join("target/targets");
        let mut script = Command::new("bash");
        script.current_dir(root()).arg("xtask/targets.sh").arg(&folder).args(targets).env("CARGO", env!("CARGO"));
        let done = script.status();
        if done.as_ref().is_ok_and(|status| status.success()) {
            return Some(Compiler { folder });
        }
        println!("{} left out: no compiler for other targets", targets.join(", "));
        None
    }

    /// Runs cargo with this compiler.
    fn cargo(&self, arguments: &[&str], flags: &str) -> bool {
        println!("== cargo {}", arguments.join(" "));
        self.command(arguments, flags).status().is_ok_and(|status| status.success())
    }

    fn command(&self, arguments: &[&str], flags: &str) -> Command {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(arguments).current_dir(root());
        cargo.env("RUSTC", self.folder.join("rustc")).env("RUSTDOC", self.folder.join("rustdoc"));
        cargo.env("CARGO_TARGET_DIR", self.folder.join("target")).env("RUSTFLAGS", flags);
        cargo.env("CARGO_TARGET_WASM32_WASIP1_LINKER", self.folder.join("wasm-ld"));
        cargo.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc");
        cargo.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", "qemu-aarch64 -L /usr/aarch64-linux-gnu");
        cargo
    }

    /// What each level of this processor and of each emulated one computes, held against each other.
    fn arm_has_the_same_bits(&self) -> bool {
        let example = ["run", "--quiet", "-p", "limpid", "--example", "same_bits", "--target", ARM];
        let mut hashes: BTreeMap<String, BTreeMap<String, Vec<String>>> = BTreeMap::new();
        let mut take = |processor: &str, mut command: Command| {
            println!("== same_bits on {processor}");
            let output = command.output();
            let lines = output.as_ref().map_or(String::new(), |output| String::from_utf8_lossy(&output.stdout).into());
            for (name, rest) in lines.lines().filter_map(|line| line.split_once(':')) {
                let (level, hash) = rest.trim().split_once(' ').unwrap_or_default();
                let same = hashes.entry(name.into()).or_default().entry(hash.trim().into()).or_default();
                same.push(format!("{processor} {level}"));
            }
            let done = output.is_ok_and(|output| {
                eprint!("{}", String::from_utf8_lossy(&output.stderr));
                output.status.success()
            });
            done && !lines.is_empty()
        };
        // built as the gate builds its tests, so that nothing is compiled again
        let Some(features) = heavy() else { return false };
        let built = steps(&[(
            &["build", "--quiet", "--workspace", "--features", features, "--example", "same_bits"],
            &[OPEN_MPI],
        )]);
        let all = built
            && take("this processor", Command::new(root().join("target/debug/examples/same_bits")))
            && PROCESSORS.iter().all(|processor| {
                let mut emulated = self.command(&example, "");
                emulated.env("QEMU_CPU", processor);
                take(processor, emulated)
            });
        for (name, hashes) in &hashes {
            println!("{name}: {}", if hashes.len() == 1 { "the same everywhere" } else { "NOT the same" });
            hashes.iter().for_each(|(hash, places)| println!("  {hash} {}", places.join(", ")));
        }
        all && hashes.values().all(|hashes| hashes.len() == 1)
    }

    /// Two modules: what a page with a model has inside, and what one has that trains.
    fn modules(&self) -> bool {
        // cargo looks at them only if they were there, or this script has changed
        let script = root().join("crates/limpid-serve/build.rs");
        let touch = || fs::File::options().append(true).open(script)?.set_modified(SystemTime::now());
        self.module("limpid.wasm", &["--no-default-features"])
            && self.module("training.wasm", &[])
            && touch().inspect_err(|error| println!("target/web: {error}")).is_ok()
    }

    fn module(&self, name: &str, features: &[&str]) -> bool {
        // where an engine lacks these instructions, the page replaces them (ui/multiply-add.js)
        let flags = "-D warnings -Ctarget-feature=+simd128,+relaxed-simd -Cpanic=immediate-abort -Zunstable-options \
                     -Clink-arg=--compress-relocations";
        let build = ["build", "--profile", "web", "--target", BROWSER, "-p", "limpid-web"];
        let mut cargo = self.command(&[&build, features].concat(), flags);
        println!("== cargo {} {}", build.join(" "), features.join(" "));
        let built = cargo.env("RUSTC_BOOTSTRAP", "1").status().is_ok_and(|status| status.success());
        let from = self.folder.join("target").join(BROWSER).join("web/limpid_web.wasm");
        let to = root().join("target/web");
        let put = || fs::create_dir_all(&to).and_then(|()| fs::copy(&from, to.join(name)));
        let said = |bytes: &u64| println!("target/web/{name}: {bytes} bytes");
        built && put().inspect(said).inspect_err(|error| println!("target/web/{name}: {error}")).is_ok()
    }
}

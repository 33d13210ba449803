//! What training withstands: signals and kills at any moment, a full disk, files that cannot be written, streams that
//! are closed. The run that comes out of it is, to the bit, the run that nothing happened to, or what failed was told.
//! LIMPID_KILLS=1000 runs as often with a fault (40 times without), LIMPID_SEED chooses others.
#![cfg(unix)]

use crate::common::{Folder, end, kill, last_holds, within};
use limpid::checkpoint::safetensors_file;
use limpid::numeric::random;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const TINY: &[&str] = &[
    "--tokenizer",
    "char",
    "--n-layer",
    "2",
    "--d-model",
    "16",
    "--n-head",
    "2",
    "--context-length",
    "16",
    "--batch-size",
    "4",
    "--steps",
    "40",
    "--eval-every",
    "8",
    "--save-every",
    "2",
    "--detail-every",
    "10",
    "--sample",
    "0",
    "--threads",
    "2",
];

fn folder(name: &str) -> Folder {
    let folder = Folder::new(name);
    folder.file("text.txt", text());
    folder
}

/// Some text: words of a few letters, drawn.
fn text() -> String {
    let word = |i| ["the", "cat", "saw", "a", "dog", "and", "ran", "home", "."][random::below(3, 0, i, 9) as usize];
    (0..4000).map(|i| format!("{} ", word(i))).collect()
}

fn train(at: &Path, run: &str, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_limpid"));
    command.current_dir(at).args(["train", "--data", "text.txt", "--out", run, "--resume", "auto"]);
    command
        .args(last_holds([TINY, more].concat().iter().map(ToString::to_string).collect()))
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    command
}

/// What a state says of itself, without how long it took, and its tensors.
fn state(run: &Path) -> (Value, Vec<(String, Vec<f32>)>) {
    let store = safetensors_file::open(&run.join("state/last.safetensors")).expect("the state is whole");
    let mut said: Value = serde_json::from_str(store.fact("limpid").unwrap()).unwrap();
    (said["seconds"], said["log"]) = (Value::Null, Value::Null); // both have times in them
    let names: Vec<String> = store.names().map(String::from).collect();
    (said, names.into_iter().map(|name| (name.clone(), store.get(&name).unwrap().values().unwrap().to_vec())).collect())
}

/// All that a run leaves that is not a time.
fn left(run: &Path) -> impl PartialEq + use<> {
    let untimed = |line: &str| {
        let mut value: Value = serde_json::from_str(line).expect("a whole line");
        value.as_object_mut().unwrap().retain(|key, _| key != "seconds" && key != "time");
        value
    };
    let metrics: Vec<Value> = fs::read_to_string(run.join("metrics.jsonl")).unwrap().lines().map(untimed).collect();
    (state(run), fs::read(run.join("model.safetensors")).unwrap(), metrics)
}

fn finish(mut command: Command) {
    let done = command.output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// A variable of the environment, or a number in its place.
fn asked(name: &str, or: u64) -> u64 {
    std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(or)
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Waits until `done`; a minute is too long.
#[track_caller]
fn until(what: &str, done: impl FnMut() -> bool) {
    assert!(within(Duration::from_secs(60), done), "{what} takes too long");
}

/// What a process says until it ends; two minutes are too long.
#[track_caller]
fn ends(child: Child) -> Output {
    let (output, ended) = end(child, Duration::from_secs(120));
    assert!(ended, "it does not end: {}", said(&output));
    output
}

/// The same run through a shell, which takes away room or streams.
fn in_shell(at: &Path, run: &str, more: &[&str], before: &str, after: &str) -> Command {
    let program = env!("CARGO_BIN_EXE_limpid");
    let flags = last_holds([TINY, more].concat().iter().map(ToString::to_string).collect()).join(" ");
    let script = format!("{before} {program} train --data text.txt --out {run} --resume auto {flags} {after}");
    let mut command = Command::new("sh");
    command.current_dir(at).args(["-c", &script]).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

const VARIANTS: [&[&str]; 4] = [
    &[],
    &["--accumulate", "3", "--dropout", "0.2", "--save-every", "7"],
    &["--optimizer", "muon", "--ema", "0.9", "--keep", "2", "--z-loss", "0.001"],
    &["--precision", "bf16", "--optimizer", "sgd", "--learning-rate", "0.1", "--label-smoothing", "0.1"],
];

/// Takes a run up until it is done. One that ended without a state is not begun again over its weights, unless that is
/// asked for.
#[track_caller]
fn finish_what_is_left(at: &Path, run: &str, more: &[&str]) {
    let has = |file: &str| at.join(run).join(file).exists();
    if has("state/last.safetensors") || !has("summary.json") {
        return finish(train(at, run, more));
    }
    let refused = train(at, run, more).output().unwrap();
    assert!(said(&refused).contains("without a state to resume from"), "{}", said(&refused));
    let (code, _, said) = begin(at, &[&["--out", run, "--force"], more].concat());
    assert_eq!(code, Some(0), "{said}");
}

/// What is done to a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    Signal(&'static str),
    /// No file may be larger than so many blocks of 512 bytes.
    Room(u64),
    /// A folder stands where a file would be put.
    InTheWay(&'static str),
}

/// A run with a fault at a random place; then it is taken up until it is done. Returns how the first part ended.
fn faulty(at: &Path, run: &str, more: &[&str], fault: Fault, share: f64, whole: Duration) -> &'static str {
    let folder = at.join(run);
    let output = match fault {
        Fault::Room(blocks) => {
            in_shell(at, run, more, &format!("trap '' XFSZ; ulimit -f {blocks}; exec"), "").output().unwrap()
        }
        Fault::Signal(_) | Fault::InTheWay(_) => {
            let mut child = train(at, run, more).spawn().unwrap();
            let moment = Instant::now() + whole.mul_f64(share);
            while Instant::now() < moment && child.try_wait().unwrap().is_none() {
                std::thread::sleep(Duration::from_millis(1));
            }
            match fault {
                Fault::Signal(name) => drop(kill(&format!("-{name}"), child.id())),
                Fault::InTheWay(file) => drop(fs::create_dir_all(folder.join(file).join("x"))),
                Fault::Room(_) => {}
            }
            ends(child)
        }
    };
    let (code, told) = (output.status.code(), said(&output));
    assert!(!told.contains("panicked"), "{fault:?}: {told}");
    let how = match (code, fault) {
        (Some(0), _) => "ended",
        (Some(130), Fault::Signal("INT" | "TERM" | "HUP")) => "stopped, 130",
        (None, Fault::Signal("KILL")) => "killed",
        (None, Fault::Signal(_)) => {
            assert!(!folder.exists(), "{fault:?} at {share:.3}: it listens before it makes a folder");
            "killed before it listened"
        }
        (Some(1), Fault::Room(_) | Fault::InTheWay(_)) => {
            let named = told.lines().last().is_some_and(|line| line.starts_with("error: ") && line.contains(run));
            assert!(named, "{fault:?}: {told}");
            "told, 1"
        }
        _ => panic!("{fault:?} at {share:.3}: {code:?}: {told}"),
    };
    if let Fault::InTheWay(file) = fault
        && folder.join(file).is_dir()
    {
        fs::remove_dir_all(folder.join(file)).unwrap();
    }
    how
}

#[test]
#[ignore = "gate"]
fn a_fault_at_any_place_is_told_and_changes_nothing() {
    let (runs, seed) = (asked("LIMPID_KILLS", 40), asked("LIMPID_SEED", 1));
    let mut outcomes = BTreeMap::<(String, &str), usize>::new();
    let wholes = VARIANTS.iter().enumerate().map(|(v, more)| {
        let at = folder(&format!("faults{v}"));
        let start = Instant::now();
        finish(train(&at, "whole", more));
        let whole = start.elapsed();
        let want = left(&at.join("whole"));
        (at, whole, want)
    });
    let wholes: Vec<_> = wholes.collect();
    for n in 0..runs {
        let draw = |site, below| random::below(seed, site, n, below);
        let (v, name) = (n as usize % VARIANTS.len(), format!("run{n}"));
        let ((at, whole, want), more) = (&wholes[v], VARIANTS[v]);
        let files = [
            "model.safetensors",
            "state/last.safetensors",
            "summary.json",
            "report.html",
            "config.json",
            "limpid.toml",
        ];
        let fault = match draw(0, 8) {
            0 => Fault::Signal("INT"),
            1 => Fault::Signal("TERM"),
            2 => Fault::Signal("HUP"),
            3 => Fault::Signal("PIPE"),
            4 | 5 => Fault::Signal("KILL"),
            6 => Fault::Room(draw(1, 240)),
            _ => Fault::InTheWay(files[draw(2, files.len() as u64) as usize]),
        };
        let how = faulty(at, &name, more, fault, random::uniform(seed, 3, n), *whole);
        let kind = match fault {
            Fault::Signal(name) => name.to_string(),
            Fault::Room(_) => "no room".into(),
            Fault::InTheWay(_) => "in the way".into(),
        };
        *outcomes.entry((kind, how)).or_default() += 1;
        // what was saved is whole
        let run = at.join(&name);
        if run.join("state/last.safetensors").exists() {
            state(&run);
        }
        // and whoever says that all is done has done it all
        if how == "ended" {
            files.iter().for_each(|file| assert!(run.join(file).exists(), "run {n}, {fault:?}, {more:?}: no {file}"));
            assert!(left(&run) == *want, "run {n}, {fault:?}, {more:?}: another run");
        }
        finish_what_is_left(at, &name, more);
        assert!(left(&run) == *want, "run {n}, {fault:?}, {how}, {more:?}: another run");
        fs::remove_dir_all(run).unwrap();
    }
    for ((fault, how), n) in &outcomes {
        println!("{n:5}  {fault:<10}  {how}");
    }
}

/// Whoever listened has gone, before or while the run goes on: it goes on all the same.
#[test]
#[ignore = "gate"]
fn a_closed_stream_ends_no_training() {
    let at = folder("streams");
    finish(train(&at, "whole", &[]));
    let want = left(&at.join("whole"));
    for (n, after) in [">&-", "2>&-", ">&- 2>&-", "2>/dev/full", ">/dev/full", "2>&1 | head -1", "2>&1 | true"]
        .into_iter()
        .enumerate()
    {
        let name = format!("run{n}");
        let output = in_shell(&at, &name, &[], "", after).output().unwrap();
        assert!(!said(&output).contains("panicked"), "{after}: {}", said(&output));
        assert_eq!(output.status.code(), Some(0), "{after}: {}", said(&output));
        assert!(at.join(&name).join("summary.json").exists(), "{after}: it did not end");
        assert!(left(&at.join(&name)) == want, "{after}: another run");
    }
}

/// A file that may not grow stands for a disk that is full: training goes on and says so, the last state stays whole,
/// and with room again the run is as if nothing had been.
#[test]
#[ignore = "gate"]
fn a_full_disk_loses_nothing() {
    let at = folder("full");
    finish(train(&at, "whole", &[]));
    let first = train(&at, "run", &["--steps", "40"]).spawn().unwrap();
    interrupt_after_a_save(first, &at.join("run"));
    let before = state(&at.join("run"));
    // 1 KiB: not even the log finds room; 10 KiB: the log does, the best weights and the state do not
    for blocks in [2, 20] {
        let output =
            in_shell(&at, "run", &[], &format!("trap '' XFSZ; ulimit -f {blocks}; exec"), "").output().unwrap();
        let said = said(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("It is tried again at the next save"), "{said}");
        assert!(
            said.contains("File too large") && said.contains("some files of the run could not be written"),
            "{said}"
        );
        assert!(said.contains("40 steps in"), "it trained to its end: {said}");
        assert_eq!(state(&at.join("run")), before, "{said}");
    }
    finish(train(&at, "run", &[]));
    assert!(left(&at.join("run")) == left(&at.join("whole")));
}

/// Stops a run as Ctrl-C does, once it has saved a state.
fn interrupt_after_a_save(child: Child, run: &Path) {
    until("the first save", || run.join("state/last.safetensors").exists());
    kill("-INT", child.id());
    let output = ends(child);
    assert_eq!(output.status.code(), Some(130), "{}", said(&output));
}

/// A folder stands where each of a run's files would be put: it is told, what can be kept is, and the run ends.
#[test]
#[ignore = "gate"]
fn a_file_that_cannot_be_written_is_named() {
    let at = folder("unwritable");
    finish(train(&at, "whole", &[]));
    let want = left(&at.join("whole"));
    for (file, begins) in [
        ("model.safetensors", true),
        ("summary.json", true),
        ("report.html", true),
        ("config.json", false),
        ("limpid.toml", false),
    ] {
        let run = at.join("run");
        let way = run.join(file);
        fs::create_dir_all(way.join("x")).unwrap();
        fs::create_dir_all(run.join("state")).unwrap();
        fs::write(run.join("state/lock"), "").unwrap();
        let output = train(&at, "run", &[]).output().unwrap();
        let said = said(&output);
        assert_eq!(output.status.code(), Some(1), "{file}: {said}");
        assert!(said.lines().last().unwrap().contains(file), "{file}: {said}");
        assert_eq!(said.contains("40 steps in"), begins, "{file}: {said}");
        assert_eq!(run.join("metrics.jsonl").exists(), begins, "{file}");
        fs::remove_dir_all(way).unwrap();
        finish_what_is_left(&at, "run", &[]);
        assert!(left(&run) == want, "{file}");
        fs::remove_dir_all(run).unwrap();
    }
}

#[test]
fn two_processes_do_not_share_a_folder() {
    let at = folder("shared");
    let endless = &["--steps", "100000", "--save-every", "10"];
    let first = train(&at, "run", endless).spawn().unwrap();
    until("the first save", || at.join("run/state/last.safetensors").exists());
    let output = train(&at, "run", endless).output().unwrap();
    interrupt_after_a_save(first, &at.join("run"));
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("another process is training in run"), "{}", said(&output));
}

/// limpid in a folder: its exit code, stdout and stderr.
fn limpid(at: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    let arguments = last_holds(arguments.iter().map(ToString::to_string).collect());
    let output = Command::new(env!("CARGO_BIN_EXE_limpid")).current_dir(at).args(arguments).output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned(), said(&output))
}

/// `train` with the small sizes, `more` after them.
fn begin(at: &Path, more: &[&str]) -> (Option<i32>, String, String) {
    limpid(at, &[&["train", "--data", "text.txt"], TINY, more].concat())
}

/// Killed before its first save, a run knows its settings: neither `--resume auto` nor `--resume DIR` needs another
/// flag.
#[test]
fn a_run_that_saved_nothing_begins_again_as_it_was() {
    let at = folder("again");
    let (code, _, said) = begin(&at, &["--out", "whole"]);
    assert_eq!(code, Some(0), "{said}");
    for resume in ["auto", "DIR"] {
        let flags = [&["train", "--data", "text.txt"], TINY, &["--save-every", "0", "--accumulate", "400"]].concat();
        let mut child = Command::new(env!("CARGO_BIN_EXE_limpid"));
        child.current_dir(&at.0).args(last_holds(flags.iter().map(ToString::to_string).collect()));
        let mut child = child.stderr(Stdio::null()).spawn().unwrap();
        let run = || fs::read_dir(at.join("runs")).ok()?.flatten().map(|e| e.path()).next();
        until("the first step", || {
            run().is_some_and(|run| fs::metadata(run.join("metrics.jsonl")).is_ok_and(|m| m.len() > 0))
        });
        kill("-KILL", child.id());
        child.wait().unwrap();
        let run = run().unwrap();
        assert!(!run.join("state/last.safetensors").exists(), "it was killed before it saved");
        let dir = if resume == "auto" { "auto" } else { run.to_str().unwrap() };
        let (code, _, said) = limpid(&at, &["train", "--resume", dir, "--accumulate", "1", "--save-every", "2"]);
        assert_eq!(code, Some(0), "{said}");
        assert!(said.contains("begins again") && !said.contains("stories"), "{said}");
        assert!(state(&run).1 == state(&at.join("whole")).1, "--resume {resume}");
        fs::remove_dir_all(at.join("runs")).unwrap();
    }
}

/// A run that is refused before its first step leaves nothing, and what some other program left in runs/ is passed
/// over.
#[test]
fn a_run_that_never_began_leaves_nothing() {
    let at = folder("never");
    for refused in [&["--init-std", "5"][..], &["--out", "runs/deep/er", "--init-std", "5"], &["--context", "99"]] {
        let (code, _, said) = begin(&at, refused);
        assert_eq!(code, Some(1), "{said}");
        assert!(!at.join("runs").exists(), "{refused:?}");
    }
    assert_eq!(begin(&at, &["--out", "runs/one"]).0, Some(0));
    assert_eq!(begin(&at, &["--out", "runs/two", "--steps", "6"]).0, Some(0));
    fs::create_dir_all(at.join("runs/none/state")).unwrap();
    fs::create_dir_all(at.join("runs/empty")).unwrap();
    fs::write(at.join("runs/empty/metrics.jsonl"), "").unwrap();
    fs::write(at.join("runs/notes.txt"), "").unwrap();
    let runs = ["runs/empty", "runs/none", "runs/notes.txt", "runs/one", "runs/two"];
    let (code, out, said) = limpid(&at, &[&["report", "--json"], &runs[..]].concat());
    assert_eq!(code, Some(0), "{said}");
    let found: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(found["runs"].as_array().unwrap().len(), 2);
    assert_eq!(found["passed_over"], serde_json::json!(runs[..3]));
    assert!(runs[..3].iter().all(|run| said.contains(run)), "{said}");
    let (code, _, said) = limpid(&at, &["report", "runs/empty", "runs/none"]);
    assert!(code == Some(1) && said.contains("none of the 2 folders"), "{said}");
}

/// What no run put into a folder stays as it is, whatever it is.
#[test]
fn a_folder_of_something_else_is_refused() {
    let at = folder("else");
    assert_eq!(begin(&at, &["--out", "base", "--activation", "gelu-tanh"]).0, Some(0));
    assert_eq!(limpid(&at, &["convert", "base", "hf", "--to", "hf"]).0, Some(0));
    fs::rename(at.join("hf/model.safetensors"), at.join("hf/model-00001-of-00001.safetensors")).unwrap();
    fs::write(at.join("hf/model.safetensors.index.json"), "{}").unwrap();
    for (name, file) in
        [("config", "config.json"), ("settings", "limpid.toml"), ("notes", "notes.txt"), ("data", "a.csv")]
    {
        fs::create_dir_all(at.join(name)).unwrap();
        fs::write(at.join(name).join(file), "# mine").unwrap();
    }
    let files = |name: &str| {
        let of = |e: fs::DirEntry| (e.path(), fs::read(e.path()).unwrap_or_default());
        let mut all: Vec<_> = fs::read_dir(at.join(name)).unwrap().flatten().map(of).collect();
        all.sort();
        all
    };
    for name in ["hf", "config", "settings", "notes", "data"] {
        let before = files(name);
        for more in [&[][..], &["--resume", "auto"]] {
            let (code, _, said) = begin(&at, &[&["--out", name], more].concat());
            assert!(matches!(code, Some(1 | 2)), "{name} {more:?}: {said}");
            assert!(said.contains(name), "{said}");
            assert_eq!(files(name), before, "{name}");
        }
        let (code, _, said) = limpid(&at, &["train", "--resume", name]);
        assert!(matches!(code, Some(1 | 2)) && said.contains(name), "{said}");
        assert_eq!(files(name), before, "{name}");
    }
    // nor is the model that is trained on
    let before = files("base");
    let tune = ["train", "--from", "base", "--data", "text.txt", "--steps", "2", "--out", "base"];
    for more in [&[][..], &["--force"]] {
        let (code, _, said) = limpid(&at, &[&tune, more].concat());
        assert!(code == Some(1) && said.contains("base"), "{said}");
        assert_eq!(files("base"), before);
    }
    let (code, _, said) = begin(&at, &["--out", "hf", "--force"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(
        !at.join("hf/model.safetensors.index.json").exists()
            && !at.join("hf/model-00001-of-00001.safetensors").exists()
    );
    assert_eq!(limpid(&at, &["generate", "--model", "hf", "--prompt", "the", "-n", "3"]).0, Some(0));
}

/// What was typed is done or refused when a run goes on: its tokenizer, its text, its precision.
#[test]
fn what_a_run_cannot_change_is_refused() {
    let at = folder("typed");
    assert_eq!(begin(&at, &["--out", "run", "--schedule", "constant"]).0, Some(0));
    let resume = |more: &[&str]| limpid(&at, &[&["train", "--resume", "run", "--steps", "44"], more].concat());
    let refused = |more: &[&str], what: &str| {
        let (code, _, said) = resume(more);
        assert!(code == Some(1) && said.contains(what), "{more:?}: {said}");
    };
    let (code, _, said) = resume(&["--tokenizer", "word"]);
    assert!(code == Some(2) && said.contains("--tokenizer word: the run in run began with another one"), "{said}");
    refused(&["--precision", "bf16"], "precision was f32 and is bf16");
    let mut text = fs::read(at.join("text.txt")).unwrap();
    text.swap(3000, 3001);
    fs::write(at.join("other.txt"), text).unwrap();
    refused(&["--data", "other.txt"], "the training text is a different one");
    let (code, _, said) = resume(&["--tokenizer", "char", "--eval-every", "3", "--threads", "1"]);
    assert_eq!(code, Some(0), "{said}");
}

/// Under nohup, a terminal that goes away stops nothing.
#[test]
#[cfg(target_os = "linux")]
fn nohup_is_kept() {
    let at = folder("nohup");
    let child = in_shell(&at, "run", &[], "trap '' HUP; exec", "").spawn().unwrap();
    until("the first save", || at.join("run/state/last.safetensors").exists());
    kill("-HUP", child.id());
    let output = ends(child);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
}

/// Ctrl-C: exit code 130, and the summary all the same.
#[test]
fn a_stopped_run_says_so_in_its_exit_code() {
    let at = folder("stopped");
    let flags = [&["train", "--data", "text.txt"], TINY, &["--steps", "100000", "--out", "run", "--json"]].concat();
    let mut command = Command::new(env!("CARGO_BIN_EXE_limpid"));
    command.current_dir(&at.0).args(last_holds(flags.iter().map(ToString::to_string).collect()));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    until("the first save", || at.join("run/state/last.safetensors").exists());
    kill("-TERM", child.id());
    let output = ends(child);
    assert_eq!(output.status.code(), Some(130), "{}", said(&output));
    let summary: Value = serde_json::from_slice(&output.stdout).expect("the summary");
    assert!(summary["stopped"] == true && summary["steps"].as_u64() > Some(0), "{summary}");
}

/// Somebody removes the log of a run that goes on, or moves its folder away: the log is there again; a folder that is
/// gone is missed, and nothing is made in its place. Put back, the run goes on from its last state to the same bytes.
#[test]
#[ignore = "gate"]
#[cfg(target_os = "linux")]
fn what_is_removed_or_moved_is_told() {
    let at = folder("gone");
    let long = &["--steps", "400", "--detail-every", "100"];
    finish(train(&at, "whole", long));
    let want = left(&at.join("whole"));
    let after_a_save = |run: &str, then: &dyn Fn(&Path)| {
        let child = train(&at, run, long).spawn().unwrap();
        until("the first save", || at.join(run).join("state/last.safetensors").exists());
        kill("-STOP", child.id());
        then(&at.join(run));
        kill("-CONT", child.id());
        ends(child)
    };
    let output = after_a_save("removed", &|run| fs::remove_file(run.join("metrics.jsonl")).unwrap());
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(
        said(&output).contains("metrics.jsonl was removed during the run; it is written again"),
        "{}",
        said(&output)
    );
    assert!(left(&at.join("removed")) == want);
    let away = at.join("away");
    let output = after_a_save("moved", &|run| fs::rename(run, &away).unwrap());
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let last = said(&output).lines().last().unwrap_or_default().to_string();
    assert!(
        last.starts_with("error: moved is no longer the folder of this run") && last.contains("--resume moved"),
        "{last}"
    );
    assert!(!at.join("moved").exists());
    fs::rename(&away, at.join("moved")).unwrap();
    finish(train(&at, "moved", long));
    assert!(left(&at.join("moved")) == want);
}

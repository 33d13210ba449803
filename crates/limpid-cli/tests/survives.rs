//! What training withstands: being killed at any moment, a full disk, files that cannot be written. The run that comes out
//! of it is, to the bit, the run that nothing happened to. LIMPID_KILLS=200 kills as often (12 times without).
#![cfg(unix)]

use limpid::checkpoint::safetensors_file;
use limpid::ops::random;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

const TINY: &[&str] = &[
    "--tokenizer",
    "char",
    "--n-layer",
    "2",
    "--d-model",
    "32",
    "--n-head",
    "2",
    "--context-length",
    "16",
    "--batch-size",
    "4",
    "--steps",
    "120",
    "--eval-every",
    "20",
    "--save-every",
    "1",
    "--detail-every",
    "10",
    "--sample",
    "0",
    "--threads",
    "2",
];

fn folder(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("limpid-survives-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    fs::write(path.join("text.txt"), text()).unwrap();
    path
}

/// Some text: words of a few letters, drawn.
fn text() -> String {
    let word = |i| ["the", "cat", "saw", "a", "dog", "and", "ran", "home", "."][random::below(3, 0, i, 9) as usize];
    (0..4000).map(|i| format!("{} ", word(i))).collect()
}

fn train(at: &Path, run: &str, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_limpid"));
    command.current_dir(at).args(["train", "--data", "text.txt", "--out", run, "--resume", "auto"]);
    command.args(TINY).args(more).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

/// What a state says of itself, without how long it took, and its tensors.
fn state(run: &Path) -> (Value, Vec<(String, Vec<f32>)>) {
    let store = safetensors_file::open(&run.join("state/last.safetensors")).expect("the state is whole");
    let mut said: Value = serde_json::from_str(store.fact("limpid").unwrap()).unwrap();
    said["seconds"] = Value::Null;
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

#[test]
fn a_killed_run_becomes_the_run_that_was_not() {
    let variants: [&[&str]; 4] = [
        &[],
        &["--accumulate", "3", "--dropout", "0.2", "--save-every", "7"],
        &["--optimizer", "muon", "--ema", "0.9", "--keep", "2", "--z-loss", "0.001"],
        &["--precision", "bf16", "--optimizer", "sgd", "--learning-rate", "0.1", "--label-smoothing", "0.1"],
    ];
    let kills = std::env::var("LIMPID_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(12usize);
    // other moments each time; what must come out is always the same
    let seed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos() as u64;
    for (v, more) in variants.iter().enumerate() {
        let at = folder(&format!("killed{v}"));
        let start = Instant::now();
        finish(train(&at, "whole", more));
        let whole = start.elapsed();
        let want = left(&at.join("whole"));
        let (mut killed, mut tries, mut attempt) = (0, 0, 0);
        while killed < kills.div_ceil(variants.len()) {
            attempt += 1;
            let name = format!("killed{attempt}");
            let run = at.join(&name);
            let mut seen = 0;
            loop {
                let mut child = train(&at, &name, more).spawn().unwrap();
                tries += 1;
                let share = random::uniform(seed, v as u64, tries) * 0.7;
                std::thread::sleep(Duration::from_secs_f64(whole.as_secs_f64() * share));
                let ended = child.try_wait().unwrap();
                let _ = child.kill();
                let output = child.wait_with_output().unwrap();
                if ended.is_some() {
                    assert!(output.status.success(), "{more:?}: {}", String::from_utf8_lossy(&output.stderr));
                    break;
                }
                killed += 1;
                // what was saved is whole, and nothing that was saved is lost
                if run.join("state/last.safetensors").exists() {
                    let step = state(&run).0["step"].as_u64().unwrap();
                    assert!(step >= seen, "{more:?}: step {seen} was saved, {step} is there");
                    seen = step;
                }
                if run.join("model.safetensors").exists() {
                    safetensors_file::open(&run.join("model.safetensors")).expect("the best weights are whole");
                }
            }
            assert!(left(&run) == want, "{more:?}: after {killed} kills, another run");
            fs::remove_dir_all(&run).unwrap();
        }
        fs::remove_dir_all(at).unwrap();
    }
}

/// A file that may not grow stands for a disk that is full: training goes on and says so, the last state stays whole, and
/// with room again the run is as if nothing had been.
#[test]
fn a_full_disk_loses_nothing() {
    let at = folder("full");
    finish(train(&at, "whole", &[]));
    let first = train(&at, "run", &["--save-every", "10"]).spawn().unwrap();
    interrupt_after_a_save(first, &at.join("run"));
    let before = state(&at.join("run"));
    for blocks in [16, 300] {
        // 8 KiB: not even the log finds room; 150 KiB: the log does, the state does not
        let program = env!("CARGO_BIN_EXE_limpid");
        let flags: Vec<&str> = TINY.to_vec();
        let script = format!(
            "trap '' XFSZ; ulimit -f {blocks}; exec {program} train --data text.txt --out run --resume auto {}",
            flags.join(" ")
        );
        let output = Command::new("sh").current_dir(&at).args(["-c", &script]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("run/state") || said.contains("run/metrics") || said.contains("run/"), "{said}");
        assert!(said.contains("File too large"), "{said}");
        assert_eq!(state(&at.join("run")), before, "{said}");
    }
    finish(train(&at, "run", &[]));
    assert!(left(&at.join("run")) == left(&at.join("whole")));
    fs::remove_dir_all(at).unwrap();
}

/// Stops a run as Ctrl-C does, once it has saved a state.
fn interrupt_after_a_save(child: std::process::Child, run: &Path) {
    while !run.join("state/last.safetensors").exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(child.wait_with_output().unwrap().status.code().is_some());
}

#[test]
fn a_state_that_cannot_be_written_is_told_and_the_run_goes_on() {
    let at = folder("unwritable");
    fs::create_dir_all(at.join("run/state/last.safetensors.partial/in-the-way")).unwrap();
    let output = train(&at, "run", &["--save-every", "30"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("Training goes on; the next save is tried"), "{said}");
    assert!(said.contains("state/last.safetensors"), "{said}");
    // the best weights were kept on the way
    safetensors_file::open(&at.join("run/model.safetensors")).unwrap();
    fs::remove_dir_all(at.join("run/state/last.safetensors.partial")).unwrap();
    finish(train(&at, "run", &[]));
    fs::remove_dir_all(at).unwrap();
}

#[test]
fn two_processes_do_not_share_a_folder() {
    let at = folder("shared");
    let first = train(&at, "run", &["--steps", "100000", "--save-every", "10"]).spawn().unwrap();
    while !at.join("run/state/last.safetensors").exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = train(&at, "run", &["--steps", "100000", "--save-every", "10"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    interrupt_after_a_save(first, &at.join("run"));
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("another process is training in run"), "{said}");
    fs::remove_dir_all(at).unwrap();
}

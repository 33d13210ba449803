//! Processes that MPI starts train one model: the same bytes for any number, after a pause with another number, after a crash; and
//! what does not fit is said once. Needs `mpirun` and the feature: `cargo xtask mpi`.
#![cfg(feature = "mpi")]

mod common;

use common::{Folder, LIMPID, text, words};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Starts `processes` of a command in a folder.
fn mpirun(f: &Folder, processes: usize, arguments: &str) -> Command {
    let mut command = Command::new("mpirun");
    let version = Command::new("mpirun").arg("--version").output().expect("mpirun is installed");
    if text(&version.stdout).contains("Open MPI") {
        command.args(["--allow-run-as-root", "--oversubscribe"]);
    }
    command.args(["-n", &processes.to_string(), LIMPID]).args(words(arguments));
    command.current_dir(&f.0).stdin(Stdio::null());
    command
}

#[track_caller]
fn runs(f: &Folder, processes: usize, arguments: &str) -> String {
    let out = mpirun(f, processes, arguments).output().unwrap();
    assert!(out.status.success(), "{processes} processes: {arguments}: {}\n{}", out.status, text(&out.stderr));
    text(&out.stderr)
}

/// Weights, moments and averages; and the log, without its times.
fn made(f: &Folder, run: &str) -> (Vec<u8>, Vec<u8>, Vec<String>) {
    let tensors = |path: String| {
        let bytes = f.bytes(&path);
        let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        bytes[8 + header..].to_vec()
    };
    let adapter = f.0.join(run).join("adapter_model.safetensors").exists();
    let weights = if adapter { "adapter_model.safetensors" } else { "model.safetensors" };
    let log = text(&f.bytes(&format!("{run}/metrics.jsonl")));
    let line = |line: &str| {
        let mut line: serde_json::Value = serde_json::from_str(line).unwrap();
        let fields = line.as_object_mut().unwrap();
        fields.retain(|name, _| {
            !["seconds", "time", "all_reduce_seconds", "all_reduce_hidden_seconds"].contains(&name.as_str())
        });
        line.to_string()
    };
    (
        tensors(format!("{run}/{weights}")),
        tensors(format!("{run}/state/last.safetensors")),
        log.lines().map(line).collect(),
    )
}

/// Recipes in which every pair of optimizer, precision, dropout, average, layer statistics and objective is there.
const RECIPES: [&str; 20] = [
    "--optimizer adamw",
    "--optimizer adamw --precision bf16 --dropout 0.1 --ema 0.9 --layer-stats-every 2",
    "--optimizer adamw --dropout 0.1 --clip 0.05",
    "--optimizer adamw --data builtin:stories:200K --tokenizer char --ema 0.9",
    "--optimizer adam",
    "--optimizer adam --precision bf16 --ema 0.9",
    "--optimizer adam --dropout 0.1 --layer-stats-every 3 --clip 0.05",
    "--optimizer sgd --learning-rate 0.1",
    "--optimizer sgd --learning-rate 0.1 --precision bf16 --dropout 0.1",
    "--optimizer sgd --learning-rate 0.1 --ema 0.9 --layer-stats-every 2",
    "--optimizer muon",
    "--optimizer muon --precision bf16 --dropout 0.1",
    "--optimizer muon --ema 0.9 --layer-stats-every 2",
    "--optimizer muon --clip 0.05 --schedule wsd",
    "--preset formulated-bert --n-layer 2 --d-model 128 --n-head 4 --d-ff 512 --context-length 64",
    "--preset formulated-bert --n-layer 2 --d-model 128 --n-head 4 --d-ff 512 --context-length 64 --optimizer muon --precision bf16 --ema 0.9",
    "--data chat.jsonl --context-length 64",
    "--data chat.jsonl --context-length 64 --optimizer muon --dropout 0.1 --ema 0.9",
    "--from base --lora 4",
    "--from base --lora 4 --optimizer adam --precision bf16 --ema 0.9",
];

/// Trains by every recipe in these numbers of processes, and in one.
fn same_bytes(name: &str, processes: impl Fn(usize) -> Vec<usize>) {
    let f = Folder::new(name);
    let question =
        |thing, place| format!("{{\"prompt\":\"Where is the {thing}?\",\"completion\":\"In the {place}.\"}}\n");
    let chats: String =
        ["kite", "ball", "boat"].iter().flat_map(|t| ["tree", "river"].map(|p| question(t, p))).collect();
    f.file("chat.jsonl", chats.repeat(40));
    f.ok("train --steps 2 --sample 0 --out base");
    let how = "train --steps 4 --accumulate 8 --batch-size 1 --eval-every 3 --eval-tokens 500 --save-every 3 --sample 0 --threads 1";
    for (i, recipe) in RECIPES.iter().enumerate() {
        let of = |n: usize| format!("r{i}-{n}");
        // each process reads the text: a short one
        let how = if recipe.contains("--data") { how.into() } else { format!("{how} --data builtin:stories:100K") };
        f.ok(&format!("{how} {recipe} --out {}", of(1)));
        for n in processes(i) {
            runs(&f, n, &format!("{how} {recipe} --out {}", of(n)));
            assert!(made(&f, &of(n)) == made(&f, &of(1)), "{recipe}: {n} processes");
        }
    }
}

#[test]
fn any_number_of_processes_gives_the_same_bytes() {
    same_bytes("ranks", |i| vec![[2, 4, 8][i % 3]]);
}

#[test]
#[ignore = "some minutes"]
fn every_number_of_processes_gives_the_same_bytes_by_every_recipe() {
    same_bytes("ranks-all", |_| vec![1, 2, 4, 8]);
}

const HOW: &str = "train --steps 12 --accumulate 8 --batch-size 1 --optimizer muon --ema 0.9 --dropout 0.1 --eval-every 4 \
                   --eval-tokens 500 --save-every 4 --sample 0 --threads 1";

/// A copy of a run.
fn copy(f: &Folder, from: &str, to: &str) {
    let done = Command::new("cp").args(["-r", from, to]).current_dir(&f.0).status().unwrap();
    assert!(done.success());
}

#[test]
fn a_run_goes_on_with_any_number_of_processes() {
    let f = Folder::new("ranks-resume");
    f.ok(&format!("{HOW} --out whole"));
    let whole = made(&f, "whole");
    // what four processes saved after step 8
    runs(&f, 4, &format!("{HOW} --keep 5 --out kept"));
    assert!(made(&f, "kept") == whole);
    for n in [1, 2, 8] {
        copy(&f, "kept", &format!("k{n}"));
        let said = runs(&f, n, &format!("train --resume k{n} --resume-step 8 --sample 0 --threads 1"));
        assert!(said.contains("after step 8"), "{said}");
        assert!(made(&f, &format!("k{n}")) == whole, "{n} processes");
    }
}

/// A process is killed, at any moment: all end, and the run goes on to the same bytes, with another number of processes.
#[test]
fn a_process_that_is_killed_ends_all_and_the_run_goes_on() {
    let f = Folder::new("ranks-killed");
    f.ok(&format!("{HOW} --out whole"));
    let whole = made(&f, "whole");
    for (i, wait) in (0..4).map(|i| (i, 300 + 400 * i)) {
        let mut job =
            mpirun(&f, 4, &format!("{HOW} --out k{i}")).stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(wait));
        let victim =
            Command::new("pkill").args(["-9", "-n", "-f", &format!("{LIMPID} .*--out k{i}")]).status().unwrap();
        let killed = Instant::now();
        let ended = job.wait().unwrap();
        assert!(killed.elapsed() < Duration::from_secs(30), "the others wait");
        assert!(!victim.success() || !ended.success() || f.0.join(format!("k{i}/summary.json")).exists());
        let n = [1, 2, 8, 4][i as usize];
        runs(&f, n, &format!("{HOW} --resume auto --out k{i}"));
        assert!(made(&f, &format!("k{i}")) == whole, "killed after {wait} ms");
    }
}

/// The message of a job that must fail.
fn fails(out: &Output) -> String {
    let said = text(&out.stderr);
    assert!(!out.status.success(), "{said}");
    assert_eq!(said.matches("error: ").count(), 1, "{said}");
    assert!(!said.contains("panicked"), "{said}");
    said
}

#[test]
fn what_does_not_fit_together_is_said_once() {
    let f = Folder::new("ranks-differ");
    let how = "train --accumulate 4 --batch-size 1 --sample 0 --threads 1 --out m";
    let both = |first: &str, second: &str| {
        let mut command = mpirun(&f, 1, &format!("{how} {first}"));
        command.args([":", "-n", "1", LIMPID]).args(words(&format!("{how} {second}")));
        fails(&command.output().unwrap())
    };
    let said = both("--steps 3", "--steps 4");
    assert!(said.contains("process 1") && said.contains("its steps is 4, and there it is 3"), "{said}");
    let said = both("--steps 3", "--steps 3 --n-layer 2");
    assert!(said.contains("its n_layer is 2, and there it is 4"), "{said}");
    let said = both("--steps 3", "--steps 3 --data builtin:stories:100K");
    assert!(said.contains("process 1 trains something else"), "{said}");
    for (n, accumulate, mend) in [(2, 1, "--accumulate 2"), (3, 4, "start 2 processes"), (4, 2, "--accumulate 4")] {
        let how = format!("train --accumulate {accumulate} --batch-size 1 --steps 3 --sample 0 --threads 1 --out m");
        let said = fails(&mpirun(&f, n, &how).output().unwrap());
        assert!(said.contains(mend), "{said}");
    }
    assert!(!f.0.join("m").exists(), "nothing was written");
    // a number that is none, found in one process's micro-batch, is said once
    let said = fails(
        &mpirun(&f, 2, &format!("{how} --steps 30 --learning-rate 1000 --warmup-steps 0 --clip 0")).output().unwrap(),
    );
    assert!(said.contains("is not finite") || said.contains("diverges") || said.contains("loss spike"), "{said}");
}

#[test]
fn the_example_trains_in_two_processes() {
    let f = Folder::new("ranks-example");
    let example = std::path::Path::new(LIMPID).with_file_name("examples").join("ranks");
    let losses = |n: usize| {
        let mut command = mpirun(&f, n, "");
        let arguments: Vec<_> = command.get_args().map(ToOwned::to_owned).filter(|a| *a != *LIMPID).collect();
        command = Command::new("mpirun");
        let out = command.args(arguments).arg(&example).current_dir(&f.0).output().unwrap();
        assert!(out.status.success(), "{}", text(&out.stderr));
        let said = text(&out.stdout);
        assert_eq!(said.matches("validation loss").count(), n, "{said}");
        said.lines()
            .filter_map(|line| Some(line.strip_prefix("step ")?.split(',').next()?.to_string()))
            .collect::<Vec<_>>()
    };
    let one = losses(1);
    assert!(one.len() == 20 && one == losses(2));
}

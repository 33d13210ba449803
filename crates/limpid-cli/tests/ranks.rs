//! Processes that MPI starts train one model: the same bytes for any number, after a pause with another number, after a
//! crash; and what does not fit is said once. Needs `mpirun` and the feature: `cargo xtask ci`, and `cargo xtask sweep`
//! for another MPI and every recipe.
#![cfg(feature = "mpi")]

mod common;

use common::{Folder, LIMPID, end, kill, text, within, words};
use limpid::numeric::random;
use std::collections::BTreeSet;
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant, UNIX_EPOCH};

fn launcher() -> String {
    std::env::var("MPIRUN").unwrap_or_else(|_| "mpirun".into())
}

fn is_open_mpi() -> bool {
    let version = Command::new(launcher()).arg("--version").output().expect("mpirun is installed");
    text(&version.stdout).contains("Open MPI")
}

/// Starts processes in a folder: so many of each program, with arguments.
fn start(f: &Folder, jobs: &[(usize, &str, &str)]) -> Command {
    let mut command = Command::new(launcher());
    if is_open_mpi() {
        command.args(["--allow-run-as-root", "--oversubscribe"]);
    }
    for (i, (processes, program, arguments)) in jobs.iter().enumerate() {
        command.args((i > 0).then_some(":")).args(["-n", &processes.to_string(), program]).args(words(arguments));
    }
    command.current_dir(&f.0).stdin(Stdio::null());
    command
}

/// Starts `processes` of a command in a folder.
fn mpirun(f: &Folder, processes: usize, arguments: &str) -> Command {
    start(f, &[(processes, LIMPID, arguments)])
}

/// Longer than any job takes. No test waits longer: a launcher may wait for ever.
const LONG: Duration = Duration::from_secs(300);

/// Runs a job to its end.
fn output(mut job: Command) -> Output {
    end(job.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap(), LONG).0
}

#[track_caller]
fn runs(f: &Folder, processes: usize, arguments: &str) -> String {
    let out = output(mpirun(f, processes, arguments));
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

const OPTIMIZERS: [&str; 4] =
    ["--optimizer adamw", "--optimizer adam", "--optimizer sgd --learning-rate 0.1 --schedule wsd", "--optimizer muon"];

/// What is learned: each process reads the text, so it is a short one.
const OBJECTIVES: [&str; 5] = [
    "--data builtin:stories:100K --shared-blocks true --d-embed 24 --tied-head false",
    "--data builtin:stories:100K --tokenizer char --whole-documents true --cross-documents false",
    "--data builtin:stories:100K --preset formulated-bert --n-layer 2 --d-model 128 --n-head 4 --d-ff 512 \
     --context-length 64",
    "--data chat.jsonl --context-length 64",
    "--data builtin:stories:100K --from base --lora 4",
];

const SWITCHES: [[&str; 2]; 6] = [
    ["", "--precision bf16"],
    ["", "--dropout 0.1"],
    ["", "--ema 0.9"],
    ["--accumulate 8", "--accumulate 16"],
    ["", "--clip 0.05"],
    ["", "--layer-stats-every 2"],
];

/// Twenty recipes: each optimizer with each objective, and the switches such that every pair of any two choices is
/// there.
fn recipes() -> Vec<String> {
    let chosen = |i: usize| {
        let (optimizer, objective) = (i % 4, i / 4);
        let switch = |n: usize| (optimizer / 2 + (objective & (n + 1)).count_ones() as usize) % 2;
        [vec![optimizer, objective], (0..SWITCHES.len()).map(switch).collect()].concat()
    };
    let all: Vec<Vec<usize>> = (0..20).map(chosen).collect();
    let values = [vec![OPTIMIZERS.len(), OBJECTIVES.len()], vec![2; SWITCHES.len()]].concat();
    for (a, of_a) in values.iter().enumerate() {
        for (b, of_b) in values.iter().enumerate().skip(a + 1) {
            let pairs: BTreeSet<_> = all.iter().map(|recipe| (recipe[a], recipe[b])).collect();
            assert_eq!(pairs.len(), of_a * of_b, "choices {a} and {b}");
        }
    }
    let text = |recipe: &Vec<usize>| {
        let switches = SWITCHES.iter().zip(&recipe[2..]).map(|(of, chosen)| of[*chosen]);
        [OPTIMIZERS[recipe[0]], OBJECTIVES[recipe[1]]].into_iter().chain(switches).collect::<Vec<_>>().join(" ")
    };
    all.iter().map(text).collect()
}

/// Trains by every recipe in these numbers of processes, and in one.
fn same_bytes(name: &str, processes: impl Fn(usize) -> Vec<usize>) {
    let f = Folder::new(name);
    let question =
        |thing, place| format!("{{\"prompt\":\"Where is the {thing}?\",\"completion\":\"In the {place}.\"}}\n");
    let chats: String =
        ["kite", "ball", "boat"].iter().flat_map(|t| ["tree", "river"].map(|p| question(t, p))).collect();
    f.file("chat.jsonl", chats.repeat(40));
    f.ok("train --steps 2 --sample 0 --out base");
    let how = "train --steps 4 --batch-size 1 --eval-every 3 --eval-tokens 500 --save-every 3 --sample 0 --threads 1";
    for (i, recipe) in recipes().iter().enumerate() {
        // one process without a launcher, and these with it
        let (alone, of) = (format!("r{i}"), |n: usize| format!("r{i}-{n}"));
        f.ok(&format!("{how} {recipe} --out {alone}"));
        for n in processes(i) {
            runs(&f, n, &format!("{how} {recipe} --out {}", of(n)));
            assert!(made(&f, &of(n)) == made(&f, &alone), "{recipe}: {n} processes");
        }
    }
}

#[test]
fn any_number_of_processes_gives_the_same_bytes() {
    same_bytes("ranks", |i| vec![[2, 4, 8][i % 3]]);
}

const HOW: &str = "train --steps 12 --accumulate 8 --batch-size 1 --optimizer muon --ema 0.9 --dropout 0.1 \
                   --eval-every 4 --eval-tokens 500 --save-every 4 --sample 0 --threads 1";

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

/// A process is killed, whichever, at any moment: all end, and the run goes on to the same bytes, with another number
/// of processes. `LIMPID_KILLS=20 LIMPID_SEED=7` says how often, and which draws.
#[test]
fn a_process_that_is_killed_ends_all_and_the_run_goes_on() {
    let f = Folder::new("ranks-killed");
    f.ok(&format!("{HOW} --out whole"));
    let whole = made(&f, "whole");
    let began = Instant::now();
    runs(&f, 4, &format!("{HOW} --out undisturbed"));
    let long = began.elapsed().as_millis() as usize;
    let given = |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>().unwrap());
    let seed = given("LIMPID_SEED").unwrap_or_else(|| UNIX_EPOCH.elapsed().unwrap().as_secs());
    let (kills, mut killed) = (given("LIMPID_KILLS").unwrap_or(4), 0);
    for i in 0.. {
        let draw = |site, n| random::below(seed, site, i, n as _) as usize;
        let wait = draw(0, long);
        let run = format!("k{seed}-{i}");
        let mut job =
            mpirun(&f, 4, &format!("{HOW} --out {run}")).stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        sleep(Duration::from_millis(wait as u64));
        let mut victims = vec![];
        let begins = within(LONG, || {
            victims = processes(&format!("--out {run}$"));
            !victims.is_empty() || job.try_wait().unwrap().is_some()
        });
        assert!(begins, "the launcher starts nothing");
        // the run may be over already
        let victim = victims.get(draw(1, victims.len().max(1)));
        let struck = victim.is_some_and(|it| kill("-KILL", *it));
        let at = Instant::now();
        let none_waits = within(Duration::from_secs(10), || processes(&format!("--out {run}$")).is_empty());
        let took = at.elapsed();
        // Open MPI 4.1's launcher itself may wait for ever for a process that died while it joined
        let ended = end(job, Duration::from_secs(10)).0.status;
        println!(
            "seed {seed}, run {i}: after {wait} ms process {victim:?} of {victims:?}, all ended {took:?} later: \
             {ended}"
        );
        assert!(none_waits, "the others wait");
        assert!(!struck || !ended.success() || f.0.join(&run).join("summary.json").exists());
        runs(&f, [1, 2, 8, 4][i as usize % 4], &format!("{HOW} --resume auto --out {run}"));
        assert!(made(&f, &run) == whole, "seed {seed}, run {i}");
        killed += u64::from(struck);
        if killed == kills {
            return;
        }
        assert!(i < 4 * kills, "runs end before they can be killed");
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
        let [first, second] = [first, second].map(|more| format!("{how} {more}"));
        fails(&output(start(&f, &[(1, LIMPID, &first), (1, LIMPID, &second)])))
    };
    let said = both("--steps 3", "--steps 4");
    assert!(said.contains("process 1") && said.contains("its steps is 4, but process 0 has 3"), "{said}");
    let said = both("--steps 3", "--steps 3 --n-layer 3");
    assert!(said.contains("its n_layer is 3, but process 0 has 2"), "{said}");
    let said = both("--steps 3", "--steps 3 --data builtin:stories:100K");
    assert!(said.contains("process 1 trains something different"), "{said}");
    for (n, accumulate, mend) in [(2, 1, "--accumulate 2"), (3, 4, "start 2 processes"), (4, 2, "--accumulate 4")] {
        let how = format!("train --accumulate {accumulate} --batch-size 1 --steps 3 --sample 0 --threads 1 --out m");
        let said = fails(&output(mpirun(&f, n, &how)));
        assert!(said.contains(mend), "{said}");
    }
    assert!(!f.0.join("m").exists(), "nothing was written");
    // a number that is none, found in one process's micro-batch, is said once
    let said =
        fails(&output(mpirun(&f, 2, &format!("{how} --steps 30 --learning-rate 1000 --warmup-steps 0 --clip 0"))));
    assert!(said.contains("is not finite") || said.contains("diverges") || said.contains("loss spike"), "{said}");
}

/// The numbers of limpid's processes whose command line has `what`, in the order of their start.
fn processes(what: &str) -> Vec<u32> {
    let found = Command::new("pgrep").args(["-f", &format!("^{LIMPID} .*{what}")]).output().unwrap();
    text(&found.stdout).lines().map(|line| line.parse().unwrap()).collect()
}

/// Starts a long run in two processes and waits for its first save.
fn long_run(f: &Folder, run: &str, more: &str) -> std::process::Child {
    let how = HOW.replace("--steps 12", "--steps 100000");
    let job = mpirun(f, 2, &format!("{how} --out {run} {more}")).stderr(Stdio::piped()).spawn().unwrap();
    assert!(within(LONG, || f.0.join(run).join("state/last.safetensors").exists()), "nothing is saved");
    job
}

/// How the run goes on alone, to step `steps`, and how it would have gone without a stop.
fn goes_on(f: &Folder, run: &str) {
    let log = text(&f.bytes(&format!("{run}/metrics.jsonl")));
    let steps = log.lines().count() + 4;
    f.ok(&format!("train --resume {run} --steps {steps} --sample 0 --threads 1"));
    let how = HOW.replace("--steps 12", &format!("--steps {steps}"));
    f.ok(&format!("{how} --schedule constant --warmup-steps 0 --out {run}-whole"));
    assert!(made(f, run).0 == made(f, &format!("{run}-whole")).0, "{run}");
}

#[test]
fn a_process_that_is_stopped_is_named_and_ends_all() {
    let f = Folder::new("ranks-stopped");
    let job = long_run(&f, "stopped", "--schedule constant --warmup-steps 0 --timeout 4");
    let second = processes("--out stopped").pop().unwrap();
    let environment = text(&std::fs::read(format!("/proc/{second}/environ")).unwrap());
    let number =
        |line: &str| Some(line.strip_prefix("OMPI_COMM_WORLD_RANK=").or(line.strip_prefix("PMI_RANK="))?.to_string());
    let number = environment.split('\0').find_map(number).expect("launchers number processes");
    assert!(kill("-STOP", second));
    let stopped = Instant::now();
    let (out, _) = end(job, Duration::from_secs(60));
    let took = stopped.elapsed();
    kill("-KILL", second); // if it is still there
    let said = fails(&out);
    let named = format!("process {number} has not answered for 4 s");
    assert!(said.contains(&named) && said.contains("--resume auto"), "{said}");
    assert!(took < Duration::from_secs(30), "{took:?}");
    goes_on(&f, "stopped");
}

#[test]
fn ctrl_c_at_the_launcher_ends_all_and_the_run_goes_on() {
    let f = Folder::new("ranks-interrupted");
    let job = long_run(&f, "interrupted", "--schedule constant --warmup-steps 0");
    assert!(kill("-INT", job.id()));
    let (out, _) = end(job, LONG);
    // Open MPI ends them; MPICH hands the signal on, so they save and end
    assert!(!text(&out.stderr).contains("panicked"), "{}", text(&out.stderr));
    assert!(processes("--out interrupted").is_empty(), "they go on");
    goes_on(&f, "interrupted");
}

/// Memory that one process is refused, a disk that is full, a folder that one process does not see.
#[test]
fn what_one_process_lacks_is_said_once_with_its_number() {
    let f = Folder::new("ranks-lacks");
    let how = "train --accumulate 2 --batch-size 1 --sample 0 --threads 1";
    let shell = |limit: &str, arguments: &str| {
        f.file(&format!("start{}", arguments.len()), format!("{limit}; exec {LIMPID} {arguments}"))
    };

    let large = format!("{how} --steps 3 --preset gpt2 --tokenizer gpt2 --data builtin:stories:100K --out large");
    let little = shell("ulimit -v 1500000", &large);
    let said = fails(&output(start(&f, &[(1, LIMPID, &large), (1, "sh", &little)])));
    assert!(said.contains("process 1 of 2: ") && said.contains("memory"), "{said}");

    // files of at most 2 MB (to MPICH, whose shared memory is a file, that is too little for anything): no state fits,
    // and training goes on; the end says so
    if is_open_mpi() {
        let full = shell("trap '' XFSZ; ulimit -f 4000", &format!("{how} --steps 6 --save-every 2 --out full"));
        let out = output(start(&f, &[(2, "sh", &full)]));
        let said = fails(&out);
        assert!(said.contains("It is tried again at the next save") && said.contains("could not be written"), "{said}");
        assert!(processes("--out full").is_empty());
    }

    // process 1 runs where the folder is not
    runs(&f, 2, &format!("{how} --steps 4 --out there"));
    let elsewhere = shell("mkdir -p elsewhere; cd elsewhere", &format!("{how} --steps 8 --resume auto --out there"));
    let there = format!("{how} --steps 8 --resume auto --out there");
    let said = fails(&output(start(&f, &[(1, LIMPID, &there), (1, "sh", &elsewhere)])));
    assert!(said.contains("process 1 ") && said.contains("no run that it sees"), "{said}");
}

/// Processes that another MPI's launcher started do not find each other; and most verbs know of no other process.
#[test]
fn processes_that_would_each_do_all_of_it_refuse() {
    let f = Folder::new("ranks-alone");
    for verb in ["eval --model none --data none", "data stories", "generate --model none --prompt a"] {
        let said = fails(&output(mpirun(&f, 2, verb)));
        assert!(said.contains("runs in one process, and 2 were started"), "{said}");
    }
    let other = if is_open_mpi() { "mpirun.mpich" } else { "mpirun.openmpi" };
    let how = if is_open_mpi() { "" } else { "--allow-run-as-root --oversubscribe " };
    let how = format!("{how}-n 2 {LIMPID} train --accumulate 2 --batch-size 1 --steps 2 --sample 0 --out m");
    let mut job = Command::new(other);
    job.args(words(&how)).current_dir(&f.0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    match job.spawn() {
        Ok(job) => {
            let said = fails(&end(job, LONG).0);
            assert!(said.contains("2 processes were started") && said.contains("sees 1"), "{said}");
        }
        Err(error) => println!("{other}: {error}"),
    }
    assert!(!f.0.join("m").exists(), "something was written");
}

#[test]
fn the_example_trains_in_two_processes() {
    let f = Folder::new("ranks-example");
    let example = std::path::Path::new(LIMPID).with_file_name("examples").join("ranks");
    let losses = |n: usize| {
        let out = output(start(&f, &[(n, &example.display().to_string(), "")]));
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

/// Longer than the gate may take: `cargo xtask sweep` runs them.
mod slow {
    use super::*;

    #[test]
    #[ignore = "some minutes"]
    fn every_number_of_processes_gives_the_same_bytes_by_every_recipe() {
        same_bytes("ranks-all", |_| vec![1, 2, 4, 8]);
    }
}

//! The binary with the feature `gpu`, on whatever GPU there is; Mesa's software Vulkan will do. Without any, the tests
//! say so and pass, or fail where `GPU_REQUIRED` is set.
#![cfg(feature = "gpu")]

mod common;

use common::{Folder, text};
use serde_json::Value;
use std::process::Stdio;
use std::time::Duration;

/// A folder, and what `doctor` says of the GPUs, if there are any.
fn folder(name: &str) -> Option<(Folder, Vec<Value>)> {
    let f = Folder::new(name);
    let gpus = f.json("doctor --json")["gpus"].as_array().unwrap().clone();
    if gpus.is_empty() {
        assert!(std::env::var_os("GPU_REQUIRED").is_none(), "there is no GPU");
        println!("not tested: there is no GPU");
        return None;
    }
    Some((f, gpus))
}

const SIZE: &str = "--d-model 16 --n-head 2 --n-layer 1 --context-length 16 --batch-size 4 --seed 5";

/// What `doctor` lists is what `--device` takes: by number and by name; what is not there is refused with the list.
#[test]
fn gpus_are_listed_and_chosen() {
    let Some((f, gpus)) = folder("gpu-chosen") else { return };
    let shown = f.ok("doctor");
    let name = gpus[0]["name"].as_str().unwrap();
    for said in ["gpu:0", name, "memory", "roofs", "GFLOP/s in f32", "f16"] {
        assert!(shown.contains(said), "no {said}: {shown}");
    }
    assert!(gpus[0]["roofs"]["flops_f32"].as_f64().unwrap() > 1e6, "{gpus:?}");
    f.file("a.txt", "to be or not to be that is the question ".repeat(40));
    let train = |rest: &str| format!("train --data a.txt --tokenizer char {SIZE} --steps 3 --sample 0 --out x {rest}");
    let refused = ["there is no such GPU", "0: ", name];
    f.fails(1, &train("--device gpu:99"), &refused);
    f.fails(1, &train("--device gpu:voodoo"), &refused);
    f.fails(2, &train("--device gpus"), &["unknown device", "gpu:NUMBER", "auto"]);
    f.fails(2, &train("--device gpu --precision int8"), &["int8"]);
    f.fails(1, &train("--device cpu --precision f16"), &["f16", "--device gpu", "bf16"]);
    if gpus[0]["f16_matrices"].is_null() {
        f.fails(1, &train("--device gpu --precision f16"), &["f16", "--precision bf16"]);
    } else {
        f.ok(&train("--device gpu --precision f16"));
    }
}

/// The proof of every kernel, as a user asks for it.
#[test]
fn doctor_proves_the_driver() {
    let Some((f, gpus)) = folder("gpu-proves") else { return };
    let proof = f.json("doctor --prove --json --device gpu:0");
    assert_eq!(proof["wrong"], 0, "{proof}");
    let proofs = proof["proofs"].as_array().unwrap();
    let way = |op: &str, way: &str| proofs.iter().any(|p| p["op"] == op && p["way"] == way);
    assert!(way("attend", "backward") && way("update", "muon") && way("product", "of bf16"), "{proof}");
    assert_eq!(way("linear", "forward in f16"), !gpus[0]["f16_matrices"].is_null());
}

/// A run that is begun on the GPU goes on on the processor, and its model answers alike on both; `auto` says what it
/// took; `plan` counts what ops move.
#[test]
fn a_model_is_trained_planned_and_used_on_a_gpu() {
    let Some((f, gpus)) = folder("gpu-trains") else { return };
    f.file("a.txt", "to be or not to be that is the question ".repeat(40));
    let train = format!(
        "train --data a.txt --tokenizer char {SIZE} --sample 0 --threads 1 --steps 400 --learning-rate 0.01 \
         --save-every 5 --out m"
    );
    let mut run = f.command(&format!("{train} --device gpu"));
    let mut run = run.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    while !f.0.join("m/state/last.safetensors").exists() {
        assert!(run.try_wait().unwrap().is_none(), "it ended without a state");
        std::thread::sleep(Duration::from_millis(20));
    }
    run.kill().unwrap();
    let told = text(&run.wait_with_output().unwrap().stderr);
    let software = gpus[0]["software"] == true;
    assert_eq!(told.contains("--device cpu is many times faster"), software, "{told}");
    f.ok("train --resume m --device cpu");
    let loss = |device: &str| {
        f.json(&format!("eval --model m --data a.txt --json --device {device}"))["loss"].as_f64().unwrap()
    };
    let (cpu, gpu) = (loss("cpu"), loss("gpu"));
    assert!((cpu - gpu).abs() < 1e-4 * cpu && cpu < 2.5, "{cpu} on the processor, {gpu} on the GPU");
    let greedy = |device: &str| {
        f.ok(&format!("generate --model m --prompt to --temperature 0 --max-tokens 20 --device {device}"))
    };
    assert_eq!(greedy("cpu"), greedy("gpu:0"));
    let (_, told) = f.both("eval --model m --data a.txt --device auto");
    assert!(told.contains("auto") || told.contains("cpu"), "{told}");
    let plan = f.json(&format!("plan --data a.txt --tokenizer char {SIZE} --steps 3 --device gpu --json"));
    let ops = plan["gpu_ops"].as_array().unwrap();
    assert!(
        ops.iter().any(|op| op["op"] == "linear" && op["way"] == "backward" && op["kernels"].as_u64() > Some(0)),
        "{plan}"
    );
}

/// What is served from a GPU is what `generate` writes there, whoever asks at the same time.
#[cfg(all(unix, feature = "serve"))]
#[test]
fn a_gpu_serves_what_it_generates() {
    use common::serving::Serving;
    use serde_json::json;
    let Some((f, _)) = folder("gpu-serves") else { return };
    f.file("a.txt", "to be or not to be that is the question ".repeat(40));
    f.ok(&format!("train --data a.txt --tokenizer char {SIZE} --sample 0 --steps 30 --out m"));
    let written = f.json(
        "generate --model m --prompt 'to be' --max-tokens 9 --temperature 0.7 --seed 5 --num-samples 2 --overflow \
         stop --json --device gpu",
    );
    let served = Serving::start(&f, "--device gpu");
    let body = json!({ "prompt": "to be", "max_tokens": 9, "temperature": 0.7, "seed": 5, "n": 2 });
    let answers: Vec<Value> = std::thread::scope(|scope| {
        let asked: Vec<_> = (0..3).map(|_| scope.spawn(|| served.complete(&body))).collect();
        asked.into_iter().map(|answer| answer.join().unwrap()).collect()
    });
    for (answer, choice) in answers.iter().flat_map(|answer| [(answer, 0), (answer, 1)]) {
        assert_eq!(answer["choices"][choice]["text"], written["samples"][choice]["text"]);
    }
    served.signal("-TERM");
    assert_eq!(served.end().0, Some(0));
}

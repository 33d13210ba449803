//! The binary as a user meets it: in an empty folder, with right and wrong flags, killed, resumed, read through a pipe.

use crate::common::{Folder, LIMPID, block, last_holds, root, text};
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const TINY: &str =
    "--d-model 16 --n-head 2 --n-layer 2 --context-length 16 --batch-size 4 --warmup-steps 2 --sample 0 --threads 1";
const RHYME: &str = "Twinkle, twinkle, little star, how I wonder what you are. Up above the world so high, like a \
                     diamond in the sky.\n";

fn train(folder: &Folder, out: &str, rest: &str) -> Value {
    let data = folder.file("rhyme.txt", RHYME.repeat(12));
    folder.json(&format!("train --data {data} --tokenizer char --out {out} {TINY} {rest} --json"))
}

#[test]
fn from_a_text_to_a_model_that_every_verb_opens() {
    let f = Folder::new("verbs");
    let summary = train(&f, "m", "--steps 60 --learning-rate 0.01 --eval-every 20");
    for key in ["steps", "train_loss", "val_loss", "tokens", "seconds", "tok_s", "peak_rss_bytes"] {
        assert!(summary[key].is_number(), "{key} in {summary}");
    }
    assert!(summary["val_loss"].as_f64().unwrap() < 3.0, "{summary}");
    for file in [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "limpid.toml",
        "metrics.jsonl",
        "metrics.csv",
        "report.html",
        "summary.json",
        "state/last.safetensors",
    ] {
        assert!(f.0.join("m").join(file).exists(), "{file}");
    }
    let eval = f.json("eval --model m --data rhyme.txt --json");
    assert!((eval["perplexity"].as_f64().unwrap().ln() - eval["loss"].as_f64().unwrap()).abs() < 1e-9);
    assert_eq!(eval["bytes"], RHYME.len() as u64 * 12);
    assert_eq!(f.json("eval --model m --data rhyme.txt --json"), eval, "evaluation is deterministic");

    let generated = f.json("generate --model m --prompt 'Twinkle' --max-tokens 20 --seed 3 --num-samples 2 --json");
    assert_eq!(generated["prompt_tokens"], 7);
    assert_eq!(generated["samples"].as_array().unwrap().len(), 2);
    assert_eq!(generated["samples"][0]["tokens"].as_array().unwrap().len(), 20);
    assert_eq!(
        f.json("generate --model m --prompt 'Twinkle' --max-tokens 20 --seed 3 --num-samples 2 --json"),
        generated
    );
    let plain = f.ok("generate --model m --prompt 'Twinkle' --max-tokens 20 --seed 3 --num-samples 1");
    assert_eq!(plain, format!("Twinkle{}\n", generated["samples"][0]["text"].as_str().unwrap()));
    // underscores are dashes, old names are known, greedy is greedy
    let greedy = f.json("generate --model m --prompt 'Up' --max_new_tokens=5 --temp 0 --json");
    assert_eq!(f.json("generate --model m --prompt 'Up' --max-tokens 5 --temperature 0 --seed 9 --json"), greedy);

    let shown = f.ok("inspect --model m --prompt 'star' --table");
    for name in ["blocks.0.attn.hook_pattern", "hook_embed", "logits", "Z_pre-head"] {
        assert!(shown.contains(name), "{name} in\n{shown}");
    }
    let pattern =
        f.ok("inspect --model m --prompt 'star' --tensor blocks.1.attn.hook_pattern --tensor embed.weight.grad");
    assert!(pattern.contains("1.000000") && pattern.contains("0.000000") && pattern.contains("rows x"), "{pattern}");
    f.ok("inspect --model m --prompt 'star' --save all.safetensors --backward");
    assert!(fs::metadata(f.0.join("all.safetensors")).unwrap().len() > 10_000);
    assert!(f.ok("inspect --model m --listing").contains("attend"));

    let params = f.json("params --model m --json");
    assert!(params["total"].as_u64().unwrap() > 1000 && params["groups"].is_object());
    assert!(f.ok("plan --data rhyme.txt --tokenizer char").contains("none on"), "decay groups");
    let ids = f.json("tokenize --model m --json 'star'");
    assert_eq!(ids["pieces"], serde_json::json!(["s", "t", "a", "r"]));
}

#[test]
fn parameter_totals_are_the_published_ones() {
    let f = Folder::new("params");
    for (preset, total) in [
        ("formulated-gpt", 116_497_920u64),
        ("gpt2", 124_439_808),
        ("gpt2-medium", 354_823_168),
        ("gpt2-large", 774_030_080),
        ("gpt2-xl", 1_557_611_200),
    ] {
        assert_eq!(f.json(&format!("params {preset} --json"))["total"], total, "{preset}");
    }
}

/// R283; the totals are published, or worked out in the contract.
#[test]
fn variants_are_counted_by_the_flags_that_make_them() {
    let f = Folder::new("variants");
    let of = |preset: &str| f.json(&format!("params {preset} --variants --json"));
    let found = of("gpt2");
    let variants = found["variants"].as_array().unwrap();
    let total =
        |variants: &[Value], flag: &str| variants.iter().find(|v| v["flag"] == flag).map(|v| v["total"].clone());
    for (flag, want) in [
        ("--attention-bias false", 124_402_944u64),
        ("--tied-head false", 163_037_184),
        ("--vocab-size 50304", 124_475_904),
    ] {
        assert_eq!(total(variants, flag), Some(want.into()), "{flag}");
    }
    assert!(variants.len() > 10, "{variants:?}");
    for variant in variants {
        let alone = f.json(&format!("params gpt2 {} --json", variant["flag"].as_str().unwrap()));
        assert_eq!((&alone["total"], &alone["groups"]), (&variant["total"], &variant["groups"]), "{}", variant["flag"]);
        assert_ne!(alone["total"], found["total"], "{}", variant["flag"]);
    }
    let of_gpt = of("formulated-gpt");
    assert_eq!(total(of_gpt["variants"].as_array().unwrap(), "--n-segment 2"), Some((116_497_920u64 + 2 * 768).into()));
    assert_eq!(
        total(of_gpt["variants"].as_array().unwrap(), "--final-norm true"),
        Some((116_497_920u64 + 2 * 768).into())
    );
    let shown = f.ok("params gpt2 --variants");
    assert!(shown.contains("--tied-head false") && shown.contains("+38,597,376"), "{shown}");
    assert!(f.ok("params gpt2 --attention-bias false").contains("124,402,944"));
    f.fails(1, "params gpt2 --n-head 0", &["n_head is 0"]);
    f.fails(1, "params gpt2 --n-head 5", &["use 4 or 6 heads"]);
    f.fails(1, "params gpt2 --vocab-size 0", &["vocab_size is 0"]);
}

/// R193: rows beyond the tokenizer's tokens are padding, in a preset as in a training, and never come out.
#[test]
fn a_vocabulary_may_be_padded() {
    let f = Folder::new("padded");
    assert_eq!(f.json("params gpt2 --padded-vocab-size 50304 --json")["total"], 124_475_904);
    let tiny = "--n-layer 1 --d-model 8 --n-head 1";
    let shown =
        f.json(&format!("inspect --preset gpt2 {tiny} --vocab-size 50304 --prompt Hello --tensor logits --json"));
    let row = |v: &Value| v["name"] == "logits" && v["shape"] == serde_json::json!([1, 1, 50_304]);
    assert!(shown["tensors"].as_array().unwrap().iter().any(row));
    train(&f, "m", "--vocab-size 100 --steps 4 --save-every 2 --learning-rate 0.05");
    let config: Value = serde_json::from_slice(&f.bytes("m/config.json")).unwrap();
    assert_eq!(config["vocab_size"], 100);
    let tokens = f.json("tokenize --model m --vocab --json")["vocab"]["tokens"].as_array().unwrap().len();
    assert!(tokens < 40, "{tokens}");
    // flat and long: of 100 rows most would be padding
    let made = f.json("generate --model m --prompt T --max-tokens 50 --num-samples 20 --temperature 50 --json");
    let samples = made["samples"].as_array().unwrap().iter();
    let ids: Vec<u64> =
        samples.flat_map(|sample| sample["tokens"].as_array().unwrap()).map(|id| id.as_u64().unwrap()).collect();
    assert!(ids.len() > 50 && ids.iter().all(|id| (*id as usize) < tokens), "{made}");
    // the first rows begin as those of a model without padding do, and the run goes on and begins anew as it is
    train(&f, "plain", "--steps 1");
    train(&f, "wide", "--steps 1 --vocab-size 100");
    let table = |run: &str| {
        let path = format!("inspect --model {run} --initial --tokens 1 --tensor embed.weight --json");
        f.json(&path)["tensors"][0]["values"].as_array().unwrap()[..2].to_vec()
    };
    assert_eq!(table("plain"), table("wide"));
    assert!(text(&f.bytes("wide/limpid.toml")).contains("vocab_size = 100\n"));
    assert!(!text(&f.bytes("plain/limpid.toml")).contains("vocab_size"));
    train(&f, "again", "--config wide/limpid.toml --steps 1");
    assert_eq!(f.bytes("again/model.safetensors"), f.bytes("wide/model.safetensors"));
    f.ok("convert m padded-hf --to hf");
    f.fails(1, &format!("train --data rhyme.txt --tokenizer char --vocab-size 7 {TINY}"), &["vocab_size is 7"]);
}

/// R289-R292: llm.c's sixteen tensors, in its order.
#[test]
fn parameters_are_listed_as_they_lie() {
    let f = Folder::new("layout");
    let found = f.json("params llmc-gpt2 --layout --notation llmc --json");
    let rows = found["layout"].as_array().unwrap();
    let names: Vec<&str> = rows.iter().map(|row| row["symbol"].as_str().unwrap()).collect();
    let order = "wte wpe ln1w ln1b qkvw qkvb attprojw attprojb ln2w ln2b fcw fcb fcprojw fcprojb lnfw lnfb";
    assert_eq!(names.join(" "), order);
    let sum: u64 = rows.iter().map(|row| row["count"].as_u64().unwrap()).sum();
    assert_eq!(sum, 124_439_808);
    let fcprojw = &rows[12];
    assert_eq!(fcprojw["axes"], "L C 4C");
    assert_eq!(fcprojw["shape"], serde_json::json!([12, 768, 3072]));
    assert_eq!([&fcprojw["count"], &fcprojw["at"]].map(Value::as_u64), [Some(28_311_552), Some(96_153_600)]);
    assert!(f.ok("params llmc-gpt2 --layout").contains("blocks.{i}.mlp.out.weight"));
    assert!(f.ok("params gpt2 --tied-head false --layout").contains("unembed.weight"));
    assert!(f.ok("params gpt2 --notation transformerlens").contains("pos_embed.W_pos"));
}

/// R025: a model of a large vocabulary has rows only for what its text uses.
#[test]
fn a_large_vocabulary_made_dense() {
    let f = Folder::new("dense");
    let rhyme = f.file("rhyme.txt", RHYME.repeat(12));
    let ids = f.json(&format!("tokenize --tokenizer gpt2 --json @{rhyme}"))["ids"].clone();
    let mut used: Vec<u64> = ids.as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect();
    used.sort_unstable();
    used.dedup();
    let size = "--d-model 16 --n-head 2 --n-layer 1 --context-length 16 --batch-size 4 --schedule constant --threads \
                1 --sample 5";
    let train = format!("train --data {rhyme} --tokenizer gpt2:dense --val-fraction 0 {size} --out m --json");
    f.ok(&format!("{train} --steps 3"));
    let config: Value = serde_json::from_slice(&f.bytes("m/config.json")).unwrap();
    assert_eq!(config["vocab_size"], used.len());
    let written = f.json("generate --model m --prompt Twinkle --max-tokens 8 --json")["samples"][0].clone();
    assert!(
        written["tokens"].as_array().unwrap().iter().all(|id| id.as_u64().unwrap() < used.len() as u64),
        "{written}"
    );
    // it goes on, and is evaluated, with the same ids
    f.ok("train --resume m --steps 5 --json");
    assert!(f.json(&format!("eval --model m --data {rhyme} --json"))["loss"].as_f64().unwrap().is_finite());
    f.fails(1, "generate --model m --prompt 'Twinkle 🦓'", &["of gpt2", "is not among"]);
    f.fails(1, "convert m c --to hf", &["dense"]);
}

#[test]
fn text_to_ids_and_back() {
    let f = Folder::new("tokenize");
    let found = f.json("tokenize --tokenizer cl100k_base --json 'Chapter 1: Building Rapport and Capturing'");
    assert_eq!(found["ids"], serde_json::json!([26072, 220, 16, 25, 17283, 23097, 403, 323, 17013, 1711]));
    assert_eq!(f.ok("tokenize --tokenizer gpt2 --decode 9246,4483,10211"), "cat eat mouse\n");
    f.fails(1, "tokenize --tokenizer gpt3 hello", &["gpt2"]);
    f.fails(1, "tokenize --decode 99999999", &["99999999"]);
}

#[test]
fn wrong_usage_is_exit_2_and_names_the_nearest() {
    let f = Folder::new("usage");
    f.fails(2, "train --learning-rat 1", &["--learning-rate"]);
    f.fails(2, "trian", &["train"]);
    f.fails(2, "train --preset nanoo", &["did you mean `nano`"]);
    f.fails(2, "train --mask multiplicative", &["the softmax is NaN", "`causal`"]);
    f.fails(2, "train --steps many", &["many"]);
    f.fails(2, "params", &["formulated-gpt2"]);
    let config = f.file("c.toml", "learning_rat = 1\n");
    f.fails(2, &format!("train --config {config}"), &["c.toml", "learning_rat", "did you mean `learning_rate`"]);
    let config = f.file("d.toml", "steps = [1\n");
    f.fails(1, &format!("train --config {config}"), &["d.toml"]);
}

#[test]
fn what_cannot_be_trained_on_is_said_before_anything_is_written() {
    let f = Folder::new("data");
    let rhyme = f.file("rhyme.txt", RHYME.repeat(12));
    let nothing_new =
        |f: &Folder| assert!(!f.0.join("runs").exists() && !f.0.join("o").exists(), "nothing may be left");
    f.fails(1, "train --data nowhere.txt", &["nowhere.txt", "builtin:stories"]);
    f.fails(1, "train --data builtin:poems", &["builtin:stories"]);
    let empty = f.file("empty.txt", "");
    f.fails(1, &format!("train --data {empty} --out o"), &["empty"]);
    let short = f.file("short.txt", "too short");
    f.fails(1, &format!("train --data {short} --out o"), &["--context-length"]);
    let latin = f.file("latin.txt", b"caf\xe9 au lait");
    f.fails(1, &format!("train --data {latin} --out o"), &["UTF-8", "byte 3", "iconv"]);
    f.fails(1, &format!("train --data {rhyme} --n-head 5 --out o"), &["d_model 128", "n_head 5", "use 4 or 8 heads"]);
    f.fails(1, &format!("train --data {rhyme} --n-layer 0 --out o"), &["n_layer is 0"]);
    f.fails(2, &format!("train --data {rhyme} --n-layer -3 --out o"), &["-3"]);
    f.fails(1, &format!("train --data {rhyme} --batch-size 0 --out o"), &["batch"]);
    f.fails(1, &format!("train --data {rhyme} --dropout 1 --out o"), &["dropout", "1"]);
    f.fails(
        1,
        &format!("train --data {rhyme} --d-model 131072 --n-head 8 --n-layer 96 --out o"),
        &["memory", "available"],
    );
    f.fails(1, &format!("train --data {rhyme} --context 200 --out o"), &["context_length"]);
    f.fails(
        1,
        &format!("train --data {rhyme} --tokenizer char --mask bidirectional --tokenizer gpt2 --out o"),
        &["[MASK]"],
    );
    f.fails(1, "train --resume nowhere", &["nowhere", "cannot be resumed"]);
    nothing_new(&f);
}

#[test]
fn a_damaged_model_is_named() {
    let f = Folder::new("damaged");
    train(&f, "m", "--steps 2");
    let copy = |name: &str| {
        let to = f.0.join(name);
        fs::create_dir_all(&to).unwrap();
        for file in ["config.json", "model.safetensors", "tokenizer.json"] {
            fs::copy(f.0.join("m").join(file), to.join(file)).unwrap();
        }
        to
    };
    let generate = |name: &str| format!("generate --model {name} --prompt a");
    f.fails(1, &generate("nowhere"), &["nowhere"]);
    for file in ["config.json", "model.safetensors"] {
        fs::remove_file(copy("a").join(file)).unwrap();
        f.fails(1, &generate("a"), &["a is not a model directory", file]);
    }
    let whole = fs::read(f.0.join("m/model.safetensors")).unwrap();
    for length in [0, 5, 100, whole.len() / 2, whole.len() - 1] {
        fs::write(copy("b").join("model.safetensors"), &whole[..length]).unwrap();
        f.fails(1, &generate("b"), &["model.safetensors"]);
    }
    let config = fs::read_to_string(f.0.join("m/config.json")).unwrap();
    fs::write(copy("c").join("config.json"), config.replace("\"d_ff\": 32", "\"d_ff\": 16")).unwrap();
    f.fails(1, &generate("c"), &["blocks.0.mlp.in.weight", "[32, 16]", "[16, 16]"]);
    fs::write(copy("d").join("config.json"), config.replace("\"n_layer\": 2", "\"n_layer\": 3")).unwrap();
    f.fails(1, &generate("d"), &["no tensor `blocks.2."]);
    fs::write(copy("e").join("config.json"), config.replace("n_layer", "n_layers")).unwrap();
    f.fails(1, &generate("e"), &["did you mean `n_layer`"]);
    let other = train(&f, "other", "--steps 2 --data builtin:stories:20K --tokenizer word");
    assert!(other["steps"] == 2);
    fs::copy(f.0.join("other/tokenizer.json"), copy("g").join("tokenizer.json")).unwrap();
    f.fails(1, &generate("g"), &["tokenizer", "vocab_size"]);
    f.fails(1, "generate --model m --tokens 1,2,99999", &["99999", "index 2"]);
    f.fails(1, "generate --model m --prompt 'Ω'", &["Ω"]);
    f.fails(1, "generate --model m --prompt a --top-p 2", &["top_p"]);
    f.fails(1, "inspect --model m --prompt star --tensor blocks.0.attn.hook_patern", &["hook_pattern"]);
    f.fails(
        1,
        "inspect --model m --prompt 'a star above the world so high'",
        &["more than the model's context_length of 16", "--last"],
    );
    let end = f.ok("inspect --model m --prompt 'a star above the world so high' --last");
    assert!(end.contains("16 tokens: "), "{end}");
}

#[test]
fn a_read_only_place_is_said() {
    // a file where a folder should be stands for a place that cannot be written: it fails for root too
    let f = Folder::new("readonly");
    f.file("taken", "");
    let rhyme = f.file("rhyme.txt", RHYME.repeat(12));
    f.fails(1, &format!("train --data {rhyme} --out taken/run {TINY} --steps 2"), &["taken/run"]);
}

#[test]
fn settings_come_from_file_environment_and_flag_in_that_order() {
    let f = Folder::new("config");
    let data = f.file("rhyme.txt", RHYME.repeat(12));
    let config = f.file("c.toml", "max_iters = 7\nn_embd = 16\nn_head = 2\nblock_size = 16\nlearning_rate = 0.002\n");
    let plan = |rest: &str, env: Option<&str>| -> Value {
        let mut command =
            f.command(&format!("plan --preset nanogpt-cpu --data {data} --config {config} {rest} --json"));
        if let Some(steps) = env {
            command.env("LIMPID_STEPS", steps);
        }
        serde_json::from_slice(&command.output().unwrap().stdout).unwrap()
    };
    let steps = |v: Value| v["recipe"]["steps"].as_u64().unwrap();
    assert_eq!(steps(plan("", None)), 7);
    assert_eq!(steps(plan("", Some("8"))), 8);
    assert_eq!(steps(plan("--steps 9", Some("8"))), 9);
    let v = plan("", None);
    assert_eq!((v["config"]["d_model"].as_u64(), v["config"]["d_ff"].as_u64()), (Some(16), Some(64)));
    assert_eq!(v["recipe"]["learning_rate"], 0.002);
    assert!((v["recipe"]["min_learning_rate"].as_f64().unwrap() - 0.0002).abs() < 1e-12);
}

fn weights(folder: &Path) -> (Vec<u8>, Vec<u8>) {
    let state = fs::read(folder.join("state/last.safetensors")).unwrap();
    // the header carries seconds; the tensors after it do not
    let header = u64::from_le_bytes(state[..8].try_into().unwrap()) as usize;
    (state[8 + header..].to_vec(), fs::read(folder.join("model.safetensors")).unwrap())
}

/// Killed at any moment and resumed, again and again, the run ends with the bytes of one that was left alone.
#[test]
#[ignore = "gate"]
fn killed_at_any_moment_nothing_is_lost() {
    let f = Folder::new("kill");
    let data = f.file("rhyme.txt", RHYME.repeat(12));
    let flags = format!(
        "--data {data} --tokenizer char {TINY} --threads 2 --steps 60 --save-every 3 --eval-every 5 --eval-tokens 200 \
         --dropout 0.1 --accumulate 2"
    );
    f.ok(&format!("train {flags} --out whole"));
    let mut kills = 0;
    for moment in 0..200u64 {
        let mut child = f
            .command(&format!("train {flags} --out parts --resume auto"))
            .stderr(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        // moments from start-up to late in the run, a fixed list of odd places
        std::thread::sleep(Duration::from_millis(40 + moment * 37 % 160));
        if child.try_wait().unwrap().is_some()
            && Run::can_resume(&f.0.join("parts"))
            && Run::finished(&f.0.join("parts"))
        {
            break;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        kills += 1;
        if kills == 10 {
            break;
        }
    }
    assert!(kills > 0, "the run was over before it could be killed");
    f.ok(&format!("train {flags} --out parts --resume auto"));
    assert!(weights(&f.0.join("whole")) == weights(&f.0.join("parts")), "after {kills} kills");
}

/// `report` tells the numbers that the runs' own files hold, one run or several, and what sets them apart.
#[test]
fn runs_are_reported_side_by_side() {
    let f = Folder::new("report");
    let one = train(&f, "one", "--steps 30 --eval-every 10");
    let two = train(&f, "two", "--steps 20 --learning-rate 0.02");
    let found = f.json("report one two --out both.html --json");
    assert_eq!(found["runs"][0]["state"], "finished");
    for (run, summary) in found["runs"].as_array().unwrap().iter().zip([&one, &two]) {
        for key in ["steps", "train_loss", "val_loss", "best_step", "tokens", "seconds"] {
            assert_eq!(run[key], summary[key], "{key} of {run}");
        }
    }
    assert_eq!(found["differs"]["steps"], serde_json::json!(["30", "20"]));
    assert_eq!(found["differs"]["learning_rate"], serde_json::json!(["0.008", "0.02"]));
    assert!(found["differs"].get("d_model").is_none());
    let page = fs::read_to_string(f.0.join("both.html")).unwrap();
    let loss = format!("{:.4}", two["val_loss"].as_f64().unwrap());
    assert!(page.contains(&loss) && page.contains("<th>learning_rate</th><td>0.008</td><td>0.02</td>"));
    let elsewhere = page.replace(" src=\"data:", "").replace("http://www.w3.org/2000/svg", "");
    let needs = ["http://", "https://", " src="].iter().find(|word| elsewhere.contains(**word));
    assert_eq!(needs, None, "needs the network");
    let shown = f.ok("report two");
    assert!(shown.contains(&loss) && shown.starts_with("   "), "{shown}");
    assert!(fs::read_to_string(f.0.join("two/report.html")).unwrap().contains("Finished: 20 steps"));
    // a run that is killed in the middle of a line is told up to there; a line that is none is named
    let lines = fs::read_to_string(f.0.join("one/metrics.jsonl")).unwrap();
    let head: String = lines.lines().take(5).map(|line| format!("{line}\n")).collect();
    fs::write(f.0.join("two/metrics.jsonl"), format!("{head}{{\"step\":6,\"tr")).unwrap();
    assert_eq!(f.json("report two --json")["runs"][0]["state"], "unfinished");
    assert_eq!(f.json("report two --json")["runs"][0]["steps"], 5);
    fs::write(f.0.join("two/metrics.jsonl"), format!("{head}no\n")).unwrap();
    f.fails(1, "report one two", &["two/metrics.jsonl", "line 6"]);
    fs::write(f.0.join("two/metrics.jsonl"), "").unwrap();
    f.fails(1, "report two", &["no step yet"]);
    f.fails(1, "report one/state", &["not a run's folder"]);
    f.fails(2, "report", &["no run is given", "limpid train"]);
}

/// Several processes do together what they know to do together, and else nothing: process 0 says so.
#[test]
#[ignore = "gate"]
fn a_verb_that_knows_no_other_processes_refuses_to_run_in_several() {
    let f = Folder::new("several");
    let started = |launcher: &[(&str, &str)], arguments: &str| {
        let out = f.command(arguments).envs(launcher.iter().copied()).output().unwrap();
        (out.status.code(), text(&out.stderr))
    };
    let open_mpi = [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "2")];
    let mpich = [("PMI_RANK", "0"), ("PMI_SIZE", "4")];
    let srun = [("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "3")];
    for (launcher, n) in [(&open_mpi, 2), (&mpich, 4), (&srun, 3)] {
        for verb in ["eval --model none --data none", "generate --model none --prompt a", "data stories", "params"] {
            let (code, said) = started(launcher, verb);
            let name = verb.split(' ').next().unwrap();
            assert!(
                said.contains(&format!("`limpid {name}` runs in one process, and {n} were started")),
                "{verb}: {said}"
            );
            assert_eq!(code, Some(2), "{verb}");
        }
        if cfg!(not(feature = "mpi")) {
            let (code, said) = started(launcher, "train --steps 1 --out m");
            assert!(code == Some(2) && said.contains(&format!("{n} processes would train {n} models")), "{said}");
            assert!(!f.0.join("m").exists());
        }
    }
    let (code, said) = started(&[("PMI_RANK", "1"), ("PMI_SIZE", "2")], "params");
    assert!(code == Some(2) && said.is_empty(), "process 0 speaks: {said}");
    for alone in [[("PMI_RANK", "0"), ("PMI_SIZE", "1")], [("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "1")]] {
        assert_eq!(started(&alone, "data stories 1K").0, Some(0));
    }
    assert_eq!(started(&mpich, "completions bash").0, Some(0));
}

/// Killed after its first weights were kept and before its first state was: `--resume auto` begins again. A finished
/// model whose state is gone is never overwritten.
#[test]
fn killed_before_the_first_state_a_run_begins_again() {
    let f = Folder::new("early");
    train(&f, "whole", "--steps 6 --save-every 2");
    train(&f, "parts", "--steps 6 --save-every 2");
    fs::remove_file(f.0.join("parts/state/last.safetensors")).unwrap();
    let again =
        format!("train --data rhyme.txt --tokenizer char {TINY} --steps 6 --save-every 2 --out parts --resume auto");
    f.fails(1, &again, &["already holds a run"]);
    fs::remove_file(f.0.join("parts/summary.json")).unwrap();
    f.ok(&again);
    assert!(weights(&f.0.join("whole")) == weights(&f.0.join("parts")));
    let lines = |dir: &str| fs::read_to_string(f.0.join(dir).join("metrics.jsonl")).unwrap().lines().count();
    assert_eq!(lines("whole"), lines("parts"), "every step is told once");
}

/// What the test needs to know of a run's folder.
struct Run;
impl Run {
    fn can_resume(folder: &Path) -> bool {
        folder.join("state/last.safetensors").exists()
    }
    fn finished(folder: &Path) -> bool {
        folder.join("summary.json").exists()
    }
}

#[cfg(unix)]
#[test]
fn an_interrupt_saves_and_says_how_to_go_on() {
    use crate::common::{kill, within};
    let f = Folder::new("interrupt");
    let data = f.file("rhyme.txt", RHYME.repeat(12));
    let flags = format!("train --data {data} --tokenizer char {TINY} --steps 100000 --out run");
    let child = f.command(&flags).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    assert!(within(Duration::from_secs(60), || f.0.join("run/metrics.jsonl").exists()), "no step is logged");
    assert!(kill("-INT", child.id()));
    let out = child.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(130), "{}", text(&out.stderr));
    assert!(text(&out.stderr).contains("limpid train --resume run"), "{}", text(&out.stderr));
    let stopped: Value = serde_json::from_str(&fs::read_to_string(f.0.join("run/summary.json")).unwrap()).unwrap();
    let steps = stopped["steps"].as_u64().unwrap();
    // without --resume, the folder is taken
    f.fails(1, &flags, &["already holds a run", "--resume"]);
    f.fails(1, &format!("train --resume run --steps {}", steps + 2), &["steps was 100000"]);
}

#[test]
fn a_closed_pipe_is_no_error() {
    let f = Folder::new("pipe");
    let mut child =
        f.command("inspect --preset nano --listing").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success() && !text(&out.stderr).contains("panicked"), "{}", text(&out.stderr));
}

#[test]
fn masked_models_learn_and_fill() {
    let f = Folder::new("masked");
    let data = f.file("rhyme.txt", RHYME.repeat(20));
    let small = "--d-model 32 --n-head 2 --n-layer 2 --context-length 16 --batch-size 16 --sample 0 --threads 2";
    let summary = f.json(&format!(
        "train --preset formulated-bert --data {data} {small} --steps 600 --learning-rate 0.003 --init xavier --out \
         bert --json"
    ));
    assert!(summary["train_loss"].as_f64().unwrap() < 1.5, "{summary}");
    let filled = f.ok("generate --model bert --prompt 'Twinkle, twinkle, little [MASK], how I wonder what you are.'");
    assert!(filled.starts_with("Twinkle, twinkle, little star, how I wonder what you are."), "{filled}");
    // what is said of the mask is the distribution of its row (contract R270)
    let prompt = "--model bert --prompt 'Twinkle, [MASK], little star, how I wonder [MASK] you are.' --json";
    let (filled, rows) = (f.json(&format!("generate {prompt}")), f.json(&format!("inspect {prompt} --next")));
    let masks = filled["samples"][0]["masks"].as_array().unwrap();
    assert_eq!(masks.len(), 2);
    for mask in masks {
        let at = mask["position"].as_u64().unwrap() as usize;
        let row =
            rows["next"][at].as_array().unwrap().iter().map(|c| (&c["piece"], c["probability"].as_f64().unwrap()));
        let said = mask["candidates"].as_array().unwrap().iter().map(|c| (&c[0], c[1].as_f64().unwrap()));
        assert!(said.clone().map(|(piece, _)| piece).eq(row.clone().map(|(piece, _)| piece)), "{mask}");
        assert!(said.zip(row).all(|((_, a), (_, b))| (a - b).abs() < 1e-6), "{mask}");
    }
    f.fails(1, "generate --model bert --prompt 'no mask'", &["[MASK]"]);
}

/// Three words make windows in which most draws mask nothing: every seed trains, every step has a loss, and so has an
/// evaluation.
#[test]
#[ignore = "gate"]
fn a_few_masked_words_are_learned() {
    let f = Folder::new("few");
    let sizes =
        "--d-model 8 --n-head 2 --n-layer 1 --d-ff 16 --tokenizer word --batch-size 1 --val-fraction 0 --threads 1";
    for (words, context) in [("the cat sat", 2), ("the cat", 1), ("a b c d e f", 5)] {
        f.file("w.txt", words);
        for seed in [0, 1, 2, 10] {
            let run = format!(
                "train --preset formulated-bert --data w.txt {sizes} --context-length {context} --steps 12 --seed \
                 {seed}"
            );
            f.ok(&format!("{run} --sample 0 --force --out b --json"));
            let lines = fs::read_to_string(f.0.join("b/metrics.jsonl")).unwrap();
            let losses = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["train_loss"].clone());
            let steps: Vec<Value> = losses.filter(|loss| !loss.is_null()).collect();
            assert!(steps.len() == 12 && steps.iter().all(|loss| loss.as_f64().unwrap() > 0.0), "{run}: {steps:?}");
            let found = f.json("eval --model b --data w.txt --json");
            assert!(found["tokens"].as_u64().unwrap() > 0 && found["loss"].as_f64().unwrap() > 0.0, "{run}: {found}");
        }
    }
}

/// A step that sees a question alone has no loss: none is logged, none is in the mean, and the others are what they
/// would be.
#[test]
fn a_loss_over_no_tokens_is_no_loss() {
    let f = Folder::new("no-loss");
    let line = |question: &str, answer: &str| {
        let messages = [("user", question), ("assistant", answer)];
        let messages = messages.map(|(role, content)| serde_json::json!({ "role": role, "content": content }));
        format!("{}\n", serde_json::json!({ "messages": messages }))
    };
    let long = "what is it that you want to know from me today, and why do you ask it? ".repeat(3);
    f.file("chat.jsonl", line("hi", "hello, you").repeat(4) + &line(&long, "nothing").repeat(4));
    let sizes = "--tokenizer char --d-model 16 --n-head 2 --n-layer 1 --context-length 48 --batch-size 1 --threads 1";
    let train = format!("train {sizes} --data chat.jsonl --val-fraction 0.3 --steps 40 --eval-every 10 --sample 0");
    let (_, said) = f.both(&format!("{train} --out m"));
    let lines = fs::read_to_string(f.0.join("m/metrics.jsonl")).unwrap();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let steps: Vec<&Value> = lines.iter().filter(|line| line["tokens"].is_u64()).collect();
    let losses: Vec<f64> = steps.iter().filter_map(|line| line["train_loss"].as_f64()).collect();
    assert!(steps.len() == 40 && losses.len() < 35 && losses.iter().all(|loss| *loss > 0.0), "{losses:?}");
    assert!(steps.iter().all(|line| line["train_loss"].is_null() == line["grad_norm"].is_null()));
    let mean = losses.iter().sum::<f64>() / losses.len() as f64;
    let summary: Value = serde_json::from_str(&text(&f.bytes("m/summary.json"))).unwrap();
    assert!((summary["train_loss"].as_f64().unwrap() - mean).abs() < 1e-12, "{summary}");
    assert!(said.contains(&format!("train loss {mean:.4} (mean")), "{said}");
    let rows = text(&f.bytes("m/metrics.csv"));
    assert_eq!(rows.lines().skip(1).filter(|row| row.split(',').nth(1) == Some("")).count(), 40 - losses.len());
    assert_eq!(f.json("report m --json")["runs"][0]["steps"], 40);
    // stopped between two such steps, it goes on with the same bits
    f.ok(&format!("{train} --save-every 7 --keep 9 --out again --json"));
    f.ok("train --resume again --resume-step 14 --json");
    assert_eq!(f.bytes("again/model.safetensors"), f.bytes("m/model.safetensors"));
}

/// The commands of docs/chat.md on its conversations, in its order.
#[test]
fn conversations_are_learned_as_the_guide_says() {
    let f = Folder::new("chat");
    let of = |kind| block("chat.md", "## Train on conversations", kind);
    let lines = of("json");
    f.file("chat.jsonl", &lines);
    let small = "--tokenizer char --d-model 32 --n-head 2 --n-layer 2 --threads 2 --sample 0 --json";
    let said: Vec<String> = of("sh")
        .lines()
        .map(|line| line.strip_prefix("limpid ").unwrap())
        .map(|line| f.ok(&if line.starts_with("train") { format!("{line} {small}") } else { line.into() }))
        .collect();
    // the answer alone: neither the question nor the end of the turn
    assert_eq!(said[1..3], ["Tom has the ball.\n", "In the tree.\n"]);
    // 12 + 10 + 17 + 6 letters and an end each
    assert!(said[3].contains("tokens predicted") && said[3].contains(" 49 "), "{}", said[3]);
    talks(&f);
    asks_and_continues(&f);
    #[cfg(target_os = "linux")]
    leaves(&f);
    let settings = fs::read_to_string(f.0.join("chat/limpid.toml")).unwrap();
    assert!(settings.contains("whole_documents = true") && settings.contains("cross_documents = false"), "{settings}");
    f.ok("train --resume chat --json"); // with the settings it began with

    let bad = f.file("bad.jsonl", format!("{lines}{{\"messages\": [{{\"role\": \"robot\", \"content\": \"\"}}]}}\n"));
    let train = format!("train --data {bad} {TINY} --steps 3 --out");
    f.fails(1, &format!("{train} o"), &["bad.jsonl", "line 5", "`robot`", "`assistant`"]);
    f.fails(1, &format!("{train} o --skip-bad --mask bidirectional"), &["conversations", "causal"]);
    assert!(!f.0.join("o").exists());
    let out = f.run(&format!("{train} o --skip-bad --sample 20"));
    let said = text(&out.stderr);
    // the sample answers the first question that was learned from
    assert!(text(&out.stdout).starts_with("<|"), "{}", text(&out.stdout));
    assert!(out.status.success() && said.contains("4 conversations"), "{said}");
    assert!(said.contains("2 were longer than 16 tokens") && said.contains("1 bad one skipped"), "{said}");
    f.ok("train --resume o --json");
}

/// Conversations with the model in the folder `chat`, line by line.
fn talks(f: &Folder) {
    let chat = |arguments: &str, lines: &str| fed(f, &format!("chat chat --temperature 0 {arguments}"), lines);
    let path = format!("{}:{}", Path::new(LIMPID).parent().unwrap().display(), std::env::var("PATH").unwrap());
    for line in block("chat.md", "## Talking", "sh").lines() {
        let mut shell = Command::new("sh");
        let out =
            shell.args(["-euc", line]).current_dir(&f.0).env("PATH", &path).stdin(Stdio::null()).output().unwrap();
        let (said, told) = (text(&out.stdout), text(&out.stderr));
        assert!(out.status.success(), "{line}\n{told}");
        if line.starts_with("printf") {
            assert_eq!(said, "Tom has the ball.\nIn the tree.\n")
        } else if line.contains("limpid replay") {
            assert_eq!(said, "the same 18 tokens\n")
        } else if line.contains("limpid embed") {
            assert!(said.contains("\"embedding\":["), "{said}")
        }
    }
    // commands, and what is kept
    let lines =
        "Who has the ball?\n/save kept.jsonl\n\n/reset\r\n/system Be brief.\nWhere is the kite?\r\n/save kept.jsonl\n";
    let (code, said, told) = chat("", lines);
    assert_eq!((code, said.as_str()), (Some(0), "Tom has the ball.\nIn the tree.\n"), "{told}");
    let saved = f.bytes("kept.jsonl");
    let kept: Vec<serde_json::Value> = text(&saved).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let message = |role: &str, content: &str| serde_json::json!({ "role": role, "content": content });
    let [asked, answer] = [message("user", "Who has the ball?"), message("assistant", "Tom has the ball.")];
    assert_eq!(kept[0]["messages"], serde_json::json!([asked, answer]));
    let [system, asked] = [message("system", "Be brief."), message("user", "Where is the kite?")];
    assert_eq!(kept[1]["messages"], serde_json::json!([system, asked, message("assistant", "In the tree.")]));
    let again = "train --from chat --data kept.jsonl --val-fraction 0 --steps 1 --sample 0 --out again --json";
    assert_eq!(f.json(again)["steps"], 1);
    // the conversation is seen whole, and what is in the cache is used again
    let long = "Who has the ball? Who has the ball? Who has the ball? Who has";
    let (_, said, _) = chat("--json", &format!("{long}\nWho?\n/reset\nWho?\n"));
    let answers: Vec<serde_json::Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let tokens = |n: usize, what: &str| answers[n][what].as_u64().unwrap();
    // `<|user|>`, a new line, .., a new line, `<|assistant|>`, a new line; `<|end|>` is a token of the answer
    assert_eq!((tokens(0, "prompt_tokens"), tokens(0, "cached_tokens")), (5 + 61, 0));
    assert_eq!(tokens(1, "prompt_tokens"), 66 + tokens(0, "tokens") + 1 + 5 + 4);
    assert_eq!((tokens(1, "cached_tokens"), tokens(2, "cached_tokens"), tokens(2, "prompt_tokens")), (64, 0, 9));
    // the draws are those of `generate`
    let flags = "--temperature 1.5 --seed 5 --top-k 12 --max-tokens 7";
    let (_, said, told) = chat(flags, "Who has the ball?\n");
    assert_eq!(said, f.ok(&format!("generate --model chat --chat 'Who has the ball?' {flags}")));
    assert!(told.contains("--max-tokens"), "{told}");
    // the end of the context is said
    let (code, _, told) = chat("", &"Who ".repeat(24));
    assert!(
        code == Some(1) && told.contains("the conversation has 101 tokens") && told.contains("context is 96: /reset"),
        "{told}"
    );
    let (code, said, told) = chat("", &"Who has the ".repeat(8)[..89]);
    assert!(code == Some(0) && said.chars().count() <= 4 && told.contains("96 tokens is full: /reset"), "{said}{told}");
    for (line, named) in [
        ("/temperature warm", "/temperature takes a number, 0 or more, found \"warm\""),
        ("/temperature -1", "temperature"),
        ("/sav x", "there is no command /sav"),
        ("/save kept.jsonl", "nothing to save"),
        ("a <|end|>", "\"<\" at byte"),
    ] {
        let (code, said, told) = chat("", line);
        assert!(code == Some(1) && said.is_empty() && told.contains(named), "{line}: {told}");
    }
    assert_eq!(f.bytes("kept.jsonl"), saved);
    let (_, said, told) = chat("", "/temperature 0.5\n/system Be brief.\n/system\n/quit\nWho has the ball?\n");
    assert_eq!(
        (said.as_str(), told.as_str()),
        ("", "the temperature is 0.5\nthe system message is set\nno system message\n")
    );
    let (_, _, told) = chat("", "/help\n");
    assert!(["/reset", "/temperature X", "/save FILE", "/system TEXT"].iter().all(|command| told.contains(command)));
    f.file("plain.txt", "Who has the ball? ".repeat(40));
    f.ok(&format!("train --data plain.txt {TINY} --tokenizer char --steps 1 --sample 0 --out plain --json"));
    let said =
        ["plain was not trained on conversations but on ", "plain.txt", "limpid generate --model plain --prompt"];
    f.fails(1, "chat plain", &said);
    f.fails(2, "chat chat --device reference", &["--device"]);
}

/// At a terminal Ctrl-C says how to leave, and `/exit` leaves, as do words that nobody says to a model.
#[cfg(target_os = "linux")]
fn leaves(f: &Folder) {
    for end in ["/exit\r", "q\r", "quit\r", "\x04"] {
        // each key after the prompt: what is typed before it is the terminal's, to whom Ctrl-D is no key
        let keys = [("Ctrl-D ends", ""), ("> ", "\x03"), ("Ctrl-D ends, /help lists the commands", ""), ("> ", end)];
        let Some((code, seen)) = at_a_terminal(f, "chat chat", &keys) else { return };
        assert!(code == Some(0) && seen.ends_with('\n'), "{end:?}: {seen:?}");
    }
}

/// What a terminal of 60 columns shows while keys are typed, each after a text was seen, and the code; none where there
/// is no `script`, which makes a terminal.
#[cfg(target_os = "linux")]
fn at_a_terminal(f: &Folder, arguments: &str, keys: &[(&str, &str)]) -> Option<(Option<i32>, String)> {
    let mut script = Command::new("script");
    let arguments = last_holds(arguments.split(' ').map(String::from).collect()).join(" ");
    script.args(["-qec", &format!("stty cols 60 rows 24; {LIMPID} {arguments}"), "/dev/null"]);
    script.current_dir(&f.0).env("TERM", "xterm").env_remove("COLUMNS").stdin(Stdio::piped()).stdout(Stdio::piped());
    let Ok(mut child) = script.spawn() else {
        println!("left out: there is no `script`, which makes a terminal");
        return None;
    };
    let (mut typed, mut shown, mut seen) = (child.stdin.take().unwrap(), child.stdout.take().unwrap(), vec![]);
    let has = |seen: &[u8], after: &str| text(seen).contains(after);
    for (after, keys) in keys {
        let from = seen.len();
        while !has(&seen[from..], after) {
            let mut byte = [0];
            assert_eq!(shown.read(&mut byte).unwrap(), 1, "no {after:?} in {:?}", text(&seen));
            seen.push(byte[0]);
        }
        typed.write_all(keys.as_bytes()).unwrap();
        typed.flush().unwrap();
    }
    shown.read_to_end(&mut seen).unwrap();
    Some((child.wait().unwrap().code(), text(&seen)))
}

/// What is said while a bar is drawn stands on lines of its own, and lines end between words.
#[cfg(target_os = "linux")]
#[test]
fn lines_do_not_run_together_at_a_terminal() {
    let f = Folder::new("terminal");
    f.file("rhyme.txt", RHYME.repeat(60));
    let train =
        "train rhyme.txt --tokenizer char --d-model 32 --n-head 2 --n-layer 2 --context-length 16 --batch-size 4";
    let shown = |seen: &str| -> Vec<String> {
        // a line is what the terminal shows of it: what stands behind the last erasure
        let lines = seen.split('\n').map(|line| line.trim_end_matches('\r'));
        lines
            .map(|line| line.rsplit("\x1b[2K").next().unwrap_or(line).replace('\r', "").replace("\x1b[1A", ""))
            .collect()
    };
    let long = format!("{train} --steps 1000000 --out m");
    let Some((code, seen)) = at_a_terminal(&f, &long, &[("/1000000", "\x03")]) else { return };
    let lines = shown(&seen);
    assert_eq!(code, Some(130), "{seen:?}");
    for begins in ["stopping after this step", "stopped after step", "stopped before the end"] {
        assert!(lines.iter().any(|line| line.starts_with(begins)), "{begins}: {lines:?}");
    }
    assert!(seen.ends_with('\n') && !seen.contains("^C\r\nstop"), "{seen:?}");
    let (_, seen) = at_a_terminal(&f, &format!("{train} --steps 3 --out n --sample 60"), &[]).unwrap();
    let lines = shown(&seen);
    let sentence = lines.iter().position(|line| line.starts_with("rhyme.txt: ")).unwrap();
    assert!(lines[sentence].len() <= 60 && !lines[sentence + 1].is_empty(), "{lines:?}");
    let (_, seen) = at_a_terminal(&f, "plan rhyme.txt --steps 3", &[]).unwrap();
    let wide: Vec<String> = shown(&seen).into_iter().filter(|line| line.chars().count() > 60).collect();
    assert!(wide.is_empty(), "{wide:#?}");
}

/// Runs a command that is given `input`: its code, stdout and stderr.
fn fed(f: &Folder, arguments: &str, input: &str) -> (Option<i32>, String, String) {
    let mut command = f.command(arguments);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes()); // it may have refused to begin
    let out = child.wait_with_output().unwrap();
    (out.status.code(), text(&out.stdout), text(&out.stderr))
}

/// With a dashboard or without one, and whoever looks at the run afterwards: the same weights, and the same lines in
/// the log.
#[cfg(target_os = "linux")]
#[test]
fn looking_at_a_run_changes_no_bit() {
    let f = Folder::new("seen");
    let data = f.file("rhyme.txt", RHYME.repeat(12));
    let train = format!(
        "train --data {data} --tokenizer char {TINY} --steps 6 --eval-every 2 --layer-stats-every 2 --sample 40"
    );
    let train = last_holds(train.split(' ').map(String::from).collect()).join(" ");
    f.ok(&format!("{train} --out plain"));
    let mut script = Command::new("script");
    script.args([
        "-qec",
        &format!("stty cols 120 rows 40; {LIMPID} {train} --out seen --ui --serve 127.0.0.1:0"),
        "/dev/null",
    ]);
    script.current_dir(&f.0).env("TERM", "xterm-256color").stdin(Stdio::piped()).stdout(Stdio::piped());
    let Ok(mut child) = script.spawn() else {
        return println!("left out: there is no `script`, which makes a terminal");
    };
    let typed = child.stdin.take(); // open, or the terminal would be gone
    let out = child.wait_with_output().unwrap();
    drop(typed);
    let shown = text(&out.stdout);
    let drawn = shown.split("\x1b[?1049h").nth(1).unwrap_or_default(); // after the screen was taken over
    let told = ["save and stop", "http://127.0.0.1:"];
    assert!(out.status.success() && told.iter().all(|told| drawn.contains(told)), "{shown}");
    let log = |run: &str| -> Vec<serde_json::Value> {
        let lines = text(&f.bytes(&format!("{run}/metrics.jsonl")));
        let untimed = |line: &str| {
            let mut line: serde_json::Value = serde_json::from_str(line).unwrap();
            line.as_object_mut().unwrap().retain(|key, _| key != "seconds" && key != "time");
            line
        };
        lines.lines().map(untimed).collect()
    };
    assert_eq!(f.bytes("seen/model.safetensors"), f.bytes("plain/model.safetensors"));
    assert_eq!(log("seen"), log("plain"));
    // the page shows every head of the model, reads the folder alone, and stays small
    let files = ["model.safetensors", "metrics.jsonl", "state/last.safetensors"];
    let before = files.map(|name| f.bytes(&format!("plain/{name}")));
    f.ok("report plain");
    assert_eq!(files.map(|name| f.bytes(&format!("plain/{name}"))), before);
    let page = text(&f.bytes("plain/report.html"));
    let (config, heads) =
        (f.json("inspect --model plain --prompt 'Twinkle' --json"), page.matches("<div class=\"head\">").count());
    let shape =
        config["rows"].as_array().unwrap().iter().filter(|t| t["name"].as_str().unwrap().ends_with("hook_pattern"));
    let all: usize = shape.map(|t| t["shape"][1].as_u64().unwrap() as usize).sum();
    assert!(heads > 0 && heads == all && page.len() < 1_000_000, "{heads} of {all}, {} bytes", page.len());
    // a model that cannot be opened is a sentence on the page
    fs::remove_file(f.0.join("plain/tokenizer.json")).unwrap();
    f.ok("report plain");
    assert!(text(&f.bytes("plain/report.html")).contains("The model itself is not shown: "));
}

#[test]
fn texts_become_vectors() {
    let f = Folder::new("embed");
    let data = f.file("rhyme.txt", RHYME.repeat(12));
    f.ok(&format!("train --data {data} {TINY} --tokenizer char --steps 2 --sample 0 --out m --json"));
    let vectors = |out: &str| -> Vec<(u64, Vec<f64>)> {
        let one = |line: &str| {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            let vector = line["embedding"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
            (line["tokens"].as_u64().unwrap(), vector)
        };
        out.lines().map(one).collect()
    };
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    f.file("texts.txt", "Twinkle\nlittle star\n");
    let [unit, raw] = ["", "--raw"].map(|raw| vectors(&f.ok(&format!("embed @texts.txt --model m {raw}"))));
    assert_eq!(unit.iter().map(|(tokens, _)| *tokens).collect::<Vec<_>>(), [7, 11]);
    for ((_, unit), (_, raw)) in unit.iter().zip(&raw) {
        let length = dot(raw, raw).sqrt();
        assert!((dot(unit, unit) - 1.0).abs() < 1e-5 && (length - 1.0).abs() > 1e-3, "{length}");
        assert!((dot(unit, raw) - length).abs() < 1e-4 * length);
    }
    assert_eq!(vectors(&f.ok("embed 'little star' --model m --json")), unit[1..]);
    assert_eq!(vectors(&fed(&f, "embed - --model m", "Twinkle\nlittle star").1), unit);
    let [first, last] = ["cls", "last"].map(|how| vectors(&f.ok(&format!("embed T --model m --pooling {how}"))));
    assert!(first == last && first != unit, "one token is the first and the last");
    assert_ne!(
        vectors(&f.ok("embed Twinkle --model m --pooling cls")),
        vectors(&f.ok("embed Twinkle --model m --pooling last"))
    );
    let greatest = vectors(&f.ok("embed T --model m --pooling max"));
    assert!(greatest == first, "one token is the greatest");
    f.fails(2, "embed T --model m --pooling sum", &["sum", "mean, cls, last"]);
    f.fails(1, "embed '' --model m", &["empty"]);
    f.file("texts.txt", "Twinkle\n\nlittle\n");
    f.fails(1, "embed @texts.txt --model m", &["line 2", "empty"]);
}

/// What is asked of the model in the folder `chat`, and of others.
fn asks_and_continues(f: &Folder) {
    let ask = "--temperature 0 --max-tokens 40";
    let answer = "Tom has the ball.\n";
    f.file("question.txt", "Who has the ball?\n");
    assert_eq!(f.ok(&format!("generate --model chat --chat @question.txt {ask}")), answer);
    let json = f.json(&format!("generate --model chat --chat 'Who has the ball?' {ask} --json"));
    assert_eq!(
        (&json["samples"][0]["text"], &json["samples"][0]["finish_reason"]),
        (&"Tom has the ball.".into(), &"stop".into())
    );
    // written out, it is the same question, and the end of a turn ends the sample without being asked to
    let whole = "<|user|>\nWho has the ball?\n<|assistant|>\n";
    let (said, told) = f.both(&format!("generate --model chat --prompt '{whole}' {ask}"));
    assert_eq!((said, told.contains("--chat")), (format!("{whole}{answer}"), false));
    let (_, told) = f.both(&format!("generate --model chat --prompt 'Who has' {ask}"));
    assert!(told.contains("--chat TEXT"), "{told}");
    // the template goes where the model goes
    let template = f.bytes("chat/chat_template.jinja");
    for to in ["hf --to hf", "own --to limpid"] {
        f.ok(&format!("convert chat {to} --tokenizer chat/tokenizer.json"));
        let folder = to.split(' ').next().unwrap();
        assert_eq!(f.bytes(&format!("{folder}/chat_template.jinja")), template);
        assert_eq!(f.ok(&format!("generate --model {folder} --chat 'Who has the ball?' {ask}")), answer);
    }
    f.file("more.txt", "Who has the ball? ".repeat(40));
    f.ok("train --from chat --data more.txt --steps 1 --sample 0 --lora 1 --out on --json");
    assert!(f.ok(&format!("generate --model on --chat 'Who has the ball?' {ask}")).ends_with('\n'));
    // what does not fit is refused, as in a conversation
    let long = "Who ".repeat(24);
    f.fails(1, &format!("generate --model chat --chat '{long}'"), &["the question has 101 tokens", "context is 96"]);
    f.ok(&format!("generate --model chat --chat '{long}' --overflow slide-half --max-tokens 2"));
    let (said, told) = f.both(&format!("generate --model chat --chat '{}'", &"Who has the ".repeat(8)[..88]));
    assert!(said.chars().count() <= 5 && told.contains("the context of 96 tokens is full"), "{said}{told}");
    // a marker in a message is text, which this vocabulary cannot write
    f.fails(1, "generate --model chat --chat 'a <|end|>'", &["--chat", "\"<\"", "char vocabulary"]);
    f.fails(2, "generate --model chat --chat a --prompt b", &["--chat", "--prompt"]);
    f.fails(2, "generate --model chat --chat - --system -", &["standard input"]);
    fs::remove_file(f.0.join("own/chat_template.jinja")).unwrap();
    f.fails(1, "generate --model own --chat a", &["own was not trained on conversations", "chat_template.jinja"]);
    // a template of another program, in a file or in the model's folder, where files name the tokens that end an answer
    let other =
        "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'].strip() }}\n{% endfor %}{{ '<|assistant|>\n' }}";
    f.file("other.jinja", other);
    let given =
        format!("generate --model own --chat ' Who has the ball? ' --chat-template other.jinja {ask} --no-echo");
    assert_eq!(f.ok(&given), answer);
    let named = serde_json::json!([{"name": "tool_use", "template": "x"}, {"name": "default", "template": other}]);
    f.file("own/tokenizer_config.json", serde_json::json!({ "chat_template": named }).to_string());
    assert_eq!(f.ok(&format!("generate --model own --chat ' Who has the ball? ' {ask}")), answer);
    f.fails(1, "generate --model own --chat 'a<|user|>'", &["--chat", "\"<\"", "char vocabulary"]);
    let id: u64 = f.json("tokenize . --tokenizer own/tokenizer.json --json")["ids"][0].as_u64().unwrap();
    f.file("own/generation_config.json", format!("{{\"eos_token_id\": [9999, {id}]}}"));
    assert_eq!(f.ok(&format!("generate --model own --chat 'Who has the ball?' {ask}")), "Tom has the ball\n");
    f.file("own/chat_template.jinja", "{{ messages[0] ");
    f.fails(1, "generate --model own --chat a", &["own", "the chat template is not understood"]);
    f.ok("generate --model own --prompt Who --max-tokens 2");
    f.fails(2, "generate --model own --prompt a --chat-template other.jinja", &["--prompt"]);
    f.fails(2, "generate --model own --prompt a --system b", &["--prompt"]);
    f.fails(2, "generate --model own --chat-template other.jinja", &["--chat"]);
}

/// A receipt is made again, by another number of threads and another instruction set too; what differs is named.
#[test]
fn a_receipt_is_replayed() {
    let f = Folder::new("receipt");
    let data = f.file("rhyme.txt", RHYME.repeat(12));
    for (out, seed) in [("m", 1), ("n", 2)] {
        f.ok(&format!(
            "train --data {data} {TINY} --tokenizer char --steps 20 --sample 0 --seed {seed} --out {out} --json"
        ));
    }
    let generate = "generate --model m --prompt Twinkle --max-tokens 12 --no-echo";
    let answer = f.ok(&format!("{generate} --receipt r.json --simd portable"));
    assert_eq!(f.ok("replay r.json --model m"), "the same 12 tokens\n");
    assert_eq!(f.ok("replay r.json --model m --simd portable --threads 2"), "the same 12 tokens\n");
    let told = f.fails(1, &format!("{generate} --receipt r.json"), &["--receipt r.json: this file exists already"]);
    assert_eq!(told.lines().count(), 1, "nothing is written first: {told}");
    f.fails(1, &format!("{generate} --receipt nowhere/r.json"), &["there is no folder nowhere"]);
    f.ok(&format!("{generate} --receipt two.json --num-samples 2 --precision bf16"));
    assert_eq!(f.ok("replay two.json --model m"), "answer 1: the same 12 tokens\nanswer 2: the same 12 tokens\n");
    // as a server gives it
    let mut receipt: serde_json::Value = serde_json::from_slice(&f.bytes("r.json")).unwrap();
    f.file("answer.json", serde_json::json!({ "id": "x", "limpid": { "receipt": receipt } }).to_string());
    assert_eq!(f.json("replay answer.json --model m --json")["answers"][0]["same"], true);
    let said = f.fails(
        1,
        "replay r.json --model n",
        &["token ", " of the answer differs: by the receipt it is ", "now it is "],
    );
    assert!(
        said.starts_with("error: this is another model: the weights are not those of the receipt (")
            && !said.contains("a fault of limpid"),
        "{said}"
    );
    let second = receipt["answer"]["tokens"][1].as_u64().unwrap();
    receipt["answer"]["tokens"][1] = (second ^ 1).into();
    f.file("r.json", receipt.to_string());
    let piece = answer.chars().nth(1).unwrap();
    let named = format!("token 2 of the answer differs: by the receipt it is {}, ", second ^ 1);
    f.fails(
        1,
        "replay r.json --model m",
        &[&named, &format!("now it is {second}, {:?}", piece.to_string()), "either the receipt was changed, or"],
    );
    receipt["limpid"] = "0.0.1\nfine".into();
    f.file("r.json", receipt.to_string());
    f.fails(1, "replay r.json --model m", &["the version is not that of the receipt (0.0.1\\nfine, now "]);
    // another tokenizer: its texts are not those of the ids
    let mut other = receipt.clone();
    other["tokenizer"] = "0".repeat(32).into();
    f.file("r.json", other.to_string());
    let said = f.fails(1, "replay r.json --model m", &[&format!("now it is {second}\n")]);
    assert!(said.starts_with("error: this is another model: the tokenizer is not that of the receipt"), "{said}");
    // an answer that was stopped: as far as it came, and not as far as nothing
    let mut stopped: serde_json::Value = serde_json::from_slice(&f.bytes("two.json")).unwrap();
    stopped[0]["answer"]["finish_reason"] = "cancelled".into();
    f.file("r.json", stopped[0].to_string());
    assert_eq!(f.ok("replay r.json --model m"), "the same 12 tokens, and there it was stopped\n");
    stopped[0]["answer"]["text"] = "0".repeat(32).into();
    f.file("r.json", stopped[0].to_string());
    f.fails(1, "replay r.json --model m", &["all tokens are the same, the text or why it ended is not"]);
    stopped[0]["answer"]["tokens"] = serde_json::json!([]);
    f.file("r.json", stopped[0].to_string());
    f.fails(1, "replay r.json --model m", &["stopped before its first token: there is nothing to compare"]);
    receipt["request"]["prompt"] = serde_json::json!([9999]);
    f.file("r.json", receipt.to_string());
    f.fails(1, "replay r.json --model m", &["it cannot give the answer", "9999", "the version is not"]);
    receipt["model"] = 1.into();
    f.file("r.json", receipt.to_string());
    f.fails(1, "replay r.json --model m", &["r.json", "a receipt has no \"model\""]);
    receipt.as_object_mut().unwrap().remove("model");
    let said = f.fails(1, "replay nothere.json --model m", &["nothere.json"]);
    assert_eq!(said.matches("nothere.json").count(), 1, "{said}");
    receipt["request"]["top_n"] = 1.into();
    f.file("r.json", receipt.to_string());
    f.fails(1, "replay r.json --model m", &["r.json", "not a receipt of limpid", "top_n"]);
    f.file("r.json", "[]");
    f.fails(2, "replay r.json --model m", &["r.json", "no receipt"]);
    f.fails(2, &format!("{generate} --receipt new.json --device reference"), &["--receipt", "--device"]);
    assert_eq!(f.bytes("r.json"), b"[]");
}

/// What is written to stdout by a command that is given `input`.
fn piped(f: &Folder, arguments: &str, input: &str) -> String {
    let mut child = f.command(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    text(&child.wait_with_output().unwrap().stdout)
}

#[test]
fn a_prompt_is_one_prompt_wherever_it_comes_from() {
    let f = Folder::new("prompt");
    let data = f.file("rhyme.txt", RHYME.repeat(12));
    f.ok(&format!("train --data {data} {TINY} --tokenizer char --steps 2 --out m"));
    let generate = "generate --model m --temperature 0 --max-tokens 5";
    let said = f.ok(&format!("{generate} --prompt 'Twinkle'"));
    assert!(said.starts_with("Twinkle"), "{said}");
    // one newline at the end of a file or a pipe is the editor's or the shell's
    for (given, meant) in [("Twinkle", "Twinkle"), ("Twinkle\n", "Twinkle"), ("Twinkle\n\n", "Twinkle\n")] {
        f.file("p.txt", given);
        f.file("crlf.txt", given.replacen('\n', "\r\n", 1));
        let want = f.ok(&format!("{generate} --prompt '{meant}'"));
        assert!(want.starts_with(meant), "{want}");
        assert_eq!(f.ok(&format!("{generate} --prompt @p.txt")), want);
        assert_eq!(piped(&f, &format!("{generate} --prompt -"), given), want);
        let tokens = |prompt: &str| f.json(&format!("{generate} --prompt {prompt} --json"))["prompt_tokens"].clone();
        assert_eq!(tokens("@p.txt"), meant.len(), "{given:?}");
        assert_eq!(f.ok(&format!("{generate} --prompt @p.txt --no-echo")), want[meant.len()..]);
    }
    f.file("p.txt", "Twinkle\r\n");
    assert_eq!(f.ok(&format!("{generate} --prompt @p.txt")), said);
}

/// A text of one's own of the size that a document used (contract R032): all of it is read, as characters of several
/// bytes too, and parted once (R038): the end, as large as asked for, is for validation and never learned.
#[test]
fn a_text_of_ones_own_is_read_whole_and_parted() {
    let f = Folder::new("own");
    let (first, second) = ("naïve — ", "日本語");
    let text = first.repeat(43_125) + &second.repeat(38_333) + "日";
    assert_eq!((text.chars().count(), text.len()), (460_000, 474_375 + 345_000));
    f.file("book.txt", &text);
    let train =
        format!("train --data book.txt --preset nanogpt-cpu {TINY} --steps 60 --learning-rate 0.01 --eval-every 0");
    let (_, said) = f.both(&format!("{train} --val-fraction 0.4211 --out m")); // where the text changes, or just before
    let counts = said.split_once(" tokens to train on, ").unwrap();
    let number = |text: &str| text.replace(',', "").parse::<u64>().unwrap();
    let learned = number(counts.0.rsplit(' ').next().unwrap());
    let kept = number(counts.1.split(' ').next().unwrap());
    assert!(learned + kept == 460_000 && (344_900..=345_000).contains(&learned), "{learned} {kept}");
    let whole = f.json("eval --model m --data book.txt --batch-size 64 --context-length 16 --json");
    assert_eq!((&whole["tokens"], &whole["bytes"]), (&459_999.into(), &819_375.into()));
    // the characters that only the end has were never a target: they are less likely than one of all
    let run = f.json("report m --json")["runs"][0].clone();
    let (train, val) = (run["train_loss"].as_f64().unwrap(), run["val_loss"].as_f64().unwrap());
    assert!(train < 1.0 && val > (10f64).ln(), "{train} {val}");
}

/// The documents' names of sizes (R282, R334): an alias is the flag itself, in a file of settings too.
#[test]
fn sizes_by_the_documents_names_are_the_same_model() {
    let f = Folder::new("names");
    let data = f.file("rhyme.txt", RHYME.repeat(12));
    let rest = "--batch-size 4 --steps 1 --sample 0 --threads 1 --json";
    f.ok(&format!("train --data {data} --context-length 12 --n-layer 3 --n-head 4 --d-model 24 {rest} --out plain"));
    let config = f.bytes("plain/config.json");
    let config_has = |key: &str| serde_json::from_slice::<Value>(&config).unwrap()[key].clone();
    assert_eq!(["context_length", "n_layer", "n_head", "d_model"].map(config_has), [12, 3, 4, 24].map(Value::from));
    for (n, names) in [
        ["block-size", "n-layers", "num-heads", "n-embed"],
        ["block_size", "n_layer", "num_heads", "n_embd"],
        ["max-seq-len", "num-layers", "num-heads", "channels"],
        ["context-length", "n-layer", "n-heads", "d-model"],
    ]
    .into_iter()
    .enumerate()
    {
        let sizes = names.iter().zip([12, 3, 4, 24]);
        let flags: String = sizes.clone().map(|(name, size)| format!("--{name} {size} ")).collect();
        f.ok(&format!("train --data {data} {flags} {rest} --out flags{n}"));
        f.file(
            "sizes.toml",
            sizes.map(|(name, size)| format!("{} = {size}\n", name.replace('-', "_"))).collect::<String>(),
        );
        f.ok(&format!("train --data {data} --config sizes.toml {rest} --out file{n}"));
        for out in ["flags", "file"] {
            for name in ["config.json", "model.safetensors"] {
                assert_eq!(f.bytes(&format!("{out}{n}/{name}")), f.bytes(&format!("plain/{name}")), "{names:?}");
            }
        }
    }
    // head size is d_model / n_head unless it is chosen
    f.ok(&format!(
        "train --data {data} --context-length 12 --n-layer 3 --n-head 4 --d-model 24 --head-size 6 {rest} --out head"
    ));
    assert_eq!(f.bytes("head/model.safetensors"), f.bytes("plain/model.safetensors"));
}

/// Contract R249.
#[test]
fn without_a_prompt_text_begins_after_the_token_that_ends_one() {
    let f = Folder::new("begins");
    let model = root("crates/limpid/fixtures/hf/gpt2-text").display().to_string();
    let generate = |how: &str| f.json(&format!("generate --model {model} {how} --max-tokens 6 --temperature 0 --json"));
    let begun = generate("");
    assert_eq!(begun["prompt_tokens"], 1);
    assert_eq!(generate("--prompt '<|endoftext|>'"), begun);
}

/// A number is printed under what it is, or not at all.
#[test]
fn a_number_that_would_mislead_is_not_printed() {
    let f = Folder::new("numbers");
    let data = f.file("rhyme.txt", RHYME.repeat(12));
    let own =
        "--steps 60 --sample 0 --threads 2 --d-model 16 --n-head 2 --n-layer 1 --context-length 16 --batch-size 4";
    let (_, said) = f.both(&format!("train --data {data} {own} --tokenizer word --out w"));
    assert!(said.contains("(mean of the last 50 steps)"), "{said}");
    let lines = fs::read_to_string(f.0.join("w/metrics.jsonl")).unwrap();
    let losses: Vec<f64> =
        lines.lines().filter_map(|l| serde_json::from_str::<Value>(l).unwrap()["train_loss"].as_f64()).collect();
    let mean = losses[10..].iter().sum::<f64>() / 50.0;
    assert!((f.json("report w --json")["runs"][0]["train_loss"].as_f64().unwrap() - mean).abs() < 1e-9);
    assert!(said.contains(&format!("train loss {mean:.4} (mean")), "{said}");

    // all of the text is known: every byte of it is predicted
    let known = f.json(&format!("eval --model w --data {data} --json"));
    assert!(known["bits_per_byte"].as_f64().unwrap() > 0.0);
    assert_eq!((&known["unknown_tokens"], &known["context"]), (&0.into(), &16.into()));
    // 4 of 8 words are not
    f.file("odd.txt", "Up above the zebra crossing quickly zooming, sky");
    let odd = f.json("eval --model w --data odd.txt --json");
    assert!(
        odd["bits_per_byte"].is_null() && odd["why_no_bits_per_byte"].as_str().unwrap().contains("unknown"),
        "{odd}"
    );
    assert_eq!((&odd["unknown_tokens"], &odd["unknown_share"]), (&4.into(), &(4.0 / 9.0).into()), "{odd}");
    assert_eq!(odd["unknown"], serde_json::json!(["zebra", "crossing", "quickly", "zooming"]));
    let said = f.ok("eval --model w --data odd.txt");
    for part in ["4 of 9 (44.4 %)", "\"zebra\"", "bits per byte     none"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    // so are they where training goes on
    let (_, said) = f.both("train --from w --data odd.txt --steps 1 --val-fraction 0 --context 4 --sample 0 --out on");
    assert!(said.contains("has no token for some of it, such as [\"zebra\""), "{said}");

    // a text that is predicted in part has no bits for each of its bytes
    f.ok(&format!("train --data {data} {own} --preset formulated-bert --d-ff 32 --tokenizer char --out b --json"));
    let masked = f.json(&format!("eval --model b --data {data} --json"));
    assert!(masked["bits_per_byte"].is_null() && masked["why_no_bits_per_byte"].as_str().unwrap().contains("masked"));
    assert!(f.ok(&format!("eval --model b --data {data}")).contains("nats a masked token"));

    // the last of four positions has no target, so no loss
    let rows = f.json("inspect --model w --prompt 'Up above the world' --json");
    let row = rows["rows"].as_array().unwrap().iter().find(|r| r["name"] == "losses").unwrap().clone();
    let each = f.json("inspect --model w --prompt 'Up above the world' --tensor losses --json");
    let each: Vec<f64> = each["tensors"][0]["values"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect();
    assert_eq!((each.len(), &row["without_target"]), (4, &1.into()));
    assert!((row["mean"].as_f64().unwrap() - each[..3].iter().sum::<f64>() / 3.0).abs() < 1e-6, "{row} {each:?}");
    assert!(row["min"].as_f64().unwrap() > 0.0);
    assert!(f.ok("inspect --model w --prompt 'Up above the world' --table").contains("1 without target"));
    // a loss that is no number is an error
    fs::create_dir(f.0.join("n")).unwrap();
    for name in ["config.json", "tokenizer.json", "model.safetensors"] {
        let mut bytes = f.bytes(&format!("w/{name}"));
        if name.starts_with("model") {
            let at = bytes.len() - 4;
            bytes[at..].copy_from_slice(&f32::NAN.to_le_bytes());
        }
        f.file(&format!("n/{name}"), bytes);
    }
    f.fails(
        1,
        &format!("eval --model n --data {data} --json --no-verify"),
        &["the loss is NaN", "`ln_final.weight` in n is not finite"],
    );
}

#[test]
#[ignore = "gate"]
fn the_seeds_systems_train() {
    let f = Folder::new("seeds");
    let data = f.file("rhyme.txt", RHYME.repeat(12));
    let own = "--steps 30 --sample 0 --threads 2 --json";
    let scaled = "--d-model 24 --n-head 3 --n-layer 2 --context-length 16 --batch-size 4";
    for (preset, size) in [
        ("notations", ""),
        ("zero-to-hero", ""),
        ("decoder-readme", "--steps 300"),
        ("formulated-gpt", scaled),
        ("formulated-gpt2", scaled),
        ("llmc-gpt2", &format!("{scaled} --context 16 --tokenizer char --learning-rate 0.003")),
    ] {
        let summary =
            f.json(&format!("train --preset {preset} --data {data} {own} {size} --learning-rate 0.003 --out {preset}"));
        let lines = fs::read_to_string(f.0.join(preset).join("metrics.jsonl")).unwrap();
        let first: Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
        let (first, last) = (first["train_loss"].as_f64().unwrap(), summary["train_loss"].as_f64().unwrap());
        assert!(last < first - 0.2, "{preset}: {first} to {last}");
        assert!(!f.ok(&format!("generate --model {preset} --prompt 'twinkle' --max-tokens 5")).is_empty());
    }
}

#[test]
fn a_configuration_is_proved_to_learn() {
    let f = Folder::new("check");
    let data = f.file("rhyme.txt", RHYME.repeat(12));
    for rest in
        ["", "--positions rotary --norm rms --norm-place post --final-norm false --activation silu --tied-head false"]
    {
        let found = f.json(&format!("check --data {data} --tokenizer char {TINY} {rest} --json"));
        assert_eq!(found["passed"], true, "{found}");
    }
}

#[test]
#[ignore = "gate"]
fn benches_and_doctor_report_their_roofs() {
    let f = Folder::new("bench");
    let small = "--preset nano --n-layer 1 --d-model 32 --n-head 2 --context-length 16 --threads 1 --json";
    let train = f.json(&format!("bench train {small} --batch-size 2 --steps 3"));
    for key in ["ms_per_step", "tok_s", "gflops", "roof_gflops", "peak_rss_bytes"] {
        assert!(train[key].as_f64().is_some_and(|v| v > 0.0), "{key} in {train}");
    }
    let prefill = f.json(&format!("bench prefill {small} --tokens 12"));
    let decode = f.json(&format!("bench decode {small}"));
    assert!(prefill["gflops"].as_f64().unwrap() > 0.0);
    for found in [&train, &prefill, &decode] {
        // none where another program disturbed the roof
        let share = &found["share_of_roof"];
        assert!(share.is_null() || share.as_f64().is_some_and(|share| share > 0.0 && share <= 1.0), "{found}");
    }
    // the instructions can be chosen, and are checked
    for simd in f.json("doctor --threads 1 --json")["simd_available"].as_array().unwrap() {
        let mut command = f.command("doctor --threads 1 --json");
        command.env("LIMPID_SIMD", simd.as_str().unwrap());
        let found: Value = serde_json::from_slice(&command.output().unwrap().stdout).unwrap();
        assert_eq!(found["simd"], *simd);
    }
    let wrong = f.command("doctor").env("LIMPID_SIMD", "avx9").output().unwrap();
    assert!(wrong.status.code() == Some(2) && text(&wrong.stderr).contains("portable"), "{}", text(&wrong.stderr));
    assert!(f.json("doctor --threads 1 --json")["roof_flops_f32"].as_f64().unwrap() > 0.0);
}

/// A model is the same bytes whatever the instructions; the one name that is outside the promise is another.
#[test]
fn every_instruction_set_trains_the_same_model() {
    let f = Folder::new("levels");
    f.file("rhyme.txt", RHYME.repeat(12));
    let levels = f.json("doctor --threads 1 --json")["simd_available"].clone();
    let levels: Vec<&str> = levels.as_array().unwrap().iter().map(|level| level.as_str().unwrap()).collect();
    for precision in ["f32", "bf16"] {
        let train = |level: &str| {
            let out = format!("{level}-{precision}");
            let rest = format!("--steps 4 --learning-rate 0.01 --precision {precision} --simd {level} --out {out}");
            f.ok(&format!("train --data rhyme.txt --tokenizer char {TINY} {rest}"));
            f.bytes(&format!("{out}/model.safetensors"))
        };
        let portable = train("portable");
        for level in levels.iter().filter(|level| **level != "portable") {
            assert!(train(level) == portable, "{level}, {precision}");
        }
        if precision == "f32" {
            assert!(train("unfused") != portable);
        }
    }
}

/// The time is that of steps that were taken, or `plan` says why none were.
#[test]
#[ignore = "gate"]
fn a_plan_measures_steps() {
    let f = Folder::new("plan-time");
    f.file("rhyme.txt", RHYME.repeat(12));
    let plan = |rest: &str| f.json(&format!("plan --data rhyme.txt --tokenizer char --steps 50 {rest} --json"));
    let found = plan(TINY);
    assert!(found["measured"]["steps"].as_u64().unwrap() >= 2 && found["not_measured"].is_null(), "{found}");
    let (step, all) = (found["seconds_per_step"].as_f64().unwrap(), found["expected_seconds"].as_f64().unwrap());
    assert!(step > 0.0 && (all / (50.0 * step) - 1.0).abs() < 1e-9, "{found}");
    let found = plan("--d-model 16384 --n-head 16 --n-layer 96");
    assert!(found["measured"].is_null() && found["not_measured"].as_str().unwrap().contains("available"), "{found}");
    let text = f.ok("plan --data rhyme.txt --tokenizer char --d-model 16384 --n-head 16 --n-layer 96");
    assert!(text.contains("a guess, as even a small step was refused: training this model needs"), "{text}");
    assert!(std::fs::read_dir(&f.0).unwrap().count() == 1, "nothing is written");
}

/// What `plan --ranks` says of nanoGPT's model on the built-in text, against a computation by hand.
#[test]
#[ignore = "gate"]
fn a_plan_counts_processes() {
    let f = Folder::new("plan-ranks");
    let nano = "plan --preset nanogpt-cpu --tokenizer bpe --ema 0.99 --accumulate 8 --batch-size 2";
    let plan = f.json(&format!("{nano} --ranks 4 --network 1g --json"));
    let ranks = &plan["ranks"];
    let is = |key: &str, wanted: u64| assert_eq!(ranks[key], wanted, "{key}: {ranks}");
    // 2048 x 128 + 64 x 128 + 4 x (2 x 128 + 4 x 128 x 128 + 2 x 128 x 512) + 128 = 1,057,920 numbers in f32: the table
    // of 1,979 tokens has room for 2,048
    let weights = 4 * 1_057_920;
    is("processes", 4);
    is("micro_batches", 2);
    is("updates", 264_480);
    // three quarters of the gradients go out, and three quarters of the parameters
    is("sent_bytes_per_step", 2 * 3_173_760);
    for (key, wanted) in [
        ("gradients set aside", weights), // two micro-batches: one sum waits
        ("optimizer moments", 2 * weights / 4),
        ("average of the weights", weights / 4),
        ("buffers to and from the others", 2 * weights), // four blocks of a quarter each, out and in
    ] {
        let found = ranks["memory_bytes"][key].as_f64().unwrap();
        assert!((found / wanted as f64 - 1.0).abs() < 1e-6, "{key}: {found}, not {wanted}");
    }
    let of = |value: &Value, key: &str| value[key].as_f64().unwrap_or_else(|| panic!("{key}: {value}"));
    let parts = ranks["memory_bytes"].as_object().unwrap().values().map(|bytes| bytes.as_f64().unwrap()).sum::<f64>();
    assert_eq!(of(ranks, "total_memory_bytes"), parts + of(ranks, "scratch_bytes") + of(&plan, "program_bytes"));
    // 3,173,760 bytes at 117 MB/s are 27.12615 ms; with two times 50 us, twice
    assert!((of(ranks, "network_seconds") - 0.054_452_31).abs() < 1e-7, "{ranks}");
    // a quarter of everything
    assert!((of(ranks, "compute_seconds") / (of(&plan, "seconds_per_step") / 4.0) - 1.0).abs() < 1e-9, "{plan}");
    let hidden = of(ranks, "hidden_seconds");
    assert!(hidden > 0.0 && hidden < of(ranks, "network_seconds"), "{ranks}");
    let seconds = of(ranks, "compute_seconds") + of(ranks, "network_seconds") - hidden;
    assert!((of(ranks, "seconds_per_step") / seconds - 1.0).abs() < 1e-9);
    assert!((of(ranks, "tok_s") / (8.0 * 2.0 * 64.0 / seconds) - 1.0).abs() < 1e-9, "{ranks}");
    assert!((of(ranks, "efficiency") / (of(&plan, "seconds_per_step") / seconds / 4.0) - 1.0).abs() < 1e-9, "{ranks}");
    assert!([1, 2, 4, 8].contains(&ranks["worth_up_to"].as_u64().unwrap()), "{ranks}");

    // 10 Gbit/s where nothing is said: 2.712615 ms and two times 50 us, twice
    let text = f.ok(&format!("{nano} --ranks 4"));
    for said in ["4 processes over 10 Gbit/s", "2 micro-batches of the step's 8", "6.3 MB a step", "which takes 5.6 ms"]
    {
        assert!(text.contains(said), "{said}: {text}");
    }
    assert!(f.json(&format!("{nano} --json"))["ranks"].is_null());
    // one process sends nothing
    let one = f.json("plan --ranks 1 --json")["ranks"].clone();
    assert_eq!((&one["sent_bytes_per_step"], &one["network_seconds"]), (&0.into(), &0.0.into()), "{one}");

    // what `train` refuses, in its words
    for (flags, said) in [
        ("--accumulate 8 --batch-size 2 --ranks 16", "--accumulate 16 --batch-size 1"),
        ("--accumulate 6 --batch-size 4 --ranks 2", "--accumulate 4 --batch-size 6"),
        ("--accumulate 8 --batch-size 2 --ranks 3", "start 2 processes"),
    ] {
        f.fails(1, &format!("plan {flags}"), &["powers of two", said]);
    }
    f.fails(2, "plan --ranks 0", &["--ranks"]);
    f.fails(2, "plan --ranks 2 --network 5g", &["5g", "10g", "100g"]);
    f.fails(2, "plan --network 1g", &["--ranks"]);
}

/// A file of an older limpid's has settings by the names that they had then.
#[test]
fn settings_are_read_by_their_old_names() {
    let f = Folder::new("old-names");
    f.file("rhyme.txt", RHYME.repeat(12));
    f.file("old.toml", "spike = 3.5\ndetail_every = 7\n");
    let plan = f.json(&format!("plan --data rhyme.txt --tokenizer char {TINY} --config old.toml --json"));
    let read = ["spike_sigma", "layer_stats_every"].map(|name| plan["recipe"][name].clone());
    assert_eq!(read, [Value::from(3.5), Value::from(7)], "{plan}");
}

#[test]
fn a_rate_is_found_and_nothing_is_written() {
    let f = Folder::new("find-rate");
    f.file("rhyme.txt", RHYME.repeat(12));
    let find = format!("train --data rhyme.txt --tokenizer char {TINY} --lr-find");
    let found = f.json(&format!("{} --json", find.replace("--lr-find", "--find-rate"))); // its old name
    let tried = found["tried"].as_array().unwrap();
    let rates: Vec<f64> = tried.iter().map(|t| t["rate"].as_f64().unwrap()).collect();
    let suggested = found["suggested"].as_f64().unwrap();
    assert!(rates.len() >= 3 && rates[0] < suggested && suggested < 2.0 * rates[rates.len() - 1], "{found}");
    assert!(f.ok(&find).contains(&format!("--learning-rate {suggested:.1e}")));
    assert!(std::fs::read_dir(&f.0).unwrap().count() == 1, "nothing is written");
}

/// What `plan` says of memory is what training takes, within 5 %, whether threads take whole sequences or share each
/// op. How much of the program itself is in memory differs by some 3 MB from run to run, 5 % of `nano`: so both are
/// larger.
#[test]
#[ignore = "gate"]
#[cfg(target_os = "linux")]
fn training_takes_the_memory_that_plan_says() {
    let folder = Folder::new("memory");
    for (model, out) in [
        ("--preset nano --batch-size 24", "a"),
        ("--preset nano --d-model 320 --n-head 5 --batch-size 16 --val-fraction 0.01", "b"),
    ] {
        let plan = folder.json(&format!("plan {model} --json"))["total_memory_bytes"].as_f64().unwrap();
        let run = folder.json(&format!("train {model} --steps 2 --out {out} --json"));
        let peak = run["peak_rss_bytes"].as_f64().unwrap();
        assert!((peak / plan - 1.0).abs() < 0.05, "{model}: planned {plan}, taken {peak}");
    }
}

/// `--memory` is kept to, with the losses of the run that has all the memory it likes; what nothing fits is said.
#[test]
#[ignore = "gate"]
#[cfg(target_os = "linux")]
fn a_memory_budget_is_kept() {
    let folder = Folder::new("budget");
    let model = "--preset nano --d-model 320 --n-head 5 --batch-size 16 --dropout 0.1 --val-fraction 0.01";
    let plan = folder.json(&format!("plan {model} --json"));
    assert_eq!((&plan["extra_work"], &plan["made_again"][0]["what"]), (&0.0.into(), &"nothing".into()));
    let ladder: Vec<f64> = plan["ladder"]
        .as_array()
        .unwrap()
        .iter()
        .map(|recompute_level| recompute_level["total_memory_bytes"].as_f64().unwrap())
        .collect();
    let run = |out: &str, more: &str| folder.json(&format!("train {model} --steps 2 --out {out} --json {more}"));
    let free = run("free", "");
    for (out, budget) in [("a", 0.6 * ladder[0] + 0.4 * ladder[3]), ("b", ladder[3] + 4e6)] {
        let memory = format!("--memory {budget:.0}");
        let plan = folder.json(&format!("plan {model} {memory} --json"));
        let planned = plan["total_memory_bytes"].as_f64().unwrap();
        assert!(planned <= budget && plan["made_again"][0]["what"] != "nothing", "{plan}");
        let run = run(out, &memory);
        let peak = run["peak_rss_bytes"].as_f64().unwrap();
        assert!((peak / planned - 1.0).abs() < 0.05, "{memory}: planned {planned}, taken {peak}");
        assert!(peak < 1.05 * budget, "{memory}: taken {peak}");
        assert_eq!((&run["train_loss"], &run["val_loss"]), (&free["train_loss"], &free["val_loss"]), "{memory}");
    }
    let settings = fs::read_to_string(folder.0.join("b/limpid.toml")).unwrap();
    assert!(settings.contains("\nmemory = "), "{settings}");
    folder.ok("train --resume b --memory 2GiB --json");
    let text = folder.ok(&format!("plan {model} --memory {:.0}", ladder[3] + 4e6));
    assert!(text.contains("recomputed") && text.contains("norms and activations"), "{text}");
    folder.fails(1, &format!("train {model} --memory 20M"), &["20.0 MB", "batch_size"]);
    folder.fails(1, &format!("plan {model} --memory 20M"), &["20.0 MB", "batch_size"]);
    folder.fails(2, "train --memory lots", &["lots", "2G"]);
}

/// Integer products are for quantised weights, on which everything that runs a model takes them; nothing else does.
#[test]
#[ignore = "gate"]
fn int8_is_for_quantised_weights() {
    let f = Folder::new("int8");
    let size = "--n-layer 1 --d-model 64 --n-head 2 --context-length 16 --steps 2 --batch-size 2 --sample 0";
    f.ok(&format!("train {size} --out plain --json"));
    f.fails(2, &format!("train {size} --out x --precision int8"), &["no gradient", "f32 or bf16"]);
    let generate = "generate --temperature 0 --max-tokens 5 --tokens 1,2,3 --json --precision int8";
    f.fails(2, &format!("{generate} --model plain"), &["convert plain MODEL.gguf --dtype q8_0"]);
    f.fails(2, "serve --model plain --kv-cache-dtype int8 --port 0", &["KV cache", "f32", "bf16"]);
    f.ok("convert plain small.gguf --dtype q8_0 --tokenizer none");
    let one = f.ok(&format!("{generate} --model small.gguf --threads 1 --receipt r.json"));
    assert_eq!(one, f.ok(&format!("{generate} --model small.gguf --threads 2")));
    assert!(f.json("bench decode --model small.gguf --tokens 4 --precision int8 --json")["tok_s"].is_number());
    let loss = |precision: &str| {
        let eval = f.json(&format!(
            "inspect --model small.gguf --tokens 1,2,3,4 --tensor logits --precision {precision} --json"
        ));
        eval["tensors"].clone()
    };
    assert!(loss("f32") != loss("int8"));
}

/// bf16 products, by flag and by environment, for training and for everything that opens the model.
#[test]
#[ignore = "gate"]
fn bf16_is_a_flag_away() {
    let folder = Folder::new("bf16");
    let size = "--preset nano --d-model 32 --n-layer 2 --context-length 16 --batch-size 4 --steps 30";
    let loss = |arguments: &str| folder.json(arguments)["val_loss"].as_f64().unwrap();
    let single = loss(&format!("train {size} --out single --json"));
    let half = loss(&format!("train {size} --out half --precision bf16 --json"));
    assert!(single != half && (single - half).abs() < 0.02, "{single} {half}");
    let score = |more: &str| {
        folder.json(&format!("eval --model half --data builtin:stories --json {more}"))["loss"].as_f64().unwrap()
    };
    let (single, half) = (score(""), score("--precision bfloat16"));
    assert!(single != half && (single - half).abs() < 0.01, "{single} {half}");
    folder.ok("generate --model half --precision bf16 --max-tokens 5 --prompt The");
    folder.fails(2, "generate --model half --precision fp8 --prompt The", &["fp8", "f32", "bf16"]);
    let bench = |precision: &str| {
        let mut command = folder.command("bench decode --preset nano --tokens 4 --json");
        command.env("LIMPID_PRECISION", precision).output().unwrap()
    };
    assert!(bench("bf16").status.success() && !bench("fp8").status.success(), "the environment reaches `bench decode`");
}

/// A model trained here, for every other program and back; the proof is printed, and what cannot be said is named.
#[test]
fn a_model_goes_to_other_programs_and_comes_back() {
    let f = Folder::new("convert");
    train(&f, "m", "--steps 2 --d-model 32 --d-ff 128 --positions learned --bias true");
    let convert = |what: &str| {
        let value = f.json(&format!("convert {what} --verify --json"));
        assert_eq!(value["verified"], true, "{what}: {value}");
        value
    };
    assert_eq!(convert("m hf")["to"], "hf"); // a folder of ours becomes theirs
    assert_eq!(convert("hf back")["to"], "limpid");
    assert_eq!(convert("m m.gguf --dtype q8_0")["dtype"], "Q8_0");
    assert_eq!(convert("m m.bin")["to"], "llmc");
    assert_eq!(convert("m.bin again --to hf")["logits_differ_by"], 0.0);
    let text = |model: &str| f.ok(&format!("generate --model {model} --tokens 1,2,3 --max-tokens 20 --temperature 0"));
    // the same words; ids where the file has no tokenizer
    assert_eq!(text("m"), text("hf"));
    assert_eq!(text("m"), text("back"));
    assert_eq!(text("m.gguf").len(), text("m").len());
    assert_eq!(text("m.bin").split(',').count(), 20);
    let shown = f.ok("convert m shown.gguf --dtype f16 --verify");
    assert!(
        shown.contains("(limpid)") && shown.contains("(gguf, F16)") && shown.contains("differ by at most"),
        "{shown}"
    );
    assert!(f.ok("params --model m.gguf").contains("128"), "every verb opens them");
    for (what, says) in [
        ("m m", "over itself"),
        ("m hf2 --from gguf", "is of the format limpid, not gguf"),
        ("m m.gguf --to hf", "is there already"),
        ("m x.bin --dtype f16", "llm.c has no F16"),
        ("m x --tokenizer gpt2", "they do not belong together"),
        ("nowhere x", "nowhere"),
    ] {
        f.fails(1, &format!("convert {what}"), &[says]);
    }
    f.fails(2, "convert m x --to ggml", &["gguf"]);
    // nothing is ever unpickled
    let pickle = f.file("old.pt", b"PK\x03\x04 and so on");
    f.fails(1, &format!("generate --model {pickle} --prompt a"), &["pickle", "save_pretrained"]);
}

/// Every verb opens other programs' models, and says what one cannot be used for.
#[test]
fn other_programs_models_are_opened_by_looking() {
    let f = Folder::new("foreign");
    let model = |name: &str| format!("{}/../limpid/fixtures/hf/{name}", env!("CARGO_MANIFEST_DIR"));
    let generated =
        f.json(&format!("generate --model {} --prompt 'the cat' --max-tokens 5 --json", model("gpt2-text")));
    assert!((1..=5).contains(&generated["samples"][0]["tokens"].as_array().unwrap().len()), "{generated}");
    let filled = f.ok(&format!("generate --model {} --prompt 'the [MASK] sat'", model("bert-mlm")));
    assert!(filled.starts_with("[CLS] the") && filled.contains("position 2"), "{filled}");
    f.file("text.txt", "the cat sat on the mat");
    assert!(f.json(&format!("eval --model {} --data text.txt --json", model("gpt2-text")))["loss"].is_number());
    let listing = f.ok(&format!("inspect --model {} --tokens 1,2 --listing", model("llama-gqa")));
    assert!(listing.contains("multiply  blocks.0.mlp.hook_post") && listing.contains("rotate"), "{listing}");
    assert!(f.ok(&format!("params --check --model {}", model("gpt2-f16"))).contains("total"));
    // an encoder alone
    let encoder = model("bert-encoder");
    assert!(f.ok(&format!("inspect --model {encoder} --tokens 1,2,3 --table")).contains("blocks.0.ln2.hook_out"));
    assert!(f.ok(&format!("params --model {encoder}")).contains("total"));
    for verb in ["generate --tokens 1,2", "eval --data text.txt", "inspect --tokens 1,2 --next"] {
        f.fails(1, &format!("{verb} --model {encoder}"), &["no head over the vocabulary"]);
    }
    f.fails(1, &format!("inspect --tokens 1,2 --backward --model {encoder}"), &["no head, so there is no loss"]);
    f.fails(1, "params --model text.txt", &["it is not a model: limpid opens a folder"]);
    f.fails(
        1,
        &format!("params --model {}/model.safetensors", model("gpt2-plain")),
        &["give the folder that it is in"],
    );
}

/// A folder with every kind of document.
fn mixed(f: &Folder) -> String {
    let from = concat!(env!("CARGO_MANIFEST_DIR"), "/../limpid-data/fixtures/parquet/snappy.parquet");
    fs::create_dir_all(f.0.join("mix/deep")).unwrap();
    fs::copy(from, f.0.join("mix/rows.parquet")).unwrap();
    let lines: String = (0..200).map(|i| format!("{{\"text\":\"Line {i}: {}\"}}\n", RHYME.trim_end())).collect();
    f.file("mix/lines.jsonl", lines);
    f.file("mix/deep/poem.md", RHYME.repeat(3));
    // "Packed text.\n" in gzip: a stored block
    let stored = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 1, 13, 0, 0xf2, 0xff];
    let check = [0x3b, 0x12, 0x10, 0x0f, 13, 0, 0, 0];
    f.file("mix/deep/packed.txt.gz", [&stored[..], b"Packed text.\n", &check].concat());
    "mix".into()
}

#[test]
#[ignore = "gate"]
fn a_mixed_folder_trains_in_one_command_and_prepared_it_gives_the_same() {
    let f = Folder::new("mixed");
    let data = mixed(&f);
    let out = f.run(&format!("train --data {data} --tokenizer gpt2 --out m {TINY} --steps 2"));
    let said = text(&out.stderr);
    assert!(out.status.success(), "{said}");
    for words in ["2 text, 1 JSON lines, 1 parquet files: 700 documents", "2 empty documents left out"] {
        assert!(said.contains(words), "{words} in\n{said}");
    }
    let made = f.json(&format!("data prepare {data} --out p --val-fraction 0.1 --shard-tokens 3000 --json"));
    assert_eq!((made["documents"].as_u64(), made["empty"].as_u64()), (Some(700), Some(2)));
    let info = f.json("data info p --check --sample 2 --json");
    assert_eq!(
        (&info["tokens"], &info["checked"], info["samples"].as_array().unwrap().len()),
        (&made["tokens"], &Value::Bool(true), 2)
    );
    let trained = f.json(&format!("train --data p --out q {TINY} --steps 2 --json"));
    assert!(trained["val_loss"].is_number());
    let whole = f.json("eval --model q --data p --json");
    assert_eq!(whole["bytes"], made["val"]["bytes"]);
    // llm.c's shards: the same files without what limpid knows of them
    fs::create_dir(f.0.join("bins")).unwrap();
    for entry in
        fs::read_dir(f.0.join("p")).unwrap().flatten().filter(|e| e.path().extension().is_some_and(|e| e == "bin"))
    {
        fs::copy(entry.path(), f.0.join("bins").join(entry.file_name())).unwrap();
    }
    let bins = f.json(&format!("train --data bins --out r {TINY} --steps 2 --json"));
    assert_eq!(bins["val_loss"], trained["val_loss"]);
    assert_eq!(f.json("eval --model q --data bins --json")["loss"], whole["loss"]);
    assert!(f.ok("data info bins").contains("as the end of text of gpt2 divides them"));
    assert!(f.ok("data info mix --sample 1").contains("700"));

    f.fails(
        1,
        &format!("train --data p --tokenizer cl100k_base --out x {TINY}"),
        &["prepared with the tokenizer gpt2"],
    );
    train(&f, "chars", "--steps 2");
    f.fails(1, "eval --model chars --data p", &["prepared with the tokenizer gpt2"]);
    f.fails(1, "data prepare mix --out p --tokenizer cl100k_base", &["another tokenizer"]);
    f.fails(1, "data prepare mix --out chars", &["not empty"]);
    f.fails(1, "data prepare nothing --out y", &["no such file"]);
    f.fails(2, "data prepare mix --out y --val-fraction 1", &["--val-fraction"]);
    let wrong = f.file("mix/wrong.jsonl", "{\"text\":\"good\"}\nbad\n");
    f.fails(
        1,
        &format!("train --data {data} --tokenizer gpt2 --out y {TINY}"),
        &[&wrong[wrong.len() - 15..], "line 2 is not JSON", "(--skip-bad)"],
    );
    f.fails(1, &format!("train --data {wrong} --field body --out y {TINY}"), &["body", "(--field)"]);
    f.ok("tokenize train mix/rows.parquet --vocab-size 260 --out small.json");
    f.fails(
        1,
        &format!("train --data p/train_000001.bin --tokenizer small.json --out y {TINY}"),
        &["shards of another tokenizer than", "name theirs", "(--tokenizer)"],
    );
    let said = f.run(&format!("train --data {data} --skip-bad --tokenizer gpt2 --out y {TINY} --steps 2"));
    assert!(
        text(&said.stderr).contains("1 bad document left out:\n  mix/wrong.jsonl, line 2"),
        "{}",
        text(&said.stderr)
    );
    let mut shard = fs::read(f.0.join("p/train_000001.bin")).unwrap();
    shard.truncate(shard.len() - 10);
    f.file("p/train_000001.bin", shard);
    f.fails(1, &format!("train --data p --out z {TINY}"), &["p/train_000001.bin", "lost its tail"]);
}

#[test]
fn standard_input_is_text_or_with_a_field_json_lines() {
    let f = Folder::new("stdin");
    for (given, flags, documents) in
        [("just\ntext\n", "", 1), ("{\"body\":\"a\"}\n{\"body\":\"b\"}\n", "--field body", 2)]
    {
        let mut command = f.command(&format!("data prepare - --out p{documents} {flags} --json"));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), given.as_bytes()).unwrap();
        let found: Value = serde_json::from_slice(&child.wait_with_output().unwrap().stdout).unwrap();
        assert_eq!(found["documents"], documents);
    }
}

#[test]
#[ignore = "gate"]
fn preparing_survives_being_killed() {
    let f = Folder::new("prepare");
    let story = |i: usize| format!("{{\"text\":\"Story {i}. {}\"}}\n", RHYME.trim_end().repeat(1 + i % 5));
    f.file("in.jsonl", (0..40_000).map(story).collect::<String>());
    let flags = "data prepare in.jsonl --val-fraction 0.02 --shard-tokens 60000";
    f.ok(&format!("{flags} --out whole"));
    let mut kills = 0;
    for moment in 0..6 {
        let mut child = f.command(&format!("{flags} --out parts")).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(120 + 90 * moment));
        kills += u64::from(child.try_wait().unwrap().is_none());
        let _ = child.kill();
        child.wait().unwrap();
    }
    f.ok(&format!("{flags} --out parts"));
    let bytes = |folder: &str| -> Vec<_> {
        let mut all: Vec<_> = fs::read_dir(f.0.join(folder)).unwrap().flatten().map(|e| e.path()).collect();
        all.retain(|path| path.extension().is_none_or(|e| e != "partial"));
        all.sort();
        all.iter().map(|path| (path.file_name().unwrap().to_owned(), fs::read(path).unwrap())).collect()
    };
    assert!(kills > 0 && bytes("whole") == bytes("parts"), "after {kills} kills");
}

#[test]
fn a_tokenizer_is_learned_and_written() {
    let f = Folder::new("tokenize-train");
    let text = "the cat sat on the mat, the dog didn't\n".repeat(50);
    fs::write(f.0.join("a.txt"), &text).unwrap();
    fs::write(f.0.join("bad.txt"), b"ab\xFFcd").unwrap();
    for (flags, out) in [
        ("--vocab-size 280", "bpe.json"),
        ("--vocab-size 280 --split gpt4", "four.tiktoken"),
        ("--vocab-size 280", "llmc.bin"),
        ("--vocab-size 280", "folder"),
        ("--kind wordpiece --lowercase --vocab-size 60", "pieces.json"),
        ("--kind char", "char.json"),
        ("--kind word", "word.json"),
    ] {
        f.ok(&format!("tokenize train a.txt {flags} --out {out}"));
    }
    assert!(["vocab.json", "merges.txt", "tokenizer.json"].iter().all(|name| f.0.join("folder").join(name).exists()));
    let ids =
        |tokenizer: &str| f.json(&format!("tokenize --tokenizer {tokenizer} --json 'the cat didn'"))["ids"].clone();
    assert_eq!(ids("bpe.json"), ids("folder/tokenizer.json"));
    assert_eq!(ids("bpe.json"), ids("llmc.bin"));
    assert_eq!(f.json("tokenize --tokenizer four.tiktoken --split gpt4 --json the")["text"], "the");
    fs::write(f.0.join("lines.jsonl"), "\"the cat\"\n\"\"\n").unwrap();
    let found = f.ok("tokenize --tokenizer bpe.json --lines lines.jsonl");
    assert!(found.ends_with("]\n[]\n") && found.starts_with('['), "{found}");
    f.fails(1, "tokenize --tokenizer four.tiktoken the", &["--split"]);
    f.fails(1, "tokenize train a.txt --vocab-size 200 --out x.json", &["256 bytes"]);
    f.fails(1, "tokenize train a.txt --out x.json", &["--vocab-size"]);
    f.fails(1, "tokenize train bad.txt --vocab-size 300 --out x.json", &["bad.txt", "byte 2", "0xFF"]);
    f.fails(2, "tokenize train a.txt --kind bytes --vocab-size 300 --out x.json", &["wordpiece"]);
    assert!(!f.0.join("x.json").exists());
    // every kind of input gives what the text itself does
    let line = serde_json::json!({ "body": text }).to_string() + "\n";
    fs::write(f.0.join("b.jsonl"), line.clone() + "not json\n").unwrap();
    f.fails(1, "tokenize train b.jsonl --field body --vocab-size 280 --out x.json", &["b.jsonl, line 2 is not JSON"]);
    f.ok("tokenize train b.jsonl --field body --skip-bad --vocab-size 280 --out b.json");
    f.ok("tokenize train 'a.t*' --vocab-size 280 --out c.json");
    let read = |name: &str| fs::read(f.0.join(name)).unwrap();
    assert!(read("bpe.json") == read("b.json") && read("bpe.json") == read("c.json"));
    f.json(&format!("train --data a.txt --tokenizer bpe:270 {TINY} --steps 2 --out m --json"));
    assert!(f.ok("tokenize --model m 'the'").contains("of 270"));
}

/// Shells and `man` are told of every verb and flag.
#[test]
fn completions_and_manual_pages_know_every_verb() {
    let f = Folder::new("pages");
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let text = f.ok(&format!("completions {shell}"));
        assert!(["train", "generate", "learning-rate"].iter().all(|word| text.contains(word)), "{shell}");
    }
    assert!(f.ok("man").contains(".TH limpid 1"));
    f.ok("man pages");
    for (verb, says) in
        [("", "see through"), ("-train", "learning"), ("-data-prepare", "shard"), ("-doctor", "machine")]
    {
        let page = fs::read_to_string(f.0.join(format!("pages/limpid{verb}.1"))).unwrap();
        assert!(page.contains(says), "limpid{verb}.1");
    }
    // also those that `-h` leaves out
    let page = fs::read_to_string(f.0.join("pages/limpid-train.1")).unwrap();
    let bare =
        page.split("\n.TP\n").skip(1).filter(|flag| flag.starts_with("\\fB") && flag.trim_end().lines().count() < 2);
    assert_eq!(bare.collect::<Vec<_>>(), Vec::<&str>::new(), "flags without a word");
    let refused = f.run("completions tcsh");
    assert_eq!(refused.status.code(), Some(2));
}

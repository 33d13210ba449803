//! llm.c's two programs beside limpid's own: what train_gpt2 and test_gpt2 printed (`reference/llmc.py programs`), line
//! by line.

use crate::common::{Folder, root, text};
use std::fs;
use std::path::PathBuf;

fn fixture(name: &str) -> PathBuf {
    root("crates/limpid/fixtures/llmc").join(name)
}

/// A folder with llm.c's files under llm.c's names: the model, its debug state, the tokenizer, and both texts.
fn folder(name: &str) -> Folder {
    let f = Folder::new(name);
    for (from, to) in [
        ("model.bin", "gpt2_124M.bin"),
        ("debug_state.bin", "gpt2_124M_debug_state.bin"),
        ("tokenizer.bin", "gpt2_tokenizer.bin"),
    ] {
        fs::copy(fixture(from), f.0.join(to)).unwrap();
    }
    let shard = fs::read(fixture("tokens.bin")).unwrap();
    let last = &shard[shard.len() - 2 * 120..];
    let header: Vec<u8> = [20_240_520u32, 1, 120].into_iter().chain([0; 253]).flat_map(u32::to_le_bytes).collect();
    fs::create_dir(f.0.join("shakespeare")).unwrap();
    f.file("shakespeare/tiny_shakespeare_train.bin", &shard);
    f.file("shakespeare/tiny_shakespeare_val.bin", [&header[..], last].concat());
    f
}

/// Compares lines word by word: numbers with a fraction to 2e-5 (sums of f32 in another order, printed with six
/// digits), all else as it is. Times are not compared.
#[track_caller]
fn same_lines(got: &str, want: &str) {
    let own = |line: &&str| !line.starts_with("num_activations");
    let (got, want): (Vec<&str>, Vec<&str>) = (got.lines().collect(), want.lines().filter(own).collect());
    assert_eq!(got.len(), want.len(), "{got:#?}\n{want:#?}");
    for (got, want) in got.into_iter().zip(want) {
        let part = |line: &str| line.split("(took").next().unwrap().to_string();
        let (own, theirs) = (part(got), part(want));
        assert_eq!(got.contains("(took"), want.contains("(took"), "{got}\n{want}");
        let words = |line: &str| line.split(' ').map(String::from).collect::<Vec<_>>();
        let (own, theirs) = (words(&own), words(&theirs));
        assert_eq!(own.len(), theirs.len(), "{got}\n{want}");
        for (own, theirs) in own.iter().zip(&theirs) {
            let number = |word: &String| word.trim_end_matches(',').parse::<f64>().ok().filter(|_| word.contains('.'));
            match (number(own), number(theirs)) {
                (Some(own), Some(theirs)) => assert!((own - theirs).abs() < 2e-5, "{got}\n{want}"),
                _ => assert_eq!(own, theirs, "{got}\n{want}"),
            }
        }
    }
}

/// Every line of train_gpt2: its sizes, its losses of 41 shuffled batches, its evaluations, and the very tokens that it
/// draws.
#[test]
fn a_training_prints_what_train_gpt2_prints() {
    let f = folder("train-gpt2");
    let want = fs::read_to_string(fixture("train_gpt2.txt")).unwrap();
    let run = "train --recipe llmc --from gpt2_124M.bin --data shakespeare --context 9 --threads 1";
    let (got, said) = f.both(run);
    same_lines(&got, &want);
    assert!(got.contains("generating:\n---\n") && !said.contains("the model is in"), "{said}");
    // threads change nothing, and the model can be kept
    let untimed = |text: &str| text.lines().map(|l| l.split("(took").next().unwrap().into()).collect::<Vec<String>>();
    let (again, said) = f.both(&format!("{run} --threads 3 --out kept"));
    assert_eq!(untimed(&again), untimed(&got));
    assert!(said.contains("the model is in kept"), "{said}");
    let loss =
        |model: &str| f.json(&format!("eval --model {model} --data shakespeare --json"))["loss"].as_f64().unwrap();
    assert!(loss("kept") < loss("gpt2_124M.bin") - 0.05);
    f.fails(1, &format!("{run} --out kept"), &["kept holds config.json", "choose another folder"]);
}

#[test]
fn the_recipe_takes_the_flags_of_train() {
    let f = Folder::new("recipe-llmc");
    f.file("text.txt", "one two three four five six seven. ".repeat(60));
    let tiny =
        "--n-layer 1 --d-model 16 --n-head 2 --context 8 --batch-size 2 --steps 3 --eval-every 2 --tokenizer char";
    let got = f.ok(&format!("train --recipe llmc --data text.txt {tiny}"));
    let of = |start: &str| got.lines().filter(|line| line.starts_with(start)).count();
    assert_eq!((of("step "), of("val loss "), of("generating:")), (3, 2, 0), "{got}");
    assert!(got.contains("max_seq_len: 1024\n"), "the preset is llm.c's: {got}");
    assert!(!f.0.join("runs").exists());
    for (flags, code, says) in [
        ("--recipe llm.c", 2, "llmc"),
        ("--recipe llmc --ui", 2, "without mpirun, --ui, --json and --probe"),
        ("--recipe llmc --resume auto", 2, "--resume"),
        ("--recipe llmc --mask bidirectional", 2, "predict the next token"),
    ] {
        f.fails(code, &format!("train --data text.txt {tiny} {flags}"), &[says]);
    }
}

/// Every line of test_gpt2, which compares with ten losses of its own that are GPT-2's: those are judged by what it
/// printed instead.
#[test]
fn a_check_prints_what_test_gpt2_prints() {
    let f = folder("test-gpt2");
    let judged = |text: &str| {
        let line = |line: &str| format!("{}\n", line.split(" OK = ").next().unwrap());
        text.lines().filter(|line| !line.starts_with("overall")).map(line).collect::<String>()
    };
    let check = "check --from gpt2_124M.bin --against gpt2_124M_debug_state.bin";
    let got = f.ok(check);
    // how far apart two roundings are is no number that two programs share
    let apart =
        |text: &str| judged(text).lines().map(|l| l.split("diff = ").next().unwrap().to_string() + "\n").collect();
    let (own, theirs): (String, String) = (apart(&got), apart(&fs::read_to_string(fixture("test_gpt2.txt")).unwrap()));
    same_lines(&own, &theirs);
    let offs: Vec<f64> = got.split("diff = ").skip(1).map(|s| s.lines().next().unwrap().parse().unwrap()).collect();
    assert!(offs.len() == 17 && offs.iter().all(|off| *off < 1e-5), "{offs:?}");
    assert!(got.ends_with("overall okay: 1\n"), "{got}");
    let found = f.json(&format!("{check} --json"));
    assert_eq!(found["tensors"].as_array().unwrap().len(), 18);
    assert!(found["passed"] == true && found["losses"].as_array().unwrap().len() == 10, "{found}");

    // another model's state: one weight, one gradient, one logit
    let (model, state) = (f.bytes("gpt2_124M.bin"), f.bytes("gpt2_124M_debug_state.bin"));
    let set = |bytes: &[u8], at: usize, to: f32| [&bytes[..at], &to.to_le_bytes(), &bytes[at + 4..]].concat();
    f.file("other.bin", set(&model, 1024 + 4 * (128 * 16 + 12 * 16), 3.0));
    let out = f.run("check --from other.bin --against gpt2_124M_debug_state.bin");
    assert!(out.status.code() == Some(1) && text(&out.stdout).contains("MISMATCH"), "{}", text(&out.stdout));
    let logits = 1024 + 4 * 36;
    let gradients = logits + 4 * 18 * 40 + 4;
    for (at, says) in
        [(logits + 4 * 50, "MISMATCH AT INDEX 1,10"), (gradients, "dwte\nNOT OK "), (state.len() - 4, "dlnfb\nOK ")]
    {
        f.file("other_state.bin", set(&state, at, 7.0));
        let out = f.run("check --from gpt2_124M.bin --against other_state.bin");
        let printed = text(&out.stdout);
        assert!(out.status.code() == Some(1) && printed.contains(says) && printed.contains("NOT OK"), "{printed}");
        assert!(printed.ends_with("overall okay: 0\n"), "{printed}");
    }
    f.fails(2, "check --against gpt2_124M_debug_state.bin", &["--from MODEL.bin"]);
    f.fails(1, "check --from gpt2_124M.bin --against gpt2_124M.bin", &["it is a model of llm.c"]);
}

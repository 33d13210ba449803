//! Every command that README.md and docs/*.md show in a `sh` block, run as it is written by a shell that finds
//! `limpid`, document by document, in a folder with the files that it speaks of. Where other tests run a document, or
//! no test can, it says so here.
#![cfg(unix)]

use crate::common::{Folder, block, blocks_of, root, text};
use std::fs;

/// Documents that other tests run whole; of docs/training.md tune.rs runs the first block on fine-tuning.
const ELSEWHERE: [(&str, &str); 5] = [
    ("docs/python.md", "tests/ of limpid-python, and cargo xtask python"),
    ("docs/tutorial.md", "tutorial.rs"),
    ("docs/serve.md", "clients.rs"),
    ("docs/chat.md", "cli.rs"),
    ("docs/lessons.md", "lesson.rs"),
];

/// How commands begin that no test runs.
const LEFT_OUT: [(&str, &str); 11] = [
    ("limpid inspect --open", "it does not end; the tests of the page run it"),
    ("limpid serve", "it does not end; clients.rs runs it"),
    ("limpid race", "it takes minutes; race.rs runs short ones"),
    ("cargo test --workspace", "it would run itself"),
    ("curl ", "it needs a network"),
    ("sha256sum tinyshakespeare.txt", "it looks at what was fetched"),
    ("apt-get ", "it needs a network, and changes the machine"),
    ("dnf ", "it needs a network, and changes the machine"),
    ("limpid doctor --prove", "it needs a GPU; tests/ of limpid-gpu prove its kernels"),
    ("cargo install", "it takes minutes"),
    ("kubectl ", "it needs a cluster"),
];

/// What keeps a training short: a step or two of the model at its own size, and a short validation; the large ones with
/// few short windows, and GPT and GPT-2 narrow, with one block (presets.rs of the library's tests has them whole).
fn short(command: &str) -> Vec<(&'static str, &'static str)> {
    let mut settings = vec![];
    if command.starts_with("limpid train") && command.contains("--lr-find") {
        settings.push(("LIMPID_N_LAYER", "1"));
    } else if command.starts_with("limpid train") {
        settings.push(("LIMPID_STEPS", if command.contains("--resume") { "4" } else { "2" }));
        settings.push(("LIMPID_SAMPLE", "10"));
        // a run may go on for longer than it was begun for only if its rate does not depend on that
        settings.push(("LIMPID_SCHEDULE", "constant"));
        if !["--data", "--resume", "--val-fraction"].iter().any(|flag| command.contains(flag)) {
            settings.push(("LIMPID_VAL_FRACTION", "0.002")); // of the built-in stories
        }
        if command.contains("gpt") {
            settings.extend([("LIMPID_CONTEXT", "32"), ("LIMPID_BATCH_SIZE", "2")]);
        }
    }
    if command.contains("--preset gpt2") || command.contains("--preset formulated-gpt") {
        settings.extend([("LIMPID_N_LAYER", "1"), ("LIMPID_D_MODEL", "96")]);
    }
    settings
}

/// The commands of a document: its `sh` blocks without those of sections that are tested elsewhere.
fn commands(document: &str) -> Vec<String> {
    let all = blocks_of(document, None);
    let elsewhere: Vec<String> = match document {
        "docs/training.md" => vec![block("training.md", "## Fine-tuning and LoRA", "sh")],
        _ if ELSEWHERE.iter().any(|(other, _)| *other == document) => {
            all.iter().map(|(_, block)| block.clone()).collect()
        }
        _ => vec![],
    };
    let here = all.into_iter().filter(|(kind, block)| kind == "sh" && !elsewhere.contains(block));
    here.flat_map(|(_, block)| block.lines().map(String::from).collect::<Vec<_>>())
        .map(|line| line.split(" #").next().unwrap_or("").trim().replace("cargo run --release --", "limpid"))
        .map(started)
        .filter(|line| !line.is_empty() && !LEFT_OUT.iter().any(|(left, _)| line.starts_with(left)))
        .collect()
}

/// What a launcher of processes starts: a limpid without MPI runs it in one process. One without GPUs runs on the
/// processor.
fn started(line: String) -> String {
    let on_gpu = |word: &&str| *word == "gpu" || *word == "auto" || word.starts_with("gpu:");
    let device = line.split("--device ").nth(1).and_then(|rest| rest.split(' ').next()).filter(on_gpu);
    let line = match device {
        Some(device) => line.replace(&format!("--device {device}"), "--device cpu"),
        None => line,
    };
    match line.find("limpid ") {
        Some(at) if ["mpirun ", "srun "].iter().any(|launcher| line.starts_with(launcher)) => line[at..].into(),
        _ => line,
    }
}

fn sh(f: &Folder, command: &str) -> String {
    let out = f.shell(command).envs(short(command)).output().unwrap();
    let seen = text(&out.stdout);
    println!("$ {command}\n{seen}");
    assert!(out.status.success(), "{command}: {}\n{seen}", out.status);
    seen
}

/// The files that the documents speak of, small.
fn folder(name: &str) -> Folder {
    let f = Folder::new(name);
    let stories = f.ok("data stories 60K");
    f.file("book.txt", &stories);
    fs::create_dir_all(f.0.join("corpus")).unwrap();
    f.file("corpus/one.txt", &stories);
    f.file("corpus/two.txt", stories.replace("Once", "Twice"));
    let pair = |i: usize| format!("{{\"prompt\": \"What is {i}?\", \"completion\": \"It is {i}.\"}}\n");
    f.file("chat.jsonl", (0..40).map(pair).collect::<String>());
    fs::copy(f.0.join("chat.jsonl"), f.0.join("questions.jsonl")).unwrap();
    f.file("question.txt", "<|user|>\nWhat is 3?\n<|assistant|>\n");
    let line = |i: usize| format!("{{\"text\": \"Story {i} of a fox that sang.\"}}\n");
    f.file("stories.jsonl", (0..200).map(line).collect::<String>());
    fs::create_dir_all(f.0.join("more")).unwrap();
    for file in fs::read_dir(root("crates/limpid-data/fixtures/parquet")).unwrap().map(|entry| entry.unwrap().path()) {
        let good = file.extension().is_some_and(|e| e == "parquet") && file.to_string_lossy().contains("snappy");
        if good {
            fs::copy(&file, f.0.join("more/part.parquet")).unwrap();
        }
    }
    // a model that was trained, and what other programs call theirs
    let model = f.0.join("runs/nano-20261120-151329");
    f.ok(&format!("train --data book.txt --steps 2 --save-every 1 --sample 0 --json --out {}", model.display()));
    f.ok("train --data book.txt --positions learned --d-ff 512 --steps 2 --sample 0 --json --out gpt2");
    for (to, name) in [("hf", "gpt2-hf"), ("llmc", "gpt2_124M.bin")] {
        f.ok(&format!("convert gpt2 {name} --to {to}"));
    }
    fs::remove_dir_all(f.0.join("gpt2")).unwrap();
    // tokens as llm.c keeps them: a header of 256 numbers, then 16 bits each
    let ids = (0..3000u16).flat_map(|i| (i % 200).to_le_bytes());
    let header = [20240520u32, 1, 3000].into_iter().chain([0; 253]).flat_map(u32::to_le_bytes);
    f.file("tiny_shakespeare_train.bin", header.chain(ids).collect::<Vec<u8>>());
    f.ok(&format!(
        "train --from {} --data questions.jsonl --lora 2 --steps 2 --sample 0 --json --out lora",
        model.display()
    ));
    for name in ["MODEL", "DIR", "base"] {
        std::os::unix::fs::symlink(&model, f.0.join(name)).unwrap();
    }
    f
}

#[test]
fn every_document_is_known() {
    let docs =
        fs::read_dir(root("docs")).unwrap().map(|entry| format!("docs/{}", entry.unwrap().file_name().display()));
    for document in docs.filter(|name| name.ends_with(".md")) {
        let commands = commands(&document);
        let run = GUIDES.contains(&document.as_str());
        assert_eq!(run, !commands.is_empty(), "{document}: add a test of its commands\n{commands:?}");
        // a block without a language is not run
        let unnamed =
            blocks_of(&document, None).into_iter().find(|(kind, block)| kind.is_empty() && block.contains("limpid "));
        assert_eq!(unnamed, None, "{document}: call this block `sh`");
    }
}

#[test]
#[ignore = "gate"]
fn the_commands_of_the_readme_run() {
    let f = folder("readme");
    let mut ran = 0;
    for command in commands("README.md") {
        let seen = sh(&f, &command);
        ran += 1;
        if command.contains("inspect --why") {
            // the words that follow, whatever the numbers
            let readme = fs::read_to_string(root("README.md")).unwrap();
            for words in ["(difference of logits). The largest parts are", "The path ends here."] {
                assert!(readme.contains(words) && seen.replace('\n', " ").contains(words), "{words}\n{seen}");
            }
        }
        assert!(command != "limpid params gpt2-xl" || seen.contains("1,557,611,200"), "{seen}");
    }
    assert!(ran >= 12, "only {ran} commands were run");
}

/// Documents of docs/ whose commands run, and a test for each.
macro_rules! guides {
    ($($test:ident: $guide:literal),* $(,)?) => {
        const GUIDES: &[&str] = &[$($guide),*];

        mod the_commands_of_a_guide_run {
            $(
                #[test]
                #[ignore = "gate"]
                fn $test() {
                    let f = super::folder(stringify!($test));
                    for command in super::commands($guide) {
                        super::sh(&f, &command);
                    }
                }
            )*
        }
    };
}

guides! {
    readme: "docs/README.md",
    training: "docs/training.md",
    formats: "docs/formats.md",
    data: "docs/data.md",
    inside: "docs/inside.md",
    interventions: "docs/interventions.md",
    pictures: "docs/pictures.md",
    scale: "docs/scale.md",
    gpu: "docs/gpu.md",
    walks: "docs/walks.md",
}

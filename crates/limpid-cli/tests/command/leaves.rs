//! What is trained leaves: models of the defaults as other programs' files; what cannot names the flag that would have
//! avoided it, and that flag does. What does not fit into memory names what does.

use crate::common::Folder;
use std::fs;

const SMALL: &str = "--data book.txt --n-layer 1 --d-model 32 --n-head 2 --d-ff 128 --positions learned \
                     --context-length 16 --batch-size 4 --steps 2 --sample 0 --json";

fn folder(name: &str) -> Folder {
    let f = Folder::new(name);
    let line = |i: usize| {
        format!("The {} fox sat by the door; it sang \u{201c}oh\u{201d} {i} times.\n", ["red", "old"][i % 2])
    };
    f.file("book.txt", (0..60).map(line).collect::<String>());
    f
}

#[test]
#[ignore = "gate"]
fn the_default_model_leaves_for_every_program() {
    let f = folder("leaves");
    // as nobody asked for anything, but for the number of steps; and a text of one's own, which is no ASCII
    f.ok("train --steps 2 --sample 0 --json --out stories");
    f.ok("train --data book.txt --steps 2 --sample 0 --json --out book");
    f.ok(&format!("train {SMALL} --preset nano-llama --positions rotary --out llama"));
    // llm.c has learned positions; others have a table of zeros for none
    f.ok(&format!("train {SMALL} --out gpt2"));
    f.ok(&format!("train {SMALL} --positions none --out unplaced"));
    for (model, targets) in [("stories", 2), ("book", 2), ("gpt2", 3), ("unplaced", 3), ("llama", 2)] {
        for to in ["hf", "gguf", "llmc"].into_iter().take(targets) {
            // llm.c's tokenizer is a file beside the model's, so each model has a folder
            fs::create_dir_all(f.0.join(model).with_extension("llmc")).unwrap();
            let target = if to == "llmc" { format!("{model}.llmc/model.bin") } else { format!("{model}-{to}") };
            let said = f.ok(&format!("convert {model} {target} --to {to} --verify"));
            assert!(said.contains("compared"), "{said}");
            let tokenizer = if to == "llmc" { format!(" --tokenizer {model}/tokenizer.json") } else { String::new() };
            if tokenizer.is_empty() {
                let text = |from: &str| {
                    f.ok(&format!("generate --model {from} --prompt 'The \u{201c}' --temperature 0 --max-tokens 8"))
                };
                assert_eq!(text(model), text(&target), "{model} {to}");
            }
        }
    }
}

/// The flags that a refusal names, put to those that made the model, make one that leaves.
#[test]
#[ignore = "gate"]
fn a_refusal_names_the_flags_that_avoid_it() {
    let f = folder("refusals");
    for (i, (flags, to)) in [
        ("--activation gelu-erf", "gguf"),
        ("--activation relu", "llmc"),
        ("--tokenizer word", "gguf"),
        ("--tokenizer char", "gguf"),
        ("--norm rms", "hf"),
        ("--norm layer-std", "gguf"),
        ("--positions rotary", "llmc"),
        ("--head-bias --tied-head false", "hf"),
        ("--head-transform", "gguf"),
        ("--n-kv-head 1", "llmc"),
        ("--d-head 6", "gguf"),
        ("--d-v 5", "hf"),
        ("--d-v 5 --n-kv-head 1", "gguf"),
        ("--d-v 5", "llmc"),
        ("--gelu-alpha 1.5 --gelu-gamma 0.1", "hf"),
        ("--gelu-beta 0.9", "llmc"),
        ("--d-ff 24", "llmc"),
        ("--tied-head false --norm-eps 0.001", "llmc"),
        ("--attention-scale false", "gguf"),
        ("--attention-scale-by-layer", "llmc"),
        ("--embedding-norm", "hf"),
        ("--n-segment 2", "gguf"),
        ("--final-norm false", "gguf"),
        ("--norm-place post", "gguf"),
        ("--norm-place post-attention", "hf"),
        ("--ffn-gated", "llmc"),
        ("--dropout 0.1 --dropout-scale unscaled", "hf"),
        ("--preset nano-llama --positions rotary --activation relu", "gguf"),
        ("--preset nano-llama", "llmc"),
        ("--preset formulated-gpt", "gguf"),
    ]
    .into_iter()
    .enumerate()
    {
        f.ok(&format!("train {SMALL} {flags} --out m{i}"));
        let (_, said) = f.refuses(&format!("convert m{i} x{i} --to {to}"), &["trained with ", " (`limpid train --"]);
        let mend = said.rsplit_once(" (`limpid train ").unwrap().1.split('`').next().unwrap();
        f.ok(&format!("train {SMALL} {flags} {mend} --out n{i}"));
        f.ok(&format!("convert n{i} y{i} --to {to} --verify"));
    }
}

#[test]
#[ignore = "gate"]
fn what_does_not_fit_names_what_does() {
    let f = folder("too-large");
    // no machine has as much
    let large = "--data book.txt --tokenizer bpe --preset gpt2 --n-layer 2 --context-length 16 --batch-size 1000000";
    let plan = f.json(&format!("plan {large} --json"));
    assert_eq!(plan["fits"], false);
    let would: Vec<&str> = plan["would_fit"].as_array().unwrap().iter().filter_map(|v| v.as_str()).collect();
    assert!(would.iter().any(|flags| flags.contains("--batch-size 1 --accumulate 1000000")), "{would:?}");
    for flags in would.iter().filter(|flags| !flags.contains("--from")) {
        assert_eq!(f.json(&format!("plan {large} {flags} --json"))["fits"], true, "{flags}");
    }
    let words = [
        "training this model needs ",
        " are available; with one of these it would fit:\n  ",
        "--batch-size 1 --accumulate",
    ];
    f.fails(1, &format!("train {large} --out x"), &words);
    let said = f.ok(&format!("plan {large}"));
    assert!(words.iter().all(|words| said.contains(words)), "{said}");
    assert_eq!(f.json("plan --data book.txt --json")["fits"], true);
}

/// `--steps` changes the number of steps and nothing that a step computes, whatever the text and however the preset was
/// come by. (Without it a small text decides how much of it is validated, and how often, too: `fitted.rs` of limpid.)
#[test]
#[ignore = "gate"]
fn nano_has_one_recipe() {
    let f = folder("recipe");
    let recipe = |flags: &str| {
        let mut recipe = f.json(&format!("plan {flags} --context-length 16 --json"))["recipe"].clone();
        for fitted in ["steps", "eval_every", "patience", "val_fraction"] {
            recipe.as_object_mut().unwrap().remove(fitted).expect(fitted);
        }
        recipe
    };
    let own = recipe("--data book.txt");
    for flags in ["--preset nano", "--steps 1000", "--steps 3000", "--preset nano --steps 5000"] {
        assert_eq!(recipe(&format!("--data book.txt {flags}")), own, "{flags}");
    }
    assert_eq!(recipe("--data builtin:stories:20K"), own);
}

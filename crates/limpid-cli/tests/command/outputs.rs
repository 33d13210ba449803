//! What verbs write over: their own earlier output, and nothing else without `--force`. `src/outputs_tests.rs` tries
//! the rule itself.

use crate::common::{Folder, LIMPID, text, words};
use std::process::Command;

/// A command for each kind of output, whose file is OUT.
const COMMANDS: &[(&str, &str)] = &[
    ("page", "inspect m --prompt star --html OUT.html"),
    ("page", "sweep m --clean star --corrupt swar --answer t --html OUT.html"),
    ("report", "report m --out OUT.html"),
    ("picture", "inspect m --prompt star --plot loss --plot-out OUT.svg"),
    ("picture", "inspect m --diagram model --plot-out OUT.svg"),
    ("png", "inspect m --prompt star --plot W_E --plot-out OUT.png"),
    ("png", "sweep m --clean star --corrupt swar --answer t --plot-out OUT.png"),
    ("tensors", "inspect m --prompt star --save OUT.safetensors"),
    ("directions", "direction m --positive star --negative wonder --out OUT.safetensors"),
    ("vector", "direction m --positive star --negative wonder --out OUT.gguf"),
    ("steps", "direction m --positive star --negative wonder --out OUT.json"),
    ("tokenizer", "tokenize m --export OUT.json"),
    ("tokenizer", "tokenize train rhyme.txt --kind char --out OUT.json"),
];

#[test]
#[ignore = "gate"]
fn an_output_is_written_again_and_another_kind_is_not() {
    let f = Folder::new("outputs");
    f.file("rhyme.txt", "Twinkle, twinkle, little star, how I wonder what you are.\n".repeat(40));
    f.ok("train --data rhyme.txt --tokenizer char --n-layer 2 --n-head 2 --d-model 16 --context-length 16 --steps 2 \
          --sample 0 --out m");
    let write = |(kind, command): &(&str, &str)| {
        let command = command.replace("OUT", kind);
        f.ok(&command);
        let file = command.split(' ').find(|word| word.starts_with(kind) && word.contains('.')).unwrap();
        (kind.to_string(), command.clone(), file.to_string())
    };
    // each twice: the second writes over the first, but of tokenizers, which nothing marks
    let written: Vec<_> = COMMANDS.iter().filter(|(kind, _)| *kind != "tokenizer").map(write).collect();
    written.iter().for_each(|(_, command, _)| drop(f.ok(command)));
    f.ok("report m");
    f.ok("report m");
    for (kind, command) in COMMANDS {
        let end = command.split_once("OUT").unwrap().1;
        // of the other kinds those with the same ending, and a file of somebody's own
        f.file(&format!("own{end}"), "somebody's own\n");
        let own = [format!("own{end}")];
        let others =
            written.iter().filter(|(other, _, file)| other != kind && file.ends_with(end)).map(|(.., file)| file);
        for file in others.chain(&own) {
            let was = f.bytes(file);
            let command = command.replace(&format!("OUT{end}"), file);
            let said = f.fails(1, &command, &[file, "exists already", "--force"]);
            assert_eq!(f.bytes(file), was, "{said}");
            f.ok(&format!("{command} --force"));
            assert_ne!(f.bytes(file), was, "{command}");
            f.file(file, was);
        }
    }
    // what a command reads is not replaced, and the model stays as it was
    let model = ["m/config.json", "m/model.safetensors", "m/tokenizer.json", "m/metrics.jsonl", "m/limpid.toml"];
    let was = model.map(|file| f.bytes(file));
    for (file, command) in model.iter().flat_map(|file| COMMANDS.iter().map(move |(_, command)| (file, command))) {
        let Some((before, rest)) = command.split_once("OUT") else { continue };
        let end = rest.split(' ').next().unwrap();
        if !["tokenize", "report"].iter().any(|verb| command.starts_with(verb)) && !file.ends_with(end) {
            continue; // refused by its ending alone
        }
        for force in ["", " --force"] {
            if command.starts_with("tokenize train") && !force.is_empty() {
                continue; // the model is not an input
            }
            f.refuses(&format!("{before}{file}{force}"), &["m"]);
        }
    }
    assert!(model.map(|file| f.bytes(file)) == was);
}

/// Each flag that has one value, twice: nothing of what was typed is lost in silence.
#[test]
fn a_flag_is_given_once() {
    let f = Folder::new("once");
    f.file("b.toml", "");
    for (command, said) in [
        ("train --data a.txt --data b.txt", &["--data is given twice", "limpid data prepare", "pattern"][..]),
        ("train --n-layer 2 --n_layer 3", &["--n-layer is given twice"]),
        ("generate m --temp 1 --temperature 0.5", &["--temperature is given twice"]),
        ("train --config a.toml --config b.toml", &["--config is given twice"]),
        ("eval m --data a.txt --data=b.txt", &["--data is given twice"]),
        ("convert m out --to hf --to gguf", &["--to is given twice"]),
        ("tokenize train a.txt --out a.json --out b.json", &["--out is given twice"]),
        ("serve m --port 1 --port 2", &["--port is given twice"]),
        ("inspect m --prompt a --prompt b --width 30 --width 40", &["--width is given twice"]),
        ("plan --json --json", &["--json is given twice"]),
    ] {
        let found = Command::new(LIMPID).args(words(command)).current_dir(&f.0).output().unwrap();
        let message = text(&found.stderr);
        assert_eq!(found.status.code(), Some(2), "{command}: {message}");
        said.iter().for_each(|said| assert!(message.contains(said), "{command}: {message}"));
    }
    // what is a list, or layers, is joined
    f.file("rhyme.txt", "Twinkle, twinkle, little star.\n".repeat(20));
    f.file("run.toml", "n_layer = 3\nthreads = 1\ndata = \"none.txt\"\n");
    let plan = f.json(
        "plan --config run.toml --data rhyme.txt --tokenizer char --n-layer 2 --freeze embed.* --freeze blocks.0.* \
         --json",
    );
    assert_eq!(plan["config"]["n_layer"], 2);
}

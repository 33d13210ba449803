//! Every output of every verb against every kind of file that it could destroy.

use crate::outputs::{INPUTS, OUTPUTS, OutputKind, check};
use crate::{Cli, options};
use clap::{Arg, Command, CommandFactory};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

/// A command for each row of [`OUTPUTS`], which writes to OUT and reads the other capitals: files and folders of
/// [`files`].
const COMMANDS: &[(&str, &str, &str)] = &[
    ("train", "out", "train --data TEXT --from MODEL --config SETTINGS --out OUT"),
    ("generate", "receipt", "generate MODEL --prompt @TEXT --receipt OUT"),
    ("inspect", "save", "inspect GGUF --prompt @TEXT --save OUT"),
    ("inspect", "plot_out", "inspect MODEL --adapter ADAPTER --plot loss --data DATA --plot-out OUT"),
    ("inspect", "html", "inspect RUN --prompt a --intervene STEPS --html OUT"),
    ("site", "file", "site OUT"),
    ("sweep", "plot_out", "sweep STATE --clean @TEXT --corrupt b --answer c --plot-out OUT"),
    ("sweep", "html", "sweep --model RUN --clean a --corrupt b --answer c --html OUT"),
    ("direction", "out", "direction MODEL --positive @TEXT --negative b --out OUT"),
    ("report", "out", "report RUN OTHER-RUN --out OUT"),
    ("tokenize", "export", "tokenize --tokenizer TOKENIZER --export OUT"),
    ("tokenize train", "out", "tokenize train DATA PATTERN --vocab-size 300 --out OUT"),
    ("data prepare", "out", "data prepare DATA --tokenizer TOKENIZER --out OUT"),
    ("convert", "dst", "convert MODEL OUT"),
    ("race", "out", "race stories-nano --recipe SETTINGS --out OUT"),
    ("race tokens", "out", "race tokens shakespeare-char --data TEXT --out OUT"),
    ("man", "folder", "man OUT"),
];

/// Files of every kind, and the folders that they lie in.
const FILES: &[&str] = &[
    "model/config.json",
    "model/generation_config.json",
    "model/model-00001-of-00002.safetensors",
    "model/model.safetensors.index.json",
    "model/tokenizer.json",
    "model/tokenizer_config.json",
    "model/special_tokens_map.json",
    "model/chat_template.jinja",
    "model/1_Pooling/config.json",
    "adapter/adapter_config.json",
    "adapter/adapter_model.safetensors",
    "run/limpid.toml",
    "run/config.json",
    "run/metrics.jsonl",
    "run/model.safetensors",
    "run/summary.json",
    "run/timelapse.lpt",
    "run/tokenizer.json",
    "run/state/last.safetensors",
    "run/state/step-00000100.safetensors",
    "other-run/metrics.jsonl",
    "other-run/limpid.toml",
    "data/a.txt",
    "data/deep/b.jsonl",
    "texts/c.txt",
    "model.gguf",
    "tokenizer.json",
    "vector.safetensors",
    "steps.json",
    "text.txt",
    "settings.toml",
    "notes.html",
    "photo.png",
    "drawing.svg",
    "receipt.json",
    "words.tiktoken",
    "llmc.bin",
    "no-ending",
];

/// What a capital of [`COMMANDS`] stands for.
fn named(word: &str) -> &'static str {
    match word {
        "TEXT" => "text.txt",
        "MODEL" => "model",
        "GGUF" => "model.gguf",
        "ADAPTER" => "adapter",
        "DATA" => "data",
        "PATTERN" => "texts/*.txt",
        "RUN" => "run",
        "OTHER-RUN" => "other-run",
        "STATE" => "run/state/step-00000100.safetensors",
        "STEPS" => "steps.json",
        "SETTINGS" => "settings.toml",
        "TOKENIZER" => "tokenizer.json",
        other => panic!("{other}"),
    }
}

/// A folder with all of [`FILES`].
fn files(name: &str) -> PathBuf {
    let root = std::env::temp_dir().join(format!("limpid-outputs-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&root);
    for file in FILES {
        let path = root.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let vector = root.join("vector.safetensors");
        let steps = format!("[{{\"steer\": \"blocks.0.hook_resid_post\", \"add\": {{\"file\": {vector:?}}}}}]");
        fs::write(path, if *file == "steps.json" { &steps } else { "somebody's own\n" }).unwrap();
    }
    root
}

/// Whether the rule lets a command write: OUT is `out`, the other capitals are files of `root`.
fn allowed(template: &str, (root, out): (&Path, &Path), force: bool) -> Result<(), String> {
    let upper = |word: &str| {
        word.len() > 2 && word.chars().all(|c| c.is_ascii_uppercase() || c == '-') && !word.starts_with('-')
    };
    let word = |word: &str| match word.strip_prefix('@').unwrap_or(word) {
        "OUT" => out.into(),
        own if upper(own) => {
            let at = if word.starts_with('@') { "@" } else { "" };
            OsString::from(format!("{at}{}", root.join(named(own)).display()))
        }
        _ => word.into(),
    };
    let force = force.then(|| "--force".into());
    let words = std::iter::once("limpid".into()).chain(template.split(' ').map(word)).chain(force).collect();
    let command = Cli::command();
    // settings of files are read elsewhere
    let words: Vec<OsString> = words;
    let matches = command.clone().try_get_matches_from(words).unwrap_or_else(|e| panic!("{template}: {e}"));
    check(&command, &matches).map_err(|error| error.to_string())
}

/// The verbs that have arguments, by name.
fn verbs(command: &Command, name: &str) -> Vec<(String, Command)> {
    let below =
        command.get_subcommands().flat_map(|verb| verbs(verb, format!("{name} {}", verb.get_name()).trim_start()));
    std::iter::once((name.to_string(), command.clone())).chain(below).collect()
}

#[test]
fn the_table_knows_every_path_of_every_verb() {
    let mut command = Cli::command();
    command.build();
    let is_path = |arg: &Arg| {
        const NAMES: [&str; 5] = ["FILE", "DIR", "MODEL", "STATE", "INPUT"];
        let named =
            arg.get_value_names().into_iter().flatten().any(|name| NAMES.iter().any(|file| name.contains(file)));
        arg.get_action().takes_values()
            && (named || arg.get_value_parser().type_id() == std::any::TypeId::of::<PathBuf>())
    };
    let (mut outputs, mut inputs, mut unknown) = (BTreeSet::new(), BTreeSet::new(), vec![]);
    for (verb, command) in verbs(&command, "") {
        for arg in command.get_arguments().filter(|arg| is_path(arg)) {
            let id = arg.get_id().as_str();
            if OUTPUTS.iter().any(|(own, out, _)| *own == verb && *out == id) {
                outputs.insert((verb.clone(), id.to_string()));
            } else if INPUTS.contains(&id) || id == "out" && ["plan", "check"].contains(&&*verb) {
                inputs.insert(id.to_string());
            } else {
                unknown.push(format!("{verb} {id}"));
            }
        }
    }
    assert!(unknown.is_empty(), "say in outputs.rs whether these are written or read: {unknown:?}");
    let known: BTreeSet<_> = OUTPUTS.iter().map(|(verb, arg, _)| (verb.to_string(), arg.to_string())).collect();
    assert_eq!(outputs, known, "a row of OUTPUTS is of no argument");
    let tried: Vec<_> = COMMANDS.iter().map(|(verb, arg, _)| (*verb, *arg)).collect();
    assert_eq!(tried, OUTPUTS.iter().map(|(verb, arg, _)| (*verb, *arg)).collect::<Vec<_>>(), "each row is tried");
    let unused: Vec<_> = INPUTS.iter().filter(|id| !inputs.contains(**id)).collect();
    assert!(unused.is_empty(), "no argument has these names: {unused:?}");
}

#[test]
#[ignore = "gate"]
fn no_output_replaces_what_it_should_not() {
    let root = files("all");
    for ((verb, arg, template), (.., kind)) in COMMANDS.iter().zip(OUTPUTS) {
        // these have rules of their own, and tests of them
        if matches!(kind, OutputKind::Run | OutputKind::Own | OutputKind::Manual) {
            continue;
        }
        let can = options::names(
            verbs(&Cli::command(), "").iter().find(|(name, _)| name == verb).map(|(_, verb)| verb).unwrap(),
        )
        .any(|name| name == "force");
        let read: Vec<PathBuf> = template
            .split(' ')
            .filter(|word| word.trim_start_matches('@').chars().all(|c| c.is_ascii_uppercase() || c == '-'))
            .map(|word| word.trim_start_matches('@'))
            .filter(|word| !["OUT", "-"].contains(word))
            .map(|word| root.join(named(word).trim_end_matches("/*.txt")))
            .collect();
        for file in FILES {
            let out = root.join(file);
            let said = allowed(template, (&root, &out), false).expect_err(&format!("{verb} {arg} over {file}"));
            assert!(said.contains(file), "{verb} {arg} over {file}: {said}");
            if !can {
                continue;
            }
            let is_read = read.iter().any(|read| out.starts_with(read))
                || template.contains("STATE") && file.starts_with("run/")
                || template.contains("STEPS") && *file == "vector.safetensors";
            let forced = allowed(template, (&root, &out), true);
            assert_eq!(forced.is_err(), is_read, "{verb} {arg} --force over {file}: {forced:?}");
        }
        // nothing is lost in a new place, unless it becomes part of a model
        for (new, fits) in [("new", true), ("model/new.x", true), ("model/vocab.json", false), ("run/state/x", true)] {
            let said = allowed(template, (&root, &root.join(new)), false);
            assert_eq!(said.is_ok(), fits, "{verb} {arg} to {new}: {said:?}");
        }
    }
    fs::remove_dir_all(root).unwrap();
}

#[test]
fn folders_are_not_written_over_what_is_read() {
    let root = files("folders");
    fs::write(root.join("run/limpid.1"), ".TH limpid 1\n").unwrap();
    fs::write(root.join("data/limpid-train.1"), "somebody's own\n").unwrap();
    fs::create_dir(root.join("empty")).unwrap();
    for (template, out, force, fits) in [
        ("train --from MODEL --out OUT", "model", true, false),
        ("train --from STATE --out OUT", "run", true, false),
        ("train --data TEXT --tokenizer TOKENIZER --out OUT", "run", true, true),
        ("train --data DATA --out OUT", "data/new", true, true),
        ("man OUT", "new", false, true),
        ("man OUT", "run", false, true),
        ("man OUT", "data", false, false),
        ("tokenize train DATA --out OUT", "empty", false, true),
        ("tokenize train DATA --out OUT", "model", false, false),
        ("tokenize train DATA --out OUT", "data", true, false),
    ] {
        let said = allowed(template, (&root, &root.join(out)), force);
        assert_eq!(said.is_ok(), fits, "{template}, {out}: {said:?}");
    }
    #[cfg(unix)]
    {
        // by another name
        std::os::unix::fs::symlink(root.join("model.gguf"), root.join("linked.gguf")).unwrap();
        std::os::unix::fs::symlink(root.join("photo.png"), root.join("model/model.safetensors")).unwrap();
        for (template, out) in [
            ("direction GGUF --positive a --negative b --out OUT", "linked.gguf"),
            ("inspect MODEL --plot loss --plot-out OUT", "photo.png"),
            ("inspect MODEL --plot loss --plot-out OUT", "data/../model/config.json"),
        ] {
            assert!(allowed(template, (&root, &root.join(out)), true).is_err(), "{template}, {out}");
        }
    }
    fs::remove_dir_all(root).unwrap();
}

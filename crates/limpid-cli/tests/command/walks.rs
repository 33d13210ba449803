//! The five walks as a reader meets them: every command that they give, at any width, on models of other kinds, by
//! wrong names.
#![cfg(unix)]

use crate::common::{Folder, LIMPID, text};
use limpid_study::walk::{Show, Walk, WalkOptions, WalkStep};
use serde_json::Value;
use std::process::{Command, Stdio};

/// The models are made by the commands that make them, and every other command is run beside them as a reader would:
/// those to try work, those that are refused say why.
fn every_command_runs(name: &str) {
    let (f, walk) = (Folder::new(&format!("walk-{name}")), Walk::named(name).unwrap());
    let mut wrong = vec![];
    let mut run = |command: &str, refused: bool| {
        let out = f.shell(command).output().unwrap();
        let (code, said) = (out.status.code(), text(&out.stdout));
        let right = if refused {
            matches!(code, Some(1 | 2)) && said.contains("error: ")
        } else {
            code == Some(0) && !said.is_empty()
        };
        if !right {
            wrong.push(format!("$ {command}\n{code:?} {said}"));
        }
    };
    walk.models.iter().for_each(|made| run(&made.command(), false));
    for step in &walk.steps {
        // lessons have tests of their own; that there is one of this name is held here
        let (lessons, commands): (Vec<_>, Vec<_>) =
            step.commands.iter().partition(|command| command.starts_with("limpid lesson "));
        commands.iter().for_each(|command| run(command, false));
        let draws = |view: &Show| match view {
            Show::Picture { command, .. } => Some(command.clone()),
            _ => None,
        };
        step.views.iter().filter_map(draws).for_each(|command| run(&command, false));
        step.refused.iter().for_each(|command| run(command, true));
        for lesson in lessons {
            let name = lesson.split(' ').nth(2).unwrap();
            assert!(limpid_study::lessons::Topic::named(name).is_ok(), "{lesson}");
        }
    }
    // and on a text of the reader's
    let text = walk.default_model().prompts.first().cloned().unwrap_or_else(|| " professionals to truly".into());
    let prompts = vec![text.rsplit_once(' ').map_or(text.clone(), |(most, _)| most.into())];
    let mut live = walk.clone().live(WalkOptions { prompts, ..WalkOptions::default() });
    for step in &walk.steps {
        let (commands, refused) = commands_of(&live.fitted(step).unwrap());
        let plain = commands_of(step).0;
        commands.iter().filter(|command| !plain.contains(command)).for_each(|command| run(command, false));
        refused.iter().filter(|command| !step.refused.contains(command)).for_each(|command| run(command, true));
    }
    assert!(wrong.is_empty(), "{} commands of {name}:\n{}", wrong.len(), wrong.join("\n"));
    // what is trained in memory is what the command trains
    if let [made] = &walk.models[..] {
        let figures = |arguments: &str| {
            let shown = f.json(&format!("walk {name} --json{arguments}"));
            let figures = shown["steps"].as_array().unwrap().iter().map(|step| step["figures"].clone());
            figures.collect::<Vec<Value>>()
        };
        let pairs = figures("").into_iter().zip(figures(&format!(" --model {}", made.folder())));
        let differ: Vec<_> = pairs.enumerate().filter(|(_, (a, b))| a != b).map(|(n, _)| &walk.steps[n].id).collect();
        assert!(differ.is_empty(), "{name}: {differ:?} on the model that its command makes");
    }
}

#[test]
#[ignore = "gate"]
fn every_command_of_notations_runs() {
    every_command_runs("s0");
}

#[test]
#[ignore = "gate"]
fn every_command_of_zero_to_hero_runs() {
    every_command_runs("s1");
}

#[test]
#[ignore = "gate"]
fn every_command_of_the_formulated_gpt_2_runs() {
    every_command_runs("s2");
}

#[test]
#[ignore = "gate"]
fn every_command_of_the_decoder_readme_runs() {
    every_command_runs("s3");
}

#[test]
fn every_command_of_llm_cs_memory_runs() {
    every_command_runs("s4");
}

/// The commands that a step prints, those of its pictures too, and those that it says are refused.
fn commands_of(step: &WalkStep) -> (Vec<String>, Vec<String>) {
    let draws = |view: &Show| match view {
        Show::Picture { command, .. } if !command.is_empty() => Some(command.clone()),
        _ => None,
    };
    let commands = step.commands.iter().cloned().chain(step.views.iter().filter_map(draws)).collect();
    (commands, step.refused.clone())
}

/// Models of other kinds, made by the command: byte pairs, shared heads and sizes of their own; masked tokens and
/// segments.
fn others(f: &Folder) -> [(&'static str, &'static str); 2] {
    let llama = "train --preset nano-llama --data builtin:stories:60K --tokenizer bpe:300 --n-layer 2 --d-model 30 \
                 --n-head 6 --n-kv-head 2 --d-head 4 --d-v 6 --d-ff 50 --context-length 24 --steps 2 --batch-size 2 \
                 --sample 0 --json --out llama";
    f.ok(llama);
    let bert = Walk::named("s2").unwrap().models.into_iter().find(|made| made.id == "bert").unwrap();
    f.ok(&format!("{} --json", bert.command().replacen("limpid ", "", 1)));
    [("llama", "The \"fox\" sang: $5"), ("s2-bert", "mouse eat [MASK]")]
}

/// Every command that a walk prints on another model runs there, with the walk's texts and with the reader's; and there
/// are some.
fn commands_run_on_others(walks: &[&str], prompted: bool) {
    let f = Folder::new(&format!("walk-others-{}-{prompted}", walks.join("-")));
    let mut seen = std::collections::BTreeSet::new();
    for (model, text) in others(&f) {
        for name in walks {
            let walk = Walk::named(name).unwrap();
            let prompts = if prompted { vec![text.to_string()] } else { vec![] };
            let model = Some(f.0.join(model));
            let mut live = walk.clone().live(WalkOptions { model, prompts, ..WalkOptions::default() });
            let mut own = 0;
            for step in &walk.steps {
                let (commands, refused) = commands_of(&live.fitted(step).unwrap());
                for (command, refused) in
                    commands.into_iter().map(|c| (c, false)).chain(refused.into_iter().map(|c| (c, true)))
                {
                    // the others are the same on every model, and run above
                    if command.contains(&f.0.display().to_string()) {
                        own += 1;
                        seen.insert((command, refused));
                    }
                }
            }
            assert!(own > 2, "{name} has {own} commands for this model");
        }
    }
    let all: Vec<_> = seen.into_iter().collect();
    let halves = all.chunks(all.len().div_ceil(2).max(1));
    let wrong = std::thread::scope(|scope| {
        // pictures of both have the same names
        let each = halves.enumerate().map(|(n, half)| {
            let f = &f;
            scope.spawn(move || {
                let bad = |(command, refused): &(String, bool)| {
                    let out = f.shell(&format!("mkdir -p {n}; cd {n}\n{command}")).output().unwrap();
                    let said = text(&out.stdout);
                    let right = if *refused {
                        matches!(out.status.code(), Some(1 | 2)) && said.contains("error: ")
                    } else {
                        out.status.success() && !said.is_empty()
                    };
                    (!right).then(|| format!("$ {command}\n{said}"))
                };
                half.iter().filter_map(bad).collect::<Vec<_>>()
            })
        });
        each.collect::<Vec<_>>().into_iter().flat_map(|half| half.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(wrong.is_empty(), "{} of {} commands:\n{}", wrong.len(), all.len(), wrong.join("\n"));
}

#[test]
#[ignore = "gate"]
fn commands_run_on_other_models() {
    commands_run_on_others(&["s2", "s4"], false);
    commands_run_on_others(&["s4"], true);
    // beside models of the walk's own, whose vocabularies lack the reader's words
    let f = Folder::new("walk-others-text");
    let [(llama, _), _] = others(&f);
    let shown = f.ok(&format!("walk s2 --model {llama} --prompt 'The fox sang'"));
    assert!(shown.contains("--prompt \"The fox sang\"") && !shown.contains("cat eat mouse\" --tensor"), "{shown}");
}

/// The loss of a training's first step, with dropout, is that of the same windows looked at with the same draws.
#[test]
fn dropout_is_that_of_a_training() {
    let f = Folder::new("look-dropout");
    std::fs::write(f.0.join("t.txt"), "the dog jumps over the cat and the cat eats a mouse while the dog sleeps")
        .unwrap();
    for (seed, p) in [(1337, 0.3), (5, 0.5), (99, 0.1)] {
        let train = "train --preset decoder-readme --data t.txt --steps 1 --batch-size 2 --val-fraction 0 --windows \
                     sequential --eval-every 0 --sample 0";
        f.ok(&format!("{train} --seed {seed} --dropout {p} --json --out m{seed}"));
        let log = std::fs::read_to_string(f.0.join(format!("m{seed}/metrics.jsonl"))).unwrap();
        let trained =
            log.lines().find_map(|line| serde_json::from_str::<Value>(line).unwrap()["train_loss"].as_f64()).unwrap();
        let look = format!("inspect --model m{seed} --initial --data t.txt --batch-size 2 --tensor losses --json");
        let mean = |more: &str| {
            let seen = f.json(&format!("{look}{more}"));
            let losses = seen["tensors"][0]["values"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap());
            losses.sum::<f64>() / 8.0
        };
        assert!((mean(&format!(" --training {seed}")) - trained).abs() < 1e-6, "{seed}: {trained}");
        assert!((mean("") - trained).abs() > 1e-6 && (mean(" --training 3") - trained).abs() > 1e-6, "{seed}");
    }
    let table = f.ok("inspect --model m5 --prompt 'the dog' --training 5 --dropout 0.2 --table");
    for name in ["blocks.0.attn.hook_pattern_mask", "blocks.0.hook_attn_out_mask", "blocks.0.hook_mlp_out_mask"] {
        assert!(table.contains(name), "{name}: {table}");
    }
    f.fails(2, "inspect --model m5 --prompt 'the dog' --dropout 0.2 --table", &["without dropout, unless --training"]);
    f.fails(2, "inspect --model m5 --prompt 'the dog' --training 5 --dropout 0", &["has no dropout: give --dropout P"]);
}

/// No line is longer than it may be, but for commands and for what has no space to be broken at; nothing steers a
/// terminal.
#[test]
#[ignore = "gate"]
fn a_walk_fits_the_lines_it_is_given() {
    let f = Folder::new("walk-widths");
    for (name, width) in
        [("s0", 40), ("s1", 40), ("s2", 40), ("s3", 40), ("s4", 40), ("s3", 60), ("s3", 80), ("s3", 200)]
    {
        let shown = f.ok(&format!("walk {name} --width {width}"));
        let long = |line: &&str| {
            let words = line.trim_start();
            line.chars().filter(|c| !('\u{300}'..='\u{36f}').contains(c)).count() > width
                && words.contains(' ')
                && !line.contains("limpid ")
        };
        let long: Vec<&str> = shown.lines().filter(long).collect();
        assert!(long.is_empty(), "{name} at {width}:\n{}", long.join("\n"));
        assert!(!shown.contains('\u{1b}'), "{name}: no terminal, no colours");
        assert!(!shown.contains("stat@"), "{name}: a place in memory is no name");
        let walk = Walk::named(name).unwrap();
        assert!(walk.steps.iter().all(|step| shown.contains(&format!("({})", step.id))), "{name}");
    }
}

#[test]
fn a_walk_as_json_has_every_step() {
    let f = Folder::new("walk-json");
    let walk = Walk::named("s4").unwrap();
    let shown = f.json("walk s4 --json");
    let steps = shown["steps"].as_array().unwrap();
    assert_eq!(steps.len(), walk.steps.len());
    for (n, (shown, step)) in steps.iter().zip(&walk.steps).enumerate() {
        assert_eq!((&shown["number"], &shown["step"]["id"]), (&(n + 1).into(), &step.id.as_str().into()));
        assert!(!shown["figures"].as_array().unwrap().is_empty(), "{}", step.id);
    }
    assert_eq!(shown["commands"][0], walk.models[0].command());
    assert_eq!(f.json("walk --json").as_array().unwrap().len(), 5);
    assert_eq!(f.json("walk s3 --list --json").as_array().unwrap().len(), Walk::named("s3").unwrap().steps.len());
    let one = f.json("walk s4 1 --json");
    assert_eq!(one["step"]["id"], walk.steps[0].id.as_str());
}

#[test]
fn a_step_has_three_names() {
    let f = Folder::new("walk-names");
    let by_name = f.ok("walk s3 masking");
    assert!(by_name.contains("4.1. Masked Multi-Head Attention: 3. Masking in the Decoder"), "{by_name}");
    let number = Walk::named("s3").unwrap().steps.iter().position(|step| step.id == "masking").unwrap() + 1;
    assert_eq!(f.ok(&format!("walk decoder-readme {number}")), by_name);
    for (name, section) in [
        ("s3 4.3", "4.3 Feed-Forward Neural Network"),
        ("s3 7.1", "7.1."),
        ("s3 5.", "5. Linear Layer"),
        ("s3 feed-forward", "4.3 Feed-Forward"),
        ("s0 7.3", "Step 7.3"),
        ("s1 'step 8'", "Step 8"),
        ("s2 autoregressive", "utoregressive"),
    ] {
        let shown = f.ok(&format!("walk {name}"));
        assert!(shown.lines().take(3).any(|line| line.contains(section)), "{name}: {shown}");
    }
    f.fails(2, "walk s9", &["no walk `s9`", "s0, s1, s2, s3, s4"]);
    f.fails(2, "walk s3 maskign", &["no step `maskign`", "did you mean `masking`?"]);
    f.fails(2, "walk s3 99", &["from 1 to"]);
    assert!(f.ok("walk --list").contains("add-and-norm"));
    f.fails(1, "walk s3 masking --model nothing", &["nothing"]);
}

/// A model of another kind, a text of one word, words that a vocabulary lacks.
#[test]
fn a_walk_on_another_model_says_what_differs() {
    let f = Folder::new("walk-other");
    f.ok(&format!("{} --json", Walk::named("s0").unwrap().models[0].command().replacen("limpid ", "", 1)));
    let shown = f.ok("walk s3 --model s0");
    for said in ["Differs ", "positions", "this model has no `unembed.bias`"] {
        assert!(shown.contains(said), "{said}: {}", shown.lines().take(40).collect::<Vec<_>>().join("\n"));
    }
    assert!(shown.contains("limpid inspect --model s0 --prompt") && !shown.contains("--model s3 "), "{shown}");
    assert!(shown.contains("the walk's own model and texts"), "{shown}");
    // a text that the model has no words for, in whatever step, or in the whole walk
    for step in ["attention-example --model s0 --width 40", "1", "masking", "", "masking --json"] {
        f.fails(1, &format!("walk s3 {step} --prompt zebra"), &["\"zebra\" at byte 0", "not in the word vocabulary"]);
    }
    let one = f.ok("walk s3 attention-example --prompt jumps");
    assert!(one.contains("jumps ███") && one.contains("B T C    1 1 6"), "{one}");
    assert!(f.ok("walk s3 masking --initial").contains("Masking in the Decoder"));
    let document = f.ok("walk s3 attention-example --notation llmc");
    assert!(document.contains("NH"), "{document}");
}

/// On a terminal: contents, then step by step as the reader says, in colour unless that is not wanted.
#[cfg(target_os = "linux")]
#[test]
#[ignore = "gate"]
fn a_walk_on_a_terminal_goes_as_the_reader_says() {
    use std::io::Write;
    let f = Folder::new("walk-terminal");
    let typed = |colour: bool| {
        let mut command = Command::new("script");
        command.args(["-qec", &format!("{LIMPID} walk s3"), "/dev/null"]).current_dir(&f.0).env("COLUMNS", "70");
        command.env("TERM", "xterm-256color").env_remove("NO_COLOR");
        if !colour {
            command.env("NO_COLOR", "1");
        }
        let mut reader = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        reader.stdin.as_mut().unwrap().write_all(b"\nattention-example\nb\nnowhere\nl\nq\n").unwrap();
        let out = reader.wait_with_output().unwrap();
        assert!(out.status.success(), "{}", text(&out.stdout));
        text(&out.stdout).replace('\r', "")
    };
    let plain = typed(false);
    let at = |what: &str| plain.find(what).unwrap_or_else(|| panic!("no `{what}` in\n{plain}"));
    let order = [
        "limpid train --preset decoder-readme",
        "12  attention-example",
        "(introduction)",
        "(attention-example)",
        "(final-output)",
        "no step `nowhere`",
    ];
    let places: Vec<usize> = order.iter().map(|what| at(what)).collect();
    assert!(places.is_sorted(), "{order:?} at {places:?} in\n{plain}");
    assert_eq!(
        plain.matches("33  references").count(),
        2,
        "the list stands at the beginning and where it was asked for"
    );
    let painted = typed(true);
    assert!(painted.contains("\u{1b}[1m1/33  s3  1. Introduction") && painted.contains("\u{1b}[48;5;"), "{painted}");
    assert!(!plain.contains("[48;5;") && !plain.contains("[1m") && plain.contains('▒'), "{plain}");
}

/// While a model is trained, stderr has one line of it; stdout has the walk alone.
#[test]
fn a_walk_says_that_it_trains() {
    let f = Folder::new("walk-training");
    let (shown, said) = f.both("walk s3 masking");
    assert_eq!(said, "training s3: 1,000 steps\n");
    assert!(shown.starts_with("10/33  s3  4.1. Masked"), "{shown}");
    assert_eq!(f.both("walk s3 masking --json").1, "");
}

/// Longer than the gate may take: `cargo xtask sweep` runs them.
mod slow {
    use super::*;

    /// All of them, which takes half a minute: `cargo xtask sweep` runs it.
    #[test]
    #[ignore = "half a minute"]
    fn every_command_runs_on_other_models() {
        for prompted in [false, true] {
            commands_run_on_others(&Walk::ALL, prompted);
        }
    }
}

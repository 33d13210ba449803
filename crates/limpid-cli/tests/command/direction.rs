//! `limpid direction`: tables, files in each form, the command that it prints, and what is refused.

use crate::common::Folder;
use serde_json::Value;
use std::fs;

const HAPPY: &str = "The girl was happy\nA happy king\nThe fox was happy\nThe happy boy\n";

fn trained(name: &str) -> Folder {
    let f = Folder::new(name);
    f.ok("train --n-layer 4 --n-head 4 --steps 12 --sample 0 --out m");
    f.file("happy.txt", HAPPY);
    f.file("sad.txt", HAPPY.replace("happy", "sad"));
    f
}

const SIDES: &str = "--positive @happy.txt --negative @sad.txt";

#[test]
#[ignore = "gate"]
fn directions_are_shown_kept_and_used() {
    let f = trained("direction");
    for (more, says) in [
        (
            "",
            &[
                "Difference of means of 3 pairs, resid_post at the last token; tested on 1 other",
                "layer  length   share",
            ][..],
        ),
        ("--method pca --position mean", &["First principal component", "in the mean over all positions"]),
        ("--method probe --site mlp_out --layer 1..3", &["Linear probe of 3 pairs", "told apart", "by chance"]),
        ("--site z --head 0,2..4 --layer 2 --position 1", &["z at position 1"]),
        (
            "--held-out 0",
            &["of 4 pairs", "not tested on other pairs", "\"The girl was sad\", with the direction of layer 2:"],
        ),
        (
            "--test-positive 'A happy fox' --test-negative 'A sad fox' --prompt 'A fox' --write 3",
            &["of 4 pairs", "tested on 1 other", "after \"A fox\"", "as it is", "by 0.5", "by 2", "projected out"],
        ),
    ] {
        let shown = f.ok(&format!("direction m {SIDES} {more}"));
        for says in says {
            assert!(shown.contains(says), "{more}: no `{says}` in\n{shown}");
        }
        assert!(shown.contains("To use it, add --out FILE.gguf"), "{shown}");
        let rows = shown.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_digit())).count();
        assert_eq!(
            rows,
            if more.contains("layer 1..3") {
                2
            } else if more.contains("layer") {
                1
            } else {
                4
            },
            "{shown}"
        );
    }
    let plain = f.ok("inspect m --prompt 'The girl' --tensor logits");
    for (file, more) in [
        ("d.gguf", ""),
        ("d.safetensors", "--site z --head 1"),
        ("d.json", "--method pca --layer 2"),
        ("z.gguf", "--layer 3"),
    ] {
        let shown = f.ok(&format!("direction m {SIDES} {more} --out {file}"));
        let says = shown.contains("Layer 0 is not in it") && shown.contains("FILE.json");
        assert_eq!(says, file == "d.gguf", "{shown}");
        let command = shown.lines().find_map(|line| line.split_once("generate ")).map(|(_, rest)| rest).unwrap();
        assert!(command.contains(file) && command.starts_with("m --prompt 'The girl was sad'"), "{command}");
        f.ok(&format!("generate {command}"));
        let steps = command.split_once("--intervene ").unwrap().1;
        assert_ne!(
            f.ok(&format!("inspect m --prompt 'The girl' --tensor logits --intervene {steps}")),
            plain,
            "{file}"
        );
    }
    let found = f.json(&format!("direction m {SIDES} --method probe --held-out 0.5 --out j.gguf --json"));
    assert_eq!((&found["pairs"], &found["held_out"], &found["chance"]), (&2.into(), &2.into(), &0.5.into()));
    let effects = found["effects"].as_array().unwrap();
    assert_eq!((effects.len(), &effects[0]["steps"], &found["prompt"]), (5, &Value::Null, &"The girl was sad".into()));
    let layers = found["layers"].as_array().unwrap();
    assert_eq!((layers.len(), &found["left_out"]), (4, &serde_json::json!([0])));
    for layer in layers {
        let vector: Vec<f64> = serde_json::from_value(layer["vector"].clone()).unwrap();
        let length = vector.iter().map(|v| v * v).sum::<f64>().sqrt();
        assert!((length - layer["norm"].as_f64().unwrap()).abs() < 1e-5 * length, "{length}");
        let (told, chance) = (layer["accuracy"].as_f64().unwrap(), layer["by_chance"].as_f64().unwrap());
        assert!((0.0..=1.0).contains(&told) && (0.0..=1.0).contains(&chance) && layer["threshold"].is_f64());
    }
    // the same bytes again; a receipt holds the numbers, so the file may go
    let before = f.bytes("j.gguf");
    f.ok(&format!("direction m {SIDES} --method probe --held-out 0.5 --out j.gguf"));
    assert_eq!(before, f.bytes("j.gguf"));
    let steps = "'[{\"control_vector\": \"j.gguf\", \"by\": 2}]'";
    f.ok(&format!("generate m --prompt 'The girl' -n 6 --receipt r.json --intervene {steps}"));
    fs::remove_file(f.0.join("j.gguf")).unwrap();
    let receipt: Value = serde_json::from_slice(&f.bytes("r.json")).unwrap();
    assert!(receipt["request"]["interventions"][0][0]["control_vector"]["1"].is_array(), "{receipt}");
    f.ok("replay m r.json");
}

#[test]
#[ignore = "gate"]
fn what_has_no_direction_is_refused() {
    let f = trained("direction-not");
    f.file("three.txt", HAPPY.lines().take(3).collect::<Vec<_>>().join("\n"));
    f.file("gap.txt", "The girl\n\nThe boy\nA fox\n");
    f.file("no.gguf", "no GGUF");
    let refuses = |code: i32, rest: &str, says: &[&str]| f.fails(code, &format!("direction m {rest}"), says);
    refuses(2, "--positive a", &["--negative"]);
    refuses(2, "--positive - --negative -", &["there is one standard input"]);
    refuses(
        2,
        "--positive @happy.txt --negative @three.txt",
        &["--positive has 4 prompts and --negative 3: give pairs"],
    );
    refuses(1, "--positive @happy.txt --negative @gap.txt", &["--negative @gap.txt, line 2: the prompt is empty"]);
    refuses(1, "--positive @none.txt --negative @sad.txt", &["none.txt"]);
    refuses(2, "--positive happy.txt --negative sad", &["--positive @happy.txt takes each of its lines as a prompt"]);
    refuses(2, &format!("{SIDES} --out d.pt"), &["--out d.pt should end in .gguf, .safetensors or .json"]);
    refuses(2, &format!("{SIDES} --method lda"), &["a method is one of mean, pca, probe"]);
    refuses(2, &format!("{SIDES} --position first"), &["it is a whole number or mean"]);
    refuses(2, &format!("{SIDES} --layer 3..1"), &["expected a number or a range such as 2..5"]);
    refuses(1, &format!("{SIDES} --layer 4"), &["there is no layer 4: the model has 4, counted from 0"]);
    refuses(1, &format!("{SIDES} --site resid_pst"), &["did you mean `blocks.0.hook_resid_post`"]);
    refuses(1, &format!("{SIDES} --site attn.hook_pattern"), &["take `blocks.0.attn.hook_z`"]);
    refuses(1, &format!("{SIDES} --head 1"), &["is not divided into heads"]);
    refuses(1, &format!("{SIDES} --position 99"), &["there is no position 99"]);
    refuses(2, &format!("{SIDES} --test-positive a"), &["--test-negative"]);
    refuses(
        2,
        &format!("{SIDES} --test-positive a --test-positive b --test-negative c"),
        &["--test-positive has 2 prompts and --test-negative 1: give pairs"],
    );
    refuses(1, &format!("{SIDES} --held-out 1"), &["less than 1, found 1"]);
    refuses(1, &format!("{SIDES} --held-out 0.9"), &["a direction needs at least two pairs"]);
    refuses(1, &format!("{SIDES} --site z --out d.gguf"), &["a control vector is added to resid_post"]);
    refuses(1, "--positive same --negative same", &["give the same activations at blocks.0.hook_resid_post"]);
    let step = |step: &str| format!("generate m --prompt a -n 2 --intervene '[{step}]'");
    f.fails(1, &step(r#"{"control_vector": "no.gguf"}"#), &["--intervene: step 1: no.gguf: it is not a GGUF file"]);
    f.fails(1, &step(r#"{"control_vector": "gone.gguf"}"#), &["step 1: gone.gguf: "]);
    f.fails(1, &step(r#"{"control_vectr": "no.gguf"}"#), &["did you mean `control_vector`?"]);
    f.fails(1, &step(r#"{"control_vector": 3}"#), &["the name of a GGUF file"]);
}

mod slow {
    use crate::common::{Folder, LIMPID, block, root, text};
    use serde_json::Value;
    use std::collections::HashSet;
    use std::fs;
    use std::path::Path;
    use std::process::Command;

    /// Words and marks of a text.
    fn words(text: &str) -> Vec<&str> {
        let mut rest = text.trim_start();
        let mut words = vec![];
        while let Some(first) = rest.chars().next() {
            let letters = rest.find(|c: char| !c.is_alphanumeric() && c != '\'').unwrap_or(rest.len());
            let (word, after) = rest.split_at(letters.max(first.len_utf8()));
            words.push(word);
            rest = after.trim_start();
        }
        words
    }

    /// The steps of the documents that steer by a direction, at a place where they name none.
    fn steering() -> Vec<Value> {
        let docs = fs::read_dir(root("docs")).unwrap().map(|entry| entry.unwrap().path());
        let docs = docs.filter(|file| file.extension().is_some_and(|end| end == "md"));
        let texts = docs.map(|file| fs::read_to_string(file).unwrap().replace("SITE", "\"blocks.1.hook_resid_post\""));
        let step = |text: &str| serde_json::Deserializer::from_str(text).into_iter().next()?.ok();
        let all = |text: String| {
            let starts =
                ["{\"steer\"", "{\"control_vector\""].map(|start| text.match_indices(start).collect::<Vec<_>>());
            starts.concat().iter().filter_map(|(at, _)| step(&text[*at..])).collect::<Vec<Value>>()
        };
        // `vector` shows how numbers are written
        texts.flat_map(all).filter(|step| step["add"]["vector"].is_null() && step["layer"] != "1..2").collect()
    }

    /// The guide's directions steer the default model as it says: at one length all that is written is words, following
    /// each other as they do without it; at two the text falls apart.
    #[test]
    #[ignore = "trains the default model"]
    fn the_directions_of_the_guide_leave_words_whole() {
        let f = Folder::new("direction-guide");
        f.ok("train --sample 0 --json");
        let stories = f.ok("data stories 4M");
        let stories = words(&stories);
        let known: HashSet<&str> = stories.iter().copied().collect();
        let pairs: HashSet<[&str; 2]> = stories.windows(2).map(|two| [two[0], two[1]]).collect();
        let path = format!("{}:{}", Path::new(LIMPID).parent().unwrap().display(), std::env::var("PATH").unwrap());
        let sh = |line: &str| {
            let out = Command::new("sh").args(["-c", line]).current_dir(&f.0).env("PATH", &path).output().unwrap();
            assert!(out.status.success(), "{line}: {}", text(&out.stderr));
            text(&out.stdout)
        };
        // what is strange in the texts of several seeds: words that no story has, and pairs of words
        let strange = |line: &str| {
            let (mut none, mut apart) = (0, 0);
            for seed in 1..=20 {
                let shown = sh(&format!("{line} --seed {seed}"));
                // the last word may be cut
                let (_, shown) = words(&shown).split_last().map(|(last, shown)| (*last, shown.to_vec())).unwrap();
                none += shown.iter().filter(|word| !known.contains(*word)).count();
                apart += shown.windows(2).filter(|two| !pairs.contains(&[two[0], two[1]])).count();
            }
            (none, apart)
        };
        let plain = strange("limpid generate --prompt 'The girl was' -n 20");
        let guide = block("interventions.md", "## Directions", "sh");
        let (mut made, mut steered) = (0, 0);
        for line in guide.lines() {
            if line.starts_with("limpid direction") {
                sh(line);
                made += 1;
                continue;
            }
            assert!(line.contains("\"by\": 1,"), "{line}");
            let (once, twice) = (strange(line), strange(&line.replace("\"by\": 1,", "\"by\": 2,")));
            assert_eq!((once.0, plain.0), (0, 0), "{line}");
            let [once, twice] = [once.1, twice.1].map(|apart| apart as f64 - plain.1 as f64);
            assert!(once < twice / 2.0, "{line}: {once} and {twice} pairs more than the {} without it", plain.1);
            steered += 1;
        }
        assert_eq!((made, steered), (2, 2), "{guide}");
        // and so do the steps that all documents show
        let shown = steering();
        assert!(shown.len() >= 4, "{shown:?}");
        for step in shown {
            let line = format!("limpid generate --prompt 'The girl was' -n 20 --intervene '[{step}]'");
            assert_eq!(strange(&line).0, 0, "{line}");
        }
    }
}

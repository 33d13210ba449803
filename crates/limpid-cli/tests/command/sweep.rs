//! `sweep`: a heat map of what restores an answer, the command that repeats its strongest cell, and what is refused.

use crate::common::{Folder, text};
use serde_json::Value;
use std::fs;

const CLEAN: &str = "Once upon a time, there was a girl";
const CORRUPT: &str = "Once upon a time, there was a boy";

fn trained(name: &str) -> Folder {
    let f = Folder::new(name);
    f.ok("train --steps 12 --sample 0");
    f
}

/// A sweep of the two prompts.
fn sweep(flags: &str) -> String {
    format!("sweep --clean '{CLEAN}' --corrupt '{CORRUPT}' {flags}")
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|one| one.as_f64().unwrap()).collect()
}

#[test]
fn a_sweep_finds_what_differs() {
    let f = trained("sweep");
    let words = f.json(&sweep("--metric kl --json"))["tokens"]["clean"].as_array().unwrap().len();
    for (site, shape) in [("resid_pre", vec![2, words]), ("z", vec![2, 2]), ("z --by-pos", vec![2, words, 2])] {
        let found = f.json(&sweep(&format!("--site {site} --metric kl --json")));
        assert_eq!(found["shape"], serde_json::json!(shape), "{site}");
        let (clean, corrupt) = (found["clean"].as_f64().unwrap(), found["corrupt"].as_f64().unwrap());
        for (m, share) in numbers(&found["values"]).into_iter().zip(numbers(&found["recovered"])) {
            assert!((share - (m - corrupt) / (clean - corrupt)).abs() < 1e-5, "{site}: {m} is {share}");
        }
    }
    // before the first block all that differs is the last word
    let found = f.json(&sweep("--answer ',' --json"));
    let first = &numbers(&found["recovered"])[..words];
    assert_eq!((first[words - 1], first[..words - 1].iter().all(|share| *share == 0.0)), (1.0, true), "{found}");
}

#[test]
#[ignore = "gate"]
fn the_strongest_cell_is_the_command_that_is_printed() {
    let f = trained("sweep-repeats");
    for flags in
        ["--site mlp_out", "--site z --by-pos", "--site pattern --by-pair", "--site z --to blocks.1.hook_resid_post"]
    {
        let plain = |command: &str| {
            let done = f.command(command).env_remove("CARGO_MANIFEST_DIR").output().unwrap();
            assert!(done.status.success(), "{command}: {}", text(&done.stderr));
            text(&done.stdout)
        };
        let shown = plain(&sweep(&format!("{flags} --answer ',' --rather-than ' called'")));
        let command = shown.lines().find(|line| line.contains("inspect ")).unwrap();
        let command = command.trim().strip_prefix("limpid ").unwrap_or_else(|| panic!("{command}"));
        let found = f.json(&format!("{command} --json"));
        let kl = found["positions"].as_array().unwrap().iter().map(|row| row["kl"].as_f64().unwrap());
        assert!(kl.fold(0.0, f64::max) > 0.0, "{command}");
        let sentence = shown.lines().find(|line| line.contains("restores")).unwrap();
        let json = f.json(&sweep(&format!("{flags} --answer ',' --rather-than ' called' --json")));
        let share = json["peaks"][0]["recovered"].as_f64().unwrap();
        let again = found["answer"]["recovered"].as_f64().unwrap();
        assert!((again - share).abs() < 1e-9, "{command} restores {again}, the sweep said {share}");
        assert!(sentence.contains(&format!("restores {share:.2} of the difference")), "{sentence}");
        let steps = &json["peaks"][0]["intervention"];
        let held = !steps.to_string().contains("tokens");
        assert!(held && command.contains(&steps.to_string().replace('\'', "'\\''")), "{steps} and {command}");
    }
}

#[test]
fn a_sweep_runs_over_the_states_that_a_run_kept() {
    let f = Folder::new("sweep-steps");
    f.ok("train --steps 12 --sample 0 --save-every 4 --keep 3 --out kept");
    let one = |model: &str| f.json(&sweep("--answer ',' --json").replace("sweep", &format!("sweep {model}")));
    let over = f.json(&sweep("--answer ',' --json --over-steps").replace("sweep", "sweep kept"));
    let steps: Vec<u64> = over.as_array().unwrap().iter().map(|one| one["step"].as_u64().unwrap()).collect();
    assert_eq!(steps, [4, 8, 12]);
    for sweep in over.as_array().unwrap() {
        let alone = one(&format!("kept/state/step-{:08}.safetensors", sweep["step"].as_u64().unwrap()));
        assert_eq!((&sweep["values"], &sweep["peaks"]), (&alone["values"], &alone["peaks"]));
    }
    assert_eq!(over[2]["values"], one("kept")["values"]);
    assert_ne!(over[0]["values"], over[1]["values"]);
    let shown = f.ok(&sweep("--answer ',' --over-steps").replace("sweep", "sweep kept"));
    assert_eq!(shown.lines().filter(|line| line.starts_with("step ")).count(), 3, "{shown}");
    // a kept state is a model for other verbs, wherever one stands; other weights without their configuration are none
    let scored = |model: &str| f.ok(&format!("eval {model} --prompt 'Once upon a' --continuation ' time'"));
    assert_eq!(scored("kept/state/step-00000012.safetensors"), scored("kept"));
    assert_ne!(scored("kept/state/step-00000004.safetensors"), scored("kept"));
    fs::create_dir(f.0.join("other")).unwrap();
    fs::copy(f.0.join("kept/model.safetensors"), f.0.join("other/model.safetensors")).unwrap();
    f.fails(1, "eval other/model.safetensors --prompt a --continuation b", &["it is the weights alone"]);
    f.fails(
        1,
        &sweep("--answer ',' --over-steps").replace("sweep", "sweep kept/state/last.safetensors"),
        &["has kept no states", "--keep"],
    );
}

#[test]
fn a_sweep_fits_its_terminal_and_draws_a_picture() {
    let f = trained("sweep-shown");
    for width in [40, 60, 100] {
        let shown = f.ok(&sweep(&format!("--metric kl --width {width}")));
        let is_wide = |line: &&str| line.chars().count() > width && !line.contains("inspect ");
        assert_eq!(shown.lines().find(is_wide), None, "at {width}");
    }
    f.ok(&sweep("--answer ',' --site z --by-pos --html sweep.html"));
    assert!(fs::read_to_string(f.0.join("sweep.html")).unwrap().contains("id=\"saved\">"));
    f.fails(2, &sweep("--answer ',' --site pattern --by-pair --html sweep.html"), &["--by-pair"]);
    f.ok(&sweep("--metric kl --estimate --answer ',' --plot-out map.svg").replace("--metric kl ", ""));
    assert!(fs::read_to_string(f.0.join("map.svg")).unwrap().contains("</svg>"));
}

#[test]
fn what_cannot_be_swept_is_refused_with_the_mend() {
    let f = trained("sweep-not");
    for (code, command, says) in [
        (2, sweep(""), "--answer"),
        (2, sweep("--answer ',' --metric kl"), "cannot be used with"),
        (2, sweep("--answer ',' --site resid"), "resid_pre"),
        (1, sweep("--answer ',' --rather-than ','"), "name another one"),
        (1, sweep("--answer ',' --by-pair"), "only `pattern` has pairs of positions"),
        (1, sweep("--answer ',' --position 99"), "--position 99"),
        (1, sweep("--answer xyzzy"), "is not one token"),
        (1, sweep("--answer ',' --to blocks.1.atn.hook_q"), "did you mean `blocks.1.attn.hook_q`?"),
        (1, sweep("--answer ',' --to blocks.1.attn.hook_q --to-head 9"), "has no head 9"),
        (1, sweep("--answer ',' --site mlp_out --to blocks.0.attn.hook_q"), "no path leads"),
        (2, sweep("--answer ',' --estimate --to blocks.1.attn.hook_q"), "cannot be used with"),
        (2, sweep("--answer ',' --to-head 1"), "--to"),
        (1, sweep("--metric kl").replace(CORRUPT, CLEAN), "both prompts give the same KL divergence"),
        (1, sweep("--metric kl").replace(CORRUPT, "Once"), "both need the same number of tokens"),
    ] {
        f.fails(code, &command, &[says]);
    }
    let long = "there was a girl ".repeat(30);
    let other = long.replacen("girl", "boy", 1);
    let large = format!("sweep --clean '{long}' --corrupt '{other}' --metric kl --site pattern --by-pair");
    f.fails(2, &large, &["more than 10,000,000", "--yes"]);
}

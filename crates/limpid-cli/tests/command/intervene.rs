//! `--intervene`: what a run is made to do, in the terminal; every step that docs/interventions.md shows; and what is
//! refused.

use crate::common::{Folder, root};
use serde_json::Value;
use std::fs;

fn trained(name: &str) -> Folder {
    let f = Folder::new(name);
    f.ok("train --steps 12 --sample 0");
    f
}

/// What stands between quotes for a shell.
fn quoted(steps: &str) -> String {
    format!("'[{}]'", steps.replace('\'', "'\\''"))
}

/// What the cells of tables have between backticks, row by row.
fn cells(guide: &str) -> impl Iterator<Item = String> {
    let spans =
        |cell: &str| cell.split('`').skip(1).step_by(2).map(|span| span.replace("\\|", "|")).collect::<Vec<_>>();
    let cells = guide.lines().filter(|line| line.starts_with('|')).flat_map(|line| line.split(" | "));
    cells.flat_map(spans).collect::<Vec<_>>().into_iter()
}

#[test]
#[ignore = "gate"]
fn every_step_of_the_guide_runs() {
    let f = trained("intervene-guide");
    f.ok("direction --positive 'A happy girl' --negative 'A sad girl' --out happy.gguf");
    let guide = fs::read_to_string(root("docs/interventions.md")).unwrap();
    let known = ["blocks.0.hook_attn_out", "blocks.1.hook_resid_post"];
    let mut ran = 0;
    for step in cells(&guide).filter(|cell| {
        ["{\"ab", "{\"pa", "{\"pr", "{\"sc", "{\"st", "{\"se", "{\"fr", "{\"co"].contains(&&cell[..4.min(cell.len())])
    }) {
        let step = step.replace("SITE", &format!("\"{}\"", known[ran % 2]));
        // as long as the prompt, where a step takes all of its positions
        let step = step.replace("\"...\"", "\"Once upon a time, there was a girl\"");
        let step = if step.contains("vector") { step.replace("0.1, 0.2", &vec!["0.1"; 128].join(", ")) } else { step };
        let asked =
            format!("inspect --prompt 'Once upon a time, there was a boy' --json --intervene {}", quoted(&step));
        let found = f.json(&asked);
        let kl = found["positions"].as_array().unwrap().iter().map(|row| row["kl"].as_f64().unwrap());
        assert!(kl.fold(0.0, f64::max) > 0.0, "{step} changes nothing");
        ran += 1;
    }
    assert!(ran >= 19, "{ran} steps");
}

/// The table from TransformerLens's calls: its commands run here, its lines of Rust in the library's tests.
#[test]
#[ignore = "gate"]
fn every_command_of_the_table_runs() {
    let f = trained("intervene-table");
    let guide = fs::read_to_string(root("docs/interventions.md")).unwrap();
    let (_, table) = guide.split_once("## From TransformerLens").unwrap();
    let library = fs::read_to_string(root("crates/limpid/tests/library/interventions.rs")).unwrap();
    let (mut commands, mut lines) = (0, 0);
    for cell in cells(table) {
        if let Some(command) = cell.strip_prefix("limpid ") {
            f.ok(command);
            commands += 1;
        } else if cell.starts_with("lm.") {
            assert!(library.contains(&cell), "{cell} is not in tests/library/interventions.rs");
            lines += 1;
        }
    }
    assert!(commands >= 8 && lines >= 5, "{commands} commands, {lines} lines of Rust");
}

#[test]
#[ignore = "gate"]
fn a_change_shows_in_every_verb() {
    let f = trained("intervene");
    let steps = quoted(r#"{"ablate": "blocks.0.hook_mlp_out"}"#);
    for (verb, changes) in [
        ("generate --prompt 'Once upon a time' -n 12 --temperature 0", true),
        ("eval --prompt 'Once upon a' --continuation ' time' --json", true),
        ("embed 'Once upon a time'", true),
        ("inspect --prompt 'Once upon' --tensor blocks.1.hook_resid_pre", true),
        ("inspect --prompt 'Once upon' --tensor blocks.0.hook_resid_pre", false),
    ] {
        assert_eq!(f.ok(verb) != f.ok(&format!("{verb} --intervene {steps}")), changes, "{verb}");
    }
    // from a file, and one that is the identity
    fs::write(f.0.join("same.json"), r#"{"name": "nothing", "do": [{"scale": "blocks.0.attn.hook_z", "by": 1}]}"#)
        .unwrap();
    let found = f.json("inspect --prompt 'Once upon a time' --json --intervene same.json");
    let zero = |value: &Value| value.as_f64() == Some(0.0);
    assert!(found["positions"].as_array().unwrap().iter().all(|row| zero(&row["kl"])), "{found}");
    let stages = found["stream"].as_array().unwrap().iter().flat_map(|stage| stage.as_array().unwrap());
    assert!(stages.into_iter().all(zero), "{found}");
    // in words, in a narrow terminal
    let shown = f.ok(&format!("inspect --prompt 'Once upon a time' --width 60 --intervene {steps}"));
    assert!(shown.contains("The loss goes from") && shown.contains("residual stream"), "{shown}");
    assert_eq!(shown.lines().find(|line| line.chars().count() > 60), None);
    // the pattern that is shown is the one that was used
    let frozen = quoted(r#"{"set": "blocks.0.attn.hook_pattern", "head": 1, "pos": 2, "row": {"1": 0.75}}"#);
    let tensor =
        "inspect --prompt 'Once upon a' --tensor blocks.0.attn.hook_pattern --head 1 --view table --labels false";
    assert!(f.ok(&format!("{tensor} --intervene {frozen}")).contains("0.750000"));
}

#[test]
#[ignore = "gate"]
fn a_change_is_measured() {
    let f = trained("intervene-measured");
    let patch = r#"{"patch": "blocks.0.hook_resid_pre", "pos": "prompt", "from": {"prompt": "Once upon a time, there was a girl"}}"#;
    let asked = format!("inspect --prompt 'Once upon a time, there was a boy' --intervene {}", quoted(patch));
    let clean = "--clean 'Once upon a time, there was a girl'";
    // with all of the clean prompt's words, the clean prompt's answer
    let found = f.json(&format!("{asked} --answer ',' --rather-than ' called' {clean} --json"));
    assert_eq!((&found["answer"]["recovered"], &found["answer"]["with"]), (&1.0.into(), &found["answer"]["clean"]));
    // the same number as the probability that is listed
    let one = f.json(&format!("{asked} --answer ',' --json"));
    let (last, number) = (one["positions"].as_array().unwrap().last().unwrap(), |v: &Value| v.as_f64().unwrap());
    for side in ["without", "with"] {
        let listed = last[side]["top"].as_array().unwrap().iter().find(|next| next["text"] == "\",\"").unwrap();
        assert!((number(&one["answer"][side]).exp() - number(&listed["p"])).abs() < 1e-5, "{one}");
    }
    let shown = f.ok(&format!("{asked} --answer ',' --rather-than ' called' {clean} --write 8 --width 70"));
    let words = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words.contains("1.00 of the difference comes back") && words.contains("Written after the prompt"),
        "{shown}"
    );
    assert_eq!(shown.lines().find(|line| line.chars().count() > 70), None);
    let written = f.json(&format!("{asked} --write 8 --json"))["written"].clone();
    let girl = f.json("generate --prompt 'Once upon a time, there was a girl' -n 8 --temperature 0 --json");
    assert_eq!(written["with"], girl["samples"][0]["tokens"], "{girl}");
    f.fails(2, "inspect --prompt Once --answer ','", &["--intervene"]);
    f.fails(2, &format!("{asked} --rather-than ','"), &["--answer"]);
    f.fails(1, &format!("{asked} --answer xyzzy"), &["--answer: \"xyzzy\" is not one token"]);
    f.fails(1, &format!("{asked} --answer ',' --rather-than ','"), &["name another one"]);
    f.fails(1, &format!("{asked} --answer ',' --clean Once --position 5"), &["--clean", "--position 5"]);
}

/// To first order: what steps of a thousandth along the gradient change.
#[test]
#[ignore = "gate"]
fn gradients_of_an_answer_are_slopes() {
    let f = trained("intervene-slopes");
    let asked = "inspect --prompt 'Once upon a time' --answer ',' --rather-than ' called'";
    let slopes = f.json(&format!("{asked} --backward --json"));
    let number = |value: &Value| value.as_f64().unwrap();
    let (stream, heads) = (slopes["stream"].as_array().unwrap(), slopes["heads"].as_array().unwrap());
    assert_eq!((stream.len(), heads.len(), heads[0].as_array().unwrap().len()), (3, 2, 2));
    let site = "blocks.1.hook_resid_post";
    let tensor = f.json(&format!("{asked} --backward --tensor {site} --json"));
    let (shape, values) = (&tensor[0]["shape"], tensor[0]["values"].as_array().unwrap());
    let wide = shape[2].as_u64().unwrap() as usize;
    for (at, norm) in stream[2].as_array().unwrap().iter().enumerate() {
        let gradient: Vec<f64> = values[at * wide..(at + 1) * wide].iter().map(number).collect();
        let square: f64 = gradient.iter().map(|v| v * v).sum();
        assert!((square.sqrt() - number(norm)).abs() < 1e-6 * (1.0 + number(norm)));
        let moved = |by: f64| {
            let step = serde_json::json!({ "steer": site, "pos": at, "by": by, "add": { "vector": gradient } });
            number(&f.json(&format!("{asked} --json --intervene {}", quoted(&step.to_string())))["answer"]["with"])
        };
        let slope = (moved(1e-2) - moved(-1e-2)) / 2e-2;
        assert!((slope - square).abs() < 1e-2 * square + 1e-3, "at {at}: {slope} for {square}");
    }
    // a head's share is what scaling it by a thousandth takes away
    let scaled = |by: f64| {
        let step = format!("{{\"scale\": \"blocks.1.attn.hook_z\", \"head\": 1, \"by\": {by}}}");
        number(&f.json(&format!("{asked} --json --intervene {}", quoted(&step)))["answer"]["with"])
    };
    let (slope, share) = ((scaled(1.05) - scaled(0.95)) / 0.1, number(&slopes["attribution"][1][1]));
    assert!((slope - share).abs() < 2e-2 * share.abs() + 1e-3, "{slope} for {share}");
    for width in [40, 80] {
        let shown = f.ok(&format!("{asked} --backward --width {width}"));
        assert_eq!(shown.lines().find(|line| line.chars().count() > width), None);
    }
    f.fails(
        1,
        &format!("{asked} --backward --tensor blocks.1.hook_resid_pos"),
        &["did you mean `blocks.1.hook_resid_post.grad`?"],
    );
    f.fails(2, &format!("{asked} --backward --clean Once"), &["--intervene"]);
    f.fails(
        2,
        &format!("{asked} --backward --intervene {}", quoted(r#"{"ablate": "blocks.0.hook_mlp_out"}"#)),
        &["--backward"],
    );
}

#[test]
#[ignore = "gate"]
fn what_does_not_fit_is_refused_with_the_mend() {
    let f = trained("intervene-not");
    let refuses = |code: i32, steps: &str, says: &[&str]| {
        f.fails(code, &format!("inspect --prompt 'Once upon a time' --intervene {}", quoted(steps)), says);
    };
    refuses(1, r#"{"ablate": "blocks.0.attn.hok_z"}"#, &["step 1", "did you mean `blocks.0.attn.hook_z`?"]);
    refuses(1, r#"{"ablate": "logits"}"#, &["`logits` cannot be changed", "change `blocks.1.hook_resid_post`"]);
    refuses(1, r#"{"ablate": "blocks.0.ln1.hook_normalized"}"#, &["cannot be changed", "`blocks.0.ln1.hook_out`"]);
    refuses(1, r#"{"ablate": "embed.weight"}"#, &["it is no activation", "`blocks.0.hook_resid_pre`"]);
    refuses(1, r#"{"ablate": "blocks.0.attn.hook_z", "head": 9}"#, &["has no head 9: there are 2, counted from 0"]);
    refuses(1, r#"{"ablate": "blocks.0.hook_mlp_out", "head": 0}"#, &["is not divided into heads"]);
    refuses(1, r#"{"ablate": "blocks.0.attn.hook_z", "unit": 0}"#, &["give `head` in place of `unit`"]);
    refuses(1, r#"{"ablate": "blocks.0.hook_mlp_out", "pos": 99}"#, &["there is no position 99"]);
    refuses(1, r#"{"ablate": "blocks.0.hook_mlp_out", "pos": "generated"}"#, &["no_effect"]);
    refuses(1, r#"{"ablate": "blocks.0.hook_mlp_out", "pos": {"token": " dragon"}}"#, &["no_effect", "that token"]);
    refuses(1, r#"{"patch": "blocks.0.hook_mlp_out", "from": {"prompt": "Once"}}"#, &["source of the same length"]);
    refuses(1, r#"{"steer": "blocks.0.hook_mlp_out", "add": {"vector": [1, 2]}}"#, &["and 2 were given"]);
    refuses(
        1,
        r#"{"ablate": "blocks.0.hook_mlp_out"}, {"set": "blocks.0.hook_mlp_out", "value": 1, "pos": 2}"#,
        &["steps 1 and 2 both set `blocks.0.hook_mlp_out` at position 2"],
    );
    refuses(
        1,
        r#"{"set": "blocks.0.attn.hook_pattern", "pos": 1, "row": {"2": 1}}"#,
        &["at position 1 does not see the key at 2"],
    );
    refuses(1, r#"{"freeze_attention": {"layer": [4]}, "from": {"prompt": "Once upon a time"}}"#, &["no layer 4"]);
    refuses(1, r#"{"ablate": "blocks.1.attn.hook_Z"}"#, &["did you mean `blocks.1.attn.hook_z`?"]);
    refuses(1, r#"{"ablate": "blocks.1.hook_mlp_oot"}"#, &["did you mean `blocks.1.hook_mlp_out`?"]);
    // a run that a step makes infinite predicts nothing, whoever asks
    let scale = |by: &str| format!(r#"{{"scale": "blocks.1.hook_mlp_out", "by": {by}}}"#);
    let steps = quoted(&format!("{}, {}", scale("1e20"), scale("3e30")));
    for verb in [
        "inspect --prompt 'Once upon'",
        "inspect --prompt 'Once upon' --why next",
        "inspect --prompt 'Once upon' --tensor logits",
        "generate --prompt 'Once upon' -n 2",
        "eval --prompt 'Once upon' --continuation ' a time'",
    ] {
        f.fails(
            1,
            &format!("{verb} --intervene {steps}"),
            &["step 2 is too large: it changes `blocks.1.hook_mlp_out`"],
        );
    }
    for (steps, says) in [
        (r#"{"ablat": "blocks.0.hook_mlp_out"}"#, "did you mean `ablate`?"),
        (r#"{"ablate": "blocks.0.hook_mlp_out", "by": 2}"#, "`by` does not belong to `ablate`"),
        (r#"{"ablate": "blocks.0.hook_mlp_out", "scale": "blocks.0.hook_mlp_out"}"#, "found ablate and scale"),
        (r#"{"scale": "blocks.0.hook_mlp_out"}"#, "`by` is a finite number; found nothing"),
        (r#"{"scale": "blocks.0.hook_mlp_out", "by": 1e300}"#, "`by` is a finite number"),
        (r#"{"ablate": "blocks.0.hook_mlp_out", "pos": "5..2"}"#, "`pos` is a number, a list of them"),
        (r#"{"ablate": 3}"#, "the name of a tensor"),
        ("3", "expected an object"),
        ("", "the list is empty"),
    ] {
        refuses(1, steps, &[says]);
    }
    f.fails(1, "inspect --prompt Once --intervene '{\"do\": 3}'", &["found no list"]);
    f.fails(1, "inspect --prompt Once --intervene '[{'", &["interventions are a list of steps in JSON"]);
    f.fails(1, "inspect --prompt Once --intervene none.json", &["none.json"]);
    f.fails(1, "inspect --prompt Once --intervene -", &["interventions are a list of steps in JSON"]);
    let same = quoted(r#"{"scale": "blocks.0.attn.hook_z", "by": 1}"#);
    f.fails(2, &format!("inspect --prompt Once --backward --intervene {same}"), &["leave --backward"]);
    f.fails(2, &format!("inspect --preset nano --tokens 1,2 --intervene {same}"), &["it is about a trained model"]);
    let long = "generate --prompt Once -n 100000 --overflow slide-half";
    f.fails(1, &format!("{long} --intervene {same}"), &["a sequence stays within the context", "ask for fewer tokens"]);
    assert!(f.run(&format!("{long} --intervene {same}")).stdout.is_empty(), "what is refused shows no prompt");
}

//! `inspect --why`: the path from a word to its reason in the terminal; and the newest run, which is the model where
//! none is named.

use crate::common::{Folder, text};
use serde_json::Value;

/// A folder with one short run under runs/, and what was said at its end.
fn trained(name: &str) -> (Folder, String) {
    let f = Folder::new(name);
    let said = f.command("train --steps 12 --sample 0").env_remove("CARGO_MANIFEST_DIR").output().unwrap();
    assert!(said.status.success(), "{}", text(&said.stderr));
    (f, text(&said.stderr))
}

#[test]
#[ignore = "gate"]
fn a_word_leads_to_its_reason() {
    let (f, said) = trained("why");
    assert!(said.contains("limpid inspect --open"), "{said}");
    // and as it was started
    let cargo = f.command("train --steps 1 --sample 0").env("CARGO_MANIFEST_DIR", "/x").output().unwrap();
    let cargo = text(&cargo.stderr);
    assert!(cargo.contains("cargo run -- inspect --open") || cargo.contains("cargo run --release -- inspect --open"));
    let path = f.json("inspect --why next --json");
    let steps = path["steps"].as_array().unwrap();
    assert!(steps.len() >= 4, "{path}");
    for step in steps {
        let number = |value: &Value| value.as_f64().unwrap();
        let bars = step["bars"].as_array().unwrap();
        let sum: f64 = bars.iter().map(|bar| number(&bar["value"])).sum::<f64>() + number(&step["rest"]["value"]);
        let whole = number(&step["value"]);
        assert!(bars.is_empty() || (sum + number(&step["remainder"]) - whole).abs() < 1e-9, "{step}");
        assert!(number(&step["remainder"]).abs() < 1e-3, "{step}");
    }
    assert_eq!(steps.last().unwrap()["via"].as_array().unwrap().last().unwrap(), "w");
    let shown = f.ok("inspect --why next");
    assert!(shown.contains("together") && shown.contains("The path ends here."), "{shown}");
    for width in [40, 50, 60, 70, 80, 100] {
        let shown = f.ok(&format!("inspect --why next --width {width}"));
        let wide = shown.lines().find(|line| line.chars().count() > width);
        assert_eq!(wide, None, "at {width}");
        // a figure stands on the line of its name
        let first =
            |line: &&str| line.split(' ').next().unwrap_or_default().trim_end_matches([',', ';', '.', ')']).to_string();
        let alone = shown.lines().find(|line| first(line).contains('.') && first(line).parse::<f64>().is_ok());
        assert_eq!(alone, None, "at {width}");
    }
    // another way, another word, another place
    let head =
        f.json("inspect --prompt 'Once upon a time' --why ' a' --rather-than none --position 1 --via h1.1,t0 --json");
    assert_eq!(
        (head["steps"].as_array().unwrap().len(), &head["foil"], &head["position"]),
        (3, &Value::Null, &1.into())
    );
}

#[test]
fn a_quantised_model_has_its_path() {
    let (f, _) = trained("why-quantised");
    let run = std::fs::read_dir(f.0.join("runs")).unwrap().next().unwrap().unwrap().path();
    f.ok(&format!("convert {} q8.gguf --dtype q8_0", run.display()));
    let path = f.json("inspect q8.gguf --why next --json");
    for step in path["steps"].as_array().unwrap() {
        assert!(step["remainder"].as_f64().unwrap().abs() < 1e-3, "{step}");
    }
}

#[test]
#[ignore = "gate"]
fn what_cannot_be_explained_is_said() {
    let (f, _) = trained("why-not");
    f.fails(
        1,
        "inspect --why quizzaciously",
        &["--why: \"quizzaciously\" is not one token of this model; it would be"],
    );
    f.fails(1, "inspect --why 99999", &["99999"]);
    f.fails(1, "inspect --why next --position 99", &["--position 99: the prompt has"]);
    f.fails(1, "inspect --why next --via h9.9", &["the path has no `h9.9` there; it goes on to"]);
    f.fails(2, "inspect --why next --via x1", &["`x1` is no step of a path"]);
    f.fails(2, "inspect --why next --preset nano", &["--preset"]);
}

#[test]
#[ignore = "gate"]
fn the_newest_run_is_the_model_where_none_is_named() {
    let f = Folder::new("newest-none");
    for verb in ["inspect --why next", "generate --prompt Once", "eval --prompt a --continuation b", "serve", "chat"] {
        f.fails(2, verb, &["no model is given, and runs/ has none", "limpid train"]);
    }
    f.fails(2, "report", &["no run is given, and runs/ has none"]);
    let (f, _) = trained("newest");
    let verbs = ["inspect", "generate --prompt Once -n 2", "eval --prompt Once --continuation ' upon'", "report"];
    for verb in verbs {
        let (_, said) = f.both(verb);
        assert!(said.contains("is the newest run") && said.contains("runs/nano-"), "{verb}: {said}");
    }
    // a text in the model's place is refused with the way to give it
    std::fs::write(f.0.join("README.md"), "Once upon a time").unwrap();
    for (verb, mend) in [
        ("generate 'Once upon'", "`limpid generate --prompt 'Once upon'`"),
        ("generate README.md", "`limpid generate --prompt @README.md`"),
        ("inspect Once", "`limpid inspect --prompt Once`"),
        ("chat Hello", "`limpid generate --chat Hello`"),
        ("eval README.md", "`limpid eval --data README.md`"),
        ("eval README.md --data README.md", "`limpid eval --data README.md`"),
    ] {
        f.fails(1, verb, &[mend]);
    }
    f.fails(2, "eval", &["no text is given: --data FILE"]);
    // a model is named in either way, by all verbs, and not in both
    let run = std::fs::read_dir(f.0.join("runs")).unwrap().next().unwrap().unwrap().file_name();
    let run = format!("runs/{}", run.display());
    for verb in verbs.into_iter().filter(|verb| *verb != "report") {
        let (name, rest) = verb.split_once(' ').unwrap_or((verb, "--prompt Once"));
        let by_place = f.both(&format!("{name} {run} {rest}"));
        assert!(!by_place.1.contains("newest"), "{verb}");
        assert_eq!(f.both(&format!("{name} --model {run} {rest}")), by_place, "{verb}");
        f.fails(2, &format!("{name} {run} --model {run} {rest}"), &["two models are named", "leave one out"]);
    }
}

#[test]
#[ignore = "gate"]
fn a_model_stands_before_the_text_of_a_verb() {
    let (f, _) = trained("before");
    let run = std::fs::read_dir(f.0.join("runs")).unwrap().next().unwrap().unwrap().file_name();
    let run = format!("runs/{}", run.display());
    f.ok(&format!("generate {run} --prompt Once -n 3 --receipt r.json"));
    for (verb, word) in [("embed", "Once"), ("replay", "r.json")] {
        let placed = f.ok(&format!("{verb} {run} {word}"));
        assert_eq!(f.ok(&format!("{verb} {word} --model {run}")), placed);
        assert_eq!(f.ok(&format!("{verb} --model {run} {word}")), placed);
        let (newest, said) = f.both(&format!("{verb} {word}"));
        assert!(newest == placed && said.contains("is the newest run"), "{said}");
        f.fails(2, &format!("{verb} {word} {run}"), &["MODEL stands before", &format!("`limpid {verb} {run} {word}`")]);
        f.fails(2, verb, &["is missing", &format!("`limpid {verb} [MODEL] ")]);
    }
    let [placed, named] =
        [format!("{run} Once"), format!("Once --model {run}")].map(|words| f.ok(&format!("tokenize {words}")));
    assert_eq!(placed, named);
    assert!(placed.contains("of 1,979") && f.ok("tokenize Once").contains("gpt2"), "{placed}");
    let [placed, named] =
        [format!("{run} --vocab"), format!("--vocab --model {run}")].map(|words| f.ok(&format!("tokenize {words}")));
    assert_eq!(placed, named);
    assert!(f.ok("tokenize ''").contains("0 tokens"));
    f.ok(&format!("tokenize {run} --export t.json"));
    f.fails(
        2,
        &format!("tokenize Once {run}"),
        &["MODEL stands before TEXT", &format!("`limpid tokenize {run} Once`")],
    );
    f.fails(2, &format!("tokenize {run} Once --model {run}"), &["two models are named"]);
    f.fails(2, &format!("tokenize {run} Once --tokenizer char"), &["--tokenizer char", "has its own"]);
    f.fails(2, &format!("tokenize {run} Once --export u.json"), &["take no TEXT"]);
}

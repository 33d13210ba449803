//! Walks: the five documents on live models, step by step.

use crate::common::folder::Folder;
use limpid::checkpoint::Format;
use limpid::draw::table::TableOptions;
use limpid::draw::view::View;
use limpid_study::walk::printed::{As, Leaf, differences, leaves, places, within};
use limpid_study::walk::{Check, Figure, Live, Show, Shown, Walk, WalkError, WalkOptions};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::OnceLock;

fn live(name: &str) -> Live {
    Walk::named(name).unwrap().live(WalkOptions::default())
}

/// Every step of a walk, shown.
fn shown(live: &mut Live) -> Vec<Shown> {
    let steps = live.walk().steps.clone();
    steps.iter().map(|step| live.step(step).unwrap_or_else(|error| panic!("{}: {error}", step.id))).collect()
}

/// Every step of a walk on its own models, which are trained once for all tests.
fn own(name: &str) -> &'static [Shown] {
    static ALL: [OnceLock<Vec<Shown>>; Walk::ALL.len()] = [const { OnceLock::new() }; Walk::ALL.len()];
    let walk = Walk::ALL.iter().position(|known| *known == name).unwrap();
    ALL[walk].get_or_init(|| {
        let mut live = live(name);
        assert_eq!(live.differences().unwrap(), Vec::<String>::new());
        shown(&mut live)
    })
}

fn text(figure: &Figure) -> String {
    let options = TableOptions { width: 100, decimals: figure.decimals.into(), ..TableOptions::default() };
    figure.view.text(None, &options)
}

// ---- what is written

#[test]
fn every_walk_is_found_by_its_names() {
    let walks = Walk::all();
    assert_eq!(walks.iter().map(|walk| walk.name.as_str()).collect::<Vec<_>>(), Walk::ALL);
    assert_eq!(walks.iter().map(|walk| walk.steps.len()).sum::<usize>(), 132);
    for walk in &walks {
        for name in walk.also.iter().chain([&walk.name]) {
            assert_eq!(Walk::named(&name.to_uppercase()).unwrap().name, walk.name);
        }
        let ids: BTreeSet<&str> = walk.steps.iter().map(|step| step.id.as_str()).collect();
        assert_eq!(ids.len(), walk.steps.len(), "{}: two steps have one name", walk.name);
        for (i, step) in walk.steps.iter().enumerate() {
            assert_eq!(walk.find(&step.id).unwrap(), i);
            assert_eq!(walk.find(&(i + 1).to_string()).unwrap(), i);
        }
    }
}

/// Whatever the toml files write is read into a field: what is read says as much again.
#[test]
fn nothing_that_is_written_is_lost() {
    fn covers(at: &str, written: &toml::Value, read: &serde_json::Value) {
        match written {
            toml::Value::Table(fields) => {
                for (name, value) in fields {
                    assert!(!read[name].is_null(), "{at}: {name} is not read");
                    covers(&format!("{at}.{name}"), value, &read[name]);
                }
            }
            toml::Value::Array(list) => {
                let other = read.as_array().unwrap_or_else(|| panic!("{at} is {read}"));
                assert_eq!(list.len(), other.len(), "{at}");
                list.iter().zip(other).enumerate().for_each(|(i, (a, b))| covers(&format!("{at}[{i}]"), a, b));
            }
            _ => {}
        }
    }
    for walk in Walk::all() {
        let path = format!("{}/src/walk/{}.toml", env!("CARGO_MANIFEST_DIR"), walk.name);
        let written: toml::Value = toml::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let read = serde_json::to_value(&walk).unwrap();
        covers(&walk.name, &written, &read);
    }
}

#[test]
fn a_name_that_is_none_names_the_nearest() {
    let error = Walk::named("zero-to-heroe").unwrap_err().to_string();
    assert_eq!(error, "there is no walk `zero-to-heroe`: s0, s1, s2, s3, s4; did you mean `zero-to-hero`?");
    let walk = Walk::named("s3").unwrap();
    assert_eq!(walk.steps[walk.find("4.2").unwrap()].id, "norm-and-add");
    assert_eq!(walk.steps[walk.find("Full Block").unwrap()].id, "full-block");
    for wrong in ["0", "34", "", "mask ing", "-1", "1.5"] {
        assert!(matches!(walk.find(wrong), Err(WalkError::NoStep { .. })), "{wrong:?}");
    }
    assert!(walk.find("maskign").unwrap_err().to_string().ends_with("did you mean `masking`?"));
}

// ---- live

/// Every step of a walk shows what it can, `count` views in all.
fn every_step_is_live(name: &str, count: usize) {
    let mut views = 0;
    for shown in own(name) {
        let at = format!("{name} {}", shown.step.id);
        let written: usize = shown.step.views.len();
        assert!(shown.figures.len() >= written, "{at}: {} of {written} views", shown.figures.len());
        assert!(shown.notes.is_empty(), "{at}: {:?}", shown.notes);
        for figure in &shown.figures {
            let text = text(figure);
            assert!(!figure.lacks, "{at}: {text}");
            assert!(!text.trim().is_empty(), "{at}");
            assert!(!matches!(figure.view, View::Sentence { holds: Some(false), .. }), "{at}: {text}");
            if let View::Matrix(matrix) = &figure.view {
                let cells = matrix.size[0] * matrix.size[1];
                assert!(cells > 0 && matrix.values.len() == cells, "{at}: {:?}", matrix.size);
                assert!(matrix.values.iter().all(|v| !v.is_nan()), "{at}: {text}");
            }
        }
        for row in &shown.shapes {
            assert_eq!(row.sizes.len(), row.letters.split(' ').count(), "{at}: {row:?}");
            assert!(row.sizes.iter().all(|size| *size > 0), "{at}: {row:?}");
        }
        views += written;
    }
    assert_eq!(views, count);
}

#[test]
fn every_step_of_notations_is_live() {
    every_step_is_live("s0", 91);
}

#[test]
fn every_step_of_zero_to_hero_is_live() {
    every_step_is_live("s1", 49);
}

#[test]
fn every_step_of_the_formulated_gpt_2_is_live() {
    every_step_is_live("s2", 49);
}

#[test]
fn every_step_of_the_decoder_readme_is_live() {
    every_step_is_live("s3", 77);
}

#[test]
fn every_step_of_llm_cs_memory_is_live() {
    every_step_is_live("s4", 16);
}

/// What can go wrong with a model or a text of the user's is said where it would be shown.
fn never_fails(walk: &str, options: &WalkOptions) -> (Vec<String>, Vec<Shown>) {
    let mut live = Walk::named(walk).unwrap().live(options.clone());
    let differences = live.differences().unwrap_or_else(|error| panic!("{walk} {options:?}: {error}"));
    let shown = shown(&mut live);
    for figure in shown.iter().flat_map(|shown| &shown.figures) {
        let text = text(figure);
        assert!(!figure.lacks || text.trim().len() > 10, "{walk}: {text}");
    }
    (differences, shown)
}

/// Each walk on another walk's model: nothing fails, and every choice that differs is named with both values and the
/// steps.
#[test]
fn other_models_say_what_differs() {
    let folder = Folder::new("walks");
    for (walk, other, id, says) in [
        (
            "s0",
            "s3",
            "s3",
            &[
                "positions: this model has learned, \"Notations\" sinusoidal-one-based: see steps 12",
                "activation: this model has relu, \"Notations\" gelu-erf",
            ][..],
        ),
        (
            "s1",
            "s2",
            "gpt-2",
            &["norm_place: this model has pre", "tied_head: this model has true", "head_bias: this model has false"],
        ),
        ("s2", "s2", "bert", &[]), // it is its own box
        ("s3", "s2", "bert", &["mask: this model has bidirectional", "n_segment: this model has 2"]),
        (
            "s3",
            "s0",
            "s0",
            &[
                "final_norm: this model has true",
                "\"jumps\" is not in this model's vocabulary: this model's own first tokens are shown",
            ],
        ),
        ("s4", "s3", "s3", &["attention_bias: this model has false", "final_norm: this model has false"]),
    ] {
        let path = folder.join(format!("{other}-{id}"));
        if !path.exists() {
            live(other).model(id).unwrap().save(&path, Format::Limpid).unwrap();
        }
        let options = WalkOptions { model: Some(path), ..WalkOptions::default() };
        let (differences, shown) = never_fails(walk, &options);
        for said in says {
            assert!(
                differences.iter().any(|line| line.contains(said)),
                "{walk} on {id}: {said} is not in {differences:#?}"
            );
        }
        // and stands in the steps that are named
        for line in &differences {
            let Some((line, steps)) = line.split_once(": see step") else { continue };
            for step in steps.trim_start_matches('s').trim().split(", ") {
                let notes = &shown[step.parse::<usize>().unwrap() - 1].notes;
                assert!(notes.iter().any(|note| note == line), "{walk} step {step}: {notes:?}");
            }
        }
    }
}

/// A prompt of one token, words that no vocabulary has, a text longer than the context, no text at all.
#[test]
fn other_texts_are_shown_or_refused_in_words() {
    let (_, shown) = never_fails("s0", &WalkOptions { prompts: vec!["cat".into()], ..WalkOptions::default() });
    let texts: Vec<String> = shown.iter().flat_map(|shown| &shown.figures).map(text).collect();
    assert!(texts.iter().any(|text| text.contains("nothing to predict")));
    for (walk, prompts, says) in [
        ("s3", &["elephant"][..], "\"elephant\" at byte 0"),
        ("s3", &["dog jumps around cat man is helping cat"], "8 tokens, the model's context_length is 4"),
        ("s2", &[""], "the text is empty"),
        ("s3", &["dog", "man is"], "sequence 0 has 1 token and sequence 1 has 2"),
    ] {
        let prompts = prompts.iter().map(ToString::to_string).collect();
        let walk = Walk::named(walk).unwrap();
        let (first, last) = (walk.steps[0].clone(), walk.steps[walk.steps.len() - 1].clone());
        let mut live = walk.live(WalkOptions { prompts, ..WalkOptions::default() });
        for step in [first, last] {
            let error = live.step(&step).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}

/// An encoder without a head, and a model without a tokenizer.
#[test]
fn a_model_without_a_head_says_so() {
    let model = Some(concat!(env!("CARGO_MANIFEST_DIR"), "/../limpid/fixtures/hf/bert-encoder").into());
    let (differences, shown) = never_fails("s3", &WalkOptions { model, ..WalkOptions::default() });
    assert!(differences.iter().any(|line| line.starts_with("lm_head: this model has false")), "{differences:#?}");
    let step = shown.iter().find(|shown| shown.step.id == "linear-layer").unwrap();
    assert!(step.figures.iter().all(|figure| figure.lacks), "{step:?}");
    // with which weights it began, nobody knows
    let model = Some(concat!(env!("CARGO_MANIFEST_DIR"), "/../limpid/fixtures/hf/bert-encoder").into());
    let (_, shown) = never_fails("s3", &WalkOptions { model, initial: true, ..WalkOptions::default() });
    let texts: Vec<String> = shown.iter().flat_map(|shown| &shown.figures).map(text).collect();
    assert!(texts.iter().any(|text| text.contains("no limpid.toml")), "{texts:?}");
}

/// The mask hides nothing of scores before it; after it, and of weights, what is later.
#[test]
fn only_the_mask_hides() {
    let s1 = own("s1");
    let hidden = |step: &str| -> Vec<usize> {
        let shown = s1.iter().find(|shown| shown.step.id == step).unwrap();
        let maps = shown.figures.iter().filter(|figure| figure.heat);
        let count = |figure: &Figure| match &figure.view {
            View::Matrix(matrix) => matrix.hidden.iter().filter(|hidden| **hidden).count(),
            _ => 0,
        };
        maps.map(count).collect()
    };
    assert_eq!(hidden("qk-attention"), [0, 0]);
    assert_eq!(hidden("mask"), [16 * 15 / 2]);
    assert_eq!(hidden("softmax"), [16 * 15 / 2]);
}

// ---- what the documents print

/// Every step of every walk.
fn steps() -> impl Iterator<Item = &'static Shown> {
    Walk::ALL.into_iter().flat_map(own)
}

fn checks() -> impl Iterator<Item = &'static Check> {
    steps().flat_map(|shown| &shown.checks)
}

/// Every number and word of printed.json is claimed by one step, and is the live one but for its rounding.
#[test]
fn every_printed_number_is_shown_equal() {
    let mut claimed: BTreeMap<String, usize> = places().into_iter().map(|place| (place, 0)).collect();
    let mut counts: BTreeMap<As, usize> = BTreeMap::new();
    for shown in steps() {
        assert!(shown.checks.iter().map(|check| &check.printed).eq(&shown.step.printed), "{}", shown.step.id);
    }
    for check in checks() {
        let key = &check.printed.golden;
        let below =
            |place: &str| place.strip_prefix(key.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
        let own = claimed.iter_mut().filter(|(place, _)| below(place));
        assert_eq!(own.map(|(_, times)| *times += 1).count(), check.count, "{key}");
        assert!(check.holds && check.live.len() == check.count && check.count > 0, "{key}: {}", check.text);
        *counts.entry(check.printed.stands).or_default() += check.count;
    }
    let other: Vec<_> = claimed.iter().filter(|(_, times)| **times != 1).collect();
    assert!(other.is_empty(), "not claimed by one step: {other:?}");
    let want = [(As::Equal, 2437), (As::Corrected, 24), (As::Wrong, 30), (As::Constructed, 282)];
    assert_eq!(counts, want.into_iter().collect());
}

/// Each number moved by twice its tolerance is found, it alone; and so is a word, and a number too few.
#[test]
fn a_printed_number_that_is_off_is_named() {
    for check in checks() {
        let (key, printed) = (&check.printed.golden, leaves(&check.printed.golden));
        let within = within(key);
        assert!(differences(&printed, &check.live, within).is_empty(), "{key}");
        for at in 0..printed.len() {
            let mut moved = printed.clone();
            moved[at] = match &printed[at] {
                Leaf::Number(number) if number.is_infinite() => Leaf::Number(0.0),
                Leaf::Number(number) => Leaf::Number(number + if within > 0.0 { 2.0 * within } else { 1e-6 }),
                Leaf::Word(word) => Leaf::Word(format!("{word} ")),
            };
            assert_eq!(differences(&moved, &check.live, within), [at], "{key}");
        }
        assert!(!differences(&printed[..printed.len() - 1], &check.live, within).is_empty(), "{key}");
    }
}

/// Every error of the documents is said, each by its own document's walk at least once, and none that is not on the
/// list.
#[test]
fn every_erratum_is_said_where_it_stands() {
    let mut want = BTreeSet::new();
    for (kind, count) in [("E0", 45), ("E1", 32), ("E2", 21), ("E3", 26), ("E4", 9), ("X", 17)] {
        want.extend((1..=count).map(|n| format!("{kind}-{n:02}")));
    }
    let mut said = BTreeSet::new();
    for walk in Walk::all() {
        for (step, erratum) in walk.steps.iter().flat_map(|step| step.errata.iter().map(move |erratum| (step, erratum)))
        {
            let own = erratum.id.starts_with(&walk.name.replace('s', "E")) || erratum.id.starts_with("X-");
            assert!(own && !erratum.note.is_empty(), "{} {}: {}", walk.name, step.id, erratum.id);
            said.insert(erratum.id.clone());
        }
    }
    assert_eq!(want.difference(&said).collect::<Vec<_>>(), Vec::<&String>::new(), "not said");
    assert_eq!(said.difference(&want).collect::<Vec<_>>(), Vec::<&String>::new(), "not on the list");
}

/// docs/contract.md lists the documents' pictures, each with the words that mark it there: the walks have these and no
/// others. The row of each says which plot or diagram draws it.
#[test]
fn every_picture_is_in_the_contract() {
    let page = &fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/contract.md")).unwrap();
    assert!(!page.contains("picture due"), "a picture is due");
    let rows = |code: &str| {
        let code: u32 = code[1..].parse().unwrap();
        let covers = move |line: &&str| {
            let cell = line.trim_start_matches("| ").split(' ').next().unwrap_or("");
            let ends: Vec<u32> = cell.split('-').filter_map(|end| end.strip_prefix('R')?.parse().ok()).collect();
            ends.first().zip(ends.last()).is_some_and(|(first, last)| (*first..=*last).contains(&code))
        };
        page.lines().filter(covers).collect::<String>()
    };
    let mut pictures = vec![];
    for walk in Walk::all() {
        for (step, view) in walk.steps.iter().flat_map(|step| step.views.iter().map(move |view| (step, view))) {
            let Show::Picture { name, words: marks, command, .. } = view else { continue };
            let words: Vec<&str> = command.split(' ').collect();
            let drawn =
                words.windows(2).filter(|pair| ["--plot", "--diagram"].contains(&pair[0])).map(|pair| pair.join(" "));
            for drawn in drawn {
                assert!(rows(&name[..4]).contains(&drawn), "{}: {name}: {drawn}", walk.name);
            }
            pictures.push(format!("| `{}` | `{}` | {marks} | {} |", walk.name, step.id, &name[..4]));
        }
    }
    let listed: Vec<&str> = page.lines().filter(|line| line.starts_with("| `s") && line.contains("` | `")).collect();
    assert_eq!(pictures, listed, "the walks' pictures and those of the documents");
    assert_eq!(listed.len(), 13);
}

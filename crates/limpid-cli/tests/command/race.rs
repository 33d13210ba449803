//! `limpid race`: a short run and its verification, and what is refused. Races of toys are tested beside `race.rs`.

use crate::common::{Folder, root, text};
use serde_json::Value;
use std::fs;

const KEPT: &str = "docs/race/stories-nano-default.json";

#[test]
fn a_run_that_misses_its_target_leaves_a_record_that_verifies() {
    let f = Folder::new("race");
    f.file("two.toml", "steps = 2\nlearning_rate = 0.001\n");
    let race = "race stories-nano --recipe two.toml --out two.json";
    f.fails(1, race, &["the target 0.6 was not reached in 2 steps", "above the floor"]);
    let record: Value = serde_json::from_slice(&f.bytes("two.json")).unwrap();
    assert_eq!((&record["reached"], &record["steps"], &record["name"]), (&false.into(), &2.into(), &"two".into()));
    assert_eq!((&record["recipe"]["steps"], &record["recipe"]["learning_rate"]), (&2.into(), &0.001.into()));
    f.fails(1, race, &["two.json exists already"]);
    let (out, said) = f.both("race verify two.json --threads 1 --simd avx2");
    assert_eq!(out, "the same losses and weights\n");
    assert!(said.contains("recorded: loss") && said.contains("now: loss") && said.contains("1 thread, avx2"), "{said}");
    assert!(f.ok("race table two.json").contains("| stories-nano | two | limpid "));
}

#[test]
fn a_race_refuses_other_tracks_texts_and_recipes() {
    let f = Folder::new("race-refused");
    f.file("x.txt", "to be or not to be");
    f.fails(2, "race storys-nano", &["unknown track `storys-nano`: did you mean `stories-nano`?"]);
    f.fails(2, "race shakespeare-char", &["needs its text: --data tinyshakespeare.txt"]);
    f.fails(2, "race stories-nano --data x.txt", &["has the text builtin:stories"]);
    f.fails(1, "race shakespeare-char --data x.txt", &["x.txt is not the text of shakespeare-char: its SHA-256 is"]);
    f.file("r.toml", "epochs = 2\n");
    f.fails(2, "race stories-nano --recipe r.toml", &["epochs: a race trains a new model"]);
    f.file("r.toml", "stepz = 2\n");
    f.refuses("race stories-nano --recipe r.toml", &["stepz"]);
    f.refuses("race stories-nano --recipe none.toml", &["none.toml"]);
}

#[test]
fn a_record_that_is_not_as_it_was_is_refused_before_training() {
    let f = Folder::new("race-records");
    let kept = fs::read_to_string(root(KEPT)).unwrap();
    for (was, is, says) in [
        ("\"seed\": 1337", "\"seed\": 1338", "it was edited"),
        ("\"steps\": 900", "\"steps\": 800", "it was edited"),
        ("\"format\": 1", "\"format\": 2", "it is a record of format 2"),
        ("\"target\": 0.6", "\"target\": \"0.6\"", "invalid type: string \"0.6\", expected f64"),
        ("\"kind\"", "\"kinds\"", "unknown field `kinds`"),
    ] {
        assert!(kept.contains(was), "{was}");
        f.file("r.json", kept.replacen(was, is, 1));
        f.fails(1, "race verify r.json", &["r.json: ", says]);
    }
    f.file("r.json", &kept[..kept.len() / 2]);
    f.fails(1, "race verify r.json", &["r.json: it is not a whole JSON document"]);
    f.fails(1, "race table r.json", &["r.json: it is not a whole JSON document"]);
    let table = f.run(&format!("race table '{}'", root("docs/race").display()));
    let guide = fs::read_to_string(root("docs/race.md")).unwrap();
    assert!(guide.contains(&text(&table.stdout)), "docs/race.md: `limpid race table docs/race` prints its table");
}

//! Walks: the five documents on live models, step by step.

use limpid::trace::table::TableOptions;
use limpid::trace::view::View;
use limpid::walk::{Figure, Live, Shown, Walk, WalkError, WalkOptions};
use std::collections::BTreeSet;

fn live(name: &str) -> Live {
    Walk::named(name).unwrap().live(WalkOptions::default())
}

/// Every step of a walk, shown.
fn shown(live: &mut Live) -> Vec<Shown> {
    let steps = live.walk().steps.clone();
    steps.iter().map(|step| live.step(step).unwrap_or_else(|error| panic!("{}: {error}", step.id))).collect()
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
        let mut read = serde_json::to_value(&walk).unwrap();
        // views leave out what is not so
        fn whole(value: &mut serde_json::Value) {
            match value {
                serde_json::Value::Object(fields) => fields.values_mut().for_each(whole),
                serde_json::Value::Array(list) => list.iter_mut().for_each(whole),
                _ => {}
            }
        }
        whole(&mut read);
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
    assert!(walk.find("maskin").unwrap_err().to_string().ends_with("did you mean `masking`?"));
}

// ---- live

#[test]
fn every_step_is_live() {
    let mut views = 0;
    for name in Walk::ALL {
        let mut live = live(name);
        assert_eq!(live.differences().unwrap(), Vec::<String>::new());
        for shown in shown(&mut live) {
            let at = format!("{name} {}", shown.step.id);
            let written: usize = shown.step.views.len();
            assert!(shown.figures.len() >= written, "{at}: {} of {written} views", shown.figures.len());
            assert!(shown.notes.is_empty(), "{at}: {:?}", shown.notes);
            for figure in &shown.figures {
                let text = text(figure);
                if std::env::var("SHOW").is_ok() {
                    println!("== {at} [{}] {:?}\n{text}", figure.caption, figure.due);
                }
                assert!(!figure.lacks || text.contains("built yet"), "{at}: {text}");
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
    }
    assert_eq!(views, 253);
}

//! What units respond to: the places are those that a sort of all activations finds, a file beside the model keeps
//! them, and what a unit writes there is what the view of its MLP shows.

use crate::common::folder::Folder;
use limpid::budget::{Budget, Spent};
use limpid::numeric::random;
use limpid::trace::mlp::look_at_mlp;
use limpid::trace::{Keep, TraceError};
use limpid::unit_places::UnitText;
use limpid::{Error, Lm};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A model of a folder's own, with room for a file beside it.
fn copied(name: &str) -> (Folder, Lm) {
    let (folder, from) = (Folder::new("units"), Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/hf").join(name));
    for file in fs::read_dir(from).unwrap().map(Result::unwrap) {
        fs::copy(file.path(), folder.at(file.file_name().to_str().unwrap())).unwrap();
    }
    let lm = Lm::open(&*folder).unwrap();
    (folder, lm)
}

fn text(lm: &Lm, seed: u64, count: u64) -> (Vec<u32>, UnitText) {
    let v = lm.config().vocab_size as u64;
    let ids: Vec<u32> = (0..count).map(|i| random::below(seed, 60, i, v) as u32).collect();
    (ids.clone(), UnitText::new("drawn", ids))
}

#[test]
fn places_are_those_of_a_sort() {
    for name in ["gpt2-plain", "llama-gqa"] {
        let (_folder, lm) = copied(name);
        let window = lm.config().context_length.min(256);
        let (ids, text) = text(&lm, 1, window as u64 * 2 + 5);
        let places = lm.unit_places(&text, &Arc::default()).unwrap();
        for layer in 0..lm.config().n_layer {
            let tensor = format!("blocks.{layer}.mlp.hook_post");
            let all: Vec<f32> = ids
                .chunks(window)
                .flat_map(|ids| lm.trace_ids(ids, Keep::All).unwrap().get(&tensor).unwrap().values)
                .collect();
            for unit in 0..lm.config().d_ff {
                let mut own: Vec<(usize, f32)> =
                    all.iter().copied().skip(unit).step_by(lm.config().d_ff).enumerate().collect();
                let page = places.page(layer, unit).unwrap();
                assert_eq!(page.fires, own.iter().filter(|(_, v)| *v > 0.0).count());
                own.sort_by(|a, b| b.1.abs().total_cmp(&a.1.abs()).then(a.0.cmp(&b.0)));
                own.truncate(8);
                own.retain(|(_, v)| *v != 0.0);
                let found: Vec<(usize, f32)> = page.contexts.iter().map(|one| (one.position, one.value)).collect();
                assert_eq!(found, own, "{}", page.name());
                for one in &page.contexts {
                    let from = one.position - one.at;
                    assert_eq!(one.tokens, ids[from..from + one.tokens.len()]);
                    assert_eq!(from / window, (from + one.tokens.len() - 1) / window, "a context is in its window");
                    assert!(one.at == 12 || from % window == 0);
                }
            }
        }
        assert!(places.page(lm.config().n_layer, 0).is_err() && places.page(0, lm.config().d_ff).is_err());
    }
}

#[test]
fn a_unit_writes_what_its_mlp_shows() {
    let (_folder, lm) = copied("gpt2-plain");
    let (ids, text) = text(&lm, 2, 12);
    let places = lm.unit_places(&text, &Arc::default()).unwrap();
    let mut compared = 0;
    for unit in 0..lm.config().d_ff {
        let page = places.page(1, unit).unwrap();
        let Some(most) = page.contexts.first() else { continue };
        let words = lm.unit_writes(&places, &page, &Arc::default()).unwrap();
        let trace = lm.trace_ids(&ids[..=most.position], Keep::default()).unwrap();
        let look = look_at_mlp(&trace, 1, most.position, (usize::MAX, 8)).unwrap();
        let shown = look.units.iter().find(|one| one.unit == unit).unwrap();
        assert_eq!(words.raised, shown.tokens, "{unit}");
        assert!(words.lowered[0].1 < words.raised[0].1 && words.lowered.windows(2).all(|pair| pair[0].1 <= pair[1].1));
        compared += 1;
    }
    assert!(compared > 20, "{compared}");
}

#[test]
fn a_file_beside_the_model_keeps_them() {
    let (folder, lm) = copied("gpt2-plain");
    let file = lm.units_file().unwrap();
    assert_eq!(file, folder.at("units.json"));
    let (_, text) = text(&lm, 3, 40);
    let ended = || Arc::new(Budget::default().unless(Arc::new(AtomicBool::new(true))));
    let error = lm.unit_places(&text, &ended()).unwrap_err();
    assert!(matches!(error, Error::Trace(TraceError::Spent { why: Spent::Cancelled, .. })), "{error}");
    assert!(!file.exists(), "what was not read to its end is not kept");
    let found = lm.unit_places(&text, &Arc::default()).unwrap();
    let bytes = fs::read(&file).unwrap();
    // nothing is read again, even if there is no time
    assert_eq!(lm.unit_places(&text, &ended()).unwrap(), found);
    let anew = Lm::open(&*folder).unwrap();
    assert_eq!(anew.unit_places(&text, &ended()).unwrap(), found, "the file is no part of the model");
    // another text takes its place, and the first one's bytes come again
    let (_, other) = self::text(&lm, 4, 40);
    lm.unit_places(&other, &Arc::default()).unwrap();
    assert_ne!(fs::read(&file).unwrap(), bytes);
    lm.unit_places(&text, &Arc::default()).unwrap();
    assert_eq!(fs::read(&file).unwrap(), bytes);
    // a file of somebody else stays
    fs::write(&file, "{\"mine\": 1}").unwrap();
    assert_eq!(lm.unit_places(&text, &Arc::default()).unwrap(), found);
    assert_eq!(fs::read_to_string(&file).unwrap(), "{\"mine\": 1}");
    // so does what lies in the way
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    assert_eq!(lm.unit_places(&text, &Arc::default()).unwrap(), found);
    assert!(matches!(lm.unit_places(&UnitText::new("none", vec![]), &Arc::default()), Err(Error::Empty)));
}

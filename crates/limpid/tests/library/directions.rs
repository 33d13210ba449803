//! Directions: numpy finds the same ones, a probe finds what is there and nothing where nothing is, files hold them in
//! every form, and those that do not fit are refused.

use crate::common::folder::Folder;
use limpid::checkpoint::gguf::{self, Metadata};
use limpid::checkpoint::store::{Dtype, OutputTensor};
use limpid::checkpoint::{ControlVector, NamedArray, write_arrays};
use limpid::directions::{DirectionPosition, DirectionQuestion};
use limpid::generate::{Options, Sampler};
use limpid::numeric::random;
use limpid::receipt::{Receipt, Replay, replay};
use limpid::trace::Keep;
use limpid::trace::directions::{DirectionMethod, FoundDirection};
use limpid::trace::interventions::InterventionError;
use limpid::{Error, Interventions, Lm};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}

/// A GPT-2 of two layers with d_model 24 or so, whose weights are random.
fn gpt2() -> Lm {
    Lm::open(fixture("hf/gpt2-plain")).unwrap()
}

/// Pairs of prompts of that model.
fn pairs(lm: &Lm, count: u64) -> Vec<[Vec<u32>; 2]> {
    let v = lm.config().vocab_size as u64;
    let ids =
        |site: u64, pair: u64| (0..4 + pair % 2).map(|i| random::below(5, site, 10 * pair + i, v) as u32).collect();
    (0..count).map(|pair| [ids(1, pair), ids(2, pair)]).collect()
}

fn rows(value: &Value) -> Vec<Vec<f64>> {
    serde_json::from_value(value.clone()).unwrap()
}

fn close(found: &[f64], truth: &[f64], what: &str) {
    let length = truth.iter().map(|v| v * v).sum::<f64>().sqrt();
    assert_eq!(found.len(), truth.len(), "{what}");
    for (i, (a, b)) in found.iter().zip(truth).enumerate() {
        assert!((a - b).abs() <= 1e-9 * length.max(1.0), "{what} [{i}]: {a} for {b}");
    }
}

/// `reference/control_vectors.py`: the mean, the first right singular vector of the differences, and logistic
/// regression by Newton's method.
#[test]
fn numpy_finds_the_same() {
    let truth: Value = serde_json::from_slice(&fs::read(fixture("directions.json")).unwrap()).unwrap();
    let cases = truth["cases"].as_array().unwrap();
    for (n, case) in cases.iter().enumerate() {
        let [positive, negative] = ["positive", "negative"].map(|side| rows(&case[side]));
        for method in DirectionMethod::ALL {
            let found = FoundDirection::new(method, &positive, &negative);
            let vector: Vec<f64> = serde_json::from_value(case[method.name()].clone()).unwrap();
            close(&found.vector, &vector, &format!("case {n}, {}", method.name()));
            if method == DirectionMethod::Pca {
                assert!((found.share - case["share"].as_f64().unwrap()).abs() < 1e-9, "case {n}");
            }
        }
    }
    assert_eq!(cases.len(), 6);
}

#[test]
fn a_probe_finds_what_is_there_and_nothing_else() {
    let normal = |side: u64, row: u64, i: u64| random::normal(9, side, 100 * row + i);
    let group = |side: u64, apart: f64| -> Vec<Vec<f64>> {
        (0..200).map(|row| (0..8).map(|i| normal(side, row, i) + if i == 3 { apart } else { 0.0 }).collect()).collect()
    };
    // far apart: a probe of a few tells all others
    let [above, below] = [group(1, 20.0), group(2, -20.0)];
    for method in DirectionMethod::ALL {
        let found = FoundDirection::new(method, &above[..10], &below[..10]);
        assert_eq!(found.separation(&above[10..], &below[10..]).accuracy, 1.0, "{}", method.name());
        let along = found.vector[3] / found.norm();
        assert!(along > 0.9, "{}: {along}", method.name());
        assert_eq!(found.separation(&below[10..], &above[10..]).accuracy, 0.0, "{}", method.name());
    }
    // the same distribution: better than chance on its own rows, chance on 200 others (one deviation is 3.5 %)
    let [above, below] = [group(1, 0.0), group(2, 0.0)];
    let found = FoundDirection::new(DirectionMethod::Probe, &above[..100], &below[..100]);
    let (own, others) = (
        found.separation(&above[..100], &below[..100]).accuracy,
        found.separation(&above[100..], &below[100..]).accuracy,
    );
    assert!(own > 0.55 && (0.4..0.6).contains(&others), "{own} of its own, {others} of others");
    // wide rows of few pairs: its own are told apart entirely, others not
    let wide =
        |side: u64| -> Vec<Vec<f64>> { (0..120).map(|row| (0..100).map(|i| normal(side, row, i)).collect()).collect() };
    let [above, below] = [wide(3), wide(4)];
    let found = FoundDirection::new(DirectionMethod::Probe, &above[..20], &below[..20]);
    let others = found.separation(&above[20..], &below[20..]).accuracy;
    assert_eq!(found.separation(&above[..20], &below[..20]).accuracy, 1.0);
    assert!((0.4..0.6).contains(&others), "{others}");
}

/// How likely an accuracy is by chance is a count over all ways to exchange the rows of pairs.
#[test]
fn chance_is_counted() {
    let row = |v: f64| vec![v];
    for count in 1..9u64 {
        for seed in 0..20 {
            // whole numbers, so that some rows lie on the threshold, which is 0
            let draw = |side: u64, i: u64| random::below(seed, 90 + side, i, 5) as f64 - 2.0;
            let [above, below] = [0, 1].map(|side| (0..count).map(|i| row(draw(side, i))).collect::<Vec<_>>());
            let found = FoundDirection::new(DirectionMethod::Mean, &[row(1.0)], &[row(-1.0)]);
            let told = found.separation(&above, &below);
            let mut as_good = 0;
            for coins in 0..1u64 << count {
                let exchanged = |i: u64| coins >> i & 1 == 1;
                let side = |own: &[Vec<f64>], other: &[Vec<f64>]| -> Vec<Vec<f64>> {
                    (0..count)
                        .map(|i| if exchanged(i) { &other[i as usize] } else { &own[i as usize] }.clone())
                        .collect()
                };
                let accuracy = found.separation(&side(&above, &below), &side(&below, &above)).accuracy;
                as_good += u64::from(accuracy >= told.accuracy);
            }
            assert_eq!(told.by_chance, as_good as f64 / (1u64 << count) as f64, "{above:?} {below:?}");
        }
    }
}

/// Pairs that are given for it are tested like those that are held out.
#[test]
fn pairs_are_held_out_or_given() {
    let lm = gpt2();
    let pairs = pairs(&lm, 8);
    let held_out = DirectionQuestion { held_out: 0.25, ..DirectionQuestion::new(pairs.clone()) };
    let given = DirectionQuestion { test_pairs: pairs[6..].to_vec(), ..DirectionQuestion::new(pairs[..6].to_vec()) };
    let found = lm.directions(&held_out).unwrap();
    assert_eq!((found.pairs, found.held_out, &found), (6, 2, &lm.directions(&given).unwrap()));
    let own = lm.directions(&DirectionQuestion::new(pairs)).unwrap();
    assert!(own.layers.iter().all(|layer| layer.separation.is_none()));
}

/// The texts are those that the steps, which stand beside them, make the model write; one projected out has nothing
/// along the direction.
#[test]
fn directions_show_what_they_do() {
    let lm = gpt2();
    let found = lm.directions(&DirectionQuestion::new(pairs(&lm, 3))).unwrap();
    let layer = found.best().unwrap();
    let prompt = [1, 2, 3];
    let effects = lm.direction_effects(&found, layer, &prompt, 8).unwrap();
    let names: Vec<&str> = effects.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["as it is", "by 0.5", "by 1", "by 2", "projected out"]);
    let options = Options { max_tokens: 8, sampler: Sampler::GREEDY, ..Options::default() };
    for one in &effects {
        let changed = one.steps.as_ref().map_or(lm.without_interventions(), |steps| lm.intervene(steps).unwrap());
        assert_eq!(one.text, changed.generate_events(&prompt, &options, &mut |_| true).unwrap().text, "{}", one.name);
    }
    // no more than the context has room for
    let long: Vec<u32> = (0..lm.config().context_length as u32 - 1).map(|i| i % 7).collect();
    assert_eq!(lm.direction_effects(&found, layer, &long, 8).unwrap().len(), 5);
    let full: Vec<u32> = (0..lm.config().context_length as u32).map(|i| i % 7).collect();
    assert_eq!(lm.direction_effects(&found, layer, &full, 8).unwrap(), []);
    let out = lm.intervene(effects[4].steps.as_ref().unwrap()).unwrap();
    let stream = out.trace_ids(&prompt, Keep::default()).unwrap().get(&layer.site).unwrap();
    let along = |row: &[f32]| -> f64 { row.iter().zip(&layer.vector).map(|(a, b)| f64::from(a * b)).sum() };
    let plain = lm.trace_ids(&prompt, Keep::default()).unwrap().get(&layer.site).unwrap();
    for (row, before) in stream.values.chunks(layer.vector.len()).zip(plain.values.chunks(layer.vector.len())) {
        assert!(along(row).abs() < 1e-5 * layer.norm && along(before).abs() > 1e-3 * layer.norm, "{}", along(before));
    }
}

#[test]
fn odd_rows_have_directions_too() {
    let zeros = vec![vec![0.0; 3]; 2];
    for method in DirectionMethod::ALL {
        let none = FoundDirection::new(method, &zeros, &zeros);
        assert_eq!((none.vector.clone(), none.share, none.norm()), (vec![0.0; 3], 0.0, 0.0), "{}", method.name());
        assert_eq!(none.separation(&zeros, &zeros).accuracy, 0.5, "{}", method.name());
    }
    // the component of the differences that is largest is orthogonal to their mean
    let found = FoundDirection::new(
        DirectionMethod::Pca,
        &[vec![10.0, 1.0], vec![-10.0, 1.0]],
        &zeros[..].iter().map(|_| vec![0.0; 2]).collect::<Vec<_>>(),
    );
    assert!((found.vector[0].abs() - 10.0).abs() < 1e-9 && found.vector[1].abs() < 1e-9, "{:?}", found.vector);
    assert!((found.share - 200.0 / 202.0).abs() < 1e-12);
}

/// The difference of means is what a trace shows, at every site, of heads and units, at any position.
#[test]
fn a_difference_of_means_is_that_of_the_traces() {
    let lm = gpt2();
    let pairs = pairs(&lm, 3);
    let (heads, units) = (Some(vec![1]), Some(vec![3, 0]));
    let cases = [
        ("resid_post", "hook_resid_post", None, None),
        ("hook_resid_pre", "hook_resid_pre", None, units.clone()),
        ("mlp_out", "hook_mlp_out", None, None),
        ("z", "attn.hook_z", heads, None),
        ("mlp.hook_post", "mlp.hook_post", None, units),
        ("ln2.hook_out", "ln2.hook_out", None, None),
    ];
    for (n, (site, name, heads, units)) in cases.into_iter().enumerate() {
        for position in [DirectionPosition::At(-1), DirectionPosition::At(1), DirectionPosition::Mean] {
            let (site, heads, units) = (site.to_string(), heads.clone(), units.clone());
            let question = DirectionQuestion { site, heads, units, position, ..DirectionQuestion::new(pairs.clone()) };
            let found = lm.directions(&question).unwrap();
            assert_eq!(found.layers.len(), lm.config().n_layer);
            for layer in &found.layers {
                assert_eq!(layer.site, format!("blocks.{}.{name}", layer.layer));
                let mut sum = vec![0.0; layer.vector.len()];
                for (side, sign) in [(0, 1.0), (1, -1.0)] {
                    for pair in &pairs {
                        let tensor = lm.trace_ids(&pair[side], Keep::All).unwrap().get(&layer.site).unwrap();
                        let tokens = tensor.shape[1];
                        let wide = tensor.values.len() / tokens;
                        let columns: Vec<usize> = match (&question.heads, &question.units) {
                            (Some(_), _) => (tensor.shape[3]..2 * tensor.shape[3]).collect(),
                            (_, Some(units)) => units.clone(),
                            _ => (0..wide).collect(),
                        };
                        let at: Vec<usize> = match position {
                            DirectionPosition::At(1) => vec![1],
                            DirectionPosition::At(_) => vec![tokens - 1],
                            DirectionPosition::Mean => (0..tokens).collect(),
                        };
                        for (sum, column) in sum.iter_mut().zip(&columns) {
                            let values = at.iter().map(|at| f64::from(tensor.values[at * wide + column]));
                            *sum += sign * values.sum::<f64>() / (at.len() * pairs.len()) as f64;
                        }
                    }
                }
                let found: Vec<f64> = layer.vector.iter().map(|v| f64::from(*v)).collect();
                assert_eq!(found.len(), sum.len(), "case {n}");
                let worst = found.iter().zip(&sum).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
                assert!(worst < 1e-6, "case {n}, {position:?}, {}: {worst:e}", layer.site); // f32 of numbers up to 10
            }
        }
    }
}

fn steps(value: Value) -> Interventions {
    Interventions::try_from(value).unwrap()
}

fn logits(lm: &Lm, ids: &[u32]) -> Vec<u32> {
    lm.trace_ids(ids, Keep::All).unwrap().get("logits").unwrap().values.iter().map(|v| v.to_bits()).collect()
}

/// One pair's direction, from each kind of file, is the step that adds the difference of the two prompts, to the last
/// bit.
#[test]
fn every_kind_of_file_gives_the_same_run() {
    let (lm, folder) = (gpt2(), Folder::absent("directions"));
    fs::create_dir_all(&folder.0).unwrap();
    let ids = [1, 2, 3, 4];
    let pair = pairs(&lm, 1).remove(0);
    let found = lm.directions(&DirectionQuestion::new(vec![pair.clone()])).unwrap();
    let [gguf, tensors, list] = ["d.gguf", "d.safetensors", "d.json"].map(|name| folder.0.join(name));
    for file in [&gguf, &tensors, &list] {
        found.save(file).unwrap();
    }
    let site = "blocks.1.hook_resid_post";
    let patched = |from: &[u32]| {
        lm.trace_ids(from, Keep::All)
            .unwrap()
            .get(site)
            .unwrap()
            .values
            .chunks(lm.config().d_model)
            .last()
            .unwrap()
            .to_vec()
    };
    let difference: Vec<f32> = patched(&pair[0]).iter().zip(patched(&pair[1])).map(|(a, b)| a - b).collect();
    let plain = logits(&lm, &ids);
    let truth = lm.intervene(&steps(json!([{ "steer": site, "by": 2, "add": { "vector": difference } }]))).unwrap();
    let truth = logits(&truth, &ids);
    assert_ne!(truth, plain);
    let whole: Value = serde_json::from_slice(&fs::read(&list).unwrap()).unwrap();
    let mut one = whole[1].clone();
    one["by"] = 2.into();
    for given in [
        json!([{ "control_vector": gguf, "by": 2 }]),
        json!({ "name": "named", "do": [{ "control_vector": gguf, "by": 2, "layer": 1, "pos": "all" }] }),
        json!([{ "control_vector": { "1": difference }, "by": 2 }]),
        json!([{ "steer": site, "by": 2, "add": { "file": gguf } }]),
        json!([{ "steer": site, "by": 2, "add": { "file": gguf, "tensor": "direction.1" } }]),
        json!([{ "steer": site, "by": 2, "add": { "file": tensors } }]),
        json!([{ "steer": site, "by": 2, "add": { "file": tensors, "tensor": site } }]),
        json!([one]),
    ] {
        let steered = lm.intervene(&steps(given.clone())).unwrap();
        assert_eq!(logits(&steered, &ids), truth, "{given}");
    }
    // layer 0 has a place in lists of steps and tensors only
    let (layers, both): (Vec<usize>, _) = (ControlVector::read(&gguf).unwrap().directions.into_keys().collect(), whole);
    assert_eq!((layers, both.as_array().unwrap().len()), (vec![1], 2));
}

/// A receipt has the numbers; nobody's file is read to replay it.
#[test]
fn receipts_hold_the_numbers_of_files() {
    let (lm, folder) = (gpt2(), Folder::absent("direction-receipt"));
    fs::create_dir_all(&folder.0).unwrap();
    let file = folder.0.join("secret-name.gguf");
    let found = lm.directions(&DirectionQuestion::new(pairs(&lm, 2))).unwrap();
    found.save(&file).unwrap();
    let given = steps(
        json!([{ "control_vector": file, "by": 3 }, { "steer": "blocks.1.hook_resid_post", "add": { "file": file } }]),
    );
    let steered = lm.intervene(&given).unwrap();
    fs::remove_file(&file).unwrap();
    let options = Options { max_tokens: 6, ..Options::default() };
    let sample = steered.generate_events(&[1, 2, 3], &options, &mut |_| true).unwrap();
    let receipt = Receipt::new(&steered, &[1, 2, 3], &options, &sample).unwrap();
    let text = serde_json::to_string(&receipt).unwrap();
    assert!(!text.contains("secret-name"));
    let mut read: Receipt = serde_json::from_str(&text).unwrap();
    assert_eq!(replay(&lm, &read).unwrap(), Replay::Same);
    assert_eq!(replay(&steered, &read).unwrap(), Replay::Same);
    found.save(&file).unwrap();
    read.request.interventions = vec![given];
    let error = replay(&lm, &read).unwrap_err();
    assert!(matches!(error, Error::Intervention(InterventionError::NoFiles { step: 1, .. })), "{error}");
    assert!(error.to_string().contains("a vector for each layer"), "{error}");
}

/// gguf-py wrote the file; it is read, and written again with the same meaning.
#[test]
fn control_vectors_of_other_programs_are_read() {
    let folder = Folder::absent("control-vectors");
    fs::create_dir_all(&folder.0).unwrap();
    let read = ControlVector::read(&fixture("control.gguf")).unwrap();
    let vector = |layer: usize| (0..24).map(|i| i as f32 / 8.0 - layer as f32).collect::<Vec<f32>>();
    assert_eq!(read.directions, BTreeMap::from([(1, vector(1)), (2, vector(2))]));
    assert_eq!(read.model_hint, "gpt2");
    let own = folder.0.join("own.gguf");
    read.write(&own).unwrap();
    assert_eq!(ControlVector::read(&own).unwrap(), read);
    let (metadata, store) = gguf::open(&own).unwrap();
    assert_eq!(metadata.str("general.architecture").unwrap(), "controlvector");
    assert_eq!(metadata.u64("controlvector.layer_count").unwrap(), 2);
    assert_eq!(store.names().collect::<Vec<_>>().len(), 2);
    // cut anywhere, it is refused; with any byte changed, it is read or refused
    let whole = fs::read(&own).unwrap();
    let broken = folder.0.join("broken.gguf");
    for at in 0..whole.len() {
        fs::write(&broken, &whole[..at]).unwrap();
        assert!(ControlVector::read(&broken).is_err(), "cut at {at}");
        let mut bytes = whole.clone();
        bytes[at] ^= 0xff;
        fs::write(&broken, bytes).unwrap();
        let _ = ControlVector::read(&broken);
    }
}

/// A GGUF file with these tensors.
fn control(path: &Path, kind: &str, tensors: &[(&str, Dtype, Vec<f32>)]) {
    let mut metadata = Metadata::default();
    metadata.set("general.architecture", kind.to_string());
    let tensor = |(name, dtype, values): &(&str, Dtype, Vec<f32>)| {
        let own = values.clone();
        OutputTensor::new(name.to_string(), dtype.clone(), vec![own.len()], vec![Box::new(move || Ok(own.clone()))])
    };
    gguf::write(path, &metadata, tensors.iter().map(tensor).collect()).unwrap();
}

/// Each error names the step, the file and what to do.
#[test]
fn files_that_do_not_fit_are_refused() {
    let (lm, folder) = (gpt2(), Folder::absent("direction-files"));
    fs::create_dir_all(&folder.0).unwrap();
    let path = |name: &str| folder.0.join(name);
    let wide = lm.config().d_model;
    let ones = |n: usize| vec![1.0; n];
    let mut nan = ones(wide);
    nan[5] = f32::NAN;
    let f32s = |name, values| (name, Dtype::F32, values);
    control(&path("good.gguf"), "controlvector", &[f32s("direction.1", ones(wide))]);
    control(&path("model.gguf"), "llama", &[f32s("direction.1", ones(wide))]);
    control(&path("none.gguf"), "controlvector", &[f32s("other", ones(wide))]);
    control(&path("zero.gguf"), "controlvector", &[f32s("direction.0", ones(wide))]);
    control(&path("nan.gguf"), "controlvector", &[f32s("direction.1", nan.clone())]);
    control(&path("half.gguf"), "controlvector", &[("direction.1", Dtype::F16, ones(wide))]);
    control(&path("narrow.gguf"), "controlvector", &[f32s("direction.1", ones(wide - 1))]);
    control(&path("uneven.gguf"), "controlvector", &[f32s("direction.1", ones(8)), f32s("direction.2", ones(9))]);
    control(&path("deep.gguf"), "controlvector", &[f32s("direction.1", ones(wide)), f32s("direction.9", ones(wide))]);
    fs::write(path("text.gguf"), "no GGUF").unwrap();
    fs::write(path("list.json"), "[]").unwrap();
    fs::write(path("text.txt"), "1 2 3").unwrap();
    for (name, values) in [("nan.safetensors", &nan), ("narrow.safetensors", &ones(3))] {
        let shape = [values.len()];
        let array = NamedArray { name: "blocks.1.hook_resid_post", axes: &["unit"], shape: &shape, values };
        write_arrays(&path(name), &[array]).unwrap();
    }
    let refused = |step: Value, said: &[&str]| {
        let given = json!([{ "scale": "blocks.0.hook_mlp_out", "by": 1 }, step]);
        let error = lm.intervene(&steps(given.clone())).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::Intervention(InterventionError::File { step: 2, .. })), "{given}: {text}");
        for said in [&["step 2: "], said].concat() {
            assert!(text.contains(said), "{given}: no `{said}` in {text}");
        }
    };
    for (name, said) in [
        ("gone.gguf", "gone.gguf"),
        ("text.gguf", "should begin with `GGUF`"),
        ("model.gguf", "it is no control vector: `general.architecture` is `llama`"),
        ("none.gguf", "it has no tensor `direction.1`"),
        ("zero.gguf", "`direction.0` is a direction of no layer"),
        ("nan.gguf", "`direction.1` is NaN at 5"),
        ("half.gguf", "should be a vector of F32"),
        ("narrow.gguf", "and the site has"),
        ("uneven.gguf", "`direction.2` has 9 numbers and `direction.1` has 8"),
        ("text.txt", "not a GGUF file"),
    ] {
        refused(json!({ "control_vector": path(name) }), &[name, said]);
    }
    refused(
        json!({ "control_vector": path("deep.gguf") }),
        &["deep.gguf", "layer 9", "give some of its layers as `layer`"],
    );
    refused(
        json!({ "control_vector": path("good.gguf"), "layer": 0 }),
        &["good.gguf", "no direction of layer 0: it has 1"],
    );
    let fits = json!([{ "control_vector": path("deep.gguf"), "layer": [1] }]);
    assert!(lm.intervene(&steps(fits)).is_ok(), "the layers that are named fit");
    for (name, said) in [
        ("gone.gguf", "gone.gguf"),
        ("model.gguf", "it is no control vector"),
        ("nan.gguf", "is NaN at 5"),
        ("narrow.gguf", "it was made with another model"),
        ("gone.safetensors", "gone.safetensors"),
        ("nan.safetensors", "is NaN at 5: find the direction anew"),
        ("narrow.safetensors", "has 3 numbers, and the site has"),
        ("list.json", "intervene with the file itself"),
        ("text.txt", "ends in .gguf or .safetensors"),
    ] {
        let step = json!({ "steer": "blocks.1.hook_resid_post", "add": { "file": path(name) } });
        refused(step, &[name, said]);
    }
    let other = json!({ "steer": "blocks.0.hook_resid_post", "add": { "file": path("good.gguf") } });
    refused(other, &["it has no tensor `direction.0`, but `direction.1`: name one of its tensors as `tensor`"]);
    // whoever resolves the steps of others reads no file, whether it is there or not
    for file in ["good.gguf", "gone.gguf"] {
        let given = steps(json!([{ "steer": "blocks.1.hook_resid_post", "add": { "file": path(file) } }]));
        let error = lm.resolve(&given, &Default::default()).unwrap_err();
        assert!(matches!(error, Error::Intervention(InterventionError::NoFiles { step: 1, .. })), "{error}");
    }
}

#[test]
fn questions_without_an_answer_are_refused() {
    let lm = gpt2();
    let ask = |change: &dyn Fn(&mut DirectionQuestion)| {
        let mut question = DirectionQuestion::new(pairs(&lm, 2));
        change(&mut question);
        lm.directions(&question).unwrap_err().to_string()
    };
    let says = |error: String, said: &str| assert!(error.contains(said), "no `{said}` in {error}");
    says(ask(&|q| q.pairs.clear()), "a direction needs at least one pair of prompts, and 0 were given");
    says(ask(&|q| q.held_out = 0.6), "at least two pairs of prompts, one of them to hold out");
    says(ask(&|q| q.held_out = 1.0), "less than 1, found 1");
    says(ask(&|q| q.held_out = f64::NAN), "found NaN");
    says(ask(&|q| q.layers = Some(vec![7])), "there is no layer 7: the model has");
    says(ask(&|q| q.layers = Some(vec![])), "the list of layers is empty");
    says(ask(&|q| q.site = "resid_pst".into()), "did you mean `blocks.0.hook_resid_post`");
    says(ask(&|q| q.site = "pattern".into()), "take `blocks.0.attn.hook_z`");
    says(ask(&|q| q.site = "logits".into()), "logits");
    says(ask(&|q| q.site = "blocks.9.hook_resid_post".into()), "blocks.9.hook_resid_post");
    says(ask(&|q| q.heads = Some(vec![0])), "is not divided into heads");
    says(ask(&|q| q.units = Some(vec![9999])), "has no unit 9999");
    says(ask(&|q| q.position = DirectionPosition::At(4)), "there is no position 4: a prompt has 4 tokens");
    says(ask(&|q| q.position = DirectionPosition::At(-9)), "there is no position -9");
    says(ask(&|q| q.pairs[0][1] = vec![]), "empty");
    says(ask(&|q| q.pairs.iter_mut().for_each(|pair| pair[1] = pair[0].clone())), "give the same activations");
    // what a file has no place for
    let found = |change: &dyn Fn(&mut DirectionQuestion)| {
        let mut question = DirectionQuestion::new(pairs(&lm, 1));
        change(&mut question);
        lm.directions(&question).unwrap()
    };
    let kept = |found: limpid::directions::Directions, name: &str| found.save(Path::new(name)).unwrap_err().to_string();
    says(kept(found(&|_| ()), "x.txt"), "should end in .gguf, .safetensors or .json");
    says(kept(found(&|q| q.site = "z".into()), "x.gguf"), "a control vector is added to resid_post");
    says(kept(found(&|q| q.units = Some(vec![1])), "x.gguf"), "a control vector has all units");
    says(kept(found(&|q| q.layers = Some(vec![0])), "x.gguf"), "have no place for layer 0");
    says(kept(found(&|_| ()), "nowhere/at/all.json"), "nowhere");
}

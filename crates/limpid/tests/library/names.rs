//! Under every name of docs/names.md is what other programs have there: `fixtures/names` holds tensors that
//! transformers computes in models of all families (`reference/names.py`, which compares more models, and
//! TransformerLens). What no such model has is computed here from its neighbours.

use crate::common::filled::fill;
use crate::common::{self, assert_close, wide};
use limpid::backend::{Backend, Cpu, Reference};
use limpid::checkpoint::Checkpoint;
use limpid::checkpoint::safetensors_file;
use limpid::checkpoint::store::Store;
use limpid::config::{Config, Dropout, NormKind, NormPlace, Positions};
use limpid::model::{Mode, Model};
use limpid::names;
use limpid::ops::Batch;
use limpid::trace::{Keep, Trace, batch_of};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A tensor's error, relative to its largest element: transformers' numbers are rounded from f64, and limpid's f32 is
/// up to 3e-6 away.
const TOLERANCE: f64 = 1e-5;

fn fixtures(folder: &str) -> Vec<PathBuf> {
    let path = format!("{}/fixtures/{folder}", env!("CARGO_MANIFEST_DIR"));
    let entries = std::fs::read_dir(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let mut all: Vec<PathBuf> =
        entries.map(|entry| entry.unwrap().path()).filter(|path| !path.ends_with("README.md")).collect();
    all.sort();
    all
}

fn family(folder: &Path) -> String {
    let text = std::fs::read_to_string(folder.join("config.json")).unwrap();
    serde_json::from_str::<serde_json::Value>(&text).unwrap()["model_type"].as_str().unwrap().into()
}

/// What holds several others side by side, and those; of a matrix its parts' transposes.
const SIDE_BY_SIDE: &[(&str, [&str; 3])] = &[
    ("attn.hook_qkv", ["attn.hook_q", "attn.hook_k", "attn.hook_v"]),
    ("attn.hook_qk_normed", ["attn.hook_norm_q", "attn.hook_norm_k", "attn.hook_v"]),
    ("attn.hook_rotated", ["attn.hook_rot_q", "attn.hook_rot_k", "attn.hook_v"]),
    ("attn.qkv.weight", ["attn.W_Q", "attn.W_K", "attn.W_V"]),
    ("attn.qkv.bias", ["attn.b_Q", "attn.b_K", "attn.b_V"]),
];

/// Tensors of transformers, by name.
struct Truth(Store);

impl Truth {
    fn get(&self, name: &str) -> Option<(Vec<usize>, Vec<f64>)> {
        let stored = self.0.get(name)?;
        Some((stored.shape.to_vec(), wide(&stored.values().unwrap())))
    }

    fn ids(&self, name: &str) -> Option<Vec<u32>> {
        Some(self.get(name)?.1.into_iter().map(|id| id as u32).collect())
    }

    /// A tensor, or its parts side by side.
    fn whole(&self, name: &str) -> Option<Vec<f64>> {
        let Some((whole, parts)) = SIDE_BY_SIDE.iter().find(|(whole, _)| name.ends_with(whole)) else {
            return Some(self.get(name)?.1);
        };
        let block = name.strip_suffix(whole)?;
        let parts: Vec<(Vec<usize>, Vec<f64>)> =
            parts.iter().map(|part| self.get(&format!("{block}{part}"))).collect::<Option<_>>()?;
        if whole.ends_with("weight") {
            let rows = |(shape, values): &(Vec<usize>, Vec<f64>)| -> Vec<f64> {
                values.chunks_exact(shape[1] * shape[2]).flat_map(|head| common::transpose(head, shape[2])).collect()
            };
            return Some(parts.iter().flat_map(rows).collect());
        }
        let tokens = if whole.contains("hook") { parts[0].0[1] } else { 1 };
        let row = |t: usize| {
            parts.iter().flat_map(move |(_, values)| &values[t * (values.len() / tokens)..][..values.len() / tokens])
        };
        Some((0..tokens).flat_map(row).copied().collect())
    }
}

/// Compares all that a trace has with the truth, and says which names that were.
fn compare(what: &str, trace: &Trace, truth: &Truth) -> BTreeSet<String> {
    let names: BTreeSet<String> = trace.matching("*").unwrap().into_iter().collect();
    for name in &names {
        let want = truth.whole(name).unwrap_or_else(|| panic!("{what}: there is no truth of {name}"));
        assert_close(&format!("{what}: {name}"), &wide(&trace.get(name).unwrap().values), &want, TOLERANCE);
    }
    for name in truth.0.names().filter(|name| !["tokens", "segments"].contains(name)) {
        let (tensor, gradient) = name.strip_suffix(".grad").map_or((name, false), |tensor| (tensor, true));
        assert!(names.contains(tensor), "{what}: limpid has no {tensor}");
        if gradient {
            let got = trace.get(name).unwrap_or_else(|e| panic!("{what}: {e}"));
            assert_close(&format!("{what}: {name}"), &wide(&got.values), &truth.get(name).unwrap().1, TOLERANCE);
        }
    }
    names
}

#[test]
fn every_name_holds_what_transformers_has_there() {
    let (mut families, mut seen) = (BTreeSet::new(), BTreeSet::new());
    for file in fixtures("names") {
        let case = file.file_stem().unwrap().to_str().unwrap().to_string();
        let folder = file.with_file_name("").join("../hf").join(&case);
        let truth = Truth(safetensors_file::open(&file).unwrap());
        let opened = Checkpoint::open(&folder).unwrap();
        let tokens = truth.ids("tokens").unwrap();
        let segments = truth.ids("segments").map(|segments| [segments]);
        let mask = opened.tokenizer.as_ref().and_then(|tokenizer| tokenizer.special("[MASK]"));
        let batch =
            batch_of(&opened.config, &[&tokens], segments.as_ref().map(|segments| &segments[..]), mask).unwrap();
        let model = Model::new(&opened.config, Mode::Inspect { batch: 1, context: tokens.len() }).unwrap();
        let backends: [(_, Box<dyn Backend>); 2] =
            [("cpu", Box::new(Cpu::new(&model, 1))), ("reference", Box::new(Reference::new(&model)))];
        for (backend_name, mut backend) in backends {
            opened.load(&model, &mut *backend).unwrap();
            let keep = if truth.get("logits.grad").is_some() { Keep::Gradients } else { Keep::All };
            let trace = Trace::run(&model, backend, &batch, keep).unwrap();
            let names = compare(&format!("{case} on {backend_name}"), &trace, &truth);
            seen.extend(names.iter().map(|name| names::lookup(name).unwrap().0.name));
        }
        families.insert(family(&folder));
    }
    let all: BTreeSet<String> =
        fixtures("hf").iter().filter(|path| path.is_dir()).map(|folder| family(folder)).collect();
    assert_eq!(families, all, "families with truth, and families");
    seen.extend(COMPUTED.iter().flat_map(|names| names.iter()));
    let missing: Vec<&str> = names::TABLE.iter().map(|entry| entry.name).filter(|name| !seen.contains(name)).collect();
    assert!(missing.is_empty(), "no truth has, and no test computes {missing:?}");
}

/// Names that no model of another program has: the tests below compute them.
const COMPUTED: &[&[&str]] = &[BRANCHES, DECODED, DRAWN];

/// dropout.rs tests them.
const DRAWN: &[&str] = &[
    "hook_embed_mask",
    "blocks.{i}.attn.hook_pattern_mask",
    "blocks.{i}.attn.hook_pattern_dropped",
    "blocks.{i}.attn.hook_out_mask",
    "blocks.{i}.hook_attn_out_mask",
    "blocks.{i}.mlp.hook_out_mask",
    "blocks.{i}.hook_mlp_out_mask",
];

const BRANCHES: &[&str] = &[
    "hook_pos_embed_unscaled",
    "blocks.{i}.attn.hook_out_dropped",
    "blocks.{i}.mlp.hook_out_dropped",
    "blocks.{i}.ln1_post.hook_mean",
    "blocks.{i}.ln1_post.bias",
    "blocks.{i}.ln2_post.hook_mean",
    "blocks.{i}.ln2_post.bias",
];

const DECODED: &[&str] = &["hook_outputs", "hook_unbounded"];

fn tiny() -> Config {
    Config { vocab_size: 11, context_length: 6, d_model: 12, n_head: 3, n_layer: 2, d_ff: 17, ..Config::default() }
}

/// Layer norms on what both parts add, factors of the embedding and of what is added, learned positions, and dropout,
/// which does nothing here.
#[test]
fn norms_and_factors_of_branches_are_as_their_formulas_say() {
    let config = Config {
        norm: NormKind::Layer,
        norm_place: NormPlace::Both,
        positions: Positions::Learned,
        embedding_scale: 3.0,
        residual_scale: 0.4,
        dropout: Dropout { projection: 0.2, ffn: 0.2, ..Dropout::NONE },
        ..tiny()
    };
    let model = Model::new(&config, Mode::Inspect { batch: 1, context: 5 }).unwrap();
    let mut backend = Cpu::new(&model, 1);
    fill(&model, &mut backend);
    let batch = Batch::of_sequences(vec![1, 7, 3, 3, 0], vec![7, 3, 3, 0, 2], 5);
    let trace = Trace::run(&model, Box::new(backend), &batch, Keep::All).unwrap();
    let get = |name: &str| wide(&trace.get(name).unwrap_or_else(|e| panic!("{e}")).values);
    let times = |values: &[f64], factor: f64| values.iter().map(|v| v * factor).collect::<Vec<_>>();
    let close = |name: &str, want: &[f64]| assert_close(name, &get(name), want, 1e-6);

    close("hook_pos_embed_unscaled", &get("pos_embed.weight")[..5 * 12]);
    close("hook_pos_embed", &times(&get("hook_pos_embed_unscaled"), 3.0));
    for i in 0..2 {
        for (part, norm, before) in [("attn", "ln1_post", "hook_resid_pre"), ("mlp", "ln2_post", "hook_resid_mid")] {
            let n = |rest: &str| format!("blocks.{i}.{norm}.{rest}");
            let behind = format!("blocks.{i}.{part}.hook_out_dropped");
            close(&behind, &get(&format!("blocks.{i}.{part}.hook_out")));
            let (mut means, mut normed) = (vec![], vec![]);
            let (gain, offset) = (get(&n("weight")), get(&n("bias")));
            for row in get(&behind).chunks_exact(12) {
                let mean = row.iter().sum::<f64>() / 12.0;
                let variance = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / 12.0;
                let scale = (variance + config.norm_eps).sqrt();
                means.push(mean);
                normed.extend((0..12).map(|c| (row[c] - mean) / scale * gain[c] + offset[c]));
            }
            close(&n("hook_mean"), &means);
            close(&n("hook_out"), &normed);
            let added = times(&normed, 0.4);
            close(&format!("blocks.{i}.hook_{part}_out"), &added);
            let after = if part == "attn" { "hook_resid_mid" } else { "hook_resid_post" };
            let before = get(&format!("blocks.{i}.{before}"));
            close(&format!("blocks.{i}.{after}"), &before.iter().zip(&added).map(|(x, a)| x + a).collect::<Vec<_>>());
        }
    }
}

/// What only models for decoding have: the rows whose logits are wanted, and logits before their bound.
#[test]
fn rows_of_outputs_and_unbounded_logits_are_those_of_the_whole_run() {
    let config = Config { logits_softcap: 1.5, ..tiny() };
    let outputs = [3, 1];
    let run = |mode, outputs: &[u32], names: &[&str]| -> Vec<Vec<f64>> {
        let model = Model::new(&config, mode).unwrap();
        let mut backend = Cpu::new(&model, 1);
        fill(&model, &mut backend);
        let mut batch = Batch::of_sequences(vec![1, 7, 3, 3, 0], vec![], 5);
        batch.outputs = outputs.to_vec();
        backend.feed(&batch).unwrap();
        backend.forward(model.ops()).unwrap();
        names
            .iter()
            .map(|name| wide(&backend.read(model.tensor(name).unwrap().region.for_batch(&batch)).unwrap()))
            .collect()
    };
    let decoded =
        run(Mode::Layers { batch: 1, context: 5, outputs: 2 }, &outputs, &["hook_outputs", "hook_unbounded", "logits"]);
    let [last, whole] = &run(Mode::Inspect { batch: 1, context: 5 }, &[], &["blocks.1.hook_resid_post", "logits"])[..]
    else {
        panic!()
    };
    let rows = |of: &[f64], wide: usize| {
        outputs.iter().flat_map(|row| of[*row as usize * wide..][..wide].to_vec()).collect::<Vec<_>>()
    };
    assert_close("hook_outputs", &decoded[0], &rows(last, 12), 0.0);
    assert_close("logits", &decoded[2], &rows(whole, 11), 0.0);
    let bounded: Vec<f64> = decoded[1].iter().map(|v| 1.5 * (v / 1.5).tanh()).collect();
    assert_close("hook_unbounded", &bounded, &decoded[2], 1e-6);
}

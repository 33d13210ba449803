//! What a trace shows is true: looking changes no bit, every gradient agrees with central differences or with the
//! identity that defines it, every name is explained, and what is printed and saved is what was there.

use crate::common::folder::Folder;
use crate::random_config::{configs, fill};
use limpid::backend::{Backend, Cpu, Reference};
use limpid::checkpoint::CheckpointError;
use limpid::config::{
    Activation, Axis, Config, Dropout, DropoutScale, LayerPattern, Mask, NormPlace, PRESETS, Positions, QkNorm,
    RotaryPairs,
};
use limpid::draw::table::{self, TableOptions};
use limpid::draw::view::{self, HeatScale, View, inputs, is_map, matrices};
use limpid::model::{Axes, Mode, Model, Param};
use limpid::names::{self, Notation};
use limpid::numeric::random;
use limpid::ops::{Access, Batch, IGNORE, MemorySpace, Op, Region};
use limpid::trace::masked::MaskTable;
use limpid::trace::{Keep, NamedTensor, SummaryRow, Trace, TraceError, save, tensors};
use limpid_core::finite::find_not_finite;

const BATCH: usize = 2;
const CONTEXT: usize = 5;
const INSPECT: Mode = Mode::Inspect { batch: BATCH, context: CONTEXT };

fn tiny() -> Config {
    Config {
        vocab_size: 11,
        context_length: 6,
        d_model: 12,
        n_head: 3,
        n_layer: 2,
        d_ff: 17,
        norm_eps: 1e-3,
        ..Config::default()
    }
}

fn post(config: Config) -> Config {
    Config { norm_place: NormPlace::Post, final_norm: false, ..config }
}

fn batch(config: &Config, seed: u64) -> Batch {
    let ids = |site| (0..10).map(|i| random::below(seed, site, i, config.vocab_size as u64) as u32).collect::<Vec<_>>();
    let mut targets = ids(2);
    targets[3] = IGNORE;
    let mut batch = Batch::of_sequences(ids(1), targets, CONTEXT);
    batch.spans[1].valid = 3;
    if config.n_segment > 0 {
        batch.segments = (0..10).map(|i| i % 2).collect();
    }
    batch
}

/// A configuration's model and backend, filled.
fn ready(config: &Config, seed: u64) -> (Model, Reference, Batch) {
    let model = Model::new(config, INSPECT).unwrap();
    let reference = filled(&model, seed);
    (model, reference, batch(config, seed))
}

/// Another backend of a model, with the same values.
fn filled(model: &Model, seed: u64) -> Reference {
    let mut reference = Reference::new(model);
    fill(model, &mut reference, seed);
    reference
}

#[track_caller]
fn close(what: &str, got: f32, want: f32) {
    assert!((got - want).abs() <= 1e-6 + 2e-5 * want.abs(), "{what}: {got}, expected {want}");
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// Queries and keys, and what makes them, are shown and kept in files in the order of the program that a model comes
/// from; every other number is the same.
#[test]
fn features_have_the_order_of_the_file() {
    let path = std::env::temp_dir().join(format!("limpid-order-{}.safetensors", std::process::id()));
    let norms = [QkNorm::None, QkNorm::Head, QkNorm::Width];
    for (n, pairs) in [RotaryPairs::Halves, RotaryPairs::HalvesBack].into_iter().enumerate() {
        for (qk_norm, n_kv_head) in norms.into_iter().zip([None, Some(1), Some(3)]) {
            let positions = Positions::Rotary;
            let (rotary_dim, rotary_layers) = ([None, Some(2)][n], [LayerPattern::ALL, "01".parse().unwrap()][n]);
            let own = Config { positions, qk_norm, n_kv_head, rotary_dim, rotary_layers, ..tiny() };
            let (model, backend, batch) = ready(&own, 3);
            let config = Config { rotary_pairs: pairs, ..own };
            let (shown, other, _) = ready(&config, 3);
            let before = Trace::run(&model, Box::new(backend), &batch, Keep::Gradients).unwrap();
            let trace = Trace::run(&shown, Box::new(filled(&shown, 3)), &batch, Keep::Gradients).unwrap();
            let mut names: Vec<String> = trace.names().chain(shown.params.iter().map(|p| p.name.clone())).collect();
            names.extend(names::derived(&shown).into_iter().map(|(name, _)| name));
            let mut moved = vec![];
            for name in
                names.iter().flat_map(|name| [name.clone(), format!("{name}.grad")]).filter(|n| n != "input.grad")
            {
                let (a, b) = (before.get(&name).unwrap(), trace.get(&name).unwrap());
                assert_eq!(a.shape, b.shape, "{name}");
                if bits(&a.values) == bits(&b.values) {
                    continue;
                }
                // features of a head: the last axis, or of a parameter the first (W_Q and b_Q have it last)
                let part = name.trim_end_matches(".grad").rsplit('.').next().unwrap().to_string();
                let (d, rows) = (4, matches!(&*part, "weight" | "bias"));
                let wide = if rows && a.shape.len() == 2 { a.shape[1] } else { 1 };
                let turned = rotary_dim.unwrap_or(d);
                let place = |i: usize| match (i % d, turned / 2) {
                    (f, half) if f < half => i - f + 2 * f + n,
                    (f, half) if f < turned => i - f + 2 * (f - half) + 1 - n,
                    _ => i,
                };
                for (i, v) in b.values.iter().enumerate() {
                    // values, behind queries and keys, stay
                    let (feature, all) = if rows { (i / wide, a.shape[0]) } else { (i, *a.shape.last().unwrap()) };
                    let fused = part.starts_with("hook_qk") || part == "hook_rotated" || name.contains(".qkv.");
                    let stays = fused && feature % all >= 4 * (3 + n_kv_head.unwrap_or(3));
                    let from = if stays { i } else { place(feature) * wide + i % wide };
                    assert_eq!(v.to_bits(), a.values[from].to_bits(), "{name} at {i} of {config:?}");
                }
                moved.push(name);
            }
            for name in
                ["attn.hook_q", "attn.hook_rot_k.grad", "attn.W_Q", "attn.b_K.grad", "attn.qkv.weight", "attn.hook_qkv"]
            {
                assert!(moved.contains(&format!("blocks.1.{name}")), "{name}: {moved:?}");
            }
            assert!(!moved.iter().any(|name| name.contains("blocks.0.")) || n == 0, "{moved:?}");
            let still = ["hook_v", "hook_z", "scores", "pattern", "resid", "mlp", "logits", "embed"];
            assert!(!moved.iter().any(|name| still.iter().any(|part| name.contains(part))), "{moved:?}");
            // files have what is shown, and give back what was in memory
            let weights: Vec<NamedTensor> = shown.params.iter().map(|p| trace.get(&p.name).unwrap()).collect();
            limpid::checkpoint::save_parameters(&path, &shown, &other).unwrap();
            let bytes = std::fs::read(&path).unwrap();
            let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
            for weight in &weights {
                let stored: Vec<u8> = weight.values.iter().flat_map(|v| v.to_le_bytes()).collect();
                assert!(file.tensor(&weight.name).unwrap().data() == stored, "{} of {config:?}", weight.name);
            }
            let mut again = Reference::new(&shown);
            let store = limpid::checkpoint::safetensors_file::open(&path).unwrap();
            limpid::checkpoint::load(&store, &shown, &mut again, "", MemorySpace::Param).unwrap();
            for param in &shown.params {
                let [a, b] = [&again, &other].map(|backend| bits(&backend.read(param.region).unwrap()));
                assert!(a == b, "{} of {config:?}", param.name);
            }
        }
    }
    std::fs::remove_file(path).unwrap();
}

#[test]
fn looking_changes_no_bit() {
    for (i, config) in configs().iter().enumerate().step_by(2) {
        let batch = batch(config, i as u64);
        let plain = |mode| {
            let model = Model::new(config, mode).unwrap();
            let mut cpu = Cpu::new(&model, 2);
            fill(&model, &mut cpu, 7);
            cpu.feed(&batch).unwrap();
            cpu.forward(model.ops()).unwrap();
            let losses = bits(&cpu.read(model.losses().unwrap()).unwrap());
            cpu.backward(model.back()).unwrap();
            let shown = |p: &Param| -> Vec<f32> {
                let (stored, wide) = (cpu.read(p.region.grad()).unwrap(), p.region.len() / p.shape()[0]);
                p.order.map_or(stored.clone(), |order| order.show(&stored, wide))
            };
            let grads = model.params.iter().map(|p| bits(&shown(p))).collect::<Vec<_>>();
            (losses, grads)
        };
        let (trained, grads) = plain(Mode::Train { batch: BATCH, context: CONTEXT });
        let model = Model::new(config, INSPECT).unwrap();
        let mut cpu = Cpu::new(&model, 2);
        for runs in 0..2 {
            let mut traced = Cpu::new(&model, 2);
            fill(&model, &mut traced, 7);
            for _ in 0..runs {
                // what a first run leaves behind must not show in a second
                traced.feed(&batch).unwrap();
                traced.forward(model.ops()).unwrap();
                traced.backward(model.back()).unwrap();
            }
            let trace = Trace::run(&model, Box::new(traced), &batch, Keep::Gradients).unwrap();
            assert_eq!(bits(&trace.get("losses").unwrap().values), trained, "{config:?}");
            for (param, grad) in model.params.iter().zip(&grads) {
                let name = format!("{}.grad", param.name);
                assert_eq!(&bits(&trace.get(&name).unwrap().values), grad, "{name} {config:?}");
            }
        }
        // one op at a time, as wrappers run it
        fill(&model, &mut cpu, 7);
        cpu.feed(&batch).unwrap();
        cpu.forward(model.ops()).unwrap();
        let whole: Vec<_> = model.tensors.iter().map(|t| bits(&cpu.read(t.region).unwrap())).collect();
        model.ops().each().for_each(|(_, op)| cpu.forward(op).unwrap());
        let single: Vec<_> = model.tensors.iter().map(|t| bits(&cpu.read(t.region).unwrap())).collect();
        assert!(whole == single, "{config:?}");
        let scored = {
            let model = Model::new(config, Mode::Score { batch: BATCH, context: CONTEXT }).unwrap();
            let mut cpu = Cpu::new(&model, 1);
            fill(&model, &mut cpu, 7);
            cpu.feed(&batch).unwrap();
            cpu.forward(model.ops()).unwrap();
            bits(&cpu.read(model.losses().unwrap()).unwrap())
        };
        assert_eq!(scored, trained, "{config:?}");
    }
}

#[test]
fn axes_are_transformer_lenses() {
    let config = Config { positions: Positions::Rotary, ..tiny() };
    let (model, reference, batch) = ready(&config, 1);
    let trace = Trace::run(&model, Box::new(reference), &batch, Keep::Gradients).unwrap();
    let is = |name: &str, axes: &str, shape: &[usize]| {
        let tensor = trace.get(name).unwrap();
        assert_eq!((tensor.axes.join(" ").as_str(), tensor.shape.as_slice()), (axes, shape), "{name}");
        assert_eq!(tensor.values.len(), shape.iter().product::<usize>(), "{name}");
        assert_eq!(tensor.name, name);
    };
    is("input", "batch pos", &[2, 5]);
    is("losses", "batch pos", &[2, 5]);
    is("blocks.1.attn.hook_qkv", "batch pos features", &[2, 5, 36]);
    is("blocks.0.ln1.hook_scale", "batch pos 1", &[2, 5, 1]);
    is("embed.weight", "d_vocab d_model", &[11, 12]);
    is("blocks.1.ln2.bias.grad", "d_model", &[12]);
    for end in ["", ".grad"] {
        let is = |name: &str, axes, shape: &[usize]| is(&format!("{name}{end}"), axes, shape);
        is("blocks.0.hook_resid_pre", "batch pos d_model", &[2, 5, 12]);
        for n in ["q", "k", "v", "z", "rot_q", "rot_k"] {
            is(&format!("blocks.1.attn.hook_{n}"), "batch pos head d_head", &[2, 5, 3, 4]);
        }
        for n in ["raw_scores", "attn_scores", "pattern"] {
            is(&format!("blocks.1.attn.hook_{n}"), "batch head query_pos key_pos", &[2, 3, 5, 5]);
        }
        is("blocks.1.mlp.hook_pre", "batch pos d_ff", &[2, 5, 17]);
        is("logits", "batch pos d_vocab", &[2, 5, 11]);
    }
    assert_eq!(trace.row("logits").unwrap().letters, "B T V");
    assert_eq!(trace.row("blocks.0.attn.hook_pattern").unwrap().letters, "B H T T");
    let tensor = trace.get("blocks.0.attn.hook_q").unwrap();
    assert_eq!(tensor.at(&[1, 2, 0, 3]), Some(tensor.values[(7 * 3) * 4 + 3]));
    assert_eq!(tensor.at(&[2, 0, 0, 0]), None);
    assert_eq!(tensor[[1, 2, 0, 3]], tensor.values[(7 * 3) * 4 + 3]);
    // a shorter batch than the model has room for
    let short = Batch::of_sequences(vec![1, 2, 3], vec![], 3);
    let whole = trace.get("input").unwrap();
    drop(trace);
    let trace = Trace::run(&model, Box::new(filled(&model, 1)), &short, Keep::All).unwrap();
    assert_eq!(trace.get("blocks.0.attn.hook_pattern").unwrap().shape, [1, 3, 3, 3]);
    assert_eq!(whole.values.len(), 10);
    attention_adds_up(&trace, &config, &|_, b, i, j| j < trace.batch().spans[b].reach(config.mask, i));
}

/// Scores, masked scores, weights and context follow from queries, keys and values.
fn attention_adds_up(trace: &Trace, config: &Config, sees: &dyn Fn(usize, usize, usize, usize) -> bool) {
    let get = |i: usize, name: &str| trace.get(&format!("blocks.{i}.attn.hook_{name}")).unwrap();
    let rotated = if config.positions == Positions::Rotary { "rot_" } else { "" };
    for block in 0..config.n_layer {
        let [q, k] = ["q", "k"].map(|n| get(block, &format!("{rotated}{n}")));
        let [v, z, raw, scores, pattern] = ["v", "z", "raw_scores", "attn_scores", "pattern"].map(|n| get(block, n));
        let [b, h, t, _] = pattern.shape[..] else { panic!("{:?}", pattern.shape) };
        for (b, h, i) in (0..b).flat_map(|b| (0..h).flat_map(move |h| (0..t).map(move |i| (b, h, i)))) {
            let row = |from: &NamedTensor| (0..t).map(|j| from.at(&[b, h, i, j]).unwrap()).collect::<Vec<_>>();
            let head = |from: &NamedTensor, j: usize| {
                let h = h * from.shape[2] / config.n_head; // keys and values may serve several query heads
                (0..from.shape[3]).map(|e| from.at(&[b, j, h, e]).unwrap()).collect::<Vec<_>>()
            };
            let (a_s, a_m, a_w) = (row(&raw), row(&scores), row(&pattern));
            let top = a_m.iter().copied().fold(f32::MIN, f32::max);
            let sum: f32 = a_m.iter().map(|s| (s - top).exp()).sum();
            for j in 0..t {
                let dot: f32 = head(&q, i).iter().zip(head(&k, j)).map(|(q, k)| q * k).sum();
                let (scaled, cap) = (dot * config.score_scale(block) as f32, config.attention_softcap as f32);
                let bounded = if cap > 0.0 { cap * (scaled / cap).tanh() } else { scaled };
                // the slopes of three heads (Press et al. 2022)
                let slope = if config.positions == Positions::Alibi { [0.0625, 0.003_906_25, 0.25][h] } else { 0.0 };
                close("raw score", a_s[j], bounded - slope * i.abs_diff(j) as f32);
                if sees(block, b, i, j) {
                    assert_eq!(a_m[j].to_bits(), a_s[j].to_bits());
                    close("weight", a_w[j], (a_m[j] - top).exp() / sum);
                } else {
                    assert_eq!((a_m[j], a_w[j]), (f32::NEG_INFINITY, 0.0));
                }
            }
            close("sum of a row", a_w.iter().sum(), 1.0);
            for (e, z) in head(&z, i).iter().enumerate() {
                close("context", *z, (0..t).map(|j| a_w[j] * head(&v, j)[e]).sum());
            }
        }
    }
}

#[test]
fn scores_weights_and_context_belong_together() {
    let variants = [
        tiny(),
        post(tiny()),
        Config { positions: Positions::Rotary, attention_scale: false, ..tiny() },
        Config { mask: Mask::Bidirectional, ..post(tiny()) },
        Config { mask: Mask::None, ..tiny() },
        Config { window: 2, ..tiny() },
        Config { window: 3, window_layers: "01".parse().unwrap(), attention_softcap: 0.8, ..tiny() },
        Config { positions: Positions::Alibi, attention_softcap: 1.5, ..tiny() },
        Config { positions: Positions::Alibi, mask: Mask::Bidirectional, ..tiny() },
    ];
    for (i, config) in variants.iter().enumerate() {
        let (model, reference, batch) = ready(config, i as u64);
        let window = |block: usize| match (config.window, block) {
            (0, _) | (3, 0) => usize::MAX, // 3 in every second block
            (window, _) => window,
        };
        let sees = |block: usize, b: usize, i: usize, j: usize| {
            j < batch.spans[b].reach(config.mask, i) && i.saturating_sub(j) < window(block)
        };
        attention_adds_up(&Trace::run(&model, Box::new(reference), &batch, Keep::All).unwrap(), config, &sees);
        let mut cpu = Cpu::new(&model, 2);
        fill(&model, &mut cpu, 3);
        let trace = Trace::run(&model, Box::new(cpu), &batch, Keep::All).unwrap();
        let labels = trace.labels(&|id| id.to_string());
        let rows = trace.rows().unwrap();
        for (block, row) in rows.iter().filter(|row| row.name.ends_with("hook_attn_scores")).enumerate() {
            let all = || (0..BATCH).flat_map(|b| (0..25).map(move |at| (b, at / 5, at % 5)));
            let seen = all().filter(|(b, i, j)| sees(block, *b, *i, *j)).count();
            for name in [&row.name, &format!("{}.grad", row.name), &row.name.replace("attn_scores", "pattern")] {
                let hides = |(b, i, j): (usize, usize, usize)| labels.hides(name, b, i, j);
                assert!(all().all(|(b, i, j)| hides((b, i, j)) != sees(block, b, i, j)), "{name} {config:?}");
            }
            assert_eq!((row.masked, row.nan, row.infinite), (3 * (2 * 25 - seen), 0, 0), "{config:?}");
            assert!(row.min.is_finite() && row.deviation > 0.0);
        }
    }
}

/// R299, R311: each token with what it predicts; where nothing is predicted a dash.
#[test]
fn the_input_of_each_sequence_with_its_targets() {
    let (model, reference, batch) = ready(&tiny(), 5);
    let trace = Trace::run(&model, Box::new(reference), &batch, Keep::All).unwrap();
    let text = |id: u32| format!("<{id}>");
    let grids = inputs(&trace, Some(&text), Some(("other", &|id| 100 + id)));
    assert_eq!(grids.len(), BATCH);
    for (b, grid) in grids.iter().enumerate() {
        assert_eq!(grid.title, format!("sequence {b}:"));
        assert_eq!(grid.headers, ["pos", "token", "id", "other", "target", "id", "other"]);
        for (t, row) in grid.rows.iter().enumerate() {
            let (id, target) = (batch.tokens[CONTEXT * b + t], batch.targets[CONTEXT * b + t]);
            let cells = |id: u32| [format!("<{id}>"), id.to_string(), (100 + id).to_string()];
            let predicts = if target == IGNORE { ["-"; 3].map(String::from) } else { cells(target) };
            assert_eq!(row[..], [&[t.to_string()][..], &cells(id), &predicts].concat());
        }
    }
    assert_eq!(grids[0].rows[3][4], "-");
    let short = TableOptions { max_rows: 3, edge_rows: 1, ..TableOptions::default() };
    let firsts: Vec<String> = grids[0].clone().ends(&short).rows.iter().map(|row| row[0].clone()).collect();
    assert_eq!(firsts, ["0", "...", "4"]);
    let plain = Batch { targets: vec![], ..batch };
    let trace = Trace::run(&model, Box::new(filled(&model, 5)), &plain, Keep::All).unwrap();
    assert_eq!(inputs(&trace, None, None)[1].headers, ["pos", "id"]);
}

/// A table with the model's own mask gives what the fused attention gives; the full table what a model without a mask
/// gives.
#[test]
fn a_mask_table_stands_in_for_the_models_mask() {
    let table = |sees: &dyn Fn(usize, usize) -> bool| -> MaskTable {
        let line = |i| (0..CONTEXT).map(|j| if sees(i, j) { 'x' } else { '.' }).collect::<String>();
        (0..CONTEXT).map(line).collect::<Vec<_>>().join("\n").parse().unwrap()
    };
    let unscaled = Dropout { scale: DropoutScale::Unscaled, ..Dropout::everywhere(0.25) };
    let variants = [
        tiny(),
        post(Config { dropout: unscaled, ..tiny() }),
        Config { positions: Positions::Rotary, n_kv_head: Some(1), ..tiny() },
        Config { mask: Mask::Bidirectional, ..post(tiny()) },
        Config { positions: Positions::Alibi, attention_softcap: 1.5, window: 2, ..tiny() },
    ];
    for (config, own) in variants.iter().flat_map(|config| [(config, Mask::Causal), (config, Mask::None)]) {
        let (model, _, batch) = ready(config, 5);
        let (fused, mut cpu) =
            (Model::new(&Config { mask: own, window: 0, ..config.clone() }, INSPECT).unwrap(), Cpu::new(&model, 2));
        let mut reference = Reference::new(&fused);
        fill(&fused, &mut reference, 5);
        fill(&model, &mut cpu, 5);
        let wanted = Trace::run(&fused, Box::new(reference), &batch, Keep::All).unwrap();
        let mask = table(&|i, j| own == Mask::None || j <= i);
        let found = Trace::run_masked(&model, Box::new(cpu), &batch, mask).unwrap();
        for name in wanted.names() {
            let (found, wanted) = (found.get(&name).unwrap(), wanted.get(&name).unwrap());
            for (found, wanted) in found.values.iter().zip(&wanted.values) {
                let near = (found - wanted).abs() <= 2e-4 * wanted.abs().max(1.0);
                assert!(near || found == wanted, "{name}: {found}, expected {wanted} {config:?}");
            }
        }
    }
    // any other: who sees whom is what the table says, and what follows comes from it
    for config in &variants {
        let (model, _, batch) = ready(config, 5);
        let masked = |mask| {
            let mut cpu = Cpu::new(&model, 2);
            fill(&model, &mut cpu, 5);
            Trace::run_masked(&model, Box::new(cpu), &batch, mask)
        };
        let sees = |i: usize, j: usize| i == j || (i + 2 * j) % 3 == 1;
        let trace = masked(table(&sees)).unwrap();
        if config.dropout == Dropout::NONE {
            attention_adds_up(&trace, config, &|_, _, i, j| sees(i, j));
        }
        let labels = trace.labels(&|id| id.to_string());
        let pattern = trace.get("blocks.0.attn.hook_pattern").unwrap();
        let hidden = matrices(&pattern, &labels).next().unwrap().hidden;
        assert_eq!(hidden, (0..25).map(|at| !sees(at / 5, at % 5)).collect::<Vec<_>>());
        assert!(matches!(trace.get("logits.grad"), Err(TraceError::NoBackward { .. })));
        // each sees only the first: its context is the first's value, whatever its scores
        let trace = masked(table(&|_, j| j == 0)).unwrap();
        let z = trace.get("blocks.1.attn.hook_z").unwrap();
        for rows in z.values.chunks(CONTEXT * 12) {
            assert!(rows.chunks(12).all(|row| bits(row) == bits(&rows[..12])));
        }
        let short: MaskTable = "1".parse().unwrap();
        let refused = masked(short).err().unwrap();
        assert!(refused.to_string().contains("for 1 tokens and there are 5"), "{refused}");
    }
}

#[test]
fn the_stream_is_a_sum_before_a_norm_and_not_after_one() {
    for (config, holds) in [(tiny(), true), (post(tiny()), false)] {
        let (model, reference, batch) = ready(&config, 5);
        let trace = Trace::run(&model, Box::new(reference), &batch, Keep::Gradients).unwrap();
        let get = |name: &str| trace.get(name).unwrap().values;
        let [pre, attn, mid, mlp, out] =
            ["resid_pre", "attn_out", "resid_mid", "mlp_out", "resid_post"].map(|n| get(&format!("blocks.1.hook_{n}")));
        let sums = |a: &[f32], b: &[f32], y: &[f32]| {
            y.iter().zip(a.iter().zip(b)).all(|(y, (a, b))| (y - (a + b)).abs() < 1e-5)
        };
        assert_eq!((sums(&pre, &attn, &mid), sums(&mid, &mlp, &out)), (holds, holds));
        if !holds {
            assert_eq!(mid, get("blocks.1.ln1.hook_out"));
            assert!(sums(&pre, &attn, &get("blocks.1.hook_attn_sum")));
        }
        assert_eq!(get("blocks.0.hook_resid_post"), pre);
        let rows = trace.rows().unwrap();
        let row = rows.iter().find(|r| r.name == "blocks.1.hook_resid_pre").unwrap();
        assert_eq!(
            row.same_as.as_deref(),
            Some(if holds { "blocks.0.hook_resid_post" } else { "blocks.0.ln2.hook_out" })
        );
        assert_eq!(rows.first().map(|r| r.name.as_str()), Some("input"));
    }
}

fn watched(op: &Op) -> Vec<Region> {
    let mut op = *op;
    op.operands().filter(|(access, _)| *access == Access::Watched).map(|(_, region)| *region).collect()
}

/// Central differences of the weighted loss in some elements of every tensor that an op reads.
fn check_gradients(config: &Config, seed: u64, dropout: bool) -> usize {
    let (model, mut reference, mut batch) = ready(config, seed);
    batch.seed = dropout.then_some(seed);
    reference.feed(&batch).unwrap();
    reference.forward(model.ops()).unwrap();
    reference.backward(model.back()).unwrap();
    let mut checked = 0;
    for tensor in &model.tensors {
        let region = tensor.region;
        if model.ops().iter().any(|op| watched(op).contains(&region)) || tensor.axes == Axes::Position {
            continue; // nothing reads these: see the identities
        }
        let maker = model.ops().iter().position(|op| op.output() == region).unwrap();
        let grads = reference.exact(tensor.grad.unwrap()).to_vec();
        let cells = region.rows * tensor.cols.len();
        for cell in (seed as usize % 3..cells).step_by(1 + cells / 4) {
            let at = cell / tensor.cols.len() * region.cols + tensor.cols.start + cell % tensor.cols.len();
            let (h, keep) = (1e-5, reference.exact(region)[at]);
            let mut loss = |value: f64| {
                reference.exact_mut(region)[at] = value;
                reference.forward(model.program.forward(maker + 1..)).unwrap();
                f64::from(batch.weight) * reference.exact(model.losses().unwrap()).iter().sum::<f64>()
            };
            let slope = (loss(keep + h) - loss(keep - h)) / (2.0 * h);
            loss(keep);
            let (off, size) = ((slope - grads[at]).abs(), slope.abs().max(grads[at].abs()));
            assert!(
                off < 1e-9 + 1e-5 * size,
                "{}[{at}]: difference {slope}, gradient {}\n{config:?}",
                tensor.name,
                grads[at]
            );
            checked += 1;
        }
    }
    checked
}

#[test]
fn gradients_of_tensors_are_slopes_of_the_loss() {
    let smooth = |config: Config| Config { activation: Activation::GeluErf, ..config };
    let rotary = |config: Config| Config { positions: Positions::Rotary, ..config };
    for (i, config) in [tiny(), post(tiny()), rotary(tiny()), rotary(post(tiny()))].into_iter().enumerate() {
        assert!(check_gradients(&smooth(config), i as u64, false) > 100);
    }
    for (i, config) in configs().iter().enumerate().step_by(4) {
        check_gradients(config, i as u64, true);
    }
}

/// Gradients of what nothing reads, from the definition of what it stands for.
#[test]
fn gradients_of_watched_tensors_follow_from_their_neighbours() {
    let variants = [
        tiny(),
        Config { positions: Positions::Rotary, ..post(tiny()) },
        Config { mask: Mask::Bidirectional, head_bias: true, ..tiny() },
        Config { d_v: Some(5), ..tiny() },
    ];
    for (seed, config) in variants.iter().enumerate() {
        let (model, reference, batch) = ready(config, seed as u64);
        let trace = Trace::run(&model, Box::new(reference), &batch, Keep::Gradients).unwrap();
        let both = |name: &str| [trace.get(name).unwrap(), trace.get(&format!("{name}.grad")).unwrap()];
        for i in 0..config.n_layer {
            let n = |part: &str| both(&format!("blocks.{i}.attn.hook_{part}"));
            let ([v, _], [_, dz], [p, dp], [_, da], [_, ds]) =
                (n("v"), n("z"), n("pattern"), n("attn_scores"), n("raw_scores"));
            assert_eq!(bits(&da.values), bits(&ds.values));
            let [b, h, t, _] = p.shape[..] else { panic!() };
            for (b, h, i) in (0..b).flat_map(|b| (0..h).flat_map(move |h| (0..t).map(move |i| (b, h, i)))) {
                let at = |from: &NamedTensor, j| from.at(&[b, h, i, j]).unwrap();
                let dot: f32 = (0..t).map(|j| at(&p, j) * at(&dp, j)).sum();
                for j in 0..t {
                    let through: f32 = (0..config.d_value())
                        .map(|e| dz.at(&[b, i, h, e]).unwrap() * v.at(&[b, j, h, e]).unwrap())
                        .sum();
                    // what the mask hides too: what reads weights reads all of them
                    close("dP = dz v'", at(&dp, j), through);
                    close("dS = P (dP - rowsum(P dP))", at(&ds, j), at(&p, j) * (at(&dp, j) - dot));
                }
            }
            for ln in ["ln1", "ln2"] {
                let n = |part: &str| both(&format!("blocks.{i}.{ln}.{part}"));
                let ([_, dy], [norm, dn], [s, ds]) = (n("hook_out"), n("hook_normalized"), n("hook_scale"));
                let gain = trace.get(&format!("blocks.{i}.{ln}.weight")).unwrap().values;
                for (row, (s, ds)) in s.values.iter().zip(&ds.values).enumerate() {
                    let cells = row * 12..row * 12 + 12;
                    cells.clone().for_each(|c| close("dn = dy gain", dn.values[c], dy.values[c] * gain[c % 12]));
                    let sum: f32 = cells.map(|c| dn.values[c] * norm.values[c]).sum();
                    close("ds = -sum(dn n) / s", *ds, -sum / s);
                }
            }
        }
        let ([_, dz], [p, dp], [_, dl]) = (both("logits"), both("probs"), both("losses"));
        for n in 0..10 {
            let counted = batch.targets[n] != IGNORE;
            let row = |from: &NamedTensor| from.values[n * 11..][..11].to_vec();
            let (dz, p, dp) = (row(&dz), row(&p), row(&dp));
            let dot: f32 = p.iter().zip(&dp).map(|(p, d)| p * d).sum();
            assert_eq!(dl.values[n], if counted { batch.weight } else { 0.0 });
            for j in 0..11 {
                let hit = if batch.targets[n] as usize == j { 1.0 } else { 0.0 };
                close("dZ = weight (P - target)", dz[j], if counted { batch.weight * (p[j] - hit) } else { 0.0 });
                close("dZ = P (dP - sum(P dP))", dz[j], p[j] * (dp[j] - dot));
            }
        }
        let grad = |name: &str| trace.get(&format!("{name}.grad")).unwrap().values;
        assert_eq!(grad("hook_embed"), grad("hook_embed_sum"));
    }
}

#[test]
fn every_name_is_explained() {
    let mut all = configs();
    all.extend(PRESETS.iter().map(|name| Config { n_layer: 2, ..Config::preset(name).unwrap() }));
    for config in &all {
        let model = Model::new(config, Mode::Inspect { batch: 1, context: 2 }).unwrap();
        let decode = Model::new(config, Mode::Decode { rows: 2, outputs: 2, blocks: 2 }).unwrap();
        for tensor in model.tensors.iter().chain(&decode.tensors) {
            let name = &tensor.name;
            let (entry, _) = names::lookup(name).unwrap_or_else(|| panic!("{name} is not in the table"));
            assert!(!entry.is_param() && !names::describe(name).unwrap().is_empty());
            let symbol = names::symbol(name, config).unwrap();
            assert!(!symbol.is_empty() && !symbol.contains('{'), "{name}: {symbol}");
            assert_eq!(names::symbol(&format!("{name}.grad"), config).unwrap(), format!("∂𝓛/∂{symbol}"));
        }
        for tensor in &model.tensors {
            let formula =
                names::formula(&model, &tensor.name).unwrap_or_else(|| panic!("no formula for {}", tensor.name));
            assert!(
                formula.contains(" = ") && !formula.contains(['@', '{']) && !formula.contains("hook_"),
                "{formula}"
            );
            let (left, right) = formula.split_once(" = ").unwrap();
            assert!(left != right, "{formula} of {}", tensor.name);
        }
        for param in &model.params {
            let (entry, _) = names::lookup(&param.name).unwrap_or_else(|| panic!("{} is not in the table", param.name));
            assert!(entry.is_param() && names::symbol(&param.name, config).is_some());
            assert_eq!(entry.axes.split(' ').count(), param.shape().len(), "{}", param.name);
        }
        // what a name is and where it lies is one thing: one symbol per place
        for (i, a) in model.tensors.iter().enumerate() {
            for b in &model.tensors[..i] {
                let same = (a.region, &a.cols) == (b.region, &b.cols);
                let symbols = [a, b].map(|t| names::symbol(&t.name, config).unwrap());
                assert_eq!(symbols[0] == symbols[1], same, "{} and {}: {symbols:?}", a.name, b.name);
            }
        }
    }
    assert_eq!(
        names::formula(&Model::new(&all[0], Mode::Decode { rows: 1, outputs: 1, blocks: 1 }).unwrap(), "logits"),
        None
    );
    assert_eq!((names::describe("hook_nothing"), names::symbol("hook_nothing", &all[0])), (None, None));
}

#[test]
fn formulas_say_what_is_done() {
    let formula = |config: &Config, name: &str| names::formula(&Model::new(config, INSPECT).unwrap(), name).unwrap();
    let pre = Config { d_model: 48, ..tiny() };
    for (name, want) in [
        ("hook_embed", "X = X^ohe W_e"),
        ("hook_pos_embed", "PE = W_p[t]"),
        ("blocks.0.hook_resid_pre", "X̃ = X + PE"),
        ("blocks.0.ln1.hook_scale", "s₁ = √(var(X̃) + ε)"),
        ("blocks.0.ln1.hook_normalized", "N₁ = (X̃ − mean(X̃)) / s₁"),
        ("blocks.0.ln1.hook_out", "Z₁ = LN(X̃) γ + β"),
        ("blocks.0.attn.hook_qkv", "[Q K V] = Z₁ [W^Q W^K W^V] + [b^Q b^K b^V]"),
        ("blocks.0.attn.hook_k", "K = Z₁ W^K + b^K"),
        ("blocks.0.attn.hook_raw_scores", "A_s = Q Kᵀ / √16"),
        ("blocks.0.attn.hook_attn_scores", "A_s^M = A_s + M"),
        ("blocks.0.attn.hook_pattern", "A_w = softmax(A_s^M)"),
        ("blocks.0.attn.hook_z", "C_concat = concat(A_w V)"),
        ("blocks.0.hook_attn_out", "Z₂ = C_concat W^O + b^O"),
        ("blocks.0.hook_resid_mid", "Z₃ = X̃ + Z₂"),
        ("blocks.0.ln2.hook_out", "Z₄ = LN(Z₃) γ′ + β′"),
        ("blocks.0.mlp.hook_pre", "Z₁^FF = Z₄ W₁^FF + b₁^FF"),
        ("blocks.0.mlp.hook_post", "σ(Z₁^FF) = gelu-tanh(Z₁^FF)"),
        ("blocks.0.hook_mlp_out", "Z₅ = σ(Z₁^FF) W₂^FF + b₂^FF"),
        ("blocks.0.hook_resid_post", "Z_out = Z₃ + Z₅"),
        ("blocks.1.hook_resid_mid", "Z₃ = Z_out⁽¹⁾ + Z₂"),
        ("ln_final.hook_out", "Z_pre-head = LN(Z_out⁽²⁾) γ_f + β_f"),
        ("logits", "Z = Z_pre-head W_eᵀ"),
        ("probs", "P = softmax(Z)"),
        ("losses", "𝓛_t = −log P[target]"),
    ] {
        assert_eq!(formula(&pre, name), want);
    }
    let other = Config {
        positions: Positions::Rotary,
        attention_bias: false,
        attention_scale: false,
        mask: Mask::None,
        norm: limpid::config::NormKind::Rms,
        norm_offset: false,
        tied_head: false,
        head_bias: true,
        dropout: Dropout::everywhere(0.1),
        n_segment: 2,
        ..post(tiny())
    };
    for (name, want) in [
        ("hook_embed_sum", "X_sum = X + W_seg[s]"),
        ("blocks.0.hook_resid_pre", "X̃ = dropout(X_sum, 0.1)"),
        ("blocks.0.attn.hook_rot_k", "RK = R(t) K"),
        ("blocks.0.attn.hook_v", "V = X̃ W^V"),
        ("blocks.0.attn.hook_raw_scores", "A_s = RQ RKᵀ"),
        ("blocks.0.attn.hook_attn_scores", "A_s^M = A_s"),
        ("blocks.0.attn.hook_z", "C_concat = concat(dropout(A_w, 0.1) V)"),
        ("blocks.0.hook_attn_sum", "S₁ = X̃ + drop(Z₂)"),
        ("blocks.0.hook_resid_mid", "X′₁ = RMS(S₁) γ"),
        ("blocks.1.hook_attn_sum", "S₁ = X₁ + drop(Z₂)"),
        ("blocks.1.hook_resid_pre", "X₁ = RMS(S₂⁽¹⁾) γ′⁽¹⁾"),
        ("logits", "Z = X₂ W_s + b_s"),
    ] {
        assert_eq!(formula(&other, name), want);
    }
}

/// Means, log-sum-exps, unscaled scores and each head's matrices, held against what reads them and what they are read
/// out of.
#[test]
fn derived_tensors_follow_from_their_neighbours() {
    let grouped = Config { n_head: 4, n_kv_head: Some(2), d_model: 12, ..post(tiny()) };
    let variants = [
        post(tiny()),
        Config { attention_scale: false, mask: Mask::Bidirectional, ..grouped },
        Config { attention_bias: false, norm: limpid::config::NormKind::Rms, norm_offset: false, ..tiny() },
    ];
    for (seed, config) in variants.iter().enumerate() {
        let (model, reference, batch) = ready(config, seed as u64);
        let trace = Trace::run(&model, Box::new(reference), &batch, Keep::Gradients).unwrap();
        let (c, d) = (config.d_model, config.d_head());
        for (name, _) in names::derived(&model) {
            let (tensor, gradient) = (trace.get(&name).unwrap(), trace.get(&format!("{name}.grad")).unwrap());
            assert_eq!((&tensor.shape, &tensor.axes), (&gradient.shape, &gradient.axes), "{name}");
            assert_eq!(tensor.values.len(), tensor.shape.iter().product::<usize>(), "{name}");
            let (entry, _) = names::lookup(&name).unwrap_or_else(|| panic!("{name} is not in the table"));
            assert_eq!(entry.axes, tensor.axes.join(" "), "{name}");
            assert!(!trace.names().any(|own| own == name) && names::symbol(&name, config).is_some());
            assert_eq!(trace.row(&name).unwrap().formula.is_empty(), entry.is_param(), "{name}");
        }
        let both = |name: &str| [trace.get(name).unwrap(), trace.get(&format!("{name}.grad")).unwrap()];
        for i in 0..config.n_layer {
            if config.norm == limpid::config::NormKind::Layer {
                // nothing but the norm reads these sums, so their gradient is the norm's, part by part
                for (norm, sum) in [("ln1", "hook_attn_sum"), ("ln2", "hook_mlp_sum")] {
                    let n = |part: &str| both(&format!("blocks.{i}.{norm}.hook_{part}"));
                    let ([x, dx], [mean, dmean]) = (both(&format!("blocks.{i}.{sum}")), n("mean"));
                    let ([normal, dnormal], [scale, dscale]) = (n("normalized"), n("scale"));
                    for (at, x) in x.values.iter().enumerate() {
                        let row = at / c;
                        close("n = (x - mean) / s", normal.values[at], (x - mean.values[row]) / scale.values[row]);
                        let through = dnormal.values[at] / scale.values[row];
                        let rest = (dmean.values[row] + dscale.values[row] * normal.values[at]) / c as f32;
                        close("dx = dn / s + (dmean + ds n) / C", dx.values[at], through + rest);
                    }
                }
            } else {
                let none = trace.get("blocks.0.ln1.hook_mean").unwrap_err().to_string();
                assert!(none.contains("this model has none (the mean that the first norm subtracts)"), "{none}");
            }
            let n = |part: &str| both(&format!("blocks.{i}.attn.{part}"));
            let ([scores, dscores], [p, dp], [lse, dlse]) = (n("hook_attn_scores"), n("hook_pattern"), n("hook_lse"));
            let ([unscaled, dunscaled], [q, dq], [k, _]) = (n("hook_unscaled_scores"), n("hook_q"), n("hook_k"));
            let [b, h, t, _] = p.shape[..] else { panic!() };
            let shared = |h: usize| h * k.shape[2] / config.n_head;
            for (b, h, i) in (0..b).flat_map(|b| (0..h).flat_map(move |h| (0..t).map(move |i| (b, h, i)))) {
                let (lse, dlse) = (lse.at(&[b, i, h]).unwrap(), dlse.at(&[b, i, h]).unwrap());
                for j in 0..t {
                    let at = |of: &NamedTensor| of.at(&[b, h, i, j]).unwrap();
                    close("p = exp(score - lse)", at(&p), (at(&scores) - lse).exp());
                    close("dscore = p (dp + dlse)", at(&dscores), at(&p) * (at(&dp) + dlse));
                    let key = |e: usize| k.at(&[b, j, shared(h), e]).unwrap();
                    close("q k", at(&unscaled), (0..d).map(|e| q.at(&[b, i, h, e]).unwrap() * key(e)).sum());
                }
                for e in 0..d {
                    let slope = |j: usize| dunscaled.at(&[b, h, i, j]).unwrap() * k.at(&[b, j, shared(h), e]).unwrap();
                    close("dq", dq.at(&[b, i, h, e]).unwrap(), (0..t).map(slope).sum());
                }
            }
            // each head's own matrix makes its queries, keys and values of what the block gives to attention
            let input = match config.norm_place {
                NormPlace::Pre | NormPlace::Both => format!("blocks.{i}.ln1.hook_out"),
                NormPlace::Post | NormPlace::PostAttention | NormPlace::Branch => {
                    format!("blocks.{i}.hook_resid_pre")
                }
            };
            let (input, whole) = (trace.get(&input).unwrap(), n("qkv.weight"));
            for (letter, part) in ["Q", "K", "V"].into_iter().zip(config.heads().parts()) {
                let (weight, made) = (n(&format!("W_{letter}")), n(&format!("hook_{}", letter.to_lowercase())));
                assert_eq!(weight[0].shape, [part.len() / d, c, d]);
                for (h, e) in (0..part.len() / d).flat_map(|h| (0..d).map(move |e| (h, e))) {
                    for x in 0..c {
                        for (own, whole) in weight.iter().zip(&whole) {
                            assert_eq!(own.at(&[h, x, e]), whole.at(&[part.start + h * d + e, x]));
                        }
                    }
                    let bias = if config.attention_bias {
                        let [bias, dbias] = n(&format!("b_{letter}"));
                        let all = trace.get(&format!("blocks.{i}.attn.qkv.bias.grad")).unwrap();
                        assert_eq!(dbias.at(&[h, e]), all.at(&[part.start + h * d + e]));
                        bias.at(&[h, e]).unwrap()
                    } else {
                        0.0
                    };
                    for (b, t) in (0..b).flat_map(|b| (0..t).map(move |t| (b, t))) {
                        let term = |x: usize| input.at(&[b, t, x]).unwrap() * weight[0].at(&[h, x, e]).unwrap();
                        close("x W + b", made[0].at(&[b, t, h, e]).unwrap(), bias + (0..c).map(term).sum::<f32>());
                    }
                }
            }
        }
    }
    let (model, reference, batch) = ready(&tiny(), 1);
    let trace = Trace::run(&model, Box::new(reference), &batch, Keep::All).unwrap();
    assert!(matches!(trace.get("blocks.0.attn.W_Q.grad"), Err(TraceError::NoBackward { .. })));
    assert!(trace.get("W_Q").unwrap_err().to_string().ends_with("did you mean `blocks.0.attn.W_Q`?"));
    for (name, formula) in [
        ("blocks.1.ln2.hook_mean", "μ₂ = mean(Z₃)"),
        ("ln_final.hook_mean", "μ_f = mean(Z_out⁽²⁾)"),
        ("blocks.1.attn.hook_unscaled_scores", "A_u = Q Kᵀ"),
        ("blocks.1.attn.hook_lse", "lse = log Σ exp(A_s^M)"),
    ] {
        assert_eq!(names::formula(&model, name).unwrap(), formula);
    }
    assert_eq!(names::symbol("blocks.1.attn.W_K", &tiny()).unwrap(), "W^K⁽²⁾");
}

#[test]
fn tensors_become_matrices_with_words() {
    let config = Config { mask: Mask::Bidirectional, ..tiny() };
    let (model, reference, batch) = ready(&config, 1);
    let trace = Trace::run(&model, Box::new(reference), &batch, Keep::Gradients).unwrap();
    let word = |id: u32| format!("w{id}");
    let labels = trace.labels(&word);
    let words = |sequence: usize| batch.tokens[5 * sequence..][..5].iter().map(|id| word(*id)).collect::<Vec<_>>();
    let of = |name: &str| matrices(&trace.get(name).unwrap(), &labels).collect::<Vec<_>>();

    let pattern = of("blocks.1.attn.hook_pattern");
    assert_eq!(pattern.len(), 2 * 3);
    let last = &pattern[5];
    assert_eq!((last.title().as_str(), last.size), ("blocks.1.attn.hook_pattern [batch 1, head 2]", [5, 5]));
    assert_eq!((&last.rows, &last.columns, last.scale), (&words(1), &words(1), HeatScale::Unit));
    // the second sequence has three tokens, the first no padding
    assert_eq!(last.hidden, [false, false, false, true, true].repeat(5));
    assert!(pattern[0].hidden.is_empty());
    // scores before the mask are there whole
    assert!(of("blocks.1.attn.hook_raw_scores")[5].hidden.is_empty());
    assert_eq!(of("blocks.1.attn.hook_attn_scores")[5].hidden, last.hidden);
    let whole = trace.get("blocks.1.attn.hook_pattern").unwrap();
    assert_eq!(Some(last.values[5 + 2]), whole.at(&[1, 2, 1, 2]));
    assert_eq!(of("blocks.1.attn.hook_pattern.grad")[0].scale, HeatScale::Signed);

    let q = trace.get("blocks.0.attn.hook_q").unwrap();
    let heads = q.clone().heads_first();
    assert_eq!((heads.axes.join(" ").as_str(), &heads.shape[..]), ("batch head pos d_head", &[2, 3, 5, 4][..]));
    assert_eq!(heads.at(&[1, 2, 4, 3]), q.at(&[1, 4, 2, 3]));
    let row = trace.row("blocks.0.attn.hook_q").unwrap().heads_first();
    assert_eq!((row.letters.as_str(), &row.shape[..]), ("B H T D", &[2, 3, 5, 4][..]));
    let third = &of("blocks.0.attn.hook_q")[2];
    assert_eq!((third.axes, &third.rows, third.columns.len()), (["pos", "d_head"], &words(0), 0));
    assert_eq!(Some(third.values[4 * 4 + 3]), q.at(&[0, 4, 2, 3]));

    let vocabulary: Vec<String> = (0..11).map(word).collect();
    assert_eq!((&of("probs")[1].rows, &of("probs")[1].columns), (&words(1), &vocabulary));
    assert_eq!(of("embed.weight")[0].rows, vocabulary);
    // rows of the position table are no tokens, and columns of several sequences are no one's
    assert!(of("pos_embed.weight")[0].rows.is_empty() && of("losses")[0].columns.is_empty());

    let json = serde_json::to_value(View::Matrix(last.clone())).unwrap();
    assert!(json["kind"] == "matrix" && json["scale"] == "unit" && json["index"][1][0] == "head", "{json}");
    let sentence = View::Sentence { text: "four of four".into(), holds: Some(true) };
    assert_eq!(serde_json::to_value(&sentence).unwrap()["kind"], "sentence");
    assert_eq!(
        sentence.text(None, &TableOptions { width: 12, ..TableOptions::default() }),
        "holds  four\n       of\n       four\n"
    );

    let text = pattern[1].table(&TableOptions { decimals: 2, ..TableOptions::default() });
    let line = text.lines().nth(2).unwrap();
    assert!(line.starts_with(&format!("0 {}", words(0)[0])) && text.contains(&format!("  {}", words(0)[4])), "{text}");
    assert!(!is_map(&trace.get("blocks.0.attn.hook_z").unwrap()) && is_map(&whole));
}

#[test]
#[ignore = "gate"]
fn every_notation_speaks_of_every_tensor() {
    for config in &configs() {
        let model = Model::new(config, INSPECT).unwrap();
        let reference = Reference::new(&model);
        let trace = Trace::run(&model, Box::new(reference), &batch(config, 1), Keep::All).unwrap();
        let params = model.params.iter().map(|p| p.name.clone());
        let rows = trace.names().chain(params).map(|name| trace.row(&name).unwrap());
        for row in rows.collect::<Vec<_>>() {
            assert!(equal(&row, &row.clone().in_notation(&model, Notation::Limpid)), "{row:?}");
            for notation in Notation::ALL {
                let said = row.clone().in_notation(&model, *notation);
                let what = format!("{notation}: {said:?}");
                assert!(!said.symbol.contains(['{', '}']) && !said.formula.contains(['{', '}', '@']), "{what}");
                let letters: Vec<&str> = said.letters.split(' ').collect();
                assert!(letters.len() == said.shape.len() && !letters.contains(&"·"), "{what}");
                let [mut was, mut is] = [row.shape.clone(), said.shape.clone()];
                was.sort();
                is.sort();
                assert_eq!(was, is, "{what}");
                let derived = || names::derivation(&model, &row.name).is_some();
                let tensor = row.name == "input" || model.tensor(&row.name).is_some() || derived();
                assert_eq!(
                    said.formula.split_once(" = ").is_some_and(|(_, right)| !right.is_empty()),
                    tensor,
                    "{what}"
                );
            }
        }
    }
    assert_eq!(names::called("hook_nothing", &tiny(), Notation::S3), None);
}

/// All but the numbers, which may be none.
fn equal(a: &SummaryRow, b: &SummaryRow) -> bool {
    (&a.name, &a.symbol, &a.formula, &a.letters, &a.shape) == (&b.name, &b.symbol, &b.formula, &b.letters, &b.shape)
}

/// R335, and sections 5.1 and 5.2 of the contract: the documents' own words.
#[test]
fn notations_say_what_the_documents_say() {
    use Notation::{Limpid, Llmc, S0, S1, S2, S3, TransformerLens};
    let pre = Config { d_model: 48, ..tiny() };
    let after = post(tiny());
    for (config, notation, name, want) in [
        (&pre, S0, "blocks.1.attn.hook_pattern", Some("A_w⁽²⁾")),
        (&pre, S1, "blocks.1.attn.hook_pattern", Some("softmax_output")),
        (&pre, S2, "blocks.1.ln1.weight", Some("γ₂")),
        (&pre, S2, "blocks.1.hook_resid_pre", Some("X₁")),
        (&pre, S2, "blocks.1.hook_resid_mid", Some("X′₂")),
        (&pre, S2, "logits.grad", Some("∂𝓛/∂(LayerNorm(X_L) W_eᵀ)")),
        (&after, S2, "logits", Some("X_L W_eᵀ")),
        (&pre, S2, "blocks.1.ln1.hook_out", Some("LayerNorm(X₁)")),
        (&pre, S2, "blocks.1.mlp.hook_post", Some("GELU(X W₁ + b₁)")),
        (&pre, S3, "hook_embed", Some("tok_emb")),
        (&pre, S3, "blocks.1.hook_resid_pre", Some("x")),
        (&pre, S3, "blocks.1.attn.hook_unscaled_scores", Some("wei")),
        (&pre, S3, "blocks.1.attn.hook_pattern", Some("softmax(wei)")),
        (&pre, S3, "logits.grad", Some("∂Loss/∂logits")),
        (&pre, S3, "ln_final.hook_out", None),
        (&pre, Llmc, "blocks.0.hook_resid_pre", Some("encoded")),
        (&pre, Llmc, "blocks.1.hook_resid_pre", Some("residual3[0]")),
        (&pre, Llmc, "blocks.1.ln1.weight", Some("ln1w[1]")),
        (&pre, Llmc, "blocks.1.ln1.weight.grad", Some("grads.ln1w[1]")),
        (&pre, Llmc, "blocks.1.hook_mlp_out.grad", Some("grads_acts.fcproj[1]")),
        (&pre, Llmc, "blocks.1.ln1.hook_scale", Some("1/ln1_rstd[1]")),
        (&pre, Llmc, "blocks.1.ln1.hook_scale.grad", None),
        (&pre, TransformerLens, "blocks.1.attn.hook_z", Some("blocks.1.attn.hook_z")),
        (&pre, TransformerLens, "blocks.1.attn.hook_z.grad", Some("blocks.1.attn.hook_z_grad")),
        (&pre, TransformerLens, "blocks.1.ln1.hook_out", None),
        (&pre, TransformerLens, "embed.weight", Some("embed.W_E")),
        // a word goes with what is computed, where a model normalises elsewhere than the document
        (&pre, S1, "blocks.0.hook_resid_mid", Some("residual connection")),
        (&after, S1, "blocks.0.hook_resid_mid", Some("X after Add & Norm")),
        (&after, S2, "blocks.0.ln2.hook_out", Some("X₁")),
        (&after, S3, "blocks.0.hook_attn_sum", Some("x + MHA")),
        (&after, S3, "blocks.0.hook_resid_mid", Some("Norm(x)")),
        (&after, Llmc, "blocks.1.hook_resid_post", Some("ln2[1]")),
        (&after, TransformerLens, "blocks.0.hook_attn_sum", Some("blocks.0.hook_resid_mid")),
        (&after, TransformerLens, "blocks.0.hook_resid_post", Some("blocks.0.hook_normalized_resid_post")),
        (&after, TransformerLens, "blocks.0.hook_resid_mid", None),
    ] {
        assert_eq!(names::called(name, config, notation).as_deref(), want, "{notation} {name}");
    }
    let models = [&pre, &after].map(|config| Model::new(config, INSPECT).unwrap());
    let [pre, after] = &models;
    for (model, notation, name, want) in [
        (pre, S3, "input", "input = token ids"),
        (pre, S3, "blocks.0.hook_resid_pre", "x = tok_emb + pos_emb"),
        (pre, S3, "blocks.1.ln1.hook_out", "Norm(x) = LN(x) γ + β"),
        (pre, S3, "blocks.0.attn.hook_unscaled_scores", "wei = Q Kᵀ"),
        (pre, S3, "blocks.0.attn.hook_raw_scores", "scaled wei = Q Kᵀ / √16"),
        (pre, S3, "blocks.0.attn.hook_attn_scores", "masked wei = scaled wei + mask"),
        (pre, S3, "blocks.0.attn.hook_pattern", "softmax(wei) = softmax(masked wei)"),
        (pre, S3, "blocks.0.attn.hook_z", "concatenated heads = concat(softmax(wei) V)"),
        (pre, S3, "blocks.0.hook_resid_mid", "x + MHA = x + MHA output"),
        (pre, S3, "blocks.0.hook_mlp_out", "Output_2 = (Activated Output) W_2 + b_2"),
        (pre, S3, "probs", "P = softmax(logits)"),
        (pre, S1, "blocks.0.hook_resid_mid", "residual connection = X + Output"),
        (after, S1, "blocks.0.hook_resid_pre", "X = Input Embedding + Position Embedding"),
        (after, S1, "blocks.0.hook_attn_out", "Output = A Wo + attn.out.bias"),
        (after, S2, "hook_embed", "OneHot(x) W_e = W_e[x]"),
        (after, S2, "blocks.0.hook_resid_pre", "X₀ = OneHot(x) W_e + W_p"),
        (after, S2, "blocks.0.attn.hook_raw_scores", "Q Kᵀ / √D = (X W^Q) (X W^K)ᵀ / √4"),
        (after, S2, "blocks.0.attn.hook_pattern", "Softmax(·) = softmax(Q Kᵀ / √D + Mask)"),
        (after, S2, "blocks.0.hook_resid_mid", "X′₁ = LN(MultiHeadSA(·) + X₀) γ + β"),
        (after, S2, "blocks.1.hook_resid_pre", "X₁ = LN(FFN(·) + X′₁) γ′₁ + β′₁"),
        (after, S2, "logits", "X_L W_eᵀ = X₂ W_eᵀ"),
        (pre, Llmc, "blocks.0.attn.hook_qkv", "qkv = ln1 qkvwᵀ + qkvb"),
        (pre, Llmc, "blocks.0.hook_attn_out", "attproj = atty attprojwᵀ + attprojb"),
        (pre, Llmc, "blocks.0.hook_resid_pre", "encoded = wte[inputs] + wpe[t]"),
        (pre, Llmc, "blocks.0.attn.hook_k", "attn.hook_k = keys of qkv"),
        (pre, Llmc, "blocks.0.attn.hook_attn_scores", "preatt = (queries of qkv) (keys of qkv)ᵀ / √16 + mask"),
        (pre, Llmc, "blocks.0.attn.hook_z", "atty = concat(att (values of qkv))"),
        (pre, S1, "blocks.0.mlp.hook_pre", "nn.Linear(d_model, d_ff) = LayerNorm A₁ᵀ + b₁"),
        (pre, S1, "blocks.0.hook_mlp_out", "nn.Linear(d_ff, d_model) = gelu-tanh(nn.Linear(d_model, d_ff)) A₂ᵀ + b₂"),
        (pre, Llmc, "blocks.1.ln1.hook_out", "ln1 = LN(residual3[0]) ln1w + ln1b"),
        (pre, Llmc, "blocks.0.ln1.hook_normalized", "ln1.hook_normalized = (encoded − mean(encoded)) / (1/ln1_rstd)"),
        (pre, Llmc, "logits", "logits = lnf wteᵀ"),
        (pre, TransformerLens, "blocks.1.hook_resid_mid", "hook_resid_mid = hook_resid_pre + hook_attn_out"),
        (pre, TransformerLens, "blocks.1.hook_attn_out", "hook_attn_out = attn.hook_z attn.W_O + attn.b_O"),
    ] {
        assert_eq!(names::formula_in(model, name, notation).unwrap(), want, "{notation}");
    }
    // queries, keys and values head by head, as the documents write them
    let reference = Reference::new(pre);
    let trace = Trace::run(pre, Box::new(reference), &batch(&pre.config, 1), Keep::All).unwrap();
    for (notation, name, letters, shape) in [
        (Limpid, "hook_q", "B T H D", [2, 5, 3, 16]),
        (S0, "hook_q", "B H T d_k", [2, 3, 5, 16]),
        (S0, "hook_z", "B T H d_k", [2, 5, 3, 16]),
        (S1, "hook_z", "batch_size num_heads context_length head_size", [2, 3, 5, 16]),
        (S2, "hook_pattern", "B A n n", [2, 3, 5, 5]),
        (S3, "hook_k", "B heads T h_s", [2, 3, 5, 16]),
        (Llmc, "hook_q", "B T NH hs", [2, 5, 3, 16]),
        (TransformerLens, "hook_pattern", "batch head query_pos key_pos", [2, 3, 5, 5]),
    ] {
        let row = trace.row(&format!("blocks.0.attn.{name}")).unwrap().in_notation(pre, notation);
        assert_eq!((row.letters.as_str(), &row.shape[..]), (letters, &shape[..]), "{notation} {name}");
    }
    // the documents' feed-forward network is four times as wide as the stream, this one is not
    let ffn = |config: &Config| Llmc.letters("", &["batch", "pos", "d_ff"], config);
    assert_eq!((ffn(&tiny()), ffn(&Config { d_ff: 48, ..tiny() })), ("B T F".into(), "B T 4C".into()));
}

/// A product is with a matrix or with its transpose, as the document means the matrix: (in, out), or as PyTorch and
/// llm.c store it.
#[test]
fn formulas_transpose_what_a_notation_means_as_stored() {
    // the documents' words for matrices (out, in): y = xAᵀ + b of "Zero-to-Hero", llm.c's parameters; and the token
    // table, (V, C)
    let as_stored = |word: &str| {
        let llmc = ["qkvw", "attprojw", "fcw", "fcprojw", "wte"];
        llmc.contains(&word)
            || ["A₁", "A₂", "(nn.Linear(", "(Token Embedding"].iter().any(|start| word.starts_with(start))
    };
    let mut seen = 0;
    for config in &configs() {
        let model = Model::new(config, INSPECT).unwrap();
        for notation in Notation::ALL {
            for (tensor, weight) in [
                ("blocks.0.attn.hook_qkv", "blocks.0.attn.qkv.weight"),
                ("blocks.0.hook_attn_out", "blocks.0.attn.out.weight"),
                ("blocks.0.mlp.hook_pre", "blocks.0.mlp.in.weight"),
                ("blocks.0.hook_mlp_out", "blocks.0.mlp.out.weight"),
                ("logits", if config.tied_head { "embed.weight" } else { "unembed.weight" }),
            ] {
                let own = names::called_within(weight, config, *notation, Some(0));
                let word = own.clone().unwrap_or_else(|| weight.trim_start_matches("blocks.0.").to_string());
                let word = if word.contains(' ') { format!("({word})") } else { word };
                let Some(formula) = names::formula_in(&model, tensor, *notation) else { continue };
                let right = formula.split_once(" = ").unwrap().1;
                let Some((_, rest)) = right.split_once(&format!(" {word}")) else { continue };
                let turned = own.is_none() || weight == "embed.weight" || as_stored(&word);
                assert_eq!(rest.starts_with('ᵀ'), turned, "{notation}: {formula}");
                seen += 1;
            }
        }
    }
    assert!(seen > 500, "{seen}");
}

/// A word that a notation lacks stands as what computes it: no tensor goes by limpid's name on the right of a formula.
#[test]
#[ignore = "gate"]
fn formulas_have_no_tensor_without_a_word() {
    for config in &configs() {
        let model = Model::new(config, INSPECT).unwrap();
        for notation in Notation::ALL.iter().filter(|notation| **notation != Notation::TransformerLens) {
            for tensor in &model.tensors {
                let formula = names::formula_in(&model, &tensor.name, *notation).unwrap();
                let right = formula.split_once(" = ").unwrap().1;
                assert!(!right.contains("hook_"), "{notation}: {formula}");
            }
        }
    }
}

#[test]
fn what_cannot_be_shown_is_refused_with_a_hint() {
    let (model, reference, batch) = ready(&tiny(), 1);
    let trace = Trace::run(&model, Box::new(reference), &batch, Keep::All).unwrap();
    let error = |name: &str| trace.get(name).unwrap_err().to_string();
    assert_eq!(
        error("blocks.0.attn.hook_patern"),
        "unknown tensor `blocks.0.attn.hook_patern`: did you mean `blocks.0.attn.hook_pattern`?"
    );
    assert_eq!(error("attn.hook_z"), "unknown tensor `attn.hook_z`: did you mean `blocks.0.attn.hook_z`?");
    assert!(error("logit.grad").ends_with("did you mean `logits.grad`?"), "{}", error("logit.grad"));
    let rotated = error("blocks.0.attn.hook_rot_q");
    assert!(rotated.contains("this model has none (queries rotated by their position); did you mean"), "{rotated}");
    assert_eq!(error("zebra crossing"), "unknown tensor `zebra crossing`");
    assert!(error("logits.grad").contains("no backward pass"));
    assert!(matches!(trace.get("input.grad"), Err(TraceError::NoGradient { .. })));
    drop(trace);

    let refuse = |batch: &Batch, keep| {
        Trace::run(&model, Box::new(Reference::new(&model)), batch, keep).err().expect("it does not fit").to_string()
    };
    let of = |tokens: Vec<u32>, length| Batch::of_sequences(tokens, vec![], length);
    assert!(refuse(&Batch::default(), Keep::All).contains("no tokens"));
    assert!(refuse(&of(vec![0; 6], 6), Keep::All).contains("do not fit"));
    assert!(refuse(&of(vec![0; 15], 5), Keep::All).contains("do not fit"));
    assert!(refuse(&of(vec![0; 5], 4), Keep::All).contains("equally long"));
    assert_eq!(refuse(&of(vec![0, 11], 2), Keep::All), "token 11 is outside the model's vocabulary of 11");
    assert!(refuse(&of(vec![0, 1], 2), Keep::Gradients).contains("needs targets"));
    assert!(
        refuse(&Batch { targets: vec![1], ..of(vec![0, 1], 2) }, Keep::Gradients).contains("for all of the 2 tokens")
    );
    assert!(refuse(&Batch { targets: vec![1, 99], ..of(vec![0, 1], 2) }, Keep::Gradients).contains("target 99"));
    assert!(refuse(&Batch { segments: vec![1, 0], ..of(vec![0, 1], 2) }, Keep::All).contains("segment 1"));
    let train = Model::new(&tiny(), Mode::Train { batch: 1, context: 2 }).unwrap();
    let reference = Reference::new(&train);
    assert!(matches!(
        Trace::run(&train, Box::new(reference), &of(vec![0, 1], 2), Keep::All),
        Err(TraceError::NotForInspection { .. })
    ));
}

#[test]
fn the_first_bad_tensor_is_named() {
    for config in [tiny(), post(Config { dropout: Dropout::everywhere(0.1), ..tiny() })] {
        let batch = batch(&config, 1);
        let blame = |mode, name: &str, value: f32| {
            let model = Model::new(&config, mode).unwrap();
            let mut cpu = Cpu::new(&model, 1);
            fill(&model, &mut cpu, 1);
            let region = model.param(name).unwrap().region;
            cpu.write(region, &vec![value; region.len()]).unwrap();
            find_not_finite(&model, &mut cpu, &batch).unwrap()
        };
        for mode in [INSPECT, Mode::Train { batch: 2, context: 5 }, Mode::Score { batch: 2, context: 5 }] {
            assert_eq!(blame(mode, "blocks.1.mlp.in.bias", 0.5), None);
            let bad = blame(mode, "blocks.1.mlp.in.bias", f32::NAN).unwrap();
            assert_eq!(
                (bad.name.as_str(), bad.op, bad.row, bad.column, bad.count),
                ("blocks.1.mlp.in.bias", "parameter", 0, 0, 17)
            );
            let bad = blame(mode, "blocks.1.mlp.in.weight", 3e38).unwrap();
            assert_eq!((bad.name.as_str(), bad.op), ("blocks.1.mlp.hook_pre", "linear"), "{mode:?}");
            assert!(bad.to_string().starts_with("`blocks.1.mlp.hook_pre` (made by linear) has "), "{bad}");
        }
    }
}

#[test]
fn the_lens_reads_any_point_of_the_stream_and_leaves_the_run_alone() {
    for config in [tiny(), post(tiny()), Config { head_transform: true, head_bias: true, ..post(tiny()) }] {
        let (model, _, batch) = ready(&config, 3);
        let mut cpu = Cpu::new(&model, 1);
        fill(&model, &mut cpu, 3);
        let trace = Trace::run(&model, Box::new(cpu), &batch, Keep::Gradients).unwrap();
        let all = |trace: &Trace| trace.names().map(|n| bits(&trace.get(&n).unwrap().values)).collect::<Vec<_>>();
        let before = all(&trace);
        let last = trace.lens("blocks.1.hook_resid_post").unwrap();
        assert_eq!(bits(&last.values), bits(&trace.get("probs").unwrap().values));
        assert_eq!(last.name, "lens(blocks.1.hook_resid_post)");
        let early = trace.lens("blocks.0.hook_resid_pre").unwrap();
        assert!(early.values != last.values);
        early.values.chunks(11).for_each(|row| close("sum of probabilities", row.iter().sum(), 1.0));
        assert!(all(&trace) == before);
        assert!(matches!(trace.lens("logits"), Err(TraceError::NotResidual { .. })));
    }
}

#[test]
fn a_table_looks_like_the_seeds() {
    let matrix = |rows: usize, cols: usize, values: Vec<f32>| NamedTensor {
        name: "W".into(),
        axes: vec!["pos", "d_model"],
        shape: vec![rows, cols],
        values,
    };
    let values = (0..42).map(|i| (i as f32 - 20.5) / 8.0).collect();
    let small = TableOptions { max_rows: 4, edge_rows: 2, max_cols: 4, edge_cols: 2, ..TableOptions::default() };
    let want = "             0          1  ...          4          5
0    -2.562500  -2.437500  ...  -2.062500  -1.937500
1    -1.812500  -1.687500  ...  -1.312500  -1.187500
...        ...        ...  ...        ...        ...
5     1.187500   1.312500  ...   1.687500   1.812500
6     1.937500   2.062500  ...   2.437500   2.562500

[7 rows x 6 columns]
";
    let tensor = matrix(7, 6, values);
    assert_eq!(view::table(&tensor, &small), want);
    // narrower: fewer columns, the same rows
    let narrow = TableOptions { width: 40, ..small };
    let lines: Vec<String> = view::table(&tensor, &narrow).lines().map(String::from).collect();
    assert_eq!(lines[1], "0    -2.562500  ...  -1.937500");
    assert_eq!(lines.last().unwrap(), "[7 rows x 6 columns]");

    // S1's own table: its first and last lines, word for word
    let mut values = vec![0.25; 100_069 * 64];
    values[..10].copy_from_slice(&[
        0.625765, 0.025510, 0.954514, 0.064349, -0.502401, -0.202555, -1.567081, -1.097956, 0.235958, -0.239778,
    ]);
    values[54..64].copy_from_slice(&[
        0.420812, 0.277596, 0.778898, 1.533269, 1.609736, -0.403228, -0.274928, 1.47384, 0.068826, 1.332708,
    ]);
    let text = view::table(&matrix(100_069, 64, values), &TableOptions::default());
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let lines: Vec<String> = text.lines().map(words).collect();
    assert_eq!(lines[0], "0 1 2 3 4 5 6 7 8 9 ... 54 55 56 57 58 59 60 61 62 63");
    assert_eq!(
        lines[1],
        "0 0.625765 0.025510 0.954514 0.064349 -0.502401 -0.202555 -1.567081 -1.097956 0.235958 -0.239778 ... \
         0.420812 0.277596 0.778898 1.533269 1.609736 -0.403228 -0.274928 1.473840 0.068826 1.332708"
    );
    assert_eq!(lines[6], ["..."; 22].join(" "));
    assert!(lines[7].starts_with("100064 0.250000") && lines[11].starts_with("100068 "));
    assert_eq!((lines.len(), lines.last().unwrap().as_str()), (14, "[100,069 rows x 64 columns]"));
    let widths: Vec<usize> = text.lines().take(12).map(|line| line.chars().count()).collect();
    assert!(widths.iter().all(|w| *w == widths[0]), "{widths:?}");
}

#[test]
fn ids_masks_and_one_hot_vectors_are_whole_numbers() {
    let plain = TableOptions::default();
    assert_eq!(
        table::ids(&[vec![627, 1383], vec![15749, 311]], &plain),
        "       0     1\n0    627  1383\n1  15749   311\n\n[2 rows x 2 columns]\n"
    );
    // S0's example: (mouse, dog) in (cat, dog, mouse)
    let one_hot = table::one_hot(&[2, 1], 3);
    assert_eq!(one_hot.values, [0., 0., 1., 0., 1., 0.]);
    assert_eq!(view::table(&one_hot, &plain), "   0  1  2\n0  0  0  1\n1  0  1  0\n\n[2 rows x 3 columns]\n");
    let near = table::masks(3, 2).binary;
    assert_eq!(near.values, [1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0]);
    let masks = table::masks(3, 0);
    assert_eq!(masks.binary.values, [1., 0., 0., 1., 1., 0., 1., 1., 1.]);
    assert_eq!(
        view::table(&masks.additive, &plain),
        "   0     1     2\n0  0  -inf  -inf\n1  0     0  -inf\n2  0     0     0\n\n[3 rows x 3 columns]\n"
    );
    assert_eq!(masks.function.lines().nth(2), Some("1  x_1,0  x_1,1   -inf"));
    let tokens = ["cat", "ea\nt"].map(String::from);
    assert_eq!(table::vocabulary(&tokens, &plain), "     token\n0    \"cat\"\n1  \"ea\\nt\"\n\n[2 rows x 1 columns]\n");
}

#[test]
fn tables_of_a_run() {
    let (model, reference, batch) = ready(&Config { n_layer: 12, ..tiny() }, 1);
    let trace = Trace::run(&model, Box::new(reference), &batch, Keep::All).unwrap();
    let rows = trace.rows().unwrap();
    for (width, shown) in [
        (40, "tensor symbol"),
        (60, "tensor symbol shape"),
        (80, "tensor symbol shape formula"),
        (100, "tensor symbol shape formula"),
        (120, "tensor symbol shape mean deviation formula"),
        (160, "tensor symbol axes shape mean deviation min max formula"),
    ] {
        let text = table::summary_table(&rows, width);
        assert!(text.lines().all(|line| table::columns(line) <= width), "{width}\n{text}");
        let header: Vec<&str> = text.lines().next().unwrap().split_whitespace().collect();
        assert_eq!(header.join(" "), shown, "{width}\n{text}");
        assert_eq!(text.matches("60 masked").count(), 12, "{width}\n{text}");
        assert_eq!(text.contains("X̃ + Z₂"), width >= 80, "{width}\n{text}");
        let begins = |start: &str| text.lines().filter(|line| line.starts_with(start)).count();
        let counts =
            [begins("blocks.11.attn.hook_attn_scores "), begins("  attn.hook_attn_scores "), begins("blocks.11")];
        match width {
            // where there is little room a block's name is said once, and its number is not in its symbols
            ..100 => assert_eq!((counts, text.contains("A_s^M⁽¹²⁾")), ([0, 12, 1], false), "{width}\n{text}"),
            _ => assert_eq!((counts[0], text.contains("A_s^M⁽¹²⁾")), (1, true), "{width}\n{text}"),
        }
    }
    let text = table::summary_table(&rows, 0);
    assert!(text.contains("B H T T") && text.lines().count() == rows.len() + 1);
    let text = view::table(&trace.get("blocks.0.attn.hook_q").unwrap(), &TableOptions::default());
    let headings: Vec<&str> = text.lines().filter(|line| line.starts_with("blocks")).collect();
    assert_eq!(headings[..2], ["blocks.0.attn.hook_q [batch 0, head 0]", "blocks.0.attn.hook_q [batch 0, head 1]"]);
    assert!(text.contains("[5 rows x 4 columns]") && text.ends_with("\n... and 2 more such tables\n"), "{text}");
    let q = trace.get("blocks.0.attn.hook_q").unwrap();
    let line = text.lines().position(|l| l == headings[1]).unwrap() + 2 + 3; // its row 3
    assert!(text.lines().nth(line).unwrap().ends_with(&format!("{:.6}", q.at(&[0, 3, 1, 3]).unwrap())));
    let text = view::table(
        &trace.get("blocks.0.attn.hook_pattern").unwrap(),
        &TableOptions { max_tables: 1, ..TableOptions::default() },
    );
    assert!(text.starts_with("blocks.0.attn.hook_pattern [batch 0, head 0]\n"), "{text}");
    assert!(
        view::table(&trace.get("blocks.0.ln1.bias").unwrap(), &TableOptions::default())
            .ends_with("[1 rows x 12 columns]\n")
    );
}

#[test]
fn a_saved_run_comes_back() {
    let config = tiny();
    let (model, reference, batch) = ready(&config, 1);
    let trace = Trace::run(&model, Box::new(reference), &batch, Keep::Gradients).unwrap();
    let folder = Folder::new("inspect");
    let path = folder.join("run.safetensors");
    save(&path, &tensors(&trace, &[]).unwrap()).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let (_, metadata) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    let axes = metadata.metadata().clone().unwrap();
    assert_eq!(axes["format"], "pt");
    let mut count = 0;
    for name in trace.names().flat_map(|n| [n.to_string(), format!("{n}.grad")]).filter(|n| n != "input.grad") {
        let (tensor, found) = (trace.get(&name).unwrap(), file.tensor(&name).unwrap());
        assert_eq!((found.shape(), axes[&name].as_str()), (tensor.shape.as_slice(), tensor.axes.join(" ").as_str()));
        let values: Vec<u32> = found.data().chunks(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect();
        assert_eq!(values, bits(&tensor.values), "{name}");
        count += 1;
    }
    assert_eq!(file.len(), count);
    // again, over the first: the same bytes, and nothing left beside it
    save(&path, &tensors(&trace, &[]).unwrap()).unwrap();
    assert!(std::fs::read(&path).unwrap() == bytes);
    let some = folder.join("some.safetensors");
    save(&some, &tensors(&trace, &["logits", "embed.weight.grad", "logits"]).unwrap()).unwrap();
    let bytes = std::fs::read(&some).unwrap();
    let mut names = safetensors::SafeTensors::deserialize(&bytes)
        .unwrap()
        .names()
        .iter()
        .map(|n| n.to_string())
        .collect::<Vec<_>>();
    names.sort();
    assert_eq!(names, ["embed.weight.grad", "logits"]);
    assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 2);
    assert!(matches!(save(&folder.join("none/run.safetensors"), &[]), Err(CheckpointError::Io { .. })));
    assert!(matches!(tensors(&trace, &["logit"]), Err(TraceError::Unknown { .. })));
    save(&folder.join("empty.safetensors"), &[]).unwrap();
}

//! The glass box shows the model's own numbers: what is computed again is what was computed, bit for bit; what a picture shows is a part of
//! the tensor; what is said of a number adds up to it.

mod by_layers;
mod random_config;

use by_layers::{batch, by_layers, filled};
use limpid::Training;
use limpid::config::{Config, Mask};
use limpid::generate::Options;
use limpid::glass::{Glass, Reply, Subject};
use limpid::model::Mode;
use limpid::names;
use limpid::ops::random;
use limpid::trace::sheet::Sheet;
use limpid::trace::tiles::{Code, Extent, Tile, TilePool};
use limpid::trace::{Labelled, Trace, TraceError};
use limpid::train::{Control, Recipe};
use random_config::configs;
use serde_json::{Value, json};
use std::sync::Arc;

#[track_caller]
fn same_bits(what: &str, got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len(), "{what}");
    if let Some(at) = (0..got.len()).find(|at| got[*at].to_bits() != want[*at].to_bits()) {
        panic!("{what}: element {at} of {} is {}, not {}", got.len(), got[at], want[at]);
    }
}

/// Every tensor, in the order of the run and then out of order with next to no memory, and every part of it.
fn same_as_kept(config: &Config, sequences: usize, length: usize, seed: u64, threads: usize) {
    let batch = batch(config, sequences, length, seed);
    let (model, mut backend) = filled(config, Mode::Inspect { batch: sequences, context: length }, 1, seed);
    let kept = Trace::run(&model, &mut backend, &batch, false).unwrap();
    let mut names: Vec<String> = kept.names().collect();
    names.extend(model.params.iter().map(|param| param.name.clone()));
    names.extend(names::derived(&model).into_iter().map(|(name, _)| name));
    let mut trace = by_layers(config, &batch, threads, seed, 1);
    let n = names.len() as u64;
    let shuffled = (0..2 * n).map(|i| &names[random::below(seed, 9, i, n) as usize]);
    for name in names.iter().chain(shuffled) {
        let (want, got) = (kept.get(name).unwrap(), trace.get(name).unwrap());
        assert_eq!((&want.axes, &want.shape), (&got.axes, &got.shape), "{name} of {config:?}");
        same_bits(&format!("{name} of {config:?}"), &got.values, &want.values);
        assert_eq!(trace.row(name).unwrap().mean.to_bits(), kept.row(name).unwrap().mean.to_bits());
        // and any part of any of its matrices
        let want = want.heads_first();
        let (axes, shape) = trace.shape(name).unwrap();
        assert_eq!((&axes, &shape), (&want.axes, &want.shape), "{name} of {config:?}");
        let leading = shape.len().saturating_sub(2);
        let index: Vec<usize> =
            shape[..leading].iter().zip(0..).map(|(n, i)| random::below(seed, 10, i, *n as u64) as usize).collect();
        let sheet = trace.sheet(name, &index, None).unwrap();
        let draw = |site, n: usize| random::below(seed, site, n as u64, n as u64 + 1) as usize;
        let [(r0, r1), (c0, c1)] = [(11, sheet.rows), (12, sheet.cols)].map(|(site, n)| {
            let (a, b) = (draw(site, n), draw(site + 10, n));
            (a.min(b), a.max(b))
        });
        let band = sheet.band(r0..r1, c0..c1);
        for (at, value) in band.iter().enumerate() {
            let (i, j) = (r0 + at / (c1 - c0), c0 + at % (c1 - c0));
            let mut at = index.clone();
            at.extend(if shape.len() < 2 { vec![j] } else { vec![i, j] });
            assert_eq!(value.to_bits(), want.at(&at).unwrap().to_bits(), "{name} {at:?}");
        }
    }
}

#[test]
fn what_is_computed_again_is_what_was_kept() {
    for (seed, config) in configs().iter().enumerate() {
        same_as_kept(config, 2, 5, seed as u64, 1 + seed % 2);
    }
}

#[test]
fn it_is_so_beyond_a_block_of_keys() {
    for mask in [Mask::Causal, Mask::Bidirectional] {
        let config = Config { context_length: 150, vocab_size: 90, d_model: 24, mask, ..configs()[0].clone() };
        same_as_kept(&config, 1, 131, 3, 2);
    }
}

#[test]
fn a_name_that_is_not_there_is_told_with_the_nearest() {
    let config = Config { mask: Mask::Causal, ..configs()[0].clone() };
    let mut trace = by_layers(&config, &batch(&config, 1, 5, 1), 1, 1, 1 << 20);
    let said = |error: TraceError| error.to_string();
    let near = said(trace.get("blocks.0.attn.hook_patern").unwrap_err());
    assert!(near.contains("did you mean `blocks.0.attn.hook_pattern`"), "{near}");
    assert!(matches!(trace.get("blocks.0.hook_resid_pre.grad").unwrap_err(), TraceError::NoBackward { .. }));
    let outside = said(trace.sheet("blocks.0.attn.hook_pattern", &[0, 99], None).unwrap_err());
    assert!(outside.contains("found [0, 99]"), "{outside}");
}

/// Beside the tensors that a trace keeps, and beside sums in f64.
#[test]
fn predictions_are_those_of_the_logits() {
    for (seed, config) in configs().iter().enumerate().step_by(5) {
        let (seed, batch) = (seed as u64, batch(config, 2, 5, seed as u64));
        let (model, mut backend) = filled(config, Mode::Inspect { batch: 2, context: 5 }, 1, seed);
        let kept = Trace::run(&model, &mut backend, &batch, false).unwrap();
        let [logits, probs, losses] = ["logits", "probs", "losses"].map(|name| kept.get(name).unwrap().values);
        let predictions = by_layers(config, &batch, 1, seed, 1 << 20).predictions(0..10, 4).unwrap();
        let v = config.vocab_size;
        for (n, prediction) in predictions.iter().enumerate() {
            let [logits, probs] = [&logits, &probs].map(|all| &all[n * v..][..v]);
            let mut ids: Vec<usize> = (0..v).collect();
            ids.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
            let top: Vec<usize> = prediction.top.iter().map(|candidate| candidate.id as usize).collect();
            assert_eq!(top, ids[..4]);
            for candidate in &prediction.top {
                let id = candidate.id as usize;
                assert_eq!(
                    (candidate.p.to_bits(), candidate.logit.to_bits()),
                    (probs[id].to_bits(), logits[id].to_bits())
                );
            }
            let lse = logits.iter().map(|s| f64::from(*s).exp()).sum::<f64>().ln();
            let entropy: f64 = logits.iter().map(|s| f64::from(*s) - lse).map(|ln| -ln.exp() * ln).sum();
            // probabilities are f32: sums of p s of logits around 10 are right to some 1e-5
            assert!(
                (prediction.lse - lse).abs() < 1e-5 && (prediction.entropy - entropy).abs() < 1e-4,
                "{prediction:?}"
            );
            let target = prediction.target.unwrap();
            assert_eq!(target.loss.to_bits(), losses[n].to_bits());
            assert_eq!(ids[target.rank - 1], target.candidate.id as usize);
            assert_eq!(target.candidate.id, batch.targets[n]);
        }
    }
}

/// Each code is off by at most half of its step.
#[test]
fn a_byte_says_a_number_within_half_a_step() {
    for seed in 0..20_000u64 {
        let draw = |site| random::normal(seed, site, 0) as f32;
        let (size, v) = ((draw(1) * 20.0).exp2(), draw(2));
        let (lo, hi) = (draw(3).min(draw(4)) * size, draw(3).max(draw(4)) * size);
        let off = |code: Code, v: f32, ends: [f32; 2]| (code.value(code.byte(v, ends), ends), code.byte(v, ends));
        // a step more of room for the rounding of f32
        let inside = lo + (hi - lo) * (v.abs() % 1.0);
        let (shown, q) = off(Code::Lin8, inside, [lo, hi]);
        let step = f64::from(hi - lo) / 253.0;
        assert!((1..=254).contains(&q) && f64::from(shown - inside).abs() <= step * 0.501, "lin8 {inside} {lo} {hi}");
        let (top, weight) = (size, size * (-v.abs() * 8.0).exp2());
        let (shown, q) = off(Code::Log8, weight, [0.0, top]);
        let octaves = f64::from(shown / weight).log2().abs();
        assert!(
            q >= 1 && (octaves <= 1.0 / 31.9 || weight < top * (-15.8f32).exp2()),
            "log8 {weight} of {top}: {shown}"
        );
        let signed = weight.copysign(v);
        let (shown, _) = off(Code::Slog8, signed, [-top, top]);
        let octaves = f64::from(shown / signed).log2().abs();
        let least = top * (-15.7f32).exp2();
        assert!(shown.signum() == signed.signum(), "slog8 {signed} of {top}: {shown}");
        assert!(octaves <= 1.0 / 15.9 || signed.abs() < least, "slog8 {signed} of {top}: {shown}");
    }
    for code in [Code::Lin8, Code::Log8, Code::Slog8] {
        for (v, ends) in [(0.0, [0.0, 0.0]), (1e-45, [0.0, 1e-45]), (f32::MAX, [f32::MIN, f32::MAX]), (3.0, [3.0, 3.0])]
        {
            assert!((1..=254).contains(&code.byte(v, ends)), "{code:?} {v} {ends:?}");
        }
    }
}

/// Tiles beside plain loops: every pool and level, with cells that are not finite.
#[test]
fn a_tile_is_the_matrix_reduced() {
    let (rows, cols) = (300, 530);
    let mut values: Vec<f32> = (0..rows * cols).map(|i| random::normal(5, 5, i as u64) as f32).collect();
    (values[7], values[70_001], values[99_999]) = (f32::NAN, f32::INFINITY, f32::NEG_INFINITY);
    let axes = vec!["batch", "pos", "d_model"];
    let tensor = Labelled { name: "x".into(), axes, shape: vec![1, rows, cols], values: values.clone() };
    let sheet = Sheet::of(&Arc::new(tensor), &[0]);
    let extent = Extent::of(&sheet);
    assert_eq!((extent.nan, extent.infinite, extent.masked), (1, 2, 0));
    for (level, pool) in
        (0..3).flat_map(|level| [TilePool::Max, TilePool::AbsMax, TilePool::Mean].map(|pool| (level, pool)))
    {
        let step = 1usize << level;
        for at in [[0, 0], [rows.div_ceil(256 * step) - 1, cols.div_ceil(256 * step) - 1]] {
            let tile = Tile { at, level: level as u8, pool, code: Code::F32, ends: extent.ends(Code::F32) };
            let frame = tile.frame(&sheet, 3, true).unwrap();
            let u32_at = |at: usize| u32::from_le_bytes(frame[at..at + 4].try_into().unwrap()) as usize;
            let (height, width) = (u32_at(16), u32_at(20));
            assert_eq!((&frame[..4], u32_at(4), u32_at(8)), (&b"LTL1"[..], frame.len(), 3));
            assert_eq!((u32_at(24), u32_at(28), u32_at(32), u32_at(36)), (at[0] * 256, at[1] * 256, rows, cols));
            assert_eq!(height, (rows - at[0] * 256 * step).min(256 * step).div_ceil(step));
            for (i, j) in (0..height).flat_map(|i| (0..width).map(move |j| (i, j))) {
                let rows_of = (at[0] * 256 + i) * step..((at[0] * 256 + i + 1) * step).min(rows);
                let cols_of = (at[1] * 256 + j) * step..((at[1] * 256 + j + 1) * step).min(cols);
                let cells = rows_of.flat_map(|i| cols_of.clone().map(move |j| (i, j)));
                let cells: Vec<f32> = cells.map(|(i, j)| values[i * cols + j]).collect();
                let got = f32::from_le_bytes(frame[64 + 4 * (i * width + j)..][..4].try_into().unwrap());
                if cells.iter().any(|v| !v.is_finite()) {
                    assert!(got.is_nan());
                    continue;
                }
                let want = match pool {
                    TilePool::Max => cells.iter().copied().fold(f32::MIN, f32::max),
                    TilePool::AbsMax => {
                        cells.iter().copied().fold(0.0, |a: f32, b| if b.abs() > a.abs() { b } else { a })
                    }
                    TilePool::Mean => (cells.iter().map(|v| f64::from(*v)).sum::<f64>() / cells.len() as f64) as f32,
                };
                assert_eq!(got, want, "{pool:?} {level} {i} {j}");
            }
        }
    }
    assert!(
        Tile { at: [2, 0], level: 0, pool: TilePool::Max, code: Code::F32, ends: [0.0, 1.0] }
            .frame(&sheet, 0, true)
            .is_none()
    );
}

/// Scores, generation and the weights are the same bits before and after all of it was looked at; memory is bounded, and says so.
#[test]
fn looking_changes_no_bit_and_keeps_to_its_memory() {
    let text = "to be or not to be, that is the question. ".repeat(40);
    let recipe = Recipe { steps: 4, batch_size: 2, context: 32, ..Recipe::preset("nano").unwrap() };
    let lm = Training::preset("nano").unwrap().recipe(recipe).text(text).run(|_| Control::Continue).unwrap().lm;
    let answers = || {
        let sample = lm.generate("to be", &Options::default()).unwrap();
        (lm.score("to be or", " not to be").unwrap().total.to_bits(), sample.tokens)
    };
    let before = answers();
    let lm = Arc::new(lm);
    let subject = Subject { name: "nano".into(), fingerprint: "1".into(), step: None, lm: lm.clone() };
    let subjects = [subject];
    let needed = lm.layer_bytes(20).unwrap();
    let glass = Glass::new(needed * 3);
    let mut ids = vec![];
    for prompt in ["to be or not", "that is the question", "to be or not"] {
        let mut events = vec![];
        let body = json!({ "prompt": prompt });
        glass
            .trace(&subjects, &body, &mut |event| {
                events.push(serde_json::from_str::<Value>(event).unwrap());
                true
            })
            .unwrap();
        let id = events[0]["id"].as_str().unwrap().to_string();
        let listing = glass.ask(&subjects, &format!("traces/{id}/tensors"), &[]).unwrap();
        let Reply::Json(listing) = listing else { panic!("{listing:?}") };
        for tensor in serde_json::from_str::<Value>(&listing).unwrap()["tensors"].as_array().unwrap() {
            let name = tensor["name"].as_str().unwrap();
            glass.ask(&subjects, &format!("traces/{id}/tensors/{name}"), &[]).unwrap();
        }
        for question in ["lens", "attribution", "mlp", "predictions"] {
            glass.ask(&subjects, &format!("traces/{id}/{question}"), &[]).unwrap();
        }
        let loss = events.last().unwrap()["loss"].as_f64().unwrap();
        assert!((loss - events_loss(&events)).abs() < 1e-9);
        assert!(glass.bytes() <= needed * 3);
        ids.push(id);
    }
    assert_eq!(ids[0], ids[2], "the same prompt is the same trace");
    assert_eq!(before, {
        let sample = lm.generate("to be", &Options::default()).unwrap();
        (lm.score("to be or", " not to be").unwrap().total.to_bits(), sample.tokens)
    });
    glass.forget(&ids[0]).unwrap();
    let gone = glass.ask(&subjects, &format!("traces/{}/tensors", ids[0]), &[]).unwrap_err();
    assert_eq!(gone.code(), "trace_expired");
    let small = Glass::new(1000).trace(&subjects, &json!({ "prompt": "to be" }), &mut |_| true).unwrap_err();
    assert!(small.code() == "too_large" && small.to_string().contains("--inspect-memory"), "{small}");
    let long = "to be ".repeat(90);
    let said = glass.trace(&subjects, &json!({ "prompt": long }), &mut |_| true).unwrap_err();
    assert!(said.code() == "prompt_too_long" && said.to_string().contains("more than the context of"), "{said}");
    let mut dropped = 0;
    glass
        .trace(&subjects, &json!({ "prompt": long, "last": true }), &mut |event| {
            dropped = serde_json::from_str::<Value>(event).unwrap()["dropped"].as_u64().unwrap_or(dropped);
            true
        })
        .unwrap();
    assert!(dropped > 0);
}

/// The mean of the log-probabilities that were told.
fn events_loss(events: &[Value]) -> f64 {
    let rows = events
        .iter()
        .filter(|event| event["event"] == "predictions")
        .flat_map(|event| event["rows"].as_array().unwrap());
    let all: Vec<f64> = rows.filter_map(|row| row["logprob"].as_f64()).collect();
    -all.iter().sum::<f64>() / all.len() as f64
}

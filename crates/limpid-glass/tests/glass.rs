//! The glass box shows the model's own numbers: what is computed again is what was computed, bit for bit; what a
//! picture shows is a part of the tensor; what is said of a number adds up to it.

#[path = "../../limpid/tests/library/by_layers/mod.rs"]
mod by_layers;
#[path = "../../limpid/tests/library/common/mod.rs"]
mod common;
#[path = "../../limpid/tests/library/random_config/mod.rs"]
mod random_config;

use by_layers::{batch, by_layers, filled};
use limpid::Training;
use limpid::config::{Config, Mask};
use limpid::generate::Options;
use limpid::model::Mode;
use limpid::names;
use limpid::numeric::random;
use limpid::trace::sheet::Sheet;
use limpid::trace::tiles::{Code, Extent, Tile, TilePool};
use limpid::trace::{Keep, NamedTensor, Trace, TraceError};
use limpid::train::Recipe;
use limpid_base::budget::{Budget, Spent};
use limpid_glass::{Glass, Reply, Subject};
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
    let (model, backend) = filled(config, Mode::Inspect { batch: sequences, context: length }, 1, seed);
    let kept = Trace::run(&model, Box::new(backend), &batch, Keep::All).unwrap();
    let mut names: Vec<String> = kept.names().collect();
    names.extend(model.params.iter().map(|param| param.name.clone()));
    names.extend(names::derived(&model).into_iter().map(|(name, _)| name));
    let trace = by_layers(config, &batch, threads, seed, 1);
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
        let part = trace.sheet(name, &index, Some(r0..r1)).unwrap();
        assert_eq!((part.rows, part.cols), (sheet.rows, sheet.cols), "{name}");
        same_bits(&format!("rows of {name}"), &part.band(r0..r1, c0..c1), &band);
        for (at, value) in band.iter().enumerate() {
            let (i, j) = (r0 + at / (c1 - c0), c0 + at % (c1 - c0));
            let mut at = index.clone();
            at.extend(if shape.len() < 2 { vec![j] } else { vec![i, j] });
            assert_eq!(value.to_bits(), want.at(&at).unwrap().to_bits(), "{name} {at:?}");
        }
    }
}

/// Every second model, on so many threads.
fn what_is_computed_again_is_what_was_kept(threads: usize) {
    for (seed, config) in configs().iter().enumerate().skip(threads - 1).step_by(2) {
        same_as_kept(config, 2, 5, seed as u64, threads);
    }
}

#[test]
#[ignore = "gate"]
fn what_is_computed_again_is_what_was_kept_on_one_thread() {
    what_is_computed_again_is_what_was_kept(1);
}

#[test]
#[ignore = "gate"]
fn what_is_computed_again_is_what_was_kept_on_two_threads() {
    what_is_computed_again_is_what_was_kept(2);
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
    let trace = by_layers(&config, &batch(&config, 1, 5, 1), 1, 1, 1 << 20);
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
        let (model, backend) = filled(config, Mode::Inspect { batch: 2, context: 5 }, 1, seed);
        let kept = Trace::run(&model, Box::new(backend), &batch, Keep::All).unwrap();
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
    let tensor = NamedTensor { name: "x".into(), axes, shape: vec![1, rows, cols], values: values.clone() };
    let sheet = Sheet::of(&Arc::new(tensor), &[0]);
    let free = &Budget::default();
    let extent = Extent::measure(&sheet, free).unwrap();
    assert_eq!((extent.nan, extent.infinite, extent.masked), (1, 2, 0));
    for (level, pool) in
        (0..3).flat_map(|level| [TilePool::Max, TilePool::AbsMax, TilePool::Mean].map(|pool| (level, pool)))
    {
        let step = 1usize << level;
        for at in [[0, 0], [rows.div_ceil(256 * step) - 1, cols.div_ceil(256 * step) - 1]] {
            let tile = Tile { at, level: level as u8, pool, code: Code::F32, ends: extent.ends(Code::F32) };
            let frame = tile.frame(&sheet, 3, true, free).unwrap().unwrap();
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
            .frame(&sheet, 0, true, free)
            .unwrap()
            .is_none()
    );
}

/// Scores, generation and the weights are the same bits before and after all of it was looked at; memory is bounded,
/// and says so.
#[test]
fn looking_changes_no_bit_and_keeps_to_its_memory() {
    let text = "to be or not to be, that is the question. ".repeat(40);
    let recipe = Recipe { steps: 4, batch_size: 2, context: 32, ..Recipe::preset("nano").unwrap() };
    let lm = Training::preset("nanogpt-cpu").unwrap().recipe(recipe).tokenizer("bpe").text(text).run().unwrap().lm;
    let answers = || {
        let sample = lm.generate("to be", &Options::default()).unwrap();
        (lm.score("to be or", " not to be").unwrap().total.to_bits(), sample.tokens)
    };
    let before = answers();
    let lm = Arc::new(lm);
    let subject = Subject { name: "nano".into(), fingerprint: "1".into(), step: None, lm: lm.clone() };
    let subjects = [subject];
    // a trace, and a quarter of the limit for what is looked at
    let limit = 4 * lm.trace_bytes(20, Keep::Blocks { seen: 0 }).unwrap();
    let (glass, free) = (Glass::new(limit), &Arc::<Budget>::default());
    let mut ids = vec![];
    for prompt in ["to be or not", "that is the question", "to be or not"] {
        let mut events = vec![];
        let body = json!({ "prompt": prompt });
        glass
            .trace(&subjects, &body, free, &mut |event| {
                events.push(serde_json::from_str::<Value>(event).unwrap());
                true
            })
            .unwrap();
        let id = events[0]["id"].as_str().unwrap().to_string();
        let listing = glass.ask(&subjects, &format!("traces/{id}/tensors"), &[], free).unwrap();
        let Reply::Json(listing) = listing else { panic!("{listing:?}") };
        for tensor in serde_json::from_str::<Value>(&listing).unwrap()["tensors"].as_array().unwrap() {
            let name = tensor["name"].as_str().unwrap();
            glass.ask(&subjects, &format!("traces/{id}/tensors/{name}"), &[], free).unwrap();
        }
        for question in ["lens", "attribution", "path", "mlp", "predictions"] {
            glass.ask(&subjects, &format!("traces/{id}/{question}"), &[], free).unwrap();
        }
        let loss = events.last().unwrap()["loss"].as_f64().unwrap();
        assert!((loss - events_loss(&events)).abs() < 1e-9);
        assert!(glass.bytes() <= limit);
        ids.push(id);
    }
    assert_eq!(ids[0], ids[2], "the same prompt is the same trace");
    assert_eq!(before, {
        let sample = lm.generate("to be", &Options::default()).unwrap();
        (lm.score("to be or", " not to be").unwrap().total.to_bits(), sample.tokens)
    });
    glass.forget(&ids[0]).unwrap();
    let gone = glass.ask(&subjects, &format!("traces/{}/tensors", ids[0]), &[], free).unwrap_err();
    assert_eq!(gone.code(), "trace_expired");
    let small = Glass::new(1000).trace(&subjects, &json!({ "prompt": "to be" }), free, &mut |_| true).unwrap_err();
    assert!(small.code() == "too_large" && small.to_string().contains("give traces more memory"), "{small}");
    let long = "to be ".repeat(90);
    let said = glass.trace(&subjects, &json!({ "prompt": long }), free, &mut |_| true).unwrap_err();
    assert!(said.code() == "prompt_too_long" && said.to_string().contains("more than the context of"), "{said}");
    let mut dropped = 0;
    glass
        .trace(&subjects, &json!({ "prompt": long, "last": true }), free, &mut |event| {
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

/// A model of letters and what it is looked into with.
fn little() -> [Subject; 1] {
    let text = "to be or not to be, that is the question. ".repeat(40);
    let recipe = Recipe { steps: 1, batch_size: 2, context: 32, ..Recipe::preset("nano").unwrap() };
    let lm = Training::preset("nano").unwrap().recipe(recipe).text(text).run().unwrap().lm;
    [Subject { name: "nano".into(), fingerprint: "1".into(), step: None, lm: Arc::new(lm) }]
}

/// Runs a prompt to its end; its id.
fn opened(glass: &Glass, subjects: &[Subject], prompt: &str) -> String {
    let mut id = String::new();
    let mut tell = |event: &str| {
        let event: Value = serde_json::from_str(event).unwrap();
        id = event["id"].as_str().map_or(id.clone(), String::from);
        true
    };
    glass.trace(subjects, &json!({ "prompt": prompt }), &Arc::default(), &mut tell).unwrap();
    id
}

/// With the vocabulary of GPT-2, cosines of all its tokens are 10 GB: their shape is known, any cell and any tile can
/// be had in a little memory, and who asks for all of them is told what ran out.
#[test]
fn cosines_are_computed_where_they_are_looked_at() {
    let nano = Config::preset("nano").unwrap();
    let config = Config { vocab_size: 50_257, d_model: 8, n_head: 2, n_layer: 1, d_ff: 8, ..nano };
    let mut trace = by_layers(&config, &batch(&config, 1, 5, 1), 1, 1, 1 << 20);
    assert_eq!(trace.shape("cos(embed.weight)").unwrap().1, [50_257, 50_257]);
    let embedding = trace.get("embed.weight").unwrap();
    let budget = Arc::new(Budget::default().bytes(20 << 20));
    trace.spend(&budget);
    let sheet = trace.sheet("cos(embed.weight)", &[], None).unwrap();
    assert_eq!((sheet.rows, sheet.cols), (50_257, 50_257));
    let norm = |i: usize| embedding.values[i * 8..][..8].iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
    let row = |i: usize| embedding.values[i * 8..][..8].iter().map(move |v| f64::from(*v) / norm(i));
    for (i, j) in [(0, 0), (7, 50_256), (50_256, 7), (50_256, 50_256)] {
        let cell = sheet.strip(j..j + 1, &budget).unwrap().band(i..i + 1).unwrap()[0];
        let want: f64 = row(i).zip(row(j)).map(|(a, b)| a * b).sum();
        assert!((f64::from(cell) - want).abs() < 1e-6, "eight products of numbers of f32: {cell} {want}");
        // the same bits in any part
        let part = sheet.band(i.saturating_sub(3)..i + 1, j.saturating_sub(5)..j + 1);
        assert_eq!(part.last().unwrap().to_bits(), cell.to_bits());
    }
    let tile = Tile { at: [12, 0], level: 12, pool: TilePool::Max, code: Code::F32, ends: [0.0; 2] };
    assert!(tile.frame(&sheet, 0, true, &budget).unwrap().is_none(), "outside");
    let corner = Tile { at: [196, 196], level: 0, ..tile };
    assert!(corner.frame(&sheet, 0, true, &budget).unwrap().is_some());
    let steps = Budget::default().bytes(20 << 20).steps(1 << 20);
    assert_eq!(Extent::measure(&sheet, &steps), Err(Spent::Steps { allowed: 1 << 20 }));
    assert!(matches!(sheet.strip(0..50_257, &Budget::default().bytes(1 << 20)), Err(Spent::Bytes { .. })));
    let gone = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let whole = Tile { at: [0, 0], level: 12, ..tile };
    assert_eq!(whole.frame(&sheet, 0, true, &Budget::default().unless(gone)), Err(Spent::Cancelled));
    // what no budget allows is refused, and can be asked for again
    trace.spend(&Arc::new(Budget::default().bytes(1000)));
    assert!(matches!(trace.get("logits"), Err(TraceError::Spent { why: Spent::Bytes { .. }, .. })));
    trace.spend(&Arc::new(Budget::default().steps(0)));
    assert!(matches!(trace.get("logits"), Err(TraceError::Spent { why: Spent::Steps { .. }, .. })));
    trace.spend(&Arc::default());
    assert_eq!(trace.get("logits").unwrap().shape, [1, 5, 50_257]);
    for (name, said) in [
        ("cos(cos(embed.weight))", "ask for one `cos`"),
        ("cos(cos(cos(nothing)))", "ask for one `cos`"),
        ("cos(ln_final.weight)", "`ln_final.weight` has the axes [d_model], and only rows of a matrix have cosines"),
        ("cos(nothing)", "unknown tensor `nothing`"),
        ("cos()", "unknown tensor ``"),
    ] {
        for error in [trace.shape(name).unwrap_err(), trace.sheet(name, &[], None).unwrap_err()] {
            assert!(error.to_string().contains(said), "{name}: {error}");
        }
    }
}

/// Memory of a trace is taken before it is made, and free again when nobody holds it.
#[test]
fn a_trace_that_is_held_keeps_its_memory() {
    let subjects = little();
    let one = subjects[0].lm.trace_bytes(9, Keep::Blocks { seen: 0 }).unwrap() * 8 / 7;
    let glass = Glass::new(one * 3 / 2);
    let none = || Arc::new(Budget::default().time(std::time::Duration::ZERO));
    let mut asked = 0;
    let mut within = |event: &str| {
        asked += 1;
        assert!(event.contains("\"event\""));
        let other = glass.trace(&subjects, &json!({ "prompt": "not to be" }), &none(), &mut |_| true).unwrap_err();
        assert!(other.code() == "queue_full" && other.to_string().contains("try again in 1 s"), "{other}");
        asked < 2
    };
    glass.trace(&subjects, &json!({ "prompt": "to be or " }), &none(), &mut within).unwrap();
    assert_eq!(asked, 2);
    // nobody holds it now
    opened(&glass, &subjects, "not to be");
    let threads: Vec<usize> = (0..6).collect();
    std::thread::scope(|scope| {
        for n in threads {
            let (glass, subjects) = (&glass, &subjects);
            scope.spawn(move || {
                let body = json!({ "prompt": format!("to be {}", &"or not"[n..]) });
                let mut tell = |_: &str| {
                    assert!(glass.bytes() <= one * 3 / 2);
                    true
                };
                glass.trace(subjects, &body, &Arc::default(), &mut tell).unwrap();
            });
        }
    });
}

/// Expressions, places and tiles made by chance: each is answered, or refused with a code of its own, within the memory
/// that is allowed.
#[test]
fn whatever_is_asked_is_answered_or_refused() {
    let subjects = little();
    let glass = Glass::new(32 << 20);
    let ids = ["to be or not", "that is"].map(|prompt| opened(&glass, &subjects, prompt));
    let Reply::Json(listing) =
        glass.ask(&subjects, &format!("traces/{}/tensors", ids[0]), &[], &Arc::default()).unwrap()
    else {
        panic!()
    };
    let listing: Value = serde_json::from_str(&listing).unwrap();
    let all = ["tensors", "params"].map(|part| listing[part].as_array().unwrap().clone()).concat();
    let names: Vec<(String, usize)> = all
        .iter()
        .map(|tensor| (tensor["name"].as_str().unwrap().to_string(), tensor["shape"].as_array().unwrap().len()))
        .collect();
    let draw = |n: u64, site: u64, end: usize| random::below(7, site, n, end as u64) as usize;
    let expected = [
        "too_large",
        "queue_full",
        "unknown_parameter",
        "trace_expired",
        "not_found",
        "invalid_value",
        "index_out_of_range",
        "not_for_this_model",
        "unknown_tensor",
        "out_of_time",
    ];
    let mut codes = std::collections::BTreeSet::new();
    let (mut answers, count) = (0, 4000);
    for n in 0..count {
        let (name, axes) = &names[draw(n, 0, names.len())];
        let wrapped = match draw(n, 1, 12) {
            0..=5 => name.clone(),
            6..=9 => format!("cos({name})"),
            10 => format!("{}{name}{}", "cos(".repeat(1 + draw(n, 2, 40)), ")".repeat(1 + draw(n, 3, 40))),
            _ => ["", "cos(", "cos()", "%", "cos)(", "..", "blocks.9.hook_resid_pre", "é"][draw(n, 4, 8)].into(),
        };
        let other = ["", &ids[0], &ids[1], "0123456789abcdef", "5"][draw(n, 5, 5)];
        let entry = |site: u64| {
            let number = |site| match draw(n, site, 8) {
                0 => "18446744073709551615".to_string(),
                1 => "99999999999999999999".into(),
                2 => "-1".into(),
                _ => draw(n, site + 1, 13).to_string(),
            };
            match draw(n, site, 8) {
                0..=2 => "*".to_string(),
                3..=5 => draw(n, site + 2, 6).to_string(),
                6 => format!("{}:{}", number(site + 10), number(site + 20)),
                _ => ["", ":", "1:", ":1", "x", "5:2", "0:0"][draw(n, site + 3, 7)].into(),
            }
        };
        let wide = if draw(n, 6, 8) == 0 { draw(n, 7, 7) } else { *axes };
        let at: Vec<String> = (0..wide as u64).map(|axis| entry(100 + 50 * axis)).collect();
        let budget = || {
            let budget = Budget::default().bytes([200, 100_000, 1 << 22][draw(n, 8, 3)]);
            Arc::new(if draw(n, 9, 9) == 0 { budget.steps(draw(n, 10, 400) as u64) } else { budget })
        };
        let done = match draw(n, 11, 5) {
            0 => {
                let whole = |site| [0u64, 1, 2, 12, 13, 256, u64::MAX][draw(n, site, 7)];
                let pool = ["max", "absmax", "mean"][draw(n, 23, 3)];
                let code = ["f32", "lin8", "log8", "slog8"][draw(n, 24, 4)];
                let index: Vec<u64> = (0..axes.saturating_sub(if draw(n, 12, 6) == 0 { 1 } else { 2 }))
                    .map(|axis| draw(n, 13 + axis as u64, 3) as u64)
                    .collect();
                let mut tile = json!({
                    "name": wrapped, "index": index, "tile": [whole(20) % 3, whole(21) % 3], "level": whole(22),
                    "pool": pool, "code": code,
                });
                if !other.is_empty() {
                    tile["other"] = other.into();
                }
                match draw(n, 25, 16) {
                    0 => tile["tile"] = json!([whole(26), whole(27)]),
                    1 => tile["level"] = json!(["1", -1, 0.5, []])[draw(n, 28, 4)].clone(),
                    2 => tile["index"] = json!([[-1], "0", {}, [0.5], vec![0; 9]])[draw(n, 29, 5)].clone(),
                    3 => tile = json!(["tile", 5, [], null])[draw(n, 30, 4)].clone(),
                    _ => {}
                }
                let mut tell = |frame: Vec<u8>| frame.starts_with(b"LTL1");
                glass.tiles(&ids[0], &json!({ "tiles": [tile] }), &budget, &mut tell).map(|()| 0)
            }
            1 => {
                let question = ["lens", "attribution", "mlp", "predictions", "path"][draw(n, 31, 5)];
                let value = [
                    "0",
                    "1",
                    "11",
                    "12",
                    "-1",
                    "",
                    "none",
                    "head",
                    "neuron",
                    "0:3",
                    "18446744073709551615",
                    "h0.1,t1",
                    "m0,u3",
                    "h9.9",
                    "w",
                    " a",
                ];
                let names = ["position", "k", "positions", "layer", "target", "foil", "unit", "via", "word"];
                let query: Vec<(String, String)> = (0..draw(n, 32, 4) as u64)
                    .map(|i| (names[draw(n, 40 + i, 9)].into(), value[draw(n, 50 + i, 16)].into()))
                    .collect();
                glass.ask(&subjects, &format!("traces/{}/{question}", ids[0]), &query, &budget()).map(|_| 0)
            }
            kind => {
                let mut query = vec![("at".to_string(), at.join(","))];
                let question = if kind == 2 { "explain" } else { "tensors" };
                if question == "tensors" && !other.is_empty() && draw(n, 60, 3) == 0 {
                    query.push(("other".into(), other.into()));
                }
                match draw(n, 61, 10) {
                    0 => query.push(("stats".into(), ["1", "0", "true", "yes", ""][draw(n, 62, 5)].into())),
                    1 => query.push(("format".into(), ["json", "csv", "npy", "f32", "exe"][draw(n, 63, 5)].into())),
                    2 => query.push(("at".into(), "*".into())),
                    3 => query = vec![],
                    _ => {}
                }
                let path = format!("traces/{}/{question}/{wrapped}", ids[0]);
                glass.ask(&subjects, &path, &query, &budget()).map(|_| 0)
            }
        };
        match done {
            Ok(_) => answers += 1,
            Err(error) => {
                assert!(expected.contains(&error.code()), "{n} {wrapped}: {} {error}", error.code());
                assert!(error.to_string().len() < 500, "{error}");
                codes.insert(error.code());
            }
        }
    }
    assert!(answers > count / 10 && answers < count, "{answers}");
    assert!(codes.len() >= 7, "{codes:?}");
}

/// A run that is changed is a trace of its own, which shows the numbers of the changed model; its difference from the
/// plain run shows where the change went.
#[test]
fn a_changed_run_is_a_trace_of_its_own() {
    let recipe = Recipe { steps: 3, batch_size: 2, context: 32, ..Recipe::preset("nano").unwrap() };
    let text = "to be or not to be, that is the question. ".repeat(40);
    let lm = Arc::new(Training::preset("nano").unwrap().recipe(recipe).text(text).run().unwrap().lm);
    let subjects = [Subject { name: "nano".into(), fingerprint: "1".into(), step: None, lm: lm.clone() }];
    let (glass, free) = (Glass::default(), &Arc::<Budget>::default());
    let prompt = "to be or not";
    let open = |given: Value| {
        let mut start = Value::Null;
        let body = json!({ "prompt": prompt, "interventions": given });
        let done = glass.trace(&subjects, &body, free, &mut |event| {
            let event: Value = serde_json::from_str(event).unwrap();
            start = if event["event"] == "start" { event } else { start.take() };
            true
        });
        done.map(|()| (start["id"].as_str().unwrap().to_string(), start["interventions"].clone()))
    };
    let silent = json!([{ "ablate": "blocks.1.hook_mlp_out", "pos": 2 }]);
    let (plain, none) = open(Value::Null).unwrap();
    let (changed, given) = open(silent.clone()).unwrap();
    assert_eq!((none, given), (Value::Null, silent.clone()));
    assert_eq!(open(silent.clone()).unwrap().0, changed, "the same question is the same trace");
    let ids = [open(json!([{ "ablate": "blocks.1.hook_mlp_out", "pos": 3 }])).unwrap().0, plain.clone()];
    assert!(!ids.contains(&changed));
    let ask = |question: &str, query: &[(&str, &str)]| -> Value {
        let query: Vec<(String, String)> = query.iter().map(|(a, b)| (a.to_string(), b.to_string())).collect();
        match glass.ask(&subjects, &format!("traces/{changed}/{question}"), &query, free).unwrap() {
            Reply::Json(text) => serde_json::from_str(&text).unwrap(),
            Reply::File(..) => panic!("{question}"),
        }
    };
    let edited = lm.intervene(&silent.to_string().parse().unwrap()).unwrap();
    for name in ["blocks.0.hook_resid_post", "blocks.1.hook_mlp_out", "blocks.1.hook_resid_post", "logits"] {
        let values = |answer: Value| -> Vec<f64> {
            answer["values"].as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
        };
        let want = edited.trace(prompt).unwrap().get(name).unwrap();
        let got: Vec<f32> = values(ask(&format!("tensors/{name}"), &[])).into_iter().map(|v| v as f32).collect();
        same_bits(name, &got, &want.values);
        // nothing changes before the place, nor at positions that do not see it
        let width = want.values.len() / want.shape[1];
        let differ = values(ask(&format!("tensors/{name}"), &[("other", &plain)]));
        for (position, row) in differ.chunks_exact(width).enumerate() {
            let may = position >= 2 && name != "blocks.0.hook_resid_post";
            assert!(may || row.iter().all(|v| *v == 0.0), "{name} at {position}");
            let must = position == 2 && name != "blocks.0.hook_resid_post";
            assert!(!must || row.iter().any(|v| *v != 0.0), "{name} at {position}");
        }
    }
    for question in ["lens", "attribution", "path", "mlp", "predictions", "explain/blocks.1.hook_resid_post"] {
        let at = [("at", "0,2,1")];
        ask(question, if question.starts_with("explain") { &at } else { &[] });
    }
    for (given, said) in [
        (json!("x"), "found no list"),
        (json!([{ "ablate": "blocks.1.hook_mlp_uot" }]), "did you mean"),
        (json!([{ "ablate": "blocks.1.hook_mlp_out", "pos": 99 }]), "there is no position 99"),
        (json!([{ "ablate": "blocks.1.hook_mlp_out", "pos": { "token": "Q" } }]), "step 1"),
    ] {
        let error = open(given.clone()).unwrap_err();
        assert!(error.code() == "invalid_value" && error.to_string().contains(said), "{given}: {error}");
    }
}

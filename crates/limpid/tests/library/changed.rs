//! What is said of a changed run is about what ran: parts of logits, sums behind numbers, likelihoods, sweeps. Beside
//! PyTorch's hooks (`reference/changed_runs.py`), and on random models with random steps. And what steps cost is paid
//! by those who ask for them.

use crate::by_layers::{batch, filled};
use crate::interventions::random_steps;
use crate::random_config::{configs, fill};
use limpid::backend::Cpu;
use limpid::config::{Config, NormPlace};
use limpid::draw::picture::swept::plot;
use limpid::draw::table::TableOptions;
use limpid::draw::view::Paint;
use limpid::engine::{Decoder, Engine, EngineCounts, EngineEvent, EngineLimits, EngineRequest};
use limpid::generate::{Options, Overflow, score};
use limpid::model::{Mode, Model};
use limpid::numeric::random;
use limpid::trace::attribution::{AttributionUnit, ModelPart, attribute};
use limpid::trace::explain::explain;
use limpid::trace::interventions::{ColumnAction, ResolvedSteps, StepPositions, StepSite, WeightAction};
use limpid::trace::path::{PathQuestion, largest, steps};
use limpid::trace::sweep::{SweepBy, SweepMetric, SweepQuestion, SweepSite};
use limpid::trace::{Keep, Trace};
use limpid::{Error, Interventions, Lm};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

/// The cases of a kind, each with its model.
fn cases(kind: &str) -> Vec<(Lm, Value)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let truth: Value = serde_json::from_slice(&std::fs::read(folder.join("changed_runs.json")).unwrap()).unwrap();
    let open = |case: &Value| Lm::open(folder.join("hf").join(case["model"].as_str().unwrap())).unwrap();
    truth[kind].as_array().unwrap().iter().map(|case| (open(case), case.clone())).collect()
}

fn ids(list: &Value) -> Vec<u32> {
    list.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

fn changed(lm: &Lm, case: &Value) -> Lm {
    lm.intervene(&Interventions::try_from(case["do"].clone()).unwrap()).unwrap()
}

#[test]
fn who_wrote_a_changed_logit_is_who_wrote_it_in_pytorch() {
    for (lm, case) in cases("why") {
        let lm = changed(&lm, &case);
        let trace = lm.trace_ids(&ids(&case["tokens"]), Keep::Blocks { seen: 1 << 20 }).unwrap();
        let (row, target) = (trace.batch().tokens.len() - 1, case["target"].as_u64().unwrap() as u32);
        for unit in [AttributionUnit::Component, AttributionUnit::Head, AttributionUnit::Neuron] {
            let all = attribute(&trace, row, (target, None), unit, usize::MAX).unwrap();
            assert!(all.additive && all.remainder.abs() < 1e-5, "{unit:?}: {} of {case}", all.remainder);
            let mut found = BTreeMap::<String, f64>::new();
            for bar in &all.bars {
                let name = match bar.part {
                    ModelPart::Step { step } => format!("step {step}"),
                    ModelPart::Attention { block } | ModelPart::Head { block, .. } => format!("L{block} attention"),
                    ModelPart::Mlp { block } | ModelPart::Unit { block, .. } => format!("L{block} MLP"),
                    _ => match bar.name.as_str() {
                        "embed" | "pos_embed" => "embed".into(),
                        name => name.trim_end_matches(" bias").into(), // of heads, or of units
                    },
                };
                *found.entry(name).or_default() += bar.value;
            }
            for (name, want) in case["parts"].as_object().unwrap() {
                let (want, got) = (want.as_f64().unwrap(), found.remove(name).unwrap_or(0.0));
                assert!((got - want).abs() < 1e-5, "{unit:?}: {name} is {got}, not {want}, of {case}");
                assert!(want != 0.0 || got == 0.0, "{unit:?}: {name} is cut off and has {got}, of {case}");
            }
            assert!(found.values().all(|v| v.abs() < 1e-6), "{unit:?}: {found:?} of {case}");
        }
        let asked = PathQuestion { row, target, foil: None };
        let hops = largest(&trace, asked).unwrap();
        for step in steps(&trace, asked, &hops, usize::MAX).unwrap() {
            assert!(step.additive && step.remainder.abs() < 2e-5, "{hops:?}: {} of {case}", step.remainder);
        }
    }
}

/// In every model, with any steps, parts add up, and so does the sum behind each number.
#[test]
#[ignore = "gate"]
fn changed_runs_add_up() {
    let (mut edited, mut numbers) = (0, 0);
    for (seed, config) in configs().iter().enumerate() {
        let (seed, mut draws) = (seed as u64, 0);
        let mut below = |n: usize| {
            draws += 1;
            random::below(seed, 53, draws, n as u64) as usize
        };
        let batch = batch(config, 1, 6, seed);
        let named = Model::new(config, Mode::Inspect { batch: 1, context: 6 }).unwrap();
        let steps = random_steps(&named, 6, &mut below);
        if steps.on(&batch.tokens, 6).is_err() {
            continue; // it needs another prompt
        }
        let (model, backend) = filled(config, Keep::default().mode(1, 6), 1, seed);
        let steps = Some(Arc::new(steps));
        let trace = Trace::run_with_steps(&model, Box::new(backend), &batch, steps, Keep::default()).unwrap();
        let names: Vec<String> = named.tensors.iter().map(|tensor| tensor.name.clone()).collect();
        for name in names.iter().filter(|name| !name.contains("loss")) {
            for _ in 0..3 {
                let shape = trace.shape(name).unwrap().1;
                let at: Vec<usize> = shape.iter().map(|n| below(*n)).collect();
                let why = explain(&trace, name, &at).unwrap();
                let sizes = why.parts.iter().flat_map(|part| part.terms.iter().map(|term| term.value.abs()));
                let sizes = sizes.chain(why.steps.iter().map(|step| step.result.abs())).filter(|v| v.is_finite());
                // a weight that a step cuts off leaves what f32 rounded of its product
                let operands =
                    why.parts.iter().flat_map(|part| part.terms.iter().filter_map(|term| term.right.as_ref()));
                let cut: f64 = operands.map(|right| right.value.abs()).filter(|v| v.is_finite()).sum();
                let most = 1e-4 * (sizes.sum::<f64>() + 1e-3) + 1e-7 * cut;
                assert!(!why.rounding.is_finite() || why.rounding.abs() <= most, "{why:#?} of {config:?}");
                numbers += 1;
            }
        }
        if config.lm_head {
            let all = attribute(&trace, 5, (1, Some(2)), AttributionUnit::Head, usize::MAX).unwrap();
            let linear = config.logits_softcap == 0.0 && !config.head_transform;
            let told = linear && config.norm_place != NormPlace::Post && config.norm_place != NormPlace::PostAttention;
            let size: f64 = all.bars.iter().map(|bar| bar.value.abs()).sum();
            let near = all.remainder.abs() <= 1e-4 * (size + 1e-3);
            assert!(near || !linear, "{} of {size} in {config:?}", all.remainder);
            assert!(all.additive || !told, "{} in {config:?}", all.remainder);
            edited += usize::from(all.bars.iter().any(|bar| matches!(bar.part, ModelPart::Step { .. })));
        }
    }
    assert!(edited > 20 && numbers > 5000, "{edited} {numbers}");
}

/// Positions count the prompt's tokens; those of the continuation are generated ones.
#[test]
fn a_continuation_is_not_the_prompt() {
    for (lm, case) in cases("score") {
        let lm = changed(&lm, &case);
        let mut engine = lm.engine(&EngineLimits::new(lm.config(), 1, 16)).unwrap();
        let found = score(&mut engine, &ids(&case["prompt"]), &ids(&case["continuation"])).unwrap().total;
        assert!((found - case["total"].as_f64().unwrap()).abs() < 1e-5, "{found}: {case}");
    }
}

/// What a factor stretches is a site like any other, in its own numbers.
#[test]
fn sites_that_a_factor_stretches_can_be_changed() {
    for (lm, case) in cases("scaled") {
        let trace = changed(&lm, &case).trace_ids(&ids(&case["tokens"]), Keep::Blocks { seen: 1 << 20 }).unwrap();
        let last = trace.batch().tokens.len() - 1;
        let want: Vec<f64> = case["logits"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect();
        let wide = lm.config().d_model;
        let stream = trace.last().unwrap().values[last * wide..][..wide].to_vec();
        let mut got = vec![];
        trace.logits(&stream, |_, logits| got = logits.to_vec()).unwrap();
        let apart = got.iter().zip(&want).map(|(got, want)| (f64::from(*got) - want).abs()).fold(0.0, f64::max);
        assert!(apart < 1e-5, "{apart} of {case}");
    }
}

/// A sweep whose patches all lead away is told as such, and the cell that leads furthest away is the first.
#[test]
fn a_sweep_that_restores_nothing_says_so() {
    for (lm, case) in cases("sweep") {
        let question = SweepQuestion {
            clean: ids(&case["clean"]),
            corrupt: ids(&case["corrupt"]),
            site: SweepSite::K,
            by: SweepBy::Head,
            metric: SweepMetric::LogProbability { answer: case["answer"].as_u64().unwrap() as u32 },
            position: -1,
            to: None,
            confirmed: false,
        };
        let sweep = lm.sweep(&question, &mut |_| true).unwrap();
        let want = case["recovered"].as_array().unwrap().iter().flat_map(|row| row.as_array().unwrap());
        let want: Vec<f64> = want.map(|v| v.as_f64().unwrap()).collect();
        let same = sweep.recovered.values.iter().zip(&want).all(|(got, want)| (f64::from(*got) - want).abs() < 1e-3);
        assert!(same, "{:?} of {case}: {} and {}", sweep.recovered.values, sweep.clean, sweep.corrupt);
        let least = want.iter().copied().fold(0.0, f64::min);
        assert!((sweep.peaks[0].recovered - least).abs() < 1e-3 && sweep.nothing_restored().is_some(), "{case}");
        let words: Vec<String> = (0..3).map(|n| format!("<{n}>")).collect();
        assert!(sweep.sentence(&sweep.peaks[0], &words).contains("leads away from the clean run, by"));
        let text = plot(&sweep, &words).text(Paint::Shades, &TableOptions::default());
        assert!(text.contains(&format!("from {least:.2} to -")), "{text}");
    }
}

/// Without `from_pos` a source has as many tokens as the prompt, and nothing follows the prompt.
#[test]
fn a_source_is_as_long_as_the_prompt() {
    let lm = Lm::open(Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/hf/gpt2-plain")).unwrap();
    let prompt = [5, 6, 7, 8];
    let patch = |n: usize| json!({ "patch": "blocks.1.hook_resid_pre", "from": { "tokens": vec![1; n] } });
    let weights = |n: usize| json!({ "patch": "blocks.1.attn.hook_pattern", "from": { "tokens": vec![1; n] } });
    let freeze = |n: usize| json!({ "freeze_attention": "all", "from": { "tokens": vec![1; n] } });
    for length in [1, 2, 3, 4, 5, 6, 9, 14] {
        for pos in [None, Some(json!("prompt")), Some(json!([0, 1])), Some(json!("all")), Some(json!(-1))] {
            for mut step in [patch(length), weights(length), freeze(length)] {
                if let Some(pos) = pos.clone().filter(|_| step.get("freeze_attention").is_none()) {
                    step["pos"] = pos;
                }
                let lm = lm.intervene(&Interventions::try_from(json!([step])).unwrap()).unwrap();
                let looked =
                    lm.trace_ids(&prompt, Keep::Blocks { seen: 0 }).map(drop).map_err(|error| error.to_string());
                assert_eq!(looked.is_ok(), length == 4, "{step}: {looked:?}");
                let said = looked.err().unwrap_or_else(|| "source of the same length".into());
                assert!(said.contains("source of the same length"), "{step}: {said}");
                // one token more is no position more
                let mut engine = lm.engine(&EngineLimits::new(lm.config(), 1, 16)).unwrap();
                for (more, fits) in [(1, true), (3, !["all", ""].contains(&pos_name(&step)))] {
                    let options = Options { max_tokens: more, overflow: Overflow::Stop, ..Options::default() };
                    let request =
                        EngineRequest { prompt: prompt.into(), options, log_probs: None, reuse: true, steps: None };
                    assert_eq!(engine.submit(request).is_ok(), length == 4 && fits, "{step} and {more} tokens");
                }
            }
        }
    }
}

/// Which positions a step names by a word; `""` if it says nothing and means all.
fn pos_name(step: &Value) -> &str {
    let usual = if step.get("freeze_attention").is_some() { "prompt" } else { "" };
    step.get("pos").map_or(usual, |pos| pos.as_str().unwrap_or("listed"))
}

/// Lists that name a number twice are refused, in whatever words, and with them 100,000 equal ones.
#[test]
fn lists_name_each_number_once() {
    let lm = Lm::open(Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/hf/gpt2-plain")).unwrap();
    let pattern = |more: Value| {
        let mut step = json!({ "scale": "blocks.0.attn.hook_pattern", "by": 0.5 });
        step.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        step
    };
    let source = json!({ "tokens": [1, 2, 3] });
    let wide: Vec<f32> = vec![0.5; lm.config().d_model];
    for (step, said) in [
        (pattern(json!({ "key": [1, 1] })), "`key` names 1 twice"),
        (pattern(json!({ "key": vec![0; 100_000] })), "`key` names 0 twice"),
        (pattern(json!({ "head": [1, 0, 1] })), "`head` names 1 twice"),
        (pattern(json!({ "pos": [2, 0, 2] })), "`pos` names 2 twice"),
        (pattern(json!({ "pos": [2, -1] })), "`pos` names 2 twice"),
        (pattern(json!({ "pos": vec![1; 100_000] })), "`pos` names 1 twice"),
        (json!({ "ablate": "blocks.0.mlp.hook_post", "unit": [3, 3] }), "`unit` names 3 twice"),
        (json!({ "freeze_attention": { "layer": [0, 0] }, "from": source }), "`layer` names 0 twice"),
        (json!({ "control_vector": { "0": wide }, "layer": [0, 0] }), "`layer` names 0 twice"),
        (json!({ "control_vector": { "0": wide, "00": wide } }), "a vector for each layer"),
        (json!({ "set": "blocks.0.attn.hook_pattern", "row": { "0": 1, "00": 2 } }), "`row` names 0 twice"),
        (
            json!({ "patch": "blocks.0.hook_resid_pre", "pos": [1, -2], "from": source, "from_pos": [0, 1] }),
            "`pos` names 1 twice",
        ),
    ] {
        let found = Interventions::try_from(json!([step]))
            .map_err(Error::from)
            .and_then(|given| lm.intervene(&given)?.trace_ids(&[4, 5, 6], Keep::Blocks { seen: 0 }));
        let found = found.map(drop).unwrap_err().to_string();
        assert!(found.contains(said), "{said}: {found}");
    }
}

/// An engine on random weights.
fn engine(config: &Config, sequences: usize, prompt_rows: usize) -> Engine {
    let limits = EngineLimits { prompt_rows, sequences, ..EngineLimits::new(config, sequences, config.context_length) };
    let mut decoder = Decoder::new(config, limits.decoder(config), |model| Ok(Box::new(Cpu::new(model, 1)))).unwrap();
    let (model, backend) = decoder.parts();
    fill(model, backend, 3);
    Engine::new(decoder, None, &limits)
}

/// While requests with as many costly steps as there may be run, in any number, a plain one advances in every turn, by
/// half of what prompts have, and no turn does more than its rows are worth, but for one row of each costly sequence
/// that may run beside others.
#[test]
fn a_plain_request_waits_for_no_costly_one() {
    let config = Config {
        vocab_size: 40,
        context_length: 256,
        d_model: 24,
        n_head: 3,
        n_layer: 2,
        d_ff: 40,
        ..Config::default()
    };
    let named = Model::new(&config, Mode::Inspect { batch: 1, context: 1 }).unwrap();
    let site = StepSite::find(&named, "blocks.1.attn.hook_pattern", 1).unwrap();
    let keys: Arc<BTreeSet<usize>> = Arc::new((0..256).collect());
    let scale = |n: usize| WeightAction::Scale(1.0 + 0.01 * n as f32, Some(keys.clone()));
    let costly: ResolvedSteps =
        (0..256).map(|n| site.weights_step(None, StepPositions::All, scale(n)).unwrap()).collect();
    let (sequences, prompt_rows) = (6, 32);
    let ask = |length: usize, max_tokens: usize, n: u64| {
        let prompt = (0..length as u64).map(|i| random::below(7, n, i, 40) as u32).collect();
        let options = Options { max_tokens, overflow: Overflow::Stop, ..Options::default() };
        EngineRequest { prompt, options, log_probs: None, reuse: false, steps: None }
    };
    let edited = |request: EngineRequest| {
        let steps = Some(request.place(&costly, &config).unwrap());
        EngineRequest { steps, ..request }
    };
    let weight = edited(ask(100, 20, 0)).steps.unwrap().weight(&named);
    assert!(weight > 100, "{weight}: such steps cost much more than a row");
    let plain = ask(100, 5, 99);
    let (want, ..) = answer(&mut engine(&config, sequences, prompt_rows), plain.clone());
    for many in [1, 3, 9] {
        for before in [0, 1, 7, 150] {
            let mut engine = engine(&config, sequences, prompt_rows);
            (0..many).for_each(|n| _ = engine.submit(edited(ask(100, 20, n))).unwrap());
            (0..before).for_each(|_| _ = engine.round(&mut |_, _| true).unwrap());
            let (got, rounds, work) = answer(&mut engine, plain.clone());
            assert_eq!(got, want, "beside {many} after {before}");
            assert!(rounds <= 100usize.div_ceil(prompt_rows / 2) + 5, "{rounds} rounds beside {many} after {before}");
            // a row of one that writes, and a row of one whose prompt runs
            assert!(work <= sequences + prompt_rows + 2 * weight, "{work} rows beside {many} after {before}");
            while engine.round(&mut |_, _| true).unwrap() {}
            let EngineCounts { running, waiting, held, .. } = engine.counts();
            assert_eq!((running, waiting, held), (0, 0, 0));
        }
    }
}

/// Runs until a request is answered: its tokens, the rounds, and the most work of one.
fn answer(engine: &mut Engine, request: EngineRequest) -> (Vec<u32>, usize, usize) {
    let (id, mut rounds, mut done, mut work) = (engine.submit(request).unwrap(), 0, None, 0);
    while done.is_none() {
        engine
            .round(&mut |which, event| {
                if let (true, EngineEvent::Done(sample)) = (which == id, event) {
                    done = Some(sample.tokens);
                }
                true
            })
            .unwrap();
        work = engine.counts().work.max(work);
        rounds += 1;
    }
    (done.unwrap(), rounds, work)
}

/// Requests with costly steps take three quarters of the places at most, also those whose prompts have not begun: while
/// any are free, plain requests that fit a turn run at once, whatever waits before them.
#[test]
fn costly_requests_leave_a_quarter_of_the_places() {
    let config = Config {
        vocab_size: 40,
        context_length: 256,
        d_model: 24,
        n_head: 3,
        n_layer: 1,
        d_ff: 40,
        ..Config::default()
    };
    let named = Model::new(&config, Mode::Inspect { batch: 1, context: 1 }).unwrap();
    let site = StepSite::find(&named, "blocks.0.hook_resid_post", 1).unwrap();
    let ask = |length: usize, n: u64| {
        let prompt = (0..length as u64).map(|i| random::below(7, n, i, 40) as u32).collect();
        let options = Options { max_tokens: 150, overflow: Overflow::Stop, ..Options::default() };
        EngineRequest { prompt, options, log_probs: None, reuse: false, steps: None }
    };
    let columns: Vec<usize> = (0..site.width()).collect();
    let scale = |_| site.step(&columns, StepPositions::All, ColumnAction::Scale(1.01)).unwrap();
    let steps: ResolvedSteps = (0..16).map(scale).collect();
    let costly = |length: usize, n: u64| {
        let request = ask(length, n);
        let placed = request.place(&steps, &config).unwrap();
        assert_eq!(placed.weight(&named), 2, "as little as can be");
        EngineRequest { steps: Some(placed), ..request }
    };
    let (sequences, most) = (8, 6);
    let counts = |engine: &mut Engine| {
        engine.round(&mut |_, _| true).unwrap();
        let EngineCounts { running, waiting, .. } = engine.counts();
        (running, waiting)
    };
    for (length, after) in [(1, 0), (1, 1), (1, 40), (100, 0), (100, 1), (100, 40), (100, 90)] {
        let mut engine = engine(&config, sequences, 32);
        (0..12).for_each(|n| _ = engine.submit(costly(length, n)).unwrap());
        let running = (0..after).map(|_| counts(&mut engine).0).last().unwrap_or(0);
        assert!(running <= most, "{running} run");
        let plain = sequences - running.max(1);
        (0..plain as u64).for_each(|n| _ = engine.submit(ask(1, 20 + n)).unwrap());
        let (running, waiting) = counts(&mut engine);
        assert_eq!((running, waiting), (sequences, 12 + plain - sequences), "costly prompts of {length} after {after}");
    }
}

/// Who asks for more answers than there are places leaves some to others, who are answered as if alone.
#[test]
fn who_asks_for_many_answers_leaves_places_to_others() {
    let config =
        Config { vocab_size: 40, context_length: 256, d_model: 24, n_head: 3, n_layer: 1, ..Config::default() };
    let (sequences, prompt_rows) = (8, 32);
    let ask = |length: usize, max_tokens: usize, n: u64| {
        let prompt = (0..length as u64).map(|i| random::below(7, n, i, 40) as u32).collect();
        let options = Options { max_tokens, overflow: Overflow::Stop, ..Options::default() };
        EngineRequest { prompt, options, log_probs: None, reuse: false, steps: None }
    };
    let plain = ask(40, 5, 99);
    let (want, ..) = answer(&mut engine(&config, sequences, prompt_rows), plain.clone());
    for many in [16, 40] {
        for before in [0, 1, 40] {
            let mut engine = engine(&config, sequences, prompt_rows);
            (0..many).for_each(|n| _ = engine.submit_nth(ask(10, 200, n as u64), n).unwrap());
            (0..before).for_each(|_| _ = engine.round(&mut |_, _| true).unwrap());
            let (got, rounds, _) = answer(&mut engine, plain.clone());
            assert_eq!(got, want, "beside {many} after {before}");
            // the prompts of all that run together may come before its own
            let most = (sequences * 10 + 40).div_ceil(prompt_rows / 2) + 5;
            assert!(rounds <= most, "{rounds} rounds beside {many} after {before}, at most {most}");
            while engine.round(&mut |_, _| true).unwrap() {}
        }
    }
}

//! Sweeps: every cell is a single run with the same intervention, bit for bit, whatever the model, the site and the
//! metric; estimates come from gradients; questions without an answer are refused.

use crate::common::folder::Folder;
use crate::common::tiny;
use crate::random_config::configs;
use limpid::checkpoint::{self, Format, ModelData, store::Dtype};
use limpid::config::{Config, Mask, NormPlace, Parallel, Positions};
use limpid::model::{Mode, Model, Param};
use limpid::numeric::random;
use limpid::ops::IGNORE;
use limpid::trace::compare::compare;
use limpid::trace::index_of;
use limpid::trace::predict::Prediction;
use limpid::trace::sweep::{Sweep, SweepBy, SweepMetric, SweepQuestion, SweepReceiver, SweepSite};
use limpid::trace::{Keep, Trace};
use limpid::{Error, Interventions, Lm, Machine};
use limpid_core::numeric::math;
use serde_json::{Value, json};

const TOKENS: usize = 5;

/// A model in a file, with weights that make its heads differ; `spoil` changes them.
fn lm(config: &Config, seed: u64, spoil: impl Fn(&Param, &mut [f32])) -> (Lm, Folder) {
    let folder = Folder::absent("sweep");
    let values = |param: &Param| {
        let draw = |i: usize| (random::normal(seed, random::site(&param.name), i as u64) * 0.4) as f32;
        let mut values: Vec<f32> = (0..param.region.len()).map(draw).collect();
        spoil(param, &mut values);
        values
    };
    checkpoint::save(&folder.0, Format::Limpid, &Dtype::F32, &ModelData::new(config, &values)).unwrap();
    (Lm::open(&folder.0).unwrap().with_machine(Machine::cpu(1 + seed as usize % 2)), folder)
}

fn sound(config: &Config, seed: u64) -> (Lm, Folder) {
    lm(config, seed, |_, _| ())
}

/// Both prompts differ at position 1, and at another one.
fn question(config: &Config, seed: u64) -> SweepQuestion {
    let v = config.vocab_size as u64;
    let clean: Vec<u32> = (0..TOKENS as u64).map(|i| random::below(seed, 3, i, v) as u32).collect();
    let mut corrupt = clean.clone();
    for at in [1, 1 + random::below(seed, 4, 0, TOKENS as u64 - 1) as usize] {
        corrupt[at] = (clean[at] + 1 + at as u32) % v as u32;
    }
    SweepQuestion {
        clean,
        corrupt,
        site: SweepSite::ResidPre,
        by: SweepBy::Position,
        metric: SweepMetric::LogitDifference { answer: 1, foil: 3 },
        position: -1,
        to: None,
        confirmed: false,
    }
}

/// The grid of a long text, pair by pair, is refused before its cells are made, and what a layer of it takes is known.
#[test]
fn a_grid_without_bounds_is_refused() {
    let config = Config { context_length: 1 << 20, ..tiny() };
    let of = |tokens: usize| SweepQuestion {
        clean: vec![1; tokens],
        corrupt: vec![2; tokens],
        site: SweepSite::Pattern,
        by: SweepBy::Pair,
        metric: SweepMetric::Divergence,
        confirmed: true,
        ..question(&config, 1)
    };
    of(300).check(&config).unwrap();
    let error = of(20_000).check(&config).unwrap_err().to_string();
    assert!(error.contains("cells, more than 16,777,216"), "{error}");
    let values = |tokens: usize| 2 * 4 * config.n_head * tokens * tokens;
    assert!((40..100).contains(&((of(300).layer_bytes(&config) - values(300)) / (config.n_head * 300 * 300))));
    let whole = SweepQuestion { by: SweepBy::Head, ..of(12_000) };
    assert!(whole.layer_bytes(&config) >= values(12_000), "both patterns count, however few the cells");
}

fn logits(run: &Trace) -> Vec<Vec<f32>> {
    let (last, mut rows) = (run.last().unwrap(), vec![]);
    run.logits(&last.values, |_, logits| rows.push(logits.to_vec())).unwrap();
    rows
}

/// The metric of a run, by other ways than a sweep's.
fn metric(lm: &Lm, question: &SweepQuestion, run: &Trace) -> f64 {
    let row = (TOKENS as i64 + question.position) as usize;
    let (rows, clean) = (logits(run), lm.trace_ids(&question.clean, Keep::default()).unwrap());
    match question.metric {
        SweepMetric::LogitDifference { answer, foil } => {
            f64::from(rows[row][answer as usize]) - f64::from(rows[row][foil as usize])
        }
        SweepMetric::LogProbability { answer } => {
            let top = rows[row].iter().fold(f64::NEG_INFINITY, |top, v| top.max(f64::from(*v)));
            let sum: f64 = rows[row].iter().map(|v| math::exp_f64(f64::from(*v) - top)).sum();
            f64::from(rows[row][answer as usize]) - (top + math::ln_f64(sum))
        }
        SweepMetric::Loss => {
            let targets = clean.batch().targets.clone();
            let counted = targets.iter().zip(rows).filter(|(id, _)| **id != IGNORE);
            let losses: Vec<f64> = counted
                .map(|(id, mut logits)| Prediction::new(&mut logits, Some(*id), 1).target.unwrap().loss.into())
                .collect();
            losses.iter().sum::<f64>() / losses.len() as f64
        }
        SweepMetric::Divergence => compare(&clean, run).unwrap().kl.unwrap()[row],
    }
}

/// The intervention of a cell, written anew.
fn intervention(lm: &Lm, question: &SweepQuestion, (axes, index): (&[&str], &[usize])) -> Interventions {
    let at = |axis: &str| axes.iter().position(|own| *own == axis).map(|place| index[place]);
    let model = Model::new(lm.config(), Mode::Inspect { batch: 1, context: 1 }).unwrap();
    let name = question.tensor(&model, index[0]);
    let mut step = json!({ "patch": name, "from": { "tokens": question.clean } });
    if let (Some(head), Some(query), Some(key)) = (at("head"), at("query_pos"), at("key_pos")) {
        let weights = |ids: &[u32]| -> Vec<f32> {
            let pattern = lm.trace_ids(ids, Keep::default()).unwrap().get(&name).unwrap();
            (0..TOKENS).map(|key| pattern.at(&[0, head, query, key]).unwrap()).collect()
        };
        let mut row = weights(&question.corrupt);
        row[key] = weights(&question.clean)[key];
        let seen = row.iter().enumerate().filter(|(_, weight)| **weight != 0.0);
        let row: serde_json::Map<String, Value> = seen.map(|(key, weight)| (key.to_string(), json!(weight))).collect();
        step = json!({ "set": name, "row": row });
    }
    if let Some(head) = at("head") {
        step["head"] = head.into();
    }
    if let Some(position) = at("pos").or(at("query_pos")) {
        step["pos"] = position.into();
    }
    if let Some(SweepReceiver { tensor, heads }) = &question.to {
        let mut steps = vec![step];
        steps.extend(
            between(&name, tensor).map(|held| json!({ "patch": held, "from": { "tokens": question.corrupt } })),
        );
        step = json!({ "patch": tensor, "from": { "tokens": question.corrupt, "do": steps } });
        if let Some(heads) = heads {
            step["head"] = json!(heads);
        }
    }
    Interventions::try_from(json!([step])).unwrap()
}

/// What writes to the stream on the way from a tensor to another, in models whose blocks are attention and then an MLP.
fn between(from: &str, to: &str) -> impl Iterator<Item = String> {
    // where in its block a tensor reads the stream, or writes to it
    let place = |name: &str, reads: bool| {
        let block: usize = name.split('.').nth(1).unwrap().parse().unwrap();
        let branch = match name.rsplit('.').next().unwrap() {
            "hook_resid_pre" => 0, // it has what the blocks before wrote
            "hook_resid_mid" | "hook_pre" | "hook_mlp_out" if reads => 1,
            "hook_resid_post" => 2,
            _ if reads => 0,
            "hook_mlp_out" => 2,
            _ => 1, // heads and attention's output are in the stream after attention
        };
        2 * block + branch
    };
    (place(from, false)..place(to, true))
        .map(|n| format!("blocks.{}.{}", n / 2, ["hook_attn_out", "hook_mlp_out"][n % 2]))
}

/// Path patching: the paths to queries, keys, values, weights of heads, to units, to the stream and to the logits.
#[test]
#[ignore = "gate"]
fn a_sweep_of_paths_is_its_single_runs() {
    let rotary = Config { n_layer: 3, n_head: 4, n_kv_head: Some(2), positions: Positions::Rotary, ..tiny() };
    let post = Config { norm_place: NormPlace::Post, final_norm: false, ..tiny() };
    let receivers = [
        ("blocks.1.attn.hook_q", Some(vec![1])),
        ("blocks.1.attn.hook_k", None),
        ("blocks.1.attn.hook_v", Some(vec![0, 1])),
        ("blocks.1.attn.hook_pattern", Some(vec![1])),
        ("blocks.1.mlp.hook_pre", None),
        ("blocks.1.hook_resid_pre", None),
        ("blocks.1.hook_resid_mid", None),
        ("blocks.1.hook_resid_post", None),
    ];
    let (mut n, mut changed) = (0, 0);
    // in the last one a cell without a path restores the most, and is no peak
    let turned = Config { positions: Positions::Rotary, ..tiny() };
    for (seed, config) in [(0, &tiny()), (1, &rotary), (2, &post), (0, &turned)] {
        let (lm, _folder) = sound(config, 40 + seed);
        for (tensor, heads) in &receivers {
            for site in [SweepSite::ResidPre, SweepSite::AttnOut, SweepSite::MlpOut, SweepSite::Z, SweepSite::Pattern] {
                n += 1;
                let to = Some(SweepReceiver { tensor: tensor.to_string(), heads: heads.clone() });
                let by = [SweepBy::Head, SweepBy::Position][n % 2];
                changed += check(&lm, &SweepQuestion { site, by, to, ..question(config, 7 + seed) });
            }
        }
    }
    assert!(n == 160 && changed > 300, "{changed} cells of {n} sweeps changed something");
}

/// All paths from an MLP to the logits but the direct one begin with what a later layer reads.
#[test]
fn a_path_is_a_part_of_the_whole() {
    let (lm, _folder) = sound(&tiny(), 9);
    let last = tiny().n_layer - 1;
    let to = |tensor: String| Some(SweepReceiver { tensor, heads: None });
    let whole = SweepQuestion { site: SweepSite::MlpOut, ..question(&tiny(), 9) };
    let direct = SweepQuestion { to: to(format!("blocks.{last}.hook_resid_post")), ..whole.clone() };
    let [whole, direct] = [whole, direct].map(|question| lm.sweep(&question, &mut |_| true).unwrap().metric.values);
    let split = last * TOKENS;
    // nothing lies between the last MLP and the head; something does after the others
    assert_eq!(whole[split..], direct[split..]);
    assert_ne!(whole[..split], direct[..split]);
    let before =
        SweepQuestion { to: to("blocks.0.hook_resid_mid".into()), site: SweepSite::MlpOut, ..question(&tiny(), 9) };
    let said = lm.sweep(&before, &mut |_| true).unwrap_err().to_string();
    assert!(said.contains("no path leads from `mlp_out` to `blocks.0.hook_resid_mid`"), "{said}");
    for (tensor, heads, expected) in [
        ("blocks.1.atn.hook_q", None, "did you mean"),
        ("blocks.1.attn.hook_q", Some(vec![9]), "no head 9"),
        ("blocks.1.hook_mlp_out", Some(vec![0]), "not divided into heads"),
        ("blocks.1.attn.hook_pattern", Some(vec![3]), "no head 3"),
        ("logits", None, "change `blocks.1.hook_resid_post`"),
    ] {
        let to = Some(SweepReceiver { tensor: tensor.into(), heads });
        let said = lm.sweep(&SweepQuestion { to, ..question(&tiny(), 9) }, &mut |_| true).unwrap_err().to_string();
        assert!(said.contains(expected), "{said}");
    }
    let estimate = SweepQuestion { to: to("blocks.1.hook_resid_mid".into()), ..question(&tiny(), 9) };
    assert!(lm.sweep_estimate(&estimate).unwrap_err().to_string().contains("an estimate adds up all paths"));
}

/// Holds a sweep against single runs; how many cells changed something.
fn check(lm: &Lm, question: &SweepQuestion) -> usize {
    let mut rows = 0;
    let sweep = lm
        .sweep(question, &mut |row| {
            assert_eq!(row.layer, rows);
            rows += 1;
            true
        })
        .unwrap_or_else(|error| panic!("{question:?}: {error}"));
    let Sweep { clean, corrupt, metric: grid, recovered, peaks } = sweep;
    let what = format!("{question:?} of {:?}", lm.config());
    assert_eq!((rows, &grid.axes, &grid.shape), (lm.config().n_layer, &recovered.axes, &recovered.shape), "{what}");
    let of = |ids: &[u32], lm: &Lm| metric(lm, question, &lm.trace_ids(ids, Keep::default()).unwrap());
    assert_eq!([clean, corrupt], [of(&question.clean, lm), of(&question.corrupt, lm)], "{what}");
    let (mut changed, mut reached) = (0, vec![]);
    let model = Model::new(lm.config(), Mode::Inspect { batch: 1, context: 1 }).unwrap();
    let order = |name: &str| model.tensors.iter().position(|tensor| tensor.name == name).unwrap();
    for (n, got) in grid.values.iter().enumerate() {
        let index = index_of(n, &grid.shape);
        let steps = intervention(lm, question, (&grid.axes, &index));
        // no path leads from a tensor to itself; the stream between two blocks has two names
        let is_receiver = |to: &SweepReceiver| {
            let written = json!(steps);
            let sender = written[0]["from"]["do"][0]["patch"].as_str().unwrap();
            let before = |name: &str| format!("blocks.{}.{name}", index[0].wrapping_sub(1));
            sender == to.tensor || sender.ends_with("hook_resid_pre") && to.tensor == before("hook_resid_post")
        };
        let patched = if question.to.as_ref().is_some_and(is_receiver) { lm } else { &lm.intervene(&steps).unwrap() };
        let want = metric(lm, question, &patched.trace_ids(&question.corrupt, Keep::default()).unwrap());
        assert_eq!(got.to_bits(), (want as f32).to_bits(), "{index:?} of {what}: {got} and {want}");
        let share = (want - corrupt) / (clean - corrupt) + 0.0;
        assert_eq!(recovered.values[n].to_bits(), (share as f32).to_bits(), "{index:?} of {what}");
        changed += usize::from(want != corrupt);
        // no other cell can restore the most: there is no path from it
        let sender = order(&question.tensor(&model, index[0]));
        if question.to.as_ref().is_none_or(|to| sender < order(&to.tensor)) {
            reached.push(recovered.values[n]);
        }
    }
    let most = reached.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let least = reached.into_iter().fold(f32::INFINITY, f32::min);
    // where nothing is restored, by more than is said as 0.00, the first leads furthest away
    let first = if most < 0.005 && least <= -0.005 { least } else { most };
    assert_eq!(peaks[0].recovered as f32, first, "{what}");
    for peak in &peaks {
        let again = lm.intervene(&peak.intervention).unwrap();
        let again = metric(lm, question, &again.trace_ids(&question.corrupt, Keep::default()).unwrap());
        assert_eq!(grid.at(&peak.index).unwrap(), again as f32, "{} of {what}", peak.intervention);
    }
    changed
}

fn sites() -> impl Iterator<Item = SweepSite> {
    SweepSite::names().into_iter().map(|name| name.parse().unwrap())
}

/// Every site, grid and metric, on four kinds of models.
#[test]
#[ignore = "gate"]
fn a_sweep_is_its_single_runs() {
    let gpt2 = tiny();
    let models = [
        gpt2.clone(),
        Config { n_head: 4, n_kv_head: Some(2), positions: Positions::Rotary, ffn_gated: true, ..gpt2.clone() },
        Config { parallel: Parallel::OneNorm, ..gpt2.clone() },
        Config { norm_place: NormPlace::Post, final_norm: false, mask: Mask::Bidirectional, n_segment: 2, ..gpt2 },
    ];
    let metrics = [
        SweepMetric::LogitDifference { answer: 1, foil: 3 },
        SweepMetric::LogProbability { answer: 2 },
        SweepMetric::Loss,
        SweepMetric::Divergence,
    ];
    let (mut n, mut changed) = (0, 0);
    for (seed, config) in models.iter().enumerate() {
        let (lm, _folder) = sound(config, seed as u64);
        for site in sites() {
            for by in [SweepBy::Head, SweepBy::Position, SweepBy::Pair] {
                let parallel = config.parallel != Parallel::No && site == SweepSite::ResidMid;
                if parallel || by == SweepBy::Pair && site != SweepSite::Pattern {
                    continue;
                }
                n += 1;
                // a masked model is asked about a word in the middle
                let position = if config.mask == Mask::Bidirectional { -3 } else { -1 };
                let metric = metrics[n % 4];
                changed += check(&lm, &SweepQuestion { site, by, metric, position, ..question(config, n as u64) });
            }
        }
    }
    assert!(n > 60 && changed > 800, "{changed} cells of {n} sweeps changed something");
}

/// Any model there is, on any site that it has.
#[test]
#[ignore = "gate"]
fn every_model_can_be_swept() {
    let mut absent = 0;
    for (seed, config) in configs().into_iter().enumerate() {
        // a folder of fewer than four tensors a layer is taken for a damaged one
        let config = &Config { shared_blocks: config.shared_blocks && config.ffn_bias && config.norm_gain, ..config };
        let (lm, _folder) = sound(config, seed as u64);
        let site = sites().nth(seed % 9).unwrap();
        let question = SweepQuestion { site, ..question(config, seed as u64) };
        let model = Model::new(config, Mode::Inspect { batch: 1, context: 1 }).unwrap();
        if model.tensor(&question.tensor(&model, 0)).is_some() {
            match lm.sweep(&question, &mut |_| true) {
                // a window or the absence of attention may hide what differs
                Err(Error::Sweep(error)) => {
                    assert!(error.to_string().contains("both prompts give the same"), "{error}")
                }
                _ => _ = check(&lm, &question),
            }
        } else {
            let error = lm.sweep(&question, &mut |_| true).unwrap_err().to_string();
            assert!(site == SweepSite::ResidMid && error.contains("parallel blocks have none"), "{error}");
            absent += 1;
        }
    }
    assert!((1..20).contains(&absent), "{absent}");
}

#[test]
fn a_changed_model_is_not_swept() {
    let config = tiny();
    let (lm, _folder) = sound(&config, 5);
    let changed = lm.intervene(&r#"[{"ablate": "blocks.1.attn.hook_z", "head": 0}]"#.parse().unwrap()).unwrap();
    let question = question(&config, 5);
    let error = changed.sweep(&question, &mut |_| true).unwrap_err().to_string();
    assert!(error.contains("without interventions"), "{error}");
    let of = |lm: &Lm| lm.sweep(&question, &mut |_| true).unwrap().metric;
    assert_eq!(of(&changed.without_interventions()), of(&lm));
}

/// To first order: patches of a thousandth of the difference, by runs.
#[test]
fn an_estimate_is_the_slope_of_the_sweep() {
    let config = Config { n_head: 4, n_kv_head: Some(2), ..tiny() };
    let (lm, _folder) = sound(&config, 8);
    let metrics = [
        SweepMetric::LogitDifference { answer: 1, foil: 3 },
        SweepMetric::LogProbability { answer: 2 },
        SweepMetric::Loss,
    ];
    for (n, site) in [SweepSite::ResidPre, SweepSite::ResidMid, SweepSite::MlpOut, SweepSite::Z, SweepSite::K]
        .into_iter()
        .enumerate()
    {
        let question = SweepQuestion { site, metric: metrics[n % 3], ..question(&config, 8) };
        let estimate = lm.sweep_estimate(&question).unwrap();
        let sweep = lm.sweep(&question, &mut |_| true).unwrap();
        assert_eq!((estimate.clean, estimate.corrupt), (sweep.clean, sweep.corrupt));
        assert_eq!(estimate.metric.shape, sweep.metric.shape);
        let rows =
            |ids: &[u32], layer: usize| lm.trace_ids(ids, Keep::default()).unwrap().get(&site.tensor(layer)).unwrap();
        for (at, got) in estimate.metric.values.iter().enumerate() {
            let index = index_of(at, &estimate.metric.shape);
            let [clean, corrupt] = [rows(&question.clean, index[0]), rows(&question.corrupt, index[0])];
            let wide = clean.shape[2..].iter().product::<usize>();
            let shown = match index.get(2) {
                Some(head) => head * clean.shape[3]..(head + 1) * clean.shape[3],
                None => 0..wide,
            };
            let change =
                shown.map(|i| (clean.values[index[1] * wide + i] - corrupt.values[index[1] * wide + i]) * 1e-2);
            let moved = |sign: f32| {
                let add: Vec<f32> = change.clone().map(|v| v * sign).collect();
                let mut step = json!([{ "steer": site.tensor(index[0]), "pos": index[1], "add": { "vector": add } }]);
                if let Some(head) = index.get(2) {
                    step[0]["head"] = (*head).into();
                }
                let moved = lm.intervene(&Interventions::try_from(step).unwrap()).unwrap();
                metric(&lm, &question, &moved.trace_ids(&question.corrupt, Keep::default()).unwrap())
            };
            let want = sweep.corrupt + (moved(1.0) - moved(-1.0)) / 2e-2;
            let off = (f64::from(*got) - want).abs();
            assert!(off < 2e-3 * (1.0 + (want - sweep.corrupt).abs()), "{index:?} of {question:?}: {got}, {want}");
        }
    }
    let question = SweepQuestion { metric: SweepMetric::Divergence, ..question(&config, 8) };
    assert!(lm.sweep_estimate(&question).unwrap_err().to_string().contains("KL divergence has no gradient"));
}

#[test]
fn what_cannot_be_swept_is_refused() {
    let config = tiny();
    let (lm, _folder) = sound(&config, 2);
    let asked = question(&config, 2);
    let metric = |answer, foil| SweepMetric::LogitDifference { answer, foil };
    let with = |change: &dyn Fn(&mut SweepQuestion)| {
        let mut asked = asked.clone();
        change(&mut asked);
        lm.sweep(&asked, &mut |_| true).map(drop).unwrap_err().to_string()
    };
    type Spoils<'a> = &'a dyn Fn(&mut SweepQuestion);
    let cases: [(Spoils, &str); 11] = [
        (&|asked| asked.corrupt.push(1), "the clean prompt has 5 tokens and the corrupt one 6"),
        (&|asked| (asked.clean, asked.corrupt) = (vec![], vec![]), "both prompts are empty"),
        (&|asked| (asked.clean, asked.corrupt) = (vec![1; 13], vec![2; 13]), "context_length is 12"),
        (&|asked| asked.clean[0] = 17, "token 17 is outside the model's vocabulary of 17"),
        (&|asked| asked.metric = metric(1, 99), "token 99 is outside the model's vocabulary of 17"),
        (&|asked| asked.metric = metric(4, 4), "the answer and the token it is held against are both 4"),
        (&|asked| asked.position = 5, "there is no position 5: the prompts have 5 tokens"),
        (&|asked| asked.position = i64::MIN, "there is no position"),
        (&|asked| asked.corrupt = asked.clean.clone(), "both prompts give the same logit difference"),
        (&|asked| asked.position = 0, "both prompts give the same"),
        (&|asked| asked.by = SweepBy::Pair, "only `pattern` has pairs of positions, and the site is `resid_pre`"),
    ];
    for (change, said) in cases {
        let found = with(change);
        assert!(found.contains(said), "{found}");
    }
    let mut rows = 0;
    let stopped = lm.sweep(&asked, &mut |_| {
        rows += 1;
        false
    });
    assert!(matches!(stopped, Err(Error::Stopped)) && rows == 1);

    let (parallel, _other) = sound(&Config { parallel: Parallel::TwoNorms, ..config.clone() }, 2);
    let mid = SweepQuestion { site: SweepSite::ResidMid, ..asked.clone() };
    let said = parallel.sweep(&mid, &mut |_| true).unwrap_err().to_string();
    assert!(
        said.contains("unknown tensor `blocks.0.hook_resid_mid`") && said.contains("parallel blocks have none"),
        "{said}"
    );

    let damage = |param: &Param, values: &mut [f32]| {
        if param.name == "blocks.1.mlp.in.weight" {
            values[0] = f32::NAN;
        }
    };
    let (damaged, _other) = self::lm(&config, 2, damage);
    let said = damaged.sweep(&asked, &mut |_| true).unwrap_err().to_string();
    assert_eq!(said, "the weights are damaged: `blocks.1.mlp.in.weight` has NaN or infinite values");

    let (headless, _other) = sound(&Config { lm_head: false, mask: Mask::Bidirectional, ..config }, 2);
    assert!(headless.sweep(&asked, &mut |_| true).unwrap_err().to_string().contains("head"));
    assert!("resid_pe".parse::<SweepSite>().unwrap_err().to_string().contains("did you mean `resid_pre`?"));
}

/// The bound is on what a sweep runs, and nothing runs above it.
#[test]
fn a_large_sweep_is_confirmed_first() {
    let config = Config { context_length: 200, ..tiny() };
    let (lm, _folder) = sound(&config, 2);
    let [clean, corrupt] = [1, 2].map(|id| vec![id; 200]);
    let (site, by) = (SweepSite::Pattern, SweepBy::Pair);
    let asked = SweepQuestion { clean, corrupt, site, by, ..question(&config, 2) };
    let cost = asked.cost(&config);
    assert_eq!((cost.cells, cost.token_layers), (2 * 3 * 200 * 200, 3 * 3 * 200 * 200 * 200));
    let said = lm.sweep(&asked, &mut |_| panic!("it ran")).unwrap_err().to_string();
    assert!(said.contains("240,000 cells and runs 72,000,000 token-layers, more than 10,000,000"), "{said}");
    let confirmed = SweepQuestion { by: SweepBy::Head, confirmed: true, ..asked };
    assert_eq!(lm.sweep(&confirmed, &mut |_| true).unwrap().metric.shape, [2, 3]);
}

/// Gradients of chosen words: those of all targets add up to the gradient of the mean loss, which PyTorch's fixtures
/// hold; a difference of logits is the difference of two; and slopes are their norms.
#[test]
fn gradients_of_words_add_up_to_that_of_the_loss() {
    let config = Config { n_head: 4, n_kv_head: Some(2), positions: Positions::Rotary, ..tiny() };
    let (lm, _folder) = sound(&config, 21);
    let ids: Vec<u32> = (0..9).map(|i| (i * 5 + 2) % 17).collect();
    let names = ["blocks.0.hook_resid_pre", "blocks.0.attn.hook_z", "blocks.1.mlp.hook_post", "blocks.1.attn.hook_k"];
    let names = names.map(String::from);
    let of = |metric, at| lm.metric_gradients(&ids, (metric, at), &names).unwrap();
    let whole = of(SweepMetric::Loss, -1);
    let mut sums: Vec<Vec<f64>> = whole.iter().map(|one| vec![0.0; one.values.len()]).collect();
    for (at, target) in ids[1..].iter().enumerate() {
        for (sum, one) in sums.iter_mut().zip(of(SweepMetric::LogProbability { answer: *target }, at as i64)) {
            sum.iter_mut().zip(one.values).for_each(|(sum, v)| *sum -= f64::from(v) / 8.0);
        }
    }
    for ((whole, sum), name) in whole.iter().zip(&sums).zip(&names) {
        let most = sum.iter().fold(0.0f64, |most, v| most.max(v.abs()));
        let off = whole.values.iter().zip(sum).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max);
        assert!(most > 1e-3 && off < 1e-5 * (1.0 + most), "{name}: {off} of {most}");
    }
    let [answer, foil] = [3, 11].map(|answer| of(SweepMetric::LogProbability { answer }, 4));
    let both = of(SweepMetric::LogitDifference { answer: 3, foil: 11 }, 4);
    for ((a, b), d) in answer.iter().zip(&foil).zip(&both) {
        let off =
            a.values.iter().zip(&b.values).zip(&d.values).map(|((a, b), d)| (a - b - d).abs()).fold(0.0, f32::max);
        assert!(off < 1e-5, "{}: {off}", d.name);
    }
    // a word depends on nothing that comes after it
    let slopes = lm.metric_slopes(&ids, (SweepMetric::LogitDifference { answer: 3, foil: 11 }, 4)).unwrap();
    assert_eq!((slopes.stream.len(), slopes.heads.len(), slopes.attribution[0].len()), (3, 2, 4));
    assert!(slopes.stream.iter().all(|stage| stage[5..].iter().all(|norm| *norm == 0.0) && stage[4] > 0.0));
    let z = lm.trace_ids(&ids, Keep::default()).unwrap().get(&names[1]).unwrap();
    let share: f64 = z.values.iter().zip(&both[1].values).map(|(z, g)| f64::from(*z) * f64::from(*g)).sum();
    assert!((slopes.attribution[0].iter().sum::<f64>() - share).abs() < 1e-9);
    let said = |metric, at| lm.metric_gradients(&ids, (metric, at), &names).unwrap_err().to_string();
    assert!(said(SweepMetric::Divergence, -1).contains("KL divergence has no gradient"));
    assert!(said(SweepMetric::LogProbability { answer: 17 }, -1).contains("token 17 is outside"));
    assert!(said(SweepMetric::LogProbability { answer: 1 }, 9).contains("there is no position 9"));
}

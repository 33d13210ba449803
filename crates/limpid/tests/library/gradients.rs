//! The chain of judges: central differences judge `reference` over the whole product of axes, and `reference`
//! judges `cpu` op by op, at every instruction level and thread count.

use crate::common::tiny;
use crate::random_config::{BATCH, CONTEXT, axes_of, batch, configs, fill, pairs_covered};
use limpid::backend::{Backend, Cpu, Reference};
use limpid::config::{Config, Mask};
use limpid::matrix::Precision;
use limpid::model::{Lora, Mode, Model, Tuning};
use limpid::numeric::random;
use limpid::numeric::simd::Level;
use limpid::ops::{Batch, MemorySpace, Op, Region, Span};
use limpid::optimizer::{Change, Method, Rule};

fn mean_loss(model: &Model, reference: &Reference, batch: &Batch) -> f64 {
    f64::from(batch.weight) * reference.exact(model.losses().unwrap()).iter().sum::<f64>()
}

/// The worst relative error of the configuration's gradients against central differences.
fn check(config: &Config, tuning: &Tuning, seed: u64) -> f64 {
    let model = Model::tuned(config, Mode::Train { batch: BATCH, context: CONTEXT }, tuning).unwrap();
    let mut reference = Reference::new(&model);
    let batch = batch(config, seed);
    fill(&model, &mut reference, seed);
    reference.feed(&batch).unwrap();
    reference.forward(model.body()).unwrap();
    reference.backward(model.back()).unwrap();
    let mut worst = 0f64;
    for param in model.learning() {
        let grads = reference.exact(param.region.grad()).to_vec();
        for i in (0..grads.len()).step_by(1 + grads.len() / 5) {
            let keep = reference.exact(param.region)[i];
            let mut loss = |value| {
                reference.exact_mut(param.region)[i] = value;
                reference.forward(model.ops()).unwrap();
                mean_loss(&model, &reference, &batch)
            };
            // differences of a loss near 3 are exact to about 3e-16 / h; the smaller h are for a kink of ReLU that is
            // near, and for a norm of two numbers that are nearly equal, where the slope itself changes quickly
            let mut slope = |h: f64| (loss(keep + h) - loss(keep - h)) / (2.0 * h);
            let far = |slope: f64| (slope - grads[i]).abs() >= 1e-9 + 1e-5 * slope.abs().max(grads[i].abs());
            let mut slope_at = [1e-5, 1e-6, 1e-7].into_iter().map(&mut slope);
            let first = slope_at.next().unwrap_or(f64::NAN);
            let slope = if far(first) { slope_at.find(|slope| !far(*slope)).unwrap_or(first) } else { first };
            loss(keep);
            let (off, size) = ((slope - grads[i]).abs(), slope.abs().max(grads[i].abs()));
            assert!(!far(slope), "{}[{i}]: difference {slope}, gradient {}\n{config:?}", param.name, grads[i]);
            if size > 1e-3 {
                worst = worst.max(off / size);
            }
        }
        let reached = grads.iter().any(|g| g.abs() > 0.0);
        // under a softmax, a bias common to all keys or all logits of a row has no slope; nothing else may be dead
        assert!(reached || config.dropout != Default::default(), "no gradient reached {}\n{config:?}", param.name);
    }
    worst
}

/// What README says of the sample is so.
#[test]
fn the_readme_counts_the_axes() {
    let axes = axes_of(&configs()[0]).len();
    assert!(
        include_str!("../../../../README.md").contains(&format!("every pair of choices on {axes} axes.")),
        "{axes}"
    );
}

#[test]
#[ignore = "gate"]
fn every_pair_of_choices_has_the_right_gradient() {
    let configs = configs();
    let (covered, all) = pairs_covered(&configs);
    assert_eq!(covered, all, "pairs of axis values");
    let worst =
        configs.iter().enumerate().map(|(i, config)| check(config, &Tuning::default(), i as u64)).fold(0.0, f64::max);
    println!(
        "{} configurations, {} axes, all {all} pairs of values, worst relative error {worst:.1e}",
        configs.len(),
        axes_of(&configs[0]).len()
    );
    assert!(worst < 1e-5, "worst relative error {worst:e}");
}

fn lora(rank: usize, dropout: f64, targets: &[&str]) -> Tuning {
    let targets = targets.iter().map(|t| t.to_string()).collect();
    Tuning { lora: Some(Lora { rank, alpha: 3.0, dropout, targets }), ..Tuning::default() }
}

fn frozen(freeze: &[&str], train_only: &[&str]) -> Tuning {
    let [freeze, train_only] = [freeze, train_only].map(|all| all.iter().map(|p| p.to_string()).collect());
    Tuning { freeze, train_only, lora: None }
}

/// Adapters everywhere, here and there, and frozen parts of every kind; every name is in every model.
fn tunings() -> Vec<Tuning> {
    vec![
        lora(3, 0.0, &["attention", "feed-forward"]),
        lora(2, 0.25, &["blocks.*.attn.out", "blocks.0.mlp.in"]),
        frozen(&["embed.weight"], &[]),
        frozen(&["blocks.*"], &[]),
        frozen(&[], &["blocks.0.attn.*"]),
        frozen(&["*.attn.qkv.*"], &["blocks.*"]),
    ]
}

/// Adapted and frozen models: differences judge what learns.
#[test]
#[ignore = "gate"]
fn every_tuning_has_the_right_gradient() {
    let mut worst = 0f64;
    for (i, config) in configs().iter().enumerate() {
        let tunings = tunings();
        worst = worst.max(check(config, &tunings[i % tunings.len()], i as u64));
    }
    assert!(worst < 1e-5, "worst relative error {worst:e}");
}

/// What learns gets the gradient that it has when everything learns, to the bit, and a step changes it alike and
/// nothing else; what is frozen has no memory for gradients.
#[test]
fn freezing_changes_what_is_frozen_and_nothing_else() {
    let rule = Rule {
        method: Method::AdamW,
        rate: 1e-2,
        beta1: 0.9,
        beta2: 0.99,
        momentum: 0.0,
        eps: 1e-8,
        step: 1,
        max_norm: f64::INFINITY,
        norm: None,
        most_loss: None,
    };
    for (i, config) in configs().iter().enumerate() {
        let run = |tuning: &Tuning| {
            let model = Model::tuned(config, Mode::Train { batch: BATCH, context: CONTEXT }, tuning).unwrap();
            let mut cpu = Cpu::new(&model, 1 + i % 3);
            fill(&model, &mut cpu, 1);
            let bits = |cpu: &Cpu, region| cpu.read(region).unwrap().iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            let before = model.params.iter().map(|p| bits(&cpu, p.region)).collect::<Vec<_>>();
            cpu.feed(&batch(config, i as u64)).unwrap();
            cpu.forward(model.body()).unwrap();
            cpu.backward(model.back()).unwrap();
            let grads =
                model.params.iter().map(|p| if p.region.learns() { bits(&cpu, p.region.grad()) } else { vec![] });
            let grads = grads.collect::<Vec<_>>();
            cpu.update(&model.update_groups(0.1, rule.method), &rule, &mut []).unwrap();
            let after = model.params.iter().map(|p| bits(&cpu, p.region)).collect::<Vec<_>>();
            (model, before, grads, after)
        };
        let (whole, _, all_grads, all_after) = run(&Tuning::default());
        for tuning in tunings().into_iter().filter(|t| t.lora.is_none()) {
            let (model, before, grads, after) = run(&tuning);
            for (n, param) in model.params.iter().enumerate() {
                let what = format!("{} under {tuning:?}, {config:?}", param.name);
                assert_eq!(param.name, whole.params[n].name);
                if param.region.learns() {
                    assert!(grads[n] == all_grads[n] && after[n] == all_after[n], "{what}")
                } else {
                    assert!(after[n] == before[n], "{what} has changed")
                }
            }
            assert!(model.back().len() <= whole.back().len());
            assert!(model.program.size(MemorySpace::Grad) < whole.program.size(MemorySpace::Grad));
            assert!(model.program.size(MemorySpace::Act) <= whole.program.size(MemorySpace::Act));
        }
    }
}

/// Below the lowest parameter that learns there is no backward at all.
#[test]
fn the_backward_ends_where_nothing_below_learns() {
    let config = Config { n_layer: 4, ..Config::default() };
    let train = Mode::Train { batch: 2, context: 8 };
    let all = Model::new(&config, train).unwrap();
    let top = Model::tuned(&config, train, &frozen(&[], &["blocks.3.mlp.*", "ln_final.*"])).unwrap();
    let first = top.ops().iter().position(|op| op.learns()).unwrap();
    assert_eq!(top.back().len(), top.ops().len() - first);
    assert!(4 * top.back().len() < all.back().len(), "{} {}", top.back().len(), all.back().len());
    assert_eq!(top.learning().map(|p| p.region.len()).sum::<usize>(), {
        let c = &config;
        2 * c.d_model * c.d_ff + c.d_ff + c.d_model + 2 * c.d_model
    });
    let refused = |tuning| Model::tuned(&config, train, &tuning).unwrap_err().to_string();
    let typo = refused(frozen(&["block.0.attn.qkv.weight"], &[]));
    assert!(typo.starts_with("unknown parameter `block.0.attn.qkv.weight`: did you mean `blocks.*.attn.qkv.weight`"));
    assert_eq!(refused(frozen(&["*"], &[])), "every parameter is frozen, so nothing would learn: freeze fewer");
    assert!(refused(lora(2, 0.0, &["atention"])).starts_with("unknown lora target `atention`"));
    assert!(refused(lora(0, 0.0, &["attention"])).starts_with("lora rank is 0"));
}

/// Copies tensors of `from` to `to`, so that the next op starts from the same numbers.
fn copy(regions: &[Region], from: &dyn Backend, to: &mut dyn Backend) {
    regions.iter().for_each(|region| to.write(*region, &from.read(*region).unwrap()).unwrap());
}

#[track_caller]
fn assert_close(what: &str, got: &[f32], want: &[f32], slack: f32, terms: f32) {
    // sums of terms of some size may cancel to less: their rounding is relative to the terms
    let size = greatest(want).max(terms);
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let same = g == w || (g - w).abs() <= slack * size; // equal infinities count
        assert!(same, "{what}[{i}]: got {g}, want {w}, off by {:.1e}, allowed {:.1e}", (g - w).abs(), slack * size);
    }
}

/// The largest size of a finite number.
fn greatest(values: &[f32]) -> f32 {
    values.iter().filter(|v| v.is_finite()).fold(0.0, |most, v| v.abs().max(most))
}

/// Every op of every configuration, forward and backward, from the same f32 inputs on both sides. Sums have at most
/// some tens of terms here, so a few rounding steps of f32, relative to the tensor's size, are allowed.
fn compare(
    (config, tuning): (&Config, &Tuning),
    mode: Mode,
    (level, precision): (Level, Precision),
    threads: usize,
    seed: u64,
) {
    let model = Model::tuned(config, mode, tuning).unwrap();
    let mut reference = Reference::new(&model);
    let mut cpu = Cpu::with(&model, threads, level, precision);
    let batch = batch(config, seed);
    fill(&model, &mut reference, seed);
    fill(&model, &mut cpu, seed);
    reference.feed(&batch).unwrap();
    cpu.feed(&batch).unwrap();
    // in bf16 both operands of a product are off by up to 2^-9 of themselves; nothing else is
    let slack = |op: &Op, reference: &Reference| match (precision, *op) {
        (Precision::Bf16, Op::Linear { .. } | Op::Classify { .. }) => 0.012,
        // a weight is the exponential of a score less the log of a sum: it is off by what these are rounded by
        (_, Op::Attend { lse, .. }) => 4e-6 + f32::EPSILON * greatest(&reference.read(lse).unwrap()),
        // two numbers less their mean may cancel
        (_, Op::QkNorm { .. }) => 2e-5,
        _ => 4e-6,
    };
    for (op, alone) in model.ops().each() {
        let regions = op.touched();
        copy(&regions, &reference, &mut cpu);
        copy(&regions, &cpu, &mut reference); // now rounded to f32
        reference.forward(alone).unwrap();
        cpu.forward(alone).unwrap();
        for region in regions {
            let what = format!("{} {} at {level}, {precision}, {threads} threads", op.name(), model.name_of(region));
            assert_close(
                &what,
                &cpu.read(region).unwrap(),
                &reference.read(region).unwrap(),
                slack(op, &reference),
                1e-2,
            );
        }
    }
    for (step, alone) in model.back().each().filter_map(|(pass, alone)| Some((pass.back()?, alone))) {
        let regions = step.touched();
        copy(&regions, &reference, &mut cpu);
        copy(&regions, &cpu, &mut reference);
        reference.backward(alone).unwrap();
        cpu.backward(alone).unwrap();
        let dx = step.dx.iter().flatten().map(|g| g.region);
        let mut op = step.op;
        let params =
            op.operands().filter(|(_, s)| s.space == MemorySpace::Param).map(|(_, s)| s.grad()).collect::<Vec<_>>();
        // a query's gradient is made of products of what comes back, a value and a key, and of differences: where one
        // key is seen nothing is left
        let size = |region: Region| greatest(&reference.read(region).unwrap());
        let terms = match step.op {
            Op::Attend { qkv, .. } => step.dy.map_or(0.0, size) * size(qkv).powi(2),
            _ => 0.0,
        };
        let terms = terms.max(1e-2);
        for region in dx.chain(params).chain(step.watched.into_iter().flatten()) {
            let what = format!("gradient of {} at {region:?}, {level}, {precision}, {threads} threads", step.op.name());
            assert_close(
                &what,
                &cpu.read(region).unwrap(),
                &reference.read(region).unwrap(),
                4.0 * slack(&step.op, &reference),
                terms,
            );
        }
    }
}

#[test]
#[ignore = "gate"]
fn cpu_agrees_with_reference_op_by_op_at_every_level_and_thread_count() {
    let configs = configs();
    for (i, config) in configs.iter().enumerate() {
        let level = Level::available()[i % Level::available().len()];
        let threads = [1, 2, 3, 7][i / 3 % 4];
        let (train, look) =
            (Mode::Train { batch: BATCH, context: CONTEXT }, Mode::Inspect { batch: BATCH, context: CONTEXT });
        let whole = (config, &Tuning::default());
        compare(whole, train, (level, Precision::F32), threads, i as u64);
        compare(whole, look, (level, Precision::F32), threads, i as u64);
        compare(whole, train, (level, Precision::Bf16), threads, i as u64);
        let tuned = &tunings()[i % tunings().len()];
        compare((config, tuned), train, (level, Precision::F32), threads, i as u64);
        compare((config, tuned), look, (level, Precision::F32), threads, i as u64);
    }
    for level in Level::available() {
        for threads in [1, 2, 3, 7] {
            // sizes that no vector length divides, more than one block of keys, work enough to be shared out
            let config =
                Config { context_length: 70, d_model: 84, n_head: 6, d_ff: 131, vocab_size: 211, ..configs[0].clone() };
            long(&config, level, threads);
        }
    }
}

/// A longer run, whole: several blocks of keys, ragged sequences, results compared end to end.
fn long(config: &Config, level: Level, threads: usize) {
    let (model, context) = (Model::new(config, Mode::Train { batch: 2, context: 70 }).unwrap(), 70);
    let ids = |site| (0..140).map(|i| random::below(1, site, i, 211) as u32).collect::<Vec<_>>();
    let batch = Batch::of_sequences(ids(1), ids(2), context);
    let run = |backend: &mut dyn Backend| {
        for param in &model.params {
            let value = |i| (0.1 * random::normal(9, random::site(&param.name), i)) as f32;
            backend.write(param.region, &(0..param.region.len() as u64).map(value).collect::<Vec<_>>()).unwrap();
        }
        backend.feed(&batch).unwrap();
        backend.forward(model.body()).unwrap();
        backend.backward(model.back()).unwrap();
    };
    let (mut reference, mut cpu) = (Reference::new(&model), Cpu::with(&model, threads, level, Precision::F32));
    run(&mut reference);
    run(&mut cpu);
    for param in &model.params {
        let what = format!("gradient of {} at {level}, {threads} threads", param.name);
        assert_close(
            &what,
            &cpu.read(param.region.grad()).unwrap(),
            &reference.read(param.region.grad()).unwrap(),
            3e-5,
            1e-2,
        );
    }
    assert_close(
        "losses",
        &cpu.read(model.losses().unwrap()).unwrap(),
        &reference.read(model.losses().unwrap()).unwrap(),
        2e-6,
        1e-2,
    );
}

/// The same bits from any number of threads, sharing ops or sequences, op by op or in one go, forward, backward and
/// update.
#[test]
#[ignore = "gate"]
fn bits_depend_on_neither_threads_nor_watchers() {
    for (i, config) in configs().iter().enumerate().take(12) {
        let config =
            Config { d_model: 48, n_head: 4, d_ff: 200, vocab_size: 300, context_length: 80, ..config.clone() };
        let mode = Mode::Train { batch: 3, context: 80 };
        let model = Model::new(&config, mode).unwrap();
        let shared = Model::with_gradient_inputs_limit(&config, mode, &Tuning::default(), 0, 0).unwrap();
        let ids = |site| (0..240).map(|j| random::below(i as u64, site, j, 300) as u32).collect::<Vec<_>>();
        let mut batch = Batch::of_sequences(ids(1), ids(2), 80);
        batch.seed = Some(5);
        let rule = Rule {
            method: Method::AdamW,
            rate: 1e-2,
            beta1: 0.9,
            beta2: 0.99,
            momentum: 0.0,
            eps: 1e-8,
            step: 1,
            max_norm: 1.0,
            norm: None,
            most_loss: None,
        };
        let both = |level| [(level, Precision::F32), (level, Precision::Bf16)];
        for (l, (level, precision)) in Level::available().into_iter().flat_map(both).enumerate() {
            if precision == Precision::Bf16 && !(i + l).is_multiple_of(3) {
                continue;
            }
            let run = |threads: usize, by_sequence: bool, one_by_one: bool| {
                let model = if by_sequence { &model } else { &shared };
                let mut cpu = Cpu::with(model, threads, level, precision);
                fill(model, &mut cpu, 3);
                cpu.feed(&batch).unwrap();
                if one_by_one {
                    model.body().each().for_each(|(_, op)| cpu.forward(op).unwrap());
                    model.back().each().for_each(|(_, step)| cpu.backward(step).unwrap());
                } else {
                    cpu.forward(model.body()).unwrap();
                    cpu.backward(model.back()).unwrap();
                }
                cpu.update(&model.update_groups(0.1, rule.method), &rule, &mut []).unwrap();
                let bits = |region| cpu.read(region).unwrap().iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                let params = model.params.iter().map(|p| bits(p.region)).collect::<Vec<_>>();
                (params, bits(model.losses().unwrap()), model.body().last().map(|op| bits(op.output())))
            };
            // shards beyond the first take addresses
            let shards = |model: &Model| Cpu::untouched_bytes(model, 3) > Cpu::untouched_bytes(model, 1) * 3;
            assert!(
                model.program.keeps_gradient_inputs()
                    && !shared.program.keeps_gradient_inputs()
                    && shards(&model)
                    && !shards(&shared)
            );
            let one = run(1, false, false);
            for (threads, by_sequence, one_by_one) in [
                (1, true, true),
                (2, true, false),
                (2, false, false),
                (3, true, true),
                (5, false, true),
                (7, true, false),
            ] {
                let same = run(threads, by_sequence, one_by_one) == one;
                assert!(same, "{level}, {precision}, {threads} threads, by sequence: {by_sequence}, {config:?}");
            }
        }
    }
}

/// The first to add to a gradient overwrites what the step before left there, the next adds, and what nobody has
/// written is zero.
#[test]
fn gradients_begin_blank_after_an_update() {
    for (i, config) in configs().iter().enumerate().take(12) {
        let model = Model::new(config, Mode::Train { batch: BATCH, context: CONTEXT }).unwrap();
        let mut cpu = Cpu::new(&model, 1 + i % 3);
        fill(&model, &mut cpu, 1);
        cpu.feed(&batch(config, i as u64)).unwrap();
        let grads = |cpu: &Cpu| model.params.iter().map(|p| cpu.read(p.region.grad()).unwrap()).collect::<Vec<_>>();
        let run = |cpu: &mut Cpu| {
            cpu.forward(model.body()).unwrap();
            cpu.backward(model.back()).unwrap();
        };
        let rule = Rule {
            method: Method::Sgd,
            rate: 0.0,
            beta1: 0.0,
            beta2: 0.0,
            momentum: 0.0,
            eps: 1e-8,
            step: 1,
            max_norm: f64::INFINITY,
            norm: None,
            most_loss: None,
        };
        assert!(grads(&cpu).iter().flatten().all(|g| *g == 0.0));
        run(&mut cpu);
        let once = grads(&cpu);
        let norm = cpu.update(&model.update_groups(0.0, rule.method), &rule, &mut []).unwrap().norm;
        assert!(norm > 0.0 && grads(&cpu).iter().flatten().all(|g| *g == 0.0));
        assert_eq!(
            cpu.update(&model.update_groups(0.0, rule.method), &rule, &mut []).unwrap().norm,
            0.0,
            "nothing was added since"
        );
        run(&mut cpu);
        assert_eq!(grads(&cpu), once);
        run(&mut cpu);
        for (twice, once) in grads(&cpu).iter().zip(&once) {
            let doubled: Vec<f32> = once.iter().map(|g| 2.0 * g).collect();
            assert_close("added to twice", twice, &doubled, 1e-5, 1e-2);
        }
    }
}

/// The plan that shares places gives the bits of the one that does not.
#[test]
fn a_compact_plan_changes_memory_and_nothing_else() {
    for (i, config) in configs().iter().enumerate().take(40) {
        let losses = |mode| {
            let model = Model::new(config, mode).unwrap();
            let mut cpu = Cpu::with(&model, 2, Level::best(), Precision::F32);
            fill(&model, &mut cpu, 1);
            let mut batch = batch(config, i as u64);
            batch.seed = None;
            cpu.feed(&batch).unwrap();
            cpu.forward(model.ops()).unwrap();
            let losses = cpu.read(model.losses().unwrap()).unwrap();
            if !model.back().is_empty() {
                cpu.backward(model.back()).unwrap();
            }
            let grads: Vec<Vec<f32>> = if model.back().is_empty() {
                vec![]
            } else {
                model.params.iter().map(|p| cpu.read(p.region.grad()).unwrap()).collect()
            };
            (losses, grads, model.program.size(MemorySpace::Act))
        };
        let (score, _, compact) = losses(Mode::Score { batch: BATCH, context: CONTEXT });
        let (train, shared, kept) = losses(Mode::Train { batch: BATCH, context: CONTEXT });
        let (inspect, own, all) = losses(Mode::Inspect { batch: BATCH, context: CONTEXT });
        assert_eq!(score, train, "{config:?}");
        assert_eq!(score, inspect, "{config:?}");
        assert_eq!(shared, own, "{config:?}");
        assert!(compact < kept && kept <= all, "{compact} {kept} {all}");
    }
}

/// The plan of a small model keeps what threads need that go their own way; that of a larger one does not.
#[test]
fn a_plan_keeps_gradients_where_it_is_told_to() {
    for config in configs() {
        let mode = Mode::Train { batch: BATCH, context: CONTEXT };
        let model = Model::new(&config, mode).unwrap();
        let at_most = |gradient_inputs_limit| {
            Model::with_gradient_inputs_limit(&config, mode, &Tuning::default(), 0, gradient_inputs_limit).unwrap()
        };
        let all = limpid::model::activations(&model.ops());
        assert!(model.program.keeps_gradient_inputs(), "{config:?}");
        assert_eq!(at_most(all).program.draft(), model.program.draft(), "{config:?}");
        assert!(
            at_most(all - 1).program.size(MemorySpace::ActGrad) < model.program.size(MemorySpace::ActGrad),
            "{config:?}"
        );
        assert!(!at_most(all - 1).program.keeps_gradient_inputs(), "{config:?}");
    }
}

#[test]
fn spans_reach_what_the_mask_says() {
    let span = Span { row: 0, rows: 4, past: 2, table: 0, valid: 5 };
    assert_eq!([Mask::Causal, Mask::Bidirectional, Mask::None].map(|m| span.reach(m, 1)), [4, 5, 6]);
    assert!(matches!(
        Model::new(&configs()[0], Mode::Train { batch: 1, context: 2 }).unwrap().ops().last(),
        Some(Op::Classify { .. })
    ));
}

/// Each update rule against f64, three steps; the same bits however many threads work and whether layers are watched;
/// what is watched against f64; and the moving average. With heads that share keys, whose matrices muon takes apart.
#[test]
fn updates_agree_with_f64_watched_or_not() {
    let config = Config { n_kv_head: Some(1), ..tiny() };
    let model = Model::new(&config, Mode::Train { batch: BATCH, context: CONTEXT }).unwrap();
    for method in [Method::Sgd, Method::Adam, Method::AdamW, Method::Muon] {
        let groups = model.update_groups(0.1, method);
        let covered: usize = groups.iter().map(|g| g.matrix.map_or(0, |(out, cols)| out * cols)).sum();
        let inside: usize = model.params.iter().filter(|p| p.is_inside()).map(|p| p.region.len()).sum();
        assert_eq!(covered, if method == Method::Muon { inside } else { 0 });
        let run = |backend: &mut dyn Backend, watched: bool| {
            fill(&model, backend, 3);
            let mut changes: Vec<Change> = vec![];
            for step in 1..=3 {
                for p in &model.params {
                    let g = |i: usize| 0.01 * random::normal(step, random::site(&p.name), i as u64) as f32;
                    backend.write(p.region.grad(), &(0..p.region.len()).map(g).collect::<Vec<_>>()).unwrap();
                }
                changes = model.params.iter().map(|p| Change::new(p.region.range())).collect();
                let rule = Rule {
                    method,
                    rate: 1e-2,
                    beta1: 0.9,
                    beta2: 0.99,
                    momentum: 0.95,
                    eps: 1e-8,
                    step,
                    max_norm: 0.05,
                    norm: None,
                    most_loss: None,
                };
                let report = backend.update(&groups, &rule, if watched { &mut changes } else { &mut [] }).unwrap();
                assert!(report.finite && report.norm > 0.05, "clipping is seen");
                backend.average(&groups, if step == 1 { 0.0 } else { 0.7 }).unwrap();
            }
            let of = |space: MemorySpace| {
                model.params.iter().flat_map(|p| backend.read(p.region.in_space(space)).unwrap()).collect()
            };
            let all: [Vec<f32>; 3] = [MemorySpace::Param, MemorySpace::Moment1, MemorySpace::Average].map(of);
            (all, changes)
        };
        let (exact, seen) = run(&mut Reference::new(&model), true);
        let (one, watched) = run(&mut Cpu::new(&model, 1), true);
        for (got, want) in one.iter().zip(&exact) {
            assert_close(&format!("{method}"), got, want, 2e-4, 1e-2);
        }
        for (got, want) in watched.iter().zip(&seen) {
            // an f32 near 1 moves in steps of 1e-7: so much of a small update is rounding
            let rounding = 1e-7 * (want.weight * want.update).sqrt();
            for (got, want, slack) in [
                (got.gradient, want.gradient, 0.0),
                (got.weight, want.weight, 0.0),
                (got.update, want.update, rounding),
            ] {
                assert!((got - want).abs() <= 1e-3 * want + slack && want > 0.0, "{method}: {got} {want}");
            }
        }
        for (threads, watch) in [(1, false), (3, true), (5, false)] {
            assert!(run(&mut Cpu::new(&model, threads), watch).0 == one, "{method}, {threads} threads, {watch}");
        }
    }
}

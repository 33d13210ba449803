//! Less memory for more work: what the backward makes again changes no bit, frees what the arithmetic on paper says,
//! and is chosen by a budget.

use crate::random_config::{configs, fill};
use limpid::backend::{Backend, Cpu, Reference};
use limpid::config::{Config, Dropout, NormPlace};
use limpid::data::Tokens;
use limpid::matrix::Precision;
use limpid::model::recompute::KeepLevel;
use limpid::model::{Lora, Mode, Model, Tuning};
use limpid::numeric::random;
use limpid::numeric::simd::Level;
use limpid::ops::{Batch, MemorySpace, Op, Pass};
use limpid::train::{Batches, Recipe, Trainer, WindowShape};

const CONTEXT: usize = 12;

/// Three blocks of every shape that keeps different things: with dropout everywhere, gated with shared key heads and
/// rotary positions, post-norm with an own head.
fn shapes() -> Vec<Config> {
    let p = 0.2;
    let dropout = Dropout { embedding: p, attention: p, projection: p, ffn: p, ..Dropout::NONE };
    let small = |preset: &str| Config {
        vocab_size: 17,
        context_length: CONTEXT,
        d_model: 24,
        n_layer: 3,
        d_ff: 40,
        dropout,
        ..Config::preset(preset).unwrap()
    };
    vec![
        small("nano"),
        Config { n_head: 6, n_kv_head: Some(2), ..small("nano-llama") },
        Config { norm_place: NormPlace::Post, tied_head: false, ..small("nano") },
    ]
}

/// Everything learns; the lower blocks do not; adapters on all products do.
fn tunings() -> Vec<Tuning> {
    let lora = Lora { rank: 3, alpha: 6.0, dropout: 0.2, targets: vec!["attention".into(), "feed-forward".into()] };
    vec![
        Tuning::default(),
        Tuning { freeze: vec!["embed.*".into(), "blocks.[01].*".into()], ..Tuning::default() },
        Tuning { lora: Some(lora), ..Tuning::default() },
    ]
}

/// Losses of five steps of two micro-batches, and the weights after them, as bits.
fn trained(
    config: &Config,
    tuning: &Tuning,
    recompute_level: usize,
    threads: usize,
    precision: Precision,
) -> (Vec<u64>, Vec<u32>) {
    let recipe = Recipe { batch_size: 3, accumulate: 2, warmup_steps: 1, ..Recipe::default() };
    let text = Tokens::new((0..600).map(|i| random::below(1, 0, i / 3, 17) as u32).collect());
    let batches = Batches::new(&text, WindowShape::next_token(CONTEXT), 3, 1).unwrap().accumulated(2);
    let model =
        Model::at_recompute_level(config, Mode::Train { batch: 3, context: CONTEXT }, tuning, recompute_level).unwrap();
    let cpu = Cpu::with(&model, threads, Level::best(), precision);
    let mut trainer = Trainer::new(model, Box::new(cpu), recipe).unwrap();
    let losses = (0..5).map(|_| trainer.step(&batches).unwrap().loss.unwrap().to_bits()).collect();
    let weights =
        trainer.model.params.iter().flat_map(|p| trainer.backend.read(p.region).unwrap()).map(f32::to_bits).collect();
    (losses, weights)
}

#[test]
fn training_gives_the_same_bits_on_every_rung() {
    for (config, tuning) in shapes().iter().flat_map(|config| tunings().into_iter().map(move |tuning| (config, tuning)))
    {
        for precision in [Precision::F32, Precision::Bf16] {
            let all = trained(config, &tuning, 0, 2, precision);
            for recompute_level in 1..=Model::recompute_levels(config) {
                let threads = [1, 3][recompute_level % 2];
                let same = trained(config, &tuning, recompute_level, threads, precision) == all;
                assert!(
                    same,
                    "recompute_level {recompute_level}, {threads} threads, {precision}, {tuning:?}: {config:?}"
                );
            }
        }
    }
}

/// Every pair of choices: the f64 judge's gradients are the same numbers on every level, and `cpu`'s the same bits.
#[test]
fn gradients_are_the_same_on_every_level_for_every_configuration() {
    let mode = Mode::Train { batch: 2, context: 5 };
    for (i, config) in configs().iter().enumerate() {
        let gradients = |recompute_level: usize| {
            let model = Model::at_recompute_level(config, mode, &Tuning::default(), recompute_level).unwrap();
            let ids = |site| (0..10).map(|n| random::below(i as u64, site, n, 11) as u32).collect::<Vec<_>>();
            let mut batch = Batch::of_sequences(ids(1), ids(2), 5);
            batch.seed = Some(7);
            let (mut judge, mut cpu) = (Reference::new(&model), Cpu::new(&model, 1 + i % 3));
            for backend in [&mut judge as &mut dyn Backend, &mut cpu] {
                fill(&model, backend, 1);
                backend.feed(&batch).unwrap();
                backend.forward(model.body()).unwrap();
                backend.backward(model.back()).unwrap();
            }
            let exact: Vec<u64> =
                model.params.iter().flat_map(|p| judge.exact(p.region.grad()).to_vec()).map(f64::to_bits).collect();
            let bits: Vec<u32> =
                model.params.iter().flat_map(|p| cpu.read(p.region.grad()).unwrap()).map(f32::to_bits).collect();
            (exact, bits)
        };
        let all = gradients(0);
        for recompute_level in (1..KeepLevel::ALL.len()).map(|level| level * config.n_layer) {
            assert!(gradients(recompute_level) == all, "recompute_level {recompute_level}: {config:?}");
        }
    }
}

/// What is kept, counted by hand in units of one (N,C) tensor, for GPT-2's block at d_ff = 4 d_model. After the forward
/// a block holds ln1, q, k, v, z, mid, ln2, 4 before and 4 after the activation, and what leaves it: 16. Without norms
/// and activations 10; without the feed-forward's products 6; of heads and stream 2; of the stream 1. Beside the blocks
/// there are the embedding's sum and the last norm's output: 2.
#[test]
fn each_level_frees_what_the_arithmetic_says() {
    let config = Config { d_model: 64, n_head: 4, d_ff: 256, n_layer: 20, ..Config::preset("gpt2").unwrap() };
    let mode = Mode::Train { batch: 1, context: 64 };
    let unit = 64 * 64;
    for (keep, each) in KeepLevel::ALL.into_iter().zip([16, 10, 6, 2, 1]) {
        let model =
            Model::at_recompute_level(&config, mode, &Tuning::default(), keep as usize * config.n_layer).unwrap();
        assert_eq!(model.keep_levels(), [(0..20, keep)]);
        let units = model.program.size(MemorySpace::Act) as f64 / unit as f64;
        // where less is kept, the block that is worked on holds more than it keeps: up to 16 - each
        let most = if keep == KeepLevel::All { 0 } else { 16 - each };
        let kept = 20 * each + 2;
        assert!((kept..=kept + most).contains(&(units.ceil() as usize)), "{keep:?}: {units} units, kept {kept}");
    }
}

/// The products that are run again, counted by hand: per row and block 8 C F / 4 for the feed-forward's first (of 2 C
/// F), 6 C² for queries, keys and values and 2 C² for what follows the heads, 4 C for each key; never the
/// feed-forward's last.
#[test]
fn each_level_costs_what_the_arithmetic_says() {
    let config = Config { d_model: 64, n_head: 4, d_ff: 256, n_layer: 2, ..Config::preset("gpt2").unwrap() };
    let (c, f, rows, keys) = (64.0, 256.0, 64, 32);
    let each = [0.0, 0.0, 2.0 * c * f, 2.0 * c * f + 8.0 * c * c, 2.0 * c * f + 8.0 * c * c + 4.0 * c * keys as f64];
    for (keep, each) in KeepLevel::ALL.into_iter().zip(each) {
        let model = Model::at_recompute_level(
            &config,
            Mode::Train { batch: 1, context: 64 },
            &Tuning::default(),
            2 * keep as usize,
        )
        .unwrap();
        assert_eq!(model.recompute_flops(rows, keys), 2.0 * rows as f64 * each, "{keep:?}");
    }
}

/// Only what is needed is made again, each once, right before it is needed.
#[test]
fn nothing_is_made_again_twice_or_for_nothing() {
    for config in shapes() {
        for recompute_level in 0..=Model::recompute_levels(&config) {
            let model = Model::at_recompute_level(
                &config,
                Mode::Train { batch: 2, context: CONTEXT },
                &Tuning::default(),
                recompute_level,
            )
            .unwrap();
            let again = |pass: &Pass| if let Pass::Recompute(op) = pass { Some(*op) } else { None };
            let ops: Vec<Op> = model.back().iter().filter_map(again).collect();
            assert_eq!(ops.is_empty(), recompute_level == 0, "recompute_level {recompute_level}");
            assert!(!matches!(model.back().last(), Some(Pass::Recompute(_))), "recompute_level {recompute_level}");
            for name in ["norm", "linear", "attend", "activate"] {
                let count = |ops: &[Op]| ops.iter().filter(|op| op.name() == name).count();
                assert!(count(&ops) <= count(&model.ops()), "recompute_level {recompute_level}: {name}");
            }
            let last = |op: &Op| matches!(op, Op::Linear { x, .. } if x.cols == config.d_ff);
            assert!(
                !ops.iter().any(last),
                "recompute_level {recompute_level}: nothing needs the feed-forward's last product"
            );
        }
    }
}

/// The lowest recompute level that fits a budget is taken: no work where there is memory. If none fits, the error says
/// what would.
#[test]
fn a_budget_takes_the_least_work_that_fits() {
    let config = Config::preset("nano").unwrap();
    let mode = Mode::Train { batch: 12, context: 64 };
    let bytes = |model: &Model| model.memory().iter().map(|(_, bytes)| *bytes as u64).sum::<u64>();
    let ladder: Vec<u64> = (0..=Model::recompute_levels(&config))
        .map(|recompute_level| {
            bytes(&Model::at_recompute_level(&config, mode, &Tuning::default(), recompute_level).unwrap())
        })
        .collect();
    let within = |budget| Model::within(&config, mode, &Tuning::default(), budget, bytes);
    for budget in (ladder.iter().min().unwrap() + 1..ladder[0] + 1000).step_by(100_000) {
        let model = within(budget).unwrap();
        assert!(bytes(&model) <= budget);
        assert!(ladder[..model.recompute_level].iter().all(|recompute_level| *recompute_level > budget), "{budget}");
    }
    let least = *ladder.iter().min().unwrap();
    assert!(within(least).is_ok());
    let error = within(least - 1).unwrap_err().to_string();
    let (asked, takes) = ((least - 1) as f64 / 1e6, least as f64 / 1e6);
    assert!(error.contains(&format!("{asked:.1} MB")) && error.contains(&format!("takes {takes:.1} MB")), "{error}");
    assert!(error.contains("batch_size") && error.contains("context"), "{error}");
    assert_eq!(within(u64::MAX).unwrap().recompute_level, 0);
}

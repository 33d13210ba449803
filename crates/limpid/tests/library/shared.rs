//! Weights that several runs share: the bits are those of weights of one's own, nobody changes them under another, and
//! they are in memory once.

use crate::common::sequences::{SequenceId, Sequences};
use crate::common::{alone, tiny};
use crate::random_config::{configs, fill};
use limpid::backend::{Backend, BackendError, Cpu, SharedWeights};
use limpid::config::{Config, Mask};
use limpid::data::Tokens;
use limpid::matrix::Precision;
use limpid::model::{Mode, Model, Tuning, init};
use limpid::numeric::random;
use limpid::numeric::simd::Level;
use limpid::ops::{Batch, Region};
use limpid::train::{Batches, Recipe, TrainError, Trainer, WindowShape};
use limpid::{Device, Machine};

fn ids(n: u64) -> Vec<u32> {
    (0..n).map(|i| random::below(9, 1, i, 11) as u32).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

fn run(backend: &mut dyn Backend, model: &Model, regions: &[Region]) -> Vec<Vec<u32>> {
    backend.feed(&Batch::of_sequences(ids(10), ids(10), 5)).unwrap();
    backend.forward(model.ops()).unwrap();
    regions.iter().map(|region| bits(&backend.read(*region).unwrap())).collect()
}

fn with(how: Machine, weights: &SharedWeights) -> impl Fn(&Model) -> Result<Box<dyn Backend>, BackendError> {
    move |model| how.start_with(model, weights)
}

/// The logits after every token of a sequence, and the session that holds it.
fn decoded(
    config: &Config,
    make: impl FnOnce(&Model) -> Result<Box<dyn Backend>, BackendError>,
    write: bool,
) -> (Vec<Vec<u32>>, Sequences, SequenceId) {
    let mut session = Sequences::new(config, 2, 3, make).unwrap();
    if write {
        let (model, backend) = session.parts();
        fill(model, backend, 3);
    }
    let id = session.open();
    let logits = ids(5).into_iter().map(|token| {
        session.feed(id, &[token]).unwrap();
        bits(session.logits(id))
    });
    (logits.collect(), session, id)
}

/// Every pair of choices, packed and plain, in both precisions, on every number of threads.
#[test]
fn shared_weights_give_the_same_bits() {
    for (i, config) in configs().iter().enumerate() {
        let config = Config { mask: Mask::Causal, ..config.clone() };
        let levels = Level::available();
        let (level, precision) = (levels[i % levels.len()], [Precision::F32, Precision::Bf16][i / 2 % 2]);
        let how = |threads| Machine { level, precision, ..Machine::cpu(threads) };
        let inspect = Model::new(&config, Mode::Inspect { batch: 2, context: 5 }).unwrap();
        let score = Model::new(&config, Mode::Score { batch: 2, context: 5 }).unwrap();
        let tensors: Vec<Region> = inspect.tensors.iter().map(|tensor| tensor.region).collect();
        let losses = [score.losses().unwrap()];

        let mut plain = Cpu::with(&inspect, 1, level, precision);
        fill(&inspect, &mut plain, 3);
        let seen = run(&mut plain, &inspect, &tensors);
        let mut own = Cpu::with(&score, 1, level, precision);
        fill(&score, &mut own, 3);
        let scored = run(&mut own, &score, &losses);
        let (logits, mut session, _) = decoded(&config, |model| how(1).start(model), true);

        let [packed, plain] = [session.parts().1.share().unwrap(), plain.share().unwrap()];
        for (kind, weights) in [("packed", &packed), ("plain", &plain)] {
            let threads = 1 + i % 3;
            let what = format!("{kind}, {level}, {precision}, {threads} threads: {config:?}");
            let make = with(how(threads), weights);
            let mut inspected = make(&inspect).unwrap();
            assert!(run(&mut *inspected, &inspect, &tensors) == seen, "{what}");
            assert!(run(&mut *make(&score).unwrap(), &score, &losses) == scored, "{what}");
            assert!(decoded(&config, make, false).0 == logits, "{what}");
            let gradients = inspected.backward(inspect.back());
            match kind {
                "plain" => gradients.unwrap(),
                _ => assert!(matches!(gradients, Err(BackendError::NotSupported { op: "backward", .. }))),
            }
            for param in &inspect.params {
                let mut rounded = own.read(param.region).unwrap();
                if kind == "packed" && precision == Precision::Bf16 {
                    rounded = session.parts().1.read(param.region).unwrap();
                }
                assert!(weights.values(&param.name).unwrap().unwrap() == rounded, "{}: {what}", param.name);
                assert!(inspected.read(param.region).unwrap() == rounded, "{}: {what}", param.name);
            }
        }
    }
}

fn trainer() -> Trainer {
    let model = Model::new(&tiny(), Mode::Train { batch: 2, context: 12 }).unwrap();
    let recipe = Recipe { steps: 4, batch_size: 2, context: 12, warmup_steps: 1, ema: 0.9, ..Recipe::default() };
    let cpu = Box::new(Cpu::new(&model, 2));
    Trainer::new(model, cpu, recipe).unwrap()
}

fn state(trainer: &Trainer) -> Vec<Vec<u32>> {
    trainer.model.params.iter().map(|p| bits(&trainer.backend.read(p.region).unwrap())).collect()
}

#[test]
fn a_trainer_lends_its_weights_to_a_session_and_goes_on_when_it_is_dropped() {
    let text = Tokens::new((0..600).map(|i| random::below(1, 0, i / 3, 17) as u32).collect());
    let batches = Batches::new(&text, WindowShape::next_token(12), 2, 7).unwrap();
    let (mut whole, mut lender) = (trainer(), trainer());
    (0..4).for_each(|_| _ = whole.step(&batches).unwrap());
    (0..2).for_each(|_| _ = lender.step(&batches).unwrap());

    let mut copied = Sequences::on_cpu(&tiny(), 2, 1).unwrap();
    copied.take_parameters(&lender.model, &*lender.backend).unwrap();
    let copy = copied.open();
    let how = Machine::cpu(2);
    let weights = lender.backend.share().unwrap();
    let (logits, session, _) = decoded(&tiny(), with(how, &weights), false);
    for (token, logits) in ids(5).into_iter().zip(&logits) {
        copied.feed(copy, &[token]).unwrap();
        assert!(bits(copied.logits(copy)) == *logits);
    }

    let before = state(&lender);
    match lender.step(&batches) {
        Err(TrainError::Backend(error @ BackendError::Shared { op: "update", others: 2, .. })) => {
            let said =
                "update cannot change `embed.weight`: 2 others hold the same weights; drop what shares them first";
            assert_eq!(error.to_string(), said);
        }
        other => panic!("{other:?}"),
    }
    let region = lender.model.param("ln_final.weight").unwrap().region;
    let refused = lender.backend.write(region, &vec![1.0; region.len()]);
    assert!(matches!(refused, Err(BackendError::Shared { op: "write", tensor, .. }) if tensor == "ln_final.weight"));
    assert!(
        matches!(lender.averaged(|_| ()), Err(TrainError::Backend(BackendError::Shared { .. }))),
        "the average would take their place"
    );
    assert!(lender.steps_done() == 2 && state(&lender) == before);

    drop(weights);
    assert!(matches!(lender.step(&batches), Err(TrainError::Backend(BackendError::Shared { others: 1, .. }))));
    drop(session);
    while lender.steps_done() < 4 {
        lender.step(&batches).unwrap();
    }
    assert!(state(&lender) == state(&whole));
}

#[test]
fn weights_that_do_not_fit_are_refused_by_name() {
    let how = Machine::cpu(1);
    let session = |config: &Config| Model::new(config, Mode::Decode { rows: 2, outputs: 1, blocks: 1 }).unwrap();
    let packed = Cpu::new(&session(&tiny()), 1).share().unwrap();
    let refused = |machine: &Machine, model: &Model, weights: &SharedWeights| {
        machine.start_with(model, weights).map(drop).unwrap_err().to_string()
    };
    let said = |config: Config| refused(&how, &session(&config), &packed);
    let named = said(Config { d_ff: 25, ..tiny() });
    assert!(named.ends_with("their `blocks.0.mlp.in.weight` is (40, 24), not (25, 24)"), "{named}");
    let named = said(Config { n_layer: 3, ..tiny() });
    assert!(named.ends_with("they have no `blocks.2.ln1.weight`"), "{named}");
    let named = said(Config { n_layer: 1, ..tiny() });
    assert!(named.contains("they have a `blocks.1."), "{named}");

    let train = Mode::Train { batch: 1, context: 12 };
    let model = Model::new(&tiny(), train).unwrap();
    let training = refused(&how, &model, &packed);
    assert!(training.ends_with("they are packed for running: training needs its own"), "{training}");
    let rounding = refused(&Machine { precision: Precision::Bf16, ..how.clone() }, &session(&tiny()), &packed);
    assert!(rounding.contains("packed for f32 on") && rounding.contains("not for bf16 on"), "{rounding}");
    let elsewhere = refused(&Machine { device: Device::Reference, ..how.clone() }, &session(&tiny()), &packed);
    assert!(elsewhere.ends_with("the reference keeps weights of its own"), "{elsewhere}");
    let tuning = Tuning { freeze: vec!["embed.*".into()], ..Tuning::default() };
    let frozen = Cpu::new(&Model::tuned(&tiny(), train, &tuning).unwrap(), 1).share().unwrap();
    let moved = refused(&how, &session(&tiny()), &frozen);
    assert!(moved.contains("their `embed.weight` lies elsewhere"), "{moved}");
    assert!(limpid::backend::Reference::new(&model).share().is_err());
}

/// Two sessions, a trace and scores of one model, opened from a file or trained, take the weights' memory once. In a
/// process of its own, whose memory is nobody else's.
#[cfg(target_os = "linux")]
#[test]
#[ignore = "gate"]
fn a_model_keeps_its_weights_once() {
    use limpid::checkpoint::{self, Format, ModelData, store::Dtype};
    use limpid::data::source::TextSource;
    use limpid::embed::Pooling;
    use limpid::engine::DecoderLimits;
    use limpid::generate::Options;
    use limpid::tokenizer::{Order, Tokenizer, TokenizerKind};
    use limpid::train::RunOptions;
    use limpid::{Lm, Training};
    if !alone("shared::a_model_keeps_its_weights_once", "copies of trained weights") {
        return;
    }
    let held = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        1024.0 * line.split_whitespace().next().unwrap().parse::<f64>().unwrap()
    };
    let text = "to be or not to be, that is the question. ";
    let tokenizer = Tokenizer::train(TokenizerKind::Char, text, Order::Sorted, &[]).unwrap();
    let (vocab_size, context_length) = (tokenizer.vocab_size(), 16);
    let nano = Config::preset("nano").unwrap();
    let config = Config { vocab_size, context_length, d_model: 512, n_head: 8, n_layer: 4, d_ff: 2048, ..nano };
    let model = Model::new(&config, Mode::Inspect { batch: 1, context: 1 }).unwrap();
    let copy = 4.0 * model.parameter_count() as f64;
    assert!(copy > 50e6);

    let copies = |lm: &Lm, before: f64| {
        let limits = |n| DecoderLimits::of_sequences(lm.config(), n, 256);
        let mut sessions = [1, 2].map(|n| Sequences::on(lm.decoder(limits(n)).unwrap()));
        for session in &mut sessions {
            let id = session.open();
            session.feed(id, &lm.encode("to be").unwrap()).unwrap();
        }
        lm.generate("to be", &Options { max_tokens: 4, ..Options::default() }).unwrap();
        lm.score("to be", " or").unwrap();
        lm.evaluate(&TextSource::of_text(text)).unwrap();
        lm.embed("not to be", Pooling::Mean).unwrap();
        lm.trace("to be").unwrap().get("logits").unwrap();
        (held() - before) / copy
    };
    let folder = std::env::temp_dir().join(format!("limpid-shared-{}", std::process::id()));
    let values = |param: &limpid::model::Param| init::values(&model, param, init::Init::Gpt2, 0.02, 5);
    let written = ModelData { tokenizer: Some(&tokenizer), ..ModelData::new(&config, &values) };
    checkpoint::save(&folder, Format::Limpid, &Dtype::F32, &written).unwrap();
    let before = held();
    let lm = Lm::open(&folder).unwrap().with_machine(Machine::cpu(2));
    let found = copies(&lm, before);
    drop(lm);
    std::fs::remove_dir_all(&folder).unwrap();
    assert!((0.9..1.5).contains(&found), "{found:.2} copies of a file's weights");

    let recipe = Recipe { steps: 1, batch_size: 1, context: 16, ..Recipe::preset("nano").unwrap() };
    let options = RunOptions { preflight: false, ..RunOptions::default() };
    let before = held();
    let training =
        Training::new(config, recipe).options(options).text(text.repeat(40)).tokenizer("char").machine(Machine::cpu(2));
    let lm = training.run().unwrap().lm;
    let found = copies(&lm, before);
    assert!((0.9..1.5).contains(&found), "{found:.2} copies of trained weights");
    println!("{found:.2} copies of trained weights");
}

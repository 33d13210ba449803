//! The number of threads changes while a model trains, scores and decodes, and no bit does. A clock that rolls dice has
//! the chooser try and choose any numbers; what a choice is worth is tested where the chooser is.

use crate::common::filled::fill;
use crate::common::folder::{Folder, copy_folder};
use crate::common::ids;
use limpid::backend::{Backend, Clock, Cpu};
use limpid::config::{Config, Dropout, Value};
use limpid::engine::{DecodeRows, Decoder, DecoderLimits};
use limpid::generate::Options;
use limpid::matrix::Precision;
use limpid::model::{Mode, Model};
use limpid::numeric::random;
use limpid::numeric::simd::Level;
use limpid::ops::Batch;
use limpid::settings::MachineSettings;
use limpid::train::ranks::threads::threads;
use limpid::train::{Control, Recipe, RunOptions, Summary, TrainEvent};
use limpid::{Lm, Machine, Training};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Seconds that go by are 1 to 40 ms from call to call.
pub fn dice() -> f64 {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    static MICROSECONDS: AtomicU64 = AtomicU64::new(0);
    let step = 1000 + random::below(11, 0, CALLS.fetch_add(1, Relaxed), 39_000);
    1e-6 * (MICROSECONDS.fetch_add(step, Relaxed) + step) as f64
}

/// Up to four threads, as the dice choose.
fn changing() -> Machine {
    Machine { clock: Some(Clock(dice)), ..Machine::cpu(4) }
}

/// Two blocks, so wide that several threads work on a single row.
fn config() -> Config {
    let nano = Config::preset("nano").unwrap();
    let dropout = Dropout::everywhere(0.1);
    Config { d_model: 256, d_ff: 512, n_head: 4, n_layer: 2, context_length: 24, dropout, ..nano }
}

fn training(batch_size: usize, accumulate: usize) -> Training {
    let nano = Recipe::preset("nano").unwrap();
    let recipe = Recipe { steps: 60, batch_size, accumulate, warmup_steps: 1, ..nano };
    let nano = RunOptions::preset("nano").unwrap();
    let options = RunOptions { eval_every: 15, save_every: 20, keep: 3, probe: true, probe_every: 20, ..nano };
    let small = Config { d_model: 32, d_ff: 64, n_head: 2, ..config() };
    let text = "to be or not to be, that is the question.\n".repeat(40);
    Training::new(small, recipe).options(options).text(text).tokenizer("char")
}

/// The time-lapse of a run, its best weights, and its last weights and moments without the header, which tells seconds.
fn saved(folder: &Path) -> [Vec<u8>; 3] {
    let files = ["timelapse.lpt", "model.safetensors", "state/last.safetensors"];
    let [timelapse, best, mut last] = files.map(|file| fs::read(folder.join(file)).unwrap());
    let header = u64::from_le_bytes(last[..8].try_into().unwrap()) as usize;
    last.drain(..8 + header);
    assert!(last.len() > best.len());
    [timelapse, best, last]
}

/// Fails if two runs differ, and says where.
#[track_caller]
fn same(one: &Path, other: &Path) {
    let parts = ["the time-lapse", "the best weights", "the last weights and moments"];
    for ((what, one), other_bytes) in parts.into_iter().zip(saved(one)).zip(saved(other)) {
        assert!(one == other_bytes, "{what} in {}", other.display());
    }
}

/// How many numbers of threads were tried.
fn tried(summary: &Summary) -> usize {
    summary.threads.as_ref().map_or(0, |times| times.seconds.len())
}

#[test]
fn a_number_that_is_asked_for_is_fixed() {
    let machine = |text: &str| {
        let mut settings = MachineSettings::default();
        settings.threads.parse(text).unwrap();
        settings.machine()
    };
    let cores = std::thread::available_parallelism().unwrap().get();
    assert_eq!((machine("3").threads, machine("3").clock), (3, None));
    assert_eq!((machine("auto").threads, machine("auto").clock.is_some()), (cores, true));
    assert_eq!(MachineSettings::default().machine(), machine("auto"));
    let Some(Clock(seconds)) = Machine::default().clock else { panic!("it has no clock") };
    let before = seconds();
    assert!((0.0..=seconds()).contains(&before));
    let model = Model::new(&config(), Mode::Score { batch: 1, context: 24 }).unwrap();
    let fixed = machine("3").start(&model).unwrap();
    assert!(fixed.thread_choosers().is_empty());
}

#[test]
fn training_has_the_same_bits_whatever_is_chosen() {
    let f = Folder::new("threads-train");
    for (batch_size, accumulate) in [(6, 1), (2, 2)] {
        let at = |name: &str| f.at(&format!("{name}-{batch_size}"));
        let make = || training(batch_size, accumulate);
        let one = make().machine(Machine::cpu(1)).folder(at("one")).run().unwrap();
        assert_eq!(one.summary.threads, None);
        let chosen = make().machine(changing()).folder(at("chosen")).run().unwrap();
        assert!(tried(&chosen.summary) > 1, "{:?}", chosen.summary.threads);
        same(&at("one"), &at("chosen"));
        let chosen = chosen.summary.threads.unwrap();
        assert!(chosen.most == 4 && chosen.seconds.iter().any(|(threads, _)| *threads == chosen.chosen));

        // stopped between two saves, and resumed; then from a state that was kept
        let stop = &mut |event| match event {
            TrainEvent::Step(step, _) if step.step == 33 => Control::Stop,
            _ => Control::Continue,
        };
        make().machine(changing()).folder(at("stopped")).run_telling(stop).unwrap();
        make().machine(changing()).folder(at("stopped")).resume().run().unwrap();
        same(&at("one"), &at("stopped"));
        copy_folder(&at("one"), &at("back"));
        make().machine(changing()).folder(at("back")).resume().resume_step(20).run().unwrap();
        same(&at("one"), &at("back"));

        if accumulate == 2 {
            let folder = &at("processes");
            std::thread::scope(|scope| {
                let start = |rank| {
                    let machine = changing();
                    scope.spawn(move || {
                        let training = training(batch_size, accumulate).machine(machine);
                        training.folder(folder).ranks(Box::new(rank)).run().map(drop)
                    })
                };
                let all: Vec<_> = threads(2).into_iter().map(start).collect();
                all.into_iter().for_each(|process| process.join().unwrap().unwrap());
            });
            same(&at("one"), folder);
        }
        let said = |machine| {
            let options = Options { max_tokens: 60, ..Options::default() };
            Lm::open(at("one")).unwrap().with_machine(machine).generate("to be", &options).unwrap().text
        };
        assert_eq!(said(Machine::cpu(1)), said(changing()));
    }
}

#[test]
fn losses_have_the_same_bits_whatever_is_chosen() {
    let config = Config { dropout: Dropout::default(), ..config() };
    let model = Model::new(&config, Mode::Score { batch: 5, context: 24 }).unwrap();
    let mut one = Cpu::with(&model, 1, Level::best(), Precision::F32);
    let mut chosen = Cpu::with(&model, 4, Level::best(), Precision::F32).choose_threads(&model, Clock(dice));
    fill(&model, &mut one);
    fill(&model, &mut chosen);
    for run in 0..80 {
        let tokens = ids(&format!("score {run}"), (1 + run % 5) * 24, config.vocab_size);
        let batch = Batch::of_sequences(tokens.clone(), tokens, 24);
        let losses = |cpu: &mut Cpu| {
            cpu.feed(&batch).unwrap();
            cpu.forward(model.ops()).unwrap();
            cpu.read(model.losses().unwrap()).unwrap()[..batch.tokens.len()].to_vec()
        };
        assert_eq!(losses(&mut one), losses(&mut chosen), "run {run}");
    }
    assert!(chosen.thread_choosers().iter().any(|chooser| chooser.times(1.0).seconds.len() > 1));
    assert!(one.thread_choosers().is_empty());
}

#[test]
fn logits_have_the_same_bits_whatever_is_chosen() {
    let config = Config { dropout: Dropout::default(), ..config() };
    let decoder = |machine: Machine| {
        let limits = DecoderLimits::of_sequences(&config, 1, 24);
        let mut decoder = Decoder::new(&config, limits, |model| machine.start(model)).unwrap();
        let (model, backend) = decoder.parts();
        fill(model, backend);
        let table = decoder.pool().reserve(None, 24).unwrap();
        (decoder, table)
    };
    let [mut one, mut chosen] = [Machine::cpu(1), changing()].map(decoder);
    for run in 0..80 {
        // prompts, and tokens one by one
        let prompt = ids(&format!("prompt {run}"), 1 + run % 13, config.vocab_size);
        for (past, tokens) in [(0, &prompt[..]), (prompt.len(), &[3]), (prompt.len() + 1, &[4])] {
            let [one, chosen] = [&mut one, &mut chosen].map(|(decoder, table)| {
                decoder.run([DecodeRows { table, past, tokens, outputs: 1 }]).unwrap();
                decoder.logits().to_vec()
            });
            assert_eq!(one, chosen, "run {run}, {past} tokens before");
        }
    }
    let choosers = chosen.0.parts().1.thread_choosers();
    assert!(choosers[0].times(1.0).seconds.len() > 1, "{:?}", choosers[0]);
    assert!(choosers[3].times(1.0).seconds.len() > 1, "{:?}", choosers[3]);
}

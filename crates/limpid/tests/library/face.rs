//! The face: an [`Lm`] says what the parts say, from files and from memory; and the examples do what they are for.

#[allow(dead_code)]
#[path = "../../examples/chat.rs"]
mod chat;
#[allow(dead_code)]
#[path = "../../examples/convert.rs"]
mod convert;
#[allow(dead_code)]
#[path = "../../examples/fine_tune.rs"]
mod fine_tune;
#[allow(dead_code)]
#[path = "../../examples/generate.rs"]
mod generate;
#[allow(dead_code)]
#[path = "../../examples/look_inside.rs"]
mod look_inside;
#[allow(dead_code)]
#[path = "../../examples/observer.rs"]
mod observer;
#[allow(dead_code)]
#[path = "../../examples/train.rs"]
mod train;

use crate::common::folder::Folder;
use limpid::backend::{Backend, Reference};
use limpid::checkpoint::{Format, safetensors_file};
use limpid::config::{Config, ConfigError, Mask};
use limpid::data::source::TextSource;
use limpid::embed::{Pooling, normalized};
use limpid::engine::{DecoderLimits, EngineLimits};
use limpid::generate::{FinishReason, Options, Sampler};
use limpid::memory;
use limpid::model::{Lora, MemoryPart, Mode, Model, Tuning};
use limpid::ops::IGNORE;
use limpid::tokenizer::Tokenizer;
use limpid::train::ranks::threads::{ThreadRank, threads};
use limpid::train::{Control, Ranks, Recipe, RunOptions, Summary, TrainEvent};
use limpid::{Device, Error, Lm, Machine, Trained, Training, trace};
use std::fs;
use std::path::Path;

const TEXT: &str = "to be or not to be, that is the question.\n";

/// A quick run of a small model on the text above.
fn training(steps: u64) -> Training {
    let config = Config { d_model: 32, d_ff: 64, n_layer: 2, context_length: 32, ..Config::preset("nano").unwrap() };
    let options = RunOptions { eval_every: 4, preflight: false, ..RunOptions::preset("nano").unwrap() };
    let recipe = Recipe { steps, batch_size: 4, ..Recipe::preset("nano").unwrap() };
    Training::new(config, recipe).options(options).text(TEXT.repeat(40)).tokenizer("char").machine(Machine::cpu(2))
}

fn trained(training: Training) -> (Lm, Summary) {
    let Trained { lm, summary, .. } = training.run().unwrap();
    (lm, summary)
}

/// The bits of a model at a text.
fn logits(lm: &Lm, text: &str) -> Vec<u32> {
    let logits = lm.trace(text).unwrap().get("logits").unwrap();
    logits.values.iter().map(|v| v.to_bits()).collect()
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-4 * (1.0 + a.abs())
}

/// From memory, from its folder, from every format: the same model to the bit.
#[test]
fn a_model_is_the_same_in_memory_and_in_every_format() {
    let f = Folder::new("formats");
    let (held, summary) = trained(training(6));
    assert_eq!(summary.steps, 6);
    let recipe = Recipe { val_fraction: 0.0, ..Recipe::preset("nano").unwrap() };
    // without validation the kept weights are the last ones
    let again = || training(6).recipe(Recipe { steps: 6, batch_size: 4, ..recipe });
    let (held, opened) =
        (trained(again()).0.with_machine(Machine::cpu(1)), (held, trained(again().folder(f.at("run"))).0).1);
    let own = logits(&held, "to be or");
    assert_eq!(own, logits(&opened, "to be or"));
    let formats = [("hf", Format::HuggingFace), ("m.gguf", Format::Gguf), ("limpid", Format::Limpid)];
    for (name, format) in formats {
        match held.save(f.at(name), format) {
            Ok(()) => assert_eq!(own, logits(&Lm::open(f.at(name)).unwrap(), "to be or"), "{format}"),
            Err(error) => panic!("{format}: {error}"),
        }
    }
}

/// A prompt's sample is the same streamed, generated again in the session that was kept, and from several threads at
/// once.
#[test]
fn generating_depends_on_the_prompt_and_options_alone() {
    let (lm, _) = trained(training(8));
    let options = Options { max_tokens: 40, sampler: Sampler { seed: 3, ..Sampler::default() }, ..Options::default() };
    let first = lm.generate("to be", &options).unwrap();
    assert_eq!((first.tokens.len(), first.finish_reason), (40, FinishReason::Length));
    let pieces: Result<String, Error> = lm.stream("to be", &options).unwrap().collect();
    assert_eq!(pieces.unwrap(), first.text);
    assert_eq!(lm.stream("to be", &options).unwrap().sample().unwrap(), first);
    // one that is dropped ends, and the next is not disturbed
    assert!(lm.stream("to be", &options).unwrap().next().is_some());
    let mut both = [lm.stream("to be", &options).unwrap(), lm.stream("to be", &options).unwrap()];
    let [a, b] = both.each_mut().map(|one| one.next().unwrap().unwrap());
    assert_eq!(a, b, "two at once");
    drop(both);
    let cut = lm.generate_events(&lm.encode("to be").unwrap(), &options, &mut |_| false).unwrap();
    assert_eq!(cut.finish_reason, FinishReason::Cancelled);
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..3).map(|_| scope.spawn(|| lm.generate("to be", &options).unwrap())).collect();
        all.into_iter().for_each(|one| assert_eq!(one.join().unwrap(), first));
    });
    assert!(!lm.generate("", &options).unwrap().tokens.is_empty(), "a text may begin anywhere");
}

/// A score is what the logits of the whole text say, and evaluation is the mean of such scores.
#[test]
fn scores_are_those_of_the_logits() {
    let (lm, _) = trained(training(8));
    let (prompt, more) = ("to be", " or not");
    let found = lm.score(prompt, more).unwrap();
    let ids = lm.encode(&format!("{prompt}{more}")).unwrap();
    let seen = lm.trace(&format!("{prompt}{more}")).unwrap().get("logits").unwrap();
    let v = lm.config().vocab_size;
    for (i, log_prob) in found.log_probs.iter().enumerate() {
        let at = prompt.len() + i;
        let row: Vec<f64> = seen.values[(at - 1) * v..at * v].iter().map(|v| f64::from(*v)).collect();
        let expected = row[ids[at] as usize] - row.iter().map(|v| v.exp()).sum::<f64>().ln();
        assert!(close(*log_prob, expected), "{log_prob}, expected {expected}");
    }
    let text = &TEXT[..33]; // one window of 32 predictions
    let score = lm.evaluate(&TextSource::of_text(text)).unwrap();
    let whole = lm.score(&text[..1], &text[1..]).unwrap();
    assert!(score.tokens == 32 && close(score.loss().unwrap(), -whole.total / 32.0), "{score:?} {}", whole.total);
}

/// What is pooled is what leaves the final norm, and nothing after it matters.
#[test]
fn embeddings_are_the_hidden_states_pooled() {
    let (lm, _) = trained(training(4));
    let states = lm.trace("not to be").unwrap().get("ln_final.hook_out").unwrap();
    let (rows, width) = (states.shape[1], lm.config().d_model);
    assert_eq!(states.values.len(), rows * width);
    assert_eq!(lm.embed("not to be", Pooling::Cls).unwrap(), states.values[..width]);
    assert_eq!(lm.embed("not to be", Pooling::Last).unwrap(), states.values[(rows - 1) * width..]);
    for (c, mean) in lm.embed("not to be", Pooling::Mean).unwrap().into_iter().enumerate() {
        let all = states.values.iter().skip(c).step_by(width).map(|v| f64::from(*v)).sum::<f64>();
        assert!(close(f64::from(mean), all / rows as f64), "{c}");
    }
    // and by the judge, in f64
    let ids = lm.encode("not to be").unwrap();
    let model = Model::new(lm.config(), Mode::Inspect { batch: 1, context: ids.len() }).unwrap();
    let mut judge = Reference::new(&model);
    lm.load(&model, &mut judge).unwrap();
    judge.feed(&trace::batch(lm.config(), &ids, None, None).unwrap()).unwrap();
    judge.forward(model.ops()).unwrap();
    let exact = judge.read(model.tensor("ln_final.hook_out").unwrap().region).unwrap();
    assert!(exact.iter().zip(&states.values).all(|(a, b)| (a - b).abs() < 1e-3));
}

/// The hidden states of transformers, pooled: of decoders and encoders (reference/families.py). They have length 1
/// where that is asked.
#[test]
fn embeddings_are_those_of_transformers() {
    for case in ["bert-encoder", "bert-mlm", "gpt2-plain", "llama-gqa"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/hf").join(case);
        let store = safetensors_file::open(&folder.join("truth.safetensors")).unwrap();
        let get = |name: &str| store.get(name).map(|tensor| tensor.values().unwrap().into_owned());
        let [_, rows, width] = store.get("hidden").unwrap().shape[..] else { panic!("{case}") };
        // the first text, whole and of one segment
        assert!(get("segments").is_none_or(|segments| segments[..rows].iter().all(|s| *s == 0.0)));
        let ids: Vec<u32> = get("tokens").unwrap()[..rows].iter().map(|id| *id as u32).collect();
        let hidden = &get("hidden").unwrap()[..rows * width];
        let lm = Lm::open(&folder).unwrap();
        let mean: Vec<f32> =
            (0..width).map(|c| hidden.iter().skip(c).step_by(width).sum::<f32>() / rows as f32).collect();
        for (pooling, truth) in [
            (Pooling::Mean, &mean[..]),
            (Pooling::Cls, &hidden[..width]),
            (Pooling::Last, &hidden[(rows - 1) * width..]),
        ] {
            let found = lm.embed_ids(&ids, pooling).unwrap();
            assert_eq!(found.len(), width);
            let far = |found: &[f32], truth: &[f32]| found.iter().zip(truth).any(|(a, b)| (a - b).abs() > 1e-4);
            assert!(!far(&found, truth), "{case} {pooling:?}: {found:?}, expected {truth:?}");
            let length = truth.iter().map(|x| x * x).sum::<f32>().sqrt();
            let unit: Vec<f32> = truth.iter().map(|x| x / length).collect();
            assert!(!far(&normalized(found), &unit), "{case} {pooling:?}");
        }
    }
    assert_eq!(normalized(vec![0.0; 3]), [0.0; 3]);
    let unit = normalized(vec![3e-30, -4e-30]);
    assert!((unit[0] - 0.6).abs() < 1e-6 && (unit[1] + 0.8).abs() < 1e-6, "{unit:?}");
}

/// An encoder: masks are filled, texts have vectors; what only a causal model does is refused.
#[test]
fn an_encoder_fills_and_embeds() {
    let config = Config {
        d_model: 32,
        d_ff: 64,
        n_layer: 1,
        context_length: 16,
        mask: Mask::Bidirectional,
        ..Config::preset("nano").unwrap()
    };
    let recipe = Recipe { steps: 300, batch_size: 8, context: 16, ..Recipe::preset("nano").unwrap() };
    let text = "to be or not to be\n".repeat(60);
    let (lm, _) = trained(Training::new(config, recipe).text(text).tokenizer("word").machine(Machine::cpu(2)));
    let filled = lm.fill("to be or [MASK] to be").unwrap();
    assert_eq!((filled.text.as_str(), filled.masks.len(), filled.masks[0].0), ("to be or not to be", 1, 3));
    assert!(filled.masks[0].1.len() == 5 && filled.masks[0].1.is_sorted_by(|a, b| a.1 >= b.1));
    let ids = lm.encode("to be or [MASK] to be").unwrap();
    let distribution = lm.distribution(&ids, &[], 3).unwrap();
    let sum: f64 = distribution.iter().map(|p| f64::from(*p)).sum();
    assert!((sum - 1.0).abs() < 1e-5 && distribution.len() == lm.config().vocab_size, "{sum}");
    assert_eq!(distribution.iter().copied().fold(0.0, f32::max), filled.masks[0].1[0].1);
    assert_ne!(lm.distribution(&ids, &[], 4).unwrap(), distribution);
    for (refused, said) in [
        (lm.distribution(&ids, &[], 6), "no place 6 among 6 tokens"),
        (lm.distribution(&ids, &[0; 5], 3), "for all of the 6 tokens or none"),
        (lm.distribution(&ids, &[0, 0, 0, 1, 1, 1], 3), "segment 1 is outside"),
        (lm.distribution(&[99; 3], &[], 3 - 1), "token 99 is outside"),
    ] {
        let error = refused.unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
    assert_eq!(lm.embed("to be", Pooling::Cls).unwrap().len(), 32);
    assert!(matches!(lm.generate("to be", &Options::default()), Err(Error::Generate(_))));
    assert!(lm.evaluate(&TextSource::of_text("to be or not to be\n".repeat(60))).unwrap().loss().unwrap() < 1.0);
}

/// A run that is stopped and resumed ends with the bits of one that is not; a listener hears every step.
#[test]
fn training_tells_stops_and_goes_on() {
    let f = Folder::new("resume");
    let whole = trained(training(8).folder(f.at("whole"))).0;
    let mut steps = vec![];
    let stopped = training(8).folder(f.at("parts")).run_telling(|event| match event {
        TrainEvent::Step(step, _) => {
            steps.push(step.step);
            if step.step == 5 { Control::Stop } else { Control::Continue }
        }
        _ => Control::Continue,
    });
    assert_eq!((steps, stopped.unwrap().summary.stopped), ((1..=5).collect(), true));
    let again = || training(8).folder(f.at("parts"));
    assert!(matches!(again().run(), Err(Error::Train(_))), "a run is not written over");
    let (resumed, summary) = trained(again().resume());
    assert_eq!((logits(&resumed, "to be"), summary.steps), (logits(&whole, "to be"), 8));
    assert!(f.at("parts/summary.json").exists());
    let (tuned, _) = trained(Training::fine_tuning(whole).text(TEXT.repeat(20)).recipe(Recipe {
        steps: 3,
        batch_size: 2,
        ..Recipe::default()
    }));
    assert_ne!(logits(&tuned, "to be"), logits(&resumed, "to be"), "it learned");
    assert_eq!(tuned.tokenizer().unwrap(), resumed.tokenizer().unwrap());
}

/// Less memory gives the same bits; what cannot fit is an error before it is reserved.
#[test]
fn memory_is_a_budget_and_a_guard() {
    let recipe = Recipe { steps: 3, batch_size: 16, context: 64, ..Recipe::preset("nano").unwrap() };
    let text = TEXT.repeat(60);
    let run = || {
        Training::preset("nano").unwrap().recipe(recipe).text(text.clone()).tokenizer("char").machine(Machine::cpu(1))
    };
    let (free, summary) = trained(run());
    let vocab_size = free.config().vocab_size;
    let config = Config { vocab_size, ..Config::preset("nano").unwrap() };
    let model = Model::new(&config, Mode::Train { batch: 16, context: 64 }).unwrap();
    let takes = memory::needed(&model, Some(&recipe), &Machine::cpu(1));
    let (less, budgeted) = trained(run().memory(memory::program() + takes * 3 / 4));
    assert_eq!(logits(&less, "to be"), logits(&free, "to be"));
    assert_eq!(budgeted.train_loss, summary.train_loss);
    let refused = run().memory(1).run().unwrap_err();
    assert!(matches!(refused, Error::Config(ConfigError::Budget { budget: 1, .. })), "{refused}");

    // caches of more sequences than the machine has memory for
    let cache = 4 * 2 * config.d_model * config.n_layer * config.context_length;
    let sequences = (memory::total().unwrap() as usize / cache).next_power_of_two();
    let decoder = |n| free.decoder(DecoderLimits::of_sequences(free.config(), n, 256));
    let refused = decoder(sequences).err().expect("it has no room");
    let Error::Memory { needed, left, .. } = &refused else { panic!("{refused}") };
    assert!(*needed > *left && *needed >= (sequences * cache) as u64, "{refused}");
    assert!(decoder(2).is_ok());
    // a budget of a device's own: f64 takes twice what f32 does, and no scratch
    let reference = memory::needed(&model, Some(&recipe), &Machine { device: Device::Reference, ..Machine::cpu(1) });
    let parts = memory::parts(&model, Some(&recipe), &Machine::cpu(1));
    let bytes = |part: MemoryPart| parts.iter().find(|(other, _)| *other == part).unwrap().1;
    let (scratch, lists) = (bytes(MemoryPart::ThreadScratch), bytes(MemoryPart::OpLists));
    assert_eq!(reference - lists, 2 * (takes - scratch - lists));
}

/// An adapter is learned, kept in its folder and opened; where it cannot be kept, it is refused.
#[test]
fn an_adapter_is_trained_kept_and_opened() {
    let f = Folder::new("adapter");
    let (held, _) = trained(training(4).folder(f.at("base")));
    let lora = Lora { rank: 2, alpha: 4.0, dropout: 0.0, targets: vec!["attention".into()] };
    let tuning = || Tuning { lora: Some(lora.clone()), ..Tuning::default() };
    let learn = |lm: Lm| {
        Training::fine_tuning(lm).text("be not to be or to. ".repeat(60)).tuning(tuning()).machine(Machine::cpu(1))
    };
    let recipe = Recipe { steps: 4, batch_size: 2, learning_rate: 0.05, warmup_steps: 0, ..Recipe::default() };
    let (adapted, _) = trained(learn(held).recipe(recipe).folder(f.at("adapter")));
    assert!(f.at("adapter/adapter_model.safetensors").exists() && !f.at("adapter/model.safetensors").exists());
    let base = || Lm::open(f.at("base")).unwrap();
    assert_ne!(logits(&adapted, "to be"), logits(&base(), "to be"), "it learned");
    let refused = [
        learn(base()).run(),
        learn(trained(training(2)).0).folder(f.at("none")).run(),
        learn(adapted).folder(f.at("none")).run(),
    ];
    for (refused, said) in refused.into_iter().zip(["name a folder", "save the model", "save it whole first"]) {
        let error = refused.unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
    assert!(!f.at("none").exists());
}

/// What each of two processes, played by threads, comes to.
fn in_two<T: Send>(process: impl Fn(ThreadRank) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let started: Vec<_> = threads(2).into_iter().map(|rank| scope.spawn(|| process(rank))).collect();
        started.into_iter().map(|process| process.join().unwrap()).collect()
    })
}

/// The best weights by validation loss, in a folder that process 0 alone sees: all processes have them at the end.
/// Those of an adapter too, whose files the others never see.
#[test]
fn processes_end_with_the_same_model() {
    let f = Folder::new("same-model");
    // a rate that grows to where the last weights are far from the best
    let learning_rate = 1.0;
    let recipe = Recipe {
        steps: 8,
        batch_size: 2,
        accumulate: 2,
        ema: 0.5,
        warmup_steps: 8,
        learning_rate,
        ..Recipe::default()
    };
    let all = in_two(|rank| {
        let folder = f.at(&format!("whole-{}", rank.rank()));
        let options = RunOptions { eval_every: 1, preflight: false, ..RunOptions::default() };
        trained(
            training(8).recipe(recipe).options(options).machine(Machine::cpu(1)).folder(folder).ranks(Box::new(rank)),
        )
    });
    assert!(all[0].1.best_step < 8, "the last weights are the best: this test shows nothing");
    assert!(!f.at("whole-1").exists(), "process 0 alone writes");
    assert_eq!(logits(&all[0].0, "to be"), logits(&all[1].0, "to be"));

    let lora = Lora { rank: 2, alpha: 4.0, dropout: 0.0, targets: vec!["attention".into()] };
    let tuning = || Tuning { lora: Some(lora.clone()), ..Tuning::default() };
    let all = in_two(|rank| {
        let base = Training::fine_tuning(Lm::open(f.at("whole-0")).unwrap()).text(TEXT.repeat(60)).tuning(tuning());
        let recipe = Recipe { learning_rate: 0.05, ..recipe };
        let folder = f.at(&format!("adapter-{}", rank.rank()));
        trained(base.recipe(recipe).machine(Machine::cpu(1)).folder(folder).ranks(Box::new(rank))).0
    });
    assert_ne!(logits(&all[0], "to be"), logits(&Lm::open(f.at("whole-0")).unwrap(), "to be"), "it learned");
    assert_eq!(logits(&all[0], "to be"), logits(&all[1], "to be"));
}

/// A process that does not see the run that another goes on with is told, and none waits for it.
#[test]
fn processes_that_do_not_see_the_run_are_refused() {
    let f = Folder::new("unseen");
    trained(training(2).folder(f.at("0")));
    let recipe = Recipe { steps: 4, batch_size: 2, accumulate: 2, ..Recipe::default() };
    let errors = in_two(|rank| {
        let folder = f.at(&rank.rank().to_string());
        let again = training(2).recipe(recipe).folder(folder).resume().ranks(Box::new(rank));
        again.run().unwrap_err().to_string()
    });
    for error in errors {
        assert!(error.contains("process 1 ") && error.contains("no run that it sees"), "{error}");
    }
}

/// Moments are shared out, and memory is shared where processes run on one machine.
#[test]
fn the_memory_of_processes_is_counted_for_each_and_for_its_machine() {
    let left = memory::limits().into_iter().filter(|limit| !limit.of_addresses).map(|limit| limit.left).min();
    let left = left.expect("the system tells its memory");
    // parameters of a 72nd of it: with gradients, moments and what M = 8 sets aside one process takes 28 numbers of
    // each, one of eight takes 9
    let recipe = Recipe { batch_size: 1, accumulate: 8, context: 8, ..Recipe::default() };
    let vocab_size = (left / 18 / 1024) as usize;
    let config = Config {
        vocab_size,
        tied_head: true,
        d_model: 1024,
        n_layer: 1,
        context_length: 8,
        ..Config::preset("nano").unwrap()
    };
    let model = Model::new(&config, Mode::Train { batch: 1, context: 8 }).unwrap();
    let fits = |processes| {
        let on = memory::Placement { processes, ..(&Machine::cpu(1)).into() };
        memory::fits(&model, Some(&recipe), on)
    };
    assert!(fits([1, 1]).is_err());
    fits([8, 1]).unwrap();
    let refused = fits([8, 8]).unwrap_err();
    let Error::Memory { left: share, said, .. } = &refused else { panic!("{refused}") };
    assert!(share.abs_diff(left / 8) < left / 16 && said.contains("8 run on this machine"), "{refused}");
}

/// What does not fit is said, and nothing panics.
#[test]
fn what_cannot_be_done_is_said() {
    let (lm, _) = trained(training(2));
    let says = |error: Error, words: &[&str]| {
        let text = error.to_string();
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
    };
    says(lm.embed("", Pooling::Mean).unwrap_err(), &["empty"]);
    says(lm.embed(&TEXT.repeat(2), Pooling::Mean).unwrap_err(), &["84 tokens", "context_length is 32"]);
    says(lm.trace("to be").unwrap().get("blocks.9.hook_resid_post").unwrap_err().into(), &["unknown tensor"]);
    says(lm.fill("to be").unwrap_err(), &["[MASK]"]);
    says(lm.chat(&[], &Options::default()).unwrap_err(), &["conversations"]);
    says(lm.encode("ü").unwrap_err(), &["\"ü\"", "not in the char vocabulary"]);
    says(lm.evaluate(&TextSource::new("no-such-file")).unwrap_err(), &["no-such-file"]);
    says(Training::preset("nanoo").unwrap_err(), &["nanoo"]);
    says(training(2).text("").run().unwrap_err(), &["empty"]);
    says(Lm::open("no-such-folder").unwrap_err(), &["no-such-folder"]);
    let limits = EngineLimits::new(lm.config(), 1, 8);
    for (limits, what) in [
        (EngineLimits { prompt_rows: 0, ..limits }, "at least one row of prompts"),
        (EngineLimits { sequences: 0, ..limits }, "at least one sequence"),
    ] {
        says(lm.engine(&limits).err().unwrap(), &[what]);
    }
    let bytes = limpid::tokenizer::Tokenizer::named("gpt2").unwrap();
    says(lm.with_tokenizer(bytes).unwrap_err(), &["50257", "do not belong together"]);
}

#[test]
fn an_lm_can_be_shared() {
    fn shared<T: Send + Sync>() {}
    shared::<Lm>();
}

/// Segments and masks are what they are for the command line.
#[test]
fn a_batch_to_look_at() {
    let causal = Config::preset("nano").unwrap();
    let encoder = Config { mask: Mask::Bidirectional, n_segment: 2, ..causal.clone() };
    let batch = |config, segments, mask| trace::batch(config, &[5, 6, 7], segments, mask);
    assert_eq!(batch(&causal, None, None).unwrap().targets, [6, 7, IGNORE]);
    let seen = batch(&encoder, Some(&[0, 1, 1]), Some(6)).unwrap();
    assert_eq!((seen.targets, seen.segments), (vec![5, IGNORE, 7], vec![0, 1, 1]));
    assert_eq!(batch(&encoder, None, None).unwrap().segments, [0; 3]);
    assert!(batch(&causal, Some(&[0; 3]), None).is_err() && batch(&encoder, Some(&[0]), None).is_err());
    assert!(trace::batch(&causal, &[], None, None).is_err());
    // several are one after the other, each as it would be alone
    let (one, other) = ([5, 6, 7], [1, 2, 6]);
    let alone = |ids: &[u32], segments: &[u32]| trace::batch(&encoder, ids, Some(segments), Some(6)).unwrap();
    let both = trace::batch_of(&encoder, &[one, other], Some(&[[0, 1, 1], [0, 0, 1]]), Some(6)).unwrap();
    let (a, b) = (alone(&one, &[0, 1, 1]), alone(&other, &[0, 0, 1]));
    assert_eq!(both.tokens, [a.tokens, b.tokens].concat());
    assert_eq!(both.targets, [a.targets, b.targets].concat());
    assert_eq!((both.segments, both.spans.len()), ([a.segments, b.segments].concat(), 2));
    let unequal = trace::batch_of(&causal, &[&[1, 2][..], &[3, 4], &[5]], None::<&[&[u32]]>, None).unwrap_err();
    assert!(unequal.to_string().contains("sequence 0 has 2 tokens and sequence 2 has 1"), "{unequal}");
    assert!(trace::batch_of(&encoder, &[one, other], Some(&[[0, 1, 1]]), None).is_err());
}

/// The examples, one after the other: each works on what the first made.
#[test]
#[ignore = "gate"]
fn the_examples_do_what_they_say() {
    let f = Folder::new("examples");
    let place = |name: &str| f.at(name).display().to_string();
    fs::write(f.at("book.txt"), TEXT.repeat(60)).unwrap();
    let trained = train::train(&place("book.txt"), &place("run"), 60).unwrap();
    assert!(trained.summary.steps == 60 && trained.summary.val_loss < Some(1.0), "{:?}", trained.summary);
    let lm = trained.lm;

    let model: &Path = &f.at("run");
    assert_eq!(generate::generate(&place("run"), "to be", |_| {}).unwrap().chars().count(), 50);

    for head in 0..lm.config().heads().n_head {
        let tokens = look_inside::attends_to(&lm, "to be", 0, head).unwrap();
        assert_eq!(tokens.len(), 5);
        assert!(tokens.iter().enumerate().all(|(query, key)| *key <= query), "a causal model looks back");
        let whole = lm.trace("to be").unwrap().get("blocks.0.attn.hook_pattern").unwrap();
        let own = |key: usize| whole.at(&[0, head, 4, key]).unwrap();
        assert!((0..5).all(|key| own(key) <= own(tokens[4])), "head {head}");
        assert!(whole.slice("head", 99).is_none() && whole.slice("pos", 0).is_none());
    }

    let line =
        r#"{"messages": [{"role": "user", "content": "to be?"}, {"role": "assistant", "content": "or not to be"}]}"#;
    fs::write(f.at("chat.jsonl"), format!("{line}\n").repeat(60)).unwrap();
    let chats = train::train(&place("chat.jsonl"), &place("chats"), 60).unwrap().lm;
    assert_eq!(chat::ask(&chats, "to be?", |_| {}).unwrap(), "or not to be");
    let tuned = fine_tune::fine_tune(&place("chats"), &place("chat.jsonl"), &place("adapter"), 2).unwrap();
    assert!(f.at("adapter/adapter_model.safetensors").exists() && logits(&tuned, "to") != logits(&chats, "to"));

    let written = convert::convert(model, &f.0).unwrap();
    assert!(
        written.len() == 3 && written.iter().all(|path| logits(&Lm::open(path).unwrap(), "to") == logits(&lm, "to"))
    );

    let (seen, made) = observer::watch(&lm, "to be").unwrap();
    assert_eq!(
        made.iter().map(|v| v.to_bits()).collect::<Vec<_>>(),
        logits(&lm, "to be"),
        "who watches changes no bit"
    );
    let mut same = 0;
    for (name, largest) in &seen {
        if let Ok(tensor) = lm.trace("to be").unwrap().get(name) {
            assert_eq!(*largest, tensor.values.iter().fold(0.0, |most, v| v.abs().max(most)), "{name}");
            same += 1;
        }
    }
    assert!(same >= 8 * lm.config().n_layer, "only {same} of {} ops were compared", seen.len());
}

/// `--answer king`, `"answer": "king"` and `answer="king"` mean the token of that text, or else of that number; never
/// one of another text.
#[test]
fn a_token_is_named_by_its_text_or_its_number() {
    let text = "the cat sat on 7 mats, and the king sat by the cat";
    let tokenizers = ["word", "char", "bpe", "cl100k_base:dense", "gpt2"]
        .map(|name| Tokenizer::for_texts(name, &|| vec![text.into()], &[], 1).unwrap());
    let mut spaced = 0;
    for tokenizer in &tokenizers {
        let named = |text: &str| limpid::generate::token_named(text, Some(tokenizer), tokenizer.vocab_size());
        let refused = |text: &str| named(text).unwrap_err().to_string();
        let encoded = |text: &str| tokenizer.encode(text).unwrap_or_default();
        for id in 0..tokenizer.vocab_size().min(2000) as u32 {
            let piece = tokenizer.piece(id).unwrap();
            if encoded(&piece) == [id] {
                assert_eq!(named(&piece).unwrap(), id, "{piece:?}");
            }
            if let Some(word) = piece.strip_prefix(' ')
                && word.parse::<u32>().is_err()
                && tokenizer.token(word).is_none()
                && tokenizer.token(&piece) == Some(id)
                && !word.is_empty()
            {
                assert!(refused(word).contains(&format!("{piece:?} is: write its space too")), "{}", refused(word));
                spaced += 1;
            }
        }
        for number in (0..tokenizer.vocab_size().min(30) as u32).step_by(3) {
            let text = number.to_string();
            let own = tokenizer.token(&text).inspect(|id| assert_eq!(encoded(&text), [*id]));
            assert_eq!(named(&text).unwrap(), own.unwrap_or(number));
        }
        let beyond = (tokenizer.vocab_size() + 100_000).to_string();
        assert!(refused(&beyond).contains(&beyond));
        for wrong in ["xyzzyqux", "the cat sat", "1.5e", "no such word", "-1x"] {
            assert!(refused(wrong).contains(&format!("{wrong:?} is not one token")), "{}", refused(wrong));
        }
        assert!(refused("").contains("empty") || tokenizer.token("").is_some());
    }
    assert!(spaced > 10, "{spaced}");
    assert_eq!(limpid::generate::token_named("5", None, 6).unwrap(), 5);
    for (text, says) in [("6", "6"), ("cat", "without a tokenizer"), ("", "without a tokenizer")] {
        assert!(limpid::generate::token_named(text, None, 6).unwrap_err().to_string().contains(says), "{text:?}");
    }
}

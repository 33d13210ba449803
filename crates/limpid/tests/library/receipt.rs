//! Receipts: what an answer was made from makes it again, on every instruction set; and where it does not, the first
//! token is named and why.

use crate::common::folder::Folder;
use limpid::checkpoint::Format;
use limpid::config::Config;
use limpid::generate::{FinishReason, GenerateEvent, Options, Overflow, Sampler};
use limpid::matrix::Precision;
use limpid::numeric::simd::Level;
use limpid::receipt::{Receipt, Replay, replay};
use limpid::tokenizer::{Order, Tokenizer, TokenizerKind};
use limpid::train::Recipe;
use limpid::{Lm, Machine, Training};
use std::fs;

const TEXT: &str = "to be or not to be, that is the question.\n";

fn trained(seed: u64) -> Lm {
    let gpt2 = Config::preset("gpt2").unwrap();
    let config = Config { d_model: 32, d_ff: 64, n_head: 4, n_layer: 2, context_length: 32, ..gpt2 };
    let recipe = Recipe { steps: 30, batch_size: 4, seed, ..Recipe::preset("nano").unwrap() };
    let training = Training::new(config, recipe).text(TEXT.repeat(40)).tokenizer("char");
    training.run().unwrap().lm
}

/// Every option away from what it is by default.
fn options() -> Options {
    Options {
        max_tokens: 40,
        sampler: Sampler {
            temperature: 1.3,
            top_k: 20,
            top_p: 0.97,
            min_p: 0.001,
            repetition_penalty: 1.1,
            presence_penalty: 0.1,
            frequency_penalty: 0.05,
            seed: u64::MAX,
        },
        sample: 3,
        stop: vec!["qqq".into()],
        stop_at_end_of_text: false,
        overflow: Overflow::SlideHalf,
        logit_bias: [(2, 0.1), (3, -0.7)].into(),
        trace: false,
        skip_special_tokens: true,
    }
}

/// What is answered, and its receipt as it is read from a file.
fn answered(lm: &Lm, options: &Options) -> Receipt {
    let prompt = lm.encode("to be or ").unwrap();
    let sample = lm.generate_events(&prompt, options, &mut |_| true).unwrap();
    let receipt = Receipt::new(lm, &prompt, options, &sample).unwrap();
    assert_eq!(receipt.request.options(), Options { trace: false, ..options.clone() });
    let read: Receipt = serde_json::from_str(&serde_json::to_string(&receipt).unwrap()).unwrap();
    assert_eq!(read, receipt);
    read
}

#[test]
fn a_receipt_replays_on_every_level() {
    let mut lm = trained(1);
    let bits = |lm: &Lm| -> Vec<u32> {
        let logits = lm.trace("to be").unwrap().get("logits").unwrap();
        logits.values.into_iter().map(f32::to_bits).collect()
    };
    for precision in [Precision::F32, Precision::Bf16] {
        for (n, made) in Level::available().into_iter().enumerate() {
            lm = lm.with_machine(Machine { precision, level: made, ..Machine::cpu(1 + n % 2) });
            let receipts = [answered(&lm, &options()), answered(&lm, &Options { sample: 4, ..options() })];
            assert_ne!(receipts[0].answer, receipts[1].answer);
            for other in Level::available() {
                lm = lm.with_machine(Machine { precision, level: other, ..Machine::cpu(3 - n % 2) });
                assert_eq!(lm.machine().level, other);
                for receipt in &receipts {
                    assert_eq!(replay(&lm, receipt).unwrap(), Replay::Same, "{precision}: {made} on {other}");
                    assert!(receipt.causes(&lm).unwrap().is_empty());
                }
            }
        }
    }
    // the level is what is run: one has other last digits, and a receipt says so
    let fused = bits(&lm);
    lm = lm.with_machine(Machine { level: Level::PORTABLE, ..Machine::cpu(2) });
    let (portable, receipt) = (bits(&lm), answered(&lm, &options()));
    lm = lm.with_machine(Machine { level: Level::UNFUSED, ..Machine::cpu(2) });
    assert!(fused.len() == portable.len() && portable != bits(&lm));
    let why = receipt.causes(&lm).unwrap();
    assert!(why.len() == 1 && (why[0].what, &*why[0].ours) == ("precision", "f32 unfused"), "{why:?}");
}

#[test]
fn what_differs_is_named() {
    let lm = trained(1);
    let good = answered(&lm, &options());
    let tokens = good.answer.tokens.clone();
    let with = |change: &dyn Fn(&mut Receipt)| {
        let mut receipt = good.clone();
        change(&mut receipt);
        receipt
    };
    let differs = |receipt: &Receipt| match replay(&lm, receipt).unwrap() {
        Replay::Differs { at, theirs, ours, why } => {
            (at, theirs, ours, why.into_iter().map(|cause| cause.what).collect::<Vec<_>>())
        }
        Replay::Same => panic!("{receipt:?}"),
    };
    let other = |id: u32| (id + 1) % lm.config().vocab_size as u32;
    let (n, fake) = (tokens.len(), other(tokens[3]));
    assert_eq!(n, 40);
    assert_eq!(differs(&with(&|r| r.answer.tokens[3] = fake)), (3, Some(fake), Some(tokens[3]), vec![]));
    assert_eq!(differs(&with(&|r| r.answer.tokens.truncate(7))), (7, None, Some(tokens[7]), vec![]));
    assert_eq!(differs(&with(&|r| r.answer.tokens.push(1))), (n, Some(1), None, vec![]));
    assert_eq!(differs(&with(&|r| r.answer.text = "0".repeat(32))), (n, None, None, vec![]));
    assert_eq!(differs(&with(&|r| r.answer.finish_reason = FinishReason::Stop)), (n, None, None, vec![]));
    // each option decides: with another the answer is another
    for change in [
        &(|r: &mut Receipt| r.request.temperature = 0.9) as &dyn Fn(&mut Receipt),
        &|r| r.request.seed = 7,
        &|r| r.request.sample = 0,
        &|r| r.request.top_k = 2,
        &|r| r.request.repetition_penalty = 3.0,
        &|r| r.request.prompt = vec![1, 2],
        &|r| r.request.overflow = Overflow::Stop,
        &|r| r.request.max_tokens = 39,
    ] {
        assert!(differs(&with(change)).3.is_empty());
    }
    // what is not as it was, in order
    let all = with(&|r| {
        r.answer.tokens[0] = other(tokens[0]);
        (r.cache, r.precision, r.limpid) = ("bf16".into(), "bf16".into(), "0.0.1".into());
        (r.model.tokenizer, r.model.config, r.model.weights) = (None, String::new(), String::new());
    });
    assert_eq!(differs(&all).3, ["weights", "configuration", "tokenizer", "version", "precision", "cache"]);
    assert_eq!(all.causes(&lm).unwrap()[3].theirs, "0.0.1");
    assert_eq!(replay(&lm, &with(&|r| r.model.weights = "x".into())).unwrap(), Replay::Same, "hashes only explain");
    // a cancelled answer is made as far as it came
    let prompt = lm.encode("to be or ").unwrap();
    let mut told = 0;
    let sample = lm.generate_events(&prompt, &options(), &mut |event| {
        told += usize::from(matches!(event, GenerateEvent::Piece { .. }));
        told < 5
    });
    let mut cut = Receipt::new(&lm, &prompt, &options(), &sample.unwrap()).unwrap();
    assert_eq!((cut.answer.finish_reason, cut.answer.tokens.len()), (FinishReason::Cancelled, 5));
    assert_eq!(replay(&lm, &cut).unwrap(), Replay::Same);
    let text = std::mem::replace(&mut cut.answer.text, "0".repeat(32));
    assert_eq!(differs(&cut), (5, None, None, vec![]));
    cut.answer.text = text;
    cut.answer.tokens[2] = other(cut.answer.tokens[2]);
    assert_eq!(differs(&cut).0, 2);
    // another model, and one that cannot run the prompt
    let stranger = trained(2);
    let Replay::Differs { why, .. } = replay(&stranger, &good).unwrap() else { panic!("the same by other weights") };
    assert_eq!(why.iter().map(|cause| cause.what).collect::<Vec<_>>(), ["weights"]);
    assert!(replay(&lm, &with(&|r| r.request.prompt = vec![9999])).is_err());
}

/// Interventions stand in a receipt as they were given, and are repeated; one that was altered makes another answer. A
/// receipt without any has no word of them.
#[test]
fn interventions_are_replayed() {
    let lm = trained(1);
    let options = Options { overflow: Overflow::Stop, max_tokens: 20, ..options() };
    assert!(!serde_json::to_string(&answered(&lm, &options)).unwrap().contains("interventions"));
    let given =
        r#"[{"steer": "blocks.0.hook_resid_post", "by": 2, "add": {"difference": ["to be", "not"]}, "pos": 25}]"#;
    let [first, second] =
        [given, r#"{"name": "later", "do": [{"scale": "blocks.1.hook_mlp_out", "by": 0.1, "pos": "generated"}]}"#]
            .map(|text| text.parse::<limpid::Interventions>().unwrap());
    let once = lm.intervene(&first).unwrap();
    let twice = once.intervene(&second).unwrap();
    let receipt = answered(&twice, &options);
    assert_eq!(receipt.request.interventions, [first, second]);
    assert_ne!(receipt.answer, answered(&lm, &options).answer);
    for from in [&lm, &once, &twice] {
        assert_eq!(replay(from, &receipt).unwrap(), Replay::Same);
        let mut other = receipt.clone();
        other.request.interventions[1] = r#"[{"scale": "blocks.1.hook_mlp_out", "by": -4}]"#.parse().unwrap();
        let found = replay(from, &other).unwrap();
        assert!(matches!(&found, Replay::Differs { why, .. } if why.is_empty()), "{found:?}");
    }
    let mut plain = receipt.clone();
    plain.request.interventions.clear();
    assert!(matches!(replay(&lm, &plain).unwrap(), Replay::Differs { .. }));
    // a position that would have come after the answer ended
    let prompt = lm.encode("to be or ").unwrap();
    let (mut told, mut stopped) = (0, twice.generate_events(&prompt, &options, &mut |_| true).unwrap());
    let stop = stopped.text[3..5].to_string();
    let early = Options { stop: vec![stop], ..options.clone() };
    assert_eq!(replay(&lm, &answered(&twice, &early)).unwrap(), Replay::Same);
    stopped = twice
        .generate_events(&prompt, &options, &mut |event| {
            told += usize::from(matches!(event, GenerateEvent::Piece { .. }));
            told < 5
        })
        .unwrap();
    let cut = Receipt::new(&twice, &prompt, &options, &stopped).unwrap();
    assert_eq!((cut.answer.finish_reason, replay(&lm, &cut).unwrap()), (FinishReason::Cancelled, Replay::Same));
}

/// The same model has the same checksums in memory, in files and in another program's files; one bit makes others.
#[test]
fn checksums_are_of_the_model() {
    let folder = Folder::new("receipt");
    let lm = trained(1);
    let own = lm.receipt_hashes().unwrap().clone();
    assert!([&own.weights, &own.config, own.tokenizer.as_ref().unwrap()].iter().all(|hash| hash.len() == 32));
    for (name, format) in [("own", Format::Limpid), ("hf", Format::HuggingFace), ("gguf", Format::Gguf)] {
        lm.save(folder.join(name), format).unwrap();
        let read = Lm::open(folder.join(name)).unwrap();
        if format == Format::Gguf {
            // it keeps no tokenizer of characters
            assert_eq!(read.receipt_hashes().unwrap().weights, own.weights);
            assert_eq!(read.receipt_hashes().unwrap().config, own.config);
            continue;
        }
        assert_eq!(*read.receipt_hashes().unwrap(), own, "{format}");
        assert_eq!(replay(&read, &answered(&lm, &options())).unwrap(), Replay::Same, "{format}");
    }
    let file = folder.join("own/model.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    *bytes.iter_mut().nth_back(3).unwrap() ^= 1; // the last bit of the last value
    fs::write(&file, &bytes).unwrap();
    let damaged = Lm::open(folder.join("own")).unwrap().receipt_hashes().err().unwrap().to_string();
    assert!(damaged.contains("checksum"), "{damaged}");
    // as by a program that writes no checksum
    let sum = bytes.windows(6).position(|word| word == b"\"xxh3\"").unwrap();
    bytes[sum..sum + 6].copy_from_slice(b"\"sum_\"");
    fs::write(&file, bytes).unwrap();
    let read = Lm::open(folder.join("own")).unwrap();
    assert_ne!(read.receipt_hashes().unwrap().weights, own.weights);
    assert_eq!(read.receipt_hashes().unwrap().config, own.config);
    let letters = Tokenizer::train(TokenizerKind::Char, "abc", Order::Sorted, &[]).unwrap();
    let other = lm.with_tokenizer(letters.clone()).unwrap();
    let sample = other.generate("a", &options()).unwrap();
    assert_eq!(sample.text, letters.decode(&sample.tokens).unwrap(), "written by the tokenizer that it had");
    assert_ne!(other.receipt_hashes().unwrap().tokenizer, own.tokenizer);
    assert_eq!(other.receipt_hashes().unwrap().weights, own.weights);
}

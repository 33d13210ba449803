//! Generating: a sequence's logits are those of the full forward, to the bit, however its tokens were fed and
//! whoever else is open; and samples end where they should.

use crate::common::counting;
use crate::common::filled::fill;
use crate::common::sequences::{SequenceId, Sequences};
use crate::random_config;
use limpid::backend::{Backend, Cpu, Reference, Result, Wrapper};
use limpid::config::*;
use limpid::engine::{Decoder, Engine, EngineLimits};
use limpid::generate::{
    DecodeError, FinishReason, GenerateError, GenerateEvent, Options, Overflow, Sample, Sampler, generate, score,
};
use limpid::matrix::Precision;
use limpid::model::{Mode, Model};
use limpid::numeric::random;
use limpid::numeric::simd::Level;
use limpid::ops::{Batch, IGNORE, Ops, Region};
use limpid::tokenizer::{Order, Tokenizer, TokenizerKind};
use std::fmt;
use std::sync::{Arc, Mutex};

fn ids(site: u64, n: usize, vocab_size: usize) -> Vec<u32> {
    (0..n as u64).map(|i| random::below(9, site, i, vocab_size as u64) as u32).collect()
}

/// Every axis that decoding goes through, at sizes that are no multiple of anything; two with more keys than fit
/// one block of attention, and one with more than two.
fn configs() -> Vec<Config> {
    let tiny = random_config::configs().into_iter().map(|c| Config { mask: Mask::Causal, ..c });
    let long = |positions, norm_place, heads, width| Config {
        vocab_size: 37,
        context_length: 70,
        d_model: width,
        n_head: heads,
        n_layer: 2,
        d_ff: 19,
        positions,
        norm_place,
        attention_scale: norm_place == NormPlace::Pre,
        ..Config::default()
    };
    let mut all: Vec<Config> = tiny.collect();
    for (i, positions) in Positions::ALL.iter().enumerate() {
        all.push(long(*positions, NormPlace::ALL[i % 2], 2, 20));
        all.push(long(*positions, NormPlace::ALL[(i + 1) % 2], 1, 34));
    }
    all.push(Config { context_length: 131, ..long(Positions::Rotary, NormPlace::Pre, 2, 68) });
    // windows that begin in other blocks, in every block or every second
    let (base, second) = (long(Positions::Alibi, NormPlace::Pre, 2, 20), "01".parse().unwrap());
    all.push(Config { context_length: 131, window: 5, attention_softcap: 0.9, ..base.clone() });
    all.push(Config { context_length: 131, window: 65, window_layers: second, ..base });
    let llama = Config::preset("nano-llama").unwrap();
    all.push(Config { context_length: 70, d_model: 36, n_head: 6, n_kv_head: Some(2), n_layer: 2, d_ff: 19, ..llama });
    all
}

/// The logits of every row of one full forward.
fn full(config: &Config, tokens: &[u32], make: impl FnOnce(&Model) -> Box<dyn Backend>) -> Vec<Vec<f32>> {
    let model = Model::new(config, Mode::Inspect { batch: 1, context: tokens.len() }).unwrap();
    let mut backend = make(&model);
    fill(&model, &mut *backend);
    backend.feed(&Batch::of_sequences(tokens.to_vec(), vec![IGNORE; tokens.len()], tokens.len())).unwrap();
    backend.forward(model.ops()).unwrap();
    backend.read(model.logits().unwrap()).unwrap().chunks(config.vocab_size).map(<[f32]>::to_vec).collect()
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|v| v.to_bits()).collect()
}

#[track_caller]
fn assert_same(what: fmt::Arguments, session: &Sequences, id: SequenceId, want: &[Vec<f32>]) {
    let n = session.len(id);
    assert!(bits(session.logits(id)) == bits(&want[n - 1]), "{what}: logits after {n} tokens differ");
}

/// Feeds the same tokens in every way there is.
fn every_way(what: fmt::Arguments, config: &Config, mut session: Sequences, all: &[(Vec<u32>, Vec<Vec<f32>>)]) {
    let (model, backend) = session.parts();
    fill(model, backend);
    let (tokens, want) = &all[0];
    for chunk in [1, 3, tokens.len()] {
        let id = session.open();
        for part in tokens.chunks(chunk) {
            session.feed(id, part).unwrap();
            assert_same(format_args!("{what}, chunks of {chunk}"), &session, id, want);
        }
        assert_eq!(session.tokens(id), tokens);
        assert!(matches!(session.step(&[(id, u32::MAX)]), Err(DecodeError::Token { .. })) || session.room(id) == 0);
        assert_same(format_args!("{what}, after an error"), &session, id, want);
        session.close(id);
    }
    // several, staggered: sequence k joins with a prompt of k + 1 tokens at turn k, in the run in which others step
    let open: Vec<SequenceId> = all.iter().map(|_| session.open()).collect();
    for turn in 0..config.context_length + all.len() {
        let mut parts: Vec<(SequenceId, &[u32])> = vec![];
        for (k, (id, (tokens, _))) in open.iter().zip(all).enumerate() {
            let held = session.len(*id);
            let more = if held == 0 { k + 1 } else { 1 };
            if turn >= k && held < tokens.len() {
                parts.push((*id, &tokens[held..(held + more).min(tokens.len())]));
            }
        }
        if turn % 2 == 1 {
            parts.reverse();
        }
        session.extend(&parts).unwrap();
        for (id, (_, want)) in open.iter().zip(all).filter(|(id, _)| session.len(**id) > 0) {
            assert_same(format_args!("{what}, in company, turn {turn}"), &session, *id, want);
        }
    }
}

#[test]
#[ignore = "gate"]
fn decoding_is_the_full_forward_to_the_bit() {
    for (c, config) in configs().iter().enumerate() {
        let tokens: Vec<Vec<u32>> =
            (0..3).map(|s| ids(s, config.context_length - s as usize, config.vocab_size)).collect();
        let both = |level| [(level, Precision::F32), (level, Precision::Bf16)];
        for (l, (level, precision)) in Level::available().into_iter().flat_map(both).enumerate() {
            if precision == Precision::Bf16 && !(c + l).is_multiple_of(3) {
                continue; // a third of the pairs covers every level and kind of model
            }
            let whole = |t: &Vec<u32>| full(config, t, |model| Box::new(Cpu::with(model, 1, level, precision)));
            let all: Vec<_> = tokens.iter().map(|t| (t.clone(), whole(t))).collect();
            // with the long ones at the best level every number of threads, elsewhere one after the other
            let one = (c + l) % 3 + 1;
            let threads = if config.context_length > 6 && level == Level::best() { 1..=3 } else { one..=one };
            for threads in threads {
                let rows = [256, 5, 3][(c + threads) % 3];
                let make =
                    |model: &Model| Ok(Box::new(Cpu::start(model, threads, level, precision)?) as Box<dyn Backend>);
                every_way(
                    format_args!("{level}, {precision}, {threads} threads, {rows} rows, {config:?}"),
                    config,
                    Sequences::new(config, 3, rows, make).unwrap(),
                    &all,
                );
            }
        }
    }
}

/// The logits of a token are fetched into the session's own memory.
#[test]
fn a_token_allocates_nothing_of_its_logits_size() {
    let config = Config { vocab_size: 5000, d_model: 8, n_head: 2, n_layer: 1, d_ff: 8, ..Config::default() };
    let mut session = Sequences::on_cpu(&config, 2, 1).unwrap();
    let (a, b) = (session.open(), session.open());
    for token in 0..3 {
        session.step(&[(a, token), (b, token)]).unwrap();
    }
    let (done, most) = counting::most(|| session.step(&[(a, 7), (b, 7)]));
    done.unwrap();
    assert!(most < 500, "{most} bytes beside what the session has; a row of logits takes 20,000");
}

/// The reference in a session, and what a test is to see of it: its last logits at full precision.
struct Held {
    own: Reference,
    logits: Region,
    seen: Arc<Mutex<Vec<f64>>>,
}

impl Wrapper for Held {
    fn inner(&self) -> &dyn Backend {
        &self.own
    }
    fn inner_mut(&mut self) -> &mut dyn Backend {
        &mut self.own
    }
    fn forward(&mut self, ops: Ops) -> Result<()> {
        self.own.forward(ops)?;
        *self.seen.lock().unwrap() = self.own.exact(self.logits).to_vec();
        Ok(())
    }
}

#[test]
fn the_reference_decodes_as_it_runs_whole() {
    for config in configs() {
        let tokens = ids(0, config.context_length, config.vocab_size);
        let inspect = Model::new(&config, Mode::Inspect { batch: 1, context: tokens.len() }).unwrap();
        let mut whole = Reference::new(&inspect);
        fill(&inspect, &mut whole);
        whole.feed(&Batch::of_sequences(tokens.clone(), vec![IGNORE; tokens.len()], tokens.len())).unwrap();
        whole.forward(inspect.ops()).unwrap();
        let want: Vec<&[f64]> = whole.exact(inspect.logits().unwrap()).chunks(config.vocab_size).collect();
        let scale = want.iter().flat_map(|row| row.iter()).fold(0f64, |top, v| top.max(v.abs()));

        let seen = Arc::new(Mutex::new(vec![]));
        let make = |model: &Model| {
            let logits = model.logits().expect("a model that decodes has logits");
            Ok(Box::new(Held { own: Reference::new(model), logits, seen: seen.clone() }) as Box<dyn Backend>)
        };
        let mut session = Sequences::new(&config, 2, 4, make).unwrap();
        let (model, backend) = session.parts();
        fill(model, backend);
        for chunk in [1, 3, tokens.len()] {
            let id = session.open();
            for part in tokens.chunks(chunk) {
                session.feed(id, part).unwrap();
                let got = seen.lock().unwrap()[..config.vocab_size].to_vec();
                let n = session.len(id);
                for (got, want) in got.iter().zip(want[n - 1]) {
                    assert!(
                        (got - want).abs() <= 1e-12 * scale,
                        "{got} {want} after {n} of chunks of {chunk}: {config:?}"
                    );
                }
            }
            session.close(id);
        }
    }
}

/// A model of characters, and a session of it.
fn letters(context_length: usize) -> (Tokenizer, Sequences, Config) {
    let text = "abcdefghijklmnopqrstuvwxyz .é🙂";
    let tokenizer = Tokenizer::train(TokenizerKind::Char, text, Order::FirstAppearance, &["<|endoftext|>"]).unwrap();
    let config = Config {
        vocab_size: tokenizer.vocab_size() + 3,
        context_length,
        d_model: 16,
        n_head: 2,
        n_layer: 1,
        d_ff: 24,
        ..Config::default()
    };
    let mut session = Sequences::on_cpu(&config, 2, 1).unwrap();
    let (model, backend) = session.parts();
    fill(model, backend);
    (tokenizer, session, config)
}

/// The same model in an engine.
fn engine(context: usize) -> (Tokenizer, Engine, Config) {
    let (tokenizer, _, config) = letters(context);
    let limits = EngineLimits::new(&config, 2, context);
    let make = |model: &Model| -> Result<Box<dyn Backend>> { Ok(Box::new(Cpu::new(model, 1))) };
    let mut decoder = Decoder::new(&config, limits.decoder(&config), make).unwrap();
    let (model, backend) = decoder.parts();
    fill(model, backend);
    (tokenizer.clone(), Engine::new(decoder, Some(tokenizer), &limits), config)
}

/// Whether nothing is left in it.
fn is_free(engine: &mut Engine) -> bool {
    let counts = engine.counts();
    (counts.running, counts.waiting, counts.held) == (0, 0, 0)
}

fn run(engine: &mut Engine, prompt: &[u32], options: &Options) -> (Sample, Vec<GenerateEvent>) {
    let mut events = vec![];
    let mut tell = |event| {
        events.push(event);
        true
    };
    let sample = generate(engine, prompt, options, &mut tell).unwrap();
    let mut told = String::new();
    for event in &events {
        if let GenerateEvent::Piece { text } = event {
            told += text;
        }
    }
    assert_eq!(told, sample.text, "what was told is what was written");
    (sample, events)
}

#[test]
fn a_sample_is_what_its_seed_and_number_say() {
    let (tokenizer, mut engine, config) = engine(32);
    let prompt = tokenizer.encode("the cat").unwrap();
    let plain = Options { max_tokens: 20, stop_at_end_of_text: false, ..Options::default() };
    let mut of = |options: &Options| run(&mut engine, &prompt, options).0;
    let one = of(&plain);
    assert_eq!((one.tokens.len(), one.finish_reason), (20, FinishReason::Length));
    assert_eq!(tokenizer.decode(&one.tokens).unwrap(), one.text);
    assert_eq!(one, of(&plain));
    assert_ne!(one, of(&Options { sample: 1, ..plain.clone() }));
    assert_ne!(one, of(&Options { sampler: Sampler { seed: 1, ..Sampler::default() }, ..plain.clone() }));
    let none = of(&Options { max_tokens: 0, ..plain.clone() });
    assert_eq!((none.text.as_str(), none.tokens.len(), none.finish_reason), ("", 0, FinishReason::Length));

    // greedy, by hand, with a full forward for every token
    let greedy = Options { sampler: Sampler::GREEDY, trace: true, ..plain };
    let (sample, events) = run(&mut engine, &prompt, &greedy);
    let mut tokens = prompt.clone();
    let steps: Vec<_> =
        events.iter().filter_map(|e| if let GenerateEvent::Choice(choice) = e { Some(choice) } else { None }).collect();
    assert_eq!(steps.len(), sample.tokens.len());
    for (token, step) in sample.tokens.iter().zip(steps) {
        let rows = full(&config, &tokens, |model| Box::new(Cpu::new(model, 2)));
        let logits = &rows.last().unwrap()[..tokenizer.vocab_size()];
        let best = (0..logits.len()).reduce(|best, i| if logits[i] > logits[best] { i } else { best }).unwrap();
        assert_eq!(*token as usize, best);
        assert_eq!((step.input_len, step.chosen.token, step.candidates.len()), (tokens.len(), *token, 5));
        assert_eq!((step.chosen.logit, step.chosen.chance), (logits[best], 1.0));
        assert_eq!(step.chosen.piece, tokenizer.piece(*token).unwrap());
        let sum: f64 = logits.iter().map(|l| f64::from(*l).exp()).sum();
        assert!((step.chosen.probability - f64::from(logits[best]).exp() / sum).abs() < 1e-12);
        assert!(step.candidates.is_sorted_by(|a, b| a.probability >= b.probability));
        tokens.push(*token);
    }
}

#[test]
fn stop_texts_end_of_text_and_cancelling() {
    let (tokenizer, mut engine, _) = engine(64);
    let prompt = tokenizer.encode("a").unwrap();
    let plain = Options { max_tokens: 40, ..Options::default() };
    let long = Options { stop_at_end_of_text: false, ..plain.clone() };
    let (all, _) = run(&mut engine, &prompt, &long);
    // three tokens in the middle as a stop text, which comes in three pieces
    let stop = tokenizer.decode(&all.tokens[20..23]).unwrap();
    let at = all.text.find(&stop).unwrap();
    let options = Options { stop: vec!["no such text".into(), stop.clone()], ..long.clone() };
    let (cut, events) = run(&mut engine, &prompt, &options);
    assert_eq!((cut.text.as_str(), cut.finish_reason), (&all.text[..at], FinishReason::Stop));
    assert_eq!(tokenizer.decode(&cut.tokens).unwrap(), all.text[..at + stop.len()]);
    assert!(events.len() <= cut.tokens.len());

    let end = tokenizer.end_of_text().unwrap();
    let ended = (0..200).map(|sample| run(&mut engine, &prompt, &Options { sample, ..plain.clone() }).0);
    let ended = ended.into_iter().find(|s| s.finish_reason == FinishReason::EndOfText).expect("one of 33 tokens");
    assert!(!ended.tokens.contains(&end) && !ended.text.contains("endoftext"));

    let mut pieces = 0;
    let mut tell = |_| {
        pieces += 1;
        pieces < 3
    };
    let sample = generate(&mut engine, &prompt, &long, &mut tell).unwrap();
    assert_eq!((pieces, sample.finish_reason, sample.tokens.len()), (3, FinishReason::Cancelled, 3));
    assert_eq!(sample.text, all.text.chars().take(sample.text.chars().count()).collect::<String>());
    assert!(is_free(&mut engine));
}

#[test]
fn without_a_tokenizer_there_are_tokens() {
    let (_, _, config) = letters(16);
    let limits = EngineLimits::new(&config, 1, 16);
    let make = |model: &Model| -> Result<Box<dyn Backend>> { Ok(Box::new(Cpu::new(model, 1))) };
    let decoder = Decoder::new(&config, limits.decoder(&config), make).unwrap();
    let mut engine = Engine::new(decoder, None, &limits);
    let options = Options { max_tokens: 5, trace: true, ..Options::default() };
    let sample = generate(&mut engine, &[1, 2], &options, &mut |_| true).unwrap();
    assert_eq!((sample.tokens.len(), sample.text.as_str()), (5, ""));
}

#[test]
fn the_context_slides_or_stops() {
    for context in [1, 2, 7, 8] {
        let (tokenizer, mut engine, config) = engine(context);
        let greedy = Options { sampler: Sampler::GREEDY, max_tokens: 3 * context + 5, ..Options::default() };
        let slide = Options { stop_at_end_of_text: false, ..greedy };
        let crop = Options { overflow: Overflow::Crop, ..slide.clone() };
        // S3's loop: the last T tokens are the input of every step
        let kept = |options: &Options| if options.overflow == Overflow::Crop { context - 1 } else { context / 2 };
        let prompts = [ids(1, 1, 30), ids(1, context, 30), ids(1, 2 * context + 3, 30)];
        for (prompt, slide) in prompts.iter().flat_map(|prompt| [(prompt, &slide), (prompt, &crop)]) {
            let (sample, events) = run(&mut engine, prompt, slide);
            let kept = kept(slide);
            // the rule, by hand
            let (mut seen, mut want, mut crops) = (prompt.clone(), vec![], vec![]);
            if seen.len() > context {
                crops.push((context, seen.len() - context));
                seen.drain(..seen.len() - context);
            }
            loop {
                let rows = full(&config, &seen, |model| Box::new(Cpu::new(model, 1)));
                let logits = &rows.last().unwrap()[..tokenizer.vocab_size()];
                want.push(
                    (0..logits.len()).reduce(|best, i| if logits[i] > logits[best] { i } else { best }).unwrap() as u32
                );
                if want.len() == slide.max_tokens {
                    break;
                }
                if seen.len() == context {
                    crops.push((kept, context - kept));
                    seen.drain(..context - kept);
                }
                seen.push(want[want.len() - 1]);
            }
            assert_eq!((sample.tokens, sample.finish_reason), (want, FinishReason::Length));
            let crop = |e: &GenerateEvent| {
                if let GenerateEvent::Cropped { kept, dropped } = e { Some((*kept, *dropped)) } else { None }
            };
            assert_eq!(events.iter().filter_map(crop).collect::<Vec<_>>(), crops);
        }
        let stop = Options { overflow: Overflow::Stop, ..slide };
        let (sample, _) = run(&mut engine, &ids(1, 1, 30), &stop);
        assert_eq!((sample.tokens.len(), sample.finish_reason), (context, FinishReason::Length));
        let (sample, _) = run(&mut engine, &ids(1, context, 30), &stop);
        assert_eq!((sample.tokens.len(), sample.finish_reason), (1, FinishReason::Length));
        let long = generate(&mut engine, &ids(1, context + 1, 30), &stop, &mut |_| true);
        assert!(matches!(long, Err(GenerateError::Decode(DecodeError::Full { held: 0, .. }))));
    }
}

#[test]
fn a_score_is_the_sum_of_the_losses() {
    let (_, mut engine, config) = engine(12);
    let (prompt, continuation) = (ids(2, 5, 30), ids(3, 8, 30));
    let likely = score(&mut engine, &prompt, &continuation).unwrap();
    let tokens = [&prompt[..], &continuation[..7]].concat();
    let mut targets = vec![IGNORE; 4];
    targets.extend(&continuation);
    let model = Model::new(&config, Mode::Score { batch: 1, context: 12 }).unwrap();
    let mut cpu = Cpu::new(&model, 1);
    fill(&model, &mut cpu);
    cpu.feed(&Batch::of_sequences(tokens, targets, 12)).unwrap();
    cpu.forward(model.ops()).unwrap();
    for (log_prob, loss) in likely.log_probs.iter().zip(&cpu.read(model.losses().unwrap()).unwrap()[4..]) {
        assert!((log_prob + f64::from(*loss)).abs() < 1e-5);
    }
    assert_eq!(likely.total, likely.log_probs.iter().sum::<f64>());
    // the chain rule: all at once is one part after the other
    let (first, rest) = continuation.split_at(3);
    let parts = score(&mut engine, &prompt, first).unwrap().total
        + score(&mut engine, &[&prompt[..], first].concat(), rest).unwrap().total;
    assert!((parts - likely.total).abs() < 1e-12);
    assert_eq!(score(&mut engine, &prompt, &[]).unwrap().total, 0.0);
    // every next token together: certainty
    let all: f64 = (0..config.vocab_size as u32).map(|t| score(&mut engine, &prompt, &[t]).unwrap().total.exp()).sum();
    assert!((all - 1.0).abs() < 1e-9);

    assert!(matches!(score(&mut engine, &[], &[1]), Err(GenerateError::Decode(DecodeError::Empty))));
    let full = score(&mut engine, &prompt, &ids(3, 9, 30)).unwrap_err();
    assert!(matches!(full, GenerateError::Decode(DecodeError::Full { held: 0, more: 13, context: 12 })), "{full}");
    assert!(matches!(score(&mut engine, &ids(3, 40, 30), &[1]), Err(GenerateError::Decode(DecodeError::Full { .. }))));
    assert!(matches!(
        score(&mut engine, &[1, 2], &[3, 99]),
        Err(GenerateError::Decode(DecodeError::Token { id: 99, index: 3, .. }))
    ));
    assert!(is_free(&mut engine));
}

#[test]
fn a_session_takes_the_parameters_of_a_training_model() {
    let (_, mut session, config) = letters(10);
    let tokens = ids(4, 10, 30);
    let model = Model::new(&config, Mode::Train { batch: 1, context: 10 }).unwrap();
    let mut cpu = Cpu::new(&model, 1);
    fill(&model, &mut cpu);
    let mut empty = Sequences::on_cpu(&config, 1, 1).unwrap();
    empty.take_parameters(&model, &cpu).unwrap();
    let (a, b) = (session.open(), empty.open());
    session.feed(a, &tokens).unwrap();
    empty.feed(b, &tokens).unwrap();
    assert_eq!(bits(session.logits(a)), bits(empty.logits(b)));
    let other = Model::new(&Config { d_ff: 25, ..config }, Mode::Train { batch: 1, context: 10 }).unwrap();
    let cpu = Cpu::new(&other, 1);
    let said = session.take_parameters(&other, &cpu).unwrap_err().to_string();
    assert!(said.contains("blocks.0.mlp.in.weight"), "{said}");
}

#[test]
fn mistakes_are_errors_and_change_nothing() {
    let (_, mut session, config) = letters(8);
    let v = config.vocab_size as u32;
    let (a, b) = (session.open(), session.open());
    let said = session.feed(a, &[1, 2, v]).unwrap_err().to_string();
    assert_eq!(
        said,
        format!("token {v} (at index 2) is not below the model's vocab_size {v}: was it made by another tokenizer?")
    );
    assert!(matches!(session.step(&[(a, 1), (b, u32::MAX)]), Err(DecodeError::Token { .. })));
    assert_eq!((session.len(a), session.len(b)), (0, 0));
    let (_, mut asked, _) = engine(8);
    let stop = Options { max_tokens: 1, overflow: Overflow::Stop, ..Options::default() };
    let said = generate(&mut asked, &[1; 9], &stop, &mut |_| true).unwrap_err().to_string();
    assert!(said.contains("holds 0 tokens and 9 more would make 9") && said.contains("at most 8 more"), "{said}");
    assert!(is_free(&mut asked));

    for mask in [Mask::Bidirectional, Mask::None] {
        let refused = Sequences::on_cpu(&Config { mask, ..config.clone() }, 1, 1).map(drop).unwrap_err().to_string();
        assert_eq!(
            refused,
            format!("the model's mask is {mask}: it has no order to generate in; generating and scoring need `causal`")
        );
    }
    assert!(matches!(Sequences::on_cpu(&config, 0, 1), Err(DecodeError::Config(_))));
    assert!(matches!(Sequences::on_cpu(&Config { n_head: 5, ..config }, 1, 1), Err(DecodeError::Config(_))));

    // parameters that went bad are an error, not a panic
    let (_, mut engine, _) = engine(8);
    let (model, backend) = engine.decoder().parts();
    let region = model.params[0].region;
    backend.write(region, &vec![f32::NAN; region.len()]).unwrap();
    let bad = generate(&mut engine, &[1], &Options::default(), &mut |_| true);
    assert!(matches!(bad, Err(GenerateError::Decode(DecodeError::Logit { .. }))));
    assert!(matches!(score(&mut engine, &[1], &[2]), Err(GenerateError::Decode(DecodeError::Logit { .. }))));
    assert!(is_free(&mut engine));
}

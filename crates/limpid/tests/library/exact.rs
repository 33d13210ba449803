//! The engine's promise: an answer is a function of its request and the model. Whoever else asks, however prompts are
//! cut, whatever is in the cache, and on however many threads: the same bytes and the same log-probabilities.

use crate::common::filled::fill;
use crate::common::sequences::Sequences;
use crate::interventions::random_steps;
use limpid::backend::{Backend, Cpu, Reference, Result};
use limpid::config::{Config, Mask, Positions};
use limpid::engine::{
    DecodeRows, Decoder, DecoderLimits, Engine, EngineCounts, EngineEvent, EngineLimits, EngineRequest, LogProbs,
    RequestId, TokenLogProb,
};
use limpid::generate::{GenerateError, Options, Overflow, Sample, Sampler, generate, score};
use limpid::matrix::Precision;
use limpid::model::{Mode, Model};
use limpid::numeric::element::Element;
use limpid::numeric::random;
use limpid::numeric::simd::Level;
use limpid::ops::MemorySpace;
use limpid::tokenizer::{Order, Tokenizer, TokenizerKind};
use std::collections::HashMap;

/// Draws that are the same in every run.
struct Draws(u64);

impl Draws {
    fn below(&mut self, n: usize) -> usize {
        self.0 += 1;
        random::below(17, 1, self.0, n as u64) as usize
    }
    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

const CONTEXT: usize = 200;

/// With ALiBi bounded scores too, and in every second block a window, which begins in any block of the cache.
fn config(positions: Positions) -> Config {
    let near = positions == Positions::Alibi;
    Config {
        vocab_size: 40, // the tokenizer has fewer
        context_length: CONTEXT,
        d_model: 24,
        n_head: 3,
        n_layer: 2,
        d_ff: 40,
        positions,
        mask: Mask::Causal,
        window: if near { 70 } else { 0 },
        window_layers: "01".parse().unwrap(),
        attention_softcap: if near { 2.0 } else { 0.0 },
        ..Config::default()
    }
}

fn tokenizer() -> Tokenizer {
    Tokenizer::train(TokenizerKind::Char, "the quick brown fox jumps over a lazy dog, é🙂.", Order::Sorted, &[])
        .unwrap()
}

/// How an engine runs.
#[derive(Clone, Copy, Debug)]
struct How {
    sequences: usize,
    prompt_rows: usize,
    contexts: usize,
    threads: usize,
    level: Level,
    precision: Precision,
    cache: Element,
}

impl How {
    /// One thread, in f32.
    fn plain(sequences: usize, prompt_rows: usize, contexts: usize) -> How {
        let (level, precision, cache) = (Level::best(), Precision::F32, Element::F32);
        How { sequences, prompt_rows, contexts, threads: 1, level, precision, cache }
    }
    fn engine(&self, config: &Config) -> Engine {
        let How { sequences, prompt_rows, contexts, threads, level, precision, cache } = *self;
        let limits = EngineLimits { prompt_rows, sequences, cache, ..EngineLimits::new(config, contexts, CONTEXT) };
        let make =
            |model: &Model| -> Result<Box<dyn Backend>> { Ok(Box::new(Cpu::start(model, threads, level, precision)?)) };
        let mut decoder = Decoder::new(config, limits.decoder(config), make).unwrap();
        let (model, backend) = decoder.parts();
        fill(model, backend);
        Engine::new(decoder, Some(tokenizer()), &limits)
    }
}

/// All that a request was told.
#[derive(Debug, Default, PartialEq)]
struct Told {
    prompt: Option<Vec<TokenLogProb>>,
    tokens: Vec<(u32, String, Option<TokenLogProb>)>,
    cropped: Vec<(usize, usize)>,
    sample: Option<Sample>,
}

impl Told {
    fn take(&mut self, event: EngineEvent) {
        assert!(self.sample.is_none(), "an event after the last");
        match event {
            EngineEvent::Cropped { kept, dropped } => self.cropped.push((kept, dropped)),
            EngineEvent::Prompt { log_probs, .. } => {
                assert!(self.tokens.is_empty() && self.prompt.replace(log_probs).is_none());
            }
            EngineEvent::Token { token, log_prob } => self.tokens.push((token.token, token.text, log_prob)),
            EngineEvent::Done(sample) => self.sample = Some(sample),
            EngineEvent::Failed(error) => panic!("{error}"),
        }
    }
}

fn alone(engine: &mut Engine, request: EngineRequest) -> Told {
    let mut told = Told::default();
    engine.submit(request).unwrap();
    while engine
        .round(&mut |_, event| {
            told.take(event);
            true
        })
        .unwrap()
    {}
    told
}

/// Prompts of any length that often begin alike, and every option that there is.
fn request(config: &Config, draws: &mut Draws) -> EngineRequest {
    let family = draws.below(3) as u64;
    let length = match draws.below(4) {
        0 => 1 + draws.below(CONTEXT - 1),
        1 => 60 + draws.below(10),
        2 => 125 + draws.below(10),
        _ => 1 + draws.below(20),
    };
    let apart = draws.one(&[0, 63, 64, 65, 130, 500]);
    let own = draws.below(1 << 20) as u64;
    let words = tokenizer().vocab_size() as u64;
    let token = |i: usize| random::below(3, if i < apart { family } else { 10 + own }, i as u64, words) as u32;
    let prompt: Vec<u32> = (0..length).map(token).collect();
    let scored = draws.below(3) == 0;
    let log_probs = (draws.below(2) == 0)
        .then(|| LogProbs { top: draws.below(4), prompt_from: scored.then(|| draws.below(length + 1)) });
    let sampler = Sampler {
        temperature: draws.one(&[0.0, 0.7, 1.3]),
        top_k: draws.one(&[0, 5]),
        top_p: draws.one(&[1.0, 0.9]),
        min_p: draws.one(&[0.0, 0.05]),
        repetition_penalty: draws.one(&[1.0, 1.2]),
        presence_penalty: draws.one(&[0.0, 0.5]),
        frequency_penalty: draws.one(&[0.0, -0.2]),
        seed: draws.below(5) as u64,
    };
    let options = Options {
        max_tokens: draws.one(&[0, 1, 7, 40, 150]),
        sampler,
        sample: draws.below(3) as u64,
        stop: if draws.below(3) == 0 { vec!["e".into(), "zy".into()] } else { vec![] },
        stop_at_end_of_text: true,
        overflow: draws.one(&[
            Overflow::Stop,
            Overflow::SlideHalf,
            Overflow::Stop,
            Overflow::SlideHalf,
            Overflow::Crop,
        ]),
        logit_bias: if draws.below(4) == 0 { [(1, 2.0), (2, -3.0)].into() } else { [].into() },
        trace: false,
        skip_special_tokens: draws.below(2) == 0,
    };
    // every second one that stays within the context is changed on its way
    let (run, last) = (length - usize::from(options.max_tokens == 0), length + options.max_tokens);
    let stays = run > 0 && (options.overflow == Overflow::Stop || last <= CONTEXT);
    let steps = (stays && draws.below(2) == 0).then(|| {
        let named = Model::new(config, Mode::Inspect { batch: 1, context: 1 }).unwrap();
        random_steps(&named, run, &mut |n| draws.below(n))
    });
    let request = EngineRequest { prompt, options, log_probs, reuse: draws.below(4) > 0, steps: None };
    let steps = steps.map(|steps| request.place(&steps, config).unwrap());
    EngineRequest { steps, ..request }
}

/// Up to 32 requests at once, in engines of many kinds that were used before, with requests that are cancelled at any
/// time: each is told what it is told alone, in an engine that was never used.
#[test]
#[ignore = "gate"]
fn company_changes_no_byte() {
    let mut draws = Draws(0);
    let (mut found, mut cancelled, mut slid, mut compared) = (0, 0, 0, 0);
    for (round, positions) in [Positions::Learned, Positions::Rotary, Positions::Alibi].into_iter().enumerate() {
        let config = config(positions);
        for (precision, cache) in
            [(Precision::F32, Element::F32), (Precision::Bf16, Element::F32), (Precision::F32, Element::Bf16)]
        {
            let plain =
                How { sequences: 1, prompt_rows: 256, contexts: 1, threads: 1, level: Level::best(), precision, cache };
            let requests: Vec<EngineRequest> = (0..40).map(|_| request(&config, &mut draws)).collect();
            let want: Vec<Told> = requests.iter().map(|r| alone(&mut plain.engine(&config), r.clone())).collect();
            for (sequences, prompt_rows, contexts, threads) in
                [(32, 1, 8, 1), (8, 7, 3, 2), (3, 64, 1, 3), (32, 256, 40, 2), (1, 33, 2, 1)]
            {
                let level = draws.one(&Level::available());
                let how = How { sequences, prompt_rows, contexts, threads, level, precision, cache };
                let mut engine = how.engine(&config);
                for _ in 0..2 {
                    let mut of: HashMap<RequestId, (usize, Told)> = HashMap::new();
                    let mut waiting: Vec<usize> = (0..32).map(|_| draws.below(requests.len())).collect();
                    let mut gone = vec![];
                    loop {
                        // they come a few at a time
                        for _ in 0..draws.below(9).min(waiting.len()) {
                            let which = waiting.pop().unwrap();
                            let id = engine.submit(requests[which].clone()).unwrap();
                            of.insert(id, (which, Told::default()));
                        }
                        if draws.below(60) == 0 && !of.is_empty() {
                            let mut ids: Vec<RequestId> = of.keys().copied().collect();
                            ids.sort_unstable();
                            let id = draws.one(&ids);
                            if of[&id].1.sample.is_none() {
                                engine.cancel(&[id].into());
                                of.remove(&id);
                                gone.push(id);
                                cancelled += 1;
                            }
                        }
                        if draws.below(8) == 0 {
                            engine.set_prompt_rows(1 + draws.below(prompt_rows));
                        }
                        let more = engine.round(&mut |id, event| {
                            assert!(!gone.contains(&id), "a cancelled request is told something");
                            if let EngineEvent::Prompt { cached, .. } = event {
                                found += cached;
                            }
                            of.get_mut(&id).expect("it was asked").1.take(event);
                            true
                        });
                        if !more.unwrap() && waiting.is_empty() {
                            break;
                        }
                    }
                    for (which, told) in of.into_values() {
                        slid += told.cropped.len();
                        compared += 1;
                        assert_eq!(
                            told, want[which],
                            "request {which} of round {round}, {how:?}: {:?}",
                            requests[which]
                        );
                    }
                    let EngineCounts { running, waiting, held, .. } = engine.counts();
                    assert_eq!((running, waiting, held), (0, 0, 0), "{how:?}");
                }
            }
        }
    }
    // what is promised was put to the test
    assert!(
        found > 8_000 && cancelled > 600 && slid > 1_000 && compared > 2_200,
        "{found} {cancelled} {slid} {compared}"
    );
}

/// A request that is answered from the cache says how much of it was there, and gives what it gave before.
#[test]
fn a_known_beginning_is_not_run_again() {
    let config = config(Positions::Learned);
    let how = How::plain(4, 64, 4);
    let mut engine = how.engine(&config);
    let prompt: Vec<u32> = (0..150).map(|i| random::below(3, 9, i, 30) as u32).collect();
    let options = Options { max_tokens: 5, sampler: Sampler::GREEDY, overflow: Overflow::Stop, ..Options::default() };
    let plain = EngineRequest { prompt, options, log_probs: None, reuse: true, steps: None };
    let scored = EngineRequest { log_probs: Some(LogProbs { top: 0, prompt_from: Some(70) }), ..plain.clone() };
    let apart = EngineRequest { reuse: false, ..plain.clone() };
    let all = EngineRequest { log_probs: Some(LogProbs { top: 0, prompt_from: Some(0) }), ..plain.clone() };
    let mut want = None;
    for (request, cached) in
        [(&apart, 0), (&plain, 0), (&plain, 128), (&apart, 0), (&scored, 64), (&all, 0), (&plain, 128)]
    {
        engine.submit(request.clone()).unwrap();
        let (mut told, mut rows) = (Told::default(), 0);
        let mut was_cached = None;
        while {
            let more = engine.round(&mut |_, event| {
                if let EngineEvent::Prompt { cached, .. } = event {
                    was_cached = Some(cached);
                }
                told.take(event);
                true
            });
            rows += engine.counts().rows;
            more.unwrap()
        } {}
        assert_eq!((was_cached, rows), (Some(cached), 150 - cached + 4), "rows that were run");
        assert_eq!(
            told.prompt.map(|p| p.len()),
            Some(request.log_probs.map_or(0, |l| 150 - l.prompt_from.unwrap().max(1)))
        );
        assert_eq!(want.get_or_insert(told.sample.clone()), &told.sample);
    }
    // requests that begin alike and come together compute the beginning once
    let mut other = plain;
    other.prompt[0] ^= 1;
    let ids: Vec<RequestId> = (0..4).map(|_| engine.submit(other.clone()).unwrap()).collect();
    let (mut rows, mut samples) = (0, HashMap::new());
    while {
        let more = engine.round(&mut |id, event| {
            if let EngineEvent::Done(sample) = event {
                samples.insert(id, sample);
            }
            true
        });
        rows += engine.counts().rows;
        more.unwrap()
    } {}
    assert_eq!(rows, 128 + 4 * (22 + 4), "two blocks once, the rest for each");
    assert!(ids.iter().all(|id| samples[id] == samples[&ids[0]]));
}

/// The log-probabilities of prompt and answer are those of a session that is fed token by token.
#[test]
fn log_probs_are_those_of_the_logits() {
    let config = config(Positions::Rotary);
    let how = How { threads: 2, ..How::plain(2, 50, 2) };
    let mut session = Sequences::on_cpu(&config, 1, 1).unwrap();
    let (model, backend) = session.parts();
    fill(model, backend);
    let prompt: Vec<u32> = (0..100).map(|i| random::below(4, 9, i, 30) as u32).collect();
    let options = Options { max_tokens: 6, overflow: Overflow::Stop, ..Options::default() };
    let log_probs = Some(LogProbs { top: 3, prompt_from: Some(1) });
    let told = alone(
        &mut how.engine(&config),
        EngineRequest { prompt: prompt.clone(), options, log_probs, reuse: true, steps: None },
    );
    let answer = told.tokens.iter().map(|(_, _, log_prob)| log_prob.clone().unwrap());
    let all: Vec<TokenLogProb> = told.prompt.unwrap().into_iter().chain(answer).collect();
    let tokens: Vec<u32> = prompt.iter().copied().chain(told.tokens.iter().map(|(token, ..)| *token)).collect();
    assert_eq!(all.len(), 99 + 6);
    let id = session.open();
    for (i, found) in all.iter().enumerate() {
        session.feed(id, &tokens[i..i + 1]).unwrap();
        let logits = session.logits(id);
        let sum: f64 = logits.iter().map(|l| f64::from(*l).exp()).sum();
        let want = |token: u32| f64::from(logits[token as usize]) - sum.ln();
        assert_eq!(found.token, tokens[i + 1]);
        assert!((found.log_prob - want(found.token)).abs() < 1e-12);
        let mut ranked: Vec<u32> = (0..40).collect();
        ranked.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]));
        assert_eq!(found.top.iter().map(|(token, _)| *token).collect::<Vec<_>>(), ranked[..3]);
        assert!(found.top.iter().all(|(token, log_prob)| (log_prob - want(*token)).abs() < 1e-12));
    }
    // and `score` tells the same numbers, to the bit
    let likely = score(&mut how.engine(&config), &tokens[..80], &tokens[80..]).unwrap();
    assert_eq!(likely.log_probs, all[79..].iter().map(|l| l.log_prob).collect::<Vec<_>>());
}

/// Long prompts come all the time beside four that write: each of the four has a token in every run, and each prompt
/// that was admitted advances in every run.
#[test]
fn long_prompts_hold_up_nobody() {
    let config = config(Positions::Rotary);
    let how = How::plain(12, 16, 12);
    let mut engine = how.engine(&config);
    let ask = |length: u64, site: u64, max_tokens| EngineRequest {
        prompt: (0..length).map(|i| random::below(3, site, i, 30) as u32).collect(),
        options: Options { max_tokens, overflow: Overflow::Stop, stop_at_end_of_text: false, ..Options::default() },
        log_probs: None,
        reuse: true,
        steps: None,
    };
    let mut writers: HashMap<RequestId, usize> = (0..4).map(|n| (engine.submit(ask(2, n, 190)).unwrap(), 0)).collect();
    let (mut prompts, mut answered) = (0, 0);
    for run in 0..180 {
        if run % 8 == 1 {
            prompts += 1;
            engine.submit(ask(150, 10 + run, 2)).unwrap();
        }
        let mut wrote = vec![];
        engine
            .round(&mut |id, event| {
                match event {
                    EngineEvent::Token { .. } => wrote.push(id),
                    EngineEvent::Done(_) => answered += 1,
                    _ => {}
                }
                true
            })
            .unwrap();
        for (id, tokens) in &mut writers {
            assert_eq!(wrote.iter().filter(|other| *other == id).count(), 1, "run {run}: a writer has no token");
            *tokens += 1;
        }
        // 150 rows in pieces of 16 beside the writers' own: none is left unused while a prompt waits
        let EngineCounts { rows, waiting, running, .. } = engine.counts();
        assert!(rows <= 16 + running, "run {run}: {rows} rows");
        assert!(waiting == 0 || rows >= 16, "run {run}: {waiting} wait, and {rows} rows were run");
    }
    assert!(answered >= 15 && prompts > answered, "{answered} of {prompts} were answered");
}

/// A cache in bf16 takes half the memory and is what the judge says it is: keys and values rounded once.
#[test]
fn a_cache_in_bf16_is_rounded_once() {
    let config = config(Positions::Rotary);
    let tokens: Vec<u32> = (0..150).map(|i| random::below(8, 9, i, 40) as u32).collect();
    let logits = |cache: Element, judged: bool| {
        let limits = DecoderLimits { rows: 150, outputs: 150, blocks: 3, cache };
        let bytes = limits.model(&config).unwrap().bytes(MemorySpace::Cache);
        let make = |model: &Model| -> Result<Box<dyn Backend>> {
            Ok(if judged { Box::new(Reference::new(model)) } else { Box::new(Cpu::new(model, 2)) })
        };
        let mut decoder = Decoder::new(&config, limits, make).unwrap();
        let (model, backend) = decoder.parts();
        fill(model, backend);
        let table = decoder.pool().reserve(None, 150).unwrap();
        let rows = [DecodeRows { table: &table, past: 0, tokens: &tokens, outputs: 150 }];
        decoder.run(rows).unwrap();
        let logits = decoder.logits().to_vec();
        decoder.pool().release(table);
        (bytes, logits)
    };
    let apart = |a: &[f32], b: &[f32]| {
        let squares = a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>();
        (squares / a.len() as f64).sqrt()
    };
    let ((whole, f32s), (half, bf16s)) = (logits(Element::F32, false), logits(Element::Bf16, false));
    assert_eq!(whole, 2 * half);
    let judged = logits(Element::Bf16, true).1;
    // a value on the border of two bf16 may be rounded the other way: rare, and a small part of what rounding does
    let (rounding, off) = (apart(&f32s, &bf16s), apart(&judged, &bf16s));
    assert!(rounding > 1e-5 && off < rounding / 4.0, "rounding {rounding:.1e}, off {off:.1e}");
}

/// What cannot be answered is refused before it runs, and the engine goes on.
#[test]
fn what_does_not_fit_is_refused() {
    let config = config(Positions::Learned);
    let how = How::plain(2, 9, 1);
    let mut engine = how.engine(&config);
    let ask = |prompt: Vec<u32>, options: Options| EngineRequest {
        prompt,
        options,
        log_probs: None,
        reuse: true,
        steps: None,
    };
    let stop = || Options { overflow: Overflow::Stop, max_tokens: 1, ..Options::default() };
    let cases: [(EngineRequest, &str); 6] = [
        (ask(vec![], stop()), "no tokens to continue from"),
        (ask(vec![1, 40], stop()), "token 40 (at index 1)"),
        (ask(vec![1; CONTEXT + 1], stop()), "the context is full"),
        (ask(vec![1], Options { logit_bias: [(40, 1.0)].into(), ..stop() }), "token 40"),
        (ask(vec![1], Options { stop: vec![String::new()], ..stop() }), "stop text 0 is empty"),
        (
            ask(vec![1], Options { sampler: Sampler { top_p: 0.0, ..Sampler::default() }, ..stop() }),
            "top_p is 0: it must be above 0",
        ),
    ];
    for (request, said) in cases {
        let error: GenerateError = engine.submit(request).expect_err(said);
        assert!(error.to_string().contains(said), "{error}");
    }
    assert!(!engine.is_busy());
    // the largest that fits: a prompt of the whole context predicts one token
    let told = alone(&mut engine, ask(vec![1; CONTEXT], stop()));
    assert_eq!(told.tokens.len(), 1);
    let told = alone(&mut engine, ask(vec![1; CONTEXT + 1], Options { max_tokens: 0, ..stop() }));
    assert_eq!((told.tokens.len(), told.sample.unwrap().tokens.len()), (0, 0));
    // requests that end together leave an engine for the next
    let text = generate(&mut engine, &[1, 2, 3], &stop(), &mut |_| true).unwrap();
    assert_eq!(text.tokens.len(), 1);
    assert_eq!(engine.counts().held, 0);
}

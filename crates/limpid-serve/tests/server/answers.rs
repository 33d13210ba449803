//! Answers put together from events: what a stream sends is the whole answer, and what lm-eval reads is there.

use crate::served::{Chance, chars, gpt2, talker, tokenized};
use limpid::engine::{EngineEvent, EngineLimits, EngineRequest, TokenLogProb};
use limpid::generate::{FinishReason, GenerateError, Options, Sample, Sampler, Writer};
use limpid::numeric::element::Element;
use limpid::receipt::{Receipt, Replay, replay};
use limpid::tokenizer::{Order, Tokenizer, TokenizerKind};
use limpid_serve::ServedModel;
use limpid_serve::answer::Answer;
use limpid_serve::openai::{Ask, chat, completions};
use limpid_serve::refusal::Refusal;
use serde_json::{Value, json};
use std::sync::Arc;

/// Log-probabilities of logits, and the likeliest tokens.
fn likely(token: u32, logits: &[f32], top: usize) -> TokenLogProb {
    let sum = logits.iter().map(|logit| f64::from(*logit).exp()).sum::<f64>().ln();
    let log_prob = |id: u32| f64::from(logits[id as usize]) - sum;
    let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
    ids.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]));
    TokenLogProb { token, log_prob: log_prob(token), top: ids[..top].iter().map(|id| (*id, log_prob(*id))).collect() }
}

/// What an engine would tell of a request whose tokens are `chosen` as long as it goes on.
fn events(model: &ServedModel, request: &EngineRequest, chance: &mut Chance, chosen: &[u32]) -> Vec<EngineEvent> {
    let size = model.lm.tokenizer().unwrap().vocab_size();
    let mut logits = |token: u32| {
        let mut logits: Vec<f32> = (0..size).map(|_| chance.below(90) as f32 / 10.0 - 9.0).collect();
        logits[token as usize] = chance.below(40) as f32 / 10.0;
        logits
    };
    let wanted = request.log_probs;
    let of_prompt = wanted.filter(|wanted| wanted.prompt_from == Some(1));
    let log_probs =
        of_prompt.map(|wanted| request.prompt[1..].iter().map(|id| likely(*id, &logits(*id), wanted.top)).collect());
    let mut all =
        vec![EngineEvent::Prompt { cached: request.prompt.len() / 2, log_probs: log_probs.unwrap_or_default() }];
    let options = Options { sampler: Sampler::GREEDY, ..request.options.clone() };
    let mut writer = Writer::new(Some(model.lm.tokenizer().unwrap()), &request.prompt, &options).unwrap();
    let mut finish = (options.max_tokens == 0).then_some(FinishReason::Length);
    for token in chosen {
        if finish.is_some() {
            break;
        }
        let logits = logits(*token);
        let token = writer.take(&logits, 1).unwrap();
        finish = token.finish;
        let log_prob = wanted.map(|wanted| likely(token.token, &logits, wanted.top));
        all.push(EngineEvent::Token { token, log_prob });
    }
    // a context that is full before the tokens are: what was held back comes with the sample
    let finish = finish.unwrap_or_else(|| {
        writer.flush();
        FinishReason::Length
    });
    all.push(EngineEvent::Done(writer.into_sample(finish)));
    all
}

fn ask(model: &ServedModel, body: &Value) -> Ask {
    let (read, bytes) = (if body.get("messages").is_some() { chat } else { completions }, body.to_string());
    read(model, bytes.as_bytes()).unwrap_or_else(|refusal| panic!("{body}: {refusal}"))
}

fn answer(model: &Arc<ServedModel>, ask: &Ask) -> Answer {
    Answer::new(model.clone(), ask.answer.clone(), "cmpl-1".into(), 1_795_000_000)
}

/// The chunks of a stream, without `[DONE]`, which ends it.
fn chunks(lines: &[String]) -> Vec<Value> {
    let (last, chunks) = lines.split_last().unwrap();
    assert_eq!(last, "[DONE]");
    chunks.iter().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn random_body(chance: &mut Chance, stops: &[&str]) -> Value {
    let mut body = json!({ "max_tokens": chance.below(9), "n": 1 + chance.below(3), "seed": 1 });
    let streams = body.as_object_mut().unwrap();
    if chance.below(3) == 0 {
        streams.insert("messages".into(), json!([{ "role": "user", "content": "é to 🙂" }]));
        if chance.below(3) > 0 {
            streams.extend([("logprobs".into(), true.into()), ("top_logprobs".into(), chance.below(4).into())]);
        }
    } else {
        let ids = |chance: &mut Chance| (0..1 + chance.below(6)).map(|_| chance.below(50_257)).collect::<Vec<_>>();
        let prompts: Vec<Vec<usize>> = (0..1 + chance.below(3)).map(|_| ids(chance)).collect();
        streams.extend([("prompt".into(), json!(prompts)), ("echo".into(), (chance.below(2) == 0).into())]);
        if chance.below(3) > 0 {
            streams.insert("logprobs".into(), chance.below(4).into());
        }
    }
    let stops: Vec<&str> = stops.iter().copied().filter(|_| chance.below(3) == 0).collect();
    streams.insert("stop".into(), json!(stops));
    for flag in ["ignore_eos", "skip_special_tokens"] {
        streams.insert(flag.into(), (chance.below(3) == 0).into());
    }
    body
}

#[test]
#[ignore = "gate"]
fn what_a_stream_sends_is_the_whole_answer() {
    let model = gpt2();
    let tokenizer = model.lm.tokenizer().unwrap();
    // words that stops and split characters are made of
    let words: Vec<u32> = ["🙂🦀é", " stop", "STOP here", "\n\n", "日本語", "<|endoftext|>", "S", "T", "OP"]
        .iter()
        .flat_map(|text| tokenizer.encode(text).unwrap())
        .collect();
    let (mut stopped, mut split, mut ended, mut full) = (0, 0, 0, 0);
    for seed in 1..400 {
        let chance = &mut Chance(seed);
        let mut body = random_body(chance, &["STOP", "é", "\n\n", "語", "op"]);
        let whole = ask(&model, &body);
        body["stream"] = true.into();
        let usage = chance.below(2) == 0;
        body["stream_options"] = json!({ "include_usage": usage });
        let streamed = ask(&model, &body);
        let told: Vec<Vec<EngineEvent>> = whole
            .requests
            .iter()
            .map(|request| {
                let n = chance.below(10).max(1);
                let chosen: Vec<u32> = (0..n)
                    .map(|_| {
                        if chance.below(2) == 0 {
                            words[chance.below(words.len())]
                        } else {
                            chance.below(50_257) as u32
                        }
                    })
                    .collect();
                events(&model, request, chance, &chosen)
            })
            .collect();
        let samples: Vec<Sample> = told
            .iter()
            .map(|events| match events.last() {
                Some(EngineEvent::Done(sample)) => sample.clone(),
                _ => panic!(),
            })
            .collect();
        let counts: Vec<usize> = told
            .iter()
            .map(|events| events.iter().filter(|e| matches!(e, EngineEvent::Token { .. })).count())
            .collect();
        let (mut whole_answer, mut stream) = (answer(&model, &whole), answer(&model, &streamed));
        let mut lines = stream.begin();
        assert!(whole_answer.begin().is_empty());
        let mut queues: Vec<_> = told.into_iter().map(|events| events.into_iter().peekable()).collect();
        // in any order between choices
        while queues.iter_mut().any(|queue| queue.peek().is_some()) {
            let choice = chance.below(queues.len());
            if let Some(event) = queues[choice].next() {
                assert!(whole_answer.take(choice, copy(&event)).is_empty());
                lines.extend(stream.take(choice, event));
            }
        }
        assert!(whole_answer.is_done() && stream.is_done());
        let (whole_answer, chunks) = (read(whole_answer), chunks(&lines));
        let spec = &whole.answer;
        let (object, of_chunk) = if spec.chat {
            ("chat.completion", "chat.completion.chunk")
        } else {
            ("text_completion", "text_completion")
        };
        assert_eq!((&whole_answer["object"], &whole_answer["limpid"]["seed"]), (&json!(object), &json!(1)));
        for chunk in &chunks {
            assert_eq!((&chunk["object"], &chunk["id"]), (&json!(of_chunk), &json!("cmpl-1")));
            assert_eq!(chunk.get("usage").is_some(), usage);
        }
        let last = chunks.last().unwrap();
        if usage {
            assert_eq!((&last["usage"], &last["choices"]), (&whole_answer["usage"], &json!([])))
        } else {
            assert_eq!(last["choices"].as_array().unwrap().len(), 1)
        }
        let prompts: usize = spec.prompts.iter().map(Vec::len).sum();
        let completion: usize = counts.iter().sum();
        assert_eq!(whole_answer["usage"]["prompt_tokens"], prompts);
        assert_eq!(whole_answer["usage"]["completion_tokens"], completion);
        assert_eq!(whole_answer["usage"]["total_tokens"], prompts + completion);
        let cached: usize = spec.prompts.iter().map(|prompt| prompt.len() / 2).sum();
        assert_eq!(whole_answer["usage"]["prompt_tokens_details"]["cached_tokens"], cached);
        for (index, sample) in samples.iter().enumerate() {
            let choice = &whole_answer["choices"][index];
            assert_eq!(choice["index"], index);
            let of_choice = |chunk: &Value| chunk["choices"].get(0).filter(|choice| choice["index"] == index).cloned();
            let own: Vec<Value> = chunks.iter().filter_map(of_choice).collect();
            let (text, deltas): (&Value, String) = if spec.chat {
                (&choice["message"]["content"], own.iter().filter_map(|c| c["delta"]["content"].as_str()).collect())
            } else {
                (&choice["text"], own.iter().filter_map(|c| c["text"].as_str()).collect())
            };
            // the text is that of the sample, after that of the prompt if wanted
            let prompt = &spec.prompts[index / spec.n];
            let all = [&prompt[..], &sample.tokens[..]].concat();
            // of an answer's tokens only those that are seen have text
            let seen = |ids: &[u32]| -> Vec<u32> {
                let (prompt, answer) = ids.split_at(prompt.len());
                let is_seen = |id: &&u32| !spec.skip_special_tokens || **id != 50_256;
                prompt.iter().chain(answer.iter().filter(is_seen)).copied().collect()
            };
            assert_eq!(text.as_str().unwrap(), deltas, "{body}");
            assert!(deltas.ends_with(&sample.text), "{body}");
            let length = sample.finish_reason == FinishReason::Length;
            if length && spec.echo {
                assert_eq!(deltas, tokenizer.decode(&seen(&all)).unwrap(), "{body}");
            }
            if !spec.echo {
                assert_eq!(deltas, sample.text);
                let stops = whole.requests[index].options.stop.iter();
                assert!(stops.clone().all(|stop| !deltas.contains(stop.as_str())), "{body}: {deltas:?}");
            }
            assert_eq!(choice["finish_reason"], if length { "length" } else { "stop" });
            let ends: Vec<&Value> = own.iter().map(|c| &c["finish_reason"]).filter(|end| !end.is_null()).collect();
            assert_eq!(ends, [&choice["finish_reason"]]);
            stopped += usize::from(sample.finish_reason == FinishReason::Stop);
            ended += usize::from(sample.finish_reason == FinishReason::EndOfText);
            full += usize::from(length && counts[index] < whole.requests[index].options.max_tokens);
            split += usize::from(deltas.contains('\u{fffd}'));
            // entries: one for each token, and they add up too
            let keys: &[&str] =
                if spec.chat { &["content"] } else { &["tokens", "token_logprobs", "top_logprobs", "text_offset"] };
            if spec.log_probs.is_none() {
                assert!(choice["logprobs"].is_null() && own.iter().all(|c| c["logprobs"].is_null()));
                continue;
            }
            for key in keys {
                let entries = choice["logprobs"][key].as_array().unwrap();
                let sum: Vec<Value> =
                    own.iter().filter_map(|c| c["logprobs"].get(key)?.as_array()).flatten().cloned().collect();
                assert_eq!(&sum, entries, "{key} of {body}");
                assert_eq!(entries.len(), counts[index] + if spec.echo { prompt.len() } else { 0 });
            }
            if !spec.chat {
                let offsets: Vec<u64> =
                    choice["logprobs"]["text_offset"].as_array().unwrap().iter().map(|o| o.as_u64().unwrap()).collect();
                assert!(offsets.is_sorted() && offsets.first().is_none_or(|first| *first == 0), "{offsets:?}");
                let begins = if spec.echo { 0 } else { prompt.len() };
                for (i, offset) in offsets.iter().enumerate().take(all.len() - begins) {
                    // characters that are whole before this token
                    let whole = |ids: &[u32]| {
                        let mut stream = limpid::tokenizer::TextStream::new(tokenizer);
                        let ids = if ids.len() < prompt.len() { ids.to_vec() } else { seen(ids) };
                        ids.iter().map(|id| stream.push(*id).unwrap().chars().count()).sum::<usize>()
                    };
                    assert_eq!(*offset as usize, whole(&all[..begins + i]) - whole(&all[..begins]), "{body}");
                }
            }
        }
    }
    assert!(stopped > 50 && ended > 20 && full > 20 && split > 20, "{stopped} {ended} {full} {split}");
}

fn copy(event: &EngineEvent) -> EngineEvent {
    match event {
        EngineEvent::Prompt { cached, log_probs } => {
            EngineEvent::Prompt { cached: *cached, log_probs: log_probs.clone() }
        }
        EngineEvent::Token { token, log_prob } => {
            EngineEvent::Token { token: token.clone(), log_prob: log_prob.clone() }
        }
        EngineEvent::Done(sample) => EngineEvent::Done(sample.clone()),
        EngineEvent::Cropped { .. } | EngineEvent::Failed(_) => panic!("not told here"),
    }
}

/// lm-eval sums `token_logprobs[context..-1]` and takes a continuation for greedy if each is the greatest beside it.
#[test]
fn lm_eval_finds_what_it_counts_on() {
    let model = gpt2();
    let tokenizer = model.lm.tokenizer().unwrap();
    let prompt: Vec<u32> = tokenizer.encode("to be or not").unwrap();
    let [end, stop] = ["<|endoftext|>", "!"].map(|text| tokenizer.encode(text).unwrap()[0]);
    for (chosen, stops) in [(end, json!(null)), (stop, json!("!")), (7, json!(null))] {
        let body = json!({ "model": "M", "prompt": [prompt], "temperature": 0, "max_tokens": 1, "logprobs": 1,
            "seed": 1234, "echo": true, "stop": stops });
        let asked = ask(&model, &body);
        let chance = &mut Chance(9);
        let told = events(&model, &asked.requests[0], chance, &[chosen]);
        let EngineEvent::Prompt { log_probs, .. } = &told[0] else { panic!() };
        let want: Vec<f64> = log_probs.iter().map(|likely| likely.log_prob).collect();
        let mut answer = answer(&model, &asked);
        told.into_iter().for_each(|event| drop(answer.take(0, event)));
        let answer = read(answer);
        let (choice, text) = (&answer["choices"][0]["logprobs"], &answer["choices"][0]["text"]);
        let own = choice["token_logprobs"].as_array().unwrap();
        assert_eq!(own.len(), prompt.len() + 1, "{chosen}");
        assert!(own[0].is_null() && choice["top_logprobs"][0].is_null());
        assert_eq!(own[1..prompt.len()].iter().map(|x| x.as_f64().unwrap()).collect::<Vec<_>>(), want, "to the bit");
        for (i, log_prob) in own.iter().enumerate().skip(1) {
            let top: Vec<f64> =
                choice["top_logprobs"][i].as_object().unwrap().values().map(|x| x.as_f64().unwrap()).collect();
            assert!((1..=2).contains(&top.len()) && top.contains(&log_prob.as_f64().unwrap()), "{top:?} {log_prob}");
        }
        let more = if chosen == 7 { tokenizer.decode(&[7]).unwrap() } else { String::new() };
        assert_eq!(text.as_str().unwrap(), format!("to be or not{more}"));
        assert_eq!(choice["text_offset"], json!([0, 2, 5, 8, 12]));
        // without the one token more the prompt's are the same
        let mut none = body.clone();
        none["max_tokens"] = 0.into();
        let asked = ask(&model, &none);
        let mut told = events(&model, &asked.requests[0], &mut Chance(9), &[]);
        let mut answer = self::answer(&model, &asked);
        told.drain(..).for_each(|event| drop(answer.take(0, event)));
        let answer = read(answer);
        assert_eq!(answer["choices"][0]["logprobs"]["token_logprobs"], json!(own[..prompt.len()]));
        assert_eq!(answer["choices"][0]["finish_reason"], "length");
    }
}

fn one_token(model: &Arc<ServedModel>, body: &Value, likely: TokenLogProb) -> Value {
    let asked = ask(model, body);
    let mut answer = answer(model, &asked);
    let token = limpid::generate::GeneratedToken { token: likely.token, text: "?".into(), choice: None, finish: None };
    let done = Sample { text: "?".into(), tokens: vec![likely.token], finish_reason: FinishReason::Length };
    answer.take(0, EngineEvent::Prompt { cached: 0, log_probs: vec![] });
    answer.take(0, EngineEvent::Token { token, log_prob: Some(likely) });
    answer.take(0, EngineEvent::Done(done));
    read(answer)
}

#[test]
fn tokens_have_names_of_their_own() {
    let model = gpt2();
    let crab = model.lm.tokenizer().unwrap().encode("🦀").unwrap();
    let unused = 50_300; // of a padded vocabulary
    let likely =
        TokenLogProb { token: 7, log_prob: f64::NEG_INFINITY, top: vec![(crab[0], -0.1), (64, -0.5), (unused, -2.0)] };
    let body = json!({ "prompt": [1], "max_tokens": 1, "logprobs": 3 });
    let answer = one_token(&model, &body, likely.clone());
    let top = &answer["choices"][0]["logprobs"]["top_logprobs"][0];
    let own = model.lm.tokenizer().unwrap().piece(7).unwrap();
    let bytes = model.lm.tokenizer().unwrap().piece_bytes(crab[0]).unwrap();
    let name = bytes.iter().fold("bytes:".to_string(), |name, byte| name + &format!("\\x{byte:02x}"));
    assert!(str::from_utf8(&bytes).is_err());
    assert_eq!(*top, json!({ name.clone(): -0.1, "a": -0.5, "<unused 50300>": -2.0, own: -9999.0 }));
    let body = json!({ "messages": [{ "role": "user", "content": "a" }], "max_tokens": 1, "logprobs": true,
        "top_logprobs": 3 });
    let answer = one_token(&model, &body, likely);
    let content = &answer["choices"][0]["logprobs"]["content"];
    let want = json!([
        { "token": name, "logprob": -0.1, "bytes": bytes },
        { "token": "a", "logprob": -0.5, "bytes": [97] },
        { "token": "<unused 50300>", "logprob": -2.0, "bytes": null },
    ]);
    assert_eq!((&content[0]["top_logprobs"], &content[0]["logprob"]), (&want, &json!(-9999.0)), "OpenAI's has no more");
    // the same text twice
    let body = json!({ "prompt": [1], "max_tokens": 1, "logprobs": 2 });
    let twice = TokenLogProb { token: 64, log_prob: -0.5, top: vec![(unused, -0.1), (unused, -0.2)] };
    let top = &one_token(&model, &body, twice)["choices"][0]["logprobs"]["top_logprobs"][0];
    assert_eq!(*top, json!({ "<unused 50300>": -0.1, "<unused 50300> (id 50300)": -0.2, "a": -0.5 }));
}

fn read(answer: Answer) -> Value {
    serde_json::from_str(&answer.whole().unwrap()).unwrap()
}

/// What an engine really answers, whole.
fn really(model: &Arc<ServedModel>, body: &Value) -> Value {
    let asked = ask(model, body);
    let mut answer = answer(model, &asked);
    run(model, asked, |choice, event| drop(answer.take(choice, event)));
    read(answer)
}

/// Lets an engine answer, and tells of each choice what happens.
fn run(model: &ServedModel, asked: Ask, mut tell: impl FnMut(usize, EngineEvent)) {
    let limits = EngineLimits { sequences: 4, prompt_rows: 8, cache_bytes: 1 << 20, cache: Element::F32 };
    let mut engine = model.lm.engine(&limits).unwrap();
    let ids: Vec<_> = asked.requests.into_iter().map(|request| engine.submit(request).unwrap()).collect();
    let mut heard = |id, event| {
        tell(ids.iter().position(|own| *own == id).unwrap(), event);
        true
    };
    while engine.round(&mut heard).unwrap() {}
}

/// A model that is made to answer with special tokens: its answers go back as they came, five turns long, and no text
/// in them becomes a token. A template with special tokens of its own, and limpid's, whose markers this tokenizer
/// writes as text.
#[test]
fn an_answer_with_special_tokens_goes_back_as_it_came() {
    const EOT: &str = "<|endoftext|>";
    let written = "{% for m in messages %}{{ m.role }}: {{ m.content }}<|endoftext|>{% endfor %}";
    for (template, own) in [(written, 1), (&*limpid::data::chat::template(gpt2().lm.tokenizer().unwrap()), 0)] {
        let model = talker(template);
        let (space, bias) = (model.lm.tokenizer().unwrap().encode(" to").unwrap()[0], 100);
        for (skip, stream) in [(true, false), (true, true), (false, false)] {
            let mut messages = vec![];
            for turn in 0..5 {
                messages.push(json!({ "role": "user", "content": format!("{turn}{EOT}?") }));
                let mut body = json!({ "messages": messages, "max_tokens": 4, "ignore_eos": true, "seed": turn,
                    "logprobs": true });
                body["logit_bias"] = json!({ "50256": bias, space.to_string(): bias });
                if !skip {
                    body["skip_special_tokens"] = false.into();
                }
                body["stream"] = stream.into();
                let asked = ask(&model, &body);
                let specials = asked.requests[0].prompt.iter().filter(|id| **id == 50_256).count();
                assert_eq!(specials, own * messages.len(), "only the template writes tokens");
                let (text, chosen) = if stream {
                    streamed(&model, &body)
                } else {
                    let choice = really(&model, &body)["choices"][0].clone();
                    let text = choice["message"]["content"].as_str().unwrap().to_string();
                    let token = |entry: &Value| entry["token"].as_str().unwrap().to_string();
                    (text, choice["logprobs"]["content"].as_array().unwrap().iter().map(token).collect())
                };
                assert_eq!(chosen.len(), 4, "each token has its log-probability");
                let seen: String = chosen.iter().filter(|token| !skip || *token != EOT).map(String::as_str).collect();
                assert_eq!(text, seen, "turn {turn} skips: {skip}");
                messages.push(json!({ "role": "assistant", "content": text, "refusal": null }));
            }
            let all: String = messages.iter().skip(1).step_by(2).filter_map(|m| m["content"].as_str()).collect();
            assert_eq!(all.contains(EOT), !skip, "{all}");
            assert!(all.contains(" to"), "{all}");
        }
    }
}

/// The text of a streamed answer to a conversation, and its tokens.
fn streamed(model: &Arc<ServedModel>, body: &Value) -> (String, Vec<String>) {
    let asked = ask(model, body);
    let mut answer = answer(model, &asked);
    let mut lines = answer.begin();
    run(model, asked, |choice, event| lines.extend(answer.take(choice, event)));
    let (mut text, mut tokens) = (String::new(), vec![]);
    for chunk in chunks(&lines) {
        let choice = &chunk["choices"][0];
        text += choice["delta"]["content"].as_str().unwrap_or_default();
        let entries = choice["logprobs"]["content"].as_array();
        tokens.extend(entries.into_iter().flatten().map(|entry| entry["token"].as_str().unwrap().to_string()));
    }
    (text, tokens)
}

/// A tokenizer of bytes whose texts begin with a token, as Llama 3's.
fn begun() -> Tokenizer {
    let shown = |byte: &u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let hidden: Vec<u8> = (0..=255).filter(|byte| !shown(byte)).collect();
    let letter = |byte: u8| match hidden.binary_search(&byte) {
        Ok(at) => char::from_u32(256 + at as u32).unwrap(),
        Err(_) => char::from(byte),
    };
    let mut vocab: serde_json::Map<String, Value> =
        (0..=255).map(|byte| (letter(byte).to_string(), json!(byte))).collect();
    vocab.extend([("<s>".into(), json!(256)), ("</s>".into(), json!(257))]);
    let added =
        |id: usize, content: &str| json!({ "id": id, "content": content, "special": true, "normalized": false });
    let bytes = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true });
    let json = json!({
        "version": "1.0", "added_tokens": [added(256, "<s>"), added(257, "</s>")],
        "normalizer": null, "pre_tokenizer": bytes, "decoder": bytes,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{ "SpecialToken": { "id": "<s>", "type_id": 0 } }, { "Sequence": { "id": "A", "type_id": 0 } }],
            "pair": [], "special_tokens": { "<s>": { "id": "<s>", "ids": [256], "tokens": ["<s>"] } },
        },
        "model": { "type": "BPE", "vocab": vocab, "merges": [] },
    });
    let tokenizer = Tokenizer::from_json(&json.to_string()).unwrap();
    assert_eq!(tokenizer.bos(), Some(256));
    tokenizer
}

/// Words, which have other blanks than a text, or stand for what the vocabulary lacks.
fn words() -> Tokenizer {
    Tokenizer::train(TokenizerKind::Word, "to be or not ! .", Order::Sorted, &["<UNK>", "</s>"]).unwrap()
}

/// With `echo` a text comes back as it was sent, to the letter, whatever its tokens are, and places in it are those of
/// its tokens.
#[test]
#[ignore = "gate"]
fn an_echo_is_the_prompt_as_it_was_sent() {
    let models = [("gpt2", gpt2()), ("begun", tokenized(begun())), ("words", tokenized(words())), ("chars", chars())];
    let texts = ["to be", "", " to", "to  ", "\n", "to<|endoftext|>be", "a<s>b", "aﬁ béd 🙂!", "</s>", " ab  <s>c d"];
    let mut differs = 0;
    for (name, model) in &models {
        let tokenizer = model.lm.tokenizer().unwrap();
        for text in texts {
            let body = json!({ "prompt": [text], "echo": true, "logprobs": 0, "max_tokens": 3, "seed": 1,
                "ignore_eos": true });
            if completions(model, body.to_string().as_bytes()).is_err() {
                assert!(*name == "chars" || (*name, text) == ("words", "\n"), "{name} {text:?}");
                continue;
            }
            let [whole, alone, none] = [(true, 3), (false, 3), (true, 0)].map(|(echo, most)| {
                let mut body = body.clone();
                (body["echo"], body["max_tokens"]) = (echo.into(), most.into());
                really(model, &body)["choices"][0].clone()
            });
            let (answer, said) = (alone["text"].as_str().unwrap(), whole["text"].as_str().unwrap());
            assert_eq!(said, format!("{text}{answer}"), "{name} {text:?}");
            assert_eq!(none["text"], text, "{name}");
            let ids = ask(model, &body).requests[0].prompt.clone();
            let places = |choice: &Value| -> Vec<usize> {
                serde_json::from_value(choice["logprobs"]["text_offset"].clone()).unwrap()
            };
            let (all, letters) = (places(&whole), text.chars().count());
            assert_eq!(all.len(), ids.len() + 3);
            assert!(
                all.is_sorted() && all[0] == 0 && all[..ids.len()].iter().all(|place| *place <= letters),
                "{all:?}"
            );
            assert_eq!(places(&none), all[..ids.len()]);
            let after: Vec<usize> = places(&alone).iter().map(|place| place + letters).collect();
            assert_eq!(all[ids.len()..], after, "{name} {text:?}");
            differs += usize::from(tokenizer.decode(&ids).unwrap() != text);
            // ids have the text that they have
            if *name == "gpt2" {
                let body = json!({ "prompt": ids, "echo": true, "max_tokens": 0 });
                assert_eq!(really(model, &body)["choices"][0]["text"], tokenizer.decode(&ids).unwrap());
            }
        }
    }
    assert!(differs > 8, "{differs} texts whose tokens have another");
}

#[test]
fn an_answers_receipt_replays() {
    let model = chars();
    let body = json!({
        "prompt": "to be", "max_tokens": 9, "seed": -3, "temperature": 1.5, "stop": "zz", "presence_penalty": 0.5,
        "logit_bias": { "3": 2 }, "skip_special_tokens": true, "limpid": { "receipt": true },
    });
    let answer = really(&model, &body);
    let receipt: Receipt = serde_json::from_value(answer["limpid"]["receipt"].clone()).unwrap();
    assert_eq!((receipt.step, &receipt.request.prompt), (Some(1), &model.lm.encode("to be").unwrap()));
    assert!(matches!(replay(&model.lm, &receipt).unwrap(), Replay::Same), "{receipt:?}");
    let mut other = receipt.clone();
    other.request.seed += 1;
    assert!(!matches!(replay(&model.lm, &other).unwrap(), Replay::Same), "another seed has another answer");
    // the seed that was drawn makes the same answer again
    let drawn = really(&model, &json!({ "prompt": "to be", "n": 2 }));
    let again = really(&model, &json!({ "prompt": "to be", "n": 2, "seed": drawn["limpid"]["seed"] }));
    assert_eq!(drawn["choices"], again["choices"]);
    assert_ne!(drawn["choices"][0]["text"], drawn["choices"][1]["text"]);
}

/// The answers of a request are independent draws of the model's distribution: along prompts, along `n`, along the
/// tokens of an answer and along seeds. Four tokens are biased far above the others, so that few draws say much.
#[test]
fn answers_of_one_request_are_independent() {
    const TOKENS: [&str; 4] = ["t", "o", "b", "e"];
    let model = chars();
    let tokenizer = model.lm.tokenizer().unwrap();
    let biases: serde_json::Map<String, Value> =
        TOKENS.iter().map(|token| (tokenizer.encode(token).unwrap()[0].to_string(), 100.into())).collect();
    let body = json!({ "max_tokens": 2, "logit_bias": biases, "ignore_eos": true });
    // what is expected: the model's probabilities, of these four alone
    let probability = |prompt: &str| {
        let all = TOKENS.map(|token| model.lm.score(prompt, token).unwrap().total.exp());
        all.map(|p| p / all.iter().sum::<f64>())
    };
    let first = probability("to be");
    let chi = |counts: &[f64], p: &[f64]| {
        let n: f64 = counts.iter().sum();
        counts.iter().zip(p).map(|(got, p)| (got - n * p).powi(2) / (n * p)).sum::<f64>()
    };
    for (prompts, n) in [(256, 1), (32, 8), (2, 128)] {
        // by seed, prompt, choice and place
        let drawn: Vec<Vec<[usize; 2]>> = [0, 1, 2, -1, 7, 1337, 1 << 40, i64::MIN]
            .into_iter()
            .map(|seed| {
                let mut body = body.clone();
                body["prompt"] = json!(vec!["to be"; prompts]);
                (body["n"], body["seed"]) = (n.into(), seed.into());
                let answer = really(&model, &body);
                let token = |c: char| TOKENS.iter().position(|token| token.starts_with(c)).unwrap();
                let texts = answer["choices"].as_array().unwrap().iter().map(|choice| choice["text"].as_str().unwrap());
                texts.map(|text| [0, 1].map(|i| token(text.chars().nth(i).unwrap()))).collect()
            })
            .collect();
        let what = format!("{prompts} prompts, {n} answers to each");
        // 3 degrees of freedom, and 9: beyond one in ten thousand
        for answers in &drawn {
            let mut counts = [0.0; 4];
            answers.iter().for_each(|[token, _]| counts[*token] += 1.0);
            assert!(chi(&counts, &first) < 21.1, "{what}: {counts:?}, not as {first:?}");
        }
        let pairs_of = |pairs: &mut dyn Iterator<Item = (usize, usize)>| {
            let mut counts = [[0.0; 4]; 4];
            pairs.for_each(|(a, b)| counts[a][b] += 1.0);
            counts
        };
        let independent: Vec<f64> = (0..16).map(|i| first[i / 4] * first[i % 4]).collect();
        let neighbours = |apart: usize| {
            let pairs = drawn.iter().flat_map(move |all| all.iter().zip(&all[apart.min(all.len())..]));
            pairs_of(&mut pairs.map(|(a, b)| (a[0], b[0])))
        };
        let seeds = drawn.windows(2).flat_map(|pair| pair[0].iter().zip(&pair[1])).map(|(a, b)| (a[0], b[0]));
        for (along, pairs) in
            [("prompts", neighbours(n)), ("answers", neighbours(1)), ("seeds", pairs_of(&mut { seeds }))]
        {
            let chi = chi(pairs.as_flattened(), &independent);
            assert!(
                pairs.as_flattened().iter().sum::<f64>() > 1000.0 && chi < 39.0,
                "{what}, along {along}: {chi}, {pairs:?}"
            );
        }
        let after: Vec<f64> =
            TOKENS.iter().zip(first).flat_map(|(t, p)| probability(&format!("to be{t}")).map(|q| p * q)).collect();
        let tokens = pairs_of(&mut drawn.iter().flatten().map(|[a, b]| (*a, *b)));
        assert!(chi(tokens.as_flattened(), &after) < 39.0, "{what}, along an answer: {tokens:?}");
    }
}

/// Choice i of a request is sample i of its own prompt, alone: neither the other prompts nor `n` change its draws.
#[test]
fn an_answer_beside_others_is_the_sample_alone() {
    let model = chars();
    let prompts = ["to be", "or not", "to be", "that", "to be or not to be"];
    for n in [1, 3] {
        let body = json!({ "prompt": prompts, "n": n, "seed": 11, "max_tokens": 8 });
        let answer = really(&model, &body);
        for (i, choice) in answer["choices"].as_array().unwrap().iter().enumerate() {
            let sampler = Sampler { seed: 11, ..Sampler::default() };
            let options = Options { sampler, max_tokens: 8, sample: i as u64, ..Options::default() };
            assert_eq!(
                choice["text"],
                model.lm.generate(prompts[i / n], &options).unwrap().text,
                "choice {i} of {body}"
            );
        }
    }
}

/// What lm-eval adds up is what the library finds, to the bit.
#[test]
fn log_probabilities_are_those_of_the_library() {
    for model in [chars(), gpt2()] {
        let (start, end) = ("to be", " or not to be");
        let score = model.lm.score(start, end).unwrap();
        let ids = [model.lm.encode(start).unwrap(), model.lm.tokenizer().unwrap().encode(end).unwrap()];
        for max_tokens in [0, 1] {
            let body = json!({ "prompt": [ids.concat()], "temperature": 0, "max_tokens": max_tokens, "logprobs": 1,
                "echo": true });
            let answer = really(&model, &body);
            let found = answer["choices"][0]["logprobs"]["token_logprobs"].as_array().unwrap().clone();
            let found: Vec<f64> = found[ids[0].len()..][..ids[1].len()].iter().map(|x| x.as_f64().unwrap()).collect();
            assert_eq!(found, score.log_probs);
        }
    }
}

#[test]
fn an_answer_that_fails_says_so_and_ends() {
    let model = chars();
    for stream in [true, false] {
        let body = json!({ "prompt": "to be", "n": 2, "stream": stream });
        let asked = ask(&model, &body);
        for refusal in [None, Some(Refusal::stopping())] {
            let mut answer = answer(&model, &asked);
            assert!(answer.take(0, EngineEvent::Prompt { cached: 0, log_probs: vec![] }).is_empty());
            assert!(!answer.is_done());
            let lines = match &refusal {
                Some(refusal) => answer.fail(refusal),
                None => answer.take(1, EngineEvent::Failed(GenerateError::NoStart)),
            };
            let want = refusal.unwrap_or_else(|| Refusal::engine_error(GenerateError::NoStart));
            if stream {
                assert_eq!(lines, [want.body().to_string(), "[DONE]".into()])
            } else {
                assert!(lines.is_empty())
            }
            assert!(answer.is_done() && answer.fail(&Refusal::loading()).is_empty());
            assert!(answer.take(0, EngineEvent::Prompt { cached: 0, log_probs: vec![] }).is_empty());
            assert_eq!(answer.whole().unwrap_err(), want);
        }
        let mut large = answer(&model, &asked);
        large.take(0, EngineEvent::Failed(GenerateError::NoCache { positions: 100, room: 64 }));
        assert_eq!(large.whole().unwrap_err(), Refusal::kv_full(100, 64), "another try would not help");
        let unfinished = answer(&model, &asked);
        assert_eq!(unfinished.whole().unwrap_err().code, "engine_error");
    }
}

//! Texts to tokens and back, vectors, and what is served.

use crate::served::{CONTEXT, chars, gpt2, post};
use base64::Engine as _;
use limpid::embed::Pooling;
use limpid_serve::tokens;
use serde_json::{Value, json};

fn ok(path: &str, body: Value) -> Value {
    post(&gpt2(), path, body.to_string().as_bytes()).unwrap_or_else(|refusal| panic!("{body}: {refusal}"))
}

#[test]
fn texts_become_tokens_in_the_shapes_of_vllm_and_llama_cpp() {
    let text = "to be <|endoftext|>🦀";
    let want = gpt2().lm.tokenizer().unwrap().encode(text).unwrap();
    for name in ["prompt", "content"] {
        let tokens = ok("/tokenize", json!({ name: text, "model": "M" }));
        assert_eq!(tokens, json!({ "count": want.len(), "max_model_len": CONTEXT, "tokens": want }));
    }
    let tokens = ok("/tokenize", json!({ "prompt": text, "return_token_strs": true, "with_pieces": true }));
    assert_eq!(tokens["tokens"][0], json!({ "id": want[0], "piece": "to" }));
    let last = tokens["tokens"].as_array().unwrap().last().unwrap();
    assert!(last["piece"].is_array(), "bytes that are no character: {last}");
    assert_eq!((&tokens["token_strs"][1], tokens["token_strs"].as_array().unwrap().len()), (&json!(" be"), want.len()));
    assert_eq!(ok("/tokenize", json!({ "prompt": "" }))["tokens"], json!([]));
    // and back
    let back = ok("/detokenize", json!({ "tokens": want }));
    assert_eq!(back, json!({ "prompt": text, "content": text }));
    assert_eq!(ok("/detokenize", json!({ "tokens": [] }))["prompt"], "");
}

/// lm-eval asks `/tokenizer_info` for the names of tokens, and `/tokenize` for their ids.
#[test]
fn lm_eval_needs_no_tokenizer_of_its_own() {
    let info = tokens::tokenizer_info(&gpt2()).unwrap();
    assert_eq!((&info["eos_token"], &info["tokenizer_class"]), (&json!("<|endoftext|>"), &json!("gpt2")));
    assert_eq!((&info["vocab_size"], info["chat_template"].is_string()), (&json!(50257), true));
    let eos = json!({ "prompt": info["eos_token"], "add_special_tokens": false });
    assert_eq!(ok("/tokenize", eos)["tokens"], json!([50256]));
    let info = tokens::tokenizer_info(&chars()).unwrap();
    for key in ["eos_token", "bos_token", "pad_token", "chat_template"] {
        assert_eq!(info.get(key), Some(&Value::Null), "{key} is there");
    }
}

#[test]
fn the_model_says_what_it_is() {
    let model = gpt2();
    let list = tokens::models(&model, false);
    let card = tokens::model(&model, false, "M").unwrap();
    assert_eq!((&list["object"], &list["data"]), (&json!("list"), &json!([card])));
    assert_eq!((&card["id"], &card["object"], &card["max_model_len"]), (&json!("M"), &json!("model"), &json!(CONTEXT)));
    assert_eq!(card["limpid"]["vocab_size"], model.lm.config().vocab_size);
    assert!(card["limpid"]["parameters"].as_u64().unwrap() > 800_000);
    let refusal = tokens::model(&model, false, "../M").unwrap_err();
    assert_eq!((refusal.code, refusal.message.contains("`M`")), ("model_not_found", true));
}

#[test]
fn vectors_are_those_of_the_library() {
    let model = gpt2();
    let width = model.lm.config().d_model;
    let vector = |body: Value| -> Vec<f32> {
        let answer = ok("/v1/embeddings", body);
        assert_eq!((&answer["object"], &answer["model"]), (&json!("list"), &json!("M")));
        serde_json::from_value(answer["data"][0]["embedding"].clone()).unwrap()
    };
    let ways = [
        ("mean", Pooling::Mean),
        ("cls", Pooling::Cls),
        ("last", Pooling::Last),
        ("max", Pooling::Max),
        ("mean-sqrt-len", Pooling::MeanSqrtLen),
        ("weighted-mean", Pooling::WeightedMean),
    ];
    for (name, pooling) in ways {
        let want = model.lm.embed("to be or", pooling).unwrap();
        let raw = vector(json!({ "input": "to be or", "limpid": { "pooling": name, "normalize": false } }));
        assert_eq!(raw, want, "{name}");
        let unit = vector(json!({ "input": "to be or", "limpid": { "pooling": name } }));
        let length = want.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        for (unit, want) in unit.iter().zip(&want) {
            assert!((f64::from(*unit) - f64::from(*want) / length).abs() < 1e-7, "{name}");
        }
        let ids = model.lm.encode("to be or").unwrap();
        assert_eq!(vector(json!({ "input": ids, "limpid": { "pooling": name } })), unit);
    }
    // several, and as bytes
    let several = ok("/v1/embeddings", json!({ "input": ["to be or", "not"], "dimensions": width, "user": "u" }));
    assert_eq!(several["data"][1]["index"], 1);
    assert_eq!(several["usage"], json!({ "prompt_tokens": 4, "total_tokens": 4 }));
    let coded = ok("/v1/embeddings", json!({ "input": ["to be or"], "encoding_format": "base64" }));
    let bytes =
        base64::engine::general_purpose::STANDARD.decode(coded["data"][0]["embedding"].as_str().unwrap()).unwrap();
    let decoded: Vec<f32> = bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    assert_eq!(json!(decoded), several["data"][0]["embedding"]);
}

//! The protocol without sockets gives the bytes that a server sends, at every path there is.

use crate::common::{folder, how, options, start};
use limpid::checkpoint::Checkpoint;
use limpid_serve::local::{LocalServer, Told};
use limpid_serve::{ServeOptions, ServedModel, ServedTraining, openapi};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;

fn model() -> ServedModel {
    let model = ServedModel::new(Checkpoint::open(folder()).unwrap(), &how()).unwrap();
    ServedModel { created: 1_795_000_000, ..model }
}

fn local(options: &ServeOptions) -> impl FnMut(&str, &str, &[u8]) -> (u16, String, Vec<u8>) {
    let mut local = LocalServer::new(model(), options).unwrap();
    move |method, target, body| {
        let (mut status, mut kind, mut bytes) = (0, String::new(), vec![]);
        local.answer((method, target), body, &mut |told| {
            match told {
                Told::Head(code, of) => (status, kind) = (code, of.into()),
                Told::Piece(piece) => bytes.extend(piece),
            }
            true
        });
        (status, kind, bytes)
    }
}

/// A text without what is drawn anew or taken from the clock: the id of an answer, its seed and time.
fn settled(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut settled = String::new();
    for line in text.split_inclusive('\n') {
        let bare = line.strip_prefix("data: ").unwrap_or(line);
        match serde_json::from_str::<Value>(bare) {
            Ok(mut value) if value["object"].is_string() && value["id"].is_string() => {
                value["id"] = Value::Null;
                value["created"] = Value::Null;
                settled += &value.to_string();
            }
            _ => settled += line,
        }
    }
    settled
}

/// A path of openapi.json, and requests for it; `ID` is the trace's.
fn requests() -> Vec<(&'static str, &'static str, String, Value)> {
    let asked = |target: &str| format!("/inspect/v1/{target}");
    let step = json!([{ "ablate": "blocks.0.attn.hook_z", "head": 1 }]);
    let talk = json!([{ "role": "user", "content": "to be" }]);
    let complete = json!({ "prompt": "to be", "max_tokens": 9, "seed": 3, "logprobs": 2, "echo": true });
    let with = |name: &str, value: Value| {
        let mut body = complete.clone();
        body[name] = value;
        body
    };
    let inside = "/inspect/v1/{id}";
    let tile = json!({ "name": "blocks.0.attn.hook_pattern", "index": [0, 0], "tile": [0, 0], "level": 0,
        "pool": "max", "code": "log8" });
    let sweep = json!({ "clean": "to be", "prompt": "to go", "site": "blocks.*.hook_resid_pre", "answer": " " });
    let post = |path: &'static str, body: Value| (path, "POST", path.to_string(), body);
    let get = |path: &'static str| (path, "GET", path.to_string(), Value::Null);
    vec![
        get("/health"),
        get("/ready"),
        get("/v1/models"),
        get("/tokenizer_info"),
        ("/v1/models/{id}", "GET", "/v1/models/m".into(), Value::Null),
        ("/v1/models/{id}", "GET", "/v1/models/no".into(), Value::Null),
        post("/tokenize", json!({ "prompt": "to be", "with_pieces": true })),
        post("/tokenize", json!({ "no": "to be" })),
        post("/detokenize", json!({ "tokens": [1, 2, 3] })),
        post("/apply-template", json!({ "messages": talk })),
        post("/v1/embeddings", json!({ "input": ["to be", "or"] })),
        post("/v1/completions", complete.clone()),
        post("/v1/completions", with("stream", true.into())),
        post("/v1/completions", with("n", 2.into())),
        post("/v1/completions", with("limpid", json!({ "interventions": step, "receipt": true }))),
        post("/v1/completions", with("prompt", "x".repeat(4000).into())),
        post("/v1/chat/completions", json!({ "messages": talk, "seed": 1, "max_tokens": 5 })),
        (inside, "POST", asked("traces"), json!({ "prompt": "to be or not" })),
        (inside, "POST", asked("traces"), json!({ "prompt": "to be or not", "interventions": step })),
        (inside, "POST", asked("traces"), json!({ "prompt": "x".repeat(1000) })),
        (inside, "POST", asked("traces/ID/tiles"), json!({ "tiles": [tile] })),
        (inside, "POST", asked("traces/ID/tiles"), json!({ "tiles": [{}] })),
        (inside, "POST", asked("sweeps"), sweep),
        (inside, "POST", asked("units"), json!({ "layer": 1, "units": [3], "text": "to be or not to be" })),
        (inside, "POST", asked("units"), json!({ "layer": 0, "units": [0, 1], "text": "to be or not to be" })),
        (inside, "POST", asked("units"), json!({ "layer": 9, "units": [0] })),
        (inside, "POST", asked("units"), json!({ "layer": 0, "units": [] })),
        (inside, "POST", asked("directions"), json!({ "positive": ["to be"], "negative": ["or not"], "write": 5 })),
        (inside, "POST", asked("directions"), json!({ "positive": ["to be"], "negative": [] })),
        (inside, "POST", asked("reasons"), json!({ "clean": "to be or not" })),
        (inside, "POST", asked("nothing"), json!({})),
        (inside, "POST", asked("walks"), json!({ "walk": "none" })),
        (inside, "GET", asked("model"), Value::Null),
        (inside, "GET", asked("traces"), Value::Null),
        (inside, "GET", asked("traces/ID/tensors"), Value::Null),
        (inside, "GET", asked("traces/ID/tensors/blocks.0.hook_resid_pre?at=0,1,*"), Value::Null),
        (inside, "GET", asked("traces/ID/tensors/blocks.0.hook_resid_pre?format=f32"), Value::Null),
        (inside, "GET", asked("traces/ID/predictions?k=3&position=2"), Value::Null),
        (inside, "GET", asked("traces/ID/lens?k=2"), Value::Null),
        (inside, "GET", asked("traces/ID/path?position=2"), Value::Null),
        (inside, "GET", asked("traces/ID/gradients?position=2"), Value::Null),
        (inside, "GET", asked("traces/ID/explain/logits?at=0,2,1"), Value::Null),
        (inside, "GET", asked("training"), Value::Null),
        (inside, "DELETE", asked("traces/ID"), Value::Null),
        (inside, "DELETE", asked("traces/ID"), Value::Null),
    ]
}

#[test]
fn a_model_asked_in_its_own_thread_answers_as_a_server_does() {
    let options = ServeOptions { allow_interventions: true, ..options() };
    let server = start(model(), options.clone(), None);
    let mut ask = local(&options);
    let mut id = String::new();
    let mut tried = BTreeSet::new();
    for (path, method, target, body) in requests() {
        tried.insert((path.to_string(), method.to_lowercase()));
        let target = target.replace("ID", &id);
        let body = if body.is_null() { vec![] } else { body.to_string().into_bytes() };
        let head = format!("{method} {target} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n");
        let sent = format!("{head}content-length: {}\r\n\r\n{}", body.len(), String::from_utf8_lossy(&body));
        let theirs = server.connect().ask(&sent);
        let (status, kind, ours) = ask(method, &target, &body);
        assert_eq!(status, theirs.status, "{target}: {}", theirs.text());
        assert_eq!(Some(&*kind), theirs.header("content-type"), "{target}");
        let alike = ours == theirs.body || settled(&ours) == settled(&theirs.body);
        assert!(alike, "{target}\n{}\n{}", String::from_utf8_lossy(&ours), theirs.text());
        if id.is_empty() && target.ends_with("/traces") {
            let first: Value = serde_json::from_slice(ours.split(|b| *b == b'\n').next().unwrap()).unwrap();
            id = first["id"].as_str().unwrap().into();
        }
    }
    // what a model without sockets has no answer to: the page, its descriptions, and counts of a server's work
    let elsewhere = ["/", "/docs", "/metrics", "/openapi.json"];
    let all: Value = serde_json::from_str(openapi::document(false)).unwrap();
    for (path, methods) in all["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            let is_tried = tried.contains(&(path.clone(), method.clone()));
            assert_ne!(is_tried, elsewhere.contains(&&**path), "{method} {path}");
        }
        if elsewhere.contains(&&**path) {
            assert_eq!(ask("GET", path, &[]).0, 404, "{path}");
        }
    }
}

#[test]
fn who_stops_listening_ends_the_work() {
    let mut local = LocalServer::new(model(), &options()).unwrap();
    let prompt = json!({ "prompt": "to be or not to be" }).to_string();
    let endless = json!({ "prompt": "to be", "max_tokens": 40, "stream": true, "seed": 1 }).to_string();
    for (target, body) in [("/inspect/v1/traces", &prompt), ("/v1/completions", &endless)] {
        let mut pieces = 0;
        local.answer(("POST", target), body.as_bytes(), &mut |told| {
            pieces += usize::from(matches!(told, Told::Piece(_)));
            pieces < 2
        });
        assert_eq!(pieces, 2, "{target}");
    }
}

/// What a page does whose model learns: the next checkpoint takes the place of the one before.
#[test]
fn another_checkpoint_is_followed_and_what_was_run_before_stays() {
    let mut local = LocalServer::new(model(), &options()).unwrap();
    let ask = |local: &mut LocalServer, method: &str, target: &str, body: &[u8]| {
        let mut bytes = vec![];
        local.answer((method, target), body, &mut |told| {
            if let Told::Piece(piece) = told {
                bytes.extend(piece);
            }
            true
        });
        let line = String::from_utf8(bytes).unwrap().lines().next().unwrap_or_default().to_string();
        serde_json::from_str::<Value>(&line).unwrap()
    };
    let run = ask(&mut local, "POST", "/inspect/v1/traces", br#"{"prompt": "to be"}"#);
    let target = format!("/inspect/v1/traces/{}/predictions", run["id"].as_str().unwrap());
    let before = ask(&mut local, "GET", &target, b"");
    assert!(before["top"].is_array(), "{before}");
    for training in [Some(ServedTraining { steps: 9, floor: Some(0.5), stop: Arc::default() }), None] {
        let trains = training.is_some();
        local.follow(model(), training).unwrap();
        let about = ask(&mut local, "GET", "/v1/models", b"");
        assert_eq!(about["data"][0]["limpid"]["trains"], trains);
        assert_eq!(ask(&mut local, "GET", &target, b""), before);
    }
}

//! `POST /inspect/v1/directions`: what the library finds, for those who may change runs.

use crate::common::{folder, options, serve};
use limpid::Lm;
use limpid::directions::DirectionQuestion;
use limpid_serve::ServeOptions;
use serde_json::{Value, json};

const DIRECTIONS: &str = "/inspect/v1/directions";

#[test]
fn directions_are_those_of_the_library() {
    let (server, lm) = (serve(ServeOptions { allow_interventions: true, ..options() }), Lm::open(folder()).unwrap());
    let texts =
        [["to be", "or not"], ["to be or", "not to be"], ["that is", "not to "], ["be", "no"], ["be to", "or no"]];
    let pairs: Vec<[Vec<u32>; 2]> = texts.map(|pair| pair.map(|text| lm.encode(text).unwrap())).to_vec();
    let side = |n: usize| texts.iter().map(|pair| pair[n]).collect::<Vec<_>>();
    let mut body = json!({ "positive": side(0), "negative": side(1), "write": 6 });
    let ask = |body: &Value| -> Vec<Value> {
        server.post(DIRECTIONS, body).text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let told = ask(&body).pop().unwrap();
    let found = lm.directions(&DirectionQuestion { held_out: 0.25, ..DirectionQuestion::new(pairs.clone()) }).unwrap();
    let written = |value: Value| -> Value { serde_json::from_str(&value.to_string()).unwrap() };
    assert_eq!((&told["pairs"], &told["held_out"]), (&3.into(), &2.into()));
    assert_eq!(told["layers"], written(json!(found.layers)));
    let best = found.best().unwrap();
    let effects = lm.direction_effects(&found, best, &pairs[0][1], 6).unwrap();
    assert_eq!((&told["best"], &told["effects"]), (&best.layer.into(), &written(json!(effects))));
    // pairs to test on in place of some of its own
    body["test_positive"] = json!(["to be"]);
    body["test_negative"] = json!(["or no"]);
    let told = ask(&body).pop().unwrap();
    assert_eq!((&told["pairs"], &told["held_out"]), (&5.into(), &1.into()));
    for (body, says) in [
        (json!({ "positive": ["to"], "negative": ["to"] }), "give the same activations"),
        (json!({ "positive": ["to"], "negative": ["or", "be"] }), "`negative` must be as many texts"),
        (json!({ "positive": [], "negative": [] }), "at least one pair of prompts"),
        (json!({ "positive": ["to"], "negative": ["or"], "method": "lda" }), "`method` must be mean, pca or probe"),
        (json!({ "positive": ["to"], "negative": ["or"], "site": "resid_pst" }), "did you mean"),
        (json!({ "positive": ["to"], "negative": [""] }), "the prompt has no tokens"),
        (json!({ "positive": ["to"], "negative": ["or"], "write": 1000 }), "`write` must be a whole number"),
    ] {
        let reply = server.post(DIRECTIONS, &body);
        assert!(reply.text().contains(says), "{body}: {}", reply.text());
    }
    server.lives();
    let closed = serve(options());
    let reply = closed.post(DIRECTIONS, &json!({ "positive": ["to"], "negative": ["or"] }));
    assert!(reply.status == 400 || reply.status == 403, "{}", reply.text());
    assert!(reply.text().contains("interventions"), "{}", reply.text());
}

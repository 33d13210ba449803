//! `POST /inspect/v1/reasons`: what the library finds, as it is found, as long as somebody reads it.

use crate::common::{folder, options, serve};
use limpid::Lm;
use limpid::reason::ReasonQuestion;
use serde_json::{Value, json};
use std::sync::Arc;

const REASONS: &str = "/inspect/v1/reasons";

#[test]
fn a_reason_is_that_of_the_library() {
    let (server, lm) = (serve(options()), Lm::open(folder()).unwrap());
    let ids = lm.encode("to be or not").unwrap();
    let token = |text| lm.tokenizer().unwrap().token(text).unwrap();
    let (row, answer, foil) = (ids.len() - 1, token("t"), token("o"));
    let question = ReasonQuestion { ids: ids.clone(), row, answer, foil, corrupt: None };
    let word = |id| lm.tokenizer().unwrap().piece(id).unwrap();
    let found = lm.reason(&question, &Arc::default(), &mut |_| true).unwrap().json(&word);
    for text in [json!("to be or not"), json!(ids)] {
        let told = server.post(REASONS, &json!({ "clean": text, "answer": "t", "foil": foil })).text();
        let events: Vec<Value> = told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!((&events[0]["event"], &events[0]["answer"]), (&"start".into(), &json!([answer, "t"])));
        assert_eq!(events[1]["event"], "guess", "gradients answer first");
        let mut done = events.last().unwrap().clone();
        assert_eq!(done.as_object_mut().unwrap().remove("event").unwrap(), "done");
        assert_eq!(done, serde_json::from_str::<Value>(&found.to_string()).unwrap());
        let parts = events.iter().filter(|event| event["event"] == "part").count();
        assert_eq!(parts, found["parts"].as_array().unwrap().len());
    }
}

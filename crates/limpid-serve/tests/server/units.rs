//! `POST /inspect/v1/units`: what the library finds, and what is refused.

use crate::common::{folder, options, serve};
use limpid::Lm;
use limpid::unit_places::UnitText;
use serde_json::{Value, json};
use std::sync::Arc;

const UNITS: &str = "/inspect/v1/units";

#[test]
fn units_are_those_of_the_library() {
    let (server, lm) = (serve(options()), Lm::open(folder()).unwrap());
    let given = "to be or not to be that is the to be";
    let ids = lm.tokenizer().unwrap().encode(given).unwrap();
    let places = lm.unit_places(&UnitText::new("a text", ids.clone()), &Arc::default()).unwrap();
    let piece = |id: &u32| lm.tokenizer().unwrap().piece(*id).unwrap();
    for units in [vec![3], vec![0, 5, 2]] {
        let reply = server.post(UNITS, &json!({ "layer": 1, "units": units, "text": given }));
        let events: Vec<Value> = reply.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(events.len(), 2);
        assert_eq!((&events[0]["event"], &events[0]["tokens"]), (&"start".into(), &ids.len().into()));
        let told = events[1]["units"].as_array().unwrap();
        assert_eq!(told.len(), units.len());
        for (unit, told) in units.iter().zip(told) {
            let page = places.page(1, *unit).unwrap();
            assert_eq!((&told["name"], &told["fires"]), (&page.name().into(), &page.fires.into()));
            for (own, told) in page.contexts.iter().zip(told["contexts"].as_array().unwrap()) {
                assert_eq!(told["tokens"], json!(own.tokens.iter().map(piece).collect::<Vec<_>>()));
                assert_eq!((&told["at"], &told["position"]), (&own.at.into(), &own.position.into()));
                assert_eq!(told["value"].as_f64().unwrap() as f32, own.value);
            }
        }
        assert_eq!(told[0]["raised"].is_array(), units.len() == 1, "what it writes is told of one unit");
    }
    for (body, status, says) in [
        (json!({ "layer": 1, "units": [], "text": given }), 400, "`units` must be a list of units below"),
        (json!({ "layer": 1, "units": [1 << 20], "text": given }), 400, "`units` must be a list of units below"),
        (json!({ "layer": 99, "units": [0], "text": given }), 400, "`layer` must be a whole number, at most"),
        (json!({ "layer": 0, "units": [0], "text": "" }), 400, "the prompt has no tokens"),
        (json!({ "layer": 0, "units": [0], "txt": "" }), 400, "`txt` is not a parameter here"),
    ] {
        let reply = server.post(UNITS, &body);
        assert!(reply.status == status && reply.text().contains(says), "{body}: {}", reply.text());
    }
    server.lives();
}

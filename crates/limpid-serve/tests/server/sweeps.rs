//! `POST /inspect/v1/sweeps`: the library's numbers, row by row, as long as somebody reads them.

use crate::common::{self, Client, PATIENCE, folder, options, serve};
use limpid::Lm;
use limpid::trace::Keep;
use limpid::trace::sweep::{SweepBy, SweepMetric, SweepQuestion, SweepReceiver, SweepSite};
use limpid_serve::ServeOptions;
use serde_json::{Value, json};

const SWEEPS: &str = "/inspect/v1/sweeps";

fn events(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// As it is after a way as text.
fn written(value: &Value) -> Value {
    serde_json::from_str(&value.to_string()).unwrap()
}

#[test]
fn rows_are_those_of_the_library() {
    let (server, lm) = (serve(options()), Lm::open(folder()).unwrap());
    let [clean, corrupt] = ["to be or not", "to be or nqt"].map(|text| lm.encode(text).unwrap());
    let token = |text| lm.tokenizer().unwrap().token(text).unwrap();
    let (answer, foil) = (token("t"), token("o"));
    let difference = SweepMetric::LogitDifference { answer, foil };
    for (site, by, metric, fields) in [
        (SweepSite::ResidPre, SweepBy::Head, difference, json!({ "answer": "t", "foil": foil })),
        (
            SweepSite::Z,
            SweepBy::Position,
            SweepMetric::Loss,
            json!({ "site": "z", "by": "position", "metric": "loss" }),
        ),
        (
            SweepSite::Pattern,
            SweepBy::Pair,
            SweepMetric::Divergence,
            json!({ "site": "pattern", "by": "pair", "metric": "kl" }),
        ),
    ] {
        let (clean, corrupt) = (clean.clone(), corrupt.clone());
        let question = SweepQuestion { clean, corrupt, site, by, metric, position: -1, to: None, confirmed: false };
        let mut rows = vec![];
        let sweep = lm
            .sweep(&question, &mut |row| {
                rows.push(written(&json!({
                    "event": "row", "layer": row.layer, "metric": row.metric, "recovered": row.recovered
                })));
                true
            })
            .unwrap();
        let mut body = fields.clone();
        body["clean"] = "to be or not".into();
        body["corrupt"] = json!(question.corrupt);
        let all = events(&server.post(SWEEPS, &body).text());
        let named: Vec<&Value> = all.iter().map(|event| &event["event"]).collect();
        assert_eq!(named, ["start", "metric", "row", "row", "done"], "{fields}");
        assert_eq!(all[2..4], rows, "{fields}");
        assert_eq!(all[0]["shape"], json!(sweep.metric.shape));
        assert_eq!(all[0]["token_layers"], question.cost(lm.config()).token_layers);
        assert_eq!(all[4]["peaks"][0]["index"], json!(sweep.peaks[0].index));
        assert_eq!(
            [&all[4]["clean"], &all[4]["corrupt"]],
            [&written(&json!(sweep.clean)), &written(&json!(sweep.corrupt))]
        );
    }
    // what is not said is the likeliest of each run; where that is the same token, it must be said
    let best = |text: &str| {
        let ids = lm.encode(text).unwrap();
        lm.trace_ids(&ids, Keep::Blocks { seen: 0 }).unwrap().predictions(ids.len() - 1..ids.len(), 1).unwrap()[0].top
            [0]
        .id
    };
    let (mut same, mut others) = (0, 0);
    for corrupt in ["to be or nqt", "to be or nob", "to be or no ", "to be or be ", "to be or not", "that is the "] {
        let all = events(&server.post(SWEEPS, &json!({ "clean": "to be or not", "corrupt": corrupt })).text());
        let [answer, foil] = ["to be or not", corrupt].map(best);
        if answer != foil {
            assert_eq!([&all[1]["answer"][0], &all[1]["foil"][0]], [&json!(answer), &json!(foil)], "{corrupt}");
            others += 1;
        } else {
            let said = all[1]["error"]["message"].as_str().unwrap();
            assert!(said.contains("`answer` must be the token to measure"), "{all:?}");
            same += 1;
        }
    }
    assert!(same > 0 && others > 0, "{same} {others}");
    // an estimate has as many numbers
    let asked =
        json!({ "clean": "to be or not", "corrupt": "to be or nqt", "answer": "t", "foil": "o", "estimate": true });
    let estimate = events(&server.post(SWEEPS, &asked).text());
    assert_eq!(estimate.len(), 5);
    assert_eq!(estimate[2]["recovered"].as_array().unwrap().len(), clean.len());
    // by the paths to one tensor alone; the steps have both texts, and give the number of their cell
    let to = SweepReceiver { tensor: "blocks.1.attn.hook_q".into(), heads: Some(vec![1]) };
    let question = SweepQuestion {
        clean: clean.clone(),
        corrupt: lm.encode("to be or nqt").unwrap(),
        site: SweepSite::Z,
        by: SweepBy::Head,
        metric: SweepMetric::Loss,
        position: -1,
        to: Some(to),
        confirmed: false,
    };
    let sweep = lm.sweep(&question, &mut |_| true).unwrap();
    let asked = json!({
        "clean": "to be or not", "corrupt": "to be or nqt", "site": "z", "metric": "loss", "to": "blocks.1.attn.hook_q",
        "to_head": [1],
    });
    let all = events(&server.post(SWEEPS, &asked).text());
    let told: Vec<f64> =
        all.iter().filter_map(|event| event["metric"].as_array()).flatten().filter_map(Value::as_f64).collect();
    let expected: Vec<f64> = sweep.metric.values.iter().map(|v| f64::from(*v)).collect();
    assert!(
        told.len() == expected.len() && told.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-6),
        "{told:?} {expected:?}"
    );
    let step = &all.last().unwrap()["peaks"][0]["interventions"][0];
    let inner = &step["from"]["do"][0]["from"];
    assert_eq!(
        [&step["patch"], &step["head"], &step["from"]["prompt"], &inner["prompt"]],
        [&json!("blocks.1.attn.hook_q"), &json!([1]), &json!("to be or nqt"), &json!("to be or not")]
    );
    for (field, value, said) in [
        ("to", json!("blocks.1.atn.hook_q"), "blocks.1.attn.hook_q"),
        ("to_head", json!([99]), "99"),
        ("estimate", json!(true), "all paths"),
        ("to", json!(null), "`to_head`"),
    ] {
        let mut wrong = asked.clone();
        wrong[field] = value;
        let text = server.post(SWEEPS, &wrong).text();
        assert!(text.contains("error") && text.contains(said), "{field}: {text}");
    }
    // nothing lies between a text and itself, which only its runs can tell
    let asked = json!({ "clean": "to be", "corrupt": "to be", "answer": "t" });
    let same = events(&server.post(SWEEPS, &asked).text());
    assert_eq!((&same[2]["event"], &same[2]["error"]["code"]), (&json!("error"), &json!("invalid_value")), "{same:?}");
    server.lives();
}

/// Where two texts' answers are a rounding apart there is no difference to take parts of; where they are a thousandth
/// apart there is.
#[test]
fn a_difference_within_rounding_is_refused() {
    let (server, lm) = (serve(options()), Lm::open(folder()).unwrap());
    let pieces: Vec<String> = (0..).map_while(|id| lm.tokenizer().unwrap().piece(id).ok()).collect();
    let texts: Vec<String> = pieces.iter().flat_map(|a| pieces.iter().map(move |b| format!("to {a}{b}"))).collect();
    let logits = |text: &String| {
        let all = lm.trace(text).unwrap().get("logits").unwrap();
        let row: Vec<f64> =
            all.values[all.values.len() - lm.config().vocab_size..].iter().map(|v| (*v).into()).collect();
        (lm.encode(text).unwrap(), row)
    };
    let runs: Vec<(Vec<u32>, Vec<f64>)> = texts.iter().map(logits).collect();
    let (mut refused, mut answered) = (0, 0);
    for (clean, clean_logits) in &runs {
        for (corrupt, corrupt_logits) in runs.iter().filter(|(ids, _)| ids.len() == clean.len()) {
            for (answer, foil) in
                (0..lm.config().vocab_size).flat_map(|foil| (0..foil).map(move |answer| (answer, foil)))
            {
                let apart = |row: &[f64]| row[answer] - row[foil];
                let difference = (apart(clean_logits) - apart(corrupt_logits)).abs();
                let (within, beyond) =
                    (difference > 0.0 && difference < 1e-6, difference > 1e-3 && difference < 1.2e-3);
                if !(within && refused < 4 || beyond && answered < 4) {
                    continue;
                }
                let body = json!({ "clean": clean, "corrupt": corrupt, "answer": answer, "foil": foil });
                let last = events(&server.post(SWEEPS, &body).text()).pop().unwrap();
                if within {
                    assert_eq!(
                        (&last["event"], &last["error"]["code"]),
                        (&json!("error"), &json!("invalid_value")),
                        "{last}"
                    );
                    assert!(
                        last["error"]["message"].as_str().unwrap().contains("no more apart than f32 rounds"),
                        "{last}"
                    );
                    refused += 1;
                } else {
                    assert_eq!(last["event"], "done", "{last}");
                    answered += 1;
                }
            }
        }
    }
    assert_eq!((refused, answered), (4, 4), "what is asked for is there");
    server.lives();
}

/// Four sweeps of minutes hold all places; when those who asked are gone, others are answered.
#[test]
fn a_sweep_that_nobody_reads_ends() {
    let server = serve(ServeOptions { look_time: PATIENCE * 100, inspect: Some(8 << 30), ..options() });
    let body = json!({
        "clean": vec![1; 1024], "corrupt": vec![2; 1024], "site": "z", "by": "position", "metric": "loss",
        "confirm": true,
    });
    let asked = common::post(SWEEPS, &body);
    let readers: Vec<Client> = (0..4)
        .map(|_| {
            let mut client = server.connect();
            client.send(&asked);
            assert_eq!(client.head().unwrap().0, 200);
            let start = client.chunk().unwrap();
            assert!(String::from_utf8_lossy(&start).contains("\"token_layers\""));
            client
        })
        .collect();
    drop(readers);
    assert_eq!(server.get("/inspect/v1/traces").status, 200);
    server.until("places that are free again", |server| server.metric("limpid_looking") == 0.0);
    server.lives();
}

#[test]
fn gradients_are_those_of_the_estimate() {
    let (server, lm) = (serve(options()), Lm::open(folder()).unwrap());
    let lines = server.post("/inspect/v1/traces", &json!({ "prompt": "to be or not" })).text();
    let id = events(&lines)[0]["id"].as_str().unwrap().to_string();
    let token = |text| lm.tokenizer().unwrap().token(text).unwrap();
    let (answer, foil) = (token("t"), token("o"));
    let asked = format!("/inspect/v1/traces/{id}/gradients?position=5&target={answer}&foil={foil}");
    let found: Value = serde_json::from_str(&server.get(&asked).text()).unwrap();
    let rows =
        |key: &str| found[key].as_array().unwrap().iter().map(|row| row.as_array().unwrap().len()).collect::<Vec<_>>();
    assert_eq!((rows("stream"), rows("heads")), (vec![12; 3], vec![lm.config().n_head; 2]));
    // what comes later moves nothing, and what stands there does
    let at = |n: usize| found["stream"][2][n].as_f64().unwrap();
    assert!(at(5) > 0.0 && (0..12).filter(|n| *n != 5).all(|n| at(n) == 0.0), "{found}");
    // a difference has the gradient of one log-probability less that of the other
    let ids = lm.encode("to be or not").unwrap();
    let names = ["blocks.0.hook_resid_pre".to_string()];
    let of = |metric| lm.metric_gradients(&ids, (metric, 5), &names).unwrap().remove(0).values;
    let [a, b] = [answer, foil].map(|answer| of(SweepMetric::LogProbability { answer }));
    let both = of(SweepMetric::LogitDifference { answer, foil });
    for ((a, b), both) in a.iter().zip(&b).zip(&both) {
        assert!((a - b - both).abs() <= 1e-6 + 1e-4 * both.abs(), "{a} - {b} is not {both}");
    }
    let size = |at: usize| both[at * 32..(at + 1) * 32].iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
    assert!((found["stream"][0][3].as_f64().unwrap() - size(3)).abs() < 1e-9);
}

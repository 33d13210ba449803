//! The frames of a run through the server, also while it trains on, and in the saved page.

use crate::common::{folder, how, options, serve, start, train};
use limpid::checkpoint::Checkpoint;
use limpid::config::Config;
use limpid::timelapse::{FILE, Timelapse};
use limpid::train::{Recipe, RunOptions};
use limpid::{Lm, Training};
use limpid_glass::Subject;
use limpid_serve::{ServedModel, saved};
use serde_json::{Value, json};
use std::fs;

const AT: &str = "/inspect/v1/timelapse";

#[test]
fn a_page_reads_frames_as_they_come() {
    let none = serve(options()).get(AT);
    assert_eq!(none.code(), "not_for_this_model", "{}", none.text());
    assert!(none.text().contains("--probe") && !none.text().contains(folder().to_str().unwrap()));
    // a run with frames after 0, 1, 2, 3 and 4 steps, of which the last has not been written yet
    let run = std::env::temp_dir().join(format!("limpid-serve-frames-{}", std::process::id()));
    let _ = fs::remove_dir_all(&run);
    let nano = Config::preset("nano").unwrap();
    let config = Config { context_length: 48, d_model: 16, n_head: 2, d_ff: 32, n_layer: 2, ..nano };
    let recipe = Recipe { steps: 4, batch_size: 2, warmup_steps: 0, ..Recipe::preset("nano").unwrap() };
    let watched = RunOptions { probe: true, probe_every: 1, preflight: false, ..RunOptions::default() };
    let training = Training::new(config, recipe).options(watched).text("to be or not to be. ".repeat(40));
    training.tokenizer("char").probe_text("or not to be").folder(&run).run().unwrap();
    let mut file = Timelapse::open(&run).unwrap();
    let whole = fs::read(run.join(FILE)).unwrap();
    fs::write(run.join(FILE), &whole[..whole.len() - 1]).unwrap();
    let open = || ServedModel::new(Checkpoint::open(&run).unwrap(), &how()).unwrap();
    let server = start(open(), options(), None);
    let told = server.get(AT).json();
    assert_eq!((&told["steps"], &told["run_steps"]), (&json!([0, 1, 2, 3]), &json!(4)));
    assert_eq!(told["frames"].as_array().unwrap().len(), 4);
    assert_eq!(told["tokens"][0], json!([Lm::open(&run).unwrap().encode("o").unwrap()[0], "o"]));
    fs::write(run.join(FILE), &whole).unwrap();
    let more = server.get(&format!("{AT}?from=4")).json();
    assert_eq!((&more["from"], &more["frames"][0]["step"]), (&json!(4), &json!(4)));
    // every number as it stands in the file
    let frame = file.frame(4).unwrap();
    let values = &more["frames"][0]["values"];
    let losses = file.numbers(&frame, "loss").unwrap();
    for (told, own) in values["loss"].as_array().unwrap().iter().zip(losses) {
        assert_eq!(told.as_f64().map(|v| v as f32), Some(*own).filter(|own| !own.is_nan()));
    }
    assert_eq!(values["scores"].as_array().unwrap().len(), 2 * 2 * 8);
    assert!(values["patterns"].is_null(), "pictures are asked for one by one");
    let one = server.get(&format!("{AT}?step=4")).json();
    assert_eq!(one["frames"][0]["values"]["scores"], values["scores"]);
    assert_eq!(one["frames"][0]["values"]["patterns"].as_str().unwrap().len(), 4 * 32 * 32 / 3 * 4 + 4);
    for (query, code) in [
        ("step=7", "invalid_value"),
        ("step=x", "invalid_value"),
        ("step=1&from=0", "invalid_value"),
        ("from=-1", "invalid_value"),
        ("count=1001", "invalid_value"),
        ("frm=1", "unknown_parameter"),
        ("from=1&from=2", "invalid_value"),
    ] {
        assert_eq!(server.get(&format!("{AT}?{query}")).code(), code, "{query}");
    }
    assert_eq!(server.get(&format!("{AT}?from=99")).json()["frames"], json!([]));
    // damaged in its middle
    let mut damaged = whole.clone();
    let second = whole.windows(4).enumerate().filter(|(_, bytes)| *bytes == b"FRAM").nth(1).unwrap().0;
    damaged[second + 40] ^= 1;
    fs::write(run.join(FILE), &damaged).unwrap();
    let broken = server.get(AT);
    assert_eq!((broken.status, broken.code()), (500, "engine_error".into()), "{}", broken.text()); // the log says why
    assert_eq!(server.get(&format!("{AT}?from=2")).status, 200);
    fs::write(run.join(FILE), &whole).unwrap();
    // the saved page has them where there is room
    let subject = Subject::from(&open());
    let body: Value = json!({ "prompt": "to be" });
    let large = saved::page(&subject, (&body, None), 4 << 20).unwrap();
    let subject = Subject::from(&ServedModel::new(Checkpoint::open(&train("plain", 1)).unwrap(), &how()).unwrap());
    let plain = saved::page(&subject, (&body, None), 4 << 20).unwrap();
    assert_eq!(index(&large.html).iter().filter(|key| key.starts_with("timelapse")).count(), 6);
    assert_eq!(index(&plain.html).iter().filter(|key| key.starts_with("timelapse")).count(), 0);
    fs::remove_dir_all(run).unwrap();
}

/// The names of the answers in a saved page.
fn index(html: &str) -> Vec<String> {
    use base64::Engine as _;
    let start = html.find("id=\"saved\">").unwrap() + "id=\"saved\">".len();
    let end = start + html[start..].find("</script>").unwrap();
    let archive = base64::prelude::BASE64_STANDARD.decode(&html[start..end]).unwrap();
    let length = u32::from_le_bytes(archive[..4].try_into().unwrap()) as usize;
    let index: Value = serde_json::from_slice(&archive[4..4 + length]).unwrap();
    index.as_object().unwrap().keys().cloned().collect()
}

//! `train --probe` and `timelapse`: the frames of a run, in the terminal and as JSON.

use crate::common::Folder;
use serde_json::Value;
use std::fs;

const RUN: &str = "train --data text.txt --tokenizer char --n-layer 2 --d-model 16 --n-head 2 --context-length 40 \
                   --batch-size 2 --steps 8 --sample 0 --threads 1 --out run";

#[test]
fn frames_are_shown_and_told() {
    let f = Folder::new("timelapse");
    f.file("text.txt", "to be or not to be, that is the question.\n".repeat(60));
    f.fails(2, &format!("{RUN} --probe-text x"), &["--probe-text", "give --probe too"]);
    f.fails(1, &format!("{RUN} --probe --probe-text '{}'", "to be ".repeat(9)), &["54 tokens", "40"]);
    f.fails(2, "timelapse", &["limpid train --probe"]);
    let planned = RUN.replacen("train", "plan", 1);
    assert!(f.ok(&format!("{planned} --probe --probe-every 3")).contains("6 frames (--probe)"));
    assert!(f.json(&format!("{planned} --json"))["timelapse_frames"].is_null());
    let (_, said) = f.both(&format!("{RUN} --probe --probe-every 3 --probe-text 'to be or not'"));
    assert!(said.contains("limpid timelapse run") && said.contains("time-lapse: 6 frames"), "{said}");
    let shown = f.ok("timelapse run");
    let told = ["6 frames, after 0 to 8 steps", "to be or not", "h0.0", "h1.1", "over the frames", "after step"];
    assert!(told.iter().all(|word| shown.contains(word)), "{shown}");
    // the first step at which a score that only grows over the bound is above it
    let distance = f.ok("timelapse run --score distance --above 0.5");
    let row = distance.lines().find(|line| line.starts_with("h1.1")).unwrap();
    assert!(row.contains("distance") && row.contains("█"), "{row}");
    let one = f.ok("timelapse run --step 5");
    assert!(one.starts_with("after step 3,") && one.contains("repeated") && one.contains("attn_out"), "{one}");
    let json = f.json("timelapse run --json");
    let steps: Vec<u64> = json["steps"].as_array().unwrap().iter().filter_map(Value::as_u64).collect();
    assert_eq!(steps, [0, 1, 2, 3, 6, 8]);
    assert_eq!(json["frames"].as_array().unwrap().len(), steps.len());
    assert!(f.json("timelapse run --step 8 --json")["frames"][0]["values"]["patterns"].is_string());
    assert_eq!(json["run_steps"], 8);
    // the last frame has not come yet, and the one before is being written
    let whole = f.bytes("run/timelapse.lpt");
    let last = whole.windows(4).rposition(|bytes| bytes == b"FRAM").unwrap();
    f.file("run/timelapse.lpt", &whole[..last + 9]);
    let (shown, said) = f.both("timelapse run");
    assert!(shown.contains("5 frames, after 0 to 6 of 8 steps") && said.contains("the last 9 bytes"), "{shown}{said}");
    f.file("run/timelapse.lpt", &whole);
    f.fails(1, "timelapse .", &["timelapse.lpt", "--probe"]);
    f.fails(2, "timelapse run --score sharpness", &["sharpness", "repeated"]);
    // beside a model with other tokens its numbers would be other words
    f.file("other.txt", "Not that question! Is it to be?\n".repeat(60));
    f.ok(&RUN.replace("text.txt", "other.txt").replace("--out run", "--out other"));
    fs::copy(f.0.join("run/timelapse.lpt"), f.0.join("other/timelapse.lpt")).unwrap();
    f.fails(1, "timelapse other", &["recorded of a model with another tokenizer"]);
    // settings go along when a run is resumed, and may not change on the way
    f.fails(1, "train --resume run --probe-text other", &["probe_text"]);
    let bert = "train --preset bert-base-uncased --data text.txt --steps 1 --probe --out bert";
    f.refuses(bert, &["masked tokens"]);
}

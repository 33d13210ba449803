//! `limpid serve` as a user meets it: started, asked over a socket, stopped by a signal, refused with a reason.
#![cfg(all(unix, feature = "serve"))]

use crate::common::serving::{PATIENCE, Serving};
use crate::common::{Folder, text};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

const TINY: &str = "--tokenizer char --d-model 16 --n-head 2 --n-layer 2 --context-length 32 --batch-size 4 \
                    --warmup-steps 2 --schedule constant --sample 0 --threads 1";

fn train(folder: &Folder, rest: &str) {
    let data = folder.file("text.txt", "to be or not to be, that is the question. ".repeat(40));
    folder.ok(&format!("train --data {data} --out m {TINY} {rest}"));
}

#[test]
fn a_model_is_served_until_it_is_told_to_stop() {
    let f = Folder::new("serve");
    train(&f, "--steps 20");
    let served = Serving::start(&f, "--served-name tiny");
    let line = format!("tiny, step 20 is served at http://{}; 8.0 MB of KV memory hold ", served.address);
    assert!(served.first.starts_with(&line) && served.first.ends_with(" of 32 tokens\n"), "{}", served.first);
    assert_eq!(served.ask("GET /health", ""), (200, json!({ "status": "ok" })));
    assert_eq!(served.ask("GET /v1/models", "").1["data"][0]["id"], "tiny");
    // the answer is what the verb `generate` writes
    let answer =
        served.complete(&json!({ "prompt": "to be", "max_tokens": 12, "temperature": 0.7, "seed": 5, "n": 2 }));
    let written = f.json(
        "generate --model m --prompt 'to be' --max-tokens 12 --temperature 0.7 --seed 5 --num-samples 2 --overflow \
         stop --json",
    );
    for choice in 0..2 {
        assert_eq!(answer["choices"][choice]["text"], written["samples"][choice]["text"]);
    }
    for signal in ["-TERM", "-INT"] {
        let again = Serving::start(&f, "--json --no-ui");
        assert_eq!(again.ask("GET /", "").0, 404);
        again.signal(signal);
        assert_eq!(again.end(), (Some(0), String::new()), "{signal}");
    }
    served.signal("-TERM");
    assert_eq!(served.end().0, Some(0));
}

/// A cache of bf16 takes the memory that it may, not that of f32.
#[test]
fn memory_for_keys_and_values_is_kept_to() {
    let f = Folder::new("serve-memory");
    train(&f, "--steps 2");
    for (flags, most) in [("--kv-memory 8192 --kv-cache-dtype bf16", "8.2 kB"), ("--kv-memory 16384", "16.4 kB")] {
        let served = Serving::run(f.command(&format!("serve --model m --port 0 --threads 1 {flags}")));
        let says = format!("; {most} of KV memory hold 1 sequence of 32 tokens\n");
        assert!(served.first.ends_with(&says), "{flags}: {}", served.first);
    }
}

/// A stop says for what it waits, a second one what it cut.
#[test]
#[ignore = "gate"]
fn a_stop_says_what_it_waits_for() {
    let f = Folder::new("serve-stop");
    train(&f, "--steps 2");
    let mut served = Serving::start(&f, "--drain 600");
    let mut client = TcpStream::connect(&served.address).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    // a request whose body does not come: it is being answered when the server asks for it
    let head =
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9";
    write!(client, "{head}\r\nExpect: 100-continue\r\n\r\n").unwrap();
    let mut go = [0; 12];
    client.read_exact(&mut go).unwrap();
    assert_eq!(&go, b"HTTP/1.1 100");
    served.signal("-INT");
    let mut said = String::new();
    while !said.ends_with("at once\n") {
        assert_ne!(served.said.read_line(&mut said).unwrap(), 0, "{said}");
    }
    assert_eq!(said, "\nwaiting up to 600 s for 1 answer; once more to stop at once\n");
    served.signal("-INT");
    assert_eq!(served.end(), (Some(0), "stopped: 1 answer cut\n".into()));
}

#[test]
fn keys_come_from_flags_files_and_the_environment() {
    let f = Folder::new("serve-keys");
    train(&f, "--steps 2");
    f.file("keys", "one\n\n  two \n");
    let flags = "serve --model m --port 0 --host 0.0.0.0 --kv-memory 1M";
    let mut command = f.command(&format!("{flags} --api-key-file keys --allow-host box.example"));
    command.env("LIMPID_API_KEY", "three");
    let served = Serving::run(command);
    for (key, status) in [("", 401), ("four", 401), ("one", 200), ("two", 200), ("three", 200)] {
        let head = format!("GET /v1/models HTTP/1.1\r\nAuthorization: Bearer {key}\r\nX:");
        assert_eq!(served.ask(&head, "").0, status, "{key}");
    }
    assert!(!served.first.contains("one"), "{}", served.first);
}

/// Each is one line, and the port is never opened.
#[test]
#[ignore = "gate"]
fn what_cannot_be_served_is_said_in_a_line() {
    let f = Folder::new("serve-faults");
    train(&f, "--steps 2");
    f.file("empty", "\n");
    f.file("bad.jinja", "{% for message in messages %}");
    f.file("fails.jinja", "{{ raise_exception('never') }}");
    f.file("endless.jinja", "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    f.ok("train --preset formulated-bert --steps 1 --data text.txt --d-model 16 --n-head 2 --n-layer 1 \
          --context-length 16 --batch-size 2 --out masked --sample 0");
    std::fs::create_dir_all(f.0.join("bare")).unwrap();
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(f.0.join("m").join(name), f.0.join("bare").join(name)).unwrap();
    }
    std::fs::create_dir_all(f.0.join("broken")).unwrap();
    std::fs::copy(f.0.join("m/config.json"), f.0.join("broken/config.json")).unwrap();
    f.file("broken/model.safetensors", &f.bytes("m/model.safetensors")[..500]);
    let cases: [(i32, &str, &[&str]); 19] = [
        (1, "--model nowhere", &["nowhere"]),
        (1, "--model broken", &["broken/model.safetensors"]),
        (1, "--model bare", &["no tokenizer", "tokenizer.json"]),
        (1, "--model masked", &["masked tokens", "causal"]),
        (1, &format!("--model m --port {port}"), &["--port 0", &port.to_string()]),
        (2, "--model m --host 0.0.0.0", &["the host 0.0.0.0", "--api-key-file", "--no-auth"]),
        (2, "--model m --host ::", &["--api-key-file"]),
        (1, "--model m --host no.such.host.invalid", &["the host no.such.host.invalid", "(--host)"]),
        (2, "--model m --port 70000", &["--port"]),
        (2, "--model m --api-key 'a b'", &["key 1"]),
        (1, "--model m --api-key-file empty", &["empty", "one a line"]),
        (1, "--model m --api-key-file nowhere", &["nowhere"]),
        (1, "--model m --chat-template bad.jinja", &["chat template"]),
        (1, "--model m --chat-template fails.jinja", &["chat template", "never", "(--chat-template)"]),
        (1, "--model m --chat-template endless.jinja", &["chat template", "does not end"]),
        (1, "--model m --ui-dir nowhere", &["nowhere"]),
        (2, "--model m --kv-memory lots", &["lots"]),
        // two layers, keys and values, 16 columns, 64 positions
        (2, "--model m --kv-memory 1k", &["--kv-memory 1.0 kB is too little", "needs 16.4 kB"]),
        (2, "--model m --kv-memory 1k --kv-cache-dtype bf16", &["needs 8.2 kB"]),
    ];
    for (code, flags, said) in cases {
        let any_port = if flags.contains("--port") { "" } else { "--port 0" };
        let out = f.run(&format!("serve {any_port} --threads 1 {flags}"));
        let message = text(&out.stderr);
        assert_eq!(out.status.code(), Some(code), "{flags}: {message}");
        for part in said {
            assert!(message.contains(part), "{flags}: `{part}` is not in: {message}");
        }
        assert!(!message.contains("http://"), "{message}");
        assert!(code == 2 || message.lines().count() == 1, "{message}");
    }
}

#[test]
#[ignore = "gate"]
fn a_run_that_goes_on_is_followed() {
    let f = Folder::new("serve-follow");
    train(&f, "--steps 20");
    let served = Serving::start(&f, "--follow");
    let step = || served.ask("GET /v1/models", "").1["data"][0]["limpid"]["step"].as_u64().unwrap();
    assert_eq!(step(), 20);
    f.ok("train --resume m --steps 40 --sample 0 --threads 1");
    let began = Instant::now();
    while step() != 40 {
        assert!(began.elapsed() < PATIENCE, "it is at {}", step());
        std::thread::sleep(Duration::from_millis(50));
    }
    let answer = served.complete(&json!({ "prompt": "to be", "max_tokens": 5, "temperature": 0 }));
    assert!(answer["system_fingerprint"].as_str().unwrap().ends_with("-s40"), "{answer}");
    let written = f.json("generate --model m --prompt 'to be' --max-tokens 5 --temperature 0 --json");
    assert_eq!(answer["choices"][0]["text"], written["samples"][0]["text"]);
    served.signal("-TERM");
    let (code, said) = served.end();
    assert_eq!(code, Some(0));
    assert!(said.contains("now serving the checkpoint of step 40 (limpid-"), "{said}");
}

/// `train --serve` answers while the run trains, from its state before the first step on; training writes the same
/// bytes, and Ctrl-C ends both.
#[test]
#[ignore = "gate"]
fn a_run_serves_its_page_while_it_trains() {
    let f = Folder::new("train-serve");
    f.file("text.txt", "to be or not to be, that is the question.\n".repeat(60));
    let run = |out: &str, steps: usize, rest: &str| {
        let sizes = "--n-layer 2 --d-model 16 --n-head 2 --context-length 40 --batch-size 2 --threads 1 --sample 0 \
                     --schedule constant";
        format!(
            "train --data text.txt --tokenizer char {sizes} --probe --probe-every 50 --steps {steps} --out {out} \
             {rest}"
        )
    };
    let live = Serving::run(f.command(&run("live", 1_000_000, "--save-every 50 --serve 127.0.0.1:0")));
    let frames = || live.ask("GET /inspect/v1/timelapse?count=1", "").1["steps"].as_array().unwrap().len();
    let step = || live.ask("GET /v1/models", "").1["data"][0]["limpid"]["step"].as_u64().unwrap();
    assert_eq!(live.complete(&json!({ "prompt": "to be", "max_tokens": 5 }))["usage"]["completion_tokens"], 5);
    let (begun, first, began) = (frames(), step(), Instant::now());
    while frames() <= begun || step() <= first {
        assert!(began.elapsed() < PATIENCE, "{} frames, step {}", frames(), step());
        std::thread::sleep(Duration::from_millis(50));
    }
    // a port that is taken is an error before anything is written
    let taken = format!("--serve {}", live.address);
    f.fails(1, &run("taken", 5, &taken), &["--serve", "cannot be opened"]);
    assert!(!f.0.join("taken").exists());
    // its log, from its beginning or from where an answer ended; a place beyond its end is its beginning
    let log = |from: u64| live.ask(&format!("GET /inspect/v1/training?from={from}"), "").1;
    let whole = log(0);
    assert_eq!((&whole["from"], &whole["steps"], &whole["timelapse"]), (&json!(0), &json!(1_000_000), &json!(true)));
    let rows = whole["rows"].as_array().unwrap();
    let written = fs::read_to_string(f.0.join("live/metrics.jsonl")).unwrap();
    for (row, line) in rows.iter().zip(written.lines()) {
        let line: Value = serde_json::from_str(line).unwrap();
        for key in ["step", "train_loss", "val_loss", "tokens", "seconds"] {
            assert_eq!(row.get(key), line.get(key), "{key}");
        }
    }
    let next = whole["next"].as_u64().unwrap();
    assert_eq!(written[..next as usize].lines().count(), rows.len());
    let rest = log(next);
    assert_eq!(rest["from"], next);
    assert_eq!(log(1 << 40)["from"], 0);
    // it ends where its page says so, and at nothing else
    for (body, status) in
        [("{}", 400), (r#"{"stop":false}"#, 400), (r#"{"stop":true,"more":1}"#, 400), (r#"{"stop":true}"#, 200)]
    {
        assert_eq!(live.ask("POST /inspect/v1/training", body).0, status, "{body}");
    }
    assert_eq!(live.end().0, Some(130));
    // a server that trains nothing stops nothing
    let idle = Serving::run(f.command("serve --model live --port 0"));
    assert_eq!(idle.ask("POST /inspect/v1/training", r#"{"stop":true}"#).0, 400);
    assert_eq!(idle.ask("GET /inspect/v1/training", "").1["steps"], Value::Null);
    drop(idle);
    // the same bytes as without a page; a run is resumed with one
    f.ok(&run("plain", 60, ""));
    let (_, said) = f.both(&run("served", 60, "--serve 127.0.0.1:0"));
    assert!(said.contains("watch the training at http://127.0.0.1:"), "{said}");
    for file in ["model.safetensors", "timelapse.lpt"] {
        assert!(
            fs::read(f.0.join("plain").join(file)).unwrap() == fs::read(f.0.join("served").join(file)).unwrap(),
            "{file}"
        );
    }
    f.ok("train --resume served --steps 80 --sample 0 --threads 1 --serve=127.0.0.1:0");
    f.fails(2, &run("no", 5, "--serve localhost"), &["127.0.0.1:8080", "not localhost"]);
    f.fails(2, &run("no", 5, "--serve 0.0.0.0:0"), &["other machines", "limpid serve RUN --follow"]);
    f.fails(2, &run("no", 5, "--serve --lr-find"), &["--lr-find"]);
    f.fails(
        1,
        "train --preset bert-base-uncased --data text.txt --steps 1 --out bert --serve",
        &["--serve", "masked tokens"],
    );
}

/// Four clients ask without a pause while a run goes on: every request is answered, by one checkpoint, which makes it
/// again.
#[test]
#[ignore = "gate"]
fn answers_replay_on_the_checkpoint_that_gave_them() {
    /// Ends the clients, also when the test fails.
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Relaxed);
        }
    }
    let f = Folder::new("serve-live");
    let keep = |step: usize| {
        fs::create_dir(f.0.join(format!("m{step}"))).unwrap();
        for file in ["config.json", "limpid.toml", "model.safetensors", "tokenizer.json"] {
            fs::copy(f.0.join("m").join(file), f.0.join(format!("m{step}")).join(file)).unwrap();
        }
    };
    train(&f, "--steps 5");
    keep(5);
    let served = Serving::start(&f, "--follow");
    let (stop, answers) = (AtomicBool::new(false), Mutex::new(Vec::<Value>::new()));
    let of = |step: usize| {
        let is_of = |answer: &&Value| answer["system_fingerprint"].as_str().unwrap().ends_with(&format!("-s{step}"));
        answers.lock().unwrap().iter().filter(is_of).cloned().collect::<Vec<_>>()
    };
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        for client in 0..4 {
            let (served, stop, answers) = (&served, &stop, &answers);
            scope.spawn(move || {
                for seed in (client..).step_by(4).take_while(|_| !stop.load(Relaxed)) {
                    let ask = json!({ "prompt": "to be", "max_tokens": 1 + seed % 9, "seed": seed,
                        "limpid": { "receipt": true } });
                    answers.lock().unwrap().push(served.complete(&ask));
                }
            });
        }
        for step in [5, 10, 15, 20] {
            if step > 5 {
                f.ok(&format!("train --resume m --steps {step} --sample 0 --threads 1"));
                keep(step);
            }
            let began = Instant::now();
            while of(step).len() < 8 {
                assert!(began.elapsed() < PATIENCE, "no answer of step {step}");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    });
    let mut known = 0;
    for step in [5, 10, 15, 20] {
        let mine = of(step);
        known += mine.len();
        for answer in [&mine[0], &mine[mine.len() - 1]] {
            f.file("answer.json", answer.to_string());
            f.ok(&format!("replay answer.json --model m{step}"));
        }
    }
    assert_eq!(known, answers.lock().unwrap().len());
}

/// A change that a request asks for is made only where the server's owner allows it; its receipt is replayed, and one
/// that was altered is found out.
#[test]
fn interventions_are_allowed_served_and_replayed() {
    let f = Folder::new("serve-interventions");
    train(&f, "--steps 20");
    let asked = |limpid: Value| json!({ "prompt": "to be", "max_tokens": 12, "seed": 5, "limpid": limpid });
    let steps = json!([{ "steer": "blocks.0.hook_resid_post", "by": 9, "add": { "difference": ["to", "be"] } }]);
    let changed = asked(json!({ "interventions": steps, "receipt": true }));
    let closed = Serving::start(&f, "");
    let (status, said) = closed.ask("POST /v1/completions", &changed.to_string());
    assert!(status == 403 && said["error"]["message"].as_str().unwrap().contains("--allow-interventions"), "{said}");
    let served = Serving::start(&f, "--allow-interventions");
    let plain = served.complete(&asked(json!({ "receipt": true })));
    assert_eq!(plain["choices"], closed.complete(&asked(json!({})))["choices"]);
    let answer = served.complete(&changed);
    assert_ne!(answer["choices"], plain["choices"]);
    for (name, answer) in [("plain", &plain), ("changed", &answer)] {
        f.file(&format!("{name}.json"), answer.to_string());
        assert_eq!(f.ok(&format!("replay {name}.json --model m")), "the same 12 tokens\n");
    }
    let mut altered = answer.clone();
    altered["limpid"]["receipt"]["request"]["interventions"][0][0]["by"] = (-9).into();
    f.file("altered.json", altered.to_string());
    f.fails(1, "replay altered.json --model m", &["of the answer differs", "either the receipt was changed, or"]);
    altered["limpid"]["receipt"]["request"].as_object_mut().unwrap().remove("interventions");
    f.file("altered.json", altered.to_string());
    f.fails(1, "replay altered.json --model m", &["of the answer differs"]);
    altered["limpid"]["receipt"]["request"]["interventions"] = json!([[{ "ablate": "blocks.0.hook_resid_pst" }]]);
    f.file("altered.json", altered.to_string());
    f.fails(1, "replay altered.json --model m", &["step 1", "blocks.0.hook_resid_post"]);
    f.fails(2, "serve --model m --port 0 --allow-interventions --no-inspect", &["--no-inspect"]);
}

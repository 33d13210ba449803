//! Clients of `limpid serve`: docs/serve.md block by block, the clients of reference/clients, and lm-eval. A program
//! that is not there is left out, and the test says so; `PYTHON` names a Python that has the packages, and
//! `NODE_FOLDER` a folder that has those of npm.
#![cfg(all(unix, feature = "serve"))]

use crate::common::{Folder, blocks_of, root, text};
use limpid::Lm;
use limpid::generate::{Options, Sampler};
use serde_json::{Value, json};
use std::process::{Child, Command, Stdio};

/// A running server, which ends with the test.
struct Running {
    child: Child,
    url: String,
}

impl Running {
    /// `limpid serve ..` as it is written, but for its port.
    fn start(f: &Folder, command: &str) -> Running {
        let arguments = command.strip_prefix("limpid ").unwrap();
        let mut command = f.command(&format!("{arguments} --port 0 --json"));
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let said = serde_json::Deserializer::from_reader(child.stdout.take().unwrap());
        let said = said.into_iter::<Value>().next().unwrap().unwrap();
        Running { child, url: said["url"].as_str().unwrap().trim_end_matches('/').into() }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a program, which must succeed, and gives what it says.
#[track_caller]
fn run(command: &mut Command) -> String {
    let out = command.stdin(Stdio::null()).output().unwrap();
    let seen = text(&out.stdout) + &text(&out.stderr);
    println!("{command:?}\n{seen}");
    assert!(out.status.success(), "{command:?}: {}\n{seen}", out.status);
    seen
}

/// A Python that has a package, or a word that there is none.
fn python(package: &str) -> Option<String> {
    let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".into());
    let import = Command::new(&python).args(["-c", &format!("import {package}")]).stderr(Stdio::null()).status();
    let found = import.is_ok_and(|status| status.success());
    if !found {
        println!("left out: {python} has no {package}; PYTHON names another");
    }
    found.then_some(python)
}

fn train(f: &Folder, command: &str) {
    run(f.shell(command).env("LIMPID_STEPS", "30").env("LIMPID_SAMPLE", "0"));
}

#[test]
fn the_guide_runs() {
    let f = Folder::new("clients-guide");
    let blocks = blocks_of("docs/serve.md", None);
    let lines = |(kind, block): &(String, String)| match kind.as_str() {
        "sh" => block.lines().map(String::from).collect(),
        _ => vec![],
    };
    let installed = |program: &str| Command::new(program).arg("--version").output().is_ok();
    let (mut server, mut asked, curl) = (None, 0, installed("curl"));
    for line in blocks.iter().flat_map(lines) {
        match line.split(' ').next().unwrap() {
            "limpid" if line.starts_with("limpid serve ") => server = Some(Running::start(&f, &line)),
            "limpid" => train(&f, &line),
            "curl" if curl => {
                let line = line.replace("http://127.0.0.1:8080", &server.as_ref().unwrap().url);
                let seen = run(Command::new("sh").args(["-euc", &line.replacen("curl ", "curl --fail-with-body ", 1)]));
                let last = seen.trim_end().lines().last().unwrap().to_string();
                let metrics = line.ends_with("/metrics") && seen.contains("# TYPE limpid_");
                assert!(metrics || last == "data: [DONE]" || serde_json::from_str::<Value>(&last).is_ok(), "{seen}");
                asked += 1;
            }
            "hey" if installed("hey") => {
                let line = line.replace("http://127.0.0.1:8080", &server.as_ref().unwrap().url);
                let seen = run(Command::new("sh").args(["-euc", &line]));
                assert!(seen.contains("[200]\t40 responses"), "{seen}");
            }
            program @ ("curl" | "hey") => println!("left out: there is no {program}"),
            other => panic!("{other}"),
        }
    }
    assert!(asked >= 4 || !curl);
    let server = server.unwrap();
    let (_, program) = blocks.iter().find(|(kind, _)| kind == "python").unwrap();
    if let Some(python) = python("openai") {
        let program = program.replace("http://127.0.0.1:8080", &server.url);
        let seen = run(Command::new(python).args(["-c", &program]));
        assert!(seen.lines().count() >= 3 && seen.contains('{'), "{seen}");
    }
}

/// A template whose markers do not end an answer, so that one may hold them.
const TEMPLATE: &str = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}<|assistant|>";

/// Each of the clients as it is, on a model that continues texts, one that answers conversations, and one whose answers
/// hold special tokens.
#[test]
fn clients_run_unchanged() {
    let Some(python) = python("openai") else { return };
    let f = Folder::new("clients-unchanged");
    let letters: String = (' '..='~').collect(); // which clients put round a prompt
    let message = |asked: String, answer: String| json!({ "prompt": asked, "completion": answer }).to_string() + "\n";
    let messages = (0..40).map(|i| message(format!("Once {i}"), format!("There was {}.", i * 7)));
    f.file("chat.jsonl", messages.collect::<String>() + &message("And then".into(), letters.clone()));
    f.file("plain.txt", (0..40).map(|i| format!("Once there was {}.\n", i * 7)).collect::<String>() + &letters);
    f.file("template.jinja", TEMPLATE);
    let node = std::env::var("NODE_FOLDER").unwrap_or_else(|_| ".".into());
    for (name, data, more) in [
        ("plain", "plain.txt", ""),
        ("chat", "chat.jsonl", ""),
        ("chat", "chat.jsonl", " --chat-template template.jinja"),
    ] {
        if !f.0.join(name).exists() {
            train(
                &f,
                &format!("limpid train --preset nano --context-length 512 --tokenizer char --data {data} --out {name}"),
            );
        }
        let server = Running::start(&f, &format!("limpid serve --model {name}{more}"));
        let runner = root("reference/clients/run.py");
        let seen = run(Command::new(&python).arg(runner).arg(format!("{}/v1", server.url)).args(["--node", &node]));
        assert!(seen.contains("checks pass with openai "), "{seen}");
    }
}

const TASK: &str = "task: stories
dataset_path: json
dataset_kwargs: {data_files: {test: stories.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: \"{{context}}\"
doc_to_choice: \"{{choices}}\"
doc_to_target: label
target_delimiter: \"\"
metric_list: [{metric: acc}]
";

/// lm-eval's log-likelihoods over HTTP are the library's own, and it knows what the model would have written itself.
#[test]
fn lm_eval_agrees() {
    let Some(python) = python("lm_eval") else { return };
    let f = Folder::new("clients-lm-eval");
    train(&f, "limpid train --preset nano --tokenizer char --data builtin:stories --out model");
    let lm = Lm::open(f.0.join("model")).unwrap();
    let greedy = Options { sampler: Sampler::GREEDY, max_tokens: 12, ..Options::default() };
    let stories = f.ok("data stories 20K");
    let (mut tasks, mut pieces) = (String::new(), stories.split(". ").filter(|piece| (20..40).contains(&piece.len())));
    for _ in 0..20 {
        let [context, other] = std::array::from_fn(|_| pieces.next().unwrap().lines().last().unwrap().to_string());
        // what the model itself would write, and what it would not
        let own = lm.generate(&context, &greedy).unwrap().text;
        let choices = [own, format!("? {}", &other[..other.len().min(20)])];
        tasks += &format!("{}\n", json!({ "context": context, "choices": choices, "label": 0 }));
    }
    f.file("stories.jsonl", tasks);
    f.file("stories.yaml", TASK);
    let server = Running::start(&f, "limpid serve --model model");
    let model = format!("model=model,base_url={}/v1/completions,num_concurrent=8,max_length=64", server.url);
    let mut command = Command::new(python);
    command.args(["-m", "lm_eval", "--model", "local-completions", "--model_args", &model, "--tasks", "stories"]);
    command.args(["--include_path", ".", "--output_path", "out", "--log_samples", "--limit", "20"]).current_dir(&f.0);
    run(command.env("HF_HOME", f.0.join("hf")).env("HF_DATASETS_OFFLINE", "1").env("HF_HUB_OFFLINE", "1"));
    let samples = run(&mut f.shell("cat out/*/samples_*.jsonl"));
    let mut compared = 0;
    for line in samples.lines() {
        let sample: Value = serde_json::from_str(line).unwrap();
        let arguments = sample["arguments"].as_object().unwrap();
        for (i, response) in sample["resps"].as_array().unwrap().iter().enumerate() {
            let of = |n: usize| arguments[&format!("gen_args_{i}")][format!("arg_{n}")].as_str().unwrap();
            let found: f64 = response[0][0].as_str().unwrap().parse().unwrap();
            let want = lm.score(of(0), of(1)).unwrap().total;
            // the terms are equal to the bit; Python adds them with compensation from 3.12 on
            assert!((found - want).abs() <= 4.0 * f64::EPSILON * want.abs(), "{found} is not {want}: {sample}");
            assert_eq!(response[0][1], if i == 0 { "True" } else { "False" }, "{sample}");
            compared += 1;
        }
    }
    assert_eq!(compared, 40);
}

//! What each fuzz target does with the bytes it is given. cargo-fuzz calls these functions with inputs it makes up, the
//! tests of the repository with the inputs in `regressions/`: no input may panic, abort, or take more than a second or
//! two.

use limpid::Training;
use limpid::checkpoint::{Checkpoint, gguf};
use limpid::config::Config;
use limpid::data::chat::{Message, Role};
use limpid::data::template::{ChatTemplate, TemplateTokens};
use limpid::tokenizer::Tokenizer;
use limpid::train::Recipe;
use limpid::train::run::Run;
use limpid_glass::{Glass, Subject, decoded};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// A target: its name, and what it does with an input.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: [Target; 7] = [
    ("config", config),
    ("gguf", gguf_file),
    ("inspect", inspect),
    ("run", run_folder),
    ("safetensors", safetensors),
    ("template", template),
    ("tokenizer", tokenizer),
];

/// Gives a target an input.
pub fn give(target: &str, input: &[u8]) {
    let found = TARGETS.iter().find(|(name, _)| *name == target);
    let (_, run) = found.unwrap_or_else(|| panic!("no target is called `{target}`"));
    run(input);
}

/// A `config.json`.
fn config(input: &[u8]) {
    let _ = Config::from_json(&String::from_utf8_lossy(input)).and_then(|config| config.check());
}

/// A GGUF file.
fn gguf_file(input: &[u8]) {
    let _ = gguf::open(&written("model.gguf", input));
}

/// A safetensors file without a configuration beside it.
fn safetensors(input: &[u8]) {
    let _ = Checkpoint::open(&written("model.safetensors", input));
}

/// The last state in the folder of a training.
fn run_folder(input: &[u8]) {
    let path = written("run/state/last.safetensors", input);
    let folder = path.parent().and_then(|state| state.parent()).unwrap_or(&path);
    let _ = Run::settings(folder, None);
    let _ = Run::check(folder, None);
}

/// A chat template.
fn template(input: &[u8]) {
    let asked = [Message { role: Role::User, content: "Hi".into() }];
    let template = ChatTemplate::new(&String::from_utf8_lossy(input), TemplateTokens::default());
    let _ = template.and_then(|template| template.render(&asked, true));
}

/// A `tokenizer.json`.
fn tokenizer(input: &[u8]) {
    let tokenizer = Tokenizer::from_json(&String::from_utf8_lossy(input));
    let _ = tokenizer.and_then(|tokenizer| tokenizer.encode("ab <s> \u{e4}\u{1f600}"));
}

/// A question about a trace, `tensors/cos(embed.weight)?at=0,0`, or a body: of a new trace, or of tiles of the one
/// there is.
fn inspect(input: &[u8]) {
    static MODEL: OnceLock<(Glass, [Subject; 1], String)> = OnceLock::new();
    let (glass, subjects, id) = MODEL.get_or_init(|| {
        let text = "to be or not to be, that is the question. ".repeat(40);
        let preset = Recipe::preset("nano").expect("a preset");
        let recipe = Recipe { steps: 1, batch_size: 2, context: 32, ..preset };
        let training = Training::preset("nano").expect("a preset").recipe(recipe).text(text);
        let lm = Arc::new(training.run().expect("a model").lm);
        let subjects = [Subject { name: "nano".into(), fingerprint: "1".into(), step: None, lm }];
        let (glass, mut id) = (Glass::new(32 << 20), String::new());
        let mut first = |event: &str| {
            let event: Value = serde_json::from_str(event).unwrap_or_default();
            id = event["id"].as_str().map_or(id.clone(), String::from);
            true
        };
        glass.trace(&subjects, &json!({ "prompt": "to be" }), &Arc::default(), &mut first).expect("a trace");
        (glass, subjects, id)
    });
    let budget = || Arc::new(glass.budget(subjects).time(Duration::from_secs(1)));
    let text = String::from_utf8_lossy(input);
    if let Ok(body @ Value::Object(_)) = serde_json::from_str(&text) {
        if body.get("tiles").is_some() {
            let _ = glass.tiles(id, &body, &budget, &mut |_| true);
        } else {
            let _ = glass.trace(subjects, &body, &budget(), &mut |_| true);
        }
        return;
    }
    let (question, query) = text.split_once('?').unwrap_or((&text, ""));
    let pair = |part: &str| {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        (decoded(name), decoded(value))
    };
    let query: Vec<(String, String)> = query.split('&').filter(|part| !part.is_empty()).map(pair).collect();
    let _ = glass.ask(subjects, &format!("traces/{id}/{question}"), &query, &budget());
}

/// A file of that name with these bytes, in a folder of this process.
fn written(name: &str, bytes: &[u8]) -> PathBuf {
    let path = std::env::temp_dir().join(format!("limpid-fuzz-{}", std::process::id())).join(name);
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder for temporary files");
    std::fs::write(&path, bytes).expect("room for a temporary file");
    path
}

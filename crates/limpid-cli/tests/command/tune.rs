//! Going on from a model: the commands of docs/training.md in their order, every format as a beginning, and what is
//! refused.

use crate::common::{Folder, block, root};
use limpid::checkpoint::{Checkpoint, gguf, safetensors_file};
use limpid::config::Config;
use limpid::model::{Lora, Tuning};
use limpid::tokenizer::Tokenizer;
use limpid::train::{Control, Run, TrainEvent};
use limpid::{Lm, Training};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

#[test]
#[ignore = "gate"]
fn a_small_chat_set_changes_the_answers_as_the_guide_says() {
    let f = Folder::new("guide");
    let of = |kind| block("training.md", "## Fine-tuning and LoRA", kind);
    fs::copy(root("crates/limpid-data/fixtures/chat/questions.jsonl"), f.0.join("questions.jsonl")).unwrap();
    let mut said = vec![];
    for line in of("sh").lines() {
        let line = line.strip_prefix("limpid ").unwrap();
        let small = if line.starts_with("train --data") {
            " --d-model 48 --n-head 3 --n-layer 2 --threads 2 --sample 0"
        } else if line.starts_with("train") {
            " --threads 2 --sample 0"
        } else {
            ""
        };
        let (stdout, stderr) = f.both(&format!("{line}{small}"));
        if line.starts_with("generate") {
            said.push(stdout.trim().to_string());
        } else if line.contains("--lora") {
            assert!(stderr.contains("parameters learn"), "{stderr}");
        }
    }
    let [before, full, lora, merged] = &said[..] else { panic!("{said:?}") };
    println!("before: {before:?}\nfull: {full:?}\nLoRA: {lora:?}\nmerged: {merged:?}");
    assert!(!before.contains("sailor"), "{before}");
    for after in [full, lora, merged] {
        assert_eq!(after, "The old sailor.");
    }
    // every other question too
    let (mut right, lines) = (0, fs::read_to_string(f.0.join("questions.jsonl")).unwrap());
    for line in lines.lines().take(8) {
        let line: Value = serde_json::from_str(line).unwrap();
        let [question, answer] = ["prompt", "completion"].map(|key| line[key].as_str().unwrap());
        let (found, _) = f.both(&format!("generate --model base --adapter lora --chat '{question}' --temperature 0"));
        right += usize::from(found.trim() == answer);
    }
    assert!(right >= 7, "{right} of 8 questions are answered");
    f.both("eval --model lora --data questions.jsonl --json");
    f.both("inspect --model lora --prompt x");
    assert!(!f.0.join("lora/model.safetensors").exists() && !f.0.join("full/adapter_config.json").exists());
}

const TEXT: &str = "a cat and a hat, a bat and a rat. ";
const SMALL: &str = "--data text.txt --tokenizer char --batch-size 4 --sample 0 --threads 1 --json";

/// A model of every format goes on, whole and with an adapter.
#[test]
#[ignore = "gate"]
fn every_format_can_be_gone_on_from() {
    let f = Folder::new("formats");
    fs::write(f.0.join("text.txt"), TEXT.repeat(40)).unwrap();
    f.both(&format!(
        "train {SMALL} --d-model 16 --n-head 2 --d-ff 64 --positions learned --n-layer 2 --context-length 16 --steps \
         5 --out base"
    ));
    f.both("convert base hf --to hf");
    f.both("convert base model.gguf --tokenizer none");
    f.both("convert base model.bin");
    let own = SMALL.replace("--tokenizer char ", "");
    for (from, small) in [("base", &own[..]), ("hf", &own), ("model.gguf", SMALL), ("model.bin", SMALL)] {
        let flags = format!("--from {from} {small} --learning-rate 0.01 --steps 6 --save-every 3");
        for (kind, more) in [("full", ""), ("lora", "--lora 2 --lora-targets attention")] {
            let out = format!("{kind}-{from}");
            let (stdout, _) = f.both(&format!("train {flags} {more} --out {out}"));
            let summary: Value = serde_json::from_str(&stdout).unwrap();
            assert_eq!(summary["steps"], 6);
            f.both(&format!("generate --model {out} --prompt a --max-tokens 3"));
        }
    }
    // the formats are one model: so are the adapters, and a moved base is found by --model
    for name in ["hf", "model.gguf", "model.bin"] {
        let file = "adapter_model.safetensors";
        assert_eq!(f.bytes(&format!("lora-base/{file}")), f.bytes(&format!("lora-{name}/{file}")), "{name}");
    }
    f.both("generate --model hf --adapter lora-base --prompt a --max-tokens 3");

    // a whole model needs its beginning no more, an adapter does
    f.both(&format!("train --from base {own} --steps 2 --freeze embed.* --out frozen"));
    fs::rename(f.0.join("base"), f.0.join("away")).unwrap();
    f.both("train --resume frozen --json");
    f.refuses("train --resume lora-base --json", &["--from", "base"]);
    fs::rename(f.0.join("away"), f.0.join("base")).unwrap();
    f.both("train --resume lora-base --json");
}

/// A base of blocks stays so, and trains to the bytes of the same weights as f32: an adapter, going on and within less
/// memory; with frozen parameters, of which a run that goes on takes f32s. `plan` counts what is kept, in bf16 all
/// f32s.
#[test]
#[ignore = "gate"]
fn a_quantised_base_trains_as_its_values_do() {
    let f = Folder::new("quantised");
    fs::write(f.0.join("text.txt"), TEXT.repeat(40)).unwrap();
    f.both(&format!(
        "train {SMALL} --d-model 32 --n-head 2 --n-layer 2 --context-length 16 --activation gelu-tanh --steps 2 --out \
         base"
    ));
    f.both("convert base small.gguf --dtype q8_0");
    f.both("convert small.gguf wide --to limpid --dtype f32");
    let own = SMALL.replace("--tokenizer char ", "");
    for (name, how, weights) in [
        ("lora", "--lora 2", "adapter_model.safetensors"),
        ("bf16", "--lora 2 --precision bf16", "adapter_model.safetensors"),
        ("ema", "--lora 2 --ema 0.9 --accumulate 2 --threads 2", "adapter_model.safetensors"),
        ("frozen", "--freeze embed.*,*.mlp.*", "model.safetensors"),
    ] {
        let train = |from: &str, more: &str, out: &str| {
            f.both(&format!("train --from {from} {own} {how} --learning-rate 0.01 {more} --out {out}"));
            f.bytes(&format!("{out}/{weights}"))
        };
        let all = "--steps 6 --schedule constant --save-every 3";
        let want = train("wide", all, &format!("{name}-wide"));
        assert!(train("small.gguf", all, &format!("{name}-small")) == want, "{name}");
        let out = format!("{name}-again");
        assert!(train("small.gguf", "--steps 3 --schedule constant --save-every 3", &out) != want, "{name}");
        f.both(&format!("train --resume {out} --steps 6 --json"));
        assert!(f.bytes(&format!("{out}/{weights}")) == want, "{name}");
        let (loss, _) = f.both(&format!("eval --model {name}-small --data text.txt --json"));
        let (same, _) = f.both(&format!("eval --model {name}-wide --data text.txt --json"));
        let nats = |text: &str| serde_json::from_str::<Value>(text).unwrap()["loss"].to_string();
        assert_eq!(nats(&loss), nats(&same), "{name}");
        f.both(&format!("generate --model {name}-small --prompt a --max-tokens 3"));
        let parameters = |from: &str| {
            let plan = f.json(&format!("plan --from {from} {own} {how}"));
            assert!(plan["measured"].is_object(), "{plan}");
            plan["memory_bytes"]["parameters"].as_u64().unwrap()
        };
        let (less, all) = (parameters("small.gguf"), parameters("wide"));
        assert_eq!(less < all, name != "bf16", "{name}: {less} of {all}");
    }
    f.both("generate --model small.gguf --adapter lora-wide --prompt a --max-tokens 3");
    f.both("convert lora-small merged --to limpid");
}

/// The kept weights, and every tensor of the last state.
fn left(folder: &Path) -> (Vec<u8>, BTreeMap<String, Vec<u8>>) {
    let state = safetensors_file::open(&folder.join("state/last.safetensors")).unwrap();
    let tensors = state.names().map(|name| (name.into(), state.get(name).unwrap().bytes.to_vec())).collect();
    let kept = ["model.safetensors", "adapter_model.safetensors"].map(|name| folder.join(name));
    (fs::read(kept.iter().find(|path| path.exists()).unwrap()).unwrap(), tensors)
}

/// A run that the library began is gone on with by the command, and the other way round: each to the bytes of one that
/// never stopped. Both write the same settings into its folder.
#[test]
fn the_library_and_the_command_go_on_with_each_others_runs() {
    let f = Folder::new("each-other");
    let at = |name: &str| f.0.join(name);
    fs::write(at("text.txt"), TEXT.repeat(40)).unwrap();
    let size = "--d-model 16 --n-head 2 --n-layer 2 --context-length 16";
    f.both(&format!("train {SMALL} {size} --steps 2 --out base"));
    let own = SMALL.replace("--tokenizer char ", "");
    let lora = Lora { rank: 2, alpha: 4.0, dropout: 0.1, targets: vec!["attention".into()] };
    let adapter = format!("--from base {own} --lora 2 --lora-alpha 4 --lora-dropout 0.1 --lora-targets attention");
    for (kind, flags) in [("new", format!("{SMALL} {size} --accumulate 3")), ("adapter", adapter)] {
        let flags = format!("train {flags} --schedule constant --save-every 2 --eval-every 2 --memory 4G");
        let [whole, begun, library] = ["whole", "begun", "library"].map(|name| at(&format!("{kind}-{name}")));
        f.both(&format!("{flags} --steps 8 --out {}", whole.display()));
        let want = left(&whole);
        let (recipe, options) = Run::settings(&whole, None).unwrap().unwrap();
        let training = |folder: &Path| {
            let config = Config::from_json(&fs::read_to_string(whole.join("config.json")).unwrap()).unwrap();
            let training = match kind {
                "new" => Training::new(config, recipe).tokenizer("char"),
                _ => Training::fine_tuning(Lm::open(at("base")).unwrap())
                    .tuning(Tuning { lora: Some(lora.clone()), ..Tuning::default() })
                    .recipe(recipe),
            };
            let data = at("text.txt").display().to_string();
            training.options(options).data(data).machine(limpid::Machine::cpu(1)).memory(4_000_000_000).folder(folder)
        };
        // the command begins
        f.both(&format!("{flags} --steps 4 --out {}", begun.display()));
        training(&begun).resume().run().unwrap();
        assert!(left(&begun) == want, "{kind}: the library goes on");
        // the library begins, and stops between two saves
        let stop = |event| match event {
            TrainEvent::Step(step, _) if step.step == 3 => Control::Stop,
            _ => Control::Continue,
        };
        assert!(training(&library).run_telling(stop).unwrap().summary.stopped);
        f.both(&format!("train --resume {} --json", library.display()));
        assert!(left(&library) == want, "{kind}: the command goes on");
        let settings = |folder: &Path| {
            let text = fs::read_to_string(folder.join("limpid.toml")).unwrap();
            // the library knows no preset, and writes no sample at the end
            let own = |line: &&str| !line.starts_with("preset = ") && !line.starts_with("sample = ");
            text.lines().filter(own).map(String::from).collect::<Vec<_>>()
        };
        assert_eq!(settings(&library), settings(&whole), "{kind}");
    }
}

#[test]
fn what_contradicts_the_model_is_refused() {
    let f = Folder::new("refused");
    fs::write(f.0.join("text.txt"), TEXT.repeat(40)).unwrap();
    let make = |size: &str, out: &str| {
        f.both(&format!(
            "train {SMALL} --d-model {size} --n-head 2 --n-layer 2 --context-length 16 --steps 2 --out {out}"
        ));
    };
    make("16", "base");
    make("32", "wide");
    let train = "train --from base --data text.txt --sample 0 --steps 1 --out o";
    f.refuses(&format!("{train} --n-layer 4"), &["--n-layer is 4, but the model base has 2"]);
    f.refuses(&format!("{train} --context-length 32"), &["--context-length is 32, but the model base has 16"]);
    f.refuses(&format!("{train} --preset nano"), &["--from", "--preset"]);
    f.refuses(&format!("{train} --tokenizer word"), &["--tokenizer", "its own"]);
    f.refuses(&format!("{train} --freeze 'block.*'"), &["unknown parameter `block.*`"]);
    f.refuses(&format!("{train} --freeze '*'"), &["every parameter is frozen"]);
    f.refuses(&format!("{train} --lora 2 --lora-targets attn"), &["unknown lora target `attn`", "blocks.*.attn.qkv"]);
    f.refuses(&format!("{train} --lora 2 --freeze embed.weight"), &["--lora", "--freeze"]);
    f.refuses("train --lora 2", &["--from"]);
    assert!(!f.0.join("o").exists(), "nothing was begun");
    f.both(&format!("{train} --dropout 0.1 --context-length 8 --n-layer 2"));

    f.both("train --from base --data text.txt --sample 0 --steps 1 --lora 2 --out lora");
    f.refuses("generate --model wide --adapter lora --prompt a", &["made for the model", "base", "wide is another"]);
    f.refuses("train --from lora --data text.txt --lora 2 --out p", &["is an adapter itself", "limpid convert lora"]);
    f.both("train --from lora --data text.txt --sample 0 --steps 1 --out q"); // merged, it is a model like any other
    fs::remove_dir_all(f.0.join("base")).unwrap();
    f.refuses("generate --model lora --prompt a", &["base, which is not there", "--adapter"]);
}

const CHATML: &str = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% \
                      endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
const TALKS: &str = r#"{"messages": [{"role": "user", "content": "a cat"}, {"role": "assistant", "content": "a hat"}]}
{"messages": [{"role": "user", "content": "a bat"}, {"role": "assistant", "content": "a rat"}, {"role": "user", "content": "and"}, {"role": "assistant", "content": "a cat", "weight": 1}]}
{"messages": [{"role": "user", "content": "a rat"}, {"role": "assistant", "content": "a cat", "weight": 0}, {"role": "user", "content": "a hat"}, {"role": "assistant", "content": "a bat"}]}
"#;

/// A model is trained on conversations in its own template, or in one that is named, with special tokens that it gets;
/// what it becomes has both, goes on with both to the same bytes, and a model that is made of it keeps them.
#[test]
#[ignore = "gate"]
fn conversations_are_trained_in_the_template_of_the_model() {
    let f = Folder::new("template");
    fs::write(f.0.join("text.txt"), format!("{TEXT}user assistant\n").repeat(40)).unwrap();
    fs::write(f.0.join("chat.jsonl"), TALKS).unwrap();
    fs::write(f.0.join("chatml.jinja"), CHATML).unwrap();
    let small = "--d-model 16 --n-head 2 --n-layer 2 --context-length 64 --batch-size 2 --steps 4 --sample 0 \
                 --threads 1 --json";
    for (base, head) in [("tied", "--tied-head true"), ("untied", "--tied-head false --head-bias true")] {
        f.both(&format!("train --data text.txt --tokenizer char {small} {head} --out {base}"));
        let specials = "--add-special-tokens '<|im_start|>,<|im_end|>'";
        let fresh = format!(
            "train --from {base} --data chat.jsonl --chat-template chatml.jinja {specials} --batch-size 2 --schedule \
             constant --warmup-steps 0 --learning-rate 0.01 --val-fraction 0 --sample 0 --threads 1 --json"
        );
        f.refuses(&format!("train --from {base} --data chat.jsonl {specials} --lora 2 --out no"), &["--lora"]);
        // the tokens are new and have rows: the mean of all others
        let had = Checkpoint::open(&f.0.join(base)).unwrap();
        let tokenizer =
            had.tokenizer.clone().unwrap().with_specials(&["<|im_start|>".into(), "<|im_end|>".into()]).unwrap();
        let rows = had.config.vocab_size;
        let wide = Config { vocab_size: rows + 2, ..had.config.clone() };
        let outline = |config: &Config| {
            limpid::model::Model::new(config, limpid::model::Mode::Inspect { batch: 1, context: 1 }).unwrap()
        };
        let (before, after) = (outline(&had.config), outline(&wide));
        let widened = Checkpoint::open(&f.0.join(base)).unwrap().with_more_tokens(tokenizer);
        for param in &before.params {
            let was = had.values(&before, param).unwrap();
            let is = widened.values(&after, after.param(&param.name).unwrap()).unwrap();
            assert_eq!(is[..was.len()], was[..], "{}", param.name);
            let cols = was.len() / rows;
            let mean = |col: usize| {
                (was.iter().skip(col).step_by(cols).map(|v| f64::from(*v)).sum::<f64>() / rows as f64) as f32
            };
            let mean: Vec<f32> = (0..2 * cols).map(|i| mean(i % cols)).collect();
            if param.name.starts_with("embed.") || param.name.starts_with("unembed.") {
                assert_eq!(is[was.len()..], mean[..], "{}", param.name)
            } else {
                assert_eq!(is.len(), was.len(), "{}", param.name)
            }
        }
        let names = [format!("{base}-whole"), format!("{base}-parts"), format!("{base}-again")];
        let [whole, parts, again] = &names;
        f.both(&format!("{fresh} --steps 6 --out {whole}"));
        let config: Config =
            Config::from_json(&fs::read_to_string(f.0.join(whole).join("config.json")).unwrap()).unwrap();
        assert_eq!(config.vocab_size, rows + 2);
        assert_eq!(f.bytes(&format!("{whole}/chat_template.jinja")), CHATML.as_bytes());
        let ids = f.ok(&format!("tokenize --model {whole} '<|im_start|>a<|im_end|>' --json"));
        assert!(ids.contains(&rows.to_string()) && ids.contains(&(rows + 1).to_string()), "{ids}");
        // the same bytes in two parts, the template gone
        f.both(&format!("{fresh} --steps 3 --out {parts}"));
        fs::rename(f.0.join("chatml.jinja"), f.0.join("gone.jinja")).unwrap();
        f.both(&format!("train --resume {parts} --steps 6 --sample 0 --json"));
        fs::rename(f.0.join("gone.jinja"), f.0.join("chatml.jinja")).unwrap();
        for file in ["model.safetensors", "tokenizer.json", "config.json", "chat_template.jinja"] {
            assert!(f.bytes(&format!("{whole}/{file}")) == f.bytes(&format!("{parts}/{file}")), "{base}: {file}");
        }
        // a model with a template of its own is trained in that one
        let own = format!(
            "train --from {whole} --data chat.jsonl --batch-size 2 --steps 2 --val-fraction 0 --sample 0 --threads 1 \
             --json"
        );
        f.both(&format!("{own} --out {again}"));
        assert_eq!(f.bytes(&format!("{again}/chat_template.jinja")), CHATML.as_bytes());
        f.both(&format!("generate --model {again} --chat 'a cat' --max-tokens 4"));
        // what is judged is the answers in it: of three conversations "a hat", "a rat", "a cat" and "a bat", each with
        // its end
        let found = f.json(&format!("eval --model {again} --data chat.jsonl --json"));
        assert_eq!(found["tokens"], 4 * (5 + 1), "{found}");
    }
    // conversations that the template does not write token by token are named
    fs::write(
        f.0.join("odd.jinja"),
        "{% for m in messages %}{{ m.role if loop.last else '' }}{{ m.content }}{% endfor %}",
    )
    .unwrap();
    let odd = "train --from tied --data chat.jsonl --chat-template odd.jinja --out no";
    f.refuses(odd, &["chat.jsonl, line 1: message 2", "which tokens are this answer"]);
    // another tokenizer's model, from transformers
    let specials = "--add-special-tokens '<|im_start|>,<|im_end|>'";
    f.both("convert tied hf --to hf");
    f.both(&format!(
        "train --from hf --data chat.jsonl --chat-template chatml.jinja {specials} --batch-size 2 --steps 2 \
         --val-fraction 0 --sample 0 --out of-hf"
    ));
    f.both("generate --model of-hf --chat 'a cat' --max-tokens 4");
    f.both("convert of-hf back --to hf");
}

/// Encoders with one kind of segment learn too.
#[test]
fn an_encoder_with_one_segment_is_trained() {
    let f = Folder::new("segment");
    fs::write(f.0.join("text.txt"), "a cat and a hat, a bat and a rat. ".repeat(40)).unwrap();
    for name in ["roberta", "camembert", "xlm-roberta"] {
        let from = root(&format!("crates/limpid/fixtures/hf/{name}")).display().to_string();
        f.both(&format!(
            "train --from {from} --data text.txt --tokenizer char --context 8 --steps 4 --sample 0 --preflight false \
             --out {name}"
        ));
    }
}

/// A template that nobody else has.
const OWN_TURNS: &str = "{% for m in messages %}{{ '<|say|>' + m.role + '\\n' + m.content + '<|fin|>\\n' }}{% endfor \
                         %}{% if add_generation_prompt %}{{ '<|say|>assistant\\n' }}{% endif %}";

/// The special token that ends answers in training ends them in other programs too: beside the end of the text it
/// stands in generation_config.json, config.json and GGUF, of models and of adapters, whatever their template, and
/// whatever else the model's files say.
#[test]
#[ignore = "gate"]
fn what_ends_an_answer_is_named_in_all_that_is_written() {
    let f = Folder::new("ends");
    fs::write(f.0.join("text.txt"), format!("{TEXT}user assistant: \n").repeat(40)).unwrap();
    fs::write(f.0.join("chat.jsonl"), TALKS).unwrap();
    fs::write(f.0.join("chatml.jinja"), CHATML).unwrap();
    fs::write(f.0.join("own.jinja"), OWN_TURNS).unwrap();
    let short = "--val-fraction 0 --batch-size 2 --steps 2 --sample 0 --threads 1 --preflight false --json";
    let small = format!("--d-model 16 --n-head 2 --n-layer 2 --context-length 64 {short}");
    let specials = "--add-special-tokens '<|im_start|>,<|im_end|>,<|say|>,<|fin|>'";
    f.both(&format!("train --data text.txt {small} --out base"));
    f.both(&format!("train --from base --data text.txt {specials} {short} --out wide"));
    f.both("convert wide hf --to hf");
    let read = |path: &str| -> Value { serde_json::from_slice(&f.bytes(path)).unwrap() };
    let id = |folder: &str, token: &str| {
        let tokenizer = Tokenizer::load(f.0.join(folder).join("tokenizer.json")).unwrap();
        tokenizer.special(token).unwrap_or_else(|| panic!("{folder} has no {token}"))
    };
    // what else the model's files say stays
    let said = |path: &str, key: &str, value: Value| {
        let mut file = if f.0.join(path).exists() { read(path) } else { Value::Object(Default::default()) };
        file[key] = value;
        fs::write(f.0.join(path), file.to_string()).unwrap();
    };
    let end = id("wide", "<|endoftext|>");
    said("hf/generation_config.json", "eos_token_id", end.into());
    said("hf/generation_config.json", "temperature", 0.5.into());
    assert_eq!(read("hf/config.json")["eos_token_id"], end);
    for (name, how, folder, token) in [
        ("scratch", small.clone(), "scratch", "<|end|>"),
        ("chatml", format!("--from wide --chat-template chatml.jinja {short}"), "wide", "<|im_end|>"),
        ("own", format!("--from wide --chat-template own.jinja {short}"), "wide", "<|fin|>"),
        ("lora", format!("--from wide --chat-template own.jinja --lora 2 {short}"), "wide", "<|fin|>"),
        ("of-hf", format!("--from hf --chat-template chatml.jinja {short}"), "wide", "<|im_end|>"),
        ("hf-lora", format!("--from hf --chat-template chatml.jinja --lora 2 {short}"), "wide", "<|im_end|>"),
    ] {
        f.both(&format!("train --data chat.jsonl {how} --out {name}"));
        let (end, turn) = (id(folder, "<|endoftext|>"), id(folder, token));
        let both = serde_json::json!([end, turn]);
        f.both(&format!("convert {name} {name}-hf --to hf --verify"));
        f.both(&format!("convert {name} {name}.gguf"));
        f.both(&format!("convert {name}-hf {name}-back --to limpid"));
        f.both(&format!("convert {name}-back {name}-again --to hf"));
        for file in ["/generation_config.json", "-hf/generation_config.json", "-hf/config.json", "-again/config.json"] {
            let found = read(&format!("{name}{file}"));
            assert_eq!(found["eos_token_id"], both, "{name}{file}: {found}");
            if file.contains("-hf/gen") && how.contains("--from hf") {
                assert_eq!(found["temperature"], 0.5, "{name}{file}: {found}");
            }
        }
        let (metadata, _) = gguf::open(&f.0.join(format!("{name}.gguf"))).unwrap();
        let key = |place: &str| metadata.u64(&format!("tokenizer.ggml.{place}_token_id")).ok();
        assert_eq!([key("eos"), key("eot")], [end, turn].map(|id| Some(u64::from(id))), "{name}");
        // and what stops limpid stops what it wrote
        let ends = |path: &str| Checkpoint::open(&f.0.join(path)).unwrap().tokenizer.unwrap().more_ends();
        assert!(ends(&format!("{name}-hf")).contains(&turn) && ends(&format!("{name}.gguf")).contains(&turn), "{name}");
    }
    // a text teaches no turns
    assert!(!f.0.join("wide/generation_config.json").exists() && read("hf/config.json")["eos_token_id"] == end);
}

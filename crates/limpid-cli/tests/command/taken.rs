//! Files that are taken for something else than they are: pointers of Git LFS, values of another type, GGUF files
//! without a model. Each is told as what it is, with the way out.

use crate::common::Folder;
use limpid::checkpoint::gguf;
use std::fs;

const POINTER: &str = "version https://git-lfs.github.com/spec/v1\noid \
                       sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n";
const SMALL: &str =
    "--d-model 32 --n-head 2 --n-layer 2 --d-ff 64 --context-length 16 --steps 2 --batch-size 4 --sample 0";

fn trained(name: &str) -> Folder {
    let f = Folder::new(name);
    f.file("text.txt", "the quick brown fox jumps over the lazy dog. ".repeat(100));
    f.both(&format!("train --data text.txt --out m --activation gelu-tanh {SMALL}"));
    f
}

#[test]
fn pointers_of_git_lfs_are_told_in_every_format() {
    let f = trained("pointers");
    f.ok("convert m hf --to hf");
    for folder in ["m", "hf"] {
        for file in ["model.safetensors", "config.json", "tokenizer.json"] {
            let path = format!("{folder}/{file}");
            let was = f.bytes(&path);
            f.file(&path, POINTER);
            f.fails(1, &format!("params {folder}"), &[file, "Git LFS", "git lfs pull"]);
            f.file(&path, was);
        }
        for file in ["generation_config.json", "chat_template.json", "chat_template.jinja"] {
            let path = f.0.join(folder).join(file);
            let was = fs::read(&path).ok();
            fs::write(&path, POINTER).unwrap();
            f.fails(1, &format!("params {folder}"), &[file, "git lfs pull"]);
            was.map_or_else(|| fs::remove_file(&path), |was| fs::write(&path, was)).unwrap();
        }
        f.ok(&format!("params {folder}"));
    }
    for name in [
        "x.gguf",
        "x.bin",
        "x.safetensors",
        "x.txt",
        "x.jsonl",
        "x.json",
        "x.parquet",
        "x.md",
        "x.txt.gz",
        "x.tiktoken",
    ] {
        f.file(name, POINTER);
        let verbs = match name.rsplit('.').next().unwrap() {
            "gguf" | "bin" | "safetensors" => {
                vec![format!("params ./{name}"), format!("generate --model {name} --prompt the")]
            }
            "tiktoken" => vec![format!("tokenize --tokenizer {name} hello")],
            _ => vec![
                format!("data info {name}"),
                format!("train --data {name} --out t {SMALL}"),
                format!("eval --model m --data {name}"),
            ],
        };
        for verb in verbs {
            f.fails(1, &verb, &[name, "git lfs pull"]);
        }
    }
    f.fails(1, "tokenize --tokenizer x.json hello", &["x.json", "git lfs pull"]);
    f.fails(1, "generate --model m --prompt the --intervene x.json", &["git lfs pull"]);
    fs::create_dir(f.0.join("a")).unwrap();
    f.file("a/adapter_config.json", POINTER);
    f.file("a/adapter_model.safetensors", POINTER);
    f.fails(1, "generate --model m --adapter a --prompt the", &["adapter_config.json", "git lfs pull"]);
}

#[test]
fn a_field_that_is_no_text_is_told_with_what_it_is() {
    let f = trained("kinds");
    for (line, said) in [
        (r#"{"text": ["a", "b"]}"#, "has a list in the field `text`"),
        (r#"{"text": 5}"#, "has a number in the field `text`"),
        (r#"{"text": -5.5, "x": "y"}"#, "has a number in the field `text`"),
        (r#"{"text": true}"#, "has true or false in the field `text`"),
        (r#"{"x": 1, "text": {"a": "b"}}"#, "has an object in the field `text`"),
        (r#"{"text": {}}"#, "has an object in the field `text`"),
        ("[\"a\"]", "is a list: expected a text, or an object"),
        ("5", "is a number: expected a text, or an object"),
        ("null", "is null: expected a text, or an object"),
        (r#"{"txt": "a", "id": 1}"#, "it has id, txt: name the field of the text"),
        ("{}", "it has none: write it as {\"text\": ...}"),
        (r#"{"text": NaN}"#, "it has NaN at column 10, which JSON does not have"),
        (r#"{"id": -Infinity, "text": "a"}"#, "it has Infinity at column"),
        (r#"{"text": "a \ud83d b"}"#, "half of a surrogate pair"),
        (r#"{"text": "\udc00"}"#, "half of a surrogate pair"),
        (r#"{"text": 'a'}"#, "expected value at column 10"),
    ] {
        // a first line that is right: an array of one line would be a list of documents
        f.file("x.jsonl", format!("{{\"text\": \"good\"}}\n{line}\n"));
        for verb in ["data info x.jsonl", &format!("train --data x.jsonl --out t {SMALL}")] {
            f.fails(1, verb, &["x.jsonl, line 2 ", said]);
        }
        assert_eq!(f.json("data info x.jsonl --skip-bad --json")["bad"], 1, "{line}");
    }
}

#[test]
fn conversations_are_described() {
    let f = Folder::new("described");
    let talk = r#"{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}, {"role": "user", "content": "Go"}, {"role": "assistant", "content": "Bye"}]}"#;
    let forms = [talk, r#"{"prompt": "What?", "completion": "A dog."}"#, r#"{"instruction": "Say a.", "output": "a"}"#];
    f.file("chat.jsonl", forms.join("\n"));
    f.file("chat.json", format!("[{}]", forms.join(",")));
    for name in ["chat.jsonl", "chat.json"] {
        let told = f.json(&format!("data info {name} --sample 3 --json"));
        for (key, n) in [("conversations", 3), ("messages", 8), ("answers", 4), ("bad", 0)] {
            assert_eq!(told[key], n, "{name}: {key}");
        }
        let text = "<|user|>\nHi\n<|assistant|>\nYes?<|end|>\n<|user|>\nGo\n<|assistant|>\nBye<|end|>";
        assert!(told["samples"][0].as_str().unwrap().ends_with(text), "{told}");
        assert_eq!(told["longest_conversation_bytes"], text.len() + 1);
        let told = f.ok(&format!("data info {name}"));
        assert!(told.contains("conversations") && told.contains("4 are answers to learn"), "{told}");
    }
    f.file("bad.jsonl", format!("{talk}\n{{\"messages\": []}}\n"));
    f.fails(1, "data info bad.jsonl", &["bad.jsonl, line 2", "`messages` is empty"]);
    assert_eq!(f.json("data info bad.jsonl --skip-bad --json")["bad"], 1);
    f.fails(1, "data info chat.jsonl --field messages", &["has a list in the field `messages`"]);
    f.fails(1, "data prepare chat.jsonl --out p", &["line 1", "it is a conversation", "training and evaluation read"]);
}

#[test]
fn a_gguf_file_says_what_it_holds() {
    let f = trained("holds");
    f.ok("convert m whole.gguf");
    let (metadata, store) = gguf::open(&f.0.join("whole.gguf")).unwrap();
    let write = |name: &str, kind: Option<&str>, more: &[(&str, &str)]| {
        let mut own = metadata.clone();
        kind.into_iter().for_each(|kind| own.set("general.type", kind.to_string()));
        more.iter().for_each(|(key, value)| own.set(*key, value.to_string()));
        gguf::write(&f.0.join(name), &own, vec![]).unwrap();
    };
    write("vocab.gguf", None, &[]);
    write("model-vocab.gguf", Some("model"), &[]);
    write("lora.gguf", Some("adapter"), &[("adapter.type", "lora")]);
    write("eyes.gguf", Some("mmproj"), &[]);
    for (name, said) in [
        ("vocab.gguf", "a vocabulary and no weights"),
        ("model-vocab.gguf", "a vocabulary and no weights"),
        ("lora.gguf", "it is a LoRA adapter"),
        ("eyes.gguf", "`general.type` is `mmproj`"),
    ] {
        let told = f.fails(1, &format!("generate --model {name} --prompt the"), &[name, said]);
        assert!(!told.contains("config.json") || name == "lora.gguf", "{told}");
        // its tokenizer is the model's
        let ids = f.json(&format!("tokenize --tokenizer {name} --json 'the lazy fox'"))["ids"].clone();
        assert_eq!(ids, f.json("tokenize --model m --json 'the lazy fox'")["ids"], "{name}");
    }
    f.fails(
        1,
        "generate --model m --adapter lora.gguf --prompt the",
        &["lora.gguf", "a GGUF file", "adapter_config.json"],
    );
    f.fails(
        1,
        "generate --model m --adapter text.txt --prompt the",
        &["text.txt", "a folder with adapter_config.json"],
    );
    f.ok("tokenize --tokenizer vocab.gguf --export vocab.json");
    assert_eq!(f.ok("tokenize --tokenizer vocab.json fox"), f.ok("tokenize --tokenizer vocab.gguf fox"));
    f.fails(
        1,
        &format!("train --data text.txt --tokenizer vocab.gguf --out t {SMALL}"),
        &["vocab.gguf", "export its tokenizer"],
    );
    // a tensor that is missing is the file's own fault
    for gone in ["blk.1.ffn_up.weight", "output_norm.bias", "token_embd.weight"] {
        let kept = store.names().filter(|name| *name != gone).map(|name| {
            let stored = store.get(name).unwrap();
            let (dtype, shape) = (stored.dtype.clone(), stored.shape.to_vec());
            let rows = Some(vec![stored.bytes]);
            limpid::checkpoint::store::OutputTensor { name: name.into(), dtype, shape, values: vec![], rows }
        });
        gguf::write(&f.0.join("gone.gguf"), &metadata, kept.collect()).unwrap();
        let told = f.fails(1, "params ./gone.gguf", &["gone.gguf", gone, "its own metadata asks for"]);
        assert!(!told.contains("config.json"), "{told}");
    }
}

#[test]
fn words_are_told_from_files_and_flags_of_other_verbs() {
    let f = trained("told");
    for words in ["silence h1.1", "ablate head 3", "steer happy by 2"] {
        f.fails(
            2,
            &format!("generate --model m --prompt the --intervene '{words}'"),
            &[words, "steps in JSON", "\"ablate\""],
        );
    }
    f.fails(1, "generate --model m --prompt the --intervene nothing.json", &["nothing.json"]);
    for flag in ["--port 8080", "--host 0.0.0.0"] {
        f.fails(2, &format!("train {flag}"), &[flag.split(' ').next().unwrap(), "--serve 127.0.0.1:8080"]);
    }
}

/// A table may have rows that no token has: they are not read, and whoever checks a model hears of them.
#[test]
fn rows_after_the_vocabulary_are_told() {
    use limpid::checkpoint::{
        safetensors_file,
        store::{Facts, OutputTensor},
    };
    let f = trained("padded");
    f.ok("convert m hf --to hf");
    let vocab_size = f.json("params hf --json")["config"]["vocab_size"].as_u64().unwrap() as usize;
    assert!(f.json("params hf --check --json")["padded"].as_array().unwrap().is_empty());
    let path = f.0.join("hf/model.safetensors");
    let store = safetensors_file::open(&path).unwrap();
    for more in [1, 5, 64] {
        let rows = vec![0u8; more * 32 * 4];
        let tensor = |name: &str| {
            let stored = store.get(name).unwrap();
            let (mut shape, mut bytes) = (stored.shape.to_vec(), vec![stored.bytes]);
            if shape == [vocab_size, 32] {
                shape[0] += more;
                bytes.push(&rows);
            }
            OutputTensor { name: name.into(), dtype: stored.dtype.clone(), shape, values: vec![], rows: Some(bytes) }
        };
        fs::create_dir_all(f.0.join("wide")).unwrap();
        for file in ["config.json", "tokenizer.json"] {
            f.file(&format!("wide/{file}"), f.bytes(&format!("hf/{file}")));
        }
        let wide = f.0.join("wide/model.safetensors");
        _ = fs::remove_file(&wide);
        safetensors_file::write(&wide, store.names().map(tensor).collect(), Facts::new()).unwrap();
        let padded = &f.json("params wide --check --json")["padded"][0];
        assert_eq!((&padded["rows"], &padded["read"]), (&(vocab_size + more).into(), &vocab_size.into()), "{padded}");
        let said = format!(
            "has {} rows, more than vocab_size: the rows after the first {vocab_size} are not read",
            vocab_size + more
        );
        assert!(f.ok("params wide --check").contains(&said));
        assert!(
            f.ok(&format!("convert wide w{more}.gguf --verify"))
                .replace('\n', " ")
                .contains(&format!("has {} rows", vocab_size + more))
        );
        assert!(!f.ok("params wide").contains("are not read"));
    }
}

//! Files that are not what they should be: a bit that changed, numbers of the wrong kind, pipes and devices in a file's
//! place.
#![cfg(unix)]

use crate::common::{self, Folder, refused};
use limpid::checkpoint::gguf;
use limpid::checkpoint::store::{OutputTensor, Store};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

const SMALL: &str = "--d-model 32 --n-head 2 --n-layer 2 --d-ff 64 --context-length 16 --steps 2 --batch-size 4";

/// A folder with a text and a model that learned from it.
fn trained(name: &str) -> Folder {
    let f = Folder::new(name);
    f.file("text.txt", "the quick brown fox jumps over the lazy dog. ".repeat(100));
    f.both(&format!("train --data text.txt --out m --activation gelu-tanh {SMALL}"));
    f
}

/// Changes a byte of a file, as a disk does.
fn change(f: &Folder, path: &str, at: impl Fn(&mut Vec<u8>)) {
    let mut bytes = f.bytes(path);
    at(&mut bytes);
    fs::remove_file(f.0.join(path)).unwrap();
    f.file(path, bytes);
}

#[test]
fn one_changed_bit_of_weights_or_data_is_told_by_every_verb() {
    let f = trained("bits");
    f.both(
        &format!("train --data text.txt --from m --lora 2 --out a {SMALL}")
            .replace(" --d-model 32 --n-head 2 --n-layer 2 --d-ff 64", ""),
    );
    f.ok("convert m own --to limpid");
    f.ok("data prepare text.txt --out p --tokenizer m/tokenizer.json");
    let whole = |arguments: &str| drop(f.both(arguments));
    let flip = |bytes: &mut Vec<u8>| *bytes.last_mut().unwrap() ^= 1;
    for (file, verbs) in [
        (
            "m/model.safetensors",
            &["generate --model m --prompt the", "eval --model m --data text.txt", "convert m x --to hf"][..],
        ),
        ("own/model.safetensors", &["generate --model own --prompt the", "inspect --model own --prompt the"]),
        ("a/adapter_model.safetensors", &["generate --model m --adapter a --prompt the", "convert m y --adapter a"]),
    ] {
        let was = f.bytes(file);
        change(&f, file, flip);
        for verb in verbs {
            f.fails(1, verb, &[file, "its checksum is ", "and it says", "from a copy", "--no-verify"]);
            whole(&format!("{verb} --no-verify"));
        }
        if file == "own/model.safetensors" {
            let said = f.fails(1, "params own --check", &[file, "its checksum is ", "from a copy"]);
            assert!(!said.contains("--no-verify"), "a flag that params does not have: {said}");
        }
        f.file(file, was);
        whole(verbs[0]);
    }
    assert!(!f.0.join("x/model.safetensors").exists() || f.0.join("x/config.json").exists());
    // prepared data: ids that the vocabulary has, but others
    let train = format!("train --data p {SMALL} --out");
    whole(&format!("{train} r1"));
    change(&f, "p/train_000000.bin", |bytes| bytes.copy_within(1026..1028, 1024));
    f.fails(1, &format!("{train} r2"), &["train_000000.bin", "its checksum is ", "the manifest says", "--no-verify"]);
    whole(&format!("{train} r3 --no-verify"));
}

#[test]
fn an_end_token_that_cannot_be_read_is_an_error() {
    let f = trained("ends");
    for (text, said) in [
        ("{", "not an object in JSON"),
        ("[]", "not an object in JSON"),
        (r#"{"eos_token_id": "x"}"#, "`eos_token_id`"),
        (r#"{"eos_token_id": [1, 1.5]}"#, "`eos_token_id` is or has 1.5"),
    ] {
        f.file("m/generation_config.json", text);
        f.fails(1, "generate --model m --prompt the", &["generation_config.json", said]);
    }
    for text in ["{}", r#"{"eos_token_id": null}"#, r#"{"eos_token_id": -1}"#, r#"{"eos_token_id": [1, 2]}"#] {
        f.file("m/generation_config.json", text);
        f.both("generate --model m --prompt the");
    }
}

#[test]
fn an_adapter_of_wrong_types_or_endless_weights_is_refused() {
    let f = trained("adapters");
    f.both("train --data text.txt --from m --lora 2 --out a --steps 2 --batch-size 4 --learning-rate 0.01");
    let config: serde_json::Value = serde_json::from_slice(&f.bytes("a/adapter_config.json")).unwrap();
    for (key, value) in [
        ("fan_in_fan_out", "1.5"),
        ("use_rslora", "[]"),
        ("use_dora", "{}"),
        ("inference_mode", "\"yes\""),
        ("base_model_name_or_path", "3"),
        ("lora_dropout", "\"0\""),
        ("target_modules", "[1]"),
        ("modules_to_save", "false"),
        ("rank_pattern", "[]"),
        ("r", "2.5"),
    ] {
        let mut other = config.clone();
        other[key] = serde_json::from_str(value).unwrap();
        f.file("a/adapter_config.json", other.to_string());
        let said = format!("`{key}` is ");
        f.fails(1, "generate --model m --adapter a --prompt the", &["adapter_config.json", &said, "it must be "]);
    }
    let mut other = config;
    other["lora_alpha"] = 1e300.into();
    f.file("a/adapter_config.json", other.to_string());
    for to in ["hf", "limpid", "gguf"] {
        f.fails(1, &format!("convert m out --adapter a --to {to}"), &["`blocks.0.", "is not finite", "lora_alpha"]);
        assert!(!f.0.join("out").exists());
    }
}

#[test]
fn a_second_file_that_contradicts_the_first_is_refused() {
    let f = trained("split");
    f.ok("convert m whole.gguf");
    let (metadata, store) = gguf::open(&f.0.join("whole.gguf")).unwrap();
    let names: Vec<&str> = store.names().collect();
    let (first, last) = names.split_at(names.len() / 2);
    let out = |store: &'static Store, name: &str| {
        let stored = store.get(name).unwrap();
        let (dtype, shape) = (stored.dtype.clone(), stored.shape.to_vec());
        OutputTensor { name: name.into(), dtype, shape, values: vec![], rows: Some(vec![stored.bytes]) }
    };
    let store: &'static Store = Box::leak(Box::new(gguf::open(&f.0.join("whole.gguf")).unwrap().1));
    let mut said = metadata;
    said.set("split.count", gguf::GgufValue::U16(2));
    said.set("split.tensors.count", gguf::GgufValue::I32(names.len() as i32));
    for (other, fits) in [("", true), ("general.architecture", false), ("split.tensors.count", false)] {
        for (no, names) in [first, last].into_iter().enumerate() {
            said.set("split.no", gguf::GgufValue::U16(no as u16));
            let mut own = said.clone();
            if no == 1 && !fits {
                own.set(other, "another".to_string());
            }
            let path = f.0.join(format!("part-{:05}-of-00002.gguf", no + 1));
            gguf::write(&path, &own, names.iter().map(|name| out(store, name)).collect()).unwrap();
        }
        if fits {
            drop(f.both("generate --model part-00001-of-00002.gguf --prompt the"))
        } else {
            drop(f.fails(1, "generate --model part-00001-of-00002.gguf --prompt the", &["part-00002", other]))
        }
    }
}

#[test]
fn whole_numbers_stay_what_they_are_or_are_refused() {
    let f = trained("numbers");
    let big = "9007199254740993"; // 2^53 + 1, which no f64 is
    for (file, text) in [("c.toml", format!("seed = {big}\n")), ("c.json", format!("{{\"seed\": {big}}}"))] {
        f.file(file, text);
        f.both(&format!("train --config {file} --data text.txt --out {file}.run {SMALL}"));
        assert!(common::text(&f.bytes(&format!("{file}.run/limpid.toml"))).contains(big));
    }
    for (file, text) in
        [("d.toml", format!("rotary_base = {big}\n")), ("d.json", format!("{{\"rotary_base\": {big}}}"))]
    {
        f.file(file, text);
        f.fails(2, &format!("train --config {file} --data text.txt --out no {SMALL}"), &[big, "53 bits"]);
    }
    let config: serde_json::Value = serde_json::from_slice(&f.bytes("m/config.json")).unwrap();
    for (key, said) in [("vocab_size", big), ("rotary_base", "53 bits")] {
        let mut other = config.clone();
        other[key] = serde_json::from_str(big).unwrap();
        f.file("m/config.json", other.to_string());
        f.fails(1, "generate --model m --prompt the", &["config.json", big, said]);
    }
}

#[test]
fn a_pipe_or_a_device_in_a_files_place_is_refused_at_once() {
    let f = trained("pipes");
    f.both("train --data text.txt --from m --lora 2 --out a --steps 2 --batch-size 4");
    f.ok("convert m hf --to hf");
    f.ok("convert m m.gguf");
    f.file("hf/chat_template.jinja", "{{ messages }}");
    f.file("hf/generation_config.json", "{}");
    f.file("hf/tokenizer_config.json", "{}");
    f.file("own.jinja", "{{ messages }}");
    f.file("own.toml", "steps = 2\n");
    let hf = "generate --model hf --prompt the";
    let adapter = "generate --model m --adapter a --prompt the";
    for (file, arguments) in [
        ("m/config.json", "generate --model m --prompt the"),
        ("m/tokenizer.json", "generate --model m --prompt the"),
        ("m/model.safetensors", "generate --model m --prompt the"),
        ("m/limpid.toml", "train --resume m"),
        ("m/state/last.safetensors", "train --resume m --steps 3"),
        ("hf/config.json", hf),
        ("hf/tokenizer.json", hf),
        ("hf/tokenizer_config.json", hf),
        ("hf/generation_config.json", hf),
        ("hf/chat_template.jinja", hf),
        ("hf/model.safetensors", hf),
        ("hf/model.safetensors.index.json", hf),
        ("a/adapter_config.json", adapter),
        ("a/adapter_model.safetensors", adapter),
        ("a/base.json", adapter),
        ("m.gguf", "generate --model m.gguf --prompt the"),
        ("own.jinja", "generate --model m --chat hello --chat-template own.jinja"),
        ("own.toml", "train --config own.toml --data text.txt --out no"),
        ("receipt.json", "replay receipt.json --model m"),
    ] {
        let path = f.0.join(file);
        let was = fs::read(&path).ok();
        for device in [false, true] {
            _ = fs::remove_file(&path);
            if device {
                symlink("/dev/zero", &path).unwrap()
            } else {
                assert!(Command::new("mkfifo").arg(&path).status().unwrap().success())
            }
            let name = Path::new(file).file_name().unwrap().to_str().unwrap();
            refused(&f, arguments, &[name, "pipe or a device"]);
        }
        fs::remove_file(&path).unwrap();
        was.iter().for_each(|was| drop(f.file(file, was)));
    }
}

//! Models in files, from the command line: where they may be written, what is opened, and what there is no room for.
#![cfg(unix)]

use crate::common::{Folder, LIMPID, refused, text};
use limpid::checkpoint::gguf;
use limpid::checkpoint::store::OutputTensor;
use std::fs;
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};
use std::time::Duration;

const SMALL: &str =
    "--d-model 32 --n-head 2 --n-layer 2 --d-ff 64 --positions learned --context-length 16 --steps 2 --batch-size 4";

/// A folder with a text and a model that learned from it.
fn trained(name: &str) -> Folder {
    let f = Folder::new(name);
    f.file("text.txt", "the quick brown fox jumps over the lazy dog. ".repeat(100));
    f.both(&format!("train --data text.txt --out m --activation gelu-tanh {SMALL}"));
    f
}

/// A file of the library's fixtures.
fn fixture(name: &str) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../limpid/fixtures").join(name)
}

#[test]
#[ignore = "gate"]
fn convert_writes_over_nothing_unasked_and_replaces_whole() {
    let f = trained("places");
    f.ok("convert m hf --max-shard-size 1");
    let old = f.names("hf");
    f.fails(1, "convert m hf", &["hf is there already", "--force"]);
    f.fails(1, "convert m hf/ --to limpid", &["is there already", "--force"]);
    f.file("hf/merges.txt", "stale");
    f.file("hf/model-00001-of-00002.safetensors", "stale");
    f.ok("convert m hf --force --verify");
    assert_eq!(f.names("hf"), old, "nothing of the old one stays");
    assert!(f.names(".").iter().all(|name| !name.contains("partial") && !name.contains("old")));
    f.file("hf/README.md", "mine");
    f.fails(1, "convert m hf --force", &["\"README.md\"", "no part of a model"]);
    assert_eq!(f.bytes("hf/README.md"), b"mine");
    f.fails(1, "convert hf m --force --to limpid", &["no part of a model", "limpid.toml"]); // a run's folder
    // single files
    f.ok("convert m m.gguf");
    let whole = f.bytes("m.gguf");
    f.fails(1, "convert m m.gguf --dtype f16", &["m.gguf is there already", "--force"]);
    assert_eq!(f.bytes("m.gguf"), whole);
    f.ok("convert m m.gguf --dtype f16 --force");
    assert_ne!(f.bytes("m.gguf"), whole);
    f.fails(1, "convert m m.gguf --to hf --force", &["is there already", "a model as hf is a folder"]);
    f.fails(1, "convert m hf --to gguf --force", &["is there already", "a model as gguf is one file"]);
    // one inside the other, by whatever way
    symlink("m", f.0.join("link")).unwrap();
    symlink("nowhere", f.0.join("dangling")).unwrap();
    fs::create_dir_all(f.0.join("outer/empty")).unwrap();
    f.ok("convert m outer/inner --to limpid");
    for what in ["m m", "m ./m/", "m link", "link m", "m outer/../m"] {
        f.fails(1, &format!("convert {what} --to limpid --force"), &["written over itself"]);
    }
    for what in ["m m/sub", "m link/sub", "outer/inner outer", "m m/model.safetensors --to gguf"] {
        f.fails(1, &format!("convert {what} --force"), &["one inside the other"]);
    }
    f.fails(1, "convert m dangling", &["is there already"]);
    f.fails(1, "convert m dangling --force", &["a link to a missing file or folder"]);
    f.fails(1, "convert m /dev/null --to gguf --force", &["a device"]);
    f.ok("convert m m/beside.gguf"); // a new file beside others is no harm
    f.ok("convert m outer/empty --to limpid");
    symlink("outer/inner", f.0.join("way")).unwrap();
    f.ok("convert m way --to hf --force");
    assert!(fs::symlink_metadata(f.0.join("way")).unwrap().is_symlink() && f.names("outer/inner") == old);
    // names of what limpid does not write
    for what in
        ["x.onnx", "x.PT", "x.safetensors", "x.bin --to hf", "x.gguf --to limpid", "x.gguf --to llmc", "x.pt --to gguf"]
    {
        f.fails(1, &format!("convert m {what}"), &["limpid writes folders (hf and limpid), .gguf and llm.c's .bin"]);
    }
    f.ok("convert m v0.2"); // a point is no ending
    f.fails(1, "inspect --model m --prompt the --save m/model.safetensors", &["this command reads"]);
    f.fails(1, "inspect --model m.gguf --prompt the --save m.gguf", &["this command reads"]);
    // a folder of a tokenizer holds one tokenizer
    f.ok("tokenize train text.txt --vocab-size 270 --out tok/folder --quiet");
    f.ok("tokenize train text.txt --kind char --out tok/folder --quiet --force");
    assert_eq!(f.names("tok/folder"), ["tokenizer.json", "tokenizer_config.json"]);
    f.fails(
        1,
        "tokenize train text.txt --kind char --out m --format folder --quiet --force",
        &["not a tokenizer file"],
    );
}

/// What is taken along, left behind and ignored is said, each in a line; a SentencePiece file is named with the mend.
#[test]
#[ignore = "gate"]
fn convert_says_what_goes_along_and_what_does_not() {
    let f = trained("along");
    f.ok("convert m hf");
    let config = String::from_utf8(f.bytes("hf/config.json")).unwrap();
    f.file("hf/config.json", config.replacen('{', "{\"unsloth_version\": \"1\", \"auto_map\": {\"a\": \"b\"},", 1));
    f.file("hf/generation_config.json", r#"{"eos_token_id": [1, 2]}"#);
    f.file("hf/README.md", "mine");
    let said = f.ok("convert hf own --verify");
    for (row, names) in [
        ("carried", "generation_config.json, merges.txt, tokenizer_config.json, vocab.json: as they are"),
        ("left behind", "README.md: limpid does not read them"),
        ("ignored", "auto_map, unsloth_version: keys of config.json that change no number"),
        ("", "samples are the same"),
    ] {
        assert!(said.lines().any(|line| line.contains(row) && line.contains(names)), "{row}: {said}");
    }
    assert_eq!(f.bytes("own/generation_config.json"), f.bytes("hf/generation_config.json"));
    let value = f.json("convert own back --json --verify");
    let files = ["generation_config.json", "merges.txt", "tokenizer_config.json", "vocab.json"];
    assert_eq!(value["carried"], serde_json::json!(files));
    assert!(value["texts_compared"].as_u64().unwrap() > 1);
    assert!(!String::from_utf8(f.bytes("back/config.json")).unwrap().contains("auto_map"));
    let value = f.json("convert own back.gguf --json");
    assert_eq!(value["left_behind"], serde_json::json!(["generation_config.json"]));
    // a training that goes on from it has the same beside its weights, in the place of what was there; an adapter's
    // folder has not
    fs::create_dir(f.0.join("tuned")).unwrap();
    f.file("tuned/generation_config.json", "stale");
    let goes_on = "--data text.txt --sample 0 --steps 1 --batch-size 2 --context 8";
    let (_, said) = f.both(&format!("train --from hf {goes_on} --out tuned --force"));
    assert!(
        said.contains("\ncarried: generation_config.json, merges.txt, tokenizer_config.json, vocab.json: as they are")
    );
    assert!(said.contains("\nleft behind: README.md: limpid does not read them\n"), "{said}");
    for name in files {
        assert_eq!(f.bytes(&format!("tuned/{name}")), f.bytes(&format!("hf/{name}")), "{name}");
    }
    assert_eq!(f.bytes("tuned/config.hf.json"), f.bytes("hf/config.json"));
    assert_eq!(f.json("convert tuned tuned-hf --json")["carried"], serde_json::json!(files));
    let (_, said) = f.both(&format!("train --from hf {goes_on} --lora 2 --out adapter"));
    assert!(!said.contains("carried") && !f.0.join("adapter/generation_config.json").exists(), "{said}");
    // another tokenizer, or none: the ids of the old one do not go along
    let value = f.json("convert own none --tokenizer none --json");
    assert_eq!(
        (&value["carried"], &value["left_behind"][0]),
        (&serde_json::json!([]), &"generation_config.json".into())
    );
    let config = String::from_utf8(f.bytes("none/config.json")).unwrap();
    assert!(config.contains("\"eos_token_id\": null"), "{config}");
    // the special tokens are the tokenizer's own: a beginning that is not the end
    let all = concat!(env!("CARGO_MANIFEST_DIR"), "/../limpid-tokenizer/fixtures/tokenizers.json");
    let all: serde_json::Value = serde_json::from_str(&fs::read_to_string(all).unwrap()).unwrap();
    f.file("t.json", all["byte-fallback"]["files"]["tokenizer.json"].as_str().unwrap());
    f.both(&format!("train --data text.txt --tokenizer t.json --out framed {SMALL}"));
    f.ok("convert framed framed-hf");
    let keys = |name: &str| serde_json::from_slice::<serde_json::Value>(&f.bytes(name)).unwrap();
    let (model, about) = (keys("framed-hf/config.json"), keys("framed-hf/tokenizer_config.json"));
    assert_eq!((&about["bos_token"], &about["eos_token"]), (&"<s>".into(), &"</s>".into()));
    let ids = ["bos_token_id", "eos_token_id", "pad_token_id"].map(|key| model[key].as_u64());
    assert_eq!(ids, [Some(1), Some(2), None]);
    // SentencePiece's own file
    f.file("none/tokenizer.model", b"\x0a\x0e\xff\x00");
    let mend = "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)";
    f.fails(1, "generate --model none --prompt a", &["tokenizer.model", "SentencePiece", mend]);
    f.fails(1, "convert m x --tokenizer none/tokenizer.model", &["tokenizer.model", "SentencePiece", mend]);
    assert!(f.ok("convert none y --to limpid").contains(mend));
    // a name that a program wrote is known or not, never mistyped
    f.file("none/config.json", config.replace("\"gpt2\"", "\"xglm\""));
    f.fails(1, "params --model none", &["limpid does not support model_type `xglm`", "gpt2, gpt_bigcode"]);
}

/// What one file has no place for is said, and the tokens that pad and mask go along: named by tokenizer_config.json,
/// or by themselves.
#[test]
fn one_file_says_what_it_has_no_place_for() {
    let f = Folder::new("one-file");
    f.file("text.txt", "the quick brown fox jumps over the lazy dog. ".repeat(100));
    f.both(&format!("train --data text.txt --out m --activation gelu-tanh {SMALL} --d-ff 128"));
    f.ok("convert m hf");
    let mut about: serde_json::Value = serde_json::from_slice(&f.bytes("hf/tokenizer_config.json")).unwrap();
    about["pad_token"] = "<|endoftext|>".into();
    about["chat_template"] = serde_json::json!([
        { "name": "default", "template": "{{ messages }}" },
        { "name": "tool_use", "template": "{{ tools }}" },
    ]);
    f.file("hf/tokenizer_config.json", about.to_string());
    let value = f.json("convert hf hf.gguf --json --verify");
    assert_eq!(value["left_behind"], serde_json::json!(["the chat template `tool_use`"]));
    let whole = gguf::open(&f.0.join("hf.gguf")).unwrap().0;
    let end = whole.u64("tokenizer.ggml.eos_token_id").unwrap();
    assert_eq!(whole.strings("tokenizer.ggml.tokens").unwrap()[end as usize], "<|endoftext|>");
    let role = |name: &str| whole.u64(&format!("tokenizer.ggml.{name}_token_id")).ok();
    assert_eq!((role("padding"), role("mask")), (Some(end), None));
    assert_eq!(whole.str("tokenizer.chat_template").unwrap(), "{{ messages }}");
    let left = serde_json::json!(["the chat template `tool_use`", "the chat template"]);
    assert_eq!(f.json("convert hf hf.bin --json")["left_behind"], left);
    assert_eq!(f.json("convert m m.bin --json --force")["left_behind"], serde_json::json!([]));
    // what a GGUF file says beside its model
    let keys = serde_json::json!(["general.name", "tokenizer.ggml.padding_token_id"]);
    assert_eq!(f.json("convert hf.gguf own --json")["metadata_left_out"], keys);
}

/// The types that were written are said, where they are not what was asked for too; and rows of the model that no token
/// has.
#[test]
fn convert_says_which_types_and_tokens_there_are() {
    let f = trained("types");
    let value = f.json("convert m q.gguf --dtype q4_k --json");
    assert_eq!(value["dtype"], "Q8_0"); // rows of 32
    let said = f.ok("convert m q4.gguf --dtype q4_k");
    assert!(said.contains("(gguf, Q8_0)") && said.contains("no matrix is stored as Q4_K"), "{said}");
    assert_eq!(f.json("convert m f.gguf --json")["dtype"], "F32");
    assert!(!f.ok("convert m q8.gguf --dtype q8_0").contains("no matrix is stored as"));
    assert_eq!(f.json("convert q8.gguf same.gguf --json")["dtype"], "F32, Q8_0"); // a table of positions, too
    // what is said of types stays behind with them
    let (mut keys, store) = gguf::open(&f.0.join("q8.gguf")).unwrap();
    keys.set("quantize.imatrix.file", "imatrix.dat".to_string());
    let tensors = store.names().map(|name| {
        let stored = store.get(name).unwrap();
        let (dtype, shape) = (stored.dtype.clone(), stored.shape.to_vec());
        OutputTensor { name: name.into(), dtype, shape, values: vec![], rows: Some(vec![stored.bytes]) }
    });
    gguf::write(&f.0.join("imatrix.gguf"), &keys, tensors.collect()).unwrap();
    let left =
        |how: &str| f.json(&format!("convert imatrix.gguf left.gguf --force --json{how}"))["metadata_left_out"].clone();
    assert_eq!(left(""), serde_json::json!([]));
    assert_eq!(left(" --dtype f32"), serde_json::json!(["quantize.imatrix.file"]));
    let all = fs::read_to_string(fixture("../../limpid-tokenizer/fixtures/tokenizers.json")).unwrap();
    let all: serde_json::Value = serde_json::from_str(&all).unwrap();
    let words = all["words"]["files"]["tokenizer.json"].as_str().unwrap();
    f.file("words.json", words);
    let tokens = limpid::tokenizer::Tokenizer::from_json(words).unwrap().vocab_size() as u64;
    let config: serde_json::Value = serde_json::from_slice(&f.bytes("m/config.json")).unwrap();
    let rows = config["vocab_size"].as_u64().unwrap();
    assert!(tokens < rows);
    let value = f.json("convert m few --to limpid --tokenizer words.json --json");
    assert_eq!(value["rows_without_token"], rows - tokens);
    let said = f.ok("convert few again --to hf");
    assert!(said.contains(&format!("has {tokens} tokens, and the model rows for {rows}")), "{said}");
    assert_eq!(f.json("convert m whole --to hf --json")["rows_without_token"], 0);
}

/// llama.cpp leaves texts as they are where Qwen's tokenizer brings them to NFC: they are compared after it, and that
/// is said.
#[test]
#[ignore = "gate"]
fn verify_compares_what_a_tokenizer_brings_to_nfc() {
    let f = Folder::new("nfc");
    f.file("text.txt", "the quick brown fox jumps over the lazy dog. ".repeat(100));
    let all = fs::read_to_string(fixture("../../limpid-tokenizer/fixtures/tokenizers.json")).unwrap();
    let all: serde_json::Value = serde_json::from_str(&all).unwrap();
    let mut file: serde_json::Value =
        serde_json::from_str(all["gpt-4"]["files"]["tokenizer.json"].as_str().unwrap()).unwrap();
    // what Qwen 2 has
    let split = &mut file["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"];
    *split = split.as_str().unwrap().replace(r"\p{N}{1,3}", r"\p{N}").into();
    file["normalizer"] = serde_json::json!({ "type": "NFC" });
    file["model"]["ignore_merges"] = false.into();
    for token in file["added_tokens"].as_array_mut().unwrap() {
        token["rstrip"] = false.into();
    }
    f.file("qwen.json", file.to_string());
    f.both(&format!("train --data text.txt --tokenizer qwen.json --out m --activation gelu-tanh {SMALL}"));
    let said = f.ok("convert m m.gguf --verify");
    assert!(said.contains("does not normalise texts to NFC") && said.contains("samples are the same, of "), "{said}");
    let value = f.json("convert m n.gguf --verify --json");
    assert_eq!((&value["verified"], value["first_difference"].is_null()), (&true.into(), true), "{value}");
    assert!(
        value["of_these_after_nfc"].as_u64().is_some_and(|n| n > 0 && n < value["texts_compared"].as_u64().unwrap())
    );
    assert_eq!(f.json("convert m other --to hf --verify --json")["of_these_after_nfc"], 0);
}

/// llama.cpp puts a blank before every part of a text where Llama's tokenizer puts one before its beginning: that is
/// said, and such texts are not compared.
#[test]
fn verify_leaves_out_texts_before_which_llama_cpp_puts_a_blank() {
    let f = Folder::new("blank");
    f.file("text.txt", "the quick brown fox jumps over the lazy dog. ".repeat(100));
    let all = fs::read_to_string(fixture("../../limpid-tokenizer/fixtures/tokenizers.json")).unwrap();
    let all: serde_json::Value = serde_json::from_str(&all).unwrap();
    let file = all["byte-fallback"]["files"]["tokenizer.json"].as_str().unwrap();
    let mut file: serde_json::Value = serde_json::from_str(file).unwrap();
    file["normalizer"] = serde_json::Value::Null;
    file["pre_tokenizer"] =
        serde_json::json!({ "type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": false });
    f.file("llama.json", file.to_string());
    f.both(&format!("train --data text.txt --tokenizer llama.json --out m --activation gelu-tanh {SMALL}"));
    let said = f.ok("convert m m.gguf --verify");
    assert!(
        said.contains("only before a text that begins with none") && said.contains("samples are the same"),
        "{said}"
    );
    let value = f.json("convert m n.gguf --verify --json");
    assert!(value["texts_compared"].as_u64().is_some_and(|n| (5..12).contains(&n)), "{value}");
}

/// A conversion that is killed leaves the old model or the new one, whole.
#[test]
#[ignore = "gate"]
fn a_killed_conversion_leaves_the_old_or_the_new() {
    let f = trained("killed");
    f.ok("convert m x --to limpid");
    f.ok("convert m other --to limpid --dtype bf16");
    let (old, new) = (f.bytes("x/model.safetensors"), f.bytes("other/model.safetensors"));
    for wait in 0..12 {
        let dtype = if wait % 2 == 0 { "bf16" } else { "f32" };
        let mut child = f
            .command(&format!("convert m x --to limpid --force --dtype {dtype}"))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(4 * wait));
        child.kill().unwrap();
        child.wait().unwrap();
        let found = f.bytes("x/model.safetensors");
        assert!(found == old || found == new, "after {wait}: {} bytes", found.len());
        f.ok("params --model x");
    }
}

#[test]
fn pipes_devices_and_files_without_end_are_no_models() {
    let f = trained("endless");
    assert!(Command::new("mkfifo").arg(f.0.join("pipe")).status().unwrap().success());
    for (name, file, target) in [
        ("zero", "config.json", "/dev/zero"),
        ("fifo", "config.json", "../pipe"),
        ("weights", "model.safetensors", "../pipe"),
        ("tokens", "tokenizer.json", "/dev/zero"),
        ("merges", "vocab.txt", "../pipe"),
    ] {
        f.ok(&format!("convert m {name} --to limpid"));
        let _ = fs::remove_file(f.0.join(name).join("tokenizer.json"));
        let _ = fs::remove_file(f.0.join(name).join(file));
        symlink(target, f.0.join(name).join(file)).unwrap();
        refused(&f, &format!("params --model {name}"), &[file]);
    }
    f.ok("convert m index --to hf");
    fs::remove_file(f.0.join("index/model.safetensors")).unwrap();
    symlink("/dev/zero", f.0.join("index/model.safetensors.index.json")).unwrap();
    refused(&f, "params --model index", &["index.json", "a pipe or a device"]);
    fs::create_dir(f.0.join("adapter")).unwrap();
    symlink("../pipe", f.0.join("adapter/adapter_config.json")).unwrap();
    refused(&f, "params --model adapter", &["adapter_config.json", "a pipe or a device"]);
    for device in ["pipe", "/dev/zero", "/dev/null"] {
        refused(&f, &format!("params --model {device}"), &["a pipe or a device: a model is a folder or a file"]);
    }
}

/// A model with a weight that is no number is never said to know a text this or that well.
#[test]
fn a_model_with_a_weight_that_is_no_number_is_an_error_that_names_it() {
    let f = trained("nan");
    for (name, value) in [("nan", f32::NAN), ("inf", f32::INFINITY)] {
        f.ok(&format!("convert m {name} --to limpid --force"));
        let mut bytes = f.bytes(&format!("{name}/model.safetensors"));
        let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let json: serde_json::Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
        let tensor = "blocks.0.mlp.in.weight";
        let at = 8 + header + json[tensor]["data_offsets"][0].as_u64().unwrap() as usize + 40;
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        // as by a program that writes no checksum
        let sum = bytes.windows(6).position(|word| word == b"\"xxh3\"").unwrap();
        bytes[sum..sum + 6].copy_from_slice(b"\"sum_\"");
        f.file(&format!("{name}/model.safetensors"), bytes);
        for verb in [
            "eval --data text.txt",
            "eval --data text.txt --json",
            "inspect --prompt the",
            "inspect --prompt the --json",
        ] {
            f.fails(1, &format!("{verb} --model {name}"), &[tensor]);
        }
        assert!(!f.run(&format!("eval --data text.txt --json --model {name}")).stdout.starts_with(b"{"), "no null");
        f.fails(1, &format!("generate --model {name} --prompt the"), &["damaged"]);
        f.fails(1, &format!("params --check --model {name}"), &[tensor]);
    }
}

/// `ulimit -v` is kept to: with the figure where it is known before, and without a panic wherever it is met.
#[test]
#[ignore = "gate"]
fn what_the_shell_allows_is_kept_to() {
    let f = trained("ulimit");
    let run = |kilobytes: u64, arguments: &str| {
        let script = format!("ulimit -v {kilobytes}; exec {LIMPID} {arguments}");
        let out = Command::new("sh").args(["-c", &script]).current_dir(&f.0).stdin(Stdio::null()).output().unwrap();
        (out.status.code(), text(&out.stderr))
    };
    for arguments in [
        "bench decode --preset gpt2 --tokens 1",
        "bench train --preset gpt2 --batch-size 1 --context-length 8",
        "train --data text.txt --preset gpt2 --out none --batch-size 1 --context-length 8",
        "check --data text.txt --preset gpt2 --context-length 8",
        "inspect --preset gpt2 --tokens 1",
    ] {
        let (code, said) = run(600_000, arguments);
        let known = said.contains("left of the 614.4 MB that ulimit -v allows");
        assert!(code == Some(1) && known && said.contains("needs "), "{arguments}: {code:?} {said}");
    }
    assert!(!f.0.join("none").exists());
    // what fits as f32 and not as f64: 25 million parameters, 0.4 GB and 1 GB to train
    let wide = "bench train --preset nano --d-model 512 --d-ff 2048 --n-layer 8 --batch-size 1 --context-length 8 \
                --device reference";
    let (code, said) = run(900_000, wide);
    assert!(
        code == Some(1) && said.contains("needs 1.") && said.contains("--device cpu takes half"),
        "{code:?} {said}"
    );
    // wherever it is met, from little more than this build takes to be loaded (with a module for pages in it): threads,
    // memory, a model's own tables
    for kilobytes in (72_000..240_000).step_by(12_000) {
        for arguments in ["eval --model m --data text.txt --threads 48", "inspect --model m --prompt the --threads 48"]
        {
            let (code, said) = run(kilobytes, arguments);
            assert!(
                matches!(code, Some(0 | 1)) && !said.contains("panicked"),
                "{kilobytes} {arguments}: {code:?} {said}"
            );
        }
    }
    let sizes = "eval --model m --data text.txt --batch-size";
    for size in ["4611686018427387904", "18446744073709551615", "1000000000000"] {
        f.fails(1, &format!("{sizes} {size}"), &[]);
    }
    for (segments, said) in
        [("9223372036854775807", "n_segment"), ("4611686018427387904", "n_segment"), ("1099511627775", "of memory")]
    {
        // what it would take is counted in little memory
        let (code, error) = run(600_000, &format!("train --data text.txt --out none --n-segment {segments}"));
        assert!(matches!(code, Some(1 | 2)) && error.contains(said), "{code:?} {error}");
    }
}

/// Every verb that runs a model runs it on the device that is named: the same losses, gradients and tokens to rounding.
#[test]
fn a_device_is_chosen_by_name() {
    let f = trained("devices");
    let on = |verb: &str, device: &str| f.json(&format!("{verb} --device {device} --json"));
    let loss = |device| on("eval --model m --data text.txt --context-length 8", device)["loss"].as_f64().unwrap();
    let (cpu, reference) = (loss("cpu"), loss("reference"));
    assert!(cpu != reference && (cpu - reference).abs() < 1e-5 * cpu, "f64 is not f32, but near: {cpu} {reference}");
    let total = |device| on("eval --model m --prompt the --continuation quick", device)["total"].as_f64().unwrap();
    assert!(total("cpu") != total("reference") && (total("cpu") - total("reference")).abs() < 1e-4);
    let train = |device| {
        let small = SMALL.replace("--steps 2", "--steps 1");
        let summary = on(&format!("train --data text.txt --out on-{device} {small}"), device);
        summary["val_loss"].as_f64().unwrap()
    };
    let (cpu, reference) = (train("cpu"), train("reference"));
    assert!(cpu != reference && (cpu - reference).abs() < 1e-5 * cpu, "{cpu} {reference}");
    f.fails(2, "eval --model m --data text.txt --device tpu", &["device", "tpu", "cpu", "gpu", "reference"]);
    if cfg!(not(feature = "gpu")) {
        f.fails(1, "eval --model m --data text.txt --device gpu", &["gpu", "feature", "cpu"]);
    }
    let both = "eval --model m --data text.txt --device reference --precision bf16";
    f.fails(1, both, &["cannot do products of bf16: the reference computes in f64"]);
}

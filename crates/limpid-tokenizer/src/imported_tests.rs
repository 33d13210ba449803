//! Other programs' tokenizers: HuggingFace's ids, GGUF's view, and files that are not what they seem.

use std::{collections::BTreeMap, fs, path::Path};

use serde::Deserialize;
use serde_json::{Value, json};

use super::{tests::Random, *};

#[derive(Deserialize)]
struct Case {
    text: String,
    ids: Vec<u32>,
    framed: Option<Vec<u32>>,
    ordinary: Option<Vec<u32>>,
    decoded: Option<String>,
}

#[derive(Deserialize)]
struct Folder {
    files: BTreeMap<String, String>,
    like: Option<String>,
    cases: Option<Vec<Case>>,
}

/// A tokenizer.json as another program's, whatever it is.
pub(super) fn imported(json: String) -> ImportedTokenizer {
    ImportedTokenizer::new(spec::parse(&json).unwrap(), json).unwrap()
}

fn fixtures() -> BTreeMap<String, Folder> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/tokenizers.json");
    let mut all: BTreeMap<String, Folder> = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    // GPT-2's two files hold what the model of tokenizer.json does.
    let model: Value = serde_json::from_str(&all["byte-level"].files["tokenizer.json"]).unwrap();
    let files = &mut all.get_mut("gpt2-files").unwrap().files;
    files.insert("vocab.json".into(), model["model"]["vocab"].to_string());
    all
}

#[path = "../../limpid/tests/library/common/folder.rs"]
mod folder;
pub(super) use folder::Folder as Scratch;

impl Scratch {
    /// Opens a folder of just these files.
    pub(super) fn open<'a>(
        &self,
        files: impl IntoIterator<Item = (&'a str, &'a [u8])>,
    ) -> Result<Option<Tokenizer>, TokenizerError> {
        for old in fs::read_dir(&self.0).unwrap() {
            fs::remove_file(old.unwrap().path()).unwrap();
        }
        for (name, bytes) in files {
            fs::write(self.0.join(name), bytes).unwrap();
        }
        Tokenizer::open(&self.0)
    }
}

/// Every fixture, opened.
fn opened() -> Vec<(String, Tokenizer, Vec<Case>)> {
    let all = fixtures();
    let scratch = Scratch::new(&format!("all-{:?}", std::thread::current().id()).replace(['(', ')'], ""));
    let open = |folder: &Folder| {
        let shared = folder.like.iter().flat_map(|like| &all[like].files).filter(|(n, _)| *n != "tokenizer.json");
        let files = shared.chain(&folder.files).map(|(name, text)| (name.as_str(), text.as_bytes()));
        scratch.open(files).unwrap().unwrap()
    };
    let tokenizers: Vec<Tokenizer> = all.values().map(open).collect();
    let mut found: Vec<_> = all
        .into_iter()
        .zip(tokenizers)
        .map(|((name, folder), tokenizer)| (name, tokenizer, folder.cases.unwrap_or_default()))
        .collect();
    assert_eq!(found.len(), 14);
    // Shared too: the cases of GPT-2's files.
    let again = fixtures().remove("byte-level").and_then(|folder| folder.cases).unwrap();
    found.iter_mut().find(|(name, ..)| name == "gpt2-files").unwrap().2 = again;
    found
}

fn streamed(tokenizer: &Tokenizer, ids: &[u32]) -> String {
    let mut stream = TextStream::new(tokenizer);
    let text: String = ids.iter().map(|&id| stream.push(id).unwrap()).collect();
    text + &stream.finish()
}

#[test]
fn the_ids_are_huggingfaces() {
    for (name, tokenizer, cases) in opened() {
        assert!(cases.len() > 15, "{name}");
        for case in cases {
            let what = format!("{name}: {:?}", case.text);
            let ids = tokenizer.encode(&case.text).unwrap();
            assert_eq!(ids, case.ids, "{what}");
            assert_eq!(
                &tokenizer.encode_ordinary(&case.text).unwrap(),
                case.ordinary.as_ref().unwrap_or(&ids),
                "{what}"
            );
            if let Some(framed) = &case.framed {
                assert_eq!(&tokenizer.encode_for_model(&case.text).unwrap(), framed, "{what}");
            }
            let decoded = tokenizer.decode(&ids).unwrap();
            assert_eq!(&decoded, case.decoded.as_ref().unwrap_or(&case.text), "{what}");
            assert_eq!(streamed(&tokenizer, &ids), decoded, "{what}");
        }
    }
}

/// Special tokens that are given apart have the ids that they have in a text, and text that looks like one has those of
/// text.
#[test]
fn special_tokens_may_be_given_apart() {
    let (mut random, mut compared) = (Random(11), 0);
    for (name, tokenizer, _) in opened() {
        let specials: Vec<(String, u32)> =
            tokenizer.specials().into_iter().map(|(text, id)| (text.into(), id)).collect();
        for _ in 0..60 {
            let (mut parts, mut whole) = (vec![], String::new());
            for _ in 0..1 + random.below(4) {
                let text = random.text(3);
                let looks = specials.iter().any(|(special, _)| text.contains(special.as_str()));
                let text = if looks { " a".into() } else { text };
                let (special, id) = &specials[random.below(specials.len())];
                whole += &[&text, special.as_str()].concat();
                parts.extend([TextPart::Plain(text), TextPart::Special(*id)]);
            }
            assert_eq!(tokenizer.encode_parts(&parts).unwrap(), tokenizer.encode(&whole).unwrap(), "{name}: {parts:?}");
            compared += 1;
            let plain = [TextPart::Plain(whole.clone())];
            assert_eq!(
                tokenizer.encode_parts(&plain).unwrap(),
                tokenizer.encode_ordinary(&whole).unwrap(),
                "{name}: {whole}"
            );
        }
        if tokenizer.vocab_size() > 0 && tokenizer.split().is_none() && !matches!(tokenizer, Tokenizer::Dense(_)) {
            let error = tokenizer.encode_parts(&[TextPart::Plain("a\u{fdd0}".into())]);
            assert!(error.is_err_and(|error| error.to_string().contains("U+FDD0")), "{name}");
        }
    }
    assert!(compared > 800, "{compared}");
}

/// Their crate needs 160 bytes for one of text, so long texts go through it in parts; the ids are those of the whole.
#[test]
#[ignore = "gate"]
fn long_texts_in_parts_have_the_ids_of_the_whole() {
    let mut random = Random(3);
    let words =
        ["the", "dogs don't", "Été", "▁x", "<unk>", "</s> ", "<s>a", "  ", "\n", "10 ", "[UNK]", "a b", "猫 ", "ﬁ"];
    let text: String = (0..60_000)
        .map(|i| if i % 9 == 0 { random.text(4) } else { format!(" {}", words[random.below(14)]) })
        .collect();
    let mut parted = vec![];
    for (name, tokenizer, _) in opened() {
        let Tokenizer::Imported(imported) = &tokenizer else { panic!("{name}") };
        let Some(parting) = imported.engines().and_then(|engines| engines.parting) else { continue };
        let whole = imported.spec().unwrap().build().unwrap().encode_fast(text.as_str(), false).unwrap();
        assert!(tokenizer.encode(&text).unwrap() == whole.get_ids(), "{name}");
        parted.push((name, parting));
    }
    let (before, within) = (engine::Parting::Before, engine::Parting::Within);
    let wanted = "bert-cased-files bert-files byte-fallback gpt-4 gpt1-files opt-files qwen2-files \
                  roberta-masked-files unigram words";
    let wanted = wanted.split(' ').map(|n| (n.to_string(), if n == "byte-fallback" { within } else { before }));
    assert_eq!(parted, wanted.collect::<Vec<_>>());
    // a token that goes over a blank, a step that looks further: not in parts
    let all = fixtures();
    let parting = |name: &str, from: &str, to: &str| {
        let json = &all[name].files["tokenizer.json"];
        assert!(json.contains(from));
        imported(json.replace(from, to)).engines().unwrap().parting
    };
    assert_eq!(parting("words", "\"Whitespace\"", "\"UnicodeScripts\""), None);
    assert_eq!(parting("words", "\"[PAD]\"", "\"[P D]\""), None);
    assert_eq!(parting("byte-fallback", "\"ignore_merges\":false", "\"ignore_merges\":true"), None);
}

#[test]
fn what_a_folder_says_is_known() {
    for (name, tokenizer, _) in opened() {
        let facts = (tokenizer.name(), tokenizer.bos(), tokenizer.end_of_text());
        let expected = match name.as_str() {
            "byte-level" | "gpt2-files" => ("bpe", None, Some(0)),
            "gpt-4" => ("bpe", tokenizer.special("<s>"), tokenizer.special("<|endoftext|>")),
            "byte-fallback" => ("bpe", Some(1), Some(2)),
            "gpt1-files" => ("bpe", None, None),
            "roberta-files" | "roberta-masked-files" => ("bpe", Some(0), Some(2)),
            "qwen2-files" => ("bpe", None, tokenizer.special("<|im_end|>")),
            "opt-files" => ("bpe", tokenizer.special("</s>"), Some(0)),
            "unigram" => ("unigram", None, Some(1)),
            "words" => ("wordlevel", None, None),
            "precompiled" => ("unigram", Some(1), Some(2)),
            _ => ("wordpiece", tokenizer.special("[CLS]"), None),
        };
        assert_eq!(facts, expected, "{name}");
        let back = Tokenizer::from_json(&tokenizer.to_json()).unwrap();
        if name.ends_with("-files") {
            // the class and tokenizer_config.json stay where they are, and their begin and end of a text with them
            assert_eq!((back.to_json(), back.bos()), (tokenizer.to_json(), tokenizer.bos()), "{name}");
        } else {
            assert_eq!(back, tokenizer, "{name}");
        }
        let size = tokenizer.vocab_size() as u32;
        assert!(tokenizer.decode(&[size]).is_err() && tokenizer.piece(size).is_err(), "{name}");
        tokenizer.pieces(&(0..size).collect::<Vec<_>>()).unwrap();
    }
    let scratch = Scratch::new("config");
    assert!(scratch.open([]).unwrap().is_none());
    let all = fixtures();
    let json = all["byte-fallback"].files["tokenizer.json"].as_bytes();
    let config = br#"{"bos_token": {"content": "<s>"}, "eos_token": "<0x0A>", "add_bos_token": false}"#;
    let tokenizer = scratch.open([("tokenizer.json", json), ("tokenizer_config.json", config)]).unwrap().unwrap();
    // as in transformers 5 the flag says nothing where a tokenizer.json has a post_processor
    assert_eq!((tokenizer.bos(), tokenizer.end_of_text()), (Some(1), Some(3 + 10)));
    assert_eq!(tokenizer.special("<0x0A>"), Some(13)); // what is named to end a text is special
    let tokenizer = scratch.open([("tokenizer.json", json), ("tokenizer_config.json", br#"{"eos_token": "</s>"}"#)]);
    tokenizer.unwrap().unwrap().save(scratch.0.join("saved.json")).unwrap();
    assert_eq!(fs::read(scratch.0.join("saved.json")).unwrap(), json); // the very bytes
    let tokenizer = scratch.open([("tokenizer.json", json), ("config.json", br#"{"eos_token_id": [7, 8]}"#)]).unwrap();
    assert_eq!(tokenizer.unwrap().end_of_text(), Some(7));
}

/// What is in vocab.json and merges.txt depends on the class; one that is not known is refused by name, and so is a
/// token without an id.
#[test]
fn classes_that_are_not_known_are_refused() {
    let scratch = Scratch::new("classes");
    let files = &fixtures()["roberta-files"].files;
    let [vocab, merges] = ["vocab.json", "merges.txt"].map(|name| (name, files[name].as_bytes()));
    for (name, text, wanted) in [
        ("tokenizer_config.json", r#"{"tokenizer_class": "CLIPTokenizerFast"}"#, "of a CLIPTokenizerFast"),
        ("tokenizer_config.json", r#"{"tokenizer_class": "PreTrainedTokenizerFast"}"#, "of a PreTrainedTokenizerFast"),
        ("config.json", r#"{"model_type": "blenderbot"}"#, "of a model blenderbot"),
        ("config.json", r#"{"model_type": "gpt2", "tokenizer_class": "X"}"#, "of a X"),
        (
            "tokenizer_config.json",
            r#"{"added_tokens_decoder": {"x": {"content": "a"}}}"#,
            "a token in added_tokens_decoder",
        ),
        ("tokenizer_config.json", r#"{"bos_token": {"text": "a"}}"#, "a token in tokenizer_config.json"),
        ("added_tokens.json", r#"{"<x>": "7"}"#, "a token in added_tokens.json"),
    ] {
        let error = scratch.open([vocab, merges, (name, text.as_bytes())]).unwrap_err().to_string();
        assert!(error.contains(wanted), "{text}: {error}");
        assert!(!wanted.starts_with("of a") || error.contains("save_pretrained(FOLDER)"), "{error}");
    }
}

#[test]
fn part_of_a_character_keeps_its_bytes() {
    for (name, tokenizer, _) in opened() {
        if ["byte-level", "gpt-4", "byte-fallback"].contains(&name.as_str()) {
            let ids = tokenizer.encode("x 🦀").unwrap();
            let cut = &ids[..ids.len() - 1];
            assert_eq!(tokenizer.decode_bytes(cut).unwrap(), b"x \xF0\x9F\xA6", "{name}");
            assert_eq!(
                (tokenizer.decode(cut).unwrap(), streamed(&tokenizer, cut)),
                ("x \u{fffd}".into(), "x \u{fffd}".into())
            );
            assert!(tokenizer.piece(*ids.last().unwrap()).unwrap().contains("\\x80"), "{name}");
        }
    }
}

#[test]
fn too_many_blanks_are_an_error() {
    let file = changed(|v| v["model"]["vocab"] = json!({"a": 0, "b": 1, "ab": 2, "<s>": 3, "Ġ": 4}));
    let encode = |blanks: usize| Tokenizer::from_json(&file).unwrap().encode(&(" ".repeat(blanks) + "a"));
    assert_eq!(encode(1000).unwrap().len(), 1001);
    let error = encode(2_000_000).unwrap_err().to_string();
    assert!(error.contains("gives up on it") && error.contains("runs of blanks"), "{error}");
}

/// What the crate leaves out, or leaves uncut, in silence.
#[test]
fn nothing_of_a_text_is_left_out_in_silence() {
    let plain = |unknown: Value, more: Value| {
        changed(|v| {
            v["pre_tokenizer"] = json!(null);
            v["decoder"] = json!(null);
            v["model"]["unk_token"] = unknown.clone();
            v["model"]["byte_fallback"] = more.clone();
            if more == json!(true) {
                v["model"]["vocab"]["<0xC3>"] = json!(3);
                v["added_tokens"][0]["id"] = json!(4);
            }
        })
    };
    let encode = |file: &str, text: &str| Tokenizer::from_json(file).unwrap().encode(text).map_err(|e| e.to_string());
    for fallback in [json!(null), json!(true)] {
        let file = plain(json!(null), fallback);
        assert_eq!(encode(&file, "abba").unwrap(), [2, 1, 0]);
        for text in ["é", "abé", "éab", "abéab", "ü ab é ü"] {
            let error = encode(&file, text).unwrap_err();
            assert!(error.contains("no token for [") && error.contains('é'), "{text}: {error}");
        }
    }
    assert_eq!(encode(&plain(json!("a"), json!(null)), "bé"), Ok(vec![1, 0]));
    // bytes that a byte-level vocabulary lacks
    assert!(encode(&changed(|_| {}), "ab c").unwrap_err().contains("no token for"));

    // more ways to fail than a regular expression tries: a million
    let hard = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
    let text = " ".repeat(2_000_000) + "a";
    let split = changed(|v| {
        v["pre_tokenizer"] =
            json!({"type": "Split", "pattern": {"Regex": hard}, "behavior": "Isolated", "invert": false});
    });
    let swap = changed(|v| {
        v["pre_tokenizer"] = json!(null);
        v["normalizer"] = json!({"type": "Replace", "pattern": {"Regex": hard}, "content": "b"});
    });
    for file in [&split, &swap] {
        let error = encode(file, &text).unwrap_err();
        assert!(error.contains("gives up on it"), "{error}");
    }
}

/// Whatever lies where a tokenizer's file is looked for: nothing is read without end.
#[cfg(unix)]
#[test]
fn only_regular_files_of_a_fitting_size_are_read() {
    let scratch = Scratch::new("devices");
    let one = |name: &str, make: &dyn Fn(&Path)| {
        _ = scratch.open([("merges.txt", &b""[..])]).unwrap();
        let path = scratch.0.join(name);
        make(&path);
        let error = Tokenizer::open(&scratch.0).unwrap_err().to_string();
        if path.is_dir() {
            fs::remove_dir(&path).unwrap()
        } else {
            fs::remove_file(&path).unwrap()
        }
        assert!(error.contains(name), "{error}");
        error
    };
    for name in ["tokenizer.json", "vocab.json", "vocab.txt", "gpt2_tokenizer.bin", "tokenizer_config.json"] {
        let said = one(name, &|path| std::os::unix::fs::symlink("/dev/zero", path).unwrap());
        assert!(said.contains("a pipe or a device"), "{said}");
        let said =
            one(name, &|path| assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success()));
        assert!(said.contains("a pipe or a device"), "{said}");
        assert!(one(name, &|path| fs::create_dir(path).unwrap()).contains("a folder"));
        let said = one(name, &|path| fs::File::create(path).unwrap().set_len(1 << 40).unwrap());
        assert!(said.contains("at most 134217728 are read"), "{said}");
    }
    let mark = scratch.0.join("x.tiktoken");
    std::os::unix::fs::symlink("/dev/zero", &mark).unwrap();
    assert!(Tokenizer::load(&mark).unwrap_err().to_string().contains("a pipe or a device"));
}

// OpenAI's encodings by other names.

#[test]
#[ignore = "gate"]
fn openais_own_files_are_the_built_in_encodings() {
    for encoding in Encoding::all() {
        let mut spec = table::encoding(encoding);
        let merges = spec.model.merges.take().unwrap();
        assert_eq!(imported::hash(&spec.tokens().unwrap(), &merges), encoding.hash(), "{}", encoding.name());
        let mut spec = table::encoding(encoding);
        let json = serde_json::to_string(&spec).unwrap();
        let tokenizer = Tokenizer::from_json(&json).unwrap();
        assert_eq!((tokenizer.name(), tokenizer.vocab_size()), (encoding.name(), encoding.vocab_size()));
        assert!(tokenizer.to_json() == json);
        assert_eq!(Tokenizer::from_table(tokenizer.table().unwrap()).unwrap(), Tokenizer::Bpe(encoding));
        spec.model.merges.as_mut().unwrap().swap(0, 40_000);
        assert_eq!(Tokenizer::from_json(&serde_json::to_string(&spec).unwrap()).unwrap().name(), "bpe");
    }
}

fn texts() -> Vec<String> {
    let mut random = Random(11);
    let mut texts: Vec<String> = (0..200).map(|_| random.text(30)).collect();
    texts.extend(fixtures()["byte-level"].cases.iter().flatten().map(|case| case.text.clone()));
    texts
}

#[test]
fn the_named_encodings_are_the_same_as_files() {
    for encoding in Encoding::all() {
        let named = Tokenizer::Bpe(encoding);
        let mut spec = table::encoding(encoding);
        spec.model.fuse_unk = Some(true); // without effect, but no longer known as gpt2
        if let Some(added) = spec.added_tokens.first_mut() {
            added.normalized = true;
        }
        let crate_only = spec.build().unwrap();
        for text in texts() {
            let ids = crate_only.encode_fast(text.as_str(), false).unwrap().get_ids().to_vec();
            assert_eq!(ids, named.encode(&text).unwrap(), "{} {text:?}", encoding.name());
        }
    }
}

/// llm.c's file of these tokens.
fn llm_c(tokens: &[Vec<u8>], end: u32) -> Vec<u8> {
    let mut header = [0u32; 256];
    header[..4].copy_from_slice(&[20_240_328, 2, tokens.len() as u32, end]);
    let mut bytes: Vec<u8> = header.iter().flat_map(|n| n.to_le_bytes()).collect();
    for token in tokens {
        bytes.push(token.len() as u8);
        bytes.extend(token);
    }
    bytes
}

#[test]
fn llm_cs_file_is_gpt2_or_like_it() {
    let scratch = Scratch::new("llmc");
    let encoding = Encoding::named("gpt2").unwrap();
    let gpt2: Vec<Vec<u8>> = (0..50_257).map(|id| encoding.bytes(&[id])).collect();
    let open = |bytes: &[u8]| scratch.open([("gpt2_tokenizer.bin", bytes)]);
    assert_eq!(open(&llm_c(&gpt2, 50_256)).unwrap(), Some(Tokenizer::Bpe(encoding)));
    let mut small = gpt2[..1000].to_vec();
    small.push(b"<|endoftext|>".to_vec());
    let tokenizer = open(&llm_c(&small, 1000)).unwrap().unwrap();
    assert_eq!((tokenizer.name(), tokenizer.vocab_size(), tokenizer.end_of_text()), ("bpe", 1001, Some(1000)));
    let text = "The keeper's lamp, 🦀!";
    assert_eq!(tokenizer.decode(&tokenizer.encode(text).unwrap()).unwrap(), text);
    let damaged = [
        (llm_c(&small, 1000)[..1500].to_vec(), "as many as the header says, none empty, found an end at token"),
        (llm_c(&small, 1001), "expected an end of text among the tokens"),
        (llm_c(&[vec![], b"a".to_vec()], 1), "found an end at token 0"),
        ([llm_c(&small, 1000), vec![1]].concat(), "found 1 bytes more"),
        (vec![0; 2000], "expected 256 numbers, of version 1 or 2"),
        (b"short".to_vec(), "in 5 bytes"),
    ];
    for (bytes, says) in damaged {
        let error = open(&bytes).unwrap_err().to_string();
        assert!(error.contains("gpt2_tokenizer.bin") && error.contains(says), "{error}");
    }
}

// GGUF.

#[test]
fn a_table_and_back_gives_the_same_ids() {
    let chars =
        Tokenizer::train(TokenizerKind::Char, "the lamp's 1,204\n gulls", Order::Sorted, &["[PAD]", "<|endoftext|>"]);
    let named = ["gpt2", "cl100k_base", "o200k_base"].map(|name| (name.to_string(), Tokenizer::named(name).unwrap()));
    let mut all: Vec<(String, Tokenizer)> =
        opened().into_iter().map(|(name, tokenizer, _)| (name, tokenizer)).collect();
    all.extend(named);
    all.push(("chars".into(), chars.unwrap()));
    for (name, tokenizer) in all {
        let table = match (name.as_str(), tokenizer.table()) {
            ("byte-level" | "gpt2-files" | "gpt2" | "chars", Ok(t)) if t.pre == "gpt-2" && t.model == "gpt2" => t,
            ("gpt-4" | "opt-files", Err(TokenizerError::Table(why))) if why.contains("takes the blanks beside it") => {
                continue;
            }
            ("roberta-files", Ok(t)) if t.model == "gpt2" && t.add_bos && t.after.is_some() => t,
            ("qwen2-files", Ok(t)) if t.pre == "qwen2" && t.nfc => continue, // GGUF does not say the latter
            ("roberta-masked-files", Err(TokenizerError::Table(_))) => continue,
            ("cl100k_base", Ok(t)) if t.pre == "dbrx" && !t.add_bos => t,
            ("o200k_base", Ok(t)) if t.pre == "gpt-4o" => t,
            ("byte-fallback", Ok(t)) if t.model == "llama" && t.add_space_prefix && t.add_bos => t,
            ("bert-files", Ok(t)) if t.model == "bert" && t.add_bos && t.lowercase && t.after.is_some() => t,
            ("bert-cased-files", Ok(t)) if t.model == "bert" && !t.lowercase => t,
            ("gpt1-files" | "unigram" | "precompiled" | "words", Err(TokenizerError::Table(_))) => continue,
            (_, other) => panic!("{name}: {:?}", other.map(|table| (table.model, table.pre))),
        };
        assert_eq!((table.tokens.len(), table.types.len()), (tokenizer.vocab_size(), tokenizer.vocab_size()));
        let back = Tokenizer::from_table(table.clone()).unwrap();
        assert_eq!((back.bos(), back.end_of_text()), (tokenizer.bos(), tokenizer.end_of_text()), "{name}");
        if table.model != "llama" {
            assert_eq!(back.table().unwrap(), table, "{name}"); // scores stand for more merges than there were
        }
        let texts = if name == "chars" { vec!["the lamp's\n gulls<|endoftext|>".to_string()] } else { texts() };
        for text in texts.iter().filter(|text| !text.contains("<|user|>")) {
            let ids = tokenizer.encode(text).unwrap();
            assert_eq!(back.encode(text).unwrap(), ids, "{name} {text:?}");
            assert_eq!(back.decode(&ids).unwrap(), tokenizer.decode(&ids).unwrap(), "{name} {text:?}");
        }
    }
}

#[test]
fn ways_of_cutting_go_by_name() {
    let pres = [
        "gpt-2",
        "dbrx",
        "llama-bpe",
        "smollm",
        "qwen2",
        "gpt-4o",
        "default",
        "deepseek-llm",
        "deepseek-coder",
        "falcon",
    ];
    let others = [("phi-2", "gpt-2"), ("starcoder", "smollm"), ("llama3", "llama-bpe"), ("stablelm2", "qwen2")];
    for (pre, written) in pres.map(|pre| (pre, pre)).into_iter().chain(others) {
        let mut table = Tokenizer::train(TokenizerKind::Char, "ab 1!", Order::Sorted, &[]).unwrap().table().unwrap();
        table.pre = pre.into();
        let tokenizer = Tokenizer::from_table(table.clone()).unwrap();
        assert_eq!(tokenizer.encode("a 1!b").unwrap(), [3, 0, 2, 1, 4]);
        assert_eq!(tokenizer.table().unwrap().pre, written);
    }
    let error = |change: &dyn Fn(&mut Table)| {
        let mut table = Tokenizer::train(TokenizerKind::Char, "ab", Order::Sorted, &[]).unwrap().table().unwrap();
        change(&mut table);
        Tokenizer::from_table(table).unwrap_err().to_string()
    };
    assert!(error(&|t| t.pre = "tekken".into()).contains("`tokenizer.ggml.pre` is \"tekken\""));
    assert!(error(&|t| t.model = "rwkv").contains("expected gpt2, llama, bert, gemma4 or t5, found rwkv"));
    assert!(error(&|t| t.model = "bert").contains("a token for unknown words, found none"));
    assert!(error(&|t| t.types = vec![1]).contains("1 types and 2 scores for 2 tokens"));
    assert!(error(&|t| t.eos = Some(2)).contains("found id 2 of 2"));
    assert!(error(&|t| t.merges = vec!["a b".into()]).contains("\"ab\" of merge 0"));
    assert!(error(&|t| t.merges = vec!["ab".into()]).contains("expected two tokens, found ab"));
    assert!(error(&|t| t.tokens[1] = "a".into()).contains("twice"));
    // what llama.cpp would encode otherwise is not written
    let changed = |case: &str, change: &dyn Fn(&mut serde_json::Value)| {
        let mut spec: serde_json::Value = serde_json::from_str(&fixtures()[case].files["tokenizer.json"]).unwrap();
        change(&mut spec);
        let imported = imported(spec.to_string());
        Tokenizer::Imported(std::sync::Arc::new(imported)).table().map_err(|error| error.to_string())
    };
    let mask = |spec: &mut serde_json::Value| spec["added_tokens"][0]["lstrip"] = true.into();
    assert!(changed("byte-level", &mask).unwrap_err().contains("takes the blanks beside it"));
    let metaspace = |scheme: &str| {
        changed("byte-fallback", &|spec| {
            spec["normalizer"] = serde_json::Value::Null;
            let step = serde_json::json!({ "type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme,
                "split": false });
            spec["pre_tokenizer"] = step;
        })
    };
    assert!(metaspace("always").unwrap_err().contains("only where there is none"));
    // which `convert` says
    assert!(metaspace("first").is_ok_and(|table| table.blank_once && table.add_space_prefix));
    let word = Tokenizer::train(TokenizerKind::Word, "a b", Order::Sorted, &[]).unwrap();
    assert!(word.table().unwrap_err().to_string().contains("a word tokenizer drops blanks"));
    let accents = Tokenizer::train(TokenizerKind::Char, "aé", Order::Sorted, &[]).unwrap();
    assert!(accents.table().unwrap_err().to_string().contains("each of the 2 bytes of its character \"é\""));
}

// For transformers.

#[test]
fn an_export_is_whole() {
    let scratch = Scratch::new("export");
    for (name, count) in [("gpt2", 4), ("cl100k_base", 2)] {
        let tokenizer = Tokenizer::named(name).unwrap();
        let files = tokenizer.export(&scratch.0, 1024).unwrap();
        assert_eq!(files.len(), count);
        let read = Tokenizer::open(&scratch.0).unwrap().unwrap();
        assert_eq!((read.vocab_size(), read.end_of_text()), (tokenizer.vocab_size(), tokenizer.end_of_text()));
        let config: Value =
            serde_json::from_str(&fs::read_to_string(scratch.0.join("tokenizer_config.json")).unwrap()).unwrap();
        assert_eq!((&config["model_max_length"], &config["eos_token"]), (&json!(1024), &json!("<|endoftext|>")));
    }
    let chars = Tokenizer::train(TokenizerKind::Char, "ab", Order::Sorted, &["[PAD]", "[MASK]", "<UNK>"]).unwrap();
    chars.export(&scratch.0, 8).unwrap();
    let config = fs::read_to_string(scratch.0.join("tokenizer_config.json")).unwrap();
    assert!(
        ["\"pad_token\": \"[PAD]\"", "\"mask_token\"", "\"unk_token\": \"<UNK>\""].iter().all(|t| config.contains(t))
    );
    assert!(!config.contains("eos_token"));
    assert!(chars.export(&scratch.0.join("none"), 8).is_err());
}

// Files that are not what they seem.

/// A small byte-level file with one thing changed.
fn changed(change: impl Fn(&mut Value)) -> String {
    let mut value = json!({
        "version": "1.0", "added_tokens": [{"id": 3, "content": "<s>", "special": true}],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true},
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]},
    });
    change(&mut value);
    value.to_string()
}

#[test]
fn what_is_wrong_is_said() {
    let model = |model: Value| changed(move |v| v["model"] = model.clone());
    let set = |key: &'static str, value: Value| changed(move |v| v[key] = value.clone());
    let step = |kind: &str| json!({ "type": kind });
    let deep = (0..100).fold(json!(null), |inner, _| json!({ "type": "Sequence", "normalizers": [inner] }));
    let long = json!({ "type": "Replace", "pattern": { "String": "a" }, "content": "a".repeat(100) });
    let tokens = json!({"a": {"id": "a", "ids": vec![1; 1000], "tokens": ["a"]}});
    let single = vec![json!({"SpecialToken": {"id": "a", "type_id": 0}}); 1000];
    let many = json!({"type": "TemplateProcessing", "single": single, "special_tokens": tokens});
    for (text, says) in [
        (
            changed(|v| {
                v["model"]["vocab"] = json!({});
                v["added_tokens"] = json!([]);
            }),
            "its vocabulary is empty",
        ),
        (model(json!({"type": "BPE", "vocab": {"a": 0}})), "a BPE model without"),
        (model(json!({"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": ["a b"]})), "\"ab\" of merge 0"),
        (model(json!({"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b", "c"]]})), "invalid length 3"),
        (model(json!({"type": "BPE", "vocab": {"a": 0}, "merges": ["a b c"]})), "two tokens with a blank between"),
        (
            model(json!({"type": "BPE", "vocab": {"a": 0, "##b": 1, "b": 2, "ab": 4}, "merges": [["a", "b"]],
            "continuing_subword_prefix": "##"})),
            "without \"##\"",
        ),
        (model(json!({"type": "BPE", "vocab": {"a": 4_000_000_000u32}, "merges": []})), "ids that are close together"),
        (model(json!({"type": "BPE", "vocab": {"a": 0, "b": 0}, "merges": []})), "id 0 is given to both"),
        (model(json!({"type": "BPE", "vocab": {"a": -1}, "merges": []})), "invalid value: integer `-1`"),
        (
            model(json!({"type": "RNN", "vocab": {"a": 0}})),
            "the model has the type \"RNN\", which limpid does not support",
        ),
        (model(json!({"type": "Unigram", "vocab": [["", 0.0]], "unk_id": 0})), "at least one letter"),
        (model(json!({"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": 9})), "unk_id"),
        (model(json!({"type": "Unigram", "vocab": {"a": 0}})), "a Unigram model without"),
        (
            model(json!({"type": "WordPiece", "vocab": {"a": 0}, "max_input_chars_per_word": 1_000_000_000})),
            "at most 500",
        ),
        (set("version", json!("2.0")), "the tokenizer.json has version \"2.0\", which limpid does not support"),
        (set("added_tokens", json!([{"id": 7, "content": "<s>"}])), "ids that continue after its own"),
        (set("added_tokens", json!([{"id": 0, "content": "<s>"}])), "id 0 is given to both"),
        (set("added_tokens", json!([{"id": 2, "content": "a"}])), "in the vocabulary twice, as 0 and as 2"),
        (set("normalizer", step("Precompiled")), "SentencePiece's map of characters"),
        (set("normalizer", step("Neural")), "the normalizer has the step \"Neural\", which limpid does not support"),
        (
            set("normalizer", json!({"type": "Sequence", "normalizers": [long.clone(), long]})),
            "replacements of a few letters",
        ),
        (set("normalizer", deep), "recursion limit"),
        (set("normalizer", json!(5)), "an object with a type, found 5"),
        (
            set("normalizer", json!({"type": "Replace", "pattern": {"Regex": "("}, "content": ""})),
            "what this step needs",
        ),
        (
            set(
                "normalizer",
                json!({"type": "Sequence", "normalizers": vec![json!({"type": "Replace",
            "pattern": {"Regex": ""}, "content": "a"}); 30]}),
            ),
            "replacements of a few letters",
        ),
        (
            set("pre_tokenizer", json!({"type": "Sequence", "pretokenizers": vec![steps::byte_level(false); 30]})),
            "several ByteLevel steps",
        ),
        (
            set("pre_tokenizer", json!({"type": "FixedLength", "length": 0})),
            "has the step \"FixedLength\", which limpid does not support",
        ),
        (
            set(
                "pre_tokenizer",
                json!({"type": "Split", "pattern": {"Regex": "a".repeat(5000)}, "behavior": "Isolated",
            "invert": false}),
            ),
            "at most 4,096 bytes",
        ),
        (
            set(
                "pre_tokenizer",
                json!({"type": "Split", "pattern": {"Regex": "((a{1000}){1000}){1000}"},
            "behavior": "Isolated", "invert": false}),
            ),
            "what this step needs",
        ),
        (set("decoder", step("CTC")), "the decoder has {\"type\":\"CTC\"}, which limpid does not support"),
        (set("post_processor", step("Roberta")), "the post_processor"),
        (set("post_processor", many), "the post_processor has 2000 ids or more around a text"),
        (set("post_processor", json!({"type": "BertProcessing", "sep": ["x", 9], "cls": ["y", 1]})), "found 9"),
    ] {
        let error = Tokenizer::from_json(&text).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains(says), "{text}\n{error:?} lacks {says:?}");
        assert!(error.len() < 600, "{error}");
    }
    assert_eq!(Tokenizer::from_json(&changed(|_| ())).unwrap().encode("ab<s>").unwrap(), [2, 3]);
    let scratch = Scratch::new("wrong");
    for (files, says) in [
        (vec![("vocab.json", "[1]"), ("merges.txt", "")], "vocab.json: not a tokenizer.json"),
        (vec![("vocab.json", "{\"a\": 0}"), ("merges.txt", "#version: 0.2\nabc\n")], "merges.txt: a line"),
        (vec![("vocab.txt", "a\nb\n")], "vocab.txt: the vocabulary: expected BERT's"),
        (vec![("tokenizer.json", "{}"), ("tokenizer_config.json", "[")], "tokenizer_config.json: the file"),
        (vec![("tokenizer.json", "\u{0}")], "tokenizer.json: not a tokenizer.json"),
    ] {
        let error = scratch.open(files.iter().map(|&(n, t)| (n, t.as_bytes()))).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}

/// SentencePiece's map leads only where it has something, or is refused: a damaged one makes no panic in any text.
#[test]
fn damaged_maps_of_characters_never_panic() {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    let whole = fixtures().remove("precompiled").unwrap().files.remove("tokenizer.json").unwrap();
    let mut file: Value = serde_json::from_str(&whole).unwrap();
    let place = "/normalizer/normalizers/0/precompiled_charsmap";
    let map = STANDARD.decode(file.pointer(place).unwrap().as_str().unwrap()).unwrap();
    let mut random = Random(7);
    let (mut worked, mut refused) = (0, 0);
    for round in 0..1000 {
        let mut map = map.clone();
        match round {
            0..64 => map.truncate(map.len() * round / 64),
            64..128 => map[..4].copy_from_slice(&(round as u32 * 40).to_le_bytes()),
            _ => (0..=random.below(4)).for_each(|_| {
                let at = random.below(map.len());
                map[at] = random.below(256) as u8;
            }),
        }
        *file.pointer_mut(place).unwrap() = STANDARD.encode(&map).into();
        match Tokenizer::from_json(&file.to_string()) {
            Ok(tokenizer) => {
                worked += 1;
                for _ in 0..20 {
                    tokenizer.encode(&format!("ﬁAe\u{301}½\u{200b}\u{1}{}", random.text(30))).unwrap();
                }
            }
            Err(error) => {
                refused += 1;
                assert!(error.to_string().contains("SentencePiece's map of characters"), "{round}: {error}");
            }
        }
    }
    assert!(worked > 100 && refused > 100, "{worked} worked, {refused} were refused");
}

/// Bytes, and whole pieces of a file, changed at random: an error or a tokenizer that works, never a panic.
#[test]
fn damaged_files_never_panic() {
    let all = fixtures();
    let mut random = Random(5);
    let text = "The keeper's lamp\u{301} 12 🦀 <s> <|endoftext|> [CLS]  ▁ aé";
    let json: Vec<&String> = all.values().filter_map(|folder| folder.files.get("tokenizer.json")).collect();
    let pieces = [
        "null",
        "{}",
        "[]",
        "\"\"",
        "0",
        "-1",
        "4294967295",
        "1e9",
        "true",
        "\"▁\"",
        "\"Sequence\"",
        "\"a\"",
        "\"Regex\"",
    ];
    let mut worked = 0;
    for round in 0..1500 {
        let mut bytes = json[round % json.len()].clone().into_bytes();
        for _ in 0..=random.below(3) {
            // The short beginning, where the steps stand, as often as the long vocabulary.
            let span = if random.below(2) == 0 { bytes.len() } else { bytes.len().min(1500) };
            let at = random.below(span);
            match random.below(4) {
                0 => bytes[at] = random.below(128) as u8,
                1 => _ = bytes.remove(at),
                2 => bytes[at] = b"0123456789,:[]{}\""[random.below(17)],
                _ => {
                    // A whole value in another's place.
                    let Some(start) = bytes[at..].iter().position(|b| *b == b':').map(|i| at + i + 1) else { continue };
                    let end = bytes[start..].iter().position(|b| b",}]".contains(b)).map_or(bytes.len(), |i| start + i);
                    bytes.splice(start..end, pieces[random.below(pieces.len())].bytes());
                }
            }
        }
        if let Ok(tokenizer) = Tokenizer::from_json(&String::from_utf8_lossy(&bytes)) {
            worked += 1;
            let all = [tokenizer.encode(text), tokenizer.encode_ordinary(text), tokenizer.encode_for_model(text)];
            for ids in all.into_iter().flatten() {
                assert_eq!(streamed(&tokenizer, &ids), tokenizer.decode(&ids).unwrap());
            }
            if let Ok(table) = tokenizer.table() {
                _ = Tokenizer::from_table(table);
            }
        }
    }
    assert!(worked > 50, "{worked}");
}

/// What stands for the unknown is told by whichever key the kind of model has for it, and never by a tokenizer that
/// writes every text.
#[test]
fn the_unknown_token_of_every_fixture() {
    let scratch = Scratch::new("unknown");
    let (mut with, mut without) = (0, 0);
    for (name, folder) in fixtures() {
        let files = folder.files.iter().map(|(name, text)| (name.as_str(), text.as_bytes()));
        let Ok(Some(tokenizer)) = scratch.open(files) else { continue };
        let odd = "\u{10a60}\u{1f9ff}";
        let ids = tokenizer.encode(odd).unwrap();
        match tokenizer.unknown() {
            Some(unknown) if ids.contains(&unknown) => {
                assert_eq!(tokenizer.unknown_pieces([odd, odd], 9), [odd], "{name}");
                with += 1;
            }
            // bytes are written one by one, or what is unknown is left out
            _ => {
                assert!(tokenizer.unknown_pieces([odd], 9).is_empty(), "{name}");
                without += 1;
            }
        }
    }
    assert!(with >= 3 && without >= 3, "{with} with, {without} without");
}

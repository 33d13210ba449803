//! Folders of models as transformers reads them: what stands beside a vocabulary (reference/folders.py), and files by
//! their content.

use std::{collections::BTreeMap, fs, path::Path};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{imported_tests::Scratch, *};

#[derive(Deserialize)]
struct Folder {
    /// The tokenizer.json, if there is one.
    base: Option<String>,
    files: BTreeMap<String, Value>,
    /// A text, its ids, and those with what the model expects round it.
    texts: Vec<(String, Vec<u32>, Vec<u32>)>,
    roles: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Fixture {
    bases: BTreeMap<String, Value>,
    folders: Vec<Folder>,
}

fn fixture() -> Fixture {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/folders.json");
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// Opens a folder of these files.
fn open(scratch: &Scratch, files: &BTreeMap<String, Value>) -> Result<Tokenizer, TokenizerError> {
    let text = |file: &Value| file.as_str().map_or_else(|| file.to_string(), String::from);
    let files: Vec<(&str, String)> = files.iter().map(|(name, file)| (name.as_str(), text(file))).collect();
    Ok(scratch.open(files.iter().map(|(name, text)| (*name, text.as_bytes())))?.unwrap())
}

#[test]
fn folders_are_read_as_transformers_reads_them() {
    let (Fixture { bases, folders }, scratch) = (fixture(), Scratch::new("folders"));
    assert!(folders.len() > 250, "{}", folders.len());
    let mut wrong = vec![];
    for Folder { base, mut files, texts, roles } in folders {
        let what = format!("{base:?} {}", json!(files)).chars().take(600).collect::<String>();
        files.extend(base.map(|base| ("tokenizer.json".to_string(), bases[&base].clone())));
        let tokenizer = match open(&scratch, &files) {
            Ok(tokenizer) => tokenizer,
            Err(error) => {
                wrong.push(format!("{what}: {error}"));
                continue;
            }
        };
        for (text, ids, framed) in texts {
            let found = (tokenizer.encode(&text).map_err(|e| e.to_string()), tokenizer.encode_for_model(&text).ok());
            if found != (Ok(ids.clone()), Some(framed.clone())) {
                wrong.push(format!("{what}\n    {text:?}: {ids:?} {framed:?}, found {found:?}"));
            }
        }
        let found: BTreeMap<String, String> = tokenizer.named_roles().iter().cloned().collect();
        if found != roles {
            wrong.push(format!("{what}\n    roles {roles:?}, found {found:?}"));
        }
        // written and read again beside the same files, and alone, it is the same
        files.insert("tokenizer.json".into(), tokenizer.to_json().into());
        let again = open(&scratch, &files).unwrap();
        let alone = Tokenizer::from_json(&tokenizer.to_json()).unwrap();
        let text = "he<x> b llo <y>!";
        let ids = |t: &Tokenizer| t.encode_for_model(text).ok();
        if again != tokenizer || ids(&again) != ids(&tokenizer) {
            wrong.push(format!("{what}: it is another when it is written and read again"));
        }
        if files["tokenizer_config.json"].get("split_special_tokens").is_none() && ids(&alone) != ids(&tokenizer) {
            wrong.push(format!("{what}: its tokenizer.json alone gives other ids"));
        }
    }
    assert!(wrong.is_empty(), "{} of them:\n{}", wrong.len(), wrong[..wrong.len().min(40)].join("\n"));
}

/// Where the class makes what the file holds already, the file stays as it is.
#[test]
fn files_that_a_class_does_not_change_keep_their_bytes() {
    let (bases, scratch) = (fixture().bases, Scratch::new("kept"));
    for (base, class) in
        [("letters", "GPT2Tokenizer"), ("letters", "NoSuchTokenizer"), ("marks", "PreTrainedTokenizerFast")]
    {
        let files = BTreeMap::from([
            ("tokenizer.json".to_string(), bases[base].clone()),
            ("tokenizer_config.json".to_string(), json!({ "tokenizer_class": class })),
        ]);
        assert_eq!(open(&scratch, &files).unwrap().to_json(), bases[base].to_string(), "{base} {class}");
    }
}

/// A file is what its content says, whatever it is called.
#[test]
fn a_tokenizer_is_what_its_file_holds() {
    let scratch = Scratch::new("content");
    let folder = Tokenizer::from_json(&fixture().bases["letters"].to_string()).unwrap();
    let ranks: String = (0..=255u8).map(|byte| format!("{} {byte}\n", STANDARD.encode([byte]))).collect();
    let ranks = ranks + "aGU= 256\nbGw= 257\naGVsbA== 258\naGVsbG8= 259\n";
    let gpt2 = Tokenizer::named("gpt2").unwrap().to_llmc().unwrap();
    // pieces with scores, as SentencePiece writes them
    let piece = |text: &str| {
        let size = text.len() as u8;
        [&[0x0a, size + 7, 0x0a, size][..], text.as_bytes(), &[0x15, 0, 0, 0, 0]].concat()
    };
    let model = [piece("<unk>"), piece("<s>"), piece("a")].concat();
    for end in ["model", "json", "tiktoken", "bin", "txt", "vocab", ""] {
        let load = |bytes: &[u8]| {
            let path = scratch.0.join(format!("tokenizer.{end}"));
            fs::write(&path, bytes).unwrap();
            Tokenizer::load_with(&path, Some(Split::Llama3), &[])
        };
        assert_eq!(load(folder.to_json().as_bytes()).unwrap(), folder, "{end}");
        assert_eq!(
            load(format!("\n \r\n{}", folder.to_json()).as_bytes()).unwrap().encode("he").unwrap(),
            [257],
            "{end}"
        );
        assert_eq!(load(ranks.as_bytes()).unwrap().encode("hello").unwrap(), [259], "{end}");
        assert_eq!(load(format!("\n\n\n{ranks}").as_bytes()).unwrap().encode("hello").unwrap(), [259], "{end}");
        assert_eq!(load(&gpt2).unwrap(), Tokenizer::named("gpt2").unwrap(), "{end}");
        let error = load(&model).unwrap_err().to_string();
        assert!(error.contains("a SentencePiece model") && error.contains(end), "{end}: {error}");
        let error = load(b"no such thing").unwrap_err().to_string();
        assert!(error.contains("tokenizer."), "{error}");
    }
    let path = scratch.0.join("tokenizer.model");
    fs::write(&path, &ranks).unwrap();
    assert!(matches!(Tokenizer::load(&path),
        Err(TokenizerError::File { fault, .. }) if matches!(*fault, TokenizerError::NoSplit)));
}

/// Tokens for which the model has no row are left out: nothing can be read by them.
#[test]
fn tokens_beyond_the_models_rows_are_left_out() {
    let (bases, scratch) = (fixture().bases, Scratch::new("rows"));
    let size = bases["letters"]["model"]["vocab"].as_object().unwrap().len() as u64;
    for (rows, wanted) in
        [(size, vec![]), (size + 1, vec!["<x>"]), (size + 2, vec!["<x>", "<y>"]), (size + 9, vec!["<x>", "<y>"])]
    {
        let files = BTreeMap::from([
            ("tokenizer.json".to_string(), bases["letters"].clone()),
            ("config.json".to_string(), json!({"vocab_size": rows, "model_type": "llama"})),
            ("added_tokens.json".to_string(), json!({"<x>": size})),
            ("special_tokens_map.json".to_string(), json!({"pad_token": "<y>"})),
        ]);
        let tokenizer = open(&scratch, &files).unwrap();
        let found: Vec<String> =
            (size..tokenizer.vocab_size() as u64).map(|id| tokenizer.piece(id as u32).unwrap()).collect();
        assert_eq!(found, wanted, "{rows}");
        tokenizer.encode("a<x> <y>").unwrap();
    }
}

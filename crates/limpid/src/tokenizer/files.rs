//! Where a model's folder keeps its tokenizer, and the older files it may be written in.
//!
//! Each reader makes the tokenizer.json that transformers would make of the same files.

use std::{fs, path::Path, sync::Arc};

use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Encoding, Error, Tokenizer,
    foreign::Foreign,
    spec::{Added, Merge, Model, Spec, Vocab, part},
    table,
};

/// Larger than any tokenizer; what is larger is another file by that name.
const LARGEST: u64 = 1 << 28;

/// llm.c's: a header of 256 numbers, of which these are the first two.
const LLMC: [u32; 2] = [20_240_328, 2];

pub(super) fn read(path: &Path) -> Result<Vec<u8>, Error> {
    let failed = |source| Error::Io { path: path.into(), source };
    let size = fs::metadata(path).map_err(failed)?.len();
    if size > LARGEST {
        return Err(part("the file", "a tokenizer, at most 256 MiB", format!("{size} bytes")).at(path));
    }
    fs::read(path).map_err(failed)
}

pub(super) fn text(path: &Path) -> Result<String, Error> {
    let bytes = read(path)?;
    String::from_utf8(bytes).map_err(|error| part("the file", "text in UTF-8", error.utf8_error().to_string()).at(path))
}

pub(super) fn open(dir: &Path) -> Result<Option<Tokenizer>, Error> {
    let [json, vocab, merges, lines, llmc] =
        ["tokenizer.json", "vocab.json", "merges.txt", "vocab.txt", "gpt2_tokenizer.bin"].map(|name| dir.join(name));
    let config = Config::read(dir)?;
    let mut foreign = if json.exists() {
        match Tokenizer::load(&json)? {
            Tokenizer::Foreign(foreign) => foreign,
            other => return Ok(Some(other)),
        }
    } else if vocab.exists() && merges.exists() {
        let lines = text(&merges)?;
        let pairs =
            text(&vocab).and_then(|t| super::json::parse::<super::json::Pairs>(&t).map_err(|e| e.at(&vocab)))?;
        Arc::new(byte_pairs(pairs.0, &lines, &config).map_err(|error| error.at(&merges))?)
    } else if lines.exists() {
        Arc::new(word_pieces(&text(&lines)?, &config).map_err(|error| error.at(&lines))?)
    } else if llmc.exists() {
        return llm_c(&read(&llmc)?).map_err(|error| error.at(&llmc)).map(Some);
    } else {
        return Ok(None);
    };
    if let Some(foreign) = Arc::get_mut(&mut foreign) {
        let id = |token: &Option<Value>| foreign.id(named(token.as_ref()?)?);
        let (begin, end) = (id(&config.bos_token), id(&config.eos_token).or(config.eos_id));
        let end = end.filter(|&id| (id as usize) < foreign.tokens().len());
        foreign.configure(begin, end, config.add_bos_token);
    }
    Ok(Some(Tokenizer::Foreign(foreign)))
}

/// A token in tokenizer_config.json: its text, or an object that has it.
fn named(token: &Value) -> Option<&str> {
    token.as_str().or(token["content"].as_str())
}

/// What is read of tokenizer_config.json, and of config.json where that is silent.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Config {
    bos_token: Option<Value>,
    eos_token: Option<Value>,
    add_bos_token: Option<bool>,
    add_prefix_space: Option<bool>,
    do_lower_case: Option<bool>,
    strip_accents: Option<bool>,
    tokenize_chinese_chars: Option<bool>,
    #[serde(skip)]
    eos_id: Option<u32>,
}

impl Config {
    fn read(dir: &Path) -> Result<Config, Error> {
        let [own, model] = ["tokenizer_config.json", "config.json"].map(|name| dir.join(name));
        let mut config = match own.exists() {
            true => {
                let wrong = |error: serde_json::Error| part("the file", "a tokenizer_config.json", error.to_string());
                serde_json::from_str(&text(&own)?).map_err(|error| wrong(error).at(&own))?
            }
            false => Config::default(),
        };
        // config.json is the model's, and whoever reads the model checks it.
        let model: Option<Value> = text(&model).ok().and_then(|text| serde_json::from_str(&text).ok());
        let id = model.as_ref().map(|model| model["eos_token_id"].get(0).unwrap_or(&model["eos_token_id"]));
        config.eos_id = id.and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok());
        Ok(config)
    }
}

/// vocab.json and merges.txt: GPT-2's letters for bytes, or GPT-1's `</w>` after words.
fn byte_pairs(pairs: Vec<(String, u64)>, lines: &str, config: &Config) -> Result<Foreign, Error> {
    let lines = lines.lines().filter(|line| !line.starts_with("#version") && !line.is_empty());
    let merge = |line: &str| Merge::parse(line).ok_or_else(|| part("a line", "two tokens with a blank between", line));
    let merges = lines.map(merge).collect::<Result<Vec<_>, Error>>()?;
    let words = merges.iter().any(|merge| merge.1.ends_with("</w>"));
    let added = |names: &[&str]| -> Vec<Added> {
        let known = pairs.iter().filter(|(token, id)| names.contains(&token.as_str()) && *id <= u32::MAX.into());
        known.map(|(token, id)| Added::new(*id as u32, token, true)).collect()
    };
    let added = if words { added(&["<unk>"]) } else { added(&["<|endoftext|>"]) };
    let mut model = Model { r#type: Some("BPE".into()), merges: Some(merges), ..Model::default() };
    if words {
        model.end_of_word_suffix = Some("</w>".into());
        model.unk_token = Some("<unk>".into());
    }
    model.vocab = Vocab::Ids(pairs);
    let mut spec = if words { Spec::of(model) } else { byte_level(model) };
    if words {
        spec.normalizer = bert_normalizer(&Config { do_lower_case: Some(true), ..Config::default() });
        spec.pre_tokenizer = json!({ "type": "BertPreTokenizer" });
        spec.decoder = json!({ "type": "BPEDecoder", "suffix": "</w>" });
    } else if config.add_prefix_space == Some(true) {
        spec.pre_tokenizer["add_prefix_space"] = json!(true);
    }
    spec.added_tokens = added;
    Foreign::made(spec)
}

/// A byte-level model behind GPT-2's splitting.
fn byte_level(model: Model) -> Spec {
    let mut spec = Spec::of(model);
    spec.pre_tokenizer = table::pre_tokenizer("gpt-2").unwrap_or_default();
    spec.decoder = table::byte_level(true);
    spec
}

fn bert_normalizer(config: &Config) -> Value {
    json!({
        "type": "BertNormalizer", "clean_text": true,
        "handle_chinese_chars": config.tokenize_chinese_chars.unwrap_or(true),
        "strip_accents": config.strip_accents, "lowercase": config.do_lower_case.unwrap_or(true)
    })
}

/// BERT's vocab.txt: a token a line.
fn word_pieces(lines: &str, config: &Config) -> Result<Foreign, Error> {
    let pairs: Vec<(String, u64)> = lines.lines().map(String::from).zip(0..).collect();
    let id = |name: &str| pairs.iter().find(|(token, _)| token == name).map(|(_, id)| *id as u32);
    let names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"];
    let mut added: Vec<Added> = names.iter().filter_map(|name| Some(Added::new(id(name)?, name, true))).collect();
    added.sort_by_key(|added| added.id);
    let (Some(_), Some(cls), Some(sep)) = (id("[UNK]"), id("[CLS]"), id("[SEP]")) else {
        return Err(part("the vocabulary", "BERT's, with [UNK], [CLS] and [SEP]", "one without"));
    };
    let model = Model {
        r#type: Some("WordPiece".into()),
        unk_token: Some("[UNK]".into()),
        continuing_subword_prefix: Some("##".into()),
        max_input_chars_per_word: Some(100),
        vocab: Vocab::Ids(pairs),
        ..Model::default()
    };
    let mut spec = Spec::of(model);
    spec.added_tokens = added;
    spec.normalizer = bert_normalizer(config);
    spec.pre_tokenizer = json!({ "type": "BertPreTokenizer" });
    spec.post_processor = json!({ "type": "BertProcessing", "sep": ["[SEP]", sep], "cls": ["[CLS]", cls] });
    spec.decoder = json!({ "type": "WordPiece", "prefix": "##", "cleanup": true });
    Foreign::made(spec)
}

/// llm.c's file: the bytes of each token, in the order they were merged in.
fn llm_c(bytes: &[u8]) -> Result<Tokenizer, Error> {
    let number = |i: usize| bytes.get(4 * i..4 * i + 4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    let header = [number(0), number(1), number(2), number(255)];
    let [Some(magic), Some(version @ 1..=2), Some(count), Some(_)] = header else {
        return Err(part(
            "the header",
            "256 numbers, of version 1 or 2",
            format!("{header:?} in {} bytes", bytes.len()),
        ));
    };
    if magic != LLMC[0] {
        return Err(part("the header", "llm.c's mark 20240328", magic.to_string()));
    }
    let mut rest = &bytes[1024..];
    let mut tokens: Vec<Option<Vec<u8>>> = Vec::new();
    for id in 0..count {
        let token = rest.split_first().and_then(|(&len, rest)| rest.split_at_checked(len.into()));
        let Some((token, after)) = token.filter(|(token, _)| !token.is_empty()) else {
            return Err(part("the tokens", "as many as the header says, none empty", format!("an end at token {id}")));
        };
        tokens.push(Some(token.to_vec()));
        rest = after;
    }
    if !rest.is_empty() {
        return Err(part("the file", "an end after its tokens", format!("{} bytes more", rest.len())));
    }
    let end = if version == LLMC[1] { number(3) } else { Some(50_256) };
    let gpt2 = Encoding::Gpt2;
    if tokens.len() == gpt2.vocab_size() && (0..).zip(&tokens).all(|(id, t)| t.as_deref() == Some(&*gpt2.bytes(&[id])))
    {
        return Ok(Tokenizer::Bpe(gpt2));
    }
    let end = end.filter(|&id| id < count).ok_or_else(|| part("the header", "an end of text among the tokens", "none"));
    let end = end? as usize;
    let special = tokens[end].take().unwrap_or_default();
    let special = String::from_utf8(special).map_err(|_| part("the end of text", "text", "other bytes"))?;
    let mut spec = table::ranked(&tokens)?;
    spec.added_tokens.push(Added::new(end as u32, &special, true));
    if let Vocab::Ids(pairs) = &mut spec.model.vocab {
        pairs.push((special, end as u64));
    }
    spec.pre_tokenizer = table::pre_tokenizer("gpt-2").unwrap_or_default();
    spec.decoder = table::byte_level(true);
    Ok(Tokenizer::Foreign(Arc::new(Foreign::made(spec)?)))
}

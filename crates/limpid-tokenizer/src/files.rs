//! Where a model's folder keeps its tokenizer, and the older files it may be written in.
//!
//! Each reader makes the tokenizer.json that transformers would make of the same files.

use std::{path::Path, sync::Arc};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    Encoding, Tokenizer, TokenizerError,
    imported::ImportedTokenizer,
    spec::{Added, Merge, Model, Spec, Vocab, part},
    split::Split,
    table,
};
use limpid_base::files::read_small;

/// Larger than any tokenizer; what is larger is another file by that name.
const LARGEST: u64 = 128 << 20;

/// llm.c's: a header of 256 numbers, of which these are the first two.
const LLMC: [u32; 2] = [20_240_328, 2];

pub(super) fn read(path: &Path) -> Result<Vec<u8>, TokenizerError> {
    read_small(path, LARGEST).map_err(|fault| TokenizerError::Io { path: path.into(), fault })
}

pub(super) fn text(path: &Path) -> Result<String, TokenizerError> {
    let bytes = read(path)?;
    if path.extension().is_some_and(|end| end == "model") && str::from_utf8(&bytes).is_err() {
        return Err(TokenizerError::SentencePiece.at(path));
    }
    String::from_utf8(bytes).map_err(|error| part("the file", "text in UTF-8", error.utf8_error().to_string()).at(path))
}

pub(super) fn open(dir: &Path) -> Result<Option<Tokenizer>, TokenizerError> {
    let [json, vocab, merges, lines, llmc] =
        ["tokenizer.json", "vocab.json", "merges.txt", "vocab.txt", "gpt2_tokenizer.bin"].map(|name| dir.join(name));
    let config = Config::read(dir)?;
    let mut imported = if json.exists() {
        match Tokenizer::load(&json)? {
            Tokenizer::Imported(imported) => imported,
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
    if let Some(imported) = Arc::get_mut(&mut imported) {
        let id = |name: &str| imported.id(content(config.keys.get(name)?)?);
        let (begin, end) = (id("bos_token"), id("eos_token").or(config.eos_id));
        let end = end.filter(|&id| (id as usize) < imported.tokens().len());
        imported.configure(begin, end, config.add_bos_token);
        let size = imported.tokens().len();
        imported.ends = config.ends.into_iter().filter(|id| (*id as usize) < size).collect();
    }
    Ok(Some(Tokenizer::Imported(imported)))
}

/// A token in tokenizer_config.json: its text, or an object that has it.
fn content(token: &Value) -> Option<&str> {
    token.as_str().or(token["content"].as_str())
}

/// The keys of tokenizer_config.json that name a token, in the order in which those that the vocabulary lacks get ids.
const NAMED: [&str; 7] = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// The tokens of these keys where no file names them, `""` for none.
type Defaults = [&'static str; 7];

/// The classes of transformers that read vocab.json and merges.txt in a way that is known here, and whose models are theirs where no
/// file names a class.
const CLASSES: [(&str, &[&str], Defaults); 4] = [
    (
        GPT2,
        &["gpt2", "gpt_neo", "gptj", "gpt_bigcode", "opt", "phi", "starcoder2", "codegen"],
        ["<|endoftext|>", "<|endoftext|>", "<|endoftext|>", "", "", "", ""],
    ),
    (
        ROBERTA,
        &["roberta", "roberta-prelayernorm", "longformer", "bart"],
        ["<s>", "</s>", "<unk>", "</s>", "<pad>", "<s>", "<mask>"],
    ),
    (QWEN2, &["qwen2", "qwen3"], ["", "<|endoftext|>", "<|endoftext|>", "", "<|endoftext|>", "", ""]),
    (GPT1, &["openai-gpt"], ["", "", "<unk>", "", "", "", ""]),
];
const GPT2: &str = "GPT2Tokenizer";
const ROBERTA: &str = "RobertaTokenizer";
const QWEN2: &str = "Qwen2Tokenizer";
const GPT1: &str = "OpenAIGPTTokenizer";
const BERT: Defaults = ["", "", "[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]"];

/// Where the ids of the tokens that end a text are: HuggingFace's files, and its config.json in a folder of limpid's.
const ENDS: [&str; 3] = ["generation_config.json", "config.json", "config.hf.json"];

/// What is read of tokenizer_config.json, and of the model's files where that is silent.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Config {
    tokenizer_class: Option<String>,
    add_bos_token: Option<bool>,
    add_eos_token: Option<bool>,
    add_prefix_space: Option<bool>,
    do_lower_case: Option<bool>,
    strip_accents: Option<bool>,
    tokenize_chinese_chars: Option<bool>,
    /// All keys, among them the tokens; those of special_tokens_map.json where tokenizer_config.json lists no tokens by id.
    #[serde(skip)]
    keys: Map<String, Value>,
    /// Tokens and ids of added_tokens.json, where tokenizer_config.json lists none.
    #[serde(skip)]
    added: Map<String, Value>,
    #[serde(skip)]
    model_type: Option<String>,
    #[serde(skip)]
    eos_id: Option<u32>,
    #[serde(skip)]
    ends: Vec<u32>,
}

impl Config {
    fn read(dir: &Path) -> Result<Config, TokenizerError> {
        let read = |name: &str| -> Result<Map<String, Value>, TokenizerError> {
            let path = dir.join(name);
            if !path.exists() {
                return Ok(Map::new());
            }
            let wrong = |error: serde_json::Error| part("the file", "an object in JSON", error.to_string());
            serde_json::from_str(&text(&path)?).map_err(|error| wrong(error).at(&path))
        };
        let own = dir.join("tokenizer_config.json");
        let mut keys = read("tokenizer_config.json")?;
        let wrong = |error: serde_json::Error| part("the file", "a tokenizer_config.json", error.to_string());
        let mut config: Config =
            serde_json::from_value(Value::Object(keys.clone())).map_err(|error| wrong(error).at(&own))?;
        if !keys.contains_key("added_tokens_decoder") {
            keys.extend(read("special_tokens_map.json")?);
            config.added = read("added_tokens.json")?;
        }
        config.keys = keys;
        // these are the model's, and whoever reads the model checks them
        let model = |name: &&str| -> Option<Value> { serde_json::from_str(&text(&dir.join(name)).ok()?).ok() };
        let ids = |name: &&str| -> Option<Vec<u32>> {
            let ends = &model(name)?["eos_token_id"];
            let ids = ends.as_array().map_or(std::slice::from_ref(ends), Vec::as_slice);
            Some(ids.iter().filter_map(|id| id.as_u64()?.try_into().ok()).collect())
        };
        let named = |names: &[&str]| names.iter().filter_map(ids).find(|ids| !ids.is_empty());
        config.eos_id = named(&ENDS[1..]).and_then(|ids| ids.first().copied());
        config.ends = named(&ENDS).unwrap_or_default();
        let of =
            |key: &str| ENDS[1..].iter().filter_map(model).find_map(|model| Some(model[key].as_str()?.to_string()));
        config.model_type = of("model_type");
        config.tokenizer_class = config.tokenizer_class.or_else(|| of("tokenizer_class"));
        Ok(config)
    }

    /// The class of vocab.json and merges.txt, whose merges may have GPT-1's ends of words, and its tokens.
    fn class(&self, words: bool) -> Result<(&'static str, &'static Defaults), TokenizerError> {
        let known = CLASSES.iter().find(|(class, models, _)| match (&self.tokenizer_class, &self.model_type) {
            (Some(named), _) => named.strip_suffix("Fast").unwrap_or(named) == *class,
            (None, Some(model)) => models.contains(&&**model),
            (None, None) => *class == if words { GPT1 } else { GPT2 },
        });
        let class = || self.tokenizer_class.clone().or_else(|| Some(format!("model {}", self.model_type.as_ref()?)));
        let (class, _, tokens) = known.ok_or_else(|| TokenizerError::Class(class().unwrap_or_default()))?;
        Ok((class, tokens))
    }

    /// The tokens that are looked for before others: those that the files give ids, and those that they or the class name. What is
    /// named and has no id gets the next, as in transformers; of a class's own tokens only those of `appended`.
    fn tokens(
        &self,
        vocab: &[(String, u64)],
        defaults: &Defaults,
        appended: bool,
    ) -> Result<Vec<Added>, TokenizerError> {
        let wrong = |file: &str, token: &Value| {
            part(&format!("a token in {file}"), "its text and, in a list, its id", super::spec::shown(token))
        };
        let lists = ["extra_special_tokens", "additional_special_tokens"].map(|key| self.keys.get(key));
        let extra = lists.into_iter().flatten().map(|list| match list {
            Value::Array(list) => list.iter().collect(),
            Value::Object(map) => map.values().collect(),
            _ => vec![],
        });
        let extra = extra.into_iter().find(|list| !list.is_empty()).unwrap_or_default();
        let own = |default: &str| (!default.is_empty()).then(|| Value::from(default));
        let named = NAMED.iter().zip(defaults).filter_map(|(key, default)| match self.keys.get(*key) {
            Some(token) => Some((token.clone(), true)).filter(|(token, _)| !token.is_null()),
            None => Some((own(default)?, appended)),
        });
        let special: Vec<(Value, bool)> = named.chain(extra.into_iter().map(|token| (token.clone(), true))).collect();
        let is_special = |text: &str| special.iter().any(|(token, _)| content(token) == Some(text));
        let mut added = vec![];
        if let Some(Value::Object(listed)) = self.keys.get("added_tokens_decoder") {
            for (key, token) in listed {
                let (Ok(id), Some(text)) = (key.parse(), content(token)) else {
                    return Err(wrong("added_tokens_decoder", token));
                };
                added.push(described(token, id, text, token["special"] == true || is_special(text)));
            }
        }
        for (text, id) in &self.added {
            let number = id.as_u64().ok_or_else(|| wrong("added_tokens.json", id))?;
            added.push(described(&Value::Null, number, text, is_special(text)));
        }
        let ids = vocab.iter().map(|(_, id)| *id).chain(added.iter().map(|token| token.id));
        let mut next = ids.max().map_or(0, |last| last.saturating_add(1));
        for (token, appended) in &special {
            let text =
                content(token).ok_or_else(|| wrong("tokenizer_config.json or special_tokens_map.json", token))?;
            let known = vocab.iter().find(|(token, _)| token == text).map(|(_, id)| *id);
            if added.iter().any(|token| token.content == text) || known.is_none() && !appended {
                continue;
            }
            added.push(described(token, known.unwrap_or(next), text, true));
            next = next.saturating_add(known.is_none().into());
        }
        added.sort_by_key(|token| token.id);
        Ok(added)
    }
}

/// A token with what an object says of it.
fn described(token: &Value, id: u64, text: &str, special: bool) -> Added {
    let [single_word, lstrip, rstrip] = ["single_word", "lstrip", "rstrip"].map(|key| token[key] == true);
    let normalized = token["normalized"].as_bool().unwrap_or(!special);
    Added { id, content: text.into(), single_word, lstrip, rstrip, normalized, special }
}

/// vocab.json and merges.txt: GPT-2's letters for bytes, or GPT-1's `</w>` after words.
fn byte_pairs(pairs: Vec<(String, u64)>, lines: &str, config: &Config) -> Result<ImportedTokenizer, TokenizerError> {
    let lines = lines.lines().filter(|line| !line.starts_with("#version") && !line.is_empty());
    let merge = |line: &str| Merge::parse(line).ok_or_else(|| part("a line", "two tokens with a blank between", line));
    let merges = lines.map(merge).collect::<Result<Vec<_>, TokenizerError>>()?;
    let (class, defaults) = config.class(merges.iter().any(|merge| merge.1.ends_with("</w>")))?;
    // Qwen's end of text is in no vocab.json; what else the vocabulary lacks the model has no row for
    let added = config.tokens(&pairs, defaults, class == QWEN2)?;
    let mut model = Model { r#type: Some("BPE".into()), merges: Some(merges), ..Model::default() };
    if class == GPT1 {
        model.end_of_word_suffix = Some("</w>".into());
        model.unk_token = Some("<unk>".into());
    }
    model.vocab = Vocab::Ids(pairs);
    let mut spec = if class == GPT1 { Spec::of(model) } else { byte_level(model) };
    let prefix = config.add_prefix_space == Some(true);
    match class {
        GPT1 => {
            spec.normalizer = bert_normalizer(&Config { do_lower_case: Some(true), ..Config::default() });
            spec.pre_tokenizer = json!({ "type": "BertPreTokenizer" });
            spec.decoder = json!({ "type": "BPEDecoder", "suffix": "</w>" });
        }
        QWEN2 => {
            spec.normalizer = json!({ "type": "NFC" });
            spec.pre_tokenizer = table::cutting(Split::Qwen2);
            spec.pre_tokenizer["pretokenizers"][1]["add_prefix_space"] = json!(prefix);
        }
        _ => spec.pre_tokenizer["add_prefix_space"] = json!(prefix),
    }
    let name = |place: usize| config.keys.get(NAMED[place]).map_or(Some(defaults[place]), content).unwrap_or_default();
    let token = |place: usize| -> Result<(u32, &str), TokenizerError> {
        let name = name(place);
        let id = added.iter().find(|added| added.content == name).and_then(|added| added.id.try_into().ok());
        let lacking = || part(NAMED[place], "a token of the vocabulary", super::error::shown(name));
        Ok((id.ok_or_else(lacking)?, name))
    };
    let asked = |place: usize, ask: Option<bool>| {
        (ask == Some(true) && !name(place).is_empty()).then(|| token(place)).transpose()
    };
    spec.post_processor = match (config.add_bos_token, config.add_eos_token) {
        (None, None) if class == ROBERTA => {
            let [sep, cls] = [token(3)?, token(5)?].map(|(id, name)| json!([name, id]));
            json!({ "type": "RobertaProcessing", "sep": sep, "cls": cls, "trim_offsets": true, "add_prefix_space": prefix })
        }
        (begin, end) => table::framed(asked(0, begin)?, asked(1, end)?),
    };
    spec.added_tokens = added;
    ImportedTokenizer::made(spec)
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

/// BERT's tokenizer of that vocab.txt, with these special tokens.
pub(super) fn learned_pieces(lines: &str, lowercase: bool, special: &[String]) -> Result<Tokenizer, TokenizerError> {
    let config = Config { do_lower_case: Some(lowercase), ..Config::default() };
    let mut spec = word_piece_spec(lines, &config)?;
    spec.added_tokens = (0..).zip(special).map(|(id, token)| Added::new(id, token, true)).collect();
    Tokenizer::made(spec)
}

/// BERT's vocab.txt: a token a line.
fn word_pieces(lines: &str, config: &Config) -> Result<ImportedTokenizer, TokenizerError> {
    ImportedTokenizer::made(word_piece_spec(lines, config)?)
}

fn word_piece_spec(lines: &str, config: &Config) -> Result<Spec, TokenizerError> {
    let pairs: Vec<(String, u64)> = lines.lines().map(String::from).zip(0..).collect();
    let id = |name: &str| pairs.iter().find(|(token, _)| token == name).map(|(_, id)| *id as u32);
    let added = config.tokens(&pairs, &BERT, false)?;
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
    Ok(spec)
}

/// llm.c's file: the bytes of each token, in the order they were merged in.
pub(super) fn llm_c(bytes: &[u8]) -> Result<Tokenizer, TokenizerError> {
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
    if let Some(gpt2) = Encoding::named("gpt2")
        && tokens.len() == gpt2.vocab_size()
        && (0..).zip(&tokens).all(|(id, t)| t.as_deref() == Some(&*gpt2.bytes(&[id])))
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
    Ok(Tokenizer::Imported(Arc::new(ImportedTokenizer::made(spec)?)))
}

/// Each token of a .tiktoken file: its bytes in base64, a blank, its rank.
pub(super) fn tiktoken(bytes: &[u8], split: Option<Split>, special: &[String]) -> Result<Tokenizer, TokenizerError> {
    let text =
        str::from_utf8(bytes).map_err(|error| part("the file", "lines of base64 and ranks", error.to_string()))?;
    let mut tokens: Vec<Option<Vec<u8>>> = Vec::new();
    let mut seen = std::collections::HashSet::new();
    for (line, n) in text.lines().zip(1..).filter(|(line, _)| !line.is_empty()) {
        let parsed = line.split_once(' ').and_then(|(token, rank)| {
            let rank: usize = rank.trim().parse().ok().filter(|rank| *rank < 1 << 22)?;
            Some((STANDARD.decode(token).ok().filter(|token| !token.is_empty())?, rank))
        });
        let wrong = |expected| part(&format!("line {n}"), expected, super::error::shown(line));
        let (token, rank) = parsed.ok_or_else(|| wrong("a token in base64, a blank and its rank"))?;
        if rank >= tokens.len() {
            tokens.resize(rank + 1, None);
        }
        if !seen.insert(token.clone()) || tokens[rank].replace(token).is_some() {
            return Err(wrong("a token and a rank that no other line has"));
        }
    }
    if !(0..=255u8).all(|byte| seen.contains([byte].as_slice())) {
        return Err(part("the tokens", "all 256 single bytes among them", format!("{} tokens", seen.len())));
    }
    let is = |encoding: &Encoding| {
        let own = tokens.len() == encoding.ranks() || (encoding.is_gpt2() && tokens.len() == 50_281);
        let same = |(id, token): (u32, &Option<Vec<u8>>)| token.as_deref() == Some(&*encoding.bytes(&[id]));
        own && (0..).zip(&tokens[..encoding.ranks()]).all(same)
    };
    let known = Encoding::all().find(is);
    let whole = |encoding: &Encoding| tokens.len() == encoding.ranks();
    let own = known.filter(|encoding| split.is_none_or(|split| split == encoding.split()) && whole(encoding));
    if let Some(encoding) = own.filter(|_| special.is_empty()) {
        return Ok(Tokenizer::Bpe(encoding));
    }
    let split = split.or(known.map(Encoding::split)).ok_or(TokenizerError::NoSplit)?;
    let mut spec = table::ranked(&tokens)?;
    // p50k_base has its end of text where GPT-2 has it, among its tokens.
    let p50k = known.is_some() && own.is_none() && tokens[50_256].is_none() && special.is_empty();
    spec.added_tokens =
        special.iter().zip(tokens.len() as u32..).map(|(token, id)| Added::new(id, token, true)).collect();
    spec.added_tokens.extend(p50k.then(|| Added::new(50_256, "<|endoftext|>", true)));
    if let Vocab::Ids(pairs) = &mut spec.model.vocab {
        pairs.extend(spec.added_tokens.iter().map(|added| (added.content.clone(), added.id)));
    }
    (spec.pre_tokenizer, spec.decoder) = (table::cutting(split), table::byte_level(true));
    Tokenizer::made(spec)
}

/// The tokens of byte-level byte pairs whose ids are in the order of their ranks: bytes and id, special tokens left out.
fn in_order(tokenizer: &Tokenizer) -> Result<Vec<(Vec<u8>, u32)>, TokenizerError> {
    let pairs = match tokenizer {
        Tokenizer::Bpe(encoding) => Some(encoding.pairs()),
        Tokenizer::Imported(imported) => imported.pairs(),
        _ => None,
    };
    let pairs = pairs
        .ok_or_else(|| TokenizerError::Format(format!("it is no byte-level byte pairs, but {}", tokenizer.name())))?;
    let mut tokens: Vec<(Vec<u8>, u32)> = pairs.tokens().map(|(token, id)| (token.to_vec(), id)).collect();
    let joined = tokens.iter().filter(|(token, _)| token.len() > 1).map(|(_, id)| *id);
    if !joined.is_sorted() {
        return Err(TokenizerError::Format("its ids are not in the order of its merges".into()));
    }
    tokens.sort_by_key(|(_, id)| *id);
    Ok(tokens)
}

/// [`Tokenizer::to_tiktoken`].
pub(super) fn to_tiktoken(tokenizer: &Tokenizer) -> Result<String, TokenizerError> {
    Ok(in_order(tokenizer)?.iter().map(|(token, id)| format!("{} {id}\n", STANDARD.encode(token))).collect())
}

/// [`Tokenizer::to_llmc`].
pub(super) fn to_llmc(tokenizer: &Tokenizer) -> Result<Vec<u8>, TokenizerError> {
    let end =
        tokenizer.end_of_text().ok_or_else(|| TokenizerError::Format("it has no token that ends a text".into()))?;
    let mut tokens = in_order(tokenizer)?;
    tokens.extend(tokenizer.specials().into_iter().map(|(text, id)| (text.into(), id)));
    tokens.sort_by_key(|(_, id)| *id);
    let mut header = [0u32; 256];
    header[..4].copy_from_slice(&[LLMC[0], LLMC[1], tokens.len() as u32, end]);
    let mut bytes: Vec<u8> = header.iter().flat_map(|number| number.to_le_bytes()).collect();
    for ((token, id), place) in tokens.iter().zip(0..) {
        let size = u8::try_from(token.len()).ok().filter(|_| *id == place);
        bytes.push(size.ok_or_else(|| {
            TokenizerError::Format(format!("token {id} is longer than 255 bytes, or ids are unused"))
        })?);
        bytes.extend(token);
    }
    Ok(bytes)
}

//! The files beside a tokenizer's vocabulary in a model's folder: tokenizer_config.json, special_tokens_map.json,
//! added_tokens.json, and the tokens that config.json names. Which file counts for what, and in which order tokens get
//! ids, follows transformers 5.23.
//!
//! Read `classes` next: what each tokenizer class does with them.

use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
};

use serde::Deserialize;
use serde_json::Value;

use limpid_base::files::read_small;

use super::{
    TokenizerError,
    spec::{Added, Pairs, parse, part, shown},
};

/// The keys of tokenizer_config.json that name a token, in the order in which those that the vocabulary lacks get ids.
pub(super) const ROLES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// The model's files that know of tokens: HuggingFace's, and its config.json in a folder of limpid's.
const MODEL: [&str; 3] = ["generation_config.json", "config.json", "config.hf.json"];

/// Larger than any tokenizer; what is larger is another file by that name.
const LARGEST: u64 = 128 << 20;

pub(super) fn bytes(path: &Path) -> Result<Vec<u8>, TokenizerError> {
    read_small(path, LARGEST).map_err(|fault| TokenizerError::Io { path: path.into(), fault })
}

pub(super) fn text(path: &Path) -> Result<String, TokenizerError> {
    utf8(bytes(path)?).map_err(|error| error.at(path))
}

pub(super) fn utf8(bytes: Vec<u8>) -> Result<String, TokenizerError> {
    String::from_utf8(bytes).map_err(|error| part("the file", "text in UTF-8", error.utf8_error().to_string()))
}

/// The settings of tokenizer_config.json.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Settings {
    tokenizer_class: Option<String>,
    pub add_bos_token: Option<bool>,
    pub add_eos_token: Option<bool>,
    pub add_prefix_space: Option<bool>,
    pub do_lower_case: Option<bool>,
    pub keep_accents: Option<bool>,
    pub strip_accents: Option<bool>,
    pub tokenize_chinese_chars: Option<bool>,
    pub split_special_tokens: Option<bool>,
    pub legacy: Option<bool>,
}

/// The files beside a vocabulary.
#[derive(Default)]
pub(super) struct TokenizerFiles {
    pub settings: Settings,
    /// The class that the files name.
    pub class: Option<String>,
    pub model_type: Option<String>,
    /// Whether any file names a token.
    pub names_tokens: bool,
    /// The tokens in a role; null for none.
    pub roles: HashMap<String, Value>,
    /// Roles that are a model's own (`image_token`).
    pub more: Vec<(String, Value)>,
    /// Special tokens without a role.
    pub extra: Vec<Value>,
    /// `added_tokens_decoder`, by id, if it is there: added_tokens.json and the list in tokenizer.json then say
    /// nothing.
    pub decoder: Option<BTreeMap<u64, Added>>,
    /// added_tokens.json, by id.
    pub added: BTreeMap<u64, Added>,
    /// Rows of the model: a token beyond them cannot be read.
    pub rows: Option<u64>,
    /// The first end of a text by config.json.
    pub end: Option<u32>,
    /// All ends of a text by generation_config.json, or else config.json.
    pub ends: Vec<u32>,
}

/// A token's text: the token itself, or an object that has it.
pub(super) fn content(token: &Value) -> Option<&str> {
    token.as_str().or(token["content"].as_str())
}

/// A token with what an object says of it.
fn described(token: &Value, id: u64, text: &str, special: bool) -> Added {
    let [single_word, lstrip, rstrip] = ["single_word", "lstrip", "rstrip"].map(|key| token[key] == true);
    let normalized = token["normalized"].as_bool().unwrap_or(!special);
    Added { id, content: text.into(), single_word, lstrip, rstrip, normalized, special }
}

/// Whether both are the same but for their ids.
pub(super) fn is_same(a: &Added, b: &Added) -> bool {
    let flags = |t: &Added| (t.single_word, t.lstrip, t.rstrip, t.normalized, t.special);
    a.content == b.content && flags(a) == flags(b)
}

pub(super) fn special(token: &Value) -> Result<Added, TokenizerError> {
    let wrong = || part("a token in tokenizer_config.json or special_tokens_map.json", "its text", shown(token));
    Ok(described(token, 0, content(token).ok_or_else(wrong)?, true))
}

/// A list of tokens, or none.
fn list(value: Option<&Value>) -> Vec<Value> {
    value.and_then(Value::as_array).cloned().unwrap_or_default()
}

impl TokenizerFiles {
    pub(super) fn read(dir: &Path) -> Result<TokenizerFiles, TokenizerError> {
        let read = |name: &str| -> Result<Vec<(String, Value)>, TokenizerError> {
            let path = dir.join(name);
            if !path.exists() {
                return Ok(vec![]);
            }
            let wrong = |error: TokenizerError| part("the file", "an object in JSON", error.to_string()).at(&path);
            Ok(parse::<Pairs<Value>>(&text(&path)?).map_err(wrong)?.0)
        };
        const OWN: &str = "tokenizer_config.json";
        let own = read(OWN)?;
        let wrong = |error: TokenizerError| error.at(&dir.join(OWN));
        let settings = serde_json::from_value(Value::Object(own.iter().cloned().collect()))
            .map_err(|error| wrong(part("the file", "a tokenizer_config.json", error.to_string())))?;
        let mut beside = TokenizerFiles { settings, ..TokenizerFiles::default() };
        let find =
            |keys: &[(String, Value)], key: &str| keys.iter().rev().find(|(k, _)| k == key).map(|(_, v)| v.clone());
        let given = |value: &Option<Value>| {
            value.as_ref().is_some_and(|v| {
                v.as_array().is_some_and(|v| !v.is_empty()) || v.as_object().is_some_and(|v| !v.is_empty())
            })
        };
        let mut extra = find(&own, "extra_special_tokens");
        if !given(&extra) {
            extra = find(&own, "additional_special_tokens").or(extra);
        }
        beside.name(&own);
        match find(&own, "added_tokens_decoder") {
            Some(Value::Object(listed)) => {
                let one = |(id, token): (&String, &Value)| {
                    let wrong = || part("a token in added_tokens_decoder", "its text and its id", shown(token));
                    let (id, text) = id.parse().ok().zip(content(token)).ok_or_else(wrong)?;
                    Ok((id, described(token, id, text, token["special"] == true)))
                };
                beside.decoder = Some(listed.iter().map(one).collect::<Result<_, _>>().map_err(wrong)?);
            }
            _ => {
                let map = read("special_tokens_map.json")?;
                beside.name(&map);
                match find(&map, "extra_special_tokens") {
                    Some(Value::Array(more)) => {
                        let mut all = list(extra.as_ref());
                        all.extend(more.into_iter().filter(|token| !list(extra.as_ref()).contains(token)));
                        extra = Some(all.into());
                    }
                    Some(named) => extra = Some(named),
                    None => extra = extra.or_else(|| find(&map, "additional_special_tokens")),
                }
            }
        }
        match extra {
            Some(Value::Object(named)) => beside.more.extend(named),
            extra => beside.extra = list(extra.as_ref()),
        }
        if beside.decoder.is_none() {
            let path = dir.join("added_tokens.json");
            for (text, id) in read("added_tokens.json")? {
                let wrong = || part("a token in added_tokens.json", "its id", shown(&id)).at(&path);
                let special = beside.roles.values().chain(&beside.extra).any(|token| content(token) == Some(&text));
                let id = id.as_u64().ok_or_else(wrong)?;
                beside.added.insert(id, described(&Value::Null, id, &text, special));
            }
        }
        beside.names_tokens = !(beside.roles.is_empty() && beside.more.is_empty());
        beside.ask_model(dir);
        Ok(beside)
    }

    /// Of BERT's settings the case alone.
    pub(super) fn with_case(lowercase: bool) -> TokenizerFiles {
        TokenizerFiles {
            settings: Settings { do_lower_case: Some(lowercase), ..Settings::default() },
            ..TokenizerFiles::default()
        }
    }

    /// The special tokens of a vocabulary of `size` ranks, which names none itself. Ids between them are reserved, as
    /// in transformers; of a model whose rows are not known at most 65,536.
    pub(super) fn after(&self, size: u64) -> Vec<String> {
        let listed = self.decoder.as_ref().unwrap_or(&self.added);
        let most = self.rows.unwrap_or(size.saturating_add(1 << 16));
        let last = listed.keys().next_back().map_or(size, |last| last.saturating_add(1).min(most));
        let name =
            |id| listed.get(&id).map_or_else(|| format!("<|reserved_token_{id}|>"), |token| token.content.clone());
        let mut all: Vec<String> = (size..last).map(name).collect();
        let extra: Vec<String> = self.extra.iter().filter_map(content).map(String::from).collect();
        all.extend(extra.into_iter().filter(|token| !all.contains(token)).collect::<Vec<_>>());
        all
    }

    /// Takes up the tokens that a file names.
    fn name(&mut self, keys: &[(String, Value)]) {
        for (key, token) in keys.iter().filter(|(key, _)| key.ends_with("_token")) {
            if ROLES.contains(&key.as_str()) {
                self.roles.insert(key.clone(), token.clone());
            } else if content(token).is_some() {
                self.more.retain(|(known, _)| known != key);
                self.more.push((key.clone(), token.clone()));
            }
        }
    }

    /// Looks into the model's own files. Whoever reads the model checks them.
    fn ask_model(&mut self, dir: &Path) {
        let files: Vec<Value> = MODEL
            .iter()
            .map(|name| {
                text(&dir.join(name)).ok().and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default()
            })
            .collect();
        let ids = |file: &Value| -> Vec<u32> {
            let ends = &file["eos_token_id"];
            let ids = ends.as_array().map_or(std::slice::from_ref(ends), Vec::as_slice);
            ids.iter().filter_map(|id| id.as_u64()?.try_into().ok()).collect()
        };
        let ends = |files: &[Value]| files.iter().map(ids).find(|ids| !ids.is_empty()).unwrap_or_default();
        (self.end, self.ends) = (ends(&files[1..]).first().copied(), ends(&files));
        // in a folder of limpid's the model's first configuration knows what limpid's does not
        let ask = |key: &str| files[1..].iter().rev().find_map(|file| Some(file[key].as_str()?.to_string()));
        self.model_type = ask("model_type");
        self.class = self.settings.tokenizer_class.take().or_else(|| ask("tokenizer_class"));
        self.rows = files[1].get("vocab_size").and_then(Value::as_u64);
    }

    /// Whether a file, and no class, names the token of this role.
    pub(super) fn says(&self, role: &str) -> bool {
        self.roles.get(role).is_some_and(|token| !token.is_null())
    }
}

//! What a HuggingFace tokenizer.json says, read once, checked, and only then given to their crate.
//!
//! The crate trusts its files: a merge of two tokens whose sum is no token, a continuation shorter than its prefix or a
//! broken character map panic in it or worse. So the file is read into a [`Spec`] here, everything the crate indexes
//! with is looked up first, and its parts are built one by one (`build`). Random choices (dropout), padding and
//! truncation are left out: a text always gives the same ids, all of them.
//!
//! Read `imported` next.

use std::{collections::HashMap, fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{
        MapAccess, SeqAccess, Visitor,
        value::{MapAccessDeserializer, SeqAccessDeserializer},
    },
};
use serde_json::Value;

use super::TokenizerError;
use limpid_base::words::not_json;

/// A tokenizer.json.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct Spec {
    #[serde(default = "first_version")]
    pub version: String,
    #[serde(skip_deserializing)]
    pub truncation: (),
    #[serde(skip_deserializing)]
    pub padding: (),
    #[serde(default)]
    pub added_tokens: Vec<Added>,
    #[serde(default)]
    pub normalizer: Value,
    #[serde(default)]
    pub pre_tokenizer: Value,
    #[serde(default)]
    pub post_processor: Value,
    #[serde(default)]
    pub decoder: Value,
    pub model: Model,
}

fn first_version() -> String {
    "1.0".into()
}

/// A token that is looked for in the text before anything else.
#[derive(Clone, Default, Serialize, Deserialize)]
pub(super) struct Added {
    pub id: u64,
    pub content: String,
    #[serde(default)]
    pub single_word: bool,
    #[serde(default)]
    pub lstrip: bool,
    #[serde(default)]
    pub rstrip: bool,
    #[serde(default)]
    pub normalized: bool,
    #[serde(default)]
    pub special: bool,
}

impl Added {
    pub(super) fn new(id: u32, content: &str, special: bool) -> Added {
        Added { id: id.into(), content: content.into(), special, ..Added::default() }
    }

    /// Special tokens with ids from there on.
    pub(super) fn specials(texts: &[String], from: usize) -> Vec<Added> {
        texts.iter().zip(from as u32..).map(|(text, id)| Added::new(id, text, true)).collect()
    }
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Model {
    pub r#type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unk_token: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unk_id: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub continuing_subword_prefix: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_of_word_suffix: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fuse_unk: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub byte_fallback: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ignore_merges: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_input_chars_per_word: Option<usize>,
    pub vocab: Vocab,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub merges: Option<Vec<Merge>>,
}

/// Tokens with their ids, or, by id, with their scores.
pub(super) enum Vocab {
    Ids(Vec<(String, u64)>),
    Scores(Vec<(String, f64)>),
}

impl Default for Vocab {
    fn default() -> Vocab {
        Vocab::Ids(Vec::new())
    }
}

impl Vocab {
    /// The tokens and their ids.
    pub(super) fn pairs(&self) -> Vec<(&str, u64)> {
        match self {
            Vocab::Ids(list) => list.iter().map(|(token, id)| (token.as_str(), *id)).collect(),
            Vocab::Scores(list) => list.iter().zip(0..).map(|((token, _), id)| (token.as_str(), id)).collect(),
        }
    }
}

impl Serialize for Vocab {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Vocab::Ids(pairs) => serializer.collect_map(pairs.iter().map(|(token, id)| (token, id))),
            Vocab::Scores(scores) => scores.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Vocab {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Vocab, D::Error> {
        struct Each;
        impl<'de> Visitor<'de> for Each {
            type Value = Vocab;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object of tokens and their ids, or a list of tokens and their scores")
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Vocab, A::Error> {
                Pairs::<u64>::deserialize(MapAccessDeserializer::new(map)).map(|pairs| Vocab::Ids(pairs.0))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Vocab, A::Error> {
                let scores = Vec::deserialize(SeqAccessDeserializer::new(seq)).map(Vocab::Scores);
                scores.map_err(|_| serde::de::Error::invalid_type(serde::de::Unexpected::Seq, &Each))
            }
        }
        deserializer.deserialize_any(Each)
    }
}

/// Two tokens that become one: `["a", "b"]`, or `"a b"` in older files.
#[derive(Serialize)]
pub(super) struct Merge(pub String, pub String);

impl Merge {
    pub(super) fn parse(line: &str) -> Option<Merge> {
        let (a, b) = line.split_once(' ')?;
        (!b.contains(' ')).then(|| Merge(a.into(), b.into()))
    }
}

impl<'de> Deserialize<'de> for Merge {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Merge, D::Error> {
        struct Each;
        impl<'de> Visitor<'de> for Each {
            type Value = Merge;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a merge: two tokens with a blank between, or a list of two")
            }
            fn visit_str<E: serde::de::Error>(self, line: &str) -> Result<Merge, E> {
                Merge::parse(line).ok_or_else(|| E::invalid_value(serde::de::Unexpected::Str(line), &self))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Merge, A::Error> {
                let mut next = || seq.next_element()?.ok_or_else(|| serde::de::Error::invalid_length(1, &"two tokens"));
                let merge = Merge(next()?, next()?);
                match seq.next_element::<serde::de::IgnoredAny>()? {
                    None => Ok(merge),
                    Some(_) => Err(serde::de::Error::invalid_length(3, &"two tokens")),
                }
            }
        }
        deserializer.deserialize_any(Each)
    }
}

/// A part of a tokenizer file that cannot be used.
pub(super) fn part(part: &str, expected: &'static str, found: impl Into<String>) -> TokenizerError {
    TokenizerError::Part { part: part.into(), expected, found: found.into() }
}

/// A part of a tokenizer file that limpid does not have.
pub(super) fn not_supported(part: &str, found: impl Into<String>, known: &'static str) -> TokenizerError {
    TokenizerError::NotSupported { part: part.into(), found: found.into(), known }
}

/// The steps of a normalizer, pre_tokenizer, post_processor or decoder: none, one, or a sequence's.
pub(super) fn steps<'a>(name: &'static str, value: &'a Value) -> Result<Vec<(&'a str, &'a Value)>, TokenizerError> {
    let inner = ["normalizers", "pretokenizers", "processors", "decoders"].iter().find_map(|key| value.get(key));
    match (value, value["type"].as_str(), inner.and_then(Value::as_array)) {
        (Value::Null, ..) => Ok(Vec::new()),
        (_, Some("Sequence"), Some(list)) if list.len() <= 32 => {
            let nested: Result<Vec<_>, TokenizerError> = list.iter().map(|step| steps(name, step)).collect();
            Ok(nested?.concat())
        }
        (_, Some("Sequence"), Some(list)) => {
            Err(not_supported(name, format!("a sequence of {} steps", list.len()), "at most 32"))
        }
        (_, Some("Sequence"), None) => Err(part(name, "a sequence with a list of steps", shown(value))),
        (_, Some(kind), _) => Ok(vec![(kind, value)]),
        (_, None, _) => Err(part(name, "an object with a type", shown(value))),
    }
}

/// A value as it is quoted in a message.
pub(super) fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

impl Spec {
    /// A tokenizer of this model, with nothing round it.
    pub(super) fn new(model: Model) -> Spec {
        Spec { version: first_version(), model, ..Spec::default() }
    }

    /// The tokens by id, those of the model and the added ones; an id between them may have none.
    pub(super) fn tokens(&self) -> Result<Vec<Option<String>>, TokenizerError> {
        let (mut pairs, mut ids) = (self.model.vocab.pairs(), HashMap::new());
        for &(token, id) in &pairs {
            if let Some(first) = ids.insert(token, id) {
                return Err(TokenizerError::Duplicate { token: token.into(), first, second: id });
            }
        }
        for Added { id, content, .. } in &self.added_tokens {
            match ids.insert(content, *id) {
                None => pairs.push((content, *id)),
                Some(first) if first != *id => {
                    return Err(TokenizerError::Duplicate { token: content.clone(), first, second: *id });
                }
                Some(_) => {}
            }
        }
        if pairs.is_empty() {
            return Err(TokenizerError::Json("its vocabulary is empty".into()));
        }
        let room = 2 * pairs.len() as u64 + 65_536; // some models leave ids unused; none leaves more than it uses
        let mut tokens: Vec<Option<String>> = Vec::new();
        for (token, id) in pairs {
            if id >= room {
                let found = format!("id {id} of token {token:?}");
                return Err(part("the vocabulary", "ids that are close together", found));
            }
            let id = id as usize;
            if id >= tokens.len() {
                tokens.resize(id + 1, None);
            }
            if let Some(first) = tokens[id].replace(token.into()) {
                return Err(TokenizerError::Shared { id: id as u64, first, second: token.into() });
            }
        }
        Ok(tokens)
    }

    /// Whether its tokens stand for themselves: without a mark where a word goes on or ends.
    pub(super) fn is_unmarked(&self) -> bool {
        let marks = [&self.model.continuing_subword_prefix, &self.model.end_of_word_suffix];
        marks.into_iter().flatten().all(String::is_empty)
    }

    /// What kind of model it is. Files from before models had a type are told apart by what they hold.
    pub(super) fn kind(&self) -> &str {
        match (&self.model.r#type, &self.model) {
            (Some(kind), _) => kind,
            (_, Model { vocab: Vocab::Scores(_), .. }) => "Unigram",
            (_, Model { merges: Some(_), .. }) => "BPE",
            (_, Model { max_input_chars_per_word: Some(_), .. }) => "WordPiece",
            _ => "WordLevel",
        }
    }

    /// The id of what stands for text that the model cannot write, if there is such a token.
    pub(super) fn unknown(&self, tokens: &[Option<String>]) -> Option<u32> {
        let name = match (self.kind(), self.model.unk_token.as_deref()) {
            ("Unigram", _) => return self.model.unk_id.map(|id| id as u32),
            (_, Some(name)) => name,
            ("WordPiece", None) => "[UNK]",
            ("WordLevel", None) => "<unk>",
            _ => return None,
        };
        tokens.iter().position(|token| token.as_deref() == Some(name)).map(|id| id as u32)
    }
}

/// A JSON object as it stands: a key that comes twice is here twice.
pub(super) struct Pairs<T>(pub Vec<(String, T)>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Pairs<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Pairs<T>, D::Error> {
        struct Each<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Each<T> {
            type Value = Pairs<T>;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object of tokens and their ids")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs<T>, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(Each(PhantomData))
    }
}

pub(super) fn parse<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, TokenizerError> {
    serde_json::from_str(text).map_err(|error| {
        let said = error.to_string();
        TokenizerError::Json(not_json(text, error.line(), error.column(), &said).unwrap_or(said))
    })
}

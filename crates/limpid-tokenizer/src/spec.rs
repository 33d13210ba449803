//! What a HuggingFace tokenizer.json says, read once, checked, and only then given to their crate.
//!
//! The crate trusts its files: a merge of two tokens whose sum is no token, a continuation shorter than its prefix or a
//! broken character map panic in it or worse. So the file is read into a [`Spec`] here, everything the crate indexes
//! with is looked up first, and its parts are built one by one. Random choices (dropout), padding and truncation are
//! left out: a text always gives the same ids, all of them.
//!
//! Read `foreign` next.

use std::{
    collections::{HashMap, HashSet},
    fmt,
};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{DeserializeOwned, MapAccess, SeqAccess, Visitor, value::MapAccessDeserializer},
    ser::SerializeMap,
};
use serde_json::Value;
use tokenizers::{
    AddedToken, ModelWrapper, Normalizer, SplitDelimiterBehavior,
    models::{bpe::BPE, unigram::Unigram, wordlevel::WordLevel, wordpiece::WordPiece},
    normalizers::{self as norm, BertNormalizer, Lowercase, NFC, NFD, NFKC, NFKD, Nmt, Prepend, Replace, Strip},
    pre_tokenizers::{self as pre, byte_level::ByteLevel, metaspace::Metaspace},
};

use super::{
    Error,
    engine::{Cut, Cutting, Engine, Expression, Steps, Swap, Whole},
};
use limpid_base::contain::contain;

/// A tokenizer.json.
#[derive(Serialize, Deserialize)]
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
#[derive(Clone, Serialize, Deserialize)]
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
        let (single_word, lstrip, rstrip, normalized) = (false, false, false, false);
        Added { id: id.into(), content: content.into(), single_word, lstrip, rstrip, normalized, special }
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

impl Serialize for Vocab {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Vocab::Ids(pairs) = self else { return Err(serde::ser::Error::custom("scores are not written")) };
        let mut map = serializer.serialize_map(Some(pairs.len()))?;
        pairs.iter().try_for_each(|(token, id)| map.serialize_entry(token, id))?;
        map.end()
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
                super::json::Pairs::deserialize(MapAccessDeserializer::new(map)).map(|pairs| Vocab::Ids(pairs.0))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vocab, A::Error> {
                let mut scores = Vec::new();
                while let Some(pair) = seq.next_element()? {
                    scores.push(pair);
                }
                Ok(Vocab::Scores(scores))
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
pub(super) fn part(part: &str, expected: &'static str, found: impl Into<String>) -> Error {
    Error::Part { part: part.into(), expected, found: found.into() }
}

/// The steps of a normalizer, pre_tokenizer, post_processor or decoder: none, one, or a sequence's.
pub(super) fn steps<'a>(name: &'static str, value: &'a Value) -> Result<Vec<(&'a str, &'a Value)>, Error> {
    let inner = ["normalizers", "pretokenizers", "processors", "decoders"].iter().find_map(|key| value.get(key));
    match (value, value["type"].as_str(), inner.and_then(Value::as_array)) {
        (Value::Null, ..) => Ok(Vec::new()),
        (_, Some("Sequence"), Some(list)) if list.len() <= 32 => {
            let nested: Result<Vec<_>, Error> = list.iter().map(|step| steps(name, step)).collect();
            Ok(nested?.concat())
        }
        (_, Some("Sequence"), _) => Err(part(name, "a sequence of at most 32 steps", "another")),
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

/// Reads one step with the crate's own rules.
fn step<T: DeserializeOwned>(name: &'static str, value: &Value) -> Result<T, Error> {
    let long = |text: &str| text.len() > 4096;
    let pattern = &value["pattern"];
    if [&pattern["Regex"], &pattern["String"]].iter().any(|text| text.as_str().is_some_and(long)) {
        return Err(part(name, "a pattern of at most 4,096 bytes", "a longer one"));
    }
    serde_json::from_value(value.clone())
        .map_err(|error| part(name, "what this step needs", format!("{}: {error}", shown(value))))
}

const NORMALIZER: &str = "the normalizer";
const PRE_TOKENIZER: &str = "the pre_tokenizer";

/// GPT-2's way of cutting, as the crate writes it.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

fn expression(name: &'static str, pattern: &str) -> Result<Expression, Error> {
    Expression::new(pattern).map_err(|error| part(name, "a regular expression", error.to_string()))
}

type Changes = Steps<dyn Normalizer + Send + Sync>;

fn normalizer(value: &Value) -> Result<Option<Changes>, Error> {
    let mut growth = 1usize;
    let mut list: Vec<Box<dyn Normalizer + Send + Sync>> = Vec::new();
    for (kind, value) in steps(NORMALIZER, value)? {
        let text = value["content"].as_str().or(value["prepend"].as_str()).unwrap_or("");
        growth = growth.saturating_mul(if kind == "ByteLevel" { 2 } else { text.len() + 1 });
        list.push(match kind {
            "NFC" => Box::new(NFC),
            "NFD" => Box::new(NFD),
            "NFKC" => Box::new(NFKC),
            "NFKD" => Box::new(NFKD),
            "Nmt" => Box::new(Nmt),
            "Lowercase" => Box::new(Lowercase),
            "StripAccents" => Box::new(norm::StripAccents),
            "ByteLevel" => Box::new(norm::ByteLevel),
            "BertNormalizer" => Box::new(step::<BertNormalizer>(NORMALIZER, value)?),
            "Strip" => Box::new(step::<Strip>(NORMALIZER, value)?),
            "Replace" => {
                let replace = step::<Replace>(NORMALIZER, value)?;
                match value["pattern"]["Regex"].as_str() {
                    Some(pattern) => Box::new(Swap(expression(NORMALIZER, pattern)?, replace.content)),
                    None => Box::new(replace),
                }
            }
            "Prepend" => Box::new(step::<Prepend>(NORMALIZER, value)?),
            // Precompiled is SentencePiece's binary map, which the crate follows out of bounds where it is damaged.
            _ => return Err(part(NORMALIZER, "steps limpid can check (all of HuggingFace's but Precompiled)", kind)),
        });
    }
    // Each step may make a text longer by as much as it puts in.
    if growth > 4096 {
        return Err(part(NORMALIZER, "replacements of a few letters", "long ones, one upon the other"));
    }
    Ok((!list.is_empty()).then(|| Steps(list.into())))
}

fn pre_tokenizer(value: &Value) -> Result<Option<Steps<Cutting>>, Error> {
    const NAME: &str = PRE_TOKENIZER;
    let one = |(kind, value): (&str, &Value)| -> Result<Vec<Box<Cutting>>, Error> {
        Ok(vec![match kind {
            "ByteLevel" => {
                let bytes = step::<ByteLevel>(NAME, value)?;
                let (behavior, invert, blank) = (SplitDelimiterBehavior::Isolated, false, bytes.add_prefix_space);
                let own = bytes.use_regex.then_some(Cut { pattern: expression(NAME, GPT2)?, behavior, invert, blank });
                let blank = bytes.add_prefix_space && own.is_none();
                let letters = Box::new(bytes.use_regex(false).add_prefix_space(blank));
                return Ok(own.into_iter().map(|cut| Box::new(cut) as Box<Cutting>).chain([letters as _]).collect());
            }
            "Split" => {
                let split = step::<pre::split::Split>(NAME, value)?;
                let (behavior, invert, blank) = (split.behavior, split.invert, false);
                match value["pattern"]["Regex"].as_str() {
                    Some(pattern) => Box::new(Cut { pattern: expression(NAME, pattern)?, behavior, invert, blank }),
                    None => Box::new(split),
                }
            }
            "Digits" => Box::new(step::<pre::digits::Digits>(NAME, value)?),
            "Metaspace" => Box::new(step::<Metaspace>(NAME, value)?),
            "Punctuation" => Box::new(step::<pre::punctuation::Punctuation>(NAME, value)?),
            "CharDelimiterSplit" => Box::new(step::<pre::delimiter::CharDelimiterSplit>(NAME, value)?),
            "BertPreTokenizer" => Box::new(pre::bert::BertPreTokenizer),
            "Whitespace" => Box::new(pre::whitespace::Whitespace {}),
            "WhitespaceSplit" => Box::new(pre::whitespace::WhitespaceSplit),
            "UnicodeScripts" => Box::new(pre::unicode_scripts::UnicodeScripts::new()),
            _ => return Err(part(NAME, "a step that HuggingFace's crate has and limpid reads", kind)),
        }])
    };
    let all = steps(NAME, value)?;
    if all.iter().filter(|(kind, _)| *kind == "ByteLevel").count() > 1 {
        return Err(part(NAME, "bytes made letters once", "several ByteLevel steps"));
    }
    let list: Vec<Box<Cutting>> =
        all.into_iter().map(one).collect::<Result<Vec<_>, Error>>()?.into_iter().flatten().collect();
    Ok((!list.is_empty()).then(|| Steps(list.into())))
}

impl Spec {
    /// A tokenizer of this model, with nothing round it.
    pub(super) fn of(model: Model) -> Spec {
        let [normalizer, pre_tokenizer, post_processor, decoder] = [const { Value::Null }; 4];
        let (version, added_tokens) = (first_version(), Vec::new());
        let (truncation, padding) = ((), ());
        Spec { version, truncation, padding, added_tokens, normalizer, pre_tokenizer, post_processor, decoder, model }
    }

    /// The tokens by id, those of the model and the added ones; an id between them may have none.
    pub(super) fn tokens(&self) -> Result<Vec<Option<String>>, Error> {
        let (mut pairs, mut ids) = (Vec::new(), HashMap::new());
        match &self.model.vocab {
            Vocab::Ids(list) => pairs.extend(list.iter().map(|(token, id)| (token.as_str(), *id))),
            Vocab::Scores(list) => pairs.extend(list.iter().zip(0..).map(|((token, _), id)| (token.as_str(), id))),
        }
        for &(token, id) in &pairs {
            if let Some(first) = ids.insert(token, id) {
                return Err(Error::Duplicate { token: token.into(), first, second: id });
            }
        }
        for Added { id, content, .. } in &self.added_tokens {
            match ids.insert(content, *id) {
                None => pairs.push((content, *id)),
                Some(first) if first != *id => {
                    return Err(Error::Duplicate { token: content.clone(), first, second: *id });
                }
                Some(_) => {}
            }
        }
        if pairs.is_empty() {
            return Err(Error::Json("its vocabulary is empty".into()));
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
                return Err(Error::Shared { id: id as u64, first, second: token.into() });
            }
        }
        Ok(tokens)
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

    /// Builds the crate's tokenizer. `self` has passed [`tokens`](Spec::tokens).
    pub(super) fn build(self) -> Result<Engine, Error> {
        contain(|| self.build_unguarded()).unwrap_or_else(|panic| Err(refused(panic.into())))
    }

    fn build_unguarded(self) -> Result<Engine, Error> {
        if self.version != "1.0" {
            return Err(part("the version", "1.0", self.version));
        }
        let (normalizer, pre_tokenizer) = (normalizer(&self.normalizer)?, pre_tokenizer(&self.pre_tokenizer)?);
        let added = self.added_tokens;
        let leaves_out = self.model.unk_token.is_none();
        let model = model(self.model)?;
        let mut new = Engine::new(Whole { leaves_out: leaves_out && matches!(model, ModelWrapper::BPE(_)), model });
        new.with_normalizer(normalizer).map_err(refused)?;
        new.with_pre_tokenizer(pre_tokenizer);
        let tokens = added.iter().map(|a| AddedToken {
            content: a.content.clone(),
            single_word: a.single_word,
            lstrip: a.lstrip,
            rstrip: a.rstrip,
            normalized: a.normalized,
            special: a.special,
        });
        new.add_tokens(tokens).map_err(refused)?;
        // The crate numbers added tokens itself, after the model's.
        for Added { id, content, .. } in &added {
            let given = new.token_to_id(content).map(u64::from);
            if given != Some(*id) {
                let found = format!("{content:?} with id {id}, where {given:?} is next");
                return Err(part("added_tokens", "tokens of the model, or ids that go on after its own", found));
            }
        }
        Ok(new)
    }
}

fn refused(error: Box<dyn std::error::Error + Send + Sync>) -> Error {
    part("the tokenizer", "what HuggingFace's crate can run", error.to_string())
}

fn model(model: Model) -> Result<ModelWrapper, Error> {
    let spec = Spec::of(model);
    let kind = spec.kind().to_string();
    let model = spec.model;
    let needs = |what| part("the model", what, format!("a {kind} model without"));
    if let ("Unigram", Vocab::Scores(list)) = (kind.as_str(), &model.vocab) {
        if list.iter().any(|(token, score)| token.is_empty() || !score.is_finite()) {
            return Err(part("the vocabulary", "tokens of at least one letter, with finite scores", "another"));
        }
        let Vocab::Scores(list) = model.vocab else { return Err(needs("scores")) };
        return Ok(Unigram::from(list, model.unk_id, model.byte_fallback == Some(true)).map_err(refused)?.into());
    }
    let Vocab::Ids(pairs) = model.vocab else { return Err(needs("an object of tokens and ids")) };
    match kind.as_str() {
        "BPE" => {
            let prefix = model.continuing_subword_prefix.unwrap_or_default();
            let merges = model.merges.ok_or_else(|| needs("merges"))?;
            let known: HashSet<&str> = pairs.iter().map(|(token, _)| token.as_str()).collect();
            let mut sum = String::new();
            for (i, Merge(a, b)) in merges.iter().enumerate() {
                sum.clear();
                sum += a;
                sum += b.strip_prefix(&*prefix).ok_or_else(|| {
                    part("merges", "a continuation with its prefix", format!("{b:?} in merge {i}, without {prefix:?}"))
                })?;
                if let Some(lacks) = [a, b, &sum].into_iter().find(|token| !known.contains(token.as_str())) {
                    let found = format!("{lacks:?} of merge {i} ({a:?} {b:?}), which has no id");
                    return Err(part("merges", "tokens of the vocabulary", found));
                }
            }
            let vocab: tokenizers::models::bpe::Vocab = pairs.into_iter().map(|(t, id)| (t, id as u32)).collect();
            let merges = merges.into_iter().map(|Merge(a, b)| (a, b)).collect();
            let mut builder = BPE::builder()
                .vocab_and_merges(vocab, merges)
                .fuse_unk(model.fuse_unk == Some(true))
                .byte_fallback(model.byte_fallback == Some(true))
                .ignore_merges(model.ignore_merges == Some(true));
            if let Some(unk) = model.unk_token {
                builder = builder.unk_token(unk);
            }
            if !prefix.is_empty() {
                builder = builder.continuing_subword_prefix(prefix);
            }
            if let Some(suffix) = model.end_of_word_suffix.filter(|suffix| !suffix.is_empty()) {
                builder = builder.end_of_word_suffix(suffix);
            }
            Ok(builder.build().map_err(refused)?.into())
        }
        "WordPiece" => {
            let longest = model.max_input_chars_per_word.unwrap_or(100);
            if longest > 500 {
                return Err(part("max_input_chars_per_word", "at most 500", longest.to_string()));
            }
            let vocab: tokenizers::models::bpe::Vocab = pairs.into_iter().map(|(t, id)| (t, id as u32)).collect();
            let builder = WordPiece::builder()
                .vocab(vocab)
                .unk_token(model.unk_token.unwrap_or_else(|| "[UNK]".into()))
                .continuing_subword_prefix(model.continuing_subword_prefix.unwrap_or_else(|| "##".into()))
                .max_input_chars_per_word(longest);
            Ok(builder.build().map_err(refused)?.into())
        }
        "WordLevel" => {
            let vocab = pairs.into_iter().map(|(t, id)| (t, id as u32)).collect();
            let unknown = model.unk_token.unwrap_or_else(|| "<unk>".into());
            Ok(WordLevel::builder().vocab(vocab).unk_token(unknown).build().map_err(refused)?.into())
        }
        "Unigram" => Err(needs("tokens with scores")),
        other => Err(part("the model", "a BPE, WordPiece, WordLevel or Unigram model", other)),
    }
}

//! Builds a tokenizer of HuggingFace's crate from a [`Spec`], part by part.
//!
//! `spec` has already checked every index that the crate uses. Whatever the crate still refuses, or panics on, becomes
//! an error.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use limpid_base::contain::contain;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokenizers::{
    AddedToken, ModelWrapper, Normalizer, SplitDelimiterBehavior,
    models::{bpe::BPE, unigram::Unigram, wordlevel::WordLevel, wordpiece::WordPiece},
    normalizers::{self as norm, BertNormalizer, Lowercase, NFC, NFD, NFKC, NFKD, Nmt, Prepend, Replace, Strip},
    pre_tokenizers::{self as pre, byte_level::ByteLevel, metaspace::Metaspace},
};

use super::{
    TokenizerError,
    engine::{Cut, Cutting, Engine, Expression, Steps, Swap, Whole},
    spec::{Added, Merge, Model, Spec, Vocab, not_supported, part, shown, steps},
    steps::GPT2,
};

/// Reads one step with the crate's own rules.
fn step<T: DeserializeOwned>(name: &'static str, value: &Value) -> Result<T, TokenizerError> {
    let long = |text: &str| text.len() > 4096;
    let pattern = &value["pattern"];
    if [&pattern["Regex"], &pattern["String"]].iter().any(|text| text.as_str().is_some_and(long)) {
        return Err(not_supported(name, "a longer pattern", "patterns of at most 4,096 bytes"));
    }
    serde_json::from_value(value.clone())
        .map_err(|error| part(name, "what this step needs", format!("{}: {error}", shown(value))))
}

const NORMALIZER: &str = "the normalizer";
const NORMALIZERS: &str = "NFC, NFD, NFKC, NFKD, Nmt, Lowercase, StripAccents, ByteLevel, BertNormalizer, Strip, \
                           Replace, Prepend and Precompiled";
const PRE_TOKENIZERS: &str = "ByteLevel, Split, Digits, Metaspace, Punctuation, CharDelimiterSplit, BertPreTokenizer, \
                              Whitespace, WhitespaceSplit and UnicodeScripts";
const PRE_TOKENIZER: &str = "the pre_tokenizer";

fn expression(name: &'static str, pattern: &str) -> Result<Expression, TokenizerError> {
    Expression::new(pattern).map_err(|error| part(name, "a regular expression", error.to_string()))
}

type Changes = Steps<dyn Normalizer + Send + Sync>;

fn normalizer(value: &Value) -> Result<Option<Changes>, TokenizerError> {
    let mut growth = 1usize;
    let mut list: Vec<Box<dyn Normalizer + Send + Sync>> = Vec::new();
    for (kind, value) in steps(NORMALIZER, value)? {
        let text = value["content"].as_str().or(value["prepend"].as_str()).unwrap_or("");
        let longest = if kind == "Precompiled" { longest_entry(value)? } else { text.len() };
        growth = growth.saturating_mul(if kind == "ByteLevel" { 2 } else { longest + 1 });
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
            // which wants a text to borrow from
            "Precompiled" => Box::new(
                serde_json::from_str::<norm::Precompiled>(&value.to_string())
                    .map_err(|error| part(NORMALIZER, "what this step needs", error.to_string()))?,
            ),
            _ => return Err(not_supported(NORMALIZER, format!("the step {kind:?}"), NORMALIZERS)),
        });
    }
    // Each step may make a text longer by as much as it puts in.
    if growth > 4096 {
        return Err(not_supported(
            NORMALIZER,
            "long replacements, one upon the other",
            "replacements of a few letters",
        ));
    }
    Ok((!list.is_empty()).then(|| Steps(list.into())))
}

/// Bytes of the longest text that SentencePiece's map (Precompiled) puts in another's place. The crate follows the map
/// without looking where it leads, so every place in it that a text can lead to is looked up here.
///
/// A map is the size of a trie (u32), the trie, and the texts, each with a zero after it. The trie is a double array
/// (Aoe 1989) as Darts writes it: from unit `at`, byte c leads to unit `at ^ offset ^ c`, if that has the label c; a
/// unit with a leaf has its value, the place of a text, at `at ^ offset`.
fn longest_entry(value: &Value) -> Result<usize, TokenizerError> {
    let wrong = |found: &str| part(NORMALIZER, "SentencePiece's map of characters, whole", found);
    let map = value["precompiled_charsmap"].as_str().filter(|map| map.len() < 4 << 20);
    let map = map.and_then(|map| STANDARD.decode(map).ok()).ok_or_else(|| wrong("no base64 of at most 4 MB"))?;
    let (size, rest) = map.split_first_chunk().ok_or_else(|| wrong("no size"))?;
    let (trie, texts) =
        rest.split_at_checked(u32::from_le_bytes(*size) as usize).ok_or_else(|| wrong("an end within its trie"))?;
    let texts = str::from_utf8(texts).map_err(|_| wrong("texts that are not UTF-8"))?;
    let units: Vec<usize> =
        trie.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]) as usize).collect();
    let offset = |unit: usize| (unit >> 10) << ((unit & 1 << 9) >> 6);
    let Some(root) = units.first().map(|unit| offset(*unit)) else { return Err(wrong("no trie")) };
    let (mut seen, mut left, mut longest) = (vec![false; units.len()], vec![root], 0);
    while let Some(at) = left.pop() {
        // a byte changes the last eight bits
        if at | 0xff >= units.len() {
            return Err(wrong("a trie that leads out of itself"));
        }
        for c in 1..=0xff {
            let unit = units[at ^ c];
            if unit & (1 << 31 | 0xff) != c || std::mem::replace(&mut seen[at ^ c], true) {
                continue;
            }
            let next = at ^ c ^ offset(unit);
            if unit >> 8 & 1 == 1 {
                let place = units.get(next).map(|leaf| leaf & !(1 << 31));
                let text = place.and_then(|place| texts.get(place..)).ok_or_else(|| wrong("a text outside of it"))?;
                longest = longest.max(text.find('\0').unwrap_or(text.len()));
            }
            left.push(next);
        }
    }
    Ok(longest)
}

fn pre_tokenizer(value: &Value) -> Result<Option<Steps<Cutting>>, TokenizerError> {
    const NAME: &str = PRE_TOKENIZER;
    let all = steps(NAME, value)?;
    if all.iter().filter(|(kind, _)| *kind == "ByteLevel").count() > 1 {
        return Err(not_supported(NAME, "several ByteLevel steps", "one"));
    }
    let cut = |pattern, behavior, invert, blank| {
        Ok::<_, TokenizerError>(Box::new(Cut { pattern: expression(NAME, pattern)?, behavior, invert, blank }))
    };
    let mut list: Vec<Box<Cutting>> = Vec::new();
    for (kind, value) in all {
        let next: Box<Cutting> = match kind {
            "ByteLevel" => {
                let bytes = step::<ByteLevel>(NAME, value)?;
                let blank = bytes.add_prefix_space;
                if bytes.use_regex {
                    list.push(cut(GPT2, SplitDelimiterBehavior::Isolated, false, blank)?);
                }
                Box::new(bytes.use_regex(false).add_prefix_space(blank && !bytes.use_regex))
            }
            "Split" => {
                let split = step::<pre::split::Split>(NAME, value)?;
                match value["pattern"]["Regex"].as_str() {
                    Some(pattern) => cut(pattern, split.behavior, split.invert, false)?,
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
            _ => return Err(not_supported(NAME, format!("the step {kind:?}"), PRE_TOKENIZERS)),
        };
        list.push(next);
    }
    Ok((!list.is_empty()).then(|| Steps(list.into())))
}

impl Spec {
    /// Builds the crate's tokenizer. `self` has passed [`tokens`](Spec::tokens).
    pub(super) fn build(self) -> Result<Engine, TokenizerError> {
        contain(|| self.build_unguarded()).unwrap_or_else(|panic| Err(refused(panic.into())))
    }

    fn build_unguarded(self) -> Result<Engine, TokenizerError> {
        if self.version != "1.0" {
            return Err(not_supported("the tokenizer.json", format!("version {:?}", self.version), "1.0"));
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
                return Err(part("added_tokens", "tokens of the model, or ids that continue after its own", found));
            }
        }
        Ok(new)
    }
}

fn refused(error: Box<dyn std::error::Error + Send + Sync>) -> TokenizerError {
    part("the tokenizer", "what HuggingFace's crate can run", error.to_string())
}

fn model(model: Model) -> Result<ModelWrapper, TokenizerError> {
    let spec = Spec::new(model);
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
    let vocab: tokenizers::models::bpe::Vocab = pairs.into_iter().map(|(t, id)| (t, id as u32)).collect();
    match kind.as_str() {
        "BPE" => {
            let prefix = model.continuing_subword_prefix.unwrap_or_default();
            let merges = model.merges.ok_or_else(|| needs("merges"))?;
            let mut sum = String::new();
            for (i, Merge(a, b)) in merges.iter().enumerate() {
                sum.clear();
                sum += a;
                sum += b.strip_prefix(&*prefix).ok_or_else(|| {
                    part("merges", "a continuation with its prefix", format!("{b:?} in merge {i}, without {prefix:?}"))
                })?;
                if let Some(lacks) = [a, b, &sum].into_iter().find(|token| !vocab.contains_key(token.as_str())) {
                    let found = format!("{lacks:?} of merge {i} ({a:?} {b:?}), which has no id");
                    return Err(part("merges", "tokens of the vocabulary", found));
                }
            }
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
                return Err(not_supported("max_input_chars_per_word", longest.to_string(), "at most 500"));
            }
            let builder = WordPiece::builder()
                .vocab(vocab)
                .unk_token(model.unk_token.unwrap_or_else(|| "[UNK]".into()))
                .continuing_subword_prefix(model.continuing_subword_prefix.unwrap_or_else(|| "##".into()))
                .max_input_chars_per_word(longest);
            Ok(builder.build().map_err(refused)?.into())
        }
        "WordLevel" => {
            let unknown = model.unk_token.unwrap_or_else(|| "<unk>".into());
            Ok(WordLevel::builder().vocab(vocab).unk_token(unknown).build().map_err(refused)?.into())
        }
        "Unigram" => Err(needs("tokens with scores")),
        other => {
            Err(not_supported("the model", format!("the type {other:?}"), "BPE, WordPiece, WordLevel and Unigram"))
        }
    }
}

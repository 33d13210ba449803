//! A tokenizer as GGUF files store it: a table of tokens with their types, and the name of a pre-tokenizer.
//!
//! limpid reads five of llama.cpp's models. `gpt2` is byte-level byte pairs: GPT-2's letters, a list of merges, and a
//! regular expression that goes by name ([`splitting`] knows the names, checked against llama.cpp's own ids). `llama`
//! is SentencePiece's: no list of merges, but a score for each token, where the better score is joined first
//! (`scored`). `bert` is WordPiece: a token that begins a word has `▁` before it, and one that goes on has nothing,
//! where BERT's own list has nothing and `##`. `gemma4` is byte pairs with merges whose blanks are `▁`, within a line
//! or a run of newlines. `t5` is SentencePiece's Unigram, behind its map of characters.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use serde_json::{Value, json};

use base64::{Engine as _, engine::general_purpose::STANDARD};

use super::{
    Encoding, Tokenizer, TokenizerError, TokenizerKind, Vocabulary, byte_letters,
    error::LEARNED,
    imported::{ImportedTokenizer, Told},
    scored::{self, SCORED},
    spec::{Added, Merge, Model, Spec, Vocab, part, shown, steps},
    split::Split,
    steps::{
        bert_normalizer, blanks, byte, byte_level, byte_pairs, framed, known_pre, known_pres, pre_tokenizer,
        regex_step, replace, splitting, word_pieces,
    },
};

/// What `tokenizer.ggml.*` holds in a GGUF file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// `gpt2` (byte-level byte pairs), `llama` (SentencePiece's byte pairs with bytes for what it lacks), `bert`
    /// (WordPiece), `gemma4` (byte pairs with `▁` for a blank, and bytes for what they lack) or `t5` (Unigram).
    pub model: &'static str,
    /// How text is cut, for `gpt2`: `gpt-2`, `llama-bpe`, `dbrx`, `smollm`, `qwen2`, `qwen35`, `gpt-4o`,
    /// `deepseek-llm`, `deepseek-coder`, `falcon`, `default`, or another name that llama.cpp has for one of them.
    pub pre: String,
    /// The tokens by id: in GPT-2's letters for `gpt2`, with `▁` for a blank for the others, special ones as they are.
    pub tokens: Vec<String>,
    /// 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
    pub types: Vec<i32>,
    /// For `llama`: the higher, the sooner two parts become this token. For `t5`: the logarithm of its probability.
    pub scores: Option<Vec<f32>>,
    /// For `gpt2` and `gemma4`: two tokens with a blank between, the first to be joined first.
    pub merges: Vec<String>,
    /// The token that begins a text.
    pub bos: Option<u32>,
    /// The token that ends one.
    pub eos: Option<u32>,
    /// Whether the model expects `bos` before every text.
    pub add_bos: bool,
    /// For `llama` and `t5`: whether a text is taken as if it began with a blank.
    pub add_space_prefix: bool,
    /// The token that the model expects after every text.
    pub after: Option<u32>,
    /// For `bert` and `t5`: the token for what cannot be put together.
    pub unknown: Option<u32>,
    /// Tokens that end a generation besides, by their part in it: [`END_ROLES`].
    pub ends: [Option<u32>; END_ROLES.len()],
    /// For `bert`: whether letters are made small, and accents are left out.
    pub lowercase: bool,
    /// See `lowercase`.
    pub strip_accents: bool,
    /// For `t5`: whether several blanks are one, and none ends a text.
    pub merge_spaces: bool,
    /// For `t5`: SentencePiece's map of characters, as it writes it; empty for none.
    pub charsmap: Vec<u8>,
    /// Whether text is brought to NFC first, for which GGUF has no key: llama.cpp leaves texts as they are.
    pub nfc: bool,
    /// Whether a blank goes before a text that begins with none, and before no other part, for which GGUF has no key:
    /// llama.cpp puts one before every part.
    pub blank_once: bool,
}

/// The parts that tokens which end a generation may have, as GGUF's keys name them.
pub const END_ROLES: [&str; 5] = ["eot", "eom", "fim_pad", "fim_rep", "fim_sep"];

/// The texts of the tokens that end a generation in llama.cpp, whatever a file says.
#[rustfmt::skip]
const ENDS: &[&str] = &[
    "<|eot_id|>", "<|im_end|>", MESSAGE_END, "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>",
    "<|endoftext|>", PLAIN_END,
    "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>",
    "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~[",
];
/// Those of the tokens of [`END_ROLES`] from `fim_pad` on, where no key names them.
const FILLS: [&[&str]; 3] = [
    &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"],
    &["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"],
    &["<|file_sep|>"],
];
/// Ends a message within a turn in the vocabularies that [`ends_messages`] knows, and a turn in others.
pub(super) const MESSAGE_END: &str = "<|end|>";
/// Plain text in vocabularies with one of [`BESIDE_PLAIN`].
const PLAIN_END: &str = "</s>";
const BESIDE_PLAIN: [&str; 2] = ["<|tool_response>", "<|plamo:eos|>"];
/// Texts of tokens of gpt-oss that stand for themselves wherever they are written.
const SHOWN: [&str; 4] = ["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"];

/// Whether a vocabulary has tokens by which `<|end|>` is known to end a message and not a turn (gpt-oss, Solar).
pub(super) fn ends_messages(has: &dyn Fn(&str) -> bool) -> bool {
    (has("<|call|>") || has("<|calls|>")) && (has("<|return|>") || has("<|flush|>"))
}

impl Table {
    /// Whether models with this way of cutting expect a first token before every text, and find whole words among the
    /// tokens first, where a file does not say.
    pub fn begins_texts(pre: &str) -> bool {
        known_pre(pre) == Some("llama-bpe")
    }

    /// The tokens that end a generation in llama.cpp; makes those special that are known by their text, as llama.cpp
    /// does.
    fn settle_ends(&mut self) -> BTreeSet<u32> {
        let ids: HashMap<&str, u32> = self.tokens.iter().map(String::as_str).zip(0..).collect();
        let first = |texts: &[&str]| texts.iter().filter_map(|text| ids.get(text).copied()).min();
        let unnamed = FILLS.iter().zip(&self.ends[2..]).filter(|(_, named)| named.is_none());
        let fills: Vec<u32> = unnamed.filter_map(|(texts, _)| first(texts)).collect();
        let known: Vec<u32> = ENDS.iter().filter_map(|text| ids.get(text).copied()).chain(fills).collect();
        let mut all: BTreeSet<u32> =
            known.iter().copied().chain(self.eos).chain(self.ends.into_iter().flatten()).collect();
        let has = |text: &str| ids.get(text).is_some_and(|id| all.contains(id));
        let mut apart: Vec<(u32, i32)> = vec![];
        if ends_messages(&has) {
            apart.extend(ids.get(MESSAGE_END).map(|id| (*id, USER)));
        }
        if BESIDE_PLAIN.into_iter().any(has) {
            apart.extend(ids.get(PLAIN_END).map(|id| (*id, NORMAL)));
        }
        let shown = SHOWN.iter().filter_map(|text| ids.get(text)).map(|id| (*id, USER));
        for (id, kind) in known.into_iter().map(|id| (id, CONTROL)).chain(shown).chain(apart.iter().copied()) {
            self.types[id as usize] = kind;
        }
        apart.iter().for_each(|(id, _)| _ = all.remove(id));
        all
    }
}

pub(super) const NORMAL: i32 = 1;
pub(super) const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER: i32 = 4;
pub(super) const UNUSED: i32 = 5;
const BYTE: i32 = 6;

/// Byte-level byte pairs of tokens by rank, and `added` tokens beside them. What cannot be merged is found where it is
/// a whole piece of text, as OpenAI does.
pub(super) fn ranked(tokens: &[Option<Vec<u8>>], split: Split, added: Vec<Added>) -> Spec {
    let name = |id: u32| byte_letters::letters_of(tokens[id as usize].as_deref().unwrap_or_default());
    let pairs = byte_letters::merges(tokens);
    let lone = tokens.iter().zip(&pairs).any(|(t, pair)| pair.is_none() && t.as_ref().is_some_and(|t| t.len() > 1));
    let known =
        tokens.iter().zip(0u64..).filter_map(|(token, id)| Some((byte_letters::letters_of(token.as_deref()?), id)));
    let vocab = known.chain(added.iter().map(|added| (added.content.clone(), added.id)));
    let model = Model {
        r#type: Some("BPE".into()),
        ignore_merges: lone.then_some(true),
        vocab: Vocab::Ids(vocab.collect()),
        merges: Some(pairs.into_iter().flatten().map(|(a, b)| Merge(name(a), name(b))).collect()),
        ..Model::default()
    };
    Spec { added_tokens: added, ..byte_pairs(model, split) }
}

/// One of OpenAI's encodings as a tokenizer.json.
pub(super) fn encoding(encoding: Encoding) -> Spec {
    let special = |id: u32| encoding.specials().iter().any(|&(_, special)| special == id);
    let ordinary = |id: u32| (!special(id) && !encoding.unused(id)).then(|| encoding.bytes(&[id]));
    let tokens: Vec<_> = (0..encoding.vocab_size() as u32).map(ordinary).collect();
    let added = encoding.specials().iter().map(|&(name, id)| Added::new(id, name, true));
    ranked(&tokens, encoding.split(), added.collect())
}

/// Why a dense tokenizer is limpid's alone.
pub(super) const DENSE: &str =
    "it is dense: it numbers only some ids of another tokenizer, which other programs do not support";

pub(super) fn cannot(why: impl Into<String>) -> TokenizerError {
    TokenizerError::Table(why.into())
}

impl Tokenizer {
    /// What a GGUF file says of it, or why GGUF cannot say it.
    pub fn table(&self) -> Result<Table, TokenizerError> {
        let mut table = without_ends(self)?;
        // those that llama.cpp does not know by their texts
        let known = table.clone().settle_ends();
        let mut rest = self.more_ends().into_iter().filter(|end| !known.contains(end));
        (table.ends[0], table.ends[1]) = (rest.next(), rest.next());
        match rest.next() {
            None => Ok(table),
            Some(id) => Err(cannot(format!(
                "its token {id} ends a text, and GGUF has places for three such tokens that llama.cpp does not know"
            ))),
        }
    }

    /// The tokenizer that a GGUF file describes.
    pub fn from_table(mut table: Table) -> Result<Tokenizer, TokenizerError> {
        table.settle_sizes()?;
        let ends = table.settle_ends();
        if table.model == "bert" {
            let plain = |(token, kind): (&mut String, &i32)| match token.strip_prefix('▁') {
                Some(word) if *kind != CONTROL => *token = word.to_string(),
                None if ![CONTROL, UNKNOWN].contains(kind) => *token = format!("##{token}"),
                _ => {}
            };
            table.tokens.iter_mut().zip(&table.types).for_each(plain);
        }
        let kinds = table.types.iter().copied().zip(0..);
        let added = kinds.filter(|(kind, _)| [UNKNOWN, CONTROL, USER].contains(kind));
        let added: Vec<Added> =
            added.map(|(kind, id)| Added::new(id, &table.tokens[id as usize], kind != USER)).collect();
        let mut spec = match table.model {
            "gpt2" => byte_pair_spec(&table)?,
            "llama" => scored_spec(&table)?,
            "bert" => {
                let unknown = table.unknown.ok_or_else(|| part("the table", "a token for unknown words", "none"))?;
                let normalizer = bert_normalizer(true, Some(table.strip_accents), table.lowercase);
                let mut spec = word_pieces(Some(table.tokens[unknown as usize].clone()), normalizer);
                spec.model.r#type = Some("WordPiece".into());
                spec
            }
            "gemma4" => blank_pairs(&table)?,
            "t5" => unigram(&table)?,
            other => return Err(part("tokenizer.ggml.model", "gpt2, llama, bert, gemma4 or t5", other)),
        };
        let named = |id: u32| (id, table.tokens[id as usize].as_str());
        spec.post_processor = framed(table.bos.filter(|_| table.add_bos).map(named), table.after.map(named));
        spec.added_tokens = added;
        if !["llama", "t5"].contains(&table.model) {
            // An unused id has no token, but if it is the last, a token keeps the place.
            let last = table.tokens.len() - 1;
            let tokens = table.tokens.into_iter().zip(&table.types).zip(0..);
            let used = tokens.filter(|((_, kind), id)| **kind != UNUSED || *id == last as u64);
            spec.model.vocab = Vocab::Ids(used.map(|((token, _), id)| (token, id)).collect());
        }
        let mut imported = ImportedTokenizer::made(spec)?;
        let named = imported.built_in().map(Tokenizer::Bpe);
        let own = |named: &Tokenizer| ends.iter().all(|end| named.end_of_text() == Some(*end));
        if let Some(named) = named.filter(|named| !table.add_bos && table.after.is_none() && own(named)) {
            return Ok(named);
        }
        let ends = ends.into_iter().collect();
        imported.told = Told { begin: table.bos, end: table.eos, ends, ..Told::default() };
        Ok(Tokenizer::Imported(Arc::new(imported)))
    }
}

/// The table of a tokenizer, but for the tokens that end a generation besides.
fn without_ends(tokenizer: &Tokenizer) -> Result<Table, TokenizerError> {
    match tokenizer {
        Tokenizer::Learned(words) if words.kind() == TokenizerKind::Word => Err(cannot(format!(
            "a word tokenizer drops blanks and puts them back by rule, which byte pairs cannot do; {LEARNED}"
        ))),
        Tokenizer::Learned(vocabulary) => chars(vocabulary, tokenizer.end_of_text()),
        Tokenizer::Dense(_) => Err(cannot(DENSE)),
        Tokenizer::Bpe(known) => {
            let end = tokenizer.end_of_text();
            Ok(Table { bos: end, eos: end, ..letters(&encoding(*known))? })
        }
        Tokenizer::Imported(imported) => {
            let spec = imported.spec()?;
            let bare = |added: &&Added| added.lstrip || added.rstrip || added.single_word;
            if let Some(added) = spec.added_tokens.iter().find(bare) {
                let what = "takes the blanks beside it, or stands for whole words only, which llama.cpp cannot do";
                return Err(cannot(format!("its token {:?} {what}", added.content)));
            }
            let (before, after) = imported.frame();
            if before.len() > 1 || after.len() > 1 {
                return Err(cannot("it puts several tokens before or after a text, and GGUF has a place for one"));
            }
            let (first, after) = (before.first().copied(), after.first().copied());
            let (bos, eos) = (first.or(imported.told.begin), tokenizer.end_of_text());
            let marked = || steps("", &spec.normalizer).is_ok_and(|list| list.iter().any(|(_, s)| s["content"] == "▁"));
            let table = match spec.kind() {
                "WordPiece" => pieces(&spec, imported.unknown)?,
                SCORED => scores(&spec)?,
                "BPE" if after.is_some() && after != eos => {
                    return Err(cannot("it puts a token after every text that does not end one"));
                }
                "Unigram" if spec.pre_tokenizer.is_null() => read_unigram(&spec)?,
                "BPE" if cuts_at_line_ends(&spec) => read_pairs(&spec)?,
                "BPE" if marked() || spec.pre_tokenizer["type"] == "Metaspace" => marks(&spec)?,
                "BPE" => letters(&spec)?,
                other => return Err(cannot(format!("it is a {other} model, not byte pairs; {LEARNED}"))),
            };
            Ok(Table { bos, eos, add_bos: first.is_some(), after, ..table })
        }
    }
}

/// The kind of every token, and names for ids that have none.
pub(super) fn kinds(spec: &Spec) -> Result<(Vec<String>, Vec<i32>), TokenizerError> {
    let tokens = spec.tokens()?;
    let mut types: Vec<i32> = tokens.iter().map(|t| if t.is_some() { NORMAL } else { UNUSED }).collect();
    for added in &spec.added_tokens {
        types[added.id as usize] = if spec.model.unk_token.as_ref() == Some(&added.content) {
            UNKNOWN
        } else if added.special {
            CONTROL
        } else {
            USER
        };
    }
    let name = |(token, id): (Option<String>, usize)| token.unwrap_or_else(|| format!("[PAD{id}]"));
    Ok((tokens.into_iter().zip(0..).map(name).collect(), types))
}

/// llama.cpp's `gpt-4o` takes combining marks for no letters, where OpenAI's own regular expression does: texts with
/// such marks have other ids there.
fn letters(spec: &Spec) -> Result<Table, TokenizerError> {
    let mut pre = splitting(&spec.pre_tokenizer).ok_or_else(|| {
        cannot(format!("llama.cpp has no name for its pre_tokenizer, {}", shown(&spec.pre_tokenizer)))
    })?;
    if !(spec.normalizer.is_null() || (["qwen2", "qwen35"].contains(&pre) && spec.normalizer["type"] == "NFC")) {
        return Err(cannot(format!("GGUF has no place for its normalizer, {}", shown(&spec.normalizer))));
    }
    let model = &spec.model;
    if !spec.is_unmarked() || model.byte_fallback == Some(true) {
        return Err(cannot("it marks the ends of words or falls back to bytes, and is not byte-level"));
    }
    if model.ignore_merges == Some(true) {
        pre = match pre {
            "dbrx" => "llama-bpe",
            other => return Err(cannot(format!("its ignore_merges has no counterpart in llama.cpp's {other:?}"))),
        };
    }
    let (tokens, types) = kinds(spec)?;
    let merges = spec.model.merges.iter().flatten().map(|Merge(a, b)| format!("{a} {b}")).collect();
    let nfc = !spec.normalizer.is_null();
    Ok(Table { model: "gpt2", pre: pre.into(), tokens, types, merges, nfc, ..Table::default() })
}

fn chars(vocabulary: &Vocabulary, eos: Option<u32>) -> Result<Table, TokenizerError> {
    let (mut tokens, mut types) = (Vec::new(), Vec::new());
    let specials = vocabulary.specials();
    for (token, id) in vocabulary.tokens().iter().zip(0..) {
        let (name, kind) = match specials.binary_search(&id) {
            Ok(_) if vocabulary.unknown() == Some(id) => (token.clone(), UNKNOWN),
            Ok(_) => (token.clone(), CONTROL),
            Err(_) if token.is_ascii() => (byte_letters::letters_of(token.as_bytes()), NORMAL),
            Err(_) => {
                return Err(cannot(format!(
                    "byte pairs would need an id for each of the {} bytes of its character {token:?}; ASCII alone has \
                     one byte each; {LEARNED}",
                    token.len()
                )));
            }
        };
        tokens.push(name);
        types.push(kind);
    }
    Ok(Table { model: "gpt2", pre: "gpt-2".into(), tokens, types, eos, ..Table::default() })
}

/// WordPiece behind BERT's own steps.
fn pieces(spec: &Spec, unknown: Option<u32>) -> Result<Table, TokenizerError> {
    let (normalizer, model) = (&spec.normalizer, &spec.model);
    let says = |key: &str, otherwise: bool| normalizer[key].as_bool().unwrap_or(otherwise);
    let lowercase = says("lowercase", true);
    let plain =
        normalizer["type"] == "BertNormalizer" && says("clean_text", true) && says("handle_chinese_chars", true);
    let words =
        spec.pre_tokenizer["type"] == "BertPreTokenizer" && model.continuing_subword_prefix.as_deref() == Some("##");
    if !plain || !words || unknown.is_none() {
        return Err(cannot("it is WordPiece with other steps than BERT's, which llama.cpp does not support"));
    }
    let (tokens, mut types) = kinds(spec)?;
    let phantom = |(token, kind): (String, &mut i32)| {
        *kind = if *kind == UNKNOWN { CONTROL } else { *kind };
        match (*kind, token.strip_prefix("##")) {
            (CONTROL, _) => token,
            (_, Some(rest)) => rest.to_string(),
            _ => format!("▁{token}"),
        }
    };
    let tokens = tokens.into_iter().zip(&mut types).map(phantom).collect();
    let strip_accents = says("strip_accents", lowercase);
    let (model, pre) = ("bert", "default".into());
    Ok(Table { model, pre, tokens, types, unknown, lowercase, strip_accents, ..Table::default() })
}

/// A model whose blanks are `▁`: its merges become scores.
fn marks(spec: &Spec) -> Result<Table, TokenizerError> {
    let odd = |value: &Value| cannot(format!("SentencePiece's model has no {}", shown(value)));
    let (mut prefix, mut blank_once) = (false, false);
    for (kind, step) in steps("", &spec.normalizer)? {
        match kind {
            "Prepend" if step["prepend"] == "▁" => prefix = true,
            "Replace" if step["pattern"]["String"] == " " && step["content"] == "▁" => {}
            _ => return Err(odd(step)),
        }
    }
    for (kind, step) in steps("", &spec.pre_tokenizer)? {
        match kind {
            "Metaspace" if step["replacement"] == "▁" && step["split"] == false => {
                (prefix, blank_once) = match step["prepend_scheme"].as_str() {
                    Some("never") => (prefix, blank_once),
                    Some("first") => (true, true),
                    _ => {
                        let what = "llama.cpp puts a blank before every part of a text, and its Metaspace only where \
                                    there is none";
                        return Err(cannot(what));
                    }
                };
            }
            _ => return Err(odd(step)),
        }
    }
    if spec.model.byte_fallback != Some(true) {
        return Err(cannot("it has no bytes to fall back to"));
    }
    let merges = spec.model.merges.as_deref().unwrap_or_default();
    let mut first: HashMap<String, usize> = HashMap::new();
    for (i, Merge(a, b)) in merges.iter().enumerate() {
        first.entry([a.as_str(), b].concat()).or_insert(i);
    }
    let (tokens, mut types) = kinds(spec)?;
    let mut scores = vec![0.0; tokens.len()];
    for ((token, kind), score) in tokens.iter().zip(&mut types).zip(&mut scores) {
        match *kind {
            NORMAL if byte(token).is_some() => *kind = BYTE,
            NORMAL => *score = -(first.get(token).copied().unwrap_or(merges.len()) as f32),
            _ => {}
        }
    }
    let (pre, scores, add_space_prefix) = ("default".into(), Some(scores), prefix);
    Ok(Table { model: "llama", pre, tokens, types, scores, add_space_prefix, blank_once, ..Table::default() })
}

/// The scores of a list of tokens, then 0 for those that were added.
pub(super) fn listed_scores(spec: &Spec, size: usize) -> Vec<f32> {
    let mut scores: Vec<f32> = match &spec.model.vocab {
        Vocab::Scores(list) => list.iter().map(|(_, score)| *score as f32).collect(),
        Vocab::Ids(_) => vec![],
    };
    scores.resize(size, 0.0);
    scores
}

/// Marks the tokens that stand for one byte.
pub(super) fn mark_bytes(tokens: &[String], types: &mut [i32]) {
    for (kind, token) in types.iter_mut().zip(tokens) {
        if *kind == NORMAL && byte(token).is_some() {
            *kind = BYTE;
        }
    }
}

/// A model of tokens with scores, as it stands there.
fn scores(spec: &Spec) -> Result<Table, TokenizerError> {
    let (tokens, mut types) = kinds(spec)?;
    mark_bytes(&tokens, &mut types);
    let scores = listed_scores(spec, tokens.len());
    let add_space_prefix =
        steps("", &spec.normalizer).is_ok_and(|list| list.iter().any(|(kind, _)| *kind == "Prepend"));
    let (pre, scores) = ("default".into(), Some(scores));
    Ok(Table { model: "llama", pre, tokens, types, scores, add_space_prefix, ..Table::default() })
}

/// The same tokenizer as other programs' files have it: with merges in place of scores, as transformers makes them.
pub(super) fn merged(mut spec: Spec) -> Result<Spec, TokenizerError> {
    let Vocab::Scores(list) = &spec.model.vocab else { return Ok(spec) };
    let plain: Vec<bool> = list.iter().map(|(token, _)| byte(token).is_none()).collect();
    let added: BTreeSet<u64> = spec.added_tokens.iter().map(|added| added.id).collect();
    let why = "its scores join characters that are not tokens themselves, which no list of merges can express";
    let merges = scored::merges(list, |id| plain[id] && !added.contains(&(id as u64)));
    let merges = merges.ok_or_else(|| TokenizerError::Format(why.into()))?;
    let ids = list.iter().zip(0..).map(|((token, _), id)| (token.clone(), id)).collect();
    spec.model.vocab = Vocab::Ids(ids);
    (spec.model.r#type, spec.model.merges) = (Some("BPE".into()), Some(merges));
    (spec.model.byte_fallback, spec.model.fuse_unk) = (Some(true), Some(true));
    Ok(spec)
}

impl Table {
    /// Checks that every token has a type and a score and that the named tokens exist, and names the tokens that have
    /// no text.
    fn settle_sizes(&mut self) -> Result<(), TokenizerError> {
        let size = self.tokens.len();
        let scored = self.scores.as_ref().map_or(size, Vec::len);
        if size == 0 || self.types.len() < size || scored < size {
            let found = format!("{} types and {scored} scores for {size} tokens", self.types.len());
            return Err(part("the table", "a type and a score for each token", found));
        }
        self.types.truncate(size);
        self.scores.iter_mut().for_each(|scores| scores.truncate(size));
        for (id, token) in self.tokens.iter_mut().enumerate().filter(|(_, token)| token.is_empty()) {
            *token = format!("[EMPTY_{id}]"); // llama.cpp's name
        }
        let named =
            [self.bos, self.eos, self.after, self.unknown].into_iter().chain(self.ends.iter().copied()).flatten();
        if let Some(id) = named.into_iter().find(|&id| id as usize >= size) {
            return Err(part("the table", "begin and end among the tokens", format!("id {id} of {size}")));
        }
        Ok(())
    }
}

/// Byte pairs with merges, as GPT-2 has them; the vocabulary is still missing.
fn byte_pair_spec(table: &Table) -> Result<Spec, TokenizerError> {
    let ignore_merges = Table::begins_texts(&table.pre).then_some(true);
    let unknown = || TokenizerError::Pre { found: table.pre.clone(), known: known_pres() };
    let pre_tokenizer = pre_tokenizer(&table.pre).ok_or_else(unknown)?;
    let model = Model { ignore_merges, ..merged_model(table)? };
    Ok(Spec { pre_tokenizer, decoder: byte_level(true), ..Spec::new(model) })
}

/// Byte pairs with the merges of a table.
pub(super) fn merged_model(table: &Table) -> Result<Model, TokenizerError> {
    let merge = |line: &String| Merge::parse(line).ok_or_else(|| part("a merge", "two tokens", line.as_str()));
    let merges = table.merges.iter().map(merge).collect::<Result<_, _>>()?;
    Ok(Model { r#type: Some("BPE".into()), merges: Some(merges), ..Model::default() })
}

/// The tokens of a table with their scores.
pub(super) fn scored_tokens(table: &Table) -> Result<Vec<(String, f64)>, TokenizerError> {
    let scores = table.scores.clone().unwrap_or_else(|| vec![0.0; table.tokens.len()]);
    if let Some((token, score)) = table.tokens.iter().zip(&scores).find(|(t, s)| t.len() > 1024 || s.is_nan()) {
        let found = format!("a score of {score} and {} bytes", token.len());
        return Err(part("the table", "tokens of at most 1,024 bytes with a score", found));
    }
    // JSON has no infinity
    let score = |score: f32| f64::from(score.clamp(f32::MIN, f32::MAX));
    Ok(table.tokens.iter().cloned().zip(scores.into_iter().map(score)).collect())
}

/// Tokens joined by their scores, as SentencePiece has them.
fn scored_spec(table: &Table) -> Result<Spec, TokenizerError> {
    let unknown = table.types.iter().position(|&kind| kind == UNKNOWN);
    let mut spec = Spec::new(Model {
        r#type: Some(SCORED.into()),
        vocab: Vocab::Scores(scored_tokens(table)?),
        unk_token: unknown.map(|id| table.tokens[id].clone()),
        ..Model::default()
    });
    let prefix = table.add_space_prefix.then(|| json!({ "type": "Prepend", "prepend": "▁" }));
    let before: Vec<Value> = prefix.into_iter().chain([replace(" ", "▁")]).collect();
    spec.normalizer = json!({ "type": "Sequence", "normalizers": before });
    spec.decoder = blanks(table.add_space_prefix);
    Ok(spec)
}

// ---- tables whose blanks are `▁`, as transformers writes such a model: Gemma 4's byte pairs with merges, and
// SentencePiece's Unigram

/// A run of line ends, apart from the text between two.
const LINE_ENDS: &str = r"\n+";

/// Byte pairs whose blanks are `▁`, joined within lines and within runs of line ends; the vocabulary is still missing.
fn blank_pairs(table: &Table) -> Result<Spec, TokenizerError> {
    let model = Model { byte_fallback: Some(true), fuse_unk: Some(true), ..merged_model(table)? };
    let (normalizer, pre_tokenizer) = (replace(" ", "▁"), regex_step(LINE_ENDS));
    Ok(Spec { normalizer, pre_tokenizer, decoder: blanks(false), ..Spec::new(model) })
}

/// Whether a tokenizer cuts text as [`blank_pairs`] does.
fn cuts_at_line_ends(spec: &Spec) -> bool {
    spec.pre_tokenizer == regex_step(LINE_ENDS)
}

/// Byte pairs as [`blank_pairs`] makes them.
fn read_pairs(spec: &Spec) -> Result<Table, TokenizerError> {
    if spec.normalizer != replace(" ", "▁") || spec.model.byte_fallback != Some(true) {
        return Err(cannot("it cuts text as Gemma 4 does, and is not Gemma 4's in other steps"));
    }
    let (tokens, mut types) = kinds(spec)?;
    mark_bytes(&tokens, &mut types);
    let merges = spec.model.merges.iter().flatten().map(|Merge(a, b)| format!("{a} {b}")).collect();
    Ok(Table { model: "gemma4", pre: "gemma4".into(), tokens, types, merges, ..Table::default() })
}

/// Blanks that begin or end a text, and runs of blanks within it.
const OUTER_BLANKS: &str = r"\A +| +\z";
const BLANKS: &str = " {2,}";

/// SentencePiece's Unigram behind its normalizer.
fn unigram(table: &Table) -> Result<Spec, TokenizerError> {
    let list = scored_tokens(table)?;
    let unknown = table.unknown.ok_or_else(|| part("the table", "a token for what it lacks", "none"))?;
    let regex =
        |regex: &str, content: &str| json!({ "type": "Replace", "pattern": { "Regex": regex }, "content": content });
    let map = json!({ "type": "Precompiled", "precompiled_charsmap": STANDARD.encode(&table.charsmap) });
    let mut before: Vec<Value> = (!table.charsmap.is_empty()).then_some(map).into_iter().collect();
    if table.merge_spaces {
        before.extend([regex(OUTER_BLANKS, ""), regex(BLANKS, " ")]);
    }
    // where blanks are merged, every word has one before it
    let prefix = table.add_space_prefix || table.merge_spaces;
    before.extend(prefix.then(|| json!({ "type": "Prepend", "prepend": "▁" })));
    before.push(replace(" ", "▁"));
    let (r#type, unk_id, vocab) = (Some("Unigram".into()), Some(unknown as usize), Vocab::Scores(list));
    let model = Model { r#type, unk_id, vocab, ..Model::default() };
    let normalizer = json!({ "type": "Sequence", "normalizers": before });
    Ok(Spec { normalizer, decoder: blanks(prefix), ..Spec::new(model) })
}

/// Unigram as [`unigram`] makes it.
fn read_unigram(spec: &Spec) -> Result<Table, TokenizerError> {
    let (tokens, mut types) = kinds(spec)?;
    let unknown = spec.model.unk_id.and_then(|id| u32::try_from(id).ok());
    for ((id, token), kind) in (0..).zip(&tokens).zip(&mut types) {
        match *kind {
            _ if Some(id) == unknown => *kind = UNKNOWN,
            NORMAL if *token == format!("[PAD{id}]") => *kind = UNUSED,
            _ => {}
        }
    }
    let scores = Some(listed_scores(spec, tokens.len()));
    let mut table = Table { model: "t5", pre: "default".into(), tokens, types, scores, unknown, ..Table::default() };
    for (kind, step) in steps("", &spec.normalizer)? {
        let map = || STANDARD.decode(step["precompiled_charsmap"].as_str()?).ok();
        match kind {
            "Precompiled" => table.charsmap = map().ok_or_else(|| cannot("its map of characters is not base64"))?,
            "Prepend" if step["prepend"] == "▁" => table.add_space_prefix = true,
            "Replace" if [OUTER_BLANKS, BLANKS].contains(&step["pattern"]["Regex"].as_str().unwrap_or_default()) => {
                table.merge_spaces = true;
            }
            "Replace" if *step == replace(" ", "▁") => {}
            _ => return Err(cannot(format!("llama.cpp's Unigram has no {}", shown(step)))),
        }
    }
    Ok(table)
}

//! A tokenizer as GGUF files store it: a table of tokens with their types, and the name of a pre-tokenizer.
//!
//! limpid reads five of llama.cpp's models. `gpt2` is byte-level byte pairs: GPT-2's letters, a list of merges, and a
//! regular expression that goes by name ([`splitting`] knows the names, checked against llama.cpp's own ids). `llama` is
//! SentencePiece's: no list of merges, but a score for each token, where the better score is joined first (`scored`). `bert` is WordPiece: a
//! token that begins a word has `▁` before it, and one that goes on has nothing, where BERT's own list has nothing and `##`. `gemma4` is
//! byte pairs with merges whose blanks are `▁`, within a line or a run of newlines. `t5` is SentencePiece's Unigram, behind its map of
//! characters.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use serde_json::{Value, json};

use super::{
    Encoding, Tokenizer, TokenizerError, TokenizerKind, Vocabulary, blank_marks, byte_letters,
    imported::{ImportedTokenizer, Told},
    scored::{self, SCORED},
    spec::{Added, Merge, Model, Spec, Vocab, part, shown, steps},
    split::Split,
};

/// What `tokenizer.ggml.*` holds in a GGUF file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// `gpt2` (byte-level byte pairs), `llama` (SentencePiece's byte pairs with bytes for what it lacks), `bert` (WordPiece), `gemma4`
    /// (byte pairs with `▁` for a blank, and bytes for what they lack) or `t5` (Unigram).
    pub model: &'static str,
    /// How text is cut, for `gpt2`: `gpt-2`, `llama-bpe`, `dbrx`, `smollm`, `qwen2`, `qwen35`, `gpt-4o`, `deepseek-llm`, `deepseek-coder`, `falcon`,
    /// `default`, or another name that llama.cpp has for one of them.
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
    /// Whether a blank goes before a text that begins with none, and before no other part, for which GGUF has no key: llama.cpp puts one
    /// before every part.
    pub blank_once: bool,
}

/// The parts that tokens which end a generation may have, as GGUF's keys name them.
pub const END_ROLES: [&str; 5] = ["eot", "eom", "fim_pad", "fim_rep", "fim_sep"];

/// The texts of the tokens that end a generation in llama.cpp, whatever a file says.
#[rustfmt::skip]
const ENDS: &[&str] = &[
    "<|eot_id|>", "<|im_end|>", MESSAGE_END, "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>", "<|endoftext|>", PLAIN_END,
    "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>",
    "<｜end▁of▁sentence｜>", "[e~[",
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
    /// Whether models with this way of cutting expect a first token before every text, and find whole words among the tokens first, where a
    /// file does not say.
    pub fn begins_texts(pre: &str) -> bool {
        known_pre(pre) == Some("llama-bpe")
    }

    /// The tokens that end a generation in llama.cpp; makes those special that are known by their text, as llama.cpp does.
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

pub(super) const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const GPT4: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Marks are parts of words.
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// OpenAI's own for cl100k_base today: blanks that end a text are one piece, newlines among them. In a form that HuggingFace's
/// engines read alike (`$` and `++` mean other things to one of them).
const CL100K: &str =
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+\z|\s*[\r\n]|\s+(?!\S)|\s";

/// Other spellings that cut every text alike.
const ALIKE: [(&str, &str); 2] = [
    (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
        GPT4,
    ),
    (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
        CL100K,
    ),
];

/// The ways to cut text that are read: the name that is written, and others that a file may have.
const PRES: [(&str, &[&str]); 11] = [
    ("default", &[]),
    ("deepseek-llm", &[]),
    ("deepseek-coder", &[]),
    ("falcon", &[]),
    (
        "gpt-2",
        &[
            "phi-2",
            "olmo",
            "mpt",
            "jina-es",
            "jina-de",
            "jina-v2-es",
            "jina-v2-de",
            "gigachat",
            "modern-bert",
            "a.x-4.0",
            "mellum",
            "exaone4",
            "jais",
            "trillion",
            "granite-docling",
        ],
    ),
    ("llama-bpe", &["llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"]),
    ("dbrx", &["smaug-bpe"]),
    ("qwen2", &["deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan", "solar-open"]),
    ("qwen35", &[]),
    ("smollm", &["starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"]),
    ("gpt-4o", &["llama4", "kanana2", "talkie", "minimax-m2"]),
];

/// Han, Hangul and what is between them, in DeepSeek's words.
const HAN: &str = "[一-龥ࠀ-一가-퟿]+";
/// Letters of alphabets with capitals, a blank before them.
const CASED: &str = r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+";
const MARKS: &str = r"\s?[!-/:-~！-／：-～‘-‟　-。]+";

/// All their names.
fn known_pres() -> String {
    let names = PRES.iter().flat_map(|(name, others)| std::iter::once(name).chain(*others));
    names.copied().collect::<Vec<_>>().join(", ")
}

/// The name that is written for a way of cutting.
fn known_pre(pre: &str) -> Option<&'static str> {
    PRES.iter().find(|(name, others)| *name == pre || others.contains(&pre)).map(|(name, _)| *name)
}

/// Bytes to letters, behind GPT-2's regular expression or behind another step's.
pub(super) fn byte_level(regex: bool) -> Value {
    json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": regex })
}

/// llama.cpp's way of cutting text as HuggingFace's pre_tokenizer.
pub(super) fn pre_tokenizer(pre: &str) -> Option<Value> {
    let list = match known_pre(pre)? {
        "gpt-2" => return Some(cutting(Split::Gpt2)),
        "dbrx" => return Some(cutting(Split::Gpt4)),
        "llama-bpe" => return Some(cutting(Split::Llama3)),
        "qwen2" => return Some(cutting(Split::Qwen2)),
        "gpt-4o" => return Some(cutting(Split::Gpt4o)),
        "qwen35" => vec![regex_step(QWEN35)],
        "smollm" => vec![json!({ "type": "Digits", "individual_digits": true }), byte_level(true)],
        "default" => [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"].map(regex_step).to_vec(),
        "deepseek-llm" => [r"[\r\n]", CASED, MARKS, r"\s+\z", HAN, r"\p{N}+"].map(regex_step).to_vec(),
        "deepseek-coder" => [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", HAN, r"\p{N}"].map(regex_step).to_vec(),
        "falcon" => [r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"].map(regex_step).to_vec(),
        _ => return None,
    };
    let last = if list.iter().any(|step| step["type"] == "ByteLevel") { None } else { Some(byte_level(false)) };
    Some(json!({ "type": "Sequence", "pretokenizers": list.into_iter().chain(last).collect::<Vec<_>>() }))
}

/// HuggingFace's pre_tokenizer for a way of cutting.
pub(super) fn cutting(split: Split) -> Value {
    let regex = match split {
        Split::Gpt2 => return byte_level(true),
        Split::Gpt4 => CL100K,
        Split::Gpt4o => GPT4O,
        Split::Llama3 => GPT4,
        Split::Qwen2 => QWEN,
    };
    json!({ "type": "Sequence", "pretokenizers": [regex_step(regex), byte_level(false)] })
}

pub(super) fn regex_step(regex: &str) -> Value {
    json!({ "type": "Split", "pattern": { "Regex": regex }, "behavior": "Isolated", "invert": false })
}

/// What the steps of a pre_tokenizer do, whichever way they are written.
fn plain(value: &Value) -> Option<Vec<String>> {
    let one = |(kind, step): &(&str, &Value)| {
        Some(match *kind {
            "ByteLevel" if step["add_prefix_space"] == false => format!("letters {}", step["use_regex"] != false),
            "Digits" => format!("digits {}", step["individual_digits"] == true),
            "Split" => {
                let regex = step["pattern"]["Regex"].as_str()?;
                let pieces = (step["behavior"].as_str()?, step["invert"].as_bool()?);
                let regex = ALIKE.iter().find(|(other, _)| *other == regex).map_or(regex, |(_, known)| known);
                matches!(pieces, ("Isolated", _) | ("Removed", true)).then(|| regex.to_string())?
            }
            _ => return None,
        })
    };
    steps("", value).ok()?.iter().map(one).collect()
}

/// The way of cutting that a pre_tokenizer is.
pub(super) fn split(value: &Value) -> Option<Split> {
    let asked = plain(value)?;
    Split::ALL.into_iter().find(|split| plain(&cutting(*split)).as_ref() == Some(&asked))
}

/// llama.cpp's name for a pre_tokenizer (`dbrx` for `llama-bpe` too), if it has one. It has none for [`CL100K`], which
/// differs from `dbrx` only in blanks that end a text and have a newline before them.
pub(super) fn splitting(value: &Value) -> Option<&'static str> {
    let asked = plain(value)?;
    if split(value) == Some(Split::Llama3) {
        return Some("dbrx");
    }
    let is_same = |pre: &&str| pre_tokenizer(pre).and_then(|known| plain(&known)).as_ref() == Some(&asked);
    PRES.into_iter().map(|(pre, _)| pre).find(is_same)
}

/// Byte-level byte pairs within pieces that are cut so.
pub(super) fn byte_pairs(model: Model, split: Split) -> Spec {
    Spec { pre_tokenizer: cutting(split), decoder: byte_level(true), ..Spec::new(model) }
}

/// Byte-level byte pairs of tokens by rank, and `added` tokens beside them. What cannot be merged is found where it is a whole piece of
/// text, as OpenAI does.
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

/// What to do about a tokenizer that a model was trained with and that has no table.
pub(crate) const LEARNED: &str = "a model trained with the tokenizer bpe has one that can";

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
            "gemma4" => blank_marks::pairs(&table)?,
            "t5" => blank_marks::unigram(&table)?,
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
                "Unigram" if spec.pre_tokenizer.is_null() => blank_marks::read_unigram(&spec)?,
                "BPE" if blank_marks::cuts_at_line_ends(&spec) => blank_marks::read_pairs(&spec)?,
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

/// llama.cpp's `gpt-4o` takes combining marks for no letters, where OpenAI's own regular expression does: texts with such
/// marks have other ids there.
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
                    "byte pairs would need an id for each of the {} bytes of its character {token:?}; ASCII alone has one \
                     byte each; {LEARNED}",
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
                        let what = "llama.cpp puts a blank before every part of a text, and its Metaspace only where there is none";
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

/// The byte that `<0x41>` stands for.
pub(super) fn byte(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?.strip_suffix('>').filter(|hex| hex.len() == 2)?;
    u8::from_str_radix(hex, 16).ok()
}

impl Table {
    /// Checks that every token has a type and a score and that the named tokens exist, and names the tokens that have no text.
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

/// HuggingFace's step that puts one text in another's place.
pub(super) fn replace(from: &str, to: &str) -> Value {
    json!({ "type": "Replace", "pattern": { "String": from }, "content": to })
}

/// HuggingFace's decoder of SentencePiece's blanks and bytes; `strips` the blank that begins a text.
pub(super) fn blanks(strips: bool) -> Value {
    let strip = json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 });
    let steps = [replace("▁", " "), json!({ "type": "ByteFallback" }), json!({ "type": "Fuse" })];
    json!({ "type": "Sequence", "decoders": steps.into_iter().chain(strips.then_some(strip)).collect::<Vec<_>>() })
}

/// BERT's word pieces; the vocabulary is still missing.
pub(super) fn word_pieces(unk_token: Option<String>, normalizer: Value) -> Spec {
    let (continuing_subword_prefix, max_input_chars_per_word) = (Some("##".into()), Some(100));
    Spec {
        model: Model { unk_token, continuing_subword_prefix, max_input_chars_per_word, ..Model::default() },
        normalizer,
        pre_tokenizer: json!({ "type": "BertPreTokenizer" }),
        decoder: json!({ "type": "WordPiece", "prefix": "##", "cleanup": true }),
        ..Spec::new(Model::default())
    }
}

/// BERT's normalizer.
pub(super) fn bert_normalizer(chinese: bool, strip_accents: Option<bool>, lowercase: bool) -> Value {
    json!({
        "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": chinese,
        "strip_accents": strip_accents, "lowercase": lowercase
    })
}

/// HuggingFace's post_processor that puts these tokens before and after a text.
pub(super) fn framed(before: Option<(u32, &str)>, after: Option<(u32, &str)>) -> Value {
    if before.is_none() && after.is_none() {
        return Value::Null;
    }
    let special = |(_, name): (u32, &str)| json!({ "SpecialToken": { "id": name, "type_id": 0 } });
    let text = json!({ "Sequence": { "id": "A", "type_id": 0 } });
    let single: Vec<Value> = before.map(special).into_iter().chain([text]).chain(after.map(special)).collect();
    let entry = |(id, name): (u32, &str)| (name.to_string(), json!({ "id": name, "ids": [id], "tokens": [name] }));
    let specials: serde_json::Map<String, Value> = before.into_iter().chain(after).map(entry).collect();
    json!({ "type": "TemplateProcessing", "single": single, "pair": single, "special_tokens": specials })
}

//! A tokenizer as GGUF files store it: a table of tokens with their types, and the name of a pre-tokenizer.
//!
//! limpid reads three of llama.cpp's models. `gpt2` is byte-level byte pairs: GPT-2's letters, a list of merges, and a
//! regular expression that goes by name ([`splitting`] knows the names, checked against llama.cpp's own ids). `llama` is
//! SentencePiece's: no list of merges, but a score for each token, where the better score is joined first (`scored`). `bert` is WordPiece: a
//! token that begins a word has `▁` before it, and one that goes on has nothing, where BERT's own list has nothing and `##`.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use serde_json::{Value, json};

use super::{
    Encoding, Tokenizer, TokenizerError, Vocabulary, byte_letters,
    imported::ImportedTokenizer,
    scored::{self, SCORED},
    spec::{Added, Merge, Model, Spec, Vocab, part, shown, steps},
    split::Split,
};

/// What `tokenizer.ggml.*` holds in a GGUF file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// `gpt2` (byte-level byte pairs), `llama` (SentencePiece's byte pairs with bytes for what it lacks) or `bert` (WordPiece).
    pub model: &'static str,
    /// How text is cut, for `gpt2`: `gpt-2`, `llama-bpe`, `dbrx`, `smollm`, `qwen2`, `gpt-4o`, `deepseek-llm`, `deepseek-coder`, `falcon`,
    /// `default`, or another name that llama.cpp has for one of them.
    pub pre: String,
    /// The tokens by id: in GPT-2's letters for `gpt2`, with `▁` for a blank for `llama`, special ones as they are.
    pub tokens: Vec<String>,
    /// 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
    pub types: Vec<i32>,
    /// For `llama`: the higher, the sooner two parts become this token.
    pub scores: Option<Vec<f32>>,
    /// For `gpt2`: two tokens with a blank between, the first to be joined first.
    pub merges: Vec<String>,
    /// The token that begins a text.
    pub bos: Option<u32>,
    /// The token that ends one.
    pub eos: Option<u32>,
    /// Whether the model expects `bos` before every text.
    pub add_bos: bool,
    /// For `llama`: whether a text is taken as if it began with a blank.
    pub add_space_prefix: bool,
    /// The token that the model expects after every text.
    pub after: Option<u32>,
    /// For `bert`: the token for a word that cannot be put together.
    pub unknown: Option<u32>,
    /// Tokens that end a generation besides, by their part in it: [`END_ROLES`].
    pub ends: [Option<u32>; END_ROLES.len()],
    /// For `bert`: whether letters are made small, and accents are left out.
    pub lowercase: bool,
    /// See `lowercase`.
    pub strip_accents: bool,
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
        const LLAMA3: &str = "llama-bpe";
        pre == LLAMA3 || ALIASES.iter().any(|(name, others)| *name == LLAMA3 && others.contains(&pre))
    }

    /// The tokens that end a generation in llama.cpp; makes those special that are known by their text, as llama.cpp does.
    fn settle_ends(&mut self) -> BTreeSet<u32> {
        let ids: HashMap<&str, u32> = self.tokens.iter().map(String::as_str).zip(0..).collect();
        let first = |texts: &[&str]| texts.iter().filter_map(|text| ids.get(text).copied()).min();
        let fills: Vec<u32> = FILLS
            .iter()
            .zip(&self.ends[2..])
            .filter(|(_, named)| named.is_none())
            .filter_map(|(t, _)| first(t))
            .collect();
        let known: Vec<u32> = ENDS.iter().filter_map(|text| ids.get(text).copied()).chain(fills).collect();
        let mut all: BTreeSet<u32> =
            known.iter().copied().chain(self.eos).chain(self.ends.into_iter().flatten()).collect();
        let has = |text: &str| ids.get(text).is_some_and(|id| all.contains(id));
        let apart = [(ends_messages(&has), MESSAGE_END, USER), (BESIDE_PLAIN.into_iter().any(has), PLAIN_END, NORMAL)];
        let apart: Vec<(u32, i32)> = apart
            .into_iter()
            .filter_map(|(holds, text, kind)| ids.get(text).filter(|_| holds).map(|id| (*id, kind)))
            .collect();
        let shown = SHOWN.iter().filter_map(|text| ids.get(text)).map(|id| (*id, USER));
        for (id, kind) in known.into_iter().map(|id| (id, CONTROL)).chain(shown).chain(apart.iter().copied()) {
            self.types[id as usize] = kind;
        }
        apart.iter().for_each(|(id, _)| _ = all.remove(id));
        all
    }
}

const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const GPT4: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
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

/// Names for one way of cutting: that which is written, and others that a file may have.
const ALIASES: &[(&str, &[&str])] = &[
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
    ("smollm", &["starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"]),
    ("gpt-4o", &["llama4", "kanana2", "talkie", "minimax-m2"]),
];

/// Han, Hangul and what is between them, in DeepSeek's words.
const HAN: &str = "[一-龥ࠀ-一가-퟿]+";
/// Letters of alphabets with capitals, a blank before them.
const CASED: &str = r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+";
const MARKS: &str = r"\s?[!-/:-~！-／：-～‘-‟　-。]+";

const PRES: [&str; 9] =
    ["gpt-2", "dbrx", "qwen2", "gpt-4o", "smollm", "default", "deepseek-llm", "deepseek-coder", "falcon"];

/// The names of ways to cut text that are read.
fn known_pres() -> String {
    let others = ALIASES.iter().flat_map(|(name, others)| std::iter::once(name).chain(*others));
    let alone = PRES.iter().filter(|pre| ALIASES.iter().all(|(name, _)| name != *pre));
    let names: Vec<&str> = alone.chain(others).copied().collect();
    names.join(", ")
}

/// Bytes to letters, behind GPT-2's regular expression or behind another step's.
pub(super) fn byte_level(regex: bool) -> Value {
    json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": regex })
}

/// llama.cpp's way of cutting text as HuggingFace's pre_tokenizer.
pub(super) fn pre_tokenizer(pre: &str) -> Option<Value> {
    let alias = ALIASES.iter().find(|(_, others)| others.contains(&pre));
    let list = match alias.map_or(pre, |(name, _)| name) {
        "gpt-2" => return Some(cutting(Split::Gpt2)),
        "dbrx" => return Some(cutting(Split::Gpt4)),
        "llama-bpe" => return Some(cutting(Split::Llama3)),
        "qwen2" => return Some(cutting(Split::Qwen2)),
        "gpt-4o" => return Some(cutting(Split::Gpt4o)),
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

fn regex_step(regex: &str) -> Value {
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
    PRES.into_iter().find(|pre| pre_tokenizer(pre).and_then(|known| plain(&known)).as_ref() == Some(&asked))
}

/// A byte-level model of tokens by rank. What cannot be merged is found where it is a whole piece of text, as OpenAI does.
pub(super) fn ranked(tokens: &[Option<Vec<u8>>]) -> Result<Spec, TokenizerError> {
    let name = |id: u32| byte_letters::letters_of(tokens[id as usize].as_deref().unwrap_or_default());
    let pairs = byte_letters::merges(tokens);
    let lone = tokens.iter().zip(&pairs).any(|(t, pair)| pair.is_none() && t.as_ref().is_some_and(|t| t.len() > 1));
    let vocab =
        tokens.iter().zip(0u64..).filter_map(|(token, id)| Some((byte_letters::letters_of(token.as_deref()?), id)));
    Ok(Spec::new(Model {
        r#type: Some("BPE".into()),
        ignore_merges: lone.then_some(true),
        vocab: Vocab::Ids(vocab.collect()),
        merges: Some(pairs.into_iter().flatten().map(|(a, b)| Merge(name(a), name(b))).collect()),
        ..Model::default()
    }))
}

/// One of OpenAI's encodings as a tokenizer.json.
pub(super) fn encoding(encoding: Encoding) -> Result<Spec, TokenizerError> {
    let special = |id: u32| encoding.specials().iter().any(|&(_, special)| special == id);
    let ordinary = |id: u32| (!special(id) && !encoding.unused(id)).then(|| encoding.bytes(&[id]));
    let mut spec = ranked(&(0..encoding.vocab_size() as u32).map(ordinary).collect::<Vec<_>>())?;
    let pairs = encoding.specials().iter().map(|&(name, id)| (name.to_string(), id.into()));
    if let Vocab::Ids(list) = &mut spec.model.vocab {
        list.extend(pairs);
    }
    spec.added_tokens = encoding.specials().iter().map(|&(name, id)| Added::new(id, name, true)).collect();
    spec.pre_tokenizer = cutting(encoding.split());
    spec.decoder = byte_level(true);
    Ok(spec)
}

/// What to do about a tokenizer that a model was trained with and that has no table.
pub(crate) const LEARNED: &str = "a model trained with the tokenizer bpe has one that can";

/// Why a dense tokenizer is limpid's alone.
pub(super) const DENSE: &str =
    "it is dense: it numbers only some ids of another tokenizer, which other programs do not support";

fn cannot(why: impl Into<String>) -> TokenizerError {
    TokenizerError::Table(why.into())
}

/// [`Tokenizer::table`].
pub(super) fn write(tokenizer: &Tokenizer) -> Result<Table, TokenizerError> {
    let mut table = without_ends(tokenizer)?;
    // those that llama.cpp does not know by their texts
    let known = table.clone().settle_ends();
    let mut rest = tokenizer.more_ends().into_iter().filter(|end| !known.contains(end));
    (table.ends[0], table.ends[1]) = (rest.next(), rest.next());
    match rest.next() {
        None => Ok(table),
        Some(id) => Err(cannot(format!(
            "its token {id} ends a text, and GGUF has places for three such tokens that llama.cpp does not know"
        ))),
    }
}

/// The table of a tokenizer, but for the tokens that end a generation besides.
fn without_ends(tokenizer: &Tokenizer) -> Result<Table, TokenizerError> {
    match tokenizer {
        Tokenizer::Word(_) => Err(cannot(format!(
            "a word tokenizer drops blanks and puts them back by rule, which byte pairs cannot do; {LEARNED}"
        ))),
        Tokenizer::Dense(_) => Err(cannot(DENSE)),
        Tokenizer::Char(vocabulary) => chars(vocabulary, tokenizer.end_of_text()),
        Tokenizer::Bpe(known) => {
            let spec = encoding(*known)?;
            let end = tokenizer.end_of_text();
            let tokens = spec.tokens()?;
            let table = letters(spec, tokens, end, end)?;
            Ok(table)
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
            let (bos, eos) = (first.or(imported.begin), tokenizer.end_of_text());
            let tokens = imported.tokens().to_vec();
            if spec.kind() == "WordPiece" {
                let unknown = imported.unknown;
                return pieces(
                    &spec,
                    tokens,
                    Table { bos, eos, add_bos: first.is_some(), after, unknown, ..Table::default() },
                );
            }
            if spec.kind() == SCORED {
                let mut table = scores(&spec, tokens);
                (table.bos, table.eos, table.add_bos, table.after) = (bos, eos, first.is_some(), after);
                return Ok(table);
            }
            if spec.kind() != "BPE" {
                return Err(cannot(format!("it is a {} model, not byte pairs; {LEARNED}", spec.kind())));
            }
            if after.is_some() && after != eos {
                return Err(cannot("it puts a token after every text that does not end one"));
            }
            let marked = steps("", &spec.normalizer).is_ok_and(|list| list.iter().any(|(_, s)| s["content"] == "▁"));
            let mut table = if marked || spec.pre_tokenizer["type"] == "Metaspace" {
                marks(spec, tokens, bos, eos)?
            } else {
                letters(spec, tokens, bos, eos)?
            };
            (table.add_bos, table.after) = (first.is_some(), after);
            Ok(table)
        }
    }
}

/// The kind of every token, and names for ids that have none.
fn kinds(spec: &Spec, tokens: Vec<Option<String>>) -> (Vec<String>, Vec<i32>) {
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
    (tokens.into_iter().zip(0..).map(name).collect(), types)
}

/// llama.cpp's `gpt-4o` takes combining marks for no letters, where OpenAI's own regular expression does: texts with such
/// marks have other ids there.
fn letters(
    spec: Spec,
    tokens: Vec<Option<String>>,
    bos: Option<u32>,
    eos: Option<u32>,
) -> Result<Table, TokenizerError> {
    let mut pre = splitting(&spec.pre_tokenizer).ok_or_else(|| {
        cannot(format!("llama.cpp has no name for its pre_tokenizer, {}", shown(&spec.pre_tokenizer)))
    })?;
    if !(spec.normalizer.is_null() || (pre == "qwen2" && spec.normalizer["type"] == "NFC")) {
        return Err(cannot(format!("GGUF has no place for its normalizer, {}", shown(&spec.normalizer))));
    }
    let model = &spec.model;
    let odd = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
    if odd(&model.end_of_word_suffix) || odd(&model.continuing_subword_prefix) || model.byte_fallback == Some(true) {
        return Err(cannot("it marks the ends of words or falls back to bytes, and is not byte-level"));
    }
    if model.ignore_merges == Some(true) {
        pre = match pre {
            "dbrx" => "llama-bpe",
            other => return Err(cannot(format!("its ignore_merges has no counterpart in llama.cpp's {other:?}"))),
        };
    }
    let (tokens, types) = kinds(&spec, tokens);
    let merges = spec.model.merges.iter().flatten().map(|Merge(a, b)| format!("{a} {b}")).collect();
    let nfc = !spec.normalizer.is_null();
    Ok(Table { model: "gpt2", pre: pre.into(), tokens, types, merges, bos, eos, nfc, ..Table::default() })
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

/// WordPiece behind BERT's own steps; `table` has what is known of its tokens.
fn pieces(spec: &Spec, tokens: Vec<Option<String>>, table: Table) -> Result<Table, TokenizerError> {
    let (normalizer, model) = (&spec.normalizer, &spec.model);
    let says = |key: &str, otherwise: bool| normalizer[key].as_bool().unwrap_or(otherwise);
    let lowercase = says("lowercase", true);
    let plain =
        normalizer["type"] == "BertNormalizer" && says("clean_text", true) && says("handle_chinese_chars", true);
    let words =
        spec.pre_tokenizer["type"] == "BertPreTokenizer" && model.continuing_subword_prefix.as_deref() == Some("##");
    if !plain || !words || table.unknown.is_none() {
        return Err(cannot("it is WordPiece with other steps than BERT's, which llama.cpp does not support"));
    }
    let (tokens, mut types) = kinds(spec, tokens);
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
    Ok(Table { model: "bert", pre: "default".into(), tokens, types, lowercase, strip_accents, ..table })
}

/// A model whose blanks are `▁`: its merges become scores.
fn marks(spec: Spec, tokens: Vec<Option<String>>, bos: Option<u32>, eos: Option<u32>) -> Result<Table, TokenizerError> {
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
    let (tokens, mut types) = kinds(&spec, tokens);
    let mut scores = vec![0.0; tokens.len()];
    for ((token, kind), score) in tokens.iter().zip(&mut types).zip(&mut scores) {
        match *kind {
            NORMAL if byte(token).is_some() => *kind = BYTE,
            NORMAL => *score = -(first.get(token).copied().unwrap_or(merges.len()) as f32),
            _ => {}
        }
    }
    let (pre, scores, add_space_prefix) = ("default".into(), Some(scores), prefix);
    Ok(Table { model: "llama", pre, tokens, types, scores, bos, eos, add_space_prefix, blank_once, ..Table::default() })
}

/// A model of tokens with scores, as it stands there.
fn scores(spec: &Spec, tokens: Vec<Option<String>>) -> Table {
    let (tokens, mut types) = kinds(spec, tokens);
    types
        .iter_mut()
        .zip(&tokens)
        .filter(|(kind, token)| **kind == NORMAL && byte(token).is_some())
        .for_each(|(kind, _)| *kind = BYTE);
    let mut scores: Vec<f32> = match &spec.model.vocab {
        Vocab::Scores(list) => list.iter().map(|(_, score)| *score as f32).collect(),
        Vocab::Ids(_) => vec![],
    };
    scores.resize(tokens.len(), 0.0); // added ones have none
    let add_space_prefix =
        steps("", &spec.normalizer).is_ok_and(|list| list.iter().any(|(kind, _)| *kind == "Prepend"));
    let (pre, scores) = ("default".into(), Some(scores));
    Table { model: "llama", pre, tokens, types, scores, add_space_prefix, ..Table::default() }
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
fn byte(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?.strip_suffix('>').filter(|hex| hex.len() == 2)?;
    u8::from_str_radix(hex, 16).ok()
}

/// [`Tokenizer::from_table`].
pub(super) fn read(mut table: Table) -> Result<Tokenizer, TokenizerError> {
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
    let added =
        table.types.iter().zip(&table.tokens).zip(0..).filter(|((kind, _), _)| [UNKNOWN, CONTROL, USER].contains(kind));
    let added: Vec<Added> = added.map(|((&kind, token), id)| Added::new(id, token, kind != USER)).collect();
    let mut spec = match table.model {
        "gpt2" => byte_pair_spec(&table)?,
        "llama" => scored_spec(&table)?,
        "bert" => word_piece_spec(&table)?,
        other => return Err(part("tokenizer.ggml.model", "gpt2, llama or bert", other)),
    };
    let named = |id: u32| (id, table.tokens[id as usize].as_str());
    spec.post_processor = framed(table.bos.filter(|_| table.add_bos).map(named), table.after.map(named));
    spec.added_tokens = added;
    if table.model != "llama" {
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
    (imported.begin, imported.end) = (table.bos, table.eos);
    imported.ends = ends.into_iter().collect();
    Ok(Tokenizer::Imported(Arc::new(imported)))
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
    let merge = |line: &String| Merge::parse(line).ok_or_else(|| part("a merge", "two tokens", line.as_str()));
    let merges = table.merges.iter().map(merge).collect::<Result<_, _>>()?;
    let mut spec = Spec::new(Model {
        r#type: Some("BPE".into()),
        merges: Some(merges),
        ignore_merges: Table::begins_texts(&table.pre).then_some(true),
        ..Model::default()
    });
    let unknown = || TokenizerError::Pre { found: table.pre.clone(), known: known_pres() };
    spec.pre_tokenizer = pre_tokenizer(&table.pre).ok_or_else(unknown)?;
    spec.decoder = byte_level(true);
    Ok(spec)
}

/// Tokens joined by their scores, as SentencePiece has them.
fn scored_spec(table: &Table) -> Result<Spec, TokenizerError> {
    let scores = table.scores.clone().unwrap_or_else(|| vec![0.0; table.tokens.len()]);
    if let Some((token, score)) = table.tokens.iter().zip(&scores).find(|(t, s)| t.len() > 1024 || s.is_nan()) {
        let found = format!("a score of {score} and {} bytes", token.len());
        return Err(part("the table", "tokens of at most 1,024 bytes with a score", found));
    }
    // JSON has no infinity
    let score = |score: f32| f64::from(score.clamp(f32::MIN, f32::MAX));
    let unknown = table.types.iter().position(|&kind| kind == UNKNOWN);
    let mut spec = Spec::new(Model {
        r#type: Some(SCORED.into()),
        vocab: Vocab::Scores(table.tokens.iter().cloned().zip(scores.into_iter().map(score)).collect()),
        unk_token: unknown.map(|id| table.tokens[id].clone()),
        ..Model::default()
    });
    let replace = |from: &str, to: &str| json!({ "type": "Replace", "pattern": { "String": from }, "content": to });
    let mut before = vec![];
    let mut after = vec![replace("▁", " "), json!({ "type": "ByteFallback" }), json!({ "type": "Fuse" })];
    if table.add_space_prefix {
        before.push(json!({ "type": "Prepend", "prepend": "▁" }));
        after.push(json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
    }
    before.push(replace(" ", "▁"));
    spec.normalizer = json!({ "type": "Sequence", "normalizers": before });
    spec.decoder = json!({ "type": "Sequence", "decoders": after });
    Ok(spec)
}

/// BERT's word pieces; the vocabulary is still missing.
fn word_piece_spec(table: &Table) -> Result<Spec, TokenizerError> {
    let unknown = table.unknown.ok_or_else(|| part("the table", "a token for unknown words", "none"))?;
    let mut spec = Spec::new(Model {
        r#type: Some("WordPiece".into()),
        unk_token: Some(table.tokens[unknown as usize].clone()),
        continuing_subword_prefix: Some("##".into()),
        max_input_chars_per_word: Some(100),
        ..Model::default()
    });
    spec.normalizer = json!({
        "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
        "strip_accents": table.strip_accents, "lowercase": table.lowercase,
    });
    spec.pre_tokenizer = json!({ "type": "BertPreTokenizer" });
    spec.decoder = json!({ "type": "WordPiece", "prefix": "##", "cleanup": true });
    Ok(spec)
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

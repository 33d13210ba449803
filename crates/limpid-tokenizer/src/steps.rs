//! Steps of a tokenizer.json as HuggingFace writes them: how text is cut, by regular expressions that llama.cpp knows
//! by name, and what stands around a model.

use serde_json::{Value, json};

use super::{
    spec::{Model, Spec, steps},
    split::Split,
};

pub(super) const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const GPT4: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Marks are parts of words.
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// OpenAI's own for cl100k_base today: blanks that end a text are one piece, newlines among them. In a form that
/// HuggingFace's engines read alike (`$` and `++` mean other things to one of them).
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
pub(super) fn known_pres() -> String {
    let names = PRES.iter().flat_map(|(name, others)| std::iter::once(name).chain(*others));
    names.copied().collect::<Vec<_>>().join(", ")
}

/// The name that is written for a way of cutting.
pub(super) fn known_pre(pre: &str) -> Option<&'static str> {
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

/// The byte that `<0x41>` stands for.
pub(super) fn byte(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?.strip_suffix('>').filter(|hex| hex.len() == 2)?;
    u8::from_str_radix(hex, 16).ok()
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

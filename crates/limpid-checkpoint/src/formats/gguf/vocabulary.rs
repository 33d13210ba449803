//! The vocabulary of a GGUF file, as a table of tokens with the keys beside it; files that have nothing else have this.

use crate::error::{Result, bad};
use crate::gguf::{Array, GgufValue, Metadata};
use limpid_tokenizer::{END_ROLES, Table, Tokenizer, TokenizerError};
use std::path::Path;

/// The ids that llama.cpp takes of a kind of vocabulary where a file names none.
struct UsualIds {
    model: &'static str,
    bos: Option<u32>,
    eos: Option<u32>,
    unknown: Option<u32>,
    sep: Option<u32>,
}
const USUAL_IDS: [UsualIds; 5] = [
    UsualIds { model: "llama", bos: Some(1), eos: Some(2), unknown: Some(0), sep: None },
    UsualIds { model: "gpt2", bos: Some(11), eos: Some(11), unknown: None, sep: None },
    UsualIds { model: "bert", bos: Some(101), eos: None, unknown: Some(100), sep: Some(102) },
    UsualIds { model: "gemma4", bos: None, eos: None, unknown: None, sep: None },
    UsualIds { model: "t5", bos: None, eos: Some(1), unknown: Some(2), sep: None },
];

/// The tokenizer inside, if there is one.
pub(super) fn read_tokenizer(m: &Metadata, path: &Path) -> Result<Option<Tokenizer>> {
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let usual = match m.maybe(&key("model"), Metadata::str)? {
        None | Some("none" | "no_vocab") => return Ok(None),
        Some(kind) => USUAL_IDS.iter().find(|usual| usual.model == kind).ok_or_else(|| {
            let known = USUAL_IDS.map(|usual| usual.model).join(", ");
            bad(
                path,
                format!("its tokenizer is of the kind `{kind}`; limpid reads {known}: give it a tokenizer of its own"),
            )
        })?,
    };
    let model = usual.model;
    let tokens = m.strings(&key("tokens"))?.to_vec();
    // an id that no token has counts as none
    let known = |id: u32| Some(id).filter(|id| (*id as usize) < tokens.len());
    let id = |name: &str| -> Result<Option<u32>> {
        let id = m.maybe(&key(&format!("{name}_token_id")), Metadata::u64)?;
        Ok(id.and_then(|id| u32::try_from(id).ok()).and_then(known))
    };
    let flag = |name: &str, usual| -> Result<bool> { Ok(m.maybe(&key(name), Metadata::bool)?.unwrap_or(usual)) };
    let (spm, bert, t5) = (model == "llama", model == "bert", model == "t5");
    let pre = m.maybe(&key("pre"), Metadata::str)?.unwrap_or("default").to_string();
    let or = |id: Option<u32>, usual: Option<u32>| id.or(usual.and_then(known));
    // older files name what begins a text as BERT does
    let (bos, eos) = (id("bos")?.or(id("cls")?.filter(|_| bert)), or(id("eos")?, usual.eos));
    let after = match (flag("add_sep_token", bert)?, flag("add_eos_token", t5)?) {
        (true, _) => or(id("seperator")?, usual.sep),
        (false, true) => eos,
        _ => None,
    };
    let lowercase = flag("normalizer.lowercase", true)?;
    let mut ends = END_ROLES.map(|_| None);
    for (end, role) in ends.iter_mut().zip(END_ROLES) {
        *end = id(role)?;
    }
    let table = Table {
        types: m.maybe(&key("token_type"), Metadata::i32s)?.map_or(vec![1; tokens.len()], <[i32]>::to_vec),
        scores: match m.get(&key("scores")) {
            Some(GgufValue::Array(Array::F32(scores))) => Some(scores.clone()),
            Some(GgufValue::Array(Array::I32(scores))) => Some(scores.iter().map(|score| *score as f32).collect()),
            _ => None,
        },
        merges: m.maybe(&key("merges"), Metadata::strings)?.unwrap_or_default().to_vec(),
        add_bos: flag("add_bos_token", spm || bert || Table::begins_texts(&pre))? || model == "gemma4",
        merge_spaces: t5 && flag("remove_extra_whitespaces", false)?,
        charsmap: m.maybe(&key(CHARSMAP), Metadata::bytes)?.filter(|_| t5).unwrap_or_default(),
        add_space_prefix: flag("add_space_prefix", spm)?,
        unknown: or(id("unknown")?, usual.unknown),
        strip_accents: flag("normalizer.strip_accents", lowercase)?,
        nfc: false,
        blank_once: false,
        bos: or(bos, usual.bos),
        tokens,
        eos,
        after,
        ends,
        pre,
        lowercase,
        model,
    };
    let of_file = |fault: TokenizerError| TokenizerError::File { path: path.into(), fault: fault.into() };
    Ok(Some(Tokenizer::from_table(table).map_err(of_file)?))
}

/// Whether a key is one of the tokenizer's large tables, which a tokenizer keeps in a form of its own.
pub(super) fn is_tokens(key: &str) -> bool {
    const TABLES: [&str; 5] = ["tokens", "scores", "token_type", "merges", CHARSMAP];
    key.strip_prefix("tokenizer.ggml.").is_some_and(|name| TABLES.contains(&name))
}

/// SentencePiece's map of characters.
const CHARSMAP: &str = "precompiled_charsmap";

pub(super) fn write_tokenizer(m: &mut Metadata, mut t: Table, vocab_size: usize) {
    // rows of the table that no token has
    for i in t.tokens.len()..vocab_size {
        t.tokens.push(format!("[PAD{i}]"));
        t.types.push(5);
        if let Some(scores) = &mut t.scores {
            scores.push(0.0);
        }
    }
    let mut put = |name: &str, value: GgufValue| m.set(format!("tokenizer.ggml.{name}"), value);
    put("model", GgufValue::String(t.model.into()));
    put("pre", GgufValue::String(t.pre));
    put("tokens", t.tokens.into());
    put("token_type", t.types.into());
    match t.scores {
        Some(scores) => put("scores", scores.into()),
        None if !t.merges.is_empty() || t.model == "gpt2" => put("merges", t.merges.into()),
        None => {}
    }
    let (bert, t5) = (t.model == "bert", t.model == "t5");
    if t5 {
        put("remove_extra_whitespaces", GgufValue::Bool(t.merge_spaces));
        if !t.charsmap.is_empty() {
            put(CHARSMAP, t.charsmap.into());
        }
    }
    if bert {
        put("normalizer.lowercase", GgufValue::Bool(t.lowercase));
        put("normalizer.strip_accents", GgufValue::Bool(t.strip_accents));
    }
    let sep = t.after.filter(|_| bert);
    put("add_eos_token", GgufValue::Bool(t.after.is_some() && !bert));
    put("add_sep_token", GgufValue::Bool(sep.is_some()));
    let unknown = t.unknown.filter(|_| bert || t5);
    for (name, id) in [
        ("bos_token_id", t.bos),
        ("eos_token_id", t.eos),
        ("cls_token_id", t.bos.filter(|_| bert)),
        ("seperator_token_id", sep),
        ("unknown_token_id", unknown),
        ("eot_token_id", t.ends[0]),
        ("eom_token_id", t.ends[1]),
    ] {
        if let Some(id) = id {
            put(name, GgufValue::U32(id));
        }
    }
    put("add_bos_token", GgufValue::Bool(t.add_bos));
    put("add_space_prefix", GgufValue::Bool(t.add_space_prefix));
}

/// Writes the tokens that have a role which ids of texts do not show.
pub(super) fn put_roles(m: &mut Metadata, id: &dyn Fn(&str) -> Option<u32>) {
    for (name, role) in [("unknown", "unk_token"), ("padding", "pad_token"), ("mask", "mask_token")] {
        let key = format!("tokenizer.ggml.{name}_token_id");
        if let Some(id) = id(role).filter(|_| m.get(&key).is_none()) {
            m.set(key, id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key's value as reference/gguf_vocab.py gives it to a file.
    fn value(json: &serde_json::Value) -> GgufValue {
        use serde_json::Value;
        match json {
            Value::Bool(on) => (*on).into(),
            Value::Number(n) => (n.as_u64().unwrap() as u32).into(),
            Value::String(text) => text.clone().into(),
            Value::Array(list) if list[0].is_string() => {
                list.iter().map(|text| text.as_str().unwrap().to_string()).collect::<Vec<_>>().into()
            }
            Value::Array(list) if list[0].is_i64() => {
                list.iter().map(|n| n.as_i64().unwrap() as i32).collect::<Vec<_>>().into()
            }
            Value::Array(list) => list.iter().map(|x| x.as_f64().unwrap() as f32).collect::<Vec<_>>().into(),
            other => panic!("{other}"),
        }
    }

    /// Vocabularies of GGUF files give the ids that llama.cpp gives, end where it ends, and are refused where it
    /// refuses them (reference/gguf_vocab.py).
    #[test]
    fn vocabularies_are_what_llama_cpp_makes_of_them() {
        let told: serde_json::Value = serde_json::from_str(include_str!("../../../fixtures/gguf_vocab.json")).unwrap();
        let mut compared = 0;
        for case in told.as_array().unwrap() {
            let (name, says) = (&case["name"], &case["llama.cpp"]);
            let mut m = Metadata::default();
            for (key, given) in case["keys"].as_object().unwrap() {
                let bytes = || given.as_array().unwrap().iter().map(|b| b.as_u64().unwrap() as u8).collect::<Vec<_>>();
                let given = if key == CHARSMAP { bytes().into() } else { value(given) };
                m.set(format!("tokenizer.ggml.{key}"), given);
            }
            let read = read_tokenizer(&m, Path::new("x.gguf"));
            if let Some(why) = says["refused"].as_str() {
                let error = read.unwrap_err().to_string();
                assert!(error.contains("`tokenizer.ggml.pre` is \"nobodys\"") && why.contains("nobodys"), "{error}");
                assert!(
                    error.contains("falcon-h1") && !error.contains("damaged") && !error.contains("fetch"),
                    "{error}"
                );
                continue;
            }
            let tokenizer = read.unwrap().unwrap();
            let ids = |list: &serde_json::Value| -> Vec<u32> {
                list.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
            };
            let mut ends: Vec<u32> = tokenizer.more_ends().into_iter().chain(tokenizer.end_of_text()).collect();
            ends.sort_unstable();
            ends.dedup();
            assert_eq!(ends, ids(&says["ends"]), "{name}");
            assert_eq!(
                tokenizer.bos().map(i64::from),
                says["bos"].as_i64().filter(|_| says["add_bos"] == true),
                "{name}"
            );
            // what is written of it is read as the same, by limpid and in the table of another file
            let again = Tokenizer::from_table(tokenizer.table().unwrap()).unwrap();
            let saved = Tokenizer::from_json(&tokenizer.to_json()).unwrap();
            for text in says["texts"].as_array().unwrap() {
                let (whole, plain) = (ids(&text["whole"]), ids(&text["plain"]));
                let text = text["text"].as_str().unwrap();
                // to HuggingFace's Unigram a special token is a piece like any other, in ordinary text too
                let is_piece = |(token, _): &(&str, u32)| tokenizer.name() == "unigram" && text.contains(token);
                let same = !tokenizer.specials().iter().any(is_piece);
                for tokenizer in [&tokenizer, &again] {
                    assert_eq!(tokenizer.encode_for_model(text).unwrap(), whole, "{name}: {text:?}");
                    assert!(!same || tokenizer.encode_ordinary(text).unwrap() == plain, "{name}: {text:?}");
                }
                assert!(!same || saved.encode_ordinary(text).unwrap() == plain, "{name}: {text:?}");
                compared += 1;
            }
        }
        assert!(compared > 280, "{compared}");
    }
}

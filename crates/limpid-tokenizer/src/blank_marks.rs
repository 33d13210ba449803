//! Two of llama.cpp's tables whose blanks are `▁`: Gemma 4's byte pairs with merges, and SentencePiece's Unigram. Each is written as the
//! tokenizer.json that transformers has for such a model, and read back from it.

use super::{
    TokenizerError,
    spec::{Merge, Model, Spec, Vocab, part, shown, steps},
    table::{
        NORMAL, Table, UNKNOWN, UNUSED, blanks, cannot, kinds, listed_scores, mark_bytes, merged_model, regex_step,
        replace, scored_tokens,
    },
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

/// A run of line ends, apart from the text between two.
const LINE_ENDS: &str = r"\n+";

/// Byte pairs whose blanks are `▁`, joined within lines and within runs of line ends; the vocabulary is still missing.
pub(super) fn pairs(table: &Table) -> Result<Spec, TokenizerError> {
    let model = Model { byte_fallback: Some(true), fuse_unk: Some(true), ..merged_model(table)? };
    let (normalizer, pre_tokenizer) = (replace(" ", "▁"), regex_step(LINE_ENDS));
    Ok(Spec { normalizer, pre_tokenizer, decoder: blanks(false), ..Spec::new(model) })
}

/// Whether a tokenizer cuts text as [`pairs`] does.
pub(super) fn cuts_at_line_ends(spec: &Spec) -> bool {
    spec.pre_tokenizer == regex_step(LINE_ENDS)
}

/// Byte pairs as [`pairs`] makes them.
pub(super) fn read_pairs(spec: &Spec) -> Result<Table, TokenizerError> {
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
pub(super) fn unigram(table: &Table) -> Result<Spec, TokenizerError> {
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
pub(super) fn read_unigram(spec: &Spec) -> Result<Table, TokenizerError> {
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

//! tokenizer.json: written so that HuggingFace's `tokenizers` reads it and gives the same ids; read back with
//! suspicion.
//!
//! A char or word tokenizer is a `WordLevel` model behind a `Split` whose regular expression says which of the two it
//! is. An OpenAI encoding is `{"limpid_encoding": NAME}`, since its ranks are in the program. A dense tokenizer is
//! `{"limpid_dense": {"of": FILE, "ids": IDS}}`, with what the file of the other would hold. Every other tokenizer.json
//! is `imported`'s.

use std::{collections::HashMap, sync::Arc};

use serde::{Deserialize, Serialize, Serializer, de::IgnoredAny};
use serde_json::{Value, json};

use super::{
    DenseTokenizer, Encoding, Remap, Tokenizer, TokenizerError, TokenizerKind, Vocabulary,
    imported::ImportedTokenizer,
    spec::{Added, Spec, Vocab, parse},
    words,
};

/// One Unicode scalar value, a newline too.
const CHARS: &str = r"[\s\S]";

impl TokenizerKind {
    fn pattern(self, newlines: bool) -> String {
        match self {
            TokenizerKind::Char => CHARS.into(),
            TokenizerKind::Word if newlines => words::PATTERN.into(),
            TokenizerKind::Word => words::PATTERN.replace(r"|\n|", "|"),
        }
    }

    /// The step that cuts text. For words the pattern describes the pieces, and what lies between them is removed.
    fn pre_tokenizer(self, newlines: bool) -> Value {
        let (behavior, invert) = match self {
            TokenizerKind::Char => ("Isolated", false),
            TokenizerKind::Word => ("Removed", true),
        };
        json!({ "type": "Split", "pattern": { "Regex": self.pattern(newlines) }, "behavior": behavior,
            "invert": invert })
    }
}

#[derive(Serialize)]
struct Written<'a> {
    version: &'static str,
    truncation: (),
    padding: (),
    added_tokens: Vec<Value>,
    normalizer: (),
    pre_tokenizer: Value,
    post_processor: (),
    decoder: Value,
    model: WrittenModel<'a>,
}

#[derive(Serialize)]
struct WrittenModel<'a> {
    r#type: &'static str,
    #[serde(serialize_with = "by_id")]
    vocab: &'a [String],
    unk_token: &'a str,
}

fn by_id<S: Serializer>(tokens: &&[String], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(tokens.iter().zip(0u64..))
}

impl Tokenizer {
    /// The content of a tokenizer.json. HuggingFace's `tokenizers` reads that of `char` and `word` and gives the same
    /// ids (its decoder puts a space between all words); a byte-pair encoding is only named; another program's is the
    /// very file it was read from, or what stands for it; a dense one is `{"limpid_dense": {"of": FILE, "ids": IDS}}`.
    pub fn to_json(&self) -> String {
        match self {
            Tokenizer::Bpe(encoding) => json!({ "limpid_encoding": encoding.name() }).to_string() + "\n",
            Tokenizer::Learned(vocabulary) => written(vocabulary),
            Tokenizer::Imported(imported) => imported.source().into(),
            Tokenizer::Dense(dense) => {
                let of: Value = serde_json::from_str(&dense.full().to_json()).expect("what is written is JSON");
                json!({ "limpid_dense": { "of": of, "ids": dense.ids() } }).to_string() + "\n"
            }
        }
    }

    /// Reads what [`to_json`](Tokenizer::to_json) wrote, or another tokenizer.json of HuggingFace's.
    pub fn from_json(text: &str) -> Result<Tokenizer, TokenizerError> {
        read(text.into())
    }
}

fn written(vocabulary: &Vocabulary) -> String {
    let (kind, tokens) = (vocabulary.kind(), vocabulary.tokens());
    let added = |&id: &u32| {
        json!({
            "id": id, "content": tokens[id as usize], "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true
        })
    };
    let written = Written {
        version: "1.0",
        truncation: (),
        padding: (),
        added_tokens: vocabulary.specials().iter().map(added).collect(),
        normalizer: (),
        pre_tokenizer: kind.pre_tokenizer(vocabulary.newlines()),
        post_processor: (),
        decoder: if kind == TokenizerKind::Char { json!({ "type": "Fuse" }) } else { Value::Null },
        model: WrittenModel {
            r#type: "WordLevel",
            vocab: tokens,
            unk_token: vocabulary.unknown().map_or("<UNK>", |id| &tokens[id as usize]),
        },
    };
    serde_json::to_string_pretty(&written).expect("strings and numbers can be written") + "\n"
}

/// What says whose file it is.
#[derive(Deserialize)]
struct Head {
    limpid_encoding: Option<String>,
    limpid_dense: Option<Dense>,
    model: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Dense {
    of: Value,
    ids: Remap,
}

pub(super) fn read(text: String) -> Result<Tokenizer, TokenizerError> {
    read_changed(text, |_| Ok(false))
}

/// The same, where `change` makes another tokenizer of another program's file, if it says so.
pub(super) fn read_changed(
    text: String,
    change: impl FnOnce(&mut Spec) -> Result<bool, TokenizerError>,
) -> Result<Tokenizer, TokenizerError> {
    let head: Head = parse(&text)?;
    if let Some(name) = head.limpid_encoding {
        return match Encoding::named(&name) {
            Some(encoding) => Ok(Tokenizer::Bpe(encoding)),
            None => Tokenizer::named(&name),
        };
    }
    if let Some(Dense { of, ids }) = head.limpid_dense {
        return Ok(Tokenizer::Dense(Arc::new(DenseTokenizer::new(read(of.to_string())?, ids)?)));
    }
    if head.model.is_none() {
        return Err(TokenizerError::Unsupported { found: keys(&text)? });
    }
    let mut spec: Spec = parse(&text)?;
    let Some((kind, newlines)) = kind_of(&spec) else {
        let changed = change(&mut spec)?;
        let imported = if changed { ImportedTokenizer::made(spec) } else { ImportedTokenizer::new(spec, text) };
        return Ok(Tokenizer::Imported(Arc::new(imported?)));
    };
    let Vocab::Ids(mut pairs) = spec.model.vocab else {
        return Err(TokenizerError::Json("its vocabulary is a list, not an object of tokens and their ids".into()));
    };
    let ids: HashMap<String, u64> = pairs.iter().cloned().collect();
    for Added { id, content, .. } in spec.added_tokens {
        match ids.get(&content) {
            None => pairs.push((content, id)),
            Some(&first) if first != id => return Err(TokenizerError::Duplicate { token: content, first, second: id }),
            Some(_) => {}
        }
    }
    if pairs.is_empty() {
        return Err(TokenizerError::Json("its vocabulary is empty".into()));
    }
    Vocabulary::with_newlines(kind, in_order(pairs)?, newlines).map(Tokenizer::learned)
}

/// What a file without a model holds instead.
fn keys(text: &str) -> Result<String, TokenizerError> {
    let all: HashMap<String, IgnoredAny> = parse(text)?;
    let mut keys: Vec<&str> = all.keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys.truncate(8);
    Ok(match keys[..] {
        [] => "no model".into(),
        _ => format!("no model, only {}", keys.join(", ")),
    })
}

/// Whether it is a char or word file of ours, and whether the end of a line is a piece.
fn kind_of(spec: &Spec) -> Option<(TokenizerKind, bool)> {
    let wordlevel = spec.model.r#type.as_deref() == Some("WordLevel") && spec.normalizer.is_null();
    let ours =
        |(kind, newlines): &(TokenizerKind, bool)| wordlevel && spec.pre_tokenizer == kind.pre_tokenizer(*newlines);
    [(TokenizerKind::Char, true), (TokenizerKind::Word, true), (TokenizerKind::Word, false)].into_iter().find(ours)
}

/// The tokens by id. The ids must be 0..n, each once; nothing larger than the file is allocated.
fn in_order(pairs: Vec<(String, u64)>) -> Result<Vec<String>, TokenizerError> {
    let count = pairs.len();
    let mut tokens: Vec<Option<String>> = vec![None; count];
    let mut ids: HashMap<String, u64> = HashMap::with_capacity(count);
    for (token, id) in pairs {
        if let Some(first) = ids.insert(token.clone(), id) {
            return Err(TokenizerError::Duplicate { token, first, second: id });
        }
        let Some(place) = usize::try_from(id).ok().and_then(|id| tokens.get_mut(id)) else {
            return Err(TokenizerError::Gap { id, token, count });
        };
        if let Some(first) = place.take() {
            return Err(TokenizerError::Shared { id, first, second: token });
        }
        *place = Some(token);
    }
    // n distinct ids below n: every place is taken.
    Ok(tokens.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Order;

    fn round_trip(tokenizer: &Tokenizer) {
        let text = tokenizer.to_json();
        let back = Tokenizer::from_json(&text).unwrap();
        assert_eq!(&back, tokenizer);
        assert_eq!(back.to_json(), text);
    }

    #[test]
    fn what_is_written_is_read() {
        let text = "Anna said, \"Where is my kite?\"\n\tÉté \\ \u{0} 🙂";
        for kind in [TokenizerKind::Char, TokenizerKind::Word] {
            for special in [&[][..], &["[PAD]", "<UNK>", "[MASK]", "<|endoftext|>"]] {
                round_trip(&Tokenizer::train(kind, text, Order::Sorted, special).unwrap());
            }
        }
        for name in ["gpt2", "cl100k_base", "o200k_base"] {
            round_trip(&Tokenizer::named(name).unwrap());
        }
        assert_eq!(Tokenizer::named("gpt2").unwrap().to_json(), "{\"limpid_encoding\":\"gpt2\"}\n");
    }

    #[test]
    fn the_format_is_that_of_huggingface() {
        let tokenizer = Tokenizer::train(TokenizerKind::Char, "ba", Order::Sorted, &["[PAD]"]).unwrap();
        let value: Value = serde_json::from_str(&tokenizer.to_json()).unwrap();
        let expected = json!({
            "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
            "added_tokens": [{"id": 0, "content": "[PAD]", "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true}],
            "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "[\\s\\S]"}, "behavior": "Isolated",
            "invert": false},
            "decoder": {"type": "Fuse"},
            "model": {"type": "WordLevel", "vocab": {"[PAD]": 0, "a": 1, "b": 2}, "unk_token": "<UNK>"},
        });
        assert_eq!(value, expected);
    }

    fn refusal(text: &str) -> String {
        Tokenizer::from_json(text).unwrap_err().to_string()
    }

    /// A char file with this vocabulary and these added tokens.
    fn file(vocab: &str, added: &str) -> String {
        let step = TokenizerKind::Char.pre_tokenizer(true);
        format!(r#"{{"added_tokens":{added},"pre_tokenizer":{step},"model":{{"type":"WordLevel","vocab":{vocab}}}}}"#)
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, says) in [
            ("", "not a tokenizer.json: it ends before a value"),
            ("{\"model\": ", "not a tokenizer.json: it ends before a value"),
            ("[1, 2]", "not a tokenizer.json: invalid type"),
            ("{}", "holds no model"),
            ("{\"vocab\": 1, \"merges\": 2}", "holds no model, only merges, vocab"),
            ("{\"limpid_encoding\": \"gpt3\"}", "did you mean \"gpt2\"?"),
            ("{\"limpid_encoding\": 3}", "invalid type: integer"),
            ("{\"limpid_encoding\": \"char\"}", "no vocabulary until it is trained"),
            ("{\"model\": {\"type\": \"BPE\", \"vocab\": {}, \"merges\": []}}", "its vocabulary is empty"),
            (
                "{\"model\": {\"type\": \"RNN\", \"vocab\": {\"a\": 0}}}",
                "has the type \"RNN\", which limpid does not support",
            ),
            ("{\"model\": {\"type\": \"WordLevel\", \"vocab\": [3]}}", "not a tokenizer.json: invalid type"),
            (&file("{}", "[]"), "its vocabulary is empty"),
            (&file("[\"a\"]", "[]"), "expected an object of tokens and their ids"),
            (&file("{\"a\": 0, \"b\": -1}", "[]"), "invalid value: integer `-1`"),
            (&file("{\"a\": 0, \"a\": 1}", "[]"), "token \"a\" is in the vocabulary twice, as 0 and as 1"),
            (&file("{\"a\": 0, \"b\": 0}", "[]"), "id 0 is given to both \"a\" and \"b\""),
            (&file("{\"a\": 0, \"b\": 2}", "[]"), "id 2 of token \"b\" is out of place: 2 tokens have the ids 0 to 1"),
            (&file("{\"a\": 18446744073709551615}", "[]"), "id 18446744073709551615 of token \"a\""),
            (&file("{\"a\": 0}", "[{\"id\": 5, \"content\": \"a\"}]"), "in the vocabulary twice, as 0 and as 5"),
            (&file("{\"a\": 0}", "[{\"id\": 0, \"content\": \"[X]\"}]"), "id 0 is given to both \"a\" and \"[X]\""),
            (&file("{\"a\": 0, \"\": 1}", "[]"), "token 1, \"\", cannot be in a char vocabulary: it is empty"),
            (&file("{\"a\": 0}", "{}"), "invalid type: map, expected a sequence"),
            (&file("{\"a\": 0}", "[{\"id\": 1}]"), "missing field `content`"),
        ] {
            assert!(refusal(text).contains(says), "{text}: {}", refusal(text));
        }
        let open = "[".repeat(100_000);
        let said = refusal(&format!("{{\"pre_tokenizer\": {open}"));
        assert!(said.contains("it ends within a list"), "{said}");
        let (closed, model) = ("]".repeat(100_000), "{\"type\": \"WordLevel\", \"vocab\": {\"a\": 0}}");
        let said = refusal(&format!("{{\"model\": {model}, \"pre_tokenizer\": {open}{closed}}}"));
        assert!(said.contains("recursion limit"), "{said}");
    }

    #[test]
    fn an_added_token_beyond_the_vocabulary_is_one_more() {
        let tokenizer = Tokenizer::from_json(&file("{\"a\": 0}", "[{\"id\": 1, \"content\": \"[MASK]\"}]")).unwrap();
        assert_eq!(tokenizer.encode("a[MASK]a").unwrap(), [0, 1, 0]);
    }

    #[test]
    fn damaged_files_never_panic() {
        let text = Tokenizer::train(TokenizerKind::Word, "a b, c", Order::Sorted, &["[PAD]"]).unwrap().to_json();
        let mut random = crate::tests::Random(7);
        for _ in 0..2000 {
            let mut bytes = text.clone().into_bytes();
            for _ in 0..=random.below(3) {
                let at = random.below(bytes.len());
                match random.below(3) {
                    0 => bytes[at] = random.below(256) as u8,
                    1 => _ = bytes.remove(at),
                    _ => bytes.truncate(at.max(1)),
                }
            }
            _ = Tokenizer::from_json(&String::from_utf8_lossy(&bytes));
        }
    }
}

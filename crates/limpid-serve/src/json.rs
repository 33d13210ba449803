//! Reads the bytes of a body as JSON, strictly: whatever two parsers could read differently is refused.
//!
//! Errors are: encodings other than UTF-8, a byte order mark, a duplicate key, half a surrogate pair, `NaN`, numbers
//! outside an f64's range, more than [`DEPTH`] levels, and anything after the end. A number without a fraction is an
//! integer however it is written, as in JSON Schema: 16.0 is 16 (to 2^53, beyond which another number may have been
//! written). `parameters` reads what is inside.

use crate::refusal::{Refusal, Result};
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use std::fmt;

/// Levels of arrays and objects.
pub const DEPTH: usize = 64;

/// What a text of UTF-16 that was cut within a character begins or ends with.
const SURROGATE: &str = "a lone surrogate (U+D800 to U+DFFF), which is not a character; send both halves of the pair";

/// An f64 represents every integer exactly up to here: 2^53.
const WHOLE: f64 = 9_007_199_254_740_992.0;

/// The bytes that compressed data begins with.
const GZIP: &[u8] = &[0x1f, 0x8b];

/// The object that a body is.
///
/// # Errors
/// `invalid_json`, with line and column.
pub fn object(body: &[u8]) -> Result<Map<String, Value>> {
    let text = str::from_utf8(body).map_err(|error| {
        let before = &body[..error.valid_up_to()];
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        let column = 1 + before.iter().rev().take_while(|byte| **byte != b'\n').count();
        let found = if matches!(body[error.valid_up_to()..], [0xed, 0xa0..=0xbf, ..]) {
            SURROGATE
        } else if body.starts_with(GZIP) {
            "the body is compressed (gzip); send it uncompressed"
        } else {
            "the body is not UTF-8; expected JSON in UTF-8"
        };
        Refusal::invalid_json(format!("line {line} column {column}: {found}"))
    })?;
    if text.starts_with('\u{feff}') {
        let message = "line 1 column 1: the body begins with a byte order mark (U+FEFF); send the JSON without it";
        return Err(Refusal::invalid_json(message.into()));
    }
    if text.trim_ascii().is_empty() {
        return Err(Refusal::invalid_json("the body is empty; expected a JSON object".into()));
    }
    let mut json = serde_json::Deserializer::from_str(text);
    let value = Strict { depth: 0 }.deserialize(&mut json).and_then(|value| json.end().map(|()| value));
    match value.map_err(|error| Refusal::invalid_json(placed(&error)))? {
        Value::Object(object) => Ok(object),
        other => Err(Refusal::invalid_json(format!("expected an object, found {}", crate::refusal::found(&other)))),
    }
}

/// `line 1 column 18: what is wrong`.
fn placed(error: &serde_json::Error) -> String {
    let (line, column, text) = (error.line(), error.column(), error.to_string());
    let what = match text.strip_suffix(&format!(" at line {line} column {column}")).unwrap_or(&text) {
        // the first half without the second, and the second without the first
        "unexpected end of hex escape" | "lone leading surrogate in hex escape" => SURROGATE,
        what => what,
    };
    format!("line {line} column {column}: {what}")
}

/// Any value, at most so deep.
#[derive(Clone, Copy)]
struct Strict {
    depth: usize,
}

impl Strict {
    fn below<E: Error>(self) -> Result<Strict, E> {
        if self.depth < DEPTH {
            Ok(Strict { depth: self.depth + 1 })
        } else {
            Err(E::custom(format!("more than {DEPTH} levels of arrays and objects")))
        }
    }
}

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        let exact = value.fract() == 0.0 && value.abs() < WHOLE;
        Ok(if exact { Value::from(value as i64) } else { value.into() })
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let below = self.below()?;
        let mut all = vec![];
        while let Some(item) = items.next_element_seed(below)? {
            all.push(item);
        }
        Ok(all.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let below = self.below()?;
        let mut all = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            if all.contains_key(&key) {
                return Err(A::Error::custom(format!("the key `{}` is there twice", crate::refusal::quoted(&key))));
            }
            let value = entries.next_value_seed(below)?;
            all.insert(key, value);
        }
        Ok(all.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_be_read_in_two_ways_is_refused() {
        let deep = |levels: usize| format!("{{\"a\":{}{}}}", "[".repeat(levels), "]".repeat(levels));
        let cases: Vec<(Vec<u8>, &str)> = [
            ("", "the body is empty"),
            (" \n", "the body is empty"),
            ("[]", "expected an object, found an empty array"),
            ("null", "expected an object, found null"),
            ("{", "line 1 column 1: EOF while parsing an object"),
            ("{\"a\":1", "line 1 column 6: EOF while parsing an object"),
            ("{\"a\":1 \"b\":2}", "line 1 column 8: expected `,` or `}`"),
            ("{\"a\":1,}", "line 1 column 8: trailing comma"),
            ("{\"a\":1}\n{", "line 2 column 1: trailing characters"),
            ("{\"a\":1,\"a\":1}", "the key `a` is there twice"),
            ("{\"b\":{\"a\":1,\"\\u0061\":1}}", "the key `a` is there twice"),
            ("{\"a\":NaN}", "line 1 column 6: expected value"),
            ("{\"a\":-Infinity}", "line 1 column 7: invalid number"),
            ("{\"a\":1e400}", "number out of range"),
            ("{\"a\":01}", "invalid number"),
            ("{\"a\":\"\\ud83d\"}", "line 1 column 13: a lone surrogate (U+D800 to U+DFFF)"),
            ("{\"a\":\"\\ude42\"}", "a lone surrogate"),
            ("{\"a\":\"\\ud83dx\"}", "a lone surrogate"),
            ("{\"a\":\"\\ud83d\\n\"}", "a lone surrogate"),
            ("{\"a\":\"\\ud83d\\ud83d\\ude42\"}", "a lone surrogate"),
            ("{\"a\":\"\\ude42\\ud83d\"}", "a lone surrogate"),
            ("{\"\\udfff\":1}", "a lone surrogate"),
            ("{\"a\":\"\\ud8", "EOF while parsing a string"),
            ("{\"a\":\"\n\"}", "control character"),
            ("{'a':1}", "key must be a string"),
            ("\u{feff}{}", "byte order mark"),
            ("{\"a\":\n nul}", "line 2 column 5: expected ident"),
            (&deep(64), "more than 64 levels"),
            (&deep(100_000), "more than 64 levels"),
        ]
        .into_iter()
        .map(|(text, said)| (text.as_bytes().to_vec(), said))
        .chain([
            (b"{\"a\":\n \"\xff\"}".to_vec(), "line 2 column 3: the body is not UTF-8"),
            (b"{\"a\":\n \"\xed\xa0\x80\"}".to_vec(), "line 2 column 3: a lone surrogate"),
            (b"{\"a\":\"\xed\xbf\xbf\"}".to_vec(), "line 1 column 7: a lone surrogate"),
            (b"\x1f\x8b\x08\x00".to_vec(), "the body is compressed (gzip)"),
            ("{}".encode_utf16().flat_map(u16::to_le_bytes).collect(), "key must be a string"),
        ])
        .collect();
        for (body, said) in cases {
            let refusal = object(&body).unwrap_err();
            assert!(refusal.message.contains(said) && refusal.code == "invalid_json", "{said}: {}", refusal.message);
            assert!(refusal.message.len() < 140, "{}", refusal.message);
        }
    }

    #[test]
    fn what_is_json_stays_what_it_is() {
        let text = r#"{"a":[1,-1,18446744073709551615,0.1,1e300,true,null,"\ud83d\ude42 é"],"b":{"":{}}}"#;
        assert_eq!(Value::Object(object(text.as_bytes()).unwrap()), serde_json::from_str::<Value>(text).unwrap());
        let whole =
            object(br#"{"a":[16.0,-0.0,1e3,1e-400,9007199254740991.0,9007199254740992.0,-9223372036854775809,1.5]}"#)
                .unwrap();
        let read = serde_json::json!([
            16,
            0,
            1000,
            0,
            9_007_199_254_740_991_i64,
            9_007_199_254_740_992.0,
            -9_223_372_036_854_775_808.0,
            1.5
        ]);
        assert_eq!(whole["a"], read, "an integer is one however it is written");
        assert!(object(format!("{{\"a\":{}{}}}", "[".repeat(63), "]".repeat(63)).as_bytes()).is_ok());
    }
}

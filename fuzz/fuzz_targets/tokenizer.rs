//! A tokenizer.json.
#![no_main]
use limpid::tokenizer::Tokenizer;

libfuzzer_sys::fuzz_target!(|json: &str| {
    let _ = Tokenizer::from_json(json).and_then(|tokenizer| tokenizer.encode("ab <s> \u{e4}\u{1f600}"));
});

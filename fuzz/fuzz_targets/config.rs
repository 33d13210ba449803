//! A config.json.
#![no_main]

libfuzzer_sys::fuzz_target!(|json: &str| {
    let _ = limpid::config::Config::from_json(json).and_then(|config| config.check());
});

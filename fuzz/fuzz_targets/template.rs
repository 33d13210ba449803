//! The target `template` of [`given`].
#![no_main]
#[path = "../given.rs"]
mod given;

libfuzzer_sys::fuzz_target!(|input: &[u8]| given::give("template", input));

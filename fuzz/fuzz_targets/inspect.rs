//! A model in a file.
#![no_main]
#[path = "../file.rs"]
mod file;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = limpid::checkpoint::Checkpoint::open(&file::holding(bytes, "model.safetensors"));
});

//! The settings of a run, and whether it can go on.
#![no_main]
#[path = "../file.rs"]
mod file;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let path = file::holding(bytes, "state/last.safetensors");
    let folder = path.parent().and_then(|state| state.parent()).unwrap_or(&path);
    let _ = limpid::train::run::Run::settings(folder, None);
    let _ = limpid::train::run::Run::check(folder, None);
});

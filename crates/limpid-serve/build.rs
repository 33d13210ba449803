//! Takes the module of live pages into the library, where `cargo xtask web` has made one.

use std::path::Path;

fn main() {
    println!("cargo::rustc-check-cfg=cfg(live)");
    println!("cargo::rerun-if-changed=build.rs");
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/web/limpid.wasm");
    // one that is not there would count as changed at every build
    if let Ok(module) = module.canonicalize() {
        println!("cargo::rerun-if-changed={}", module.display());
        println!("cargo::rustc-env=LIVE_MODULE={}", module.display());
        println!("cargo::rustc-cfg=live");
    }
}

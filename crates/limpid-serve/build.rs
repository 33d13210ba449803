//! Takes the modules of live pages into the library, where `cargo xtask web` has made them.

use std::path::Path;

fn main() {
    println!("cargo::rustc-check-cfg=cfg(live)");
    println!("cargo::rerun-if-changed=build.rs");
    let modules = ["limpid", "training"].map(|name| {
        let path = format!("../../target/web/{name}.wasm");
        Path::new(env!("CARGO_MANIFEST_DIR")).join(path).canonicalize()
    });
    // one that is not there would count as changed at every build
    let [Ok(limpid), Ok(training)] = modules else { return };
    for (name, module) in [("LIVE_MODULE", limpid), ("TRAINING_MODULE", training)] {
        println!("cargo::rerun-if-changed={}", module.display());
        println!("cargo::rustc-env={name}={}", module.display());
    }
    println!("cargo::rustc-cfg=live");
}

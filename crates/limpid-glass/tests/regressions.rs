//! Inputs that fuzzing found are given to the same functions again (fuzz/README.md). The published crate goes without
//! this test, because the inputs are in the repository alone.

#[path = "../../../fuzz/given.rs"]
mod given;

use std::fs;
use std::path::Path;

#[test]
fn what_fuzzing_found_is_refused_or_read() {
    for (target, _) in given::TARGETS {
        let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/regressions").join(target);
        let mut inputs = fs::read_dir(&kept).unwrap_or_else(|error| panic!("{}: {error}", kept.display())).peekable();
        assert!(inputs.peek().is_some(), "{}: no input", kept.display());
        // as much stack as a thread of a server has
        let inputs: Vec<Vec<u8>> = inputs.map(|file| fs::read(file.unwrap().path()).unwrap()).collect();
        let all = std::thread::Builder::new().name(target.into()).stack_size(2 << 20);
        all.spawn(move || inputs.iter().for_each(|input| given::give(target, input))).unwrap().join().unwrap();
    }
}

//! Writes a model for HuggingFace's transformers, llama.cpp and limpid itself: `cargo run --release --example convert
//! -- runs/1 out`.

use limpid::checkpoint::Format;
use limpid::{Error, Lm};
use std::path::{Path, PathBuf};

/// The model in three formats, in a folder that is there.
pub fn convert(model: &Path, folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let lm = Lm::open(model)?;
    let formats = [("hf", Format::HuggingFace), ("model.gguf", Format::Gguf), ("limpid", Format::Limpid)];
    let written = formats.map(|(name, format)| {
        let path = folder.join(name);
        lm.save(&path, format).map(|()| path)
    });
    written.into_iter().collect()
}

fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1);
    let (model, folder) = (arguments.next().expect("a model"), arguments.next().expect("a folder"));
    for path in convert(Path::new(&model), Path::new(&folder))? {
        println!("{}", path.display());
    }
    Ok(())
}

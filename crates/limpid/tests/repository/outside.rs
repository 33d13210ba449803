//! A program outside the workspace: it depends on `limpid` by path, without default features, trains and generates.

use std::fs;
use std::path::Path;
use std::process::Command;

const MAIN: &str = r#"
use limpid::generate::Options;
use limpid::train::{Control, Recipe};
use limpid::{Error, Training};
use limpid::embed::Pooling;

fn main() -> Result<(), Error> {
    let recipe = Recipe { steps: 5, batch_size: 2, context: 16, ..Recipe::preset("nano")? };
    let text = "to be or not to be, that is the question.\n".repeat(40);
    let lm = Training::preset("nano")?.recipe(recipe).text(text).run()?.lm;
    let sample = lm.generate("to be", &Options { max_tokens: 12, stop_at_end_of_text: false, ..Options::default() })?;
    let vector = lm.embed("to be", Pooling::Mean)?;
    println!("{} tokens, {} numbers", sample.tokens.len(), vector.len());
    for name in ["gpt2", "wordpiece.json", "rows.parquet"] {
        let error = match name {
            "rows.parquet" => Training::preset("nano")?.data(name).run().err(),
            name => limpid::tokenizer::Tokenizer::known(name).err().map(Error::from),
        };
        println!("{}", error.map_or_else(|| "accepted".into(), |error| error.to_string()));
    }
    Ok(())
}
"#;

#[test]
#[ignore = "gate"]
fn a_program_outside_the_workspace_trains_and_generates() {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = std::env::temp_dir().join(format!("limpid-outside-{}", std::process::id()));
    fs::create_dir_all(folder.join("src")).unwrap();
    // only what computes is optimised; versions are those of the workspace, offline
    let manifest = format!(
        "[package]\nname = \"outside\"\nedition = \"2024\"\n\n[dependencies.limpid]\npath = {own:?}\ndefault-features \
         = false\n\n[workspace]\n\n[profile.dev]\ndebug = false\n[profile.dev.package.limpid-core]\nopt-level = 1\n"
    );
    fs::write(folder.join("Cargo.toml"), manifest).unwrap();
    let lock = own.ancestors().map(|above| above.join("Cargo.lock")).find(|path| path.exists()).unwrap();
    fs::copy(lock, folder.join("Cargo.lock")).unwrap();
    fs::write(folder.join("src/main.rs"), MAIN).unwrap();
    fs::write(folder.join("rows.parquet"), "PAR1").unwrap();
    let pieces = r###"{"version": "1.0", "model": {"type": "WordPiece", "vocab": {"[UNK]": 0, "a": 1, "##b": 2},
        "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100},
        "decoder": {"type": "WordPiece", "prefix": "##"}}"###;
    fs::write(folder.join("wordpiece.json"), pieces).unwrap();
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("outside");
    let ran = Command::new(env!("CARGO"))
        .args(["run", "--quiet", "--offline", "--target-dir"])
        .arg(target)
        .current_dir(&folder)
        .output()
        .unwrap();
    let [said, wrong] = [ran.stdout, ran.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(ran.status.success(), "{wrong}");
    fs::remove_dir_all(folder).unwrap();
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!((lines.len(), lines[0]), (4, "12 tokens, 128 numbers"), "{said}");
    for (line, feature) in lines[1..].iter().zip(["tiktoken", "huggingface", "parquet"]) {
        assert!(line.contains(&format!("needs the feature `{feature}`")), "{line}");
    }
}

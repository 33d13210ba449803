//! Writes a text as it comes, up to the end of a line: `cargo run --release --example stream -- runs/1 "Once upon a
//! time"`.

use limpid::generate::{FinishReason, Options};
use limpid::{Error, Lm};
use std::io::Write;

/// Gives the pieces after `prompt` to `write`, at most 200 tokens of one line. Returns why it ended.
pub fn line(lm: &Lm, prompt: &str, mut write: impl FnMut(&str)) -> Result<FinishReason, Error> {
    let options = Options { max_tokens: 200, stop: vec!["\n".into()], ..Options::default() };
    let sample = lm.stream(prompt, &options, |piece| {
        write(piece);
        true // false ends it
    })?;
    Ok(sample.finish_reason)
}

fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1);
    let lm = Lm::open(arguments.next().expect("a model"))?;
    let reason = line(&lm, &arguments.next().unwrap_or_default(), |piece| {
        print!("{piece}");
        let _ = std::io::stdout().flush();
    })?;
    println!("\n[{}]", reason.name());
    Ok(())
}

//! Continues a prompt, piece by piece: `cargo run --release --example generate -- runs/1 "Once upon a time"`.

use limpid::{Error, Lm, generate::Options};

/// What follows a prompt, shown as it comes.
pub fn generate(model: &str, prompt: &str, show: fn(&str)) -> Result<String, Error> {
    let lm = Lm::open(model)?;
    let options = Options { max_tokens: 50, ..Options::default() };
    lm.stream(prompt, &options)?.inspect(|piece| piece.iter().for_each(|text| show(text))).collect()
}

fn main() -> Result<(), Error> {
    let [_, model, prompt] = &std::env::args().collect::<Vec<_>>()[..] else { panic!("give a model and a prompt") };
    generate(model, prompt, |text| print!("{text}")).map(|_| println!())
}

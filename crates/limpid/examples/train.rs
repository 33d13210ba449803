//! Trains a small model on a text of one's own: `cargo run --release --example train -- book.txt runs/book`.

use limpid::{Error, Trained, Training};

/// A model of one's own text, in a folder.
pub fn train(text: &str, folder: &str, steps: u64) -> Result<Trained, Error> {
    Training::preset("nano")?.data(text).tokenizer("char").steps(steps).folder(folder).run()
}

fn main() -> Result<(), Error> {
    let [_, text, folder] = &std::env::args().collect::<Vec<_>>()[..] else { panic!("give a text and a folder") };
    let Trained { summary, .. } = train(text, folder, 500)?;
    println!("{} tokens in {:.0} seconds: train loss {:?}", summary.tokens, summary.seconds, summary.train_loss);
    Ok(())
}

//! Asks a model that was trained on conversations: `cargo run --release --example chat -- runs/chat "Who are you?"`.
use limpid::data::chat::{Message, Role};
use limpid::{Error, Lm, generate::Options};

/// The answer to a question, whose pieces are shown as they come.
pub fn ask(lm: &Lm, question: &str, show: fn(&str)) -> Result<String, Error> {
    let message = Message { role: Role::User, content: question.into() };
    let answer = lm.chat_stream(&[message], &Options { max_tokens: 100, ..Options::default() })?;
    answer.inspect(|piece| piece.iter().for_each(|text| show(text))).collect()
}

fn main() -> Result<(), Error> {
    let [_, model, question] = &std::env::args().collect::<Vec<_>>()[..] else { panic!("give a model and a question") };
    ask(&Lm::open(model)?, question, |text| print!("{text}")).map(|_| println!())
}

//! `--data` that holds conversations: which file does, and what there is to learn in it.

use crate::show::plural;
use crate::source::{self, Corpus, Text, Wants};
use anyhow::{Context, Result};
use limpid::data::Tokens;
use limpid::data::chat::{self, Chat, Conversation, Role};
use limpid::tokenizer::Tokenizer;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

/// The longest first line that is looked at.
const LINE: u64 = 16 << 20;

/// Said where conversations meet a model that predicts masked tokens.
pub const NEEDS_CAUSAL: &str = "conversations have answers to be predicted token after token, and this model \
    predicts masked tokens: use one whose mask is causal";

/// Conversations, the last of them kept for validation.
pub struct Conversations {
    name: String,
    all: Chat,
    train: usize,
}

/// Conversations, where `data` is a file whose first line says so.
pub fn open(data: &str, val_fraction: f64, skip_bad: bool) -> Result<Option<Conversations>> {
    let path = Path::new(data);
    if !path.is_file() || !first_line(path).is_ok_and(|line| chat::is_chat(&line)) {
        return Ok(None);
    }
    let all = chat::read(&source::read_file(path)?, skip_bad).with_context(|| data.to_string())?;
    let train = (all.conversations.len() as f64 * (1.0 - val_fraction)).ceil() as usize;
    Ok(Some(Conversations { name: data.into(), all, train }))
}

fn first_line(path: &Path) -> std::io::Result<String> {
    let mut lines = BufReader::new(std::fs::File::open(path)?.take(LINE)).lines();
    lines.find(|line| line.as_ref().map_or(true, |line| !line.trim().is_empty())).unwrap_or(Ok(String::new()))
}

impl Conversations {
    fn parts(&self) -> [&[Conversation]; 2] {
        self.all.conversations.split_at(self.train).into()
    }

    /// Some of what a tokenizer has no token for.
    pub fn unknown(&self, tokenizer: &Tokenizer) -> Vec<String> {
        let answers = |c: &'_ Conversation| -> Vec<String> {
            c.messages.iter().filter(|m| m.role == Role::Assistant).map(|m| m.content.clone()).collect()
        };
        let answers: Vec<String> = self.all.conversations.iter().flat_map(answers).collect();
        source::unknown(tokenizer, answers.iter().map(String::as_str))
    }

    /// What there is to learn, with the tokenizer that is wanted.
    pub fn corpus(&self, wants: Wants) -> Result<Corpus> {
        let text = || vec![self.all.conversations.iter().map(Conversation::text).collect::<String>().into()];
        let name = wants.tokenizer.unwrap_or(wants.default);
        let tokenizer = match wants.decided {
            Some(tokenizer) => tokenizer,
            None => source::tokenizer(name, &text, wants.specials)?,
        };
        let (train, validation) = self.tokens(&tokenizer)?;
        let text = Text { name: self.name.clone(), ..Text::default() };
        Ok(Corpus { text, tokenizer, tokenizer_name: name.into(), train, validation })
    }

    /// The ids to train on and to judge by.
    pub fn tokens(&self, tokenizer: &Tokenizer) -> Result<(Tokens, Tokens)> {
        let [train, validation] = self.parts().map(|part| chat::tokens(part, tokenizer));
        Ok((train.with_context(|| self.name.clone())?, validation.with_context(|| self.name.clone())?))
    }

    /// What was read; `long` conversations are longer than the window of `context` tokens.
    pub fn say(&self, long: usize, context: usize) -> String {
        let mut said = format!(
            "{}: {}; the loss is on the answers",
            self.name,
            plural(self.all.conversations.len(), "conversation")
        );
        if long > 0 {
            said += &format!(
                "; {} longer than {context} tokens and cut: what follows a cut does not see before it",
                if long == 1 { "1 was".into() } else { format!("{long} were") }
            );
        }
        if let Some(error) = &self.all.first_skipped {
            said += &format!("; {} skipped, the first at {error}", plural(self.all.skipped, "bad line"));
        }
        said
    }
}

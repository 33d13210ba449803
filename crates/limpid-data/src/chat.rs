//! Conversations: JSON in four forms, one template, and a loss on the answers alone. docs/chat.md is for users.
//!
//! ```text
//! <|system|>
//! You are brief.
//! <|user|>
//! Where is the kite?
//! <|assistant|>
//! In the tree.<|end|>
//! ```
//!
//! The markers are text that every tokenizer can write; a tokenizer that has them as special tokens writes each as one
//! token. The model learns to predict what an assistant says and the `<|end|>` after it, and nothing else. The text
//! before an answer is encoded apart from the answer, as a prompt is when the model answers.

use super::corpus_error::{CorpusError, Place};
use super::message::FORMS;
pub use super::message::{Message, Role};
use super::quote::Quote;
use super::tokens::Tokens;
use limpid_base::words::not_json;
use limpid_tokenizer::{TextPart, Tokenizer};
use serde_json::{Map, Value};

/// The markers that the template writes before messages, in the order of [`Role`], and after an answer.
pub const MARKERS: [&str; 4] = ["<|system|>", "<|user|>", "<|assistant|>", "<|end|>"];

/// The marker after an answer.
pub const END: &str = MARKERS[3];

/// The template in Jinja: it writes [`Conversation::text`], and with `add_generation_prompt` the beginning of an
/// answer.
const TEMPLATE: &str = concat!(
    "{%- for message in messages -%}{{ '<|' + message['role'] + '|>\\n' + message['content'] }}",
    "{%- if message['role'] == 'assistant' -%}{{ '<|end|>' }}{%- endif -%}{{ '\\n' }}{%- endfor -%}",
    "{%- if add_generation_prompt -%}{{ '<|assistant|>\\n' }}{%- endif -%}"
);
/// Begins the template of a model whose texts all begin with this token.
const BEGIN: &str = "{{- bos_token -}}";

/// The template in Jinja, for other programs, of a model with this tokenizer.
pub fn template(tokenizer: &Tokenizer) -> String {
    let begin = if tokenizer.bos().is_some() { BEGIN } else { "" };
    format!("{begin}{TEMPLATE}")
}

/// Whether a template is limpid's own, [`template`].
pub fn is_template(text: &str) -> bool {
    let text = text.trim_end();
    text.strip_prefix(BEGIN).unwrap_or(text) == TEMPLATE
}

/// What [`template`] writes, with `bos` at the beginning of the text if the template says so, and with `asks` the
/// beginning of an answer.
///
/// # Errors
/// If a message contains a marker.
pub(super) fn written(source: &str, bos: &str, messages: &[Message], asks: bool) -> Result<String, ChatError> {
    unmarked(messages, |_| true)?;
    let text: String = parts(messages, &[]).into_iter().map(|(text, _)| text).collect();
    let (begin, end) = (if source.starts_with(BEGIN) { bos } else { "" }, if asks { "<|assistant|>\n" } else { "" });
    Ok(format!("{begin}{text}{end}"))
}

/// The longest conversation, in bytes. Read as JSON it takes many times as much memory.
const LONGEST: usize = 16 << 20;

/// Why conversations cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChatError {
    /// A line, item or row is not a conversation.
    #[error("{place}: {fault}")]
    Line {
        /// Where it stands.
        place: Box<Place>,
        /// What is wrong with it.
        fault: Fault,
    },
    /// A line, item or row cannot be read.
    #[error(transparent)]
    Corpus(Box<CorpusError>),
    /// The tokenizer cannot encode a conversation.
    #[error("{place}: {fault}")]
    Encode {
        /// Where its conversation stands.
        place: Box<Place>,
        /// What the tokenizer said.
        fault: limpid_tokenizer::TokenizerError,
    },
    /// A message cannot be put into the template.
    #[error(transparent)]
    Message(#[from] Fault),
    /// The tokenizer cannot encode a message.
    #[error(transparent)]
    Tokenizer(#[from] limpid_tokenizer::TokenizerError),
    /// No conversation is left.
    #[error("there is no conversation in it ({skipped} bad lines were skipped)")]
    Empty {
        /// Lines that were skipped.
        skipped: usize,
    },
}

impl From<CorpusError> for ChatError {
    fn from(error: CorpusError) -> ChatError {
        ChatError::Corpus(Box::new(error))
    }
}

/// What is wrong with a conversation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// It is not JSON.
    #[error("it is not JSON ({0}); expected one object on each line")]
    Json(String),
    /// It is longer than a conversation may be.
    #[error("it is longer than the {LONGEST} bytes that one conversation may have")]
    Long,
    /// It has none of the known forms.
    #[error(
        "expected an object with `messages`, `conversations`, `prompt` and `completion`, or `instruction` and \
         `output`, found {0}"
    )]
    Form(String),
    /// A value has the wrong type.
    #[error("expected {what} to be {wanted}, found {found}")]
    Type {
        /// What.
        what: String,
        /// The type that it should have.
        wanted: &'static str,
        /// What it is.
        found: String,
    },
    /// The list of messages is empty.
    #[error("`{0}` is empty; expected at least one message of the role `assistant`")]
    NoMessages(&'static str),
    /// An unknown role.
    #[error("message {message} has the role `{role}`; expected `system`, `user` or `assistant`")]
    Role {
        /// Which message, from 1.
        message: usize,
        /// Its role.
        role: String,
    },
    /// No message of the assistant.
    #[error("no message has the role `assistant`, so there is no answer to learn")]
    NoAnswer,
    /// All answers are left out of the loss.
    #[error("every message of the role `assistant` has the weight 0, so there is no answer to learn")]
    Weightless,
    /// A weight that OpenAI's format does not allow.
    #[error("message {message} has the weight {weight}; expected 0 or 1, on a message of the role `assistant`")]
    Weight {
        /// Which message, from 1.
        message: usize,
        /// Its weight.
        weight: String,
    },
    /// Content that the model would have to read or write, and that a conversation here cannot hold.
    #[error(
        "{what} has `{key}`, which limpid does not train on: put its text into the message's content, or take it out"
    )]
    Carries {
        /// The message or the conversation.
        what: String,
        /// The key.
        key: &'static str,
    },
    /// A message contains a marker of the template.
    #[error("message {message} contains {marker}, which is reserved for the template")]
    Marker {
        /// Which message, from 1.
        message: usize,
        /// What it contains.
        marker: &'static str,
    },
    /// No character is left to mark the text of special tokens.
    #[error(
        "the messages have the text of a special token, and all of the characters U+FDD0 to U+FDEF, one of which \
         limpid then needs for itself: leave one out"
    )]
    Marks,
}

/// Messages in their order, at least one of them the assistant's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Conversation {
    /// Where it was read.
    pub place: Place,
    /// The messages.
    pub messages: Vec<Message>,
    /// Which messages are to be learned: the assistant's, except those of weight 0.
    pub learned: Vec<bool>,
}

/// The conversations of a file.
#[derive(Debug, Default)]
pub struct Chat {
    /// The conversations that could be read.
    pub conversations: Vec<Conversation>,
    /// The number of lines, items and rows that were skipped.
    pub skipped: usize,
    /// Why the first of them was.
    pub first_skipped: Option<ChatError>,
    /// Files and folders that are not read.
    pub left_out: crate::LeftOut,
}

/// Whether the first line, item or row of a file shows that the file holds conversations: an object with the keys of
/// one of the forms.
pub fn is_chat(first: &str) -> bool {
    let object: Result<Map<String, Value>, _> = serde_json::from_str(first.trim_start_matches('\u{feff}'));
    object.is_ok_and(|object| form(&object).is_some())
}

/// Reads the conversations of a text, one on each line. Blank lines are ignored.
///
/// # Errors
/// At the first line that is not a conversation, unless `skip_bad` is set; and if there is no conversation.
pub fn read(text: &str, skip_bad: bool) -> Result<Chat, ChatError> {
    let mut chat = Chat::default();
    for (line, number) in text.trim_start_matches('\u{feff}').lines().zip(1..).filter(|(l, _)| !l.trim().is_empty()) {
        let read = chat.push(Place { path: Default::default(), unit: "line", number }, line);
        read.or_else(|error| chat.skip(error, skip_bad))?;
    }
    chat.some()
}

impl Chat {
    /// Adds a conversation in JSON.
    pub(super) fn push(&mut self, place: Place, item: &str) -> Result<(), ChatError> {
        match parse(item) {
            Ok((messages, learned)) => {
                self.conversations.push(Conversation { place, messages, learned });
                Ok(())
            }
            Err(fault) => Err(ChatError::Line { place: place.into(), fault }),
        }
    }

    /// Counts an item that cannot be read, if such items are skipped.
    pub(super) fn skip(&mut self, error: ChatError, skip_bad: bool) -> Result<(), ChatError> {
        if !skip_bad || matches!(&error, ChatError::Corpus(error) if !error.skippable()) {
            return Err(error);
        }
        self.skipped += 1;
        self.first_skipped.get_or_insert(error);
        Ok(())
    }

    /// Checks that there is at least one conversation.
    pub(super) fn some(self) -> Result<Chat, ChatError> {
        if self.conversations.is_empty() { Err(ChatError::Empty { skipped: self.skipped }) } else { Ok(self) }
    }
}

/// Every conversation as a document, in which the answers are to be predicted. It begins with the token with which all
/// texts of this tokenizer's model begin, if there is one.
///
/// # Errors
/// If the tokenizer cannot encode a conversation.
pub fn tokens(conversations: &[Conversation], tokenizer: &Tokenizer) -> Result<Tokens, ChatError> {
    let (mut ids, mut ends, mut counted) = (vec![], vec![], vec![]);
    let quote = Quote::new(specials(tokenizer), &[], TEMPLATE).ok_or(Fault::Marks)?;
    for conversation in conversations {
        ids.extend(tokenizer.bos());
        counted.resize(ids.len(), false);
        for (text, answer) in conversation.parts() {
            let part = encode(&quote.parts(&text), tokenizer);
            ids.extend(part.map_err(|fault| ChatError::Encode { place: conversation.place.clone().into(), fault })?);
            counted.resize(ids.len(), answer);
        }
        ends.push(ids.len());
    }
    Ok(Tokens::of_documents(ids, ends, Some(counted)))
}

/// The ids of `messages`; with `asks` up to where an answer to them begins. If a marker is a special token of the
/// tokenizer, the same marker inside a message stays text.
///
/// # Errors
/// If a message contains a marker that the tokenizer writes as text, or the tokenizer cannot encode a message.
pub(super) fn ids(messages: &[Message], asks: bool, tokenizer: &Tokenizer) -> Result<Vec<u32>, ChatError> {
    let specials = specials(tokenizer);
    unmarked(messages, |marker| specials.iter().all(|(special, _)| *special != marker))?;
    let quote = Quote::new(specials, messages, TEMPLATE).ok_or(Fault::Marks)?;
    let mut messages = quote.marked(messages);
    messages.extend(asks.then(|| Message { role: Role::Assistant, content: String::new() }));
    let mut parts = parts(&messages, &[]);
    if asks {
        parts.truncate(parts.len() - 2); // the answer and what follows it
    }
    let mut ids: Vec<u32> = tokenizer.bos().into_iter().collect();
    for (text, _) in &parts {
        ids.extend(encode(&quote.parts(text), tokenizer)?);
    }
    Ok(ids)
}

impl Conversation {
    /// Its text, as the template writes it.
    pub fn text(&self) -> String {
        self.parts().into_iter().map(|(text, _)| text).collect()
    }

    /// Its text in parts, and whether each is to be learned.
    fn parts(&self) -> Vec<(String, bool)> {
        parts(&self.messages, &self.learned)
    }
}

/// The markers that are special tokens.
fn specials(tokenizer: &Tokenizer) -> Vec<(&'static str, u32)> {
    MARKERS.into_iter().filter_map(|marker| Some((marker, tokenizer.special(marker)?))).collect()
}

/// The text of messages in parts, which are answers and the texts before them, and whether each part is an answer that
/// is `learned`.
fn parts(messages: &[Message], learned: &[bool]) -> Vec<(String, bool)> {
    let (mut parts, mut given) = (vec![], String::new());
    for (i, Message { role, content }) in messages.iter().enumerate() {
        given += MARKERS[*role as usize];
        given.push('\n');
        if *role == Role::Assistant {
            parts.push((std::mem::take(&mut given), false));
            parts.push((format!("{content}{END}"), learned.get(i) == Some(&true)));
        } else {
            given += content;
        }
        given.push('\n');
    }
    parts.push((given, false));
    parts
}

/// The ids of a text in which only the markers are special tokens.
fn encode(parts: &[TextPart], tokenizer: &Tokenizer) -> Result<Vec<u32>, limpid_tokenizer::TokenizerError> {
    let mut ids = vec![];
    for part in parts {
        match part {
            TextPart::Plain(text) => ids.extend(tokenizer.encode_ordinary(text)?),
            TextPart::Special(id) => ids.push(*id),
        }
    }
    Ok(ids)
}

/// The keys of an object's form.
fn form(object: &Map<String, Value>) -> Option<&'static [&'static str]> {
    FORMS.into_iter().find(|keys| keys.iter().all(|key| object.contains_key(*key)))
}

/// Keys, of a conversation and of a message, whose content the model would have to read or write besides the messages'
/// own.
const CARRIED: [&[&str]; 2] = [
    &["tools", "functions"],
    &[
        "reasoning_content",
        "reasoning",
        "reasoning_details",
        "thinking",
        "thoughts",
        "tool_calls",
        "function_call",
        "tool_call_id",
        "audio",
        "images",
        "refusal",
    ],
];

/// Checks that `object` has no content under these keys: it would be lost.
fn nothing_lost(object: &Map<String, Value>, keys: &[&'static str], what: impl Fn() -> String) -> Result<(), Fault> {
    let holds = |value: &Value| match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(object) => !object.is_empty(),
        Value::Bool(_) | Value::Number(_) => true,
    };
    match keys.iter().find(|key| object.get(**key).is_some_and(holds)) {
        Some(key) => Err(Fault::Carries { what: what(), key }),
        None => Ok(()),
    }
}

/// The messages of a conversation, and which of them are to be learned.
fn parse(item: &str) -> Result<(Vec<Message>, Vec<bool>), Fault> {
    if item.len() > LONGEST {
        return Err(Fault::Long);
    }
    let value: Value = serde_json::from_str(item).map_err(|e| {
        let said = e.to_string();
        Fault::Json(not_json(item, e.line(), e.column(), &said).unwrap_or(said))
    })?;
    let object = value.as_object().ok_or_else(|| Fault::Form(kind(&value)))?;
    let text = |key: &str| match &object[key] {
        Value::String(text) => Ok(text.clone()),
        other => Err(wrong(format!("`{key}`"), "a text", other)),
    };
    let pair = |asked: String, answer: String| {
        let message = |role, content| Message { role, content };
        vec![(message(Role::User, asked), false), (message(Role::Assistant, answer), true)]
    };
    nothing_lost(object, CARRIED[0], || "the conversation".into())?;
    let messages = match form(object) {
        Some([list @ ("messages" | "conversations")]) => match &object[*list] {
            Value::Array(messages) if messages.is_empty() => Err(Fault::NoMessages(list)),
            Value::Array(messages) => messages.iter().enumerate().map(|(i, m)| message(i + 1, m)).collect(),
            other => Err(wrong(format!("`{list}`"), "a list", other)),
        }?,
        Some(["prompt", ..]) => pair(text("prompt")?, text("completion")?),
        Some(_) => {
            let input = match object.get("input") {
                None | Some(Value::Null) => String::new(),
                Some(_) => text("input")?,
            };
            let between = if input.is_empty() { "" } else { "\n\n" };
            pair(text("instruction")? + between + &input, text("output")?)
        }
        None if object.is_empty() => return Err(Fault::Form("an empty one".into())),
        None => {
            let keys: Vec<String> = object.keys().take(8).map(|key| format!("`{key}`")).collect();
            return Err(Fault::Form(keys.join(", ")));
        }
    };
    let (messages, learned): (Vec<Message>, Vec<bool>) = messages.into_iter().unzip();
    unmarked(&messages, |_| true)?;
    if messages.iter().all(|m| m.role != Role::Assistant) {
        Err(Fault::NoAnswer)
    } else if !learned.contains(&true) {
        Err(Fault::Weightless)
    } else {
        Ok((messages, learned))
    }
}

/// Refuses what would be taken for the template: those of its markers that are `kept`.
fn unmarked(messages: &[Message], kept: impl Fn(&str) -> bool) -> Result<(), Fault> {
    let marked = |content: &str| MARKERS.into_iter().find(|marker| kept(marker) && content.contains(marker));
    match messages.iter().enumerate().find_map(|(i, m)| Some((i + 1, marked(&m.content)?))) {
        Some((message, marker)) => Err(Fault::Marker { message, marker }),
        None => Ok(()),
    }
}

/// Who speaks, by the names of OpenAI's format and of ShareGPT's.
const ROLES: [(&str, Role); 6] = [
    ("system", Role::System),
    ("user", Role::User),
    ("human", Role::User),
    ("assistant", Role::Assistant),
    ("gpt", Role::Assistant),
    ("chatgpt", Role::Assistant),
];

/// A message, and whether it is to be learned.
fn message(n: usize, value: &Value) -> Result<(Message, bool), Fault> {
    let empty = Map::new();
    let object = value.as_object().unwrap_or(&empty);
    // ShareGPT's names of the two
    let key = |own: &'static str, other: &'static str| {
        if object.contains_key(other) && !object.contains_key(own) { other } else { own }
    };
    let text = |key: &str| match object.get(key) {
        Some(Value::String(text)) => Ok(text.clone()),
        other => Err(wrong(format!("`{key}` of message {n}"), "a text", other.unwrap_or(&Value::Null))),
    };
    let name = text(key("role", "from"))?;
    let Some((_, role)) = ROLES.iter().find(|(known, _)| *known == name) else {
        return Err(Fault::Role { message: n, role: name });
    };
    let answers = *role == Role::Assistant;
    nothing_lost(object, CARRIED[1], || format!("message {n}"))?;
    let learned = match object.get("weight") {
        None | Some(Value::Null) => answers,
        Some(weight) => match weight.as_f64().filter(|_| answers) {
            Some(0.0) => false,
            Some(1.0) => true,
            _ => return Err(Fault::Weight { message: n, weight: weight.to_string() }),
        },
    };
    Ok((Message { role: *role, content: text(key("content", "value"))? }, learned))
}

fn wrong(what: String, wanted: &'static str, found: &Value) -> Fault {
    Fault::Type { what, wanted, found: kind(found) }
}

fn kind(value: &Value) -> String {
    let kind = match value {
        Value::Null => "nothing",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    };
    kind.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use limpid_tokenizer::{Order, TokenizerKind};
    use serde_json::json;

    const TALK: &str = r#"{"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Ho."}, {"role": "user", "content": "Bye"},
        {"role": "assistant", "content": ""}]}"#;

    fn one(line: &str) -> Conversation {
        read(&line.replace('\n', " "), false).unwrap().conversations.remove(0)
    }

    #[test]
    fn the_template_and_the_three_forms() {
        let want =
            "<|system|>\nBe brief.\n<|user|>\nHi\n<|assistant|>\nHo.<|end|>\n<|user|>\nBye\n<|assistant|>\n<|end|>\n";
        assert_eq!(one(TALK).text(), want);
        for (line, asked) in [
            (r#"{"prompt": "A?", "completion": "B"}"#, "A?"),
            (r#"{"instruction": "A?", "input": "", "output": "B", "id": 3}"#, "A?"),
            (r#"{"instruction": "A?", "input": "x\ny", "output": "B"}"#, "A?\n\nx\ny"),
        ] {
            assert!(is_chat(line));
            assert_eq!(one(line).text(), format!("<|user|>\n{asked}\n<|assistant|>\nB<|end|>\n"));
        }
        assert!(is_chat(&format!("\u{feff}{}", TALK.replace('\n', ""))));
        for line in ["", "{", "[]", r#"{"text": "x"}"#, r#"{"prompt": "x"}"#, "Once there was"] {
            assert!(!is_chat(line), "{line}");
        }
    }

    /// transformers writes what is written here, from the template in a model's folder (reference/chat.py).
    #[test]
    fn the_template_in_jinja_is_the_same() {
        let told: Value = serde_json::from_str(include_str!("../fixtures/chat/template.json")).unwrap();
        let tokenizer = Tokenizer::named("gpt2").unwrap();
        assert_eq!(told["template"], template(&tokenizer));
        assert!(is_template(&format!("{}\n", template(&tokenizer))));
        assert!(is_template(&format!("{BEGIN}{TEMPLATE}")) && !is_template("") && !is_template(&TEMPLATE[1..]));
        assert_eq!(tokenizer.end_of_turn(), None);
        for case in told["cases"].as_array().unwrap() {
            let talk = one(&json!({ "messages": case["messages"] }).to_string());
            assert_eq!(case["text"], talk.text());
            // what a model is asked is what it was taught to answer
            let (_, asked) = talk.messages.split_last().unwrap();
            let ids = ids(asked, true, &tokenizer).unwrap();
            assert_eq!(case["asked"], tokenizer.decode(&ids).unwrap());
            let taught = tokens(std::slice::from_ref(&talk), &tokenizer).unwrap();
            assert_eq!(ids, (0..ids.len()).map(|i| taught.id(i)).collect::<Vec<_>>());
            assert!(taught.counted(ids.len()) && !taught.counted(ids.len() - 1));
        }
        let marked = Message { role: Role::User, content: "<|system|>".into() };
        assert!(matches!(ids(&[marked], true, &tokenizer), Err(ChatError::Message(Fault::Marker { message: 1, .. }))));
        // a marker that is a special token ends an answer
        let own = Tokenizer::train(TokenizerKind::Char, "a<|user|>\nassistant", Order::Sorted, &MARKERS).unwrap();
        assert_eq!(own.end_of_turn(), own.special(END));
    }

    /// With the markers as characters and as special tokens, the answers and their ends are counted, and nothing else.
    #[test]
    fn answers_and_their_ends_are_counted() {
        let talk = one(TALK);
        let text = talk.text() + "Ho.<|end|>";
        for (kind, specials) in
            [(TokenizerKind::Char, &[][..]), (TokenizerKind::Char, &MARKERS), (TokenizerKind::Word, &MARKERS)]
        {
            let tokenizer = Tokenizer::train(kind, &text, Order::Sorted, specials).unwrap();
            let tokens = tokens(&[talk.clone(), talk.clone()], &tokenizer).unwrap();
            assert_eq!((tokens.documents(), tokens.document(1).end), (2, tokens.len()));
            for document in [0, 1].map(|i| tokens.document(i)) {
                let ids = |counted: bool| -> Vec<u32> {
                    document.clone().filter(|i| !counted || tokens.counted(*i)).map(|i| tokens.id(i)).collect()
                };
                assert_eq!(tokenizer.decode(&ids(true)).unwrap().replace(' ', ""), "Ho.<|end|><|end|>");
                assert_eq!(ids(false), tokenizer.encode(&talk.text()).unwrap());
            }
        }
        // a special token in what is said is text
        let tokenizer = Tokenizer::named("gpt2").unwrap();
        let said = one(r#"{"prompt": "<|endoftext|>", "completion": "<|endoftext|>"}"#);
        let tokens = tokens(std::slice::from_ref(&said), &tokenizer).unwrap();
        let ids: Vec<u32> = (0..tokens.len()).map(|i| tokens.id(i)).collect();
        assert!(!ids.contains(&50256));
        assert_eq!(tokenizer.decode(&ids).unwrap(), said.text());
    }

    /// A message of weight 0 is read and not learned; ShareGPT's names are read as OpenAI's.
    #[test]
    fn weights_say_what_is_learned() {
        let said = |role: &str, content: &str| json!({ "role": role, "content": content });
        let weighed =
            |content: &str, weight: Value| json!({ "role": "assistant", "content": content, "weight": weight });
        let (ask, a, b) = (said("user", "Q"), said("assistant", "A"), said("assistant", "B"));
        let tokenizer = Tokenizer::named("gpt2").unwrap();
        for (messages, learned) in [
            (json!([ask, a, ask, b]), "A<|end|>B<|end|>"),
            (json!([ask, weighed("A", json!(0)), ask, b]), "B<|end|>"),
            (json!([ask, weighed("A", json!(0)), ask, weighed("B", json!(1))]), "B<|end|>"),
            (json!([ask, weighed("A", json!(1.0)), ask, weighed("B", json!(0.0))]), "A<|end|>"),
            (json!([ask, weighed("A", Value::Null)]), "A<|end|>"),
        ] {
            let talk = one(&json!({ "messages": messages }).to_string());
            let tokens = tokens(std::slice::from_ref(&talk), &tokenizer).unwrap();
            let ids: Vec<u32> = (0..tokens.len()).filter(|i| tokens.counted(*i)).map(|i| tokens.id(i)).collect();
            assert_eq!(tokenizer.decode(&ids).unwrap(), learned);
            // what is not learned is there all the same
            let plain: Vec<u32> = (0..tokens.len()).map(|i| tokens.id(i)).collect();
            assert_eq!(tokenizer.decode(&plain).unwrap(), talk.text());
            let shared: Vec<Value> = messages
                .as_array()
                .unwrap()
                .iter()
                .map(|message| {
                    let from = if message["role"] == "user" { "human" } else { "gpt" };
                    json!({ "from": from, "value": message["content"], "weight": message["weight"] })
                })
                .collect();
            let other = one(&json!({ "conversations": shared, "id": "x" }).to_string());
            assert_eq!((&other.messages, &other.learned), (&talk.messages, &talk.learned));
        }
        for (messages, said) in [
            (json!([ask, weighed("A", json!(2))]), "message 2 has the weight 2; expected 0 or 1"),
            (json!([ask, weighed("A", json!("0"))]), "message 2 has the weight \"0\""),
            (json!([ask, weighed("A", json!(false))]), "message 2 has the weight false"),
            (
                json!([{ "role": "user", "content": "Q", "weight": 0 }, a]),
                "message 1 has the weight 0; expected 0 or 1, on a message of",
            ),
            (json!([ask, weighed("A", json!(0))]), "every message of the role `assistant` has the weight 0"),
        ] {
            let error = read(&json!({ "messages": messages }).to_string(), false).unwrap_err().to_string();
            assert!(error.starts_with("line 1: ") && error.contains(said), "{error}");
        }
    }

    /// What a message or a conversation has beside its content is not left out in silence.
    #[test]
    fn what_would_be_lost_is_refused_by_name() {
        for key in CARRIED[1] {
            let line = |value: Value| {
                json!({ "messages": [{ "role": "user", "content": "Q" },
                { "role": "assistant", "content": "A", *key: value }] })
                .to_string()
            };
            for nothing in [Value::Null, json!(""), json!([]), json!({})] {
                assert_eq!(one(&line(nothing)).messages.len(), 2);
            }
            for something in [json!("so"), json!([{}]), json!({ "x": 1 })] {
                let error = read(&line(something), false).unwrap_err().to_string();
                assert!(
                    error.starts_with(&format!("line 1: message 2 has `{key}`, which limpid does not train on")),
                    "{error}"
                );
            }
        }
        let line =
            |tools: Value| json!({ "tools": tools, "messages": [{ "role": "assistant", "content": "A" }] }).to_string();
        assert_eq!(one(&line(json!([]))).messages.len(), 1);
        assert!(read(&line(json!([1])), false).unwrap_err().to_string().contains("the conversation has `tools`"));
    }

    #[test]
    fn bad_lines_are_named_or_counted() {
        let good = r#"{"prompt": "a", "completion": "b"}"#;
        for (bad, said) in [
            ("{\"prompt\": ", "it is not JSON"),
            ("[1]", "found a list"),
            ("{}", "found an empty one"),
            (r#"{"text": "x", "id": 1}"#, "found `id`, `text`"),
            (r#"{"messages": []}"#, "`messages` is empty"),
            (r#"{"conversations": []}"#, "`conversations` is empty"),
            (r#"{"messages": "x"}"#, "expected `messages` to be a list, found a text"),
            (
                r#"{"messages": [{"role": "robot", "content": "x"}]}"#,
                "message 1 has the role `robot`; expected `system`",
            ),
            (
                r#"{"messages": [{"role": "user", "content": 4}]}"#,
                "expected `content` of message 1 to be a text, found a n",
            ),
            (r#"{"messages": ["x"]}"#, "expected `role` of message 1 to be a text, found nothing"),
            (r#"{"messages": [{"role": "user", "content": "x"}]}"#, "no answer"),
            (r#"{"prompt": null, "completion": "x"}"#, "expected `prompt` to be a text, found nothing"),
            (r#"{"instruction": "x", "input": [], "output": "y"}"#, "expected `input` to be a text, found a list"),
            (r#"{"prompt": "x", "completion": "say <|end|>"}"#, "message 2 contains <|end|>"),
            (&format!("[{}0]", "0,".repeat(LONGEST / 2)), "longer than the 16777216 bytes"),
        ] {
            let text = format!("{good}\n\n{bad}\n{good}\n");
            let error = read(&text, false).unwrap_err().to_string();
            assert!(error.starts_with("line 3: ") && error.contains(said), "{error}");
            let chat = read(&text, true).unwrap();
            assert_eq!((chat.conversations.len(), chat.skipped, chat.conversations[1].place.number), (2, 1, 4));
            assert_eq!(chat.first_skipped.unwrap().to_string(), error);
        }
        assert!(matches!(read("\n[]\n", true), Err(ChatError::Empty { skipped: 1 })));
        let tokenizer =
            Tokenizer::train(TokenizerKind::Char, "<|user|>\nassistant<|end|>", Order::Sorted, &[]).unwrap();
        let error =
            tokens(&read("\n\n{\"prompt\": \"Q\", \"completion\": \"\"}", false).unwrap().conversations, &tokenizer);
        assert!(error.unwrap_err().to_string().starts_with("line 3: "));
    }
}

//! Chat templates: how a model's conversations become text. A template is in the model's files, in Jinja, and runs as
//! in transformers.
//!
//! limpid's own template needs no interpreter: [`chat`] writes it, so limpid's models answer even without the feature
//! `templates`. Any other template is a program from a file, so its steps, its time, its memory (a step pays for 64
//! bytes), its depth and its values are bounded (`held`). Templates that use `tools` or `documents` find none.

use super::chat::{self, ChatError, Conversation, Fault, MARKERS, Message, Role};
use super::quote::Quote;
use super::{Place, Tokens};
use limpid_tokenizer::Tokenizer;
use std::collections::BTreeMap;
use std::ops::Range;
#[cfg(feature = "templates")]
use std::sync::Arc;

#[cfg(feature = "templates")]
mod held;
#[cfg(feature = "templates")]
mod json;
#[cfg(feature = "templates")]
mod python;

/// Why a template writes nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// It is not Jinja.
    #[error("the chat template is not understood: {0}")]
    Syntax(String),
    /// It failed.
    #[error("the chat template failed: {0}")]
    Failed(String),
    /// It refuses the messages, with this reason.
    #[error("the chat template does not take these messages: {0}")]
    Refused(String),
    /// It loops, or writes without end.
    #[error(
        "the chat template does not end: it was stopped after {STEPS} steps, where 64 bytes of output count as one"
    )]
    Endless,
    /// A message contains a special token that would be read as one.
    #[error(
        "message {message} contains {token}, a special token that this tokenizer cannot write as text: it would be \
         read as one"
    )]
    Special {
        /// Which message, from 1.
        message: usize,
        /// What it contains.
        token: String,
    },
    /// The tokens of an answer cannot be told from the others.
    #[error("message {message}: {why}, so limpid cannot tell which tokens are this answer")]
    Answer {
        /// Which message, from 1.
        message: usize,
        /// Why they cannot.
        why: &'static str,
    },
    /// Any of these, in a conversation to train on.
    #[error("{place}: {fault}")]
    At {
        /// The place of the conversation.
        place: Place,
        /// What is wrong.
        fault: Box<TemplateError>,
    },
    /// A message holds a marker of limpid's own template, or the tokenizer cannot write it.
    #[error(transparent)]
    Chat(#[from] ChatError),
    /// A template of another program, without the feature `templates`.
    #[error("the model has a chat template of another program: build limpid with the feature `templates` to use it")]
    Feature,
}

/// The texts of the tokens that templates write by name: `bos_token` and others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TemplateTokens(BTreeMap<String, String>);

impl<K: Into<String>, V: Into<String>> FromIterator<(K, V)> for TemplateTokens {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(tokens: I) -> TemplateTokens {
        TemplateTokens(tokens.into_iter().map(|(name, text)| (name.into(), text.into())).collect())
    }
}

impl TemplateTokens {
    /// The tokens that the files beside a tokenizer name, as in transformers. If they name none: the tokens that begin
    /// and end a text, and one that fills up batches.
    pub fn new(tokenizer: &Tokenizer) -> TemplateTokens {
        if !tokenizer.named_roles().is_empty() {
            return tokenizer.named_roles().iter().cloned().collect();
        }
        let pad = ["<pad>", "[PAD]", "<|pad|>"].into_iter().find_map(|name| tokenizer.special(name));
        let roles =
            [("bos_token", tokenizer.begin_of_text()), ("eos_token", tokenizer.end_of_text()), ("pad_token", pad)];
        roles.into_iter().filter_map(|(role, id)| Some((role, tokenizer.piece(id?).ok()?))).collect()
    }

    /// The token in a role.
    pub fn get(&self, role: &str) -> Option<&str> {
        self.0.get(role).map(String::as_str)
    }
}

/// The most steps of a template, checks of its values included. Every 64 bytes that it makes count as a step, so this
/// bounds its memory too, to 128 MiB.
const STEPS: u64 = 1 << 21;

/// How the conversations of a model are written. Cheap to clone.
#[derive(Clone)]
pub struct ChatTemplate {
    source: String,
    tokens: TemplateTokens,
    #[cfg_attr(not(feature = "templates"), expect(dead_code))] // limpid's own template writes no date
    now: Option<i64>,
    #[cfg(feature = "templates")]
    jinja: Option<Arc<minijinja::Environment<'static>>>,
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "ChatTemplate({:?})", self.source)
    }
}

impl ChatTemplate {
    /// A template in Jinja, and the tokens that it may write.
    ///
    /// ```
    /// use limpid_data::chat::{Message, Role};
    /// use limpid_data::template::{ChatTemplate, TemplateTokens};
    ///
    /// let source = "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}\n{% endfor %}";
    /// let template = ChatTemplate::new(source, TemplateTokens::from_iter([("eos_token", "</s>")]))?;
    /// let asked = Message { role: Role::User, content: "Who has the ball?".into() };
    /// assert_eq!(template.render(&[asked], true)?, "user: Who has the ball?</s>\n");
    /// # Ok::<(), limpid_data::template::TemplateError>(())
    /// ```
    ///
    /// # Errors
    /// If it is not Jinja; or if it is not limpid's own, and the feature `templates` is off.
    pub fn new(source: &str, tokens: TemplateTokens) -> Result<ChatTemplate, TemplateError> {
        let own = chat::is_template(source);
        #[cfg(feature = "templates")]
        let jinja = (!own).then(|| jinja::environment(source).map(Arc::new)).transpose()?;
        #[cfg(not(feature = "templates"))]
        if !own {
            return Err(TemplateError::Feature);
        }
        Ok(ChatTemplate {
            source: source.into(),
            tokens,
            now: None,
            #[cfg(feature = "templates")]
            jinja,
        })
    }

    /// The same at a time, in seconds of UTC since 1970, for templates that write the date (`strftime_now`). Without a
    /// time, such a template writes a date of its own or fails.
    #[must_use]
    pub fn at(&self, now: i64) -> ChatTemplate {
        ChatTemplate { now: Some(now), ..self.clone() }
    }

    /// The template, in Jinja.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The text of a conversation; with `add_generation_prompt`, up to where an answer begins.
    ///
    /// # Errors
    /// If the template fails, does not end, or does not take these messages.
    pub fn render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String, TemplateError> {
        #[cfg(feature = "templates")]
        if let Some(jinja) = &self.jinja {
            return jinja::render(jinja, &self.tokens, self.now, messages, add_generation_prompt);
        }
        let bos = self.tokens.get("bos_token").unwrap_or_default();
        Ok(chat::written(&self.source, bos, messages, add_generation_prompt)?)
    }

    /// What it writes around messages that looks like a special token (`<|im_start|>`, `[INST]`), in the order in which
    /// it is written: a tokenizer that is learned for it has each as one token.
    pub fn markers(&self) -> Vec<String> {
        use Role::{Assistant, System, User};
        let talks: [&[Role]; 3] = [&[User, Assistant], &[System, User, Assistant], &[User, Assistant, User, Assistant]];
        let mut found = vec![];
        for (roles, asks) in talks.into_iter().flat_map(|roles| [(roles, false), (&roles[..roles.len() - 1], true)]) {
            let message = |role: &Role| Message { role: *role, content: "a".into() };
            let messages: Vec<Message> = roles.iter().map(message).collect();
            let Ok(text) = self.render(&messages, asks) else { continue }; // it takes no such messages
            for marker in marked(&text) {
                if !found.iter().any(|known| known == marker) {
                    found.push(marker.to_string());
                }
            }
        }
        found
    }

    /// The ids of the prompt for an answer to `messages`: those of the rendered text, without any token that the
    /// template does not write. The text of a special token inside a message stays text, so no message can imitate the
    /// template. (In transformers it becomes the token.)
    ///
    /// # Errors
    /// As [`ChatTemplate::render`], or if the tokenizer cannot write a message, or not as text.
    pub fn ids(&self, messages: &[Message], tokenizer: &Tokenizer) -> Result<Vec<u32>, TemplateError> {
        self.encoded(messages, true, tokenizer)
    }

    /// The ids of a conversation that nothing follows. Messages are encoded as in [`ChatTemplate::ids`].
    ///
    /// # Errors
    /// As [`ChatTemplate::ids`].
    pub fn whole_ids(&self, messages: &[Message], tokenizer: &Tokenizer) -> Result<Vec<u32>, TemplateError> {
        self.encoded(messages, false, tokenizer)
    }

    /// The ids of messages; with `asks`, up to where an answer begins.
    fn encoded(&self, messages: &[Message], asks: bool, tokenizer: &Tokenizer) -> Result<Vec<u32>, TemplateError> {
        if chat::is_template(&self.source) {
            return Ok(chat::ids(messages, asks, tokenizer)?);
        }
        let quote = Quote::new(tokenizer.specials(), messages, &self.source);
        let quote = quote.ok_or(ChatError::Message(Fault::Marks))?;
        let text = self.render(&quote.marked(messages), asks)?;
        if !quote.is_needed() {
            return Ok(tokenizer.encode(&text).map_err(ChatError::from)?);
        }
        let parts = quote.parts(&text);
        let ids = tokenizer.encode_parts(&parts).map_err(ChatError::from)?;
        match quote.unquotable(&parts, &ids, messages, tokenizer.unknown()) {
            Some((message, token)) => Err(TemplateError::Special { message, token: token.into() }),
            None => Ok(ids),
        }
    }

    /// Conversations as documents to train on, in which the tokens of the answers are to be predicted.
    ///
    /// If the template marks answers with `{% generation %}`, an answer's tokens are those of the marked text.
    /// Otherwise they are those that follow the prompt of the messages before it ([`ChatTemplate::ids`]), up to the
    /// last token that ends a turn or a text.
    ///
    /// # Errors
    /// As [`ChatTemplate::ids`]. If an answer does not begin and end between two tokens, or the template writes the
    /// conversation up to it differently when more messages follow.
    pub fn tokens(&self, conversations: &[Conversation], tokenizer: &Tokenizer) -> Result<Tokens, TemplateError> {
        if chat::is_template(&self.source) {
            return Ok(chat::tokens(conversations, tokenizer)?);
        }
        let (mut ids, mut ends, mut counted) = (vec![], vec![], vec![]);
        for conversation in conversations {
            let at = |fault| TemplateError::At { place: conversation.place.clone(), fault: Box::new(fault) };
            let (own, answers) = self.taught(conversation, tokenizer).map_err(at)?;
            let from = ids.len();
            ids.extend(own);
            counted.resize(ids.len(), false);
            answers.into_iter().for_each(|answer| counted[from + answer.start..from + answer.end].fill(true));
            ends.push(ids.len());
        }
        Ok(Tokens::of_documents(ids, ends, Some(counted)))
    }

    /// The ids of a conversation, and which of them are its answers that are learned.
    fn taught(
        &self,
        conversation: &Conversation,
        tokenizer: &Tokenizer,
    ) -> Result<(Vec<u32>, Vec<Range<usize>>), TemplateError> {
        const BEGINS: &str = "it does not begin with a token of its own after its prompt";
        const ENDS: &str = "it does not end with a token of its own";
        let Conversation { messages, learned, .. } = conversation;
        plain(messages, tokenizer)?;
        let text = self.render(messages, false)?;
        let encode = |text: &str| tokenizer.encode(text).map_err(ChatError::from);
        let ids = encode(&text)?;
        let turns = [tokenizer.end_of_turn(), tokenizer.end_of_text()].into_iter().flatten();
        let turns: Vec<u32> = turns.chain(tokenizer.more_ends()).collect();
        let marked = self.marked(messages, &text)?;
        let mut answers = vec![];
        for i in (0..messages.len()).filter(|i| learned[*i]) {
            let why = |why| TemplateError::Answer { message: i + 1, why };
            let place = |at: usize, otherwise| -> Result<usize, TemplateError> {
                let before = encode(&text[..at])?;
                if ids.starts_with(&before) { Ok(before.len()) } else { Err(why(otherwise)) }
            };
            let answer = match &marked {
                Some(spans) => {
                    let number = messages[..i].iter().filter(|m| m.role == Role::Assistant).count();
                    let span =
                        spans.get(number).ok_or_else(|| why("the template marks fewer answers than there are"))?;
                    place(span.start, BEGINS)?..place(span.end, ENDS)?
                }
                None => {
                    let span = self.answer_in(&text, messages, i)?;
                    let (start, end) = (place(span.start, BEGINS)?, place(span.end, ENDS)?);
                    let last = (start..end).rev().find(|at| turns.contains(&ids[*at]));
                    start..last.map_or(end, |last| last + 1)
                }
            };
            if answer.is_empty() {
                return Err(why("the template leaves it out"));
            }
            answers.push(answer);
        }
        Ok((ids, answers))
    }

    /// What the template adds for message `i`, an answer, in the text of the whole conversation.
    fn answer_in(&self, text: &str, messages: &[Message], i: usize) -> Result<Range<usize>, TemplateError> {
        let why = |why| TemplateError::Answer { message: i + 1, why };
        let prompt = self.render(&messages[..i], true)?;
        let after = self.render(&messages[..=i], false)?;
        if !after.starts_with(&prompt) {
            return Err(why("the template writes it with another beginning than the prompt of the messages before it"));
        }
        if !text.starts_with(&after) {
            return Err(why("the template writes the conversation up to it differently if more messages follow \
                            (conversations with one answer would work)"));
        }
        Ok(prompt.len()..after.len())
    }

    /// The parts of a conversation's text that a template marks as answers, if it marks any.
    #[cfg(feature = "templates")]
    fn marked(&self, messages: &[Message], text: &str) -> Result<Option<Vec<Range<usize>>>, TemplateError> {
        let Some(source) = jinja::marking(&self.source) else { return Ok(None) };
        let rendered = jinja::render(&jinja::environment(&source)?, &self.tokens, self.now, messages, false)?;
        let (mut plain, mut spans) = (String::new(), vec![]);
        for (i, part) in rendered.split(jinja::MARKS).enumerate() {
            if i % 2 == 1 {
                spans.push(plain.len()..plain.len() + part.len());
            }
            plain += part;
        }
        let whole = plain == text && rendered.matches(jinja::MARKS).count() == 2 * spans.len();
        if whole {
            Ok(Some(spans))
        } else {
            Err(TemplateError::Failed("its marks of answers do not come in pairs".into()))
        }
    }

    #[cfg(not(feature = "templates"))]
    fn marked(&self, _: &[Message], _: &str) -> Result<Option<Vec<Range<usize>>>, TemplateError> {
        Ok(None)
    }

    /// Texts that end an answer, besides the tokenizer's own tokens for the end of a text and of a turn: limpid's
    /// markers, or the texts of the tokens `ends`, which the model's files name.
    pub fn stops(&self, tokenizer: &Tokenizer, ends: &[u32]) -> Vec<String> {
        if chat::is_template(&self.source) {
            // an answer that begins another turn has ended too, so no answer holds a marker, which no message may hold
            return MARKERS.map(String::from).into();
        }
        let known = [tokenizer.end_of_text(), tokenizer.end_of_turn()];
        let more = ends.iter().filter(|id| !known.contains(&Some(**id)));
        more.filter_map(|id| tokenizer.decode(&[*id]).ok()).filter(|text| !text.is_empty()).collect()
    }
}

/// The pieces of a text that look like special tokens: what stands between angle brackets, and capitals between square
/// ones, without blanks.
fn marked(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices(['<', '[']).filter_map(|(at, open)| {
        let close = if open == "<" { '>' } else { ']' };
        let inside = &text[at + 1..];
        let inside = &inside[..inside.find(close)?];
        let fits = |c: char| match open {
            "<" => !c.is_whitespace() && c != '<',
            _ => c.is_ascii_uppercase() || matches!(c, '_' | '/'),
        };
        (!inside.is_empty() && inside.chars().all(fits)).then(|| &text[at..at + inside.len() + 2])
    })
}

/// Refuses messages that contain special tokens.
fn plain(messages: &[Message], tokenizer: &Tokenizer) -> Result<(), TemplateError> {
    let specials = tokenizer.specials();
    for (message, Message { content, .. }) in (1..).zip(messages) {
        if let Some((token, _)) = specials.iter().find(|(token, _)| content.contains(token)) {
            return Err(TemplateError::Special { message, token: (*token).into() });
        }
    }
    Ok(())
}

/// Jinja as transformers sets it up.
#[cfg(feature = "templates")]
mod jinja {
    use super::held::{self, said};
    use super::{Message, STEPS, TemplateError, TemplateTokens};
    use super::{json, python};
    use chrono::DateTime;
    use limpid_base::contain::contain;
    use minijinja::machinery;
    use minijinja::syntax::SyntaxConfig;
    use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value, context};
    use std::borrow::Cow;
    use std::collections::BTreeMap;
    use std::fmt::Write as _;

    const NAME: &str = "chat_template";

    /// Raised by the template itself.
    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Raised(String);

    pub fn environment(source: &str) -> Result<Environment<'static>, TemplateError> {
        let wrong = |error: Error| TemplateError::Syntax(said(&error));
        let mut jinja = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        jinja.set_syntax(syntax.map_err(wrong)?);
        jinja.set_auto_escape_callback(|_| AutoEscape::None);
        jinja.set_unknown_method_callback(python::method);
        jinja.set_fuel(Some(STEPS));
        jinja.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, "").with_source(Raised(message)))
        });
        python::add(&mut jinja);
        jinja.add_filter("tojson", json::tojson);
        held::read(jinja, NAME, plain(source)).map_err(TemplateError::Syntax)
    }

    pub fn render(
        jinja: &Environment,
        tokens: &TemplateTokens,
        now: Option<i64>,
        messages: &[Message],
        add_generation_prompt: bool,
    ) -> Result<String, TemplateError> {
        let message = |m: &Message| context! { role => m.role.name(), content => &m.content };
        let none = Value::from(());
        let mut given: BTreeMap<&str, Value> =
            tokens.0.iter().map(|(role, token)| (role.as_str(), Value::from(token))).collect();
        given.extend([
            ("messages", messages.iter().map(message).collect()),
            ("add_generation_prompt", add_generation_prompt.into()),
            ("tools", none.clone()),
            ("documents", none),
        ]);
        if let Some(time) = now.and_then(|now| DateTime::from_timestamp(now, 0)) {
            let written = move |format: String| -> Result<String, Error> {
                let mut text = String::new();
                let wrong = |_| Error::new(ErrorKind::InvalidOperation, format!("{format:?} is not a time format"));
                write!(text, "{}", time.format(&format)).map_err(wrong)?;
                Ok(text)
            };
            given.insert("strftime_now", Value::from_function(written));
        }
        let failed = |error: Error| {
            let mut causes = std::iter::successors(Some(&error as &dyn std::error::Error), |error| error.source());
            match causes.find_map(|cause| cause.downcast_ref::<Raised>()) {
                _ if error.kind() == ErrorKind::OutOfFuel => TemplateError::Endless,
                Some(Raised(message)) => TemplateError::Refused(message.clone()),
                None => TemplateError::Failed(said(&error)),
            }
        };
        let mut jinja = jinja.clone();
        held::add_tests(&mut jinja);
        let run = || {
            let template = jinja.get_template(NAME)?;
            let template = machinery::get_compiled_template(&template);
            let (steps, mut text) = (held::checked(&template.instructions), String::new());
            let mut out = machinery::make_string_output(&mut text);
            machinery::eval(&jinja, &steps, Value::from(given), &template.blocks, &mut out, AutoEscape::None)?;
            Ok(text)
        };
        contain(run).map_err(TemplateError::Failed)?.map_err(failed)
    }

    /// A template with `\n` at the end of every line, as Jinja2 reads it, and without transformers' block that marks
    /// answers: its content is written as it is.
    fn plain(source: &str) -> String {
        let source = source.replace("\r\n", "\n").replace('\r', "\n");
        tags(&source, &|tag, part| match tag {
            "generation" => Some(part.replacen("generation", "if true", 1)),
            "endgeneration" => Some(part.replacen("endgeneration", "endif", 1)),
            _ => None,
        })
    }

    /// Marks the beginning and the end of an answer. No text contains it.
    pub const MARKS: char = '\u{10fffe}';

    /// The template that writes [`MARKS`] round what it marks as answers, if it marks any.
    pub fn marking(source: &str) -> Option<String> {
        // each of the two tags keeps its own side of the block, so that blanks are trimmed as before
        let mark = |word: &str, (before, after): (&str, &str), part: &str| {
            let written = format!("{before} %}}{{{{ '{MARKS}' }}}}{{% {after}");
            Some(part.replacen(word, &written, 1))
        };
        let source = &source.replace("\r\n", "\n").replace('\r', "\n");
        let text = tags(source, &|tag, part| match tag {
            "generation" => mark("generation", ("if true", "if true"), part),
            "endgeneration" => mark("endgeneration", ("endif", "endif"), part),
            _ => None,
        });
        (text != *source).then_some(text)
    }

    /// A template with some tags replaced. `change` gets each tag's word, and the source from there to the next tag.
    fn tags(source: &str, change: &dyn Fn(&str, &str) -> Option<String>) -> String {
        let mut parts = source.split("{%");
        let mut text = String::from(parts.next().unwrap_or_default());
        for part in parts {
            let tag = part.split("%}").next().unwrap_or_default();
            let word = tag.trim_matches(|c: char| "-+".contains(c) || c.is_whitespace());
            text += "{%";
            text += &change(word, part).map_or(Cow::from(part), Cow::from);
        }
        text
    }
}

#[cfg(test)]
#[cfg(feature = "templates")]
mod tests {
    use super::super::chat::{Conversation, Role, template};
    use super::*;
    use limpid_tokenizer::{Order, TokenizerKind};
    use serde_json::Value;

    fn message(role: Role, content: &str) -> Message {
        Message { role, content: content.into() }
    }

    fn new(source: &str) -> Result<ChatTemplate, TemplateError> {
        ChatTemplate::new(source, TemplateTokens::default())
    }

    fn render(source: &str) -> Result<String, TemplateError> {
        new(source)?.render(&[message(Role::User, "Hi")], true)
    }

    fn told() -> Value {
        serde_json::from_str(include_str!("../fixtures/chat/templates.json")).unwrap()
    }

    /// The texts of transformers, of templates as public models have them (reference/templates.py).
    #[test]
    fn templates_of_other_programs_write_what_transformers_writes() {
        let (mut written, mut refused) = (0, 0);
        for family in told()["templates"].as_array().unwrap() {
            let roles = family.as_object().unwrap().iter().filter(|(key, _)| key.ends_with("_token"));
            let tokens = roles.filter_map(|(role, token)| Some((role, token.as_str()?))).collect();
            let template = ChatTemplate::new(family["template"].as_str().unwrap(), tokens).unwrap();
            for case in family["cases"].as_array().unwrap() {
                let role = |name: &Value| {
                    [Role::System, Role::User, Role::Assistant].into_iter().find(|role| *name == role.name()).unwrap()
                };
                let messages = case["messages"].as_array().unwrap().iter();
                let messages: Vec<Message> =
                    messages.map(|m| message(role(&m["role"]), m["content"].as_str().unwrap())).collect();
                for (key, asks) in [("text", false), ("asked", true)] {
                    let what = format!("{} {key} of {messages:?}", family["name"]);
                    match (&case["refused"], template.render(&messages, asks)) {
                        (Value::Null, Ok(text)) => {
                            assert_eq!(case[key], text, "{what}");
                            written += 1;
                        }
                        (said, Err(TemplateError::Refused(why))) => {
                            assert_eq!(*said, why, "{what}");
                            refused += 1;
                        }
                        (_, other) => panic!("{what}: {other:?}"),
                    }
                }
            }
        }
        assert!(written > 120 && refused > 15, "{written} written, {refused} refused");
    }

    /// A tokenizer that is learned from conversations in any public template writes each of its markers as one token.
    #[test]
    fn markers_are_single_tokens_of_a_learned_tokenizer() {
        let told = told();
        let mut seen = 0;
        for family in told["templates"].as_array().unwrap() {
            let template = new(family["template"].as_str().unwrap()).unwrap();
            let markers = template.markers();
            for case in family["cases"].as_array().unwrap() {
                let role = |name: &Value| {
                    [Role::System, Role::User, Role::Assistant].into_iter().find(|role| *name == role.name()).unwrap()
                };
                let messages = case["messages"].as_array().unwrap().iter();
                let messages: Vec<Message> = messages.map(|m| message(role(&m["role"]), "Who has it?")).collect();
                let Ok(text) = template.render(&messages, false) else { continue };
                for kind in ["bpe", "char", "word"] {
                    let texts = || vec![text.as_str().into()];
                    let tokenizer = Tokenizer::for_texts(kind, &texts, &markers, 1).unwrap();
                    let pieces: Vec<String> =
                        tokenizer.encode(&text).unwrap().iter().map(|id| tokenizer.piece(*id).unwrap()).collect();
                    for sign in ["<|", "|>", "im_start", "start_of_turn", "start_header_id", "INST", "\u{ff5c}"] {
                        let torn = |piece: &&String| piece.contains(sign) && !markers.contains(piece);
                        assert_eq!(pieces.iter().find(torn), None, "{} {kind} {text:?}", family["name"]);
                        seen += pieces.iter().filter(|piece| piece.contains(sign)).count();
                    }
                }
            }
        }
        assert!(seen > 300, "{seen}");
    }

    /// What Jinja2 makes of its tests, filters, operators and Python's methods on values of every kind
    /// (reference/jinja.py).
    #[test]
    #[ignore = "gate"]
    fn values_of_every_kind_give_what_jinja2_gives() {
        let told: Value = serde_json::from_str(include_str!("../fixtures/chat/jinja.json")).unwrap();
        let messages: Vec<Message> = told["messages"]
            .as_array()
            .unwrap()
            .iter()
            .map(|m| {
                let role = if m["role"] == "user" { Role::User } else { Role::Assistant };
                message(role, m["content"].as_str().unwrap())
            })
            .collect();
        let (mut equal, mut refused, mut otherwise, mut wrong) = (0, 0, [0; OTHERWISE.len()], vec![]);
        for used in told["uses"].as_array().unwrap() {
            let using = used[0].as_str().unwrap();
            for (value, want) in told["values"].as_array().unwrap().iter().zip(used[1].as_array().unwrap()) {
                let value = value.as_str().unwrap();
                let ours = new(&in_place(using, value)).and_then(|template| template.render(&messages, true));
                let known = OTHERWISE
                    .iter()
                    .position(|(part, of)| using.contains(part) && (of.is_empty() || of.contains(&value)));
                match (want, ours) {
                    (Value::String(want), Ok(ours)) if want.replace("Undefined", "undefined") == ours => equal += 1,
                    (Value::Null, Err(_)) => refused += 1,
                    // Jinja2 refuses: limpid has an order of all values, and takes none for an empty list
                    (Value::Null | Value::Bool(_), _) => {}
                    (want, ours) => match known {
                        Some(at) => otherwise[at] += 1,
                        None => wrong.push(format!("{using} of {value}: Jinja2 {want}, limpid {ours:?}")),
                    },
                }
            }
        }
        assert!(wrong.is_empty(), "{} of {equal}:\n{}", wrong.len(), wrong.join("\n"));
        assert!(equal > 7_000 && refused > 1_500, "{equal} equal, {refused} refused by both");
        for (known, used) in OTHERWISE.iter().zip(otherwise) {
            assert!(used > 0, "{known:?} is as in Jinja2");
        }
    }

    /// What limpid's templates do otherwise: a part of its use, and of which value, or all.
    const OTHERWISE: &[(&str, &[&str])] = &[
        // a range is written as its list and has no methods, a large number is written without a power of ten
        ("", &["range(3)", "range(0)", "1e20"]),
        // these go over nothing that has no items, false or not
        ("| select", &["false", "0", "(-0.0)"]),
        ("| reject", &["false", "0", "(-0.0)"]),
        ("| map(", &["false", "0", "(-0.0)"]),
        // for people, or of no use in a text
        ("| pprint", &[]),
        ("| wordwrap(", &[]),
        (".encode()", &[]),
        (".bit_length()", &[]),
        (".is_integer()", &[]),
        // what the language has not
        ("{{ -X }}", &["true", "false"]),
        ("{{ +X }}", &[]),
        ("{{ varargs }}", &[]),
        ("dict(X)", &[]),
        ("'%d' | format(X)", &["2.5", "1.0", "(-0.0)"]),
        ("{% set a, b = X %}", &["'12'"]),
        // a part of what has no parts is undefined there
        ("X[1:", UNCUT),
        ("X[:", UNCUT),
    ];
    const UNCUT: &[&str] = &[
        "none",
        "true",
        "false",
        "0",
        "1",
        "(-7)",
        "2.5",
        "1.0",
        "(-0.0)",
        "{}",
        "{'a': 1, 'B': none}",
        "{'b': [1, 'x'], 'role': 'a'}",
        "{1: 2}",
        "messages[0]",
        "tools",
    ];

    /// A source with a value in the place of each X that stands alone.
    fn in_place(source: &str, value: &str) -> String {
        let word = |c: char| c.is_alphanumeric() || c == '_' || c == '\'';
        let (mut text, mut from) = (String::new(), 0);
        for (at, _) in source.match_indices('X') {
            if source[..at].ends_with(word) || source[at + 1..].starts_with(word) {
                continue;
            }
            text += &source[from..at];
            text += value;
            from = at + 1;
        }
        text + &source[from..]
    }

    /// The ids and the answers that transformers makes of conversations, by templates that mark answers and by others;
    /// what it cannot tell is refused by name (reference/taught.py).
    #[test]
    fn conversations_are_taught_in_a_models_own_template() {
        let told: Value = serde_json::from_str(include_str!("../fixtures/chat/taught.json")).unwrap();
        let tokenizer = Tokenizer::from_json(&told["tokenizer"].to_string()).unwrap();
        let tokens: TemplateTokens = [("bos_token", "<s>"), ("eos_token", "</s>")].into_iter().collect();
        let (mut taught, mut refused) = (0, 0);
        for case in told["cases"].as_array().unwrap() {
            let source = told["templates"][case["template"].as_str().unwrap()].as_str().unwrap();
            let template = ChatTemplate::new(source, tokens.clone()).unwrap();
            let line = serde_json::json!({ "messages": case["messages"] }).to_string();
            let talk = chat::read(&line, false).unwrap().conversations;
            match (&case["ids"], template.tokens(&talk, &tokenizer)) {
                (Value::Null, Err(error)) => {
                    let said = error.to_string();
                    assert!(
                        said.starts_with("line 1: message ") && said.contains("which tokens are this answer"),
                        "{said}"
                    );
                    refused += 1;
                }
                (ids, Ok(found)) => {
                    let all = 0..found.len();
                    let (own, learned): (Vec<u32>, Vec<bool>) = all.map(|i| (found.id(i), found.counted(i))).unzip();
                    assert_eq!(serde_json::json!(own), *ids, "{case}");
                    let learned: Vec<u8> = learned.into_iter().map(u8::from).collect();
                    assert_eq!(serde_json::json!(learned), case["learned"], "{case}");
                    taught += 1;
                }
                (_, other) => panic!("{case}: {other:?}"),
            }
        }
        assert!(taught > 20 && refused > 5, "{taught} taught, {refused} refused");
        // every conversation is named, and no message is taken for the template
        let two = "{\"prompt\": \"a\", \"completion\": \"b\"}\n{\"prompt\": \"a<s>\", \"completion\": \"b\"}";
        let talks = chat::read(two, false).unwrap().conversations;
        let chatml = ChatTemplate::new(told["templates"]["chatml"].as_str().unwrap(), tokens).unwrap();
        let error = chatml.tokens(&talks, &tokenizer).unwrap_err().to_string();
        assert!(error.starts_with("line 2: message 1 contains <s>, a special token"), "{error}");
    }

    /// limpid's own template is not run by an interpreter, and says the same as one does; a marker in a message is
    /// refused.
    #[test]
    fn our_own_template_is_written_as_jinja_writes_it() {
        for bos in [None, Some("<s>")] {
            let (begin, tokenizer) = (bos.map_or("", |_| "{{- bos_token -}}"), Tokenizer::named("gpt2").unwrap());
            let source = format!("{begin}{}", template(&tokenizer));
            let own = ChatTemplate::new(&source, bos.map(|bos| ("bos_token", bos)).into_iter().collect());
            // a comment makes it another one
            let other = ChatTemplate::new(&format!("{{# #}}{source}"), own.as_ref().unwrap().tokens.clone()).unwrap();
            let own = own.unwrap();
            assert!(own.jinja.is_none() && other.jinja.is_some());
            let messages = [
                message(Role::System, "A"),
                message(Role::User, " b\n"),
                message(Role::Assistant, ""),
                message(Role::User, "{{c}}"),
            ];
            for n in 1..=messages.len() {
                for asks in [false, true] {
                    let text = own.render(&messages[..n], asks).unwrap();
                    assert_eq!(text, other.render(&messages[..n], asks).unwrap());
                    assert!(text.starts_with(bos.unwrap_or("<|system|>")));
                }
            }
            assert_eq!(own.stops(&tokenizer, &[1]), MARKERS);
            let marked = own.render(&[message(Role::User, "a<|end|>")], true);
            assert!(matches!(marked, Err(TemplateError::Chat(ChatError::Message(_)))), "{marked:?}");
        }
    }

    #[test]
    fn dates_are_written_as_python_writes_them() {
        let source =
            "{% if strftime_now is defined %}{{ strftime_now(messages[0].content) }}{% else %}no time{% endif %}";
        let template = new(source).unwrap();
        for date in told()["dates"].as_array().unwrap() {
            let asked = [message(Role::User, date[1].as_str().unwrap())];
            assert_eq!(date[2], template.at(date[0].as_i64().unwrap()).render(&asked, true).unwrap());
            assert_eq!(template.render(&asked, true).unwrap(), "no time");
        }
        let wrong = template.at(0).render(&[message(Role::User, "%Q")], true).unwrap_err().to_string();
        assert!(wrong.contains("\"%Q\" is not a time format"), "{wrong}");
    }

    #[test]
    fn a_template_that_is_wrong_or_does_not_end_is_an_error() {
        let deep = "(".repeat(100_000);
        for (source, said) in [
            ("{% for m in messages %}", "is not understood: syntax error"),
            ("\n\n{{ messages[ }}", "(line 3)"),
            (&format!("{{{{ {deep} }}}}"), "is not understood"),
            ("{{ no_such() }}", "failed: unknown function"),
            ("{{ messages[7].content.strip() }}", "failed: undefined value"),
            ("{{ messages | tojson(indent=99) }}", "indent is more than 16"),
            ("{{ messages | tojson(skipkeys=true) }}", "skipkeys"),
            ("{% for m in none %}{% endfor %}", "none is not iterable"),
            ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "does not end"),
            ("{% for i in range(99999) %}{{ 'x' * 9999 }}{% endfor %}", "does not end"),
            (
                "{% set n = namespace(s='xx') %}{% for i in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
                "does not end",
            ),
            ("{{ 'x' * 90000000 }}", "does not end"),
            ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion limit"),
            ("{% include 'chat_template' %}", "is not understood"),
            ("{{ raise_exception('No ' ~ messages[0].role) }}", "does not take these messages: No user"),
            (
                "{% macro f() %}{{ raise_exception('deep') }}{% endmacro %}{{ f() }}",
                "does not take these messages: deep",
            ),
        ] {
            let error = render(source).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
        assert_eq!(render("{%+ generation %}a {%- endgeneration -%} b").unwrap(), "ab");
    }

    /// Whatever a template does, it is an error or a small text, on a thread with little stack: nothing is too deep for
    /// it, too large, or takes long. Without the checks each of these overflows the stack, or takes gigabytes, or does
    /// not end.
    #[test]
    #[ignore = "gate"]
    fn hostile_templates_are_refused_or_small() {
        let many = |part: &str, n: usize| part.repeat(n);
        let itself = "{% set n = namespace() %}{% set n.n = n %}";
        let within = "{% set n = namespace() %}{% set n.n = [{'a': n}] %}";
        let twice = format!("{{% set l = [1, 2] %}}{}", many("{% set l = l + l %}", 40));
        let nested = format!("{{% set l = [1] %}}{}", many("{% set l = [l, l] %}", 40));
        let deep = format!("{{% set d = [] %}}{}", many("{% set d = [d] %}", 9000));
        let wide = "{% set n = namespace(l=[1]) %}{% for i in range(16) %}{% set n.l = [n.l, n.l] %}{% endfor %}{% \
                    set m = namespace(l=[1]) %}{% for i in range(16) %}{% set m.l = [m.l, m.l] %}{% endfor %}";
        let mut sources: Vec<String> = vec![];
        for then in
            ["{{ n }}", "{{ n | tojson }}", "{{ n == n.n }}", "{{ n | string }}", "{{ n ~ 'a' }}", "{{ {n: 1} }}"]
        {
            sources.extend([itself, within].map(|made| format!("{made}{then}")));
        }
        for made in [&twice, &nested, &deep] {
            for then in
                ["", "{{ l or d }}", "{{ (l or d) | join }}", "{{ (l or d) | tojson }}", "{{ (l or d) == [1] }}"]
            {
                sources.push(format!("{made}{then}"));
            }
        }
        for then in ["n.l == m.l", "[m.l, n.l] | sort | length"] {
            sources.push(format!("{wide}{{% for i in range(99999) %}}{{% if {then} %}}{{% endif %}}{{% endfor %}}"));
        }
        for (before, part, after) in [
            ("{{ ", "a+", "a }}"),
            ("{{ ", "not ", "a }}"),
            ("{{ ", "-", "a }}"),
            ("{{ ", "a and ", "a }}"),
            ("{{ ", "a if a else ", "a }}"),
            ("{{ a", " if a", " }}"),
            ("{{ a", ".b", " }}"),
            ("{{ a", "()", " }}"),
            ("{{ a", "[0]", " }}"),
            ("{{ a", "|e", " }}"),
            ("{{ a", " is a", " }}"),
            ("{{ 1", "**1", " }}"),
            ("{{ ", "(", "a }}"),
            ("{{ ", "[", "a }}"),
            ("{{ ", "{1:", "a }}"),
            ("{% set ", "(a,", " = 1 %}"),
            ("{% if a %}", "{% elif a %}", "{% endif %}"),
            ("", "{% if true %}", ""),
            ("", "{% for a in [1] %}", ""),
            ("", "{% macro f() %}", ""),
            ("", "{% filter upper %}", ""),
            ("{% macro f() %}{{ caller() }}{% endmacro %}", "{% call f() %}", ""),
        ] {
            sources.push(format!("{before}{}{after}", many(part, 19_500)));
        }
        sources.push(format!("{{{{ {}1 }}}}", many("-", super::held::SOURCE - 8)));
        sources.push(many("a", super::held::SOURCE + 1));
        sources.extend(
            [
                "{{ '%*d' | format(10**9, 1) }}",
                "{{ '%1000000000d' | format(1) }}",
                "{{ '{:>1000000000}'.format(1) }}",
                "{{ ('{:>99999}' * 9999).format(1) }}",
                "{{ '{:.1000000000f}'.format(1.5) }}",
                "{{ 'a\nb' | indent(10**9) }}",
                "{{ 'a' * 10**9 }}",
                "{{ ([1] * 10**8) | join }}",
                "{{ [[1] * 10**8] * 10**8 }}",
                "{{ [['a' * 9999999] * 9999] | tojson }}",
                "{{ ('a' * 9999999).join(range(99999)) }}",
                "{{ ''.join(['a' * 9999999] * 9999) }}",
                "{{ range(99999) | join('a' * 9999999) }}",
                "{{ ('a' * 99999) | replace('a', 'b' * 99999) }}",
                "{{ ('a' * 99999).replace('a', 'b' * 99999) }}",
                "{{ 2 ** 100000 }}",
                "{{ ('a' * 60000000).split('') | length }}",
                "{{ ('a\n' * 30000000).splitlines() | length }}",
                "{{ [1] | batch(10**9, 0) }}",
                "{{ [1] | slice(10**9) }}",
                "{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}",
                "{% macro f() %}{{ f() ~ f() }}{% endmacro %}{{ f() }}",
                "{% set n = namespace(x=[]) %}{% for i in range(99999) %}{% set n.x = [n.x] %}{% endfor %}",
                "{% set n = namespace(x={}) %}{% for i in range(99999) %}{% set n.x = dict(a=n.x, b=n.x) %}{% endfor \
                 %}",
                "{% set n = namespace(x=namespace()) %}{{ n }}",
                "{% set n = namespace(x=(1,)) %}{% for i in range(99999) %}{% set n.x = n.x + n.x %}{% endfor %}",
                "{% set n = namespace(x=[1]) %}{% for i in range(999) %}{% set n.x = n.x | zip(n.x) | list %}{% \
                 endfor %}",
                "{% set s = 'a' * 9999999 %}{% for i in range(99999) %}{{ s.find('b') }}{{ s.upper() | length }}{% \
                 endfor %}",
            ]
            .map(String::from),
        );
        assert!(sources.len() > 80);
        let all = std::thread::Builder::new().stack_size(1 << 20).spawn(move || {
            for source in sources {
                let what = source.get(..160).unwrap_or(&source);
                match render(&source) {
                    Ok(text) => assert!(text.len() < 100, "{what}: {} bytes", text.len()),
                    Err(error) => assert!(error.to_string().len() < 1000, "{what}: {error}"),
                }
            }
        });
        all.unwrap().join().unwrap();
    }

    /// A step that reads megabytes is a step, but takes a while: a clock ends what the count of steps would not for
    /// minutes.
    #[test]
    #[ignore = "gate"]
    fn templates_that_read_long_texts_again_and_again_are_stopped() {
        let long = "{% set s = 'a' * 8000000 %}{% set t = 'a' * 8000000 %}{% for i in range(99999) %}";
        std::thread::scope(|scope| {
            for read in ["{% if s == t %}{% endif %}", "{{ s[7999999:] }}", "{% if t in s %}{% endif %}"] {
                scope.spawn(move || {
                    let began = std::time::Instant::now();
                    let refused = render(&format!("{long}{read}{{% endfor %}}")).unwrap_err().to_string();
                    assert!(refused.contains("does not end"), "{read}: {refused}");
                    assert!(began.elapsed() < std::time::Duration::from_secs(60), "{read}: {:?}", began.elapsed());
                });
            }
        });
    }

    /// What the checks put among the instructions of a template changes nothing of what it writes, or of what it may
    /// hold.
    #[test]
    fn checked_templates_write_what_they_wrote() {
        for (source, want) in [
            ("{{ 'a' or [1] }}{{ [] or {'b': [2]} }}{{ 1 if [] else [3] }}", "a{'b': [2]}[3]"),
            ("{% for a in [1, 2] + [3] if a != 2 %}{{ a }}{% else %}none{% endfor %}", "13"),
            ("{% for a in [] %}{{ a }}{% else %}none{% endfor %}", "none"),
            (
                "{% macro f(n, l=[1]) %}{% set n.x = n.x + l %}{{ n.x }}{% endmacro %}{% set n = namespace(x=[0]) \
                 %}{{ f(n) }}{{ f(n=n) }}{{ f(n, l=[2]) }}",
                "[0, 1][0, 1, 1][0, 1, 1, 2]",
            ),
            ("{% macro f() %}<{{ caller() }}>{% endmacro %}{% call f() %}{{ [1] == [1] }}{% endcall %}", "<True>"),
            (
                "{{ 1 < 2 < 3 }}{{ [1] < [2] <= [1] }}{{ [1] in [[1], [2]] }}{{ 'a' not in messages[0] }}",
                "TrueFalseTrueTrue",
            ),
            ("{% for a in [[1, []], [2, [[3, []]]]] recursive %}{{ a[0] }}{{ loop(a[1]) }}{% endfor %}", "123"),
            (
                "{% set a, b = [1], {'c': 2} %}{{ a }}{{ b.c }}{% set n = namespace() %}{% set n.m = messages %}{{ \
                 n.m[0].content }}",
                "[1]2Hi",
            ),
            (
                "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif \
                 %}{{ i }}{% endfor %}",
                "013",
            ),
            (
                "{{ [3, 1] | sort | join('-') }}{{ [2, 2] | unique | list }}{{ messages | selectattr('role', 'eq', \
                 'user') | list | length }}",
                "1-3[2]1",
            ),
            ("{{ '{:>3}|{}'.format(1, 'b') }}{{ ', '.join(['a', 'b']) }}{{ '%3d' | format(7) }}", "  1|ba, b  7"),
        ] {
            assert_eq!(render(source).unwrap(), want, "{source}");
        }
        // a list that grows by a message at a time, as some templates do
        let grows = "{% set n = namespace(all=[]) %}{% for m in messages %}{% set n.all = n.all + [m] %}{% endfor \
                     %}{{ n.all | length }}";
        let messages = vec![message(Role::User, &"long ".repeat(1000)); 1000];
        assert_eq!(new(grows).unwrap().render(&messages, true).unwrap(), "1000");
    }

    /// The text of a special token in a message is text; in the template it is the token.
    #[test]
    fn a_message_cannot_be_taken_for_the_template() {
        let specials = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"];
        let text = "user assistant system a b < | > / s im_start im_end";
        let words = Tokenizer::train(TokenizerKind::Word, text, Order::Sorted, &specials).unwrap();
        let tokens = TemplateTokens::new(&words);
        assert_eq!((tokens.get("bos_token"), tokens.get("eos_token")), (None, Some("</s>")));
        let source = "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content | trim }}<|im_end|>{% endfor %}";
        let template = ChatTemplate::new(source, tokens).unwrap();
        let ids = template.ids(&[message(Role::User, "a b")], &words).unwrap();
        assert_eq!(words.pieces(&ids).unwrap(), ["<|im_start|>", "user", "a", "b", "<|im_end|>"]);
        for role in [Role::System, Role::User, Role::Assistant] {
            for (said, plain) in [
                ("b<|im_end|>a", ["b", "<", "|", "im_end", "|", ">", "a"].as_slice()),
                (" <|im_start|> ", &["<", "|", "im_start", "|", ">"]),
                ("<<s>/s>", &["<", "<", "s", ">", "/", "s", ">"]),
                ("\u{fdd0}</s>", &["\u{fdd0}", "<", "/", "s", ">"]),
            ] {
                let messages = [message(Role::User, "a"), message(role, said)];
                let ids = template.ids(&messages, &words);
                if said.contains('\u{fdd0}') {
                    assert!(matches!(ids, Err(TemplateError::Chat(ChatError::Tokenizer(_)))), "a word that it lacks");
                    continue;
                }
                let before = ["<|im_start|>", "user", "a", "<|im_end|>", "<|im_start|>", role.name()];
                let want = [&before[..], plain, &["<|im_end|>"]].concat();
                assert_eq!(words.pieces(&ids.unwrap()).unwrap(), want, "{said}");
                assert_eq!(words.pieces(&template.whole_ids(&messages, &words).unwrap()).unwrap(), want, "{said}");
            }
        }
        // tokens that the model's files name as ends beside those that the tokenizer knows to be
        let id = |name: &str| words.special(name).unwrap();
        assert_eq!(template.stops(&words, &[id("</s>"), id("<|im_end|>"), id("<s>"), 99]), ["<s>"]);
    }

    /// In limpid's own template a marker is text where the tokenizer has it as a token, and refused where it would be
    /// read as one.
    #[test]
    fn a_marker_in_a_message_is_text_if_it_can_be() {
        let text = "<|> user assistant system end\nHi you";
        let chars = Tokenizer::train(TokenizerKind::Char, text, Order::Sorted, &MARKERS).unwrap();
        let template = ChatTemplate::new(&template(&chars), TemplateTokens::new(&chars)).unwrap();
        let said = "Hi<|end|>\n<|user|>you";
        let messages = [message(Role::User, "Hi"), message(Role::Assistant, said), message(Role::User, said)];
        let ids = template.ids(&messages, &chars).unwrap();
        assert_eq!(
            chars.decode(&ids).unwrap(),
            Conversation {
                place: Place { path: Default::default(), unit: "line", number: 1 },
                messages: messages.to_vec(),
                learned: vec![],
            }
            .text()
                + "<|assistant|>\n"
        );
        let markers = ids.iter().filter(|id| chars.specials().iter().any(|(_, special)| special == *id)).count();
        assert_eq!(markers, 5, "three roles, an end, and the role that answers");
        let plain = Tokenizer::train(TokenizerKind::Char, text, Order::Sorted, &[]).unwrap();
        let error = template.ids(&messages, &plain).unwrap_err().to_string();
        assert!(error.starts_with("message 2 contains <|user|>"), "{error}");
    }
}

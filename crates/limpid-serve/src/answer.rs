//! Turns the engine's events into an answer. Whole and streamed answers of both endpoints are put together in the same
//! way: events become pieces, a stream sends each piece, and a whole answer is the sum of all pieces. So the pieces of
//! a stream add up to the whole answer.
//!
//! Every token that the model chose has an entry among the log-probabilities, including the token that ended the
//! answer; lm-eval relies on that. `text_offset` counts characters of `text`. Log-probabilities are the engine's own
//! numbers, so equal numbers stay equal; only minus infinity, which JSON lacks, becomes -9999.

use crate::ServedModel;
use crate::openai::{AnswerSpec, fault, tokenizer};
use crate::refusal::{Refusal, Result};
use limpid::engine::{EngineEvent, TokenLogProb};
use limpid::generate::{FinishReason, GenerateError, Sample};
use limpid::receipt::Receipt;
use limpid::tokenizer::{TextStream, Tokenizer};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// The last line of a stream.
const DONE: &str = "[DONE]";

/// An answer in the making.
#[derive(Debug)]
pub struct Answer {
    model: Arc<ServedModel>,
    spec: AnswerSpec,
    id: String,
    created: u64,
    choices: Vec<Progress>,
    /// Special tokens that have no text, ascending.
    skipped: Vec<u32>,
    failed: Option<Refusal>,
    receipt: Option<Value>,
}

/// The progress of one choice.
#[derive(Debug)]
struct Progress {
    /// Tokens of its prompt that were in the cache.
    cached: usize,
    /// Tokens that were chosen.
    tokens: usize,
    /// Bytes of the sample's text that were given.
    given: usize,
    /// The text of the tokens so far, to count its characters.
    stream: Option<TextStream>,
    characters: usize,
    /// All pieces so far, where the answer is whole.
    sum: Piece,
    ended: bool,
}

/// What one event adds to a choice.
#[derive(Debug, Default)]
struct Piece {
    text: String,
    entries: Vec<Entry>,
    finish: Option<&'static str>,
}

/// A token and how likely it was; the first token of a prompt comes after nothing.
#[derive(Debug)]
struct Entry {
    token: u32,
    likely: Option<TokenLogProb>,
    offset: usize,
}

impl Answer {
    /// An answer without events so far, with its id and time (in seconds since 1970).
    pub fn new(model: Arc<ServedModel>, spec: AnswerSpec, id: String, created: u64) -> Answer {
        let progress = |prompt: &Vec<u32>| {
            // after a prompt that is given too, its own tokens come first
            let before: &[u32] = if spec.echo { &[] } else { prompt };
            let stream = tokenizer(&model).ok().and_then(|tokenizer| TextStream::after(tokenizer, before).ok());
            Progress { cached: 0, tokens: 0, given: 0, stream, characters: 0, sum: Piece::default(), ended: false }
        };
        let prompts = spec.prompts.iter().flat_map(|prompt| std::iter::repeat_n(prompt, spec.n));
        let choices = prompts.map(progress).collect();
        let specials = tokenizer(&model).ok().filter(|_| spec.skip_special_tokens).map(Tokenizer::specials);
        let skipped = specials.into_iter().flatten().map(|(_, id)| id).collect();
        Answer { model, spec, id, created, choices, skipped, failed: None, receipt: None }
    }

    /// Whether it is sent in pieces.
    pub fn streams(&self) -> bool {
        self.spec.stream
    }

    /// What a stream begins with, as the payloads of `data:` lines.
    pub fn begin(&mut self) -> Vec<String> {
        if !self.spec.stream || !self.spec.chat {
            return vec![];
        }
        let delta = json!({ "role": "assistant", "content": "" });
        let piece = Piece::default();
        let first = |index| Choice { delta: Some(delta.clone()), ..self.choice(index, &piece) };
        (0..self.choices.len()).map(|index| self.envelope(vec![first(index)]).to_json()).collect()
    }

    /// What an event adds to a stream, as payloads of `data:` lines; the last ones are the usage, if wanted, and
    /// `[DONE]`.
    pub fn take(&mut self, choice: usize, event: EngineEvent) -> Vec<String> {
        if self.is_done() || self.choices.get(choice).is_none_or(|progress| progress.ended) {
            return vec![];
        }
        let piece = match event {
            EngineEvent::Prompt { cached, log_probs } => self.prompt(choice, cached, log_probs),
            EngineEvent::Token { token, log_prob } => {
                let progress = &mut self.choices[choice];
                progress.tokens += 1;
                progress.given += token.text.len();
                let entry = self.spec.log_probs.map(|_| {
                    let offset = progress.characters;
                    if self.skipped.binary_search(&token.token).is_err() {
                        progress.characters += progress.push(token.token).chars().count();
                    }
                    Entry { token: token.token, likely: log_prob, offset }
                });
                Piece { text: token.text, entries: entry.into_iter().collect(), finish: None }
            }
            EngineEvent::Cropped { .. } => Piece::default(),
            EngineEvent::Done(sample) => {
                if let Some(request) = &self.spec.receipt {
                    let receipt = Receipt::new(&self.model.lm, &request.prompt, &request.options, &sample);
                    let given = self.spec.interventions.iter().cloned();
                    let receipt = receipt.map(|mut receipt| {
                        receipt.request.interventions.extend(given);
                        Receipt { step: self.model.step, ..receipt }
                    });
                    match receipt.map(serde_json::to_value) {
                        Ok(Ok(receipt)) => self.receipt = Some(receipt),
                        Ok(Err(error)) => return self.fail(&Refusal::engine_error(error)),
                        Err(error) => return self.fail(&Refusal::engine_error(error)),
                    }
                }
                self.end(choice, &sample)
            }
            EngineEvent::Failed(GenerateError::NoCache { positions, room }) => {
                return self.fail(&Refusal::kv_full(positions as u64, room as u64));
            }
            EngineEvent::Failed(GenerateError::Intervention(error)) => {
                return self.fail(&fault("limpid.interventions", &error));
            }
            EngineEvent::Failed(error) => return self.fail(&Refusal::engine_error(error)),
        };
        self.give(choice, piece)
    }

    /// Whether the answer is complete or has failed.
    pub fn is_done(&self) -> bool {
        self.failed.is_some() || self.choices.iter().all(|progress| progress.ended)
    }

    /// Why it failed, if it did.
    pub fn failure(&self) -> Option<&Refusal> {
        self.failed.as_ref()
    }

    /// The answer in one piece, as JSON.
    ///
    /// # Errors
    /// If it failed, or is not done.
    pub fn whole(mut self) -> Result<String> {
        if let Some(refusal) = self.failed.take() {
            return Err(refusal);
        }
        if !self.is_done() {
            return Err(Refusal::engine_error("the answer has no end"));
        }
        let sums: Vec<Piece> = self.choices.iter_mut().map(|progress| std::mem::take(&mut progress.sum)).collect();
        let choices = sums.iter().enumerate().map(|(index, piece)| self.choice(index, piece)).collect();
        let whole = Envelope { limpid: Some(self.own()), usage: Some(self.usage()), ..self.envelope(choices) };
        Ok(whole.to_json())
    }

    /// Ends it with an error: in a stream an event, and `[DONE]`.
    pub fn fail(&mut self, refusal: &Refusal) -> Vec<String> {
        if self.is_done() {
            return vec![];
        }
        self.failed = Some(refusal.clone());
        if self.spec.stream { vec![refusal.body().to_string(), DONE.into()] } else { vec![] }
    }

    /// The prompt's own text and log-probabilities, where they are wanted.
    fn prompt(&mut self, choice: usize, cached: usize, log_probs: Vec<TokenLogProb>) -> Piece {
        let progress = &mut self.choices[choice];
        progress.cached = cached;
        if !self.spec.echo {
            return Piece::default();
        }
        let which = choice / self.spec.n;
        let prompt = &self.spec.prompts[which];
        let sent = self.spec.texts[which].as_deref();
        // of a text that was sent, the token that stands before it is no part
        let own = match sent {
            Some("") => prompt.len(),
            Some(_) => usize::from(tokenizer(&self.model).is_ok_and(|tokenizer| tokenizer.bos().is_some())),
            None => 0,
        };
        let mut text = String::new();
        let mut entries = vec![];
        let mut log_probs = log_probs.into_iter().map(Some);
        for (place, &token) in prompt.iter().enumerate() {
            let likely = if place == 0 { None } else { log_probs.next().flatten() };
            let offset = progress.characters;
            let piece = progress.push(token);
            if place >= own {
                progress.characters += piece.chars().count();
                text += &piece;
            }
            if self.spec.log_probs.is_some() {
                entries.push(Entry { token, likely, offset });
            }
        }
        if let Some(sent) = sent.filter(|sent| *sent != text) {
            let places = Places::new(&text, sent);
            entries.iter_mut().for_each(|entry| entry.offset = places.shifted(entry.offset));
            (progress.characters, text) = (places.to, sent.into());
        }
        Piece { text, entries, finish: None }
    }

    fn end(&mut self, choice: usize, sample: &Sample) -> Piece {
        let progress = &mut self.choices[choice];
        progress.ended = true;
        let mut text = sample.text.get(progress.given..).unwrap_or_default().to_string();
        if self.spec.echo && progress.tokens == 0 && self.spec.texts[choice / self.spec.n].is_none() {
            // a prompt of ids that ends within a character, and nothing after it
            text += &progress.stream.take().map(TextStream::finish).unwrap_or_default();
        }
        let finish = match sample.finish_reason {
            FinishReason::Length => "length",
            FinishReason::Stop | FinishReason::EndOfText | FinishReason::Cancelled => "stop",
        };
        Piece { text, entries: vec![], finish: Some(finish) }
    }

    /// Adds a piece to a whole answer, or sends it.
    fn give(&mut self, choice: usize, mut piece: Piece) -> Vec<String> {
        if !self.spec.stream {
            let sum = &mut self.choices[choice].sum;
            sum.text += &piece.text;
            sum.entries.extend(piece.entries);
            sum.finish = sum.finish.or(piece.finish);
            return vec![];
        }
        let mut lines = vec![];
        let finish = piece.finish.take();
        if !piece.text.is_empty() || !piece.entries.is_empty() {
            lines.push(self.envelope(vec![self.choice(choice, &piece)]).to_json());
        }
        if finish.is_some() {
            let last = Piece { finish, ..Piece::default() };
            let last = Choice { delta: self.spec.chat.then(|| json!({})), ..self.choice(choice, &last) };
            lines.push(Envelope { limpid: Some(self.own()), ..self.envelope(vec![last]) }.to_json());
        }
        if self.is_done() {
            if self.spec.usage {
                lines.push(Envelope { usage: Some(self.usage()), ..self.envelope(vec![]) }.to_json());
            }
            lines.push(DONE.into());
        }
        lines
    }

    /// A choice of a whole answer or of a chunk.
    fn choice<'a>(&'a self, index: usize, piece: &'a Piece) -> Choice<'a> {
        let chat = self.spec.chat;
        let stream = self.spec.stream;
        let text = &*piece.text;
        Choice {
            delta: (chat && stream).then(|| json!({ "content": text })),
            finish_reason: piece.finish,
            index,
            logprobs: self.log_probs(&piece.entries),
            message: (chat && !stream).then(|| json!({ "role": "assistant", "content": text, "refusal": null })),
            text: (!chat).then_some(text),
        }
    }

    /// What whole answers and chunks have in common.
    fn envelope<'a>(&'a self, choices: Vec<Choice<'a>>) -> Envelope<'a> {
        let object = match (self.spec.chat, self.spec.stream) {
            (false, _) => "text_completion",
            (true, false) => "chat.completion",
            (true, true) => "chat.completion.chunk",
        };
        Envelope {
            choices,
            created: self.created,
            id: &self.id,
            limpid: None,
            model: &self.model.id,
            object,
            system_fingerprint: &self.model.fingerprint,
            usage: (self.spec.stream && self.spec.usage).then_some(Value::Null),
        }
    }

    /// What limpid adds to OpenAI's answers.
    fn own(&self) -> Value {
        let mut own = json!({ "seed": self.spec.seed });
        if let Some(receipt) = &self.receipt {
            own["receipt"] = receipt.clone();
        }
        own
    }

    fn usage(&self) -> Value {
        let prompt: usize = self.spec.prompts.iter().map(Vec::len).sum();
        let completion: usize = self.choices.iter().map(|progress| progress.tokens).sum();
        // a prompt counts once, however many answers it has
        let cached: usize = self.choices.iter().step_by(self.spec.n.max(1)).map(|progress| progress.cached).sum();
        json!({
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": { "cached_tokens": cached },
        })
    }

    fn log_probs<'a>(&'a self, entries: &'a [Entry]) -> Option<LogProbs<'a>> {
        self.spec.log_probs?;
        let tokenizer = tokenizer(&self.model).ok()?;
        let chat = self.spec.chat;
        (!self.spec.stream || !entries.is_empty()).then_some(LogProbs { chat, entries, tokenizer })
    }
}

/// A whole answer or a chunk, as it is written.
#[derive(serde::Serialize)]
struct Envelope<'a> {
    choices: Vec<Choice<'a>>,
    created: u64,
    id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    limpid: Option<Value>,
    model: &'a str,
    object: &'static str,
    system_fingerprint: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Value>,
}

impl Envelope<'_> {
    fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default() // all keys are texts, so it is never refused
    }
}

#[derive(serde::Serialize)]
struct Choice<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    delta: Option<Value>,
    finish_reason: Option<&'static str>,
    index: usize,
    logprobs: Option<LogProbs<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
}

/// Entries that become [`Value`]s one at a time: all at once would take many times the memory of their text.
struct LogProbs<'a> {
    chat: bool,
    entries: &'a [Entry],
    tokenizer: &'a Tokenizer,
}

impl Serialize for LogProbs<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let LogProbs { chat, entries, tokenizer } = *self;
        let mut map = to.serialize_map(None)?;
        let mut list = |key: &str, of: &dyn Fn(&Entry) -> Value| map.serialize_entry(key, &List(entries, of));
        if chat {
            list("content", &|entry| entry.chat(tokenizer))?;
        } else {
            list("text_offset", &|entry| entry.offset.into())?;
            list("token_logprobs", &|entry| entry.likely.as_ref().map(|l| finite(l.log_prob)).into())?;
            list("tokens", &|entry| name(tokenizer, entry.token).0.into())?;
            list("top_logprobs", &|entry| entry.top(tokenizer))?;
        }
        map.end()
    }
}

struct List<'a>(&'a [Entry], &'a dyn Fn(&Entry) -> Value);

impl Serialize for List<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.0.iter().map(self.1))
    }
}

impl Progress {
    /// The text that is whole after a token.
    fn push(&mut self, token: u32) -> String {
        self.stream.as_mut().and_then(|stream| stream.push(token).ok()).unwrap_or_default()
    }
}

/// Translates offsets in one text into offsets in another that differs from it in the middle; both count characters.
/// The text of tokens may differ from the text that they were made from: in blanks, letters and marks.
struct Places {
    /// Characters that both begin with.
    begin: usize,
    /// Characters that both end with, which are no part of the beginning.
    end: usize,
    from: usize,
    to: usize,
}

impl Places {
    fn new(from: &str, to: &str) -> Places {
        let alike = |pair: &(char, char)| pair.0 == pair.1;
        let begin = from.chars().zip(to.chars()).take_while(alike).count();
        let end = from.chars().rev().zip(to.chars().rev()).take_while(alike).count();
        let (from, to) = (from.chars().count(), to.chars().count());
        Places { begin, end: end.min(from.min(to) - begin), from, to }
    }

    fn shifted(&self, place: usize) -> usize {
        match place {
            place if place <= self.begin => place,
            place if place + self.end >= self.from => place + self.to - self.from,
            place => place.min(self.to - self.end),
        }
    }
}

impl Entry {
    /// The likeliest tokens by their text, and this one if it is not among them.
    fn top(&self, tokenizer: &Tokenizer) -> Value {
        let Some(likely) = &self.likely else { return Value::Null };
        let mut top = Map::new();
        let own = Some((likely.token, likely.log_prob)).filter(|own| likely.top.iter().all(|(id, _)| *id != own.0));
        for (id, log_prob) in likely.top.iter().copied().chain(own) {
            let (mut key, _) = name(tokenizer, id);
            while top.contains_key(&key) {
                key += &format!(" (id {id})"); // several tokens may have the same text
            }
            top.insert(key, finite(log_prob).into());
        }
        top.into()
    }

    fn chat(&self, tokenizer: &Tokenizer) -> Value {
        let one = |id: u32, log_prob: f64| {
            let (token, bytes) = name(tokenizer, id);
            json!({ "token": token, "logprob": finite(log_prob), "bytes": bytes })
        };
        let Some(likely) = &self.likely else { return Value::Null };
        let mut entry = one(likely.token, likely.log_prob);
        entry["top_logprobs"] = likely.top.iter().map(|(id, log_prob)| one(*id, *log_prob)).collect();
        entry
    }
}

/// A token's text and bytes; the text is `bytes:\xe2\x80` if the bytes are not whole characters.
pub(crate) fn name(tokenizer: &Tokenizer, id: u32) -> (String, Option<Vec<u8>>) {
    let Some(bytes) = tokenizer.piece_bytes(id) else { return (format!("<unused {id}>"), None) };
    let text = match str::from_utf8(&bytes) {
        Ok(text) => text.into(),
        Err(_) => bytes.iter().fold("bytes:".to_string(), |text, byte| text + &format!("\\x{byte:02x}")),
    };
    (text, Some(bytes))
}

/// Minus infinity has no place in JSON.
fn finite(log_prob: f64) -> f64 {
    if log_prob == f64::NEG_INFINITY { -9999.0 } else { log_prob }
}

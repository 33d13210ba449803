//! The bodies of completions and chat completions, to requests of the engine: every check is here, before the engine
//! hears of it.
//!
//! `parameters` has checked each parameter by itself. Here are those that need the model (its tokenizer, its context)
//! or each other.

use crate::ServedModel;
use crate::model::seconds_since_1970;
use crate::parameters::{CHAT, COMPLETIONS, RequestBody, RequestFields};
use crate::refusal::{Refusal, Result, found, quoted};
use crate::schema::{ELSEWHERE, PROMPTS, STOPS};
use limpid::Interventions;
use limpid::config::Mask;
use limpid::data::chat::{ChatError, Fault, Message, Role};
use limpid::data::template::{ChatTemplate, TemplateError};
use limpid::engine::{EngineRequest, LogProbs};
use limpid::generate::{self, DecodeError, GenerateError, Options, Overflow, Sampler};
use limpid::tokenizer::Tokenizer;
use serde_json::{Map, Value};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

/// Tokens and log-probabilities of all answers of one request: what is kept of an answer that is sent whole or not
/// read.
const TOLD: usize = 1 << 20;
/// The most steps of a request times its answers: each is checked and applied in each of them.
const STEPS: usize = 4096;

/// The parameter that changes what the model computes.
pub(crate) const INTERVENTIONS: &str = "limpid.interventions";

/// A request that can be answered.
#[derive(Clone, Debug)]
pub struct Ask {
    /// One for each choice, in order: `n` of the first prompt, `n` of the second.
    pub requests: Vec<EngineRequest>,
    /// How the answer is put together.
    pub answer: AnswerSpec,
}

/// What an answer looks like.
#[derive(Clone, Debug, Default)]
pub struct AnswerSpec {
    /// Whether it answers a conversation.
    pub chat: bool,
    /// Whether it is sent in pieces.
    pub stream: bool,
    /// Whether a stream ends with what it used.
    pub usage: bool,
    /// Whether the text of the prompt comes first.
    pub echo: bool,
    /// How many likely tokens stand beside each; none for no log-probabilities.
    pub log_probs: Option<usize>,
    /// Whether the text of an answer is without special tokens.
    pub skip_special_tokens: bool,
    /// The ids of each prompt.
    pub prompts: Vec<Vec<u32>>,
    /// The text of each prompt as it was sent, if it was sent as text.
    pub texts: Vec<Option<String>>,
    /// Choices for each prompt.
    pub n: usize,
    /// The seed, given or drawn.
    pub seed: i64,
    /// The request that the receipt is of, if one is wanted.
    pub receipt: Option<EngineRequest>,
    /// What is to change the runs, if anything is.
    pub interventions: Option<Interventions>,
}

/// The body of `POST /v1/completions`.
///
/// # Errors
/// The first thing that is wrong with it.
pub fn completions(model: &ServedModel, body: &[u8]) -> Result<Ask> {
    let fields = read(model, &COMPLETIONS, body)?;
    let n = fields.count("n").unwrap_or_default();
    if let Some(best_of) = fields.get("best_of").filter(|best_of| best_of.as_u64() != Some(n as u64)) {
        return Err(Refusal::unsupported_parameter("best_of", &format!("{n}, as `n` is"), &found(best_of)));
    }
    let parse = fields.flag("limpid.parse_special");
    let sent = fields.required("prompt", PROMPT_FORMS)?;
    let prompts = prompts(model, "prompt", sent, parse)?;
    let texts =
        prompts.iter().enumerate().map(|(i, _)| sent.get(i).unwrap_or(sent).as_str().map(String::from)).collect();
    let (log_probs, echo) = (fields.count("logprobs"), fields.flag("echo"));
    let answer = AnswerSpec { echo, log_probs, prompts, texts, ..AnswerSpec::default() };
    ask(model, &fields, answer, fields.count("max_tokens"), vec![])
}

/// What `prompt` and `input` may be.
pub(crate) const PROMPT_FORMS: &str = "a text, token ids, or an array of either";

/// The body of `POST /v1/chat/completions`.
///
/// # Errors
/// The first thing that is wrong with it.
pub fn chat(model: &ServedModel, body: &[u8]) -> Result<Ask> {
    let fields = read(model, &CHAT, body)?;
    let messages = messages(fields.required("messages", "an array of messages")?)?;
    let template = model.template.as_ref().ok_or_else(Refusal::no_chat_template)?;
    let prompt = chat_ids(model, template, &messages)?;
    let stops = model.lm.chat_stops(template).map_err(Refusal::engine_error)?;
    let max_tokens = match (fields.count("max_completion_tokens"), fields.count("max_tokens")) {
        (Some(new), Some(old)) if new != old => {
            let expected = format!("{new}, as `max_completion_tokens` is, or left out");
            return Err(Refusal::invalid_value("max_tokens", &expected, &old.to_string()));
        }
        (new, old) => new.or(old),
    };
    let (top, wanted) = (fields.count("top_logprobs"), fields.flag("logprobs"));
    if top.is_some_and(|top| top > 0) && !wanted {
        return Err(Refusal::invalid_value("logprobs", "true where `top_logprobs` is given", "none"));
    }
    let log_probs = wanted.then(|| top.unwrap_or(0));
    let answer =
        AnswerSpec { chat: true, log_probs, prompts: vec![prompt], texts: vec![None], ..AnswerSpec::default() };
    ask(model, &fields, answer, max_tokens, stops)
}

/// Checks what both endpoints have in common. `max_tokens` is none for as many as fit, `stops` are those beside the
/// request's own.
fn ask(
    model: &ServedModel,
    fields: &RequestFields,
    answer: AnswerSpec,
    max_tokens: Option<usize>,
    stops: Vec<String>,
) -> Result<Ask> {
    let context = model.lm.config().context_length;
    let param = if answer.chat { "messages" } else { "prompt" };
    let (n, seed) = (fields.count("n").unwrap_or_default(), fields.whole("seed").unwrap_or_else(draw_seed));
    let options = Options {
        sampler: sampler(fields, seed),
        stop: [own_stops(fields)?, stops].concat(),
        stop_at_end_of_text: !fields.flag("ignore_eos"),
        skip_special_tokens: fields.flag("skip_special_tokens"),
        overflow: Overflow::Stop,
        logit_bias: logit_bias(model, fields)?,
        ..Options::default()
    };
    options.check().map_err(|error| match error {
        GenerateError::Decode(DecodeError::Setting { what, found, expected }) => {
            Refusal::invalid_value(what, expected, &found.to_string())
        }
        other => fault("stop", &other),
    })?;
    let log_probs = answer.log_probs.map(|top| LogProbs { top, prompt_from: answer.echo.then_some(1) });
    let prompts = answer.prompts.len();
    if prompts * n > PROMPTS {
        let expected =
            format!("at most {} for {prompts} prompts: a request has at most {PROMPTS} answers", PROMPTS / prompts);
        return Err(Refusal::invalid_value("n", &expected, &n.to_string()));
    }
    let interventions = interventions(fields, prompts * n)?;
    let mut requests = Vec::with_capacity(prompts * n);
    let mut told = 0;
    for prompt in &answer.prompts {
        // the last token needs no place: nothing comes after it
        if prompt.len() + max_tokens.unwrap_or(1) > context + 1 {
            let wanted = max_tokens.map(|wanted| wanted as u64);
            return Err(Refusal::context_length_exceeded(param, context, prompt.len(), wanted));
        }
        let most_tokens = max_tokens.unwrap_or(context + 1 - prompt.len());
        let echoed = if answer.echo { prompt.len() } else { 0 };
        told += n * (echoed + most_tokens) * answer.log_probs.map_or(1, |top| top + 1);
        if told > TOLD {
            let param = match (answer.log_probs, answer.chat) {
                (None, _) => "max_tokens",
                (_, true) => "top_logprobs",
                (_, false) => "logprobs",
            };
            let said =
                format!("the answers have more than {TOLD} tokens and log-probabilities: ask for fewer at a time");
            return Err(Refusal::invalid_text(param, &said));
        }
        // each answer of a request has draws of its own, whichever prompt it continues
        let first = requests.len() as u64;
        requests.extend((first..first + n as u64).map(|sample| EngineRequest {
            prompt: prompt.clone(),
            options: Options { sample, max_tokens: most_tokens, ..options.clone() },
            log_probs,
            reuse: true,
            steps: None,
        }));
    }
    let (receipt, device) = (fields.flag("limpid.receipt"), model.lm.machine().device);
    if receipt && requests.len() > 1 {
        let expected = "left out if there are several answers: a receipt covers one";
        return Err(Refusal::invalid_value("limpid.receipt", expected, "true"));
    }
    if receipt && !device.is_exact() {
        let why = format!("left out: answers of --device {device} have other last digits elsewhere");
        return Err(Refusal::invalid_value("limpid.receipt", &why, "true"));
    }
    let (stream, usage) = (fields.flag("stream"), fields.flag("stream_options.include_usage"));
    if usage && !stream {
        return Err(Refusal::invalid_value("stream_options", "left out where `stream` is not true", "an object"));
    }
    let receipt = requests.first().filter(|_| receipt).cloned();
    let skip_special_tokens = options.skip_special_tokens;
    let answer = AnswerSpec { stream, usage, skip_special_tokens, n, seed, receipt, interventions, ..answer };
    Ok(Ask { requests, answer })
}

fn sampler(fields: &RequestFields, seed: i64) -> Sampler {
    Sampler {
        temperature: fields.number("temperature"),
        top_k: fields.count("top_k").unwrap_or_default(), // -1 is 0
        top_p: fields.number("top_p"),
        min_p: fields.number("min_p"),
        repetition_penalty: fields.number("repetition_penalty"),
        presence_penalty: fields.number("presence_penalty"),
        frequency_penalty: fields.number("frequency_penalty"),
        seed: seed as u64, // as it is written, two's complement
    }
}

/// The parameters of a request for this model.
pub(crate) fn read(model: &ServedModel, table: &RequestBody, body: &[u8]) -> Result<RequestFields> {
    let fields = RequestFields::read(table, body)?;
    match fields.text("model").filter(|name| *name != model.id) {
        Some(other) => Err(Refusal::model_not_found(other, &model.id)),
        None => Ok(fields),
    }
}

/// The tokenizer of a served model, which always has one.
pub(crate) fn tokenizer(model: &ServedModel) -> Result<&Tokenizer> {
    model.lm.tokenizer().map_err(Refusal::engine_error)
}

/// Ids below this can be asked for.
pub(crate) fn vocab_size(model: &ServedModel) -> Result<usize> {
    Ok(tokenizer(model)?.vocab_size().min(model.lm.config().vocab_size))
}

/// What a request of so many answers wants to be changed, if anything.
fn interventions(fields: &RequestFields, answers: usize) -> Result<Option<Interventions>> {
    let given = fields.get(INTERVENTIONS).cloned().map(Interventions::try_from).transpose();
    let given = given.map_err(|error| fault(INTERVENTIONS, &error))?;
    match given.as_ref().map(|given| given.steps.len()).filter(|steps| steps * answers > STEPS) {
        Some(steps) => {
            let expected = format!("at most {} steps for {answers} answers", STEPS / answers);
            Err(Refusal::invalid_value(INTERVENTIONS, &expected, &steps.to_string()))
        }
        None => Ok(given),
    }
}

/// What the library finds wrong with a value, as it says it.
pub(crate) fn fault(param: &str, error: &dyn std::error::Error) -> Refusal {
    Refusal::invalid_text(param, &error.to_string())
}

/// A seed that a client can send again: JavaScript too counts exactly to 2^53.
fn draw_seed() -> i64 {
    (RandomState::new().build_hasher().finish() >> 11) as i64
}

/// One or many prompts: texts or ids, in the four forms that OpenAI has.
pub(crate) fn prompts(model: &ServedModel, name: &str, value: &Value, parse_special: bool) -> Result<Vec<Vec<u32>>> {
    let one = |place: &str, value: &Value| match value {
        Value::String(text) => match encode(model, place, text, parse_special, true)? {
            ids if ids.is_empty() => {
                Err(Refusal::invalid_text(place, "the model's tokenizer has no token for this text"))
            }
            ids => Ok(ids),
        },
        Value::Array(items) => ids(model, place, items),
        other => Err(Refusal::invalid_type(place, "a text or an array of token ids", other)),
    };
    let Value::Array(items) = value else {
        let wrong = || Refusal::invalid_type(name, PROMPT_FORMS, value);
        return Ok(vec![value.is_string().then(|| one(name, value)).ok_or_else(wrong)??]);
    };
    match items.first() {
        None => Err(Refusal::invalid_value(name, "at least one text or token", "an empty array")),
        Some(Value::Number(_)) => Ok(vec![one(name, value)?]),
        Some(_) if items.len() > PROMPTS => {
            Err(Refusal::invalid_value(name, &format!("at most {PROMPTS} prompts"), &items.len().to_string()))
        }
        Some(first) => {
            let like = |item: &Value| item.is_string() == first.is_string() && item.is_array() == first.is_array();
            let other = items.iter().position(|item| !like(item)).filter(|_| first.is_string() || first.is_array());
            if let Some(other) = other {
                let expected = if first.is_string() { "a text" } else { "an array of token ids" };
                let place = format!("{name}[{other}]");
                return Err(Refusal::invalid_type(&place, &format!("{expected}, as the first is"), &items[other]));
            }
            items.iter().enumerate().map(|(i, item)| one(&format!("{name}[{i}]"), item)).collect()
        }
    }
}

/// Token ids, at least one, each of them the model's.
pub(crate) fn ids(model: &ServedModel, name: &str, items: &[Value]) -> Result<Vec<u32>> {
    let size = vocab_size(model)?;
    if items.is_empty() {
        return Err(Refusal::invalid_value(name, "at least one token", "an empty array"));
    }
    let one = |(i, item): (usize, &Value)| {
        let place = format!("{name}[{i}]");
        match item.as_i64() {
            Some(id) if usize::try_from(id).is_ok_and(|id| id < size) => Ok(id as u32),
            Some(id) => Err(Refusal::token_out_of_range(&place, &id.to_string(), size)),
            None if item.is_u64() => Err(Refusal::token_out_of_range(&place, &item.to_string(), size)),
            None => Err(Refusal::invalid_type(&place, "a token id", item)),
        }
    };
    items.iter().enumerate().map(one).collect()
}

/// The ids of a text: special tokens in it are these tokens if `parse_special`, and those that stand round every text
/// of the model are put round it if `whole`. A whole text without any is the beginning of one.
pub(crate) fn encode(
    model: &ServedModel,
    name: &str,
    text: &str,
    parse_special: bool,
    whole: bool,
) -> Result<Vec<u32>> {
    let tokenizer = tokenizer(model)?;
    let mask = model.lm.config().mask;
    let ids = match (whole, parse_special) {
        (true, _) if text.is_empty() && mask == Mask::Causal => {
            return generate::start_ids(tokenizer).ok_or_else(|| fault(name, &GenerateError::NoStart));
        }
        (true, true) => generate::prompt_ids(tokenizer, mask, text),
        (true, false) => tokenizer.encode_ordinary(text).map(|ids| tokenizer.bos().into_iter().chain(ids).collect()),
        (false, true) => tokenizer.encode(text),
        (false, false) => tokenizer.encode_ordinary(text),
    };
    ids.map_err(|error| fault(name, &error))
}

/// Messages of a conversation: `content` is a text, or parts that are texts; `null` is an assistant's that said
/// nothing. `developer` is another name for `system`.
pub(crate) fn messages(value: &Value) -> Result<Vec<Message>> {
    let Value::Array(items) = value else {
        return Err(Refusal::invalid_type("messages", "an array of messages", value));
    };
    if items.is_empty() {
        return Err(Refusal::invalid_value("messages", "at least one message", "an empty array"));
    }
    items.iter().enumerate().map(|(i, item)| message(&format!("messages[{i}]"), item)).collect()
}

fn message(place: &str, value: &Value) -> Result<Message> {
    let message = value.as_object().ok_or_else(|| Refusal::invalid_type(place, "an object", value))?;
    for (key, value) in message.iter().filter(|(key, _)| !["role", "content"].contains(&key.as_str())) {
        let place = format!("{place}.{}", quoted(key));
        if ELSEWHERE.contains(&key.as_str()) {
            match value {
                Value::Null => {}
                Value::String(text) if text.is_empty() => {}
                Value::Array(items) if items.is_empty() => {}
                Value::Object(object) if object.is_empty() => {}
                _ => return Err(Refusal::unsupported_parameter(&place, "null", &found(value))),
            }
        } else {
            return Err(Refusal::unknown_parameter(&place, limpid_base::nearest::nearest(key, ["role", "content"])));
        }
    }
    let place_of = |key| format!("{place}.{key}");
    let role = match field(message, place, "role", "a role")? {
        Value::String(role) => match role.as_str() {
            "system" | "developer" => Role::System,
            "user" => Role::User,
            "assistant" => Role::Assistant,
            other => {
                let expected = "`system`, `developer`, `user` or `assistant`";
                return Err(Refusal::invalid_value(&place_of("role"), expected, &format!("\"{}\"", quoted(other))));
            }
        },
        other => return Err(Refusal::invalid_type(&place_of("role"), "a text", other)),
    };
    let said = match (role, message.get("content")) {
        (Role::Assistant, None) => &Value::Null,
        _ => field(message, place, "content", "a text")?,
    };
    let content = match said {
        Value::String(text) => text.clone(),
        Value::Null if role == Role::Assistant => String::new(),
        Value::Array(parts) => {
            let part = |(i, part): (usize, &Value)| part_text(&format!("{place}.content[{i}]"), part);
            parts.iter().enumerate().map(part).collect::<Result<String>>()?
        }
        other => return Err(Refusal::invalid_type(&place_of("content"), "a text or an array of texts", other)),
    };
    Ok(Message { role, content })
}

fn field<'a>(object: &'a Map<String, Value>, place: &str, key: &str, expected: &str) -> Result<&'a Value> {
    object.get(key).ok_or_else(|| Refusal::missing_field(&format!("{place}.{key}"), expected))
}

/// A part of a message's content: `{"type": "text", "text": ..}`.
fn part_text(place: &str, part: &Value) -> Result<String> {
    let object = part.as_object().ok_or_else(|| Refusal::invalid_type(place, "an object", part))?;
    let kind = field(object, place, "type", "\"text\"")?;
    if kind != "text" {
        return Err(Refusal::unsupported_parameter(&format!("{place}.type"), "\"text\"", &found(kind)));
    }
    let more = |(key, value): &(&String, &Value)| !["type", "text"].contains(&key.as_str()) && !value.is_null();
    if let Some((other, _)) = object.iter().find(more) {
        return Err(Refusal::unknown_parameter(&format!("{place}.{}", quoted(other)), None));
    }
    let text = field(object, place, "text", "a text")?;
    let wrong = || Refusal::invalid_type(&format!("{place}.text"), "a text", text);
    text.as_str().map(String::from).ok_or_else(wrong)
}

/// The template at this moment, for those that write the date.
pub fn dated(template: &ChatTemplate) -> ChatTemplate {
    template.at(seconds_since_1970().cast_signed())
}

/// The ids that an answer to a conversation comes after. What is wrong is wrong with the messages: the template was
/// tried when the server began.
pub(crate) fn chat_ids(model: &ServedModel, template: &ChatTemplate, messages: &[Message]) -> Result<Vec<u32>> {
    let ids = model.lm.chat_ids(&dated(template), messages).map_err(|error| match error {
        limpid::Error::Template(error) => template_fault(&error),
        other => fault("messages", &other),
    })?;
    if ids.is_empty() {
        return Err(Refusal::invalid_text("messages", "the chat template makes an empty prompt of them"));
    }
    Ok(ids)
}

/// What a template finds wrong with messages; one that is named is counted as in JSON.
pub(crate) fn template_fault(error: &TemplateError) -> Refusal {
    let (TemplateError::Special { message, .. }
    | TemplateError::Chat(ChatError::Message(Fault::Marker { message, .. }))) = error
    else {
        return fault("messages", error);
    };
    let said = error.to_string();
    let said = said.strip_prefix(&format!("message {message} ")).unwrap_or(&said);
    Refusal::invalid_text(&format!("messages[{}]", message.saturating_sub(1)), &format!("it {said}"))
}

fn own_stops(fields: &RequestFields) -> Result<Vec<String>> {
    let (most, longest) = STOPS;
    let one = |place: &str, value: &Value| match value {
        Value::String(text) if text.is_empty() => {
            Err(Refusal::invalid_value(place, "a text of at least one character", "\"\""))
        }
        Value::String(text) if text.len() > longest => {
            Err(Refusal::invalid_value(place, &format!("at most {longest} bytes"), &text.len().to_string()))
        }
        Value::String(text) => Ok(text.clone()),
        other => Err(Refusal::invalid_type(place, "a text", other)),
    };
    match fields.get("stop") {
        None => Ok(vec![]),
        Some(Value::Array(texts)) if texts.len() > most => {
            Err(Refusal::invalid_value("stop", &format!("at most {most} texts"), &texts.len().to_string()))
        }
        Some(Value::Array(texts)) => {
            texts.iter().enumerate().map(|(i, text)| one(&format!("stop[{i}]"), text)).collect()
        }
        Some(value @ Value::String(_)) => Ok(vec![one("stop", value)?]),
        Some(other) => Err(Refusal::invalid_type("stop", "a text or an array of texts", other)),
    }
}

fn logit_bias(model: &ServedModel, fields: &RequestFields) -> Result<Arc<[(u32, f32)]>> {
    let size = vocab_size(model)?;
    let Some(value) = fields.get("logit_bias") else { return Ok([].into()) };
    let wrong = || Refusal::invalid_type("logit_bias", "an object of token ids and numbers", value);
    let one = |(key, bias): (&String, &Value)| {
        let place = format!("logit_bias.{}", quoted(key));
        let digits = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_digit());
        if !digits || key.len() > 1 && key.starts_with('0') {
            return Err(Refusal::invalid_value(&place, "named by a token id", &format!("\"{}\"", quoted(key))));
        }
        let id = key.parse::<u32>().ok().filter(|id| (*id as usize) < size);
        let id = id.ok_or_else(|| Refusal::token_out_of_range(&place, key, size))?;
        match bias.as_f64() {
            Some(bias) if (-100.0..=100.0).contains(&bias) => Ok((id, bias as f32)),
            Some(bias) => Err(Refusal::invalid_value(&place, "between -100 and 100", &bias.to_string())),
            None => Err(Refusal::invalid_type(&place, "a number between -100 and 100", bias)),
        }
    };
    value.as_object().ok_or_else(wrong)?.iter().map(one).collect()
}

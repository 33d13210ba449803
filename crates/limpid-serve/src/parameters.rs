//! Every parameter of every request body, in tables: its type and range, its default, and what it does.
//! [`RequestFields::read`] goes by these tables and refuses everything else, so nothing that a client sends is ignored
//! in silence. `/openapi.json`, `/docs` and the table in docs/serve.md are made from them too.
//!
//! A parameter that is `null` counts as left out.

use crate::json;
use crate::refusal::{Refusal, Result, found};
use crate::schema;
use limpid_base::nearest::nearest;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// What a parameter may be.
#[derive(Clone, Copy, Debug)]
pub enum ParameterKind {
    /// Checked by its endpoint: in words, and as a JSON Schema.
    Own(&'static str, fn() -> Value),
    /// A string.
    Text,
    /// `true` or `false`.
    Flag,
    /// An integer in this range.
    Whole(i64, i64),
    /// A number in this range.
    Number(NumberRange),
    /// One of these strings.
    OneOf(&'static [&'static str]),
    /// An object with parameters of its own.
    Group(&'static [Parameter]),
    /// Anything: it is accepted and has no effect.
    Idle,
    /// Not supported: only these values, in JSON, which have no effect.
    Only(&'static [&'static str]),
}

/// A range of numbers, with or without its ends.
#[derive(Clone, Copy, Debug)]
pub struct NumberRange {
    /// The lower end.
    pub least: f64,
    /// The upper end.
    pub most: f64,
    /// Whether the lower end is outside the range.
    pub above: bool,
    /// Whether the upper end is outside the range.
    pub below: bool,
}

/// A parameter of a request body.
#[derive(Clone, Copy, Debug)]
pub struct Parameter {
    /// Its name.
    pub name: &'static str,
    /// What it may be.
    pub kind: ParameterKind,
    /// The value that a request without it has, in JSON; none if leaving it out means something else, which `about`
    /// says.
    pub default: Option<&'static str>,
    /// Whether a request without it is refused.
    pub required: bool,
    /// What it does.
    pub about: &'static str,
}

/// The body of a POST request.
#[derive(Clone, Copy, Debug)]
pub struct RequestBody {
    /// The path that it is sent to.
    pub path: &'static str,
    /// Its name in `/openapi.json`.
    pub schema: &'static str,
    /// Parameters of which a request has exactly one; none if there is no such choice.
    pub exactly_one: &'static [&'static str],
    tables: &'static [&'static [Parameter]],
}

const fn row(name: &'static str, kind: ParameterKind) -> Parameter {
    Parameter { name, kind, default: None, required: false, about: "" }
}

impl Parameter {
    const fn or(self, default: &'static str) -> Parameter {
        Parameter { default: Some(default), ..self }
    }

    const fn required(self) -> Parameter {
        Parameter { required: true, ..self }
    }

    const fn about(self, about: &'static str) -> Parameter {
        Parameter { about, ..self }
    }
}

const fn idle(name: &'static str) -> Parameter {
    row(name, ParameterKind::Idle).about("No effect")
}

const fn unsupported(name: &'static str, neutral: &'static [&'static str]) -> Parameter {
    row(name, ParameterKind::Only(neutral)).about(schema::UNSUPPORTED)
}

const fn between(least: f64, most: f64) -> ParameterKind {
    ParameterKind::Number(NumberRange { least, most, above: false, below: false })
}

const fn above(least: f64, most: f64) -> ParameterKind {
    ParameterKind::Number(NumberRange { least, most, above: true, below: false })
}

const fn below(least: f64, most: f64) -> ParameterKind {
    ParameterKind::Number(NumberRange { least, most, above: false, below: true })
}

const TOKENS: ParameterKind = ParameterKind::Whole(0, u32::MAX as i64);
const PROMPTS: ParameterKind =
    ParameterKind::Own("a string, token ids, or an array of at most 256 of either", schema::prompts);
const CONVERSATION: ParameterKind = ParameterKind::Own("an array of messages", schema::messages);

const MODEL: Parameter = row("model", ParameterKind::Text).about("The name of the served model; may be left out");
const PARSE_SPECIAL: Parameter =
    row("parse_special", ParameterKind::Flag).or("true").about("Read the text of a special token as that token");
const ADD_GENERATION_PROMPT: Parameter =
    row("add_generation_prompt", ParameterKind::Flag).or("true").about("End the conversation where an answer begins");
const MESSAGES: Parameter =
    row("messages", CONVERSATION).required().about("The conversation; each message has a `role` and `content`");

/// Of completions and chat completions.
const GENERATION: &[Parameter] = &[
    MODEL,
    row("frequency_penalty", between(-2.0, 2.0))
        .or("0")
        .about("Subtracted from a token's logit once for each time the token occurs in the answer"),
    row("ignore_eos", ParameterKind::Flag).or("false").about("Continue after tokens that end a text or a turn"),
    row("limpid", ParameterKind::Group(LIMPID)).about("Parameters that only limpid has"),
    row(
        "logit_bias",
        ParameterKind::Own("an object of token ids and numbers between -100 and 100", schema::logit_bias),
    )
    .about("Added to the logits of these token ids"),
    row("min_p", below(0.0, 1.0))
        .or("0")
        .about("Keep only tokens whose probability is at least this fraction of the likeliest token's"),
    row("n", ParameterKind::Whole(1, 128)).or("1").about("Answers to each prompt; a request has at most 256 answers"),
    row("presence_penalty", between(-2.0, 2.0))
        .or("0")
        .about("Subtracted from a token's logit if the token occurs in the answer"),
    row("repetition_penalty", above(0.0, 10.0))
        .or("1")
        .about("Logits of tokens that have occurred are divided by this if they are positive, else multiplied"),
    row("seed", ParameterKind::Whole(i64::MIN, i64::MAX))
        .about("The seed of every draw; if left out, the server draws one and returns it as `limpid.seed`"),
    row("stop", ParameterKind::Own("a string, or at most 16 strings, each of at most 256 bytes", schema::stops))
        .about("Strings that end the answer, each of at most 256 bytes"),
    row("skip_special_tokens", ParameterKind::Flag).or("true").about("Leave special tokens out of the answer's text"),
    row("stream", ParameterKind::Flag).or("false").about("Send the answer in pieces while it is being generated"),
    row("stream_options", ParameterKind::Group(STREAM_OPTIONS)).about("Options of `stream`"),
    row("temperature", between(0.0, 2.0))
        .or("1")
        .about("Below 1 sharpens the distribution, above 1 flattens it; 0 always takes the likeliest token"),
    row("top_k", ParameterKind::Whole(-1, i32::MAX as i64))
        .or("0")
        .about("Keep only this many of the likeliest tokens; 0 and -1 keep all"),
    row("top_p", above(0.0, 1.0)).or("1").about("Keep only the likeliest tokens whose probabilities add up to this"),
    idle("user"),
    idle("metadata"),
    row("prompt_cache_key", ParameterKind::Idle).about("No effect: equal beginnings are always reused"),
    idle("prompt_cache_retention"),
    idle("safety_identifier"),
    idle("service_tier"),
    row("store", ParameterKind::Idle).about("No effect: nothing is stored"),
];

const STREAM_OPTIONS: &[Parameter] = &[
    unsupported("include_obfuscation", &["false"]),
    row("include_usage", ParameterKind::Flag).or("false").about("End the stream with a chunk that counts the tokens"),
];

const LIMPID: &[Parameter] = &[
    row(
        "interventions",
        ParameterKind::Own("a list of 1 to 256 steps, or an object that has one as `do`", schema::interventions),
    )
    .about("What to change in the model's computation; only if the server was started with `--allow-interventions`"),
    PARSE_SPECIAL,
    row("receipt", ParameterKind::Flag)
        .or("false")
        .about("Add a receipt, which `limpid replay` checks; only for a request with a single answer"),
];

/// `POST /v1/completions`.
pub const COMPLETIONS: RequestBody = RequestBody {
    path: "/v1/completions",
    schema: "CompletionRequest",
    exactly_one: &[],
    tables: &[
        GENERATION,
        &[
            row("prompt", PROMPTS).required().about("What to continue; \"\" is the beginning of a text"),
            row("best_of", ParameterKind::Own("the value of `n`", || schema::integer_between(1, 128)))
                .about("Not supported: must equal `n`"),
            row("echo", ParameterKind::Flag).or("false").about("Begin the answer with the prompt"),
            row("logprobs", ParameterKind::Whole(0, 20))
                .about("Return the log-probability of every token, and of this many of the likeliest alternatives"),
            row("max_tokens", TOKENS).or("16").about("The most tokens of an answer"),
            unsupported("suffix", &["\"\""]),
        ],
    ],
};

/// `POST /v1/chat/completions`.
pub const CHAT: RequestBody = RequestBody {
    path: "/v1/chat/completions",
    schema: "ChatRequest",
    exactly_one: &[],
    tables: &[
        GENERATION,
        &[
            MESSAGES,
            row("logprobs", ParameterKind::Flag)
                .or("false")
                .about("Return the log-probability of every token of the answer"),
            row("max_completion_tokens", TOKENS)
                .about("The most tokens of an answer; if left out, all that fit in the context"),
            row("max_tokens", TOKENS).about("The older name of `max_completion_tokens`"),
            row("top_logprobs", ParameterKind::Whole(0, 20))
                .about("With `logprobs`: also return this many of the likeliest alternatives; if left out, none"),
            unsupported("audio", &[]),
            unsupported("function_call", &["\"none\"", "\"auto\""]),
            unsupported("functions", &["[]"]),
            unsupported("modalities", &["[\"text\"]"]),
            unsupported("parallel_tool_calls", &["true", "false"]),
            unsupported("prediction", &[]),
            unsupported("reasoning_effort", &["\"none\""]),
            unsupported("response_format", &["{\"type\":\"text\"}"]),
            unsupported("tool_choice", &["\"none\"", "\"auto\""]),
            unsupported("tools", &["[]"]),
            unsupported("verbosity", &["\"medium\""]),
            unsupported("web_search_options", &[]),
        ],
    ],
};

/// `POST /v1/embeddings`.
pub const EMBEDDINGS: RequestBody = RequestBody {
    path: "/v1/embeddings",
    schema: "EmbeddingRequest",
    exactly_one: &[],
    tables: &[&[
        MODEL,
        row("input", PROMPTS).required().about("What to turn into vectors"),
        row("dimensions", ParameterKind::Own("the model's width", || json!({ "type": "integer", "minimum": 1 })))
            .about("Not supported: must equal the model's width"),
        row("encoding_format", ParameterKind::OneOf(&["float", "base64"]))
            .or("\"float\"")
            .about("Numbers, or the bytes of little-endian f32s in base64"),
        row("limpid", ParameterKind::Group(EMBEDDING)).about("Parameters that only limpid has"),
        idle("user"),
    ]],
};

const EMBEDDING: &[Parameter] = &[
    row("normalize", ParameterKind::Flag)
        .about("Scale vectors to length 1; if left out, as the model's modules.json says, else true"),
    row("pooling", ParameterKind::OneOf(&["mean", "cls", "last", "max", "mean-sqrt-len", "weighted-mean"])).about(
        "How the hidden states of the tokens become one vector; if left out, as the model's modules.json says, else \
         mean",
    ),
];

/// `POST /tokenize`.
pub const TOKENIZE: RequestBody = RequestBody {
    path: "/tokenize",
    schema: "TokenizeRequest",
    exactly_one: &["prompt", "content", "messages"],
    tables: &[&[
        MODEL,
        row("prompt", ParameterKind::Text).about("The text"),
        row("content", ParameterKind::Text).about("Another name for `prompt`"),
        row("messages", CONVERSATION).about("A conversation, which the chat template turns into text"),
        ADD_GENERATION_PROMPT,
        row("add_special_tokens", ParameterKind::Flag).or("false").about("Add the tokens that surround every text"),
        row("add_special", ParameterKind::Flag).or("false").about("Another name for `add_special_tokens`"),
        PARSE_SPECIAL,
        row("return_token_strs", ParameterKind::Flag)
            .or("false")
            .about("Also return `token_strs`, the text of each token"),
        row("with_pieces", ParameterKind::Flag).or("false").about("Return an `id` and a `piece` for each token"),
    ]],
};

/// `POST /detokenize`.
pub const DETOKENIZE: RequestBody = RequestBody {
    path: "/detokenize",
    schema: "DetokenizeRequest",
    exactly_one: &[],
    tables: &[&[
        MODEL,
        row("tokens", ParameterKind::Own("an array of token ids", schema::token_ids))
            .required()
            .about("The tokens to decode"),
    ]],
};

/// `POST /apply-template`.
pub const APPLY_TEMPLATE: RequestBody = RequestBody {
    path: "/apply-template",
    schema: "TemplateRequest",
    exactly_one: &[],
    tables: &[&[MODEL, MESSAGES, ADD_GENERATION_PROMPT]],
};

/// Parameters of other programs, and their names here. `min_tokens` has none, though it looks like `max_tokens`.
const FOREIGN: &[(&str, &str)] = &[
    ("max_new_tokens", "max_tokens"),
    ("min_tokens", ""),
    ("n_predict", "max_tokens"),
    ("num_predict", "max_tokens"),
    ("repeat_penalty", "repetition_penalty"),
];

/// Every body whose parameters are in a table.
pub const REQUEST_BODIES: [RequestBody; 6] = [COMPLETIONS, CHAT, EMBEDDINGS, TOKENIZE, DETOKENIZE, APPLY_TEMPLATE];

impl RequestBody {
    /// Its parameters.
    pub fn parameters(&self) -> impl Iterator<Item = &'static Parameter> {
        self.tables.iter().copied().flatten()
    }
}

impl NumberRange {
    fn has(self, value: f64) -> bool {
        let least = if self.above { value > self.least } else { value >= self.least };
        least && if self.below { value < self.most } else { value <= self.most }
    }
}

impl ParameterKind {
    /// What it may be, in words, as in "between 0 and 2".
    pub fn expected(self) -> String {
        match self {
            ParameterKind::Own(expected, _) => expected.into(),
            ParameterKind::Text => "a string".into(),
            ParameterKind::Flag => "true or false".into(),
            ParameterKind::Whole(i64::MIN, i64::MAX) => "a 64-bit integer".into(),
            ParameterKind::Whole(least, most) => format!("an integer between {least} and {most}"),
            ParameterKind::Number(NumberRange { least, most, above, below }) => match (above, below) {
                (false, false) => format!("between {least} and {most}"),
                (true, false) => format!("greater than {least} and at most {most}"),
                (false, true) => format!("at least {least} and less than {most}"),
                (true, true) => format!("greater than {least} and less than {most}"),
            },
            ParameterKind::OneOf(names) => format!("\"{}\"", names.join("\" or \"")),
            ParameterKind::Group(_) => "an object".into(),
            ParameterKind::Idle => "anything".into(),
            ParameterKind::Only([]) => "null".into(),
            ParameterKind::Only(values) => values.join(" or "),
        }
    }

    /// What it may be, as a JSON Schema.
    pub fn schema(self) -> Value {
        match self {
            ParameterKind::Own(_, schema) => schema(),
            ParameterKind::Text => schema::string(),
            ParameterKind::Flag => schema::boolean(),
            ParameterKind::Whole(least, most) => {
                let mut range = schema::integer_between(least, most);
                if (least, most) == (i64::MIN, i64::MAX) {
                    range["format"] = "int64".into();
                }
                range
            }
            ParameterKind::Number(NumberRange { least, most, above, below }) => {
                let mut range = schema::number();
                range[if above { "exclusiveMinimum" } else { "minimum" }] = schema::plain(least);
                range[if below { "exclusiveMaximum" } else { "maximum" }] = schema::plain(most);
                range
            }
            ParameterKind::OneOf(names) => schema::one_of(names),
            ParameterKind::Group(inner) => {
                let properties: Vec<_> = inner.iter().map(|parameter| (parameter.name, parameter.schema())).collect();
                schema::object(&[], &properties)
            }
            ParameterKind::Idle => json!({}),
            ParameterKind::Only(values) => {
                json!({ "enum": values.iter().map(|value| constant(value)).collect::<Vec<_>>() })
            }
        }
    }

    /// Refuses a value that it may not be.
    fn check(self, name: &str, value: &Value) -> Result<()> {
        let of_type = match self {
            ParameterKind::Own(..) | ParameterKind::Idle | ParameterKind::Only(_) => true,
            ParameterKind::Text | ParameterKind::OneOf(_) => value.is_string(),
            ParameterKind::Flag => value.is_boolean(),
            ParameterKind::Group(_) => value.is_object(),
            ParameterKind::Whole(..) => value.is_i64() || value.is_u64(),
            ParameterKind::Number(_) => value.is_number(),
        };
        if !of_type {
            return Err(Refusal::invalid_type(name, &self.expected(), value));
        }
        let in_range = match self {
            ParameterKind::Whole(least, most) => value.as_i64().is_some_and(|value| (least..=most).contains(&value)),
            ParameterKind::Number(range) => value.as_f64().is_some_and(|value| range.has(value)),
            ParameterKind::OneOf(names) => value.as_str().is_some_and(|name| names.contains(&name)),
            ParameterKind::Only(values) if values.iter().all(|neutral| constant(neutral) != *value) => {
                return Err(Refusal::unsupported_parameter(name, &self.expected(), &found(value)));
            }
            _ => true,
        };
        if in_range { Ok(()) } else { Err(Refusal::invalid_value(name, &self.expected(), &found(value))) }
    }
}

impl Parameter {
    /// What it may be, its default and what it does, as a JSON Schema.
    pub fn schema(&self) -> Value {
        let mut schema = schema::described(self.kind.schema(), self.about);
        if !self.required && !matches!(self.kind, ParameterKind::Idle) {
            schema = schema::nullable(schema);
        }
        if let Some(default) = self.default {
            schema["default"] = constant(default);
        }
        schema
    }
}

/// A value that the tables write in JSON; a test reads all of them.
fn constant(json: &str) -> Value {
    serde_json::from_str(json).unwrap_or_default()
}

/// The parameters of a request that are not `null`, each as its table wants it, and the defaults of the others. A
/// parameter of a group is called `stream_options.include_usage`.
#[derive(Debug)]
pub struct RequestFields(BTreeMap<String, Value>);

impl RequestFields {
    /// Reads a body.
    ///
    /// # Errors
    /// If it is not a JSON object, or a parameter is unknown, not supported, or not what its table says.
    pub fn read(body: &RequestBody, bytes: &[u8]) -> Result<RequestFields> {
        let mut fields = RequestFields(BTreeMap::new());
        let known: Vec<&Parameter> = body.parameters().collect();
        fields.add("", &known, json::object(bytes)?)?;
        fields.add_defaults("", &known);
        Ok(fields)
    }

    fn add(&mut self, group: &str, known: &[&Parameter], object: Map<String, Value>) -> Result<()> {
        for (key, value) in object {
            let Some(parameter) = known.iter().find(|parameter| parameter.name == key) else {
                return Err(unknown(group, &key, known));
            };
            if value.is_null() {
                continue;
            }
            let name = format!("{group}{key}");
            parameter.kind.check(&name, &value)?;
            match (parameter.kind, value) {
                (ParameterKind::Group(inner), Value::Object(object)) => {
                    self.add(&format!("{name}."), &inner.iter().collect::<Vec<_>>(), object)?;
                }
                (_, value) => drop(self.0.insert(name, value)),
            }
        }
        Ok(())
    }

    fn add_defaults(&mut self, group: &str, known: &[&Parameter]) {
        for parameter in known {
            let name = format!("{group}{}", parameter.name);
            if let ParameterKind::Group(inner) = parameter.kind {
                self.add_defaults(&format!("{name}."), &inner.iter().collect::<Vec<_>>());
            }
            if let Some(default) = parameter.default {
                self.0.entry(name).or_insert_with(|| constant(default));
            }
        }
    }

    /// A parameter as it was sent, else its default.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }

    /// A parameter that is required.
    ///
    /// # Errors
    /// If it is missing.
    pub fn required(&self, name: &str, expected: &str) -> Result<&Value> {
        self.get(name).ok_or_else(|| Refusal::missing_field(name, expected))
    }

    /// A string.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.get(name)?.as_str()
    }

    /// A flag that has a default.
    pub fn flag(&self, name: &str) -> bool {
        self.get(name).and_then(Value::as_bool).unwrap_or_default()
    }

    /// An integer.
    pub fn whole(&self, name: &str) -> Option<i64> {
        self.get(name)?.as_i64()
    }

    /// An integer that is not negative.
    pub fn count(&self, name: &str) -> Option<usize> {
        self.whole(name).and_then(|value| usize::try_from(value).ok())
    }

    /// A number that has a default.
    pub fn number(&self, name: &str) -> f64 {
        self.get(name).and_then(Value::as_f64).unwrap_or_default()
    }
}

/// Refuses a name that is in no table, and says which one may have been meant.
fn unknown(group: &str, key: &str, known: &[&Parameter]) -> Refusal {
    let mut names = known.iter().map(|parameter| parameter.name);
    let near = match FOREIGN.iter().find(|(foreign, _)| *foreign == key) {
        Some((_, ours)) => names.find(|name| name == ours),
        None => nearest(key, names),
    };
    let refusal = Refusal::unknown_parameter(&format!("{group}{key}"), near);
    let elsewhere = REQUEST_BODIES.iter().find(|body| body.parameters().any(|parameter| parameter.name == key));
    match elsewhere {
        Some(body) if near.is_none() && group.is_empty() => refusal.meant_for(body.path),
        _ => refusal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<&'static Parameter> {
        let tables = REQUEST_BODIES.iter().flat_map(RequestBody::parameters);
        let inner = |parameter: &'static Parameter| match parameter.kind {
            ParameterKind::Group(inner) => inner.iter(),
            _ => [].iter(),
        };
        tables.flat_map(|parameter| std::iter::once(parameter).chain(inner(parameter))).collect()
    }

    #[test]
    fn constants_are_json_and_defaults_are_in_range() {
        for parameter in all() {
            if let Some(default) = parameter.default {
                let value: Value = serde_json::from_str(default).unwrap();
                parameter.kind.check(parameter.name, &value).unwrap();
            }
            if let ParameterKind::Only(values) = parameter.kind {
                values.iter().for_each(|value| drop(serde_json::from_str::<Value>(value).unwrap()));
            }
            assert!(!parameter.required || parameter.default.is_none(), "{}", parameter.name);
        }
    }

    #[test]
    fn what_is_left_out_has_its_default() {
        let fields = RequestFields::read(&COMPLETIONS, br#"{"prompt":"a","temperature":null,"top_k":-1}"#).unwrap();
        assert_eq!((fields.number("temperature"), fields.number("presence_penalty")), (1.0, 0.0));
        assert_eq!(
            (fields.count("max_tokens"), fields.count("n"), fields.whole("top_k")),
            (Some(16), Some(1), Some(-1))
        );
        assert_eq!((fields.flag("limpid.parse_special"), fields.flag("limpid.receipt")), (true, false));
        assert_eq!((fields.get("logprobs"), fields.get("seed")), (None, None));
    }
}

//! Every parameter of every endpoint, in tables: its type and range, and whether it does anything. [`RequestFields::read`] refuses what is in
//! none, so nothing that a client sends is ever ignored in silence.
//!
//! `/docs` prints these tables, and a test holds openapi.json to them. A parameter that is `null` is as good as left out.

use crate::json;
use crate::refusal::{Refusal, found};
use limpid::nearest::nearest;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// What a parameter may be.
#[derive(Clone, Copy, Debug)]
pub enum ParameterKind {
    /// Its endpoint says; here in words.
    Own(&'static str),
    /// A text.
    Text,
    /// `true` or `false`.
    Flag,
    /// An integer of this range.
    Whole(i64, i64),
    /// A number of this range.
    Number(NumberRange),
    /// One of these texts.
    OneOf(&'static [&'static str]),
    /// An object with parameters of its own.
    Group(&'static [Parameter]),
    /// Anything: it is accepted and changes nothing.
    Idle,
    /// Not supported: only these values, in JSON, which change nothing.
    Only(&'static [&'static str]),
}

/// A range of numbers, with or without its ends.
#[derive(Clone, Copy, Debug)]
pub struct NumberRange {
    /// The least.
    pub least: f64,
    /// The greatest.
    pub most: f64,
    /// Whether the least is not in the range.
    pub above: bool,
    /// Whether the greatest is not in the range.
    pub below: bool,
}

/// A parameter of an endpoint.
#[derive(Clone, Copy, Debug)]
pub struct Parameter {
    /// Its name.
    pub name: &'static str,
    /// What it may be.
    pub kind: ParameterKind,
    /// What it does, for `/docs`.
    pub about: &'static str,
}

/// An endpoint that takes a body.
#[derive(Clone, Copy, Debug)]
pub struct Endpoint {
    /// Its path; the method is POST.
    pub path: &'static str,
    tables: &'static [&'static [Parameter]],
}

const fn row(name: &'static str, kind: ParameterKind, about: &'static str) -> Parameter {
    Parameter { name, kind, about }
}

const fn between(least: f64, most: f64) -> ParameterKind {
    ParameterKind::Number(NumberRange { least, most, above: false, below: false })
}

const MODEL: Parameter = row("model", ParameterKind::Text, "the name of the served model; may be left out");
const USER: Parameter = row("user", ParameterKind::Idle, "no effect");
const ENCODING: &[&str] = &["float", "base64"];
const SPECIAL: Parameter =
    row("parse_special", ParameterKind::Flag, "whether the text of a special token is that token; default true");

/// Of completions and chat completions.
const GENERATION: &[Parameter] = &[
    MODEL,
    row("frequency_penalty", between(-2.0, 2.0), "taken from a token's logit for each time that the answer has it"),
    row("ignore_eos", ParameterKind::Flag, "go on after the tokens that end a text or a turn; default false"),
    row("limpid", ParameterKind::Group(LIMPID), "what only limpid has"),
    row("logit_bias", ParameterKind::Own("an object of token ids and numbers between -100 and 100"), "added to logits"),
    row(
        "min_p",
        ParameterKind::Number(NumberRange { least: 0.0, most: 1.0, above: false, below: true }),
        "only tokens at least so many times as likely as the likeliest; default 0",
    ),
    row("n", ParameterKind::Whole(1, 128), "answers to each prompt, of all prompts at most 256; default 1"),
    row("presence_penalty", between(-2.0, 2.0), "taken from a token's logit if the answer has it"),
    row(
        "repetition_penalty",
        ParameterKind::Number(NumberRange { least: 0.0, most: 10.0, above: true, below: false }),
        "logits of tokens that occurred are divided by it if positive, else multiplied; default 1",
    ),
    row(
        "seed",
        ParameterKind::Whole(i64::MIN, i64::MAX),
        "of every draw; drawn if left out, and told as `limpid.seed`",
    ),
    row(
        "stop",
        ParameterKind::Own("a text, or at most 16 texts, of at most 256 bytes each"),
        "texts that end the answer",
    ),
    row("skip_special_tokens", ParameterKind::Flag, "leave special tokens out of the answer's text; default true"),
    row("stream", ParameterKind::Flag, "send the answer in pieces; default false"),
    row("stream_options", ParameterKind::Group(STREAM_OPTIONS), "with `stream`"),
    row("temperature", between(0.0, 2.0), "below 1 sharper, above 1 flatter, 0 the likeliest token; default 1"),
    row(
        "top_k",
        ParameterKind::Whole(-1, i32::MAX as i64),
        "only so many of the likeliest tokens; -1 and 0 for all; default 0",
    ),
    row(
        "top_p",
        ParameterKind::Number(NumberRange { least: 0.0, most: 1.0, above: true, below: false }),
        "only the likeliest tokens whose probabilities add up to it; default 1",
    ),
    USER,
    row("metadata", ParameterKind::Idle, "no effect"),
    row("prompt_cache_key", ParameterKind::Idle, "no effect: equal beginnings are always found"),
    row("prompt_cache_retention", ParameterKind::Idle, "no effect"),
    row("safety_identifier", ParameterKind::Idle, "no effect"),
    row("service_tier", ParameterKind::Idle, "no effect"),
    row("store", ParameterKind::Idle, "no effect: nothing is stored"),
];

const STREAM_OPTIONS: &[Parameter] = &[
    row("include_obfuscation", ParameterKind::Only(&["false"]), "not supported"),
    row("include_usage", ParameterKind::Flag, "end the stream with a chunk that counts the tokens; default false"),
];

const LIMPID: &[Parameter] = &[
    SPECIAL,
    row(
        "receipt",
        ParameterKind::Flag,
        "answer with a receipt, which `limpid replay` checks; for one answer; default false",
    ),
];

/// `POST /v1/completions`.
pub const COMPLETIONS: Endpoint = Endpoint {
    path: "/v1/completions",
    tables: &[
        GENERATION,
        &[
            row(
                "prompt",
                ParameterKind::Own("a text, token ids, or at most 256 of either"),
                "what is continued; needed; \"\" is the beginning of a text",
            ),
            row("best_of", ParameterKind::Own("what `n` is"), "not supported"),
            row("echo", ParameterKind::Flag, "answer with the prompt too; default false"),
            row(
                "logprobs",
                ParameterKind::Whole(0, 20),
                "log-probabilities of every token, and of so many of the likeliest beside it",
            ),
            row("max_tokens", ParameterKind::Whole(0, u32::MAX as i64), "most tokens of the answer; default 16"),
            row("suffix", ParameterKind::Only(&["\"\""]), "not supported"),
        ],
    ],
};

/// `POST /v1/chat/completions`.
pub const CHAT: Endpoint = Endpoint {
    path: "/v1/chat/completions",
    tables: &[
        GENERATION,
        &[
            MESSAGES,
            row("logprobs", ParameterKind::Flag, "log-probabilities of every token of the answer; default false"),
            row(
                "max_completion_tokens",
                ParameterKind::Whole(0, u32::MAX as i64),
                "most tokens of the answer; default all that fit",
            ),
            row("max_tokens", ParameterKind::Whole(0, u32::MAX as i64), "the older name of `max_completion_tokens`"),
            row(
                "top_logprobs",
                ParameterKind::Whole(0, 20),
                "with `logprobs`: so many of the likeliest tokens; default 0",
            ),
            row("audio", ParameterKind::Only(&[]), "not supported"),
            row("function_call", ParameterKind::Only(&["\"none\"", "\"auto\""]), "not supported"),
            row("functions", ParameterKind::Only(&["[]"]), "not supported"),
            row("modalities", ParameterKind::Only(&["[\"text\"]"]), "not supported"),
            row("parallel_tool_calls", ParameterKind::Only(&["true", "false"]), "not supported"),
            row("prediction", ParameterKind::Only(&[]), "not supported"),
            row("reasoning_effort", ParameterKind::Only(&["\"none\""]), "not supported"),
            row("response_format", ParameterKind::Only(&["{\"type\":\"text\"}"]), "not supported"),
            row("tool_choice", ParameterKind::Only(&["\"none\"", "\"auto\""]), "not supported"),
            row("tools", ParameterKind::Only(&["[]"]), "not supported"),
            row("verbosity", ParameterKind::Only(&["\"medium\""]), "not supported"),
            row("web_search_options", ParameterKind::Only(&[]), "not supported"),
        ],
    ],
};

const MESSAGES: Parameter = row(
    "messages",
    ParameterKind::Own("an array of messages"),
    "the conversation, each message with `role` and `content`; needed",
);
const ADD_GENERATION_PROMPT: Parameter =
    row("add_generation_prompt", ParameterKind::Flag, "with `messages`: end where an answer begins; default true");

/// `POST /v1/embeddings`.
pub const EMBEDDINGS: Endpoint = Endpoint {
    path: "/v1/embeddings",
    tables: &[&[
        MODEL,
        row("input", ParameterKind::Own("a text, token ids, or at most 256 of either"), "what becomes vectors; needed"),
        row("dimensions", ParameterKind::Own("the model's width"), "not supported"),
        row(
            "encoding_format",
            ParameterKind::OneOf(ENCODING),
            "numbers, or the bytes of f32s in base64; default float",
        ),
        row("limpid", ParameterKind::Group(EMBEDDING), "what only limpid has"),
        USER,
    ]],
};

const EMBEDDING: &[Parameter] = &[
    row(
        "normalize",
        ParameterKind::Flag,
        "whether vectors have length 1; default true, or as the model's modules.json says",
    ),
    row(
        "pooling",
        ParameterKind::OneOf(&["mean", "cls", "last", "max", "mean-sqrt-len", "weighted-mean"]),
        "what is taken of the tokens' hidden states; default mean, or as the model's modules.json says",
    ),
];

/// `POST /tokenize`.
pub const TOKENIZE: Endpoint = Endpoint {
    path: "/tokenize",
    tables: &[&[
        MODEL,
        row("prompt", ParameterKind::Text, "the text; this, `content` or `messages`"),
        row("content", ParameterKind::Text, "the same under another name"),
        row("messages", ParameterKind::Own("an array of messages"), "a conversation, as the chat template writes it"),
        ADD_GENERATION_PROMPT,
        row("add_special_tokens", ParameterKind::Flag, "put the tokens round every text round it; default false"),
        row("add_special", ParameterKind::Flag, "the same under another name"),
        SPECIAL,
        row("return_token_strs", ParameterKind::Flag, "answer with `token_strs` too; default false"),
        row("with_pieces", ParameterKind::Flag, "answer with `id` and `piece` of each token; default false"),
    ]],
};

/// `POST /detokenize`.
pub const DETOKENIZE: Endpoint = Endpoint {
    path: "/detokenize",
    tables: &[&[MODEL, row("tokens", ParameterKind::Own("an array of token ids"), "needed")]],
};

/// `POST /apply-template`.
pub const APPLY_TEMPLATE: Endpoint =
    Endpoint { path: "/apply-template", tables: &[&[MODEL, MESSAGES, ADD_GENERATION_PROMPT]] };

/// What other programs call parameters, and what they are called here; `min_tokens`, which looks like one of ours, is none.
const FOREIGN: &[(&str, &str)] = &[
    ("max_new_tokens", "max_tokens"),
    ("min_tokens", ""),
    ("n_predict", "max_tokens"),
    ("num_predict", "max_tokens"),
    ("repeat_penalty", "repetition_penalty"),
];

/// All endpoints that take a body.
pub const ENDPOINTS: [Endpoint; 6] = [COMPLETIONS, CHAT, EMBEDDINGS, TOKENIZE, DETOKENIZE, APPLY_TEMPLATE];

impl Endpoint {
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
    /// What it may be, in words: `between 0 and 2`.
    pub fn expected(self) -> String {
        match self {
            ParameterKind::Own(expected) => expected.into(),
            ParameterKind::Text => "a text".into(),
            ParameterKind::Flag => "true or false".into(),
            ParameterKind::Whole(i64::MIN, i64::MAX) => "an integer of 64 bits".into(),
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

    /// Refuses a value that it may not be.
    fn check(self, name: &str, value: &Value) -> Result<(), Refusal> {
        let wrong_type = || Err(Refusal::invalid_type(name, &self.expected(), value));
        let fits = match self {
            ParameterKind::Own(_) | ParameterKind::Idle => true,
            ParameterKind::Text if value.is_string() => true,
            ParameterKind::Flag if value.is_boolean() => true,
            ParameterKind::Group(_) if value.is_object() => true,
            ParameterKind::Whole(least, most) if value.is_i64() || value.is_u64() => {
                value.as_i64().is_some_and(|value| (least..=most).contains(&value))
            }
            ParameterKind::Number(bounds) if value.is_number() => value.as_f64().is_some_and(|value| bounds.has(value)),
            ParameterKind::OneOf(names) => match value.as_str() {
                Some(text) => names.contains(&text),
                None => return wrong_type(),
            },
            ParameterKind::Only(values) => {
                let neutral = |text: &&str| serde_json::from_str::<Value>(text).is_ok_and(|neutral| neutral == *value);
                return match values.iter().any(neutral) {
                    true => Ok(()),
                    false => Err(Refusal::unsupported_parameter(name, &self.expected(), &found(value))),
                };
            }
            ParameterKind::Text
            | ParameterKind::Flag
            | ParameterKind::Group(_)
            | ParameterKind::Whole(..)
            | ParameterKind::Number(_) => return wrong_type(),
        };
        if fits { Ok(()) } else { Err(Refusal::invalid_value(name, &self.expected(), &found(value))) }
    }
}

/// The parameters of a request that are not `null`, each as its table wants it; those of a group as `stream_options.include_usage`.
#[derive(Debug)]
pub struct RequestFields(BTreeMap<String, Value>);

impl RequestFields {
    /// Reads the body of an endpoint.
    ///
    /// # Errors
    /// If it is no JSON object, or a parameter is unknown, not supported, or not what its table says.
    pub fn read(endpoint: &Endpoint, body: &[u8]) -> Result<RequestFields, Refusal> {
        let mut fields = RequestFields(BTreeMap::new());
        let known: Vec<&Parameter> = endpoint.parameters().collect();
        fields.add("", &known, json::object(body)?)?;
        Ok(fields)
    }

    fn add(&mut self, group: &str, known: &[&Parameter], object: Map<String, Value>) -> Result<(), Refusal> {
        for (key, value) in object {
            let Some(parameter) = known.iter().find(|parameter| parameter.name == key) else {
                let mut names = known.iter().map(|parameter| parameter.name);
                let near = match FOREIGN.iter().find(|(other, _)| *other == key) {
                    Some((_, ours)) => names.find(|name| name == ours),
                    None => nearest(&key, names),
                };
                let refusal = Refusal::unknown_parameter(&format!("{group}{key}"), near);
                let has = |endpoint: &&Endpoint| endpoint.parameters().any(|parameter| parameter.name == key);
                let other = ENDPOINTS.iter().find(has).filter(|_| near.is_none() && group.is_empty());
                return Err(other.map_or(refusal.clone(), |other| refusal.meant_for(other.path)));
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

    /// A parameter as it was sent.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }

    /// A parameter that is needed.
    ///
    /// # Errors
    /// If it is missing.
    pub fn needed(&self, name: &str, expected: &str) -> Result<&Value, Refusal> {
        self.get(name).ok_or_else(|| Refusal::missing_field(name, expected))
    }

    /// A text.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.get(name)?.as_str()
    }

    /// A flag, false if left out.
    pub fn flag(&self, name: &str) -> bool {
        self.flag_or(name, false)
    }

    /// A flag.
    pub fn flag_or(&self, name: &str, default: bool) -> bool {
        self.get(name).and_then(Value::as_bool).unwrap_or(default)
    }

    /// An integer.
    pub fn whole(&self, name: &str) -> Option<i64> {
        self.get(name)?.as_i64()
    }

    /// An integer that is not negative.
    pub fn count(&self, name: &str) -> Option<usize> {
        self.whole(name).and_then(|value| usize::try_from(value).ok())
    }

    /// A number.
    pub fn number(&self, name: &str) -> Option<f64> {
        self.get(name)?.as_f64()
    }
}

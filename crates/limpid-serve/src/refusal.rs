//! Why a request is refused: one constructor for each code, so that code, status and kind cannot drift apart.
//!
//! A message names the thing, what was expected, what was found, and the remedy. It repeats at most 64 bytes of what a
//! user sent, escaped ([`quoted`]).

use crate::hosts::{origin_name, without_port};
use crate::routes::meant;
use serde_json::{Value, json};

/// An error as a client gets it: `{"error": {"message", "type", "param", "code"}}`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct Refusal {
    /// Of HTTP.
    pub status: u16,
    /// What a program can act on.
    pub code: &'static str,
    /// The parameter at fault.
    pub param: Option<String>,
    /// What a person reads.
    pub message: String,
    /// Seconds after which another try makes sense.
    pub retry_after: Option<u32>,
    /// What happened, for the log and not for the client.
    pub cause: Option<String>,
}

/// What a request comes to, unless it is refused.
pub(crate) type Result<T, E = Refusal> = std::result::Result<T, E>;

/// Bytes of a user's text that a message repeats.
const QUOTED: usize = 64;

/// Characters of what the library says, which itself shows little of a text.
const SAID: usize = 300;

/// Bytes of an origin that a message names whole: those of a name of the internet, and more.
const ORIGIN: usize = 128;

/// Paths of OpenAI's and other servers that limpid lacks, and what to use instead.
const LACKING: &[(&str, &str)] = &[
    ("/v1/responses", "send `messages` to /v1/chat/completions"),
    ("/v1/messages", "that is Anthropic's protocol; send `messages` to /v1/chat/completions"),
    ("/api/chat", "that is Ollama's protocol; send `messages` to /v1/chat/completions"),
    ("/api/generate", "that is Ollama's protocol; send `prompt` to /v1/completions"),
    ("/api/tags", "that is Ollama's protocol; /v1/models names the model"),
    ("/completion", "that is llama.cpp's own protocol; send `prompt` to /v1/completions"),
    ("/v1/moderations", "this server has one model, which continues texts"),
    ("/v1/images/generations", "this server has one model, which continues texts"),
    ("/v1/audio/speech", "this server has one model, which continues texts"),
    ("/v1/audio/transcriptions", "this server has one model, which continues texts"),
];

/// Every code, its status and when it comes: the table of `/docs`, of docs/serve.md and of the tests.
pub const CODES: &[(&str, u16, &str)] = &[
    ("invalid_json", 400, "the body is not JSON, or not an object"),
    ("invalid_type", 400, "a parameter is not of its type"),
    ("invalid_value", 400, "a parameter is outside its range"),
    ("missing_field", 400, "a required parameter is missing"),
    ("unknown_parameter", 400, "there is no parameter of that name"),
    ("unsupported_parameter", 400, "OpenAI has the parameter, limpid does not, and it is not at its neutral value"),
    ("token_out_of_range", 400, "a token id is not in the model's vocabulary"),
    ("context_length_exceeded", 400, "prompt and answer do not fit the model's context"),
    ("no_chat_template", 400, "the model has no chat template"),
    ("kv_full", 400, "prompt and answer need more of the KV cache than there is"),
    ("empty_prompt", 400, "there is nothing to look at"),
    ("prompt_too_long", 400, "the prompt to look at is longer than the context; \"last\": true keeps its end"),
    ("too_large", 400, "a trace, or a part of one, is larger than the limit"),
    ("sweep_too_large", 400, "a sweep runs more than 10 million token-layers; \"confirm\": true runs it"),
    ("out_of_time", 400, "an answer about the model's inside takes too long: ask for less"),
    ("index_out_of_range", 400, "an index is outside the tensor"),
    ("not_for_this_model", 400, "the model does not have what was asked for"),
    ("invalid_api_key", 401, "the key is missing or wrong"),
    ("host_not_allowed", 403, "the Host header does not name this server"),
    ("origin_not_allowed", 403, "the request comes from a page of another site"),
    ("interventions_disabled", 403, "the server was started without --allow-interventions"),
    ("not_found", 404, "there is no such path"),
    ("unknown_tensor", 404, "the model has no tensor of that name; the nearest is in the message"),
    ("trace_expired", 404, "the trace was dropped to make room for others; ask for it again"),
    ("inspect_disabled", 404, "looking inside is turned off on this server"),
    ("model_not_found", 404, "the model named is not the one that is served"),
    ("method_not_allowed", 405, "the path does not accept this method"),
    ("request_timeout", 408, "the request did not arrive in time"),
    ("body_too_large", 413, "the body is larger than the limit"),
    ("uri_too_long", 414, "the path is longer than the limit"),
    ("unsupported_media_type", 415, "the body is not sent as application/json"),
    ("unsupported_encoding", 415, "the body is compressed"),
    ("queue_full", 429, "too many requests wait; Retry-After says when to try again"),
    ("headers_too_large", 431, "the headers are larger than the limit"),
    ("engine_error", 500, "the model failed; the log says why"),
    ("unsupported_transfer_encoding", 501, "the body is sent with a Transfer-Encoding other than chunked"),
    ("loading", 503, "the model is not in memory yet"),
    ("stopping", 503, "the server is stopping"),
];

/// At most 64 bytes of a user's text, with quotes, control characters and line ends escaped.
pub fn quoted(text: &str) -> String {
    let mut quoted = String::new();
    for letter in text.chars() {
        let escaped: String = match letter {
            '`' => "'".into(), // messages put names between them
            '"' | '\'' => letter.into(),
            _ => letter.escape_debug().collect(),
        };
        if quoted.len() + escaped.len() > QUOTED {
            return quoted + "...";
        }
        quoted += &escaped;
    }
    quoted
}

/// What a value is, to say what was found: `3.5`, `"warm"`, `null`, `an array`.
pub fn found(value: &Value) -> String {
    match value {
        Value::Array(items) if items.is_empty() => "an empty array".into(),
        Value::Array(_) => "an array".into(),
        Value::Object(object) => match object.get("type").and_then(Value::as_str) {
            Some(kind) => format!("an object of the type \"{}\"", quoted(kind)),
            None => "an object".into(),
        },
        Value::String(text) => format!("\"{}\"", quoted(text)),
        other => other.to_string(),
    }
}

impl Refusal {
    fn new(code: &'static str, message: impl Into<String>) -> Refusal {
        let status = CODES.iter().find(|(known, ..)| *known == code).map_or(500, |(_, status, _)| *status);
        Refusal { status, code, param: None, message: message.into(), retry_after: None, cause: None }
    }

    fn of(code: &'static str, param: &str, message: impl Into<String>) -> Refusal {
        Refusal { param: Some(quoted(param)), ..Refusal::new(code, message) }
    }

    fn retry_after(self, seconds: u32) -> Refusal {
        Refusal { retry_after: Some(seconds), ..self }
    }

    /// Its `type`, which follows from the status.
    fn kind(&self) -> &'static str {
        match self.status {
            401 => "authentication_error",
            403 => "permission_error",
            429 => "rate_limit_error",
            500.. => "server_error",
            _ => "invalid_request_error",
        }
    }

    /// The body of the answer.
    pub fn body(&self) -> Value {
        json!({ "error": { "message": self.message, "type": self.kind(), "param": self.param, "code": self.code } })
    }

    // ---- looking inside

    /// An error of a look inside the model.
    pub fn glass(code: &'static str, message: String) -> Refusal {
        if code == "engine_error" {
            return Refusal::engine_error(message);
        }
        Refusal::new(code, message.chars().take(SAID).collect::<String>())
    }

    /// Traces take all the memory that they may.
    pub fn inspect_full(message: String, retry_after: u32) -> Refusal {
        Refusal::new("queue_full", message).retry_after(retry_after)
    }

    /// Looking inside is switched off.
    pub fn inspect_disabled() -> Refusal {
        let message = "this server was started with --no-inspect, so looking inside is turned off";
        Refusal::new("inspect_disabled", message)
    }

    /// The model's computation may not be changed.
    pub fn interventions_disabled(param: &str) -> Refusal {
        let message = "this server allows no interventions: start it with --allow-interventions to permit it";
        Refusal::of("interventions_disabled", param, message)
    }

    /// The server only shows the inside of its model.
    pub fn looked_at_alone() -> Refusal {
        let message = "this server only shows the inside of a model: to continue texts, use `limpid serve`";
        Refusal::new("not_for_this_model", message)
    }

    // ---- bodies

    /// The body is not JSON, or JSON that is not accepted.
    pub fn invalid_json(message: String) -> Refusal {
        Refusal::new("invalid_json", message)
    }

    /// `param` is of another type than `expected`.
    pub fn invalid_type(param: &str, expected: &str, value: &Value) -> Refusal {
        Refusal::of("invalid_type", param, format!("`{}` must be {expected}, found {}", quoted(param), found(value)))
    }

    /// `param` is not `expected`.
    pub fn invalid_value(param: &str, expected: &str, found: &str) -> Refusal {
        Refusal::of("invalid_value", param, format!("`{}` must be {expected}, found {found}", quoted(param)))
    }

    /// A text that the library refuses, with its reason: a character that the tokenizer lacks, a message that a
    /// template does not accept.
    pub fn invalid_text(param: &str, said: &str) -> Refusal {
        let said: String = said.chars().map(|c| if c.is_control() { ' ' } else { c }).take(SAID).collect();
        Refusal::of("invalid_value", param, format!("`{}`: {said}", quoted(param)))
    }

    /// `param` is needed; `expected` says what it is.
    pub fn missing_field(param: &str, expected: &str) -> Refusal {
        Refusal::of("missing_field", param, format!("`{param}` is missing; expected {expected}"))
    }

    /// No parameter has this name; `nearest` may be the one that was meant.
    pub fn unknown_parameter(param: &str, nearest: Option<&str>) -> Refusal {
        let name = quoted(param);
        let message = match nearest {
            Some(near) => format!("`{name}` is not a parameter here; did you mean `{near}`?"),
            None => format!("`{name}` is not a parameter here; /docs lists all of them. Leave it out"),
        };
        Refusal::of("unknown_parameter", param, message)
    }

    /// The same of a parameter that another path has.
    #[must_use]
    pub fn meant_for(self, path: &str) -> Refusal {
        let name = self.param.clone().unwrap_or_default();
        Refusal { message: format!("`{name}` is not a parameter here, but one of {path}"), ..self }
    }

    /// A parameter of OpenAI's that limpid lacks, and not at the value that changes nothing.
    pub fn unsupported_parameter(param: &str, neutral: &str, found: &str) -> Refusal {
        let message = format!("`{param}` is not supported: leave it out, or send {neutral}; found {found}");
        Refusal::of("unsupported_parameter", param, message)
    }

    /// A token that the model lacks, at a place such as `prompt[2][17]`.
    pub fn token_out_of_range(param: &str, id: &str, vocab_size: usize) -> Refusal {
        let message = format!("{param} is {}; this model has ids 0 to {}", quoted(id), vocab_size.saturating_sub(1));
        Refusal::of("token_out_of_range", param, message)
    }

    /// More tokens than the context holds. `wanted` are those of the answer, where the request names them.
    pub fn context_length_exceeded(param: &str, context: usize, prompt: usize, wanted: Option<u64>) -> Refusal {
        let limit = format!("This model's maximum context length is {context} tokens.");
        let message = match wanted {
            Some(wanted) => format!(
                "{limit} However, you requested {} tokens ({prompt} in the {param}, {wanted} in the completion). \
                 Please reduce the length of the {param} or completion.",
                prompt as u64 + wanted,
            ),
            None => format!(
                "{limit} However, your {param} resulted in {prompt} tokens. Please reduce the length of the {param}."
            ),
        };
        Refusal::of("context_length_exceeded", param, message)
    }

    /// A conversation for a model that has no template.
    pub fn no_chat_template() -> Refusal {
        let message = "this model has no chat template, so it cannot read `messages`: use /v1/completions, or start \
                       the server with --chat-template FILE";
        Refusal::of("no_chat_template", "messages", message)
    }

    /// A request that needs more of the KV cache than the whole of it.
    pub fn kv_full(needed: u64, tokens: u64) -> Refusal {
        let message = format!(
            "prompt and answer need {needed} tokens of the KV cache, which has {tokens}: ask for fewer tokens, or \
             start the server with a larger --kv-memory"
        );
        Refusal::of("kv_full", "max_tokens", message)
    }

    // ---- who asks, and how

    /// No key, or a wrong one: the same words for both.
    pub fn invalid_api_key() -> Refusal {
        let message = "this server needs a key: send `Authorization: Bearer KEY` with one that it was started with";
        Refusal::new("invalid_api_key", message)
    }

    /// A Host header that does not name this server.
    pub fn host_not_allowed(host: &str) -> Refusal {
        let name = quoted(without_port(host).unwrap_or_default());
        let remedy = if name.is_empty() {
            "send its name or address".into()
        } else {
            format!("start it with --allow-host {name} to permit it")
        };
        Refusal::new("host_not_allowed", format!("`Host: {}` is not this server; {remedy}", quoted(host)))
    }

    /// A page of another site. One that the server can permit is named whole: the name is what has to be given.
    pub fn origin_not_allowed(origin: &str) -> Refusal {
        let message = match origin_name(origin).filter(|name| name == origin && name != "*" && name.len() <= ORIGIN) {
            Some(name) => {
                format!("a page of {name} may not ask this server; start it with --cors-origin {name} to permit it")
            }
            None => format!(
                "a page of \"{}\" may not ask this server: that is not an origin that can be permitted",
                quoted(origin)
            ),
        };
        Refusal::new("origin_not_allowed", message)
    }

    /// A path that does not exist.
    pub fn not_found(path: &str) -> Refusal {
        let name = quoted(path);
        let message = match (meant(path), LACKING.iter().find(|(lacking, _)| *lacking == path)) {
            (Some(meant), _) if meant.starts_with("/v1/") => format!(
                "there is nothing at {name}; did you mean {meant}? The base URL of OpenAI's clients is this server's \
                 address and /v1"
            ),
            (Some(meant), _) => format!("there is nothing at {name}; did you mean {meant}?"),
            (_, Some((_, instead))) => format!("{name} is not supported: {instead}"),
            (None, None) => format!(
                "there is nothing at {name}; there are /v1/chat/completions, /v1/completions, /v1/embeddings and \
                 /v1/models, and /docs lists the rest"
            ),
        };
        Refusal::new("not_found", message)
    }

    /// Another model than the one that is served.
    pub fn model_not_found(model: &str, served: &str) -> Refusal {
        let message = format!("there is no model `{}` here; this server has `{served}`", quoted(model));
        Refusal::of("model_not_found", "model", message)
    }

    /// A path with another method.
    pub fn method_not_allowed(method: &str, path: &str, allowed: &str) -> Refusal {
        Refusal::new("method_not_allowed", format!("{} takes {allowed}, found {}", quoted(path), quoted(method)))
    }

    /// A request that came too slowly: `what` is its headers or its body.
    pub fn request_timeout(what: &str, seconds: u64) -> Refusal {
        Refusal::new("request_timeout", format!("the {what} did not arrive within {seconds} s: send it faster"))
    }

    /// A body of more than `limit` bytes.
    pub fn body_too_large(limit: u64) -> Refusal {
        let message =
            format!("the body is larger than {limit} bytes: send less, or start the server with a larger --max-body");
        Refusal::new("body_too_large", message)
    }

    /// A path of more than `limit` bytes.
    pub fn uri_too_long(limit: usize) -> Refusal {
        Refusal::new("uri_too_long", format!("the path is longer than {limit} bytes: shorten it"))
    }

    /// A body that is not sent as JSON.
    pub fn unsupported_media_type(found: &[&str]) -> Refusal {
        let found = match found {
            [] => "none".into(),
            [one] => quoted(one),
            [first, second, ..] => format!("{} and {}: send one", quoted(first), quoted(second)),
        };
        let message = format!("the body must be sent with `Content-Type: application/json`, found {found}");
        Refusal::new("unsupported_media_type", message)
    }

    /// A body that is compressed.
    pub fn unsupported_encoding(coding: &str) -> Refusal {
        let coding = quoted(coding);
        let message =
            format!("the body is sent with `Content-Encoding: {coding}`: send it without, as it is, uncompressed");
        Refusal::new("unsupported_encoding", message)
    }

    /// A Transfer-Encoding other than chunked.
    pub fn unsupported_transfer_encoding(coding: &str) -> Refusal {
        let coding = quoted(coding);
        let message = format!(
            "the body is sent with `Transfer-Encoding: {coding}`: send it chunked or with a Content-Length, as it is"
        );
        Refusal::new("unsupported_transfer_encoding", message)
    }

    /// Headers of more than `limit` bytes.
    pub fn headers_too_large(limit: usize) -> Refusal {
        let message = format!("the headers are larger than {limit} bytes: send fewer or shorter ones");
        Refusal::new("headers_too_large", message)
    }

    // ---- the server

    /// Too many requests wait.
    pub fn queue_full(waiting: usize, retry_after: u32) -> Refusal {
        let message = format!("{waiting} prompts wait already: try again in {retry_after} s");
        Refusal::new("queue_full", message).retry_after(retry_after)
    }

    /// The model failed. What happened is for the log, not for the client.
    pub fn engine_error(cause: impl ToString) -> Refusal {
        let message = "the server failed on this request; its log says why, under the request id of this answer";
        Refusal { cause: Some(cause.to_string()), ..Refusal::new("engine_error", message) }
    }

    /// The model is not in memory yet.
    pub fn loading() -> Refusal {
        Refusal::new("loading", "the model is being loaded: try again in a second").retry_after(1)
    }

    /// The server stops.
    pub fn stopping() -> Refusal {
        Refusal::new("stopping", "the server is stopping: ask again when it is back").retry_after(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_users_text_is_repeated_short_and_escaped() {
        assert_eq!(quoted("top_p"), "top_p");
        assert_eq!(quoted("a\n`b`\u{0}\u{202e}"), "a\\n'b'\\0\\u{202e}");
        for text in ["x".repeat(1000), "\u{202e}".repeat(1000), "🙂".repeat(1000), "\n".repeat(65)] {
            let quoted = quoted(&text);
            assert!(quoted.ends_with("...") && quoted.len() <= QUOTED + 3 && quoted.len() > QUOTED - 10, "{quoted}");
        }
        assert_eq!(quoted(&"x".repeat(64)), "x".repeat(64));
    }

    /// A constructor with a code that the table lacks, or a code without a constructor, would show here.
    #[test]
    fn every_code_has_a_constructor_and_its_status() {
        let long = "evil\n".repeat(100);
        let value = Value::String(long.clone());
        let glass = |code| Refusal::glass(code, "as the glass box says it".into());
        let all = [
            Refusal::invalid_json("line 1".into()),
            Refusal::invalid_type(&long, "a number", &value),
            Refusal::invalid_value(&long, "at most 2", &found(&value)),
            Refusal::missing_field("prompt", "a text"),
            Refusal::unknown_parameter(&long, None),
            Refusal::unsupported_parameter("tools", "[]", &found(&value)),
            Refusal::token_out_of_range("prompt[0]", &long, 65),
            Refusal::context_length_exceeded("prompt", 64, 60, Some(10)),
            Refusal::no_chat_template(),
            Refusal::kv_full(100, 64),
            glass("empty_prompt"),
            glass("prompt_too_long"),
            glass("too_large"),
            glass("sweep_too_large"),
            glass("out_of_time"),
            glass("index_out_of_range"),
            Refusal::looked_at_alone(),
            Refusal::invalid_api_key(),
            Refusal::host_not_allowed(&long),
            Refusal::origin_not_allowed(&long),
            Refusal::interventions_disabled("limpid.interventions"),
            Refusal::not_found(&long),
            glass("unknown_tensor"),
            glass("trace_expired"),
            Refusal::inspect_disabled(),
            Refusal::model_not_found(&long, "nano"),
            Refusal::method_not_allowed(&long, &long, "POST"),
            Refusal::request_timeout("body", 30),
            Refusal::body_too_large(1 << 20),
            Refusal::uri_too_long(8192),
            Refusal::unsupported_media_type(&[&long, &long]),
            Refusal::unsupported_encoding(&long),
            Refusal::queue_full(256, 3),
            Refusal::headers_too_large(16384),
            Refusal::engine_error("a fault"),
            Refusal::unsupported_transfer_encoding(&long),
            Refusal::loading(),
            Refusal::stopping(),
        ];
        let made: Vec<(&str, u16)> = all.iter().map(|refusal| (refusal.code, refusal.status)).collect();
        assert_eq!(made, CODES.iter().map(|(code, status, _)| (*code, *status)).collect::<Vec<_>>());
        for refusal in all {
            assert!(!refusal.message.contains('\n') && refusal.message.len() < 400, "{}", refusal.message);
            assert!(!refusal.message.contains(&"evil\\n".repeat(12)), "{}", refusal.message);
            let kinds = [(401, "authentication_error"), (403, "permission_error"), (429, "rate_limit_error")];
            let kind = kinds.into_iter().find(|(status, _)| *status == refusal.status).map(|(_, kind)| kind);
            assert_eq!(
                refusal.kind(),
                kind.unwrap_or(if refusal.status < 500 { "invalid_request_error" } else { "server_error" })
            );
            let body = refusal.body();
            let keys: Vec<&String> = body["error"].as_object().unwrap().keys().collect();
            assert_eq!(keys, ["code", "message", "param", "type"]);
            assert_eq!(refusal.retry_after.is_some(), [429, 503].contains(&refusal.status), "{refusal}");
        }
    }

    #[test]
    fn a_context_that_is_exceeded_is_told_in_openais_words() {
        let told = |wanted| Refusal::context_length_exceeded("prompt", 1024, 1030, wanted).message;
        assert_eq!(
            told(Some(10)),
            "This model's maximum context length is 1024 tokens. However, you requested 1040 tokens (1030 in the \
             prompt, 10 in the completion). Please reduce the length of the prompt or completion."
        );
        assert!(told(None).contains("your prompt resulted in 1030 tokens"));
    }
}

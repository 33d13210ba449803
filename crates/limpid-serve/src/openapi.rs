//! The content of `/openapi.json`: paths from the table of routes, request bodies from the tables of parameters, and
//! the answers, which are described here. Tests hold it to real requests and real answers.

use crate::parameters::{
    APPLY_TEMPLATE, CHAT, COMPLETIONS, DETOKENIZE, EMBEDDINGS, Parameter, REQUEST_BODIES, RequestBody, TOKENIZE,
};
use crate::routes::{Endpoint, ROUTES, Route};
use crate::schema::{
    any_of, array, boolean, described, integer, integer_between, interventions, message, natural, nullable, number,
    object, one_of, record, reference, string, token_ids,
};
use serde_json::{Map, Value, json};
use std::sync::LazyLock;

/// The document of a server that needs a key, or needs none.
pub fn document(keys: bool) -> &'static str {
    static DOCUMENTS: LazyLock<[String; 2]> =
        LazyLock::new(|| [false, true].map(|keys| format!("{:#}\n", write(keys))));
    &DOCUMENTS[usize::from(keys)]
}

fn write(keys: bool) -> Value {
    let mut paths = json!({});
    for route in ROUTES {
        paths[route.path][route.method.to_lowercase()] = operation(route);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "limpid serve",
            "version": "1",
            "description": "OpenAI's protocol, from one model, with the same bits whoever else asks. GET paths \
                            take HEAD too. /docs lists the parameters, the errors and every difference from OpenAI.",
        },
        "security": if keys { json!([{ "key": [] }]) } else { json!([]) },
        "paths": paths,
        "components": {
            "securitySchemes": {
                "key": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "Needed only if the server was started with a key.",
                },
            },
            "schemas": schemas(),
        },
    })
}

fn operation(route: &Route) -> Value {
    let (body, answer) = exchange(route.endpoint);
    let error = json!({ "description": "An error.", "content": content("application/json", reference("Error")) });
    let mut operation = json!({
        "summary": route.about,
        "responses": { "200": { "description": "The answer.", "content": answer }, "default": error },
    });
    if let Some(name) = body {
        operation["requestBody"] = json!({ "required": true, "content": content("application/json", reference(name)) });
    }
    if route.path.ends_with("{id}") {
        let id = json!({ "name": "id", "in": "path", "required": true, "schema": string() });
        let query = if route.endpoint == Endpoint::Look { query() } else { vec![] };
        operation["parameters"] = std::iter::once(id).chain(query).collect();
    }
    if route.open {
        operation["security"] = json!([]);
    }
    operation
}

fn content(kind: &str, schema: Value) -> Value {
    json!({ kind: { "schema": schema } })
}

/// The schema of an endpoint's request body, and the content of its answer.
fn exchange(endpoint: Endpoint) -> (Option<&'static str>, Value) {
    let json = |name| content("application/json", reference(name));
    let post = |body: RequestBody, answer| (Some(body.schema), json(answer));
    let stream = |body: RequestBody, answer, chunk| {
        let answer = json!({
            "application/json": { "schema": reference(answer) },
            "text/event-stream": { "schema": event(chunk) },
        });
        (Some(body.schema), answer)
    };
    let any = json!({ "type": "object" });
    let binary = json!({ "type": "string", "format": "binary" });
    match endpoint {
        Endpoint::ApplyTemplate => post(APPLY_TEMPLATE, "Templated"),
        Endpoint::Chat => stream(CHAT, "Chat", "ChatChunk"),
        Endpoint::Completions => stream(COMPLETIONS, "Completion", "Completion"),
        Endpoint::Detokenize => post(DETOKENIZE, "Text"),
        Endpoint::Docs | Endpoint::Page => (None, content("text/html", string())),
        Endpoint::Embeddings => post(EMBEDDINGS, "Embeddings"),
        Endpoint::Forget | Endpoint::OpenApi => (None, content("application/json", any)),
        Endpoint::Health => (None, json("Health")),
        Endpoint::Look => {
            let answer = json!({
                "application/json": { "schema": any },
                "text/csv": { "schema": string() },
                "application/octet-stream": { "schema": binary },
            });
            (None, answer)
        }
        Endpoint::LookInto => {
            let answer = json!({
                "application/x-ndjson": { "schema": any },
                "application/vnd.limpid.tiles": { "schema": binary },
            });
            (Some("LookRequest"), answer)
        }
        Endpoint::Metrics => (None, content("text/plain", string())),
        Endpoint::Model => (None, json("Model")),
        Endpoint::Models => (None, json("Models")),
        Endpoint::Tokenize => post(TOKENIZE, "Tokens"),
        Endpoint::TokenizerInfo => (None, json("TokenizerInfo")),
    }
}

/// A server-sent event whose data is a chunk, an error, or the end.
fn event(chunk: &str) -> Value {
    let data = json!({
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": any_of(&[reference(chunk), reference("Error")]),
    });
    let data = any_of(&[one_of(&["[DONE]"]), data]);
    json!({ "type": "object", "description": "An event.", "properties": { "data": data }, "required": ["data"] })
}

/// The query of a question about the inside.
fn query() -> Vec<Value> {
    let most = |most: i64| integer_between(0, most);
    let parameters = [
        ("at", string(), "Of tensors/NAME and explain/NAME: a number, a:b or * for each axis."),
        ("other", string(), "Of tensors/NAME: a trace to subtract."),
        ("stats", one_of(&["0", "1", "false", "true"]), "Of tensors/NAME."),
        ("format", one_of(&["json", "csv", "npy", "safetensors", "f32"]), "Of tensors/NAME."),
        ("positions", string(), "Of lens: a number, a:b or *."),
        ("k", most(1000), "Of lens (at most 100) and of predictions: how many tokens."),
        ("position", natural(), "Of path, attribution, mlp and predictions."),
        ("target", natural(), "Of path and attribution: a token."),
        ("word", string(), "Of path: the text of that token."),
        ("via", string(), "Of path: the parts that are followed, as h2.1,t5,m0,u17."),
        ("foil", string(), "Of path and attribution: a token, or none."),
        ("unit", one_of(&["component", "head", "neuron"]), "Of attribution."),
        ("layer", natural(), "Of mlp."),
    ];
    let one = |(name, schema, about): (_, _, _)| -> Value {
        json!({ "name": name, "in": "query", "schema": schema, "description": about })
    };
    parameters.map(one).into()
}

fn schemas() -> Value {
    let mut schemas: Map<String, Value> =
        REQUEST_BODIES.iter().map(|body| (body.schema.to_string(), request(body))).collect();
    let others = [
        ("LookRequest", look()),
        ("Message", message()),
        ("Usage", usage()),
        ("Own", own()),
        ("Completion", completion()),
        ("Chat", chat()),
        ("ChatChunk", chat_chunk()),
        ("Embeddings", embeddings()),
        ("Model", model()),
        ("Models", record(&[("object", one_of(&["list"])), ("data", array(reference("Model")))])),
        ("Tokens", tokens()),
        ("Text", record(&[("prompt", string()), ("content", string())])),
        ("Templated", record(&[("prompt", string())])),
        ("TokenizerInfo", tokenizer_info()),
        ("Health", record(&[("status", one_of(&["ok", "loading", "stopping", "failing"]))])),
        ("Error", record(&[("error", error())])),
    ];
    schemas.extend(others.map(|(name, schema)| (name.to_string(), schema)));
    schemas.into()
}

// ---- requests

/// A body with the parameters of its tables.
fn request(body: &RequestBody) -> Value {
    let (required, optional): (Vec<_>, Vec<_>) = body.parameters().partition(|parameter| parameter.required);
    let schema_of = |parameter: &&Parameter| (parameter.name, parameter.schema());
    let required: Vec<_> = required.iter().map(schema_of).collect();
    let optional: Vec<_> = optional.iter().map(schema_of).collect();
    let mut request = object(&required, &optional);
    if let [others @ .., last] = body.exactly_one {
        let given = body.parameters().filter(|parameter| body.exactly_one.contains(&parameter.name)).map(|parameter| {
            let name = parameter.name;
            json!({ "required": [name], "properties": { name: parameter.kind.schema() }, "additionalProperties": true })
        });
        request["oneOf"] = given.collect();
        request["description"] = format!("Exactly one of `{}` and `{last}`.", others.join("`, `")).into();
    }
    request
}

/// The body of a run, of a walk, or of a question for tiles.
fn look() -> Value {
    let tile = object(
        &[
            ("name", described(string(), "A tensor, or cos(NAME).")),
            ("tile", json!({ "type": "array", "items": natural(), "minItems": 2, "maxItems": 2 })),
            ("pool", one_of(&["max", "absmax", "mean"])),
            ("code", one_of(&["f32", "lin8", "log8", "slog8"])),
        ],
        &[
            ("index", json!({ "type": ["array", "null"], "items": natural(), "maxItems": 8 })),
            ("level", nullable(integer_between(0, 12))),
            ("other", described(nullable(string()), "A trace to subtract.")),
        ],
    );
    let mut tiles = described(nullable(array(tile)), "Parts of matrices.");
    tiles["maxItems"] = 256.into();
    let look = object(
        &[],
        &[
            ("prompt", described(nullable(string()), "The text to run, or to use in a walk.")),
            ("tokens", described(nullable(token_ids()), "Token ids instead of a text.")),
            ("last", described(nullable(boolean()), "Keep the end of a prompt that is longer than the context.")),
            ("model", described(nullable(string()), "Which model, if there are several.")),
            ("walk", described(nullable(string()), "Which walk.")),
            ("own", described(nullable(boolean()), "Run the walk on the served model.")),
            (
                "interventions",
                described(nullable(interventions()), "What to change in the run; see limpid.interventions."),
            ),
            ("tiles", tiles),
        ],
    );
    described(
        look,
        "The fields depend on the path. traces: `prompt` or `tokens`, `last`, `model` and `interventions`. walks: \
         `walk`, `own`, `model` and `prompt`. traces/ID/tiles: `tiles`.",
    )
}

// ---- answers

fn byte() -> Value {
    integer_between(0, 255)
}

fn usage() -> Value {
    let count = |name| (name, integer());
    let details = record(&[count("cached_tokens")]);
    let counts = [count("prompt_tokens"), count("completion_tokens"), count("total_tokens")];
    record(&[&counts[..], &[("prompt_tokens_details", details)]].concat())
}

/// What limpid adds to an answer.
fn own() -> Value {
    let seed = json!({ "type": "integer", "format": "int64" });
    let receipt = json!({ "type": "object", "description": "For `limpid replay`." });
    object(&[("seed", seed)], &[("receipt", receipt)])
}

/// What every answer of the engine begins with.
fn envelope(kind: &str, choice: Value) -> Vec<(&'static str, Value)> {
    vec![
        ("id", string()),
        ("created", integer()),
        ("model", string()),
        ("system_fingerprint", string()),
        ("object", one_of(&[kind])),
        ("choices", array(choice)),
    ]
}

/// One of the choices; `said` is its text or message.
fn choice(said: (&str, Value), log_probs: Value) -> Value {
    let finish_reason = nullable(one_of(&["stop", "length"]));
    record(&[("index", integer()), said, ("logprobs", nullable(log_probs)), ("finish_reason", finish_reason)])
}

fn completion() -> Value {
    let top = json!({ "type": "object", "properties": {}, "additionalProperties": number() });
    let log_probs = record(&[
        ("tokens", array(string())),
        ("token_logprobs", array(nullable(number()))),
        ("top_logprobs", array(nullable(top))),
        ("text_offset", array(integer())),
    ]);
    let envelope = envelope("text_completion", choice(("text", string()), log_probs));
    let more = [("usage", nullable(reference("Usage"))), ("limpid", reference("Own"))];
    described(object(&envelope, &more), "A whole answer, or a chunk of a stream.")
}

fn chat_log_probs() -> Value {
    let token = [("token", string()), ("logprob", number()), ("bytes", nullable(array(byte())))];
    let top = ("top_logprobs", array(record(&token)));
    record(&[("content", array(record(&[&token[..], &[top]].concat())))])
}

fn chat() -> Value {
    let refusal = json!({ "type": "null" });
    let message = object(&[("role", one_of(&["assistant"])), ("content", string())], &[("refusal", refusal)]);
    let mut required = envelope("chat.completion", choice(("message", message), chat_log_probs()));
    required.extend([("usage", reference("Usage")), ("limpid", reference("Own"))]);
    record(&required)
}

fn chat_chunk() -> Value {
    let delta = object(&[], &[("role", one_of(&["assistant"])), ("content", string())]);
    let envelope = envelope("chat.completion.chunk", choice(("delta", delta), chat_log_probs()));
    object(&envelope, &[("usage", nullable(reference("Usage"))), ("limpid", reference("Own"))])
}

fn embeddings() -> Value {
    let vector = any_of(&[array(number()), string()]);
    let one = record(&[("object", one_of(&["embedding"])), ("index", integer()), ("embedding", vector)]);
    let usage = record(&[("prompt_tokens", integer()), ("total_tokens", integer())]);
    record(&[("object", one_of(&["list"])), ("model", string()), ("data", array(one)), ("usage", usage)])
}

fn model() -> Value {
    let continues = described(
        boolean(),
        "Whether the model continues texts: it is causal and has a head and a tokenizer. Other models can be looked \
         into.",
    );
    let own = record(&[
        ("step", nullable(integer())),
        ("context_length", integer()),
        ("vocab_size", integer()),
        ("parameters", nullable(integer())),
        ("weights", string()),
        ("continues", continues),
        ("trains", described(boolean(), "Whether the model is being trained in the server's process.")),
    ]);
    record(&[
        ("id", string()),
        ("object", one_of(&["model"])),
        ("created", integer()),
        ("owned_by", string()),
        ("max_model_len", integer()),
        ("limpid", own),
    ])
}

fn tokens() -> Value {
    let piece = record(&[("id", integer()), ("piece", any_of(&[string(), array(byte())]))]);
    let tokens = any_of(&[array(integer()), array(piece)]);
    let counts = [("count", integer()), ("max_model_len", integer()), ("tokens", tokens)];
    object(&counts, &[("token_strs", array(string()))])
}

fn tokenizer_info() -> Value {
    let special = |name| (name, nullable(string()));
    record(&[
        special("eos_token"),
        special("bos_token"),
        special("pad_token"),
        special("chat_template"),
        ("tokenizer_class", string()),
        ("vocab_size", integer()),
    ])
}

fn error() -> Value {
    let param = nullable(string());
    record(&[("message", string()), ("type", string()), ("param", param), ("code", string())])
}

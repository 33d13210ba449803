//! Every path of the server, its methods, and what is there. Requests are dispatched by this table, and `/openapi.json`
//! and `/docs` are made from it.

/// What can be asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Endpoint {
    ApplyTemplate,
    Chat,
    Completions,
    Detokenize,
    Docs,
    Embeddings,
    Forget,
    Health,
    Look,
    LookInto,
    Metrics,
    Model,
    Models,
    OpenApi,
    Page,
    Tokenize,
    TokenizerInfo,
}

/// A method of a path.
#[derive(Debug)]
pub struct Route {
    /// `GET` includes `HEAD`.
    pub method: &'static str,
    /// `{id}` stands for the rest of a path.
    pub path: &'static str,
    pub endpoint: Endpoint,
    /// Whether it is answered without a key.
    pub open: bool,
    pub about: &'static str,
}

const fn open(method: &'static str, path: &'static str, endpoint: Endpoint, about: &'static str) -> Route {
    Route { method, path, endpoint, open: true, about }
}

const fn locked(method: &'static str, path: &'static str, endpoint: Endpoint, about: &'static str) -> Route {
    Route { method, path, endpoint, open: false, about }
}

/// Every path; the methods of one stand together.
pub const ROUTES: &[Route] = &[
    open("GET", "/", Endpoint::Page, "The page: chat, completion, and a look inside the model"),
    locked("POST", "/apply-template", Endpoint::ApplyTemplate, "Write a conversation as the chat template does"),
    locked("POST", "/detokenize", Endpoint::Detokenize, "Turn tokens into text"),
    open("GET", "/docs", Endpoint::Docs, "Endpoints, parameters, errors, and the differences from OpenAI"),
    open("GET", "/health", Endpoint::Health, "Whether the server takes requests; 503 if not"),
    locked(
        "GET",
        "/inspect/v1/{id}",
        Endpoint::Look,
        "A question about the inside of the model: model, traces, traces/ID/tensors, traces/ID/tensors/NAME?at=0,3,*, \
         and more; docs/inside.md lists them",
    ),
    locked(
        "POST",
        "/inspect/v1/{id}",
        Endpoint::LookInto,
        "traces: run a prompt and report it block by block. traces/ID/tiles: parts of its matrices as pictures. \
         sweeps: patch one prompt's activations into another's run. units: what units of an MLP respond to. \
         directions: what tells two kinds of prompts apart. walks: read a document on a live model. training: stop the \
         training that this process runs",
    ),
    locked("DELETE", "/inspect/v1/{id}", Endpoint::Forget, "traces/ID: forget a trace"),
    locked("GET", "/metrics", Endpoint::Metrics, "Counts and durations, for Prometheus"),
    open("GET", "/openapi.json", Endpoint::OpenApi, "This description"),
    open("GET", "/ready", Endpoint::Health, "The same as /health"),
    locked("POST", "/tokenize", Endpoint::Tokenize, "Turn a text, or a conversation, into tokens"),
    locked("GET", "/tokenizer_info", Endpoint::TokenizerInfo, "The special tokens and the chat template"),
    locked("POST", "/v1/chat/completions", Endpoint::Chat, "Answer a conversation"),
    locked("POST", "/v1/completions", Endpoint::Completions, "Continue a text"),
    locked("POST", "/v1/embeddings", Endpoint::Embeddings, "Turn texts into vectors"),
    locked("GET", "/v1/models", Endpoint::Models, "The model that is served"),
    locked("GET", "/v1/models/{id}", Endpoint::Model, "The model, if this is its name"),
];

/// The pattern of a path in the table, which metrics and the log call it by.
#[cfg(feature = "http")]
pub fn pattern(path: &str) -> &'static str {
    let fits = |pattern: &str| pattern.strip_suffix("{id}").map_or(path == pattern, |start| path.starts_with(start));
    ROUTES.iter().map(|route| route.path).find(|pattern| fits(pattern)).unwrap_or("other")
}

/// What stands for `{id}` of a pattern in a path; none if the path is another.
pub fn rest<'a>(pattern: &str, path: &'a str) -> Option<&'a str> {
    match pattern.strip_suffix("{id}") {
        Some(start) => path.strip_prefix(start).filter(|rest| !rest.is_empty()),
        None => (path == pattern).then_some(""),
    }
}

/// The path that was probably meant by one that does not exist: a client's base URL lacks `/v1`, or has it twice.
pub fn meant(path: &str) -> Option<&'static str> {
    let path = path.trim_end_matches('/');
    let same = |known: &str| {
        known == path
            || known.strip_prefix("/v1") == Some(path)
            || path.strip_prefix("/v1").is_some_and(|rest| rest == known)
    };
    ROUTES.iter().map(|route| route.path).find(|known| known.len() > 1 && same(known))
}

/// The methods of a path of the table.
pub fn allowed(pattern: &str) -> String {
    let methods = ROUTES.iter().filter(|route| route.path == pattern).map(|route| route.method);
    methods.map(|method| if method == "GET" { "GET, HEAD" } else { method }).collect::<Vec<_>>().join(", ")
}

//! A request from its head to its answer: who asks and for what is checked here, and the work is given to whoever does
//! it.

use crate::answer::Answer;
use crate::body::{Content, ReplyBody, Stream};
use crate::incoming::{self, check_body_type, check_head};
use crate::look::query;
use crate::looking;
use crate::model::{ServedLease, seconds_since_1970};
use crate::openai::{self, Ask};
use crate::options::ServeEvent;
use crate::pulse::Busy;
use crate::refusal::{Refusal, Result};
use crate::reply::{HttpReply, JSON, add, document, health, preflight, refused, streamed, whole};
use crate::routes::{self, Endpoint, Route};
use crate::state::{Counted, LOOKS, Phase, ServerState};
use crate::threads::{on_thread, read_body};
use crate::tokens::Reader;
use crate::{dispatch, docs, embeddings, metrics, openapi, tokens};
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Response};
use limpid_glass::decoded;
use serde_json::Value;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Answers one request.
pub async fn answer(shared: Arc<ServerState>, busy: Busy, request: Request<Incoming>) -> Response<ReplyBody> {
    let held = (busy, Counted::new(&shared.busy));
    let id = request_id(request.headers());
    let path = routes::pattern(request.uri().path());
    let origin = shared.access.check(&request);
    let done = match &origin {
        Ok(origin) => reply(&shared, request, origin.is_some()).await,
        Err(refusal) => Err(refusal.clone()),
    };
    let mut response = done.unwrap_or_else(|refusal| {
        shared.metrics.add("limpid_rejected_total", &[("reason", refusal.code)], 1);
        log_fault(&shared, &id, path, &refusal);
        refused(&refusal, path)
    });
    if let Content::Events(stream) = response.body_mut() {
        let (shared, id) = (shared.clone(), id.clone());
        stream.report = Some(Box::new(move |refusal| log_fault(&shared, &id, path, refusal)));
    }
    if let Ok(Some(origin)) = origin {
        permit(&mut response, origin);
    }
    if *shared.phase.borrow() != Phase::Serving {
        add(&mut response, header::CONNECTION, "close");
    }
    add(&mut response, header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    add(&mut response, REQUEST_ID, &id);
    let code = response.status().as_str().to_string();
    shared.metrics.add("limpid_requests_total", &[("endpoint", path), ("code", &code)], 1);
    response.map(|content| ReplyBody::new(content, held))
}

/// Lets a page of another origin read an answer.
fn permit(response: &mut HttpReply, origin: HeaderValue) {
    response.headers_mut().insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    add(response, header::VARY, "origin");
    add(response, header::ACCESS_CONTROL_EXPOSE_HEADERS, "retry-after, x-request-id");
}

/// Reports the cause of a fault of the server, which the client does not see.
fn log_fault(shared: &ServerState, request: &str, path: &'static str, refusal: &Refusal) {
    if let Some(what) = refusal.cause.clone() {
        (shared.tell)(ServeEvent::Failed { request: request.into(), path, what });
    }
}

/// Sixteen digits that no other request has.
fn new_id() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    static DRAWN: std::sync::OnceLock<RandomState> = std::sync::OnceLock::new();
    let drawn = DRAWN.get_or_init(RandomState::new);
    format!("{:016x}", drawn.hash_one(COUNT.fetch_add(1, Ordering::Relaxed)))
}

/// A request's id: the client's own if it can be shown anywhere, else a new one.
fn request_id(headers: &HeaderMap) -> String {
    let own = headers.get(REQUEST_ID).and_then(|id| id.to_str().ok());
    let plain = |id: &&str| {
        (1..=64).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
    };
    own.filter(plain).map_or_else(|| format!("req-{}", new_id()), String::from)
}

async fn reply(shared: &Arc<ServerState>, request: Request<Incoming>, from_other_origin: bool) -> Result<HttpReply> {
    check_head(&shared.options.limits, &request)?;
    if request.method() == Method::OPTIONS && from_other_origin {
        return Ok(preflight(request.headers()));
    }
    let path = request.uri().path().to_string();
    let (route, rest) = dispatch::find(request.method().as_str(), &path)?;
    check_route(shared, route, &request)?;
    if route.method == "POST" {
        let model = shared.model();
        check_body_type(request.headers())?;
        let body = incoming::read(&shared.options.limits, request).await?;
        if route.endpoint == Endpoint::LookInto {
            return looking::post(shared, rest.into(), body).await;
        }
        return post(shared, route.endpoint, model, body).await;
    }
    let words = query(request.uri().query().unwrap_or_default());
    match route.endpoint {
        Endpoint::Look => looking::ask(shared, rest.into(), words).await,
        Endpoint::Forget => looking::forget(shared, rest),
        endpoint => get(shared, endpoint, rest),
    }
}

/// Refuses a request without a key, with a query where there is none, or for what the server does not do now.
fn check_route(shared: &ServerState, route: &Route, request: &Request<Incoming>) -> Result<()> {
    let endpoint = route.endpoint;
    let open = route.open || endpoint == Endpoint::Metrics && shared.options.metrics_public;
    if !open && !shared.access.has_key(request.headers()) {
        return Err(Refusal::invalid_api_key());
    }
    let takes_query = open || endpoint == Endpoint::Look;
    if let Some(query) = request.uri().query().filter(|query| !takes_query && !query.is_empty()) {
        let name = query.split(['=', '&']).next().unwrap_or_default();
        return Err(Refusal::unknown_parameter(&format!("?{name}"), None));
    }
    if *shared.phase.borrow() != Phase::Serving && !matches!(endpoint, Endpoint::Health | Endpoint::Metrics) {
        return Err(Refusal::stopping());
    }
    let asks_engine = [Endpoint::Chat, Endpoint::Completions, Endpoint::Embeddings, Endpoint::ApplyTemplate];
    if shared.options.look_only && asks_engine.contains(&endpoint) {
        return Err(Refusal::looked_at_alone());
    }
    Ok(())
}

/// What is answered at once.
fn get(shared: &ServerState, endpoint: Endpoint, rest: &str) -> Result<HttpReply> {
    let (model, trains) = (shared.model(), shared.options.training.is_some());
    Ok(match endpoint {
        Endpoint::Health => health(state(shared)),
        Endpoint::Models => json(&tokens::models(&model, trains)),
        Endpoint::Model => json(&tokens::model(&model, trains, &decoded(rest))?),
        Endpoint::TokenizerInfo => json(&tokens::tokenizer_info(&model)?),
        Endpoint::Metrics => whole("text/plain; version=0.0.4", measures(shared)),
        Endpoint::OpenApi => whole(JSON, openapi::document(!shared.options.keys.is_empty())),
        Endpoint::Docs => document(docs::page(), docs::CSP),
        Endpoint::Page => {
            // the built-in page was made before the port opened; a folder's may be broken just now
            let page = shared.options.page.make().map_err(Refusal::engine_error)?;
            let page = page.ok_or_else(|| Refusal::not_found("/"))?;
            document(page.html, &page.csp)
        }
        // all others have a body
        other => return Err(Refusal::engine_error(format!("{other:?} is not answered at once"))),
    })
}

fn json(value: &Value) -> HttpReply {
    whole(JSON, value.to_string())
}

/// The state that `/health` reports.
fn state(shared: &ServerState) -> &'static str {
    if *shared.phase.borrow() != Phase::Serving {
        "stopping"
    } else if shared.queue.fails() {
        "failing"
    } else {
        "ok"
    }
}

/// What is made of a body.
async fn post(shared: &Arc<ServerState>, endpoint: Endpoint, model: ServedLease, body: Bytes) -> Result<HttpReply> {
    let made = match endpoint {
        Endpoint::Chat => return generate(shared, model, body, openai::chat, "chatcmpl").await,
        Endpoint::Completions => return generate(shared, model, body, openai::completions, "cmpl").await,
        Endpoint::Embeddings => {
            let waits = shared.queue.places(&model, &[0])?;
            let work = move |gone: &Arc<AtomicBool>| {
                drop(waits);
                embeddings::embeddings(&model, &body, &|| gone.load(Ordering::Relaxed))
            };
            on_thread(shared, &shared.embedding, work).await
        }
        other => match dispatch::reader(other) {
            Some(reader) => read_body(shared, &model, &body, reader).await,
            None => Err(Refusal::engine_error("a path without an endpoint")), // no other has a body
        },
    };
    made.map(|value| json(&value))
}

/// The answer of the engine to a body that `read` understands; `name` begins the answer's id.
async fn generate(
    shared: &Arc<ServerState>,
    model: ServedLease,
    body: Bytes,
    read: Reader<Ask>,
    name: &str,
) -> Result<HttpReply> {
    let ask = read_body(shared, &model, &body, read).await?;
    drop(body);
    let (ask, held) = looking::resolve(shared, &model, ask).await?;
    let (id, created) = (format!("{name}-{}", new_id()), seconds_since_1970());
    let mut answer = Answer::new(Arc::clone(&model), ask.answer, id, created);
    let events = shared.queue.submit(&model, ask.requests)?;
    drop(model); // its engine need not wait until the answer is read
    let ready = answer.begin();
    let mut stream = Stream { answer, events, phase: shared.phase.subscribe(), ready, _held: held, report: None };
    if stream.answer.streams() {
        return Ok(streamed("text/event-stream", Content::Events(Box::new(stream))));
    }
    while stream.told().await.is_some() {}
    Ok(whole(JSON, stream.answer.whole()?))
}

/// The content of `/metrics`.
fn measures(shared: &ServerState) -> String {
    let (counts, model) = (shared.queue.counts(), shared.model());
    let embeds = usize::from(shared.embedding.available_permits() == 0);
    let looks = LOOKS - shared.looking.available_permits();
    let blocks = |state, count: usize| ("limpid_kv_blocks", metrics::labels(&[("state", state)]), count as f64);
    let about = [("model", &*model.id), ("fingerprint", &model.fingerprint), ("version", env!("CARGO_PKG_VERSION"))];
    let gauges = [
        ("limpid_requests_running", String::new(), (counts.running + embeds) as f64),
        ("limpid_requests_waiting", String::new(), counts.waiting as f64),
        ("limpid_looking", String::new(), looks as f64),
        blocks("held", counts.held),
        blocks("idle", counts.idle),
        blocks("free", counts.blocks - counts.held - counts.idle),
        ("limpid_model_info", metrics::labels(&about), 1.0),
    ];
    let step = model.step.map(|step| ("limpid_weights_step", String::new(), step as f64));
    shared.metrics.page(&gauges.into_iter().chain(step).collect::<Vec<_>>())
}

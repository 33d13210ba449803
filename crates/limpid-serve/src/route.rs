//! Which request is whose: who may ask, for what, and how.
//!
//! A server on this machine is within reach of every page that a browser shows, so the Host header must name it (another site's name may
//! lead here), a page of another origin is refused, and bodies must be sent as JSON, which no page can do to a stranger unasked.

use crate::answer::Answer;
use crate::body::{ReplyBody, Stream};
use crate::listen::Busy;
use crate::look::{self, LookReply, Pieces};
use crate::model::{ServedLease, ServedModel};
use crate::openai::{self, Ask};
use crate::refusal::Refusal;
use crate::routes::{self, Endpoint};
use crate::server::{Counted, PageOptions, Phase, ServeError, ServeEvent, ServeOptions, ServerState};
use crate::{docs, embeddings, metrics, openapi, server, tokens, ui};
use hyper::body::{Body, Bytes, Incoming};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use limpid_glass::{self as glass, decoded};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::future::poll_fn;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv6Addr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use subtle::ConstantTimeEq;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Bytes of a path with its query.
const LONGEST_URI: usize = 8 << 10;
/// A body that is too large is read so many times its limit before it is refused: a client that is still sending would not see the answer.
const PATIENCE: usize = 8;
/// A body of more bytes is read by a thread that may take its time.
const LARGE: usize = 32 << 10;

const HTML: &str = "text/html; charset=utf-8";
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// A browser asks and hears with these whether a page of a public network may reach this one.
const REQUEST_PRIVATE_NETWORK: HeaderName = HeaderName::from_static("access-control-request-private-network");
const ALLOW_PRIVATE_NETWORK: HeaderName = HeaderName::from_static("access-control-allow-private-network");

/// Who may ask.
pub struct RequestAccess {
    /// SHA-256 of each key.
    keys: Vec<[u8; 32]>,
    hosts: Vec<String>,
    /// Whether every address counts as one of ours: others reach us by it, and a page that pretends to be ours needs a name.
    any_address: bool,
    origins: Vec<String>,
}

fn digest(key: &[u8]) -> [u8; 32] {
    Sha256::digest(key).into()
}

/// The name of `name:port`, of which the port may be empty; none if it is not of this form.
pub(crate) fn without_port(host: &str) -> Option<&str> {
    let end = if host.starts_with('[') { host.find(']')? + 1 } else { host.find(':').unwrap_or(host.len()) };
    let (name, port) = host.split_at(end);
    let fits = port.len() <= 1 || port[1..].bytes().all(|b| b.is_ascii_digit()) && port[1..].parse::<u16>().is_ok();
    (fits && (port.is_empty() || port.starts_with(':')) && !name.is_empty()).then_some(name)
}

/// How a Host header names what is called so in an option; none if no header can.
fn host_name(given: &str) -> Option<String> {
    if given.parse::<Ipv6Addr>().is_ok() {
        return Some(format!("[{given}]").to_lowercase());
    }
    let name = without_port(given)?;
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    let address = address.is_some_and(|address| address.parse::<Ipv6Addr>().is_ok());
    let plain = address || name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b));
    plain.then(|| name.to_lowercase())
}

/// How an Origin header names what is called so in an option; none if no header can. Browsers send a site (`https://a.example`), an app or
/// an extension under a scheme of its own (`app://obsidian.md`, `file://`), or `null` for a page that has no origin.
pub(crate) fn origin_name(given: &str) -> Option<String> {
    let origin = given.to_lowercase();
    if ["*", "null"].contains(&&*origin) {
        return Some(origin);
    }
    let (scheme, site) = origin.split_once("://")?;
    let site = site.strip_suffix('/').unwrap_or(site);
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    let named = scheme.starts_with(|first: char| first.is_ascii_alphabetic()) && scheme.bytes().all(plain);
    let reached = match scheme {
        "http" | "https" => host_name(site).is_some(),
        _ => site.is_empty() || host_name(site).is_some(),
    };
    (named && reached).then(|| format!("{scheme}://{site}"))
}

impl RequestAccess {
    /// Of a server at `address`.
    pub fn new(options: &ServeOptions, address: IpAddr) -> Result<RequestAccess, ServeError> {
        let sendable = |key: &String| !key.is_empty() && key.bytes().all(|b| b.is_ascii_graphic());
        if let Some(at) = options.keys.iter().position(|key| !sendable(key)) {
            return Err(ServeError::Key(at + 1));
        }
        let own = ["localhost", "127.0.0.1", "[::1]"].map(String::from).into_iter().chain(host_name(&options.host));
        let host = |given: &String| host_name(given).ok_or_else(|| ServeError::AllowHost(given.clone()));
        let origin = |given: &String| origin_name(given).ok_or_else(|| ServeError::Origin(given.clone()));
        Ok(RequestAccess {
            keys: options.keys.iter().map(|key| digest(key.as_bytes())).collect(),
            hosts: own.map(Ok).chain(options.allow_hosts.iter().map(host)).collect::<Result<_, _>>()?,
            any_address: !address.is_loopback(),
            origins: options.cors_origins.iter().map(origin).collect::<Result<_, _>>()?,
        })
    }

    /// Whether a Host is one of ours, with any port.
    fn is_host(&self, host: &str) -> bool {
        without_port(host).is_some_and(|name| {
            let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
            let any = self.any_address && address.parse::<IpAddr>().is_ok();
            any || self.hosts.iter().any(|own| own.eq_ignore_ascii_case(name))
        })
    }

    /// Refuses hosts and origins that are not permitted. Returns the origin that may read the answer, if one was named.
    fn check(&self, request: &Request<Incoming>) -> Result<Option<HeaderValue>, Refusal> {
        let headers = request.headers();
        let mut hosts = headers.get_all(header::HOST).iter();
        let (host, more) = (hosts.next(), hosts.next());
        let host = host.filter(|_| more.is_none()).and_then(|host| host.to_str().ok()).unwrap_or_default();
        let named = request.uri().authority().map_or(host, |authority| authority.as_str());
        let probe = matches!(request.uri().path(), "/health" | "/ready"); // by whatever name; it says nothing of anybody
        for name in [host, named] {
            if !probe && !self.is_host(name) {
                return Err(Refusal::host_not_allowed(name));
            }
        }
        let mut origins = headers.get_all(header::ORIGIN).iter();
        let Some(origin) = origins.next() else { return Ok(None) };
        let text = String::from_utf8_lossy(origin.as_bytes()).to_lowercase();
        if origins.next().is_some() {
            return Err(Refusal::origin_not_allowed(&format!("{text}, and another")));
        }
        if self.origins.iter().any(|permitted| *permitted == text || permitted == "*") {
            return Ok(Some(origin.clone()));
        }
        let page = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
        if page.is_none_or(|page| !page.eq_ignore_ascii_case(host)) {
            return Err(Refusal::origin_not_allowed(&text));
        }
        Ok(None)
    }

    /// Whether a request has a key, if one is needed. Every key is compared, and in the same time.
    fn has_key(&self, headers: &HeaderMap) -> bool {
        let mut values = headers.get_all(header::AUTHORIZATION).iter();
        let value = values.next().filter(|_| values.next().is_none()).map_or(&b""[..], |value| value.as_bytes());
        let (scheme, key) = value.split_at(value.len().min(7));
        let found = digest(if scheme.eq_ignore_ascii_case(b"bearer ") { key.trim_ascii_start() } else { b"" });
        let same = self.keys.iter().fold(subtle::Choice::from(0), |same, key| same | key.ct_eq(&found));
        self.keys.is_empty() || same.into()
    }
}

/// Sixteen digits that no other request has.
fn new_id() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    static DRAWN: std::sync::OnceLock<RandomState> = std::sync::OnceLock::new();
    let drawn = DRAWN.get_or_init(RandomState::new);
    format!("{:016x}", drawn.hash_one(COUNT.fetch_add(1, Ordering::Relaxed)))
}

/// A request's name: the client's if it can be shown anywhere, else one of ours.
fn request_id(headers: &HeaderMap) -> String {
    let own = headers.get(REQUEST_ID).and_then(|id| id.to_str().ok());
    let plain = |id: &&str| {
        (1..=64).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
    };
    own.filter(plain).map_or_else(|| format!("req-{}", new_id()), String::from)
}

/// What is answered.
enum Reply {
    Json(Value),
    Text {
        kind: &'static str,
        text: String,
        csp: Option<String>,
    },
    Events(Box<Stream>),
    /// Bytes as they come.
    Pieces(Pieces),
    /// A file to keep.
    File(&'static str, String, Vec<u8>),
    /// How the server is; anything but `ok` is a status of 503.
    Health(&'static str),
    /// A permission to ask with these headers; from a page of a public network, too.
    Preflight {
        headers: String,
        private_network: bool,
    },
}

impl From<LookReply> for Reply {
    fn from(look: LookReply) -> Reply {
        match look {
            LookReply::Whole(glass::Reply::Json(text)) => Reply::Text { kind: "application/json", text, csp: None },
            LookReply::Whole(glass::Reply::File(kind, name, bytes)) => Reply::File(kind, name, bytes),
            LookReply::Pieces(pieces) => Reply::Pieces(pieces),
        }
    }
}

/// Answers one request.
pub async fn answer(shared: Arc<ServerState>, busy: Busy, request: Request<Incoming>) -> Response<ReplyBody> {
    let held = (busy, Counted::new(&shared.busy));
    let id = request_id(request.headers());
    let mut path = "other";
    let origin = shared.access.check(&request);
    let done = match &origin {
        Ok(origin) => reply(&shared, request, origin.is_some(), &mut path).await,
        Err(refusal) => Err(refusal.clone()),
    };
    let mut extra: Vec<(HeaderName, String)> = vec![(REQUEST_ID, id.clone())];
    let mut response = match done {
        Ok(Reply::Events(mut stream)) => {
            let (shared, request) = (shared.clone(), id);
            stream.report = Some(Box::new(move |refusal| failed(&shared, &request, path, refusal)));
            extra.push((header::CONTENT_TYPE, "text/event-stream".into()));
            extra.push((header::CACHE_CONTROL, "no-cache".into()));
            extra.push((HeaderName::from_static("x-accel-buffering"), "no".into()));
            Response::new(ReplyBody::events(*stream, held))
        }
        Ok(Reply::Pieces(Pieces { kind, first, rest, gone })) => {
            extra.push((header::CONTENT_TYPE, kind.into()));
            extra.push((header::CACHE_CONTROL, "no-cache".into()));
            extra.push((HeaderName::from_static("x-accel-buffering"), "no".into()));
            Response::new(ReplyBody::pieces(first, (rest, gone), held))
        }
        Ok(Reply::File(kind, name, bytes)) => {
            extra.push((header::CONTENT_TYPE, kind.into()));
            extra.push((header::CONTENT_DISPOSITION, format!("attachment; filename=\"{name}\"")));
            Response::new(ReplyBody::whole(bytes.into(), held))
        }
        Ok(Reply::Json(value)) => {
            extra.push((header::CONTENT_TYPE, "application/json".into()));
            Response::new(ReplyBody::whole(value.to_string().into(), held))
        }
        Ok(Reply::Text { kind, text, csp }) => {
            extra.push((header::CONTENT_TYPE, kind.into()));
            if let Some(csp) = csp {
                extra.push((header::CONTENT_SECURITY_POLICY, csp));
                extra.push((header::REFERRER_POLICY, "no-referrer".into()));
                extra.push((header::CACHE_CONTROL, "no-cache".into()));
            }
            Response::new(ReplyBody::whole(text.into(), held))
        }
        Ok(Reply::Health(status)) => {
            extra.push((header::CONTENT_TYPE, "application/json".into()));
            let mut response = Response::new(ReplyBody::whole(json!({ "status": status }).to_string().into(), held));
            if status != "ok" {
                *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            }
            response
        }
        Ok(Reply::Preflight { headers, private_network }) => {
            extra.push((header::ACCESS_CONTROL_ALLOW_METHODS, "GET, POST, DELETE".into()));
            extra.push((header::ACCESS_CONTROL_ALLOW_HEADERS, headers));
            extra.extend(private_network.then(|| (ALLOW_PRIVATE_NETWORK, "true".into())));
            extra.push((header::ACCESS_CONTROL_MAX_AGE, "600".into()));
            let mut response = Response::new(ReplyBody::whole(Bytes::new(), held));
            *response.status_mut() = StatusCode::NO_CONTENT;
            response
        }
        Err(refusal) => {
            extra.push((header::CONTENT_TYPE, "application/json".into()));
            extra.extend(refusal.retry_after.map(|seconds| (header::RETRY_AFTER, seconds.to_string())));
            match refusal.code {
                "invalid_api_key" => extra.push((header::WWW_AUTHENTICATE, "Bearer".into())),
                "method_not_allowed" => extra.push((header::ALLOW, routes::allowed(path))),
                "unsupported_encoding" => extra.push((header::ACCEPT_ENCODING, "identity".into())),
                // the same request would fail again
                "engine_error" => extra.push((HeaderName::from_static("x-should-retry"), "false".into())),
                _ => {}
            }
            // what of the body is unread would be taken for the next request
            let unread = ["body_too_large", "request_timeout", "headers_too_large", "unsupported_transfer_encoding"];
            if unread.contains(&refusal.code) {
                extra.push((header::CONNECTION, "close".into()));
            }
            shared.metrics.add("limpid_rejected_total", &[("reason", refusal.code)], 1);
            failed(&shared, &id, path, &refusal);
            let mut response = Response::new(ReplyBody::whole(refusal.body().to_string().into(), held));
            *response.status_mut() = StatusCode::from_u16(refusal.status).unwrap_or_default();
            response
        }
    };
    if let Ok(Some(origin)) = origin {
        response.headers_mut().insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        response.headers_mut().insert(header::VARY, HeaderValue::from_static("origin"));
        let shown = HeaderValue::from_static("retry-after, x-request-id");
        response.headers_mut().insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, shown);
    }
    if *shared.phase.borrow() != Phase::Serving {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    let nosniff = HeaderValue::from_static("nosniff");
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, nosniff);
    for (name, value) in extra {
        response.headers_mut().extend(HeaderValue::from_str(&value).map(|value| (name, value)));
    }
    let code = response.status().as_str().to_string();
    shared.metrics.add("limpid_requests_total", &[("endpoint", path), ("code", &code)], 1);
    response
}

/// Tells what the client is not told of a fault of the server.
fn failed(shared: &ServerState, request: &str, path: &'static str, refusal: &Refusal) {
    if let Some(what) = refusal.cause.clone() {
        (shared.tell)(ServeEvent::Failed { request: request.into(), path, what });
    }
}

async fn reply(
    shared: &Arc<ServerState>,
    request: Request<Incoming>,
    other_origin: bool,
    named: &mut &'static str,
) -> Result<Reply, Refusal> {
    let limits = &shared.options.limits;
    let headers = request.headers();
    let size: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    if size > limits.header_bytes {
        return Err(Refusal::headers_too_large(limits.header_bytes));
    }
    if request.uri().to_string().len() > LONGEST_URI {
        return Err(Refusal::uri_too_long(LONGEST_URI));
    }
    if let Some(coding) = transfer_coding(headers) {
        return Err(Refusal::unsupported_transfer_encoding(&coding));
    }
    let (method, path) = (request.method().clone(), request.uri().path().to_string());
    *named = routes::pattern(&path);
    if method == Method::OPTIONS && other_origin {
        let asked = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS).and_then(|asked| asked.to_str().ok());
        let private_network = headers.contains_key(REQUEST_PRIVATE_NETWORK);
        let headers = asked.unwrap_or("authorization, content-type, x-request-id").into();
        return Ok(Reply::Preflight { headers, private_network });
    }
    let (route, rest) = routes::find(&method, &path)?;
    let endpoint = route.endpoint;
    let open = route.open || endpoint == Endpoint::Metrics && shared.options.metrics_public;
    if !open && !shared.access.has_key(headers) {
        return Err(Refusal::invalid_api_key());
    }
    let takes_query = open || endpoint == Endpoint::Look;
    if let Some(query) = request.uri().query().filter(|query| !takes_query && !query.is_empty()) {
        let name = query.split(['=', '&']).next().unwrap_or_default();
        return Err(Refusal::unknown_parameter(&format!("?{name}"), None));
    }
    let stopping = *shared.phase.borrow() != Phase::Serving;
    if stopping && !matches!(endpoint, Endpoint::Health | Endpoint::Metrics) {
        return Err(Refusal::stopping());
    }
    let asks_engine = [Endpoint::Chat, Endpoint::Completions, Endpoint::Embeddings, Endpoint::ApplyTemplate];
    if shared.options.look_only && asks_engine.contains(&endpoint) {
        return Err(Refusal::looked_at_alone());
    }
    let query = look::query(request.uri().query().unwrap_or_default());
    let model = shared.model();
    if method == Method::POST {
        let kinds: Vec<&str> =
            headers.get_all(header::CONTENT_TYPE).iter().map(|kind| kind.to_str().unwrap_or_default()).collect();
        if !matches!(kinds[..], [kind] if is_json(kind)) {
            return Err(Refusal::unsupported_media_type(&kinds));
        }
        let plain = |coding: &HeaderValue| {
            coding.to_str().is_ok_and(|coding| ["", "identity"].contains(&&*coding.trim().to_ascii_lowercase()))
        };
        if let Some(coding) = headers.get_all(header::CONTENT_ENCODING).iter().find(|coding| !plain(coding)) {
            return Err(Refusal::unsupported_encoding(&String::from_utf8_lossy(coding.as_bytes())));
        }
        let body = read(shared, request).await?;
        if endpoint == Endpoint::LookInto {
            return look::post(shared, rest.into(), body).await.map(Reply::from);
        }
        return post(shared, endpoint, model, body).await;
    }
    let json = |value| Ok(Reply::Json(value));
    match endpoint {
        Endpoint::Look => look::ask(shared, rest.into(), query).await.map(Reply::from),
        Endpoint::Forget => look::forget(shared, rest).map(Reply::from),
        Endpoint::Health => Ok(Reply::Health(match stopping {
            true => "stopping",
            false if shared.queue.fails() => "failing",
            false => "ok",
        })),
        Endpoint::Models => json(tokens::models(&model)),
        Endpoint::Model => json(tokens::model(&model, &decoded(rest))?),
        Endpoint::TokenizerInfo => json(tokens::tokenizer_info(&model)?),
        Endpoint::Metrics => Ok(Reply::Text { kind: "text/plain; version=0.0.4", text: page(shared), csp: None }),
        Endpoint::OpenApi => {
            let text = openapi::document(!shared.options.keys.is_empty()).into();
            Ok(Reply::Text { kind: "application/json", text, csp: None })
        }
        Endpoint::Docs => Ok(Reply::Text { kind: HTML, text: docs::page(), csp: Some(docs::CSP.into()) }),
        Endpoint::Page => {
            let folder = match &shared.options.page {
                PageOptions::Off => return Err(Refusal::not_found(&path)),
                PageOptions::Own => None,
                PageOptions::Folder(folder) => Some(folder.as_path()),
            };
            // the built-in one was made before the port opened; the other may be broken just now
            let page = ui::page(folder).map_err(Refusal::engine_error)?;
            Ok(Reply::Text { kind: HTML, text: page.html, csp: Some(page.csp) })
        }
        _ => Err(Refusal::not_found(&path)),
    }
}

/// What a body is sent as beside in chunks, if it is: hyper undoes these alone.
fn transfer_coding(headers: &HeaderMap) -> Option<String> {
    let all: Vec<&[u8]> = headers.get_all(header::TRANSFER_ENCODING).iter().map(HeaderValue::as_bytes).collect();
    let all = String::from_utf8_lossy(&all.join(&b", "[..])).to_ascii_lowercase();
    let beside = |coding: &&str| !["", "identity"].contains(coding);
    let codings: Vec<&str> = all.split(',').map(str::trim).filter(beside).collect();
    (!matches!(codings[..], [] | ["chunked"])).then_some(all)
}

/// Whether a Content-Type is that of JSON in UTF-8.
fn is_json(kind: &str) -> bool {
    let kind = kind.to_ascii_lowercase();
    let mut parts = kind.split(';').map(str::trim);
    let charset = |part: &str| part.strip_prefix("charset=").is_none_or(|name| name.trim_matches('"') == "utf-8");
    parts.next() == Some("application/json") && parts.all(charset)
}

/// The body of a request, of as many bytes and in as much time as is allowed.
async fn read(shared: &ServerState, request: Request<Incoming>) -> Result<Bytes, Refusal> {
    let limits = &shared.options.limits;
    let (limit, mut body) = (limits.body_bytes, request.into_body());
    let too_large = || Refusal::body_too_large(limit as u64);
    let read = limit.saturating_mul(PATIENCE);
    if body.size_hint().lower() > read as u64 {
        return Err(too_large());
    }
    let all = async {
        let (mut bytes, mut came) = (vec![], 0);
        while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
            let frame = frame.map_err(|_| Refusal::invalid_json("the body ended before its end".into()))?;
            let data = frame.into_data().unwrap_or_default();
            came += data.len();
            match came {
                came if came <= limit => bytes.extend_from_slice(&data),
                came if came > read => break,
                _ => bytes = vec![],
            }
        }
        if came > limit { Err(too_large()) } else { Ok(bytes.into()) }
    };
    let late = |_| Refusal::request_timeout("body", limits.body_time.as_secs());
    timeout(limits.body_time, all).await.map_err(late)?
}

/// What is made of a body.
type Work<T> = fn(&ServedModel, &[u8]) -> Result<T, Refusal>;

/// Does what takes time for a large body where it holds up nobody.
async fn beside<T: Send + 'static>(
    shared: &ServerState,
    model: &ServedLease,
    body: &Bytes,
    work: Work<T>,
) -> Result<T, Refusal> {
    if body.len() <= LARGE {
        return work(model, body);
    }
    let (model, body) = (model.clone(), body.clone());
    on_thread(shared, &shared.bodies, move |_| work(&model, &body)).await
}

/// Held by who waits for an answer: when it is dropped, whoever computes the answer sees that nobody waits.
#[derive(Default)]
pub struct Gone(Arc<AtomicBool>);

impl Gone {
    /// Set when nobody waits.
    pub fn flag(&self) -> Arc<AtomicBool> {
        self.0.clone()
    }
}

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Does work on a thread of its own, as soon as there is a place. A client that goes away leaves the line; work that has begun is told
/// that it is gone, and keeps its place until it ends.
pub async fn on_thread<T: Send + 'static>(
    shared: &ServerState,
    places: &Arc<Semaphore>,
    work: impl FnOnce(&Arc<AtomicBool>) -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    let mut phase = shared.phase.subscribe();
    let waits = Gone::default(); // as long as this call
    let gone = waits.flag();
    let done = async {
        let place = places.clone().acquire_owned().await;
        let work = move || {
            let _place = place;
            work(&gone)
        };
        tokio::task::spawn_blocking(work).await
    };
    tokio::select! {
        done = done => done.unwrap_or_else(|panic| Err(Refusal::engine_error(panic))),
        _ = phase.wait_for(|phase| *phase == Phase::Ended) => Err(Refusal::stopping()),
    }
}

async fn post(
    shared: &Arc<ServerState>,
    endpoint: Endpoint,
    model: ServedLease,
    body: Bytes,
) -> Result<Reply, Refusal> {
    let (work, name): (Work<Ask>, _) = match endpoint {
        Endpoint::Chat => (openai::chat, "chatcmpl"),
        Endpoint::Completions => (openai::completions, "cmpl"),
        Endpoint::Tokenize => return beside(shared, &model, &body, tokens::tokenize).await.map(Reply::Json),
        Endpoint::Detokenize => return beside(shared, &model, &body, tokens::detokenize).await.map(Reply::Json),
        Endpoint::ApplyTemplate => return beside(shared, &model, &body, tokens::apply_template).await.map(Reply::Json),
        Endpoint::Embeddings => {
            let waits = shared.queue.places(&model, &[0])?;
            let work = move |gone: &Arc<AtomicBool>| {
                drop(waits);
                embeddings::embeddings(&model, &body, &|| gone.load(Ordering::Relaxed))
            };
            return on_thread(shared, &shared.embedding, work).await.map(Reply::Json);
        }
        _ => return Err(Refusal::engine_error("a path without an endpoint")), // `find` gives no other
    };
    let ask = beside(shared, &model, &body, work).await?;
    drop(body);
    let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let mut answer = Answer::new(Arc::clone(&model), ask.answer, format!("{name}-{}", new_id()), created);
    let events = shared.queue.submit(&model, ask.requests)?;
    drop(model); // whose engine need not wait until all is read
    let ready = answer.begin();
    let mut stream = Stream { answer, events, phase: shared.phase.subscribe(), ready, report: None };
    if stream.answer.streams() {
        return Ok(Reply::Events(Box::new(stream)));
    }
    while stream.told().await.is_some() {}
    stream.answer.whole().map(|text| Reply::Text { kind: "application/json", text, csp: None })
}

/// `/metrics`.
fn page(shared: &ServerState) -> String {
    let (counts, model) = (shared.queue.counts(), shared.model());
    let embeds = usize::from(shared.embedding.available_permits() == 0);
    let looks = server::LOOKS - shared.looking.available_permits();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_ports_are_told_apart() {
        for (host, name) in
            [("a", Some("a")), ("a:1", Some("a")), ("[::1]:2", Some("[::1]")), (":1", None), ("a:", Some("a"))]
        {
            assert_eq!(without_port(host), name, "{host}");
        }
        assert_eq!(decoded("a%20b%2Fc%zz%"), "a b/c%zz%");
        assert_eq!(decoded("%+7%-1% 1"), "%+7%-1% 1", "a sign is no digit");
        assert_eq!(decoded("%ff%é"), "\u{fffd}%é");
    }
}

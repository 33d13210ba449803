//! An answer as HTTP has it: status, headers and content of each kind of reply, and of a refusal.

use crate::body::Content;
use crate::refusal::Refusal;
use crate::routes;
use hyper::body::Bytes;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use limpid_glass::Reply;
use serde_json::json;

pub const JSON: &str = "application/json";
/// By this a browser asks whether a page of a public network may reach the server, and hears that it may.
const REQUEST_PRIVATE_NETWORK: HeaderName = HeaderName::from_static("access-control-request-private-network");
const ALLOW_PRIVATE_NETWORK: HeaderName = HeaderName::from_static("access-control-allow-private-network");

/// An answer, without the headers that all answers have.
pub type HttpReply = Response<Content>;

/// Bytes of this type.
pub fn whole(kind: &str, bytes: impl Into<Bytes>) -> HttpReply {
    let mut reply = Response::new(Content::Whole(bytes.into()));
    add(&mut reply, header::CONTENT_TYPE, kind);
    reply
}

/// A page with a content security policy.
pub fn document(html: String, csp: &str) -> HttpReply {
    let mut reply = whole("text/html; charset=utf-8", html);
    add(&mut reply, header::CONTENT_SECURITY_POLICY, csp);
    add(&mut reply, header::REFERRER_POLICY, "no-referrer");
    add(&mut reply, header::CACHE_CONTROL, "no-cache");
    reply
}

/// An answer about the inside: JSON, or a file to keep.
pub fn looked(reply: Reply) -> HttpReply {
    match reply {
        Reply::Json(text) => whole(JSON, text),
        Reply::File(kind, name, bytes) => {
            let mut reply = whole(kind, bytes);
            add(&mut reply, header::CONTENT_DISPOSITION, &format!("attachment; filename=\"{name}\""));
            reply
        }
    }
}

/// Content that is sent as it is computed: nothing on the way may keep it or wait for its end.
pub fn streamed(kind: &str, content: Content) -> HttpReply {
    let mut reply = Response::new(content);
    add(&mut reply, header::CONTENT_TYPE, kind);
    add(&mut reply, header::CACHE_CONTROL, "no-cache");
    add(&mut reply, HeaderName::from_static("x-accel-buffering"), "no");
    reply
}

/// The state of the server; anything but `ok` has status 503.
pub fn health(state: &str) -> HttpReply {
    let mut reply = whole(JSON, json!({ "status": state }).to_string());
    if state != "ok" {
        *reply.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    }
    reply
}

/// Permission for a page of another origin to ask, perhaps from a public network.
pub fn preflight(asked: &HeaderMap) -> HttpReply {
    let mut reply = Response::new(Content::Whole(Bytes::new()));
    *reply.status_mut() = StatusCode::NO_CONTENT;
    let headers = asked.get(header::ACCESS_CONTROL_REQUEST_HEADERS).and_then(|headers| headers.to_str().ok());
    let headers = headers.unwrap_or("authorization, content-type, x-request-id");
    add(&mut reply, header::ACCESS_CONTROL_ALLOW_METHODS, "GET, POST, DELETE");
    add(&mut reply, header::ACCESS_CONTROL_ALLOW_HEADERS, headers);
    add(&mut reply, header::ACCESS_CONTROL_MAX_AGE, "600");
    if asked.contains_key(REQUEST_PRIVATE_NETWORK) {
        add(&mut reply, ALLOW_PRIVATE_NETWORK, "true");
    }
    reply
}

/// A refusal of a request for a path of the table of routes.
pub fn refused(refusal: &Refusal, path: &str) -> HttpReply {
    let mut reply = whole(JSON, refusal.body().to_string());
    *reply.status_mut() = StatusCode::from_u16(refusal.status).unwrap_or_default();
    if let Some(seconds) = refusal.retry_after {
        add(&mut reply, header::RETRY_AFTER, &seconds.to_string());
    }
    match refusal.code {
        "invalid_api_key" => add(&mut reply, header::WWW_AUTHENTICATE, "Bearer"),
        "method_not_allowed" => add(&mut reply, header::ALLOW, &routes::allowed(path)),
        "unsupported_encoding" => add(&mut reply, header::ACCEPT_ENCODING, "identity"),
        // the same request would fail again
        "engine_error" => add(&mut reply, HeaderName::from_static("x-should-retry"), "false"),
        // the unread rest of the request would be taken for the next one
        "body_too_large" | "request_timeout" | "headers_too_large" | "unsupported_transfer_encoding" => {
            add(&mut reply, header::CONNECTION, "close");
        }
        _ => {}
    }
    reply
}

/// Adds a header; a value that no header can have is left out.
pub fn add<T>(reply: &mut Response<T>, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        reply.headers_mut().insert(name, value);
    }
}

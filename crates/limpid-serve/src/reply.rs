//! An answer as HTTP has it: status, headers and body of each kind of reply, and of a refusal.

use crate::body::{ReplyBody, Stream};
use crate::listen::Busy;
use crate::look::{LookReply, Pieces};
use crate::refusal::Refusal;
use crate::routes;
use crate::server::Counted;
use hyper::body::Bytes;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use limpid_glass as glass;
use serde_json::{Value, json};

const JSON: &str = "application/json";
/// By this a browser hears whether a page of a public network may reach the server.
const ALLOW_PRIVATE_NETWORK: HeaderName = HeaderName::from_static("access-control-allow-private-network");

/// An answer before it is sent.
pub enum HttpReply {
    Json(Value),
    /// A text of this type; a document has a content security policy.
    Text {
        kind: &'static str,
        text: String,
        csp: Option<String>,
    },
    /// Server-sent events.
    Events(Box<Stream>),
    /// Bytes as they are computed.
    Pieces(Pieces),
    /// A file to keep: its type, name and content.
    File(&'static str, String, Vec<u8>),
    /// The state of the server; anything but `ok` has status 503.
    Health(&'static str),
    /// Permission for a page to send these headers, perhaps from a public network.
    Preflight {
        headers: String,
        private_network: bool,
    },
}

impl From<LookReply> for HttpReply {
    fn from(look: LookReply) -> HttpReply {
        match look {
            LookReply::Whole(glass::Reply::Json(text)) => HttpReply::Text { kind: "application/json", text, csp: None },
            LookReply::Whole(glass::Reply::File(kind, name, bytes)) => HttpReply::File(kind, name, bytes),
            LookReply::Pieces(pieces) => HttpReply::Pieces(pieces),
        }
    }
}

/// What counts a request as being answered until its body is sent.
pub type HeldPlaces = (Busy, Counted);

impl HttpReply {
    /// The answer, without the headers that all answers have.
    pub fn into_response(self, held: HeldPlaces) -> Response<ReplyBody> {
        match self {
            HttpReply::Json(value) => whole(StatusCode::OK, JSON, value.to_string().into(), held),
            HttpReply::Text { kind, text, csp } => {
                let mut response = whole(StatusCode::OK, kind, text.into(), held);
                if let Some(csp) = csp {
                    add(&mut response, header::CONTENT_SECURITY_POLICY, &csp);
                    add(&mut response, header::REFERRER_POLICY, "no-referrer");
                    add(&mut response, header::CACHE_CONTROL, "no-cache");
                }
                response
            }
            HttpReply::Events(stream) => streamed("text/event-stream", ReplyBody::events(*stream, held)),
            HttpReply::Pieces(Pieces { kind, first, rest, gone }) => {
                streamed(kind, ReplyBody::pieces(first, (rest, gone), held))
            }
            HttpReply::File(kind, name, bytes) => {
                let mut response = whole(StatusCode::OK, kind, bytes.into(), held);
                add(&mut response, header::CONTENT_DISPOSITION, &format!("attachment; filename=\"{name}\""));
                response
            }
            HttpReply::Health(state) => {
                let status = if state == "ok" { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
                whole(status, JSON, json!({ "status": state }).to_string().into(), held)
            }
            HttpReply::Preflight { headers, private_network } => {
                let mut response = Response::new(ReplyBody::whole(Bytes::new(), held));
                *response.status_mut() = StatusCode::NO_CONTENT;
                add(&mut response, header::ACCESS_CONTROL_ALLOW_METHODS, "GET, POST, DELETE");
                add(&mut response, header::ACCESS_CONTROL_ALLOW_HEADERS, &headers);
                add(&mut response, header::ACCESS_CONTROL_MAX_AGE, "600");
                if private_network {
                    add(&mut response, ALLOW_PRIVATE_NETWORK, "true");
                }
                response
            }
        }
    }
}

/// A refusal of a request for a path of the table of routes.
pub fn refused(refusal: &Refusal, path: &str, held: HeldPlaces) -> Response<ReplyBody> {
    let status = StatusCode::from_u16(refusal.status).unwrap_or_default();
    let mut response = whole(status, JSON, refusal.body().to_string().into(), held);
    if let Some(seconds) = refusal.retry_after {
        add(&mut response, header::RETRY_AFTER, &seconds.to_string());
    }
    match refusal.code {
        "invalid_api_key" => add(&mut response, header::WWW_AUTHENTICATE, "Bearer"),
        "method_not_allowed" => add(&mut response, header::ALLOW, &routes::allowed(path)),
        "unsupported_encoding" => add(&mut response, header::ACCEPT_ENCODING, "identity"),
        // the same request would fail again
        "engine_error" => add(&mut response, HeaderName::from_static("x-should-retry"), "false"),
        // the unread rest of the request would be taken for the next one
        "body_too_large" | "request_timeout" | "headers_too_large" | "unsupported_transfer_encoding" => {
            add(&mut response, header::CONNECTION, "close");
        }
        _ => {}
    }
    response
}

fn whole(status: StatusCode, kind: &str, bytes: Bytes, held: HeldPlaces) -> Response<ReplyBody> {
    let mut response = Response::new(ReplyBody::whole(bytes, held));
    *response.status_mut() = status;
    add(&mut response, header::CONTENT_TYPE, kind);
    response
}

/// A body that is sent as it is computed: nothing on the way may keep it or wait for its end.
fn streamed(kind: &str, body: ReplyBody) -> Response<ReplyBody> {
    let mut response = Response::new(body);
    add(&mut response, header::CONTENT_TYPE, kind);
    add(&mut response, header::CACHE_CONTROL, "no-cache");
    add(&mut response, HeaderName::from_static("x-accel-buffering"), "no");
    response
}

/// Adds a header; a value that no header can have is left out.
pub fn add(response: &mut Response<ReplyBody>, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
}

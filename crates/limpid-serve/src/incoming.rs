//! What comes: the head of a request, checked against the limits, and its body.
//!
//! Bodies must be sent as JSON: a browser lets no page of another site do that unasked.

use crate::options::ConnectionLimits;
use crate::refusal::{Refusal, Result};
use hyper::Request;
use hyper::body::{Body, Bytes, Incoming};
use hyper::header::{self, HeaderMap, HeaderValue};
use std::future::poll_fn;
use std::pin::Pin;
use tokio::time::timeout;

/// Bytes of a path with its query.
const LONGEST_URI: usize = 8 << 10;
/// A body that is too large is read up to this many times its limit before it is refused: a client that is still
/// sending would not see the answer.
const PATIENCE: usize = 8;

/// Refuses a head that is too large, or announces a body that cannot be read.
pub fn check_head(limits: &ConnectionLimits, request: &Request<Incoming>) -> Result<()> {
    let headers = request.headers();
    let size: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    if size > limits.header_bytes {
        return Err(Refusal::headers_too_large(limits.header_bytes));
    }
    if request.uri().to_string().len() > LONGEST_URI {
        return Err(Refusal::uri_too_long(LONGEST_URI));
    }
    match transfer_coding(headers) {
        Some(coding) => Err(Refusal::unsupported_transfer_encoding(&coding)),
        None => Ok(()),
    }
}

/// Refuses a body that is not plain JSON.
pub fn check_body_type(headers: &HeaderMap) -> Result<()> {
    let kinds: Vec<&str> =
        headers.get_all(header::CONTENT_TYPE).iter().map(|kind| kind.to_str().unwrap_or_default()).collect();
    if !matches!(kinds[..], [kind] if is_json(kind)) {
        return Err(Refusal::unsupported_media_type(&kinds));
    }
    let plain = |coding: &HeaderValue| {
        coding.to_str().is_ok_and(|coding| ["", "identity"].contains(&&*coding.trim().to_ascii_lowercase()))
    };
    match headers.get_all(header::CONTENT_ENCODING).iter().find(|coding| !plain(coding)) {
        Some(coding) => Err(Refusal::unsupported_encoding(&String::from_utf8_lossy(coding.as_bytes()))),
        None => Ok(()),
    }
}

/// The body of a request, within the limits of bytes and time.
pub async fn read(limits: &ConnectionLimits, request: Request<Incoming>) -> Result<Bytes> {
    let limit = limits.body_bytes;
    let mut body = request.into_body();
    let too_large = || Refusal::body_too_large(limit as u64);
    let read = limit.saturating_mul(PATIENCE);
    if body.size_hint().lower() > read as u64 {
        return Err(too_large());
    }
    let all = async {
        let mut bytes = vec![];
        let mut came = 0;
        while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
            let frame = frame.map_err(|_| Refusal::invalid_json("the body ended before its end".into()))?;
            let data = frame.into_data().unwrap_or_default();
            came += data.len();
            if came <= limit {
                bytes.extend_from_slice(&data);
            } else if came <= read {
                bytes = vec![];
            } else {
                break;
            }
        }
        if came > limit { Err(too_large()) } else { Ok(bytes.into()) }
    };
    let late = |_| Refusal::request_timeout("body", limits.body_time.as_secs());
    timeout(limits.body_time, all).await.map_err(late)?
}

/// The Transfer-Encoding of a body, if it is another than chunked, which is all that hyper decodes.
fn transfer_coding(headers: &HeaderMap) -> Option<String> {
    let all: Vec<&[u8]> = headers.get_all(header::TRANSFER_ENCODING).iter().map(HeaderValue::as_bytes).collect();
    let all = String::from_utf8_lossy(&all.join(&b", "[..])).to_ascii_lowercase();
    let other = |coding: &&str| !["", "identity"].contains(coding);
    let codings: Vec<&str> = all.split(',').map(str::trim).filter(other).collect();
    (!matches!(codings[..], [] | ["chunked"])).then_some(all)
}

/// Whether a Content-Type says JSON in UTF-8.
fn is_json(kind: &str) -> bool {
    let kind = kind.to_ascii_lowercase();
    let mut parts = kind.split(';').map(str::trim);
    let charset = |part: &str| part.strip_prefix("charset=").is_none_or(|name| name.trim_matches('"') == "utf-8");
    parts.next() == Some("application/json") && parts.all(charset)
}

//! From a request to what answers it, over sockets and without them.

use crate::refusal::{Refusal, Result};
use crate::routes::{self, Endpoint, Route};
use crate::tokens::{self, Reader};
use serde_json::Value;

/// The route of a request, and what stands for `{id}`.
///
/// # Errors
/// If there is no such path, or it has other methods.
pub fn find<'a>(method: &str, path: &'a str) -> Result<(&'static Route, &'a str)> {
    let mut found = routes::ROUTES.iter().filter_map(|route| Some((route, routes::rest(route.path, path)?))).peekable();
    let (first, _) = found.peek().ok_or_else(|| Refusal::not_found(path))?;
    let allowed = routes::allowed(first.path);
    let asked = if method == "HEAD" { "GET" } else { method };
    let refusal = || Refusal::method_not_allowed(method, path, &allowed);
    found.find(|(route, _)| route.method == asked).ok_or_else(refusal)
}

/// What answers the endpoints whose bodies are texts or tokens.
pub(crate) fn reader(endpoint: Endpoint) -> Option<Reader<Value>> {
    match endpoint {
        Endpoint::Tokenize => Some(tokens::tokenize),
        Endpoint::Detokenize => Some(tokens::detokenize),
        Endpoint::ApplyTemplate => Some(tokens::apply_template),
        _ => None,
    }
}

//! Who may ask: hosts, pages of other origins, and keys.
//!
//! Every page that a browser shows can reach a server on the same machine. So the Host header must name the server
//! (another site's name may resolve to its address), and a page of another origin is refused unless it is permitted.

use crate::hosts::{host_name, origin_name, without_port};
use crate::options::{ServeError, ServeOptions};
use crate::refusal::{Refusal, Result};
use hyper::Request;
use hyper::body::Incoming;
use hyper::header::{self, HeaderMap, HeaderValue};
use sha2::{Digest, Sha256};
use std::net::IpAddr;
use subtle::ConstantTimeEq;

/// Who may ask a server.
pub struct RequestAccess {
    /// SHA-256 of each key.
    keys: Vec<[u8; 32]>,
    hosts: Vec<String>,
    /// Whether the Host header may be any address: other machines reach the server by one of its addresses, and a page
    /// that pretends to be the server's needs a name.
    any_address: bool,
    origins: Vec<String>,
}

fn digest(key: &[u8]) -> [u8; 32] {
    Sha256::digest(key).into()
}

impl RequestAccess {
    /// Who may ask a server that listens at `address`.
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

    /// Whether a Host header names this server, with any port.
    fn is_host(&self, host: &str) -> bool {
        without_port(host).is_some_and(|name| {
            let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
            let any = self.any_address && address.parse::<IpAddr>().is_ok();
            any || self.hosts.iter().any(|own| own.eq_ignore_ascii_case(name))
        })
    }

    /// Refuses hosts and origins that are not permitted. Returns the origin that may read the answer, if one was named.
    pub fn check(&self, request: &Request<Incoming>) -> Result<Option<HeaderValue>> {
        let headers = request.headers();
        let mut hosts = headers.get_all(header::HOST).iter();
        let (host, more) = (hosts.next(), hosts.next());
        let host = host.filter(|_| more.is_none()).and_then(|host| host.to_str().ok()).unwrap_or_default();
        let named = request.uri().authority().map_or(host, |authority| authority.as_str());
        // under any name: the answer says nothing about anybody
        let probe = matches!(request.uri().path(), "/health" | "/ready");
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

    /// Whether a request has a key, if one is needed. Every key is compared, in constant time.
    pub fn has_key(&self, headers: &HeaderMap) -> bool {
        let mut values = headers.get_all(header::AUTHORIZATION).iter();
        let value = values.next().filter(|_| values.next().is_none()).map_or(&b""[..], |value| value.as_bytes());
        let (scheme, key) = value.split_at(value.len().min(7));
        let found = digest(if scheme.eq_ignore_ascii_case(b"bearer ") { key.trim_ascii_start() } else { b"" });
        let same = self.keys.iter().fold(subtle::Choice::from(0), |same, key| same | key.ct_eq(&found));
        self.keys.is_empty() || same.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use limpid_glass::decoded;

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

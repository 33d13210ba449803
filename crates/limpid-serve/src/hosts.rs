//! How the headers Host and Origin name hosts and origins.

use std::net::Ipv6Addr;

/// The name of `name:port`, whose port may be empty or missing; none if the text has another form.
pub fn without_port(host: &str) -> Option<&str> {
    let end = if host.starts_with('[') { host.find(']')? + 1 } else { host.find(':').unwrap_or(host.len()) };
    let (name, port) = host.split_at(end);
    let fits = port.len() <= 1 || port[1..].bytes().all(|b| b.is_ascii_digit()) && port[1..].parse::<u16>().is_ok();
    (fits && (port.is_empty() || port.starts_with(':')) && !name.is_empty()).then_some(name)
}

/// How a Host header names a host that was given as an option; none if no header can name it.
pub fn host_name(given: &str) -> Option<String> {
    if given.parse::<Ipv6Addr>().is_ok() {
        return Some(format!("[{given}]").to_lowercase());
    }
    let name = without_port(given)?;
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    let address = address.is_some_and(|address| address.parse::<Ipv6Addr>().is_ok());
    let plain = address || name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b));
    plain.then(|| name.to_lowercase())
}

/// How an Origin header names an origin that was given as an option; none if no header can name it. Browsers send a
/// site (`https://a.example`), an app or an extension under a scheme of its own (`app://obsidian.md`, `file://`), or
/// `null` for a page without an origin.
pub fn origin_name(given: &str) -> Option<String> {
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

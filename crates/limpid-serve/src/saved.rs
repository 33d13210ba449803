//! The page as a single file to send to somebody: the same page, with the answers that it would ask a server for.
//!
//! The file needs no server and no network. It holds the run of one prompt, block by block, and as many answers about
//! it as fit, starting with those that the page shows first. It contains the prompt, but no weights.

use crate::ui::{self, Page, UiError};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use flate2::Compression;
use flate2::write::DeflateEncoder;
use limpid::model::{Component, Module};
use limpid::trace::tiles::SIDE;
use limpid_base::budget::Budget;
use limpid_glass::{Glass, GlassError, Reply, Subject};
use serde_json::{Map, Value, json};
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

/// Why there is no file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SaveError {
    /// The trace.
    #[error(transparent)]
    Glass(#[from] GlassError),
    /// The page.
    #[error(transparent)]
    Page(#[from] UiError),
    /// A file of the model that the page is of.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What happened.
        source: std::io::Error,
    },
    /// What there must be is larger than what is allowed.
    #[error(
        "the run alone takes {needed} bytes of the file, and it may have {most}: allow more, or shorten the prompt"
    )]
    TooLarge {
        /// Bytes.
        needed: usize,
        /// Bytes.
        most: usize,
    },
}

/// A file.
pub struct SavedPage {
    /// The document, in UTF-8.
    pub html: String,
    /// How many answers there was no room for.
    pub left_out: usize,
}

/// Where the answers stand in the document.
pub(crate) const PLACE: &str = "<script type=\"application/octet-stream\" id=\"saved\"></script>";

/// How many bytes the numbers have whose bytes stand apart.
const APART: usize = 4;

fn deflated(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = DeflateEncoder::new(vec![], Compression::best());
    // a Vec takes everything
    encoder.write_all(bytes).and_then(|()| encoder.finish()).unwrap_or_default()
}

/// Answers by what is asked, each deflated.
pub(crate) struct Book {
    index: Map<String, Value>,
    bytes: Vec<u8>,
    most: usize,
    left_out: usize,
}

impl Book {
    /// Bytes that it takes in a file.
    fn size(&self) -> usize {
        // base64, and of each answer its name and two numbers
        self.bytes.len().div_ceil(3) * 4 + self.index.keys().map(|key| key.len() + 24).sum::<usize>()
    }

    /// One of at most so many bytes.
    pub(crate) fn new(most: usize) -> Book {
        Book { index: Map::new(), bytes: vec![], most, left_out: 0 }
    }

    /// Adds an answer, if there is room.
    pub(crate) fn add(&mut self, key: String, answer: &[u8]) -> bool {
        let deflated = deflated(answer);
        if self.size() + deflated.len() * 4 / 3 + key.len() + 32 > self.most {
            self.left_out += 1;
            return false;
        }
        self.index.insert(key, json!([self.bytes.len(), deflated.len()]));
        self.bytes.extend(deflated);
        true
    }

    /// Adds a file of weights. The first bytes of all four-byte numbers come first, then the second ones, and so on:
    /// the signs and exponents of f32 weights are alike, and deflate then finds it.
    pub(crate) fn add_apart(&mut self, key: String, bytes: &[u8]) {
        let apart: Vec<u8> = (0..APART).flat_map(|n| bytes.iter().skip(n).step_by(APART)).copied().collect();
        let deflated = deflated(&apart);
        self.index.insert(key, json!([self.bytes.len(), deflated.len(), APART]));
        self.bytes.extend(deflated);
    }

    /// The page with the answers in their place.
    pub(crate) fn put_into(self, html: &str) -> Result<SavedPage, SaveError> {
        let archive = json!(self.index).to_string();
        let archive = [&(archive.len() as u32).to_le_bytes()[..], archive.as_bytes(), &self.bytes].concat();
        let filled = PLACE.replace("></script>", &format!(">{}</script>", BASE64_STANDARD.encode(archive)));
        let (before, after) = html.split_once(PLACE).ok_or(UiError::Place { line: PLACE })?;
        Ok(SavedPage { html: format!("{before}{filled}{after}"), left_out: self.left_out })
    }
}

/// Tokens that have answers of their own, the last ones of a long text.
const TOKENS: usize = 64;
/// Tokens of the page's lens at once.
const LENS_WINDOW: usize = 32;

/// Steps of paths from the last token, and how many parts of a step are followed.
const PATHS: usize = 160;
const WIDE: usize = 8;

/// The stream inside and after each layer.
fn streams(layers: u64) -> Vec<String> {
    (0..layers)
        .flat_map(|layer| ["hook_resid_mid", "hook_resid_post"].map(|hook| Module::block(layer as usize).named(hook)))
        .collect()
}

/// Asks a question with these parameters, keeps the answer and tells it.
type Store<'a> = dyn FnMut(&str, &[(&str, String)]) -> Option<String> + 'a;

/// The steps of paths from words: from each token the first one, of the likeliest word and of the one that follows;
/// from the last token those that follow the larger parts, the earlier steps first.
fn paths(ids: &[u64], store: &mut Store) {
    let Some(last) = ids.len().checked_sub(1) else { return };
    for position in ids.len().saturating_sub(TOKENS)..ids.len() {
        let place = ("position", position.to_string());
        store("path", std::slice::from_ref(&place));
        if let Some(next) = ids.get(position + 1) {
            store("path", &[place, ("target", next.to_string())]);
        }
    }
    let read = |text: String| serde_json::from_str::<Value>(&text).ok();
    let Some(first) = store("path", &[("position", last.to_string())]).and_then(read) else { return };
    let id = |key: &str| first[key][0].as_u64().map_or("none".to_string(), |id| id.to_string());
    let asked = [("foil", id("foil")), ("position", last.to_string()), ("target", id("target"))];
    let mut ways: Vec<Vec<String>> = vec![vec![]];
    for n in 0..PATHS {
        let Some(way) = ways.get(n).cloned() else { break };
        let via = (!way.is_empty()).then(|| ("via", way.join(",")));
        let question: Vec<(&str, String)> = asked.iter().cloned().chain(via).collect();
        let Some(answer) = store("path", &question).and_then(read) else { break };
        let size = |bar: &&Value| bar["value"].as_f64().unwrap_or(0.0).abs();
        let mut bars: Vec<&Value> =
            answer["bars"].as_array().into_iter().flatten().filter(|bar| bar["hop"].is_string()).collect();
        bars.sort_by(|a, b| size(b).total_cmp(&size(a)));
        let wide = if way.is_empty() { WIDE } else { WIDE / 2 };
        // where the way ends, wherever it stands
        let ends = bars.iter().skip(wide).filter(|bar| bar["hop"] == "w");
        for bar in bars.iter().take(wide).chain(ends) {
            ways.push(way.iter().cloned().chain(bar["hop"].as_str().map(String::from)).collect());
        }
    }
}

/// Answers a question with these parameters.
type Ask<'a> = dyn Fn(&[(&str, String)]) -> Option<String> + 'a;

/// The frames of a time-lapse, and in at most a quarter of the room that is left the pictures of the last ones.
fn keep_timelapse(book: &mut Book, ask: &Ask) {
    let Some(frames) = ask(&[("count", "1000".into())]) else { return };
    if !book.add("timelapse".into(), frames.as_bytes()) {
        return;
    }
    let most = book.size() + (book.most - book.size()) / 4;
    let told: Value = serde_json::from_str(&frames).unwrap_or_default();
    for step in told["steps"].as_array().into_iter().flatten().rev() {
        let Some(frame) = ask(&[("step", step.to_string())]) else { return };
        if book.size() + frame.len() / 4 > most || !book.add(format!("timelapse?step={step}"), frame.as_bytes()) {
            return;
        }
    }
}

/// The page, which has no headers when it is a file; `allowed`: what its policy allows beside its own script and style.
pub(crate) fn page_of_a_file(page: Page, allowed: [(&str, &str); 2]) -> String {
    let Page { html, csp } = page;
    let csp = csp.replace("; frame-ancestors 'none'", "");
    let csp = allowed.iter().fold(csp, |csp, (from, to)| csp.replacen(from, to, 1));
    let meta = format!("<meta http-equiv=\"Content-Security-Policy\" content=\"{csp}\">");
    html.replacen("<meta charset=\"utf-8\">", &format!("<meta charset=\"utf-8\">\n{meta}"), 1)
}

pub(crate) const NO_NETWORK: (&str, &str) = ("connect-src 'self'; ", "");

/// Every head as one tile, the weights of all heads first.
fn keep_heads(
    book: &mut Book,
    (glass, id): (&Glass, &str),
    [length, layers, heads]: [usize; 3],
) -> Result<(), SaveError> {
    let level = (0..).find(|level| SIDE << level >= length).unwrap_or(0);
    for (stage, code) in [("hook_pattern", "log8"), ("hook_attn_scores", "lin8"), ("hook_raw_scores", "lin8")] {
        for (layer, head) in (0..layers).flat_map(|layer| (0..heads).map(move |head| (layer, head))) {
            let name = Module::block(layer).part(Component::Attention).named(stage);
            let tile = json!({ "name": name, "index": [0, head], "tile": [0, 0], "level": level, "pool": "max",
                "code": code });
            let mut frame = vec![];
            glass.tiles(id, &json!({ "tiles": [tile] }), &Arc::default, &mut |bytes| {
                frame = bytes;
                true
            })?;
            book.add(format!("tile {name} 0,{head} {code}"), &frame);
        }
    }
    Ok(())
}

/// Whole tensors, from which any part is cut: the stream first, what is largest last. `read` gives the numbers of one.
fn keep_tensors(book: &mut Book, (listing, layers): (&Value, u64), read: &dyn Fn(&str) -> Option<Vec<u8>>) {
    let keep = |book: &mut Book, name: &str| {
        if let Some(bytes) = read(name) {
            book.add(format!("tensor {name}"), &bytes);
        }
    };
    let size = |tensor: &Value| -> u64 {
        tensor["shape"].as_array().into_iter().flatten().filter_map(Value::as_u64).product()
    };
    for name in [&["hook_embed".into(), "hook_pos_embed".into()][..], &streams(layers)].concat() {
        keep(book, &format!("cos({name})"));
    }
    // queries, keys and values stand apart
    let part = |tensor: &&Value| !tensor["name"].as_str().unwrap_or_default().ends_with("hook_qkv");
    let mut tensors: Vec<&Value> = listing["tensors"].as_array().into_iter().flatten().filter(part).collect();
    tensors.sort_by_key(|tensor| (!tensor["name"].as_str().unwrap_or_default().contains("hook_resid"), size(tensor)));
    for tensor in tensors.iter().filter(|tensor| tensor["same_as"].is_null()) {
        if book.size() + size(tensor) as usize * 4 > book.most {
            book.left_out += 1;
            continue;
        }
        keep(book, tensor["name"].as_str().unwrap_or_default());
    }
}

/// A sweep, which is what the page then begins with.
fn keep_sweep(
    book: &mut Book,
    about: &mut Value,
    (glass, subjects): (&Glass, &[Subject]),
    sweep: Option<&Value>,
) -> Result<(), SaveError> {
    let Some(sweep) = sweep else { return Ok(()) };
    let mut lines = String::new();
    glass.sweep(subjects, sweep, (&Budget::default(), &Arc::default()), &mut |event| {
        lines += event;
        lines.push('\n');
        true
    })?;
    let word = |name: &str| Some((name.to_string(), sweep.get(name)?.clone()));
    let mut words: Map<String, Value> = ["clean", "site", "by", "metric"].into_iter().filter_map(word).collect();
    if sweep["estimate"] == json!(true) {
        words.insert("est".into(), "1".into());
    }
    if book.add("sweep".into(), lines.as_bytes()) {
        about["sweep"] = words.into();
    }
    Ok(())
}

/// The text of an answer that is one.
fn text(reply: Reply) -> String {
    match reply {
        Reply::Json(text) => text,
        Reply::File(..) => String::new(),
    }
}

/// The page with the run of a prompt (`body` as in [`Glass::trace`]), and with a sweep if there is one (as in
/// [`Glass::sweep`]), in at most `most` bytes.
///
/// # Errors
/// If the prompt cannot be run, or the run alone is larger.
pub fn page(subject: &Subject, (body, sweep): (&Value, Option<&Value>), most: usize) -> Result<SavedPage, SaveError> {
    let html = page_of_a_file(ui::page(None)?, [NO_NETWORK, ("", "")]);
    let room = most.saturating_sub(html.len() + 4096);
    let (glass, subjects) = (Glass::new(usize::MAX), [subject.clone()]);
    let mut book = Book::new(room);
    let mut lines = String::new();
    glass.trace(&subjects, body, &Arc::default(), &mut |event| {
        lines += event;
        lines.push('\n');
        true
    })?;
    let start: Value = lines.lines().next().and_then(|line| serde_json::from_str(line).ok()).unwrap_or_default();
    let id = start["id"].as_str().unwrap_or_default().to_string();
    let (length, layers, heads) =
        (start["tokens"].as_array().map_or(0, Vec::len), start["layers"].as_u64(), start["heads"].as_u64());
    let (layers, heads) = (layers.unwrap_or(0), heads.unwrap_or(0));
    let ask = |path: &str, query: &[(&str, String)]| {
        let query: Vec<(String, String)> =
            query.iter().map(|(name, value)| (name.to_string(), value.clone())).collect();
        glass.ask(&subjects, path, &query, &Arc::default())
    };
    let mut about: Value = serde_json::from_str(&text(ask("model", &[])?)).unwrap_or_default();
    about["saved"] = true.into();
    about["training"] = false.into();
    for word in ["tokens", "last"] {
        about[word] = body[word].clone();
    }
    about["example"] = body["prompt"].clone();
    about["steps"] = body["interventions"].clone();
    about["models"] = json!([subject.name]);
    keep_sweep(&mut book, &mut about, (&glass, &subjects), sweep)?;
    let listing = text(ask(&format!("traces/{id}/tensors"), &[])?);
    for (key, answer) in [("model", about.to_string()), ("run", lines.clone()), ("listing", listing.clone())] {
        if !book.add(key.into(), answer.as_bytes()) {
            return Err(SaveError::TooLarge { needed: answer.len(), most });
        }
    }
    keep_timelapse(&mut book, &|query| ask("timelapse", query).ok().map(text));
    let asked = |question: &str, query: &[(&str, String)]| -> Option<(String, String)> {
        let reply = ask(&format!("traces/{id}/{question}"), query).ok()?;
        let words: Vec<String> = query.iter().map(|(name, value)| format!("{name}={value}")).collect();
        Some((format!("{question}?{}", words.join("&")), text(reply)))
    };
    // what a click on a token shows
    let mut store = |question: &str, query: &[(&str, String)]| {
        let (key, answer) = asked(question, query)?;
        book.add(key, answer.as_bytes());
        Some(answer)
    };
    let near = length.saturating_sub(TOKENS);
    let mut last = None;
    for position in near..length {
        last = store("predictions", &[("k", "20".into()), ("position", position.to_string())]);
    }
    // what each view begins with: the lens in the page's windows, attribution at each token, the units of each layer at
    // the last one
    for from in (near - near % LENS_WINDOW..length).step_by(LENS_WINDOW) {
        let positions = format!("{from}:{}", length.min(from + LENS_WINDOW));
        store("lens", &[("k", "5".into()), ("positions", positions)]);
    }
    let ids: Vec<u64> =
        start["tokens"].as_array().into_iter().flatten().filter_map(|token| token["id"].as_u64()).collect();
    paths(&ids, &mut store);
    for layer in 0..layers {
        store("mlp", &[("layer", layer.to_string()), ("position", length.saturating_sub(1).to_string())]);
    }
    store("gradients", &[("position", length.saturating_sub(1).to_string())]);
    let likeliest = |answer: String| serde_json::from_str::<Value>(&answer).ok()?["top"][0][0].as_u64();
    if let Some(id) = last.and_then(likeliest) {
        store("explain/logits", &[("at", format!("0,{},{id}", length - 1))]);
    }
    keep_heads(&mut book, (&glass, &id), [length, layers as usize, heads as usize])?;
    let listing: Value = serde_json::from_str(&listing).unwrap_or_default();
    keep_tensors(&mut book, (&listing, layers), &|name| match ask(
        &format!("traces/{id}/tensors/{name}"),
        &[("format", "f32".into())],
    ) {
        Ok(Reply::File(_, _, bytes)) => Some(bytes),
        _ => None,
    });
    book.put_into(&html)
}

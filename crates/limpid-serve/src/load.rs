//! Clients that measure a server: how soon the first token comes, how long the next ones take, and how many come a second.
//!
//! The clients are plain threads with a socket each, and speak HTTP/1.1 and server-sent events to any server that has OpenAI's
//! `/v1/completions`. The same requests can be given to an engine without a server ([`engine_alone`]): the difference is what HTTP costs.

use limpid::engine::{Engine, EngineEvent, EngineRequest};
use limpid::generate::{GenerateError, Options, Overflow, Sampler};
use limpid::ops::random;
use limpid::tokenizer::{Tokenizer, TokenizerError};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// What clients ask for.
#[derive(Clone, Debug)]
pub struct Load {
    /// The prompts, one for each request.
    pub prompts: Vec<LoadPrompt>,
    /// Tokens of each answer.
    pub max_tokens: usize,
    /// Who sends them.
    pub arrivals: Arrivals,
}

/// A prompt as text and as ids.
#[derive(Clone, Debug)]
pub struct LoadPrompt {
    /// The text.
    pub text: String,
    /// Its ids, of the measured model's tokenizer.
    pub ids: Vec<u32>,
}

/// When requests are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrivals {
    /// So many clients, each of which sends the next one when the last is answered.
    Closed(usize),
    /// So many a second, at random times (a Poisson process), whether the others are answered or not.
    Poisson(f64),
}

/// What was measured. Times are in seconds.
#[derive(Clone, Debug, Default)]
pub struct LoadReport {
    /// From the first request to the last answer.
    pub seconds: f64,
    /// Tokens of all answers.
    pub tokens: usize,
    /// From each request to its first text.
    pub first: Vec<f64>,
    /// From each text to the next of the same answer.
    pub between: Vec<f64>,
}

impl LoadReport {
    /// Tokens a second, of all clients together.
    pub fn rate(&self) -> f64 {
        self.tokens as f64 / self.seconds
    }

    /// The time that so many of 100 do not exceed; NaN without times.
    pub fn percentile(times: &[f64], percent: f64) -> f64 {
        let mut times = times.to_vec();
        times.sort_by(f64::total_cmp);
        let at = (percent / 100.0 * times.len() as f64).ceil() as usize;
        times.get(at.max(1) - 1).copied().unwrap_or(f64::NAN)
    }

    fn add(&mut self, other: LoadReport) {
        self.tokens += other.tokens;
        self.first.extend(other.first);
        self.between.extend(other.between);
    }
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// An address of another form.
    #[error("{0:?} is no address of a server: write it as http://127.0.0.1:8080")]
    Address(String),
    /// The server cannot be reached, or went away.
    #[error("the server at {address}: {}", limpid_base::words::system(.source))]
    Socket {
        /// Where.
        address: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The server answered something else than a stream of completions.
    #[error("the server answered {0}")]
    Answer(String),
    /// The engine refused a request, or failed.
    #[error(transparent)]
    Engine(#[from] GenerateError),
    /// A text has no ids.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}

impl Load {
    /// `count` prompts of about `tokens` tokens that are drawn at random. The first `shared` tokens are the same in all.
    ///
    /// # Errors
    /// If the tokenizer has no ids for a text.
    pub fn prompts(
        tokenizer: &Tokenizer,
        (count, tokens, shared): (usize, usize, usize),
    ) -> Result<Vec<LoadPrompt>, LoadError> {
        // texts that other tokenizers have too: no special tokens, no parts of characters
        let special = |id: &u32| tokenizer.specials().iter().any(|(_, other)| other == id);
        let whole = |id: &u32| tokenizer.piece_bytes(*id).is_some_and(|bytes| str::from_utf8(&bytes).is_ok());
        let usable: Vec<u32> = (0..tokenizer.vocab_size() as u32).filter(|id| whole(id) && !special(id)).collect();
        let most = usable.len().max(1) as u64;
        let draw = |site: u64, n: usize| (0..n as u64).map(move |i| random::below(1, site, i, most) as usize);
        let one = |n: usize| {
            let common = draw(0, shared.min(tokens));
            let own = draw(1 + n as u64, tokens - shared.min(tokens));
            let ids: Vec<u32> = common.chain(own).filter_map(|at| usable.get(at).copied()).collect();
            let mut ids = tokenizer.encode(&tokenizer.decode(&ids)?)?;
            ids.truncate(tokens);
            let text = tokenizer.decode(&ids)?;
            Ok(LoadPrompt { ids, text })
        };
        (0..count).map(one).collect()
    }

    /// The seconds after the start at which each request is sent.
    fn times(&self) -> Option<Vec<f64>> {
        let Arrivals::Poisson(rate) = self.arrivals else { return None };
        let mut next = 0.0;
        let time = |n: usize| {
            let now = next;
            next -= (1.0 - random::uniform(1, 1, n as u64)).ln() / rate;
            now
        };
        Some((0..self.prompts.len()).map(time).collect())
    }
}

/// Measures a server at `url` (`http://host:port`), with `key` if it needs one.
///
/// # Errors
/// If the server cannot be reached, or answers anything but completions.
pub fn server(url: &str, key: Option<&str>, load: &Load) -> Result<LoadReport, LoadError> {
    let address = url.strip_prefix("http://").map(|rest| rest.trim_end_matches('/').trim_end_matches("/v1"));
    let address = address.filter(|address| !address.is_empty() && !address.contains('/'));
    let address = address.ok_or_else(|| LoadError::Address(url.into()))?;
    let (next, times) = (AtomicUsize::new(0), load.times());
    let clients = if let Arrivals::Closed(clients) = load.arrivals { clients } else { load.prompts.len() };
    let all = Mutex::new((LoadReport::default(), None));
    let began = Instant::now();
    thread::scope(|scope| {
        for client in 0..clients.min(load.prompts.len()) {
            let (all, next, times) = (&all, &next, &times);
            scope.spawn(move || {
                if let Some(times) = times {
                    thread::sleep(Duration::from_secs_f64(times[client]).saturating_sub(began.elapsed()));
                }
                let mut connection = None;
                while let Some(prompt) = load.prompts.get(next.fetch_add(1, Relaxed)) {
                    let done = request(address, key, &mut connection, prompt, load.max_tokens);
                    let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
                    match done {
                        Ok(report) => all.0.add(report),
                        Err(error) => {
                            all.1.get_or_insert(error);
                            return;
                        }
                    }
                    if times.is_some() {
                        return;
                    }
                }
            });
        }
    });
    let seconds = began.elapsed().as_secs_f64();
    match all.into_inner().unwrap_or_else(PoisonError::into_inner) {
        (_, Some(error)) => Err(error),
        (report, None) => Ok(LoadReport { seconds, ..report }),
    }
}

/// One request and its stream, on a connection that is kept if the server keeps it.
fn request(
    address: &str,
    key: Option<&str>,
    connection: &mut Option<BufReader<TcpStream>>,
    prompt: &LoadPrompt,
    max_tokens: usize,
) -> Result<LoadReport, LoadError> {
    let socket = |source| LoadError::Socket { address: address.into(), source };
    let body = json!({
        "prompt": prompt.text, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": true, "stream": true,
        "stream_options": { "include_usage": true },
    })
    .to_string();
    let secret = key.map(|key| format!("Authorization: Bearer {key}\r\n")).unwrap_or_default();
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n{secret}Content-Length: {}\r\n\r\n",
        body.len()
    );
    let kept = connection.is_some();
    let mut stream = match connection.take() {
        Some(stream) => stream,
        None => {
            let stream = TcpStream::connect(address).map_err(socket)?;
            stream.set_nodelay(true).map_err(socket)?;
            BufReader::new(stream)
        }
    };
    let began = Instant::now();
    stream.get_mut().write_all(format!("{head}{body}").as_bytes()).map_err(socket)?;
    let (mut line, mut chunked, mut keeps, mut status) = (String::new(), false, true, String::new());
    loop {
        line.clear();
        let read = stream.read_line(&mut line).map_err(socket)?;
        let text = line.trim_end().to_ascii_lowercase();
        match text.as_str() {
            // a server may close a connection that it kept, between two requests: the request goes to a new one
            "" if read == 0 && kept => return request(address, key, connection, prompt, max_tokens),
            "" if read == 0 => return Err(LoadError::Answer("nothing: it closed the connection".into())),
            "" => break,
            "transfer-encoding: chunked" => chunked = true,
            "connection: close" => keeps = false,
            first if status.is_empty() => status = first.into(),
            _ => {}
        }
    }
    let mut stream = Chunks { stream, left: 0, chunked };
    if !status.contains(" 200") {
        let mut said = [0; 500];
        let read = stream.read(&mut said).unwrap_or(0);
        return Err(LoadError::Answer(format!("{status}: {}", String::from_utf8_lossy(&said[..read]))));
    }
    let (mut report, mut last, mut texts) = (LoadReport::default(), None, 0);
    let mut reader = BufReader::with_capacity(1 << 12, stream);
    loop {
        line.clear();
        if reader.read_line(&mut line).map_err(socket)? == 0 {
            return Err(LoadError::Answer("a stream that ends before [DONE]".into()));
        }
        let Some(event) = line.strip_prefix("data: ") else { continue };
        if event.trim_end() == "[DONE]" {
            break;
        }
        let event: Value = serde_json::from_str(event).map_err(|error| LoadError::Answer(error.to_string()))?;
        if let Some(error) = event.get("error") {
            return Err(LoadError::Answer(error.to_string()));
        }
        if let Some(tokens) = event.pointer("/usage/completion_tokens").and_then(Value::as_u64) {
            report.tokens = tokens as usize;
        }
        if event.pointer("/choices/0/text").and_then(Value::as_str).is_some_and(|text| !text.is_empty()) {
            let now = Instant::now();
            match last.replace(now) {
                None => report.first.push(began.elapsed().as_secs_f64()),
                Some(last) => report.between.push(now.duration_since(last).as_secs_f64()),
            }
            texts += 1;
        }
    }
    // a server that does not tell what it used sends a text for each token
    report.tokens = if report.tokens == 0 { texts } else { report.tokens };
    let mut rest = reader.into_inner();
    rest.finish().map_err(socket)?;
    *connection = keeps.then_some(rest.stream);
    Ok(report)
}

/// A body in chunks, or to the end of the connection.
struct Chunks {
    stream: BufReader<TcpStream>,
    left: usize,
    chunked: bool,
}

impl Chunks {
    /// Reads what comes after the last event.
    fn finish(&mut self) -> std::io::Result<()> {
        if self.chunked {
            while self.read(&mut [0; 256])? > 0 {}
        }
        Ok(())
    }

    fn line(&mut self) -> std::io::Result<String> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        Ok(line)
    }
}

impl Read for Chunks {
    fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
        if !self.chunked {
            return self.stream.read(to);
        }
        if self.left == 0 {
            let size = self.line()?;
            let size = size.trim_end().split(';').next().unwrap_or_default();
            self.left = usize::from_str_radix(size, 16).map_err(|_| std::io::ErrorKind::InvalidData)?;
            if self.left == 0 {
                self.line()?;
                self.chunked = false;
                return Ok(0);
            }
        }
        let most = to.len().min(self.left);
        let read = self.stream.read(&mut to[..most])?;
        self.left -= read;
        if self.left == 0 {
            self.line()?;
        }
        Ok(read)
    }
}

/// Gives the same requests to an engine: a closed load of as many clients as the load has, or all at once.
///
/// # Errors
/// If the engine refuses one, or fails.
pub fn engine_alone(engine: &mut Engine, load: &Load) -> Result<LoadReport, LoadError> {
    let clients = if let Arrivals::Closed(clients) = load.arrivals { clients } else { load.prompts.len() };
    let options = Options {
        max_tokens: load.max_tokens,
        sampler: Sampler::GREEDY,
        stop_at_end_of_text: false,
        overflow: Overflow::Stop,
        ..Options::default()
    };
    let (mut report, mut prompts, mut open) = (LoadReport::default(), load.prompts.iter(), HashMap::new());
    let began = Instant::now();
    loop {
        while open.len() < clients
            && let Some(prompt) = prompts.next()
        {
            let (prompt, options) = (prompt.ids.clone(), options.clone());
            let id = engine.submit(EngineRequest { prompt, options, log_probs: None, reuse: true })?;
            open.insert(id, (Instant::now(), false));
        }
        if open.is_empty() {
            return Ok(LoadReport { seconds: began.elapsed().as_secs_f64(), ..report });
        }
        let mut failed = None;
        engine
            .round(&mut |id, event| {
                match event {
                    EngineEvent::Token { .. } => {
                        let (last, begun) = open.get_mut(&id).expect("it was asked for");
                        let seconds = std::mem::replace(last, Instant::now()).elapsed().as_secs_f64();
                        let times =
                            if std::mem::replace(begun, true) { &mut report.between } else { &mut report.first };
                        times.push(seconds);
                        report.tokens += 1;
                    }
                    EngineEvent::Done(_) => drop(open.remove(&id)),
                    EngineEvent::Failed(error) => failed = Some(error),
                    EngineEvent::Prompt { .. } | EngineEvent::Cropped { .. } => {}
                }
                true
            })
            .map_err(GenerateError::from)?;
        if let Some(error) = failed {
            return Err(error.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let times: Vec<f64> = (1..=10).rev().map(f64::from).collect();
        let of = |percent| LoadReport::percentile(&times, percent);
        assert_eq!([of(0.0), of(50.0), of(51.0), of(99.0), of(100.0)], [1.0, 5.0, 6.0, 10.0, 10.0]);
        assert!(LoadReport::percentile(&[], 50.0).is_nan());
    }

    #[test]
    fn arrivals_keep_their_rate() {
        let prompts = vec![LoadPrompt { text: String::new(), ids: vec![] }; 4000];
        let load = Load { prompts, max_tokens: 1, arrivals: Arrivals::Poisson(20.0) };
        let times = load.times().unwrap();
        assert!(times.is_sorted() && times[0] == 0.0);
        let seconds = times[3999];
        // the standard deviation of 3,999 gaps of 1 / 20 s is 3.2 s
        assert!((seconds - 200.0).abs() < 13.0, "{seconds}");
        // gaps of a Poisson process vary as much as they are long
        let gaps: Vec<f64> = times.windows(2).map(|t| t[1] - t[0]).collect();
        let mean = seconds / 3999.0;
        let deviation = (gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / 3999.0).sqrt();
        assert!((deviation / mean - 1.0).abs() < 0.1, "{deviation} {mean}");
    }
}

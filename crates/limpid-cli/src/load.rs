//! `bench serve`: how soon the first token comes from a server, how long the next ones take, and how many come a second.
//!
//! The clients are plain threads with a socket each. They speak HTTP/1.1 and server-sent events to any server that has OpenAI's
//! `/v1/completions`. The same requests also go to an engine without a server: the difference is what HTTP costs.

use crate::models;
use crate::options::{self, MachineOptions, Usage};
use crate::show;
use anyhow::{Result, anyhow, bail};
use limpid::Machine;
use limpid::engine::{Engine, EngineEvent, EngineLimits, EngineRequest};
use limpid::generate::{GenerateError, Options, Overflow, Sampler};
use limpid::numeric::element::Element;
use limpid::numeric::random;
use limpid::tokenizer::Tokenizer;
use limpid_base::words::system;
use limpid_serve::{PageOptions, ServeOptions, ServedAs, ServedModel, Server};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Measure a server with many clients.
#[derive(clap::Args, Debug)]
pub struct LoadArgs {
    /// The model to serve; with --against, only its tokenizer is used
    #[arg(long, value_name = "DIR")]
    model: PathBuf,
    /// Number of clients, each of which sends its next request when the last is answered; several numbers are measured one after another
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,2,4,8,16", value_parser = clap::value_parser!(u16).range(1..=256))]
    clients: Vec<u16>,
    /// Instead of --clients, send this many requests per second at random times (a Poisson process)
    #[arg(long, value_name = "R", value_parser = rate)]
    rate: Option<f64>,
    /// Requests each client sends in each of three rounds (the median is reported); with --rate, of all clients together
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    requests: u16,
    /// Tokens of each prompt
    #[arg(long, value_name = "N", default_value_t = 128)]
    prompt_tokens: usize,
    /// Tokens of each answer
    #[arg(long, value_name = "N", default_value_t = 64)]
    max_tokens: usize,
    /// Tokens at the beginning that are the same in all prompts
    #[arg(long, value_name = "N", default_value_t = 0)]
    shared_prefix: usize,
    /// Measure another server, at an address like http://127.0.0.1:8080
    #[arg(long, value_name = "URL")]
    against: Option<String>,
    /// The API key to send to that server
    #[arg(long, value_name = "KEY", hide_env_values = true, requires = "against")]
    api_key: Option<String>,
    /// Type of the KV cache: f32 or bf16
    #[arg(long, value_name = "P", default_value = "f32", value_parser = options::stored)]
    kv_cache_dtype: Element,
    /// Print the result as JSON on stdout
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    machine: MachineOptions,
}

fn rate(text: &str) -> Result<f64, String> {
    let rate: f64 = text.parse().map_err(|_| "it is not a number".to_string())?;
    if rate > 0.0 && rate.is_finite() { Ok(rate) } else { Err("it must be above 0".into()) }
}

/// Rounds of each load, on the server and on the engine in turn: other programs disturb some.
const ROUNDS: usize = 3;
/// How much faster one round may be than another on a machine that does nothing else.
const STEADY: f64 = 2.0;

/// Measures a server, and the same requests on the engine alone.
pub fn run(args: &LoadArgs) -> Result<()> {
    models::shares(&args.machine)?;
    let checkpoint = models::adapted(&args.model, &[], !args.machine.no_verify)?;
    models::suits(&checkpoint, &args.machine)?;
    let machine = Machine { cache: args.kv_cache_dtype, ..args.machine.machine() };
    let how = ServedAs { id: "model".into(), machine, template: None };
    let model = ServedModel::new(checkpoint, &how)?;
    let context = model.lm.config().context_length;
    if args.prompt_tokens == 0 || args.prompt_tokens + args.max_tokens > context + 1 {
        let prompt = args.prompt_tokens;
        let answer = args.max_tokens;
        bail!(Usage(format!("--prompt-tokens {prompt} and --max-tokens {answer} must be 1 to {context} together")));
    }
    let (rows, spread) = match &args.against {
        Some(url) => measure(args, model.lm.tokenizer()?, url, None)?,
        None => {
            let most = usize::from(args.clients.iter().copied().max().unwrap_or(1)).max(16);
            let limits = EngineLimits::new(model.lm.config(), most, context);
            let lm = model.lm.clone();
            let options = ServeOptions { port: 0, engine: limits, page: PageOptions::Off, ..ServeOptions::default() };
            let server = Server::start(model, options, None, Box::new(|event| show::say(format_args!("{event:?}"))))?;
            let measured = measure(args, lm.tokenizer()?, &server.url(), Some(lm.engine(&limits)?))?;
            server.stopper().stop();
            server.wait()?;
            measured
        }
    };
    if spread > STEADY {
        show::say(format_args!(
            "note: the rounds of a load differ by up to {spread:.1} times: this machine is busy with something else"
        ));
    }
    if args.json {
        let rows: Vec<Value> = rows.iter().map(Row::json).collect();
        return show::json(&json!({ "loads": rows, "spread": spread }));
    }
    let headers = ["clients", "tok/s", "engine alone", "share", "first token p50", "p99", "next token p50", "p99"];
    show::out(&show::columns(&headers, &rows.iter().map(Row::cells).collect::<Vec<_>>()))
}

/// Measures each load in rounds. Returns the median rounds, and how many times faster than another of the same load a round was at most.
fn measure(args: &LoadArgs, tokenizer: &Tokenizer, url: &str, mut engine: Option<Engine>) -> Result<(Vec<Row>, f64)> {
    let requests = usize::from(args.requests);
    let loads: Vec<(String, Arrivals, usize)> = match args.rate {
        Some(rate) => vec![(format!("{rate} a second"), Arrivals::Poisson(rate), requests)],
        None => {
            let one = |n: &u16| (n.to_string(), Arrivals::Closed((*n).into()), usize::from(*n) * requests);
            args.clients.iter().map(one).collect()
        }
    };
    // no prompt comes twice: else the cache of prompts would be measured
    let all = 1 + ROUNDS * loads.iter().map(|(_, _, count)| count).sum::<usize>();
    let mut prompts = Load::prompts(tokenizer, (all, args.prompt_tokens, args.shared_prefix))?.into_iter();
    let key = args.api_key.as_deref();
    let warm = Load { prompts: prompts.by_ref().take(1).collect(), max_tokens: 1, arrivals: Arrivals::Closed(1) };
    send(url, key, &warm)?;
    engine.as_mut().map(|engine| engine_alone(engine, &warm)).transpose()?;
    let mut rows = vec![];
    let mut spread = 1.0_f64;
    for (clients, arrivals, count) in loads {
        let (mut served, mut alone) = (vec![], vec![]);
        for _ in 0..ROUNDS {
            let prompts = prompts.by_ref().take(count).collect();
            let load = Load { prompts, max_tokens: args.max_tokens, arrivals };
            served.push(send(url, key, &load)?);
            alone.extend(engine.as_mut().map(|engine| engine_alone(engine, &load)).transpose()?);
        }
        let mut median = |rounds| {
            let (report, spread_of_rounds) = median(rounds);
            spread = spread.max(spread_of_rounds);
            report
        };
        let served = median(served);
        let alone = (!alone.is_empty()).then(|| median(alone));
        rows.push(Row { clients, served, alone });
    }
    Ok((rows, spread))
}

/// The round of median rate, with the times of all, and how many times faster the fastest was than the slowest.
fn median(mut rounds: Vec<Report>) -> (Report, f64) {
    rounds.sort_by(|a, b| a.rate().total_cmp(&b.rate()));
    let spread = rounds[rounds.len() - 1].rate() / rounds[0].rate();
    let mut median = rounds.swap_remove(rounds.len() / 2);
    for other in rounds {
        median.first.extend(other.first);
        median.between.extend(other.between);
    }
    (median, spread)
}

/// What was measured of one load.
struct Row {
    clients: String,
    served: Report,
    /// The engine without a server, if the server is our own.
    alone: Option<Report>,
}

impl Row {
    fn json(&self) -> Value {
        json!({ "clients": self.clients, "served": self.served.json(), "engine_alone": self.alone.as_ref().map(Report::json) })
    }

    fn cells(&self) -> Vec<String> {
        let ms = |seconds: f64| format!("{:.1} ms", 1e3 * seconds);
        let alone = self.alone.as_ref().map(Report::rate);
        let rates = [
            self.clients.clone(),
            format!("{:.1}", self.served.rate()),
            alone.map_or_else(String::new, |alone| format!("{alone:.1}")),
            alone.map_or_else(String::new, |alone| format!("{:.0} %", 100.0 * self.served.rate() / alone)),
        ];
        rates.into_iter().chain(self.served.percentiles().map(ms)).collect()
    }
}

// ---- loads and what is measured of them

/// What clients ask for.
struct Load {
    /// One for each request.
    prompts: Vec<Prompt>,
    /// Tokens of each answer.
    max_tokens: usize,
    arrivals: Arrivals,
}

/// A prompt as text and as ids of the measured model's tokenizer.
#[derive(Clone)]
struct Prompt {
    text: String,
    ids: Vec<u32>,
}

/// When requests are sent.
#[derive(Clone, Copy)]
enum Arrivals {
    /// This many clients, each of which sends its next request when the last one is answered.
    Closed(usize),
    /// This many a second, at random times (a Poisson process), whether the others are answered or not.
    Poisson(f64),
}

/// What was measured. Times are in seconds.
#[derive(Default)]
struct Report {
    /// From the first request to the last answer.
    seconds: f64,
    /// Tokens of all answers.
    tokens: usize,
    /// From each request to its first text.
    first: Vec<f64>,
    /// From each text to the next of the same answer.
    between: Vec<f64>,
}

impl Report {
    /// Tokens a second, of all clients together.
    fn rate(&self) -> f64 {
        self.tokens as f64 / self.seconds
    }

    /// To the first token, half of all times and 99 of 100; then the same between tokens.
    fn percentiles(&self) -> [f64; 4] {
        let [first, between] = [&self.first, &self.between];
        [percentile(first, 50.0), percentile(first, 99.0), percentile(between, 50.0), percentile(between, 99.0)]
    }

    fn json(&self) -> Value {
        let [first_p50, first_p99, between_p50, between_p99] = self.percentiles();
        json!({
            "tok_s": self.rate(), "tokens": self.tokens, "first_p50_s": first_p50, "first_p99_s": first_p99,
            "between_p50_s": between_p50, "between_p99_s": between_p99,
        })
    }

    fn add(&mut self, other: Report) {
        self.tokens += other.tokens;
        self.first.extend(other.first);
        self.between.extend(other.between);
    }
}

/// The time that `percent` of 100 do not exceed; NaN without times.
fn percentile(times: &[f64], percent: f64) -> f64 {
    let mut times = times.to_vec();
    times.sort_by(f64::total_cmp);
    let at = (percent / 100.0 * times.len() as f64).ceil() as usize;
    times.get(at.max(1) - 1).copied().unwrap_or(f64::NAN)
}

impl Load {
    /// `count` prompts of about `tokens` tokens that are drawn at random. The first `shared` tokens are the same in all.
    fn prompts(tokenizer: &Tokenizer, (count, tokens, shared): (usize, usize, usize)) -> Result<Vec<Prompt>> {
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
            Ok(Prompt { ids, text })
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

    /// How many requests are under way at most.
    fn clients(&self) -> usize {
        let clients = if let Arrivals::Closed(clients) = self.arrivals { clients } else { usize::MAX };
        clients.min(self.prompts.len())
    }
}

// ---- clients

/// Sends a load to the server at `url` (`http://host:port`), with `key` if it needs one.
fn send(url: &str, key: Option<&str>, load: &Load) -> Result<Report> {
    let address = url.strip_prefix("http://").map(|rest| rest.trim_end_matches('/').trim_end_matches("/v1"));
    let Some(address) = address.filter(|address| !address.is_empty() && !address.contains('/')) else {
        bail!("{url:?} is not a server's address: write it as http://127.0.0.1:8080");
    };
    let next = AtomicUsize::new(0);
    let times = load.times();
    let all = Mutex::new((Report::default(), None));
    let began = Instant::now();
    thread::scope(|scope| {
        for client in 0..load.clients() {
            let (all, next, times) = (&all, &next, &times);
            let client = move || {
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
            };
            if let Err(error) = thread::Builder::new().spawn_scoped(scope, client) {
                let error = anyhow::Error::from(error).context("no thread for a client");
                all.lock().unwrap_or_else(PoisonError::into_inner).1.get_or_insert(error);
                break;
            }
        }
    });
    let seconds = began.elapsed().as_secs_f64();
    match all.into_inner().unwrap_or_else(PoisonError::into_inner) {
        (_, Some(error)) => Err(error),
        (report, None) => Ok(Report { seconds, ..report }),
    }
}

/// One request and its answer, on a connection that is kept if the server keeps it.
fn request(
    address: &str,
    key: Option<&str>,
    connection: &mut Option<BufReader<TcpStream>>,
    prompt: &Prompt,
    max_tokens: usize,
) -> Result<Report> {
    let socket = |error| anyhow!("the server at {address}: {}", system(&error));
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
    let Some(head) = Head::read(&mut stream).map_err(socket)? else {
        if kept {
            // a server may close a connection that it kept, between two requests: the request goes to a new one
            return request(address, key, connection, prompt, max_tokens);
        }
        bail!("the server answered nothing: it closed the connection");
    };
    let mut stream = Chunks { stream, left: 0, chunked: head.chunked };
    if !head.status.contains(" 200") {
        let mut said = [0; 500];
        let read = stream.read(&mut said).unwrap_or(0);
        bail!("the server answered {}: {}", head.status, String::from_utf8_lossy(&said[..read]));
    }
    let mut reader = BufReader::with_capacity(1 << 12, stream);
    let report = follow(&mut reader, began, &socket)?;
    let mut rest = reader.into_inner();
    rest.finish().map_err(socket)?;
    *connection = head.keep_alive.then_some(rest.stream);
    Ok(report)
}

/// The head of an answer.
struct Head {
    status: String,
    chunked: bool,
    keep_alive: bool,
}

impl Head {
    /// Reads it; none if the connection ends before that.
    fn read(stream: &mut BufReader<TcpStream>) -> std::io::Result<Option<Head>> {
        let mut head = Head { status: String::new(), chunked: false, keep_alive: true };
        let mut line = String::new();
        loop {
            line.clear();
            let read = stream.read_line(&mut line)?;
            match line.trim_end().to_ascii_lowercase().as_str() {
                "" if read == 0 => return Ok(None),
                "" => return Ok(Some(head)),
                "transfer-encoding: chunked" => head.chunked = true,
                "connection: close" => head.keep_alive = false,
                first if head.status.is_empty() => head.status = first.into(),
                _ => {}
            }
        }
    }
}

/// Reads the events of an answer to its end.
fn follow(
    reader: &mut impl BufRead,
    began: Instant,
    socket: &impl Fn(std::io::Error) -> anyhow::Error,
) -> Result<Report> {
    let mut report = Report::default();
    let mut last = None;
    let mut texts = 0;
    let mut line = String::new();
    loop {
        line.clear();
        if reader.read_line(&mut line).map_err(socket)? == 0 {
            bail!("the server answered a stream that ends before [DONE]");
        }
        let Some(event) = line.strip_prefix("data: ") else { continue };
        if event.trim_end() == "[DONE]" {
            break;
        }
        let event: Value = serde_json::from_str(event).map_err(|error| anyhow!("the server answered {error}"))?;
        if let Some(error) = event.get("error") {
            bail!("the server answered {error}");
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
    // a server that does not report its usage sends a text for each token
    report.tokens = if report.tokens == 0 { texts } else { report.tokens };
    Ok(report)
}

/// A body in chunks, or to the end of the connection.
struct Chunks {
    stream: BufReader<TcpStream>,
    left: usize,
    chunked: bool,
}

impl Chunks {
    /// Reads the rest of the body, after the last event.
    fn finish(&mut self) -> std::io::Result<()> {
        while self.chunked && self.read(&mut [0; 256])? > 0 {}
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

/// Gives the same requests to an engine without a server: as many at a time as there are clients, or all at once.
fn engine_alone(engine: &mut Engine, load: &Load) -> Result<Report> {
    let options = Options {
        max_tokens: load.max_tokens,
        sampler: Sampler::GREEDY,
        stop_at_end_of_text: false,
        overflow: Overflow::Stop,
        ..Options::default()
    };
    let mut report = Report::default();
    let mut prompts = load.prompts.iter();
    let mut open = HashMap::new();
    let began = Instant::now();
    loop {
        while open.len() < load.clients()
            && let Some(prompt) = prompts.next()
        {
            let (prompt, options) = (prompt.ids.clone(), options.clone());
            let id = engine.submit(EngineRequest { prompt, options, log_probs: None, reuse: true, steps: None })?;
            open.insert(id, (Instant::now(), false));
        }
        if open.is_empty() {
            return Ok(Report { seconds: began.elapsed().as_secs_f64(), ..report });
        }
        let mut failed = None;
        let mut hear = |id, event| {
            match event {
                EngineEvent::Token { .. } => {
                    let (last, begun) = open.get_mut(&id).expect("it was asked for");
                    let seconds = std::mem::replace(last, Instant::now()).elapsed().as_secs_f64();
                    let times = if std::mem::replace(begun, true) { &mut report.between } else { &mut report.first };
                    times.push(seconds);
                    report.tokens += 1;
                }
                EngineEvent::Done(_) => drop(open.remove(&id)),
                EngineEvent::Failed(error) => failed = Some(error),
                EngineEvent::Prompt { .. } | EngineEvent::Cropped { .. } => {}
            }
            true
        };
        engine.round(&mut hear).map_err(GenerateError::from)?;
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
        let of = |percent| percentile(&times, percent);
        assert_eq!([of(0.0), of(50.0), of(51.0), of(99.0), of(100.0)], [1.0, 5.0, 6.0, 10.0, 10.0]);
        assert!(percentile(&[], 50.0).is_nan());
    }

    #[test]
    fn arrivals_keep_their_rate() {
        let prompts = vec![Prompt { text: String::new(), ids: vec![] }; 4000];
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

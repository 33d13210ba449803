//! What the tests of the server share: small models, servers on free ports, and a client that sends bytes as they are.
#![allow(dead_code)] // each test file uses its own part

use limpid::checkpoint::Checkpoint;
use limpid::config::Config;
use limpid::train::Recipe;
use limpid::{Machine, Training};
use limpid_serve::{Follow, ServeError, ServeEvent, ServeOptions, ServedAs, ServedModel, Server, Stopper};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

/// How long a test waits for what must happen; nothing is measured by it.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Tokens of the context: so many that an answer of all is not over before a test has looked at it.
pub const CONTEXT: usize = 4096;

/// Trains a model of letters, a little, into a new folder.
pub fn train(name: &str, steps: u64) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("limpid-serve-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    let nano = Config::preset("nano").unwrap();
    let config = Config { context_length: CONTEXT, d_model: 32, d_ff: 64, n_layer: 2, ..nano };
    let recipe = Recipe { steps, batch_size: 2, context: 16, warmup_steps: 0, ..Recipe::preset("nano").unwrap() };
    let text = "to be or not to be, that is the question. ".repeat(40);
    let training = Training::new(config, recipe).text(text).tokenizer("char").folder(&folder);
    training.run().unwrap();
    folder
}

/// The model of most tests.
pub fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| train("model", 2))
}

pub fn how() -> ServedAs {
    ServedAs { id: "m".into(), machine: Machine::cpu(1), template: None }
}

/// A server that ends with the test.
pub struct Running {
    pub address: SocketAddr,
    pub stopper: Stopper,
    pub events: Arc<Mutex<Vec<ServeEvent>>>,
    waits: Option<JoinHandle<Result<(), ServeError>>>,
}

/// Options of a test: a free port, and room for four whole contexts.
pub fn options() -> ServeOptions {
    let mut options = ServeOptions { port: 0, ..ServeOptions::default() };
    options.engine.cache_bytes = 4 * CONTEXT as u64 * 2 * 32 * 2 * 4;
    options
}

pub fn serve(options: ServeOptions) -> Running {
    let model = ServedModel::new(Checkpoint::open(folder()).unwrap(), &how()).unwrap();
    start(model, options, None)
}

pub fn start(model: ServedModel, options: ServeOptions, follow: Option<Follow>) -> Running {
    let events = Arc::new(Mutex::new(vec![]));
    let heard = events.clone();
    let tell = move |event| heard.lock().unwrap().push(event);
    let server = Server::start(model, options, follow, Box::new(tell)).unwrap();
    let (address, stopper) = (server.address(), server.stopper());
    Running { address, stopper, events, waits: Some(std::thread::spawn(|| server.wait())) }
}

impl Running {
    /// Waits for the end.
    pub fn ended(mut self) -> Result<(), ServeError> {
        self.waits.take().unwrap().join().unwrap()
    }
    pub fn connect(&self) -> Client {
        Client::new(self.address)
    }
    pub fn get(&self, path: &str) -> Reply {
        self.connect().ask(&format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"))
    }
    pub fn post(&self, path: &str, body: &Value) -> Reply {
        self.connect().ask(&post(path, body))
    }
    /// A number of /metrics; 0 if it is not there.
    pub fn metric(&self, name: &str) -> f64 {
        let page = self.get("/metrics").text();
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ').map(String::from));
        line.map_or(0.0, |value| value.parse().unwrap())
    }
    /// Waits until the server is as it should be.
    #[track_caller]
    pub fn until(&self, what: &str, is: impl Fn(&Running) -> bool) {
        let began = Instant::now();
        while !is(self) {
            assert!(began.elapsed() < PATIENCE, "{what} never came");
            sleep(Duration::from_millis(5));
        }
    }
    /// The server lives and answers.
    #[track_caller]
    pub fn lives(&self) {
        assert_eq!(self.get("/health").status, 200);
        let reply = self.post("/v1/completions", &serde_json::json!({ "prompt": "to be", "max_tokens": 2 }));
        assert_eq!(reply.status, 200, "{}", reply.text());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stopper.stop();
        self.stopper.stop();
        self.waits.take().map(JoinHandle::join);
    }
}

/// A request with a JSON body.
pub fn post(path: &str, body: &Value) -> String {
    let body = body.to_string();
    format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// An answer.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(of, _)| of == name).map(|(_, value)| value.as_str())
    }
    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
    /// The code of an error.
    #[track_caller]
    pub fn code(&self) -> String {
        self.json()["error"]["code"].as_str().unwrap_or_else(|| panic!("{self:?}")).into()
    }
}

/// One connection.
pub struct Client {
    pub stream: BufReader<TcpStream>,
}

impl Client {
    pub fn new(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Client { stream: BufReader::new(stream) }
    }
    /// Sends bytes; a server that has closed already takes none.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        let _ = self.stream.get_mut().write_all(bytes.as_ref());
    }
    #[track_caller]
    pub fn ask(&mut self, request: &str) -> Reply {
        self.send(request);
        self.reply(request.starts_with("HEAD")).unwrap_or_else(|| panic!("closed without an answer to {request:.200}"))
    }
    /// A line without its end; none when the connection is closed.
    pub fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        match self.stream.read_line(&mut line) {
            Ok(0) | Err(_) => None,
            Ok(_) => Some(line.trim_end().into()),
        }
    }
    /// Status and headers.
    pub fn head(&mut self) -> Option<(u16, Vec<(String, String)>)> {
        let status = self.line()?.split(' ').nth(1)?.parse().ok()?;
        let mut headers = vec![];
        loop {
            let line = self.line()?;
            let Some((name, value)) = line.split_once(':') else { return Some((status, headers)) };
            headers.push((name.to_lowercase(), value.trim().into()));
        }
    }
    /// The next answer; none when the connection is closed before it.
    pub fn reply(&mut self, of_head: bool) -> Option<Reply> {
        let (status, headers) = self.head()?;
        let mut reply = Reply { status, headers, body: vec![] };
        if of_head || status == 204 {
            return Some(reply);
        }
        if let Some(length) = reply.header("content-length") {
            reply.body = vec![0; length.parse().ok()?];
            self.stream.read_exact(&mut reply.body).ok()?;
        } else {
            while let Some(chunk) = self.chunk() {
                reply.body.extend(chunk);
            }
        }
        Some(reply)
    }
    /// The next chunk of an answer; none after the last.
    pub fn chunk(&mut self) -> Option<Vec<u8>> {
        let length = usize::from_str_radix(&self.line()?, 16).ok()?;
        let mut bytes = vec![0; length + 2];
        self.stream.read_exact(&mut bytes).ok()?;
        bytes.truncate(length);
        (length > 0).then_some(bytes)
    }
    /// Whether the server closes, whatever it sends before.
    pub fn is_closed(&mut self) -> bool {
        let mut rest = vec![];
        match self.stream.read_to_end(&mut rest) {
            Ok(_) => true,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

/// The payloads of a stream's `data:` lines.
pub fn payloads(body: &str) -> Vec<String> {
    body.split("\n\n").filter_map(|event| event.strip_prefix("data: ").map(String::from)).collect()
}

//! A server that `limpid serve` starts, asked over a socket.

use super::{Folder, kill};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Duration;

pub const PATIENCE: Duration = Duration::from_secs(60);

/// A server that is killed with the test.
pub struct Serving {
    pub child: Child,
    pub said: BufReader<ChildStderr>,
    /// What it said first, to the line with its address.
    pub first: String,
    pub address: String,
}

impl Serving {
    pub fn start(folder: &Folder, flags: &str) -> Serving {
        Serving::run(folder.command(&format!("serve --model m --port 0 --threads 1 --kv-memory 8M {flags}")))
    }
    pub fn run(mut command: Command) -> Serving {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap());
        let mut first = String::new();
        while !first.contains("http://") {
            assert!(said.read_line(&mut first).unwrap() > 0, "no address in: {first}");
        }
        let address = first.split("http://").nth(1).and_then(|rest| rest.split(';').next());
        let address = address.unwrap().to_string();
        Serving { child, said, first, address }
    }
    /// Status and body.
    pub fn ask(&self, head: &str, body: &str) -> (u16, Value) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let length = body.len();
        let head = format!("{head} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json");
        write!(stream, "{head}\r\nContent-Length: {length}\r\n\r\n{body}").unwrap();
        let mut all = String::new();
        stream.read_to_string(&mut all).unwrap();
        let status = all.split(' ').nth(1).unwrap().parse().unwrap();
        (status, serde_json::from_str(all.split("\r\n\r\n").nth(1).unwrap()).unwrap_or_default())
    }
    pub fn complete(&self, body: &Value) -> Value {
        let (status, answer) = self.ask("POST /v1/completions", &body.to_string());
        assert_eq!(status, 200, "{answer}");
        answer
    }
    pub fn signal(&self, name: &str) {
        assert!(kill(name, self.child.id()));
    }
    /// Its exit code, and what it said since the first line.
    pub fn end(mut self) -> (Option<i32>, String) {
        let mut rest = String::new();
        self.said.read_to_string(&mut rest).unwrap();
        (self.child.wait().unwrap().code(), rest)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

//! limpid as a module of WebAssembly: a model that a page has inside of it answers as `limpid serve` does, and one can
//! be trained there as `limpid train` does it (feature `training`: a page with a model has no use for it).
//!
//! The module is built for WASI, whose files, clock and random numbers the page provides (`ui/wasi.js`): so a model is
//! opened from a folder in the page's memory as it is from any other, and nothing of limpid knows of pages. What a page
//! asks is answered by `LocalServer`, the server's protocol without its sockets.
//!
//! The page writes what it asks to the memory that `limpid_input` reserves, and calls one of the other functions. They
//! answer by calling the page's `tell` as often as there is something to tell: a status with the type of what follows,
//! then bytes. They end when that is done.
#![cfg(target_family = "wasm")]
#![allow(unsafe_code)] // what is exported and imported: see below

#[cfg(feature = "training")]
mod training;

use limpid::Machine;
use limpid::checkpoint::Checkpoint;
use limpid::numeric::simd::{Level, computed_lanes};
use limpid_serve::local::{LocalServer, Told};
use limpid_serve::{ServeOptions, ServedAs, ServedModel, ServedTraining};
use serde::Deserialize;
use serde_json::Value;
use std::arch::wasm32::v128;
use std::cell::RefCell;
use std::error::Error;
use std::path::Path;

// SAFETY: the page implements it so: it copies the bytes before it returns, and keeps no pointer.
#[link(wasm_import_module = "limpid")]
unsafe extern "C" {
    /// The next part of the answer: its status if it begins, else 0, with the type of what follows or the bytes.
    /// Returns 0 when nobody listens any more.
    safe fn tell(status: u32, bytes: *const u8, len: usize) -> u32;
}

thread_local! {
    static INPUT: RefCell<Vec<u8>> = const { RefCell::new(vec![]) };
    static SERVER: RefCell<Option<LocalServer>> = const { RefCell::new(None) };
}

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn say(status: u16, bytes: &[u8]) -> bool {
    tell(status.into(), bytes.as_ptr(), bytes.len()) != 0
}

/// Memory for a request of so many bytes, until it is asked.
// SAFETY: no other function of the module has this name.
#[unsafe(no_mangle)]
pub extern "C" fn limpid_input(len: usize) -> *mut u8 {
    INPUT.with_borrow_mut(|input| {
        input.clear();
        input.resize(len, 0);
        input.as_mut_ptr()
    })
}

/// Does what the input asks for. Tells 200 and what came of it as JSON; 422 and why not; or 501, where this engine
/// would compute other bits.
fn answer(work: impl FnOnce(&[u8]) -> Result<Value>) {
    let (status, text) = if Level::is_sound() {
        match work(&INPUT.take()) {
            Ok(value) => (200, value.to_string()),
            Err(error) => (422, with_causes(&*error)),
        }
    } else {
        let why = "this browser rounds WebAssembly's relaxed multiply-adds twice, so its results would be others";
        (501, why.into())
    };
    say(status, if status == 200 { b"application/json" } else { b"text/plain" });
    say(0, text.as_bytes());
}

/// a b + c in four lanes, each rounded once: where an engine lacks the instruction for that, or rounds twice, the page
/// has it call this (`ui/multiply-add.js`).
// SAFETY: no other function of the module has this name.
#[unsafe(no_mangle)]
#[allow(improper_ctypes_definitions)] // C has no name for this type
pub extern "C" fn limpid_madd(a: v128, b: v128, c: v128) -> v128 {
    computed_lanes(a, b, c)
}

/// An error with what led to it.
fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let what = cause.to_string();
        if !text.contains(&what) {
            text = format!("{text}: {what}");
        }
        next = cause.source();
    }
    text
}

/// What is opened.
#[derive(Deserialize)]
struct ToOpen {
    /// Its name, under which it lies among the page's files.
    name: String,
    /// How many steps it will be trained for, if it is being trained.
    steps: Option<u64>,
    floor: Option<f64>,
}

/// Opens a model, or its next checkpoint if it is open.
// SAFETY: no other function of the module has this name.
#[unsafe(no_mangle)]
pub extern "C" fn limpid_open() {
    answer(|input| {
        let ToOpen { name, steps, floor } = serde_json::from_slice(input)?;
        let training = steps.map(|steps| ServedTraining { steps, floor, stop: Default::default() });
        let how = ServedAs { id: name.clone(), machine: Machine::cpu(1), template: None };
        let model = ServedModel::new(Checkpoint::open_copied(Path::new(&name))?, &how)?;
        SERVER.with_borrow_mut(|server| match server {
            Some(server) => server.follow(model, training),
            None => {
                // whoever has the page may change what it computes
                let options = ServeOptions { allow_interventions: true, training, ..ServeOptions::default() };
                *server = Some(LocalServer::new(model, &options)?);
                Ok(())
            }
        })?;
        Ok(Value::Null)
    });
}

/// Answers a request: the input is `METHOD target`, a line feed, and the body.
// SAFETY: no other function of the module has this name.
#[unsafe(no_mangle)]
pub extern "C" fn limpid_ask() {
    let input = INPUT.take();
    let end = input.iter().position(|byte| *byte == b'\n').unwrap_or(input.len());
    let head = String::from_utf8_lossy(&input[..end]);
    let (method, target) = head.split_once(' ').unwrap_or((&head, ""));
    let body = input.get(end + 1..).unwrap_or_default();
    SERVER.with_borrow_mut(|server| {
        let Some(server) = server else { return };
        server.answer((method, target), body, &mut |told| match told {
            Told::Head(status, kind) => say(status, kind.as_bytes()),
            Told::Piece(bytes) => say(0, &bytes),
        });
    });
}

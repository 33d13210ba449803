//! limpid as a module of WebAssembly: a model that a page has inside of it answers as `limpid serve` does.
//!
//! The module is built for WASI, whose files, clock and random numbers the page provides (`ui/wasi.js`): so a model is
//! opened from a folder in the page's memory as it is from any other, and nothing of limpid knows of pages. What a page
//! asks is answered by `LocalServer`, the server's protocol without its sockets.
//!
//! The page writes a request to the memory that `limpid_input` reserves, and calls `limpid_open` or `limpid_ask`;
//! both answer by calling the page's `tell` as often as there is something to tell, and end when the request is
//! answered.
#![cfg(target_family = "wasm")]
#![allow(unsafe_code)] // what is exported and imported: see below

use limpid::Machine;
use limpid::checkpoint::Checkpoint;
use limpid::numeric::simd::Level;
use limpid_serve::local::{LocalServer, Told};
use limpid_serve::{ServeOptions, ServedAs, ServedModel};
use std::cell::RefCell;
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

/// What was written to [`limpid_input`].
fn taken() -> Vec<u8> {
    INPUT.take()
}

/// Opens a model: the input is its name, under which it lies among the page's files. Tells 200 and nothing more; 422
/// and why not; or 501, where this engine would compute other bits.
// SAFETY: no other function of the module has this name.
#[unsafe(no_mangle)]
pub extern "C" fn limpid_open() {
    let fail = |status, why: &str| {
        say(status, b"text/plain");
        say(0, why.as_bytes());
    };
    if !Level::is_sound() {
        let why = "this browser rounds WebAssembly's relaxed multiply-adds twice, so its results would be others";
        return fail(501, why);
    }
    match opened(&String::from_utf8_lossy(&taken())) {
        Ok(server) => {
            SERVER.set(Some(server));
            say(200, b"text/plain");
        }
        Err(error) => fail(422, &error.to_string()),
    }
}

fn opened(name: &str) -> Result<LocalServer, Box<dyn std::error::Error>> {
    let machine = Machine::cpu(1);
    let how = ServedAs { id: name.into(), machine, template: None };
    let model = ServedModel::new(Checkpoint::open_copied(Path::new(name))?, &how)?;
    // whoever has the page may change what it computes
    Ok(LocalServer::new(model, &ServeOptions { allow_interventions: true, ..ServeOptions::default() })?)
}

/// Answers a request: the input is `METHOD target`, a line feed, and the body.
// SAFETY: no other function of the module has this name.
#[unsafe(no_mangle)]
pub extern "C" fn limpid_ask() {
    let input = taken();
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

//! A page with a model inside of it, which runs there without a network: which models a page can have, and how it is
//! made. Whoever opens the file can ask the model anything.

use crate::saved::{Book, NO_NETWORK, SaveError, page_of_a_file};
use crate::ui;
use limpid::Machine;
use limpid::checkpoint::{Checkpoint, is_part};
use limpid::data::chat::is_template;
use limpid::matrix::Precision;
use limpid::numeric::element::Element;
use limpid::tokenizer::Tokenizer;
use serde_json::json;
use std::path::{Path, PathBuf};

/// Bytes of a model that a page may have inside.
pub const MOST: u64 = 64_000_000;

/// Files by their paths in a page.
type PageFiles = Vec<(String, Vec<u8>)>;

/// Its worker is made of its own text, and compiles the module that stands in it.
const WORKER: (&str, &str) = ("script-src ", "worker-src blob:; script-src 'wasm-unsafe-eval' ");

/// What runs a model in a page: limpid itself, as WebAssembly; none where this library was built without it
/// (`cargo xtask web`).
pub fn module() -> Option<&'static [u8]> {
    #[cfg(live)]
    return Some(include_bytes!(env!("LIVE_MODULE")));
    #[cfg(not(live))]
    None
}

/// The address that a page begins at: its words, such as the view `v` and the prompt `p`, as they stand behind `#`.
pub fn address(words: &[(&str, &str)]) -> String {
    let encoded = |text: &str| -> String {
        let byte = |b: u8| match b {
            b if b.is_ascii_alphanumeric() || b"-._~".contains(&b) => char::from(b).to_string(),
            b => format!("%{b:02X}"),
        };
        text.bytes().map(byte).collect()
    };
    let words: Vec<String> = words.iter().map(|(name, word)| format!("{name}={}", encoded(word))).collect();
    words.join("&")
}

/// The page with a model inside of it, which it calls `name` and begins to look into at `start`, an [`address`].
/// None where there is no module, or where the page could not give the answers that `machine` gives: of more than
/// [`MOST`] bytes, of adapters, of tokenizers and templates that other programs' crates run, of another device or
/// precision than the processor's f32.
///
/// # Errors
/// If the model's files cannot be read.
pub fn page(
    name: &str,
    (checkpoint, machine): (&Checkpoint, &Machine),
    start: &str,
) -> Result<Option<String>, SaveError> {
    let plain = machine.precision == Precision::F32 && machine.cache == Element::F32;
    let exact = plain && machine.device.is_exact() && machine.level.is_exact();
    let Some(module) = module().filter(|_| exact) else { return Ok(None) };
    let Some(files) = files(name, checkpoint)? else { return Ok(None) };
    with(module, name, files, start).map(Some)
}

/// The page without a model, which trains one or opens one; none where there is no module. Its module can train, too,
/// which makes it a third larger.
///
/// # Errors
/// If the page cannot be made.
pub fn site() -> Result<Option<String>, SaveError> {
    #[cfg(live)]
    return with(include_bytes!(env!("TRAINING_MODULE")), "", vec![], "").map(Some);
    #[cfg(not(live))]
    Ok(None)
}

fn with(module: &[u8], name: &str, files: PageFiles, start: &str) -> Result<String, SaveError> {
    let html = page_of_a_file(ui::live_page()?, [NO_NETWORK, WORKER]);
    let mut book = Book::new(usize::MAX);
    book.add("live".into(), json!({ "name": name, "start": start }).to_string().as_bytes());
    book.add("worker".into(), ui::worker()?.as_bytes());
    book.add("module".into(), module);
    for (file, bytes) in files {
        let key = format!("file {file}");
        if file.ends_with(".safetensors") {
            book.add_apart(key, &bytes);
        } else {
            book.add(key, &bytes);
        }
    }
    Ok(book.put_into(&html)?.html)
}

/// A model's files by their paths in the page, below `name` where they are several.
fn files(name: &str, checkpoint: &Checkpoint) -> Result<Option<PageFiles>, SaveError> {
    let path = &checkpoint.path;
    let failed = |path: &Path| {
        let path = path.to_path_buf();
        move |source| SaveError::Read { path, source }
    };
    let files: Vec<(String, PathBuf)> = if path.is_dir() {
        // what the page tells of a training, too; its settings name files of whoever trained it
        let told = ["metrics.jsonl", limpid::timelapse::FILE];
        let belongs = |file: &str| is_part(file) || told.contains(&file);
        let names =
            path.read_dir().map_err(failed(path))?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut names: Vec<String> = names.filter(|file| belongs(file) && path.join(file).is_file()).collect();
        names.sort();
        names.iter().map(|file| (format!("{name}/{file}"), path.join(file))).collect()
    } else {
        vec![(name.into(), path.clone())]
    };
    let bytes: u64 = files.iter().filter_map(|(_, path)| Some(path.metadata().ok()?.len())).sum();
    // a page's limpid has none of the crates that run other programs' tokenizers and templates
    let template = checkpoint.chat_template.as_deref().is_some_and(|source| !is_template(source));
    let borrows = template || checkpoint.tokenizer.as_ref().is_some_and(Tokenizer::needs_huggingface);
    if bytes > MOST || borrows || !checkpoint.adapters.is_empty() {
        return Ok(None);
    }
    let read = |(name, path): (String, PathBuf)| {
        Ok((name, limpid_base::files::read_small(&path, MOST).map_err(failed(&path))?))
    };
    files.into_iter().map(read).collect::<Result<_, _>>().map(Some)
}

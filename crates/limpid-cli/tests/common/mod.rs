//! What the tests of the binary share: an empty folder to run it in, and the guides whose commands they run.
#![allow(dead_code)] // each test file uses its own part

#[path = "../../../limpid/tests/library/common/folder.rs"]
mod folder;
pub mod printed;
pub mod serving;

pub use folder::Folder;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The built binary.
pub const LIMPID: &str = env!("CARGO_BIN_EXE_limpid");

/// What a test of the command does in its folder.
impl Folder {
    pub fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> String {
        let path = self.0.join(name);
        fs::write(&path, bytes).unwrap();
        path.display().to_string()
    }
    /// What a folder in it holds, in alphabetical order.
    pub fn names(&self, folder: &str) -> Vec<String> {
        let entries = fs::read_dir(self.0.join(folder)).unwrap();
        let mut all: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        all.sort();
        all
    }
    #[track_caller]
    pub fn bytes(&self, path: &str) -> Vec<u8> {
        fs::read(self.0.join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
    }
    pub fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(LIMPID);
        command.args(last_holds(words(arguments))).current_dir(&self.0).env_remove("LIMPID_STEPS").stdin(Stdio::null());
        command
    }
    /// A shell in it, which finds `limpid`, ends with the first command that fails, and says all on stdout.
    pub fn shell(&self, commands: &str) -> Command {
        let path = format!("{}:{}", Path::new(LIMPID).parent().unwrap().display(), std::env::var("PATH").unwrap());
        let mut shell = Command::new("sh");
        shell.args(["-euc", &format!("exec 2>&1\n{commands}")]).current_dir(&self.0).stdin(Stdio::null());
        shell.env("PATH", path).env("COLUMNS", "100");
        shell
    }
    pub fn run(&self, arguments: &str) -> Output {
        self.command(arguments).output().unwrap()
    }
    /// Runs what must succeed and returns stdout and stderr.
    #[track_caller]
    pub fn both(&self, arguments: &str) -> (String, String) {
        let out = self.run(arguments);
        assert!(out.status.success(), "limpid {arguments}: {}\n{}", out.status, text(&out.stderr));
        (text(&out.stdout), text(&out.stderr))
    }
    /// Runs what must succeed and returns stdout.
    #[track_caller]
    pub fn ok(&self, arguments: &str) -> String {
        self.both(arguments).0
    }
    #[track_caller]
    pub fn json(&self, arguments: &str) -> Value {
        let out = self.ok(arguments);
        serde_json::from_str(&out).unwrap_or_else(|e| panic!("limpid {arguments} printed no JSON: {e}\n{out}"))
    }
    /// Runs what must fail with `code`, and returns the message.
    #[track_caller]
    pub fn fails(&self, code: i32, arguments: &str, said: &[&str]) -> String {
        let (found, message) = self.refuses(arguments, said);
        assert_eq!(found, Some(code), "limpid {arguments}\n{message}");
        message
    }
    /// Runs what must fail, with whatever code, and returns it and the message.
    #[track_caller]
    pub fn refuses(&self, arguments: &str, said: &[&str]) -> (Option<i32>, String) {
        let out = self.run(arguments);
        let message = text(&out.stderr);
        assert!(!out.status.success() && !message.contains("panicked"), "limpid {arguments}\n{message}");
        for words in said {
            assert!(message.contains(words), "limpid {arguments}: the message lacks `{words}`:\n{message}");
        }
        (out.status.code(), message)
    }
}
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Arguments split at spaces; '...' keeps them together.
pub fn words(line: &str) -> Vec<String> {
    let (mut all, mut word, mut quoted) = (vec![], None::<String>, false);
    for c in line.chars() {
        match c {
            '\'' => {
                quoted = !quoted;
                word.get_or_insert_default();
            }
            c if c.is_whitespace() && !quoted => all.extend(word.take()),
            c => word.get_or_insert_default().push(c),
        }
    }
    all.extend(word);
    all
}

/// Words in which what stands last holds, as a test's own flags do over those of the constant that it begins with.
/// limpid refuses a flag that is given twice.
pub fn last_holds(words: Vec<String>) -> Vec<String> {
    const LISTS: [&str; 4] = ["freeze", "train_only", "lora_targets", "add_special_tokens"];
    const OTHERS: [&str; 7] = ["temperature", "max_tokens", "top_k", "width", "position", "detail_every", "config"];
    let settings = limpid::settings::training_settings();
    let one = |name: &str| {
        OTHERS.contains(&name) || settings.iter().any(|setting| setting.name == name && !setting.value.is_empty())
    };
    let named = |word: &str| {
        let name = word.strip_prefix("--")?.split('=').next()?.replace('-', "_");
        Some(name).filter(|name| one(name) && !LISTS.contains(&name.as_str()))
    };
    let (mut kept, mut at) = (vec![], 0);
    while at < words.len() {
        let name = named(&words[at]);
        let alone = words[at].contains('=') || words.get(at + 1).is_none_or(|next| next.starts_with("--"));
        let end = at + if name.is_some() && !alone { 2 } else { 1 };
        if name.is_none() || !words[end..].iter().any(|word| named(word) == name) {
            kept.extend_from_slice(&words[at..end]);
        }
        at = end;
    }
    kept
}

/// A file of the repository.
pub fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// The code blocks of a document, after a line of it (a heading) where one is given, in their order: the language of
/// each and its text.
pub fn blocks_of(document: &str, heading: Option<&str>) -> Vec<(String, String)> {
    let text = fs::read_to_string(root(document)).unwrap();
    let mut blocks: Vec<(String, String)> = vec![];
    let mut inside = false;
    for line in text.lines().skip_while(|line| heading.is_some_and(|heading| *line != heading)) {
        match line.strip_prefix("```") {
            Some(kind) if !inside => blocks.push((kind.into(), String::new())),
            None if inside => blocks.last_mut().unwrap().1 += &format!("{line}\n"),
            _ => {}
        }
        inside ^= line.starts_with("```");
    }
    blocks
}

/// Those of a guide in docs/.
pub fn blocks(guide: &str, heading: &str) -> Vec<(String, String)> {
    blocks_of(&format!("docs/{guide}"), Some(heading))
}

/// The first of them in a language.
pub fn block(guide: &str, heading: &str, kind: &str) -> String {
    let found = blocks(guide, heading).into_iter().find(|(language, _)| language == kind);
    found.unwrap_or_else(|| panic!("docs/{guide} has no {kind} after `{heading}`")).1
}

/// A line without what may differ: numbers become 0, and bars and blanks lose their lengths.
fn plain(line: &str) -> String {
    let of = |word: &str| {
        if word.contains(|c: char| c.is_ascii_digit()) {
            if word.ends_with(':') { "0:" } else { "0" }.to_string()
        } else if word.contains(['#', '━', '─']) {
            String::new()
        } else {
            word.to_string()
        }
    };
    line.split_whitespace().map(of).filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

/// The first line that should be seen and is not; lines are looked for in order, the parts between `...` in one line.
pub fn missing<'a>(shown: &'a str, seen: &str) -> Option<&'a str> {
    let mut seen = seen.lines().map(plain);
    let holds = |line: &str, parts: &str| {
        let mut rest = line;
        parts.split("...").map(plain).all(|part| match rest.find(&part) {
            Some(at) => {
                rest = &rest[at + part.len()..];
                true
            }
            None => false,
        })
    };
    let says = |line: &&str| !plain(&line.replace("...", "")).is_empty();
    shown.lines().filter(says).find(|line| !seen.any(|other| holds(&other, line)))
}

/// Waits until `done`, and says whether that came within a time.
pub fn within(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    while !done() {
        if began.elapsed() > limit {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    true
}

/// What a process said until it ended, and whether it ended by itself: after `limit` it is killed.
pub fn end(child: Child, limit: Duration) -> (Output, bool) {
    let process = child.id();
    let waits = std::thread::spawn(move || child.wait_with_output().unwrap());
    let ended = within(limit, || waits.is_finished());
    if !ended {
        kill("-KILL", process);
        assert!(within(limit, || waits.is_finished()), "it was killed, and something still holds its stderr");
    }
    (waits.join().unwrap(), ended)
}

/// Sends a signal to a process, and says whether it was still there.
pub fn kill(signal: &str, process: u32) -> bool {
    Command::new("kill").args([signal, &process.to_string()]).stderr(Stdio::null()).status().unwrap().success()
}

/// Runs with an end after a minute: what waits for ever, or reads what has no end, fails here.
#[track_caller]
pub fn refused(f: &Folder, arguments: &str, said: &[&str]) {
    let child = f.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (out, ended) = end(child, Duration::from_secs(60));
    let message = text(&out.stderr);
    assert!(ended && out.status.code() == Some(1) && !message.contains("panicked"), "limpid {arguments}: {message}");
    said.iter().for_each(|words| assert!(message.contains(words), "limpid {arguments} lacks `{words}`: {message}"));
}

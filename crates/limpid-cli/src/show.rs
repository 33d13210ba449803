//! What people see: numbers with units, tables, a progress bar where there is a terminal and plain lines where
//! there is none. Every print of the binary is one of [`out`] (data, to stdout), [`say`] (the rest, to stderr) and
//! [`Progress`]: none panics, whatever became of the stream, and none lets a name steer the terminal.

use indicatif::{ProgressBar, ProgressStyle};
use limpid::checkpoint::PaddedTable;
use limpid::draw::table::columns as text_width;
use limpid::draw::view::{Paint, wrap};
use std::borrow::Cow;
use std::cell::Cell;
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{LazyLock, Mutex, MutexGuard};
use std::time::Duration;

pub use limpid_base::plural::plural;
pub use limpid_base::units::{bytes, commas, count, duration};

/// Stopped by the user before the end: exit 130.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Interrupted(pub &'static str);

/// Text with its control characters spelled, as names from files may hold them: a terminal would obey. Lines and tabs
/// stay.
pub fn spelled(text: &str) -> Cow<'_, str> {
    let obeyed = |c: char| c.is_control() && c != '\n' && c != '\t';
    if !text.contains(obeyed) {
        return text.into();
    }
    let spell = |c: char| if obeyed(c) { c.escape_default().to_string() } else { c.into() };
    text.chars().map(spell).collect::<String>().into()
}

/// How this program was started: what stands before its verbs in a command that can be typed again.
pub fn program() -> &'static str {
    let release =
        std::env::current_exe().is_ok_and(|exe| exe.parent().is_some_and(|folder| folder.ends_with("release")));
    match std::env::var_os("CARGO_MANIFEST_DIR") {
        Some(_) if release => "cargo run --release --",
        Some(_) => "cargo run --",
        None => "limpid",
    }
}

pub use limpid_base::words::quoted;

/// Characters of a line of text, where nothing says how many there is room for.
pub const PROSE: usize = 100;

/// Columns of the terminal that stderr is; [`PROSE`] where it is none.
pub fn width() -> usize {
    asked().or_else(|| columns_of(&console::Term::stderr())).unwrap_or(PROSE)
}

/// Characters a line of stdout may have: the terminal's, or any number (0) into a file or a pipe.
pub fn table_width() -> usize {
    asked().or_else(|| columns_of(&console::Term::stdout())).unwrap_or(if terminal() { PROSE } else { 0 })
}

/// Whether stdout is read by eyes; once the terminal is closed, the system says no.
pub fn terminal() -> bool {
    static TERMINAL: LazyLock<bool> = LazyLock::new(|| std::io::stdout().is_terminal());
    *TERMINAL
}

/// Whether stdout shows colours.
pub fn coloured() -> bool {
    console::colors_enabled() && terminal()
}

/// With what heat maps are painted on stdout.
pub fn paint() -> Paint {
    let all = std::env::var("COLORTERM").is_ok_and(|term| ["truecolor", "24bit"].contains(&term.as_str()));
    if !coloured() {
        Paint::Shades
    } else if all {
        Paint::TrueColour
    } else {
        Paint::Colour
    }
}

/// Columns asked for by COLUMNS.
fn asked() -> Option<usize> {
    let columns: Option<u16> = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    columns.map(usize::from)
}

fn columns_of(terminal: &console::Term) -> Option<usize> {
    terminal.size_checked().map(|(_, columns)| usize::from(columns))
}

/// Stdout cannot be written. A closed pipe is no failure: whoever read has enough, and `main` takes it for an end.
#[derive(Debug, thiserror::Error)]
#[error("standard output cannot be written: {}", limpid_base::words::system(.0))]
pub struct Stdout(std::io::Error);

/// Prints data to stdout: to a terminal with its control characters spelled, elsewhere as it is.
pub fn out(text: &str) -> anyhow::Result<()> {
    painted(&if terminal() { spelled(text) } else { text.into() })
}

/// Prints help to stdout; its styles are our own.
pub fn help(text: &clap::builder::StyledStr) -> anyhow::Result<()> {
    painted(&if coloured() { text.ansi().to_string() } else { text.to_string() })
}

/// Prints to stdout what has styles of our own and no names that could steer the terminal.
pub fn painted(text: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => {
            if let Some(last) = text.chars().next_back() {
                BEGUN.store(terminal() && last != '\n', Relaxed);
            }
            Ok(())
        }
        Err(_) if terminal() && !stdout.is_terminal() => Err(Interrupted("the terminal was closed").into()),
        Err(error) => Err(Stdout(error).into()),
    }
}

/// Whether the last line on stdout, a terminal, goes on: what is said then stands below.
static BEGUN: AtomicBool = AtomicBool::new(false);

/// The bar that is drawn now: what is said stands above it.
static BAR: Mutex<Option<ProgressBar>> = Mutex::new(None);

fn bar() -> MutexGuard<'static, Option<ProgressBar>> {
    BAR.lock().unwrap_or_else(|e| e.into_inner())
}

/// Says a line to people, on stderr. Where nobody can hear it any more, work goes on.
pub fn say(line: impl std::fmt::Display) {
    let line = line.to_string();
    let print = || {
        let mut stderr = std::io::stderr().lock();
        let below = if BEGUN.swap(false, Relaxed) && stderr.is_terminal() { "\n" } else { "" };
        let _ = writeln!(stderr, "{below}{}", spelled(&line));
    };
    match &*bar() {
        Some(bar) => bar.suspend(print),
        None => print(),
    }
}

/// Says a line where a terminal has just shown `^C`: over the bar if there is one, else below.
pub fn interrupted(line: &str) {
    let below = if bar().is_some() { "" } else { "\n" };
    BEGUN.store(false, Relaxed);
    say(format_args!("{below}{line}"));
}

/// Says sentences to people, each line broken between words where the terminal ends.
pub fn prose(text: impl std::fmt::Display) {
    let width = columns_of(&console::Term::stderr()).map_or(0, |columns| asked().unwrap_or(columns));
    say(text.to_string().lines().map(|line| broken(line, width)).collect::<Vec<_>>().join("\n"));
}

/// Prose that comes in pieces, printed to stdout; on a terminal its lines break between words.
#[derive(Default)]
pub struct Flow {
    column: usize,
    /// What is not printed yet: it may go on in the next piece.
    word: String,
}

impl Flow {
    /// Prints a piece, but for a last word that nothing ends.
    pub fn out(&mut self, text: &str) -> anyhow::Result<()> {
        let shown = self.flow(text, if terminal() { table_width() } else { 0 });
        out(&shown)
    }

    /// What of the words so far is to be printed.
    fn flow(&mut self, text: &str, width: usize) -> String {
        let mut shown = String::new();
        for c in text.chars() {
            if !c.is_whitespace() {
                self.word.push(c);
                continue;
            }
            let wide = text_width(&self.word);
            if width > 0 && self.column > 0 && self.column + wide > width {
                let kept = shown.trim_end_matches(' ').len();
                shown.truncate(kept);
                shown.push('\n');
                self.column = 0;
            }
            shown += &std::mem::take(&mut self.word);
            shown.push(c);
            self.column = if c == '\n' { 0 } else { self.column + wide + 1 };
        }
        shown
    }
}

/// A line that is broken between words where it has more than `width` characters (0 for any number).
fn broken(line: &str, width: usize) -> String {
    if width > 0 && text_width(line) > width { wrap(line, 0, width).trim_end().to_string() } else { line.into() }
}

/// A line of stdout, broken between words where the terminal ends.
pub fn sentence(line: &str) -> String {
    broken(line, table_width())
}

/// The one JSON object of `--json`.
pub fn json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    out(&(serde_json::to_string(value)? + "\n"))
}

/// An error with its causes, each in words for people.
pub fn causes(error: &anyhow::Error) -> String {
    let words = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref().map_or_else(|| cause.to_string(), limpid_base::words::system)
    };
    error.chain().map(words).collect::<Vec<_>>().join(": ")
}

/// Whether whoever read our output has gone away.
pub fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Stdout>().is_some_and(|e| e.0.kind() == std::io::ErrorKind::BrokenPipe)
}

/// What a verb found: the one JSON object of `--json`, or [`pairs`].
pub fn found<L: AsRef<str>>(as_json: bool, facts: &impl serde::Serialize, rows: &[(L, String)]) -> anyhow::Result<()> {
    if as_json { json(facts) } else { out(&pairs(rows)) }
}

/// What is said of a table with rows that no token has.
pub fn padding(table: &PaddedTable) -> String {
    let (tensor, [rows, read]) = (&table.tensor, [table.rows, table.read].map(commas));
    format!("`{tensor}` has {rows} rows, more than vocab_size: the rows after the first {read} are not read")
}

/// Rows of label and value, labels padded; a value that is longer than a line goes on below itself, if there is room
/// for words.
pub fn pairs<L: AsRef<str>>(rows: &[(L, String)]) -> String {
    let width = rows.iter().map(|(label, _)| label.as_ref().chars().count()).max().unwrap_or(0);
    let most = table_width();
    let before = width + 4;
    let row = |(label, value): &(L, String)| {
        let label = label.as_ref();
        let most = if most >= before + 20 { most - before } else { 0 };
        let value = broken(value, most).replace('\n', &format!("\n{}", " ".repeat(before)));
        format!("  {label:<width$}  {value}\n")
    };
    rows.iter().map(row).collect()
}

/// Aligned columns, the first to the left; where a line would be too long, the last are left out.
pub fn columns(headers: &[&str], lines: &[Vec<String>]) -> String {
    columns_within(headers, lines, table_width())
}

/// The same with all columns, however long lines become.
pub fn whole_columns(headers: &[&str], lines: &[Vec<String>]) -> String {
    columns_within(headers, lines, 0)
}

fn columns_within(headers: &[&str], lines: &[Vec<String>], most: usize) -> String {
    let column = |j: usize| lines.iter().map(move |line| line.get(j).map_or("", String::as_str));
    let widths = headers.iter().enumerate().map(|(j, header)| column(j).chain([*header]).map(text_width).max());
    let mut widths: Vec<usize> = widths.map(|width| width.unwrap_or(0)).collect();
    while most > 0 && widths.len() > 3 && widths.iter().map(|w| w + 2).sum::<usize>() > most + 2 {
        widths.pop();
    }
    let headers: Vec<String> = headers.iter().map(|h| h.to_string()).collect();
    let mut text = String::new();
    for line in std::iter::once(&headers).chain(lines) {
        let cells = widths.iter().zip(line).enumerate().map(|(j, (width, cell))| {
            let space = " ".repeat(width.saturating_sub(text_width(cell)));
            if j == 0 { format!("{cell}{space}") } else { format!("  {space}{cell}") }
        });
        text += cells.collect::<String>().trim_end();
        text.push('\n');
    }
    text
}

/// A bar on a terminal, lines elsewhere.
pub struct Progress {
    bar: ProgressBar,
    lines: bool,
    every: u64,
    digits: usize,
    quiet: bool,
    /// What is counted, where it is not steps.
    unit: Option<&'static str>,
    /// The hundredths that have been told.
    told: Cell<u64>,
}

impl Progress {
    /// For `total` steps.
    pub fn new(total: u64, quiet: bool) -> Progress {
        let bar = if quiet { ProgressBar::hidden() } else { ProgressBar::new(total) };
        let lines = bar.is_hidden(); // no terminal, or one that moves no cursor (TERM=dumb)
        let template =
            if width() < 70 { "{pos}/{len} {wide_msg}" } else { "{bar:20.cyan/blue} {pos}/{len}  {wide_msg}" };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("━╸─"));
        }
        if limpid_base::threads::can_start(1).is_ok() {
            bar.enable_steady_tick(Duration::from_millis(200)); // in a thread
        }
        if !lines && !quiet {
            *self::bar() = Some(bar.clone());
        }
        let every = (total / 20).max(1);
        let digits = total.to_string().len();
        Progress { bar, lines, every, digits, quiet, unit: None, told: Cell::new(0) }
    }
    /// For `total` of something that is not steps: `%`, `MB`.
    pub fn of(unit: &'static str, total: u64, quiet: bool) -> Progress {
        Progress { unit: Some(unit), every: (total / 10).max(1), ..Progress::new(total, quiet) }
    }
    /// Whether it says lines, as where there is no terminal.
    pub fn lines(&self) -> bool {
        self.lines
    }
    /// Says where a step stands.
    pub fn step(&self, step: u64, text: impl FnOnce() -> String) {
        if self.quiet {
            return;
        }
        if !self.lines {
            self.bar.set_position(step);
            self.bar.set_message(spelled(&text()).into_owned());
        } else if step > 0 && step.is_multiple_of(self.every) || step == 1 && self.unit.is_none() {
            match self.unit {
                Some(unit) => say(format_args!("{step} {unit}: {}", text())),
                None => say(format_args!("step {step:>w$}: {}", text(), w = self.digits)),
            }
        }
    }
    /// Says how much of `total` is done, in hundredths (of [`Progress::of`] 100).
    pub fn reach(&self, done: u64, total: u64, text: impl FnOnce() -> String) {
        let now = (100 * done.min(total)).checked_div(total).unwrap_or(0);
        let now = if self.lines { now - now % self.every } else { now };
        if now > self.told.replace(now) {
            self.step(now, text);
        }
    }
    /// Says something that stays.
    pub fn line(&self, text: &str) {
        if !self.quiet {
            say(text);
        }
    }
    /// Takes the bar away.
    pub fn done(&self) {
        *bar() = None;
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_as_people_read_them() {
        assert_eq!((commas(124_439_808), commas(7), commas(1000)), ("124,439,808".into(), "7".into(), "1,000".into()));
    }

    #[test]
    fn prose_breaks_between_words_however_it_comes() {
        let text = "Once upon a time, there was\na little girl who lived at the edge of-the-whole-wide-forest.\n";
        for size in 1..20 {
            let mut flow = Flow::default();
            let mut shown = String::new();
            let letters: Vec<char> = text.chars().collect();
            letters.chunks(size).for_each(|piece| shown += &flow.flow(&piece.iter().collect::<String>(), 16));
            let lines: Vec<&str> = shown.lines().map(str::trim_end).collect();
            let want = [
                "Once upon a",
                "time, there was",
                "a little girl",
                "who lived at the",
                "edge",
                "of-the-whole-wide-forest.",
            ];
            assert_eq!(lines, want, "pieces of {size}");
            let mut whole = Flow::default();
            assert_eq!(whole.flow(text, 0), text);
        }
    }

    #[test]
    fn names_do_not_steer_the_terminal() {
        for (raw, shown) in [
            ("plain é 日本\n\ttext", "plain é 日本\n\ttext"),
            ("a\u{1b}[31mred", r"a\u{1b}[31mred"),
            ("\u{9b}2J\r\u{7f}\0\u{7}", r"\u{9b}2J\r\u{7f}\u{0}\u{7}"),
        ] {
            assert_eq!(spelled(raw), shown);
        }
    }

    #[test]
    fn paths_are_words_of_a_shell() {
        for (path, word) in [
            ("runs/nano-1", "runs/nano-1"),
            ("my run", "'my run'"),
            ("Tom's", r"'Tom'\''s'"),
            ("-x", "./-x"),
            ("", "''"),
            ("a;b$(c)*", "'a;b$(c)*'"),
            ("modèle", "modèle"),
        ] {
            assert_eq!(quoted(path), word);
        }
    }
}

//! What people see: numbers with units, tables, a progress bar where there is a terminal and plain lines where
//! there is none.

use indicatif::{ProgressBar, ProgressStyle};
use std::cell::Cell;
use std::io::{IsTerminal, Write};
use std::time::Duration;

/// 1234567 as 1,234,567.
pub fn commas(n: u64) -> String {
    limpid::trace::table::thousands(n as usize)
}

pub use limpid::report::units::{bytes, count, duration};

/// Columns of the terminal; 100 where there is none.
pub fn width() -> usize {
    std::env::var("COLUMNS").ok().and_then(|c| c.parse().ok()).or_else(terminal_width).unwrap_or(100)
}

/// Characters a line of stdout may have: the terminal's, or any number (0) into a file or a pipe.
pub fn table_width() -> usize {
    let asked = std::env::var_os("COLUMNS").is_some();
    if asked || std::io::stdout().is_terminal() { width() } else { 0 }
}

fn terminal_width() -> Option<usize> {
    console::Term::stderr().size_checked().map(|(_, columns)| usize::from(columns))
}

/// Prints to stdout; a closed pipe is an error that `main` takes for an end.
pub fn out(text: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    Ok(stdout.flush()?)
}

/// The one JSON object of `--json`.
pub fn json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    out(&(serde_json::to_string(value)? + "\n"))
}

/// Whether whoever read our output has gone away.
pub fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}

/// Rows of label and value, labels padded.
pub fn pairs(rows: &[(String, String)]) -> String {
    let width = rows.iter().map(|(label, _)| label.chars().count()).max().unwrap_or(0);
    rows.iter().map(|(label, value)| format!("  {label:<width$}  {value}\n")).collect()
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
        let lines = !std::io::stderr().is_terminal();
        let bar = if lines || quiet { ProgressBar::hidden() } else { ProgressBar::new(total) };
        let template = if width() < 70 { "{pos}/{len} {msg}" } else { "{bar:20.cyan/blue} {pos}/{len}  {msg}" };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("━╸─"));
        }
        bar.enable_steady_tick(Duration::from_millis(200));
        let (every, digits) = ((total / 20).max(1), total.to_string().len());
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
            self.bar.set_message(text());
        } else if step > 0 && step.is_multiple_of(self.every) || step == 1 && self.unit.is_none() {
            match self.unit {
                Some(unit) => eprintln!("{step} {unit}: {}", text()),
                None => eprintln!("step {step:>w$}: {}", text(), w = self.digits),
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
        match (self.quiet, self.lines) {
            (true, _) => {}
            (false, true) => eprintln!("{text}"),
            (false, false) => self.bar.println(text),
        }
    }
    /// Takes the bar away.
    pub fn done(&self) {
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
}

//! Errors of Rust and of the system in words for people (`invalid digit found in string` says what a parser met, not
//! what it takes), and words of commands.

use std::error::Error;
use std::io;
use std::num::{IntErrorKind, ParseFloatError, ParseIntError};
use std::path::Path;
use std::str::ParseBoolError;

/// What a text must be where it could not be read as a number or a switch; none of any other error.
pub fn expected(error: &(dyn Error + 'static)) -> Option<&'static str> {
    if let Some(error) = error.downcast_ref::<ParseIntError>() {
        return Some(match error.kind() {
            IntErrorKind::PosOverflow => "it is too large",
            IntErrorKind::NegOverflow => "it is too far below zero",
            _ => "it must be a whole number, in digits alone",
        });
    }
    if error.is::<ParseFloatError>() {
        return Some("it must be a number, such as 2, 0.5 or 3e-4");
    }
    error.is::<ParseBoolError>().then_some("it must be true or false")
}

/// What the system says, without the number that it has for it.
pub fn system(error: &io::Error) -> String {
    let text = error.to_string();
    let number = error.raw_os_error().map(|number| format!(" (os error {number})"));
    number.and_then(|number| text.strip_suffix(&number).map(String::from)).unwrap_or(text)
}

/// What a parser of JSON met at `line` and `column` of `text`: its end, or what other programs write and JSON does not
/// have: a number that is not finite, or half of a surrogate pair. `said` is the parser's own message.
pub fn not_json(text: &str, line: usize, column: usize, said: &str) -> Option<String> {
    if let Some(what) = said.strip_prefix("EOF while parsing ") {
        let what = what.split(" at line").next()?;
        return Some(format!("it ends {} {what}", if what == "a value" { "before" } else { "within" }));
    }
    let row = text.split('\n').nth(line.saturating_sub(1))?.as_bytes();
    let place = format!("at line {line} column {column}");
    let at = |start: usize| row.get(start..).unwrap_or_default();
    let infinite = |start: usize| ["NaN", "Infinity"].into_iter().find(|word| at(start).starts_with(word.as_bytes()));
    if let Some(word) = (column.saturating_sub(2)..=column).find_map(infinite) {
        return Some(format!("it has {word} {place}, which JSON does not have: write a number, or null"));
    }
    if !said.contains("surrogate") && !said.contains("hex escape") {
        return None;
    }
    let half =
        |start: &usize| matches!(at(*start), [b'\\', b'u', b'd' | b'D', b'8'..=b'9' | b'a'..=b'f' | b'A'..=b'F', ..]);
    let start = (column.saturating_sub(14)..column).rev().find(half)?;
    let shown = String::from_utf8_lossy(&at(start)[..row.len().min(start + 6) - start]).into_owned();
    Some(format!(
        "it has {shown} {place}, half of a surrogate pair, which is no character: write both halves, or leave it out"
    ))
}

/// A text as a word of a command that can be pasted into a shell.
pub fn word(text: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "_@%+=:,./-".contains(c);
    if !text.is_empty() && text.chars().all(plain) { text.into() } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

/// A flag with a text, in such a command: one that looks like a flag itself is joined to it.
pub fn flag(name: &str, text: &str) -> String {
    format!("--{name}{}{}", if text.starts_with('-') { '=' } else { ' ' }, word(text))
}

/// A path as a word of such a command.
pub fn quoted(path: impl AsRef<Path>) -> String {
    word(&no_flag(path.as_ref()))
}

/// The words of a command that name a model and its adapters, as a program takes them.
pub fn model_words<'a>(model: &Path, adapters: impl IntoIterator<Item = &'a Path>) -> Vec<String> {
    let adapters = adapters.into_iter().flat_map(|adapter| ["--adapter".into(), no_flag(adapter)]);
    std::iter::once(no_flag(model)).chain(adapters).collect()
}

/// A path that is not taken for a flag.
fn no_flag(path: &Path) -> String {
    let text = path.display().to_string();
    if text.starts_with('-') { format!("./{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_parser_met_is_said_as_what_it_takes() {
        let of = |error: Box<dyn Error>| expected(&*error);
        for text in ["", "x", "1.5", "1e9", "-3", "+", " 1", "0x10"] {
            let said = of(text.parse::<u64>().unwrap_err().into()).unwrap();
            assert!(said.contains("whole number"), "{text}: {said}");
        }
        assert_eq!(of("300".parse::<u8>().unwrap_err().into()), Some("it is too large"));
        assert_eq!(of("-300".parse::<i8>().unwrap_err().into()), Some("it is too far below zero"));
        assert!(of("1,5".parse::<f64>().unwrap_err().into()).unwrap().contains("a number"));
        assert_eq!(of("on".parse::<bool>().unwrap_err().into()), Some("it must be true or false"));
        assert_eq!(of("other".into()), None);
    }

    #[test]
    fn a_text_that_is_cut_short_ends() {
        for (met, said) in [
            ("EOF while parsing a value at line 1 column 0", "it ends before a value"),
            ("EOF while parsing an object at line 2 column 0", "it ends within an object"),
            ("EOF while parsing a string at line 1 column 2", "it ends within a string"),
        ] {
            assert_eq!(not_json("", 1, 0, met).unwrap(), said);
        }
        assert_eq!(not_json("[1 2]", 1, 4, "expected `,` or `]` at line 1 column 4"), None);
    }

    #[test]
    fn the_system_speaks_without_numbers() {
        for number in 1..=40 {
            let error = io::Error::from_raw_os_error(number);
            let said = system(&error);
            assert!(!said.contains("os error") && error.to_string().starts_with(&said), "{said}");
        }
        assert_eq!(
            system(&io::Error::other("ours (os error 2)")),
            "ours (os error 2)",
            "nobody else's words are changed"
        );
    }

    #[test]
    fn what_looks_like_a_flag_is_none() {
        for (text, joined) in [
            ("Once upon", "--prompt 'Once upon'"),
            ("it's", r"--prompt 'it'\''s'"),
            ("-", "--prompt=-"),
            ("--no, -no", "--prompt='--no, -no'"),
            ("", "--prompt ''"),
        ] {
            assert_eq!(flag("prompt", text), joined);
        }
        let words = model_words(Path::new("-m"), [Path::new("a b"), Path::new("--x")]);
        assert_eq!(words, ["./-m", "--adapter", "a b", "--adapter", "./--x"]);
        assert_eq!(quoted("-m n"), "'./-m n'");
    }
}

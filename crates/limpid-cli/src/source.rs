//! Where text comes from, as the command line names it: `limpid::data::source` reads it.

use crate::options::{DataOptions, MachineOptions, TextOptions};
use crate::show;
use anyhow::{Context, Result, anyhow, bail};
use limpid::data::read_line;
use limpid::data::source::{HELD, Reading, SourceError, TextSource};
use std::io::{BufRead, Read as _};
use std::ops::ControlFlow;
use std::path::Path;

/// A source with what `--field`, `--skip-bad` and `--parse-special` say.
pub fn source(data: &str, reading: &TextOptions, machine: &MachineOptions) -> TextSource {
    let mut source = reading.source(data, machine);
    source.threads = machine.threads();
    source
}

/// The documents that `names` stand for.
pub fn documents(names: &[String], reading: &DataOptions) -> Result<Reading> {
    Ok(Reading::new(names, reading.field.as_deref(), reading.skip_bad)?)
}

/// What reading came to; an error says which flags mend it.
pub fn worded<T>(result: Result<T, SourceError>) -> Result<T> {
    result.map_err(|error| match &error {
        SourceError::Large { name } => {
            let name = if name == "standard input" { "-".into() } else { show::quoted(name) };
            anyhow!("{error}: `limpid data prepare {name} --out DIR`, then --data DIR")
        }
        SourceError::OtherTokenizer { .. } => anyhow!("{error} (leave --tokenizer out)"),
        _ => error.into(),
    })
}

/// An error of the library as a whole: of its part, with the flags that mend it.
pub fn of_library(error: limpid::Error) -> anyhow::Error {
    match error {
        limpid::Error::Source(error) => worded::<()>(Err(*error)).expect_err("it is one"),
        limpid::Error::Train(error) => (*error).into(),
        limpid::Error::NoMask => anyhow!("{error}: use --tokenizer word or char"),
        _ => error.into(),
    }
}

/// A text file; one that is not UTF-8 is an error that says where.
pub fn read_file(path: &Path) -> Result<String> {
    Ok(limpid::data::read_text(path, HELD)?)
}

/// Calls `each` with every line of `input` and its place in `name`, until one is the last. `too_long` is told of a line
/// of more than `most` bytes, behind its place.
pub fn lines(
    input: &mut dyn BufRead,
    name: &str,
    (most, too_long): (usize, &str),
    mut each: impl FnMut(&str, &str) -> Result<ControlFlow<()>>,
) -> Result<()> {
    let mut bytes = vec![];
    for n in 1.. {
        bytes.clear();
        let size = read_line(input, &mut bytes, most).with_context(|| name.to_string())?;
        let place = format!("{name}, line {n}");
        if size > bytes.len() as u64 {
            bail!("{place} is longer than {too_long}");
        }
        let line = std::str::from_utf8(&bytes).with_context(|| place.clone())?;
        if size == 0 || each(line, &place)?.is_break() {
            break;
        }
    }
    Ok(())
}

/// `--prompt`: text, or `@FILE` or `-` for standard input, which end with a newline that is not meant: the last one of
/// a file or pipe is no part of the prompt.
pub fn prompt(given: &str) -> Result<String> {
    let mut text = match given {
        "-" => {
            let mut text = String::new();
            let read = std::io::stdin().lock().take(HELD + 1).read_to_string(&mut text).context("standard input")?;
            if read as u64 > HELD {
                bail!("standard input has more than {}, the most that is held in memory", show::bytes(HELD));
            }
            text
        }
        _ => match given.strip_prefix('@') {
            Some(file) => read_file(Path::new(file))?,
            None => return Ok(given.into()),
        },
    };
    if text.starts_with('\u{feff}') {
        text.drain(..'\u{feff}'.len_utf8()); // the mark of some editors, no part of the text
    }
    if text.ends_with('\n') {
        text.truncate(text.len() - if text.ends_with("\r\n") { 2 } else { 1 });
    }
    Ok(text)
}

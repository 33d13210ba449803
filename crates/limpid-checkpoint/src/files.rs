//! Reading and replacing files with errors that name them. Each file is replaced whole or not at all.

use crate::error::{CheckpointError, Result, bad};
use limpid_base::files::{self, OutputFile};
use limpid_base::words::not_json;
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// More bytes than any configuration or index has; a larger file by that name is something else.
pub(crate) const LARGEST_JSON: u64 = 64 << 20;

/// Adds the path to an error of the file system.
///
/// # Errors
/// That error.
pub fn at<T>(path: &Path, result: io::Result<T>) -> Result<T> {
    result.map_err(|fault| CheckpointError::Io { path: path.into(), fault })
}

/// Reads a file of JSON; `wrong` is what is said of one that is none, or another.
pub(crate) fn read_json<T: serde::de::DeserializeOwned>(path: &Path, wrong: &str) -> Result<T> {
    let text = at(path, files::read_text(path, LARGEST_JSON))?;
    serde_json::from_str(&text).map_err(|error| {
        let said = error.to_string();
        bad(path, format!("{wrong}: {}", not_json(&text, error.line(), error.column(), &said).unwrap_or(said)))
    })
}

/// Replaces `path` by what `write` produces: whole, or not at all.
///
/// # Errors
/// The file system's error; the old file is then unchanged, and no other file is left behind.
pub fn replace(path: &Path, write: impl FnOnce(&Path) -> io::Result<()>) -> Result<()> {
    at(path, files::replace(path, write))
}

/// Replaces a small text file.
///
/// # Errors
/// As [`replace`].
pub fn write_text(path: &Path, text: &str) -> Result<()> {
    replace(path, |path| OutputFile::create(path)?.write_all(text.as_bytes()))
}

/// [`replace`] for a writer that may also refuse a value: its [`CheckpointError`] comes out as itself.
pub(crate) fn replace_buffered(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<OutputFile>) -> io::Result<()>,
) -> Result<()> {
    let whole = |beside: &Path| {
        let mut file = BufWriter::with_capacity(1 << 20, OutputFile::create(beside)?);
        write(&mut file)?;
        file.flush()
    };
    replace(path, whole).map_err(CheckpointError::inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};

    #[test]
    fn a_failed_save_leaves_the_old_file_and_nothing_beside() {
        let dir = std::env::temp_dir().join(format!("limpid-replace-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let path = dir.join("file");
        write_text(&path, "good").unwrap();
        let full = replace(&path, |p| {
            File::create(p)?.write_all(b"ha")?;
            Err(io::ErrorKind::StorageFull.into())
        });
        assert!(full.unwrap_err().to_string().contains("free some space"));
        assert_eq!(fs::read_to_string(&path).unwrap(), "good");
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
        fs::remove_dir_all(dir).unwrap();
    }
}

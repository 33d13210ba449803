//! A file as memory: weights are read where they lie, page by page, and a model of many gigabytes opens at once.
//! This is the only `unsafe` outside the arithmetic. `checkpoint::store` gives the bytes their names, `data::shards` reads them
//! as tokens.

#![allow(unsafe_code)] // one block: the system cannot promise what other programs do to a file

use memmap2::{Mmap, MmapOptions};
use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::Path;

/// The bytes of an open file.
pub struct Map(Option<Mmap>);

impl Map {
    /// Opens `path` for reading.
    ///
    /// # Errors
    /// If it cannot be opened or is not a regular file (a directory, a pipe).
    pub fn open(path: &Path) -> io::Result<Map> {
        // before it is opened: opening a pipe waits for whoever writes
        if !std::fs::metadata(path)?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let file = File::open(path)?;
        let about = file.metadata()?;
        if about.len() == 0 {
            return Ok(Map(None)); // no system maps nothing
        }
        // SAFETY: the map is private and read-only, so nothing here changes the file or the bytes. Another program
        // may: one that writes into the file may show through, which no reader relies on, because offsets are held
        // against the length of the map once and kept, and text is copied before it is used; one that truncates it
        // ends this process with SIGBUS, as it would every program that maps files. limpid itself replaces files by
        // renaming.
        let map = unsafe { MmapOptions::new().map_copy_read_only(&file)? };
        Ok(Map(Some(map)))
    }
}

impl Deref for Map {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.0.as_deref().unwrap_or(&[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_its_bytes_an_empty_one_none_and_a_folder_is_refused() {
        let dir = std::env::temp_dir().join(format!("limpid-map-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("file");
        for bytes in [&b""[..], b"x", &[7; 5000]] {
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(&*Map::open(&path).unwrap(), bytes);
        }
        assert!(Map::open(&dir).is_err_and(|e| e.to_string() == "not a regular file"));
        assert!(Map::open(&dir.join("none")).is_err());
        std::fs::remove_dir_all(dir).unwrap();
    }
}
